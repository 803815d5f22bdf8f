// Tar archives: reads what GNU tar writes, writes what GNU tar unpacks, and refuses damaged or unsafe
// archives.
#include "artifact/tar.h"

#include "tests/support/check.h"
#include "tests/support/command.h"

#define ALIGNMENT 65536u

static char folder[64];

static void clean_up(void) { mlx_status_free(mlx_remove_tree(folder)); }

static void begin(void) {
  if (folder[0]) return;
  strcpy(folder, "/tmp/mlxcel-tar-XXXXXX");
  CHECK(mkdtemp(folder));
  atexit(clean_up);
}

static void shell(const char *script) { command_shell(folder, script); }

static const char *in_folder(const char *name) {
  static char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

// Lists an archive of small files as "NAME=CONTENT;", and folders as "NAME/;".
static mlx_status_t list(mlx_tar_t *tar, mlx_text_t *out) {
  mlx_tar_member_t member;
  bool found;
  for (;;) {
    char bytes[64];
    MLX_TRY(mlx_tar_next(tar, &member, &found));
    if (!found) return NULL;
    CHECK(member.size < sizeof bytes);
    MLX_TRY(mlx_tar_read(tar, member.offset, bytes, (size_t)member.size));
    mlx_text_printf(out, "%s%s", member.name, member.folder ? "/" : "=");
    mlx_text_append(out, bytes, (size_t)member.size);
    mlx_text_puts(out, ";");
  }
}

static void check_list(const char *archive, const char *expected) {
  mlx_map_t map;
  mlx_text_t text = {0}, again = {0};
  CHECK_OK(mlx_map_file(in_folder(archive), &map));
  CHECK_OK(list(&(mlx_tar_t){.name = archive, .bytes = map.data, .size = map.size}, &text));
  CHECK_TEXT(text.data, expected);
  const int fd = open(in_folder(archive), O_RDONLY);  // the same through a file descriptor
  CHECK_OK(list(&(mlx_tar_t){.name = archive, .fd = fd, .size = map.size}, &again));
  CHECK_TEXT(again.data, expected);
  close(fd);
  mlx_unmap(&map);
  mlx_text_clear(&text);
  mlx_text_clear(&again);
}

TEST(archives_of_gnu_tar_are_read) {
  begin();
  char deep[180], expected[600], script[1024];
  memset(deep, 'd', sizeof deep);
  deep[sizeof deep - 1] = 0;
  shell("mkdir -p in/sub && printf '{}' > in/config.json && printf hello > in/sub/a.txt && : > in/empty");
  static const char *const formats[] = {"v7", "ustar", "gnu", "oldgnu", "pax"};
  for (size_t i = 0; i < sizeof formats / sizeof *formats; ++i) {
    snprintf(script, sizeof script, "tar --format=%s -cf %s.tar -C in ./config.json sub ./empty", formats[i],
             formats[i]);
    shell(script);
    snprintf(script, sizeof script, "%s.tar", formats[i]);
    check_list(script, "config.json={};sub/;sub/a.txt=hello;empty=;");
  }
  snprintf(script, sizeof script,
           "cp in/config.json in/%s; for f in gnu pax; do tar --format=$f -cf long-$f.tar -C in . "
           "--sort=name; done",
           deep);
  shell(script);
  snprintf(expected, sizeof expected, "config.json={};%s={};empty=;sub/;sub/a.txt=hello;", deep);
  check_list("long-gnu.tar", expected);
  check_list("long-pax.tar", expected);
  snprintf(script, sizeof script,
           "rm in/%s; mkdir -p in/%.90s/%.90s; cp in/empty in/%.90s/%.90s/x; tar --format=ustar -cf "
           "prefix.tar -C in %.90s/%.90s/x",
           deep, deep, deep, deep, deep, deep, deep);
  shell(script);
  snprintf(expected, sizeof expected, "%.90s/%.90s/x=;", deep, deep);
  check_list("prefix.tar", expected);
}

// Appends a member whose data starts at a multiple of |alignment|. Returns the offset of the data.
static uint64_t add_member(mlx_text_t *out, const char *name, const char *bytes, uint32_t alignment) {
  static const char zeros[MLX_TAR_END] = {0};
  const size_t size = strlen(bytes);
  CHECK_OK(mlx_tar_aligned_header(name, size, out->length, alignment, out));
  const uint64_t offset = out->length;
  mlx_text_append(out, bytes, size);
  mlx_text_append(out, zeros, mlx_tar_padding(size));
  return offset;
}

TEST(written_archives_are_aligned_and_gnu_tar_unpacks_them) {
  begin();
  mlx_text_t out = {0};
  static const char zeros[MLX_TAR_END] = {0};
  char deep[130], name[200], script[2048];
  memset(deep, 'd', sizeof deep);
  snprintf(name, sizeof name, "%.*s/leaf", 129, deep);
  CHECK_INT(add_member(&out, "manifest.json", "{}", MLX_TAR_BLOCK), 512);  // needs no padding
  CHECK_INT(add_member(&out, "weights", "WWWW", ALIGNMENT) % ALIGNMENT, 0);
  CHECK_INT(add_member(&out, name, "leaf", 4096) % 4096, 0);
  // Every distance to the next multiple, including one block, where a pax header does not fit.
  for (int i = 0; i < 9; ++i) {
    snprintf(script, sizeof script, "f%d", i);
    add_member(&out, script, "x", MLX_TAR_BLOCK);
    snprintf(script, sizeof script, "g%d", i);
    CHECK_INT(add_member(&out, script, "y", 4096) % 4096, 0);
  }
  mlx_text_append(&out, zeros, sizeof zeros);
  CHECK_OK(mlx_text_finish(&out));
  CHECK_OK(mlx_write_file(in_folder("ours.tar"), out.data, out.length));
  mlx_text_clear(&out);
  snprintf(
      script, sizeof script,
      "mkdir out && tar -xf ours.tar -C out 2>errors && ! test -s errors && test $(cat out/weights) = WWWW "
      "&& test $(cat out/%s) = leaf && "
      "test $(cat out/g8) = y && test $(find out -type f | wc -l) = 21 && test $(stat -c %%a%%Y out/f0) "
      "= 6440",
      name);
  shell(script);
  uint8_t block[MLX_TAR_BLOCK];
  CHECK_ERROR(mlx_tar_header("../a", 1, block), MLX_INVALID_INPUT, "is not a valid file name");
  memset(name, 'n', sizeof name - 1);
  name[sizeof name - 1] = 0;
  CHECK_ERROR(mlx_tar_header(name, 1, block), MLX_INVALID_INPUT, "is not a valid file name");
  CHECK_ERROR(mlx_tar_aligned_header("a", 1, 0, 1000, &out), MLX_INVALID_INPUT, "multiple of 1000");
}

TEST(sizes_over_8_gib_are_written_and_read) {
  begin();
  uint8_t block[MLX_TAR_BLOCK];
  const uint64_t size = (9ull << 30) + 5;
  mlx_tar_member_t member;
  bool found;
  CHECK_OK(mlx_tar_header("big", size, block));
  CHECK_OK(mlx_write_file(in_folder("big.tar"), block, sizeof block));
  const uint64_t all = MLX_TAR_BLOCK + size + mlx_tar_padding(size) + MLX_TAR_END;
  CHECK(!truncate(in_folder("big.tar"), (off_t)all));  // sparse
  shell("tar -tvf big.tar | grep -q 9663676421");
  mlx_tar_t tar = {.name = "big.tar", .fd = open(in_folder("big.tar"), O_RDONLY), .size = all};
  CHECK_OK(mlx_tar_next(&tar, &member, &found));
  CHECK(found && member.size == size && member.offset == MLX_TAR_BLOCK);
  CHECK_OK(mlx_tar_next(&tar, &member, &found));
  CHECK(!found);
  close(tar.fd);
  unlink(in_folder("big.tar"));
}

// ----------------------------------------------------------------------------------------------------------
// Refused archives

static void set_checksum(uint8_t *block) {
  unsigned sum = 0;
  memset(block + 148, ' ', 8);
  for (int i = 0; i < MLX_TAR_BLOCK; ++i) sum += block[i];
  snprintf((char *)block + 148, 7, "%06o", sum);
}

TEST(damaged_archives_are_refused) {
  uint8_t good[4 * MLX_TAR_BLOCK] = {0}, bytes[sizeof good];
  CHECK_OK(mlx_tar_header("a", 5, good));
  memcpy(good + MLX_TAR_BLOCK, "hello", 5);
  static const struct {
    int at, length;
    const char *put, *part;
    bool sum;
  } cases[] = {
      {0, 1, "b", "checksum", false},
      {0, 4, "../b", "points outside the folder", true},
      {0, 2, "/b", "points outside the folder", true},
      {0, 1, "", "points outside the folder", true},
      {124, 12, "00000002000", "", true},  // 1024 bytes: exactly the space before the end mark
      {124, 12, "00000003001", "truncated", true},
      {124, 12, "77777777777", "truncated", true},
      {124, 12, "0000000000x", "is not a number", true},
      {124, 12, "           ", "is not a number", true},
      {124, 12, "\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", "truncated", true},
      {124, 12, "\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", "is not a number", true},
      {124, 12, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "is not a number", true},
      {156, 1, "1", "link", true},
      {156, 1, "2", "link", true},
      {156, 1, "3", "device", true},
      {156, 1, "S", "sparse", true},
      {156, 1, "5", "a folder has a non-zero size", true},
      {156, 1, "x", "invalid pax header", true},
      {156, 1, "g", "invalid pax header", true},
      {156, 1, "L", "is not followed by a member", true},
      {2000, 1, "z", "unexpected data after the end", false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    mlx_tar_t tar = {.name = "bad.tar", .bytes = bytes, .size = sizeof bytes};
    memcpy(bytes, good, sizeof bytes);
    memcpy(bytes + cases[i].at, cases[i].put, (size_t)cases[i].length);
    if (cases[i].sum) set_checksum(bytes);
    mlx_status_t status = NULL;
    mlx_tar_member_t member;
    for (bool found = true; !status && found;) status = mlx_tar_next(&tar, &member, &found);
    if (!cases[i].part[0])
      CHECK_OK(status);
    else
      CHECK_ERROR(status, MLX_INVALID_INPUT, cases[i].part);
  }
  // Truncated anywhere before the end mark.
  for (size_t size = 0; size < sizeof good - MLX_TAR_BLOCK; ++size) {
    mlx_tar_t tar = {.name = "cut.tar", .bytes = good, .size = size};
    mlx_text_t text = {0};
    CHECK_ERROR(list(&tar, &text), MLX_INVALID_INPUT, "truncated");
    mlx_text_clear(&text);
  }
}

// Lists an archive with one pax header, then a file whose own header has the name "a" and the size 5.
static mlx_status_t read_with_pax(const char *pax, mlx_text_t *out) {
  uint8_t bytes[6 * MLX_TAR_BLOCK] = {0};
  CHECK_OK(mlx_tar_header("x", strlen(pax), bytes));
  bytes[156] = 'x';
  set_checksum(bytes);
  memcpy(bytes + MLX_TAR_BLOCK, pax, strlen(pax));
  CHECK_OK(mlx_tar_header("a", 5, bytes + 2 * MLX_TAR_BLOCK));
  memcpy(bytes + 3 * MLX_TAR_BLOCK, "hello", 5);
  return list(&(mlx_tar_t){.name = "pax.tar", .bytes = bytes, .size = sizeof bytes}, out);
}

TEST(pax_headers_set_names_and_sizes_or_are_refused) {
  static const struct {
    const char *pax, *expected;
  } good[] = {{"12 path=b/c\n", "b/c=hello;"},
              {"10 size=4\n", "a=hell;"},
              {"18 comment=a b\nc=\n", "a=hello;"},
              {"10 path=b\n10 size=3\n", "b=hel;"}};
  // clang-format off
  static const char *const bad[] = {
      "11 path=b/c\n", "13 path=b/c\n", "path=b\n", "99999999999999999999 path=b\n", "10 size=x\n",
      "8 path=\n", "12 size=-1\n", "3 =", "18 path=../escape\n", "24 GNU.sparse.size=1000\n",
      "24 size=99999999999999999\n"};
  // clang-format on
  for (size_t i = 0; i < sizeof good / sizeof *good; ++i) {
    mlx_text_t text = {0};
    CHECK_OK(read_with_pax(good[i].pax, &text));
    CHECK_TEXT(text.data, good[i].expected);
    mlx_text_clear(&text);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    mlx_text_t text = {0};
    CHECK_ERROR(read_with_pax(bad[i], &text), MLX_INVALID_INPUT, "cannot read tar archive 'pax.tar'");
    mlx_text_clear(&text);
  }
}

TEST_MAIN(CASE(archives_of_gnu_tar_are_read), CASE(written_archives_are_aligned_and_gnu_tar_unpacks_them),
          CASE(sizes_over_8_gib_are_written_and_read), CASE(damaged_archives_are_refused),
          CASE(pax_headers_set_names_and_sizes_or_are_refused))
