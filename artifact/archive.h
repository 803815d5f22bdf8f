// Archive: weights in IREE's parameter archive format (.irpa), written so that every tensor starts on a
// 64-byte boundary of the file: a mapping of it is used in place. IREE's own tools read these files; we read
// only what we wrote: one header, data entries, no splats, no external files.
#ifndef MLXCEL_ARTIFACT_ARCHIVE_H_
#define MLXCEL_ARTIFACT_ARCHIVE_H_

#include <stdint.h>

#include "base/file.h"
#include "base/status.h"

#define MLX_ARCHIVE_ALIGNMENT 64  // of every entry, from the first one's start

// ---- writing: entries are declared with their sizes, then written in that order ----

typedef struct mlx_archive_item {
  const char *name;  // borrowed
  uint64_t size;     // bytes
} mlx_archive_item_t;

typedef struct mlx_archive_writer {
  mlx_writer_t file;
  uint64_t end;  // where the last entry ends
} mlx_archive_writer_t;

// Creates |path| and writes the header of an archive that will hold |items|.
mlx_status_t mlx_archive_create(const char *path, const mlx_archive_item_t *items, size_t count,
                                mlx_archive_writer_t *out_writer) MLX_MUST_USE;
// Begins the next entry: pads to its boundary.
mlx_status_t mlx_archive_next(mlx_archive_writer_t *writer) MLX_MUST_USE;
mlx_status_t mlx_archive_write(mlx_archive_writer_t *writer, const void *bytes, size_t length) MLX_MUST_USE;
// Pads and syncs. Fails if not every declared byte was written.
mlx_status_t mlx_archive_finish(mlx_archive_writer_t *writer) MLX_MUST_USE;
void mlx_archive_abandon(mlx_archive_writer_t *writer);

// ---- reading ----

// The name under which a module may bind all data of an archive as one tensor of bytes: from the first
// entry's start to the last one's end. No entry has it.
#define MLX_WHOLE_ARCHIVE "*"

typedef struct mlx_archive_entry {
  char *name;           // owned
  const uint8_t *data;  // borrowed from the bytes parsed
  size_t size;
} mlx_archive_entry_t;

typedef struct mlx_archive {
  mlx_archive_entry_t *entries;
  size_t count;
} mlx_archive_t;

// Reads the table of an archive held in |bytes|, which must outlive it; |name| is for errors. Release with
// mlx_archive_clear.
mlx_status_t mlx_archive_parse(const char *name, const uint8_t *bytes, size_t size,
                               mlx_archive_t *out_archive) MLX_MUST_USE;
void mlx_archive_clear(mlx_archive_t *archive);

#endif  // MLXCEL_ARTIFACT_ARCHIVE_H_
