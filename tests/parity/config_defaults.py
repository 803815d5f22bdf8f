#!/usr/bin/env python3
"""Writes tests/goldens/config_defaults.json: the value Hugging Face uses for a field that config.json lacks.

  config_defaults.py     needs transformers

For each architecture and field, Hugging Face's class reads the fixture's config without the field and gives its default.
tests/config_defaults_test.c reads the config without the field and with that default, and expects the same model.
"""
import json
import pathlib

import transformers

TESTS = pathlib.Path(__file__).resolve().parent.parent
# Fields without effect on the network, and required sizes.
LEFT_OUT = {"architectures", "bos_token_id", "dtype", "eos_token_id", "initializer_range", "model_type", "pad_token_id", "transformers_version",
            "use_cache", "vocab_size", "num_hidden_layers", "hidden_size", "n_embd", "n_layer"}
UNKNOWN = object()


def default_of(config, key):
    less = {k: v for k, v in config.items() if k not in (key, "model_type")}
    try:
        return transformers.AutoConfig.for_model(config["model_type"], **less).to_dict().get(key, UNKNOWN)
    except Exception:  # the class may reject a config without this field
        return UNKNOWN


def main():
    goldens = {}
    for path in sorted((TESTS / "fixtures").glob("*/config.json")):
        if not (path.parent / "model.safetensors").exists():
            continue
        config = json.loads(path.read_text())
        found = {k: default_of(config, k) for k in config if k not in LEFT_OUT and "drop" not in k}
        goldens[path.parent.name] = {k: v for k, v in found.items() if v is not UNKNOWN}
    lines = [f' "{name}": {json.dumps(fields)}' for name, fields in goldens.items() if fields]
    text = '{"transformers": "%s", "fixtures": {\n%s\n}}\n' % (transformers.__version__, ",\n".join(lines))
    (TESTS / "goldens" / "config_defaults.json").write_text(text)


if __name__ == "__main__":
    main()
