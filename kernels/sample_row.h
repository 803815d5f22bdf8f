// Sampling from a row of logits on a CPU, by one thread: freestanding C11. sample.h has the definitions.
//
// Nothing is sorted. The largest key of each block of logits gives a lower bound of the k-th best score. The
// few candidates above the bound form a list, and sample.h samples from the list. If the list would be too
// long, thresholds are found by radix selection with passes over the whole row.
#ifndef MLXCEL_KERNELS_SAMPLE_ROW_H_
#define MLXCEL_KERNELS_SAMPLE_ROW_H_

#include <stddef.h>

#include "sample.h"

#define MLX_SAMPLE_LIST 512         // most candidates of a list
#define MLX_SAMPLE_LIST_TOP_K 256   // most that the list is tried for
#define MLX_SAMPLE_TOP_P_TRY 64     // blocks whose largest logits give the bound of a list for top-p
#define MLX_SAMPLE_MAX_BLOCKS 4096  // blocks of a row
#define MLX_SAMPLE_BINS 2048        // bins of a radix digit

typedef struct mlx_sample_scratch {
  mlx_u64 bins[MLX_SAMPLE_BINS];
  mlx_u64 candidates[MLX_SAMPLE_LIST], weights[MLX_SAMPLE_LIST], near[MLX_SAMPLE_LIST];
  mlx_u32 blocks[MLX_SAMPLE_MAX_BLOCKS];  // largest key of each block; 0: no finite number
} mlx_sample_scratch_t;

// Bytes of the scratch memory of one call, aligned to 8 bytes. Its content does not matter.
#define MLX_SAMPLE_SCRATCH_BYTES(vocab) (sizeof(mlx_sample_scratch_t) + (size_t)(vocab) * 8)

typedef struct mlx_sample_row {
  const float *scores;  // [vocab] f32; a candidate if finite
  mlx_i32 vocab, block, block_count;
  mlx_sample_scratch_t *scratch;
  float *adjusted;  // [vocab] scratch
  mlx_i32 *counts;  // [vocab] scratch
} mlx_sample_row_t;

// |scratch|: MLX_SAMPLE_SCRATCH_BYTES(vocab) bytes, aligned to 8.
static inline mlx_sample_row_t mlx_sample_row_of(const float *scores, mlx_i32 vocab, void *scratch) {
  mlx_sample_row_t row = {.scores = scores, .vocab = vocab, .scratch = (mlx_sample_scratch_t *)scratch};
  row.adjusted = (float *)(row.scratch + 1);
  row.counts = (mlx_i32 *)(row.adjusted + vocab);
  row.block = ((vocab + MLX_SAMPLE_MAX_BLOCKS - 1) / MLX_SAMPLE_MAX_BLOCKS + 63) / 64 * 64;
  row.block_count = (vocab + row.block - 1) / row.block;
  return row;
}

// ----------------------------------------------------------------------------------------------------------
// Blocks and lists

// Finds the largest key of each block of |scores|. Returns nonzero if a score is not finite.
static inline mlx_u32 mlx_sample_fill_blocks(const mlx_sample_row_t *row) {
  mlx_u32 bad = 0;
  for (mlx_i32 b = 0; b < row->block_count; ++b) {
    const mlx_i32 first = b * row->block,
                  count = row->vocab - first < row->block ? row->vocab - first : row->block;
    const float *scores = row->scores + first;
    mlx_u32 largest = 0;
    for (mlx_i32 i = 0; i < count; ++i) {
      const mlx_u32 is_finite = mlx_bits_are_finite(mlx_float_bits(scores[i])) ? ~0u : 0u,
                    key = mlx_sample_key(scores[i]) & is_finite;
      largest = key > largest ? key : largest;
      bad |= ~is_finite;
    }
    row->scratch->blocks[b] = largest;
  }
  return bad;
}

static inline mlx_u64 mlx_sample_best_of_row(const mlx_sample_row_t *row) {
  mlx_i32 best = 0;
  for (mlx_i32 b = 1; b < row->block_count; ++b) {
    if (row->scratch->blocks[b] > row->scratch->blocks[best]) best = b;
  }
  const mlx_u32 key = row->scratch->blocks[best];
  if (!key) return 0;
  mlx_i32 id = best * row->block;
  while (mlx_sample_key(row->scores[id]) != key) ++id;
  return mlx_sample_pack(row->scores[id], id);
}

// The |k|-th largest key of the blocks: at least k scores are not less. 0 if there are fewer blocks.
static inline mlx_u32 mlx_sample_bound(const mlx_sample_row_t *row, mlx_i32 k) {
  mlx_u32 bound = 0;
  for (mlx_u32 bit = 0x80000000u; bit; bit >>= 1) {
    const mlx_u32 tried = bound | bit;
    mlx_i32 count = 0;
    for (mlx_i32 b = 0; b < row->block_count; ++b) count += row->scratch->blocks[b] >= tried;
    if (count >= k) bound = tried;
  }
  return bound;
}

// Lists the candidates whose key is at least |bound|, in the order of their IDs. Returns their number, or -1
// if there are too many.
static inline mlx_i32 mlx_sample_gather(const mlx_sample_row_t *row, mlx_u32 bound) {
  mlx_i32 count = 0;
  for (mlx_i32 b = 0; b < row->block_count; ++b) {
    if (row->scratch->blocks[b] < bound || !row->scratch->blocks[b]) continue;
    const mlx_i32 first = b * row->block,
                  end = row->vocab - first < row->block ? row->vocab : first + row->block;
    for (mlx_i32 id = first; id < end; ++id) {
      const mlx_u64 candidate = mlx_sample_pack(row->scores[id], id);
      if (!candidate || (mlx_u32)(candidate >> 32) < bound) continue;
      if (count == MLX_SAMPLE_LIST) return -1;
      row->scratch->candidates[count++] = candidate;
    }
  }
  return count;
}

static inline mlx_sample_list_t mlx_sample_list_of(const mlx_sample_row_t *row, mlx_i32 count) {
  return (mlx_sample_list_t){.candidates = row->scratch->candidates,
                             .weights = row->scratch->weights,
                             .near = row->scratch->near,
                             .count = count,
                             .thread = 0,
                             .threads = 1};
}

// The sum of the weights of all scores.
static inline mlx_u64 mlx_sample_row_total(const mlx_sample_row_t *row, float best) {
  MLX_EXACT
  mlx_u64 total = 0;
  for (mlx_i32 i = 0; i < row->vocab; ++i) {
    const float score = row->scores[i];
    const mlx_u64 weight = mlx_sample_weight(MLX_FSUB(score, best));
    total += weight & (0 - (mlx_u64)mlx_bits_are_finite(mlx_float_bits(score)));  // no branch: vectorized
  }
  return total;
}

// ----------------------------------------------------------------------------------------------------------
// Selection by passes over the whole row

static inline mlx_u64 mlx_sample_kept(const mlx_sample_row_t *row, const mlx_sample_filter_t *filter,
                                      mlx_i32 id) {
  return mlx_sample_passes(filter, row->scores[id], id);
}

// The end of block |b|; its start if the filter keeps none of its candidates.
static inline mlx_i32 mlx_sample_block_end(const mlx_sample_row_t *row, const mlx_sample_filter_t *filter,
                                           mlx_i32 b) {
  const mlx_i32 first = b * row->block;
  if (row->scratch->blocks[b] < (mlx_u32)(filter->least >> 32)) return first;
  return row->vocab - first < row->block ? row->vocab : first + row->block;
}

// The sum of the weights of a block's kept candidates at a temperature. |best| is the best score of those.
static inline mlx_u64 mlx_sample_block_weight(const mlx_sample_row_t *row, const mlx_sample_filter_t *filter,
                                              mlx_i32 b, float best, float temperature) {
  MLX_EXACT
  const mlx_i32 first = b * row->block, end = mlx_sample_block_end(row, filter, b);
  mlx_u64 sum = 0;
  for (mlx_i32 id = first; filter->least_near && id < end; ++id) {
    const mlx_u64 candidate = mlx_sample_kept(row, filter, id);
    if (candidate)
      sum += mlx_sample_weight(mlx_sample_tempered(mlx_sample_score(candidate), best, temperature));
  }
  if (filter->least_near) return sum;
  for (mlx_i32 id = first; id < end; ++id) {  // no branch: vectorized
    const float score = row->scores[id];
    const mlx_u64 candidate = (mlx_u64)mlx_sample_key(score) << 32 | (mlx_u32)~id,
                  weight = mlx_sample_weight(MLX_FDIV(MLX_FSUB(score, best), temperature)),
                  keeps = (mlx_u64)mlx_bits_are_finite(mlx_float_bits(score)) & (candidate >= filter->least);
    sum += weight & (0 - keeps);
  }
  return sum;
}

// Finds the shortest prefix of the kept candidates, in descending |order|, with at least |need| weight.
// Returns the place of its last candidate; 0 if all of them weigh less.
static inline mlx_u64 mlx_sample_select(const mlx_sample_row_t *row, const mlx_sample_filter_t *filter,
                                        mlx_sample_order_t order, mlx_u64 need) {
  mlx_u64 prefix = 0, weight;
  for (int digit = 0; digit < 3; ++digit) {  // of the upper 32 bits: 11, 11 and 10 bits
    const int above = 64 - 11 * digit, shift = digit < 2 ? above - 11 : 32;
    const mlx_u32 mask = (1u << (above - shift)) - 1;
    mlx_u64 *bins = row->scratch->bins;
    for (int b = 0; b < MLX_SAMPLE_BINS; ++b) bins[b] = 0;
    for (mlx_i32 block = 0; block < row->block_count; ++block) {
      const mlx_i32 end = mlx_sample_block_end(row, filter, block);
      for (mlx_i32 id = block * row->block; id < end; ++id) {
        const mlx_u64 candidate = mlx_sample_kept(row, filter, id);
        if (!candidate || (digit && order != MLX_BY_NEARNESS && candidate >> above != prefix)) continue;
        const mlx_u64 place = mlx_sample_place(filter, order, candidate, &weight);
        if (digit && place >> above != prefix) continue;
        bins[place >> shift & mask] += weight;
      }
    }
    mlx_i32 b = (mlx_i32)mask;
    for (; b >= 0 && bins[b] < need; --b) need -= bins[b];
    if (b < 0) return 0;
    prefix = prefix << (above - shift) | (mlx_u32)b;
  }
  for (mlx_i32 id = 0; id < row->vocab; ++id) {  // equal keys: lower IDs first
    const mlx_u64 candidate = mlx_sample_kept(row, filter, id);
    const mlx_u64 place = candidate ? mlx_sample_place(filter, order, candidate, &weight) : 0;
    if (!candidate || place >> 32 != prefix) continue;
    if (weight >= need) return place;
    need -= weight;
  }
  return 0;
}

static inline mlx_u64 mlx_sample_kept_weight(const mlx_sample_row_t *row, const mlx_sample_filter_t *filter,
                                             float best, float temperature) {
  mlx_u64 total = 0;
  for (mlx_i32 b = 0; b < row->block_count; ++b)
    total += mlx_sample_block_weight(row, filter, b, best, temperature);
  return total;
}

// The kept candidates' parts of the surprise.
static inline mlx_u64 mlx_sample_kept_surprise(const mlx_sample_row_t *row,
                                               const mlx_sample_filter_t *filter) {
  MLX_EXACT
  mlx_u64 sum = 0;
  for (mlx_i32 id = 0; id < row->vocab; ++id) {
    const mlx_u64 candidate = mlx_sample_kept(row, filter, id);
    if (candidate) sum += mlx_sample_surprise(MLX_FSUB(mlx_sample_score(candidate), filter->best));
  }
  return sum;
}

static inline mlx_u64 mlx_sample_best_kept(const mlx_sample_row_t *row, const mlx_sample_filter_t *filter) {
  mlx_u64 best = 0;
  for (mlx_i32 id = 0; id < row->vocab; ++id) {
    const mlx_u64 candidate = mlx_sample_kept(row, filter, id);
    best = candidate > best ? candidate : best;
  }
  return best;
}

// Draws one of the kept candidates, in the order of their IDs. |best| is the best of them.
static inline mlx_u64 mlx_sample_draw_row(const mlx_sample_row_t *row, const mlx_sample_filter_t *filter,
                                          const mlx_sample_options_t *o, mlx_i32 position, mlx_u64 best) {
  if (o->temperature == 0) return best;
  const float top = mlx_sample_score(best), temperature = o->temperature;
  mlx_u64 target = mlx_sample_target(mlx_sample_random(o->seed, (mlx_u64)(mlx_u32)position, 0),
                                     mlx_sample_kept_weight(row, filter, top, temperature));
  for (mlx_i32 b = 0; b < row->block_count; ++b) {
    const mlx_u64 block = mlx_sample_block_weight(row, filter, b, top, temperature);
    if (target >= block) {
      target -= block;
      continue;
    }
    const mlx_i32 end = mlx_sample_block_end(row, filter, b);
    for (mlx_i32 id = b * row->block; id < end; ++id) {
      const mlx_u64 candidate = mlx_sample_kept(row, filter, id);
      if (!candidate) continue;
      const mlx_u64 weight =
          mlx_sample_weight(mlx_sample_tempered(mlx_sample_score(candidate), top, temperature));
      if (target < weight) return candidate;
      target -= weight;
    }
  }
  return best;
}

static inline mlx_u64 mlx_sample_by_passes(const mlx_sample_row_t *row, const mlx_sample_options_t *o,
                                           mlx_i32 position, mlx_u64 best) {
  mlx_sample_filter_t filter = {.best = mlx_sample_score(best)};
  if (o->top_k) filter.least = mlx_sample_select(row, &filter, MLX_BY_COUNT, (mlx_u64)o->top_k);
  if (o->typical_p < 1) {
    const mlx_u64 total = mlx_sample_kept_weight(row, &filter, filter.best, 1);
    filter.mean = mlx_sample_mean_surprise(mlx_sample_kept_surprise(row, &filter), total);
    filter.least_near =
        mlx_sample_select(row, &filter, MLX_BY_NEARNESS, mlx_sample_typical_need(o->typical_p, total));
    best = mlx_sample_best_kept(row, &filter);
  }
  if (o->top_p < 1) {
    const mlx_u64 total = mlx_sample_kept_weight(row, &filter, filter.best, 1),
                  least =
                      mlx_sample_select(row, &filter, MLX_BY_WEIGHT, mlx_sample_top_p_need(o->top_p, total));
    filter.least = least > filter.least ? least : filter.least;
  }
  if (o->min_p > 0) {  // |best| is kept by all filters but typical sampling
    const mlx_u64 least = (mlx_u64)mlx_sample_key(mlx_sample_min_score(mlx_sample_score(best), o->min_p))
                          << 32;
    filter.least = least > filter.least ? least : filter.least;
  }
  return mlx_sample_draw_row(row, &filter, o, position, best);
}

// ----------------------------------------------------------------------------------------------------------
// Sampling

// Samples from the scores of |row|, whose blocks are filled. Returns the candidate; 0 if there is none.
static inline mlx_u64 mlx_sample_scores(const mlx_sample_row_t *row, const mlx_sample_options_t *o,
                                        mlx_i32 position) {
  const mlx_u64 best = mlx_sample_best_of_row(row);
  if (!best || mlx_sample_is_greedy(o)) return best;
  const float top = mlx_sample_score(best);
  mlx_i32 count = -1;
  mlx_u64 total = 0;
  if (o->top_k && o->top_k <= MLX_SAMPLE_LIST_TOP_K) {
    count = mlx_sample_gather(row, mlx_sample_bound(row, o->top_k));
  } else if (!o->top_k && o->typical_p == 1 && (o->min_p > 0 || o->top_p < 1)) {
    count = mlx_sample_gather(row, o->min_p > 0 ? mlx_sample_key(mlx_sample_min_score(top, o->min_p))
                                                : mlx_sample_bound(row, MLX_SAMPLE_TOP_P_TRY));
    if (count > 0 && o->top_p < 1) total = mlx_sample_row_total(row, top);
  }
  const mlx_sample_list_t list = mlx_sample_list_of(row, count);
  if (count > 0 && total && o->min_p == 0) {  // does the list have all that top-p keeps?
    mlx_sample_set_weights(&list, top);
    if (mlx_sample_total(&list) < mlx_sample_top_p_need(o->top_p, total)) count = -1;
  }
  return count > 0 ? mlx_sample_candidates(&list, o, position, total)
                   : mlx_sample_by_passes(row, o, position, best);
}

typedef struct mlx_sample_batch {
  const mlx_i32 *words;
  size_t count;
} mlx_sample_batch_t;

// The |count| words of |batch| at |at|; NULL if there are none, or if they are not all inside.
static inline const mlx_i32 *mlx_sample_words(const mlx_sample_batch_t *batch, mlx_i32 at, size_t count) {
  return at > 0 && (size_t)at <= batch->count && count <= batch->count - (size_t)at ? batch->words + at
                                                                                    : NULL;
}

static inline void mlx_sample_add_penalties(const mlx_sample_row_t *row, const mlx_i32 *sampling,
                                            const mlx_i32 *history, mlx_i32 position) {
  const mlx_i32 window = sampling[MLX_SAMPLING_WINDOW], first = window <= 0         ? position
                                                                : window < position ? position - window
                                                                                    : 0;
  const float repeat = mlx_bits_float((mlx_u32)sampling[MLX_SAMPLING_REPEAT]),
              frequency = mlx_bits_float((mlx_u32)sampling[MLX_SAMPLING_FREQUENCY]),
              presence = mlx_bits_float((mlx_u32)sampling[MLX_SAMPLING_PRESENCE]);
  for (int pass = 0; pass < 3; ++pass) {  // clear the counts, count, apply
    for (mlx_i32 i = first; i < position; ++i) {
      const mlx_i32 id = history[i];
      if (id < 0 || id >= row->vocab) continue;
      if (pass == 0) row->counts[id] = 0;
      if (pass == 1) ++row->counts[id];
      if (pass < 2 || !row->counts[id]) continue;
      row->adjusted[id] =
          mlx_sample_penalize(row->adjusted[id], row->counts[id], repeat, frequency, presence);
      row->counts[id] = 0;
    }
  }
}

// Sets |adjusted| to the logits with mask, biases and penalties. A token that is not allowed gets -infinity.
static inline void mlx_sample_adjust(const mlx_sample_row_t *row, const mlx_sample_batch_t *batch,
                                     const mlx_i32 *sampling, const mlx_i32 *history, mlx_i32 position) {
  MLX_EXACT
  const float excluded = mlx_bits_float(0xff800000u);
  const mlx_i32 *mask =
      mlx_sample_words(batch, sampling[MLX_SAMPLING_MASK_AT], ((size_t)row->vocab + 31) / 32);
  for (mlx_i32 first = 0; first < row->vocab; first += 32) {
    const mlx_i32 count = row->vocab - first < 32 ? row->vocab - first : 32;
    const mlx_u32 allowed = mask ? (mlx_u32)mask[first / 32] : ~0u;
    for (mlx_i32 i = 0; i < count; ++i) {
      const float logit = row->scores[first + i];
      const int keep = (allowed >> i & 1) && mlx_bits_are_finite(mlx_float_bits(logit));
      row->adjusted[first + i] = keep ? logit : excluded;
    }
  }
  const mlx_i32 bias_count = sampling[MLX_SAMPLING_BIAS_COUNT];
  const mlx_i32 *biases =
      bias_count > 0 ? mlx_sample_words(batch, sampling[MLX_SAMPLING_BIAS_AT], (size_t)bias_count * 2) : NULL;
  for (mlx_i32 i = 0; biases && i < bias_count; ++i) {
    const mlx_i32 id = biases[2 * i];
    if (id >= 0 && id < row->vocab)
      row->adjusted[id] = MLX_FADD(row->adjusted[id], mlx_bits_float((mlx_u32)biases[2 * i + 1]));
  }
  mlx_sample_add_penalties(row, sampling, history, position);
}

// Reports the |count| most likely tokens of the logits.
static inline void mlx_sample_report_top(const mlx_sample_row_t *row, mlx_i32 wanted, float largest,
                                         mlx_u64 total, mlx_i32 *result) {
  const mlx_i32 count = mlx_sample_gather(row, mlx_sample_bound(row, wanted));
  mlx_u64 last = ~(mlx_u64)0;
  for (mlx_i32 nth = 0; nth < wanted; ++nth) {
    mlx_u64 best = 0;
    for (mlx_i32 i = 0; i < (count < 0 ? row->vocab : count); ++i) {
      const mlx_u64 candidate = count < 0 ? mlx_sample_pack(row->scores[i], i) : row->scratch->candidates[i];
      if (candidate < last && candidate > best) best = candidate;
    }
    const float logit = best ? mlx_sample_score(best) : mlx_bits_float(0xff800000u);
    result[MLX_RESULT_TOP_IDS + nth] = mlx_sample_id(best);
    result[MLX_RESULT_TOP_LOGPROBS + nth] =
        (mlx_i32)mlx_float_bits(mlx_sample_logprob(logit, largest, total));
    last = best;
  }
}

// Samples a token: everything that kernels/step.h defines for one wanted token.
//
//   batch        the step's |batch|: masks and biases. Offsets outside of it count as none
//   sampling     [MLX_SAMPLING_WORDS] the record of the wanted token
//   logits       [vocab]; not changed
//   history      [history_width] tokens of the sequence. Receives the sampled one, 0 if there is none
//   position     of the sampled token: the position of the wanted token + 1
//   result       [MLX_RESULT_WORDS]
//   scratch      MLX_SAMPLE_SCRATCH_BYTES(vocab) bytes, aligned to 8
//
// Returns the token, or -1.
static inline mlx_i32 mlx_sample_row(const mlx_i32 *batch, size_t batch_words, const mlx_i32 *sampling,
                                     const float *logits, mlx_i32 vocab, mlx_i32 *history,
                                     mlx_i32 history_width, mlx_i32 position, mlx_i32 *result,
                                     void *scratch) {
  const mlx_sample_options_t o = mlx_sample_read(sampling);
  const mlx_sample_batch_t words = {batch, batch_words};
  mlx_sample_row_t row = mlx_sample_row_of(logits, vocab, scratch);
  if (position < 0) position = 0;
  const mlx_i32 known = position < history_width ? position : history_width;  // tokens before this one
  for (int i = 0; i < MLX_RESULT_WORDS; ++i) result[i] = 0;
  const mlx_u32 bad = mlx_sample_fill_blocks(&row);
  result[MLX_RESULT_FLAGS] = bad ? 1 : 0;
  const int reports = o.flags & (MLX_SAMPLE_LOGPROB | MLX_SAMPLE_SCORE);
  float largest = 0;
  mlx_u64 total = 0;
  if (reports) {
    largest = mlx_sample_score(mlx_sample_best_of_row(&row));
    total = mlx_sample_row_total(&row, largest);
  }
  if (o.flags & MLX_SAMPLE_LOGPROB) mlx_sample_report_top(&row, o.top_logprobs, largest, total, result);
  mlx_i32 token = -1;
  if ((o.flags & MLX_SAMPLE_TOKEN) && !(o.flags & MLX_SAMPLE_SCORE)) {
    if (bad || sampling[MLX_SAMPLING_MASK_AT] || sampling[MLX_SAMPLING_BIAS_COUNT] ||
        sampling[MLX_SAMPLING_WINDOW]) {
      mlx_sample_adjust(&row, &words, sampling, history, known);
      row.scores = row.adjusted;
      mlx_sample_fill_blocks(&row);
    }
    token = mlx_sample_id(mlx_sample_scores(&row, &o, position));
    if (position < history_width) history[position] = token < 0 ? 0 : token;
  }
  result[MLX_RESULT_TOKEN] = token;
  const mlx_i32 scored = o.flags & MLX_SAMPLE_SCORE ? o.target : token;
  if (reports) {
    const float logit = scored >= 0 && scored < vocab ? logits[scored] : mlx_bits_float(0xff800000u);
    result[MLX_RESULT_LOGPROB] = (mlx_i32)mlx_float_bits(mlx_sample_logprob(logit, largest, total));
  }
  return token;
}

#endif  // MLXCEL_KERNELS_SAMPLE_ROW_H_
