#!/usr/bin/env python3
"""The default mode against Hugging Face fp32 on long prompts: the same tokens, and logits that differ by rounding only.

  long_prompts.py LOGITS_DUMP BUNDLE MODEL [--device cuda|cpu] [--lengths 300,700,1500,3000] [--steps 24]

LOGITS_DUMP is build/tests/logits_dump. BUNDLE was compiled from the Hugging Face directory MODEL with a context that is long enough. Prompts are random
tokens. Hugging Face reads prompt and continuation as one sequence, in f32 with TF32 off. Exit status 1 if a token differs or a logit is off by more than
1e-4 of the largest one.
"""
import argparse
import pathlib
import tempfile

import numpy as np

import kl_gate


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("logits_dump")
    parser.add_argument("bundle", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--lengths", default="300,700,1500,3000")
    parser.add_argument("--steps", type=int, default=24)
    args = parser.parse_args()
    import torch
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    exact, failed = kl_gate.hugging_face(args.model, "f32", "eager"), 0
    vocab, random = exact.config.vocab_size, np.random.default_rng(1)
    prompts = [[0, *map(int, random.integers(3, vocab, int(length) - 1))] for length in args.lengths.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        ours, same, _ = kl_gate.dump(args, prompts, vocab, folder)
        for ids, record in zip(prompts, ours):
            tokens = torch.tensor(record["token"].copy(), dtype=torch.long, device=exact.device)
            sequence = torch.cat([torch.tensor(ids, device=exact.device), tokens[:args.steps]])[None]
            with torch.no_grad():
                logits = exact(sequence, logits_to_keep=args.steps + 1).logits[0].double()
            off = float((torch.tensor(record["logits"].copy(), device=exact.device).double() - logits).abs().max() / logits.abs().max())
            equal = int((logits.argmax(1) == tokens).sum())
            failed += equal != len(tokens) or off > 1e-4
            print(f"prompt of {len(ids)}: {equal} of {len(tokens)} tokens, logits off by {off:.1e} of the largest", flush=True)
    print("two runs give the same bytes" if same else "two runs differ", "FAIL" if failed or not same else "PASS")
    raise SystemExit(bool(failed or not same))


if __name__ == "__main__":
    main()
