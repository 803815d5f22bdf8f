// mlxcel run: generates text from a prompt, or opens a chat at the terminal. stdout carries only the
// generated text or JSON; everything else goes to stderr.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/batch.h"
#include "cli/chat.h"
#include "cli/open.h"
#include "cli/parse.h"
#include "cli/progress.h"
#include "cli/sampling.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "line/prompt.h"
#include "line/stream.h"
#include "runtime/mlxcel.h"

#define MAX_PROMPT (64u << 20)  // bytes
#define MAX_PARALLEL 1024

typedef struct flags {
  mlx_open_options_t open;
  const char *prompt, *prompt_file, *system, *tools_file, *chat_template, *variables;
  mlx_flag_list_t stops;
  int64_t count, parallel;
  bool chat, no_chat, json, ignore_eos, quiet;
  mlx_sampling_flags_t sampling;
  // Not flags: set before the model is opened.
  mlx_chat_options_t render;
  char *tools;            // owned: contents of tools_file
  mlx_cli_batch_t batch;  // owned: contents of prompt_file, if that is a file of prompts
  bool interactive;       // no prompt was given and stdin is a terminal
  bool piped;             // no prompt was given and stdin is not a terminal
} flags_t;

typedef struct prompt {
  const char *text;
  size_t length;
  char *owned;
} prompt_t;

// ----------------------------------------------------------------------------------------------------------
// Input

static mlx_status_t no_prompt(void) {
  return mlx_status_hint(mlx_error(MLX_USAGE, "no prompt was given"),
                         "give it with -p TEXT, with -f FILE or through a pipe; to chat, run it at a "
                         "terminal without a prompt");
}

// The chat option that was given; NULL if there is none.
static const char *chat_option(const flags_t *f) {
  return f->system          ? "-sys"
         : f->tools_file    ? "--tools"
         : f->chat_template ? "--chat-template"
         : f->variables     ? "--chat-template-kwargs"
                            : NULL;
}

static mlx_status_t check_stops(const flags_t *f) {
  for (size_t i = 0; i < f->stops.count; ++i) {
    const size_t length = strlen(f->stops.items[i]);
    if (!length || length > MLX_MAX_STOP_LENGTH)
      return mlx_error(MLX_USAGE, "option --stop expects a text of 1 to %d bytes, not %zu",
                       MLX_MAX_STOP_LENGTH, length);
  }
  return NULL;
}

// Reads a file of prompts, and checks the options that depend on it.
static mlx_status_t read_batch(flags_t *f) {
  if (!mlx_cli_batch_is_file(f->prompt_file)) return NULL;
  MLX_TRY(mlx_cli_batch_read(f->prompt_file, &f->batch));
  const int64_t count = (int64_t)f->batch.prompts.count;
  f->open.parallel = f->parallel                      ? f->parallel
                     : count < MLX_CLI_BATCH_PARALLEL ? count
                                                      : MLX_CLI_BATCH_PARALLEL;
  if (f->no_chat)
    return mlx_status_hint(mlx_error(MLX_USAGE, "--no-chat is for a prompt from a pipe"), "remove --no-chat");
  if (!f->chat && (f->system || (chat_option(f) && !mlx_cli_batch_has_messages(&f->batch))))
    return mlx_status_hint(mlx_error(MLX_USAGE, "%s needs a chat", chat_option(f)), "add --chat");
  return NULL;
}

// Without -p and -f: a chat if stdin is a terminal, else the prompt is read from stdin.
static mlx_status_t choose_input(flags_t *f) {
  const bool given = f->prompt || f->prompt_file;
  if (f->prompt && f->prompt_file)
    return mlx_status_hint(mlx_error(MLX_USAGE, "both -p and -f were given"), "give one of them");
  if (f->chat && f->no_chat)
    return mlx_status_hint(mlx_error(MLX_USAGE, "both --chat and --no-chat were given"), "give one of them");
  f->interactive = !given && mlx_prompt_is_possible();
  f->piped = !given && !f->interactive;
  if (f->interactive && (f->no_chat || f->json)) return no_prompt();
  if (f->interactive) f->chat = true;
  MLX_TRY(check_stops(f));
  if (mlx_cli_batch_is_file(f->prompt_file)) return NULL;  // read_batch checks the chat options
  if (chat_option(f) && (f->no_chat || !(f->chat || f->piped)))
    return mlx_status_hint(mlx_error(MLX_USAGE, "%s needs a chat", chat_option(f)),
                           f->no_chat ? "remove --no-chat" : "add --chat");
  return NULL;
}

static mlx_status_t read_prompt(const flags_t *f, prompt_t *out) {
  if (f->prompt) {
    out->text = f->prompt;
    out->length = strlen(f->prompt);
    return NULL;
  }
  bool from_stdin = f->piped || !strcmp(f->prompt_file, "-");
  MLX_TRY(from_stdin ? mlx_read_stream(STDIN_FILENO, "stdin", MAX_PROMPT, &out->owned, &out->length)
                     : mlx_read_input(f->prompt_file, MAX_PROMPT, &out->owned, &out->length));
  if (out->length && out->owned[out->length - 1] == '\n')
    --out->length;  // editors end a file with a newline; llama.cpp drops it too
  out->text = out->owned;
  return f->piped && !out->length ? no_prompt() : NULL;
}

static void put_message(mlx_text_t *json, const char *role, const char *text, size_t length) {
  mlx_text_printf(json, "%s{\"role\": \"%s\", \"content\": ", json->length > 1 ? ", " : "", role);
  mlx_text_json_string(json, text, length);
  mlx_text_puts(json, "}");
}

// Replaces the prompt by a conversation with that message, rendered by the chat template.
static mlx_status_t template_prompt(const flags_t *f, const mlx_chat_t *chat, prompt_t *inout) {
  mlx_text_t messages = {0};
  char *text = NULL;
  size_t length = 0;
  mlx_text_puts(&messages, "[");
  if (f->system) put_message(&messages, "system", f->system, strlen(f->system));
  put_message(&messages, "user", inout->text, inout->length);
  mlx_text_puts(&messages, "]");
  mlx_status_t status = mlx_text_finish(&messages);
  if (!status) status = mlx_chat_render(chat, messages.data, messages.length, &f->render, &text, &length);
  mlx_text_clear(&messages);
  mlx_free(inout->owned);
  *inout = (prompt_t){.text = text, .length = length, .owned = text};
  return status;
}

// Reads the chat template and the tools, before anything slow. A prompt from a pipe is a chat message if the
// model has a chat template, else plain text.
static mlx_status_t prepare_chat(flags_t *f, mlx_chat_t **out_chat) {
  const bool needs_template = f->chat || f->system || f->tools_file || f->batch.prompts.count;
  mlx_chat_options_initialize(&f->render);
  if (f->piped && !f->no_chat) f->chat = true;
  if (!f->chat && !mlx_cli_batch_has_messages(&f->batch)) return NULL;
  if (f->tools_file) MLX_TRY(mlx_read_input(f->tools_file, MAX_PROMPT, &f->tools, &f->render.tools_length));
  f->render.tools = f->tools;
  f->render.variables = f->variables;
  if (needs_template)
    return mlx_cli_open_chat(f->open.model, f->open.allow_unsigned, f->chat_template, out_chat);
  MLX_TRY(mlx_cli_find_chat(f->open.model, f->open.allow_unsigned, f->chat_template, out_chat));
  f->chat = *out_chat != NULL;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Output

static bool on_text(void *user, const char *text, size_t length) {
  return mlx_stream_write(user, text, length);
}

static bool print_text(const char *text, size_t length) {
  return fwrite(text, 1, length, stdout) == length && !fflush(stdout);
}

static void put_ids(mlx_text_t *json, const char *key, const int32_t *ids, size_t count) {
  mlx_text_printf(json, "  \"%s\": [", key);
  for (size_t i = 0; i < count; ++i) mlx_text_printf(json, "%s%d", i ? ", " : "", ids[i]);
  mlx_text_puts(json, "],\n");
}

static double rate(size_t count, double seconds) { return seconds > 0 ? (double)count / seconds : 0; }

// Tokens from decode steps: the first output token comes from prefill.
static size_t decoded(const mlx_generation_t *g) { return g->count ? g->count - 1 : 0; }

static double compile_seconds(const mlx_open_times_t *times) {
  return times->was_compiled ? times->compile_seconds : 0;
}

// Looking up a compiled model in the cache counts as loading.
static double load_seconds(const mlx_open_times_t *times) {
  return times->load_seconds + (times->was_compiled ? 0 : times->compile_seconds);
}

static void put_timings(mlx_text_t *json, const mlx_generation_t *g, size_t prompt_count,
                        const mlx_open_times_t *times) {
  const struct {
    const char *name;
    double seconds;
  } timings[] = {{"compile_seconds", compile_seconds(times)},
                 {"load_seconds", load_seconds(times)},
                 {"prompt_seconds", g->prompt_seconds},
                 {"decode_seconds", g->decode_seconds}};
  mlx_text_puts(json, "  \"timings\": {");
  for (size_t i = 0; i < sizeof timings / sizeof *timings; ++i) {
    mlx_text_printf(json, "\"%s\": ", timings[i].name);
    mlx_text_json_number(json, "%.6f", timings[i].seconds);
    mlx_text_puts(json, ", ");
  }
  mlx_text_puts(json, "\"prompt_tokens_per_second\": ");
  mlx_text_json_number(json, "%.3f", rate(prompt_count, g->prompt_seconds));
  mlx_text_puts(json, ", \"decode_tokens_per_second\": ");
  mlx_text_json_number(json, "%.3f", rate(decoded(g), g->decode_seconds));
  mlx_text_puts(json, "},\n");
}

static mlx_status_t print_json(const mlx_engine_t *engine, const flags_t *f, const mlx_engine_info_t *info,
                               const int32_t *prompt, size_t prompt_count, const mlx_generation_t *g,
                               const mlx_open_times_t *times) {
  mlx_text_t json = {0};
  mlx_status_t status = NULL;
  mlx_text_puts(&json, "{\n");
  put_ids(&json, "prompt_ids", prompt, prompt_count);
  put_ids(&json, "output_ids", g->ids, g->count);
  mlx_text_puts(&json, "  \"text\": ");
  mlx_text_json_string(&json, g->text, g->text_length);
  mlx_text_printf(&json, ",\n  \"seed\": %llu", (unsigned long long)f->sampling.options.seed);
  if (g->logprobs) status = mlx_cli_put_logprobs(engine, g, (size_t)f->sampling.logprobs, false, &json);
  mlx_text_printf(&json, ",\n  \"finish_reason\": \"%s\",\n", mlx_finish_reason_name(g->finish_reason));
  put_timings(&json, g, prompt_count, times);
  mlx_text_printf(&json, "  \"dtype\": \"%s\",\n  \"activations\": \"%s\",\n  \"kv\": \"%s\",\n", info->dtype,
                  info->activations, info->kv);
  mlx_text_printf(&json, "  \"device\": \"%s\",\n  \"threads\": %d\n}\n", info->device, info->threads);
  status = mlx_status_join(status, mlx_text_finish(&json));
  if (!status && !print_text(json.data, json.length)) status = mlx_stdout_error();
  mlx_text_clear(&json);
  return status;
}

static void print_summary(const mlx_generation_t *g, size_t prompt_count, const mlx_open_times_t *times) {
  mlx_terminal_note("\n%s: ", mlx_finish_reason_name(g->finish_reason));
  if (times->was_compiled) mlx_terminal_note("compile %.2f s; ", compile_seconds(times));
  mlx_terminal_note("load %.2f s; prompt %zu %s, %.1f tok/s; output %zu %s, %.1f tok/s\n",
                    load_seconds(times), prompt_count, mlx_plural(prompt_count, "token", "tokens"),
                    rate(prompt_count, g->prompt_seconds), g->count, mlx_plural(g->count, "token", "tokens"),
                    rate(decoded(g), g->decode_seconds));
}

static void fill_options(const flags_t *f, mlx_generate_options_t *out) {
  mlx_generate_options_initialize(out);
  out->max_tokens = f->count;
  out->ignore_eos = f->ignore_eos;
  out->stops = f->stops.items;
  out->stop_count = f->stops.count;
  out->on_prompt = mlx_cli_show_prompt;
  mlx_sampling_flags_apply(&f->sampling, out);
  if (f->open.verbose) mlx_terminal_note("seed: %llu\n", (unsigned long long)f->sampling.options.seed);
}

static mlx_status_t generate(mlx_engine_t *engine, const flags_t *f, const prompt_t *prompt,
                             const mlx_open_times_t *times) {
  const mlx_engine_info_t info = mlx_engine_info(engine);
  mlx_cli_print_device(&info, f->open.verbose);
  int32_t *ids = NULL;
  size_t count;
  mlx_session_t *session = NULL;
  mlx_generation_t generation = {0};
  mlx_generate_options_t options;
  fill_options(f, &options);
  mlx_stream_t stream = {0};
  if (!f->json) {
    mlx_stream_begin(&stream, f->chat && mlx_stream_thinks_after(prompt->text, prompt->length));
    options.on_text = on_text;
    options.user = &stream;
  }
  mlx_status_t status = f->chat ? mlx_engine_tokenize_chat(engine, prompt->text, prompt->length, &ids, &count)
                                : mlx_engine_tokenize(engine, prompt->text, prompt->length, &ids, &count);
  if (!status) status = mlx_session_create(engine, &session);
  if (!status) status = mlx_session_generate(session, ids, count, &options, &generation);
  if (!f->json && !mlx_stream_end(&stream) && !status) status = mlx_stdout_error();
  if (!status && f->json) {
    status = print_json(engine, f, &info, ids, count, &generation, times);
  } else if (!status && generation.finish_reason == MLX_FINISH_CANCELLED) {
    status = mlx_stdout_error();
  } else if (!status) {
    print_summary(&generation, count, times);
  }
  mlx_generation_clear(&generation);
  mlx_session_free(session);
  mlx_engine_free_ids(ids);
  return status;
}

static mlx_status_t chat_at_terminal(mlx_engine_t *engine, const flags_t *f, const mlx_chat_t *chat) {
  const mlx_engine_info_t info = mlx_engine_info(engine);
  mlx_generate_options_t options;
  fill_options(f, &options);
  const mlx_chat_setup_t setup = {.model = f->open.model,
                                  .engine = engine,
                                  .chat = chat,
                                  .render = f->render,
                                  .generate = &options,
                                  .system = f->system,
                                  .verbose = f->open.verbose};
  mlx_cli_print_device(&info, f->open.verbose);
  return mlx_cli_chat(&setup);
}

// Prompts are rendered before the model is opened, so that a template's error comes first.
static mlx_status_t generate_batch(flags_t *f) {
  mlx_chat_t *chat = NULL;
  mlx_engine_t *engine = NULL;
  mlx_open_times_t times;
  mlx_generate_options_t options;
  mlx_status_t status = prepare_chat(f, &chat);
  if (!status && chat) status = mlx_cli_batch_render(&f->batch, chat, &f->render, f->chat, f->system);
  if (!status) status = mlx_cli_open(&f->open, &engine, &times);
  if (!status) {
    const mlx_engine_info_t info = mlx_engine_info(engine);
    mlx_cli_print_device(&info, f->open.verbose);
    fill_options(f, &options);
    options.on_prompt = NULL;  // many prompts are read at once
    status = mlx_cli_batch_generate(&f->batch, engine, &options, f->json);
  }
  mlx_engine_close(engine);
  mlx_chat_free(chat);
  return status;
}

static mlx_status_t open_and_generate(flags_t *f) {
  prompt_t prompt = {0};
  mlx_chat_t *chat = NULL;
  mlx_engine_t *engine = NULL;
  mlx_open_times_t times;
  mlx_status_t status = f->interactive ? NULL : read_prompt(f, &prompt);
  if (!status) status = prepare_chat(f, &chat);
  if (!status && chat && !f->interactive) status = template_prompt(f, chat, &prompt);
  f->open.prompt = prompt.text;
  f->open.prompt_length = prompt.length;
  f->open.prompt_is_chat = f->chat;
  if (!status) status = mlx_cli_open(&f->open, &engine, &times);
  if (!status) {
    status = f->interactive ? chat_at_terminal(engine, f, chat) : generate(engine, f, &prompt, &times);
  }
  mlx_engine_close(engine);
  mlx_chat_free(chat);
  mlx_free(prompt.owned);
  return status;
}

static void initialize(void *options) {
  flags_t *f = options;
  f->open = (mlx_open_options_t){.kernels = "auto", .device = "auto", .context = -1};
  f->count = -1;
  mlx_sampling_flags_initialize(&f->sampling);
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  size_t words;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, NULL, 0, &words, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, f.open.verbose));
  if (!f.open.model)
    return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel run -m MODEL -p TEXT");
  if (f.sampling.logprobs >= 0 && !f.json)
    return mlx_status_hint(mlx_error(MLX_USAGE, "--logprobs needs --json"), "add --json");
  MLX_TRY(choose_input(&f));
  mlx_status_t status = mlx_sampling_flags_read(&f.sampling);
  if (!status) status = read_batch(&f);
  if (!status) status = f.batch.prompts.count ? generate_batch(&f) : open_and_generate(&f);
  mlx_cli_batch_clear(&f.batch);
  mlx_free(f.tools);
  mlx_sampling_flags_clear(&f.sampling);
  return status;
}

// clang-format off
static const mlx_flag_t flags[] = {
    MLX_MODEL_FLAG(flags_t, open.model),
    MLX_TEXT_FLAG(flags_t, prompt, "-p, --prompt", "TEXT", "prompt; special tokens in it are recognized"),
    MLX_FILE_FLAG(flags_t, prompt_file, "read the prompt from a file or stdin (-); FILE.jsonl: many"),
    MLX_SWITCH_FLAG(flags_t, chat, "--chat", "format the prompt as a chat message, with the chat template"),
    MLX_INT_FLAG(flags_t, count, "-n, --n-predict", "N",
                 "generate at most N tokens (default: -1: until the model stops)", -1, 1 << 24),
    MLX_CONTEXT_FLAG(flags_t, open.context,
                     "context length in tokens (default: up to 8192; 0: the model's)", 0, 1 << 30),
    MLX_OPEN_FLAGS(flags_t, open),
    MLX_SAMPLING_FLAGS(flags_t, sampling),
    MLX_COLLAPSED_GROUP("chat, batch and device"),
    MLX_LIST_FLAG(flags_t, stops, "--stop", "TEXT", "stop before this text; may be repeated"),
    MLX_INT_FLAG(flags_t, parallel, "-np, --parallel", "N",
                 "-f FILE.jsonl: sequences at the same time (default: one per prompt, up to 64)",
                 1, MAX_PARALLEL),
    MLX_TEXT_FLAG(flags_t, system, "-sys, --system-prompt", "TEXT", "system message of a chat"),
    MLX_SWITCH_FLAG(flags_t, no_chat, "--no-chat", "do not format a prompt from a pipe as a chat message"),
    MLX_CHAT_TEMPLATE_FLAG(flags_t, chat_template),
    MLX_TEXT_FLAG(flags_t, variables, "--chat-template-kwargs", "JSON",
                  "variables for the chat template: {\"enable_thinking\": false}"),
    MLX_TOOLS_FLAG(flags_t, tools_file),
    MLX_RARE_OPEN_FLAGS(flags_t, open),
    MLX_SWITCH_FLAG(flags_t, ignore_eos, "--ignore-eos", "continue after the end-of-text token"),
    MLX_GROUP_END,
    MLX_JSON_FLAG(flags_t, json),
    MLX_QUIET_FLAG(flags_t, quiet),
    MLX_VERBOSE_FLAG(flags_t, open.verbose),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_run = {
    .name = "run",
    .summary = "generate text from a prompt, or chat",
    .usage =
        "usage: mlxcel run -m MODEL [-p TEXT] [options]\n\n"
        "At a terminal without a prompt, opens a chat. Compiles the model on first use and caches it.\n\n"
        "examples:\n"
        "  mlxcel run -m model.gguf -p \"The capital of France is\" -n 16 --temp 0\n"
        "  mlxcel run -m model.gguf -f prompts.jsonl -n 100 --json",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .initialize = initialize,
    .run = run,
};
