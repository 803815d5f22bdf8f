#!/usr/bin/env python3
"""Tests and times kernels/cuda/decode.cu on its own, and shows where its time goes.

  decode_probe.py [--shape llama-1b|llama-8b|odd|grouped] [--dtype bf16|f16|FORMATS] [--depths 16,4096]
                  [--without ring,waits,attention] [--clocks] [--nvrtc LIBRARY] [--check-source]

FORMATS are quantized weights: a name in TILES of weight_layout.py (q4_0, q4_k, mxfp4 ...); or two of them, "q4_0,q8_0", the second for the head.

Needs a GPU, torch and NVRTC. Compares tokens and logits with a float64 forward in torch, single steps with a group
of steps, and a third of the grid with the whole grid (bit for bit). Then times groups of 64 tokens. --without removes a part to show its cost
(results are then wrong and not compared): the weight stream, the waits for other blocks, or attention. --clocks counts the cycles
of three blocks by phase. docs/internals/decode-kernel.md is written from what this prints. --check-source only checks that the source
still has every line that --without and --clocks replace; it needs neither a GPU nor torch.
"""
import argparse
import ctypes
import glob
import math
import struct
import sys

from kernel_source import source
from weight_layout import SHAPES, Layout

try:
    import torch
    from random_tiles import random_tiles
except ImportError:
    torch = None  # --check-source needs none

PAGE, CONTEXT, SHARED_BYTES, BLOCKS, THREADS = 16, 8192, 232448, 132, 288
PHASES = ["full", "x0", "qkv", "attend", "merge", "attended", "o", "x1", "", "pairs", "hidden", "down", "head", "", "embed"]


def replaced(text, *pairs):
    for old, new in pairs:
        if old not in text:
            sys.exit(f"decode.cu no longer contains: {old}")
        text = text.replace(old, new)
    return text


def without(text, part):
    if part == "ring":
        return replaced(text, ("      barrier_wait(&s->full[at.stage], at.parity);\n", ""),
                        ("      barrier_arrive(&s->free[at.stage]);\n", ""), ("      produce(m, s, steps);", ""))
    if part == "waits":
        return replaced(text, ("  while (is_empty(value));", "  while (0);"), ("for (bool again = true; again;)", "for (bool again = false; again;)"),
                        ("  *not_finite = s->not_finite;\n  return best.token;", "  *not_finite = false;\n  return 5;"))
    if part == "attention":
        return replaced(text, ("  attend(m, s, l, plan, position);\n", ""), ("  merge_heads(m, s, plan.splits);\n", ""),
                        ("(s, w->attended, attended);", "(s, m.logits, attended);"))
    sys.exit(f"--without takes ring, waits and attention, not {part}")


def with_clocks(text):
    return replaced(
        text, ("struct State {\n", "struct State {\n  u64 clocks[20];\n"),
        ("// |x| is the layer's input", "#define SINCE(i) { long long now = clock64(); if (threadIdx.x == 0) s->clocks[i] += now - since; since = now; }\n// |x| is the layer's input"),
        ("  c.rows<QkvFormat>(x, s->qkv,", "  long long since = clock64();\n  c.rows<QkvFormat>(x, s->qkv,"),
        ("  attend(m, s, l, plan, position);", "  SINCE(2) attend(m, s, l, plan, position); SINCE(3)"),
        ("  merge_heads(m, s, plan.splits);", "  merge_heads(m, s, plan.splits); SINCE(4)"),
        ("w->attended, attended);", "w->attended, attended); SINCE(5)"),
        ("  receive_and_normalize(s, w->x1[parity], AT(MLP_NORM, l), x);", "  SINCE(6) receive_and_normalize(s, w->x1[parity], AT(MLP_NORM, l), x); SINCE(7)"),
        ("    Activations<FFN> hidden;", "    SINCE(9) Activations<FFN> hidden;"), ("w->hidden[parity], hidden);", "w->hidden[parity], hidden); SINCE(10)"),
        ("  receive_and_normalize(s, w->x0, l", "  SINCE(11) receive_and_normalize(s, w->x0, l"),
        ("m.weights + FINAL_NORM_AT, x);\n", "m.weights + FINAL_NORM_AT, x); SINCE(1)\n"),
        ("      barrier_wait(&s->full[at.stage], at.parity);\n",
         "      long long asked = clock64(); barrier_wait(&s->full[at.stage], at.parity); if (threadIdx.x == 0) s->clocks[0] += clock64() - asked;\n"),
        ("    token = choose_token(m, c, s->epoch + step, position, x, &not_finite);",
         "    long long head = clock64(); token = choose_token(m, c, s->epoch + step, position, x, &not_finite); if (threadIdx.x == 0) s->clocks[12] += clock64() - head;"),
        ("  Consumer c = {s, {0, 0}, 0};\n", "  Consumer c = {s, {0, 0}, 0};\n  long long begin = clock64();\n  if (threadIdx.x == 0) for (int i = 0; i < 20; ++i) s->clocks[i] = 0;\n"),
        ("  return step;\n}\n\n// ------", """  const int nth = s->block == 0 ? 0 : s->block == s->blocks / 2 ? 1 : s->block == s->blocks - 1 ? 2 : -1;
  s->clocks[19] = clock64() - begin;
  if (threadIdx.x == 0 && nth >= 0) for (int i = 0; i < 20; ++i) ((float *)m.scratch->padding)[nth * 20 + i] = (float)s->clocks[i] / step;
  return step;\n}\n\n// ------"""))


def frequencies(shape):
    head_dim, theta = shape[4], shape[7]
    return [1.0 / theta ** (2 * i / head_dim) for i in range(head_dim // 2)]


def blocks_of(shape, unit=1):
    return min(BLOCKS, *(-(-rows // unit) for rows in (shape[0], shape[1], shape[6], (shape[2] + 2 * shape[3]) * shape[4])))


def scratch_words(shape, unit=1):
    hidden, ffn, heads, kv_heads, head_dim = shape[:5]
    blocks, queries, keys = blocks_of(shape, unit), heads * head_dim, kv_heads * head_dim
    choice = blocks * (8 + 4 * (2 + 2 * 64)) + -(-shape[6] // 4) * 4
    return 64 + choice + 3 * hidden + 2 * queries + 2 * keys + 2 * ffn + heads * max(1, blocks // kv_heads) * (head_dim + 2)


def compile_kernel(text, shape, layout, dtype, library):
    names = ("HIDDEN", "FFN", "HEADS", "KV_HEADS", "HEAD_DIM", "LAYERS", "VOCAB")
    options = [f"{name}={value}" for name, value in zip(names, shape)] + list(layout.definitions())
    options += [f"SEGMENT={2048 if layout.tiles else 1024}", "NORM_EPS=1e-5f", f"SCALE={shape[4] ** -0.5!r}f", f"BLOCKS={blocks_of(shape, 8 if layout.tiles else 1)}",
                f"SHARED_BYTES={SHARED_BYTES}", f"SCRATCH_WORDS={scratch_words(shape, 8 if layout.tiles else 1)}", "ROPE_FREQUENCIES=" + ",".join(f"{f!r}f" for f in frequencies(shape))]
    if not layout.tiles:
        options.append(f"DTYPE_{dtype.upper()}=1")
    arguments = ["--std=c++17", "--gpu-architecture=sm_%d%d" % torch.cuda.get_device_capability()] + ["-D" + o for o in options]
    found = [library] if library else glob.glob("/usr/local/cuda*/**/libnvrtc.so.13", recursive=True) + ["libnvrtc.so.13"]
    nvrtc, program, size = ctypes.CDLL(found[0]), ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"decode.cu", 0, None, None)
    failed = nvrtc.nvrtcCompileProgram(program, len(arguments), (ctypes.c_char_p * len(arguments))(*[a.encode() for a in arguments]))
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if failed:
        sys.exit(log.value.decode())
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    image = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, image)
    return image


class Kernel:
    def __init__(self, image):
        self.cuda, module, self.function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.cuda.cuModuleLoadData(ctypes.byref(module), image))
        self.check(self.cuda.cuModuleGetFunction(ctypes.byref(self.function), module, b"mlx_decode"))
        self.check(self.cuda.cuFuncSetAttribute(self.function, 8, SHARED_BYTES))

    def check(self, code):
        if code:
            sys.exit(f"the CUDA driver says {code}")

    def launch(self, grid, tensors):
        values = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
        arguments = (ctypes.c_void_p * len(values))(*[ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values])
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.check(self.cuda.cuLaunchKernel(self.function, grid, 1, 1, THREADS, 1, 1, SHARED_BYTES, stream, arguments, None))


class Model:
    def __init__(self, shape, layout, dtype):
        hidden, ffn, heads, kv_heads, head_dim, layers, vocab, _, _ = shape
        self.shape, self.layout, self.dtype = shape, layout, {"bf16": torch.bfloat16, "f16": torch.float16}.get(dtype, torch.float32)
        self.unit, self.numbers = 8 if layout.tiles else 1, {}
        torch.manual_seed(1)
        self.weights = torch.empty(layout.bytes, dtype=torch.uint8, device="cuda")
        for (name, layer), _ in layout.at.items():
            dims = layout.dims[name]
            spread = 0.5 if name in ("EMBED", "HEAD") else dims[-1] ** -0.5
            if len(dims) == 2 and layout.tiles:
                self.pack(name, layer, spread)
                continue
            noise = torch.randn(dims, device="cuda")
            self.weight(name, layer).copy_(1 + 0.1 * noise if len(dims) == 1 else noise * spread)
        pages = 1 + CONTEXT // PAGE
        self.kv_start = torch.randn(pages, layers, kv_heads, 2, PAGE, head_dim, device="cuda").to(self.dtype)
        self.kv, self.pages = self.kv_start.clone(), (torch.randperm(pages - 1, device="cuda") + 1).int()
        self.history = torch.zeros(CONTEXT + 1, dtype=torch.int32, device="cuda")
        self.results = torch.zeros(128, 48, dtype=torch.int32, device="cuda")
        self.logits, self.hidden = torch.zeros(vocab, device="cuda"), torch.zeros(hidden, device="cuda")
        self.scratch = torch.full((scratch_words(shape, self.unit),), -1, dtype=torch.int32, device="cuda")

    def pack(self, name, layer, spread):
        at = self.layout.at[name, layer]
        if (at, layer) in self.numbers:
            return
        packed, _, numbers = random_tiles(self.layout.tiles_of(name), self.layout.dims[name], spread)
        self.weights[at:at + len(packed)] = packed
        self.numbers[at, layer] = numbers

    def weight(self, name, layer=0):
        if len(self.layout.dims[name]) == 2 and self.layout.tiles:
            return self.numbers[self.layout.at[name, layer], layer]
        dims, at = self.layout.dims[name], self.layout.at[name, layer]
        kind = torch.float32 if len(dims) == 1 else self.dtype
        return self.weights[at:at + math.prod(dims) * kind.itemsize].view(kind).view(dims)

    def batch(self, token, position, steps, sampled=(), eos=()):
        """The words of kernels/step.h for one sequence in slot 0. |sampled|: top-k, top-p, min-p, temperature, seed; empty: greedy."""
        header = [1, 1, 1, len(self.pages) + 1, 1, len(self.pages), CONTEXT + 1, steps, 64, 65, 66, 67, 71, 72, 96, len(eos)] + list(eos)
        number = lambda x: struct.unpack("i", struct.pack("f", x))[0]
        k, p, least, temperature, seed = sampled or (0, 1, 0, 0, 0)
        sampling = [1, 0, 0, 0, 0, number(1), 0, 0, k, number(1), number(p), number(least), number(temperature), seed, 0]
        words = header + [0] * (64 - len(header)) + [token, 0, position, 0, 0, 1, position, 0] + sampling
        self.words = torch.cat([torch.tensor(words + [0] * (96 - len(words)), dtype=torch.int32, device="cuda"), self.pages])
        return [self.weights, self.words, self.history, self.kv, self.logits, self.hidden, self.results, self.scratch]

    def generate(self, kernel, start, groups, grid, sampled=(), eos=()):
        self.kv.copy_(self.kv_start)
        ids, token = [], 5
        for steps in groups:
            kernel.launch(grid, self.batch(token, start + len(ids), steps, sampled, eos))
            torch.cuda.synchronize()
            ids += [i for i in self.results[:steps, 0].tolist() if i >= 0]
            token = -1  # the token that the last launch stored in the history
        return ids, self.logits.clone()

    def reference(self, kv, token, position):
        hidden, ffn, heads, kv_heads, head_dim, layers, vocab, theta, tied = self.shape
        wide = lambda name, layer=0: self.weight(name, layer).double()
        norm = lambda x, gain: x * torch.rsqrt((x * x).mean() + 1e-5) * gain
        angle = position * torch.tensor(frequencies(self.shape), device="cuda", dtype=torch.float32).double()
        def turn(x):
            low, high = x.view(-1, head_dim).chunk(2, 1)
            return torch.cat([low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], 1)
        x, page = self.weight("EMBED")[token].double(), self.pages[position // PAGE].item()
        for layer in range(layers):
            h = norm(x, wide("ATTN_NORM", layer))
            q, k, v = turn(wide("Q", layer) @ h), turn(wide("K", layer) @ h), (wide("V", layer) @ h).view(-1, head_dim)
            kv[page, layer, :, 0, position % PAGE], kv[page, layer, :, 1, position % PAGE] = k.float().to(self.dtype), v.float().to(self.dtype)
            past = kv[self.pages[:position // PAGE + 1].long(), layer].permute(2, 1, 0, 3, 4).reshape(2, kv_heads, -1, head_dim)[:, :, :position + 1].double()
            p = torch.softmax(q.view(kv_heads, -1, head_dim) @ past[0].transpose(1, 2) * head_dim ** -0.5, -1)
            x = x + wide("O", layer) @ (p @ past[1]).reshape(-1)
            h = norm(x, wide("MLP_NORM", layer))
            x = x + wide("DOWN", layer) @ (torch.nn.functional.silu(wide("GATE", layer) @ h) * (wide("UP", layer) @ h))
        return self.weight("HEAD").float() @ norm(x, wide("FINAL_NORM")).float()


def compare(model, kernel, start):
    blocks, kv, token, expected = blocks_of(model.shape, model.unit), model.kv_start.clone(), 5, []
    ids, logits = model.generate(kernel, start, [1, 1, 1, 5], blocks)
    for i in range(8):
        reference = model.reference(kv, token, start + i)
        token = int(reference.argmax())
        expected.append(token)
    group, few = model.generate(kernel, start, [8], blocks), model.generate(kernel, start, [3, 5], max(1, blocks // 3))
    same = lambda other: other[0] == ids and torch.equal(other[1], logits)
    stopped = model.generate(kernel, start, [8], blocks, eos=[ids[3]])[0]
    print(f"position {start}: stops {'there' if stopped == ids[:ids.index(ids[3]) + 1] else 'ELSEWHERE'}, tokens {'equal' if ids == expected else 'DIFFER'}, logits off by {float((logits - reference).norm() / reference.norm()):.1e}, "
          f"in a group {'the same bits' if same(group) else 'DIFFERENT'}, on {max(1, blocks // 3)} blocks {'the same bits' if same(few) else 'DIFFERENT'}")


def measure(model, kernel, depth, clocks, sampled=()):
    times, blocks = [], blocks_of(model.shape, model.unit)
    for _ in range(4):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        tensors = model.batch(5, depth, 64, sampled)
        begin.record()
        for _ in range(2):
            kernel.launch(blocks, tensors)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 128 * 1000)
    us = sorted(times)[1]
    read = model.layout.bytes - (0 if model.shape[8] else model.layout.at["ATTN_NORM", 0])  # the embedding is the first
    print(f"depth {depth}{', sampled' if sampled else ''}: {us:.1f} us a token, {1e6 / us:.0f} tok/s, {read / us / 1e6:.2f} TB/s of weights")
    if clocks:
        cycles = model.scratch[4:64].view(torch.float32).tolist()
        for nth, block in enumerate(("first", "middle", "last")):
            mine = cycles[nth * 20:nth * 20 + 20]
            print(f"  {block} block, us: " + ", ".join(f"{name} {mine[i] / mine[19] * us:.0f}" for i, name in enumerate(PHASES) if name))


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--shape", choices=SHAPES, default="llama-1b")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--depths", default="16,4096")
    parser.add_argument("--without", default="")
    parser.add_argument("--clocks", action="store_true")
    parser.add_argument("--nvrtc")
    parser.add_argument("--check-source", action="store_true")
    options = parser.parse_args()
    text = source("decode.cu")
    if options.check_source:
        if '#include "' in text:
            sys.exit("kernel_source.py left an include of decode.cu unexpanded")
        with_clocks(text)
        for part in ("ring", "waits", "attention"):
            without(text, part)
        print("decode.cu has every line that --without and --clocks replace")
        return
    if not torch:
        sys.exit("decode_probe.py needs torch and a GPU")
    torch.zeros(1, device="cuda")
    parts = [part for part in options.without.split(",") if part]
    if options.clocks:
        text = with_clocks(text)
    for part in parts:
        text = without(text, part)
    shape = SHAPES[options.shape]
    layout = Layout(shape, () if options.dtype in ("bf16", "f16") else options.dtype.split(","))
    kernel = Kernel(compile_kernel(text, shape, layout, options.dtype, options.nvrtc))
    model = Model(shape, layout, options.dtype)
    for start in () if parts else (0, 250, 4000):
        compare(model, kernel, start)
    for depth in options.depths.split(","):
        measure(model, kernel, int(depth), options.clocks)
        measure(model, kernel, int(depth), options.clocks, (40, 0.95, 0.05, 0.8, 1))


if __name__ == "__main__":
    main()
