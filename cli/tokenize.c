// mlxcel tokenize and mlxcel detokenize: convert between text and token ids with a model's tokenizer. They
// compile nothing and read no weights.
#include "open/locate.h"
#include "open/texts.h"
#include "tokenizer/tokenizer.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "cli/parse.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

#define MAX_TEXT (256u << 20)  // bytes

static mlx_status_t print(mlx_text_t *text) {
  MLX_TRY(mlx_text_finish(text));
  return fwrite(text->data ? text->data : "", 1, text->length, stdout) == text->length ? NULL
                                                                                       : mlx_stdout_error();
}

// ----------------------------------------------------------------------------------------------------------
// tokenize

typedef struct tokens {
  int32_t *ids;  // owned
  size_t count;
  size_t before;   // special tokens that the tokenizer added before the text
  size_t of_text;  // tokens of the text itself
} tokens_t;

// Encodes the text without special tokens and, unless |bare|, with them. The position of the first encoding
// in the second one gives |before|.
static mlx_status_t encode(const mlx_tokenizer_t *tokenizer, const char *text, size_t length, bool bare,
                           tokens_t *out) {
  int32_t *alone;
  MLX_TRY(mlx_tokenizer_encode(tokenizer, text, length, false, &alone, &out->of_text));
  out->ids = alone;
  out->count = out->of_text;
  out->before = 0;
  if (bare) return NULL;
  mlx_status_t status = mlx_tokenizer_encode(tokenizer, text, length, true, &out->ids, &out->count);
  if (!status) {
    const size_t max_before = out->count >= out->of_text ? out->count - out->of_text : 0;
    while (out->before < max_before && memcmp(out->ids + out->before, alone, out->of_text * sizeof *alone))
      ++out->before;
  }
  mlx_free(alone);
  return status;
}

// If |piece| is at *inout_at in the text, sets |start| and advances *inout_at past it. Some tokenizers add a
// space before the text, so the first piece may have a leading space that the text lacks.
static bool match_piece(const char *text, size_t length, const mlx_text_t *piece, size_t *start,
                        size_t *inout_at) {
  for (size_t skip = 0; skip <= 1; ++skip) {
    if (skip && (*inout_at || !piece->length || piece->data[0] != ' ')) return false;
    const size_t size = piece->length - skip;
    if (size > length - *inout_at || memcmp(text + *inout_at, piece->data + skip, size)) continue;
    *start = *inout_at;
    *inout_at += size;
    return true;
  }
  return false;
}

// One JSON object per token. If the tokenizer normalizes the text (to lower case, for example), tokens may
// have no position in it; start and end are null from there on.
static void put_objects(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                        const tokens_t *tokens, mlx_text_t *out) {
  size_t at = 0, start = 0;
  bool matching = true;
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_list(&json, NULL, MLX_JSON_LINES);
  for (size_t i = 0; i < tokens->count; ++i) {
    const bool of_text = i >= tokens->before && i < tokens->before + tokens->of_text;
    mlx_text_t piece = {0};
    mlx_tokenizer_piece(tokenizer, tokens->ids[i], false, false, &piece);
    mlx_json_begin_object(&json, NULL, MLX_JSON_ONE_LINE);
    mlx_json_put_int(&json, "id", tokens->ids[i]);
    mlx_json_put_bytes(&json, "piece", piece.data ? piece.data : "", piece.length);
    if (of_text && matching) matching = piece.length && match_piece(text, length, &piece, &start, &at);
    if (of_text && matching) {
      mlx_json_put_uint(&json, "start", start);
      mlx_json_put_uint(&json, "end", at);
    } else {
      mlx_json_put_text(&json, "start", NULL);
      mlx_json_put_text(&json, "end", NULL);
    }
    mlx_json_end(&json);
    mlx_text_clear(&piece);
  }
  mlx_json_end(&json);
  mlx_text_puts(out, "\n");
}

typedef struct flags {
  const char *model, *prompt, *file;
  bool no_bos, no_special, escape, no_escape, json, count;
} flags_t;

static mlx_status_t open_tokenizer(const char *model, mlx_tokenizer_t **out_tokenizer) {
  char *path;
  MLX_TRY(mlx_locate(model, mlx_terminal_report(), &path));
  mlx_status_t status = mlx_open_tokenizer(path, out_tokenizer);
  mlx_free(path);
  return status;
}

static mlx_status_t tokenize(const flags_t *f, const char *text, size_t length) {
  mlx_tokenizer_t *tokenizer;
  tokens_t tokens = {0};
  mlx_text_t out = {0};
  MLX_TRY(open_tokenizer(f->model, &tokenizer));
  mlx_text_t marked = {0};
  mlx_status_t status = f->no_special ? mlx_tokenizer_mark(tokenizer, text, length, &marked) : NULL;
  if (!status)
    status = encode(tokenizer, f->no_special ? marked.data : text, f->no_special ? marked.length : length,
                    f->no_bos, &tokens);
  mlx_text_clear(&marked);
  if (!status && f->count) {
    mlx_text_printf(&out, "%zu\n", tokens.count);
  } else if (!status && f->json) {
    put_objects(tokenizer, text, length, &tokens, &out);
  } else if (!status) {
    for (size_t i = 0; i < tokens.count; ++i) mlx_text_printf(&out, "%d\n", tokens.ids[i]);
  }
  if (!status) status = print(&out);
  mlx_text_clear(&out);
  mlx_free(tokens.ids);
  mlx_tokenizer_free(tokenizer);
  return status;
}

static mlx_status_t run_tokenize(const mlx_command_line_t *line) {
  flags_t f;
  const char *word = NULL;
  size_t words, length = 0;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, &word, 1, &words, &help));
  if (help) return NULL;
  if (!f.model)
    return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel tokenize MODEL \"TEXT\"");
  if ((f.prompt && f.file) || (word && (f.prompt || f.file)))
    return mlx_status_hint(mlx_error(MLX_USAGE, "the text is given twice: with %s and %s",
                                     word ? "a word" : "-p", f.prompt && word ? "-p" : "-f"),
                           "give one of them");
  if (word) f.prompt = word;
  if (word && f.escape) MLX_TRY(mlx_unescape(&f.prompt));
  if (f.prompt) return tokenize(&f, f.prompt, strlen(f.prompt));
  char *text;
  MLX_TRY(f.file && strcmp(f.file, "-") ? mlx_read_input(f.file, MAX_TEXT, &text, &length)
                                        : mlx_read_stream(STDIN_FILENO, "stdin", MAX_TEXT, &text, &length));
  if (f.escape) length = mlx_unescape_in_place(text, length);
  mlx_status_t status = tokenize(&f, text, length);
  mlx_free(text);
  return status;
}

// clang-format off
static const mlx_flag_t tokenize_table[] = {
    MLX_MODEL_FLAG(flags_t, model),
    MLX_ESCAPED_TEXT_FLAG(flags_t, prompt, "-p, --prompt", "TEXT",
                  "the text; escapes such as \\n are replaced, as in llama.cpp"),
    MLX_FILE_FLAG(flags_t, file, "read the text from a file, or from stdin (-)"),
    MLX_SWITCH_FLAG(flags_t, escape, "-e, --escape", "replace escapes such as \\n in TEXT, stdin and -f"),
    MLX_SWITCH_FLAG(flags_t, no_escape, "--no-escape", "keep backslashes in -p"),
    MLX_SWITCH_FLAG(flags_t, no_bos, "--no-bos", "do not add special tokens before and after the text"),
    MLX_NO_SPECIAL_FLAG(flags_t, no_special),
    MLX_SWITCH_FLAG(flags_t, count, "--show-count", "print only the number of tokens"),
    MLX_JSON_FLAG(flags_t, json),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_tokenize = {
    .name = "tokenize",
    .summary = "print the token ids of a text",
    .usage =
        "usage: mlxcel tokenize MODEL [TEXT | -f FILE] [options]\n\n"
        "Prints the token ids of a text, one per line. Compiles nothing and reads no weights.\n"
        "--json prints a list of {id, piece, start, end}; start and end are byte offsets in the text.\n\n"
        "examples:\n"
        "  mlxcel tokenize model.gguf \"Hello\"\n"
        "  mlxcel tokenize model.gguf -f book.txt --show-count",
    .model_word = true,
    .flags = tokenize_table,
    .options_size = sizeof(flags_t),
    .run = run_tokenize,
};

// ----------------------------------------------------------------------------------------------------------
// detokenize

typedef struct id_list {
  int32_t *ids;  // owned
  size_t count, capacity;
} id_list_t;

// Reads ids separated by spaces, commas or brackets: the output of `tokenize`, or a JSON list.
static mlx_status_t read_ids(const char *name, const char *text, size_t vocab, id_list_t *list) {
  for (;;) {
    while (isspace((unsigned char)*text) || (*text && strchr(",[]", *text))) ++text;
    if (!*text) return NULL;
    char *end;
    errno = 0;
    const long long id = strtoll(text, &end, 10);
    if (end == text || errno || (*end && !isspace((unsigned char)*end) && !strchr(",[]", *end))) {
      return mlx_error(MLX_USAGE, "%s: '%.20s' is not a token id", name, text);
    }
    if (id < 0 || (size_t)id >= vocab)
      return mlx_error(MLX_USAGE, "%s: token id %lld is out of range: the tokenizer has 0 to %zu", name, id,
                       vocab - 1);
    MLX_TRY(mlx_reserve(list->count + 1, sizeof *list->ids, &list->capacity, &list->ids));
    list->ids[list->count++] = (int32_t)id;
    text = end;
  }
}

static mlx_status_t collect_ids(const char **words, size_t count, size_t vocab, id_list_t *list) {
  for (size_t i = 0; i < count; ++i) MLX_TRY(read_ids("the command line", words[i], vocab, list));
  if (count) return NULL;
  char *text;
  size_t length;
  MLX_TRY(mlx_read_stream(STDIN_FILENO, "stdin", MAX_TEXT, &text, &length));
  mlx_status_t status = strlen(text) == length
                            ? read_ids("stdin", text, vocab, list)
                            : mlx_error(MLX_USAGE, "stdin contains a NUL byte; expected token ids as text");
  mlx_free(text);
  return status;
}

typedef struct detokenize_flags {
  const char *model;
  bool skip_special;
} detokenize_flags_t;

static mlx_status_t detokenize(void *options, const char **words, size_t count) {
  const detokenize_flags_t *f = options;
  mlx_tokenizer_t *tokenizer;
  id_list_t list = {0};
  char *text = NULL;
  size_t length = 0;
  if (!f->model)
    return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel detokenize MODEL ID...");
  MLX_TRY(open_tokenizer(f->model, &tokenizer));
  mlx_status_t status = collect_ids(words, count, mlx_tokenizer_vocab_size(tokenizer), &list);
  if (!status)
    status = mlx_tokenizer_decode(tokenizer, list.ids, list.count, f->skip_special, &text, &length);
  if (!status && fwrite(text, 1, length, stdout) != length) status = mlx_stdout_error();
  mlx_free(text);
  mlx_free(list.ids);
  mlx_tokenizer_free(tokenizer);
  return status;
}

static mlx_status_t run_detokenize(const mlx_command_line_t *line) {
  detokenize_flags_t f;
  return mlx_command_line_run(line, &f, detokenize);
}

static const mlx_flag_t detokenize_table[] = {
    MLX_MODEL_FLAG(detokenize_flags_t, model),
    MLX_SWITCH_FLAG(detokenize_flags_t, skip_special, "--skip-special", "leave out special tokens"),
    {0},
};

const mlx_verb_t mlx_verb_detokenize = {
    .name = "detokenize",
    .summary = "print the text of token ids",
    .usage =
        "usage: mlxcel detokenize MODEL [ID...] [options]\n\n"
        "Prints the text of token ids. Without ids on the command line, it reads them from stdin, "
        "separated by spaces, commas or brackets.\n\n"
        "examples:\n"
        "  mlxcel detokenize model.gguf 504 3575 282\n"
        "  mlxcel tokenize model.gguf \"Hello\" | mlxcel detokenize model.gguf",
    .model_word = true,
    .flags = detokenize_table,
    .options_size = sizeof(detokenize_flags_t),
    .run = run_detokenize,
};
