// Prompts of completions, and gaps in them.
#include "server/api/prompt_fields.h"

#include <string.h>

#include "base/memory.h"

static mlx_status_t add_prompt(mlx_api_call_t *call, mlx_api_prompt_t **out) {
  MLX_TRY(mlx_resize(call->prompt_count + 1, sizeof *call->prompts, &call->prompts));
  *out = &call->prompts[call->prompt_count++];
  **out = (mlx_api_prompt_t){0};
  return NULL;
}

static mlx_status_t set_text(yyjson_val *value, mlx_api_prompt_t *prompt) {
  prompt->length = yyjson_get_len(value);
  return mlx_copy_text(yyjson_get_str(value), prompt->length, &prompt->text);
}

static mlx_status_t add_text_prompt(yyjson_val *value, mlx_api_call_t *call) {
  mlx_api_prompt_t *prompt;
  MLX_TRY(add_prompt(call, &prompt));
  return set_text(value, prompt);
}

// Numbers in a row are one part, each text is another one.
static mlx_status_t set_parts(const mlx_place_t *list, mlx_api_prompt_t *prompt) {
  mlx_api_prompt_t *part = NULL;
  size_t index, max, capacity = 0, id_capacity = 0;
  yyjson_val *value;
  yyjson_arr_foreach(list->value, index, max, value) {
    const mlx_place_t item = mlx_place_item(list, index, value);
    const bool is_text = yyjson_is_str(value);
    if (!is_text && (!yyjson_is_uint(value) || yyjson_get_uint(value) > INT32_MAX))
      return mlx_field_error(&item, MLX_INVALID_INPUT, "expected a token id or a string");
    if (is_text || !part || part->text) {
      MLX_TRY(mlx_reserve(prompt->part_count + 1, sizeof *prompt->parts, &capacity, &prompt->parts));
      part = &prompt->parts[prompt->part_count++];
      *part = (mlx_api_prompt_t){0};
      id_capacity = 0;
    }
    if (is_text) {
      MLX_TRY(set_text(value, part));
      continue;
    }
    MLX_TRY(mlx_reserve(part->id_count + 1, sizeof *part->ids, &id_capacity, &part->ids));
    part->ids[part->id_count++] = (int32_t)yyjson_get_uint(value);
  }
  return NULL;
}

static mlx_status_t set_ids(const mlx_place_t *list, mlx_api_prompt_t *prompt) {
  size_t index, max;
  yyjson_val *value;
  MLX_TRY(mlx_alloc(yyjson_arr_size(list->value), sizeof *prompt->ids, &prompt->ids));
  prompt->id_count = yyjson_arr_size(list->value);
  yyjson_arr_foreach(list->value, index, max, value) {
    const mlx_place_t item = mlx_place_item(list, index, value);
    if (!yyjson_is_uint(value) || yyjson_get_uint(value) > INT32_MAX)
      return mlx_field_error(&item, MLX_INVALID_INPUT, "expected a token id");
    prompt->ids[index] = (int32_t)yyjson_get_uint(value);
  }
  return NULL;
}

static bool has(yyjson_val *list, bool (*is_wanted)(yyjson_val *)) {
  size_t index, max;
  yyjson_val *value;
  yyjson_arr_foreach(list, index, max, value) {
    if (is_wanted(value)) return true;
  }
  return false;
}

// A list of token ids, or of token ids and texts, which is one prompt.
static mlx_status_t add_id_prompt(const mlx_place_t *list, mlx_api_call_t *call) {
  mlx_api_prompt_t *prompt;
  if (!yyjson_arr_size(list->value))
    return mlx_field_error(list, MLX_INVALID_INPUT, "expected at least one token id");
  MLX_TRY(add_prompt(call, &prompt));
  return has(list->value, yyjson_is_str) ? set_parts(list, prompt) : set_ids(list, prompt);
}

// The text of llama.cpp's {"prompt_string": TEXT}; NULL if |place| is something else.
static yyjson_val *prompt_string(const mlx_place_t *place) {
  yyjson_val *text = mlx_json_find(place->value, "prompt_string");
  return yyjson_is_str(text) && !mlx_json_find(place->value, "multimodal_data") ? text : NULL;
}

mlx_status_t mlx_prompt_fields_read(const mlx_place_t *place, mlx_api_call_t *call) {
  size_t index, max;
  yyjson_val *value;
  if (prompt_string(place)) return add_text_prompt(prompt_string(place), call);
  if (yyjson_is_str(place->value)) return add_text_prompt(place->value, call);
  if (!yyjson_is_arr(place->value)) return mlx_field_expected(place, "a string or a list");
  const size_t count = yyjson_arr_size(place->value);
  if (!count) return mlx_field_error(place, MLX_INVALID_INPUT, "expected at least one prompt");
  if (has(place->value, yyjson_is_num)) return add_id_prompt(place, call);
  if (count > MLX_MAX_PROMPTS)
    return mlx_field_error(place, MLX_INVALID_INPUT, "more than %d prompts", MLX_MAX_PROMPTS);
  yyjson_arr_foreach(place->value, index, max, value) {
    const mlx_place_t item = mlx_place_item(place, index, value);
    if (yyjson_is_str(value))
      MLX_TRY(add_text_prompt(value, call));
    else if (prompt_string(&item))
      MLX_TRY(add_text_prompt(prompt_string(&item), call));
    else if (yyjson_is_arr(value))
      MLX_TRY(add_id_prompt(&item, call));
    else
      return mlx_field_expected(&item, "a string or a list of token ids");
  }
  return NULL;
}

mlx_status_t mlx_prompt_fields_read_suffix(const mlx_place_t *root, const char *key, mlx_api_call_t *call) {
  const mlx_place_t place = mlx_place_key(root, key);
  if (!place.value || (yyjson_is_str(place.value) && !yyjson_get_len(place.value))) return NULL;
  if (!yyjson_is_str(place.value)) return mlx_field_expected(&place, "a string");
  if (call->prompt_count != 1 || !call->prompts[0].text)
    return mlx_field_error(&place, MLX_INVALID_INPUT, "needs one prompt, which is a text");
  call->infill.is_wanted = true;
  call->infill.suffix_length = yyjson_get_len(place.value);
  return mlx_copy_text(yyjson_get_str(place.value), call->infill.suffix_length, &call->infill.suffix);
}
