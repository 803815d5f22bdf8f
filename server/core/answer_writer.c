// Output of tasks -> parser -> events -> frames or an answer. Functions named *_locked need the mutex.
#include "server/core/answer_writer.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "output/parser.h"

struct mlx_answer_writer_choice {
  mlx_answer_writer_t *writer;
  size_t index;
  mlx_output_parser_t *parser;         // owned; NULL: plain text
  const char *stop;                    // that ended the text
  bool counted;                        // its cached tokens are part of the usage
  size_t seen;                         // tokens that events have had
  size_t sent_ids;                     // tokens whose ids events of a completion have had
  bool echoed;                         // an event has had the prompt
  int64_t cached, processed;           // tokens of the prompt, as the client was told; -1: it was not
  double prompt_start;                 // time
  const mlx_generation_t *generation;  // at the end; borrowed
  mlx_answer_token_t *tokens;          // scratch: tokens of the next event
  size_t token_count, token_capacity;
  char **ids;  // owned: of the tool calls
  size_t id_count, id_capacity;
};

// ----------------------------------------------------------------------------------------------------------
// Events

static mlx_status_t note_tool(mlx_answer_writer_choice_t *choice, const char *id) {
  MLX_TRY(mlx_reserve(choice->id_count + 1, sizeof *choice->ids, &choice->id_capacity, &choice->ids));
  MLX_TRY(mlx_copy_text(id, strlen(id), &choice->ids[choice->id_count]));
  ++choice->id_count;
  return NULL;
}

// The mean log-probability of the tokens; 0 without log-probabilities.
static double mean_logprob(const mlx_answer_writer_choice_t *choice) {
  const mlx_generation_t *g = choice->generation;
  const int64_t wanted = choice->writer->call->logprobs;
  const size_t width = wanted > 0 ? (size_t)wanted + 1 : 1;
  double sum = 0;
  for (size_t i = 0; g->logprobs && i < g->count; ++i) sum += g->logprobs[i * width + width - 1].logprob;
  return g->count ? sum / (double)g->count : 0;
}

// What the event of the end has, which a parser does not know.
static void add_end(const mlx_answer_writer_choice_t *choice, mlx_event_t *event) {
  event->stop = choice->stop;
  if (!choice->generation) return;
  event->ids = choice->generation->ids;
  event->id_count = choice->generation->count;
  event->mean_logprob = mean_logprob(choice);
  event->prompt_tokens = choice->tokens;  // scratch: finish_choice has collected them
  event->prompt_token_count = choice->token_count;
  const mlx_generation_t *g = choice->generation;
  event->routes = (mlx_answer_routes_t){g->routes, g->route_count, g->route_layers, g->route_used};
}

static mlx_status_t on_event(void *user, const mlx_event_t *event) {
  mlx_answer_writer_choice_t *choice = user;
  mlx_answer_writer_t *w = choice->writer;
  mlx_event_t copy = *event;
  if (event->kind == MLX_EVENT_FINISH) add_end(choice, &copy);
  if (event->kind == MLX_EVENT_TOOL_BEGIN) MLX_TRY(note_tool(choice, event->id));
  return w->call->stream ? w->api->stream_event(w->stream, &copy, &w->out)
                         : mlx_answer_add(&w->answer, &copy);
}

static mlx_status_t begin_locked(mlx_answer_writer_t *w) {
  if (w->begun || !w->call->stream) return NULL;
  MLX_TRY(mlx_api_stream_open(w->api, w->call, &w->answer, &w->stream, &w->out));
  mlx_exchange_set_header(w->job->exchange, "Cache-Control", "no-cache");
  mlx_exchange_set_header(w->job->exchange, "X-Accel-Buffering", "no");  // nginx passes events on at once
  mlx_exchange_begin(w->job->exchange, 200, w->api->stream_type);
  w->begun = true;
  return NULL;
}

static void write_locked(mlx_answer_writer_t *w) {
  if (!w->out.length || !w->begun) return;
  mlx_exchange_write(w->job->exchange, w->out.data, w->out.length);
  w->out.length = 0;
  w->written = mlx_seconds();
}

// ----------------------------------------------------------------------------------------------------------
// Log-probabilities

static mlx_status_t describe(const mlx_engine_t *engine, const mlx_logprob_t *from,
                             mlx_answer_logprob_t *out) {
  char *bytes;
  *out = (mlx_answer_logprob_t){.id = from->id, .logprob = from->logprob};
  MLX_TRY(mlx_engine_token_bytes(engine, from->id, &bytes, &out->length));
  out->bytes = bytes;
  return NULL;
}

static void clear_tokens(mlx_answer_writer_choice_t *choice) {
  for (size_t i = 0; i < choice->token_count; ++i) {
    const mlx_answer_token_t *token = &choice->tokens[i];
    for (size_t k = 0; k < token->top_count; ++k) mlx_free((void *)(uintptr_t)token->top[k].bytes);
    mlx_free((void *)(uintptr_t)token->top);
    mlx_free((void *)(uintptr_t)token->chosen.bytes);
  }
  choice->token_count = 0;
}

// |row| has the most likely tokens, or -1 where none remains, then the chosen one.
static mlx_status_t add_token(mlx_answer_writer_choice_t *choice, const mlx_logprob_t *row,
                              size_t top_count) {
  const mlx_engine_t *engine = choice->writer->job->engine;
  mlx_answer_logprob_t *top;
  MLX_TRY(
      mlx_reserve(choice->token_count + 1, sizeof *choice->tokens, &choice->token_capacity, &choice->tokens));
  MLX_TRY(mlx_alloc(top_count, sizeof *top, &top));
  mlx_answer_token_t *token = &choice->tokens[choice->token_count++];
  *token = (mlx_answer_token_t){.top = top};
  for (size_t i = 0; i < top_count && row[i].id >= 0; ++i) {
    MLX_TRY(describe(engine, &row[i], &top[i]));
    ++token->top_count;
  }
  return describe(engine, &row[top_count], &token->chosen);
}

// Collects the tokens that came since the last event, without an end-of-text token. *|out_count| is their
// number; they are described only if the call wants log-probabilities.
static mlx_status_t collect_tokens(mlx_answer_writer_choice_t *choice, const mlx_generation_t *g,
                                   size_t *out_count) {
  const size_t width = (size_t)choice->writer->call->logprobs + 1;
  const bool describes = choice->writer->call->logprobs >= 0 && g->logprobs;
  for (*out_count = 0; choice->seen < g->count; ++choice->seen) {
    if (mlx_engine_is_end(choice->writer->job->engine, g->ids[choice->seen])) continue;
    if (describes) MLX_TRY(add_token(choice, g->logprobs + choice->seen * width, width - 1));
    ++*out_count;
  }
  return NULL;
}

static const mlx_api_prompt_t *prompt_of(const mlx_answer_writer_choice_t *choice) {
  return &choice->writer->call->prompts[choice->index / (size_t)choice->writer->call->n];
}

// The tokens of the prompt. The first one has no log-probability.
static mlx_status_t collect_prompt(mlx_answer_writer_choice_t *choice, const mlx_generation_t *g) {
  const mlx_api_call_t *call = choice->writer->call;
  const mlx_api_prompt_t *prompt = prompt_of(choice);
  const int64_t wanted = call->prompt_logprobs >= 0 ? call->prompt_logprobs : call->logprobs;
  const size_t width = (size_t)wanted + 1;
  const mlx_logprob_t first = {.id = prompt->ids[0], .logprob = NAN};
  if (wanted < 0 || (!g->prompt_logprobs && prompt->id_count > 1)) return NULL;
  MLX_TRY(add_token(choice, &first, 0));
  for (size_t i = 1; i < prompt->id_count; ++i)
    MLX_TRY(add_token(choice, g->prompt_logprobs + (i - 1) * width, width - 1));
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Output

static mlx_status_t echo_prompt(mlx_answer_writer_choice_t *choice, const mlx_generation_t *g) {
  const mlx_api_prompt_t *prompt = prompt_of(choice);
  if (!choice->writer->call->echo || choice->echoed) return NULL;
  choice->echoed = true;
  mlx_status_t status = collect_prompt(choice, g);
  if (!status)
    status = on_event(choice, &(mlx_event_t){.kind = MLX_EVENT_TEXT,
                                             .choice = choice->index,
                                             .text = prompt->text,
                                             .length = prompt->length,
                                             .tokens = choice->tokens,
                                             .token_count = choice->token_count});
  clear_tokens(choice);
  return status;
}

static mlx_status_t add_text(mlx_answer_writer_choice_t *choice, const char *text, size_t length,
                             const mlx_generation_t *g) {
  size_t count;
  MLX_TRY(echo_prompt(choice, g));
  mlx_status_t status = collect_tokens(choice, g, &count);
  if (!status && choice->parser) {
    status = mlx_output_parser_add(choice->parser, text, length, choice->token_count ? choice->tokens : NULL,
                                   count);
  } else if (!status && (length || choice->token_count)) {
    const mlx_event_t event = {.kind = MLX_EVENT_TEXT,
                               .choice = choice->index,
                               .text = text,
                               .length = length,
                               .tokens = choice->tokens,
                               .token_count = choice->token_count,
                               .ids = g->ids + choice->sent_ids,
                               .id_count = g->count - choice->sent_ids};
    choice->sent_ids = g->count;
    status = on_event(choice, &event);
  }
  clear_tokens(choice);
  return status;
}

bool mlx_answer_writer_add(mlx_answer_writer_t *w, size_t index, const char *text, size_t length,
                           const mlx_generation_t *g) {
  uv_mutex_lock(&w->mutex);
  mlx_job_t *job = w->job;
  if (!atomic_load(&job->first_token_us)) {
    atomic_store(&job->first_token_us, (int64_t)((mlx_seconds() - job->start) * 1e6) + 1);
  }
  if (!w->choices[index].counted && index % (size_t)w->call->n == 0) {
    w->choices[index].counted = true;
    w->answer.cached_tokens += g->cached_tokens;
    atomic_store(&job->cached_tokens, w->answer.cached_tokens);
  }
  if (!w->status) w->status = begin_locked(w);
  if (!w->status) w->status = add_text(&w->choices[index], text, length, g);
  const bool goes_on = !w->status && !mlx_exchange_is_gone(w->job->exchange);
  uv_mutex_unlock(&w->mutex);
  return goes_on;
}

bool mlx_answer_writer_shows_progress(const mlx_answer_writer_t *w, size_t index) {
  return w->call->stream && w->call->return_progress && w->api->stream_progress &&
         index % (size_t)w->call->n == 0;
}

// A preempted sequence reads its prompt again, of which the client was told already.
void mlx_answer_writer_progress(mlx_answer_writer_t *w, size_t index, size_t done, size_t total) {
  uv_mutex_lock(&w->mutex);
  mlx_answer_writer_choice_t *choice = &w->choices[index];
  if (choice->processed < 0) {
    choice->cached = (int64_t)done;
    choice->prompt_start = mlx_seconds();
  }
  if (!w->status && (int64_t)done > choice->processed) w->status = begin_locked(w);
  if (!w->status && (int64_t)done > choice->processed) {
    choice->processed = (int64_t)done;
    w->api->stream_progress(w->stream,
                            &(mlx_api_progress_t){.choice = index,
                                                  .total = (int64_t)total,
                                                  .cached = choice->cached,
                                                  .processed = choice->processed,
                                                  .seconds = mlx_seconds() - choice->prompt_start},
                            &w->out);
  }
  uv_mutex_unlock(&w->mutex);
}

static mlx_status_t finish_choice(mlx_answer_writer_choice_t *choice, const mlx_generation_t *g) {
  const mlx_answer_writer_t *w = choice->writer;
  MLX_TRY(add_text(choice, "", 0, g));
  if (g->stop >= 0 && (size_t)g->stop < w->call->stop_count) choice->stop = w->call->stops[g->stop];
  choice->generation = g;
  mlx_status_t status = w->call->prompt_logprobs >= 0 ? collect_prompt(choice, g) : NULL;
  if (!status && choice->parser)
    status = mlx_output_parser_finish(choice->parser, g->finish_reason);
  else if (!status)
    status = on_event(
        choice,
        &(mlx_event_t){.kind = MLX_EVENT_FINISH, .choice = choice->index, .finish = g->finish_reason});
  clear_tokens(choice);
  choice->generation = NULL;
  return status;
}

// Remembers the text of an answer with tool calls, for the prompt of the next turn.
static mlx_status_t remember(const mlx_answer_writer_choice_t *choice, const mlx_generation_t *g) {
  const mlx_answer_writer_t *w = choice->writer;
  const mlx_api_prompt_t *prompt = prompt_of(choice);
  size_t count = g->count;
  while (count && mlx_engine_is_end(w->job->engine, g->ids[count - 1])) --count;
  const mlx_remembered_t answer = {.model = w->answer.model,
                                   .history = w->prompt->history,
                                   .prompt = prompt->text,
                                   .prompt_length = prompt->length,
                                   .raw = g->text,
                                   .raw_length = g->text_length,
                                   .ids = (const char *const *)choice->ids,
                                   .id_count = choice->id_count,
                                   .tokens = g->ids,
                                   .token_count = count};
  if (!choice->id_count || !w->call->messages || !w->call->tools || w->call->continue_final) return NULL;
  return mlx_tool_memory_remember(w->job->service->memory, &answer);
}

void mlx_answer_writer_finish(mlx_answer_writer_t *w, size_t index, const mlx_generation_t *g) {
  mlx_answer_t *answer = &w->answer;
  const double prompt = g->prompt_seconds - g->queue_seconds;
  uv_mutex_lock(&w->mutex);
  answer->output_tokens += (int64_t)g->count;
  if (g->queue_seconds > answer->queue_seconds) answer->queue_seconds = g->queue_seconds;
  if (prompt > answer->prompt_seconds) answer->prompt_seconds = prompt;
  if (g->decode_seconds > answer->decode_seconds) answer->decode_seconds = g->decode_seconds;
  atomic_store(&w->job->output_tokens, answer->output_tokens);
  if (!w->status) w->status = begin_locked(w);
  if (!w->status) w->status = finish_choice(&w->choices[index], g);
  if (!w->status) w->status = remember(&w->choices[index], g);
  if (w->choices[index].parser)
    answer->reasoning_tokens += mlx_output_parser_reasoning_tokens(w->choices[index].parser);
  uv_mutex_unlock(&w->mutex);
}

// ----------------------------------------------------------------------------------------------------------
// Response

void mlx_answer_writer_flush(mlx_answer_writer_t *w) {
  uv_mutex_lock(&w->mutex);
  write_locked(w);
  uv_mutex_unlock(&w->mutex);
}

static void fail_locked(mlx_answer_writer_t *w, const mlx_failure_t *failure) {
  mlx_failure_text_t text;
  if (w->ended) return;
  w->ended = true;
  if (!w->begun) {
    mlx_failure_respond(failure, w->api->error, w->job->exchange);
    return;
  }
  mlx_failure_describe(failure, &text);
  w->api->stream_error(w->stream, &text.error, &w->out);
  write_locked(w);
  mlx_exchange_abort(w->job->exchange);
}

void mlx_answer_writer_fail(mlx_answer_writer_t *w, const mlx_failure_t *failure) {
  uv_mutex_lock(&w->mutex);
  const mlx_failure_t own = {.kind = MLX_FAILURE_RUN, .status = w->status};
  fail_locked(w,
              w->status ? &own : failure);  // the writer's error is the reason why its tasks were cancelled
  uv_mutex_unlock(&w->mutex);
}

static mlx_status_t close_locked(mlx_answer_writer_t *w) {
  if (w->status) return NULL;
  if (w->call->stream) {
    MLX_TRY(w->api->stream_close(w->stream, &w->answer, &w->out));
    MLX_TRY(mlx_text_finish(&w->out));
    write_locked(w);
    mlx_exchange_end(w->job->exchange);
  } else {
    MLX_TRY(w->api->write(w->call, &w->answer, &w->out));
    MLX_TRY(mlx_text_finish(&w->out));
    mlx_exchange_respond(w->job->exchange, 200, "application/json", w->out.data, w->out.length);
  }
  w->ended = true;
  return NULL;
}

void mlx_answer_writer_close(mlx_answer_writer_t *w) {
  uv_mutex_lock(&w->mutex);
  w->status = mlx_status_join(w->status, close_locked(w));
  if (w->status) fail_locked(w, &(mlx_failure_t){.kind = MLX_FAILURE_RUN, .status = w->status});
  uv_mutex_unlock(&w->mutex);
}

void mlx_answer_writer_beat(mlx_answer_writer_t *w, double seconds) {
  uv_mutex_lock(&w->mutex);
  const bool due = w->call->stream && !w->ended && !w->status && mlx_seconds() - w->written >= seconds;
  if (due) {
    w->status = begin_locked(w);
    if (w->api->heartbeat) mlx_text_puts(&w->out, w->api->heartbeat);
    write_locked(w);
    w->written = mlx_seconds();
  }
  uv_mutex_unlock(&w->mutex);
}

// ----------------------------------------------------------------------------------------------------------

static void make_id(char out[40]) {
  static const char digits[] = "0123456789abcdef";
  uint8_t bytes[12] = {0};
  uv_random(NULL, NULL, bytes, sizeof bytes, 0, NULL);
  for (size_t i = 0; i < sizeof bytes; ++i) {
    out[2 * i] = digits[bytes[i] >> 4];
    out[2 * i + 1] = digits[bytes[i] & 15];
  }
  out[2 * sizeof bytes] = 0;
}

static mlx_status_t make_choices(mlx_answer_writer_t *w) {
  const mlx_output_options_t options = mlx_api_call_output_options(w->call);
  w->choice_count = (size_t)w->call->n * w->call->prompt_count;
  MLX_TRY(mlx_alloc(w->choice_count, sizeof *w->choices, &w->choices));
  for (size_t i = 0; i < w->choice_count; ++i) {
    mlx_answer_writer_choice_t *choice = &w->choices[i];
    choice->writer = w;
    choice->index = i;
    choice->processed = -1;
    if (!w->prompt->format) continue;
    const mlx_api_prompt_t *prompt = prompt_of(choice);
    MLX_TRY(mlx_output_parser_create(w->prompt->format, &options, prompt->text, prompt->length, i, on_event,
                                     choice, &choice->parser));
  }
  return NULL;
}

mlx_status_t mlx_answer_writer_initialize(mlx_job_t *job, const mlx_api_t *api, const mlx_api_call_t *call,
                                          const mlx_prepared_prompt_t *prompt, mlx_answer_writer_t *w) {
  *w = (mlx_answer_writer_t){.job = job, .api = api, .call = call, .prompt = prompt};
  uv_mutex_init(&w->mutex);
  w->written = mlx_seconds();
  make_id(w->answer.id);
  w->answer.model = atomic_load(&job->model_name);
  w->answer.created = (int64_t)time(NULL);
  for (size_t i = 0; i < call->prompt_count; ++i)
    w->answer.prompt_tokens += (int64_t)call->prompts[i].id_count;
  atomic_store(&job->prompt_tokens, w->answer.prompt_tokens);
  return make_choices(w);
}

void mlx_answer_writer_clear(mlx_answer_writer_t *w) {
  if (!w->api) return;
  for (size_t i = 0; i < w->choice_count && w->choices; ++i) {
    mlx_output_parser_free(w->choices[i].parser);
    clear_tokens(&w->choices[i]);
    mlx_free(w->choices[i].tokens);
    for (size_t k = 0; k < w->choices[i].id_count; ++k) mlx_free(w->choices[i].ids[k]);
    mlx_free(w->choices[i].ids);
  }
  mlx_free(w->choices);
  mlx_api_stream_free(w->api, w->stream);
  mlx_answer_clear(&w->answer);
  mlx_text_clear(&w->out);
  mlx_status_free(w->status);
  uv_mutex_destroy(&w->mutex);
  *w = (mlx_answer_writer_t){0};
}
