// Download: files from web servers to disk, each checked before it gets its name, each going on where it was
// left.
//
// While a file comes it is PATH.part, with the server's ETag in PATH.part.etag. A process may be killed at
// any byte: the next one reads what is there into the digest and asks for the rest only. A file whose digest
// is wrong is removed, never renamed.
#ifndef MLXCEL_TRANSFER_DOWNLOAD_H_
#define MLXCEL_TRANSFER_DOWNLOAD_H_

#include "base/digest.h"
#include "base/sha1.h"
#include "transfer/transfer.h"

#define MLX_SIZE_UNKNOWN UINT64_MAX

typedef struct mlx_download {
  const char *name;  // as messages call it
  const char *url;
  const char *authorization;    // may be NULL
  const char *path;             // where it goes; its folder is made
  uint64_t size;                // or MLX_SIZE_UNKNOWN
  char sha256[MLX_DIGEST_HEX];  // "": not known
  char git_sha1[MLX_SHA1_HEX];  // of the file as git stores one; "": not known
} mlx_download_t;

// Downloads one. A file of the right size that is already at its path is read again where a digest is known,
// and comes anew when it is another.
mlx_status_t mlx_download_file(mlx_http_t *http, const mlx_download_t *download,
                               mlx_tally_t *tally) MLX_MUST_USE;

// Downloads all, several at a time, after a look whether the disk that holds |folder| has room.
mlx_status_t mlx_download_all(const char *title, const char *folder, const mlx_download_t *downloads,
                              size_t count, const mlx_http_options_t *http,
                              const mlx_report_t *report) MLX_MUST_USE;

// The bytes of a file of |size| that an earlier download left at |path|, or on the way there.
uint64_t mlx_download_present(const char *path, uint64_t size);

// Fails when the disk that holds |folder| has no room for |bytes| more, and some to spare.
mlx_status_t mlx_download_check_space(const char *folder, uint64_t bytes) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_DOWNLOAD_H_
