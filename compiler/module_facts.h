// Module facts: what the runtime must know about an emitted module (kernels/step.h). The emitter of a path
// fills it; compile_manifest.c writes it into the manifest.
#ifndef MLXCEL_COMPILER_MODULE_FACTS_H_
#define MLXCEL_COMPILER_MODULE_FACTS_H_

#include "artifact/manifest.h"

typedef struct mlx_module_facts {
  mlx_step_size_t steps[MLX_MAX_BUCKETS];  // each step_N with its W; N ascending
  size_t step_count;
  int64_t burst;            // MLX_BURST_TOKENS if the module has the function burst; else 0
  bool ragged;              // a step takes several segments; false: one segment, and functions have a last
                            // argument i32 |chunks|
  bool samples;             // step_N samples on the device and fills |results| and |history|; false: the host
                            // reads the logits and samples
  bool fixed_rows;          // arguments have fixed first dimensions (kernels/step.h); false: any
  int64_t chunk_positions;  // positions in a chunk of generic attention; 0 if there is none
  int64_t page_bytes;       // bytes of one page of the KV pool
  int64_t window_page_bytes;  // bytes of one window page; 0: there are none
  int64_t recurrent_bytes;    // bytes of one state (kernels/step.h); 0: there are none
  int64_t kv_row;  // innermost dimension of |kv|, whose numbers have the dtype of the manifest's "kv";
                   // 0: |kv| is a vector of i32
  int64_t hidden;  // hidden size: numbers in a row of |hidden|
  // The routes that a step can report (kernels/step.h): |route_used| experts in each of |route_layers|
  // layers; 0: none.
  int64_t route_layers, route_used;
  int64_t state_bytes;  // device memory of the module's own globals: scratch
} mlx_module_facts_t;

#endif  // MLXCEL_COMPILER_MODULE_FACTS_H_
