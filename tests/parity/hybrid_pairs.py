#!/usr/bin/env python3
"""Makes the pairs of tests/runtime/recurrent_test.c: a random hybrid model as a Hugging Face directory and as a GGUF file.

  hybrid_pairs.py [NAME...]    writes tests/fixtures/hybrid/NAME/ and NAME.gguf. Needs numpy, safetensors and gguf.

Fields, names, row orders and changed values follow llama.cpp's converter of 2026 (conversion/qwen.py, conversion/lfm2.py), which the
gguf package does not have. The script uses nothing of models/*.c. The tokenizer is that of tests/fixtures/tiny-llama.gguf.
tests/parity/make_fixtures.py checks the same networks, as directories, against Hugging Face.
"""
import json
import pathlib
import re
import shutil
import sys

import gguf
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB, CONTEXT = 32, 48, 4, 2, 16, 320, 512
COMMON = dict(hidden_size=HIDDEN, intermediate_size=FFN, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, vocab_size=VOCAB,
              max_position_embeddings=CONTEXT, bos_token_id=0, eos_token_id=2)


class Weights:
    """bf16 numbers, so that a directory in bf16 and a file in f32 have the same values."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def matrix(self, *shape, scale=2.0):
        return self.rounded(self.rng.standard_normal(shape) * scale / shape[-1] ** 0.5)

    def vector(self, width, mean=1.0):
        return self.rounded(0.3 * self.rng.standard_normal(width) + mean)

    @staticmethod
    def rounded(x):
        return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def add_usual(w, layers):
    w.add_block_count(layers)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_rope_freq_base(10000.0)


# ---------------------------------------------------------------------------------------------------------------------
# Qwen3.5. Value heads: grouped by their key head in Hugging Face, tiled over the key heads in GGUF.

KEY_HEADS, SHARE, KEY_DIM, TAPS = 2, 3, 16, 4
VALUE_HEADS = KEY_HEADS * SHARE
QWEN_TYPES = ["linear_attention", "full_attention", "linear_attention"]


def tiled(x, dim, axis=0):
    shape = list(x.shape)
    parts = shape[:axis] + [KEY_HEADS, SHARE, dim] + shape[axis + 1:]
    return np.ascontiguousarray(x.reshape(parts).swapaxes(axis, axis + 1).reshape(shape))


EXPERTS, EXPERT_FFN, SHARED_FFN = 4, 16, 24


def mixture_tensors(weights, p, fused):
    t = {p + "mlp.gate.weight": weights.matrix(EXPERTS, HIDDEN), p + "mlp.shared_expert_gate.weight": weights.matrix(1, HIDDEN),
         p + "mlp.shared_expert.gate_proj.weight": weights.matrix(SHARED_FFN, HIDDEN),
         p + "mlp.shared_expert.up_proj.weight": weights.matrix(SHARED_FFN, HIDDEN),
         p + "mlp.shared_expert.down_proj.weight": weights.matrix(HIDDEN, SHARED_FFN)}
    if fused:  # as Qwen published Qwen3.5
        t[p + "mlp.experts.gate_up_proj"] = weights.matrix(EXPERTS, 2 * EXPERT_FFN, HIDDEN)
        t[p + "mlp.experts.down_proj"] = weights.matrix(EXPERTS, HIDDEN, EXPERT_FFN)
        return t
    for e in range(EXPERTS):
        for part, shape in (("gate_proj", (EXPERT_FFN, HIDDEN)), ("up_proj", (EXPERT_FFN, HIDDEN)), ("down_proj", (HIDDEN, EXPERT_FFN))):
            t[p + f"mlp.experts.{e}.{part}.weight"] = weights.matrix(*shape)
    return t


def delta_projections(weights, fused):
    keys, values = KEY_HEADS * KEY_DIM, VALUE_HEADS * KEY_DIM
    if fused:
        return {"in_proj_qkvz.weight": weights.matrix(2 * keys + 2 * values, HIDDEN), "in_proj_ba.weight": weights.matrix(2 * VALUE_HEADS, HIDDEN)}
    return {"in_proj_qkv.weight": weights.matrix(2 * keys + values, HIDDEN), "in_proj_z.weight": weights.matrix(values, HIDDEN),
            "in_proj_a.weight": weights.matrix(VALUE_HEADS, HIDDEN), "in_proj_b.weight": weights.matrix(VALUE_HEADS, HIDDEN)}


def qwen_tensors(weights, mixture=False, fused_projections=False):
    keys, values = KEY_HEADS * KEY_DIM, VALUE_HEADS * KEY_DIM
    t = {"model.embed_tokens.weight": weights.matrix(VOCAB, HIDDEN, scale=1.0), "model.norm.weight": weights.vector(HIDDEN, 0),
         "lm_head.weight": weights.matrix(VOCAB, HIDDEN)}
    for i, kind in enumerate(QWEN_TYPES):
        p = f"model.layers.{i}."
        t[p + "input_layernorm.weight"] = weights.vector(HIDDEN, 0)
        t[p + "post_attention_layernorm.weight"] = weights.vector(HIDDEN, 0)
        if mixture:
            t.update(mixture_tensors(weights, p, not fused_projections))
        else:
            t[p + "mlp.gate_proj.weight"], t[p + "mlp.up_proj.weight"] = weights.matrix(FFN, HIDDEN), weights.matrix(FFN, HIDDEN)
            t[p + "mlp.down_proj.weight"] = weights.matrix(HIDDEN, FFN)
        if kind == "full_attention":
            p += "self_attn."
            t[p + "q_proj.weight"] = weights.matrix(2 * HEADS * HEAD_DIM, HIDDEN)
            t[p + "k_proj.weight"], t[p + "v_proj.weight"] = (weights.matrix(KV_HEADS * HEAD_DIM, HIDDEN) for _ in range(2))
            t[p + "o_proj.weight"] = weights.matrix(HIDDEN, HEADS * HEAD_DIM)
            t[p + "q_norm.weight"], t[p + "k_norm.weight"] = weights.vector(HEAD_DIM, 0), weights.vector(HEAD_DIM, 0)
        else:
            p += "linear_attn."
            t.update({p + name: x for name, x in delta_projections(weights, fused_projections).items()})
            t[p + "conv1d.weight"] = weights.matrix(2 * keys + values, 1, TAPS)
            t[p + "A_log"], t[p + "dt_bias"] = weights.vector(VALUE_HEADS), weights.vector(VALUE_HEADS, 0)
            t[p + "norm.weight"] = weights.vector(KEY_DIM)
            t[p + "out_proj.weight"] = weights.matrix(HIDDEN, values)
    return t


QWEN_NAMES = {"input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "post_attention_norm.weight",
              "mlp.gate_proj.weight": "ffn_gate.weight", "mlp.up_proj.weight": "ffn_up.weight", "mlp.down_proj.weight": "ffn_down.weight",
              "self_attn.q_proj.weight": "attn_q.weight", "self_attn.k_proj.weight": "attn_k.weight", "self_attn.v_proj.weight": "attn_v.weight",
              "self_attn.o_proj.weight": "attn_output.weight", "self_attn.q_norm.weight": "attn_q_norm.weight",
              "self_attn.k_norm.weight": "attn_k_norm.weight", "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
              "linear_attn.in_proj_z.weight": "attn_gate.weight", "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
              "linear_attn.in_proj_b.weight": "ssm_beta.weight", "linear_attn.conv1d.weight": "ssm_conv1d.weight",
              "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.norm.weight": "ssm_norm.weight",
              "linear_attn.out_proj.weight": "ssm_out.weight", "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
              "mlp.gate.weight": "ffn_gate_inp.weight", "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
              "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight", "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
              "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight", "mlp.experts.down_proj": "ffn_down_exps.weight",
              "mlp.experts.gate_proj": "ffn_gate_exps.weight", "mlp.experts.up_proj": "ffn_up_exps.weight"}


def next_converted(name, x):
    """Qwen3-Next: the value heads keep their order. q, k, v and z are stored by key head."""
    if ".in_proj_qkvz." in name:
        share = SHARE * KEY_DIM
        parts = np.split(x.reshape(KEY_HEADS, -1, HIDDEN), [KEY_DIM, 2 * KEY_DIM, 2 * KEY_DIM + share], axis=1)
        q, k, v, z = (part.reshape(-1, HIDDEN) for part in parts)
        return {"attn_qkv.weight": np.concatenate([q, k, v]), "attn_gate.weight": z}
    if name.endswith(".A_log"):
        return -np.exp(x)
    if ".conv1d." in name:
        return x.squeeze(1)
    return x + np.float32(1) if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight") else x


def qwen_converted(name, x):
    if name.endswith(".gate_up_proj"):
        return {"ffn_gate_exps.weight": x[:, :EXPERT_FFN], "ffn_up_exps.weight": x[:, EXPERT_FFN:]}
    qk = 2 * KEY_HEADS * KEY_DIM
    if name.endswith(".A_log"):
        return tiled(-np.exp(x), 1)
    if name.endswith(".dt_bias") or ".in_proj_a." in name or ".in_proj_b." in name:
        return tiled(x, 1)
    if ".in_proj_z." in name:
        return tiled(x, KEY_DIM)
    if ".conv1d." in name or ".in_proj_qkv." in name:
        x = x.squeeze(1) if x.ndim == 3 else x
        return np.concatenate([x[:qk], tiled(x[qk:], KEY_DIM)])
    if ".out_proj." in name:
        return tiled(x, KEY_DIM, axis=1)
    return x + np.float32(1) if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight") else x


def qwen_fields(w, mixture=False, draft_layers=1):
    add_usual(w, len(QWEN_TYPES) + draft_layers)
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(HEAD_DIM)
    w.add_value_length(HEAD_DIM)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_dimension_count(HEAD_DIM // 2)
    if draft_layers:
        w.add_rope_dimension_sections([2, 1, 1, 0])
    w.add_ssm_conv_kernel(TAPS)
    w.add_ssm_state_size(KEY_DIM)
    w.add_ssm_group_count(KEY_HEADS)
    w.add_ssm_time_step_rank(VALUE_HEADS)
    w.add_ssm_inner_size(VALUE_HEADS * KEY_DIM)
    w.add_array(f"{w.arch}.attention.recurrent_layers", [kind == "linear_attention" for kind in QWEN_TYPES] + [False] * draft_layers)
    w.add_uint32(f"{w.arch}.full_attention_interval", 4)
    if draft_layers:
        w.add_uint32(f"{w.arch}.nextn_predict_layers", draft_layers)
    if mixture:
        w.add_expert_count(EXPERTS)
        w.add_expert_used_count(2)
        w.add_expert_feed_forward_length(EXPERT_FFN)
        w.add_expert_shared_feed_forward_length(SHARED_FFN)


QWEN = dict(model_type="qwen3_5_text", architectures=["Qwen3_5ForCausalLM"], **COMMON, num_hidden_layers=len(QWEN_TYPES), head_dim=HEAD_DIM,
            rms_norm_eps=1e-6, hidden_act="silu", layer_types=QWEN_TYPES, linear_num_key_heads=KEY_HEADS, linear_num_value_heads=VALUE_HEADS,
            linear_key_head_dim=KEY_DIM, linear_value_head_dim=KEY_DIM, linear_conv_kernel_dim=TAPS, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5, mrope_section=[2, 1, 1]))

MIXTURE = dict(num_experts=EXPERTS, num_experts_per_tok=2, moe_intermediate_size=EXPERT_FFN, shared_expert_intermediate_size=SHARED_FFN)
QWEN_MOE = dict(QWEN, model_type="qwen3_5_moe_text", architectures=["Qwen3_5MoeForCausalLM"], **MIXTURE)
QWEN_NEXT = dict(QWEN, model_type="qwen3_next", architectures=["Qwen3NextForCausalLM"], **MIXTURE)

# ---------------------------------------------------------------------------------------------------------------------
# LFM2

LFM_TYPES = ["conv", "full_attention", "conv"]


def lfm_tensors(weights, dense=len(LFM_TYPES)):
    t = {"model.embed_tokens.weight": weights.matrix(VOCAB, HIDDEN, scale=1.0), "model.embedding_norm.weight": weights.vector(HIDDEN)}
    for i, kind in enumerate(LFM_TYPES):
        p = f"model.layers.{i}."
        t[p + "operator_norm.weight"], t[p + "ffn_norm.weight"] = weights.vector(HIDDEN), weights.vector(HIDDEN)
        if i < dense:
            t[p + "feed_forward.w1.weight"], t[p + "feed_forward.w3.weight"] = weights.matrix(FFN, HIDDEN), weights.matrix(FFN, HIDDEN)
            t[p + "feed_forward.w2.weight"] = weights.matrix(HIDDEN, FFN)
        else:
            t[p + "feed_forward.gate.weight"], t[p + "feed_forward.expert_bias"] = weights.matrix(EXPERTS, HIDDEN), weights.vector(EXPERTS, 0)
            for e in range(EXPERTS):
                for part, shape in (("w1", (EXPERT_FFN, HIDDEN)), ("w3", (EXPERT_FFN, HIDDEN)), ("w2", (HIDDEN, EXPERT_FFN))):
                    t[p + f"feed_forward.experts.{e}.{part}.weight"] = weights.matrix(*shape)
        if kind == "conv":
            t[p + "conv.in_proj.weight"], t[p + "conv.out_proj.weight"] = weights.matrix(3 * HIDDEN, HIDDEN), weights.matrix(HIDDEN, HIDDEN)
            t[p + "conv.conv.weight"] = weights.matrix(HIDDEN, 1, 3)
        else:
            p += "self_attn."
            t[p + "q_proj.weight"], t[p + "out_proj.weight"] = weights.matrix(HEADS * 8, HIDDEN), weights.matrix(HIDDEN, HEADS * 8)
            t[p + "k_proj.weight"], t[p + "v_proj.weight"] = (weights.matrix(KV_HEADS * 8, HIDDEN) for _ in range(2))
            t[p + "q_layernorm.weight"], t[p + "k_layernorm.weight"] = weights.vector(8), weights.vector(8)
    return t


LFM_NAMES = {"operator_norm.weight": "attn_norm.weight", "ffn_norm.weight": "ffn_norm.weight", "feed_forward.w1.weight": "ffn_gate.weight",
             "feed_forward.w3.weight": "ffn_up.weight", "feed_forward.w2.weight": "ffn_down.weight",
             "conv.in_proj.weight": "shortconv.in_proj.weight", "conv.out_proj.weight": "shortconv.out_proj.weight",
             "conv.conv.weight": "shortconv.conv.weight", "self_attn.q_proj.weight": "attn_q.weight", "self_attn.k_proj.weight": "attn_k.weight",
             "feed_forward.gate.weight": "ffn_gate_inp.weight", "feed_forward.expert_bias": "exp_probs_b.bias",
             "feed_forward.experts.w1": "ffn_gate_exps.weight", "feed_forward.experts.w3": "ffn_up_exps.weight",
             "feed_forward.experts.w2": "ffn_down_exps.weight",
             "self_attn.v_proj.weight": "attn_v.weight", "self_attn.out_proj.weight": "attn_output.weight",
             "self_attn.q_layernorm.weight": "attn_q_norm.weight", "self_attn.k_layernorm.weight": "attn_k_norm.weight"}


def lfm_converted(name, x):
    return x.squeeze(1) if ".conv.conv." in name else x


def lfm_fields(w):
    add_usual(w, len(LFM_TYPES))
    w.add_head_count_kv([KV_HEADS if kind != "conv" else 0 for kind in LFM_TYPES])
    w.add_layer_norm_rms_eps(1e-5)
    w.add_uint32(f"{w.arch}.shortconv.l_cache", 3)


def lfm_moe_fields(w):
    lfm_fields(w)
    w.add_expert_count(EXPERTS)
    w.add_expert_used_count(2)
    w.add_expert_feed_forward_length(EXPERT_FFN)
    w.add_leading_dense_block_count(1)
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


LFM = dict(model_type="lfm2", architectures=["Lfm2ForCausalLM"], **COMMON, num_hidden_layers=len(LFM_TYPES), norm_eps=1e-5, conv_bias=False,
           conv_L_cache=3, block_auto_adjust_ff_dim=False, layer_types=LFM_TYPES, tie_word_embeddings=True,
           rope_parameters=dict(rope_type="default", rope_theta=10000.0))
LFM_MOE = dict(LFM, model_type="lfm2_moe", architectures=["Lfm2MoeForCausalLM"], num_experts=EXPERTS, num_experts_per_tok=2,
               moe_intermediate_size=EXPERT_FFN, num_dense_layers=1, use_expert_bias=True)

GLOBAL = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight",
          "model.embedding_norm.weight": "token_embd_norm.weight"}
PAIRS = {"qwen3_5": ("qwen35", QWEN, qwen_tensors, QWEN_NAMES, qwen_converted, qwen_fields),
         "qwen3_5_moe": ("qwen35moe", QWEN_MOE, lambda weights: qwen_tensors(weights, mixture=True), QWEN_NAMES, qwen_converted,
                         lambda w: qwen_fields(w, mixture=True)),
         "qwen3_next": ("qwen3next", QWEN_NEXT, lambda weights: qwen_tensors(weights, mixture=True, fused_projections=True), QWEN_NAMES,
                        next_converted, lambda w: qwen_fields(w, mixture=True, draft_layers=0)),
         "lfm2": ("lfm2", LFM, lfm_tensors, LFM_NAMES, lfm_converted, lfm_fields),
         "lfm2_moe": ("lfm2moe", LFM_MOE, lambda weights: lfm_tensors(weights, 1), LFM_NAMES, lfm_converted, lfm_moe_fields)}


def copy_tokenizer(w):
    for name, field in gguf.GGUFReader(FIXTURES / "tiny-llama.gguf").fields.items():
        if not name.startswith("tokenizer."):
            continue
        value = field.contents()
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            w.add_array(name, value)
        else:
            w.add_key_value(name, value, field.types[0])


def stacked(tensors):
    """The tensors of all experts of a layer as one."""
    out, stacks = {}, {}
    for key, x in tensors.items():
        found = re.match(r"(.*\.experts)\.(\d+)\.(\w+)\.weight$", key)
        if found:
            stacks.setdefault(f"{found[1]}.{found[3]}", []).append(x)
        else:
            out[key] = x
    return {**out, **{key: np.stack(parts) for key, parts in stacks.items()}}


def write(name):
    arch, config, make, names, convert, fields = PAIRS[name]
    folder, tensors = FIXTURES / "hybrid" / name, make(Weights(7))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({key: x.astype(ml_dtypes.bfloat16) for key, x in tensors.items()}, folder / "model.safetensors")
    w = gguf.GGUFWriter(FIXTURES / "hybrid" / f"{name}.gguf", arch)
    fields(w)
    copy_tokenizer(w)
    for key, x in stacked(tensors).items():
        layer, converted = key.split("."), convert(key, x)
        if key in GLOBAL:
            w.add_tensor(GLOBAL[key], np.ascontiguousarray(converted))
            continue
        parts = converted if isinstance(converted, dict) else {names[".".join(layer[3:])]: converted}
        for part, numbers in parts.items():
            w.add_tensor(f"blk.{layer[2]}.{part}", np.ascontiguousarray(numbers))
    if name.startswith("qwen3_5"):  # a tensor of the draft layer, which is skipped
        w.add_tensor(f"blk.{len(QWEN_TYPES)}.nextn.enorm.weight", np.ones(HIDDEN, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


for pair in sys.argv[1:] or PAIRS:
    write(pair)
