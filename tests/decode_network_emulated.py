#!/usr/bin/env python3
"""Runs the whole decode kernel (kernels/cuda/decode.cu) on a CPU (tests/fiber_emulated.hpp), three blocks that exchange activations, on fixtures of
tests/fixtures/wide: one step for each token of a prompt, then a burst. Tokens and logits must equal those of Hugging Face (16-bit weights), or of a network
in f64 with the weights that the kernel's load1() returns (quantized weights).

  tests/decode_network_emulated.py DECODE_CASE [FIXTURE:KIND[:PROMPT[:LAYERS[:WIDTH]]]...]

KIND is bf16, q8_0, q4_1, gptq (act order, the head has bf16 weights), or one of MIXTURES: some matrices are bf16 or Q4_1, the others Q8_0. PROMPT is a number
in the goldens, LAYERS the number of layers that are used, WIDTH that of the shared expert, both of quantized weights.

DECODE_CASE is the program of tests/decode_case.c. Inline assembly is replaced by C++ that does the same; a function that is no longer found is an error.
Exit status 77: there is no compiler.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from packed_emulated import replace_body

ROOT = pathlib.Path(__file__).resolve().parents[1]
CASES = ("llama-yarn:bf16 gemma3:bf16 arcee:bf16 starcoder2:bf16 olmo:bf16 gpt2:bf16 stablelm:bf16 cohere2:bf16 phi:bf16 gpt_neox:bf16 stablelm-parallel:bf16 "
         "mimo:q4_1 starcoder2:q8_0 arcee:q4_1 cohere2:q8_0 phi:q4_1 gpt_neox:q8_0 gpt2:q8_0 phi:mixed cohere2:mixed "
         "gpt_neox:q8_0:0:1 olmoe:bf16 olmoe:q8_0 qwen2_moe:bf16 qwen2_moe:q8_0 qwen2_moe:shared qwen2_moe:shared16 "
         "qwen2_moe:q8_0:0::17408 cohere2:bf16:2 mimo:gptq phi:gptq gpt_neox:gptq").split()  # prompt 2 is so long that blocks share the positions of a head
# kind: for each other kind, the matrices that have it, the definitions that are copied from it, and those that are set (None: removed)
MIXTURES = {
    "mixed": {"bf16": ("QKVO", [], {"QKV_TILES": "16", "O_TILES": "16", "DTYPE_BF16": "1"})},
    "shared": {"q4_1": (["SHARED_GATE", "SHARED_UP", "SHARED_DOWN"], ["SHARED_GATE_TILES", "SHARED_DOWN_TILES", "OFFSETS"], {}),
               "bf16": (["SHARED_SCORE"], [], {"SHARED_SCORE_TILES": None, "SHARED_SCORE_BF16": "1"})},
    "shared16": {"bf16": (["SHARED_GATE", "SHARED_UP", "SHARED_DOWN"], [], {"SHARED_GATE_TILES": "16", "SHARED_DOWN_TILES": "16", "DTYPE_BF16": "1"})},
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
    "u32 load_acquire(u32 *address)": "yield(); return *(volatile u32 *)address;",
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
static u64 offset_of(u64 first, u64 step, int layer) { return first + step * layer; }
#define OF(weight, layer) offset_of(weight##_AT, weight##_STEP, layer)
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
#ifdef QKV_ORDER_AT
#define FOR_QKV(x, l) ordered(x, OF(QKV_ORDER, l))
#else
#define FOR_QKV(x, l) x
#endif
#ifdef O_ORDER_AT
#define FOR_O(x, l) ordered(x, OF(O_ORDER, l))
#else
#define FOR_O(x, l) x
#endif
#ifdef GATE_ORDER_AT
#define FOR_GATE(x, l) ordered(x, OF(GATE_ORDER, l))
#else
#define FOR_GATE(x, l) FOR_QKV(x, l)  // both have the same input
#endif
static void add_vector(Row &x, u64 at) { for (size_t i = 0; i < x.size(); ++i) x[i] += vector_at(at, i); }
static void multiply_vector(Row &x, u64 at) { for (size_t i = 0; i < x.size(); ++i) x[i] *= vector_at(at, i); }
static Row normalized(const Row &x) {
  double mean = 0, square = 0;
#if LAYER_NORMS
  for (double v : x) mean += v / x.size();
#endif
  for (double v : x) square += (v - mean) * (v - mean);
  Row y = x;
  for (double &v : y) v = (v - mean) / sqrt(square / x.size() + NORM_EPS);
  return y;
}
static Row normed_for_attention(const Row &x, int l) {
  Row y = normalized(x);
#ifdef ATTN_NORM_AT
  multiply_vector(y, OF(ATTN_NORM, l));
#endif
#ifdef ATTN_NORM_BIAS_AT
  add_vector(y, OF(ATTN_NORM_BIAS, l));
#endif
  return y;
}
static Row normed_for_mlp(const Row &after, const Row &before, int l) {
#ifdef MLP_NORM_AT
  Row y = normalized(PARALLEL ? before : after);
  multiply_vector(y, OF(MLP_NORM, l));
#ifdef MLP_NORM_BIAS_AT
  add_vector(y, OF(MLP_NORM_BIAS, l));
#endif
  return y;
#else
  return normed_for_attention(PARALLEL ? before : after, l);
#endif
}
static void rotate(Row &x, int position, int layer) {
  for (size_t i = 0; i < x.size(); i += HEAD_DIM)
    for (int pair = 0; pair < ROPE_DIMS / 2; ++pair) {
      const int rope = ROPE_OF(layer);
      double scale = 1, angle = (double)position * rope_frequencies[rope * HEAD_DIM / 2 + pair];
#ifdef ROPE_SCALES
      scale = rope_scales[rope];
#endif
      double &low = x[i + pair_low(pair)], &high = x[i + pair_high(pair)];
      const double l = low, h = high, c = cos(angle) * scale, s = sin(angle) * scale;
      low = l * c - h * s, high = h * c + l * s;
    }
}
static std::vector<Row> keys[LAYERS], values[LAYERS];
static Row attend(const Row &q, int l, int position) {
  Row y(Q_WIDTH);
  int start = 0;
#if WINDOW
  if (windowed_layers[l]) start = std::max(0, position + 1 - WINDOW);
#endif
  for (int head = 0; head < HEADS; ++head) {
    const int kv = head / GROUP * HEAD_DIM;
    Row score(position + 1);
    double peak = -1e300, sum = 0;
    for (int p = start; p <= position; ++p) {
      for (int d = 0; d < HEAD_DIM; ++d) score[p] += q[head * HEAD_DIM + d] * keys[l][p][kv + d] * SCALE;
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
static Row attention(const Row &input, int l, int position) {
  const Row h = FOR_QKV(input, l);
  Row q = product<QkvFormat, HIDDEN>(OF(Q, l), Q_WIDTH, h), k = product<QkvFormat, HIDDEN>(OF(K, l), KV_WIDTH, h), v = product<QkvFormat, HIDDEN>(OF(V, l), KV_WIDTH, h);
#ifdef Q_BIAS_AT
  add_vector(q, OF(Q_BIAS, l));
#endif
#ifdef K_BIAS_AT
  add_vector(k, OF(K_BIAS, l)), add_vector(v, OF(V_BIAS, l));
#endif
#ifdef QKV_CLIP
  for (Row *row : {&q, &k, &v}) clip(*row, QKV_CLIP);
#endif
#if QK_NORM_WHOLE
  q = normalized(q), k = normalized(k);
  multiply_vector(q, OF(Q_NORM, l)), multiply_vector(k, OF(K_NORM, l));
#endif
#ifdef QKV_LATE_CLIP
  for (Row *row : {&q, &k, &v}) clip(*row, QKV_LATE_CLIP);
#endif
  rotate(q, position, l), rotate(k, position, l);
  keys[l].push_back(k), values[l].push_back(v);
  Row y = product<OFormat, Q_WIDTH>(OF(O, l), HIDDEN, FOR_O(attend(q, l, position), l));
#ifdef O_BIAS_AT
  add_vector(y, OF(O_BIAS, l));
#endif
  return y;
}
#ifdef EXPERTS
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
static Row mlp(const Row &h, int l) {
  Row y(HIDDEN), score(EXPERTS);
  std::vector<int> order(EXPERTS);
  double sum = 0, used = 0;
  for (int e = 0; e < EXPERTS; ++e) score[e] = exp(dot(h, load_router, archive.data() + OF(ROUTER, l) + e * ROUTER_ROW)), sum += score[e], order[e] = e;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return score[a] > score[b]; });
  for (int i = 0; i < USED; ++i) used += score[order[i]];
  for (int i = 0; i < USED; ++i) {
    const int e = order[i];
    const u64 wide = GateFormat::row_offset<HIDDEN>(e * FFN);
    add_expert<GateFormat, DownFormat, FFN>(y, h, OF(GATE, l) + wide, OF(UP, l) + wide, OF(DOWN, l) + DownFormat::row_offset<FFN>(e * HIDDEN),
                                            score[e] / (SUM_TO_ONE ? used : sum));
  }
#ifdef SHARED_FFN
  add_expert<SharedGateFormat, SharedDownFormat, SHARED_FFN>(y, h, OF(SHARED_GATE, l), OF(SHARED_UP, l), OF(SHARED_DOWN, l),
                                                             1 / (1 + exp(-dot(h, load_shared_score, archive.data() + OF(SHARED_SCORE, l)))));
#endif
  return y;
}
#else
static Row mlp(const Row &input, int l) {
  const Row h = FOR_GATE(input, l);
  Row up = product<GateFormat, HIDDEN>(OF(UP, l), FFN, h);
#ifdef UP_BIAS_AT
  add_vector(up, OF(UP_BIAS, l));
#endif
#ifdef GATE_AT
  Row gate = product<GateFormat, HIDDEN>(OF(GATE, l), FFN, h);
#ifdef GATE_BIAS_AT
  add_vector(gate, OF(GATE_BIAS, l));
#endif
  for (int i = 0; i < FFN; ++i) up[i] *= activate(gate[i]);
#else
  for (double &v : up) v = activate(v);
#endif
  Row y = product<DownFormat, FFN>(OF(DOWN, l), HIDDEN, up);
#ifdef DOWN_BIAS_AT
  add_vector(y, OF(DOWN_BIAS, l));
#endif
  return y;
}
#endif
static Row embedded(int token, int position) {
  Row x(HIDDEN);
  for (int i = 0; i < HIDDEN; ++i) x[i] = (double)EmbedFormat::load1<HIDDEN>(archive.data() + EMBED_AT, token, i) * EMBED_SCALE;
#ifdef POSITIONS_AT
  for (int i = 0; i < HIDDEN; ++i) x[i] += EmbedFormat::load1<HIDDEN>(archive.data() + POSITIONS_AT, position, i);
#endif
  return x;
}
static Row head_input;
static Row logits_of(int token, int position) {
  Row x = embedded(token, position);
  for (int l = 0; l < LAYERS; ++l) {
    const Row before = x, attended = attention(normed_for_attention(x, l), l, position);
    for (int i = 0; i < HIDDEN; ++i) x[i] += attended[i] * RESIDUAL_SCALE;
    const Row output = mlp(normed_for_mlp(x, before, l), l);
    for (int i = 0; i < HIDDEN; ++i) x[i] += output[i] * RESIDUAL_SCALE;
  }
  x = normalized(x);
#ifdef FINAL_NORM_AT
  multiply_vector(x, FINAL_NORM_AT);
#endif
#ifdef FINAL_NORM_BIAS_AT
  add_vector(x, FINAL_NORM_BIAS_AT);
#endif
  head_input = x;
  Row y = product<HeadFormat, HIDDEN>(HEAD_AT, VOCAB, x);
#ifdef HEAD_BIAS_AT
  add_vector(y, HEAD_BIAS_AT);
#endif
  for (double &v : y) v *= LOGIT_SCALE;
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
  std::vector<float> pool((PAGES + 1) * LAYERS * KV_HEADS * 2 * PAGE * HEAD_DIM, 7.0f), logits(VOCAB), hidden(HIDDEN);
  std::vector<int> batch(MLX_STEP_PAGES_AT(1, 1) + PAGES), results(MLX_BURST_TOKENS * MLX_RESULT_WORDS);
  std::vector<u32> scratch(SCRATCH_WORDS, EMPTY);
  batch[MLX_STEP_TOKEN_COUNT] = 1, batch[MLX_STEP_SLOT_COUNT] = 1, batch[MLX_STEP_SLOT_PAGES] = PAGES, batch[MLX_STEP_HISTORY_WIDTH] = history.size();
  batch[MLX_STEP_AT_TOKENS] = MLX_STEP_TOKENS_AT, batch[MLX_STEP_AT_SLOTS] = MLX_STEP_SLOTS_AT(1), batch[MLX_STEP_AT_POSITIONS] = MLX_STEP_POSITIONS_AT(1);
  batch[MLX_STEP_AT_SAMPLING] = MLX_STEP_SAMPLING_AT(1, 1), batch[MLX_STEP_AT_PAGES] = MLX_STEP_PAGES_AT(1, 1), batch[MLX_STEP_POOL_PAGES] = PAGES + 1;
  for (int i : {MLX_SAMPLING_REPEAT, MLX_SAMPLING_TYPICAL_P, MLX_SAMPLING_TOP_P}) batch[MLX_STEP_SAMPLING_AT(1, 1) + i] = __float_as_int(1.0f);
  for (int i = 0; i < PAGES; ++i) batch[MLX_STEP_PAGES_AT(1, 1) + i] = (i * 7) % PAGES + 1;
  const auto run = [&](int token, int position, int burst) {
    batch[MLX_STEP_TOKENS_AT] = token, batch[MLX_STEP_POSITIONS_AT(1)] = position, batch[MLX_STEP_BURST_COUNT] = burst;
    launch(3, THREADS + 32, SHARED_BYTES, [&] { mlx_decode(archive.data(), batch.data(), history.data(), pool.data(), logits.data(), hidden.data(), results.data(), (Scratch *)scratch.data()); });
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


def kernel():
    def include(match):
        name = match.group(1)
        path = ROOT / "kernels/cuda" / name if (ROOT / "kernels/cuda" / name).exists() else ROOT / "kernels" / name
        return re.sub(r'#include "([^"]+)"', include, path.read_text())
    text = re.sub(r'#include "([^"]+)"', include, (ROOT / "kernels/cuda/decode.cu").read_text())
    for signature, body in {**BODIES, **TILE_BODIES}.items():
        text = replace_body(text, signature, body)
    text = re.sub(r'asm volatile\("mbarrier\.arrive\.expect_tx.*?: "memory"\);', "arrive(full(), 1, bytes);", text, flags=re.S)
    text = re.sub(r'asm volatile\("(?:fence\.proxy|prefetch|cp\.async)[^;]*;"[^;]*;', ";", text)
    text = text.replace("    if (*(const volatile int *)&s->stopped) return false;", "    if (yield(), *(const volatile int *)&s->stopped) return false;")
    return text.replace("extern __shared__ __align__(128) u8 memory[];", "u8 *memory = (u8 *)shared();")


def widen(name, width, folder):
    """Writes a fixture whose shared expert has another width. Returns its path."""
    fixture = json.loads((ROOT / f"tests/fixtures/wide/{name}.json").read_text())
    old, fixture["config"]["shared_expert_intermediate_size"] = fixture["config"]["shared_expert_intermediate_size"], width
    for row in fixture["tensors"]:
        if ".shared_expert." in row[0]:
            wide = 1 if "down_proj" in row[0] else 0
            row[2][wide] = width
            row[3] *= (old / width) ** (0.5 * wide)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(fixture))
    return path


def program(name, kind, number, layers, width, folder):
    # The logits of Hugging Face are those of the last token.
    golden = json.loads((ROOT / f"tests/goldens/wide/{name}.json").read_text())["results"][number]
    tokens = 4 if width else TOKENS  # a wide expert takes long
    values = {"NAME": f"{name}, {kind}", "PROMPT": golden["prompt_ids"][:2] if width else golden["prompt_ids"],
              "OUTPUT": golden["output_ids"] if kind == "bf16" else [0] * tokens,
              "LOGITS": golden["last_logits"] if kind == "bf16" else [],
              "TOLERANCE": "2e-5"}
    end = MAIN
    for key, value in values.items():
        end = re.sub(rf"\b{key}\b", ", ".join(map(str, value)) if isinstance(value, list) else value, end)
    definitions = "".join(f"#define {key} {value}\n" for key, value in {**read_definitions(folder), **({"LAYERS": layers} if layers else {})}.items())
    return '#include "fiber_emulated.hpp"\n#include <algorithm>\n' + definitions + kernel() + (REFERENCE if kind != "bf16" else NO_REFERENCE) + end


NO_REFERENCE = "typedef std::vector<double> Row; static std::vector<u8> archive; static Row continue_in_f64(const std::vector<int> &, std::vector<int> &, Row &) { return {}; }\n"


def read_definitions(folder):
    return dict(line.split("=", 1) for line in (folder / "definitions").read_text().splitlines())


def write_case(decode_case, name, kind, folder):
    """Writes definitions and weights to |folder|. The matrices of MIXTURES follow an archive in Q8_0."""
    folder.mkdir()
    if kind not in MIXTURES:
        return subprocess.run([decode_case, name, kind, folder]).returncode == 0
    if not write_case(decode_case, name, "q8_0", folder / "q8_0"):
        return False
    definitions, archive = read_definitions(folder / "q8_0"), (folder / "q8_0" / "weights").read_bytes()
    for other, (matrices, copied, changed) in MIXTURES[kind].items():
        if not write_case(decode_case, name, other, folder / other):
            return False
        theirs = read_definitions(folder / other)
        for matrix in matrices:
            definitions[f"{matrix}_AT"] = f"{len(archive) + int(theirs[f'{matrix}_AT'][:-3])}ull"
            definitions[f"{matrix}_STEP"] = theirs[f"{matrix}_STEP"]
        definitions |= {key: theirs[key] for key in copied} | changed
        archive += (folder / other / "weights").read_bytes()
        archive += bytes(-len(archive) % 64)
    (folder / "definitions").write_text("".join(f"{key}={value}\n" for key, value in definitions.items() if value))
    (folder / "weights").write_bytes(archive)
    return True


def run_case(case, decode_case, compiler):
    name, kind, number, layers, width = (case.split(":") + ["", "", ""])[:5]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / kind
        if not write_case(decode_case, widen(name, int(width), pathlib.Path(temporary)) if width else name, kind, folder):
            return print(f"{name}, {kind}: the decode kernel does not support it") or False
        (folder / "test.cpp").write_text(program(name, kind, int(number or 0), layers, width, folder))
        subprocess.run([compiler, "-std=c++17", "-O1", "-w", "-U_FORTIFY_SOURCE", "-ffp-contract=off", f"-I{ROOT}/tests", folder / "test.cpp", "-o", folder / "test"], check=True)
        return subprocess.run([folder / "test", folder / "weights"], timeout=900).returncode == 0


def main():
    compiler = "c++"
    if not shutil.which(compiler):
        sys.exit(77)
    results = [run_case(case, sys.argv[1], compiler) for case in sys.argv[2:] or CASES]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
