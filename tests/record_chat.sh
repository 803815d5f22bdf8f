#!/usr/bin/env bash
# Prints the terminal output of the chat in README.md and docs/chat.md. Needs tmux.
#   tests/record_chat.sh MLXCEL MODEL
set -euo pipefail
[ $# -eq 2 ] || { sed -n '2,3s/^# \{0,1\}//p' "$0" >&2; exit 2; }
folder=$(mktemp -d)
terminal() { LC_ALL=C.UTF-8 tmux -S "$folder/socket" -f /dev/null "$@"; }
trap 'terminal kill-server 2>/dev/null || true; rm -rf "$folder"' EXIT

# Waits until the last line is an empty prompt.
wait_for_prompt() {
  for _ in $(seq 1200); do
    sleep 0.1
    if [ "$(terminal capture-pane -p | sed '/^$/d' | tail -n 1 | sed 's/ *$//')" = '>>>' ]; then return; fi
  done
  echo 'no prompt appeared within 120 s' >&2
  exit 1
}

say() {
  terminal send-keys -l -- "$1"
  terminal send-keys Enter
  sleep 0.3
  wait_for_prompt
}

terminal new-session -d -x 160 -y 40 "MLXCEL_STATE='$folder' exec '$1' run -m '$2' --temp 0 -c 1024 --device cpu"
wait_for_prompt
terminal resize-window -x 85 -y 40  # the answer below wraps between words at this width
say 'What is a compiler? Answer in one sentence.'
say 'What is the capital of France?'
say '/stats'
terminal capture-pane -p -S - | sed -e "s|$folder/||" -e 's/ *$//' | sed -e '/^>>>$/,$d'
