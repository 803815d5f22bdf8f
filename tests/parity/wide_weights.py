"""Weights of the fixtures in tests/fixtures/wide, generated from a seed. tests/support/wide_fixtures.h has the same generator in C. Needs numpy only.

A fixture is one JSON file: the model's config, a seed and a list of tensors, each [name, dtype, shape, factor, offset]. Element i of tensor t is made
from z, output i of splitmix64 that starts at seed * 2^48 + t * 2^32:

  BF16   factor * (sum of the four 16-bit fields of z, less its mean) + offset: nearly normal. Computed in double, rounded to f32, then to bf16.
  U8     offset + (z >> 33) % factor
"""
import json
import pathlib
import struct

import numpy as np

WIDE = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "wide"
MEAN, DEVIATION = 131070, 37837.0  # of the sum of four 16-bit numbers


def splitmix64(seed, tensor, count):
    with np.errstate(over="ignore"):
        start = np.uint64((seed << 48) + (tensor << 32))
        z = start + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def to_bf16(x):
    """The bits of the nearest bf16."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def tensor_bits(seed, number, dtype, shape, factor, offset):
    z = splitmix64(seed, number, int(np.prod(shape)))
    if dtype == "U8":
        return (np.uint64(offset) + (z >> np.uint64(33)) % np.uint64(factor)).astype(np.uint8).reshape(shape)
    fields = sum((z >> np.uint64(shift) & np.uint64(0xFFFF)).astype(np.int64) for shift in (0, 16, 32, 48))
    return to_bf16((fields - MEAN).astype(np.float64) * factor + offset).reshape(shape)


def weights(fixture):
    """Name -> bits of each tensor, in the order of the file."""
    return {name: tensor_bits(fixture["seed"], number, dtype, shape, factor, offset)
            for number, (name, dtype, shape, factor, offset) in enumerate(fixture["tensors"])}


def write_safetensors(path, tensors):
    header, parts, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, bits in tensors.items():
        header[name] = {"dtype": "U8" if bits.dtype == np.uint8 else "BF16", "shape": list(bits.shape), "data_offsets": [at, at + bits.nbytes]}
        parts.append(bits.tobytes())
        at += bits.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def write_directory(fixture, folder, tensors=None):
    """Writes the fixture as a Hugging Face directory without a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fixture["config"]))
    write_safetensors(folder / "model.safetensors", weights(fixture) if tensors is None else tensors)
