// The entry of the CPU network kernel.
#ifndef MLXCEL_KERNELS_CPU_NETWORK_H_
#define MLXCEL_KERNELS_CPU_NETWORK_H_

#include <stdint.h>

// Operands, then numbers, in the order of compiler/emit_cpu.c. Every field has 8 bytes: this layout is the
// interface between a module and the kernel (compiler/build_linked.c writes the caller).
typedef struct mlx_network_arguments {
  const uint8_t *weights;
  const int32_t *plan;  // the program: mlx_program_t
  const int32_t *batch;
  int32_t *scratch, *history;
  uint8_t *kv;
  float *logits, *hidden;
  int32_t *results;
  int64_t is_burst;
  int64_t batch_words, history_words, kv_units;  // mlx_kv_unit
  int64_t logits_rows, hidden_rows, results_rows;
} mlx_network_arguments_t;

// Runs one workgroup of a call. Every workgroup of a call gets equal arguments.
void mlx_network_run(const mlx_network_arguments_t *arguments);

#endif  // MLXCEL_KERNELS_CPU_NETWORK_H_
