// Reads lines and secrets from the terminal, with line/line.h for editing and line/tty.h for input.
#include "line/prompt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "line/tty.h"

#define PASTE_ON "\033[?2004h"
#define PASTE_OFF "\033[?2004l"

struct mlx_prompt {
  mlx_line_t line;
  mlx_keys_t keys;
  mlx_screen_t screen;
  bool edits;          // the terminal supports cursor movement
  mlx_text_t prefill;  // the text that the next read starts with
  unsigned char bytes[4096];
  size_t at, filled;  // |bytes| from at to filled are read but not handled yet
};

bool mlx_prompt_was_interrupted(void) { return mlx_tty_take_interrupt(); }

bool mlx_prompt_is_possible(void) { return isatty(STDIN_FILENO); }
bool mlx_prompt_input_is_ready(int milliseconds) { return mlx_tty_input_is_ready(milliseconds); }

mlx_status_t mlx_prompt_open(const mlx_history_t *history, const char *const *words,
                             mlx_prompt_t **out_prompt) {
  *out_prompt = NULL;
  mlx_prompt_t *prompt;
  MLX_TRY(mlx_alloc(1, sizeof *prompt, &prompt));
  mlx_status_t status = mlx_tty_open(PASTE_OFF);
  if (status) {
    mlx_free(prompt);
    return status;
  }
  prompt->line.history = history;
  prompt->line.words = words;
  prompt->edits = mlx_tty_can_draw(STDERR_FILENO);
  if (prompt->edits) mlx_tty_enter(false);
  *out_prompt = prompt;
  return NULL;
}

void mlx_prompt_close(mlx_prompt_t *prompt) {
  if (!prompt) return;
  mlx_tty_close();
  mlx_line_clear(&prompt->line);
  mlx_text_clear(&prompt->prefill);
  mlx_free(prompt);
}

bool mlx_prompt_prefill(mlx_prompt_t *prompt, const char *text, size_t length) {
  prompt->prefill.length = 0;
  if (prompt->edits) mlx_text_append(&prompt->prefill, text, length);
  return prompt->edits && !prompt->prefill.failed;
}

// ----------------------------------------------------------------------------------------------------------
// Drawing

static mlx_status_t show(const mlx_text_t *text) {
  for (size_t at = 0; at < text->length;) {
    const ssize_t written = write(STDERR_FILENO, text->data + at, text->length - at);
    if (written < 0 && errno != EINTR) return mlx_io_error("write to", "the terminal");
    if (written > 0) at += (size_t)written;
  }
  return NULL;
}

typedef struct labels {
  const char *first, *more;
} labels_t;

// The label of the first row; a search replaces |first|. Uses |storage|.
static const char *first_label(const mlx_prompt_t *prompt, const char *first, mlx_text_t *storage) {
  if (!prompt->line.searching) return first;
  mlx_line_search_label(&prompt->line, storage);
  return storage->data ? storage->data : first;
}

static mlx_status_t draw(mlx_prompt_t *prompt, labels_t labels, const char *before, const char *after) {
  mlx_text_t out = {0}, label = {0};
  const char *first = first_label(prompt, labels.first, &label);
  mlx_text_puts(&out, before);
  mlx_screen_draw(&prompt->screen, first, labels.more, &prompt->line, &out);
  mlx_text_puts(&out, after);
  mlx_status_t status = mlx_text_finish(&out);
  if (!status) status = show(&out);
  mlx_text_clear(&out);
  mlx_text_clear(&label);
  return status;
}

// Leaves the cursor below the drawing.
static mlx_status_t finish_drawing(mlx_prompt_t *prompt, labels_t labels) {
  prompt->line.cursor = prompt->line.text.length;
  return draw(prompt, labels, "", PASTE_OFF "\r\n");
}

static mlx_status_t resize(mlx_prompt_t *prompt, labels_t labels) {
  int columns, rows;
  mlx_text_t label = {0};
  mlx_tty_size(&columns, &rows);
  mlx_screen_resize(&prompt->screen, first_label(prompt, labels.first, &label), labels.more, &prompt->line,
                    columns, rows);
  mlx_text_clear(&label);
  return draw(prompt, labels, "", "");
}

// ----------------------------------------------------------------------------------------------------------
// Reading

static mlx_status_t fill(mlx_prompt_t *prompt, bool *out_end) {
  prompt->at = prompt->filled = 0;
  return mlx_tty_read(prompt->bytes, sizeof prompt->bytes, &prompt->filled, out_end);
}

// Handles the bytes that were read, until a key ends the line.
static mlx_line_event_t press(mlx_prompt_t *prompt) {
  mlx_line_event_t event = MLX_LINE_CONTINUES;
  while (event == MLX_LINE_CONTINUES && prompt->at < prompt->filled) {
    const mlx_key_t key = mlx_keys_push(&prompt->keys, prompt->bytes[prompt->at++]);
    event = mlx_line_press(&prompt->line, key, prompt->keys.bytes, prompt->keys.length);
  }
  return event;
}

static mlx_status_t suspend(mlx_prompt_t *prompt, labels_t labels) {
  MLX_TRY(finish_drawing(prompt, labels));
  mlx_tty_leave();
  mlx_tty_suspend();
  mlx_tty_enter(true);
  prompt->screen.cursor_row = 0;
  return draw(prompt, labels, PASTE_ON, "");
}

static mlx_status_t edit(mlx_prompt_t *prompt, labels_t labels, mlx_line_event_t *out_event) {
  bool end = false;
  prompt->screen.cursor_row = 0;
  mlx_tty_size(&prompt->screen.columns, &prompt->screen.rows);
  MLX_TRY(draw(prompt, labels, PASTE_ON, ""));
  for (;;) {
    const mlx_line_event_t event = end ? MLX_LINE_ENDED : press(prompt);
    *out_event = event;
    if (event == MLX_LINE_DONE || event == MLX_LINE_INTERRUPTED || event == MLX_LINE_ENDED)
      return finish_drawing(prompt, labels);
    if (event == MLX_LINE_SUSPEND) {
      MLX_TRY(suspend(prompt, labels));
    } else if (event == MLX_LINE_REDRAW) {
      prompt->screen.cursor_row = 0;
      MLX_TRY(draw(prompt, labels, "\033[H\033[2J", ""));
    } else if (mlx_tty_is_resized()) {
      MLX_TRY(resize(prompt, labels));
    } else {
      MLX_TRY(draw(prompt, labels, "", ""));
      MLX_TRY(fill(prompt, &end));
    }
  }
}

// Reads whole lines with the terminal's own line editing, for terminals without cursor movement.
static mlx_status_t read_whole_lines(mlx_prompt_t *prompt, labels_t labels, mlx_line_event_t *out_event) {
  bool end = false;
  fputs(labels.first, stderr);
  for (;;) {
    *out_event = end ? MLX_LINE_ENDED : press(prompt);
    if (*out_event == MLX_LINE_DONE || *out_event == MLX_LINE_INTERRUPTED || *out_event == MLX_LINE_ENDED)
      return NULL;
    if (prompt->at < prompt->filled) continue;
    if (prompt->line.text.length) fputs(labels.more, stderr);
    MLX_TRY(fill(prompt, &end));
    if (mlx_tty_take_interrupt()) {
      *out_event = MLX_LINE_INTERRUPTED;
      fputc('\n', stderr);
      return NULL;
    }
  }
}

mlx_status_t mlx_prompt_read(mlx_prompt_t *prompt, const char *text, const char *more,
                             mlx_prompt_result_t *out_result, const char **out_line, size_t *out_length,
                             bool *out_had_text) {
  mlx_line_event_t event = MLX_LINE_ENDED;
  *out_line = "";
  *out_length = 0;
  mlx_line_clear(&prompt->line);
  if (prompt->prefill.length) mlx_line_set(&prompt->line, prompt->prefill.data, prompt->prefill.length);
  prompt->prefill.length = 0;
  if (prompt->edits) mlx_tty_enter(true);
  mlx_status_t status = prompt->edits ? edit(prompt, (labels_t){text, more}, &event)
                                      : read_whole_lines(prompt, (labels_t){text, more}, &event);
  if (prompt->edits) mlx_tty_enter(false);
  mlx_tty_take_interrupt();
  *out_had_text = prompt->line.text.length > 0;
  *out_result = event == MLX_LINE_DONE          ? MLX_PROMPT_LINE
                : event == MLX_LINE_INTERRUPTED ? MLX_PROMPT_INTERRUPTED
                                                : MLX_PROMPT_END;
  if (!status && event == MLX_LINE_DONE) status = mlx_line_value(&prompt->line, out_line, out_length);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Secrets

// The length without the last UTF-8 character.
static size_t drop_character(const char *text, size_t length) {
  while (length && ((unsigned char)text[length - 1] & 0xc0) == 0x80) --length;
  return length ? length - 1 : 0;
}

// Reads the next byte and erases it from the buffer. Sets *|out_end| after Ctrl-C and at the end of input.
static mlx_status_t take_byte(mlx_prompt_t *prompt, unsigned char *out_byte, bool *out_end) {
  int columns, rows;
  *out_end = false;
  while (prompt->at == prompt->filled && !*out_end) {
    mlx_tty_size(&columns, &rows);  // clears the resized state, which would end mlx_tty_read at once
    MLX_TRY(fill(prompt, out_end));
    *out_end |= mlx_prompt_was_interrupted();
  }
  if (*out_end) return NULL;
  *out_byte = prompt->bytes[prompt->at];
  prompt->bytes[prompt->at++] = 0;
  return NULL;
}

static mlx_status_t read_secret(mlx_prompt_t *prompt, char *out, size_t size) {
  enum { CTRL_C = 3, CTRL_D = 4, BACKSPACE = 8, CTRL_U = 21, DELETE = 127 };
  size_t length = 0;
  for (;;) {
    unsigned char key;
    bool end;
    MLX_TRY(take_byte(prompt, &key, &end));
    if (end || key == CTRL_C || (key == CTRL_D && !length))
      return mlx_error(MLX_CANCELLED, "the input was cancelled");
    if (key == '\r' || key == '\n') break;
    if (key == BACKSPACE || key == DELETE) length = drop_character(out, length);
    if (key == CTRL_U) length = 0;
    if (key < 0x20 || key == DELETE) continue;
    if (length + 1 >= size) return mlx_error(MLX_USAGE, "the input is longer than %zu bytes", size - 1);
    out[length++] = (char)key;
  }
  out[length] = 0;
  return NULL;
}

mlx_status_t mlx_prompt_read_secret(mlx_prompt_t *prompt, const char *text, char *out, size_t size) {
  mlx_tty_enter(true);
  fputs(text, stderr);
  mlx_status_t status = read_secret(prompt, out, size);
  fputc('\n', stderr);
  if (prompt->edits) {
    mlx_tty_enter(false);
  } else {
    mlx_tty_leave();
  }
  return status;
}
