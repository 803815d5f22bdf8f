// Hub: models on a server that speaks the Hugging Face hub's API. This file reads references and the server's
// answers and chooses files; it asks nothing of the network (transfer/pull.h does).
#ifndef MLXCEL_TRANSFER_HUB_H_
#define MLXCEL_TRANSFER_HUB_H_

#include "base/digest.h"
#include "base/sha1.h"
#include "base/status.h"

#define MLX_HUB_PREFIX "hf:"
#define MLX_HUB_MAX_ANSWER (64u << 20)

// "hf:ORG/NAME[@REVISION][:FILE-OR-QUANT]", in parts.
typedef struct mlx_hub_ref {
  char org[97], name[97];
  char revision[257];   // "main" when none was given
  char selector[1025];  // "": none
} mlx_hub_ref_t;
bool mlx_is_hub_ref(const char *text);
mlx_status_t mlx_hub_ref_parse(const char *text, mlx_hub_ref_t *out_ref) MLX_MUST_USE;

typedef struct mlx_hub_file {
  char *name;  // a safe relative path
  uint64_t size;
  char sha256[MLX_DIGEST_HEX];  // of a file in large-file storage, else ""
  char git_sha1[MLX_SHA1_HEX];  // of any other, else ""
  bool chosen;
} mlx_hub_file_t;

typedef struct mlx_hub_listing {
  char commit[MLX_SHA1_HEX];
  mlx_hub_file_t *files;
  size_t count;
} mlx_hub_listing_t;

// Reads what the hub says of a model (/api/models/ORG/NAME/revision/REVISION?blobs=true); |name| is for
// errors. Files are in the order given. A name that would leave the folder is an error. Release with
// mlx_hub_listing_free.
mlx_status_t mlx_hub_listing_read(const char *name, const char *json, size_t length,
                                  mlx_hub_listing_t *out_listing) MLX_MUST_USE;
void mlx_hub_listing_free(mlx_hub_listing_t *listing);

// Chooses the files that make the model asked for. *|out_main| is the file to open, borrowed from the
// listing, or NULL where it is the folder itself. Without a selector: config, tokenizer, chat templates and
// safetensors; where there are none of those, the only GGUF file or the one quantised as Q4_K_M. Pickles
// (.bin) are never chosen. *|out_by_default|: that Q4_K_M was nobody's wish.
mlx_status_t mlx_hub_select(mlx_hub_listing_t *listing, const char *selector, const char **out_main,
                            bool *out_by_default) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_HUB_H_
