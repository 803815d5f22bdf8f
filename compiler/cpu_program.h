// CPU program: translates a graph into the program that the CPU kernel interprets (kernels/cpu/layout.h).
#ifndef MLXCEL_COMPILER_CPU_PROGRAM_H_
#define MLXCEL_COMPILER_CPU_PROGRAM_H_

#include "compiler/module_options.h"
#include "kernels/cpu/layout.h"

typedef struct mlx_cpu_program {
  const char *unsupported;  // static text: the first feature that the kernel does not have; NULL: none. The
                            // rest is valid only if it is NULL.
  mlx_program_t header;
  mlx_phase_t *phases;              // owned
  mlx_instruction_t *instructions;  // owned
  float *floats;                    // owned
  uint64_t archive_bytes;           // size of the weights
} mlx_cpu_program_t;

// A network that the kernel does not support is no error: see |unsupported|. |cpu_level| decides whether AMX
// tiles are used. Release with mlx_cpu_program_clear.
mlx_status_t mlx_cpu_program_make(const mlx_model_t *model, const mlx_graph_t *graph,
                                  const mlx_module_options_t *options, const char *cpu_level,
                                  mlx_cpu_program_t *out_program) MLX_MUST_USE;
void mlx_cpu_program_clear(mlx_cpu_program_t *program);

// The program as 32-bit words. Release with mlx_free.
mlx_status_t mlx_cpu_program_write(const mlx_cpu_program_t *program, int32_t **out_words,
                                   int64_t *out_count) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_CPU_PROGRAM_H_
