// A model whose vocabulary has tokens to fill in the middle: ids GAP_PREFIX, GAP_SUFFIX and GAP_MIDDLE.
#ifndef MLXCEL_TESTS_GAP_MODEL_H_
#define MLXCEL_TESTS_GAP_MODEL_H_

#include "base/memory.h"
#include "base/text.h"
#include "tests/support/fixture_copy.h"

#define GAP_PREFIX 317
#define GAP_SUFFIX 318
#define GAP_MIDDLE 319

// Replaces the first |from| of the text.
static inline void replace_text(mlx_text_t *text, const char *from, const char *to) {
  const char *found = strstr(text->data, from);
  mlx_text_t out = {0};
  if (!found) CHECK_FAIL("the tokenizer has no %s", from);
  mlx_text_append(&out, text->data, (size_t)(found - text->data));
  mlx_text_puts(&out, to);
  mlx_text_puts(&out, found + strlen(from));
  mlx_text_clear(text);
  *text = out;
}

// Writes a model to the folder of folder.h. The last three tokens of the vocabulary become those for gaps.
static inline void make_gap_model(const char *prefix, const char *suffix, const char *middle) {
  const char *const names[] = {prefix, suffix, middle}, *const old[] = {"thing", "use", "ver"};
  char from[64], to[128];
  size_t length;
  char *json;
  mlx_text_t text = {0}, added = {0};
  copy_fixture("qwen2");
  CHECK_OK(mlx_read_file(in_folder("tokenizer.json"), 1 << 20, &json, &length));
  mlx_text_append(&text, json, length);
  mlx_free(json);
  mlx_text_puts(&added, "\"special\": true}");
  for (int i = 0; i < 3; ++i) {
    snprintf(from, sizeof from, "\"%s\": %d", old[i], GAP_PREFIX + i);
    snprintf(to, sizeof to, "\"%s\": %d", names[i], GAP_PREFIX + i);
    replace_text(&text, from, to);
    mlx_text_printf(&added,
                    ",{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":"
                    "false,\"normalized\":false,\"special\":true}",
                    GAP_PREFIX + i, names[i]);
  }
  mlx_text_puts(&added, "],");
  replace_text(&text, "[\n        \"t\",\n        \"hing\"\n      ],", "");
  replace_text(&text, "[\n        \"u\",\n        \"se\"\n      ],", "");
  replace_text(&text, "\n        \"v\",\n        \"er\"\n", "\n        \"t\",\n        \"he\"\n");
  replace_text(&text, "\"special\": true\n    }\n  ],", added.data);
  CHECK_OK(mlx_write_file(in_folder("tokenizer.json"), text.data, text.length));
  mlx_text_clear(&added);
  mlx_text_clear(&text);
}

static inline void remove_gap_model(void) {
  static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors",
                                      "tokenizer.json"};
  for (size_t i = 0; i < 4; ++i) remove(in_folder(files[i]));
  remove(folder);
}

#endif  // MLXCEL_TESTS_GAP_MODEL_H_
