// The C side of tokenizer_lines.py: encodes and decodes texts from stdin and prints the results.
//
//   tokenizer_dump TOKENIZER.json < requests > answers
//   tokenizer_dump MODEL.gguf > TOKENIZER.json        the tokenizer made from its metadata
//
// A request is a line "LENGTH FLAGS\n" and LENGTH bytes: a text to encode (FLAGS 0, or 1 to add special
// tokens) or a list of ids to decode (FLAGS 2). An answer is four lines: the ids, then the text they decode
// to with special tokens, without them, and by streaming, each as a JSON string. Times go to stderr. This is
// a test tool, so it may print and exit.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/memory.h"
#include "models/import/gguf_tokenizer.h"
#include "tokenizer/tokenizer.h"

#define MAX_FILE ((size_t)1 << 30)

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void need(mlx_status_t status) {
  if (!status) return;
  fprintf(stderr, "tokenizer_dump: %s\n", mlx_status_message(status));
  exit(mlx_status_code(status));
}

static void print_text(const char *text, size_t length) {
  mlx_text_t line = {0};
  mlx_text_json_string(&line, text, length);
  mlx_text_append(&line, "\n", 1);
  need(mlx_text_finish(&line));
  fwrite(line.data, 1, line.length, stdout);
  mlx_text_clear(&line);
}

static void print_decoded(const mlx_tokenizer_t *tokenizer, const int32_t *ids, size_t count,
                          bool skip_special) {
  char *text;
  size_t length;
  need(mlx_tokenizer_decode(tokenizer, ids, count, skip_special, &text, &length));
  print_text(text, length);
  mlx_free(text);
}

static void print_streamed(const mlx_tokenizer_t *tokenizer, const int32_t *ids, size_t count) {
  mlx_text_t text = {0};
  mlx_detokenizer_t detokenizer = {0};
  for (size_t i = 0; i < count; ++i) mlx_detokenizer_push(tokenizer, &detokenizer, ids[i], false, &text);
  mlx_detokenizer_flush(tokenizer, &detokenizer, &text);
  need(mlx_text_finish(&text));
  print_text(text.data, text.length);
  mlx_text_clear(&text);
}

static void read_ids(char *text, int32_t **out_ids, size_t *out_count) {
  size_t capacity = 0;
  *out_ids = NULL;
  *out_count = 0;
  for (char *end; need(mlx_reserve(*out_count + 1, sizeof **out_ids, &capacity, out_ids)), *text;
       text = end) {
    (*out_ids)[(*out_count)++] = (int32_t)strtol(text, &end, 10);
  }
}

static void answer(const mlx_tokenizer_t *tokenizer, char *text, size_t length, int flags, double *seconds) {
  int32_t *ids;
  size_t count;
  double start = now();
  if (flags == 2) {
    read_ids(text, &ids, &count);
  } else {
    need(mlx_tokenizer_encode(tokenizer, text, length, flags == 1, &ids, &count));
    *seconds += now() - start;
  }
  for (size_t i = 0; i < count; ++i) printf(i ? " %d" : "%d", ids[i]);
  putchar('\n');
  print_decoded(tokenizer, ids, count, false);
  print_decoded(tokenizer, ids, count, true);
  print_streamed(tokenizer, ids, count);
  mlx_free(ids);
}

static int convert(const char *path) {
  char *bytes, *json;
  size_t size, length;
  mlx_gguf_t *gguf;
  need(mlx_read_file(path, MAX_FILE, &bytes, &size));
  need(mlx_gguf_parse(path, (const uint8_t *)bytes, size, &gguf));
  need(mlx_gguf_tokenizer_json(gguf, &json, &length));
  fwrite(json, 1, length, stdout);
  mlx_free(json);
  mlx_gguf_close(gguf);
  mlx_free(bytes);
  return 0;
}

int main(int argc, char **argv) {
  char *json, *text = NULL;
  size_t json_length, length, capacity = 0, bytes = 0;
  mlx_tokenizer_t *tokenizer;
  int flags;
  double seconds = 0;
  if (argc != 2) {
    fprintf(stderr, "usage: tokenizer_dump TOKENIZER.json < requests, or tokenizer_dump MODEL.gguf\n");
    return 2;
  }
  if (strlen(argv[1]) > 5 && !strcmp(argv[1] + strlen(argv[1]) - 5, ".gguf")) return convert(argv[1]);
  need(mlx_read_file(argv[1], MAX_FILE, &json, &json_length));
  double start = now();
  need(mlx_tokenizer_create(argv[1], json, json_length, &tokenizer));
  fprintf(stderr, "create %.1f ms", (now() - start) * 1e3);
  mlx_free(json);
  while (scanf("%zu %d", &length, &flags) == 2 && getchar() == '\n') {
    need(mlx_reserve(length + 1, 1, &capacity, &text));
    if (fread(text, 1, length, stdin) != length) return 1;
    text[length] = 0;
    answer(tokenizer, text, length, flags, &seconds);
    if (flags != 2) bytes += length;
  }
  fprintf(stderr, ", encode %.1f MB/s\n", seconds > 0 ? (double)bytes / seconds * 1e-6 : 0.0);
  mlx_free(text);
  mlx_tokenizer_free(tokenizer);
  return 0;
}
