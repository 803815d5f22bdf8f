#!/usr/bin/env python3
"""Compares `mlxcel run` with a golden file, on any machine and device. The C tests do the same on machines with a compiler.

  golden_runs.py MLXCEL MODEL GOLDENS.json [more options of mlxcel run, such as --device cuda]

Prints one line per prompt and a summary. Exit status 1 if a token id differs.
"""
import json
import subprocess
import sys

mlxcel, model, goldens, *options = sys.argv[1:]
failed = 0
results = json.load(open(goldens))["results"]
for number, result in enumerate(results):
    prompt = result.get("rendered", result["prompt"])
    run = subprocess.run([mlxcel, "run", "--raw", "--no-escape", "--temp", "0", "-m", model, "-p", prompt, "-n", "48", "--ignore-eos", "--json", *options],
                         capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"prompt {number}: exit status {run.returncode}\n{run.stderr}")
    out = json.loads(run.stdout)
    same = sum(a == b for a, b in zip(out["output_ids"], result["output_ids"]))
    right = out["prompt_ids"] == result["prompt_ids"] and out["output_ids"] == result["output_ids"]
    failed += not right
    print(f"prompt {number}: {len(out['prompt_ids'])} tokens in, {same}/{len(result['output_ids'])} equal, "
          f"decode {out['timings']['decode_tokens_per_second']:.0f} tok/s, load {out['timings']['load_seconds']:.2f} s, {out['device']}")
print(f"{len(results) - failed} passed, {failed} failed")
sys.exit(failed > 0)
