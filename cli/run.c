// mlxcel run: generates text from a prompt, or opens a chat at the terminal. stdout carries only the
// generated text or JSON; everything else goes to stderr.
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/chat.h"
#include "cli/chat_input.h"
#include "cli/config_file.h"
#include "cli/interrupt.h"
#include "cli/open.h"
#include "cli/parse.h"
#include "cli/progress.h"
#include "cli/sampling.h"
#include "cli/secret_key.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "line/prompt.h"
#include "line/stream.h"
#include "open/locate.h"
#include "open/texts.h"
#include "runtime/mlxcel.h"

#define MAX_PROMPT (64u << 20)  // bytes
#define STDIN_WAIT 200          // milliseconds

typedef struct flags {
  mlx_open_flags_t open;
  const char *prompt, *prompt_file, *system, *tools_file, *chat_template, *variables, *secret_key;
  mlx_flag_list_t stops;
  int64_t count;
  bool raw, no_special, escape, no_escape, json, ignore_eos, quiet, publish;
  mlx_sampling_flags_t sampling;
  // Not flags: set before the model is opened.
  char *path;  // owned: of the model
  mlx_chat_options_t render;
  char *tools;       // owned: contents of tools_file
  bool chat;         // the prompt is a user message: the model has a chat template and --raw is not given
  bool interactive;  // no prompt was given and stdin is a terminal
  bool piped;        // no prompt was given and stdin is not a terminal
  bool with_stdin;   // the prompt is a word: the text of a pipe comes before it
} flags_t;

typedef struct prompt {
  const char *text;
  size_t length;
  char *owned;
} prompt_t;

// ----------------------------------------------------------------------------------------------------------
// Input

static mlx_status_t no_prompt(const flags_t *f) {
  return mlx_status_hint(mlx_error(MLX_USAGE, "no prompt was given"),
                         f->raw ? "give the text to complete: mlxcel run MODEL --raw \"TEXT\""
                         : f->json
                             ? "give it after the model: mlxcel run MODEL \"TEXT\" --json"
                             : "give it after the model, with -f FILE or through a pipe; to chat, run it "
                               "at a terminal without a prompt");
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

// A file of requests is not a prompt.
static mlx_status_t check_prompt_file(const flags_t *f) {
  if (!f->prompt_file || !mlx_ends_with_nocase(f->prompt_file, ".jsonl")) return NULL;
  return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' is a file of requests, not a prompt", f->prompt_file),
                         "mlxcel batch '%s' -o OUT.jsonl -m '%s'", f->prompt_file, f->open.model);
}

// The words after the model, joined with spaces as Ollama does. Without words, *inout_prompt is unchanged.
static mlx_status_t join_words(const char *const *words, size_t count, bool escapes,
                               const char **inout_prompt) {
  mlx_text_t text = {0};
  char *joined;
  size_t length;
  if (!count) return NULL;
  for (size_t i = 0; i < count; ++i) mlx_text_printf(&text, "%s%s", i ? " " : "", words[i]);
  MLX_TRY(mlx_text_take(&text, &joined, &length));
  *inout_prompt = joined;
  MLX_TRY(mlx_config_keep(joined));
  return escapes ? mlx_unescape(inout_prompt) : NULL;
}

// The text of a pipe or file on stdin comes before a prompt that is a word. A pipe that stays open without
// data, as of ssh or cron, is not read: it would block. The word "-" before the prompt waits for it.
static bool reads_stdin_before_words(void) {
  struct stat info;
  if (fstat(STDIN_FILENO, &info)) return false;
  if (S_ISREG(info.st_mode) || mlx_prompt_input_is_ready(STDIN_WAIT)) return true;
  mlx_terminal_note("stdin has no data: it is not read; to wait for it, give - before the prompt\n");
  return false;
}

// Without a prompt: a chat if stdin is a terminal, else the prompt is read from stdin.
static mlx_status_t choose_input(flags_t *f, const char *const *words, size_t word_count) {
  if (word_count && (f->prompt || f->prompt_file))
    return mlx_status_hint(mlx_error(MLX_USAGE, "the prompt is given twice: with %s, and as the word '%s'",
                                     f->prompt ? "-p" : "-f", words[0]),
                           "give one of them");
  if (f->prompt && f->prompt_file)
    return mlx_status_hint(mlx_error(MLX_USAGE, "both -p and -f were given"), "give one of them");
  const bool dash = word_count ? !strcmp(words[0], "-") : f->prompt && !strcmp(f->prompt, "-");
  if (dash && word_count) ++words, --word_count;
  MLX_TRY(join_words(words, word_count, f->escape, &f->prompt));
  if (dash && !word_count) {  // mlx-lm reads stdin for this prompt
    f->prompt = NULL;
    f->prompt_file = "-";
  }
  const bool given = f->prompt || f->prompt_file, terminal = mlx_prompt_is_possible();
  f->interactive = !given && terminal;
  f->piped = !given && !terminal;
  f->with_stdin = word_count && (dash || (!terminal && reads_stdin_before_words()));
  if (f->interactive && (f->raw || f->json)) return no_prompt(f);
  if (f->raw && chat_option(f))
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "--raw completes the text without the chat template, so %s has no effect",
                  chat_option(f)),
        "remove --raw or %s", chat_option(f));
  return check_stops(f);
}

// Reads |file|, or stdin if it is NULL. Editors end a file with a newline: it is dropped, as in llama.cpp.
static mlx_status_t read_text(const flags_t *f, const char *file, prompt_t *out) {
  MLX_TRY(file ? mlx_read_input(file, MAX_PROMPT, &out->owned, &out->length)
               : mlx_read_stream(STDIN_FILENO, "stdin", MAX_PROMPT, &out->owned, &out->length));
  if (out->length && out->owned[out->length - 1] == '\n') out->owned[--out->length] = 0;
  if (f->escape) out->length = mlx_unescape_in_place(out->owned, out->length);
  out->text = out->owned;
  return NULL;
}

// The text of the pipe, if it has any, a space, and the prompt: as Ollama joins them.
static mlx_status_t add_prompt(const char *prompt, prompt_t *inout) {
  mlx_text_t text = {0};
  mlx_text_append(&text, inout->text, inout->length);
  mlx_text_printf(&text, "%s%s", inout->length ? " " : "", prompt);
  mlx_free(inout->owned);
  *inout = (prompt_t){0};
  mlx_status_t status = mlx_text_take(&text, &inout->owned, &inout->length);
  inout->text = inout->owned;
  return status;
}

static mlx_status_t read_prompt(const flags_t *f, prompt_t *out) {
  if (f->prompt && !f->with_stdin) {
    out->text = f->prompt;
    out->length = strlen(f->prompt);
    return NULL;
  }
  if (f->with_stdin || f->piped || !strcmp(f->prompt_file, "-")) {
    MLX_TRY(read_text(f, NULL, out));
    if (f->with_stdin) return add_prompt(f->prompt, out);
    return f->piped && !out->length ? no_prompt(f) : NULL;
  }
  return read_text(f, f->prompt_file, out);
}

static void put_message(mlx_json_writer_t *json, const char *role, const char *text, size_t length) {
  mlx_json_begin_object(json, NULL, MLX_JSON_ONE_LINE);
  mlx_json_put_text(json, "role", role);
  mlx_json_put_bytes(json, "content", text, length);
  mlx_json_end(json);
}

// Replaces the prompt by a conversation with that message, rendered by the chat template.
static mlx_status_t template_prompt(const flags_t *f, const mlx_chat_t *chat, prompt_t *inout) {
  mlx_text_t messages = {0};
  mlx_json_writer_t json = {.out = &messages};
  char *text = NULL;
  size_t length = 0;
  mlx_json_begin_list(&json, NULL, MLX_JSON_ONE_LINE);
  if (f->system) put_message(&json, "system", f->system, strlen(f->system));
  put_message(&json, "user", inout->text, inout->length);
  mlx_json_end(&json);
  mlx_status_t status = mlx_text_finish(&messages);
  if (!status) status = mlx_chat_render(chat, messages.data, messages.length, &f->render, &text, &length);
  mlx_text_clear(&messages);
  mlx_free(inout->owned);
  *inout = (prompt_t){.text = text, .length = length, .owned = text};
  return mlx_status_hint(status, "--raw completes the prompt without the chat template");
}

// A chat with a model that has no template.
static mlx_status_t base_model_error(const char *model) {
  return mlx_status_hint(
      mlx_error(MLX_NOT_FOUND, "%s is a base model: it has no chat template; chat needs an instruct model",
                model),
      "to complete a text: mlxcel run %s \"TEXT\"; to chat, choose a model named -Instruct, -it or -chat, or "
      "give a template with --chat-template NAME",
      model);
}

// Locates the model and reads its chat template and the tools, before anything slow. Without --raw, a prompt
// is a chat message if the model has a chat template, else text to complete.
static mlx_status_t prepare_chat(flags_t *f, mlx_chat_t **out_chat) {
  const bool needs_template = f->interactive || chat_option(f);
  mlx_chat_options_initialize(&f->render);
  MLX_TRY(mlx_locate(f->open.model, f->open.engine.report, &f->path));
  if (f->raw) return NULL;
  if (f->tools_file) MLX_TRY(mlx_read_input(f->tools_file, MAX_PROMPT, &f->tools, &f->render.tools_length));
  f->render.tools = f->tools;
  f->render.variables = f->variables;
  mlx_status_t status = mlx_find_chat(f->path, &f->open.engine, f->chat_template, out_chat);
  f->chat = *out_chat != NULL;
  if (status || f->chat) return status;
  if (f->interactive) return base_model_error(f->open.model);
  if (needs_template) return mlx_chat_missing_error(f->open.model);
  mlx_terminal_note(
      "base model: completing the text; chat needs an instruct model, or --chat-template NAME\n");
  return NULL;
}

static mlx_status_t check_chat_input(const flags_t *f) {
  if (f->tools) MLX_TRY(mlx_cli_check_tools(f->tools_file, f->tools, f->render.tools_length));
  return f->variables ? mlx_cli_check_variables("--chat-template-kwargs", f->variables) : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Output

typedef struct output {
  mlx_stream_t stream;
  bool json;  // print nothing before the end
  bool failed;
} output_t;

// From the first text on, Ctrl-C ends the generation. Before it there is nothing to print, and Ctrl-C ends
// the process.
static bool on_text(void *user, const char *text, size_t length) {
  output_t *output = user;
  mlx_interrupt_watch();
  if (!output->json) output->failed = !mlx_stream_write(&output->stream, text, length);
  return !output->failed && !mlx_interrupt_requested();
}

static bool print_text(const char *text, size_t length) {
  return fwrite(text, 1, length, stdout) == length && !fflush(stdout);
}

// Text ends with a newline, so that a terminal's prompt and a file's next line do not follow it directly.
static bool end_line(const mlx_generation_t *g) {
  const bool has_end = !g->text_length || g->text[g->text_length - 1] == '\n';
  return has_end || print_text("\n", 1);
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

static void put_timings(mlx_json_writer_t *json, const mlx_generation_t *g, size_t prompt_count,
                        const mlx_open_times_t *times) {
  mlx_json_begin_object(json, "timings", MLX_JSON_ONE_LINE);
  mlx_json_put_number(json, "compile_seconds", "%.6f", compile_seconds(times));
  mlx_json_put_number(json, "load_seconds", "%.6f", load_seconds(times));
  mlx_json_put_number(json, "prompt_seconds", "%.6f", g->prompt_seconds);
  mlx_json_put_number(json, "decode_seconds", "%.6f", g->decode_seconds);
  mlx_json_put_number(json, "prompt_tokens_per_second", "%.3f", rate(prompt_count, g->prompt_seconds));
  mlx_json_put_number(json, "decode_tokens_per_second", "%.3f", rate(decoded(g), g->decode_seconds));
  mlx_json_end(json);
}

static mlx_status_t print_json(const mlx_engine_t *engine, const flags_t *f, const mlx_engine_info_t *info,
                               const int32_t *prompt, size_t prompt_count, const mlx_generation_t *g,
                               const mlx_open_times_t *times) {
  mlx_text_t text = {0};
  mlx_json_writer_t json = {.out = &text};
  mlx_status_t status = NULL;
  mlx_json_begin_object(&json, NULL, MLX_JSON_LINES);
  mlx_json_put_ints(&json, "prompt_ids", prompt, prompt_count);
  mlx_json_put_ints(&json, "output_ids", g->ids, g->count);
  mlx_json_put_bytes(&json, "text", g->text, g->text_length);
  mlx_json_put_uint(&json, "seed", f->sampling.options.seed);
  if (g->logprobs)
    status = mlx_cli_put_logprobs(engine, g, (size_t)f->sampling.logprobs, MLX_JSON_LINES, &json);
  mlx_json_put_text(&json, "finish_reason", mlx_finish_reason_name(g->finish_reason));
  put_timings(&json, g, prompt_count, times);
  mlx_json_put_text(&json, "dtype", info->dtype);
  mlx_json_put_text(&json, "activations", info->activations);
  mlx_json_put_text(&json, "kv", info->kv);
  mlx_json_put_text(&json, "device", info->device);
  mlx_json_put_int(&json, "threads", info->threads);
  mlx_json_end(&json);
  mlx_text_puts(&text, "\n");
  status = mlx_status_join(status, mlx_text_finish(&text));
  if (!status && !print_text(text.data, text.length)) status = mlx_stdout_error();
  mlx_text_clear(&text);
  return status;
}

static void print_summary(const mlx_generation_t *g, size_t prompt_count, const mlx_open_times_t *times) {
  mlx_terminal_note("%s: ", mlx_finish_reason_name(g->finish_reason));
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
  if (f->open.engine.verbose) mlx_terminal_note("seed: %llu\n", (unsigned long long)f->sampling.options.seed);
}

static mlx_status_t generate(mlx_engine_t *engine, const flags_t *f, const prompt_t *prompt,
                             const mlx_open_times_t *times) {
  const mlx_engine_info_t info = mlx_engine_info(engine);
  mlx_cli_print_device(&info, f->open.engine.verbose);
  int32_t *rendered = NULL;
  size_t count;
  const int32_t *ids = mlx_engine_prompt(engine, &count);
  mlx_session_t *session = NULL;
  mlx_generation_t generation = {0};
  mlx_generate_options_t options;
  fill_options(f, &options);
  output_t output = {.json = f->json};
  options.on_text = on_text;
  options.user = &output;
  if (!f->json)
    mlx_stream_begin(&output.stream, f->chat && mlx_stream_thinks_after(prompt->text, prompt->length));
  mlx_status_t status = NULL;
  if (f->chat && f->no_special) {  // rendered after the engine was opened
    status = mlx_engine_tokenize_chat(engine, prompt->text, prompt->length, &rendered, &count);
    ids = rendered;
  }
  if (!status) status = mlx_session_create(engine, &session);
  if (!status) status = mlx_session_generate(session, ids, count, &options, &generation);
  if (!f->json && !mlx_stream_end(&output.stream)) output.failed = true;
  if (!f->json && !end_line(&generation)) output.failed = true;
  if (!status && output.failed) status = mlx_stdout_error();
  if (!status && f->json) {
    status = print_json(engine, f, &info, ids, count, &generation, times);
  } else if (!status) {
    print_summary(&generation, count, times);
  }
  if (!status && generation.finish_reason == MLX_FINISH_CANCELLED)
    status = mlx_error(MLX_CANCELLED, "interrupted");
  mlx_generation_clear(&generation);
  mlx_session_free(session);
  mlx_engine_free_ids(rendered);
  return status;
}

static mlx_status_t chat_at_terminal(mlx_engine_t *engine, const flags_t *f, const mlx_chat_t *chat) {
  const mlx_engine_info_t info = mlx_engine_info(engine);
  mlx_generate_options_t options;
  fill_options(f, &options);
  const mlx_chat_setup_t setup = {.model = f->open.model,
                                  .path = f->path,
                                  .engine = engine,
                                  .chat = chat,
                                  .render = f->render,
                                  .generate = &options,
                                  .system = f->system,
                                  .verbose = f->open.engine.verbose};
  mlx_cli_print_device(&info, f->open.engine.verbose);
  return mlx_cli_chat(&setup);
}

static mlx_status_t open_and_generate(flags_t *f) {
  prompt_t prompt = {0};
  mlx_chat_t *chat = NULL;
  mlx_engine_t *engine = NULL;
  mlx_open_times_t times;
  mlx_secret_key_t key = {0};
  mlx_status_t status = f->interactive ? NULL : read_prompt(f, &prompt);
  if (!status) status = prepare_chat(f, &chat);
  if (!status) status = check_chat_input(f);
  if (!status && chat && !f->interactive && !f->no_special) status = template_prompt(f, chat, &prompt);
  f->open.engine.prompt = prompt.text;
  f->open.engine.prompt_length = prompt.length;
  f->open.engine.prompt_is_chat = f->chat;
  f->open.engine.prompt_is_plain = f->no_special;
  if (!status && f->publish) status = mlx_cli_publish_key(f->secret_key, &key);
  if (!status) status = mlx_open_located(f->path, &f->open.engine, f->publish ? &key : NULL, &engine, &times);
  mlx_secret_key_clear(&key);
  f->render.plain = f->no_special ? engine : NULL;  // the engine knows the special tokens
  if (!status && chat && !f->interactive && f->no_special) status = template_prompt(f, chat, &prompt);
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
  mlx_open_flags_initialize(&f->open);
  f->count = -1;
  mlx_sampling_flags_initialize(&f->sampling);
}

static mlx_status_t run_flags(void *options, const char **words, size_t word_count) {
  flags_t *f = options;
  MLX_TRY(mlx_terminal_set_quiet(f->quiet, f->open.engine.verbose));
  if (!f->open.model)
    return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel run MODEL \"PROMPT\"");
  if (f->sampling.logprobs >= 0 && !f->json)
    return mlx_status_hint(mlx_error(MLX_USAGE, "--logprobs needs --json"), "add --json");
  MLX_TRY(mlx_open_flags_read(&f->open));
  MLX_TRY(choose_input(f, words, word_count));
  MLX_TRY(check_prompt_file(f));
  mlx_status_t status = mlx_sampling_flags_read(&f->sampling);
  if (!status) status = open_and_generate(f);
  mlx_free(f->path);
  mlx_free(f->tools);
  mlx_sampling_flags_clear(&f->sampling);
  return status;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  return mlx_command_line_run(line, &f, run_flags);
}

// clang-format off
static const mlx_flag_t flags[] = {
    MLX_MODEL_FLAG(flags_t, open.model),
    MLX_ESCAPED_TEXT_FLAG(flags_t, prompt, "-p, --prompt", "TEXT", "the prompt, with escapes such as \\n; -: read stdin"),
    MLX_FILE_FLAG(flags_t, prompt_file, "read the prompt from a file or stdin (-)"),
    MLX_SWITCH_FLAG(flags_t, raw, "--raw", "complete the prompt as text, without the chat template"),
    MLX_INT_FLAG(flags_t, count, "-n, --n-predict", "N",
                 "generate at most N tokens (default: -1: until the model stops)", -1, 1 << 24),
    MLX_CONTEXT_FLAG(flags_t, open.context,
                     "context length in tokens (default: up to 8192; 0: the model's)", 0, 1 << 30),
    MLX_OPEN_FLAGS(flags_t, open),
    MLX_SAMPLING_FLAGS(flags_t, sampling),
    MLX_COLLAPSED_GROUP("chat and device"),
    MLX_ESCAPED_LIST_FLAG(flags_t, stops, "--stop", "TEXT", "stop before this text, with escapes such as \\n; may be repeated"),
    MLX_ESCAPABLE_TEXT_FLAG(flags_t, system, "-sys, --system-prompt", "TEXT", "system message of a chat"),
    MLX_SWITCH_FLAG(flags_t, escape, "-e, --escape",
                    "replace escapes such as \\n also in PROMPT, stdin, -f and -sys (default: kept)"),
    MLX_SWITCH_FLAG(flags_t, no_escape, "--no-escape", "keep backslashes in -p and --stop as they are"),
    MLX_NO_SPECIAL_FLAG(flags_t, no_special),
    MLX_CHAT_TEMPLATE_FLAG(flags_t, chat_template),
    MLX_TEXT_FLAG(flags_t, variables, "--chat-template-kwargs", "JSON",
                  "variables for the chat template: {\"enable_thinking\": false}"),
    MLX_TOOLS_FLAG(flags_t, tools_file),
    MLX_GPU_FLAG(flags_t, open),
    MLX_RANKS_FLAG(flags_t, open),
    MLX_RARE_OPEN_FLAGS(flags_t, open),
    MLX_PUBLISH_FLAG(flags_t, publish),
    MLX_SECRET_KEY_FLAG(flags_t, secret_key, "--secret-key"),
    MLX_SWITCH_FLAG(flags_t, ignore_eos, "--ignore-eos", "continue after the end-of-text token"),
    MLX_GROUP_END,
    MLX_JSON_FLAG(flags_t, json),
    MLX_QUIET_FLAG(flags_t, quiet),
    MLX_VERBOSE_FLAG(flags_t, open.engine.verbose),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_run = {
    .name = "run",
    .summary = "generate text from a prompt, or chat",
    .usage =
        "usage: mlxcel run MODEL [PROMPT] [options]\n\n"
        "Answers the prompt, or chats at a terminal without one. Compiles the model on first use.\n\n"
        "examples:\n"
        "  mlxcel run model.gguf \"Why is the sky blue?\"\n"
        "  mlxcel run model.gguf --raw -p \"The capital of France is\" -n 16 --temp 0",
    .model_word = true,
    .flags = flags,
    .options_size = sizeof(flags_t),
    .initialize = initialize,
    .run = run,
};
