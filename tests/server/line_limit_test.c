// Line limits (server/core/line_limit.h): n_indent and t_max_predict_ms of llama.cpp.
#include "server/core/line_limit.h"

#include <string.h>

#include "base/text.h"
#include "tests/support/check.h"

// Gives |text| in pieces of |piece| bytes, one second each, and checks what is left of it.
static void check_text(mlx_line_limit_t limit, const char *text, size_t piece, const char *expected,
                       bool ended) {
  mlx_text_t out = {0};
  double now = 100;
  for (size_t at = 0; at < strlen(text); at += piece, now += 1) {
    const size_t left = strlen(text + at), length = left < piece ? left : piece;
    mlx_text_append(&out, text + at, mlx_line_limit_take(&limit, now, text + at, length));
  }
  CHECK_TEXT(out.data ? out.data : "", expected);
  CHECK_INT(limit.ended, ended);
  mlx_text_clear(&out);
}

TEST(a_line_with_less_indentation_ends_the_text) {
  static const struct {
    const char *text, *expected;
    int64_t indent;
    bool ended;
  } cases[] = {
      {"a = 1\n  b = 2\n\tc\n}\n", "a = 1\n  b = 2\n\t", 2, true},  // a tab is one
      {"a = 1\n  b = 2\n }\n", "a = 1\n  b = 2\n ", 2, true},
      {"a\n  b\n\n  c", "a\n  b\n", 1, true},  // an empty line has no indentation, as of llama.cpp
      {"a\n  b\n  c", "a\n  b\n  c", 2, false},
      {"no line break", "no line break", 4, false},
      {"a\nb\n", "a\nb\n", 0, false},
      {"a\n ", "a\n ", 4, false},  // the line may go on
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    for (size_t piece = 1; piece < 8; ++piece)
      check_text((mlx_line_limit_t){.least_indent = cases[i].indent}, cases[i].text, piece, cases[i].expected,
                 cases[i].ended);
  }
}

TEST(after_the_time_the_next_line_break_ends_the_text) {
  check_text((mlx_line_limit_t){.most_seconds = 2.5}, "a\nb\nc\nd\n", 1, "a\nb\n", true);
  check_text((mlx_line_limit_t){.most_seconds = 0.5}, "a\nb\nc\nd\n", 4, "a\nb\nc\n", true);
  check_text((mlx_line_limit_t){.most_seconds = 1}, "a long line", 1, "a long line", false);
  check_text((mlx_line_limit_t){.most_seconds = 100}, "a\nb\nc", 1, "a\nb\nc", false);
}

TEST_MAIN(CASE(a_line_with_less_indentation_ends_the_text),
          CASE(after_the_time_the_next_line_break_ends_the_text))
