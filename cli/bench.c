// mlxcel bench: how fast a model reads and writes, in llama-bench's table. Every run is a fresh session over the same
// pseudo-random tokens; an end of text is a token like any other.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"

#define MAX_TOKENS (1 << 24)
#define MAX_REPETITIONS 1000
#define MAX_DEPTHS 16

typedef struct flags {
  const char *model, *device, *dtype, *kernels, *depths, *format, *bandwidth;
  int64_t prompt, generated, repetitions, context, threads;
  bool verbose;
} flags_t;

// One row of the table: a prompt is read, or tokens are generated, after |depth| positions.
typedef struct test {
  int64_t prompt, generated, depth;  // one of the first two is 0
  char name[64];                     // "tg128 @ d4096"
} test_t;

typedef struct result {
  test_t test;
  double seconds[MAX_REPETITIONS];
  double rate, rate_deviation;  // tokens a second
  double microseconds;          // a token
  double bytes;                 // that a generated token reads; 0 for a prompt, whose tokens share what is read
  double share;                 // of the bandwidth; 0: not known
} result_t;

typedef struct bench {
  int64_t repetitions;
  double bandwidth;  // bytes a second; 0: not known
  int64_t context;   // that the tests need
  test_t tests[2 * MAX_DEPTHS];
  size_t test_count;
  mlx_engine_t *engine;
  mlx_engine_info_t info;
  mlx_open_times_t times;
  double first_token_seconds;  // of the first run: the first read, with everything cold; 0: not yet
  int32_t *ids, *chosen;       // [context] tokens to read, and where to put those chosen
} bench_t;

// ---------------------------------------------------------------------------------------------------------------------
// What to measure

static void add_test(bench_t *bench, int64_t prompt, int64_t generated, int64_t depth) {
  test_t *test = &bench->tests[bench->test_count++];
  *test = (test_t){.prompt = prompt, .generated = generated, .depth = depth};
  int length = snprintf(test->name, sizeof test->name, "%s%lld", prompt ? "pp" : "tg", (long long)(prompt + generated));
  if (depth) snprintf(test->name + length, sizeof test->name - (size_t)length, " @ d%lld", (long long)depth);
  const int64_t need = prompt ? depth + prompt : (depth ? depth : 1) + generated;
  if (need > bench->context) bench->context = need;
}

static mlx_status_t add_tests(bench_t *bench, const flags_t *f) {
  const char *cursor = f->depths;
  if (!f->prompt && !f->generated) return mlx_error(MLX_USAGE, "-p 0 and -n 0 leave nothing to measure");
  for (size_t count = 0; cursor; ++count) {
    char *end;
    long long depth = strtoll(cursor, &end, 10);
    if (end == cursor || (*end && *end != ',') || depth < 0 || depth > MAX_TOKENS || count == MAX_DEPTHS) {
      return mlx_error(MLX_USAGE, "option -d wants up to %d whole numbers from 0 to %d with commas between them, not '%s'",
                       MAX_DEPTHS, MAX_TOKENS, f->depths);
    }
    if (f->prompt) add_test(bench, f->prompt, 0, depth);
    if (f->generated) add_test(bench, 0, f->generated, depth);
    cursor = *end ? end + 1 : NULL;
  }
  return NULL;
}

static mlx_status_t read_bandwidth(const char *text, double *out) {
  char *end;
  *out = 0;
  if (!text) return NULL;
  double number = strtod(text, &end);
  if (end == text || *end || !(number > 0) || !isfinite(number)) {
    return mlx_error(MLX_USAGE, "option --bandwidth wants GB/s, not '%s'", text);
  }
  *out = number * 1e9;
  return NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// Measuring

// The same tokens on every machine: a linear congruential generator's upper bits.
static mlx_status_t make_tokens(bench_t *bench) {
  MLX_TRY(mlx_alloc((size_t)bench->context, sizeof *bench->ids, &bench->ids));
  MLX_TRY(mlx_alloc((size_t)bench->context, sizeof *bench->chosen, &bench->chosen));
  uint64_t state = 42;
  for (int64_t i = 0; i < bench->context; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    bench->ids[i] = (int32_t)((state >> 33) % (uint64_t)bench->info.vocab);
  }
  return NULL;
}

static mlx_status_t read_tokens(bench_t *bench, mlx_session_t *session, int64_t count) {
  double start = mlx_seconds();
  if (!count) return NULL;
  MLX_TRY(mlx_session_read(session, bench->ids + mlx_session_length(session), (size_t)count, bench->chosen));
  if (!bench->first_token_seconds) bench->first_token_seconds = mlx_seconds() - start;
  return NULL;
}

static mlx_status_t run_session(bench_t *bench, const test_t *test, mlx_session_t *session, double *out_seconds) {
  // Somebody has to go first: without a depth, generating goes on from one token.
  MLX_TRY(read_tokens(bench, session, test->depth || test->prompt ? test->depth : 1));
  double start = mlx_seconds();
  MLX_TRY(test->prompt ? read_tokens(bench, session, test->prompt)
                       : mlx_session_steps(session, bench->chosen, (size_t)test->generated));
  *out_seconds = mlx_seconds() - start;
  return NULL;
}

static mlx_status_t run_once(bench_t *bench, const test_t *test, double *out_seconds) {
  mlx_session_t *session;
  MLX_TRY(mlx_session_create(bench->engine, &session));
  mlx_status_t status = run_session(bench, test, session, out_seconds);
  mlx_session_free(session);
  return status;
}

// Weights, and the keys and values of every position before the token and its own: on average half of what is generated.
static double bytes_a_token(const bench_t *bench, const test_t *test) {
  if (!test->generated) return 0;
  const double before = (double)(test->depth ? test->depth : 1) + (double)(test->generated + 1) / 2;
  return (double)bench->info.token_weight_bytes + before * (double)bench->info.kv_bytes;
}

static void summarise(const bench_t *bench, result_t *r) {
  const double tokens = (double)(r->test.prompt + r->test.generated), n = (double)bench->repetitions;
  double seconds = 0, squares = 0;
  r->rate = 0;
  for (int64_t i = 0; i < bench->repetitions; ++i) {
    seconds += r->seconds[i] / n;
    r->rate += tokens / r->seconds[i] / n;
  }
  for (int64_t i = 0; i < bench->repetitions; ++i) squares += pow(tokens / r->seconds[i] - r->rate, 2);
  r->rate_deviation = n > 1 ? sqrt(squares / (n - 1)) : 0;
  r->microseconds = seconds / tokens * 1e6;
  r->bytes = bytes_a_token(bench, &r->test);
  r->share = bench->bandwidth ? r->bytes / (seconds / tokens) / bench->bandwidth : 0;
}

static mlx_status_t measure(bench_t *bench, const test_t *test, result_t *out) {
  double cold;
  out->test = *test;
  mlx_report_progress(mlx_terminal_report(), "%s: warming up", test->name);
  mlx_status_t status = run_once(bench, test, &cold);
  for (int64_t i = 0; i < bench->repetitions && !status; ++i) {
    mlx_report_progress(mlx_terminal_report(), "%s: run %lld of %lld", test->name, (long long)i + 1, (long long)bench->repetitions);
    status = run_once(bench, test, &out->seconds[i]);
  }
  mlx_report_done(mlx_terminal_report());
  if (!status) summarise(bench, out);
  return status;
}

static int64_t peak_memory(void) {
  struct rusage usage;
  return getrusage(RUSAGE_SELF, &usage) ? 0 : usage.ru_maxrss * INT64_C(1024);
}

// ---------------------------------------------------------------------------------------------------------------------
// A result as a list of fields, named as llama-bench names them where it does

typedef struct field {
  const char *name;
  enum { TEXT, WHOLE, REAL, UNKNOWN } kind;
  const char *text;
  double number;
} field_t;

#define MAX_FIELDS 32

static field_t text_field(const char *name, const char *text) { return (field_t){.name = name, .kind = TEXT, .text = text}; }
static field_t whole_field(const char *name, double number) { return (field_t){.name = name, .kind = WHOLE, .number = number}; }
static field_t real_field(const char *name, double number) { return (field_t){.name = name, .kind = REAL, .number = number}; }
static field_t real_or_unknown(const char *name, double number) {
  return (field_t){.name = name, .kind = number > 0 ? REAL : UNKNOWN, .number = number};
}

static size_t list_fields(const bench_t *bench, const result_t *r, field_t *out) {
  const mlx_engine_info_t *info = &bench->info;
  const double tokens = (double)(r->test.prompt + r->test.generated);
  size_t n = 0;
  out[n++] = text_field("version", MLXCEL_VERSION);
  out[n++] = text_field("model", info->source);
  out[n++] = text_field("model_type", info->architecture);
  out[n++] = whole_field("model_size", (double)info->weight_bytes);
  out[n++] = text_field("dtype", info->dtype);
  out[n++] = text_field("device", info->device);
  out[n++] = text_field("gpu_info", info->gpu);
  out[n++] = text_field("target", info->target);
  out[n++] = text_field("kernels", info->kernels);
  out[n++] = whole_field("n_threads", info->threads);
  out[n++] = whole_field("n_ctx", (double)info->context);
  out[n++] = text_field("test", r->test.name);
  out[n++] = whole_field("n_prompt", (double)r->test.prompt);
  out[n++] = whole_field("n_gen", (double)r->test.generated);
  out[n++] = whole_field("n_depth", (double)r->test.depth);
  out[n++] = whole_field("repetitions", (double)bench->repetitions);
  out[n++] = whole_field("avg_ns", r->microseconds * tokens * 1e3);
  out[n++] = real_field("avg_ts", r->rate);
  out[n++] = real_field("stddev_ts", r->rate_deviation);
  out[n++] = real_field("us_per_token", r->microseconds);
  out[n++] = whole_field("bytes_per_token", r->bytes);
  out[n++] = real_or_unknown("bandwidth_gbs", bench->bandwidth / 1e9);
  out[n++] = real_or_unknown("bandwidth_share", r->share);
  out[n++] = real_field("compile_seconds", bench->times.compile_seconds);
  out[n++] = real_field("load_seconds", bench->times.load_seconds);
  out[n++] = real_field("first_token_seconds", bench->first_token_seconds);
  out[n++] = whole_field("peak_memory_bytes", (double)peak_memory());
  return n;
}

// ---------------------------------------------------------------------------------------------------------------------
// Formats: each appends what opens the output, a row, and what closes it

// Names come from foreign files: nothing of them may break the table or steer the terminal.
static void put_plain(mlx_text_t *out, const char *text, char forbidden) {
  for (; *text; ++text) {
    const char plain = (unsigned char)*text < 0x20 || *text == 0x7f || *text == forbidden ? '?' : *text;
    mlx_text_append(out, &plain, 1);
  }
}

static void put_cell(mlx_text_t *out, const char *text, int width, bool right) {
  int columns = 0;
  for (const char *c = text; *c; ++c) columns += ((unsigned char)*c & 0xc0) != 0x80;
  const int pad = columns < width ? width - columns : 0;
  mlx_text_printf(out, "| %*s", right ? pad : 0, "");
  put_plain(out, text, '|');
  mlx_text_printf(out, "%*s ", right ? 0 : pad, "");
}

static void md_begin(const bench_t *bench, mlx_text_t *out) {
  mlx_text_printf(out, "| %-30s | %10s | %-5s | %-20s | %15s | %20s | %10s |", "model", "size", "dtype", "device", "test", "t/s", "us/token");
  char share[32];
  snprintf(share, sizeof share, "of %.4g GB/s", bench->bandwidth / 1e9);
  if (bench->bandwidth) mlx_text_printf(out, " %12s |", share);
  mlx_text_puts(out, "\n| ------------------------------ | ---------: | ----- | -------------------- | --------------: | -------------------: | ---------: |");
  mlx_text_puts(out, bench->bandwidth ? " -----------: |\n" : "\n");
}

static void md_row(const bench_t *bench, const result_t *r, size_t number, mlx_text_t *out) {
  (void)number;
  char text[64];
  const bool large = bench->info.weight_bytes >= 1u << 30;
  put_cell(out, bench->info.source, 30, false);
  snprintf(text, sizeof text, "%.2f %s", (double)bench->info.weight_bytes / (large ? 1 << 30 : 1 << 20), large ? "GiB" : "MiB");
  put_cell(out, text, 10, true);
  put_cell(out, bench->info.dtype, 5, false);
  put_cell(out, mlx_cli_device_text(&bench->info).text, 20, false);
  put_cell(out, r->test.name, 15, true);
  snprintf(text, sizeof text, "%.2f ± %.2f", r->rate, r->rate_deviation);
  put_cell(out, text, 20, true);
  snprintf(text, sizeof text, "%.2f", r->microseconds);
  put_cell(out, text, 10, true);
  if (bench->bandwidth) {
    snprintf(text, sizeof text, "%.1f%%", r->share * 100);
    put_cell(out, r->share > 0 ? text : "-", 12, true);
  }
  mlx_text_puts(out, "|\n");
}

static void csv_text(mlx_text_t *out, const char *text) {
  mlx_text_puts(out, "\"");
  put_plain(out, text, '"');
  mlx_text_puts(out, "\"");
}

static void csv_begin(const bench_t *bench, mlx_text_t *out) {
  static const result_t nothing;
  field_t fields[MAX_FIELDS];
  const size_t count = list_fields(bench, &nothing, fields);
  for (size_t i = 0; i < count; ++i) mlx_text_printf(out, "%s%s", fields[i].name, i + 1 < count ? "," : "\n");
}

static void csv_row(const bench_t *bench, const result_t *r, size_t number, mlx_text_t *out) {
  (void)number;
  field_t fields[MAX_FIELDS];
  const size_t count = list_fields(bench, r, fields);
  for (size_t i = 0; i < count; ++i) {
    if (fields[i].kind == TEXT) csv_text(out, fields[i].text);
    if (fields[i].kind == WHOLE) mlx_text_printf(out, "%.0f", fields[i].number);
    if (fields[i].kind == REAL) mlx_text_printf(out, "%.6f", fields[i].number);
    mlx_text_puts(out, i + 1 < count ? "," : "\n");
  }
}

static void put_object(const bench_t *bench, const result_t *r, mlx_text_t *out) {
  field_t fields[MAX_FIELDS];
  const size_t count = list_fields(bench, r, fields);
  for (size_t i = 0; i < count; ++i) {
    mlx_text_printf(out, "%s\"%s\": ", i ? ", " : "{", fields[i].name);
    if (fields[i].kind == TEXT) mlx_text_json_string(out, fields[i].text, strlen(fields[i].text));
    if (fields[i].kind == WHOLE) mlx_text_printf(out, "%.0f", fields[i].number);
    if (fields[i].kind == REAL) mlx_text_printf(out, "%.6f", fields[i].number);
    if (fields[i].kind == UNKNOWN) mlx_text_puts(out, "null");
  }
  mlx_text_puts(out, ", \"samples_ns\": [");
  for (int64_t i = 0; i < bench->repetitions; ++i) mlx_text_printf(out, "%s%.0f", i ? ", " : "", r->seconds[i] * 1e9);
  mlx_text_puts(out, "]}");
}

static void json_begin(const bench_t *bench, mlx_text_t *out) {
  (void)bench;
  mlx_text_puts(out, "[");
}

static void json_row(const bench_t *bench, const result_t *r, size_t number, mlx_text_t *out) {
  mlx_text_puts(out, number ? ",\n  " : "\n  ");
  put_object(bench, r, out);
}

static void json_end(mlx_text_t *out) { mlx_text_puts(out, "\n]\n"); }

static void jsonl_row(const bench_t *bench, const result_t *r, size_t number, mlx_text_t *out) {
  (void)number;
  put_object(bench, r, out);
  mlx_text_puts(out, "\n");
}

typedef struct format {
  const char *name;
  void (*begin)(const bench_t *bench, mlx_text_t *out);                                // may be NULL
  void (*row)(const bench_t *bench, const result_t *r, size_t number, mlx_text_t *out);
  void (*end)(mlx_text_t *out);                                                        // may be NULL
} format_t;

static const format_t formats[] = {{"md", md_begin, md_row, NULL},
                                   {"csv", csv_begin, csv_row, NULL},
                                   {"json", json_begin, json_row, json_end},
                                   {"jsonl", NULL, jsonl_row, NULL}};

static mlx_status_t find_format(const char *name, const format_t **out) {
  for (size_t i = 0; i < sizeof formats / sizeof *formats; ++i) {
    *out = &formats[i];
    if (!strcmp(name, formats[i].name)) return NULL;
  }
  return mlx_error(MLX_USAGE, "option -o wants md, csv, json or jsonl, not '%s'", name);
}

// Prints what was appended, so that a row is there as soon as it is measured.
static mlx_status_t print_now(mlx_text_t *text) {
  MLX_TRY(mlx_text_finish(text));
  if (text->length && (fwrite(text->data, 1, text->length, stdout) != text->length || fflush(stdout))) return mlx_stdout_error();
  mlx_text_clear(text);
  return NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// All of it

static mlx_status_t run_tests(bench_t *bench, const format_t *format, result_t *result, mlx_text_t *out) {
  if (format->begin) format->begin(bench, out);
  for (size_t i = 0; i < bench->test_count; ++i) {
    MLX_TRY(print_now(out));
    MLX_TRY(measure(bench, &bench->tests[i], result));
    format->row(bench, result, i, out);
  }
  if (format->end) format->end(out);
  MLX_TRY(print_now(out));
  fprintf(stderr, "compile %.2f s; load %.2f s; first token %.3f s; peak memory %.0f MiB\n", bench->times.compile_seconds,
          bench->times.load_seconds, bench->first_token_seconds, (double)peak_memory() / (1 << 20));
  return NULL;
}

static mlx_status_t too_small(int64_t need, int64_t context) {
  return mlx_status_hint(mlx_error(MLX_USAGE, "the tests need a context of %lld; it holds %lld", (long long)need, (long long)context),
                         "leave -c away, or measure less (-p, -n, -d)");
}

static mlx_status_t open_and_run(bench_t *bench, const flags_t *f, const format_t *format) {
  const mlx_open_options_t opening = {.model = f->model,
                                      .device = f->device,
                                      .dtype = f->dtype,
                                      .kernels = f->kernels,
                                      .context = f->context < 0 ? bench->context : f->context,
                                      .threads = f->threads};
  if (f->context > 0 && f->context < bench->context) return too_small(bench->context, f->context);
  MLX_TRY(mlx_cli_open(&opening, &bench->engine, &bench->times));
  bench->info = mlx_engine_info(bench->engine);
  if (bench->info.context < bench->context) return too_small(bench->context, bench->info.context);
  if (f->verbose) mlx_cli_print_device(&bench->info, true);
  MLX_TRY(make_tokens(bench));
  result_t *result;
  mlx_text_t out = {0};
  MLX_TRY(mlx_alloc(1, sizeof *result, &result));
  mlx_status_t status = run_tests(bench, format, result, &out);
  mlx_text_clear(&out);
  mlx_free(result);
  return status;
}

mlx_status_t mlx_cli_bench(int argc, char **argv) {
  flags_t f = {.kernels = "auto", .device = "auto", .depths = "0", .format = "md", .prompt = 512, .generated = 128, .repetitions = 5, .context = -1};
  const mlx_flag_t table[] = {
      {"-m, --model", MLX_FLAG_TEXT, "MODEL", "a compiled model, a GGUF file or a Hugging Face directory", &f.model, 0, 0},
      {"-p, --n-prompt", MLX_FLAG_INT, "N", "read a prompt of N tokens (default: 512; 0: do not)", &f.prompt, 0, MAX_TOKENS},
      {"-n, --n-gen", MLX_FLAG_INT, "N", "generate N tokens (default: 128; 0: do not)", &f.generated, 0, MAX_TOKENS},
      {"-d, --n-depth", MLX_FLAG_TEXT, "N,...", "do both after N positions, which are not timed (default: 0)", &f.depths, 0, 0},
      {"-r, --repetitions", MLX_FLAG_INT, "N", "timed runs of each test (default: 5)", &f.repetitions, 1, MAX_REPETITIONS},
      {"-c, --ctx, --ctx-size", MLX_FLAG_INT, "N", "context (default: what the tests need; 0: the model's)", &f.context, 0, 1 << 30},
      {"--kernels", MLX_FLAG_TEXT, "auto|required|off", "link our own kernels when compiling (default: auto)", &f.kernels, 0, 0},
      {"--dtype", MLX_FLAG_TEXT, "auto|packed|f32|bf16|f16", "how weights are stored (default: auto, the fastest exact way)", &f.dtype, 0, 0},
      {"-t, --threads", MLX_FLAG_INT, "N", "CPU threads (default: one for each CPU)", &f.threads, 1, 256},
      {"--device", MLX_FLAG_TEXT, "cpu|cuda|auto", "where to run (default: auto, a usable GPU or else the CPU)", &f.device, 0, 0},
      {"--bandwidth", MLX_FLAG_TEXT, "GB/s", "the memory's read bandwidth: show which share of it generating reaches", &f.bandwidth, 0, 0},
      {"-o, --output", MLX_FLAG_TEXT, "md|csv|json|jsonl", "how to print (default: md, a table)", &f.format, 0, 0},
      {"-v, --verbose", MLX_FLAG_SWITCH, NULL, "say on stderr which device is used and which kernels the model carries", &f.verbose, 0, 0},
      {0}};
  size_t words;
  bool help;
  MLX_TRY(mlx_flags_parse("usage: mlxcel bench -m MODEL [options]\n\n"
                          "Tokens a second for reading a prompt (pp) and for generating (tg), mean and deviation over the runs.\n\n"
                          "examples:\n"
                          "  mlxcel bench -m model.mlxb\n"
                          "  mlxcel bench -m model.mlxb -p 512 -n 128 -d 0,4096 -o json",
                          table, argc, argv, NULL, 0, &words, &help));
  if (help) return NULL;
  if (!f.model) return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel bench -m MODEL");
  bench_t bench = {.repetitions = f.repetitions};
  const format_t *format;
  MLX_TRY(find_format(f.format, &format));
  MLX_TRY(read_bandwidth(f.bandwidth, &bench.bandwidth));
  MLX_TRY(add_tests(&bench, &f));
  mlx_status_t status = open_and_run(&bench, &f, format);
  mlx_free(bench.ids);
  mlx_free(bench.chosen);
  mlx_engine_close(bench.engine);
  return status;
}
