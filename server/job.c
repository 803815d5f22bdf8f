// The errand of a generating request. A task for each choice runs on the scheduler thread of the model.
#include "server/job.h"

#include <time.h>

#include "base/memory.h"
#include "server/api_ollama.h"
#include "server/prompt.h"
#include "server/reply.h"
#include "server/respond.h"

#define HEARTBEAT_SECONDS 5.0

typedef struct job {
  mlx_errand_t errand;
  const mlx_shape_t *shape;
  mlx_call_t call;
  mlx_input_t input;
  mlx_reply_t reply;
  // One for each choice.
  mlx_task_t *tasks;
  mlx_generate_options_t *options;
  mlx_sampling_t *samplings;
  size_t count;
  atomic_bool submitted;  // the tasks may be cancelled
  // Scheduler thread only.
  mlx_after_step_t after;
  size_t done;
  mlx_status_t status;  // owned: why the first task failed
} job_t;

// ----------------------------------------------------------------------------------------------------------
// On the scheduler thread

// After a step: sends what its tasks added. After the last one: ends the response.
static void after_step(mlx_after_step_t *after) {
  job_t *job = (job_t *)(void *)((char *)after - offsetof(job_t, after));
  if (job->done < job->count) {
    mlx_reply_flush(&job->reply);
    return;
  }
  if (job->status)
    mlx_reply_fail(&job->reply, &(mlx_failure_t){.kind = MLX_FAILURE_RUN, .status = job->status});
  else
    mlx_reply_close(&job->reply);
  mlx_errand_end(&job->errand);
}

static bool on_text(mlx_task_t *task, const char *text, size_t length) {
  job_t *job = task->user;
  mlx_serving_after_step(task->serving, &job->after);
  return mlx_reply_add(&job->reply, (size_t)(task - job->tasks), text, length,
                       mlx_request_generation(task->request));
}

static void observe(const job_t *job, const mlx_generation_t *g) {
  const mlx_metrics_generation_t times = {
      .queue_seconds = g->queue_seconds,
      .first_seconds = g->prompt_seconds,
      .token_seconds = g->count > 1 ? g->decode_seconds / (double)(g->count - 1) : 0};
  if (g->finish_reason < MLX_FINISH_CANCELLED) mlx_metrics_generated(job->errand.service->metrics, &times);
}

static void on_done(mlx_task_t *task, const mlx_generation_t *g, mlx_status_t status) {
  job_t *job = task->user;
  mlx_serving_after_step(task->serving, &job->after);
  ++job->done;
  if (!status && g->finish_reason == MLX_FINISH_CANCELLED)
    status = mlx_error(MLX_CANCELLED, "the request was cancelled: the server is shutting down");
  if (!status) {
    mlx_reply_finish(&job->reply, (size_t)(task - job->tasks), g);
    observe(job, g);
  }
  job->status = mlx_status_join(job->status, status);
}

// ----------------------------------------------------------------------------------------------------------
// On a worker

static job_t *job_of(mlx_errand_t *errand) { return (job_t *)(void *)errand; }

static void cancel_tasks(job_t *job) {
  for (size_t i = 0; i < job->count; ++i) mlx_serving_cancel(&job->tasks[i]);
}

static mlx_status_t parse(mlx_errand_t *errand, const char **out_model) {
  job_t *job = job_of(errand);
  size_t length;
  const char *body = mlx_exchange_body(errand->exchange, &length);
  MLX_TRY(mlx_call_initialize(&job->call));
  MLX_TRY(job->shape->parse(body, length, mlx_exchange_query(errand->exchange), &job->call));
  MLX_TRY(mlx_sampling_check(&job->call.sampling));
  *out_model = job->call.model;
  return NULL;
}

mlx_status_t mlx_job_check_context(const mlx_engine_t *engine, size_t count, mlx_failure_t *failure) {
  const int64_t context = mlx_engine_info(engine).context;
  if ((int64_t)count < context) return NULL;
  failure->kind = MLX_FAILURE_CONTEXT;
  failure->prompt_tokens = (int64_t)count;
  failure->context = context;
  return mlx_status_hint(
      mlx_error(MLX_USAGE, "the prompt has %zu tokens, the context holds %lld", count, (long long)context),
      "shorten the prompt, or start the server with a larger context (-c)");
}

static void fill_task(job_t *job, size_t index) {
  const size_t n = (size_t)job->call.n, first = index / n * n;
  const mlx_input_prompt_t *prompt = &job->input.prompts[index / n];
  mlx_sampling_t *sampling = &job->samplings[index];
  mlx_generate_options_t *options = &job->options[index];
  *sampling = job->call.sampling;
  sampling->seed += index % n;
  mlx_generate_options_initialize(options);
  options->max_tokens = job->call.max_tokens;
  options->ignore_eos = job->call.ignore_eos;
  options->sampling = sampling;
  options->grammar = mlx_cached_grammar(job->input.grammar);
  options->logprobs = job->call.logprobs;
  if (job->call.echo) options->prompt_logprobs = job->call.logprobs;
  options->stops = (const char *const *)job->call.stops;
  options->stop_count = job->call.stop_count;
  options->visible_tokens = job->input.visible;
  options->visible_token_count = job->input.visible_count;
  options->priority = job->call.priority;
  job->tasks[index] = (mlx_task_t){.serving = mlx_model_serving(job->errand.model),
                                   .ids = prompt->ids,
                                   .count = prompt->count,
                                   .options = options,
                                   .after = index == first ? NULL : &job->tasks[first],
                                   .on_text = on_text,
                                   .on_done = on_done,
                                   .user = job};
}

static mlx_status_t make_tasks(job_t *job) {
  job->count = job->input.count * (size_t)job->call.n;
  job->after.run = after_step;
  MLX_TRY(mlx_alloc(job->count, sizeof *job->tasks, &job->tasks));
  MLX_TRY(mlx_alloc(job->count, sizeof *job->options, &job->options));
  MLX_TRY(mlx_alloc(job->count, sizeof *job->samplings, &job->samplings));
  for (size_t i = 0; i < job->count; ++i) fill_task(job, i);
  return NULL;
}

// After this call succeeds, the job belongs to the scheduler thread.
static mlx_status_t submit(job_t *job, bool *out_kept) {
  mlx_failure_t *failure = &job->errand.failure;
  mlx_serving_t *serving = mlx_model_serving(job->errand.model);
  bool full;
  *out_kept = true;
  atomic_store(&job->submitted, true);
  atomic_store(&job->errand.beats, true);
  if (atomic_load(&job->errand.gone)) cancel_tasks(job);
  mlx_status_t status = mlx_serving_submit(serving, job->tasks, job->count, &full);
  if (!status && !full) return NULL;
  atomic_store(&job->errand.beats, false);
  *out_kept = false;
  if (full) {
    failure->kind = MLX_FAILURE_QUEUE;
    status = mlx_status_hint(mlx_error(MLX_UNAVAILABLE, "too many requests are waiting"), "try again later");
  }
  return status;
}

static bool is_ollama(const mlx_shape_t *shape) {
  return shape == &mlx_shape_ollama_chat || shape == &mlx_shape_ollama_generate;
}

// An Ollama request without a prompt: the model is loaded, that is all.
static mlx_status_t answer_load(const job_t *job) {
  const mlx_answer_t answer = {.model = mlx_model_name(job->errand.model), .created = (int64_t)time(NULL)};
  mlx_text_t body = {0};
  mlx_ollama_write_load(&job->call, &answer, &body);
  mlx_respond_json(job->errand.exchange, 200, &body);
  return NULL;
}

static mlx_status_t check_ollama(const job_t *job, const mlx_engine_t *engine) {
  const int64_t wanted = mlx_ollama_context(&job->call), context = mlx_engine_info(engine).context;
  if (wanted <= context) return NULL;
  return mlx_error(MLX_INVALID_INPUT, "options.num_ctx: %lld is more than the context of %lld",
                   (long long)wanted, (long long)context);
}

static mlx_status_t check_biases(const mlx_sampling_t *sampling, int64_t vocab) {
  for (size_t i = 0; i < sampling->bias_count; ++i) {
    if (sampling->biases[i].id >= vocab)
      return mlx_error(MLX_INVALID_INPUT, "logit_bias: token id %d is not below %lld", sampling->biases[i].id,
                       (long long)vocab);
  }
  return NULL;
}

static mlx_status_t run(mlx_errand_t *errand, bool *out_kept) {
  job_t *job = job_of(errand);
  mlx_serving_t *serving = mlx_model_serving(errand->model);
  const mlx_engine_t *engine = mlx_serving_engine(serving);
  if (is_ollama(job->shape)) {
    MLX_TRY(check_ollama(job, engine));
    if (mlx_ollama_is_load(&job->call)) return answer_load(job);
  }
  MLX_TRY(check_biases(&job->call.sampling, mlx_engine_info(engine).vocab));
  const mlx_input_tools_t tools = {.serving = serving,
                                   .model = mlx_model_name(errand->model),
                                   .grammars = errand->service->grammars,
                                   .memory = errand->service->memory};
  MLX_TRY(mlx_input_prepare(&job->call, &tools, &job->input));
  for (size_t i = 0; i < job->input.count; ++i)
    MLX_TRY(mlx_job_check_context(engine, job->input.prompts[i].count, &errand->failure));
  const mlx_reply_parts_t parts = {.exchange = errand->exchange,
                                   .shape = job->shape,
                                   .call = &job->call,
                                   .engine = engine,
                                   .model = mlx_model_name(errand->model),
                                   .input = &job->input,
                                   .memory = errand->service->memory,
                                   .record = errand->record};
  MLX_TRY(mlx_reply_initialize(&parts, &job->reply));
  MLX_TRY(make_tasks(job));
  return submit(job, out_kept);
}

// ----------------------------------------------------------------------------------------------------------
// On the loop thread

static void on_gone(mlx_errand_t *errand) {
  job_t *job = job_of(errand);
  if (atomic_load(&job->submitted)) cancel_tasks(job);
}

static void beat(mlx_errand_t *errand) { mlx_reply_beat(&job_of(errand)->reply, HEARTBEAT_SECONDS); }

static void clear(mlx_errand_t *errand) {
  job_t *job = job_of(errand);
  mlx_reply_clear(&job->reply);
  mlx_input_clear(&job->input);
  if (job->shape->free_details && job->call.details) job->shape->free_details(job->call.details);
  mlx_call_clear(&job->call);
  mlx_free(job->tasks);
  mlx_free(job->options);
  mlx_free(job->samplings);
  mlx_status_free(job->status);
}

static const mlx_errand_kind_t job_kind = {
    .size = sizeof(job_t), .parse = parse, .run = run, .beat = beat, .on_gone = on_gone, .clear = clear};

mlx_status_t mlx_job_start(mlx_service_t *service, const mlx_shape_t *shape, mlx_exchange_t *exchange) {
  mlx_errand_t *errand;
  MLX_TRY(mlx_errand_create(&job_kind, service, exchange, &errand));
  errand->error = shape->error;
  job_of(errand)->shape = shape;
  mlx_errand_start(errand);
  return NULL;
}
