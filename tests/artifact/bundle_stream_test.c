// A single-file bundle is checked while it arrives: every byte must be declared by a header and by the
// manifest.
#include "artifact/bundle_stream.h"

#include <string.h>

#include "artifact/bundle.h"
#include "artifact/tar.h"
#include "base/memory.h"
#include "tests/support/check.h"
#include "tests/support/small_manifest.h"

static uint64_t reserved;

static mlx_status_t reserve(void *user, uint64_t bytes) {
  reserved += bytes;
  return bytes > *(const uint64_t *)user ? mlx_error(MLX_IO, "not enough disk space") : NULL;
}

static mlx_status_t add_header(mlx_bundle_stream_t *stream, const char *name, uint64_t size) {
  uint8_t block[MLX_TAR_BLOCK];
  CHECK_OK(mlx_tar_header(name, size, block));
  return mlx_bundle_stream_add(stream, (const char *)block, sizeof block);
}

static mlx_status_t add_data(mlx_bundle_stream_t *stream, const char *text, size_t length) {
  static const char zeros[MLX_TAR_BLOCK];
  MLX_TRY(mlx_bundle_stream_add(stream, text, length));
  return mlx_bundle_stream_add(stream, zeros, mlx_tar_padding(length));
}

static char *make_manifest(size_t *out_length) {
  mlx_manifest_t manifest = small_manifest();
  manifest.file_count = 1;
  manifest.files[0] = (mlx_bundle_file_t){.name = MLX_BUNDLE_WEIGHTS, .size = 7};
  memset(manifest.files[0].sha256, '0', 64);
  char *json;
  CHECK_OK(mlx_manifest_write(&manifest, &json, out_length));
  return json;
}

TEST(members_must_have_the_sizes_of_the_manifest) {
  size_t length;
  char *manifest = make_manifest(&length);
  mlx_bundle_stream_t *stream;
  uint64_t space = 1 << 20;
  CHECK_OK(mlx_bundle_stream_create("m", reserve, &space, &stream));
  for (int i = 0; i < 4; ++i) {
    mlx_bundle_stream_begin(stream);  // starting over forgets everything
    CHECK_OK(add_header(stream, MLX_BUNDLE_MANIFEST, length));
    CHECK_OK(add_data(stream, manifest, length));
    if (i == 0)
      CHECK_ERROR(add_header(stream, MLX_BUNDLE_WEIGHTS, 8), MLX_INVALID_INPUT, "the manifest declares 7");
    if (i == 1)
      CHECK_ERROR(add_header(stream, MLX_BUNDLE_VMFB, 1), MLX_INVALID_INPUT, "manifest does not list");
    if (i == 2) CHECK_ERROR(add_header(stream, MLX_BUNDLE_MANIFEST, 1), MLX_INVALID_INPUT, "appears twice");
    if (i < 3) continue;
    CHECK_OK(add_header(stream, MLX_BUNDLE_WEIGHTS, 7));
    CHECK_OK(add_data(stream, "weights", 7));
    for (int block = 0; block < 20; ++block) {
      static const char zeros[MLX_TAR_BLOCK];
      CHECK_OK(mlx_bundle_stream_add(stream, zeros, sizeof zeros));
    }
    CHECK_ERROR(mlx_bundle_stream_add(stream, "x", 1), MLX_INVALID_INPUT, "after the end of the archive");
  }
  mlx_bundle_stream_free(stream);
  mlx_free(manifest);
}

// Weights may come before the manifest: then only their own header limits them, and the disk.
TEST(members_must_fit_on_the_disk) {
  mlx_bundle_stream_t *stream;
  uint64_t space = 1000;
  CHECK_OK(mlx_bundle_stream_create("m", reserve, &space, &stream));
  reserved = 0;
  CHECK_OK(add_header(stream, MLX_BUNDLE_WEIGHTS, 1000));
  CHECK_INT(reserved, 1000);
  mlx_bundle_stream_begin(stream);
  CHECK_ERROR(add_header(stream, MLX_BUNDLE_WEIGHTS, 1ull << 40), MLX_IO, "not enough disk space");
  mlx_bundle_stream_free(stream);
}

TEST(other_files_are_limited) {
  mlx_bundle_stream_t *stream;
  mlx_status_t status = NULL;
  CHECK_OK(mlx_bundle_stream_create("m", NULL, NULL, &stream));
  CHECK_ERROR(add_header(stream, "README", (64 << 20) + 1), MLX_INVALID_INPUT, "not part of a bundle");
  mlx_bundle_stream_begin(stream);
  for (int i = 0; i < 1024; ++i) CHECK_OK(add_header(stream, "README", 0));
  status = add_header(stream, "README", 0);
  CHECK_ERROR(status, MLX_INVALID_INPUT, "more than 1024 members");
  mlx_bundle_stream_begin(stream);
  char page[MLX_TAR_BLOCK] = "<html>";
  CHECK_ERROR(mlx_bundle_stream_add(stream, page, sizeof page), MLX_INVALID_INPUT, "m is not a bundle");
  mlx_bundle_stream_free(stream);
}

TEST_MAIN(CASE(members_must_have_the_sizes_of_the_manifest), CASE(members_must_fit_on_the_disk),
          CASE(other_files_are_limited))
