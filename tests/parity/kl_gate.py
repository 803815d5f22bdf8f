#!/usr/bin/env python3
"""The numeric gate of the bf16 and f16 modes: a bundle's distributions may be no further from Hugging Face fp32 than those of Hugging Face
in the same dtype, and must be the same on every run.

  kl_gate.py LOGITS_DUMP BUNDLE MODEL [--dtype bf16|f16] [--device cuda|cpu] [--steps 16] [--prompts FILE] [--folder DIR]

LOGITS_DUMP is build/tests/logits_dump. MODEL is what the bundle was compiled from: a Hugging Face directory or a Llama's GGUF
file. Needs numpy, tokenizers, torch and transformers; DIR receives two files of (prompts x (steps + 1) x vocabulary x 4) bytes.

The reference is transformers in float32, TF32 off, with the weights as the file has them (a quantized type dequantized to float32):
the rounding of the weights is part of both errors. mlxcel reads each prompt and continues it greedily. Prompt and continuation then go
through both Hugging Face models as one sequence, and the distributions are compared at the last token of the prompt (the
prefill) and at each token after it (decoding): KL(fp32 || ours) and KL(fp32 || Hugging Face in that dtype), in float64.

Passes if two runs of mlxcel give the same bytes, and if its mean KL is no larger over the prefills, over the decoding steps, and over
both together. Exit status 0 or 1.
"""
import argparse
import filecmp
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import gguf_llama

LEAST_PROMPTS = 64


def arguments():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("logits_dump")
    parser.add_argument("bundle", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--dtype", choices=["bf16", "f16"], default="bf16")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="ours; Hugging Face takes the GPU when there is one")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--prompts", type=pathlib.Path, default=pathlib.Path(__file__).with_name("prompts.txt"))
    parser.add_argument("--folder", help="where the dumps go (default: a temporary folder)")
    return parser.parse_args()


def tokenize(bundle, prompts):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    lines = [line for line in prompts.read_text().splitlines() if line.strip()]
    if len(lines) < LEAST_PROMPTS:
        sys.exit(f"{prompts} has {len(lines)} prompts; the gate needs at least {LEAST_PROMPTS}")
    return [tokenizer.encode(line).ids for line in lines]


def dump(args, prompts, vocab, folder):
    """Both runs of mlxcel: [prompts, steps + 1] records of a token and its logits, and whether the runs were the same."""
    text = "".join(" ".join(map(str, ids)) + "\n" for ids in prompts)
    paths = [pathlib.Path(folder) / f"logits-{run}.bin" for run in (1, 2)]
    for path in paths:
        with open(path, "wb") as out:
            command = [args.logits_dump, str(args.bundle), args.device, str(args.steps)]
            run = subprocess.run(command, input=text.encode(), stdout=out)
        if run.returncode:
            sys.exit(f"{' '.join(command)}: exit status {run.returncode}")
    record = np.dtype([("token", "<i4"), ("logits", "<f4", (vocab,))])
    first, second = (np.memmap(path, record, "r").reshape(len(prompts), args.steps + 1) for path in paths)
    return first, filecmp.cmp(*paths, shallow=False), int((first["token"] != second["token"]).sum())


def hugging_face(path, dtype, attention=None):
    """|path| as transformers would load it in |dtype|. Rope's frequencies stay float32, as from_pretrained leaves them."""
    import torch
    import transformers
    transformers.utils.logging.disable_progress_bar()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]
    options = {"attn_implementation": attention} if attention else {}
    if path.is_dir():
        return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=kind, **options).to(device).eval()
    config, weights = gguf_llama.load(path)
    model = transformers.LlamaForCausalLM._from_config(transformers.LlamaConfig(**config), dtype=torch.float32, **options)
    missing, unexpected = model.load_state_dict({name: torch.tensor(np.array(x)) for name, x in weights.items()}, strict=False)
    if unexpected or set(missing) - ({"lm_head.weight"} if config["tie_word_embeddings"] else set()):
        sys.exit(f"{path}: tensors missing {missing}, not known {unexpected}")
    model.tie_weights()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(kind)
    return model.to(device).eval()


def compare(args, prompts, ours):
    """KL of ours and of Hugging Face's own dtype, and whether the best token is fp32's: four arrays [prompts, steps + 1]."""
    import torch
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    exact, rounded = hugging_face(args.model, "f32", "eager"), hugging_face(args.model, args.dtype)
    print(f"reference: {type(exact).__name__} f32, {exact.config._attn_implementation}; its own {args.dtype}: "
          f"{next(rounded.parameters()).dtype}, {rounded.config._attn_implementation}; torch {torch.__version__}, on {exact.device}")
    out = np.zeros((4, *ours.shape))
    with torch.no_grad():
        for number, ids in enumerate(prompts):
            tokens = torch.tensor(ours[number]["token"].copy(), dtype=torch.long, device=exact.device)
            sequence = torch.cat([torch.tensor(ids, dtype=torch.long, device=exact.device), tokens[:args.steps]])[None]
            log_softmax = lambda logits: torch.log_softmax(logits.to(exact.device).double(), -1)
            say = lambda model: log_softmax(model(sequence, logits_to_keep=args.steps + 1).logits[0])
            p, q_rounded, q_ours = say(exact), say(rounded), log_softmax(torch.tensor(ours[number]["logits"].copy()))
            if p.shape != q_ours.shape:
                sys.exit(f"Hugging Face gives {tuple(p.shape)} logits, we give {tuple(q_ours.shape)}")
            if not torch.equal(q_ours.gather(1, tokens[:, None])[:, 0], q_ours.max(1).values):
                sys.exit(f"prompt {number}: a token was chosen that has not the largest logit")
            for row, q in ((0, q_ours), (1, q_rounded)):
                out[row, number] = (p.exp() * (p - q)).sum(1).cpu().numpy()
            out[2, number] = (tokens == p.argmax(1)).cpu().numpy()
            out[3, number] = (q_rounded.argmax(1) == p.argmax(1)).cpu().numpy()
    return out


def report(args, result):
    print(f"\n| positions | count | our {args.dtype}: mean KL, max | Hugging Face {args.dtype}: mean KL, max | ours / theirs | "
          "fp32's best token: ours, theirs |\n| --- | --- | --- | --- | --- | --- |")
    right = True
    for name, part in (("prefill", result[:, :, :1]), ("decode", result[:, :, 1:]), ("together", result)):
        if not part.size:
            continue
        ours, theirs = part[0], part[1]
        right &= bool(ours.mean() <= theirs.mean())  # false for NaN
        print(f"| {name} | {ours.size} | {ours.mean():.3e}, {ours.max():.3e} | {theirs.mean():.3e}, {theirs.max():.3e} | "
              f"{ours.mean() / theirs.mean():.3f} | {int(part[2].sum())}, {int(part[3].sum())} |")
    return right


def main():
    args = arguments()
    manifest = json.loads((args.bundle / "manifest.json").read_text())
    code = manifest["targets"][0]
    if code["dtype"] != args.dtype:
        sys.exit(f"{args.bundle} stores {code['dtype']}, not {args.dtype}")
    prompts = tokenize(args.bundle, args.prompts)
    lengths = [len(ids) for ids in prompts]
    print(f"{args.bundle}: {manifest['source']}, {args.dtype}, {code['target']}; {len(prompts)} prompts of {min(lengths)} to "
          f"{max(lengths)} tokens, {args.steps} steps each, device {args.device}", flush=True)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        ours, same_bytes, other_tokens = dump(args, prompts, manifest["vocab"], folder)
        print(f"two runs: {'the same bytes' if same_bytes else f'DIFFERENT: {other_tokens} of {ours.size} tokens, and logits'}")
        right = report(args, compare(args, prompts, ours))
    right &= same_bytes
    print("PASS" if right else "FAIL")
    sys.exit(not right)


if __name__ == "__main__":
    main()
