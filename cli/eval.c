// mlxcel eval: how well a model foretells a text (perplexity, over chunks as llama.cpp's llama-perplexity
// takes them), and how far it is from another one that read the same text (Kullback-Leibler divergence).
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "artifact/logprobs.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"

#define MAX_TEXT_BYTES (256u << 20)

typedef struct flags {
  mlx_open_options_t open;  // whose context is a chunk
  const char *file, *save, *against;
  int64_t chunks;
  bool json;
} flags_t;

typedef struct eval {
  mlx_engine_t *engine;
  mlx_session_t *session;
  int32_t *ids;  // [chunks][chunk]
  mlx_logprobs_header_t shape;
  float *logits;        // [vocab]
  mlx_writer_t *saved;  // NULL: none
  mlx_map_t map;        // of the reference
  mlx_logprobs_t reference;
  float *its;  // [vocab] a row of the reference; NULL: there is none
  // of every token foretold
  double *surprise, *divergence;
  size_t count, same_best;
} eval_t;

// ----------------------------------------------------------------------------------------------------------
// The text

static mlx_status_t cut_into_chunks(eval_t *e, const int32_t *ids, size_t count, const flags_t *f) {
  int32_t *beginning;
  size_t begins;
  MLX_TRY(mlx_engine_tokenize(e->engine, "", 0, &beginning, &begins));
  const int64_t all = (int64_t)count / e->shape.chunk;
  e->shape.chunks = f->chunks && f->chunks < all ? f->chunks : all;
  mlx_status_t status = NULL;
  if (!all) {
    status = mlx_status_hint(mlx_error(MLX_USAGE, "'%s' has %zu tokens, less than one chunk of %lld", f->file,
                                       count, (long long)e->shape.chunk),
                             "give a longer text, or a smaller -c");
  }
  if (!status) status = mlx_alloc((size_t)(e->shape.chunks * e->shape.chunk), sizeof *e->ids, &e->ids);
  if (!status) {
    memcpy(e->ids, ids, (size_t)(e->shape.chunks * e->shape.chunk) * sizeof *ids);
    for (int64_t i = 0; begins && i < e->shape.chunks; ++i)
      e->ids[i * e->shape.chunk] = beginning[0];  // each chunk is a text
  }
  mlx_engine_free_ids(beginning);
  return status;
}

static mlx_status_t read_text(eval_t *e, const flags_t *f) {
  char *text;
  int32_t *ids;
  size_t length, count;
  MLX_TRY(mlx_read_file(f->file, MAX_TEXT_BYTES, &text, &length));
  mlx_status_t status = mlx_engine_tokenize(e->engine, text, length, &ids, &count);
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
  return mlx_alloc((size_t)e->shape.vocab, sizeof *e->its, &e->its);
}

static mlx_status_t save(eval_t *e, const void *bytes, size_t length) {
  return e->saved ? mlx_writer_write(e->saved, bytes, length) : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Measuring

// The logits become log-probabilities.
static void normalise(float *logits, int64_t count) {
  double largest = -INFINITY, sum = 0;
  for (int64_t i = 0; i < count; ++i) largest = fmax(largest, logits[i]);
  for (int64_t i = 0; i < count; ++i) sum += exp(logits[i] - largest);
  const double all = largest + log(sum);
  for (int64_t i = 0; i < count; ++i) logits[i] = (float)(logits[i] - all);
}

static mlx_status_t compare(eval_t *e) {
  double sum = 0;
  float best = -INFINITY, its_best = -INFINITY;
  int64_t choice = 0, its_choice = 0;
  MLX_TRY(mlx_logprobs_row(&e->reference, e->count, e->its));
  for (int64_t i = 0; i < e->shape.vocab; ++i) {
    const float its = e->its[i];
    if (its > -INFINITY) sum += exp(its) * ((double)its - e->logits[i]);
    if (e->logits[i] > best) best = e->logits[i], choice = i;
    if (its > its_best) its_best = its, its_choice = i;
  }
  e->divergence[e->count] = sum;
  e->same_best += choice == its_choice;
  return NULL;
}

static mlx_status_t measure_chunk(eval_t *e, const int32_t *ids) {
  const int64_t first = e->shape.chunk / 2;
  int32_t next;
  MLX_TRY(mlx_session_rewind(e->session, 0));
  MLX_TRY(mlx_session_read(e->session, ids, (size_t)first, &next));
  for (int64_t i = first; i + 1 < e->shape.chunk; ++i) {
    MLX_TRY(mlx_session_read(e->session, ids + i, 1, &next));
    MLX_TRY(mlx_session_logits(e->session, e->logits, (size_t)e->shape.vocab));
    normalise(e->logits, e->shape.vocab);
    MLX_TRY(save(e, e->logits, (size_t)e->shape.vocab * sizeof *e->logits));
    if (e->its) MLX_TRY(compare(e));
    e->surprise[e->count++] = -(double)e->logits[ids[i + 1]];
  }
  return NULL;
}

typedef struct summary {
  double mean, error;  // of the mean
} summary_t;

static summary_t summarise(const double *values, size_t count) {
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

static mlx_status_t measure(eval_t *e) {
  const size_t most = (size_t)e->shape.chunks * mlx_logprobs_scored_tokens(&e->shape);
  MLX_TRY(mlx_alloc(most, sizeof *e->surprise, &e->surprise));
  MLX_TRY(mlx_alloc(most, sizeof *e->divergence, &e->divergence));
  MLX_TRY(mlx_alloc((size_t)e->shape.vocab, sizeof *e->logits, &e->logits));
  MLX_TRY(mlx_session_create(e->engine, &e->session));
  for (int64_t i = 0; i < e->shape.chunks; ++i) {
    MLX_TRY(measure_chunk(e, e->ids + i * e->shape.chunk));
    mlx_report_progress(mlx_terminal_report(), "chunk %lld of %lld: perplexity %.4f", (long long)i + 1,
                        (long long)e->shape.chunks, exp(summarise(e->surprise, e->count).mean));
  }
  mlx_report_done(mlx_terminal_report());
  return NULL;
}

// The file appears when it is whole.
static mlx_status_t measure_and_save(eval_t *e, const char *path) {
  char *temporary;
  mlx_writer_t writer;
  MLX_TRY(mlx_temporary_path(path, &temporary));
  mlx_status_t status = mlx_writer_open(temporary, &writer);
  if (!status) {
    e->saved = &writer;
    status = save(e, &e->shape, sizeof e->shape);
    if (!status) status = save(e, e->ids, (size_t)(e->shape.chunks * e->shape.chunk) * sizeof *e->ids);
    if (!status) status = measure(e);
    if (!status) status = mlx_writer_close(&writer);
    if (!status) status = mlx_rename(temporary, path);
    if (status) mlx_writer_abandon(&writer);
    e->saved = NULL;
  }
  mlx_free(temporary);
  return status;
}

static void print(eval_t *e, const flags_t *f) {
  const summary_t surprise = summarise(e->surprise, e->count);
  const double perplexity = exp(surprise.mean), error = perplexity * surprise.error;
  const char *format =
      f->json ? "{\n  \"perplexity\": %.6f,\n  \"error\": %.6f,\n  \"tokens\": %zu,\n  \"chunks\": %lld,\n  "
                "\"chunk\": %lld"
              : "perplexity %.4f +/- %.4f over %zu tokens, the second halves of %lld chunks of %lld\n";
  printf(format, perplexity, error, e->count, (long long)e->shape.chunks, (long long)e->shape.chunk);
  if (e->its) {
    const summary_t kl = summarise(e->divergence, e->count);
    qsort(e->divergence, e->count, sizeof *e->divergence, compare_doubles);
    format = f->json ? ",\n  \"kl\": {\"mean\": %.9g, \"error\": %.9g, \"median\": %.9g, \"p99\": %.9g, "
                       "\"max\": %.9g},\n  \"same_best\": %.6f"
                     : "divergence from the reference: mean %.6g +/- %.2g, median %.6g, 99%% below %.6g, "
                       "largest %.6g; the same best token %.2f%%\n";
    printf(format, kl.mean, kl.error, e->divergence[e->count / 2],
           e->divergence[(size_t)(0.99 * (double)(e->count - 1))], e->divergence[e->count - 1],
           (f->json ? 1 : 100) * (double)e->same_best / (double)e->count);
  }
  if (f->json) puts("\n}");
}

static mlx_status_t evaluate(eval_t *e, const flags_t *f) {
  mlx_open_times_t times;
  MLX_TRY(mlx_cli_open(&f->open, &e->engine, &times));
  const mlx_engine_info_t info = mlx_engine_info(e->engine);
  if (info.context < f->open.context) {
    return mlx_error(MLX_USAGE, "chunks of %lld do not fit into the model's context of %lld",
                     (long long)f->open.context, (long long)info.context);
  }
  if (f->open.verbose) mlx_cli_print_device(&info, true);
  mlx_logprobs_header_initialize(info.vocab, f->open.context, 0, &e->shape);
  MLX_TRY(read_text(e, f));
  if (f->against) MLX_TRY(open_reference(e, f->against));
  return f->save ? measure_and_save(e, f->save) : measure(e);
}

mlx_status_t mlx_cli_eval(int argc, char **argv) {
  flags_t f = {.open = {.device = "auto", .kernels = "auto", .context = 512}};
  const mlx_flag_t table[] = {
      {"-m, --model", MLX_FLAG_TEXT, "MODEL",
       "a compiled model (.mlxb), a GGUF file or a Hugging Face directory", &f.open.model, 0, 0},
      {"-f, --file", MLX_FLAG_TEXT, "FILE", "the text", &f.file, 0, 0},
      {"-c, --ctx, --ctx-size", MLX_FLAG_INT, "N",
       "tokens of a chunk, whose second half is foretold (default 512)", &f.open.context, 4, 1 << 20},
      {"--chunks", MLX_FLAG_INT, "N", "the first N chunks only", &f.chunks, 1, INT32_MAX},
      {"--save-logprobs", MLX_FLAG_TEXT, "FILE", "write what the model says, to compare others with", &f.save,
       0, 0},
      {"--kl", MLX_FLAG_TEXT, "FILE", "divergence from what --save-logprobs wrote", &f.against, 0, 0},
      MLX_OPENING_FLAGS(f.open),
      MLX_RARE_OPENING_FLAGS(f.open),
      {"--json", MLX_FLAG_SWITCH, NULL, "one JSON object", &f.json, 0, 0},
      {"-v, --verbose", MLX_FLAG_SWITCH, NULL,
       "say which device and kernels are used, and what became of the weights", &f.open.verbose, 0, 0},
      {0},
  };
  size_t words;
  bool help;
  MLX_TRY(
      mlx_flags_parse("usage: mlxcel eval -m MODEL -f FILE [options]\n\nHow well a model foretells a text, "
                      "and how far it is from another.\n\n"
                      "examples:\n"
                      "  mlxcel eval -m model.gguf -f text.txt --dtype f32 --save-logprobs f32.ref\n"
                      "  mlxcel eval -m model.gguf -f text.txt --dtype bf16 --kl f32.ref",
                      table, argc, argv, NULL, 0, &words, &help));
  if (help) return NULL;
  if (!f.open.model) return mlx_error(MLX_USAGE, "eval wants a model: -m MODEL");
  if (!f.file) return mlx_error(MLX_USAGE, "eval wants a text: -f FILE");
  eval_t e = {0};
  mlx_status_t status = evaluate(&e, &f);
  if (!status) print(&e, &f);
  mlx_session_free(e.session);
  mlx_engine_close(e.engine);
  mlx_unmap(&e.map);
  mlx_free(e.its);
  mlx_free(e.ids);
  mlx_free(e.logits);
  mlx_free(e.surprise);
  mlx_free(e.divergence);
  return status;
}
