#!/usr/bin/env python3
"""Writes models/README.md: the architectures, and the formats in which a test proves each of them.

  models_table.py     needs nothing; run it after make_fixtures.py and gguf_fixtures.py

A format counts as proven if the fixture of its test exists: the test runs every fixture it finds.
"""
import json
import pathlib
import re
import struct

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
HEAD = """# Architectures

Written by tests/parity/models_table.py from the files that the tests read.

| column | proven by | what holds |
| --- | --- | --- |
| Hugging Face | tests/arch_test.c | a tiny model with every feature switched on gives the same 48 tokens as Hugging Face in fp32, and logits within one in ten thousand, for prompts shorter and longer than a window and a prefill |
| GGUF | tests/gguf_arch_test.c | a file made with the gguf package gives the same module and the same weights, to the bit, as the Hugging Face directory it was made from |
| packed | tests/arch_packing_test.c | the fixtures' matrices packed as MLX, GPTQ and AWQ do widen to the same bits as when written out |
| defaults | tests/config_defaults_test.c | a field that config.json lacks is what Hugging Face's class takes it for, or is asked for by name |

`docs/formats.md` says what GGUF files do not store. Where transformers has no class of a model, the reference is a numpy forward of our own,
tests/parity/numpy_models.py, written from the modeling file that the model publishes.

| model_type | file | Hugging Face: fixtures | GGUF name: fixtures | packed: MLX, GPTQ, AWQ | defaults | transformers |
| --- | --- | --- | --- | --- | --- | --- |"""


def type_of(folder):
    return json.loads((folder / "config.json").read_text())["model_type"]


def reference_of(golden):
    return golden["transformers"] if "transformers" in golden else f"none: numpy {golden['numpy']}"


def hugging_face():
    """Fixtures with goldens, by model_type: (name, reference)."""
    found = {}
    for path in sorted((ROOT / "tests" / "goldens").glob("*.json")):
        golden = json.loads(path.read_text())
        folder = FIXTURES / path.stem
        if (folder / "config.json").exists() and "last_logits" in golden["results"][0]:
            found.setdefault(type_of(folder), []).append((path.stem, reference_of(golden)))
    return found


def architecture(path):
    """general.architecture, which the gguf package writes first."""
    data = path.read_bytes()
    length, = struct.unpack_from("<Q", data, 24)
    assert data[32:32 + length] == b"general.architecture", path
    size, = struct.unpack_from("<Q", data, 36 + length)
    return data[44 + length:44 + length + size].decode()


def gguf():
    """Pairs by model_type: (GGUF's name of the architecture, name)."""
    found = {}
    for path in sorted([*(FIXTURES / "gguf").glob("*.gguf"), *FIXTURES.glob("*.gguf")]):
        if path.with_suffix("").is_dir():
            found.setdefault(type_of(path.with_suffix("")), []).append((architecture(path), path.stem))
    return found


def packed(text, fixtures):
    """What of the fixtures tests/arch_packing_test.c packs: the matrices whose rows are stored in their order, and MLX's stacks."""
    if not any((FIXTURES / name / "model.safetensors").exists() for name, _ in fixtures):
        return "nothing yet"
    if "MXFP4" in text:
        return "all; experts: MXFP4 alone"
    if "MLX_ROWS_ARE_COLUMNS" in text:
        return "embeddings alone"
    if ".hf_order" in text:
        return "all but q, k and v"
    return "all; experts: none" if "MLX_EXPERTS" in text and ".hf_stacked" not in text else "all"


def main():
    tokens, files = hugging_face(), gguf()
    defaults = json.loads((ROOT / "tests" / "goldens" / "config_defaults.json").read_text())["fixtures"]
    lines = [HEAD]
    for path in sorted((ROOT / "models").glob("*.c")):
        text = path.read_text()
        types = re.search(r"char \*const " + path.stem + r"_types\[\] = \{(.*?)\}", text).group(1)
        for kind in re.findall(r'"(.*?)"', types):
            tests, pairs = tokens.get(kind, []), files.get(kind, [])
            archs = ", ".join(sorted({arch for arch, _ in pairs}))
            lines.append(" | ".join([f"| {kind}", path.name, ", ".join(t for t, _ in tests) or "nothing yet",
                                     f"{archs}: {', '.join(n for _, n in pairs)}" if pairs else "nothing yet", packed(text, tests),
                                     "yes" if any(t in defaults for t, _ in tests) else "nothing yet",
                                     (", ".join(sorted({v for _, v in tests})) or "-") + " |"]))
    (ROOT / "models" / "README.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
