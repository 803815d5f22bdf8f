// Emit: writes a model as an MLIR module with the functions of the contract between compiler and runtime
// (docs/architecture.md):
//
//   step_N   a forward pass over a batch of up to N tokens
//   burst    many tokens of one sequence in one call; only with the decode kernel
//
// kernels/step.h defines their arguments. Weights and KV pages have the dtype of the options; activations are
// f32. A module that is not ragged computes one segment per step, and its functions have one more argument,
// |chunks|: the number of chunks of MLX_CHUNK_POSITIONS positions that the segment's last position needs.
#ifndef MLXCEL_COMPILER_EMIT_H_
#define MLXCEL_COMPILER_EMIT_H_

#include "compiler/module_facts.h"
#include "compiler/module_options.h"

// The whole module as MLIR text. |graph|: the network of |model| for options->context. Release with mlx_free.
mlx_status_t mlx_module_emit(const mlx_model_t *model, const mlx_graph_t *graph,
                             const mlx_module_options_t *options, char **out_text,
                             size_t *out_length) MLX_MUST_USE;
// The same, and what the manifest states about the module.
mlx_status_t mlx_module_emit_sized(const mlx_model_t *model, const mlx_graph_t *graph,
                                   const mlx_module_options_t *options, char **out_text, size_t *out_length,
                                   mlx_module_facts_t *out_facts) MLX_MUST_USE;

// The error for an encoder on any path but the CPU kernel, which alone computes whole texts.
mlx_status_t mlx_encoder_needs_kernel(const mlx_model_t *model) MLX_MUST_USE;

#endif  // MLXCEL_COMPILER_EMIT_H_
