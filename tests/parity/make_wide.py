#!/usr/bin/env python3
"""Makes the second size of every architecture fixture, which the GPU kernels take, and its goldens by Hugging Face.

  make_wide.py [NAME...]        writes tests/fixtures/wide/NAME.json and tests/goldens/wide/NAME.json; all of them without a NAME.
                                Needs torch and transformers.
  make_wide.py --write FOLDER [NAME...]   writes the models as Hugging Face directories FOLDER/NAME. Needs numpy only.

The names and fields are those of make_fixtures.py and numpy_models.py. The sizes differ: heads of 16, and a multiple of 32 columns in every matrix. The
weights are generated from a seed (wide_weights.py), so the tree has none of them. transformers reads the generated directory itself, in f32.
"""
import json
import pathlib
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import numpy_models  # noqa: E402
from numpy_models import STEPS, TESTS, VOCAB, is_good, make_prompts  # noqa: E402
from wide_weights import DEVIATION, WIDE, weights, write_directory  # noqa: E402

SIZES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512)
EIGHT = dict(short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7], long_factor=[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0])
LATENT = dict(num_key_value_heads=4, q_lora_rank=32, qk_nope_head_dim=32, v_head_dim=16)
MIXTURE = dict(n_routed_experts=8, moe_intermediate_size=32)
# name: fields whose size differs from the first fixture
RESIZED = {
    "phi3-long": dict(intermediate_size=96),
    "phi3-short": dict(rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=1.0,
                                            original_max_position_embeddings=256, **EIGHT)),
    "minicpm-long": dict(rope_scaling=dict(rope_type="longrope", original_max_position_embeddings=128, **EIGHT)),
    "gpt2": dict(n_embd=64, n_inner=96),
    "mixtral": dict(intermediate_size=32),
    "qwen3_moe": dict(num_experts=8, moe_intermediate_size=32),
    "qwen2_moe": dict(num_experts=8, moe_intermediate_size=32, shared_expert_intermediate_size=64),
    "olmoe": dict(num_experts=8, intermediate_size=32),
    "granitemoe": dict(num_local_experts=8, intermediate_size=32),
    "gpt_oss": dict(num_local_experts=8, intermediate_size=32),
    "gpt_oss-mxfp4": dict(head_dim=32, num_local_experts=8),
    "qwen3_5": dict(linear_key_head_dim=32),
    "qwen3_5_moe": dict(linear_key_head_dim=32, num_experts=8, moe_intermediate_size=32, shared_expert_intermediate_size=64),
    "qwen3_next": dict(linear_key_head_dim=32, num_experts=8, moe_intermediate_size=32, shared_expert_intermediate_size=64),
    "lfm2_moe": dict(num_experts=8, moe_intermediate_size=32),
    "glm4_moe": dict(n_routed_experts=8, moe_intermediate_size=32),
    "dots1": dict(n_routed_experts=8, moe_intermediate_size=32),
    "ernie4_5_moe": dict(moe_num_experts=8, moe_intermediate_size=32),
    "exaone_moe": dict(num_experts=8, moe_intermediate_size=32),
    "afmoe": dict(num_experts=8, moe_intermediate_size=32),
    "minimax_m2": dict(num_local_experts=8, intermediate_size=32),
    "hunyuan_v1_moe": dict(num_experts=8, intermediate_size=32),
    "cohere2_moe": dict(num_experts=8, intermediate_size=32, prefix_dense_intermediate_size=96),
    "gemma4": dict(head_dim=256, global_head_dim=512),
    "gemma4-embeddings": dict(hidden_size_per_layer_input=32),
    "gemma4-experts": dict(num_experts=8, moe_intermediate_size=32),
    "gemma3n": dict(hidden_size_per_layer_input=32, laurel_rank=32),
    "phimoe": dict(num_local_experts=8, intermediate_size=32),
    "baichuan": dict(num_key_value_heads=4),
    # Rows of the cache as in published models, which are read in pieces, and of fewer numbers.
    "deepseek_v2": dict(**LATENT, **MIXTURE, kv_lora_rank=32, qk_rope_head_dim=16),
    "deepseek_v2-lite": dict(**{**LATENT, "q_lora_rank": None}, **MIXTURE, kv_lora_rank=128, qk_rope_head_dim=16),
    "deepseek_v3": dict(**LATENT, **MIXTURE, kv_lora_rank=512, qk_rope_head_dim=64),
    "deepseek_v3-halves": dict(**{**LATENT, "q_lora_rank": None}, **MIXTURE, kv_lora_rank=96, qk_rope_head_dim=32),
    "glm4_moe_lite": dict(**LATENT, **MIXTURE, kv_lora_rank=512, qk_rope_head_dim=64),
    "minicpm3": dict(**LATENT, kv_lora_rank=256, qk_rope_head_dim=32, rope_parameters=dict(
        rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=512,
        short_factor=[1.0 + 0.05 * i for i in range(16)], long_factor=[1.0 + 0.5 * i for i in range(16)])),
    "mistral4": dict(**LATENT, **MIXTURE, kv_lora_rank=256, qk_rope_head_dim=64, rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
        mscale_all_dim=1.0, llama_4_scaling_beta=0.3, partial_rotary_factor=64 / 96)),
}
MATRICES, GATES = ("experts.gate_up_proj", "experts.down_proj"), {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


def scale_of(name, shape, mean):
    """(factor, offset) of a tensor: large enough that every part of the network affects the logits."""
    if not shape:  # a constant
        return 0.0, mean
    if len(shape) >= 2:
        return (1.0 if any(part in name for part in ("embed", "wte", "wpe")) else 2.0) / shape[-1] ** 0.5 / DEVIATION, 0.0
    if name.endswith("bias") or "sink" in name:
        return 0.3 / DEVIATION, 0.0
    return 0.3 / DEVIATION, 0.0 if abs(mean) < 0.5 else 1.0  # the gain of a norm; some architectures store gain - 1


def numpy_fixture(name):
    config = {**numpy_models.COMMON, **numpy_models.FIXTURES[name], **SIZES, **RESIZED.get(name, {})}
    return {"config": config, "tensors": [[tensor, "BF16", list(shape), *scale_of(tensor, shape, 1.0)]
                                          for tensor, shape in sorted(numpy_models.shapes(config).items())]}


def run_numpy(fixture, prompts):
    import numpy as np
    w = {name: (bits.astype(np.uint32) << 16).view(np.float32) for name, bits in weights(fixture).items()}
    for ids in prompts:
        yield numpy_models.run(fixture["config"], w, ids)


def torch_fixture(name):
    """The config and tensors that save_pretrained writes."""
    import safetensors.torch
    import torch
    import transformers
    from make_fixtures import FIXTURES
    kind, differences = FIXTURES[name]
    fields = {**SIZES, "vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": None, **differences, **RESIZED.get(name, {})}
    config = transformers.AutoConfig.for_model(kind, **fields)
    make = transformers.Mistral4ForCausalLM._from_config if kind == "mistral4" else transformers.AutoModelForCausalLM.from_config
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        make(config).to(torch.bfloat16).save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
    assert config["model_type"] == kind, config["model_type"]
    rows = []
    for tensor, x in sorted(tensors.items()):
        shape = list(x.shape)
        if name.endswith("-mxfp4") and tensor.endswith(MATRICES):
            experts, columns, matrix_rows = shape
            rows.append([tensor + "_blocks", "U8", [experts, matrix_rows, columns // 32, 16], 256, 0])
            rows.append([tensor + "_scales", "U8", [experts, matrix_rows, columns // 32], 4, 122])
            config["quantization_config"] = GATES
        else:
            rows.append([tensor, "BF16", shape, *scale_of(tensor, shape, float(x.float().mean()))])
    return {"config": config, "tensors": rows}


def unpacked(tensors):
    """MXFP4 codes as the bf16 numbers that transformers makes of them."""
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    from wide_weights import to_bf16
    out = {}
    for name, bits in tensors.items():
        if name.endswith("_blocks"):
            scales = torch.from_numpy(tensors[name[:-len("_blocks")] + "_scales"])
            out[name[:-len("_blocks")]] = to_bf16(convert_moe_packed_tensors(torch.from_numpy(bits), scales).to(torch.float32).numpy())
        elif not name.endswith("_scales"):
            out[name] = bits
    return out


def run_torch(fixture, prompts):
    import torch
    import transformers
    from make_fixtures import run
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        config = {key: value for key, value in fixture["config"].items() if key != "quantization_config"}
        write_directory({**fixture, "config": config}, folder, unpacked(weights(fixture)))
        # The automatic class knows Mistral 4 as a part of a multimodal model only.
        kind = transformers.Mistral4ForCausalLM if config["model_type"] == "mistral4" else transformers.AutoModelForCausalLM
        model, info = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                                        output_loading_info=True)
        assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
        model.eval()
    for ids in prompts:
        out, logits, margin = run(model, ids)
        yield out, logits.numpy(), margin


def versions(is_numpy):
    if is_numpy:
        import numpy
        return {"reference": "the numpy forward of tests/parity/numpy_models.py: transformers has no class of it", "numpy": numpy.__version__}
    import torch
    import transformers
    return {"transformers": transformers.__version__, "torch": torch.__version__}


def make(name, prompts):
    is_numpy = name in numpy_models.FIXTURES
    fixture = {"made_by": "tests/parity/make_wide.py", **(numpy_fixture(name) if is_numpy else torch_fixture(name))}
    for seed in range(1, 200):
        fixture["seed"], results = seed, []
        for result in (run_numpy if is_numpy else run_torch)(fixture, prompts):
            results.append(result)
            if not is_good(result[0], result[2]):
                break
        else:
            break
    else:
        sys.exit(f"no seed for {name}")
    rows = ",\n  ".join(json.dumps(row) for row in fixture.pop("tensors"))
    text = json.dumps(fixture, indent=1)[:-2] + f',\n "tensors": [\n  {rows}\n ]\n}}\n'
    (WIDE / f"{name}.json").write_text(text)
    golden = {"model": f"tests/fixtures/wide/{name}", "made_by": "tests/parity/make_wide.py", "seed": seed, **versions(is_numpy), "dtype": "float32",
              "decoding": f"greedy, {STEPS} tokens, not stopped at end-of-text; last_logits chose the last one",
              "results": [{"prompt_ids": ids, "output_ids": out, "last_logits": [float(f"{v:.7g}") for v in logits.tolist()]}
                          for ids, (out, logits, _) in zip(prompts, results)]}
    (TESTS / "goldens" / "wide" / f"{name}.json").write_text(json.dumps(golden) + "\n")
    print(f"{name}: seed {seed}, nearest choice {min(r[2] for r in results):.1e} of the largest logit", flush=True)


def write_all(folder, names):
    tokenizer = TESTS / "fixtures" / "tiny-llama" / "tokenizer.json"
    for name in names or sorted(path.stem for path in WIDE.glob("*.json")):
        write_directory(json.loads((WIDE / f"{name}.json").read_text()), folder / name)
        shutil.copy(tokenizer, folder / name / "tokenizer.json")


def main():
    names = sys.argv[1:]
    if names[:1] == ["--write"]:
        write_all(pathlib.Path(names[1]), names[2:])
        return
    prompts = make_prompts()
    if not names:
        from make_fixtures import FIXTURES
        names = [*FIXTURES, *numpy_models.FIXTURES]
    for name in names:
        make(name, prompts)


if __name__ == "__main__":
    main()
