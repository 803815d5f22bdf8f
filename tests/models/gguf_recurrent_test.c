// GGUF files of recurrent networks with a wrong size, a tensor less or another kind of layer: the error names
// the field or the tensor. The files are those of tests/runtime/recurrent_test.c with some bytes replaced.
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "models/model.h"
#include "tests/support/check.h"

#define FILES MLXCEL_SOURCE_DIR "/tests/fixtures/hybrid/"

// The first place of |text| in |bytes|.
static char *find(char *bytes, size_t length, const char *text) {
  const size_t size = strlen(text);
  for (size_t i = 0; i + size <= length; ++i)
    if (!memcmp(bytes + i, text, size)) return bytes + i;
  CHECK_FAIL("the file does not have '%s'", text);
  return NULL;
}

// Opens the file |name| after |change| of its bytes.
typedef struct change {
  const char *field;  // an integer of 32 bits, which becomes |value|; or an element of a list of integers
  uint32_t value;
  int element;         // -1: the field is no list
  const char *tensor;  // gets another name
} change_t;

static mlx_status_t open_changed(const char *name, const change_t *change) {
  char path[512], folder[] = "/tmp/mlxcel-gguf-recurrent-XXXXXX", *bytes;
  size_t length;
  mlx_model_t *model;
  snprintf(path, sizeof path, FILES "%s.gguf", name);
  CHECK_OK(mlx_read_file(path, 1 << 20, &bytes, &length));
  if (change->field) {
    // The key is followed by the type; that of a list by the type of its elements and their number.
    char *at = find(bytes, length, change->field) + strlen(change->field) + 4;
    if (change->element >= 0) at += 12 + 4 * change->element;
    memcpy(at, &change->value, 4);
  }
  if (change->tensor) *find(bytes, length, change->tensor) = 'x';
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/model.gguf", folder);
  CHECK_OK(mlx_write_file(path, bytes, length));
  mlx_status_t status = mlx_model_open(path, &model);
  if (!status) mlx_model_close(model);
  CHECK_OK(mlx_remove_tree(folder));
  mlx_free(bytes);
  return status;
}

static void check_field(const char *name, const char *field, uint32_t value, const char *message) {
  const change_t change = {.field = field, .value = value, .element = -1};
  CHECK_ERROR(open_changed(name, &change), MLX_INVALID_INPUT, message);
}

TEST(a_file_without_changes_opens) {
  static const char *const names[] = {
      "falcon_h1",      "granitemoehybrid", "lfm2",       "mamba2", "nemotron_h",
      "nemotron_h_moe", "qwen3_5",          "qwen3_next", "mamba",  "jamba"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
    CHECK_OK(open_changed(names[i], &(change_t){.element = -1}));
}

TEST(a_size_that_does_not_match_the_tensors_is_refused_by_name) {
  check_field("falcon_h1", "falcon-h1.ssm.state_size", 32, "tensor 'blk.0.ssm_in.weight' has shape");
  check_field("falcon_h1", "falcon-h1.ssm.state_size", 0, "field 'falcon-h1.ssm.state_size' must be");
  check_field("falcon_h1", "falcon-h1.ssm.group_count", 4,
              "field 'falcon-h1.ssm.group_count' is 4, which does not divide the 6 heads");
  check_field("mamba2", "mamba2.ssm.inner_size", 63,
              "field 'mamba2.ssm.inner_size' is wrong: 8 heads cannot have 63 numbers together");
  check_field("mamba2", "mamba2.ssm.conv_kernel", 3, "tensor 'blk.0.ssm_conv1d.weight' has shape");
  check_field("mamba", "mamba.ssm.state_size", 8, "tensor 'blk.0.ssm_x.weight' has shape");
  check_field("mamba", "mamba.ssm.time_step_rank", 3, "tensor 'blk.0.ssm_x.weight' has shape");
  check_field("jamba", "jamba.ssm.inner_size", 32, "tensor 'blk.0.ssm_in.weight' has shape");
  check_field("granitemoehybrid", "granitehybrid.ssm.time_step_rank", 16, "tensor 'blk.0.ssm_in.weight' has");
  check_field("nemotron_h", "nemotron_h.ssm.state_size", 24, "tensor 'blk.0.ssm_in.weight' has shape");
  check_field("nemotron_h_moe", "nemotron_h_moe.moe_latent_size", 32,
              "tensor 'blk.1.ffn_up_exps.weight' has shape");
  check_field("qwen3_5", "qwen35.ssm.inner_size", 48, "field 'qwen35.ssm.inner_size' is 48, not the");
  check_field("qwen3_5", "qwen35.ssm.group_count", 5, "field 'qwen35.ssm.group_count' is 5, which does not");
  check_field("qwen3_next", "qwen3next.ssm.state_size", 257, "field 'qwen3next.ssm.state_size' must be");
  check_field("lfm2", "lfm2.shortconv.l_cache", 4, "tensor 'blk.0.shortconv.conv.weight' has shape");
}

TEST(a_missing_tensor_is_named) {
  static const char *const cases[][3] = {
      {"falcon_h1", "blk.0.ssm_conv1d.weight", "tensor 'blk.0.ssm_conv1d.weight' is missing"},
      {"granitemoehybrid", "blk.2.ssm_conv1d.weight", "tensor 'blk.2.ssm_conv1d.weight' is missing"},
      {"mamba2", "blk.1.ssm_conv1d.weight", "tensor 'blk.1.ssm_conv1d.weight' is missing"},
      {"mamba2", "blk.1.ssm_conv1d.bias", "tensor 'blk.1.ssm_conv1d.bias' is missing"},
      {"mamba", "blk.1.ssm_conv1d.weight", "tensor 'blk.1.ssm_conv1d.weight' is missing"},
      {"jamba", "blk.0.ssm_b_norm.weight", "tensor 'blk.0.ssm_b_norm.weight' is missing"},
      {"nemotron_h", "blk.0.ssm_conv1d.weight", "tensor 'blk.0.ssm_conv1d.weight' is missing"},
      {"nemotron_h_moe", "blk.1.exp_probs_b.bias", "tensor 'blk.1.exp_probs_b.bias' is missing"},
      {"qwen3_5", "blk.0.ssm_conv1d.weight", "tensor 'blk.0.ssm_conv1d.weight' is missing"},
      {"qwen3_next", "blk.0.ssm_dt.bias", "tensor 'blk.0.ssm_dt.bias' is missing"},
      {"lfm2", "blk.0.shortconv.conv.weight", "tensor 'blk.0.shortconv.conv.weight' is missing"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    const change_t change = {.tensor = cases[i][1], .element = -1};
    CHECK_ERROR(open_changed(cases[i][0], &change), MLX_INVALID_INPUT, cases[i][2]);
  }
}

// The kind of a layer follows from its KV heads and the width of its MLP; then its tensors are missing.
TEST(another_kind_of_layer_is_refused) {
  const change_t kinds[] = {{.field = "granitehybrid.attention.head_count_kv", .value = 0, .element = 1},
                            {.field = "granitehybrid.attention.head_count_kv", .value = 3, .element = 1},
                            {.field = "nemotron_h.feed_forward_length", .value = 7, .element = 1}};
  CHECK_ERROR(open_changed("granitemoehybrid", &kinds[0]), MLX_INVALID_INPUT,
              "granitehybrid.attention.head_count_kv");
  CHECK_ERROR(open_changed("granitemoehybrid", &kinds[1]), MLX_INVALID_INPUT,
              "granitehybrid.attention.head_count_kv");
  CHECK_ERROR(open_changed("nemotron_h", &kinds[2]), MLX_UNSUPPORTED, "has MLPs of different widths");
}

TEST_MAIN(CASE(a_file_without_changes_opens), CASE(a_size_that_does_not_match_the_tensors_is_refused_by_name),
          CASE(a_missing_tensor_is_named), CASE(another_kind_of_layer_is_refused))
