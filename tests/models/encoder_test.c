// Every encoder on the CPU against Hugging Face fp32: embeddings of the fixtures in tests/fixtures/encoders.
// MLXCEL_ARCH=NAME runs one fixture.
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "tests/support/compiled.h"
#include "tests/support/golden.h"
#include "tests/support/listed.h"

#define ENCODERS MLXCEL_SOURCE_DIR "/tests/fixtures/encoders/"
#define TOKENIZER MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama/tokenizer.json"
#define MOST_TEXTS 16
#define MOST_TOKENS 2048
#define MOST_NUMBERS 64

typedef struct texts {
  int32_t tokens[MOST_TEXTS][MOST_TOKENS];
  const int32_t *ids[MOST_TEXTS];
  size_t counts[MOST_TEXTS], count, size;
  double expected[MOST_TEXTS][MOST_NUMBERS];
} texts_t;

static void link_file(const char *name, const char *folder, const char *file) {
  char from[512], to[512];
  snprintf(from, sizeof from, ENCODERS "%s/%s", name, file);
  snprintf(to, sizeof to, "%s/%s", folder, file);
  CHECK(!symlink(from, to));
}

// The fixture with a tokenizer, which compiling needs.
static void link_encoder(const char *name, const char *folder) {
  static const char *const files[] = {"config.json", "model.safetensors", "modules.json", "1_Pooling"};
  char to[512];
  for (int i = 0; i < 4; ++i) link_file(name, folder, files[i]);
  snprintf(to, sizeof to, "%s/tokenizer.json", folder);
  CHECK(!symlink(TOKENIZER, to));
}

static void read_texts(const char *name, texts_t *out) {
  char path[512];
  yyjson_val *result;
  size_t i, count;
  snprintf(path, sizeof path, ENCODERS "%s/golden.json", name);
  golden_t golden = golden_open(path);
  CHECK(yyjson_arr_size(golden.results) <= MOST_TEXTS);
  yyjson_arr_foreach(golden.results, i, count, result) {
    yyjson_val *embedding = yyjson_obj_get(result, "embedding");
    out->ids[i] = out->tokens[i];
    out->counts[i] = golden_read_ids(yyjson_obj_get(result, "ids"), out->tokens[i], MOST_TOKENS);
    out->size = yyjson_arr_size(embedding);
    CHECK(out->size <= MOST_NUMBERS);
    for (size_t k = 0; k < out->size; ++k) out->expected[i][k] = yyjson_get_num(yyjson_arr_get(embedding, k));
  }
  out->count = count;
  golden_close(&golden);
}

static mlx_engine_t *open_encoder(const char *folder) {
  const mlx_compile_options_t options = {.weights = MLX_WEIGHTS_AUTO};
  return open_parallel(folder, &options, NULL, 0, 0);
}

// The largest difference of a number, relative to the norm, and the largest 1 - cosine.
static void compare(const texts_t *t, const float *vectors, double *out_difference, double *out_angle) {
  *out_difference = *out_angle = 0;
  for (size_t i = 0; i < t->count; ++i) {
    double both = 0, ours = 0, theirs = 0, worst = 0;
    for (size_t k = 0; k < t->size; ++k) {
      const double a = vectors[i * t->size + k], b = t->expected[i][k];
      both += a * b, ours += a * a, theirs += b * b;
      worst = fmax(worst, fabs(a - b));
    }
    *out_difference = fmax(*out_difference, worst / sqrt(theirs));
    *out_angle = fmax(*out_angle, 1 - both / sqrt(ours * theirs));
  }
}

static mlx_status_t check_encoder(void *user, const char *name) {
  size_t *checked = user;
  const char *only = getenv("MLXCEL_ARCH");
  char folder[] = "/tmp/mlxcel-encoder-XXXXXX";
  static texts_t texts;
  static float vectors[MOST_TEXTS * MOST_NUMBERS], alone[MOST_NUMBERS];
  double difference, angle;
  if (only && strcmp(only, name)) return NULL;
  CHECK(mkdtemp(folder));
  link_encoder(name, folder);
  read_texts(name, &texts);
  mlx_engine_t *engine = open_encoder(folder);
  const mlx_engine_info_t info = mlx_engine_info(engine);
  CHECK(info.is_encoder);
  CHECK_INT(info.hidden, texts.size);
  CHECK_OK(mlx_engine_embed(engine, texts.ids, texts.counts, texts.count, vectors, texts.size, NULL, NULL));
  compare(&texts, vectors, &difference, &angle);
  printf("%s: difference %.1e, 1 - cosine %.1e\n", name, difference, angle);
  if (!(difference < 1e-5 && angle < 1e-6))
    CHECK_FAIL("%s: embeddings differ by %g, cosine 1 - %g", name, difference, angle);
  for (size_t i = 0; i < texts.count; ++i) {  // the same bits alone
    CHECK_OK(mlx_engine_embed(engine, &texts.ids[i], &texts.counts[i], 1, alone, texts.size, NULL, NULL));
    if (memcmp(alone, vectors + i * texts.size, texts.size * sizeof *alone))
      CHECK_FAIL("%s: text %zu has other bits alone than in a batch", name, i);
  }
  mlx_engine_close(engine);
  CHECK_OK(mlx_remove_tree(folder));
  ++*checked;
  return NULL;
}

TEST(every_encoder_matches_hf_alone_and_in_a_batch) {
  size_t checked = 0;
  CHECK_OK(mlx_list_dir(ENCODERS, check_encoder, &checked));
  check_compared(checked, listed_files("fixtures/encoders/", "/golden.json"));
}

// Weights of other formats than f32: |most| is the largest difference of a number, relative to the norm. The
// differences are those of the rounded weights, so they are not 0 either.
static void check_format(const char *name, const char *dtype, const char *quantize, const char *shown,
                         double most) {
  char folder[] = "/tmp/mlxcel-encoder-XXXXXX";
  static texts_t texts;
  static float vectors[MOST_TEXTS * MOST_NUMBERS], alone[MOST_NUMBERS];
  mlx_compile_options_t options = {0};
  double difference, angle;
  CHECK_OK(mlx_weights_choice_parse(dtype, &options.weights, &options.dtype));
  CHECK_OK(mlx_quantize_parse(quantize, &options.quantize));
  CHECK(mkdtemp(folder));
  link_encoder(name, folder);
  read_texts(name, &texts);
  mlx_engine_t *engine = open_parallel(folder, &options, NULL, 0, 0);
  CHECK_TEXT(mlx_engine_info(engine).dtype, shown);
  CHECK_OK(mlx_engine_embed(engine, texts.ids, texts.counts, texts.count, vectors, texts.size, NULL, NULL));
  compare(&texts, vectors, &difference, &angle);
  printf("%s as %s: difference %.1e, 1 - cosine %.1e\n", name, shown, difference, angle);
  if (!(difference < most && difference > 1e-6 && angle < most))
    CHECK_FAIL("%s as %s: embeddings differ by %g, cosine 1 - %g", name, shown, difference, angle);
  CHECK_OK(mlx_engine_embed(engine, &texts.ids[2], &texts.counts[2], 1, alone, texts.size, NULL, NULL));
  CHECK(!memcmp(alone, vectors + 2 * texts.size, texts.size * sizeof *alone));
  mlx_engine_close(engine);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(encoders_have_weights_of_16_and_8_bits) {
  static const char *const names[] = {"bert", "xlm-roberta", "modernbert", "nomic_bert", "eurobert"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    check_format(names[i], "bf16", NULL, "bf16", 0.04);
    check_format(names[i], "auto", "q8", "q8_0", 0.08);
  }
}

// The steps that compute |long_texts| texts of 600 tokens and 96 texts of 16 tokens with an encoder.
static uint64_t count_steps(const char *name, size_t long_texts) {
  enum { SHORT = 96, TEXTS = SHORT + 2, MOST = 600 };
  static int32_t ids[TEXTS][MOST];
  static float vectors[TEXTS][MOST_NUMBERS];
  const int32_t *texts[TEXTS];
  size_t counts[TEXTS];
  char folder[] = "/tmp/mlxcel-encoder-XXXXXX";
  CHECK(mkdtemp(folder));
  link_encoder(name, folder);
  mlx_engine_t *engine = open_encoder(folder);
  const size_t count = SHORT + long_texts;
  size_t tokens = 0;
  for (size_t i = 0; i < count; ++i) {
    for (size_t k = 0; k < MOST; ++k) ids[i][k] = (int32_t)(5 + (31 * i + 7 * k) % 300);
    texts[i] = ids[i];
    counts[i] = i < long_texts ? MOST : 16;
    tokens += counts[i];
  }
  mlx_scheduler_t *scheduler;
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  CHECK_OK(mlx_scheduler_create(engine, &options, &scheduler));
  CHECK_OK(mlx_engine_embed(engine, texts, counts, count, vectors[0], 32, NULL, NULL));
  const mlx_scheduler_stats_t stats = mlx_scheduler_stats(scheduler);
  CHECK_INT(stats.prompt_tokens, tokens);
  CHECK_INT(stats.prefix_hits, 0);
  mlx_scheduler_free(scheduler);
  mlx_engine_close(engine);
  CHECK_OK(mlx_remove_tree(folder));
  return stats.steps;
}

TEST(short_texts_share_steps_of_512_tokens) {
  CHECK_INT(count_steps("bert", 0), 96 * 16 / 512);  // no step is padded
  CHECK_INT(count_steps("modernbert", 0), 96 * 16 / 512);
}

TEST(a_text_of_more_than_512_tokens_has_a_step_of_its_own) {
  CHECK_INT(count_steps("modernbert", 2), 2 + 96 * 16 / 512);
}

TEST(an_encoder_generates_no_text) {
  char folder[] = "/tmp/mlxcel-encoder-XXXXXX";
  const int32_t ids[] = {5, 6, 7};
  mlx_session_t *session;
  mlx_scheduler_t *scheduler;
  mlx_request_t *request;
  mlx_scheduler_options_t options;
  mlx_generate_options_t generate;
  CHECK(mkdtemp(folder));
  link_encoder("bert", folder);
  mlx_engine_t *engine = open_encoder(folder);
  CHECK_ERROR(mlx_session_create(engine, &session), MLX_UNSUPPORTED, "generates no text");
  mlx_scheduler_options_initialize(&options);
  mlx_generate_options_initialize(&generate);
  CHECK_OK(mlx_scheduler_create(engine, &options, &scheduler));
  CHECK_ERROR(mlx_scheduler_submit(scheduler, ids, 3, &generate, &request), MLX_UNSUPPORTED,
              "generates no text");
  mlx_scheduler_free(scheduler);
  mlx_engine_close(engine);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST_MAIN(CASE(every_encoder_matches_hf_alone_and_in_a_batch), CASE(encoders_have_weights_of_16_and_8_bits),
          CASE(short_texts_share_steps_of_512_tokens),
          CASE(a_text_of_more_than_512_tokens_has_a_step_of_its_own), CASE(an_encoder_generates_no_text))
