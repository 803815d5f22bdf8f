// Parses and checks a request for embeddings.
#include "server/embeddings_input.h"

#include <string.h>

#include "base/memory.h"

static bool is_ids(yyjson_val *value) {
  return yyjson_is_arr(value) && yyjson_is_int(yyjson_arr_get_first(value));
}

static mlx_status_t add_input(mlx_embeddings_input_t *e, const mlx_place_t *place) {
  if (!yyjson_is_str(place->value) && !is_ids(place->value))
    return mlx_field_expected(place, "a text or a list of token ids");
  if (!yyjson_get_len(place->value)) return mlx_field_error(place, MLX_INVALID_INPUT, "the input is empty");
  e->inputs[e->count++] = place->value;
  return NULL;
}

static mlx_status_t read_inputs(mlx_embeddings_input_t *e, const mlx_place_t *root) {
  const mlx_place_t input = mlx_place_key(root, "input");
  const bool is_list = yyjson_is_arr(input.value) && !is_ids(input.value);
  const size_t count = is_list ? yyjson_arr_size(input.value) : 1;
  if (!count || count > MLX_MAX_EMBEDDINGS)
    return mlx_field_error(&input, MLX_INVALID_INPUT, "expected 1 to %d inputs, not %zu", MLX_MAX_EMBEDDINGS,
                           count);
  MLX_TRY(mlx_alloc(count, sizeof *e->inputs, &e->inputs));
  if (!is_list) return add_input(e, &input);
  yyjson_val *value;
  size_t index, max;
  yyjson_arr_foreach(input.value, index, max, value) {
    const mlx_place_t item = mlx_place_item(&input, index, value);
    MLX_TRY(add_input(e, &item));
  }
  return NULL;
}

static mlx_status_t read_format(mlx_embeddings_input_t *e, const mlx_place_t *root) {
  const char *format = "float";
  const mlx_place_t place = mlx_place_key(root, "encoding_format");
  MLX_TRY(mlx_field_text(root, "encoding_format", &format));
  e->base64 = !strcmp(format, "base64");
  if (e->base64 || !strcmp(format, "float")) return NULL;
  return mlx_field_error(&place, MLX_INVALID_INPUT, "expected \"float\" or \"base64\", not \"%s\"", format);
}

mlx_status_t mlx_embeddings_parse(const char *body, size_t length, bool ollama, mlx_embeddings_input_t *out) {
  static const mlx_field_t openai[] = {MLX_READ("input"),
                                       MLX_READ("model"),
                                       MLX_READ("encoding_format"),
                                       MLX_READ("dimensions"),
                                       MLX_IGNORE("user", "an identifier of the client's user"),
                                       MLX_FIELDS_END};
  static const mlx_field_t ollamas[] = {
      MLX_READ("input"),
      MLX_READ("model"),
      MLX_READ("dimensions"),
      MLX_IGNORE("truncate", "an input that is too long is always an error"),
      MLX_IGNORE("options", "an embedding has no sampling options"),
      MLX_IGNORE("keep_alive", "--model-memory decides which models stay loaded"),
      MLX_FIELDS_END};
  *out = (mlx_embeddings_input_t){.dimensions = -1};
  MLX_TRY(mlx_fields_parse(body, length, &out->doc));
  const mlx_place_t root = mlx_place_root(out->doc);
  MLX_TRY(mlx_fields_check(&root, ollama ? ollamas : openai, false));
  MLX_TRY(mlx_field_text(&root, "model", &out->model));
  MLX_TRY(mlx_field_int(&root, "dimensions", 1, 1 << 24, &out->dimensions));
  if (!ollama) MLX_TRY(read_format(out, &root));
  return read_inputs(out, &root);
}

void mlx_embeddings_input_clear(mlx_embeddings_input_t *input) {
  mlx_free(input->inputs);
  yyjson_doc_free(input->doc);
  *input = (mlx_embeddings_input_t){0};
}

mlx_status_t mlx_embeddings_ids(const mlx_embeddings_input_t *input, size_t index, int64_t vocab,
                                int32_t *out) {
  const mlx_place_t root = mlx_place_root(input->doc), all = mlx_place_key(&root, "input"),
                    nth = mlx_place_item(&all, index, input->inputs[index]);
  const mlx_place_t *ids = all.value == nth.value ? &all : &nth;  // "input" may be one list of ids
  yyjson_val *value;
  size_t i, max;
  yyjson_arr_foreach(ids->value, i, max, value) {
    const mlx_place_t item = mlx_place_item(ids, i, value);
    if (!yyjson_is_int(value) || yyjson_get_sint(value) < 0 || yyjson_get_sint(value) >= vocab)
      return mlx_field_error(&item, MLX_INVALID_INPUT, "expected a token id below %lld", (long long)vocab);
    out[i] = (int32_t)yyjson_get_sint(value);
  }
  return NULL;
}
