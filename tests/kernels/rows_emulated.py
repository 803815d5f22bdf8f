#!/usr/bin/env python3
"""Runs kernels of kernels/cuda/rows.cu on a CPU (tests/kernels/packed_emulated.hpp), and compares them with f64 results.

  tests/kernels/rows_emulated.py [C++ COMPILER]

Exit status 77: there is no compiler.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

from emulated_kernels import compile_command, write_config, write_kernels

LAYERNORM_CASES = [  # ROWS, WIDTH, warps of a row, GAINS, HAS: 1 gain, 2 bias
    (19, 64, 1, 1, 3), (12, 20, 1, 3, 1), (3, 1000, 8, 1, 2), (5, 2052, 8, 1, 0), (9, 512, 1, 1, 3)]
LAYERNORM = """
#include <random>
int main() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(ROWS * WIDTH), gain(HAS & 1 ? GAINS * WIDTH : 0), bias(HAS & 2 ? WIDTH : 0), y((ROWS + 1) * WIDTH, -7);
  for (auto *all : {&x, &gain, &bias})
    for (float &v : *all) v = normal(random);
  for (float &v : x) v += 30;  // the mean of the squares minus the square of the mean would lose digits
  launch((ROWS * ROW_WARPS + 7) / 8, 1, 1, 256, 0, [&] { probe(x.data(), gain.data(), bias.data(), y.data(), ROWS, WIDTH, GAINS, HAS); });
  for (int row = 0; row < ROWS; row++) {
    double mean = 0, squares = 0;
    for (int i = 0; i < WIDTH; i++) mean += (double)x[row * WIDTH + i] / WIDTH;
    for (int i = 0; i < WIDTH; i++) squares += (x[row * WIDTH + i] - mean) * (x[row * WIDTH + i] - mean);
    for (int i = 0; i < WIDTH; i++) {
      double expected = (x[row * WIDTH + i] - mean) / sqrt(squares / WIDTH + config.norm_eps);
      if (HAS & 1) expected *= gain[row % GAINS * WIDTH + i];
      if (HAS & 2) expected += bias[i];
      if (!(fabs(expected - y[row * WIDTH + i]) < 2e-5)) return printf("row %d, column %d: %g, expected %g\\n", row, i, y[row * WIDTH + i], expected), 1;
    }
  }
  for (int i = 0; i < WIDTH; i++)
    if (y[ROWS * WIDTH + i] != -7) return printf("the row after the last was written\\n"), 1;
  printf("layer norm: %d rows of %d\\n", ROWS, WIDTH);
}
"""
RMSNORM_CASES = [(19, 64, 1, 1), (12, 20, 1, 3), (10, 1000, 8, 2), (9, 64, 1, 0)]  # ROWS, WIDTH, warps of a row, gains
RMSNORM = """
#include <random>
int main() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(ROWS * WIDTH), gain(GAINS * WIDTH), y((ROWS + 1) * WIDTH, -7);
  for (auto *all : {&x, &gain})
    for (float &v : *all) v = normal(random);
  launch((ROWS * ROW_WARPS + 7) / 8, 1, 1, 256, 0, [&] { probe(x.data(), gain.data(), x.data(), y.data(), ROWS, WIDTH, 0); });
  for (int row = 0; row < ROWS; row++) {
    double squares = 0;
    for (int i = 0; i < WIDTH; i++) squares += (double)x[row * WIDTH + i] * x[row * WIDTH + i];
    for (int i = 0; i < WIDTH; i++) {
      const double expected = x[row * WIDTH + i] / sqrt(squares / WIDTH + config.norm_eps) * (GAINS ? gain[row % (GAINS + !GAINS) * WIDTH + i] : 1);
      if (!(fabs(expected - y[row * WIDTH + i]) < 2e-5)) return printf("row %d, column %d: %g, expected %g\\n", row, i, y[row * WIDTH + i], expected), 1;
    }
  }
  for (int i = 0; i < WIDTH; i++)
    if (y[ROWS * WIDTH + i] != -7) return printf("the row after the last was written\\n"), 1;
  printf("rms norm: %d rows of %d, %d gains\\n", ROWS, WIDTH, GAINS);
}
"""
ELEMENTS = """
#include <random>
static double expected(int function, double v, const float *numbers) {
  const double number = numbers[0];
  switch (function) {
    case 0: return v / (1 + exp(-v));
    case 1: return 0.5 * v * (1 + erf(v / sqrt(2)));
    case 2: return 0.5 * v * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    case 3: return fmax(v, 0);
    case 4: return fmax(v, 0) * fmax(v, 0);
    case 5: return v > 0 ? number * v * v + numbers[2] * v : (expm1(fmin(v, numbers[3])) - v) * numbers[1] + numbers[2] * v;
    case 6: return 1 / (1 + exp(-v));
    case 7: return number * tanh(v / number);
    case 8: return fmin(fmax(v, -number), number);
    case 9: return v * number;
    default: return v;
  }
}
int main() {
  enum { ROWS = 3 };
  const float numbers[] = {0.75f, 1.25f, 0.5f, -1e-6f};
  const int shapes[][5] = {{1028, 1028, 0, 1028, 0}, {64, 136, 72, 136, 4}};  // width, stride and start of x and of the other operand
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const auto &s : shapes)
    for (int function = 0; function < 11; function++)
      for (int combination = 0; combination < 5; combination++) {
        const int width = s[0], biases = (function + combination) % 4;
        std::vector<float> x(ROWS * s[1]), other(combination >= 3 ? ROWS : combination ? ROWS * s[3] : 0), bias(biases & 1 ? width : 0), other_bias(biases & 2 ? width : 0),
            y((ROWS + 1) * width, -7);
        for (auto *all : {&x, &other, &bias, &other_bias})
          for (float &v : *all) v = normal(random) * 2;
        int bits[4];
        memcpy(bits, numbers, sizeof bits);
        launch((width + 1023) / 1024, ROWS, 1, 256, 0, [&] {
          probe(x.data(), bias.data(), other.data(), other_bias.data(), y.data(), width, s[1], s[2], s[3], s[4], function | combination << 8 | biases << 16, bits[0], bits[1], bits[2], bits[3]);
        });
        for (int i = 0; i < (ROWS + 1) * width; i++) {
          const int row = i / width, column = i % width;
          double wanted = -7;
          if (row < ROWS) {
            wanted = expected(function, (double)x[row * s[1] + s[2] + column] + (biases & 1 ? bias[column] : 0), numbers);
            const double u = combination == 4 ? 1 / (1 + exp(-(double)other[row])) : combination == 3 ? other[row] : combination ? other[row * s[3] + s[4] + column] + (double)(biases & 2 ? other_bias[column] : 0) : 0;
            wanted = combination == 1 ? wanted + u : combination ? wanted * u : wanted;
          }
          if (!(fabs(y[i] - wanted) <= 2e-6 * (1 + fabs(wanted)))) return printf("function %d, combination %d, element %d: %g, expected %g\\n", function, combination, i, y[i], wanted), 1;
        }
      }
  printf("elements: good\\n");
}
"""


def run(compiler, path, program, sizes, fields={}):
    write_config(path, "rows", fields)
    (path / "test.cpp").write_text(f'#include "packed_emulated.hpp"\nstatic float __int_as_float(int word) {{ return __uint_as_float(word); }}\nstatic unsigned min(unsigned a, unsigned b) {{ return a < b ? a : b; }}\n#include "rows.cu"\n{program}')
    command = [*compiler, f"-I{path}", "-DNAME=probe", *(f"-D{name}={value}" for name, value in sizes.items())]
    subprocess.run([*command, path / "test.cpp", "-o", path / "test"], check=True)
    subprocess.run([path / "test"], check=True, timeout=60)


def main():
    compiler = sys.argv[1] if len(sys.argv) > 1 else "c++"
    if not shutil.which(compiler):
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        command = compile_command(compiler, path)
        write_kernels(path)
        for case in RMSNORM_CASES:
            run(command, path, RMSNORM, dict(zip(("ROWS", "WIDTH", "ROW_WARPS", "GAINS"), case), NORM=1), dict(norm_eps="0.5f", warps=case[2], gains=case[3]))
        for case in LAYERNORM_CASES:
            run(command, path, LAYERNORM, dict(zip(("ROWS", "WIDTH", "ROW_WARPS", "GAINS", "HAS"), case), NORM=1, LAYERNORM=1), dict(norm_eps="0.5f", warps=case[2]))
        run(command, path, ELEMENTS, dict(ELEMENTS=1))


if __name__ == "__main__":
    main()
