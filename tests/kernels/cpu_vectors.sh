#!/usr/bin/env bash
# Runs tests/kernels/cpu_vectors.c and tests/kernels/cpu_batch.c for every CPU level that this machine can run, aarch64
# under an emulator included. Each must be correct, and all levels with fused multiply-add must give the same bits.
# Unsupported levels are skipped. Both are linked with the kernel's objects in BUILD/generated, the ones that modules
# get. These may use each other's symbols only.
#
#   tests/kernels/cpu_vectors.sh CC BUILD
set -euo pipefail
build=$(cd "$2" && pwd)
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
flags='-std=gnu11 -O2 -Wall -Wextra -Werror -Wno-unused-function -ffp-contract=off -fno-math-errno -I.'
fused= failed=0 ran=0

check() {  # LEVEL RUNNER COMPILER...
  local level=$1 runner=$2 output status=0 objects missing
  shift 2
  objects=$(for source in kernels/cpu/*.c; do echo "$build/generated/$(basename "$source" .c).$level.o"; done)
  "$@" $flags tests/kernels/cpu_vectors.c $objects -o "$folder/$level" -lm
  output=$($runner "$folder/$level" 2>"$folder/err") || status=$?
  if [ $status -eq 132 ]; then  # SIGILL
    echo "skipped: $level: this machine cannot run it"
    return
  fi
  ran=$((ran + 1))
  echo "$level: $output"
  if [ -z "$runner" ]; then
    missing=$(comm -23 <(nm -u $objects | awk '$1 == "U" {print $2}' | sort -u) <(nm --defined-only $objects | awk '$2 == "T" {print $3}' | sort -u))
    [ -z "$missing" ] || { echo "$level needs symbols that modules do not have:" $missing; failed=1; }
  fi
  "$@" $flags -O1 tests/kernels/cpu_batch.c $objects -o "$folder/$level-batch" -lm -lpthread
  $runner "$folder/$level-batch" ${runner:+quick} || failed=1
  [ $status -eq 0 ] || { failed=1; cat "$folder/err"; return; }
  case $output in
    *fused*) ;;
    *) [ "${fused:=$output}" = "$output" ] || { echo "$level gives other bits than the other levels"; failed=1; } ;;
  esac
}

case $(uname -m) in
  x86_64) for level in x86-64 x86-64-v3 x86-64-v4 sapphirerapids; do check $level '' "$1" -march=$level; done ;;
  aarch64) check aarch64 '' "$1" ;;
esac
if [ "$(uname -m)" != aarch64 ]; then
  if [ -x "$build/tools/qemu-aarch64" ] && [ -x "$build/aarch64/tools/cc" ]; then
    check aarch64 "$build/tools/qemu-aarch64" "$build/aarch64/tools/cc"
  else
    echo 'skipped: aarch64: run ./build.sh test --all to get the emulator and compiler'
  fi
fi
[ $ran -gt 0 ] && exit $failed
echo 'no CPU level could be run'
exit 1
