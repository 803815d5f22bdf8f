// A field that is missing in config.json has the default of Hugging Face's class.
//
// tests/goldens/config_defaults.json, written by tests/parity/config_defaults.py, has that default for every
// field of every fixture. Reading a config without the field must give the same config or the same error as
// reading it with the default. Alternatively the reader may require the field.
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "models/model.h"
#include "tests/support/golden.h"

extern const mlx_arch_t *const mlx_arch_table[];

#define FIXTURES MLXCEL_SOURCE_DIR "/tests/fixtures/"
#define GOLDENS MLXCEL_SOURCE_DIR "/tests/goldens/config_defaults.json"

static mlx_json_t read_json(const char *path) {
  char *text;
  size_t length;
  mlx_json_t json;
  CHECK_OK(mlx_read_file(path, 1 << 20, &text, &length));
  CHECK_OK(mlx_json_parse(path, text, length, &json));
  mlx_free(text);
  return json;
}

static const mlx_arch_t *arch_of(const mlx_source_t *source) {
  for (const mlx_arch_t *const *arch = mlx_arch_table; *arch; ++arch) {
    for (const char *const *type = (*arch)->hf_types; *type; ++type) {
      if (!strcmp(*type, mlx_source_architecture(source))) return *arch;
    }
  }
  CHECK_FAIL("no architecture for %s", mlx_source_architecture(source));
}

// Writes |root| with |key| set to |value|, or without |key| if |value| is NULL, to config.json in |folder|
// and reads it.
static mlx_status_t read_config(const char *folder, yyjson_val *root, const char *key, yyjson_val *value,
                                mlx_config_t *out) {
  char path[128];
  size_t length;
  mlx_source_t *source;
  yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
  yyjson_mut_val *copy = yyjson_val_mut_copy(doc, root);
  yyjson_mut_doc_set_root(doc, copy);
  yyjson_mut_obj_remove_key(copy, key);
  if (value) yyjson_mut_obj_add(copy, yyjson_mut_strcpy(doc, key), yyjson_val_mut_copy(doc, value));
  char *text = yyjson_mut_write(doc, 0, &length);
  CHECK(text);
  snprintf(path, sizeof path, "%s/config.json", folder);
  if (mlx_is_file(path)) CHECK(!unlink(path));
  CHECK_OK(mlx_write_file(path, text, length));
  free(text);
  yyjson_mut_doc_free(doc);
  CHECK_OK(mlx_source_open(folder, &source));
  memset(out, 0, sizeof *out);
  mlx_status_t status = arch_of(source)->read_config(source, out);
  mlx_source_close(source);
  return status;
}

// Returns the number of fields that have a default; the others are required.
static size_t check_fixture(const char *name, yyjson_val *fields) {
  static mlx_config_t without_field, with_default;
  char folder[] = "/tmp/mlxcel-defaults-XXXXXX", from[256], to[256];
  yyjson_val *key, *value;
  size_t index, count, defaults = 0;
  CHECK(mkdtemp(folder));
  snprintf(from, sizeof from, FIXTURES "%s/model.safetensors", name);
  snprintf(to, sizeof to, "%s/model.safetensors", folder);
  CHECK(!symlink(from, to));
  snprintf(from, sizeof from, FIXTURES "%s/config.json", name);
  mlx_json_t config = read_json(from);
  yyjson_obj_foreach(fields, index, count, key, value) {
    const char *field = yyjson_get_str(key);
    mlx_status_t without = read_config(folder, config.root, field, NULL, &without_field),
                 given = read_config(folder, config.root, field, value, &with_default);
    const bool required = without && strstr(mlx_status_message(without), "is missing");
    if (!required &&
        (!without != !given || (without && strcmp(mlx_status_message(without), mlx_status_message(given))))) {
      CHECK_FAIL("%s without '%s': %s; with Hugging Face's default: %s", name, field,
                 without ? mlx_status_message(without) : "fine", given ? mlx_status_message(given) : "fine");
    }
    if (!without && memcmp(&without_field, &with_default, sizeof without_field)) {
      CHECK_FAIL("%s without '%s' differs from Hugging Face's default, %s", name, field,
                 yyjson_val_write(value, 0, NULL));
    }
    defaults += !required;
    mlx_status_free(given);
    mlx_status_free(without);
  }
  mlx_json_close(&config);
  CHECK_OK(mlx_remove_tree(folder));
  return defaults;
}

TEST(a_missing_field_has_the_default_of_hugging_face) {
  mlx_json_t goldens = read_json(GOLDENS);
  size_t index, count;
  yyjson_val *name, *fields;
  const char *only = getenv("MLXCEL_ARCH");
  yyjson_obj_foreach(mlx_json_find(goldens.root, "fixtures"), index, count, name, fields) {
    if (only && strcmp(only, yyjson_get_str(name))) continue;
    const size_t defaults = check_fixture(yyjson_get_str(name), fields);
    fprintf(stderr, "  %-18s %zu of %zu fields have a default, the others are required\n",
            yyjson_get_str(name), defaults, yyjson_obj_size(fields));
  }
  CHECK(count > 30);
  mlx_json_close(&goldens);
}

TEST_MAIN(CASE(a_missing_field_has_the_default_of_hugging_face))
