"""The command mlxcel of the Python package: starts the program that the package contains.

If iree-base-compiler and nvidia-cuda-nvrtc are installed beside it (pip install mlxcel[compiler]), the program uses them to compile models.
"""
from __future__ import annotations

import os
import subprocess
import sys
from typing import NoReturn

from ._tools import SUFFIX, environment


def main() -> NoReturn:
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "mlxcel" + SUFFIX)
    arguments, variables = [program, *sys.argv[1:]], {**os.environ, **environment()}
    if os.name == "nt":  # exec would return to the shell before the program ends
        sys.exit(subprocess.call(arguments, env=variables))
    os.execve(program, arguments, variables)


if __name__ == "__main__":
    main()
