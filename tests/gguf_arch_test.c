// Every architecture out of GGUF: the model that a file holds is the one that a Hugging Face directory holds, to the bit.
//
// A pair is tests/fixtures/gguf/NAME.gguf beside the folder NAME, made by tests/parity/gguf_fixtures.py with Hugging Face's classes and
// the gguf package. What is compared is all that the compiler gets: the emitted module, and the weights as it writes them.
// tests/arch_test.c proves the same networks against Hugging Face. MLXCEL_ARCH=NAME runs one.
#include <math.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "compiler/graph.h"
#include "compiler/weights.h"
#include "models/model.h"
#include "tests/check.h"

#define PAIRS MLXCEL_SOURCE_DIR "/tests/fixtures/gguf/"

typedef struct lowered {
  char *text;         // the module
  size_t text_length;
  mlx_map_t weights;
} lowered_t;

static lowered_t lower(const char *path, int64_t context) {
  char folder[] = "/tmp/mlxcel-gguf-arch-XXXXXX", archive[64];
  lowered_t out = {0};
  mlx_model_t *model;
  mlx_graph_options_t options;
  CHECK_OK(mlx_model_open(path, &model));
  mlx_graph_options_initialize(context, &options);
  options.form = MLX_FORM_IREE;
  options.dtype = MLX_F32;
  CHECK_OK(mlx_graph_emit(model, &options, &out.text, &out.text_length));
  CHECK(mkdtemp(folder));
  snprintf(archive, sizeof archive, "%s/weights.irpa", folder);
  CHECK_OK(mlx_weights_write(model, MLX_F32, archive, NULL));
  CHECK_OK(mlx_map_file(archive, &out.weights));
  CHECK_OK(mlx_remove_tree(folder));
  mlx_model_close(model);
  return out;
}

static void release(lowered_t *lowered) {
  mlx_free(lowered->text);
  mlx_unmap(&lowered->weights);
}

// Numbers of two lines that differ in their last digits only. Where GGUF stores factors of frequencies, those are rounded once more.
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

// The first line that differs.
static void check_text(const char *name, const char *a, const char *b) {
  for (size_t line = 1; *a || *b; ++line) {
    const size_t length = strcspn(a, "\n"), b_length = strcspn(b, "\n");
    bool same = length == b_length && !memcmp(a, b, length);
    const char *frequency = strstr(name, "llama3") ? strstr(a, ".rope_frequency = ") : NULL;
    if (!same && length == b_length && frequency && frequency < a + length) same = nearly_same(a, b, length);
    if (!same) CHECK_FAIL("%s: line %zu of the module:\n  %.*s\n  %.*s", name, line, (int)length, a, (int)b_length, b);
    a += length + (a[length] == '\n');
    b += length + (b[length] == '\n');
  }
}

static mlx_status_t check_pair(void *user, const char *file) {
  size_t *checked = user;
  char name[128], folder[512], path[512];
  const char *only = getenv("MLXCEL_ARCH"), *suffix = strrchr(file, '.');
  if (!suffix || strcmp(suffix, ".gguf")) return NULL;
  snprintf(name, sizeof name, "%.*s", (int)(suffix - file), file);
  if (only && strcmp(only, name)) return NULL;
  snprintf(folder, sizeof folder, PAIRS "%s", name);
  snprintf(path, sizeof path, PAIRS "%s", file);
  const int64_t contexts[] = {32, 512};  // shorter and longer than what a longrope was first made for
  for (int i = 0; i < 2; ++i) {
    const int64_t context = !strcmp(name, "gpt2") ? 32 : contexts[i];
    lowered_t hf = lower(folder, context), gguf = lower(path, context);
    check_text(name, hf.text, gguf.text);
    CHECK_INT(hf.weights.size, gguf.weights.size);
    if (memcmp(hf.weights.data, gguf.weights.data, hf.weights.size)) CHECK_FAIL("%s: the weights differ", name);
    release(&hf);
    release(&gguf);
  }
  fprintf(stderr, "  %-18s GGUF and Hugging Face give the same module and the same weights\n", name);
  ++*checked;
  return NULL;
}

TEST(every_architecture_is_the_same_out_of_gguf) {
  size_t checked = 0;
  CHECK_OK(mlx_list_dir(PAIRS, check_pair, &checked));
  CHECK(checked > 0);
}

TEST_MAIN(CASE(every_architecture_is_the_same_out_of_gguf))
