// One numeric path: the logits of a sequence do not depend on how its tokens were divided between calls.
// Tokens are equal, and logits differ by less than 1e-5 of the largest logit. With weights in f32, f16 or
// bf16 they are equal bit for bit.
#include <math.h>

#include "compiler/kernels.h"
#include "tests/architectures.h"
#include "tests/compiled.h"
#include "tests/random_gguf.h"

#define LENGTH 150
#define RANDOM_VOCAB 300
#define SMOLLM2 MLXCEL_MODELS "/SmolLM2-135M-Instruct.Q4_1.gguf"

static char root[] = "/tmp/mlxcel-chunks-XXXXXX";

// Widths that AMX tiles support, and widths that they do not.
static const random_llama_t even = {256, 512, 4, 2, 64, 3, RANDOM_VOCAB, true, 10000};
static const random_llama_t odd = {200, 328, 5, 5, 48, 2, RANDOM_VOCAB, false, 10000};

static void fill_ids(int32_t *ids, size_t vocab) {
  uint64_t state = 11;
  for (int i = 0; i < LENGTH; ++i) ids[i] = (int32_t)(random_bits(&state) % (uint32_t)vocab);
}

// Reads the ids in chunks of |chunk| tokens. Returns the next token.
static int32_t read_chunks(mlx_engine_t *engine, const int32_t *ids, size_t chunk, float *out_logits) {
  mlx_session_t *session;
  int32_t next = -1;
  CHECK_OK(mlx_session_create(engine, &session));
  for (size_t at = 0; at < LENGTH; at += chunk)
    CHECK_OK(mlx_session_read(session, ids + at, LENGTH - at < chunk ? LENGTH - at : chunk, &next));
  CHECK_OK(mlx_session_logits(session, out_logits, (size_t)mlx_engine_info(engine).vocab));
  mlx_session_free(session);
  return next;
}

// The largest difference, relative to the largest value of |want|.
static double difference(const float *have, const float *want, size_t count) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < count; ++i) {
    worst = fmax(worst, fabs((double)have[i] - want[i]));
    largest = fmax(largest, fabs((double)want[i]));
  }
  return worst / largest;
}

// Decodes tokens one by one, then reads the same tokens in a new session as one chunk.
static double check_decoded(mlx_engine_t *engine, const char *name, const int32_t *ids, float *have,
                            float *want) {
  const size_t vocab = (size_t)mlx_engine_info(engine).vocab, prompt = LENGTH - 21;
  mlx_session_t *session;
  int32_t all[LENGTH + 1], next;
  memcpy(all, ids, sizeof *ids * LENGTH);
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, all, prompt, &all[prompt]));
  CHECK_OK(mlx_session_steps(session, all + prompt + 1, 21));
  CHECK_OK(mlx_session_logits(session, have, vocab));
  mlx_session_free(session);
  next = read_chunks(engine, all, LENGTH, want);
  if (next != all[LENGTH])
    CHECK_FAIL("%s: decoding gives token %d, one chunk gives %d", name, all[LENGTH], next);
  return difference(have, want, vocab);
}

// |bits|: the logits must be equal.
static void check_model(const char *name, const char *model, mlx_compile_options_t options, bool bits) {
  static const size_t chunks[] = {1, 3, 7, 8, 16, 17, 40, 100, 149};
  int32_t ids[LENGTH];
  options.context = 192;
  mlx_engine_t *engine = open_compiled(model, &options, NULL, 2);
  const size_t vocab = (size_t)mlx_engine_info(engine).vocab;
  float *have, *want;
  CHECK_OK(mlx_alloc(vocab, sizeof *have, &have));
  CHECK_OK(mlx_alloc(vocab, sizeof *want, &want));
  fill_ids(ids, vocab);
  const double tolerance = bits ? 0 : 1e-5;
  double worst = check_decoded(engine, name, ids, have, want);
  if (!(worst <= tolerance)) CHECK_FAIL("%s: decoding: logits differ by %g", name, worst);
  const int32_t expected = read_chunks(engine, ids, LENGTH, want);
  for (size_t i = 0; i < sizeof chunks / sizeof *chunks; ++i) {
    const int32_t next = read_chunks(engine, ids, chunks[i], have);
    const double error = difference(have, want, vocab);
    worst = error > worst ? error : worst;
    if (next != expected)
      CHECK_FAIL("%s: chunks of %zu give token %d, one chunk gives %d", name, chunks[i], next, expected);
    if (!(error <= tolerance)) CHECK_FAIL("%s: chunks of %zu: logits differ by %g", name, chunks[i], error);
  }
  fprintf(stderr, "  %s: largest difference %.2g\n", name, worst);
  mlx_free(have);
  mlx_free(want);
  mlx_engine_close(engine);
}

TEST(float_weights_give_the_same_bits_for_any_chunks) {
  static const struct {
    const char *name;
    mlx_compile_options_t options;
  } modes[] = {{"f32", {.dtype = MLX_F32}},
               {"--dtype bf16", {.dtype = MLX_BF16}},
               {"--dtype f16", {.dtype = MLX_F16}},
               {"--dtype bf16 --kv q8", {.dtype = MLX_BF16, .kv = MLX_Q8_0, .kv_given = true}}};
  for (size_t i = 0; i < sizeof modes / sizeof *modes; ++i) {
    check_model(modes[i].name, random_llama_write(&even, root, "even"), modes[i].options, true);
    check_model(modes[i].name, random_llama_write(&odd, root, "odd"), modes[i].options, true);
  }
}

// Fixtures in bf16: sliding window and softcap, QK norm, experts and sinks, learned positions.
TEST(bf16_checkpoints_with_default_options_give_the_same_bits_for_any_chunks) {
  static const char *const names[] = {"gemma2", "qwen3", "gpt_oss", "gpt2"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    char folder[] = "/tmp/mlxcel-chunks-XXXXXX";
    CHECK(mkdtemp(folder));
    link_model(names[i], folder);
    check_model(names[i], folder, (mlx_compile_options_t){.weights = MLX_WEIGHTS_AUTO}, true);
    CHECK_OK(mlx_remove_tree(folder));
  }
}

TEST(quantized_weights_give_the_same_logits_for_any_chunks) {
  static const mlx_dtype_t kv[] = {MLX_F32, MLX_F16, MLX_BF16, MLX_Q8_0};
  char path[128], name[64];
  for (size_t i = 0; i < RANDOM_PACKED_TYPES; ++i) {
    const mlx_dtype_t dtype = random_packed_types[i].dtype;
    if (dtype != MLX_Q4_0 && dtype != MLX_Q4_K && dtype != MLX_Q8_0) continue;
    snprintf(path, sizeof path, "%s/%s.gguf", root, mlx_dtype_info(dtype)->name);
    random_gguf_write(&even, &random_packed_types[i], 1, path);
    for (size_t k = 0; k < sizeof kv / sizeof *kv; ++k) {
      snprintf(name, sizeof name, "%s, KV %s", mlx_dtype_info(dtype)->name, mlx_dtype_info(kv[k])->name);
      check_model(name, path,
                  (mlx_compile_options_t){.weights = MLX_WEIGHTS_QUANTIZED, .kv = kv[k], .kv_given = true},
                  false);
    }
  }
}

TEST(smollm2_gives_the_same_logits_for_any_chunks) {
  check_model("SmolLM2 Q4_1", SMOLLM2, (mlx_compile_options_t){.weights = MLX_WEIGHTS_AUTO}, false);
  check_model("SmolLM2 --dtype bf16", SMOLLM2, (mlx_compile_options_t){.dtype = MLX_BF16}, true);
}

int main(int argc, char **argv) {
  static const check_case_t cases[] = {
      CASE(float_weights_give_the_same_bits_for_any_chunks),
      CASE(bf16_checkpoints_with_default_options_give_the_same_bits_for_any_chunks),
      CASE(quantized_weights_give_the_same_logits_for_any_chunks),
      CASE(smollm2_gives_the_same_logits_for_any_chunks)};
  if (!mkdtemp(root)) return 1;
  const bool has_kernels = mlx_kernels_cpu_level("host");
  if (!has_kernels) fprintf(stderr, "skipped: there is no CPU kernel for this machine\n");
  const int failed = has_kernels ? check_run(cases, sizeof cases / sizeof *cases, argc, argv) : CHECK_SKIPPED;
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
