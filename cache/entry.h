// Entry: the two texts the cache writes and reads back, the record of an entry (entry.json) and a remembered
// digest.
//
// Only text in and out: no disk, no clock. The readers take bytes that anything may have damaged
// (entry_fuzz.c feeds them noise), so what they accept is as strict as what the writers write.
#ifndef MLXCEL_CACHE_ENTRY_H_
#define MLXCEL_CACHE_ENTRY_H_

#include <stdint.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/status.h"
#include "base/text.h"

#define MLX_RECORD_NAME "entry.json"
#define MLX_RECORD_MAX (1 << 20)  // bytes
#define MLX_MEMO_MAX (1 << 16)    // bytes
#define MLX_STAMP_TEXT 128        // bytes enough for any stamp as text

typedef struct mlx_record_file {
  char *name;  // owned; a plain file name: no slash, not "." or ".."
  uint64_t size;
  char sha256[MLX_DIGEST_HEX];
} mlx_record_file_t;

typedef struct mlx_record {
  char *id;     // owned; "KIND-KEY": an entry found under another name is not trusted
  char *title;  // owned
  int64_t created;
  mlx_record_file_t *files;  // owned
  size_t file_count, file_capacity;
} mlx_record_t;

bool mlx_is_digest(const char *text);      // 64 lower-case hexadecimal digits
bool mlx_is_entry_kind(const char *text);  // a valid kind that is not one of the cache's own folders
bool mlx_is_entry_file(const char *name);  // a file name that an entry may hold

// Errors name |name|, the file the bytes came from. Release with mlx_record_free.
mlx_status_t mlx_record_parse(const char *name, const char *bytes, size_t length,
                              mlx_record_t *out_record) MLX_MUST_USE;
void mlx_record_write(const mlx_record_t *record, mlx_text_t *text);
void mlx_record_free(mlx_record_t *record);

// A digest remembered for the file whose stamp it was taken of.
typedef struct mlx_memo {
  char stamp[MLX_STAMP_TEXT];
  char sha256[MLX_DIGEST_HEX];
} mlx_memo_t;

void mlx_stamp_text(const mlx_file_stamp_t *stamp, char out_text[MLX_STAMP_TEXT]);
mlx_status_t mlx_memo_parse(const char *name, const char *bytes, size_t length,
                            mlx_memo_t *out_memo) MLX_MUST_USE;
void mlx_memo_write(const mlx_memo_t *memo, const char *path,
                    mlx_text_t *text);  // |path| is there for people only

#endif  // MLXCEL_CACHE_ENTRY_H_
