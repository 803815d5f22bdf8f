// Appends results, orders them and joins the parts of several shards.
#include "cli/batch_results.h"

#include <string.h>
#include <unistd.h>

#include "base/leftover.h"
#include "base/memory.h"

// ----------------------------------------------------------------------------------------------------------
// Reading results

static mlx_batch_id_t id_of(const mlx_batch_results_t *r, uint64_t index) {
  size_t length;
  mlx_digest_t digest;
  char hex[MLX_DIGEST_HEX];
  const char *line = mlx_batch_input_line(r->input, index, &length);
  mlx_digest_begin(&digest);
  mlx_digest_field(&digest, "options", r->identity, strlen(r->identity));
  mlx_digest_field(&digest, "index", &index, sizeof index);
  mlx_digest_field(&digest, "line", line, length);
  mlx_digest_end(&digest, hex);
  return mlx_batch_id(index, hex);
}

static bool is_result(void *user, const char *line, size_t length) {
  mlx_batch_id_t id;
  uint64_t index;
  int status;
  (void)user;
  return mlx_batch_result_read(line, length, &index, &id, &status);
}

static mlx_status_t other_input(const char *path) {
  return mlx_status_hint(
      mlx_error(MLX_INVALID_INPUT, "'%s' has results of another input, model or options", path),
      "give another output file, or remove this one to begin again");
}

typedef struct reading {
  mlx_batch_results_t *results;
  const char *path;
  uint64_t first, end;  // requests that the file may have
  // Of a complete file: it has all requests in their order. |next| is the next one.
  bool is_complete;
  uint64_t next;
  // Of a partial file: where the line of each request is, [end - first]; NULL: not wanted.
  mlx_batch_line_t *places;
  uint64_t start;  // offset of the line
} reading_t;

static mlx_status_t read_result(void *user, const char *line, size_t length, uint64_t end) {
  reading_t *reading = user;
  mlx_batch_results_t *r = reading->results;
  mlx_batch_id_t id;
  uint64_t index;
  int code;
  const bool whole = mlx_batch_result_read(line, length, &index, &id, &code);
  if (!whole || index < reading->first || index >= reading->end ||
      (reading->is_complete && index != reading->next++) || strcmp(id.text, id_of(r, index).text) != 0)
    return other_input(reading->path);
  if (reading->places)
    reading->places[index - reading->first] = (mlx_batch_line_t){reading->start, length + 1};
  reading->start = end;
  if (index < r->first || index >= r->end) return NULL;
  uint8_t *done = &r->done[index - r->first];
  if (*done) return NULL;  // written twice, after an append that failed in a way that is not known
  *done = 1;
  ++r->done_count;
  r->failed += code != 200;
  return NULL;
}

static mlx_status_t read_results(reading_t *reading) {
  mlx_map_t map;
  MLX_TRY(mlx_map_file(reading->path, &map));
  reading->next = reading->first;
  mlx_status_t status = mlx_lines_visit((const char *)map.data, map.size, read_result, reading);
  mlx_unmap(&map);
  if (!status && reading->is_complete && reading->next != reading->end) return other_input(reading->path);
  return status;
}

// Reads a file that is complete.
static mlx_status_t read_complete(mlx_batch_results_t *r, const char *path, uint64_t first, uint64_t end) {
  return read_results(
      &(reading_t){.results = r, .path = path, .first = first, .end = end, .is_complete = true});
}

// ----------------------------------------------------------------------------------------------------------
// Opening

static mlx_status_t part_path(const mlx_batch_results_t *r, uint64_t index, char **out_path) {
  if (r->shard.count == 1) return mlx_copy_text(r->path, strlen(r->path), out_path);
  return mlx_format(out_path, "%s.%llu-of-%llu", r->path, (unsigned long long)index,
                    (unsigned long long)r->shard.count);
}

static mlx_status_t open_partial(mlx_batch_results_t *r) {
  MLX_TRY(mlx_line_log_open(r->partial, is_result, NULL, &r->log));
  return read_results(&(reading_t){.results = r, .path = r->partial, .first = r->first, .end = r->end});
}

mlx_status_t mlx_batch_results_open(const mlx_batch_input_t *input, const char *path, const char *identity,
                                    const mlx_shard_t *shard, mlx_batch_results_t *out) {
  *out = (mlx_batch_results_t){.input = input, .path = path, .identity = identity, .shard = *shard};
  mlx_shard_range(shard, input->count, &out->first, &out->end);
  MLX_TRY(mlx_alloc((size_t)(out->end - out->first), sizeof *out->done, &out->done));
  MLX_TRY(part_path(out, shard->index, &out->part));
  MLX_TRY(mlx_format(&out->partial, "%s.partial", out->part));
  mlx_leftover_remove(out->part);
  const bool has_part = mlx_is_file(out->part);  // before OUT: the part is removed after OUT is there
  if (mlx_is_file(path)) {
    MLX_TRY(read_complete(out, path, 0, input->count));
    out->complete = true;
  } else if (has_part) {
    MLX_TRY(read_complete(out, out->part, out->first, out->end));
    out->complete = true;
  }
  if (!out->complete) return open_partial(out);
  unlink(out->partial);  // of a process that was killed just before it removed the file
  return NULL;
}

void mlx_batch_results_close(mlx_batch_results_t *r) {
  mlx_line_log_close(&r->log);
  mlx_free(r->part);
  mlx_free(r->partial);
  mlx_free(r->done);
  *r = (mlx_batch_results_t){0};
}

bool mlx_batch_results_has(const mlx_batch_results_t *r, uint64_t index) { return r->done[index - r->first]; }

mlx_status_t mlx_batch_results_add(mlx_batch_results_t *r, uint64_t index, const mlx_batch_request_t *request,
                                   int code, const char *body, size_t length) {
  const mlx_batch_id_t id = id_of(r, index);
  mlx_text_t line = {0};
  mlx_status_t status = mlx_batch_result_put(&id, request, code, body, length, &line);
  if (!status) status = mlx_line_log_append(&r->log, line.data, line.length);
  mlx_text_clear(&line);
  if (status) return status;
  r->done[index - r->first] = 1;
  ++r->done_count;
  r->failed += code != 200;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The end

// A file that replaces |path| when it is complete.
typedef struct replacement {
  const char *path;
  char *temporary;  // owned
  mlx_writer_t writer;
} replacement_t;

static mlx_status_t begin_replacement(const char *path, replacement_t *out) {
  *out = (replacement_t){.path = path};
  MLX_TRY(mlx_temporary_path(path, &out->temporary));
  mlx_status_t status = mlx_writer_open(out->temporary, &out->writer);
  if (status) mlx_free(out->temporary);
  return status;
}

static mlx_status_t end_replacement(replacement_t *r, mlx_status_t status) {
  if (!status) status = mlx_writer_close(&r->writer);
  if (!status) status = mlx_rename(r->temporary, r->path);
  if (status) mlx_writer_abandon(&r->writer);
  mlx_free(r->temporary);
  return status;
}

static mlx_status_t write_ordered(const mlx_batch_results_t *r, const mlx_batch_line_t *places,
                                  replacement_t *out) {
  mlx_map_t map;
  mlx_status_t status = NULL;
  MLX_TRY(mlx_map_file(r->partial, &map));
  for (uint64_t i = 0; i < r->end - r->first && !status; ++i)
    status = mlx_writer_write(&out->writer, map.data + places[i].offset, (size_t)places[i].length);
  mlx_unmap(&map);
  return status;
}

static mlx_status_t write_part(mlx_batch_results_t *r) {
  mlx_batch_line_t *places;
  replacement_t out;
  MLX_TRY(mlx_alloc((size_t)(r->end - r->first), sizeof *places, &places));
  mlx_status_t status = read_results(
      &(reading_t){.results = r, .path = r->partial, .first = r->first, .end = r->end, .places = places});
  if (!status) status = begin_replacement(r->part, &out);
  if (!status) status = end_replacement(&out, write_ordered(r, places, &out));
  mlx_free(places);
  if (status) return status;
  mlx_line_log_close(&r->log);
  unlink(r->partial);
  return NULL;
}

static mlx_status_t append_file(const char *path, replacement_t *out) {
  mlx_map_t map;
  MLX_TRY(mlx_map_file(path, &map));
  mlx_status_t status = mlx_writer_write(&out->writer, map.data, map.size);
  mlx_unmap(&map);
  return status;
}

// Calls |use| for the file of each part, in order.
static mlx_status_t for_parts(mlx_batch_results_t *r,
                              mlx_status_t (*use)(mlx_batch_results_t *r, const mlx_shard_t *part,
                                                  const char *path, void *user),
                              void *user) {
  mlx_status_t status = NULL;
  for (uint64_t i = 0; i < r->shard.count && !status; ++i) {
    const mlx_shard_t part = {.index = i, .count = r->shard.count};
    char *path;
    MLX_TRY(part_path(r, i, &path));
    status = use(r, &part, path, user);
    mlx_free(path);
  }
  return status;
}

static mlx_status_t find_part(mlx_batch_results_t *r, const mlx_shard_t *part, const char *path,
                              void *missing) {
  (void)r;
  (void)part;
  *(bool *)missing |= !mlx_is_file(path);
  return NULL;
}

static mlx_status_t check_part(mlx_batch_results_t *r, const mlx_shard_t *part, const char *path,
                               void *user) {
  uint64_t first, end;
  (void)user;
  mlx_shard_range(part, r->input->count, &first, &end);
  return read_complete(r, path, first, end);
}

static mlx_status_t append_part(mlx_batch_results_t *r, const mlx_shard_t *part, const char *path,
                                void *out) {
  (void)r;
  (void)part;
  return append_file(path, out);
}

static mlx_status_t remove_part(mlx_batch_results_t *r, const mlx_shard_t *part, const char *path,
                                void *user) {
  (void)r;
  (void)part;
  (void)user;
  unlink(path);
  return NULL;
}

// Several shards may end at the same time: each of them then writes the same bytes, and the last rename wins.
static mlx_status_t join(mlx_batch_results_t *r) {
  replacement_t out;
  mlx_leftover_remove(r->path);
  MLX_TRY(for_parts(r, check_part, NULL));
  MLX_TRY(begin_replacement(r->path, &out));
  return end_replacement(&out, for_parts(r, append_part, &out));
}

mlx_status_t mlx_batch_results_finish(mlx_batch_results_t *r, bool *out_joined) {
  bool missing = false;
  *out_joined = true;
  if (!r->complete) MLX_TRY(write_part(r));
  if (r->shard.count == 1) return NULL;
  if (!mlx_is_file(r->path)) {
    MLX_TRY(for_parts(r, find_part, &missing));
    if (missing && !mlx_is_file(r->path)) {
      *out_joined = false;
      return NULL;
    }
    mlx_status_t status = missing ? NULL : join(r);
    if (status && mlx_status_code(status) == MLX_NOT_FOUND && mlx_is_file(r->path)) {
      mlx_status_free(status);  // another shard has joined the parts and removed them
      status = NULL;
    }
    MLX_TRY(status);
  }
  return for_parts(r, remove_part, NULL);
}
