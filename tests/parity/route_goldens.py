#!/usr/bin/env python3
"""Writes tests/goldens/routes/NAME.json: the experts to which Hugging Face's routers send the tokens of the first text in tests/goldens/NAME.json.

  route_goldens.py [NAME...]   Needs torch and transformers.

A router is a module that returns a matrix of expert numbers [tokens, experts of a token]. Experts of a token are sorted by number; a layer without a
router is null.
"""
import json
import pathlib
import re
import sys

import torch
import transformers

TESTS = pathlib.Path(__file__).resolve().parent.parent
NAMES = ["mixtral", "qwen3_moe", "glm4_moe-groups", "deepseek_v3", "gpt_oss", "nemotron_h-experts"]


def numbers_of(output):
    """The matrix of expert numbers in what a module returned."""
    for item in output if isinstance(output, tuple) else (output,):
        if isinstance(item, torch.Tensor) and item.dtype in (torch.int64, torch.int32) and item.dim() == 2:
            return item
    return None


def routes_of(folder, ids):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, experts_implementation="eager").eval()
    layers = model.config.num_hidden_layers
    found = [None] * layers

    def hook(name):
        layer = int(re.search(r"layers\.(\d+)\.", name).group(1))

        def note(_module, _inputs, output):
            matrix = numbers_of(output)
            if matrix is not None:
                found[layer] = matrix.sort(-1).values.tolist()
        return note
    for name, module in model.named_modules():
        if re.search(r"layers\.\d+\..*(gate|router)$", name):
            module.register_forward_hook(hook(name))
    with torch.no_grad():
        model(torch.tensor([ids]))
    return found


for name in sys.argv[1:] or NAMES:
    golden = json.loads((TESTS / "goldens" / f"{name}.json").read_text())
    text = golden["results"][0]
    ids = text["prompt_ids"] + text["output_ids"]
    routes = routes_of(str(TESTS / "fixtures" / name), ids)
    assert any(routes), f"{name}: no module returns expert numbers"
    out = TESTS / "goldens" / "routes" / f"{name}.json"
    out.parent.mkdir(exist_ok=True)
    lines = ",\n".join("  " + json.dumps(layer) for layer in routes)
    head = json.dumps({"made_by": "tests/parity/route_goldens.py", "transformers": transformers.__version__, "prompt": len(text["prompt_ids"]), "ids": ids})
    out.write_text(f'{head[:-1]},\n "layers": [\n{lines}]}}\n')
    print(name, [len(layer[0]) if layer else None for layer in routes])
