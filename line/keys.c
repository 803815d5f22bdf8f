// Decodes the bytes that a terminal sends for keys. The sequences are those of xterm and compatible
// terminals.
#include <stdlib.h>
#include <string.h>

#include "line/line.h"

static mlx_key_t control_key(unsigned char byte) {
  static const unsigned char keys[32] = {
      [1] = MLX_KEY_HOME,         [2] = MLX_KEY_LEFT,          [3] = MLX_KEY_INTERRUPT,
      [4] = MLX_KEY_END_OF_INPUT, [5] = MLX_KEY_END,           [6] = MLX_KEY_RIGHT,
      [8] = MLX_KEY_BACKSPACE,    ['\n'] = MLX_KEY_ENTER,      ['\t'] = MLX_KEY_TAB,
      [11] = MLX_KEY_KILL_AFTER,  [12] = MLX_KEY_CLEAR_SCREEN, ['\r'] = MLX_KEY_ENTER,
      [14] = MLX_KEY_DOWN,        [16] = MLX_KEY_UP,           [21] = MLX_KEY_KILL_BEFORE,
      [23] = MLX_KEY_KILL_WORD,   [26] = MLX_KEY_SUSPEND,      [18] = MLX_KEY_SEARCH,
      [7] = MLX_KEY_CANCEL,
  };
  return byte == 0x7f ? MLX_KEY_BACKSPACE : (mlx_key_t)keys[byte];
}

// Decodes a sequence such as "ESC [ 3 ~": a number, an optional modifier and a final byte.
static mlx_key_t sequence_key(mlx_keys_t *keys) {
  const char *semicolon = memchr(keys->bytes, ';', keys->length);
  const int number = atoi(keys->bytes + 2), modifier = semicolon ? atoi(semicolon + 1) : 1;
  switch (keys->bytes[keys->length - 1]) {
    case 'A': return MLX_KEY_UP;
    case 'B': return MLX_KEY_DOWN;
    case 'C': return modifier > 1 ? MLX_KEY_WORD_RIGHT : MLX_KEY_RIGHT;
    case 'D': return modifier > 1 ? MLX_KEY_WORD_LEFT : MLX_KEY_LEFT;
    case 'H': return MLX_KEY_HOME;
    case 'F': return MLX_KEY_END;
    case 'u': return number == 13 ? MLX_KEY_NEWLINE : MLX_KEY_NONE;
    case '~': break;
    default: return MLX_KEY_NONE;
  }
  switch (number) {
    case 1:
    case 7: return MLX_KEY_HOME;
    case 4:
    case 8: return MLX_KEY_END;
    case 3: return MLX_KEY_DELETE;
    case 200:
      keys->pasting = true;
      keys->after_return = false;
      return MLX_KEY_NONE;
    case 201: keys->pasting = false; return MLX_KEY_NONE;
    default: return MLX_KEY_NONE;
  }
}

static mlx_key_t alt_key(unsigned char byte) {
  switch (byte) {
    case '\r':
    case '\n': return MLX_KEY_NEWLINE;
    case 'b': return MLX_KEY_WORD_LEFT;
    case 'f': return MLX_KEY_WORD_RIGHT;
    case 0x7f:
    case 8: return MLX_KEY_KILL_WORD;
    default: return MLX_KEY_NONE;
  }
}

// Handles a byte after ESC. Collects the sequence in |bytes| until its final byte; ignores a sequence that is
// too long.
static mlx_key_t push_escape(mlx_keys_t *keys, unsigned char byte) {
  if (keys->length == 1 && (byte == '[' || byte == 'O')) {
    keys->bytes[keys->length++] = (char)byte;
    return MLX_KEY_NONE;
  }
  const bool last = keys->length == 1 || keys->bytes[1] == 'O' || byte < 0x20 || byte > 0x3f;
  if (keys->length + 1 < sizeof keys->bytes) {
    keys->bytes[keys->length++] = (char)byte;
    keys->bytes[keys->length] = 0;
  }
  if (!last) return MLX_KEY_NONE;
  keys->whole = true;
  const mlx_key_t key = keys->length == 2 ? alt_key(byte) : sequence_key(keys);
  return keys->pasting ? MLX_KEY_NONE : key;
}

static mlx_key_t text_key(mlx_keys_t *keys, char byte) {
  keys->bytes[0] = byte;
  keys->length = 1;
  keys->whole = true;
  return MLX_KEY_TEXT;
}

static mlx_key_t push_control(mlx_keys_t *keys, unsigned char byte) {
  const bool after_return = keys->after_return && byte == '\n';  // the LF of a pasted CR LF
  keys->after_return = byte == '\r';
  keys->whole = true;
  if (!keys->pasting) return control_key(byte);
  if (after_return) return MLX_KEY_NONE;
  if (byte == '\r' || byte == '\n') return text_key(keys, '\n');
  return byte == '\t' ? text_key(keys, '\t') : MLX_KEY_NONE;
}

mlx_key_t mlx_keys_push(mlx_keys_t *keys, unsigned char byte) {
  if (keys->whole) keys->length = 0;
  keys->whole = false;
  if (keys->length && keys->bytes[0] == 0x1b) return push_escape(keys, byte);
  if (byte == 0x1b) {
    keys->bytes[0] = 0x1b;
    keys->length = 1;
    return MLX_KEY_NONE;
  }
  if (byte < 0x20 || byte == 0x7f) return push_control(keys, byte);
  keys->after_return = false;
  keys->bytes[keys->length++] = (char)byte;
  const int length = mlx_utf8_length(keys->bytes, keys->length);
  if (length < 0) return MLX_KEY_NONE;
  keys->whole = true;
  const bool is_control =
      length == 2 && (unsigned char)keys->bytes[0] == 0xc2 && (unsigned char)keys->bytes[1] < 0xa0;
  return length > 0 && !is_control ? MLX_KEY_TEXT : MLX_KEY_NONE;
}
