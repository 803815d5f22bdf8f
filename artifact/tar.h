// Tar: archives as POSIX (ustar, pax) and GNU write them, read where they lie, and headers for the ones we
// write.
//
// The reader finds members; whoever wants their bytes reads them at their offset, or maps them. It knows
// regular files and folders, long names of either kind, and sizes in octal or in base 256. Links, devices,
// sparse files and names that would leave the folder they are unpacked in are refused: nothing we take has
// them, and an attacker's would. An archive ends with a block of zeros and has nothing but zeros after it, so
// that one that was cut off is never taken for a shorter one.
//
// What we write is reproducible: mode 0644, nobody's, at no time. Not here: compression, and reading front to
// back from a pipe.
#ifndef MLXCEL_ARTIFACT_TAR_H_
#define MLXCEL_ARTIFACT_TAR_H_

#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

#define MLX_TAR_BLOCK 512
#define MLX_TAR_END (2 * MLX_TAR_BLOCK)  // zeros at the end of an archive
#define MLX_TAR_MAX_NAME 1024

// An archive being read: from memory, or where |bytes| is NULL from a file. All borrowed. Start with |offset|
// 0.
typedef struct mlx_tar {
  const char *name;  // for errors
  const uint8_t *bytes;
  int fd;
  uint64_t size;    // of the archive
  uint64_t offset;  // of the next header
} mlx_tar_t;

typedef struct mlx_tar_member {
  char name[MLX_TAR_MAX_NAME + 1];  // as mlx_is_safe_path wants it, without a slash at its end
  uint64_t offset, size;            // its bytes within the archive, all of them there
  bool folder;                      // a folder, of size 0, and not a file
} mlx_tar_member_t;

// The next member; *|out_is| is false at the end. A name may come twice: that is for the caller to refuse.
mlx_status_t mlx_tar_next(mlx_tar_t *tar, mlx_tar_member_t *out_member, bool *out_is) MLX_MUST_USE;

// |length| bytes at |offset| of the archive, which must be within it.
mlx_status_t mlx_tar_read(const mlx_tar_t *tar, uint64_t offset, void *out, size_t length) MLX_MUST_USE;

// The header of a file. Its bytes follow it, then zeros up to the next whole block.
mlx_status_t mlx_tar_header(const char *name, uint64_t size, uint8_t out_block[MLX_TAR_BLOCK]) MLX_MUST_USE;

// Appends the header of a file to |out|, with as much before it as puts the file's bytes at a multiple of
// |alignment| (a multiple of a block), when the archive is |offset| bytes long so far. What is put before is
// a pax header with a comment, of which unpacking leaves nothing.
mlx_status_t mlx_tar_aligned_header(const char *name, uint64_t size, uint64_t offset, uint32_t alignment,
                                    mlx_text_t *out) MLX_MUST_USE;

// How many zeros follow a member of this size.
static inline uint32_t mlx_tar_padding(uint64_t size) { return (uint32_t)(-size % MLX_TAR_BLOCK); }

#endif  // MLXCEL_ARTIFACT_TAR_H_
