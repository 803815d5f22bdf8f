#!/usr/bin/env python3
"""Tests the kernels of mixtures of experts (kernels/cuda/experts.cu, and packed.cu with EXPERTS or TOKEN) on their own, for accuracy and speed.

  experts_probe.py [--compile [sm_80,...]] [--cache DIR] [--nvrtc LIBRARY] [--only route,scores,token,gemv,gemm,portable,speed] [--formats q4_0,...] [--tile BM]

Compiling (--compile does only that) needs NVRTC and gcc; running needs a GPU and torch. Each kernel is compared with float64, next to f32. "off" is
the norm of the difference divided by the norm of the result. --tile times the products of a prefill with tiles of another number of tokens.
"""
import argparse
import ctypes
import math
import pathlib
import tempfile

import packed_probe as probe
from packed_probe import OPS, ROWS16, Tile

LIMIT, SLOPE = 7.0, 1.702  # of gpt-oss
EPS = 1e-5
SHAPES = {  # experts, used, hidden, ffn, format, biases and clamping as in gpt-oss, layers
    "gpt-oss-20b": (32, 4, 2880, 2880, "mxfp4", True, 24), "Qwen3-30B-A3B": (128, 8, 2048, 768, "q4_0", False, 48)}


class Groups(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("pairs", "tiles", "rows", "list_at", "rows_at", "words")]


class Gemv(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("each", "split", "resident", "shared")]


OPS.mlx_experts_tile.restype, OPS.mlx_experts_tile.argtypes = Tile, [ctypes.c_int64] * 3 + [ctypes.c_bool] * 2
OPS.mlx_experts_groups.restype, OPS.mlx_experts_groups.argtypes = Groups, [ctypes.c_int64] * 4
OPS.mlx_experts_gemv.restype, OPS.mlx_experts_gemv.argtypes = Gemv, [ctypes.c_bool] + [ctypes.c_int64] * 4 + [ctypes.c_bool] * 3 + [ctypes.c_int64]
OPS.mlx_token_shared_bytes.restype, OPS.mlx_token_shared_bytes.argtypes = ctypes.c_int64, [ctypes.c_int64, ctypes.c_bool]


class Case:
    """One mixture: tokens, experts, used, hidden, ffn, format; |biased|: biases and clamping."""
    def __init__(self, tokens, experts, used, hidden, ffn, form, biased, arch="sm_90a", tile=None):
        self.tokens, self.experts, self.used, self.hidden, self.ffn, self.form, self.biased, self.arch = tokens, experts, used, hidden, ffn, form, biased, arch
        self.tiles = [OPS.mlx_experts_tile(tokens, used, experts, pair, arch == "sm_90a") for pair in (True, False)]
        if tile:
            for t in self.tiles:
                t.m = tile
        self.groups = OPS.mlx_experts_groups(tokens, used, experts, self.tiles[0].m)
        bits, _, offset, _, center = (16, 0, 0, 0, 0) if form in ROWS16 else probe.Tiles(form).arguments
        small = lambda pair: bits == 4 and not offset and (not pair or center >= 0)
        self.vector = {pair: OPS.mlx_experts_gemv(pair, self.groups.pairs, used, *((ffn, hidden) if pair else (hidden, ffn)), form in ROWS16, small(pair), arch != "sm_80", probe.PROCESSORS)
                       for pair in (True, False)}

    def __str__(self):
        return f"{self.form} {self.tokens} tokens, {self.used} of {self.experts} experts, {self.hidden} x {self.ffn}{', biases' if self.biased else ''}, {self.arch}"

    def definitions(self, macro, *more):
        return ("NAME=probe", f"{macro}=1", f"experts={self.experts}", f"used={self.used}") + more

    def route(self):
        return ("experts.cu", self.definitions("ROUTE", "BATCH=0", "sum_to_one=1"), self.arch)

    def group(self):
        return ("experts.cu", self.definitions("GROUP", f"tile={self.tiles[0].m}"), self.arch)

    def combine(self):
        return ("experts.cu", self.definitions("COMBINE", "RESIDUAL=1", f"tile={self.tiles[0].m}", f"n={self.hidden}"), self.arch)

    def sizes(self, pair):
        return (self.ffn, self.hidden) if pair else (self.hidden, self.ffn)

    def products(self):
        return (f"BIAS={int(self.biased)}",) + ((f"limit={LIMIT}f", f"slope={SLOPE}f") if self.biased else ())

    def gemv(self, pair):
        n, k = self.sizes(pair)
        normed, vector = pair and self.tokens == 1, self.vector[pair]  # one token: gate and up normalize x
        macros = ("BATCH=0", "sum_to_one=1", f"PAIR={int(pair)}", f"GAIN={int(normed)}", f"RESIDUAL={int(not pair)}", f"SPLIT={vector.split}", f"n={n}", f"k={k}")
        return ("packed.cu", self.definitions("EXPERTS_GEMV", *macros) + probe.format_fields(self.form) + self.products() + (f"norm_eps={EPS}f", f"each={vector.each}",
                f"resident={vector.resident}"), self.arch)

    def gemm(self, pair):
        t = self.tiles[0 if pair else 1]
        macros = ("NAME=probe", "PRODUCT=1", f"EPILOGUE={2 if pair else 0}", "MATRICES=1", "MIXTURE=1", "SPLIT=1")
        return ("packed.cu", macros + probe.format_fields(self.form) + (f"whole_runs={int(self.sizes(pair)[1] % 128 == 0)}",) + self.products() + (f"bm={t.m}", f"bn={t.n}",
                f"stages={t.stages}", f"warps={t.warps}"), self.arch)

    def cut(self, is_sorted):
        return ("packed.cu", ("NAME=probe", "SPLIT_INPUT=1", "MIXTURE=1", "GAIN=0", "LAYERNORM=0", "PARTIALS=0") + (("bits=16",) if self.form in ROWS16 else ())
                + (f"sorted={int(is_sorted)}",), self.arch)

    def jobs(self, few):
        return ([self.gemv(True), self.gemv(False)] if few else [self.route(), self.group(), self.combine(), self.gemm(True), self.gemm(False), self.cut(True), self.cut(False)])


def normalized(x, gain):
    return x * (x.square().mean(1, keepdim=True) + EPS).rsqrt() * gain.to(x.dtype)


def token_job(form, rows, k, normed, biased, adds, arch):
    macros = ("NAME=probe", "TOKEN=1", f"GAIN={int(normed)}", f"MATRICES={len(rows)}", f"BIAS={int(biased)}", f"RESIDUAL={int(adds)}", f"n={rows[0]}", f"k={k}")
    return ("packed.cu", macros + (("bits=32", "dtype=Dtype::F32") if form == "F32" else probe.format_fields(form)) + (f"n2={(rows + (0, 0))[1]}", f"n3={(rows + (0, 0))[2]}",
            f"norm_eps={EPS}f"), arch)


def check_token(d, form, rows, k, normed, biased, adds, times):
    torch = d.torch
    def matrix(n, seed):
        if form != "F32":
            return probe.Matrix(form, n, k, seed)
        m = type("Rows", (), {})()
        m.f32 = m.bytes = torch.randn(n, k, device="cuda") * k ** -0.5
        m.exact = m.f32.double()
        return m
    copies = 12 if times else 1  # more than L2 holds
    weights = [[matrix(n, i * 10 + c) for i, n in enumerate(rows)] for c in range(copies)]
    normal = lambda n: torch.randn(n, device="cuda")
    x, gain, biases, residual, y = normal(k)[None] * 3, normal(k), [normal(n) for n in rows], normal(rows[0]), [d.poisoned(n) for n in rows]
    tiles = form not in ROWS16 and form != "F32"
    grid, shared = sum(math.ceil(n / (16 if tiles else 8)) for n in rows), OPS.mlx_token_shared_bytes(k, tiles)
    def run(nth=0):
        d.launch(token_job(form, rows, k, normed, biased, adds, d.arch), (grid, 1, 1), 256,
                 [x] + [gain] * normed + [m.bytes for m in weights[nth]] + biases * biased + [residual] * adds + y, shared)
    run()
    torch.cuda.synchronize()
    def reference(kind):
        v = normalized(x.to(kind), gain) if normed else x.to(kind)
        out = [(v @ m.exact.to(kind).T)[0] + (b.to(kind) if biased else 0) for m, b in zip(weights[0], biases)]
        return torch.cat([out[0] + residual.to(kind)] if adds else out)
    first = torch.cat(y)
    elapsed = f", {d.time(lambda: [run(c) for c in range(copies)]) / copies:.1f} us" if times else ""
    probe.report(f"token {form} {' + '.join(map(str, rows))} x {k}{', norm' * normed}{', bias' * biased}{', residual' * adds}{elapsed}", first, reference(torch.float64), reference(torch.float32))


def scores_job(n, k, vector, arch):
    return ("experts.cu", ("NAME=probe", "SCORES_VECTOR=1" if vector else "SCORES=1", f"n={n}", f"k={k}"), arch)


class Experts:
    """Random weights of a case, the buffers of a layer, and the launches."""
    def __init__(self, d, case, seed=0, exact=True):
        torch = d.torch
        self.d, self.c, c = d, case, case
        distinct = c.experts if exact else 1
        def matrices(n, k, role):
            made = [probe.Matrix(c.form, n, k, seed + role * 1000 + e) for e in range(distinct)]
            values = torch.stack([m.exact for m in made]) if exact else None
            return torch.cat([m.bytes for m in made] * (c.experts // distinct)), values
        (self.gate, self.gate64), (self.up, self.up64), (self.down, self.down64) = (
            matrices(c.ffn, c.hidden, 0), matrices(c.ffn, c.hidden, 1), matrices(c.hidden, c.ffn, 2))
        normal = lambda *dims: torch.randn(*dims, device="cuda")
        self.biases = [normal(c.experts, c.ffn), normal(c.experts, c.ffn), normal(c.experts, c.hidden)]
        self.x, self.scores, self.gain = normal(c.tokens, c.hidden) * 2, normal(c.tokens, c.experts), normal(c.hidden)
        g = c.groups
        self.routing = torch.full((2 * g.pairs,), -7, dtype=torch.int32, device="cuda")
        self.grouped = torch.full((g.words,), -7, dtype=torch.int32, device="cuda")
        self.parts = [d.torch.full((((math.ceil(k / 128) * 2 + math.ceil(k / 2048)) * g.rows * 384),), 0xff, dtype=torch.uint8, device="cuda") for k in (c.hidden, c.ffn)]
        self.inner, self.outer = d.poisoned(max(g.rows, g.pairs), c.ffn), d.poisoned(g.rows, c.hidden)
        self.residual, self.y = normal(c.tokens, c.hidden), d.poisoned(c.tokens, c.hidden)

    def route(self):
        self.d.launch(self.c.route(), (math.ceil(self.c.tokens / 4), 1, 1), 128, [self.scores, self.routing], 0, [self.c.tokens])

    def with_biases(self, pair):
        return [] if not self.c.biased else self.biases[:2] if pair else self.biases[2:]

    def gemv_pair(self):
        c = self.c
        shape = c.vector[True]
        self.d.launch(c.gemv(True), (math.ceil(c.ffn / (16 * shape.each)), c.groups.pairs, 1), 256, [self.x] + [self.gain] * (c.tokens == 1) + [self.gate, self.up] + self.with_biases(True) + [self.scores, self.inner], shape.shared)

    def gemv_down(self):
        c = self.c
        shape = c.vector[False]
        self.d.launch(c.gemv(False), (math.ceil(c.hidden / 16), c.tokens, shape.split), 256, [self.inner, self.down] + self.with_biases(False) + [self.scores, self.residual, self.y], shape.shared)

    def group(self):
        self.d.launch(self.c.group(), (1, 1, 1), 512, [self.routing, self.grouped], 0, [self.c.tokens])

    def cut(self, is_sorted):
        c, k = self.c, self.c.ffn if is_sorted else self.c.hidden
        self.d.launch(c.cut(is_sorted), (math.ceil(math.ceil(k / 512) * 64 / 256), c.groups.rows, 1), 256, [self.inner if is_sorted else self.x, self.grouped, self.parts[is_sorted]], 0,
                      [c.groups.rows if is_sorted else c.tokens, k, c.groups.rows, c.groups.list_at, c.used])

    def gemm(self, pair):
        c, t = self.c, self.c.tiles[0 if pair else 1]
        weights = [self.gate, self.up] if pair else [self.down]
        self.d.launch(c.gemm(pair), (c.groups.tiles, math.ceil((c.ffn if pair else c.hidden) / t.n), 1), 32 * t.warps,
                      [self.parts[0 if pair else 1]] + weights + self.with_biases(pair) + [self.grouped, self.inner if pair else self.outer],
                      OPS.mlx_quantized_tile_shared_bytes(t), [c.groups.rows, *c.sizes(pair)])

    def combine(self):
        self.d.launch(self.c.combine(), (math.ceil(self.c.hidden / 1024), self.c.tokens, 1), 256, [self.outer, self.routing, self.grouped, self.residual, self.y], 0, [self.c.tokens])

    def few(self):
        return [("gate and up", self.gemv_pair), ("down", self.gemv_down)]

    def many(self):
        return [("route", self.route), ("group", self.group), ("cut x", lambda: self.cut(False)), ("gate and up", lambda: self.gemm(True)),
                ("cut inner", lambda: self.cut(True)), ("down", lambda: self.gemm(False)), ("combine", self.combine)]

    def chosen(self):
        """Experts and weights by numpy's rules: the largest scores first, the lowest index on a tie."""
        torch = self.d.torch
        order = torch.argsort(self.scores, dim=1, descending=True, stable=True)[:, :self.c.used]
        weights = torch.softmax(self.scores.double(), 1).gather(1, order)
        return order, weights / weights.sum(1, keepdim=True)

    def reference(self, kind):
        torch, c = self.d.torch, self.c
        order, weights = self.chosen()
        x, y = self.x.to(kind), self.residual.to(kind).clone()
        x = normalized(x, self.gain) if c.tokens == 1 else x
        gate_bias, up_bias, down_bias = (b.to(kind) for b in self.biases)
        for e in range(c.experts):
            at, nth = (order == e).nonzero(as_tuple=True)
            if not len(at):
                continue
            gate, up = x[at] @ self.gate64[e].to(kind).T, x[at] @ self.up64[e].to(kind).T
            if c.biased:
                gate, up = (gate + gate_bias[e]).clamp(max=LIMIT), (up + up_bias[e]).clamp(-LIMIT, LIMIT)
                inner = (up + 1) * gate * torch.sigmoid(SLOPE * gate)
            else:
                inner = probe.silu(gate) * up
            out = inner @ self.down64[e].to(kind).T
            y.index_add_(0, at, (out + down_bias[e] if c.biased else out) * weights[at, nth].to(kind)[:, None])
        return y


def check_route(d, tokens, experts, used):
    torch = d.torch
    case = Case(tokens, experts, used, 128, 128, "q4_0", False, d.arch, 16)
    e = Experts(d, case, exact=False)
    e.scores = (e.scores * 4).round() / 4                            # with ties
    e.route()
    e.group()
    torch.cuda.synchronize()
    order, weights = e.chosen()
    pairs, g = case.groups.pairs, case.groups
    good = torch.equal(e.routing[:pairs].view(tokens, used).long(), order)
    got = e.routing[pairs:].view(torch.float32).view(tokens, used).double()
    good &= bool(((got - weights).abs() < 1e-6).all())
    expert_of, words = order.flatten().tolist(), e.grouped.tolist()
    rows, tiles, row = [], [], 0
    for expert in range(experts):
        mine = [p for p in range(pairs) if expert_of[p] == expert]
        for i in range(0, len(mine), 16):
            tiles += [expert, row + i, row + min(i + 16, len(mine)), 0]
        rows += mine + [-1] * (-len(mine) % 8)
        row += (len(mine) + 7) // 8 * 8
    rows += [-1] * (g.rows - len(rows))
    good &= words[0] == len(tiles) // 4 and words[4:4 + len(tiles)] == tiles and words[g.list_at:g.rows_at] == rows
    good &= all(words[g.list_at + words[g.rows_at + p]] == p for p in range(pairs))
    if not good:
        probe.FAILED.append("route")
    print(f"{'ok  ' if good else 'BAD '} route and group {tokens} tokens, {used} of {experts} experts", flush=True)


def check_scores(d, m, n, k):
    torch = d.torch
    x, w = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    for vector in (True, False):
        y = d.poisoned(m, n)
        grid = (math.ceil(n / 4), m, 1) if vector else (math.ceil(m / 16), math.ceil(n / 32), 1)
        run = lambda: d.launch(scores_job(n, k, vector, d.arch), grid, 128 if vector else 256, [x, w, y], 0, [m])
        run()
        torch.cuda.synchronize()
        probe.report(f"scores {m}x{n}x{k} {'vector' if vector else 'tiles'}, {d.time(lambda: [run() for _ in range(8)]) / 8:.1f} us", y, x.double() @ w.double().T, x @ w.T)


def check_case(d, case, few):
    torch = d.torch
    e = Experts(d, case)
    for _, step in e.few() if few else e.many():
        step()
    torch.cuda.synchronize()
    first = e.y.clone()
    for _, step in e.few() if few else e.many():
        step()
    torch.cuda.synchronize()
    if not torch.equal(first, e.y):
        probe.FAILED.append("repeat")
        print("BAD  not the same bits twice")
    probe.report(f"{'gemv' if few else 'gemm'} {case}, tiles {case.tiles[0].m}", e.y, e.reference(torch.float64), e.reference(torch.float32))


FEW = [(1, 8, 2, 256, 96, "q4_0", False), (3, 32, 4, 576, 544, "mxfp4", True), (2, 8, 3, 512, 768, "q6_k", True), (2, 16, 8, 2048, 768, "q4_1", False), (1, 8, 2, 96, 1568, "q8_0", True),
       (2, 6, 3, 256, 512, "q4_k", True), (1, 8, 2, 512, 14336, "q4_0", False), (3, 8, 4, 288, 96, "BF16", True), (2, 8, 2, 2048, 768, "F16", False),
       (8, 4, 4, 14336, 224, "q4_0", False), (8, 4, 4, 14336, 224, "BF16", False)]  # x in two panels, two groups of rows
MANY = [(16, 8, 2, 256, 96, "q4_0", False), (16, 32, 4, 576, 544, "mxfp4", True), (130, 8, 3, 512, 768, "q6_k", True), (64, 16, 8, 2048, 768, "q4_1", False), (100, 8, 4, 96, 288, "q8_0", True),
        (256, 6, 3, 256, 512, "q4_k", True), (512, 16, 4, 576, 576, "q4_0", False), (40, 8, 4, 288, 96, "BF16", True), (512, 8, 2, 544, 768, "F16", False)]
ROUTES = [(1, 32, 4), (5, 6, 3), (512, 128, 8), (256, 60, 4), (16, 1000, 32)]
TOKENS = [("q4_0", (4096, 512, 512), 2048, True, False, False, True), ("q4_0", (2048,), 4096, False, False, True, True), ("F32", (128,), 2048, True, False, False, True),
          ("BF16", (4096, 512, 512), 2880, True, True, False, True), ("BF16", (2880,), 4096, False, True, True, True), ("BF16", (32,), 2880, True, True, False, True),
          ("q4_1", (72, 40), 96, True, True, False, False), ("q6_k", (100,), 768, True, False, True, False), ("q8_0", (33, 16, 9), 1568, False, True, False, False),
          ("q4_k", (256, 64), 512, True, False, False, False), ("q2_k", (48,), 10240, True, True, True, False), ("mxfp4", (40,), 544, True, True, False, False),
          ("F16", (100, 36), 96, True, False, False, False), ("F16", (17,), 10240, True, True, True, False), ("F32", (1,), 64, False, True, False, False)]
SCORES = [(1, 128, 2048), (512, 128, 2048), (17, 1, 96), (64, 32, 2880), (256, 60, 64)]


def speed_cases(sizes, arch, formats, tile=None):
    return [(name, layers, Case(m, experts, used, hidden, ffn, form, biased, arch, tile if m > 8 else None)) for name, (experts, used, hidden, ffn, own, biased, layers) in SHAPES.items()
            for form in (formats or [own]) for m in sizes]


def measure(d, name, layers, case):
    e, few = Experts(d, case, exact=False), case.tokens <= 8
    steps = e.few() if few else e.many()
    choices = [e.scores]
    if case.tokens == 1:                                             # other experts each time, so that L2 does not have them
        choices = [e.scores + 99 * (d.torch.arange(case.experts, device="cuda") // case.used == i) for i in range(case.experts // case.used)]
    def run(chosen):
        for e.scores in choices:
            for _, step in chosen:
                step()
    times = [(what, d.time(lambda: run([(what, step)])) / len(choices)) for what, step in steps]
    whole = d.time(lambda: run(steps)) / len(choices)
    used = (e.gate.numel() + e.up.numel() + e.down.numel()) / case.experts * min(case.experts, case.groups.pairs)
    flops = case.groups.pairs * case.hidden * case.ffn * 6
    print(f"{name}: {case}, tiles {case.tiles[0].m}: {whole:.1f} us a layer, {layers * whole / 1000:.2f} ms for {layers} layers, {used / whole / 1e6:.2f} TB/s, "
          f"{flops / whole / 1e6:.0f} TFLOP/s; " + ", ".join(f"{what} {us:.1f}" for what, us in times), flush=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--compile", nargs="?", const="sm_80,sm_90,sm_90a")
    parser.add_argument("--cache", default=str(pathlib.Path(tempfile.gettempdir()) / "packed-probe"))
    parser.add_argument("--nvrtc")
    parser.add_argument("--only", default="route,scores,token,gemv,gemm,portable,speed")
    parser.add_argument("--formats", default="")
    parser.add_argument("--m", default="1,16,512")
    parser.add_argument("--tile", type=int)
    a = parser.parse_args()
    wanted, formats, sizes = a.only.split(","), [f for f in a.formats.split(",") if f], [int(m) for m in a.m.split(",")]
    builder = probe.Builder(a.cache, a.nvrtc)
    archs = ["sm_90a"] + (["sm_90"] if "portable" in wanted else []) + (["sm_80"] if a.compile else [])  # sm_90: mma.sync
    chosen = lambda cases: [c for c in cases if not formats or c[5] in formats]
    jobs = [j for arch in archs for few, cases in ((True, FEW), (False, MANY)) if ("gemv" if few else "gemm") in wanted for c in chosen(cases) for j in Case(*c, arch).jobs(few)]
    if "route" in wanted:
        jobs += [j for m, experts, used in ROUTES for c in [Case(m, experts, used, 128, 128, "q4_0", False, "sm_90a", 16)] for j in (c.route(), c.group())]
    if "scores" in wanted:
        jobs += [scores_job(n, k, vector, "sm_90a") for _, n, k in SCORES for vector in (True, False)]
    if "token" in wanted:
        jobs += [token_job(*c[:6], "sm_90a") for c in TOKENS]
    if "speed" in wanted:
        jobs += [j for _, _, c in speed_cases(sizes, "sm_90a", formats, a.tile) for j in c.jobs(c.tokens <= 8)]
    builder.build([j for j in jobs if not a.compile or j[2] in a.compile.split(",")])
    if a.compile:
        return
    d = probe.Driver(builder)
    for m, experts, used in ROUTES if "route" in wanted else ():
        check_route(d, m, experts, used)
    for shape in SCORES if "scores" in wanted else ():
        check_scores(d, *shape)
    for case in TOKENS if "token" in wanted else ():
        check_token(d, *case)
    for arch in archs[:2]:
        for few, cases in ((True, FEW), (False, MANY)):
            for c in chosen(cases) if ("gemv" if few else "gemm") in wanted else ():
                check_case(d, Case(*c, arch), few)
    if "speed" in wanted:
        for name, layers, case in speed_cases(sizes, "sm_90a", formats, a.tile):
            measure(d, name, layers, case)
    print(f"{len(probe.FAILED)} failed: {probe.FAILED}" if probe.FAILED else "all good")
    raise SystemExit(bool(probe.FAILED))


if __name__ == "__main__":
    main()
