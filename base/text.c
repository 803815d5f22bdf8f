// Growing text buffer, UTF-8 checks and name suggestions.
#include "base/text.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"

static bool text_reserve(mlx_text_t *text, size_t extra) {
  size_t needed;
  if (text->failed) return false;
  mlx_status_t status = mlx_add(text->length, extra, &needed) && mlx_add(needed, 1, &needed)
                            ? mlx_reserve(needed, 1, &text->capacity, &text->data)
                            : mlx_error(MLX_OUT_OF_MEMORY, "out of memory: text too long");
  if (status) {
    mlx_status_free(status);
    text->failed = true;
  }
  return !text->failed;
}

void mlx_text_append(mlx_text_t *text, const char *bytes, size_t length) {
  if (!text_reserve(text, length)) return;
  if (length) memcpy(text->data + text->length, bytes, length);
  text->length += length;
  text->data[text->length] = 0;
}

void mlx_text_puts(mlx_text_t *text, const char *string) { mlx_text_append(text, string, strlen(string)); }

void mlx_text_printf(mlx_text_t *text, const char *fmt, ...) {
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, fmt, again);
  va_end(again);
  if (length < 0) {
    text->failed = true;
  } else if (text_reserve(text, (size_t)length)) {
    vsnprintf(text->data + text->length, (size_t)length + 1, fmt, args);
    text->length += (size_t)length;
  }
  va_end(args);
}

void mlx_text_json_string(mlx_text_t *text, const char *bytes, size_t length) {
  size_t copied = 0;  // the bytes before it are written; those up to i need no escape
  mlx_text_append(text, "\"", 1);
  for (size_t i = 0; i < length;) {
    const unsigned char c = (unsigned char)bytes[i];
    const int n = c < 0x80 ? 1 : mlx_utf8_length(bytes + i, length - i);
    if (n > 0 && c != '"' && c != '\\' && c >= 0x20) {
      i += (size_t)n;
      continue;
    }
    mlx_text_append(text, bytes + copied, i - copied);
    if (n <= 0) {
      mlx_text_append(text, "\\ufffd", 6);
    } else if (c == '"' || c == '\\') {
      mlx_text_append(text, (const char[2]){'\\', (char)c}, 2);
    } else if (c == '\n') {
      mlx_text_append(text, "\\n", 2);
    } else {
      mlx_text_printf(text, "\\u%04x", c);
    }
    copied = ++i;
  }
  if (copied < length) mlx_text_append(text, bytes + copied, length - copied);
  mlx_text_append(text, "\"", 1);
}

void mlx_text_json_number(mlx_text_t *text, const char *format, double value) {
  if (isfinite(value)) {
    char number[512];  // the largest double has 309 digits before its point
    snprintf(number, sizeof number, format, value);
    mlx_text_puts(text, number);
  } else {
    mlx_text_puts(text, "null");
  }
}

mlx_status_t mlx_text_finish(mlx_text_t *text) {
  if (!text->failed && !text->data) mlx_text_append(text, "", 0);
  return text->failed ? mlx_error(MLX_OUT_OF_MEMORY, "out of memory while writing text") : NULL;
}

mlx_status_t mlx_text_take(mlx_text_t *text, char **out_data, size_t *out_length) {
  *out_data = NULL;
  mlx_status_t status = mlx_text_finish(text);
  if (status) {
    mlx_text_clear(text);
    return status;
  }
  *out_data = text->data;
  if (out_length) *out_length = text->length;
  *text = (mlx_text_t){0};
  return NULL;
}

void mlx_text_clear(mlx_text_t *text) {
  mlx_free(text->data);
  *text = (mlx_text_t){0};
}

int mlx_utf8_length(const char *bytes, size_t length) {
  if (!length) return -1;
  const unsigned char *s = (const unsigned char *)bytes;
  if (s[0] < 0x80) return 1;
  int n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
  if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
  // The second byte's range excludes overlong forms, surrogates and values past U+10FFFF.
  unsigned char low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
  unsigned char high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
  if (length > 1 && (s[1] < low || s[1] > high)) return 0;
  for (int i = 2; i < n && (size_t)i < length; ++i) {
    if ((s[i] & 0xc0) != 0x80) return 0;
  }
  return length < (size_t)n ? -1 : n;
}

// ----------------------------------------------------------------------------------------------------------
// Name suggestions

#define MAX_NAME 31  // bytes; longer words have no suggestion

// Edit distance, where swapping two neighbours is one edit.
static size_t distance(const char *a, size_t a_length, const char *b, size_t b_length) {
  size_t rows[3][MAX_NAME + 1];  // of the last three prefixes of a
  for (size_t i = 0; i <= a_length; ++i) {
    size_t *row = rows[i % 3];
    const size_t *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
    row[0] = i;
    for (size_t j = 1; j <= b_length; ++j) {
      if (i == 0) {
        row[j] = j;
        continue;
      }
      row[j] = last[j - 1] + (a[i - 1] != b[j - 1]);
      if (last[j] + 1 < row[j]) row[j] = last[j] + 1;
      if (row[j - 1] + 1 < row[j]) row[j] = row[j - 1] + 1;
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped && before[j - 2] + 1 < row[j]) row[j] = before[j - 2] + 1;
    }
  }
  return rows[a_length % 3][b_length];
}

bool mlx_ends_with(const char *text, const char *end) {
  const size_t length = strlen(text), end_length = strlen(end);
  return length >= end_length && !strcmp(text + length - end_length, end);
}

bool mlx_ends_with_nocase(const char *text, const char *end) {
  const size_t length = strlen(text), end_length = strlen(end);
  return length >= end_length && !strcasecmp(text + length - end_length, end);
}

const char *mlx_nearest_name(const char *word, const char *const *names) {
  const char *best = NULL;
  const size_t length = strlen(word);
  size_t best_distance = 3;  // suggest only names with fewer edits than this
  for (; *names && length <= MAX_NAME; ++names) {
    const size_t name_length = strlen(*names), longer = name_length > length ? name_length : length;
    if (longer > MAX_NAME) continue;
    const size_t d = distance(word, length, *names, name_length);
    if (d < best_distance && 3 * d <= longer) {
      best = *names;
      best_distance = d;
    }
  }
  return best;
}
