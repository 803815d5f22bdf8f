// Sliding windows: the scheduler frees the pages that leave the window of all layers, and the window pages if
// other layers see all positions. The tokens are those of Hugging Face.
#include "tests/runtime/window.h"
#include "base/file.h"
#include "base/memory.h"
#include "tests/support/compiled.h"

static mlx_engine_t *open_model(const char *folder, int64_t context, mlx_kernel_choice_t kernels) {
  const mlx_compile_options_t options = {.context = context, .weights = MLX_WEIGHTS_AUTO, .kernels = kernels};
  return open_parallel(folder, &options, NULL, 0, 2);
}

static used_pages_t run_wide(const char *name, mlx_kernel_choice_t kernels) {
  char path[512], folder[] = "/tmp/mlxcel-window-XXXXXX";
  snprintf(path, sizeof path, WIDE_GOLDENS "%s.json", name);
  CHECK(mkdtemp(folder));
  write_wide_model(name, folder);
  mlx_engine_t *engine = open_model(folder, CONTEXT, kernels);
  const used_pages_t first = run_golden(engine, path),
                     used = run_golden(engine, path);               // the second from cached pages
  CHECK(first.pages && !first.window_pages == !used.window_pages);  // bursts depend on time
  mlx_engine_close(engine);
  CHECK_OK(mlx_remove_tree(folder));
  return used;
}

// 170 tokens of prompt and 47 of output are 14 pages. Both layers of mistral have a window of 12 positions.
TEST(pages_that_leave_the_window_of_all_layers_are_freed) {
  const used_pages_t used = run_wide("mistral", MLX_KERNELS_AUTO);
  if (used.pages > 4) CHECK_FAIL("%lld pages are in use", (long long)used.pages);
  CHECK_INT(used.window_pages, 0);
}

// One of two layers, or more, has a window of 12 positions. The prompt has 11 pages; the last burst adds
// pages after the last look at them. Layers of Gemma 4 have keys of different widths.
TEST(window_pages_that_leave_the_window_are_freed) {
  static const char *const names[] = {"gemma3",  "gemma2", "gpt_oss", "cohere2",
                                      "smollm3", "gemma4", "gemma3",  "gemma4-embeddings"};
  for (int i = 0; i < 8; ++i) {
    const used_pages_t used = run_wide(names[i], i < 6 ? MLX_KERNELS_REQUIRED : MLX_KERNELS_OFF);
    if (used.pages < 11 || !used.window_pages || used.window_pages > 5)
      CHECK_FAIL("%s: %lld pages and %lld window pages are in use", names[i], (long long)used.pages,
                 (long long)used.window_pages);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Sessions

#define LONG_CONTEXT 2048
#define LONG_PROMPT 1500
#define LONG_OUTPUT 12

// gemma3 with a longer context than its fixture.
static mlx_engine_t *open_long(void) {
  char folder[] = "/tmp/mlxcel-window-XXXXXX", *path, *text;
  static const char before[] = "\"max_position_embeddings\":512";
  size_t length;
  CHECK(mkdtemp(folder));
  write_wide_model("gemma3", folder);
  CHECK_OK(mlx_join_path(folder, "config.json", &path));
  CHECK_OK(mlx_read_file(path, 1 << 20, &text, &length));
  char *at = strstr(text, before);
  CHECK(at);
  mlx_text_t changed = {0};
  mlx_text_printf(&changed, "%.*s\"max_position_embeddings\":%d%s", (int)(at - text), text, LONG_CONTEXT,
                  at + sizeof before - 1);
  CHECK_OK(mlx_write_file(path, changed.data, changed.length));
  mlx_text_clear(&changed);
  mlx_free(path);
  mlx_free(text);
  mlx_engine_t *engine = open_model(folder, LONG_CONTEXT, MLX_KERNELS_REQUIRED);
  CHECK_OK(mlx_remove_tree(folder));
  return engine;
}

// The output after |count| tokens of a prompt, by a scheduler whose sequences keep no pages before the
// window.
static void generate_scheduled(mlx_engine_t *engine, const int32_t *ids, size_t count, int32_t *out) {
  mlx_scheduler_t *scheduler;
  mlx_scheduler_options_t options;
  mlx_generate_options_t generate;
  mlx_request_t *request;
  mlx_scheduler_options_initialize(&options);
  mlx_generate_options_initialize(&generate);
  options.share_prefixes = false;
  generate.max_tokens = LONG_OUTPUT;
  generate.ignore_eos = true;
  CHECK_OK(mlx_scheduler_create(engine, &options, &scheduler));
  CHECK_OK(mlx_scheduler_submit(scheduler, ids, count, &generate, &request));
  CHECK_OK(mlx_scheduler_run(scheduler));
  CHECK_OK(mlx_request_take_status(request));
  CHECK_INT(mlx_request_generation(request)->count, LONG_OUTPUT);
  memcpy(out, mlx_request_generation(request)->ids, LONG_OUTPUT * sizeof *out);
  mlx_request_free(request);
  mlx_scheduler_free(scheduler);
}

// Continues |session| with the last token of a prompt of |count| tokens; it has the others.
static void check_session(mlx_session_t *session, mlx_engine_t *engine, const int32_t *ids, size_t count) {
  int32_t expected[LONG_OUTPUT], next, rest[LONG_OUTPUT - 1];
  generate_scheduled(engine, ids, count, expected);
  CHECK_INT(mlx_session_length(session), (int64_t)count - 1);
  CHECK_OK(mlx_session_read(session, ids + count - 1, 1, &next));
  CHECK_INT(next, expected[0]);
  CHECK_OK(mlx_session_steps(session, rest, LONG_OUTPUT - 1));
  for (int i = 1; i < LONG_OUTPUT; ++i) CHECK_INT(rest[i - 1], expected[i]);
}

// A session has window pages for about 1,100 positions, and uses them again and again. If it is rewound to a
// position whose window is overwritten, it reads its tokens again.
TEST(a_session_goes_on_after_its_window_pages_and_can_be_rewound_to_any_position) {
  static int32_t ids[LONG_PROMPT];
  mlx_engine_t *engine = open_long();
  mlx_session_t *session;
  int32_t next;
  size_t kept;
  for (int i = 0; i < LONG_PROMPT; ++i) ids[i] = 3 + (int32_t)((i * 7919u + i * i % 101u) % 200);
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, ids, LONG_PROMPT - 1, &next));
  check_session(session, engine, ids, LONG_PROMPT);
  static const int64_t lengths[] = {1300, 200, 40, 5};  // the first one is still there
  for (int i = 0; i < 4; ++i) {
    CHECK_OK(mlx_session_rewind(session, lengths[i]));
    check_session(session, engine, ids, (size_t)lengths[i] + 1);
  }
  CHECK_OK(mlx_session_rewind(session, 0));
  CHECK_OK(mlx_session_read(session, ids, LONG_PROMPT - 1, &next));
  CHECK_OK(mlx_session_resume(session, ids, 1400, &kept));  // all but the last token
  CHECK_INT(kept, 1399);
  check_session(session, engine, ids, 1400);
  CHECK_OK(mlx_session_resume(session, ids, 100, &kept));
  CHECK_INT(kept, 0);
  mlx_session_free(session);
  mlx_engine_close(engine);
}

TEST_MAIN(CASE(pages_that_leave_the_window_of_all_layers_are_freed),
          CASE(window_pages_that_leave_the_window_are_freed),
          CASE(a_session_goes_on_after_its_window_pages_and_can_be_rewound_to_any_position))
