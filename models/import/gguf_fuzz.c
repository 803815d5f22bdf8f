// libFuzzer target for the GGUF reader. The input is a GGUF file, or "SPLT", the length of the first part,
// and two parts of a split model. Everything in a parsed file must be readable, every tensor of a joined
// model must be found by name, and written tokenizer.json and chat.json must be valid JSON.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "models/import/chat.h"
#include "models/import/gguf_split.h"
#include "models/import/gguf_tokenizer.h"

static void read_field(const mlx_gguf_t *gguf, const mlx_gguf_field_t *field) {
  int64_t integer;
  double number;
  bool truth, found;
  const char *string;
  if (mlx_gguf_find(gguf, field->key) != field) abort();
  mlx_status_free(mlx_gguf_int(gguf, field->key, -100, 100, &integer, &found));
  mlx_status_free(mlx_gguf_number(gguf, field->key, &number, &found));
  mlx_status_free(mlx_gguf_bool(gguf, field->key, &truth, &found));
  mlx_status_free(mlx_gguf_string(gguf, field->key, &string, &found));
  const uint8_t *cursor = field->data;
  for (uint64_t i = 0; i < field->count; ++i) {
    size_t length;
    mlx_gguf_int_at(field, i, &integer);
    mlx_gguf_number_at(field, i, &number);
    if (field->type == MLX_GGUF_STRING) mlx_gguf_next_string(&cursor, &length);
  }
}

static void read_tensor(const mlx_tensor_t *tensor) {
  const mlx_dtype_info_t *info = mlx_dtype_info(tensor->dtype);
  size_t blocks = tensor->size / info->block_bytes;
  float *values;
  mlx_status_t status = mlx_alloc(blocks * info->block_elements, sizeof *values, &values);
  if (!status) info->to_f32(tensor->data, blocks, values);
  mlx_free(values);
  mlx_status_free(status);
}

// The written text, if any, must be valid JSON. Frees |text|.
static void check_json(mlx_status_t status, char *text, size_t length) {
  mlx_json_t json;
  if (!status && text) {
    if (mlx_json_parse("written.json", text, length, &json)) abort();
    mlx_json_close(&json);
  }
  mlx_free(text);
  mlx_status_free(status);
}

static void read_file(const mlx_gguf_t *gguf) {
  for (size_t i = 0; i < gguf->field_count; ++i) read_field(gguf, &gguf->fields[i]);
  for (size_t i = 0; i < gguf->tensor_count; ++i) read_tensor(&gguf->tensors[i]);
  char *text;
  size_t length;
  int32_t ids[2];
  mlx_status_free(mlx_gguf_eos_ids(gguf, ids, 2, &length));
  mlx_status_t status = mlx_gguf_tokenizer_json(gguf, &text, &length);
  check_json(status, text, length);
  status = mlx_gguf_chat_json(gguf, &text, &length);
  check_json(status, text, length);
}

static void read_split(const uint8_t *data, size_t size) {
  uint32_t first_size;
  memcpy(&first_size, data, sizeof first_size);
  if (first_size > size - sizeof first_size) return;
  data += sizeof first_size;
  mlx_gguf_part_t parts[2] = {{0}};
  mlx_gguf_model_t model = {.parts = parts, .part_count = 2};
  mlx_status_t status = mlx_gguf_parse("1.gguf", data, first_size, &parts[0].file);
  if (!status)
    status =
        mlx_gguf_parse("2.gguf", data + first_size, size - sizeof first_size - first_size, &parts[1].file);
  if (!status) status = mlx_gguf_model_join(&model);
  for (size_t i = 0; !status && i < model.tensor_count; ++i) {
    if (mlx_tensor_find(model.tensors, model.tensor_count, model.tensors[i]->name) != model.tensors[i])
      abort();
    read_tensor(model.tensors[i]);
  }
  mlx_status_free(status);
  for (int i = 0; i < 2; ++i) mlx_gguf_close(parts[i].file);
  mlx_free(model.tensors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size >= 8 && !memcmp(data, "SPLT", 4)) {
    read_split(data + 4, size - 4);
    return 0;
  }
  mlx_gguf_t *gguf;
  mlx_status_t status = mlx_gguf_parse("fuzz.gguf", data, size, &gguf);
  if (!status) read_file(gguf);
  mlx_status_free(status);
  mlx_gguf_close(gguf);
  return 0;
}
