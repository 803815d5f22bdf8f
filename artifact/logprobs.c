// Parses and checks files of log-probabilities. See logprobs.h.
#include "artifact/logprobs.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

#define MAGIC "mlxcel-logprobs1"  // stored without the NUL
#define MAX_VOCAB (INT64_C(1) << 24)
#define MAX_CHUNK (INT64_C(1) << 20)

void mlx_logprobs_header_initialize(int64_t vocab, int64_t chunk, int64_t chunks,
                                    mlx_logprobs_header_t *out) {
  *out = (mlx_logprobs_header_t){.vocab = vocab, .chunk = chunk, .chunks = chunks};
  memcpy(out->magic, MAGIC, sizeof out->magic);
}

size_t mlx_logprobs_scored_tokens(const mlx_logprobs_header_t *header) {
  return (size_t)(header->chunk - header->chunk / 2 - 1);
}

static mlx_status_t refuse(const char *name, const char *why) {
  return mlx_status_hint(
      mlx_error(MLX_INVALID_INPUT, "cannot use log-probability file %s: %s", name, why),
      "create it with `mlxcel eval --save-logprobs`, using the same text, -c, --chunks and "
      "vocabulary");
}

mlx_status_t mlx_logprobs_read(const char *name, const uint8_t *bytes, size_t size, mlx_logprobs_t *out) {
  *out = (mlx_logprobs_t){.name = name};
  mlx_logprobs_header_t *header = &out->header;
  if (size < sizeof *header) return refuse(name, "it is shorter than its header");
  memcpy(header, bytes, sizeof *header);
  if (memcmp(header->magic, MAGIC, sizeof header->magic))
    return refuse(name, "it does not start with '" MAGIC "'");
  if (header->vocab < 1 || header->vocab > MAX_VOCAB || header->chunk < 4 || header->chunk > MAX_CHUNK ||
      header->chunks < 1 || header->chunks > INT32_MAX) {
    return refuse(name, "its header has a value out of range");
  }
  size_t ids, rows, row_bytes, expected;
  const bool fits =
      mlx_mul((size_t)(header->chunks * header->chunk), sizeof(int32_t), &ids) &&  // at most 2^51
      mlx_mul((size_t)header->chunks, mlx_logprobs_scored_tokens(header), &rows) &&
      mlx_mul(rows, (size_t)header->vocab * sizeof(float), &row_bytes) &&
      mlx_add(ids, row_bytes, &expected) && mlx_add(expected, sizeof *header, &expected);
  if (!fits || size != expected) return refuse(name, "its size does not match its header");
  out->ids = bytes + sizeof *header;
  out->rows = out->ids + ids;
  out->row_count = rows;
  return NULL;
}

mlx_status_t mlx_logprobs_check(const mlx_logprobs_t *file, const mlx_logprobs_header_t *header,
                                const int32_t *ids) {
  if (memcmp(&file->header, header, sizeof *header))
    return refuse(file->name, "it has a different vocabulary size, chunk size or chunk count");
  if (memcmp(file->ids, ids, (size_t)(header->chunks * header->chunk) * sizeof *ids))
    return refuse(file->name, "it was computed from a different text");
  return NULL;
}

mlx_status_t mlx_logprobs_row(const mlx_logprobs_t *file, size_t index, float *out_row) {
  const size_t vocab = (size_t)file->header.vocab;
  double sum = 0;
  memcpy(out_row, file->rows + index * vocab * sizeof *out_row, vocab * sizeof *out_row);
  for (size_t i = 0; i < vocab; ++i)
    sum += exp(out_row[i]);  // a NaN or a positive log-probability changes the sum
  return fabs(sum - 1) < 0.01 ? NULL : refuse(file->name, "the probabilities of a row do not sum to 1");
}
