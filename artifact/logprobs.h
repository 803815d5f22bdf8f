// Log-probabilities of a text: the file that `eval --save-logprobs` writes and `eval --kl` reads.
//
// The text is split into chunks. The tokens in the second half of every chunk are scored: for each of them
// the file stores the log-probability of every vocabulary token, as one row. File format, little endian:
//   header   40 bytes: magic, vocab, chunk, chunks
//   ids      [chunks][chunk] i32
//   rows     [chunks * scored tokens][vocab] f32
//
// The reader validates its input: the sizes must match the file's size, and the probabilities of each row
// must sum to 1.
#ifndef MLXCEL_ARTIFACT_LOGPROBS_H_
#define MLXCEL_ARTIFACT_LOGPROBS_H_

#include <stdint.h>

#include "base/status.h"

typedef struct mlx_logprobs_header {
  char magic[16];
  int64_t vocab;   // tokens in the vocabulary
  int64_t chunk;   // tokens per chunk
  int64_t chunks;  // number of chunks
} mlx_logprobs_header_t;
_Static_assert(sizeof(mlx_logprobs_header_t) == 40, "the file begins with this struct");

void mlx_logprobs_header_initialize(int64_t vocab, int64_t chunk, int64_t chunks,
                                    mlx_logprobs_header_t *out_header);
// Number of scored tokens per chunk.
size_t mlx_logprobs_scored_tokens(const mlx_logprobs_header_t *header);

typedef struct mlx_logprobs {
  mlx_logprobs_header_t header;
  const uint8_t *ids, *rows;  // borrowed from the input bytes
  size_t row_count;
  const char *name;  // borrowed, for error messages
} mlx_logprobs_t;

// Parses |bytes|, which must outlive |out_file|. |name| is the file's name for error messages.
mlx_status_t mlx_logprobs_read(const char *name, const uint8_t *bytes, size_t size,
                               mlx_logprobs_t *out_file) MLX_MUST_USE;
// Fails unless the file has the same |header| and the same token |ids|, [chunks][chunk].
mlx_status_t mlx_logprobs_check(const mlx_logprobs_t *file, const mlx_logprobs_header_t *header,
                                const int32_t *ids) MLX_MUST_USE;
// Copies row |index|, below row_count, to |out_row|, [vocab]. A log-probability may be -INFINITY.
mlx_status_t mlx_logprobs_row(const mlx_logprobs_t *file, size_t index, float *out_row) MLX_MUST_USE;

#endif  // MLXCEL_ARTIFACT_LOGPROBS_H_
