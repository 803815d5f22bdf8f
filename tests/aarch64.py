#!/usr/bin/env python3
"""A model compiled here for every kind of CPU, run by mlxcel for aarch64 under an emulator: the tokens of Hugging Face.

    tests/aarch64.py BUILD MODELS [--all]

BUILD/bin/mlxcel compiles, BUILD/aarch64/bin/mlxcel (./build.sh --target aarch64) runs: 8 tokens of one prompt; with --all 48 of each, and
what cpu_kernels_test promises. Exit status 77: something is not here, and which.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

GOLDENS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "goldens", "smollm2-135m-instruct.hf-fp32.json")
KERNEL_CASES = ["codes_are_what_the_types_widen_to", "plain_numbers_agree_with_the_plain_lowering_for_any_threads",
                "the_object_for_every_level_of_this_machine_agrees", "packed_weights_compute_what_widened_ones_do",
                "rows_share_a_call_and_do_not_disturb_each_other"]


def skip_unless(there, what):
    if not there:
        print("skipped:", what)
        sys.exit(77)


def run_prompt(runner, bundle, result, count):
    command = runner + ["run", "-m", bundle, "-p", result["rendered"], "--temp", "0", "--ignore-eos", "-n", str(count), "--json", "-v"]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"exit status {done.returncode}: {done.stderr}")
    if "cpu level: aarch64 (of " not in done.stderr:
        sys.exit(f"the level is not said to be aarch64: {done.stderr}")
    said = json.loads(done.stdout)
    for key, want in ("prompt_ids", result["prompt_ids"]), ("output_ids", result["output_ids"][:count]):
        if said[key] != want:
            sys.exit(f"{key} of {result['prompt']!r} are {said[key]}, expected {want}")
    print(f"{len(said['prompt_ids'])} tokens read and {count} of {count} equal in {time.monotonic() - start:.1f} s: {result['prompt']!r}", flush=True)


def main():
    build, models = sys.argv[1:3]
    model = os.path.join(models, "SmolLM2-135M-Instruct.Q4_1.gguf")
    emulator = [] if os.uname().machine == "aarch64" else ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
    folder = os.path.join(build, "aarch64")
    skip_unless(not emulator or shutil.which(emulator[0]), "qemu-aarch64 is not installed")
    skip_unless(os.path.exists(os.path.join(folder, "bin", "mlxcel")), "there is no build for aarch64: ./build.sh test-aarch64 makes one")
    skip_unless(os.path.exists(model), f"{model} is not here")
    everything = "--all" in sys.argv
    runner = emulator + [os.path.join(folder, "bin", "mlxcel")]
    with tempfile.TemporaryDirectory() as temporary:
        bundle = os.path.join(temporary, "model.mlxb")
        subprocess.run([os.path.join(build, "bin", "mlxcel"), "compile", model, "--target", "cpu:portable", "-c", "256", "-o", bundle], check=True)
        with open(GOLDENS) as file:
            results = json.load(file)["results"]
        for result in results if everything else results[:1]:
            run_prompt(runner, bundle, result, 48 if everything else 8)
    for case in KERNEL_CASES if everything else []:
        start = time.monotonic()
        subprocess.run(emulator + [os.path.join(folder, "tests", "cpu_kernels_test"), case], check=True)
        print(f"{case}: {time.monotonic() - start:.1f} s", flush=True)


main()
