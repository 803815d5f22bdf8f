// Reads the rotary position embedding of a model: base, rotated dimensions and frequency scaling.
#ifndef MLXCEL_MODELS_SHARED_ROPE_H_
#define MLXCEL_MODELS_SHARED_ROPE_H_

#include "models/config.h"
#include "models/import/source.h"

// What an architecture's rope has besides the usual fields. Zero-initialise for Llama's rope.
typedef struct mlx_rope_fields {
  const char *group;         // object inside rope_parameters, if there is one per layer type; NULL: none
  const char *theta;         // name of the base outside rope_parameters; NULL: "rope_theta"
  const char *gguf_theta;    // NULL: ".rope.freq_base"
  const char *gguf_dims;     // NULL: ".rope.dimension_count"
  int64_t head_dim;          // of the layers; 0: that of the config
  bool proportional;         // type "proportional" is supported: Gemma 4's
  const char *default_type;  // NULL: "default"
  double default_theta;      // 0: 10000
  double fixed_theta;        // the base, whatever the fields say; 0: none
  const char *partial;  // name of the rotated share of a head outside rope_parameters; NULL: all dims rotate
  double default_partial;  // 0: 1
  const char *alpha;       // field that turns type "dynamic" into a fixed scaling of the base; NULL: none
  bool ntk;                // type "ntk" is supported: GTE's
  bool adjacent;           // as in mlx_rope_t
  bool mscales;            // a longrope has short_mscale and long_mscale, which multiply cosines and sines
  bool unscaled;           // rope_scaling does not apply
  bool gguf_untruncated;   // yarn does not round its range to whole pairs; GGUF has no field for this
  bool
      gguf_log_tenth;  // GGUF: yarn's log multiplier is a tenth of mscale_all_dim, and mscale is equal to that
} mlx_rope_fields_t;

// Supports the scaling types default, linear, dynamic, yarn, llama3 and longrope. Call after mlx_read_sizes.
// A proportional rope rotates all dims of a head, most of them by an angle of 0: its frequencies are those of
// the whole head, and the last ones are 0.
// A longrope also fills c->local_rope and c->local_context.
mlx_status_t mlx_read_rope(const mlx_source_t *source, const mlx_rope_fields_t *fields, mlx_config_t *c,
                           mlx_rope_t *out) MLX_MUST_USE;

// layer_rope_theta, a list of config.json: the base of each layer, 0 for a layer without a rope (c->no_rope).
// All other bases must be equal: out->fixed_theta. Without the list nothing changes.
mlx_status_t mlx_read_layer_ropes(const mlx_source_t *source, mlx_config_t *c,
                                  mlx_rope_fields_t *out) MLX_MUST_USE;

// 0.1 * mscale_all_dim * log(factor) + 1 of a rope with yarn, by whose square DeepSeek's attention multiplies
// the scores; 1 without yarn or mscale_all_dim.
mlx_status_t mlx_read_yarn_mscale(const mlx_source_t *source, const mlx_rope_fields_t *fields,
                                  double *out) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_SHARED_ROPE_H_
