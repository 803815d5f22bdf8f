// ModelPack: models as others put them into registries, weights and tokenizer without compiled code (CNCF
// model-spec, as of v0.0.7).
//
// Layers that hold a file as it is ("raw") or files in a plain tar archive become a folder that can be opened
// like one of a hub. Compressed layers, files without a name and names that leave the folder are refused;
// code, data sets and pickles are not fetched.
#ifndef MLXCEL_TRANSFER_MODELPACK_H_
#define MLXCEL_TRANSFER_MODELPACK_H_

#include "transfer/push.h"

// How a layer holds what it holds, by its media type.
typedef enum mlx_layer_kind {
  MLX_LAYER_FILE,        // one file, as it is
  MLX_LAYER_TAR,         // files in an archive
  MLX_LAYER_COMPRESSED,  // the same, compressed
  MLX_LAYER_NOT_WANTED,  // code, data sets; documents that are compressed
  MLX_LAYER_UNKNOWN,
} mlx_layer_kind_t;
mlx_layer_kind_t mlx_modelpack_layer_kind(const char *media_type);

// True when the model's weights are an archive of ours, for which there is compiled code.
bool mlx_modelpack_is_compiled(const mlx_oci_document_t *model);

// Brings the model here that |ref| names in |store|: to |options|' output, else to the cache
// (transfer/oci_place.h). *|out_path| is what to open, a folder or a GGUF file; release with mlx_free.
mlx_status_t mlx_modelpack_pull(mlx_store_t *store, const mlx_oci_ref_t *ref, const mlx_oci_document_t *model,
                                const char *digest, const mlx_push_options_t *options,
                                char **out_path) MLX_MUST_USE;

// What to open of such a model in |folder|: itself, or a GGUF file in it. Release with mlx_free.
mlx_status_t mlx_modelpack_main(const char *folder, const mlx_report_t *report, char **out_path) MLX_MUST_USE;

// Copies the files of the archive at |path| below |folder|, but not pickles; each name is added to |files|,
// where it must not be yet.
struct mlx_hub_listing;
mlx_status_t mlx_modelpack_unpack(const char *path, const char *folder,
                                  struct mlx_hub_listing *files) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_MODELPACK_H_
