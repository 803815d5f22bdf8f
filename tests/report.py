#!/usr/bin/env python3
"""Prints a report of a ctest run: skipped cases, slowest programs, skipped programs with their reasons, and the counts.

  report.py FOLDER [--strict] [--again XML]
  report.py FOLDER --count-failed

FOLDER is a build folder after `ctest --output-junit FOLDER/tests.xml`. With --strict, exit status 1 if a program was skipped for a reason that is not in
ALLOWED: a skipped test is a missing test. XML is the result of `ctest --rerun-failed`: the report names the programs that failed first and passed then.
--count-failed prints the number of failed programs only.
"""
import argparse
import pathlib
import re
import sys
import xml.etree.ElementTree

ALLOWED = ("no usable NVIDIA GPU", "wine is not installed")
SLOWEST = 10


def reason(case):
    """The line that a skipped program printed, without "skipped: "."""
    found = re.findall(r"^ *skipped: (.*)$", case.findtext("system-out") or "", re.M)
    return found[0] if found else "no reason was printed"


def count_cases(programs):
    """The programs print the names of their cases, "  skipped: REASON" under a skipped one, and how many passed, failed and were skipped."""
    counts = [0, 0, 0]
    for program in programs:
        before = ""
        for line in (program.findtext("system-out") or "").splitlines():
            if re.match(r" +skipped: ", line):
                print(f"{program.get('name')}: {before}: {line.strip()}")
            numbers = re.fullmatch(r"(\d+) passed, (\d+) failed, (\d+) skipped", line)
            if numbers:
                counts = [count + int(more) for count, more in zip(counts, numbers.groups())]
            before = line
    print("cases: {} passed, {} failed, {} skipped".format(*counts))


def read(path):
    return list(xml.etree.ElementTree.parse(path).getroot().iter("testcase"))


def failures(programs):
    return [program.get("name") for program in programs if program.find("failure") is not None]


def main():
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=pathlib.Path)
    options.add_argument("--strict", action="store_true")
    options.add_argument("--again", type=pathlib.Path)
    options.add_argument("--count-failed", action="store_true")
    options = options.parse_args()
    programs = read(options.folder / "tests.xml")
    skipped = [(program.get("name"), reason(program)) for program in programs if program.find("skipped") is not None]
    failed = failures(programs)
    if options.count_failed:
        print(len(failed))
        return 0
    count_cases(programs)
    if options.again:
        first, failed = failed, failures(read(options.again))
        for name in first:
            print(f"{name}: failed, and {'failed again' if name in failed else 'passed when it ran alone: find out why'}")
    slowest = sorted(programs, key=lambda program: -float(program.get("time", 0)))[:SLOWEST]
    print("slowest: " + ", ".join(f"{program.get('name')} {float(program.get('time', 0)):.0f} s" for program in slowest))
    for name, why in skipped:
        print(f"skipped: {name}: {why}")
    print(f"programs: {len(programs) - len(skipped) - len(failed)} passed, {len(failed)} failed, {len(skipped)} skipped", flush=True)
    wrong = [name for name, why in skipped if not why.startswith(ALLOWED)] if options.strict else []
    if wrong:
        print(f"these programs must not be skipped: {', '.join(wrong)} (allowed reasons: {', '.join(ALLOWED)})", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
