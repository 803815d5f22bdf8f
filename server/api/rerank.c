// Requests that score pairs of texts, and their responses.
#include "server/api/rerank.h"

#include "base/json_writer.h"
#include "base/memory.h"
#include "server/api/embeddings.h"
#include "server/api/openai_answer.h"

// A text, or an object with it as "text".
static mlx_status_t read_text(const mlx_place_t *place, const char **out, size_t *out_length) {
  const mlx_place_t inner = mlx_place_key(place, "text");
  yyjson_val *value = yyjson_is_obj(place->value) ? inner.value : place->value;
  if (!yyjson_is_str(value)) return mlx_field_expected(place, "a text or an object with the string \"text\"");
  *out = yyjson_get_str(value);
  *out_length = yyjson_get_len(value);
  return NULL;
}

// One side of the pairs: a text, or a list of texts.
typedef struct side {
  mlx_place_t place;
  bool is_list;
  size_t count;
} side_t;

static mlx_status_t find_side(const mlx_place_t *root, const char *key, side_t *out) {
  out->place = mlx_place_key(root, key);
  out->is_list = yyjson_is_arr(out->place.value);
  out->count = out->is_list ? yyjson_arr_size(out->place.value) : 1;
  if (out->count && out->count <= MLX_MAX_PAIRS) return NULL;
  return mlx_field_error(&out->place, MLX_INVALID_INPUT, "expected 1 to %d texts, not %zu", MLX_MAX_PAIRS,
                         out->count);
}

// Reads the text of |side| for each pair. One text belongs to all of them.
static mlx_status_t read_side(const side_t *side, bool second, mlx_rerank_input_t *input) {
  yyjson_arr_iter items;
  yyjson_val *item = NULL;
  if (side->is_list) yyjson_arr_iter_init(side->place.value, &items);
  for (size_t i = 0; i < input->count; ++i) {
    if (side->is_list && i < side->count) item = yyjson_arr_iter_next(&items);
    const mlx_place_t nth = mlx_place_item(&side->place, side->count > 1 ? i : 0, item);
    mlx_text_pair_t *pair = &input->pairs[i];
    MLX_TRY(read_text(side->is_list ? &nth : &side->place, second ? &pair->second : &pair->first,
                      second ? &pair->second_length : &pair->first_length));
  }
  return NULL;
}

static mlx_status_t read_pairs(const side_t *first, const side_t *second, mlx_rerank_input_t *input) {
  input->count = second->count;
  if (first->count != 1 && first->count != second->count)
    return mlx_field_error(&second->place, MLX_INVALID_INPUT,
                           "expected %zu texts, as many as '%s' has, not %zu", first->count, first->place.key,
                           second->count);
  MLX_TRY(mlx_alloc(input->count, sizeof *input->pairs, &input->pairs));
  MLX_TRY(read_side(first, false, input));
  return read_side(second, true, input);
}

static mlx_status_t read_ranking(const mlx_place_t *root, const char *key, mlx_rerank_input_t *input) {
  side_t query, documents;
  MLX_TRY(find_side(root, "query", &query));
  MLX_TRY(find_side(root, key, &documents));
  if (query.is_list) return mlx_field_expected(&query.place, "a text");
  if (!documents.is_list) return mlx_field_expected(&documents.place, "a list of texts");
  return read_pairs(&query, &documents, input);
}

static mlx_status_t read_instruction(const mlx_place_t *root, mlx_rerank_input_t *input) {
  const char *instruction = NULL;
  MLX_TRY(mlx_field_text(root, "instruction", &instruction));
  for (size_t i = 0; i < input->count; ++i) input->pairs[i].instruction = instruction;
  return NULL;
}

static mlx_status_t read_rerank(const mlx_place_t *root, mlx_rerank_input_t *input) {
  MLX_TRY(mlx_field_int(root, "top_n", 1, INT32_MAX, &input->top));
  MLX_TRY(mlx_field_bool(root, "return_documents", &input->returns_documents));
  MLX_TRY(read_ranking(root, "documents", input));
  return read_instruction(root, input);
}

static mlx_status_t read_tei(const mlx_place_t *root, mlx_rerank_input_t *input) {
  MLX_TRY(mlx_field_int(root, "top_n", 1, INT32_MAX, &input->top));  // llama.cpp's
  MLX_TRY(mlx_field_bool(root, "raw_scores", &input->raw));
  MLX_TRY(mlx_field_bool(root, "return_text", &input->returns_documents));
  return read_ranking(root, "texts", input);
}

static mlx_status_t read_score(const mlx_place_t *root, mlx_rerank_input_t *input) {
  side_t first, second;
  MLX_TRY(find_side(root, "text_1", &first));
  MLX_TRY(find_side(root, "text_2", &second));
  MLX_TRY(read_pairs(&first, &second, input));
  return read_instruction(root, input);
}

mlx_status_t mlx_rerank_parse(const mlx_rerank_api_t *api, const char *body, size_t length,
                              mlx_text_t *unknown, mlx_rerank_input_t *out) {
  *out = (mlx_rerank_input_t){.top = -1};
  MLX_TRY(mlx_fields_parse(body, length, &out->doc));
  const mlx_place_t root = mlx_place_root(out->doc, unknown);
  const bool is_tei = api == &mlx_rerank_cohere && mlx_place_key(&root, "texts").value;
  out->api = is_tei ? &mlx_rerank_tei : api;
  MLX_TRY(mlx_fields_check(&root, out->api->fields, false));
  MLX_TRY(mlx_field_text(&root, "model", &out->model));
  return out->api->read(&root, out);
}

void mlx_rerank_input_clear(mlx_rerank_input_t *input) {
  mlx_free(input->pairs);
  yyjson_doc_free(input->doc);
  *input = (mlx_rerank_input_t){0};
}

// ----------------------------------------------------------------------------------------------------------
// Responses

static size_t count_shown(const mlx_rerank_input_t *input) {
  return input->top >= 0 && (size_t)input->top < input->count ? (size_t)input->top : input->count;
}

static void begin(mlx_json_writer_t *json, const mlx_rerank_result_t *r) {
  mlx_json_begin_object(json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_text(json, "id", r->id);
  mlx_json_put_text(json, "object", "list");
  mlx_json_put_int(json, "created", r->created);
  mlx_json_put_text(json, "model", r->model);
}

static void end(mlx_json_writer_t *json, const mlx_rerank_result_t *r) {
  mlx_json_begin_object(json, "usage", MLX_JSON_COMPACT);
  mlx_json_put_int(json, "prompt_tokens", r->tokens);
  mlx_json_put_int(json, "total_tokens", r->tokens);
  mlx_json_end(json);
  mlx_json_end(json);
}

static void write_rerank(const mlx_rerank_result_t *r, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  const mlx_rerank_input_t *input = r->input;
  const size_t shown = count_shown(input);
  begin(&json, r);
  mlx_json_begin_list(&json, "results", MLX_JSON_COMPACT);
  for (size_t i = 0; i < shown; ++i) {
    const size_t index = r->order[i];
    mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
    mlx_json_put_uint(&json, "index", index);
    mlx_json_put_number(&json, "relevance_score", "%.9g", (double)r->scores[index]);
    if (input->returns_documents) {
      mlx_json_begin_object(&json, "document", MLX_JSON_COMPACT);
      mlx_json_put_bytes(&json, "text", input->pairs[index].second, input->pairs[index].second_length);
      mlx_json_end(&json);
    }
    mlx_json_end(&json);
  }
  mlx_json_end(&json);
  end(&json, r);
}

static void write_tei(const mlx_rerank_result_t *r, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_list(&json, NULL, MLX_JSON_COMPACT);
  for (size_t i = 0; i < count_shown(r->input); ++i) {
    const size_t index = r->order[i];
    const mlx_text_pair_t *pair = &r->input->pairs[index];
    mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
    mlx_json_put_uint(&json, "index", index);
    if (r->input->returns_documents) mlx_json_put_bytes(&json, "text", pair->second, pair->second_length);
    mlx_json_put_number(&json, "score", "%.9g", (double)r->scores[index]);
    mlx_json_end(&json);
  }
  mlx_json_end(&json);
}

static void write_score(const mlx_rerank_result_t *r, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  begin(&json, r);
  mlx_json_begin_list(&json, "data", MLX_JSON_COMPACT);
  for (size_t i = 0; i < r->input->count; ++i) {
    mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
    mlx_json_put_uint(&json, "index", i);
    mlx_json_put_text(&json, "object", "score");
    mlx_json_put_number(&json, "score", "%.9g", (double)r->scores[i]);
    mlx_json_end(&json);
  }
  mlx_json_end(&json);
  end(&json, r);
}

// ----------------------------------------------------------------------------------------------------------

static const mlx_field_t rerank_fields[] = {
    MLX_READ("query"),
    MLX_READ("documents"),
    MLX_READ("model"),
    MLX_READ("top_n"),
    MLX_READ("return_documents"),
    MLX_READ("instruction"),
    MLX_REFUSE_VALUE("rank_fields", "send the text of each document"),
    MLX_REFUSE_VALUE("max_chunks_per_doc", "a document is one pair with the query: split it before"),
    MLX_IGNORE("max_tokens_per_doc", "a pair is cut to the model's limit"),
    MLX_IGNORE("truncation", "a pair is cut to the model's limit"),
    MLX_IGNORE("user", "an identifier of the client's user"),
    MLX_FIELDS_END};

static const mlx_field_t tei_fields[] = {MLX_READ("query"),
                                         MLX_READ("texts"),
                                         MLX_READ("model"),
                                         MLX_READ("top_n"),
                                         MLX_READ("raw_scores"),
                                         MLX_READ("return_text"),
                                         MLX_IGNORE("truncate", "a pair is cut to the model's limit"),
                                         MLX_REFUSE_VALUE("documents", "send either texts or documents"),
                                         MLX_FIELDS_END};

static const mlx_field_t score_fields[] = {MLX_READ("text_1"),
                                           MLX_READ("text_2"),
                                           MLX_READ("model"),
                                           MLX_READ("instruction"),
                                           MLX_IGNORE("user", "an identifier of the client's user"),
                                           MLX_FIELDS_END};

const mlx_rerank_api_t mlx_rerank_cohere = {rerank_fields, read_rerank, write_rerank, mlx_openai_put_error};
const mlx_rerank_api_t mlx_rerank_tei = {tei_fields, read_tei, write_tei, mlx_tei_write_error};
const mlx_rerank_api_t mlx_rerank_score = {score_fields, read_score, write_score, mlx_openai_put_error};
