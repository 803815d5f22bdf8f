#!/usr/bin/env python3
"""Writes models without data, from whose requests release/make_images.c takes the common kernel images.

  image_shapes.py FOLDER [FORMAT...]

An image that a package ships names one size of a model: that of a head. But its tile depends on other sizes. So the shapes are a grid of hidden sizes, with narrow and wide
MLPs and attention, few and many KV heads, and small and large vocabularies, for each format of the weights. Other architectures add what Llama's form does not have: norms of heads, heads of 256,
GELU, experts, sinks, biases of q, k and v, LayerNorm, RoPE of adjacent numbers. A file has one layer and is sparse: a few KB on the disk. Prints the paths.
"""
import math
import pathlib
import struct
import sys

# GGUF type, weights and bytes of a block.
FORMATS = {"f16": (1, 1, 2), "bf16": (30, 1, 2), "q4_0": (2, 32, 18), "q8_0": (8, 32, 34), "q4_k": (12, 256, 144), "q5_k": (13, 256, 176), "q6_k": (14, 256, 210)}
COHERE = ("command-r", "cohere2")
LAYERNORM = ("starcoder2", *COHERE)
F32, MXFP4 = (0, 1, 4), (39, 32, 17)
# Hidden size, and query heads of a KV head.
SIZES = ((512, 8), (576, 3), (768, 3), (960, 5), (1024, 2), (1536, 6), (2048, 4), (2560, 4), (3072, 3), (4096, 4), (5120, 8), (6144, 8), (8192, 8))
# Architecture, hidden size, MLP, heads, KV heads, size of a head, experts, experts of a token.
OTHERS = (("qwen3", 1024, 3072, 16, 8, 128, 0, 0), ("qwen3", 4096, 12288, 32, 8, 128, 0, 0), ("gemma3", 1152, 6912, 4, 1, 256, 0, 0), ("gemma3", 2560, 10240, 8, 4, 256, 0, 0),
          ("gemma3", 3840, 15360, 16, 8, 256, 0, 0), ("qwen3moe", 2048, 768, 32, 4, 128, 128, 8), ("gpt-oss", 2880, 2880, 64, 8, 64, 32, 4),
          ("qwen2", 896, 4864, 14, 2, 64, 0, 0), ("qwen2", 3584, 18944, 28, 4, 128, 0, 0), ("command-r", 8192, 22528, 64, 8, 128, 0, 0), ("cohere2", 4096, 14336, 32, 8, 128, 0, 0),
          ("starcoder2", 3072, 12288, 24, 2, 128, 0, 0))


def tensors_of(arch, kind, hidden, ffn, heads, kv_heads, head, vocab, experts):
    """Name, format and dimensions, rows first."""
    width, kv, group, expert = heads * head, kv_heads * head, (experts,) if experts else (), MXFP4 if arch == "gpt-oss" else kind
    suffix = "_exps" if experts else ""
    layer = [("attn_norm", F32, (hidden,)), ("attn_q", kind, (width, hidden)), ("attn_k", kind, (kv, hidden)), ("attn_v", kind, (kv, hidden)), ("attn_output", kind, (hidden, width)),
             ("ffn_gate" + suffix, expert, (*group, ffn, hidden)), ("ffn_up" + suffix, expert, (*group, ffn, hidden)), ("ffn_down" + suffix, expert, (*group, hidden, ffn))]
    if arch not in COHERE:
        layer += [("post_attention_norm" if arch == "gpt-oss" else "ffn_norm", F32, (hidden,))]
    if arch in ("qwen3", "gemma3", "qwen3moe"):
        layer += [("attn_q_norm", F32, (head,)), ("attn_k_norm", F32, (head,))]
    if arch == "gemma3":
        layer += [("post_attention_norm", F32, (hidden,)), ("post_ffw_norm", F32, (hidden,))]
    if experts:
        layer += [("ffn_gate_inp", F32, (experts, hidden))]
    if arch == "starcoder2":
        layer = [tensor for tensor in layer if tensor[0] != "ffn_gate"]
    biased = {"gpt-oss": [name for name, _, dims in layer if len(dims) > 1], "qwen2": ["attn_q", "attn_k", "attn_v"], "starcoder2": [name for name, _, _ in layer]}.get(arch, [])
    biases = [(name, F32, dims[:-1] or dims) for name, _, dims in layer if name in biased]
    if arch == "gpt-oss":
        layer += [("attn_sinks", F32, (heads,))]
    yield "token_embd.weight", kind, (vocab, hidden)
    yield from ((f"blk.0.{name}.weight", form, dims) for name, form, dims in layer)
    yield from ((f"blk.0.{name}.bias", form, dims) for name, form, dims in biases)
    yield "output_norm.weight", F32, (hidden,)
    if arch == "starcoder2":
        yield "output_norm.bias", F32, (hidden,)
    if arch not in ("gemma3", *COHERE):
        yield "output.weight", kind, (vocab, hidden)


def fields_of(arch, hidden, ffn, heads, kv_heads, head, vocab, experts, used, eps):
    yield "general.architecture", arch
    values = {"block_count": 1, "context_length": 4096, "embedding_length": hidden, "feed_forward_length": ffn, "attention.head_count": heads, "attention.head_count_kv": kv_heads,
              "attention.layer_norm_epsilon" if arch in LAYERNORM else "attention.layer_norm_rms_epsilon": eps, "attention.key_length": head, "attention.value_length": head, "vocab_size": vocab}
    if arch == "llama":
        values["rope.dimension_count"] = head
    if arch in COHERE:
        values |= {"logit_scale": 0.25, "rope.dimension_count": head}
    if arch in ("gemma3", "gpt-oss", "cohere2"):
        values["attention.sliding_window"] = 512
    if arch == "gpt-oss":
        values |= {"rope.scaling.type": "yarn", "rope.scaling.factor": 32.0, "rope.scaling.original_context_length": 4096}
    if experts:
        values |= {"expert_count": experts, "expert_used_count": used, "expert_feed_forward_length": ffn}
    yield from ((f"{arch}.{name}", value) for name, value in values.items())


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def field(name, value):
    if isinstance(value, str):
        return text(name) + struct.pack("<I", 8) + text(value)
    return text(name) + (struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value))


def write(path, arch, kind, hidden, ffn, heads, kv_heads, head, vocab, eps, experts=0, used=0):
    infos, at = b"", 0
    tensors = list(tensors_of(arch, kind, hidden, ffn, heads, kv_heads, head, vocab, experts))
    for name, (number, weights, size), dims in tensors:
        infos += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims[::-1], number, at)
        at += -(-math.prod(dims) // weights * size // 32) * 32
    fields = list(fields_of(arch, hidden, ffn, heads, kv_heads, head, vocab, experts, used, eps))
    start = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields)) + b"".join(field(*f) for f in fields) + infos
    start += b"\0" * (-len(start) % 32)
    with open(path, "wb") as file:
        file.write(start)
        file.truncate(len(start) + at)
    print(path)


def main():
    folder, formats = pathlib.Path(sys.argv[1]), sys.argv[2:] or list(FORMATS)
    folder.mkdir(parents=True, exist_ok=True)
    for name in formats:
        kind = FORMATS[name]
        for hidden, share in SIZES:
            if hidden % kind[1] == 0:
                heads = hidden // 64
                write(folder / f"{name}-{hidden}-wide.gguf", "llama", kind, hidden, 4 * hidden, heads, heads, 128, 131072, 1e-6)
                write(folder / f"{name}-{hidden}-narrow.gguf", "llama", kind, hidden, 3 * hidden, heads, heads // share, 64, 32000, 1e-5)
        for arch, hidden, ffn, heads, kv_heads, head, experts, used in OTHERS:
            if hidden % kind[1] == 0 and ffn % kind[1] == 0:
                write(folder / f"{name}-{hidden}-{arch}.gguf", arch, kind, hidden, ffn, heads, kv_heads, head, 151936, 1e-5 if arch in ("gpt-oss", *LAYERNORM) else 1e-6, experts, used)


if __name__ == "__main__":
    main()
