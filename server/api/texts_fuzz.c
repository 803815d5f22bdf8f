// Fuzz target: the body of a request to /tokenize and to /detokenize.
#include "base/memory.h"
#include "server/api/api_fuzz.h"
#include "server/api/tokenize_input.h"

static void fuzz_tokenize(const char *body, size_t length) {
  mlx_text_input_t input;
  mlx_status_t status = mlx_tokenize_parse(body, length, NULL, &input);
  if (status)
    fuzz_check_refusal(status);
  else
    FUZZ_CHECK(input.text && !input.text[input.length] && !input.tokens);
  mlx_status_free(status);
  mlx_text_input_clear(&input);
}

static void fuzz_detokenize(const char *body, size_t length) {
  mlx_text_input_t input;
  int32_t *ids;
  mlx_status_t status = mlx_detokenize_parse(body, length, NULL, &input);
  if (!status) {
    FUZZ_CHECK(!mlx_alloc(input.count, sizeof *ids, &ids));
    status = mlx_detokenize_ids(&input, 1000, ids);
    for (size_t i = 0; !status && i < input.count; ++i) FUZZ_CHECK(ids[i] >= 0 && ids[i] < 1000);
    mlx_free(ids);
  }
  if (status) fuzz_check_refusal(status);
  mlx_status_free(status);
  mlx_text_input_clear(&input);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_tokenize((const char *)data, size);
  fuzz_detokenize((const char *)data, size);
  return 0;
}
