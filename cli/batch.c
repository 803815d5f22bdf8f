// Submits every prompt of a file to one scheduler, steps it, and prints results in the order of the file.
#include "cli/batch.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/interrupt.h"
#include "cli/sampling.h"
#include "cli/terminal.h"
#include "line/stream.h"

#define MAX_FILE (64u << 20)  // bytes
#define ENDING ".jsonl"

_Static_assert(MLX_PROMPTS_MAX_STOPS <= MLX_MAX_STOPS && MLX_PROMPTS_MAX_STOP_LENGTH <= MLX_MAX_STOP_LENGTH,
               "a file may have more stop strings than a request");

// ----------------------------------------------------------------------------------------------------------
// Input

bool mlx_cli_batch_is_file(const char *path) {
  const size_t length = path ? strlen(path) : 0, ending = strlen(ENDING);
  return length > ending && !strcmp(path + length - ending, ENDING);
}

mlx_status_t mlx_cli_batch_read(const char *path, mlx_cli_batch_t *out) {
  char *bytes;
  size_t length;
  *out = (mlx_cli_batch_t){.path = path};
  MLX_TRY(mlx_read_input(path, MAX_FILE, &bytes, &length));
  mlx_status_t status = mlx_prompts_parse(path, bytes, length, &out->prompts);
  mlx_free(bytes);
  if (!status) status = mlx_alloc(out->prompts.count, sizeof *out->thinking, &out->thinking);
  if (status) mlx_cli_batch_clear(out);
  return status;
}

void mlx_cli_batch_clear(mlx_cli_batch_t *batch) {
  mlx_prompts_clear(&batch->prompts);
  mlx_free(batch->thinking);
  *batch = (mlx_cli_batch_t){0};
}

bool mlx_cli_batch_has_messages(const mlx_cli_batch_t *batch) {
  for (size_t i = 0; i < batch->prompts.count; ++i) {
    if (batch->prompts.lines[i].is_chat) return true;
  }
  return false;
}

// Adds "FILE:LINE: " to an error.
static mlx_status_t at_line(const mlx_cli_batch_t *batch, size_t index, mlx_status_t status) {
  return mlx_status_annotate(status, "%s:%lld", batch->path, (long long)batch->prompts.lines[index].line);
}

// Replaces a prompt by the JSON list of messages that has it as a user message.
static mlx_status_t make_messages(mlx_prompt_line_t *line, const char *system) {
  mlx_conversation_t *conversation;
  char *json = NULL;
  size_t length;
  MLX_TRY(mlx_conversation_create(&conversation));
  mlx_status_t status = system ? mlx_conversation_set_system(conversation, system, strlen(system)) : NULL;
  if (!status) status = mlx_conversation_add(conversation, "user", line->text, line->length);
  if (!status) status = mlx_conversation_json(conversation, 0, &json, &length);
  mlx_conversation_free(conversation);
  if (status) return status;
  mlx_free(line->text);
  line->text = json;
  line->length = length;
  line->is_chat = true;
  return NULL;
}

static mlx_status_t render_line(mlx_prompt_line_t *line, const mlx_chat_t *chat,
                                const mlx_chat_options_t *options, bool *out_thinking) {
  char *text, *copy = NULL;
  size_t length;
  MLX_TRY(mlx_chat_render(chat, line->text, line->length, options, &text, &length));
  mlx_status_t status = mlx_copy_text(text, length, &copy);
  mlx_chat_free_text(text);
  if (status) return status;
  mlx_free(line->text);
  line->text = copy;
  line->length = length;
  *out_thinking = mlx_stream_thinks_after(copy, length);
  return NULL;
}

mlx_status_t mlx_cli_batch_render(mlx_cli_batch_t *batch, const mlx_chat_t *chat,
                                  const mlx_chat_options_t *options, const char *system) {
  for (size_t i = 0; i < batch->prompts.count; ++i) {
    mlx_prompt_line_t *line = &batch->prompts.lines[i];
    mlx_status_t status = line->is_chat ? NULL : make_messages(line, system);
    if (!status) status = render_line(line, chat, options, &batch->thinking[i]);
    if (status) return at_line(batch, i, status);
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Requests

typedef struct item {  // one line of the file
  int32_t *ids;        // owned: the prompt's tokens
  size_t count;
  uint64_t seed;
  mlx_request_t *request;  // owned; NULL before it is submitted and after its result is printed
} item_t;

typedef struct work {
  const mlx_cli_batch_t *batch;
  mlx_engine_t *engine;
  const mlx_generate_options_t *options;
  bool no_special, json;
  mlx_scheduler_t *scheduler;
  item_t *items;         // owned; [batch->prompts.count]
  size_t printed;        // items whose results are printed
  mlx_status_t failure;  // owned: the first request that failed
  size_t prompt_tokens, output_tokens, finished[MLX_FINISH_ERROR + 1];
} work_t;

static mlx_status_t submit(work_t *work, size_t index) {
  const mlx_prompt_line_t *line = &work->batch->prompts.lines[index];
  item_t *item = &work->items[index];
  mlx_generate_options_t options = *work->options;
  mlx_sampling_t sampling = *options.sampling;
  sampling.seed = item->seed = line->has_seed ? line->seed : sampling.seed + index;
  if (line->has_temperature) sampling.temperature = line->temperature;
  if (line->has_max_tokens) options.max_tokens = line->max_tokens;
  if (line->has_stops) {
    options.stops = (const char *const *)line->stops;
    options.stop_count = line->stop_count;
  }
  options.sampling = &sampling;
  if (line->is_chat)
    MLX_TRY(mlx_engine_tokenize_chat(work->engine, line->text, line->length, &item->ids, &item->count));
  else if (work->no_special)
    MLX_TRY(mlx_engine_tokenize_plain(work->engine, line->text, line->length, true, SIZE_MAX, &item->ids,
                                      &item->count));
  else
    MLX_TRY(mlx_engine_tokenize(work->engine, line->text, line->length, &item->ids, &item->count));
  return mlx_scheduler_submit(work->scheduler, item->ids, item->count, &options, &item->request);
}

// ----------------------------------------------------------------------------------------------------------
// Output

// The object of one line, without a line feed inside it.
static mlx_status_t put_object(const work_t *work, size_t index, const mlx_generation_t *g,
                               mlx_status_t failure, mlx_json_writer_t *json) {
  const item_t *item = &work->items[index];
  mlx_status_t status = NULL;
  mlx_json_begin_object(json, NULL, MLX_JSON_ONE_LINE);
  mlx_json_put_int(json, "line", work->batch->prompts.lines[index].line);
  mlx_json_put_ints(json, "prompt_ids", item->ids, item->count);
  mlx_json_put_ints(json, "output_ids", g->ids, g->count);
  mlx_json_put_bytes(json, "text", g->text ? g->text : "", g->text_length);
  mlx_json_put_uint(json, "seed", item->seed);
  if (g->logprobs) {
    status = mlx_cli_put_logprobs(work->engine, g, (size_t)work->options->logprobs, MLX_JSON_ONE_LINE, json);
  }
  mlx_json_put_text(json, "finish_reason", mlx_finish_reason_name(g->finish_reason));
  if (failure) mlx_json_put_text(json, "error", mlx_status_message(failure));
  mlx_json_put_number(json, "prompt_seconds", "%.6f", g->prompt_seconds);
  mlx_json_put_number(json, "decode_seconds", "%.6f", g->decode_seconds);
  mlx_json_end(json);
  mlx_text_puts(json->out, "\n");
  return status;
}

static mlx_status_t print_object(const work_t *work, size_t index, const mlx_generation_t *g,
                                 mlx_status_t failure) {
  mlx_text_t text = {0};
  mlx_json_writer_t json = {.out = &text};
  mlx_status_t status = put_object(work, index, g, failure, &json);
  status = mlx_status_join(status, mlx_text_finish(&text));
  if (!status && (fwrite(text.data, 1, text.length, stdout) != text.length || fflush(stdout)))
    status = mlx_stdout_error();
  mlx_text_clear(&text);
  return status;
}

// A block has a heading, as head and tail print it for several files, the text, and an empty line.
static mlx_status_t print_block(const work_t *work, size_t index, const mlx_generation_t *g) {
  mlx_stream_t stream = {0};
  if (printf("==> line %lld <==\n", (long long)work->batch->prompts.lines[index].line) < 0)
    return mlx_stdout_error();
  mlx_stream_begin(&stream, work->batch->thinking[index]);
  bool written = !g->text || mlx_stream_write(&stream, g->text, g->text_length);
  written = mlx_stream_end(&stream) && written;
  return written && puts("\n") >= 0 && !fflush(stdout) ? NULL : mlx_stdout_error();
}

// Prints the result of an item and frees its request.
static mlx_status_t print_item(work_t *work, size_t index) {
  item_t *item = &work->items[index];
  const mlx_generation_t *g = mlx_request_generation(item->request);
  mlx_status_t failure = at_line(work->batch, index, mlx_request_take_status(item->request));
  work->prompt_tokens += item->count;
  work->output_tokens += g->count;
  ++work->finished[g->finish_reason];
  mlx_status_t status = work->json ? print_object(work, index, g, failure) : print_block(work, index, g);
  work->failure = mlx_status_join(work->failure, failure);
  mlx_request_free(item->request);
  item->request = NULL;
  return status;
}

static void print_summary(const work_t *work, double seconds) {
  const size_t count = work->batch->prompts.count;
  mlx_terminal_note("%s", work->json ? "" : "\n");
  if (work->printed < count) mlx_terminal_note("%zu of ", work->printed);
  mlx_terminal_note("%zu %s", count, mlx_plural(count, "prompt", "prompts"));
  for (int i = 0; i <= MLX_FINISH_ERROR; ++i) {
    if (work->finished[i])
      mlx_terminal_note(", %s %zu", mlx_finish_reason_name((mlx_finish_reason_t)i), work->finished[i]);
  }
  mlx_terminal_note(": prompt %zu %s; output %zu %s, %.1f tok/s in all\n", work->prompt_tokens,
                    mlx_plural(work->prompt_tokens, "token", "tokens"), work->output_tokens,
                    mlx_plural(work->output_tokens, "token", "tokens"),
                    seconds > 0 ? (double)work->output_tokens / seconds : 0);
}

// ----------------------------------------------------------------------------------------------------------

static mlx_status_t run(work_t *work) {
  const size_t count = work->batch->prompts.count;
  bool idle = false;
  for (size_t i = 0; i < count; ++i) MLX_TRY(at_line(work->batch, i, submit(work, i)));
  const double start = mlx_seconds();
  mlx_interrupt_watch();
  while (work->printed < count && !mlx_interrupt_requested()) {
    if (mlx_request_is_done(work->items[work->printed].request)) {
      MLX_TRY(print_item(work, work->printed));
      ++work->printed;
    } else if (idle) {
      return mlx_error(MLX_INTERNAL, "the scheduler is idle, but a request is not done");
    } else {
      MLX_TRY(mlx_scheduler_step(work->scheduler, &idle));
    }
  }
  print_summary(work, mlx_seconds() - start);
  return work->printed < count ? mlx_error(MLX_CANCELLED, "interrupted") : NULL;
}

mlx_status_t mlx_cli_batch_generate(const mlx_cli_batch_t *batch, mlx_engine_t *engine,
                                    const mlx_generate_options_t *options, bool no_special, bool json) {
  work_t work = {
      .batch = batch, .engine = engine, .options = options, .no_special = no_special, .json = json};
  mlx_scheduler_options_t scheduling;
  mlx_scheduler_options_initialize(&scheduling);
  MLX_TRY(mlx_alloc(batch->prompts.count, sizeof *work.items, &work.items));
  mlx_status_t status = mlx_scheduler_create(engine, &scheduling, &work.scheduler);
  if (!status) status = run(&work);
  for (size_t i = 0; i < batch->prompts.count; ++i) {
    mlx_request_free(work.items[i].request);
    mlx_engine_free_ids(work.items[i].ids);
  }
  mlx_scheduler_free(work.scheduler);
  mlx_free(work.items);
  return mlx_status_join(status, work.failure);
}
