// The second size of every architecture fixture, tests/fixtures/wide/NAME.json: heads of 16 or 32 and a
// multiple of 32 columns in every matrix, which the GPU kernels take. The file has config, seed and list of
// tensors. The weights are generated here, as tests/parity/wide_weights.py does: the bytes are the same.
#ifndef MLXCEL_TESTS_WIDE_FIXTURES_H_
#define MLXCEL_TESTS_WIDE_FIXTURES_H_

#include "base/text.h"
#include "tests/support/architectures.h"
#include "tests/support/random_numbers.h"

#define WIDE_FIXTURES FIXTURES "wide/"
#define WIDE_GOLDENS GOLDENS "wide/"
#define WIDE_MEAN 131070  // of the sum of four 16-bit numbers

// The name of a wide fixture whose file is |file|, unless $MLXCEL_ARCH selects another; false: none.
static inline bool wide_name(const char *file, char out_name[64]) {
  static const char ending[] = ".json";
  const char *only = getenv("MLXCEL_ARCH");
  const size_t length = strlen(file), tail = sizeof ending - 1;
  if (length <= tail || length - tail >= 64 || strcmp(file + length - tail, ending)) return false;
  snprintf(out_name, 64, "%.*s", (int)(length - tail), file);
  return !only || !strcmp(only, out_name);
}

static inline uint16_t wide_bf16(double value) {
  const float rounded = (float)value;
  uint32_t bits;
  memcpy(&bits, &rounded, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Appends the elements of tensor |number|. |row| is [name, dtype, shape, factor, offset].
static inline void wide_append_tensor(mlx_text_t *out, uint64_t seed, size_t number, yyjson_val *row,
                                      uint64_t count) {
  const double factor = yyjson_get_num(yyjson_arr_get(row, 3)),
               offset = yyjson_get_num(yyjson_arr_get(row, 4));
  const bool bytes = yyjson_equals_str(yyjson_arr_get(row, 1), "U8");
  uint64_t state = (seed << 48) + ((uint64_t)number << 32);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t z = random_next(&state);
    const int64_t sum = (int64_t)((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
    const uint8_t byte = (uint8_t)(offset + (double)((z >> 33) % (uint64_t)(factor > 1 ? factor : 1)));
    const double product = (double)(sum - WIDE_MEAN) * factor;
    const uint16_t number16 = wide_bf16(product + offset);
    mlx_text_append(out, bytes ? (const char *)&byte : (const char *)&number16, bytes ? 1 : 2);
  }
}

static inline void wide_write_weights(const char *path, uint64_t seed, yyjson_val *tensors) {
  mlx_text_t header = {0}, data = {0}, file = {0};
  size_t number, rows, dim, rank;
  yyjson_val *row, *value;
  mlx_text_printf(&header, "{\"__metadata__\":{\"format\":\"pt\"}");
  yyjson_arr_foreach(tensors, number, rows, row) {
    const char *name = yyjson_get_str(yyjson_arr_get(row, 0)),
               *dtype = yyjson_get_str(yyjson_arr_get(row, 1));
    CHECK(name && dtype);
    const size_t begin = data.length;
    uint64_t count = 1;
    mlx_text_printf(&header, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", name, dtype);
    yyjson_arr_foreach(yyjson_arr_get(row, 2), dim, rank, value) {
      mlx_text_printf(&header, "%s%llu", dim ? "," : "", (unsigned long long)yyjson_get_uint(value));
      count *= yyjson_get_uint(value);
    }
    wide_append_tensor(&data, seed, number, row, count);
    mlx_text_printf(&header, "],\"data_offsets\":[%zu,%zu]}", begin, data.length);
  }
  mlx_text_printf(&header, "}");
  while (header.length % 8) mlx_text_printf(&header, " ");
  const uint64_t length = header.length;  // safetensors is little-endian; so are all test machines
  mlx_text_append(&file, (const char *)&length, sizeof length);
  mlx_text_append(&file, header.data, header.length);
  mlx_text_append(&file, data.data, data.length);
  CHECK_OK(mlx_write_file(path, file.data, file.length));
  mlx_text_clear(&header);
  mlx_text_clear(&data);
  mlx_text_clear(&file);
}

// Writes the fixture of a file as a Hugging Face directory: config, generated weights and tiny-llama's
// tokenizer.
static inline void write_wide_file(const char *file, const char *folder) {
  char path[512], *text;
  size_t length;
  mlx_json_t json;
  CHECK_OK(mlx_read_file(file, 1 << 20, &text, &length));
  CHECK_OK(mlx_json_parse(file, text, length, &json));
  char *config = yyjson_val_write(yyjson_obj_get(json.root, "config"), 0, &length);
  snprintf(path, sizeof path, "%s/config.json", folder);
  CHECK_OK(mlx_write_file(path, config, length));
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  wide_write_weights(path, yyjson_get_uint(yyjson_obj_get(json.root, "seed")),
                     yyjson_obj_get(json.root, "tensors"));
  snprintf(path, sizeof path, "%s/tokenizer.json", folder);
  CHECK(!symlink(TOKENIZER, path));
  free(config);
  mlx_json_close(&json);
  mlx_free(text);
}

static inline void write_wide_model(const char *name, const char *folder) {
  char path[512];
  snprintf(path, sizeof path, WIDE_FIXTURES "%s.json", name);
  write_wide_file(path, folder);
}

#endif  // MLXCEL_TESTS_WIDE_FIXTURES_H_
