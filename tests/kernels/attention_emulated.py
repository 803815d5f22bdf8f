#!/usr/bin/env python3
"""Runs the kernels of kernels/cuda/attention_f32.cu on a CPU (tests/kernels/packed_emulated.hpp). Attention is compared with f64 sums, append with the same f32 arithmetic.

  tests/kernels/attention_emulated.py [C++ COMPILER]

Products on tensor cores ignore the low 13 bits of their operands and truncate their sums. Each case runs with several launches, which must give the same bits.
Exit status 77: there is no compiler.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

from emulated_kernels import BODIES, compile_command, write_config, write_kernels

KERNEL_BODIES = {
    **BODIES,
    "void copy_bytes(void *to, const void *from, bool valid)": "if (valid) memcpy(to, from, BYTES); else memset(to, 0, BYTES);",
    "int4 load_again(const int *from)": "return *(const int4 *)from;",
    "void mma_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)": "multiply_tf32(d, a, b0, b1);",
}
CASES = [  # tokens, position of the first, sizes, fields of the configuration, launches: queries, threads, stages, blocks of a cluster if there are several
    (5, 61, dict(HEADS=8, KV_HEADS=2, WINDOW=0, SINKS=0), dict(head_dim=64, kv="F32", step=32), [(8, 128, 1), (16, 32, 2), (32, 128, 1), (64, 128, 2)]),
    (2, 70, dict(HEADS=6, KV_HEADS=2, WINDOW=35, SINKS=1), dict(head_dim=80, kv="BF16", step=32), [(8, 64, 1), (8, 32, 1, 2), (16, 64, 1)]),
    (3, 40, dict(HEADS=2, KV_HEADS=1, WINDOW=0, SINKS=0), dict(head_dim=256, kv="F16", softcap="20.0f", step=16), [(8, 64, 1), (32, 64, 1)]),
    (3, 30, dict(HEADS=4, KV_HEADS=1, WINDOW=0, SINKS=0), dict(head_dim=48, kv="Q8_0", step=32), [(16, 64, 1), (8, 32, 1)]),
    # Rows in shared memory are wider than heads.
    (5, 61, dict(HEADS=4, KV_HEADS=2, WINDOW=0, SINKS=0), dict(head_dim=24, kv="F32", step=32), [(8, 128, 1), (16, 32, 2), (32, 64, 1)]),
    (2, 40, dict(HEADS=3, KV_HEADS=3, WINDOW=35, SINKS=1), dict(head_dim=120, kv="F32", step=32), [(8, 64, 1), (16, 32, 1)]),
    (3, 50, dict(HEADS=2, KV_HEADS=1, WINDOW=0, SINKS=0), dict(head_dim=40, kv="BF16", step=32), [(8, 64, 1), (32, 64, 2)]),
    (3, 30, dict(HEADS=4, KV_HEADS=1, WINDOW=0, SINKS=0), dict(head_dim=8, kv="Q8_0", step=32), [(16, 64, 1), (8, 32, 1)]),
    (2, 30, dict(HEADS=4, KV_HEADS=1, WINDOW=0, SINKS=0), dict(head_dim=248, kv="Q8_0", step=16), [(8, 32, 1)]),
    # Heads that are read in pieces, in a page with a layer of other heads before theirs.
    (5, 61, dict(HEADS=8, KV_HEADS=2, WINDOW=0, SINKS=0, LINES_BEFORE=24), dict(head_dim=512, kv="F32", step=16), [(8, 128, 1), (8, 64, 1, 2), (16, 128, 1), (16, 64, 1)]),
    (3, 40, dict(HEADS=4, KV_HEADS=1, WINDOW=35, SINKS=1, LINES_BEFORE=3), dict(head_dim=512, kv="BF16", softcap="20.0f", step=16), [(8, 64, 1), (16, 96, 1)]),
    (2, 30, dict(HEADS=2, KV_HEADS=1, WINDOW=0, SINKS=0), dict(head_dim=320, kv="F32", step=16), [(8, 64, 1), (8, 32, 1, 2), (16, 64, 1)]),
    (2, 30, dict(HEADS=2, KV_HEADS=2, WINDOW=0, SINKS=0), dict(head_dim=384, kv="Q8_0", step=16), [(8, 64, 1)]),
    # Latent attention: rows of published models (the last piece of keys is narrower), small ones, and ones with a last piece of values that is not all used.
    (4, 150, dict(HEADS=5, KV_HEADS=1, WINDOW=0, SINKS=0), dict(head_dim=576, value_dim=512, kv="F32", step=16), [(16, 128, 1), (16, 96, 1), (8, 64, 1, 2), (16, 32, 1, 4)]),
    (2, 70, dict(HEADS=5, KV_HEADS=1, WINDOW=0, SINKS=0, LINES_BEFORE=3), dict(head_dim=320, value_dim=256, kv="BF16", step=16), [(16, 64, 1), (8, 96, 1)]),
    (2, 40, dict(HEADS=4, KV_HEADS=1, WINDOW=0, SINKS=0), dict(head_dim=288, value_dim=256, kv="Q8_0", step=16), [(8, 64, 1), (16, 128, 1)]),
    (2, 30, dict(HEADS=3, KV_HEADS=1, WINDOW=0, SINKS=0), dict(head_dim=352, value_dim=320, kv="F16", step=16), [(16, 64, 1)]),
    (5, 61, dict(HEADS=4, KV_HEADS=1, WINDOW=0, SINKS=0), dict(head_dim=40, value_dim=32, kv="F32", step=32), [(8, 128, 1), (16, 32, 2), (64, 128, 2)]),
    (3, 40, dict(HEADS=2, KV_HEADS=1, WINDOW=0, SINKS=0), dict(head_dim=144, value_dim=128, kv="BF16", step=16), [(8, 64, 1), (32, 64, 1)]),
    # The launch with warpgroups, on a GPU without wgmma.
    (7, 61, dict(HEADS=8, KV_HEADS=2, WINDOW=50, SINKS=1), dict(head_dim=64, kv="F32", step=64), [(128, 512, 2)]),
    # A module with window pages: a full layer, and a windowed one.
    (3, 30, dict(HEADS=4, KV_HEADS=1, WINDOW=0, SINKS=0, WINDOW_LAYERS=3), dict(head_dim=48, kv="Q8_0", step=32), [(16, 64, 1)]),
    (3, 60, dict(HEADS=4, KV_HEADS=2, WINDOW=20, SINKS=0, WINDOW_LAYERS=2, WINDOW_PAGES=1), dict(head_dim=64, kv="F32", step=32), [(16, 64, 1)]),
]
SUPPORT = """
using std::max;
using std::min;
static unsigned __float_as_uint(float value) { unsigned word; memcpy(&word, &value, 4); return word; }
static float __int_as_float(int word) { return __uint_as_float(word); }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
static int __float2int_rn(float a) { return (int)rintf(a); }
static unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }

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
enum { PARTS = LATENT ? 1 : 2, LAYER_LINES = KV_HEADS * PARTS * BLOCK / LINE };
#ifndef LINES_BEFORE
#define LINES_BEFORE LAYER_LINES
#endif
enum { PAGE_LINES = LINES_BEFORE + LAYER_LINES, WINDOW_POOL = WINDOW_LAYERS ? 9 : 0, AHEAD = WINDOW_PAGES ? 0 : WINDOW_POOL * WINDOW_LAYERS * LAYER_LINES };  // lines before the pages of the kernel
static unsigned char *block_of(int page, int nth) { return pool.data() + (AHEAD + (size_t)page * PAGE_LINES + LINES_BEFORE) * LINE + nth * BLOCK; }
static float pooled(int page, int head, int what, int row, int column) {
  const unsigned char *block = block_of(page, LATENT ? head : head * 2 + what);
  const int at = row * HEAD_DIM + column;
  if (KV_Q8) return ((const signed char *)block)[at] * ((const float *)(block + PAGE * HEAD_DIM))[row];
  if (!KV_16) return ((const float *)block)[at];
  const unsigned bits = ((const unsigned short *)block)[at];
  return config.kv == Dtype::BF16 ? half_of(bits, 0) : half_to_float(bits);
}
static void fill_pool(int pages) {
  pool.resize((AHEAD + (size_t)pages * PAGE_LINES) * LINE, 0xff);
  for (int block = 0; block < pages * KV_HEADS * PARTS; block++)
    for (int i = 0; i < PAGE * HEAD_DIM; i++) {
      unsigned char *to = block_of(block / (KV_HEADS * PARTS), block % (KV_HEADS * PARTS));
      if (KV_16) {
        ((unsigned short *)to)[i] = (generator() & 0x83ff) | 0x3c00;
      } else if (KV_Q8) {
        to[i] = (int)(number() * 40) & 255;
        if (i < PAGE) ((float *)(to + PAGE * HEAD_DIM))[i] = fabsf(number()) / 40;
      } else {
        ((float *)to)[i] = number();
      }
    }
}
int main(int count, char **arguments) {
  const int slot_pages = (POSITION + TOKENS + PAGE - 1) / PAGE + 1, n = TOKENS + 1;  // the last token is padding
  fill_pool(slot_pages + 1);
  std::vector<float> q(n * HEADS * HEAD_DIM), out(n * HEADS * VALUE_DIM, NAN), sinks(HEADS);
  for (float &v : q) v = number() * (number() > 1 ? 4 : 1);
  for (float &v : sinks) v = number() * 4;
  std::vector<int> batch(256), placed = {4, 4, 0, 0};
  batch[MLX_STEP_SLOT_COUNT] = 1, batch[MLX_STEP_SLOT_PAGES] = slot_pages, batch[MLX_STEP_WINDOW_POOL_PAGES] = WINDOW_POOL;
  batch[WINDOW_PAGES ? MLX_STEP_WINDOW_POOL_PAGES : MLX_STEP_POOL_PAGES] = slot_pages + 1, batch[WINDOW_PAGES ? MLX_STEP_AT_WINDOW_PAGES : MLX_STEP_AT_PAGES] = 128;
  for (int i = 0; i < slot_pages; i++) batch[128 + i] = 1 + (i * 5 + 2) % slot_pages;
  for (int i = 0; i < TOKENS * SHARE; i += QUERIES) placed.insert(placed.end(), {0, 0, TOKENS, POSITION, i, 0, 0, 0});
  placed.insert(placed.end(), {-1, TOKENS, 0, 0, 0, 0, 0, 0});
  const int bytes = QUERIES * QUERY_PITCH * 4 + WK * (KEY_BYTES + VALUE_BYTES) + 8 * WK * QUERIES + (SPLIT > 1 ? 4 * WK * QUERIES * (COLUMNS + 2) : 0);
  auto run = [&](float *to, int part_rows) {
    launch(KV_HEADS, (int)placed.size() / 8, SPLIT, THREADS, bytes, [&] {
      attend(q.data(), (const pool_t *)pool.data(), batch.data(), placed.data(),
#if SINKS
             sinks.data(),
#endif
             to, LINES_BEFORE, PAGE_LINES, WINDOW_PAGES ? -1 : WINDOW_LAYERS * LAYER_LINES, SHARE, 0xffffffffu / SHARE + 1, WINDOW ? WINDOW : 1 << 30, part_rows);
    });
  };
  run(out.data(), 0);
  if (HEADS * VALUE_DIM % 128 == 0) {  // the parts add up to the same numbers
    std::vector<uint4> parts(HEADS * VALUE_DIM / 64 * 8 * 24, uint4{~0u, ~0u, ~0u, ~0u});
    run((float *)parts.data(), 8);
    for (int i = 0; i < (int)out.size(); i++)
      if (part_number(parts.data(), 8, i / (HEADS * VALUE_DIM), i % (HEADS * VALUE_DIM)) != out[i]) return printf("the parts of element %d differ\\n", i), 1;
  }
  double off = 0, peer = 0, norm = 0;
  for (int token = 0; token < n; token++)
    for (int head = 0; head < HEADS; head++) {
      const int own = POSITION + token, first = WINDOW && own >= WINDOW ? own - WINDOW + 1 : 0;
      std::vector<double> score(own + 1), sum(VALUE_DIM);
      std::vector<float> score32(own + 1), sum32(VALUE_DIM);
      float peak32 = SINKS ? sinks[head] : -1e30f, weight32 = 0;
      double peak = SINKS ? sinks[head] : -1e300, weight = 0;
      auto at = [&](int key, int what, int column) { return pooled(batch[128 + key / PAGE], head / SHARE, what, key % PAGE, column); };
      for (int key = first; key <= own && token < TOKENS; key++) {
        for (int c = 0; c < HEAD_DIM; c++) {
          score[key] += (double)q[(token * HEADS + head) * HEAD_DIM + c] * at(key, 0, c);
          score32[key] = fmaf(q[(token * HEADS + head) * HEAD_DIM + c], at(key, 0, c), score32[key]);
        }
        score[key] *= config.scale, score32[key] *= config.scale;
        if (CAPPED) score[key] = config.softcap * tanh(score[key] / config.softcap), score32[key] = cap_score(score32[key] / config.scale);
        peak = fmax(peak, score[key]), peak32 = fmaxf(peak32, score32[key]);
      }
      if (SINKS) weight = exp(sinks[head] - peak), weight32 = expf(sinks[head] - peak32);
      for (int key = first; key <= own && token < TOKENS; key++) {
        weight += exp(score[key] - peak), weight32 += expf(score32[key] - peak32);
        for (int c = 0; c < VALUE_DIM; c++) {
          sum[c] += exp(score[key] - peak) * at(key, 1, c);
          sum32[c] = fmaf(expf(score32[key] - peak32), at(key, 1, c), sum32[c]);
        }
      }
      for (int c = 0; c < VALUE_DIM; c++) {
        const double exact = token < TOKENS ? sum[c] / weight : 0, other = token < TOKENS ? sum32[c] / weight32 : 0,
                     got = out[(token * HEADS + head) * VALUE_DIM + c];
        off += (got - exact) * (got - exact), peer += (other - exact) * (other - exact), norm += exact * exact;
      }
    }
  off = sqrt(off / norm), peer = sqrt(peer / norm);
  printf("%d tokens, heads of %d, %d queries, %d threads: off by %.1e, sums in f32 %.1e\\n", TOKENS, HEAD_DIM, QUERIES, THREADS, off, peer);
  fwrite(out.data(), 4, out.size(), fopen(arguments[1], "wb"));
  return off < 2 * peer + 2e-7 ? 0 : 1;
}
"""


APPEND_CASES = [  # sizes, fields of the configuration
    (dict(HEADS=8, KV_HEADS=2, TURN=1, BEFORE=0), dict(head_dim=64, kv="F32")),
    (dict(HEADS=3, KV_HEADS=3, TURN=0, BEFORE=3), dict(head_dim=48, kv="BF16")),
    (dict(HEADS=4, KV_HEADS=2, TURN=1, BEFORE=-1), dict(head_dim=256, kv="F32", head_norm_eps="1e-6f")),
    (dict(HEADS=6, KV_HEADS=2, TURN=1, BEFORE=2), dict(head_dim=16, kv="Q8_0")),
    (dict(HEADS=3, KV_HEADS=1, TURN=1, BEFORE=0), dict(head_dim=8, kv="BF16", head_norm_eps="1e-6f")),
    (dict(HEADS=2, KV_HEADS=2, TURN=1, BEFORE=0), dict(head_dim=120, kv="Q8_0")),
    # Heads of two warps; values with a norm; a layer that shares the keys of another one.
    (dict(HEADS=3, KV_HEADS=2, TURN=1, BEFORE=0, VALUE_NORM=1), dict(head_dim=512, kv="F32", head_norm_eps="1e-6f", value_norm="true")),
    (dict(HEADS=2, KV_HEADS=1, TURN=1, BEFORE=2, VALUE_NORM=1, BIAS=1, BIASED=7), dict(head_dim=512, kv="Q8_0", head_norm_eps="1e-6f", value_norm="true")),
    (dict(HEADS=4, KV_HEADS=2, TURN=1, BEFORE=0, VALUE_NORM=1), dict(head_dim=64, kv="BF16", head_norm_eps="1e-6f", value_norm="true")),
    (dict(HEADS=4, KV_HEADS=0, TURN=1, BEFORE=0, BIAS=1, BIASED=1), dict(head_dim=512, kv="F32", head_norm_eps="1e-6f")),
    (dict(HEADS=3, KV_HEADS=1, TURN=1, BEFORE=0), dict(head_dim=320, kv="F32")),
    # Biases of all three, or of some. BIASED: 1 of q, 2 of k, 4 of v.
    (dict(HEADS=6, KV_HEADS=2, TURN=1, BEFORE=0, BIAS=1, BIASED=7), dict(head_dim=64, kv="F32")),
    (dict(HEADS=4, KV_HEADS=2, TURN=0, BEFORE=0, BIAS=1, BIASED=5), dict(head_dim=32, kv="BF16")),
    (dict(HEADS=2, KV_HEADS=2, TURN=1, BEFORE=0, BIAS=1, BIASED=2), dict(head_dim=64, kv="Q8_0", head_norm_eps="1e-6f")),
    # RoPE of a part of each head, and of adjacent numbers.
    (dict(HEADS=4, KV_HEADS=2, TURN=1, BEFORE=0), dict(head_dim=80, kv="F32", rotary=32)),
    (dict(HEADS=3, KV_HEADS=3, TURN=1, BEFORE=0, BIAS=1, BIASED=7), dict(head_dim=24, kv="F32", rotary=10)),
    (dict(HEADS=4, KV_HEADS=1, TURN=1, BEFORE=0), dict(head_dim=128, kv="F32", adjacent=1)),
    (dict(HEADS=4, KV_HEADS=2, TURN=1, BEFORE=0, BIAS=1, BIASED=3), dict(head_dim=64, kv="Q8_0", rotary=26, adjacent=1)),
    (dict(HEADS=2, KV_HEADS=2, TURN=1, BEFORE=0, BIAS=1, BIASED=7), dict(head_dim=64, kv="F32", rotary=16, head_norm_eps="1e-6f")),
]
APPEND_MAIN = """
#include <random>
static std::mt19937 generator(3);
static float number() { return std::normal_distribution<float>()(generator); }
enum { N = 5, COUNT = 4, LAYERS = 3, LAYER = 1, PAGES = 6, WINDOW_POOL = 7, PAIRS = ROTARY / 2, AHEAD = BEFORE > 0 ? BEFORE * WINDOW_POOL : 0 };
#ifndef BIASED
#define BIASED 0
#endif
enum { NUMBERS = BLOCK / sizeof(pool_t), LAYER_LINES = KV_HEADS * 2 * BLOCK / LINE };
#ifndef VALUE_NORM
#define VALUE_NORM 0
#endif
static std::vector<float> heads_of(const std::vector<float> &x, int heads, int token, int head, bool turn, const float *bias, const float *gain, const float *c, const float *s) {
  std::vector<float> v(x.begin() + (token * heads + head) * HEAD_DIM, x.begin() + (token * heads + head + 1) * HEAD_DIM), r;
  for (int i = 0; i < HEAD_DIM && bias; i++) v[i] += bias[head * HEAD_DIM + i];
  if (HEAD_NORM && (gain || (VALUE_NORM && !turn))) {
    double sum = 0;
    for (float f : v) sum += (double)f * f;
    for (int i = 0; i < HEAD_DIM; i++) v[i] *= 1 / sqrtf(sum / HEAD_DIM + config.head_norm_eps) * (gain ? gain[i] : 1);
  }
  r = v;
  for (int i = 0; i < PAIRS && turn; i++) {
    const int low = config.adjacent ? 2 * i : i, high = config.adjacent ? 2 * i + 1 : PAIRS + i;
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
  std::vector<pool_t> pool((AHEAD + PAGES * LAYERS) * KV_HEADS * 2 * NUMBERS), before = pool;
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
#if HEAD_NORM
           gains.data(), gains.data() + HEAD_DIM,
#endif
#if TURN
           c.data(), s.data(),
#endif
           batch.data(), pool.data(), rotated.data(), LAYER * LAYER_LINES, LAYERS * LAYER_LINES, BEFORE < 0 ? -1 : BEFORE * LAYER_LINES, HEADS, KV_HEADS
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
      const float scale = KV_Q8 ? *(const float *)&pool[block * NUMBERS + PAGE * HEAD_DIM + row * 4] : 0;
      for (int i = 0; i < 4 && KV_Q8; i++) written[block * NUMBERS + PAGE * HEAD_DIM + row * 4 + i] = true;
      for (int i = 0; i < HEAD_DIM; i++) {
        const size_t at = block * NUMBERS + row * HEAD_DIM + i;
        written[at] = true;
        const bool good = KV_Q8 ? fabsf((signed char)pool[at] * scale - wanted[i]) <= scale * 0.51f : KV_16 ? pool[at] == bf16_of(wanted[i]) : near(pool[at], wanted[i]);
        if (!good) return printf("%s of token %d, head %d, column %d\\n", value ? "value" : "key", t, h / 2, i), 1;
      }
    }
  for (size_t i = 0; i < pool.size(); i++)
    if (!written[i] && pool[i] != before[i]) return printf("word %zu of the pool was written\\n", i), 1;
  printf("append, heads of %d: good\\n", HEAD_DIM);
  return 0;
}
"""
LATENT_CASES = [  # heads, numbers of a query before its matrix, fields of the configuration
    (20, 256, dict(head_dim=576, kv="F32", value_dim=512, adjacent="true", head_norm_eps="1e-6f")),
    (3, 96, dict(head_dim=320, kv="BF16", value_dim=256, adjacent="true", head_norm_eps="1e-6f", grow_beta="0.3f", grow_period=4)),
    (2, 31, dict(head_dim=576, kv="Q8_0", value_dim=512, adjacent="false", head_norm_eps="1e-6f")),
    (4, 24, dict(head_dim=40, kv="F32", value_dim=32, adjacent="false", head_norm_eps="1e-5f")),
]
LATENT_MAIN = """
#include <random>
static std::mt19937 generator(3);
enum { N = 5, COUNT = 4, LINES_BEFORE = 3, PAGES = 6, LAYER_LINES = BLOCK / LINE, PAGE_LINES = LAYER_LINES + 2 * LINES_BEFORE };
static void turn(double *x, const float *c, const float *s) {
  double from[ROTARY];
  for (int i = 0; i < ROTARY; i++) from[i] = x[i];
  for (int i = 0; i < PAIRS; i++) {
    const int low = config.adjacent ? 2 * i : i, high = config.adjacent ? 2 * i + 1 : PAIRS + i;
    x[low] = from[low] * c[i] - from[high] * s[i];
    x[high] = from[high] * c[i] + from[low] * s[i];
  }
}
int main() {
  auto numbers = [](size_t count) { std::vector<float> v(count); for (float &f : v) f = std::normal_distribution<float>()(generator); return v; };
  const int start = QUERY_DIM - ROTARY;
  std::vector<float> absorbed = numbers(N * HEADS * VALUE_DIM), q = numbers(N * HEADS * QUERY_DIM), row = numbers(N * HEAD_DIM), gain = numbers(VALUE_DIM), c = numbers(N * PAIRS),
                     s = numbers(N * PAIRS), queries(N * HEADS * HEAD_DIM, -7);
  std::vector<unsigned char> pool((size_t)PAGES * PAGE_LINES * LINE, 0x5a);
  std::vector<int> batch(256);
  batch[MLX_STEP_TOKEN_COUNT] = COUNT, batch[MLX_STEP_SLOT_COUNT] = 2, batch[MLX_STEP_SLOT_PAGES] = 3, batch[MLX_STEP_AT_SLOTS] = 100, batch[MLX_STEP_AT_POSITIONS] = 100 + N;
  batch[MLX_STEP_POOL_PAGES] = PAGES, batch[MLX_STEP_AT_PAGES] = 200;
  const int slots[N] = {0, 0, 1, 1, 0}, positions[N] = {15, 16, 3, 99, 0}, table[6] = {5, 0, 2, 4, 1, 3};  // position 99 has no page
  for (int i = 0; i < N; i++) batch[100 + i] = slots[i], batch[100 + N + i] = positions[i];
  for (int i = 0; i < 6; i++) batch[200 + i] = table[i];
  launch(HEADS + 1, N, 1, 128, 16, [&] {
    append(absorbed.data(), q.data(), row.data(), gain.data(), c.data(), s.data(), batch.data(), (pool_t *)pool.data(), queries.data(), LINES_BEFORE, PAGE_LINES, 0, HEADS, QUERY_DIM, start);
  });
  for (int t = 0; t < N; t++)
    for (int h = 0; h < HEADS; h++) {
      std::vector<double> wanted(HEAD_DIM);
      for (int i = 0; i < HEAD_DIM; i++) wanted[i] = i < VALUE_DIM ? absorbed[(t * HEADS + h) * VALUE_DIM + i] : q[(t * HEADS + h) * QUERY_DIM + start + i - VALUE_DIM];
      turn(&wanted[VALUE_DIM], &c[t * PAIRS], &s[t * PAIRS]);
      for (int i = 0; i < HEAD_DIM; i++) {
        const double grown = wanted[i] * (config.grow_period ? 1 + config.grow_beta * log1p((double)(positions[t] / std::max(config.grow_period, 1))) : 1), got = queries[(t * HEADS + h) * HEAD_DIM + i];
        if (t < COUNT ? fabs(got - grown) > 1e-6 * (1 + fabs(grown)) : got != -7) return printf("query of token %d, head %d, column %d: %g, not %g\\n", t, h, i, got, grown), 1;
      }
    }
  std::vector<bool> written(pool.size());
  for (int t = 0; t < COUNT - 1; t++) {
    std::vector<double> wanted(row.begin() + t * HEAD_DIM, row.begin() + (t + 1) * HEAD_DIM);
    double square = 0;
    for (int i = 0; i < VALUE_DIM; i++) square += wanted[i] * wanted[i];
    for (int i = 0; i < VALUE_DIM; i++) wanted[i] *= gain[i] / sqrt(square / VALUE_DIM + config.head_norm_eps);
    turn(&wanted[VALUE_DIM], &c[t * PAIRS], &s[t * PAIRS]);
    const size_t block = ((size_t)table[slots[t] * 3 + positions[t] / PAGE] * PAGE_LINES + LINES_BEFORE) * LINE, nth = positions[t] % PAGE, at_scale = block + PAGE * HEAD_DIM + nth * 4;
    const float scale = KV_Q8 ? *(const float *)&pool[at_scale] : 0;
    for (int i = 0; i < 4 && KV_Q8; i++) written[at_scale + i] = true;
    for (int i = 0; i < HEAD_DIM; i++) {
      const size_t at = block + (nth * HEAD_DIM + i) * sizeof(pool_t);
      for (size_t b = 0; b < sizeof(pool_t); b++) written[at + b] = true;
      const double got = KV_Q8 ? (signed char)pool[at] * scale : !KV_16 ? *(const float *)&pool[at] : config.kv == Dtype::F16 ? half_to_float(*(const unsigned short *)&pool[at]) : half_of(*(const unsigned short *)&pool[at], 0),
                   most = KV_Q8 ? scale * 0.51 : (KV_16 ? 4e-3 : 2e-6) * (1 + fabs(wanted[i]));
      if (!(fabs(got - wanted[i]) <= most)) return printf("key of token %d, column %d: %g, not %g\\n", t, i, got, wanted[i]), 1;
    }
  }
  for (size_t i = 0; i < pool.size(); i++)
    if (!written[i] && pool[i] != 0x5a) return printf("byte %zu of the pool was written\\n", i), 1;
  printf("append of latent attention, rows of %d: good\\n", HEAD_DIM);
  return 0;
}
"""


def kernel(program):
    return '#include "packed_emulated.hpp"\n' + SUPPORT + '#include "attention_f32.cu"\n' + program


def run(compiler, path, source, sizes, fields, *arguments):
    write_config(path, "attention_f32", {**fields, "kv": f"Dtype::{fields['kv']}"})
    (path / "test.cpp").write_text(kernel(source))
    command = [*compiler, f"-I{path}", *(f"-D{name}={value}" for name, value in sizes.items())]
    subprocess.run([*command, path / "test.cpp", "-o", path / "test"], check=True)
    subprocess.run([path / "test", *arguments], check=True, timeout=300)


def main():
    compiler = sys.argv[1] if len(sys.argv) > 1 else "c++"
    if not shutil.which(compiler):
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        write_kernels(path, KERNEL_BODIES)
        command = compile_command(compiler, path)
        for sizes, fields in APPEND_CASES:
            run(command, path, APPEND_MAIN, dict(NAME="append", APPEND=1, HEAD_NORM=int("head_norm_eps" in fields), **{"BIAS": 0, **sizes}), fields)
        for heads, query_dim, fields in LATENT_CASES:
            run(command, path, LATENT_MAIN, dict(NAME="append", APPEND=1, LATENT_ROWS=1, HEADS=heads, QUERY_DIM=query_dim), fields)
        for tokens, position, sizes, fields, launches in CASES:
            results = set()
            for queries, threads, stages, *split in launches:
                scale = f"{fields['head_dim'] ** -0.5!r}f"
                launch = {"head_dim": fields["head_dim"], "kv": fields["kv"], "value_dim": fields.get("value_dim", 0), "scale": scale, **fields, "queries": queries, "stages": stages, "threads": threads}
                if threads == 512:
                    launch["warpgroups"] = "true"
                run(command, path, MAIN, dict(NAME="attend", SPLIT=split[0] if split else 1, TOKENS=tokens, POSITION=position, **sizes), launch, path / "out")
                results.add((path / "out").read_bytes())
            if len(results) != 1:
                sys.exit("launches of the same attention give different bits")


if __name__ == "__main__":
    main()
