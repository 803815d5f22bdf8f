#!/usr/bin/env python3
"""Runs the RMS norm and the permutation of kernels/cuda/rows.cu on a CPU (tests/kernels/packed_emulated.hpp): with and without a residual, in the order of the
columns of a product, and with an index outside of the row, which must not lead out of bounds. A norm in an order must have the bits of the norm itself.

Exit status 77: there is no compiler.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from emulated_kernels import COMPILER_FLAGS, ROOT

HEAD = """
#include "packed_emulated.hpp"
#include <algorithm>
template <class T> static T *after_wait(T *pointer) { return pointer; }
static void start_next_kernel() {}
static void wait_for_previous_kernel() {}
static unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
"""
MAIN = """
#define CHECK(condition) if (!(condition)) return printf("order_emulated: line %d: %s, width %d, element %zu\\n", __LINE__, #condition, width, at), 1
static int check(int width, int rows, bool wide) {
  std::vector<float> x(rows * width), gain(width), residual(x.size()), y(x.size()), sum(x.size()), sorted(x.size()), permuted(x.size());
  alignas(16) static int order[4096];
  for (size_t i = 0; i < x.size(); ++i) x[i] = (float)((i * 7919 + 13) % 1009) / 317 - 1.5f, residual[i] = (float)(i % 31) / 7;
  for (int i = 0; i < width; ++i) gain[i] = 0.5f + (float)(i % 17) / 9, order[i] = i * 5 % width;
  const auto norm = [&](bool ordered, int adds, std::vector<float> &out) {
    const float *third = ordered ? (const float *)order : residual.data();
    launch(wide ? rows : (rows + 7) / 8, 1, 1, 256, 0, [&, third] {
      (wide ? ordered ? ordered_wide : norm_wide : ordered ? ordered_narrow : norm_narrow)(x.data(), gain.data(), third, out.data(), rows, width, adds);
    });
  };
  norm(false, 0, y), norm(false, 1, sum), norm(true, 0, sorted);
  launch((width + 1023) / 1024, rows, 1, 256, 0, [&] { permute(x.data(), order, permuted.data(), width); });
  for (int row = 0; row < rows; ++row) {
    double square = 0;
    for (int i = 0; i < width; ++i) square += (double)x[row * width + i] * x[row * width + i];
    const double scale = 1 / sqrt(square / width + NORM_EPS);
    for (int i = 0; i < width; ++i) {
      const size_t at = row * width + i, from = row * width + order[i];
      CHECK(fabs(y[at] - x[at] * scale * gain[i]) <= 1e-5);
      CHECK(sum[at] == residual[at] + y[at]);
      CHECK(sorted[at] == y[from]);
      CHECK(permuted[at] == x[from]);
    }
  }
  order[0] = -1, order[width - 1] = width;  // of a damaged file: the last column
  launch((width + 1023) / 1024, rows, 1, 256, 0, [&] { permute(x.data(), order, permuted.data(), width); });
  const size_t at = 0;
  CHECK(permuted[0] == x[width - 1] && permuted[width - 1] == x[width - 1]);
  printf("%d rows of %d columns: norm, norm in an order and permutation\\n", rows, width);
  return 0;
}
int main() { return check(256, 11, false) || check(512, 8, false) || check(1536, 3, true) || check(4096, 1, true) || check(1028, 2, true); }
"""
KERNELS = {"norm_narrow": ("NORM", 1, "false"), "norm_wide": ("NORM", 8, "false"), "ordered_narrow": ("NORM", 1, "true"), "ordered_wide": ("NORM", 8, "true"),
           "permute": ("PERMUTE", 8, "false")}  # macro, warps of a row, ordered


def program():
    text = re.sub(r'#include "[^"]+"[^\n]*\n', "", (ROOT / "kernels/cuda/rows.cu").read_text())
    text = text.replace('extern "C" ', "")
    parts = [HEAD]
    for name, (macro, warps, ordered) in KERNELS.items():  # a namespace for each: they have functions and constants of the same names
        config = f"struct Config {{ float norm_eps = 1e-5f; int warps = {warps}; bool ordered = {ordered}; int gains = 1; }};\nconstexpr Config config;\n"
        parts += [f"#define NAME {name}\n#define {macro} 1\nnamespace of_{name} {{\n", config, text, f"}}\nusing of_{name}::{name};\n#undef NAME\n#undef {macro}\n"]
    return "".join(parts) + "#define NORM_EPS 1e-5\n" + MAIN


def main():
    compiler = "c++"
    if not shutil.which(compiler):
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        source, binary = pathlib.Path(folder) / "test.cpp", pathlib.Path(folder) / "test"
        source.write_text(program())
        subprocess.run([compiler, *COMPILER_FLAGS, source, "-o", binary], check=True)
        sys.exit(subprocess.run([binary], timeout=600).returncode)


if __name__ == "__main__":
    main()
