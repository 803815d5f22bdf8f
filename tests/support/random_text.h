// Random text under a grammar: random logits over a real vocabulary, masked by the grammar and sampled.
#ifndef MLXCEL_TESTS_RANDOM_TEXT_H_
#define MLXCEL_TESTS_RANDOM_TEXT_H_

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "grammar/matcher.h"
#include "models/import/gguf_tokenizer.h"
#include "runtime/sampler.h"
#include "tests/support/check.h"
#include "tests/support/random_numbers.h"

#define TINY_TOKENIZER MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama/tokenizer.json"
#define SMOLLM2 MLXCEL_MODELS "/SmolLM2-135M-Instruct.Q4_1.gguf"
#define MAX_TOKENS 3000

typedef struct random_writer {
  mlx_tokenizer_t *tokenizer;
  mlx_vocabulary_t *first, *later;
  size_t vocab;
  int32_t eos;
  uint64_t random;
  float *logits;      // [vocab]
  bool *closes;       // [vocab] tokens of closing brackets and quotes
  uint64_t *allowed;  // [vocab / 64]
  double mask_seconds, slowest_mask;
  size_t mask_count;
} random_writer_t;

// Takes ownership of |tokenizer|.
static inline random_writer_t random_writer_open(mlx_tokenizer_t *tokenizer, int32_t eos) {
  random_writer_t w = {.tokenizer = tokenizer, .vocab = mlx_tokenizer_vocab_size(tokenizer), .eos = eos};
  CHECK_OK(mlx_vocabulary_create(tokenizer, w.vocab, true, &w.first));
  CHECK_OK(mlx_vocabulary_create(tokenizer, w.vocab, false, &w.later));
  CHECK_OK(mlx_alloc(w.vocab, sizeof *w.logits, &w.logits));
  CHECK_OK(mlx_alloc(w.vocab, sizeof *w.closes, &w.closes));
  CHECK_OK(mlx_alloc((w.vocab + 63) / 64, sizeof *w.allowed, &w.allowed));
  for (size_t i = 0; i < w.vocab; ++i) {
    mlx_text_t piece = {0};
    mlx_tokenizer_piece(tokenizer, (int32_t)i, false, true, &piece);
    w.closes[i] = piece.length && piece.length < 4 && strspn(piece.data, "\"]})") == piece.length;
    mlx_text_clear(&piece);
  }
  w.random = 1;
  return w;
}

static inline random_writer_t random_writer_tiny(void) {
  char *json;
  size_t length;
  mlx_tokenizer_t *tokenizer;
  CHECK_OK(mlx_read_file(TINY_TOKENIZER, 1 << 24, &json, &length));
  CHECK_OK(mlx_tokenizer_create("tiny", json, length, &tokenizer));
  mlx_free(json);
  return random_writer_open(tokenizer, 2);
}

static inline random_writer_t random_writer_smollm2(void) {
  mlx_map_t map;
  mlx_gguf_t *gguf;
  char *json;
  size_t length;
  mlx_tokenizer_t *tokenizer;
  CHECK_OK(mlx_map_file(SMOLLM2, &map));
  CHECK_OK(mlx_gguf_parse(SMOLLM2, map.data, map.size, &gguf));
  CHECK_OK(mlx_gguf_tokenizer_json(gguf, &json, &length));
  CHECK_OK(mlx_tokenizer_create("SmolLM2", json, length, &tokenizer));
  mlx_free(json);
  mlx_gguf_close(gguf);
  mlx_unmap(&map);
  return random_writer_open(tokenizer, 2);
}

static inline void random_writer_close(random_writer_t *w) {
  mlx_vocabulary_free(w->first);
  mlx_vocabulary_free(w->later);
  mlx_free(w->logits);
  mlx_free(w->closes);
  mlx_free(w->allowed);
  mlx_tokenizer_free(w->tokenizer);
}

// Random logits. With the number of tokens written, closing tokens become more likely, so that a text ends.
static inline void random_writer_logits(random_writer_t *w, size_t written) {
  const float bias = written < 12 ? 0 : written > 112 ? 20 : (float)(written - 12) / 5;
  for (size_t i = 0; i < w->vocab; ++i) {
    const uint64_t bits = random_next(&w->random);
    w->logits[i] =
        (float)(bits & 0xffff) / 16384 + (float)(bits >> 16 & 0xffff) / 16384 + (w->closes[i] ? bias : 0);
  }
  w->logits[w->eos] = random_next(&w->random) % 4 ? -100 : 100;
}

static inline void random_writer_mask(random_writer_t *w, mlx_matcher_t *matcher, bool first) {
  const double start = mlx_seconds();
  CHECK_OK(mlx_matcher_mask(matcher, first ? w->first : w->later, w->allowed));
  const double seconds = mlx_seconds() - start;
  w->mask_seconds += seconds;
  w->slowest_mask = seconds > w->slowest_mask ? seconds : w->slowest_mask;
  ++w->mask_count;
}

// Samples one complete text of the grammar and detokenizes it. Release with mlx_text_clear.
static inline mlx_text_t random_writer_write(random_writer_t *w, mlx_matcher_t *matcher,
                                             const mlx_sampling_t *options) {
  mlx_sampler_t *sampler;
  mlx_text_t text = {0}, piece = {0};
  mlx_detokenizer_t detokenizer = {0};
  CHECK_OK(mlx_sampler_create(options, w->vocab, 2048, &sampler));
  mlx_matcher_restart(matcher);
  for (size_t written = 0;; ++written) {
    if (written == MAX_TOKENS)
      CHECK_FAIL("no end after %d tokens: %.*s", MAX_TOKENS, (int)text.length, text.data);
    int32_t id;
    random_writer_mask(w, matcher, !written);
    const bool complete = mlx_matcher_is_complete(matcher);
    if (complete) w->allowed[w->eos / 64] |= (uint64_t)1 << w->eos % 64;
    random_writer_logits(w, written);
    mlx_status_t status = mlx_sampler_sample(sampler, w->logits, w->allowed, &id);
    if (status) CHECK_FAIL("%s after: %.*s", mlx_status_message(status), (int)text.length, text.data);
    CHECK_OK(mlx_sampler_accept(sampler, id, "", 0));
    if (id == w->eos) {
      CHECK(complete);
      break;
    }
    bool accepted;
    piece.length = 0;
    mlx_tokenizer_piece(w->tokenizer, id, !written, true, &piece);
    CHECK_OK(mlx_matcher_accept(matcher, piece.data, piece.length, &accepted));
    CHECK(accepted);
    mlx_detokenizer_push(w->tokenizer, &detokenizer, id, true, &text);
  }
  mlx_detokenizer_flush(w->tokenizer, &detokenizer, &text);
  mlx_text_append(&text, "", 0);
  CHECK_OK(mlx_text_finish(&text));
  mlx_sampler_free(sampler);
  mlx_text_clear(&piece);
  return text;
}

#endif  // MLXCEL_TESTS_RANDOM_TEXT_H_
