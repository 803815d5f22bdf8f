#!/usr/bin/env python3
"""Runs clang-tidy, with the checks of .clang-tidy, on C sources that changed: in the working tree, and in the last COMMITS commits or merges.

  tidy.py DEPS BUILD              check the changed files
  tidy.py DEPS BUILD --all        check every file, which takes minutes
  tidy.py DEPS BUILD FILE...      check these files

DEPS is the folder that ./build.sh fetched clang-tidy into. Without it the check is skipped (exit status 77). BUILD has compile_commands.json.
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMITS = 5
# The CPU kernel is compiled by commands of its own, once for each CPU level.
KERNEL = ["clang", "--target=x86_64-linux-gnu", "-std=c11", "-ffreestanding", "-march=x86-64-v4", "-Wall", "-Wextra"]
QUIET = ["--quiet", "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-ignored-optimization-argument"]


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")


def changed():
    commits = "".join(git("rev-list", "--first-parent", f"--max-count={COMMITS + 1}", "HEAD")).split()
    return git("diff", "--name-only", "-z", commits[-1]) + git("ls-files", "-z", "-o", "--exclude-standard")


def commands(build):
    """The compile commands of our sources, by path, without the launcher and without -Werror, which would hide the names of checks."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = pathlib.Path(entry["file"])
        if file.is_relative_to(ROOT) and not file.is_relative_to(build):
            arguments = [word for word in shlex.split(entry["command"]) if word != "-Werror"]
            first = next(at for at, word in enumerate(arguments) if word.startswith("-"))
            found[str(file.relative_to(ROOT))] = {"directory": entry["directory"], "file": str(file), "arguments": ["clang"] + arguments[first:]}
    for file in (ROOT / "kernels" / "cpu").glob("*.c"):
        found[str(file.relative_to(ROOT))] = {"directory": str(ROOT), "file": str(file), "arguments": KERNEL + ["-c", str(file)]}
    return found


def main():
    tidy = pathlib.Path(sys.argv[1]) / "clang-tidy/clang_tidy/data/bin/clang-tidy"
    build = pathlib.Path(sys.argv[2]).resolve()
    if not tidy.exists():
        print(f"skipped: there is no {tidy}; ./build.sh test fetches it")
        return 77
    known = commands(build)
    wanted = list(known) if sys.argv[3:] == ["--all"] else sys.argv[3:] or changed()
    files = sorted(set(wanted) & set(known))
    if sys.argv[3:] and not files:
        sys.exit(f"no source of this build: {' '.join(sys.argv[3:])}")
    folder = build / "tidy"
    folder.mkdir(exist_ok=True)
    (folder / "compile_commands.json").write_text(json.dumps([known[file] for file in files]))

    def check(file):
        return subprocess.run([tidy, "-p", folder, *QUIET, ROOT / file], capture_output=True, text=True)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = [run for run in pool.map(check, files) if run.returncode]
    for run in failed:
        print(run.stdout or run.stderr)
    print(f"{len(files)} files checked, {len(failed)} with faults")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
