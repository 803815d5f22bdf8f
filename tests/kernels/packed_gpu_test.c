// Quantized weights on the GPU: the CUDA kernels against the CPU kernel on the same file
// (tests/kernels/cpu_kernels_test.c compares that one with the generic path,
// tests/compiler/packed_directory_test.c with the dequantized model). All formats of GGUF files and of
// Hugging Face directories, shapes that fill no tile, Hopper code and portable code. MLXCEL_SUBJECT=TEXT
// prepares and compares only bundles with TEXT in their names.
#include <math.h>

#include "tests/support/distance.h"
#include "tests/support/gpu.h"
#include "tests/support/packed_subjects.h"
#include "tests/support/random_gguf.h"

#define MAX_VOCAB 1003
#define TOLERANCE 2e-5  // of the logits: ||GPU - CPU|| / ||CPU||
#define DECODED 41      // decode groups of 32 and 8, and a single step

typedef struct model {
  const char *name;
  bool portable;  // also compiled for sm_80
  bool experts;   // a mixture of experts
  bool op_by_op;  // the decode kernel does not support it
} model_t;

static const model_t files[] = {
    {"q4_0", true, false, false},
    {"q4_1", false, false, false},
    {"q8_0", false, false, false},
    {"q4_k", false, false, false},
    {"q6_k", false, false, false},
    {"q2_k", false, false, false},
    {"mxfp4", false, false, false},
    {"k", false, false, false},
    {"all", true, false, false},
    {"mixed-f16-head", true, false, false},
    {"mixed-bf16-head", false, false, false},
    {"mixed-bf16-attention", false, false, false},
    {"mixed-f16-attention", false, false, false},
};
#define FILES (sizeof files / sizeof *files)
#define MODELS (FILES + PACKED_SUBJECTS)

// The files above, then the directories of packed_subjects.h.
static model_t model_at(size_t index) {
  if (index < FILES) return files[index];
  const packed_subject_t *subject = &packed_subjects[index - FILES];
  return (model_t){subject->kind.name, subject->portable, subject->experts,
                   subject->kind.act_order == ACT_ORDER_OF_V};
}

static bool is_portable(const char *name) {
  for (size_t i = 0; i < MODELS; ++i)
    if (!strcmp(model_at(i).name, name)) return model_at(i).portable;
  CHECK_FAIL("no model is called %s", name);
  return false;
}

// Each model is a subject on sm_80, if it is portable, and on sm_90.
#define SUBJECTS (2 * MODELS)
typedef struct subject {
  char name[64], cpu[64];  // bundles
  int sm;                  // oldest GPU that runs it
  bool experts, op_by_op;
} subject_t;

// False if there is no such subject.
static bool subject_at(size_t index, subject_t *out) {
  const model_t model = model_at(index / 2);
  *out = (subject_t){.sm = index % 2 ? 90 : 80, .experts = model.experts, .op_by_op = model.op_by_op};
  snprintf(out->name, sizeof out->name, "%s-sm_%d.mlxb", model.name, out->sm);
  snprintf(out->cpu, sizeof out->cpu, "%s-cpu.mlxb", model.name);
  return out->sm == 90 || model.portable;
}

static bool is_selected(const char *name) {
  const char *only = getenv("MLXCEL_SUBJECT");
  return !only || strstr(name, only);
}

// ----------------------------------------------------------------------------------------------------------
// Compiling the models

static int64_t context = 640;  // of the bundles that compile() makes

static void compile(const char *model, const char *target, mlx_quantize_t quantize, const char *name) {
  const char *level = strchr(target, ':') + 1;
  char bundle[64];
  if (!is_selected(name)) return;
  snprintf(bundle, sizeof bundle, "%s-%s.mlxb", name, strncmp(target, "cpu", 3) ? level : "cpu");
  gpu_compile(model,
              &(mlx_compile_options_t){.target = target,
                                       .weights = quantize ? MLX_WEIGHTS_AUTO : MLX_WEIGHTS_QUANTIZED,
                                       .quantize = quantize,
                                       .context = context,
                                       .kernels = MLX_KERNELS_REQUIRED},
              bundle);
}

// For the CPU and for every GPU that |name| is a subject on.
static void compile_for_all(const char *model, mlx_quantize_t quantize, const char *name) {
  compile(model, "cpu:x86-64-v3", quantize, name);
  if (is_portable(name)) compile(model, "cuda:sm_80", quantize, name);
  compile(model, "cuda:sm_90", quantize, name);
}

static void compile_quantized(const random_llama_t *shape, const char *folder, mlx_quantize_t quantize) {
  const char *name = mlx_quantize_name(quantize);
  compile_for_all(random_llama_write(shape, folder, name), quantize, name);
}

static void compile_types(const char *folder, const char *name, size_t first, size_t count) {
  static const random_llama_t shape = {256, 512, 4, 2, 64, 2, 7, true, 10000};
  char path[128];
  snprintf(path, sizeof path, "%s/%s.gguf", folder, name);
  random_gguf_write(&shape, &random_packed_types[first], count, path);
  compile_for_all(path, MLX_QUANTIZE_NONE, name);
}

static size_t type_number(mlx_dtype_t dtype) {
  for (size_t i = 0; i < RANDOM_PACKED_TYPES; ++i) {
    if (random_packed_types[i].dtype == dtype) return i;
  }
  CHECK_FAIL("no random matrices of this type");
  return 0;
}

// A file with matrices of 16 bits beside quantized ones.
static void compile_mixed(const char *folder, const char *name, const random_llama_t *shape,
                          random_packed_t embedding, random_packed_t attention, random_packed_t mlp) {
  random_packed_t types[RANDOM_MATRICES(2)];
  char path[128];
  snprintf(path, sizeof path, "%s/%s.gguf", folder, name);
  random_types_by_role(2, embedding, attention, mlp, types);
  random_gguf_write(shape, types, RANDOM_MATRICES(2), path);
  compile_for_all(path, MLX_QUANTIZE_NONE, name);
}

// 1312 columns of 16 bits are two stages of the decode kernel, 4096 queries two segments of two stages. The
// scales of so many columns are small, because large scores of attention would enlarge rounding errors.
static void prepare_mixed(const char *folder) {
  static const random_llama_t wide = {1312, 64, 2, 1, 32, 2, 99, true, 10000};
  static const random_llama_t many_queries = {32, 160, 16, 2, 256, 2, 203, true, 10000};
  static const random_packed_t q4_0 = {MLX_Q4_0, 0, -1, 0.005f, 0}, q4_1 = {MLX_Q4_1, 0, 2, 0.005f, -0.0375f};
  const random_packed_t q8 = random_packed_type(MLX_Q8_0), mxfp4 = random_packed_type(MLX_MXFP4);
  compile_mixed(folder, "mixed-f16-head", &wide, random_f16, q4_0, q4_1);
  compile_mixed(folder, "mixed-bf16-head", &many_queries, random_bf16, q8, q4_0);
  compile_mixed(folder, "mixed-bf16-attention", &wide, random_bf16, random_bf16, mxfp4);
  compile_mixed(folder, "mixed-f16-attention", &many_queries, q8, random_f16, q4_0);
}

static void prepare_directories(const char *folder) {
  for (size_t i = 0; i < PACKED_SUBJECTS; ++i) {
    const packed_subject_t *subject = &packed_subjects[i];
    const char *name = subject->kind.name;
    folder_t packed;
    if (!is_selected(name)) continue;
    write_packed_subject(subject, folder, &packed, NULL);
    context = subject->experts ? 512 : 640;
    compile_for_all(packed.path, MLX_QUANTIZE_NONE, name);
    end(&packed);
  }
}

// 576 columns are four and a half tiles; heads of 48, 64 and 128; a vocabulary that ends within a tile.
static const random_llama_t grouped = {576, 1536, 9, 3, 64, 2, 1003, true, 10000};
static const random_llama_t long_heads = {160, 1056, 6, 2, 128, 2, 509, false, 500000};
static const random_llama_t many_heads = {224, 352, 14, 14, 48, 1, 1003, true, 10000};

static void prepare(void) {
  char folder[] = "/tmp/mlxcel-packed-XXXXXX";
  CHECK(mkdtemp(folder));
  compile_quantized(&grouped, folder, MLX_QUANTIZE_Q4_0);
  compile_quantized(&long_heads, folder, MLX_QUANTIZE_Q4_1);
  compile_quantized(&many_heads, folder, MLX_QUANTIZE_Q8_0);
  compile_types(folder, "q4_k", type_number(MLX_Q4_K), 1);
  compile_types(folder, "q6_k", type_number(MLX_Q6_K), 1);
  compile_types(folder, "q2_k", type_number(MLX_Q2_K), 1);
  compile_types(folder, "mxfp4", type_number(MLX_MXFP4), 1);
  compile_types(folder, "k", type_number(MLX_Q4_K), 3);  // types alternate within a role
  compile_types(folder, "all", 0, RANDOM_PACKED_TYPES);
  prepare_mixed(folder);
  prepare_directories(folder);
  CHECK_OK(mlx_remove_tree(folder));
}

// ----------------------------------------------------------------------------------------------------------
// Logits and tokens of a model

typedef struct record {
  float logits[3][MAX_VOCAB];  // after the prompt, after half of DECODED and after all steps
  int32_t ids[DECODED + 1];
} record_t;

static void read_prompt(mlx_session_t *session, const mlx_engine_t *engine, size_t length,
                        int32_t *out_next) {
  int32_t ids[640];
  uint64_t state = 7 + length;
  for (size_t i = 0; i < length; ++i)
    ids[i] = (int32_t)(random_bits(&state) % (uint32_t)mlx_engine_info(engine).vocab);
  CHECK_OK(mlx_session_read(session, ids, length, out_next));
}

// Reads the tokens |forced_ids| if given, because two paths may sample different tokens if logits nearly tie.
// Otherwise decodes in groups or step by step.
static void record_session(mlx_engine_t *engine, size_t length, const int32_t *forced_ids, bool grouped_steps,
                           record_t *out) {
  const size_t vocab = (size_t)mlx_engine_info(engine).vocab, half = DECODED / 2;
  mlx_session_t *session;
  *out = (record_t){0};
  CHECK(vocab <= MAX_VOCAB);
  CHECK_OK(mlx_session_create(engine, &session));
  read_prompt(session, engine, length, &out->ids[0]);
  CHECK_OK(mlx_session_logits(session, out->logits[0], vocab));
  for (int part = 0; part < 2; ++part) {
    const size_t first = part ? half : 0, count = part ? DECODED - half : half;
    if (forced_ids)
      CHECK_OK(mlx_session_read(session, forced_ids + first, count, &out->ids[first + count]));
    else if (grouped_steps)
      CHECK_OK(mlx_session_steps(session, out->ids + 1 + first, count));
    else
      for (size_t i = 0; i < count; ++i) CHECK_OK(mlx_session_step(session, &out->ids[1 + first + i]));
    CHECK_OK(mlx_session_logits(session, out->logits[1 + part], vocab));
  }
  mlx_session_free(session);
}

static const size_t lengths[] = {1, 8, 9, 16, 17, 100, 129, 250, 511, 590};
#define LENGTHS (sizeof lengths / sizeof *lengths)
#define STEP_KERNELS "packed, attention_f32, place, sample, rows"
#define KERNELS "decode, " STEP_KERNELS
#define OP_BY_OP_KERNELS "linear, " STEP_KERNELS  // the head has 16 bits

static bool fits(const mlx_engine_t *engine, size_t length) {
  return (int64_t)length + DECODED <= mlx_engine_info(engine).context;
}

static void compare_with_cpu(const subject_t *subject) {
  static record_t ours, theirs;
  mlx_engine_t *gpu = gpu_open(subject->name), *cpu = gpu_open_on(MLX_USE_CPU, subject->cpu);
  double worst = 0;
  CHECK_TEXT(mlx_engine_info(gpu).kernels, subject->experts    ? KERNELS ", experts"
                                           : subject->op_by_op ? OP_BY_OP_KERNELS
                                                               : KERNELS);
  for (size_t i = 0; i < LENGTHS && fits(gpu, lengths[i]); ++i) {
    record_session(gpu, lengths[i], NULL, true, &ours);
    record_session(cpu, lengths[i], ours.ids, true, &theirs);
    for (int k = 0; k < 3; ++k) {
      const double error = distance(ours.logits[k], theirs.logits[k], (size_t)mlx_engine_info(gpu).vocab);
      if (!(error < TOLERANCE))
        CHECK_FAIL("%s, %zu tokens, record %d: logits differ by %g", subject->name, lengths[i], k, error);
      worst = error > worst ? error : worst;
    }
  }
  fprintf(stderr, "  %s: largest difference %.2g, tolerance %.2g\n", subject->name, worst, TOLERANCE);
  mlx_engine_close(gpu);
  mlx_engine_close(cpu);
}

TEST(quantized_weights_on_the_gpu_match_the_cpu_kernel) {
  int ran = 0;
  subject_t subject;
  for (size_t i = 0; i < SUBJECTS; ++i) {
    if (!subject_at(i, &subject) || !is_selected(subject.name) || !gpu_runs(subject.name, subject.sm))
      continue;
    compare_with_cpu(&subject);
    ++ran;
  }
  if (!ran) SKIP("this GPU runs none of the bundles");
}

TEST(every_run_gives_the_same_bits_in_groups_or_single_steps) {
  static record_t first, again;
  int ran = 0;
  subject_t subject;
  for (size_t i = 0; i < SUBJECTS; ++i) {
    if (!subject_at(i, &subject) || !is_selected(subject.name) || !gpu_runs(subject.name, subject.sm))
      continue;
    mlx_engine_t *gpu = gpu_open(subject.name);
    for (size_t k = 0; k < LENGTHS && fits(gpu, lengths[k]); k += 3) {
      record_session(gpu, lengths[k], NULL, true, &first);
      for (int round = 0; round < 3; ++round) {
        record_session(gpu, lengths[k], NULL, round != 1, &again);
        if (memcmp(&first, &again, sizeof first))
          CHECK_FAIL("%s, %zu tokens: another run gives other bits", subject.name, lengths[k]);
      }
    }
    mlx_engine_close(gpu);
    ++ran;
  }
  if (!ran) SKIP("this GPU runs none of the bundles");
}

static void sample(mlx_engine_t *engine, uint64_t seed, mlx_generation_t *out) {
  static const int32_t prompt[] = {3, 141, 59, 26};
  mlx_session_t *session;
  mlx_sampling_t sampling;
  mlx_generate_options_t options;
  mlx_sampling_initialize(&sampling);
  mlx_generate_options_initialize(&options);
  sampling.seed = seed;
  options.sampling = &sampling;
  options.max_tokens = 100;
  options.ignore_eos = true;
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_generate(session, prompt, sizeof prompt / sizeof *prompt, &options, out));
  mlx_session_free(session);
}

TEST(the_same_seed_gives_the_same_tokens_on_the_gpu_and_on_the_cpu) {
  subject_t subject;
  CHECK(subject_at(0, &subject));
  if (!gpu_runs(subject.name, subject.sm)) SKIP("needs a GPU from sm_%d on", subject.sm);
  mlx_engine_t *gpu = gpu_open(subject.name), *cpu = gpu_open_on(MLX_USE_CPU, subject.cpu);
  mlx_generation_t ours, theirs;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    sample(gpu, seed, &ours);
    sample(cpu, seed, &theirs);
    CHECK_INT(ours.count, 100);
    if (ours.count != theirs.count || memcmp(ours.ids, theirs.ids, ours.count * sizeof *ours.ids))
      CHECK_FAIL("seed %d gives other tokens on the CPU", (int)seed);
    mlx_generation_clear(&ours);
    mlx_generation_clear(&theirs);
  }
  mlx_engine_close(gpu);
  mlx_engine_close(cpu);
}

GPU_TEST_MAIN(prepare, CASE(quantized_weights_on_the_gpu_match_the_cpu_kernel),
              CASE(the_same_seed_gives_the_same_tokens_on_the_gpu_and_on_the_cpu),
              CASE(every_run_gives_the_same_bits_in_groups_or_single_steps))
