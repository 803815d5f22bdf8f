#!/usr/bin/env python3
"""A model compiled here for every kind of CPU, run by an mlxcel for another machine: the tokens of Hugging Face.

    tests/foreign.py aarch64|windows BUILD MODELS [--all]

BUILD/bin/mlxcel compiles; BUILD/MACHINE/bin/mlxcel (./build.sh --target MACHINE) runs under qemu or Wine: 8 tokens of one prompt; with --all 48 of
each, and what else is promised there. Exit status 77: something is not here, and which.
"""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time

GOLDENS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "goldens", "smollm2-135m-instruct.hf-fp32.json")
KERNEL_CASES = ["codes_dequantize_to_the_reference_values", "float_weights_match_the_generic_path_for_any_thread_count",
                "every_cpu_level_of_this_machine_matches_the_generic_path", "quantized_weights_match_dequantized_weights",
                "sequences_in_one_call_do_not_affect_each_other"]


def skip_unless(there, what):
    if not there:
        print("skipped:", what)
        sys.exit(77)


class Aarch64:
    program, level = "mlxcel", "cpu level: aarch64 (of "

    def __init__(self, build):
        self.folder = os.path.join(build, "aarch64")
        self.launcher = [] if os.uname().machine == "aarch64" else [os.path.join(build, "tools", "qemu-aarch64")]
        self.environment = None

    def path(self, path):
        return path

    def more(self, bundle):
        for case in KERNEL_CASES:
            start = time.monotonic()
            subprocess.run(self.launcher + [os.path.join(self.folder, "tests", "cpu_kernels_test"), case], check=True)
            print(f"{case}: {time.monotonic() - start:.1f} s", flush=True)


class Windows:
    program, level = "mlxcel.exe", "cpu level: x86-64"

    def __init__(self, build):
        self.folder = os.path.join(build, "windows")
        self.launcher = [shutil.which("wine64") or "wine"]
        # A Windows of the tests' own, in UTF-8, that says nothing itself, with the cache where it is there.
        inherited = {name: value for name, value in os.environ.items() if name != "MLXCEL_CACHE"}
        self.environment = {**inherited, "WINEPREFIX": os.path.join(self.folder, "wine"), "WINEDEBUG": "-all", "LC_ALL": "C.UTF-8", "MLXCEL_CONFIG": "NUL",
                            "MLXCEL_ALLOW_UNSIGNED": "1"}  # what was made here was not made there

    def path(self, path):
        return "Z:" + path.replace("/", "\\")

    def more(self, bundle):
        doctor = self.run(["doctor"])
        for part in "OK    cpu", "nvcuda.dll", "/AppData/Local/mlxcel/cache":
            if part not in doctor.stdout + doctor.stderr:
                sys.exit(f"doctor does not say {part!r}: {doctor.stdout}{doctor.stderr}")
        print("doctor answers", flush=True)
        with tempfile.TemporaryDirectory() as temporary:  # a name that no code page has, and a path longer than 260 characters
            folder = os.path.join(temporary, "модель-模型", *["long" * 15] * 5)
            shutil.copytree(bundle, os.path.join(folder, "model.mlxb"))
            flags = ["-p", "Grüße, 世界", "-n", "4", "--temp", "0", "--json"]
            answer = json.loads(self.run(["run", "-m", self.path(os.path.join(folder, "model.mlxb"))] + flags).stdout)
            native = [os.path.join(self.folder, "..", "bin", "mlxcel"), "run", "-m", bundle] + flags
            wanted = json.loads(subprocess.run(native, capture_output=True, encoding="utf-8", check=True).stdout)
            if any(answer[key] != wanted[key] for key in ("prompt_ids", "output_ids", "text")):
                sys.exit(f"here it is {wanted}, there {answer}")
        print("paths and prompts are UTF-8 and may be long", flush=True)
        self.compile_there(bundle)
        chat = ["run", "-m", self.path(bundle), "--temp", "0", "-n", "12"]
        answer = self.run(chat, input="What is a big cat?\n").stdout
        if not answer.strip():
            sys.exit("a turn of a chat by pipe says nothing")
        print("a turn of a chat by pipe answers", flush=True)
        self.chat_at_a_console(chat, answer)

    def compile_there(self, bundle):
        """With the compiler that a Windows has, where ./build.sh test-windows fetched it: beside the binary it needs no word."""
        wheel = os.path.join(self.folder, "..", "deps", "windows", "iree-base-compiler", "iree", "compiler", "_mlir_libs")
        if not os.path.exists(wheel):
            return print("not compiled there: no iree-compile.exe")
        with tempfile.TemporaryDirectory() as temporary:
            shutil.copy(os.path.join(self.folder, "bin", self.program), temporary)  # a link would lead a program to where it really lies
            for name in "iree-compile.exe", "iree-lld.exe", "IREECompiler.dll":
                shutil.copy(os.path.join(wheel, name), temporary)
            made = os.path.join(temporary, "made.mlxb")
            self.run(["compile", self.path(self.model), "--target", "cpu:x86-64-v3", "-c", "256", "-o", self.path(made)], folder=temporary)
            flags = ["-p", "The capital of France is", "-n", "16", "--temp", "0", "--json"]
            both = [json.loads(self.run(["run", "-m", self.path(path)] + flags).stdout)["output_ids"] for path in (made, bundle)]
            if both[0] != both[1]:
                sys.exit(f"compiled there it says {both[0]}, here {both[1]}")
        print("a model is compiled there, and says the same", flush=True)

    def chat_at_a_console(self, chat, answer):
        """Types into Wine's console, with an arrow key, and looks for the same answer on it."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.execvpe(self.launcher[0], self.launcher + [os.path.join(self.folder, "bin", self.program)] + chat, {**self.environment, "TERM": "xterm"})
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        seen = ""

        def wait_for(text):
            nonlocal seen
            end = time.monotonic() + 60
            while text not in seen:
                if time.monotonic() > end or not select.select([terminal], [], [], 60)[0]:
                    sys.exit(f"{text!r} does not come to the console, only {seen!r}")
                # Wine draws its own way; blanks are not told from jumps.
                seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\s", "", os.read(terminal, 65536).decode("utf-8", "replace"))

        for keys, shown in ("", "leaves"), ("What is a cat?", "Whatisacat?"), ("\x1b[D" * 4 + "big ", "Whatisabigcat?"), ("\r", re.sub(r"\s", "", answer)[:30]):
            os.write(terminal, keys.encode())
            wait_for(shown)
        os.write(terminal, b"\x03/bye\r")
        if os.waitpid(pid, 0)[1]:
            sys.exit("the chat does not end well")
        print("a chat at a console answers", flush=True)

    def run(self, arguments, folder=None, **more):
        done = subprocess.run(self.launcher + [os.path.join(folder or os.path.join(self.folder, "bin"), self.program)] + arguments, capture_output=True, encoding="utf-8",
                              env=self.environment, **more)
        if done.returncode and arguments != ["doctor"]:  # which is not content without a GPU or a compiler
            sys.exit(f"{arguments}: exit status {done.returncode}: {done.stderr}")
        return done


def run_prompt(machine, runner, bundle, result, count):
    command = runner + ["run", "-m", machine.path(bundle), "-p", result["rendered"], "--temp", "0", "--ignore-eos", "-n", str(count), "--json", "-v"]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=machine.environment)
    if done.returncode:
        sys.exit(f"exit status {done.returncode}: {done.stderr}")
    if machine.level not in done.stderr:
        sys.exit(f"{machine.level!r} is not said: {done.stderr}")
    said = json.loads(done.stdout)
    for key, want in ("prompt_ids", result["prompt_ids"]), ("output_ids", result["output_ids"][:count]):
        if said[key] != want:
            sys.exit(f"{key} of {result['prompt']!r} are {said[key]}, expected {want}")
    print(f"{len(said['prompt_ids'])} tokens read and {count} of {count} equal in {time.monotonic() - start:.1f} s: {result['prompt']!r}", flush=True)


def main():
    name, build, models = sys.argv[1:4]
    build = os.path.abspath(build)
    model = os.path.join(models, "SmolLM2-135M-Instruct.Q4_1.gguf")
    machine = {"aarch64": Aarch64, "windows": Windows}[name](build)
    machine.model = os.path.abspath(model)
    runner = machine.launcher + [os.path.join(machine.folder, "bin", machine.program)]
    skip_unless(not machine.launcher or shutil.which(machine.launcher[0]), f"{(machine.launcher or [''])[0]} is not installed")
    skip_unless(os.path.exists(runner[-1]), f"there is no build for {name}: ./build.sh test-{name} makes one")
    skip_unless(os.path.exists(model), f"{model} is not here")
    everything = "--all" in sys.argv
    with tempfile.TemporaryDirectory() as temporary:
        bundle = os.path.join(temporary, "model.mlxb")
        subprocess.run([os.path.join(build, "bin", "mlxcel"), "compile", model, "--target", "cpu:portable", "-c", "256", "-o", bundle], check=True)
        with open(GOLDENS) as file:
            results = json.load(file)["results"]
        for result in results if everything else results[:1]:
            run_prompt(machine, runner, bundle, result, 48 if everything else 8)
        if everything:
            machine.more(bundle)


main()
