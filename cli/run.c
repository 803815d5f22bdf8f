// mlxcel run: text from a prompt. stdout carries what the model wrote and nothing else.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"
#include "compiler/compile.h"
#include "runtime/mlxcel.h"

#define MAX_PROMPT (64u << 20)

typedef struct flags {
  const char *model, *prompt, *prompt_file, *device, *dtype;
  int64_t count, context, threads;
  bool json, ignore_eos;
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

static mlx_status_t parse_device(const char *text, mlx_device_choice_t *out) {
  static const char *const names[] = {[MLX_USE_CPU] = "cpu", [MLX_USE_CUDA] = "cuda", [MLX_USE_AUTO] = "auto"};
  for (int i = 0; i < 3; ++i) {
    if (strcmp(text, names[i])) continue;
    *out = (mlx_device_choice_t)i;
    return NULL;
  }
  return mlx_error(MLX_USAGE, "--device wants cpu, cuda or auto, not '%s'", text);
}

typedef struct opening {
  const flags_t *flags;
  const prompt_t *prompt;
  char target[64];    // to compile a source model for
  mlx_dtype_t dtype;  // and what to store it as
  uint64_t memory;    // of the GPU, if that is one
} opening_t;

static mlx_status_t accept_prompt(void *user, const mlx_compiled_t *compiled, int64_t context, int64_t vocab) {
  const opening_t *opening = user;
  return mlx_engine_check_prompt(compiled->tokenizer_name, compiled->tokenizer, compiled->tokenizer_length,
                                 opening->prompt->text, opening->prompt->length, context, vocab);
}

// ---------------------------------------------------------------------------------------------------------------------
// Opening

#define QUICK_LOAD 0.3  // seconds of loading that nobody needs to hear of

static void show_loading(void *user, uint64_t done, uint64_t total) {
  double *start = user;
  if (!done) *start = mlx_seconds();
  if (done == total) {
    mlx_report_done(mlx_terminal_report());
  } else if (mlx_seconds() - *start >= QUICK_LOAD) {
    mlx_report_progress(mlx_terminal_report(), "loading weights: %.0f%%", 100.0 * (double)done / (double)total);
  }
}

static mlx_status_t compile_and_open(opening_t *opening, const mlx_engine_options_t *options, mlx_engine_t **out) {
  const flags_t *f = opening->flags;
  const mlx_compile_options_t compile = {.target = opening->target,
                                         .dtype = opening->dtype,
                                         .context = mlx_context_option(f->context),
                                         .memory = opening->memory,
                                         .report = mlx_terminal_report(),
                                         .accept = accept_prompt,
                                         .user = opening};
  mlx_cache_t *cache;
  mlx_compiled_t compiled;
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_status_t status = mlx_compile(f->model, &compile, cache, &compiled);
  if (!status) {
    const mlx_model_parts_t parts = {.name = f->model,
                                     .manifest_name = f->model,
                                     .tokenizer_name = compiled.tokenizer_name,
                                     .manifest = compiled.manifest,
                                     .manifest_length = compiled.manifest_length,
                                     .tokenizer = compiled.tokenizer,
                                     .tokenizer_length = compiled.tokenizer_length,
                                     .vmfb_path = compiled.vmfb_path,
                                     .weights_path = compiled.weights_path};
    status = mlx_engine_open(&parts, options, out);
  }
  mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
  return status;
}

static mlx_status_t open_engine(const flags_t *f, const prompt_t *prompt, mlx_engine_t **out) {
  mlx_engine_options_t options;
  mlx_engine_options_initialize(&options);
  MLX_TRY(parse_device(f->device, &options.device));
  options.threads = (int)f->threads;
  double load_start = 0;
  options.on_load = show_loading;
  options.user = &load_start;
  bool is_bundle = mlx_engine_is_bundle(f->model);
  if (is_bundle) {  // a source model's prompt is checked before it is compiled
    options.prompt = prompt->text;
    options.prompt_length = prompt->length;
  }
  opening_t opening = {.flags = f, .prompt = prompt, .target = "cpu"};
  options.dtype = f->dtype;  // a compiled model has one already
  if (f->dtype) MLX_TRY(mlx_dtype_parse(f->dtype, &opening.dtype));
  bool ask_for_gpu = options.device == MLX_USE_CUDA || (options.device == MLX_USE_AUTO && !is_bundle);
  mlx_status_t no_gpu = ask_for_gpu ? mlx_engine_gpu_target(opening.target, sizeof opening.target, &opening.memory) : NULL;
  if (options.device == MLX_USE_CUDA && no_gpu) return no_gpu;
  if (options.device == MLX_USE_AUTO && !is_bundle) options.reason = no_gpu ? mlx_status_message(no_gpu) : "there is a GPU";
  if (is_bundle && f->context > 0) options.context = f->context;
  mlx_status_t status =
      is_bundle ? mlx_engine_open_bundle(f->model, &options, out) : compile_and_open(&opening, &options, out);
  mlx_status_free(no_gpu);
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

static mlx_status_t print_json(const mlx_engine_info_t *info, const int32_t *prompt, size_t prompt_count,
                               const mlx_generation_t *g, double load_seconds) {
  mlx_text_t json = {0};
  mlx_text_puts(&json, "{\n");
  put_ids(&json, "prompt_ids", prompt, prompt_count);
  put_ids(&json, "output_ids", g->ids, g->count);
  mlx_text_puts(&json, "  \"text\": ");
  mlx_text_json_string(&json, g->text, g->text_length);
  mlx_text_printf(&json,
                  ",\n  \"finish_reason\": \"%s\",\n"
                  "  \"timings\": {\"load_seconds\": %.6f, \"prompt_seconds\": %.6f, \"decode_seconds\": %.6f, "
                  "\"prompt_tokens_per_second\": %.3f, \"decode_tokens_per_second\": %.3f},\n"
                  "  \"dtype\": \"%s\",\n  \"device\": \"%s\",\n  \"threads\": %d\n}\n",
                  mlx_finish_reason_name(g->finish_reason), load_seconds, g->prompt_seconds, g->decode_seconds,
                  rate(prompt_count, g->prompt_seconds), rate(decoded(g), g->decode_seconds), info->dtype, info->device,
                  info->threads);
  mlx_status_t status = mlx_text_finish(&json);
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
  char what[64];
  snprintf(what, sizeof what, "%d thread%s", info.threads, info.threads == 1 ? "" : "s");
  fprintf(stderr, "device: %s, %s, %s%s%s%s\n", info.device, info.gpu[0] ? info.gpu : what, info.dtype,
          info.device_reason[0] ? " (auto: " : "", info.device_reason, info.device_reason[0] ? ")" : "");
  int32_t *ids = NULL;
  size_t count;
  mlx_session_t *session = NULL;
  mlx_generation_t generation = {0};
  mlx_generate_options_t options;
  mlx_generate_options_initialize(&options);
  options.max_tokens = f->count;
  options.ignore_eos = f->ignore_eos;
  if (!f->json) options.on_text = print_text;
  mlx_status_t status = mlx_engine_tokenize(engine, prompt->text, prompt->length, &ids, &count);
  if (!status) status = mlx_session_create(engine, &session);
  if (!status) status = mlx_session_generate(session, ids, count, &options, &generation);
  if (!status && f->json) {
    status = print_json(&info, ids, count, &generation, load_seconds);
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
  flags_t f = {.device = "auto", .count = -1, .context = -1};
  const mlx_flag_t table[] = {
      {"-m, --model", MLX_FLAG_TEXT, "MODEL", "a compiled model, a GGUF file or a Hugging Face directory", &f.model, 0, 0},
      {"-p, --prompt", MLX_FLAG_TEXT, "TEXT", "what the model goes on from; special tokens in it count", &f.prompt, 0, 0},
      {"-f, --file", MLX_FLAG_TEXT, "FILE", "read the prompt from a file, or from stdin (-)", &f.prompt_file, 0, 0},
      {"-n, --n-predict", MLX_FLAG_INT, "N", "write at most N tokens (default: -1, until the model stops)", &f.count, -1, 1 << 24},
      {"-c, --ctx, --ctx-size", MLX_FLAG_INT, "N", "context (default: the model's, up to 2048; 0: the model's)", &f.context, 0, 1 << 30},
      {"--dtype", MLX_FLAG_TEXT, "DTYPE", "store weights and KV cache as f32 (default, exact), bf16 or f16 (half the memory)", &f.dtype, 0, 0},
      {"-t, --threads", MLX_FLAG_INT, "N", "CPU threads (default: one for each CPU)", &f.threads, 1, 256},
      {"--device", MLX_FLAG_TEXT, "DEVICE", "cpu, cuda or auto (default)", &f.device, 0, 0},
      {"--ignore-eos", MLX_FLAG_SWITCH, NULL, "go on after the model ends its text", &f.ignore_eos, 0, 0},
      {"--json", MLX_FLAG_SWITCH, NULL, "print one JSON object: ids, text, finish reason, timings", &f.json, 0, 0},
      {0}};
  size_t words;
  bool help;
  MLX_TRY(mlx_flags_parse("usage: mlxcel run -m MODEL -p TEXT [options]\n\n"
                          "A model that is not compiled yet is compiled first, and kept in the cache.",
                          table, argc, argv, NULL, 0, &words, &help));
  if (help) return NULL;
  if (!f.model) return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel run -m MODEL -p TEXT");
  prompt_t prompt;
  MLX_TRY(read_prompt(&f, &prompt));
  mlx_engine_t *engine = NULL;
  double start = mlx_seconds();
  mlx_status_t status = open_engine(&f, &prompt, &engine);
  if (!status) status = generate(engine, &f, &prompt, mlx_seconds() - start);
  mlx_engine_close(engine);
  mlx_free(prompt.owned);
  return status;
}
