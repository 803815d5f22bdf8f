#!/usr/bin/env python3
"""Writes fixtures as GGUF files in the way of llama.cpp's converter. tests/models/arch_test.c compares them with the directories.

  make_gguf.py [NAME...]    writes tests/fixtures/NAME.gguf from tests/fixtures/NAME; needs numpy and gguf

The names come from the gguf package. Row orders and fields follow the converter's classes GraniteMoeModel,
GptOssModel, MiniCPMModel, InternLM2Model, BaichuanModel and ExaoneModel. The files have no tokenizer: tests read them but do not run them.
"""
import json
import pathlib
import shutil
import struct
import sys

import gguf
import numpy as np

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
NAMES = ("granitemoe", "gpt_oss-mxfp4", "minicpm", "internlm2", "baichuan", "exaone")
# The file rounds the factors of a llama3 rope. tests/models/gguf_arch_test.c allows this for its pair.
PAIRS = {"exaone": FIXTURES / "gguf" / "exaone-llama3"}
ARCHS = {"internlm2": gguf.MODEL_ARCH.INTERNLM2, "baichuan": gguf.MODEL_ARCH.BAICHUAN, "exaone": gguf.MODEL_ARCH.EXAONE,
         "granitemoe": gguf.MODEL_ARCH.GRANITE_MOE, "gpt_oss": gguf.MODEL_ARCH.GPT_OSS, "minicpm": gguf.MODEL_ARCH.MINICPM}


def read_safetensors(path):
    """BF16 tensors as f32, U8 tensors unchanged."""
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, t in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            start, end = (8 + size + offset for offset in t["data_offsets"])
            kind = {"BF16": "<u2", "U8": "u1"}[t["dtype"]]
            x = np.frombuffer(data[start:end], kind).reshape(t["shape"])
            tensors[name] = x if kind == "u1" else (x.astype(np.uint32) << 16).view(np.float32)
    return tensors


def permute(x, heads):
    """Interleaves the two rope halves of each head."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def mxfp4_blocks(blocks, scales):
    """[experts, rows, bytes]: per block a scale and 16 bytes; byte i holds elements i and i + 16."""
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    packed = codes[..., :16] | codes[..., 16:] << 4
    return np.concatenate([scales[..., None], packed], -1).reshape(*blocks.shape[:2], -1)


def granitemoe(c, tensors):
    for name, x in tensors.items():
        for part, heads in (("q_proj", c["num_attention_heads"]), ("k_proj", c["num_key_value_heads"])):
            if part in name:
                x = permute(x, heads)
        if name.endswith("input_linear.weight"):
            layer = name.split(".")[2]
            gate, up = np.split(x, 2, -2)
            yield f"blk.{layer}.ffn_gate_exps.weight", gate
            yield f"blk.{layer}.ffn_up_exps.weight", up
        else:
            yield name, x


def gpt_oss(c, tensors):
    for name, x in tensors.items():
        if name.endswith("_scales"):
            continue
        if name.endswith("sinks"):
            yield name + ".weight", x
        elif "experts." not in name:
            yield name, x
        else:
            if name.endswith("_blocks"):
                x = mxfp4_blocks(x, tensors[name.replace("_blocks", "_scales")])
            name = name.replace("_bias", ".bias").replace("_blocks", ".weight")
            if "gate_up" in name:
                yield name.replace("gate_up", "gate"), x[:, ::2]
                yield name.replace("gate_up", "up"), x[:, 1::2]
            else:
                yield name, x


def minicpm(c, tensors):
    for name, x in tensors.items():
        for part, heads in (("q_proj.weight", c["num_attention_heads"]), ("k_proj.weight", c["num_key_value_heads"])):
            if part in name:  # and not their biases
                x = permute(x, heads)
        yield name, x


def permuted_parts(c, name, parts):
    """q, k and v of a fused tensor; the converter permutes q and k."""
    heads = c["num_attention_heads"], c["num_key_value_heads"], None
    for part, x, count in zip("qkv", parts, heads):
        x = x.reshape(-1, x.shape[-1])
        yield f"blk.{name.split('.')[2]}.attn_{part}.weight", permute(x, count) if count else x


def internlm2(c, tensors):
    kv_heads = c["num_key_value_heads"]
    shared = c["num_attention_heads"] // kv_heads
    for name, x in tensors.items():
        if "wqkv" in name:
            x = x.reshape(kv_heads, shared + 2, -1, x.shape[-1])
            yield from permuted_parts(c, name, (x[:, :shared], x[:, -2], x[:, -1]))
        else:
            yield name, x


def baichuan(c, tensors):
    for name, x in tensors.items():
        if "W_pack" in name:
            yield from permuted_parts(c, name, np.split(x, 3))
        else:
            yield name, x


def exaone(c, tensors):
    yield from tensors.items()
    r, dim = c["rope_scaling"], c["hidden_size"] // c["num_attention_heads"]
    waves = 2 * np.pi * np.float32(c["rope_theta"]) ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))
    original, low, high = r["original_max_position_embeddings"], r["low_freq_factor"], r["high_freq_factor"]
    smooth = np.clip((original / waves - low) / (high - low), 0, 1)
    yield "rope_freqs.weight", (1 / ((1 - smooth) / r["factor"] + smooth)).astype(np.float32)


def write_fields(w, c):
    rope = c.get("rope_parameters") or {}
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(rope.get("rope_theta", c.get("rope_theta")))
    if "head_dim" in c:
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
    if "num_local_experts" in c:
        w.add_expert_count(c["num_local_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
    if c["model_type"] == "granitemoe":
        w.add_attention_scale(c["attention_multiplier"])
        w.add_embedding_scale(c["embedding_multiplier"])
        w.add_residual_scale(c["residual_multiplier"])
        w.add_logit_scale(c["logits_scaling"])
    elif c["model_type"] == "minicpm":
        w.add_embedding_scale(float(c["scale_emb"]))
        w.add_residual_scale(c["scale_depth"] / c["num_hidden_layers"] ** 0.5)
        w.add_logit_scale(c["hidden_size"] / c["dim_model_base"])
    elif c["model_type"] in ("internlm2", "baichuan", "exaone"):
        w.add_rope_dimension_count(c["hidden_size"] // c["num_attention_heads"])
    else:
        w.add_sliding_window(c["sliding_window"])
        w.add_expert_feed_forward_length(c["intermediate_size"])
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def write(name):
    c = json.loads((FIXTURES / name / "config.json").read_text())
    kind, arch = c["model_type"], ARCHS[c["model_type"]]
    names = gguf.get_tensor_name_map(arch, c["num_hidden_layers"])
    path = FIXTURES / f"{name}.gguf"
    if name in PAIRS:
        path = PAIRS[name].with_suffix(".gguf")
        shutil.copytree(FIXTURES / name, PAIRS[name], dirs_exist_ok=True)
    w = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    write_fields(w, c)
    for hf_name, x in globals()[kind](c, read_safetensors(FIXTURES / name / "model.safetensors")):
        gguf_name = hf_name if hf_name.startswith(("blk.", "rope_")) else names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        if x.dtype == np.uint8:
            w.add_tensor(gguf_name, np.ascontiguousarray(x), raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        elif x.ndim == 1:
            w.add_tensor(gguf_name, x)
        else:
            w.add_tensor(gguf_name, gguf.quants.quantize(np.ascontiguousarray(x), gguf.GGMLQuantizationType.BF16),
                         raw_dtype=gguf.GGMLQuantizationType.BF16)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    assert path.stat().st_size < 300_000
    print(path, path.stat().st_size)


if __name__ == "__main__":
    for argument in sys.argv[1:] or NAMES:
        write(argument)
