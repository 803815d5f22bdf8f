#!/usr/bin/env bash
# Compares kernels/cuda/sample.cu, emulated on this machine, with kernels/sample_row.h. Needs a C++ compiler; without
# one it is skipped (exit status 77).
#
#   tests/kernels/sample_emulated.sh CC
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v c++ >/dev/null || { echo 'skipped: there is no C++ compiler'; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp kernels/cuda/sample.cu kernels/cuda/overlap.cuh "$folder"
echo 'template <class T> T *forget(T *pointer) { return pointer; }' > "$folder/ptx.cuh"  # all that it uses without sm_90
for vocab in 1 1003 5004 20011; do
  flags="-O2 -ffp-contract=off -DVOCAB=$vocab -I."
  $1 -std=c11 -D_GNU_SOURCE $flags -Wall -Wextra -Werror -c tests/kernels/sample_emulated.c -o "$folder/reference.o"
  c++ -std=c++17 -w -U_FORTIFY_SOURCE $flags -Ikernels -I"$folder" -c tests/kernels/sample_emulated.cpp -o "$folder/kernel.o"
  c++ "$folder/reference.o" "$folder/kernel.o" -o "$folder/emulated" -lm
  "$folder/emulated"
done
