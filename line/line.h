// Line: a line editor, from bytes that a keyboard sends to bytes that a terminal shows. Nothing in this
// header touches a terminal: keys, the text being edited, its history and the way it is drawn are plain state
// (line/prompt.h is the part with the terminal).
//
// A "line" may hold several: pasted text keeps its newlines, a line that ends in \ goes on, and so does one
// inside """.
#ifndef MLXCEL_LINE_LINE_H_
#define MLXCEL_LINE_LINE_H_

#include <stdint.h>

#include "base/text.h"

// ----------------------------------------------------------------------------------------------------------
// Keys

typedef enum mlx_key {
  MLX_KEY_NONE,  // nothing yet, or nothing we know
  MLX_KEY_TEXT,
  MLX_KEY_ENTER,
  MLX_KEY_NEWLINE,  // Alt-Enter: a new line in the text
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
} mlx_key_t;

// Zero-initialise to start.
typedef struct mlx_keys {
  char bytes[32];  // of an escape sequence or a character that is not whole yet; after MLX_KEY_TEXT the
                   // character
  size_t length;
  bool whole;  // what is in |bytes| was handed out
  bool pasting, after_return;
} mlx_keys_t;

// Takes in one byte. After MLX_KEY_TEXT, |bytes| and |length| are one UTF-8 character: pasted newlines are
// such, control characters never.
mlx_key_t mlx_keys_push(mlx_keys_t *keys, unsigned char byte);

// ----------------------------------------------------------------------------------------------------------
// History: what was entered, oldest first, in memory and in a file of the user's

typedef struct mlx_history {
  char **entries;  // owned
  size_t count, capacity;
  char *path;     // owned; NULL: in memory only
} mlx_history_t;  // zero-initialise to start

#define MLX_HISTORY_ENTRIES 1000
#define MLX_HISTORY_BYTES (64u << 10)  // of one entry: a longer one is not kept

// Adds the entries of a history file's text. Lines that are no UTF-8 are left out.
mlx_status_t mlx_history_parse(mlx_history_t *history, const char *text, size_t length) MLX_MUST_USE;
// Reads a file, where there is one, and has later entries appended to it. A file that has grown too long is
// cut to its last entries.
mlx_status_t mlx_history_open(mlx_history_t *history, const char *path) MLX_MUST_USE;
// Remembers a text, unless it is empty or the same as the last.
mlx_status_t mlx_history_add(mlx_history_t *history, const char *text, size_t length) MLX_MUST_USE;
void mlx_history_clear(mlx_history_t *history);
// Where it lies: "history" in the folder of base/user.h; NULL where none is known. Release with mlx_free.
mlx_status_t mlx_history_path(char **out_path) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// The line

typedef struct mlx_line {
  mlx_text_t text;
  size_t cursor;                 // a byte offset, never inside a character
  const mlx_history_t *history;  // borrowed; may be NULL
  const char *const *words;  // borrowed, a NULL after them: what Tab completes a first word to; may be NULL
  size_t back;               // how many entries back the text was taken from; 0: it is new
  mlx_text_t draft;          // the new text, while an entry is shown
} mlx_line_t;                // zero-initialise to start

#define MLX_LINE_BYTES (4u << 20)  // longest text; what comes after it is dropped

typedef enum mlx_line_event {
  MLX_LINE_GOES_ON,
  MLX_LINE_DONE,
  MLX_LINE_INTERRUPTED,
  MLX_LINE_ENDED,
  MLX_LINE_REDRAW,
  MLX_LINE_SUSPEND
} mlx_line_event_t;

// What a key does. |text| is the character of MLX_KEY_TEXT.
mlx_line_event_t mlx_line_press(mlx_line_t *line, mlx_key_t key, const char *text, size_t length);
// What was entered: without the quotes of a """ block. Borrowed from the line.
mlx_status_t mlx_line_value(mlx_line_t *line, const char **out_text, size_t *out_length) MLX_MUST_USE;
void mlx_line_clear(mlx_line_t *line);

// ----------------------------------------------------------------------------------------------------------
// Drawing

int mlx_char_width(uint32_t code);  // columns of a terminal: 0, 1 or 2

typedef struct mlx_screen {
  int columns, rows;  // of the terminal
  size_t cursor_row;  // counted from the first row that was drawn
} mlx_screen_t;

// Appends what makes a terminal show |prompt| and the line in the place of what was drawn before. |more|
// stands before later lines.
void mlx_screen_draw(mlx_screen_t *screen, const char *prompt, const char *more, const mlx_line_t *line,
                     mlx_text_t *out);
// The terminal has another size and has wrapped what it shows anew: call it, then draw.
void mlx_screen_resize(mlx_screen_t *screen, const char *prompt, const char *more, const mlx_line_t *line,
                       int columns, int rows);

#endif  // MLXCEL_LINE_LINE_H_
