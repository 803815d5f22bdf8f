#!/usr/bin/env bash
# Checks that every C and CUDA source is formatted as .clang-format says; generated files are listed in
# .clang-format-ignore.
#
#   tests/format.sh DEPS              print the files that are not, and fail
#   tests/format.sh DEPS --in-place   format them
#
# DEPS is the folder that ./build.sh fetched clang-format into. Without it the check is skipped (exit status 77).
set -euo pipefail
cd "$(dirname "$0")/.."
clang_format=$1/clang-format/clang_format/data/bin/clang-format
[ -x "$clang_format" ] || { echo "skipped: there is no $clang_format; ./build.sh format fetches it"; exit 77; }
sources() { git ls-files -z -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh'; }
if [ "${2:-}" = --in-place ]; then
  sources | xargs -0 "$clang_format" -i
  exit
fi
if sources | xargs -0 "$clang_format" --dry-run -Werror 2>&1 | grep -E '^[^ ]+:[0-9]+:[0-9]+: error' | cut -d: -f1 | sort -u | grep .; then
  echo 'not formatted; run: ./build.sh format'
  exit 1
fi
