#!/usr/bin/env python3
"""Parses CUDA sources as an editor does: with the commands of build/cuda/compile_commands.json, which must give no error.

  tests/kernels/cuda_editor.py COMPILE_COMMANDS CLANG [FILE...]

Exit status 77: there is no clang.
"""
import json
import pathlib
import shutil
import subprocess
import sys


def main():
    commands, clang, files = json.loads(pathlib.Path(sys.argv[1]).read_text()), sys.argv[2], sys.argv[3:]
    if not shutil.which(clang):
        sys.exit(77)
    known = {pathlib.Path(command["file"]).name: command for command in commands}
    failed = [file for file in files if subprocess.run([clang, "-w", *known[file]["arguments"][1:]], cwd=known[file]["directory"]).returncode]
    sys.exit(f"with errors: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
