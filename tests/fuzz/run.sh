#!/usr/bin/env bash
# Runs every fuzz target of a fuzz build for SECONDS each. Findings are written to BUILD_FOLDER/findings.
#   tests/fuzz/run.sh BUILD_FOLDER SECONDS
set -euo pipefail
cd "$(dirname "$0")"
failed=0
for target in "$1"/bin/*_fuzz; do
  name=$(basename "$target")
  mkdir -p "$1/corpus/$name" "$1/findings"
  printf '%s: %s s ... ' "$name" "$2" >&2
  if "$target" -max_total_time="$2" -timeout=20 -rss_limit_mb=4096 -artifact_prefix="$1/findings/$name-" \
      "$1/corpus/$name" "$name" >"$1/findings/$name.log" 2>&1; then
    grep -o 'DONE.*\|Done.*' "$1/findings/$name.log" | tail -n 1 >&2
  else
    echo "FAILED: see $1/findings/$name.log" >&2
    failed=1
  fi
done
exit $failed
