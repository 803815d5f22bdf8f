// ModelPack: models in registries that other tools pushed, with weights and tokenizer but no compiled code
// (CNCF model-spec v0.0.7).
//
// Layers with one raw file or an uncompressed tar archive become a folder like a hub model's. Compressed
// layers, files without a name, and names that point outside the folder are errors. Code, data sets and
// pickles are not downloaded.
#ifndef MLXCEL_TRANSFER_MODELPACK_H_
#define MLXCEL_TRANSFER_MODELPACK_H_

#include "base/report.h"
#include "transfer/store.h"

// Content of a layer, determined by its media type.
typedef enum mlx_layer_kind {
  MLX_LAYER_FILE,        // one raw file
  MLX_LAYER_TAR,         // an uncompressed tar archive
  MLX_LAYER_COMPRESSED,  // a compressed tar archive
  MLX_LAYER_SKIPPED,     // not downloaded: code, data sets, compressed documents
  MLX_LAYER_UNKNOWN,     // not a ModelPack media type
} mlx_layer_kind_t;
mlx_layer_kind_t mlx_modelpack_layer_kind(const char *media_type);

// True if the model is a bundle: its weights are an .irpa archive, for which compiled code was pushed.
bool mlx_modelpack_is_compiled(const mlx_oci_document_t *model);

typedef struct mlx_modelpack_options {
  const mlx_http_options_t *http;  // borrowed
  const char *output;              // path that must not exist; NULL for the cache (transfer/oci_cache.h)
  const mlx_report_t *report;      // may be NULL
} mlx_modelpack_options_t;

// Pulls |model|, the manifest with this |digest| that |ref| names in |store|. *|out_path| is the folder or
// GGUF file to open; release with mlx_free.
mlx_status_t mlx_modelpack_pull(mlx_store_t *store, const mlx_oci_ref_t *ref, const mlx_oci_document_t *model,
                                const char *digest, const mlx_modelpack_options_t *options,
                                char **out_path) MLX_MUST_USE;

// Returns the path to open for a pulled model: |folder|, or a GGUF file in it. Release with mlx_free.
mlx_status_t mlx_modelpack_find_main(const char *folder, const mlx_report_t *report,
                                     char **out_path) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_MODELPACK_H_
