// --quantize: codes are accurate and deterministic, a quantized model computes with exactly the values of its
// codes, and errors say what cannot be quantized.
#include "compiler/quantize.h"

#include <math.h>

#include "artifact/manifest.h"
#include "base/digest.h"
#include "compiler/kernels.h"
#include "compiler/weights.h"
#include "tests/support/command.h"
#include "tests/support/compiled.h"
#include "tests/support/random_llama.h"

#define SMOLLM2 MLXCEL_MODELS "/SmolLM2-135M-Instruct.Q4_1.gguf"

static char root[] = "/tmp/mlxcel-quantize-XXXXXX";

// ----------------------------------------------------------------------------------------------------------
// A block

static const mlx_quantize_t kinds[] = {MLX_QUANTIZE_Q4_0, MLX_QUANTIZE_Q4_1, MLX_QUANTIZE_Q8_0};

static float dequantized(const mlx_codes_t *codes, int i) {
  const float product = codes->scale[i / 16] * (float)codes->code[i];
  return product + codes->offset[i / 16];
}

static double error_of(const float x[MLX_CODES], const mlx_codes_t *codes) {
  double sum = 0;
  for (int i = 0; i < MLX_CODES; ++i)
    sum += ((double)x[i] - dequantized(codes, i)) * ((double)x[i] - dequantized(codes, i));
  return sum;
}

// Squared error of llama.cpp's simple conversion: the scale covers the whole range, without a search. Scales
// are not rounded to f16 here.
static double simple_error(mlx_quantize_t kind, const float x[MLX_CODES]) {
  double low = x[0], high = x[0], sum = 0;
  for (int i = 0; i < MLX_CODES; ++i) {
    low = fmin(low, x[i]);
    high = fmax(high, x[i]);
  }
  const double furthest = -low > high ? low : high;
  const double scale = kind == MLX_QUANTIZE_Q4_1   ? (high - low) / 15
                       : kind == MLX_QUANTIZE_Q4_0 ? furthest / -8
                                                   : fabs(furthest) / 127;
  const double least = kind == MLX_QUANTIZE_Q4_1   ? 0
                       : kind == MLX_QUANTIZE_Q4_0 ? -8
                                                   : -127,
               most = kind == MLX_QUANTIZE_Q4_1   ? 15
                      : kind == MLX_QUANTIZE_Q4_0 ? 7
                                                  : 127;
  const double offset = kind == MLX_QUANTIZE_Q4_1 ? low : 0;
  for (int i = 0; i < MLX_CODES; ++i) {
    const double code = fmax(least, fmin(most, floor((x[i] - offset) / scale + 0.5))),
                 wrong = x[i] - (code * scale + offset);
    sum += wrong * wrong;
  }
  return sum;
}

TEST(search_has_less_error_than_the_simple_conversion) {
  uint64_t state = 41;
  double ours[3] = {0}, simple[3] = {0};
  for (int round = 0; round < 2000; ++round) {
    float x[MLX_CODES];
    for (int i = 0; i < MLX_CODES; ++i) x[i] = 0.02f * random_normal(&state);
    for (int k = 0; k < 3; ++k) {
      mlx_codes_t codes;
      CHECK(mlx_quantize_block(kinds[k], x, &codes));
      ours[k] += error_of(x, &codes);
      simple[k] += simple_error(kinds[k], x);
    }
  }
  for (int k = 0; k < 3; ++k)
    fprintf(stderr, "  %s: %.3f of the squared error of the simple conversion\n", mlx_quantize_name(kinds[k]),
            ours[k] / simple[k]);
  CHECK(ours[0] < 0.92 * simple[0]);
  CHECK(ours[1] < 0.85 * simple[1]);
  CHECK(ours[2] < 1.01 * simple[2]);  // its scale is rounded to f16
}

static void check_within(mlx_quantize_t kind, const float x[MLX_CODES], float tolerance) {
  mlx_codes_t codes;
  const int least = kind == MLX_QUANTIZE_Q4_0   ? -8
                    : kind == MLX_QUANTIZE_Q4_1 ? 0
                                                : -127,
            most = kind == MLX_QUANTIZE_Q4_0   ? 7
                   : kind == MLX_QUANTIZE_Q4_1 ? 15
                                               : 127;
  CHECK(mlx_quantize_block(kind, x, &codes));
  for (int i = 0; i < MLX_CODES; ++i) {
    CHECK(codes.code[i] >= least && codes.code[i] <= most);
    if (!(fabsf(dequantized(&codes, i) - x[i]) <= tolerance))
      CHECK_FAIL("%s: %g became %g", mlx_quantize_name(kind), (double)x[i], (double)dequantized(&codes, i));
  }
}

TEST(constant_zero_and_out_of_range_blocks_are_quantized) {
  float x[MLX_CODES] = {0};
  for (int k = 0; k < 3; ++k) check_within(kinds[k], x, 0);
  for (int i = 0; i < MLX_CODES; ++i) x[i] = 0.5f;
  for (int k = 0; k < 3; ++k) check_within(kinds[k], x, 0.001f);
  for (int i = 0; i < MLX_CODES; ++i) x[i] = i % 2 ? 1e-30f : -1e-30f;  // too small for an f16
  for (int k = 0; k < 3; ++k) check_within(kinds[k], x, 1e-30f);
  for (int i = 0; i < MLX_CODES; ++i) x[i] = i % 2 ? 3e38f : -3e38f;  // and too large
  for (int k = 0; k < 3; ++k) check_within(kinds[k], x, 3e38f);
  mlx_codes_t codes;
  x[7] = NAN;
  for (int k = 0; k < 3; ++k) CHECK(!mlx_quantize_block(kinds[k], x, &codes));
  x[7] = INFINITY;
  for (int k = 0; k < 3; ++k) CHECK(!mlx_quantize_block(kinds[k], x, &codes));
}

// ----------------------------------------------------------------------------------------------------------
// A model

static const random_llama_t shape = {96, 160, 3, 1, 32, 2, 300, false, 10000};
static const random_llama_t uneven = {
    96, 200, 3, 1, 32, 1, 300, true, 10000};  // 200 columns of down_proj are no multiple of 32

static void digest_of(const char *model_path, mlx_quantize_t kind, char out_hex[MLX_DIGEST_HEX]) {
  const mlx_storage_t storage = {.dtype = MLX_F32, .layout = MLX_LAYOUT_QUANTIZED_PANELS, .quantize = kind};
  char path[128];
  mlx_model_t *model;
  snprintf(path, sizeof path, "%s/x.irpa", root);
  CHECK_OK(mlx_model_open(model_path, &model));
  CHECK_OK(mlx_weights_write(model, storage, path, NULL));
  CHECK_OK(mlx_digest_file(path, NULL, out_hex));
  CHECK_OK(mlx_remove_tree(path));
  mlx_model_close(model);
}

static mlx_quantize_t stored_as(const char *fixture, const char *name, mlx_quantize_t kind,
                                mlx_layout_t layout) {
  const mlx_storage_t storage = {.dtype = MLX_F32, .layout = layout, .quantize = kind};
  mlx_model_t *model;
  char path[256];
  snprintf(path, sizeof path, MLXCEL_SOURCE_DIR "/tests/fixtures/%s", fixture);
  CHECK_OK(mlx_model_open(path, &model));
  size_t at = 0;
  while (at < model->weight_count && strcmp(model->weights[at].name, name)) ++at;
  CHECK(at < model->weight_count);
  const mlx_quantize_t quantize = mlx_weight_stored(&model->weights[at], storage).quantize;
  mlx_model_close(model);
  return quantize;
}

// docs/quantization.md has the table. Names do not decide: GPT-2 and GPT-NeoX have others than Llama.
TEST(use_of_a_weight_decides_its_bits_not_its_name) {
  static const struct {
    const char *fixture, *name;
    mlx_quantize_t expected;  // with --quantize q4
  } cases[] = {
      {"tiny-llama", "model.embed_tokens.weight", MLX_QUANTIZE_Q8_0},
      {"tiny-llama", "lm_head.weight", MLX_QUANTIZE_Q8_0},
      {"tiny-llama", "model.layers.0.self_attn.q_proj.weight", MLX_QUANTIZE_Q4_1},
      {"gpt2", "transformer.wte.weight", MLX_QUANTIZE_Q8_0},
      {"gpt2", "transformer.wpe.weight", MLX_QUANTIZE_Q8_0},
      {"gpt2", "transformer.h.0.attn.c_attn.weight", MLX_QUANTIZE_Q4_1},
      {"gpt_neox", "gpt_neox.embed_in.weight", MLX_QUANTIZE_Q8_0},
      {"gpt_neox", "embed_out.weight", MLX_QUANTIZE_Q8_0},
      {"gpt_oss", "model.layers.0.mlp.router.weight", MLX_QUANTIZE_NONE},
      {"mixtral", "model.layers.0.block_sparse_moe.gate.weight", MLX_QUANTIZE_NONE},
      {"qwen2_moe", "model.layers.0.mlp.gate.weight", MLX_QUANTIZE_NONE},
      {"qwen2_moe", "model.layers.0.mlp.shared_expert.gate_proj.weight", MLX_QUANTIZE_Q4_1},
      {"gpt_oss", "model.layers.0.mlp.experts.down.bias", MLX_QUANTIZE_NONE},  // [experts, hidden]
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    for (int layout = MLX_LAYOUT_QUANTIZED_PANELS; layout <= MLX_LAYOUT_TILES; ++layout) {
      const mlx_quantize_t got =
          stored_as(cases[i].fixture, cases[i].name, MLX_QUANTIZE_Q4_1, (mlx_layout_t)layout);
      if (got != cases[i].expected)
        CHECK_FAIL("%s of %s gets type %d, not %d", cases[i].name, cases[i].fixture, (int)got,
                   (int)cases[i].expected);
    }
  }
}

// Every C compiler and machine must give these digests. Another digest means that quantization differs there.
TEST(quantized_archive_has_the_same_bytes_on_every_machine) {
  static const struct {
    mlx_quantize_t kind;
    const char *digest;
  } golden[] = {{MLX_QUANTIZE_Q4_0, "0f9ec0249e63bcab7540c933405add082ad1380e09fb8dc1e11b4123f24cb9fa"},
                {MLX_QUANTIZE_Q4_1, "79c291d794068cd0e3e184969370dbf364ef2b15d4b4bf16a27a37b4d133358f"},
                {MLX_QUANTIZE_Q8_0, "5af9a2a879eb2ab992d158d7ac65c097ad78ab8ddc33d375f653f07954158254"}};
  const char *model = random_llama_write(&shape, root, "shape");
  for (size_t i = 0; i < sizeof golden / sizeof *golden; ++i) {
    char hex[2][MLX_DIGEST_HEX];
    for (int run = 0; run < 2; ++run) digest_of(model, golden[i].kind, hex[run]);
    CHECK_TEXT(hex[0], hex[1]);
    CHECK_TEXT(hex[0], golden[i].digest);
  }
}

static mlx_quantize_t oracle_kind;

// Replaces values by their quantized and dequantized ones.
static void round_trip(const random_tensor_t *tensor, float *values) {
  const bool vocabulary = strstr(tensor->name, "embed") || strstr(tensor->name, "lm_head");
  if (!tensor->rows) return;
  for (size_t i = 0; i < random_elements(tensor); i += MLX_CODES) {
    mlx_codes_t codes;
    CHECK(mlx_quantize_block(vocabulary ? mlx_quantize_of_vocabulary(oracle_kind) : oracle_kind, values + i,
                             &codes));
    for (int k = 0; k < MLX_CODES; ++k) values[i + (size_t)k] = dequantized(&codes, k);
  }
}

#define PROMPT 37
#define STEPS 24

#define VOCABULARY 300
#define TOLERANCE 5e-5

typedef struct answer {
  int32_t ids[STEPS + 1];
  float logits[STEPS + 1][VOCABULARY];  // that chose each id
} answer_t;

// Decodes one token at a time. |forced|: the tokens to feed, because two models may choose differently if two
// logits nearly tie; NULL: feeds its own choice.
static void decode(const char *model, mlx_compile_options_t options, int threads, const int32_t *forced,
                   answer_t *out) {
  int32_t prompt[PROMPT];
  mlx_session_t *session;
  memset(out, 0, sizeof *out);
  options.target = "cpu";
  options.context = 128;
  mlx_engine_t *engine = open_compiled(model, &options, NULL, threads);
  for (int i = 0; i < PROMPT; ++i) prompt[i] = i * 7 % VOCABULARY;
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, prompt, PROMPT, &out->ids[0]));
  for (int i = 0; i <= STEPS; ++i) {
    CHECK_OK(mlx_session_logits(session, out->logits[i], VOCABULARY));
    if (i < STEPS)
      CHECK_OK(mlx_session_read(session, forced ? &forced[i] : &out->ids[i], 1, &out->ids[i + 1]));
  }
  mlx_session_free(session);
  mlx_engine_close(engine);
}

// Tokens equal the oracle's, unless its two best logits differ by less than the tolerance.
static void check_answer(const char *name, const answer_t *ours, const answer_t *oracle) {
  double worst = 0;
  int equal = 0;
  for (int i = 0; i <= STEPS; ++i) {
    const float *expected = oracle->logits[i];
    for (int k = 0; k < VOCABULARY; ++k) worst = fmax(worst, fabs((double)ours->logits[i][k] - expected[k]));
    const double behind = (double)expected[oracle->ids[i]] - expected[ours->ids[i]];
    if (!(behind <= TOLERANCE))
      CHECK_FAIL("%s: token %d is %d, expected %d, which is better by %g", name, i, ours->ids[i],
                 oracle->ids[i], behind);
    equal += ours->ids[i] == oracle->ids[i];
  }
  fprintf(stderr, "  %s: %d of %d tokens equal, logits within %.2g\n", name, equal, STEPS + 1, worst);
  CHECK(worst < TOLERANCE);
  CHECK(equal >= STEPS);
}

// The oracle is the generic path in f32 on a directory with the dequantized values.
TEST(quantized_model_matches_the_f32_model_of_its_dequantized_weights) {
  for (int k = 0; k < 3; ++k) {
    static answer_t ours, same, oracle;
    char name[32], dequantized_model[256];
    oracle_kind = kinds[k];
    snprintf(name, sizeof name, "dequantized-%s", mlx_quantize_name(kinds[k]));
    snprintf(dequantized_model, sizeof dequantized_model, "%s",
             random_llama_write_altered(&shape, round_trip, root, name));
    const char *model = random_llama_write(&shape, root, "shape");
    const mlx_compile_options_t quantized = {
        .weights = MLX_WEIGHTS_AUTO, .quantize = kinds[k], .kernels = MLX_KERNELS_REQUIRED};
    decode(model, quantized, 1, NULL, &ours);
    decode(model, quantized, 3, NULL, &same);
    decode(dequantized_model, (mlx_compile_options_t){.kernels = MLX_KERNELS_OFF}, 2, ours.ids, &oracle);
    CHECK(!memcmp(&ours, &same, sizeof ours));
    check_answer(name, &ours, &oracle);
  }
}

// ----------------------------------------------------------------------------------------------------------
// The command line

static void check_message(const char *const *argv, bool fails, const char *part) {
  command_t run;
  command_start(&run, argv);
  command_wait(&run);
  if (fails != (run.exit_code != 0)) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  CHECK_CONTAINS(run.err, part);
  command_free(&run);
}
#define SAYS(fails, part, ...) \
  check_message((const char *const[]){MLXCEL_BINARY, __VA_ARGS__, NULL}, fails, part)

TEST(verbose_compile_reports_how_weights_are_stored) {
  const char *model = random_llama_write(&uneven, root, "uneven");
  char bundle[64], path[96], *text;
  size_t length;
  mlx_manifest_t manifest;
  snprintf(bundle, sizeof bundle, "%s/uneven.mlxb", root);
  SAYS(false,
       "weights: 6 matrices of F32: quantized to q4_1 (4-bit codes, scale and offset in f16; 5 bits per "
       "weight)",
       "compile", model, "--quantize", "q4", "-v", "-o", bundle);
  SAYS(false,
       "weights: 1 matrix of F32: quantized to q8_0 (8-bit codes, a scale in f16; 8.5 bits per weight)",
       "compile", model, "--quantize", "q4", "-v", "-o", bundle);
  SAYS(false, "weights: 1 matrix of F32: stored as f32: its number of columns is not a multiple of 32",
       "compile", model, "--quantize", "q4", "-v", "-o", bundle);
  SAYS(false, " kB in all", "compile", model, "--quantize", "q4", "-v", "-o", bundle);
  snprintf(path, sizeof path, "%s/manifest.json", bundle);
  CHECK_OK(mlx_read_file(path, 1 << 20, &text, &length));
  CHECK_OK(mlx_manifest_read(path, text, length, &manifest));
  CHECK_TEXT(manifest.variants[0].dtype, "q4_1");
  mlx_free(text);
  SAYS(true, "is compiled already: --quantize needs the source model", "run", "-m", bundle, "-p", "x",
       "--quantize", "q4");
  SAYS(false, ", q8_0", "run", "-m", model, "-p", "x", "-n", "1", "--device", "cpu", "--quantize", "q8");
}

TEST(impossible_quantization_fails_with_the_reason) {
  const char *model = random_llama_write(&uneven, root, "uneven");
  SAYS(true, "--quantize expects q4, q8, q4_0, q4_1 or q8_0, not 'q3'", "run", "-m", model, "-p", "x",
       "--quantize", "q3");
  SAYS(true, "--quantize cannot be combined with a float --dtype", "run", "-m", model, "-p", "x", "--device",
       "cpu", "--quantize", "q4", "--dtype", "f32");
  SAYS(true, "cannot use quantized weights for this model: only the kernel path supports them", "run", "-m",
       model, "-p", "x", "--device", "cpu", "--quantize", "q4", "--kernels", "off");
  SAYS(true, "has no matrix to quantize to q4_1: a matrix needs more bits per weight", "run", "-m", SMOLLM2,
       "-p", "x", "--device", "cpu", "--quantize", "q4");
  SAYS(true, "--quantize cannot be used with --emit stablehlo", "compile", model, "--emit", "stablehlo",
       "--quantize", "q4", "-o", "-");
}

static void put_nan(const random_tensor_t *tensor, float *values) {
  if (strstr(tensor->name, "up_proj")) values[5 * tensor->columns + 40] = NAN;
}

TEST(value_that_is_not_finite_fails_and_names_its_tensor) {
  const char *model = random_llama_write_altered(&shape, put_nan, root, "nan");
  SAYS(true,
       "cannot quantize tensor 'model.layers.0.mlp.up_proj.weight': row 5 has a value that is not finite",
       "run", "-m", model, "-p", "x", "--device", "cpu", "--quantize", "q4");
}

int main(int argc, char **argv) {
  static const check_case_t cases[] = {CASE(search_has_less_error_than_the_simple_conversion),
                                       CASE(constant_zero_and_out_of_range_blocks_are_quantized),
                                       CASE(use_of_a_weight_decides_its_bits_not_its_name),
                                       CASE(quantized_archive_has_the_same_bytes_on_every_machine),
                                       CASE(quantized_model_matches_the_f32_model_of_its_dequantized_weights),
                                       CASE(verbose_compile_reports_how_weights_are_stored),
                                       CASE(impossible_quantization_fails_with_the_reason),
                                       CASE(value_that_is_not_finite_fails_and_names_its_tensor)};
  if (!mkdtemp(root)) return 1;
  int failed = CHECK_SKIPPED;
  if (mlx_kernels_cpu_level("host")) {
    failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  } else {
    fprintf(stderr, "skipped: this build has no CPU kernel for this machine\n");
  }
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
