// Finds the lines of a batch file and checks them.
#include "cli/batch_input.h"

#include <string.h>

#include "base/line_log.h"
#include "base/memory.h"

// ----------------------------------------------------------------------------------------------------------
// Lines

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static mlx_status_t add_line(void *user, const char *line, size_t length, uint64_t end) {
  mlx_batch_input_t *input = user;
  (void)end;
  while (length && is_space(line[length - 1])) --length;
  while (length && is_space(*line)) ++line, --length;
  if (!length) return NULL;
  MLX_TRY(mlx_reserve(input->count + 1, sizeof *input->lines, &input->capacity, &input->lines));
  input->lines[input->count++] = (mlx_batch_line_t){(uint64_t)(line - (const char *)input->map.data), length};
  return NULL;
}

const char *mlx_batch_input_line(const mlx_batch_input_t *input, uint64_t index, size_t *out_length) {
  *out_length = (size_t)input->lines[index].length;
  return (const char *)input->map.data + input->lines[index].offset;
}

static mlx_status_t at_line(const mlx_batch_input_t *input, uint64_t index, mlx_status_t status) {
  unsigned long long number = 1;
  if (!status) return NULL;
  for (uint64_t i = 0; i < input->lines[index].offset; ++i) number += input->map.data[i] == '\n';
  return mlx_status_annotate(status, "%s:%llu", input->path, number);
}

mlx_status_t mlx_batch_input_read(const mlx_batch_input_t *input, uint64_t index, mlx_batch_request_t *out) {
  size_t length;
  const char *line = mlx_batch_input_line(input, index, &length);
  return at_line(input, index,
                 mlx_batch_request_parse(line, length, input->is_text, index, input->defaults, out));
}

// ----------------------------------------------------------------------------------------------------------
// Checks

// A hash table of all custom_ids: index of the request + 1, and a part of the hash.
typedef struct slot {
  uint64_t request;
  uint64_t hash;
} slot_t;

typedef struct ids {
  slot_t *slots;  // owned [mask + 1]
  size_t mask;
} ids_t;

static uint64_t hash_of(const mlx_batch_request_t *request) {
  mlx_digest_t digest;
  uint8_t bytes[MLX_DIGEST_BYTES];
  uint64_t hash;
  mlx_digest_begin(&digest);  // no input can make many ids share a slot
  mlx_digest_add(&digest, request->custom_id, request->custom_id_length);
  mlx_digest_end_bytes(&digest, bytes);
  memcpy(&hash, bytes, sizeof hash);
  return hash;
}

static mlx_status_t check_same(const mlx_batch_input_t *input, const mlx_batch_request_t *request,
                               uint64_t index, uint64_t earlier) {
  mlx_batch_request_t other;
  MLX_TRY(mlx_batch_input_read(input, earlier, &other));
  const bool same = other.custom_id_length == request->custom_id_length &&
                    !memcmp(other.custom_id, request->custom_id, other.custom_id_length);
  mlx_batch_request_clear(&other);
  if (!same) return NULL;
  return at_line(input, index,
                 mlx_error(MLX_INVALID_INPUT, "custom_id: '%.100s' is that of request %llu too",
                           request->custom_id, (unsigned long long)earlier + 1));
}

static mlx_status_t add_id(const mlx_batch_input_t *input, const mlx_batch_request_t *request, uint64_t index,
                           ids_t *ids) {
  const uint64_t hash = hash_of(request);
  size_t at = (size_t)hash & ids->mask;
  for (; ids->slots[at].request; at = (at + 1) & ids->mask) {
    if (ids->slots[at].hash == hash) MLX_TRY(check_same(input, request, index, ids->slots[at].request - 1));
  }
  ids->slots[at] = (slot_t){index + 1, hash};
  return NULL;
}

// Keeps the model that the first request names, as long as the others name it too.
static mlx_status_t note_model(mlx_batch_input_t *input, const mlx_batch_request_t *request, uint64_t index,
                               bool *inout_differ) {
  if (!index && request->model) return mlx_copy_text(request->model, strlen(request->model), &input->model);
  const bool same =
      request->model ? input->model && !strcmp(input->model, request->model) : input->model == NULL;
  *inout_differ |= !same;
  return NULL;
}

static mlx_status_t check_requests(mlx_batch_input_t *input, ids_t *ids) {
  mlx_batch_request_t request;
  bool differ = false;
  for (uint64_t i = 0; i < input->count; ++i) {
    MLX_TRY(mlx_batch_input_read(input, i, &request));
    mlx_status_t status = add_id(input, &request, i, ids);
    if (!status) status = note_model(input, &request, i, &differ);
    mlx_batch_request_clear(&request);
    MLX_TRY(status);
  }
  if (differ) {
    mlx_free(input->model);
    input->model = NULL;
  }
  return NULL;
}

mlx_status_t mlx_batch_input_open(const char *path, const mlx_batch_defaults_t *defaults,
                                  mlx_batch_input_t *out) {
  ids_t ids = {.mask = 1};
  *out = (mlx_batch_input_t){
      .path = path, .defaults = defaults, .is_text = !mlx_ends_with_nocase(path, ".jsonl")};
  MLX_TRY(mlx_map_file(path, &out->map));
  MLX_TRY(mlx_lines_visit((const char *)out->map.data, out->map.size, add_line, out));
  if (!out->count)
    return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "%s: the file has no request", path),
                           "write one prompt or one JSON object per line");
  while (ids.mask < 2 * out->count) ids.mask *= 2;
  MLX_TRY(mlx_alloc(ids.mask, sizeof *ids.slots, &ids.slots));
  --ids.mask;
  mlx_status_t status = check_requests(out, &ids);
  mlx_free(ids.slots);
  return status;
}

void mlx_batch_input_close(mlx_batch_input_t *input) {
  mlx_unmap(&input->map);
  mlx_free(input->lines);
  mlx_free(input->model);
  *input = (mlx_batch_input_t){0};
}
