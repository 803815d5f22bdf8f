#!/usr/bin/env python3
"""Runs kernels/cuda/recurrent.cu and HEAD_COLUMNS of rows.cu on a CPU (tests/packed_emulated.hpp), and compares them with f64 results.

Three sequences: one that starts, one that continues and keeps its state in place, and one whose new state has another number. Padding follows. The step is
run as a whole and in two parts, which must give the same bits, and once with numbers of states that do not exist, which are those of state 0.

  tests/recurrent_emulated.py [C++ COMPILER]

Exit status 77: there is no compiler.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

from emulated_kernels import compile_command, write_config, write_kernels

# Words of |kv|: 3 window pages of 40 words, 2 pages of 24, 6 states.
PRELUDE = """
#include "packed_emulated.hpp"
#include <algorithm>
#include <random>
#define __align__(n)
static float __fadd_rn(float a, float b) { return a + b; }
static int min(int a, int b) { return a < b ? a : b; }
static int max(int a, int b) { return a > b ? a : b; }
#include "recurrent.cu"

enum { N = 48, W = 4, STATES = 6, SLOTS = 4, PAGES_AT = 3 * 40 + 2 * 24 };
struct Run { int slot, first, tokens, position; };  // a segment
static std::vector<int> batch_of(const std::vector<Run> &runs, const int (&states)[SLOTS][2]) {
  std::vector<int> batch(MLX_STEP_PAGES_AT(N, W) + 2 * SLOTS, 0);
  int tokens = 0;
  for (size_t i = 0; i < runs.size(); i++) {
    memcpy(&batch[MLX_STEP_SEGMENTS_AT(N) + 4 * i], &runs[i], sizeof runs[i]);
    tokens = std::max(tokens, runs[i].first + runs[i].tokens);
  }
  batch[MLX_STEP_TOKEN_COUNT] = tokens;
  batch[MLX_STEP_SEGMENT_COUNT] = runs.size();
  batch[MLX_STEP_SLOT_COUNT] = SLOTS;
  batch[MLX_STEP_POOL_PAGES] = 2;
  batch[MLX_STEP_WINDOW_POOL_PAGES] = 3;
  batch[MLX_STEP_STATES] = STATES;
  batch[MLX_STEP_AT_STATES] = MLX_STEP_PAGES_AT(N, W);
  memcpy(&batch[MLX_STEP_PAGES_AT(N, W)], states, sizeof states);
  return batch;
}

static std::mt19937 random_bits(3);
static std::vector<float> numbers(size_t count, float scale = 1) {
  std::normal_distribution<float> normal;
  std::vector<float> all(count);
  for (float &v : all) v = normal(random_bits) * scale;
  return all;
}
static void fail(const char *what, int at, double got, double expected) {
  printf("%s %d: %.9g, expected %.9g\\n", what, at, got, expected);
  exit(1);
}

enum { STATE_AT = 16, STATE_WORDS = STATE_AT + OWN + 5 };
static float *state_of(std::vector<float> &kv, int number) { return &kv[PAGES_AT + (size_t)number * STATE_WORDS + STATE_AT]; }

// The kernel, and the same in f64: |state| is replaced, |y| are the rows of the segment.
static void call(const std::vector<int> &batch, std::vector<float> &kv, std::vector<float> &y);
static void expect(const Run &run, std::vector<double> &state, double *y);

// Rows before |run| belong to an earlier part of the same step.
static void check(const std::vector<Run> &runs, const int (&states)[SLOTS][2], std::vector<float> &kv, std::vector<float> &y) {
  std::vector<float> before = kv;
  std::fill(y.begin(), y.end(), NAN);
  const std::vector<int> batch = batch_of(runs, states);
  call(batch, kv, y);
  std::vector<bool> changed(kv.size());
  for (const Run &run : runs) {
    const auto valid = [](int number) { return number < 0 || number >= STATES ? 0 : number; };
    const int from = valid(states[run.slot][0]), to = valid(states[run.slot][1]);
    std::vector<double> state(state_of(before, from), state_of(before, from) + OWN), rows(run.tokens * WIDTH);
    if (!run.position) std::fill(state.begin(), state.end(), 0);
    expect(run, state, rows.data());
    for (int i = 0; i < run.tokens * WIDTH; i++)
      if (!(fabs(y[run.first * WIDTH + i] - rows[i]) < 2e-5)) fail("result", run.first * WIDTH + i, y[run.first * WIDTH + i], rows[i]);
    for (int i = 0; i < OWN; i++) {
      if (!(fabs(state_of(kv, to)[i] - state[i]) < 2e-5)) fail("state", to * OWN + i, state_of(kv, to)[i], state[i]);
      changed[state_of(kv, to) - kv.data() + i] = true;
    }
  }
  for (int i = batch[MLX_STEP_TOKEN_COUNT] * WIDTH; i < N * WIDTH; i++)
    if (y[i] != 0) fail("padding", i, y[i], 0);
  if (y[N * WIDTH] == y[N * WIDTH]) fail("row after the last", N, y[N * WIDTH], NAN);
  for (size_t i = 0; i < kv.size(); i++)
    if (!changed[i] && kv[i] != before[i]) fail("kv", i, kv[i], before[i]);
}

static void check_all() {
  const std::vector<float> start = numbers(PAGES_AT + STATES * STATE_WORDS);
  std::vector<float> whole = start, parts = start, wrong = start, y((N + 1) * WIDTH), y_first = y, y_rest = y, y_wrong = y;
  // Slot 1 has the most tokens: three chunks of the delta rule. Slot 3 has one.
  check({{1, 0, 37, 0}, {3, 37, 1, 9}, {0, 38, 2, 5}}, {{2, 2}, {5, 4}, {0, 0}, {1, 3}}, whole, y);
  check({{1, 0, 18, 0}, {3, 37, 1, 9}, {0, 38, 1, 5}}, {{2, 2}, {5, 4}, {0, 0}, {1, 3}}, parts, y_first);
  check({{1, 18, 19, 18}, {0, 39, 1, 6}}, {{2, 2}, {4, 4}, {0, 0}, {1, 3}}, parts, y_rest);
  if (memcmp(whole.data(), parts.data(), whole.size() * 4)) fail("bits of the states of two parts", 0, 0, 0);
  if (memcmp(&y[0], &y_first[0], 18 * WIDTH * 4) || memcmp(&y[18 * WIDTH], &y_rest[18 * WIDTH], 19 * WIDTH * 4) || memcmp(&y[39 * WIDTH], &y_rest[39 * WIDTH], WIDTH * 4))
    fail("bits of the results of two parts", 0, 0, 0);
  check({{2, 0, 3, 4}}, {{0, 0}, {0, 0}, {-1, STATES}, {0, 0}}, wrong, y_wrong);
  // Segments that no step has change nothing.
  wrong = start;
  call(batch_of({{SLOTS, 0, 3, 0}, {-1, 0, 3, 0}, {1, N - 1, 2, 0}, {1, 0, -1, 0}, {1, -1, 2, 0}, {1, 0, 2, -1}}, {{2, 2}, {5, 4}, {0, 0}, {1, 3}}), wrong, y_wrong);
  if (memcmp(wrong.data(), start.data(), start.size() * 4)) fail("kv after wrong segments", 0, 0, 0);
}
"""
CONVOLVE_CASES = [  # taps, groups, bias, SiLU, channels
    (3, 8, 1, 0, 40), (4, 1, 0, 1, 300), (2, 1, 1, 1, 5), (7, 8, 0, 1, 32)]
CONVOLVE = """
static std::vector<float> x = numbers(N * WIDTH), weight = numbers(WIDTH * TAPS), bias = numbers(config.biased ? WIDTH : 0);
static void call(const std::vector<int> &batch, std::vector<float> &kv, std::vector<float> &y) {
  launch((WIDTH + CHANNELS - 1) / CHANNELS, 2, 1, THREADS, 0, [&] { probe(x.data(), weight.data(), bias.data(), batch.data(), kv.data(), y.data(), N, WIDTH, 40, 24, STATE_WORDS, STATE_AT); });
}
static void expect(const Run &run, std::vector<double> &state, double *y) {
  std::vector<double> rows = state;  // the rows of the state, then those of x
  rows.insert(rows.end(), &x[run.first * WIDTH], &x[(run.first + run.tokens) * WIDTH]);
  for (int i = 0; i < run.tokens * WIDTH; i++) {
    double sum = config.biased ? bias[i % WIDTH] : 0;
    for (int tap = 0; tap < TAPS; tap++) sum += (double)weight[i % WIDTH * TAPS + tap] * rows[i + tap * WIDTH];
    y[i] = config.silu ? sum / (1 + exp(-sum)) : sum;
  }
  state.assign(rows.end() - OWN, rows.end());
}
int main() {
  check_all();
  printf("convolve: %d taps, %d channels\\n", TAPS, WIDTH);
}
"""
DELTA_CASES = [  # key_dim, value_dim, key heads, value heads, tiled, log_rate
    (16, 24, 2, 4, 1, 0), (128, 8, 2, 4, 0, 1), (20, 40, 1, 1, 0, 1), (256, 4, 1, 1, 0, 1)]
DELTA = """
enum { QKV = 2 * KEY_HEADS * KEYS + WIDTH };
static std::vector<float> qkv = numbers(N * QKV), steps = numbers(N * VALUE_HEADS), betas = numbers(N * VALUE_HEADS), rates = numbers(VALUE_HEADS, 0.5), biases = numbers(VALUE_HEADS);
static void call(const std::vector<int> &batch, std::vector<float> &kv, std::vector<float> &y) {
  launch(VALUE_HEADS * ((VALUE_DIM + COLUMNS - 1) / COLUMNS), 2, 1, THREADS, SHARED_BYTES, [&] {
    probe(qkv.data(), steps.data(), betas.data(), rates.data(), biases.data(), batch.data(), kv.data(), y.data(), N, KEY_HEADS, VALUE_HEADS, VALUE_DIM, 40, 24, STATE_WORDS, STATE_AT);
  });
}
static void expect(const Run &run, std::vector<double> &state, double *y) {
  for (int i = 0; i < run.tokens * VALUE_HEADS; i++) {
    const int row = run.first + i / VALUE_HEADS, head = i % VALUE_HEADS, key_head = config.tiled ? head % KEY_HEADS : head / (VALUE_HEADS / KEY_HEADS);
    const float *q = &qkv[row * QKV + key_head * KEYS], *k = q + KEY_HEADS * KEYS, *v = &qkv[row * QKV + 2 * KEY_HEADS * KEYS + head * VALUE_DIM];
    double qq = config.eps, kk = config.eps, rate = config.log_rate ? -exp(rates[head]) : rates[head];
    for (int r = 0; r < KEYS; r++) qq += (double)q[r] * q[r], kk += (double)k[r] * k[r];
    const double decay = exp(rate * log1p(exp((double)steps[row * VALUE_HEADS + head] + biases[head]))), beta = 1 / (1 + exp(-(double)betas[row * VALUE_HEADS + head]));
    for (int c = 0; c < VALUE_DIM; c++) {
      double *s = &state[head * KEYS * VALUE_DIM + c], seen = 0, sum = 0;
      for (int r = 0; r < KEYS; r++) s[r * VALUE_DIM] *= decay, seen += k[r] / sqrt(kk) * s[r * VALUE_DIM];
      for (int r = 0; r < KEYS; r++) s[r * VALUE_DIM] += k[r] / sqrt(kk) * beta * (v[c] - seen), sum += q[r] / sqrt(qq) * s[r * VALUE_DIM];
      y[(i / VALUE_HEADS) * WIDTH + head * VALUE_DIM + c] = sum * config.scale;
    }
  }
}
int main() {
  if (!config.log_rate)
    for (float &rate : rates) rate = -fabsf(rate);
  steps[3] = 30;  // softplus is the number itself
  check_all();
  printf("delta: keys of %d, values of %d\\n", KEYS, VALUE_DIM);
}
"""
SCAN_CASES = [  # state_size, head_dim, groups, heads, log_rate, limits
    (16, 24, 2, 4, 1, {}), (128, 8, 1, 3, 0, {}), (20, 40, 1, 1, 1, dict(min_step="0.4f", max_step="0.9f")), (256, 4, 2, 2, 1, {})]
SCAN = """
enum { XBC = WIDTH + 2 * GROUPS * KEYS };
static std::vector<float> xbc = numbers(N * XBC), steps = numbers(N * HEADS), rates = numbers(HEADS, 0.5), biases = numbers(HEADS), skips = numbers(HEADS);
static void call(const std::vector<int> &batch, std::vector<float> &kv, std::vector<float> &y) {
  launch(HEADS * ((HEAD_DIM + COLUMNS - 1) / COLUMNS), 2, 1, THREADS, SHARED_BYTES, [&] {
    probe(xbc.data(), steps.data(), rates.data(), biases.data(), skips.data(), batch.data(), kv.data(), y.data(), N, GROUPS, HEADS, HEAD_DIM, 40, 24, STATE_WORDS, STATE_AT);
  });
}
static void expect(const Run &run, std::vector<double> &state, double *y) {
  for (int i = 0; i < run.tokens * HEADS; i++) {
    const int row = run.first + i / HEADS, head = i % HEADS, group = head / (HEADS / GROUPS);
    const float *x = &xbc[row * XBC + head * HEAD_DIM], *b = &xbc[row * XBC + WIDTH + group * KEYS], *c = b + GROUPS * KEYS;
    const double step = log1p(exp((double)steps[row * HEADS + head] + biases[head])), dt = std::min(std::max(step, (double)config.min_step), (double)config.max_step);
    const double decay = exp(dt * (config.log_rate ? -exp(rates[head]) : rates[head]));
    for (int p = 0; p < HEAD_DIM; p++) {
      double *s = &state[head * KEYS * HEAD_DIM + p], sum = (double)skips[head] * x[p];
      for (int r = 0; r < KEYS; r++) s[r * HEAD_DIM] = decay * s[r * HEAD_DIM] + dt * b[r] * x[p], sum += c[r] * s[r * HEAD_DIM];
      y[(i / HEADS) * WIDTH + head * HEAD_DIM + p] = sum;
    }
  }
}
int main() {
  if (!config.log_rate)
    for (float &rate : rates) rate = -fabsf(rate);
  for (size_t i = 0; i < xbc.size(); i++)
    if (i % XBC >= WIDTH) xbc[i] *= 0.25f;  // B and C, so that results stay small
  steps[2] = 30;  // softplus is the number itself
  check_all();
  printf("scan: states of %d, heads of %d\\n", KEYS, HEAD_DIM);
}
"""
CHANNEL_CASES = [  # state_size, channels, log_rate, limits
    (16, 40, 1, {}), (64, 24, 0, dict(min_step="0.4f", max_step="0.9f")), (10, 5, 1, {})]
CHANNEL = """
enum { XBC = WIDTH + 2 * KEYS };
static std::vector<float> xbc = numbers(N * XBC), steps = numbers(N * WIDTH), rates = numbers(WIDTH * KEYS, 0.5), biases = numbers(WIDTH), skips = numbers(WIDTH);
static void call(const std::vector<int> &batch, std::vector<float> &kv, std::vector<float> &y) {
  launch((WIDTH + COLUMNS - 1) / COLUMNS, 2, 1, THREADS, SHARED_BYTES, [&] {
    probe(xbc.data(), steps.data(), rates.data(), biases.data(), skips.data(), batch.data(), kv.data(), y.data(), N, 1, 1, WIDTH, 40, 24, STATE_WORDS, STATE_AT);
  });
}
static void expect(const Run &run, std::vector<double> &state, double *y) {
  for (int i = 0; i < run.tokens * WIDTH; i++) {
    const int row = run.first + i / WIDTH, channel = i % WIDTH;
    const float x = xbc[row * XBC + channel], *b = &xbc[row * XBC + WIDTH], *c = b + KEYS;
    const double step = log1p(exp((double)steps[row * WIDTH + channel] + biases[channel])), dt = std::min(std::max(step, (double)config.min_step), (double)config.max_step);
    double *s = &state[channel * KEYS], sum = (double)skips[channel] * x;
    for (int r = 0; r < KEYS; r++) {
      const double rate = rates[channel * KEYS + r];
      s[r] = exp(dt * (config.log_rate ? -exp(rate) : rate)) * s[r] + dt * b[r] * x, sum += c[r] * s[r];
    }
    y[i] = sum;
  }
}
int main() {
  if (!config.log_rate)
    for (float &rate : rates) rate = -fabsf(rate);
  for (size_t i = 0; i < xbc.size(); i++)
    if (i % XBC >= WIDTH) xbc[i] *= 0.25f;  // B and C, so that results stay small
  steps[2] = 30;  // softplus is the number itself
  check_all();
  printf("scan of channels: states of %d, %d channels\\n", KEYS, WIDTH);
}
"""
COLUMNS = """
#include "packed_emulated.hpp"
static float __int_as_float(int word) { return __uint_as_float(word); }
static unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
#include "rows.cu"
int main() {
  enum { ROWS = 3, HEADS = 5, DIM = 86, START = 7, COUNT = 66 };
  std::vector<float> x(ROWS * HEADS * DIM), y((ROWS + 1) * HEADS * COUNT, -7);
  for (size_t i = 0; i < x.size(); i++) x[i] = i;
  launch((HEADS * COUNT + 255) / 256, ROWS, 1, 256, 0, [&] { probe(x.data(), y.data(), HEADS * COUNT, DIM, START, COUNT); });
  for (int i = 0; i < (ROWS + 1) * HEADS * COUNT; i++) {
    const float wanted = i < ROWS * HEADS * COUNT ? i / COUNT * DIM + START + i % COUNT : -7;
    if (y[i] != wanted) return printf("element %d: %g, expected %g\\n", i, y[i], wanted), 1;
  }
  printf("head columns: good\\n");
}
"""


def run(compiler, path, kernel, program, sizes, fields={}):
    write_config(path, kernel, fields)
    (path / "test.cpp").write_text(program)
    command = [*compiler, f"-I{path}", "-DNAME=probe", *(f"-D{name}={value}" for name, value in sizes.items())]
    subprocess.run([*command, path / "test.cpp", "-o", path / "test"], check=True)
    subprocess.run([path / "test"], check=True, timeout=120)


def main():
    compiler = sys.argv[1] if len(sys.argv) > 1 else "c++"
    if not shutil.which(compiler):
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        command = compile_command(compiler, path)
        write_kernels(path)
        for taps, groups, biased, silu, channels in CONVOLVE_CASES:
            run(command, path, "recurrent", PRELUDE + CONVOLVE, dict(CONVOLVE=1, WIDTH=channels, OWN=(taps - 1) * channels), dict(taps=taps, groups=groups, biased=biased, silu=silu))
        for keys, values, key_heads, value_heads, tiled, log_rate in DELTA_CASES:
            sizes = dict(DELTA=1, KEY_HEADS=key_heads, VALUE_HEADS=value_heads, VALUE_DIM=values, WIDTH=value_heads * values, OWN=value_heads * keys * values)
            run(command, path, "recurrent", PRELUDE + DELTA, sizes, dict(key_dim=keys, log_rate=log_rate, tiled=tiled, scale="0.25f"))
        for size, head_dim, groups, heads, log_rate, limits in SCAN_CASES:
            sizes = dict(SCAN=1, GROUPS=groups, HEADS=heads, HEAD_DIM=head_dim, WIDTH=heads * head_dim, OWN=heads * size * head_dim)
            run(command, path, "recurrent", PRELUDE + SCAN, sizes, dict(key_dim=size, log_rate=log_rate, **limits))
        for size, channels, log_rate, limits in CHANNEL_CASES:
            run(command, path, "recurrent", PRELUDE + CHANNEL, dict(SCAN=1, WIDTH=channels, OWN=channels * size), dict(
                key_dim=size, log_rate=log_rate, **limits, state_rates=1))
        run(command, path, "rows", COLUMNS, dict(HEAD_COLUMNS=1))


if __name__ == "__main__":
    main()
