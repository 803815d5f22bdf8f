// Entry: the two file formats of the cache, the record of an entry (entry.json) and a cached digest
// (digests/*.json).
//
// This file converts between text and structs; it uses neither files nor the clock. The parsers accept only
// what the writers write, so they reject damaged input (entry_fuzz.c tests this).
#ifndef MLXCEL_CACHE_ENTRY_H_
#define MLXCEL_CACHE_ENTRY_H_

#include <stdint.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/status.h"
#include "base/text.h"

#define MLX_RECORD_NAME "entry.json"
#define MLX_RECORD_MAX (1 << 20)         // bytes
#define MLX_CACHED_DIGEST_MAX (1 << 16)  // bytes
#define MLX_STAMP_TEXT 128               // bytes; enough for any stamp as text

typedef struct mlx_record_file {
  char *name;  // owned; a plain file name: no slash, not "." or ".."
  uint64_t size;
  char digest[MLX_DIGEST_HEX];  // tree digest
} mlx_record_file_t;

typedef struct mlx_entry_record {
  char *id;     // owned; "KIND-KEY": an entry found under another name is invalid
  char *title;  // owned
  int64_t created;
  mlx_record_file_t *files;  // owned
  size_t file_count, file_capacity;
} mlx_entry_record_t;

bool mlx_is_digest(const char *text);      // 64 lower-case hexadecimal digits
bool mlx_is_entry_kind(const char *text);  // a valid kind that is not a folder of the cache itself
bool mlx_is_entry_file(const char *name);  // a file name that an entry may contain

// |name| is the file of the bytes, for errors. Release with mlx_record_free.
mlx_status_t mlx_record_parse(const char *name, const char *bytes, size_t length,
                              mlx_entry_record_t *out_record) MLX_MUST_USE;
void mlx_record_write(const mlx_entry_record_t *record, mlx_text_t *text);
void mlx_record_free(mlx_entry_record_t *record);

// A cached digest, valid for a file with this stamp.
typedef struct mlx_cached_digest {
  char stamp[MLX_STAMP_TEXT];
  char digest[MLX_DIGEST_HEX];
} mlx_cached_digest_t;

void mlx_stamp_text(const mlx_file_stamp_t *stamp, char out_text[MLX_STAMP_TEXT]);
mlx_status_t mlx_cached_digest_parse(const char *name, const char *bytes, size_t length,
                                     mlx_cached_digest_t *out_cached) MLX_MUST_USE;
// |path| is informational.
void mlx_cached_digest_write(const mlx_cached_digest_t *cached, const char *path, mlx_text_t *text);

#endif  // MLXCEL_CACHE_ENTRY_H_
