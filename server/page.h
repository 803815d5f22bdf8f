// The chat page: files that are part of the binary. server/page_empty.c has none.
#ifndef MLXCEL_SERVER_PAGE_H_
#define MLXCEL_SERVER_PAGE_H_

#include <stddef.h>

typedef struct mlx_page_file {
  const char *path;  // "/", "/page.js"; NULL ends the table
  const char *content_type;
  const unsigned char *bytes;
  size_t size;
} mlx_page_file_t;

extern const mlx_page_file_t mlx_page_files[];

// Content-Security-Policy of all files of the page.
#define MLX_PAGE_POLICY                                                                                   \
  "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; " \
  "font-src 'self' data:; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"

#endif  // MLXCEL_SERVER_PAGE_H_
