#!/usr/bin/env python3
"""Runs the whole decode kernel (kernels/cuda/decode.cu) on a CPU (tests/kernels/fiber_emulated.hpp), three blocks that exchange activations, on fixtures of
tests/fixtures/wide: one step for each token of a prompt, then a burst. Tokens and logits must equal those of Hugging Face (16-bit weights), or of a network
in f64 with the weights that the kernel's load1() returns (quantized weights).

  tests/kernels/decode_network_emulated.py DECODE_CASE [FIXTURE:KIND[:PROMPT[:LAYERS[:WIDTH]]]...]

WIDTH is that of the shared expert; of Qwen3.5 it is the number of value heads, which together are as wide as the queries.
KIND is bf16, q8_0, q4_1, gptq (act order, the head has bf16 weights), or one of MIXTURES: some matrices are bf16 or Q4_1, the others Q8_0. PROMPT is a number
in the goldens, LAYERS the number of layers that are used, both LAYERS and WIDTH of quantized weights.

DECODE_CASE is the program of tests/kernels/decode_case.c. Inline assembly is replaced by C++ that does the same; a function that is no longer found is an error.
Exit status 77: there is no compiler.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from emulated_kernels import compile_command, write_kernels

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASES = ("llama-yarn:bf16 gemma3:bf16 apertus:bf16 apertus:q4_1 arcee:bf16 starcoder2:bf16 olmo:bf16 gpt2:bf16 stablelm:bf16 cohere2:bf16 phi:bf16 gpt_neox:bf16 stablelm-parallel:bf16 "
         "mimo:q4_1 starcoder2:q8_0 arcee:q4_1 cohere2:q8_0 phi:q4_1 gpt_neox:q8_0 gpt2:q8_0 phi:mixed cohere2:mixed "
         "gpt_neox:q8_0:0:1 olmoe:bf16 olmoe:q8_0 qwen2_moe:bf16 qwen2_moe:q8_0 qwen2_moe:shared qwen2_moe:shared16 "
         "qwen2_moe:q8_0:0::17408 qwen3_5:bf16:2 qwen3_5:q8_0 qwen3_5:q4_1:0::8 qwen3_5:delta2:0::8 qwen3_5:delta16 lfm2:bf16 lfm2:q8_0 cohere2:bf16:2 mimo:gptq phi:gptq gpt_neox:gptq").split()  # prompt 2 is so long that blocks share the positions of a head
# kind: for each other kind, the matrices that have it, the fields that are copied from it, and those that are set (None: removed)
ROWS16 = "{16,0,0,0,0}"
MIXTURES = {
    "mixed": {"bf16": ("qkvo", [], {"qkv_tiles": ROWS16, "o_tiles": ROWS16, "dtype": "Dtype::BF16"})},
    "shared": {"q4_1": (["shared_gate", "shared_up", "shared_down"], ["shared_gate_tiles", "shared_down_tiles", "offsets"], {}),
               "bf16": (["shared_score"], ["score_dtype"], {"shared_score_tiles": None})},
    # As in Q4_K_M, the rows of z, beta and step have the second format of their role.
    "delta2": {"q4_1": (["delta_z", "delta_beta", "delta_step"], ["offsets"], {"recurrent_tiles_2": "{4,0,1,0,0}", "second_formats": "1", "delta_rows_format": "2"})},
    "delta16": {"bf16": (["delta_beta", "delta_step"], [], {"delta_rows_format": None, "delta_tiles": None, "delta_dtype": "Dtype::BF16"})},
    "shared16": {"bf16": (["shared_gate", "shared_up", "shared_down"], [], {"shared_gate_tiles": ROWS16, "shared_down_tiles": ROWS16, "dtype": "Dtype::BF16"})},
}
TOKENS = 24  # more than a page and than the windows of the fixtures

BODIES = {  # of functions with inline assembly
    "u16 narrow(float x)": "return bf16_of(x);",
    "u32 narrow2(float low, float high)": "return bf16_of(low) | bf16_of(high) << 16;",
    "void multiply(float (&sum)[4], uint4 a, uint2 b)": "multiply_bf16(sum, a, b);",
    "void multiply_once(float (&product)[4], uint4 a, uint2 b)": "for (float &p : product) p = 0; multiply_bf16(product, a, b);",
    "void publish(float *word, float value)": "*(volatile float *)word = value;",
    "float load_relaxed(const float *word)": "return load_word(word);",
    "float4 load_relaxed4(const float *words)": "return {load_word(words), load_word(words + 1), load_word(words + 2), load_word(words + 3)};",
    "float2 receive2(const float *words)": "float2 v; do v = {load_word(words), load_word(words + 1)}; while (is_empty(v.x) || is_empty(v.y)); return v;",
    "u32 shared_address(const void *p)": "return (u32)((char *)p - shared());",
    "void barrier_init(u64 *barrier, int count)": "mbarrier_of(barrier) = {(short)count, (short)count, 0, 0};",
    "void barrier_arrive(u64 *barrier)": "arrive(barrier, 1, 0);",
    "bool barrier_passed(u64 *barrier, u32 parity)": "return passed(barrier, parity);",
    "void copy_bytes(u8 *to, const u8 *from, int bytes, int nth, int lanes,": "if (nth) return; memcpy(to, from, bytes); arrive(full, 0, -bytes);",
    "void sync_consumers()": "wait_for(block->consumers, THREADS);",
    "u64 nanoseconds()": "static u64 now; yield(); return now += 100;",
    "u32 load_acquire(const u32 *word)": "yield(); return *(const volatile u32 *)word;",
    "u32 load_relaxed_word(const void *from)": "return *(const u32 *)from;",
    "int load_relaxed_s8(const void *from)": "return *(const signed char *)from;",
    "uint4 load_relaxed128(const u16 *from)": "return *(const uint4 *)from;",
    "void prefetch_l2(const void *from)": "",
    "void fence_async_proxy()": "",
    "void barrier_expect(u64 *barrier, u32 bytes)": "arrive(barrier, 1, bytes);",
}
TILE_BODIES = {
    "float f16_to_float(u32 bits)": "return half_to_float(bits);",
    "u32 fma_pair(u32 a, u32 b, u32 c)": "u32 d = 0; for (int i = 0; i < 2; i++) d |= bf16_of(half_of(a, i) * half_of(b, i) + half_of(c, i)) << 16 * i; return d;",
    "u32 and_or(u32 a, u32 mask, u32 more)": "return (a & mask) | more;",
    "u32 and_xor(u32 a, u32 mask, u32 flip)": "return (a & mask) ^ flip;",
    "float largest_of(float a, float b)": "return a != a || b != b ? NAN : fmaxf(fabsf(a), fabsf(b));",
    "float multiply_bytes(uint4 a, uint2 x)": "int sum[4]; multiply_signed(sum, a, x); return two_parts(sum);",
    "float multiply_half(u32 first, u32 second, u32 x)": "int sum[4]; multiply_signed(sum, {first, second, 0, 0}, {x, 0}); return two_parts(sum);",
}
# The network in f64. Keys and values of all positions are kept.
REFERENCE = """
typedef std::vector<double> Row;
static std::vector<u8> archive;
static u64 offset_of(Weight w, int layer) {
  if (config.layer_weights && w.nth >= 0) return constant_at<Tables::layer_offsets>(layer * config.layer_weights + w.nth);
  return w.at + w.step * layer;
}
static double vector_at(u64 at, int i) { return ((const float *)(archive.data() + at))[i]; }
template <class F, int K>
static Row product(u64 at, int rows, const Row &x) {
  Row y(rows);
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < K; ++c) y[r] += (double)F::template load1<K>(archive.data() + at, r, c) * x[c];
  return y;
}
// x in the column order at |at|.
static Row ordered(const Row &x, u64 at) {
  Row y(x.size());
  for (size_t i = 0; i < y.size(); ++i) y[i] = x.at(((const int *)(archive.data() + at))[i]);
  return y;
}
static Row in_order(const Row &x, Weight order, int l) { return order.present() ? ordered(x, offset_of(order, l)) : x; }
static Row for_gate(const Row &x, int l) { return in_order(x, config.gate_order.present() ? config.gate_order : config.qkv_order, l); }
// Weights that the network does not have change nothing.
static void add_vector(Row &x, Weight w, int l = 0) { for (size_t i = 0; w.present() && i < x.size(); ++i) x[i] += vector_at(offset_of(w, l), i); }
static void multiply_vector(Row &x, Weight w, int l = 0) { for (size_t i = 0; w.present() && i < x.size(); ++i) x[i] *= vector_at(offset_of(w, l), i); }
static Row normalized(const Row &x) {
  double mean = 0, square = 0;
  if (LAYER_NORMS) for (double v : x) mean += v / x.size();
  for (double v : x) square += (v - mean) * (v - mean);
  Row y = x;
  for (double &v : y) v = (v - mean) / sqrt(square / x.size() + NORM_EPS);
  return y;
}
static Row normed_for_attention(const Row &x, int l) {
  Row y = normalized(x);
  multiply_vector(y, config.attn_norm, l), add_vector(y, config.attn_norm_bias, l);
  return y;
}
static Row normed_for_mlp(const Row &after, const Row &before, int l) {
  if (!config.mlp_norm.present()) return normed_for_attention(PARALLEL ? before : after, l);
  Row y = normalized(PARALLEL ? before : after);
  multiply_vector(y, config.mlp_norm, l), add_vector(y, config.mlp_norm_bias, l);
  return y;
}
static void rotate(Row &x, int position, int layer) {
  for (size_t i = 0; i < x.size(); i += HEAD_DIM)
    for (int pair = 0; pair < ROPE_DIMS / 2; ++pair) {
      const int rope = rope_of(layer);
      double scale = 1, angle = (double)position * constant_at<Tables::rope_frequencies>(rope * HEAD_DIM / 2 + pair);
      if (config.rope_scaled) scale = constant_at<Tables::rope_scales>(rope);
      double &low = x[i + pair_low(pair)], &high = x[i + pair_high(pair)];
      const double l = low, h = high, c = cos(angle) * scale, s = sin(angle) * scale;
      low = l * c - h * s, high = h * c + l * s;
    }
}
static std::vector<Row> keys[LAYERS], values[LAYERS];
static Row attend(const Row &q, int l, int position) {
  Row y(Q_WIDTH);
  int start = 0;
  if (is_windowed(l)) start = std::max(0, position + 1 - WINDOW);
  for (int head = 0; head < HEADS; ++head) {
    const int kv = head / GROUP * HEAD_DIM;
    Row score(position + 1);
    double peak = -1e300, sum = 0;
    for (int p = start; p <= position; ++p) {
      for (int d = 0; d < HEAD_DIM; ++d) score[p] += q[head * HEAD_DIM + d] * keys[l][p][kv + d] * config.scale;
      peak = std::max(peak, score[p]);
    }
    for (int p = start; p <= position; ++p) sum += exp(score[p] - peak);
    for (int p = start; p <= position; ++p)
      for (int d = 0; d < HEAD_DIM; ++d) y[head * HEAD_DIM + d] += exp(score[p] - peak) / sum * values[l][p][kv + d];
  }
  return y;
}
static void clip(Row &row, double limit) {
  for (double &x : row) x = std::min(std::max(x, -limit), limit);
}
static void normalize_heads(Row &row, Weight gain, int l) {
  for (size_t i = 0; i < row.size(); i += HEAD_DIM) {
    Row head(row.begin() + i, row.begin() + i + HEAD_DIM);
    head = normalized(head);
    multiply_vector(head, gain, l);
    std::copy(head.begin(), head.end(), row.begin() + i);
  }
}
static Row attention(const Row &input, int l, int position) {
  const Row h = in_order(input, config.qkv_order, l);
  Row both = product<QkvFormat, HIDDEN>(offset_of(config.q, l), Q_ROWS, h), q, gate, k = product<QkvFormat, HIDDEN>(offset_of(config.k, l), KV_WIDTH, h), v = product<QkvFormat, HIDDEN>(offset_of(config.v, l), KV_WIDTH, h);
  for (int i = 0; i < Q_ROWS; ++i) (i % QUERY_STRIDE < HEAD_DIM ? q : gate).push_back(both[i]);
  add_vector(q, config.q_bias, l), add_vector(k, config.k_bias, l), add_vector(v, config.v_bias, l);
  if (config.qkv_clip != 0) for (Row *row : {&q, &k, &v}) clip(*row, config.qkv_clip);
  if (config.qk_norm_whole) {
    q = normalized(q), k = normalized(k);
    multiply_vector(q, config.q_norm, l), multiply_vector(k, config.k_norm, l);
  }
  if (config.q_norm.present() && !config.qk_norm_whole && !config.qk_layer_norm) normalize_heads(q, config.q_norm, l), normalize_heads(k, config.k_norm, l);
  if (config.qkv_late_clip != 0) for (Row *row : {&q, &k, &v}) clip(*row, config.qkv_late_clip);
  rotate(q, position, l), rotate(k, position, l);
  keys[l].push_back(k), values[l].push_back(v);
  Row attended = attend(q, l, position);
  for (size_t i = 0; i < gate.size(); ++i) attended[i] /= 1 + exp(-gate[i]);
  Row y = product<OFormat, Q_WIDTH>(offset_of(config.o, l), HIDDEN, in_order(attended, config.o_order, l));
  add_vector(y, config.o_bias, l);
  return y;
}
static double silu_of(double x) { return x / (1 + exp(-x)); }
// The inputs of a convolution and the states of the delta rule, from the first token on.
static std::vector<Row> channels[LAYERS];
static Row delta_states[LAYERS];
static Row convolution(const Row &x, int l) {
  Row y(x.size());
  channels[l].push_back(x);
  add_vector(y, config.filter_bias, l);
  for (size_t c = 0; c < y.size(); ++c)
    for (int i = 0; i < TAPS && i < (int)channels[l].size(); ++i)
      y[c] += vector_at(offset_of(config.filter, l), c * TAPS + TAPS - 1 - i) * channels[l][channels[l].size() - 1 - i][c];
  return y;
}
static Row delta_product(const Row &x, Weight w, int l) {
  Row y(VALUE_HEADS);
  for (int r = 0; r < VALUE_HEADS; ++r)
    for (int c = 0; c < HIDDEN; c += 4) {
      float4 v;
      const u8 *from = archive.data() + offset_of(w, l);
      if constexpr (config.delta_rows_format == 2) v = InFormat2::template load4<HIDDEN>(from, r, c);
      else if constexpr (config.delta_rows_format) v = InFormat::template load4<HIDDEN>(from, r, c);
      else if constexpr (config.delta_tiles.bits != MLX_DECODE_ROWS) v = FormatOf<config.delta_tiles>::Type::template load4<HIDDEN>(from, r, c);
      else v = load_numbers<config.delta_dtype>(from + (u64)r * HIDDEN * (config.delta_dtype == Dtype::F32 ? 4 : 2), c);
      y[r] += v.x * x[c] + v.y * x[c + 1] + v.z * x[c + 2] + v.w * x[c + 3];
    }
  return y;
}
static Row in_product(u64 at, int rows, const Row &h, bool second) { return second ? product<InFormat2, HIDDEN>(at, rows, h) : product<InFormat, HIDDEN>(at, rows, h); }
static Row delta_rule(const Row &h, int l) {
  Row in = in_product(offset_of(config.recurrent_in, l), CHANNELS, h, uses_second(l, SECOND_RECURRENT_IN)), y(VALUE_WIDTH);
  const Row z = in_product(offset_of(config.delta_z, l), VALUE_WIDTH, h, uses_second(l, SECOND_DELTA_Z));
  const Row beta = delta_product(h, config.delta_beta, l), step = delta_product(h, config.delta_step, l);
  in = convolution(in, l);
  for (double &x : in) x = silu_of(x);
  Row &state = delta_states[l];
  state.resize(VALUE_HEADS * KEY_DIM * VALUE_DIM);
  for (int head = 0; head < VALUE_HEADS; ++head) {
    const int key_head = config.tiled_heads ? head % KEY_HEADS : head / (VALUE_HEADS / KEY_HEADS);
    Row q(in.begin() + key_head * KEY_DIM, in.begin() + (key_head + 1) * KEY_DIM), k(in.begin() + KEY_WIDTH + key_head * KEY_DIM, in.begin() + KEY_WIDTH + (key_head + 1) * KEY_DIM);
    double qq = 0, kk = 0, square = 0;
    for (int i = 0; i < KEY_DIM; ++i) qq += q[i] * q[i], kk += k[i] * k[i];
    for (double &x : q) x *= config.delta_scale / sqrt(qq + config.delta_eps);
    for (double &x : k) x /= sqrt(kk + config.delta_eps);
    const double rate = vector_at(offset_of(config.delta_rate, l), head), softplus = log1p(exp(step[head] + vector_at(offset_of(config.delta_step_bias, l), head)));
    const double decay = exp((config.log_rate ? -exp(rate) : rate) * softplus), amount = 1 / (1 + exp(-beta[head]));
    double *out = y.data() + head * VALUE_DIM;
    for (int c = 0; c < VALUE_DIM; ++c) {
      double *column = state.data() + head * KEY_DIM * VALUE_DIM + c, seen = 0;
      for (int i = 0; i < KEY_DIM; ++i) column[i * VALUE_DIM] *= decay, seen += k[i] * column[i * VALUE_DIM];
      const double change = amount * (in[2 * KEY_WIDTH + head * VALUE_DIM + c] - seen);
      for (int i = 0; i < KEY_DIM; ++i) column[i * VALUE_DIM] += k[i] * change, out[c] += q[i] * column[i * VALUE_DIM];
      square += out[c] * out[c];
    }
    for (int c = 0; c < VALUE_DIM; ++c) out[c] *= vector_at(offset_of(config.delta_norm, l), c) / sqrt(square / VALUE_DIM + NORM_EPS) * silu_of(z[head * VALUE_DIM + c]);
  }
  return y;
}
static Row gated_convolution(const Row &h, int l) {
  Row in = product<InFormat, HIDDEN>(offset_of(config.recurrent_in, l), 3 * HIDDEN, h), x(HIDDEN);
  add_vector(in, config.recurrent_in_bias, l);
  for (int i = 0; i < HIDDEN; ++i) x[i] = in[i] * in[2 * HIDDEN + i];
  x = convolution(x, l);
  for (int i = 0; i < HIDDEN; ++i) x[i] *= in[HIDDEN + i];
  return x;
}
static Row mixed(const Row &h, int l, int position) {
  if constexpr (RECURRENT) {
    if (is_recurrent(l)) {
      Row y = product<OFormat, OUT_WIDTH>(offset_of(config.recurrent_out, l), HIDDEN, DELTA ? delta_rule(h, l) : gated_convolution(h, l));
      add_vector(y, config.recurrent_out_bias, l);
      return y;
    }
  }
  return attention(h, l, position);
}
static double dot(const Row &x, float4 (*load)(const u8 *, int), const u8 *row) {
  double sum = 0;
  for (int i = 0; i < HIDDEN; i += 4) {
    const float4 w = load(row, i);
    sum += w.x * x[i] + w.y * x[i + 1] + w.z * x[i + 2] + w.w * x[i + 3];
  }
  return sum;
}
// Adds |weight| times the output of an expert, whose matrices of |WIDTH| hidden values are at |gate|, |up| and |down|.
template <class F, class D, int WIDTH>
static void add_expert(Row &y, const Row &h, u64 gate, u64 up, u64 down, double weight) {
  Row hidden = product<F, HIDDEN>(up, WIDTH, h);
  const Row gates = product<F, HIDDEN>(gate, WIDTH, h);
  for (int i = 0; i < WIDTH; ++i) hidden[i] *= gates[i] / (1 + exp(-gates[i]));
  const Row output = product<D, WIDTH>(down, HIDDEN, hidden);
  for (int i = 0; i < HIDDEN; ++i) y[i] += weight * output[i];
}
static Row mixture(const Row &h, int l) {
  Row y(HIDDEN), score(EXPERTS);
  std::vector<int> order(EXPERTS);
  double sum = 0, used = 0;
  for (int e = 0; e < EXPERTS; ++e) score[e] = exp(dot(h, load_numbers<config.router_dtype>, archive.data() + offset_of(config.router, l) + e * ROUTER_ROW)), sum += score[e], order[e] = e;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return score[a] > score[b]; });
  for (int i = 0; i < USED; ++i) used += score[order[i]];
  for (int i = 0; i < USED; ++i) {
    const int e = order[i];
    const u64 wide = GateFormat::row_offset<HIDDEN>(e * FFN);
    add_expert<GateFormat, DownFormat, FFN>(y, h, offset_of(config.gate, l) + wide, offset_of(config.up, l) + wide,
                                            offset_of(config.down, l) + DownFormat::row_offset<FFN>(e * HIDDEN), score[e] / (SUM_TO_ONE ? used : sum));
  }
  if constexpr (SHARED_EXPERT)
    add_expert<SharedGateFormat, SharedDownFormat, SHARED_FFN>(y, h, offset_of(config.shared_gate, l), offset_of(config.shared_up, l), offset_of(config.shared_down, l),
                                                               1 / (1 + exp(-dot(h, load_shared_score<config.shared_score_tiles>, archive.data() + offset_of(config.shared_score, l)))));
  return y;
}
static Row mlp(const Row &input, int l) {
  if (MIXTURE) return mixture(input, l);
  const Row h = for_gate(input, l);
  Row up = product<GateFormat, HIDDEN>(offset_of(config.up, l), FFN, h);
  add_vector(up, config.up_bias, l);
  if (config.gate.present()) {
    Row gate = product<GateFormat, HIDDEN>(offset_of(config.gate, l), FFN, h);
    add_vector(gate, config.gate_bias, l);
    for (int i = 0; i < FFN; ++i) up[i] *= activate(l, gate[i]);
  } else {
    for (double &v : up) v = activate(l, v);
  }
  Row y = product<DownFormat, FFN>(offset_of(config.down, l), HIDDEN, up);
  add_vector(y, config.down_bias, l);
  return y;
}
static Row embedded(int token, int position) {
  Row x(HIDDEN);
  for (int i = 0; i < HIDDEN; ++i) x[i] = (double)EmbedFormat::load1<HIDDEN>(archive.data() + config.embed.at, token, i) * config.embed_scale;
  for (int i = 0; config.positions.present() && i < HIDDEN; ++i) x[i] += EmbedFormat::load1<HIDDEN>(archive.data() + config.positions.at, position, i);
  return x;
}
static Row head_input;
static Row logits_of(int token, int position) {
  Row x = embedded(token, position);
  for (int l = 0; l < LAYERS; ++l) {
    const Row before = x, attended = mixed(normed_for_attention(x, l), l, position);
    for (int i = 0; i < HIDDEN; ++i) x[i] += attended[i] * config.residual_scale;
    const Row output = mlp(normed_for_mlp(x, before, l), l);
    for (int i = 0; i < HIDDEN; ++i) x[i] += output[i] * config.residual_scale;
  }
  x = normalized(x);
  multiply_vector(x, config.final_norm), add_vector(x, config.final_norm_bias);
  head_input = x;
  Row y = product<HeadFormat, HIDDEN>(config.head.at, VOCAB, x);
  add_vector(y, config.head_bias);
  for (double &v : y) v *= config.logit_scale;
  return y;
}
static int largest(const Row &x) { return std::max_element(x.begin(), x.end()) - x.begin(); }
// The tokens that follow |prompt|, and the logits of the last one. |hidden|: input of the head after the prompt.
static Row continue_in_f64(const std::vector<int> &prompt, std::vector<int> &output, Row &hidden) {
  std::vector<int> all = prompt;
  Row logits;
  for (size_t i = 0; i < prompt.size() + output.size() - 1; ++i) {
    logits = logits_of(all[i], i);
    if (i + 1 == prompt.size()) hidden = head_input;
    if (i + 1 >= prompt.size()) all.push_back(largest(logits));
  }
  output.assign(all.begin() + prompt.size(), all.end());
  return logits;
}
"""
MAIN = """
#define PAGES 32
// Words that need not be empty after a launch: those of the last choice, and x1 of parallel layers, which has no flags.
static bool is_kept(size_t word) {
  const Scratch *w = nullptr;
  const size_t at = word * 4;
  return at < (size_t)w->x0 || (PARALLEL && at >= (size_t)w->x1 && at < (size_t)w->qkv);
}
int main(int, char **argv) {
  std::vector<int> prompt = {PROMPT}, expected = {OUTPUT}, history(PAGES * PAGE + 1);
  Row expected_logits = {LOGITS}, expected_hidden;
  FILE *file = fopen(argv[1], "rb");
  fseek(file, 0, SEEK_END);
  archive.resize(ftell(file) + 64);
  rewind(file);
  if (!fread(archive.data(), archive.size() - 64, 1, file)) return 1;
  fclose(file);
  if (expected_logits.empty()) expected_logits = continue_in_f64(prompt, expected, expected_hidden);
  // Pages, then states 0 to 2: each call reads one of the last two and writes the other.
  const size_t pages = (PAGES + 1) * ATTENTION_LAYERS * KV_HEADS * 2 * PAGE * HEAD_DIM;
  std::vector<float> pool(pages + 3 * config.state_words, 7.0f), logits(VOCAB), hidden(HIDDEN);
  if (RECURRENT && pages != (PAGES + 1) * (size_t)config.page_words) return printf("NAME: a page has %d words\\n", config.page_words), 1;
  std::vector<int> batch(MLX_STEP_PAGES_AT(1, 1) + PAGES + 2), results(MLX_BURST_TOKENS * MLX_RESULT_WORDS);
  std::vector<u32> scratch(config.scratch_words, EMPTY);
  batch[MLX_STEP_TOKEN_COUNT] = 1, batch[MLX_STEP_SLOT_COUNT] = 1, batch[MLX_STEP_SLOT_PAGES] = PAGES, batch[MLX_STEP_HISTORY_WIDTH] = history.size();
  batch[MLX_STEP_AT_TOKENS] = MLX_STEP_TOKENS_AT, batch[MLX_STEP_AT_SLOTS] = MLX_STEP_SLOTS_AT(1), batch[MLX_STEP_AT_POSITIONS] = MLX_STEP_POSITIONS_AT(1);
  batch[MLX_STEP_AT_SAMPLING] = MLX_STEP_SAMPLING_AT(1, 1), batch[MLX_STEP_AT_PAGES] = MLX_STEP_PAGES_AT(1, 1), batch[MLX_STEP_POOL_PAGES] = PAGES + 1;
  for (int i : {MLX_SAMPLING_REPEAT, MLX_SAMPLING_TYPICAL_P, MLX_SAMPLING_TOP_P}) batch[MLX_STEP_SAMPLING_AT(1, 1) + i] = __float_as_int(1.0f);
  for (int i = 0; i < PAGES; ++i) batch[MLX_STEP_PAGES_AT(1, 1) + i] = (i * 7) % PAGES + 1;
  batch[MLX_STEP_STATES] = RECURRENT ? 3 : 0, batch[MLX_STEP_AT_STATES] = MLX_STEP_PAGES_AT(1, 1) + PAGES;
  const auto run = [&](int token, int position, int burst) {
    const int reads = position % 2 + 1, writes = 3 - reads;
    const std::vector<float> before = pool;
    batch[MLX_STEP_PAGES_AT(1, 1) + PAGES] = reads, batch[MLX_STEP_PAGES_AT(1, 1) + PAGES + 1] = writes;
    batch[MLX_STEP_TOKENS_AT] = token, batch[MLX_STEP_POSITIONS_AT(1)] = position, batch[MLX_STEP_BURST_COUNT] = burst;
    launch(3, THREADS + 32, SHARED_BYTES, [&] { mlx_decode(archive.data(), batch.data(), history.data(), pool.data(), logits.data(), hidden.data(), results.data(), (Scratch *)scratch.data()); });
    for (int state : {0, reads})
      if (memcmp(&before[pages + state * config.state_words], &pool[pages + state * config.state_words], 4 * config.state_words)) printf("NAME: state %d has changed\\n", state), exit(1);
    for (size_t i = 4; i < scratch.size(); ++i)
      if (scratch[i] != EMPTY && !is_kept(i)) printf("NAME: word %zu of the scratch memory is not empty\\n", i), exit(1);
  };
  for (size_t i = 0; i < prompt.size(); ++i) run(prompt[i], i, 0);
  for (size_t i = 0; i < expected_hidden.size(); ++i)
    if (!(fabs(hidden[i] - expected_hidden[i]) <= 1e-5)) return printf("NAME: hidden %zu is %g, expected %g\\n", i, hidden[i], expected_hidden[i]), 1;
  std::vector<int> output = {(int)(std::max_element(logits.begin(), logits.end()) - logits.begin())};
  run(output[0], prompt.size(), expected.size() - 1);
  for (size_t i = 0; i + 1 < expected.size(); ++i) output.push_back(results[i * MLX_RESULT_WORDS + MLX_RESULT_TOKEN]);
  for (size_t i = 0; i < expected.size(); ++i)
    if (output[i] != expected[i]) return printf("NAME: token %zu is %d, expected %d\\n", i, output[i], expected[i]), 1;
  double worst = 0, size = 0;
  for (int i = 0; i < VOCAB; ++i) worst = fmax(worst, fabs(logits[i] - expected_logits[i])), size = fmax(size, fabs(expected_logits[i]));
  printf("NAME: %zu tokens equal, logits within %.1e\\n", expected.size(), worst / size);
  return !(worst <= TOLERANCE * size);
}
"""


FIELD = re.compile(r"^    \.(\w+) = (.*),\n", re.M)


def read_fields(path):
    """The fields of a configuration (compiler/kernel_config.h)."""
    return dict(FIELD.findall(path.read_text()))


def write_fields(path, fields):
    """Replaces them. They must have the order of struct Config."""
    text = path.read_text()
    begin, end = text.index("constexpr Config config = {\n"), text.index("};\n")
    lines = [f"    .{name} = {value},\n" for name, value in fields.items()]
    path.write_text(text[:begin] + "constexpr Config config = {\n" + "".join(lines) + text[end:])


def write_kernel(folder):
    """Beside config.cuh."""
    write_kernels(folder, {**BODIES, **TILE_BODIES})
    ring = folder / "decode_ring.cuh"
    ring.write_text(ring.read_text().replace("    if (*(const volatile int *)&s->stopped) return false;", "    if (yield(), *(const volatile int *)&s->stopped) return false;"))


def change_heads(fixture, heads):
    config = fixture["config"]
    queries = config["num_attention_heads"] * config["head_dim"]
    old, config["linear_num_value_heads"], config["linear_value_head_dim"] = config["linear_num_value_heads"] * config["linear_value_head_dim"], heads, queries // heads
    for row in fixture["tensors"]:
        part, shape = row[0].split(".linear_attn.")[-1], row[2]
        if part in ("A_log", "dt_bias", "in_proj_a.weight", "in_proj_b.weight"):
            shape[0] = heads
        elif part in ("in_proj_qkv.weight", "conv1d.weight", "in_proj_z.weight"):
            shape[0] += queries - old
        elif part == "out_proj.weight":
            shape[1] = queries
        elif part == "norm.weight":
            shape[0] = queries // heads if ".linear_attn." in row[0] else shape[0]


def widen(name, width, folder):
    """Writes a fixture whose shared expert has another width, or with other value heads. Returns its path."""
    fixture = json.loads((ROOT / f"tests/fixtures/wide/{name}.json").read_text())
    path = folder / f"{name}.json"
    if "linear_num_value_heads" in fixture["config"]:
        change_heads(fixture, width)
        path.write_text(json.dumps(fixture))
        return path
    old, fixture["config"]["shared_expert_intermediate_size"] = fixture["config"]["shared_expert_intermediate_size"], width
    for row in fixture["tensors"]:
        if ".shared_expert." in row[0]:
            wide = 1 if "down_proj" in row[0] else 0
            row[2][wide] = width
            row[3] *= (old / width) ** (0.5 * wide)
    path.write_text(json.dumps(fixture))
    return path


def program(name, kind, number, layers, width, folder):
    # The logits of Hugging Face are those of the last token.
    golden = json.loads(next(path for path in (ROOT / f"tests/goldens/wide/{name}.json", ROOT / f"tests/goldens/{name}.json") if path.exists()).read_text())["results"][number]
    wide = width and int(width) > 1000  # takes long
    tokens = 4 if wide else TOKENS
    values = {"NAME": f"{name}, {kind}", "PROMPT": golden["prompt_ids"][:2] if wide else golden["prompt_ids"],
              "OUTPUT": golden["output_ids"] if kind == "bf16" else [0] * tokens,
              "LOGITS": golden["last_logits"] if kind == "bf16" else [],
              "TOLERANCE": "2e-5"}
    end = MAIN
    for key, value in values.items():
        end = re.sub(rf"\b{key}\b", ", ".join(map(str, value)) if isinstance(value, list) else value, end)
    if layers:
        write_fields(folder / "config.cuh", {**read_fields(folder / "config.cuh"), "layers": layers})
    return '#include "fiber_emulated.hpp"\n#include "decode.cu"\n' + (REFERENCE if kind != "bf16" else NO_REFERENCE) + end


NO_REFERENCE = "typedef std::vector<double> Row; static std::vector<u8> archive; static Row continue_in_f64(const std::vector<int> &, std::vector<int> &, Row &) { return {}; }\n"


# Fields of MIXTURES that an archive in Q8_0 does not set: each with the field before it in struct Config.
NEW_FIELDS = {"recurrent_tiles_2": "recurrent_tiles", "second_formats": "offsets", "delta_dtype": "tiled_heads"}
LAYER_OFFSETS = re.compile(r"(struct layer_offsets {\s.*\s+return {{)(.*)(}})")
KINDS = re.compile(r"struct recurrent_layers {\s.*\s+return {{(.*)}}")


def set_fields(fields, changed):
    for key, value in changed.items():
        if key in fields or key not in NEW_FIELDS:
            fields[key] = value
            continue
        before = list(fields.items())
        at = list(fields).index(NEW_FIELDS[key]) + 1
        fields.clear()
        fields.update([*before[:at], (key, value), *before[at:]])


def move_layers(config, theirs, column, count, base):
    """Replaces a column of the table of offsets by that of another configuration, whose archive starts at |base|. |count|: of the columns."""
    ours, others = (LAYER_OFFSETS.search(text)[2].split(",") for text in (config, theirs))
    ours[column::count] = [f"{base + int(at[:-3])}ull" for at in others[column::count]]
    return LAYER_OFFSETS.sub(lambda match: match[1] + ",".join(ours) + match[3], config)


def add_second_formats(config):
    """The second matrix of the role of each recurrent layer has the second format."""
    kinds = [2 * int(kind) for kind in KINDS.search(config)[1].split(",")]
    table = f"  struct second_formats {{\n    static __host__ __device__ constexpr Array<u8, {len(kinds)}> values() {{ return {{{{{', '.join(map(str, kinds))}}}}}; }}\n  }};\n"
    return config.replace("struct Tables : NoTables {\n", "struct Tables : NoTables {\n" + table)


def write_case(decode_case, name, kind, folder):
    """Writes config.cuh and weights to |folder|. The matrices of MIXTURES follow an archive in Q8_0."""
    folder.mkdir()
    if kind not in MIXTURES:
        return subprocess.run([decode_case, name, kind, folder]).returncode == 0
    if not write_case(decode_case, name, "q8_0", folder / "q8_0"):
        return False
    shutil.copy(folder / "q8_0" / "config.cuh", folder)
    config = (folder / "config.cuh").read_text()
    fields, archive = read_fields(folder / "config.cuh"), (folder / "q8_0" / "weights").read_bytes()
    for other, (matrices, copied, changed) in MIXTURES[kind].items():
        if not write_case(decode_case, name, other, folder / other):
            return False
        theirs = read_fields(folder / other / "config.cuh")
        for matrix in matrices:
            at, step, nth = re.fullmatch(r"{\.at=(\d+)ull,\.step=(\d+)ull(?:,\.nth=(\d+))?}", theirs[matrix]).groups()
            if nth:
                config = move_layers(config, (folder / other / "config.cuh").read_text(), int(nth), int(fields["layer_weights"]), len(archive))
            else:
                fields[matrix] = f"{{.at={len(archive) + int(at)}ull,.step={step}ull}}"
        set_fields(fields, {key: theirs[key] for key in copied} | changed)
        if "second_formats" in changed:
            config = add_second_formats(config)
        archive += (folder / other / "weights").read_bytes()
        archive += bytes(-len(archive) % 64)
    (folder / "config.cuh").write_text(config)
    write_fields(folder / "config.cuh", {key: value for key, value in fields.items() if value})
    (folder / "weights").write_bytes(archive)
    return True


def run_case(case, decode_case, compiler):
    name, kind, number, layers, width = (case.split(":") + ["", "", ""])[:5]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / kind
        if not write_case(decode_case, widen(name, int(width), pathlib.Path(temporary)) if width else name, kind, folder):
            return print(f"{name}, {kind}: the decode kernel does not support it") or False
        write_kernel(folder)
        (folder / "test.cpp").write_text(program(name, kind, int(number or 0), layers, width, folder))
        subprocess.run([*compiler, f"-I{folder}", folder / "test.cpp", "-o", folder / "test"], check=True)
        return subprocess.run([folder / "test", folder / "weights"], timeout=900).returncode == 0


def main():
    compiler = "c++"
    if not shutil.which(compiler):
        sys.exit(77)
    with tempfile.TemporaryDirectory() as common:
        command = compile_command(compiler, common)
        results = [run_case(case, sys.argv[1], command) for case in sys.argv[2:] or CASES]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
