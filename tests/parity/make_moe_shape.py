#!/usr/bin/env python3
"""Makes a mixture of experts with random weights in the shape of a real model, for measurements without the real weights.

  make_moe_shape.py OUT gpt-oss-20b|qwen3-30b-a3b [--layers N] [--sparse]

gpt-oss becomes a Hugging Face directory as make_shape.py writes it, with experts in MXFP4 and the rest in bf16; Qwen3 the file OUT.gguf in Q4_0 with a Q8_0
head and f32 routers and norms. --layers: fewer layers than the real model has, so that the difference of two runs gives the time of a layer. --sparse writes
no data: enough to compile a module.
"""
import argparse
import json
import math
import pathlib
import shutil
import struct

import numpy as np

from make_shape import TOKENIZER, Numbers

COMMON = {"attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "silu", "dtype": "bfloat16", "tie_word_embeddings": False,
          "use_cache": True, "max_position_embeddings": 131072, "num_experts_per_tok": 0}
SHAPES = {
    "gpt-oss-20b": {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True, "head_dim": 64, "hidden_size": 2880,
                    "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "num_experts_per_tok": 4, "num_local_experts": 32,
                    "num_hidden_layers": 24, "rms_norm_eps": 1e-5, "sliding_window": 128, "swiglu_limit": 7.0, "vocab_size": 201088,
                    "rope_parameters": {"factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096, "rope_theta": 150000.0,
                                        "rope_type": "yarn", "truncate": False},
                    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}},
    "qwen3-30b-a3b": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128,
                      "hidden_size": 2048, "intermediate_size": 6144, "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True,
                      "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts_per_tok": 8, "num_local_experts": 128, "num_hidden_layers": 48,
                      "rms_norm_eps": 1e-6, "sliding_window": None, "use_sliding_window": False, "vocab_size": 151936,
                      "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}},
}


def config_of(shape, layers):
    config = {**COMMON, **SHAPES[shape]}
    config["num_hidden_layers"] = layers or config["num_hidden_layers"]
    if shape == "gpt-oss-20b":
        config["layer_types"] = [("sliding_attention", "full_attention")[i % 2] for i in range(config["num_hidden_layers"])]
    return config


def tensors_of(c):
    """Name -> (dtype, dimensions), in the order of the file."""
    hidden, heads, kv_heads, width, experts = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["num_local_experts"]
    t = {"model.embed_tokens.weight": ("BF16", (c["vocab_size"], hidden))}
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name, rows, columns in (("q", heads * width, hidden), ("k", kv_heads * width, hidden), ("v", kv_heads * width, hidden), ("o", hidden, heads * width)):
            t[f"{p}self_attn.{name}_proj.weight"] = ("BF16", (rows, columns))
            t[f"{p}self_attn.{name}_proj.bias"] = ("BF16", (rows,))
        for name in ("input_layernorm", "post_attention_layernorm"):
            t[f"{p}{name}.weight"] = ("BF16", (hidden,))
        ffn = c["intermediate_size"]
        t[p + "self_attn.sinks"] = ("BF16", (heads,))
        t[p + "mlp.router.weight"], t[p + "mlp.router.bias"] = ("BF16", (experts, hidden)), ("BF16", (experts,))
        for name, rows, columns in (("gate_up", 2 * ffn, hidden), ("down", hidden, ffn)):
            t[f"{p}mlp.experts.{name}_proj_blocks"] = ("U8", (experts, rows, columns // 32, 16))
            t[f"{p}mlp.experts.{name}_proj_scales"] = ("U8", (experts, rows, columns // 32))
            t[f"{p}mlp.experts.{name}_proj_bias"] = ("BF16", (experts, rows))
    t["model.norm.weight"] = ("BF16", (hidden,))
    t["lm_head.weight"] = ("BF16", (c["vocab_size"], hidden))
    return t


# ---- GGUF ----

F32, Q4_0, Q8_0 = 0, 2, 8
BLOCKS = {F32: (1, 4), Q4_0: (32, 18), Q8_0: (32, 34)}  # weights, bytes


def gguf_tensors(c):
    """(name, type, dimensions with rows first), in the order of the file."""
    hidden, heads, kv_heads, width, experts, ffn = (c[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_local_experts", "moe_intermediate_size"))
    yield "token_embd.weight", Q4_0, (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        for name, kind, dims in (("attn_norm", F32, (hidden,)), ("attn_q", Q4_0, (heads * width, hidden)), ("attn_k", Q4_0, (kv_heads * width, hidden)),
                                 ("attn_v", Q4_0, (kv_heads * width, hidden)), ("attn_output", Q4_0, (hidden, heads * width)), ("attn_q_norm", F32, (width,)),
                                 ("attn_k_norm", F32, (width,)), ("ffn_norm", F32, (hidden,)), ("ffn_gate_inp", F32, (experts, hidden)),
                                 ("ffn_gate_exps", Q4_0, (experts, ffn, hidden)), ("ffn_up_exps", Q4_0, (experts, ffn, hidden)), ("ffn_down_exps", Q4_0, (experts, hidden, ffn))):
            yield f"blk.{i}.{name}.weight", kind, dims
    yield "output_norm.weight", F32, (hidden,)
    yield "output.weight", Q8_0, (c["vocab_size"], hidden)


def gguf_fields(c):
    a = "qwen3moe."
    letters = [i for i in range(256) if 33 <= i <= 126 or 161 <= i <= 172 or 174 <= i]  # of byte-level BPE
    alphabet = [chr(i) for i in letters] + [chr(256 + i) for i in range(256 - len(letters))]
    yield from (("general.architecture", "qwen3moe"), ("general.name", "shape"), (a + "block_count", c["num_hidden_layers"]), (a + "context_length", 40960),
                (a + "embedding_length", c["hidden_size"]), (a + "feed_forward_length", c["intermediate_size"]), (a + "attention.head_count", c["num_attention_heads"]),
                (a + "attention.head_count_kv", c["num_key_value_heads"]), (a + "attention.key_length", c["head_dim"]), (a + "attention.value_length", c["head_dim"]),
                (a + "attention.layer_norm_rms_epsilon", 1e-6), (a + "rope.freq_base", 1e6), (a + "expert_count", c["num_local_experts"]),
                (a + "expert_used_count", c["num_experts_per_tok"]), (a + "expert_feed_forward_length", c["moe_intermediate_size"]),
                ("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "qwen2"), ("tokenizer.ggml.eos_token_id", 2), ("tokenizer.ggml.merges", [f"{alphabet[0]} {alphabet[1]}"]),
                ("tokenizer.ggml.tokens", alphabet + [alphabet[0] + alphabet[1]] + [f"t{i}" for i in range(c["vocab_size"] - 257)]),
                ("tokenizer.ggml.token_type", [1] * c["vocab_size"]))


def gguf_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_value(value):
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_string(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, list):
        head = struct.pack("<IIQ", 9, 8 if isinstance(value[0], str) else 5, len(value))
        return head + (b"".join(map(gguf_string, value)) if isinstance(value[0], str) else np.array(value, "<i4").tobytes())
    return struct.pack("<II", 4, value)


def gguf_block(kind, columns, rng):
    """Random data of a type: 4096 blocks, or ones for norms. Scales are such that products keep the size of activations."""
    if kind == F32:
        return rng.standard_normal(65536).astype("<f4") * np.float32(columns ** -0.5) if columns > 1 else np.ones(65536, "<f4")
    width = BLOCKS[kind][1]
    out = rng.integers(0, 256, (65521, width), np.uint8)
    spread = 4.6 if kind == Q4_0 else 74
    out[:, :2] = (rng.uniform(0.8, 1.2, 65521) * columns ** -0.5 / spread).astype("<f2").view(np.uint8).reshape(-1, 2)
    return out.reshape(-1)


def write_gguf(path, c, sparse):
    tensors, infos, at = list(gguf_tensors(c)), b"", 0
    for name, kind, dims in tensors:
        size = math.prod(dims) // BLOCKS[kind][0] * BLOCKS[kind][1]
        infos += gguf_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims[::-1], kind, at)
        at += -(-size // 32) * 32
    fields = list(gguf_fields(c))
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields)) + b"".join(gguf_string(k) + gguf_value(v) for k, v in fields) + infos
    head += b"\0" * (-len(head) % 32)
    rng, blocks = np.random.default_rng(1), {}
    with open(path, "wb") as file:
        file.write(head)
        for name, kind, dims in [] if sparse else tensors:
            columns = dims[-1] if len(dims) > 1 else 1
            if (kind, columns) not in blocks:
                blocks[kind, columns] = gguf_block(kind, columns, rng).view(np.uint8)
            left = math.prod(dims) // BLOCKS[kind][0] * BLOCKS[kind][1]
            left = -(-left // 32) * 32
            while left:
                part = blocks[kind, columns][:left]
                file.write(part.data)
                left -= len(part)
        if sparse:
            file.truncate(len(head) + at)
    print(f"{path}: {c['num_hidden_layers']} layers, {len(tensors)} tensors, {at / 1e9:.2f} GB{', sparse' if sparse else ''}")


def write_bytes(file, name, count, rng):
    """Codes are random; scales are 2^-8 or 2^-7, so that weights are about as large as those of a matrix with 2880 columns."""
    block = rng.integers(119, 121, 1 << 20, np.uint8) if name.endswith("_scales") else rng.integers(0, 256, 1 << 22, np.uint8)
    while count:
        file.write(block[:count].data)
        count -= min(count, len(block))


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--sparse", action="store_true")
    args = parser.parse_args()
    config = config_of(args.shape, args.layers)
    if args.shape == "qwen3-30b-a3b":
        write_gguf(f"{args.out}.gguf", config, args.sparse)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    shutil.copyfile(TOKENIZER, args.out / "tokenizer.json")
    tensors, at, header = tensors_of(config), 0, {"__metadata__": {"format": "pt"}}
    for name, (dtype, dims) in tensors.items():
        size = math.prod(dims) * (1 if dtype == "U8" else 2)
        header[name] = {"dtype": dtype, "shape": list(dims), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(args.out / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        if args.sparse:
            file.truncate(8 + len(text) + at)
        else:
            numbers, rng = Numbers("bf16"), np.random.default_rng(1)
            for number, (name, (dtype, dims)) in enumerate(tensors.items()):
                if dtype == "U8":
                    write_bytes(file, name, math.prod(dims), rng)
                else:
                    numbers.write(file, number, dims)
    print(f"{args.out}: {args.shape}, {config['num_hidden_layers']} layers, {len(tensors)} tensors, {at / 1e9:.2f} GB{', sparse' if args.sparse else ''}")


if __name__ == "__main__":
    main()
