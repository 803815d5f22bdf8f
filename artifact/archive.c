// Writes and parses weight archives (.irpa). See archive.h.
#include "artifact/archive.h"

#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "base/text.h"

// File format, version 0.0, little endian, packed (iree/schemas/parameter_archive.h). A segment is a pair of
// u64: offset, length.
//
//   header, 88 bytes
//     u32 magic, u16 major, u16 minor
//     u64 header size, u64 offset of the next header, u64 flags, u64 entry count
//     segments, relative to the header: entry table, metadata (names), storage (data)
//
//   entry, 76 bytes, at multiples of 16
//     u64 entry size, u32 type, u64 flags
//     segments, relative to the metadata: name, entry metadata
//     u64 alignment
//     segment, relative to the storage: data
#define MAGIC 0x41505249u  // "IRPA"
#define HEADER_SIZE 88
#define ENTRY_SIZE 76
#define ENTRY_STRIDE 80
#define ENTRY_TYPE_DATA 2
#define FILE_ALIGNMENT 4096
#define HASHED_PIECE ((size_t)256 << 10)
#define LARGE_WRITE ((size_t)1 << 20)

static const uint8_t zeros[FILE_ALIGNMENT];

// ----------------------------------------------------------------------------------------------------------
// Writing

static void put(mlx_text_t *text, uint64_t value, int bytes) {
  char out[8];
  for (int i = 0; i < bytes; ++i) out[i] = (char)(value >> (8 * i));
  mlx_text_append(text, out, (size_t)bytes);
}

static uint64_t round_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

static void put_entry(mlx_text_t *text, uint64_t name_offset, const mlx_archive_item_t *item,
                      uint64_t data_offset) {
  put(text, ENTRY_SIZE, 8);
  put(text, ENTRY_TYPE_DATA, 4);
  put(text, 0, 8);  // flags
  put(text, name_offset, 8);
  put(text, strlen(item->name), 8);
  put(text, 0, 8);  // no metadata
  put(text, 0, 8);
  put(text, MLX_ARCHIVE_ALIGNMENT, 8);
  put(text, data_offset, 8);
  put(text, item->size, 8);
  put(text, 0, ENTRY_STRIDE - ENTRY_SIZE);
}

// Appends the header, the entry table and the names: everything before the first byte of data.
static mlx_status_t make_front(const mlx_archive_item_t *items, size_t count, mlx_text_t *front,
                               uint64_t *out_end) {
  uint64_t names_length = 0, data_length = 0;
  for (size_t i = 0; i < count; ++i) {
    names_length += strlen(items[i].name);
    if (items[i].size > INT64_MAX - data_length - MLX_ARCHIVE_ALIGNMENT)
      return mlx_error(MLX_UNSUPPORTED, "the weights exceed 2^63 bytes");
    data_length = round_up(data_length, MLX_ARCHIVE_ALIGNMENT) + items[i].size;
  }
  uint64_t table = round_up(HEADER_SIZE, 16), names = table + (uint64_t)count * ENTRY_STRIDE;
  uint64_t data = round_up(names + names_length, FILE_ALIGNMENT);
  put(front, MAGIC, 4);
  put(front, 0, 2);  // version 0.0
  put(front, 0, 2);
  put(front, HEADER_SIZE, 8);
  put(front, 0, 8);  // no next header
  put(front, 0, 8);  // flags
  put(front, count, 8);
  put(front, table, 8);
  put(front, (uint64_t)count * ENTRY_STRIDE, 8);
  put(front, names, 8);
  put(front, names_length, 8);
  put(front, data, 8);
  put(front, round_up(data_length, FILE_ALIGNMENT), 8);
  mlx_text_append(front, (const char *)zeros, table - HEADER_SIZE);
  uint64_t name_offset = 0, data_offset = 0;
  for (size_t i = 0; i < count; ++i) {
    data_offset = round_up(data_offset, MLX_ARCHIVE_ALIGNMENT);
    put_entry(front, name_offset, &items[i], data_offset);
    name_offset += strlen(items[i].name);
    data_offset += items[i].size;
  }
  for (size_t i = 0; i < count; ++i) mlx_text_puts(front, items[i].name);
  mlx_text_append(front, (const char *)zeros, data - names - names_length);
  *out_end = data + data_length;
  return mlx_text_finish(front);
}

// Writes to the file. Only a piece that begins or ends within |bytes| is copied.
static mlx_status_t write_bytes(mlx_archive_writer_t *writer, const char *bytes, size_t length) {
  for (size_t part; length; bytes += part, length -= part) {
    part = MLX_ARCHIVE_PIECE - writer->held;
    if (part > length) part = length;
    if (part == MLX_ARCHIVE_PIECE) {
      MLX_TRY(mlx_writer_write(&writer->file, bytes, part));
      continue;
    }
    memcpy(writer->piece + writer->held, bytes, part);
    writer->held += part;
    if (writer->held < MLX_ARCHIVE_PIECE) continue;
    MLX_TRY(mlx_writer_write(&writer->file, writer->piece, writer->held));
    writer->held = 0;
  }
  return NULL;
}

typedef struct large_write {
  mlx_archive_writer_t *writer;
  const char *bytes;
  size_t length;
} large_write_t;

static mlx_status_t hash_or_write(void *user, int worker, uint64_t index) {
  (void)worker;
  const large_write_t *large = user;
  mlx_archive_writer_t *writer = large->writer;
  if (index == 1) return write_bytes(writer, large->bytes, large->length);
  if (index)
    mlx_digest_add(&writer->whole, large->bytes, large->length);
  else
    mlx_tree_hasher_add(&writer->tree, large->bytes, large->length);
  return NULL;
}

// Threads hash and write a large piece at the same time: each takes half a second per GB or more, and nothing
// else of a compilation is left to run when the last weights are written. Small pieces are written while they
// are still in the CPU's cache.
static mlx_status_t put_bytes(mlx_archive_writer_t *writer, const void *bytes, size_t length) {
  large_write_t large = {writer, bytes, length};
  if (length >= LARGE_WRITE)
    return mlx_parallel(2 + (uint64_t)writer->wants_sha256, writer->threads, hash_or_write, &large);
  const char *from = bytes;
  for (size_t part; length; from += part, length -= part) {
    part = length < HASHED_PIECE ? length : HASHED_PIECE;
    mlx_tree_hasher_add(&writer->tree, from, part);
    if (writer->wants_sha256) mlx_digest_add(&writer->whole, from, part);
    MLX_TRY(write_bytes(writer, from, part));
  }
  return NULL;
}

static uint64_t written(const mlx_archive_writer_t *writer) { return writer->file.offset + writer->held; }

mlx_status_t mlx_archive_create(const char *path, const mlx_archive_item_t *items, size_t count,
                                bool wants_sha256, mlx_archive_writer_t *out_writer) {
  *out_writer = (mlx_archive_writer_t){
      .file = {.fd = -1}, .threads = mlx_parallel_workers(3, 0), .wants_sha256 = wants_sha256};
  mlx_tree_hasher_begin(&out_writer->tree);
  mlx_digest_begin(&out_writer->whole);
  mlx_text_t front = {0};
  mlx_status_t status = make_front(items, count, &front, &out_writer->end);
  if (!status) status = mlx_alloc(MLX_ARCHIVE_PIECE, 1, &out_writer->piece);
  if (!status) status = mlx_writer_open(path, &out_writer->file);
  if (!status) status = put_bytes(out_writer, front.data, front.length);
  if (status) mlx_archive_abandon(out_writer);
  mlx_text_clear(&front);
  return status;
}

mlx_status_t mlx_archive_write(mlx_archive_writer_t *writer, const void *bytes, size_t length) {
  return put_bytes(writer, bytes, length);
}

mlx_status_t mlx_archive_finish(mlx_archive_writer_t *writer) {
  mlx_status_t status =
      written(writer) == writer->end
          ? put_bytes(writer, zeros, (size_t)(round_up(writer->end, FILE_ALIGNMENT) - writer->end))
          : mlx_error(MLX_INTERNAL, "wrote %llu bytes to a weights archive that needs %llu",
                      (unsigned long long)written(writer), (unsigned long long)writer->end);
  if (!status) status = mlx_writer_write(&writer->file, writer->piece, writer->held);
  mlx_tree_hasher_end(&writer->tree, writer->tree_hex);
  if (writer->wants_sha256) mlx_digest_end(&writer->whole, writer->sha256_hex);
  if (!status) status = mlx_writer_close(&writer->file);
  mlx_archive_abandon(writer);
  return status;
}

void mlx_archive_abandon(mlx_archive_writer_t *writer) {
  mlx_writer_abandon(&writer->file);
  mlx_free(writer->piece);
  writer->piece = NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Reading

static uint64_t get(const uint8_t *bytes, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i) value |= (uint64_t)bytes[i] << (8 * i);
  return value;
}

typedef struct segment {
  uint64_t offset, length;
} segment_t;

static mlx_status_t bad(const char *name, const char *what) {
  return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "cannot read weights archive %s: %s", name, what),
                         "compile the model again, or pull it again");
}

static mlx_status_t read_entry(const char *name, const uint8_t *bytes, const uint8_t *entry, segment_t names,
                               segment_t data, mlx_archive_entry_t *out_entry) {
  if (get(entry, 8) != ENTRY_SIZE || get(entry + 8, 4) != ENTRY_TYPE_DATA)
    return bad(name, "an entry has an unknown type");
  segment_t text = {get(entry + 20, 8), get(entry + 28, 8)};
  segment_t storage = {get(entry + 60, 8), get(entry + 68, 8)};
  if (!mlx_range_ok(text.offset, text.length, names.length))
    return bad(name, "an entry's name is outside the name table");
  const char *chars = (const char *)bytes + names.offset + text.offset;
  if (!text.length || memchr(chars, 0, (size_t)text.length))
    return bad(name, "an entry's name is empty or contains a NUL");
  if (!mlx_range_ok(storage.offset, storage.length, data.length))
    return bad(name, "an entry's data is outside the file");
  MLX_TRY(mlx_copy_text(chars, (size_t)text.length, &out_entry->name));
  out_entry->data = bytes + data.offset + storage.offset;
  out_entry->size = (size_t)storage.length;
  return NULL;
}

mlx_status_t mlx_archive_parse(const char *name, const uint8_t *bytes, size_t size,
                               mlx_archive_t *out_archive) {
  *out_archive = (mlx_archive_t){0};
  if (size < HEADER_SIZE || get(bytes, 4) != MAGIC) return bad(name, "it does not start with IRPA");
  if (get(bytes + 4, 2) != 0 || get(bytes + 8, 8) != HEADER_SIZE)
    return bad(name, "unsupported format version");
  if (get(bytes + 16, 8) != 0) return bad(name, "it contains more than one archive");
  uint64_t count = get(bytes + 32, 8);
  segment_t table = {get(bytes + 40, 8), get(bytes + 48, 8)};
  segment_t names = {get(bytes + 56, 8), get(bytes + 64, 8)};
  segment_t data = {get(bytes + 72, 8), get(bytes + 80, 8)};
  if (!mlx_range_ok(table.offset, table.length, size) || !mlx_range_ok(names.offset, names.length, size) ||
      !mlx_range_ok(data.offset, data.length, size)) {
    return bad(name, "it is truncated: its header describes a longer file");
  }
  if (count > table.length / ENTRY_STRIDE)
    return bad(name, "its entry table is too small for its entry count");
  MLX_TRY(mlx_alloc((size_t)count, sizeof *out_archive->entries, &out_archive->entries));
  mlx_status_t status = NULL;
  for (; out_archive->count < count && !status; ++out_archive->count) {
    status = read_entry(name, bytes, bytes + table.offset + out_archive->count * ENTRY_STRIDE, names, data,
                        &out_archive->entries[out_archive->count]);
  }
  if (status) mlx_archive_clear(out_archive);
  return status;
}

void mlx_archive_clear(mlx_archive_t *archive) {
  for (size_t i = 0; i < archive->count; ++i) mlx_free(archive->entries[i].name);
  mlx_free(archive->entries);
  *archive = (mlx_archive_t){0};
}
