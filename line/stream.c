// Formats generated text for a terminal and writes it to stdout.
#include "line/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DIM "\033[2m"
#define PLAIN "\033[0m"

static const char *wanted_tag(const mlx_stream_t *stream) {
  return stream->thinking ? "</think>" : "<think>";
}

static bool is_control(const char *character, int size) {
  const unsigned char byte = (unsigned char)character[0];
  if (size == 1) return (byte < 0x20 && byte != '\n' && byte != '\t') || byte >= 0x7f;
  return size == 2 && byte == 0xc2 && (unsigned char)character[1] < 0xa0;
}

static void release(mlx_stream_t *stream, mlx_text_t *out) {
  mlx_text_append(out, stream->held, stream->held_length);
  stream->held_length = 0;
}

// Handles a complete tag, which is dimmed like the thinking that it begins or ends.
static void toggle_thinking(mlx_stream_t *stream, mlx_text_t *out) {
  stream->thinking = !stream->thinking;
  if (stream->thinking && stream->colours) mlx_text_puts(out, DIM);
  release(stream, out);
  if (!stream->thinking && stream->colours) mlx_text_puts(out, PLAIN);
}

static void put_character(mlx_stream_t *stream, const char *character, int size, mlx_text_t *out) {
  if (stream->terminal && is_control(character, size)) return;
  const char *tag = wanted_tag(stream);
  if (size == 1 && character[0] == tag[stream->held_length]) {
    stream->held[stream->held_length++] = character[0];
    if (!tag[stream->held_length]) toggle_thinking(stream, out);
    return;
  }
  release(stream, out);
  if (character[0] == '<') {
    stream->held[stream->held_length++] = '<';
  } else {
    mlx_text_append(out, character, (size_t)size);
  }
}

void mlx_stream_format(mlx_stream_t *stream, const char *text, size_t length, mlx_text_t *out) {
  if (!stream->terminal) {
    mlx_text_append(out, text, length);
    return;
  }
  for (size_t at = 0; at < length;) {
    int size = mlx_utf8_length(text + at, length - at);
    if (size <= 0) size = 1;
    put_character(stream, text + at, size, out);
    at += (size_t)size;
  }
}

void mlx_stream_finish(mlx_stream_t *stream, mlx_text_t *out) {
  release(stream, out);
  if (stream->thinking && stream->colours) mlx_text_puts(out, PLAIN);
  stream->thinking = false;
}

bool mlx_stream_thinks_after(const char *prompt, size_t length) {
  static const char tag[] = "<think>";
  const size_t size = sizeof tag - 1;
  while (length && (prompt[length - 1] == ' ' || prompt[length - 1] == '\n')) --length;
  return length >= size && !memcmp(prompt + length - size, tag, size);
}

// ----------------------------------------------------------------------------------------------------------
// stdout

static bool flush(mlx_stream_t *stream) {
  const size_t length = stream->out.length;
  const bool ok = !stream->out.failed && (!length || fwrite(stream->out.data, 1, length, stdout) == length) &&
                  !fflush(stdout);
  stream->out.length = 0;
  return ok;
}

void mlx_stream_begin(mlx_stream_t *stream, bool thinking) {
  const char *no_colour = getenv("NO_COLOR"), *term = getenv("TERM");
  *stream = (mlx_stream_t){.terminal = isatty(STDOUT_FILENO), .thinking = thinking};
  stream->colours = stream->terminal && !(no_colour && no_colour[0]) && term && strcmp(term, "dumb");
  if (thinking && stream->colours) mlx_text_puts(&stream->out, DIM);
}

bool mlx_stream_write(mlx_stream_t *stream, const char *text, size_t length) {
  mlx_stream_format(stream, text, length, &stream->out);
  return flush(stream);
}

bool mlx_stream_end(mlx_stream_t *stream) {
  mlx_stream_finish(stream, &stream->out);
  const bool ok = flush(stream);
  mlx_text_clear(&stream->out);
  return ok;
}
