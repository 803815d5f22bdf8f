#!/usr/bin/env python3
"""Runs `mlxcel compile --emit stablehlo` output in an independent implementation.

  stablehlo.py MLXCEL

The tiny model's module is parsed and verified by jaxlib's StableHLO, written and read back as a portable artifact, and its
functions are executed by the reference interpreter: a prefill and some decode steps, state fed from result to argument.
Logits must equal Hugging Face's (tests/goldens/tiny-llama.json) to 1e-4, tokens exactly.
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


def evaluate(text, function, values):
    module = only(ir.Module.parse(text), function)
    names = arguments_of(text, function)
    inputs = [ir.DenseElementsAttr.get(np.ascontiguousarray(values[name], dtype)) for name, dtype, _ in names]
    results = [np.array(x) for x in stablehlo.eval_module(module, inputs)]
    state = [name for name, _, _ in names if name.startswith(("kv.", "state."))]
    values.update(zip(state, results[1:]))
    return results[0]


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
        values = {name: np.zeros(shape, dtype) for name, dtype, shape in arguments_of(text, "prefill_16")}
        values.update(weights)
        ids = golden["prompt_ids"]
        values["tokens"][0, :len(ids)] = ids
        values["count"][:] = len(ids)
        values["pages"][0] = 1 + np.arange(values["pages"].shape[1])
        tokens = [int(evaluate(text, "prefill_16", values)[0])]
        expected = np.array(golden["first_logits"])
        error = np.abs(values["state.logits"][0] - expected).max() / np.abs(expected).max()
        values["active"] = np.ones(1, np.int32)
        for _ in range(STEPS):
            tokens.append(int(evaluate(text, "decode_1", values)[0, 0]))
    print(f"jaxlib {jaxlib.__version__} reference interpreter: logits within {error:.1e}, tokens {tokens}")
    if error > 1e-4 or tokens != golden["output_ids"][:STEPS + 1]:
        sys.exit(f"differs from Hugging Face: {golden['output_ids'][:STEPS + 1]}")


if __name__ == "__main__":
    main()
