// mlxcel embed: prints the embeddings of texts.
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
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
  const char *file, *format, *similarity, *prompt, *output;
  bool jsonl, query, document, quiet;
  int64_t dimensions;  // 0: all
} flags_t;

typedef struct embed {
  const flags_t *flags;
  mlx_engine_t *engine;
  mlx_text_list_t list;
  const mlx_text_item_t *texts;  // [count] of |list|
  size_t count, size;
  size_t cut;      // texts that were longer than the model's limit
  int32_t **ids;   // [count] owned
  size_t *counts;  // [count] owned
  float *vectors;  // [count][size] owned
  mlx_meter_t meter;
} embed_t;

// ----------------------------------------------------------------------------------------------------------
// Texts

static mlx_status_t read_texts(embed_t *e, const char **words, size_t count) {
  const flags_t *f = e->flags;
  if (count && f->file) return mlx_error(MLX_USAGE, "the texts are given twice: as words and with --file");
  for (size_t i = 0; i < count; ++i) MLX_TRY(mlx_text_list_add(&e->list, NULL, words[i], strlen(words[i])));
  if (!count) MLX_TRY(mlx_text_list_read(&e->list, f->file, f->jsonl));
  if (f->similarity) MLX_TRY(mlx_text_list_add(&e->list, NULL, f->similarity, strlen(f->similarity)));
  e->texts = e->list.items;
  e->count = e->list.count;
  return e->count ? NULL : mlx_error(MLX_USAGE, "there is no text to embed");
}

// ----------------------------------------------------------------------------------------------------------
// Embedding

// |count|: of the tokens that were kept.
static mlx_status_t count_if_cut(embed_t *e, const mlx_text_t *text, size_t count) {
  const size_t limit = (size_t)mlx_engine_info(e->engine).context;
  int32_t *ids = NULL;
  if (count < limit) return NULL;
  MLX_TRY(mlx_engine_tokenize_within(e->engine, text->data, text->length, false, limit, &ids, &count));
  mlx_engine_free_ids(ids);
  e->cut += count > limit;
  return NULL;
}

static void note_cut(const embed_t *e) {
  if (!e->cut) return;
  mlx_report_note(mlx_terminal_report(), "note: %zu of %zu %s cut after %lld tokens, the model's limit",
                  e->cut, e->count, e->cut == 1 ? "texts was" : "texts were",
                  (long long)mlx_engine_info(e->engine).context);
}

static mlx_status_t tokenize(embed_t *e, size_t index, const char *prompt) {
  const mlx_text_item_t *text = &e->texts[index];
  mlx_text_t whole = {0};
  mlx_text_puts(&whole, prompt);
  mlx_text_append(&whole, text->content, text->length);
  mlx_status_t status = mlx_text_finish(&whole);
  if (!status)
    status = mlx_engine_tokenize_cut(e->engine, whole.data, whole.length, &e->ids[index], &e->counts[index]);
  if (!status) status = count_if_cut(e, &whole, e->counts[index]);
  mlx_text_clear(&whole);
  if (!status && !e->counts[index]) return mlx_error(MLX_USAGE, "text %zu has no tokens", index + 1);
  return status;
}

static bool show_progress(void *user, size_t done) {
  embed_t *e = user;
  mlx_meter_show(&e->meter, done);
  return !mlx_interrupt_requested();
}

static mlx_status_t no_prompt(const embed_t *e, const char *name) {
  mlx_text_t names = {0};
  for (size_t i = 0; mlx_engine_embedding_prompt_name(e->engine, i); ++i)
    mlx_text_printf(&names, "%s%s", i ? ", " : "", mlx_engine_embedding_prompt_name(e->engine, i));
  mlx_status_t status = mlx_status_hint(mlx_error(MLX_USAGE, "the model has no prompt '%s'", name),
                                        names.length ? "its prompts: %s" : "it has no prompts%s",
                                        names.length && names.data ? names.data : "");
  mlx_text_clear(&names);
  return status;
}

// --query and --document of a model without such a prompt put nothing before a text.
static mlx_status_t choose_prompt(const embed_t *e, const char **prompt) {
  const flags_t *f = e->flags;
  const char *name = f->query ? "query" : f->document ? "document" : f->prompt;
  if (!name) return NULL;
  const char *found = *name ? mlx_engine_embedding_prompt(e->engine, name) : "";
  if (!found && f->prompt) return no_prompt(e, name);
  *prompt = found ? found : "";
  return NULL;
}

static mlx_status_t compute(embed_t *e) {
  const flags_t *f = e->flags;
  const mlx_engine_info_t info = mlx_engine_info(e->engine);
  if (info.labels) return mlx_classifier_embeds_nothing();
  const char *prompt = info.default_prompt;
  MLX_TRY(choose_prompt(e, &prompt));
  if (f->dimensions > info.hidden)
    return mlx_error(MLX_USAGE, "--dimensions %lld: an embedding of this model has %lld numbers",
                     (long long)f->dimensions, (long long)info.hidden);
  if (f->open.engine.verbose) mlx_cli_print_device(&info, true);
  e->size = (size_t)(f->dimensions ? f->dimensions : info.hidden);
  MLX_TRY(mlx_alloc(e->count, sizeof *e->ids, &e->ids));
  MLX_TRY(mlx_alloc(e->count, sizeof *e->counts, &e->counts));
  MLX_TRY(mlx_alloc(e->count * e->size, sizeof *e->vectors, &e->vectors));
  for (size_t i = 0; i < e->count; ++i) MLX_TRY(tokenize(e, i, prompt));
  note_cut(e);
  mlx_interrupt_watch();
  mlx_meter_begin(&e->meter, mlx_terminal_report(), "embedding", e->count);
  e->meter.unit = "texts";
  mlx_status_t status = mlx_engine_embed(e->engine, (const int32_t *const *)e->ids, e->counts, e->count,
                                         e->vectors, e->size, show_progress, e);
  mlx_meter_end(&e->meter);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Output

static const float *vector_of(const embed_t *e, size_t index) { return e->vectors + index * e->size; }

static double cosine(const float *a, const float *b, size_t size) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < size; ++i) {
    ab += (double)a[i] * b[i];
    aa += (double)a[i] * a[i];
    bb += (double)b[i] * b[i];
  }
  return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

// As the functions of sentence-transformers: distances are negative, so that more is always closer.
static double compare(const char *how, const float *a, const float *b, size_t size) {
  double dot = 0, squares = 0, distances = 0;
  if (!strcmp(how, "cosine")) return cosine(a, b, size);
  for (size_t i = 0; i < size; ++i) {
    const double difference = (double)a[i] - b[i];
    dot += (double)a[i] * b[i];
    squares += difference * difference;
    distances += fabs(difference);
  }
  return !strcmp(how, "dot") ? dot : !strcmp(how, "euclidean") ? -sqrt(squares) : -distances;
}

// Compares each text with the last one, which is the text of --similarity.
static void put_similarity(const embed_t *e, mlx_text_t *out) {
  const size_t last = e->count - 1;
  const char *how = mlx_engine_info(e->engine).similarity;
  mlx_text_printf(out, "%-9s text\n", how);
  for (size_t i = 0; i < last; ++i)
    mlx_text_printf(out, "%8.6f  %s\n", compare(how, vector_of(e, i), vector_of(e, last), e->size),
                    e->texts[i].content);
}

static void put_numbers(const embed_t *e, size_t index, mlx_text_t *out) {
  for (size_t i = 0; i < e->size; ++i)
    mlx_text_printf(out, "%s%.9g", i ? "," : "", (double)vector_of(e, index)[i]);
}

static void put_json(const embed_t *e, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  mlx_text_t numbers = {0};
  mlx_json_begin_list(&json, NULL, MLX_JSON_LINES);
  for (size_t i = 0; i < e->count; ++i) {
    mlx_text_clear(&numbers);
    mlx_text_puts(&numbers, "[");
    put_numbers(e, i, &numbers);
    mlx_text_puts(&numbers, "]");
    mlx_json_begin_object(&json, NULL, MLX_JSON_ONE_LINE);
    mlx_json_put_uint(&json, "index", i);
    if (e->texts[i].id) mlx_json_put_text(&json, "id", e->texts[i].id);
    mlx_json_put_uint(&json, "tokens", e->counts[i]);
    mlx_json_put_raw(&json, "embedding", numbers.data ? numbers.data : "[]", numbers.length);
    mlx_json_end(&json);
  }
  mlx_json_end(&json);
  mlx_text_puts(out, "\n");
  mlx_text_clear(&numbers);
}

// An id with a comma, a quote or a line break is quoted.
static void put_csv_field(const char *text, mlx_text_t *out) {
  const bool quoted = strpbrk(text, ",\"\r\n");
  if (quoted) mlx_text_puts(out, "\"");
  for (; *text; ++text) mlx_text_printf(out, "%s%c", quoted && *text == '"' ? "\"" : "", *text);
  if (quoted) mlx_text_puts(out, "\"");
}

static void put_csv(const embed_t *e, mlx_text_t *out) {
  for (size_t i = 0; i < e->count; ++i) {
    if (e->texts[i].id)
      put_csv_field(e->texts[i].id, out);
    else
      mlx_text_printf(out, "%zu", i);
    mlx_text_puts(out, ",");
    put_numbers(e, i, out);
    mlx_text_puts(out, "\n");
  }
}

// NumPy's format 1.0: little-endian f32 [count, size]. The header ends at a multiple of 64 bytes.
static void put_npy(const embed_t *e, mlx_text_t *out) {
  char header[128];
  const int length = snprintf(header, sizeof header,
                              "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }", e->count,
                              e->size),
            padded = (10 + length + 1 + 63) / 64 * 64 - 10;
  mlx_text_append(out, "\x93NUMPY\x01\x00", 8);
  mlx_text_append(out, (const char[]){(char)(padded & 0xff), (char)(padded >> 8)}, 2);
  mlx_text_printf(out, "%-*s\n", padded - 1, header);
  mlx_text_append(out, (const char *)e->vectors, e->count * e->size * sizeof *e->vectors);
}

static mlx_status_t print(const embed_t *e) {
  mlx_text_t out = {0};
  const char *format = e->flags->format;
  if (e->flags->similarity)
    put_similarity(e, &out);
  else if (!strcmp(format, "csv"))
    put_csv(e, &out);
  else if (!strcmp(format, "npy"))
    put_npy(e, &out);
  else
    put_json(e, &out);
  return mlx_text_output(e->flags->output, &out);
}

// ----------------------------------------------------------------------------------------------------------
// The verb

static void clear(embed_t *e) {
  for (size_t i = 0; e->ids && i < e->count; ++i) mlx_engine_free_ids(e->ids[i]);
  mlx_text_list_clear(&e->list);
  mlx_free(e->ids);
  mlx_free(e->counts);
  mlx_free(e->vectors);
  mlx_engine_close(e->engine);
}

static mlx_status_t check_flags(const flags_t *f) {
  if (f->query && f->document) return mlx_error(MLX_USAGE, "--query and --document exclude each other");
  if (f->prompt && (f->query || f->document))
    return mlx_error(MLX_USAGE, "--prompt-name and %s exclude each other",
                     f->query ? "--query" : "--document");
  if (f->open.model) return NULL;
  return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel embed MODEL \"TEXT\"");
}

static mlx_status_t embed(void *options, const char **words, size_t count) {
  flags_t *f = options;
  embed_t e = {.flags = f};
  mlx_open_times_t times;
  MLX_TRY(check_flags(f));
  MLX_TRY(mlx_terminal_set_quiet(f->quiet, f->open.engine.verbose));
  MLX_TRY(mlx_open_flags_read(&f->open));
  mlx_status_t status = read_texts(&e, words, count);
  if (!status) status = mlx_cli_open(&f->open, &e.engine, &times);
  if (!status) status = compute(&e);
  if (!status) status = print(&e);
  clear(&e);
  return status;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  return mlx_command_line_run(line, &f, embed);
}

static void initialize(void *options) {
  flags_t *f = options;
  mlx_open_flags_initialize(&f->open);
  f->format = "json";
}

// clang-format off
static const mlx_flag_t flags[] = {
    MLX_MODEL_FLAG(flags_t, open.model),
    MLX_FILE_FLAG(flags_t, file, "texts: one per line, or with .jsonl as with --jsonl; -: stdin"),
    MLX_SWITCH_FLAG(flags_t, jsonl, "--jsonl", "each line is a JSON string, or an object with \"text\" and \"id\""),
    MLX_TEXT_FLAG(flags_t, format, "--format", "json|csv|npy", "output format (default: json)"),
    MLX_TEXT_FLAG(flags_t, output, "-o, --output", "OUT", "write to a file (default: stdout)"),
    MLX_SWITCH_FLAG(flags_t, query, "--query", "put the model's prompt for queries before each text"),
    MLX_SWITCH_FLAG(flags_t, document, "--document", "put the model's prompt for documents before each text"),
    MLX_TEXT_FLAG(flags_t, prompt, "--prompt-name", "NAME",
                  "put the model's prompt NAME before each text; \"\": none"),
    MLX_INT_FLAG(flags_t, dimensions, "--dimensions", "N",
                 "keep the first N numbers of an embedding (default: all)", 1, 1 << 20),
    MLX_TEXT_FLAG(flags_t, similarity, "--similarity", "OTHER",
                  "print the similarity of each text to the text OTHER"),
    MLX_OPEN_FLAGS(flags_t, open),
    MLX_INT_FLAG(flags_t, open.engine.sequences, "--parallel", "N",
                 "most texts of a step (default: 64 for an encoder, else 1)", 1, 4096),
    MLX_GPU_FLAG(flags_t, open),
    MLX_RARE_OPEN_FLAGS(flags_t, open),
    MLX_QUIET_FLAG(flags_t, quiet),
    MLX_VERBOSE_FLAG(flags_t, open.engine.verbose),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_embed = {
    .name = "embed",
    .summary = "print the embeddings of texts",
    .usage =
        "usage: mlxcel embed MODEL [TEXT...] [options]\n\n"
        "Prints the embeddings of texts: the words after the model, the lines of a file, or those of stdin. "
        "A text that is longer than the model's limit is cut, as sentence-transformers does it.\n\n"
        "examples:\n"
        "  mlxcel embed MODEL \"a text\" \"another text\"\n"
        "  mlxcel embed MODEL -f texts.jsonl --document --format npy -o vectors.npy\n"
        "  mlxcel embed MODEL -f texts.txt --similarity \"a question\"",
    .model_word = true,
    .flags = flags,
    .options_size = sizeof(flags_t),
    .initialize = initialize,
    .run = run,
};
