#!/usr/bin/env bash
# Runs the wide fixtures (tests/fixtures/wide) on a GPU machine that has no iree-compile, from one small file: about 4
# MB instead of 300.
#
#   wide_gpu.sh pack BUILD OUT.tar.xz [NAME...]   here: compile every fixture for cuda:sm_90, with kernels required
#   wide_gpu.sh run OUT.tar.xz                    there: generate weights, write bundles, run arch_gpu_test on each
#
# The modules contain the same images again and again, so they are packed with a large dictionary. `run` needs NVRTC (a
# CUDA toolkit) and numpy. Exit status 1 if a fixture differs.
set -euo pipefail

pack() {
  local build=$1 out=$2 root
  root=$(cd "$(dirname "$0")/../.." && pwd)
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  shift 2
  [ $# -gt 0 ] || set -- $(cd "$root/tests/fixtures/wide" && ls | sed 's/\.json$//')
  mkdir -p "$work"/gpu/wide "$work"/tests/{parity,fixtures/wide,fixtures/tiny-llama} "$work"/modules
  cp "$build/gpu/arch_gpu_test" "$work/gpu/"
  echo $# >"$work/gpu/wide/count"
  cp "$build/bin/mlxcel" "$work/"
  strip "$work/gpu/arch_gpu_test" "$work/mlxcel"
  cp "$root"/tests/parity/{make_wide,wide_weights,numpy_models}.py "$root/tests/parity/prebuilt_iree_compile.sh" "$work/tests/parity/"
  cp "$root/tests/fixtures/tiny-llama/tokenizer.json" "$work/tests/fixtures/tiny-llama/"
  for name; do
    cp "$root/tests/fixtures/wide/$name.json" "$work/tests/fixtures/wide/"
    cp "$root/tests/goldens/wide/$name.json" "$work/gpu/wide/"
  done
  python3 "$work/tests/parity/make_wide.py" --write "$work/models"
  for name; do
    "$build/bin/mlxcel" compile -q "$work/models/$name" --target cuda:sm_90 --kernels required -c 256 --emit vmfb -o "$work/modules/$name.vmfb"
  done
  rm -r "$work/models"
  tar -C "$work" -cf - . | xz -c --lzma2=preset=1,dict=512MiB >"$out"
  echo "packed $# fixtures: $(stat -c %s "$out") bytes"
}

compile_one() {
  MLXCEL_PREBUILT=$PWD/modules/$1.vmfb timeout 180 ./mlxcel compile "models/$1" --target cuda:sm_90 --kernels required -c 256 \
    --iree-compile "$PWD/tests/parity/prebuilt_iree_compile.sh" -o "gpu/wide/$1.mlxb" >"$1.log" 2>&1 || echo "$1: $(tail -n 2 "$1.log")"
}

test_one() {
  local status=0
  MLXCEL_ARCH=$1 timeout 60 gpu/arch_gpu_test every_architecture_on_the_gpu_kernels_matches_hf_token_for_token >"$1.out" 2>&1 || status=$?
  grep -v '^every\|passed' "$1.out" | tail -n 3 || echo "  $1: no output"
  return $status
}

run() {
  local packed
  packed=$(realpath "$1")
  work=$(mktemp -d)
  cd "$work"
  tar -xJf "$packed"  2>/dev/null || python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(".")' "$packed"
  export MLXCEL_CACHE=$work/cache MLXCEL_STATE=$work/state MLXCEL_CONFIG=/dev/null MLXCEL_NEED_GPU=1
  python3 tests/parity/make_wide.py --write models
  export -f compile_one test_one
  ls models | xargs -P 6 -I{} bash -c 'compile_one {}'
  local status=0
  ls models | xargs -P 4 -I{} bash -c 'test_one {}' || status=1
  cd / && rm -rf "$work"
  return $status
}

case ${1:-} in
  pack | run) "$@" ;;
  --help) sed -n '2,9s/^# \{0,1\}//p' "$0" ;;
  *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
