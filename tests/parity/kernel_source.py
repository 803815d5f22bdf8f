"""The text of a kernel in kernels/cuda with its includes expanded, as `mlxcel compile` passes it to NVRTC."""
import pathlib
import re

CUDA = pathlib.Path(__file__).resolve().parents[2] / "kernels" / "cuda"


def source(name):
    return re.sub(r'^#include "([^"]+)".*\n', lambda m: source(m.group(1)), next(f for f in (CUDA / name, CUDA.parent / name) if f.exists()).read_text(), flags=re.M)
