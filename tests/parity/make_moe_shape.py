#!/usr/bin/env python3
"""Makes a mixture of experts with random weights in the shape of a real model, for measurements without the real weights.

  make_moe_shape.py OUT gpt-oss-20b [--layers N] [--sparse]

Writes a Hugging Face directory as make_shape.py does, with experts in MXFP4 and the rest in bf16. --layers: fewer layers than the real model has, so that the
difference of two runs gives the time of a layer. --sparse writes no data: enough to compile a module. make_gguf_shape.py makes Qwen3-30B-A3B.
"""
import argparse
import json
import math
import pathlib
import shutil

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
}


def config_of(shape, layers):
    config = {**COMMON, **SHAPES[shape]}
    config["num_hidden_layers"] = layers or config["num_hidden_layers"]
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
