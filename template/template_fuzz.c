// Fuzz target: an untrusted template with untrusted variables.
//
// The input is a template, the byte 0xff (which no UTF-8 text contains), and a JSON object of variables.
// Without the byte, the variables are a small conversation. The output must be UTF-8, and a second render
// must give the same.
#include <stdint.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "template/template.h"

#define MAX_VARIABLES 16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char conversation[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\","
    "\"content\":\"Hi é\"},{\"role\":\"assistant\",\"content\":null,"
    "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[1,2.5,true,null]}}}]}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
    "\"parameters\":{\"type\":\"object\"}}}],\"add_generation_prompt\":true,\"bos_token\":\"<s>\","
    "\"n\":7,\"f\":-0.5,\"s\":\"a b\"}";

static void check_utf8(const char *text, size_t length) {
  for (size_t i = 0; i < length;) {
    int step = mlx_utf8_length(text + i, length - i);
    if (step <= 0) __builtin_trap();
    i += (size_t)step;
  }
}

static void render(const mlx_template_t *template, yyjson_val *variables) {
  mlx_template_variable_t list[MAX_VARIABLES];
  mlx_template_input_t input = {
      .variables = list, .now = 1767323045, .limits = {.steps = 20000, .memory = 8 << 20, .output = 1 << 16}};
  yyjson_val *key, *value;
  size_t index, count;
  char *texts[2];
  size_t lengths[2];
  mlx_status_t statuses[2];
  yyjson_obj_foreach(variables, index, count, key, value) {
    if (input.variable_count < MAX_VARIABLES)
      list[input.variable_count++] = (mlx_template_variable_t){yyjson_get_str(key), value};
  }
  for (int i = 0; i < 2; ++i) statuses[i] = mlx_template_render(template, &input, &texts[i], &lengths[i]);
  if (!statuses[0] != !statuses[1] || lengths[0] != lengths[1]) __builtin_trap();
  if (!statuses[0] && memcmp(texts[0], texts[1], lengths[0])) __builtin_trap();
  if (!statuses[0]) check_utf8(texts[0], lengths[0]);
  for (int i = 0; i < 2; ++i) {
    mlx_status_free(statuses[i]);
    mlx_free(texts[i]);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const uint8_t *cut = size ? memchr(data, 0xff, size) : NULL;
  const size_t length = cut ? (size_t)(cut - data) : size;
  mlx_template_t *template;
  mlx_status_t status = mlx_template_create("fuzz", (const char *)data, length, &template);
  if (!status) {
    const char *json = cut ? (const char *)cut + 1 : conversation;
    yyjson_doc *doc = yyjson_read(json, cut ? size - length - 1 : strlen(json), 0);
    if (doc) render(template, yyjson_doc_get_root(doc));
    yyjson_doc_free(doc);
  }
  mlx_status_free(status);
  mlx_template_free(template);
  return 0;
}
