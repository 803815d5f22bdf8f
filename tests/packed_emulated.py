#!/usr/bin/env python3
"""Runs products of kernels/cuda/packed.cu with 16-bit weights on a CPU (tests/packed_emulated.hpp), and compares them with f64 sums.

  tests/packed_emulated.py [C++ COMPILER]

Inline assembly is replaced by C++ that does the same; a function that is no longer found is an error. Registers that the kernel has not loaded hold NaN.
Exit status 77: there is no compiler.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = ("overlap.cuh", "activation.cuh", "parts.cuh", "packed_sizes.cuh", "packed_split.cuh", "packed_parts.cuh", "packed_operands.cuh", "packed_linear.cuh", "packed_linear_rows16.cuh", "packed_linear_few.cuh")
BODIES = {  # of functions with inline assembly
    "u32 bf16_pair(float low, float high)": "return bf16_of(low) | bf16_of(high) << 16;",
    "T *after_wait(T *pointer)": "return pointer;",
    "void load16(u32 (&v)[4], const u8 *from, bool valid)": "if (valid) memcpy(v, from, 16); else memset(v, 0, 16);",
    "void multiply(float (&d)[FT][4], const u32 (&a)[4], u64 tile, bool add)": """
        const u32 at = (u32)(tile & 0x3fff) << 4;  // one row of 128 bytes per token, pieces of 16 bytes permuted
        for (int f = 0; f < FT; f++) {
          for (int e = 0; e < 4 && !add; e++) d[f][e] = 0;
          multiply_fragment(d[f], a, [&](int token, int k) {
            const char *row = shared() + at / 128 * 128 + (f * 8 + token) * 128;
            return half_of(*(const u16 *)(row + ((at % 128 / 16 + k / 8) ^ token) * 16 + k % 8 * 2), 0);
          });
        }""",
    "void wait_barrier(u32 barrier, u32 parity)": "",
    "void copy_bulk(u32 to, const u8 *from, u32 bytes, u32 barrier)": "",
    "void copy16(u32 to, const u8 *from, bool valid)": "if (valid) memcpy(shared() + to, from, 16); else memset(shared() + to, 0, 16);",
    "void multiply_all(float (&acc)[GROUPS][FT][4], Weights &v, const u8 *parts,": """
        multiply_chunks(acc, v, chunks, [&](int chunk) {  // copies by all threads instead of by the tensor memory accelerator
          const u32 stage = stages + chunk % STAGES * STAGE_BYTES;
          __syncthreads();
          for (int i = threadIdx.x; i < (int)rows * 24; i += THREADS)
            memcpy(shared() + stage + i / (rows * 8) * PLANE + i % (rows * 8) * 16,
                   parts + (((u64)chunks.at(chunk) * 3 + i / (rows * 8)) * MP + top) * 128 + i % (rows * 8) * 16, 16);
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
CUT = """
void run_cut(const float *x, void *parts) { launch((ROW_THREADS + 255) / 256, MP, 1, 256, 0, [=] { probe(x, (u8 *)parts); }); }
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
    probe((const u8 *)parts.data(), (const u8 *)w[0].data(), (const u8 *)w[1].data(), (const u8 *)w[2].data(), y[0].data(), y[1].data(), y[2].data());
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
    probe((const u8 *)parts.data(), (const u8 *)w[0].data(), (const u8 *)w[1].data(), (u8 *)y.data());
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
  launch((M + BM - 1) / BM, (N + BN - 1) / BN, GRID_Z, 32 * WARPS, STAGES * (BM * 384 + 16), [&] { probe((const u8 *)parts.data(), (const u8 *)w.data(), y.data()); });
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
  std::vector<float> x(M * K), gain(K), partials(PARTIALS * M * K);
  for (auto *all : {&x, &gain, &partials})
    for (float &v : *all) v = normal(random);
  const std::vector<float> before = x;
  std::vector<uint4> parts(RUNS * 2 * MP * 24, uint4{~0u, ~0u, ~0u, ~0u});
  launch(MP, 1, 1, 256, 0, [&] { probe(gain.data(), partials.data(), x.data(), (u8 *)parts.data()); });
  for (int row = 0; row < M; row++) {
    double squares = 0;
    for (int k = 0; k < K; k++) {
      double sum = before[row * K + k];
      for (int n = 0; n < PARTIALS; n++) sum += partials[(n * M + row) * K + k];
      if (!(fabs(sum - x[row * K + k]) < 1e-6)) return printf("x %d, %d: %g, expected %g\\n", row, k, x[row * K + k], sum), 1;
      squares += sum * sum;
    }
    for (int k = 0; k < RUNS * 128; k++) {
      const double expected = k < K ? x[row * K + k] / sqrt(squares / K + NORM_EPS) * gain[k] : 0, got = part_number(parts.data(), MP, row, k);
      if (!(fabs(expected - got) < 2e-6)) return printf("norm %d, %d: %g, expected %g\\n", row, k, got, expected), 1;
    }
  }
  printf("norm of x and %d partial sums: %d tokens, %d columns\\n", PARTIALS, M, K);
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
  std::vector<uint4> parts((RUNS * 2 + (RUNS + 15) / 16) * MP * 24, uint4{~0u, ~0u, ~0u, ~0u});
  launch(MP, 1, 1, 256, 0, [&] { probe(x.data(), gain.data(), bias.data(), (u8 *)parts.data()); });
  const auto number_of = [&](int row, int column) -> float {
#ifdef ROWS16
    return part_number(parts.data(), MP, row, column);
#else
    float sum = 0;
    for (int i = 2; i >= 0; i--) sum += half_of(((const uint16_t *)parts.data())[((column / 64 * 3 + i) * MP + row) * 64 + (column % 64 / 8 ^ row % 8) * 8 + column % 8], 0);
    return sum;
#endif
  };
  for (int row = 0; row < M; row++) {
    double mean = 0, squares = 0;
    for (int k = 0; k < K; k++) mean += (double)x[row * K + k] / K;
    for (int k = 0; k < K; k++) squares += (x[row * K + k] - mean) * (x[row * K + k] - mean);
    for (int k = 0; k < RUNS * 128; k++) {
      double expected = k < K ? (x[row * K + k] - mean) / sqrt(squares / K + NORM_EPS) : 0;
      if (k < K && HAS & 1) expected *= gain[k];
      if (k < K && HAS & 2) expected += bias[k];
      if (!(fabs(expected - number_of(row, k)) < 2e-5)) return printf("layer norm %d, %d: %g, expected %g\\n", row, k, number_of(row, k), expected), 1;
    }
  }
  for (int row = M; row < MP; row++)
    for (int k = 0; k < RUNS * 128; k++)
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
#ifdef NORM_EPS
  for (float &v : gain) v = normal(random);
#define FROM x.data(), gain.data()
#else
#define FROM x.data()
#endif
  std::vector<uint4> parts((N + 127) / 128 * 2 * 16 * 24, uint4{~0u, ~0u, ~0u, ~0u});
  const int tiles = (N + TILE_ROWS - 1) / TILE_ROWS;
  launch(1, (tiles + TALL - 1) / TALL, SPLIT, THREADS, TALL * ALONG * RING_BYTES + RUNS_EACH * 2 * (CHUNK_BYTES + 64) + 64, [&] {
#if EPILOGUE == 2
#ifdef Y_PARTS
    probe(FROM, (const u8 *)w[0].data(), (const u8 *)w[1].data(), (u8 *)parts.data());
#else
    probe(FROM, (const u8 *)w[0].data(), (const u8 *)w[1].data(), y.data());
#endif
#else
    probe(FROM, (const u8 *)w[0].data(), residual.data(), y.data());
#endif
  });
#ifdef Y_PARTS
  for (int at = 0; at < M * N; at++) y[at] = part_number(parts.data(), 16, at / N, at % N);
#endif
  double worst = 0;
  for (int at = 0; at < M * N; at++) {
    const float *row = &x[at / N * K];
    double sum[2] = {}, squares = 0, scale = 1;
    for (int k = 0; k < K; k++) squares += (double)row[k] * row[k];
#ifdef NORM_EPS
    scale = 1 / sqrt(squares / K + NORM_EPS);
#endif
    for (int n = 0; n < WEIGHTS; n++)
      for (int k = 0; k < K; k++) sum[n] += scale * row[k] * gain[k] * half_of(w[n][at % N * K + k], 0);
    const double expected = EPILOGUE == 1 ? residual[at] + sum[0] : sum[0] / (1 + exp(-sum[0])) * sum[1], off = fabs(expected - y[at]);
    worst = off <= worst ? worst : off;  // NaN counts
    if (!(off < 2e-5)) return printf("element %d: %g, expected %g\\n", at, y[at], expected), 1;
  }
  printf("few: %d tokens, %d rows, %d columns, epilogue %d: within %.1g\\n", M, N, K, EPILOGUE, worst);
}
"""


def inline(name):
    text = (ROOT / "kernels/cuda" / name).read_text()
    return re.sub(r'#include "([\w.]+)"\n', lambda m: inline(m[1]) if m[1] in FILES else "", text)


def replace_body(text, signature, body):
    start = text.find(signature)
    if start < 0:
        sys.exit(f"packed_emulated.py: kernels/cuda/packed.cu has no '{signature}'")
    at = text.index("{", text.index(")", start))
    depth, end = 0, at
    while True:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
        if not depth:
            return text[:at] + "{" + body + "}" + text[end:]


def kernel():
    text = inline("packed.cu")
    for signature, body in BODIES.items():
        text = replace_body(text, signature, body)
    for name in ("void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)", "void load_matrices(u32 (&v)[4], u32 from)"):  # in packed_emulated.hpp
        text = replace_body(text, name, ";").replace(f"__device__ __forceinline__ {name}", f"static void unused_{name[5:]}")
    text = re.sub(r'asm volatile\("(?:wgmma|cp\.async|prefetch|griddepcontrol|mbarrier|fence)[^;]*;"[^;]*;', ";", text)
    text = text.replace("extern __shared__ __align__(1024) unsigned char memory[];", "unsigned char *memory = (unsigned char *)shared();")
    text = text.replace("(u32)__cvta_generic_to_shared(memory)", "0").replace("(u32)__cvta_generic_to_shared(at)", "(u32)((char *)at - shared())").replace('extern "C" __global__', "static __global__")
    text = text.replace('extern "C" __device__ int mlx_overlap = 1;', "")
    text = text.replace("  Weights weights;", "  Weights weights;\n  memset(&weights, 0xff, sizeof weights);")
    return f'#include "packed_emulated.hpp"\n#define NAME probe\n{text}'


def main():
    compiler = sys.argv[1] if len(sys.argv) > 1 else "c++"
    if not shutil.which(compiler):
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "cut.cpp").write_text("#define CUT 1\n" + kernel() + CUT)
        (path / "linear.cpp").write_text(kernel() + LINEAR)
        (path / "pair.cpp").write_text(kernel() + PAIR)
        (path / "partial.cpp").write_text(kernel() + PARTIAL)
        (path / "norm.cpp").write_text("#define CUT 1\n" + kernel() + NORM)
        (path / "layernorm.cpp").write_text("#define CUT 1\n" + kernel() + LAYERNORM)
        (path / "few.cpp").write_text("#define FEW 1\n" + kernel() + FEW)
        cases = [("linear", dict(M=m, N=rows[0], N2=rows[1], N3=rows[2], K=k, BM=bm, BN=bn, WARPS=warps, SPLIT=1, STAGES=3, EPILOGUE=3, DEPTH=depth, __CUDA_ARCH_FEAT_SM90_ALL=1))
                 for m, rows, k, bm, bn, warps, depth in CASES]
        cases += [("pair", dict(M=m, N=n, K=k, BM=bm, BN=bn, WARPS=warps, SPLIT=1, STAGES=3, EPILOGUE=2, Y_PARTS=1, DEPTH=depth, __CUDA_ARCH_FEAT_SM90_ALL=1))
                  for m, n, k, bm, bn, warps, depth in PAIR_CASES]
        cases += [("partial", dict(M=m, N=n, K=k, BM=bm, BN=bn, WARPS=warps, SPLIT=1, GRID_Z=z, STAGES=3, EPILOGUE=4, DEPTH=depth, __CUDA_ARCH_FEAT_SM90_ALL=1))
                  for m, n, k, bm, bn, warps, depth, z in PARTIAL_CASES]
        cases += [("norm", dict(M=m, K=k, PARTIALS=count, NORM_EPS="0.5f")) for m, k, count in NORM_CASES]
        cases += [("layernorm", dict(M=m, K=k, HAS=has, LAYERNORM=1, NORM_EPS="0.5f", **({"ROWS16": 1} if rows16 else {}))) for m, k, has, rows16 in LAYERNORM_CASES]
        cases += [("few", dict(zip(("M", "N", "K", "EPILOGUE", "GROUPS", "SPLIT", "TALL", "ALONG", "DEPTH"), case), **({"NORM_EPS": "0.5f"} if case[-2] else {}), **({"Y_PARTS": 1} if case[-1] else {}))) for case in FEW_CASES]
        for name, sizes in cases:
            command = [compiler, "-std=c++17", "-O1", "-w", f"-I{ROOT}/tests", *([] if name == "layernorm" else ["-DROWS16=1"]), "-DDTYPE_BF16=1", "-D__CUDA_ARCH__=900", *(f"-D{name}={value}" for name, value in sizes.items())]
            subprocess.run([*command, *([path / "cut.cpp"] if name in ("linear", "pair", "partial") else []), path / f"{name}.cpp", "-o", path / "test", "-lpthread"], check=True)
            subprocess.run([path / "test"], check=True, timeout=60)


if __name__ == "__main__":
    main()
