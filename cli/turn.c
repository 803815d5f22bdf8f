// Renders the conversation with the chat template, prefills only the tokens that the session does not hold
// yet, and streams the answer.
#include "cli/turn.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "line/prompt.h"
#include "line/stream.h"

#define MAX_RESERVE 256  // tokens of the context kept free for an answer

mlx_status_t mlx_turns_create(const mlx_chat_setup_t *setup, mlx_turns_t *out) {
  *out = (mlx_turns_t){.setup = setup};
  mlx_status_t status = mlx_session_create(setup->engine, &out->session);
  if (!status) status = mlx_conversation_create(&out->conversation);
  if (!status && setup->system)
    status = mlx_conversation_set_system(out->conversation, setup->system, strlen(setup->system));
  if (status) mlx_turns_clear(out);
  return status;
}

void mlx_turns_clear(mlx_turns_t *turns) {
  mlx_conversation_free(turns->conversation);
  mlx_session_free(turns->session);
  *turns = (mlx_turns_t){0};
}

void mlx_turns_replace(mlx_turns_t *turns, mlx_conversation_t *conversation) {
  mlx_conversation_free(turns->conversation);
  turns->conversation = conversation;
  turns->first = 0;
  turns->last = (mlx_turn_stats_t){0};
}

// ----------------------------------------------------------------------------------------------------------
// The prompt

typedef struct prompt {
  int32_t *ids;  // owned
  size_t count;
  bool thinking;  // the prompt ends with <think>
} prompt_t;

static mlx_status_t make_prompt(const mlx_turns_t *turns, size_t first, prompt_t *out) {
  char *messages, *text = NULL;
  size_t messages_length, length;
  *out = (prompt_t){0};
  MLX_TRY(mlx_conversation_json(turns->conversation, first, &messages, &messages_length));
  mlx_status_t status =
      mlx_chat_render(turns->setup->chat, messages, messages_length, &turns->setup->render, &text, &length);
  if (!status) status = mlx_engine_tokenize_chat(turns->setup->engine, text, length, &out->ids, &out->count);
  if (!status) out->thinking = mlx_stream_thinks_after(text, length);
  mlx_chat_free_text(text);
  mlx_free(messages);
  return status;
}

static mlx_status_t too_long(size_t count, const mlx_engine_info_t *info) {
  mlx_status_t status = mlx_error(
      MLX_USAGE, "the message is too long: the conversation has %zu tokens and the context holds %lld", count,
      (long long)info->context);
  if ((int64_t)count < info->model_context)
    return mlx_status_hint(status, "shorten the message, or start the chat with a larger context: -c N");
  return mlx_status_hint(status, "shorten the message: the model supports at most %lld tokens",
                         (long long)info->model_context);
}

static size_t reserve_of(const mlx_turns_t *turns, size_t context) {
  const int64_t max_tokens = turns->setup->generate->max_tokens;
  size_t reserve = context / 8 < MAX_RESERVE ? context / 8 : MAX_RESERVE;
  return max_tokens >= 0 && (size_t)max_tokens < reserve ? (size_t)max_tokens : reserve;
}

// Drops the oldest turns if the prompt does not fit. Dropping a turn makes the session prefill everything
// again, so turns are dropped until half of the context is free; otherwise every turn would prefill
// everything.
static mlx_status_t fit_prompt(mlx_turns_t *turns, prompt_t *out) {
  const mlx_engine_info_t info = mlx_engine_info(turns->setup->engine);
  const size_t context = (size_t)info.context, before = turns->first;
  const size_t count = mlx_conversation_count(turns->conversation),
               system = mlx_conversation_system(turns->conversation) ? 1 : 0;
  size_t limit = context - reserve_of(turns, context),
         first = before < count ? before : 0;  // /clear may have removed messages
  MLX_TRY(make_prompt(turns, first, out));
  while (out->count > limit) {
    const size_t next = mlx_conversation_next_turn(turns->conversation, first > system ? first : system);
    if (next >= count) break;
    limit = context / 2;
    first = next;
    mlx_engine_free_ids(out->ids);
    MLX_TRY(make_prompt(turns, first, out));
  }
  if (out->count >= context) return too_long(out->count, &info);
  turns->first = first;
  if (first != before) {
    const size_t dropped = first - (before > system ? before : system);
    fprintf(stderr,
            "(the context of %zu tokens is full: dropped the oldest %zu %s; /clear starts a new "
            "conversation%s)\n",
            context, dropped, mlx_plural(dropped, "message", "messages"),
            info.context < info.model_context ? ", -c N sets a longer context" : "");
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The answer

typedef struct output {
  mlx_stream_t stream;
  bool stdout_failed, interrupted;
} output_t;

static bool on_text(void *user, const char *text, size_t length) {
  output_t *output = user;
  output->stdout_failed = !mlx_stream_write(&output->stream, text, length);
  output->interrupted = output->interrupted || mlx_prompt_was_interrupted();
  return !output->stdout_failed && !output->interrupted;
}

// Prefills a long prompt in chunks, except the last one, and checks for Ctrl-C between them. *inout_at counts
// the tokens that the session holds.
static mlx_status_t prefill_chunks(mlx_turns_t *turns, const prompt_t *prompt, size_t *inout_at,
                                   bool *out_interrupted) {
  // Large enough for the speed of prefill, small enough for Ctrl-C.
  const size_t chunk = mlx_engine_info(turns->setup->engine).gpu[0] ? 512 : 128;
  int32_t next;
  while (!*out_interrupted && prompt->count - *inout_at > chunk) {
    MLX_TRY(mlx_session_read(turns->session, prompt->ids + *inout_at, chunk, &next));
    *inout_at += chunk;
    *out_interrupted = mlx_prompt_was_interrupted();
    mlx_cli_show_prompt(NULL, *out_interrupted ? prompt->count : *inout_at, prompt->count);
  }
  return NULL;
}

static mlx_status_t generate(mlx_turns_t *turns, const prompt_t *prompt, size_t at, output_t *output,
                             mlx_generation_t *out) {
  mlx_generate_options_t options = *turns->setup->generate;
  mlx_sampling_t sampling;
  options.on_text = on_text;
  options.user = output;
  if (options.sampling) {
    sampling = *options.sampling;
    sampling.seed += turns->answers;
    options.sampling = &sampling;
  }
  ++turns->answers;
  mlx_stream_begin(&output->stream, prompt->thinking);
  mlx_stream_wrap(&output->stream);
  mlx_status_t status =
      mlx_session_generate(turns->session, prompt->ids + at, prompt->count - at, &options, out);
  if (!mlx_stream_end(&output->stream) && !output->stdout_failed) output->stdout_failed = true;
  return status;
}

static void print_end(const mlx_generation_t *g, bool interrupted) {
  if (interrupted) {
    fputs(g->text_length
              ? "(stopped)\n"
              : "(stopped before an answer; the message was removed, the up arrow brings it back)\n",
          stderr);
  } else if (g->finish_reason == MLX_FINISH_CONTEXT) {
    fputs("(the context is full: the answer ends here; the next turn drops the oldest messages)\n", stderr);
  } else if (g->finish_reason == MLX_FINISH_LENGTH) {
    fputs("(the answer reached the limit of -n)\n", stderr);
  }
}

static mlx_status_t keep_answer(mlx_turns_t *turns, const prompt_t *prompt, size_t kept, double start,
                                const mlx_generation_t *g, bool interrupted, bool *out_answered) {
  turns->last = (mlx_turn_stats_t){.prompt_count = prompt->count,
                                   .kept = kept,
                                   .output_count = g->count,
                                   .prompt_seconds = mlx_seconds() - start - g->decode_seconds,
                                   .decode_seconds = g->decode_seconds,
                                   .finish_reason = g->finish_reason};
  if (g->text_length && (putchar('\n') == EOF || fflush(stdout))) turns->stdout_failed = true;
  print_end(g, interrupted);
  *out_answered = g->text_length > 0 || !interrupted;
  return *out_answered
             ? mlx_conversation_add(turns->conversation, "assistant", g->text ? g->text : "", g->text_length)
             : NULL;
}

mlx_status_t mlx_turns_answer(mlx_turns_t *turns, bool *out_answered) {
  prompt_t prompt;
  output_t output = {0};
  mlx_generation_t generation = {0};
  size_t kept = 0, at = 0;
  *out_answered = false;
  mlx_prompt_was_interrupted();
  mlx_status_t status = fit_prompt(turns, &prompt);
  const double start = mlx_seconds();
  if (!status) status = mlx_session_resume(turns->session, prompt.ids, prompt.count, &kept);
  at = kept;
  if (!status) status = prefill_chunks(turns, &prompt, &at, &output.interrupted);
  if (!status && !output.interrupted) status = generate(turns, &prompt, at, &output, &generation);
  turns->stdout_failed = output.stdout_failed;
  if (!status && !turns->stdout_failed)
    status = keep_answer(turns, &prompt, kept, start, &generation, output.interrupted, out_answered);
  mlx_generation_clear(&generation);
  mlx_engine_free_ids(prompt.ids);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Statistics

static double rate(size_t count, double seconds) { return seconds > 0 ? (double)count / seconds : 0; }

// Tokens of the conversation as the next answer reads it; 0 without messages, or if it cannot be rendered.
static size_t count_unread(const mlx_turns_t *turns) {
  const size_t system = mlx_conversation_system(turns->conversation) ? 1 : 0;
  prompt_t prompt;
  if (mlx_conversation_count(turns->conversation) <= system) return 0;
  mlx_status_t status = make_prompt(turns, turns->first, &prompt);
  const size_t count = status ? 0 : prompt.count;
  mlx_engine_free_ids(prompt.ids);
  mlx_status_free(status);
  return count;
}

void mlx_turns_print_stats(const mlx_turns_t *turns) {
  const mlx_turn_stats_t *last = &turns->last;
  const size_t read = last->prompt_count - last->kept;
  if (last->prompt_count) {
    const size_t decoded = last->output_count ? last->output_count - 1 : 0;  // prefill gives the first token
    fprintf(stderr, "%s: prompt %zu %s, %zu of them new, %.1f tok/s; output %zu %s, %.1f tok/s\n",
            mlx_finish_reason_name(last->finish_reason), last->prompt_count,
            mlx_plural(last->prompt_count, "token", "tokens"), read, rate(read, last->prompt_seconds),
            last->output_count, mlx_plural(last->output_count, "token", "tokens"),
            rate(decoded, last->decode_seconds));
  } else {
    fputs("no answer yet in this conversation\n", stderr);
  }
  // Before the first answer of a conversation, the session holds tokens of another one.
  const long long used =
      last->prompt_count ? mlx_session_length(turns->session) : (long long)count_unread(turns);
  fprintf(stderr, "context: %lld of %lld tokens in use\n", used,
          (long long)mlx_engine_info(turns->setup->engine).context);
}
