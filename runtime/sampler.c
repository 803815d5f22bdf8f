// The steps of llama.cpp's sampler chain, in its order. Biases and penalties change the scores of the whole
// vocabulary. Then kernels/sample_row.h samples, as devices do. XTC and Mirostat are only here: they work on
// a sorted list of candidates.
#include "runtime/sampler.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/text.h"
#include "kernels/sample_row.h"
#include "runtime/exact_math.h"

#define MIROSTAT_M 100  // Mirostat 1: candidates used to estimate the exponent of Zipf's law

struct mlx_sampler {
  mlx_sampling_t options;
  mlx_sample_options_t device;  // the options that devices know, as they read them
  mlx_logit_bias_t *biases;     // owned
  char **breakers;              // owned
  size_t vocab, penalty_window, dry_window;
  mlx_sample_row_t row;         // |scores|, and the scratch memory of kernels/sample_row.h
  void *scratch;                // owned
  float *scores;                // [vocab]
  uint64_t *candidates;         // [vocab] mlx_sample_pack, best first
  mlx_sampler_token_t *tokens;  // [vocab] result of mlx_sampler_filter
  size_t count;                 // candidates that remain
  int32_t *seen;     // [vocab] scratch of the penalties: a token's count or repeat length; 0 between uses
  int32_t *history;  // accepted tokens, as far back as a window reaches
  size_t history_count, history_capacity;
  uint64_t position;     // number of accepted tokens: the position of the next one
  size_t since_breaker;  // tokens since the last sequence breaker
  mlx_text_t tail;       // the end of the text, long enough to hold the start of any breaker
  size_t longest_breaker;
  uint32_t *repeats;  // [repeats_capacity] scratch of DRY
  size_t repeats_capacity;
  double mu;  // Mirostat: the current surprise limit, in bits
};

// ----------------------------------------------------------------------------------------------------------
// Options

void mlx_sampling_initialize(mlx_sampling_t *out) {
  static const char *const breakers[] = {"\n", ":", "\"", "*"};
  *out = (mlx_sampling_t){.repeat_last_n = 64,
                          .repeat_penalty = 1,
                          .dry_base = 1.75,
                          .dry_allowed_length = 2,
                          .dry_last_n = -1,
                          .dry_breakers = breakers,
                          .dry_breaker_count = 4,
                          .top_n_sigma = -1,
                          .top_k = 40,
                          .typical_p = 1,
                          .top_p = 0.95,
                          .min_p = 0.05,
                          .xtc_threshold = 0.1,
                          .temperature = 0.8,
                          .mirostat_tau = 5,
                          .mirostat_eta = 0.1};
}

void mlx_sampling_initialize_greedy(mlx_sampling_t *out) {
  mlx_sampling_initialize(out);
  out->temperature = 0;
}

static bool has_penalties(const mlx_sampling_t *o) {
  return o->repeat_last_n &&
         (o->repeat_penalty != 1 || o->frequency_penalty != 0 || o->presence_penalty != 0);
}
static bool has_dry(const mlx_sampling_t *o) { return o->dry_last_n && o->dry_multiplier > 0; }
static bool has_xtc(const mlx_sampling_t *o) { return o->xtc_probability > 0 && o->xtc_threshold <= 0.5; }

static int32_t float_word(double value) { return (int32_t)mlx_float_bits((float)value); }

bool mlx_sampling_runs_on_device(const mlx_sampling_t *o) {
  return !o->mirostat && !has_dry(o) && !has_xtc(o) && o->top_n_sigma <= 0;
}

void mlx_sampling_to_words(const mlx_sampling_t *o, int64_t context, int32_t *words) {
  memset(words, 0, MLX_SAMPLING_WORDS * sizeof *words);
  words[MLX_SAMPLING_FLAGS] = MLX_SAMPLE_TOKEN;
  words[MLX_SAMPLING_BIAS_COUNT] = (int32_t)o->bias_count;
  if (has_penalties(o)) {
    const int64_t window = o->repeat_last_n < 0 ? context : o->repeat_last_n;
    words[MLX_SAMPLING_WINDOW] = (int32_t)(window < INT32_MAX ? window : INT32_MAX);
  }
  words[MLX_SAMPLING_REPEAT] = float_word(o->repeat_penalty);
  words[MLX_SAMPLING_FREQUENCY] = float_word(o->frequency_penalty);
  words[MLX_SAMPLING_PRESENCE] = float_word(o->presence_penalty);
  words[MLX_SAMPLING_TOP_K] = (int32_t)(o->top_k <= 0 ? 0 : o->top_k < INT32_MAX ? o->top_k : INT32_MAX);
  words[MLX_SAMPLING_TYPICAL_P] = float_word(o->typical_p);
  words[MLX_SAMPLING_TOP_P] = float_word(o->top_p);
  words[MLX_SAMPLING_MIN_P] = float_word(o->min_p);
  words[MLX_SAMPLING_TEMPERATURE] = float_word(o->temperature);
  words[MLX_SAMPLING_SEED_LOW] = (int32_t)(uint32_t)o->seed;
  words[MLX_SAMPLING_SEED_HIGH] = (int32_t)(uint32_t)(o->seed >> 32);
}

void mlx_sampling_biases_to_words(const mlx_sampling_t *o, int32_t *words) {
  for (size_t i = 0; i < o->bias_count; ++i) {
    words[2 * i] = o->biases[i].id;
    words[2 * i + 1] = float_word(o->biases[i].bias);
  }
}

static mlx_status_t range_error(const char *flag, const char *expected, double value) {
  return mlx_status_hint(mlx_error(MLX_USAGE, "%s expects %s, not %g", flag, expected, value),
                         "see docs/sampling.md");
}

mlx_status_t mlx_sampling_check(const mlx_sampling_t *o) {
  const struct {
    const char *flag;
    double value, min, max;
    const char *expected;
  } ranges[] = {
      {"--temp", o->temperature, 0, 1e6, "a number of 0 or more"},
      {"--top-p", o->top_p, 0, 1, "a number from 0 to 1"},
      {"--min-p", o->min_p, 0, 1, "a number from 0 to 1"},
      {"--typical", o->typical_p, 0, 1, "a number from 0 to 1"},
      {"--repeat-penalty", o->repeat_penalty, 1e-6, 1e6, "a number above 0"},
      {"--frequency-penalty", o->frequency_penalty, -1e6, 1e6, "a number"},
      {"--presence-penalty", o->presence_penalty, -1e6, 1e6, "a number"},
      {"--repeat-last-n", (double)o->repeat_last_n, -1, 1e9, "-1, 0 or a number of tokens"},
      {"--dry-multiplier", o->dry_multiplier, 0, 1e6, "a number of 0 or more"},
      {"--dry-base", o->dry_base, 1, 1e6, "a number of 1 or more"},
      {"--dry-allowed-length", (double)o->dry_allowed_length, 1, 1e9, "a number of 1 or more"},
      {"--dry-penalty-last-n", (double)o->dry_last_n, -1, 1e9, "-1, 0 or a number of tokens"},
      {"--top-nsigma", o->top_n_sigma, -1e6, 1e6, "a number"},
      {"--xtc-probability", o->xtc_probability, 0, 1, "a number from 0 to 1"},
      {"--xtc-threshold", o->xtc_threshold, 0, 1, "a number from 0 to 1"},
      {"--mirostat", (double)o->mirostat, 0, 2, "0, 1 or 2"},
      {"--mirostat-ent", o->mirostat_tau, 0, 1e6, "a number of 0 or more"},
      {"--mirostat-lr", o->mirostat_eta, 0, 1e6, "a number of 0 or more"},
  };
  for (size_t i = 0; i < sizeof ranges / sizeof *ranges; ++i) {
    if (!(ranges[i].value >= ranges[i].min && ranges[i].value <= ranges[i].max)) {
      return range_error(ranges[i].flag, ranges[i].expected, ranges[i].value);
    }
  }
  for (size_t i = 0; i < o->bias_count; ++i) {
    if (isnan(o->biases[i].bias) || o->biases[i].bias == INFINITY) {
      return range_error("--logit-bias", "a finite bias, or -inf", o->biases[i].bias);
    }
  }
  return NULL;
}

mlx_status_t mlx_sampling_check_biases(const mlx_sampling_t *o, size_t vocab) {
  for (size_t i = 0; i < o->bias_count; ++i) {
    if (o->biases[i].id >= 0 && (size_t)o->biases[i].id < vocab) continue;
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "--logit-bias names token %d; the vocabulary has %zu tokens, from 0 to %zu",
                  o->biases[i].id, vocab, vocab - 1),
        "mlxcel tokenize MODEL TEXT prints token ids");
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Creating

static size_t window_of(int64_t last_n, int64_t context) { return (size_t)(last_n < 0 ? context : last_n); }

static mlx_status_t copy_options(mlx_sampler_t *s) {
  mlx_sampling_t *o = &s->options;
  MLX_TRY(mlx_alloc(o->bias_count, sizeof *s->biases, &s->biases));
  if (o->bias_count) memcpy(s->biases, o->biases, o->bias_count * sizeof *s->biases);
  o->biases = s->biases;
  MLX_TRY(mlx_alloc(o->dry_breaker_count, sizeof *s->breakers, &s->breakers));
  for (size_t i = 0; i < o->dry_breaker_count; ++i) {
    const size_t length = strlen(o->dry_breakers[i]);
    MLX_TRY(mlx_copy_text(o->dry_breakers[i], length, &s->breakers[i]));
    if (length > s->longest_breaker) s->longest_breaker = length;
  }
  o->dry_breakers = (const char *const *)s->breakers;
  return NULL;
}

mlx_status_t mlx_sampler_create(const mlx_sampling_t *options, size_t vocab, int64_t context,
                                mlx_sampler_t **out) {
  *out = NULL;
  MLX_TRY(mlx_sampling_check(options));
  MLX_TRY(mlx_sampling_check_biases(options, vocab));
  mlx_sampler_t *s;
  MLX_TRY(mlx_alloc(1, sizeof *s, &s));
  int32_t words[MLX_SAMPLING_WORDS];
  mlx_sampling_to_words(options, context, words);
  s->device = mlx_sample_read(words);
  s->options = *options;
  s->vocab = vocab;
  s->penalty_window = has_penalties(options) ? window_of(options->repeat_last_n, context) : 0;
  s->dry_window = has_dry(options) ? window_of(options->dry_last_n, context) : 0;
  s->mu = 2 * options->mirostat_tau;
  mlx_status_t status = copy_options(s);
  if (!status) status = mlx_alloc(vocab, sizeof *s->scores, &s->scores);
  if (!status) status = mlx_alloc(vocab, sizeof *s->candidates, &s->candidates);
  if (!status) status = mlx_alloc(vocab, sizeof *s->tokens, &s->tokens);
  if (!status) status = mlx_alloc(vocab, sizeof *s->seen, &s->seen);
  if (!status) status = mlx_alloc(1, MLX_SAMPLE_SCRATCH_BYTES(vocab), &s->scratch);
  if (status) {
    mlx_sampler_free(s);
    return status;
  }
  s->row = mlx_sample_row_of(s->scores, (int32_t)vocab, s->scratch);
  *out = s;
  return NULL;
}

void mlx_sampler_free(mlx_sampler_t *s) {
  if (!s) return;
  for (size_t i = 0; s->breakers && i < s->options.dry_breaker_count; ++i) mlx_free(s->breakers[i]);
  mlx_free(s->breakers);
  mlx_free(s->biases);
  mlx_free(s->scores);
  mlx_free(s->candidates);
  mlx_free(s->tokens);
  mlx_free(s->scratch);
  mlx_free(s->seen);
  mlx_free(s->history);
  mlx_free(s->repeats);
  mlx_text_clear(&s->tail);
  mlx_free(s);
}

// ----------------------------------------------------------------------------------------------------------
// History

// Appends |piece| to the tail. *out is true if a sequence breaker ends inside it; the breaker may span
// several tokens.
static mlx_status_t find_breaker(mlx_sampler_t *s, const char *piece, size_t length, bool *out) {
  *out = false;
  const size_t before = s->tail.length;
  mlx_text_append(&s->tail, piece, length);
  MLX_TRY(mlx_text_finish(&s->tail));
  for (size_t i = 0; i < s->options.dry_breaker_count && !*out; ++i) {
    const size_t size = strlen(s->breakers[i]), from = before + 1 > size ? before + 1 - size : 0;
    *out = size && length && memmem(s->tail.data + from, s->tail.length - from, s->breakers[i], size);
  }
  const size_t keep = s->longest_breaker ? s->longest_breaker - 1 : 0;
  if (s->tail.length > keep) {
    memmove(s->tail.data, s->tail.data + s->tail.length - keep, keep);
    s->tail.length = keep;
  }
  return NULL;
}

mlx_status_t mlx_sampler_accept(mlx_sampler_t *s, int32_t id, const char *piece, size_t length) {
  if (id < 0 || (size_t)id >= s->vocab)
    return mlx_error(MLX_INTERNAL, "token %d is outside the vocabulary of %zu", id, s->vocab);
  if (s->dry_window) {
    bool breaks;
    MLX_TRY(find_breaker(s, piece, length, &breaks));
    s->since_breaker = breaks ? 0 : s->since_breaker + 1;
  }
  ++s->position;
  const size_t window = s->penalty_window > s->dry_window ? s->penalty_window : s->dry_window;
  if (!window) return NULL;
  if (s->history_count >= 2 * window) {  // older tokens are out of reach
    memmove(s->history, s->history + s->history_count - window, window * sizeof *s->history);
    s->history_count = window;
  }
  MLX_TRY(mlx_reserve(s->history_count + 1, sizeof *s->history, &s->history_capacity, &s->history));
  s->history[s->history_count++] = id;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Steps on the scores of the whole vocabulary

static void apply_penalties(mlx_sampler_t *s) {
  const mlx_sampling_t *o = &s->options;
  const size_t count = s->history_count < s->penalty_window ? s->history_count : s->penalty_window;
  const int32_t *window = s->history + s->history_count - count;
  for (size_t i = 0; i < count; ++i) ++s->seen[window[i]];
  for (size_t i = 0; i < count; ++i) {
    const int32_t times = s->seen[window[i]];
    if (!times) continue;  // an earlier occurrence was handled
    float *score = &s->scores[window[i]];
    *score = mlx_sample_penalize(*score, times, (float)o->repeat_penalty, (float)o->frequency_penalty,
                                 (float)o->presence_penalty);
    s->seen[window[i]] = 0;
  }
}

// Sets repeats[i] to the length of the longest common suffix of the history and of the history without its
// last i tokens. This is Gusfield's Z algorithm, run backwards from |end|.
static void measure_repeats(const int32_t *end, size_t count, uint32_t *repeats) {
  size_t left = 0, right = 0;
  repeats[0] = 0;
  for (size_t i = 1; i < count; ++i) {
    size_t length = i < right ? repeats[i - left] : 0;
    if (i + length > right) length = right > i ? right - i : 0;
    while (i + length < count && end[-1 - (ptrdiff_t)length] == end[-1 - (ptrdiff_t)(i + length)]) ++length;
    repeats[i] = (uint32_t)length;
    if (i + length > right) {
      left = i;
      right = i + length;
    }
  }
}

// DRY: a token that would extend a repetition of n tokens loses multiplier * base^(n - allowed) of its score.
// n is the longest repetition that the token would extend.
static mlx_status_t apply_dry(mlx_sampler_t *s) {
  const mlx_sampling_t *o = &s->options;
  const size_t count = s->history_count < s->dry_window ? s->history_count : s->dry_window;
  const size_t allowed = (size_t)o->dry_allowed_length,
               limit = s->since_breaker < count ? s->since_breaker : count;
  if (count <= allowed || limit < allowed) return NULL;
  MLX_TRY(mlx_reserve(count, sizeof *s->repeats, &s->repeats_capacity, &s->repeats));
  const int32_t *end = s->history + s->history_count;
  measure_repeats(end, count, s->repeats);
  for (size_t i = 1; i < count; ++i) {
    const size_t length = s->repeats[i] < limit ? s->repeats[i] : limit;
    int32_t *longest = &s->seen[end[-(ptrdiff_t)i]];
    if (length >= allowed && (int32_t)length > *longest) *longest = (int32_t)length;
  }
  for (size_t i = 1; i < count; ++i) {
    const int32_t id = end[-(ptrdiff_t)i];
    if (!s->seen[id]) continue;
    double penalty = o->dry_multiplier;
    for (size_t n = allowed; n < (size_t)s->seen[id] && penalty < FLT_MAX; ++n) penalty *= o->dry_base;
    s->scores[id] = (float)((double)s->scores[id] - (penalty < FLT_MAX ? penalty : FLT_MAX));
    s->seen[id] = 0;
  }
  return NULL;
}

// Top-n-sigma: removes scores more than n standard deviations below the largest.
static void apply_top_n_sigma(mlx_sampler_t *s) {
  double sum = 0, squares = 0, largest = -INFINITY;
  size_t count = 0;
  for (size_t i = 0; i < s->vocab; ++i) {
    if (!isfinite(s->scores[i])) continue;
    sum += (double)s->scores[i];
    if ((double)s->scores[i] > largest) largest = (double)s->scores[i];
    ++count;
  }
  const double mean = count ? sum / (double)count : 0;
  for (size_t i = 0; i < s->vocab; ++i) {
    const double distance = (double)s->scores[i] - mean;
    if (isfinite(s->scores[i])) squares += distance * distance;
  }
  const double min_score = largest - s->options.top_n_sigma * sqrt(count ? squares / (double)count : 0);
  for (size_t i = 0; i < s->vocab; ++i) {
    if ((double)s->scores[i] < min_score) s->scores[i] = -INFINITY;
  }
}

static mlx_status_t score_all(mlx_sampler_t *s, const float *logits, const uint64_t *allowed) {
  const mlx_sampling_t *o = &s->options;
  for (size_t i = 0; i < s->vocab; ++i) {
    const bool may = !allowed || (allowed[i / 64] >> i % 64 & 1);
    s->scores[i] = may && isfinite(logits[i]) ? logits[i] : -INFINITY;
  }
  for (size_t i = 0; i < o->bias_count; ++i) s->scores[o->biases[i].id] += (float)o->biases[i].bias;
  if (o->mirostat) return NULL;
  if (s->penalty_window) apply_penalties(s);
  if (s->dry_window) MLX_TRY(apply_dry(s));
  if (o->top_n_sigma > 0) apply_top_n_sigma(s);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Steps on the candidates

static int compare_descending(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x > y ? -1 : x < y;
}
static int compare_ids(const void *a, const void *b) {
  const int32_t x = mlx_sample_id(*(const uint64_t *)a), y = mlx_sample_id(*(const uint64_t *)b);
  return x < y ? -1 : x > y;
}
static void sort(mlx_sampler_t *s) {
  qsort(s->candidates, s->count, sizeof *s->candidates, compare_descending);
}

// Lists the |k| best tokens (0: all), best first.
static void list_candidates(mlx_sampler_t *s, size_t k) {
  const mlx_sample_filter_t all = {0};
  const uint64_t least = k ? mlx_sample_select(&s->row, &all, MLX_BY_COUNT, k) : 0;
  s->count = 0;
  for (size_t i = 0; i < s->vocab; ++i) {
    const uint64_t candidate = mlx_sample_pack(s->scores[i], (int32_t)i);
    if (candidate && candidate >= least) s->candidates[s->count++] = candidate;
  }
  sort(s);
}

static float score_of(const mlx_sampler_t *s, size_t nth) { return mlx_sample_score(s->candidates[nth]); }
// The score less that of |best|.
static float distance(const mlx_sampler_t *s, size_t nth, float best) { return score_of(s, nth) - best; }

// The weight of a candidate at temperature 1, and the sum of all.
static uint64_t weight_of(const mlx_sampler_t *s, size_t nth, float best) {
  return mlx_sample_weight(distance(s, nth, best));
}
static uint64_t total_weight(const mlx_sampler_t *s, float best) {
  uint64_t total = 0;
  for (size_t i = 0; i < s->count; ++i) total += weight_of(s, i, best);
  return total;
}

// Locally typical sampling: keeps the tokens whose surprise is closest to the entropy, up to total
// probability p.
static void keep_typical(mlx_sampler_t *s, float p) {
  const float best = score_of(s, 0);
  const uint64_t total = total_weight(s, best), need = mlx_sample_typical_need(p, total);
  uint64_t surprises = 0, sum = 0;
  for (size_t i = 0; i < s->count; ++i) surprises += mlx_sample_surprise(distance(s, i, best));
  const float mean = mlx_sample_mean_surprise(surprises, total);
  for (size_t i = 0; i < s->count; ++i) {  // sort by nearness; |scores| has the score
    s->candidates[i] = mlx_sample_nearness(distance(s, i, best), mean, mlx_sample_id(s->candidates[i]));
  }
  sort(s);
  size_t kept = 0;
  while (kept < s->count && sum < need) {
    const int32_t id = mlx_sample_id(s->candidates[kept]);
    s->candidates[kept] = mlx_sample_pack(s->scores[id], id);
    sum += weight_of(s, kept++, best);
  }
  s->count = kept;
  sort(s);
}

// Nucleus sampling: keeps the smallest set of tokens with total probability p. |best| is the best score
// before any filter.
static void keep_top_p(mlx_sampler_t *s, float p, float best) {
  const uint64_t need = mlx_sample_top_p_need(p, total_weight(s, best));
  uint64_t sum = 0;
  size_t kept = 0;
  while (kept < s->count && sum < need) sum += weight_of(s, kept++, best);
  s->count = kept;
}

// Keeps the tokens with at least p times the probability of the most likely one.
static void keep_min_p(mlx_sampler_t *s, float p) {
  const float min_score = mlx_sample_min_score(score_of(s, 0), p);
  while (s->count > 1 && score_of(s, s->count - 1) < min_score) --s->count;
}

static double random_unit(const mlx_sampler_t *s,
                          uint64_t nth) {  // uniform in [0, 1), from the upper 53 bits
  return (double)(mlx_sample_random(s->options.seed, s->position, nth) >> 11) * 0x1p-53;
}

// XTC (exclude top choices): with probability xtc_probability, removes all tokens above the threshold except
// the least likely of them.
static void apply_xtc(mlx_sampler_t *s) {
  if (s->count < 2 || random_unit(s, 1) > s->options.xtc_probability) return;
  const float best = score_of(s, 0);
  const double total = (double)total_weight(s, best);
  size_t over = 0;
  while (over < s->count && (double)weight_of(s, over, best) / total >= s->options.xtc_threshold) ++over;
  if (over < 2) return;
  s->count -= over - 1;
  memmove(s->candidates, s->candidates + over - 1, s->count * sizeof *s->candidates);
}

// Mirostat 1: the number of candidates whose expected surprise is mu, if the distribution follows Zipf's law
// with the exponent estimated here.
static size_t mirostat_count(const mlx_sampler_t *s) {
  double products = 0, squares = 0;
  for (size_t i = 0; i + 1 < s->count && i + 1 < MIROSTAT_M; ++i) {
    const double t = mlx_log((double)(i + 2) / (double)(i + 1));
    products += t * (double)(s->tokens[i].score - s->tokens[i + 1].score);
    squares += t * t;
  }
  const double exponent = products / squares, epsilon = exponent - 1;
  const double k =
      mlx_pow(epsilon * mlx_pow(2, s->mu) / (1 - mlx_pow((double)s->vocab, -epsilon)), 1 / exponent);
  return !(k < (double)s->count) ? s->count : k < 1 ? 1 : (size_t)k;
}

// Fills |tokens| with the scores and probabilities of the candidates at the temperature.
static void apply_temperature(mlx_sampler_t *s) {
  const float temperature = s->device.temperature, best = score_of(s, 0);
  const bool greedy = temperature == 0;
  double total = 0;
  if (greedy) s->count = 1;
  for (size_t i = 0; i < s->count; ++i) {
    const float tempered = greedy ? 0 : mlx_sample_tempered(score_of(s, i), best, temperature);
    s->tokens[i] = (mlx_sampler_token_t){
        .id = mlx_sample_id(s->candidates[i]), .score = tempered, .weight = mlx_sample_weight(tempered)};
    total += (double)s->tokens[i].weight;
  }
  for (size_t i = 0; i < s->count; ++i) s->tokens[i].probability = (double)s->tokens[i].weight / total;
}

static void keep_mirostat(mlx_sampler_t *s) {
  apply_temperature(s);
  if (s->options.mirostat == 1) {
    if (s->count > 1) s->count = mirostat_count(s);
    return;
  }
  const double min_probability = mlx_pow(2, -s->mu);
  while (s->count > 1 && s->tokens[s->count - 1].probability < min_probability) --s->count;
}

// ----------------------------------------------------------------------------------------------------------
// The chain

static mlx_status_t no_candidate(void) {
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "no token is left to sample from"),
                         "the biases or the grammar exclude every token, or the model's logits are not "
                         "finite; relax the options");
}

static mlx_status_t filter(mlx_sampler_t *s) {
  const mlx_sample_options_t *o = &s->device;
  list_candidates(s, s->options.mirostat ? 0 : (size_t)o->top_k);
  if (!s->count) return no_candidate();
  const float best = score_of(s, 0);
  if (s->options.mirostat) {
    keep_mirostat(s);
  } else {
    if (o->typical_p < 1) keep_typical(s, o->typical_p);
    if (o->top_p < 1) keep_top_p(s, o->top_p, best);
    if (o->min_p > 0) keep_min_p(s, o->min_p);
    if (has_xtc(&s->options)) apply_xtc(s);
  }
  apply_temperature(s);
  return NULL;
}

mlx_status_t mlx_sampler_filter(mlx_sampler_t *s, const float *logits, const uint64_t *allowed,
                                const mlx_sampler_token_t **out_tokens, size_t *out_count) {
  MLX_TRY(score_all(s, logits, allowed));
  MLX_TRY(filter(s));
  *out_tokens = s->tokens;
  *out_count = s->count;
  return NULL;
}

// Draws one of the listed candidates, in the order of their IDs.
static uint64_t draw(mlx_sampler_t *s) {
  const float best = score_of(s, 0), temperature = s->device.temperature;
  if (temperature == 0) return s->candidates[0];
  uint64_t total = 0;
  for (size_t i = 0; i < s->count; ++i) total += s->tokens[i].weight;
  uint64_t target = mlx_sample_target(mlx_sample_random(s->options.seed, s->position, 0), total);
  qsort(s->candidates, s->count, sizeof *s->candidates, compare_ids);
  for (size_t i = 0; i < s->count; ++i) {
    const uint64_t weight = mlx_sample_weight(mlx_sample_tempered(score_of(s, i), best, temperature));
    if (target < weight) return s->candidates[i];
    target -= weight;
  }
  return 0;
}

// |lists|: |tokens| has the candidates.
static mlx_status_t sample(mlx_sampler_t *s, const float *logits, const uint64_t *allowed, bool lists,
                           int32_t *out_id) {
  MLX_TRY(score_all(s, logits, allowed));
  uint64_t drawn;
  if (lists || s->options.mirostat || has_xtc(&s->options)) {
    MLX_TRY(filter(s));
    drawn = draw(s);
  } else {
    mlx_sample_fill_blocks(&s->row);
    drawn = mlx_sample_scores(&s->row, &s->device, (int32_t)s->position);
  }
  if (!drawn) return no_candidate();
  *out_id = mlx_sample_id(drawn);
  for (size_t i = 0; s->options.mirostat && i < s->count; ++i) {
    if (s->tokens[i].id != *out_id) continue;
    const double surprise = -mlx_log(s->tokens[i].probability) / mlx_log(2);
    s->mu -= s->options.mirostat_eta * (surprise - s->options.mirostat_tau);
  }
  return NULL;
}

mlx_status_t mlx_sampler_sample(mlx_sampler_t *s, const float *logits, const uint64_t *allowed,
                                int32_t *out_id) {
  return sample(s, logits, allowed, false, out_id);
}

mlx_status_t mlx_sampler_sample_listed(mlx_sampler_t *s, const float *logits, const uint64_t *allowed,
                                       int32_t *out_id, const mlx_sampler_token_t **out_tokens,
                                       size_t *out_count) {
  MLX_TRY(sample(s, logits, allowed, true, out_id));
  *out_tokens = s->tokens;
  *out_count = s->count;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Log-probabilities

mlx_status_t mlx_logprobs(const float *logits, size_t vocab, int32_t chosen, size_t count,
                          mlx_logprob_t *out) {
  if (count > vocab)
    return mlx_error(MLX_USAGE, "--logprobs %zu: the model has only %zu tokens", count, vocab);
  if (chosen < 0 || (size_t)chosen >= vocab)
    return mlx_error(MLX_INTERNAL, "token %d is outside the vocabulary of %zu", chosen, vocab);
  uint64_t best = 0;
  for (size_t i = 0; i < vocab; ++i) {
    const uint64_t candidate = mlx_sample_pack(logits[i], (int32_t)i);
    best = candidate > best ? candidate : best;
  }
  const float largest = mlx_sample_score(best);
  const uint64_t total =
      mlx_sample_row_total(&(mlx_sample_row_t){.scores = logits, .vocab = (int32_t)vocab}, largest);
  size_t filled = 0;
  for (size_t i = 0; i < vocab && count; ++i) {  // insertion sort: |count| is small
    const uint64_t candidate = mlx_sample_pack(logits[i], (int32_t)i);
    if (filled == count && candidate <= mlx_sample_pack(logits[out[count - 1].id], out[count - 1].id))
      continue;
    size_t at = filled < count ? filled++ : count - 1;
    for (; at > 0 && mlx_sample_pack(logits[out[at - 1].id], out[at - 1].id) < candidate; --at)
      out[at] = out[at - 1];
    out[at] = (mlx_logprob_t){(int32_t)i, (double)mlx_sample_logprob(logits[i], largest, total)};
  }
  out[count] = (mlx_logprob_t){chosen, (double)mlx_sample_logprob(logits[chosen], largest, total)};
  return NULL;
}
