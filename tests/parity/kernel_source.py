"""The text of a kernel in kernels/cuda with its includes expanded, each once, as `mlxcel compile` passes it to NVRTC. An include of config.cuh stays, after the
headers that it includes."""
import pathlib
import re

CUDA = pathlib.Path(__file__).resolve().parents[2] / "kernels" / "cuda"


def source(name, included=None, kernel=None):
    included, kernel = set() if included is None else included, kernel or name.split(".")[0]
    included.add(name)
    text = next(f for f in (CUDA / name, CUDA.parent / name) if f.exists()).read_text().replace("#pragma once\n", "")

    def expand(match):
        if match.group(1) in included:
            return ""
        if match.group(1) == "config.cuh":
            included.add("config.cuh")
            return source(f"{kernel}_config.cuh", included, kernel) + match.group(0)
        return source(match.group(1), included, kernel)

    return re.sub(r'^#include "([^"]+)".*\n', expand, text, flags=re.M)


def config_header(lines):
    """The text of config.cuh, as compiler/kernel_config.c writes it, without its include."""
    fields, tables = [], []
    for name, value in (line.split("=", 1) for line in lines):
        table, _, kind = name.partition(":")
        if kind:
            tables.append(f"  struct {table} {{ static __host__ __device__ constexpr Array<{kind}, {value.count(',') + 1}> values() {{ return {{{{{value}}}}}; }} }};\n")
        else:
            fields.append(f"    .{name} = {value},\n")
    return f'constexpr Config config = {{\n{"".join(fields)}}};\nstruct Tables : NoTables {{\n{"".join(tables)}}};\n'
