// Writes a Hugging Face tokenizer.json from the tokenizer.* fields of a GGUF file, so that the runtime knows
// one tokenizer format only.
//
// Here is what all kinds share, and byte-level BPE ("gpt2"); the others are in gguf_wordlike.c. GGUF names
// the pre-tokenizer instead of describing it, so there is a table from that name to what the model's own
// tokenizer.json says (llama.cpp leaves out the Unicode normalisation some of them have; we do not). A name
// that is not in the table is refused: guessing would give other tokens than Hugging Face, silently.
#include "models/import/gguf_tokenizer.h"

#include <string.h>

#include "models/import/name.h"

#define KEY MLX_TOKENIZER_KEY

// ----------------------------------------------------------------------------------------------------------
// Pre-tokenizers

#define BYTE_LEVEL(regex) \
  "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":" regex "}"
#define SPLIT(regex) \
  "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define SEQUENCE(parts) "{\"type\":\"Sequence\",\"pretokenizers\":[" parts "]}"
#define DIGITS "{\"type\":\"Digits\",\"individual_digits\":true}"
#define NFC "{\"type\":\"NFC\"}"
// The words of GPT-4 and its heirs, with |digits| for how many of them make one word. In JSON's and in C's
// escapes.
#define MODERN_WORDS(digits)                                                     \
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" digits \
  "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define GPT2_WORDS \
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+"

#define GPT2 BYTE_LEVEL("true")
#define SINGLE_DIGITS SEQUENCE(DIGITS "," BYTE_LEVEL("true"))
#define LLAMA3 SEQUENCE(SPLIT(MODERN_WORDS("\\\\p{N}{1,3}")) "," BYTE_LEVEL("false"))
#define QWEN2 SEQUENCE(SPLIT(MODERN_WORDS("\\\\p{N}")) "," BYTE_LEVEL("false"))
// What llama.cpp does for this name: punctuation, then GPT-2's words, then digits in threes.
#define DEFAULT                                                                          \
  SEQUENCE(SPLIT("[\\\\p{P}\\\\$\\\\+<=>\\\\^~\\\\|]+") "," SPLIT(GPT2_WORDS) "," SPLIT( \
      "\\\\p{N}+") "," SPLIT("[0-9][0-9][0-9]") "," BYTE_LEVEL("false"))

#define PLAIN_SPLITS(parts) SEQUENCE(parts "," BYTE_LEVEL("false"))
// The words of GPT-4o: capitals and small letters apart; |suffix| for 's and its kin, |digits| as above.
#define CASED_WORDS(suffix, digits)                                                                         \
  "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]*[\\\\p{Ll}\\\\p{Lm}\\\\p{"  \
  "Lo}\\\\p{M}]+" suffix                                                                                    \
  "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]+[\\\\p{Ll}\\\\p{Lm}\\\\p{" \
  "Lo}\\\\p{M}]*" suffix "|" digits                                                                         \
  "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define GPT4O PLAIN_SPLITS(SPLIT(CASED_WORDS("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "\\\\p{N}{1,3}")))
#define TEKKEN PLAIN_SPLITS(SPLIT(CASED_WORDS("", "\\\\p{N}")))
#define DEEPSEEK_CODER                                                                                \
  PLAIN_SPLITS(SPLIT("[\\r\\n]") "," SPLIT("\\\\s?\\\\p{L}+") "," SPLIT("\\\\s?\\\\p{P}+") "," SPLIT( \
      "[一-龥ࠀ-一가-퟿]+") "," DIGITS)
#define DEEPSEEK_V3                                                                                          \
  PLAIN_SPLITS(SPLIT("\\\\p{N}{1,3}") "," SPLIT("[一-龥぀-ゟ゠-ヿ]+") "," SPLIT(                       \
      "[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\\\p{L}\\\\p{P}\\\\p{S}]?" \
      "[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\r\\n]*|\\\\s*[\\r\\n]+|\\\\s+(?!\\\\S)|\\\\s+"))

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
    {"command-r", SINGLE_DIGITS, NFC, false, false},
    {"dbrx", LLAMA3, "null", false, false},
    {"deepseek-coder", DEEPSEEK_CODER, "null", false, false},
    {"deepseek-v3", DEEPSEEK_V3, "null", false, false},
    {"gpt-4o", GPT4O, "null", false, false},
    {"llama4", GPT4O, "null", false, false},
    {"tekken", TEKKEN, "null", true, true},
};

static mlx_status_t unknown_pre(const mlx_gguf_t *gguf, const char *name) {
  mlx_text_t known = {0};
  for (size_t i = 0; i < sizeof pres / sizeof *pres; ++i)
    mlx_text_printf(&known, "%s%s", i ? ", " : "", pres[i].name);
  mlx_status_t status = mlx_text_finish(&known);
  if (!status && name) {
    status = mlx_gguf_error(gguf, KEY("pre"), MLX_UNSUPPORTED, "names the pre-tokenizer '%s'; known are %s",
                            mlx_name_shown(name), known.data);
    status =
        mlx_status_hint(status, "use the model's Hugging Face directory, which has its own tokenizer.json");
  } else if (!status) {
    status = mlx_gguf_error(gguf, KEY("pre"), MLX_UNSUPPORTED,
                            "is missing, so the tokens would be a guess; known are %s", known.data);
    status = mlx_status_hint(
        status, "the file is from before April 2024: fetch a newer one, or use the Hugging Face directory");
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

// ----------------------------------------------------------------------------------------------------------
// Vocabulary: the tokens by id, and a hash table from their bytes to the id

// FNV-1a. Started from an address, so that nobody can prepare a file whose tokens all fall into one slot.
static uint64_t hash_bytes(uint64_t hash, const char *bytes, size_t length) {
  for (size_t i = 0; i < length; ++i) hash = (hash ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001b3);
  return hash;
}

// The slot of the token that is |head| followed by |tail|, or the free slot where it would go.
static uint32_t *find_slot(const mlx_gguf_vocabulary_t *vocabulary, mlx_gguf_token_t head,
                           mlx_gguf_token_t tail) {
  uint64_t hash = hash_bytes((uint64_t)(uintptr_t)vocabulary->slots, head.bytes, head.length);
  hash = hash_bytes(hash, tail.bytes, tail.length);
  for (size_t at = (size_t)(hash ^ hash >> 32);; ++at) {
    uint32_t *slot = &vocabulary->slots[at & vocabulary->mask];
    if (!*slot) return slot;
    const mlx_gguf_token_t *token = &vocabulary->tokens[*slot - 1];
    if (token->length != head.length + tail.length || memcmp(token->bytes, head.bytes, head.length)) continue;
    if (!memcmp(token->bytes + head.length, tail.bytes, tail.length)) return slot;
  }
}

int64_t mlx_gguf_vocabulary_find(const mlx_gguf_vocabulary_t *vocabulary, mlx_gguf_token_t head,
                                 mlx_gguf_token_t tail) {
  return (int64_t)*find_slot(vocabulary, head, tail) - 1;
}

static bool is_utf8(mlx_gguf_token_t token) {
  while (token.length) {
    int step = mlx_utf8_length(token.bytes, token.length);
    if (step <= 0) return false;
    token.bytes += step;
    token.length -= (size_t)step;
  }
  return true;
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

static mlx_status_t read_types(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary, size_t count) {
  const mlx_gguf_field_t *types = mlx_gguf_find(gguf, KEY("token_type"));
  MLX_TRY(mlx_alloc(count, sizeof *vocabulary->types, &vocabulary->types));
  memset(vocabulary->types, MLX_TOKEN_NORMAL, count);
  if (!types) return NULL;
  if (!types->is_array || types->count != count) {
    return mlx_gguf_error(gguf, KEY("token_type"), MLX_INVALID_INPUT,
                          "must be an array with one number for each of the %zu tokens", count);
  }
  for (size_t i = 0; i < count; ++i) {
    int64_t type;
    if (!mlx_gguf_int_at(types, i, &type) || type < 0 || type > MLX_TOKEN_BYTE) {
      return mlx_gguf_error(gguf, KEY("token_type"), MLX_INVALID_INPUT, "has no valid type for token %zu", i);
    }
    vocabulary->types[i] = (uint8_t)type;
  }
  return NULL;
}

// Lets |spell| write every token anew.
static mlx_status_t spell_tokens(mlx_gguf_vocabulary_t *vocabulary, mlx_gguf_spell_t spell, size_t count) {
  mlx_text_t *spelled = &vocabulary->spelled;
  for (size_t i = 0; i < count; ++i) {
    size_t before = spelled->length;
    spell(vocabulary->tokens[i], vocabulary->types[i], spelled);
    vocabulary->tokens[i].length = spelled->length - before;
  }
  MLX_TRY(mlx_text_finish(spelled));
  const char *at = spelled->data;
  for (size_t i = 0; i < count; at += vocabulary->tokens[i++].length) vocabulary->tokens[i].bytes = at;
  return NULL;
}

mlx_status_t mlx_gguf_vocabulary_read(const mlx_gguf_t *gguf, mlx_gguf_spell_t spell,
                                      mlx_gguf_vocabulary_t *out) {
  const mlx_gguf_field_t *field;
  size_t slots = 16;
  MLX_TRY(need_array(gguf, KEY("tokens"), &field));
  while (slots < 2 * (size_t)field->count) slots *= 2;
  MLX_TRY(mlx_alloc(slots, sizeof *out->slots, &out->slots));
  MLX_TRY(mlx_alloc((size_t)field->count, sizeof *out->tokens, &out->tokens));
  MLX_TRY(read_types(gguf, out, (size_t)field->count));
  out->mask = slots - 1;
  const uint8_t *cursor = field->data;
  for (uint64_t i = 0; i < field->count; ++i) {
    out->tokens[i].bytes = mlx_gguf_next_string(&cursor, &out->tokens[i].length);
    if (!is_utf8(out->tokens[i])) {
      return mlx_gguf_error(gguf, KEY("tokens"), MLX_INVALID_INPUT, "has a token, %llu, that is not UTF-8",
                            (unsigned long long)i);
    }
  }
  if (spell) MLX_TRY(spell_tokens(out, spell, (size_t)field->count));
  for (; out->count < field->count; ++out->count) {
    uint32_t *slot = find_slot(out, out->tokens[out->count], (mlx_gguf_token_t){"", 0});
    if (*slot) {
      return mlx_gguf_error(gguf, KEY("tokens"), MLX_INVALID_INPUT, "has the same token at %u and %zu",
                            *slot - 1, out->count);
    }
    *slot = (uint32_t)out->count + 1;
  }
  return NULL;
}

void mlx_gguf_vocabulary_clear(mlx_gguf_vocabulary_t *vocabulary) {
  mlx_free(vocabulary->tokens);
  mlx_free(vocabulary->types);
  mlx_free(vocabulary->slots);
  mlx_text_clear(&vocabulary->spelled);
}

// ----------------------------------------------------------------------------------------------------------
// The parts of the file

void mlx_gguf_write_token(const mlx_gguf_vocabulary_t *vocabulary, size_t id, mlx_text_t *text) {
  mlx_text_json_string(text, vocabulary->tokens[id].bytes, vocabulary->tokens[id].length);
}

// Tokens that are found in the text before anything else: control tokens are special, user-defined ones are
// not.
static void write_added_tokens(const mlx_gguf_vocabulary_t *vocabulary, mlx_text_t *text) {
  const char *separator = "\n";
  for (size_t i = 0; i < vocabulary->count; ++i) {
    uint8_t type = vocabulary->types[i];
    bool special = type == MLX_TOKEN_CONTROL || type == MLX_TOKEN_UNKNOWN;
    if ((!special && type != MLX_TOKEN_USER_DEFINED) || !vocabulary->tokens[i].length) continue;
    mlx_text_printf(text, "%s    {\"id\":%zu,\"content\":", separator, i);
    mlx_gguf_write_token(vocabulary, i, text);
    mlx_text_printf(
        text, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s}",
        special ? "true" : "false");
    separator = ",\n";
  }
}

// The id of the token that begins or ends every text, or -1 when none does.
static mlx_status_t read_edge(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                              const char *flag_key, const char *id_key, bool fallback, int64_t *out_id) {
  bool add = fallback, found;
  *out_id = -1;
  MLX_TRY(mlx_gguf_bool(gguf, flag_key, &add, &found));
  return add ? mlx_gguf_int(gguf, id_key, 0, (int64_t)vocabulary->count - 1, out_id, NULL) : NULL;
}

static void write_edge(const mlx_gguf_vocabulary_t *vocabulary, int64_t id, int type_id, mlx_text_t *text) {
  if (id < 0) return;
  mlx_text_puts(text, type_id < 0 ? "" : "{\"SpecialToken\":{\"id\":");
  mlx_gguf_write_token(vocabulary, (size_t)id, text);
  if (type_id >= 0) mlx_text_printf(text, ",\"type_id\":%d}}", type_id);
}

// BOS, the text, EOS: one element of "single", or one half of "pair".
static void write_sequence(const mlx_gguf_vocabulary_t *vocabulary, int64_t bos, int64_t eos, char name,
                           int type_id, mlx_text_t *text) {
  write_edge(vocabulary, bos, type_id, text);
  mlx_text_printf(text, "%s{\"Sequence\":{\"id\":\"%c\",\"type_id\":%d}}", bos < 0 ? "" : ",", name, type_id);
  if (eos >= 0) mlx_text_puts(text, ",");
  write_edge(vocabulary, eos, type_id, text);
}

static void write_special(const mlx_gguf_vocabulary_t *vocabulary, int64_t id, mlx_text_t *text) {
  write_edge(vocabulary, id, -1, text);
  mlx_text_puts(text, ":{\"id\":");
  write_edge(vocabulary, id, -1, text);
  mlx_text_printf(text, ",\"ids\":[%lld],\"tokens\":[", (long long)id);
  write_edge(vocabulary, id, -1, text);
  mlx_text_puts(text, "]}");
}

static mlx_status_t write_post_processor(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                         const mlx_gguf_frame_t *frame, mlx_text_t *text) {
  int64_t bos, eos;
  MLX_TRY(read_edge(gguf, vocabulary, KEY("add_bos_token"), frame->bos_key, frame->add_bos, &bos));
  MLX_TRY(read_edge(gguf, vocabulary, KEY("add_eos_token"), frame->eos_key, frame->add_eos, &eos));
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

mlx_status_t mlx_gguf_write_frame(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                  const mlx_gguf_frame_t *frame, mlx_text_t *text) {
  mlx_text_puts(
      text, "{\n  \"version\":\"1.0\",\n  \"truncation\":null,\n  \"padding\":null,\n  \"added_tokens\":[");
  write_added_tokens(vocabulary, text);
  mlx_text_printf(text, "],\n  \"normalizer\":%s,\n  \"pre_tokenizer\":%s,\n  \"post_processor\":",
                  frame->normalizer, frame->pre_tokenizer);
  return write_post_processor(gguf, vocabulary, frame, text);
}

void mlx_gguf_write_vocabulary(const mlx_gguf_vocabulary_t *vocabulary, mlx_text_t *text) {
  for (size_t i = 0; i < vocabulary->count; ++i) {
    mlx_text_puts(text, i ? ",\n      " : "{\n      ");
    mlx_gguf_write_token(vocabulary, i, text);
    mlx_text_printf(text, ":%zu", i);
  }
  mlx_text_puts(text, vocabulary->count ? "}" : "{}");
}

// ----------------------------------------------------------------------------------------------------------
// Byte-level BPE

// A merge is "LEFT RIGHT"; both and what they make must be tokens.
static mlx_status_t write_merges(const mlx_gguf_t *gguf, const mlx_gguf_field_t *merges,
                                 const mlx_gguf_vocabulary_t *vocabulary, mlx_text_t *text) {
  const uint8_t *cursor = merges->data;
  mlx_gguf_token_t none = {"", 0};
  for (uint64_t i = 0; i < merges->count; ++i) {
    size_t length;
    const char *merge = mlx_gguf_next_string(&cursor, &length);
    const char *space = length ? memchr(merge, ' ', length) : NULL;
    size_t cut = space ? (size_t)(space - merge) : 0;
    if (!cut || cut + 1 == length || memchr(space + 1, ' ', length - cut - 1)) {
      return mlx_gguf_error(gguf, KEY("merges"), MLX_INVALID_INPUT,
                            "has an entry, %llu, that is not two tokens with a space between",
                            (unsigned long long)i);
    }
    mlx_gguf_token_t head = {merge, cut}, tail = {space + 1, length - cut - 1};
    if (!*find_slot(vocabulary, head, none) || !*find_slot(vocabulary, tail, none) ||
        !*find_slot(vocabulary, head, tail)) {
      return mlx_gguf_error(gguf, KEY("merges"), MLX_INVALID_INPUT,
                            "has an entry, %llu, with a part that is not a token", (unsigned long long)i);
    }
    mlx_text_puts(text, i ? ",\n      " : "\n      ");
    mlx_text_json_string(text, merge, length);
  }
  return NULL;
}

static mlx_status_t write_byte_level(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary,
                                     mlx_text_t *text) {
  const pre_t *pre = NULL;
  const mlx_gguf_field_t *merges;
  MLX_TRY(find_pre(gguf, &pre));
  MLX_TRY(need_array(gguf, KEY("merges"), &merges));
  MLX_TRY(mlx_gguf_vocabulary_read(gguf, NULL, vocabulary));
  mlx_gguf_frame_t frame = {.normalizer = pre->normalizer,
                            .pre_tokenizer = pre->pre_tokenizer,
                            .add_bos = pre->add_bos,
                            .bos_key = KEY("bos_token_id"),
                            .eos_key = KEY("eos_token_id")};
  MLX_TRY(mlx_gguf_write_frame(gguf, vocabulary, &frame, text));
  mlx_text_puts(text,
                ",\n  "
                "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_"
                "regex\":true},\n");
  mlx_text_puts(
      text,
      "  "
      "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,");
  mlx_text_printf(text,
                  "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":%"
                  "s,\n    \"vocab\":",
                  pre->ignore_merges ? "true" : "false");
  mlx_gguf_write_vocabulary(vocabulary, text);
  mlx_text_puts(text, ",\n    \"merges\":[");
  MLX_TRY(write_merges(gguf, merges, vocabulary, text));
  mlx_text_puts(text, "]}\n}\n");
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The whole

typedef mlx_status_t (*write_fn_t)(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary,
                                   mlx_text_t *text);

static const struct {
  const char *name;
  write_fn_t write;
} kinds[] = {{"gpt2", write_byte_level},
             {"llama", mlx_gguf_write_sentencepiece},
             {"t5", mlx_gguf_write_unigram},
             {"bert", mlx_gguf_write_wordpiece}};

mlx_status_t mlx_gguf_tokenizer_json(const mlx_gguf_t *gguf, char **out_json, size_t *out_length) {
  *out_json = NULL;
  const char *model;
  write_fn_t write = NULL;
  MLX_TRY(mlx_gguf_string(gguf, KEY("model"), &model, NULL));
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
    if (!strcmp(model, kinds[i].name)) write = kinds[i].write;
  }
  if (!write) {
    mlx_status_t status =
        mlx_gguf_error(gguf, KEY("model"), MLX_UNSUPPORTED,
                       "is '%s'; only 'gpt2' (byte-level BPE), 'llama' (SentencePiece's BPE), 't5' (its "
                       "Unigram) and 'bert' (WordPiece) are supported",
                       mlx_name_shown(model));
    return mlx_status_hint(status,
                           "use the model's Hugging Face directory, which has its own tokenizer.json");
  }
  mlx_gguf_vocabulary_t vocabulary = {0};
  mlx_text_t text = {0};
  mlx_status_t status = write(gguf, &vocabulary, &text);
  if (!status) status = mlx_text_take(&text, out_json, out_length);
  mlx_text_clear(&text);
  mlx_gguf_vocabulary_clear(&vocabulary);
  return status;
}

mlx_status_t mlx_gguf_eos_ids(const mlx_gguf_t *gguf, int32_t *out_ids, size_t capacity, size_t *out_count) {
  static const char *const keys[] = {KEY("eos_token_id"), KEY("eot_token_id"), KEY("eom_token_id")};
  const mlx_gguf_field_t *tokens = mlx_gguf_find(gguf, KEY("tokens"));
  int64_t last =
      tokens && tokens->is_array && tokens->count <= INT32_MAX ? (int64_t)tokens->count - 1 : INT32_MAX;
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
