// The errand of a request for embeddings: one task for each input.
#include "server/embeddings.h"

#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/embeddings_input.h"
#include "server/job.h"
#include "server/respond.h"

typedef struct errand {
  mlx_errand_t base;
  bool ollama;
  mlx_embeddings_input_t input;
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

static mlx_status_t parse(mlx_errand_t *base, const char **out_model) {
  errand_t *e = cast(base);
  size_t length;
  const char *body = mlx_exchange_body(base->exchange, &length);
  MLX_TRY(mlx_embeddings_parse(body, length, e->ollama, &e->input));
  *out_model = e->input.model;
  return NULL;
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
  if (e->input.base64) {
    put_base64(out, (const unsigned char *)numbers, e->size * sizeof *numbers);  // little endian
    return;
  }
  for (size_t i = 0; i < e->size; ++i) mlx_text_printf(out, "%s%.9g", i ? "," : "[", (double)numbers[i]);
  mlx_text_puts(out, "]");
}

static void respond_openai(const errand_t *e, mlx_text_t *out) {
  mlx_text_puts(out, "{\"object\":\"list\",\"data\":[");
  for (size_t i = 0; i < e->input.count; ++i) {
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
  for (size_t i = 0; i < e->input.count; ++i) {
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
  if (e->done == e->input.count) mlx_workers_push(e->base.service->workers, &e->response);
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
  yyjson_val *input = e->input.inputs[index];
  size_t *count = &e->tasks[index].count;
  if (yyjson_is_str(input)) {
    MLX_TRY(mlx_engine_tokenize(engine, yyjson_get_str(input), yyjson_get_len(input), &e->ids[index], count));
  } else {
    MLX_TRY(mlx_alloc(yyjson_arr_size(input), sizeof **e->ids, &e->ids[index]));
    MLX_TRY(mlx_embeddings_ids(&e->input, index, mlx_engine_info(engine).vocab, e->ids[index]));
    *count = yyjson_arr_size(input);
  }
  if (!*count) return mlx_error(MLX_INVALID_INPUT, "input[%zu]: the text has no tokens", index);
  e->tokens += (int64_t)*count;
  return mlx_job_check_context(engine, *count, &e->base.failure);
}

static mlx_status_t make_tasks(errand_t *e, mlx_serving_t *serving) {
  const mlx_engine_t *engine = mlx_serving_engine(serving);
  const int64_t size = mlx_engine_info(engine).hidden;
  if (e->input.dimensions >= 0 && e->input.dimensions != size)
    return mlx_error(MLX_UNSUPPORTED,
                     "dimensions: the model's embeddings have %lld numbers; shorter ones are "
                     "not supported",
                     (long long)size);
  e->size = (size_t)size;
  mlx_generate_options_initialize(&e->options);
  e->options.embed = true;
  e->after.run = after_step;
  e->response.run = respond;
  MLX_TRY(mlx_alloc(e->input.count, sizeof *e->ids, &e->ids));
  MLX_TRY(mlx_alloc(e->input.count, sizeof *e->results, &e->results));
  MLX_TRY(mlx_alloc(e->input.count, sizeof *e->tasks, &e->tasks));
  for (size_t i = 0; i < e->input.count; ++i) {
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
  for (size_t i = 0; i < e->input.count; ++i) mlx_serving_cancel(&e->tasks[i]);
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
  mlx_status_t status = mlx_serving_submit(serving, e->tasks, e->input.count, &full);
  if (!status && !full) return NULL;
  *out_kept = false;
  if (!full) return status;
  base->failure.kind = MLX_FAILURE_QUEUE;
  return mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "too many requests are waiting"), "try again later");
}

static void clear(mlx_errand_t *base) {
  errand_t *e = cast(base);
  for (size_t i = 0; i < e->input.count; ++i) {
    if (e->ids) mlx_engine_free_ids(e->ids[i]);
    if (e->results) mlx_free(e->results[i]);
  }
  mlx_free(e->ids);
  mlx_free(e->results);
  mlx_free(e->tasks);
  mlx_status_free(e->status);
  mlx_embeddings_input_clear(&e->input);
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
