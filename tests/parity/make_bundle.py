#!/usr/bin/env python3
"""Adds random weights to a bundle that was compiled without them, so that a large model need not be carried to a GPU.

  make_bundle.py OUT.mlxb BUNDLE.mlxb SHAPE [--dtype bf16|f16|FORMATS]

BUNDLE is a folder that `mlxcel compile DIR --target cuda:sm_90 --no-weights` wrote, DIR what `make_shape.py DIR SHAPE --sparse` wrote. SHAPE and
FORMATS are those of decode_probe.py; --dtype must be what BUNDLE was compiled with. OUT is BUNDLE with a weights.irpa and a manifest that has
its size and digest. No key signed it, so run it with --allow-unsigned. bf16 and f16 need numpy; FORMATS (quantized weights) need torch and a GPU.
"""
import argparse
import hashlib
import json
import pathlib
import shutil
import struct

from weight_layout import SHAPES, Layout

NAMES = {"EMBED": "model.embed_tokens", "ATTN_NORM": "model.layers.{}.input_layernorm", "Q": "model.layers.{}.self_attn.q_proj",
         "K": "model.layers.{}.self_attn.k_proj", "V": "model.layers.{}.self_attn.v_proj", "O": "model.layers.{}.self_attn.o_proj",
         "MLP_NORM": "model.layers.{}.post_attention_layernorm", "GATE": "model.layers.{}.mlp.gate_proj", "UP": "model.layers.{}.mlp.up_proj",
         "DOWN": "model.layers.{}.mlp.down_proj", "FINAL_NORM": "model.norm", "HEAD": "lm_head"}
PAGE = 4096  # the archive's data and its end lie on multiples of this


def round_up(value, unit):
    return (value + unit - 1) // unit * unit


def stored_tensors(layout):
    """(offset, name of the layout, layer) of each tensor in the archive, by offset; a tied head is the embedding."""
    tied = layout.at["HEAD", 0] == layout.at["EMBED", 0]
    return sorted((at, name, layer) for (name, layer), at in layout.at.items() if not (tied and name == "HEAD"))


def archive_header(layout):
    """The header of an IRPA file whose data has this layout."""
    tensors = stored_tensors(layout)
    names = [(NAMES[name].format(layer) + ".weight").encode() for _, name, layer in tensors]
    entries, names_at, name_at = b"", 96 + 80 * len(tensors), 0
    for (at, _, _), name, end in zip(tensors, names, [at for at, _, _ in tensors[1:]] + [layout.bytes]):
        length = (end - at) // 64 * 64 if end != layout.bytes else end - at
        entries += struct.pack("<QIQQQQQQQQ", 76, 2, 0, name_at, len(name), 0, 0, 64, at, length) + bytes(4)
        name_at += len(name)
    data = round_up(names_at + name_at, PAGE)
    head = struct.pack("<IHHQQQQQQQQQQ", 0x41505249, 0, 0, 88, 0, 0, len(tensors), 96, 80 * len(tensors), names_at, name_at, data,
                       round_up(layout.bytes, PAGE))
    return (head + bytes(8) + entries + b"".join(names)).ljust(data, b"\0")


def plain_weights(layout, dtype):
    """Pieces of the archive's data: f32 norms near 1, matrices in |dtype| whose products keep the size of activations."""
    import numpy as np
    rng, written = np.random.default_rng(1), 0
    for at, name, _ in stored_tensors(layout):
        dims = layout.dims[name]
        yield bytes(at - written)
        if len(dims) == 1:
            piece = (1 + 0.05 * rng.standard_normal(dims, np.float32)).astype("<f4")
        else:
            values = rng.standard_normal(dims, np.float32) / np.float32(dims[1] ** 0.5)
            piece = values.astype("<f2") if dtype == "f16" else (values.view(np.uint32) >> 16).astype("<u2")
        yield piece.tobytes()
        written = at + piece.nbytes


def write_archive(path, layout, pieces):
    digest, length = hashlib.sha256(), 0
    with open(path, "wb") as file:
        def write(piece):
            file.write(piece)
            digest.update(piece)
        write(archive_header(layout))
        for piece in pieces:
            write(piece)
            length += len(piece)
        assert length == layout.bytes, f"{length} bytes of weights, the layout has {layout.bytes}"
        write(bytes(round_up(layout.bytes, PAGE) - layout.bytes))
        return {"name": path.name, "size": file.tell(), "sha256": digest.hexdigest()}


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("bundle", type=pathlib.Path)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--dtype", default="bf16")
    options = parser.parse_args()
    shape, plain = SHAPES[options.shape], options.dtype in ("bf16", "f16")
    layout = Layout(shape, () if plain else options.dtype.split(","))
    if plain:
        pieces = plain_weights(layout, options.dtype)
    else:
        import decode_probe
        pieces = [decode_probe.Model(shape, layout, options.dtype).weights.cpu().numpy().data]
    shutil.copytree(options.bundle, options.out, ignore=shutil.ignore_patterns("*.minisig"))
    manifest = json.loads((options.bundle / "manifest.json").read_text())
    name, = {target["weights"] for target in manifest["targets"]}
    weights = write_archive(options.out / name, layout, pieces)
    expected, = (file["size"] for file in manifest["files"] if file["name"] == name)
    if weights["size"] != expected:
        raise SystemExit(f"{options.bundle}: {name} has {expected} bytes, {options.shape} in {options.dtype} has {weights['size']}")
    manifest["files"] = [weights if file["name"] == name else file for file in manifest["files"]]
    (options.out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    main()
