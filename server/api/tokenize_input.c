// Parses and checks requests to /tokenize and /detokenize.
#include "server/api/tokenize_input.h"

static mlx_status_t parse_body(const char *body, size_t length, const mlx_field_t *fields,
                               mlx_text_t *unknown, mlx_text_input_t *out) {
  *out = (mlx_text_input_t){.plain = -1};
  MLX_TRY(mlx_fields_parse(body, length, &out->doc));
  const mlx_place_t root = mlx_place_root(out->doc, unknown);
  MLX_TRY(mlx_fields_check(&root, fields, false));
  return mlx_field_text(&root, "model", &out->model);
}

// llama.cpp's "content" adds no start token by default, vLLM's "prompt" does.
mlx_status_t mlx_tokenize_parse(const char *body, size_t length, mlx_text_t *unknown, mlx_text_input_t *out) {
  static const mlx_field_t fields[] = {MLX_READ("content"),
                                       MLX_READ("prompt"),
                                       MLX_READ("model"),
                                       MLX_READ("add_special"),
                                       MLX_READ("add_special_tokens"),
                                       MLX_READ("with_pieces"),
                                       MLX_READ("parse_special"),
                                       MLX_FIELDS_END};
  MLX_TRY(parse_body(body, length, fields, unknown, out));
  const mlx_place_t root = mlx_place_root(out->doc, NULL);
  const mlx_place_t content = mlx_place_key(&root, "content"), prompt = mlx_place_key(&root, "prompt");
  const mlx_place_t *text = prompt.value ? &prompt : &content;
  if (!yyjson_is_str(text->value)) return mlx_field_expected(text, "a text");
  out->text = yyjson_get_str(text->value);
  out->length = yyjson_get_len(text->value);
  out->special = prompt.value != NULL;
  MLX_TRY(mlx_field_parse_special(&root, &out->plain));
  MLX_TRY(mlx_field_bool(&root, "add_special", &out->special));
  MLX_TRY(mlx_field_bool(&root, "add_special_tokens", &out->special));
  return mlx_field_bool(&root, "with_pieces", &out->pieces);
}

mlx_status_t mlx_detokenize_parse(const char *body, size_t length, mlx_text_t *unknown,
                                  mlx_text_input_t *out) {
  static const mlx_field_t fields[] = {MLX_READ("tokens"), MLX_READ("model"), MLX_FIELDS_END};
  MLX_TRY(parse_body(body, length, fields, unknown, out));
  const mlx_place_t root = mlx_place_root(out->doc, NULL), tokens = mlx_place_key(&root, "tokens");
  if (!yyjson_is_arr(tokens.value)) return mlx_field_expected(&tokens, "a list of token ids");
  out->tokens = tokens.value;
  out->count = yyjson_arr_size(tokens.value);
  return NULL;
}

void mlx_text_input_clear(mlx_text_input_t *input) {
  yyjson_doc_free(input->doc);
  *input = (mlx_text_input_t){0};
}

mlx_status_t mlx_detokenize_ids(const mlx_text_input_t *input, int64_t vocab, int32_t *out) {
  const mlx_place_t root = mlx_place_root(input->doc, NULL), tokens = mlx_place_key(&root, "tokens");
  yyjson_val *value;
  size_t index, max;
  yyjson_arr_foreach(input->tokens, index, max, value) {
    const mlx_place_t item = mlx_place_item(&tokens, index, value);
    if (!yyjson_is_int(value) || yyjson_get_sint(value) < 0 || yyjson_get_sint(value) >= vocab)
      return mlx_field_error(&item, MLX_INVALID_INPUT, "expected a token id below %lld", (long long)vocab);
    out[index] = (int32_t)yyjson_get_sint(value);
  }
  return NULL;
}
