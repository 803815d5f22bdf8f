// The C side of kl_gate.py: writes the logits of a compiled model after each prompt and each greedy step.
//
//   logits_dump BUNDLE cpu|cuda STEPS < prompts > records
//
// A line of the input is a prompt: token ids, separated by spaces. For each one a fresh session reads it and
// takes STEPS greedy steps, one at a time. A record is the token chosen (i32) and the logits it was chosen
// from (f32 x vocabulary); a prompt gives STEPS + 1 of them, the first from the prefill. This is a test
// tool, so it may print and exit.
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "runtime/rooms.h"

static _Noreturn void fail(int code, const char *what, size_t line) {
  fprintf(stderr, "logits_dump: %s", what);
  if (line) fprintf(stderr, " (line %zu of the input)", line);
  fputc('\n', stderr);
  exit(code);
}

static void need(mlx_status_t status) {
  if (!status) return;
  fprintf(stderr, "logits_dump: %s\n", mlx_status_message(status));
  exit(mlx_status_code(status));
}

static mlx_device_choice_t parse_device(const char *name) {
  if (!strcmp(name, "cpu")) return MLX_USE_CPU;
  if (!strcmp(name, "cuda")) return MLX_USE_CUDA;
  fail(2, "the device must be cpu or cuda", 0);
}

static int64_t parse_steps(const char *text) {
  char *end;
  errno = 0;
  long long steps = strtoll(text, &end, 10);
  if (end == text || *end || errno || steps < 0 || steps > INT32_MAX)
    fail(2, "STEPS must be a number, 0 or more", 0);
  return steps;
}

// |*ids| grows as needed and is kept from line to line.
static size_t parse_ids(const char *text, size_t line, int32_t **ids, size_t *capacity) {
  size_t count = 0;
  for (;;) {
    text += strspn(text, " \t\r\n");
    if (!*text) break;
    char *end;
    errno = 0;
    long id = strtol(text, &end, 10);
    bool whole = end != text && (!*end || strchr(" \t\r\n", *end));
    if (!whole || errno || id < 0 || id > INT32_MAX) fail(1, "this is not a list of token ids", line);
    need(mlx_reserve(count + 1, sizeof **ids, capacity, ids));
    (*ids)[count++] = (int32_t)id;
    text = end;
  }
  if (!count) fail(1, "a prompt needs at least one token id", line);
  return count;
}

static void write_record(mlx_session_t *session, int32_t token, float *logits, size_t vocab) {
  need(mlx_session_logits(session, logits, vocab));
  if (fwrite(&token, sizeof token, 1, stdout) != 1 ||
      fwrite(logits, sizeof *logits, vocab, stdout) != vocab) {
    fail(1, "the output could not be written", 0);
  }
}

static void answer(mlx_engine_t *engine, const int32_t *ids, size_t count, int64_t steps, float *logits,
                   size_t vocab) {
  mlx_session_t *session;
  int32_t token;
  need(mlx_session_create(engine, &session));
  need(mlx_session_read(session, ids, count, &token));
  write_record(session, token, logits, vocab);
  for (int64_t i = 0; i < steps; ++i) {
    need(mlx_session_step(session, &token));
    write_record(session, token, logits, vocab);
  }
  mlx_session_free(session);
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: logits_dump BUNDLE cpu|cuda STEPS < ids.txt > out.bin\n");
    return 2;
  }
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  options.device = parse_device(argv[2]);
  const int64_t steps = parse_steps(argv[3]);
  mlx_engine_t *engine;
  options.allow_unsigned = true;
  need(mlx_engine_open_bundle(argv[1], &options, &engine));
  const mlx_engine_info_t info = mlx_engine_info(engine);
  float *logits;
  need(mlx_alloc((size_t)info.vocab, sizeof *logits, &logits));

  char *text = NULL;
  int32_t *ids = NULL;
  size_t text_size = 0, capacity = 0, line = 0;
  while (getline(&text, &text_size, stdin) >= 0) {
    size_t count = parse_ids(text, ++line, &ids, &capacity);
    bool fits = steps <= info.context && count <= (size_t)(info.context - steps);
    if (!fits) fail(1, "prompt and steps do not fit into the context", line);
    answer(engine, ids, count, steps, logits, (size_t)info.vocab);
  }
  if (ferror(stdin)) fail(1, "the input could not be read", 0);
  if (!line) fail(1, "the input has no prompt", 0);
  if (fflush(stdout)) fail(1, "the output could not be written", 0);
  fprintf(stderr, "logits_dump: %zu prompts, %lld steps each, %lld tokens known, stored as %s, on %s%s%s\n",
          line, (long long)steps, (long long)info.vocab, info.dtype, info.device, *info.gpu ? ", " : "",
          info.gpu);
  free(text);
  mlx_free(ids);
  mlx_free(logits);
  mlx_engine_close(engine);
  return 0;
}
