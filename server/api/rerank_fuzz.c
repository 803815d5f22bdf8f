// Fuzz target: the body of a request that scores pairs, of /v1/rerank and of /v1/score.
#include "server/api/api_fuzz.h"
#include "server/api/rerank.h"

static void fuzz_rerank(const char *body, size_t length, const mlx_rerank_api_t *api) {
  mlx_rerank_input_t input;
  mlx_status_t status = mlx_rerank_parse(api, body, length, NULL, &input);
  if (status) {
    fuzz_check_refusal(status);
  } else {
    FUZZ_CHECK(input.count >= 1 && input.count <= MLX_MAX_PAIRS);
    FUZZ_CHECK(input.top == -1 || input.top >= 1);
    for (size_t i = 0; i < input.count; ++i) FUZZ_CHECK(input.pairs[i].first && input.pairs[i].second);
  }
  mlx_status_free(status);
  mlx_rerank_input_clear(&input);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_rerank((const char *)data, size, &mlx_rerank_cohere);
  fuzz_rerank((const char *)data, size, &mlx_rerank_score);
  return 0;
}
