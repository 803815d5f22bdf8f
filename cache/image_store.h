// Image store: a read-only file of compiled kernel images, which a package ships beside the binary so that a
// user's first compilation runs NVRTC for fewer images. An image is found by the same key as in the cache, so
// a store from another NVRTC or other kernel sources is never used.
//
// The file: "mlxcel-images-1\n", the SHA-256 digest of everything from the next field to the end of the
// table, the number of images (u64, little-endian), the table, the images. A table row has the key (32
// bytes), the SHA-256 digest of the image (32 bytes), offset and length in the file (u64 each). Rows are
// sorted by key.
//
// Threads: an open store is read-only and may be shared.
#ifndef MLXCEL_CACHE_IMAGE_STORE_H_
#define MLXCEL_CACHE_IMAGE_STORE_H_

#include "base/digest.h"
#include "base/file.h"

typedef struct mlx_image_store {
  mlx_map_t map;        // empty: no store
  const uint8_t *rows;  // the table, in |map|
  size_t count;
} mlx_image_store_t;

// Path of the store for a GPU: FOLDER/sm_90.images, where FOLDER is $MLXCEL_IMAGES, or share/mlxcel/images
// beside the folder of the executable. *|out_path| is NULL if there is no such file. Release it with
// mlx_free.
mlx_status_t mlx_image_store_path(int sm, char **out_path) MLX_MUST_USE;

// Opens a store and checks its table. Fails with MLX_INVALID_INPUT if it is damaged. Close with
// mlx_image_store_close.
mlx_status_t mlx_image_store_open(const char *path, mlx_image_store_t *out_store) MLX_MUST_USE;
void mlx_image_store_close(mlx_image_store_t *store);  // an empty store is fine

// The same for bytes in memory, which the store borrows. |name| is for errors.
mlx_status_t mlx_image_store_parse(const char *name, mlx_map_t bytes,
                                   mlx_image_store_t *out_store) MLX_MUST_USE;

// The image with this key (64 hexadecimal digits), valid while the store is open; NULL in *|out_bytes| if
// there is none. Fails with MLX_INVALID_INPUT if its bytes do not have their digest.
mlx_status_t mlx_image_store_find(const mlx_image_store_t *store, const char *key, const void **out_bytes,
                                  size_t *out_length) MLX_MUST_USE;

typedef struct mlx_stored_image {
  char key[MLX_DIGEST_HEX];
  char *bytes;  // owned by the caller
  size_t length;
} mlx_stored_image_t;

// Writes a store of images with different keys; sorts |images|.
mlx_status_t mlx_image_store_write(const char *path, mlx_stored_image_t *images, size_t count) MLX_MUST_USE;

#endif  // MLXCEL_CACHE_IMAGE_STORE_H_
