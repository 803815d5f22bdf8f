#!/usr/bin/env python3
"""Tests kernels/cuda/few.cu on its own for accuracy (f32 rounding), independence of other tokens, a smaller grid, and speed.

  few_probe.py [--compile] [--cache DIR] [--nvrtc LIBRARY] [--only exact,speed]

Compiling (--compile does only that) needs NVRTC and gcc; running needs a GPU of sm_90 and torch. One layer and the LM head are compared with float64, and q, k and v with RoPE, k and v
in the KV pool, with those that the kernel gives without it.
"""
import argparse
import tempfile

import packed_probe as probe

EPS = 1e-5
TOKENS, WARPS, STAGES = 8, 8, 6
LAYER, QKV, HEAD, APPEND = 1, 2, 4, 8  # PART_ of the kernel
PAGES, PAGE_LAYERS = 4, 2  # pages of a sequence, layers of a page
SHAPES = {  # hidden, ffn, queries, keys, slices, vocabulary, size of a head, KV type
    "llama-1b": (2048, 8192, 2048, 512, 4, 128256, 64, "F32"), "small": (256, 512, 256, 128, 1, 320, 64, "BF16"), "two slices": (512, 3072, 1024, 256, 2, 4096, 128, "F32"),
    "8-bit KV": (256, 512, 256, 128, 1, 320, 64, "Q8")}


class Shape:
    def __init__(self, name, layers):
        self.name, self.layers = name, layers
        self.hidden, self.ffn, self.queries, self.keys, self.slices, self.vocab, self.head_dim, self.kv = SHAPES[name]
        h = self.hidden
        sizes = {"Q": (self.queries, h), "K": (self.keys, h), "V": (self.keys, h), "O": (h, self.queries), "GATE": (self.ffn, h), "UP": (self.ffn, h), "DOWN": (h, self.ffn)}
        self.at, self.sizes, at = {}, sizes, 0
        for name, (rows, columns) in sizes.items():
            self.at[name], at = at, at + 2 * rows * columns
        for name in ("MLP_NORM", "ATTN_NORM"):
            self.at[name], at = at, at + 4 * h
        self.step = at
        self.at["HEAD"] = at * layers
        self.bytes = at * layers + 2 * self.vocab * h
        columns = max(h, self.queries, self.ffn // self.slices)
        self.shared = STAGES * (8 * (columns * 2 + 16) + 16) + 4 * WARPS * 512 + 8 * h + WARPS * 32 + 128
        self.words = 2 * TOKENS * ((2 + self.slices) * h + self.ffn)

    def job(self):
        weights = ("ATTN_NORM", "Q", "K", "V", "O", "MLP_NORM", "GATE", "UP", "DOWN", "HEAD")  # in the order of kernels/decode_tables.h
        return ("few.cu", (f"hidden={self.hidden}", f"ffn={self.ffn}", f"q_width={self.queries}", f"kv_width={self.keys}", f"head_dim={self.head_dim}", f"vocab={self.vocab}",
                           f"slices={self.slices}", f"shared_bytes={self.shared}", "scratch_at=0", f"scratch_words={self.words}", f"norm_eps={EPS}f", f"kv=Dtype::{'Q8_0' if self.kv == 'Q8' else self.kv}",
                           *(f"{n.lower()}={{.at={self.at[n]}ull,.step={0 if n == 'HEAD' else self.step}ull}}" for n in weights)), "sm_90")


class Network:
    """Random weights as the archive has them, and buffers."""
    def __init__(self, d, shape):
        torch, s = d.torch, shape
        self.d, self.s = d, s
        self.archive = torch.empty(s.bytes, dtype=torch.uint8, device="cuda")
        for layer in range(s.layers):
            for name in s.sizes:
                self.matrix(name, layer).normal_(0, s.sizes[name][1] ** -0.5)
            for name in ("MLP_NORM", "ATTN_NORM"):
                self.gain(name, layer).uniform_(0.5, 1.5)
        self.matrix("HEAD", 0).normal_(0, s.hidden ** -0.5)
        self.scratch = torch.full((s.words,), -1, dtype=torch.int32, device="cuda")
        self.q, self.k, self.v = (d.poisoned(TOKENS, n) for n in (s.queries, s.keys, s.keys))
        self.unused = d.poisoned(1)
        self.angle = torch.rand(TOKENS, s.head_dim // 2, device="cuda") * 6
        self.cos, self.sin = self.angle.cos(), self.angle.sin()
        # The last two tokens are padding: one has no position, one is after the last token.
        pages = (torch.randperm(TOKENS * PAGES) + 1).view(TOKENS, PAGES)
        self.positions = [(t * 13 + 5) % (PAGES * probe.PAGE) for t in range(TOKENS - 2)]
        words = [0] * probe.HEADER_WORDS + [0] * TOKENS + list(range(TOKENS)) + self.positions + [-1, 3] + pages.flatten().tolist()
        words[probe.TOKEN_COUNT], words[probe.POOL_PAGES], words[probe.SLOT_COUNT], words[probe.SLOT_PAGES] = TOKENS - 1, TOKENS * PAGES + 1, TOKENS, PAGES
        words[probe.AT_SLOTS], words[probe.AT_POSITIONS], words[probe.AT_PAGES] = (probe.HEADER_WORDS + n * TOKENS for n in (1, 2, 3))
        self.pages, self.batch = pages, torch.tensor(words, dtype=torch.int32, device="cuda")
        self.pool = torch.zeros(TOKENS * PAGES + 1, PAGE_LAYERS, s.keys // s.head_dim, 2, probe.PAGE, s.head_dim, device="cuda", dtype=torch.bfloat16 if s.kv == "BF16" else torch.float32)

    def matrix(self, name, layer):
        rows, columns = self.s.sizes[name] if name in self.s.sizes else (self.s.vocab, self.s.hidden)
        at = self.s.at[name] + layer * self.s.step
        return self.archive[at:at + 2 * rows * columns].view(self.d.torch.bfloat16).view(rows, columns)

    def gain(self, name, layer):
        at = self.s.at[name] + layer * self.s.step
        return self.archive[at:at + 4 * self.s.hidden].view(self.d.torch.float32)

    def launch(self, layer, parts, attended, x, out=None, grid=probe.PROCESSORS):
        lines = 2 * probe.PAGE * self.s.keys * self.pool.element_size() // 64  # of a layer in a page
        outs = [self.q, self.k, self.v] if out is None else [out, self.unused, self.unused]
        self.d.launch(self.s.job(), (grid, 1, 1), 32 * (WARPS + 1), [self.archive, attended, x, self.cos, self.sin, self.batch, self.scratch, self.pool] + outs, self.s.shared,
                      (lines, PAGE_LAYERS * lines, 0, layer, parts), b"mlx_few")

    def turned(self, x):
        """RoPE with both products rounded, as the kernel computes it."""
        low, high = x.view(TOKENS, -1, self.s.head_dim).chunk(2, -1)
        c, s = self.cos[:, None], self.sin[:, None]
        return self.d.torch.cat([low * c + -high * s, high * c + low * s], -1)

    def expected_pool(self, k, v):
        pool, heads = self.d.torch.zeros_like(self.pool), lambda x: x.view(TOKENS, -1, self.s.head_dim).to(self.pool.dtype)
        k, v = heads(self.turned(k)), heads(v)
        for t, position in enumerate(self.positions):
            page = pool[self.pages[t, position // probe.PAGE], 1]
            page[:, 0, position % probe.PAGE], page[:, 1, position % probe.PAGE] = k[t], v[t]
        return pool

    def reference(self, attended, x, dtype):
        def product(name, layer, x):
            return x @ self.matrix(name, layer).to(dtype).T
        def norm(name, layer, x):
            return x * (x.square().mean(1, keepdim=True) + EPS).rsqrt() * self.gain(name, layer).to(dtype)
        x = x.to(dtype) + product("O", 0, attended.to(dtype))
        h = norm("MLP_NORM", 0, x)
        x = x + product("DOWN", 0, probe.silu(product("GATE", 0, h)) * product("UP", 0, h))
        h = norm("ATTN_NORM", 1, x)
        return [x] + [product(name, 1, h) for name in "QKV"]


def check(d, shape):
    torch, n = d.torch, Network(d, shape)
    attended, x = torch.randn(TOKENS, shape.queries, device="cuda"), torch.randn(TOKENS, shape.hidden, device="cuda")
    exact, f32 = (n.reference(attended, x, dtype) for dtype in (torch.float64, torch.float32))
    n.launch(0, LAYER | QKV, attended, x)
    first = [t.clone() for t in (n.q, n.k, n.v)]
    for name, y, e, f in zip("qkv", first, exact[1:], f32[1:]):
        probe.report(f"{shape.name}, {name} of the next layer", y, e, f)
    n.launch(1, LAYER | QKV, attended, x)
    if shape.kv != "Q8":
        n.q.fill_(float("nan"))
        n.launch(0, LAYER | QKV | APPEND, attended, x)
        same = bool((n.q.view(TOKENS, -1, shape.head_dim) == n.turned(first[0])).all()) and torch.equal(n.pool, n.expected_pool(*first[1:]))
        if not same:
            probe.FAILED.append(shape.name)
        print(f"{'ok  ' if same else 'BAD '} {shape.name}, q, k and v with RoPE, in the KV pool: {'the same bits' if same else 'DIFFERENT'}", flush=True)
        n.scratch.zero_()  # a step begins: values of the last one
        n.launch(0, QKV | APPEND, x, x)
        n.launch(0, LAYER | QKV | APPEND, attended, x)
        same = bool((n.q.view(TOKENS, -1, shape.head_dim) == n.turned(first[0])).all())
        if not same:
            probe.FAILED.append(shape.name)
        print(f"{'ok  ' if same else 'BAD '} {shape.name}, the first launch of a step clears the buffers: {'the same bits' if same else 'DIFFERENT'}", flush=True)
        n.launch(1, LAYER | QKV, attended, x)
    last = d.poisoned(TOKENS, shape.hidden)
    n.launch(0, LAYER, attended, x, last)
    probe.report(f"{shape.name}, x after the last layer", last, exact[0], f32[0])
    logits = d.poisoned(TOKENS, shape.vocab)
    n.launch(0, HEAD, x, x, logits)
    weight = n.matrix("HEAD", 0)
    probe.report(f"{shape.name}, logits", logits, x.double() @ weight.double().T, x @ weight.float().T)
    changed = 0
    for turn in range(20):  # other tokens, and a third of the grid
        n.launch(1, LAYER | QKV, attended, x)
        other_x, other = x * (turn + 2), attended * -turn
        other_x[3], other[3] = x[3], attended[3]
        n.launch(0, LAYER | QKV, other, other_x, grid=probe.PROCESSORS if turn % 2 else probe.PROCESSORS // 3)
        changed += sum(int((a[3] != b[3]).sum()) for a, b in zip(first, (n.q, n.k, n.v)))
    if changed:
        probe.FAILED.append(shape.name)
    print(f"{'BAD ' if changed else 'ok  '} {shape.name}, a token among others, and another grid: {changed} words differ", flush=True)


def measure(d):
    shape = Shape("llama-1b", 16)
    n = Network(d, shape)
    x, logits = d.torch.randn(TOKENS, shape.hidden, device="cuda"), d.poisoned(TOKENS, shape.vocab)
    def layers():
        for layer in range(shape.layers - 1):
            n.launch(layer, LAYER | QKV | APPEND, n.q, x)
        n.launch(shape.layers - 1, LAYER, n.q, x, d.poisoned(TOKENS, shape.hidden))
    print(f"a layer without attention {d.time(layers) / shape.layers:.1f} us, LM head {d.time(lambda: n.launch(0, HEAD, x, x, logits)):.1f} us (launches without overlap)")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--cache", default=tempfile.gettempdir() + "/few_probe")
    parser.add_argument("--nvrtc")
    parser.add_argument("--only", default="exact,speed")
    a = parser.parse_args()
    builder = probe.Builder(a.cache, a.nvrtc)
    builder.build([Shape(name, 4).job() for name in SHAPES] + [Shape("llama-1b", 16).job()] * ("speed" in a.only))
    if a.compile:
        return
    d = probe.Driver(builder)
    for name in SHAPES if "exact" in a.only else ():
        check(d, Shape(name, 4))
    if "speed" in a.only:
        measure(d)
    print(f"{len(probe.FAILED)} failed: {probe.FAILED}" if probe.FAILED else "all good")
    raise SystemExit(bool(probe.FAILED))


if __name__ == "__main__":
    main()
