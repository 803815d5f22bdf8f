// The decode kernel on networks that differ from Llama's, against Hugging Face in f32: fixtures whose heads
// have a size that the kernel supports, and wide fixtures. arch_gpu_test.c has all architectures on the
// generic path, and all wide fixtures. The code for GPUs with 99 KB of shared memory runs on any GPU, and is
// compared with the CPU kernel.
#include "base/memory.h"
#include "tests/support/architectures.h"
#include "tests/support/compile_jobs.h"
#include "tests/support/distance.h"
#include "tests/support/gpu.h"
#include "tests/support/random_llama.h"
#include "tests/support/wide_fixtures.h"

// ----------------------------------------------------------------------------------------------------------
// Networks

static const char *const fixtures[] = {
    "llama-yarn",       "mimo",  "qwen3", "gemma2",  "gemma3",    "ernie4_5", "glm4",         "ministral3",
    "hunyuan_v1_dense", "olmo2", "olmo3", "exaone4", "qwen3_moe", "gpt_oss",  "gpt_oss-mxfp4"};
#define SMALL (sizeof fixtures / sizeof *fixtures)

static const char *const wide_fixtures[] = {"arcee",
                                            "starcoder2",
                                            "olmo",
                                            "gpt2",
                                            "cohere",
                                            "cohere2",
                                            "phi",
                                            "gpt_neox",
                                            "gpt_neox-serial",
                                            "stablelm",
                                            "stablelm-parallel",
                                            "olmoe",
                                            "qwen2_moe",
                                            "lfm2",
                                            "qwen3_5"};
#define COUNT (SMALL + sizeof wide_fixtures / sizeof *wide_fixtures)

static const char *fixture_at(size_t i) { return i < SMALL ? fixtures[i] : wide_fixtures[i - SMALL]; }

// MLXCEL_ARCH selects one fixture.
static bool is_selected(const char *name) {
  const char *only = getenv("MLXCEL_ARCH");
  return !only || !strcmp(only, name);
}

static void prepare_networks(void) {
  for (size_t i = 0; i < COUNT; ++i) {
    char folder[] = "/tmp/mlxcel-decode-XXXXXX", path[512], file[64];
    const char *name = fixture_at(i);
    if (!is_selected(name)) continue;
    CHECK(mkdtemp(folder));
    if (i < SMALL)
      link_model(name, folder);
    else
      write_wide_model(name, folder);
    snprintf(file, sizeof file, "decode-%s.mlxb", name);
    gpu_compile(folder,
                &(mlx_compile_options_t){.target = "cuda:sm_90",
                                         .weights = MLX_WEIGHTS_AUTO,
                                         .context = CONTEXT,
                                         .kernels = MLX_KERNELS_AUTO},
                file);
    snprintf(path, sizeof path, "%s%s.json", i < SMALL ? GOLDENS : WIDE_GOLDENS, name);
    snprintf(file, sizeof file, "decode-%s.json", name);
    gpu_copy(path, file);
    CHECK_OK(mlx_remove_tree(folder));
  }
}

TEST(each_form_of_network_matches_hf_token_for_token_on_the_decode_kernel) {
  for (size_t i = 0; i < COUNT; ++i) {
    char file[64];
    const char *name = fixture_at(i);
    snprintf(file, sizeof file, "decode-%s.mlxb", name);
    if (!is_selected(name) || !gpu_runs(file, 90)) continue;
    mlx_engine_t *engine = gpu_open(file);
    CHECK_CONTAINS(mlx_engine_info(engine).kernels, "decode");
    CHECK_TEXT(mlx_engine_info(engine).activations, "f32");
    snprintf(file, sizeof file, "decode-%s.json", name);
    check_goldens(engine, name, gpu_file(file));
    mlx_engine_close(engine);
  }
}

// ----------------------------------------------------------------------------------------------------------
// 99 KB of shared memory

#define SMALL_SHARED (99 << 10)
#define TOLERANCE 2e-5  // of the logits: ||GPU - CPU|| / ||CPU||
#define DECODED 40      // groups of 8 and 32 tokens

// The MLP and the rows of an 8B model, each in a network of one layer that is narrow elsewhere: its bundle
// has 8 to 11 MB. 14336 hidden values are 14 segments; those of a 16-bit MLP are multiplied in two parts.
// 4096 columns are four segments. The two largest logits of each step differ by 1e-4 of the largest or more.
static const struct small_gpu {
  const char *name;
  random_llama_t shape;
  mlx_quantize_t quantize;  // none: exact bf16
} small_gpus[] = {
    {"mlp-q4_0", {256, 14336, 4, 2, 64, 1, VOCAB, false, 10000}, MLX_QUANTIZE_Q4_0},
    {"mlp-bf16", {64, 14336, 4, 2, 32, 1, VOCAB, false, 10000}, MLX_QUANTIZE_NONE},
    {"rows-q4_1", {4096, 352, 4, 2, 64, 1, VOCAB, false, 10000}, MLX_QUANTIZE_Q4_1},
};
#define SMALL_GPUS (sizeof small_gpus / sizeof *small_gpus)

// The decode kernel of a job with |options| is for sm_80 and has stages of 1024 columns in 99 KB.
static void check_small_plan(const char *model, const mlx_compile_options_t *options) {
  mlx_compile_job_t job;
  begin_job(model, options, &job);
  emit_job(&job);
  const char *definitions = job_definitions(&job, MLX_KERNEL_DECODE);
  CHECK(definitions);
  CHECK_CONTAINS(definitions, "\nshared_bytes=101376\n");
  CHECK_CONTAINS(definitions, "\nsegment=1024\n");
  CHECK_CONTAINS(job.mlir, "workgroup_local_memory = 101376");
  CHECK_INT(job.kernels.gpu->kernel_sm, 80);
  end_job(&job);
}

static void prepare_small_gpus(void) {
  for (size_t i = 0; i < SMALL_GPUS; ++i) {
    char folder[] = "/tmp/mlxcel-decode-XXXXXX", file[64];
    mlx_compile_options_t options = {.target = "cuda:sm_80",
                                     .weights = MLX_WEIGHTS_AUTO,
                                     .quantize = small_gpus[i].quantize,
                                     .context = CONTEXT,
                                     .kernels = MLX_KERNELS_REQUIRED,
                                     .shared_bytes = SMALL_SHARED};
    if (!is_selected(small_gpus[i].name)) continue;
    CHECK(mkdtemp(folder));
    random_llama_dtype = "BF16";
    const char *model = random_llama_write(&small_gpus[i].shape, folder, small_gpus[i].name);
    check_small_plan(model, &options);
    snprintf(file, sizeof file, "decode-%s.mlxb", small_gpus[i].name);
    gpu_compile(model, &options, file);
    options.target = "cpu:x86-64-v3";
    snprintf(file, sizeof file, "decode-%s-cpu.mlxb", small_gpus[i].name);
    gpu_compile(model, &options, file);
    CHECK_OK(mlx_remove_tree(folder));
  }
}

static void decode(mlx_engine_t *engine, size_t length, int32_t out_ids[1 + DECODED],
                   float out_logits[VOCAB]) {
  mlx_session_t *session;
  int32_t prompt[CONTEXT];
  for (size_t i = 0; i < length; ++i) prompt[i] = (int32_t)((i * 37 + 11) % VOCAB);
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, prompt, length, out_ids));
  CHECK_OK(mlx_session_steps(session, out_ids + 1, 8));
  CHECK_OK(mlx_session_steps(session, out_ids + 9, DECODED - 8));
  CHECK_OK(mlx_session_logits(session, out_logits, VOCAB));
  mlx_session_free(session);
}

static void compare_with_cpu(const char *name) {
  static const size_t lengths[] = {1, 17, 130, 200};
  int32_t ours[1 + DECODED], theirs[1 + DECODED];
  float our_logits[VOCAB], their_logits[VOCAB];
  char file[64];
  snprintf(file, sizeof file, "decode-%s.mlxb", name);
  mlx_engine_t *gpu = gpu_open(file);
  snprintf(file, sizeof file, "decode-%s-cpu.mlxb", name);
  mlx_engine_t *cpu = gpu_open_on(MLX_USE_CPU, file);
  CHECK_CONTAINS(mlx_engine_info(gpu).kernels, "decode");
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; ++i) {
    decode(gpu, lengths[i], ours, our_logits);
    decode(cpu, lengths[i], theirs, their_logits);
    for (int k = 0; k <= DECODED; ++k) {
      if (ours[k] != theirs[k])
        CHECK_FAIL("%s after %zu: token %d is %d, on the CPU %d", name, lengths[i], k, ours[k], theirs[k]);
    }
    const double error = distance(our_logits, their_logits, VOCAB);
    if (!(error < TOLERANCE)) CHECK_FAIL("%s after %zu: logits differ by %g", name, lengths[i], error);
  }
  mlx_engine_close(gpu);
  mlx_engine_close(cpu);
}

TEST(decode_kernel_with_99_kb_of_shared_memory_matches_the_cpu_token_for_token) {
  int ran = 0;
  for (size_t i = 0; i < SMALL_GPUS; ++i) {
    if (!is_selected(small_gpus[i].name) || !gpu_runs(small_gpus[i].name, 80)) continue;
    compare_with_cpu(small_gpus[i].name);
    ++ran;
  }
  if (!ran) SKIP("MLXCEL_ARCH selects none of the networks, or this GPU runs none");
}

// ----------------------------------------------------------------------------------------------------------
// Recurrent layers

// The prompt is read by kernels of single ops, and the decode kernel goes on from its state. GPUs keep states
// of the same form as CPUs.
static const struct hybrid {
  const char *name, *fixture;
  mlx_quantize_t quantize;
} hybrids[] = {
    {"hybrid-qwen3_5-q4_1", "qwen3_5", MLX_QUANTIZE_Q4_1},
    {"hybrid-qwen3_5-q8_0", "qwen3_5", MLX_QUANTIZE_Q8_0},
    {"hybrid-lfm2-q8_0", "lfm2", MLX_QUANTIZE_Q8_0},
};
#define HYBRIDS (sizeof hybrids / sizeof *hybrids)

static void prepare_hybrids(void) {
  for (size_t i = 0; i < HYBRIDS; ++i) {
    char folder[] = "/tmp/mlxcel-decode-XXXXXX", file[64];
    mlx_compile_options_t options = {.target = "cuda:sm_90",
                                     .weights = MLX_WEIGHTS_AUTO,
                                     .quantize = hybrids[i].quantize,
                                     .context = CONTEXT,
                                     .kernels = MLX_KERNELS_REQUIRED};
    if (!is_selected(hybrids[i].name)) continue;
    CHECK(mkdtemp(folder));
    write_wide_model(hybrids[i].fixture, folder);
    snprintf(file, sizeof file, "decode-%s.mlxb", hybrids[i].name);
    gpu_compile(folder, &options, file);
    options.target = "cpu:x86-64-v3";
    snprintf(file, sizeof file, "decode-%s-cpu.mlxb", hybrids[i].name);
    gpu_compile(folder, &options, file);
    CHECK_OK(mlx_remove_tree(folder));
  }
}

TEST(decode_kernel_continues_the_state_of_a_prompt_with_quantized_weights_as_the_cpu_does) {
  int ran = 0;
  for (size_t i = 0; i < HYBRIDS; ++i) {
    char file[64];
    snprintf(file, sizeof file, "decode-%s.mlxb", hybrids[i].name);
    if (!is_selected(hybrids[i].name) || !gpu_runs(file, 90)) continue;
    compare_with_cpu(hybrids[i].name);
    ++ran;
  }
  if (!ran) SKIP("MLXCEL_ARCH selects none of the networks, or this GPU runs none");
}

static void prepare(void) {
  prepare_networks();
  prepare_small_gpus();
  prepare_hybrids();
}

GPU_TEST_MAIN(prepare, CASE(each_form_of_network_matches_hf_token_for_token_on_the_decode_kernel),
              CASE(decode_kernel_with_99_kb_of_shared_memory_matches_the_cpu_token_for_token),
              CASE(decode_kernel_continues_the_state_of_a_prompt_with_quantized_weights_as_the_cpu_does))
