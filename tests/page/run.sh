#!/bin/sh
# Runs the tests of the chat page in chromium: run.sh DEPS. Exits with 77 if a program is missing: the test is then skipped.
deps=$1
skip() { echo "skipped: $1"; exit 77; }
command -v node >/dev/null || skip 'node is not installed'
command -v chromium >/dev/null || skip 'chromium is not installed'
[ -d "$deps/playwright/playwright-core" ] || skip 'playwright-core is missing: ./build.sh test --all fetches it'
timeout 60 chromium --headless --no-sandbox --disable-gpu --dump-dom about:blank 2>/dev/null | grep -q '<html' || skip 'chromium does not start here'
exec node "$(dirname "$0")/page_test.mjs" "$deps/playwright/playwright-core" "$(command -v chromium)" "$deps/page"
