#!/usr/bin/env python3
"""Parses every file of kernels/cuda/ alone, as an editor does: with the commands of build/cuda/compile_commands.json, which must give
no error.

  tests/kernels/cuda_editor.py COMPILE_COMMANDS CLANG [FILE...]

With names of FILEs only those. Exit status 77: there is no clang.
"""
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys

CUDA = pathlib.Path(__file__).resolve().parents[2] / "kernels" / "cuda"


def main():
    commands, clang = json.loads(pathlib.Path(sys.argv[1]).read_text()), sys.argv[2]
    known = {pathlib.Path(command["file"]).name: command for command in commands}
    files = sys.argv[3:] or sorted(file.name for file in CUDA.iterdir() if file.suffix in (".cu", ".cuh"))
    without = [file for file in files if file not in known]
    if without:
        sys.exit(f"compile_commands.json does not have: {', '.join(without)}")
    if not shutil.which(clang):
        sys.exit(77)

    def fails(file):
        return subprocess.run([clang, "-w", *known[file]["arguments"][1:]], cwd=known[file]["directory"]).returncode != 0

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = [file for file, has_errors in zip(files, pool.map(fails, files)) if has_errors]
    print(f"{len(files)} files, {len(failed)} with errors")
    sys.exit(f"with errors: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
