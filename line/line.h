// Line: a line editor that turns the bytes of keys into an edited text and into terminal output. It has no
// access to a terminal: keys, text, history and drawing are plain state. line/prompt.h adds the terminal.
//
// A "line" may contain newlines: from pasted text, after a \ at the end of a row, and inside """.
#ifndef MLXCEL_LINE_LINE_H_
#define MLXCEL_LINE_LINE_H_

#include <stdint.h>

#include "base/text.h"

// ----------------------------------------------------------------------------------------------------------
// Keys

typedef enum mlx_key {
  MLX_KEY_NONE,  // incomplete or unknown
  MLX_KEY_TEXT,
  MLX_KEY_ENTER,
  MLX_KEY_NEWLINE,  // Alt-Enter: inserts a newline
  MLX_KEY_LEFT,
  MLX_KEY_RIGHT,
  MLX_KEY_UP,
  MLX_KEY_DOWN,
  MLX_KEY_HOME,
  MLX_KEY_END,
  MLX_KEY_WORD_LEFT,
  MLX_KEY_WORD_RIGHT,
  MLX_KEY_BACKSPACE,
  MLX_KEY_DELETE,
  MLX_KEY_KILL_AFTER,
  MLX_KEY_KILL_BEFORE,
  MLX_KEY_KILL_WORD,
  MLX_KEY_INTERRUPT,
  MLX_KEY_END_OF_INPUT,
  MLX_KEY_CLEAR_SCREEN,
  MLX_KEY_SUSPEND,
  MLX_KEY_TAB,
  MLX_KEY_SEARCH,  // Ctrl-R
  MLX_KEY_CANCEL,  // Ctrl-G
} mlx_key_t;

// Zero-initialize to start.
typedef struct mlx_keys {
  char bytes[32];  // an incomplete escape sequence or character; after MLX_KEY_TEXT, the character
  size_t length;
  bool whole;         // |bytes| is complete: the next byte begins a new key
  bool pasting;       // inside a bracketed paste
  bool after_return;  // the last byte was a carriage return
} mlx_keys_t;

// Handles one byte. After MLX_KEY_TEXT, |bytes| and |length| hold one UTF-8 character: a printable one, or a
// pasted newline or tab.
mlx_key_t mlx_keys_push(mlx_keys_t *keys, unsigned char byte);

// ----------------------------------------------------------------------------------------------------------
// Graphemes: what a reader sees as one character

// The byte offset after the grapheme that begins at |at|.
size_t mlx_grapheme_end(const char *text, size_t length, size_t at);
// The byte offset of the grapheme that ends at or after |at| and begins before it; 0 if |at| is 0.
size_t mlx_grapheme_start(const char *text, size_t length, size_t at);

// ----------------------------------------------------------------------------------------------------------
// History: entered texts, oldest first, in memory and in a file

typedef struct mlx_history {
  char **entries;  // owned
  size_t count, capacity;
  char *path;     // owned; NULL for a history in memory only
} mlx_history_t;  // zero-initialize to start

#define MLX_HISTORY_ENTRIES 1000
#define MLX_HISTORY_BYTES (64u << 10)  // longest entry; longer ones are not kept

// Adds the entries of a history file. Skips lines with invalid UTF-8 or control characters.
mlx_status_t mlx_history_parse(mlx_history_t *history, const char *text, size_t length) MLX_MUST_USE;
// Reads the file if it exists; mlx_history_add appends to it. A file with too many entries is cut to the
// newest ones.
mlx_status_t mlx_history_open(mlx_history_t *history, const char *path) MLX_MUST_USE;
// Adds a text, unless it is empty, too long or equal to the last one, or contains control characters.
mlx_status_t mlx_history_add(mlx_history_t *history, const char *text, size_t length) MLX_MUST_USE;
void mlx_history_clear(mlx_history_t *history);
// "history" in the user's state folder (base/user.h); NULL if there is none. Release with mlx_free.
mlx_status_t mlx_history_path(char **out_path) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// The line

typedef struct mlx_line {
  mlx_text_t text;
  size_t cursor;                 // a byte offset, never inside a character
  const mlx_history_t *history;  // borrowed; may be NULL
  const char *const *words;      // borrowed, ends with NULL: completions of the first word; may be NULL
  size_t back;                   // history entry shown: 1 is the newest, 0 the new text
  mlx_text_t draft;              // the new text while a history entry is shown
  bool searching;                // Ctrl-R: |text| is the entry found, with the cursor where |query| begins
  bool not_found;                // no older entry contains |query|
  mlx_text_t query;
  mlx_text_t text_before;  // |text|, |cursor| and |back| when the search began
  size_t cursor_before, back_before;
} mlx_line_t;  // zero-initialize to start

#define MLX_LINE_BYTES (4u << 20)  // longest text; further input is dropped

typedef enum mlx_line_event {
  MLX_LINE_CONTINUES,
  MLX_LINE_DONE,
  MLX_LINE_INTERRUPTED,
  MLX_LINE_ENDED,
  MLX_LINE_REDRAW,
  MLX_LINE_SUSPEND
} mlx_line_event_t;

// Applies a key. |text| is the character of MLX_KEY_TEXT.
mlx_line_event_t mlx_line_press(mlx_line_t *line, mlx_key_t key, const char *text, size_t length);
// Replaces the text, with the cursor at its end.
void mlx_line_set(mlx_line_t *line, const char *text, size_t length);
// Appends the label of the first row while the line is |searching|.
void mlx_line_search_label(const mlx_line_t *line, mlx_text_t *out);
// The entered text, without the quotes of a """ block. Borrowed from the line.
mlx_status_t mlx_line_value(mlx_line_t *line, const char **out_text, size_t *out_length) MLX_MUST_USE;
void mlx_line_clear(mlx_line_t *line);

// ----------------------------------------------------------------------------------------------------------
// Drawing

typedef struct mlx_screen {
  int columns, rows;  // of the terminal
  size_t cursor_row;  // row of the cursor, from the first drawn row
} mlx_screen_t;

// Appends the terminal output that replaces the previous drawing by |prompt| and the line. |more| is the
// prompt of later rows.
void mlx_screen_draw(mlx_screen_t *screen, const char *prompt, const char *more, const mlx_line_t *line,
                     mlx_text_t *out);
// Updates the size after the terminal was resized and rewrapped its rows. Call mlx_screen_draw next.
void mlx_screen_resize(mlx_screen_t *screen, const char *prompt, const char *more, const mlx_line_t *line,
                       int columns, int rows);

#endif  // MLXCEL_LINE_LINE_H_
