#!/usr/bin/env python3
"""Prints the CPU figures of docs/measurements.md as a Markdown table: sizes, times and memory of SmolLM2 on this machine.

  measure.py BUILD_FOLDER MODEL.gguf [--quick] [--save SUBJECT]      (./build.sh measure calls it; run it on a quiet machine)

--quick runs everything once and leaves the demo out: it shows that the script works, its figures mean nothing.
--save writes them to bench/results/DATE-SUBJECT.json (bench/record.py).
"""
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

build, model, quick = pathlib.Path(sys.argv[1]), sys.argv[2], "--quick" in sys.argv
mlxcel = str(build / "bin" / "mlxcel")
PROMPT = "The capital of France is"
LONG = " ".join(["The quick brown fox jumps over the lazy dog."] * 60)


def child(args, env):
    """Seconds, peak MiB (its own children included) and stdout of one command."""
    start = time.time()
    process = subprocess.Popen(args, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, (args, status)
    return time.time() - start, usage.ru_maxrss / 1024, out


def run(env, prompt, count):
    seconds, peak, out = child([mlxcel, "run", "--raw", "--temp", "0", "-m", model, "-p", prompt, "-n", str(count), "--ignore-eos", "--json"], env)
    return seconds, peak, json.loads(out)["timings"]


def main():
    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
    rows = [("machine", f"{cpu}, {len(os.sched_getaffinity(0))} CPUs, {platform.system()} {platform.machine()}")]
    stripped = tempfile.mktemp()
    subprocess.run(["strip", "-o", stripped, mlxcel], check=True)
    rows.append(("binary, stripped", f"{os.path.getsize(stripped) / 1e6:.2f} MB"))
    os.unlink(stripped)
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, MLXCEL_CACHE=folder + "/cache")
        seconds, peak, _ = child([mlxcel, "compile", model, "--emit", "vmfb", "-o", folder + "/x.vmfb"], env)
        rows.append(("compile, empty cache: time; peak memory with iree-compile's", f"{seconds:.1f} s; {peak:.0f} MiB"))
        rows.append(("vmfb", f"{os.path.getsize(folder + '/x.vmfb') / 1e6:.2f} MB"))
        runs = [run(env, PROMPT, 64) for _ in range(1 if quick else 5)]
        decode = [r[2]["decode_tokens_per_second"] for r in runs]
        rows.append(("run, warm cache, start to weights bound (median of 5)", f"{statistics.median(r[2]['load_seconds'] for r in runs):.2f} s"))
        rows.append(("decode, context 2048, 64 tokens (median of 5; lowest, highest)",
                     f"{statistics.median(decode):.1f} tok/s ({min(decode):.1f}, {max(decode):.1f})"))
        long = [run(env, LONG, 1) for _ in range(1 if quick else 3)]
        rows.append(("prefill of a long prompt (median of 3)",
                     f"{statistics.median(r[2]['prompt_tokens_per_second'] for r in long):.0f} tok/s"))
        rows.append(("peak memory of run", f"{max(r[1] for r in runs + long):.0f} MiB, of which f32 weights {134515008 * 4 / 2**20:.0f} MiB"))
    demo = [] if quick else [child([str(pathlib.Path(__file__).resolve().parents[2] / "build.sh"), "demo"], dict(os.environ))[0] for _ in range(3)]
    if demo:
        rows.append(("./build.sh demo, second time (median of the 2 after the first)", f"{statistics.median(demo[1:]):.1f} s"))
    print("| what | measured |\n| --- | --- |")
    for what, value in rows:
        print(f"| {what} | {value} |")
    if "--save" in sys.argv:
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
        import record
        record.save(sys.argv[sys.argv.index("--save") + 1], "./build.sh measure", [(what, "mlxcel", "value", value) for what, value in rows[1:]], rows="figure")


main()
