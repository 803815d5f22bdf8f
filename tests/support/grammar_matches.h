// Whether a grammar accepts a text.
#ifndef MLXCEL_TESTS_SUPPORT_GRAMMAR_MATCHES_H_
#define MLXCEL_TESTS_SUPPORT_GRAMMAR_MATCHES_H_

#include <string.h>

#include "grammar/matcher.h"
#include "tests/support/check.h"

static inline bool grammar_matches(const char *gbnf, size_t length, const char *text) {
  mlx_grammar_t *grammar;
  mlx_matcher_t *matcher;
  bool accepted;
  CHECK_OK(mlx_grammar_create("grammar", gbnf, length, &grammar));
  CHECK_OK(mlx_matcher_create(grammar, &matcher));
  CHECK_OK(mlx_matcher_accept(matcher, text, strlen(text), &accepted));
  accepted = accepted && mlx_matcher_is_complete(matcher);
  mlx_matcher_free(matcher);
  mlx_grammar_free(grammar);
  return accepted;
}

#endif  // MLXCEL_TESTS_SUPPORT_GRAMMAR_MATCHES_H_
