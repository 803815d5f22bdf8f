// The errand of a request for embeddings: one task for each input.
#include "server/embeddings.h"

#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/fields.h"
#include "server/job.h"
#include "server/respond.h"

#define MAX_INPUTS 2048

typedef struct errand {
  mlx_errand_t base;
  bool ollama, base64;
  yyjson_doc *doc;  // owned: the body
  const char *model;
  int64_t dimensions;   // -1: as many as the model has
  yyjson_val **inputs;  // owned: the values of the inputs, in |doc|
  size_t count;
  int32_t **ids;      // [count] owned
  float **results;    // [count] owned
  size_t size;        // numbers of an embedding
  int64_t tokens;     // of all inputs
  mlx_task_t *tasks;  // [count] owned
  mlx_generate_options_t options;
  atomic_bool submitted;
  mlx_work_t response;
  // Scheduler thread only, until the response is written.
  mlx_after_step_t after;
  size_t done;
  mlx_status_t status;  // owned: why the first task failed
} errand_t;

static errand_t *cast(mlx_errand_t *base) { return (errand_t *)(void *)base; }

// ----------------------------------------------------------------------------------------------------------
// Parse

static bool is_ids(yyjson_val *value) {
  return yyjson_is_arr(value) && yyjson_is_int(yyjson_arr_get_first(value));
}

static mlx_status_t add_input(errand_t *e, const mlx_place_t *place) {
  if (!yyjson_is_str(place->value) && !is_ids(place->value))
    return mlx_field_expected(place, "a text or a list of token ids");
  if (!yyjson_get_len(place->value)) return mlx_field_error(place, MLX_INVALID_INPUT, "the input is empty");
  e->inputs[e->count++] = place->value;
  return NULL;
}

static mlx_status_t read_inputs(errand_t *e, const mlx_place_t *root) {
  const mlx_place_t input = mlx_place_key(root, "input");
  const bool is_list = yyjson_is_arr(input.value) && !is_ids(input.value);
  const size_t count = is_list ? yyjson_arr_size(input.value) : 1;
  if (!count || count > MAX_INPUTS)
    return mlx_field_error(&input, MLX_INVALID_INPUT, "expected 1 to %d inputs, not %zu", MAX_INPUTS, count);
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

static mlx_status_t read_format(errand_t *e, const mlx_place_t *root) {
  const char *format = "float";
  const mlx_place_t place = mlx_place_key(root, "encoding_format");
  MLX_TRY(mlx_field_text(root, "encoding_format", &format));
  e->base64 = !strcmp(format, "base64");
  if (e->base64 || !strcmp(format, "float")) return NULL;
  return mlx_field_error(&place, MLX_INVALID_INPUT, "expected \"float\" or \"base64\", not \"%s\"", format);
}

static mlx_status_t parse(mlx_errand_t *base, const char **out_model) {
  static const mlx_field_t openai[] = {MLX_READ("input"),
                                       MLX_READ("model"),
                                       MLX_READ("encoding_format"),
                                       MLX_READ("dimensions"),
                                       MLX_IGNORE("user", "an identifier of the client's user"),
                                       MLX_FIELDS_END};
  static const mlx_field_t ollama[] = {
      MLX_READ("input"),
      MLX_READ("model"),
      MLX_READ("dimensions"),
      MLX_IGNORE("truncate", "an input that is too long is always an error"),
      MLX_IGNORE("options", "an embedding has no sampling options"),
      MLX_IGNORE("keep_alive", "--model-memory decides which models stay loaded"),
      MLX_FIELDS_END};
  errand_t *e = cast(base);
  size_t length;
  const char *body = mlx_exchange_body(base->exchange, &length);
  MLX_TRY(mlx_fields_parse(body, length, &e->doc));
  const mlx_place_t root = mlx_place_root(e->doc);
  MLX_TRY(mlx_fields_check(&root, e->ollama ? ollama : openai, false));
  MLX_TRY(mlx_field_text(&root, "model", &e->model));
  e->dimensions = -1;
  MLX_TRY(mlx_field_int(&root, "dimensions", 1, 1 << 24, &e->dimensions));
  if (!e->ollama) MLX_TRY(read_format(e, &root));
  *out_model = e->model;
  return read_inputs(e, &root);
}

// ----------------------------------------------------------------------------------------------------------
// Response

static void put_base64(mlx_text_t *out, const unsigned char *bytes, size_t length) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  mlx_text_puts(out, "\"");
  for (size_t i = 0; i < length; i += 3) {
    const size_t left = length - i;
    const unsigned group = (unsigned)bytes[i] << 16 | (left > 1 ? (unsigned)bytes[i + 1] << 8 : 0) |
                           (left > 2 ? bytes[i + 2] : 0);
    const char text[4] = {digits[group >> 18], digits[group >> 12 & 63],
                          left > 1 ? digits[group >> 6 & 63] : '=', left > 2 ? digits[group & 63] : '='};
    mlx_text_append(out, text, 4);
  }
  mlx_text_puts(out, "\"");
}

static void put_embedding(const errand_t *e, size_t index, mlx_text_t *out) {
  const float *numbers = e->results[index];
  if (e->base64) {
    put_base64(out, (const unsigned char *)numbers, e->size * sizeof *numbers);  // little endian
    return;
  }
  for (size_t i = 0; i < e->size; ++i) mlx_text_printf(out, "%s%.9g", i ? "," : "[", (double)numbers[i]);
  mlx_text_puts(out, "]");
}

static void respond_openai(const errand_t *e, mlx_text_t *out) {
  mlx_text_puts(out, "{\"object\":\"list\",\"data\":[");
  for (size_t i = 0; i < e->count; ++i) {
    mlx_text_printf(out, "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i ? "," : "", i);
    put_embedding(e, i, out);
    mlx_text_puts(out, "}");
  }
  mlx_text_puts(out, "]");
  mlx_put_text(out, "model", mlx_model_name(e->base.model));
  mlx_text_printf(out, ",\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld}}", (long long)e->tokens,
                  (long long)e->tokens);
}

static void respond_ollama(const errand_t *e, mlx_text_t *out) {
  mlx_text_puts(out, "{");
  mlx_put_text(out, "model", mlx_model_name(e->base.model));
  mlx_text_puts(out, ",\"embeddings\":[");
  for (size_t i = 0; i < e->count; ++i) {
    if (i) mlx_text_puts(out, ",");
    put_embedding(e, i, out);
  }
  mlx_text_puts(out, "]");
  mlx_put_int(out, "total_duration", (int64_t)((mlx_seconds() - e->base.record->start) * 1e9));
  mlx_put_int(out, "load_duration", 0);
  mlx_put_int(out, "prompt_eval_count", e->tokens);
  mlx_text_puts(out, "}");
}

// On a worker: the texts of many embeddings take longer to write than a step.
static void respond(mlx_work_t *work) {
  errand_t *e = (errand_t *)(void *)((char *)work - offsetof(errand_t, response));
  mlx_text_t body = {0};
  if (e->status) {
    const mlx_failure_t failure = {.kind = MLX_FAILURE_RUN, .status = e->status};
    mlx_failure_respond(&failure, e->base.error, e->base.exchange);
  } else {
    if (e->ollama)
      respond_ollama(e, &body);
    else
      respond_openai(e, &body);
    mlx_respond_json(e->base.exchange, 200, &body);
  }
  mlx_errand_end(&e->base);
}

static void after_step(mlx_after_step_t *after) {
  errand_t *e = (errand_t *)(void *)((char *)after - offsetof(errand_t, after));
  if (e->done == e->count) mlx_workers_push(e->base.service->workers, &e->response);
}

static void on_done(mlx_task_t *task, const mlx_generation_t *g, mlx_status_t status) {
  errand_t *e = task->user;
  float **result = &e->results[task - e->tasks];
  mlx_serving_after_step(task->serving, &e->after);
  ++e->done;
  if (!status && !g->embedding) status = mlx_error(MLX_CANCELLED, "the request was cancelled");
  if (!status) status = mlx_alloc(e->size, sizeof **result, result);
  if (!status) memcpy(*result, g->embedding, e->size * sizeof **result);
  e->status = mlx_status_join(e->status, status);
}

// ----------------------------------------------------------------------------------------------------------
// Run

static mlx_status_t tokenize(errand_t *e, const mlx_engine_t *engine, size_t index) {
  yyjson_val *input = e->inputs[index], *value;
  size_t i, max, *count = &e->tasks[index].count;
  const int64_t vocab = mlx_engine_info(engine).vocab;
  if (yyjson_is_str(input)) {
    MLX_TRY(mlx_engine_tokenize(engine, yyjson_get_str(input), yyjson_get_len(input), &e->ids[index], count));
  } else {
    MLX_TRY(mlx_alloc(yyjson_arr_size(input), sizeof **e->ids, &e->ids[index]));
    yyjson_arr_foreach(input, i, max, value) {
      if (!yyjson_is_int(value) || yyjson_get_sint(value) < 0 || yyjson_get_sint(value) >= vocab)
        return mlx_error(MLX_INVALID_INPUT, "input[%zu][%zu]: expected a token id below %lld", index, i,
                         (long long)vocab);
      e->ids[index][(*count)++] = (int32_t)yyjson_get_sint(value);
    }
  }
  if (!*count) return mlx_error(MLX_INVALID_INPUT, "input[%zu]: the text has no tokens", index);
  e->tokens += (int64_t)*count;
  return mlx_job_check_context(engine, *count, &e->base.failure);
}

static mlx_status_t make_tasks(errand_t *e, mlx_serving_t *serving) {
  const mlx_engine_t *engine = mlx_serving_engine(serving);
  const int64_t size = mlx_engine_info(engine).hidden;
  if (e->dimensions >= 0 && e->dimensions != size)
    return mlx_error(MLX_UNSUPPORTED,
                     "dimensions: the model's embeddings have %lld numbers; shorter ones are "
                     "not supported",
                     (long long)size);
  e->size = (size_t)size;
  mlx_generate_options_initialize(&e->options);
  e->options.embed = true;
  e->after.run = after_step;
  e->response.run = respond;
  MLX_TRY(mlx_alloc(e->count, sizeof *e->ids, &e->ids));
  MLX_TRY(mlx_alloc(e->count, sizeof *e->results, &e->results));
  MLX_TRY(mlx_alloc(e->count, sizeof *e->tasks, &e->tasks));
  for (size_t i = 0; i < e->count; ++i) {
    MLX_TRY(tokenize(e, engine, i));
    e->tasks[i] = (mlx_task_t){.serving = serving,
                               .ids = e->ids[i],
                               .count = e->tasks[i].count,
                               .options = &e->options,
                               .on_done = on_done,
                               .user = e};
  }
  return NULL;
}

static void on_gone(mlx_errand_t *base) {
  errand_t *e = cast(base);
  if (!atomic_load(&e->submitted)) return;
  for (size_t i = 0; i < e->count; ++i) mlx_serving_cancel(&e->tasks[i]);
}

static mlx_status_t run(mlx_errand_t *base, bool *out_kept) {
  errand_t *e = cast(base);
  mlx_serving_t *serving = mlx_model_serving(base->model);
  bool full;
  MLX_TRY(make_tasks(e, serving));
  atomic_store(&base->record->prompt_tokens, e->tokens);
  *out_kept = true;
  atomic_store(&e->submitted, true);
  if (atomic_load(&base->gone)) on_gone(base);
  mlx_status_t status = mlx_serving_submit(serving, e->tasks, e->count, &full);
  if (!status && !full) return NULL;
  *out_kept = false;
  if (!full) return status;
  base->failure.kind = MLX_FAILURE_QUEUE;
  return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "too many requests are waiting"), "try again later");
}

static void clear(mlx_errand_t *base) {
  errand_t *e = cast(base);
  for (size_t i = 0; i < e->count; ++i) {
    if (e->ids) mlx_engine_free_ids(e->ids[i]);
    if (e->results) mlx_free(e->results[i]);
  }
  mlx_free(e->ids);
  mlx_free(e->results);
  mlx_free(e->tasks);
  mlx_free(e->inputs);
  mlx_status_free(e->status);
  yyjson_doc_free(e->doc);
}

static const mlx_errand_kind_t embeddings_kind = {
    .size = sizeof(errand_t), .parse = parse, .run = run, .on_gone = on_gone, .clear = clear};

mlx_status_t mlx_embeddings_start(mlx_service_t *service, bool ollama, mlx_exchange_t *exchange) {
  mlx_errand_t *errand;
  MLX_TRY(mlx_errand_create(&embeddings_kind, service, exchange, &errand));
  cast(errand)->ollama = ollama;
  if (ollama) errand->error = mlx_shape_ollama_chat.error;
  mlx_errand_start(errand);
  return NULL;
}
