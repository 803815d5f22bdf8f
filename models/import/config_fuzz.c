// libFuzzer target for the JSON files of a Hugging Face directory. The input is config.json,
// generation_config.json and an index, separated by NUL bytes.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "models/import/hf.h"

static void read_fields(const mlx_hf_t *hf) {
  static const char *const keys[] = {"hidden_size", "rope_parameters.rope_theta", "a", "a.b", ".", ""};
  int64_t integer;
  double number;
  bool truth, found;
  const char *string;
  int32_t ids[2];
  size_t count;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; ++i) {
    mlx_status_free(mlx_hf_int(hf, keys[i], 0, 1000, &integer, &found));
    mlx_status_free(mlx_hf_int(hf, keys[i], INT64_MIN, INT64_MAX, &integer, NULL));
    mlx_status_free(mlx_hf_number(hf, keys[i], &number, &found));
    mlx_status_free(mlx_hf_bool(hf, keys[i], &truth, &found));
    mlx_status_free(mlx_hf_string(hf, keys[i], &string, &found));
  }
  mlx_packing_t packing;
  mlx_status_free(mlx_hf_packing(hf, "a.b.weight", 0, 8, 64, &packing));
  if (packing.kind) abort();  // there are no tensors
  mlx_status_free(mlx_hf_packing(hf, "a.b", 2, 8, 64, &packing));
  if (packing.kind) abort();
  mlx_status_t status = mlx_hf_eos_ids(hf, ids, 2, &count);
  if (!status && count > 2) abort();
  mlx_status_free(status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *parts[3] = {0}, *cursor = (const char *)data, *end = cursor + size;
  size_t lengths[3] = {0};
  for (int i = 0; i < 3 && cursor < end; ++i) {
    const char *stop = i < 2 ? memchr(cursor, 0, (size_t)(end - cursor)) : NULL;
    parts[i] = cursor;
    lengths[i] = (size_t)((stop ? stop : end) - cursor);
    cursor = stop ? stop + 1 : end;
  }
  if (!parts[0]) return 0;
  mlx_hf_t *hf;
  mlx_status_t status = mlx_hf_parse("fuzz", parts[0], lengths[0], parts[1], lengths[1], &hf);
  if (!status) {
    read_fields(hf);
    mlx_hf_close(hf);
  }
  mlx_status_free(status);
  if (!parts[2]) return 0;
  mlx_json_t index;
  status = mlx_json_parse("index.json", parts[2], lengths[2], &index);
  if (!status) {
    status = mlx_hf_check_index(&index);
    mlx_json_close(&index);
  }
  mlx_status_free(status);
  return 0;
}
