// Output of tasks -> parser -> events -> frames or an answer. Functions named *_locked need the mutex.
#include "server/reply.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"

struct mlx_reply_choice {
  mlx_reply_t *reply;
  size_t index;
  mlx_output_parser_t *parser;  // owned; NULL: plain text
  const char *stop;             // that ended the text
  bool counted;                 // its cached tokens are part of the usage
  size_t seen;                  // tokens that events have had
  bool echoed;                  // an event has had the prompt
  mlx_answer_token_t *tokens;   // scratch: tokens of the next event
  size_t token_count, token_capacity;
  char **ids;  // owned: of the tool calls
  size_t id_count, id_capacity;
};

// ----------------------------------------------------------------------------------------------------------
// Events

static mlx_status_t note_tool(mlx_reply_choice_t *choice, const char *id) {
  MLX_TRY(mlx_reserve(choice->id_count + 1, sizeof *choice->ids, &choice->id_capacity, &choice->ids));
  MLX_TRY(mlx_copy_text(id, strlen(id), &choice->ids[choice->id_count]));
  ++choice->id_count;
  return NULL;
}

static mlx_status_t on_event(void *user, const mlx_event_t *event) {
  mlx_reply_choice_t *choice = user;
  mlx_reply_t *r = choice->reply;
  mlx_event_t copy = *event;
  if (event->kind == MLX_EVENT_FINISH) copy.stop = choice->stop;
  if (event->kind == MLX_EVENT_TOOL_BEGIN) MLX_TRY(note_tool(choice, event->id));
  return r->parts.call->stream ? r->parts.shape->stream_event(r->writer, &copy, &r->out)
                               : mlx_answer_add(&r->answer, &copy);
}

static mlx_status_t begin_locked(mlx_reply_t *r) {
  if (r->begun || !r->parts.call->stream) return NULL;
  MLX_TRY(r->parts.shape->stream_open(r->parts.call, &r->answer, &r->writer, &r->out));
  mlx_exchange_set_header(r->parts.exchange, "Cache-Control", "no-cache");
  mlx_exchange_set_header(r->parts.exchange, "X-Accel-Buffering", "no");  // nginx passes events on at once
  mlx_exchange_begin(r->parts.exchange, 200, r->parts.shape->stream_type);
  r->begun = true;
  return NULL;
}

static void write_locked(mlx_reply_t *r) {
  if (!r->out.length || !r->begun) return;
  mlx_exchange_write(r->parts.exchange, r->out.data, r->out.length);
  r->out.length = 0;
  r->written = mlx_seconds();
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

static void clear_tokens(mlx_reply_choice_t *choice) {
  for (size_t i = 0; i < choice->token_count; ++i) {
    const mlx_answer_token_t *token = &choice->tokens[i];
    for (size_t k = 0; k < token->top_count; ++k) mlx_free((void *)(uintptr_t)token->top[k].bytes);
    mlx_free((void *)(uintptr_t)token->top);
    mlx_free((void *)(uintptr_t)token->chosen.bytes);
  }
  choice->token_count = 0;
}

// |row| has the most likely tokens, then the chosen one.
static mlx_status_t add_token(mlx_reply_choice_t *choice, const mlx_logprob_t *row, size_t top_count) {
  const mlx_engine_t *engine = choice->reply->parts.engine;
  mlx_answer_logprob_t *top;
  MLX_TRY(
      mlx_reserve(choice->token_count + 1, sizeof *choice->tokens, &choice->token_capacity, &choice->tokens));
  MLX_TRY(mlx_alloc(top_count, sizeof *top, &top));
  mlx_answer_token_t *token = &choice->tokens[choice->token_count++];
  *token = (mlx_answer_token_t){.top = top};
  for (size_t i = 0; i < top_count; ++i) {
    MLX_TRY(describe(engine, &row[i], &top[i]));
    ++token->top_count;
  }
  return describe(engine, &row[top_count], &token->chosen);
}

// Collects the tokens that came since the last event, without an end-of-text token. *|out_count| is their
// number; they are described only if the call wants log-probabilities.
static mlx_status_t collect_tokens(mlx_reply_choice_t *choice, const mlx_generation_t *g, size_t *out_count) {
  const size_t width = (size_t)choice->reply->parts.call->logprobs + 1;
  const bool describes = choice->reply->parts.call->logprobs >= 0 && g->logprobs;
  for (*out_count = 0; choice->seen < g->count; ++choice->seen) {
    if (mlx_engine_is_end(choice->reply->parts.engine, g->ids[choice->seen])) continue;
    if (describes) MLX_TRY(add_token(choice, g->logprobs + choice->seen * width, width - 1));
    ++*out_count;
  }
  return NULL;
}

// The tokens of the prompt. The first one has no log-probability.
static mlx_status_t collect_prompt(mlx_reply_choice_t *choice, const mlx_generation_t *g) {
  const mlx_reply_parts_t *parts = &choice->reply->parts;
  const mlx_input_prompt_t *prompt = &parts->input->prompts[choice->index / (size_t)parts->call->n];
  const size_t width = (size_t)parts->call->logprobs + 1;
  const mlx_logprob_t first = {.id = prompt->ids[0], .logprob = NAN};
  if (parts->call->logprobs < 0 || !g->prompt_logprobs) return NULL;
  MLX_TRY(add_token(choice, &first, 0));
  for (size_t i = 1; i < prompt->count; ++i)
    MLX_TRY(add_token(choice, g->prompt_logprobs + (i - 1) * width, width - 1));
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Output

static mlx_status_t echo_prompt(mlx_reply_choice_t *choice, const mlx_generation_t *g) {
  const mlx_reply_parts_t *parts = &choice->reply->parts;
  const mlx_input_prompt_t *prompt = &parts->input->prompts[choice->index / (size_t)parts->call->n];
  if (!parts->call->echo || choice->echoed) return NULL;
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

static mlx_status_t add_text(mlx_reply_choice_t *choice, const char *text, size_t length,
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
                               .token_count = choice->token_count};
    status = on_event(choice, &event);
  }
  clear_tokens(choice);
  return status;
}

bool mlx_reply_add(mlx_reply_t *r, size_t index, const char *text, size_t length, const mlx_generation_t *g) {
  uv_mutex_lock(&r->mutex);
  mlx_record_t *record = r->parts.record;
  if (!atomic_load(&record->first_token_us)) {
    atomic_store(&record->first_token_us, (int64_t)((mlx_seconds() - record->start) * 1e6) + 1);
  }
  if (!r->choices[index].counted && index % (size_t)r->parts.call->n == 0) {
    r->choices[index].counted = true;
    r->answer.cached_tokens += g->cached_tokens;
    atomic_store(&record->cached_tokens, r->answer.cached_tokens);
  }
  if (!r->status) r->status = begin_locked(r);
  if (!r->status) r->status = add_text(&r->choices[index], text, length, g);
  const bool goes_on = !r->status && !mlx_exchange_is_gone(r->parts.exchange);
  uv_mutex_unlock(&r->mutex);
  return goes_on;
}

static mlx_status_t finish_choice(mlx_reply_choice_t *choice, const mlx_generation_t *g) {
  const mlx_reply_t *r = choice->reply;
  MLX_TRY(add_text(choice, "", 0, g));
  if (g->stop >= 0 && (size_t)g->stop < r->parts.call->stop_count)
    choice->stop = r->parts.call->stops[g->stop];
  if (choice->parser) return mlx_output_parser_finish(choice->parser, g->finish_reason);
  return on_event(
      choice, &(mlx_event_t){.kind = MLX_EVENT_FINISH, .choice = choice->index, .finish = g->finish_reason});
}

// Remembers the text of an answer with tool calls, for the prompt of the next turn.
static mlx_status_t remember(const mlx_reply_choice_t *choice, const mlx_generation_t *g) {
  const mlx_reply_parts_t *parts = &choice->reply->parts;
  const mlx_input_prompt_t *prompt = &parts->input->prompts[0];
  size_t count = g->count;
  while (count && mlx_engine_is_end(parts->engine, g->ids[count - 1])) --count;
  const mlx_remembered_t answer = {.model = parts->model,
                                   .history = parts->input->history,
                                   .prompt = prompt->text,
                                   .prompt_length = prompt->length,
                                   .raw = g->text,
                                   .raw_length = g->text_length,
                                   .ids = (const char *const *)choice->ids,
                                   .id_count = choice->id_count,
                                   .tokens = g->ids,
                                   .token_count = count};
  if (!choice->id_count || !parts->call->messages || !parts->call->tools || parts->call->continue_final)
    return NULL;
  return mlx_tool_memory_remember(parts->memory, &answer);
}

void mlx_reply_finish(mlx_reply_t *r, size_t index, const mlx_generation_t *g) {
  mlx_answer_t *answer = &r->answer;
  const double prompt = g->prompt_seconds - g->queue_seconds;
  uv_mutex_lock(&r->mutex);
  answer->output_tokens += (int64_t)g->count;
  if (g->queue_seconds > answer->queue_seconds) answer->queue_seconds = g->queue_seconds;
  if (prompt > answer->prompt_seconds) answer->prompt_seconds = prompt;
  if (g->decode_seconds > answer->decode_seconds) answer->decode_seconds = g->decode_seconds;
  atomic_store(&r->parts.record->output_tokens, answer->output_tokens);
  if (!r->status) r->status = begin_locked(r);
  if (!r->status) r->status = finish_choice(&r->choices[index], g);
  if (!r->status) r->status = remember(&r->choices[index], g);
  if (r->choices[index].parser)
    answer->reasoning_tokens += mlx_output_parser_reasoning_tokens(r->choices[index].parser);
  uv_mutex_unlock(&r->mutex);
}

// ----------------------------------------------------------------------------------------------------------
// Response

void mlx_reply_flush(mlx_reply_t *r) {
  uv_mutex_lock(&r->mutex);
  write_locked(r);
  uv_mutex_unlock(&r->mutex);
}

static void fail_locked(mlx_reply_t *r, const mlx_failure_t *failure) {
  mlx_failure_text_t text;
  if (r->ended) return;
  r->ended = true;
  if (!r->begun) {
    mlx_failure_respond(failure, r->parts.shape->error, r->parts.exchange);
    return;
  }
  mlx_failure_describe(failure, &text);
  r->parts.shape->stream_error(r->writer, &text.error, &r->out);
  write_locked(r);
  mlx_exchange_abort(r->parts.exchange);
}

void mlx_reply_fail(mlx_reply_t *r, const mlx_failure_t *failure) {
  uv_mutex_lock(&r->mutex);
  const mlx_failure_t own = {.kind = MLX_FAILURE_RUN, .status = r->status};
  fail_locked(r, r->status ? &own : failure);  // the reply's error is the reason why its tasks were cancelled
  uv_mutex_unlock(&r->mutex);
}

static mlx_status_t close_locked(mlx_reply_t *r) {
  if (r->status) return NULL;
  if (r->parts.call->stream) {
    MLX_TRY(r->parts.shape->stream_close(r->writer, &r->answer, &r->out));
    MLX_TRY(mlx_text_finish(&r->out));
    write_locked(r);
    mlx_exchange_end(r->parts.exchange);
  } else {
    MLX_TRY(r->parts.shape->write(r->parts.call, &r->answer, &r->out));
    MLX_TRY(mlx_text_finish(&r->out));
    mlx_exchange_respond(r->parts.exchange, 200, "application/json", r->out.data, r->out.length);
  }
  r->ended = true;
  return NULL;
}

void mlx_reply_close(mlx_reply_t *r) {
  uv_mutex_lock(&r->mutex);
  r->status = mlx_status_join(r->status, close_locked(r));
  if (r->status) fail_locked(r, &(mlx_failure_t){.kind = MLX_FAILURE_RUN, .status = r->status});
  uv_mutex_unlock(&r->mutex);
}

void mlx_reply_beat(mlx_reply_t *r, double seconds) {
  uv_mutex_lock(&r->mutex);
  const bool due = r->parts.call->stream && !r->ended && !r->status && mlx_seconds() - r->written >= seconds;
  if (due) {
    r->status = begin_locked(r);
    if (r->parts.shape->heartbeat) mlx_text_puts(&r->out, r->parts.shape->heartbeat);
    write_locked(r);
    r->written = mlx_seconds();
  }
  uv_mutex_unlock(&r->mutex);
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

static mlx_status_t make_choices(mlx_reply_t *r) {
  const mlx_input_t *input = r->parts.input;
  const size_t n = (size_t)r->parts.call->n;
  r->choice_count = n * input->count;
  MLX_TRY(mlx_alloc(r->choice_count, sizeof *r->choices, &r->choices));
  for (size_t i = 0; i < r->choice_count; ++i) {
    const mlx_input_prompt_t *prompt = &input->prompts[i / n];
    mlx_reply_choice_t *choice = &r->choices[i];
    choice->reply = r;
    choice->index = i;
    if (!input->format) continue;
    MLX_TRY(mlx_output_parser_create(input->format, r->parts.call, prompt->text, prompt->length, i, on_event,
                                     choice, &choice->parser));
  }
  return NULL;
}

mlx_status_t mlx_reply_initialize(const mlx_reply_parts_t *parts, mlx_reply_t *r) {
  const mlx_input_t *input = parts->input;
  *r = (mlx_reply_t){.parts = *parts};
  uv_mutex_init(&r->mutex);
  r->written = mlx_seconds();
  make_id(r->answer.id);
  r->answer.model = parts->model;
  r->answer.created = (int64_t)time(NULL);
  for (size_t i = 0; i < input->count; ++i) r->answer.prompt_tokens += (int64_t)input->prompts[i].count;
  atomic_store(&parts->record->prompt_tokens, r->answer.prompt_tokens);
  return make_choices(r);
}

void mlx_reply_clear(mlx_reply_t *r) {
  if (!r->parts.shape) return;
  for (size_t i = 0; i < r->choice_count && r->choices; ++i) {
    mlx_output_parser_free(r->choices[i].parser);
    clear_tokens(&r->choices[i]);
    mlx_free(r->choices[i].tokens);
    for (size_t k = 0; k < r->choices[i].id_count; ++k) mlx_free(r->choices[i].ids[k]);
    mlx_free(r->choices[i].ids);
  }
  mlx_free(r->choices);
  r->parts.shape->stream_free(r->writer);
  mlx_answer_clear(&r->answer);
  mlx_text_clear(&r->out);
  mlx_status_free(r->status);
  uv_mutex_destroy(&r->mutex);
  *r = (mlx_reply_t){0};
}
