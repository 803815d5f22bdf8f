// A longrope turns positions in one way in texts up to the length it was first made for, and in another in
// longer ones. Hugging Face starts over when a text grows past it; a compiled model is for one or the other
// (docs/formats-hf.md).
#include "base/memory.h"
#include "compiler/compile.h"
#include "tests/check.h"

#define PHI3 MLXCEL_SOURCE_DIR "/tests/fixtures/gguf/phi3"  // made for 128 positions, then for 512
#define SHORT "dense<[1.000000000e+00, 5.656853784"         // 1 / (1.25 * sqrt(20000))
#define LONG "dense<[6.666666865e-01, 8.838835056"          // 1 / 1.5, 1 / (8 * sqrt(20000))

static int notes;
static void count_notes(void *user, mlx_report_kind_t kind, const char *text) {
  (void)user, (void)kind;
  notes += strstr(text, "a context of more than 128") != NULL;
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

TEST(a_longrope_is_the_short_one_unless_a_longer_context_is_asked_for) {
  check_context(0, SHORT, LONG, 0);
  check_context(128, SHORT, LONG, 0);
  check_context(129, LONG, SHORT, 1);
  check_context(MLX_CONTEXT_OF_MODEL, LONG, SHORT, 1);
}

TEST_MAIN(CASE(a_longrope_is_the_short_one_unless_a_longer_context_is_asked_for))
