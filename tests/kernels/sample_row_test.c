// kernels/sample_row.h against a slow implementation of the definition in docs/sampling.md, bit for bit, and
// the distribution of its tokens.
#include <float.h>

#include "tests/kernels/random_step.h"

typedef struct entry {
  float score, order;  // sorted by |order|, descending, then by id
  int32_t id;
  uint64_t weight;
} entry_t;

static int compare_entries(const void *a, const void *b) {
  const entry_t *x = a, *y = b;
  return x->order > y->order ? -1 : x->order < y->order ? 1 : x->id < y->id ? -1 : 1;
}

static int compare_ids(const void *a, const void *b) {
  return ((const entry_t *)a)->id < ((const entry_t *)b)->id ? -1 : 1;
}

static float word_float(int32_t word) { return mlx_bits_float((uint32_t)word); }

// ----------------------------------------------------------------------------------------------------------
// Reference

static void reference_scores(const random_step_t *step, int32_t row, float *scores) {
  const int32_t *w = step_sampling(step, row), *history = step_history(step, row);
  const float *logits = step->logits + (size_t)row * (size_t)step->vocab;
  const int32_t position = step_position(step, row), end = position < STEP_WIDTH ? position : STEP_WIDTH,
                first = end > w[MLX_SAMPLING_WINDOW] ? end - w[MLX_SAMPLING_WINDOW] : 0;
  int32_t *counts = calloc((size_t)step->vocab, sizeof *counts);
  CHECK(counts);
  for (int32_t i = first; i < end; ++i) ++counts[history[i]];
  for (int32_t id = 0; id < step->vocab; ++id) {
    const uint32_t allowed =
        w[MLX_SAMPLING_MASK_AT] ? (uint32_t)step->batch[w[MLX_SAMPLING_MASK_AT] + id / 32] >> id % 32 & 1 : 1;
    scores[id] = allowed && isfinite(logits[id]) ? logits[id] : -INFINITY;
    for (int32_t i = 0; i < w[MLX_SAMPLING_BIAS_COUNT]; ++i) {
      const int32_t *bias = step->batch + w[MLX_SAMPLING_BIAS_AT] + 2 * i;
      if (bias[0] == id) scores[id] += word_float(bias[1]);
    }
    if (!counts[id]) continue;
    const float repeat = word_float(w[MLX_SAMPLING_REPEAT]);
    scores[id] = scores[id] <= 0 ? scores[id] * repeat : scores[id] / repeat;
    const float slope = (float)counts[id] * word_float(w[MLX_SAMPLING_FREQUENCY]);
    scores[id] -= slope + word_float(w[MLX_SAMPLING_PRESENCE]);
  }
  free(counts);
}

static uint64_t sum_entries(const entry_t *list, int32_t count) {
  uint64_t sum = 0;
  for (int32_t i = 0; i < count; ++i) sum += list[i].weight;
  return sum;
}

static int32_t reference_typical(entry_t *list, int32_t count, float best, float p) {
  const uint64_t total = sum_entries(list, count), part = (uint64_t)((double)p * (double)total);
  uint64_t surprises = 0, sum = 0;
  for (int32_t i = 0; i < count; ++i) {
    const float x = list[i].score - best;
    if (x >= -28) surprises += (uint64_t)((double)(mlx_exp32(x) * -x) * 0x1p40);
  }
  const float mean = (float)((double)surprises / (double)total);
  for (int32_t i = 0; i < count; ++i) list[i].order = -fabsf(-(list[i].score - best) - mean);
  qsort(list, (size_t)count, sizeof *list, compare_entries);
  int32_t kept = 0;
  while (kept < count && sum <= part) sum += list[kept++].weight;
  for (int32_t i = 0; i < kept; ++i) list[i].order = list[i].score;
  qsort(list, (size_t)kept, sizeof *list, compare_entries);
  return kept;
}

static int32_t reference_draw(entry_t *list, int32_t count, float temperature, uint64_t seed,
                              int32_t position) {
  if (temperature == 0) return list[0].id;
  const float best = list[0].score;
  for (int32_t i = 0; i < count; ++i) {
    const float x = (list[i].score - best) / temperature;
    list[i].weight = x < -28 ? 0 : (uint64_t)((double)mlx_exp32(x) * 0x1p40);
  }
  const unsigned __int128 total = sum_entries(list, count);
  const uint64_t target = (uint64_t)(total * mlx_sample_random(seed, (uint64_t)position, 0) >> 64);
  qsort(list, (size_t)count, sizeof *list, compare_ids);
  uint64_t sum = 0;
  for (int32_t i = 0; i < count; ++i) {
    sum += list[i].weight;
    if (sum > target) return list[i].id;
  }
  CHECK_FAIL("the target exceeds the sum of the weights");
  return -1;
}

// The token of a row; -1: none.
static int32_t reference_token(const random_step_t *step, int32_t row) {
  const int32_t *w = step_sampling(step, row);
  float *scores = malloc((size_t)step->vocab * sizeof *scores);
  entry_t *list = malloc((size_t)step->vocab * sizeof *list);
  CHECK(scores && list);
  reference_scores(step, row, scores);
  int32_t count = 0, token = -1;
  for (int32_t id = 0; id < step->vocab; ++id) {
    if (isfinite(scores[id])) list[count++] = (entry_t){scores[id], scores[id], id, 0};
  }
  qsort(list, (size_t)count, sizeof *list, compare_entries);
  const float typical_p = word_float(w[MLX_SAMPLING_TYPICAL_P]), top_p = word_float(w[MLX_SAMPLING_TOP_P]),
              min_p = word_float(w[MLX_SAMPLING_MIN_P]);
  if (count) {
    const float best = list[0].score;
    if (w[MLX_SAMPLING_TOP_K] && w[MLX_SAMPLING_TOP_K] < count) count = w[MLX_SAMPLING_TOP_K];
    for (int32_t i = 0; i < count; ++i) {
      const float x = list[i].score - best;
      list[i].weight = x < -28 ? 0 : (uint64_t)((double)mlx_exp32(x) * 0x1p40);
    }
    if (typical_p < 1) count = reference_typical(list, count, best, typical_p);
    if (top_p < 1) {
      const uint64_t part = (uint64_t)((double)top_p * (double)sum_entries(list, count));
      uint64_t sum = list[0].weight;
      int32_t kept = 1;
      while (kept < count && sum < part) sum += list[kept++].weight;
      count = kept;
    }
    if (min_p > 0) {
      const float least = list[0].score + (float)mlx_log64((double)min_p);
      while (list[count - 1].score < least) --count;
    }
    token = reference_draw(
        list, count, word_float(w[MLX_SAMPLING_TEMPERATURE]),
        (uint64_t)(uint32_t)w[MLX_SAMPLING_SEED_HIGH] << 32 | (uint32_t)w[MLX_SAMPLING_SEED_LOW],
        step_position(step, row));
  }
  free(scores);
  free(list);
  return token;
}

// ----------------------------------------------------------------------------------------------------------
// Rows

static int32_t sample(const random_step_t *step, int32_t row) {
  void *scratch = malloc(MLX_SAMPLE_SCRATCH_BYTES(step->vocab));
  CHECK(scratch);
  memset(scratch, 0xee, MLX_SAMPLE_SCRATCH_BYTES(step->vocab));
  const int32_t token =
      mlx_sample_row(step->batch, step->words, step_sampling(step, row),
                     step->logits + (size_t)row * (size_t)step->vocab, step->vocab, step_history(step, row),
                     STEP_WIDTH, step_position(step, row), step->results + row * MLX_RESULT_WORDS, scratch);
  free(scratch);
  return token;
}

static void check_logprob(const float *logits, int32_t vocab, int32_t id, int32_t word, double sum) {
  const double expected = id >= 0 && id < vocab && isfinite(logits[id])
                              ? fmax((double)logits[id] - sum, (double)-FLT_MAX)
                              : (double)-FLT_MAX;
  const double actual = (double)word_float(word);
  if (!(fabs(actual - expected) <= 2e-6 * fmax(1, fabs(expected))))
    CHECK_FAIL("log-probability of token %d is %.9g, expected %.9g", id, actual, expected);
}

// Log-probabilities against libm, and the order of the most likely tokens.
static void check_report(const random_step_t *step, int32_t row, int32_t token) {
  const int32_t *w = step_sampling(step, row), *result = step->results + row * MLX_RESULT_WORDS;
  const float *logits = step->logits + (size_t)row * (size_t)step->vocab;
  double largest = -INFINITY, sum = 0;
  bool finite = true;
  for (int32_t i = 0; i < step->vocab; ++i) {
    finite = finite && isfinite(logits[i]);
    if (isfinite(logits[i])) largest = fmax(largest, (double)logits[i]);
  }
  for (int32_t i = 0; i < step->vocab; ++i) sum += isfinite(logits[i]) ? exp((double)logits[i] - largest) : 0;
  CHECK_INT(result[MLX_RESULT_FLAGS], !finite);
  CHECK_INT(result[MLX_RESULT_TOKEN], token);
  const double log_sum = largest + log(sum);
  if (w[MLX_SAMPLING_FLAGS] & (MLX_SAMPLE_LOGPROB | MLX_SAMPLE_SCORE)) {
    const int32_t scored = w[MLX_SAMPLING_FLAGS] & MLX_SAMPLE_SCORE ? w[MLX_SAMPLING_TARGET] : token;
    check_logprob(logits, step->vocab, scored, result[MLX_RESULT_LOGPROB], log_sum);
  }
  const int32_t count = w[MLX_SAMPLING_FLAGS] & MLX_SAMPLE_LOGPROB ? w[MLX_SAMPLING_TOP_LOGPROBS] : 0;
  uint64_t last = ~(uint64_t)0;
  for (int32_t nth = 0; nth < count; ++nth) {
    uint64_t best = 0;
    for (int32_t i = 0; i < step->vocab; ++i) {
      const uint64_t candidate = mlx_sample_pack(logits[i], i);
      if (candidate < last && candidate > best) best = candidate;
    }
    CHECK_INT(result[MLX_RESULT_TOP_IDS + nth], mlx_sample_id(best));
    check_logprob(logits, step->vocab, mlx_sample_id(best), result[MLX_RESULT_TOP_LOGPROBS + nth], log_sum);
    last = best;
  }
}

TEST(every_row_matches_the_definition_bit_for_bit) {
  static const int32_t vocabularies[] = {1, 7, 65, 1003, 5003, 40009};
  uint64_t random = 5;
  int sampled = 0, none = 0;
  for (int round = 0; round < (MLXCEL_SANITIZED ? 30 : 150); ++round) {
    random_step_t step = random_step(16, vocabularies[round % 6], &random);
    for (int32_t row = 0; row < step.rows; ++row) {
      const int32_t flags = step_sampling(&step, row)[MLX_SAMPLING_FLAGS];
      const bool samples = (flags & MLX_SAMPLE_TOKEN) && !(flags & MLX_SAMPLE_SCORE);
      const int32_t expected = samples ? reference_token(&step, row) : -1,
                    position = step_position(&step, row),
                    before = position < STEP_WIDTH ? step_history(&step, row)[position] : 0;
      const int32_t token = sample(&step, row);
      if (token != expected)
        CHECK_FAIL("round %d, row %d: token %d, expected %d", round, row, token, expected);
      check_report(&step, row, token);
      if (position < STEP_WIDTH)
        CHECK_INT(step_history(&step, row)[position], samples ? (token < 0 ? 0 : token) : before);
      sampled += token >= 0;
      none += samples && token < 0;
    }
    random_step_free(&step);
  }
  fprintf(stderr, "  %d rows with a token, %d without\n", sampled, none);
  CHECK(sampled > 200 && none > 10);
}

// ----------------------------------------------------------------------------------------------------------
// Arithmetic

TEST(exp_is_exact_to_2e_7_and_does_not_decrease) {
  double worst = 0;
  float last = 0;
  for (uint32_t bits = MLX_SAMPLE_LEAST_BITS; bits >= 0xa0000000u; bits -= 101) {
    const float x = mlx_bits_float(bits), e = mlx_exp32(x);
    worst = fmax(worst, fabs((double)e / exp((double)x) - 1));
    if (e < last) CHECK_FAIL("exp32(%.9g) is less than for a smaller number", (double)x);
    last = e;
  }
  CHECK(worst < 2e-7 && mlx_exp32(0) == 1 && mlx_exp32(-0.0f) == 1);
  CHECK(mlx_sample_weight(0) == MLX_SAMPLE_ONE && mlx_sample_weight(-0.0f) == MLX_SAMPLE_ONE);
  CHECK(mlx_sample_weight(MLX_SAMPLE_LEAST) == 0 && mlx_sample_weight(-INFINITY) == 0);
  CHECK(mlx_sample_weight(-27.5f) == 1);
}

TEST(candidates_have_the_order_of_scores_then_of_ids) {
  static const float scores[] = {-FLT_MAX, -1, -FLT_MIN, -0.0f, FLT_MIN, 1, FLT_MAX};
  for (int i = 0; i < 7; ++i) {
    const uint64_t candidate = mlx_sample_pack(scores[i], 5);
    CHECK(mlx_sample_score(candidate) == scores[i] && mlx_sample_id(candidate) == 5);
    CHECK(candidate > mlx_sample_pack(scores[i], 6) && candidate < mlx_sample_pack(scores[i], 4));
    if (i) CHECK(candidate > mlx_sample_pack(scores[i - 1], 0));
  }
  CHECK(mlx_sample_pack(-0.0f, 3) == mlx_sample_pack(0, 3));
  CHECK(!mlx_sample_pack(INFINITY, 1) && !mlx_sample_pack(-INFINITY, 1) && !mlx_sample_pack(NAN, 1));
  CHECK_INT(mlx_sample_id(0), -1);
}

// ----------------------------------------------------------------------------------------------------------
// Distribution

// A step with one row and no filters.
static random_step_t plain_step(int32_t vocab) {
  uint64_t random = 11;
  random_step_t step = random_step(1, vocab, &random);
  int32_t *w = step_sampling(&step, 0);
  memset(w, 0, MLX_SAMPLING_WORDS * sizeof *w);
  w[MLX_SAMPLING_FLAGS] = MLX_SAMPLE_TOKEN;
  w[MLX_SAMPLING_REPEAT] = w[MLX_SAMPLING_TYPICAL_P] = w[MLX_SAMPLING_TOP_P] = w[MLX_SAMPLING_TEMPERATURE] =
      step_float(1);
  for (int32_t i = 0; i < vocab; ++i) step.logits[i] = (float)(3 * sin(i));
  step.batch[step.batch[MLX_STEP_AT_POSITIONS]] = 10;
  return step;
}

// Chi-square of 100,000 draws against the exact probabilities of the kept tokens.
static double chi_square(random_step_t *step, double temperature, int32_t kept, int *out_degrees) {
  int32_t *w = step_sampling(step, 0), *position = &step->batch[step->batch[MLX_STEP_AT_POSITIONS]];
  double expected[100] = {0}, sum = 0, result = 0;
  int times[100] = {0};
  const int draws = 100000;
  for (int32_t i = 0; i < step->vocab; ++i) {
    int32_t rank = 0;
    for (int32_t j = 0; j < step->vocab; ++j) rank += step->logits[j] > step->logits[i];
    expected[i] = rank < kept ? exp((double)step->logits[i] / temperature) : 0;
    sum += expected[i];
  }
  for (int i = 0; i < draws; ++i) {  // positions and seeds
    w[MLX_SAMPLING_SEED_LOW] = i / 1000;
    *position = i % 1000;
    ++times[sample(step, 0)];
  }
  *out_degrees = -1;
  for (int32_t i = 0; i < step->vocab; ++i) {
    const double mean = draws * expected[i] / sum;
    if (expected[i] == 0) CHECK_INT(times[i], 0);
    if (expected[i] == 0) continue;
    result += (times[i] - mean) * (times[i] - mean) / mean;
    ++*out_degrees;
  }
  return result;
}

TEST(tokens_follow_the_probabilities) {
  static const struct {
    int32_t top_k;
    double temperature;
  } cases[] = {{0, 1}, {0, 0.7}, {20, 0.8}, {5, 2}};
  for (int i = 0; i < 4; ++i) {
    random_step_t step = plain_step(100);
    int32_t *w = step_sampling(&step, 0);
    int degrees;
    w[MLX_SAMPLING_TOP_K] = cases[i].top_k;
    w[MLX_SAMPLING_TEMPERATURE] = step_float(cases[i].temperature);
    const double x = chi_square(&step, cases[i].temperature, cases[i].top_k ? cases[i].top_k : 100, &degrees);
    fprintf(stderr, "  top-k %d, temperature %g: chi-square %.1f, %d degrees of freedom\n", cases[i].top_k,
            cases[i].temperature, x, degrees);
    CHECK(x < degrees + 4 * sqrt(2.0 * degrees) && x > degrees - 4 * sqrt(2.0 * degrees));
    random_step_free(&step);
  }
}

TEST(extreme_options_give_the_tokens_that_they_must) {
  random_step_t step = plain_step(100);
  int32_t *w = step_sampling(&step, 0), best = 0;
  bool seen[100] = {false};
  int distinct = 0;
  for (int32_t i = 1; i < 100; ++i) best = step.logits[i] > step.logits[best] ? i : best;
  w[MLX_SAMPLING_TEMPERATURE] = step_float(1e-3);
  CHECK_INT(sample(&step, 0), best);
  w[MLX_SAMPLING_TEMPERATURE] = step_float(1e6);
  for (int32_t i = 0; i < 2000; ++i) {
    w[MLX_SAMPLING_SEED_HIGH] = i;
    const int32_t token = sample(&step, 0);
    distinct += !seen[token];
    seen[token] = true;
  }
  CHECK_INT(distinct, 100);  // nearly uniform
  w[MLX_SAMPLING_TOP_P] = 0;
  CHECK_INT(sample(&step, 0), best);
  w[MLX_SAMPLING_TOP_P] = step_float(1);
  w[MLX_SAMPLING_MIN_P] = step_float(1);
  CHECK_INT(sample(&step, 0), best);
  w[MLX_SAMPLING_MIN_P] = 0;
  w[MLX_SAMPLING_MASK_AT] = (int32_t)step.words - 4;  // the biases, which are not used
  memset(step.batch + step.words - 4, 0, 4 * sizeof *step.batch);
  CHECK_INT(sample(&step, 0), -1);
  step.batch[step.words - 4] = 1 << 7;
  CHECK_INT(sample(&step, 0), 7);
  w[MLX_SAMPLING_MASK_AT] = (int32_t)step.words - 3;  // not inside the batch: no mask
  w[MLX_SAMPLING_BIAS_AT] = (int32_t)step.words - 1;
  w[MLX_SAMPLING_BIAS_COUNT] = 1;
  w[MLX_SAMPLING_TEMPERATURE] = 0;
  CHECK_INT(sample(&step, 0), best);
  random_step_free(&step);
}

TEST(a_token_depends_on_seed_and_position_only) {
  random_step_t step = plain_step(100);
  int32_t *w = step_sampling(&step, 0), *position = &step.batch[step.batch[MLX_STEP_AT_POSITIONS]];
  int32_t forward[64], backward[64], other[64];
  for (int32_t i = 0; i < 64; ++i) forward[i] = (*position = i, sample(&step, 0));
  for (int32_t i = 64; i-- > 0;) backward[i] = (*position = i, sample(&step, 0));
  w[MLX_SAMPLING_SEED_HIGH] = 1;
  for (int32_t i = 0; i < 64; ++i) other[i] = (*position = i, sample(&step, 0));
  CHECK(!memcmp(forward, backward, sizeof forward) && memcmp(forward, other, sizeof forward));
  random_step_free(&step);
}

TEST_MAIN(CASE(every_row_matches_the_definition_bit_for_bit),
          CASE(exp_is_exact_to_2e_7_and_does_not_decrease),
          CASE(candidates_have_the_order_of_scores_then_of_ids), CASE(tokens_follow_the_probabilities),
          CASE(extreme_options_give_the_tokens_that_they_must),
          CASE(a_token_depends_on_seed_and_position_only))
