// Longrope has short factors for contexts up to the original context length and long factors beyond it.
// Hugging Face switches to the long factors and recomputes the KV cache when a text grows past that length. A
// compiled model has one set of factors, chosen by its context length (docs/formats.md).
#include "base/memory.h"
#include "compiler/compile.h"
#include "tests/support/check.h"

#define PHI3 MLXCEL_SOURCE_DIR "/tests/fixtures/gguf/phi3"  // context 128, extended to 512
#define SHORT "dense<[1.000000000e+00, 5.656853784"         // 1 / (1.25 * sqrt(20000))
#define LONG "dense<[6.666666865e-01, 8.838835056"          // 1 / 1.5, 1 / (8 * sqrt(20000))

static int notes;
static void count_notes(void *user, mlx_report_kind_t kind, const char *text) {
  (void)user, (void)kind;
  notes += strstr(text, "context length over 128") != NULL;
}

static void check_context(int64_t context, const char *wanted, const char *unwanted, int expected_notes) {
  const mlx_report_t report = {.emit = count_notes};
  char *text;
  size_t length;
  notes = 0;
  CHECK_OK(mlx_compile_stablehlo(PHI3, &(mlx_compile_options_t){.context = context, .report = &report}, &text,
                                 &length));
  CHECK(strstr(text, wanted) && !strstr(text, unwanted));
  CHECK_INT(notes, expected_notes);
  mlx_free(text);
}

TEST(short_factors_are_used_unless_the_context_is_longer_than_the_original) {
  check_context(0, SHORT, LONG, 0);
  check_context(128, SHORT, LONG, 0);
  check_context(129, LONG, SHORT, 1);
  check_context(MLX_CONTEXT_OF_MODEL, LONG, SHORT, 1);
}

TEST_MAIN(CASE(short_factors_are_used_unless_the_context_is_longer_than_the_original))
