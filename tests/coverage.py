#!/usr/bin/env python3
"""Prints the line coverage of each room, and of the files that are covered least, from a build with MLXCEL_COVERAGE.

  coverage.py FOLDER [CC]     FOLDER: a build in which tests ran (./build.sh coverage); CC: its compiler (default: cc)

gcov of the compiler's own release reads the counters: `gcov` for gcc, `llvm-cov gcov` for clang. A line in a header counts as
covered if it ran in any of the files that include it. Fuzz targets do not count. Standard library only.
"""
import collections
import os
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import structure  # noqa: E402

LINE = re.compile(r"^\s*([^:]+):\s*(\d+):(.*)$")  # COUNT:NUMBER:TEXT; line 0 has the name of the source file
FEWEST = 10  # files in the second table


def reader(compiler):
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    return ["llvm-cov", "gcov"] if "clang" in version else ["gcov"]


def add_lines(text, lines):
    """Adds what gcov printed to |lines|: {file: {number of the line: True if it ran}}."""
    file = None
    for line in text.splitlines():
        found = LINE.match(line)
        if not found:
            continue
        count, number, rest = found[1], int(found[2]), found[3]
        if number == 0:
            if rest.startswith("Source:"):
                path = os.path.relpath(os.path.join(ROOT, rest[len("Source:"):]), ROOT)
                file = path if path.split("/")[0] in structure.ORDER and not path.endswith("_fuzz.c") else None
        elif file and count != "-":
            lines[file][number] = lines[file].get(number, False) or not count.startswith(("#", "="))


def read(folder, compiler):
    lines = collections.defaultdict(dict)
    command = reader(compiler)
    for counters in sorted(pathlib.Path(folder).rglob("*.gcno")):
        done = subprocess.run(command + ["-t", str(counters)], cwd=folder, capture_output=True, text=True, errors="replace")
        if done.returncode:
            sys.exit("coverage: %s %s: %s" % (" ".join(command), counters, done.stderr.strip()))
        add_lines(done.stdout, lines)
    return lines


def share(counts):
    ran, all_lines = counts
    return 100.0 * ran / all_lines if all_lines else 100.0


def totals(lines, name_of):
    counts = collections.defaultdict(lambda: [0, 0])
    for file, ran in lines.items():
        counts[name_of(file)][0] += sum(ran.values())
        counts[name_of(file)][1] += len(ran)
    return counts


def table(title, rows):
    print("| %s | lines | covered |\n| --- | --- | --- |" % title)
    for name, counts in rows:
        print("| %s | %d | %.1f%% |" % (name, counts[1], share(counts)))


def check_itself():
    lines = collections.defaultdict(dict)
    add_lines("        -:    0:Source:base/a.c\n        3:    1:x\n    #####:    2:y\n        -:    3:\n", lines)
    add_lines("        -:    0:Source:base/a.c\n        1:    2:y\n    #####:    3:z\n        -:    0:Source:tests/b.c\n        1:    1:w\n", lines)
    assert lines == {"base/a.c": {1: True, 2: True, 3: False}}
    assert totals(lines, lambda file: file.split("/")[0])["base"] == [2, 3]


def main():
    check_itself()
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    lines = read(os.path.abspath(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cc")
    if not lines:
        sys.exit("coverage: %s has no counters\nhint: run ./build.sh coverage" % sys.argv[1])
    rooms, files = totals(lines, lambda file: file.split("/")[0] + "/"), totals(lines, lambda file: file)
    least = sorted(files.items(), key=lambda item: (share(item[1]), item[0]))[:FEWEST]
    everything = [sum(column) for column in zip(*rooms.values())]
    table("room", sorted(rooms.items()) + [("all", everything)])
    print()
    table("file, least covered first", least)


if __name__ == "__main__":
    main()
