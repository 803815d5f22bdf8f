#!/usr/bin/env bash
# The vectors of kernels/cpu for every level that can be run here, an emulator included: each right, and those that fuse multiply and add
# equal in every bit. The levels of this machine are found by trying.
#
#   tests/cpu_words.sh CC BUILD
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
flags='-std=gnu11 -O3 -Wall -Wextra -Werror -Wno-unused-function -ffp-contract=off -fno-math-errno -I.'
fused= failed=0 ran=0

check() {  # LEVEL RUNNER COMPILER...
  local level=$1 runner=$2 said status=0
  shift 2
  "$@" $flags tests/cpu_words.c -o "$folder/$level" -lm
  said=$($runner "$folder/$level" 2>"$folder/err") || status=$?
  if [ $status -eq 132 ]; then  # SIGILL
    echo "skipped: $level, which this machine does not run"
    return
  fi
  ran=$((ran + 1))
  echo "$level: $said"
  [ $status -eq 0 ] || { failed=1; cat "$folder/err"; return; }
  case $said in
    *fused*) ;;
    *) [ "${fused:=$said}" = "$said" ] || { echo "$level computes other bits than the others"; failed=1; } ;;
  esac
}

case $(uname -m) in
  x86_64) for level in x86-64 x86-64-v3 x86-64-v4 sapphirerapids; do check $level '' "$1" -march=$level; done ;;
  aarch64) check aarch64 '' "$1" ;;
esac
if [ "$(uname -m)" != aarch64 ]; then
  if [ -x "$2/tools/qemu-aarch64" ] && [ -x "$2/aarch64/tools/cc" ]; then
    check aarch64 "$2/tools/qemu-aarch64" "$2/aarch64/tools/cc"
  else
    echo 'skipped: aarch64, which ./build.sh test --all has'
  fi
fi
[ $ran -gt 0 ] && exit $failed
echo 'no level could be run'
exit 1
