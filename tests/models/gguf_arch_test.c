// Every architecture from GGUF: a GGUF file gives the same model, to the bit, as the Hugging Face directory
// it was converted from.
//
// A pair is tests/fixtures/gguf/NAME.gguf and the folder NAME beside it. tests/parity/gguf_fixtures.py writes
// them with Hugging Face's classes and the gguf package. The test compares the emitted MLIR and the weight
// archives. tests/models/arch_test.c compares the same networks with Hugging Face. MLXCEL_ARCH=NAME runs one
// pair.
#include <math.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "compiler/emit.h"
#include "compiler/weights.h"
#include "models/model.h"
#include "tests/support/check.h"
#include "tests/support/import_files.h"
#include "tests/support/listed.h"

#define PAIRS MLXCEL_SOURCE_DIR "/tests/fixtures/gguf/"

typedef struct lowered {
  char *text;  // MLIR
  size_t text_length;
  mlx_map_t weights;
} lowered_t;

static lowered_t lower(const char *path, int64_t context) {
  char folder[] = "/tmp/mlxcel-gguf-arch-XXXXXX", archive[64];
  lowered_t out = {0};
  mlx_model_t *model;
  mlx_graph_t *graph;
  mlx_module_options_t options;
  CHECK_OK(mlx_model_open(path, &model));
  mlx_module_options_initialize(context, &options);
  options.form = MLX_FORM_IREE;
  options.dtype = MLX_F32;
  CHECK_OK(mlx_model_build_graph(model, options.context, &graph));
  CHECK_OK(mlx_module_emit(model, graph, &options, &out.text, &out.text_length));
  mlx_graph_free(graph);
  CHECK(mkdtemp(folder));
  snprintf(archive, sizeof archive, "%s/weights.irpa", folder);
  CHECK_OK(mlx_weights_write(model, (mlx_storage_t){.dtype = MLX_F32}, archive, NULL));
  CHECK_OK(mlx_map_file(archive, &out.weights));
  CHECK_OK(mlx_remove_tree(folder));
  mlx_model_close(model);
  return out;
}

static void release(lowered_t *lowered) {
  mlx_free(lowered->text);
  mlx_unmap(&lowered->weights);
}

// True if the numbers of two lines differ by at most one bit. GGUF stores rope factors as f32, which rounds
// once more than Hugging Face does.
static bool nearly_same(const char *a, const char *b, size_t length) {
  const char *end = a + length;
  while (a < end) {
    const size_t text = strcspn(a, "0123456789");
    char *a_end, *b_end;
    if (strncmp(a, b, text)) return false;
    if (a + text >= end) return true;
    const double x = strtod(a + text, &a_end), y = strtod(b + text, &b_end);
    if (fabs(x - y) > 1.2e-7 * fabs(x)) return false;  // one bit
    a = a_end, b = b_end;
  }
  return true;
}

// Fails with the first line that differs.
static void check_text(const char *name, const char *a, const char *b) {
  for (size_t line = 1; *a || *b; ++line) {
    const size_t length = strcspn(a, "\n"), b_length = strcspn(b, "\n");
    bool same = length == b_length && !memcmp(a, b, length);
    const char *frequency = strstr(name, "llama3") ? strstr(a, ".rope_frequency = ") : NULL;
    if (!same && length == b_length && frequency && frequency < a + length) same = nearly_same(a, b, length);
    if (!same)
      CHECK_FAIL("%s: line %zu of the module:\n  %.*s\n  %.*s", name, line, (int)length, a, (int)b_length, b);
    a += length + (a[length] == '\n');
    b += length + (b[length] == '\n');
  }
}

static mlx_status_t check_pair(void *user, const char *file) {
  size_t *checked = user;
  char name[128], folder[512], path[512];
  const char *only = getenv("MLXCEL_ARCH"), *suffix = strrchr(file, '.');
  if (!suffix || strcmp(suffix, ".gguf")) {
    snprintf(path, sizeof path, PAIRS "%s.gguf", file);
    if (!mlx_is_file(path)) CHECK_FAIL("%s has no GGUF file beside it", file);
    return NULL;
  }
  snprintf(name, sizeof name, "%.*s", (int)(suffix - file), file);
  if (only && strcmp(only, name)) return NULL;
  snprintf(folder, sizeof folder, PAIRS "%s", name);
  snprintf(path, sizeof path, PAIRS "%s", file);
  const int64_t contexts[] = {32, 512};  // shorter and longer than the original context of longrope
  for (int i = 0; i < 2; ++i) {
    const int64_t context = !strcmp(name, "gpt2") ? 32 : contexts[i];
    lowered_t hf = lower(folder, context), gguf = lower(path, context);
    check_text(name, hf.text, gguf.text);
    CHECK_INT(hf.weights.size, gguf.weights.size);
    if (memcmp(hf.weights.data, gguf.weights.data, hf.weights.size))
      CHECK_FAIL("%s: the weights differ", name);
    release(&hf);
    release(&gguf);
  }
  fprintf(stderr, "  %-18s GGUF and Hugging Face give the same module and the same weights\n", name);
  ++*checked;
  return NULL;
}

TEST(every_architecture_is_equal_from_gguf_and_hf) {
  size_t checked = 0;
  CHECK_OK(mlx_list_dir(PAIRS, check_pair, &checked));
  check_compared(checked, listed_files("fixtures/gguf/", ".gguf"));
}

// ----------------------------------------------------------------------------------------------------------
// Fields

// Opens the GGUF file of pair |name| with one more field, and a filler field that keeps the tensors aligned.
static mlx_status_t open_with(const char *name, const char *key, mlx_gguf_type_t type, uint64_t bits,
                              int width) {
  char path[512], folder[] = "/tmp/mlxcel-gguf-arch-XXXXXX", *bytes;
  size_t length;
  bytes_t more = {0}, file = {0};
  mlx_model_t *model;
  snprintf(path, sizeof path, PAIRS "%s.gguf", name);
  CHECK_OK(mlx_read_file(path, 1 << 20, &bytes, &length));
  put_field(&more, key, type, bits, width);
  char filler[64] = {0};
  memset(filler, 'x', 32 - (more.length + 8 + 1 + 4 + 8) % 32);
  put_field_string(&more, "x", filler);
  CHECK_INT(more.length % 32, 0);
  mlx_text_append(&file, bytes, 16);
  put_u64(&file, (uint64_t)(uint8_t)bytes[16] + 2);
  mlx_text_append(&file, more.data, more.length);
  mlx_text_append(&file, bytes + 24, length - 24);
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/model.gguf", folder);
  CHECK_OK(mlx_write_file(path, file.data, file.length));
  mlx_status_t status = mlx_model_open(path, &model);
  if (!status) mlx_model_close(model);
  CHECK_OK(mlx_remove_tree(folder));
  mlx_text_clear(&more);
  mlx_text_clear(&file);
  mlx_free(bytes);
  return status;
}

#define U32 MLX_GGUF_U32
#define F32 MLX_GGUF_F32
#define HALF 0x3f000000  // 0.5f

TEST(unread_fields_are_refused_by_name) {
  CHECK_ERROR(open_with("qwen2", "qwen2.attention.scale", F32, HALF, 4), MLX_UNSUPPORTED,
              "field 'qwen2.attention.scale' is not supported");
  CHECK_ERROR(open_with("qwen2", "qwen2.attention.sliding_window", U32, 12, 4), MLX_UNSUPPORTED,
              "'qwen2.attention.sliding_window'");
  CHECK_ERROR(open_with("llama", "llama.logit_scale", F32, HALF, 4), MLX_UNSUPPORTED, "'llama.logit_scale'");
  CHECK_ERROR(open_with("gemma", "gemma.final_logit_softcapping", F32, HALF, 4), MLX_UNSUPPORTED,
              "'gemma.final_logit_softcapping'");
  CHECK_ERROR(open_with("olmo2", "olmo2.attention.sliding_window_pattern", U32, 4, 4), MLX_UNSUPPORTED,
              "'olmo2.attention.sliding_window_pattern'");
  CHECK_ERROR(open_with("glm4", "glm4.nextn_predict_layers", U32, 1, 4), MLX_UNSUPPORTED,
              "'glm4.nextn_predict_layers'");
}

TEST(unsupported_field_values_are_refused_by_name) {
  CHECK_ERROR(open_with("qwen2", "qwen2.attention.causal", MLX_GGUF_BOOL, 0, 1), MLX_UNSUPPORTED,
              "'qwen2.attention.causal' is false");
  CHECK_ERROR(open_with("qwen2", "qwen2.attention.value_length", U32, 8, 4), MLX_UNSUPPORTED,
              "'qwen2.attention.value_length' is 8");
  CHECK_ERROR(open_with("llama-yarn", "llama.rope.scaling.yarn_ext_factor", F32, HALF, 4), MLX_UNSUPPORTED,
              "yarn_ext_factor' is 0.5");
  CHECK_ERROR(open_with("qwen3_moe", "qwen3moe.expert_gating_func", U32, 2, 4), MLX_UNSUPPORTED,
              "'qwen3moe.expert_gating_func' is 2");
  CHECK_ERROR(open_with("../hybrid/qwen3_next", "qwen3next.expert_gating_func", U32, 2, 4), MLX_UNSUPPORTED,
              "'qwen3next.expert_gating_func' is 2; only 1 (softmax) is supported");
  CHECK_ERROR(open_with("../hybrid/qwen3_5_moe", "qwen35moe.expert_weights_scale", F32, HALF, 4),
              MLX_UNSUPPORTED, "'qwen35moe.expert_weights_scale' is 0.5");
  CHECK_ERROR(open_with("olmoe", "olmoe.expert_weights_scale", F32, HALF, 4), MLX_UNSUPPORTED,
              "'olmoe.expert_weights_scale' is 0.5");
  CHECK_ERROR(open_with("llama", "llama.rope.scaling.type", U32, 1, 4), MLX_INVALID_INPUT,
              "'llama.rope.scaling.type'");
  CHECK_ERROR(open_with("llama", "llama.expert_count", U32, 4, 4), MLX_INVALID_INPUT,
              "'llama.expert_used_count' is missing");
}

TEST(fields_without_effect_are_accepted) {
  CHECK_OK(open_with("qwen2", "qwen2.expert_count", U32, 0, 4));
  CHECK_OK(open_with("llama", "llama.attention.sliding_window", U32, 0, 4));
  CHECK_OK(open_with("gemma", "gemma.use_parallel_residual", MLX_GGUF_BOOL, 1, 1));
  CHECK_OK(open_with("gemma3", "gemma3.mm.tokens_per_image", U32, 256, 4));
  CHECK_OK(open_with("qwen2", "qwen2.attention.causal", MLX_GGUF_BOOL, 1, 1));
  CHECK_OK(open_with("qwen2", "mistral.attention.scale", F32, HALF, 4));  // another architecture's field
}

TEST(an_unknown_architecture_is_refused_with_a_suggestion_and_the_full_list) {
  char folder[] = "/tmp/mlxcel-gguf-arch-XXXXXX", path[64], *bytes;
  size_t length;
  mlx_model_t *model;
  CHECK_OK(mlx_read_file(PAIRS "mixtral.gguf", 1 << 20, &bytes, &length));
  CHECK(!memcmp(bytes + 24 + 8, "general.architecture", 20) &&
        !memcmp(bytes + 24 + 8 + 20 + 4 + 8, "llama", 5));
  bytes[24 + 8 + 20 + 4 + 8 + 4] = 'o';
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/model.gguf", folder);
  CHECK_OK(mlx_write_file(path, bytes, length));
  mlx_status_t status = mlx_model_open(path, &model);
  CHECK(status && mlx_status_code(status) == MLX_UNSUPPORTED);
  CHECK_CONTAINS(mlx_status_message(status), "'llamo'");
  CHECK_CONTAINS(mlx_status_hint_text(status), "did you mean 'llama'? supported architectures: ");
  const char *once = strstr(mlx_status_hint_text(status), ", llama,");
  CHECK(once && !strstr(once + 1, ", llama,"));
  CHECK_CONTAINS(mlx_status_hint_text(status), "mistral3");
  mlx_status_free(status);
  mlx_free(bytes);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST_MAIN(CASE(every_architecture_is_equal_from_gguf_and_hf), CASE(unread_fields_are_refused_by_name),
          CASE(unsupported_field_values_are_refused_by_name), CASE(fields_without_effect_are_accepted),
          CASE(an_unknown_architecture_is_refused_with_a_suggestion_and_the_full_list))
