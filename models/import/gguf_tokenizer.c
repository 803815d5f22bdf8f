// Writes a Hugging Face tokenizer.json from the tokenizer.* fields of a GGUF file, so that the runtime knows one tokenizer
// format only.
//
// Byte-level BPE ("gpt2") only. GGUF names the pre-tokenizer instead of describing it, so there is a table from that name to
// what the model's own tokenizer.json says (llama.cpp leaves out the Unicode normalisation some of them have; we do not).
// A name that is not in the table is refused: guessing would give other tokens than Hugging Face, silently.
#include <stdint.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "models/import/gguf.h"
#include "models/import/name.h"

#define KEY(name) "tokenizer.ggml." name

// ---------------------------------------------------------------------------------------------------------------------
// Pre-tokenizers

#define BYTE_LEVEL(regex) \
  "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":" regex "}"
#define SPLIT(regex) "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define SEQUENCE(parts) "{\"type\":\"Sequence\",\"pretokenizers\":[" parts "]}"
#define DIGITS "{\"type\":\"Digits\",\"individual_digits\":true}"
#define NFC "{\"type\":\"NFC\"}"
// The words of GPT-4 and its heirs, with |digits| for how many of them make one word. In JSON's and in C's escapes.
#define MODERN_WORDS(digits)                                                     \
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" digits \
  "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define GPT2_WORDS "'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+"

#define GPT2 BYTE_LEVEL("true")
#define SINGLE_DIGITS SEQUENCE(DIGITS "," BYTE_LEVEL("true"))
#define LLAMA3 SEQUENCE(SPLIT(MODERN_WORDS("\\\\p{N}{1,3}")) "," BYTE_LEVEL("false"))
#define QWEN2 SEQUENCE(SPLIT(MODERN_WORDS("\\\\p{N}")) "," BYTE_LEVEL("false"))
// What llama.cpp does for this name: punctuation, then GPT-2's words, then digits in threes.
#define DEFAULT                                                                                                 \
  SEQUENCE(SPLIT("[\\\\p{P}\\\\$\\\\+<=>\\\\^~\\\\|]+") "," SPLIT(GPT2_WORDS) "," SPLIT("\\\\p{N}+") "," SPLIT( \
      "[0-9][0-9][0-9]") "," BYTE_LEVEL("false"))

typedef struct pre {
  const char *name;           // tokenizer.ggml.pre
  const char *pre_tokenizer;  // JSON
  const char *normalizer;     // JSON
  bool ignore_merges;         // a word that is a token as it stands is that token
  bool add_bos;               // when the file does not say
} pre_t;

static const pre_t pres[] = {
    {"default", DEFAULT, "null", false, false},
    {"gpt-2", GPT2, "null", false, false},
    {"phi-2", GPT2, "null", false, false},
    {"mpt", GPT2, NFC, false, false},
    {"olmo", GPT2, NFC, false, false},
    {"smollm", SINGLE_DIGITS, "null", false, false},
    {"starcoder", SINGLE_DIGITS, "null", false, false},
    {"refact", SINGLE_DIGITS, "null", false, false},
    {"llama-bpe", LLAMA3, "null", true, true},
    {"llama3", LLAMA3, "null", true, true},
    {"llama-v3", LLAMA3, "null", true, true},
    {"qwen2", QWEN2, NFC, false, false},
};

static mlx_status_t unknown_pre(const mlx_gguf_t *gguf, const char *name) {
  mlx_text_t known = {0};
  for (size_t i = 0; i < sizeof pres / sizeof *pres; ++i) mlx_text_printf(&known, "%s%s", i ? ", " : "", pres[i].name);
  mlx_status_t status = mlx_text_finish(&known);
  if (!status && name) {
    status = mlx_gguf_error(gguf, KEY("pre"), MLX_UNSUPPORTED, "names the pre-tokenizer '%s'; known are %s",
                            mlx_name_shown(name), known.data);
    status = mlx_status_hint(status, "use the model's Hugging Face directory, which has its own tokenizer.json");
  } else if (!status) {
    status = mlx_gguf_error(gguf, KEY("pre"), MLX_UNSUPPORTED, "is missing, so the tokens would be a guess; known are %s",
                            known.data);
    status =
        mlx_status_hint(status, "the file is from before April 2024: fetch a newer one, or use the Hugging Face directory");
  }
  mlx_text_clear(&known);
  return status;
}

static mlx_status_t find_pre(const mlx_gguf_t *gguf, const pre_t **out_pre) {
  const char *name = NULL;
  bool found;
  MLX_TRY(mlx_gguf_string(gguf, KEY("pre"), &name, &found));
  for (size_t i = 0; found && i < sizeof pres / sizeof *pres; ++i) {
    if (strcmp(pres[i].name, name)) continue;
    *out_pre = &pres[i];
    return NULL;
  }
  return unknown_pre(gguf, name);
}

// ---------------------------------------------------------------------------------------------------------------------
// Vocabulary: the tokens by id, and a hash table from their bytes to the id

typedef struct token {
  const char *bytes;  // borrowed from the file
  size_t length;
} token_t;

typedef struct vocabulary {
  token_t *tokens;
  size_t count;
  uint32_t *slots;  // id + 1, or 0 when free; open addressing
  size_t mask;
} vocabulary_t;

// FNV-1a. Started from an address, so that nobody can prepare a file whose tokens all fall into one slot.
static uint64_t hash_bytes(uint64_t hash, const char *bytes, size_t length) {
  for (size_t i = 0; i < length; ++i) hash = (hash ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001b3);
  return hash;
}

// The slot of the token that is |head| followed by |tail|, or the free slot where it would go.
static uint32_t *find_slot(const vocabulary_t *vocabulary, token_t head, token_t tail) {
  uint64_t hash = hash_bytes((uint64_t)(uintptr_t)vocabulary->slots, head.bytes, head.length);
  hash = hash_bytes(hash, tail.bytes, tail.length);
  for (size_t at = (size_t)(hash ^ hash >> 32);; ++at) {
    uint32_t *slot = &vocabulary->slots[at & vocabulary->mask];
    if (!*slot) return slot;
    const token_t *token = &vocabulary->tokens[*slot - 1];
    if (token->length != head.length + tail.length || memcmp(token->bytes, head.bytes, head.length)) continue;
    if (!memcmp(token->bytes + head.length, tail.bytes, tail.length)) return slot;
  }
}

static bool is_utf8(token_t token) {
  while (token.length) {
    int step = mlx_utf8_length(token.bytes, token.length);
    if (step <= 0) return false;
    token.bytes += step;
    token.length -= (size_t)step;
  }
  return true;
}

static mlx_status_t fill_vocabulary(const mlx_gguf_t *gguf, const mlx_gguf_field_t *field, vocabulary_t *vocabulary) {
  size_t slots = 16;
  while (slots < 2 * (size_t)field->count) slots *= 2;
  MLX_TRY(mlx_alloc(slots, sizeof *vocabulary->slots, &vocabulary->slots));
  MLX_TRY(mlx_alloc((size_t)field->count, sizeof *vocabulary->tokens, &vocabulary->tokens));
  vocabulary->mask = slots - 1;
  const uint8_t *cursor = field->data;
  for (; vocabulary->count < field->count; ++vocabulary->count) {
    token_t token;
    token.bytes = mlx_gguf_next_string(&cursor, &token.length);
    if (!is_utf8(token))
      return mlx_gguf_error(gguf, KEY("tokens"), MLX_INVALID_INPUT, "has a token, %zu, that is not UTF-8",
                            vocabulary->count);
    uint32_t *slot = find_slot(vocabulary, token, (token_t){"", 0});
    if (*slot)
      return mlx_gguf_error(gguf, KEY("tokens"), MLX_INVALID_INPUT, "has the same token at %u and %zu", *slot - 1,
                            vocabulary->count);
    *slot = (uint32_t)vocabulary->count + 1;
    vocabulary->tokens[vocabulary->count] = token;
  }
  return NULL;
}

static mlx_status_t need_array(const mlx_gguf_t *gguf, const char *key, const mlx_gguf_field_t **out_field) {
  *out_field = mlx_gguf_find(gguf, key);
  if (!*out_field) return mlx_gguf_error(gguf, key, MLX_INVALID_INPUT, "is missing");
  if (!(*out_field)->is_array || (*out_field)->type != MLX_GGUF_STRING) {
    return mlx_gguf_error(gguf, key, MLX_INVALID_INPUT, "must be an array of strings");
  }
  if ((*out_field)->count >= INT32_MAX) return mlx_gguf_error(gguf, key, MLX_INVALID_INPUT, "is too long");
  return NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// The parts of the file

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4, TYPE_LAST = 6 };

// Tokens that are found in the text before anything else: control tokens are special, user-defined ones are not.
static mlx_status_t write_added_tokens(const mlx_gguf_t *gguf, const vocabulary_t *vocabulary, mlx_text_t *text) {
  const mlx_gguf_field_t *types = mlx_gguf_find(gguf, KEY("token_type"));
  const char *separator = "\n";
  if (types && (!types->is_array || types->count != vocabulary->count)) {
    return mlx_gguf_error(gguf, KEY("token_type"), MLX_INVALID_INPUT,
                          "must be an array with one number for each of the %zu tokens", vocabulary->count);
  }
  for (size_t i = 0; types && i < vocabulary->count; ++i) {
    int64_t type;
    if (!mlx_gguf_int_at(types, i, &type) || type < 0 || type > TYPE_LAST) {
      return mlx_gguf_error(gguf, KEY("token_type"), MLX_INVALID_INPUT, "has no valid type for token %zu", i);
    }
    bool special = type == TYPE_CONTROL || type == TYPE_UNKNOWN;
    if ((!special && type != TYPE_USER_DEFINED) || !vocabulary->tokens[i].length) continue;
    mlx_text_printf(text, "%s    {\"id\":%zu,\"content\":", separator, i);
    mlx_text_json_string(text, vocabulary->tokens[i].bytes, vocabulary->tokens[i].length);
    mlx_text_printf(text, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s}",
                    special ? "true" : "false");
    separator = ",\n";
  }
  return NULL;
}

// The id of the token that begins or ends every text, or -1 when none does.
static mlx_status_t read_edge(const mlx_gguf_t *gguf, const vocabulary_t *vocabulary, const char *flag_key,
                              const char *id_key, bool fallback, int64_t *out_id) {
  bool add = fallback, found;
  *out_id = -1;
  MLX_TRY(mlx_gguf_bool(gguf, flag_key, &add, &found));
  return add ? mlx_gguf_int(gguf, id_key, 0, (int64_t)vocabulary->count - 1, out_id, NULL) : NULL;
}

static void write_edge(const vocabulary_t *vocabulary, int64_t id, int type_id, mlx_text_t *text) {
  if (id < 0) return;
  mlx_text_puts(text, type_id < 0 ? "" : "{\"SpecialToken\":{\"id\":");
  mlx_text_json_string(text, vocabulary->tokens[id].bytes, vocabulary->tokens[id].length);
  if (type_id >= 0) mlx_text_printf(text, ",\"type_id\":%d}}", type_id);
}

// BOS, the text, EOS: one element of "single", or one half of "pair".
static void write_sequence(const vocabulary_t *vocabulary, int64_t bos, int64_t eos, char name, int type_id,
                           mlx_text_t *text) {
  write_edge(vocabulary, bos, type_id, text);
  mlx_text_printf(text, "%s{\"Sequence\":{\"id\":\"%c\",\"type_id\":%d}}", bos < 0 ? "" : ",", name, type_id);
  if (eos >= 0) mlx_text_puts(text, ",");
  write_edge(vocabulary, eos, type_id, text);
}

static void write_special(const vocabulary_t *vocabulary, int64_t id, mlx_text_t *text) {
  write_edge(vocabulary, id, -1, text);
  mlx_text_puts(text, ":{\"id\":");
  write_edge(vocabulary, id, -1, text);
  mlx_text_printf(text, ",\"ids\":[%lld],\"tokens\":[", (long long)id);
  write_edge(vocabulary, id, -1, text);
  mlx_text_puts(text, "]}");
}

static mlx_status_t write_post_processor(const mlx_gguf_t *gguf, const vocabulary_t *vocabulary, const pre_t *pre,
                                         mlx_text_t *text) {
  int64_t bos, eos;
  MLX_TRY(read_edge(gguf, vocabulary, KEY("add_bos_token"), KEY("bos_token_id"), pre->add_bos, &bos));
  MLX_TRY(read_edge(gguf, vocabulary, KEY("add_eos_token"), KEY("eos_token_id"), false, &eos));
  if (bos < 0 && eos < 0) {
    mlx_text_puts(text, "null");
    return NULL;
  }
  mlx_text_puts(text, "{\"type\":\"TemplateProcessing\",\"single\":[");
  write_sequence(vocabulary, bos, eos, 'A', 0, text);
  mlx_text_puts(text, "],\"pair\":[");
  write_sequence(vocabulary, bos, eos, 'A', 0, text);
  mlx_text_puts(text, ",");
  write_sequence(vocabulary, bos, eos, 'B', 1, text);
  mlx_text_puts(text, "],\"special_tokens\":{");
  if (bos >= 0) write_special(vocabulary, bos, text);
  if (bos >= 0 && eos >= 0 && bos != eos) mlx_text_puts(text, ",");
  if (eos >= 0 && bos != eos) write_special(vocabulary, eos, text);
  mlx_text_puts(text, "}}");
  return NULL;
}

static void write_vocabulary(const vocabulary_t *vocabulary, mlx_text_t *text) {
  for (size_t i = 0; i < vocabulary->count; ++i) {
    mlx_text_puts(text, i ? ",\n      " : "\n      ");
    mlx_text_json_string(text, vocabulary->tokens[i].bytes, vocabulary->tokens[i].length);
    mlx_text_printf(text, ":%zu", i);
  }
}

// A merge is "LEFT RIGHT"; both and what they make must be tokens.
static mlx_status_t write_merges(const mlx_gguf_t *gguf, const mlx_gguf_field_t *merges, const vocabulary_t *vocabulary,
                                 mlx_text_t *text) {
  const uint8_t *cursor = merges->data;
  token_t none = {"", 0};
  for (uint64_t i = 0; i < merges->count; ++i) {
    size_t length;
    const char *merge = mlx_gguf_next_string(&cursor, &length);
    const char *space = length ? memchr(merge, ' ', length) : NULL;
    size_t cut = space ? (size_t)(space - merge) : 0;
    if (!cut || cut + 1 == length || memchr(space + 1, ' ', length - cut - 1)) {
      return mlx_gguf_error(gguf, KEY("merges"), MLX_INVALID_INPUT,
                            "has an entry, %llu, that is not two tokens with a space between", (unsigned long long)i);
    }
    token_t head = {merge, cut}, tail = {space + 1, length - cut - 1};
    if (!*find_slot(vocabulary, head, none) || !*find_slot(vocabulary, tail, none) || !*find_slot(vocabulary, head, tail)) {
      return mlx_gguf_error(gguf, KEY("merges"), MLX_INVALID_INPUT, "has an entry, %llu, with a part that is not a token",
                            (unsigned long long)i);
    }
    mlx_text_puts(text, i ? ",\n      " : "\n      ");
    mlx_text_json_string(text, merge, length);
  }
  return NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// The whole

static mlx_status_t write_tokenizer(const mlx_gguf_t *gguf, const pre_t *pre, vocabulary_t *vocabulary, mlx_text_t *text) {
  const mlx_gguf_field_t *tokens, *merges;
  MLX_TRY(need_array(gguf, KEY("tokens"), &tokens));
  MLX_TRY(need_array(gguf, KEY("merges"), &merges));
  MLX_TRY(fill_vocabulary(gguf, tokens, vocabulary));
  mlx_text_puts(text, "{\n  \"version\":\"1.0\",\n  \"truncation\":null,\n  \"padding\":null,\n  \"added_tokens\":[");
  MLX_TRY(write_added_tokens(gguf, vocabulary, text));
  mlx_text_printf(text, "],\n  \"normalizer\":%s,\n  \"pre_tokenizer\":%s,\n  \"post_processor\":", pre->normalizer,
                  pre->pre_tokenizer);
  MLX_TRY(write_post_processor(gguf, vocabulary, pre, text));
  mlx_text_puts(
      text,
      ",\n  \"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\n");
  mlx_text_puts(text,
                "  \"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,");
  mlx_text_printf(
      text, "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":%s,\n    \"vocab\":{",
      pre->ignore_merges ? "true" : "false");
  write_vocabulary(vocabulary, text);
  mlx_text_puts(text, "},\n    \"merges\":[");
  MLX_TRY(write_merges(gguf, merges, vocabulary, text));
  mlx_text_puts(text, "]}\n}\n");
  return NULL;
}

mlx_status_t mlx_gguf_tokenizer_json(const mlx_gguf_t *gguf, char **out_json, size_t *out_length) {
  *out_json = NULL;
  const char *model;
  const pre_t *pre = NULL;
  MLX_TRY(mlx_gguf_string(gguf, KEY("model"), &model, NULL));
  if (strcmp(model, "gpt2")) {
    mlx_status_t status = mlx_gguf_error(gguf, KEY("model"), MLX_UNSUPPORTED,
                                         "is '%s'; only 'gpt2' (byte-level BPE) is supported", mlx_name_shown(model));
    return mlx_status_hint(status, "use the model's Hugging Face directory, which has its own tokenizer.json");
  }
  MLX_TRY(find_pre(gguf, &pre));
  vocabulary_t vocabulary = {0};
  mlx_text_t text = {0};
  mlx_status_t status = write_tokenizer(gguf, pre, &vocabulary, &text);
  if (!status) status = mlx_text_take(&text, out_json, out_length);
  mlx_text_clear(&text);
  mlx_free(vocabulary.tokens);
  mlx_free(vocabulary.slots);
  return status;
}

mlx_status_t mlx_gguf_eos_ids(const mlx_gguf_t *gguf, int32_t *out_ids, size_t capacity, size_t *out_count) {
  static const char *const keys[] = {KEY("eos_token_id"), KEY("eot_token_id"), KEY("eom_token_id")};
  const mlx_gguf_field_t *tokens = mlx_gguf_find(gguf, KEY("tokens"));
  int64_t last = tokens && tokens->is_array && tokens->count <= INT32_MAX ? (int64_t)tokens->count - 1 : INT32_MAX;
  *out_count = 0;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; ++i) {
    int64_t id = -1;
    bool found, known = false;
    MLX_TRY(mlx_gguf_int(gguf, keys[i], 0, last, &id, &found));
    for (size_t j = 0; j < *out_count; ++j) known |= out_ids[j] == id;
    if (!found || known) continue;
    if (*out_count == capacity)
      return mlx_gguf_error(gguf, keys[i], MLX_INVALID_INPUT, "is one end-of-text token too many");
    out_ids[(*out_count)++] = (int32_t)id;
  }
  return NULL;
}
