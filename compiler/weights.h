// Weights: a model's weights in the layout that the compiled module reads. They are written as one archive,
// or packed while they are copied to a GPU.
#ifndef MLXCEL_COMPILER_WEIGHTS_H_
#define MLXCEL_COMPILER_WEIGHTS_H_

#include "base/weight_reader.h"
#include "cache/cache.h"
#include "compiler/storage.h"

// Part of the cache key. Change it whenever the bytes written for the same model change.
#define MLX_WEIGHTS_LAYOUT "rows as Hugging Face has them, vectors f32, irpa 1"
#define MLX_PANELS_LAYOUT "panels of 16 rows, codes of 4 to 8 bits, bf16 in pairs, vectors f32, irpa 5"
#define MLX_TILES_LAYOUT "tiles of 8 rows, vectors f32, irpa 3"

// Bytes of one weight in the archive: a multiple of 4, without alignment.
uint64_t mlx_weight_stored_bytes(const mlx_weight_t *weight, mlx_storage_t storage);

// Byte offset of each weight, relative to the first; |out_offsets| has room for all. Returns the bytes from
// the start of the first to the end of the last: the size of MLX_WHOLE_ARCHIVE.
uint64_t mlx_weights_layout(const mlx_model_t *model, mlx_storage_t storage, uint64_t *out_offsets);

// ---- packing ----

// A packer is a weight reader of the archive's data: the bytes from the start of the first weight to the end
// of the last. Zeros fill the gaps between weights. Rows have Hugging Face's order. A tensor that already has
// the stored type keeps its exact bits. Reading a weight that is not finite fails.
typedef struct mlx_packer mlx_packer_t;

// |model| must outlive the packer; |storage| is not used later. Release with mlx_packer_free.
mlx_status_t mlx_packer_create(const mlx_model_t *model, mlx_storage_t storage, int workers,
                               mlx_packer_t **out_packer) MLX_MUST_USE;
void mlx_packer_free(mlx_packer_t *packer);                                // NULL is fine
const mlx_weight_reader_t *mlx_packer_reader(const mlx_packer_t *packer);  // borrowed from the packer

// Whether packing takes about as long as copying, so that it can be done at every load: 2 to 9 billion
// weights per second and CPU. Codes of GPTQ, AWQ and MLX directories are converted one by one (0.2 to 0.4
// billion), and quantizing takes longer (0.03).
bool mlx_weights_pack_fast(const mlx_model_t *model, mlx_storage_t storage);

// ---- the archive (weights_write.c) ----

// Writes every weight to |path| as mlx_weight_stored decides.
mlx_status_t mlx_weights_write(const mlx_model_t *model, mlx_storage_t storage, const char *path,
                               const mlx_report_t *report) MLX_MUST_USE;
// The same, and sets the size and the digests of |out_file|. |wants_sha256| as for mlx_archive_create.
mlx_status_t mlx_weights_write_hashed(const mlx_model_t *model, mlx_storage_t storage, const char *path,
                                      bool wants_sha256, const mlx_report_t *report,
                                      mlx_cache_hashed_file_t *out_file) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_WEIGHTS_H_
