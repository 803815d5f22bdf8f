// Samples one sequence: on the device where it can, else on the host (sampler.h), with the grammar's mask.
#include "runtime/sequence_sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "grammar/matcher.h"
#include "runtime/sampler.h"
#include "runtime/token_rules.h"
#include "runtime/visible.h"

#define NEAR_TIE 1e-5       // difference of two log-probabilities
#define MOST_MASK_WORK 256  // of a mask, in units of |mask_work|: about 3 s

typedef enum mask_state {
  MASK_WANTED,  // no work is done for the next token
  MASK_LATE,
  MASK_READY
} mask_state_t;

struct mlx_sequence_sampler {
  const mlx_language_t *language;
  mlx_sampling_t sampling;   // a copy; its biases are |biases|
  mlx_logit_bias_t *biases;  // owned
  bool is_greedy;            // the options had no sampling
  bool ignore_eos, near_ties, sampled_logprobs;
  int64_t logprobs;        // as in the options
  mlx_sampler_t *sampler;  // NULL: the device samples
  mlx_matcher_t *matcher;  // NULL: no grammar
  mlx_token_rules_t rules;
  uint64_t *allowed;      // [(vocab + 63) / 64] the mask of grammar and rules: one bit per token; NULL: none
  uint32_t *mask;         // the same bits, for the device
  mlx_visible_t visible;  // special tokens that the grammar may require
  bool started;           // the grammar has accepted a token
  mask_state_t mask_state;
  uint64_t mask_work;  // that was done for the mask
  bool is_complete;    // the grammar allows no further text; of a mask that is ready
  mlx_logprob_t *row;  // [logprobs + 1] of the last token
  mlx_text_t piece;    // scratch: the text of one token
};

// ----------------------------------------------------------------------------------------------------------
// Creating

// Adds |id| to the history that the host's penalties look back on.
static mlx_status_t accept(mlx_sequence_sampler_t *s, int32_t id) {
  if (!s->sampler) return NULL;
  s->piece.length = 0;
  mlx_tokenizer_piece(s->language->tokenizer, id, false, false, &s->piece);
  MLX_TRY(mlx_text_finish(&s->piece));
  return mlx_sampler_accept(s->sampler, id, s->piece.data ? s->piece.data : "", s->piece.length);
}

static int compare_biases(const void *a, const void *b) {
  const mlx_logit_bias_t *x = a, *y = b;
  return x->id != y->id ? (x->id < y->id ? -1 : 1) : (x->bias > y->bias) - (x->bias < y->bias);
}

// The device adds one bias to a token: adds up those of the same token.
static size_t merge_biases(mlx_logit_bias_t *biases, size_t count) {
  size_t merged = 0;
  qsort(biases, count, sizeof *biases, compare_biases);
  for (size_t i = 0; i < count; ++i) {
    if (merged && biases[merged - 1].id == biases[i].id)
      biases[merged - 1].bias += biases[i].bias;
    else
      biases[merged++] = biases[i];
  }
  return merged;
}

static mlx_status_t copy_sampling(mlx_sequence_sampler_t *s, const mlx_sampling_t *given) {
  if (!given) {
    s->is_greedy = true;
    mlx_sampling_initialize_greedy(&s->sampling);
    return NULL;
  }
  MLX_TRY(mlx_sampling_check(given));
  MLX_TRY(mlx_sampling_check_biases(given, (size_t)s->language->vocab));
  MLX_TRY(mlx_alloc(given->bias_count, sizeof *s->biases, &s->biases));
  if (given->bias_count) memcpy(s->biases, given->biases, given->bias_count * sizeof *s->biases);
  s->sampling = *given;
  s->sampling.biases = s->biases;
  s->sampling.bias_count = given->bias_count ? merge_biases(s->biases, given->bias_count) : 0;
  return NULL;
}

static mlx_status_t fill(mlx_sequence_sampler_t *s, const mlx_generate_options_t *options,
                         bool device_samples, const int32_t *ids, size_t count) {
  const size_t vocab = (size_t)s->language->vocab;
  MLX_TRY(copy_sampling(s, options->sampling));
  if (!device_samples || s->sampled_logprobs || !mlx_sampling_runs_on_device(&s->sampling)) {
    MLX_TRY(mlx_sampler_create(&s->sampling, vocab, s->language->context, &s->sampler));
    for (size_t i = 0; i < count; ++i) MLX_TRY(accept(s, ids[i]));
  }
  s->sampling.dry_breakers = NULL;  // borrowed only for this call; the host's sampler has its own copy
  s->sampling.dry_breaker_count = 0;
  if (s->logprobs >= 0) MLX_TRY(mlx_alloc((size_t)s->logprobs + 1, sizeof *s->row, &s->row));
  const mlx_language_t *language = s->language;
  MLX_TRY(
      mlx_token_rules_initialize(options, language->eos, language->eos_count, language->vocab, &s->rules));
  if (!options->grammar && !mlx_token_rules_apply_next(&s->rules)) return NULL;
  MLX_TRY(mlx_alloc((vocab + 63) / 64, sizeof *s->allowed, &s->allowed));
  MLX_TRY(mlx_alloc((vocab + 63) / 64, sizeof *s->allowed, &s->mask));
  if (!options->grammar) return NULL;
  MLX_TRY(
      mlx_visible_initialize(options, language->tokenizer, language->eos, language->eos_count, &s->visible));
  return mlx_matcher_create_later(options->grammar, &s->matcher);
}

mlx_status_t mlx_sequence_sampler_create(const mlx_language_t *language,
                                         const mlx_generate_options_t *options, bool device_samples,
                                         bool near_ties, const int32_t *ids, size_t count,
                                         mlx_sequence_sampler_t **out_sampler) {
  mlx_sequence_sampler_t *s;
  *out_sampler = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *s, &s));
  s->language = language;
  s->logprobs = options->logprobs;
  s->sampled_logprobs = options->sampled_logprobs && options->logprobs >= 0;
  s->ignore_eos = options->ignore_eos;
  s->near_ties = near_ties;
  mlx_status_t status = fill(s, options, device_samples, ids, count);
  if (status) {
    mlx_sequence_sampler_free(s);
    return status;
  }
  *out_sampler = s;
  return NULL;
}

void mlx_sequence_sampler_free(mlx_sequence_sampler_t *s) {
  if (!s) return;
  mlx_free(s->biases);
  mlx_sampler_free(s->sampler);
  mlx_matcher_free(s->matcher);
  mlx_token_rules_clear(&s->rules);
  mlx_visible_clear(&s->visible);
  mlx_free(s->allowed);
  mlx_free(s->mask);
  mlx_free(s->row);
  mlx_text_clear(&s->piece);
  mlx_free(s);
}

static bool has_mask(const mlx_sequence_sampler_t *s) {
  return s->matcher || mlx_token_rules_apply_next(&s->rules);
}

bool mlx_sequence_sampler_reads_logits(const mlx_sequence_sampler_t *s) {
  return s->sampler || s->logprobs > MLX_TOP_LOGPROBS;
}

bool mlx_sequence_sampler_is_synchronous(const mlx_sequence_sampler_t *s) {
  return has_mask(s) || mlx_sequence_sampler_reads_logits(s);
}

int64_t mlx_sequence_sampler_burst_limit(const mlx_sequence_sampler_t *s) {
  const mlx_sampling_t *o = &s->sampling;
  const bool few =
      (o->top_k >= 1 && o->top_k <= MLX_BURST_TOP_K) || (o->temperature <= 0 && o->typical_p >= 1);
  if (!few || mlx_sequence_sampler_reads_logits(s) || s->logprobs >= 0 || s->near_ties) return 0;
  return has_mask(s) ? 1 : MLX_BURST_TOKENS;
}

bool mlx_sequence_sampler_looks_back(const mlx_sequence_sampler_t *s) {
  return !s->sampler && s->sampling.repeat_last_n &&
         (s->sampling.repeat_penalty != 1 || s->sampling.frequency_penalty != 0 ||
          s->sampling.presence_penalty != 0);
}

// ----------------------------------------------------------------------------------------------------------
// Grammar

// Allows the visible special tokens that the grammar accepts here. The vocabulary does not have them.
static mlx_status_t allow_visible(mlx_sequence_sampler_t *s) {
  for (size_t i = 0; i < s->visible.count && !mlx_matcher_is_paused(s->matcher); ++i) {
    const int32_t id = s->visible.ids[i];
    bool accepted;
    s->piece.length = 0;
    mlx_tokenizer_piece(s->language->tokenizer, id, !s->started, false, &s->piece);
    MLX_TRY(mlx_text_finish(&s->piece));
    if (id >= s->language->vocab || !s->piece.length) continue;
    MLX_TRY(mlx_matcher_allows(s->matcher, s->piece.data, s->piece.length, &accepted));
    if (accepted) s->allowed[id / 64] |= (uint64_t)1 << id % 64;
  }
  return NULL;
}

// Ends the mask whose tokens with text are in |allowed|. An end-of-text token is allowed exactly where the
// text may end.
static mlx_status_t end_mask(mlx_sequence_sampler_t *s) {
  const mlx_language_t *language = s->language;
  const size_t words = ((size_t)language->vocab + 63) / 64;
  const bool complete = mlx_matcher_is_complete(s->matcher);
  for (size_t i = 0; i < language->eos_count && !s->ignore_eos; ++i) {
    const int32_t eos = language->eos[i];
    const uint64_t bit = (uint64_t)1 << eos % 64;
    if (eos >= language->vocab) continue;
    s->allowed[eos / 64] = complete ? s->allowed[eos / 64] | bit : s->allowed[eos / 64] & ~bit;
  }
  mlx_token_rules_filter(&s->rules, s->allowed);
  bool any = false;
  for (size_t i = 0; i < words; ++i) any |= s->allowed[i] != 0;
  s->is_complete = complete && !any;
  s->mask_state = MASK_READY;
  memcpy(s->mask, s->allowed, words * sizeof *s->allowed);  // little-endian: the bits keep their order
  if (any || complete) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "the grammar requires text that no token of the model begins with"),
      "change the grammar: the model's vocabulary lacks a character that it requires");
}

static uint64_t first_work(const mlx_sequence_sampler_t *s) {
  return s->language->mask_work ? s->language->mask_work : MLX_MASK_WORK;
}

static mlx_status_t too_slow(void) {
  return mlx_status_hint(
      mlx_error(MLX_TIMEOUT, "the grammar is too slow: finding the tokens that may come next takes too long"),
      "use fewer optional parts in a row: [a-z]* instead of many times [a-z]?");
}

// Goes on with the mask by |work|.
static mlx_status_t work_on_mask(mlx_sequence_sampler_t *s, uint64_t work) {
  const mlx_language_t *language = s->language;
  const mlx_vocabulary_t *vocabulary;
  if (s->mask_work / MOST_MASK_WORK > first_work(s)) return too_slow();
  MLX_TRY(language->vocabulary(language->engine, !s->started, &vocabulary));
  s->mask_state = MASK_LATE;
  s->mask_work += work;
  mlx_matcher_allow_work(s->matcher, work);
  MLX_TRY(mlx_matcher_mask(s->matcher, vocabulary, s->allowed));
  MLX_TRY(allow_visible(s));
  return mlx_matcher_is_paused(s->matcher) ? NULL : end_mask(s);
}

mlx_status_t mlx_sequence_sampler_work(mlx_sequence_sampler_t *s) {
  return work_on_mask(s, (first_work(s) + 7) / 8);
}

uint64_t mlx_sequence_sampler_late_work(const mlx_sequence_sampler_t *s) {
  return s->mask_state == MASK_LATE ? s->mask_work : 0;
}

// Advances the grammar's matcher by the text of |id|.
static mlx_status_t advance_grammar(mlx_sequence_sampler_t *s, int32_t id) {
  bool accepted;
  s->piece.length = 0;
  mlx_tokenizer_piece(s->language->tokenizer, id, !s->started, !mlx_visible_has(&s->visible, id), &s->piece);
  MLX_TRY(mlx_text_finish(&s->piece));
  s->started = true;
  s->mask_state = MASK_WANTED;
  s->mask_work = 0;
  for (size_t i = 0; i < s->language->eos_count && !s->ignore_eos; ++i) {
    if (s->language->eos[i] == id) return NULL;
  }
  MLX_TRY(mlx_matcher_accept(s->matcher, s->piece.data, s->piece.length, &accepted));
  return accepted
             ? NULL
             : mlx_error(MLX_INTERNAL, "the grammar's mask allowed token %d, but its matcher refuses it", id);
}

// ----------------------------------------------------------------------------------------------------------
// Sampling

// The mask of a sequence without a grammar. Bits after the last token are not read.
static void fill_rules_mask(mlx_sequence_sampler_t *s) {
  const size_t bytes = s->rules.words * sizeof *s->allowed;
  memset(s->allowed, 0xff, bytes);
  mlx_token_rules_filter(&s->rules, s->allowed);
  memcpy(s->mask, s->allowed, bytes);  // little-endian: the bits keep their order
}

mlx_status_t mlx_sequence_sampler_prepare(mlx_sequence_sampler_t *s, mlx_step_sampling_t *out,
                                          mlx_readiness_t *out_readiness) {
  *out = (mlx_step_sampling_t){.sampling = s->is_greedy ? NULL : &s->sampling};
  *out_readiness = MLX_SAMPLER_READY;
  if (!s->matcher && has_mask(s)) fill_rules_mask(s);
  if (s->matcher) {
    if (s->mask_state == MASK_WANTED) MLX_TRY(work_on_mask(s, first_work(s)));
    *out_readiness = s->mask_state == MASK_LATE ? MLX_SAMPLER_LATE
                     : s->is_complete           ? MLX_SAMPLER_COMPLETE
                                                : MLX_SAMPLER_READY;
  }
  if (s->sampler) return NULL;
  out->flags = MLX_SAMPLE_TOKEN;
  out->mask = has_mask(s) ? s->mask : NULL;
  if (s->logprobs >= 0 && s->logprobs <= MLX_TOP_LOGPROBS) {
    out->flags |= MLX_SAMPLE_LOGPROB;
    out->top_logprobs = (int32_t)s->logprobs;
  }
  if (s->near_ties) {
    out->flags |= MLX_SAMPLE_LOGPROB;
    if (out->top_logprobs < 2) out->top_logprobs = 2;
  }
  return NULL;
}

static mlx_status_t not_finite_error(size_t length) {
  return mlx_status_hint(
      mlx_error(MLX_INVALID_INPUT, "the model computes values that are not finite: after %zu tokens", length),
      "the weights are damaged, or too large for their type: fetch the model again, or use --dtype f32");
}

static bool is_finite(const float *logits, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (!isfinite(logits[i])) return false;
  }
  return true;
}

// Samples on the host, and reports the distribution that the token is drawn from.
static mlx_status_t sample_and_report(mlx_sequence_sampler_t *s, const float *logits, int32_t *out_id) {
  const size_t wanted = (size_t)s->logprobs;
  const mlx_sampler_token_t *tokens;
  size_t count;
  MLX_TRY(mlx_sampler_sample_listed(s->sampler, logits, has_mask(s) ? s->allowed : NULL, out_id, &tokens,
                                    &count));
  for (size_t i = 0; i < wanted; ++i) {
    const bool remains = i < count && tokens[i].probability > 0;
    s->row[i] =
        (mlx_logprob_t){remains ? tokens[i].id : -1, remains ? log(tokens[i].probability) : -INFINITY};
  }
  for (size_t i = 0; i < count; ++i) {
    if (tokens[i].id == *out_id) s->row[wanted] = (mlx_logprob_t){*out_id, log(tokens[i].probability)};
  }
  return NULL;
}

static mlx_status_t choose_token(mlx_sequence_sampler_t *s, size_t length, const mlx_step_result_t *result,
                                 const float *logits, int32_t *out_id) {
  if (result->not_finite || (logits && !is_finite(logits, (size_t)s->language->vocab)))
    return not_finite_error(length);
  if (s->sampled_logprobs) return sample_and_report(s, logits, out_id);
  if (s->sampler) return mlx_sampler_sample(s->sampler, logits, has_mask(s) ? s->allowed : NULL, out_id);
  *out_id = result->token;
  if (*out_id >= 0 && *out_id < s->language->vocab) return NULL;
  if (!has_mask(s) && !s->sampling.bias_count) {
    return mlx_status_hint(
        mlx_error(MLX_INVALID_INPUT, "the module sampled no token: it does not match its manifest"),
        "compile the model again");
  }
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "no token remains: the sampling options exclude every token"),
      "remove biases of -inf, allow more tokens, or change the grammar");
}

// Fills |row|: the |count| most likely tokens, then |id|.
static mlx_status_t report_logprobs(const mlx_sequence_sampler_t *s, const mlx_step_result_t *result,
                                    const float *logits, int32_t id, size_t count, mlx_logprob_t *row) {
  if (logits) return mlx_logprobs(logits, (size_t)s->language->vocab, id, count, row);
  row[count] = (mlx_logprob_t){id, (double)result->logprob};
  for (size_t i = 0; i < count; ++i) {
    row[i] = (mlx_logprob_t){result->top_ids[i], (double)result->top_logprobs[i]};
    if (row[i].id == id) row[count] = row[i];  // clients compare the two numbers
  }
  return NULL;
}

mlx_status_t mlx_sequence_sampler_score(const mlx_sequence_sampler_t *s, size_t length,
                                        const mlx_step_result_t *result, const float *logits, int32_t target,
                                        size_t count, mlx_logprob_t *out_row) {
  if (result->not_finite ||
      (logits ? !is_finite(logits, (size_t)s->language->vocab) : isnan(result->logprob)))
    return not_finite_error(length);
  return report_logprobs(s, result, logits, target, count, out_row);
}

static mlx_status_t find_near_tie(const mlx_sequence_sampler_t *s, const mlx_step_result_t *result,
                                  const float *logits, int32_t id, bool *out_near_tie) {
  mlx_logprob_t best[3];
  if (logits) {
    MLX_TRY(mlx_logprobs(logits, (size_t)s->language->vocab, id, 2, best));
    *out_near_tie = best[0].logprob - best[1].logprob < NEAR_TIE;
  } else {
    *out_near_tie = (double)result->top_logprobs[0] - (double)result->top_logprobs[1] < NEAR_TIE;
  }
  return NULL;
}

mlx_status_t mlx_sequence_sampler_choose(mlx_sequence_sampler_t *s, size_t length,
                                         const mlx_step_result_t *result, const float *logits,
                                         mlx_choice_t *out) {
  *out = (mlx_choice_t){.id = -1};
  MLX_TRY(choose_token(s, length, result, logits, &out->id));
  mlx_token_rules_accept(&s->rules, out->id);
  if (s->matcher) MLX_TRY(advance_grammar(s, out->id));
  if (s->row && !s->sampled_logprobs)
    MLX_TRY(report_logprobs(s, result, logits, out->id, (size_t)s->logprobs, s->row));
  if (s->near_ties && s->language->vocab > 1)
    MLX_TRY(find_near_tie(s, result, logits, out->id, &out->near_tie));
  out->logprobs = s->row;
  return accept(s, out->id);
}
