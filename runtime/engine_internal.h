// Shared by engine.c, session.c and generate.c only.
#ifndef MLXCEL_RUNTIME_ENGINE_INTERNAL_H_
#define MLXCEL_RUNTIME_ENGINE_INTERNAL_H_

#include "artifact/archive.h"
#include "artifact/bundle.h"
#include "base/file.h"
#include "runtime/mlxcel.h"
#include "shim/shim.h"
#include "tokenizer/tokenizer.h"

struct mlx_engine {
  mlx_manifest_t manifest;
  const mlx_variant_t *variant;  // which of its code is loaded
  mlx_kernels_text_t kernels;
  mlx_levels_text_t levels;
  const char *level;  // whose module of a portable model is loaded; NULL: it is not portable
  mlx_tokenizer_t *tokenizer;
  mlx_chat_t *chat;         // NULL: the model has no chat template
  mlx_bundle_t *bundle;     // NULL: the parts come from the cache
  bool is_unsigned;         // a bundle that was allowed, and nobody vouches for
  mlx_map_t vmfb, weights;  // mapped as long as the program lives; views of the bundle where there is one
  mlx_archive_t archive;
  mlx_device_t *device;
  mlx_program_t *program;
  char device_reason[256], gpu_name[128];
  int64_t context;       // positions a session may use
  bool *sequence_taken;  // [rows]
  int32_t *free_pages;   // [pool_pages] a stack of pages nobody has; page 0 is never in it
  size_t free_page_count;
  struct mlx_vocabulary
      *vocabularies[2];  // of the first token and of later ones, once a grammar asked for them
};

// The vocabulary for a text's first token, or for later ones. Borrowed from the engine.
mlx_status_t mlx_engine_vocabulary(mlx_engine_t *engine, bool first,
                                   const struct mlx_vocabulary **out_vocabulary) MLX_MUST_USE;

// ---- variant.c: which of the manifest's code to run ----

bool mlx_variant_is_cpu(const mlx_variant_t *variant);
// Choose engine->variant, and of a portable one engine->level, for this machine's CPU or GPU; |name| is the
// model's, for errors. The level may be asked for, or NULL.
mlx_status_t mlx_choose_cpu(mlx_engine_t *engine, const char *name, const char *level) MLX_MUST_USE;
mlx_status_t mlx_choose_gpu(mlx_engine_t *engine, const char *name, const mlx_gpu_info_t *gpu) MLX_MUST_USE;
mlx_status_t mlx_variant_check_gpu(const char *name, const mlx_variant_t *variant,
                                   const mlx_gpu_info_t *gpu) MLX_MUST_USE;

struct mlx_session {
  mlx_engine_t *engine;
  int64_t row;
  int64_t length;      // positions written
  int32_t *ids;        // [context] the tokens at those positions
  bool has_choice;     // the device's token of this row is the model's choice after them
  int32_t choice;      // which one that is
  int32_t *pages;      // [row_pages] of this row; 0 where there is none yet
  int64_t page_count;  // pages held
};

// NULL when a session of |length| positions can read these tokens; else the error everybody gives.
mlx_status_t mlx_check_prompt(const int32_t *ids, size_t count, int64_t length, int64_t context,
                              int64_t vocab) MLX_MUST_USE;

// The largest group of tokens, at most |limit| (at least 1), that one call can choose.
size_t mlx_largest_group(const mlx_variant_t *variant, size_t limit);
// How many tokens the generate loop has chosen next when it has given |written| and may give |left| more (at
// least 1).
size_t mlx_next_group(const mlx_variant_t *variant, size_t written, size_t left);

#endif  // MLXCEL_RUNTIME_ENGINE_INTERNAL_H_
