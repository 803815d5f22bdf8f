// CPU writer: the state of writing one CPU program: its phases, and where each value is. Internal to
// compiler/.
#ifndef MLXCEL_COMPILER_CPU_WRITER_H_
#define MLXCEL_COMPILER_CPU_WRITER_H_

#include "compiler/cpu_program.h"
#include "compiler/launches.h"
#include "compiler/scratch.h"

#define MLX_CPU_MAX_ROPES 8

// The result of a node in the scratch tensor.
typedef struct mlx_cpu_value {
  mlx_program_buffer_t buffer;
  int view_of;         // node id whose place this is a part of; 0: its own
  int remaining;       // uses that are not written yet
  int64_t read_phase;  // last phase that reads it, or -1
  int64_t kv_at;       // of attention that stores keys and values: where they are in a page
} mlx_cpu_value_t;

typedef struct mlx_cpu_writer {
  const mlx_model_t *model;
  const mlx_graph_t *graph;
  const mlx_module_options_t *options;
  mlx_storage_t storage;
  mlx_cpu_program_t *program;
  mlx_launches_t launches;  // owned
  mlx_scratch_t scratch;
  uint64_t *offsets;        // owned; of the weights in the archive
  mlx_cpu_value_t *values;  // owned; node id - 1
  const mlx_rope_t *ropes[MLX_CPU_MAX_ROPES];
  mlx_program_buffer_t rope_tables[MLX_CPU_MAX_ROPES];
  size_t rope_count;
  int spread_weight;            // node id of the weight of |spread|; 0: none
  mlx_program_buffer_t spread;  // its biases by distance
  size_t phase_capacity, instruction_capacity, float_capacity;
} mlx_cpu_writer_t;

// Whether an instruction can share the phase of the last one. Otherwise starts a new phase: places that were
// released become free. Call before taking a place for its result.
mlx_status_t mlx_cpu_begin(mlx_cpu_writer_t *w, const mlx_instruction_t *instruction) MLX_MUST_USE;
mlx_status_t mlx_cpu_append(mlx_cpu_writer_t *w, const mlx_instruction_t *instruction) MLX_MUST_USE;

mlx_cpu_value_t *mlx_cpu_value(mlx_cpu_writer_t *w, int id);
mlx_rows_t mlx_cpu_rows(const mlx_node_t *node);  // of its result
int64_t mlx_cpu_width(const mlx_node_t *node);
mlx_program_weight_t mlx_cpu_weight(const mlx_cpu_writer_t *w, int id);  // of a weight node; 0: none
// Takes a place for the result of node |id|, with bf16 parts if products read it on tiles.
mlx_status_t mlx_cpu_take(mlx_cpu_writer_t *w, int id, mlx_program_buffer_t *out_buffer) MLX_MUST_USE;
// The buffer of node |id|, which the instruction that is being written reads. The last use releases it.
mlx_status_t mlx_cpu_read(mlx_cpu_writer_t *w, int id, mlx_program_buffer_t *out_buffer) MLX_MUST_USE;
// Whether node |id| has its own place, and the instruction that is being written is its last use.
bool mlx_cpu_is_last_use(mlx_cpu_writer_t *w, int id);
// As mlx_cpu_take, in the place of |from|, which the instruction reads and writes element by element.
mlx_status_t mlx_cpu_take_over(mlx_cpu_writer_t *w, int id, int from,
                               mlx_program_buffer_t *out_buffer) MLX_MUST_USE;
mlx_status_t mlx_cpu_unsupported(mlx_cpu_writer_t *w, const char *feature) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_CPU_WRITER_H_
