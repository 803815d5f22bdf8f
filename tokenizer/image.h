// Image: the tables of a tokenizer as one file that is mapped and used in place. A start with an image parses
// no vocabulary.
//
// The file is a header, then the tables one after the other, each on an 8-byte boundary. Tables hold offsets
// and indices, so the file works at any address. Numbers have the byte order of the machine that wrote it.
// The normalizer, the pre-tokenizer and the decoder are kept as JSON and created again: they hold compiled
// regular expressions.
//
// An image comes from the user's own cache, whose records detect damage (cache/cache.h). The reader does not
// depend on that: it checks every offset and index first. So a damaged image is refused, or gives wrong ids,
// but never reads outside its bytes and never hangs.
#ifndef MLXCEL_TOKENIZER_IMAGE_H_
#define MLXCEL_TOKENIZER_IMAGE_H_

#include "base/file.h"
#include "tokenizer/tokenizer.h"

// The bytes of an image. Release with mlx_free.
mlx_status_t mlx_tokenizer_image_make(const mlx_tokenizer_t *tokenizer, uint8_t **out_bytes,
                                      size_t *out_size) MLX_MUST_USE;
// Creates a tokenizer that uses |image|: bytes on an 8-byte boundary, which must outlive it. |name| is for
// messages. Fails with MLX_INVALID_INPUT if the image is damaged or has another format.
mlx_status_t mlx_tokenizer_image_parse(const char *name, mlx_map_t image,
                                       mlx_tokenizer_t **out_tokenizer) MLX_MUST_USE;
// The same for a file, which stays mapped until mlx_tokenizer_free.
mlx_status_t mlx_tokenizer_image_open(const char *path, mlx_tokenizer_t **out_tokenizer) MLX_MUST_USE;

#endif  // MLXCEL_TOKENIZER_IMAGE_H_
