// mlxcel eval: measures the perplexity of a text, over chunks like llama.cpp's llama-perplexity, and the
// Kullback-Leibler divergence from a reference run on the same text. Tokens are scored as they are read, at
// the speed of prefill; --decode-path reads them one by one instead.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "artifact/logprobs.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json_writer.h"
#include "base/leftover.h"
#include "base/memory.h"
#include "base/meter.h"
#include "base/text.h"
#include "cli/open.h"
#include "cli/parse.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "runtime/rooms.h"

#define MAX_TEXT_BYTES (256u << 20)

typedef struct flags {
  mlx_open_flags_t open;  // its context is the chunk length
  const char *file, *save, *against;
  int64_t chunks;
  bool decode_path, no_special, json, quiet;
} flags_t;

typedef struct eval {
  mlx_engine_t *engine;
  mlx_session_t *session;
  int32_t *ids;  // [chunks][chunk]
  mlx_logprobs_header_t shape;
  bool decode_path;      // one step per scored token
  float *logits;         // [vocab] log-probabilities of the current token
  float *logprobs;       // [chunks][scored] log-probabilities of the scored tokens
  mlx_writer_t *writer;  // of --save-logprobs; NULL if not given
  mlx_map_t map;         // of the reference file
  mlx_logprobs_t reference;
  float *expected;               // [vocab] the reference's log-probabilities of a token; NULL without --kl
  double *nll;                   // [count] negative log-likelihood of each scored token
  double *divergence;            // [count]
  size_t count, same_top_token;  // scored tokens; those where model and reference agree on the best token
  size_t rows;                   // tokens whose log-probabilities were saved or compared
  double start, seconds;         // of reading and scoring all chunks: when, and how long
} eval_t;

// ----------------------------------------------------------------------------------------------------------
// The text

// Copies the first chunks of |ids|. Each chunk is evaluated as a separate text, so its first token becomes
// the BOS token.
static mlx_status_t cut_into_chunks(eval_t *e, const int32_t *ids, size_t count, const flags_t *f) {
  int32_t *bos;
  size_t bos_count;
  MLX_TRY(mlx_engine_tokenize(e->engine, "", 0, &bos, &bos_count));
  const int64_t all = (int64_t)count / e->shape.chunk;
  e->shape.chunks = f->chunks && f->chunks < all ? f->chunks : all;
  mlx_status_t status = NULL;
  if (!all) {
    status =
        mlx_status_hint(mlx_error(MLX_USAGE, "'%s' has %zu %s, less than one chunk of %lld", f->file, count,
                                  mlx_plural(count, "token", "tokens"), (long long)e->shape.chunk),
                        "give a longer text, or a smaller -c");
  }
  if (!status) status = mlx_alloc((size_t)(e->shape.chunks * e->shape.chunk), sizeof *e->ids, &e->ids);
  if (!status) {
    memcpy(e->ids, ids, (size_t)(e->shape.chunks * e->shape.chunk) * sizeof *ids);
    for (int64_t i = 0; bos_count && i < e->shape.chunks; ++i) e->ids[i * e->shape.chunk] = bos[0];
  }
  mlx_engine_free_ids(bos);
  return status;
}

static mlx_status_t read_text(eval_t *e, const flags_t *f) {
  char *text;
  int32_t *ids;
  size_t length, count;
  MLX_TRY(mlx_read_input(f->file, MAX_TEXT_BYTES, &text, &length));
  mlx_status_t status = f->no_special
                            ? mlx_engine_tokenize_plain(e->engine, text, length, true, SIZE_MAX, &ids, &count)
                            : mlx_engine_tokenize(e->engine, text, length, &ids, &count);
  mlx_free(text);
  if (status) return status;
  status = cut_into_chunks(e, ids, count, f);
  mlx_engine_free_ids(ids);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Reference files

static mlx_status_t open_reference(eval_t *e, const char *path) {
  MLX_TRY(mlx_map_file(path, &e->map));
  MLX_TRY(mlx_logprobs_read(path, e->map.data, e->map.size, &e->reference));
  MLX_TRY(mlx_logprobs_check(&e->reference, &e->shape, e->ids));
  return mlx_alloc((size_t)e->shape.vocab, sizeof *e->expected, &e->expected);
}

static mlx_status_t save(eval_t *e, const void *bytes, size_t length) {
  return e->writer ? mlx_writer_write(e->writer, bytes, length) : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Measuring

// Stores the log-softmax of |logits|.
static void log_softmax(const float *logits, int64_t count, float *out) {
  double largest = -INFINITY, sum = 0;
  for (int64_t i = 0; i < count; ++i) largest = fmax(largest, logits[i]);
  for (int64_t i = 0; i < count; ++i) sum += exp(logits[i] - largest);
  const double log_sum = largest + log(sum);
  for (int64_t i = 0; i < count; ++i) out[i] = (float)(logits[i] - log_sum);
}

// Adds the divergence of the current token's distribution from the reference's.
static mlx_status_t compare(eval_t *e) {
  double sum = 0;
  float best = -INFINITY, expected_best = -INFINITY;
  int64_t best_id = 0, expected_id = 0;
  MLX_TRY(mlx_logprobs_row(&e->reference, e->rows, e->expected));
  for (int64_t i = 0; i < e->shape.vocab; ++i) {
    const float expected = e->expected[i];
    if (expected > -INFINITY) sum += exp(expected) * ((double)expected - e->logits[i]);
    if (e->logits[i] > best) best = e->logits[i], best_id = i;
    if (expected > expected_best) expected_best = expected, expected_id = i;
  }
  e->divergence[e->rows] = sum;
  e->same_top_token += best_id == expected_id;
  return NULL;
}

// Saves the log-probabilities of the next token, or compares them with the reference's.
static mlx_status_t on_logits(void *user, size_t index, const float *logits) {
  eval_t *e = user;
  (void)index;
  log_softmax(logits, e->shape.vocab, e->logits);
  MLX_TRY(save(e, e->logits, (size_t)e->shape.vocab * sizeof *e->logits));
  if (e->expected) MLX_TRY(compare(e));
  ++e->rows;
  return NULL;
}

// The second half of a chunk is scored; the first half is its context.
static size_t context_of(const eval_t *e) { return (size_t)e->shape.chunk / 2; }

static bool needs_logits(const eval_t *e) { return e->writer || e->expected; }

typedef struct summary {
  double mean, error;  // error: standard error of the mean
} summary_t;

static summary_t summarize(const double *values, size_t count) {
  double sum = 0, squares = 0;
  for (size_t i = 0; i < count; ++i) sum += values[i];
  const double mean = sum / (double)count;
  for (size_t i = 0; i < count; ++i) squares += (values[i] - mean) * (values[i] - mean);
  return (summary_t){mean, count > 1 ? sqrt(squares / (double)(count - 1) / (double)count) : 0};
}

static int compare_doubles(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return left < right ? -1 : left > right;
}

// Adds the scored tokens of a chunk.
static void on_chunk(void *user, size_t index) {
  eval_t *e = user;
  const size_t scored = mlx_logprobs_scored_tokens(&e->shape);
  for (size_t i = 0; i < scored; ++i) e->nll[e->count++] = -(double)e->logprobs[index * scored + i];
  const double done = (double)index + 1, left = (double)e->shape.chunks - done;
  mlx_report_progress(mlx_terminal_report(), "chunk %zu of %lld: perplexity %.4f%s", index + 1,
                      (long long)e->shape.chunks, exp(summarize(e->nll, e->count).mean),
                      mlx_left_show((mlx_seconds() - e->start) * left / done).text);
}

// Reads the scored tokens of all chunks one by one.
static mlx_status_t decode_chunks(eval_t *e) {
  const size_t context = context_of(e), scored = mlx_logprobs_scored_tokens(&e->shape);
  for (size_t chunk = 0; chunk < (size_t)e->shape.chunks; ++chunk) {
    const int32_t *ids = e->ids + chunk * (size_t)e->shape.chunk;
    int32_t next;
    MLX_TRY(mlx_session_rewind(e->session, 0));
    MLX_TRY(mlx_session_read(e->session, ids, context, &next));
    for (size_t i = 0; i < scored; ++i) {
      MLX_TRY(mlx_session_score(e->session, ids + context + i, 2, e->logprobs + chunk * scored + i,
                                needs_logits(e) ? on_logits : NULL, e));
    }
    on_chunk(e, chunk);
  }
  return NULL;
}

static mlx_status_t measure(eval_t *e) {
  const size_t capacity = (size_t)e->shape.chunks * mlx_logprobs_scored_tokens(&e->shape);
  MLX_TRY(mlx_alloc(capacity, sizeof *e->nll, &e->nll));
  MLX_TRY(mlx_alloc(capacity, sizeof *e->divergence, &e->divergence));
  MLX_TRY(mlx_alloc((size_t)e->shape.vocab, sizeof *e->logits, &e->logits));
  MLX_TRY(mlx_alloc(capacity, sizeof *e->logprobs, &e->logprobs));
  MLX_TRY(mlx_session_create(e->engine, &e->session));
  const mlx_texts_t texts = {.ids = e->ids,
                             .count = (size_t)e->shape.chunks,
                             .length = (size_t)e->shape.chunk,
                             .context = context_of(e),
                             .logprobs = e->logprobs,
                             .on_logits = needs_logits(e) ? on_logits : NULL,
                             .on_text = on_chunk,
                             .user = e};
  e->start = mlx_seconds();
  MLX_TRY(e->decode_path ? decode_chunks(e) : mlx_session_score_texts(e->session, &texts));
  e->seconds = mlx_seconds() - e->start;
  mlx_report_done(mlx_terminal_report());
  return NULL;
}

// Writes to a temporary file and renames it at the end.
static mlx_status_t measure_and_save(eval_t *e, const char *path) {
  char *temporary;
  mlx_writer_t writer;
  MLX_TRY(mlx_temporary_path(path, &temporary));
  mlx_leftover_remove(path);
  mlx_status_t status = mlx_writer_open(temporary, &writer);
  if (!status) {
    e->writer = &writer;
    status = save(e, &e->shape, sizeof e->shape);
    if (!status) status = save(e, e->ids, (size_t)(e->shape.chunks * e->shape.chunk) * sizeof *e->ids);
    if (!status) status = measure(e);
    if (!status) status = mlx_writer_close(&writer);
    if (!status) status = mlx_rename(temporary, path);
    if (status) mlx_writer_abandon(&writer);
    e->writer = NULL;
  }
  mlx_free(temporary);
  return status;
}

// The numbers of a result. |kl| to |same_best| are only known with a reference.
typedef struct result {
  double perplexity, error;
  summary_t kl;
  double median, p99, largest, same_best;
} result_t;

static result_t results_of(eval_t *e) {
  const summary_t nll = summarize(e->nll, e->count);
  result_t r = {.perplexity = exp(nll.mean)};
  r.error = r.perplexity * nll.error;
  if (!e->expected) return r;
  r.kl = summarize(e->divergence, e->count);
  qsort(e->divergence, e->count, sizeof *e->divergence, compare_doubles);
  r.median = e->divergence[e->count / 2];
  r.p99 = e->divergence[(size_t)(0.99 * (double)(e->count - 1))];
  r.largest = e->divergence[e->count - 1];
  r.same_best = (double)e->same_top_token / (double)e->count;
  return r;
}

// Tokens read per second. The last token of a chunk is a target only.
static double rate_of(const eval_t *e) {
  const double tokens = (double)e->shape.chunks * (double)(e->shape.chunk - 1);
  return e->seconds > 0 ? tokens / e->seconds : 0;
}

static mlx_status_t print_json(const eval_t *e, const result_t *r) {
  mlx_text_t text = {0};
  mlx_json_writer_t json = {.out = &text};
  mlx_json_begin_object(&json, NULL, MLX_JSON_LINES);
  mlx_json_put_number(&json, "perplexity", "%.6f", r->perplexity);
  mlx_json_put_number(&json, "error", "%.6f", r->error);
  mlx_json_put_uint(&json, "tokens", e->count);
  mlx_json_put_int(&json, "chunks", e->shape.chunks);
  mlx_json_put_int(&json, "chunk", e->shape.chunk);
  mlx_json_put_number(&json, "tokens_per_second", "%.3f", rate_of(e));
  if (e->expected) {
    mlx_json_begin_object(&json, "kl", MLX_JSON_ONE_LINE);
    mlx_json_put_number(&json, "mean", "%.9g", r->kl.mean);
    mlx_json_put_number(&json, "error", "%.9g", r->kl.error);
    mlx_json_put_number(&json, "median", "%.9g", r->median);
    mlx_json_put_number(&json, "p99", "%.9g", r->p99);
    mlx_json_put_number(&json, "max", "%.9g", r->largest);
    mlx_json_end(&json);
    mlx_json_put_number(&json, "same_best", "%.6f", r->same_best);
  }
  mlx_json_end(&json);
  mlx_status_t status = mlx_text_finish(&text);
  if (!status) puts(text.data);
  mlx_text_clear(&text);
  return status;
}

// A perplexity or a divergence that is not a number is no result.
static mlx_status_t check_finite(const eval_t *e, const result_t *r) {
  double worst = 0;
  for (size_t i = 0; i < e->count; ++i) worst = fmax(worst, e->nll[i]);
  if (isfinite(r->perplexity) && isfinite(r->error) && isfinite(r->kl.mean) && isfinite(r->kl.error))
    return NULL;
  return mlx_status_hint(
      mlx_error(MLX_INVALID_INPUT, "the %s is not finite: a token of the text has the log-probability %g",
                isfinite(r->perplexity) && isfinite(r->error) ? "KL divergence" : "perplexity", -worst),
      "the weights are damaged, or the text is not one for this model: fetch the model again, or use --dtype "
      "f32");
}

static mlx_status_t print(eval_t *e, const flags_t *f) {
  const result_t r = results_of(e);
  MLX_TRY(check_finite(e, &r));
  const long long chunks = (long long)e->shape.chunks, chunk = (long long)e->shape.chunk;
  if (f->json) return print_json(e, &r);
  printf("perplexity %.4f +/- %.4f over %zu %s, the second %s of %lld %s of %lld\n", r.perplexity, r.error,
         e->count, mlx_plural(e->count, "token", "tokens"), mlx_plural((uint64_t)chunks, "half", "halves"),
         chunks, mlx_plural((uint64_t)chunks, "chunk", "chunks"), chunk);
  if (e->expected) {
    printf(
        "KL divergence from the reference: mean %.6g +/- %.2g, median %.6g, 99%% below %.6g, "
        "largest %.6g; same top token %.2f%%\n",
        r.kl.mean, r.kl.error, r.median, r.p99, r.largest, 100 * r.same_best);
  }
  mlx_terminal_note("read %lld %s of %lld tokens in %.2f s, %.1f tok/s%s\n", chunks,
                    mlx_plural((uint64_t)chunks, "chunk", "chunks"), chunk, e->seconds, rate_of(e),
                    e->decode_path ? " (decode path)" : "");
  return NULL;
}

static mlx_status_t evaluate(eval_t *e, const flags_t *f) {
  mlx_open_times_t times;
  MLX_TRY(mlx_cli_open(&f->open, &e->engine, &times));
  const mlx_engine_info_t info = mlx_engine_info(e->engine);
  if (info.context < f->open.context) {
    return mlx_error(MLX_USAGE, "chunks of %lld tokens do not fit into the context of %lld",
                     (long long)f->open.context, (long long)info.context);
  }
  if (f->open.engine.verbose) mlx_cli_print_device(&info, true);
  e->decode_path = f->decode_path;
  mlx_logprobs_header_initialize(info.vocab, f->open.context, 0, &e->shape);
  MLX_TRY(read_text(e, f));
  if (f->against) MLX_TRY(open_reference(e, f->against));
  return f->save ? measure_and_save(e, f->save) : measure(e);
}

static void initialize(void *options) {
  flags_t *f = options;
  mlx_open_flags_initialize(&f->open);
  f->open.context = 512;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  size_t words;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, NULL, 0, &words, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, f.open.engine.verbose));
  if (!f.open.model)
    return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel eval MODEL -f FILE");
  if (!f.file) return mlx_status_hint(mlx_error(MLX_USAGE, "no text was given"), "mlxcel eval MODEL -f FILE");
  MLX_TRY(mlx_open_flags_read(&f.open));
  eval_t e = {0};
  mlx_status_t status = evaluate(&e, &f);
  if (!status) status = print(&e, &f);
  mlx_session_free(e.session);
  mlx_engine_close(e.engine);
  mlx_unmap(&e.map);
  mlx_free(e.expected);
  mlx_free(e.ids);
  mlx_free(e.logits);
  mlx_free(e.logprobs);
  mlx_free(e.nll);
  mlx_free(e.divergence);
  return status;
}

// clang-format off
static const mlx_flag_t flags[] = {
    MLX_MODEL_FLAG(flags_t, open.model),
    MLX_FILE_FLAG(flags_t, file, "text to evaluate"),
    MLX_CONTEXT_FLAG(flags_t, open.context,
                     "tokens per chunk; the second half of each chunk is scored (default: 512)", 4, 1 << 20),
    MLX_INT_FLAG(flags_t, chunks, "--chunks", "N",
                 "evaluate only the first N chunks (default: all)", 1, INT32_MAX),
    MLX_SWITCH_FLAG(flags_t, decode_path, "--decode-path",
                    "score the tokens one step at a time, as decode computes them (slow)"),
    MLX_NO_SPECIAL_FLAG(flags_t, no_special),
    MLX_TEXT_FLAG(flags_t, save, "--save-logprobs", "FILE",
                  "write the log-probabilities, as a reference for --kl"),
    MLX_TEXT_FLAG(flags_t, against, "--kl", "FILE",
                  "print the KL divergence from a file that --save-logprobs wrote"),
    MLX_OPEN_FLAGS(flags_t, open),
    MLX_INT_FLAG(flags_t, open.engine.sequences, "--parallel", "N",
                 "sequences that the KV cache has room for (default: 1)", 1, 4096),
    MLX_GPU_FLAG(flags_t, open),
    MLX_RARE_OPEN_FLAGS(flags_t, open),
    MLX_JSON_FLAG(flags_t, json),
    MLX_QUIET_FLAG(flags_t, quiet),
    MLX_VERBOSE_FLAG(flags_t, open.engine.verbose),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_eval = {
    .name = "eval",
    .summary = "measure perplexity",
    .usage =
        "usage: mlxcel eval MODEL -f FILE [options]\n\n"
        "Measures the perplexity of a text, and the KL divergence from a reference model.\n\n"
        "examples:\n"
        "  mlxcel eval model.gguf -f text.txt --dtype f32 --save-logprobs f32.ref\n"
        "  mlxcel eval model.gguf -f text.txt --dtype bf16 --kl f32.ref",
    .model_word = true,
    .flags = flags,
    .options_size = sizeof(flags_t),
    .initialize = initialize,
    .run = run,
};
