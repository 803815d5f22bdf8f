// GBNF: which texts a grammar accepts, its errors, and that text sampled under a grammar belongs to its
// language.
#include <yyjson.h>

#include "tests/support/random_text.h"

static mlx_grammar_t *parse(const char *gbnf) {
  mlx_grammar_t *grammar;
  CHECK_OK(mlx_grammar_create("--grammar", gbnf, strlen(gbnf), &grammar));
  return grammar;
}

// Matches byte by byte, to try every boundary between two tokens.
static bool accepts(const char *gbnf, const char *text) {
  mlx_grammar_t *grammar = parse(gbnf);
  mlx_matcher_t *matcher;
  bool accepted = true;
  CHECK_OK(mlx_matcher_create(grammar, &matcher));
  for (const char *c = text; *c && accepted; ++c) CHECK_OK(mlx_matcher_accept(matcher, c, 1, &accepted));
  accepted = accepted && mlx_matcher_is_complete(matcher);
  mlx_matcher_free(matcher);
  mlx_grammar_free(grammar);
  return accepted;
}

TEST(each_construct_accepts_exactly_its_texts) {
  static const struct {
    const char *gbnf, *good[6], *bad[8];
  } rows[] = {
      {"root ::= \"abc\"", {"abc"}, {"", "ab", "abcd", "x"}},
      {"root ::= \"a\" | \"b\" | ", {"a", "b", ""}, {"c", "ab"}},
      {"root ::= \"a\"\n  | \"b\"\nother ::= root", {"a", "b"}, {""}},
      {"root ::= [a-cx]", {"a", "b", "c", "x"}, {"d", "-", ""}},
      {"root ::= [^a-c]", {"d", "\n", "é", "😀"}, {"a", "b", ""}},
      {"root ::= [a-]", {"a", "-"}, {"b"}},
      {"root ::= [\\]\\[\\\\]", {"]", "[", "\\"}, {"a"}},
      {"root ::= .",
       {"a", "\n", "é", "漢", "😀"},
       {"", "ab", "\xc3", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80"}},
      {"root ::= [а-я]+", {"привет", "я"}, {"Привет", "q", ""}},
      {"root ::= [\\u4e00-\\u9fff\\U0001F600-\\U0001F64F\\x41]*", {"", "漢字A😀"}, {"B", "🚀"}},
      {"root ::= \"\\x41\\u00e9\\U0001F600\\n\\t\\\"\"", {"Aé😀\n\t\""}, {"A"}},
      {"root ::= \"a\"*", {"", "a", "aaaa"}, {"b"}},
      {"root ::= \"ab\"+", {"ab", "abab"}, {"", "aba"}},
      {"root ::= \"ab\"?", {"", "ab"}, {"a", "abab"}},
      {"root ::= \"a\"{3}", {"aaa"}, {"aa", "aaaa"}},
      {"root ::= \"a\"{2,}", {"aa", "aaaaa"}, {"a"}},
      {"root ::= \"a\"{,2}", {"", "a", "aa"}, {"aaa"}},
      {"root ::= \"a\"{1,3}\"b\"", {"ab", "aaab"}, {"b", "aaaab"}},
      {"root ::= (\"a\" | \"b\" \"c\")+ \"d\" # a comment\n# another", {"ad", "bcabcd"}, {"d", "bd"}},
      {"root ::= (\n  \"a\" # why\n  | \"b\"\n)", {"a", "b"}, {""}},
      {"root ::= a-b_1\na-b_1 ::= \"x\" root | \"y\"", {"y", "xxy"}, {"x"}},
      {"root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", "(()"}},
      {"root ::= (\"a\"*)* \"b\"", {"b", "aaab"}, {"a"}},
      {"root ::= ((\"a\"?)+ | [b]*)* ", {"", "abba"}, {"c"}},
      {"root ::= \"a\" (\"b\" | \"b\" \"c\") \"c\"?", {"ab", "abc", "abcc"}, {"abccc"}},
      {"root ::= \"é\" [^\\x00-\\x7f]", {"éé", "é漢"}, {"éa", "\xc3"}},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    for (int j = 0; j < 6 && rows[i].good[j]; ++j) {
      if (!accepts(rows[i].gbnf, rows[i].good[j]))
        CHECK_FAIL("%s does not accept '%s'", rows[i].gbnf, rows[i].good[j]);
    }
    for (int j = 0; j < 8 && rows[i].bad[j]; ++j) {
      if (accepts(rows[i].gbnf, rows[i].bad[j])) CHECK_FAIL("%s accepts '%s'", rows[i].gbnf, rows[i].bad[j]);
    }
  }
}

TEST(errors_name_the_line_and_column) {
  static const struct {
    const char *gbnf;
    mlx_code_t code;
    const char *part;
  } rows[] = {
      {"", MLX_INVALID_INPUT, "--grammar: there is no rule 'root'"},
      {"a ::= \"x\"", MLX_INVALID_INPUT, "there is no rule 'root'"},
      {"root ::= a\n\nb ::= \"\"", MLX_INVALID_INPUT, "line 1: rule 'a' is used but not defined"},
      {"root ::= \"a\"\nroot ::= \"b\"", MLX_INVALID_INPUT, "line 2, column 1: this rule is already defined"},
      {"root := \"a\"", MLX_INVALID_INPUT, "line 1, column 6: expected ::="},
      {"root ::= \"a", MLX_INVALID_INPUT, "line 1, column 10: this \" is not closed on its line"},
      {"root ::= [a", MLX_INVALID_INPUT, "line 1, column 10: this [ is not closed on its line"},
      {"root ::= []", MLX_INVALID_INPUT, "an empty [] in rule 'root' matches nothing"},
      {"root ::= [z-a]", MLX_INVALID_INPUT, "this range ends before it begins"},
      {"root ::= (\"a\"", MLX_INVALID_INPUT, "line 1, column 10: this ( is not closed"},
      {"root ::= \"a\")", MLX_INVALID_INPUT, "line 1, column 13: expected the end of the line"},
      {"root ::= * \"a\"", MLX_INVALID_INPUT, "nothing to repeat before this"},
      {"root ::= \"a\"{}", MLX_INVALID_INPUT, "expected a number in this repetition"},
      {"root ::= \"a\"{3,2}", MLX_INVALID_INPUT, "this repetition's maximum is less than its minimum"},
      {"root ::= \"a\"{99999}", MLX_INVALID_INPUT, "a repetition of more than 10000 times is not supported"},
      {"root ::= \"\\q\"", MLX_INVALID_INPUT, "unknown escape"},
      {"root ::= \"\\x4\"", MLX_INVALID_INPUT, "expected 2 hexadecimal digits after \\x"},
      {"root ::= \"\\ud800\"", MLX_INVALID_INPUT, "this number is not a Unicode character"},
      {"root ::= \"\xff\"", MLX_INVALID_INPUT, "invalid UTF-8"},
      {"root ::= <think>", MLX_INVALID_INPUT, "tokens (<think>, <[1000]>, !<...>) are not supported"},
      {"root ::= expr\nexpr ::= expr \"+\" num | num\nnum ::= [0-9]", MLX_UNSUPPORTED,
       "line 1: rule 'expr' begins with itself (left recursion)"},
      {"root ::= a\na ::= b \"x\" | \"y\"\nb ::= a \"z\"", MLX_UNSUPPORTED, "begins with itself"},
      {"root ::= ws root \"x\" | \"y\"\nws ::= [ ]*", MLX_UNSUPPORTED, "rule 'root' begins with itself"},
      {"root ::= \"(\" root \")\"", MLX_UNSUPPORTED, "rule 'root' has no end"},
      {"root ::= root", MLX_UNSUPPORTED, "rule 'root' has no end"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    mlx_grammar_t *grammar;
    CHECK_ERROR(mlx_grammar_create("--grammar", rows[i].gbnf, strlen(rows[i].gbnf), &grammar), rows[i].code,
                rows[i].part);
  }
  char deep[2048] = "root ::= ";
  for (int i = 0; i < 500; ++i) strcat(deep, "(");
  mlx_grammar_t *grammar;
  CHECK_ERROR(mlx_grammar_create("g", deep, strlen(deep), &grammar), MLX_INVALID_INPUT, "deeper than 100");
  // 40000 symbols, because the repetitions of an item share its rule.
  const char *large = "root ::= ((([a-z]{9999} [b]){9999} [c]){9999} \"d\"){9999}";
  CHECK_OK(mlx_grammar_create("g", large, strlen(large), &grammar));
  mlx_grammar_free(grammar);
}

TEST(an_ambiguous_text_needs_few_stacks) {
  CHECK(accepts("root ::= (\"a\" | \"aa\" | \"aaa\")* \"b\"",
                "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"));
  CHECK(accepts("root ::= s\ns ::= \"a\" s s | \"\"", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
}

// ----------------------------------------------------------------------------------------------------------
// Masks

#define JSON_GRAMMAR                                                                                \
  "root ::= object\n"                                                                               \
  "value ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"             \
  "object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n"     \
  "array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"                                      \
  "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-cA-C] " \
  "[0-9a-fA-F]{3}) )* \"\\\"\" ws\n"                                                                \
  "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9]{1,2})? ws\n"   \
  "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n"

static void check_mask(random_writer_t *w, const char *gbnf, const char *text) {
  mlx_grammar_t *grammar = parse(gbnf);
  mlx_matcher_t *matcher;
  bool accepted;
  CHECK_OK(mlx_matcher_create(grammar, &matcher));
  CHECK_OK(mlx_matcher_accept(matcher, text, strlen(text), &accepted));
  CHECK(accepted);
  random_writer_mask(w, matcher, false);
  size_t allowed = 0;
  for (size_t id = 0; id < w->vocab; ++id) {
    mlx_text_t piece = {0};
    mlx_tokenizer_piece(w->tokenizer, (int32_t)id, false, true, &piece);
    mlx_matcher_restart(matcher);
    CHECK_OK(mlx_matcher_accept(matcher, text, strlen(text), &accepted));
    CHECK_OK(mlx_matcher_accept(matcher, piece.data ? piece.data : "", piece.length, &accepted));
    accepted = accepted && piece.length;
    if (accepted != (w->allowed[id / 64] >> id % 64 & 1))
      CHECK_FAIL("token %zu after '%s': mask and matcher disagree", id, text);
    allowed += accepted;
    mlx_text_clear(&piece);
  }
  fprintf(stderr, "  %zu of %zu tokens after '%s'\n", allowed, w->vocab, text);
  mlx_matcher_free(matcher);
  mlx_grammar_free(grammar);
}

TEST(a_mask_allows_exactly_the_accepted_tokens) {
  random_writer_t w = random_writer_smollm2();
  check_mask(&w, JSON_GRAMMAR, "");
  check_mask(&w, JSON_GRAMMAR, "{\"a");
  check_mask(&w, JSON_GRAMMAR, "{\"a\": [1, {\"b\": -3.5");
  check_mask(&w, JSON_GRAMMAR, "{\"\xe6\xbc");  // inside a character
  check_mask(&w, "root ::= [а-яё ]+", "привет");
  random_writer_close(&w);
}

// A SentencePiece-like tokenizer: '_' is a space, single bytes have tokens, and the first space of a text is
// dropped.
TEST(masks_respect_a_tokenizer_that_drops_the_first_space) {
  static const char json[] =
      "{\"normalizer\":null,\"pre_tokenizer\":null,\"decoder\":{\"type\":\"Sequence\","
      "\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"_\"},\"content\":\" \"},"
      "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,"
      "\"stop\":0}]},\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true}],"
      "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"<s>\",\"vocab\":{\"<s>\":0,"
      "\"<0xC3>\":1,\"<0xA9>\":2,\"<0x0A>\":3,\"_\":4,\"a\":5,\"b\":6,\"_a\":7,\"ab\":8,\"__\":9},"
      "\"merges\":[]}}";
  mlx_tokenizer_t *tokenizer;
  CHECK_OK(mlx_tokenizer_create("inline", json, strlen(json), &tokenizer));
  CHECK(mlx_tokenizer_first_differs(tokenizer));
  random_writer_t w = random_writer_open(tokenizer, 0);
  mlx_grammar_t *grammar = parse("root ::= \"a\" [ bé]+");
  mlx_matcher_t *matcher;
  mlx_sampling_t options;
  mlx_sampling_initialize(&options);
  CHECK_OK(mlx_matcher_create(grammar, &matcher));
  random_writer_mask(&w, matcher, true);
  CHECK_INT(w.allowed[0], 1 << 5 | 1 << 7 | 1 << 8);
  random_writer_mask(&w, matcher, false);
  CHECK_INT(w.allowed[0], 1 << 5 | 1 << 8);
  for (uint64_t seed = 0; seed < 500; ++seed) {
    options.seed = seed;
    mlx_text_t text = random_writer_write(&w, matcher, &options);
    CHECK(text.length > 1 && text.data[0] == 'a');
    for (size_t i = 1; i < text.length; ++i) {
      const char *c = text.data + i;
      if (*c != ' ' && *c != 'b' && memcmp(c, "é", 2))
        CHECK_FAIL("'%s' does not match the grammar", text.data);
      i += *c == '\xc3';
    }
    mlx_text_clear(&text);
  }
  mlx_matcher_free(matcher);
  mlx_grammar_free(grammar);
  random_writer_close(&w);
}

// ----------------------------------------------------------------------------------------------------------
// Random texts, each checked by a hand-written recogniser of its language

static bool is_json_object(const char *text, size_t length) {
  yyjson_doc *doc = yyjson_read(text, length, 0);
  const bool good = doc && yyjson_is_obj(yyjson_doc_get_root(doc));
  yyjson_doc_free(doc);
  return good;
}

static const char *skip_digits(const char *c) {
  while (*c >= '0' && *c <= '9') ++c;
  return c;
}

// expr ::= term ([-+*/] term)*, term ::= [0-9]+ | "(" expr ")"; NULL: no match
static const char *skip_expression(const char *c) {
  for (;;) {
    if (*c == '(') {
      c = skip_expression(c + 1);
      if (!c || *c++ != ')') return NULL;
    } else {
      const char *end = skip_digits(c);
      if (end == c) return NULL;
      c = end;
    }
    if (!*c || !strchr("-+*/", *c)) return c;
    ++c;
  }
}

static bool is_sum(const char *text, size_t length) {
  const char *equals = strchr(text, '=');
  if (!equals) return false;
  char left[1 << 16];
  memcpy(left, text, (size_t)(equals - text));
  left[equals - text] = 0;
  const char *end = skip_expression(left), *digits = skip_digits(equals + 1);
  return end && !*end && digits > equals + 1 && digits == text + length;
}

static bool is_cyrillic_list(const char *text, size_t length) {
  size_t words = 0;
  for (const char *c = text; c < text + length;) {
    if (*c++ != '-' || *c++ != ' ') return false;
    size_t letters = 0;
    for (; *c != '\n'; c += 2, ++letters) {
      const unsigned character = (unsigned)((unsigned char)c[0] & 31) << 6 | ((unsigned char)c[1] & 63);
      if (((unsigned char)c[0] & 0xe0) != 0xc0 || character < 0x430 || character > 0x44f) return false;
    }
    if (letters < 3 || letters > 9) return false;
    ++c;
    ++words;
  }
  return words >= 1 && words <= 4;
}

static bool is_anything_but_vowels(const char *text, size_t length) {
  size_t characters = 0;
  for (size_t i = 0; i < length; ++characters) {
    const int size = mlx_utf8_length(text + i, length - i);
    if (size <= 0 || strchr("aeiou", text[i])) return false;
    i += (size_t)size;
  }
  return characters >= 5 && characters <= 40;
}

static const struct {
  const char *gbnf;
  bool (*contains)(const char *text, size_t length);
} languages[] = {
    {JSON_GRAMMAR, is_json_object},
    {"root ::= expr \"=\" [0-9]+\nexpr ::= term ([-+*/] term)*\nterm ::= [0-9]+ | \"(\" expr \")\"", is_sum},
    {"root ::= (\"- \" [а-я]{3,9} \"\\n\"){1,4}", is_cyrillic_list},
    {"root ::= [^aeiou\\x00]{5,40}", is_anything_but_vowels},
};

static void write_many(random_writer_t *w, const char *vocabulary, int count) {
  for (size_t i = 0; i < sizeof languages / sizeof *languages; ++i) {
    mlx_grammar_t *grammar = parse(languages[i].gbnf);
    mlx_matcher_t *matcher;
    size_t bytes = 0;
    CHECK_OK(mlx_matcher_create(grammar, &matcher));
    w->mask_seconds = w->slowest_mask = 0;
    w->mask_count = 0;
    for (int n = 0; n < count; ++n) {
      mlx_sampling_t options;
      mlx_sampling_initialize(&options);
      options.seed = (uint64_t)n;
      options.temperature = n % 3 ? 1.5 : 0.8;
      if (n % 4 == 1) options.top_k = 0, options.top_p = 1, options.min_p = 0;
      if (n % 5 == 0) options.repeat_penalty = 1.2;
      if (n % 7 == 0) options.mirostat = 2;
      mlx_text_t text = random_writer_write(w, matcher, &options);
      bytes += text.length;
      if (!languages[i].contains(text.data, text.length))
        CHECK_FAIL("seed %d: '%.*s' does not match the grammar", n, (int)text.length, text.data);
      mlx_text_clear(&text);
    }
    fprintf(stderr,
            "  %s, grammar %zu: %d texts of %.0f bytes on average; %.3f ms per mask, at most %.2f ms\n",
            vocabulary, i, count, (double)bytes / count, 1e3 * w->mask_seconds / (double)w->mask_count,
            1e3 * w->slowest_mask);
    mlx_matcher_free(matcher);
    mlx_grammar_free(grammar);
  }
}

TEST(text_sampled_under_a_grammar_matches_it) {
  random_writer_t tiny = random_writer_tiny(), smollm2 = random_writer_smollm2();
  write_many(&tiny, "tiny", MLXCEL_SANITIZED ? 100 : 1000);
  write_many(&smollm2, "SmolLM2", MLXCEL_SANITIZED ? 5 : 50);
  random_writer_close(&tiny);
  random_writer_close(&smollm2);
}

// Deep nesting creates new states without end: the matcher drops old ones, and rejects text beyond the depth
// limit.
TEST(a_long_deeply_nested_text_needs_bounded_memory) {
  mlx_grammar_t *grammar = parse("root ::= \"x\" | \"[\" root \",\" root \"]\" | \"(\" root \")\"");
  mlx_matcher_t *matcher;
  bool accepted;
  CHECK_OK(mlx_matcher_create(grammar, &matcher));
  uint64_t random = 5;
  size_t taken = 0;
  for (int i = 0; i < 400000; ++i) {
    const char *const tries[] = {"[", "(", ")", "x", ",", "]"};
    CHECK_OK(mlx_matcher_accept(matcher, tries[random_next(&random) % 6], 1, &accepted));
    taken += accepted;
  }
  CHECK(taken > 100000 || mlx_matcher_is_complete(matcher));
  mlx_matcher_restart(matcher);
  size_t depth = 0;
  for (accepted = true; accepted; ++depth) CHECK_OK(mlx_matcher_accept(matcher, "(", 1, &accepted));
  CHECK(depth > 1000 && depth < 3000);
  mlx_matcher_free(matcher);
  mlx_grammar_free(grammar);
}

TEST_MAIN(CASE(each_construct_accepts_exactly_its_texts), CASE(errors_name_the_line_and_column),
          CASE(an_ambiguous_text_needs_few_stacks), CASE(a_mask_allows_exactly_the_accepted_tokens),
          CASE(masks_respect_a_tokenizer_that_drops_the_first_space),
          CASE(text_sampled_under_a_grammar_matches_it), CASE(a_long_deeply_nested_text_needs_bounded_memory))
