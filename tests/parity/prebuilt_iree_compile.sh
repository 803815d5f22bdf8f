#!/bin/sh
# Stands in for iree-compile on a machine that has none: gives back a module that was compiled elsewhere from the same
# shape.
#   MLXCEL_PREBUILT=model.vmfb mlxcel compile MODEL --iree-compile tests/parity/prebuilt_iree_compile.sh \
#     [the same options] -o out.mlxb
# So weights are packed where they lie, and a module travels without gigabytes. Give it a cache folder of its own
# (MLXCEL_CACHE).
if [ "$1" = --version ]; then
  echo 'IREE compiler version prebuilt'
  exit
fi
: "${MLXCEL_PREBUILT:?names the .vmfb to give back}"
while [ $# -gt 1 ]; do
  if [ "$1" = -o ]; then exec cp "$MLXCEL_PREBUILT" "$2"; fi
  shift
done
echo 'no -o' >&2
exit 1
