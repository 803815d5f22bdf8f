// The sampler against slow reference implementations, written directly from the definition of each step.
#include <math.h>

#include "base/memory.h"
#include "kernels/sample_row.h"
#include "runtime/exact_math.h"
#include "runtime/sampler.h"
#include "tests/support/check.h"
#include "tests/support/random_numbers.h"

#define VOCAB 500
#define ROUNDS 300
#define TOLERANCE 1e-6  // of probabilities: scores and their exp are f32

static uint64_t numbers = 1;  // state of the random numbers of these tests

static void random_logits(float *out, double spread) {
  for (int i = 0; i < VOCAB; ++i) {
    double sum = 0;
    for (int j = 0; j < 6; ++j) sum += random_unit(&numbers) - 0.5;
    out[i] = (float)(sum * spread);
  }
}

static mlx_sampling_t everything_off(void) {
  mlx_sampling_t options;
  mlx_sampling_initialize(&options);
  options.top_k = 0;
  options.top_p = 1;
  options.min_p = 0;
  options.temperature = 1;
  options.seed = 7;
  return options;
}

// ----------------------------------------------------------------------------------------------------------
// Reference: a probability for every token, 0 for removed tokens

typedef struct reference {
  double p[VOCAB];
} reference_t;

static void reference_normalize(reference_t *reference) {
  double sum = 0;
  for (int i = 0; i < VOCAB; ++i) sum += reference->p[i];
  for (int i = 0; i < VOCAB; ++i) reference->p[i] /= sum;
}

static reference_t reference_softmax(const float *logits) {
  reference_t reference;
  for (int i = 0; i < VOCAB; ++i) reference.p[i] = exp((double)logits[i]);
  reference_normalize(&reference);
  return reference;
}

// The number of tokens that are more likely than |id|.
static int reference_rank(const reference_t *reference, int id) {
  int rank = 0;
  for (int i = 0; i < VOCAB; ++i)
    rank += reference->p[i] > reference->p[id] || (reference->p[i] == reference->p[id] && i < id);
  return rank;
}

// The total probability of the tokens that are more likely than |id|.
static double reference_mass_above(const reference_t *reference, int id) {
  double sum = 0;
  for (int i = 0; i < VOCAB; ++i) sum += reference->p[i] > reference->p[id] ? reference->p[i] : 0;
  return sum;
}

static void reference_keep(reference_t *reference, const bool *keep) {
  for (int i = 0; i < VOCAB; ++i) reference->p[i] = keep[i] ? reference->p[i] : 0;
  reference_normalize(reference);
}

static void reference_top_k(reference_t *reference, int k) {
  bool keep[VOCAB];
  for (int i = 0; i < VOCAB; ++i) keep[i] = reference_rank(reference, i) < k;
  reference_keep(reference, keep);
}

static void reference_top_p(reference_t *reference, double p) {
  bool keep[VOCAB];
  for (int i = 0; i < VOCAB; ++i) keep[i] = reference->p[i] > 0 && reference_mass_above(reference, i) < p;
  reference_keep(reference, keep);
}

static void reference_min_p(reference_t *reference, double p) {
  bool keep[VOCAB];
  double largest = 0;
  for (int i = 0; i < VOCAB; ++i) largest = fmax(largest, reference->p[i]);
  for (int i = 0; i < VOCAB; ++i) keep[i] = reference->p[i] >= p * largest;
  reference_keep(reference, keep);
}

static void reference_typical(reference_t *reference, double p) {
  bool keep[VOCAB];
  double entropy = 0, distance[VOCAB];
  for (int i = 0; i < VOCAB; ++i) entropy -= reference->p[i] > 0 ? reference->p[i] * log(reference->p[i]) : 0;
  for (int i = 0; i < VOCAB; ++i)
    distance[i] = reference->p[i] > 0 ? fabs(-log(reference->p[i]) - entropy) : INFINITY;
  for (int i = 0; i < VOCAB; ++i) {
    double nearer = 0;
    for (int j = 0; j < VOCAB; ++j) nearer += distance[j] < distance[i] ? reference->p[j] : 0;
    keep[i] = reference->p[i] > 0 && nearer <= p;
  }
  reference_keep(reference, keep);
}

static void reference_temperature(reference_t *reference, double t) {
  for (int i = 0; i < VOCAB; ++i) reference->p[i] = reference->p[i] > 0 ? pow(reference->p[i], 1 / t) : 0;
  reference_normalize(reference);
}

static void check_same(mlx_sampler_t *sampler, const float *logits, const uint64_t *allowed,
                       const reference_t *reference) {
  const mlx_sampler_token_t *tokens;
  size_t count, expected = 0;
  CHECK_OK(mlx_sampler_filter(sampler, logits, allowed, &tokens, &count));
  for (int i = 0; i < VOCAB; ++i) expected += reference->p[i] > 0;
  CHECK_INT(count, expected);
  for (size_t i = 0; i < count; ++i) {
    if (fabs(tokens[i].probability - reference->p[tokens[i].id]) > TOLERANCE) {
      CHECK_FAIL("token %d has probability %.17g, expected %.17g", tokens[i].id, tokens[i].probability,
                 reference->p[tokens[i].id]);
    }
    CHECK(!i || tokens[i - 1].probability >= tokens[i].probability);
  }
}

static void check_options(const mlx_sampling_t *options, const float *logits, const reference_t *reference) {
  mlx_sampler_t *sampler;
  CHECK_OK(mlx_sampler_create(options, VOCAB, 2048, &sampler));
  check_same(sampler, logits, NULL, reference);
  mlx_sampler_free(sampler);
}

// ----------------------------------------------------------------------------------------------------------

TEST(exp_and_log_match_libm_within_two_ulp) {
  for (int i = 0; i < 200000; ++i) {
    const double x = (random_unit(&numbers) - 0.5) * 1400, y = mlx_exp((random_unit(&numbers) - 0.5) * 1400);
    if (fabs(mlx_exp(x) / exp(x) - 1) > 5e-16)
      CHECK_FAIL("exp(%.17g) is %.17g, libm gives %.17g", x, mlx_exp(x), exp(x));
    if (fabs(mlx_log(y) - log(y)) > 5e-16 * fmax(1, fabs(log(y)))) {
      CHECK_FAIL("log(%.17g) is %.17g, libm gives %.17g", y, mlx_log(y), log(y));
    }
  }
  CHECK(mlx_exp(0) == 1 && mlx_log(1) == 0 && mlx_exp(-1000) == 0 && isinf(mlx_exp(1000)) &&
        mlx_log(0) == -INFINITY);
  CHECK(mlx_exp(-INFINITY) == 0 && isnan(mlx_exp(NAN)) && fabs(mlx_log(5e-324) - log(5e-324)) < 1e-12);
}

TEST(random_numbers_depend_on_seed_position_and_purpose) {
  // splitmix64 of Vigna's reference code: the first outputs for the seed 1234567.
  CHECK(mlx_sample_mix(1234567 + 0x9e3779b97f4a7c15u) == 6457827717110365317u);
  CHECK(mlx_sample_mix(1234567 + 2 * 0x9e3779b97f4a7c15u) == 3203168211198807973u);
  CHECK(mlx_sample_random(1, 2, 0) == mlx_sample_random(1, 2, 0));
  CHECK(mlx_sample_random(1, 2, 0) != mlx_sample_random(2, 2, 0));
  CHECK(mlx_sample_random(1, 2, 0) != mlx_sample_random(1, 3, 0));
  CHECK(mlx_sample_random(1, 2, 0) != mlx_sample_random(1, 2, 1));
}

TEST(every_filter_matches_its_definition) {
  float logits[VOCAB];
  for (int round = 0; round < ROUNDS; ++round) {
    random_logits(logits, 1 + round % 7);
    const reference_t all = reference_softmax(logits);
    reference_t reference = all;
    mlx_sampling_t options = everything_off();
    check_options(&options, logits, &reference);
    options.top_k = 1 + round;
    reference_top_k(&reference, 1 + round);
    check_options(&options, logits, &reference);
    options = everything_off();
    options.top_p = random_unit(&numbers);
    reference = all;
    reference_top_p(&reference, options.top_p);
    check_options(&options, logits, &reference);
    options = everything_off();
    options.min_p = random_unit(&numbers);
    reference = all;
    reference_min_p(&reference, options.min_p);
    check_options(&options, logits, &reference);
    options = everything_off();
    options.typical_p = random_unit(&numbers);
    reference = all;
    reference_typical(&reference, options.typical_p);
    check_options(&options, logits, &reference);
    options = everything_off();
    options.temperature = 0.1 + random_unit(&numbers);
    reference = all;
    reference_temperature(&reference, options.temperature);
    check_options(&options, logits, &reference);
  }
}

TEST(filters_run_in_the_documented_order) {
  float logits[VOCAB];
  for (int round = 0; round < ROUNDS; ++round) {
    random_logits(logits, 5);
    mlx_sampling_t options = everything_off();
    options.top_k = 5 + round % 60;
    options.typical_p = 0.5 + 0.5 * random_unit(&numbers);
    options.top_p = 0.5 + 0.5 * random_unit(&numbers);
    options.min_p = 0.2 * random_unit(&numbers);
    options.temperature = 0.5 + random_unit(&numbers);
    reference_t reference = reference_softmax(logits);
    reference_top_k(&reference, (int)options.top_k);
    reference_typical(&reference, options.typical_p);
    reference_top_p(&reference, options.top_p);
    reference_min_p(&reference, options.min_p);
    reference_temperature(&reference, options.temperature);
    check_options(&options, logits, &reference);
  }
}

TEST(top_n_sigma_and_xtc_match_their_definitions) {
  float logits[VOCAB];
  for (int round = 0; round < ROUNDS; ++round) {
    random_logits(logits, 1 + round % 5);
    mlx_sampling_t options = everything_off();
    options.top_n_sigma = 0.1 + 3 * random_unit(&numbers);
    reference_t reference = reference_softmax(logits);
    double mean = 0, squares = 0, largest = -INFINITY;
    for (int i = 0; i < VOCAB; ++i) mean += (double)logits[i] / VOCAB;
    for (int i = 0; i < VOCAB; ++i) squares += pow((double)logits[i] - mean, 2) / VOCAB;
    for (int i = 0; i < VOCAB; ++i) largest = fmax(largest, (double)logits[i]);
    bool keep[VOCAB];
    for (int i = 0; i < VOCAB; ++i)
      keep[i] = (double)logits[i] >= largest - options.top_n_sigma * sqrt(squares);
    reference_keep(&reference, keep);
    check_options(&options, logits, &reference);

    options = everything_off();
    options.xtc_probability = 1;
    options.xtc_threshold = 0.02;
    reference = reference_softmax(logits);
    int over = 0;
    for (int i = 0; i < VOCAB; ++i) over += reference.p[i] >= 0.02;
    for (int i = 0; i < VOCAB; ++i) keep[i] = reference_rank(&reference, i) >= over - 1;
    reference_keep(&reference, keep);
    check_options(&options, logits, &reference);
  }
}

// Options that a device knows, as the record of a step: a device samples the tokens that the host samples.
TEST(host_and_device_sample_the_same_tokens) {
  static const int64_t top_k[] = {0, 1, 40, 400}, windows[] = {0, 5, 64, -1};
  const mlx_logit_bias_t biases[] = {{3, 2.5}, {4, -INFINITY}, {3, 1}};
  int32_t batch[64 + 6 + (VOCAB + 31) / 32], history[128], result[MLX_RESULT_WORDS];
  uint64_t allowed[(VOCAB + 63) / 64];
  void *scratch = malloc(MLX_SAMPLE_SCRATCH_BYTES(VOCAB));
  for (int round = 0; round < 10 * ROUNDS; ++round) {
    float logits[VOCAB];
    mlx_sampling_t options = everything_off();
    options.top_k = top_k[round % 4];
    options.repeat_last_n = windows[round / 4 % 4];
    options.repeat_penalty = round % 3 ? 1.2 : 1;
    options.frequency_penalty = round % 5 ? 0.1 : 0;
    options.top_p = round % 2 ? random_unit(&numbers) : 1;
    options.min_p = round % 7 ? 0 : 0.1 * random_unit(&numbers);
    options.typical_p = round % 6 ? 1 : random_unit(&numbers);
    options.temperature = round % 9 ? 0.1 + random_unit(&numbers) : 0;
    options.seed = random_next(&numbers);
    options.biases = biases;
    options.bias_count = round % 4 ? 0 : 3;
    random_logits(logits, 1 + round % 9);
    mlx_sampler_t *sampler;
    CHECK_OK(mlx_sampler_create(&options, VOCAB, 100, &sampler));
    const int length = round % 120;
    for (int i = 0; i < length; ++i) {
      history[i] = (int32_t)(random_next(&numbers) % 60);
      CHECK_OK(mlx_sampler_accept(sampler, history[i], "", 0));
    }
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; ++i) allowed[i] = random_next(&numbers);
    const bool masked = round % 3 == 0;
    CHECK(mlx_sampling_runs_on_device(&options));
    mlx_sampling_to_words(&options, 100, batch);
    mlx_sampling_biases_to_words(&options, batch + 64);
    memcpy(batch + 70, allowed, (VOCAB + 31) / 32 * 4);
    batch[MLX_SAMPLING_BIAS_AT] = 64;
    batch[MLX_SAMPLING_MASK_AT] = masked ? 70 : 0;
    int32_t host;
    CHECK_OK(mlx_sampler_sample(sampler, logits, masked ? allowed : NULL, &host));
    const int32_t device = mlx_sample_row(batch, sizeof batch / sizeof *batch, batch, logits, VOCAB, history,
                                          128, length, result, scratch);
    CHECK_INT(host, device);
    const mlx_sampler_token_t *tokens;  // the sorted list, which XTC and Mirostat use, has the token
    size_t count, at = 0;
    CHECK_OK(mlx_sampler_filter(sampler, logits, masked ? allowed : NULL, &tokens, &count));
    while (at < count && tokens[at].id != host) ++at;
    CHECK(at < count);
    int32_t listed;
    double sum = 0;
    CHECK_OK(mlx_sampler_sample_listed(sampler, logits, masked ? allowed : NULL, &listed, &tokens, &count));
    CHECK_INT(listed, host);
    for (at = 0; at < count; ++at) sum += tokens[at].probability;
    CHECK(fabs(sum - 1) < 1e-9 && tokens[0].probability >= tokens[count - 1].probability);
    mlx_sampler_free(sampler);
  }
  free(scratch);
}

TEST(options_that_only_the_host_knows_have_no_record) {
  int32_t words[MLX_SAMPLING_WORDS];
  mlx_sampling_t options = everything_off();
  options.seed = 0x123456789abcdef0u;
  options.repeat_last_n = -1;
  options.repeat_penalty = 1.5;
  CHECK(mlx_sampling_runs_on_device(&options));
  mlx_sampling_to_words(&options, 300, words);
  CHECK_INT(words[MLX_SAMPLING_FLAGS], MLX_SAMPLE_TOKEN);
  CHECK_INT(words[MLX_SAMPLING_WINDOW], 300);
  CHECK_INT((uint32_t)words[MLX_SAMPLING_SEED_LOW], 0x9abcdef0u);
  CHECK_INT(words[MLX_SAMPLING_SEED_HIGH], 0x12345678);
  CHECK(mlx_bits_float((uint32_t)words[MLX_SAMPLING_REPEAT]) == 1.5f);
  for (int i = 0; i < 4; ++i) {
    options = everything_off();
    if (i == 0) options.dry_multiplier = 0.8;
    if (i == 1) options.xtc_probability = 0.5;
    if (i == 2) options.top_n_sigma = 1;
    if (i == 3) options.mirostat = 2;
    CHECK(!mlx_sampling_runs_on_device(&options));
  }
}

TEST(samples_follow_the_probabilities) {
  float logits[VOCAB];
  for (int i = 0; i < VOCAB; ++i) logits[i] = i < 4 ? (float)log(1 + i) : -INFINITY;  // 0.1 0.2 0.3 0.4
  mlx_sampling_t options = everything_off();
  mlx_sampler_t *sampler;
  int times[4] = {0};
  CHECK_OK(mlx_sampler_create(&options, VOCAB, 2048, &sampler));
  for (int i = 0; i < 100000; ++i) {
    int32_t id;
    CHECK_OK(mlx_sampler_sample(sampler, logits, NULL, &id));
    CHECK_OK(mlx_sampler_accept(sampler, id, "", 0));
    ++times[id];
  }
  for (int i = 0; i < 4; ++i) CHECK(abs(times[i] - 10000 * (i + 1)) < 600);  // four standard deviations
  mlx_sampler_free(sampler);
}

TEST(the_same_seed_gives_the_same_tokens_and_another_seed_different_ones) {
  float logits[VOCAB];
  int32_t first[64], again[64], other[64];
  numbers = 1;
  random_logits(logits, 3);
  int32_t *const runs[] = {first, again, other};
  for (int run = 0; run < 3; ++run) {
    mlx_sampling_t options;
    mlx_sampler_t *sampler;
    mlx_sampling_initialize(&options);
    options.seed = run == 2 ? 124 : 123;
    CHECK_OK(mlx_sampler_create(&options, VOCAB, 2048, &sampler));
    for (int i = 0; i < 64; ++i) {
      CHECK_OK(mlx_sampler_sample(sampler, logits, NULL, &runs[run][i]));
      CHECK_OK(mlx_sampler_accept(sampler, runs[run][i], "", 0));
    }
    mlx_sampler_free(sampler);
  }
  CHECK(!memcmp(first, again, sizeof first) && memcmp(first, other, sizeof first));
}

TEST(penalties_look_back_on_the_last_n_tokens) {
  static const int64_t windows[] = {0, 1, 7, 64, -1};
  for (int round = 0; round < ROUNDS; ++round) {
    float logits[VOCAB];
    int32_t history[200];
    random_logits(logits, 4);
    mlx_sampling_t options = everything_off();
    options.repeat_last_n = windows[round % 5];
    options.repeat_penalty = 0.5 + random_unit(&numbers);
    options.frequency_penalty = random_unit(&numbers) - 0.5;
    options.presence_penalty = random_unit(&numbers) - 0.5;
    mlx_sampler_t *sampler;
    CHECK_OK(mlx_sampler_create(&options, VOCAB, 100, &sampler));
    for (int i = 0; i < 200; ++i) {
      history[i] = (int32_t)(random_next(&numbers) % 40);
      CHECK_OK(mlx_sampler_accept(sampler, history[i], "", 0));
    }
    const int window = options.repeat_last_n < 0 ? 100 : (int)options.repeat_last_n;
    double scores[VOCAB], sum = 0;
    for (int id = 0; id < VOCAB; ++id) {
      int times = 0;
      for (int i = 200 - window; i < 200; ++i) times += history[i] == id;
      scores[id] = (double)logits[id];
      if (times)
        scores[id] =
            scores[id] > 0 ? scores[id] / options.repeat_penalty : scores[id] * options.repeat_penalty;
      if (times) scores[id] -= times * options.frequency_penalty + options.presence_penalty;
      sum += exp(scores[id]);
    }
    reference_t reference;
    for (int id = 0; id < VOCAB; ++id) reference.p[id] = exp(scores[id]) / sum;
    check_same(sampler, logits, NULL, &reference);
    check_same(sampler, logits, NULL, &reference);  // filtering does not change the history
    mlx_sampler_free(sampler);
  }
}

// The text of token n.
static const char *const pieces[] = {"a", "b", "c", "x\ny", "<e", "nd>", "d", "e"};

// The number of tokens before |at| that equal the last tokens of the history, back to the last breaker.
static int reference_repeat(const int32_t *history, int count, int at, int since_breaker) {
  int length = 0;
  while (length < since_breaker && at - 1 - length >= 0 &&
         history[at - 1 - length] == history[count - 1 - length])
    ++length;
  return length;
}

TEST(dry_penalizes_tokens_that_extend_a_repetition) {
  static const char *const breakers[] = {"\n", "<end>"};
  for (int round = 0; round < ROUNDS; ++round) {
    float logits[VOCAB];
    int32_t history[120];
    random_logits(logits, 2);
    mlx_sampling_t options = everything_off();
    options.dry_multiplier = 0.8;
    options.dry_allowed_length = 1 + round % 3;
    options.dry_last_n = round % 2 ? -1 : 50;
    options.dry_breakers = breakers;
    options.dry_breaker_count = 2;
    mlx_sampler_t *sampler;
    CHECK_OK(mlx_sampler_create(&options, VOCAB, 100, &sampler));
    int since = 0;
    for (int i = 0; i < 120; ++i) {
      history[i] = (int32_t)(random_next(&numbers) % (round % 4 ? 3 : 8));
      CHECK_OK(mlx_sampler_accept(sampler, history[i], pieces[history[i]], strlen(pieces[history[i]])));
      const bool breaks = history[i] == 3 || (history[i] == 5 && i && history[i - 1] == 4);
      since = breaks ? 0 : since + 1;
    }
    const int window = options.dry_last_n < 0 ? 100 : 50;
    const int32_t *seen = history + 120 - window;
    double sum = 0;
    reference_t reference;
    for (int id = 0; id < VOCAB; ++id) {
      int longest = 0;
      for (int at = 1; at < window; ++at) {
        const int length = seen[at] == id ? reference_repeat(seen, window, at, since) : 0;
        longest = length > longest ? length : longest;
      }
      double score = (double)logits[id];
      if (longest >= options.dry_allowed_length)
        score -= 0.8 * pow(1.75, longest - (int)options.dry_allowed_length);
      sum += reference.p[id] = exp(score);
    }
    for (int id = 0; id < VOCAB; ++id) reference.p[id] /= sum;
    check_same(sampler, logits, NULL, &reference);
    mlx_sampler_free(sampler);
  }
}

TEST(a_bias_shifts_a_logit_and_minus_infinity_forbids_the_token) {
  float logits[VOCAB];
  random_logits(logits, 2);
  const mlx_logit_bias_t biases[] = {{3, 2.5}, {4, -INFINITY}, {3, 1}};
  mlx_sampling_t options = everything_off();
  options.biases = biases;
  options.bias_count = 3;
  reference_t reference;
  double sum = 0;
  for (int i = 0; i < VOCAB; ++i)
    sum += reference.p[i] = i == 4 ? 0 : exp((double)logits[i] + (i == 3 ? 3.5 : 0));
  for (int i = 0; i < VOCAB; ++i) reference.p[i] /= sum;
  check_options(&options, logits, &reference);
  options.biases = (const mlx_logit_bias_t[]){{VOCAB, 1}};
  options.bias_count = 1;
  mlx_sampler_t *sampler;
  CHECK_ERROR(mlx_sampler_create(&options, VOCAB, 1, &sampler), MLX_USAGE,
              "--logit-bias names token 500; the vocabulary has 500 tokens, from 0 to 499");
}

TEST(only_allowed_tokens_are_sampled_and_an_empty_mask_fails) {
  float logits[VOCAB];
  uint64_t allowed[(VOCAB + 63) / 64] = {0};
  mlx_sampling_t options;
  mlx_sampler_t *sampler;
  mlx_sampling_initialize(&options);
  CHECK_OK(mlx_sampler_create(&options, VOCAB, 2048, &sampler));
  int32_t id;
  CHECK_ERROR(mlx_sampler_sample(sampler, (random_logits(logits, 3), logits), allowed, &id), MLX_UNSUPPORTED,
              "no token is left to sample from");
  allowed[1] = 0xff0;
  for (int i = 0; i < 1000; ++i) {
    random_logits(logits, 3);
    CHECK_OK(mlx_sampler_sample(sampler, logits, allowed, &id));
    CHECK(id >= 68 && id < 76);
  }
  mlx_sampler_free(sampler);
}

TEST(temperature_0_samples_the_largest_logit) {
  float logits[VOCAB];
  mlx_sampling_t options;
  mlx_sampler_t *sampler;
  mlx_sampling_initialize_greedy(&options);
  CHECK_OK(mlx_sampler_create(&options, VOCAB, 2048, &sampler));
  for (int round = 0; round < ROUNDS; ++round) {
    int32_t id, best = 0;
    random_logits(logits, 2);
    logits[round] = logits[VOCAB - 1 - round];  // a tie: the lower id wins
    for (int i = 1; i < VOCAB; ++i) best = logits[i] > logits[best] ? i : best;
    CHECK_OK(mlx_sampler_sample(sampler, logits, NULL, &id));
    CHECK_INT(id, best);
  }
  mlx_sampler_free(sampler);
}

// The loop of the Mirostat paper, computed independently, with the tokens that the sampler drew.
TEST(mirostat_reaches_its_target_surprise) {
  for (int version = 1; version <= 2; ++version) {
    float logits[VOCAB];
    mlx_sampling_t options = everything_off();
    options.mirostat = version;
    options.mirostat_tau = 3;
    options.top_k = 1;  // ignored
    mlx_sampler_t *sampler;
    CHECK_OK(mlx_sampler_create(&options, VOCAB, 2048, &sampler));
    double mu = 6, surprise = 0;
    for (int round = 0; round < 2000; ++round) {
      random_logits(logits, 6);
      reference_t reference = reference_softmax(logits);
      if (version == 1) {
        double products = 0, squares = 0, sorted[VOCAB];
        for (int i = 0; i < VOCAB; ++i) sorted[reference_rank(&reference, i)] = reference.p[i];
        for (int i = 0; i < 99; ++i) {
          products += log((i + 2.0) / (i + 1.0)) * log(sorted[i] / sorted[i + 1]);
          squares += pow(log((i + 2.0) / (i + 1.0)), 2);
        }
        const double s = products / squares, e = s - 1;
        const double k = pow(e * pow(2, mu) / (1 - pow(VOCAB, -e)), 1 / s);
        reference_top_k(&reference, k < 1 ? 1 : k > VOCAB ? VOCAB : (int)k);
      } else {
        bool keep[VOCAB], any = false;
        for (int i = 0; i < VOCAB; ++i) any |= keep[i] = -log2(reference.p[i]) <= mu;
        for (int i = 0; i < VOCAB && !any; ++i) keep[i] = !reference_rank(&reference, i);
        reference_keep(&reference, keep);
      }
      check_same(sampler, logits, NULL, &reference);
      int32_t id;
      CHECK_OK(mlx_sampler_sample(sampler, logits, NULL, &id));
      CHECK_OK(mlx_sampler_accept(sampler, id, "", 0));
      mu -= 0.1 * (-log2(reference.p[id]) - 3);
      if (round >= 1000) surprise += -log2(reference.p[id]) / 1000;
    }
    fprintf(stderr, "  mirostat %d: surprise %.3f, target 3\n", version, surprise);
    CHECK(fabs(surprise - 3) < 0.05);
    mlx_sampler_free(sampler);
  }
}

TEST(logprobs_are_the_log_softmax_of_the_logits) {
  float logits[VOCAB];
  for (int round = 0; round < ROUNDS; ++round) {
    random_logits(logits, 1 + round % 20);
    long double sum = 0;
    for (int i = 0; i < VOCAB; ++i) sum += expl((long double)logits[i]);
    mlx_logprob_t out[11];
    CHECK_OK(mlx_logprobs(logits, VOCAB, round, 10, out));
    const reference_t reference = reference_softmax(logits);
    for (int i = 0; i < 11; ++i) {
      CHECK(fabs(out[i].logprob - (double)((long double)logits[out[i].id] - logl(sum))) <
            2e-6 * fmax(1, fabs(out[i].logprob)));
      if (i < 10) CHECK_INT(reference_rank(&reference, out[i].id), i);
    }
    CHECK_INT(out[10].id, round);
    CHECK_OK(mlx_logprobs(logits, VOCAB, 1, 0, out));
    CHECK_INT(out[0].id, 1);
  }
  mlx_logprob_t out[2];
  CHECK_ERROR(mlx_logprobs(logits, VOCAB, 1, VOCAB + 1, out), MLX_USAGE, "--logprobs 501");
}

TEST(options_out_of_range_are_refused_by_name) {
  mlx_sampling_t options = everything_off();
  options.top_p = 1.5;
  CHECK_ERROR(mlx_sampling_check(&options), MLX_USAGE, "--top-p expects a number from 0 to 1, not 1.5");
  options = everything_off();
  options.temperature = NAN;
  CHECK_ERROR(mlx_sampling_check(&options), MLX_USAGE, "--temp expects");
  options = everything_off();
  options.mirostat = 3;
  CHECK_ERROR(mlx_sampling_check(&options), MLX_USAGE, "--mirostat expects 0, 1 or 2, not 3");
  options = everything_off();
  options.biases = (const mlx_logit_bias_t[]){{1, NAN}};
  options.bias_count = 1;
  CHECK_ERROR(mlx_sampling_check(&options), MLX_USAGE, "--logit-bias expects");
}

TEST_MAIN(CASE(exp_and_log_match_libm_within_two_ulp),
          CASE(random_numbers_depend_on_seed_position_and_purpose), CASE(every_filter_matches_its_definition),
          CASE(filters_run_in_the_documented_order), CASE(top_n_sigma_and_xtc_match_their_definitions),
          CASE(host_and_device_sample_the_same_tokens), CASE(options_that_only_the_host_knows_have_no_record),
          CASE(samples_follow_the_probabilities),
          CASE(the_same_seed_gives_the_same_tokens_and_another_seed_different_ones),
          CASE(penalties_look_back_on_the_last_n_tokens), CASE(dry_penalizes_tokens_that_extend_a_repetition),
          CASE(a_bias_shifts_a_logit_and_minus_infinity_forbids_the_token),
          CASE(only_allowed_tokens_are_sampled_and_an_empty_mask_fails),
          CASE(temperature_0_samples_the_largest_logit), CASE(mirostat_reaches_its_target_surprise),
          CASE(logprobs_are_the_log_softmax_of_the_logits), CASE(options_out_of_range_are_refused_by_name))
