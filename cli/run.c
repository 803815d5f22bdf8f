// mlxcel run: text from a prompt. stdout carries what the model wrote and nothing else.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/sampling.h"
#include "runtime/mlxcel.h"

#define MAX_PROMPT (64u << 20)

typedef struct flags {
  const char *model, *prompt, *prompt_file, *system, *device, *dtype, *kernels;
  int64_t count, context, threads;
  bool chat, json, ignore_eos, verbose;
  mlx_sampling_flags_t sampling;
} flags_t;

typedef struct prompt {
  const char *text;
  size_t length;
  char *owned;
} prompt_t;

// ---------------------------------------------------------------------------------------------------------------------
// Input

static mlx_status_t read_prompt(const flags_t *f, prompt_t *out) {
  *out = (prompt_t){0};
  if (!f->prompt == !f->prompt_file) {
    return mlx_status_hint(mlx_error(MLX_USAGE, f->prompt ? "both -p and -f were given" : "no prompt was given"),
                           "give it with -p TEXT or -f FILE");
  }
  if (f->prompt) {
    out->text = f->prompt;
    out->length = strlen(f->prompt);
    return NULL;
  }
  bool from_stdin = !strcmp(f->prompt_file, "-");
  MLX_TRY(from_stdin ? mlx_read_stream(STDIN_FILENO, "stdin", MAX_PROMPT, &out->owned, &out->length)
                     : mlx_read_file(f->prompt_file, MAX_PROMPT, &out->owned, &out->length));
  if (out->length && out->owned[out->length - 1] == '\n') --out->length;  // the one an editor put there, as llama.cpp does
  out->text = out->owned;
  return NULL;
}

static void put_message(mlx_text_t *json, const char *role, const char *text, size_t length) {
  mlx_text_printf(json, "%s{\"role\": \"%s\", \"content\": ", json->length > 1 ? ", " : "", role);
  mlx_text_json_string(json, text, length);
  mlx_text_puts(json, "}");
}

// Makes the prompt a turn of a conversation, in the words of the model's chat template.
static mlx_status_t template_prompt(const flags_t *f, prompt_t *inout) {
  mlx_chat_t *chat;
  mlx_chat_options_t options;
  mlx_text_t messages = {0};
  char *text = NULL;
  size_t length = 0;
  MLX_TRY(mlx_cli_open_chat(f->model, &chat));
  mlx_chat_options_initialize(&options);
  mlx_text_puts(&messages, "[");
  if (f->system) put_message(&messages, "system", f->system, strlen(f->system));
  put_message(&messages, "user", inout->text, inout->length);
  mlx_text_puts(&messages, "]");
  mlx_status_t status = mlx_text_finish(&messages);
  if (!status) status = mlx_chat_render(chat, messages.data, messages.length, &options, &text, &length);
  mlx_text_clear(&messages);
  mlx_chat_free(chat);
  mlx_free(inout->owned);
  *inout = (prompt_t){.text = text, .length = length, .owned = text};
  return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// Output

static bool print_text(void *user, const char *text, size_t length) {
  (void)user;
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
                               const int32_t *prompt, size_t prompt_count,
                               const mlx_generation_t *g, double load_seconds) {
  mlx_text_t json = {0};
  mlx_status_t status = NULL;
  mlx_text_puts(&json, "{\n");
  put_ids(&json, "prompt_ids", prompt, prompt_count);
  put_ids(&json, "output_ids", g->ids, g->count);
  mlx_text_puts(&json, "  \"text\": ");
  mlx_text_json_string(&json, g->text, g->text_length);
  mlx_text_printf(&json, ",\n  \"seed\": %llu", (unsigned long long)f->sampling.options.seed);
  if (g->logprobs) status = mlx_cli_put_logprobs(engine, g, (size_t)f->sampling.logprobs, &json);
  mlx_text_printf(&json,
                  ",\n  \"finish_reason\": \"%s\",\n"
                  "  \"timings\": {\"load_seconds\": %.6f, \"prompt_seconds\": %.6f, \"decode_seconds\": %.6f, "
                  "\"prompt_tokens_per_second\": %.3f, \"decode_tokens_per_second\": %.3f},\n"
                  "  \"dtype\": \"%s\",\n  \"device\": \"%s\",\n  \"threads\": %d\n}\n",
                  mlx_finish_reason_name(g->finish_reason), load_seconds, g->prompt_seconds, g->decode_seconds,
                  rate(prompt_count, g->prompt_seconds), rate(decoded(g), g->decode_seconds), info->dtype, info->device,
                  info->threads);
  status = mlx_status_join(status, mlx_text_finish(&json));
  if (!status && !print_text(NULL, json.data, json.length)) status = mlx_stdout_error();
  mlx_text_clear(&json);
  return status;
}

static void print_summary(const mlx_generation_t *g, size_t prompt_count, double load_seconds) {
  fprintf(stderr, "\n%s: load %.2f s; prompt %zu tokens, %.1f tok/s; output %zu tokens, %.1f tok/s\n",
          mlx_finish_reason_name(g->finish_reason), load_seconds, prompt_count, rate(prompt_count, g->prompt_seconds),
          g->count, rate(decoded(g), g->decode_seconds));
}

static mlx_status_t generate(mlx_engine_t *engine, const flags_t *f, const prompt_t *prompt, double load_seconds) {
  const mlx_engine_info_t info = mlx_engine_info(engine);
  mlx_cli_print_device(&info, f->verbose);
  int32_t *ids = NULL;
  size_t count;
  mlx_session_t *session = NULL;
  mlx_generation_t generation = {0};
  mlx_generate_options_t options;
  mlx_generate_options_initialize(&options);
  options.max_tokens = f->count;
  options.ignore_eos = f->ignore_eos;
  mlx_sampling_flags_apply(&f->sampling, f->verbose, &options);
  if (!f->json) options.on_text = print_text;
  mlx_status_t status = f->chat ? mlx_engine_tokenize_chat(engine, prompt->text, prompt->length, &ids, &count)
                                : mlx_engine_tokenize(engine, prompt->text, prompt->length, &ids, &count);
  if (!status) status = mlx_session_create(engine, &session);
  if (!status) status = mlx_session_generate(session, ids, count, &options, &generation);
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

mlx_status_t mlx_cli_run(int argc, char **argv) {
  flags_t f = {.kernels = "auto", .device = "auto", .count = -1, .context = -1};
  mlx_sampling_flags_initialize(&f.sampling);
  const mlx_flag_t table[] = {
      {"-m, --model", MLX_FLAG_TEXT, "MODEL", "a compiled model, a GGUF file, a Hugging Face directory or hf:ORG/NAME", &f.model, 0, 0},
      {"-p, --prompt", MLX_FLAG_TEXT, "TEXT", "what the model goes on from; special tokens in it count", &f.prompt, 0, 0},
      {"-f, --file", MLX_FLAG_TEXT, "FILE", "read the prompt from a file, or from stdin (-)", &f.prompt_file, 0, 0},
      {"--chat", MLX_FLAG_SWITCH, NULL, "make the prompt a turn of a chat, by the model's own template", &f.chat, 0, 0},
      {"-sys, --system-prompt", MLX_FLAG_TEXT, "TEXT", "with --chat: what the system says before it", &f.system, 0, 0},
      {"-n, --n-predict", MLX_FLAG_INT, "N", "write at most N tokens (default: -1, until the model stops)", &f.count, -1, 1 << 24},
      {"-c, --ctx, --ctx-size", MLX_FLAG_INT, "N", "context (default: the model's, up to 2048; 0: the model's)", &f.context, 0, 1 << 30},
      {"--kernels", MLX_FLAG_TEXT, "WHEN", "link our own kernels when compiling: auto (default), required, off", &f.kernels, 0, 0},
      {"--dtype", MLX_FLAG_TEXT, "DTYPE", "weights: packed (as a GGUF has them, exact), f32 (exact), bf16, f16; auto (default): packed where there are kernels, else f32", &f.dtype, 0, 0},
      {"-t, --threads", MLX_FLAG_INT, "N", "CPU threads (default: one for each CPU)", &f.threads, 1, 256},
      {"--device", MLX_FLAG_TEXT, "DEVICE", "cpu, cuda or auto (default)", &f.device, 0, 0},
      {"--ignore-eos", MLX_FLAG_SWITCH, NULL, "go on after the model ends its text", &f.ignore_eos, 0, 0},
      MLX_SAMPLING_FLAGS(f.sampling),
      {"--json", MLX_FLAG_SWITCH, NULL, "print one JSON object: ids, text, finish reason, timings", &f.json, 0, 0},
      {"-v, --verbose", MLX_FLAG_SWITCH, NULL, "say on stderr which kernels the model carries, and the seed", &f.verbose, 0, 0},
      {0}};
  size_t words;
  bool help;
  MLX_TRY(mlx_flags_parse("usage: mlxcel run -m MODEL -p TEXT [options]\n\n"
                          "A model that is not compiled yet is compiled first, and kept in the cache.",
                          table, argc, argv, NULL, 0, &words, &help));
  if (help) return NULL;
  if (!f.model) return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel run -m MODEL -p TEXT");
  if (f.system && !f.chat) return mlx_status_hint(mlx_error(MLX_USAGE, "-sys belongs to a chat"), "add --chat");
  prompt_t prompt = {0};
  if (f.sampling.logprobs >= 0 && !f.json) {
    return mlx_status_hint(mlx_error(MLX_USAGE, "--logprobs is part of what --json prints"), "add --json");
  }
  MLX_TRY(mlx_sampling_flags_read(&f.sampling));
  mlx_status_t status = read_prompt(&f, &prompt);
  mlx_engine_t *engine = NULL;
  if (!status && f.chat) status = template_prompt(&f, &prompt);
  mlx_open_times_t times;
  const mlx_open_options_t opening = {.model = f.model,
                                      .device = f.device,
                                      .dtype = f.dtype,
                                      .kernels = f.kernels,
                                      .context = f.context,
                                      .threads = f.threads,
                                      .prompt = prompt.text,
                                      .prompt_length = prompt.length,
                                      .prompt_is_chat = f.chat};
  if (!status) status = mlx_cli_open(&opening, &engine, &times);
  if (!status) status = generate(engine, &f, &prompt, times.compile_seconds + times.load_seconds);
  mlx_engine_close(engine);
  mlx_free(prompt.owned);
  mlx_sampling_flags_clear(&f.sampling);
  return status;
}
