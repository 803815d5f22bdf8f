// A model that is divided over ranks (docs/internals/tensor-parallel.md): the bits of one rank that adds the
// same slices, and the tokens of the model that is not divided.
#include <stdlib.h>

#include "base/cpu.h"
#include "compiler/kernels.h"
#include "tests/support/architectures.h"
#include "tests/support/chunks.h"
#include "tests/support/compiled.h"

#define RANDOM_VOCAB 300
#define TINY FIXTURES "tiny-llama"

static char root[] = "/tmp/mlxcel-ranks-XXXXXX";
static const random_llama_t shape = {256, 512, 8, 4, 64, 3, RANDOM_VOCAB, true, 10000};

// Opens |model| as |ranks| ranks whose sums have |slices| slices; no slices: undivided.
static mlx_engine_t *open_ranks(const char *model, const mlx_compile_options_t *compile, int64_t ranks,
                                int64_t slices) {
  mlx_cache_t *cache;
  mlx_compiled_t compiled[MLX_MOST_RANKS];
  mlx_model_parts_t parts[MLX_MOST_RANKS] = {0};
  mlx_engine_t *engine;
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  options.device = MLX_USE_CPU;
  options.threads = 1;
  options.sequences = 4;
  options.context = 256;
  CHECK_OK(mlx_cache_open(NULL, &cache));
  for (int64_t i = 0; i < ranks; ++i) {
    mlx_compile_options_t part = *compile;
    if (slices) part.rank = (mlx_rank_t){.number = i, .count = ranks, .slices = slices};
    CHECK_OK(mlx_compile(model, &part, cache, &compiled[i]));
    parts[i] = (mlx_model_parts_t){.name = model,
                                   .manifest_name = model,
                                   .manifest = compiled[i].manifest,
                                   .manifest_length = compiled[i].manifest_length,
                                   .vmfb_path = compiled[i].vmfb_path,
                                   .weights_path = compiled[i].weights_path};
  }
  CHECK_OK(
      mlx_tokenizer_create(model, compiled[0].tokenizer, compiled[0].tokenizer_length, &parts[0].tokenizer));
  if (ranks > 1)
    CHECK_OK(mlx_engine_open_ranks(parts, (size_t)ranks, &options, &engine));
  else
    CHECK_OK(mlx_engine_open(&parts[0], &options, &engine));
  for (int64_t i = 0; i < ranks; ++i) mlx_compiled_release(&compiled[i]);
  mlx_cache_close(cache);
  return engine;
}

// Few steps: where ranks have no CPU of their own, each sum waits for the system to run the other rank.
enum { PROMPT = 40, TOKENS = 8, MOST_VOCAB = 320 };

typedef struct answer {
  int32_t ids[TOKENS];
  float prompt[MOST_VOCAB], last[MOST_VOCAB];  // logits after the prompt, and after the tokens
} answer_t;

// Reads a prompt in chunks of |chunk| tokens, then decodes.
static answer_t answer_of(mlx_engine_t *engine, size_t chunk) {
  const size_t vocab = (size_t)mlx_engine_info(engine).vocab;
  int32_t ids[LENGTH];
  answer_t out = {0};
  mlx_session_t *session;
  CHECK(vocab <= MOST_VOCAB);
  fill_ids(ids, vocab);
  CHECK_OK(mlx_session_create(engine, &session));
  for (size_t at = 0; at < PROMPT; at += chunk)
    CHECK_OK(mlx_session_read(session, ids + at, PROMPT - at < chunk ? PROMPT - at : chunk, out.ids));
  CHECK_OK(mlx_session_logits(session, out.prompt, vocab));
  CHECK_OK(mlx_session_steps(session, out.ids + 1, TOKENS - 1));
  CHECK_OK(mlx_session_logits(session, out.last, vocab));
  mlx_session_free(session);
  return out;
}

static void check_same_bits(const char *name, mlx_engine_t *have, mlx_engine_t *want) {
  static const size_t chunks[] = {PROMPT, 25};
  for (size_t i = 0; i < sizeof chunks / sizeof *chunks; ++i) {
    const answer_t a = answer_of(have, chunks[i]), b = answer_of(want, chunks[i]);
    if (memcmp(&a, &b, sizeof a)) CHECK_FAIL("%s: chunks of %zu: other bits", name, chunks[i]);
  }
}

// With ranks of |count|: bits of one rank, tokens and nearly the logits of the whole model.
static void check_ranks(const char *name, const char *model, const mlx_compile_options_t *options,
                        int64_t count) {
  mlx_engine_t *whole = open_ranks(model, options, 1, 0), *one = open_ranks(model, options, 1, count),
               *divided = open_ranks(model, options, count, count);
  check_same_bits(name, divided, one);
  const answer_t a = answer_of(whole, PROMPT), b = answer_of(divided, PROMPT);
  const size_t vocab = (size_t)mlx_engine_info(whole).vocab;
  const double error = fmax(difference(b.prompt, a.prompt, vocab), difference(b.last, a.last, vocab));
  fprintf(stderr, "  %s, %lld ranks: largest difference from the whole model %.2g\n", name, (long long)count,
          error);
  if (memcmp(a.ids, b.ids, sizeof a.ids)) CHECK_FAIL("%s: the ranks give other tokens", name);
  CHECK(error < 1e-5);
  // A part of each rank: less than the whole model, but more than its share, because the embedding is whole.
  CHECK(mlx_engine_info(divided).weight_bytes < mlx_engine_info(whole).weight_bytes);
  mlx_engine_close(whole);
  mlx_engine_close(one);
  mlx_engine_close(divided);
}

TEST(fixtures_have_the_bits_of_one_rank_and_the_tokens_of_the_whole_model) {
  static const char *const names[] = {"qwen3", "gemma2"};  // norms of heads; soft caps and windows
  const mlx_compile_options_t options = {.dtype = MLX_F32};
  check_ranks("tiny-llama", TINY, &options, 2);
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    char folder[] = "/tmp/mlxcel-ranks-XXXXXX";
    CHECK(mkdtemp(folder));
    link_model(names[i], folder);
    check_ranks(names[i], folder, &options, 2);
    CHECK_OK(mlx_remove_tree(folder));
  }
}

TEST(weights_of_all_widths_are_divided) {
  const char *model = random_llama_write(&shape, root, "wide");
  check_ranks("f32", model, &(mlx_compile_options_t){.dtype = MLX_F32}, 2);
  check_ranks("bf16", model, &(mlx_compile_options_t){.dtype = MLX_BF16, .kv = MLX_F32, .kv_given = true}, 2);
}

// Four ranks add in the order of two: one slice each, or two.
TEST(the_bits_do_not_depend_on_the_number_of_ranks) {
  const char *model = random_llama_write(&shape, root, "slices");
  const mlx_compile_options_t options = {.dtype = MLX_F32};
  mlx_engine_t *two = open_ranks(model, &options, 2, 4), *four = open_ranks(model, &options, 4, 4);
  check_same_bits("2 and 4 ranks", two, four);
  mlx_engine_close(two);
  mlx_engine_close(four);
}

// Requests of a scheduler share steps on all ranks, with prefixes from the cache.
TEST(many_sequences_on_ranks_have_the_tokens_that_they_have_alone) {
  enum { REQUESTS = 4 };
  mlx_engine_t *engine = open_ranks(TINY, &(mlx_compile_options_t){.dtype = MLX_F32}, 2, 2);
  mlx_scheduler_options_t scheduling;
  mlx_generate_options_t generate;
  mlx_request_t *requests[REQUESTS];
  int32_t ids[LENGTH], expected[REQUESTS][8];
  fill_ids(ids, (size_t)mlx_engine_info(engine).vocab);
  for (int i = 0; i < REQUESTS; ++i) {
    mlx_session_t *session;
    CHECK_OK(mlx_session_create(engine, &session));
    CHECK_OK(mlx_session_read(session, ids + i % 3, (size_t)(40 + 5 * i), expected[i]));
    CHECK_OK(mlx_session_steps(session, expected[i] + 1, 7));
    mlx_session_free(session);
  }
  mlx_scheduler_t *scheduler;
  mlx_scheduler_options_initialize(&scheduling);
  CHECK_OK(mlx_scheduler_create(engine, &scheduling, &scheduler));
  mlx_generate_options_initialize(&generate);
  generate.max_tokens = 8;
  generate.ignore_eos = true;
  for (int i = 0; i < REQUESTS; ++i)
    CHECK_OK(mlx_scheduler_submit(scheduler, ids + i % 3, (size_t)(40 + 5 * i), &generate, &requests[i]));
  CHECK_OK(mlx_scheduler_run(scheduler));
  for (int i = 0; i < REQUESTS; ++i) {
    const mlx_generation_t *g = mlx_request_generation(requests[i]);
    CHECK_INT((int64_t)g->count, 8);
    for (int k = 0; k < 8; ++k) CHECK_INT(g->ids[k], expected[i][k]);
    mlx_request_free(requests[i]);
  }
  mlx_scheduler_free(scheduler);
  mlx_engine_close(engine);
}

static void check_refused(const char *name, const char *part) {
  char folder[] = "/tmp/mlxcel-ranks-XXXXXX";
  mlx_engine_t *engine;
  mlx_engine_options_t options;
  CHECK(mkdtemp(folder));
  link_model(name, folder);
  mlx_engine_options_initialize(&options);
  options.device = MLX_USE_CPU;
  options.ranks = 2;
  CHECK_ERROR(mlx_open(folder, &options, &engine), MLX_UNSUPPORTED, part);
  CHECK(!engine);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST(models_that_cannot_be_divided_are_refused_with_the_op) {
  check_refused("gpt_oss", "has sinks, biases of distances, latent keys or whole texts");
  check_refused("deepseek_v2", "reads a value that is not made of heads");
}

TEST(ranks_of_a_gpu_of_a_bundle_and_of_odd_numbers_are_refused) {
  mlx_engine_t *engine;
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  options.device = MLX_USE_CPU;
  options.ranks = 3;
  CHECK_ERROR(mlx_open(TINY, &options, &engine), MLX_USAGE, "rank 0 of 3 with 3 slices is not possible");
  options.ranks = 2;
  options.device = MLX_USE_CUDA;
  CHECK_ERROR(mlx_open(TINY, &options, &engine), MLX_UNSUPPORTED, "a model on a GPU cannot be divided");
}

TEST(the_option_opens_all_ranks) {
  mlx_engine_t *engine;
  mlx_engine_options_t options;
  mlx_generate_options_t generate;
  mlx_generation_t result[2];
  int32_t *ids;
  size_t count;
  for (int ranks = 0; ranks < 4; ranks += 2) {
    mlx_session_t *session;
    mlx_engine_options_initialize(&options);
    options.device = MLX_USE_CPU;
    options.ranks = ranks;
    CHECK_OK(mlx_open(TINY, &options, &engine));
    CHECK_OK(mlx_engine_tokenize(engine, "the quick brown", 15, &ids, &count));
    CHECK_OK(mlx_session_create(engine, &session));
    mlx_generate_options_initialize(&generate);
    generate.max_tokens = 16;
    generate.ignore_eos = true;
    CHECK_OK(mlx_session_generate(session, ids, count, &generate, &result[ranks / 2]));
    mlx_session_free(session);
    mlx_engine_free_ids(ids);
    mlx_engine_close(engine);
  }
  CHECK_TEXT(result[1].text, result[0].text);
  for (int i = 0; i < 2; ++i) mlx_generation_clear(&result[i]);
}

int main(int argc, char **argv) {
  static const check_case_t cases[] = {
      CASE(fixtures_have_the_bits_of_one_rank_and_the_tokens_of_the_whole_model),
      CASE(weights_of_all_widths_are_divided),
      CASE(the_bits_do_not_depend_on_the_number_of_ranks),
      CASE(many_sequences_on_ranks_have_the_tokens_that_they_have_alone),
      CASE(models_that_cannot_be_divided_are_refused_with_the_op),
      CASE(ranks_of_a_gpu_of_a_bundle_and_of_odd_numbers_are_refused),
      CASE(the_option_opens_all_ranks)};
  if (!mkdtemp(root)) return 1;
  const bool has_kernels = mlx_kernels_cpu_level("host");
  if (!has_kernels) fprintf(stderr, "skipped: there is no CPU kernel for this machine\n");
  const int failed = has_kernels ? check_run(cases, sizeof cases / sizeof *cases, argc, argv) : CHECK_SKIPPED;
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
