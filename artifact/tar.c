// Reads and writes tar headers. See tar.h.
#include "artifact/tar.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

#define MAX_EXTENSION (1u << 20)       // bytes of a pax header or a long name
#define MAX_EXTENSIONS 16              // extension headers before one member
#define OCTAL_SIZE_LIMIT (1ull << 33)  // sizes from here on do not fit in eleven octal digits

// Layout of a header.
typedef struct block {
  char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100], magic[6],
      version[2], user[32], group[32], major[8], minor[8], prefix[155], rest[12];
} block_t;
_Static_assert(sizeof(block_t) == MLX_TAR_BLOCK, "a header is one block");

// Fields that extension headers (pax, GNU long name) set for the next member.
typedef struct extension {
  char name[MLX_TAR_MAX_NAME + 1];  // "" if not set
  uint64_t size;
  bool has_size;
} extension_t;

static mlx_status_t bad(const mlx_tar_t *tar, uint64_t offset, const char *what) {
  return mlx_error(MLX_INVALID_INPUT, "cannot read tar archive '%s': at byte %llu: %s", tar->name,
                   (unsigned long long)offset, what);
}

mlx_status_t mlx_tar_read(const mlx_tar_t *tar, uint64_t offset, void *out, size_t length) {
  if (length > tar->size || offset > tar->size - length) return bad(tar, offset, "the archive is truncated");
  if (tar->bytes) {
    memcpy(out, tar->bytes + offset, length);
    return NULL;
  }
  for (size_t done = 0; done < length;) {
    const ssize_t got = pread(tar->fd, (char *)out + done, length - done, (off_t)(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return mlx_io_error("read", tar->name);
    if (!got) return mlx_error(MLX_IO, "'%s' was truncated while it was being read", tar->name);
    done += (size_t)got;
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Fields

// Reads a numeric field. It has octal digits, with blanks before and a blank, a NUL or the field's end after
// them. If its first bit is set, it is base 256.
static bool read_number(const char *field, size_t length, uint64_t *out) {
  uint64_t value = 0;
  size_t i = 0;
  if ((unsigned char)field[0] & 0x80) {
    if ((unsigned char)field[0] != 0x80) return false;  // negative, or wider than 64 bits
    for (i = 1; i < length; ++i) {
      if (value >> 55) return false;  // would exceed 2^63, the limit of a file offset
      value = value << 8 | (unsigned char)field[i];
    }
    *out = value;
    return true;
  }
  while (i < length && field[i] == ' ') ++i;
  const size_t first = i;
  for (; i < length && field[i] >= '0' && field[i] <= '7'; ++i)
    value = value << 3 | (uint64_t)(field[i] - '0');  // 36 bits at most
  if (i == first || (i < length && field[i] != ' ' && field[i])) return false;
  *out = value;
  return true;
}

static uint32_t header_sum(const block_t *block) {
  const uint8_t *bytes = (const uint8_t *)block;
  uint32_t sum = 8 * ' ';  // the checksum field itself counts as blanks
  for (size_t i = 0; i < sizeof *block; ++i) sum += bytes[i];
  for (size_t i = 0; i < sizeof block->checksum; ++i) sum -= (uint8_t)block->checksum[i];
  return sum;
}

static bool is_zero(const void *bytes, size_t length) {
  const uint8_t *b = bytes;
  for (size_t i = 0; i < length; ++i) {
    if (b[i]) return false;
  }
  return true;
}

static bool put_name(char out[MLX_TAR_MAX_NAME + 1], const char *bytes, size_t length) {
  if (length > MLX_TAR_MAX_NAME || memchr(bytes, 0, length)) return false;
  memcpy(out, bytes, length);
  out[length] = 0;
  return true;
}

static void read_header_name(const block_t *block, char out[MLX_TAR_MAX_NAME + 1]) {
  const bool posix = !memcmp(block->magic, "ustar", 6);  // GNU archives have "ustar " and no prefix field
  const int prefix = posix ? (int)strnlen(block->prefix, sizeof block->prefix) : 0;
  snprintf(out, MLX_TAR_MAX_NAME + 1, "%.*s%s%.*s", prefix, block->prefix, prefix ? "/" : "",
           (int)strnlen(block->name, sizeof block->name), block->name);
}

// ----------------------------------------------------------------------------------------------------------
// Extension headers

static bool read_decimal(const char *text, size_t length, uint64_t *out) {
  uint64_t value = 0;
  for (size_t i = 0; i < length; ++i) {
    if (text[i] < '0' || text[i] > '9' || value > INT64_MAX / 10 - 1) return false;
    value = 10 * value + (uint64_t)(text[i] - '0');
  }
  *out = value;
  return length > 0;
}

static bool take_pax_pair(const char *key, size_t key_length, const char *value, size_t length,
                          extension_t *out) {
  if (key_length == 4 && !memcmp(key, "path", 4)) return length && put_name(out->name, value, length);
  if (key_length == 4 && !memcmp(key, "size", 4))
    return (out->has_size = read_decimal(value, length, &out->size));
  return key_length < 10 || memcmp(key, "GNU.sparse", 10);  // other keys do not affect name or data
}

// Parses records of the form "LENGTH KEY=VALUE\n". LENGTH counts the whole record.
static bool read_pax(const char *text, size_t length, extension_t *out) {
  while (length) {
    const char *blank = memchr(text, ' ', length);
    uint64_t record;
    if (!blank || !read_decimal(text, (size_t)(blank - text), &record)) return false;
    if (record > length || record < (uint64_t)(blank - text) + 3 || text[record - 1] != '\n') return false;
    const char *key = blank + 1, *end = text + record - 1, *equals = memchr(key, '=', (size_t)(end - key));
    if (!equals || !take_pax_pair(key, (size_t)(equals - key), equals + 1, (size_t)(end - equals - 1), out))
      return false;
    text += record;
    length -= record;
  }
  return true;
}

static mlx_status_t read_extension(const mlx_tar_t *tar, char type, uint64_t offset, uint64_t size,
                                   extension_t *out) {
  char *text;
  bool good = true;
  if (size > MAX_EXTENSION) return bad(tar, offset, "a long name or pax header exceeds 1 MiB");
  MLX_TRY(mlx_alloc((size_t)size + 1, 1, &text));
  mlx_status_t status = mlx_tar_read(tar, offset, text, (size_t)size);
  extension_t global = {0};
  if (!status && type == 'L') good = put_name(out->name, text, strnlen(text, (size_t)size));
  if (!status && type == 'x') good = read_pax(text, (size_t)size, out);
  if (!status && type == 'g')
    good = read_pax(text, (size_t)size, &global) && !global.name[0] && !global.has_size;
  mlx_free(text);
  return status || good ? status : bad(tar, offset, "invalid pax header or long name");
}

// ----------------------------------------------------------------------------------------------------------
// Members

static mlx_status_t check_end(const mlx_tar_t *tar, uint64_t offset) {
  uint8_t piece[16 * MLX_TAR_BLOCK];
  while (offset < tar->size) {
    const uint64_t left = tar->size - offset;
    const size_t length = left < sizeof piece ? (size_t)left : sizeof piece;
    MLX_TRY(mlx_tar_read(tar, offset, piece, length));
    if (!is_zero(piece, length)) return bad(tar, offset, "unexpected data after the end of the archive");
    offset += length;
  }
  return NULL;
}

// Reads one header and the size of its data. Sets *|out_end| at the block of zeros that ends the archive.
static mlx_status_t read_header(mlx_tar_t *tar, block_t *out, uint64_t *out_size, bool *out_end) {
  const uint64_t at = tar->offset;
  uint64_t sum;
  MLX_TRY(mlx_tar_read(tar, at, out, sizeof *out));
  *out_end = is_zero(out, sizeof *out);
  if (*out_end) return check_end(tar, at + sizeof *out);
  if (!read_number(out->checksum, sizeof out->checksum, &sum) || sum != header_sum(out))
    return bad(tar, at, "wrong header checksum");
  if (!read_number(out->size, sizeof out->size, out_size))
    return bad(tar, at, "the size in a header is not a number");
  tar->offset = at + sizeof *out;
  return NULL;
}

// Skips |size| bytes and their padding.
static mlx_status_t skip(mlx_tar_t *tar, uint64_t size) {
  const uint64_t room = tar->size - tar->offset, padding = mlx_tar_padding(size);
  if (size > room || padding > room - size)
    return bad(tar, tar->offset, "a member is longer than the archive: the archive is truncated");
  tar->offset += size + padding;
  return NULL;
}

// Changes "./a/b/" to "a/b", and the top folder to "". Returns false for an unsafe name.
static bool normalize_name(char *name, bool folder) {
  const char *start = name;
  while (start[0] == '.' && start[1] == '/') start += 2;
  size_t length = strlen(start);
  memmove(name, start, length + 1);
  if (folder) {
    if (length && name[length - 1] == '/') name[--length] = 0;
    if (!length || !strcmp(name, ".")) return !(name[0] = 0);
  }
  return mlx_is_safe_path(name);
}

static mlx_status_t finish_member(mlx_tar_t *tar, const block_t *block, const extension_t *extension,
                                  uint64_t size, mlx_tar_member_t *out) {
  const uint64_t at = tar->offset - MLX_TAR_BLOCK;
  if (extension->name[0])
    memcpy(out->name, extension->name, sizeof out->name);
  else
    read_header_name(block, out->name);
  const size_t length = strlen(out->name);
  const bool plain = block->type == '0' || block->type == 0 || block->type == '7';
  // Archives in the old v7 format mark a folder only by the trailing slash.
  out->folder = block->type == '5' || (block->type == 0 && length && out->name[length - 1] == '/');
  if (!plain && !out->folder) {
    return mlx_error(
        MLX_INVALID_INPUT,
        "cannot read tar archive '%s': '%.200s' is a link, device or sparse file, which is not allowed",
        tar->name, out->name);
  }
  if (!normalize_name(out->name, out->folder))
    return bad(tar, at, "a member name is invalid or points outside the folder");
  out->size = extension->has_size ? extension->size : size;
  if (out->folder && out->size) return bad(tar, at, "a folder has a non-zero size");
  out->offset = tar->offset;
  return skip(tar, out->size);
}

static bool is_extension_type(char type) { return type && strchr("xgLK", type); }

bool mlx_tar_is_extension(const uint8_t bytes[MLX_TAR_BLOCK], uint64_t *out_size) {
  block_t block;
  memcpy(&block, bytes, sizeof block);
  return is_extension_type(block.type) && read_number(block.size, sizeof block.size, out_size);
}

mlx_status_t mlx_tar_next_raw(mlx_tar_t *tar, mlx_tar_member_t *out_member, bool *out_found) {
  block_t block;
  extension_t extension = {0};
  uint64_t size;
  bool end;
  *out_found = false;
  for (int headers = 0;;) {
    MLX_TRY(read_header(tar, &block, &size, &end));
    if (end) return headers ? bad(tar, tar->offset, "an extension header is not followed by a member") : NULL;
    if (is_extension_type(block.type)) {
      if (++headers > MAX_EXTENSIONS)
        return bad(tar, tar->offset, "too many extension headers before one member");
      MLX_TRY(read_extension(tar, block.type, tar->offset, size, &extension));
      MLX_TRY(skip(tar, size));
      continue;
    }
    MLX_TRY(finish_member(tar, &block, &extension, size, out_member));
    *out_found = true;
    return NULL;
  }
}

mlx_status_t mlx_tar_next(mlx_tar_t *tar, mlx_tar_member_t *out_member, bool *out_found) {
  do {
    MLX_TRY(mlx_tar_next_raw(tar, out_member, out_found));
  } while (*out_found && !out_member->name[0]);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Writing

static void put_octal(char *field, size_t length, uint64_t value) {
  char digits[24];
  snprintf(digits, sizeof digits, "%0*llo", (int)length - 1, (unsigned long long)value);
  memcpy(field, digits, length);
}

static void put_size(char field[12], uint64_t size) {
  if (size < OCTAL_SIZE_LIMIT) {
    put_octal(field, 12, size);
    return;
  }
  memset(field, 0, 12);
  field[0] = (char)0x80;
  for (int i = 11; i > 3; --i, size >>= 8) field[i] = (char)(size & 0xff);
}

// A name over 100 bytes is split at a slash into prefix and name. Returns false if that is not possible.
static bool put_split_name(block_t *block, const char *name) {
  const size_t length = strlen(name);
  if (length <= sizeof block->name) {
    memcpy(block->name, name, length);
    return true;
  }
  for (const char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/')) {
    const size_t before = (size_t)(slash - name), after = length - before - 1;
    if (before > sizeof block->prefix || after > sizeof block->name) continue;
    memcpy(block->prefix, name, before);
    memcpy(block->name, slash + 1, after);
    return true;
  }
  return false;
}

static void finish_block(block_t *block, char type, uint64_t size) {
  put_octal(block->mode, sizeof block->mode, 0644);
  put_octal(block->uid, sizeof block->uid, 0);
  put_octal(block->gid, sizeof block->gid, 0);
  put_size(block->size, size);
  put_octal(block->mtime, sizeof block->mtime, 0);
  block->type = type;
  memcpy(block->magic, "ustar", 6);
  memcpy(block->version, "00", 2);
  put_octal(block->checksum, 7, header_sum(block));
  block->checksum[7] = ' ';
}

mlx_status_t mlx_tar_header(const char *name, uint64_t size, uint8_t out_block[MLX_TAR_BLOCK]) {
  block_t block = {0};
  if (!mlx_is_safe_path(name) || !put_split_name(&block, name))
    return mlx_error(MLX_INVALID_INPUT, "'%s' is not a valid file name for a tar archive", name);
  if (size > INT64_MAX)
    return mlx_error(MLX_INVALID_INPUT, "'%s' is too large for a tar archive: %llu bytes", name,
                     (unsigned long long)size);
  finish_block(&block, '0', size);
  memcpy(out_block, &block, sizeof block);
  return NULL;
}

// Appends a pax header with one comment record, |length| bytes in all. |length| is a multiple of a block.
static void put_pax_padding(mlx_text_t *out, uint64_t length) {
  char filler[MLX_TAR_BLOCK];
  const uint64_t record = length - MLX_TAR_BLOCK;
  block_t block = {.name = "padding"};
  finish_block(&block, 'x', record);
  mlx_text_append(out, (const char *)&block, sizeof block);
  memset(filler, ' ', sizeof filler);
  const size_t start = out->length;
  mlx_text_printf(out, "%llu comment=", (unsigned long long)record);
  uint64_t left = record - (out->length - start) - 1;
  for (; left; left -= left < sizeof filler ? left : sizeof filler)
    mlx_text_append(out, filler, left < sizeof filler ? (size_t)left : sizeof filler);
  mlx_text_append(out, "\n", 1);
}

mlx_status_t mlx_tar_aligned_header(const char *name, uint64_t size, uint64_t offset, uint32_t alignment,
                                    mlx_text_t *out) {
  uint8_t block[MLX_TAR_BLOCK];
  if (!alignment || alignment % MLX_TAR_BLOCK || alignment > MAX_EXTENSION / 2 || offset % MLX_TAR_BLOCK) {
    return mlx_error(MLX_INVALID_INPUT, "cannot align '%s' to a multiple of %u bytes in a tar archive", name,
                     alignment);
  }
  uint64_t gap = (alignment - (offset + MLX_TAR_BLOCK) % alignment) % alignment;
  if (gap == MLX_TAR_BLOCK) gap += alignment;  // a pax header needs at least two blocks
  MLX_TRY(mlx_tar_header(name, size, block));
  if (gap) put_pax_padding(out, gap);
  mlx_text_append(out, (const char *)block, sizeof block);
  return mlx_text_finish(out);
}
