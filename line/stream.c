// Formats generated text for a terminal and writes it to stdout.
#include "line/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "line/line.h"
#include "line/tty.h"
#include "unicode/utf8.h"
#include "unicode/width.h"

#define DIM "\033[2m"
#define PLAIN "\033[0m"
#define MIN_COLUMNS 20  // narrower terminals wrap by themselves

static const char *wanted_tag(const mlx_stream_t *stream) {
  return stream->thinking ? "</think>" : "<think>";
}

static bool is_control(const char *character, int size) {
  const unsigned char byte = (unsigned char)character[0];
  if (size == 1) return (byte < 0x20 && byte != '\n' && byte != '\t') || byte >= 0x7f;
  return size == 2 && byte == 0xc2 && (unsigned char)character[1] < 0xa0;
}

// ----------------------------------------------------------------------------------------------------------
// Word wrap

static void begin_word(mlx_stream_t *stream) {
  stream->word.length = 0;
  stream->word_width = 0;
}

static void begin_row(mlx_stream_t *stream) {
  begin_word(stream);
  stream->column = stream->ticks = 0;
  stream->wrapped = false;
}

// Counts the ` at the start of a row: three begin or end a code block.
static void watch_for_code(mlx_stream_t *stream, char byte) {
  if (stream->ticks < 0 || (byte == ' ' && !stream->ticks)) return;
  if (byte != '`') {
    stream->ticks = -1;
  } else if (++stream->ticks == 3) {
    stream->in_code = !stream->in_code;
    stream->ticks = -1;
  }
}

// Moves the word before the cursor to the next row. A word as long as a row is split instead.
static void wrap_word(mlx_stream_t *stream, mlx_text_t *out) {
  if (stream->word_width == stream->column) begin_word(stream);
  if (stream->word_width) mlx_text_printf(out, "\033[%dD\033[K", stream->word_width);
  mlx_text_puts(out, "\n");
  mlx_text_append(out, stream->word.data ? stream->word.data : "", stream->word.length);
  stream->column = stream->word_width;
}

// Writes a character and moves the cursor. Wide characters are words of their own, as Chinese needs.
static void wrap_character(mlx_stream_t *stream, const char *character, size_t size, mlx_text_t *out) {
  size_t unused;
  const uint32_t code = mlx_character_or_byte_at(character, size, &unused);
  const int width = mlx_char_width(code), last = stream->columns - 1;
  if (code == ' ' || code == '\t') {
    begin_word(stream);
    if (stream->wrapped && !stream->column) return;
    if (stream->column + 1 > last) {
      mlx_text_puts(out, "\n");
      begin_row(stream);
      stream->wrapped = true;
      stream->ticks = -1;  // not a row of the text
      return;
    }
    mlx_text_append(out, character, 1);
    stream->column = code == ' ' ? stream->column + 1 : (stream->column / 8 + 1) * 8;
    if (stream->column > last) stream->column = last;
    return;
  }
  if (width && !stream->joined && (width == 2 || stream->wide)) begin_word(stream);
  if (stream->column + width > last) wrap_word(stream, out);
  mlx_text_append(out, character, size);
  mlx_text_append(&stream->word, character, size);
  stream->column += width;
  stream->word_width += width;
  if (width) stream->wide = width == 2;
  stream->wrapped = false;
  stream->joined = code == 0x200d;
}

// Writes a visible character, with wrapping if it is on.
static void emit(mlx_stream_t *stream, const char *character, size_t size, mlx_text_t *out) {
  if (stream->columns < MIN_COLUMNS) {
    mlx_text_append(out, character, size);
    return;
  }
  if (character[0] == '\n') {
    mlx_text_puts(out, "\n");
    begin_row(stream);
    return;
  }
  watch_for_code(stream, character[0]);
  if (stream->in_code) {
    mlx_text_append(out, character, size);
  } else {
    wrap_character(stream, character, size, out);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Characters

static void release(mlx_stream_t *stream, mlx_text_t *out) {
  for (size_t i = 0; i < stream->held_length; ++i) emit(stream, stream->held + i, 1, out);
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
    emit(stream, character, (size_t)size, out);
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

void mlx_stream_wrap(mlx_stream_t *stream) { stream->wraps = mlx_tty_can_draw(STDOUT_FILENO); }

bool mlx_stream_write(mlx_stream_t *stream, const char *text, size_t length) {
  if (stream->wraps)
    stream->columns = mlx_tty_columns(STDOUT_FILENO);  // the window may have another size now
  mlx_stream_format(stream, text, length, &stream->out);
  return flush(stream);
}

bool mlx_stream_end(mlx_stream_t *stream) {
  mlx_stream_finish(stream, &stream->out);
  const bool ok = flush(stream);
  mlx_text_clear(&stream->out);
  mlx_text_clear(&stream->word);
  return ok;
}
