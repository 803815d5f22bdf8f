// Prints bench results as a Markdown table, CSV, JSON or JSON lines.
#include "cli/bench_print.h"

#include <stdio.h>
#include <string.h>

#include "base/json_writer.h"
#include "cli/table.h"

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

typedef enum column {
  MODEL,
  SIZE,
  DTYPE,
  DEVICE,
  TEST,
  RATE,
  MICROSECONDS,
  SHARE,
  STEP,
  PAUSE,
  COLUMNS
} column_t;

// The columns of the table. Rows are printed one by one, so the widths come from what all rows share.
typedef struct table {
  char titles[COLUMNS][32], size[32];
  int widths[COLUMNS];
  bool shown[COLUMNS];
  mlx_device_text_t device;
} table_t;

static bool is_right(column_t column) { return column == SIZE || column >= TEST; }

static void fill_table(const mlx_bench_run_t *run, table_t *out) {
  static const char *const titles[COLUMNS] = {"model", "size",     "dtype", "device",  "test",
                                              "t/s",   "us/token", "",      "step ms", "longest pause ms"};
  const bool large = run->info.weight_bytes >= 1u << 30;
  *out =
      (table_t){.widths = {30, 10, 5, 20, 15, 20, 10, 12, 10, 16}, .device = mlx_cli_device_text(&run->info)};
  for (int i = 0; i < COLUMNS; ++i) {
    snprintf(out->titles[i], sizeof out->titles[i], "%s", titles[i]);
    out->shown[i] = i < SHARE || (i == SHARE ? run->bandwidth > 0 : run->has_arrivals);
  }
  snprintf(out->titles[SHARE], sizeof out->titles[SHARE],
           run->bandwidth < 1e12 ? "of %.3g GB/s" : "of %.0f GB/s", run->bandwidth / 1e9);
  snprintf(out->size, sizeof out->size, "%.2f %s",
           (double)run->info.weight_bytes / (large ? 1 << 30 : 1 << 20), large ? "GiB" : "MiB");
  mlx_cell_widen(run->info.source, &out->widths[MODEL]);
  mlx_cell_widen(out->size, &out->widths[SIZE]);
  mlx_cell_widen(run->info.dtype, &out->widths[DTYPE]);
  mlx_cell_widen(out->device.text, &out->widths[DEVICE]);
  mlx_cell_widen(out->titles[SHARE], &out->widths[SHARE]);
  if (run->test_columns > out->widths[TEST]) out->widths[TEST] = run->test_columns;
}

static void put_cell(const table_t *table, column_t column, const char *text, mlx_text_t *out) {
  if (!table->shown[column]) return;
  mlx_text_puts(out, "| ");
  mlx_cell_put(out, text, table->widths[column], is_right(column), '|');
  mlx_text_puts(out, " ");
}

static void md_begin(const mlx_bench_run_t *run, mlx_text_t *out) {
  table_t table;
  fill_table(run, &table);
  for (int i = 0; i < COLUMNS; ++i) put_cell(&table, (column_t)i, table.titles[i], out);
  mlx_text_puts(out, "|\n");
  for (int i = 0; i < COLUMNS; ++i) {
    if (!table.shown[i]) continue;
    mlx_text_puts(out, "| ");
    for (int j = 1; j < table.widths[i]; ++j) mlx_text_puts(out, "-");
    mlx_text_puts(out, is_right((column_t)i) ? ": " : "- ");
  }
  mlx_text_puts(out, "|\n");
}

static void put_number(const table_t *table, column_t column, double number, mlx_text_t *out) {
  char text[64];
  snprintf(text, sizeof text, "%.2f", number);
  put_cell(table, column, text, out);
}

static void md_row(const mlx_bench_run_t *run, const mlx_bench_result_t *r, size_t number, mlx_text_t *out) {
  (void)number;
  char rate[64], share[32];
  table_t table;
  fill_table(run, &table);
  put_cell(&table, MODEL, run->info.source, out);
  put_cell(&table, SIZE, table.size, out);
  put_cell(&table, DTYPE, run->info.dtype, out);
  put_cell(&table, DEVICE, table.device.text, out);
  put_cell(&table, TEST, r->test.name, out);
  snprintf(rate, sizeof rate, "%.2f ± %.2f", r->rate, r->rate_deviation);
  put_cell(&table, RATE, rate, out);
  put_number(&table, MICROSECONDS, r->microseconds, out);
  snprintf(share, sizeof share, "%.1f%%", r->share * 100);
  put_cell(&table, SHARE, r->share > 0 ? share : "-", out);
  put_number(&table, STEP, r->step_seconds * 1e3, out);
  put_number(&table, PAUSE, r->pause_seconds * 1e3, out);
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
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_ONE_LINE);
  for (size_t i = 0; i < count; ++i) {
    switch (fields[i].kind) {
      case TEXT: mlx_json_put_text(&json, fields[i].name, fields[i].text); break;
      case WHOLE: mlx_json_put_number(&json, fields[i].name, "%.0f", fields[i].number); break;
      case REAL: mlx_json_put_number(&json, fields[i].name, "%.6f", fields[i].number); break;
      case UNKNOWN: mlx_json_put_null(&json, fields[i].name); break;
    }
  }
  mlx_json_begin_list(&json, "samples_ns", MLX_JSON_ONE_LINE);
  for (int64_t i = 0; i < run->repetitions; ++i)
    mlx_json_put_number(&json, NULL, "%.0f", r->seconds[i] * 1e9);
  mlx_json_end(&json);
  mlx_json_end(&json);
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
