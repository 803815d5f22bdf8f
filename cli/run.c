// mlxcel run: text from a prompt, or a chat at the terminal. stdout carries what the model wrote and nothing
// else.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/chat.h"
#include "cli/cli.h"
#include "cli/sampling.h"
#include "line/prompt.h"
#include "line/stream.h"
#include "runtime/mlxcel.h"

#define MAX_PROMPT (64u << 20)

typedef struct flags {
  mlx_open_options_t open;
  const char *prompt, *prompt_file, *system, *tools_file, *chat_template, *variables;
  int64_t count;
  bool chat, no_chat, json, ignore_eos;
  mlx_sampling_flags_t sampling;
  mlx_chat_options_t render;  // of a chat
  char *tools;                // owned: what the file holds
  bool interactive, piped;    // where there is no prompt: a person sits there, or something writes to us
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
                         "give it with -p TEXT, with -f FILE or through a pipe; at a terminal, "
                         "without any of them, a chat opens");
}

// Without -p and -f, a terminal on stdin means a chat, and anything else brings the prompt.
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
  const char *of_chat = f->system          ? "-sys"
                        : f->tools_file    ? "--tools"
                        : f->chat_template ? "--chat-template"
                        : f->variables     ? "--chat-template-kwargs"
                                           : NULL;
  if (of_chat && (f->no_chat || !(f->chat || f->piped)))
    return mlx_status_hint(mlx_error(MLX_USAGE, "%s belongs to a chat", of_chat),
                           f->no_chat ? "leave out --no-chat" : "add --chat");
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
                     : mlx_read_file(f->prompt_file, MAX_PROMPT, &out->owned, &out->length));
  if (out->length && out->owned[out->length - 1] == '\n')
    --out->length;  // the one an editor put there, as llama.cpp does
  out->text = out->owned;
  return f->piped && !out->length ? no_prompt() : NULL;
}

static void put_message(mlx_text_t *json, const char *role, const char *text, size_t length) {
  mlx_text_printf(json, "%s{\"role\": \"%s\", \"content\": ", json->length > 1 ? ", " : "", role);
  mlx_text_json_string(json, text, length);
  mlx_text_puts(json, "}");
}

// Makes the prompt a turn of a conversation, in the words of the model's chat template.
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

// What a chat needs before anything slow: the template and the tools. A prompt from a pipe is a turn of a
// chat where the model has a template, and plain text where it has none.
static mlx_status_t prepare_chat(flags_t *f, mlx_chat_t **out_chat) {
  const bool must = f->chat || f->system || f->tools_file;
  mlx_chat_options_initialize(&f->render);
  if (f->piped && !f->no_chat) f->chat = true;
  if (!f->chat) return NULL;
  if (f->tools_file) MLX_TRY(mlx_read_file(f->tools_file, MAX_PROMPT, &f->tools, &f->render.tools_length));
  f->render.tools = f->tools;
  f->render.variables = f->variables;
  if (must) return mlx_cli_open_chat(f->open.model, f->chat_template, out_chat);
  MLX_TRY(mlx_cli_find_chat(f->open.model, f->chat_template, out_chat));
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

// The first token comes with the prompt, so that decoding made one less than there are.
static size_t decoded(const mlx_generation_t *g) { return g->count ? g->count - 1 : 0; }

static mlx_status_t print_json(const mlx_engine_t *engine, const flags_t *f, const mlx_engine_info_t *info,
                               const int32_t *prompt, size_t prompt_count, const mlx_generation_t *g,
                               double load_seconds) {
  mlx_text_t json = {0};
  mlx_status_t status = NULL;
  mlx_text_puts(&json, "{\n");
  put_ids(&json, "prompt_ids", prompt, prompt_count);
  put_ids(&json, "output_ids", g->ids, g->count);
  mlx_text_puts(&json, "  \"text\": ");
  mlx_text_json_string(&json, g->text, g->text_length);
  mlx_text_printf(&json, ",\n  \"seed\": %llu", (unsigned long long)f->sampling.options.seed);
  if (g->logprobs) status = mlx_cli_put_logprobs(engine, g, (size_t)f->sampling.logprobs, &json);
  mlx_text_printf(
      &json,
      ",\n  \"finish_reason\": \"%s\",\n"
      "  \"timings\": {\"load_seconds\": %.6f, \"prompt_seconds\": %.6f, \"decode_seconds\": %.6f, "
      "\"prompt_tokens_per_second\": %.3f, \"decode_tokens_per_second\": %.3f},\n"
      "  \"dtype\": \"%s\",\n  \"device\": \"%s\",\n  \"threads\": %d\n}\n",
      mlx_finish_reason_name(g->finish_reason), load_seconds, g->prompt_seconds, g->decode_seconds,
      rate(prompt_count, g->prompt_seconds), rate(decoded(g), g->decode_seconds), info->dtype, info->device,
      info->threads);
  status = mlx_status_join(status, mlx_text_finish(&json));
  if (!status && !print_text(json.data, json.length)) status = mlx_stdout_error();
  mlx_text_clear(&json);
  return status;
}

static void print_summary(const mlx_generation_t *g, size_t prompt_count, double load_seconds) {
  fprintf(stderr, "\n%s: load %.2f s; prompt %zu tokens, %.1f tok/s; output %zu tokens, %.1f tok/s\n",
          mlx_finish_reason_name(g->finish_reason), load_seconds, prompt_count,
          rate(prompt_count, g->prompt_seconds), g->count, rate(decoded(g), g->decode_seconds));
}

static void fill_options(const flags_t *f, mlx_generate_options_t *out) {
  mlx_generate_options_initialize(out);
  out->max_tokens = f->count;
  out->ignore_eos = f->ignore_eos;
  mlx_sampling_flags_apply(&f->sampling, f->open.verbose, out);
}

static mlx_status_t generate(mlx_engine_t *engine, const flags_t *f, const prompt_t *prompt,
                             double load_seconds) {
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
    status = print_json(engine, f, &info, ids, count, &generation, load_seconds);
  } else if (!status && generation.finish_reason == MLX_FINISH_CANCELLED) {
    status = mlx_stdout_error();
  } else if (!status) {
    print_summary(&generation, count, load_seconds);
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

static mlx_status_t run(flags_t *f) {
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
    status = f->interactive ? chat_at_terminal(engine, f, chat)
                            : generate(engine, f, &prompt, times.compile_seconds + times.load_seconds);
  }
  mlx_engine_close(engine);
  mlx_chat_free(chat);
  mlx_free(prompt.owned);
  return status;
}

mlx_status_t mlx_cli_run(int argc, char **argv) {
  flags_t f = {.open = {.kernels = "auto", .device = "auto", .context = -1}, .count = -1};
  mlx_sampling_flags_initialize(&f.sampling);
  const mlx_flag_t table[] = {
      {"-m, --model", MLX_FLAG_TEXT, "MODEL",
       "compiled, GGUF, Hugging Face directory, hf:ORG/NAME, oci://...", &f.open.model, 0, 0},
      {"-p, --prompt", MLX_FLAG_TEXT, "TEXT", "what the model goes on from; special tokens in it count",
       &f.prompt, 0, 0},
      {"-f, --file", MLX_FLAG_TEXT, "FILE", "read the prompt from a file, or from stdin (-)", &f.prompt_file,
       0, 0},
      {"--chat", MLX_FLAG_SWITCH, NULL, "make the prompt a turn of a chat, by the model's own template",
       &f.chat, 0, 0},
      {"-sys, --system-prompt", MLX_FLAG_TEXT, "TEXT", "in a chat: what the system says first", &f.system, 0,
       0},
      {"--chat-template", MLX_FLAG_TEXT, "NAME", "in a chat: chatml, llama3 ... or a Jinja file",
       &f.chat_template, 0, 0},
      {"-n, --n-predict", MLX_FLAG_INT, "N", "write at most N tokens (default: -1, until the model stops)",
       &f.count, -1, 1 << 24},
      {"-c, --ctx, --ctx-size", MLX_FLAG_INT, "N",
       "context (default: the model's, up to 2048; 0: the model's)", &f.open.context, 0, 1 << 30},
      MLX_OPENING_FLAGS(f.open),
      MLX_SAMPLING_FLAGS(f.sampling),
      MLX_GROUP_SHORT("more about chats and machines"),
      {"--no-chat", MLX_FLAG_SWITCH, NULL,
       "take a prompt that comes through a pipe as it is, as -p and -f do", &f.no_chat, 0, 0},
      {"--chat-template-kwargs", MLX_FLAG_TEXT, "JSON",
       "in a chat: more for the template to know: {\"enable_thinking\": false}", &f.variables, 0, 0},
      {"--tools", MLX_FLAG_TEXT, "FILE", "in a chat: a JSON list of tools for the template", &f.tools_file, 0,
       0},
      MLX_RARE_OPENING_FLAGS(f.open),
      {"--ignore-eos", MLX_FLAG_SWITCH, NULL, "go on after the model ends its text", &f.ignore_eos, 0, 0},
      MLX_GROUP_END,
      {"--json", MLX_FLAG_SWITCH, NULL, "print one JSON object: ids, text, finish reason, timings", &f.json,
       0, 0},
      {"-v, --verbose", MLX_FLAG_SWITCH, NULL, "say more on stderr: kernels, weights, the seed",
       &f.open.verbose, 0, 0},
      {0}};
  size_t words;
  bool help;
  MLX_TRY(mlx_flags_parse(
      "usage: mlxcel run -m MODEL [-p TEXT] [options]\n\n"
      "Without a prompt, at a terminal, it is a chat. A prompt through a pipe is one turn of a chat.\n"
      "A model that is not compiled yet is compiled first, and kept in the cache.\n\n"
      "examples:\n"
      "  mlxcel run -m model.gguf\n"
      "  mlxcel run -m model.gguf -p \"The capital of France is\" -n 16 --temp 0",
      table, argc, argv, NULL, 0, &words, &help));
  if (help) return NULL;
  if (!f.open.model)
    return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel run -m MODEL -p TEXT");
  if (f.sampling.logprobs >= 0 && !f.json) {
    return mlx_status_hint(mlx_error(MLX_USAGE, "--logprobs is part of what --json prints"), "add --json");
  }
  MLX_TRY(choose_input(&f));
  mlx_status_t status = mlx_sampling_flags_read(&f.sampling);
  if (!status) status = run(&f);
  mlx_free(f.tools);
  mlx_sampling_flags_clear(&f.sampling);
  return status;
}
