// Builds the words of a batch. See batch.h and kernels/step.h.
#include "runtime/batch.h"

#include <string.h>

#include "base/memory.h"
#include "runtime/sampler.h"

#define PAGE_STEP 16  // page tables are this many entries wide, or a multiple: their size changes rarely

// What is wanted of token |index| of a segment; NULL: nothing.
static const mlx_step_sampling_t *wanted_of(const mlx_segment_t *segment, int32_t index) {
  if (segment->each) return index < segment->unwanted ? NULL : &segment->each[index - segment->unwanted];
  return index == segment->count - 1 ? segment->wanted : NULL;
}

void mlx_batch_count(const mlx_segment_t *segments, size_t count, int64_t *out_tokens, int64_t *out_wanted) {
  *out_tokens = *out_wanted = 0;
  for (size_t i = 0; i < count; ++i) {
    *out_tokens += segments[i].count;
    *out_wanted += segments[i].each ? segments[i].count - segments[i].unwanted : segments[i].wanted != NULL;
  }
}

// Appends |count| words and returns the offset of the first. The words are zero.
static mlx_status_t append(mlx_batch_t *batch, size_t count, size_t *out_at) {
  *out_at = batch->count;
  MLX_TRY(mlx_reserve(batch->count + count, sizeof *batch->words, &batch->capacity, &batch->words));
  memset(batch->words + batch->count, 0, count * sizeof *batch->words);
  batch->count += count;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Sampling

static mlx_status_t add_mask(mlx_batch_t *batch, const uint32_t *mask, int64_t vocab, int32_t *out_at) {
  const size_t words = ((size_t)vocab + 31) / 32;
  size_t at;
  MLX_TRY(append(batch, words, &at));
  memcpy(batch->words + at, mask, words * sizeof *mask);
  *out_at = (int32_t)at;
  return NULL;
}

static mlx_status_t add_biases(mlx_batch_t *batch, const mlx_sampling_t *s, int32_t *out_at) {
  size_t at;
  MLX_TRY(append(batch, 2 * s->bias_count, &at));
  mlx_sampling_biases_to_words(s, batch->words + at);
  *out_at = (int32_t)at;
  return NULL;
}

// |nth|: index among the wanted tokens. Masks and biases move batch->words, so offsets are used.
static mlx_status_t add_wanted(mlx_batch_t *batch, const mlx_batch_shape_t *shape, size_t nth, int32_t token,
                               const mlx_step_sampling_t *wanted) {
  int32_t words[MLX_SAMPLING_WORDS];
  mlx_sampling_t greedy;
  mlx_sampling_initialize_greedy(&greedy);
  mlx_sampling_to_words(wanted->sampling ? wanted->sampling : &greedy, shape->history_width, words);
  words[MLX_SAMPLING_FLAGS] = (int32_t)wanted->flags;
  words[MLX_SAMPLING_TARGET] = wanted->target;
  words[MLX_SAMPLING_TOP_LOGPROBS] =
      wanted->top_logprobs < MLX_TOP_LOGPROBS ? wanted->top_logprobs : MLX_TOP_LOGPROBS;
  if (wanted->mask) MLX_TRY(add_mask(batch, wanted->mask, shape->vocab, &words[MLX_SAMPLING_MASK_AT]));
  if (wanted->sampling && wanted->sampling->bias_count)
    MLX_TRY(add_biases(batch, wanted->sampling, &words[MLX_SAMPLING_BIAS_AT]));
  const size_t n = (size_t)shape->size.tokens, w = (size_t)shape->size.wanted;
  batch->words[MLX_STEP_WANTED_AT(n) + nth] = token;
  memcpy(batch->words + MLX_STEP_SAMPLING_AT(n, w) + nth * MLX_SAMPLING_WORDS, words, sizeof words);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Tokens and pages

static void add_tokens(mlx_batch_t *batch, size_t n, const mlx_segment_t *segment, size_t nth,
                       int32_t first) {
  int32_t *words = batch->words, *row = words + MLX_STEP_SEGMENTS_AT(n) + 4 * nth;
  row[0] = segment->slot;
  row[1] = first;
  row[2] = segment->count;
  row[3] = segment->position;
  for (int32_t i = 0; i < segment->count; ++i) {
    words[MLX_STEP_TOKENS_AT + first + i] = segment->ids ? segment->ids[i] : MLX_TOKEN_SAMPLED;
    words[MLX_STEP_SLOTS_AT(n) + (size_t)(first + i)] = segment->slot;
    words[MLX_STEP_POSITIONS_AT(n) + (size_t)(first + i)] = segment->position + i;
  }
}

// Appends the first |width| entries of |rows| rows of a page table.
static mlx_status_t add_table(mlx_batch_t *batch, const mlx_batch_shape_t *shape, const int32_t *table,
                              int64_t rows, int64_t width, int word) {
  const int64_t used = width < shape->slot_pages ? width : shape->slot_pages;
  size_t at;
  MLX_TRY(append(batch, (size_t)(rows * width), &at));
  for (int64_t row = 0; row < rows; ++row) {
    memcpy(batch->words + at + row * width, table + row * shape->slot_pages,
           (size_t)used * sizeof *batch->words);
  }
  batch->words[word] = (int32_t)at;
  return NULL;
}

static mlx_status_t add_states(mlx_batch_t *batch, const mlx_batch_shape_t *shape, int64_t rows) {
  size_t at;
  MLX_TRY(append(batch, (size_t)(2 * rows), &at));
  memcpy(batch->words + at, shape->state_table, (size_t)(2 * rows) * sizeof *batch->words);
  batch->words[MLX_STEP_STATES] = (int32_t)shape->states;
  batch->words[MLX_STEP_AT_STATES] = (int32_t)at;
  return NULL;
}

// Only the rows and entries that the step can read are passed.
static mlx_status_t add_pages(mlx_batch_t *batch, const mlx_batch_shape_t *shape,
                              const mlx_segment_t *segments, size_t count, int32_t burst) {
  int64_t rows = 1, needed = 1;
  for (size_t i = 0; i < count; ++i) {
    const int64_t end = segments[i].position + (burst ? burst : segments[i].count);
    const int64_t pages = (end + MLX_KV_PAGE - 1) / MLX_KV_PAGE;
    if (segments[i].slot + 1 > rows) rows = segments[i].slot + 1;
    if (pages > needed) needed = pages;
  }
  const int64_t step = shape->chunk_pages % PAGE_STEP ? shape->chunk_pages * PAGE_STEP : shape->chunk_pages;
  const int64_t width = (needed + step - 1) / step * step;
  batch->words[MLX_STEP_SLOT_COUNT] = (int32_t)rows;
  batch->words[MLX_STEP_SLOT_PAGES] = (int32_t)width;
  MLX_TRY(add_table(batch, shape, shape->pages, rows, width, MLX_STEP_AT_PAGES));
  if (shape->window_pages)
    MLX_TRY(add_table(batch, shape, shape->window_table, rows, width, MLX_STEP_AT_WINDOW_PAGES));
  return shape->states ? add_states(batch, shape, rows) : NULL;
}

static mlx_status_t add_header(mlx_batch_t *batch, const mlx_batch_shape_t *shape, size_t segment_count,
                               int32_t burst) {
  const size_t n = (size_t)shape->size.tokens, w = (size_t)shape->size.wanted;
  size_t at;
  batch->count = 0;
  MLX_TRY(append(batch, MLX_STEP_PAGES_AT(n, w), &at));
  int32_t *words = batch->words;
  words[MLX_STEP_TOKEN_COUNT] = (int32_t)batch->tokens;
  words[MLX_STEP_SEGMENT_COUNT] = (int32_t)segment_count;
  words[MLX_STEP_WANTED_COUNT] = (int32_t)batch->wanted;
  words[MLX_STEP_POOL_PAGES] = (int32_t)shape->pool_pages;
  words[MLX_STEP_WINDOW_POOL_PAGES] = (int32_t)shape->window_pages;
  words[MLX_STEP_HISTORY_WIDTH] = (int32_t)shape->history_width;
  words[MLX_STEP_BURST_COUNT] = burst;
  words[MLX_STEP_AT_ROUTES] = (int32_t)shape->routes_at;
  words[MLX_STEP_AT_EXCHANGE] = (int32_t)shape->exchange_at;
  words[MLX_STEP_AT_TOKENS] = MLX_STEP_TOKENS_AT;
  words[MLX_STEP_AT_SLOTS] = (int32_t)MLX_STEP_SLOTS_AT(n);
  words[MLX_STEP_AT_POSITIONS] = (int32_t)MLX_STEP_POSITIONS_AT(n);
  words[MLX_STEP_AT_SEGMENTS] = (int32_t)MLX_STEP_SEGMENTS_AT(n);
  words[MLX_STEP_AT_WANTED] = (int32_t)MLX_STEP_WANTED_AT(n);
  words[MLX_STEP_AT_SAMPLING] = (int32_t)MLX_STEP_SAMPLING_AT(n, w);
  for (size_t i = 0; i < n; ++i) words[MLX_STEP_POSITIONS_AT(n) + i] = -1;  // padding
  return NULL;
}

mlx_status_t mlx_batch_build(mlx_batch_t *batch, const mlx_batch_shape_t *shape,
                             const mlx_segment_t *segments, size_t count, int32_t burst, const int32_t *eos,
                             size_t eos_count) {
  int32_t first = 0;
  size_t nth = 0;
  mlx_batch_count(segments, count, &batch->tokens, &batch->wanted);
  MLX_TRY(add_header(batch, shape, count, burst));
  MLX_TRY(add_pages(batch, shape, segments, count, burst));
  batch->words[MLX_STEP_EOS_COUNT] = (int32_t)eos_count;
  if (eos_count) memcpy(batch->words + MLX_STEP_EOS, eos, eos_count * sizeof *eos);
  for (size_t i = 0; i < count; ++i) {
    add_tokens(batch, (size_t)shape->size.tokens, &segments[i], i, first);
    for (int32_t k = 0; k < segments[i].count; ++k) {
      const mlx_step_sampling_t *wanted = wanted_of(&segments[i], k);
      if (wanted) MLX_TRY(add_wanted(batch, shape, nth++, first + k, wanted));
    }
    first += segments[i].count;
  }
  return NULL;
}

void mlx_batch_clear(mlx_batch_t *batch) {
  mlx_free(batch->words);
  *batch = (mlx_batch_t){0};
}
