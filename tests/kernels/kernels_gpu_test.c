// The CUDA kernel path against the generic path of the same model on the same GPU, over shapes that fit no
// tile.
#include <math.h>

#include "base/memory.h"
#include "runtime/rooms.h"
#include "tests/support/distance.h"
#include "tests/support/gpu.h"
#include "tests/support/random_llama.h"
#include "tokenizer/tokenizer.h"

#define MAX_VOCAB 16411
#define KERNELS "decode, linear, attention, attention_f32, place, sample, rows"

// A module with kernels, and a bundle of the same model that uses the generic path. Both modules use the
// weights of that bundle.
typedef struct subject {
  const char *name, *generic;  // names of the module and of the bundle
  int sm;                      // oldest GPU that runs it
  const char *kernels;         // kernels that the module must contain
  double tolerance;            // of the logits: ||ours - generic|| / ||generic||
} subject_t;

static const subject_t subjects[] = {
    {"a-sm_80", "a.mlxb", 80, KERNELS, 2e-2}, {"c-sm_80", "c.mlxb", 80, KERNELS, 2e-2},
    {"a-sm_90", "a.mlxb", 90, KERNELS, 2e-2}, {"b-sm_90", "b.mlxb", 90, KERNELS, 3e-3},
    {"c-sm_90", "c.mlxb", 90, KERNELS, 2e-2},
};
#define SUBJECTS (sizeof subjects / sizeof *subjects)
#define TWO_SEQUENCES (&subjects[3])

// ----------------------------------------------------------------------------------------------------------
// Compiling the models

// Together these models make the compiler choose every tile size it has for Hopper. Model c has activations
// too wide for registers, so they are staged in shared memory, and a vocabulary so large that a warp computes
// four rows. Model b has matrices with many rows and few columns. Heads of a are no multiple of 16.
static const random_llama_t model_a = {200, 328, 5, 5, 40, 3, 1003, false, 10000};
static const random_llama_t model_b = {1544, 136, 8, 1, 32, 2, 509, true, 500000};
static const random_llama_t model_c = {136, 9224, 18, 2, 128, 1, 16411, true, 10000};

static void compile_generic(const char *model, mlx_dtype_t dtype, int64_t context, const char *name) {
  gpu_compile(model,
              &(mlx_compile_options_t){
                  .target = "cuda:sm_80", .dtype = dtype, .context = context, .kernels = MLX_KERNELS_OFF},
              name);
}

// Writes only the module and its manifest: the weights are those of the generic bundle.
static void compile_ours(const char *model, mlx_compile_options_t options, const char *name) {
  char file[64];
  mlx_cache_t *cache;
  mlx_compiled_t compiled;
  options.kernels = MLX_KERNELS_REQUIRED;
  options.module_only = true;
  CHECK_OK(mlx_cache_open(NULL, &cache));
  CHECK_OK(mlx_compile(model, &options, cache, &compiled));
  snprintf(file, sizeof file, "%s.vmfb", name);
  gpu_copy(compiled.vmfb_path, file);
  snprintf(file, sizeof file, "%s.json", name);
  CHECK_OK(mlx_write_file(gpu_file(file), compiled.manifest, compiled.manifest_length));
  mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
}

// PTX for sm_80 runs on every later GPU, which tests the portable code there.
static void prepare(void) {
  char folder[] = "/tmp/mlxcel-kernels-XXXXXX";
  CHECK(mkdtemp(folder));
  const char *model = random_llama_write(&model_a, folder, "a");
  compile_generic(model, MLX_BF16, 1024, "a.mlxb");
  compile_ours(model, (mlx_compile_options_t){.target = "cuda:sm_80", .dtype = MLX_BF16, .context = 1024},
               "a-sm_80");
  compile_ours(model, (mlx_compile_options_t){.target = "cuda:sm_90", .dtype = MLX_BF16, .context = 1024},
               "a-sm_90");
  model = random_llama_write(&model_b, folder, "b");
  compile_generic(model, MLX_F16, 1024, "b.mlxb");
  compile_ours(model, (mlx_compile_options_t){.target = "cuda:sm_90", .dtype = MLX_F16, .context = 1024},
               "b-sm_90");
  model = random_llama_write(&model_c, folder, "c");
  compile_generic(model, MLX_BF16, 640, "c.mlxb");
  compile_ours(model, (mlx_compile_options_t){.target = "cuda:sm_80", .dtype = MLX_BF16, .context = 640},
               "c-sm_80");
  compile_ours(model, (mlx_compile_options_t){.target = "cuda:sm_90", .dtype = MLX_BF16, .context = 640},
               "c-sm_90");
  CHECK_OK(mlx_remove_tree(folder));
}

// ----------------------------------------------------------------------------------------------------------
// Opening the models

static char *read_text(const char *name, size_t *out_length) {
  char *text;
  CHECK_OK(mlx_read_file(gpu_file(name), 1 << 20, &text, out_length));
  return text;
}

static mlx_engine_t *open_for(const subject_t *subject, int64_t sequences) {
  char manifest[64], tokenizer[64], vmfb[64], weights[64];
  snprintf(manifest, sizeof manifest, "%s.json", subject->name);
  snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer.json", subject->generic);
  snprintf(vmfb, sizeof vmfb, "%s.vmfb", subject->name);
  snprintf(weights, sizeof weights, "%s/weights.irpa", subject->generic);
  mlx_model_parts_t parts = {.name = subject->name,
                             .manifest_name = manifest,
                             .vmfb_path = gpu_file(vmfb),
                             .weights_path = gpu_file(weights)};
  size_t length;
  char *manifest_text = read_text(manifest, &parts.manifest_length),
       *tokenizer_text = read_text(tokenizer, &length);
  parts.manifest = manifest_text;
  CHECK_OK(mlx_tokenizer_create(tokenizer, tokenizer_text, length, &parts.tokenizer));
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  options.device = MLX_USE_CUDA;
  options.sequences = sequences;
  mlx_engine_t *engine;
  CHECK_OK(mlx_engine_open(&parts, &options, &engine));
  mlx_free(manifest_text);
  mlx_free(tokenizer_text);
  CHECK_TEXT(mlx_engine_info(engine).kernels, subject->kernels);
  return engine;
}

static mlx_engine_t *open_ours(const subject_t *subject) { return open_for(subject, 1); }

// MLXCEL_SUBJECT selects subjects whose name contains it.
static bool is_selected(const char *name) {
  const char *only = getenv("MLXCEL_SUBJECT");
  return !only || strstr(name, only);
}

// Runs |test| for each subject that this GPU supports; skips the test if there is none.
static void for_each_subject(void (*test)(const subject_t *subject, mlx_engine_t *ours)) {
  int ran = 0;
  for (size_t i = 0; i < SUBJECTS; ++i) {
    if (!is_selected(subjects[i].name) || !gpu_runs(subjects[i].name, subjects[i].sm)) continue;
    mlx_engine_t *ours = open_ours(&subjects[i]);
    test(&subjects[i], ours);
    mlx_engine_close(ours);
    ++ran;
  }
  if (!ran) SKIP("this GPU runs none of the modules");
}

// ----------------------------------------------------------------------------------------------------------
// Prompts and logits

// |count| tokens, always the same for a given count.
static const int32_t *prompt(const mlx_engine_t *engine, size_t count) {
  static int32_t ids[1024];
  uint64_t state = 7 + count;
  CHECK(count <= sizeof ids / sizeof *ids);
  for (size_t i = 0; i < count; ++i)
    ids[i] = (int32_t)(random_bits(&state) % (uint32_t)mlx_engine_info(engine).vocab);
  return ids;
}

static int32_t first_largest(const float *logits, size_t count) {
  size_t best = 0;
  for (size_t i = 1; i < count; ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return (int32_t)best;
}

// ----------------------------------------------------------------------------------------------------------
// Two sessions over the same tokens, one per path

typedef struct pair {
  const subject_t *subject;
  mlx_engine_t *generic_engine, *ours_engine;
  mlx_session_t *generic, *ours;
  int32_t generic_next, ours_next;
  int decoded;  // calls in which ours decoded by itself
  int read;     // calls in which ours read the tokens of the generic path instead
  double worst;
} pair_t;

static void pair_begin(pair_t *p) {
  CHECK_OK(mlx_session_create(p->generic_engine, &p->generic));
  CHECK_OK(mlx_session_create(p->ours_engine, &p->ours));
}

static void pair_end(pair_t *p) {
  mlx_session_free(p->generic);
  mlx_session_free(p->ours);
}

static void pair_compare(pair_t *p, const char *after) {
  static float generic[MAX_VOCAB], ours[MAX_VOCAB];
  const size_t vocab = (size_t)mlx_engine_info(p->ours_engine).vocab;
  const long long length = mlx_session_length(p->ours);
  CHECK(vocab <= MAX_VOCAB && length == mlx_session_length(p->generic));
  CHECK_OK(mlx_session_logits(p->generic, generic, vocab));
  CHECK_OK(mlx_session_logits(p->ours, ours, vocab));
  const int32_t largest = first_largest(ours, vocab);
  if (p->ours_next != largest) {
    CHECK_FAIL("%s, %lld positions, after %s: token %d was sampled, but %d has the largest logit",
               p->subject->name, length, after, p->ours_next, largest);
  }
  const double error = distance(ours, generic, vocab);
  if (!(error < p->subject->tolerance)) {  // also true for NaN
    CHECK_FAIL("%s, %lld positions, after %s: logits differ by %g, tolerance %g", p->subject->name, length,
               after, error, p->subject->tolerance);
  }
  if (error > p->worst) p->worst = error;
}

static void pair_read(pair_t *p, const int32_t *ids, size_t count) {
  CHECK_OK(mlx_session_read(p->generic, ids, count, &p->generic_next));
  CHECK_OK(mlx_session_read(p->ours, ids, count, &p->ours_next));
  pair_compare(p, "a read");
}

// Both sessions decode |count| more tokens. Decoding continues from the token sampled on the device. If two
// logits nearly tie, ours may sample another token; then it reads the tokens of the generic path instead.
static void pair_decode(pair_t *p, size_t count) {
  int32_t fed[32], ours[32], generic[32];
  const int64_t start = mlx_session_length(p->ours);
  CHECK_OK(mlx_session_steps(p->generic, generic, count));
  fed[0] = p->generic_next;
  memcpy(fed + 1, generic, (count - 1) * sizeof *fed);
  bool same = p->ours_next == p->generic_next;
  p->generic_next = generic[count - 1];
  if (same) {
    CHECK_OK(mlx_session_steps(p->ours, ours, count));
    same = !memcmp(ours, generic, (count - 1) * sizeof *ours);
    p->ours_next = ours[count - 1];
  }
  if (!same) {
    CHECK_OK(mlx_session_rewind(p->ours, start));
    CHECK_OK(mlx_session_read(p->ours, fed, count, &p->ours_next));
  }
  *(same ? &p->decoded : &p->read) += 1;
  pair_compare(p, !same        ? "the generic path's tokens"
                  : count == 1 ? "a step"
                  : count == 8 ? "a group of 8"
                               : "a group of 32");
}

static void pair_report(const pair_t *p) {
  fprintf(stderr, "  %s: largest difference %.2g, tolerance %.2g; %d of %d decodes compared\n",
          p->subject->name, p->worst, p->subject->tolerance, p->decoded, p->decoded + p->read);
  CHECK(p->decoded >= p->read);
}

// ----------------------------------------------------------------------------------------------------------
// Tests

// Lengths around the step sizes. From 250 and 511 the steps cross 256 and 512 positions, where a chunk of
// attention ends.
static void compare_paths(const subject_t *subject, mlx_engine_t *ours) {
  static const size_t lengths[] = {1, 7, 8, 15, 16, 17, 63, 65, 100, 129, 250, 300, 511, 530, 900};
  pair_t p = {.subject = subject, .generic_engine = gpu_open(subject->generic), .ours_engine = ours};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; ++i) {
    if ((int64_t)lengths[i] + 52 > mlx_engine_info(ours).context) continue;
    pair_begin(&p);
    pair_read(&p, prompt(ours, lengths[i]), lengths[i]);
    for (int step = 0; step < 12; ++step) pair_decode(&p, 1);
    pair_decode(&p, 8);
    pair_decode(&p, 32);
    pair_end(&p);
  }
  pair_report(&p);
  mlx_engine_close(p.generic_engine);
}

TEST(kernel_path_matches_the_generic_path_and_samples_its_largest_logit) { for_each_subject(compare_paths); }

// Tokens of a session, and its logits at some positions.
typedef struct record {
  int32_t ids[45];
  float logits[7][MAX_VOCAB];
} record_t;

static void save_logits(mlx_session_t *session, const mlx_engine_t *engine, float *out_logits) {
  CHECK_OK(mlx_session_logits(session, out_logits, (size_t)mlx_engine_info(engine).vocab));
}

static record_t *record_run(mlx_engine_t *engine, size_t length) {
  record_t *r;
  mlx_session_t *session;
  CHECK_OK(mlx_alloc(1, sizeof *r, &r));
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, prompt(engine, length), length, r->ids));
  save_logits(session, engine, r->logits[0]);
  for (int i = 1; i < 5; ++i) {
    CHECK_OK(mlx_session_step(session, &r->ids[i]));
    save_logits(session, engine, r->logits[i]);
  }
  CHECK_OK(mlx_session_steps(session, r->ids + 5, 8));
  save_logits(session, engine, r->logits[5]);
  CHECK_OK(mlx_session_steps(session, r->ids + 13, 32));
  save_logits(session, engine, r->logits[6]);
  mlx_session_free(session);
  return r;
}

// Releases |actual|.
static void check_same(const subject_t *subject, const record_t *expected, record_t *actual) {
  for (int i = 0; i < 45; ++i) {
    if (actual->ids[i] != expected->ids[i])
      CHECK_FAIL("%s: token %d is %d, expected %d", subject->name, i, actual->ids[i], expected->ids[i]);
  }
  for (int i = 0; i < 7; ++i) {
    if (memcmp(actual->logits[i], expected->logits[i], sizeof actual->logits[i]))
      CHECK_FAIL("%s: logits %d differ", subject->name, i);
  }
  mlx_free(actual);
}

static void check_repeatable(const subject_t *subject, mlx_engine_t *ours) {
  static const size_t lengths[] = {1, 129, 530};
  mlx_engine_t *another = open_ours(subject);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; ++i) {
    record_t *first = record_run(ours, lengths[i]);
    for (int run = 0; run < 3; ++run) check_same(subject, first, record_run(ours, lengths[i]));
    check_same(subject, first, record_run(another, lengths[i]));
    mlx_free(first);
  }
  mlx_engine_close(another);
}

TEST(every_run_and_every_engine_gives_the_same_bits) { for_each_subject(check_repeatable); }

// Decodes 40 tokens, one by one or in groups of 8 and 32. Stores the logits after 8 and after 40 tokens.
static void decode_40(mlx_engine_t *engine, size_t length, bool grouped, int32_t *out_ids,
                      float logits[2][MAX_VOCAB]) {
  mlx_session_t *session;
  int32_t next;
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, prompt(engine, length), length, &next));
  if (grouped) CHECK_OK(mlx_session_steps(session, out_ids, 8));
  for (int i = 0; !grouped && i < 8; ++i) CHECK_OK(mlx_session_step(session, &out_ids[i]));
  save_logits(session, engine, logits[0]);
  if (grouped) CHECK_OK(mlx_session_steps(session, out_ids + 8, 32));
  for (int i = 8; !grouped && i < 40; ++i) CHECK_OK(mlx_session_step(session, &out_ids[i]));
  save_logits(session, engine, logits[1]);
  mlx_session_free(session);
}

// From 250 the group of 8 crosses position 256; from 485 the group of 32 crosses position 512.
static void check_groups(const subject_t *subject, mlx_engine_t *ours) {
  static const size_t lengths[] = {1, 17, 250, 485};
  static float single_logits[2][MAX_VOCAB], group_logits[2][MAX_VOCAB];
  int32_t single[40], grouped[40];
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; ++i) {
    decode_40(ours, lengths[i], false, single, single_logits);
    decode_40(ours, lengths[i], true, grouped, group_logits);
    for (int k = 0; k < 40; ++k) {
      if (single[k] == grouped[k]) continue;
      CHECK_FAIL("%s after %zu: token %d is %d in a group, %d in single steps", subject->name, lengths[i], k,
                 grouped[k], single[k]);
    }
    if (memcmp(single_logits, group_logits, sizeof single_logits)) {
      CHECK_FAIL("%s after %zu: logits of groups and single steps differ", subject->name, lengths[i]);
    }
  }
}

TEST(decode_groups_are_bit_identical_to_single_steps) { for_each_subject(check_groups); }

static void check_rewind(const subject_t *subject, mlx_engine_t *ours) {
  pair_t p = {.subject = subject, .generic_engine = gpu_open(subject->generic), .ours_engine = ours};
  static const int64_t dropped[] = {1, 7, 31, 32, 90};
  for (size_t i = 0; i < sizeof dropped / sizeof *dropped; ++i) {
    pair_begin(&p);
    pair_read(&p, prompt(ours, 235), 235);
    pair_decode(&p, 32);
    CHECK_OK(mlx_session_rewind(p.generic, 267 - dropped[i]));
    CHECK_OK(mlx_session_rewind(p.ours, 267 - dropped[i]));
    pair_read(&p, prompt(ours, 3), 3);
    for (int step = 0; step < 4; ++step) pair_decode(&p, 1);
    pair_decode(&p, 32);
    pair_read(&p, prompt(ours, 20), 20);
    pair_decode(&p, 8);
    pair_end(&p);
  }
  pair_report(&p);
  mlx_engine_close(p.generic_engine);
}

TEST(session_is_correct_after_a_rewind_and_after_a_decode_group) { for_each_subject(check_rewind); }

// Their pages are interleaved in one pool.
TEST(two_sessions_of_one_engine_do_not_affect_each_other) {
  if (!gpu_runs(TWO_SEQUENCES->name, TWO_SEQUENCES->sm)) SKIP("needs a GPU from sm_%d on", TWO_SEQUENCES->sm);
  static const size_t lengths[] = {100, 37};
  mlx_engine_t *ours = open_for(TWO_SEQUENCES, 2);
  pair_t pairs[2];
  CHECK_INT(mlx_engine_info(ours).sequences, 2);
  for (int i = 0; i < 2; ++i) {
    pairs[i] = (pair_t){
        .subject = TWO_SEQUENCES, .generic_engine = gpu_open(TWO_SEQUENCES->generic), .ours_engine = ours};
    pair_begin(&pairs[i]);
    pair_read(&pairs[i], prompt(ours, lengths[i]), lengths[i]);
  }
  for (int step = 0; step < 40; ++step) pair_decode(&pairs[step % 2], 1);
  pair_read(&pairs[1], prompt(ours, 129), 129);
  for (int step = 0; step < 40; ++step) pair_decode(&pairs[step % 2], step % 4 ? 1 : 8);
  for (int i = 0; i < 2; ++i) {
    pair_end(&pairs[i]);
    pair_report(&pairs[i]);
    mlx_engine_close(pairs[i].generic_engine);
  }
  mlx_engine_close(ours);
}

TEST(session_gives_the_same_bits_in_either_sequence_slot) {
  if (!gpu_runs(TWO_SEQUENCES->name, TWO_SEQUENCES->sm)) SKIP("needs a GPU from sm_%d on", TWO_SEQUENCES->sm);
  mlx_engine_t *ours = open_for(TWO_SEQUENCES, 2);
  mlx_session_t *other;
  int32_t next;
  record_t *alone = record_run(ours, 129);
  CHECK_OK(mlx_session_create(ours, &other));  // uses sequence slot 0 and the first pages
  CHECK_OK(mlx_session_read(other, prompt(ours, 50), 50, &next));
  check_same(TWO_SEQUENCES, alone, record_run(ours, 129));
  mlx_session_free(other);
  mlx_free(alone);
  mlx_engine_close(ours);
}

GPU_TEST_MAIN(prepare, CASE(kernel_path_matches_the_generic_path_and_samples_its_largest_logit),
              CASE(every_run_and_every_engine_gives_the_same_bits),
              CASE(decode_groups_are_bit_identical_to_single_steps),
              CASE(session_is_correct_after_a_rewind_and_after_a_decode_group),
              CASE(two_sessions_of_one_engine_do_not_affect_each_other),
              CASE(session_gives_the_same_bits_in_either_sequence_slot))
