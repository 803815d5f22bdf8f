// tokenizer.json -> struct mlx_tokenizer.
//
// The file is foreign: every id, string and merge is checked before it is used, and whatever we do not do exactly as
// Hugging Face does is refused by the name of its field. Nothing is guessed or skipped, except fields that cannot change
// an id (trim_offsets, the pair template, type ids).
#include <stdio.h>
#include <string.h>

#include "runtime/tokenizer_internal.h"

#define MAX_ID ((1 << 21) - 1)     // eight times the largest vocabulary there is; bounds the table by id
#define MAX_ADDED_LENGTH 1024      // bytes; bounds the time to look for added tokens
#define MAX_STEPS 64
#define MAX_TEMPLATE 256
#define PATH_SIZE 160

// GPT-2's pattern, built into ByteLevel.
static const char byte_level_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
// Digits asks Rust's char::is_numeric, whose tables (Unicode 17) are a version ahead of Oniguruma's.
static const char digits_pattern[] = "[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]";
// single_word asks the regex crate's \w: unlike Oniguruma's it has the joiners, and not ² ³ ¹ ¼ ½ ¾.
static const char word_pattern[] = "[\\w\\x{200C}\\x{200D}&&[^\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}]]";

// ---------------------------------------------------------------------------------------------------------------------
// Fields, named by their whole path

static mlx_status_t field_error(const mlx_json_t *json, mlx_code_t code, const char *path, const char *fmt, ...)
    MLX_PRINTF(4, 5);
static mlx_status_t field_error(const mlx_json_t *json, mlx_code_t code, const char *path, const char *fmt, ...) {
  char what[256];
  va_list args;
  va_start(args, fmt);
  vsnprintf(what, sizeof what, fmt, args);
  va_end(args);
  return mlx_error(code, "%s: field '%s' %s", json->name, path, what);
}

// A path that grows too long (sequences inside sequences) is cut; it only names a place to a person.
static const char *make_path(char out[PATH_SIZE], const char *fmt, ...) MLX_PRINTF(2, 3);
static const char *make_path(char out[PATH_SIZE], const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  vsnprintf(out, PATH_SIZE, fmt, args);
  va_end(args);
  return out;
}

static const char *join_path(char out[PATH_SIZE], const char *path, const char *key) {
  return make_path(out, "%s.%s", path, key);
}

static const char *index_path(char out[PATH_SIZE], const char *path, size_t index) {
  return make_path(out, "%s[%zu]", path, index);
}

// "is/has id N, which 'TOKEN' has too": the token that took an id first. Its text does not end with a NUL.
static mlx_status_t taken_error(const mlx_json_t *json, const char *path, const char *verb, int32_t id,
                                const mlx_token_t *token) {
  return field_error(json, MLX_INVALID_INPUT, path, "%s %d, which '%.*s' has too", verb, id,
                     token->text_length > 60 ? 60 : (int)token->text_length, token->text);
}

static mlx_status_t need_container(const mlx_json_t *json, const char *path, yyjson_val *value, bool array) {
  if (array ? yyjson_is_arr(value) : yyjson_is_obj(value)) return NULL;
  return field_error(json, MLX_INVALID_INPUT, path, value ? "must be an %s" : "is missing; it must be an %s",
                     array ? "array" : "object");
}

static mlx_status_t read_bool(const mlx_json_t *json, const char *path, yyjson_val *object, const char *key,
                              bool fallback, bool *out) {
  char full[PATH_SIZE];
  yyjson_val *value = mlx_json_find(object, key);
  *out = value ? yyjson_is_true(value) : fallback;
  if (!value || yyjson_is_bool(value)) return NULL;
  return field_error(json, MLX_INVALID_INPUT, join_path(full, path, key), "must be true or false");
}

// An id; the path is given in two halves, because this runs for every token and a path is only made for an error.
static mlx_status_t read_id(const mlx_json_t *json, const char *path, const char *rest, yyjson_val *value,
                            int32_t *out_id) {
  char full[PATH_SIZE];
  *out_id = -1;
  if (yyjson_is_uint(value) && yyjson_get_uint(value) <= MAX_ID) {
    *out_id = (int32_t)yyjson_get_uint(value);
    return NULL;
  }
  make_path(full, "%s%.80s", path, rest);
  if (!yyjson_is_uint(value)) return field_error(json, MLX_INVALID_INPUT, full, "must be a token id");
  return field_error(json, MLX_UNSUPPORTED, full, "is %llu; ids up to %d are supported",
                     (unsigned long long)yyjson_get_uint(value), MAX_ID);
}

// The "type" of a component; "" when it has none.
static mlx_status_t read_type(const mlx_json_t *json, const char *path, yyjson_val *object, const char **out_type) {
  char full[PATH_SIZE];
  *out_type = "";
  MLX_TRY(need_container(json, path, object, false));
  yyjson_val *type = mlx_json_find(object, "type");
  if (!type) return NULL;
  *out_type = yyjson_get_str(type);
  return *out_type ? NULL : field_error(json, MLX_INVALID_INPUT, join_path(full, path, "type"), "must be a string");
}

static mlx_status_t refuse_type(const mlx_json_t *json, const char *path, const char *type, const char *supported) {
  char full[PATH_SIZE];
  join_path(full, path, "type");
  return field_error(json, MLX_UNSUPPORTED, full, "is '%.60s'; only %s supported", type, supported);
}

static mlx_status_t refuse_unless_null(const mlx_json_t *json, const char *key) {
  if (!mlx_json_find(json->root, key)) return NULL;
  return field_error(json, MLX_UNSUPPORTED, key, "is set; only null is supported");
}

// ---------------------------------------------------------------------------------------------------------------------
// model.vocab and added_tokens: the table of tokens

static mlx_status_t measure(const mlx_json_t *json, yyjson_val *vocab, yyjson_val *added, size_t *out_bytes,
                            size_t *out_ids) {
  size_t index, max, bytes = 0;
  yyjson_val *key, *value;
  int32_t id, top = -1;
  yyjson_obj_foreach(vocab, index, max, key, value) {
    MLX_TRY(read_id(json, "model.vocab.", yyjson_get_str(key), value, &id));
    if (id > top) top = id;
    bytes += yyjson_get_len(key);  // all of it lies in the file, so the sum is no larger than that
  }
  yyjson_arr_foreach(added, index, max, value) {
    char path[PATH_SIZE];
    index_path(path, "added_tokens", index);
    MLX_TRY(read_id(json, path, ".id", mlx_json_find(value, "id"), &id));
    if (id > top) top = id;
    bytes += yyjson_get_len(mlx_json_find(value, "content"));
  }
  *out_bytes = bytes;
  *out_ids = (size_t)(top + 1);
  return NULL;
}

// Copies a token's text into the arena, with its bytes after it where they differ from it.
static void set_token(mlx_tokenizer_t *tokenizer, int32_t id, const char *text, size_t length, size_t *inout_used) {
  char *copy = tokenizer->arena + *inout_used;
  size_t byte_length;
  memcpy(copy, text, length);
  mlx_token_t *token = &tokenizer->tokens[id];
  *token = (mlx_token_t){.text = copy, .text_length = (uint32_t)length, .bytes = copy, .byte_length = (uint32_t)length};
  *inout_used += length;
  if (mlx_unspell(text, length, copy + length, &byte_length)) {
    token->bytes = copy + length;
    token->byte_length = (uint32_t)byte_length;
    *inout_used += byte_length;
  }
  mlx_names_add(tokenizer, id);
}

static mlx_status_t read_vocab(const mlx_json_t *json, yyjson_val *vocab, mlx_tokenizer_t *tokenizer,
                               size_t *inout_used) {
  size_t index, max;
  yyjson_val *key, *value;
  yyjson_obj_foreach(vocab, index, max, key, value) {
    int32_t id = (int32_t)yyjson_get_uint(value);  // checked by measure
    size_t length = yyjson_get_len(key);
    if (tokenizer->tokens[id].text) {
      char path[PATH_SIZE];
      make_path(path, "model.vocab.%.80s", yyjson_get_str(key));
      return taken_error(json, path, "has id", id, &tokenizer->tokens[id]);
    }
    set_token(tokenizer, id, yyjson_get_str(key), length, inout_used);
    tokenizer->tokens[id].in_model = true;
    if (length > tokenizer->longest_text) tokenizer->longest_text = length;
  }
  for (int byte = 0; byte < 256; ++byte) {
    char spelled[2];
    tokenizer->byte_ids[byte] = mlx_names_find(tokenizer, spelled, mlx_spell_byte((uint8_t)byte, spelled));
  }
  return NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// model.merges

typedef struct merge_parts {
  const char *left, *right;
  size_t left_length, right_length;
} merge_parts_t;

// A merge is "a b" in older files and ["a", "b"] in newer ones.
static bool split_merge(yyjson_val *merge, merge_parts_t *out) {
  if (yyjson_is_arr(merge) && yyjson_arr_size(merge) == 2) {
    yyjson_val *left = yyjson_arr_get_first(merge), *right = yyjson_arr_get_last(merge);
    *out = (merge_parts_t){yyjson_get_str(left), yyjson_get_str(right), yyjson_get_len(left), yyjson_get_len(right)};
    return out->left && out->right;
  }
  if (!yyjson_is_str(merge)) return false;
  const char *text = yyjson_get_str(merge), *end = text + yyjson_get_len(merge);
  const char *space = memchr(text, ' ', (size_t)(end - text));
  if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1))) return false;
  *out = (merge_parts_t){text, space + 1, (size_t)(space - text), (size_t)(end - space - 1)};
  return true;
}

static mlx_status_t find_part(const mlx_json_t *json, const mlx_tokenizer_t *tokenizer, size_t index, const char *text,
                              size_t length, int32_t *out_id) {
  char path[PATH_SIZE];
  *out_id = mlx_names_find(tokenizer, text, length);
  if (*out_id >= 0) return NULL;
  return field_error(json, MLX_INVALID_INPUT, index_path(path, "model.merges", index),
                     "needs the token '%.*s', which is not in model.vocab", length > 60 ? 60 : (int)length, text);
}

static mlx_status_t read_merge(const mlx_json_t *json, yyjson_val *merge, size_t index, uint32_t rank,
                               mlx_tokenizer_t *tokenizer, char *joined) {
  merge_parts_t parts;
  int32_t left, right, merged;
  if (!split_merge(merge, &parts)) {
    char path[PATH_SIZE];
    return field_error(json, MLX_INVALID_INPUT, index_path(path, "model.merges", index),
                       "must be \"a b\" or [\"a\", \"b\"]");
  }
  MLX_TRY(find_part(json, tokenizer, index, parts.left, parts.left_length, &left));
  MLX_TRY(find_part(json, tokenizer, index, parts.right, parts.right_length, &right));
  // Both parts are tokens now, so |joined| has room for them.
  memcpy(joined, parts.left, parts.left_length);
  memcpy(joined + parts.left_length, parts.right, parts.right_length);
  MLX_TRY(find_part(json, tokenizer, index, joined, parts.left_length + parts.right_length, &merged));
  mlx_pair_map_put(&tokenizer->merges, mlx_pair((uint32_t)left, (uint32_t)right), mlx_pair(rank, (uint32_t)merged));
  return NULL;
}

static mlx_status_t read_merges(const mlx_json_t *json, yyjson_val *merges, mlx_tokenizer_t *tokenizer) {
  size_t index, max;
  yyjson_val *merge;
  char *joined;
  uint32_t rank = 0;
  if (yyjson_arr_size(merges) >= UINT32_MAX) return field_error(json, MLX_UNSUPPORTED, "model.merges", "is too long");
  MLX_TRY(mlx_pair_map_create(yyjson_arr_size(merges), tokenizer->seed, &tokenizer->merges));
  MLX_TRY(mlx_alloc(2 * tokenizer->longest_text, 1, &joined));
  mlx_status_t status = NULL;
  yyjson_arr_foreach(merges, index, max, merge) {
    // Old files keep the first line of merges.txt, "#version: 0.2"; it has no rank.
    if (yyjson_is_str(merge) && !strncmp(yyjson_get_str(merge), "#version", 8)) continue;
    status = read_merge(json, merge, index, rank++, tokenizer, joined);
    if (status) break;
  }
  mlx_free(joined);
  return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// model

// Options of BPE that byte-level tokenizers leave off.
static mlx_status_t check_model_options(const mlx_json_t *json, yyjson_val *model) {
  static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
  char path[PATH_SIZE];
  bool byte_fallback;
  for (size_t i = 0; i < sizeof affixes / sizeof *affixes; ++i) {
    yyjson_val *value = mlx_json_find(model, affixes[i]);
    if (value && !(yyjson_is_str(value) && !yyjson_get_len(value))) {
      join_path(path, "model", affixes[i]);
      return field_error(json, MLX_UNSUPPORTED, path, "is set; only null or \"\" is supported");
    }
  }
  yyjson_val *dropout = mlx_json_find(model, "dropout");
  if (dropout && !(yyjson_is_num(dropout) && yyjson_get_num(dropout) == 0)) {
    return field_error(json, MLX_UNSUPPORTED, "model.dropout", "is set; only null or 0 is supported");
  }
  MLX_TRY(read_bool(json, "model", model, "byte_fallback", false, &byte_fallback));
  if (byte_fallback) return field_error(json, MLX_UNSUPPORTED, "model.byte_fallback", "is true; only false is supported");
  return NULL;
}

// The unk_token stands for bytes that have no token; where every byte has one it means nothing.
static mlx_status_t read_unk_token(const mlx_json_t *json, yyjson_val *model, mlx_tokenizer_t *tokenizer) {
  yyjson_val *unk = mlx_json_find(model, "unk_token");
  bool needed = false;
  tokenizer->unk_id = -1;
  MLX_TRY(read_bool(json, "model", model, "fuse_unk", false, &tokenizer->fuse_unk));
  if (!unk) return NULL;
  if (!yyjson_is_str(unk)) return field_error(json, MLX_INVALID_INPUT, "model.unk_token", "must be a string or null");
  if (!yyjson_get_len(unk)) return NULL;
  tokenizer->unk_id = mlx_names_find(tokenizer, yyjson_get_str(unk), yyjson_get_len(unk));
  for (int byte = 0; byte < 256; ++byte) needed |= tokenizer->byte_ids[byte] < 0;
  if (tokenizer->unk_id >= 0 || !needed) return NULL;
  return field_error(json, MLX_INVALID_INPUT, "model.unk_token", "is '%.60s', which is not in model.vocab",
                     yyjson_get_str(unk));
}

static mlx_status_t read_model(const mlx_json_t *json, mlx_tokenizer_t *tokenizer, yyjson_val *added,
                               size_t *out_used) {
  yyjson_val *model = mlx_json_find(json->root, "model"), *vocab = mlx_json_find(model, "vocab");
  yyjson_val *merges = mlx_json_find(model, "merges");
  const char *type;
  size_t bytes, arena_size;
  MLX_TRY(read_type(json, "model", model, &type));
  // The oldest files, GPT-2's own among them, do not say their type.
  if (type[0] && strcmp(type, "BPE")) return refuse_type(json, "model", type, "BPE is");
  MLX_TRY(check_model_options(json, model));
  MLX_TRY(read_bool(json, "model", model, "ignore_merges", false, &tokenizer->ignore_merges));
  MLX_TRY(need_container(json, "model.vocab", vocab, false));
  MLX_TRY(need_container(json, "model.merges", merges, true));
  MLX_TRY(measure(json, vocab, added, &bytes, &tokenizer->vocab_size));
  if (bytes >= UINT32_MAX / 2) return field_error(json, MLX_UNSUPPORTED, "model.vocab", "is larger than 2 GB");
  if (!mlx_mul(bytes, 2, &arena_size)) return field_error(json, MLX_UNSUPPORTED, "model.vocab", "is too large");
  MLX_TRY(mlx_alloc(tokenizer->vocab_size, sizeof *tokenizer->tokens, &tokenizer->tokens));
  MLX_TRY(mlx_alloc(arena_size, 1, &tokenizer->arena));
  MLX_TRY(mlx_names_create(yyjson_obj_size(vocab) + yyjson_arr_size(added), tokenizer));
  MLX_TRY(read_vocab(json, vocab, tokenizer, out_used));
  MLX_TRY(read_unk_token(json, model, tokenizer));
  return read_merges(json, merges, tokenizer);
}

// ---------------------------------------------------------------------------------------------------------------------
// added_tokens

// Adds one token's bytes to the trie. The caller made room for as many edges and nodes as there are bytes.
static void add_to_set(mlx_added_set_t *set, const char *text, size_t length, size_t added_index) {
  uint64_t node = 0;
  set->starts[(uint8_t)text[0]] = true;
  for (size_t i = 0; i < length; ++i) {
    uint64_t key = mlx_pair((uint32_t)node, (uint8_t)text[i]);
    if (mlx_pair_map_get(&set->edges, key, &node)) continue;
    node = set->nodes++;
    set->ends[node] = -1;
    mlx_pair_map_put(&set->edges, key, node);
  }
  set->ends[node] = (int32_t)added_index;
}

static mlx_status_t create_set(size_t bytes, uint64_t seed, mlx_added_set_t *out_set) {
  MLX_TRY(mlx_pair_map_create(bytes, seed, &out_set->edges));
  MLX_TRY(mlx_alloc(bytes + 1, sizeof *out_set->ends, &out_set->ends));
  out_set->ends[0] = -1;
  out_set->nodes = 1;
  return NULL;
}

// Hugging Face numbers added tokens itself: by the vocabulary where they are in it, else counting on. A file that says
// otherwise would mean other ids here than there.
static mlx_status_t check_added_id(const mlx_json_t *json, const mlx_tokenizer_t *tokenizer, const char *path,
                                   int32_t id, int32_t in_vocab, size_t model_size, int32_t highest) {
  char full[PATH_SIZE];
  size_t expected = highest >= 0 && (size_t)highest >= model_size ? (size_t)highest + 1 : model_size;
  if (in_vocab >= 0) expected = (size_t)in_vocab;
  if ((size_t)id != expected) {
    return field_error(json, MLX_INVALID_INPUT, join_path(full, path, "id"),
                       "is %d, but by model.vocab and the added tokens before it must be %zu", id, expected);
  }
  if (in_vocab < 0 && tokenizer->tokens[id].text) {
    return taken_error(json, join_path(full, path, "id"), "is", id, &tokenizer->tokens[id]);
  }
  return NULL;
}

static mlx_status_t read_added_token(const mlx_json_t *json, yyjson_val *object, const char *path,
                                     mlx_tokenizer_t *tokenizer, size_t model_size, int32_t highest,
                                     size_t *inout_used) {
  char full[PATH_SIZE];
  yyjson_val *content = mlx_json_find(object, "content");
  const char *text = yyjson_get_str(content);
  size_t length = yyjson_get_len(content);
  bool normalized, special;
  mlx_added_token_t added = {.id = (int32_t)yyjson_get_uint(mlx_json_find(object, "id"))};  // checked by measure
  join_path(full, path, "content");
  if (!text || !length) return field_error(json, MLX_INVALID_INPUT, full, "must be a text");
  if (length > MAX_ADDED_LENGTH) {
    return field_error(json, MLX_UNSUPPORTED, full, "is longer than %d bytes", MAX_ADDED_LENGTH);
  }
  MLX_TRY(read_bool(json, path, object, "special", false, &special));
  MLX_TRY(read_bool(json, path, object, "normalized", !special, &normalized));
  MLX_TRY(read_bool(json, path, object, "single_word", false, &added.single_word));
  MLX_TRY(read_bool(json, path, object, "lstrip", false, &added.lstrip));
  MLX_TRY(read_bool(json, path, object, "rstrip", false, &added.rstrip));
  int32_t in_vocab = mlx_names_find(tokenizer, text, length);
  if (in_vocab >= 0 && tokenizer->tokens[in_vocab].added) {
    return field_error(json, MLX_INVALID_INPUT, full, "'%.60s' is added twice", text);
  }
  MLX_TRY(check_added_id(json, tokenizer, path, added.id, in_vocab, model_size, highest));
  if (in_vocab < 0) set_token(tokenizer, added.id, text, length, inout_used);
  tokenizer->tokens[added.id].added = true;
  tokenizer->tokens[added.id].special = special;
  add_to_set(normalized ? &tokenizer->normalized_added : &tokenizer->raw_added, text, length, tokenizer->added_count);
  tokenizer->added[tokenizer->added_count++] = added;
  return NULL;
}

static mlx_status_t read_added_tokens(const mlx_json_t *json, yyjson_val *list, size_t model_size,
                                      mlx_tokenizer_t *tokenizer, size_t *inout_used) {
  char path[PATH_SIZE];
  size_t index, max, bytes = 0;
  yyjson_val *object;
  int32_t highest = -1;
  bool any_single_word = false;
  yyjson_arr_foreach(list, index, max, object) { bytes += yyjson_get_len(mlx_json_find(object, "content")); }
  MLX_TRY(create_set(bytes, tokenizer->seed, &tokenizer->raw_added));
  MLX_TRY(create_set(bytes, tokenizer->seed, &tokenizer->normalized_added));
  MLX_TRY(mlx_alloc(yyjson_arr_size(list), sizeof *tokenizer->added, &tokenizer->added));
  yyjson_arr_foreach(list, index, max, object) {
    MLX_TRY(read_added_token(json, object, index_path(path, "added_tokens", index), tokenizer, model_size, highest,
                             inout_used));
    const mlx_added_token_t *added = &tokenizer->added[tokenizer->added_count - 1];
    if (added->id > highest) highest = added->id;
    any_single_word |= added->single_word;
  }
  return any_single_word ? mlx_regex_create(word_pattern, sizeof word_pattern - 1, &tokenizer->word_regex) : NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// normalizer and pre_tokenizer

static mlx_status_t check_normalizer(const mlx_json_t *json, yyjson_val *normalizer, const char *path) {
  char full[PATH_SIZE], item[PATH_SIZE];
  const char *type;
  size_t index, max;
  yyjson_val *child;
  if (!normalizer) return NULL;
  MLX_TRY(read_type(json, path, normalizer, &type));
  if (strcmp(type, "Sequence")) return refuse_type(json, path, type, "a tokenizer without a normalizer is");
  yyjson_val *list = mlx_json_find(normalizer, "normalizers");
  MLX_TRY(need_container(json, join_path(full, path, "normalizers"), list, true));
  yyjson_arr_foreach(list, index, max, child) { MLX_TRY(check_normalizer(json, child, index_path(item, full, index))); }
  return NULL;
}

// State of reading pre_tokenizer, which nests.
typedef struct steps_reader {
  const mlx_json_t *json;
  mlx_tokenizer_t *tokenizer;
  bool after_byte_level;
} steps_reader_t;

static mlx_status_t add_step(steps_reader_t *reader, const char *path, const char *pattern, size_t length,
                             mlx_split_behavior_t behavior, bool invert) {
  mlx_split_step_t *step = &reader->tokenizer->steps[reader->tokenizer->step_count];
  if (reader->tokenizer->step_count >= MAX_STEPS) {
    return field_error(reader->json, MLX_UNSUPPORTED, path, "is one of more than %d steps", MAX_STEPS);
  }
  if (pattern) {
    mlx_status_t status = mlx_regex_create(pattern, length, &step->regex);
    if (status) return mlx_status_annotate(status, "%s: field '%s'", reader->json->name, path);
  }
  step->behavior = behavior;
  step->invert = invert;
  ++reader->tokenizer->step_count;
  return NULL;
}

static mlx_status_t read_byte_level(steps_reader_t *reader, yyjson_val *object, const char *path) {
  bool add_prefix_space, use_regex;
  MLX_TRY(read_bool(reader->json, path, object, "add_prefix_space", true, &add_prefix_space));
  MLX_TRY(read_bool(reader->json, path, object, "use_regex", true, &use_regex));
  reader->after_byte_level = true;
  if (add_prefix_space) MLX_TRY(add_step(reader, path, NULL, 0, MLX_SPLIT_ISOLATED, false));
  if (!use_regex) return NULL;
  return add_step(reader, path, byte_level_pattern, sizeof byte_level_pattern - 1, MLX_SPLIT_ISOLATED, false);
}

static mlx_status_t read_behavior(const mlx_json_t *json, yyjson_val *object, const char *path,
                                  mlx_split_behavior_t *out_behavior) {
  static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
  char full[PATH_SIZE];
  const char *name = yyjson_get_str(mlx_json_find(object, "behavior"));
  join_path(full, path, "behavior");
  if (!name) return field_error(json, MLX_INVALID_INPUT, full, "must be a string");
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    *out_behavior = (mlx_split_behavior_t)i;
    if (!strcmp(name, names[i])) return NULL;
  }
  return field_error(json, MLX_UNSUPPORTED, full, "is '%.60s', which is not supported", name);
}

// A literal as a pattern: the same characters escaped as Rust's regex::escape does, which is what the package compiles.
static void escape(mlx_text_t *out, const char *text, size_t length) {
  for (size_t i = 0; i < length; ++i) {
    if (text[i] && strchr("\\.+*?()|[]{}^$#&-~", text[i])) mlx_text_append(out, "\\", 1);
    mlx_text_append(out, text + i, 1);
  }
}

static mlx_status_t read_split(steps_reader_t *reader, yyjson_val *object, const char *path) {
  char full[PATH_SIZE];
  bool invert;
  mlx_split_behavior_t behavior;
  yyjson_val *pattern = mlx_json_find(object, "pattern");
  yyjson_val *regex = mlx_json_find(pattern, "Regex"), *literal = mlx_json_find(pattern, "String");
  MLX_TRY(read_behavior(reader->json, object, path, &behavior));
  MLX_TRY(read_bool(reader->json, path, object, "invert", false, &invert));
  join_path(full, path, "pattern");
  if (yyjson_is_str(regex) && !literal) {
    return add_step(reader, full, yyjson_get_str(regex), yyjson_get_len(regex), behavior, invert);
  }
  if (!yyjson_is_str(literal) || regex) {
    return field_error(reader->json, MLX_INVALID_INPUT, full, "must be {\"Regex\": text} or {\"String\": text}");
  }
  mlx_text_t escaped = {0};
  escape(&escaped, yyjson_get_str(literal), yyjson_get_len(literal));
  mlx_status_t status = mlx_text_finish(&escaped);
  if (!status) status = add_step(reader, full, escaped.data, escaped.length, behavior, invert);
  mlx_text_clear(&escaped);
  return status;
}

static mlx_status_t read_pre_tokenizer(steps_reader_t *reader, yyjson_val *object, const char *path) {
  char full[PATH_SIZE], item[PATH_SIZE];
  const char *type;
  MLX_TRY(read_type(reader->json, path, object, &type));
  if (!strcmp(type, "Sequence")) {
    size_t index, max;
    yyjson_val *child, *list = mlx_json_find(object, "pretokenizers");
    MLX_TRY(need_container(reader->json, join_path(full, path, "pretokenizers"), list, true));
    yyjson_arr_foreach(list, index, max, child) {
      MLX_TRY(read_pre_tokenizer(reader, child, index_path(item, full, index)));
    }
    return NULL;
  }
  // After ByteLevel the text is spelled in other characters; no known file splits it further.
  if (reader->after_byte_level) {
    return field_error(reader->json, MLX_UNSUPPORTED, path, "comes after ByteLevel, which must be last");
  }
  if (!strcmp(type, "ByteLevel")) return read_byte_level(reader, object, path);
  if (!strcmp(type, "Split")) return read_split(reader, object, path);
  if (!strcmp(type, "Digits")) {
    bool individual;
    MLX_TRY(read_bool(reader->json, path, object, "individual_digits", false, &individual));
    return add_step(reader, path, digits_pattern, sizeof digits_pattern - 1,
                    individual ? MLX_SPLIT_ISOLATED : MLX_SPLIT_CONTIGUOUS, false);
  }
  return refuse_type(reader->json, path, type, "ByteLevel, Digits, Split and Sequence are");
}

static mlx_status_t read_pre_tokenizers(const mlx_json_t *json, mlx_tokenizer_t *tokenizer) {
  yyjson_val *object = mlx_json_find(json->root, "pre_tokenizer");
  steps_reader_t reader = {.json = json, .tokenizer = tokenizer};
  MLX_TRY(mlx_alloc(MAX_STEPS + 1, sizeof *tokenizer->steps, &tokenizer->steps));
  if (object) MLX_TRY(read_pre_tokenizer(&reader, object, "pre_tokenizer"));
  if (reader.after_byte_level) return NULL;
  return field_error(json, MLX_UNSUPPORTED, "pre_tokenizer", "has no ByteLevel; only byte-level tokenizers are supported");
}

// ---------------------------------------------------------------------------------------------------------------------
// decoder and post_processor

static mlx_status_t check_decoder(const mlx_json_t *json, yyjson_val *object, const char *path) {
  char full[PATH_SIZE], item[PATH_SIZE];
  const char *type;
  if (!object) return field_error(json, MLX_UNSUPPORTED, path, "is null; only ByteLevel is supported");
  MLX_TRY(read_type(json, path, object, &type));
  if (!strcmp(type, "ByteLevel")) return NULL;
  if (strcmp(type, "Sequence")) return refuse_type(json, path, type, "ByteLevel is");
  yyjson_val *list = mlx_json_find(object, "decoders");
  MLX_TRY(need_container(json, join_path(full, path, "decoders"), list, true));
  if (yyjson_arr_size(list) != 1) return field_error(json, MLX_UNSUPPORTED, full, "must hold ByteLevel alone");
  return check_decoder(json, yyjson_arr_get_first(list), index_path(item, full, 0));
}

static mlx_status_t add_template_id(const mlx_json_t *json, const char *path, int32_t id, mlx_tokenizer_t *tokenizer) {
  if (tokenizer->template_count >= MAX_TEMPLATE) {
    return field_error(json, MLX_UNSUPPORTED, path, "is longer than %d tokens", MAX_TEMPLATE);
  }
  tokenizer->template_ids[tokenizer->template_count++] = id;
  return NULL;
}

// One item of a template: {"SpecialToken": {"id": "<s>"}} or {"Sequence": {"id": "A"}}.
static mlx_status_t read_template_item(const mlx_json_t *json, yyjson_val *special_tokens, yyjson_val *item,
                                       const char *path, mlx_tokenizer_t *tokenizer) {
  char ids_path[PATH_SIZE];
  size_t index, max;
  yyjson_val *value, *sequence = mlx_json_find(item, "Sequence"), *special = mlx_json_find(item, "SpecialToken");
  const char *name = yyjson_get_str(mlx_json_find(sequence ? sequence : special, "id"));
  if (!name) return field_error(json, MLX_INVALID_INPUT, path, "must be a Sequence or a SpecialToken with an id");
  if (sequence) {
    if (!strcmp(name, "A")) return add_template_id(json, path, MLX_TEMPLATE_TEXT, tokenizer);
    return field_error(json, MLX_UNSUPPORTED, path, "is sequence '%.60s'; only A is supported", name);
  }
  make_path(ids_path, "%s (special token '%.60s')", path, name);
  yyjson_val *ids = mlx_json_find(mlx_json_find(special_tokens, name), "ids");
  MLX_TRY(need_container(json, ids_path, ids, true));
  yyjson_arr_foreach(ids, index, max, value) {
    int32_t id;
    MLX_TRY(read_id(json, ids_path, "", value, &id));
    if ((size_t)id >= tokenizer->vocab_size || !tokenizer->tokens[id].text) {
      return field_error(json, MLX_INVALID_INPUT, ids_path, "has id %d, which no token has", id);
    }
    MLX_TRY(add_template_id(json, ids_path, id, tokenizer));
  }
  return NULL;
}

static mlx_status_t read_template(const mlx_json_t *json, yyjson_val *object, const char *path,
                                  mlx_tokenizer_t *tokenizer) {
  char full[PATH_SIZE], item_path[PATH_SIZE];
  size_t index, max;
  yyjson_val *item, *single = mlx_json_find(object, "single");
  if (tokenizer->template_ids) return field_error(json, MLX_UNSUPPORTED, path, "is a second TemplateProcessing");
  MLX_TRY(need_container(json, join_path(full, path, "single"), single, true));
  MLX_TRY(mlx_alloc(MAX_TEMPLATE, sizeof *tokenizer->template_ids, &tokenizer->template_ids));
  yyjson_arr_foreach(single, index, max, item) {
    MLX_TRY(read_template_item(json, mlx_json_find(object, "special_tokens"), item, index_path(item_path, full, index),
                               tokenizer));
  }
  return NULL;
}

static mlx_status_t read_post_processor(const mlx_json_t *json, yyjson_val *object, const char *path,
                                        mlx_tokenizer_t *tokenizer) {
  char full[PATH_SIZE], item[PATH_SIZE];
  const char *type;
  size_t index, max;
  yyjson_val *child;
  if (!object) return NULL;
  MLX_TRY(read_type(json, path, object, &type));
  if (!strcmp(type, "ByteLevel")) return NULL;  // moves offsets only
  if (!strcmp(type, "TemplateProcessing")) return read_template(json, object, path, tokenizer);
  if (strcmp(type, "Sequence")) return refuse_type(json, path, type, "ByteLevel, TemplateProcessing and Sequence are");
  yyjson_val *list = mlx_json_find(object, "processors");
  MLX_TRY(need_container(json, join_path(full, path, "processors"), list, true));
  yyjson_arr_foreach(list, index, max, child) {
    MLX_TRY(read_post_processor(json, child, index_path(item, full, index), tokenizer));
  }
  return NULL;
}

// ---------------------------------------------------------------------------------------------------------------------

mlx_status_t mlx_tokenizer_read(const mlx_json_t *json, mlx_tokenizer_t *tokenizer) {
  yyjson_val *added = mlx_json_find(json->root, "added_tokens");
  yyjson_val *vocab = mlx_json_find(mlx_json_find(json->root, "model"), "vocab");
  size_t arena_used = 0;
  if (added) MLX_TRY(need_container(json, "added_tokens", added, true));
  MLX_TRY(refuse_unless_null(json, "truncation"));
  MLX_TRY(refuse_unless_null(json, "padding"));
  MLX_TRY(read_model(json, tokenizer, added, &arena_used));
  MLX_TRY(read_added_tokens(json, added, yyjson_obj_size(vocab), tokenizer, &arena_used));
  MLX_TRY(check_normalizer(json, mlx_json_find(json->root, "normalizer"), "normalizer"));
  MLX_TRY(read_pre_tokenizers(json, tokenizer));
  MLX_TRY(check_decoder(json, mlx_json_find(json->root, "decoder"), "decoder"));
  return read_post_processor(json, mlx_json_find(json->root, "post_processor"), "post_processor", tokenizer);
}
