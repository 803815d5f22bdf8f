#!/usr/bin/env python3
"""Writes the sizes of a release's packages into the table of docs/packages.md.

    release/sizes.py RELEASE [PAGE]      RELEASE: build/release, with VERSION and SHA256SUMS

The table lies between two comments of the page. Only the platforms of this release change; the rows of others stay.
"""
import os
import re
import sys

sys.dont_write_bytecode = True
import packages  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
START, END = "<!-- sizes: release/sizes.py writes this table -->\n", "<!-- end of sizes -->\n"
HEAD = "| package | MiB |\n| --- | --- |\n"


def generic(name, version):
    """The name of a package without its version, so that a row keeps its name from release to release."""
    for text in packages.python_version(version), packages.debian_version(version), version:
        name = name.replace(text, "VERSION")
    return name


def main():
    release = sys.argv[1]
    page = sys.argv[2] if len(sys.argv) > 2 else os.path.join(ROOT, "docs", "packages.md")
    with open(os.path.join(release, "VERSION")) as file:
        version = file.read().strip()
    with open(os.path.join(release, "SHA256SUMS")) as file:
        names = [line.split()[1] for line in file]
    with open(page, encoding="utf-8") as file:
        text = file.read()
    if text.count(START) != 1 or text.count(END) != 1:
        sys.exit(f"release/sizes.py: {page} has no table of sizes")
    before, rest = text.split(START)
    table, after = rest.split(END)
    rows = dict(re.findall(r"^\| `([^`]+)` \| ([0-9.]+) \|$", table, re.M))
    for name in names:
        rows[generic(name, version)] = "%.2f" % (os.path.getsize(os.path.join(release, name)) / 1048576)
    lines = "".join(f"| `{name}` | {size} |\n" for name, size in sorted(rows.items()))
    with open(page, "w", encoding="utf-8") as file:
        file.write(before + START + HEAD + lines + END + after)


main()
