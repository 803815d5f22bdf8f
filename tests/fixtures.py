"""Checks that the files of tests/fixtures and tests/goldens are those of the committed list tests/fixtures.txt.

A test goes through the files that it finds, so a fixture that vanished together with its golden would be compared no more. The list
knows every file: one that is missing fails, and one that is not listed does too. tests/support/listed.h counts the fixtures of a
test with the same list.

Run: python3 tests/fixtures.py            checks
     python3 tests/fixtures.py --update   writes the list, after a fixture was added; review the diff
"""
import os
import sys

TESTS = os.path.dirname(os.path.abspath(__file__))
LIST = os.path.join(TESTS, "fixtures.txt")
FOLDERS = ("fixtures", "goldens")


def files_of(root):
    return sorted(os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
                  for top in FOLDERS for folder, _, names in os.walk(os.path.join(root, top)) for name in names)


def faults_of(listed, found):
    faults = ["%s is missing: restore it, or remove its line from tests/fixtures.txt" % name for name in sorted(set(listed) - set(found))]
    faults += ["%s is not in tests/fixtures.txt: run tests/fixtures.py --update" % name for name in sorted(set(found) - set(listed))]
    return faults + ["tests/fixtures.txt is not sorted, or has a line twice: run tests/fixtures.py --update"] * (listed != sorted(set(listed)))


def main():
    assert len(faults_of(["goldens/b.json", "goldens/a.json"], ["goldens/b.json", "goldens/c.json"])) == 3  # the check finds all three
    assert not faults_of(["a", "b"], ["b", "a"])
    found = files_of(TESTS)
    if sys.argv[1:] == ["--update"]:
        with open(LIST, "w", encoding="utf-8") as file:
            file.write("".join(name + "\n" for name in found))
        return 0
    with open(LIST, encoding="utf-8") as file:
        listed = file.read().split()
    faults = faults_of(listed, found)
    for fault in faults:
        print("tests/" + fault if not fault.startswith("tests/") else fault)
    print("%d files listed, %d faults" % (len(listed), len(faults)))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
