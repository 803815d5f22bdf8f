#!/usr/bin/env python3
"""Runs the attention of kernels/cuda/attention_f32.cu on a CPU (tests/packed_emulated.hpp), and compares it with f64 sums.

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

FILES = ("overlap.cuh", "parts.cuh", "attention_append.cuh", "cluster.cuh", "step.h")
BODIES = {  # of functions with inline assembly
    "u32 bf16_pair(float low, float high)": "return bf16_of(low) | bf16_of(high) << 16;",
    "u32 narrow(float low, float high)": "return 0;",
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
             to, 1, part_rows);
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


def inline(name):
    text = next(f for f in (ROOT / "kernels/cuda" / name, ROOT / "kernels" / name) if f.exists()).read_text()
    return re.sub(r'#include "([\w.]+)"\n', lambda m: inline(m[1]) if m[1] in FILES else "", text)


def kernel():
    text = inline("attention_f32.cu")
    for signature, body in BODIES.items():
        text = replace_body(text, signature, body)
    text = text.replace("extern __shared__ __align__(16) unsigned char memory[];", "unsigned char *memory = (unsigned char *)shared();")
    return '#include "packed_emulated.hpp"\n' + SUPPORT + text.replace('extern "C" __global__', "static __global__") + MAIN


def main():
    compiler = sys.argv[1] if len(sys.argv) > 1 else "c++"
    if not shutil.which(compiler):
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "test.cpp").write_text(kernel())
        for tokens, position, shape, launches in CASES:
            results = set()
            for queries, threads, stages in launches:
                sizes = dict(LAYERS=2, TOKENS=tokens, POSITION=position, SCALE=f"{shape['HEAD_DIM'] ** -0.5!r}f", TURN=0, TILES=0, OUT_16=0, SPLIT=1, QUERIES=queries,
                             THREADS=threads, STAGES=stages, **shape)
                command = [compiler, "-std=c++17", "-O1", "-w", "-ffp-contract=off", f"-I{ROOT}/tests", *(f"-D{name}={value}" for name, value in sizes.items())]
                subprocess.run([*command, path / "test.cpp", "-o", path / "test", "-lpthread"], check=True)
                subprocess.run([path / "test", path / "out"], check=True, timeout=300)
                results.add((path / "out").read_bytes())
            if len(results) != 1:
                sys.exit("launches of the same attention give different bits")


if __name__ == "__main__":
    main()
