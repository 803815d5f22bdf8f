#!/usr/bin/env python3
"""Makes the pairs of tests/runtime/recurrent_test.c with Mamba 1 or 2: a random model as a Hugging Face directory and as a GGUF file.

  mamba_pairs.py [NAME...]   writes tests/fixtures/hybrid/NAME/ and NAME.gguf; all of them without a NAME.
                             Needs torch, transformers and gguf.

Hugging Face's class writes the directory, the gguf package the file. Fields, names, row orders and changed values follow llama.cpp's converter of 2026
(conversion/mamba.py, jamba.py, falcon_h1.py, granite.py, nemotron.py). The script uses nothing of models/*.c. The tokenizer is that of
tests/fixtures/tiny-llama.gguf. tests/parity/make_fixtures.py checks the same networks, as directories, against Hugging Face.
"""
import pathlib
import re
import shutil
import sys

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from make_fixtures import make_model  # noqa: E402

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
A = gguf.MODEL_ARCH
LAYERS = ["linear_attention", "full_attention", "linear_attention"]
SCAN = dict(mamba_n_heads=8, mamba_n_groups=1, mamba_d_state=16)
FACTORS = dict(embedding_multiplier=2.0, lm_head_multiplier=0.5, key_multiplier=0.7, attention_in_multiplier=1.2, attention_out_multiplier=0.8,
               ssm_in_multiplier=1.3, ssm_out_multiplier=0.6, ssm_multipliers=[0.7, 1.2, 0.5, 1.4, 0.9], mlp_multipliers=[0.8, 1.3])
GRANITE = dict(num_hidden_layers=3, layer_types=LAYERS, position_embedding_type="nope", embedding_multiplier=6.0, attention_multiplier=0.25,
               residual_multiplier=0.4, logits_scaling=3.0)

# name: (architecture in GGUF, model_type, fields that differ from USUAL of make_fixtures.py). Only Falcon-H1 and Nemotron-H have groups, because Hugging
# Face's other classes normalize all groups together, and llama.cpp each group.
PAIRS = {
    "falcon_h1": (A.FALCON_H1, "falcon_h1", dict(
        FACTORS, head_dim=16, mamba_d_ssm=48, mamba_n_heads=6, mamba_d_head=8, mamba_n_groups=2, mamba_d_state=24, mamba_rms_norm=True,
        mamba_norm_before_gate=False)),
    "granitemoehybrid": (A.GRANITE_HYBRID, "granitemoehybrid", dict(
        GRANITE, **SCAN, num_local_experts=6, num_experts_per_tok=2, intermediate_size=16, shared_intermediate_size=24)),
    "granitemoehybrid-dense": (A.GRANITE_HYBRID, "granitemoehybrid", dict(
        GRANITE, **SCAN, num_local_experts=0, num_experts_per_tok=0, intermediate_size=48, shared_intermediate_size=48)),
    "bamba": (A.GRANITE_HYBRID, "bamba", dict(SCAN, num_hidden_layers=3, head_dim=16, attn_layer_indices=[1])),
    "mamba": (A.MAMBA, "mamba", dict(state_size=16, intermediate_size=64)),
    "jamba": (A.JAMBA, "jamba", dict(num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=4, expert_layer_offset=1,
                                     num_experts=6, num_experts_per_tok=2, mamba_d_state=16, mamba_dt_rank=8, intermediate_size=24)),
    "mamba2": (A.MAMBA2, "mamba2", dict(num_heads=8, head_dim=8, n_groups=1, state_size=16)),
    "nemotron_h": (A.NEMOTRON_H, "nemotron_h", dict(
        num_hidden_layers=None, layers_block_type=["linear_attention", "mlp", "full_attention", "mlp"], head_dim=16, mamba_num_heads=6,
        mamba_head_dim=8, n_groups=2, ssm_state_size=16)),
    "nemotron_h_moe": (A.NEMOTRON_H_MOE, "nemotron_h", dict(
        num_hidden_layers=None, layers_block_type=["linear_attention", "moe", "full_attention", "moe"], head_dim=16, mamba_num_heads=6,
        mamba_head_dim=8, n_groups=2, ssm_state_size=16, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=24, moe_latent_size=16, routed_scaling_factor=2.5)),
}


def layer_types(h):
    return h.get("layers_block_type") or h.get("layer_types") or ["full_attention" if i in h["attn_layer_indices"] else "linear_attention"
                                                                  for i in range(h["num_hidden_layers"])]


def block_count(h):
    return len(h["layers_block_type"]) if h.get("layers_block_type") else h["num_hidden_layers"]


def mamba2_fields(w, h, heads, head_dim, groups, state_size, taps):
    w.add_context_length(2**20)
    w.add_feed_forward_length(0)
    w.add_head_count(0)
    scan_fields(w, heads, head_dim, groups, state_size, taps)


def mamba1_fields(w, kind, h):
    w.add_ssm_conv_kernel(h.get("conv_kernel") or h["mamba_d_conv"])
    w.add_ssm_inner_size(2 * h["hidden_size"])
    w.add_ssm_state_size(h.get("state_size") or h["mamba_d_state"])
    w.add_ssm_time_step_rank(h.get("time_step_rank") or h["mamba_dt_rank"])
    if kind == "mamba":
        w.add_context_length(2**20)
        w.add_feed_forward_length(0)
        w.add_head_count(0)
        w.add_ssm_dt_b_c_rms(False)
        return
    w.add_context_length(h["max_position_embeddings"])
    w.add_feed_forward_length(h["intermediate_size"])
    w.add_head_count(h["num_attention_heads"])
    w.add_head_count_kv([h["num_key_value_heads"] if i % h["attn_layer_period"] == h["attn_layer_offset"] else 0
                         for i in range(h["num_hidden_layers"])])
    w.add_expert_count(h["num_experts"])
    w.add_expert_used_count(h["num_experts_per_tok"])


def scan_fields(w, heads, head_dim, groups, state_size, taps):
    w.add_ssm_conv_kernel(taps)
    w.add_ssm_inner_size(heads * head_dim)
    w.add_ssm_state_size(state_size)
    w.add_ssm_time_step_rank(heads)
    w.add_ssm_group_count(groups)


def expert_fields(w, h):
    w.add_expert_count(h["n_routed_experts"])
    w.add_expert_used_count(h["num_experts_per_tok"])
    w.add_expert_feed_forward_length(h["moe_intermediate_size"])
    w.add_expert_shared_feed_forward_length(h["moe_shared_expert_intermediate_size"])
    w.add_expert_shared_count(h["n_shared_experts"])
    w.add_expert_weights_norm(h["norm_topk_prob"])
    w.add_expert_weights_scale(h["routed_scaling_factor"])
    w.add_expert_group_count(h["n_group"])
    w.add_moe_latent_size(h["moe_latent_size"])


def fields(w, kind, h):
    w.add_block_count(block_count(h))
    w.add_embedding_length(h["hidden_size"])
    w.add_layer_norm_rms_eps(h.get("layer_norm_epsilon") or h["rms_norm_eps"])
    if kind in ("mamba", "jamba"):
        mamba1_fields(w, kind, h)
        return
    if kind == "mamba2":
        mamba2_fields(w, h, h["num_heads"], h["head_dim"], h["n_groups"], h["state_size"], h["conv_kernel"])
        return
    head_dim = h.get("head_dim") or h["hidden_size"] // h["num_attention_heads"]
    if kind == "nemotron_h":
        scan_fields(w, h["mamba_num_heads"], h["mamba_head_dim"], h["n_groups"], h["ssm_state_size"], h["conv_kernel"])
        widths = {"mlp": h["intermediate_size"], "moe": h["moe_intermediate_size"]}
        w.add_feed_forward_length([widths.get(t, 0) for t in h["layers_block_type"]])
        if "moe" in h["layers_block_type"]:
            expert_fields(w, h)
    else:
        scan_fields(w, h["mamba_n_heads"], h["mamba_d_head"], h["mamba_n_groups"], h["mamba_d_state"], h["mamba_d_conv"])
        w.add_feed_forward_length(h["intermediate_size"])
    w.add_vocab_size(h["vocab_size"])
    w.add_head_count(h["num_attention_heads"])
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    if kind == "falcon_h1":
        w.add_context_length(h["max_position_embeddings"])
        w.add_head_count_kv(h["num_key_value_heads"])
        w.add_rope_freq_base(h["rope_parameters"]["rope_theta"])
        return
    w.add_head_count_kv([h["num_key_value_heads"] if t == "full_attention" else 0 for t in layer_types(h)])
    w.add_rope_freq_base((h.get("rope_parameters") or {}).get("rope_theta", 10000.0))
    w.add_rope_dimension_count(head_dim // 2 if kind == "bamba" else head_dim)
    w.add_rope_scaling_finetuned(kind == "bamba")
    w.add_context_length(h["max_position_embeddings"] if kind == "bamba" else 2**20)
    if kind == "granitemoehybrid":
        w.add_attention_scale(h["attention_multiplier"])
        w.add_embedding_scale(h["embedding_multiplier"])
        w.add_residual_scale(h["residual_multiplier"])
        w.add_logit_scale(h["logits_scaling"])
        w.add_expert_count(h["num_local_experts"])
        w.add_expert_used_count(h["num_experts_per_tok"])
        w.add_expert_shared_feed_forward_length(h["shared_intermediate_size"])


def with_factors(h, name, x):
    """Falcon-H1: the converter multiplies the weights."""
    inner, wide = h["mamba_d_ssm"], h["mamba_n_groups"] * h["mamba_d_state"]
    if "down_proj" in name:
        return x * h["mlp_multipliers"][1]
    if "gate_proj" in name:
        return x * h["mlp_multipliers"][0]
    if "k_proj" in name:
        return x * h["key_multiplier"] * h["attention_in_multiplier"]
    if "q_proj" in name or "v_proj" in name:
        return x * h["attention_in_multiplier"]
    if "o_proj" in name:
        return x * h["attention_out_multiplier"]
    if "out_proj" in name:
        return x * h["ssm_out_multiplier"]
    if "in_proj" in name:
        sizes = [inner, inner, wide, wide, h["mamba_n_heads"]]
        return x * h["ssm_in_multiplier"] * np.repeat(np.array(h["ssm_multipliers"], np.float32), sizes)[:, None]
    if "lm_head" in name:
        return x * h["lm_head_multiplier"]
    return x * h["embedding_multiplier"] if "embed_tokens" in name else x


def interleave(x, heads):
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def converted(kind, h, name, x):
    """Pairs of the name in Hugging Face's scheme and the numbers that GGUF files have."""
    groups = h.get("mamba_n_groups") or h.get("n_groups")
    if kind == "falcon_h1":
        x = with_factors(h, name, x)
    if ".conv1d.weight" in name:
        x = x.squeeze()
    elif name.endswith(".A_log"):
        x = -np.exp(x) if kind in ("mamba", "jamba") else -np.exp(x).reshape(-1, 1)
    elif name.endswith(".D") and kind not in ("mamba", "jamba"):
        x = x.reshape(-1, 1)
    elif name.endswith((".mamba.norm.weight", ".mixer.norm.weight")):
        x = x.reshape(groups, -1)
    if kind in ("granitemoehybrid", "bamba"):
        if ".q_proj." in name:
            x = interleave(x, h["num_attention_heads"])
        if ".k_proj." in name:
            x = interleave(x, h["num_key_value_heads"])
    name = name.replace(".e_score_correction_bias", ".e_score_correction.bias")
    prefix, _, last = name.rpartition(".dt_bias")
    return prefix + ".dt_proj.bias" if prefix else name, x


def named(names, h, name, x):
    """Pairs of GGUF name and numbers."""
    layer = name.split(".")[2] if ".layers." in name else ""
    mixture = bool(h.get("num_local_experts")) and h["model_type"] == "granitemoehybrid"
    parts = {"block_sparse_moe.input_linear": ("ffn_gate_exps", "ffn_up_exps"),
             "shared_mlp.input_linear": ("ffn_gate_shexp", "ffn_up_shexp") if mixture else ("ffn_gate", "ffn_up")}
    for part, both in parts.items():
        if part in name:
            for gguf_name, half in zip(both, np.split(x, 2, axis=-2)):
                yield f"blk.{layer}.{gguf_name}.weight", half
            return
    if "shared_mlp.output_linear" in name and not mixture:
        yield f"blk.{layer}.ffn_down.weight", x
        return
    gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if gguf_name is None:
        sys.exit(f"the gguf package has no name for {name}")
    yield gguf_name, x


def stack_experts(tensors):
    """One tensor for all experts of a layer, as in GGUF files."""
    experts = {}
    for name in sorted(name for name in tensors if ".experts." in name):
        block, _, rest = re.sub(r"\.(mixer|feed_forward)\.", ".", name).partition(".experts.")
        number, _, part = rest.partition(".")
        experts.setdefault(f"{block}.mlp.experts.{part}".replace("backbone", "model"), {})[int(number)] = tensors.pop(name)
    for name, of in experts.items():
        tensors[name] = torch.stack([of[e] for e in range(len(of))])
    return tensors


def copy_tokenizer(w):
    for name, field in gguf.GGUFReader(FIXTURES / "tiny-llama.gguf").fields.items():
        if not name.startswith("tokenizer."):
            continue
        value = field.contents()
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            w.add_array(name, value)
        else:
            w.add_key_value(name, value, field.types[0])


def write(pair):
    arch, kind, differences = PAIRS[pair]
    folder = FIXTURES / "hybrid" / pair
    shutil.rmtree(folder, ignore_errors=True)
    make_model(kind, differences, 7).to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    h = transformers.AutoConfig.from_pretrained(folder).to_dict()
    w = gguf.GGUFWriter(FIXTURES / "hybrid" / f"{pair}.gguf", gguf.MODEL_ARCH_NAMES[arch])
    fields(w, kind, h)
    copy_tokenizer(w)
    names = gguf.get_tensor_name_map(arch, block_count(h))
    for name, x in stack_experts(load_file(folder / "model.safetensors")).items():
        name, x = converted(kind, h, name, x.to(torch.float32).numpy())
        for gguf_name, numbers in named(names, h, name, x):
            w.add_tensor(gguf_name, np.ascontiguousarray(numbers, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(pair, sum(f.stat().st_size for f in [FIXTURES / "hybrid" / f"{pair}.gguf", *folder.iterdir()]))


for pair in sys.argv[1:] or PAIRS:
    write(pair)
