// The time limits of a tokenizer hold on hostile files and texts: the clock is read often enough, wherever
// the time goes. The clock of these tests is the CPU time of the thread, 1000 times faster, so a limit of
// 10 s is 10 ms of work on any machine, however busy it is.
#include "base/budget.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "tests/support/check.h"
#include "tokenizer/added_set.h"
#include "tokenizer/tokenizer.h"

#define SPEED 1000
#define MAX_SECONDS 5.0  // of CPU time; normally 0.05. Sanitizers need more

static int64_t fast_clock_ns(void) { return (int64_t)(mlx_thread_cpu_seconds() * 1e9 * SPEED); }

// |json| must be finished; it is cleared.
static mlx_tokenizer_t *create(mlx_text_t *json) {
  mlx_tokenizer_t *tokenizer;
  CHECK_OK(mlx_text_finish(json));
  CHECK_OK(mlx_tokenizer_create("t.json", json->data, json->length, &tokenizer));
  mlx_text_clear(json);
  return tokenizer;
}

static void put_run(mlx_text_t *out, char letter, size_t count) {
  for (size_t i = 0; i < count; ++i) mlx_text_append(out, &letter, 1);
}

// Encodes |text| and expects the time limit to stop it soon. Releases the tokenizer and the text.
static void check_stopped(mlx_tokenizer_t *tokenizer, mlx_text_t *text, const char *what) {
  int32_t *ids;
  size_t count;
  CHECK_OK(mlx_text_finish(text));
  mlx_budget_set_clock(fast_clock_ns);
  const double start = mlx_thread_cpu_seconds();
  mlx_status_t status = mlx_tokenizer_encode(tokenizer, text->data, text->length, false, &ids, &count);
  const double taken = mlx_thread_cpu_seconds() - start;
  mlx_budget_set_clock(NULL);
  if (!status) CHECK_FAIL("%s: not stopped; %g s", what, taken);
  CHECK_ERROR(status, MLX_TIMEOUT, "tokenizing this text takes longer than the limit of");
  if (taken > MAX_SECONDS) CHECK_FAIL("%s: stopped after %g s", what, taken);
  mlx_tokenizer_free(tokenizer);
  mlx_text_clear(text);
}

#define SPLIT_AT(pattern)                                                                            \
  "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"decoder\":{\"type\":\"Fuse\"}," \
  "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern                          \
  "\"},\"behavior\":\"Isolated\",\"invert\":false}}"

// Each of these is slow in another part of the matcher.
TEST(a_slow_regular_expression_stops_at_the_deadline) {
  static const char *const files[] = {
      SPLIT_AT("(?:a|a|a|a)*b"),        // backtracking: many steps in one match
      SPLIT_AT("a*b"),                  // many matches in one search
      SPLIT_AT("(?>a*)b"),              // an atomic group: one step of backtracking reads the whole text
      SPLIT_AT("(a*)\\\\1b"),           // a back reference compares half of the text in one step
      SPLIT_AT("(?=(?>a*))a+b"),        // a look-ahead reads the whole text and returns
      SPLIT_AT("(?:(?:a?){99}){99}b"),  // repetitions
  };
  for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
    mlx_text_t json = {0}, text = {0};
    mlx_text_puts(&json, files[i]);
    put_run(&text, 'a', 200000);
    mlx_text_puts(&text, "cb");  // without a b, the search would not start
    check_stopped(create(&json), &text, files[i]);
  }
}

// Pieces a, aa, ... : every character of the text begins as many tokens as the longest piece has letters.
TEST(unigram_with_nested_pieces_stops_at_the_deadline) {
  mlx_text_t json = {0}, text = {0};
  mlx_text_puts(&json,
                "{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[");
  for (size_t i = 1; i <= 1024; ++i) {
    mlx_text_puts(&json, i > 1 ? ",[\"" : "[\"");
    put_run(&json, 'a', i);
    mlx_text_printf(&json, "\",-%zu]", i);
  }
  mlx_text_puts(&json, "]}}");
  put_run(&text, 'a', 1 << 20);
  check_stopped(create(&json), &text, "nested pieces");
}

// Each token "##a" is found after a walk of 1000 letters towards a longer one.
TEST(wordpiece_with_a_long_token_stops_at_the_deadline) {
  mlx_text_t json = {0}, text = {0};
  mlx_text_puts(&json,
                "{\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":false},"
                "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"u\",\"continuing_subword_prefix\":\"##\","
                "\"max_input_chars_per_word\":100000000,\"vocab\":{\"u\":0,\"a\":1,\"##a\":2,\"##");
  put_run(&json, 'a', 1000);
  mlx_text_puts(&json, "b\":3}}}");
  put_run(&text, 'a', 1 << 20);
  check_stopped(create(&json), &text, "a long token");
}

// The normalizer of the file runs on each of its added tokens. All of them together have one time limit.
TEST(reading_a_tokenizer_stops_at_the_deadline) {
  mlx_text_t json = {0};
  mlx_tokenizer_t *tokenizer;
  mlx_text_puts(
      &json,
      "{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},"
      "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(?:a|a)*b\"},\"content\":\"x\"},"
      "\"added_tokens\":[");
  for (size_t i = 1; i <= 2000; ++i) {
    mlx_text_printf(&json, "%s{\"id\":%zu,\"normalized\":true,\"content\":\"%zu", i > 1 ? "," : "", i, i);
    put_run(&json, 'a', 20);
    mlx_text_puts(&json, "cb\"}");
  }
  mlx_text_puts(&json, "]}");
  CHECK_OK(mlx_text_finish(&json));
  mlx_budget_set_clock(fast_clock_ns);
  const double start = mlx_thread_cpu_seconds();
  mlx_status_t status = mlx_tokenizer_create("t.json", json.data, json.length, &tokenizer);
  const double taken = mlx_thread_cpu_seconds() - start;
  mlx_budget_set_clock(NULL);
  CHECK_ERROR(status, MLX_TIMEOUT, "t.json: reading the file takes longer than the limit of 10 s");
  CHECK(taken < MAX_SECONDS);
  mlx_text_clear(&json);
}

// ----------------------------------------------------------------------------------------------------------
// Added tokens

// A walk down a trie from each position would read 1000 bytes for each byte of the text: 12 s for this text.
TEST(added_tokens_with_a_shared_prefix_are_found_in_linear_time) {
  mlx_text_t json = {0}, text = {0};
  int32_t *ids;
  size_t count;
  mlx_text_puts(
      &json,
      "{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},"
      "\"added_tokens\":[");
  for (size_t i = 1; i <= 2000; ++i) {
    mlx_text_printf(&json, "%s{\"id\":%zu,\"content\":\"", i > 1 ? "," : "", i);
    put_run(&json, 'a', 1000);
    mlx_text_printf(&json, "%zu\"}", i);
  }
  mlx_text_puts(&json, "]}");
  mlx_tokenizer_t *tokenizer = create(&json);
  put_run(&text, 'a', 1 << 19);
  mlx_text_puts(&text, "2000");  // the last token of the text is added token 2000
  CHECK_OK(mlx_text_finish(&text));
  const double start = mlx_thread_cpu_seconds();
  CHECK_OK(mlx_tokenizer_encode(tokenizer, text.data, text.length, false, &ids, &count));
  CHECK(mlx_thread_cpu_seconds() - start < MAX_SECONDS);
  CHECK_INT(count, (1 << 19) - 1000 + 1);
  CHECK_INT(ids[count - 1], 2000);
  mlx_free(ids);
  mlx_text_clear(&text);
  mlx_tokenizer_free(tokenizer);
}

// Compares with a slow search, on texts of two letters, which have many overlapping tokens.
TEST(the_longest_added_token_is_found_at_every_position) {
  static char text[70000];  // more than one block
  uint32_t random = 1;
  for (size_t i = 0; i < sizeof text; ++i) {
    random = random * 1664525 + 1013904223;
    text[i] = "ab"[random >> 31];
  }
  for (size_t round = 1; round <= 20; ++round) {
    mlx_added_set_t set = {0};
    mlx_added_block_t block = {0};
    struct {
      size_t at, length;
      bool added;
    } tokens[12];
    CHECK_OK(mlx_added_set_create(12 * 16, round, &set));
    for (size_t i = 0; i < 12; ++i) {
      random = random * 1664525 + 1013904223;
      tokens[i].at = (random >> 8) % 60000;
      tokens[i].length = 1 + (random >> 4) % (round < 10 ? 5 : 16);
      tokens[i].added = mlx_added_set_add(&set, text + tokens[i].at, tokens[i].length, (int32_t)i);
    }
    CHECK_OK(mlx_added_set_finish(&set));
    for (size_t at = 0; at < sizeof text; ++at) {
      mlx_added_match_t expected = {.index = -1};
      if (at >= block.end) CHECK_OK(mlx_added_set_search(&set, text, sizeof text, at, &block));
      for (size_t i = 0; i < 12; ++i) {
        if (!tokens[i].added || tokens[i].length <= expected.length || tokens[i].length > sizeof text - at ||
            memcmp(text + at, text + tokens[i].at, tokens[i].length))
          continue;
        expected = (mlx_added_match_t){(int32_t)i, (uint32_t)tokens[i].length};
      }
      const mlx_added_match_t found = block.matches[at - block.begin];
      if (found.index != expected.index || found.length != expected.length)
        CHECK_FAIL("round %zu, position %zu: token %d, expected %d", round, at, found.index, expected.index);
    }
    mlx_added_block_free(&block);
    mlx_added_set_free(&set);
  }
}

TEST_MAIN(CASE(a_slow_regular_expression_stops_at_the_deadline),
          CASE(unigram_with_nested_pieces_stops_at_the_deadline),
          CASE(wordpiece_with_a_long_token_stops_at_the_deadline),
          CASE(reading_a_tokenizer_stops_at_the_deadline),
          CASE(added_tokens_with_a_shared_prefix_are_found_in_linear_time),
          CASE(the_longest_added_token_is_found_at_every_position))
