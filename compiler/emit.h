// Emit: writes a model as an MLIR module with the functions of the contract between compiler and runtime
// (docs/architecture.md):
//
//   prefill_T(tokens: S x T, start: S, count: S, pages: S x P) -> next token: S
//   decode_K(active: S, pages: S x P) -> the next K tokens: S x K
//   logits() -> S x vocab
//
// S is the number of sequences, P the pages per sequence. All tensors are i32 except the logits, which are
// f32. Weights and KV pages have the dtype of the options; activations are f32. State on the device: the KV
// pages of each layer, and each sequence's token, position and logits. |pages| lists the pool pages that hold
// a sequence's positions, in order. Page 0 belongs to no sequence: positions past |count| and inactive
// sequences write there, and an inactive sequence keeps its state.
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

#endif  // MLXCEL_COMPILER_EMIT_H_
