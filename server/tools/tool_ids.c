// Ids of 9 characters.
#include "server/tools/tool_ids.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "base/memory.h"

#define SHORT 9

static bool is_short(const char *id, size_t length) {
  for (size_t i = 0; i < length; ++i) {
    const char c = id[i];
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) return false;
  }
  return length == SHORT;
}

// Replaces the string |key| of |object|. False if memory is short.
static bool shorten(yyjson_mut_doc *doc, yyjson_mut_val *object, const char *key) {
  static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  yyjson_mut_val *value = yyjson_mut_obj_get(object, key);
  const char *id = yyjson_mut_get_str(value);
  const size_t length = yyjson_mut_get_len(value);
  char made[SHORT];
  uint64_t hash = 0xcbf29ce484222325u;
  if (!id || is_short(id, length)) return true;
  for (size_t i = 0; i < length; ++i) hash = (hash ^ (unsigned char)id[i]) * 0x100000001b3u;
  for (int i = 0; i < SHORT; ++i, hash /= 62) made[i] = letters[hash % 62];
  return yyjson_mut_obj_replace(object, yyjson_mut_str(doc, key), yyjson_mut_strncpy(doc, made, SHORT));
}

mlx_status_t mlx_tool_ids_shorten(const char *messages, size_t length, char **out_json, size_t *out_length) {
  yyjson_doc *read = yyjson_read(messages, length, 0);
  yyjson_mut_doc *doc = read ? yyjson_doc_mut_copy(read, NULL) : NULL;
  yyjson_mut_val *message, *call;
  size_t index, count, call_index, call_count;
  bool fine = doc != NULL;
  *out_json = NULL;
  yyjson_doc_free(read);
  yyjson_mut_arr_foreach(yyjson_mut_doc_get_root(doc), index, count, message) {
    fine = fine && shorten(doc, message, "tool_call_id");
    yyjson_mut_arr_foreach(yyjson_mut_obj_get(message, "tool_calls"), call_index, call_count, call) {
      fine = fine && shorten(doc, call, "id");
    }
  }
  char *json = fine ? yyjson_mut_write(doc, 0, out_length) : NULL;
  yyjson_mut_doc_free(doc);
  if (!json) return mlx_error(MLX_OUT_OF_MEMORY, "no memory for the messages");
  mlx_status_t status = mlx_copy_text(json, *out_length, out_json);
  free(json);
  return status;
}
