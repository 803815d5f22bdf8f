#!/usr/bin/env python3
"""Makes the tiny Llama fixture of the test suite and its golden by Hugging Face.

  make_tiny.py model     writes tests/fixtures/tiny-llama (sharded safetensors) and tests/fixtures/tiny-llama.gguf;
                         needs numpy, tokenizers, safetensors, gguf
  make_tiny.py goldens   writes tests/goldens/tiny-llama.json; needs torch and transformers

Weights come from numpy's generator with a fixed seed and the tokenizer is trained on the text below, so both are the same
on every machine. The model has grouped heads, an untied head and two layers; everything fits into 200 KB.
"""
import json
import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
MODEL = TESTS / "fixtures" / "tiny-llama"
GGUF = TESTS / "fixtures" / "tiny-llama.gguf"
GOLDENS = TESTS / "goldens" / "tiny-llama.json"

HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB, CONTEXT = 32, 64, 2, 4, 2, 8, 320, 2048
EPS, THETA = 1e-5, 10000.0
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT = ["the quick brown fox jumps over the lazy dog", "a small model that says nothing of use", "token for token the same",
        "an ahead of time compiler and a tiny runtime for language models", "in the beginning there was the word"]
PROMPTS = ["the quick brown", "<|im_start|>user\nWhat is 2 + 2? \u00e9\u4f60\U0001f600<|im_end|>\n<|im_start|>assistant\n",
           " ".join(TEXT * 2), " ".join(TEXT * 20)]


def tensors():
    import numpy as np
    rng = np.random.default_rng(20261115)
    def matrix(rows, cols):
        return (rng.standard_normal((rows, cols)) * (2.0 / cols ** 0.5)).astype(np.float32)
    def norm():
        return (1.0 + 0.1 * rng.standard_normal(HIDDEN)).astype(np.float32)
    t = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN)}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        t[p + "input_layernorm.weight"] = norm()
        t[p + "self_attn.q_proj.weight"] = matrix(HEADS * HEAD_DIM, HIDDEN)
        t[p + "self_attn.k_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN)
        t[p + "self_attn.v_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN)
        t[p + "self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * HEAD_DIM)
        t[p + "post_attention_layernorm.weight"] = norm()
        t[p + "mlp.gate_proj.weight"] = matrix(FFN, HIDDEN)
        t[p + "mlp.up_proj.weight"] = matrix(FFN, HIDDEN)
        t[p + "mlp.down_proj.weight"] = matrix(HIDDEN, FFN)
    t["model.norm.weight"] = norm()
    t["lm_head.weight"] = matrix(VOCAB, HIDDEN)
    return t


def make_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(TEXT, trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    assert tok.get_vocab_size() == VOCAB, tok.get_vocab_size()
    return tok


def write_safetensors(t):
    from safetensors.numpy import save_file
    names = list(t)
    half = len(names) // 2
    weight_map = {}
    for number, part in enumerate([names[:half], names[half:]], 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({n: t[n] for n in part}, MODEL / file, metadata={"format": "pt"})
        weight_map.update({n: file for n in part})
    total = sum(x.nbytes for x in t.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (MODEL / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def write_gguf(t, tok):
    """Writes a GGUF file in the way of llama.cpp's converter, with the rows of q and k interleaved for adjacent-pair rope."""
    import gguf
    w = gguf.GGUFWriter(GGUF, "llama")
    w.add_name("tiny-llama")
    w.add_block_count(LAYERS)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_layer_norm_rms_eps(EPS)
    w.add_rope_freq_base(THETA)
    w.add_rope_dimension_count(HEAD_DIM)
    w.add_vocab_size(VOCAB)
    spec = json.loads(tok.to_str())
    by_id = sorted(spec["model"]["vocab"].items(), key=lambda item: item[1])
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list([token for token, _ in by_id])
    w.add_token_types([3 if token in SPECIALS else 1 for token, _ in by_id])
    w.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in spec["model"]["merges"]])
    w.add_eos_token_id(2)
    w.add_add_bos_token(False)

    def interleave(x, heads):
        return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
    names = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
           "lm_head.weight": "output.weight"}
    for name, x in t.items():
        if name in top:
            w.add_tensor(top[name], x)
            continue
        _, _, layer, part = name.split(".", 3)
        part = part.removesuffix(".weight")
        if part == "self_attn.q_proj":
            x = interleave(x, HEADS)
        if part == "self_attn.k_proj":
            x = interleave(x, KV_HEADS)
        w.add_tensor(f"blk.{layer}.{names[part]}.weight", x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def make_model():
    MODEL.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN,
              "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
              "vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "rms_norm_eps": EPS, "rope_theta": THETA,
              "rope_scaling": None, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
              "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 2, "torch_dtype": "float32"}
    (MODEL / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (MODEL / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": [2, 0]}, indent=1) + "\n")
    t, tok = tensors(), make_tokenizer()
    tok.save(str(MODEL / "tokenizer.json"))
    write_safetensors(t)
    write_gguf(t, tok)


def make_goldens():
    import torch
    import transformers
    model = transformers.LlamaForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager")
    tok = transformers.PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"))
    results = []
    for prompt in PROMPTS:
        ids = tok(prompt, add_special_tokens=False)["input_ids"]
        x, out, logits = torch.tensor([ids]), [], None
        with torch.no_grad():
            for _ in range(48):
                step = model(x).logits[0, -1]
                logits = step.tolist() if logits is None else logits
                out.append(int(step.argmax()))
                x = torch.cat([x, torch.tensor([[out[-1]]])], 1)
        results.append({"prompt": prompt, "prompt_ids": ids, "output_ids": out, "first_logits": logits})
    GOLDENS.write_text(json.dumps({"model": "tests/fixtures/tiny-llama", "made_by": "tests/parity/make_tiny.py",
                                   "transformers": transformers.__version__, "torch": torch.__version__, "dtype": "float32",
                                   "decoding": "greedy, 48 tokens, not stopped at end-of-text", "results": results}) + "\n")


if __name__ == "__main__":
    {"model": make_model, "goldens": make_goldens}[sys.argv[1]]()
