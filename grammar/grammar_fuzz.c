// Fuzz target: an untrusted grammar, the byte 0xff, and a text. Matching the text at once and byte by byte
// must agree.
#include <stdint.h>
#include <string.h>

#include "grammar/matcher.h"

#define MAX_FUZZ_TEXT 200

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void follow(const mlx_grammar_t *grammar, const char *text, size_t length) {
  mlx_matcher_t *whole, *bytes;
  mlx_status_t status = mlx_matcher_create(grammar, &whole), second = mlx_matcher_create(grammar, &bytes);
  bool accepted = true, byte_accepted = true;
  if (!status && !second) status = mlx_matcher_accept(whole, text, length, &accepted);
  for (size_t i = 0; !status && !second && i < length && byte_accepted; ++i) {
    second = mlx_matcher_accept(bytes, text + i, 1, &byte_accepted);
  }
  if (!status && !second && accepted != byte_accepted) __builtin_trap();
  if (!status && !second && accepted && mlx_matcher_is_complete(whole) != mlx_matcher_is_complete(bytes))
    __builtin_trap();
  mlx_status_free(status);
  mlx_status_free(second);
  mlx_matcher_free(whole);
  mlx_matcher_free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const uint8_t *cut = size ? memchr(data, 0xff, size) : NULL;
  const size_t grammar_length = cut ? (size_t)(cut - data) : size;
  const char *text = cut ? (const char *)cut + 1 : "";
  size_t length = cut ? size - grammar_length - 1 : 0;
  if (length > MAX_FUZZ_TEXT) length = MAX_FUZZ_TEXT;
  mlx_grammar_t *grammar;
  mlx_status_t status = mlx_grammar_create("fuzz", (const char *)data, grammar_length, &grammar);
  if (!status) follow(grammar, text, length);
  mlx_status_free(status);
  mlx_grammar_free(grammar);
  return 0;
}
