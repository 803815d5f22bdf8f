"""Finds the tools that compile models in other Python packages: pip install mlxcel[compiler] installs them."""
from __future__ import annotations

import importlib.util
import os
from typing import Dict, Optional

SUFFIX = ".exe" if os.name == "nt" else ""


def _package_folder(name: str) -> Optional[str]:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return next(iter(spec.submodule_search_locations), None) if spec and spec.submodule_search_locations else None


def environment() -> Dict[str, str]:
    """The variables that name the tools which are installed and which the user has not set."""
    compiler, nvidia = _package_folder("iree.compiler"), _package_folder("nvidia")
    found = {"MLXCEL_IREE_COMPILE": os.path.join(compiler or "", "_mlir_libs", "iree-compile" + SUFFIX),
             "MLXCEL_NVRTC": os.path.join(nvidia or "", "cu13", *(["bin", "x86_64"] if SUFFIX else ["lib"]))}
    return {name: path for name, path in found.items() if not os.environ.get(name) and os.path.isabs(path) and os.path.exists(path)}
