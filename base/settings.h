// Settings: the text of a configuration file, line by line. It knows the format and nothing of what the keys
// mean.
//
//   # a comment, also after a value
//   key = value            blanks around both are dropped
//   key = "  a # \"b\"\n"  in quotes everything counts; \" \\ \n and \t are as in C
//   [section]              of the keys below it
//
// Keys and sections are letters, digits, '-' and '_'. Lines end in LF or CRLF; the text is UTF-8 without NUL.
#ifndef MLXCEL_BASE_SETTINGS_H_
#define MLXCEL_BASE_SETTINGS_H_

#include "base/status.h"

#define MLX_SETTINGS_MAX (1 << 20)  // bytes that a file may have

typedef struct mlx_setting {
  int line;             // from 1 on
  const char *section;  // "" before the first
  const char *key;      // NULL: a section begins here
  const char *value;    // NULL with the key
} mlx_setting_t;
// Everything in |setting| is borrowed for the call. A status ends the reading.
typedef mlx_status_t (*mlx_setting_fn_t)(void *user, const mlx_setting_t *setting);

// Reads |bytes| (not kept); |name| is what errors call the file: "NAME:LINE: ...".
mlx_status_t mlx_settings_read(const char *name, const char *bytes, size_t length, mlx_setting_fn_t visit,
                               void *user) MLX_MUST_USE;

#endif  // MLXCEL_BASE_SETTINGS_H_
