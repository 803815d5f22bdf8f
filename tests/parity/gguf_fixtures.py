#!/usr/bin/env python3
"""Makes the pairs of tests/models/gguf_arch_test.c: one tiny model of each architecture as a Hugging Face directory and as a GGUF file.

  gguf_fixtures.py [NAME...]   writes tests/fixtures/gguf/NAME/ and NAME.gguf; all of them without a NAME.
                               Needs torch, transformers and gguf.

Hugging Face's class writes the directory. The gguf package writes the file, with the names it maps Hugging Face's names to. Fields, row orders and
stacked tensors follow llama.cpp's convert_hf_to_gguf.py of 2026. The script uses nothing of models/*.c. The converter does not store some fields
(windows of Mistral and StarCoder2, query_pre_attn_scalar of Gemma 2, n_inner of GPT-2); those keep their default values here.
"""
import json
import math
import pathlib
import re
import shutil
import sys

import gguf
import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import text_classes  # noqa: E402,F401

PAIRS = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "gguf"
A = gguf.MODEL_ARCH
USUAL = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=24,
             max_position_embeddings=512, bos_token_id=0, eos_token_id=2, pad_token_id=None)


def rope(kind, **more):
    return dict(rope_type=kind, rope_theta=20000.0, **more)


LLAMA3 = rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128)
LONGROPE = dict(short_factor=[1.0, 1.25], long_factor=[1.5, 8.0])
TEN_THOUSAND = dict(rope_type="default", rope_theta=10000.0)  # for architectures whose rope base the converter does not store

GEMMA4 = dict(head_dim=8, global_head_dim=16, sliding_window=12, hidden_size_per_layer_input=0, rope_parameters=dict(
    full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=20000.0), sliding_attention=TEN_THOUSAND))

# name: (model_type, fields that differ from USUAL)
MODELS = {
    "llama": ("llama", dict(head_dim=8, attention_bias=True, mlp_bias=True, rope_parameters=rope("default"))),
    "llama-tied": ("llama", dict(tie_word_embeddings=True, rope_parameters=rope("linear", factor=3.0))),
    "llama-llama3": ("llama", dict(head_dim=8, rope_parameters=LLAMA3)),
    "llama-yarn": ("llama", dict(head_dim=8, rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=128, beta_fast=16.0,
                                                                  beta_slow=2.0, attention_factor=1.25))),
    "mistral": ("mistral", dict(head_dim=8, sliding_window=None)),
    "mistral-window": ("mistral", dict(head_dim=8, sliding_window=12)),
    "mixtral": ("mixtral", dict(num_local_experts=4, num_experts_per_tok=2, rope_parameters=rope("default"))),
    "ministral3": ("ministral3", dict(head_dim=8, rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32.0,
                                                                       beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.25))),
    "arcee": ("arcee", dict(attention_bias=True, mlp_bias=True)),
    "apertus": ("apertus", dict(attention_bias=True, rope_parameters=LLAMA3)),
    "granite": ("granite", dict(embedding_multiplier=6.0, attention_multiplier=0.25, residual_multiplier=0.4, logits_scaling=3.0,
                                attention_bias=True, mlp_bias=True)),
    "smollm3": ("smollm3", dict(num_hidden_layers=4, attention_bias=True, mlp_bias=True)),
    "olmo": ("olmo", dict(clip_qkv=1.5, attention_bias=True)),
    "olmo2": ("olmo2", dict(attention_bias=True, rope_parameters=rope("default"))),
    "olmo3": ("olmo3", dict(sliding_window=12, layer_types=["full_attention", "sliding_attention"],
                            rope_parameters=dict(full_attention=rope("yarn", factor=4.0, original_max_position_embeddings=128),
                                                 sliding_attention=rope("default")))),
    "olmoe": ("olmoe", dict(num_experts=4, num_experts_per_tok=2)),
    "qwen2": ("qwen2", dict(rope_parameters=rope("default"))),
    "qwen2_moe": ("qwen2_moe", dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=12)),
    "qwen3": ("qwen3", dict(head_dim=8, attention_bias=True)),
    "qwen3_moe": ("qwen3_moe", dict(head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, norm_topk_prob=True)),
    "qwen3_moe-fused": ("qwen3_moe", dict(head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, norm_topk_prob=True)),
    "seed_oss": ("seed_oss", dict(head_dim=8, attention_bias=True, attention_out_bias=True, mlp_bias=True)),
    "ernie4_5": ("ernie4_5", dict(head_dim=8, use_bias=True)),
    "exaone4": ("exaone4", dict(head_dim=8, sliding_window=12, layer_types=["full_attention", "sliding_attention"])),
    "exaone4-llama3": ("exaone4", dict(head_dim=8, sliding_window=None, layer_types=["full_attention"] * 2, rope_parameters=LLAMA3)),
    "glm4": ("glm4", dict(head_dim=8, attention_bias=True)),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", dict(head_dim=8, max_position_embeddings=32768, rope_parameters=dict(
        rope_type="dynamic", rope_theta=10000.0, alpha=50.0, factor=1.0))),
    "cohere": ("cohere", dict(use_qk_norm=True, logit_scale=0.25)),
    "cohere2": ("cohere2", dict(num_hidden_layers=4, sliding_window=12, logit_scale=0.25, rotary_pct=1.0)),
    "gemma": ("gemma", dict(head_dim=8, rope_parameters=TEN_THOUSAND)),
    "gemma2": ("gemma2", dict(head_dim=8, query_pre_attn_scalar=8, sliding_window=12, attn_logit_softcapping=3.0, final_logit_softcapping=9.0,
                              rope_parameters=TEN_THOUSAND)),
    "gemma3": ("gemma3_text", dict(head_dim=8, num_hidden_layers=6, query_pre_attn_scalar=8, sliding_window=12, final_logit_softcapping=9.0,
                                   rope_parameters=dict(full_attention=rope("linear", factor=8.0), sliding_attention=TEN_THOUSAND))),
    "gemma4": ("gemma4_text", dict(GEMMA4, num_hidden_layers=6, layer_types=3 * ["sliding_attention", "full_attention"], num_kv_shared_layers=2,
                                   use_double_wide_mlp=True, attention_k_eq_v=True, num_global_key_value_heads=1, final_logit_softcapping=9.0)),
    "gemma4-embeddings": ("gemma4_text", dict(GEMMA4, num_hidden_layers=4, layer_types=2 * ["sliding_attention", "full_attention"],
                                              num_kv_shared_layers=2, hidden_size_per_layer_input=8, vocab_size_per_layer_input=24)),
    "gemma4-experts": ("gemma4_text", dict(GEMMA4, layer_types=["sliding_attention", "full_attention"], attention_k_eq_v=True,
                                           num_global_key_value_heads=1, enable_moe_block=True, num_experts=4, top_k_experts=2,
                                           moe_intermediate_size=8)),
    "gemma3n": ("gemma3n_text", dict(
        head_dim=8, sliding_window=12, num_hidden_layers=4, layer_types=2 * ["sliding_attention", "full_attention"], num_kv_shared_layers=2,
        hidden_size_per_layer_input=8, vocab_size_per_layer_input=24, activation_sparsity_pattern=[0.95, 0.0, 0.5, 0.0], laurel_rank=8)),
    "phi": ("phi", dict(num_key_value_heads=4, intermediate_size=64, rope_parameters=dict(TEN_THOUSAND, partial_rotary_factor=0.5))),
    "phi3": ("phi3", dict(sliding_window=12, original_max_position_embeddings=128, rope_parameters=rope(
        "longrope", partial_rotary_factor=1.0, original_max_position_embeddings=128, **LONGROPE))),
    "phi3-partial": ("phi3", dict(hidden_size=32, original_max_position_embeddings=128, tie_word_embeddings=True, rope_parameters=rope(
        "longrope", partial_rotary_factor=0.5, original_max_position_embeddings=128, **LONGROPE))),
    "phimoe": ("phimoe", dict(num_local_experts=4, num_experts_per_tok=2, attention_bias=True, lm_head_bias=True, rope_parameters=TEN_THOUSAND)),
    "starcoder2": ("starcoder2", dict(use_bias=True, sliding_window=None, rope_parameters=rope("default"))),
    "stablelm": ("stablelm", dict(use_qkv_bias=True, rope_parameters=dict(TEN_THOUSAND, partial_rotary_factor=0.5))),
    "stablelm-parallel": ("stablelm", dict(use_parallel_residual=True, qk_layernorm=True,
                                            rope_parameters=dict(TEN_THOUSAND, partial_rotary_factor=0.5))),
    "gpt_neox": ("gpt_neox", dict(rope_parameters=dict(TEN_THOUSAND, partial_rotary_factor=0.5))),
    "gpt_neox-serial": ("gpt_neox", dict(use_parallel_residual=False, rope_parameters=dict(TEN_THOUSAND, partial_rotary_factor=1.0))),
    "gpt2": ("gpt2", dict(n_embd=16, n_layer=2, n_head=4, n_positions=32, max_position_embeddings=32)),
    "glm4_moe": ("glm4_moe", dict(head_dim=8, attention_bias=True, use_qk_norm=True, first_k_dense_replace=1, n_routed_experts=4,
                                  num_experts_per_tok=2, moe_intermediate_size=8, n_shared_experts=2, routed_scaling_factor=1.5)),
    "dots1": ("dots1", dict(head_dim=8, attention_bias=True, first_k_dense_replace=1, n_routed_experts=4, num_experts_per_tok=2,
                            moe_intermediate_size=8, n_shared_experts=2, routed_scaling_factor=1.5, norm_topk_prob=True, sliding_window=None)),
    "exaone_moe": ("exaone_moe", dict(head_dim=8, sliding_window=12, layer_types=["full_attention", "sliding_attention"], first_k_dense_replace=1,
                                      num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, num_shared_experts=2)),
    "ernie4_5_moe": ("ernie4_5_moe", dict(head_dim=8, use_bias=True, tie_word_embeddings=False, moe_num_experts=4, moe_k=2,
                                          moe_intermediate_size=6, moe_num_shared_experts=2)),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", dict(head_dim=8, max_position_embeddings=32768, num_experts=4, moe_topk=2, rope_parameters=dict(
        rope_type="dynamic", rope_theta=10000.0, alpha=50.0, factor=1.0))),
    "minimax_m2": ("minimax_m2", dict(head_dim=8, num_local_experts=4, num_experts_per_tok=2,
                                      rope_parameters=rope("default", partial_rotary_factor=0.5))),
    "afmoe": ("afmoe", dict(num_hidden_layers=4, head_dim=8, sliding_window=12, num_dense_layers=1, num_experts=4, num_experts_per_tok=2,
                            moe_intermediate_size=8, num_shared_experts=2, route_scale=1.5, mup_enabled=True)),
    "nemotron": ("nemotron", dict(head_dim=8, hidden_size=32, attention_bias=True, mlp_bias=True)),
    "muse_glimmer": ("muse_glimmer_text", dict(num_hidden_layers=4, head_dim=8, sliding_window=12, qk_scale_factor=1.5, output_multiplier=0.25,
                                               final_logit_softcapping=9.0, rope_parameters=rope("default"))),
    "bitnet": ("bitnet", dict(attention_bias=True, tie_word_embeddings=True, hidden_act="silu")),
}
LATENT = dict(num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8)
ROUTED = dict(first_k_dense_replace=1, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=8, n_shared_experts=2, n_group=4,
              topk_group=2, routed_scaling_factor=1.5)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=128, mscale=0.75, mscale_all_dim=0.75)
MODELS.update({
    "deepseek_v2": ("deepseek_v2", dict(LATENT, **ROUTED, topk_method="group_limited_greedy", rope_parameters=YARN)),
    "deepseek_v2-whole": ("deepseek_v2", dict(LATENT, **dict(ROUTED, n_group=1, topk_group=1), rope_parameters=YARN)),
    "deepseek_v2-plain": ("deepseek_v2", dict(dict(LATENT, q_lora_rank=None), **dict(ROUTED, n_group=1, topk_group=1))),
    "deepseek_v3": ("deepseek_v3", dict(LATENT, **ROUTED, norm_topk_prob=True, rope_parameters=YARN)),
    "deepseek_v3-whole": ("deepseek_v3", dict(LATENT, **ROUTED, norm_topk_prob=True, rope_parameters=YARN)),
    # Matrices in Q8_0, for tests/runtime/generic_test.c, too.
    "deepseek_v3-whole-q8": ("deepseek_v3", dict(
        dict(LATENT, kv_lora_rank=64, q_lora_rank=32, qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=16), **dict(ROUTED, n_routed_experts=4, n_group=2, topk_group=1),
        hidden_size=32, vocab_size=320, max_position_embeddings=1024, norm_topk_prob=True)),
    "glm4_moe_lite": ("glm4_moe_lite", dict(LATENT, **dict(ROUTED, n_group=1, topk_group=1), norm_topk_prob=True)),
})
DRAFT = {"glm4_moe"}  # with a layer for multi-token prediction

ARCHS = {"llama": A.LLAMA, "mistral": A.LLAMA, "mixtral": A.LLAMA, "ministral3": A.MISTRAL3, "arcee": A.ARCEE, "apertus": A.APERTUS, "granite": A.GRANITE,
         "smollm3": A.SMOLLM3, "olmo": A.OLMO, "olmo2": A.OLMO2, "olmo3": A.OLMO2, "olmoe": A.OLMOE, "qwen2": A.QWEN2,
         "qwen2_moe": A.QWEN2MOE, "qwen3": A.QWEN3, "qwen3_moe": A.QWEN3MOE, "seed_oss": A.SEED_OSS, "ernie4_5": A.ERNIE4_5,
         "exaone4": A.EXAONE4, "glm4": A.GLM4, "hunyuan_v1_dense": A.HUNYUAN_DENSE, "cohere": A.COMMAND_R, "cohere2": A.COHERE2,
         "gemma": A.GEMMA, "gemma2": A.GEMMA2, "gemma3_text": A.GEMMA3, "gemma4_text": A.GEMMA4, "gemma3n_text": A.GEMMA3N, "phi": A.PHI2, "phi3": A.PHI3, "phimoe": A.PHIMOE, "starcoder2": A.STARCODER2,
         "stablelm": A.STABLELM, "gpt_neox": A.GPTNEOX, "gpt2": A.GPT2, "glm4_moe": A.GLM4_MOE, "dots1": A.DOTS1, "exaone_moe": A.EXAONE_MOE,
         "ernie4_5_moe": A.ERNIE4_5_MOE, "hunyuan_v1_moe": A.HUNYUAN_MOE, "minimax_m2": A.MINIMAXM2, "afmoe": A.AFMOE, "nemotron": A.NEMOTRON,
         "bitnet": A.BITNET, "muse_glimmer_text": A.MUSE_GLIMMER, "deepseek_v2": A.DEEPSEEK2, "deepseek_v3": A.DEEPSEEK2, "glm4_moe_lite": A.DEEPSEEK2}
LIKE_LLAMA = {"llama", "mistral", "mixtral", "ministral3", "arcee", "granite", "smollm3", "muse_glimmer_text"}  # the converter's class and those derived from it


# ---------------------------------------------------------------------------------------------------------------------
# Fields

def sizes(w, h):
    w.add_block_count(h.get("num_hidden_layers", h.get("n_layer")))
    w.add_context_length(h.get("max_position_embeddings", h.get("n_positions")))
    w.add_embedding_length(h.get("hidden_size", h.get("n_embd")))
    w.add_head_count(h.get("num_attention_heads", h.get("n_head")))


def usual(w, h):
    """Fields of an architecture without its own list."""
    sizes(w, h)
    w.add_feed_forward_length(h["intermediate_size"])
    w.add_head_count_kv(h["num_key_value_heads"])
    ropes = h.get("rope_parameters") or {}
    r = ropes.get("full_attention", ropes)
    if r.get("rope_type") == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(r["factor"])
    elif r.get("rope_type") == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(r["factor"])
        w.add_rope_scaling_orig_ctx_len(r["original_max_position_embeddings"])
        for key, add in (("attention_factor", w.add_rope_scaling_yarn_attn_factor), ("beta_fast", w.add_rope_scaling_yarn_beta_fast),
                         ("beta_slow", w.add_rope_scaling_yarn_beta_slow)):
            if r.get(key) is not None:
                add(r[key])
    if r.get("rope_theta") is not None:
        w.add_rope_freq_base(r["rope_theta"])
    if "sliding_attention" in ropes:
        w.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    for keys, add in ((("rms_norm_eps",), w.add_layer_norm_rms_eps), (("layer_norm_eps", "norm_epsilon"), w.add_layer_norm_eps),
                      (("num_local_experts", "num_experts"), w.add_expert_count), (("num_experts_per_tok",), w.add_expert_used_count)):
        for key in keys:
            if h.get(key) is not None:
                add(h[key])
                break
    if h.get("head_dim") is not None:
        w.add_key_length(h["head_dim"])
        w.add_value_length(h["head_dim"])


def head_dim(h):
    return h.get("head_dim") or h["hidden_size"] // h["num_attention_heads"]


def like_llama(w, h):
    usual(w, h)
    w.add_vocab_size(h["vocab_size"])
    w.add_rope_dimension_count(head_dim(h))


def mistral(w, h):
    like_llama(w, h)
    if h.get("sliding_window"):  # the converter does not write it; other tools do
        w.add_sliding_window(h["sliding_window"])


def ministral3(w, h):
    like_llama(w, h)
    w.add_rope_scaling_yarn_log_mul(h["rope_parameters"]["mscale_all_dim"])
    w.add_attn_temperature_scale(h["rope_parameters"]["llama_4_scaling_beta"])


def granite(w, h):
    h.pop("head_dim", None)
    like_llama(w, h)
    w.add_attention_scale(h["attention_multiplier"])
    w.add_embedding_scale(h["embedding_multiplier"])
    w.add_residual_scale(h["residual_multiplier"])
    w.add_logit_scale(h["logits_scaling"])


def olmo(w, h):
    usual(w, h)
    w.add_layer_norm_eps(1e-5)
    w.add_clamp_kqv(h["clip_qkv"])


def windows(w, h):
    usual(w, h)
    if h.get("sliding_window") is not None:
        w.add_sliding_window(h["sliding_window"])
        w.add_sliding_window_pattern([t == "sliding_attention" for t in h["layer_types"]])


def experts(w, h):
    usual(w, h)
    w.add_expert_feed_forward_length(h["moe_intermediate_size"])
    if h.get("shared_expert_intermediate_size") is not None:
        w.add_expert_shared_feed_forward_length(h["shared_expert_intermediate_size"])


def glm4(w, h):
    usual(w, h)
    w.add_rope_dimension_count(int(head_dim(h) * h["rope_parameters"].get("partial_rotary_factor", 0.5)))


def hunyuan(w, h):
    usual(w, h)
    r = h["rope_parameters"]
    w.add_rope_freq_base(r["rope_theta"] * r["alpha"] ** (h["head_dim"] / (h["head_dim"] - 2)))
    w.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    w.add_rope_scaling_factor(1)
    w.add_rope_scaling_orig_ctx_len(256 * 1024)
    w.add_context_length(256 * 1024)


def cohere(w, h):
    usual(w, h)
    w.add_logit_scale(h["logit_scale"])
    w.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def cohere2(w, h):
    cohere(w, h)
    w.add_sliding_window(h["sliding_window"])
    w.add_vocab_size(h["vocab_size"])
    w.add_rope_dimension_count(int(h["rotary_pct"] * (h["hidden_size"] // h["num_attention_heads"])))


def gemma(w, h):
    sizes(w, h)
    w.add_feed_forward_length(h["intermediate_size"])
    w.add_head_count_kv(h["num_key_value_heads"])
    w.add_layer_norm_rms_eps(h["rms_norm_eps"])
    w.add_key_length(h["head_dim"])
    w.add_value_length(h["head_dim"])


def gemma2(w, h):
    gemma(w, h)
    w.add_attn_logit_softcapping(h["attn_logit_softcapping"])
    w.add_final_logit_softcapping(h["final_logit_softcapping"])
    w.add_sliding_window(h["sliding_window"])


def gemma3(w, h):
    usual(w, h)
    w.add_final_logit_softcapping(h["final_logit_softcapping"])
    w.add_sliding_window(h["sliding_window"])


def gemma3n(w, h):
    usual(w, h)
    w.add_sliding_window(h["sliding_window"])
    w.add_sliding_window_pattern([kind == "sliding_attention" for kind in h["layer_types"]])
    w.add_shared_kv_layers(h["num_kv_shared_layers"])
    w.add_altup_active_idx(h["altup_active_idx"])
    w.add_altup_num_inputs(h["altup_num_inputs"])
    w.add_embedding_length_per_layer_input(h["hidden_size_per_layer_input"])
    quantile = torch.distributions.normal.Normal(0, 1).icdf
    w.add_activation_sparsity_scale([quantile(torch.tensor(s, dtype=torch.float32)).item() for s in h["activation_sparsity_pattern"]])


def gemma4(w, h):
    full, windowed = h["per_layer_config"][max(h["per_layer_config"])], [kind == "sliding_attention" for kind in h["layer_types"]]
    heads, shared = full.get("num_key_value_heads"), h["num_kv_shared_layers"]
    h = {**h, "head_dim": None}
    if heads:  # a list, in place of one number
        h["num_key_value_heads"] = [h["num_key_value_heads"] if window else heads for window in windowed]
    if h["use_double_wide_mlp"]:
        h["intermediate_size"] = [h["intermediate_size"] * (1 + (i >= len(windowed) - shared)) for i in range(len(windowed))]
    usual(w, h)
    if h["final_logit_softcapping"]:
        w.add_final_logit_softcapping(h["final_logit_softcapping"])
    w.add_sliding_window(h["sliding_window"])
    w.add_sliding_window_pattern(windowed)
    w.add_shared_kv_layers(shared)
    w.add_embedding_length_per_layer_input(h["hidden_size_per_layer_input"])
    for add_size, size in ((w.add_key_length, full["head_dim"]), (w.add_value_length, full["head_dim"]), (w.add_rope_dimension_count, full["head_dim"]),
                           (w.add_key_length_swa, 8), (w.add_value_length_swa, 8), (w.add_rope_dimension_count_swa, 8)):
        add_size(size)
    if h["enable_moe_block"]:
        w.add_expert_used_count(h["top_k_experts"])
        w.add_expert_feed_forward_length(h["moe_intermediate_size"])


def phi(w, h):
    sizes(w, h)
    w.add_feed_forward_length(4 * h["hidden_size"])
    w.add_head_count_kv(h["num_attention_heads"])
    w.add_layer_norm_eps(h["layer_norm_eps"])
    w.add_rope_dimension_count(int(h["rope_parameters"]["partial_rotary_factor"] * h["hidden_size"]) // h["num_attention_heads"])


def phi3(w, h):
    sizes(w, h)
    r = h["rope_parameters"]
    original = r["original_max_position_embeddings"]
    w.add_rope_scaling_orig_ctx_len(original)
    w.add_feed_forward_length(h["intermediate_size"])
    w.add_head_count_kv(h["num_key_value_heads"])
    w.add_layer_norm_rms_eps(h["rms_norm_eps"])
    w.add_rope_dimension_count(int(r["partial_rotary_factor"] * h["hidden_size"]) // h["num_attention_heads"])
    w.add_rope_freq_base(r["rope_theta"])
    w.add_sliding_window(h.get("sliding_window") or 0)
    w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(h["max_position_embeddings"] / original) / math.log(original)))


def phimoe(w, h):
    sizes(w, h)
    w.add_rope_scaling_orig_ctx_len(h["max_position_embeddings"])
    w.add_feed_forward_length(h["intermediate_size"])
    w.add_head_count_kv(h["num_key_value_heads"])
    w.add_layer_norm_rms_eps(h["rms_norm_eps"])
    w.add_rope_dimension_count(head_dim(h))
    w.add_rope_freq_base(h["rope_parameters"]["rope_theta"])
    w.add_sliding_window(h.get("sliding_window") or 0)
    w.add_expert_used_count(h["num_experts_per_tok"])
    w.add_expert_count(h["num_local_experts"])


def stablelm(w, h):
    sizes(w, h)
    w.add_feed_forward_length(h["intermediate_size"])
    w.add_rope_dimension_count(int(h["rope_parameters"]["partial_rotary_factor"] * (h["hidden_size"] // h["num_attention_heads"])))
    w.add_head_count_kv(h["num_key_value_heads"])
    w.add_parallel_residual(h["use_parallel_residual"])
    w.add_layer_norm_eps(h["layer_norm_eps"])


def gpt_neox(w, h):
    sizes(w, h)
    w.add_feed_forward_length(h["intermediate_size"])
    w.add_rope_dimension_count(int(h["rope_parameters"]["partial_rotary_factor"] * (h["hidden_size"] // h["num_attention_heads"])))
    w.add_parallel_residual(h["use_parallel_residual"])
    w.add_layer_norm_eps(h["layer_norm_eps"])


def gpt2(w, h):
    sizes(w, h)
    w.add_feed_forward_length(4 * h["n_embd"])
    w.add_layer_norm_eps(h["layer_norm_epsilon"])


def routed(w, h, shared, dense, scale="routed_scaling_factor", norm="norm_topk_prob"):
    usual(w, h)
    if h.get("n_routed_experts") is not None:
        w.add_expert_count(h["n_routed_experts"])
        w.add_expert_group_count(h["n_group"])
        w.add_expert_group_used_count(h["topk_group"])
    w.add_expert_feed_forward_length(h["moe_intermediate_size"])
    w.add_expert_shared_count(h[shared])
    w.add_leading_dense_block_count(h[dense])
    if scale in h:
        w.add_expert_weights_scale(h[scale])
    if norm in h:
        w.add_expert_weights_norm(h[norm])


def glm4_moe(w, h):
    routed(w, h, "n_shared_experts", "first_k_dense_replace")
    w.add_block_count(h["num_hidden_layers"] + 1)
    w.add_nextn_predict_layers(1)
    w.add_rope_dimension_count(int(head_dim(h) * h["rope_parameters"]["partial_rotary_factor"]))
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def dots1(w, h):
    routed(w, h, "n_shared_experts", "first_k_dense_replace")


def exaone_moe(w, h):
    routed(w, h, "num_shared_experts", "first_k_dense_replace")
    w.add_expert_group_count(h["n_group"])
    w.add_expert_group_used_count(h["topk_group"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_expert_shared_feed_forward_length(h["moe_intermediate_size"] * h["num_shared_experts"])
    w.add_sliding_window(h["sliding_window"])
    w.add_sliding_window_pattern([t == "sliding_attention" for t in h["layer_types"]])
    w.add_nextn_predict_layers(0)
    w.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def ernie4_5_moe(w, h):
    routed(w, h, "moe_num_shared_experts", "moe_layer_start_index", None, None)
    w.add_expert_count(h["moe_num_experts"])
    w.add_expert_used_count(h["moe_k"])
    w.add_interleave_moe_layer_step(h["moe_layer_interval"])
    w.add_expert_shared_feed_forward_length(h["intermediate_size"] // h["num_key_value_heads"])


def hunyuan_moe(w, h):
    hunyuan(w, h)
    w.add_expert_shared_feed_forward_length(h["intermediate_size"])
    w.add_expert_feed_forward_length(h["intermediate_size"])
    w.add_expert_used_count(h["moe_topk"])
    w.add_expert_shared_count(1)


def minimax_m2(w, h):
    usual(w, h)
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)  # the published files name the function
    w.add_expert_feed_forward_length(h["intermediate_size"])
    w.add_rope_dimension_count(int(head_dim(h) * h["rope_parameters"]["partial_rotary_factor"]))


def afmoe(w, h):
    routed(w, h, "num_shared_experts", "num_dense_layers", "route_scale", "route_norm")
    w.add_vocab_size(h["vocab_size"])
    w.add_rope_dimension_count(head_dim(h))
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_sliding_window(h["sliding_window"])


def nemotron(w, h):
    usual(w, h)
    w.add_vocab_size(h["vocab_size"])
    w.add_layer_norm_rms_eps(h["norm_eps"])
    w.add_layer_norm_eps(h["norm_eps"])
    w.add_rope_dimension_count(int(h["rope_parameters"]["partial_rotary_factor"] * h["hidden_size"]) // h["num_attention_heads"])
    w.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def muse_glimmer(w, h):
    usual(w, h)
    w.add_final_logit_softcapping(h["final_logit_softcapping"])
    w.add_logit_scale(h["output_multiplier"])
    w.add_sliding_window(h["sliding_window"])
    w.add_sliding_window_pattern([t == "sliding_attention" for t in h["layer_types"]])


def bitnet(w, h):
    usual(w, h)
    w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    w.add_rope_scaling_factor(1.0)


def deepseek2(w, h, whole=False):
    """|whole|: as the converter did until 2025, with the products of keys and values in one tensor."""
    rank, rotary, heads = h["kv_lora_rank"], h["qk_rope_head_dim"], h["num_attention_heads"]
    usual(w, dict(h, num_key_value_heads=heads if whole else 1, head_dim=None))
    sizes = {"": (h["qk_nope_head_dim"] + rotary, h["v_head_dim"])} if whole else {
        "": (rank + rotary, rank), "_mla": (h["qk_nope_head_dim"] + rotary, h["v_head_dim"])}
    for suffix, (key, value) in sizes.items():
        getattr(w, "add_key_length" + suffix)(key)
        getattr(w, "add_value_length" + suffix)(value)
    w.add_vocab_size(h["vocab_size"])
    w.add_kv_lora_rank(rank)
    if h["q_lora_rank"]:
        w.add_q_lora_rank(h["q_lora_rank"])
    w.add_rope_dimension_count(rotary)
    w.add_leading_dense_block_count(h.get("first_k_dense_replace", 1))
    w.add_expert_count(h["n_routed_experts"])
    w.add_expert_feed_forward_length(h["moe_intermediate_size"])
    w.add_expert_shared_count(h["n_shared_experts"])
    w.add_expert_group_count(h["n_group"])
    w.add_expert_group_used_count(h["topk_group"])
    w.add_expert_weights_scale(h["routed_scaling_factor"])
    if h["model_type"] != "deepseek_v2":
        w.add_expert_weights_norm(h["norm_topk_prob"])
    if h["model_type"] != "glm4_moe_lite":  # its config does not name the function
        w.add_expert_gating_func(getattr(gguf.ExpertGatingFuncType, "SOFTMAX" if h["model_type"] == "deepseek_v2" else "SIGMOID"))
    all_dim = h["rope_parameters"].get("mscale_all_dim")
    if all_dim is not None:
        w.add_rope_scaling_yarn_log_mul(0.1 * all_dim)


def split_latent(h, tensors):
    """The products of keys, transposed, and of values, which the converter splits."""
    out, nope, heads = {}, h["qk_nope_head_dim"], h["num_attention_heads"]
    for name, x in tensors.items():
        if name.endswith("kv_b_proj.weight"):
            x = x.reshape(heads, -1, x.shape[-1])
            out[name.replace("kv_b_proj", "k_b_proj")] = x[:, :nope].swapaxes(1, 2)
            out[name.replace("kv_b_proj", "v_b_proj")] = x[:, nope:]
        else:
            out[name] = x
    return out


FIELDS = {"deepseek_v2": deepseek2, "deepseek_v3": deepseek2, "glm4_moe_lite": deepseek2, "glm4_moe": glm4_moe, "dots1": dots1, "exaone_moe": exaone_moe, "ernie4_5_moe": ernie4_5_moe, "hunyuan_v1_moe": hunyuan_moe,
          "minimax_m2": minimax_m2, "afmoe": afmoe, "nemotron": nemotron, "bitnet": bitnet, "muse_glimmer_text": muse_glimmer, "apertus": like_llama, "mistral": mistral, "ministral3": ministral3, "granite": granite, "olmo": olmo, "olmo3": windows, "exaone4": windows,
          "qwen2_moe": experts, "qwen3_moe": experts, "glm4": glm4, "hunyuan_v1_dense": hunyuan, "cohere": cohere, "cohere2": cohere2,
          "gemma": gemma, "gemma2": gemma2, "gemma3_text": gemma3, "gemma4_text": gemma4, "gemma3n_text": gemma3n, "phi": phi, "phi3": phi3, "phimoe": phimoe, "stablelm": stablelm, "gpt_neox": gpt_neox,
          "gpt2": gpt2}


# ---------------------------------------------------------------------------------------------------------------------
# Tensors: name and f32 array in, name and array out

def interleave(x, heads):
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def converted(kind, h, name, x):
    if kind in LIKE_LLAMA or (kind == "olmo" and name.endswith(".weight")):
        if ".q_proj." in name:
            x = interleave(x, h["num_attention_heads"])
        if ".k_proj." in name:
            x = interleave(x, h["num_key_value_heads"])
    if (kind in ("gemma", "gemma2", "gemma3_text") or kind == "nemotron") and name.endswith("norm.weight"):
        x = x + np.float32(1)
    if kind == "muse_glimmer_text" and name.endswith("layernorm.weight"):
        x = x + np.float32(1)
    if kind == "gpt2" and re.search(r"\.(c_attn|c_proj|c_fc)\.weight$", name):
        x = x.T
    if kind == "gpt_neox" and ".query_key_value." in name:  # head by head: q, k, v
        x = x.reshape(h["num_attention_heads"], 3, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
    if name.endswith("e_score_correction_bias"):
        x = x.reshape(-1)
    if name.endswith("shared_expert_gate.weight"):
        x = x.squeeze()  # as the converter did until 2024
    return x


STACKS = (r"(.*\.block_sparse_moe\.experts)\.(\d+)\.(w[123]\.weight)$", r"(.*\.mlp\.experts)\.(\d+)\.(\w+_proj\.weight)$",
          r"(.*\.[qk]_layernorm)\.norms\.(\d+)\.(weight)$", r"(model\.altup_\w*projections)\.(\d+)\.(weight)$")


def stacked(tensors):
    """Stacks the tensors of all experts, or of all heads, into one."""
    out, stacks = {}, {}
    for name, x in tensors.items():
        found = next((m for m in (re.match(s, name) for s in STACKS) if m), None)
        if found:
            merged = f"{found[1]}.{found[3]}".replace("block_sparse_moe.experts.w", "feed_forward.experts.w")
            stacks.setdefault(merged.replace("model.layers", "layers") if "feed_forward" in merged else merged, {})[int(found[2])] = x
        else:
            out[name] = x
    out.update({name: np.stack([parts[i] for i in range(len(parts))]) for name, parts in stacks.items()})
    return out


def fused(tensors):
    """Gate and up of all experts in one tensor, as the converter's --fuse-gate-up-exps writes them."""
    out = {}
    for name, x in tensors.items():
        if ".experts.gate_proj." in name:
            x = np.concatenate([x, tensors[name.replace("gate_proj", "up_proj")]], axis=1)
            name = name.replace("mlp.experts.gate_proj", "ffn_gate_up_exps")
        if ".experts.up_proj." not in name:
            out[name] = x
    return out


def renamed(name):
    """Names that the converter changes before it looks them up."""
    name = re.sub(r"\.expert_bias$", ".expert_bias.bias", name)
    name = name.replace(".attn_sub_norm.", ".inner_attn_ln.").replace(".ffn_sub_norm.", ".ffn_layernorm.")  # as the first BitNet files
    name = re.sub(r"(\.experts\.(gate_up|down)_proj|\.layer_scalar|\.correct_output_scale)$", r"\1.weight", name)
    return name.replace(".e_score_correction_bias", ".e_score_correction.bias")


def rope_freqs(h):
    r, dim = h["rope_parameters"], head_dim(h)
    low, high, original = r["low_freq_factor"], r["high_freq_factor"], r["original_max_position_embeddings"]
    factors = []
    for freq in 1.0 / (r["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)):
        wave = 2 * math.pi / freq
        smooth = (original / wave - low) / (high - low)
        factors.append(1.0 if wave < original / high else r["factor"] if wave > original / low else 1 / ((1 - smooth) / r["factor"] + smooth))
    return np.array(factors, np.float32)


def extra(kind, h):
    r = h.get("rope_parameters") or {}
    if r.get("rope_type") == "llama3":
        yield "rope_freqs.weight", rope_freqs(h)
    if kind == "gemma4_text":
        dim = h["per_layer_config"][max(h["per_layer_config"])]["head_dim"]
        rotated = int(dim * r["full_attention"]["partial_rotary_factor"] / 2)
        yield "rope_freqs.weight", np.array([1.0] * rotated + [1e30] * (dim // 2 - rotated), np.float32)
    if kind == "muse_glimmer_text":
        for i in range(h["num_hidden_layers"]):
            yield f"blk.{i}.attn_q_norm.weight", np.full(h["head_dim"], h["qk_scale_factor"], np.float32)
            yield f"blk.{i}.attn_k_norm.weight", np.ones(h["head_dim"], np.float32)
    if kind == "phi3":
        yield "rope_factors_long.weight", np.array(r["long_factor"], np.float32)
        yield "rope_factors_short.weight", np.array(r["short_factor"], np.float32)


def take_xielu(w, tensors):
    """Numbers of the activation are fields, with one element per layer. Returns the other tensors."""
    fields = {"alpha_p": w.add_xielu_alpha_p, "alpha_n": w.add_xielu_alpha_n, "beta": w.add_xielu_beta, "eps": w.add_xielu_eps}
    values = {field: [float(x.reshape(())) for name, x in sorted(tensors.items()) if name.endswith(".act_fn." + field)] for field in fields}
    for field, numbers in values.items():
        if numbers:
            fields[field](numbers)
    return {name: x for name, x in tensors.items() if ".act_fn." not in name}


def is_q8(x):
    return x.ndim > 1 and x.shape[-1] % 32 == 0


def q8(x):
    return gguf.quants.dequantize(gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0), gguf.GGMLQuantizationType.Q8_0)


def add(w, name, x, with_q8=False):
    x = np.ascontiguousarray(x, np.float32)
    if with_q8 and is_q8(x) and "ffn_gate_inp" not in name:
        kind = gguf.GGMLQuantizationType.Q8_0
        w.add_tensor(name, gguf.quants.quantize(x, kind), raw_dtype=kind)
        return
    if x.ndim <= 1 or name.endswith("_norm.weight") or "ffn_gate_inp" in name or name == "position_embd.weight":
        w.add_tensor(name, x)
    else:
        kind = gguf.GGMLQuantizationType.BF16
        w.add_tensor(name, gguf.quants.quantize(x, kind), raw_dtype=kind)


def write_gguf(name, kind, tensors):
    h = transformers.AutoConfig.from_pretrained(PAIRS / name).to_dict()
    arch = ARCHS[kind]
    w = gguf.GGUFWriter(PAIRS / f"{name}.gguf", gguf.MODEL_ARCH_NAMES[arch])
    whole = "-whole" in name
    if whole:
        deepseek2(w, h, whole)
    else:
        FIELDS.get(kind, like_llama if kind in LIKE_LLAMA else usual)(w, h)
    names = gguf.get_tensor_name_map(arch, h.get("num_hidden_layers", h.get("n_layer")) + (name in DRAFT))
    tensors = stacked({n: converted(kind, h, n, x) for n, x in take_xielu(w, tensors).items()})
    if arch == A.DEEPSEEK2 and not whole:
        tensors = split_latent(h, tensors)
    for hf_name, x in (fused(tensors) if name.endswith("-fused") else tensors).items():
        gguf_name = names.get_name(renamed(hf_name), try_suffixes=(".weight", ".bias"))
        for part, other in ((".router.scale", ".ffn_gate_inp.scale"), (".router.per_expert_scale", ".ffn_down_exps.scale")):
            if hf_name.endswith(part):
                gguf_name = hf_name.replace("model.layers", "blk").replace(part, other)
        if "ffn_gate_up_exps" in hf_name:
            gguf_name = hf_name.replace("model.layers", "blk")
        if gguf_name is None:
            sys.exit(f"{name}: the gguf package has no name for {hf_name}")
        add(w, gguf_name, x, name.endswith("-q8"))
    if name.endswith("-q8"):  # a test runs it
        byte_tokens = [chr(c) if 33 <= c < 127 or 161 <= c < 173 or 174 <= c else chr(256 + c) for c in range(256)]
        tokens = byte_tokens + ["ab"] + [f"<{i}>" for i in range(257, h["vocab_size"])]
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("smollm")
        w.add_token_list(tokens)
        w.add_token_types([gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL] * (len(tokens) - 257))
        w.add_token_merges(["a b"])
        w.add_eos_token_id(h["vocab_size"] - 1)
    for gguf_name, x in extra(kind, h):
        w.add_tensor(gguf_name, x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


# ---------------------------------------------------------------------------------------------------------------------

def write_hf(name, kind, differences):
    config = transformers.AutoConfig.for_model(kind, **{**USUAL, **differences})
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    rng = np.random.default_rng(sum(name.encode()))
    with torch.no_grad():
        for _, p in sorted(model.named_parameters()):
            p.copy_(torch.from_numpy(rng.standard_normal(p.shape)))
        for buffer, b in sorted(model.named_buffers()):
            if buffer.endswith(("e_score_correction_bias", "layer_scalar")):
                b.copy_(torch.from_numpy(rng.standard_normal(b.shape)))
    shutil.rmtree(PAIRS / name, ignore_errors=True)
    model.save_pretrained(PAIRS / name)
    (PAIRS / name / "generation_config.json").unlink(missing_ok=True)
    from safetensors.torch import load_file, save_file
    if name in DRAFT:
        path, prefix = PAIRS / name / "model.safetensors", f"model.layers.{config.num_hidden_layers}."
        draft = {prefix + "eh_proj.weight": torch.ones(config.hidden_size, 2 * config.hidden_size, dtype=torch.bfloat16),
                 prefix + "input_layernorm.weight": torch.ones(config.hidden_size, dtype=torch.bfloat16)}
        save_file({**load_file(path), **draft}, path, metadata={"format": "pt"})
    tensors = {n: x.to(torch.float32).numpy() for n, x in load_file(PAIRS / name / "model.safetensors").items()}
    if name.endswith("-q8"):  # the values that the file will have
        tensors = {n: q8(x) if is_q8(x) and ".gate.weight" not in n else x for n, x in tensors.items()}
        save_file({n: torch.from_numpy(x) for n, x in tensors.items()}, PAIRS / name / "model.safetensors", metadata={"format": "pt"})
    return tensors


def main():
    for name in sys.argv[1:] or MODELS:
        kind, differences = MODELS[name]
        write_gguf(name, kind, write_hf(name, kind, differences))
        print(name, sum(f.stat().st_size for f in [PAIRS / f"{name}.gguf", *(PAIRS / name).iterdir()]))


if __name__ == "__main__":
    main()
