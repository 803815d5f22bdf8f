// Opens tokenizers through the cache: the first open of a large tokenizer stores its image (image.h), later
// ones map it.
#ifndef MLXCEL_TOKENIZER_OPEN_H_
#define MLXCEL_TOKENIZER_OPEN_H_

#include "base/report.h"
#include "cache/cache.h"
#include "tokenizer/tokenizer.h"

// A tokenizer.json that is read only if the cache has no image of it. All pointers are borrowed for the call.
typedef struct mlx_tokenizer_text {
  const char *name;   // of the file, for messages
  const char *model;  // the name of the model, for the title of the cache entry
  const char *key;    // a digest of everything that the text is made from; NULL or "": use no cache
  // Release the text with mlx_free.
  mlx_status_t (*read)(void *user, char **out_json, size_t *out_length);
  void *user;
  const mlx_report_t *report;  // of the building of a tokenizer that is not in the cache; may be NULL
} mlx_tokenizer_text_t;

// Opens the tokenizer of |text|. |cache| may be NULL. A cache that cannot be read or written is not an error:
// the tokenizer is then created from its text. Release with mlx_tokenizer_free, which waits until the image
// is stored.
mlx_status_t mlx_tokenizer_open(mlx_cache_t *cache, const mlx_tokenizer_text_t *text,
                                mlx_tokenizer_t **out_tokenizer) MLX_MUST_USE;

#endif  // MLXCEL_TOKENIZER_OPEN_H_
