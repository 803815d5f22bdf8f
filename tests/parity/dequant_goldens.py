#!/usr/bin/env python3
"""Makes tests/goldens/dequant.h: random blocks of each type and their values as the gguf package dequantizes them, bit for bit.
A few blocks are stored in full. RANDOM_BLOCKS more, which tests/graph/dtype_test.c generates again, are stored as a hash.

    pip install gguf numpy && python3 tests/parity/dequant_goldens.py
"""
import pathlib

import gguf
import numpy as np

# Edge cases of scales: zeros, subnormals, the largest and smallest normals, infinities, NaNs.
EDGES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFD55]
# Byte offsets of the f16 values in a block.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
          "MXFP4": []}
RANDOM_BLOCKS = 512
MASK = 0xFFFFFFFFFFFFFFFF


def dequantize(data, name):
    kind = gguf.GGMLQuantizationType[name]
    if name in ("F32", "F16"):  # the package takes these as arrays of floats
        data = data.view(np.float32 if name == "F32" else np.float16)
    return gguf.quants.dequantize(data, kind).astype(np.float32).view(np.uint32).ravel()


def blocks_of(name, rng):
    elements, width = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    if elements == 1:
        return rng.integers(0, 256, (1, 16 * width), dtype=np.uint8)
    edges = EDGES if elements == 32 else EDGES[3:4]  # blocks of 256 are large: the hash covers the other edges
    blocks = rng.integers(0, 256, (len(edges) + (4 if elements == 32 else 1), width), dtype=np.uint8)
    for i in range(len(blocks)):
        for j, at in enumerate(SCALES[name]):
            if i < len(edges):
                put_half(blocks[i], at, EDGES[(i * 7 + 3) % len(EDGES)] if j else edges[i])
            else:  # an ordinary scale
                blocks[i, at : at + 2] = rng.normal(0, 0.05, 1).astype(np.float16).view(np.uint8)
    return blocks.reshape(1, -1)


def put_half(block, at, bits):
    block[at : at + 2] = bits & 255, bits >> 8


def splitmix64(state):
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        yield z ^ (z >> 31)


def random_hash(name):
    """Blocks of random bytes, the first of them with every edge, or every pair of edges, as their scales; or, where the scale is one
    byte, with every one."""
    kind = gguf.GGMLQuantizationType[name]
    width = gguf.GGML_QUANT_SIZES[kind][1]
    numbers = splitmix64(int(kind))
    data = np.array([next(numbers) & 255 for _ in range(RANDOM_BLOCKS * width)], dtype=np.uint8).reshape(RANDOM_BLOCKS, width)
    if not SCALES[name]:
        data[:256, 0] = np.arange(256)
    for i in range(len(EDGES) ** len(SCALES[name])):
        for j, at in enumerate(SCALES[name]):
            put_half(data[i], at, EDGES[i // len(EDGES) ** j % len(EDGES)])
    with np.errstate(all="ignore"):
        out = dequantize(data.reshape(1, -1), name)
    out[(out & 0x7FFFFFFF) > 0x7F800000] = 0x7FC00000  # the NaN an operation produces depends on the machine
    return fnv1a(out)


def fnv1a(words):
    value = 0xCBF29CE484222325
    for byte in words.astype("<u4").tobytes():
        value = (value ^ byte) * 0x100000001B3 & MASK
    return value


def main():
    rng = np.random.default_rng(20250101)
    lines = ["// Made by tests/parity/dequant_goldens.py with gguf and numpy %s. Do not edit." % np.__version__]
    names = ["F32", "F16", "BF16", *SCALES]
    for name in names:
        data = blocks_of(name, rng)
        with np.errstate(all="ignore"):
            out = dequantize(data, name)
        for suffix, values, ctype, form in (("in", data.ravel(), "uint8_t", "0x%02x"), ("out", out, "uint32_t", "0x%08x")):
            lines.append("static const %s %s_%s[] = {" % (ctype, name.lower(), suffix))
            per_line = 20 if suffix == "in" else 10
            for i in range(0, len(values), per_line):
                lines.append("    " + " ".join(form % v + "," for v in values[i : i + per_line]))
            lines.append("};")
    lines.append("static const dequant_golden_t dequant_goldens[] = {")
    for name in names:
        low = name.lower()
        lines.append("    {MLX_%s, %s_in, sizeof %s_in, %s_out, sizeof %s_out / 4}," % (name, low, low, low, low))
    lines.append("};")
    lines.append("static const uint16_t edge_scales[] = {%s};" % ", ".join("0x%04x" % edge for edge in EDGES))
    lines.append("#define RANDOM_BLOCKS %d" % RANDOM_BLOCKS)
    lines.append("static const random_golden_t random_goldens[] = {")
    for name, scales in SCALES.items():
        places = ", ".join(map(str, scales + [-1] * (2 - len(scales))))
        lines.append("    {MLX_%s, {%s}, UINT64_C(0x%016x)}," % (name, places, random_hash(name)))
    lines.append("};")
    every = np.arange(65536, dtype=np.uint16).view(np.uint8).reshape(1, -1)
    for name in ("F16", "BF16"):  # FNV-1a over the f32 bits of all 65536 values
        lines.append("#define EVERY_%s UINT64_C(0x%016x)" % (name, fnv1a(dequantize(every, name))))
    path = pathlib.Path(__file__).parent.parent / "goldens" / "dequant.h"
    path.write_text("\n".join(lines) + "\n")
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
