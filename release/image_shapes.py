#!/usr/bin/env python3
"""Writes models without data, from whose requests release/make_images.c takes the common kernel images.

  image_shapes.py FOLDER [FORMAT...]

An image that a package ships names no size of a model, but its tile depends on sizes. So the shapes are a grid of hidden sizes, with narrow and wide
MLPs and attention, few and many KV heads, and small and large vocabularies, for each format of the weights. A file has one layer and is sparse: a few KB on the disk.
Prints the paths.
"""
import pathlib
import struct
import sys

# GGUF type, weights and bytes of a block.
FORMATS = {"f16": (1, 1, 2), "bf16": (30, 1, 2), "q4_0": (2, 32, 18), "q8_0": (8, 32, 34), "q4_k": (12, 256, 144), "q5_k": (13, 256, 176), "q6_k": (14, 256, 210)}
# Hidden size, and query heads of a KV head.
SIZES = ((512, 8), (576, 3), (768, 3), (960, 5), (1024, 2), (1536, 6), (2048, 4), (2560, 4), (3072, 3), (4096, 4), (5120, 8), (6144, 8), (8192, 8))
F32 = (0, 1, 4)


def tensors_of(kind, hidden, ffn, width, kv, vocab):
    """Name, format and dimensions, rows first."""
    yield "token_embd.weight", kind, (vocab, hidden)
    for name, form, dims in (("attn_norm", F32, (hidden,)), ("attn_q", kind, (width, hidden)), ("attn_k", kind, (kv, hidden)), ("attn_v", kind, (kv, hidden)),
                             ("attn_output", kind, (hidden, width)), ("ffn_norm", F32, (hidden,)), ("ffn_gate", kind, (ffn, hidden)), ("ffn_up", kind, (ffn, hidden)),
                             ("ffn_down", kind, (hidden, ffn))):
        yield f"blk.0.{name}.weight", form, dims
    yield "output_norm.weight", F32, (hidden,)
    yield "output.weight", kind, (vocab, hidden)


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def field(name, value):
    if isinstance(value, str):
        return text(name) + struct.pack("<I", 8) + text(value)
    return text(name) + (struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value))


def write(path, kind, hidden, ffn, heads, kv_heads, head, vocab, eps):
    infos, at = b"", 0
    tensors = list(tensors_of(kind, hidden, ffn, heads * head, kv_heads * head, vocab))
    for name, (number, weights, size), dims in tensors:
        count = dims[0] * (dims[1] if len(dims) > 1 else 1)
        infos += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims[::-1], number, at)
        at += -(-count // weights * size // 32) * 32
    fields = (("general.architecture", "llama"), ("llama.block_count", 1), ("llama.context_length", 4096), ("llama.embedding_length", hidden), ("llama.feed_forward_length", ffn),
              ("llama.attention.head_count", heads), ("llama.attention.head_count_kv", kv_heads), ("llama.attention.layer_norm_rms_epsilon", eps),
              ("llama.attention.key_length", head), ("llama.attention.value_length", head), ("llama.rope.dimension_count", head), ("llama.vocab_size", vocab))
    start = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields)) + b"".join(field(*f) for f in fields) + infos
    start += b"\0" * (-len(start) % 32)
    with open(path, "wb") as file:
        file.write(start)
        file.truncate(len(start) + at)


def main():
    folder, formats = pathlib.Path(sys.argv[1]), sys.argv[2:] or list(FORMATS)
    folder.mkdir(parents=True, exist_ok=True)
    for name in formats:
        kind = FORMATS[name]
        for hidden, share in SIZES:
            if hidden % kind[1]:
                continue
            for wide in (False, True):
                path, heads = folder / f"{name}-{hidden}-{'wide' if wide else 'narrow'}.gguf", hidden // 64
                if wide:
                    write(path, kind, hidden, 4 * hidden, heads, heads, 128, 131072, 1e-6)
                else:
                    write(path, kind, hidden, 3 * hidden, heads, heads // share, 64, 32000, 1e-5)
                print(path)


if __name__ == "__main__":
    main()
