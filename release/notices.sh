#!/usr/bin/env bash
# Prints the third-party notices of one package: every component's license text from its pinned source.
#
#   release/notices.sh PLATFORM full|runtime DEPS
#
# A missing license file is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
. release/components.sh
platform=$1 form=$2 deps=$3

rows=$(components_of "$platform" "$form")
printf 'mlxcel is under the Apache License 2.0 (see LICENSE). This package contains the following third-party components.\n\n'
while IFS='|' read -r name version licence pin files; do printf '  %s (%s): %s\n' "$name" "$version" "$licence"; done <<<"$rows"
while IFS='|' read -r name version licence pin files; do
  printf '\n\n================================================================================\n%s (%s), from %s: %s\n' \
    "$name" "$version" "$pin" "$licence"
  printf '================================================================================\n'
  for file in $files; do
    [ -s "$deps/$file" ] || { echo "release/notices.sh: the license file of $name, $deps/$file, is missing or empty" >&2; exit 1; }
    printf '\n'
    tr -d '\r' <"$deps/$file"
  done
done <<<"$rows"
if [ "$form" = full ]; then
  printf '\n\nThe IREE compiler also contains StableHLO and torch-mlir (Apache-2.0, the text given for IREE) and CUDA libdevice, which\n'
  printf 'may be redistributed under the license given for NVRTC.\n'
fi
