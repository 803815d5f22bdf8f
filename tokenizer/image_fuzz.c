// Fuzz target: images of tokenizers. An image that is accepted must encode and decode any text without
// reading outside its bytes.
//
// The committed cases are whole images of small tokenizers, one of each kind. After a change of the format,
// MLXCEL_UPDATE_GOLDENS=1 build/tests/tokenizer_image_test writes them again.
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tokenizer/components.h"
#include "tokenizer/image.h"

#define MAX_FUZZ_TEXT 300

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const mlx_tokenizer_t *tokenizer, const char *text, size_t length) {
  int32_t *ids;
  size_t count;
  char *decoded = NULL;
  mlx_status_t status = mlx_tokenizer_encode(tokenizer, text, length, true, &ids, &count);
  if (!status) status = mlx_tokenizer_decode(tokenizer, ids, count, false, &decoded, NULL);
  mlx_status_free(status);
  mlx_free(decoded);
  mlx_free(ids);
}

static void check_tokens(const mlx_tokenizer_t *tokenizer) {
  const mlx_vocab_t *vocab = &tokenizer->model.vocab;
  mlx_text_t text = {0};
  for (int32_t id = -1; id <= (int32_t)vocab->size && text.length < MAX_FUZZ_TEXT; ++id) {
    mlx_tokenizer_piece(tokenizer, id, id & 1, id & 2, &text);
    if (mlx_tokenizer_is_special(tokenizer, id)) mlx_text_puts(&text, " ");
  }
  const size_t length = text.length < MAX_FUZZ_TEXT ? text.length : MAX_FUZZ_TEXT;
  if (!text.failed && text.data) check_text(tokenizer, text.data, length);
  mlx_text_clear(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char sample[] = " abc ab<s>  aa a\xc3\xa9 1 _a\n<s><s>AB.'s";
  uint8_t *copy;  // aligned, and a sanitizer knows where it ends
  mlx_tokenizer_t *tokenizer = NULL;
  mlx_status_t status = mlx_alloc(size, 1, &copy);
  if (status) abort();
  memcpy(copy, data, size);
  status = mlx_tokenizer_image_parse("fuzz.bin", (mlx_map_t){copy, size}, &tokenizer);
  if (status && getenv("MLXCEL_FUZZ_VALID")) abort();
  if (!status) {
    check_text(tokenizer, sample, sizeof sample - 1);
    check_text(tokenizer, (const char *)data, size < MAX_FUZZ_TEXT ? size : MAX_FUZZ_TEXT);
    check_tokens(tokenizer);
  }
  mlx_status_free(status);
  mlx_tokenizer_free(tokenizer);
  mlx_free(copy);
  return 0;
}
