// A GGUF model on disk: one file, or all parts of a split one, which are found by their names. The first part
// has the metadata; the others have, as llama-gguf-split and the gguf package write them, little more than
// their number.
//
// Nothing in the files says which model a part belongs to. What can be checked is: their number and names,
// what they say about themselves and each other, every field that more than one of them has, and that no
// tensor is missing or there twice.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "models/import/gguf.h"
#include "models/import/tensors.h"

#define SAME_MODEL_HINT "all parts must be of one model: fetch them again from one place"

// ----------------------------------------------------------------------------------------------------------
// Names

// A part is called "STEM-00002-of-00003.gguf", with the numbers that its fields have; *|out_stem_length| is
// that of STEM with its folder.
static mlx_status_t check_name(const char *path, const mlx_gguf_t *file, size_t *out_stem_length) {
  char ending[64];
  size_t ending_length =
      (size_t)snprintf(ending, sizeof ending, "-%05d-of-%05d.gguf", file->part + 1, file->part_count);
  size_t length = strlen(path);
  *out_stem_length = length > ending_length ? length - ending_length : 0;
  if (*out_stem_length && !strcmp(path + *out_stem_length, ending)) return NULL;
  mlx_status_t status =
      mlx_error(MLX_INVALID_INPUT, "%s: by its fields it is part %d of %d, but its name does not end in '%s'",
                path, file->part + 1, file->part_count, ending);
  return mlx_status_hint(
      status, "the parts are found by their names: give them those that they were published under");
}

static mlx_status_t missing_part(const char *path, size_t index, size_t count, const char *given) {
  return mlx_status_hint(
      mlx_error(MLX_NOT_FOUND, "'%s' is missing: part %zu of %zu of the model", path, index + 1, count),
      "fetch it into the folder of '%s'", given);
}

// ----------------------------------------------------------------------------------------------------------
// What the parts say about each other

// What each part has for itself.
static bool is_own_field(const char *key) {
  return !strcmp(key, "split.no") || !strcmp(key, "general.alignment");
}

static mlx_status_t check_fields(const mlx_gguf_t *first, const mlx_gguf_t *file) {
  for (size_t i = 0; i < file->field_count; ++i) {
    const mlx_gguf_field_t *field = &file->fields[i], *same = mlx_gguf_find(first, field->key);
    if (is_own_field(field->key)) continue;
    if (same && same->type == field->type && same->is_array == field->is_array && same->size == field->size &&
        !memcmp(same->data, field->data, field->size)) {
      continue;
    }
    mlx_status_t status = mlx_gguf_error(file, field->key, MLX_INVALID_INPUT, "is not %s '%s'",
                                         same ? "the same as in" : "in the first part,", first->name);
    return mlx_status_hint(status, SAME_MODEL_HINT);
  }
  return NULL;
}

static mlx_status_t given_twice(const mlx_gguf_model_t *model, const char *name) {
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
      return given_twice(model, model->tensors[i]->name);
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Opening

static mlx_status_t open_part(const char *stem, size_t index, size_t count, const char *given,
                              mlx_gguf_part_t *part) {
  size_t stem_length;
  MLX_TRY(mlx_format(&part->path, "%s-%05zu-of-%05zu.gguf", stem, index + 1, count));
  if (!mlx_is_file(part->path)) return missing_part(part->path, index, count, given);
  MLX_TRY(mlx_map_file(part->path, &part->map));
  MLX_TRY(mlx_gguf_parse(part->path, part->map.data, part->map.size, &part->file));
  return check_name(part->path, part->file, &stem_length);
}

// |model| has the one part that was given; afterwards it has all of them, in order.
static mlx_status_t find_siblings(mlx_gguf_model_t *model) {
  const mlx_gguf_part_t given = model->parts[0];
  const size_t place = (size_t)given.file->part, count = (size_t)given.file->part_count;
  size_t stem_length;
  char *stem;
  MLX_TRY(check_name(given.path, given.file, &stem_length));
  MLX_TRY(mlx_resize(count, sizeof *model->parts, &model->parts));
  for (size_t i = 0; i < count; ++i) model->parts[i] = i == place ? given : (mlx_gguf_part_t){0};
  model->part_count = count;
  MLX_TRY(mlx_copy_text(given.path, stem_length, &stem));
  mlx_status_t status = NULL;
  for (size_t i = 0; !status && i < count; ++i) {
    if (i != place) status = open_part(stem, i, count, given.path, &model->parts[i]);
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
