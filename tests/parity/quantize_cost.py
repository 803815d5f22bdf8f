#!/usr/bin/env python3
"""Measures the cost of --quantize: perplexity over a text, and the divergence from the same weights in float32.

  quantize_cost.py BUILD MODEL.gguf [--text FILE] [--chunks 16] [--context 512] [--layers N] [--types q8_0,q4_1,q4_0]

BUILD has bin/mlxcel. MODEL is a Llama's GGUF file. The available file is quantized already, and quantizing a number twice in the same way
costs nothing. So the script first moves every weight by a random fraction of its block's step (fixed seed), to a value it may have had before
quantization. The reference is that network in float32. Needs numpy.
"""
import argparse
import json
import os
import pathlib
import struct
import subprocess
import tempfile

import numpy as np

import gguf_llama


def arguments():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path, help="default: the pages of docs/")
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--context", type=int, default=512, help="tokens in a chunk")
    parser.add_argument("--layers", type=int, help="keep only the first N layers, for a quick check of this script")
    parser.add_argument("--types", default="q8_0,q4_1,q4_0")
    return parser.parse_args()


def unround(random, widen):
    """gguf_llama.widen, with every quantized value moved by up to half a step."""
    widths = {name: width for name, _, width in gguf_llama.TYPES.values()}

    def moved(data, name):
        values = widen(data, name)
        if name not in ("Q4_1", "Q8_0"):
            return values
        blocks = data.reshape(-1, widths[name])
        step = blocks[:, :2].copy().view("<f2").astype(np.float32)
        return (values.reshape(-1, 32) + step * random.uniform(-0.5, 0.5, (len(blocks), 32)).astype(np.float32)).ravel()
    return moved


def write_folder(folder, weights, config, tokenizer):
    header, at = {}, 0
    for name, value in weights.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in weights.values():
            file.write(np.ascontiguousarray(value, np.float32).tobytes())
    (folder / "config.json").write_text(json.dumps(dict(config, model_type="llama", eos_token_id=2)))
    (folder / "tokenizer.json").write_bytes(tokenizer)


def evaluate(mlxcel, *options):
    done = subprocess.run([mlxcel, "eval", "--device", "cpu", "--json", *map(str, options)], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def print_row(name, size, result):
    kl = result.get("kl")
    columns = [name, f"{size / 1e6:.0f} MB", f"{result['perplexity']:.4f}"]
    columns += [f"{kl['mean']:.5f}", f"{kl['p99']:.4f}", f"{100 * result['same_best']:.2f}%"] if kl else ["", "", ""]
    print("| " + " | ".join(columns) + " |", flush=True)


def weights_size(mlxcel, folder, options, out):
    subprocess.run([mlxcel, "compile", folder, "-c", "512", "-o", out, *options], check=True, capture_output=True)
    return (out / "weights.irpa").stat().st_size


def main():
    a = arguments()
    mlxcel = a.build / "bin" / "mlxcel"
    docs = pathlib.Path(__file__).resolve().parents[2] / "docs"
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        os.environ["MLXCEL_CACHE"] = str(folder / "cache")
        text = a.text or folder / "text.txt"
        if not a.text:
            text.write_text("\n".join(page.read_text() for page in sorted(docs.glob("*.md")) if page.name != "quantization.md"))
        bundle = folder / "as-it-is.mlxb"
        size = weights_size(mlxcel, a.model, [], bundle)
        gguf_llama.widen = unround(np.random.default_rng(6), gguf_llama.widen)
        config, weights = gguf_llama.load(a.model)
        if a.layers:
            config = dict(config, num_hidden_layers=a.layers)
            weights = {name: value for name, value in weights.items() if not name.startswith("model.layers.") or int(name.split(".")[2]) < a.layers}
        model = folder / "unrounded"
        model.mkdir()
        write_folder(model, weights, config, (bundle / "tokenizer.json").read_bytes())
        common = ["-f", text, "--chunks", a.chunks, "-c", a.context]
        print("| weights | size | perplexity | mean KL | 99% below | same best token |\n| --- | --- | --- | --- | --- | --- |")
        print_row("as the file has them", size, evaluate(mlxcel, "-m", a.model, *common))
        reference = evaluate(mlxcel, "-m", model, *common, "--save-logprobs", folder / "reference")
        print_row("unrounded, f32", weights_size(mlxcel, model, ["--dtype", "f32"], folder / "f32.mlxb"), reference)
        for kind in a.types.split(","):
            size = weights_size(mlxcel, model, ["--quantize", kind], folder / f"{kind}.mlxb")
            print_row(f"--quantize {kind}", size, evaluate(mlxcel, "-m", model, *common, "--quantize", kind, "--kl", folder / "reference"))


if __name__ == "__main__":
    main()
