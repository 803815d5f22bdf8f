// libFuzzer target for vocab.txt and tokenizer_config.json. The input is both, separated by a NUL byte.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "models/import/hf_vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *text = (const char *)data, *stop = size ? memchr(text, 0, size) : NULL;
  const size_t length = stop ? (size_t)(stop - text) : size;
  mlx_json_t config = {0}, written = {0};
  char *json = NULL;
  size_t json_length;
  mlx_status_t status = stop ? mlx_json_parse_any("config", stop + 1, size - length - 1, &config) : NULL;
  if (!status) status = mlx_hf_vocab_tokenizer("vocab.txt", text, length, &config, &json, &json_length);
  if (!status) {
    status = mlx_json_parse("tokenizer.json", json, json_length, &written);
    if (status) abort();
  }
  mlx_status_free(status);
  mlx_json_close(&written);
  mlx_json_close(&config);
  mlx_free(json);
  return 0;
}
