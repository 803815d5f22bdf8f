#!/usr/bin/env bash
# Packs a folder reproducibly: sorted names, one timestamp, no owners.
#
#   release/pack.sh FOLDER OUT EPOCH      OUT ends in .tar.gz or .zip
set -euo pipefail
folder=$(realpath "$1") out=$(realpath -m "$2") epoch=$3
temporary=$out.tmp.$$
trap 'rm -rf "$temporary" "$temporary.zip" "$temporary.d"' EXIT
export LC_ALL=C TZ=UTC
umask 022

case $out in
  *.tar.gz)
    tar --create --format=ustar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --mode='u+rwX,go+rX,go-w' \
      -C "$(dirname "$folder")" "$(basename "$folder")" | gzip -n -6 >"$temporary"
    ;;
  *.zip)  # zip has no options for modes and times: set them on a copy
    mkdir "$temporary.d"
    cp -RL "$folder" "$temporary.d/"
    chmod -R u+rwX,go+rX,go-w "$temporary.d"
    find "$temporary.d" -exec touch -h -d "@$epoch" {} +
    (cd "$temporary.d" && find . -mindepth 1 | sed 's|^\./||' | sort | zip -X -6 -q -@ "$temporary.zip")
    mv "$temporary.zip" "$temporary"
    ;;
  *)
    echo "release/pack.sh: unknown suffix of $out; expected .tar.gz or .zip" >&2
    exit 2
    ;;
esac
mv "$temporary" "$out"
