#!/usr/bin/env python3
"""Runs products of kernels/cuda/packed.cu with quantized weights on a CPU (tests/kernels/packed_emulated.hpp), and compares them with f64 sums.

  tests/kernels/tiles_emulated.py [C++ COMPILER]

Rows of x have sizes from 2^-20 to 2^20, and one is zero. A row must have the same bits beside other rows. Registers that the kernel has not loaded hold NaN.
Exit status 77: there is no compiler.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

from emulated_kernels import compile_command, write_config, write_kernels
from packed_emulated import CUT, KERNEL_BODIES, product, split_input

FORMATS = {  # bits, numbers, offset, halves, center
    "q4_0": (4, 0, 0, 0, 8), "q4_1": (4, 0, 1, 0, 0), "q2_k": (2, 5, 2, 1, 0), "q4_k": (4, 4, 1, 0, 0), "q5_k": (5, 4, 1, 0, 0), "q6_k": (6, 6, 0, 1, 32), "mxfp4": (4, 3, 0, 0, -1),
    "8 bits, f32": (8, 1, 1, 0, 0)}
CASES = [  # format, M, N, K, gate and up, BM, BN, warps, blocks of a cluster, wgmma
    ("q4_k", 40, 136, 384, 1, 64, 128, 8, 1, 1), ("q4_0", 13, 72, 640, 0, 16, 64, 4, 2, 1), ("q4_1", 9, 64, 2080, 0, 32, 64, 4, 1, 1), ("q6_k", 70, 64, 256, 0, 128, 64, 4, 1, 1),
    ("8 bits, f32", 9, 72, 288, 0, 16, 64, 4, 1, 1), ("q5_k", 9, 72, 256, 0, 16, 64, 4, 1, 0), ("q2_k", 17, 64, 256, 0, 32, 64, 4, 1, 0), ("mxfp4", 9, 64, 160, 1, 32, 64, 4, 1, 0)]
TEST = """
#include <math.h>
#include <random>
void run_cut(const float *x, void *parts);
static std::mt19937 randomness(3);
static std::normal_distribution<float> normal;
static std::vector<u8> random_tiles() {  // any codes; numbers of about 0.05
  std::vector<u8> w((N + 7) / 8 * run_count() * TILE_BYTES);
  for (u8 &v : w) v = randomness();
  const auto half = [] { return (u16)half_from(normal(randomness) / 16); };
  for (size_t tile = 0; tile < w.size(); tile += TILE_BYTES) {
    for (int row = 0; row < 8 && Format::grouped; row++) *(u16 *)&w[tile + Format::blocks_at + row * Format::block_step] = half();
    for (int at = Format::scales_at; at < TILE_BYTES && !Format::grouped; at += Format::number) {
      if (NUMBERS == NUMBERS_F16) *(u16 *)&w[tile + at] = half();
      if (NUMBERS == NUMBERS_F32) *(float *)&w[tile + at] = normal(randomness) / 16;
      if (NUMBERS == NUMBERS_E8M0) w[tile + at] = 120 + randomness() % 8;
    }
  }
  return w;
}
static double weight(const std::vector<u8> &w, int row, int column) {
  const int at = column % 32, j = at / 16 + at / 8 % 2 * 2;  // pairs begin at columns 0, 16, 8 and 24
  const float2 pair = Format::load_pair<Plain>(&w[(row / 8 * run_count() + column / 128) * TILE_BYTES], column / 128, row % 8, at % 8 / 2, column / 32 % 4, j);
  return column % 2 ? pair.y : pair.x;
}
static std::vector<float> run(const std::vector<float> &x, const std::vector<u8> (&w)[2], std::vector<float> residual) {
  std::vector<uint4> parts(((K + 127) / 128 * 2 + (K + 2047) / 2048) * ((M + 7) / 8 * 8) * 24, uint4{~0u, ~0u, ~0u, ~0u});
  std::vector<float> y(M * N, NAN);
  run_cut(x.data(), parts.data());
  launch((M + BM - 1) / BM, (N + BN - 1) / BN, SPLIT, 32 * WARPS, STAGES * (STAGE_BYTES + 16) + BM * 4, [&] {
#if EPILOGUE == 2
    probe((const u8 *)parts.data(), w[0].data(), w[1].data(), y.data(), 0, 0, 0, 0);
#else
    probe((const u8 *)parts.data(), w[0].data(), residual.data(), y.data(), 0, 0, 0, 0);
#endif
  });
  return y;
}
int main() {
  std::vector<float> x(M * K), residual(M * N);
  for (int i = 0; i < M * K; i++) x[i] = normal(randomness) * exp2f(i / K * 37 % 41 - 20) * (i / K != 5);
  for (int i = 0; i < M * N; i++) residual[i] = normal(randomness) * exp2f(i / N * 37 % 41 - 20);
  const std::vector<u8> w[2] = {random_tiles(), random_tiles()};
  const std::vector<float> y = run(x, w, residual);
  double worst = 0;
  for (int at = 0; at < M * N; at++) {
    double sum[2] = {}, squares[2] = {};
    for (int n = 0; n < WEIGHTS; n++)
      for (int k = 0; k < K; k++) {
        const double term = x[at / N * K + k] * weight(w[n], at % N, k);
        sum[n] += term, squares[n] += term * term;
      }
    const double turned = 1 / (1 + exp(-sum[0])), gate = sum[0] * turned;
    const double expected = EPILOGUE == 2 ? gate * sum[1] : residual[at] + sum[0];
    const double size = EPILOGUE == 2 ? (turned + fabs(gate) * (1 - turned)) * sqrt(squares[0]) * fabs(sum[1]) + fabs(gate) * sqrt(squares[1])
                                      : fabs(residual[at]) + sqrt(squares[0]);
    const double off = fabs(expected - y[at]) / (size + 1e-25);
    worst = off <= worst ? worst : off;  // NaN counts
    if (!(off < 2e-6)) return printf("element %d: %g, expected %g\\n", at, y[at], expected), 1;
  }
  printf("tiles of %d bits, numbers %d, offset %d, wgmma %d: %d tokens, %d rows, %d columns, epilogue %d: within %.1g\\n", BITS, NUMBERS, OFFSET, WGMMA, M, N, K, EPILOGUE, worst);
  for (int i = 0; i < M * K; i++)
    if (i / K != 1) x[i] = normal(randomness) * 1e6f;
  const std::vector<float> again = run(x, w, residual);
  if (memcmp(&again[N], &y[N], N * 4)) return printf("token 1 has other bits beside other tokens\\n"), 1;
}
"""


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
        for form, m, n, k, pair, bm, bn, warps, split, wgmma in CASES:
            (path / "test.cpp").write_text(product(2 if pair else 1, sizes="M, N, K, 1", split=split) + TEST)
            fields = dict(zip(("bits", "numbers", "offset", "halves", "center"), FORMATS[form]), bm=bm, bn=bn, stages=4, warps=warps)
            write_config(path, "packed", {**fields, "halves": "true" if fields["halves"] else "false"})
            macros = dict(M=m, N=n, K=k, **({"__CUDA_ARCH_FEAT_SM90_ALL": 1} if wgmma else {}))
            command = [*common, f"-I{path}", "-D__CUDA_ARCH__=900", *(f"-D{macro}={value}" for macro, value in macros.items())]
            subprocess.run([*command, path / "cut.cpp", path / "test.cpp", "-o", path / "test"], check=True)
            subprocess.run([path / "test"], check=True, timeout=60)


if __name__ == "__main__":
    main()
