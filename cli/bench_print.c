// Prints bench results as a Markdown table, CSV, JSON or JSON lines.
#include "cli/bench_print.h"

#include <stdio.h>
#include <string.h>

// ----------------------------------------------------------------------------------------------------------
// A result as a list of fields. Fields that llama-bench also has use its names

typedef struct field {
  const char *name;
  enum { TEXT, WHOLE, REAL, UNKNOWN } kind;
  const char *text;
  double number;
} field_t;

#define MAX_FIELDS 40

static field_t text_field(const char *name, const char *text) {
  return (field_t){.name = name, .kind = TEXT, .text = text};
}
static field_t whole_field(const char *name, double number) {
  return (field_t){.name = name, .kind = WHOLE, .number = number};
}
static field_t real_field(const char *name, double number) {
  return (field_t){.name = name, .kind = REAL, .number = number};
}
static field_t real_or_unknown(const char *name, double number) {
  return (field_t){.name = name, .kind = number > 0 ? REAL : UNKNOWN, .number = number};
}

static size_t list_fields(const mlx_bench_run_t *run, const mlx_bench_result_t *r, field_t *out) {
  const mlx_engine_info_t *info = &run->info;
  size_t n = 0;
  out[n++] = text_field("version", MLXCEL_VERSION);
  out[n++] = text_field("model", info->source);
  out[n++] = text_field("model_type", info->architecture);
  out[n++] = whole_field("model_size", (double)info->weight_bytes);
  out[n++] = text_field("dtype", info->dtype);
  out[n++] = text_field("activations", info->activations);
  out[n++] = text_field("kv", info->kv);
  out[n++] = text_field("device", info->device);
  out[n++] = text_field("gpu_info", info->gpu);
  out[n++] = text_field("target", info->target);
  out[n++] = text_field("kernels", info->kernels);
  out[n++] = text_field("cpu_level", info->cpu_level);
  out[n++] = whole_field("n_threads", info->threads);
  out[n++] = whole_field("n_ctx", (double)info->context);
  out[n++] = text_field("test", r->test.name);
  out[n++] = whole_field("n_prompt", (double)r->test.prompt);
  out[n++] = whole_field("n_gen", (double)r->test.generated);
  out[n++] = whole_field("n_depth", (double)r->test.depth);
  out[n++] = whole_field("repetitions", (double)run->repetitions);
  out[n++] = whole_field("avg_ns", r->average_seconds * 1e9);
  out[n++] = real_field("avg_ts", r->rate);
  out[n++] = real_field("stddev_ts", r->rate_deviation);
  out[n++] = real_field("us_per_token", r->microseconds);
  out[n++] = whole_field("bytes_per_token", r->bytes);
  out[n++] = real_or_unknown("bandwidth_gbs", run->bandwidth / 1e9);
  out[n++] = real_or_unknown("bandwidth_share", r->share);
  out[n++] = real_field("compile_seconds", run->times.compile_seconds);
  out[n++] = real_field("load_seconds", run->times.load_seconds);
  out[n++] = real_field("first_token_seconds", run->first_token_seconds);
  out[n++] = whole_field("peak_memory_bytes", (double)r->peak_memory);
  out[n++] = whole_field("n_parallel", r->test.parallel ? (double)r->test.parallel : 1);
  out[n++] = real_or_unknown("temperature", run->temperature);
  out[n++] = whole_field("n_arrival", (double)r->test.arrival);
  out[n++] = real_or_unknown("longest_pause_ms", r->pause_seconds * 1e3);
  out[n++] = real_or_unknown("step_ms", r->step_seconds * 1e3);
  return n;
}

// ----------------------------------------------------------------------------------------------------------
// Formats

// Replaces control characters and |forbidden|: names come from untrusted files.
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

static void md_begin(const mlx_bench_run_t *run, mlx_text_t *out) {
  mlx_text_printf(out, "| %-30s | %10s | %-5s | %-20s | %15s | %20s | %10s |", "model", "size", "dtype",
                  "device", "test", "t/s", "us/token");
  char share[32];
  snprintf(share, sizeof share, run->bandwidth < 1e12 ? "of %.3g GB/s" : "of %.0f GB/s",
           run->bandwidth / 1e9);
  if (run->bandwidth) mlx_text_printf(out, " %12s |", share);
  if (run->has_arrivals) mlx_text_printf(out, " %10s | %16s |", "step ms", "longest pause ms");
  mlx_text_puts(out,
                "\n| ------------------------------ | ---------: | ----- | -------------------- | "
                "--------------: | -------------------: | ---------: |");
  if (run->bandwidth) mlx_text_puts(out, " -----------: |");
  if (run->has_arrivals) mlx_text_puts(out, " ---------: | ---------------: |");
  mlx_text_puts(out, "\n");
}

static void md_row(const mlx_bench_run_t *run, const mlx_bench_result_t *r, size_t number, mlx_text_t *out) {
  (void)number;
  char text[64];
  const bool large = run->info.weight_bytes >= 1u << 30;
  put_cell(out, run->info.source, 30, false);
  snprintf(text, sizeof text, "%.2f %s", (double)run->info.weight_bytes / (large ? 1 << 30 : 1 << 20),
           large ? "GiB" : "MiB");
  put_cell(out, text, 10, true);
  put_cell(out, run->info.dtype, 5, false);
  put_cell(out, mlx_cli_device_text(&run->info).text, 20, false);
  put_cell(out, r->test.name, 15, true);
  snprintf(text, sizeof text, "%.2f ± %.2f", r->rate, r->rate_deviation);
  put_cell(out, text, 20, true);
  snprintf(text, sizeof text, "%.2f", r->microseconds);
  put_cell(out, text, 10, true);
  if (run->bandwidth) {
    snprintf(text, sizeof text, "%.1f%%", r->share * 100);
    put_cell(out, r->share > 0 ? text : "-", 12, true);
  }
  if (run->has_arrivals) {
    snprintf(text, sizeof text, "%.2f", r->step_seconds * 1e3);
    put_cell(out, text, 10, true);
    snprintf(text, sizeof text, "%.2f", r->pause_seconds * 1e3);
    put_cell(out, text, 16, true);
  }
  mlx_text_puts(out, "|\n");
}

static void csv_text(mlx_text_t *out, const char *text) {
  mlx_text_puts(out, "\"");
  put_plain(out, text, '"');
  mlx_text_puts(out, "\"");
}

static void csv_begin(const mlx_bench_run_t *run, mlx_text_t *out) {
  static const mlx_bench_result_t nothing;
  field_t fields[MAX_FIELDS];
  const size_t count = list_fields(run, &nothing, fields);
  for (size_t i = 0; i < count; ++i) mlx_text_printf(out, "%s%s", fields[i].name, i + 1 < count ? "," : "\n");
}

static void csv_row(const mlx_bench_run_t *run, const mlx_bench_result_t *r, size_t number, mlx_text_t *out) {
  (void)number;
  field_t fields[MAX_FIELDS];
  const size_t count = list_fields(run, r, fields);
  for (size_t i = 0; i < count; ++i) {
    if (fields[i].kind == TEXT) csv_text(out, fields[i].text);
    if (fields[i].kind == WHOLE) mlx_text_printf(out, "%.0f", fields[i].number);
    if (fields[i].kind == REAL) mlx_text_printf(out, "%.6f", fields[i].number);
    mlx_text_puts(out, i + 1 < count ? "," : "\n");
  }
}

static void put_object(const mlx_bench_run_t *run, const mlx_bench_result_t *r, mlx_text_t *out) {
  field_t fields[MAX_FIELDS];
  const size_t count = list_fields(run, r, fields);
  for (size_t i = 0; i < count; ++i) {
    mlx_text_printf(out, "%s\"%s\": ", i ? ", " : "{", fields[i].name);
    if (fields[i].kind == TEXT) mlx_text_json_string(out, fields[i].text, strlen(fields[i].text));
    if (fields[i].kind == WHOLE) mlx_text_json_number(out, "%.0f", fields[i].number);
    if (fields[i].kind == REAL) mlx_text_json_number(out, "%.6f", fields[i].number);
    if (fields[i].kind == UNKNOWN) mlx_text_puts(out, "null");
  }
  mlx_text_puts(out, ", \"samples_ns\": [");
  for (int64_t i = 0; i < run->repetitions; ++i) {
    mlx_text_puts(out, i ? ", " : "");
    mlx_text_json_number(out, "%.0f", r->seconds[i] * 1e9);
  }
  mlx_text_puts(out, "]}");
}

static void json_begin(const mlx_bench_run_t *run, mlx_text_t *out) {
  (void)run;
  mlx_text_puts(out, "[");
}

static void json_row(const mlx_bench_run_t *run, const mlx_bench_result_t *r, size_t number,
                     mlx_text_t *out) {
  mlx_text_puts(out, number ? ",\n  " : "\n  ");
  put_object(run, r, out);
}

static void json_end(mlx_text_t *out) { mlx_text_puts(out, "\n]\n"); }

static void jsonl_row(const mlx_bench_run_t *run, const mlx_bench_result_t *r, size_t number,
                      mlx_text_t *out) {
  (void)number;
  put_object(run, r, out);
  mlx_text_puts(out, "\n");
}

const mlx_bench_format_t *mlx_bench_format(const char *name) {
  static const mlx_bench_format_t formats[] = {{"md", md_begin, md_row, NULL},
                                               {"csv", csv_begin, csv_row, NULL},
                                               {"json", json_begin, json_row, json_end},
                                               {"jsonl", NULL, jsonl_row, NULL}};
  size_t i = 0;
  while (i + 1 < sizeof formats / sizeof *formats && strcmp(name, formats[i].name)) ++i;
  return &formats[i];
}
