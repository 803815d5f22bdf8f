// Archive: weights in IREE's parameter archive format (.irpa).
//
// Every tensor starts on a 64-byte boundary of the file, so that a mapped file is used in place. IREE's own
// tools read these files. The reader accepts only what the writer produces: one header and data entries,
// without splats or external files.
#ifndef MLXCEL_ARTIFACT_ARCHIVE_H_
#define MLXCEL_ARTIFACT_ARCHIVE_H_

#include <stdint.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/status.h"

#define MLX_ARCHIVE_ALIGNMENT 64  // of every entry, in bytes
// The file is written in pieces of a huge page. Linux file systems with large folios then cache it in huge
// pages, and a mapping of it uses them: decoding reads all weights per token, and misses the TLB less.
#define MLX_ARCHIVE_PIECE ((size_t)2 << 20)

// ---- writing: declare all entries with their sizes, then write their data ----

typedef struct mlx_archive_item {
  const char *name;  // borrowed
  uint64_t size;     // bytes
} mlx_archive_item_t;

typedef struct mlx_archive_writer {
  mlx_writer_t file;
  char *piece;   // [MLX_ARCHIVE_PIECE] owned; bytes that the file does not have yet
  size_t held;   // how many
  uint64_t end;  // file offset of the last entry's end
  int threads;   // that may hash and write a large piece
  mlx_tree_hasher_t tree;
  mlx_digest_t whole;  // not used without |wants_sha256|
  bool wants_sha256;
  // Digests of the file; valid after mlx_archive_finish. The SHA-256 is "" without |wants_sha256|.
  char tree_hex[MLX_DIGEST_HEX], sha256_hex[MLX_DIGEST_HEX];
} mlx_archive_writer_t;

// Creates |path| and writes the header for |items|. End with mlx_archive_finish or mlx_archive_abandon.
// |wants_sha256|: the SHA-256 of the file, which a bundle needs, is computed too. On a CPU without SHA
// instructions that takes longer than everything else.
mlx_status_t mlx_archive_create(const char *path, const mlx_archive_item_t *items, size_t count,
                                bool wants_sha256, mlx_archive_writer_t *out_writer) MLX_MUST_USE;
// Writes the next bytes of the data: the entries in the order of |items|, with zeros between them up to
// MLX_ARCHIVE_ALIGNMENT.
mlx_status_t mlx_archive_write(mlx_archive_writer_t *writer, const void *bytes, size_t length) MLX_MUST_USE;
// Pads, syncs and closes the file. Fails, and removes the file, unless every declared byte was written.
mlx_status_t mlx_archive_finish(mlx_archive_writer_t *writer) MLX_MUST_USE;
void mlx_archive_abandon(mlx_archive_writer_t *writer);  // closes and removes the file

// ---- reading ----

// A module binds this name to get the whole data section as one byte tensor: from the start of the first
// entry to the end of the last. It is never the name of an entry.
#define MLX_WHOLE_ARCHIVE "*"

typedef struct mlx_archive_entry {
  char *name;           // owned
  const uint8_t *data;  // borrowed from the parsed bytes
  size_t size;
} mlx_archive_entry_t;

typedef struct mlx_archive {
  mlx_archive_entry_t *entries;
  size_t count;
} mlx_archive_t;

// Reads the entry table of the archive in |bytes|, which must outlive |out_archive|. |name| appears in error
// messages. Release with mlx_archive_clear.
mlx_status_t mlx_archive_parse(const char *name, const uint8_t *bytes, size_t size,
                               mlx_archive_t *out_archive) MLX_MUST_USE;
void mlx_archive_clear(mlx_archive_t *archive);

#endif  // MLXCEL_ARTIFACT_ARCHIVE_H_
