// Weights: a model's weights in the layout that the compiled module reads. They are written as one archive,
// or packed while they are copied to a GPU.
#ifndef MLXCEL_COMPILER_WEIGHTS_H_
#define MLXCEL_COMPILER_WEIGHTS_H_

#include "base/digest.h"
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

// Produces any range of the archive's data: the bytes from the start of the first weight to the end of the
// last. Zeros fill the gaps between weights. Rows have Hugging Face's order. A tensor that already has the
// stored type keeps its exact bits.
//
// Threads: the workers may read at the same time, each on one thread at a time.
typedef struct mlx_packer mlx_packer_t;

// |model| must outlive the packer; |storage| is not used later. Release with mlx_packer_free.
mlx_status_t mlx_packer_create(const mlx_model_t *model, mlx_storage_t storage, int workers,
                               mlx_packer_t **out_packer) MLX_MUST_USE;
void mlx_packer_free(mlx_packer_t *packer);                                 // NULL is fine
uint64_t mlx_packer_size(const mlx_packer_t *packer);                       // bytes of the data
uint64_t mlx_packer_size_of(const mlx_packer_t *packer, const char *name);  // of one weight; 0: there is none
// Writes |length| bytes of the data at |offset|, which is a multiple of MLX_ARCHIVE_ALIGNMENT, to |out|.
// Fails for a weight that is not finite. |worker| is below the number given to mlx_packer_create.
mlx_status_t mlx_packer_read(mlx_packer_t *packer, int worker, uint64_t offset, size_t length,
                             void *out) MLX_MUST_USE;

// Whether packing takes about as long as copying, so that it can be done at every load: 2 to 9 billion
// weights per second and CPU. Codes of GPTQ, AWQ and MLX directories are converted one by one (0.2 to 0.4
// billion), and quantizing takes longer (0.03).
bool mlx_weights_pack_fast(const mlx_model_t *model, mlx_storage_t storage);

// ---- the archive (weights_write.c) ----

// Writes every weight to |path| as mlx_weight_stored decides.
mlx_status_t mlx_weights_write(const mlx_model_t *model, mlx_storage_t storage, const char *path,
                               const mlx_report_t *report) MLX_MUST_USE;
// The same, and computes the digests of the archive while it is written.
mlx_status_t mlx_weights_write_hashed(const mlx_model_t *model, mlx_storage_t storage, const char *path,
                                      const mlx_report_t *report, uint64_t *out_size,
                                      mlx_file_digests_t *out_digests) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_WEIGHTS_H_
