// The size that `show` and `compile` print for a quantized model is the size of the weights that are written,
// and a device whose memory is not larger is refused before work begins. compile_size_test.c has f32 models.
#include <sys/stat.h>
#include <unistd.h>

#include "artifact/archive.h"
#include "base/json.h"
#include "base/meter.h"
#include "compiler/weights.h"
#include "tests/support/command.h"
#include "tests/support/compile_jobs.h"
#include "tests/support/packed_subjects.h"
#include "tests/support/random_gguf.h"

#define MXFP4_EXPERTS MLXCEL_SOURCE_DIR "/tests/fixtures/gpt_oss-mxfp4.gguf"

static char root[] = "/tmp/mlxcel-quantized-size-XXXXXX";

// ----------------------------------------------------------------------------------------------------------
// Models

#define EXPERTS 4
#define HIDDEN 256
#define FFN 384

static void put_matrices(bytes_t *head, bytes_t *data, uint64_t *state, const char *name, mlx_dtype_t dtype,
                         int stack, int rows, int columns) {
  static const random_packed_t f32 = {MLX_F32, -1, -1, 0.05f, 0};
  const random_packed_t type = dtype == MLX_F32 ? f32 : random_packed_type(dtype);
  put_string(head, name);
  put_u32(head, stack ? 3 : 2);
  put_u64(head, (uint64_t)columns);
  put_u64(head, (uint64_t)rows);
  if (stack) put_u64(head, (uint64_t)stack);
  put_u32(head, (uint32_t)mlx_dtype_info(dtype)->gguf_type);
  put_u64(head, data->length);
  random_put_matrix(data, &type, state, (stack ? stack : 1) * rows, columns);
}

static void put_norm(bytes_t *head, bytes_t *data, uint64_t *state, const char *name) {
  put_tensor(head, name, HIDDEN, 0, 0, data->length);
  random_put_vector(data, state, HIDDEN);
}

// A Mixtral of one layer, which GGUF declares as a llama with experts: matrices of |dtype|, and a router in
// f32.
static const char *write_experts(mlx_dtype_t dtype, const char *name, char path[96]) {
  static const struct {
    const char *key;
    int value;
  } numbers[] = {{"llama.block_count", 1},
                 {"llama.embedding_length", HIDDEN},
                 {"llama.feed_forward_length", FFN},
                 {"llama.attention.head_count", 4},
                 {"llama.attention.head_count_kv", 2},
                 {"llama.expert_count", EXPERTS},
                 {"llama.expert_used_count", 2},
                 {"llama.context_length", 2048},
                 {"tokenizer.ggml.eos_token_id", 0}};
  static const struct {
    const char *name;
    int stack, rows, columns;
  } matrices[] = {{"token_embd.weight", 0, 7, HIDDEN},
                  {"blk.0.attn_q.weight", 0, HIDDEN, HIDDEN},
                  {"blk.0.attn_k.weight", 0, HIDDEN / 2, HIDDEN},
                  {"blk.0.attn_v.weight", 0, HIDDEN / 2, HIDDEN},
                  {"blk.0.attn_output.weight", 0, HIDDEN, HIDDEN},
                  {"blk.0.ffn_gate_exps.weight", EXPERTS, FFN, HIDDEN},
                  {"blk.0.ffn_up_exps.weight", EXPERTS, FFN, HIDDEN},
                  {"blk.0.ffn_down_exps.weight", EXPERTS, HIDDEN, FFN},
                  {"output.weight", 0, 7, HIDDEN}};
  const size_t fields = sizeof numbers / sizeof *numbers, count = sizeof matrices / sizeof *matrices;
  bytes_t head = {0}, data = {0};
  uint64_t state = 3;
  put_header(&head, 3, count + 4, fields + 8);
  put_field_string(&head, "general.architecture", "llama");
  for (size_t i = 0; i < fields; ++i)
    put_field(&head, numbers[i].key, MLX_GGUF_U32, (uint64_t)numbers[i].value, 4);
  put_field(&head, "llama.attention.layer_norm_rms_epsilon", MLX_GGUF_F32, 0x3727c5ac, 4);  // 1e-5
  put_field(&head, "llama.rope.freq_base", MLX_GGUF_F32, 0x461c4000, 4);                    // 10000
  put_tokenizer(&head, "smollm");
  for (size_t i = 0; i < count; ++i)
    put_matrices(&head, &data, &state, matrices[i].name, dtype, matrices[i].stack, matrices[i].rows,
                 matrices[i].columns);
  put_matrices(&head, &data, &state, "blk.0.ffn_gate_inp.weight", MLX_F32, 0, EXPERTS, HIDDEN);
  put_norm(&head, &data, &state, "blk.0.attn_norm.weight");
  put_norm(&head, &data, &state, "blk.0.ffn_norm.weight");
  put_norm(&head, &data, &state, "output_norm.weight");
  put_padding(&head, 32);
  mlx_text_append(&head, data.data, data.length);
  CHECK_OK(mlx_text_finish(&head));
  snprintf(path, 96, "%s/%s.gguf", root, name);
  CHECK_OK(mlx_write_file(path, head.data, head.length));
  mlx_text_clear(&head);
  mlx_text_clear(&data);
  return path;
}

static const char *write_q4_k(void) {
  static const random_llama_t shape = {256, 512, 4, 2, 64, 2, 7, true, 10000};
  static char path[96];
  const random_packed_t type = random_packed_type(MLX_Q4_K);
  snprintf(path, sizeof path, "%s/q4_k.gguf", root);
  random_gguf_write(&shape, &type, 1, path);
  return path;
}

static folder_t folders[PACKED_SUBJECTS];  // empty: not written

static const char *write_directory(const char *name) {
  size_t i = 0;
  while (i < PACKED_SUBJECTS && strcmp(packed_subjects[i].kind.name, name)) ++i;
  CHECK(i < PACKED_SUBJECTS);
  write_packed_subject(&packed_subjects[i], root, &folders[i], NULL);
  return folders[i].path;
}

// ----------------------------------------------------------------------------------------------------------
// Sizes

static char notes[4096];
static void collect(void *user, mlx_report_kind_t kind, const char *text) {
  (void)user;
  if (kind == MLX_REPORT_NOTE) snprintf(notes + strlen(notes), sizeof notes - strlen(notes), "%s\n", text);
}

// Bytes from the start of the first entry to the end of the last.
static uint64_t archive_bytes(const char *path) {
  mlx_map_t map;
  mlx_archive_t archive;
  CHECK_OK(mlx_map_file(path, &map));
  CHECK_OK(mlx_archive_parse(path, map.data, map.size, &archive));
  const mlx_archive_entry_t *last = &archive.entries[archive.count - 1];
  const uint64_t bytes = (uint64_t)(last->data + last->size - archive.entries[0].data);
  mlx_archive_clear(&archive);
  mlx_unmap(&map);
  return bytes;
}

// The weights that the job writes.
static uint64_t written_bytes(const mlx_compile_job_t *job) {
  char path[96];
  snprintf(path, sizeof path, "%s/weights.irpa", root);
  CHECK_OK(mlx_weights_write(job->model, mlx_module_storage(&job->module), path, NULL));
  const uint64_t bytes = archive_bytes(path);
  CHECK(!unlink(path));
  return bytes;
}

static void check_refused(const mlx_compile_job_t *job, const char *path, uint64_t bytes,
                          const char *way_out) {
  mlx_compile_options_t options = *job->options;
  mlx_compile_job_t limited = *job;
  char expected[256];
  limited.options = &options;
  options.gpu_memory = options.host_memory = bytes;
  snprintf(expected, sizeof expected,
           "%s does not fit: its weights as quantized need %s; this %s has %s of memory",
           strrchr(path, '/') + 1, mlx_bytes_show(bytes).text, job->target.gpu ? "GPU" : "machine",
           mlx_bytes_show(bytes).text);
  mlx_status_t status = mlx_job_check_size(&limited);
  CHECK_CONTAINS(mlx_status_hint_text(status), way_out);
  CHECK_ERROR(status, MLX_OUT_OF_MEMORY, expected);
  options.gpu_memory = options.host_memory = bytes + 1;
  CHECK_OK(mlx_job_check_size(&limited));
}

// |most|: bytes of the weights for each byte of the model's tensors in its file. Quantized matrices are not
// expanded, but padded to whole tiles or panels.
static void check_size(const char *path, const char *target, double most, const char *way_out) {
  const mlx_report_t report = {.emit = collect};
  const mlx_compile_options_t options = {.target = target,
                                         .weights = MLX_WEIGHTS_AUTO,
                                         .context = 64,
                                         .kernels = MLX_KERNELS_REQUIRED,
                                         .report = &report,
                                         .show_size = true};
  mlx_compile_job_t job;
  mlx_variant_t variant;
  uint64_t printed, shown, file = 0;
  char expected[192];
  begin_job(path, &options, &job);
  const uint64_t real = written_bytes(&job);
  CHECK_OK(mlx_job_weight_bytes(&job, &printed));
  CHECK_OK(mlx_compile_describe_ops(job.model, target, &variant, &shown));
  CHECK_INT(printed, real);
  CHECK_INT(shown, real);
  CHECK_TEXT(variant.dtype, "quantized");
  notes[0] = 0;
  CHECK_OK(mlx_job_check_size(&job));
  snprintf(expected, sizeof expected, "size for %s: %s of weights as quantized, and ", job.target.name,
           mlx_bytes_show(real).text);
  CHECK_CONTAINS(notes, expected);
  for (size_t i = 0; i < mlx_source_tensor_count(job.model->source); ++i)
    file += mlx_source_tensor_at(job.model->source, i)->size;
  if ((double)real > most * (double)file)
    CHECK_FAIL("%s for %s: %llu bytes, in the file %llu", path, target, (unsigned long long)real,
               (unsigned long long)file);
  check_refused(&job, path, real, way_out);
  end_job(&job);
}

#define FEWER_BITS "use a smaller model, or a file of this one with fewer bits per weight"
#define QUANTIZE "use a smaller model, or fewer bits: --quantize q4"

static void check_both(const char *path, double most_cpu, double most_gpu, const char *way_out) {
  check_size(path, "cpu", most_cpu, way_out);
  check_size(path, "cuda:sm_90", most_gpu, way_out);
}

TEST(printed_size_of_quantized_experts_is_that_of_the_written_weights) {
  char path[96];
  check_both(write_experts(MLX_Q4_0, "q4_0-experts", path), 1.02, 1.01, FEWER_BITS);
  check_both(write_experts(MLX_MXFP4, "mxfp4-experts", path), 1.02, 1.01, FEWER_BITS);
  check_both(write_experts(MLX_Q8_0, "q8_0-experts", path), 1.02, 1.01, QUANTIZE);
  // The matrices of these fixtures have few columns, and are padded to tiles of 128. All but the experts of
  // the first have 16 bits; padded tiles of 4 bits would not be smaller.
  check_size(MXFP4_EXPERTS, "cpu", 1.03, QUANTIZE);
  check_size(MXFP4_EXPERTS, "cuda:sm_90", 1.5, FEWER_BITS);
  check_both(write_directory("mlx4-experts"), 1.03, 2.5, FEWER_BITS);
}

// The groups of 128 columns have one scale and zero point; blocks of 32 columns store them in 5 bits per
// weight, or 4.5 if all zero points are 8. GPTQ leaves the embedding and the head in 16 bits.
TEST(printed_size_of_a_gptq_directory_is_that_of_the_written_weights) {
  check_both(write_directory("gptq"), 1.2, 1.2, QUANTIZE);
  check_both(write_directory("gptq-symmetric"), 1.05, 1.05, QUANTIZE);
}

TEST(printed_size_of_a_q4_k_file_is_that_of_the_written_weights) {
  check_both(write_q4_k(), 1.04, 1.01, FEWER_BITS);
}

// The whole command, with an iree-compile that writes an empty module.
TEST(compile_prints_the_size_of_the_weights_in_the_bundle) {
  static const char script[] =
      "#!/bin/sh\n[ \"$1\" = --version ] && { echo 'IREE compiler version 3.13.0'; exit 0; }\n"
      "while [ $# -gt 0 ]; do [ \"$1\" = -o ] && echo fake > \"$2\"; shift; done\n";
  char model[96], fake[96], bundle[96], weights[128], expected[128];
  command_t run;
  snprintf(fake, sizeof fake, "%s/fake", root);
  snprintf(bundle, sizeof bundle, "%s/experts.mlxb", root);
  snprintf(weights, sizeof weights, "%s/weights.irpa", bundle);
  CHECK_OK(mlx_write_file(fake, script, strlen(script)));
  CHECK(!chmod(fake, 0755));
  RUN(&run, "compile", write_experts(MLX_Q4_0, "q4_0-experts", model), "--target", "cpu", "--iree-compile",
      fake, "-o", bundle);
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  snprintf(expected, sizeof expected, "size for cpu:host: %s of weights as quantized",
           mlx_bytes_show(archive_bytes(weights)).text);
  CHECK_CONTAINS(run.err, expected);
  command_free(&run);
}

int main(int argc, char **argv) {
  static const check_case_t cases[] = {
      CASE(printed_size_of_quantized_experts_is_that_of_the_written_weights),
      CASE(printed_size_of_a_gptq_directory_is_that_of_the_written_weights),
      CASE(printed_size_of_a_q4_k_file_is_that_of_the_written_weights),
      CASE(compile_prints_the_size_of_the_weights_in_the_bundle),
  };
  if (!mkdtemp(root)) return 1;
  const int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  for (size_t i = 0; i < PACKED_SUBJECTS; ++i)
    if (folders[i].path[0]) end(&folders[i]);
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
