#!/usr/bin/env python3
"""Runs `mlxcel bench` and the peer alternately on the same machine (ours, peer, ours, peer, ours), so that both see the same clocks and
the same load.

  side_by_side.py MLXCEL BUNDLE_OR_MODEL MODEL_DIR [-p 512] [-n 128] [-d 0,4096] [-r 5] [--dtype bf16] [--device cuda]
                  [--turns 5] [--compile] [--peer COMMAND...]

MODEL_DIR is the Hugging Face directory the peer loads. --peer takes the rest of the line as another peer's command, which
prints JSON as llama-bench -o json or peer.py do. Prints the commands, every figure, and a table of medians with the ratio.
"""
import argparse
import json
import pathlib
import shlex
import statistics
import subprocess
import sys


def arguments():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("mlxcel")
    parser.add_argument("model")
    parser.add_argument("model_dir")
    for flag, name, default in (("-p", "prompt", "512"), ("-n", "tokens", "128"), ("-d", "depth", "0"), ("-r", "repetitions", "5")):
        parser.add_argument(flag, dest=name, default=default)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--peer", nargs=argparse.REMAINDER)
    return parser.parse_args()


def objects(value):
    """Every JSON object in |value|, at any depth."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from objects(item)


def parse(text):
    """One JSON value, or one a line."""
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.startswith(("{", "["))]


def test_name(row):
    if isinstance(row.get("test"), str):
        return row["test"].strip()
    if "n_prompt" not in row or "n_gen" not in row:
        return None
    name = f"tg{row['n_gen']}" if row["n_gen"] else f"pp{row['n_prompt']}"
    return name + (f" @ d{row['n_depth']}" if row.get("n_depth") else "")


def figures(text):
    """Test name -> tokens per second, from the JSON of any of the benchmarks."""
    found = {}
    for row in objects(parse(text)):
        rate = next((row[key] for key in ("tokens_per_second", "avg_ts") if isinstance(row.get(key), (int, float))), None)
        if rate is not None and test_name(row):
            found[test_name(row)] = float(rate)
    return found


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}: exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found = figures(done.stdout)
    if not found:
        sys.exit(f"{shlex.join(command)} printed no figure:\n{done.stdout[-4000:]}")
    return found


def main():
    args = arguments()
    sizes = ["-p", args.prompt, "-n", args.tokens, "-d", args.depth, "-r", args.repetitions]
    commands = {
        "mlxcel": [args.mlxcel, "bench", "-m", args.model, *sizes, "--device", args.device, "--dtype", args.dtype, "-o", "json"],
        "peer": args.peer or [sys.executable, str(pathlib.Path(__file__).with_name("peer.py")), args.model_dir, *sizes,
                              *(["--compile"] if args.compile else [])]}
    for who, command in commands.items():
        print(f"{who}: {shlex.join(command)}", flush=True)
    rates = {"mlxcel": {}, "peer": {}}
    for turn in range(args.turns):
        who = "peer" if turn % 2 else "mlxcel"
        found = run(commands[who])
        print(f"turn {turn + 1}, {who}: " + ", ".join(f"{test} {rate:.1f}" for test, rate in found.items()), flush=True)
        for test, rate in found.items():
            rates[who].setdefault(test, []).append(rate)
    print("\n| test | mlxcel, tok/s | peer, tok/s | ratio |\n| --- | --- | --- | --- |")
    for test in dict.fromkeys([*rates["mlxcel"], *rates["peer"]]):
        ours, theirs = (statistics.median(rates[who][test]) if test in rates[who] else None for who in ("mlxcel", "peer"))
        text = lambda rate: "-" if rate is None else f"{rate:.1f}"
        print(f"| {test} | {text(ours)} | {text(theirs)} | {'-' if ours is None or theirs is None else f'{ours / theirs:.2f}x'} |")


if __name__ == "__main__":
    main()
