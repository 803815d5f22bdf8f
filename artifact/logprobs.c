#include "artifact/logprobs.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

#define MAGIC "mlxcel-logprobs1"  // without its NUL
#define MAX_VOCAB (INT64_C(1) << 24)
#define MAX_CHUNK (INT64_C(1) << 20)

void mlx_logprobs_header_initialize(int64_t vocab, int64_t chunk, int64_t chunks,
                                    mlx_logprobs_header_t *out) {
  *out = (mlx_logprobs_header_t){.vocab = vocab, .chunk = chunk, .chunks = chunks};
  memcpy(out->magic, MAGIC, sizeof out->magic);
}

size_t mlx_logprobs_foretold(const mlx_logprobs_header_t *header) {
  return (size_t)(header->chunk - header->chunk / 2 - 1);
}

static mlx_status_t refuse(const char *name, const char *why) {
  return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "%s: %s", name, why),
                         "make it with --save-logprobs from the same text, -c and --chunks, with a model of "
                         "the same vocabulary");
}

mlx_status_t mlx_logprobs_read(const char *name, const uint8_t *bytes, size_t size, mlx_logprobs_t *out) {
  *out = (mlx_logprobs_t){.name = name};
  mlx_logprobs_header_t *header = &out->header;
  if (size < sizeof *header) return refuse(name, "is too short to be a file of log-probabilities");
  memcpy(header, bytes, sizeof *header);
  if (memcmp(header->magic, MAGIC, sizeof header->magic))
    return refuse(name, "is no file of log-probabilities");
  if (header->vocab < 1 || header->vocab > MAX_VOCAB || header->chunk < 4 || header->chunk > MAX_CHUNK ||
      header->chunks < 1 || header->chunks > INT32_MAX) {
    return refuse(name, "is damaged: its header makes no sense");
  }
  size_t ids, rows, bytes_of_rows, wanted;
  const bool fits =
      mlx_mul((size_t)(header->chunks * header->chunk), sizeof(int32_t), &ids) &&  // at most 2^51
      mlx_mul((size_t)header->chunks, mlx_logprobs_foretold(header), &rows) &&
      mlx_mul(rows, (size_t)header->vocab * sizeof(float), &bytes_of_rows) &&
      mlx_add(ids, bytes_of_rows, &wanted) && mlx_add(wanted, sizeof *header, &wanted);
  if (!fits || size != wanted) return refuse(name, "is damaged: it has not the size its header says");
  out->ids = bytes + sizeof *header;
  out->rows = out->ids + ids;
  out->row_count = rows;
  return NULL;
}

mlx_status_t mlx_logprobs_check(const mlx_logprobs_t *file, const mlx_logprobs_header_t *header,
                                const int32_t *ids) {
  if (memcmp(&file->header, header, sizeof *header))
    return refuse(file->name, "was made with another vocabulary or other chunks");
  if (memcmp(file->ids, ids, (size_t)(header->chunks * header->chunk) * sizeof *ids))
    return refuse(file->name, "is of another text");
  return NULL;
}

mlx_status_t mlx_logprobs_row(const mlx_logprobs_t *file, size_t index, float *out_row) {
  const size_t vocab = (size_t)file->header.vocab;
  double sum = 0;
  memcpy(out_row, file->rows + index * vocab * sizeof *out_row, vocab * sizeof *out_row);
  for (size_t i = 0; i < vocab; ++i) sum += exp(out_row[i]);  // a NaN or a large number shows in it
  return fabs(sum - 1) < 0.01
             ? NULL
             : refuse(file->name, "is damaged: there is a row whose probabilities are not 1 in all");
}
