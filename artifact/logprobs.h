// Log-probabilities of a text: what `eval --save-logprobs` writes and `eval --kl` compares with.
//
// The file is a header of 40 bytes (magic, vocab, chunk, chunks), the ids of the chunks (i32), and for each
// token foretold, the second half of every chunk, the log-probabilities of the whole vocabulary (f32); all
// little-endian. A reader takes nothing on trust: sizes are held against the file's, and a row must be a
// distribution.
#ifndef MLXCEL_ARTIFACT_LOGPROBS_H_
#define MLXCEL_ARTIFACT_LOGPROBS_H_

#include <stdint.h>

#include "base/status.h"

typedef struct mlx_logprobs_header {
  char magic[16];
  int64_t vocab, chunk, chunks;  // tokens known; tokens of a chunk; chunks
} mlx_logprobs_header_t;
_Static_assert(sizeof(mlx_logprobs_header_t) == 40, "the file begins with it");

// A file that begins with this and goes on with ids and rows.
void mlx_logprobs_header_initialize(int64_t vocab, int64_t chunk, int64_t chunks,
                                    mlx_logprobs_header_t *out_header);
// Tokens of a chunk that are foretold.
size_t mlx_logprobs_foretold(const mlx_logprobs_header_t *header);

typedef struct mlx_logprobs {
  mlx_logprobs_header_t header;
  const uint8_t *ids, *rows;  // borrowed from the bytes
  size_t row_count;
  const char *name;  // borrowed, for errors
} mlx_logprobs_t;

// Looks at |bytes|, which must outlive |out_file|; |name| is the file's, for errors.
mlx_status_t mlx_logprobs_read(const char *name, const uint8_t *bytes, size_t size,
                               mlx_logprobs_t *out_file) MLX_MUST_USE;
// Fails when the file is of other tokens: |header| and |ids|, [chunks][chunk], must be the same.
mlx_status_t mlx_logprobs_check(const mlx_logprobs_t *file, const mlx_logprobs_header_t *header,
                                const int32_t *ids) MLX_MUST_USE;
// Row |index|, below row_count, into |out_row|, [vocab]. A log-probability may be -INFINITY.
mlx_status_t mlx_logprobs_row(const mlx_logprobs_t *file, size_t index, float *out_row) MLX_MUST_USE;

#endif  // MLXCEL_ARTIFACT_LOGPROBS_H_
