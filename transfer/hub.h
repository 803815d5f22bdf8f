// Hub: references to models on a server with the Hugging Face hub's API, its file listings, and the choice of
// files to download. This file only parses and selects; transfer/pull_hub.c uses the network.
#ifndef MLXCEL_TRANSFER_HUB_H_
#define MLXCEL_TRANSFER_HUB_H_

#include "base/digest.h"
#include "base/sha1.h"
#include "base/status.h"

#define MLX_HUB_PREFIX "hf:"
// The public hub: the default address, and the hosts of addresses that users paste.
#define MLX_HUB_HOST "huggingface.co"
#define MLX_HUB_SHORT_HOST "hf.co"
#define MLX_HUB_MAX_ANSWER (64u << 20)  // bytes of a listing

// A parsed "hf:ORG/NAME[@REVISION][:FILE-OR-QUANT]". The prefix may also be "hf://", "hf.co/" or
// "huggingface.co/". The address of a page or a GGUF file on the public hub is a reference too:
// "https://huggingface.co/ORG/NAME[/tree/REVISION]", ".../blob/REVISION/FILE.gguf", ".../resolve/...". It is
// pulled from the hub that HF_ENDPOINT names.
typedef struct mlx_hub_ref {
  char org[97], name[97];
  char revision[257];   // "main" by default
  char selector[1025];  // a file name or quantization type; "" if none
} mlx_hub_ref_t;
bool mlx_is_hub_ref(const char *text);
mlx_status_t mlx_hub_ref_parse(const char *text, mlx_hub_ref_t *out_ref) MLX_MUST_USE;

typedef struct mlx_hub_file {
  char *name;  // a safe relative path
  uint64_t size;
  char sha256[MLX_DIGEST_HEX];  // of a file in large-file storage (LFS), else ""
  char git_sha1[MLX_SHA1_HEX];  // git blob digest of any other file, else ""
  bool chosen;
} mlx_hub_file_t;

typedef struct mlx_hub_listing {
  char commit[MLX_SHA1_HEX];
  mlx_hub_file_t *files;
  size_t count;
} mlx_hub_listing_t;

// Parses the hub's listing of a model (/api/models/ORG/NAME/revision/REVISION?blobs=true). |name| appears in
// error messages. Files keep their order. A file name that points outside the folder is an error. Release
// with mlx_hub_listing_free.
mlx_status_t mlx_hub_listing_read(const char *name, const char *json, size_t length,
                                  mlx_hub_listing_t *out_listing) MLX_MUST_USE;
void mlx_hub_listing_free(mlx_hub_listing_t *listing);

// Sets |chosen| on the files to download. *|out_main| is the file to open, borrowed from the listing, or NULL
// to open the folder. Without a selector, chooses config, tokenizer, chat templates and safetensors; in a
// repository without safetensors, the Q4_K_M model, else the first GGUF model. *|out_by_default| is true if
// the repository has several GGUF models and one was chosen that way. Never chooses pickles (.bin), which can
// run code when loaded.
mlx_status_t mlx_hub_select(mlx_hub_listing_t *listing, const char *selector, const char **out_main,
                            bool *out_by_default) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_HUB_H_
