// Weight archives: layout, damaged input, and incomplete writes.
#include "artifact/archive.h"

#include "base/memory.h"
#include "tests/support/check.h"
#include "tests/support/command.h"

static const mlx_archive_item_t items[] = {
    {"a", 5}, {"model.layers.0.weight", 64}, {"empty", 0}, {"last", 130}};
#define ITEM_COUNT 4

static char archive_folder[64];

// Writes an archive whose entries hold the bytes 1, 2, 3 ..., and maps it.
static mlx_map_t make_archive(void) {
  char path[96];
  strcpy(archive_folder, "/tmp/mlxcel-archive-XXXXXX");
  CHECK(mkdtemp(archive_folder));
  snprintf(path, sizeof path, "%s/x.irpa", archive_folder);
  mlx_archive_writer_t writer;
  CHECK_OK(mlx_archive_create(path, items, ITEM_COUNT, false, &writer));
  uint8_t bytes[256];
  static const uint8_t zeros[MLX_ARCHIVE_ALIGNMENT];
  for (int i = 0; i < 256; ++i) bytes[i] = (uint8_t)(i + 1);
  for (int i = 0; i < ITEM_COUNT; ++i) {
    if (i) CHECK_OK(mlx_archive_write(&writer, zeros, -items[i - 1].size % MLX_ARCHIVE_ALIGNMENT));
    CHECK_OK(mlx_archive_write(&writer, bytes, items[i].size));
  }
  CHECK_OK(mlx_archive_finish(&writer));
  mlx_map_t map;
  CHECK_OK(mlx_map_file(path, &map));
  return map;
}

static void drop_archive(mlx_map_t *map) {
  mlx_unmap(map);
  CHECK_OK(mlx_remove_tree(archive_folder));
}

TEST(every_tensor_starts_on_a_64_byte_boundary_with_its_bytes) {
  mlx_map_t map = make_archive();
  mlx_archive_t archive;
  CHECK_OK(mlx_archive_parse("x.irpa", map.data, map.size, &archive));
  CHECK_INT(archive.count, ITEM_COUNT);
  CHECK_INT(map.size % 4096, 0);
  for (size_t i = 0; i < archive.count; ++i) {
    CHECK_TEXT(archive.entries[i].name, items[i].name);
    CHECK_INT(archive.entries[i].size, items[i].size);
    CHECK_INT((uintptr_t)archive.entries[i].data % 64, 0);
    for (size_t j = 0; j < archive.entries[i].size; ++j)
      CHECK_INT(archive.entries[i].data[j], (uint8_t)(j + 1));
  }
  mlx_archive_clear(&archive);
  drop_archive(&map);
}

// Writes of the file that do not start at a multiple of a huge page, or that end before the next one.
static uint64_t write_offset;
static int small_writes;

static ssize_t count_write(int fd, const void *bytes, size_t length) {
  if (write_offset % MLX_ARCHIVE_PIECE || length < MLX_ARCHIVE_PIECE) ++small_writes;
  write_offset += length;
  return mlx_file_system_calls.write(fd, bytes, length);
}

// |length|: bytes of each call. Large ones are hashed and written by two threads.
static void check_writes(size_t length) {
  const mlx_archive_item_t large = {"large", 2 * MLX_ARCHIVE_PIECE + 4096};
  mlx_file_calls_t calls = mlx_file_system_calls;
  mlx_archive_writer_t writer;
  char path[96], digest[MLX_DIGEST_HEX], *bytes;
  strcpy(archive_folder, "/tmp/mlxcel-archive-XXXXXX");
  CHECK(mkdtemp(archive_folder));
  snprintf(path, sizeof path, "%s/x.irpa", archive_folder);
  CHECK_OK(mlx_alloc(large.size, 1, &bytes));
  for (size_t i = 0; i < large.size; ++i) bytes[i] = (char)(i * 7 + i / 251);
  calls.write = count_write;
  write_offset = 0;
  small_writes = 0;
  mlx_file_set_calls(&calls);
  CHECK_OK(mlx_archive_create(path, &large, 1, true, &writer));
  for (uint64_t at = 0; at < large.size; at += length)
    CHECK_OK(mlx_archive_write(&writer, bytes + at, large.size - at < length ? large.size - at : length));
  CHECK_OK(mlx_archive_finish(&writer));
  mlx_file_set_calls(NULL);
  CHECK_INT(small_writes, 1);  // the end of the file
  CHECK_INT(write_offset, writer.file.offset);
  CHECK_OK(mlx_digest_file(path, NULL, digest));
  CHECK_TEXT(writer.sha256_hex, digest);
  CHECK_OK(mlx_tree_digest_part(path, 0, writer.file.offset, 1, NULL, digest));
  CHECK_TEXT(writer.tree_hex, digest);
  mlx_free(bytes);
  CHECK_OK(mlx_remove_tree(archive_folder));
}

TEST(archive_is_written_in_huge_pages_so_that_linux_caches_it_in_them) {
  check_writes(720);
  check_writes(3 * MLX_ARCHIVE_PIECE / 2 + 13);
  check_writes(4 * MLX_ARCHIVE_PIECE);
}

TEST(truncated_archive_is_an_error_at_every_length) {
  mlx_map_t map = make_archive();
  mlx_archive_t archive;
  for (size_t size = 0; size < map.size; size += size < 600 ? 1 : 97) {
    CHECK_ERROR(mlx_archive_parse("x.irpa", map.data, size, &archive), MLX_INVALID_INPUT, "x.irpa");
  }
  drop_archive(&map);
}

TEST(flipped_bit_is_an_error_or_keeps_entries_inside_the_file) {
  mlx_map_t map = make_archive();
  uint8_t *copy;
  CHECK_OK(mlx_alloc(map.size, 1, &copy));
  for (size_t bit = 0; bit < 600 * 8; ++bit) {
    memcpy(copy, map.data, map.size);
    copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
    mlx_archive_t archive;
    mlx_status_t status = mlx_archive_parse("x.irpa", copy, map.size, &archive);
    for (size_t i = 0; !status && i < archive.count; ++i) {
      CHECK(archive.entries[i].data >= copy &&
            archive.entries[i].data + archive.entries[i].size <= copy + map.size);
    }
    mlx_archive_clear(&archive);
    mlx_status_free(status);
  }
  mlx_free(copy);
  drop_archive(&map);
}

TEST(incomplete_archive_is_removed) {
  char folder[] = "/tmp/mlxcel-archive-XXXXXX", path[64];
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/x.irpa", folder);
  mlx_archive_writer_t writer;
  CHECK_OK(mlx_archive_create(path, items, ITEM_COUNT, false, &writer));
  CHECK_ERROR(mlx_archive_finish(&writer), MLX_INTERNAL, "to a weights archive that needs");
  CHECK(!mlx_is_file(path));
  CHECK_OK(mlx_remove_tree(folder));
}

TEST_MAIN(CASE(every_tensor_starts_on_a_64_byte_boundary_with_its_bytes),
          CASE(archive_is_written_in_huge_pages_so_that_linux_caches_it_in_them),
          CASE(truncated_archive_is_an_error_at_every_length),
          CASE(flipped_bit_is_an_error_or_keeps_entries_inside_the_file), CASE(incomplete_archive_is_removed))
