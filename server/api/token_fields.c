// vLLM's fields about token ids, and SGLang's about experts.
#include "server/api/token_fields.h"

#include <math.h>
#include <string.h>

#include "base/encoding.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "server/api/openai_answer.h"

#define MAX_BAD_WORDS 1024
#define MAX_STOP_IDS 1024

// Reads a list of token ids. Release with mlx_free.
static mlx_status_t read_ids(const mlx_place_t *list, int32_t **out_ids, size_t *out_count) {
  size_t index, max;
  yyjson_val *value;
  *out_ids = NULL;
  *out_count = 0;
  if (!list->value) return NULL;
  if (!yyjson_is_arr(list->value)) return mlx_field_expected(list, "a list of token ids");
  MLX_TRY(mlx_alloc(yyjson_arr_size(list->value), sizeof **out_ids, out_ids));
  yyjson_arr_foreach(list->value, index, max, value) {
    const mlx_place_t item = mlx_place_item(list, index, value);
    if (!yyjson_is_uint(value) || yyjson_get_uint(value) > INT32_MAX)
      return mlx_field_error(&item, MLX_INVALID_INPUT, "expected a token id");
    (*out_ids)[(*out_count)++] = (int32_t)yyjson_get_uint(value);
  }
  return NULL;
}

static mlx_status_t read_bad_words(const mlx_place_t *root, mlx_api_call_t *call) {
  const mlx_place_t place = mlx_place_key(root, "bad_words");
  size_t index, max;
  yyjson_val *value;
  if (!place.value) return NULL;
  if (!yyjson_is_arr(place.value)) return mlx_field_expected(&place, "a list of strings");
  if (yyjson_arr_size(place.value) > MAX_BAD_WORDS)
    return mlx_field_error(&place, MLX_INVALID_INPUT, "more than %d words", MAX_BAD_WORDS);
  MLX_TRY(mlx_alloc(yyjson_arr_size(place.value), sizeof *call->bad_words, &call->bad_words));
  yyjson_arr_foreach(place.value, index, max, value) {
    const mlx_place_t item = mlx_place_item(&place, index, value);
    if (!yyjson_is_str(value)) return mlx_field_expected(&item, "a string");
    const char *text = yyjson_get_str(value);
    const size_t length = yyjson_get_len(value);
    if (!length || length > MLX_MAX_STOP_LENGTH || strlen(text) != length)
      return mlx_field_error(&item, MLX_INVALID_INPUT, "expected 1 to %d bytes without NUL",
                             MLX_MAX_STOP_LENGTH);
    MLX_TRY(mlx_copy_text(text, length, &call->bad_words[call->bad_word_count]));
    ++call->bad_word_count;
  }
  return NULL;
}

static mlx_status_t read_prompt_logprobs(const mlx_place_t *root, mlx_api_call_t *call) {
  const mlx_place_t place = mlx_place_key(root, "prompt_logprobs");
  MLX_TRY(mlx_field_int(root, "prompt_logprobs", 0, MLX_MAX_LOGPROBS, &call->prompt_logprobs));
  if (call->prompt_logprobs < 0 || !call->stream) return NULL;
  return mlx_status_hint(mlx_field_error(&place, MLX_INVALID_INPUT, "not possible in a stream"),
                         "leave out stream");
}

static mlx_status_t read_routes(const mlx_place_t *root, mlx_api_call_t *call) {
  const mlx_place_t place = mlx_place_key(root, "return_routed_experts");
  MLX_TRY(mlx_field_bool(root, "return_routed_experts", &call->return_routes));
  MLX_TRY(mlx_field_int(root, "routed_experts_start_len", 0, INT32_MAX, &call->routes_from));
  if (!call->return_routes || !call->stream) return NULL;
  return mlx_status_hint(mlx_field_error(&place, MLX_INVALID_INPUT, "not possible in a stream"),
                         "leave out stream");
}

mlx_status_t mlx_token_fields_read(const mlx_place_t *root, mlx_api_call_t *call) {
  const mlx_place_t stops = mlx_place_key(root, "stop_token_ids"),
                    allowed = mlx_place_key(root, "allowed_token_ids"),
                    truncate = mlx_place_key(root, "truncate_prompt_tokens");
  if (yyjson_arr_size(stops.value) > MAX_STOP_IDS)
    return mlx_field_error(&stops, MLX_INVALID_INPUT, "more than %d token ids", MAX_STOP_IDS);
  MLX_TRY(read_ids(&stops, &call->stop_ids, &call->stop_id_count));
  MLX_TRY(read_ids(&allowed, &call->allowed_ids, &call->allowed_id_count));
  if (allowed.value && !call->allowed_id_count)
    return mlx_field_error(&allowed, MLX_INVALID_INPUT, "expected at least one token id");
  MLX_TRY(mlx_field_int(root, "min_tokens", 0, INT32_MAX, &call->min_tokens));
  MLX_TRY(mlx_field_bool(root, "return_token_ids", &call->return_ids));
  int64_t most = -1;
  MLX_TRY(mlx_field_int(root, "truncate_prompt_tokens", -1, INT32_MAX, &most));
  if (truncate.value && !most)
    return mlx_field_error(&truncate, MLX_INVALID_INPUT,
                           "expected at least one token, or -1 for the context");
  call->truncate_prompt = !truncate.value ? -1 : most < 0 ? 0 : most;
  MLX_TRY(read_bad_words(root, call));
  MLX_TRY(read_routes(root, call));
  return read_prompt_logprobs(root, call);
}

// ----------------------------------------------------------------------------------------------------------
// Answers

// The base64 text of i32 numbers in little-endian order.
static mlx_status_t put_experts(mlx_json_writer_t *json, const mlx_answer_routes_t *routes, size_t count) {
  mlx_text_t text = {0};
  int32_t *numbers;
  MLX_TRY(mlx_alloc(count, sizeof *numbers, &numbers));
  for (size_t i = 0; i < count; ++i) numbers[i] = routes->experts[i];
  mlx_base64_append(&text, numbers, count * sizeof *numbers);
  mlx_free(numbers);
  mlx_json_put_bytes(json, "routed_experts", text.data ? text.data : "", text.length);
  mlx_status_t status = mlx_text_finish(&text);
  mlx_text_clear(&text);
  return status;
}

void mlx_token_fields_put_routes(mlx_json_writer_t *json, const mlx_api_call_t *call,
                                 const mlx_answer_routes_t *routes) {
  if (!call->return_routes) return;
  const int32_t shape[] = {(int32_t)routes->tokens, (int32_t)routes->layers, (int32_t)routes->used};
  mlx_json_begin_object(json, "sgl_ext", MLX_JSON_COMPACT);
  mlx_status_t status = put_experts(json, routes, routes->tokens * (size_t)(routes->layers * routes->used));
  if (status) json->out->failed = true;
  mlx_status_free(status);
  mlx_json_put_ints(json, "routed_experts_shape", shape, 3);
  mlx_json_end(json);
}

void mlx_token_fields_put_choice(mlx_json_writer_t *json, const mlx_api_call_t *call,
                                 const mlx_answer_choice_t *choice) {
  if (call->return_ids) mlx_json_put_ints(json, "token_ids", choice->ids, choice->id_count);
  mlx_token_fields_put_routes(json, call, &choice->routes);
}

// vLLM's {"ID": {"logprob": ..., "rank": ..., "decoded_token": ...}}. The rank of a token that is not among
// the most likely ones is unknown.
static void put_entry(mlx_json_writer_t *json, const mlx_answer_logprob_t *entry, int64_t rank) {
  char id[16];
  snprintf(id, sizeof id, "%d", entry->id);
  mlx_json_begin_object(json, id, MLX_JSON_COMPACT);
  mlx_openai_put_logprob(json, "logprob", entry->logprob);
  if (rank)
    mlx_json_put_int(json, "rank", rank);
  else
    mlx_json_put_null(json, "rank");
  mlx_openai_put_token(json, "decoded_token", entry);
  mlx_json_end(json);
}

static void put_position(mlx_json_writer_t *json, const mlx_answer_token_t *token) {
  bool listed = false;
  if (isnan(token->chosen.logprob)) {  // nothing precedes the first token
    mlx_json_put_null(json, NULL);
    return;
  }
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  for (size_t i = 0; i < token->top_count; ++i) {
    put_entry(json, &token->top[i], (int64_t)i + 1);
    listed = listed || token->top[i].id == token->chosen.id;
  }
  if (!listed) put_entry(json, &token->chosen, 0);
  mlx_json_end(json);
}

void mlx_token_fields_put_prompt(mlx_json_writer_t *json, const mlx_api_call_t *call,
                                 const mlx_answer_choice_t *choice, size_t prompt) {
  if (call->return_ids && prompt < call->prompt_count)
    mlx_json_put_ints(json, "prompt_token_ids", call->prompts[prompt].ids, call->prompts[prompt].id_count);
  if (call->prompt_logprobs < 0 || !choice) return;
  mlx_json_begin_list(json, "prompt_logprobs", MLX_JSON_COMPACT);
  for (size_t i = 0; i < choice->prompt_token_count; ++i) put_position(json, &choice->prompt_tokens[i]);
  mlx_json_end(json);
}
