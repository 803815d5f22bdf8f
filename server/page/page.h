// The files of the chat page, embedded at build time. server/page/ has their sources; third_party/npm.txt
// pins the libraries.
#ifndef MLXCEL_SERVER_PAGE_PAGE_H_
#define MLXCEL_SERVER_PAGE_PAGE_H_

#include <stdbool.h>
#include <stddef.h>

typedef struct mlx_page_file {
  const char *path;          // of the URL: "/", "/page/app.js"
  const char *content_type;  // NULL ends the table
  const char *bytes;
  size_t size;
  bool is_gzip;  // the bytes are compressed with gzip, and are sent so
} mlx_page_file_t;
extern const mlx_page_file_t mlx_page_files[];

// Value of the Content-Security-Policy header of every file: no inline code, no other host, and
// no text that becomes HTML or code: the browser refuses innerHTML and eval.
extern const char mlx_page_policy[];

#endif  // MLXCEL_SERVER_PAGE_PAGE_H_
