#!/usr/bin/env python3
"""Runs `show` and `compile` on every model under tests/fixtures with a binary that is built with AddressSanitizer and UBSan.

  sanitized.py BINARY [NAME...]

./build.sh test --all builds BINARY. Without it the test is skipped (exit status 77). NAME: only fixtures whose path has it. A model is a directory with config.json
and weights, or a GGUF file, in any folder; a fixture that no rule below finds fails the test. As many fixtures run at a time as there are CPUs. iree-compile, which
has no sanitizers, runs once; a script gives its module to all other fixtures.
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

FIXTURES = pathlib.Path(__file__).resolve().parent / "fixtures"
TOKENIZER = FIXTURES / "tiny-llama" / "tokenizer.json"
NO_MODELS = ("minisign", "tls", "wide")  # folders without weights
FEWEST = 290


def find_fixtures():
    """The models, and the folders of FIXTURES in which there is none although they should have some."""
    folders = {path.parent for path in FIXTURES.rglob("*.safetensors") if (path.parent / "config.json").exists()}
    directories = sorted(folder for folder in folders if not (folder.parent / "modules.json").exists())  # those are layers of a model
    fixtures = directories + sorted(FIXTURES.rglob("*.gguf"))
    used = {path.relative_to(FIXTURES).parts[0] for path in fixtures}
    return fixtures, sorted(path.name for path in FIXTURES.iterdir() if path.is_dir() and path.name not in used and path.name not in NO_MODELS)


def prepare(fixture, folder):
    """The path to give to mlxcel: compiling needs a tokenizer, which most directories do not have."""
    if fixture.is_file() or (fixture / TOKENIZER.name).exists():
        return fixture
    model = folder / "model"
    model.mkdir()
    for path in fixture.iterdir():
        (model / path.name).symlink_to(path)
    (model / TOKENIZER.name).symlink_to(TOKENIZER)
    return model


def compile_command(fixture, model, folder):
    """Most GGUF files have no tokenizer, which a bundle needs: they are compiled as far as StableHLO."""
    if fixture.is_file() and b"tokenizer.ggml.model" not in fixture.read_bytes():
        return ["compile", model, "--emit", "stablehlo", "-o", folder / "out.mlir"]
    return ["compile", model, "--target", "cpu:sapphirerapids", "-o", folder / "out.mlxb"]


def make_compiler(binary, folder):
    """A script in place of iree-compile, which returns the module of tiny-llama."""
    module, script = folder / "real.vmfb", folder / "iree-compile"
    environment = dict(os.environ, MLXCEL_CACHE=str(folder / "cache"), MLXCEL_STATE=str(folder / "state"))
    subprocess.run([binary, "compile", FIXTURES / "tiny-llama", "--target", "cpu:sapphirerapids", "--emit", "vmfb", "-o", module], env=environment,
                   stdin=subprocess.DEVNULL, check=True)
    script.write_text("#!/bin/sh\n[ \"$1\" = --version ] && { echo 'IREE compiler version 3.13.0'; exit 0; }\n"
                      f"while [ $# -gt 0 ]; do [ \"$1\" = -o ] && out=$2; shift; done\nexec cat '{module}' > \"$out\"\n")
    script.chmod(0o755)
    return script


def check(binary, compiler, fixture):
    """The faults of one fixture as text."""
    faults = ""
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        model = prepare(fixture, folder)
        environment = dict(os.environ, MLXCEL_CACHE=str(folder / "cache"), MLXCEL_STATE=str(folder / "state"), MLXCEL_IREE_COMPILE=str(compiler))
        for command in (["show", model], compile_command(fixture, model, folder)):
            done = subprocess.run([binary, *command], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
            if done.returncode or "runtime error" in done.stderr or "Sanitizer" in done.stderr:
                faults += f"{command[0]} {fixture.relative_to(FIXTURES)}: exit status {done.returncode}\n{done.stderr[-3000:]}"
    return faults


def main():
    binary, names = sys.argv[1], sys.argv[2:]
    if not os.path.exists(binary):
        print(f"skipped: there is no {binary}: ./build.sh test --all builds it")
        return 77
    fixtures, unused = find_fixtures()
    if unused or len(fixtures) < FEWEST:
        print(f"{len(fixtures)} fixtures, at least {FEWEST} expected; folders without a model: {', '.join(unused) or 'none'}")
        return 1
    if names:
        fixtures = [path for path in fixtures if any(name in str(path.relative_to(FIXTURES)) for name in names)]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        compiler = make_compiler(binary, pathlib.Path(folder))
        faults = [text for text in pool.map(lambda fixture: check(binary, compiler, fixture), fixtures) if text]
    print("\n".join(faults))
    print(f"{len(fixtures) - len(faults)} passed, {len(faults)} failed, 0 skipped")
    return 1 if faults or not fixtures else 0


if __name__ == "__main__":
    sys.exit(main())
