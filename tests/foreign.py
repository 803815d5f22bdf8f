#!/usr/bin/env python3
"""Runs a portable bundle with the aarch64 or Windows build of mlxcel, and compares its tokens with Hugging Face's.

    tests/foreign.py aarch64|windows BUILD MODELS [--all | --serve]

BUILD/bin/mlxcel compiles the model. BUILD/MACHINE/bin/mlxcel (./build.sh --target MACHINE) runs it under qemu or Wine: 8 tokens of
one prompt, and the server (tests/foreign_serve.py); with --all, 48 tokens of every prompt and the platform's other tests; with --serve,
only the server. Exit status 77 (skipped): something is missing;
the output names it.
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

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import foreign_serve  # noqa: E402

GOLDENS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "goldens", "smollm2-135m-instruct.hf-fp32.json")
KERNEL_CASES = ["codes_dequantize_to_the_reference_values", "float_weights_match_the_generic_path_for_any_thread_count",
                "every_cpu_level_of_this_machine_matches_the_generic_path", "quantized_weights_match_dequantized_weights",
                "sequences_in_one_call_do_not_affect_each_other"]


def skip_unless(condition, reason):
    if not condition:
        print("skipped:", reason)
        sys.exit(77)


class Aarch64:
    program, level = "mlxcel", "cpu level: aarch64 (of "

    def __init__(self, build):
        self.folder = os.path.join(build, "aarch64")
        self.launcher = [] if os.uname().machine == "aarch64" else [os.path.join(build, "tools", "qemu-aarch64")]
        self.environment = None

    def path(self, path):
        return path

    def run_platform_tests(self, bundle):
        for case in KERNEL_CASES:
            start = time.monotonic()
            subprocess.run(self.launcher + [os.path.join(self.folder, "tests", "cpu_kernels_test"), case], check=True)
            print(f"{case}: {time.monotonic() - start:.1f} s", flush=True)


class Windows:
    program, level = "mlxcel.exe", "cpu level: x86-64"

    def __init__(self, build):
        self.folder = os.path.join(build, "windows")
        self.launcher = [shutil.which("wine64") or "wine"]
        # A separate Wine prefix, in UTF-8, without Wine's own messages, and with Windows' default cache folder.
        inherited = {name: value for name, value in os.environ.items() if name != "MLXCEL_CACHE"}
        self.environment = {**inherited, "WINEPREFIX": os.path.join(self.folder, "wine"), "WINEDEBUG": "-all", "LC_ALL": "C.UTF-8", "MLXCEL_CONFIG": "NUL",
                            "MLXCEL_ALLOW_UNSIGNED": "1"}  # the cache of that prefix has no record of the bundle

    def path(self, path):
        return "Z:" + path.replace("/", "\\")

    def run_platform_tests(self, bundle):
        doctor = self.run(["doctor"])
        for part in "OK    cpu", "nvcuda.dll", "/AppData/Local/mlxcel/cache":
            if part not in doctor.stdout + doctor.stderr:
                sys.exit(f"doctor does not print {part!r}: {doctor.stdout}{doctor.stderr}")
        print("doctor: passed", flush=True)
        with tempfile.TemporaryDirectory() as temporary:  # a name outside every code page, and a path over 260 characters
            folder = os.path.join(temporary, "модель-模型", *["long" * 15] * 5)
            shutil.copytree(bundle, os.path.join(folder, "model.mlxb"))
            flags = ["-p", "Grüße, 世界", "-n", "4", "--temp", "0", "--json"]
            answer = json.loads(self.run(["run", "-m", self.path(os.path.join(folder, "model.mlxb"))] + flags).stdout)
            native = [os.path.join(self.folder, "..", "bin", "mlxcel"), "run", "-m", bundle] + flags
            expected = json.loads(subprocess.run(native, capture_output=True, encoding="utf-8", check=True).stdout)
            if any(answer[key] != expected[key] for key in ("prompt_ids", "output_ids", "text")):
                sys.exit(f"output is {answer}, expected {expected}")
        print("long paths, and paths and prompts in UTF-8: passed", flush=True)
        self.compile_there(bundle)
        chat = ["run", "-m", self.path(bundle), "--temp", "0", "-n", "12"]
        answer = self.run(chat, input="What is a big cat?\n").stdout
        if not answer.strip():
            sys.exit("chat through a pipe printed no answer")
        print("chat through a pipe: passed", flush=True)
        self.chat_at_a_console(chat, answer)

    def compile_there(self, bundle):
        """Compiles with the Windows iree-compile, if ./build.sh test-windows downloaded it. mlxcel finds it beside its own binary."""
        wheel = os.path.join(self.folder, "..", "deps", "windows", "iree-base-compiler", "iree", "compiler", "_mlir_libs")
        if not os.path.exists(wheel):
            return print("compile on Windows: skipped, no iree-compile.exe")
        with tempfile.TemporaryDirectory() as temporary:
            shutil.copy(os.path.join(self.folder, "bin", self.program), temporary)  # a copy: through a link, mlxcel would search beside the original
            for name in "iree-compile.exe", "iree-lld.exe", "IREECompiler.dll":
                shutil.copy(os.path.join(wheel, name), temporary)
            made = os.path.join(temporary, "made.mlxb")
            self.run(["compile", self.path(self.model), "--target", "cpu:x86-64-v3", "-c", "256", "-o", self.path(made)], folder=temporary)
            flags = ["-p", "The capital of France is", "-n", "16", "--temp", "0", "--json"]
            both = [json.loads(self.run(["run", "-m", self.path(path)] + flags).stdout)["output_ids"] for path in (made, bundle)]
            if both[0] != both[1]:
                sys.exit(f"compiled on Windows, the tokens are {both[0]}, expected {both[1]}")
        print("compile on Windows: passed, same tokens", flush=True)

    def chat_at_a_console(self, chat, answer):
        """Types a question into Wine's console, using arrow keys, and waits for the same answer."""
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
                    sys.exit(f"the console does not show {text!r}, only {seen!r}")
                # Wine may draw blanks as cursor moves, so blanks are ignored.
                seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\s", "", os.read(terminal, 65536).decode("utf-8", "replace"))

        for keys, shown in ("", "Ctrl-Dendsthechat"), ("What is a cat?", "Whatisacat?"), ("\x1b[D" * 4 + "big ", "Whatisabigcat?"), ("\r", re.sub(r"\s", "", answer)[:30]):
            os.write(terminal, keys.encode())
            wait_for(shown)
        os.write(terminal, b"\x03/bye\r")
        if os.waitpid(pid, 0)[1]:
            sys.exit("the chat exited with an error")
        print("chat at a console: passed", flush=True)

    def run(self, arguments, folder=None, **more):
        done = subprocess.run(self.launcher + [os.path.join(folder or os.path.join(self.folder, "bin"), self.program)] + arguments, capture_output=True, encoding="utf-8",
                              env=self.environment, **more)
        if done.returncode and arguments != ["doctor"]:  # doctor fails without a GPU or a compiler
            sys.exit(f"{arguments}: exit status {done.returncode}: {done.stderr}")
        return done


def run_prompt(machine, runner, bundle, result, count):
    command = runner + ["run", "--raw", "--no-escape", "-m", machine.path(bundle), "-p", result["rendered"], "--temp", "0", "--ignore-eos", "-n", str(count), "--json", "-v"]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=machine.environment)
    if done.returncode:
        sys.exit(f"exit status {done.returncode}: {done.stderr}")
    if machine.level not in done.stderr:
        sys.exit(f"stderr does not contain {machine.level!r}: {done.stderr}")
    output = json.loads(done.stdout)
    for key, expected in ("prompt_ids", result["prompt_ids"]), ("output_ids", result["output_ids"][:count]):
        if output[key] != expected:
            sys.exit(f"{key} of {result['prompt']!r} are {output[key]}, expected {expected}")
    print(f"{len(output['prompt_ids'])} prompt tokens, {count} of {count} generated tokens equal, in {time.monotonic() - start:.1f} s: {result['prompt']!r}", flush=True)


def main():
    name, build, models = sys.argv[1:4]
    build = os.path.abspath(build)
    model = os.path.join(models, "SmolLM2-135M-Instruct.Q4_1.gguf")
    machine = {"aarch64": Aarch64, "windows": Windows}[name](build)
    machine.model = os.path.abspath(model)
    runner = machine.launcher + [os.path.join(machine.folder, "bin", machine.program)]
    skip_unless(not machine.launcher or shutil.which(machine.launcher[0]), f"{(machine.launcher or [''])[0]} is not installed")
    skip_unless(os.path.exists(runner[-1]), f"no build for {name}: run ./build.sh test-{name}")
    skip_unless(os.path.exists(model), f"{model} does not exist")
    everything = "--all" in sys.argv
    foreign_serve.run(runner, machine.path, machine.environment, os.path.join(build, "bin", "mlxcel"))
    if "--serve" in sys.argv:
        return
    with tempfile.TemporaryDirectory() as temporary:
        bundle = os.path.join(temporary, "model.mlxb")
        subprocess.run([os.path.join(build, "bin", "mlxcel"), "compile", model, "--target", "cpu:portable", "-c", "256", "-o", bundle], check=True)
        with open(GOLDENS) as file:
            results = json.load(file)["results"]
        for result in results if everything else results[:1]:
            run_prompt(machine, runner, bundle, result, 48 if everything else 8)
        if everything:
            machine.run_platform_tests(bundle)


main()
