// Writes, reads and checks manifests. See manifest.h.
#include "artifact/manifest.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/encoding.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "base/meter.h"
#include "base/text.h"

// ----------------------------------------------------------------------------------------------------------
// Writing

static void put_steps(mlx_json_writer_t *json, const mlx_variant_t *variant) {
  mlx_json_begin_list(json, "steps", MLX_JSON_ONE_LINE);
  for (size_t i = 0; i < variant->step_count; ++i) {
    mlx_json_begin_list(json, NULL, MLX_JSON_ONE_LINE);
    mlx_json_put_int(json, NULL, variant->steps[i].tokens);
    mlx_json_put_int(json, NULL, variant->steps[i].wanted);
    mlx_json_end(json);
  }
  mlx_json_end(json);
}

static void put_names(mlx_json_writer_t *json, const char *key, const char names[][16], size_t count) {
  mlx_json_begin_list(json, key, MLX_JSON_ONE_LINE);
  for (size_t i = 0; i < count; ++i) mlx_json_put_text(json, NULL, names[i]);
  mlx_json_end(json);
}

static void put_ops(mlx_json_writer_t *json, const mlx_variant_t *variant) {
  mlx_json_begin_list(json, "ops", MLX_JSON_LINES);
  for (size_t i = 0; i < variant->op_count; ++i) {
    const mlx_variant_op_t *op = &variant->ops[i];
    mlx_json_begin_object(json, NULL, MLX_JSON_ONE_LINE);
    mlx_json_put_text(json, "op", op->op);
    mlx_json_put_int(json, "count", op->count);
    mlx_json_put_text(json, "decode", op->decode);
    mlx_json_put_text(json, "prefill", op->prefill);
    mlx_json_put_int(json, "bytes", op->bytes);
    mlx_json_end(json);
  }
  mlx_json_end(json);
}

static void put_variant(mlx_json_writer_t *json, const mlx_variant_t *variant) {
  mlx_json_begin_object(json, NULL, MLX_JSON_LINES);
  mlx_json_put_text(json, "target", variant->target);
  mlx_json_put_text(json, "cpu", variant->cpu);
  mlx_json_put_text(json, "dtype", variant->dtype);
  if (variant->format_count)
    put_names(json, "formats", (const char(*)[16])variant->formats, variant->format_count);
  mlx_json_put_text(json, "kv", variant->kv);
  mlx_json_put_text(json, "activations", variant->activations);
  mlx_json_put_text(json, "module", variant->module);
  mlx_json_put_text(json, "weights", variant->weights);
  put_steps(json, variant);
  mlx_json_put_int(json, "burst", variant->burst);
  mlx_json_put_bool(json, "ragged", variant->ragged);
  mlx_json_put_bool(json, "samples", variant->samples);
  mlx_json_put_bool(json, "fixed_rows", variant->fixed_rows);
  mlx_json_put_int(json, "chunk_positions", variant->chunk_positions);
  mlx_json_put_int(json, "page_bytes", variant->page_bytes);
  if (variant->window_page_bytes) mlx_json_put_int(json, "window_page_bytes", variant->window_page_bytes);
  if (variant->recurrent_bytes) mlx_json_put_int(json, "recurrent_bytes", variant->recurrent_bytes);
  mlx_json_put_int(json, "kv_row", variant->kv_row);
  mlx_json_put_int(json, "hidden", variant->hidden);
  if (variant->route_used) {
    mlx_json_put_int(json, "route_layers", variant->route_layers);
    mlx_json_put_int(json, "route_used", variant->route_used);
  }
  put_names(json, "kernels", (const char(*)[16])variant->kernels, variant->kernel_count);
  mlx_json_put_text(json, "kernels_digest", variant->kernels_digest);
  put_ops(json, variant);
  if (variant->level_count)
    put_names(json, "levels", (const char(*)[16])variant->levels, variant->level_count);
  mlx_json_put_int(json, "driver", variant->driver);
  mlx_json_put_int(json, "state_bytes", variant->state_bytes);
  if (variant->step_bytes) mlx_json_put_int(json, "step_bytes", variant->step_bytes);
  if (variant->window) mlx_json_put_int(json, "window", variant->window);
  mlx_json_put_int(json, "kv_bytes", variant->kv_bytes);
  mlx_json_end(json);
}

// As base64 of little-endian numbers.
static void put_floats(mlx_json_writer_t *json, const char *key, const float *values, size_t count) {
  mlx_text_t *out = mlx_json_put_value(json, key);
  mlx_text_puts(out, "\"");
  mlx_base64_append(out, values, count * sizeof *values);
  mlx_text_puts(out, "\"");
}

static void put_embedding(mlx_json_writer_t *json, const mlx_manifest_embedding_t *e) {
  mlx_json_begin_object(json, "embedding", MLX_JSON_ONE_LINE);
  mlx_json_put_text(json, "pooling", e->pooling);
  mlx_json_put_bool(json, "encoder", e->encoder);
  mlx_json_put_bool(json, "normalize", e->normalize);
  if (e->labels) {
    mlx_json_put_int(json, "labels", e->labels);
    mlx_json_put_bool(json, "sigmoid", e->sigmoid);
    mlx_json_put_bool(json, "typed", e->typed);
  }
  if (e->headless) mlx_json_put_bool(json, "headless", true);
  if (e->score_size) {
    put_floats(json, "score_row", e->score_row, e->score_size);
    mlx_json_put_bool(json, "generation_prompt", e->generation_prompt);
  }
  if (e->similarity[0]) mlx_json_put_text(json, "similarity", e->similarity);
  if (e->default_prompt[0]) mlx_json_put_text(json, "default_prompt", e->default_prompt);
  mlx_json_begin_object(json, "prompts", MLX_JSON_ONE_LINE);
  for (size_t i = 0; i < e->prompt_count; ++i)
    mlx_json_put_text(json, e->prompts[i].name, e->prompts[i].text);
  mlx_json_end(json);
  mlx_json_end(json);
}

static void put_files(mlx_json_writer_t *json, const mlx_manifest_t *m) {
  mlx_json_begin_list(json, "files", MLX_JSON_LINES);
  for (size_t i = 0; i < m->file_count; ++i) {
    mlx_json_begin_object(json, NULL, MLX_JSON_ONE_LINE);
    mlx_json_put_text(json, "name", m->files[i].name);
    mlx_json_put_int(json, "size", m->files[i].size);
    mlx_json_put_text(json, "sha256", m->files[i].sha256);
    if (m->files[i].tree[0]) mlx_json_put_text(json, "tree", m->files[i].tree);
    mlx_json_end(json);
  }
  mlx_json_end(json);
}

mlx_status_t mlx_manifest_write(const mlx_manifest_t *m, char **out_json, size_t *out_length) {
  mlx_text_t text = {0};
  mlx_json_writer_t json = {.out = &text};
  mlx_json_begin_object(&json, NULL, MLX_JSON_LINES);
  mlx_json_put_text(&json, "format", MLX_BUNDLE_FORMAT);
  mlx_json_put_int(&json, "contract", m->contract);
  mlx_json_put_text(&json, "iree", m->iree);
  mlx_json_put_text(&json, "compiler", m->compiler);
  mlx_json_put_text(&json, "compiler_digest", m->compiler_digest);
  mlx_json_put_text(&json, "architecture", m->architecture);
  mlx_json_put_text(&json, "source", m->source);
  mlx_json_put_text(&json, "source_digest", m->source_digest);
  mlx_json_put_text(&json, "license", m->license);
  mlx_json_put_int(&json, "vocab", m->vocab);
  if (m->parameters) mlx_json_put_int(&json, "parameters", m->parameters);
  mlx_json_put_int(&json, "context", m->context);
  mlx_json_put_ints(&json, "eos", m->eos, m->eos_count);
  if (m->embedding.pooling[0]) put_embedding(&json, &m->embedding);
  mlx_json_begin_list(&json, "targets", MLX_JSON_LINES);
  for (size_t i = 0; i < m->variant_count; ++i) put_variant(&json, &m->variants[i]);
  mlx_json_end(&json);
  put_files(&json, m);
  mlx_json_end(&json);
  mlx_text_puts(&text, "\n");
  mlx_status_t status = mlx_text_take(&text, out_json, out_length);
  mlx_text_clear(&text);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Names

mlx_module_name_t mlx_bundle_module(const char *level_or_target) {
  mlx_module_name_t name = {MLX_BUNDLE_VMFB};
  if (!level_or_target) return name;
  snprintf(name.text, sizeof name.text, "model.%.30s.vmfb", level_or_target);
  for (char *colon = name.text; (colon = strchr(colon, ':'));) *colon = '-';
  return name;
}

size_t mlx_variant_module_count(const mlx_variant_t *variant) {
  return variant->level_count ? variant->level_count : 1;
}

mlx_module_name_t mlx_variant_module(const mlx_variant_t *variant, size_t index) {
  if (variant->level_count) return mlx_bundle_module(variant->levels[index]);
  mlx_module_name_t name;
  snprintf(name.text, sizeof name.text, "%s", variant->module);
  return name;
}

mlx_module_name_t mlx_bundle_weights(size_t index) {
  mlx_module_name_t name = {MLX_BUNDLE_WEIGHTS};
  if (index) snprintf(name.text, sizeof name.text, "weights.%zu.irpa", index + 1);
  return name;
}

// True if |file| is |start|, then one or more characters of |allowed|, then |end|.
static bool has_middle(const char *file, const char *start, const char *end, const char *allowed) {
  const size_t before = strlen(start), after = strlen(end), length = strlen(file);
  if (length <= before + after || length >= MLX_BUNDLE_NAME) return false;
  if (strncmp(file, start, before) || strcmp(file + length - after, end)) return false;
  return strspn(file + before, allowed) == length - before - after;
}

bool mlx_is_module_file(const char *name) {
  return !strcmp(name, MLX_BUNDLE_VMFB) ||
         has_middle(name, "model.", ".vmfb", "abcdefghijklmnopqrstuvwxyz0123456789_-");
}

bool mlx_is_weights_file(const char *name) {
  return !strcmp(name, MLX_BUNDLE_WEIGHTS) || has_middle(name, "weights.", ".irpa", "0123456789");
}

bool mlx_is_licence_file(const char *name) {
  static const char *const starts[] = {"LICENSE", "LICENCE", "NOTICE", "COPYING", "USE_POLICY"};
  static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  for (size_t i = 0; i < sizeof starts / sizeof *starts; ++i) {
    if (!strcmp(name, starts[i]) || has_middle(name, starts[i], "", allowed)) return true;
  }
  return false;
}

bool mlx_is_bundle_file(const char *name) {
  static const char *const names[] = {MLX_BUNDLE_MANIFEST, MLX_BUNDLE_SIGNATURE, MLX_BUNDLE_TOKENIZER,
                                      MLX_BUNDLE_CHAT};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    if (!strcmp(name, names[i])) return true;
  }
  return mlx_is_module_file(name) || mlx_is_weights_file(name) || mlx_is_licence_file(name);
}

// ----------------------------------------------------------------------------------------------------------
// Reading

static mlx_status_t read_text(const mlx_json_t *json, yyjson_val *object, const char *key, char *out,
                              size_t size) {
  const char *value;
  MLX_TRY(mlx_json_string(json, object, key, &value));
  if (strlen(value) >= size) return mlx_json_error(json, key, "is too long");
  for (const char *c = value; *c; ++c) {  // the text is printed to a terminal
    if ((unsigned char)*c < ' ' || *c == 0x7f)
      return mlx_json_error(json, key, "contains a control character");
  }
  snprintf(out, size, "%s", value);
  return NULL;
}

// Older compilers did not write every field: a missing one has the value |fallback|.
static mlx_status_t read_text_or(const mlx_json_t *json, yyjson_val *object, const char *key,
                                 const char *fallback, char *out, size_t size) {
  if (mlx_json_find(object, key)) return read_text(json, object, key, out, size);
  snprintf(out, size, "%s", fallback);
  return NULL;
}

static mlx_status_t read_list(const mlx_json_t *json, yyjson_val *object, const char *key, size_t capacity,
                              int64_t min, int64_t max, int64_t *out, size_t *out_count) {
  yyjson_val *list, *item;
  size_t index, count;
  MLX_TRY(mlx_json_need(json, object, key, &list));
  if (!yyjson_is_arr(list) || yyjson_arr_size(list) > capacity)
    return mlx_json_error(json, key, "is not a list or has too many items");
  yyjson_arr_foreach(list, index, count, item) {
    int64_t value = yyjson_is_int(item) ? yyjson_get_sint(item) : -1;
    if (value < min || value > max) return mlx_json_error(json, key, "contains a number out of range");
    out[index] = value;
  }
  *out_count = yyjson_arr_size(list);
  return NULL;
}

static mlx_status_t read_bool(const mlx_json_t *json, yyjson_val *object, const char *key, bool *out) {
  yyjson_val *value;
  MLX_TRY(mlx_json_need(json, object, key, &value));
  *out = yyjson_is_true(value);
  return yyjson_is_bool(value) ? NULL : mlx_json_error(json, key, "is not true or false");
}

// [[N, W], ...]: at least one, N ascending, W at most N.
static mlx_status_t read_steps(const mlx_json_t *json, yyjson_val *object, mlx_variant_t *variant) {
  yyjson_val *list, *item;
  size_t index, count;
  MLX_TRY(mlx_json_need(json, object, "steps", &list));
  if (!yyjson_is_arr(list) || !yyjson_arr_size(list) || yyjson_arr_size(list) > MLX_MAX_BUCKETS)
    return mlx_json_error(json, "steps", "is not a list, is empty or has too many items");
  yyjson_arr_foreach(list, index, count, item) {
    const int64_t tokens = yyjson_get_sint(yyjson_arr_get(item, 0)),
                  wanted = yyjson_get_sint(yyjson_arr_get(item, 1)),
                  least = index ? variant->steps[index - 1].tokens + 1 : 1;
    if (yyjson_arr_size(item) != 2 || tokens < least || tokens > MLX_MAX_STEP || wanted < 1 ||
        wanted > tokens)
      return mlx_json_error(json, "steps", "contains sizes out of range");
    variant->steps[index] = (mlx_step_size_t){.tokens = tokens, .wanted = wanted};
  }
  variant->step_count = yyjson_arr_size(list);
  return NULL;
}

// The runtime computes addresses in the KV pool from these numbers.
static mlx_status_t read_pool(const mlx_json_t *json, yyjson_val *object, mlx_variant_t *variant) {
  const int64_t max = 1 << 30;
  MLX_TRY(mlx_json_int(json, object, "chunk_positions", 0, max, &variant->chunk_positions));
  if (variant->chunk_positions % MLX_KV_PAGE)
    return mlx_json_error(json, "chunk_positions", "is not a multiple of a page");
  if (!variant->ragged && !variant->chunk_positions)
    return mlx_json_error(json, "chunk_positions", "is 0, but the module is not ragged");
  MLX_TRY(mlx_json_int(json, object, "page_bytes", 1, (int64_t)1 << 40, &variant->page_bytes));
  MLX_TRY(mlx_json_int(json, object, "kv_row", 0, max, &variant->kv_row));
  MLX_TRY(mlx_json_int(json, object, "hidden", 1, max, &variant->hidden));
  if (variant->window_page_bytes > (int64_t)1 << 40 || (variant->window_page_bytes && !variant->window))
    return mlx_json_error(json, "window_page_bytes", "is too large, or has no window");
  if (variant->window > max) return mlx_json_error(json, "window", "is too large");
  if (variant->kv_bytes > (variant->page_bytes + variant->window_page_bytes) / MLX_KV_PAGE)
    return mlx_json_error(json, "page_bytes", "is too small for kv_bytes");
  const int64_t number = !variant->kv_row || !strcmp(variant->kv, "f32") ? 4 : 2,
                row = (variant->kv_row ? variant->kv_row : 1) * number;
  if (variant->window_page_bytes % row)
    return mlx_json_error(json, "window_page_bytes", "is not a multiple of a row of the KV pool");
  if (variant->recurrent_bytes > (int64_t)1 << 40 || variant->recurrent_bytes % row)
    return mlx_json_error(json, "recurrent_bytes", "is too large, or not a multiple of a row of the KV pool");
  return variant->page_bytes % row
             ? mlx_json_error(json, "page_bytes", "is not a multiple of a row of the KV pool")
             : NULL;
}

#define PLAIN "abcdefghijklmnopqrstuvwxyz0123456789_-"
#define PLAIN_FORMAT "ABCDEFGHIJKLMNOPQRSTUVWXYZ " PLAIN  // "GPTQ 4-bit"

// Names are printed, and the name of a level is part of a file name.
static bool is_plain_name(const char *name, const char *characters, size_t size) {
  size_t length = name ? strspn(name, characters) : 0;
  return length && !name[length] && length < size;
}

static mlx_status_t read_names(const mlx_json_t *json, yyjson_val *object, const char *key,
                               const char *characters, size_t capacity, char out[][16], size_t *out_count) {
  yyjson_val *list = mlx_json_find(object, key), *item;
  size_t index, count;
  if (!list) return NULL;
  if (!yyjson_is_arr(list) || yyjson_arr_size(list) > capacity)
    return mlx_json_error(json, key, "is not a list or has too many items");
  yyjson_arr_foreach(list, index, count, item) {
    if (!is_plain_name(yyjson_get_str(item), characters, 16))
      return mlx_json_error(json, key, "contains a value that is not a plain name");
    snprintf(out[index], 16, "%s", yyjson_get_str(item));
  }
  *out_count = yyjson_arr_size(list);
  return NULL;
}

static mlx_status_t read_name(const mlx_json_t *json, yyjson_val *object, const char *key, char out[16]) {
  const char *text;
  MLX_TRY(mlx_json_string(json, object, key, &text));
  if (!is_plain_name(text, PLAIN, 16)) return mlx_json_error(json, key, "is not a plain name");
  snprintf(out, 16, "%s", text);
  return NULL;
}

static mlx_status_t read_ops(const mlx_json_t *json, yyjson_val *object, mlx_variant_t *variant) {
  yyjson_val *list = mlx_json_find(object, "ops"), *item;
  size_t index, count;
  if (!list) return NULL;
  if (!yyjson_is_arr(list) || yyjson_arr_size(list) > MLX_MAX_OPS)
    return mlx_json_error(json, "ops", "is not a list or has too many items");
  yyjson_arr_foreach(list, index, count, item) {
    mlx_variant_op_t *op = &variant->ops[index];
    MLX_TRY(read_name(json, item, "op", op->op));
    MLX_TRY(read_name(json, item, "decode", op->decode));
    MLX_TRY(read_name(json, item, "prefill", op->prefill));
    MLX_TRY(mlx_json_int(json, item, "count", 1, 1 << 30, &op->count));
    MLX_TRY(mlx_json_int(json, item, "bytes", 0, INT64_MAX, &op->bytes));
  }
  variant->op_count = yyjson_arr_size(list);
  return NULL;
}

static mlx_status_t read_levels(const mlx_json_t *json, yyjson_val *object, mlx_variant_t *variant) {
  MLX_TRY(read_names(json, object, "levels", PLAIN, MLX_MAX_LEVELS, variant->levels, &variant->level_count));
  const bool portable = !strcmp(variant->target, MLX_TARGET_PORTABLE);
  if (portable && !variant->level_count)
    return mlx_json_error(json, "levels", "is empty, but the target is " MLX_TARGET_PORTABLE);
  return portable || !variant->level_count
             ? NULL
             : mlx_json_error(json, "levels", "is only allowed for the target " MLX_TARGET_PORTABLE);
}

static mlx_status_t read_bytes(const mlx_json_t *json, yyjson_val *object, const char *key, int64_t *out) {
  return mlx_json_find(object, key) ? mlx_json_int(json, object, key, 0, INT64_MAX, out) : NULL;
}

static mlx_status_t read_variant_files(const mlx_json_t *json, yyjson_val *object, mlx_variant_t *variant) {
  MLX_TRY(read_text_or(json, object, "module", MLX_BUNDLE_VMFB, variant->module, sizeof variant->module));
  MLX_TRY(
      read_text_or(json, object, "weights", MLX_BUNDLE_WEIGHTS, variant->weights, sizeof variant->weights));
  if (!mlx_is_module_file(variant->module))
    return mlx_json_error(json, "module", "is not a valid module file name");
  return mlx_is_weights_file(variant->weights)
             ? NULL
             : mlx_json_error(json, "weights", "is not a valid weights file name");
}

static mlx_status_t read_variant(const mlx_json_t *json, yyjson_val *object, mlx_manifest_t *m) {
  mlx_variant_t *variant = &m->variants[m->variant_count];
  MLX_TRY(read_text(json, object, "target", variant->target, sizeof variant->target));
  for (size_t i = 0; i < m->variant_count; ++i) {
    if (!strcmp(m->variants[i].target, variant->target))
      return mlx_json_error(json, "target", "appears twice");
  }
  MLX_TRY(read_text(json, object, "cpu", variant->cpu, sizeof variant->cpu));
  MLX_TRY(read_text_or(json, object, "dtype", "f32", variant->dtype, sizeof variant->dtype));
  MLX_TRY(read_names(json, object, "formats", PLAIN_FORMAT, MLX_MAX_FORMATS, variant->formats,
                     &variant->format_count));
  MLX_TRY(read_text_or(json, object, "kv", "f32", variant->kv, sizeof variant->kv));
  MLX_TRY(
      read_text_or(json, object, "activations", "f32", variant->activations, sizeof variant->activations));
  MLX_TRY(read_variant_files(json, object, variant));
  MLX_TRY(read_steps(json, object, variant));
  MLX_TRY(mlx_json_int(json, object, "burst", 0, MLX_BURST_TOKENS, &variant->burst));
  MLX_TRY(read_bool(json, object, "ragged", &variant->ragged));
  MLX_TRY(read_bool(json, object, "samples", &variant->samples));
  MLX_TRY(read_bool(json, object, "fixed_rows", &variant->fixed_rows));
  MLX_TRY(
      read_names(json, object, "kernels", PLAIN, MLX_MAX_KERNELS, variant->kernels, &variant->kernel_count));
  MLX_TRY(read_text_or(json, object, "kernels_digest", "", variant->kernels_digest,
                       sizeof variant->kernels_digest));
  MLX_TRY(read_ops(json, object, variant));
  MLX_TRY(read_levels(json, object, variant));
  MLX_TRY(read_bytes(json, object, "driver", &variant->driver));
  MLX_TRY(read_bytes(json, object, "state_bytes", &variant->state_bytes));
  MLX_TRY(read_bytes(json, object, "step_bytes", &variant->step_bytes));
  MLX_TRY(read_bytes(json, object, "kv_bytes", &variant->kv_bytes));
  MLX_TRY(read_bytes(json, object, "window", &variant->window));
  MLX_TRY(read_bytes(json, object, "window_page_bytes", &variant->window_page_bytes));
  MLX_TRY(read_bytes(json, object, "recurrent_bytes", &variant->recurrent_bytes));
  MLX_TRY(read_pool(json, object, variant));
  MLX_TRY(read_bytes(json, object, "route_layers", &variant->route_layers));
  MLX_TRY(read_bytes(json, object, "route_used", &variant->route_used));
  if (variant->route_used &&
      (!variant->route_layers || variant->route_layers > MLX_MAX_ROUTES / variant->route_used))
    return mlx_json_error(json, "route_layers", "is 0 or too large for route_used");
  ++m->variant_count;
  return NULL;
}

static mlx_status_t read_variants(const mlx_json_t *json, mlx_manifest_t *m) {
  yyjson_val *list, *item;
  size_t index, count;
  MLX_TRY(mlx_json_need(json, json->root, "targets", &list));
  if (!yyjson_is_arr(list) || !yyjson_arr_size(list) || yyjson_arr_size(list) > MLX_MAX_TARGETS) {
    return mlx_json_error(json, "targets", "is not a list or has too many items");
  }
  yyjson_arr_foreach(list, index, count, item) MLX_TRY(read_variant(json, item, m));
  return NULL;
}

static mlx_status_t read_sha256(const mlx_json_t *json, yyjson_val *object, const char *key,
                                char out[MLX_DIGEST_HEX]) {
  const char *text;
  MLX_TRY(mlx_json_string(json, object, key, &text));
  if (strlen(text) != 64 || strspn(text, "0123456789abcdef") != 64)
    return mlx_json_error(json, key, "is not a SHA-256");
  snprintf(out, MLX_DIGEST_HEX, "%s", text);
  return NULL;
}

static mlx_status_t read_bundle_file(const mlx_json_t *json, yyjson_val *item, mlx_manifest_t *m) {
  mlx_bundle_file_t *file = &m->files[m->file_count];
  const char *name;
  MLX_TRY(mlx_json_string(json, item, "name", &name));
  if (!mlx_is_bundle_file(name) || !strcmp(name, MLX_BUNDLE_MANIFEST) ||
      !strcmp(name, MLX_BUNDLE_SIGNATURE)) {
    return mlx_json_error(json, "name", "is not a valid bundle file name");
  }
  if (mlx_manifest_file(m, name)) return mlx_json_error(json, "name", "appears twice");
  MLX_TRY(mlx_json_int(json, item, "size", 0, INT64_MAX, &file->size));
  MLX_TRY(read_sha256(json, item, "sha256", file->sha256));
  if (mlx_json_find(item, "tree")) MLX_TRY(read_sha256(json, item, "tree", file->tree));
  snprintf(file->name, sizeof file->name, "%s", name);
  ++m->file_count;
  return NULL;
}

static mlx_status_t read_files(const mlx_json_t *json, mlx_manifest_t *m) {
  yyjson_val *list = mlx_json_find(json->root, "files"), *item;
  size_t index, count;
  if (!list) return NULL;
  if (!yyjson_is_arr(list) || yyjson_arr_size(list) > MLX_MAX_BUNDLE_FILES)
    return mlx_json_error(json, "files", "is not a list or has too many items");
  yyjson_arr_foreach(list, index, count, item) MLX_TRY(read_bundle_file(json, item, m));
  return NULL;
}

// Reads a field of a manifest of any contract version. A value that is too long or not printable becomes "".
static void peek_text(const mlx_json_t *json, yyjson_val *object, const char *key, char *out, size_t size) {
  mlx_status_t status = read_text_or(json, object, key, "", out, size);
  if (status) out[0] = 0;
  mlx_status_free(status);
}

static void peek_target(const mlx_json_t *json, yyjson_val *object, mlx_manifest_origin_t *origin) {
  char target[64];
  const size_t length = strlen(origin->targets), room = sizeof origin->targets - length;
  peek_text(json, object, "target", target, sizeof target);
  if (target[0] && strlen(target) + 2 < room)
    snprintf(origin->targets + length, room, "%s%s", length ? "," : "", target);
}

static mlx_manifest_origin_t peek_origin(const mlx_json_t *json) {
  mlx_manifest_origin_t origin = {.iree = ""};
  yyjson_val *list = mlx_json_find(json->root, "targets"), *item;
  size_t index, count;
  mlx_status_t status = mlx_json_int(json, json->root, "contract", 0, 1 << 20, &origin.contract);
  if (status) origin.contract = -1;
  mlx_status_free(status);
  peek_text(json, json->root, "iree", origin.iree, sizeof origin.iree);
  peek_text(json, json->root, "source", origin.source, sizeof origin.source);
  peek_text(json, json->root, "source_digest", origin.source_digest, sizeof origin.source_digest);
  if (!yyjson_is_arr(list)) peek_target(json, json->root, &origin);
  yyjson_arr_foreach(list, index, count, item) peek_target(json, item, &origin);
  return origin;
}

mlx_status_t mlx_manifest_hint_recompile(mlx_status_t status, const mlx_manifest_origin_t *origin) {
  return mlx_status_hint(status, "compile the model again with this mlxcel: mlxcel compile %s%s%s -o OUT",
                         origin->source[0] ? origin->source : "MODEL", origin->targets[0] ? " --target " : "",
                         origin->targets);
}

static mlx_status_t read_format(const mlx_json_t *json, mlx_manifest_t *m) {
  char format[32];
  MLX_TRY(read_text(json, json->root, "format", format, sizeof format));
  if (strcmp(format, MLX_BUNDLE_FORMAT))
    return mlx_json_error(json, "format", "is not '" MLX_BUNDLE_FORMAT "'");
  MLX_TRY(mlx_json_int(json, json->root, "contract", 0, 1 << 20, &m->contract));
  if (m->contract == MLX_CONTRACT_VERSION) return NULL;
  const mlx_manifest_origin_t origin = peek_origin(json);
  return mlx_manifest_hint_recompile(
      mlx_error(MLX_UNSUPPORTED, "%s: compiled for contract %lld; this mlxcel runs contract %d", json->name,
                (long long)m->contract, MLX_CONTRACT_VERSION),
      &origin);
}

// A prompt may have line breaks. It is not printed; names are.
static mlx_status_t add_prompt(const mlx_json_t *json, const char *name, const char *text,
                               mlx_manifest_embedding_t *e) {
  mlx_named_prompt_t *prompt = &e->prompts[e->prompt_count];
  if (e->prompt_count == MLX_MODEL_PROMPTS) return mlx_json_error(json, "prompts", "has too many prompts");
  if (!text || strlen(text) >= sizeof prompt->text || strlen(name) >= sizeof prompt->name)
    return mlx_json_error(json, "prompts", "has a prompt that is too long, or not a string");
  snprintf(prompt->name, sizeof prompt->name, "%s", name);
  snprintf(prompt->text, sizeof prompt->text, "%s", text);
  ++e->prompt_count;
  return NULL;
}

static mlx_status_t read_prompts(const mlx_json_t *json, yyjson_val *object, mlx_manifest_embedding_t *e) {
  yyjson_val *name, *text, *prompts = mlx_json_find(object, "prompts");
  size_t index, count;
  if (!yyjson_is_obj(prompts)) return mlx_json_error(json, "prompts", "is not an object");
  yyjson_obj_foreach(prompts, index, count, name, text) {
    MLX_TRY(add_prompt(json, yyjson_get_str(name), yyjson_get_str(text), e));
  }
  MLX_TRY(read_text_or(json, object, "default_prompt", "", e->default_prompt, sizeof e->default_prompt));
  if (e->default_prompt[0] && !mlx_manifest_prompt(e, e->default_prompt))
    return mlx_json_error(json, "default_prompt", "is not the name of a prompt");
  return NULL;
}

static const char *find_prompt(const mlx_manifest_embedding_t *e, const char *name) {
  for (size_t i = 0; i < e->prompt_count; ++i)
    if (!strcmp(e->prompts[i].name, name)) return e->prompts[i].text;
  return NULL;
}

const char *mlx_manifest_prompt(const mlx_manifest_embedding_t *e, const char *name) {
  const char *found = find_prompt(e, name);
  if (!found && !strcmp(name, "document")) found = find_prompt(e, "passage");
  if (!found && !strcmp(name, "document")) found = find_prompt(e, "corpus");
  return found;
}

static mlx_status_t read_similarity(const mlx_json_t *json, yyjson_val *object, mlx_manifest_embedding_t *e) {
  static const char *const names[] = {"", "cosine", "dot", "euclidean", "manhattan"};
  MLX_TRY(read_text_or(json, object, "similarity", "", e->similarity, sizeof e->similarity));
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
    if (!strcmp(e->similarity, names[i])) return NULL;
  return mlx_json_error(json, "similarity", "is not cosine, dot, euclidean or manhattan");
}

static mlx_status_t read_score_row(const mlx_json_t *json, yyjson_val *object, mlx_manifest_embedding_t *e) {
  const char *text;
  uint8_t *bytes;
  size_t size;
  if (!mlx_json_find(object, "score_row")) return NULL;
  MLX_TRY(mlx_json_string(json, object, "score_row", &text));
  MLX_TRY(mlx_base64_decode(text, strlen(text), &bytes, &size));
  const bool fits = size && size <= sizeof e->score_row && size % sizeof *e->score_row == 0;
  if (fits) memcpy(e->score_row, bytes, size);
  e->score_size = fits ? size / sizeof *e->score_row : 0;
  mlx_free(bytes);
  if (!fits) return mlx_json_error(json, "score_row", "is not base64 of 1 to 16384 numbers");
  for (size_t i = 0; i < e->score_size; ++i)
    if (!isfinite(e->score_row[i]))
      return mlx_json_error(json, "score_row", "has a number that is not finite");
  if (e->encoder || e->labels != 1)
    return mlx_json_error(json, "score_row", "is only for decoders with one label");
  return read_bool(json, object, "generation_prompt", &e->generation_prompt);
}

static mlx_status_t read_embedding(const mlx_json_t *json, yyjson_val *object, mlx_manifest_embedding_t *e) {
  static const char *const poolings[] = {"mean", "cls", "last", "max"};
  bool known = false;
  if (!object) return NULL;
  MLX_TRY(read_text(json, object, "pooling", e->pooling, sizeof e->pooling));
  for (size_t i = 0; i < sizeof poolings / sizeof *poolings; ++i) known |= !strcmp(e->pooling, poolings[i]);
  if (!known) return mlx_json_error(json, "pooling", "is not mean, cls, last or max");
  MLX_TRY(read_bool(json, object, "encoder", &e->encoder));
  MLX_TRY(read_bool(json, object, "normalize", &e->normalize));
  if (mlx_json_find(object, "labels")) {
    MLX_TRY(mlx_json_int(json, object, "labels", 1, 1 << 20, &e->labels));
    MLX_TRY(read_bool(json, object, "sigmoid", &e->sigmoid));
    MLX_TRY(read_bool(json, object, "typed", &e->typed));
  }
  if (mlx_json_find(object, "headless")) MLX_TRY(read_bool(json, object, "headless", &e->headless));
  MLX_TRY(read_score_row(json, object, e));
  MLX_TRY(read_similarity(json, object, e));
  return read_prompts(json, object, e);
}

static mlx_status_t check_score_row(const mlx_json_t *json, const mlx_manifest_t *m) {
  const size_t size = m->embedding.score_size;
  for (size_t i = 0; size && i < m->variant_count; ++i) {
    if ((uint64_t)m->variants[i].hidden != size)
      return mlx_json_error(json, "score_row", "has not as many numbers as a hidden state");
  }
  return NULL;
}

static mlx_status_t read_fields(const mlx_json_t *json, mlx_manifest_t *m) {
  const int64_t max = 1 << 30;
  yyjson_val *root = json->root;
  MLX_TRY(read_format(json, m));
  MLX_TRY(read_text_or(json, root, "iree", "", m->iree, sizeof m->iree));
  MLX_TRY(read_text(json, root, "compiler", m->compiler, sizeof m->compiler));
  MLX_TRY(read_text(json, root, "compiler_digest", m->compiler_digest, sizeof m->compiler_digest));
  MLX_TRY(read_text(json, root, "architecture", m->architecture, sizeof m->architecture));
  MLX_TRY(read_text(json, root, "source", m->source, sizeof m->source));
  MLX_TRY(read_text_or(json, root, "source_digest", "", m->source_digest, sizeof m->source_digest));
  MLX_TRY(read_text_or(json, root, "license", "", m->license, sizeof m->license));
  MLX_TRY(mlx_json_int(json, root, "vocab", 1, max, &m->vocab));
  if (mlx_json_find(root, "parameters"))
    MLX_TRY(mlx_json_int(json, root, "parameters", 0, INT64_MAX, &m->parameters));
  MLX_TRY(mlx_json_int(json, root, "context", 1, max, &m->context));
  int64_t eos[MLX_MAX_EOS];
  MLX_TRY(read_list(json, root, "eos", MLX_MAX_EOS, 0, max, eos, &m->eos_count));
  for (size_t i = 0; i < m->eos_count; ++i) m->eos[i] = (int32_t)eos[i];
  MLX_TRY(read_embedding(json, mlx_json_find(root, "embedding"), &m->embedding));
  MLX_TRY(read_variants(json, m));
  MLX_TRY(check_score_row(json, m));
  return read_files(json, m);
}

mlx_status_t mlx_manifest_read(const char *name, const char *text, size_t length,
                               mlx_manifest_t *out_manifest) {
  *out_manifest = (mlx_manifest_t){0};
  mlx_json_t json;
  MLX_TRY(mlx_json_parse(name, text, length, &json));
  mlx_status_t status = read_fields(&json, out_manifest);
  mlx_json_close(&json);
  return status;
}

mlx_manifest_origin_t mlx_manifest_origin(const char *text, size_t length) {
  mlx_manifest_origin_t origin = {.contract = -1};
  mlx_json_t json;
  mlx_status_t status = mlx_json_parse("manifest", text, length, &json);
  if (!status) {
    origin = peek_origin(&json);
    mlx_json_close(&json);
  }
  mlx_status_free(status);
  return origin;
}

mlx_status_t mlx_manifest_require_files(const mlx_manifest_t *m) {
  return m->file_count ? NULL
                       : mlx_error(MLX_INVALID_INPUT,
                                   "cannot verify the bundle: its manifest lists no files (an older mlxcel "
                                   "wrote it)");
}

const mlx_bundle_file_t *mlx_manifest_file(const mlx_manifest_t *m, const char *name) {
  for (size_t i = 0; i < m->file_count; ++i) {
    if (!strcmp(m->files[i].name, name)) return &m->files[i];
  }
  return NULL;
}

static bool variant_needs(const mlx_variant_t *variant, const char *name) {
  if (!strcmp(variant->weights, name)) return true;
  for (size_t i = 0; i < mlx_variant_module_count(variant); ++i) {
    if (!strcmp(mlx_variant_module(variant, i).text, name)) return true;
  }
  return false;
}

bool mlx_manifest_needs(const mlx_manifest_t *m, const char *target, const char *name) {
  bool needed_by_other = false;
  for (size_t i = 0; i < m->variant_count; ++i) {
    if (!variant_needs(&m->variants[i], name)) continue;
    if (!strcmp(m->variants[i].target, target)) return true;
    needed_by_other = true;
  }
  return !needed_by_other;
}

static void join_names(const char names[][16], size_t count, char *out, size_t size) {
  for (size_t i = 0, length = 0; i < count; ++i) {
    length += (size_t)snprintf(out + length, size - length, "%s%s", i ? ", " : "", names[i]);
  }
}

static bool reads_kv(const mlx_variant_op_t *op) { return !strcmp(op->op, "attention"); }

int64_t mlx_variant_weight_bytes(const mlx_variant_t *variant) {
  int64_t total = 0;
  for (size_t i = 0; i < variant->op_count; ++i) {
    const mlx_variant_op_t *op = &variant->ops[i];
    if (!reads_kv(op) && op->bytes <= INT64_MAX - total) total += op->bytes;
  }
  return total;
}

void mlx_variant_op_cost(const mlx_variant_op_t *op, int64_t total, char *out, size_t size) {
  const mlx_bytes_text_t bytes = mlx_bytes_show((uint64_t)op->bytes);
  out[0] = 0;
  if (!op->bytes) return;
  if (reads_kv(op)) {
    snprintf(out, size, "%s of KV per position", bytes.text);
  } else {
    snprintf(out, size, "%s of weights per token (%.0f%%)", bytes.text,
             100 * (double)op->bytes / (double)total);
  }
}

mlx_kernels_text_t mlx_variant_kernels_text(const mlx_variant_t *variant) {
  mlx_kernels_text_t out = {"none (generic path)"};
  join_names((const char(*)[16])variant->kernels, variant->kernel_count, out.text, sizeof out.text);
  return out;
}

mlx_levels_text_t mlx_variant_levels_text(const mlx_variant_t *variant) {
  mlx_levels_text_t out = {""};
  join_names((const char(*)[16])variant->levels, variant->level_count, out.text, sizeof out.text);
  return out;
}

mlx_formats_text_t mlx_variant_formats_text(const mlx_variant_t *variant) {
  mlx_formats_text_t out;
  snprintf(out.text, sizeof out.text, "%s", variant->dtype);
  join_names((const char(*)[16])variant->formats, variant->format_count, out.text, sizeof out.text);
  return out;
}

mlx_targets_text_t mlx_manifest_targets_text(const mlx_manifest_t *m) {
  mlx_targets_text_t out = {""};
  for (size_t i = 0, length = 0; i < m->variant_count; ++i) {
    length += (size_t)snprintf(out.text + length, sizeof out.text - length, "%s%s", i ? ", " : "",
                               m->variants[i].target);
  }
  return out;
}
