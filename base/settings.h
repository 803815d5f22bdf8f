// Settings: parser for configuration files, line by line. The caller interprets the keys and values.
//
//   # a comment, also after a value
//   key = value            spaces around key and value are dropped
//   key = "  a # \"b\"\n"  a quoted value is kept as it is; \" \\ \n and \t are escapes as in C
//   [section]              section of the keys below it
//
// Keys and sections are letters, digits, '-' and '_'. Lines end in LF or CRLF; the text is UTF-8 without NUL.
#ifndef MLXCEL_BASE_SETTINGS_H_
#define MLXCEL_BASE_SETTINGS_H_

#include "base/status.h"

#define MLX_SETTINGS_MAX (1 << 20)  // maximum size of a file in bytes

typedef struct mlx_setting {
  int line;             // first line is 1
  const char *section;  // "" before the first section
  const char *key;      // NULL: this line starts a section
  const char *value;    // NULL if key is NULL
} mlx_setting_t;
// The strings in |setting| are valid during the call. An error ends the reading.
typedef mlx_status_t (*mlx_setting_fn_t)(void *user, const mlx_setting_t *setting);

// Parses |bytes| (not kept). Errors start with "NAME:LINE: ".
mlx_status_t mlx_settings_read(const char *name, const char *bytes, size_t length, mlx_setting_fn_t visit,
                               void *user) MLX_MUST_USE;

#endif  // MLXCEL_BASE_SETTINGS_H_
