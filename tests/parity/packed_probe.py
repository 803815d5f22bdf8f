#!/usr/bin/env python3
"""Tests kernels/cuda/packed.cu and attention_f32.cu on their own for accuracy (f32 rounding) and speed.

  packed_probe.py [--compile [sm_80,...]] [--cache DIR] [--nvrtc LIBRARY] [--only linear,few,portable,gemv,embed,cut,attention,attend,speed] [--small] [--m 512,...]
                  [--formats q4_0,...] [--tile BM,BN,SPLIT,STAGES,WARPS]... [--attend QUERIES,STEP,SPLIT,STAGES,THREADS]...
                  [--stream GROUPS,WARPS,BLOCKS_A_MULTIPROCESSOR]... [--few GROUPS,SPLIT,TALL,ALONG,DEPTH]... [--shape llama-1b|qwen3-8b|...]

Compiling (--compile does only that) needs NVRTC and gcc; running needs a GPU and torch. Each kernel is compared with a float64 product of the
dequantized weights, next to torch's f32 product (TF32 off). "off" is the norm of the difference divided by the norm of the result. --small
omits the large shapes, for compute-sanitizer. "attend" is the speed of attention, "speed" that of all. --tile times the products of the shape (default: llama-1b) with another tile than the compiler chooses,
--attend the attention with heads of 64, --stream the streaming product, --few the product of 9 to 16 tokens with 16-bit weights.
"""
import argparse
import ctypes
import functools
import glob
import hashlib
import math
import multiprocessing
import pathlib
import re
import subprocess
import sys
import tempfile

from kernel_source import config_header, source
from weight_layout import Tiles

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS16 = ("BF16", "F16")  # rows of 16-bit numbers, as stored in a checkpoint
PROCESSORS = 132
LAYERS = 16
SHAPES = {  # N, K, EPILOGUE
    "llama-1b": {"qkv": (3072, 2048, 0), "o": (2048, 2048, 1), "gate/up": (8192, 2048, 2), "down": (2048, 8192, 1)},
    "qwen3-8b": {"q": (4096, 4096, 0), "k": (1024, 4096, 0), "o": (4096, 4096, 1), "gate/up": (12288, 4096, 2), "down": (4096, 12288, 1)},
    "qwen3-14b": {"q": (5120, 5120, 0), "k": (1024, 5120, 0), "o": (5120, 5120, 1), "gate/up": (17408, 5120, 2), "down": (5120, 17408, 1)},
    "llama-8b": {"q": (4096, 4096, 0), "k": (1024, 4096, 0), "o": (4096, 4096, 1), "gate/up": (14336, 4096, 2), "down": (4096, 14336, 1)},
    "starcoder2-7b": {"qkv": (5632, 4608, 0), "o": (4608, 4608, 1), "up": (18432, 4608, 0), "down": (4608, 18432, 1)},
    "command-r7b": {"qkv": (6144, 4096, 0), "o": (4096, 4096, 1), "gate/up": (14336, 4096, 2), "down": (4096, 14336, 1)}}
LINEARS = {}  # of the shape


class Tile(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("m", "n", "split", "stages", "warps")]

    def __str__(self):
        return f"{self.m}x{self.n} split {self.split} stages {self.stages} warps {self.warps}"


class Stream(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("groups", "warps", "blocks", "shared")]

    def __str__(self):
        return f"{self.groups} groups, {self.warps} warps, {self.blocks} blocks"


class Few(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("groups", "split", "tall", "along", "depth", "clusters", "shared")]

    def __str__(self):
        return f"{self.groups} groups split {self.split}, {self.tall} x {self.along} warps, depth {self.depth}, {self.clusters} clusters, {self.shared} bytes"


class AttendTile(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("queries", "step", "split", "stages", "threads", "shared")] + [("warpgroups", ctypes.c_bool)]

    def __str__(self):
        return f"{self.queries} queries, {self.step} keys, split {self.split}, {self.stages} stages, {self.threads} threads{', warpgroups' * self.warpgroups}"


def load_ops():
    """The tile selection of the compiler, compiled as a library: one source for both."""
    folder = tempfile.mkdtemp()
    subprocess.run(["gcc", "-std=c11", "-O1", "-fPIC", "-shared", f"-I{ROOT}", str(ROOT / "compiler" / "cuda_launch.c"), "-o", f"{folder}/ops.so"], check=True)
    ops = ctypes.CDLL(f"{folder}/ops.so")
    ops.mlx_quantized_tile.restype, ops.mlx_quantized_tile.argtypes = Tile, [ctypes.c_int64] * 3 + [ctypes.c_bool] * 3 + [ctypes.c_int64]
    ops.mlx_quantized_tile_shared_bytes.restype, ops.mlx_quantized_tile_shared_bytes.argtypes = ctypes.c_int64, [Tile, ctypes.c_bool]
    ops.mlx_quantized_parts_bytes.restype, ops.mlx_quantized_parts_bytes.argtypes = ctypes.c_int64, [ctypes.c_int64] * 2
    ops.mlx_quantized_gemv.restype, ops.mlx_quantized_gemv.argtypes = Stream, [ctypes.c_int64] * 4
    ops.mlx_few_tile.restype, ops.mlx_few_tile.argtypes = Few, [ctypes.c_int64] * 3 + [ctypes.c_bool, ctypes.c_int64]
    ops.mlx_attend_f32_tile.restype, ops.mlx_attend_f32_tile.argtypes = AttendTile, [ctypes.c_bool] + [ctypes.c_int64] * 6 + [ctypes.c_bool, ctypes.c_int64]
    ops.mlx_attend_f32_bytes.restype, ops.mlx_attend_f32_bytes.argtypes = ctypes.c_int64, [AttendTile] + [ctypes.c_int64] * 3
    return ops


OPS = load_ops()


# ---- compiling ----

class Builder:
    """Compiles jobs (file, definitions, architecture) in parallel and keeps the cubins in a folder. Definitions are lines of compiler/kernel_config.h."""
    def __init__(self, cache, library):
        self.cache = pathlib.Path(cache)
        self.cache.mkdir(parents=True, exist_ok=True)
        here = ROOT / "build" / "deps" / "nvrtc"
        found = [str(here / "libnvrtc.so.13")] if here.exists() else glob.glob("/usr/local/cuda*/**/libnvrtc.so.13", recursive=True) + ["libnvrtc.so.13"]
        self.library = library or found[0]

    def path(self, job):
        text = repr(job) + source(job[0])
        return self.cache / (hashlib.sha256(text.encode()).hexdigest()[:24] + ".cubin")

    def build(self, jobs):
        missing = sorted({job for job in jobs if not self.path(job).exists()})
        if missing:
            with multiprocessing.Pool() as pool:
                for job, log in zip(missing, pool.imap(self.one, missing)):
                    worrying = [line for line in log.splitlines() if re.search(r"error|warning|C75|[1-9]\d* bytes spill", line)]
                    if worrying:
                        print(job, *worrying, sep="\n  ", flush=True)
        bad = [job for job in missing if not self.path(job).exists()]
        if bad:
            sys.exit(f"{len(bad)} of {len(missing)} compilations failed")

    def one(self, job):
        file, definitions, arch = job
        folder = pathlib.Path(self.library).parent
        for builtins in folder.glob("libnvrtc-builtins.so.1*"):
            ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
        nvrtc, program, size = ctypes.CDLL(self.library), ctypes.c_void_p(), ctypes.c_size_t()
        arguments = ["--std=c++20", f"--gpu-architecture={arch}"] + ["-D" + d for d in definitions if d[0].isupper()] + ["--ptxas-options=-v"]
        headers = {header.name: header.read_text() for header in [*ROOT.glob("kernels/*.h"), *ROOT.glob("kernels/cuda/*.cuh")]}
        headers["config.cuh"] = f'#pragma once\n#include "{file.split(".")[0]}_config.cuh"\n' + config_header([d for d in definitions if d[0].islower()])
        texts = lambda values: (ctypes.c_char_p * len(headers))(*[value.encode() for value in values])
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), (ROOT / "kernels" / "cuda" / file).read_bytes(), file.encode(), len(headers), texts(headers.values()), texts(headers))
        failed = nvrtc.nvrtcCompileProgram(program, len(arguments), (ctypes.c_char_p * len(arguments))(*[a.encode() for a in arguments]))
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        if failed:
            return log.value.decode() + " error"
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        image = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, image)
        self.path(job).write_bytes(image.raw)
        return log.value.decode()


def format_fields(form):
    if form in ROWS16:
        return ("bits=16", f"dtype=Dtype::{form}")
    return tuple(f"{name}={int(value)}" for name, value in zip(("bits", "numbers", "offset", "halves", "center"), Tiles(form).arguments))


def shares(end, tile):
    """Whether a product without a residual uses the kernel of one with it, as in compiler/lower_cuda_quantized.c."""
    return end == 0 and tile.split > 1


def linear_job(form, m, n, k, end, tile, arch):
    """One job for all sizes: M, N and K are parameters."""
    macros = ("NAME=probe", "PRODUCT=1", f"EPILOGUE={1 if shares(end, tile) else end}", "MATRICES=1", "MIXTURE=0", "BIAS=0", f"SPLIT={tile.split}")
    return ("packed.cu", macros + format_fields(form) + (f"whole_runs={int(k % 128 == 0)}", f"bm={tile.m}", f"bn={tile.n}", f"stages={tile.stages}", f"warps={tile.warps}"), arch)


def few_for(m, n, k, end, other=None):
    few = OPS.mlx_few_tile(m, n, k, end == 2, PROCESSORS)
    if other:
        few = Few(*other, 0, 0)
        few.clusters = math.ceil(math.ceil(n * (2 if end == 2 else 1) / (16 * few.groups)) / few.tall)
        few.shared = few.tall * few.along * few.depth * few.groups * 1024 + math.ceil(math.ceil(k / 128) / few.split) * 2 * 6208 + 64
    return few


def few_job(form, k, end, few, norm, arch):
    macros = ("NAME=probe", "FEW=1", f"EPILOGUE={end}", f"GAIN={int(norm)}", f"SPLIT={few.split}")
    return ("packed.cu", macros + format_fields(form) + (f"whole_runs={int(k % 128 == 0)}", "norm_eps=1e-5f", f"groups={few.groups}", f"tall={few.tall}", f"along={few.along}",
            f"depth={few.depth}"), arch)


def cut_job(form, arch, partials=False):
    """Splits x; with |partials| its norm, after adding partial sums to it."""
    macros = ("NAME=probe", "SPLIT_INPUT=1", "MIXTURE=0", f"GAIN={int(partials)}", "LAYERNORM=0", f"PARTIALS={int(partials)}")
    return ("packed.cu", macros + (("bits=16",) if form in ROWS16 else ()) + ("norm_eps=1e-5f",), arch)


def stream_for(m, n, k, other=None):
    stream = OPS.mlx_quantized_gemv(m, n, k, PROCESSORS)
    if other:                                                        # groups, warps, blocks a multiprocessor
        groups, warps, each = other
        stream.shared += 8192 * (groups - stream.groups)
        stream.groups, stream.warps, stream.blocks = groups, warps, min(math.ceil(n / (16 * groups * 8 // warps)), PROCESSORS * each)
    return stream


def gemv_job(form, m, n, k, arch, other=None):
    stream = stream_for(m, n, k, other)
    return ("packed.cu", ("NAME=probe", "GEMV=1", f"n={n}", f"k={k}") + format_fields(form) + (f"m={m}", f"warps={stream.warps}", f"groups={stream.groups}"), arch)


def embed_job(form, m, n, k, arch):
    return ("packed.cu", ("NAME=probe", "EMBED=1") + format_fields(form), arch)


def tile_for(form, m, n, k, end, arch):
    return OPS.mlx_quantized_tile(m, n, k, end == 2, form in ROWS16, arch == "sm_90a", PROCESSORS)


PAGE = 16
ATTENTION_CASES = [  # sequences, tokens, heads, KV heads, head_dim, positions before the first new token
    (1, 512, 32, 8, 64, 0), (1, 512, 32, 8, 64, 3584), (1, 1, 32, 8, 64, 4095), (8, 1, 32, 8, 64, 190), (64, 1, 32, 8, 64, 190), (2, 17, 9, 3, 48, 70), (1, 70, 4, 4, 128, 3), (1, 33, 2, 1, 256, 100),
    (3, 5, 4, 2, 80, 0), (2, 300, 12, 4, 128, 1000), (1, 256, 8, 1, 96, 8000)]
SMALL_ATTENTION = [(2, 17, 9, 3, 48, 70), (1, 3, 2, 1, 16, 200)]
ATTENTION_SPEED = ATTENTION_CASES[:5] + [(256, 1, 32, 8, 64, 190), (8, 1, 32, 8, 64, 4095), (8, 1, 32, 8, 128, 190), (64, 1, 32, 8, 128, 190), (1, 512, 64, 8, 64, 0), (1, 512, 32, 8, 128, 0),
                                         (1, 512, 8, 4, 256, 0), (1, 512, 32, 8, 128, 8192), (1, 512, 32, 8, 128, 32256), (1, 512, 64, 8, 64, 8192)]


def attention_tiles(case):
    """The launch that the compiler chooses, and others: for long segments or short ones, with few tokens or many."""
    tile = lambda is_long, tokens: OPS.mlx_attend_f32_tile(is_long, tokens, *case[2:5], 0, 4, True, PROCESSORS)
    tokens = case[0] * case[1]
    long = case[1] >= 8 and tokens >= 64
    return [tile(long, tokens), tile(not long, tokens), tile(False, 1), tile(False, 512)]


def attention_tile(case):
    return attention_tiles(case)[0]


def attention_pages(case):
    return math.ceil((case[1] + case[5]) / PAGE) + 1


def attention_job(case, tile, arch):
    """|arch|: of the launch; one with warpgroups needs sm_90a. On other GPUs its image has the other functions."""
    head_dim, arch = case[4], "sm_90a" if tile.warpgroups and arch == "sm_90" else arch
    return ("attention_f32.cu", ("NAME=attend", "SINKS=0", f"SPLIT={tile.split}", f"head_dim={head_dim}", "kv=Dtype::F32", f"scale={head_dim ** -0.5!r}f", f"step={tile.step}",
            f"queries={tile.queries}", f"stages={tile.stages}", f"threads={tile.threads}", f"warpgroups={int(tile.warpgroups)}"), arch.removesuffix(" portable"))


def append_job(case, arch):
    return ("attention_f32.cu", ("NAME=append", "APPEND=1", "BIAS=0", "HEAD_NORM=0", "TURN=1", f"head_dim={case[4]}", "kv=Dtype::F32"), arch)


HEADER_WORDS, TOKEN_COUNT, POOL_PAGES, SLOT_COUNT, SLOT_PAGES, AT_SLOTS, AT_POSITIONS, AT_PAGES = 64, 0, 3, 4, 5, 9, 10, 14  # kernels/step.h


def attention_batch(case, counts, pages, tile, cut=0):
    """The arguments |batch| and |placed| (kernels/cuda/place.cu): one segment per sequence, or two from token |cut| on, padding after its tokens."""
    rows, tokens, heads, kv_heads, _, before = case
    n = rows * tokens
    words = [0] * (HEADER_WORDS + 3 * n) + [page for row in pages for page in row]
    words[TOKEN_COUNT], words[POOL_PAGES], words[SLOT_COUNT], words[SLOT_PAGES] = n, rows * len(pages[0]) + 1, rows, len(pages[0])
    words[AT_SLOTS], words[AT_POSITIONS], words[AT_PAGES] = HEADER_WORDS + n, HEADER_WORDS + 2 * n, HEADER_WORDS + 3 * n
    placed, share = [4, 4, 0, 0], heads // kv_heads
    for t in range(n):
        words[HEADER_WORDS + n + t] = t // tokens
        words[HEADER_WORDS + 2 * n + t] = before + t % tokens if t % tokens < counts[t // tokens] else -1
        if t % tokens >= counts[t // tokens]:
            placed += [-1, t, 0, 0, 0, 0, 0, 0]
    for r, count in enumerate(counts):
        for first, last in ((0, cut), (cut, count)) if cut else ((0, count),):
            for tile_start in reversed(range(0, (last - first) * share, tile.queries)):
                placed += [r, r * tokens + first, last - first, before + first, tile_start, 0, 0, 0]
    return words, placed


# ---- weights ----

class Matrix:
    """Random weights: in the stored layout, exact, and as f32."""
    def __init__(self, form, n, k, seed=0):
        import torch
        from random_tiles import random_tiles
        if form in ROWS16:
            generator = torch.Generator("cuda").manual_seed(seed + n * 7 + k)
            stored = (torch.randn(n, k, device="cuda", generator=generator) * k ** -0.5).to(torch.bfloat16 if form == "BF16" else torch.float16)
            self.exact, self.f32, self.bytes = stored.double(), stored.float(), stored.view(torch.uint8).reshape(-1)
            return
        torch.manual_seed(seed + n * 7 + k)
        self.bytes, self.exact, self.f32 = random_tiles(Tiles(form), (n, k), k ** -0.5)


# ---- running ----

class Driver:
    def __init__(self, builder):
        import torch
        self.torch, self.builder, self.cuda, self.loaded = torch, builder, ctypes.CDLL("libcuda.so.1"), {}
        torch.zeros(1, device="cuda")
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.manual_seed(1)
        self.arch = "sm_90a" if torch.cuda.get_device_capability() == (9, 0) else "sm_%d%d" % torch.cuda.get_device_capability()

    def check(self, code, what):
        if code:
            sys.exit(f"the CUDA driver says {code} to {what}")

    def function(self, job, symbol=b"probe"):
        if (job, symbol) not in self.loaded:
            self.builder.build([job])
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            self.check(self.cuda.cuModuleLoadData(ctypes.byref(module), self.builder.path(job).read_bytes()), job)
            self.check(self.cuda.cuModuleGetFunction(ctypes.byref(function), module, symbol), symbol)
            self.loaded[job, symbol] = function
        return self.loaded[job, symbol]

    def launch(self, job, grid, threads, tensors, shared=0, constants=(), symbol=b"probe"):
        function = self.function(job, symbol)
        if shared > 48 * 1024:
            self.check(self.cuda.cuFuncSetAttribute(function, 8, shared), (job, shared))
        values = [ctypes.c_void_p(t.data_ptr()) for t in tensors] + [ctypes.c_int(c) for c in constants]
        arguments = (ctypes.c_void_p * len(values))(*[ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values])
        stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        self.check(self.cuda.cuLaunchKernel(function, *grid, threads, 1, 1, shared, stream, arguments, None), job)

    def parts(self, m, k):
        return self.torch.full((OPS.mlx_quantized_parts_bytes(m, k),), 0xff, dtype=self.torch.uint8, device="cuda")

    def poisoned(self, *dims):
        return self.torch.full(dims, math.nan, device="cuda")

    def cut(self, form, x, parts):
        m, k = x.shape
        self.launch(cut_job(form, self.arch), ((m + 7) // 8 * 8, 1, 1), 256, [x, parts], constants=(m, k))

    @functools.lru_cache(None)  # a graph that is being recorded must not copy
    def count_of(self, m):
        return self.torch.tensor([m], dtype=self.torch.int32, device="cuda")

    def linear(self, form, m, n, k, end, tensors, tile=None, arch=None):
        arch = arch or self.arch
        tile = tile or tile_for(form, m, n, k, end, arch)
        shared = OPS.mlx_quantized_tile_shared_bytes(tile, form in ROWS16)
        if shares(end, tile):
            tensors = [*tensors[:2], tensors[0], tensors[2]]         # any buffer in place of the residual
        elif end == 0:
            tensors = [*tensors[:2], self.count_of(m), tensors[2]]
        self.launch(linear_job(form, m, n, k, end, tile, arch), (math.ceil(m / tile.m), math.ceil(n / tile.n), tile.split), 32 * tile.warps, tensors, shared,
                    constants=(m, n, k, int(end == 1)))

    def few(self, form, m, n, k, end, few, x, tensors, gain=None):
        """|tensors|: w, then residual or w2, then y. |gain|: of the norm of x that is multiplied."""
        job = few_job(form, k, end, few, gain is not None, self.arch)
        self.launch(job, (1, few.clusters, few.split), 32 * few.tall * few.along, [x] + ([] if gain is None else [gain]) + tensors, few.shared, constants=(m, n, k, int(end == 1)))

    def gemv(self, form, x, w, y, other=None):
        (m, k), n = x.shape, y.shape[1]
        stream = stream_for(m, n, k, other)
        self.launch(gemv_job(form, m, n, k, self.arch, other), (stream.blocks, 1, 1), 256, [x, w, y], stream.shared)

    def embed(self, form, tokens, table, n, y, factor):
        (m, k), bits = y.shape, ctypes.c_int.from_buffer(ctypes.c_float(factor)).value
        self.launch(embed_job(form, m, n, k, self.arch), (math.ceil(m * math.ceil(k / 128) * 16 / 256), 1, 1), 256, [tokens, table, y], constants=(m, n, k, bits))

    def time(self, work, repeats=20):
        """Median of replays of a graph of `work`, in us."""
        torch = self.torch
        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        times = []
        for _ in range(repeats + 3):
            begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1000)
        return sorted(times[3:])[repeats // 2]


FAILED = []


def report(name, y, exact, f32):
    off = float((y.double() - exact).norm() / exact.norm())
    peer = float((f32.double() - exact).norm() / exact.norm())
    worst = float((y.double() - exact).abs().max() / exact.abs().max())
    good = off == off and off <= 2 * peer + 2e-7
    if not good:
        FAILED.append(name)
    print(f"{'ok  ' if good else 'BAD '} {name}: off by {off:.1e}, worst element {worst:.1e} of the largest; torch's f32 {peer:.1e}", flush=True)


def silu(x):
    return x / (1 + (-x).exp())


def check_linear(d, form, m, n, k, end, tile=None, arch=None):
    torch = d.torch
    x, w = torch.randn(m, k, device="cuda") * 2, Matrix(form, n, k)
    parts, y = d.parts(m, k), d.poisoned(m, n)
    d.cut(form, x, parts)
    exact, f32, tensors = x.double() @ w.exact.T, x @ w.f32.T, [parts, w.bytes, y]
    if end == 1:
        y = torch.randn(m, n, device="cuda")
        exact, f32, tensors = exact + y.double(), f32 + y, [parts, w.bytes, y, y]
    if end == 2:
        up = Matrix(form, n, k, 1)
        exact, f32, tensors = silu(exact) * (x.double() @ up.exact.T), silu(f32) * (x @ up.f32.T), [parts, w.bytes, up.bytes, y]
    d.linear(form, m, n, k, end, tensors, tile, arch)
    torch.cuda.synchronize()
    first = y.clone()
    if end != 1:
        d.linear(form, m, n, k, end, tensors, tile, arch)
        torch.cuda.synchronize()
        if not torch.equal(first, y):
            FAILED.append("repeat")
            print("BAD  not the same bits twice")
    report(f"linear {form} {m}x{n}x{k} end {end} {arch or ''} {tile or tile_for(form, m, n, k, end, arch or d.arch)}", first, exact, f32)


def check_few(d, form, m, n, k, end, other=None):
    torch = d.torch
    x, gain, w, up, old = torch.randn(m, k, device="cuda") * 2, torch.randn(k, device="cuda"), Matrix(form, n, k), Matrix(form, n, k, 1), torch.randn(m, n, device="cuda")
    few = few_for(m, n, k, end, other)
    for norm in (False, True):
        y, results = d.poisoned(m, n), []
        for kind in (torch.float64, torch.float32):
            z = x.to(kind)
            if norm:
                z = z / (z.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * gain.to(kind)
            weights = [(matrix.exact if kind == torch.float64 else matrix.f32).T for matrix in (w, up)]
            product = z @ weights[0]
            results.append(product + old.to(kind) if end == 1 else silu(product) * (z @ weights[1]))
        d.few(form, m, n, k, end, few, x, [w.bytes, old if end == 1 else up.bytes, y], gain if norm else None)
        torch.cuda.synchronize()
        report(f"few {form} {m}x{n}x{k} end {end} {'of a norm ' if norm else ''}{few}", y, *results)


def check_cut(d, m, k):
    torch = d.torch
    x, parts = torch.randn(m, k, device="cuda") * torch.exp2(torch.randint(-20, 20, (m, k), device="cuda").float()), d.parts(m, k)
    d.cut("q4_0", x, parts)
    mp, chunks = (m + 7) // 8 * 8, (k + 127) // 128 * 2
    planes, scales_at = parts[:chunks * 2 * mp * 128].view(torch.float16).view(chunks, 2, mp, 8, 8), (chunks + math.ceil(chunks / 32)) * 2 * mp * 128
    scales = parts[scales_at:scales_at + mp * 4].view(torch.float32).double()[:, None]
    rows, place = torch.arange(mp, device="cuda"), torch.arange(8, device="cuda")
    straight = planes[:, :, rows[:, None], place[None, :] ^ rows[:, None] % 8]
    total = straight.double().sum(1).permute(1, 0, 2, 3).reshape(mp, chunks * 64)
    total = total * scales
    more = parts[chunks * 2 * mp * 128:scales_at].view(torch.float16).view(-1, 2, mp, 8, 8)[:, :, rows[:, None], place[None, :] ^ rows[:, None] % 8].double().sum(1)
    sums = more.permute(1, 0, 2, 3).reshape(mp, -1, 2, 4, 2).permute(0, 1, 2, 4, 3).reshape(mp, -1)[:, :chunks * 2] * scales * 32  # row, four runs, run / 2, run % 2, block
    wide = torch.zeros(mp, chunks * 64, device="cuda", dtype=torch.float64)
    wide[:m, :k] = x.double()
    blocks = wide.view(mp, chunks * 2, 32)
    least = wide.abs().amax(1, keepdim=True) * 2.0 ** -39           # the last bit of a subnormal part
    good = bool(((total - wide).abs() <= wide.abs() * 2.0 ** -23 + least).all())  # two parts of 11 bits: 23 bits with the sign of the second one
    good = good and bool(((sums - blocks.sum(2)).abs() <= blocks.abs().sum(2) * 1e-6 + least * 32).all())
    exact = float((total != wide).double().mean())
    if not good:
        FAILED.append("cut")
    print(f"{'ok  ' if good else 'BAD '} cut {m}x{k}: {exact:.1e} of the elements not exact", flush=True)


def check_gemv(d, form, m, n, k):
    torch = d.torch
    x, w, y = torch.randn(m, k, device="cuda"), Matrix(form, n, k), d.poisoned(m, n)
    d.gemv(form, x, w.bytes, y)
    torch.cuda.synchronize()
    report(f"gemv {form} {m}x{n}x{k}", y, x.double() @ w.exact.T, x @ w.f32.T)
    one = d.poisoned(1, n)
    d.gemv(form, x[m - 1:].contiguous(), w.bytes, one)
    torch.cuda.synchronize()
    if m > 2 and float((one[0] - y[m - 1]).norm() / one.norm()) > 1e-6 or m <= 2 and not torch.equal(one[0], y[m - 1]):
        FAILED.append("gemv bits")
        print("BAD  a row depends on the others")


def check_embed(d, form, m, n, k):
    torch = d.torch
    tokens, w, same = torch.randint(0, n, (m,), device="cuda", dtype=torch.int32), Matrix(form, n, k), True
    for factor in (1.0, math.sqrt(2560)):
        y = d.poisoned(m, k)
        d.embed(form, tokens, w.bytes, n, y, factor)
        torch.cuda.synchronize()
        same = same and torch.equal(y, w.f32[tokens.long()] * torch.tensor(factor, device="cuda"))
    if not same:
        FAILED.append("embed")
    print(f"{'ok  ' if same else 'BAD '} embed {form} {m} of {n}x{k}: {'the same bits' if same else 'DIFFERENT'}", flush=True)


class Attention:
    """A KV pool of two layers; the test uses the second. The last tokens of a sequence are padding."""
    def __init__(self, d, case, tile=None):
        self.d, self.case, self.tile, torch = d, case, tile or attention_tile(case), d.torch
        rows, tokens, heads, kv_heads, hd, before = case
        m, pages = rows * tokens, attention_pages(case)
        normal = lambda *dims: torch.randn(*dims, device="cuda")
        self.q, self.k, self.v = normal(m, heads * hd) * 32, normal(m, kv_heads * hd) / 32, normal(m, kv_heads * hd)
        self.k *= normal(m, 1).exp2()                                # rows of other sizes
        self.v *= (normal(m, 1) * 3).exp2()
        angle = normal(m, hd // 2) * 3
        self.cos, self.sin = angle.cos(), angle.sin()
        self.count = [max(1, tokens - 2 * r) for r in range(rows)]
        self.pages = (torch.randperm(rows * pages, device="cuda") + 1).int().view(rows, pages).contiguous()
        self.use(self.tile)
        self.pool = normal(rows * pages + 1, 2, kv_heads, 2, PAGE, hd)
        self.pool[:, :, :, 0] /= 32
        self.pool[:, :, :, 1] *= (normal(rows * pages + 1, 2, kv_heads, PAGE, 1) * 3).exp2()
        self.turned, self.out = d.poisoned(m, heads * hd), d.poisoned(m, heads * hd)

    def use(self, tile, cut=0, arch="sm_90"):
        words, placed = attention_batch(self.case, self.count, self.pages.tolist(), tile, cut)
        self.batch, self.placed = (self.d.torch.tensor(x, dtype=self.d.torch.int32, device="cuda") for x in (words, placed))
        self.tile, self.tiles, self.job = tile, (len(placed) - 4) // 8, attention_job(self.case, tile, arch)

    def place(self):
        """The second layer of a page, in lines of 64 bytes."""
        lines = self.case[3] * 2 * PAGE * self.case[4] * 4 // 64
        return [lines, 2 * lines, 0]

    def append(self):
        rows, tokens, heads, kv_heads, hd, _ = self.case
        self.d.launch(append_job(self.case, "sm_90"), (math.ceil((heads + 2 * kv_heads) * hd / 1024), rows * tokens, 1), 128,
                      [self.q, self.k, self.v, self.cos, self.sin, self.batch, self.pool, self.turned], 0, self.place() + [heads, kv_heads], b"append")

    def attend(self):
        share = self.case[2] // self.case[3]
        self.d.launch(self.job, (self.case[3], self.tiles, self.tile.split), self.tile.threads,
                      [self.turned, self.pool, self.batch, self.placed, self.out], self.tile.shared, self.place() + [share, (0xffffffff // share + 1) & 0xffffffff, 1 << 30, 0], b"attend")

    def reference(self, kind, pool):
        torch, (rows, tokens, heads, kv_heads, hd, before) = self.d.torch, self.case
        def turned(x):
            x, c, s = x.view(rows, tokens, -1, hd).to(kind), self.cos.to(kind).view(rows, tokens, 1, -1), self.sin.to(kind).view(rows, tokens, 1, -1)
            low, high = x.chunk(2, -1)
            return torch.cat([low * c - high * s, high * c + low * s], -1)
        q, k, v = turned(self.q), turned(self.k), self.v.view(rows, tokens, kv_heads, hd).to(kind)
        out = torch.zeros(rows, tokens, heads, hd, device="cuda", dtype=kind)
        for r in range(rows):
            real = self.count[r]
            past = pool[self.pages[r].long(), 1].to(kind).permute(2, 1, 0, 3, 4).reshape(2, kv_heads, -1, hd)[:, :, :before]
            keys, values = (torch.cat([past[i], n[r, :real].transpose(0, 1)], 1).repeat_interleave(heads // kv_heads, 0) for i, n in ((0, k), (1, v)))
            scores = q[r, :real].transpose(0, 1) @ keys.transpose(1, 2) * hd ** -0.5
            hidden = torch.arange(before + real, device="cuda")[None, :] > before + torch.arange(real, device="cuda")[:, None]
            out[r, :real] = (torch.softmax(scores.masked_fill(hidden, -math.inf), -1) @ values).transpose(0, 1)
        return out.view(rows * tokens, -1)


def check_attention(d, case):
    a = Attention(d, case)
    before = a.pool.clone()
    a.append()
    a.attend()
    d.torch.cuda.synchronize()
    exact, f32 = (a.reference(kind, before) for kind in (d.torch.float64, d.torch.float32))
    report(f"attention {case}, {a.tile}", a.out, exact, f32)
    firsts = {a.tile.warpgroups: a.out.clone()}                      # their units differ, so their bits may
    launches = [(tile, 0, "sm_90") for tile in attention_tiles(case)[1:]]
    if min(a.count) > 20:                                            # other tiles of the same queries
        launches += [(tile, 13, "sm_90") for tile in attention_tiles(case)[:2]]
    launches += [(tile, 0, "sm_90 portable") for tile in attention_tiles(case)[:2] if tile.warpgroups]
    for tile, cut, arch in launches:
        a.use(tile, cut, arch)
        a.out.fill_(math.nan)
        a.attend()
        d.torch.cuda.synchronize()
        first = firsts.setdefault(arch if "portable" in arch else tile.warpgroups, a.out.clone())
        if not d.torch.equal(first, a.out):
            FAILED.append("attention bits")
            print(f"BAD  attention {case}: other bits with {tile}, cut at {cut}")
        elif first.data_ptr() != a.out.data_ptr() and cut == 0:
            report(f"attention {case}, {tile}, {arch}", a.out, exact, f32)


def measure_attention(d, tiles):
    for case in ATTENTION_SPEED:
        for tile in [attention_tile(case)] + tiles * (case[4] == 64):
            a = Attention(d, case, tile)
            a.append()
            append, attend = d.time(lambda: [a.append() for _ in range(LAYERS)]) / LAYERS, d.time(lambda: [a.attend() for _ in range(LAYERS)]) / LAYERS
            flops = case[0] * sum(4 * case[2] * case[4] * (case[5] + t + 1) for t in range(case[1]))
            print(f"attention {case}, {a.tile}: append {append:.1f} us, attend {attend:.1f} us, {flops / attend / 1e6:.1f} TFLOP/s", flush=True)


NARROW = ("q4_k", "q6_k", "mxfp4", "q5_k", "q2_k", "q3_k", "q5_0", "q5_1", "iq4_nl", "iq4_xs", "mlx4", "mlx6", "gptq", "mlx8", "mixed2")
LINEAR_CASES = [("q4_0", 512, 3072, 2048, 0), ("q4_1", 512, 3072, 2048, 0), ("q4_0", 128, 576, 576, 1), ("q4_1", 17, 49, 96, 0), ("q8_0", 16, 576, 1536, 2),
                ("mixed", 128, 49, 96, 2), ("mixed", 512, 3072, 2048, 2), ("q4_0", 1, 49, 96, 0), ("q8_0", 512, 3072, 2048, 1), ("q4_0", 33, 2048, 2048, 1),
                ("q4_0", 512, 2048, 8192, 1), ("q4_1", 64, 1536, 576, 2), ("q4_0", 512, 8192, 2048, 2)]
LINEAR_CASES += [(form, *case) for form in NARROW for case in ((3, 8, 768, 0), (512, 3072, 2048, 0), (17, 576, 1536, 2))]
LINEAR_CASES += [(form, *case) for form in ROWS16 for case in ((512, 3072, 2048, 0), (128, 576, 576, 1), (17, 49, 96, 0), (16, 576, 1536, 2), (3, 8, 576, 0),
                 (17, 576, 576, 2), (512, 2048, 8192, 1), (64, 1536, 544, 2), (512, 8192, 2048, 2), (33, 2048, 2048, 1))]
SMALL_CASES = [("q4_0", 17, 49, 96, 0), ("q4_1", 130, 136, 576, 2), ("mixed", 40, 72, 576, 1), ("q8_0", 16, 200, 2048, 0), ("BF16", 16, 64, 64, 0), ("BF16", 40, 72, 544, 2), ("F16", 130, 136, 96, 1)]
SMALL_CASES += [(form, 40, 72, 768, 1) for form in NARROW]
GEMV_CASES = [("q4_0", 1, 3072, 2048), ("q4_1", 3, 49, 96), ("q8_0", 8, 576, 1536), ("mixed", 2, 1003, 1536), ("q4_1", 8, 16411, 2048)]
GEMV_CASES += [(form, *case) for form in NARROW for case in ((2, 49, 768), (5, 2048, 8192))]
FEW_CASES = [(form, *case) for form in ROWS16 for case in ((16, 8192, 2048, 2), (13, 2048, 2048, 1), (9, 1536, 576, 2), (16, 192, 96, 2), (16, 64, 64, 1))]
EMBED_CASES = [("q4_0", 17, 4999, 576), ("q4_1", 512, 1003, 2048), ("q8_0", 3, 49, 96), ("mixed", 16, 1003, 96)] + [(form, 33, 1003, 768) for form in NARROW]


def portable_tiles(form, m, n, k, end):
    return tile_for(form, m, n, k, end, "sm_80")


def check_all(d, wanted, small, formats):
    linears = SMALL_CASES if small else LINEAR_CASES
    linears = [c for c in linears if not formats or c[0] in formats]
    if "cut" in wanted:
        for m, k in ((17, 96),) if small else ((1, 96), (17, 576), (512, 2048)):
            check_cut(d, m, k)
    if "linear" in wanted:
        for case in linears:
            check_linear(d, *case)
    if "few" in wanted:
        for case in [c for c in FEW_CASES if not formats or c[0] in formats]:
            check_few(d, *case)
    if "portable" in wanted:                                         # mma.sync, compiled for an older GPU and for this one
        for case in linears:
            check_linear(d, *case, tile=portable_tiles(*case), arch="sm_90")
        for case in linears[:8]:                                     # and the launch for Hopper on a later GPU
            check_linear(d, *case, tile=tile_for(*case, "sm_90a"), arch="sm_90")
    if "gemv" in wanted:
        for case in [c for c in GEMV_CASES if (not small or c[1] * c[2] < 5000) and (not formats or c[0] in formats)]:
            check_gemv(d, *case)
    if "attention" in wanted:
        for case in SMALL_ATTENTION if small else ATTENTION_CASES:
            check_attention(d, case)
    if "embed" in wanted:
        for case in [c for c in EMBED_CASES if not formats or c[0] in formats]:
            check_embed(d, *case)


# ---- speed ----

def fits(tile, end, form):
    sums = tile.m * tile.n * (2 if end == 2 else 1)
    return sums <= 128 * 32 * tile.warps and (tile.split == 1 or sums * 4 <= tile.stages * tile.m * (384 if form in ROWS16 else 256))


def measure(d, form, tiles, m):
    torch, total = d.torch, 0.0
    one = {name: (Matrix(form, n, k), end) for name, (n, k, end) in LINEARS.items()}
    layers = {name: [w.bytes.clone() for _ in range(LAYERS * (2 if end == 2 else 1))] for name, (w, end) in one.items()}
    x = {k: torch.randn(m, k, device="cuda") for k in sorted({k for _, k, _ in LINEARS.values()})}
    parts = {k: d.parts(m, k) for k in x}
    works = {}
    for k in x:
        d.cut(form, x[k], parts[k])
        us = d.time(lambda: [d.cut(form, x[k], parts[k]) for _ in range(LAYERS)]) / LAYERS
        total += us * (3 if k == min(x) else 1)
        print(f"cut {m}x{k}: {us:.1f} us", flush=True)
    for name, (n, k, end) in LINEARS.items():
        y = torch.zeros(m, n, device="cuda")
        best = math.inf
        for tile in [tile_for(form, m, n, k, end, d.arch)] + tiles:
            if not fits(tile, end, form):
                continue
            def work():
                for layer in range(LAYERS):
                    w = layers[name]
                    tensors = [parts[k], w[layer * 2], w[layer * 2 + 1], y] if end == 2 else [parts[k], w[layer]] + ([y, y] if end == 1 else [y])
                    d.linear(form, m, n, k, end, tensors, tile)
            us = d.time(work) / LAYERS
            if best == math.inf:
                total += us
                works[name] = work
            best = min(best, us)
            flops = 2 * m * n * k * (2 if end == 2 else 1)
            print(f"{form} {name} {m}x{n}x{k}, {tile}: {us:.1f} us, {flops / us / 1e6:.0f} TFLOP/s, {3 * flops / us / 1e6:.0f} with the parts", flush=True)
    print(f"{form}: cuts and products of {LAYERS} layers, tiles as chosen: {total * LAYERS / 1000:.2f} ms", flush=True)


def measure_partial(d, form, m, tiles):
    """Products whose partial sums the next norm adds, and that norm."""
    torch = d.torch
    for name in ("o", "down"):
        n, k, _ = LINEARS[name]
        copies, parts, gain = [Matrix(form, n, k).bytes.clone() for _ in range(LAYERS)], d.parts(m, k), torch.randn(n, device="cuda")
        x, out = torch.randn(m, n, device="cuda"), d.parts(m, n)
        d.cut(form, torch.randn(m, k, device="cuda"), parts)
        for tile in tiles:
            y = torch.zeros(tile.split, m, n, device="cuda")
            job = linear_job(form, m, n, k, 4, Tile(tile.m, tile.n, 1, tile.stages, tile.warps), d.arch)
            norm = cut_job(form, d.arch, partials=True)
            product = lambda w: d.launch(job, (math.ceil(m / tile.m), math.ceil(n / tile.n), tile.split), 32 * tile.warps, [parts, w, y],
                                         OPS.mlx_quantized_tile_shared_bytes(tile, form in ROWS16), (m, n, k))
            add = lambda: d.launch(norm, ((m + 7) // 8 * 8, 1, 1), 256, [gain, y, x, out], 0, (m, n, tile.split))
            us = d.time(lambda: [product(w) for w in copies]) / LAYERS
            both = d.time(lambda: [(product(w), add()) for w in copies]) / LAYERS
            print(f"partial {form} {name} {m}x{n}x{k}, {tile}: {us:.1f} us, with the norm {both:.1f} us", flush=True)


def measure_few(d, form, m, others):
    torch = d.torch
    for name, (n, k, end) in LINEARS.items():
        w, x, y = Matrix(form, n, k), torch.randn(m, k, device="cuda"), torch.zeros(m, n, device="cuda")
        copies = [w.bytes.clone() for _ in range(LAYERS * (1 + (end == 2)))]
        for few in [few_for(m, n, k, end)] + [few_for(m, n, k, end, other) for other in others]:
            if not end or not few.groups or few.shared > 232448 or few.groups % end:
                continue
            def work():
                for i in range(0, len(copies), 1 + (end == 2)):
                    d.few(form, m, n, k, end, few, x, [copies[i], y if end == 1 else copies[i + 1], y])
            us = d.time(work) / LAYERS
            print(f"few {form} {name} {m}x{n}x{k}, {few}: {us:.1f} us, {2 * n * k * (1 + (end == 2)) / us / 1e6:.2f} TB/s", flush=True)


GEMV_SHAPES = ((32768, 2048), (2048, 2048), (8192, 2048), (2048, 8192))


def measure_gemv(d, form, m, streams):
    torch = d.torch
    for n, k in GEMV_SHAPES:
        w, x, y = Matrix(form, n, k), torch.randn(m, k, device="cuda"), torch.zeros(m, n, device="cuda")
        copies = [w.bytes.clone() for _ in range(max(2, int(3e8 / w.bytes.numel())))]
        for other in [None] + streams:
            us = d.time(lambda: [d.gemv(form, x, c, y, other) for c in copies]) / len(copies)
            print(f"gemv {form} {m}x{n}x{k}, {stream_for(m, n, k, other)}: {us:.1f} us, {w.bytes.numel() / us / 1e6:.2f} TB/s", flush=True)
            report(f"gemv {form} {m}x{n}x{k}", y, x.double() @ w.exact.T, x @ w.f32.T)


def compile_jobs(wanted, tiles, attend_tiles, formats, small, sizes, streams):
    jobs = []
    for form, m, n, k, end in SMALL_CASES + ([] if small else LINEAR_CASES):
        if "linear" not in wanted or formats and form not in formats:
            continue
        jobs += [cut_job(form, "sm_90a"), linear_job(form, m, n, k, end, tile_for(form, m, n, k, end, "sm_90a"), "sm_90a")]
        if "portable" in wanted:
            jobs += [linear_job(form, m, n, k, end, portable_tiles(form, m, n, k, end), arch) for arch in ("sm_80", "sm_89", "sm_90")]
            jobs.append(linear_job(form, m, n, k, end, tile_for(form, m, n, k, end, "sm_90a"), "sm_90"))
    if "few" in wanted:
        jobs += [few_job(form, k, end, few_for(m, n, k, end), norm, "sm_90a") for form, m, n, k, end in FEW_CASES if not formats or form in formats for norm in (0, 1)]
    if "gemv" in wanted:
        jobs += [gemv_job(*case[:1], m, *case[2:], arch) for case in GEMV_CASES for m in (1, case[1]) for arch in ("sm_80", "sm_90a") if not formats or case[0] in formats]
    if "embed" in wanted:
        jobs += [embed_job(*case, arch) for case in EMBED_CASES for arch in ("sm_80", "sm_90a") if not formats or case[0] in formats]
    if "attention" in wanted:
        jobs += [attention_job(case, tile, arch) for case in ATTENTION_CASES + SMALL_ATTENTION for tile in attention_tiles(case) for arch in ("sm_80", "sm_90", "sm_90 portable")
                 if arch != "sm_80" or tile.split == 1]
        jobs += [append_job(case, "sm_90") for case in ATTENTION_CASES + SMALL_ATTENTION]
    if "attend" in wanted or "speed" in wanted:
        jobs += [attention_job(case, t, "sm_90") for case in ATTENTION_SPEED for t in [attention_tile(case)] + attend_tiles * (case[4] == 64)]
        jobs += [append_job(case, "sm_90") for case in ATTENTION_SPEED]
    if "speed" in wanted:
        for form in formats or ["q4_0"]:
            if form not in ROWS16:
                jobs += [gemv_job(form, 1, n, k, "sm_90a", s) for n, k in GEMV_SHAPES for s in [None] + streams]
            for n, k, end in LINEARS.values():
                jobs += [linear_job(form, m, n, k, end, t, "sm_90a") for m in sizes for t in [tile_for(form, m, n, k, end, "sm_90a")] + tiles if fits(t, end, form) and t.m <= max(16, m)]
    return jobs


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--compile", nargs="?", const="sm_80,sm_89,sm_90,sm_90a")
    parser.add_argument("--cache", default=str(pathlib.Path(tempfile.gettempdir()) / "packed-probe"))
    parser.add_argument("--nvrtc")
    parser.add_argument("--only", default="cut,linear,few,portable,gemv,embed,attention,speed")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--m", default="512")
    parser.add_argument("--formats", default="")
    parser.add_argument("--tile", action="append", default=[])
    parser.add_argument("--stream", action="append", default=[])
    parser.add_argument("--few", action="append", default=[])
    parser.add_argument("--attend", action="append", default=[])
    parser.add_argument("--shape", choices=SHAPES, default="llama-1b")
    a = parser.parse_args()
    LINEARS.update(SHAPES[a.shape])
    wanted, formats = a.only.split(","), [f for f in a.formats.split(",") if f]
    tiles = [Tile(*map(int, t.split(","))) for t in a.tile]
    streams = [tuple(map(int, s.split(","))) for s in a.stream]
    fews = [tuple(map(int, s.split(","))) for s in a.few]
    sizes = [int(m) for m in a.m.split(",")]
    attend_tiles = [AttendTile(*map(int, t.split(","))) for t in a.attend]
    for t in attend_tiles:
        t.shared = OPS.mlx_attend_f32_bytes(t, 64, 0, 4)
    builder = Builder(a.cache, a.nvrtc)
    if a.compile:
        builder.build([j for j in compile_jobs(wanted, tiles, attend_tiles, formats, a.small, sizes, streams) if j[2] in a.compile.split(",")])
        return
    d = Driver(builder)
    check_all(d, wanted, a.small, formats)
    if "speed" in wanted:
        for form in formats or ["q4_0"]:
            for m in sizes:
                if "partial" in wanted:
                    measure_partial(d, form, m, [t for t in tiles if t.m <= max(16, m)])
                    continue
                measure(d, form, [t for t in tiles if t.m <= max(16, m)], m)
                if form in ROWS16 and 8 < m <= 16:
                    measure_few(d, form, m, fews)
            if form not in ROWS16:
                measure_gemv(d, form, 1, streams)
    if "attend" in wanted or "speed" in wanted:
        measure_attention(d, attend_tiles)
    print(f"{len(FAILED)} failed: {FAILED}" if FAILED else "all good")
    sys.exit(bool(FAILED))


if __name__ == "__main__":
    main()
