// mlxcel tokenize and mlxcel detokenize: text to ids and back, by the model's own tokenizer. Nothing is
// compiled, no weight is read.
#include "tokenizer/tokenizer.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "artifact/bundle.h"
#include "base/file.h"
#include "base/memory.h"
#include "cli/cli.h"
#include "compiler/compile.h"

#define LONGEST_TEXT (256u << 20)

static mlx_status_t read_bundle(const char *path, char **out_name, char **out_json, size_t *out_length) {
  mlx_bundle_t *bundle;
  MLX_TRY(mlx_bundle_open(path, &bundle));
  const mlx_bundle_display_path_t place = mlx_bundle_display_path(bundle, MLX_BUNDLE_TOKENIZER);
  mlx_status_t status = mlx_copy_text(place.text, strlen(place.text), out_name);
  if (!status) status = mlx_bundle_read(bundle, MLX_BUNDLE_TOKENIZER, LONGEST_TEXT, out_json, out_length);
  mlx_bundle_close(bundle);
  return status;
}

static mlx_status_t open_tokenizer(const char *model, mlx_tokenizer_t **out) {
  char *name = NULL, *json = NULL;
  size_t length = 0;
  *out = NULL;
  mlx_status_t status = mlx_is_bundle(model) ? read_bundle(model, &name, &json, &length)
                                             : mlx_compile_tokenizer(model, &name, &json, &length);
  if (!status) status = mlx_tokenizer_create(name, json, length, out);
  mlx_free(json);
  mlx_free(name);
  return status;
}

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
  size_t before;   // ids that the tokenizer put before those of the text
  size_t of_text;  // ids of the text
} tokens_t;

// The ids of the text alone lie somewhere in those with a beginning and an end: where is what tells them
// apart.
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
    const size_t most = out->count >= out->of_text ? out->count - out->of_text : 0;
    while (out->before < most && memcmp(out->ids + out->before, alone, out->of_text * sizeof *alone))
      ++out->before;
  }
  mlx_free(alone);
  return status;
}

// |start| goes to the end of |piece| in the text, if it stands there; a blank that a tokenizer puts before a
// text does not.
static bool follow(const char *text, size_t length, const mlx_text_t *piece, size_t *start,
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

// One object a token. Where a text is rewritten before it is cut (lower case, for example) its tokens have no
// place in it.
static void put_objects(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                        const tokens_t *tokens, mlx_text_t *out) {
  size_t at = 0, start = 0;
  bool following = true;
  mlx_text_puts(out, "[");
  for (size_t i = 0; i < tokens->count; ++i) {
    const bool of_text = i >= tokens->before && i < tokens->before + tokens->of_text;
    mlx_text_t piece = {0};
    mlx_tokenizer_piece(tokenizer, tokens->ids[i], false, false, &piece);
    mlx_text_printf(out, "%s\n  {\"id\": %d, \"piece\": ", i ? "," : "", tokens->ids[i]);
    mlx_text_json_string(out, piece.data ? piece.data : "", piece.length);
    if (of_text && following) following = piece.length && follow(text, length, &piece, &start, &at);
    if (of_text && following) {
      mlx_text_printf(out, ", \"start\": %zu, \"end\": %zu}", start, at);
    } else {
      mlx_text_puts(out, ", \"start\": null, \"end\": null}");
    }
    mlx_text_clear(&piece);
  }
  mlx_text_puts(out, "\n]\n");
}

typedef struct flags {
  const char *model, *prompt, *file;
  bool no_bos, json, count;
} flags_t;

static mlx_status_t tokenize(const flags_t *f, const char *text, size_t length) {
  mlx_tokenizer_t *tokenizer;
  tokens_t tokens = {0};
  mlx_text_t out = {0};
  MLX_TRY(open_tokenizer(f->model, &tokenizer));
  mlx_status_t status = encode(tokenizer, text, length, f->no_bos, &tokens);
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

mlx_status_t mlx_cli_tokenize(int argc, char **argv) {
  flags_t f = {0};
  const mlx_flag_t table[] = {
      {"-m, --model", MLX_FLAG_TEXT, "MODEL", "a compiled model, a GGUF file or a Hugging Face directory",
       &f.model, 0, 0},
      {"-p, --prompt", MLX_FLAG_TEXT, "TEXT",
       "the text (default: what comes on stdin); special tokens in it count", &f.prompt, 0, 0},
      {"-f, --file", MLX_FLAG_TEXT, "FILE", "read the text from a file, or from stdin (-), every byte of it",
       &f.file, 0, 0},
      {"--no-bos", MLX_FLAG_SWITCH, NULL, "the ids of the text alone, without what the model wants around it",
       &f.no_bos, 0, 0},
      {"--show-count", MLX_FLAG_SWITCH, NULL, "print how many there are, and no ids", &f.count, 0, 0},
      {"--json", MLX_FLAG_SWITCH, NULL,
       "print a list of {id, piece, start, end}: where in the text it stands, in bytes", &f.json, 0, 0},
      {0}};
  size_t words, length = 0;
  bool help;
  MLX_TRY(mlx_flags_parse(
      "usage: mlxcel tokenize -m MODEL [-p TEXT | -f FILE] [options]\n\n"
      "Prints the token ids of a text, one a line. Nothing is compiled and no weight is read.\n\n"
      "examples:\n"
      "  mlxcel tokenize -m model.gguf -p \"Hello\"\n"
      "  mlxcel tokenize -m model.gguf -f book.txt --show-count",
      table, argc, argv, NULL, 0, &words, &help));
  if (help) return NULL;
  if (!f.model)
    return mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"), "mlxcel tokenize -m MODEL -p TEXT");
  if (f.prompt && f.file)
    return mlx_status_hint(mlx_error(MLX_USAGE, "both -p and -f were given"), "give one of them");
  if (f.prompt) return tokenize(&f, f.prompt, strlen(f.prompt));
  char *text;
  MLX_TRY(f.file && strcmp(f.file, "-")
              ? mlx_read_file(f.file, LONGEST_TEXT, &text, &length)
              : mlx_read_stream(STDIN_FILENO, "stdin", LONGEST_TEXT, &text, &length));
  mlx_status_t status = tokenize(&f, text, length);
  mlx_free(text);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// detokenize

typedef struct id_list {
  int32_t *ids;  // owned
  size_t count, capacity;
} id_list_t;

// Ids with blanks, commas or brackets around them: as `tokenize` prints them, as JSON has them.
static mlx_status_t read_ids(const char *name, const char *text, size_t vocab, id_list_t *list) {
  for (;;) {
    while (isspace((unsigned char)*text) || (*text && strchr(",[]", *text))) ++text;
    if (!*text) return NULL;
    char *end;
    errno = 0;
    const long long id = strtoll(text, &end, 10);
    if (end == text || errno || (*end && !isspace((unsigned char)*end) && !strchr(",[]", *end))) {
      return mlx_error(MLX_USAGE, "%s: '%.20s' is not a token's number", name, text);
    }
    if (id < 0 || (size_t)id >= vocab)
      return mlx_error(MLX_USAGE, "%s: there is no token %lld; the tokenizer has 0 to %zu", name, id,
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
  MLX_TRY(mlx_read_stream(STDIN_FILENO, "stdin", LONGEST_TEXT, &text, &length));
  mlx_status_t status = strlen(text) == length ? read_ids("stdin", text, vocab, list)
                                               : mlx_error(MLX_USAGE, "stdin has a NUL byte; ids are text");
  mlx_free(text);
  return status;
}

static mlx_status_t detokenize(const char *model, const char **words, size_t count, bool skip_special) {
  mlx_tokenizer_t *tokenizer;
  id_list_t list = {0};
  char *text = NULL;
  size_t length = 0;
  MLX_TRY(open_tokenizer(model, &tokenizer));
  mlx_status_t status = collect_ids(words, count, mlx_tokenizer_vocab_size(tokenizer), &list);
  if (!status) status = mlx_tokenizer_decode(tokenizer, list.ids, list.count, skip_special, &text, &length);
  if (!status && fwrite(text, 1, length, stdout) != length) status = mlx_stdout_error();
  mlx_free(text);
  mlx_free(list.ids);
  mlx_tokenizer_free(tokenizer);
  return status;
}

mlx_status_t mlx_cli_detokenize(int argc, char **argv) {
  const char *model = NULL;
  bool skip_special = false, help;
  const mlx_flag_t table[] = {
      {"-m, --model", MLX_FLAG_TEXT, "MODEL", "a compiled model, a GGUF file or a Hugging Face directory",
       &model, 0, 0},
      {"--skip-special", MLX_FLAG_SWITCH, NULL,
       "leave out special tokens, as text that was generated has none", &skip_special, 0, 0},
      {0}};
  const char **words;
  size_t count;
  MLX_TRY(mlx_alloc((size_t)argc, sizeof *words, &words));
  mlx_status_t status = mlx_flags_parse(
      "usage: mlxcel detokenize -m MODEL [ID...] [options]\n\n"
      "Prints the text of token ids, and nothing else. Without ids on the command line they come on stdin: "
      "blanks, commas "
      "and brackets may stand between them.\n\n"
      "examples:\n"
      "  mlxcel detokenize -m model.gguf 504 3575 282\n"
      "  mlxcel tokenize -m model.gguf -p \"Hello\" | mlxcel detokenize -m model.gguf",
      table, argc, argv, words, (size_t)argc, &count, &help);
  if (!status && !help) {
    status = model ? detokenize(model, words, count, skip_special)
                   : mlx_status_hint(mlx_error(MLX_USAGE, "no model was given"),
                                     "mlxcel detokenize -m MODEL ID...");
  }
  mlx_free(words);
  return status;
}
