// Reads texts from words, files and stdin.
#include "cli/texts.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "cli/terminal.h"

#define MAX_FILE (1u << 30)  // bytes

mlx_status_t mlx_text_list_add(mlx_text_list_t *list, const char *id, const char *content, size_t length) {
  MLX_TRY(mlx_reserve(list->count + 1, sizeof *list->items, &list->capacity, &list->items));
  mlx_text_item_t *text = &list->items[list->count++];
  *text = (mlx_text_item_t){.length = length};
  if (id) MLX_TRY(mlx_copy_text(id, strlen(id), &text->id));
  return mlx_copy_text(content, length, &text->content);
}

// A line with one string is read as a list of one.
static mlx_status_t add_string(mlx_text_list_t *list, const char *name, const char *line, size_t length) {
  mlx_text_t text = {0};
  mlx_json_t json = {0};
  mlx_text_puts(&text, "[");
  mlx_text_append(&text, line, length);
  mlx_text_puts(&text, "]");
  mlx_status_t status = mlx_text_finish(&text);
  if (!status) status = mlx_json_parse_any(name, text.data, text.length, &json);
  if (!status && yyjson_arr_size(json.root) != 1)
    status = mlx_error(MLX_INVALID_INPUT, "%s: has more than one string", name);
  yyjson_val *value = yyjson_arr_get_first(json.root);
  if (!status) status = mlx_text_list_add(list, NULL, yyjson_get_str(value), yyjson_get_len(value));
  mlx_json_close(&json);
  mlx_text_clear(&text);
  return status;
}

static mlx_status_t add_json(mlx_text_list_t *list, const char *name, const char *line, size_t length) {
  mlx_json_t json;
  char number[32];
  if (line[0] == '"') return add_string(list, name, line, length);
  MLX_TRY(mlx_json_parse_any(name, line, length, &json));
  yyjson_val *id = yyjson_obj_get(json.root, "id"), *text = yyjson_obj_get(json.root, "text");
  if (!text) text = yyjson_obj_get(json.root, "input");
  snprintf(number, sizeof number, "%lld", (long long)yyjson_get_sint(id));
  const char *id_text = yyjson_is_int(id) ? number : yyjson_get_str(id);
  mlx_status_t status =
      yyjson_is_str(text)
          ? mlx_text_list_add(list, id_text, yyjson_get_str(text), yyjson_get_len(text))
          : mlx_error(MLX_INVALID_INPUT, "%s: expected a string, or an object with the string 'text'", name);
  mlx_json_close(&json);
  return status;
}

static mlx_status_t add_line(mlx_text_list_t *list, const char *path, size_t number, bool is_json,
                             const char *line, size_t length) {
  char name[300];
  if (!is_json) return mlx_text_list_add(list, NULL, line, length);
  snprintf(name, sizeof name, "%.256s:%zu", path, number);
  return add_json(list, name, line, length);
}

mlx_status_t mlx_text_list_read(mlx_text_list_t *list, const char *path, bool is_json) {
  char *bytes;
  size_t length, number = 0;
  const bool is_stdin = !path || !strcmp(path, "-");
  MLX_TRY(is_stdin ? mlx_read_stream(STDIN_FILENO, "stdin", MAX_FILE, &bytes, &length)
                   : mlx_read_input(path, MAX_FILE, &bytes, &length));
  is_json |= !is_stdin && mlx_ends_with(path, ".jsonl");
  mlx_status_t status = NULL;
  for (size_t at = 0; at < length && !status; ++number) {
    const char *end = memchr(bytes + at, '\n', length - at);
    const size_t next = end ? (size_t)(end - bytes) + 1 : length;
    size_t last = end ? next - 1 : length;
    if (last > at && bytes[last - 1] == '\r') --last;
    if (last > at)
      status = add_line(list, is_stdin ? "stdin" : path, number + 1, is_json, bytes + at, last - at);
    at = next;
  }
  mlx_free(bytes);
  return status;
}

void mlx_text_list_clear(mlx_text_list_t *list) {
  for (size_t i = 0; i < list->count; ++i) {
    mlx_free(list->items[i].id);
    mlx_free(list->items[i].content);
  }
  mlx_free(list->items);
  *list = (mlx_text_list_t){0};
}

mlx_status_t mlx_text_output(const char *path, mlx_text_t *out) {
  mlx_status_t status = mlx_text_finish(out);
  if (!status && path)
    status = mlx_write_file(path, out->data, out->length);
  else if (!status && fwrite(out->data, 1, out->length, stdout) != out->length)
    status = mlx_stdout_error();
  mlx_text_clear(out);
  return status;
}
