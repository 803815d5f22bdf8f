// mlxcel bench: measures prefill and decode speed and prints llama-bench's table. Every run uses a new
// session, or with --parallel a new scheduler, and the same pseudo-random tokens; an end-of-text token does
// not stop it.
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/leftover.h"
#include "base/memory.h"
#include "base/meter.h"
#include "cli/bandwidth.h"
#include "cli/bench_parallel.h"
#include "cli/bench_print.h"
#include "cli/parse.h"
#include "cli/plot.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "runtime/rooms.h"

#define MAX_TOKENS (1 << 24)
#define MAX_PARALLEL 1024
#define ARRIVAL_PARALLEL 32  // default of --parallel with --arrival

typedef struct flags {
  mlx_open_flags_t open;
  const char *format, *bandwidth, *plot;
  mlx_flag_ints_t prompts, generated, depths, parallel, arrivals;
  mlx_flag_list_t pairs;
  mlx_sampling_t sampling;  // its temperature is -1 if --temp was not given
  int64_t repetitions;
  bool quiet;
} flags_t;

typedef struct measured {  // the part of a result that the plot needs
  mlx_bench_test_t test;
  double rate, deviation;
} measured_t;

typedef struct bench {
  mlx_bench_run_t run;
  int64_t context;                 // positions that the tests need
  int64_t id_count;                // prompt tokens that they need
  int64_t sequences;               // that they need at the same time
  const mlx_sampling_t *sampling;  // borrowed; NULL: greedy
  mlx_bench_test_t *tests;         // owned
  size_t test_count, test_capacity;
  measured_t *measured;  // owned; [test_count]
  mlx_engine_t *engine;
  int32_t *ids, *sampled;  // owned; [id_count] prompt tokens and [context] generated tokens
} bench_t;

// ----------------------------------------------------------------------------------------------------------
// Tests

// "tg128 x8 temp 0.8", and with the depth.
static void name_test(const bench_t *bench, mlx_bench_test_t *test) {
  char *kind = test->kind;
  const size_t size = sizeof test->kind;
  size_t at = 0;
  if (test->arrival) at += (size_t)snprintf(kind + at, size - at, "arrival%lld", (long long)test->arrival);
  if (test->prompt) at += (size_t)snprintf(kind + at, size - at, "pp%lld", (long long)test->prompt);
  if (test->generated) {
    at += (size_t)snprintf(kind + at, size - at, "%stg%lld", test->prompt ? "+" : "",
                           (long long)test->generated);
  }
  if (test->parallel) at += (size_t)snprintf(kind + at, size - at, " x%lld", (long long)test->parallel);
  if (bench->sampling && !(test->prompt && !test->generated))
    snprintf(kind + at, size - at, " temp %g", bench->sampling->temperature);
  const int length = snprintf(test->name, sizeof test->name, "%s", kind);
  if (test->depth)
    snprintf(test->name + length, sizeof test->name - (size_t)length, " @ d%lld", (long long)test->depth);
}

static mlx_status_t add_test(bench_t *bench, mlx_bench_test_t test) {
  if (!test.prompt && !test.generated && !test.arrival) return NULL;
  if (test.parallel && test.prompt && test.depth) {
    return mlx_status_hint(mlx_error(MLX_USAGE, "--parallel cannot measure prefill after a depth"),
                           "give -p 0 to measure decode only, or remove -d");
  }
  MLX_TRY(mlx_reserve(bench->test_count + 1, sizeof *bench->tests, &bench->test_capacity, &bench->tests));
  name_test(bench, &test);
  bench->tests[bench->test_count++] = test;
  const int64_t need = test.parallel
                           ? mlx_bench_parallel_context(&test)
                           : (test.prompt || test.depth ? test.depth + test.prompt : 1) + test.generated,
                ids = test.parallel ? mlx_bench_parallel_ids(&test) : need,
                sequences = (test.parallel ? test.parallel : 1) + (test.arrival ? 1 : 0);
  if (need > bench->context) bench->context = need;
  if (ids > bench->id_count) bench->id_count = ids;
  if (sequences > bench->sequences) bench->sequences = sequences;
  return NULL;
}

static mlx_status_t read_pair(const char *text, int64_t *out_prompt, int64_t *out_generated) {
  mlx_flag_ints_t pair = {0};
  static const mlx_flag_t row = {.names = "-pg", .kind = MLX_FLAG_INTS, .min = 1, .max = MAX_TOKENS};
  mlx_status_t status = mlx_flag_set(&row, &pair, "-pg", text);
  if (status || pair.count != 2) {
    mlx_status_free(status);
    return mlx_error(MLX_USAGE,
                     "option -pg expects two whole numbers from 1 to %d, such as 512,128, not '%s'",
                     MAX_TOKENS, text);
  }
  *out_prompt = pair.items[0];
  *out_generated = pair.items[1];
  return NULL;
}

// All tests at one depth with one number of sequences.
static mlx_status_t add_tests_at(bench_t *bench, const flags_t *f, int64_t depth, int64_t parallel) {
  mlx_bench_test_t test = {.depth = depth, .parallel = parallel};
  if (f->arrivals.count) {  // in place of the other tests
    for (size_t i = 0; i < f->arrivals.count; ++i) {
      test.arrival = f->arrivals.items[i];
      MLX_TRY(add_test(bench, test));
    }
    return NULL;
  }
  for (size_t i = 0; i < f->prompts.count; ++i) {
    test.prompt = f->prompts.items[i];
    MLX_TRY(add_test(bench, test));
  }
  test.prompt = 0;
  for (size_t i = 0; i < f->generated.count; ++i) {
    test.generated = f->generated.items[i];
    MLX_TRY(add_test(bench, test));
  }
  for (size_t i = 0; i < f->pairs.count; ++i) {
    MLX_TRY(read_pair(f->pairs.items[i], &test.prompt, &test.generated));
    MLX_TRY(add_test(bench, test));
  }
  return NULL;
}

static mlx_status_t add_tests(bench_t *bench, const flags_t *f) {
  static const mlx_flag_ints_t one_session = {{0}, 1}, some = {{ARRIVAL_PARALLEL}, 1};
  const mlx_flag_ints_t *parallel = f->parallel.count   ? &f->parallel
                                    : f->arrivals.count ? &some
                                                        : &one_session;
  for (size_t d = 0; d < f->depths.count; ++d) {
    for (size_t i = 0; i < parallel->count; ++i)
      MLX_TRY(add_tests_at(bench, f, f->depths.items[d], parallel->items[i]));
  }
  return bench->test_count ? NULL : mlx_error(MLX_USAGE, "nothing to measure: -p and -n are 0");
}

// ----------------------------------------------------------------------------------------------------------
// Memory bandwidth

// Resets the peak memory of this process, so that it excludes the bandwidth measurement.
static void reset_peak_memory(void) {
  const int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  (void)!write(fd, "5", 1);
  close(fd);
}

static bool measures_bandwidth(const flags_t *f) { return f->bandwidth && !strcmp(f->bandwidth, "measure"); }

static mlx_status_t read_bandwidth(const flags_t *f, double *out) {
  char *end;
  *out = 0;
  if (!f->bandwidth || measures_bandwidth(f)) return NULL;
  const double number = strtod(f->bandwidth, &end);
  if (end == f->bandwidth || *end || !(number > 0) || !isfinite(number)) {
    return mlx_error(MLX_USAGE, "option --bandwidth expects a number of GB/s or measure, not '%s'",
                     f->bandwidth);
  }
  *out = number * 1e9;
  return NULL;
}

static bool will_use_gpu(const char *device, int gpu) {
  char target[64];
  uint64_t memory;
  if (strcmp(device, "auto")) return !strcmp(device, "cuda");
  mlx_status_t none = mlx_engine_gpu_target(gpu, target, sizeof target, &memory);
  mlx_status_free(none);
  return !none;
}

// Measures the CPU's memory bandwidth for --bandwidth measure, and for a plot without --bandwidth.
static mlx_status_t measure_bandwidth(const flags_t *f, double *out) {
  const bool requested = measures_bandwidth(f),
             gpu = (requested || f->plot) && will_use_gpu(f->open.device, f->open.engine.gpu);
  if (requested && gpu)
    return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "--bandwidth measure works for the CPU only"),
                           "give the GPU's bandwidth in GB/s (--bandwidth 4800), or --device cpu");
  if (gpu || (!requested && !f->plot)) return NULL;
  mlx_report_progress(mlx_terminal_report(), "measuring the memory bandwidth");
  mlx_status_t status = mlx_bandwidth_measure(f->open.threads ? (int)f->open.threads : mlx_cpu_count(), out);
  mlx_report_done(mlx_terminal_report());
  if (!status) mlx_terminal_note("memory: %.1f GB/s read\n", *out / 1e9);
  reset_peak_memory();
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Measuring

// The tokens are the same on every machine: the upper bits of a linear congruential generator.
static mlx_status_t make_tokens(bench_t *bench) {
  MLX_TRY(mlx_alloc((size_t)bench->id_count, sizeof *bench->ids, &bench->ids));
  MLX_TRY(mlx_alloc((size_t)bench->context, sizeof *bench->sampled, &bench->sampled));
  uint64_t state = 42;
  for (int64_t i = 0; i < bench->id_count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    bench->ids[i] = (int32_t)((state >> 33) % (uint64_t)bench->run.info.vocab);
  }
  return NULL;
}

static mlx_status_t prefill(bench_t *bench, mlx_session_t *session, int64_t count) {
  double start = mlx_seconds();
  if (!count) return NULL;
  MLX_TRY(mlx_session_read(session, bench->ids + mlx_session_length(session), (size_t)count, bench->sampled));
  if (!bench->run.first_token_seconds) bench->run.first_token_seconds = mlx_seconds() - start;
  return NULL;
}

static mlx_status_t run_greedy(bench_t *bench, const mlx_bench_test_t *test, mlx_session_t *session,
                               double *out_seconds) {
  // Decode needs at least one token in the sequence.
  MLX_TRY(prefill(bench, session, test->depth || test->prompt ? test->depth : 1));
  double start = mlx_seconds();
  if (test->prompt) MLX_TRY(prefill(bench, session, test->prompt));
  if (test->generated) MLX_TRY(mlx_session_steps(session, bench->sampled, (size_t)test->generated));
  *out_seconds = mlx_seconds() - start;
  return NULL;
}

// Prefill gives the first token; the others are timed.
static mlx_status_t run_sampled(bench_t *bench, const mlx_bench_test_t *test, mlx_session_t *session,
                                double *out_seconds) {
  const int64_t prompt = test->prompt ? test->prompt : 1,
                before = test->prompt || !test->depth ? test->depth : test->depth - 1;
  mlx_generate_options_t options;
  mlx_generation_t g;
  MLX_TRY(prefill(bench, session, before));
  mlx_generate_options_initialize(&options);
  options.max_tokens = test->generated + 1;
  options.ignore_eos = true;
  options.sampling = bench->sampling;
  MLX_TRY(mlx_session_generate(session, bench->ids + before, (size_t)prompt, &options, &g));
  *out_seconds = (test->prompt ? g.prompt_seconds : 0) + g.decode_seconds;
  if (!bench->run.first_token_seconds) bench->run.first_token_seconds = g.prompt_seconds;
  mlx_status_t status = (int64_t)g.count == options.max_tokens
                            ? NULL
                            : mlx_error(MLX_INTERNAL, "decode ended after %zu of %lld tokens", g.count,
                                        (long long)options.max_tokens);
  mlx_generation_clear(&g);
  return status;
}

// Stores run |index| of |result|.
static mlx_status_t run_once(bench_t *bench, const mlx_bench_test_t *test, int64_t index,
                             mlx_bench_result_t *result) {
  const mlx_bench_parallel_t several = {
      .engine = bench->engine, .sampling = bench->sampling, .ids = bench->ids};
  mlx_session_t *session;
  if (test->parallel) {
    MLX_TRY(mlx_bench_parallel_run(&several, test, index, result));
    if (!bench->run.first_token_seconds) bench->run.first_token_seconds = result->first_token_seconds;
    return NULL;
  }
  MLX_TRY(mlx_session_create(bench->engine, &session));
  mlx_status_t status = bench->sampling && test->generated
                            ? run_sampled(bench, test, session, &result->seconds[index])
                            : run_greedy(bench, test, session, &result->seconds[index]);
  result->tokens[index] = (double)(test->prompt + test->generated);
  mlx_session_free(session);
  return status;
}

// The average, over the generated tokens, of the positions that a layer reads. |window|: the most that it
// reads; 0: all.
static double positions_read(const mlx_bench_test_t *test, int64_t window) {
  const int64_t before = test->depth ? test->depth : 1, tokens = test->generated;
  int64_t growing = window ? window - before : tokens;  // tokens with fewer positions than the window
  if (growing < 0) growing = 0;
  if (growing > tokens) growing = tokens;
  const double sum = (double)growing * ((double)before + (double)(growing + 1) / 2) +
                     (double)(tokens - growing) * (double)window;
  return sum / (double)tokens;
}

// Bytes read per decoded token: the weights, which all sequences share, and the keys and values of the
// earlier positions that each layer sees.
static double bytes_per_token(const bench_t *bench, const mlx_bench_test_t *test) {
  if (test->prompt || test->arrival || !test->generated) return 0;
  const mlx_engine_info_t *info = &bench->run.info;
  const double sequences = test->parallel ? (double)test->parallel : 1;
  return (double)info->token_weight_bytes / sequences +
         positions_read(test, 0) * (double)(info->kv_bytes - info->window_kv_bytes) +
         positions_read(test, (int64_t)info->window) * (double)info->window_kv_bytes;
}

static void summarize(const bench_t *bench, mlx_bench_result_t *r) {
  const double n = (double)bench->run.repetitions;
  double tokens = 0, squares = 0;
  r->rate = r->average_seconds = 0;
  for (int64_t i = 0; i < bench->run.repetitions; ++i) {
    r->average_seconds += r->seconds[i] / n;
    tokens += r->tokens[i] / n;
    r->rate += r->tokens[i] / r->seconds[i] / n;
  }
  for (int64_t i = 0; i < bench->run.repetitions; ++i)
    squares += pow(r->tokens[i] / r->seconds[i] - r->rate, 2);
  r->rate_deviation = n > 1 ? sqrt(squares / (n - 1)) : 0;
  r->microseconds = r->average_seconds / tokens * 1e6;
  r->bytes = bytes_per_token(bench, &r->test);
  r->share = bench->run.bandwidth ? r->bytes / (r->average_seconds / tokens) / bench->run.bandwidth : 0;
}

static int64_t peak_memory(void) {
  struct rusage usage;
  return getrusage(RUSAGE_SELF, &usage) ? 0 : usage.ru_maxrss * INT64_C(1024);
}

static mlx_status_t measure(bench_t *bench, const mlx_bench_test_t *test, mlx_bench_result_t *out) {
  const double start = mlx_seconds();
  out->test = *test;
  mlx_report_progress(mlx_terminal_report(), "%s: warming up", test->name);
  mlx_status_t status = run_once(bench, test, 0, out);
  out->pause_seconds = 0;  // of the warm-up
  const int64_t count = bench->run.repetitions;
  double taken = mlx_seconds() - start;  // by one run
  for (int64_t i = 0; i < count && !status; ++i) {
    mlx_report_progress(mlx_terminal_report(), "%s: run %lld of %lld%s", test->name, (long long)i + 1,
                        (long long)count, mlx_left_show(taken * (double)(count - i)).text);
    status = run_once(bench, test, i, out);
    taken = (mlx_seconds() - start) / ((double)i + 2);
  }
  mlx_report_done(mlx_terminal_report());
  if (!status) summarize(bench, out);
  out->peak_memory = peak_memory();
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// The plot: speed over depth, and the limit that the memory bandwidth sets for decoding

typedef struct drawing {
  mlx_plot_panel_t panels[2];  // decode, prefill
  mlx_plot_point_t *points;    // owned; of all series
  size_t point_count;
  mlx_plot_point_t limit[33];
  char limit_name[64];
} drawing_t;

static int compare_points(const void *a, const void *b) {
  const mlx_plot_point_t *left = a, *right = b;
  return left->x < right->x ? -1 : left->x > right->x;
}

// Adds one series for each kind of test. Kinds beyond MLX_PLOT_SERIES are in the table only.
static void add_series(drawing_t *drawing, const bench_t *bench, size_t first) {
  const mlx_bench_test_t *kind = &bench->measured[first].test;
  mlx_plot_panel_t *panel = &drawing->panels[kind->prompt ? 1 : 0];
  for (size_t i = 0; i < first; ++i) {
    if (!strcmp(bench->measured[i].test.kind, kind->kind)) return;
  }
  if (panel->count + 1 >= MLX_PLOT_SERIES) return;  // the limit needs one series
  mlx_plot_series_t *series = &panel->series[panel->count++];
  mlx_plot_point_t *points = drawing->points + drawing->point_count;
  *series = (mlx_plot_series_t){.name = kind->kind, .points = points};
  for (size_t i = first; i < bench->test_count; ++i) {
    const measured_t *m = &bench->measured[i];
    if (strcmp(m->test.kind, kind->kind)) continue;
    drawing->points[drawing->point_count++] =
        (mlx_plot_point_t){.x = (double)m->test.depth, .y = m->rate, .error = m->deviation};
    ++series->count;
  }
  qsort(points, series->count, sizeof *points, compare_points);  // depths are in the order of -d
}

// Adds the decode speed that the bandwidth allows at each depth, for the first decode test. The bytes per
// token are those of the results table.
static void add_limit(drawing_t *drawing, const bench_t *bench) {
  mlx_plot_panel_t *panel = &drawing->panels[0];
  const mlx_bench_test_t *first = NULL;
  int64_t deepest = 0;
  for (size_t i = 0; i < bench->test_count; ++i) {
    const mlx_bench_test_t *test = &bench->tests[i];
    if (!first && !test->prompt) first = test;
    if (test->depth > deepest) deepest = test->depth;
  }
  if (!first || !bench->run.bandwidth) return;
  if (!deepest) deepest = first->generated;
  const size_t count = sizeof drawing->limit / sizeof *drawing->limit;
  for (size_t i = 0; i < count; ++i) {
    mlx_bench_test_t at = *first;
    at.depth = deepest * (int64_t)i / (int64_t)(count - 1);
    drawing->limit[i] =
        (mlx_plot_point_t){.x = (double)at.depth, .y = bench->run.bandwidth / bytes_per_token(bench, &at)};
  }
  snprintf(drawing->limit_name, sizeof drawing->limit_name, "limit at %.4g GB/s", bench->run.bandwidth / 1e9);
  panel->series[panel->count++] = (mlx_plot_series_t){
      .name = drawing->limit_name, .points = drawing->limit, .count = count, .is_limit = true};
}

static mlx_status_t write_plot(const bench_t *bench, const char *path) {
  drawing_t drawing = {
      .panels = {
          {.title = "decode", .x_label = "depth (tokens in the context)", .y_label = "tokens per second"},
          {.title = "prefill", .x_label = "depth (tokens in the context)", .y_label = "tokens per second"}}};
  const mlx_engine_info_t *info = &bench->run.info;
  char subtitle[320];
  mlx_text_t svg = {0};
  MLX_TRY(mlx_alloc(bench->test_count, sizeof *drawing.points, &drawing.points));
  for (size_t i = 0; i < bench->test_count; ++i) add_series(&drawing, bench, i);
  add_limit(&drawing, bench);
  const size_t first = drawing.panels[0].count ? 0 : 1,
               count = (drawing.panels[0].count > 0) + (drawing.panels[1].count > 0);
  snprintf(subtitle, sizeof subtitle, "%s, %s; mlxcel " MLXCEL_VERSION ", mean and deviation of %lld %s",
           mlx_cli_device_text(info).text, info->dtype, (long long)bench->run.repetitions,
           mlx_plural((uint64_t)bench->run.repetitions, "run", "runs"));
  mlx_plot_write(info->source, subtitle, &drawing.panels[first], count, &svg);
  mlx_status_t status = mlx_text_finish(&svg);
  mlx_leftover_remove(path);
  if (!status) status = mlx_write_file(path, svg.data, svg.length);
  if (!status) mlx_terminal_note("wrote %s\n", path);
  mlx_text_clear(&svg);
  mlx_free(drawing.points);
  return status;
}

// Fails before the measurements if the plot's folder does not exist.
static mlx_status_t check_plot(const char *path) {
  char *folder;
  if (!path) return NULL;
  MLX_TRY(mlx_folder_of(path, &folder));
  mlx_status_t status =
      mlx_is_dir(folder)
          ? NULL
          : mlx_error(MLX_NOT_FOUND, "cannot write the plot: folder '%s' does not exist", folder);
  mlx_free(folder);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// The verb

// Prints and clears |text|, so that each row appears as soon as it is measured.
static mlx_status_t print_now(mlx_text_t *text) {
  MLX_TRY(mlx_text_finish(text));
  if (text->length && (fwrite(text->data, 1, text->length, stdout) != text->length || fflush(stdout)))
    return mlx_stdout_error();
  mlx_text_clear(text);
  return NULL;
}

static mlx_status_t run_tests(bench_t *bench, const mlx_bench_format_t *format, mlx_bench_result_t *result,
                              mlx_text_t *out) {
  const mlx_bench_run_t *run = &bench->run;
  for (size_t i = 0; i < bench->test_count; ++i)
    mlx_cell_widen(bench->tests[i].name, &bench->run.test_columns);
  if (format->begin) format->begin(run, out);
  for (size_t i = 0; i < bench->test_count; ++i) {
    MLX_TRY(print_now(out));
    MLX_TRY(measure(bench, &bench->tests[i], result));
    bench->measured[i] =
        (measured_t){.test = result->test, .rate = result->rate, .deviation = result->rate_deviation};
    format->row(run, result, i, out);
  }
  if (format->end) format->end(out);
  MLX_TRY(print_now(out));
  mlx_terminal_note("compile %.2f s; load %.2f s; first token %.3f s; peak memory %.0f MiB\n",
                    run->times.compile_seconds, run->times.load_seconds, run->first_token_seconds,
                    (double)peak_memory() / (1 << 20));
  return NULL;
}

static mlx_status_t too_small(int64_t need, int64_t context) {
  return mlx_status_hint(mlx_error(MLX_USAGE, "the tests need a context of %lld tokens; it has %lld",
                                   (long long)need, (long long)context),
                         "remove -c, or reduce -p, -n, -d, --parallel or --arrival");
}

static mlx_status_t open_and_run(bench_t *bench, const flags_t *f) {
  mlx_open_flags_t opening = f->open;
  if (opening.context < 0) opening.engine.context = bench->context;
  opening.engine.sequences = bench->sequences;
  if (f->open.context > 0 && f->open.context < bench->context)
    return too_small(bench->context, f->open.context);
  if (!bench->run.bandwidth) MLX_TRY(measure_bandwidth(f, &bench->run.bandwidth));
  MLX_TRY(mlx_cli_open(&opening, &bench->engine, &bench->run.times));
  bench->run.info = mlx_engine_info(bench->engine);
  if (bench->run.info.context < bench->context) return too_small(bench->context, bench->run.info.context);
  if (f->open.engine.verbose) mlx_cli_print_device(&bench->run.info, true);
  MLX_TRY(make_tokens(bench));
  MLX_TRY(mlx_alloc(bench->test_count, sizeof *bench->measured, &bench->measured));
  mlx_bench_result_t *result;
  mlx_text_t out = {0};
  MLX_TRY(mlx_alloc(1, sizeof *result, &result));
  mlx_status_t status = run_tests(bench, mlx_bench_format(f->format), result, &out);
  mlx_text_clear(&out);
  mlx_free(result);
  return status ? status : f->plot ? write_plot(bench, f->plot) : NULL;
}

static void initialize(void *options) {
  *(flags_t *)options = (flags_t){
      .format = "md", .prompts = {{512}, 1}, .generated = {{128}, 1}, .depths = {{0}, 1}, .repetitions = 5};
  mlx_open_flags_initialize(&((flags_t *)options)->open);
  mlx_sampling_initialize(&((flags_t *)options)->sampling);
  ((flags_t *)options)->sampling.temperature = -1;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  size_t words;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, NULL, 0, &words, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, f.open.engine.verbose));
  if (!f.open.model) return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel bench MODEL");
  MLX_TRY(mlx_open_flags_read(&f.open));
  if (f.plot && f.arrivals.count)
    return mlx_status_hint(mlx_error(MLX_USAGE, "--plot cannot draw --arrival"), "remove one of them");
  bench_t bench = {.run = {.repetitions = f.repetitions, .has_arrivals = f.arrivals.count > 0}};
  if (f.sampling.temperature >= 0) {
    MLX_TRY(mlx_sampling_check(&f.sampling));
    bench.sampling = &f.sampling;
    bench.run.temperature = f.sampling.temperature;
  }
  MLX_TRY(read_bandwidth(&f, &bench.run.bandwidth));
  MLX_TRY(check_plot(f.plot));
  mlx_status_t status = add_tests(&bench, &f);
  if (!status) status = open_and_run(&bench, &f);
  mlx_free(bench.tests);
  mlx_free(bench.measured);
  mlx_free(bench.ids);
  mlx_free(bench.sampled);
  mlx_engine_close(bench.engine);
  return status;
}

// clang-format off
static const mlx_flag_t flags[] = {
    MLX_MODEL_FLAG(flags_t, open.model),
    MLX_INTS_FLAG(flags_t, prompts, "-p, --n-prompt", "N,...",
                  "prefill N tokens (default: 512; 0: no prefill test)", 0, MAX_TOKENS),
    MLX_INTS_FLAG(flags_t, generated, "-n, --n-gen", "N,...",
                  "decode N tokens (default: 128; 0: no decode test)", 0, MAX_TOKENS),
    MLX_LIST_FLAG(flags_t, pairs, "-pg, --n-prompt-gen", "PP,TG",
                  "prefill PP and decode TG tokens as one test; may be repeated"),
    MLX_INTS_FLAG(flags_t, depths, "-d, --n-depth", "N,...",
                  "run each test after N positions, which are not timed (default: 0)", 0, MAX_TOKENS),
    MLX_INTS_FLAG(flags_t, parallel, "-np, --parallel", "N,...",
                  "run each test with N sequences at the same time (default: 1)", 1, MAX_PARALLEL),
    MLX_INTS_FLAG(flags_t, arrivals, "--arrival", "N,...",
                  "instead: the longest pause of the sequences when a prompt of N tokens arrives",
                  1, MAX_TOKENS),
    MLX_INT_FLAG(flags_t, repetitions, "-r, --repetitions", "N",
                 "timed runs of each test (default: 5)", 1, MLX_MAX_REPETITIONS),
    MLX_CONTEXT_FLAG(flags_t, open.context,
                     "context length in tokens (default: what the tests need; 0: the model's)", 0, 1 << 30),
    MLX_OPEN_FLAGS(flags_t, open),
    MLX_TEXT_FLAG(flags_t, bandwidth, "--bandwidth", "GB/s|measure",
                  "memory bandwidth in GB/s, or measure it (CPU); prints the share that decode uses"),
    MLX_TEXT_FLAG(flags_t, format, "-o, --output", "md|csv|json|jsonl",
                  "output format (default: md: a table)"),
    MLX_TEXT_FLAG(flags_t, plot, "--plot", "FILE",
                  "write an SVG plot of speed against depth, with the decode limit set by the bandwidth"),
    MLX_COLLAPSED_GROUP("sampling and device"),
    // Not from the environment or the configuration file, where it is meant for run.
    {.names = "--temp", .kind = MLX_FLAG_NUMBER, .value = "T", .help = "sample with this temperature (default: greedy decode)",
     .offset = MLX_FLAG_OFFSET(flags_t, sampling.temperature, double), .min = 0, .max = 1000000, .command_line_only = true},
    MLX_INT_FLAG(flags_t, sampling.top_k, "--top-k", "N",
                 "with --temp: keep the N most probable tokens (default: 40; 0: all)", 0, 1 << 30),
    MLX_NUMBER_FLAG(flags_t, sampling.top_p, "--top-p", "P",
                    "with --temp: nucleus sampling with total probability P (default: 0.95; 1: all)", 0, 1),
    MLX_GPU_FLAG(flags_t, open),
    MLX_RANKS_FLAG(flags_t, open),
    MLX_RARE_OPEN_FLAGS(flags_t, open),
    MLX_GROUP_END,
    MLX_QUIET_FLAG(flags_t, quiet),
    MLX_VERBOSE_FLAG(flags_t, open.engine.verbose),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_bench = {
    .name = "bench",
    .summary = "measure prefill and decode speed",
    .usage =
        "usage: mlxcel bench MODEL [options]\n\n"
        "Tokens per second of prefill (pp) and decode (tg), mean and standard deviation over the runs.\n\n"
        "examples:\n"
        "  mlxcel bench model.mlxb\n"
        "  mlxcel bench model.mlxb -p 512 -n 128 -d 0,2048,4096 --plot speed.svg\n"
        "  mlxcel bench model.mlxb -p 0 -d 128 -n 128 --parallel 1,8,64",
    .model_word = true,
    .flags = flags,
    .options_size = sizeof(flags_t),
    .initialize = initialize,
    .run = run,
};
