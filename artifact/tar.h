// Tar: finds the members of POSIX (ustar, pax) and GNU archives, and makes headers for new archives.
//
// The reader returns each member's offset; the caller reads or maps the bytes there. It accepts regular
// files, folders, long names of both dialects, and sizes in octal or base 256. It rejects links, devices,
// sparse files and names that point outside the folder: our archives never need them, and a malicious
// archive would use them. An archive must end with a block of zeros followed only by zeros, so that a
// truncated archive is never accepted.
//
// Written headers are reproducible: mode 0644, owner 0, time 0. Not supported: compression, and reading from
// a pipe.
#ifndef MLXCEL_ARTIFACT_TAR_H_
#define MLXCEL_ARTIFACT_TAR_H_

#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

#define MLX_TAR_BLOCK 512                // bytes
#define MLX_TAR_END (2 * MLX_TAR_BLOCK)  // zero bytes at the end of an archive
#define MLX_TAR_MAX_NAME 1024            // bytes, without the NUL

// An archive being read: from |bytes|, or from |fd| if |bytes| is NULL. All borrowed. |offset| starts at 0.
typedef struct mlx_tar {
  const char *name;  // for error messages
  const uint8_t *bytes;
  int fd;
  uint64_t size;    // of the archive
  uint64_t offset;  // of the next header
} mlx_tar_t;

typedef struct mlx_tar_member {
  char name[MLX_TAR_MAX_NAME + 1];  // passes mlx_is_safe_path; no trailing slash
  uint64_t offset, size;            // of its data, which is inside the archive
  bool folder;                      // a folder; its size is 0
} mlx_tar_member_t;

// Reads the next member; *|out_found| is false at the end. A name may appear twice: the caller must reject
// duplicates.
mlx_status_t mlx_tar_next(mlx_tar_t *tar, mlx_tar_member_t *out_member, bool *out_found) MLX_MUST_USE;

// The same, but also returns the top folder ("./"), with the name "". Reads nothing after the member's
// header.
mlx_status_t mlx_tar_next_raw(mlx_tar_t *tar, mlx_tar_member_t *out_member, bool *out_found) MLX_MUST_USE;
// True if |block| is a header that describes the next member (pax, GNU long name). |out_size| is the size of
// its data.
bool mlx_tar_is_extension(const uint8_t block[MLX_TAR_BLOCK], uint64_t *out_size);

// Reads |length| bytes at |offset| of the archive. Fails if the range is not inside the archive.
mlx_status_t mlx_tar_read(const mlx_tar_t *tar, uint64_t offset, void *out, size_t length) MLX_MUST_USE;

// Makes the header of a file. The caller writes the file's bytes after it, then mlx_tar_padding zeros.
mlx_status_t mlx_tar_header(const char *name, uint64_t size, uint8_t out_block[MLX_TAR_BLOCK]) MLX_MUST_USE;

// Appends the header of a file to |out| so that the file's bytes start at a multiple of |alignment|, itself a
// multiple of a block. |offset| is the current length of the archive. Padding before the header is a pax
// header with a comment, which unpacking ignores.
mlx_status_t mlx_tar_aligned_header(const char *name, uint64_t size, uint64_t offset, uint32_t alignment,
                                    mlx_text_t *out) MLX_MUST_USE;

// Number of zeros that follow a member of this size.
static inline uint32_t mlx_tar_padding(uint64_t size) { return (uint32_t)(-size % MLX_TAR_BLOCK); }

#endif  // MLXCEL_ARTIFACT_TAR_H_
