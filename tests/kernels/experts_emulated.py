#!/usr/bin/env python3
"""Runs the router of kernels/cuda/experts.cu (ROUTE) on a CPU (tests/kernels/packed_emulated.hpp), and compares it with f64 results.

Weights by a softmax or by sigmoids, with and without a correction of the choice, sum_to_one, sum_eps, weight_scale and spread.

  tests/kernels/experts_emulated.py [C++ COMPILER]

Exit status 77: there is no compiler.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

from emulated_kernels import BODIES, compile_command, write_config, write_kernels

CASES = [  # experts, used, sum_to_one, sigmoid, correction, sum_eps, weight_scale, spread
    (64, 8, 1, 0, 0, 0, 1, 0), (37, 4, 0, 0, 0, 0, 1, 0), (32, 4, 1, 1, 1, 1e-6, 1, 0), (70, 5, 1, 1, 1, 0.5, 2.5, 0), (6, 6, 0, 1, 0, 0, 1.7, 0),
    (40, 3, 1, 0, 1, 0, 1, 0), (256, 8, 0, 0, 1, 0, 0.25, 0), (16, 2, 0, 0, 0, 0, 1, 0.02), (37, 2, 0, 0, 0, 0, 1, 0.625), (6, 2, 0, 0, 0, 0, 1.5, 0.25)]
BODY = {"float load_relaxed_in_order(const float *word)": "return *word;"}
PROGRAM = """
#include "packed_emulated.hpp"
#include <algorithm>
#include <random>
static unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
static int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
static unsigned __reduce_max_sync(unsigned, unsigned x) {
  for (int i = 1; i < 32; i <<= 1) x = std::max(x, __shfl_xor_sync(~0u, x, i));
  return x;
}
static int __reduce_min_sync(unsigned, int x) {
  for (int i = 1; i < 32; i <<= 1) x = std::min(x, __shfl_xor_sync(~0u, x, i));
  return x;
}
#include "experts.cu"

enum { TOKENS = 13 };
static float scores[TOKENS][EXPERTS], biases[EXPERTS];

// The weights of a token's experts.
static std::vector<double> weights_of(const float *row) {
  std::vector<double> weights(EXPERTS);
  double sum = 0;
  for (int e = 0; e < EXPERTS; e++) sum += weights[e] = config.sigmoid ? 1 / (1 + exp(-(double)row[e])) : exp((double)row[e]);
  for (double &w : weights) w /= config.sigmoid ? 1 : sum;
  return weights;
}
static int check(int token, const int *routing) {
  const std::vector<double> weights = weights_of(scores[token]);
  std::vector<int> order(EXPERTS);
  const auto choice = [&](int e) { return (CORRECTION ? weights[e] : scores[token][e]) + biases[e]; };
  for (int e = 0; e < EXPERTS; e++) order[e] = e;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return choice(a) > choice(b); });
  double sum = 0;
  for (int i = 0; i < USED; i++) sum += weights[order[i]];
  std::vector<double> near(EXPERTS);  // the weight among the experts from this one on that are near it
  for (int i = 0; i < USED; i++) {
    const double best = scores[token][order[i]];
    for (int k = i; k < EXPERTS; k++) {
      const double s = scores[token][order[k]];
      if ((best - s) / std::max(fabs(s), best) <= config.spread) near[i] += exp(s - best);
    }
    near[i] = 1 / near[i];
  }
  for (int i = 0; i < USED; i++) {
    const double wanted = (config.spread > 0 ? near[i] : weights[order[i]]) / (SUM_TO_ONE ? sum + config.sum_eps : 1) * config.weight_scale;
    const float got = __uint_as_float(routing[(TOKENS + token) * USED + i]);
    if (routing[token * USED + i] != order[i]) return printf("token %d: expert %d, expected %d\\n", token, routing[token * USED + i], order[i]), 1;
    if (!(fabs(got - wanted) < 1e-6 * config.weight_scale)) return printf("token %d, expert %d: weight %.9g, expected %.9g\\n", token, order[i], got, wanted), 1;
  }
  return 0;
}
int main() {
  std::mt19937 bits(5);
  std::normal_distribution<float> normal;
  for (auto &row : scores) for (float &v : row) v = 2 * normal(bits);
  for (float &v : biases) v = CORRECTION ? 0.3f * normal(bits) : 0;
  int routing[2 * TOKENS * USED];
  std::fill(std::begin(routing), std::end(routing), -7);
  launch((TOKENS + 3) / 4, 1, 1, 128, 0, [&] {
#if CORRECTION
    probe(scores[0], biases, routing, TOKENS);
#else
    probe(scores[0], routing, TOKENS);
#endif
  });
  for (int token = 0; token < TOKENS; token++) if (check(token, routing)) return 1;
  printf("route: %d of %d experts%s%s\\n", USED, EXPERTS, config.sigmoid ? ", sigmoids" : "", CORRECTION ? ", corrected" : "");
}
"""


def main():
    compiler = sys.argv[1] if len(sys.argv) > 1 else "c++"
    if not shutil.which(compiler):
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        common = compile_command(compiler, path)
        write_kernels(path, {**BODIES, **BODY})
        (path / "test.cpp").write_text(PROGRAM)
        for experts, used, sum_to_one, sigmoid, correction, sum_eps, weight_scale, spread in CASES:
            write_config(path, "experts", dict(experts=experts, used=used, sum_to_one=sum_to_one, sigmoid=sigmoid, sum_eps=sum_eps, weight_scale=weight_scale, spread=spread))
            command = [*common, f"-I{path}", "-DNAME=probe", "-DROUTE=1", "-DBATCH=0",
                       *(["-DCORRECTION=1"] if correction else [])]
            subprocess.run([*command, path / "test.cpp", "-o", path / "test"], check=True)
            subprocess.run([path / "test"], check=True, timeout=120)


if __name__ == "__main__":
    main()
