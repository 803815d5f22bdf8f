#!/usr/bin/env python3
"""Writes tests/goldens/config_defaults.json: the value Hugging Face uses for a field that config.json lacks.

  config_defaults.py     needs transformers

For each architecture and field, Hugging Face's class reads the fixture's config without the field and gives its default.
tests/models/config_defaults_test.c reads the config without the field and with that default, and expects the same model.

Also writes tests/goldens/text_defaults.json: the fields that a text_config of a multimodal directory has if it is empty.
tests/models/multimodal_test.c compares them with the table of models/import/hf_text.c.
"""
import json
import pathlib

import transformers

TESTS = pathlib.Path(__file__).resolve().parent.parent
# Fields without effect on the network, and required sizes.
LEFT_OUT = {"architectures", "bos_token_id", "dtype", "eos_token_id", "initializer_range", "model_type", "pad_token_id", "transformers_version",
            "use_cache", "vocab_size", "num_hidden_layers", "hidden_size", "n_embd", "n_layer"}
UNKNOWN = object()


TEXT_TYPES = ["gemma3_text", "gemma4_text", "gemma4_unified_text", "gemma3n_text", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_5_text", "qwen3_5_moe_text",
              "muse_glimmer_text", "llama", "mistral", "qwen2"]


def write_text_defaults():
    lines = []
    for kind in TEXT_TYPES:
        fields = transformers.AutoConfig.for_model(kind).to_dict()
        fields = {k: v for k, v in fields.items() if isinstance(v, (int, float, dict)) and not isinstance(v, bool)}
        lines.append(f' "{kind}": {json.dumps(fields)}')
    text = '{"transformers": "%s", "types": {\n%s\n}}\n' % (transformers.__version__, ",\n".join(lines))
    (TESTS / "goldens" / "text_defaults.json").write_text(text)


def plain(value):
    """|value| as JSON without Infinity, as transformers stores it."""
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return {"__float__": "Infinity"} if value == float("inf") else value


def default_of(config, key):
    less = {k: v for k, v in config.items() if k not in (key, "model_type")}
    try:
        return transformers.AutoConfig.for_model(config["model_type"], **less).to_dict().get(key, UNKNOWN)
    except Exception:  # the class may reject a config without this field
        return UNKNOWN


def main():
    write_text_defaults()
    goldens = {}
    for path in sorted((TESTS / "fixtures").glob("*/config.json")):
        if not (path.parent / "model.safetensors").exists():
            continue
        config = json.loads(path.read_text())
        if "vision_config" in config:
            continue
        found = {k: default_of(config, k) for k in config if k not in LEFT_OUT and "drop" not in k}
        goldens[path.parent.name] = {k: plain(v) for k, v in found.items() if v is not UNKNOWN}
    lines = [f' "{name}": {json.dumps(fields)}' for name, fields in goldens.items() if fields]
    text = '{"transformers": "%s", "fixtures": {\n%s\n}}\n' % (transformers.__version__, ",\n".join(lines))
    (TESTS / "goldens" / "config_defaults.json").write_text(text)


if __name__ == "__main__":
    main()
