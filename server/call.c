// Calls: defaults and release.
#include "server/call.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/memory.h"

mlx_status_t mlx_call_initialize(mlx_call_t *out_call) {
  uint32_t seed;
  *out_call = (mlx_call_t){.max_tokens = -1, .n = 1, .logprobs = -1};
  mlx_sampling_initialize(&out_call->sampling);
  if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
    return mlx_error(MLX_IO, "cannot get a random seed: getrandom failed: %s", strerror(errno));
  out_call->sampling.seed = seed;
  return NULL;
}

static void free_texts(char **texts, size_t count) {
  for (size_t i = 0; i < count; ++i) mlx_free(texts[i]);
  mlx_free(texts);
}

void mlx_call_clear(mlx_call_t *call) {
  for (size_t i = 0; i < call->prompt_count; ++i) {
    mlx_free(call->prompts[i].text);
    mlx_free(call->prompts[i].ids);
  }
  mlx_free(call->prompts);
  free_texts(call->stops, call->stop_count);
  free_texts(call->breakers, call->breaker_count);
  mlx_free(call->biases_storage);
  mlx_free(call->model);
  mlx_free(call->messages);
  mlx_free(call->tools);
  mlx_free(call->variables);
  mlx_free(call->format_text);
  mlx_free(call->tool_name);
  *call = (mlx_call_t){.details = call->details};
}
