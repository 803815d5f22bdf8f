#!/usr/bin/env python3
"""Makes tests/goldens/packing.h: random quantized matrices of each kind and their f32 values, bit for bit.

    pip install numpy torch transformers && python3 tests/parity/packing_goldens.py

tests/models/packing_test.c has the same generator, so the file keeps only a digest and the last words of each matrix. Codes are unpacked as the
project that owns the format does: bytes (mlx), shifted words (auto-gptq), shifted words in reversed order (AutoAWQ). The arithmetic is f32 on the
stored scales; mlx.dequantize and the other two round that result to the type of the scales. transformers' convert_moe_packed_tensors dequantizes MXFP4.
"""
import importlib.metadata
import pathlib

import numpy as np

DTYPES = {"F32": np.uint32, "F16": np.uint16, "BF16": np.uint16}


class Generator:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return self.state >> 33

    def words(self, *shape):
        return np.array([self.next() << 1 & 0xFFFFFFFF ^ self.next() for _ in range(np.prod(shape))], np.uint32).reshape(shape)

    def floats(self, dtype, *shape):
        """Any sign and mantissa, ordinary exponents; those of f16 go down to its subnormals. As f32, and as stored."""
        bits = self.words(*shape)
        exponents = np.array([self.next() % 21 for _ in range(bits.size)], np.uint32).reshape(shape)
        if dtype == "F16":
            return ((bits & 0x83FF) | exponents << 10).astype(np.uint16).view(np.float16).astype(np.float32)
        wide = (bits & 0x807FFFFF) | (exponents + 110) << 23
        return (wide & 0xFFFF0000 if dtype == "BF16" else wide).astype(np.uint32).view(np.float32)


def mlx_codes(words, bits):
    data = np.ascontiguousarray(words.astype("<u4")).view(np.uint8).astype(np.uint32)
    width, codes = {3: (3, 8), 6: (3, 4)}.get(bits, (1, 8 // bits))
    packs = data.reshape(data.shape[0], -1, width)
    whole = sum(packs[:, :, i] << 8 * i for i in range(width))
    return np.stack([whole >> bits * i & (1 << bits) - 1 for i in range(codes)], axis=2).reshape(data.shape[0], -1)


def nibbles(words, axis):
    """Eight codes in place of each word, along |axis|, the lowest first."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32).reshape((8, 1) if axis == 0 else (1, 8))
    codes = np.expand_dims(words, axis + 1) >> shifts & 15
    shape = list(words.shape)
    shape[axis] *= 8
    return codes.reshape(shape).astype(np.int32)


def mlx(rng, rows, columns, bits, group, dtype):
    codes = mlx_codes(rng.words(rows, columns * bits // 32), bits).astype(np.float32)
    scales = rng.floats(dtype, rows, columns // group).repeat(group, axis=1)
    biases = rng.floats(dtype, rows, columns // group).repeat(group, axis=1)
    return scales * codes + biases


def gptq(rng, rows, columns, group, dtype, less_one, act_order):
    groups = columns // group
    codes = nibbles(rng.words(columns // 8, rows), 0)
    scales = rng.floats(dtype, groups, rows)
    zeros = nibbles(rng.words(groups, rows // 8), 1)
    if less_one:
        zeros = zeros + 1 & 15
    index = [rng.next() % groups for _ in range(columns)] if act_order else np.arange(columns) // group
    return (scales[index] * (codes - zeros[index]).astype(np.float32)).T


def awq(rng, rows, columns, group, dtype):
    groups = columns // group
    order = np.arange(rows).reshape(-1, 8)[:, [0, 4, 1, 5, 2, 6, 3, 7]].ravel()
    codes = nibbles(rng.words(columns, rows // 8), 1)[:, order]
    scales = rng.floats(dtype, groups, rows).repeat(group, axis=0)
    zeros = nibbles(rng.words(groups, rows // 8), 1)[:, order].repeat(group, axis=0)
    return (scales * (codes - zeros).astype(np.float32)).T


def mxfp4(rng, rows, columns):
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    blocks = np.array([rng.next() & 255 for _ in range(rows * columns // 2)], np.uint8).reshape(1, rows, columns // 32, 16)
    scales = np.array([rng.next() & 255 for _ in range(rows * columns // 32)], np.uint8).reshape(1, rows, columns // 32)
    wide = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales)).to(torch.float32)
    return wide[0].T.numpy()  # it gives [in, out]


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def main():
    cases = []
    for bits in (2, 3, 4, 6, 8):
        for group in (32, 64, 128):
            for dtype in DTYPES:
                cases.append(("MLX", bits, group, 5, 256, dtype, 0, 0))
    for dtype in DTYPES:
        for group in (8, 32, 128, 256):
            for less_one in (0, 1):
                cases.append(("GPTQ", 4, group, 40, 256, dtype, less_one, 0))
                cases.append(("GPTQ", 4, group, 40, 256, dtype, less_one, 1))
            cases.append(("AWQ", 4, group, 40, 256, dtype, 0, 0))
    cases += [("MXFP4", 4, 32, rows, 256, "F32", 0, 0) for rows in (1, 5, 40)]
    lines = ["// Made by tests/parity/packing_goldens.py with numpy %s, MXFP4 with transformers %s. Do not edit." % (
        np.__version__, importlib.metadata.version("transformers")),
             "static const packing_golden_t packing_goldens[] = {",
             "    // kind, bits, group, rows, columns, scales' type, zeros less one, group indices, digest, last words"]
    for seed, (kind, bits, group, rows, columns, dtype, less_one, act_order) in enumerate(cases):
        rng = Generator(seed)
        if kind == "MLX":
            out = mlx(rng, rows, columns, bits, group, dtype)
        elif kind == "GPTQ":
            out = gptq(rng, rows, columns, group, dtype, less_one, act_order)
        elif kind == "AWQ":
            out = awq(rng, rows, columns, group, dtype)
        else:
            out = mxfp4(rng, rows, columns)
        assert out.dtype == np.float32 and out.shape == (rows, columns)
        assert np.isfinite(out).all() or (kind == "MXFP4" and not np.isnan(out).any())  # random scales go up to 2^128
        words = np.ascontiguousarray(out).view(np.uint32).ravel()
        last = ", ".join("0x%08x" % word for word in words[-3:])
        lines.append("    {MLX_PACKED_%s, %d, %d, %d, %d, MLX_%s, %d, %d, UINT64_C(0x%016x), {%s}}," % (
            kind, bits, group, rows, columns, dtype, less_one, act_order, fnv1a(words.astype("<u4").tobytes()), last))
    lines.append("};")
    path = pathlib.Path(__file__).parent.parent / "goldens" / "packing.h"
    path.write_text("\n".join(lines) + "\n")
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
