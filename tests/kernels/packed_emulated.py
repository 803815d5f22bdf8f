#!/usr/bin/env python3
"""Runs products of kernels/cuda/packed.cu with 16-bit weights on a CPU (tests/kernels/packed_emulated.hpp), and compares them with f64 sums.
tiles_emulated.py runs those with quantized weights.

  tests/kernels/packed_emulated.py [C++ COMPILER]

Registers that the kernel has not loaded hold NaN.
Exit status 77: there is no compiler.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

from emulated_kernels import BODIES, compile_command, write_config, write_kernels

KERNEL_BODIES = {  # of f16 numbers; copies by all threads instead of by the tensor memory accelerator
    **BODIES,
    "int size_parameter()": "return sizes[NTH];",  # of the file that includes the kernel
    "u32 narrow2(float low, float high) {\n    u32 pair;\n    asm(\"cvt.rn.f16x2": "return half_pair(low, high);",
    "u32 fma_pair_f16(u32 a, u32 b, u32 c)": """
        const auto sum = [=](int i) { return (double)element_of(true, a, i) * element_of(true, b, i) + element_of(true, c, i); };
        return half_pair(sum(0), sum(1));""",
    "u32 sub_pair_f16(u32 a, u32 b)": "return half_pair(element_of(true, a, 0) - element_of(true, b, 0), element_of(true, a, 1) - element_of(true, b, 1));",
    "u32 fma_pair(u32 a, u32 b, u32 c)": "return bf16_of(half_of(a, 0) * half_of(b, 0) + half_of(c, 0)) | bf16_of(half_of(a, 1) * half_of(b, 1) + half_of(c, 1)) << 16;",
    "u32 and_or_once(u32 a, u32 mask, u32 more)": "return (a & mask) | more;",
    "u32 and_xor(u32 a, u32 mask, u32 flip)": "return (a & mask) ^ flip;",
    "float largest_of(float a, float b)": "return a != a || b != b ? NAN : fmaxf(fabsf(a), fabsf(b));",
    "u32 load_constant8(": "return *(const u8 *)from;",
    "u32 load_constant16(": "return *(const u16 *)from;",
    "u32 load_constant32(": "return *(const u32 *)from;",
    "uint2 load_constant64(": "return *(const uint2 *)from;",
    "uint4 load_once128(": "return *(const uint4 *)from;",
    "void copy_async16(u32 to, const void *from) {": "memcpy(shared() + to, from, 16);",
    "void mma_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)": "multiply_pairs<true>(d, a, b0, b1);",
    "void wgmma(float (&d)[FRAGMENTS][4], const u32 (&a)[4], u64 tile, bool add)": """
        const u32 at = (u32)(tile & 0x3fff) << 4;  // one row of 128 bytes per token, pieces of 16 bytes permuted
        for (int f = 0; f < FRAGMENTS; f++) {
          for (int e = 0; e < 4 && !add; e++) d[f][e] = 0;
          multiply_fragment<IN_F16>(d[f], a, [&](int token, int k) {
            const char *row = shared() + at / 128 * 128 + (f * 8 + token) * 128;
            return element_of(IN_F16, *(const u16 *)(row + ((at % 128 / 16 + k / 8) ^ token) * 16 + k % 8 * 2), 0);
          });
        }""",
    "void multiply_all_wgmma(float (&acc)[GROUPS][FT][4], Weights &v, const u8 *parts,": """
        Product::multiply_chunks_wgmma(acc, v, chunks, [&](int chunk) {
          const u32 stage = stages + chunk % STAGES * STAGE_BYTES;
          __syncthreads();
          for (int i = threadIdx.x; i < (int)rows * 8 * PARTS; i += THREADS)
            memcpy(shared() + stage + i / (rows * 8) * PLANE + i % (rows * 8) * 16,
                   parts + (((u64)chunks.at(chunk) * PARTS + i / (rows * 8)) * part_rows() + top) * 128 + i % (rows * 8) * 16, 16);
          __syncthreads();
          return stage;
        });""",
}
CASES = [  # M, rows of three matrices, K, BM, BN, warps, units in registers
    (16, (64, 64, 64), 64, 16, 64, 4, 4), (13, (128, 64, 48), 192, 16, 64, 4, 4), (64, (64, 64, 64), 576, 64, 64, 4, 2), (40, (128, 128, 64), 320, 64, 128, 8, 4)]
PAIR_CASES = [(40, 128, 192, 64, 64, 4, 2), (128, 256, 64, 128, 128, 8, 2)]  # M, N, K, BM, BN, warps, units in registers
PARTIAL_CASES = [(40, 128, 320, 64, 128, 8, 4, 2), (100, 64, 640, 128, 64, 4, 2, 3)]  # the same, and blocks that divide K
NORM_CASES = [(13, 192, 3), (2, 4224, 2)]  # M, K, partial sums
LAYERNORM_CASES = [(13, 192, 3, 1), (2, 4224, 3, 0), (3, 4128, 1, 1), (5, 96, 2, 0), (4, 160, 0, 1)]  # M, K, HAS: 1 gain, 2 bias; order of 16-bit weights
FEW_CASES = [  # M, N, K, epilogue, groups, blocks of a cluster, tiles, warps of a tile, pieces in flight, norm, y as parts
    (16, 96, 128, 1, 2, 1, 2, 1, 3, 1, 0), (13, 64, 320, 2, 2, 2, 2, 2, 2, 0, 0), (16, 48, 576, 1, 2, 2, 1, 4, 4, 0, 0), (9, 80, 160, 1, 2, 4, 1, 1, 2, 1, 0),
    (16, 128, 384, 2, 4, 2, 2, 1, 3, 1, 1)]
# What the kernels need besides packed_emulated.hpp, also those that are not run.
BUILT_IN = """
static float __int_as_float(int x) { return __uint_as_float(x); }
static int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
static int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
static unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  unsigned v = 0;
  for (int i = 0; i < 4; ++i) v |= (unsigned)(((uint64_t)b << 32 | a) >> (selector >> i * 4 & 7) * 8 & 255) << i * 8;
  return v;
}
"""
CUT = """
void run_cut(const float *x, void *parts) { launch(part_rows(), 1, 1, 256, 0, [=] { probe(x, (u8 *)parts, 0, 0); }); }
"""
LINEAR = """
#include <math.h>
#include <random>
void run_cut(const float *x, void *parts);
int main() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const int rows[3] = {N, N2, N3}, padded = (M + 7) / 8 * 8;
  std::vector<float> x(M * K), y[3];
  std::vector<uint16_t> w[3];
  for (float &v : x) v = normal(random);
  for (int i = 0; i < 3; i++) {
    w[i].resize(rows[i] * K);
    for (uint16_t &v : w[i]) v = bf16_of(normal(random));
    y[i].assign(M * rows[i], NAN);
  }
  std::vector<uint4> parts(((K + 127) / 128 * 2 + (K + 2047) / 2048) * padded * 24, uint4{~0u, ~0u, ~0u, ~0u});
  run_cut(x.data(), parts.data());
  launch((M + BM - 1) / BM, (N + N2 + N3 + BN - 1) / BN, 1, 32 * WARPS, STAGES * (BM * 384 + 16), [&] {
    probe((const u8 *)parts.data(), (const u8 *)w[0].data(), (const u8 *)w[1].data(), (const u8 *)w[2].data(), y[0].data(), y[1].data(), y[2].data(), 0, 0, 0, 0, 0);
  });
  double worst = 0;
  for (int i = 0; i < 3; i++)
    for (int at = 0; at < M * rows[i]; at++) {
      double sum = 0;
      for (int k = 0; k < K; k++) sum += (double)x[at / rows[i] * K + k] * half_of(w[i][at % rows[i] * K + k], 0);
      const double off = fabs(sum - y[i][at]);
      worst = off <= worst ? worst : off;  // NaN counts
      if (!(off < 1e-4)) return printf("matrix %d, element %d: %g, expected %g\\n", i, at, y[i][at], sum), 1;
    }
  printf("%d tokens, %d + %d + %d rows, %d columns: within %.1g\\n", M, N, N2, N3, K, worst);
}
"""
PAIR = """
#include <math.h>
#include <random>
void run_cut(const float *x, void *parts);
int main() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const int padded = (M + 7) / 8 * 8;
  std::vector<float> x(M * K);
  std::vector<uint16_t> w[2];
  for (float &v : x) v = normal(random);
  for (auto &matrix : w) {
    matrix.resize(N * K);
    for (uint16_t &v : matrix) v = bf16_of(normal(random) / 8);
  }
  std::vector<uint4> parts(((K + 127) / 128 * 2 + (K + 2047) / 2048) * padded * 24, uint4{~0u, ~0u, ~0u, ~0u}), y(N / 64 * padded * 24, uint4{~0u, ~0u, ~0u, ~0u});
  run_cut(x.data(), parts.data());
  launch((M + BM - 1) / BM, (N + BN - 1) / BN, 1, 32 * WARPS, STAGES * (BM * 384 + 16), [&] {
    probe((const u8 *)parts.data(), (const u8 *)w[0].data(), (const u8 *)w[1].data(), (u8 *)y.data(), 0, 0, 0, 0);
  });
  double worst = 0;
  for (int at = 0; at < M * N; at++) {
    double sum[2] = {};
    for (int n = 0; n < 2; n++)
      for (int k = 0; k < K; k++) sum[n] += (double)x[at / N * K + k] * half_of(w[n][at % N * K + k], 0);
    const double expected = sum[0] / (1 + exp(-sum[0])) * sum[1], off = fabs(expected - part_number(y.data(), padded, at / N, at % N));
    worst = off <= worst ? worst : off;  // NaN counts
    if (!(off < 2e-5)) return printf("element %d is off by %g\\n", at, off), 1;
  }
  printf("gate and up as parts: %d tokens, %d rows, %d columns: within %.1g\\n", M, N, K, worst);
}
"""
PARTIAL = """
#include <math.h>
#include <random>
void run_cut(const float *x, void *parts);
int main() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(M * K), y(GRID_Z * M * N, NAN);
  std::vector<uint16_t> w(N * K);
  for (float &v : x) v = normal(random);
  for (uint16_t &v : w) v = bf16_of(normal(random));
  std::vector<uint4> parts(((K + 127) / 128 * 2 + (K + 2047) / 2048) * ((M + 7) / 8 * 8) * 24, uint4{~0u, ~0u, ~0u, ~0u});
  run_cut(x.data(), parts.data());
  launch((M + BM - 1) / BM, (N + BN - 1) / BN, GRID_Z, 32 * WARPS, STAGES * (BM * 384 + 16), [&] { probe((const u8 *)parts.data(), (const u8 *)w.data(), y.data(), 0, 0, 0); });
  double worst = 0;
  for (int at = 0; at < M * N; at++) {
    double sum = 0, got = 0;
    for (int k = 0; k < K; k++) sum += (double)x[at / N * K + k] * half_of(w[at % N * K + k], 0);
    for (int z = 0; z < GRID_Z; z++) got += y[z * M * N + at];
    worst = fabs(sum - got) <= worst ? worst : fabs(sum - got);  // NaN counts
    if (!(fabs(sum - got) < 1e-4)) return printf("element %d: %g, expected %g\\n", at, got, sum), 1;
  }
  printf("%d partial sums: %d tokens, %d rows, %d columns: within %.1g\\n", GRID_Z, M, N, K, worst);
}
"""
NORM = """
#include <math.h>
#include <random>
int main() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(M * K), gain(K), partials(ADDENDS * M * K);
  for (auto *all : {&x, &gain, &partials})
    for (float &v : *all) v = normal(random);
  const std::vector<float> before = x;
  std::vector<uint4> parts(run_count() * 2 * part_rows() * 24, uint4{~0u, ~0u, ~0u, ~0u});
  launch(part_rows(), 1, 1, 256, 0, [&] { probe(gain.data(), partials.data(), x.data(), (u8 *)parts.data(), 0, 0, 0); });
  for (int row = 0; row < M; row++) {
    double squares = 0;
    for (int k = 0; k < K; k++) {
      double sum = before[row * K + k];
      for (int n = 0; n < ADDENDS; n++) sum += partials[(n * M + row) * K + k];
      if (!(fabs(sum - x[row * K + k]) < 1e-6)) return printf("x %d, %d: %g, expected %g\\n", row, k, x[row * K + k], sum), 1;
      squares += sum * sum;
    }
    for (int k = 0; k < run_count() * 128; k++) {
      const double expected = k < K ? x[row * K + k] / sqrt(squares / K + config.norm_eps) * gain[k] : 0, got = part_number(parts.data(), part_rows(), row, k);
      if (!(fabs(expected - got) < 2e-6)) return printf("norm %d, %d: %g, expected %g\\n", row, k, got, expected), 1;
    }
  }
  printf("norm of x and %d partial sums: %d tokens, %d columns\\n", ADDENDS, M, K);
}
"""
LAYERNORM = """
#include <math.h>
#include <random>
int main() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(M * K), gain(HAS & 1 ? K : 0), bias(HAS & 2 ? K : 0);
  for (auto *all : {&x, &gain, &bias})
    for (float &v : *all) v = normal(random);
  for (float &v : x) v += 30;  // the mean of the squares minus the square of the mean would lose digits
  std::vector<uint4> parts((run_count() * 2 + (run_count() + 15) / 16) * part_rows() * 24, uint4{~0u, ~0u, ~0u, ~0u});
  launch(part_rows(), 1, 1, 256, 0, [&] { probe(x.data(), gain.data(), bias.data(), (u8 *)parts.data(), 0, 0, 0); });
  const auto number_of = [&](int row, int column) -> float {
    if (ROWS16) return part_number(parts.data(), part_rows(), row, column);
    float sum = 0;
    for (int i = 1; i >= 0; i--)
      sum += element_of(true, ((const uint16_t *)parts.data())[((column / 64 * 2 + i) * part_rows() + row) * 64 + (column % 64 / 8 ^ row % 8) * 8 + column % 8], 0);
    return sum * row_scales((const u8 *)parts.data())[row];
  };
  for (int row = 0; row < M; row++) {
    double mean = 0, squares = 0;
    for (int k = 0; k < K; k++) mean += (double)x[row * K + k] / K;
    for (int k = 0; k < K; k++) squares += (x[row * K + k] - mean) * (x[row * K + k] - mean);
    for (int k = 0; k < run_count() * 128; k++) {
      double expected = k < K ? (x[row * K + k] - mean) / sqrt(squares / K + config.norm_eps) : 0;
      if (k < K && HAS & 1) expected *= gain[k];
      if (k < K && HAS & 2) expected += bias[k];
      if (!(fabs(expected - number_of(row, k)) < 2e-5)) return printf("layer norm %d, %d: %g, expected %g\\n", row, k, number_of(row, k), expected), 1;
    }
  }
  for (int row = M; row < part_rows(); row++)
    for (int k = 0; k < run_count() * 128; k++)
      if (number_of(row, k) != 0) return printf("row of padding %d, %d: %g\\n", row, k, number_of(row, k)), 1;
  printf("layer norm: %d tokens, %d columns\\n", M, K);
}
"""
FEW = """
#include <math.h>
#include <random>
int main() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(M * K), gain(K, 1), y(M * N, NAN), residual(M * N);
  std::vector<uint16_t> w[WEIGHTS];
  for (float &v : x) v = normal(random);
  for (float &v : residual) v = normal(random);
  for (auto &matrix : w) {
    matrix.resize(N * K);
    for (uint16_t &v : matrix) v = bf16_of(normal(random) / 8);
  }
#if GAIN
  for (float &v : gain) v = normal(random);
#define FROM x.data(), gain.data()
#else
#define FROM x.data()
#endif
  std::vector<uint4> parts((N + 127) / 128 * 2 * 16 * 24, uint4{~0u, ~0u, ~0u, ~0u});
  const int tiles = (N + TILE_ROWS - 1) / TILE_ROWS;
  launch(1, (tiles + TALL - 1) / TALL, SPLIT, THREADS, TALL * ALONG * RING_BYTES + runs_each() * 2 * (CHUNK_BYTES + 64) + 64, [&] {
#if EPILOGUE == 2
    probe(FROM, (const u8 *)w[0].data(), (const u8 *)w[1].data(), config.y_parts ? (Output *)parts.data() : (Output *)y.data(), 0, 0, 0, 0);
#else
    probe(FROM, (const u8 *)w[0].data(), residual.data(), y.data(), 0, 0, 0, 0);
#endif
  });
  for (int at = 0; config.y_parts && at < M * N; at++) y[at] = part_number(parts.data(), 16, at / N, at % N);
  double worst = 0;
  for (int at = 0; at < M * N; at++) {
    const float *row = &x[at / N * K];
    double sum[2] = {}, squares = 0, scale = 1;
    for (int k = 0; k < K; k++) squares += (double)row[k] * row[k];
    if (GAIN) scale = 1 / sqrt(squares / K + config.norm_eps);
    for (int n = 0; n < WEIGHTS; n++)
      for (int k = 0; k < K; k++) sum[n] += scale * row[k] * gain[k] * half_of(w[n][at % N * K + k], 0);
    const double expected = EPILOGUE == 1 ? residual[at] + sum[0] : sum[0] / (1 + exp(-sum[0])) * sum[1], off = fabs(expected - y[at]);
    worst = off <= worst ? worst : off;  // NaN counts
    if (!(off < 2e-5)) return printf("element %d: %g, expected %g\\n", at, y[at], expected), 1;
  }
  printf("few: %d tokens, %d rows, %d columns, epilogue %d: within %.1g\\n", M, N, K, EPILOGUE, worst);
}
"""


def kernel(macros, sizes):
    """The kernel of |macros|, with these numbers as its last parameters."""
    return "".join(f"#define {name} {value}\n" for name, value in macros.items()) + f'#include "packed_emulated.hpp"\n{BUILT_IN}static const int sizes[] = {{{sizes}}};\n#include "packed.cu"\n'


def product(epilogue, matrices=1, sizes="M, N, K, N2, N3", split=1):
    return kernel({"NAME": "probe", "PRODUCT": 1, "EPILOGUE": epilogue, "MATRICES": matrices, "MIXTURE": 0, "BIAS": 0, "SPLIT": split}, sizes)


def split_input(sizes, gain=0, layernorm=0, partials=0):
    return kernel({"NAME": "probe", "SPLIT_INPUT": 1, "MIXTURE": 0, "GAIN": gain, "LAYERNORM": layernorm, "PARTIALS": partials}, sizes)


def tile(bm, bn, warps, depth):
    return dict(bits=16, bm=bm, bn=bn, stages=3, warps=warps, depth=depth)


def cases():
    """Of each: file, sizes as macros of the test, macros of the compiler, configuration."""
    hopper = {"__CUDA_ARCH_FEAT_SM90_ALL": 1}
    for m, rows, k, bm, bn, warps, depth in CASES:
        yield "linear", dict(M=m, N=rows[0], N2=rows[1], N3=rows[2], K=k, **hopper), tile(bm, bn, warps, depth)
    for m, n, k, bm, bn, warps, depth in PAIR_CASES:
        yield "pair", dict(M=m, N=n, N2=0, N3=0, K=k, **hopper), dict(bits=16, y_parts="true", **{name: value for name, value in tile(bm, bn, warps, depth).items() if name != "bits"})
    for m, n, k, bm, bn, warps, depth, z in PARTIAL_CASES:
        yield "partial", dict(M=m, N=n, N2=0, N3=0, K=k, GRID_Z=z, **hopper), tile(bm, bn, warps, depth)
    for m, k, count in NORM_CASES:
        yield "norm", dict(M=m, K=k, ADDENDS=count), dict(bits=16, norm_eps="0.5f")
    for m, k, has, rows16 in LAYERNORM_CASES:
        yield "layernorm", dict(M=m, K=k, HAS=has), dict(bits=16 if rows16 else 4, norm_eps="0.5f")
    for m, n, k, epilogue, groups, split, tall, along, depth, norm, y_parts in FEW_CASES:
        yield ("few", dict(M=m, N=n, K=k, EPILOGUE=epilogue, SPLIT=split, GAIN=norm),
               dict(bits=16, y_parts="true" if y_parts else "false", norm_eps="0.5f", groups=groups, tall=tall, along=along, depth=depth))


def main():
    compiler = sys.argv[1] if len(sys.argv) > 1 else "c++"
    if not shutil.which(compiler):
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        common = compile_command(compiler, path)
        write_kernels(path, KERNEL_BODIES)
        poison = (path / "packed_linear.cuh").read_text().replace("  Weights weights;", "  Weights weights;\n  memset(&weights, 0xff, sizeof weights);")
        (path / "packed_linear.cuh").write_text(poison)
        (path / "cut.cpp").write_text(split_input("M, K") + CUT)
        (path / "linear.cpp").write_text(product(3, 3) + LINEAR)
        (path / "pair.cpp").write_text(product(2) + PAIR)
        (path / "partial.cpp").write_text(product(4) + PARTIAL)
        (path / "norm.cpp").write_text(split_input("M, K, ADDENDS", gain=1, partials=1) + NORM)
        (path / "layernorm.cpp").write_text(split_input("M, K, HAS", gain=1, layernorm=1) + LAYERNORM)
        (path / "few.cpp").write_text(kernel({"NAME": "probe", "FEW": 1}, "M, N, K, 1") + FEW)
        for name, macros, config in cases():
            write_config(path, "packed", config)
            command = [*common, f"-I{path}", "-D__CUDA_ARCH__=900", *(f"-D{macro}={value}" for macro, value in macros.items())]
            subprocess.run([*command, *([path / "cut.cpp"] if name in ("linear", "pair", "partial") else []), path / f"{name}.cpp", "-o", path / "test"], check=True)
            subprocess.run([path / "test"], check=True, timeout=60)


if __name__ == "__main__":
    main()
