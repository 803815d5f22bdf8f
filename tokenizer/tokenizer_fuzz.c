// Fuzz target: tokenizer.json files and texts.
//
// The input is a mode byte, a first part that ends at a byte 0xff (which no UTF-8 text contains), and a
// second part. The mode modulo 3 selects what the first part is: 0, a whole tokenizer.json; 1, a Split
// pattern and its behavior, for a valid file; 2, bytes to overwrite in a valid file, as (16-bit offset,
// byte). The mode divided by 3 selects the valid file. The second part is the text to encode; its bytes also
// serve as ids to decode.
//
//   clang -fsanitize=fuzzer,address,undefined ... tokenizer/tokenizer_fuzz.c
#include <stdint.h>
#include <string.h>

#include "base/memory.h"
#include "tokenizer/tokenizer.h"

#define MAX_FUZZ_TEXT 300

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// A valid file of every kind, as two texts: before and after the position where a Split is inserted.
// clang-format off
static const struct {
  const char *start, *end;
} files[] = {
    {"{\"added_tokens\":[{\"id\":13,\"content\":\"<s>\",\"special\":true},{\"id\":14,\"content\":\" \","
     "\"rstrip\":true},{\"id\":9,\"content\":\"aa\",\"single_word\":true,\"lstrip\":true,"
     "\"normalized\":true}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Sequence\","
     "\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},",
     "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}]},"
     "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
     "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[13]}}},"
     "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"ignore_merges\":false,"
     "\"unk_token\":\"c\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"abc\":4,\"Ġ\":5,\"Ġa\":6,\"Ã\":7,"
     "\"©\":8,\"aa\":9,\"1\":10,\"ï\":11,\"Ċ\":12},\"merges\":[\"a b\",[\"ab\",\"c\"],\"Ġ a\",\"a a\"]}}"},
    {"{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true,\"normalized\":true}],"
     "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Prepend\","
     "\"prepend\":\"_\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}]},"
     "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[",
     "{\"type\":\"Punctuation\"}]},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\","
     "\"pattern\":{\"String\":\"_\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
     "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},\"model\":{\"type\":\"BPE\","
     "\"byte_fallback\":true,\"fuse_unk\":true,\"unk_token\":\"<s>\",\"vocab\":{\"<s>\":0,\"<0xC3>\":1,"
     "\"<0xA9>\":2,\"<0x0A>\":3,\"_\":4,\"a\":5,\"b\":6,\"_a\":7,\"ab\":8,\"__\":9},\"merges\":[\"a b\","
     "\"_ a\",\"_ _\"]}}"},
    {"{\"added_tokens\":[{\"id\":9,\"content\":\"<s>\",\"special\":true}],"
     "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Nmt\"},{\"type\":\"NFKC\"},"
     "{\"type\":\"Lowercase\"},{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true},"
     "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"}]},"
     "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},",
     "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\",\"split\":true}]},"
     "\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"_\"},"
     "\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"<s>\",9],\"sep\":[\"a\",2]},"
     "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"byte_fallback\":true,\"vocab\":[[\"<unk>\",0],[\"_\","
     "-1.5],[\"a\",-2.25],[\"b\",-2.5],[\"_a\",-3.0000001],[\"ab\",-3],[\"aa\",-4],[\"é\",-5],[\"<0x41>\","
     "-9]]}}"},
    {"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"BertNormalizer\","
     "\"clean_text\":true,\"handle_chinese_chars\":true,\"strip_accents\":null,\"lowercase\":true},"
     "{\"type\":\"NFKD\"},{\"type\":\"StripAccents\"}]},\"pre_tokenizer\":{\"type\":\"Sequence\","
     "\"pretokenizers\":[",
     "{\"type\":\"BertPreTokenizer\"}]},\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\","
     "\"cleanup\":true},\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"[C]\",1],"
     "\"sep\":[\"[S]\",2]},\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[U]\","
     "\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":20,\"vocab\":{\"[U]\":0,\"[C]\":1,"
     "\"[S]\":2,\"a\":3,\"##a\":4,\"ab\":5,\"##bc\":6,\".\":7,\"'\":8,\"s\":9}}}"},
};
// clang-format on
#define FILE_COUNT (sizeof files / sizeof *files)

static void append_split(mlx_text_t *json, const uint8_t *part, size_t length) {
  static const char *const behaviors[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                          "Contiguous"};
  uint8_t choice = length ? part[0] : 0;
  mlx_text_printf(json, "{\"type\":\"Split\",\"pattern\":{\"%s\":", choice & 0x40 ? "String" : "Regex");
  mlx_text_json_string(json, (const char *)part + (length ? 1 : 0), length ? length - 1 : 0);
  mlx_text_printf(json, "},\"behavior\":\"%s\",", behaviors[choice % 5]);
  mlx_text_printf(json, "\"invert\":%s},", choice & 0x80 ? "true" : "false");
}

static void make_file(uint8_t mode, const uint8_t *part, size_t length, mlx_text_t *json) {
  if (mode % 3 == 0) {
    mlx_text_append(json, (const char *)part, length);
    return;
  }
  mlx_text_puts(json, files[mode / 3 % FILE_COUNT].start);
  if (mode % 3 == 1) append_split(json, part, length);
  mlx_text_puts(json, files[mode / 3 % FILE_COUNT].end);
  for (size_t i = 0; mode % 3 == 2 && !json->failed && i + 2 < length; i += 3) {
    json->data[(part[i] | (size_t)part[i + 1] << 8) % json->length] = (char)part[i + 2];
  }
}

// A stream must give the same text as decoding the whole list, and always valid UTF-8. The one exception is
// byte tokens that are not UTF-8 (tokenizer.h).
static void check_decoding(const mlx_tokenizer_t *tokenizer, const int32_t *ids, size_t count,
                           bool skip_special) {
  mlx_text_t streamed = {0};
  mlx_detokenizer_t detokenizer = {0};
  char *text;
  size_t length;
  for (size_t i = 0; i < count; ++i)
    mlx_detokenizer_push(tokenizer, &detokenizer, ids[i], skip_special, &streamed);
  mlx_detokenizer_flush(tokenizer, &detokenizer, &streamed);
  if (mlx_text_finish(&streamed)) __builtin_trap();
  if (mlx_tokenizer_decode(tokenizer, ids, count, skip_special, &text, &length)) __builtin_trap();
  bool same = length == streamed.length && !memcmp(text, streamed.data, length);
  if (!same && !memmem(text, length, "\xef\xbf\xbd", 3)) __builtin_trap();
  for (size_t i = 0; i < length;) {
    int character = mlx_utf8_length(text + i, length - i);
    if (character <= 0) __builtin_trap();
    i += (size_t)character;
  }
  mlx_text_clear(&streamed);
  mlx_free(text);
}

// A marked text can be encoded and decoded like any other.
static void check_marked(const mlx_tokenizer_t *tokenizer, const char *text, size_t length) {
  mlx_text_t marked = {0};
  int32_t *ids = NULL;
  size_t count = 0;
  mlx_status_t status = mlx_tokenizer_mark(tokenizer, text, length, &marked);
  if (!status) status = mlx_tokenizer_encode(tokenizer, marked.data, marked.length, false, &ids, &count);
  if (!status) check_decoding(tokenizer, ids, count, false);
  mlx_status_free(status);
  mlx_text_clear(&marked);
  mlx_free(ids);
}

// A text with |total| ids, encoded with limits of as many and of fewer.
static void check_limit(const mlx_tokenizer_t *tokenizer, const char *text, size_t length, size_t total) {
  for (size_t limit = total / 2;; limit = total) {
    int32_t *ids;
    size_t count;
    mlx_status_t status =
        mlx_tokenizer_encode_within(tokenizer, text, length, length & 1, limit, &ids, &count);
    if (!status && (limit < total ? ids || count <= limit || count > total : !ids || count != total))
      __builtin_trap();
    mlx_status_free(status);
    mlx_free(ids);
    if (limit == total) return;
  }
}

static void check_text(const mlx_tokenizer_t *tokenizer, const uint8_t *text, size_t length) {
  int32_t *ids, bytes[MAX_FUZZ_TEXT];
  size_t count;
  if (length > MAX_FUZZ_TEXT) length = MAX_FUZZ_TEXT;
  mlx_status_t status = mlx_tokenizer_encode(tokenizer, (const char *)text, length, length & 1, &ids, &count);
  mlx_status_free(status);
  if (!status) check_decoding(tokenizer, ids, count, false);
  if (!status && count) check_limit(tokenizer, (const char *)text, length, count);
  mlx_free(ids);
  check_marked(tokenizer, (const char *)text, length);
  for (size_t i = 0; i < length; ++i) bytes[i] = text[i] - 1;
  check_decoding(tokenizer, bytes, length, true);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 2) return 0;
  const uint8_t *part = data + 1, *cut = memchr(part, 0xff, size - 1);
  size_t part_length = cut ? (size_t)(cut - part) : size - 1;
  const uint8_t *text = cut ? cut + 1 : part;
  size_t text_length = (size_t)(data + size - text);
  mlx_text_t json = {0};
  mlx_tokenizer_t *tokenizer = NULL;
  make_file(data[0], part, part_length, &json);
  mlx_status_t status = mlx_text_finish(&json);
  if (!status) status = mlx_tokenizer_create("fuzz.json", json.data, json.length, &tokenizer);
  mlx_text_clear(&json);
  if (status && data[0] % 3 == 2 && part_length < 3)
    __builtin_trap();  // the unchanged valid file was refused
  if (!status) check_text(tokenizer, text, text_length);
  mlx_status_free(status);
  mlx_tokenizer_free(tokenizer);
  return 0;
}
