#!/usr/bin/env python3
"""Runs the products of the decode kernel on a CPU (tests/kernels/packed_emulated.hpp), with quantized weights in every tile format and with bf16 rows in
segments of one and of several stages, and compares them with f64 sums of the weights that the kernel's load1() returns.

  tests/kernels/decode_emulated.py [C++ COMPILER]

Inline assembly is replaced by C++ that does the same; a function that is no longer found is an error. Exit status 77: there is no compiler.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from emulated_kernels import compile_command, replace_body, without_assembly

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/parity"))
from weight_layout import NUMBERS, TILES  # noqa: E402

BODIES = {  # of functions with inline assembly
    "u32 shared_address(const void *p)": "return 0;",
    "float f16_to_float(u32 bits)": "return half_to_float(bits);",
    "u32 fma_pair(u32 a, u32 b, u32 c)": """
        u32 d = 0;
        for (int i = 0; i < 2; i++) d |= bf16_of(half_of(a, i) * half_of(b, i) + half_of(c, i)) << 16 * i;
        return d;""",
    "u32 and_or(u32 a, u32 mask, u32 more)": "return (a & mask) | more;",
    "u32 and_xor(u32 a, u32 mask, u32 flip)": "return (a & mask) ^ flip;",
    "float largest_of(float a, float b)": "return a != a || b != b ? NAN : fmaxf(fabsf(a), fabsf(b));",
    "float multiply_bytes(uint4 a, uint2 x)": "return multiply_signed({a.x, a.y, a.z, a.w}, {x.x, x.y});",
    "float multiply_half(u32 first, u32 second, u32 x)": "return multiply_signed({first, second, 0, 0}, {x, 0});",
}
PRELUDE = """
#include "packed_emulated.hpp"
#include <random>
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define __host__
#define __noinline__
#define __align__(n) alignas(n)
static u32 __float_as_uint(float x) { u32 y; memcpy(&y, &x, 4); return y; }
static int __float2int_rn(float x) { return (int)rintf(x); }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
static int min(int a, int b) { return a < b ? a : b; }
static u32 max(u32 a, u32 b) { return a > b ? a : b; }
static u32 __byte_perm(u32 a, u32 b, u32 selector) {
  const u64 all = (u64)b << 32 | a;
  u32 y = 0;
  for (int i = 0; i < 4; i++) y |= (u32)(all >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return y;
}
// The instruction: rows of lanes' words of a, columns of lanes' words of b.
struct Four { u32 word[4]; };
struct Two { u32 word[2]; };
static float multiply_signed(Four a, Two b);
#define WARPS 2
#define TILE 8
#define STAGE_LIMIT 1200
#define MAX_RUNS %(registers)d
#define SHARED_BYTES (64 << 10)
#define SEGMENT 512
constexpr bool MIXTURE = false, PACKED = true;
constexpr int USED = 1;
enum class Dtype { F32, BF16, F16, Q8_0 };
static constexpr struct { bool offsets; Dtype dtype; } config = {%(offset)d != 0, Dtype::BF16};
#define QKV_TILES %(tiles)s
"""
MIDDLE = """
static float two_parts(const int (&sum)[4]);
static float multiply_signed(Four a, Two b) {
  const int lane = threadIdx.x %% 32;
  u32 *words = warp_words();
  for (int i = 0; i < 4; i++) words[lane * 6 + i] = a.word[i];
  for (int i = 0; i < 2; i++) words[lane * 6 + 4 + i] = b.word[i];
  sync_warp();
  int sum[4] = {};
  for (int e = 0; e < 4; e++)
    for (int k = 0; k < 32; k++) {
      const int quad = k %% 16 / 4, column = lane %% 4 * 2 + e %% 2;
      const u32 left = words[(lane / 4 * 4 + quad) * 6 + e / 2 + k / 16 * 2], right = words[(column * 4 + quad) * 6 + 4 + k / 16];
      sum[e] += (signed char)(left >> k %% 4 * 8) * (signed char)(right >> k %% 4 * 8);
    }
  return two_parts(sum);
}
struct Shared {
  struct { alignas(16) u8 runs[WARPS][(Tiling<COLUMNS>::runs + 2) * RUN8_BYTES]; } work;
};
"""
MAIN = """
using Format = Tiles<QKV_TILES>;
int main() {
  using C = Tiling<COLUMNS>;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  constexpr int runs = (COLUMNS + 127) / 128, padded = (runs + 1) / 2 * 2;
  static u8 tiles[padded * Format::bytes + 64];
  for (u8 &v : tiles) v = random();
  for (int i = 0; i < padded * Format::bytes; i++) {  // numbers of ordinary size
    const int at = i %% Format::bytes - Format::scales_at, number = Format::number;
    if (at < 0) continue;
    const bool block = NUMBER_KIND >= NUMBERS_K6;
    if (NUMBER_KIND == NUMBERS_E8M0) tiles[i] = 120 + tiles[i] %% 16;
    if (!block && (number == 2 ? at %% 2 == 1 : number == 4 && at %% 4 == 3)) tiles[i] = tiles[i] %% 2 * 128 + (NUMBER_KIND == NUMBERS_F16 ? 0x2c : 0x3e);
    const int in_block = i %% Format::bytes - Format::blocks_at;
    if (block && in_block >= 0 && in_block %% Format::block_step == 1) tiles[i] = 0x24 + tiles[i] %% 2 * 128;
  }
  std::vector<float> x(C::runs * WARPS * 128 + 8192);
  for (int i = 0; i < COLUMNS; i++) x[i] = normal(random) * (i %% 97 ? 1 : 50) * (i / 32 %% 3 ? 1 : 1e-3f);
  float partial[WARPS][8];
  static Shared memory;
  for (int bad = 0; bad < 2; bad++) {
    if (bad) x[COLUMNS - 1] = NAN;
    launch(1, 1, 1, WARPS * 32, 0, [&] {
      Activations8<COLUMNS> a;
      float4 value[C::runs];
      const int lane = threadIdx.x & 31;
      for (int i = 0; i < C::runs; i++) {
        const int column = C::column(i) + lane * 4;
        value[i] = C::has(i, column) ? *(float4 *)&x[column] : float4{0, 0, 0, 0};
      }
      stage_all(&memory, a, value);
      Format::Sum sum = {};
      for (int segment = 0; segment < C::segments; segment++)
        for (int nth = 0; nth < Format::Stage<COLUMNS>::count; nth++) {
          const int first = segment * C::columns / 128 + nth * Format::Stage<COLUMNS>::tiles;
          if (Format::is_empty_stage<COLUMNS, 1>(segment, nth)) continue;
          Format::multiply_stage<COLUMNS, 1>(&memory, tiles + first * Format::bytes, segment, nth, a, sum);
        }
      float total = Format::total(sum, lane & 2);
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      if (lane %% 4 == 0) partial[threadIdx.x / 32][lane / 4] = total;
    });
    for (int row = 0; row < 8; row++) {
      double sum = 0, size = 0;
      for (int i = 0; i < COLUMNS; i++) {
        const double product = (double)Format::load1<COLUMNS>(tiles, row, i) * (bad && i == COLUMNS - 1 ? 0 : x[i]);
        sum += product, size += product * product;
      }
      float y = 0;
      for (auto &warp : partial) y += warp[row];
      if (bad ? y == y : !(fabs(sum - y) < 1e-6 * sqrt(size)) || size == 0)
        return printf("NAME, %%d columns, row %%d: %%g, expected %%g\\n", COLUMNS, row, y, bad ? NAN : sum), 1;
    }
  }
  printf("NAME, %%d columns: equal\\n", COLUMNS);
}
"""
ROWS_BODIES = {  # of struct Bf16
    "u16 narrow(float x)": "return bf16_of(x);",
    "u32 narrow2(float low, float high)": "return bf16_of(low) | bf16_of(high) << 16;",
    "void multiply(float (&sum)[4], uint4 a, uint2 b)": """
        const int lane = threadIdx.x % 32;
        u32 *words = warp_words();
        const u32 mine[6] = {a.x, a.y, a.z, a.w, b.x, b.y};
        for (int i = 0; i < 6; i++) words[lane * 6 + i] = mine[i];
        sync_warp();
        for (int e = 0; e < 4; e++) {
          double total = sum[e];
          for (int k = 0; k < 16; k++) {
            const int quad = k % 8 / 2, column = lane % 4 * 2 + e % 2;
            const u32 left = words[(lane / 4 * 4 + quad) * 6 + e / 2 + k / 8 * 2], right = words[(column * 4 + quad) * 6 + 4 + k / 8];
            total += (double)half_of(left, k % 2) * half_of(right, k % 2);
          }
          sum[e] = total;
        }""",
    "void multiply_once(float (&product)[4], uint4 a, uint2 b)": "",
}
ROWS_MAIN = """
struct Stages {  // of the producer
  u8 *memory;
  int count = 0;
  u8 *begin(int) { return memory + count * Rows16::Stage<COLUMNS>::bytes; }
  u64 *full() { return nullptr; }
  void end() { count++; }
};
int main() {
  using C = Tiling<COLUMNS>;
  using S = Rows16::Stage<COLUMNS>;
  if (S::count != STAGES) return printf("%d stages of a segment, expected %d\\n", S::count, STAGES), 1;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  static u16 weights[8 * COLUMNS];
  for (u16 &w : weights) w = bf16_of(normal(random));
  std::vector<float> x(COLUMNS);
  for (float &v : x) v = normal(random);
  static u8 memory[16 * S::bytes];
  memset(memory, 0xff, sizeof memory);  // NaN where no column is
  launch(1, 1, 1, 32, 0, [&] {
    Stages stages = {memory};
    Rows16::copy_tile<COLUMNS>(stages, 0, 8, [&](int row) { return (const u8 *)(weights + row * COLUMNS); });
  });
  float partial[WARPS][8];
  static Shared shared_memory;
  launch(1, 1, 1, WARPS * 32, 0, [&] {
    Activations16<COLUMNS> a;
    float4 value[C::runs];
    const int lane = threadIdx.x & 31;
    for (int i = 0; i < C::runs; i++) {
      const int column = C::column(i) + lane * 4;
      value[i] = C::has(i, column) ? float4{x[column], x[column + 1], x[column + 2], x[column + 3]} : float4{0, 0, 0, 0};
    }
    stage_all(&shared_memory, a, value);
    Rows16::Sum sum = {};
    const u8 *stage = memory;
    for (int i = 0; i < C::segments * S::count; i++) {
      if (Rows16::is_empty_stage<COLUMNS, 1>(i / S::count, i % S::count)) continue;
      Rows16::multiply_stage<COLUMNS, 1>(&shared_memory, stage, i / S::count, i % S::count, a, sum);
      stage += S::bytes;
    }
    float total = a.rescale(Rows16::total(sum, lane & 2));
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if (lane % 4 == 0) partial[threadIdx.x / 32][lane / 4] = total;
  });
  for (int row = 0; row < 8; row++) {
    double sum = 0;
    for (int i = 0; i < COLUMNS; i++) sum += (double)Rows16::load1<COLUMNS>((u8 *)weights, row, i) * x[i];
    float y = 0;
    for (auto &warp : partial) y += warp[row];
    if (!(fabs(sum - y) < 1e-6 * sqrt(COLUMNS))) return printf("bf16, %d columns, row %d: %g, expected %g\\n", COLUMNS, row, y, sum), 1;
  }
  printf("bf16, %d columns: equal\\n", COLUMNS);
}
"""


def part_of(name, begin, end):
    text = (ROOT / "kernels/cuda" / name).read_text()
    return text[text.index(begin):text.index(end)]


def text_of(name, included=("tile_format.cuh", "ptx.cuh", "types.cuh", "kernel_tables.h")):
    """A header with these of its includes, and without the others."""
    text = (ROOT / ("kernels" if name.endswith(".h") else "kernels/cuda") / name).read_text().replace("#pragma once\n", "")
    return re.sub(r'#include "([\w.]+)".*\n', lambda m: text_of(m[1], included) if m[1] in included else "", text)


def shape():
    """How rows are divided, for the sizes of PRELUDE."""
    return (part_of("decode_shape.cuh", "static __host__ __device__ constexpr int ceil_div", "template <typename A, typename B>")
            + part_of("decode_shape.cuh", "// How rows of K columns are divided", "constexpr int FFN_PARTS"))


def program(name, columns, registers):
    bits, numbers, offset, halves, center = TILES[name]
    values = {"registers": registers, "offset": offset, "tiles": f"{bits}, {NUMBERS.index(numbers)}, {offset}, {halves}, {center}"}
    kernel = shape()
    kernel += 'static void copy_bytes(u8 *, const u8 *, int, int, int, u64 *);\n' + text_of("decode_tiles.cuh") + MIDDLE % () + text_of("decode_parts8.cuh")
    for signature, body in BODIES.items():
        kernel = replace_body(kernel, signature, body)
    kernel = without_assembly(kernel)
    end = MAIN % ()
    for old, new in {"NAME": name, "NUMBER_KIND": str(NUMBERS.index(numbers))}.items():
        end = end.replace(old + ",", new + ",") if old == "NAME" else end.replace(old, new)
    return f"#define COLUMNS {columns}\n#define FFN COLUMNS\n" + PRELUDE % values + kernel + end


def rows_program(columns, stages, registers):
    kernel = shape()
    kernel += part_of("ptx.cuh", "struct Bf16", "struct F16") + "using Number = Bf16;\n"
    kernel += "static void copy_bytes(u8 *to, const u8 *from, int bytes, int, int, u64 *) { memcpy(to, from, bytes); }\n"
    kernel += text_of("decode_rows16.cuh")
    kernel += "struct Shared { struct { alignas(16) u8 runs[WARPS][Activations16<COLUMNS>::staged_bytes]; } work; };\n"
    kernel += text_of("decode_parts16.cuh")
    for signature, body in ROWS_BODIES.items():
        kernel = replace_body(kernel, signature, body)
    values = {"registers": registers, "offset": 0, "tiles": "16"}
    return f"#define COLUMNS {columns}\n#define FFN COLUMNS\n#define STAGES {stages}\n" + PRELUDE % values + kernel + ROWS_MAIN


def run_program(compiler, path, text):
    (path / "test.cpp").write_text(text)
    subprocess.run([*compiler, path / "test.cpp", "-o", path / "test"], check=True)
    subprocess.run([path / "test"], check=True, timeout=60)


def main():
    compiler = sys.argv[1] if len(sys.argv) > 1 else "c++"
    if not shutil.which(compiler):
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        command = compile_command(compiler, path)
        for nth, name in enumerate(TILES):
            columns = 1280 if TILES[name][1] in ("K6", "K4", "K8") else 1184
            run_program(command, path, program(name, columns, 2 if nth % 2 else 16))  # activations in shared memory, or in registers
        for columns, stages in ((1184, 1), (992, 2), (1024, 2)):
            run_program(command, path, rows_program(columns, stages, 2 if columns == 992 else 16))


if __name__ == "__main__":
    main()
