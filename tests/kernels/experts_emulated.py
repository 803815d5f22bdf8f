#!/usr/bin/env python3
"""Runs the router of kernels/cuda/experts.cu (ROUTE) and its products with small matrices (SCORES) on a CPU (tests/kernels/packed_emulated.hpp), and compares
them with f64 results.

Weights by a softmax or by sigmoids, with and without a correction of the choice, sum_to_one, sum_eps, weight_scale, spread, factors of experts, and groups.

  tests/kernels/experts_emulated.py [C++ COMPILER]

Exit status 77: there is no compiler.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

from emulated_kernels import BODIES, compile_command, write_config, write_kernels

CASES = [  # experts, used, sum_to_one, sigmoid, correction, sum_eps, weight_scale, spread; a negative number of experts: with factors; groups, groups that a token uses, by_best
    (64, 8, 1, 0, 0, 0, 1, 0), (-128, 8, 1, 0, 0, 0, 1, 0), (-37, 4, 1, 1, 1, 0.5, 2.5, 0), (37, 4, 0, 0, 0, 0, 1, 0), (32, 4, 1, 1, 1, 1e-6, 1, 0), (70, 5, 1, 1, 1, 0.5, 2.5, 0), (6, 6, 0, 1, 0, 0, 1.7, 0),
    (40, 3, 1, 0, 1, 0, 1, 0), (256, 8, 0, 0, 1, 0, 0.25, 0), (16, 2, 0, 0, 0, 0, 1, 0.02), (37, 2, 0, 0, 0, 0, 1, 0.625), (6, 2, 0, 0, 0, 0, 1.5, 0.25),
    (256, 8, 1, 1, 1, 1e-20, 2.5, 0, 8, 4, 0), (160, 6, 0, 0, 0, 0, 16, 0, 8, 3, 1), (8, 3, 1, 0, 0, 0, 1.7, 0, 4, 2, 0), (-72, 4, 1, 1, 1, 0.5, 2.5, 0, 3, 1, 1)]
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
static float scores[TOKENS][EXPERTS], biases[EXPERTS], own_factors[EXPERTS];

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
  std::vector<bool> kept(EXPERTS, config.expert_groups <= 1);
  const auto choice = [&](int e) { return kept[e] ? (CORRECTION || config.expert_groups > 1 ? weights[e] : scores[token][e]) + biases[e] : -1e30; };
  const int size = EXPERTS / config.expert_groups;
  std::vector<int> groups(config.expert_groups);
  std::vector<double> sums(config.expert_groups);
  for (int g = 0; g < config.expert_groups && config.expert_groups > 1; g++) {
    std::vector<double> members;
    for (int e = g * size; e < (g + 1) * size; e++) members.push_back(weights[e] + biases[e]);
    std::sort(members.rbegin(), members.rend());
    groups[g] = g, sums[g] = members[0] + (config.groups_by_best ? 0 : members[1]);
  }
  std::stable_sort(groups.begin(), groups.end(), [&](int a, int b) { return sums[a] > sums[b]; });
  for (int i = 0; i < config.groups_used && config.expert_groups > 1; i++)
    for (int e = 0; e < size; e++) kept[groups[i] * size + e] = true;
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
    const double wanted = (config.spread > 0 ? near[i] : weights[order[i]]) / (SUM_TO_ONE ? sum + config.sum_eps : 1) * config.weight_scale * (FACTORS ? own_factors[order[i]] : 1);
    const float got = __uint_as_float(routing[(TOKENS + token) * USED + i]);
    if (routing[token * USED + i] != order[i]) return printf("token %d: expert %d, expected %d\\n", token, routing[token * USED + i], order[i]), 1;
    if (!(fabs(got - wanted) < 2e-6 * config.weight_scale)) return printf("token %d, expert %d: weight %.9g, expected %.9g\\n", token, order[i], got, wanted), 1;
  }
  return 0;
}
int main() {
  std::mt19937 bits(5);
  std::normal_distribution<float> normal;
  for (auto &row : scores) for (float &v : row) v = 2 * normal(bits);
  for (float &v : biases) v = CORRECTION ? 0.3f * normal(bits) : 0;
  for (float &v : own_factors) v = fabsf(normal(bits));
  int routing[2 * TOKENS * USED];
  std::fill(std::begin(routing), std::end(routing), -7);
  launch((TOKENS + 3) / 4, 1, 1, 128, 0, [&] {
    probe(scores[0],
#if CORRECTION
          biases,
#endif
#if FACTORS
          own_factors,
#endif
          routing, TOKENS);
  });
  for (int token = 0; token < TOKENS; token++) if (check(token, routing)) return 1;
  printf("route: %d of %d experts%s%s%s\\n", USED, EXPERTS, config.sigmoid ? ", sigmoids" : "", CORRECTION ? ", corrected" : "", FACTORS ? ", with factors" : "");
  if (config.expert_groups > 1) printf("  of %d of %d groups\\n", config.groups_used, config.expert_groups);
}
"""

SCORES_CASES = [  # tokens, rows, columns, heads, type of the matrix, SCORES_VECTOR; numbers of a head of x and the first that is multiplied, if these are not the columns
    (3, 37, 64, 1, "F32", 1), (19, 37, 132, 1, "F32", 0), (2, 16, 4, 1, "BF16", 1), (17, 5, 12, 1, "F16", 0), (3, 20, 64, 3, "BF16", 1), (18, 40, 160, 3, "BF16", 0), (3, 20, 64, 3, "BF16", 1, 96, 0), (18, 40, 160, 2, "F32", 0, 224, 8)]
SCORES_PROGRAM = """
#include "packed_emulated.hpp"
#include <algorithm>
#include <random>
using std::min;
#include "experts.cu"
int main() {
  std::mt19937 bits(5);
  std::normal_distribution<float> normal;
  std::vector<float> x(TOKENS * HEADS * X_DIM), y(TOKENS * HEADS * N + 1, -7);
  std::vector<matrix_t> w(HEADS * N * K);
  std::vector<double> wide(w.size());
  for (float &v : x) v = normal(bits);
  for (size_t i = 0; i < w.size(); i++) {
    if (config.matrix == Dtype::F32) {
      const float v = normal(bits);
      memcpy(&w[i], &v, sizeof w[i]), wide[i] = v;
    } else {
      w[i] = (bits() & 0x83ff) | 0x3c00;
      wide[i] = config.matrix == Dtype::F16 ? half_to_float((unsigned short)w[i]) : half_of((unsigned)w[i], 0);
    }
  }
#if SCORES_VECTOR
  launch((N + 3) / 4, TOKENS, HEADS, 128, 0, [&] { probe(x.data(), w.data(), y.data(), TOKENS); });
#else
  launch((TOKENS + 15) / 16, (N + 31) / 32 * HEADS, 1, 256, 0, [&] { probe(x.data(), w.data(), y.data(), TOKENS); });
#endif
  for (int t = 0; t < TOKENS; t++)
    for (int h = 0; h < HEADS; h++)
      for (int n = 0; n < N; n++) {
        double sum = 0, size = 0;
        for (int k = 0; k < K; k++) {
          const double product = x[(t * HEADS + h) * X_DIM + config.x_start + k] * wide[(h * N + n) * K + k];
          sum += product, size += fabs(product);
        }
        const float got = y[(t * HEADS + h) * N + n];
        if (!(fabs(got - sum) <= 1e-6 * size)) return printf("token %d, head %d, row %d: %.9g, expected %.9g\\n", t, h, n, got, sum), 1;
      }
  if (y.back() != -7) return printf("the kernel wrote past the result\\n"), 1;
  printf("scores: %d tokens, %d heads of %d x %d\\n", TOKENS, HEADS, N, K);
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
        for experts, used, sum_to_one, sigmoid, correction, sum_eps, weight_scale, spread, *groups in CASES:
            write_config(path, "experts", dict(experts=abs(experts), used=used, sum_to_one=sum_to_one, sigmoid=sigmoid, sum_eps=sum_eps, weight_scale=weight_scale, spread=spread,
                                                **dict(zip(("expert_groups", "groups_used", "groups_by_best"), groups))))
            command = [*common, f"-I{path}", "-DNAME=probe", "-DROUTE=1", "-DBATCH=0",
                       *(["-DCORRECTION=1"] if correction else []), *(["-DFACTORS=1"] if experts < 0 else [])]
            subprocess.run([*command, path / "test.cpp", "-o", path / "test"], check=True)
            subprocess.run([path / "test"], check=True, timeout=120)
        (path / "test.cpp").write_text(SCORES_PROGRAM)
        for tokens, n, k, heads, kind, vector, *part in SCORES_CASES:
            write_config(path, "experts", dict(n=n, k=k, matrix=f"Dtype::{kind}", heads=heads, **dict(zip(("x_dim", "x_start"), part))))
            command = [*common, f"-I{path}", "-DNAME=probe", "-DSCORES_VECTOR=1" if vector else "-DSCORES=1", f"-DTOKENS={tokens}"]
            subprocess.run([*command, path / "test.cpp", "-o", path / "test"], check=True)
            subprocess.run([path / "test"], check=True, timeout=120)


if __name__ == "__main__":
    main()
