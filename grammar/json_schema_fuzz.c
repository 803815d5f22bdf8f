// Fuzz target: an untrusted JSON schema. Its GBNF must parse, and a random text of the grammar must be JSON.
#include <stdint.h>
#include <string.h>
#include <yyjson.h>

#include "base/memory.h"
#include "grammar/json_schema.h"
#include "grammar/matcher.h"

#define MAX_STEPS 400

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t next_random(uint64_t *state) {  // splitmix64
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Writes random accepted bytes until none is accepted. The text must be JSON wherever the matcher reports
// that it is complete.
static void write_text(const mlx_grammar_t *grammar, uint64_t seed) {
  mlx_matcher_t *matcher;
  char text[MAX_STEPS];
  size_t length = 0;
  mlx_status_t status = mlx_matcher_create(grammar, &matcher);
  while (!status && length < MAX_STEPS) {
    const bool complete = mlx_matcher_is_complete(matcher);
    if (complete) {
      yyjson_doc *doc = yyjson_read(text, length, YYJSON_READ_BIGNUM_AS_RAW);
      if (!doc) __builtin_trap();
      yyjson_doc_free(doc);
    }
    bool accepted = false;
    const uint64_t first = next_random(&seed);
    for (unsigned i = 0; !status && !accepted && i < 256; ++i) {
      text[length] = (char)(uint8_t)(first + i);
      status = mlx_matcher_accept(matcher, text + length, 1, &accepted);
    }
    if (!status && !accepted && !complete) __builtin_trap();  // an incomplete text that cannot continue
    if (!accepted) break;
    ++length;
  }
  mlx_status_free(status);
  mlx_matcher_free(matcher);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *gbnf;
  size_t length;
  mlx_grammar_t *grammar = NULL;
  mlx_status_t status = mlx_json_schema_to_gbnf("fuzz", (const char *)data, size, &gbnf, &length);
  if (!status) {
    status = mlx_grammar_create("fuzz", gbnf, length, &grammar);
    if (status && mlx_status_code(status) != MLX_UNSUPPORTED) __builtin_trap();
    if (!status) write_text(grammar, size);
  }
  mlx_status_free(status);
  mlx_free(gbnf);
  mlx_grammar_free(grammar);
  return 0;
}
