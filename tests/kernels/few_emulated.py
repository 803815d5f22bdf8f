#!/usr/bin/env python3
"""Runs kernels/cuda/few.cu on a CPU (tests/kernels/packed_emulated.hpp), one block, and compares two steps of a network of three layers with f64: q with RoPE,
keys and values in the KV pool, and x after the last layer. The output of attention is random. An odd number of layers leaves values of the first step
in the buffers that the second one uses first.

  tests/kernels/few_emulated.py [C++ COMPILER]

Exit status 77: there is no compiler.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from emulated_kernels import BODIES, COMPILER_FLAGS, write_kernels


KERNEL_BODIES = {
    **BODIES,
    "void barrier_init(u64 *barrier, int count)": "mbarrier_of(barrier) = {count, count, 0, 0};",
    "void barrier_arrive(u64 *barrier)": "arrive(barrier, 0);",
    "bool barrier_passed(u64 *barrier, u32 parity)": "return passed(barrier, parity);",
    "void copy_bytes(u8 *to, const u8 *from, int bytes, int nth, int lanes,": "if (nth) return; memcpy(to, from, bytes); received(full, bytes);",
    "void expect(u64 *barrier, int bytes)": "if ((threadIdx.x & 31) == 0) arrive(barrier, bytes); sync_warp();",
    "void sync_consumers()": "wait_for(block->consumers, THREADS);",
    "void publish(float *word, float value)": "store_word(word, value);",
    "float load_relaxed(const float *word)": "return load_word(word);",
    "u32 processor_count()": "return 1;",
    "void load4(float *v, const float *words)": "for (int i = 0; i < 4; ++i) v[i] = load_word(words + i);",
}
PRELUDE = """
#include "packed_emulated.hpp"
#include <random>
typedef unsigned int u32;
typedef unsigned long long u64;
#define __host__
#define __constant__
#define __align__(n)
#define __CUDA_ARCH__ 800
static u32 __float_as_uint(float x) { u32 y; memcpy(&y, &x, 4); return y; }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
static void __trap() { abort(); }
// In the place of an mbarrier: arrivals of a phase, and those and the bytes that it still waits for.
struct MBarrier { short count, pending; int bytes : 31; unsigned parity : 1; };
static_assert(sizeof(MBarrier) == 8, "");
static MBarrier &mbarrier_of(u64 *barrier) { return *(MBarrier *)barrier; }
static void finish(MBarrier &b) {
  if (b.pending || b.bytes) return;
  b.parity ^= 1;
  b.pending = b.count;
}
static void arrive(u64 *barrier, int bytes) {
  MBarrier &b = mbarrier_of(barrier);
  b.bytes += bytes, --b.pending;
  finish(b);
}
static void received(u64 *barrier, int bytes) {
  MBarrier &b = mbarrier_of(barrier);
  b.bytes -= bytes;
  finish(b);
}
static bool passed(u64 *barrier, u32 parity) {
  if (mbarrier_of(barrier).parity != parity) return true;
  yield();
  return false;
}
static void store_word(float *word, float value) { *(volatile float *)word = value; }
static float load_word(const float *word) {
  if (__float_as_uint(*(const volatile float *)word) == 0xffffffffu) yield();
  return *(const volatile float *)word;
}
"""
HIDDEN, FFN, Q_WIDTH, KV_WIDTH, SLICES = 256, 512, 256, 64, 1
SIZES = {"hidden": HIDDEN, "ffn": FFN, "q_width": Q_WIDTH, "kv_width": KV_WIDTH, "head_dim": 64, "vocab": 8, "slices": SLICES, "shared_bytes": 200000, "scratch_at": 64,
         "scratch_words": 2 * 8 * ((2 + SLICES) * HIDDEN + FFN), "norm_eps": "1e-5f", "kv": "Dtype::F32"}
LAYERS = 3
TEST = """
constexpr int HALF = HEAD_DIM / 2, PAGES = 3, HEADS = Q_WIDTH / HEAD_DIM, LAYER_LINES = KV_WIDTH / HEAD_DIM * 2 * BLOCK / LINE;
static std::mt19937 random_bits(7);
static float random_number(double scale) { return (float)(scale * std::normal_distribution<double>()(random_bits)); }
static std::vector<u8> archive(ARCHIVE_BYTES);
static std::vector<u32> scratch(config.scratch_at + config.scratch_words, 0xffffffffu);
static std::vector<float> pool(2 * PAGES * TOKENS * LAYERS * 2 * PAGE * KV_WIDTH, 7.0f), cosine(TOKENS * HALF), sine(TOKENS * HALF);
static std::vector<int> batch(MLX_STEP_HEADER_WORDS + TOKENS * (3 + PAGES));
typedef std::vector<double> Rows;  // [TOKENS][columns]

static u64 offset_of(Weight w, int layer) { return w.at + w.step * layer; }
static double weight(u64 at, int row, int columns, int column) { return half_of(((const unsigned short *)(archive.data() + at))[row * columns + column], 0); }
static Rows product(u64 at, const Rows &x, int rows, int columns) {
  Rows y(TOKENS * rows);
  for (int t = 0; t < TOKENS; ++t)
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c) y[t * rows + r] += weight(at, r, columns, c) * x[t * columns + c];
  return y;
}
static Rows norm(u64 at, const Rows &x) {
  Rows y(x);
  for (int t = 0; t < TOKENS; ++t) {
    double sum = 0;
    for (int c = 0; c < HIDDEN; ++c) sum += x[t * HIDDEN + c] * x[t * HIDDEN + c];
    for (int c = 0; c < HIDDEN; ++c) y[t * HIDDEN + c] *= ((const float *)(archive.data() + at))[c] / sqrt(sum / HIDDEN + config.norm_eps);
  }
  return y;
}
static Rows turned(const Rows &x, int width) {
  Rows y(x);
  for (int i = 0; i < TOKENS * width; ++i) {
    const int t = i / width, at = i % HEAD_DIM, pair = at % HALF;
    const double c = cosine[t * HALF + pair], s = sine[t * HALF + pair];
    y[i] = at < HALF ? x[i] * c - x[i + HALF] * s : x[i] * c + x[i - HALF] * s;
  }
  return y;
}
static int failures = 0;
static void compare(const char *what, double found, double expected) {
  if (fabs(found - expected) <= 2e-5 * (1 + fabs(expected))) return;
  if (failures++ < 5) printf("%s: %g, expected %g\\n", what, found, expected);
}
static void compare_rows(const char *what, const std::vector<float> &found, const Rows &expected) {
  for (size_t i = 0; i < expected.size(); ++i) compare(what, found[i], expected[i]);
}
static int position_of(int t) { return t == TOKENS - 1 ? -1 : 5 * t + 3; }  // the last token is padding
static void compare_pool(int layer, const Rows &k, const Rows &v) {
  for (int t = 0; t < TOKENS - 1; ++t) {
    const int position = position_of(t), page = batch[MLX_STEP_HEADER_WORDS + 3 * TOKENS + t * PAGES + position / PAGE];
    for (int i = 0; i < KV_WIDTH; ++i) {
      const size_t at = ((((size_t)page * LAYERS + layer) * (KV_WIDTH / HEAD_DIM) + i / HEAD_DIM) * 2 * PAGE + position % PAGE) * HEAD_DIM + i % HEAD_DIM;
      compare("a key", pool[at], k[t * KV_WIDTH + i]);
      compare("a value", pool[at + PAGE * HEAD_DIM], v[t * KV_WIDTH + i]);
    }
  }
}
static void run(int layer, int parts, int qkv, const std::vector<float> &attended, const std::vector<float> &x, std::vector<float> &out) {
  launch(1, 1, 1, THREADS + 32, config.shared_bytes, [&] {
    mlx_few(archive.data(), attended.data(), x.data(), cosine.data(), sine.data(), batch.data(), scratch.data(), pool.data(), out.data(), nullptr, nullptr, qkv * LAYER_LINES, LAYERS * LAYER_LINES, 0, layer, parts);
  });
}
static std::vector<float> random_rows(int columns) {
  std::vector<float> x(TOKENS * columns);
  for (float &word : x) word = random_number(1);
  return x;
}
static void step() {
  const std::vector<float> x = random_rows(HIDDEN);
  std::vector<float> q(TOKENS * Q_WIDTH), last(TOKENS * HIDDEN), attended = x;
  Rows exact(x.begin(), x.end());
  for (int layer = 0; layer <= LAYERS; ++layer) {
    if (layer) {
      const int of = layer - 1;
      attended = random_rows(Q_WIDTH);
      const Rows o = product(offset_of(config.o, of), Rows(attended.begin(), attended.end()), HIDDEN, Q_WIDTH);
      for (size_t i = 0; i < o.size(); ++i) exact[i] += o[i];
      const Rows h = norm(offset_of(config.mlp_norm, of), exact), gate = product(offset_of(config.gate, of), h, FFN, HIDDEN);
      Rows inner = product(offset_of(config.up, of), h, FFN, HIDDEN);
      for (size_t i = 0; i < inner.size(); ++i) inner[i] *= gate[i] / (1 + exp(-gate[i]));
      const Rows down = product(offset_of(config.down, of), inner, HIDDEN, FFN);
      for (size_t i = 0; i < down.size(); ++i) exact[i] += down[i];
    }
    if (layer == LAYERS) {
      run(LAYERS - 1, PART_LAYER, 0, attended, x, last);
      compare_rows("x", last, exact);
      return;
    }
    run(layer ? layer - 1 : 0, (layer ? PART_LAYER : 0) | PART_QKV | PART_APPEND, layer, attended, x, q);
    const Rows h = norm(offset_of(config.attn_norm, layer), exact);
    compare_rows("q", q, turned(product(offset_of(config.q, layer), h, Q_WIDTH, HIDDEN), Q_WIDTH));
    compare_pool(layer, turned(product(offset_of(config.k, layer), h, KV_WIDTH, HIDDEN), KV_WIDTH), product(offset_of(config.v, layer), h, KV_WIDTH, HIDDEN));
  }
}
int main() {
  for (u64 at = 0; at < ARCHIVE_BYTES; at += 2) *(unsigned short *)(archive.data() + at) = bf16_of(random_number(0.06));
  for (int layer = 0; layer < LAYERS; ++layer)
    for (int c = 0; c < HIDDEN; ++c) {
      ((float *)(archive.data() + offset_of(config.mlp_norm, layer)))[c] = 1 + random_number(0.2);
      ((float *)(archive.data() + offset_of(config.attn_norm, layer)))[c] = 1 + random_number(0.2);
    }
  int *words = batch.data();
  words[MLX_STEP_TOKEN_COUNT] = TOKENS, words[MLX_STEP_POOL_PAGES] = 2 * PAGES * TOKENS, words[MLX_STEP_SLOT_COUNT] = TOKENS, words[MLX_STEP_SLOT_PAGES] = PAGES;
  words[MLX_STEP_AT_SLOTS] = MLX_STEP_HEADER_WORDS + TOKENS, words[MLX_STEP_AT_POSITIONS] = MLX_STEP_HEADER_WORDS + 2 * TOKENS, words[MLX_STEP_AT_PAGES] = MLX_STEP_HEADER_WORDS + 3 * TOKENS;
  for (int t = 0; t < TOKENS; ++t) {
    words[MLX_STEP_HEADER_WORDS + TOKENS + t] = t;
    words[MLX_STEP_HEADER_WORDS + 2 * TOKENS + t] = position_of(t);
    for (int i = 0; i < PAGES; ++i) words[MLX_STEP_HEADER_WORDS + 3 * TOKENS + t * PAGES + i] = 1 + (t * PAGES + i) * 2;
    for (int i = 0; i < HALF; ++i) cosine[t * HALF + i] = cosf(t + i), sine[t * HALF + i] = sinf(t + i);
  }
  step();
  step();
  printf(failures ? "%d numbers differ\\n" : "few: two steps of three layers agree\\n", failures);
  return failures != 0;
}
"""


def main():
    compiler = sys.argv[1] if len(sys.argv) > 1 else "c++"
    if not shutil.which(compiler):
        sys.exit(77)
    offsets, at = {}, 0
    for name, size in (("attn_norm", HIDDEN * 4), ("q", Q_WIDTH * HIDDEN * 2), ("k", KV_WIDTH * HIDDEN * 2), ("v", KV_WIDTH * HIDDEN * 2), ("o", HIDDEN * Q_WIDTH * 2),
                       ("mlp_norm", HIDDEN * 4), ("gate", FFN * HIDDEN * 2), ("up", FFN * HIDDEN * 2), ("down", HIDDEN * FFN * 2)):
        offsets[name] = at
        at += size
    fields = {**SIZES, **{name: f"{{.at = {offset}ull, .step = {at}ull}}" for name, offset in offsets.items()}, "head": "{.at = 0, .step = 0}"}
    config = f'#pragma once\n#include "few_config.cuh"\nconstexpr Config config = {{{", ".join(f".{name} = {value}" for name, value in fields.items())}}};\n'
    constants = f"constexpr int LAYERS = {LAYERS};\nconstexpr u64 ARCHIVE_BYTES = {at * LAYERS};\n"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        write_kernels(path, KERNEL_BODIES)
        (path / "config.cuh").write_text(config)
        (path / "few.cpp").write_text(PRELUDE + constants + '#include "few.cu"\n' + TEST)
        subprocess.run([compiler, *COMPILER_FLAGS, f"-I{path}", str(path / "few.cpp"), "-o", str(path / "few")], check=True)
        sys.exit(subprocess.run([str(path / "few")], timeout=600).returncode)


if __name__ == "__main__":
    main()
