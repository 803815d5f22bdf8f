#!/usr/bin/env python3
"""Times the peer: Hugging Face transformers, bf16, batch 1, in its fastest known configuration on this GPU.

  peer.py MODEL_DIR [-p 512] [-n 128] [-d 0,4096] [-r 5] [--compile]

Decoding: a static cache and one step, greedy choice included, in one CUDA graph that is replayed for each token. The prompt:
eager and as a CUDA graph. --compile tries both through torch.compile as well (a minute more). The best median of each counts.
Prints a line of JSON for each test, named as llama-bench names it: {"test": "tg128 @ d4096", "tokens_per_second": 381.9, ...}.
"""
import argparse
import json
import statistics

import torch
import transformers
from transformers import AutoModelForCausalLM, StaticCache

WARMUP = 3


def arguments():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("model")
    parser.add_argument("-p", "--prompt", type=int, default=512, help="0: leave out")
    parser.add_argument("-n", "--tokens", type=int, default=128, help="0: leave out")
    parser.add_argument("-d", "--depth", default="0", help="positions in use before the first token, several with commas")
    parser.add_argument("-r", "--repetitions", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    return parser.parse_args()


def seconds(work):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def captured(work):
    """|work| as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARMUP):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def prompt_ways(model, args):
    """How -> a function that reads the prompt once."""
    ids = torch.randint(model.config.vocab_size, (1, args.prompt), device="cuda")

    def reader(forward):
        return lambda: forward(input_ids=ids, use_cache=True, logits_to_keep=1).logits.argmax(-1)
    yield "eager", lambda: reader(model)
    yield "CUDA graph", lambda: captured(reader(model))
    if args.compile:
        compiled = torch.compile(model, dynamic=False)
        yield "compiled", lambda: reader(compiled)
        yield "compiled, CUDA graph", lambda: captured(reader(compiled))


class Decoder:
    """A sequence with |depth| positions in use, and the step that adds one."""

    def __init__(self, model, depth, tokens):
        self.depth = depth
        length = -(-(depth + max(tokens, WARMUP + 1)) // 64) * 64  # no longer than needed: every step attends to all of it
        self.cache = StaticCache(config=model.config, max_cache_len=length)
        self.token = torch.ones((1, 1), dtype=torch.long, device="cuda")
        model(input_ids=self.token, past_key_values=self.cache, use_cache=True)  # the first call allocates
        for layer in self.cache.layers:
            layer.keys.normal_()
            layer.values.normal_()
        self.rewind()

    def rewind(self):
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.depth)

    def step(self, forward):
        logits = forward(input_ids=self.token, past_key_values=self.cache, use_cache=True).logits
        self.token.copy_(logits[:, -1].argmax(-1, keepdim=True))


def decode_ways(model, args, depth):
    """How -> a function that decodes all tokens once."""
    decoder = Decoder(model, depth, args.tokens)

    def runner(forward):
        decoder.rewind()
        replay = captured(lambda: decoder.step(forward))

        def run():
            for _ in range(args.tokens):
                replay()
        return decoder.rewind, run
    yield "static cache, CUDA graph", lambda: runner(model)
    if args.compile:
        yield "compiled, static cache, CUDA graph", lambda: runner(torch.compile(model, dynamic=False))


def measure(test, count, ways, repetitions):
    """Prints the way with the best median, and why a way could not be taken."""
    results, failures = [], []
    for how, make in ways:
        try:
            made = make()
            rewind, work = made if isinstance(made, tuple) else (lambda: None, made)
            times = []
            for i in range(WARMUP + repetitions):
                rewind()
                times.append(seconds(work))
            rates = [count / t for t in times[WARMUP:]]
            results.append((statistics.median(rates), how, min(rates), max(rates)))
        except RuntimeError as error:
            torch.cuda.synchronize()
            failures.append(f"{how}: {str(error).splitlines()[0]}")
    if not results:
        raise SystemExit(f"peer.py: {test}: nothing worked: {failures}")
    rate, how, least, most = max(results)
    print(json.dumps({"test": test, "tokens_per_second": round(rate, 1), "least": round(least, 1), "most": round(most, 1), "how": how,
                      "others": {h: round(r, 1) for r, h, _, _ in results if h != how}, "failed": failures}), flush=True)


def main():
    args = arguments()
    transformers.utils.logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).to("cuda").eval()
    print(json.dumps({"peer": f"transformers {transformers.__version__}, torch {torch.__version__}", "dtype": "bf16",
                      "gpu": torch.cuda.get_device_name(), "attention": model.config._attn_implementation}), flush=True)
    with torch.no_grad():
        if args.prompt:
            measure(f"pp{args.prompt}", args.prompt, prompt_ways(model, args), args.repetitions)
        for depth in map(int, args.depth.split(",")) if args.tokens else []:
            name = f"tg{args.tokens}" + (f" @ d{depth}" if depth else "")
            measure(name, args.tokens, decode_ways(model, args, depth), args.repetitions)


if __name__ == "__main__":
    main()
