// The stages of a request for embeddings: one task for each input.
#include "server/core/embed.h"

#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "runtime/rooms.h"
#include "server/core/job.h"
#include "server/core/json_response.h"

typedef struct embed {
  mlx_job_t *job;
  const mlx_embeddings_api_t *api;
  mlx_embeddings_input_t input;
  int32_t **ids;                    // [count] owned
  float **results;                  // [count] owned
  size_t size;                      // numbers of an embedding
  bool finishes;                    // the scheduler's embeddings are not yet those of the response
  bool normalizes;                  // those of the response have the norm 1
  const char *prompt;               // borrowed from the engine: what is put before each text
  int64_t tokens;                   // of all inputs
  mlx_task_t *tasks;                // [count] owned
  mlx_generate_options_t *options;  // owned: of each round of texts
  atomic_bool submitted;
  mlx_workers_item_t response;
  // Scheduler thread only, until the response is written.
  mlx_after_step_t after;
  size_t done;
  mlx_status_t status;  // owned: why the first task failed
} embed_t;

// ----------------------------------------------------------------------------------------------------------
// Parse

static void find_loaded(void *user, mlx_served_model_t *model, mlx_servings_t *servings) {
  const char **name = user;
  const mlx_engine_t *engine = mlx_serving_engine(mlx_servings_at(servings, 0));
  if (!*name && mlx_engine_info(engine).is_encoder) *name = mlx_served_model_name(model);
}

bool mlx_embed_is_sentence_folder(const mlx_served_model_t *model) {
  mlx_text_t path = {0};
  mlx_text_printf(&path, "%s/modules.json", mlx_served_model_path(model));
  const bool found = path.data && !path.failed && mlx_is_file(path.data);
  mlx_text_clear(&path);
  return found;
}

const char *mlx_embed_default_model(mlx_models_t *models) {
  const char *name = NULL;
  mlx_served_model_t *model;
  for (size_t i = 0; !name && (model = mlx_models_at(models, i)); ++i) {
    if (mlx_embed_is_sentence_folder(model)) name = mlx_served_model_name(model);
  }
  if (!name) mlx_models_visit_loaded(models, find_loaded, &name);
  return name;
}

static mlx_status_t parse(mlx_job_t *job, const char **out_model) {
  embed_t *e = job->state;
  size_t length;
  const char *body = mlx_exchange_body(job->exchange, &length);
  MLX_TRY(mlx_embeddings_parse(e->api, body, length, job->unknown, &e->input));
  const bool is_named = e->input.model && *e->input.model;
  *out_model = is_named ? e->input.model : mlx_embed_default_model(job->service->models);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Response

static void write_answer(const embed_t *e) {
  mlx_text_t body = {0};
  e->api->write(&(mlx_embeddings_t){.model = mlx_served_model_name(e->job->model),
                                    .items = e->results,
                                    .count = e->input.count,
                                    .size = e->size,
                                    .base64 = e->input.base64,
                                    .tokens = e->tokens,
                                    .seconds = mlx_seconds() - e->job->start},
                &body);
  mlx_respond_json(e->job->exchange, 200, &body);
}

// On a worker: the texts of many embeddings take longer to write than a step.
static void respond(mlx_workers_item_t *work) {
  embed_t *e = (embed_t *)(void *)((char *)work - offsetof(embed_t, response));
  if (e->status) {
    const mlx_failure_t failure = {.kind = MLX_FAILURE_RUN, .status = e->status};
    mlx_failure_respond(&failure, e->job->error, e->job->exchange);
  } else {
    write_answer(e);
  }
  mlx_job_end(e->job);
}

static void after_step(mlx_after_step_t *after) {
  embed_t *e = (embed_t *)(void *)((char *)after - offsetof(embed_t, after));
  if (e->done == e->input.count) mlx_workers_push(e->job->service->workers, &e->response);
}

static void on_done(mlx_task_t *task, const mlx_generation_t *g, mlx_status_t status) {
  embed_t *e = task->user;
  float **result = &e->results[task - e->tasks];
  mlx_serving_after_step(task->serving, &e->after);
  ++e->done;
  if (!status && !g->embedding) status = mlx_error(MLX_CANCELLED, "the request was cancelled");
  if (!status) status = mlx_alloc(e->size, sizeof **result, result);
  if (!status) {
    memcpy(*result, g->embedding, e->size * sizeof **result);
    if (e->finishes) status = mlx_embedding_finish(*result, e->size, task->count, e->normalizes);
  }
  e->status = mlx_status_join(e->status, status);
}

// ----------------------------------------------------------------------------------------------------------
// Run

// The most tokens of an input.
static size_t limit_of(const embed_t *e) {
  const int64_t context = mlx_engine_info(e->job->engine).context;
  return (size_t)(e->input.most > 0 && e->input.most < context ? e->input.most : context);
}

static mlx_status_t tokenize_text(embed_t *e, size_t index, const char *text, size_t length) {
  const mlx_engine_t *engine = e->job->engine;
  const bool plain = e->input.plain < 0 ? e->job->service->plain : e->input.plain;
  const size_t limit = (size_t)mlx_engine_info(engine).context;
  int32_t **ids = &e->ids[index];
  size_t *count = &e->tasks[index].count;
  if (e->input.cut) return mlx_engine_tokenize_first(engine, text, length, plain, limit_of(e), ids, count);
  if (plain) return mlx_engine_tokenize_plain(engine, text, length, true, limit, ids, count);
  return mlx_engine_tokenize_within(engine, text, length, false, limit, ids, count);
}

// "query" and "document" of a model without such a prompt are empty, as its texts need none.
static mlx_status_t choose_prompt(embed_t *e) {
  const char *name = e->input.prompt;
  e->prompt = mlx_engine_info(e->job->engine).default_prompt;
  if (!name) return NULL;
  if (!strcmp(name, "passage")) name = "document";
  const char *found = *name ? mlx_engine_embedding_prompt(e->job->engine, name) : "";
  if (!found && (!strcmp(name, "query") || !strcmp(name, "document"))) found = "";
  if (!found) return mlx_error(MLX_INVALID_INPUT, "prompt_name: the model has no prompt '%.100s'", name);
  e->prompt = found;
  return NULL;
}

static mlx_status_t tokenize_with_prompt(embed_t *e, size_t index, yyjson_val *input) {
  const char *prompt = e->prompt;
  mlx_text_t whole = {0};
  if (!*prompt) return tokenize_text(e, index, yyjson_get_str(input), yyjson_get_len(input));
  mlx_text_puts(&whole, prompt);
  mlx_text_append(&whole, yyjson_get_str(input), yyjson_get_len(input));
  mlx_status_t status = mlx_text_finish(&whole);
  if (!status) status = tokenize_text(e, index, whole.data, whole.length);
  mlx_text_clear(&whole);
  return status;
}

static mlx_status_t copy_ids(embed_t *e, size_t index, yyjson_val *input) {
  const size_t all = yyjson_arr_size(input), most = limit_of(e);
  if (e->input.prompt && *e->prompt)
    return mlx_error(MLX_INVALID_INPUT, "token ids take no prompt: remove \"prompt_name\"");
  MLX_TRY(mlx_alloc(all, sizeof **e->ids, &e->ids[index]));
  MLX_TRY(mlx_embeddings_ids(&e->input, index, mlx_engine_info(e->job->engine).vocab, e->ids[index]));
  e->tasks[index].count = e->input.cut && all > most ? most : all;
  return NULL;
}

static mlx_status_t check_length(const embed_t *e, size_t index) {
  const size_t count = e->tasks[index].count;
  if (!count)
    return mlx_embeddings_annotate(&e->input, index, mlx_error(MLX_INVALID_INPUT, "the text has no tokens"));
  mlx_status_t status = mlx_job_check_context(e->job, count);
  status = mlx_status_rehint(status, "shorten the text, or send %s to have it cut after %lld tokens",
                             e->api->cut_field, (long long)mlx_engine_info(e->job->engine).context);
  return mlx_embeddings_annotate(&e->input, index, status);
}

static mlx_status_t tokenize(embed_t *e, size_t index) {
  yyjson_val *input = e->input.inputs[index];
  if (yyjson_is_str(input))
    MLX_TRY(mlx_embeddings_annotate(&e->input, index, tokenize_with_prompt(e, index, input)));
  else
    MLX_TRY(copy_ids(e, index, input));
  MLX_TRY(check_length(e, index));
  e->tokens += (int64_t)e->tasks[index].count;
  return NULL;
}

// Chooses which part of the hidden states is an embedding, and its norm.
static mlx_status_t choose_form(embed_t *e) {
  const mlx_engine_info_t info = mlx_engine_info(e->job->engine);
  const int64_t size = e->input.dimensions < 0 ? info.hidden : e->input.dimensions;
  if (size > info.hidden)
    return mlx_error(MLX_INVALID_INPUT, "dimensions: the model's embeddings have %lld numbers, not %lld",
                     (long long)info.hidden, (long long)size);
  e->size = (size_t)size;
  e->normalizes = e->input.normalize < 0 ? info.is_normalized : e->input.normalize;
  e->finishes = size < info.hidden || (e->normalizes && !info.is_normalized);
  return NULL;
}

// Texts of an encoder come in rounds of as many as run at a time, and each round has a lower priority than
// the one before: so a short request does not wait for all of a long one. A decoder has one round, because
// its chats have priorities too.
static size_t round_of(const embed_t *e, size_t index) {
  const mlx_engine_info_t info = mlx_engine_info(e->job->engine);
  return info.is_encoder ? index / (size_t)info.sequences : 0;
}

static mlx_status_t make_options(embed_t *e) {
  const size_t rounds = round_of(e, e->input.count - 1) + 1;
  MLX_TRY(mlx_alloc(rounds, sizeof *e->options, &e->options));
  for (size_t i = 0; i < rounds; ++i) {
    mlx_generate_options_initialize(&e->options[i]);
    e->options[i].embed = true;
    e->options[i].embed_raw = !e->normalizes;
    e->options[i].priority = -(int64_t)i;
  }
  return NULL;
}

static mlx_status_t make_tasks(embed_t *e) {
  if (mlx_engine_info(e->job->engine).labels) return mlx_classifier_embeds_nothing();
  MLX_TRY(choose_form(e));
  MLX_TRY(choose_prompt(e));
  MLX_TRY(make_options(e));
  e->after.run = after_step;
  e->response.run = respond;
  MLX_TRY(mlx_alloc(e->input.count, sizeof *e->ids, &e->ids));
  MLX_TRY(mlx_alloc(e->input.count, sizeof *e->results, &e->results));
  MLX_TRY(mlx_alloc(e->input.count, sizeof *e->tasks, &e->tasks));
  for (size_t i = 0; i < e->input.count; ++i) {
    MLX_TRY(tokenize(e, i));
    e->tasks[i] = (mlx_task_t){.serving = e->job->serving,
                               .ids = e->ids[i],
                               .count = e->tasks[i].count,
                               .options = &e->options[round_of(e, i)],
                               .on_done = on_done,
                               .user = e};
  }
  return NULL;
}

static void on_gone(mlx_job_t *job) {
  embed_t *e = job->state;
  if (!atomic_load(&e->submitted)) return;
  for (size_t i = 0; i < e->input.count; ++i) mlx_serving_cancel(&e->tasks[i]);
}

static mlx_status_t run(mlx_job_t *job, bool *out_kept) {
  embed_t *e = job->state;
  if (!e->input.count) {  // only loads the model
    write_answer(e);
    return NULL;
  }
  MLX_TRY(make_tasks(e));
  atomic_store(&job->prompt_tokens, e->tokens);
  *out_kept = true;
  atomic_store(&e->submitted, true);
  if (atomic_load(&job->gone)) on_gone(job);
  mlx_status_t status = mlx_job_submit(job, e->tasks, e->input.count);
  if (status) *out_kept = false;
  return status;
}

static void clear(mlx_job_t *job) {
  embed_t *e = job->state;
  for (size_t i = 0; i < e->input.count; ++i) {
    if (e->ids) mlx_engine_free_ids(e->ids[i]);
    if (e->results) mlx_free(e->results[i]);
  }
  mlx_free(e->ids);
  mlx_free(e->results);
  mlx_free(e->tasks);
  mlx_free(e->options);
  mlx_status_free(e->status);
  mlx_embeddings_input_clear(&e->input);
  mlx_free(e);
}

static const mlx_job_kind_t embed_kind = {.parse = parse, .run = run, .on_gone = on_gone, .clear = clear};

mlx_status_t mlx_embed_start(mlx_job_t *job, const mlx_embeddings_api_t *api) {
  embed_t *e;
  MLX_TRY(mlx_alloc(1, sizeof *e, &e));
  e->job = job;
  e->api = api;
  mlx_job_start(job, &embed_kind, e);
  return NULL;
}
