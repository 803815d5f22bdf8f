"""The command mlxcel of the Python package: starts the program that the package contains.

If iree-base-compiler and nvidia-cuda-nvrtc are installed beside it (pip install mlxcel[compiler]), the program uses them to compile models.
"""
from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Dict, NoReturn, Optional

SUFFIX = ".exe" if os.name == "nt" else ""


def _package_folder(name: str) -> Optional[str]:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return next(iter(spec.submodule_search_locations), None) if spec and spec.submodule_search_locations else None


def _environment() -> Dict[str, str]:
    """The environment, with the tools of other Python packages that the user has not set."""
    environment = dict(os.environ)
    compiler, nvidia = _package_folder("iree.compiler"), _package_folder("nvidia")
    found = {"MLXCEL_IREE_COMPILE": os.path.join(compiler or "", "_mlir_libs", "iree-compile" + SUFFIX),
             "MLXCEL_NVRTC": os.path.join(nvidia or "", "cu13", *(["bin", "x86_64"] if SUFFIX else ["lib"]))}
    for name, path in found.items():
        if os.path.isabs(path) and os.path.exists(path):
            environment.setdefault(name, path)
    return environment


def main() -> NoReturn:
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "mlxcel" + SUFFIX)
    arguments = [program, *sys.argv[1:]]
    if os.name == "nt":  # exec would return to the shell before the program ends
        sys.exit(subprocess.call(arguments, env=_environment()))
    os.execve(program, arguments, _environment())


if __name__ == "__main__":
    main()
