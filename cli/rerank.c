// mlxcel rerank: orders documents by their relevance to a query.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_writer.h"
#include "base/memory.h"
#include "base/meter.h"
#include "cli/interrupt.h"
#include "cli/open.h"
#include "cli/parse.h"
#include "cli/terminal.h"
#include "cli/texts.h"
#include "cli/verbs.h"
#include "runtime/rooms.h"

typedef struct flags {
  mlx_open_flags_t open;
  const char *file, *format, *output, *instruction;
  bool jsonl, raw, quiet;
  int64_t top;  // 0: all
} flags_t;

typedef struct ranked {
  size_t index;
  float logit, score;
} ranked_t;

typedef struct rerank {
  const flags_t *flags;
  const char *query;
  mlx_engine_t *engine;
  mlx_text_list_t documents;
  ranked_t *order;  // [documents.count] owned, best first
  mlx_meter_t meter;
} rerank_t;

static mlx_status_t read_documents(rerank_t *r, const char **words, size_t count) {
  const flags_t *f = r->flags;
  if (!count)
    return mlx_status_hint(mlx_error(MLX_USAGE, "no query was given"),
                           "mlxcel rerank MODEL \"QUERY\" \"DOCUMENT\"...");
  r->query = words[0];
  if (count > 1 && f->file)
    return mlx_error(MLX_USAGE, "the documents are given twice: as words and with --file");
  for (size_t i = 1; i < count; ++i)
    MLX_TRY(mlx_text_list_add(&r->documents, NULL, words[i], strlen(words[i])));
  if (count == 1) MLX_TRY(mlx_text_list_read(&r->documents, f->file, f->jsonl));
  return r->documents.count ? NULL : mlx_error(MLX_USAGE, "there is no document to rank");
}

// ----------------------------------------------------------------------------------------------------------
// Scores

static bool show_progress(void *user, size_t done) {
  rerank_t *r = user;
  mlx_meter_show(&r->meter, done);
  return !mlx_interrupt_requested();
}

static int compare(const void *a, const void *b) {
  const ranked_t *x = a, *y = b;
  if (x->logit > y->logit || x->logit < y->logit) return x->logit > y->logit ? -1 : 1;
  return x->index < y->index ? -1 : 1;
}

// Sorted by logit: sigmoids close to 1 can be equal although their logits differ.
static mlx_status_t fill_order(rerank_t *r, float *logits) {
  const size_t count = r->documents.count;
  MLX_TRY(mlx_alloc(count, sizeof *r->order, &r->order));
  for (size_t i = 0; i < count; ++i) r->order[i] = (ranked_t){.index = i, .logit = logits[i]};
  if (!r->flags->raw) mlx_engine_activate_scores(r->engine, logits, count);
  for (size_t i = 0; i < count; ++i) r->order[i].score = logits[i];
  qsort(r->order, count, sizeof *r->order, compare);
  return NULL;
}

static mlx_status_t compute(rerank_t *r) {
  const size_t count = r->documents.count;
  mlx_text_pair_t *pairs = NULL;
  float *logits = NULL;
  const mlx_engine_info_t info = mlx_engine_info(r->engine);
  MLX_TRY(mlx_engine_check_reranker(r->engine));
  if (r->flags->open.engine.verbose) mlx_cli_print_device(&info, true);
  mlx_status_t status = mlx_alloc(count, sizeof *pairs, &pairs);
  if (!status) status = mlx_alloc(count, sizeof *logits, &logits);
  for (size_t i = 0; i < count && !status; ++i) {
    const mlx_text_item_t *document = &r->documents.items[i];
    pairs[i] = (mlx_text_pair_t){.first = r->query,
                                 .second = document->content,
                                 .first_length = strlen(r->query),
                                 .second_length = document->length,
                                 .instruction = r->flags->instruction};
  }
  mlx_interrupt_watch();
  mlx_meter_begin(&r->meter, mlx_terminal_report(), "ranking", count);
  r->meter.unit = "documents";
  if (!status) status = mlx_engine_classify(r->engine, pairs, count, true, logits, show_progress, r);
  mlx_meter_end(&r->meter);
  if (!status) status = fill_order(r, logits);
  mlx_free(pairs);
  mlx_free(logits);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Output

static size_t count_shown(const rerank_t *r) {
  const size_t top = (size_t)r->flags->top;
  return top && top < r->documents.count ? top : r->documents.count;
}

static void put_table(const rerank_t *r, mlx_text_t *out) {
  mlx_text_puts(out, "score      index  text\n");
  for (size_t i = 0; i < count_shown(r); ++i) {
    const ranked_t *ranked = &r->order[i];
    const mlx_text_item_t *document = &r->documents.items[ranked->index];
    char number[24];
    snprintf(number, sizeof number, "%zu", ranked->index);
    mlx_text_printf(out, "%-9.6f  %-5s  %s\n", (double)ranked->score, document->id ? document->id : number,
                    document->content);
  }
}

static void put_json(const rerank_t *r, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_list(&json, NULL, MLX_JSON_LINES);
  for (size_t i = 0; i < count_shown(r); ++i) {
    const ranked_t *ranked = &r->order[i];
    const mlx_text_item_t *document = &r->documents.items[ranked->index];
    mlx_json_begin_object(&json, NULL, MLX_JSON_ONE_LINE);
    mlx_json_put_uint(&json, "index", ranked->index);
    if (document->id) mlx_json_put_text(&json, "id", document->id);
    mlx_json_put_number(&json, "score", "%.9g", (double)ranked->score);
    mlx_json_put_bytes(&json, "text", document->content, document->length);
    mlx_json_end(&json);
  }
  mlx_json_end(&json);
  mlx_text_puts(out, "\n");
}

static mlx_status_t print(const rerank_t *r) {
  mlx_text_t out = {0};
  if (!strcmp(r->flags->format, "json"))
    put_json(r, &out);
  else
    put_table(r, &out);
  return mlx_text_output(r->flags->output, &out);
}

// ----------------------------------------------------------------------------------------------------------
// The verb

static mlx_status_t rerank(void *options, const char **words, size_t count) {
  flags_t *f = options;
  rerank_t r = {.flags = f};
  mlx_open_times_t times;
  if (!f->open.model)
    return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"),
                           "mlxcel rerank MODEL \"QUERY\" \"DOCUMENT\"...");
  MLX_TRY(mlx_terminal_set_quiet(f->quiet, f->open.engine.verbose));
  MLX_TRY(mlx_open_flags_read(&f->open));
  mlx_status_t status = read_documents(&r, words, count);
  if (!status) status = mlx_cli_open(&f->open, &r.engine, &times);
  if (!status) status = compute(&r);
  if (!status) status = print(&r);
  mlx_text_list_clear(&r.documents);
  mlx_free(r.order);
  mlx_engine_close(r.engine);
  return status;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  return mlx_command_line_run(line, &f, rerank);
}

static void initialize(void *options) {
  flags_t *f = options;
  mlx_open_flags_initialize(&f->open);
  f->format = "table";
}

// clang-format off
static const mlx_flag_t flags[] = {
    MLX_MODEL_FLAG(flags_t, open.model),
    MLX_FILE_FLAG(flags_t, file, "documents: one per line, or with .jsonl as with --jsonl; -: stdin"),
    MLX_SWITCH_FLAG(flags_t, jsonl, "--jsonl", "each line is a JSON string, or an object with \"text\" and \"id\""),
    MLX_INT_FLAG(flags_t, top, "--top", "N", "print the best N documents (default: all)", 1, 1 << 30),
    MLX_TEXT_FLAG(flags_t, instruction, "--instruction", "TEXT",
                  "the task, for rerankers that read one, as Qwen3-Reranker (default: the model's)"),
    MLX_TEXT_FLAG(flags_t, format, "--format", "table|json", "output format (default: table)"),
    MLX_TEXT_FLAG(flags_t, output, "-o, --output", "OUT", "write to a file (default: stdout)"),
    MLX_SWITCH_FLAG(flags_t, raw, "--raw", "print scores before the model's activation (sigmoid)"),
    MLX_OPEN_FLAGS(flags_t, open),
    MLX_INT_FLAG(flags_t, open.engine.sequences, "--parallel", "N",
                 "most documents of a step (default: 64)", 1, 4096),
    MLX_GPU_FLAG(flags_t, open),
    MLX_RARE_OPEN_FLAGS(flags_t, open),
    MLX_QUIET_FLAG(flags_t, quiet),
    MLX_VERBOSE_FLAG(flags_t, open.engine.verbose),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_rerank = {
    .name = "rerank",
    .summary = "order documents by their relevance to a query",
    .usage =
        "usage: mlxcel rerank MODEL QUERY [DOCUMENT...] [options]\n\n"
        "Scores each document for a query with a cross-encoder or a decoder such as Qwen3-Reranker, and "
        "prints the best first. The documents are the words after the query, the lines of a file, or those "
        "of stdin. A pair that is longer than the model's limit is cut as sentence-transformers does it: the "
        "longer text first, for a decoder the document's end.\n\n"
        "examples:\n"
        "  mlxcel rerank MODEL \"a question\" \"a text\" \"another text\"\n"
        "  mlxcel rerank MODEL \"a question\" -f texts.jsonl --top 10 --format json",
    .model_word = true,
    .flags = flags,
    .options_size = sizeof(flags_t),
    .initialize = initialize,
    .run = run,
};
