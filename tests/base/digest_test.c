// SHA-256 in portable C and with the CPU's instructions, and tree digests, compared with libsodium's SHA-256.
#include "base/digest.h"

#include <sodium/crypto_hash_sha256.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "tests/support/check.h"

static void fill(uint8_t *bytes, size_t length) {
  uint32_t state = 1;
  for (size_t i = 0; i < length; ++i) bytes[i] = (uint8_t)((state = state * 1664525u + 1013904223u) >> 24);
}

static void expected_hex(const uint8_t *bytes, size_t length, char out_hex[MLX_DIGEST_HEX]) {
  uint8_t sum[crypto_hash_sha256_BYTES];
  crypto_hash_sha256(sum, bytes, length);
  for (int i = 0; i < 32; ++i) snprintf(out_hex + 2 * i, 3, "%02x", sum[i]);
}

// Adds |bytes| in pieces of |piece| bytes.
static void check_digest(mlx_sha256_fn_t add_blocks, const uint8_t *bytes, size_t length, size_t piece) {
  char hex[MLX_DIGEST_HEX], expected[MLX_DIGEST_HEX];
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  digest.add_blocks = add_blocks;
  for (size_t at = 0; at < length; at += piece)
    mlx_digest_add(&digest, bytes + at, length - at < piece ? length - at : piece);
  mlx_digest_end(&digest, hex);
  expected_hex(bytes, length, expected);
  CHECK_TEXT(hex, expected);
}

TEST(sha256_matches_libsodium_at_every_length_and_split) {
  uint8_t bytes[1000];
  const char *name;
  fill(bytes, sizeof bytes);
  const mlx_sha256_fn_t functions[] = {mlx_sha256_portable, mlx_sha256_fastest(&name)};
  fprintf(stderr, "  this CPU: %s\n", name);
  for (size_t f = 0; f < 2; ++f) {
    for (size_t length = 0; length < 260; ++length) {
      for (size_t piece = 1; piece < 200; piece += piece < 70 ? 1 : 31)
        check_digest(functions[f], bytes, length, piece);
    }
    check_digest(functions[f], bytes + 1, sizeof bytes - 1, sizeof bytes);  // not aligned
  }
}

TEST(sha256_of_several_streams_at_once_matches_libsodium) {
  static uint8_t bytes[16 * 640];
  fill(bytes, sizeof bytes);
  for (size_t most = 1; most <= 16; ++most) {
    const mlx_sha256_lanes_t lanes = mlx_sha256_lanes(most);
    uint32_t states[8 * 16];
    mlx_digest_t digest;
    CHECK(lanes.lanes <= most && (lanes.lanes == 1) == !lanes.add_blocks);
    if (!lanes.add_blocks) continue;
    mlx_digest_begin(&digest);
    for (size_t i = 0; i < 8 * lanes.lanes; ++i) states[i] = digest.state[i / lanes.lanes];
    lanes.add_blocks(states, bytes, 640, 3);
    lanes.add_blocks(states, bytes + 3 * 64, 640, 7);
    for (size_t lane = 0; lane < lanes.lanes; ++lane) {
      char hex[MLX_DIGEST_HEX], expected[MLX_DIGEST_HEX];
      digest.length = 640;
      for (size_t i = 0; i < 8; ++i) digest.state[i] = states[i * lanes.lanes + lane];
      mlx_digest_end(&digest, hex);
      expected_hex(bytes + lane * 640, 640, expected);
      CHECK_TEXT(hex, expected);
    }
  }
}

#define CHUNK ((size_t)MLX_TREE_CHUNK)
#define MOST_CHUNKS 36

static void expected_tree(const uint8_t *bytes, size_t length, char out_hex[MLX_DIGEST_HEX]) {
  uint8_t sums[MOST_CHUNKS][crypto_hash_sha256_BYTES];
  size_t count = 0;
  for (size_t at = 0; at < length; at += CHUNK)
    crypto_hash_sha256(sums[count++], bytes + at, length - at < CHUNK ? length - at : CHUNK);
  expected_hex(sums[0], count * sizeof *sums, out_hex);
}

TEST(tree_digest_is_the_sha256_of_the_chunks_digests_with_any_number_of_threads) {
  const size_t sizes[] = {0,          1,          CHUNK - 1,  CHUNK,      CHUNK + 1,
                          15 * CHUNK, 16 * CHUNK, 29 * CHUNK, 33 * CHUNK, 35 * CHUNK + 12345};
  char path[] = "/tmp/mlxcel-tree-XXXXXX", hex[MLX_DIGEST_HEX], expected[MLX_DIGEST_HEX];
  uint8_t *bytes;
  close(mkstemp(path));
  CHECK_OK(mlx_alloc(MOST_CHUNKS * CHUNK, 1, &bytes));
  fill(bytes, MOST_CHUNKS * CHUNK);
  CHECK_OK(mlx_write_file(path, bytes, MOST_CHUNKS * CHUNK));
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    for (int threads = 0; threads < 4; ++threads) {
      const uint64_t offset = i % 2 ? 512 : 0;
      CHECK_OK(mlx_tree_digest_part(path, offset, sizes[i], threads, NULL, hex));
      expected_tree(bytes + offset, sizes[i], expected);
      CHECK_TEXT(hex, expected);
    }
  }
  CHECK_ERROR(mlx_tree_digest_part(path, 1, MOST_CHUNKS * CHUNK, 0, NULL, hex), MLX_INVALID_INPUT,
              "shorter than expected");
  CHECK_ERROR(mlx_tree_digest_part(path, UINT64_MAX, 2, 0, NULL, hex), MLX_INVALID_INPUT,
              "shorter than expected");
  CHECK_ERROR(mlx_tree_digest_part("/nowhere/file", 0, 1, 0, NULL, hex), MLX_NOT_FOUND, "/nowhere/file");
  unlink(path);
  mlx_free(bytes);
}

TEST(every_flipped_bit_changes_the_tree_digest) {
  char path[] = "/tmp/mlxcel-tree-XXXXXX", hex[MLX_DIGEST_HEX], changed[MLX_DIGEST_HEX];
  const size_t size = 2 * CHUNK + 100, places[] = {0, CHUNK - 1, CHUNK, 2 * CHUNK, size - 1};
  uint8_t *bytes;
  close(mkstemp(path));
  CHECK_OK(mlx_alloc(size, 1, &bytes));
  CHECK_OK(mlx_write_file(path, bytes, size));
  CHECK_OK(mlx_tree_digest_part(path, 0, size, 0, NULL, hex));
  for (size_t i = 0; i < sizeof places / sizeof *places; ++i) {
    bytes[places[i]] ^= 1;
    CHECK_OK(mlx_write_file(path, bytes, size));
    CHECK_OK(mlx_tree_digest_part(path, 0, size, 0, NULL, changed));
    CHECK(strcmp(hex, changed));
    bytes[places[i]] ^= 1;
  }
  unlink(path);
  mlx_free(bytes);
}

static void check_hasher(const uint8_t *bytes, size_t length, size_t piece) {
  char hex[MLX_DIGEST_HEX], expected[MLX_DIGEST_HEX];
  mlx_tree_hasher_t hasher;
  mlx_tree_hasher_begin(&hasher);
  for (size_t at = 0; at < length; at += piece)
    mlx_tree_hasher_add(&hasher, bytes + at, length - at < piece ? length - at : piece);
  mlx_tree_hasher_end(&hasher, hex);
  expected_tree(bytes, length, expected);
  CHECK_TEXT(hex, expected);
}

TEST(the_tree_digest_does_not_depend_on_how_the_bytes_come) {
  static uint8_t bytes[35 * CHUNK + 12345];
  fill(bytes, sizeof bytes);
  for (size_t length = 0; length < 260; length += 13) {
    for (size_t piece = 1; piece < 200; piece += 31) check_hasher(bytes, length, piece);
  }
  const size_t lengths[] = {CHUNK - 1, CHUNK, CHUNK + 1, 17 * CHUNK, sizeof bytes};
  const size_t pieces[] = {1000003, 4096, CHUNK, sizeof bytes};
  for (size_t i = 0; i < 5; ++i) {
    for (size_t j = 0; j < 4; ++j) check_hasher(bytes, lengths[i], pieces[j]);
  }
  check_hasher(bytes + 1, sizeof bytes - 1, 65537);  // not aligned
}

typedef struct seen {
  uint64_t done, total;
  int calls;
} seen_t;

static void see(void *user, uint64_t done, uint64_t total) {
  seen_t *seen = user;
  CHECK(done >= seen->done && done <= total);
  *seen = (seen_t){done, total, seen->calls + 1};
}

TEST(hashing_a_file_reports_its_progress) {
  static uint8_t bytes[35 * CHUNK + 12345];
  char path[] = "/tmp/mlxcel-digest-XXXXXX", hex[MLX_DIGEST_HEX];
  close(mkstemp(path));
  CHECK_OK(mlx_write_file(path, bytes, sizeof bytes));
  for (int i = 0; i < 4; ++i) {
    seen_t seen = {0};
    const mlx_digest_watch_t watch = {.on_bytes = see, .user = &seen};
    CHECK_OK(i == 0   ? mlx_digest_file(path, &watch, hex)
             : i == 1 ? mlx_digest_part(path, 0, sizeof bytes, &watch, hex)
                      : mlx_tree_digest_part(path, 0, sizeof bytes, i - 1, &watch, hex));
    CHECK_INT(seen.done, sizeof bytes);
    CHECK_INT(seen.total, sizeof bytes);
    CHECK(seen.calls > 1 || i == 3);  // of two threads, the other one may hash everything
    const int calls = seen.calls;
    CHECK_OK(mlx_digest_file(path, NULL, hex));  // without a watch
    CHECK_INT(seen.calls, calls);
  }
  unlink(path);
}

TEST_MAIN(CASE(sha256_matches_libsodium_at_every_length_and_split),
          CASE(sha256_of_several_streams_at_once_matches_libsodium),
          CASE(tree_digest_is_the_sha256_of_the_chunks_digests_with_any_number_of_threads),
          CASE(every_flipped_bit_changes_the_tree_digest),
          CASE(the_tree_digest_does_not_depend_on_how_the_bytes_come),
          CASE(hashing_a_file_reports_its_progress))
