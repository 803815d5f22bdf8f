// Fuzz target: the body of a request for embeddings, in the form of each API.
#include "base/memory.h"
#include "server/api/api_fuzz.h"
#include "server/api/embeddings.h"

static void fuzz_embeddings(const char *body, size_t length, const mlx_embeddings_api_t *api) {
  mlx_embeddings_input_t input;
  mlx_status_t status = mlx_embeddings_parse(api, body, length, NULL, &input);
  if (status) {
    fuzz_check_refusal(status);
  } else {
    FUZZ_CHECK((input.count || api->may_be_empty) && input.count <= MLX_MAX_EMBEDDINGS);
    FUZZ_CHECK(input.most == -1 || (input.most >= 1 && input.cut));
    FUZZ_CHECK(input.dimensions == -1 || input.dimensions >= 1);
    FUZZ_CHECK(!input.base64 || api == &mlx_embeddings_openai);
  }
  for (size_t i = 0; !status && i < input.count; ++i) {
    FUZZ_CHECK(yyjson_get_len(input.inputs[i]));
    if (yyjson_is_str(input.inputs[i])) continue;
    const size_t count = yyjson_arr_size(input.inputs[i]);
    int32_t *ids;
    FUZZ_CHECK(!mlx_alloc(count, sizeof *ids, &ids));
    mlx_status_t bad = mlx_embeddings_ids(&input, i, 1000, ids);
    if (bad) fuzz_check_refusal(bad);
    for (size_t k = 0; !bad && k < count; ++k) FUZZ_CHECK(ids[k] >= 0 && ids[k] < 1000);
    mlx_status_free(bad);
    mlx_free(ids);
  }
  mlx_status_free(status);
  mlx_embeddings_input_clear(&input);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_embeddings((const char *)data, size, &mlx_embeddings_openai);
  fuzz_embeddings((const char *)data, size, &mlx_embeddings_ollama);
  fuzz_embeddings((const char *)data, size, &mlx_embeddings_ollama_prompt);
  fuzz_embeddings((const char *)data, size, &mlx_embeddings_tei);
  return 0;
}
