// The tokenizer, on a vocabulary small enough to check by hand. Python's `tokenizers` 0.23.3 gives the same
// ids for the same JSON. tests/parity/tokenizer_lines.py compares a real vocabulary on 100,000 lines.
#include <pthread.h>

#include "base/clock.h"
#include "base/memory.h"
#include "tests/goldens/tokenizer_kinds.h"
#include "tests/support/check.h"
#include "tokenizer/tokenizer.h"

// ----------------------------------------------------------------------------------------------------------
// A tokenizer.json with replaceable parts

// clang-format off
#define VOCAB \
  "{\"a\":0,\"b\":1,\"c\":2,\"Ġ\":3,\"ab\":4,\"bc\":5,\"abc\":6,\"Ġa\":7,\"Ã\":8,\"©\":9,\"Ã©\":10," \
  "\"â\":11,\"Ĥ\":12,\"ð\":13,\"Ł\":14,\"ĺ\":15,\"Ģ\":16,\"ÿ\":17,\"í\":18,\"ł\":19,\"1\":20," \
  "\"2\":21,\"Ċ\":22,\"aa\":23,\"aaaa\":24,\"ï\":25,\"¿\":26,\"½\":27,\"<\":28,\">\":29,\"s\":30," \
  "\"Ġab\":31}"
// clang-format on
#define MERGES "[\"b c\",\"a b\",\"Ġ a\",\"Ã ©\",\"a a\",\"aa aa\",\"Ġ ab\",\"a bc\"]"
#define BYTE_LEVEL \
  "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}"
#define PLAIN_BYTES \
  "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}"
#define SEQUENCE(...) "{\"type\":\"Sequence\",\"pretokenizers\":[" __VA_ARGS__ "]}"
#define SPLIT(kind, pattern, behavior, invert)                                              \
  "{\"type\":\"Split\",\"pattern\":{\"" kind "\":\"" pattern "\"},\"behavior\":\"" behavior \
  "\",\"invert\":" invert "}"
#define TEMPLATE(single, tokens) \
  "{\"type\":\"TemplateProcessing\",\"single\":" single ",\"special_tokens\":" tokens "}"
#define ADDED(id, content, options) "{\"id\":" id ",\"content\":\"" content "\"" options "}"
// clang-format off
#define SPECIALS "[" \
  ADDED("32", "<s>", ",\"special\":true,\"normalized\":false") "," \
  ADDED("33", "<l>", ",\"lstrip\":true") "," \
  ADDED("34", "<r>", ",\"rstrip\":true") "," \
  ADDED("35", "<w>", ",\"single_word\":true") "," \
  ADDED("36", "<s><s>", ",\"normalized\":false") "]"
// clang-format on

typedef struct parts {
  const char *vocab, *merges, *model, *added, *normalizer, *pre_tokenizer, *decoder, *post_processor;
} parts_t;  // NULL: the default

static const char *or_default(const char *text, const char *fallback) { return text ? text : fallback; }

static char *make_json(parts_t parts) {
  mlx_text_t text = {0};
  char *json;
  mlx_text_puts(&text, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,");
  mlx_text_printf(&text, "\"added_tokens\":%s,", or_default(parts.added, "[]"));
  mlx_text_printf(&text, "\"normalizer\":%s,", or_default(parts.normalizer, "null"));
  mlx_text_printf(&text, "\"pre_tokenizer\":%s,", or_default(parts.pre_tokenizer, BYTE_LEVEL));
  mlx_text_printf(&text, "\"post_processor\":%s,", or_default(parts.post_processor, "null"));
  mlx_text_printf(&text, "\"decoder\":%s,", or_default(parts.decoder, BYTE_LEVEL));
  mlx_text_printf(&text, "\"model\":{\"type\":\"BPE\",%s", or_default(parts.model, ""));
  mlx_text_printf(&text, "\"vocab\":%s,\"merges\":%s}}", or_default(parts.vocab, VOCAB),
                  or_default(parts.merges, MERGES));
  CHECK_OK(mlx_text_take(&text, &json, NULL));
  return json;
}

static mlx_status_t try_create(parts_t parts, mlx_tokenizer_t **out) {
  char *json = make_json(parts);
  mlx_status_t status = mlx_tokenizer_create("tokenizer.json", json, strlen(json), out);
  mlx_free(json);
  return status;
}

static mlx_tokenizer_t *create(parts_t parts) {
  mlx_tokenizer_t *tokenizer = NULL;
  CHECK_OK(try_create(parts, &tokenizer));
  return tokenizer;
}

// The ids of a text as "1 2 3", in a static buffer that the next call overwrites.
static const char *ids_of(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                          bool add_special) {
  static char out[4096];
  int32_t *ids;
  size_t count, used = 0;
  CHECK_OK(mlx_tokenizer_encode(tokenizer, text, length, add_special, &ids, &count));
  out[0] = 0;
  for (size_t i = 0; i < count && used + 16 < sizeof out; ++i) {
    used += (size_t)snprintf(out + used, sizeof out - used, i ? " %d" : "%d", ids[i]);
  }
  mlx_free(ids);
  return out;
}

#define CHECK_IDS(tokenizer, text, expected) \
  CHECK_TEXT(ids_of(tokenizer, text, strlen(text), false), expected)

#define CHECK_SPLIT(pre_tokenizer_text, text, expected)                               \
  do {                                                                                \
    mlx_tokenizer_t *split_ = create((parts_t){.pre_tokenizer = pre_tokenizer_text}); \
    CHECK_IDS(split_, text, expected);                                                \
    mlx_tokenizer_free(split_);                                                       \
  } while (0)

#define CHECK_REFUSED(code, part, ...)                                                         \
  do {                                                                                         \
    mlx_tokenizer_t *refused_ = NULL;                                                          \
    CHECK_ERROR(try_create((parts_t){__VA_ARGS__}, &refused_), code, "tokenizer.json: " part); \
    CHECK(!refused_);                                                                          \
  } while (0)

// ----------------------------------------------------------------------------------------------------------
// Encoding

TEST(encode_applies_merges_by_rank) {
  mlx_tokenizer_t *tokenizer = create((parts_t){0});
  CHECK_IDS(tokenizer, "abc", "6");  // merges "b c" first, then "a bc"
  CHECK_IDS(tokenizer, "abab", "4 4");
  CHECK_IDS(tokenizer, "aaaaa", "24 0");  // of equal pairs the leftmost is merged first
  CHECK_IDS(tokenizer, " ab", "31");      // "a b" has a lower rank than "Ġ a"
  CHECK_IDS(tokenizer, "é", "10");
  CHECK_IDS(tokenizer, "", "");
  mlx_tokenizer_free(tokenizer);
  tokenizer = create((parts_t){.merges = "[[\"b\",\"c\"],[\"a\",\"b\"]]"});
  CHECK_IDS(tokenizer, "abc", "0 5");
  mlx_tokenizer_free(tokenizer);
}

TEST(a_repeated_merge_has_the_rank_of_its_last_occurrence) {
  mlx_tokenizer_t *tokenizer = create((parts_t){.merges = "[\"b c\",\"a b\",\"b c\"]"});
  CHECK_IDS(tokenizer, "abc", "4 2");
  mlx_tokenizer_free(tokenizer);
}

TEST(the_version_line_of_old_files_is_skipped) {
  mlx_tokenizer_t *tokenizer = create((parts_t){.merges = "[\"#version: 0.2\",\"b c\",\"a b\"]"});
  CHECK_IDS(tokenizer, "abc", "0 5");
  mlx_tokenizer_free(tokenizer);
}

TEST(ignore_merges_encodes_a_known_word_as_one_token) {
  mlx_tokenizer_t *tokenizer = create((parts_t){.merges = "[]", .model = "\"ignore_merges\":true,"});
  CHECK_IDS(tokenizer, "abc ab", "6 31");
  CHECK_IDS(tokenizer, "abcb", "0 1 2 1");
  mlx_tokenizer_free(tokenizer);
}

TEST(bytes_without_a_token_are_dropped_or_become_unk) {
  mlx_tokenizer_t *tokenizer = create((parts_t){0});
  CHECK_IDS(tokenizer, "aXYb", "4");  // a and b become neighbours and merge
  mlx_tokenizer_free(tokenizer);
  tokenizer = create((parts_t){.model = "\"unk_token\":\"<\","});
  CHECK_IDS(tokenizer, "aXYb", "0 28 28 1");
  mlx_tokenizer_free(tokenizer);
  tokenizer = create((parts_t){.model = "\"unk_token\":\"<\",\"fuse_unk\":true,"});
  CHECK_IDS(tokenizer, "aXYbX", "0 28 1 28");
  mlx_tokenizer_free(tokenizer);
}

TEST(invalid_utf8_is_read_as_replacement_characters) {
  mlx_tokenizer_t *tokenizer = create((parts_t){0});
  CHECK_TEXT(ids_of(tokenizer, "a\xff", 2, false), "0 25 26 27");
  CHECK_TEXT(ids_of(tokenizer, "\xe2\x82", 2, false), "25 26 27");  // one U+FFFD for a truncated character
  CHECK_TEXT(ids_of(tokenizer, (const char[]){'\xc3', 'a'}, 2, false), "25 26 27 0");
  CHECK_TEXT(ids_of(tokenizer, "\xed\xa0", 2, false),
             "25 26 27 25 26 27");                         // one U+FFFD for each byte of a surrogate
  CHECK_TEXT(ids_of(tokenizer, "a\0b", 3, false), "0 1");  // NUL is an ordinary byte
  mlx_tokenizer_free(tokenizer);
}

TEST(long_runs_encode_quickly) {
  mlx_tokenizer_t *tokenizer = create((parts_t){0});
  size_t length = 1 << 20, count;
  char *text;
  int32_t *ids;
  CHECK_OK(mlx_alloc(length, 1, &text));
  memset(text, 'a', length);
  double start = mlx_thread_cpu_seconds();
  CHECK_OK(mlx_tokenizer_encode(tokenizer, text, length, false, &ids, &count));
  CHECK(mlx_thread_cpu_seconds() - start < 10);  // normally 0.25 s; sanitizers need more
  CHECK_INT(count, length / 4);
  CHECK_INT(ids[count - 1], 24);
  mlx_free(ids);
  mlx_free(text);
  mlx_tokenizer_free(tokenizer);
}

// ----------------------------------------------------------------------------------------------------------
// Added tokens and the post-processor

TEST(added_tokens_are_found_inside_text) {
  mlx_tokenizer_t *tokenizer = create((parts_t){.added = SPECIALS});
  CHECK_IDS(tokenizer, "ab<s>c", "4 32 2");
  CHECK_IDS(tokenizer, "<s", "28 30");
  CHECK_IDS(tokenizer, "<s><s><s>", "36 32");           // leftmost, then longest
  CHECK_IDS(tokenizer, "a \xc2\xa0<l> b", "0 33 3 1");  // lstrip takes all kinds of spaces before it
  CHECK_IDS(tokenizer, "a <r> \n b", "0 3 34 1");       // rstrip takes those after it
  CHECK_IDS(tokenizer, "<w> b<w> <w>", "35 3 1 28 29 3 35");
  CHECK_INT(mlx_tokenizer_vocab_size(tokenizer), 37);
  mlx_tokenizer_free(tokenizer);
}

TEST(the_template_is_applied_only_with_add_special) {
  mlx_tokenizer_t *tokenizer = create((parts_t){
      .added = SPECIALS,
      .post_processor =
          "{\"type\":\"Sequence\",\"processors\":[" BYTE_LEVEL
          ",{\"type\":\"TemplateProcessing\",\"single\":["
          "{\"SpecialToken\":{\"id\":\"bos\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"
          "\"pair\":[],\"special_tokens\":{\"bos\":{\"id\":\"bos\",\"ids\":[32],\"tokens\":[\"<s>\"]}}}]}"});
  CHECK_TEXT(ids_of(tokenizer, "ab", 2, false), "4");
  CHECK_TEXT(ids_of(tokenizer, "ab", 2, true), "32 4");
  CHECK_TEXT(ids_of(tokenizer, "", 0, true), "32");
  mlx_tokenizer_free(tokenizer);
}

TEST(tokens_are_found_by_name) {
  mlx_tokenizer_t *tokenizer = create((parts_t){.added = SPECIALS});
  int32_t id = 7;
  CHECK(!mlx_tokenizer_find(tokenizer, "<x>", &id));
  CHECK(mlx_tokenizer_find(tokenizer, "<s>", &id));
  CHECK_INT(id, 32);
  CHECK(mlx_tokenizer_find(tokenizer, "abc", &id));
  CHECK_INT(id, 6);
  CHECK(mlx_tokenizer_is_special(tokenizer, 32));
  CHECK(!mlx_tokenizer_is_special(tokenizer, 33));
  CHECK(!mlx_tokenizer_is_special(tokenizer, -1));
  CHECK(!mlx_tokenizer_is_special(tokenizer, 37));
  mlx_tokenizer_free(tokenizer);
}

// ----------------------------------------------------------------------------------------------------------
// Pre-tokenizing

TEST(split_follows_each_behavior) {
  CHECK_SPLIT(SEQUENCE(SPLIT("Regex", "b", "Isolated", "false") "," PLAIN_BYTES), "ab abb", "0 1 7 1 1");
  CHECK_SPLIT(SEQUENCE(SPLIT("Regex", "b", "Removed", "false") "," PLAIN_BYTES), "ab abb", "0 7");
  CHECK_SPLIT(SEQUENCE(SPLIT("Regex", "b", "MergedWithPrevious", "false") "," PLAIN_BYTES), "ab abbc",
              "4 31 1 2");
  CHECK_SPLIT(SEQUENCE(SPLIT("Regex", "b", "MergedWithNext", "false") "," PLAIN_BYTES), "abcbbc", "0 5 1 5");
  CHECK_SPLIT(SEQUENCE(SPLIT("Regex", "a", "Contiguous", "false") "," PLAIN_BYTES), "aabcaa", "23 5 23");
  CHECK_SPLIT(SEQUENCE(SPLIT("Regex", "a", "Removed", "true") "," PLAIN_BYTES), "aabcaa", "0 0 0 0");
  CHECK_SPLIT(SEQUENCE(SPLIT("String", ".", "Isolated", "false") "," PLAIN_BYTES), "ab",
              "4");  // not any character
  CHECK_SPLIT(SEQUENCE(SPLIT("Regex", "x|(?=b)", "Isolated", "false") "," PLAIN_BYTES), "abc",
              "0 5");  // empty matches cut
}

TEST(byte_level_splits_like_gpt2) {
  CHECK_SPLIT(BYTE_LEVEL, "ab  ab\n", "4 3 31 22");
  CHECK_SPLIT(PLAIN_BYTES, "ab  ab\n", "4 3 31 22");
  CHECK_SPLIT("{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", "ab", "31");
  CHECK_SPLIT("{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", " ab", "31");
}

TEST(individual_digits_are_separate_pieces) {
  const char *both = "{\"1\":0,\"2\":1,\"12\":2}", *merge = "[\"1 2\"]";
  mlx_tokenizer_t *tokenizer = create((parts_t){.vocab = both, .merges = merge});
  CHECK_IDS(tokenizer, "12", "2");
  mlx_tokenizer_free(tokenizer);
  tokenizer = create(
      (parts_t){.vocab = both,
                .merges = merge,
                .pre_tokenizer = SEQUENCE("{\"type\":\"Digits\",\"individual_digits\":true}," BYTE_LEVEL)});
  CHECK_IDS(tokenizer, "12", "0 1");
  mlx_tokenizer_free(tokenizer);
}

TEST(a_hostile_regex_fails_instead_of_hanging) {
  mlx_tokenizer_t *tokenizer = create((parts_t){
      .pre_tokenizer = SEQUENCE(SPLIT("Regex", "(?:(a+)+)+$", "Isolated", "false") "," PLAIN_BYTES)});
  const char *text = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab";
  int32_t *ids;
  size_t count;
  double start = mlx_thread_cpu_seconds();
  CHECK_ERROR(mlx_tokenizer_encode(tokenizer, text, strlen(text), false, &ids, &count), MLX_UNSUPPORTED,
              "retry-limit");
  CHECK(mlx_thread_cpu_seconds() - start < 10);
  CHECK(!ids && !count);
  mlx_tokenizer_free(tokenizer);
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'pre_tokenizer.pattern': not a regular expression",
                .pre_tokenizer = SPLIT("Regex", "(", "Isolated", "false"));
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'pre_tokenizer.pattern': not a regular expression",
                .pre_tokenizer = SPLIT("Regex", "(?{callout})", "Isolated", "false"));
}

TEST(encoding_stops_when_it_has_more_ids_than_the_limit) {
  mlx_tokenizer_t *tokenizer = create((parts_t){
      .pre_tokenizer = SEQUENCE(SPLIT("Regex", "(?:(a+)+)+$|b", "Isolated", "false") "," PLAIN_BYTES)});
  const char *text = "bbbbbbaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac";  // the regex fails after the last b
  int32_t *ids;
  size_t count;
  CHECK_ERROR(mlx_tokenizer_encode_within(tokenizer, text, strlen(text), false, 20, &ids, &count),
              MLX_UNSUPPORTED, "retry-limit");
  CHECK_OK(mlx_tokenizer_encode_within(tokenizer, text, strlen(text), false, 4, &ids, &count));
  CHECK(!ids);
  CHECK_INT(count, 5);
  mlx_tokenizer_free(tokenizer);
}

// ----------------------------------------------------------------------------------------------------------
// Decoding

TEST(decode_replaces_invalid_bytes_like_python) {
  mlx_tokenizer_t *tokenizer = create((parts_t){.added = SPECIALS});
  // clang-format off
  static const struct {
    int32_t ids[6];
    size_t count;
    bool skip_special;
    const char *text;
  } cases[] = {
      {{6, 31, 10}, 3, false, "abc abé"},
      {{8, 9}, 2, false, "é"},  // one character in two tokens
      {{11, 12, 0}, 3, false, "\xef\xbf\xbd" "a"},  // an incomplete character: one U+FFFD
      {{18, 19, 16}, 3, false, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},  // a surrogate: one for each byte
      {{13, 14, 15}, 3, false, "\xef\xbf\xbd"},  // incomplete at the end
      {{13, 14, 8, 9}, 4, false, "\xef\xbf\xbdé"},
      {{17, 16}, 2, false, "\xef\xbf\xbd\xef\xbf\xbd"},
      {{0, 32, 1}, 3, false, "a<s>b"},
      {{0, 32, 1}, 3, true, "ab"},
      {{8, 32, 9}, 3, true, "é"},
      {{0, 33, 1}, 3, true, "a<l>b"},  // added, but not special
      {{-1, 0, 37, 2000000000}, 4, false, "a"},  // ids without a token
      {{0}, 0, false, ""},
  };
  // clang-format on
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    char *text;
    size_t length;
    CHECK_OK(
        mlx_tokenizer_decode(tokenizer, cases[i].ids, cases[i].count, cases[i].skip_special, &text, &length));
    CHECK_TEXT(text, cases[i].text);
    CHECK_INT(length, strlen(cases[i].text));
    mlx_free(text);
  }
  mlx_tokenizer_free(tokenizer);
}

TEST(streaming_never_outputs_an_incomplete_character) {
  mlx_tokenizer_t *tokenizer = create((parts_t){.added = SPECIALS});
  mlx_detokenizer_t detokenizer = {0};
  mlx_text_t out = {0};
  mlx_detokenizer_push(tokenizer, &detokenizer, 8, false, &out);
  CHECK_INT(out.length, 0);
  mlx_detokenizer_push(tokenizer, &detokenizer, 9, false, &out);
  CHECK_TEXT(out.data, "é");
  mlx_detokenizer_push(tokenizer, &detokenizer, 13, false, &out);
  mlx_detokenizer_push(tokenizer, &detokenizer, 32, true,
                       &out);  // skipped: the incomplete character stays pending
  CHECK_TEXT(out.data, "é");
  mlx_detokenizer_flush(tokenizer, &detokenizer, &out);
  CHECK_TEXT(out.data, "é\xef\xbf\xbd");
  mlx_detokenizer_flush(tokenizer, &detokenizer, &out);  // nothing is pending
  CHECK_INT(out.length, 5);
  mlx_text_clear(&out);
  mlx_tokenizer_free(tokenizer);
}

TEST(streaming_and_decode_agree_on_random_ids) {
  mlx_tokenizer_t *tokenizer = create((parts_t){.added = SPECIALS});
  uint32_t random = 1;
  for (int round = 0; round < 2000; ++round) {
    int32_t ids[24];
    mlx_detokenizer_t detokenizer = {0};
    mlx_text_t out = {0};
    char *text;
    for (size_t i = 0; i < 24; ++i) {
      random = random * 1664525u + 1013904223u;
      ids[i] = (int32_t)(random >> 16) % 38;
      mlx_detokenizer_push(tokenizer, &detokenizer, ids[i], round & 1, &out);
      for (size_t at = 0; at < out.length;) {
        int length = mlx_utf8_length(out.data + at, out.length - at);
        CHECK(length > 0);
        at += (size_t)length;
      }
    }
    mlx_detokenizer_flush(tokenizer, &detokenizer, &out);
    CHECK_OK(mlx_text_finish(&out));
    CHECK_OK(mlx_tokenizer_decode(tokenizer, ids, 24, round & 1, &text, NULL));
    CHECK_TEXT(out.data, text);
    mlx_free(text);
    mlx_text_clear(&out);
  }
  mlx_tokenizer_free(tokenizer);
}

// ----------------------------------------------------------------------------------------------------------
// Every kind of tokenizer

static void check_decoded(const mlx_tokenizer_t *tokenizer, const char *ids_text, bool skip_special,
                          const char *expected) {
  int32_t ids[256];
  size_t count = 0;
  mlx_detokenizer_t detokenizer = {0};
  mlx_text_t streamed = {0};
  char *text, *end;
  for (const char *at = ids_text; *at; at = end) ids[count++] = (int32_t)strtol(at, &end, 10);
  CHECK_OK(mlx_tokenizer_decode(tokenizer, ids, count, skip_special, &text, NULL));
  CHECK_TEXT(text, expected);
  for (size_t i = 0; i < count; ++i)
    mlx_detokenizer_push(tokenizer, &detokenizer, ids[i], skip_special, &streamed);
  mlx_detokenizer_flush(tokenizer, &detokenizer, &streamed);
  CHECK_OK(mlx_text_finish(&streamed));
  if (!strstr(text, "\xef\xbf\xbd")) CHECK_TEXT(streamed.data, text);
  mlx_text_clear(&streamed);
  mlx_free(text);
}

TEST(every_kind_matches_hf_id_for_id_on_small_vocabularies) {
  for (size_t i = 0, made = SIZE_MAX; i < sizeof golden_texts / sizeof *golden_texts; ++i) {
    static mlx_tokenizer_t *tokenizer;
    const tokenizer_golden_t *golden = &golden_texts[i];
    if (golden->tokenizer != made) {
      const char *json = golden_tokenizers[made = golden->tokenizer].json;
      mlx_tokenizer_free(tokenizer);
      CHECK_OK(mlx_tokenizer_create(golden_tokenizers[made].name, json, strlen(json), &tokenizer));
    }
    if (golden->text) CHECK_TEXT(ids_of(tokenizer, golden->text, golden->length, true), golden->ids);
    check_decoded(tokenizer, golden->ids, false, golden->decoded);
    check_decoded(tokenizer, golden->ids, true, golden->decoded_bare);
    if (i + 1 < sizeof golden_texts / sizeof *golden_texts) continue;
    mlx_tokenizer_free(tokenizer);
    tokenizer = NULL;
  }
}

// A stream outputs each character of byte tokens once it is complete, and replaces only invalid bytes.
TEST(byte_tokens_are_streamed_as_complete_characters) {
  mlx_tokenizer_t *tokenizer;
  mlx_detokenizer_t detokenizer = {0};
  mlx_text_t out = {0};
  char *text;
  static const int32_t ids[] = {3 + 0xe4, 3 + 0xbd, 3 + 0xa0, 3 + 0xe5,
                                259};  // one character, an incomplete one, "a"
  CHECK_OK(mlx_tokenizer_create("t.json", golden_tokenizers[0].json, strlen(golden_tokenizers[0].json),
                                &tokenizer));
  for (size_t i = 0; i < 5; ++i) {
    mlx_detokenizer_push(tokenizer, &detokenizer, ids[i], false, &out);
    CHECK_INT(out.length, i < 2 ? 0 : i < 4 ? 3 : 7);
  }
  CHECK_TEXT(out.data, "\xe4\xbd\xa0\xef\xbf\xbd\x61");
  CHECK_OK(mlx_tokenizer_decode(tokenizer, ids, 5, false, &text, NULL));
  CHECK_TEXT(text,
             "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\x61");  // Hugging Face replaces the whole run
  mlx_free(text);
  mlx_text_clear(&out);
  mlx_tokenizer_free(tokenizer);
}

// Encoding time must stay nearly linear for every kind of tokenizer and every kind of character.
TEST(a_megabyte_of_one_character_encodes_quickly_with_every_kind) {
  static const char *const characters[] = {"a", " ", "\xcc\x80", "\xe4\xb8\xad", "\xf0\x9f\x98\x80"};
  size_t size = 1 << 20, count;
  mlx_tokenizer_t *tokenizer;
  char *text;
  int32_t *ids;
  CHECK_OK(mlx_alloc(size, 1, &text));
  for (size_t i = 0; i < sizeof golden_tokenizers / sizeof *golden_tokenizers; ++i) {
    const char *json = golden_tokenizers[i].json;
    CHECK_OK(mlx_tokenizer_create(golden_tokenizers[i].name, json, strlen(json), &tokenizer));
    for (size_t j = 0; j < sizeof characters / sizeof *characters; ++j) {
      size_t length = strlen(characters[j]), used = 0;
      for (; used + length <= size; used += length) memcpy(text + used, characters[j], length);
      double start = mlx_thread_cpu_seconds();
      CHECK_OK(mlx_tokenizer_encode(tokenizer, text, used, false, &ids, &count));
      CHECK(mlx_thread_cpu_seconds() - start < 20);  // normally 0.5 s; sanitizers need more
      mlx_free(ids);
    }
    mlx_tokenizer_free(tokenizer);
  }
  mlx_free(text);
}

// ----------------------------------------------------------------------------------------------------------
// Refused files

TEST(unsupported_fields_are_refused_by_name) {
  CHECK_REFUSED(MLX_UNSUPPORTED, "field 'normalizer.type' is 'ByteLevel'",
                .normalizer = "{\"type\":\"ByteLevel\"}");
  CHECK_REFUSED(MLX_UNSUPPORTED, "field 'normalizer.normalizers[0].type' is 'Odd'",
                .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Odd\"}]}");
  CHECK_REFUSED(MLX_UNSUPPORTED, "field 'pre_tokenizer.type' is 'Whitespace'",
                .pre_tokenizer = "{\"type\":\"Whitespace\"}");
  CHECK_REFUSED(MLX_UNSUPPORTED, "field 'decoder' is ByteLevel, but pre_tokenizer has no ByteLevel",
                .pre_tokenizer = "null");
  CHECK_REFUSED(MLX_UNSUPPORTED, "field 'pre_tokenizer.pretokenizers[1]' comes after ByteLevel",
                .pre_tokenizer = SEQUENCE(BYTE_LEVEL "," SPLIT("Regex", "a", "Isolated", "false")));
  CHECK_REFUSED(MLX_UNSUPPORTED, "field 'pre_tokenizer.behavior' is 'Odd'",
                .pre_tokenizer = SPLIT("Regex", "a", "Odd", "false"));
  CHECK_REFUSED(MLX_UNSUPPORTED, "field 'decoder.type' is 'CTC'", .decoder = "{\"type\":\"CTC\"}");
  CHECK_REFUSED(MLX_UNSUPPORTED, "field 'decoder' is not ByteLevel, but pre_tokenizer has it",
                .decoder = "{\"type\":\"Fuse\"}");
  CHECK_REFUSED(
      MLX_UNSUPPORTED, "field 'decoder.decoders[1]' is out of order",
      .decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}]}");
  CHECK_REFUSED(MLX_UNSUPPORTED, "field 'decoder' is null", .decoder = "null");
  CHECK_REFUSED(MLX_UNSUPPORTED, "field 'post_processor.type' is 'Odd'",
                .post_processor = "{\"type\":\"Odd\"}");
  CHECK_REFUSED(MLX_UNSUPPORTED, "field 'model.dropout' is set", .model = "\"dropout\":0.1,");
  CHECK_REFUSED(MLX_UNSUPPORTED, "field 'model.byte_fallback' is true", .model = "\"byte_fallback\":true,");
  CHECK_REFUSED(MLX_UNSUPPORTED, "field 'model.end_of_word_suffix' is set",
                .model = "\"end_of_word_suffix\":\"</w>\",");
  CHECK_REFUSED(MLX_UNSUPPORTED, "field 'model.continuing_subword_prefix' is set",
                .model = "\"continuing_subword_prefix\":\"##\",");
}

TEST(unsupported_kinds_of_tokenizer_are_refused_by_name) {
  mlx_tokenizer_t *tokenizer = NULL;
  const char *words = "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{}}}", *list = "[1]",
             *cut = "{\"model\":";
  CHECK_ERROR(mlx_tokenizer_create("t.json", words, strlen(words), &tokenizer), MLX_UNSUPPORTED,
              "t.json: field 'model.type' is 'WordLevel'; only BPE, Unigram and WordPiece are supported");
  CHECK_ERROR(mlx_tokenizer_create("t.json", list, strlen(list), &tokenizer), MLX_INVALID_INPUT,
              "must be an object");
  CHECK_ERROR(mlx_tokenizer_create("t.json", cut, strlen(cut), &tokenizer), MLX_INVALID_INPUT,
              "not valid JSON");
  CHECK_ERROR(mlx_tokenizer_create("t.json", "{}", 2, &tokenizer), MLX_INVALID_INPUT,
              "field 'model' is missing");
}

#define KIND_REFUSED(code, json, part)                                                              \
  do {                                                                                              \
    mlx_tokenizer_t *kind_ = NULL;                                                                  \
    CHECK_ERROR(mlx_tokenizer_create("t.json", json, strlen(json), &kind_), code, "t.json: " part); \
    CHECK(!kind_);                                                                                  \
  } while (0)
#define FUSE "{\"decoder\":{\"type\":\"Fuse\"},"

TEST(bad_unigram_and_wordpiece_models_are_refused) {
  KIND_REFUSED(MLX_INVALID_INPUT, FUSE "\"model\":{\"type\":\"Unigram\",\"vocab\":{}}}",
               "field 'model.vocab' must be an array");
  KIND_REFUSED(MLX_INVALID_INPUT, FUSE "\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}",
               "field 'model.vocab[0]' must be");
  KIND_REFUSED(MLX_INVALID_INPUT, FUSE "\"model\":{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"a\",0]]}}",
               "field 'model.unk_id' is 1, but model.vocab has 1 tokens");
  KIND_REFUSED(MLX_INVALID_INPUT, FUSE "\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}",
               "field 'model.unk_token' must be a string");
  KIND_REFUSED(MLX_INVALID_INPUT, FUSE "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"u\",\"vocab\":{}}}",
               "field 'model.unk_token' is 'u', which is not in model.vocab");
  KIND_REFUSED(MLX_UNSUPPORTED,
               "{\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":"
               "{\"type\":\"Unigram\",\"vocab\":[]}}",
               "field 'pre_tokenizer' has ByteLevel, which is supported for BPE only");
  KIND_REFUSED(MLX_UNSUPPORTED,
               "{\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":1},\"model\":{}}",
               "field 'decoder.stop' must be 0");
  KIND_REFUSED(MLX_INVALID_INPUT,
               "{\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"},\"model\":{}}",
               "field 'decoder.replacement' must be one character");
  KIND_REFUSED(
      MLX_INVALID_INPUT,
      "{\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"a\",\"add_prefix_space\":false},\"model\":{}}",
      "field 'decoder.prepend_scheme' is 'always', but add_prefix_space is false");
  KIND_REFUSED(
      MLX_INVALID_INPUT,
      "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"},\"model\":{}}",
      "field 'normalizer.pattern': not a regular expression");
}

// Without an unk_id, Unigram cannot encode a character that has no token. Hugging Face also fails.
TEST(unigram_without_unk_id_fails_on_unknown_characters) {
  const char *json = FUSE "\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]]}}";
  mlx_tokenizer_t *tokenizer;
  int32_t *ids;
  size_t count;
  CHECK_OK(mlx_tokenizer_create("t.json", json, strlen(json), &tokenizer));
  CHECK_IDS(tokenizer, "aa", "0 0");
  CHECK_ERROR(mlx_tokenizer_encode(tokenizer, "ab", 2, false, &ids, &count), MLX_UNSUPPORTED,
              "has the character 'b'");
  mlx_tokenizer_free(tokenizer);
}

TEST(a_merge_of_unknown_tokens_is_refused) {
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'model.merges[1]' needs the token 'z'",
                .merges = "[\"a b\",\"z b\"]");
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'model.merges[1]' needs the token 'z'",
                .merges = "[\"a b\",[\"b\",\"z\"]]");
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'model.merges[0]' needs the token 'cb'", .merges = "[\"c b\"]");
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'model.merges[0]' must be", .merges = "[\"a\"]");
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'model.merges[0]' must be", .merges = "[\"a b c\"]");
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'model.merges[0]' must be", .merges = "[[\"a\",1]]");
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'model.merges' must be an array", .merges = "{}");
  // An added token is not in the model, so no merge may produce it.
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'model.merges[0]' needs the token '<s>'", .added = SPECIALS,
                .merges = "[\"<s> a\"]");
}

TEST(bad_ids_are_refused) {
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'model.vocab.b' has id 0, which token 'a' already has",
                .vocab = "{\"a\":0,\"b\":0}");
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'model.vocab.a' must be a token id", .vocab = "{\"a\":-1}");
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'model.vocab.a' must be a token id", .vocab = "{\"a\":0.5}");
  CHECK_REFUSED(MLX_UNSUPPORTED, "field 'model.vocab.a' is 4294967296", .vocab = "{\"a\":4294967296}");
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'a' is given twice", .vocab = "{\"a\":0,\"a\":1}");
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'added_tokens[0].id' must be a token id",
                .added = "[{\"content\":\"<s>\"}]");
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'added_tokens[0].id' is 40",
                .added = "[" ADDED("40", "<s>", "") "]");
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'added_tokens[0].id' is 1", .added = "[" ADDED("1", "a", "") "]");
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'added_tokens[0].content' must be",
                .added = "[" ADDED("0", "", "") "]");
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'added_tokens[0].content' must be",
                .added = "[{\"id\":0,\"content\":[1,2]}]");
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'added_tokens[1].content' 'a' is added twice",
                .added = "[" ADDED("0", "a", "") "," ADDED("0", "a", "") "]");
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'model.unk_token' is '<unk>'", .model = "\"unk_token\":\"<unk>\",");
}

TEST(bad_templates_are_refused) {
  CHECK_REFUSED(MLX_UNSUPPORTED, "field 'post_processor.single[0]' is sequence 'B'",
                .post_processor = TEMPLATE("[{\"Sequence\":{\"id\":\"B\"}}]", "{}"));
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'post_processor.single[0] (special token 'x')' is missing",
                .post_processor = TEMPLATE("[{\"SpecialToken\":{\"id\":\"x\"}}]", "{}"));
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'post_processor.single[0] (special token 'x')' has id 99",
                .post_processor = TEMPLATE("[{\"SpecialToken\":{\"id\":\"x\"}}]", "{\"x\":{\"ids\":[99]}}"));
  CHECK_REFUSED(MLX_INVALID_INPUT, "field 'post_processor.single' must be an array",
                .post_processor = TEMPLATE("{}", "{}"));
}

// ----------------------------------------------------------------------------------------------------------
// Memory and threads

static int allocations_left;

static void *failing_resize(void *ptr, size_t size) {
  return allocations_left-- > 0 ? realloc(ptr, size) : NULL;
}

static mlx_status_t create_encode_and_decode(const char *json) {
  mlx_tokenizer_t *tokenizer;
  int32_t *ids = NULL;
  size_t count;
  char *text = NULL;
  const char *input = "abc 12<s>  \xff<w> aaaa";
  MLX_TRY(mlx_tokenizer_create("tokenizer.json", json, strlen(json), &tokenizer));
  mlx_status_t status = mlx_tokenizer_encode(tokenizer, input, strlen(input), true, &ids, &count);
  if (!status) status = mlx_tokenizer_decode(tokenizer, ids, count, false, &text, NULL);
  mlx_free(text);
  mlx_free(ids);
  mlx_tokenizer_free(tokenizer);
  return status;
}

// A small file, truncated at every byte and with every bit flipped. Each variant must be read, or refused
// with an error that names the file.
TEST(a_damaged_file_is_read_or_refused_by_name) {
  // clang-format off
  static const char file[] =
      "{\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true}],"
      "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
      "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,"
      "\"ab\":2},\"merges\":[\"a b\"]}}";
  // clang-format on
  const size_t size = sizeof file - 1;
  char copy[sizeof file];
  int refused = 0;
  for (size_t i = 0; i < size * 9; ++i) {
    memcpy(copy, file, sizeof file);
    if (i >= size) copy[(i - size) / 8] ^= (char)(1 << (i - size) % 8);
    mlx_tokenizer_t *tokenizer;
    mlx_status_t status = mlx_tokenizer_create("dir/tokenizer.json", copy, i < size ? i : size, &tokenizer);
    CHECK(status || i >= size);  // every truncated file is refused
    if (status) CHECK_CONTAINS(mlx_status_message(status), "dir/tokenizer.json");
    refused += status != NULL;
    mlx_status_free(status);
    mlx_tokenizer_free(tokenizer);
  }
  CHECK(refused > (int)size);
}

TEST(a_failed_allocation_is_reported) {
  const mlx_memory_calls_t calls = {.resize = failing_resize, .release = free};
  char *json = make_json((parts_t){
      .added = SPECIALS,
      .model = "\"ignore_merges\":true,",
      .pre_tokenizer = SEQUENCE(SPLIT("String", "1", "Isolated", "false") ",{\"type\":\"ByteLevel\"}"),
      .post_processor = TEMPLATE("[{\"Sequence\":{\"id\":\"A\"}}]", "{}")});
  mlx_code_t code = MLX_OUT_OF_MEMORY;
  int failures = 0;
  for (; code == MLX_OUT_OF_MEMORY; ++failures) {
    allocations_left = failures;
    mlx_memory_set_calls(&calls);
    mlx_status_t status = create_encode_and_decode(json);
    mlx_memory_set_calls(NULL);
    code = mlx_status_code(status);
    mlx_status_free(status);
  }
  CHECK_INT(code, MLX_OK);
  CHECK(failures > 20);
  mlx_free(json);
}

TEST(a_failed_allocation_is_reported_for_every_kind) {
  const mlx_memory_calls_t calls = {.resize = failing_resize, .release = free};
  for (size_t i = 0; i < sizeof golden_tokenizers / sizeof *golden_tokenizers; ++i) {
    mlx_code_t code = MLX_OUT_OF_MEMORY;
    for (int failures = 0; code == MLX_OUT_OF_MEMORY; ++failures) {
      allocations_left = failures;
      mlx_memory_set_calls(&calls);
      mlx_status_t status = create_encode_and_decode(golden_tokenizers[i].json);
      mlx_memory_set_calls(NULL);
      code = mlx_status_code(status);
      mlx_status_free(status);
    }
    CHECK_INT(code, MLX_OK);
  }
}

typedef struct worker {
  const mlx_tokenizer_t *tokenizer;
  const char *json;
  bool good;
} worker_t;

static void *work(void *user) {
  static const int32_t expected[] = {6, 31, 32, 7, 23, 0};
  worker_t *worker = user;
  worker->good = true;
  for (int round = 0; round < 200 && worker->good; ++round) {
    int32_t *ids;
    size_t count;
    mlx_status_t status = mlx_tokenizer_encode(worker->tokenizer, "abc ab<s> aaaa", 14, false, &ids, &count);
    worker->good = !status && count == 6 && !memcmp(ids, expected, sizeof expected);
    mlx_free(ids);
    status = mlx_status_join(status, round % 20 ? NULL : create_encode_and_decode(worker->json));
    worker->good &= !status;
    mlx_status_free(status);
  }
  return NULL;
}

TEST(threads_can_share_one_tokenizer) {
  char *json = make_json((parts_t){.added = SPECIALS});
  mlx_tokenizer_t *tokenizer = create((parts_t){.added = SPECIALS});
  pthread_t threads[4];
  worker_t workers[4];
  for (int i = 0; i < 4; ++i) {
    workers[i] = (worker_t){.tokenizer = tokenizer, .json = json};
    CHECK(!pthread_create(&threads[i], NULL, work, &workers[i]));
  }
  for (int i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
  for (int i = 0; i < 4; ++i) CHECK(workers[i].good);
  mlx_tokenizer_free(tokenizer);
  mlx_free(json);
}

TEST_MAIN(
    CASE(a_damaged_file_is_read_or_refused_by_name), CASE(encode_applies_merges_by_rank),
    CASE(a_repeated_merge_has_the_rank_of_its_last_occurrence),
    CASE(the_version_line_of_old_files_is_skipped), CASE(ignore_merges_encodes_a_known_word_as_one_token),
    CASE(bytes_without_a_token_are_dropped_or_become_unk),
    CASE(invalid_utf8_is_read_as_replacement_characters), CASE(long_runs_encode_quickly),
    CASE(added_tokens_are_found_inside_text), CASE(the_template_is_applied_only_with_add_special),
    CASE(tokens_are_found_by_name), CASE(split_follows_each_behavior), CASE(byte_level_splits_like_gpt2),
    CASE(individual_digits_are_separate_pieces), CASE(a_hostile_regex_fails_instead_of_hanging),
    CASE(encoding_stops_when_it_has_more_ids_than_the_limit), CASE(decode_replaces_invalid_bytes_like_python),
    CASE(streaming_never_outputs_an_incomplete_character), CASE(streaming_and_decode_agree_on_random_ids),
    CASE(unsupported_fields_are_refused_by_name), CASE(unsupported_kinds_of_tokenizer_are_refused_by_name),
    CASE(a_merge_of_unknown_tokens_is_refused), CASE(bad_unigram_and_wordpiece_models_are_refused),
    CASE(unigram_without_unk_id_fails_on_unknown_characters),
    CASE(every_kind_matches_hf_id_for_id_on_small_vocabularies),
    CASE(byte_tokens_are_streamed_as_complete_characters),
    CASE(a_megabyte_of_one_character_encodes_quickly_with_every_kind), CASE(bad_ids_are_refused),
    CASE(bad_templates_are_refused), CASE(a_failed_allocation_is_reported),
    CASE(a_failed_allocation_is_reported_for_every_kind), CASE(threads_can_share_one_tokenizer))
