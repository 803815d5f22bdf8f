// Image writer: stores an image in the cache on a thread of its own. Hashing and syncing a large image takes
// tenths of a second, and the model can be compiled meanwhile.
#ifndef MLXCEL_TOKENIZER_IMAGE_WRITER_H_
#define MLXCEL_TOKENIZER_IMAGE_WRITER_H_

#include "cache/cache.h"

#define MLX_TOKENIZER_KIND "tokenizer"    // of the cache entries
#define MLX_TOKENIZER_IMAGE "tokens.bin"  // the file of an entry

typedef struct mlx_image_writer mlx_image_writer_t;

// Starts to store |bytes|, which it takes over, also on failure. The other arguments are copied. Release with
// mlx_image_writer_finish.
mlx_status_t mlx_image_writer_start(const mlx_cache_t *cache, const char *key, const char *title,
                                    uint8_t *bytes, size_t size, mlx_image_writer_t **out) MLX_MUST_USE;
// Waits for the thread. An image that could not be stored is not an error: the next start makes it again.
void mlx_image_writer_finish(mlx_image_writer_t *writer);  // NULL is fine

#endif  // MLXCEL_TOKENIZER_IMAGE_WRITER_H_
