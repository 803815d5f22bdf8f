#!/usr/bin/env python3
"""Runs `mlxcel compile --emit stablehlo` output in an independent implementation.

  stablehlo.py MLXCEL

The tiny model's module is parsed and verified by jaxlib's StableHLO, written and read back as a portable artifact, and its
functions are executed by the reference interpreter: a step over the prompt and steps over one token each, results fed back as
arguments. The pages of the sequence are not in order. A token is read from the history once, as a sampled one. Logits must equal Hugging Face's (tests/goldens/tiny-llama.json) to 1e-4, tokens exactly.
"""
import json
import pathlib
import re
import subprocess
import sys

import jaxlib
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo
from safetensors.numpy import load_file

TESTS = pathlib.Path(__file__).resolve().parent.parent
MODEL = TESTS / "fixtures" / "tiny-llama"
DTYPES = {"f32": np.float32, "i32": np.int32}
STEPS = 4


def register_dialects(context):
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    stablehlo.register_dialect(context)


def arguments_of(text, function):
    """Name, dtype and shape of each argument, in order, from the text we emitted."""
    header = re.search(rf"@{function}\((.*?)\) ->", text, re.S).group(1)
    found = re.findall(r"%([\w.]+): tensor<((?:\d+x)*)(\w+)>", header)
    return [(name, DTYPES[dtype], [int(d) for d in dims.split("x") if d]) for name, dims, dtype in found]


def only(module, function):
    """Renames one function to @main, which the interpreter runs."""
    for op in list(module.body.operations):
        if isinstance(op, func.FuncOp):
            if op.name.value == function:
                op.attributes["sym_name"] = ir.StringAttr.get("main")
            else:
                op.operation.erase()
    return module


HEADER_WORDS, SAMPLING_WORDS, PAGE, CHUNK = 64, 24, 16, 256  # kernels/step.h, compiler/function.h
UPDATED = ["history", "kv", "logits", "hidden", "results"]
SAMPLED = -1


def batch(n, w, ids, position, slot_pages, pages):
    """The argument |batch| of step_N for one segment in slot 0 whose last token is wanted (kernels/step.h)."""
    words = np.zeros(HEADER_WORDS + 7 * n + w + SAMPLING_WORDS * w + slot_pages, np.int32)
    words[:8] = [len(ids), 1, 1, len(pages) + 1, 1, slot_pages, slot_pages * PAGE, 0]
    at = HEADER_WORDS
    words[at:at + len(ids)] = ids
    words[at + 2 * n:at + 3 * n] = -1  # padding
    words[at + 2 * n:at + 2 * n + len(ids)] = position + np.arange(len(ids))
    words[at + 3 * n:at + 3 * n + 4] = [0, 0, len(ids), position]
    words[at + 7 * n] = len(ids) - 1
    table = at + 7 * n + w + SAMPLING_WORDS * w
    words[table:table + len(pages)] = pages
    return words


def evaluate(text, n, values, ids, position):
    function, slot_pages = f"step_{n}", values["history"].size // PAGE
    module = only(ir.Module.parse(text), function)
    arguments = arguments_of(text, function)
    pages = 1 + np.roll(np.arange(slot_pages), 1)
    values["batch"] = batch(n, n, ids, position, slot_pages, pages)
    values["chunks"] = np.array((position + len(ids) - 1) // CHUNK + 1, np.int32)
    inputs = []
    for name, dtype, shape in arguments:
        value = np.zeros(shape, dtype) if name in ("logits", "hidden", "results") else values[name]
        inputs.append(ir.DenseElementsAttr.get(np.array(value, dtype, order="C")))
    values.update(zip(UPDATED, [np.array(x) for x in stablehlo.eval_module(module, inputs)]))
    return int(values["logits"][0].argmax())


def check_portable(text):
    module = ir.Module.parse(text)
    version = stablehlo.get_minimum_version()
    artifact = stablehlo.serialize_portable_artifact(module, version)
    stablehlo.deserialize_portable_artifact(module.context, artifact)
    return version, len(artifact)


def main():
    text = subprocess.run([sys.argv[1], "compile", MODEL, "--ctx", "64", "--emit", "stablehlo", "-o", "-"], check=True,
                          capture_output=True, text=True).stdout
    golden = json.loads((TESTS / "goldens" / "tiny-llama.json").read_text())["results"][0]
    weights = {}
    for shard in MODEL.glob("*.safetensors"):
        weights.update(load_file(shard))
    with ir.Context() as context, ir.Location.unknown():
        register_dialects(context)
        version, size = check_portable(text)
        print(f"verified; portable artifact for StableHLO {version}: {size} bytes")
        values = {name: np.zeros(shape, dtype) for name, dtype, shape in arguments_of(text, "step_16")}
        values.update(weights)
        ids = golden["prompt_ids"]
        tokens = [evaluate(text, 16, values, ids, 0)]
        expected = np.array(golden["first_logits"])
        error = np.abs(values["logits"][0] - expected).max() / np.abs(expected).max()
        if list(values["history"][:len(ids)]) != ids:
            sys.exit(f"the history differs from the prompt: {values['history'][:len(ids)]}")
        for i in range(STEPS):
            position = len(ids) + i
            values["history"][position] = tokens[-1]
            tokens.append(evaluate(text, 1, values, [SAMPLED if i == 1 else tokens[-1]], position))
    print(f"jaxlib {jaxlib.__version__} reference interpreter: logits within {error:.1e}, tokens {tokens}")
    if error > 1e-4 or tokens != golden["output_ids"][:STEPS + 1]:
        sys.exit(f"differs from Hugging Face: {golden['output_ids'][:STEPS + 1]}")


if __name__ == "__main__":
    main()
