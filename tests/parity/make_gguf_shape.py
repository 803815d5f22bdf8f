#!/usr/bin/env python3
"""Makes a GGUF file with random weights in the shape of a real model, for measurements without the real weights.

  make_gguf_shape.py OUT.gguf SHAPE q4_0|q4_0_f16|q4_k_m|mxfp4|q8_0|f16|bf16 [--layers N] [--sparse]

SHAPE: smollm2, llama-1b, qwen2.5-7b, qwen3-0.6b, qwen3-8b, gemma3-4b, gemma4-e4b, starcoder2-7b, command-r7b, qwen3-30b-a3b, gpt-oss-20b, qwen3.5-0.8b, qwen3.5-9b,
qwen3.6-35b-a3b, lfm2-350m or lfm2-1.2b.
q4_0: embedding and head in Q8_0; q4_0_f16: in F16. q4_k_m: as llama.cpp mixes it, Q6_K for the embedding or head and for v and down of half of the layers, Q5_K for fused q, k and v,
Q4_K for the rest.
mxfp4: as in the published files of gpt-oss, experts in MXFP4 and other matrices in Q8_0. Norms, biases and routers are f32. Every token has text and there is a chat
template, so that a server can be measured. --layers: fewer layers than the real model has, so that the difference of two runs gives the time of a layer.
--sparse writes no data: enough to compile a module. Needs numpy only.
"""
import argparse
import itertools
import math
import struct

import numpy as np

F32, F16, Q4_0, Q8_0, Q4_K, Q5_K, Q6_K, BF16, MXFP4 = 0, 1, 2, 8, 12, 13, 14, 30, 39
BLOCKS = {F32: (1, 4), F16: (1, 2), BF16: (1, 2), Q4_0: (32, 18), Q8_0: (32, 34), Q4_K: (256, 144), Q5_K: (256, 176), Q6_K: (256, 210), MXFP4: (32, 17)}  # weights, bytes
# architecture, layers, hidden, ffn, heads, kv heads, head width, vocabulary, experts, experts per token, tied
SHAPES = {
    "smollm2": ("llama", 30, 576, 1536, 9, 3, 64, 49152, 0, 0, True),
    "llama-1b": ("llama", 16, 2048, 8192, 32, 8, 64, 128256, 0, 0, True),
    "llama-3b": ("llama", 28, 3072, 8192, 24, 8, 128, 128256, 0, 0, True),
    "llama-8b": ("llama", 32, 4096, 14336, 32, 8, 128, 128256, 0, 0, False),
    "qwen3-4b": ("qwen3", 36, 2560, 9728, 32, 8, 128, 151936, 0, 0, True),
    "qwen2.5-7b": ("qwen2", 28, 3584, 18944, 28, 4, 128, 152064, 0, 0, False),
    "qwen3-0.6b": ("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 0, 0, True),
    "qwen3-8b": ("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 0, 0, False),
    "qwen3-14b": ("qwen3", 40, 5120, 17408, 40, 8, 128, 151936, 0, 0, False),
    "gemma3-4b": ("gemma3", 34, 2560, 10240, 8, 4, 256, 262208, 0, 0, True),
    "gemma3-12b": ("gemma3", 48, 3840, 15360, 16, 8, 256, 262208, 0, 0, True),
    "gemma4-e4b": ("gemma4", 42, 2560, 10240, 8, 2, 256, 262144, 0, 0, True),
    "starcoder2-7b": ("starcoder2", 32, 4608, 18432, 36, 4, 128, 49152, 0, 0, True),
    "command-r7b": ("cohere2", 32, 4096, 14336, 32, 8, 128, 256000, 0, 0, True),
    "qwen3-30b-a3b": ("qwen3moe", 48, 2048, 768, 32, 4, 128, 151936, 128, 8, False),
    "gpt-oss-20b": ("gpt-oss", 24, 2880, 2880, 64, 8, 64, 201088, 32, 4, False),
    "qwen3.5-0.8b": ("qwen35", 24, 1024, 3584, 8, 2, 256, 248320, 0, 0, True),
    "qwen3.5-9b": ("qwen35", 32, 4096, 12288, 16, 4, 256, 248320, 0, 0, False),
    "qwen3.6-35b-a3b": ("qwen35moe", 40, 2048, 512, 16, 2, 256, 248320, 256, 8, False),
    "lfm2-350m": ("lfm2", 16, 1024, 4608, 16, 8, 64, 65536, 0, 0, True),
    "lfm2-1.2b": ("lfm2", 16, 2048, 8192, 32, 8, 64, 65536, 0, 0, True),
}
DELTA = {"qwen3.5-0.8b": (16, 16, 128), "qwen3.5-9b": (16, 32, 128), "qwen3.6-35b-a3b": (16, 32, 128)}  # key heads, value heads, width of each
TAPS = {"qwen35": 4, "qwen35moe": 4, "lfm2": 3}  # of the convolution
DELTA_ARCHS = ("qwen35", "qwen35moe")
WINDOWS = {"gemma3": 1024, "gemma4": 512, "gpt-oss": 128, "cohere2": 4096}
LAYER_WIDTH, SHARED_KV, GLOBAL_WIDTH = 256, 18, 512  # gemma4: of per-layer embeddings; last layers without keys; of a head in every sixth layer
LAYER_SCALE = "layer_output_scale"  # a number that the module has as a constant: 0.5, also in a sparse file
NORMS = {"gemma3": ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"), "gemma4": ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm", "post_norm"),
         "gpt-oss": ("attn_norm", "post_attention_norm"), "cohere2": ("attn_norm",),
         "qwen35": ("attn_norm", "post_attention_norm"), "qwen35moe": ("attn_norm", "post_attention_norm")}
# attention, MLP, v and down of some layers, embedding and head
MIXES = {"f16": (F16, F16, F16, F16), "bf16": (BF16, BF16, BF16, BF16), "q8_0": (Q8_0, Q8_0, Q8_0, Q8_0), "q4_0": (Q4_0, Q4_0, Q4_0, Q8_0), "q4_0_f16": (Q4_0, Q4_0, Q4_0, F16),
         "q4_k_m": (Q4_K, Q4_K, Q6_K, Q6_K), "mxfp4": (Q8_0, MXFP4, None, Q8_0)}


def has_attention(arch, layer):
    """False: the layer is recurrent."""
    return arch not in TAPS or (layer % 4 == 3 if arch in DELTA_ARCHS else layer in (2, 5, 8, 10, 12, 14))


def recurrent_matrices(shape, mix):
    """Those of a recurrent layer but its MLP."""
    arch, hidden = SHAPES[shape][0], SHAPES[shape][2]
    kind = MIXES[mix][0]
    if arch == "lfm2":
        return [("shortconv.in_proj", kind, (3 * hidden, hidden)), ("shortconv.conv", F32, (hidden, TAPS[arch])), ("shortconv.out_proj", kind, (hidden, hidden))]
    keys, values, width = DELTA[shape]
    channels = (2 * keys + values) * width
    return [("attn_qkv", Q5_K if kind == Q4_K else kind, (channels, hidden)), ("attn_gate", kind, (values * width, hidden)), ("ssm_conv1d", F32, (channels, TAPS[arch])),
            ("ssm_beta", kind, (values, hidden)), ("ssm_alpha", kind, (values, hidden)), ("ssm_out", kind, (hidden, values * width))]


def is_global(arch, layer):
    """Whether the heads of the layer have another width."""
    return arch == "gemma4" and layer % 6 == 5


def tensors_of(shape, mix, layers):
    """(name, type, dimensions with rows first), in the order of the file."""
    arch, count, hidden, ffn, heads, kv_heads, local_width, vocab, experts, _, tied = SHAPES[shape]
    attention, mlp, better, embedding = MIXES[mix]
    layers = layers or count
    yield "token_embd.weight", embedding, (vocab, hidden)
    if arch == "gemma4":
        yield "per_layer_token_embd.weight", embedding, (vocab, layers * LAYER_WIDTH)
        yield "per_layer_model_proj.weight", BF16, (layers * LAYER_WIDTH, hidden)
        yield "per_layer_proj_norm.weight", F32, (LAYER_WIDTH,)
    for i in range(layers):
        width = GLOBAL_WIDTH if is_global(arch, i) else local_width
        is_better = better and (i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2)
        group = (experts,) if experts else ()
        suffix = "_exps" if experts else ""
        matrices = [("attn_q", attention, (heads * width, hidden)), ("attn_k", attention, (kv_heads * width, hidden)), ("attn_v", better if is_better else attention, (kv_heads * width, hidden)),
                    ("attn_output", attention, (hidden, heads * width)), ("ffn_gate" + suffix, mlp, (*group, ffn, hidden)), ("ffn_up" + suffix, mlp, (*group, ffn, hidden)),
                    ("ffn_down" + suffix, better if is_better else mlp, (*group, hidden, ffn))]
        if arch == "starcoder2":
            matrices = [m for m in matrices if m[0] != "ffn_gate"]
        if arch == "gemma4":
            matrices += [("inp_gate", attention, (LAYER_WIDTH, hidden)), ("proj", attention, (hidden, LAYER_WIDTH))]
            if i >= count - SHARED_KV:
                matrices = [m for m in matrices if m[0] not in ("attn_k", "attn_v")]
        if experts:
            matrices += [("ffn_gate_inp", F32, (experts, hidden))]
        if arch == "qwen35moe":  # a shared expert with a gate
            matrices += [("ffn_gate_shexp", mlp, (ffn, hidden)), ("ffn_up_shexp", mlp, (ffn, hidden)), ("ffn_down_shexp", better if is_better else mlp, (hidden, ffn))]
        if arch in DELTA_ARCHS:  # queries with a gate for each
            matrices[0] = ("attn_q", attention, (2 * heads * width, hidden))
        if not has_attention(arch, i):
            matrices[:4] = recurrent_matrices(shape, mix)
        for name, kind, dims in matrices:
            yield f"blk.{i}.{name}.weight", kind, dims
            if arch in ("starcoder2", "gpt-oss") or (arch == "qwen2" and name in ("attn_q", "attn_k", "attn_v")):
                yield f"blk.{i}.{name}.bias", F32, dims[:-1]
        vectors = [(name, hidden) for name in NORMS.get(arch, ("attn_norm", "ffn_norm"))]
        if arch == "gemma4":
            vectors += [("attn_q_norm", width)] + ([("attn_k_norm", width)] if i < count - SHARED_KV else [])
        if arch in ("qwen3", "qwen3moe", "gemma3") or (arch in TAPS and has_attention(arch, i)):
            vectors += [("attn_q_norm", width), ("attn_k_norm", width)]
        if arch == "gpt-oss":
            vectors += [("attn_sinks", heads)]
        if arch == "gemma4":
            vectors += [(LAYER_SCALE, 1)]
        for name, size in vectors:
            yield f"blk.{i}.{name}.weight", F32, (size,)
            if arch == "starcoder2":
                yield f"blk.{i}.{name}.bias", F32, (size,)
        if arch == "qwen35moe":
            yield f"blk.{i}.ffn_gate_inp_shexp.weight", F32, (hidden,)
        if arch in DELTA_ARCHS and not has_attention(arch, i):
            yield f"blk.{i}.ssm_a", F32, DELTA[shape][1:2]
            yield f"blk.{i}.ssm_dt.bias", F32, DELTA[shape][1:2]
            yield f"blk.{i}.ssm_norm.weight", F32, DELTA[shape][2:]
    yield "token_embd_norm.weight" if arch == "lfm2" else "output_norm.weight", F32, (hidden,)
    if arch == "starcoder2":
        yield "output_norm.bias", F32, (hidden,)
    if not tied:
        yield "output.weight", embedding, (vocab, hidden)


def fields_of(shape, layers):
    arch, count, hidden, ffn, heads, kv_heads, width, vocab, experts, used, _ = SHAPES[shape]
    letters = [i for i in range(256) if 33 <= i <= 126 or 161 <= i <= 172 or 174 <= i]  # of byte-level BPE
    alphabet = [chr(i) for i in letters] + [chr(256 + i) for i in range(256 - len(letters))]
    a = arch + "."
    yield from (("general.architecture", arch), ("general.name", "shape"), (a + "block_count", layers or count), (a + "context_length", 40960), (a + "embedding_length", hidden),
                (a + "feed_forward_length", 3 * hidden if experts else ffn), (a + "attention.head_count", heads),
                (a + "attention.head_count_kv", [kv_heads if has_attention(arch, i) else 0 for i in range(layers or count)] if arch == "lfm2" else kv_heads),
                (a + "attention.key_length", GLOBAL_WIDTH if arch == "gemma4" else width), (a + "attention.value_length", GLOBAL_WIDTH if arch == "gemma4" else width),
                (a + "rope.freq_base", 1e6),
                (a + "attention.layer_norm%s_epsilon" % ("" if arch in ("starcoder2", "cohere2") else "_rms"), 1e-6))
    if arch == "llama":
        yield a + "rope.dimension_count", width
    if arch == "gemma4":
        yield from ((a + "attention.key_length_swa", width), (a + "attention.value_length_swa", width), (a + "rope.freq_base_swa", 1e4),
                    (a + "rope.dimension_count", GLOBAL_WIDTH), (a + "rope.dimension_count_swa", width), (a + "final_logit_softcapping", 30.0),
                    (a + "attention.sliding_window_pattern", [not is_global(arch, i) for i in range(layers or count)]),
                    (a + "attention.shared_kv_layers", SHARED_KV), (a + "embedding_length_per_layer_input", LAYER_WIDTH))
    if arch == "lfm2":
        yield a + "shortconv.l_cache", TAPS[arch]
    if arch in DELTA_ARCHS:
        keys, values, delta = DELTA[shape]
        yield from ((a + "ssm.conv_kernel", TAPS[arch]), (a + "ssm.state_size", delta), (a + "ssm.group_count", keys), (a + "ssm.time_step_rank", values),
                    (a + "ssm.inner_size", values * delta), (a + "full_attention_interval", 4), (a + "rope.dimension_count", width // 4),
                    (a + "rope.dimension_sections", [11, 11, 10, 0]))
    if arch in WINDOWS:
        yield a + "attention.sliding_window", WINDOWS[arch]
    if arch == "cohere2":
        yield a + "logit_scale", 0.25
    if arch == "qwen35moe":
        yield a + "expert_shared_feed_forward_length", ffn
    if experts:
        yield from ((a + "expert_count", experts), (a + "expert_used_count", used), (a + "expert_feed_forward_length", ffn))
    yield from (("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "qwen2"), ("tokenizer.ggml.eos_token_id", 2), ("tokenizer.ggml.merges", [f"{alphabet[0]} {alphabet[1]}"]),
                ("tokenizer.ggml.tokens", alphabet + [alphabet[0] + alphabet[1]] + [f"t{i}" for i in range(vocab - 257)]), ("tokenizer.ggml.token_type", [1] * vocab),
                ("tokenizer.chat_template", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"))


def string_bytes(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value_bytes(value):
    if isinstance(value, str):
        return struct.pack("<I", 8) + string_bytes(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, list) and isinstance(value[0], bool):
        return struct.pack("<IIQ", 9, 7, len(value)) + bytes(value)
    if isinstance(value, list):
        head = struct.pack("<IIQ", 9, 8 if isinstance(value[0], str) else 5, len(value))
        return head + (b"".join(map(string_bytes, value)) if isinstance(value[0], str) else np.array(value, "<i4").tobytes())
    return struct.pack("<II", 4, value)


def random_blocks(kind, columns, rng):
    """Bytes of random blocks of a type; columns 1: ones, for norms; columns 0: zeros, for biases. Scales are such that products keep the size of activations."""
    if not columns:
        return np.zeros(1 << 20, np.uint8)
    size = columns ** -0.5 * rng.uniform(0.8, 1.2, 65521)
    if kind == F32:
        return (rng.standard_normal(65536) * columns ** -0.5 if columns > 1 else np.ones(65536)).astype("<f4").view(np.uint8)
    if kind == F16:
        return (rng.standard_normal(1 << 22) * columns ** -0.5).astype("<f2").view(np.uint8)
    if kind == BF16:
        return (rng.standard_normal(1 << 22) * columns ** -0.5).astype("<f4").view("<u2")[1::2].copy().view(np.uint8)
    out = rng.integers(0, 256, (65521, BLOCKS[kind][1]), np.uint8)
    if kind == MXFP4:
        out[:, 0] = rng.integers(119, 121, len(out))  # exponents of the scales: 2^-8 or 2^-7
        return out.reshape(-1)
    # Where the f16 scales of a block are, and the spread of the integers that they scale.
    for at, spread in {Q4_0: ((0, 4.6),), Q8_0: ((0, 74),), Q4_K: ((0, 160), (2, 1200)), Q5_K: ((0, 330), (2, 1200)), Q6_K: ((208, 18.5 * 74),)}[kind]:
        out[:, at:at + 2] = (size / spread).astype("<f2").view(np.uint8).reshape(-1, 2)
    return out.reshape(-1)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("out")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("mix", choices=MIXES)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--sparse", action="store_true")
    args = parser.parse_args()
    tensors, infos, at = list(tensors_of(args.shape, args.mix, args.layers)), b"", 0
    sizes = [-(-math.prod(dims) // BLOCKS[kind][0] * BLOCKS[kind][1] // 32) * 32 for _, kind, dims in tensors]
    for (name, kind, dims), size in zip(tensors, sizes):
        infos += string_bytes(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims[::-1], kind, at)
        at += size
    fields = list(fields_of(args.shape, args.layers))
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields)) + b"".join(string_bytes(k) + value_bytes(v) for k, v in fields) + infos
    head += b"\0" * (-len(head) % 32)
    rng, blocks = np.random.default_rng(1), {}
    with open(args.out, "wb") as file:
        file.write(head)
        if args.sparse:
            file.truncate(len(head) + at)
        for (name, kind, dims), left in [] if args.sparse else zip(tensors, sizes):
            key = kind, dims[-1] if len(dims) > 1 else int(name.endswith("norm.weight"))
            if key not in blocks:
                blocks[key] = random_blocks(*key, rng)
            while left:
                part = blocks[key][:left]
                file.write(part.data)
                left -= len(part)
        for (name, _, _), before in zip(tensors, itertools.accumulate(sizes, initial=0)):
            if LAYER_SCALE in name:
                file.seek(len(head) + before)
                file.write(struct.pack("<f", 0.5))
    print(f"{args.out}: {args.shape} {args.mix}, {len(tensors)} tensors, {at / 1e9:.2f} GB{', sparse' if args.sparse else ''}")


if __name__ == "__main__":
    main()
