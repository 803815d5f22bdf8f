#!/usr/bin/env python3
"""Makes tests/goldens/dequant.h: random blocks of each packed type and what the gguf package widens them to, bit for bit.

    pip install gguf numpy && python3 tests/parity/dequant_goldens.py
"""
import pathlib

import gguf
import numpy as np

# Scales that go wrong first: zeros, subnormals, the largest and smallest normals, infinities, NaNs.
EDGES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFD55]
HALVES = {"Q4_0": 1, "Q4_1": 2, "Q5_0": 1, "Q5_1": 2, "Q8_0": 1}  # f16 values at the start of a block


def dequantize(data, name):
    kind = gguf.GGMLQuantizationType[name]
    if name in ("F32", "F16"):  # the package takes these as arrays of floats
        data = data.view(np.float32 if name == "F32" else np.float16)
    return gguf.quants.dequantize(data, kind).astype(np.float32).view(np.uint32).ravel()


def blocks_of(name, rng):
    elements, width = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    if elements == 1:
        return rng.integers(0, 256, (1, 16 * width), dtype=np.uint8)
    blocks = rng.integers(0, 256, (len(EDGES) + 4, width), dtype=np.uint8)
    for i, edge in enumerate(EDGES):
        blocks[i, 0:2] = edge & 255, edge >> 8
        if HALVES[name] == 2:
            other = EDGES[(i * 7 + 3) % len(EDGES)]
            blocks[i, 2:4] = other & 255, other >> 8
    for i in range(len(EDGES), len(blocks)):  # ordinary scales
        blocks[i, : 2 * HALVES[name]] = rng.normal(0, 0.05, HALVES[name]).astype(np.float16).view(np.uint8)
    return blocks.reshape(1, -1)


def fnv1a(words):
    value = 0xCBF29CE484222325
    for byte in words.astype("<u4").tobytes():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def main():
    rng = np.random.default_rng(20250101)
    lines = ["// Made by tests/parity/dequant_goldens.py with gguf and numpy %s. Do not edit." % np.__version__]
    names = ["F32", "F16", "BF16", *HALVES]
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
    every = np.arange(65536, dtype=np.uint16).view(np.uint8).reshape(1, -1)
    for name in ("F16", "BF16"):  # FNV-1a over the f32 bits of all 65536 values
        lines.append("#define EVERY_%s UINT64_C(0x%016x)" % (name, fnv1a(dequantize(every, name))))
    path = pathlib.Path(__file__).parent.parent / "goldens" / "dequant.h"
    path.write_text("\n".join(lines) + "\n")
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
