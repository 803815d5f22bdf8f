// Names from model files appear in error messages. Control characters in them could drive the terminal, so
// only plain text is shown.
#ifndef MLXCEL_MODELS_IMPORT_NAME_H_
#define MLXCEL_MODELS_IMPORT_NAME_H_

#include <string.h>

#include "base/text.h"

// True for UTF-8 without control characters (C0, DEL, C1).
static inline bool mlx_name_is_plain(const char *bytes, size_t length) {
  while (length) {
    int step = mlx_utf8_length(bytes, length);
    unsigned char first = (unsigned char)bytes[0];
    if (step <= 0 || first < 0x20 || first == 0x7f) return false;
    if (first == 0xc2 && (unsigned char)bytes[1] < 0xa0) return false;
    bytes += step;
    length -= (size_t)step;
  }
  return true;
}

// |text| if it is safe to print, else "(unprintable)".
static inline const char *mlx_name_printable(const char *text) {
  size_t length = strlen(text);
  return length <= 256 && mlx_name_is_plain(text, length) ? text : "(unprintable)";
}

#endif  // MLXCEL_MODELS_IMPORT_NAME_H_
