#!/usr/bin/env python3
"""Writes a GGUF file of a Llama as a Hugging Face directory with bf16 weights: config.json, model.safetensors and tokenizer.json.

  hf_from_gguf.py MODEL.gguf OUT --tokenizer TOKENIZER.json
  hf_from_gguf.py MODEL.gguf OUT --check MLXCEL     compares greedy tokens of `MLXCEL run -m OUT` with the numpy forward of numpy_models.py in float32

Matrices and norms are dequantized and rounded to bf16 (to nearest even), and the rows of q and k are in Hugging Face's order. TOKENIZER.json is
copied; a bundle of the GGUF file (`mlxcel compile MODEL.gguf --no-weights -o B.mlxb`) has one. Needs numpy only. The directory appears under its
name when it is complete.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np

from gguf_llama import load, read
from make_shape import stored
from numpy_models import forward

PROMPTS, STEPS = ("The capital of France is", "def add(a, b):\n    return", "Once upon a time there was", "1, 2, 3, 4,"), 12


def config_of(path, config):
    metadata, _ = read(path)
    theta = config.pop("rope_parameters")["rope_theta"]
    eos, bos = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "bos"))
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **config, "rope_theta": theta, "rope_scaling": None, "hidden_act": "silu",
            "attention_bias": False, "mlp_bias": False, "bos_token_id": bos, "eos_token_id": eos, "torch_dtype": "bfloat16"}


def write_safetensors(path, weights):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, x in weights.items():
        header[name] = {"dtype": "BF16", "shape": list(x.shape), "data_offsets": [at, at + 2 * x.size]}
        at += 2 * x.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for x in weights.values():
            file.write(stored(np.ascontiguousarray(x, np.float32), "bf16").tobytes())


def check(mlxcel, out, config, weights):
    """Exits with status 1 if a token differs. The reference has the rounded weights, and float32 for the rest."""
    rounded = {name: (stored(np.ascontiguousarray(x, np.float32), "bf16").astype(np.uint32) << 16).view(np.float32) for name, x in weights.items()}
    different = 0
    for prompt in PROMPTS:
        command = [mlxcel, "run", "--raw", "--no-escape", "-m", out, "--device", "cpu", "-p", prompt, "-n", str(STEPS), "--temp", "0", "--ignore-eos", "--json"]
        answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        ids = list(answer["prompt_ids"])
        for _ in range(STEPS):
            ids.append(int(forward(config, rounded, ids).argmax()))
        same = ids[-STEPS:] == answer["output_ids"]
        different += not same
        print(f"{'equal' if same else 'DIFFERENT'}: {prompt!r} {answer['output_ids']}" + ("" if same else f", expected {ids[-STEPS:]}"))
    sys.exit(1 if different else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("out", type=pathlib.Path)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--tokenizer")
    task.add_argument("--check", metavar="MLXCEL")
    words = parser.parse_args()
    config, weights = load(words.model)
    config = config_of(words.model, config)
    if words.check:
        check(words.check, words.out, config, weights)
    partial = words.out.with_name(f"{words.out.name}.{os.getpid()}")
    partial.mkdir(parents=True)
    write_safetensors(partial / "model.safetensors", weights)
    (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.copy(words.tokenizer, partial / "tokenizer.json")
    partial.rename(words.out)
    print(f"{words.out}: {len(weights)} tensors, {sum(x.size for x in weights.values()) * 2 / 1e9:.3f} GB of bf16")


if __name__ == "__main__":
    main()
