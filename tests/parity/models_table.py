#!/usr/bin/env python3
"""Writes models/README.md: which architectures there are, and for which of them tests/arch_test.c holds us to Hugging Face.

  models_table.py     needs nothing; run it after make_fixtures.py

A model_type counts as proven when there is a fixture of it with goldens: the test runs every one that is there.
"""
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def names(text, list_name):
    found = re.search(r"char \*const " + list_name + r"\[\] = \{(.*?)\}", text)
    return re.findall(r'"(.*?)"', found.group(1)) if found else []


def reference_of(golden):
    return f"transformers {golden['transformers']}" if "transformers" in golden else f"our numpy forward, numpy {golden['numpy']}"


def proven():
    by_type = {}
    for path in sorted((ROOT / "tests" / "goldens").glob("*.json")):
        config = ROOT / "tests" / "fixtures" / path.stem / "config.json"
        golden = json.loads(path.read_text())
        if config.exists() and "last_logits" in golden["results"][0]:
            by_type.setdefault(json.loads(config.read_text())["model_type"], []).append((path.stem, reference_of(golden)))
    return by_type


def main():
    fixtures = proven()
    lines = ["# Architectures", "", "Written by tests/parity/models_table.py. Proven: tiny models with every feature switched on give the same 48 tokens as",
             "Hugging Face in fp32, and logits within one in ten thousand, for prompts shorter and longer than a window and a prefill. Where",
             "transformers has no class of a model, the reference is a numpy forward of our own, tests/parity/numpy_models.py, written from the",
             "modeling file the model publishes. GGUF files are read under the name given; of those a test runs llama, and holds granitemoe,",
             "gpt-oss and minicpm, written as llama.cpp's converter does (tests/parity/make_gguf.py), to the same network and weights.", "",
             "| model_type | file | GGUF | proven by the fixtures | reference |", "| --- | --- | --- | --- | --- |"]
    for path in sorted((ROOT / "models").glob("*.c")):
        text = path.read_text()
        stem = path.stem
        gguf = names(text, stem + "_gguf_types") if "_gguf_types[]" in text else names(text, stem + "_types")
        for kind in names(text, stem + "_types"):
            tests = fixtures.get(kind, [])
            lines.append(f"| {kind} | {path.name} | {', '.join(gguf) or '-'} | {', '.join(t for t, _ in tests) or 'nothing yet'} | "
                         f"{', '.join(sorted({v for _, v in tests})) or '-'} |")
    (ROOT / "models" / "README.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
