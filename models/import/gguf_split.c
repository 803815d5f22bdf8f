// Opens all parts of a split GGUF model by their file names. llama-gguf-split and the gguf package write the
// metadata to the first part; other parts have little more than their index.
//
// No field identifies the model that a part belongs to. So this file checks everything else: the names and
// the number of parts, fields that several parts have, and that no tensor is missing or duplicated.
#include "models/import/gguf_split.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define SAME_MODEL_HINT "all parts must belong to one model: download them again from one repository"

// ----------------------------------------------------------------------------------------------------------
// Names

// A part must be named "STEM-00002-of-00003.gguf" with the numbers of its split.* fields. *|out_stem_length|
// is the length of STEM with its folder.
static mlx_status_t check_name(const char *path, const mlx_gguf_t *file, size_t *out_stem_length) {
  char ending[64];
  size_t ending_length =
      (size_t)snprintf(ending, sizeof ending, "-%05d-of-%05d.gguf", file->part + 1, file->part_count);
  size_t length = strlen(path);
  *out_stem_length = length > ending_length ? length - ending_length : 0;
  if (*out_stem_length && !strcmp(path + *out_stem_length, ending)) return NULL;
  mlx_status_t status =
      mlx_error(MLX_INVALID_INPUT, "%s: its metadata has part %d of %d, but its name does not end in '%s'",
                path, file->part + 1, file->part_count, ending);
  return mlx_status_hint(status, "rename the parts to the names they were published under");
}

static mlx_status_t missing_part(const char *path, size_t index, size_t count, const char *given) {
  return mlx_status_hint(
      mlx_error(MLX_NOT_FOUND, "'%s' is missing: part %zu of %zu of the model", path, index + 1, count),
      "download it into the folder of '%s'", given);
}

// ----------------------------------------------------------------------------------------------------------
// Checks between parts

// Fields that may differ between parts.
static bool is_per_part(const char *key) {
  return !strcmp(key, "split.no") || !strcmp(key, "general.alignment");
}

static mlx_status_t check_fields(const mlx_gguf_t *first, const mlx_gguf_t *file) {
  for (size_t i = 0; i < file->field_count; ++i) {
    const mlx_gguf_field_t *field = &file->fields[i], *same = mlx_gguf_find(first, field->key);
    if (is_per_part(field->key)) continue;
    if (same && same->type == field->type && same->is_array == field->is_array && same->size == field->size &&
        !memcmp(same->data, field->data, field->size)) {
      continue;
    }
    mlx_status_t status =
        mlx_gguf_error(file, field->key, MLX_INVALID_INPUT, "%s '%s'",
                       same ? "differs from the one in" : "is missing in the first part,", first->name);
    return mlx_status_hint(status, SAME_MODEL_HINT);
  }
  return NULL;
}

static mlx_status_t duplicate_tensor(const mlx_gguf_model_t *model, const char *name) {
  const char *files[2] = {"", ""};
  for (size_t i = 0, found = 0; i < model->part_count && found < 2; ++i) {
    if (mlx_gguf_tensor(model->parts[i].file, name)) files[found++] = model->parts[i].file->name;
  }
  return mlx_status_hint(
      mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s' is also in '%s'", files[1], name, files[0]),
      SAME_MODEL_HINT);
}

mlx_status_t mlx_gguf_model_join(mlx_gguf_model_t *model) {
  const mlx_gguf_t *first = model->parts[0].file;
  size_t count = 0;
  for (size_t i = 0; i < model->part_count; ++i) {
    if (i) MLX_TRY(check_fields(first, model->parts[i].file));
    if (!mlx_add(count, model->parts[i].file->tensor_count, &count))
      return mlx_error(MLX_INVALID_INPUT, "%s: too many tensors", first->name);
  }
  if (first->part_count > 1 && (uint64_t)first->model_tensors != count) {
    mlx_status_t status = mlx_gguf_error(first, "split.tensors.count", MLX_INVALID_INPUT,
                                         "is %lld, but all parts together have %zu tensors",
                                         (long long)first->model_tensors, count);
    return mlx_status_hint(status, SAME_MODEL_HINT);
  }
  MLX_TRY(mlx_alloc(count, sizeof *model->tensors, &model->tensors));
  for (size_t i = 0; i < model->part_count; ++i) {
    const mlx_gguf_t *file = model->parts[i].file;
    for (size_t j = 0; j < file->tensor_count; ++j) model->tensors[model->tensor_count++] = file->by_name[j];
  }
  qsort(model->tensors, count, sizeof *model->tensors, mlx_tensor_compare);
  for (size_t i = 1; i < count; ++i) {
    if (!strcmp(model->tensors[i - 1]->name, model->tensors[i]->name))
      return duplicate_tensor(model, model->tensors[i]->name);
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Opening

static mlx_status_t open_part(const char *stem, size_t index, size_t count, const char *given,
                              mlx_gguf_part_t *part) {
  size_t stem_length;
  MLX_TRY(mlx_format(&part->path, "%s-%05zu-of-%05zu.gguf", stem, index + 1, count));
  mlx_status_t status = mlx_map_file(part->path, &part->map);
  if (mlx_status_code(status) == MLX_NOT_FOUND) {
    mlx_status_free(status);
    return missing_part(part->path, index, count, given);
  }
  MLX_TRY(status);
  MLX_TRY(mlx_gguf_parse(part->path, part->map.data, part->map.size, &part->file));
  return check_name(part->path, part->file, &stem_length);
}

// Replaces the one part in |model| by all parts, in order.
static mlx_status_t find_siblings(mlx_gguf_model_t *model) {
  const mlx_gguf_part_t given = model->parts[0];
  const size_t index = (size_t)given.file->part, count = (size_t)given.file->part_count;
  size_t stem_length;
  char *stem;
  MLX_TRY(check_name(given.path, given.file, &stem_length));
  MLX_TRY(mlx_resize(count, sizeof *model->parts, &model->parts));
  for (size_t i = 0; i < count; ++i) model->parts[i] = i == index ? given : (mlx_gguf_part_t){0};
  model->part_count = count;
  MLX_TRY(mlx_copy_text(given.path, stem_length, &stem));
  mlx_status_t status = NULL;
  for (size_t i = 0; !status && i < count; ++i) {
    if (i != index) status = open_part(stem, i, count, given.path, &model->parts[i]);
  }
  mlx_free(stem);
  return status;
}

static mlx_status_t open_into(mlx_gguf_model_t *model, const char *path, mlx_map_t *inout_map) {
  MLX_TRY(mlx_alloc(1, sizeof *model->parts, &model->parts));
  mlx_gguf_part_t *part = &model->parts[model->part_count++];
  part->map = *inout_map;
  *inout_map = (mlx_map_t){0};
  MLX_TRY(mlx_copy_text(path, strlen(path), &part->path));
  MLX_TRY(mlx_gguf_parse(path, part->map.data, part->map.size, &part->file));
  if (part->file->part_count > 1) MLX_TRY(find_siblings(model));
  return mlx_gguf_model_join(model);
}

mlx_status_t mlx_gguf_model_open(const char *path, mlx_map_t *inout_map, mlx_gguf_model_t **out_model) {
  *out_model = NULL;
  mlx_gguf_model_t *model;
  MLX_TRY(mlx_alloc(1, sizeof *model, &model));
  mlx_status_t status = open_into(model, path, inout_map);
  if (status) {
    mlx_gguf_model_close(model);
    return status;
  }
  *out_model = model;
  return NULL;
}

void mlx_gguf_model_close(mlx_gguf_model_t *model) {
  if (!model) return;
  for (size_t i = 0; i < model->part_count; ++i) {
    mlx_gguf_close(model->parts[i].file);
    mlx_unmap(&model->parts[i].map);
    mlx_free(model->parts[i].path);
  }
  mlx_free(model->parts);
  mlx_free(model->tensors);
  mlx_free(model);
}
