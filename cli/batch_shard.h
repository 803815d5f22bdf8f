// Shard: the part of a batch that this process does, if several processes share it.
#ifndef MLXCEL_CLI_BATCH_SHARD_H_
#define MLXCEL_CLI_BATCH_SHARD_H_

#include <stdint.h>

#include "base/status.h"

typedef struct mlx_shard {
  uint64_t index, count;  // index < count
  const char *source;     // constant: what chose it, for messages; NULL: nothing, there is one shard
} mlx_shard_t;

// From |text|, "INDEX/COUNT" with an index from 0, or if it is NULL from the environment: the tasks of a
// Slurm array (SLURM_ARRAY_TASK_ID), the processes of Open MPI (OMPI_COMM_WORLD_RANK) or of srun
// (SLURM_PROCID). An array whose tasks have several processes has shards for all of them.
mlx_status_t mlx_shard_choose(const char *text, mlx_shard_t *out_shard) MLX_MUST_USE;

// The requests of the shard are those from |*out_first| on, up to |*out_end|, of |total|: neighbours, so that
// the results of all shards one after the other are those of one process.
void mlx_shard_range(const mlx_shard_t *shard, uint64_t total, uint64_t *out_first, uint64_t *out_end);

#endif  // MLXCEL_CLI_BATCH_SHARD_H_
