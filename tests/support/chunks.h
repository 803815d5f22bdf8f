// Reads the same tokens divided in several ways, and compares the logits.
#ifndef MLXCEL_TESTS_CHUNKS_H_
#define MLXCEL_TESTS_CHUNKS_H_

#include <math.h>

#include "base/memory.h"
#include "runtime/mlxcel.h"
#include "tests/support/check.h"
#include "tests/support/random_llama.h"

#define LENGTH 150  // tokens

static inline void fill_ids(int32_t *ids, size_t vocab) {
  uint64_t state = 11;
  for (int i = 0; i < LENGTH; ++i) ids[i] = (int32_t)(random_bits(&state) % (uint32_t)vocab);
}

// Reads the ids in chunks of |chunk| tokens. Returns the next token.
static inline int32_t read_chunks(mlx_engine_t *engine, const int32_t *ids, size_t chunk, float *out_logits) {
  mlx_session_t *session;
  int32_t next = -1;
  CHECK_OK(mlx_session_create(engine, &session));
  for (size_t at = 0; at < LENGTH; at += chunk)
    CHECK_OK(mlx_session_read(session, ids + at, LENGTH - at < chunk ? LENGTH - at : chunk, &next));
  CHECK_OK(mlx_session_logits(session, out_logits, (size_t)mlx_engine_info(engine).vocab));
  mlx_session_free(session);
  return next;
}

// The largest difference, relative to the largest value of |want|.
static inline double difference(const float *have, const float *want, size_t count) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < count; ++i) {
    worst = fmax(worst, fabs((double)have[i] - want[i]));
    largest = fmax(largest, fabs((double)want[i]));
  }
  return worst / largest;
}

// Decodes tokens one by one, then reads the same tokens in a new session as one chunk.
static inline double check_decoded(mlx_engine_t *engine, const char *name, const int32_t *ids, float *have,
                                   float *want) {
  const size_t vocab = (size_t)mlx_engine_info(engine).vocab, prompt = LENGTH - 21;
  mlx_session_t *session;
  int32_t all[LENGTH + 1], next;
  memcpy(all, ids, sizeof *ids * LENGTH);
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, all, prompt, &all[prompt]));
  CHECK_OK(mlx_session_steps(session, all + prompt + 1, 21));
  CHECK_OK(mlx_session_logits(session, have, vocab));
  mlx_session_free(session);
  next = read_chunks(engine, all, LENGTH, want);
  if (next != all[LENGTH])
    CHECK_FAIL("%s: decoding gives token %d, one chunk gives %d", name, all[LENGTH], next);
  return difference(have, want, vocab);
}

// Tokens must be equal, and logits must differ by at most |tolerance| of the largest logit, between one
// chunk, chunks of several sizes, and decoding.
static inline void check_chunks(mlx_engine_t *engine, const char *name, double tolerance) {
  static const size_t chunks[] = {1, 3, 7, 8, 16, 17, 40, 100, 149};
  int32_t ids[LENGTH];
  const size_t vocab = (size_t)mlx_engine_info(engine).vocab;
  float *have, *want;
  CHECK_OK(mlx_alloc(vocab, sizeof *have, &have));
  CHECK_OK(mlx_alloc(vocab, sizeof *want, &want));
  fill_ids(ids, vocab);
  double worst = check_decoded(engine, name, ids, have, want);
  if (!(worst <= tolerance)) CHECK_FAIL("%s: decoding: logits differ by %g", name, worst);
  const int32_t expected = read_chunks(engine, ids, LENGTH, want);
  for (size_t i = 0; i < sizeof chunks / sizeof *chunks; ++i) {
    const int32_t next = read_chunks(engine, ids, chunks[i], have);
    const double error = difference(have, want, vocab);
    worst = error > worst ? error : worst;
    if (next != expected)
      CHECK_FAIL("%s: chunks of %zu give token %d, one chunk gives %d", name, chunks[i], next, expected);
    if (!(error <= tolerance)) CHECK_FAIL("%s: chunks of %zu: logits differ by %g", name, chunks[i], error);
  }
  fprintf(stderr, "  %s: largest difference %.2g\n", name, worst);
  mlx_free(have);
  mlx_free(want);
}

#endif  // MLXCEL_TESTS_CHUNKS_H_
