#!/usr/bin/env python3
"""Runs the kernels of kernels/cuda/attention_f32.cu on a CPU (tests/packed_emulated.hpp). Attention is compared with f64 sums, append with the same f32 arithmetic.

  tests/attention_emulated.py [C++ COMPILER]

Products on tensor cores ignore the low 13 bits of their operands and truncate their sums. Each case runs with several launches, which must give the same bits.
Exit status 77: there is no compiler.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from packed_emulated import ROOT, replace_body

FILES = ("overlap.cuh", "parts.cuh", "attention_pages.cuh", "attention_tiles.cuh", "attention_append.cuh", "cluster.cuh", "step.h")
BODIES = {  # of functions with inline assembly
    "u32 bf16_pair(float low, float high)": "return bf16_of(low) | bf16_of(high) << 16;",
    "u32 narrow(float low, float high)": "return bf16_of(low) | bf16_of(high) << 16;",  # f16: not called
    "float2 widen(u32 pair)": "return make_float2(pool_number(pair & 0xffff), pool_number(pair >> 16));",
    "T *after_wait(T *pointer)": "return pointer;",
    "float power2(float x)": "return exp2f(x) < 1.2e-38f ? 0 : exp2f(x);",
    "void copy_bytes(void *to, const void *from, bool valid)": "if (valid) memcpy(to, from, BYTES); else memset(to, 0, BYTES);",
    "void commit_copies()": "",
    "void wait_copies()": "",
    "void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)": "multiply_tf32(d, a, b0, b1);",
}
CASES = [  # tokens, position of the first, definitions, launches: QUERIES, THREADS, STAGES
    (5, 61, dict(HEADS=8, KV_HEADS=2, HEAD_DIM=64, KV_F32=1, STEP=32, WINDOW=0, SINKS=0), [(8, 128, 1), (16, 32, 2), (32, 128, 1), (64, 128, 2)]),
    (2, 70, dict(HEADS=6, KV_HEADS=2, HEAD_DIM=80, KV_BF16=1, STEP=32, WINDOW=35, SINKS=1), [(8, 64, 1), (16, 64, 1)]),
    (3, 40, dict(HEADS=2, KV_HEADS=1, HEAD_DIM=256, KV_F16=1, STEP=16, WINDOW=0, SINKS=0, SOFTCAP="20.0f"), [(8, 64, 1), (32, 64, 1)]),
    (3, 30, dict(HEADS=4, KV_HEADS=1, HEAD_DIM=48, KV_Q8=1, STEP=32, WINDOW=0, SINKS=0), [(16, 64, 1), (8, 32, 1)]),
    # Rows in shared memory are wider than heads.
    (5, 61, dict(HEADS=4, KV_HEADS=2, HEAD_DIM=24, KV_F32=1, STEP=32, WINDOW=0, SINKS=0), [(8, 128, 1), (16, 32, 2), (32, 64, 1)]),
    (2, 40, dict(HEADS=3, KV_HEADS=3, HEAD_DIM=120, KV_F32=1, STEP=32, WINDOW=35, SINKS=1), [(8, 64, 1), (16, 32, 1)]),
    (3, 50, dict(HEADS=2, KV_HEADS=1, HEAD_DIM=40, KV_BF16=1, STEP=32, WINDOW=0, SINKS=0), [(8, 64, 1), (32, 64, 2)]),
    (3, 30, dict(HEADS=4, KV_HEADS=1, HEAD_DIM=8, KV_Q8=1, STEP=32, WINDOW=0, SINKS=0), [(16, 64, 1), (8, 32, 1)]),
    (2, 30, dict(HEADS=4, KV_HEADS=1, HEAD_DIM=248, KV_Q8=1, STEP=16, WINDOW=0, SINKS=0), [(8, 32, 1)]),
    # A module with window pages: a full layer, and a windowed one.
    (3, 30, dict(HEADS=4, KV_HEADS=1, HEAD_DIM=48, KV_Q8=1, STEP=32, WINDOW=0, SINKS=0, WINDOW_LAYERS=3), [(16, 64, 1)]),
    (3, 60, dict(HEADS=4, KV_HEADS=2, HEAD_DIM=64, KV_F32=1, STEP=32, WINDOW=20, SINKS=0, WINDOW_LAYERS=2, WINDOW_PAGES=1), [(16, 64, 1)]),
]
SUPPORT = """
struct alignas(16) int4 { int x, y, z, w; };
static unsigned __float_as_uint(float value) { unsigned word; memcpy(&word, &value, 4); return word; }
static float __int_as_float(int word) { return __uint_as_float(word); }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
static int __float2int_rn(float a) { return (int)rintf(a); }
static void __syncwarp() { sync_warp(); }
static unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
static float pool_number(unsigned bits) {  // bf16 or f16
#ifdef KV_BF16
  return half_of(bits, 0);
#else
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  return ldexpf(exponent ? 1024 + fraction : fraction, (exponent ? exponent : 1) - 25) * (bits & 0x8000 ? -1 : 1);
#endif
}

// mma.m16n8k8 of TF32. Terms are aligned to the largest one and truncated to 24 bits, as a tensor core does at worst.
static void multiply_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const int lane = threadIdx.x % 32;
  unsigned *words = warp_words();
  for (int i = 0; i < 6; ++i) words[lane * 6 + i] = (i < 4 ? a[i] : i == 4 ? b0 : b1) & 0xffffe000u;
  sync_warp();
  for (int e = 0; e < 4; ++e) {
    double terms[9] = {d[e]}, largest = fabs(d[e]), sum = 0;
    for (int k = 0; k < 8; ++k) {
      const float left = __uint_as_float(words[(lane / 4 * 4 + k % 4) * 6 + e / 2 + k / 4 * 2]);
      const float right = __uint_as_float(words[((lane % 4 * 2 + e % 2) * 4 + k % 4) * 6 + 4 + k / 4]);
      terms[k + 1] = (double)left * right;
      largest = fmax(largest, fabs(terms[k + 1]));
    }
    int exponent;
    frexp(largest, &exponent);
    for (double term : terms) sum += ldexp(trunc(ldexp(term, 24 - exponent)), exponent - 24);
    d[e] = largest > 0 ? (float)sum : largest == largest ? 0 : NAN;
  }
  sync_warp();
}
"""
MAIN = """
#ifndef WINDOW_LAYERS
#define WINDOW_LAYERS 0
#endif
#ifndef WINDOW_PAGES
#define WINDOW_PAGES 0
#endif
enum { SHARE = HEADS / KV_HEADS };
#include <random>
static std::mt19937 generator(3);
static float number() { return std::normal_distribution<float>()(generator); }
static std::vector<unsigned char> pool;
enum { WINDOW_POOL = WINDOW_LAYERS ? 9 : 0, AHEAD = WINDOW_PAGES ? 0 : WINDOW_POOL * WINDOW_LAYERS };  // layers before the pages of the kernel
static float pooled(int page, int head, int what, int row, int column) {  // of layer 1
  const unsigned char *block = pool.data() + ((AHEAD + (size_t)page * LAYERS + 1) * KV_HEADS + head) * 2 * BLOCK + what * BLOCK;
#if defined(KV_Q8)
  return ((const signed char *)block)[row * HEAD_DIM + column] * ((const float *)(block + PAGE * HEAD_DIM))[row];
#elif defined(KV_F32)
  return ((const float *)block)[row * HEAD_DIM + column];
#else
  return pool_number(((const unsigned short *)block)[row * HEAD_DIM + column]);
#endif
}
static void fill_pool(int pages) {
  pool.resize((AHEAD + (size_t)pages * LAYERS) * KV_HEADS * 2 * BLOCK);
  for (size_t block = 0; block < pool.size(); block += BLOCK)
    for (int i = 0; i < PAGE * HEAD_DIM; i++) {
#if defined(KV_Q8)
      pool[block + i] = (int)(number() * 40) & 255;
      if (i < PAGE) ((float *)&pool[block + PAGE * HEAD_DIM])[i] = fabsf(number()) / 40;
#elif defined(KV_F32)
      ((float *)&pool[block])[i] = number();
#else
      ((unsigned short *)&pool[block])[i] = (generator() & 0x83ff) | 0x3c00;
#endif
    }
}
int main(int count, char **arguments) {
  const int slot_pages = (POSITION + TOKENS + PAGE - 1) / PAGE + 1, n = TOKENS + 1;  // the last token is padding
  fill_pool(slot_pages + 1);
  std::vector<float> q(n * HEADS * HEAD_DIM), out(q.size(), NAN), sinks(HEADS);
  for (float &v : q) v = number() * (number() > 1 ? 4 : 1);
  for (float &v : sinks) v = number() * 4;
  std::vector<int> batch(256), placed = {4, 4, 0, 0};
  batch[MLX_STEP_SLOT_COUNT] = 1, batch[MLX_STEP_SLOT_PAGES] = slot_pages, batch[MLX_STEP_WINDOW_POOL_PAGES] = WINDOW_POOL;
  batch[WINDOW_PAGES ? MLX_STEP_WINDOW_POOL_PAGES : MLX_STEP_POOL_PAGES] = slot_pages + 1, batch[WINDOW_PAGES ? MLX_STEP_AT_WINDOW_PAGES : MLX_STEP_AT_PAGES] = 128;
  for (int i = 0; i < slot_pages; i++) batch[128 + i] = 1 + (i * 5 + 2) % slot_pages;
  for (int i = 0; i < TOKENS * SHARE; i += QUERIES) placed.insert(placed.end(), {0, 0, TOKENS, POSITION, i, 0, 0, 0});
  placed.insert(placed.end(), {-1, TOKENS, 0, 0, 0, 0, 0, 0});
  const int bytes = QUERIES * QUERY_PITCH * 4 + WK * (KEY_BYTES + VALUE_BYTES) + 8 * WK * QUERIES;
  auto run = [&](float *to, int part_rows) {
    launch(KV_HEADS, (int)placed.size() / 8, 1, THREADS, bytes, [&] {
      attend(q.data(), (const pool_t *)pool.data(), batch.data(), placed.data(),
#if SINKS
             sinks.data(),
#endif
             to, 1, LAYERS, WINDOW_PAGES ? -1 : WINDOW_LAYERS, SHARE, 0xffffffffu / SHARE + 1, WINDOW ? WINDOW : 1 << 30, part_rows);
    });
  };
  run(out.data(), 0);
  if (HEADS * HEAD_DIM % 128 == 0) {  // the parts add up to the same numbers
    std::vector<uint4> parts(HEADS * HEAD_DIM / 64 * 8 * 24, uint4{~0u, ~0u, ~0u, ~0u});
    run((float *)parts.data(), 8);
    for (int i = 0; i < (int)out.size(); i++)
      if (part_number(parts.data(), 8, i / (HEADS * HEAD_DIM), i % (HEADS * HEAD_DIM)) != out[i]) return printf("the parts of element %d differ\\n", i), 1;
  }
  double off = 0, peer = 0, norm = 0;
  for (int token = 0; token < n; token++)
    for (int head = 0; head < HEADS; head++) {
      const int own = POSITION + token, first = WINDOW && own >= WINDOW ? own - WINDOW + 1 : 0;
      std::vector<double> score(own + 1), sum(HEAD_DIM);
      std::vector<float> score32(own + 1), sum32(HEAD_DIM);
      float peak32 = SINKS ? sinks[head] : -1e30f, weight32 = 0;
      double peak = SINKS ? sinks[head] : -1e300, weight = 0;
      auto at = [&](int key, int what, int column) { return pooled(batch[128 + key / PAGE], head / SHARE, what, key % PAGE, column); };
      for (int key = first; key <= own && token < TOKENS; key++) {
        for (int c = 0; c < HEAD_DIM; c++) {
          score[key] += (double)q[(token * HEADS + head) * HEAD_DIM + c] * at(key, 0, c);
          score32[key] = fmaf(q[(token * HEADS + head) * HEAD_DIM + c], at(key, 0, c), score32[key]);
        }
        score[key] *= SCALE, score32[key] *= SCALE;
#ifdef SOFTCAP
        score[key] = SOFTCAP * tanh(score[key] / SOFTCAP), score32[key] = cap_score(score32[key] / SCALE);
#endif
        peak = fmax(peak, score[key]), peak32 = fmaxf(peak32, score32[key]);
      }
      if (SINKS) weight = exp(sinks[head] - peak), weight32 = expf(sinks[head] - peak32);
      for (int key = first; key <= own && token < TOKENS; key++) {
        weight += exp(score[key] - peak), weight32 += expf(score32[key] - peak32);
        for (int c = 0; c < HEAD_DIM; c++) {
          sum[c] += exp(score[key] - peak) * at(key, 1, c);
          sum32[c] = fmaf(expf(score32[key] - peak32), at(key, 1, c), sum32[c]);
        }
      }
      for (int c = 0; c < HEAD_DIM; c++) {
        const double exact = token < TOKENS ? sum[c] / weight : 0, other = token < TOKENS ? sum32[c] / weight32 : 0,
                     got = out[(token * HEADS + head) * HEAD_DIM + c];
        off += (got - exact) * (got - exact), peer += (other - exact) * (other - exact), norm += exact * exact;
      }
    }
  off = sqrt(off / norm), peer = sqrt(peer / norm);
  printf("%d tokens, heads of %d, %d queries, %d threads: off by %.1e, sums in f32 %.1e\\n", TOKENS, HEAD_DIM, QUERIES, THREADS, off, peer);
  fwrite(out.data(), 4, out.size(), fopen(arguments[1], "wb"));
  return off < 2 * peer + 2e-7 ? 0 : 1;
}
"""


APPEND_CASES = [
    dict(HEADS=8, KV_HEADS=2, HEAD_DIM=64, KV_F32=1, TURN=1, BEFORE=0),
    dict(HEADS=3, KV_HEADS=3, HEAD_DIM=48, KV_BF16=1, TURN=0, BEFORE=3),
    dict(HEADS=4, KV_HEADS=2, HEAD_DIM=256, KV_F32=1, TURN=1, BEFORE=-1, HEAD_NORM_EPS="1e-6f"),
    dict(HEADS=6, KV_HEADS=2, HEAD_DIM=16, KV_Q8=1, TURN=1, BEFORE=2),
    dict(HEADS=3, KV_HEADS=1, HEAD_DIM=8, KV_BF16=1, TURN=1, BEFORE=0, HEAD_NORM_EPS="1e-6f"),
    dict(HEADS=2, KV_HEADS=2, HEAD_DIM=120, KV_Q8=1, TURN=1, BEFORE=0),
    # Biases of all three, or of some. BIASED: 1 of q, 2 of k, 4 of v.
    dict(HEADS=6, KV_HEADS=2, HEAD_DIM=64, KV_F32=1, TURN=1, BEFORE=0, BIAS=1, BIASED=7),
    dict(HEADS=4, KV_HEADS=2, HEAD_DIM=32, KV_BF16=1, TURN=0, BEFORE=0, BIAS=1, BIASED=5),
    dict(HEADS=2, KV_HEADS=2, HEAD_DIM=64, KV_Q8=1, TURN=1, BEFORE=0, BIAS=1, BIASED=2, HEAD_NORM_EPS="1e-6f"),
    # RoPE of a part of each head, and of adjacent numbers.
    dict(HEADS=4, KV_HEADS=2, HEAD_DIM=80, KV_F32=1, TURN=1, BEFORE=0, ROTARY=32),
    dict(HEADS=3, KV_HEADS=3, HEAD_DIM=24, KV_F32=1, TURN=1, BEFORE=0, ROTARY=10, BIAS=1, BIASED=7),
    dict(HEADS=4, KV_HEADS=1, HEAD_DIM=128, KV_F32=1, TURN=1, BEFORE=0, ADJACENT=1),
    dict(HEADS=4, KV_HEADS=2, HEAD_DIM=64, KV_Q8=1, TURN=1, BEFORE=0, ADJACENT=1, ROTARY=26, BIAS=1, BIASED=3),
    dict(HEADS=2, KV_HEADS=2, HEAD_DIM=64, KV_F32=1, TURN=1, BEFORE=0, ROTARY=16, BIAS=1, BIASED=7, HEAD_NORM_EPS="1e-6f"),
]
APPEND_MAIN = """
#include <random>
static std::mt19937 generator(3);
static float number() { return std::normal_distribution<float>()(generator); }
enum { N = 5, COUNT = 4, LAYERS = 3, LAYER = 1, PAGES = 6, WINDOW_POOL = 7, PAIRS = ROTARY / 2, AHEAD = BEFORE > 0 ? BEFORE * WINDOW_POOL : 0 };
#ifndef BIASED
#define BIASED 0
#endif
#ifdef KV_Q8
enum { BLOCK = PAGE * (HEAD_DIM + 4) };  // pool_t of the keys or values of a page and head
#else
enum { BLOCK = PAGE * HEAD_DIM };
#endif
static std::vector<float> heads_of(const std::vector<float> &x, int heads, int token, int head, bool turn, const float *bias, const float *gain, const float *c, const float *s) {
  std::vector<float> v(x.begin() + (token * heads + head) * HEAD_DIM, x.begin() + (token * heads + head + 1) * HEAD_DIM), r;
  for (int i = 0; i < HEAD_DIM && bias; i++) v[i] += bias[head * HEAD_DIM + i];
#ifdef HEAD_NORM_EPS
  if (gain) {
    double sum = 0;
    for (float f : v) sum += (double)f * f;
    for (int i = 0; i < HEAD_DIM; i++) v[i] *= 1 / sqrtf(sum / HEAD_DIM + HEAD_NORM_EPS) * gain[i];
  }
#endif
  r = v;
  for (int i = 0; i < PAIRS && turn; i++) {
    const int low = ADJACENT ? 2 * i : i, high = ADJACENT ? 2 * i + 1 : PAIRS + i;
    r[low] = v[low] * c[token * PAIRS + i] - v[high] * s[token * PAIRS + i];
    r[high] = v[high] * c[token * PAIRS + i] + v[low] * s[token * PAIRS + i];
  }
  return r;
}
int main() {
  auto numbers = [](size_t count) { std::vector<float> v(count); for (float &f : v) f = number(); return v; };
  const auto q = numbers(N * HEADS * HEAD_DIM), k = numbers(N * KV_HEADS * HEAD_DIM), v = numbers(N * KV_HEADS * HEAD_DIM), c = numbers(N * PAIRS), s = numbers(N * PAIRS), gains = numbers(2 * HEAD_DIM),
             q_bias = numbers(BIASED & 1 ? HEADS * HEAD_DIM : 0), k_bias = numbers(BIASED & 2 ? KV_HEADS * HEAD_DIM : 0), v_bias = numbers(BIASED & 4 ? KV_HEADS * HEAD_DIM : 0);
  const auto bias_or_none = [](const std::vector<float> &v) { return v.empty() ? nullptr : v.data(); };
  std::vector<float> rotated(q.size(), -7);
  std::vector<pool_t> pool((AHEAD + PAGES * LAYERS) * KV_HEADS * 2 * BLOCK), before = pool;
  std::vector<int> batch(256);
  batch[MLX_STEP_TOKEN_COUNT] = COUNT, batch[MLX_STEP_SLOT_COUNT] = 2, batch[MLX_STEP_SLOT_PAGES] = 3, batch[MLX_STEP_AT_SLOTS] = 100, batch[MLX_STEP_AT_POSITIONS] = 100 + N;
  batch[MLX_STEP_WINDOW_POOL_PAGES] = WINDOW_POOL, batch[MLX_STEP_POOL_PAGES] = PAGES;
  if (BEFORE < 0) batch[MLX_STEP_WINDOW_POOL_PAGES] = PAGES, batch[MLX_STEP_POOL_PAGES] = 0;
  batch[BEFORE < 0 ? MLX_STEP_AT_WINDOW_PAGES : MLX_STEP_AT_PAGES] = 200;
  const int slots[N] = {0, 0, 1, 1, 0}, positions[N] = {15, 16, 3, 99, 0}, table[6] = {5, 0, 2, 4, 1, 3};  // position 99 has no page
  for (int i = 0; i < N; i++) batch[100 + i] = slots[i], batch[100 + N + i] = positions[i];
  for (int i = 0; i < 6; i++) batch[200 + i] = table[i];
  launch((HEADS + 2 * KV_HEADS) * HEAD_DIM / 1024 + 1, N, 1, 128, 16, [&] {
    append(q.data(), k.data(), v.data(),
#if BIAS
           q_bias.data(), k_bias.data(), v_bias.data(),
#endif
#ifdef HEAD_NORM_EPS
           gains.data(), gains.data() + HEAD_DIM,
#endif
#if TURN
           c.data(), s.data(),
#endif
           batch.data(), pool.data(), rotated.data(), LAYER, LAYERS, BEFORE, HEADS, KV_HEADS
#if BIAS
           , BIASED
#endif
    );
  });
  const auto near = [](float a, float b) { return fabsf(a - b) <= 4e-6f * (1 + fabsf(b)); };
  for (int t = 0; t < N; t++)
    for (int h = 0; h < HEADS; h++) {
      const auto wanted = heads_of(q, HEADS, t, h, TURN, bias_or_none(q_bias), gains.data(), c.data(), s.data());
      for (int i = 0; i < HEAD_DIM; i++)
        if (!near(rotated[(t * HEADS + h) * HEAD_DIM + i], t < COUNT ? wanted[i] : -7)) return printf("q of token %d, head %d, column %d\\n", t, h, i), 1;
    }
  std::vector<bool> written(pool.size());
  for (int t = 0; t < COUNT - 1; t++)
    for (int h = 0; h < KV_HEADS * 2; h++) {
      const bool value = h % 2;
      const auto wanted = heads_of(value ? v : k, KV_HEADS, t, h / 2, TURN && !value, bias_or_none(value ? v_bias : k_bias), value ? nullptr : gains.data() + HEAD_DIM, c.data(), s.data());
      const size_t block = (((size_t)AHEAD + table[slots[t] * 3 + positions[t] / PAGE] * LAYERS + LAYER) * KV_HEADS + h / 2) * 2 + value, row = positions[t] % PAGE;
#ifdef KV_Q8
      const float scale = *(const float *)&pool[block * BLOCK + PAGE * HEAD_DIM + row * 4];
      for (int i = 0; i < 4; i++) written[block * BLOCK + PAGE * HEAD_DIM + row * 4 + i] = true;
#endif
      for (int i = 0; i < HEAD_DIM; i++) {
        const size_t at = block * BLOCK + row * HEAD_DIM + i;
        written[at] = true;
#if defined(KV_Q8)
        const bool good = fabsf((signed char)pool[at] * scale - wanted[i]) <= scale * 0.51f;
#elif defined(KV_BF16)
        const bool good = pool[at] == bf16_of(wanted[i]);
#else
        const bool good = near(pool[at], wanted[i]);
#endif
        if (!good) return printf("%s of token %d, head %d, column %d\\n", value ? "value" : "key", t, h / 2, i), 1;
      }
    }
  for (size_t i = 0; i < pool.size(); i++)
    if (!written[i] && pool[i] != before[i]) return printf("word %zu of the pool was written\\n", i), 1;
  printf("append, heads of %d: good\\n", HEAD_DIM);
  return 0;
}
"""


def inline(name):
    text = next(f for f in (ROOT / "kernels/cuda" / name, ROOT / "kernels" / name) if f.exists()).read_text()
    return re.sub(r'#include "([\w.]+)"\n', lambda m: inline(m[1]) if m[1] in FILES else "", text)


def kernel(program):
    text = inline("attention_f32.cu")
    for signature, body in BODIES.items():
        text = replace_body(text, signature, body)
    text = text.replace("extern __shared__ __align__(16) unsigned char memory[];", "unsigned char *memory = (unsigned char *)shared();")
    return '#include "packed_emulated.hpp"\n' + SUPPORT + text.replace('extern "C" __global__', "static __global__") + program


def run(compiler, path, source, sizes, *arguments):
    (path / "test.cpp").write_text(kernel(source))
    command = [compiler, "-std=c++17", "-O1", "-w", "-ffp-contract=off", f"-I{ROOT}/tests", *(f"-D{name}={value}" for name, value in sizes.items())]
    subprocess.run([*command, path / "test.cpp", "-o", path / "test", "-lpthread"], check=True)
    subprocess.run([path / "test", *arguments], check=True, timeout=300)


def main():
    compiler = sys.argv[1] if len(sys.argv) > 1 else "c++"
    if not shutil.which(compiler):
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        for shape in APPEND_CASES:
            run(compiler, path, APPEND_MAIN, dict(NAME="append", APPEND=1, **shape))
        for tokens, position, shape, launches in CASES:
            results = set()
            for queries, threads, stages in launches:
                sizes = dict(NAME="attend", LAYERS=2, TOKENS=tokens, POSITION=position, SCALE=f"{shape['HEAD_DIM'] ** -0.5!r}f", TILES=0, OUT_16=0, SPLIT=1, QUERIES=queries,
                             THREADS=threads, STAGES=stages, **shape)
                run(compiler, path, MAIN, sizes, path / "out")
                results.add((path / "out").read_bytes())
            if len(results) != 1:
                sys.exit("launches of the same attention give different bits")


if __name__ == "__main__":
    main()
