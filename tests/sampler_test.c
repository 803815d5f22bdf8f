// The sampler against slow computations written straight from what each step is said to do.
#include <math.h>

#include "base/memory.h"
#include "runtime/exact_math.h"
#include "runtime/sampler.h"
#include "tests/check.h"

#define VOCAB 500
#define ROUNDS 300

static mlx_random_t numbers = {{1, 2, 3, 4}};  // the tests' own

static void random_logits(float *out, double spread) {
  for (int i = 0; i < VOCAB; ++i) {
    double sum = 0;
    for (int j = 0; j < 6; ++j) sum += mlx_random_unit(&numbers) - 0.5;
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
// The slow way: a probability for every token, 0 for those that were cut

typedef struct slow {
  double p[VOCAB];
} slow_t;

static void slow_normalise(slow_t *slow) {
  double sum = 0;
  for (int i = 0; i < VOCAB; ++i) sum += slow->p[i];
  for (int i = 0; i < VOCAB; ++i) slow->p[i] /= sum;
}

static slow_t slow_softmax(const float *logits) {
  slow_t slow;
  for (int i = 0; i < VOCAB; ++i) slow.p[i] = exp((double)logits[i]);
  slow_normalise(&slow);
  return slow;
}

static int slow_rank(const slow_t *slow, int id) {  // how many are likelier
  int rank = 0;
  for (int i = 0; i < VOCAB; ++i) rank += slow->p[i] > slow->p[id] || (slow->p[i] == slow->p[id] && i < id);
  return rank;
}

static double slow_likelier(const slow_t *slow, int id) {  // what all likelier ones add up to
  double sum = 0;
  for (int i = 0; i < VOCAB; ++i) sum += slow->p[i] > slow->p[id] ? slow->p[i] : 0;
  return sum;
}

static void slow_keep(slow_t *slow, const bool *keep) {
  for (int i = 0; i < VOCAB; ++i) slow->p[i] = keep[i] ? slow->p[i] : 0;
  slow_normalise(slow);
}

static void slow_top_k(slow_t *slow, int k) {
  bool keep[VOCAB];
  for (int i = 0; i < VOCAB; ++i) keep[i] = slow_rank(slow, i) < k;
  slow_keep(slow, keep);
}

static void slow_top_p(slow_t *slow, double p) {
  bool keep[VOCAB];
  for (int i = 0; i < VOCAB; ++i) keep[i] = slow->p[i] > 0 && slow_likelier(slow, i) < p;
  slow_keep(slow, keep);
}

static void slow_min_p(slow_t *slow, double p) {
  bool keep[VOCAB];
  double largest = 0;
  for (int i = 0; i < VOCAB; ++i) largest = fmax(largest, slow->p[i]);
  for (int i = 0; i < VOCAB; ++i) keep[i] = slow->p[i] >= p * largest;
  slow_keep(slow, keep);
}

static void slow_typical(slow_t *slow, double p) {
  bool keep[VOCAB];
  double entropy = 0, distance[VOCAB];
  for (int i = 0; i < VOCAB; ++i) entropy -= slow->p[i] > 0 ? slow->p[i] * log(slow->p[i]) : 0;
  for (int i = 0; i < VOCAB; ++i) distance[i] = slow->p[i] > 0 ? fabs(-log(slow->p[i]) - entropy) : INFINITY;
  for (int i = 0; i < VOCAB; ++i) {
    double nearer = 0;
    for (int j = 0; j < VOCAB; ++j) nearer += distance[j] < distance[i] ? slow->p[j] : 0;
    keep[i] = slow->p[i] > 0 && nearer <= p;
  }
  slow_keep(slow, keep);
}

static void slow_temperature(slow_t *slow, double t) {
  for (int i = 0; i < VOCAB; ++i) slow->p[i] = slow->p[i] > 0 ? pow(slow->p[i], 1 / t) : 0;
  slow_normalise(slow);
}

static void check_same(mlx_sampler_t *sampler, const float *logits, const uint64_t *allowed,
                       const slow_t *slow) {
  const mlx_sampler_token_t *tokens;
  size_t count, expected = 0;
  CHECK_OK(mlx_sampler_filter(sampler, logits, allowed, &tokens, &count));
  for (int i = 0; i < VOCAB; ++i) expected += slow->p[i] > 0;
  CHECK_INT(count, expected);
  for (size_t i = 0; i < count; ++i) {
    if (fabs(tokens[i].probability - slow->p[tokens[i].id]) > 1e-12) {
      CHECK_FAIL("token %d has probability %.17g, expected %.17g", tokens[i].id, tokens[i].probability,
                 slow->p[tokens[i].id]);
    }
    CHECK(!i || tokens[i - 1].probability >= tokens[i].probability);
  }
}

static void check_options(const mlx_sampling_t *options, const float *logits, const slow_t *slow) {
  mlx_sampler_t *sampler;
  CHECK_OK(mlx_sampler_create(options, VOCAB, 2048, &sampler));
  check_same(sampler, logits, NULL, slow);
  mlx_sampler_free(sampler);
}

// ----------------------------------------------------------------------------------------------------------

TEST(exp_and_log_are_right_to_the_last_places) {
  for (int i = 0; i < 200000; ++i) {
    const double x = (mlx_random_unit(&numbers) - 0.5) * 1400,
                 y = mlx_exp((mlx_random_unit(&numbers) - 0.5) * 1400);
    if (fabs(mlx_exp(x) / exp(x) - 1) > 5e-16)
      CHECK_FAIL("exp(%.17g) is %.17g, libm says %.17g", x, mlx_exp(x), exp(x));
    if (fabs(mlx_log(y) - log(y)) > 5e-16 * fmax(1, fabs(log(y)))) {
      CHECK_FAIL("log(%.17g) is %.17g, libm says %.17g", y, mlx_log(y), log(y));
    }
  }
  CHECK(mlx_exp(0) == 1 && mlx_log(1) == 0 && mlx_exp(-1000) == 0 && isinf(mlx_exp(1000)) &&
        mlx_log(0) == -INFINITY);
  CHECK(mlx_exp(-INFINITY) == 0 && isnan(mlx_exp(NAN)) && fabs(mlx_log(5e-324) - log(5e-324)) < 1e-12);
}

TEST(the_generator_gives_the_numbers_it_always_gave) {
  mlx_random_t random;
  mlx_random_seed(&random, 42);
  CHECK(mlx_random_next(&random) == 1546998764402558742u && mlx_random_next(&random) == 6990951692964543102u);
  mlx_random_seed(&random, 0);
  CHECK(mlx_random_next(&random) == 11091344671253066420u);
}

TEST(every_filter_equals_its_definition) {
  float logits[VOCAB];
  for (int round = 0; round < ROUNDS; ++round) {
    random_logits(logits, 1 + round % 7);
    const slow_t all = slow_softmax(logits);
    slow_t slow = all;
    mlx_sampling_t options = everything_off();
    check_options(&options, logits, &slow);
    options.top_k = 1 + round;
    slow_top_k(&slow, 1 + round);
    check_options(&options, logits, &slow);
    options = everything_off();
    options.top_p = mlx_random_unit(&numbers);
    slow = all;
    slow_top_p(&slow, options.top_p);
    check_options(&options, logits, &slow);
    options = everything_off();
    options.min_p = mlx_random_unit(&numbers);
    slow = all;
    slow_min_p(&slow, options.min_p);
    check_options(&options, logits, &slow);
    options = everything_off();
    options.typical_p = mlx_random_unit(&numbers);
    slow = all;
    slow_typical(&slow, options.typical_p);
    check_options(&options, logits, &slow);
    options = everything_off();
    options.temperature = 0.1 + mlx_random_unit(&numbers);
    slow = all;
    slow_temperature(&slow, options.temperature);
    check_options(&options, logits, &slow);
  }
}

TEST(filters_come_in_the_documented_order) {
  float logits[VOCAB];
  for (int round = 0; round < ROUNDS; ++round) {
    random_logits(logits, 5);
    mlx_sampling_t options = everything_off();
    options.top_k = 5 + round % 60;
    options.typical_p = 0.5 + 0.5 * mlx_random_unit(&numbers);
    options.top_p = 0.5 + 0.5 * mlx_random_unit(&numbers);
    options.min_p = 0.2 * mlx_random_unit(&numbers);
    options.temperature = 0.5 + mlx_random_unit(&numbers);
    slow_t slow = slow_softmax(logits);
    slow_top_k(&slow, (int)options.top_k);
    slow_typical(&slow, options.typical_p);
    slow_top_p(&slow, options.top_p);
    slow_min_p(&slow, options.min_p);
    slow_temperature(&slow, options.temperature);
    check_options(&options, logits, &slow);
  }
}

TEST(top_n_sigma_and_xtc_equal_their_definitions) {
  float logits[VOCAB];
  for (int round = 0; round < ROUNDS; ++round) {
    random_logits(logits, 1 + round % 5);
    mlx_sampling_t options = everything_off();
    options.top_n_sigma = 0.1 + 3 * mlx_random_unit(&numbers);
    slow_t slow = slow_softmax(logits);
    double mean = 0, squares = 0, largest = -INFINITY;
    for (int i = 0; i < VOCAB; ++i) mean += (double)logits[i] / VOCAB;
    for (int i = 0; i < VOCAB; ++i) squares += pow((double)logits[i] - mean, 2) / VOCAB;
    for (int i = 0; i < VOCAB; ++i) largest = fmax(largest, (double)logits[i]);
    bool keep[VOCAB];
    for (int i = 0; i < VOCAB; ++i)
      keep[i] = (double)logits[i] >= largest - options.top_n_sigma * sqrt(squares);
    slow_keep(&slow, keep);
    check_options(&options, logits, &slow);

    options = everything_off();
    options.xtc_probability = 1;
    options.xtc_threshold = 0.02;
    slow = slow_softmax(logits);
    int over = 0;
    for (int i = 0; i < VOCAB; ++i) over += slow.p[i] >= 0.02;
    for (int i = 0; i < VOCAB; ++i) keep[i] = slow_rank(&slow, i) >= over - 1;
    slow_keep(&slow, keep);
    check_options(&options, logits, &slow);
  }
}

TEST(drawing_follows_the_probabilities) {
  float logits[VOCAB];
  for (int i = 0; i < VOCAB; ++i) logits[i] = i < 4 ? (float)log(1 + i) : -INFINITY;  // 0.1 0.2 0.3 0.4
  mlx_sampling_t options = everything_off();
  mlx_sampler_t *sampler;
  int times[4] = {0};
  CHECK_OK(mlx_sampler_create(&options, VOCAB, 2048, &sampler));
  for (int i = 0; i < 100000; ++i) {
    int32_t id;
    CHECK_OK(mlx_sampler_choose(sampler, logits, NULL, &id));
    ++times[id];
  }
  for (int i = 0; i < 4; ++i) CHECK(abs(times[i] - 10000 * (i + 1)) < 600);  // four standard deviations
  mlx_sampler_free(sampler);
}

TEST(a_seed_gives_the_same_tokens_every_time_and_another_seed_others) {
  float logits[VOCAB];
  int32_t first[64], again[64], other[64];
  mlx_random_seed(&numbers, 1);
  random_logits(logits, 3);
  int32_t *const runs[] = {first, again, other};
  for (int run = 0; run < 3; ++run) {
    mlx_sampling_t options;
    mlx_sampler_t *sampler;
    mlx_sampling_initialize(&options);
    options.seed = run == 2 ? 124 : 123;
    CHECK_OK(mlx_sampler_create(&options, VOCAB, 2048, &sampler));
    for (int i = 0; i < 64; ++i) CHECK_OK(mlx_sampler_choose(sampler, logits, NULL, &runs[run][i]));
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
    options.repeat_penalty = 0.5 + mlx_random_unit(&numbers);
    options.frequency_penalty = mlx_random_unit(&numbers) - 0.5;
    options.presence_penalty = mlx_random_unit(&numbers) - 0.5;
    mlx_sampler_t *sampler;
    CHECK_OK(mlx_sampler_create(&options, VOCAB, 100, &sampler));
    for (int i = 0; i < 200; ++i) {
      history[i] = (int32_t)(mlx_random_next(&numbers) % 40);
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
    slow_t slow;
    for (int id = 0; id < VOCAB; ++id) slow.p[id] = exp(scores[id]) / sum;
    check_same(sampler, logits, NULL, &slow);
    check_same(sampler, logits, NULL, &slow);  // filtering changes nothing
    mlx_sampler_free(sampler);
  }
}

// Token n is spelled as the n-th of these.
static const char *const pieces[] = {"a", "b", "c", "x\ny", "<e", "nd>", "d", "e"};

// How many tokens before |end| equal those before |at|, none of them at or before the last breaker.
static int slow_repeat(const int32_t *history, int count, int at, int since_breaker) {
  int length = 0;
  while (length < since_breaker && at - 1 - length >= 0 &&
         history[at - 1 - length] == history[count - 1 - length])
    ++length;
  return length;
}

TEST(dry_penalises_what_would_go_on_with_a_repetition) {
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
      history[i] = (int32_t)(mlx_random_next(&numbers) % (round % 4 ? 3 : 8));
      CHECK_OK(mlx_sampler_accept(sampler, history[i], pieces[history[i]], strlen(pieces[history[i]])));
      const bool breaks = history[i] == 3 || (history[i] == 5 && i && history[i - 1] == 4);
      since = breaks ? 0 : since + 1;
    }
    const int window = options.dry_last_n < 0 ? 100 : 50;
    const int32_t *seen = history + 120 - window;
    double sum = 0;
    slow_t slow;
    for (int id = 0; id < VOCAB; ++id) {
      int longest = 0;
      for (int at = 1; at < window; ++at) {
        const int length = seen[at] == id ? slow_repeat(seen, window, at, since) : 0;
        longest = length > longest ? length : longest;
      }
      double score = (double)logits[id];
      if (longest >= options.dry_allowed_length)
        score -= 0.8 * pow(1.75, longest - (int)options.dry_allowed_length);
      sum += slow.p[id] = exp(score);
    }
    for (int id = 0; id < VOCAB; ++id) slow.p[id] /= sum;
    check_same(sampler, logits, NULL, &slow);
    mlx_sampler_free(sampler);
  }
}

TEST(a_bias_moves_a_token_and_minus_infinity_forbids_it) {
  float logits[VOCAB];
  random_logits(logits, 2);
  const mlx_logit_bias_t biases[] = {{3, 2.5}, {4, -INFINITY}, {3, 1}};
  mlx_sampling_t options = everything_off();
  options.biases = biases;
  options.bias_count = 3;
  slow_t slow;
  double sum = 0;
  for (int i = 0; i < VOCAB; ++i) sum += slow.p[i] = i == 4 ? 0 : exp((double)logits[i] + (i == 3 ? 3.5 : 0));
  for (int i = 0; i < VOCAB; ++i) slow.p[i] /= sum;
  check_options(&options, logits, &slow);
  options.biases = (const mlx_logit_bias_t[]){{VOCAB, 1}};
  options.bias_count = 1;
  mlx_sampler_t *sampler;
  CHECK_ERROR(mlx_sampler_create(&options, VOCAB, 1, &sampler), MLX_USAGE,
              "--logit-bias names token 500; the model has tokens 0 to 499");
}

TEST(a_mask_is_obeyed_and_an_empty_one_is_an_error) {
  float logits[VOCAB];
  uint64_t allowed[(VOCAB + 63) / 64] = {0};
  mlx_sampling_t options;
  mlx_sampler_t *sampler;
  mlx_sampling_initialize(&options);
  CHECK_OK(mlx_sampler_create(&options, VOCAB, 2048, &sampler));
  int32_t id;
  CHECK_ERROR(mlx_sampler_choose(sampler, (random_logits(logits, 3), logits), allowed, &id), MLX_UNSUPPORTED,
              "no token is left");
  allowed[1] = 0xff0;
  for (int i = 0; i < 1000; ++i) {
    random_logits(logits, 3);
    CHECK_OK(mlx_sampler_choose(sampler, logits, allowed, &id));
    CHECK(id >= 68 && id < 76);
  }
  mlx_sampler_free(sampler);
}

TEST(temperature_0_is_the_largest_logit) {
  float logits[VOCAB];
  mlx_sampling_t options;
  mlx_sampler_t *sampler;
  mlx_sampling_initialize_greedy(&options);
  CHECK(mlx_sampling_is_argmax(&options));
  CHECK_OK(mlx_sampler_create(&options, VOCAB, 2048, &sampler));
  for (int round = 0; round < ROUNDS; ++round) {
    int32_t id, best = 0;
    random_logits(logits, 2);
    logits[round] = logits[VOCAB - 1 - round];  // of equals the first
    for (int i = 1; i < VOCAB; ++i) best = logits[i] > logits[best] ? i : best;
    CHECK_OK(mlx_sampler_choose(sampler, logits, NULL, &id));
    CHECK_INT(id, best);
  }
  mlx_sampler_free(sampler);
  options.repeat_penalty = 1.1;
  CHECK(!mlx_sampling_is_argmax(&options));
  options.repeat_last_n = 0;
  CHECK(mlx_sampling_is_argmax(&options));
  options.temperature = 0.1;
  CHECK(!mlx_sampling_is_argmax(&options));
}

// The paper's loop, with its own sums, fed the tokens that the sampler chose.
TEST(mirostat_follows_its_target) {
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
      slow_t slow = slow_softmax(logits);
      if (version == 1) {
        double products = 0, squares = 0, sorted[VOCAB];
        for (int i = 0; i < VOCAB; ++i) sorted[slow_rank(&slow, i)] = slow.p[i];
        for (int i = 0; i < 99; ++i) {
          products += log((i + 2.0) / (i + 1.0)) * log(sorted[i] / sorted[i + 1]);
          squares += pow(log((i + 2.0) / (i + 1.0)), 2);
        }
        const double s = products / squares, e = s - 1;
        const double k = pow(e * pow(2, mu) / (1 - pow(VOCAB, -e)), 1 / s);
        slow_top_k(&slow, k < 1 ? 1 : k > VOCAB ? VOCAB : (int)k);
      } else {
        bool keep[VOCAB], any = false;
        for (int i = 0; i < VOCAB; ++i) any |= keep[i] = -log2(slow.p[i]) <= mu;
        for (int i = 0; i < VOCAB && !any; ++i) keep[i] = !slow_rank(&slow, i);
        slow_keep(&slow, keep);
      }
      check_same(sampler, logits, NULL, &slow);
      int32_t id;
      CHECK_OK(mlx_sampler_choose(sampler, logits, NULL, &id));
      mu -= 0.1 * (-log2(slow.p[id]) - 3);
      if (round >= 1000) surprise += -log2(slow.p[id]) / 1000;
    }
    fprintf(stderr, "  mirostat %d: surprise %.3f, wanted 3\n", version, surprise);
    CHECK(fabs(surprise - 3) < 0.05);
    mlx_sampler_free(sampler);
  }
}

TEST(logprobs_are_the_log_of_the_softmax) {
  float logits[VOCAB];
  for (int round = 0; round < ROUNDS; ++round) {
    random_logits(logits, 1 + round % 20);
    long double sum = 0;
    for (int i = 0; i < VOCAB; ++i) sum += expl((long double)logits[i]);
    mlx_logprob_t out[11];
    CHECK_OK(mlx_logprobs(logits, VOCAB, round, 10, out));
    const slow_t slow = slow_softmax(logits);
    for (int i = 0; i < 11; ++i) {
      CHECK(fabs(out[i].logprob - (double)((long double)logits[out[i].id] - logl(sum))) < 1e-13);
      if (i < 10) CHECK_INT(slow_rank(&slow, out[i].id), i);
    }
    CHECK_INT(out[10].id, round);
    CHECK_OK(mlx_logprobs(logits, VOCAB, 1, 0, out));
    CHECK_INT(out[0].id, 1);
  }
  mlx_logprob_t out[2];
  CHECK_ERROR(mlx_logprobs(logits, VOCAB, 1, VOCAB + 1, out), MLX_USAGE, "--logprobs 501");
}

TEST(options_that_make_no_sense_are_refused_by_name) {
  mlx_sampling_t options = everything_off();
  options.top_p = 1.5;
  CHECK_ERROR(mlx_sampling_check(&options), MLX_USAGE, "--top-p wants a number from 0 to 1, not 1.5");
  options = everything_off();
  options.temperature = NAN;
  CHECK_ERROR(mlx_sampling_check(&options), MLX_USAGE, "--temp wants");
  options = everything_off();
  options.mirostat = 3;
  CHECK_ERROR(mlx_sampling_check(&options), MLX_USAGE, "--mirostat wants 0, 1 or 2, not 3");
  options = everything_off();
  options.biases = (const mlx_logit_bias_t[]){{1, NAN}};
  options.bias_count = 1;
  CHECK_ERROR(mlx_sampling_check(&options), MLX_USAGE, "--logit-bias wants");
}

TEST_MAIN(CASE(exp_and_log_are_right_to_the_last_places),
          CASE(the_generator_gives_the_numbers_it_always_gave), CASE(every_filter_equals_its_definition),
          CASE(filters_come_in_the_documented_order), CASE(top_n_sigma_and_xtc_equal_their_definitions),
          CASE(drawing_follows_the_probabilities),
          CASE(a_seed_gives_the_same_tokens_every_time_and_another_seed_others),
          CASE(penalties_look_back_on_the_last_n_tokens),
          CASE(dry_penalises_what_would_go_on_with_a_repetition),
          CASE(a_bias_moves_a_token_and_minus_infinity_forbids_it),
          CASE(a_mask_is_obeyed_and_an_empty_one_is_an_error), CASE(temperature_0_is_the_largest_logit),
          CASE(mirostat_follows_its_target), CASE(logprobs_are_the_log_of_the_softmax),
          CASE(options_that_make_no_sense_are_refused_by_name))
