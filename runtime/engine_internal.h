// struct mlx_engine, for the sources of runtime/ only.
#ifndef MLXCEL_RUNTIME_ENGINE_INTERNAL_H_
#define MLXCEL_RUNTIME_ENGINE_INTERNAL_H_

#include "artifact/archive.h"
#include "artifact/bundle.h"
#include "base/file.h"
#include "runtime/engine_stepper.h"
#include "runtime/mlxcel.h"
#include "runtime/pool.h"
#include "runtime/ranks.h"
#include "runtime/sizing.h"
#include "shim/shim.h"
#include "tokenizer/tokenizer.h"

struct mlx_engine {
  mlx_manifest_t manifest;
  const mlx_variant_t *variant;  // the loaded one of manifest.variants
  mlx_kernels_text_t kernels;
  mlx_levels_text_t levels;
  const char *level;  // portable model: the CPU level of the loaded module; NULL if it is not portable
  mlx_tokenizer_t *tokenizer;
  int32_t *prompt;  // tokens of the options' prompt; NULL if there was none
  size_t prompt_count;
  mlx_chat_t *chat;         // NULL if the model has no chat template
  mlx_bundle_t *bundle;     // NULL if the model comes from the cache
  bool is_unsigned;         // an untrusted bundle that was opened because of allow_unsigned
  mlx_map_t vmfb, weights;  // mapped as long as the program is loaded; views into the bundle if there is one.
                            // No weights if they were made while loading
  uint64_t weight_bytes;    // of all weights
  uint64_t token_weight_bytes;  // that a decode step reads
  mlx_device_t *device;
  mlx_device_program_t *program;
  char device_reason[256], gpu_name[128];
  int gpu;  // its number
  mlx_sizing_t sizing;
  mlx_stepper_t *stepper;
  mlx_stepper_t *ranks;  // of this engine and the others; NULL: the model is not divided
  struct mlx_engine *others[MLX_MOST_RANK_ENGINES];  // owned: the other ranks, from 1 on
  mlx_pool_t *pool;                                  // the pages and slots of |stepper|
  mlx_scheduler_t *scheduler;                        // of all sessions and requests
  // For grammars; NULL until first used. [1] is for the first token of a text, [0] for all later tokens.
  struct mlx_vocabulary *vocabularies[2];
};

// ---- engine.c

// Creates the scheduler on the engine's stepper, or on that of all ranks.
mlx_status_t mlx_engine_create_scheduler(mlx_engine_t *engine) MLX_MUST_USE;

// ---- embed_texts.c

// mlx_engine_embed for a model of any kind: what its network computes of each text.
mlx_status_t mlx_engine_compute(mlx_engine_t *engine, const int32_t *const *ids, const size_t *counts,
                                size_t count, float *out, size_t size,
                                bool (*on_done)(void *user, size_t done), void *user) MLX_MUST_USE;

#endif  // MLXCEL_RUNTIME_ENGINE_INTERNAL_H_
