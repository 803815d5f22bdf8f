#!/usr/bin/env python3
"""Writes the CUDA kernels to a folder as C++ that runs on a CPU with tests/kernels/packed_emulated.hpp or a file like it.

  tests/kernels/emulated_kernels.py FOLDER

Functions with inline assembly (kernels/cuda/ptx.cuh) get other bodies. One that is called and has none ends the program.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BODIES = {  # of functions with inline assembly, for a program that includes packed_emulated.hpp
    "u16 narrow(float x)": "return bf16_of(x);",  # the first ones are those of Bf16
    "u32 narrow2(float low, float high)": "return bf16_of(low) | bf16_of(high) << 16;",
    "float widen(u16 x) {\n    float y;": "return half_to_float(x);",  # those of F16
    "float2 widen2(u32 pair) {\n    float2 v;": "return make_float2(half_to_float(pair & 0xffff), half_to_float(pair >> 16));",
    "float widen_word(u32 word)": "return half_to_float(word & 0xffff);",
    "u32 shared_address(const void *p)": "return (u32)((char *)p - shared());",
    "float power2(float x)": "return exp2f(x) < 1.2e-38f ? 0 : exp2f(x);",
    "void load_once128_line(u32 (&v)[4], const void *from)": "memcpy(v, from, 16);",
    "void prefetch_l2(const void *from)": "",
    "void copy_async16(u32 to, const void *from, int count)": "memset(shared() + to, 0, 16); memcpy(shared() + to, from, count);",
    "void copy_async16_line(u32 to, const void *from,": "memset(shared() + to, 0, 16); memcpy(shared() + to, from, count);",
    "void copy_async(u32 to, const void *from, int count)": "memset(shared() + to, 0, BYTES); memcpy(shared() + to, from, count);",
    "void commit_copies()": "",
    "void wait_copies()": "",
    "void wait_all_copies()": "",
    "void fence_async_proxy()": "",
    "float read_cluster(const float *mine, u32 rank)": "return cluster_number(mine, rank);",
    "float4 read_cluster4(u32 address, u32 rank)": "return cluster_numbers(address, rank);",
    "void wait_cluster()": "sync_cluster();",
    "void launch_dependents()": "",
    "void wait_for_dependencies()": "",
    "T *forget(T *pointer)": "return pointer;",
    "void load_matrices(u32 (&v)[4], u32 from)": "read_matrices(v, from);",
    "void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)": "multiply_pairs(d, a, b0, b1);",
    "void wgmma_fence()": "",
    "void wgmma_commit()": "",
    "void wgmma_wait()": "",
}
COMPILER_FLAGS = ("-std=c++20", "-O1", "-w", "-ffp-contract=off", "-U_FORTIFY_SOURCE", f"-I{ROOT}/tests/kernels")
COMMON_HEADERS = '#include <math.h>\n#include <algorithm>\n#include <random>\n#include "fibers.hpp"\n'
MEMORY = re.compile(r"extern __shared__ __align__\(\d+\) (?:unsigned char|u8) memory\[\];")


def body_of(text, start):
    """The positions of the braces of the function that starts at |start|."""
    at = text.index("{", text.index(")", start))
    depth, end = 0, at
    while True:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
        if not depth:
            return at, end


def replace_body(text, signature, body):
    start = text.find(signature)
    if start < 0:
        sys.exit(f"emulated_kernels.py: the kernels have no '{signature}'")
    at, end = body_of(text, start)
    return text[:at] + "{" + body + "}" + text[end:]


def without_assembly(text):
    """Each asm statement becomes a trap."""
    parts, at = [], 0
    for match in re.finditer(r"\basm(?: volatile)?\(", text):
        depth, end = 1, match.end()
        while depth:
            token = re.compile(r'"(?:\\.|[^"\\])*"|[()]').search(text, end)
            depth += {"(": 1, ")": -1}.get(token[0], 0)
            end = token.end()
        parts += [text[at:match.start()], "__builtin_trap()"]
        at = end
    return "".join(parts) + text[at:]


def write_kernels(folder, bodies=BODIES):
    """Every signature of |bodies| must be in some file."""
    missing = set(bodies)
    for file in [*ROOT.glob("kernels/*.h"), *ROOT.glob("kernels/cuda/*.cu*")]:
        text = file.read_text()
        for signature, body in bodies.items():
            if signature in text:
                text = replace_body(text, signature, body)
                missing.discard(signature)
        text = MEMORY.sub("unsigned char *memory = (unsigned char *)shared();", without_assembly(text))
        text = text.replace('extern "C" __device__ int mlx_overlap = 1;', "").replace('extern "C" __global__', "static __global__")
        (folder / file.name).write_text(text)
    if missing:
        sys.exit(f"emulated_kernels.py: the kernels have no {sorted(missing)}")


def config_text(kernel, fields):
    """The configuration of an image of |kernel|, as compiler/kernel_config.c writes it."""
    return (f'#pragma once\n#include "{kernel}_config.cuh"\nconstexpr Config config = {{{", ".join(f".{name} = {value}" for name, value in fields.items())}}};\n'
            "struct Tables : NoTables {};\n")


def compile_command(compiler, folder):
    """The command that compiles C++ with the headers that all programs include already parsed, which takes two thirds of the time of a small program."""
    header, command = pathlib.Path(folder) / "common.hpp", [compiler, *COMPILER_FLAGS]
    header.write_text(COMMON_HEADERS)
    subprocess.run([*command, "-x", "c++-header", header, "-o", f"{header}.gch"], check=True)
    return [*command, "-include", header]


def write_config(folder, kernel, fields):
    (folder / "config.cuh").write_text(config_text(kernel, fields))


if __name__ == "__main__":
    write_kernels(pathlib.Path(sys.argv[1]))
