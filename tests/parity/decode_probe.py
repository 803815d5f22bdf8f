#!/usr/bin/env python3
"""Tests and times kernels/cuda/decode.cu on its own, and shows where its time goes.

  decode_probe.py [--shape llama-1b|...|gemma3-4b] [--dtype bf16|f16|FORMATS] [--depths 16,4096] [--without ring,waits,attention]
                  [--kv f32|bf16|f16] [--second FORMAT] [--clocks] [--define NAME=VALUE] [--ptx compute_80] [--shared BYTES] [--nvrtc LIBRARY] [--check-source] [--compile-only SM]

FORMATS are quantized weights: a name in TILES of weight_layout.py (q4_0, q4_k, mxfp4 ...); or two of them, "q4_0,q8_0", the second for the head.
--ptx compiles for an older GPU and lets the driver translate; --shared limits the shared memory, as on GPUs with 99 KB (101376).
--second: format of v and down in every other layer, as in a file of type Q4_K_M.

Needs a GPU, torch and NVRTC. Compares tokens and logits with a float64 forward in torch, single steps with a group
of steps, and a third of the grid with the whole grid (bit for bit). Then times groups of 64 tokens. --without removes a part to show its cost
(results are then wrong and not compared): the weight stream, the waits for other blocks, or attention. --clocks counts the cycles
of three blocks by phase. docs/internals/decode-kernel.md is written from what this prints. --check-source only checks that the source
still has every line that --without and --clocks replace; --compile-only compiles for a target such as sm_90 and prints the size of the
code. Both need neither a GPU nor torch.
"""
import argparse
import ctypes
import glob
import math
import struct
import sys

from kernel_source import config_header, source
from weight_layout import FORMS, OTHER_SHAPES, SHAPES, Layout

try:
    import torch
    from random_tiles import random_tiles
except ImportError:
    torch = None  # --check-source needs none

SHAPES = {**SHAPES, **OTHER_SHAPES}
PAGE, CONTEXT, SHARED_BYTES, BLOCKS, THREADS = 16, 8192, 232448, 132, 288
PHASES = ["full", "x0", "qkv", "attend", "merge", "attended", "o", "x1", "(attend: wait)", "pairs", "hidden", "down", "head", "(attend: passes)", "embed"]


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
        return replaced(text, ("  while (is_empty(value));", "  while (0);"), ("  } while (again);", "  } while (0);"), ("for (bool again = true; again;)", "for (bool again = false; again;)"),
                        ("  *not_finite = s->not_finite;\n  return best.token;", "  *not_finite = false;\n  return 5;"))
    if part == "attention":
        return replaced(text, ("  attend(m, s, l, plan, position);\n", ""), ("  merge_heads(m, s, l, plan.splits);\n", ""),
                        ("(s, attended_words(m, s), order_at<config.o_order>(m, l), x);", "(s, m.logits, order_at<config.o_order>(m, l), x);"))
    sys.exit(f"--without takes ring, waits and attention, not {part}")


def with_clocks(text):
    return replaced(
        text, ("struct State {\n", "struct State {\n  u64 clocks[20], since;\n"),
        ("// Publishes the output of attention.\n",
         "#define SINCE(i) if (threadIdx.x == 0) { u64 now = clock64(); s->clocks[i] += now - s->since; s->since = now; }\n// Publishes the output of attention.\n"),
        ("  c.rows<QkvFormat, QkvFormat2>(\n", "  if (threadIdx.x == 0) s->since = clock64();\n  c.rows<QkvFormat, QkvFormat2>(\n"),
        ("  attend(m, s, l, plan, position);", "  SINCE(2) attend(m, s, l, plan, position); SINCE(3)"),
        ("  receive_qkv(m, s, layer, query, plan.queries, position, end == position + 1);\n  if constexpr (GATED_HEADS) {\n    if (plan.splits == 1) receive_gates(m, s, query, plan.queries);\n  }\n  sync_consumers();\n",
         "  long long asked = clock64();\n  receive_qkv(m, s, layer, query, plan.queries, position, end == position + 1);\n  if constexpr (GATED_HEADS) {\n    if (plan.splits == 1) receive_gates(m, s, query, plan.queries);\n  }\n  sync_consumers();\n  if (threadIdx.x == 0) s->clocks[8] += clock64() - asked; asked = clock64();\n"),
        ("  publish_split(m, s, layer, query, plan.queries, split, plan.splits);\n", "  if (threadIdx.x == 0) s->clocks[13] += clock64() - asked;\n  publish_split(m, s, layer, query, plan.queries, split, plan.splits);\n"),
        ("  merge_heads(m, s, l, plan.splits);", "  merge_heads(m, s, l, plan.splits); SINCE(4)"),
        ("attended_words(m, s), order_at<config.o_order>(m, l), x);", "attended_words(m, s), order_at<config.o_order>(m, l), x); SINCE(5)"),
        ("    receive_mlp_input(m, c, l, parity, h);", "    SINCE(6) receive_mlp_input(m, c, l, parity, h); SINCE(7)"),
        ("  if constexpr (SHARED_EXPERT) {\n    rows_of_all_experts", "  SINCE(9)\n  if constexpr (SHARED_EXPERT) {\n    rows_of_all_experts"), ("w->hidden[parity], nullptr, hidden);", "w->hidden[parity], nullptr, hidden); SINCE(10)"),
        ("  if (HEAD_LIKE_QKV || l + 1 < LAYERS) {\n", "  if (HEAD_LIKE_QKV || l + 1 < LAYERS) {\n    SINCE(11)\n"),
        ("order_at<config.qkv_order>(m, l + 1) : nullptr, x, use);\n", "order_at<config.qkv_order>(m, l + 1) : nullptr, x, use); SINCE(1)\n"),
        ("      barrier_wait(&s->full[at.stage], at.parity);\n",
         "      long long asked = clock64(); barrier_wait(&s->full[at.stage], at.parity); if (threadIdx.x == 0) s->clocks[0] += clock64() - asked;\n"),
        ("    token = finish_token(m, c, step, position, x, hidden, &not_finite);",
         "    long long head = clock64(); token = finish_token(m, c, step, position, x, hidden, &not_finite); if (threadIdx.x == 0) s->clocks[12] += clock64() - head;"),
        ("  Consumer c = {s, {0, 0}, 0};\n", "  Consumer c = {s, {0, 0}, 0};\n  long long begin = clock64();\n  if (threadIdx.x == 0) for (int i = 0; i < 20; ++i) s->clocks[i] = 0;\n"),
        ("  return step;\n}\n\n// ------", """  const int nth = s->block == 0 ? 0 : s->block == s->blocks / 2 ? 1 : s->block == s->blocks - 1 ? 2 : -1;
  s->clocks[19] = clock64() - begin;
  if (threadIdx.x == 0 && nth >= 0) for (int i = 0; i < 20; ++i) ((float *)m.scratch->padding)[nth * 20 + i] = (float)s->clocks[i] / step;
  return step;\n}\n\n// ------"""))


def frequencies(shape, form, rope=0):
    head_dim, theta = shape[4], form["local_theta"] if rope else shape[7]
    dims = form.get("rope_dims", head_dim)
    return [1.0 / theta ** (2 * i / dims) if i < dims // 2 else 0.0 for i in range(head_dim // 2)]


def form_lines(shape, form):
    ropes, layers = 2 if "local_theta" in form else 1, range(shape[5])
    lines = [f"act=Activation::{form['act']}"] if "act" in form else []
    lines += [f"{name}={form[name]!r}f" for name in ("embed_scale", "residual_scale", "logit_scale", "logit_softcap", "softcap") if name in form]
    if "window" in form:
        windowed = ",".join(str(int(form["windowed"](layer))) for layer in layers)
        lines += [f"window={form['window']}", "windowed_layers:u8=" + windowed] + (["ropes=2", "rope_layers:u8=" + windowed] if ropes > 1 else [])
    if "rope_dims" in form:
        lines += [f"rope_dims={form['rope_dims']}", f"rope_adjacent={int(form['adjacent'])}", "rope_scaled=1", "rope_scales:float=" + ",".join([f"{form['rope_scale']!r}f"] * ropes)]
    return lines + ["rope_frequencies:float=" + ",".join(f"{f!r}f" for rope in range(ropes) for f in frequencies(shape, form, rope))]


def blocks_of(shape, unit=1):
    return min(BLOCKS, *(-(-rows // unit) for rows in (shape[0], shape[1], shape[6], (shape[2] + 2 * shape[3]) * shape[4])))


def scratch_words(shape, unit=1):
    hidden, ffn, heads, kv_heads, head_dim = shape[:5]
    blocks, queries, keys = blocks_of(shape, unit), heads * head_dim, kv_heads * head_dim
    choice = blocks * (8 + 4 * (2 + 2 * 64)) + -(-shape[6] // 4) * 4
    return 64 + choice + 3 * hidden + 2 * queries + 2 * keys + 2 * ffn + heads * max(1, blocks // kv_heads) * (head_dim + 2)


def segment_of(layout):
    hidden = -(-layout.dims["FINAL_NORM"][0] // 256) * 256
    return min(4096, max(2048, hidden)) if layout.tiles and SHARED_BYTES >= 160 << 10 else 1024


def compile_kernel(text, shape, form, layout, dtype, kv, library, target, extra=()):
    names = ("hidden", "ffn", "heads", "kv_heads", "head_dim", "layers", "vocab")
    lines = [f"{name}={value}" for name, value in zip(names, shape)]
    lines += [f"blocks={blocks_of(shape, 8 if layout.tiles else 1)}", f"shared_bytes={SHARED_BYTES}", f"scratch_words={scratch_words(shape, 8 if layout.tiles else 1)}",
              f"segment={segment_of(layout)}", "norm_eps=1e-5f", f"scale={shape[4] ** -0.5!r}f", *layout.lines()]
    lines += [] if layout.tiles else [f"dtype=Dtype::{dtype.upper()}"]
    lines += [f"kv=Dtype::{'Q8_0' if kv == 'q8' else kv.upper()}", *form_lines(shape, form), *extra]
    headers = {"config.cuh": config_header(lines)}
    arguments = ["--std=c++20", "--gpu-architecture=" + target]
    found = [library] if library else glob.glob("/usr/local/cuda*/**/libnvrtc.so.13", recursive=True) + ["libnvrtc.so.13"]
    nvrtc, program, size = ctypes.CDLL(found[0]), ctypes.c_void_p(), ctypes.c_size_t()
    list_of = lambda texts: (ctypes.c_char_p * len(headers))(*[t.encode() for t in texts])
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"decode.cu", len(headers), list_of(headers.values()), list_of(headers))
    failed = nvrtc.nvrtcCompileProgram(program, len(arguments), (ctypes.c_char_p * len(arguments))(*[a.encode() for a in arguments]))
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if failed:
        sys.exit(log.value.decode())
    size_of, read = (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX) if "compute" in target else (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    size_of(program, ctypes.byref(size))
    image = ctypes.create_string_buffer(size.value)
    read(program, image)
    return image


def code_bytes(image):
    """Size of the section .text.mlx_decode of a cubin."""
    elf = image.raw
    at, size, count, names = struct.unpack_from("<Q", elf, 40)[0], *struct.unpack_from("<HHH", elf, 58)
    section = lambda i: struct.unpack_from("<IIQQQQ", elf, at + i * size)
    strings = section(names)[4]
    return next(s[5] for s in map(section, range(count)) if elf[strings + s[0]:].startswith(b".text.mlx_decode\0"))


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
    def __init__(self, shape, form, layout, dtype, kv):
        hidden, ffn, heads, kv_heads, head_dim, layers, vocab, _, _ = shape
        kinds = {"bf16": torch.bfloat16, "f16": torch.float16}
        self.shape, self.form, self.layout, self.dtype, self.kv_dtype = shape, form, layout, kinds.get(dtype, torch.float32), kinds.get(kv, torch.float32)
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
            self.weight(name, layer).copy_(noise if "BIAS" in name else 1 + 0.1 * noise if len(dims) == 1 else noise * spread)
        pages = 1 + CONTEXT // PAGE
        self.kv_start = torch.randn(pages, layers, kv_heads, 2, PAGE, head_dim, device="cuda").to(self.kv_dtype)
        self.kv, self.pages = self.kv_start.clone(), (torch.randperm(pages - 1, device="cuda") + 1).int()
        self.history = torch.zeros(CONTEXT + 1, dtype=torch.int32, device="cuda")
        self.results = torch.zeros(128, 48, dtype=torch.int32, device="cuda")
        self.logits, self.hidden = torch.zeros(vocab, device="cuda"), torch.zeros(hidden, device="cuda")
        self.scratch = torch.full((scratch_words(shape, self.unit),), -1, dtype=torch.int32, device="cuda")

    def pack(self, name, layer, spread):
        at = self.layout.at[name, layer]
        if (at, layer) in self.numbers:
            return
        packed, _, numbers = random_tiles(self.layout.tiles_of(name, layer), self.layout.dims[name], spread)
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
        form, wide = self.form, lambda name, layer=0: self.weight(name, layer).double()
        number = lambda name: form.get(name, 1.0)
        norm = lambda x, gain: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * gain
        linear = lambda name, layer, x: wide(name, layer) @ x + (wide(name + "_BIAS", layer) if (name + "_BIAS", layer) in self.layout.at else 0)
        after = lambda name, layer, x: (norm(x, wide(name, layer)) if form.get("post_norms") else x) * number("residual_scale")
        cap = lambda name, x: form[name] * torch.tanh(x / form[name]) if name in form else x
        act = {"GELU": torch.nn.functional.gelu, "GELU_TANH": lambda x: torch.nn.functional.gelu(x, approximate="tanh")}.get(form.get("act"), torch.nn.functional.silu)
        def turn(x, rope):
            angle = position * torch.tensor(frequencies(self.shape, form, rope), device="cuda", dtype=torch.float32).double()
            dims, out = form.get("rope_dims", head_dim), x.clone()
            cos, sin = (f[:dims // 2] * number("rope_scale") for f in (angle.cos(), angle.sin()))
            low, high = (slice(0, dims, 2), slice(1, dims, 2)) if form.get("adjacent") else (slice(0, dims // 2), slice(dims // 2, dims))
            out[:, low], out[:, high] = x[:, low] * cos - x[:, high] * sin, x[:, high] * cos + x[:, low] * sin
            return out
        def head_norm(name, layer, x):
            return norm(x, wide(name, layer)) if form.get("qk_norm") else x
        x, page = self.weight("EMBED")[token].double() * number("embed_scale"), self.pages[position // PAGE].item()
        for layer in range(layers):
            windowed = "window" in form and form["windowed"](layer)
            rope, start = int(windowed and "local_theta" in form), max(0, position + 1 - form["window"]) if windowed else 0
            h = norm(x, wide("ATTN_NORM", layer))
            q, k, v = (linear(name, layer, h).view(-1, head_dim) for name in "QKV")
            q, k = turn(head_norm("Q_NORM", layer, q), rope), turn(head_norm("K_NORM", layer, k), rope)
            kv[page, layer, :, 0, position % PAGE], kv[page, layer, :, 1, position % PAGE] = k.float().to(self.kv_dtype), v.float().to(self.kv_dtype)
            past = kv[self.pages[:position // PAGE + 1].long(), layer].permute(2, 1, 0, 3, 4).reshape(2, kv_heads, -1, head_dim)[:, :, start:position + 1].double()
            p = torch.softmax(cap("softcap", q.view(kv_heads, -1, head_dim) @ past[0].transpose(1, 2) * head_dim ** -0.5), -1)
            x = x + after("POST_ATTN_NORM", layer, linear("O", layer, (p @ past[1]).reshape(-1)))
            h = norm(x, wide("MLP_NORM", layer))
            x = x + after("POST_MLP_NORM", layer, linear("DOWN", layer, act(linear("GATE", layer, h)) * linear("UP", layer, h)))
        return cap("logit_softcap", self.weight("HEAD").float() @ norm(x, wide("FINAL_NORM")).float() * number("logit_scale"))


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
    drawn = [model.generate(kernel, start, groups, grid, (40, 0.95, 0.05, 0.8, 7))[0] for groups, grid in (([8], blocks), ([1, 7], blocks), ([8], max(1, blocks // 3)))]
    print(f"position {start}: stops {'there' if stopped == ids[:ids.index(ids[3]) + 1] else 'ELSEWHERE'}, tokens {'equal' if ids == expected else 'DIFFER'}, logits off by {float((logits - reference).norm() / reference.norm()):.1e}, "
          f"in a group {'the same bits' if same(group) else 'DIFFERENT'}, on {max(1, blocks // 3)} blocks {'the same bits' if same(few) else 'DIFFERENT'}, "
          f"sampled {'alike' if drawn[0] == drawn[1] == drawn[2] else 'DIFFERENTLY'}")


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
    global SHARED_BYTES
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--shape", choices=SHAPES, default="llama-1b")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--depths", default="16,4096")
    parser.add_argument("--without", default="")
    parser.add_argument("--clocks", action="store_true")
    parser.add_argument("--second")
    parser.add_argument("--ptx")
    parser.add_argument("--shared", type=int, default=SHARED_BYTES)
    parser.add_argument("--define", action="append", default=[])
    parser.add_argument("--kv", help="default: f32 with quantized weights, else that of the weights")
    parser.add_argument("--nvrtc")
    parser.add_argument("--check-source", action="store_true")
    parser.add_argument("--compile-only")
    options = parser.parse_args()
    SHARED_BYTES = options.shared
    text = source("decode.cu")
    if options.check_source:
        if '#include "' in text.replace('#include "config.cuh"', ""):
            sys.exit("kernel_source.py left an include of decode.cu unexpanded")
        with_clocks(text)
        for part in ("ring", "waits", "attention"):
            without(text, part)
        print("decode.cu has every line that --without and --clocks replace")
        return
    shape, form = SHAPES[options.shape], FORMS.get(options.shape, {})
    kv = options.kv or ("f32" if options.dtype not in ("bf16", "f16") else options.dtype)
    layout = Layout(shape, () if options.dtype in ("bf16", "f16") else options.dtype.split(","), form, options.second)
    if options.compile_only:
        image = compile_kernel(text, shape, form, layout, options.dtype, kv, options.nvrtc, options.compile_only, options.define)
        print(f"{options.shape}, {options.dtype}: {code_bytes(image)} bytes of code")
        return
    if not torch:
        sys.exit("decode_probe.py needs torch and a GPU")
    torch.zeros(1, device="cuda")
    parts = [part for part in options.without.split(",") if part]
    if options.clocks:
        text = with_clocks(text)
    for part in parts:
        text = without(text, part)
    target = options.ptx or "sm_%d%d" % torch.cuda.get_device_capability()
    kernel = Kernel(compile_kernel(text, shape, form, layout, options.dtype, kv, options.nvrtc, target, options.define))
    model = Model(shape, form, layout, options.dtype, kv)
    for start in () if parts else (0, 250, 4000):
        compare(model, kernel, start)
    for depth in options.depths.split(","):
        measure(model, kernel, int(depth), options.clocks)
        measure(model, kernel, int(depth), options.clocks, (40, 0.95, 0.05, 0.8, 1))


if __name__ == "__main__":
    main()
