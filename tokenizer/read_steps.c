// Reads the normalizer, pre_tokenizer and decoder of a tokenizer.json into lists of steps, in running order.
#include "tokenizer/read_steps.h"

#include <string.h>

#include "base/memory.h"
#include "tokenizer/fields.h"
#include "unicode/character.h"

#define MAX_STEPS 64
#define MAX_CONTENT 1024  // bytes of a replacement; limits how much a text can grow

// ByteLevel's built-in pattern, from GPT-2.
static const char byte_level_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
// Digits uses Rust's char::is_numeric. Its tables (Unicode 17) are one version ahead of Oniguruma's, so the
// new digits are listed here.
static const char digits_pattern[] = "[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]";

typedef struct steps_reader {
  const mlx_json_t *json;
  mlx_tokenizer_t *tokenizer;
  int stage;  // the decoder_stage_t read last; -1 before the first
} steps_reader_t;

// Reads one component of the given type.
typedef mlx_status_t (*read_fn_t)(steps_reader_t *reader, yyjson_val *object, const char *path,
                                  const char *type);

// Reads a component. A Sequence is read recursively; |key| names its list.
static mlx_status_t read_nested(steps_reader_t *reader, yyjson_val *object, const char *path, const char *key,
                                read_fn_t read) {
  char full[MLX_PATH_SIZE], item[MLX_PATH_SIZE];
  const char *type;
  size_t index, max;
  yyjson_val *child, *list = mlx_json_find(object, key);
  MLX_TRY(mlx_field_type(reader->json, path, object, &type));
  if (strcmp(type, "Sequence")) return read(reader, object, path, type);
  MLX_TRY(mlx_field_container(reader->json, mlx_field_join(full, path, key), list, true));
  yyjson_arr_foreach(list, index, max, child) {
    MLX_TRY(read_nested(reader, child, mlx_field_index(item, full, index), key, read));
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Patterns

// Escapes a literal for use as a pattern. Hugging Face's package does the same with Rust's regex::escape.
static void escape(mlx_text_t *out, const char *text, size_t length) {
  for (size_t i = 0; i < length; ++i) {
    if (text[i] && strchr("\\.+*?()|[]{}^$#&-~", text[i])) mlx_text_append(out, "\\", 1);
    mlx_text_append(out, text + i, 1);
  }
}

// Reads the pattern of a Split or Replace: {"Regex": text}, or {"String": text} with *out_literal true.
static mlx_status_t read_pattern(const steps_reader_t *reader, yyjson_val *object, const char *path,
                                 const char **out_text, size_t *out_length, bool *out_literal) {
  char full[MLX_PATH_SIZE];
  yyjson_val *pattern = mlx_json_find(object, "pattern");
  yyjson_val *regex = mlx_json_find(pattern, "Regex"), *literal = mlx_json_find(pattern, "String");
  yyjson_val *either = regex ? regex : literal;
  *out_text = yyjson_get_str(either);
  *out_length = yyjson_get_len(either);
  *out_literal = either == literal;
  if (*out_text && !(regex && literal)) return NULL;
  return mlx_tokenizer_field_error(reader->json, MLX_INVALID_INPUT, mlx_field_join(full, path, "pattern"),
                                   "must be {\"Regex\": text} or {\"String\": text}");
}

static mlx_status_t compile_pattern(const steps_reader_t *reader, const char *path, const char *pattern,
                                    size_t length, bool literal, mlx_regex_t *out_regex) {
  mlx_text_t escaped = {0};
  if (literal) {
    escape(&escaped, pattern, length);
    MLX_TRY(mlx_text_finish(&escaped));
  }
  mlx_status_t status =
      mlx_regex_create(literal ? escaped.data : pattern, literal ? escaped.length : length, out_regex);
  mlx_text_clear(&escaped);
  return mlx_status_annotate(status, "%s: field '%s'", reader->json->name, path);
}

// ----------------------------------------------------------------------------------------------------------
// normalizer

static mlx_status_t add_normalizer(steps_reader_t *reader, const char *path, mlx_normalizer_step_t step) {
  if (reader->tokenizer->normalizer.count >= MAX_STEPS) {
    mlx_normalizer_step_free(&step);
    return mlx_tokenizer_field_error(reader->json, MLX_UNSUPPORTED, path, "exceeds the limit of %d steps",
                                     MAX_STEPS);
  }
  mlx_normalizer_t *normalizer = &reader->tokenizer->normalizer;
  normalizer->steps[normalizer->count++] = step;
  return NULL;
}

static mlx_status_t read_bert_normalizer(steps_reader_t *reader, yyjson_val *object, const char *path) {
  bool clean, chinese, lowercase, accents;
  MLX_TRY(mlx_tokenizer_field_bool(reader->json, path, object, "clean_text", true, &clean));
  MLX_TRY(mlx_tokenizer_field_bool(reader->json, path, object, "handle_chinese_chars", true, &chinese));
  MLX_TRY(mlx_tokenizer_field_bool(reader->json, path, object, "lowercase", true, &lowercase));
  MLX_TRY(mlx_tokenizer_field_bool(reader->json, path, object, "strip_accents", lowercase, &accents));
  if (clean)
    MLX_TRY(add_normalizer(reader, path, (mlx_normalizer_step_t){.kind = MLX_NORMALIZER_BERT_CLEAN}));
  if (chinese)
    MLX_TRY(add_normalizer(reader, path, (mlx_normalizer_step_t){.kind = MLX_NORMALIZER_BERT_CHINESE}));
  if (accents) {
    MLX_TRY(
        add_normalizer(reader, path, (mlx_normalizer_step_t){.kind = MLX_NORMALIZER_FORM, .form = MLX_NFD}));
    MLX_TRY(add_normalizer(reader, path, (mlx_normalizer_step_t){.kind = MLX_NORMALIZER_BERT_ACCENTS}));
  }
  return lowercase ? add_normalizer(reader, path, (mlx_normalizer_step_t){.kind = MLX_NORMALIZER_LOWERCASE})
                   : NULL;
}

// Reads a text that a step inserts, as an owned copy.
static mlx_status_t read_content(steps_reader_t *reader, yyjson_val *object, const char *path,
                                 const char *key, char **out_text, size_t *out_length) {
  char full[MLX_PATH_SIZE];
  const char *text;
  MLX_TRY(mlx_field_string(reader->json, path, object, key, &text, out_length));
  if (*out_length <= MAX_CONTENT) return mlx_copy_text(text, *out_length, out_text);
  return mlx_tokenizer_field_error(reader->json, MLX_UNSUPPORTED, mlx_field_join(full, path, key),
                                   "is longer than %d bytes", MAX_CONTENT);
}

static mlx_status_t fill_replace(steps_reader_t *reader, yyjson_val *object, const char *path,
                                 mlx_normalizer_step_t *step) {
  char full[MLX_PATH_SIZE];
  const char *pattern;
  bool literal;
  MLX_TRY(read_pattern(reader, object, path, &pattern, &step->pattern_length, &literal));
  MLX_TRY(read_content(reader, object, path, "content", &step->content, &step->content_length));
  if (literal && step->pattern_length) return mlx_copy_text(pattern, step->pattern_length, &step->pattern);
  return compile_pattern(reader, mlx_field_join(full, path, "pattern"), pattern, step->pattern_length,
                         literal, &step->regex);
}

// Reads a step that owns memory. On failure that memory is released.
static mlx_status_t read_owning_step(steps_reader_t *reader, yyjson_val *object, const char *path,
                                     mlx_normalizer_kind_t kind) {
  mlx_normalizer_step_t step = {.kind = kind};
  mlx_status_t status = NULL;
  char full[MLX_PATH_SIZE];
  if (kind == MLX_NORMALIZER_REPLACE) {
    status = fill_replace(reader, object, path, &step);
  } else if (kind == MLX_NORMALIZER_PREPEND) {
    status = read_content(reader, object, path, "prepend", &step.content, &step.content_length);
  } else {
    const char *map;
    size_t length;
    mlx_field_join(full, path, "precompiled_charsmap");
    status = mlx_field_string(reader->json, path, object, "precompiled_charsmap", &map, &length);
    if (!status) {
      status = mlx_status_annotate(mlx_charsmap_create(map, length, &step.charsmap), "%s: field '%s'",
                                   reader->json->name, full);
    }
  }
  if (!status) return add_normalizer(reader, path, step);
  mlx_normalizer_step_free(&step);
  return status;
}

static mlx_status_t read_normalizer(steps_reader_t *reader, yyjson_val *object, const char *path,
                                    const char *type) {
  static const struct {
    const char *name;
    mlx_normalizer_step_t step;
  } plain[] = {{"NFC", {.kind = MLX_NORMALIZER_FORM, .form = MLX_NFC}},
               {"NFD", {.kind = MLX_NORMALIZER_FORM, .form = MLX_NFD}},
               {"NFKC", {.kind = MLX_NORMALIZER_FORM, .form = MLX_NFKC}},
               {"NFKD", {.kind = MLX_NORMALIZER_FORM, .form = MLX_NFKD}},
               {"Lowercase", {.kind = MLX_NORMALIZER_LOWERCASE}},
               {"StripAccents", {.kind = MLX_NORMALIZER_STRIP_ACCENTS}},
               {"Nmt", {.kind = MLX_NORMALIZER_NMT}}};
  for (size_t i = 0; i < sizeof plain / sizeof *plain; ++i) {
    if (!strcmp(type, plain[i].name)) return add_normalizer(reader, path, plain[i].step);
  }
  if (!strcmp(type, "Strip")) {
    mlx_normalizer_step_t step = {.kind = MLX_NORMALIZER_STRIP};
    MLX_TRY(mlx_tokenizer_field_bool(reader->json, path, object, "strip_left", true, &step.left));
    MLX_TRY(mlx_tokenizer_field_bool(reader->json, path, object, "strip_right", true, &step.right));
    return add_normalizer(reader, path, step);
  }
  if (!strcmp(type, "BertNormalizer")) return read_bert_normalizer(reader, object, path);
  if (!strcmp(type, "Prepend")) return read_owning_step(reader, object, path, MLX_NORMALIZER_PREPEND);
  if (!strcmp(type, "Replace")) return read_owning_step(reader, object, path, MLX_NORMALIZER_REPLACE);
  if (!strcmp(type, "Precompiled")) return read_owning_step(reader, object, path, MLX_NORMALIZER_PRECOMPILED);
  return mlx_field_refuse_type(
      reader->json, path, type,
      "BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, Replace, Strip, "
      "StripAccents and Sequence are");
}

// ----------------------------------------------------------------------------------------------------------
// pre_tokenizer

static mlx_status_t add_pretokenizer(steps_reader_t *reader, const char *path, mlx_pretokenizer_step_t step) {
  mlx_pretokenizer_t *pretokenizer = &reader->tokenizer->pretokenizer;
  if (pretokenizer->count >= MAX_STEPS) {
    mlx_regex_free(step.regex);
    return mlx_tokenizer_field_error(reader->json, MLX_UNSUPPORTED, path, "exceeds the limit of %d steps",
                                     MAX_STEPS);
  }
  pretokenizer->steps[pretokenizer->count++] = step;
  return NULL;
}

static mlx_status_t add_regex(steps_reader_t *reader, const char *path, const char *pattern, size_t length,
                              bool literal, mlx_pretokenizer_step_t step) {
  MLX_TRY(compile_pattern(reader, path, pattern, length, literal, &step.regex));
  return add_pretokenizer(reader, path, step);
}

static mlx_status_t read_byte_level(steps_reader_t *reader, yyjson_val *object, const char *path) {
  bool add_prefix_space, use_regex;
  mlx_pretokenizer_step_t prefix = {.kind = MLX_PRETOKENIZER_PREFIX_SPACE},
                          words = {.behavior = MLX_SPLIT_ISOLATED};
  MLX_TRY(mlx_tokenizer_field_bool(reader->json, path, object, "add_prefix_space", true, &add_prefix_space));
  MLX_TRY(mlx_tokenizer_field_bool(reader->json, path, object, "use_regex", true, &use_regex));
  reader->tokenizer->model.byte_level = true;
  if (add_prefix_space) MLX_TRY(add_pretokenizer(reader, path, prefix));
  return use_regex ? add_regex(reader, path, byte_level_pattern, sizeof byte_level_pattern - 1, false, words)
                   : NULL;
}

static mlx_status_t read_behavior(const mlx_json_t *json, yyjson_val *object, const char *path,
                                  mlx_split_behavior_t *out_behavior) {
  static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                      "Contiguous"};
  char full[MLX_PATH_SIZE];
  const char *name = yyjson_get_str(mlx_json_find(object, "behavior"));
  mlx_field_join(full, path, "behavior");
  if (!name) return mlx_tokenizer_field_error(json, MLX_INVALID_INPUT, full, "must be a string");
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    *out_behavior = (mlx_split_behavior_t)i;
    if (!strcmp(name, names[i])) return NULL;
  }
  return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, full, "is '%.60s', which is not supported", name);
}

static mlx_status_t read_split(steps_reader_t *reader, yyjson_val *object, const char *path) {
  char full[MLX_PATH_SIZE];
  const char *pattern;
  size_t length;
  bool literal;
  mlx_pretokenizer_step_t step = {.kind = MLX_PRETOKENIZER_REGEX};
  MLX_TRY(read_behavior(reader->json, object, path, &step.behavior));
  MLX_TRY(mlx_tokenizer_field_bool(reader->json, path, object, "invert", false, &step.invert));
  MLX_TRY(read_pattern(reader, object, path, &pattern, &length, &literal));
  return add_regex(reader, mlx_field_join(full, path, "pattern"), pattern, length, literal, step);
}

static mlx_status_t read_prepend_scheme(steps_reader_t *reader, yyjson_val *object, const char *path,
                                        mlx_prepend_t *out) {
  static const char *const names[] = {"always", "first", "never"};
  char full[MLX_PATH_SIZE];
  yyjson_val *value = mlx_json_find(object, "prepend_scheme");
  const char *name = value ? yyjson_get_str(value) : "always";
  bool add_prefix_space;
  mlx_field_join(full, path, "prepend_scheme");
  size_t index = 0;
  while (name && index < 3 && strcmp(name, names[index])) ++index;
  if (!name || index == 3) {
    return mlx_tokenizer_field_error(reader->json, MLX_INVALID_INPUT, full, "must be always, first or never");
  }
  *out = (mlx_prepend_t)index;
  // Older files have add_prefix_space instead. Hugging Face also refuses a contradiction.
  MLX_TRY(mlx_tokenizer_field_bool(reader->json, path, object, "add_prefix_space", true, &add_prefix_space));
  if (add_prefix_space || *out == MLX_PREPEND_NEVER) return NULL;
  return mlx_tokenizer_field_error(reader->json, MLX_INVALID_INPUT, full,
                                   "is '%s', but add_prefix_space is false", name);
}

static mlx_status_t read_metaspace(steps_reader_t *reader, yyjson_val *object, const char *path) {
  mlx_pretokenizer_step_t step = {.kind = MLX_PRETOKENIZER_METASPACE, .behavior = MLX_SPLIT_MERGED_WITH_NEXT};
  bool split;
  MLX_TRY(mlx_field_character(reader->json, path, object, "replacement", &step.character));
  MLX_TRY(read_prepend_scheme(reader, object, path, &step.prepend));
  MLX_TRY(mlx_tokenizer_field_bool(reader->json, path, object, "split", true, &split));
  MLX_TRY(add_pretokenizer(reader, path, step));
  step.kind = MLX_PRETOKENIZER_CHARACTER;
  return split ? add_pretokenizer(reader, path, step) : NULL;
}

// Reads the steps that cut at single characters: WhitespaceSplit, Punctuation and BertPreTokenizer.
static mlx_status_t read_class(steps_reader_t *reader, yyjson_val *object, const char *path,
                               const char *type) {
  mlx_pretokenizer_step_t whitespace = {
      .kind = MLX_PRETOKENIZER_CLASS, .is_delimiter = mlx_character_is_space, .behavior = MLX_SPLIT_REMOVED};
  mlx_pretokenizer_step_t punctuation = {.kind = MLX_PRETOKENIZER_CLASS,
                                         .is_delimiter = mlx_character_is_punctuation,
                                         .behavior = MLX_SPLIT_ISOLATED};
  if (!strcmp(type, "WhitespaceSplit")) return add_pretokenizer(reader, path, whitespace);
  if (!strcmp(type, "Punctuation")) {
    if (mlx_json_find(object, "behavior"))
      MLX_TRY(read_behavior(reader->json, object, path, &punctuation.behavior));
    return add_pretokenizer(reader, path, punctuation);
  }
  MLX_TRY(add_pretokenizer(reader, path, whitespace));
  return add_pretokenizer(reader, path, punctuation);
}

static mlx_status_t read_pre_tokenizer(steps_reader_t *reader, yyjson_val *object, const char *path,
                                       const char *type) {
  // ByteLevel respells the text in other characters. No known file splits it after that.
  if (reader->tokenizer->model.byte_level) {
    return mlx_tokenizer_field_error(reader->json, MLX_UNSUPPORTED, path,
                                     "comes after ByteLevel, which must be last");
  }
  if (!strcmp(type, "ByteLevel")) return read_byte_level(reader, object, path);
  if (!strcmp(type, "Split")) return read_split(reader, object, path);
  if (!strcmp(type, "Metaspace")) return read_metaspace(reader, object, path);
  if (!strcmp(type, "WhitespaceSplit") || !strcmp(type, "BertPreTokenizer") || !strcmp(type, "Punctuation")) {
    return read_class(reader, object, path, type);
  }
  if (!strcmp(type, "Digits")) {
    bool individual;
    MLX_TRY(mlx_tokenizer_field_bool(reader->json, path, object, "individual_digits", false, &individual));
    mlx_pretokenizer_step_t step = {.behavior = individual ? MLX_SPLIT_ISOLATED : MLX_SPLIT_CONTIGUOUS};
    return add_regex(reader, path, digits_pattern, sizeof digits_pattern - 1, false, step);
  }
  return mlx_field_refuse_type(
      reader->json, path, type,
      "BertPreTokenizer, ByteLevel, Digits, Metaspace, Punctuation, Split, WhitespaceSplit and "
      "Sequence are");
}

// ----------------------------------------------------------------------------------------------------------
// decoder

// Decoders must come in the order in which mlx_decoder_t runs them: Replace, ByteFallback, Fuse, Strip. The
// other types are complete decoders and must stand alone.
typedef enum decoder_stage {
  STAGE_REPLACE,
  STAGE_BYTES,
  STAGE_FUSE,
  STAGE_STRIP,
  STAGE_COMPLETE
} decoder_stage_t;

static mlx_status_t read_replacement(steps_reader_t *reader, yyjson_val *object, const char *path) {
  char full[MLX_PATH_SIZE];
  mlx_decoder_t *decoder = &reader->tokenizer->decoder;
  const char *pattern;
  bool literal;
  if (decoder->replacement_count == MLX_MAX_REPLACEMENTS) {
    return mlx_tokenizer_field_error(reader->json, MLX_UNSUPPORTED, path,
                                     "exceeds the limit of %d Replace decoders", MLX_MAX_REPLACEMENTS);
  }
  mlx_replacement_t *replacement = &decoder->replacements[decoder->replacement_count++];
  MLX_TRY(read_pattern(reader, object, path, &pattern, &replacement->pattern_length, &literal));
  if (!literal || !replacement->pattern_length) {
    return mlx_tokenizer_field_error(reader->json, MLX_UNSUPPORTED, mlx_field_join(full, path, "pattern"),
                                     "is a Regex or empty; only a String is supported");
  }
  MLX_TRY(mlx_copy_text(pattern, replacement->pattern_length, &replacement->pattern));
  return read_content(reader, object, path, "content", &replacement->content, &replacement->content_length);
}

static mlx_status_t read_strip(steps_reader_t *reader, yyjson_val *object, const char *path, bool fused) {
  mlx_decoder_t *decoder = &reader->tokenizer->decoder;
  char full[MLX_PATH_SIZE];
  size_t stop;
  MLX_TRY(mlx_field_character(reader->json, path, object, "content", &decoder->strip));
  MLX_TRY(mlx_field_size(reader->json, path, object, "start", &decoder->strip_count));
  MLX_TRY(mlx_field_size(reader->json, path, object, "stop", &stop));
  if (stop)
    return mlx_tokenizer_field_error(reader->json, MLX_UNSUPPORTED, mlx_field_join(full, path, "stop"),
                                     "must be 0");
  return fused ? NULL
               : mlx_tokenizer_field_error(reader->json, MLX_UNSUPPORTED, path, "must come after Fuse");
}

static mlx_status_t read_complete_decoder(steps_reader_t *reader, yyjson_val *object, const char *path,
                                          const char *type) {
  mlx_decoder_t *decoder = &reader->tokenizer->decoder;
  if (!strcmp(type, "Metaspace")) {
    mlx_prepend_t scheme;
    MLX_TRY(read_prepend_scheme(reader, object, path, &scheme));
    decoder->drops_first_space = scheme != MLX_PREPEND_NEVER;
    return mlx_field_character(reader->json, path, object, "replacement", &decoder->metaspace);
  }
  if (!strcmp(type, "WordPiece")) {
    decoder->wordpiece = true;
    MLX_TRY(mlx_tokenizer_field_bool(reader->json, path, object, "cleanup", true, &decoder->cleanup));
    return read_content(reader, object, path, "prefix", &decoder->prefix, &decoder->prefix_length);
  }
  decoder->byte_level = true;
  return NULL;
}

static mlx_status_t read_decoder(steps_reader_t *reader, yyjson_val *object, const char *path,
                                 const char *type) {
  static const struct {
    const char *name;
    decoder_stage_t stage;
  } stages[] = {{"Replace", STAGE_REPLACE},   {"ByteFallback", STAGE_BYTES}, {"Fuse", STAGE_FUSE},
                {"Strip", STAGE_STRIP},       {"ByteLevel", STAGE_COMPLETE}, {"Metaspace", STAGE_COMPLETE},
                {"WordPiece", STAGE_COMPLETE}};
  size_t index = 0, count = sizeof stages / sizeof *stages;
  while (index < count && strcmp(type, stages[index].name)) ++index;
  if (index == count) {
    return mlx_field_refuse_type(
        reader->json, path, type,
        "ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Strip, WordPiece and Sequence are");
  }
  decoder_stage_t stage = stages[index].stage;
  // Only Replace may be repeated.
  bool in_order = stage == STAGE_REPLACE ? reader->stage <= STAGE_REPLACE : reader->stage < (int)stage;
  if (stage == STAGE_COMPLETE) in_order = reader->stage < 0;
  if (!in_order) {
    return mlx_tokenizer_field_error(
        reader->json, MLX_UNSUPPORTED, path,
        "is out of order; supported are Replace, ByteFallback, Fuse, Strip or one decoder alone");
  }
  bool fused = reader->stage == STAGE_FUSE;
  reader->stage = (int)stage;
  switch (stage) {
    case STAGE_REPLACE: return read_replacement(reader, object, path);
    case STAGE_BYTES: reader->tokenizer->decoder.byte_fallback = true; return NULL;
    case STAGE_FUSE: return NULL;
    case STAGE_STRIP: return read_strip(reader, object, path, fused);
    case STAGE_COMPLETE: return read_complete_decoder(reader, object, path, type);
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------

mlx_status_t mlx_tokenizer_read_steps(const mlx_json_t *json, mlx_tokenizer_t *tokenizer) {
  steps_reader_t reader = {.json = json, .tokenizer = tokenizer, .stage = -1};
  yyjson_val *normalizer = mlx_json_find(json->root, "normalizer"),
             *pre_tokenizer = mlx_json_find(json->root, "pre_tokenizer");
  yyjson_val *decoder = mlx_json_find(json->root, "decoder");
  MLX_TRY(mlx_alloc(MAX_STEPS, sizeof *tokenizer->normalizer.steps, &tokenizer->normalizer.steps));
  MLX_TRY(mlx_alloc(MAX_STEPS, sizeof *tokenizer->pretokenizer.steps, &tokenizer->pretokenizer.steps));
  if (normalizer) MLX_TRY(read_nested(&reader, normalizer, "normalizer", "normalizers", read_normalizer));
  if (pre_tokenizer)
    MLX_TRY(read_nested(&reader, pre_tokenizer, "pre_tokenizer", "pretokenizers", read_pre_tokenizer));
  if (!decoder)
    return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, "decoder", "is null, which is not supported");
  MLX_TRY(read_nested(&reader, decoder, "decoder", "decoders", read_decoder));
  if (tokenizer->model.byte_level && tokenizer->model.kind != MLX_MODEL_BPE) {
    return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, "pre_tokenizer",
                                     "has ByteLevel, which is supported for BPE only");
  }
  if (tokenizer->model.byte_level == tokenizer->decoder.byte_level) return NULL;
  return mlx_tokenizer_field_error(json, MLX_UNSUPPORTED, "decoder",
                                   tokenizer->model.byte_level
                                       ? "is not ByteLevel, but pre_tokenizer has it"
                                       : "is ByteLevel, but pre_tokenizer has no ByteLevel");
}
