// The stages of a generating request. A task for each choice runs on the scheduler thread of the model.
#include "server/core/generate.h"

#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "runtime/rooms.h"
#include "server/core/answer_writer.h"
#include "server/core/json_response.h"
#include "server/core/line_limit.h"
#include "server/core/prompt.h"
#include "server/core/token_options.h"

#define HEARTBEAT_SECONDS 5.0
#define MOST_ECHOED (1 << 20)  // tokens and log-probabilities of prompts in an answer: about 50 MB
#define MOST_ROUTES (1 << 25)  // experts of tokens in an answer: 180 MB

// When the tokens of a task came.
typedef struct token_clock {
  size_t count, counted;  // tokens now, and those at |time|
  double time;
} token_clock_t;

typedef struct generate {
  mlx_job_t *job;
  const mlx_api_t *api;
  mlx_api_call_t call;
  mlx_prepared_prompt_t prompt;
  mlx_token_options_t tokens;
  mlx_answer_writer_t writer;
  // One for each choice.
  mlx_task_t *tasks;
  mlx_generate_options_t *options;
  mlx_sampling_t *samplings;
  mlx_line_limit_t *lines;
  size_t count;
  atomic_bool submitted;  // the tasks may be cancelled
  // Scheduler thread only.
  token_clock_t *clocks;
  mlx_after_step_t after;
  size_t done;
  mlx_status_t status;  // owned: why the first task failed
} generate_t;

// ----------------------------------------------------------------------------------------------------------
// On the scheduler thread

// A step may give several tokens of a sequence: they came |seconds| / |count| after each other.
static void observe_tokens(const generate_t *g) {
  mlx_vllm_metrics_t *vllm = g->job->service->vllm;
  const size_t engine = mlx_serving_index(g->tasks[0].serving);
  const double now = mlx_seconds();
  for (size_t i = 0; i < g->count; ++i) {
    token_clock_t *clock = &g->clocks[i];
    const size_t count = clock->count - clock->counted;
    if (!count) continue;
    if (clock->counted)
      mlx_vllm_metrics_tokens(vllm, g->job->model, engine, (int64_t)count,
                              (now - clock->time) / (double)count);
    else if (count > 1)
      mlx_vllm_metrics_tokens(vllm, g->job->model, engine, (int64_t)count - 1, 0);
    clock->counted = clock->count;
    clock->time = now;
  }
}

// After a step: sends what its tasks added. After the last one: ends the response.
static void after_step(mlx_after_step_t *after) {
  generate_t *g = (generate_t *)(void *)((char *)after - offsetof(generate_t, after));
  observe_tokens(g);
  if (g->done < g->count) {
    mlx_answer_writer_flush(&g->writer);
    return;
  }
  if (g->status)
    mlx_answer_writer_fail(&g->writer, &(mlx_failure_t){.kind = MLX_FAILURE_RUN, .status = g->status});
  else
    mlx_answer_writer_close(&g->writer);
  mlx_job_end(g->job);
}

static bool on_text(mlx_task_t *task, const char *text, size_t length) {
  generate_t *g = task->user;
  const size_t index = (size_t)(task - g->tasks);
  mlx_line_limit_t *line = &g->lines[index];
  mlx_serving_after_step(task->serving, &g->after);
  g->clocks[index].count = mlx_request_generation(task->request)->count;
  if (line->least_indent > 0 || line->most_seconds > 0) {
    if (line->ended) return false;
    length = mlx_line_limit_take(line, mlx_seconds(), text, length);
  }
  return mlx_answer_writer_add(&g->writer, index, text, length, mlx_request_generation(task->request)) &&
         !line->ended;
}

static void on_prompt(mlx_task_t *task, size_t done, size_t total) {
  generate_t *g = task->user;
  mlx_serving_after_step(task->serving, &g->after);
  mlx_answer_writer_progress(&g->writer, (size_t)(task - g->tasks), done, total);
}

static void observe(const generate_t *g, const mlx_task_t *task, const mlx_generation_t *result) {
  const mlx_metrics_generation_t generation = {
      .queue_seconds = result->queue_seconds,
      .first_seconds = result->prompt_seconds,
      .token_seconds = result->count > 1 ? result->decode_seconds / (double)(result->count - 1) : 0,
      .prompt_tokens = (int64_t)task->count - result->cached_tokens,
      .output_tokens = (int64_t)result->count,
      .length = (int64_t)(task->count + result->count)};
  if (result->finish_reason < MLX_FINISH_CANCELLED)
    mlx_metrics_generated(g->job->service->metrics, &generation);
}

// |result| is NULL if the scheduler refused the task.
static void observe_request(const generate_t *g, const mlx_task_t *task, const mlx_generation_t *result,
                            bool failed) {
  const mlx_vllm_request_t request = {.seconds = mlx_seconds() - g->job->start,
                                      .queue_seconds = result ? result->queue_seconds : 0,
                                      .decode_seconds = result ? result->decode_seconds : 0,
                                      .prompt_tokens = (int64_t)task->count,
                                      .output_tokens = result ? (int64_t)result->count : 0,
                                      .reason = failed || !result ? MLX_FINISH_ERROR : result->finish_reason};
  mlx_vllm_metrics_request(g->job->service->vllm, g->job->model, mlx_serving_index(task->serving), &request);
}

static void on_done(mlx_task_t *task, const mlx_generation_t *result, mlx_status_t status) {
  generate_t *g = task->user;
  mlx_serving_after_step(task->serving, &g->after);
  ++g->done;
  mlx_generation_t limited;
  if (!status && g->lines[task - g->tasks].ended) {
    limited = *result;
    limited.finish_reason = MLX_FINISH_LENGTH;
    result = &limited;
  }
  if (result) g->clocks[task - g->tasks].count = result->count;
  observe_request(g, task, result, status != NULL);
  if (!status && result->finish_reason == MLX_FINISH_CANCELLED)
    status =
        mlx_error(MLX_CANCELLED, "the request was cancelled: the server is shutting down or going to sleep");
  if (!status) {
    mlx_answer_writer_finish(&g->writer, (size_t)(task - g->tasks), result);
    observe(g, task, result);
  }
  g->status = mlx_status_join(g->status, status);
}

// ----------------------------------------------------------------------------------------------------------
// On a worker

static void cancel_tasks(generate_t *g) {
  for (size_t i = 0; i < g->count; ++i) mlx_serving_cancel(&g->tasks[i]);
}

static mlx_status_t parse(mlx_job_t *job, const char **out_model) {
  generate_t *g = job->state;
  size_t length;
  const char *body = mlx_exchange_body(job->exchange, &length);
  MLX_TRY(mlx_api_call_initialize(&g->call));
  g->call.stored = job->service->stored;
  g->call.unknown = job->unknown;
  mlx_request_defaults_begin(&job->service->defaults, &g->call);
  MLX_TRY(g->api->parse(body, length, mlx_exchange_query(job->exchange), &g->call));
  MLX_TRY(mlx_sampling_check(&g->call.sampling));
  MLX_TRY(mlx_request_defaults_end(&job->service->defaults, &g->call));
  *out_model = g->call.model;
  return NULL;
}

// An answer that begins with its prompts is as long as the client wants, without any computing. So the tokens
// of all prompts and choices, each with its log-probabilities, are limited.
static mlx_status_t check_echo(const mlx_api_call_t *call) {
  const bool lists = call->prompt_logprobs >= 0;
  const int64_t logprobs = lists ? call->prompt_logprobs : call->logprobs;
  const int64_t each = call->n * (logprobs < 0 ? 1 : logprobs + 2);
  int64_t tokens = 0;
  if (!call->echo && !lists) return NULL;
  for (size_t i = 0; i < call->prompt_count; ++i) tokens += (int64_t)call->prompts[i].id_count;
  if (tokens <= MOST_ECHOED / each) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_INVALID_INPUT,
                "%s: the prompts' %lld tokens times n (%lld) times %lld entries for each token are more "
                "than the limit of %d",
                lists          ? "prompt_logprobs"
                : logprobs < 0 ? "echo"
                               : "logprobs",
                (long long)tokens, (long long)call->n, (long long)(each / call->n), MOST_ECHOED),
      "send fewer prompts in a request, or ask for fewer logprobs");
}

// The same of the experts of all tokens: of a sequence there may be as many as the context.
static mlx_status_t check_routes(const mlx_api_call_t *call, const mlx_engine_info_t *info) {
  int64_t tokens = 0;
  if (!call->return_routes) return NULL;
  if (!info->route_used)
    return mlx_status_hint(
        mlx_error(MLX_UNSUPPORTED,
                  "return_routed_experts: the model has no experts, or "
                  "its module does not report them"),
        "a model with experts reports them on a CPU, and on a GPU if its experts are quantized or 16-bit and "
        "in no groups; a bundle of an older version must be compiled again");
  for (size_t i = 0; i < call->prompt_count; ++i) {
    const int64_t prompt = (int64_t)call->prompts[i].id_count, left = info->context - prompt;
    const int64_t length =
        prompt + (call->max_tokens < 0 || call->max_tokens > left ? left : call->max_tokens);
    tokens += length > call->routes_from ? length - call->routes_from : 0;
  }
  if (tokens <= MOST_ROUTES / (call->n * info->route_layers * info->route_used)) return NULL;
  return mlx_status_hint(
      mlx_error(
          MLX_INVALID_INPUT,
          "return_routed_experts: %lld tokens of prompts and answers times n (%lld) times %lld experts of "
          "a token are more than the limit of %d",
          (long long)tokens, (long long)call->n, (long long)(info->route_layers * info->route_used),
          MOST_ROUTES),
      "set max_tokens, or send fewer prompts in a request");
}

static void fill_task(generate_t *g, size_t index) {
  const size_t n = (size_t)g->call.n, first = index / n * n;
  const mlx_api_prompt_t *prompt = &g->call.prompts[index / n];
  mlx_sampling_t *sampling = &g->samplings[index];
  mlx_generate_options_t *options = &g->options[index];
  g->lines[index].least_indent = g->call.least_indent;
  g->lines[index].most_seconds = (double)g->call.most_milliseconds / 1000;
  *sampling = g->call.sampling;
  sampling->seed += index % n;
  mlx_generate_options_initialize(options);
  options->max_tokens = g->call.max_tokens;
  options->ignore_eos = g->call.ignore_eos;
  options->sampling = sampling;
  options->grammar = mlx_cached_grammar(g->prompt.grammar);
  options->logprobs = g->call.best && g->call.logprobs < 0 ? 0 : g->call.logprobs;
  options->sampled_logprobs = g->call.sampled_logprobs;
  if (g->call.echo) options->prompt_logprobs = g->call.logprobs;
  if (g->call.prompt_logprobs >= 0) options->prompt_logprobs = g->call.prompt_logprobs;
  options->routes = g->call.return_routes;
  options->routes_from = (size_t)g->call.routes_from;
  options->stop_ids = g->call.stop_ids;
  options->stop_id_count = g->call.stop_id_count;
  options->min_tokens = g->call.min_tokens;
  options->allowed_ids = g->call.allowed_ids;
  options->allowed_id_count = g->call.allowed_id_count;
  options->banned = g->tokens.banned;
  options->banned_count = g->tokens.count;
  options->stops = (const char *const *)g->call.stops;
  options->stop_count = g->call.stop_count;
  options->visible_tokens = g->prompt.visible;
  options->visible_token_count = g->prompt.visible_count;
  options->priority = g->call.priority;
  g->tasks[index] =
      (mlx_task_t){.serving = g->job->serving,
                   .ids = prompt->ids,
                   .count = prompt->id_count,
                   .options = options,
                   .after = index == first ? NULL : &g->tasks[first],
                   .on_text = on_text,
                   .on_prompt = mlx_answer_writer_shows_progress(&g->writer, index) ? on_prompt : NULL,
                   .on_done = on_done,
                   .user = g};
}

static mlx_status_t make_tasks(generate_t *g) {
  g->count = g->call.prompt_count * (size_t)g->call.n;
  g->after.run = after_step;
  MLX_TRY(mlx_alloc(g->count, sizeof *g->tasks, &g->tasks));
  MLX_TRY(mlx_alloc(g->count, sizeof *g->options, &g->options));
  MLX_TRY(mlx_alloc(g->count, sizeof *g->samplings, &g->samplings));
  MLX_TRY(mlx_alloc(g->count, sizeof *g->lines, &g->lines));
  MLX_TRY(mlx_alloc(g->count, sizeof *g->clocks, &g->clocks));
  for (size_t i = 0; i < g->count; ++i) fill_task(g, i);
  return NULL;
}

// After this call succeeds, the job belongs to the scheduler thread.
static mlx_status_t submit(generate_t *g, bool *out_kept) {
  mlx_job_t *job = g->job;
  *out_kept = true;
  atomic_store(&g->submitted, true);
  atomic_store(&job->beats, true);
  if (atomic_load(&job->gone)) cancel_tasks(g);
  mlx_status_t status = mlx_job_submit(job, g->tasks, g->count);
  if (!status) return NULL;
  atomic_store(&job->beats, false);
  *out_kept = false;
  return status;
}

// Answers a call that only loads the model. Returns false if the call generates.
static bool answer_load(const generate_t *g) {
  const mlx_answer_t answer = {.model = mlx_served_model_name(g->job->model), .created = (int64_t)time(NULL)};
  mlx_text_t body = {0};
  if (!g->api->write_load || !g->api->write_load(&g->call, &answer, &body)) return false;
  mlx_respond_json(g->job->exchange, 200, &body);
  return true;
}

// Names what the call asks for and the model cannot give.
static void note_context(const generate_t *g, int64_t context) {
  mlx_text_t note = {0};
  if (g->api->note_context) g->api->note_context(&g->call, context, &note);
  mlx_ignored_fields_add_clamped(g->job->service->ignored, mlx_exchange_path(g->job->exchange), &note,
                                 g->job->exchange);
  mlx_text_clear(&note);
}

static mlx_status_t run(mlx_job_t *job, bool *out_kept) {
  generate_t *g = job->state;
  const mlx_engine_info_t info = mlx_engine_info(job->engine);
  note_context(g, info.context);
  if (answer_load(g)) return NULL;
  if (info.is_encoder) return mlx_encoder_generates_nothing(info.labels > 0);
  MLX_TRY(mlx_token_options_prepare(job->engine, &g->call, &g->tokens));
  MLX_TRY(mlx_prompt_prepare(job, &g->call, &g->prompt));
  for (size_t i = 0; i < g->call.prompt_count; ++i)
    MLX_TRY(mlx_job_check_context(job, g->call.prompts[i].id_count));
  MLX_TRY(check_echo(&g->call));
  MLX_TRY(check_routes(&g->call, &info));
  MLX_TRY(mlx_answer_writer_initialize(job, g->api, &g->call, &g->prompt, &g->writer));
  MLX_TRY(make_tasks(g));
  return submit(g, out_kept);
}

// ----------------------------------------------------------------------------------------------------------
// On the loop thread

static void on_gone(mlx_job_t *job) {
  generate_t *g = job->state;
  if (atomic_load(&g->submitted)) cancel_tasks(g);
}

static void beat(mlx_job_t *job) {
  mlx_answer_writer_beat(&((generate_t *)job->state)->writer, HEARTBEAT_SECONDS);
}

static void clear(mlx_job_t *job) {
  generate_t *g = job->state;
  mlx_answer_writer_clear(&g->writer);
  mlx_prepared_prompt_clear(&g->prompt);
  mlx_token_options_clear(&g->tokens);
  g->api->free_details(g->call.details);
  mlx_api_call_clear(&g->call);
  mlx_free(g->tasks);
  mlx_free(g->options);
  mlx_free(g->samplings);
  mlx_free(g->lines);
  mlx_free(g->clocks);
  mlx_status_free(g->status);
  mlx_free(g);
}

static const mlx_job_kind_t generate_kind = {
    .parse = parse, .run = run, .beat = beat, .on_gone = on_gone, .clear = clear};

mlx_status_t mlx_generate_start(mlx_job_t *job, const mlx_api_t *api) {
  generate_t *g;
  MLX_TRY(mlx_alloc(1, sizeof *g, &g));
  g->job = job;
  g->api = api;
  mlx_job_start(job, &generate_kind, g);
  return NULL;
}
