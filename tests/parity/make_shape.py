#!/usr/bin/env python3
"""Makes a Llama or a Qwen3 with random weights in the shape of a real model, for measurements without the real weights.

  make_shape.py OUT llama-1b|llama-8b|llama-test|odd|grouped|qwen3-0.6b|qwen3-8b [--dtype bf16|f16|f32] [--sparse]

Writes a Hugging Face directory: config.json, model.safetensors and the tiny fixture's tokenizer.json, whose 320 tokens are the
first of the model's. Needs numpy only. Matrices are N(0, 1 / in), norms N(1, 0.05), so that activations keep their size; the seed
is fixed. The weights repeat one block of random numbers. Its length is prime, so no two rows of a tensor are equal.
--sparse writes the header and no data (a sparse file): enough to compile a module, useless to run.
"""
import argparse
import json
import math
import pathlib
import shutil

import numpy as np

from weight_layout import OTHER_SHAPES, SHAPES

TOKENIZER = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "tiny-llama" / "tokenizer.json"
SEED, BLOCK = 20261115, 16777213  # the largest prime below 2^24

SHAPES = {**SHAPES, **{name: OTHER_SHAPES[name] for name in ("qwen3-0.6b", "qwen3-8b")}}
POSITIONS = 131072  # max_position_embeddings
SAFETENSORS = {"bf16": "BF16", "f16": "F16", "f32": "F32"}
TORCH = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def config_of(shape, dtype):
    hidden, ffn, heads, kv_heads, width, layers, vocab, theta, tied = SHAPES[shape]
    architecture, kind = ("Qwen3ForCausalLM", "qwen3") if shape.startswith("qwen3") else ("LlamaForCausalLM", "llama")
    return {"architectures": [architecture], "model_type": kind, "hidden_size": hidden, "intermediate_size": ffn,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": width,
            "vocab_size": vocab, "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-5, "rope_theta": theta,
            "rope_scaling": None, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": tied,
            "bos_token_id": 0, "eos_token_id": 2, "torch_dtype": TORCH[dtype]}


def tensors_of(shape):
    """Name -> dimensions, in the order of the file."""
    hidden, ffn, heads, kv_heads, width, layers, vocab, _, tied = SHAPES[shape]
    tensors = {"model.embed_tokens.weight": (vocab, hidden)}
    for i in range(layers):
        p = f"model.layers.{i}."
        tensors[p + "input_layernorm.weight"] = (hidden,)
        tensors[p + "self_attn.q_proj.weight"] = (heads * width, hidden)
        tensors[p + "self_attn.k_proj.weight"] = (kv_heads * width, hidden)
        tensors[p + "self_attn.v_proj.weight"] = (kv_heads * width, hidden)
        tensors[p + "self_attn.o_proj.weight"] = (hidden, heads * width)
        if shape.startswith("qwen3"):
            tensors[p + "self_attn.q_norm.weight"] = tensors[p + "self_attn.k_norm.weight"] = (width,)
        tensors[p + "post_attention_layernorm.weight"] = (hidden,)
        tensors[p + "mlp.gate_proj.weight"] = (ffn, hidden)
        tensors[p + "mlp.up_proj.weight"] = (ffn, hidden)
        tensors[p + "mlp.down_proj.weight"] = (hidden, ffn)
    tensors["model.norm.weight"] = (hidden,)
    if not tied:
        tensors["lm_head.weight"] = (vocab, hidden)
    return tensors


def stored(x, dtype):
    """float32 values in the stored type; bf16 rounds to nearest even."""
    if dtype == "f32":
        return x.astype("<f4")
    if dtype == "f16":
        return x.astype("<f2")
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


class Numbers:
    """One block of normal numbers, scaled and rounded once for each kind of tensor."""

    def __init__(self, dtype):
        self.normal = np.random.default_rng(SEED).standard_normal(BLOCK, dtype=np.float32)
        self.dtype, self.blocks = dtype, {}

    def block(self, dims):
        mean, scale = (1.0, 0.05) if len(dims) == 1 else (0.0, 1.0 / math.sqrt(dims[1]))
        if (mean, scale) not in self.blocks:
            self.blocks[mean, scale] = stored(np.float32(mean) + self.normal * np.float32(scale), self.dtype)
        return self.blocks[mean, scale]

    def write(self, file, number, dims):
        block, left = self.block(dims), math.prod(dims)
        at = (number * 7919 * 1009 + 1) % BLOCK  # each tensor starts at another offset
        while left:
            part = block[at:at + left]
            file.write(part.data)
            left, at = left - len(part), 0


def header_of(tensors, dtype):
    at, header, width = 0, {"__metadata__": {"format": "pt"}}, 4 if dtype == "f32" else 2
    for name, dims in tensors.items():
        size = math.prod(dims) * width
        header[name] = {"dtype": SAFETENSORS[dtype], "shape": list(dims), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, at


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--dtype", choices=SAFETENSORS, default="bf16")
    parser.add_argument("--sparse", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "config.json").write_text(json.dumps(config_of(args.shape, args.dtype), indent=1) + "\n")
    shutil.copyfile(TOKENIZER, args.out / "tokenizer.json")
    tensors = tensors_of(args.shape)
    header, size = header_of(tensors, args.dtype)
    with open(args.out / "model.safetensors", "wb") as file:
        file.write(header)
        if args.sparse:
            file.truncate(len(header) + size)
        else:
            numbers = Numbers(args.dtype)
            for number, dims in enumerate(tensors.values()):
                numbers.write(file, number, dims)
    print(f"{args.out}: {args.shape}, {len(tensors)} tensors, {size / 1e9:.4f} GB of {args.dtype}{', sparse' if args.sparse else ''}")


if __name__ == "__main__":
    main()
