// Download: files from web servers to disk, with resume and digest checks.
//
// An incomplete file is PATH.part, with the server's ETag in PATH.part.etag. A process may be killed at any
// byte: the next process hashes the existing part and requests only the rest. A file with a wrong digest is
// removed, never renamed to PATH.
#ifndef MLXCEL_TRANSFER_DOWNLOAD_H_
#define MLXCEL_TRANSFER_DOWNLOAD_H_

#include "base/digest.h"
#include "base/sha1.h"
#include "transfer/transfer.h"

#define MLX_SIZE_UNKNOWN UINT64_MAX

typedef struct mlx_download {
  const char *name;  // for messages
  const char *url;
  const char *authorization;    // may be NULL
  const char *path;             // destination; its folder is created
  uint64_t size;                // bytes, or MLX_SIZE_UNKNOWN
  char sha256[MLX_DIGEST_HEX];  // "" if unknown
  char git_sha1[MLX_SHA1_HEX];  // SHA-1 of the git blob; "" if unknown
  // Checks the content while it arrives, for a file of unknown size; may be NULL. |begin| is called before
  // the first byte and whenever the download starts over, |piece| with the bytes in order. An error ends the
  // download.
  void (*begin)(void *user);
  mlx_status_t (*piece)(void *user, const char *bytes, size_t length);
  void *user;  // passed to both
} mlx_download_t;

// Downloads one file. Fails before less than 64 MiB of disk space are left. If a file of the right size is
// already at its path, it is checked against the digest, if known, and downloaded again if it differs.
mlx_status_t mlx_download_file(mlx_http_t *http, const mlx_download_t *download,
                               mlx_progress_t *progress) MLX_MUST_USE;

// Downloads all files, several in parallel. Fails first if the disk of |folder| has too little space.
mlx_status_t mlx_download_all(const char *title, const char *folder, const mlx_download_t *downloads,
                              size_t count, const mlx_http_options_t *http,
                              const mlx_report_t *report) MLX_MUST_USE;

// Returns how many bytes of a file of |size| bytes are already on disk, at |path| or in its part.
uint64_t mlx_download_present(const char *path, uint64_t size);

// Fails if the disk of |folder| has less free space than |bytes| plus a reserve of 64 MiB.
mlx_status_t mlx_download_check_space(const char *folder, uint64_t bytes) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_DOWNLOAD_H_
