// Writes tokenizer.json for byte-level BPE, tokenizer.ggml.model "gpt2".
//
// GGUF names the pre-tokenizer (tokenizer.ggml.pre) but does not store it. A table maps that name to the
// pre-tokenizer and normalizer of the model's original tokenizer.json. llama.cpp leaves out the Unicode
// normalisation that some of them have; we keep it. An unknown name is an error: a wrong guess would
// tokenize differently from Hugging Face without any sign of it.
#include <string.h>

#include "models/import/gguf_pipeline.h"
#include "models/import/gguf_tokenizer_kinds.h"
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
// The regex of GPT-4 and its successors; |digits| matches a run of digits that is one word. Escaped for JSON
// and for C.
#define MODERN_WORDS(digits)                                                     \
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" digits \
  "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define GPT2_WORDS \
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+"

#define GPT2 BYTE_LEVEL("true")
#define SINGLE_DIGITS SEQUENCE(DIGITS "," BYTE_LEVEL("true"))
#define LLAMA3 SEQUENCE(SPLIT(MODERN_WORDS("\\\\p{N}{1,3}")) "," BYTE_LEVEL("false"))
#define QWEN2 SEQUENCE(SPLIT(MODERN_WORDS("\\\\p{N}")) "," BYTE_LEVEL("false"))
// clang-format off
#define SPLITS(parts) SEQUENCE(parts "," BYTE_LEVEL("false"))
// llama.cpp's splits for this name: punctuation, then GPT-2's words, then groups of three digits.
#define DEFAULT                                                 \
  SPLITS(SPLIT("[\\\\p{P}\\\\$\\\\+<=>\\\\^~\\\\|]+") ","       \
         SPLIT(GPT2_WORDS) ","                                  \
         SPLIT("\\\\p{N}+") ","                                 \
         SPLIT("[0-9][0-9][0-9]"))

// The regex of GPT-4o, which splits upper case from lower case. |suffix| matches 's and similar endings;
// |digits| is as above.
#define NOT_WORD "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"
#define UPPER "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define LOWER "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define CASED_WORDS(suffix, digits)         \
  NOT_WORD UPPER "*" LOWER "+" suffix "|"   \
  NOT_WORD UPPER "+" LOWER "*" suffix "|"   \
  digits                                    \
  "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define GPT4O SPLITS(SPLIT(CASED_WORDS("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "\\\\p{N}{1,3}")))
#define TEKKEN SPLITS(SPLIT(CASED_WORDS("", "\\\\p{N}")))

#define DEEPSEEK_CODER                       \
  SPLITS(SPLIT("[\\r\\n]") ","               \
         SPLIT("\\\\s?\\\\p{L}+") ","        \
         SPLIT("\\\\s?\\\\p{P}+") ","        \
         SPLIT("[一-龥ࠀ-一가-퟿]+") ","      \
         DIGITS)
#define DEEPSEEK_V3                                                                         \
  SPLITS(SPLIT("\\\\p{N}{1,3}") ","                                                         \
         SPLIT("[一-龥぀-ゟ゠-ヿ]+") ","                                                    \
         SPLIT("[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|"          \
               "[^\\r\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+|"                     \
               " ?[\\\\p{P}\\\\p{S}]+[\\r\\n]*|"                                            \
               "\\\\s*[\\r\\n]+|\\\\s+(?!\\\\S)|\\\\s+"))
// clang-format on

typedef struct pre {
  const char *name;           // tokenizer.ggml.pre
  const char *pre_tokenizer;  // JSON
  const char *normalizer;     // JSON
  bool ignore_merges;         // a word that is itself a token is not split by merges
  bool add_bos;               // default of add_bos_token
  bool add_eos;               // default of add_eos_token: encoders have both
} pre_t;

static const pre_t pres[] = {
    {"default", DEFAULT, "null", false, false, false},
    {"gpt-2", GPT2, "null", false, false, false},
    {"phi-2", GPT2, "null", false, false, false},
    {"mpt", GPT2, NFC, false, false, false},
    {"olmo", GPT2, NFC, false, false, false},
    {"smollm", SINGLE_DIGITS, "null", false, false, false},
    {"starcoder", SINGLE_DIGITS, "null", false, false, false},
    {"refact", SINGLE_DIGITS, "null", false, false, false},
    {"llama-bpe", LLAMA3, "null", true, true, false},
    {"llama3", LLAMA3, "null", true, true, false},
    {"llama-v3", LLAMA3, "null", true, true, false},
    {"qwen2", QWEN2, NFC, false, false, false},
    {"command-r", SINGLE_DIGITS, NFC, false, false, false},
    {"dbrx", LLAMA3, "null", false, false, false},
    {"deepseek-coder", DEEPSEEK_CODER, "null", false, false, false},
    {"deepseek-v3", DEEPSEEK_V3, "null", false, false, false},
    {"gpt-4o", GPT4O, "null", false, false, false},
    {"llama4", GPT4O, "null", false, false, false},
    {"tekken", TEKKEN, "null", true, true, false},
    {"roberta-bpe", GPT2, "null", false, true, true},
    {"modern-bert", GPT2, NFC, false, true, true},
};

static mlx_status_t unknown_pre(const mlx_gguf_t *gguf, const char *name) {
  mlx_text_t known = {0};
  for (size_t i = 0; i < sizeof pres / sizeof *pres; ++i)
    mlx_text_printf(&known, "%s%s", i ? ", " : "", pres[i].name);
  mlx_status_t status = mlx_text_finish(&known);
  if (!status && name) {
    status =
        mlx_gguf_error(gguf, KEY("pre"), MLX_UNSUPPORTED, "is '%s', an unknown pre-tokenizer; known are %s",
                       mlx_name_printable(name), known.data);
    status = mlx_status_hint(status, "use the model's Hugging Face directory, which has a tokenizer.json");
  } else if (!status) {
    status = mlx_gguf_error(gguf, KEY("pre"), MLX_UNSUPPORTED,
                            "is missing; without it the token boundaries are unknown. Known values are %s",
                            known.data);
    status = mlx_status_hint(
        status,
        "the file predates April 2024: download a newer GGUF file, or use the Hugging Face directory");
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
// The file

// A merge is "LEFT RIGHT". LEFT, RIGHT and LEFTRIGHT must all be tokens.
mlx_status_t mlx_gguf_write_merges(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                   mlx_json_writer_t *json) {
  const mlx_gguf_field_t *merges;
  MLX_TRY(mlx_gguf_string_array(gguf, KEY("merges"), &merges));
  const uint8_t *cursor = merges->data;
  mlx_gguf_token_t none = {"", 0};
  mlx_json_begin_list(json, "merges", MLX_JSON_ROWS);
  for (uint64_t i = 0; i < merges->count; ++i) {
    size_t length;
    const char *merge = mlx_gguf_next_string(&cursor, &length);
    const char *space = length ? memchr(merge, ' ', length) : NULL;
    size_t cut = space ? (size_t)(space - merge) : 0;
    if (!cut || cut + 1 == length || memchr(space + 1, ' ', length - cut - 1)) {
      return mlx_gguf_error(gguf, KEY("merges"), MLX_INVALID_INPUT,
                            "has entry %llu, which is not two tokens with a space between them",
                            (unsigned long long)i);
    }
    mlx_gguf_token_t head = {merge, cut}, tail = {space + 1, length - cut - 1};
    if (mlx_gguf_vocabulary_find(vocabulary, head, none) < 0 ||
        mlx_gguf_vocabulary_find(vocabulary, tail, none) < 0 ||
        mlx_gguf_vocabulary_find(vocabulary, head, tail) < 0) {
      return mlx_gguf_error(gguf, KEY("merges"), MLX_INVALID_INPUT,
                            "has entry %llu, whose parts or result are not tokens", (unsigned long long)i);
    }
    mlx_json_put_bytes(json, NULL, merge, length);
  }
  mlx_json_end(json);
  return NULL;
}

mlx_status_t mlx_gguf_write_byte_level(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary,
                                       mlx_json_writer_t *json) {
  const pre_t *pre = NULL;
  MLX_TRY(find_pre(gguf, &pre));
  MLX_TRY(mlx_gguf_vocabulary_read(gguf, NULL, vocabulary));
  mlx_gguf_pipeline_t pipeline = {.normalizer = pre->normalizer,
                                  .pre_tokenizer = pre->pre_tokenizer,
                                  .add_bos = pre->add_bos,
                                  .add_eos = pre->add_eos,
                                  .bos_key = KEY("bos_token_id"),
                                  .eos_key = KEY("eos_token_id")};
  MLX_TRY(mlx_gguf_write_pipeline(gguf, vocabulary, &pipeline, json));
  mlx_json_begin_object(json, "decoder", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "type", "ByteLevel");
  mlx_json_put_bool(json, "add_prefix_space", true);
  mlx_json_put_bool(json, "trim_offsets", true);
  mlx_json_put_bool(json, "use_regex", true);
  mlx_json_end(json);
  mlx_json_begin_object(json, "model", MLX_JSON_COMPACT);
  mlx_json_put_text(json, "type", "BPE");
  mlx_json_put_null(json, "dropout");
  mlx_json_put_null(json, "unk_token");
  mlx_json_put_null(json, "continuing_subword_prefix");
  mlx_json_put_null(json, "end_of_word_suffix");
  mlx_json_put_bool(json, "fuse_unk", false);
  mlx_json_put_bool(json, "byte_fallback", false);
  mlx_json_put_bool(json, "ignore_merges", pre->ignore_merges);
  mlx_json_set_layout(json, MLX_JSON_ROWS);
  mlx_gguf_write_vocabulary(vocabulary, json);
  MLX_TRY(mlx_gguf_write_merges(gguf, vocabulary, json));
  mlx_json_end(json);
  return NULL;
}
