#!/usr/bin/env python3
"""Writes a bundle with random weights for a module that was compiled elsewhere, so that large models need not be carried to a GPU.

  make_bundle.py OUT.mlxb SHAPE MODULE.vmfb TOKENIZER.json [--dtype bf16|FORMATS] [--context 8192]

SHAPE and FORMATS are those of decode_probe.py. The module is one that `mlxcel compile --emit vmfb --target cuda:sm_90 -c CONTEXT` made of
`make_shape.py DIR SHAPE --sparse`, with --dtype bf16 or --quantize; its kernels must be linked (--kernels=required).
Nobody compiled the bundle as a whole, so whoever runs it says --allow-unsigned.
Needs torch and a GPU.
"""
import argparse
import json
import pathlib
import shutil
import struct

import torch

import decode_probe

NAMES = {"EMBED": "model.embed_tokens", "ATTN_NORM": "model.layers.{}.input_layernorm", "Q": "model.layers.{}.self_attn.q_proj",
         "K": "model.layers.{}.self_attn.k_proj", "V": "model.layers.{}.self_attn.v_proj", "O": "model.layers.{}.self_attn.o_proj",
         "MLP_NORM": "model.layers.{}.post_attention_layernorm", "GATE": "model.layers.{}.mlp.gate_proj", "UP": "model.layers.{}.mlp.up_proj",
         "DOWN": "model.layers.{}.mlp.down_proj", "FINAL_NORM": "model.norm", "HEAD": "lm_head"}


def up(value, unit):
    return (value + unit - 1) // unit * unit


def archive_front(layout):
    """The header of an IRPA file whose data has this layout."""
    places = sorted((at, key) for key, at in layout.at.items() if not (key[0] == "HEAD" and at == layout.at["EMBED", 0]))
    names = [(NAMES[name].format(layer) + ".weight").encode() for _, (name, layer) in places]
    entries, names_at, name_at = b"", 96 + 80 * len(places), 0
    for (at, _), name, end in zip(places, names, [at for at, _ in places[1:]] + [layout.bytes]):
        entries += struct.pack("<QIQQQQQQQQ", 76, 2, 0, name_at, len(name), 0, 0, 64, at, (end - at) // 64 * 64 if end != layout.bytes else end - at) + bytes(4)
        name_at += len(name)
    data = up(names_at + name_at, 4096)
    front = struct.pack("<IHHQQQQQQQQQQ", 0x41505249, 0, 0, 88, 0, 0, len(places), 96, 80 * len(places), names_at, name_at, data, up(layout.bytes, 4096))
    return (front + bytes(8) + entries + b"".join(names)).ljust(data, b"\0")


def manifest(shape, layout, context, dtype):
    _, _, _, kv_heads, head_dim, layers, vocab, _, _ = shape
    kv = layers * 2 * kv_heads * head_dim * (4 if layout.tiles else 2)
    pages = context // 16
    return {"format": "mlxcel-bundle", "contract": 1, "architecture": "llama", "source": "random", "dtype": "packed" if layout.tiles else dtype,
            "target": "cuda:sm_90", "cpu": "", "compiler": "elsewhere", "compiler_digest": "0" * 64, "vocab": vocab, "context": context, "rows": 1,
            "page_size": 16, "row_pages": pages, "pool_pages": pages + 1, "prefill": [16, 128, 512], "decode": [1, 8, 32, 128],
            "kernels": ["decode", "packed", "attention_f32"] if layout.tiles else ["decode", "linear", "attention"], "driver": 13000,
            "state_bytes": kv * (pages + 1) * 16 + (1 << 22), "kv_bytes": kv, "eos": [2]}


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("shape", choices=decode_probe.SHAPES)
    parser.add_argument("module")
    parser.add_argument("tokenizer")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--context", type=int, default=8192)
    o = parser.parse_args()
    shape = decode_probe.SHAPES[o.shape]
    layout = decode_probe.Layout(shape, () if o.dtype == "bf16" else o.dtype.split(","))
    weights = decode_probe.Model(shape, layout, o.dtype).weights.cpu().numpy()
    o.out.mkdir(parents=True, exist_ok=True)
    shutil.copy(o.module, o.out / "model.vmfb")
    shutil.copy(o.tokenizer, o.out / "tokenizer.json")
    (o.out / "manifest.json").write_text(json.dumps(manifest(shape, layout, o.context, o.dtype)))
    with open(o.out / "weights.irpa", "wb") as file:
        file.write(archive_front(layout))
        file.write(weights.data)
        file.write(bytes(up(layout.bytes, 4096) - layout.bytes))


if __name__ == "__main__":
    main()
