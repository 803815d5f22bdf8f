// Rotary frequencies of every scaling type, computed in f32 in the same steps as Hugging Face's
// modeling_rope_utils.py, so that the results are equal to the bit.
#include "models/shared/rope.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// ----------------------------------------------------------------------------------------------------------
// Names of the fields

typedef struct rope_key {
  char text[128];
} rope_key_t;

// The key of |name|: in rope_parameters, which transformers 5 writes, or in rope_scaling of older versions.
static rope_key_t key_of(const mlx_source_t *source, const mlx_rope_fields_t *f, const char *name) {
  rope_key_t key;
  snprintf(key.text, sizeof key.text, "rope_parameters.%s%s%s", f->group ? f->group : "", f->group ? "." : "",
           name);
  if (mlx_source_has(source, key.text, NULL) || f->unscaled) return key;
  rope_key_t old;
  snprintf(old.text, sizeof old.text, "rope_scaling.%s", name);
  return mlx_source_has(source, old.text, NULL) ? old : key;
}

static mlx_status_t rope_number(const mlx_source_t *source, const mlx_rope_fields_t *f, const char *name,
                                const char *gguf_key, double *out, bool *out_found) {
  return mlx_source_number(source, key_of(source, f, name).text, gguf_key, out, out_found);
}

static mlx_status_t positive(const mlx_source_t *source, const mlx_rope_fields_t *f, const char *name,
                             const char *gguf_key, double value) {
  if (value > 0.0) return NULL;
  return mlx_source_field_error(source, key_of(source, f, name).text, gguf_key, MLX_INVALID_INPUT,
                                "must be greater than 0");
}

static mlx_status_t read_type(const mlx_source_t *source, const mlx_rope_fields_t *f, const char **out_type) {
  static const char *const names[] = {"rope_type", "type"};
  bool found = false;
  *out_type = f->default_type ? f->default_type : "default";
  if (f->unscaled && mlx_source_is_gguf(source)) return NULL;
  for (int i = 0; i < 2 && !found; ++i) {
    MLX_TRY(mlx_source_string(source, key_of(source, f, names[i]).text, i ? NULL : ".rope.scaling.type",
                              out_type, &found));
  }
  // A factor without a type means linear scaling in some files and no scaling in others.
  static const char *const factors[][2] = {{"rope_scaling", ".rope.scaling.factor"},
                                           {NULL, ".rope.scale_linear"}};
  for (int i = 0; i < 2 && !found && !f->unscaled; ++i) {
    if (!mlx_source_has(source, factors[i][0], factors[i][1])) continue;
    return mlx_source_field_error(source, factors[i][0], factors[i][1], MLX_UNSUPPORTED,
                                  "is given without a scaling type");
  }
  if (!strcmp(*out_type, "none")) {
    (void)mlx_source_has(source, NULL, ".rope.scaling.factor");  // unused, so mark it as read
    *out_type = "default";
  }
  // Three positions per token, which are equal for text (models/import/hf_text.c).
  if (!strcmp(*out_type, "mrope")) *out_type = "default";
  if (!strcmp(*out_type, "su")) *out_type = "longrope";  // the name in the first Phi-3 files
  return NULL;
}

static mlx_status_t read_theta(const mlx_source_t *source, const mlx_rope_fields_t *f, double *out) {
  const char *name = f->theta ? f->theta : "rope_theta",
             *gguf_name = f->gguf_theta ? f->gguf_theta : ".rope.freq_base";
  bool found;
  // The default of the Hugging Face class does not apply to GGUF, which has one default for all.
  *out = f->default_theta > 0.0 && !mlx_source_is_gguf(source) ? f->default_theta : 10000.0;
  MLX_TRY(mlx_source_number(source, name, gguf_name, out, &found));
  if (!found) MLX_TRY(rope_number(source, f, "rope_theta", NULL, out, &found));
  if (f->fixed_theta > 0.0) *out = f->fixed_theta;
  if (*out > 1.0) return NULL;
  return mlx_source_field_error(source, name, gguf_name, MLX_INVALID_INPUT, "must be greater than 1");
}

// The number of rotated dims of a head.
static mlx_status_t read_dims(const mlx_source_t *source, const mlx_rope_fields_t *f, const mlx_config_t *c,
                              int64_t *out) {
  const char *names[] = {f->partial ? f->partial : "partial_rotary_factor",
                         "rope_parameters.partial_rotary_factor"};
  double share = f->default_partial > 0.0 && !f->proportional ? f->default_partial : 1.0;
  bool found = false;
  for (int i = 0; i < 2; ++i) {
    MLX_TRY(mlx_source_number(source, names[i], NULL, &share, &found));
    if (found && ((!f->partial && share != 1.0) || !(share > 0.0 && share <= 1.0))) {
      return mlx_source_field_error(source, names[i], NULL, MLX_UNSUPPORTED,
                                    "is %g; this architecture cannot rotate that share of a head", share);
    }
  }
  const int64_t head_dim = f->head_dim ? f->head_dim : c->head_dim;
  const char *gguf_key = f->gguf_dims ? f->gguf_dims : ".rope.dimension_count";
  *out = (int64_t)((double)head_dim * share);
  MLX_TRY(mlx_source_int(source, NULL, gguf_key, 2, head_dim, out, &found));
  if (*out > 2 * MLX_MAX_FREQUENCIES)
    return mlx_source_field_error(source, names[0], gguf_key, MLX_UNSUPPORTED,
                                  "means %lld dimensions; at most %d are supported", (long long)*out,
                                  2 * MLX_MAX_FREQUENCIES);
  if (*out >= 2 && *out % 2 == 0 && (f->partial || *out == head_dim)) return NULL;
  return mlx_source_field_error(
      source, names[0], gguf_key, MLX_UNSUPPORTED,
      "means %lld of %lld dimensions; this architecture cannot rotate that share of a head", (long long)*out,
      (long long)head_dim);
}

// ----------------------------------------------------------------------------------------------------------
// Frequencies

// theta^(2i / dims), the inverse of the unscaled frequency of pair |i|.
static float power(double theta, int64_t i, int64_t dims) {
  return (float)pow((double)(float)theta, (double)((float)(2 * i) / (float)dims));
}

static mlx_status_t scale_linear(const mlx_source_t *source, const mlx_rope_fields_t *f, mlx_rope_t *rope) {
  double factor;
  MLX_TRY(rope_number(source, f, "factor", ".rope.scaling.factor", &factor, NULL));
  MLX_TRY(positive(source, f, "factor", ".rope.scaling.factor", factor));
  for (int64_t i = 0; i < rope->dims / 2; ++i) rope->frequencies[i] /= (float)factor;
  return NULL;
}

// The context length before scaling, original_max_position_embeddings.
static mlx_status_t read_original(const mlx_source_t *source, const mlx_rope_fields_t *f,
                                  const mlx_config_t *c, double *out) {
  bool found;
  *out = (double)c->context;
  MLX_TRY(mlx_source_number(source, "original_max_position_embeddings", NULL, out, &found));
  MLX_TRY(rope_number(source, f, "original_max_position_embeddings", ".rope.scaling.original_context_length",
                      out, &found));
  return positive(source, f, "original_max_position_embeddings", ".rope.scaling.original_context_length",
                  *out);
}

// Divides the low frequencies by the factor, keeps the high ones and interpolates between them.
static mlx_status_t scale_llama3(const mlx_source_t *source, const mlx_rope_fields_t *f,
                                 const mlx_config_t *c, mlx_rope_t *rope) {
  double factor, low, high, original;
  MLX_TRY(rope_number(source, f, "factor", NULL, &factor, NULL));
  MLX_TRY(rope_number(source, f, "low_freq_factor", NULL, &low, NULL));
  MLX_TRY(rope_number(source, f, "high_freq_factor", NULL, &high, NULL));
  MLX_TRY(read_original(source, f, c, &original));
  MLX_TRY(positive(source, f, "factor", NULL, factor));
  MLX_TRY(positive(source, f, "low_freq_factor", NULL, low));
  MLX_TRY(positive(source, f, "high_freq_factor", NULL, high));
  for (int64_t i = 0; i < rope->dims / 2; ++i) {
    const float plain = rope->frequencies[i], wavelength = (float)(2 * M_PI) / plain;
    if (wavelength < (float)(original / high)) continue;
    if (wavelength > (float)(original / low)) {
      rope->frequencies[i] = plain / (float)factor;
    } else {
      const float smooth = ((float)original / wavelength - (float)low) / (float)(high - low);
      rope->frequencies[i] = (1 - smooth) * plain / (float)factor + smooth * plain;
    }
  }
  return NULL;
}

typedef struct yarn {
  double factor, original;
  double fast, slow;  // beta_fast and beta_slow: rotations over the original context
  bool truncate;      // round the range to whole pairs
} yarn_t;

// mscale_all_dim; 0: the file has none.
static mlx_status_t read_all_dim(const mlx_source_t *source, const mlx_rope_fields_t *f, double *out) {
  bool found;
  *out = 0;
  MLX_TRY(rope_number(source, f, "mscale_all_dim", ".rope.scaling.yarn_log_multiplier", out, &found));
  if (f->gguf_log_tenth && mlx_source_is_gguf(source)) *out *= 10;
  return NULL;
}

// yarn's attention factor, which scales cosines and sines.
static mlx_status_t yarn_scale(const mlx_source_t *source, const mlx_rope_fields_t *f, double factor,
                               double *out) {
  double mscale = 0, all_dim = 0, attn_factor = 1, ext_factor = 1;
  bool found;
  const double log_factor = factor > 1.0 ? log(factor) : 0.0;
  if (mlx_source_has(source, NULL, ".rope.scaling.yarn_log_multiplier"))
    mscale = 1;  // GGUF has no field for mscale
  MLX_TRY(rope_number(source, f, "mscale", NULL, &mscale, &found));
  MLX_TRY(read_all_dim(source, f, &all_dim));
  if (f->gguf_log_tenth && mlx_source_is_gguf(source)) mscale = all_dim;
  *out = 0.1 * log_factor + 1.0;
  if (mscale != 0.0 && all_dim != 0.0)
    *out = (0.1 * mscale * log_factor + 1.0) / (0.1 * all_dim * log_factor + 1.0);
  MLX_TRY(rope_number(source, f, "attention_factor", ".rope.scaling.yarn_attn_factor", out, &found));
  MLX_TRY(mlx_source_number(source, NULL, ".rope.scaling.yarn_ext_factor", &ext_factor, &found));
  if (ext_factor != 1.0) {
    return mlx_source_field_error(source, NULL, ".rope.scaling.yarn_ext_factor", MLX_UNSUPPORTED,
                                  "is %g; only 1 is supported", ext_factor);
  }
  MLX_TRY(mlx_source_number(source, NULL, ".rope.scaling.attn_factor", &attn_factor, &found));
  *out *= attn_factor;
  return NULL;
}

// The pair that makes |rotations| full rotations over the original context.
static double yarn_pair(const yarn_t *y, double rotations, int64_t dims, double theta) {
  return (double)dims * log(y->original / (rotations * 2 * M_PI)) / (2 * log(theta));
}

// Interpolates between scaled and unscaled frequencies over the pairs from |fast| to |slow| rotations.
static void interpolate_yarn(const yarn_t *y, double theta, mlx_rope_t *rope) {
  double low = yarn_pair(y, y->fast, rope->dims, theta), high = yarn_pair(y, y->slow, rope->dims, theta);
  if (y->truncate) {
    low = floor(low);
    high = ceil(high);
  }
  low = fmax(low, 0);
  high = fmin(high, (double)(rope->dims - 1));
  if (low == high) high += 0.001;
  for (int64_t i = 0; i < rope->dims / 2; ++i) {
    const float plain = power(theta, i, rope->dims), ramp = ((float)i - (float)low) / (float)(high - low);
    const float scaled = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp, kept = 1 - scaled;
    rope->frequencies[i] = 1.0f / ((float)y->factor * plain) * (1 - kept) + 1.0f / plain * kept;
  }
}

static mlx_status_t scale_yarn(const mlx_source_t *source, const mlx_rope_fields_t *f, const mlx_config_t *c,
                               double theta, mlx_rope_t *rope) {
  yarn_t y = {.fast = 32, .slow = 1, .truncate = !(f->gguf_untruncated && mlx_source_is_gguf(source))};
  bool found;
  MLX_TRY(read_original(source, f, c, &y.original));
  y.factor = (double)c->context / y.original;
  MLX_TRY(rope_number(source, f, "factor", ".rope.scaling.factor", &y.factor, &found));
  MLX_TRY(positive(source, f, "factor", ".rope.scaling.factor", y.factor));
  MLX_TRY(rope_number(source, f, "beta_fast", ".rope.scaling.yarn_beta_fast", &y.fast, &found));
  MLX_TRY(rope_number(source, f, "beta_slow", ".rope.scaling.yarn_beta_slow", &y.slow, &found));
  MLX_TRY(positive(source, f, "beta_fast", ".rope.scaling.yarn_beta_fast", y.fast));
  MLX_TRY(positive(source, f, "beta_slow", ".rope.scaling.yarn_beta_slow", y.slow));
  MLX_TRY(mlx_source_bool(source, key_of(source, f, "truncate").text, NULL, &y.truncate, &found));
  MLX_TRY(yarn_scale(source, f, y.factor, &rope->scale));
  interpolate_yarn(&y, theta, rope);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Scaling by a list of factors, one per pair

// The factors are the array |name| of config.json or the GGUF tensor |tensor_name|.
static mlx_status_t divide_by_list(const mlx_source_t *source, const mlx_rope_fields_t *f, const char *name,
                                   const char *tensor_name, double theta, mlx_rope_t *rope) {
  float factors[MLX_MAX_FREQUENCIES];
  const int64_t pairs = rope->dims / 2;
  if (mlx_source_is_gguf(source)) {
    const mlx_tensor_t *tensor = mlx_source_tensor(source, NULL, tensor_name);
    if (!tensor || tensor->rank != 1 || tensor->dims[0] != pairs || tensor->dtype != MLX_F32) {
      return mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s' must hold %lld F32 values",
                       mlx_source_path(source), tensor_name, (long long)pairs);
    }
    memcpy(factors, tensor->data, tensor->size);
  } else {
    const rope_key_t key = key_of(source, f, name);
    if (mlx_source_array_length(source, key.text, NULL) != (size_t)pairs) {
      return mlx_source_field_error(source, key.text, NULL, MLX_INVALID_INPUT, "must have %lld numbers",
                                    (long long)pairs);
    }
    for (int64_t i = 0; i < pairs; ++i) {
      double number;
      MLX_TRY(mlx_source_number_at(source, key.text, NULL, (size_t)i, &number));
      factors[i] = (float)number;
    }
  }
  for (int64_t i = 0; i < pairs; ++i)
    rope->frequencies[i] = 1.0f / (factors[i] * power(theta, i, rope->dims));
  return NULL;
}

// Two lists of factors: one for contexts up to the original context length, one for longer contexts.
static mlx_status_t scale_longrope(const mlx_source_t *source, const mlx_rope_fields_t *f, mlx_config_t *c,
                                   double theta, mlx_rope_t *rope) {
  double original;
  bool found;
  MLX_TRY(read_original(source, f, c, &original));
  double factor = (double)c->context / original;
  MLX_TRY(rope_number(source, f, "factor", NULL, &factor, &found));
  rope->scale = factor <= 1.0 ? 1.0 : sqrt(1.0 + log(factor) / log(original));
  MLX_TRY(rope_number(source, f, "attention_factor", ".rope.scaling.attn_factor", &rope->scale, &found));
  c->local_context = (int64_t)original;
  c->local_rope = *rope;
  if (f->mscales && !mlx_source_is_gguf(source)) {
    MLX_TRY(rope_number(source, f, "short_mscale", NULL, &c->local_rope.scale, NULL));
    MLX_TRY(rope_number(source, f, "long_mscale", NULL, &rope->scale, NULL));
  }
  MLX_TRY(divide_by_list(source, f, "short_factor", "rope_factors_short.weight", theta, &c->local_rope));
  return divide_by_list(source, f, "long_factor", "rope_factors_long.weight", theta, rope);
}

// Only the first pairs of a head rotate, by the frequencies that they have in the whole head.
static mlx_status_t scale_proportional(const mlx_source_t *source, const mlx_rope_fields_t *f,
                                       mlx_rope_t *rope) {
  double factor = 1.0, share = f->default_partial > 0.0 ? f->default_partial : 1.0;
  bool found;
  MLX_TRY(rope_number(source, f, "factor", NULL, &factor, &found));
  MLX_TRY(positive(source, f, "factor", NULL, factor));
  MLX_TRY(rope_number(source, f, "partial_rotary_factor", NULL, &share, &found));
  if (!(share >= 0.0 && share <= 1.0))
    return mlx_source_field_error(source, key_of(source, f, "partial_rotary_factor").text, NULL,
                                  MLX_INVALID_INPUT, "must be in [0, 1]");
  const int64_t rotated = (int64_t)floor(share * (double)rope->dims / 2);
  for (int64_t i = 0; i < rope->dims / 2; ++i)
    rope->frequencies[i] = i < rotated ? rope->frequencies[i] / (float)factor : 0;
  return NULL;
}

// GGUF files have the same as factors: pairs that do not rotate have one of at least this number.
#define GGUF_NO_ROTATION 1e30f

static mlx_status_t scale_proportional_list(const mlx_source_t *source, const mlx_rope_fields_t *f,
                                            double theta, mlx_rope_t *rope) {
  MLX_TRY(divide_by_list(source, f, "", "rope_freqs.weight", theta, rope));
  for (int64_t i = 0; i < rope->dims / 2; ++i)
    if (rope->frequencies[i] <= 1 / GGUF_NO_ROTATION) rope->frequencies[i] = 0;
  return NULL;
}

// GTE's NTK scaling multiplies the base, and divides all frequencies by factor^(2 / dims).
static mlx_status_t scale_ntk(const mlx_source_t *source, const mlx_rope_fields_t *f, double theta,
                              mlx_rope_t *rope) {
  double factor = 1.0;
  bool found;
  MLX_TRY(rope_number(source, f, "factor", NULL, &factor, &found));
  MLX_TRY(positive(source, f, "factor", NULL, factor));
  if (mlx_source_has(source, key_of(source, f, "mixed_b").text, NULL))
    return mlx_source_field_error(source, key_of(source, f, "mixed_b").text, NULL, MLX_UNSUPPORTED,
                                  "is not null, which is not supported");
  const float divisor = (float)pow(factor, 2.0 / (double)rope->dims);
  for (int64_t i = 0; i < rope->dims / 2; ++i)
    rope->frequencies[i] = 1.0f / power(theta * factor, i, rope->dims) / divisor;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The whole rope

static mlx_status_t scale_rope(const mlx_source_t *source, const mlx_rope_fields_t *f, const char *type,
                               double theta, mlx_config_t *c, mlx_rope_t *rope) {
  if (mlx_source_tensor(source, NULL, "rope_factors_long.weight"))
    return scale_longrope(source, f, c, theta, rope);
  const bool has_list = mlx_source_tensor(source, NULL, "rope_freqs.weight") && !f->unscaled;
  if (has_list && f->proportional) return scale_proportional_list(source, f, theta, rope);
  if (has_list) return divide_by_list(source, f, "", "rope_freqs.weight", theta, rope);
  if (!strcmp(type, "default")) return NULL;
  // dynamic equals default up to the model's context length, and longer contexts are not allowed.
  if (!strcmp(type, "dynamic")) return NULL;
  if (!strcmp(type, "proportional") && f->proportional) return scale_proportional(source, f, rope);
  if (!strcmp(type, "ntk") && f->ntk) return scale_ntk(source, f, theta, rope);
  if (!strcmp(type, "linear")) return scale_linear(source, f, rope);
  if (!strcmp(type, "llama3")) return scale_llama3(source, f, c, rope);
  if (!strcmp(type, "yarn")) return scale_yarn(source, f, c, theta, rope);
  if (!strcmp(type, "longrope")) return scale_longrope(source, f, c, theta, rope);
  return mlx_source_field_error(source, key_of(source, f, "rope_type").text, ".rope.scaling.type",
                                MLX_UNSUPPORTED, "is '%s', an unsupported rope scaling type", type);
}

// Hunyuan: type "dynamic" with alpha scales the base once, independent of the context.
static mlx_status_t scale_theta(const mlx_source_t *source, const mlx_rope_fields_t *f, const char *type,
                                int64_t dims, double *theta) {
  double alpha = 0;
  bool found;
  if (!f->alpha || strcmp(type, "dynamic")) return NULL;
  MLX_TRY(rope_number(source, f, f->alpha, NULL, &alpha, &found));
  if (alpha > 0.0 && dims > 2) *theta *= pow(alpha, (double)dims / (double)(dims - 2));
  return NULL;
}

mlx_status_t mlx_read_rope(const mlx_source_t *source, const mlx_rope_fields_t *fields, mlx_config_t *c,
                           mlx_rope_t *out) {
  const char *type;
  double theta;
  *out = (mlx_rope_t){.scale = 1.0, .adjacent = fields->adjacent};
  MLX_TRY(read_type(source, fields, &type));
  MLX_TRY(read_theta(source, fields, &theta));
  MLX_TRY(read_dims(source, fields, c, &out->dims));
  MLX_TRY(scale_theta(source, fields, type, out->dims, &theta));
  for (int64_t i = 0; i < out->dims / 2; ++i) out->frequencies[i] = 1.0f / power(theta, i, out->dims);
  return scale_rope(source, fields, type, theta, c, out);
}

mlx_status_t mlx_read_layer_ropes(const mlx_source_t *source, mlx_config_t *c, mlx_rope_fields_t *out) {
  const char *key = "layer_rope_theta";
  const size_t listed = mlx_source_array_length(source, key, NULL);
  if (listed && listed != (size_t)c->layers)
    return mlx_source_field_error(source, key, NULL, MLX_INVALID_INPUT,
                                  "must have one number for each of the %lld layers", (long long)c->layers);
  for (size_t i = 0; i < listed; ++i) {
    double theta;
    MLX_TRY(mlx_source_number_at(source, key, NULL, i, &theta));
    c->no_rope[i] = theta == 0.0;
    if (theta != 0.0 && out->fixed_theta != 0.0 && theta != out->fixed_theta)
      return mlx_source_field_error(source, key, NULL, MLX_UNSUPPORTED,
                                    "has %g and %g; only one base besides 0 is supported", out->fixed_theta,
                                    theta);
    if (theta != 0.0) out->fixed_theta = theta;
  }
  return NULL;
}

mlx_status_t mlx_read_yarn_mscale(const mlx_source_t *source, const mlx_rope_fields_t *f, double *out) {
  const char *type;
  double all_dim, factor = 1;
  bool found;
  *out = 1;
  MLX_TRY(read_type(source, f, &type));
  if (strcmp(type, "yarn")) return NULL;
  MLX_TRY(read_all_dim(source, f, &all_dim));
  MLX_TRY(rope_number(source, f, "factor", ".rope.scaling.factor", &factor, &found));
  if (factor > 1.0) *out = 0.1 * all_dim * log(factor) + 1.0;
  return NULL;
}
