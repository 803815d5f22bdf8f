// mlxcel batch: answers a file of requests. They pass the same code as requests to `mlxcel serve`, in this
// process and without HTTP.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/meter.h"
#include "cli/batch_results.h"
#include "cli/interrupt.h"
#include "cli/open.h"
#include "cli/parse.h"
#include "cli/served.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "server/core/local.h"

#define ATTEMPTS 3         // of a request that the server cannot answer at the moment
#define WAIT_SECONDS 0.1   // until the next look at Ctrl-C
#define RATE_SECONDS 2.0   // that tokens per second are counted over
#define NOTE_SECONDS 30.0  // between two notes, if stderr is not a terminal
#define FIRST_NOTE_SECONDS 5.0

typedef struct flags {
  mlx_open_flags_t open;
  const char *output, *shard, *system, *chat_template, *reasoning;
  mlx_sampling_t sampling;
  int64_t count, seed, engines;
  bool raw, quiet;
} flags_t;

typedef struct request {
  uint64_t index;
  int attempts;
  mlx_batch_request_t request;  // owned
} request_t;

typedef struct batch {
  const flags_t *flags;
  mlx_batch_defaults_t defaults;
  mlx_batch_input_t input;
  mlx_batch_results_t results;
  mlx_shard_t shard;
  char identity[MLX_DIGEST_HEX];
  mlx_server_t *server;  // owned
  mlx_local_t *local;    // owned
  uint64_t next;         // request that was not posted yet
  uint64_t running;      // posted requests without a result
  uint64_t unanswered;   // that failed ATTEMPTS times
  mlx_status_t failure;  // owned: why the first of them failed
  // Progress.
  uint64_t begun_with;  // results that were there at the start
  double start, noted, counted;
  int64_t counted_tokens;
  double rate;  // output tokens per second
} batch_t;

// ----------------------------------------------------------------------------------------------------------
// Progress

static double estimate_left(const batch_t *b, double now) {
  const uint64_t done = b->results.done_count - b->begun_with;
  const uint64_t left = b->results.end - b->results.first - b->results.done_count;
  return done ? (now - b->start) / (double)done * (double)left : 0;
}

static void show_progress(batch_t *b) {
  const double now = mlx_seconds();
  if (now - b->counted < RATE_SECONDS && b->counted > b->start) return;
  const int64_t tokens = mlx_local_stats(b->local).output_tokens;
  char text[160];
  b->rate = (double)(tokens - b->counted_tokens) / (now - b->counted);
  b->counted = now;
  b->counted_tokens = tokens;
  snprintf(text, sizeof text, "%llu of %llu requests, %.1f tok/s%s",
           (unsigned long long)b->results.done_count, (unsigned long long)(b->results.end - b->results.first),
           b->rate, mlx_left_show(estimate_left(b, now)).text);
  mlx_report_progress(mlx_terminal_report(), "%s", text);
  const double pause = b->noted > b->start ? NOTE_SECONDS : FIRST_NOTE_SECONDS;
  if (now - b->noted < pause || isatty(STDERR_FILENO)) return;
  b->noted = now;
  mlx_report_note(mlx_terminal_report(), "%s", text);
}

static void print_summary(const batch_t *b) {
  const mlx_local_stats_t stats = mlx_local_stats(b->local);
  const double seconds = mlx_seconds() - b->start;
  mlx_report_done(mlx_terminal_report());
  mlx_terminal_note("%llu of %llu %s, %llu of them now", (unsigned long long)b->results.done_count,
                    (unsigned long long)(b->results.end - b->results.first),
                    mlx_plural(b->results.end - b->results.first, "request", "requests"),
                    (unsigned long long)(b->results.done_count - b->begun_with));
  mlx_terminal_note(": prompt %lld tokens, output %lld tokens, %.1f tok/s in %.1f s\n",
                    (long long)stats.prompt_tokens, (long long)stats.output_tokens,
                    seconds > 0 ? (double)stats.output_tokens / seconds : 0, seconds);
}

// ----------------------------------------------------------------------------------------------------------
// Requests

static void free_request(request_t *request) {
  mlx_batch_request_clear(&request->request);
  mlx_free(request);
}

static mlx_status_t post(batch_t *b, request_t *request) {
  const mlx_text_t *body = &request->request.body;
  ++request->attempts;
  mlx_status_t status = mlx_local_post(b->local, request->request.path, body->data, body->length, request);
  if (status)
    free_request(request);
  else
    ++b->running;
  return status;
}

// Keeps twice as many requests in the server as run at a time, so that one is ready when another ends.
static mlx_status_t post_next(batch_t *b, int64_t sequences) {
  while (b->running < 2 * (uint64_t)sequences && b->next < b->results.end) {
    const uint64_t index = b->next++;
    request_t *request;
    if (mlx_batch_results_has(&b->results, index)) continue;
    MLX_TRY(mlx_alloc(1, sizeof *request, &request));
    request->index = index;
    mlx_status_t status = mlx_batch_input_read(&b->input, index, &request->request);
    if (status) {
      free_request(request);
      return status;
    }
    MLX_TRY(post(b, request));
  }
  return NULL;
}

// Notes that a request has no result.
static void give_up(batch_t *b, const request_t *request, const mlx_local_response_t *response) {
  ++b->unanswered;
  if (b->failure) return;
  yyjson_doc *doc = response->status ? yyjson_read(response->body, response->length, 0) : NULL;
  const char *message =
      yyjson_get_str(yyjson_obj_get(yyjson_obj_get(yyjson_doc_get_root(doc), "error"), "message"));
  b->failure = mlx_error(MLX_UNAVAILABLE, "request '%.100s': %.500s", request->request.custom_id,
                         message ? message : "not enough memory");
  yyjson_doc_free(doc);
}

static mlx_status_t take_response(batch_t *b, const mlx_local_response_t *response) {
  request_t *request = response->user;
  // Errors of the request are results: they would be the same again.
  const bool is_result = response->status >= 200 && response->status < 500 && response->status != 429;
  mlx_status_t status = NULL;
  --b->running;
  if (!is_result && request->attempts < ATTEMPTS) return post(b, request);
  if (is_result)
    status = mlx_batch_results_add(&b->results, request->index, &request->request, response->status,
                                   response->body, response->length);
  else
    give_up(b, request, response);
  free_request(request);
  return status;
}

static mlx_status_t answer_all(batch_t *b) {
  mlx_local_response_t response;
  const int64_t sequences = mlx_local_stats(b->local).sequences;
  while (!mlx_interrupt_requested()) {
    MLX_TRY(post_next(b, sequences));
    if (!b->running) return NULL;
    if (mlx_local_wait(b->local, WAIT_SECONDS, &response)) MLX_TRY(take_response(b, &response));
    show_progress(b);
  }
  return mlx_status_hint(mlx_error(MLX_CANCELLED, "interrupted"), "the same command goes on from here");
}

static mlx_status_t run_requests(batch_t *b) {
  MLX_TRY(mlx_local_create(b->server, &b->local));
  b->defaults.completes |= !mlx_local_stats(b->local).has_chat;
  b->next = b->results.first;
  b->begun_with = b->results.done_count;
  b->start = b->noted = b->counted = mlx_seconds();
  if (b->begun_with)
    mlx_terminal_note("going on after %llu %s\n", (unsigned long long)b->begun_with,
                      mlx_plural(b->begun_with, "result", "results"));
  mlx_interrupt_watch();
  mlx_status_t status = answer_all(b);
  print_summary(b);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// The end

static mlx_status_t finish(batch_t *b) {
  bool joined;
  if (b->unanswered) {
    mlx_status_t status = mlx_status_hint(
        mlx_status_annotate(b->failure, "%llu %s no result", (unsigned long long)b->unanswered,
                            mlx_plural(b->unanswered, "request has", "requests have")),
        "the same command tries these again");
    b->failure = NULL;
    return status;
  }
  MLX_TRY(mlx_batch_results_finish(&b->results, &joined));
  if (!joined)
    mlx_terminal_note("shard %llu of %llu is in '%s'; the last shard writes '%s'\n",
                      (unsigned long long)b->shard.index, (unsigned long long)b->shard.count, b->results.part,
                      b->flags->output);
  if (b->results.failed)
    mlx_terminal_note("note: %llu %s an error as the result: look for a status_code that is not 200\n",
                      (unsigned long long)b->results.failed,
                      mlx_plural(b->results.failed, "request has", "requests have"));
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The verb

// Everything but the requests that results depend on. The path of the model differs between machines.
static void identify(batch_t *b) {
  const flags_t *f = b->flags;
  const mlx_engine_options_t *engine = &f->open.engine;
  const struct {
    const char *label, *text;
  } texts[] = {{"model", mlx_server_model_name(b->server, 0)},
               {"system", f->system},
               {"chat template", f->chat_template},
               {"reasoning", f->reasoning},
               {"dtype", engine->dtype},
               {"kv", engine->kv},
               {"quantize", engine->quantize}};
  const double numbers[] = {
      f->sampling.temperature, (double)f->sampling.top_k, f->sampling.top_p,       f->sampling.min_p,
      (double)f->count,        (double)f->seed,           (double)engine->context, f->raw};
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i)
    mlx_digest_field(&digest, texts[i].label, texts[i].text ? texts[i].text : "",
                     texts[i].text ? strlen(texts[i].text) : 0);
  mlx_digest_field(&digest, "numbers", numbers, sizeof numbers);
  mlx_digest_end(&digest, b->identity);
}

static mlx_status_t create_server(batch_t *b) {
  const flags_t *f = b->flags;
  mlx_server_options_t options;
  mlx_server_options_initialize(&options);
  options.version = MLXCEL_VERSION;
  options.defaults = (mlx_request_defaults_t){.sampling = &f->sampling, .reasoning = f->reasoning};
  options.engine = f->open.engine;
  MLX_TRY(mlx_cli_use_engines(&f->open, f->engines, &options));
  options.chat_template = f->chat_template;
  options.report = mlx_terminal_report();
  options.queue = 1 << 20;
  options.prefill_share = 1;  // no client reads a stream, so prompts may take all of a step
  const char *model = f->open.model ? f->open.model : b->input.model;
  if (!model)
    return mlx_status_hint(mlx_error(MLX_USAGE, "%s: the requests do not name one model", b->input.path),
                           "choose the model with -m MODEL");
  mlx_fault_recover();
  MLX_TRY(mlx_server_create(&options, &b->server));
  return mlx_cli_add_served(b->server, model, NULL);
}

static mlx_status_t run_batch(batch_t *b, const char *path) {
  const flags_t *f = b->flags;
  MLX_TRY(mlx_shard_choose(f->shard, &b->shard));
  MLX_TRY(mlx_batch_input_open(path, &b->defaults, &b->input));
  MLX_TRY(create_server(b));
  identify(b);
  MLX_TRY(mlx_batch_results_open(&b->input, f->output, b->identity, &b->shard, &b->results));
  if (b->results.complete)
    mlx_terminal_note("all %llu results are there already\n", (unsigned long long)b->results.done_count);
  else if (b->results.done_count < b->results.end - b->results.first)
    MLX_TRY(run_requests(b));
  return finish(b);
}

static mlx_status_t batch(void *options, const char **words, size_t count) {
  flags_t *f = options;
  batch_t b = {.flags = f};
  if (count != 1)
    return mlx_status_hint(
        mlx_error(MLX_USAGE,
                  count ? "'%s': one file of requests is expected" : "no file of requests was given",
                  count ? words[1] : ""),
        "mlxcel batch IN.jsonl -o OUT.jsonl -m MODEL");
  if (!f->output)
    return mlx_status_hint(mlx_error(MLX_USAGE, "no file for the results was given"),
                           "mlxcel batch %s -o OUT.jsonl", words[0]);
  MLX_TRY(mlx_terminal_set_quiet(f->quiet, f->open.engine.verbose));
  MLX_TRY(mlx_open_flags_read(&f->open));
  MLX_TRY(mlx_sampling_check(&f->sampling));
  if (f->reasoning) MLX_TRY(mlx_request_defaults_check(f->reasoning));
  b.defaults = (mlx_batch_defaults_t){
      .system = f->system, .completes = f->raw, .max_tokens = f->count, .seed = (uint64_t)f->seed};
  mlx_status_t status = run_batch(&b, words[0]);
  mlx_local_free(b.local);
  mlx_server_free(b.server);
  mlx_batch_results_close(&b.results);
  mlx_batch_input_close(&b.input);
  mlx_status_free(b.failure);
  return status;
}

static void initialize(void *options) {
  flags_t *f = options;
  mlx_open_flags_initialize(&f->open);
  f->open.many_gpus = true;
  f->engines = 1;
  mlx_sampling_initialize(&f->sampling);
  f->count = -1;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  return mlx_command_line_run(line, &f, batch);
}

// clang-format off
static const mlx_flag_t flags[] = {
    MLX_TEXT_FLAG(flags_t, open.model, "-m, --model", "MODEL", "model for all requests (default: the one that all of them name)"),
    MLX_TEXT_FLAG(flags_t, output, "-o, --output", "OUT", "file for the results; the same command goes on after an end of any kind"),
    MLX_TEXT_FLAG(flags_t, shard, "--shard", "INDEX/COUNT",
                  "do a part of the requests, 0/4 to 3/4 (default: from Slurm's or Open MPI's environment)"),
    MLX_INT_FLAG(flags_t, count, "-n, --n-predict", "N",
                 "tokens of an answer, if the request has no limit (default: -1: until the model stops)", -1, 1 << 24),
    MLX_INT_FLAG(flags_t, open.engine.sequences, "-np, --parallel", "N",
                 "requests at a time (default: CPU 32, GPU 256, encoder 64)", 1, 4096),
    MLX_CONTEXT_FLAG(flags_t, open.context,
                     "context length in tokens (default: up to 8192; 0: the model's)", 0, 1 << 30),
    MLX_OPEN_FLAGS(flags_t, open),
    MLX_COLLAPSED_GROUP("defaults of requests, and device"),
    MLX_NUMBER_FLAG(flags_t, sampling.temperature, "--temp", "T", "sampling temperature (default: 0.8; 0: greedy)", 0, 1000000),
    MLX_INT_FLAG(flags_t, seed, "-s, --seed", "N", "random seed of the first request; the others count up (default: 0)", 0, 4294967295),
    MLX_INT_FLAG(flags_t, sampling.top_k, "--top-k", "N", "keep the N most probable tokens (default: 40; 0: all)", 0, 1 << 30),
    MLX_NUMBER_FLAG(flags_t, sampling.top_p, "--top-p", "P", "keep the fewest tokens of total probability P (default: 0.95)", 0, 1),
    MLX_NUMBER_FLAG(flags_t, sampling.min_p, "--min-p", "P",
                    "keep tokens with at least P times the best probability (default: 0.05)", 0, 1),
    MLX_TEXT_FLAG(flags_t, system, "-sys, --system-prompt", "TEXT", "system message of requests that are only a prompt"),
    MLX_SWITCH_FLAG(flags_t, raw, "--raw", "complete requests that are only a prompt as text, without the chat template"),
    MLX_CHAT_TEMPLATE_FLAG(flags_t, chat_template),
    MLX_TEXT_FLAG(flags_t, reasoning, "--reasoning", "on|off|EFFORT",
                  "reasoning of chats that say nothing about it; EFFORT: none to max (default: the chat template's)"),
    MLX_ENGINES_FLAGS(flags_t, open, engines),
    MLX_RANKS_FLAG(flags_t, open),
    MLX_RARE_OPEN_FLAGS(flags_t, open),
    MLX_GROUP_END,
    MLX_QUIET_FLAG(flags_t, quiet),
    MLX_VERBOSE_FLAG(flags_t, open.engine.verbose),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_batch = {
    .name = "batch",
    .summary = "answer a file of requests",
    .usage =
        "usage: mlxcel batch IN.jsonl -o OUT.jsonl [options]\n\n"
        "A line of IN is a request of OpenAI's batch API, or {\"prompt\": ...}, {\"messages\": ...} or "
        "{\"input\": "
        "...}; of a file without the ending .jsonl, each line is a prompt. OUT has OpenAI's batch output, in "
        "the "
        "order of IN. What is done is kept if the process ends early.\n\n"
        "examples:\n"
        "  mlxcel batch requests.jsonl -o results.jsonl -m model.gguf\n"
        "  srun -n 8 mlxcel batch requests.jsonl -o results.jsonl -m model.gguf",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .initialize = initialize,
    .run = run,
};
