// Opens a model: finds its architecture and checks every field and shape against it.
#include "models/model.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

// Written by the build from the files in models/.
extern const mlx_arch_t *const mlx_arch_table[];  // NULL-terminated

// ----------------------------------------------------------------------------------------------------------
// Architectures

static bool has_name(const char *const *names, const char *name) {
  for (; *names; ++names) {
    if (!strcmp(*names, name)) return true;
  }
  return false;
}

static const mlx_arch_t *find_arch(const mlx_source_t *source) {
  for (const mlx_arch_t *const *arch = mlx_arch_table; *arch; ++arch) {
    const char *const *names = mlx_source_is_gguf(source) ? (*arch)->gguf_types : (*arch)->hf_types;
    if (!has_name(names, mlx_source_architecture(source))) continue;
    if (!mlx_source_is_gguf(source) || !(*arch)->takes || (*arch)->takes(source)) return *arch;
  }
  return NULL;
}

#define MAX_ARCHS 255

static mlx_status_t unknown_arch(const mlx_source_t *source) {
  mlx_text_t known = {0};
  const char *all[MAX_ARCHS + 1] = {0};
  size_t count = 0;
  for (const mlx_arch_t *const *arch = mlx_arch_table; *arch; ++arch) {
    const char *const *names = mlx_source_is_gguf(source) ? (*arch)->gguf_types : (*arch)->hf_types;
    for (; *names && count < MAX_ARCHS; ++names) {
      if (!has_name(all, *names)) all[count++] = *names;  // GGUF has one name for several
    }
  }
  const char *nearest = mlx_nearest_name(mlx_source_architecture(source), all);
  if (nearest) mlx_text_printf(&known, "'%s' is the nearest of ", nearest);
  for (size_t i = 0; i < count; ++i) mlx_text_printf(&known, "%s%s", i ? ", " : "", all[i]);
  mlx_status_t status = mlx_source_field_error(source, "model_type", "general.architecture", MLX_UNSUPPORTED,
                                               "is '%s', an architecture mlxcel does not know",
                                               mlx_source_architecture(source));
  status = mlx_status_hint(status, "known architectures: %s", known.data ? known.data : "none");
  mlx_text_clear(&known);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Tensors

static int64_t rule_extent(const mlx_tensor_rule_t *rule, int dim, const mlx_config_t *config) {
  int64_t first, second = 1;
  const uint32_t field = rule->dims[dim] & 0xffff, factor = rule->dims[dim] >> 16;
  memcpy(&first, (const char *)config + field, sizeof first);
  if (factor) memcpy(&second, (const char *)config + factor, sizeof second);
  return first * second;  // both were range-checked when the config was read
}

// Of the tensor in the file: a matrix whose rows are columns has the other way round, one that is two weights
// twice the rows.
static int64_t stored_extent(const mlx_tensor_rule_t *rule, mlx_row_order_t order, mlx_half_t half, int dim,
                             const mlx_config_t *config) {
  const int last = rule->rank - 1,
            from = order == MLX_ROWS_ARE_COLUMNS && dim >= last - 1 ? 2 * last - 1 - dim : dim;
  return rule_extent(rule, from, config) * (half && from == 1 ? 2 : 1);
}

static mlx_status_t check_shape(const mlx_model_t *model, const mlx_tensor_rule_t *rule,
                                mlx_row_order_t order, mlx_half_t half, const mlx_tensor_t *tensor) {
  mlx_text_t want = {0}, have = {0};
  // GGUF files may leave out leading dimensions of 1.
  const int less =
      mlx_source_is_gguf(model->source) && tensor->rank < rule->rank ? rule->rank - tensor->rank : 0;
  bool same = tensor->rank + less == rule->rank;
  for (int i = 0; i < rule->rank; ++i) {
    int64_t extent = stored_extent(rule, order, half, i, &model->config);
    same = same && (i < less ? 1 : tensor->dims[i - less]) == extent;
    mlx_text_printf(&want, "%s%lld", i ? ", " : "", (long long)extent);
  }
  for (int i = 0; i < tensor->rank; ++i)
    mlx_text_printf(&have, "%s%lld", i ? ", " : "", (long long)tensor->dims[i]);
  mlx_status_t status = NULL;
  if (!same) {
    status = mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s' has shape [%s]; the model's fields say [%s]",
                       mlx_source_path(model->source), tensor->name, have.data ? have.data : "",
                       want.data ? want.data : "");
  } else if (!mlx_dtype_info(tensor->dtype)->to_f32 ||
             (order == MLX_ROWS_ARE_COLUMNS && mlx_dtype_info(tensor->dtype)->block_elements > 1)) {
    status = mlx_error(MLX_UNSUPPORTED, "%s: tensor '%s' has type %s, which this weight cannot have",
                       mlx_source_path(model->source), tensor->name, mlx_dtype_info(tensor->dtype)->name);
  }
  mlx_text_clear(&want);
  mlx_text_clear(&have);
  return status;
}

// Names of the architecture's table are format strings of ours with at most one %d.
static void expand_name(const char *pattern, int layer, char *out, size_t size) {
  const char *mark = strstr(pattern, "%d");
  if (mark) {
    snprintf(out, size, "%.*s%d%s", (int)(mark - pattern), pattern, layer, mark + 2);
  } else {
    snprintf(out, size, "%s", pattern);
  }
}

// |tensor| as a weight: its dims are the rule's, so that whoever asks for a weight's shape need not know how
// it is stored.
static mlx_tensor_t as_ruled(const mlx_tensor_rule_t *rule, const mlx_config_t *config, mlx_half_t half,
                             const mlx_tensor_t *tensor) {
  mlx_tensor_t out = *tensor;
  out.rank = rule->rank;
  if (half) out.size /= 2;
  for (int i = 0; i < rule->rank; ++i) out.dims[i] = rule_extent(rule, i, config);
  return out;
}

static mlx_status_t find_packing(const mlx_model_t *model, const mlx_tensor_rule_t *rule, mlx_half_t half,
                                 const char *hf_name, mlx_packing_t *out) {
  int64_t extents[3] = {0};  // of the stack, rows and columns
  for (int i = 0; i < rule->rank; ++i) extents[i + 3 - rule->rank] = rule_extent(rule, i, &model->config);
  return mlx_source_packing(model->source, hf_name, extents[0], extents[1] * (half ? 2 : 1), extents[2], out);
}

static mlx_status_t find_weight(const mlx_model_t *model, const mlx_tensor_rule_t *rule, const char *hf_name,
                                const char *gguf_name, mlx_weight_t *weight) {
  if (rule->rank == 3 || (rule->rank == 2 && weight->order == MLX_ROWS_AS_STORED)) {
    MLX_TRY(find_packing(model, rule, weight->half, hf_name, &weight->packing));
  }
  if (weight->packing.kind) {
    weight->order = MLX_ROWS_AS_STORED;  // packed matrices are [out, in] always
    weight->tensor = as_ruled(rule, &model->config, weight->half, weight->packing.parts[MLX_PART_CODES]);
    return NULL;
  }
  const mlx_tensor_t *tensor = mlx_source_tensor(model->source, hf_name, gguf_name);
  // Files of the model without its head leave out the first part of every name: "h.0.ln_1.weight".
  if (!tensor && strchr(hf_name, '.'))
    tensor = mlx_source_tensor(model->source, strchr(hf_name, '.') + 1, NULL);
  if (!tensor) {
    return mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s' is missing", mlx_source_path(model->source),
                     mlx_source_is_gguf(model->source) ? gguf_name : hf_name);
  }
  weight->tensor = as_ruled(rule, &model->config, weight->half, tensor);
  return check_shape(model, rule, weight->order, weight->half, tensor);
}

// "%e" of a name that stands for many: the number of one, or "all".
static void expand_part(const char *name, const char *part, char *out, size_t size) {
  const char *mark = strstr(name, "%e");
  snprintf(out, size, "%.*s%s%s", (int)(mark - name), name, part, mark + 2);
}

// One of those that a weight is stacked from; of a packed one its codes.
static mlx_status_t find_part(const mlx_model_t *model, const mlx_tensor_rule_t *rule, const char *name,
                              const mlx_tensor_t **out_part, mlx_packing_t *out_packing) {
  if (rule->rank == 2) MLX_TRY(find_packing(model, rule, MLX_WHOLE, name, out_packing));
  *out_part =
      out_packing->kind ? out_packing->parts[MLX_PART_CODES] : mlx_source_tensor(model->source, name, NULL);
  if (out_packing->kind) return NULL;
  if (!*out_part)
    return mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s' is missing", mlx_source_path(model->source), name);
  return check_shape(model, rule, MLX_ROWS_AS_STORED, MLX_WHOLE, *out_part);
}

// A weight that is stacked from tensors of its own rule less the first dimension.
static mlx_status_t add_stacked(mlx_model_t *model, const mlx_tensor_rule_t *rule, const char *pattern) {
  char name[256], number[24];
  mlx_tensor_rule_t part_rule = {.rank = rule->rank - 1};
  memcpy(part_rule.dims, rule->dims + 1, (size_t)part_rule.rank * sizeof *rule->dims);
  mlx_weight_t *weight = &model->weights[model->weight_count++];
  const int64_t count = rule_extent(rule, 0, &model->config);
  expand_part(pattern, "all", name, sizeof name);
  MLX_TRY(mlx_copy_text(name, strlen(name), &weight->name));
  MLX_TRY(mlx_alloc((size_t)count, sizeof *weight->parts, &weight->parts));
  MLX_TRY(mlx_alloc((size_t)count, sizeof *weight->part_packings, &weight->part_packings));
  for (int64_t i = 0; i < count; ++i) {
    snprintf(number, sizeof number, "%lld", (long long)i);
    expand_part(pattern, number, name, sizeof name);
    MLX_TRY(find_part(model, &part_rule, name, &weight->parts[i], &weight->part_packings[i]));
    if (weight->parts[i]->dtype != weight->parts[0]->dtype ||
        weight->part_packings[i].kind != weight->part_packings[0].kind) {
      return mlx_error(MLX_UNSUPPORTED, "%s: tensor '%s' has another type than the first of its kind",
                       mlx_source_path(model->source), name);
    }
  }
  if (!weight->part_packings[0].kind) {
    mlx_free(weight->part_packings);
    weight->part_packings = NULL;
  }
  weight->tensor = (mlx_tensor_t){.name = weight->name,
                                  .dtype = weight->parts[0]->dtype,
                                  .rank = rule->rank,
                                  .size = (size_t)count * weight->parts[0]->size};
  for (int i = 0; i < rule->rank; ++i) weight->tensor.dims[i] = rule_extent(rule, i, &model->config);
  return NULL;
}

static mlx_status_t add_weight(mlx_model_t *model, const mlx_tensor_rule_t *rule, int layer) {
  char hf_name[256], gguf_name[256], mlx_name[256] = "";
  expand_name(rule->hf_name, layer, hf_name, sizeof hf_name);
  expand_name(rule->gguf_name, layer, gguf_name, sizeof gguf_name);
  const bool gguf = mlx_source_is_gguf(model->source);
  if (rule->mlx_name) expand_name(rule->mlx_name, layer, mlx_name, sizeof mlx_name);
  const bool in_one = gguf || mlx_source_tensor(model->source, mlx_name, NULL);
  if (rule->hf_stacked && !in_one) return add_stacked(model, rule, hf_name);
  mlx_weight_t *weight = &model->weights[model->weight_count];
  weight->order = gguf ? rule->gguf_order : rule->hf_order;
  weight->half = gguf ? MLX_WHOLE : rule->hf_half;
  char name[256];
  expand_name(rule->hf_stored ? rule->hf_stored : rule->hf_name, layer, name, sizeof name);
  MLX_TRY(find_weight(model, rule, rule->hf_stacked ? mlx_name : name, gguf_name, weight));
  if (rule->hf_stacked) expand_part(hf_name, "all", name, sizeof name);
  MLX_TRY(mlx_copy_text(rule->hf_stacked ? name : hf_name, strlen(rule->hf_stacked ? name : hf_name),
                        &weight->name));
  ++model->weight_count;
  weight->order_head_dim = model->config.head_dim;
  weight->plus = gguf ? 0.0 : rule->hf_less;
  return NULL;
}

// Tensors before the layers, then layer by layer, then those after: the table's order with its "%d" block
// repeated.
static mlx_status_t add_weights(mlx_model_t *model) {
  const mlx_arch_t *arch = model->arch;
  MLX_TRY(
      mlx_alloc(arch->tensor_count * (size_t)model->config.layers, sizeof *model->weights, &model->weights));
  for (size_t i = 0; i < arch->tensor_count;) {
    size_t end = i + 1;
    bool per_layer = strstr(arch->tensors[i].hf_name, "%d") != NULL;
    while (per_layer && end < arch->tensor_count && strstr(arch->tensors[end].hf_name, "%d")) ++end;
    for (int layer = 0; layer < (per_layer ? model->config.layers : 1); ++layer) {
      for (size_t j = i; j < end; ++j) {
        const mlx_tensor_rule_t *rule = &arch->tensors[j];
        if (!rule->present || rule->present(&model->config)) MLX_TRY(add_weight(model, rule, layer));
      }
    }
    i = end;
  }
  return NULL;
}

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), end_length = strlen(end);
  return length >= end_length && !strcmp(text + length - end_length, end);
}

// Old files store what the architecture computes (the rope's frequencies, masks), GGUF's factors of the
// frequencies were read with the config, and a tied head may still be written out.
static bool is_left_over(const mlx_model_t *model, const char *name) {
  static const char *const always[] = {".rotary_emb.inv_freq", "rope_freqs.weight",
                                       "rope_factors_long.weight", "rope_factors_short.weight", NULL};
  const char *const *ends[] = {always, model->arch->ignored};
  for (int i = 0; i < 2; ++i) {
    for (const char *const *end = ends[i]; end && *end; ++end) {
      if (ends_with(name, *end)) return true;
    }
  }
  for (const char *const *start = model->arch->unused; start && *start; ++start) {
    if (!strncmp(name, *start, strlen(*start))) return true;
  }
  return model->config.tied_head && (!strcmp(name, "lm_head.weight") || !strcmp(name, "embed_out.weight"));
}

static size_t packed_tensors(const mlx_packing_t *packing) {
  size_t count = 0;
  for (int i = 0; i < MLX_PART_COUNT; ++i) count += packing->parts[i] != NULL;
  return count;
}

static bool is_packed_in(const mlx_packing_t *packing, const char *name) {
  for (int i = 0; i < MLX_PART_COUNT; ++i) {
    if (packing->parts[i] && !strcmp(packing->parts[i]->name, name)) return true;
  }
  return false;
}

static size_t tensors_of(const mlx_weight_t *weight) {
  if (weight->half == MLX_SECOND_HALF || weight->half == MLX_ODD_HALF)
    return 0;  // its other half has counted it
  size_t count = packed_tensors(&weight->packing);
  for (int64_t i = 0; weight->parts && i < weight->tensor.dims[0]; ++i) {
    count += weight->part_packings ? packed_tensors(&weight->part_packings[i]) : 1;
  }
  return count ? count : 1;
}

static bool is_tensor_of(const mlx_weight_t *weight, const char *name) {
  if (is_packed_in(&weight->packing, name)) return true;
  for (int64_t i = 0; weight->parts && i < weight->tensor.dims[0]; ++i) {
    if (!strcmp(weight->parts[i]->name, name) ||
        (weight->part_packings && is_packed_in(&weight->part_packings[i], name)))
      return true;
  }
  return !strcmp(weight->tensor.name, name);
}

// A tensor the architecture has no use for would change the result if it were a weight we forgot: refuse it
// by name.
static mlx_status_t check_nothing_is_left(const mlx_model_t *model) {
  size_t left_over = 0, used_up = 0, count = mlx_source_tensor_count(model->source);
  for (size_t i = 0; i < model->weight_count; ++i) used_up += tensors_of(&model->weights[i]);
  for (size_t i = 0; i < count; ++i)
    left_over += is_left_over(model, mlx_source_tensor_at(model->source, i)->name);
  if (count == used_up + left_over) return NULL;
  for (size_t i = 0; i < count; ++i) {
    const mlx_tensor_t *tensor = mlx_source_tensor_at(model->source, i);
    bool used = is_left_over(model, tensor->name);
    for (size_t j = 0; j < model->weight_count && !used; ++j)
      used = is_tensor_of(&model->weights[j], tensor->name);
    if (!used) {
      return mlx_error(MLX_UNSUPPORTED,
                       "%s: tensor '%s' is not part of the %s architecture as mlxcel knows it",
                       mlx_source_path(model->source), tensor->name, mlx_source_architecture(model->source));
    }
  }
  return mlx_error(MLX_INTERNAL, "%s: a tensor was used twice", mlx_source_path(model->source));
}

// ----------------------------------------------------------------------------------------------------------
// Opening

static mlx_status_t open_into(const char *path, mlx_model_t *model) {
  MLX_TRY(mlx_source_open(path, &model->source));
  model->arch = find_arch(model->source);
  if (!model->arch) return unknown_arch(model->source);
  MLX_TRY(model->arch->read_config(model->source, &model->config));
  MLX_TRY(mlx_source_check_asked(model->source));
  MLX_TRY(add_weights(model));
  return check_nothing_is_left(model);
}

mlx_status_t mlx_model_open(const char *path, mlx_model_t **out_model) {
  *out_model = NULL;
  mlx_model_t *model;
  MLX_TRY(mlx_alloc(1, sizeof *model, &model));
  mlx_status_t status = open_into(path, model);
  if (status) {
    mlx_model_close(model);
    return status;
  }
  *out_model = model;
  return NULL;
}

void mlx_model_close(mlx_model_t *model) {
  if (!model) return;
  for (size_t i = 0; i < model->weight_count; ++i) {
    mlx_free(model->weights[i].name);
    mlx_free(model->weights[i].parts);
    mlx_free(model->weights[i].part_packings);
  }
  mlx_free(model->weights);
  mlx_source_close(model->source);
  mlx_free(model);
}
