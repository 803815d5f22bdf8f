// A simulated module for tests of the scheduler. Its KV pages hold hashes. The logits of a token are a hash
// of all KV that the token sees through the page table, so a wrong page, a missing copy or a wrong position
// changes every later token. With window pages it has two layers: one with a window, and after it one that
// sees all positions. They have the same KV, in different pages.
//
// Nothing is computed before it is waited for: a queued step runs in the call of wait.
#ifndef MLXCEL_TESTS_FAKE_STEPPER_H_
#define MLXCEL_TESTS_FAKE_STEPPER_H_

#include <math.h>

#include "runtime/stepper.h"
#include "tests/support/check.h"

#define FAKE_VOCAB 320
#define FAKE_POISON 9    // a sequence that begins with this token has logits that are not finite
#define FAKE_NEAR_TIE 8  // after a prefix whose last token is this one, the two best logits are equal

// Not mlx_alloc: tests make that fail.
static inline void *fake_alloc(size_t count, size_t size) {
  void *block = calloc(count ? count : 1, size);
  CHECK(block);
  return block;
}

static inline uint64_t fake_mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// The KV of a token, from the hash of the KV before it.
static inline uint64_t fake_kv(uint64_t before, int32_t token, int64_t position) {
  return fake_mix(fake_mix(before, (uint64_t)token), (uint64_t)position) | 1;
}

static inline void fake_logits(uint64_t state, int32_t first_token, int32_t last_token, float *out) {
  int best = 0;
  for (int i = 0; i < FAKE_VOCAB; ++i) {
    out[i] = (float)(fake_mix(state, (uint64_t)i) >> 40) / (float)(1 << 22) - 2;  // -2 to 2
    if (out[i] > out[best]) best = i;
  }
  if (last_token == FAKE_NEAR_TIE) out[best ? best - 1 : 1] = out[best];
  if (first_token == FAKE_POISON) out[17] = NAN;
}

typedef struct fake_answer {
  mlx_step_result_t result;
  int32_t top_ids[MLX_TOP_LOGPROBS];
  float top_logprobs[MLX_TOP_LOGPROBS];
} fake_answer_t;

// Samples as a device would: a function of the logits, the options, the position and the tokens in |history|.
static inline void fake_sample(const float *logits, uint64_t state, const mlx_step_sampling_t *wanted,
                               const int32_t *history, int64_t position, fake_answer_t *out) {
  *out = (fake_answer_t){.result = {.token = -1}};
  double sum = 0;
  for (int i = 0; i < FAKE_VOCAB; ++i) {
    if (!isfinite(logits[i])) out->result.not_finite = true;
    sum += exp((double)logits[i]);
  }
  int32_t allowed[FAKE_VOCAB], count = 0, best = -1;
  for (int32_t i = 0; i < FAKE_VOCAB; ++i) {
    if (wanted->mask && !(wanted->mask[i / 32] >> i % 32 & 1)) continue;
    allowed[count++] = i;
    if (best < 0 || logits[i] > logits[best]) best = i;
  }
  const mlx_sampling_t *s = wanted->sampling;
  if (wanted->flags & MLX_SAMPLE_TOKEN && count) {
    uint64_t draw = s ? fake_mix(fake_mix(state, s->seed), (uint64_t)position) : 0;
    if (s && (s->presence_penalty != 0 || s->repeat_penalty != 1)) {
      for (int64_t i = position - 1; i >= 0 && i >= position - s->repeat_last_n; --i)
        draw = fake_mix(draw, (uint64_t)history[i]);
    }
    for (size_t i = 0; s && i < s->bias_count; ++i) draw = fake_mix(draw, (uint64_t)s->biases[i].id);
    out->result.token = s && s->temperature > 0 ? allowed[draw % (uint64_t)count] : best;
  }
  if (!(wanted->flags & (MLX_SAMPLE_LOGPROB | MLX_SAMPLE_SCORE))) return;
  bool used[FAKE_VOCAB] = {false};
  for (int32_t n = 0; wanted->flags & MLX_SAMPLE_LOGPROB && n < wanted->top_logprobs; ++n) {
    int32_t top = -1;
    for (int32_t i = 0; i < FAKE_VOCAB; ++i) {
      if (!used[i] && (top < 0 || logits[i] > logits[top])) top = i;
    }
    used[top] = true;
    out->top_ids[n] = top;
    out->top_logprobs[n] = (float)((double)logits[top] - log(sum));
  }
  const int32_t scored = wanted->flags & MLX_SAMPLE_SCORE ? wanted->target : out->result.token;
  if (scored >= 0) out->result.logprob = (float)((double)logits[scored] - log(sum));
}

// ----------------------------------------------------------------------------------------------------------
// The queue

typedef enum fake_kind { FAKE_STEP, FAKE_BURST, FAKE_COPY, FAKE_COPY_WINDOW, FAKE_TOKENS } fake_kind_t;

typedef struct fake_part {  // a segment
  mlx_segment_t segment;
  int32_t *ids, *pages, *windows;  // copies
  mlx_step_sampling_t wanted;
  mlx_step_sampling_t *each;  // a copy; NULL: none
  mlx_sampling_t sampling;
  mlx_logit_bias_t biases[4];
  uint32_t mask[FAKE_VOCAB / 32];
} fake_part_t;

struct mlx_ticket {  // also a copy of a page, or tokens to store
  fake_kind_t kind;
  fake_part_t *parts;
  size_t part_count;
  int32_t burst, eos[MLX_STEP_MAX_EOS], from, to;
  size_t eos_count;
  struct mlx_ticket *next;
};

typedef struct fake {
  mlx_stepper_t base;
  uint64_t *kv;           // [pool_pages][MLX_KV_PAGE]; 0: never written
  int32_t *history;       // [slots][width]
  int32_t *pages;         // [slots][slot_pages]
  uint64_t *window_kv;    // [window_pages][MLX_KV_PAGE]; 0: never written
  int32_t *window_table;  // [slots][slot_pages]
  int64_t width;
  mlx_ticket_t *first;  // the queue
  int open, most_open;
  fake_answer_t *answers;  // of the last wait
  mlx_step_result_t *results;
  float (*logits)[FAKE_VOCAB];  // of the last wait
  size_t answer_count;
  int64_t buckets[4][2];                                        // for fits; [0][0] 0: none
  int64_t steps, bursts, burst_tokens, copies, mixed, fail_at;  // fail_at: the step that fails; 0: none
  int64_t largest_chunk;              // most prompt tokens of a step that also decodes
  double (*seconds)(int64_t tokens);  // of a step, which |*clock| counts; NULL: steps take no time
  double *clock;
  bool has_sizes;  // the functions of |buckets| take the time of their size
} fake_t;

// The first position that a token at |position| sees.
static inline int64_t fake_first_seen(int64_t window, int64_t position) {
  return window && position >= window ? position + 1 - window : 0;
}

// The hash of the KV that a token at |position| sees from |first| on, through a page table. Its own KV is
// computed from what it sees before and |input|, and stored.
static inline uint64_t fake_layer(uint64_t *pool, int64_t pool_pages, const int32_t *pages, int32_t first,
                                  int32_t position, int32_t token, uint64_t input) {
  uint64_t state = input;
  for (int32_t i = first; i <= position; ++i) {
    const int32_t page = pages[i / MLX_KV_PAGE];
    CHECK(page > 0 && page < pool_pages);
    uint64_t *kv = &pool[page * MLX_KV_PAGE + i % MLX_KV_PAGE];
    if (i == position) *kv = fake_kv(state, token, position);
    if (!*kv) CHECK_FAIL("position %d is read, but was never written", i);
    state = fake_mix(state, *kv);
  }
  return state;
}

static inline int32_t fake_compute(fake_t *f, const fake_part_t *part, int32_t index, int32_t token,
                                   const mlx_step_sampling_t *wanted, size_t row) {
  const int32_t slot = part->segment.slot, position = part->segment.position + index;
  int32_t *history = f->history + slot * f->width;
  CHECK(position < f->base.slot_pages * MLX_KV_PAGE);
  if (token == MLX_TOKEN_SAMPLED) token = history[position];
  if (token < 0 || token >= FAKE_VOCAB) CHECK_FAIL("slot %d, position %d: token %d", slot, position, token);
  history[position] = token;
  const int32_t first = (int32_t)fake_first_seen(f->base.window, position);
  const bool both = f->base.window_pages != 0;
  uint64_t state = 0;
  if (both) state = fake_layer(f->window_kv, f->base.window_pages, part->windows, first, position, token, 0);
  state = fake_layer(f->kv, f->base.pool_pages, part->pages, both ? 0 : first, position, token, state);
  if (!wanted) return -1;
  const bool poisoned = !f->base.window && f->kv[part->pages[0] * MLX_KV_PAGE] == fake_kv(0, FAKE_POISON, 0);
  fake_logits(state, poisoned ? FAKE_POISON : 0, token, f->logits[row]);
  fake_sample(f->logits[row], state, wanted, history, position + 1, &f->answers[row]);
  if (f->answers[row].result.token >= 0) history[position + 1] = f->answers[row].result.token;
  return f->answers[row].result.token;
}

static inline void fake_run_step(fake_t *f, const mlx_ticket_t *t) {
  f->answer_count = 0;
  for (size_t i = 0; i < t->part_count; ++i) {
    const fake_part_t *part = &t->parts[i];
    for (int32_t n = 0; n < part->segment.count; ++n) {
      const int32_t unwanted = part->segment.unwanted;
      const mlx_step_sampling_t *wanted = part->each && n >= unwanted ? &part->each[n - unwanted] : NULL;
      if (part->segment.wanted && n + 1 == part->segment.count) wanted = &part->wanted;
      CHECK((int64_t)f->answer_count < f->base.max_wanted || !wanted);
      fake_compute(f, part, n, part->ids ? part->ids[n] : MLX_TOKEN_SAMPLED, wanted, f->answer_count);
      f->answer_count += wanted != NULL;
    }
  }
}

static inline int64_t fake_size(const mlx_stepper_t *base, int64_t tokens, int64_t wanted) {
  const fake_t *f = (const fake_t *)base;
  for (int i = 0; i < 4; ++i) {
    if (tokens <= f->buckets[i][0] && wanted <= f->buckets[i][1]) return f->buckets[i][0];
  }
  return 0;
}

static inline void fake_count_time(fake_t *f, const mlx_ticket_t *t) {
  int64_t tokens = 0, wanted = 0;
  if (!f->seconds) return;
  for (size_t i = 0; i < t->part_count; ++i) {
    tokens += t->parts[i].segment.count;
    wanted += t->parts[i].segment.wanted != NULL;
  }
  *f->clock += f->seconds(f->has_sizes ? fake_size(&f->base, tokens, wanted) : tokens);
}

static inline void fake_run_burst(fake_t *f, const mlx_ticket_t *t) {
  bool ended = false;
  f->answer_count = 0;
  for (int32_t n = 0; n < t->burst && !ended; ++n) {
    const int32_t token =
        fake_compute(f, t->parts, n, n || !t->parts->ids ? MLX_TOKEN_SAMPLED : t->parts->ids[0],
                     &t->parts->wanted, f->answer_count++);
    for (size_t i = 0; i < t->eos_count; ++i) ended |= token == t->eos[i];
  }
  // As on a device: row 0 has the logits of the last token.
  memcpy(f->logits[0], f->logits[f->answer_count - 1], sizeof f->logits[0]);
  f->burst_tokens += (int64_t)f->answer_count;
}

static inline void fake_free_ticket(mlx_ticket_t *t) {
  for (size_t i = 0; i < t->part_count; ++i) {
    free(t->parts[i].ids);
    free(t->parts[i].each);
    free(t->parts[i].pages);
    free(t->parts[i].windows);
  }
  free(t->parts);
  free(t);
}

static inline mlx_status_t fake_wait(mlx_stepper_t *base, mlx_ticket_t *ticket,
                                     const mlx_step_result_t **out_results, size_t *out_count) {
  fake_t *f = (fake_t *)base;
  for (bool last = false; !last;) {
    mlx_ticket_t *t = f->first;
    CHECK(t);
    last = t == ticket;
    CHECK(last || (t->kind != FAKE_STEP && t->kind != FAKE_BURST));  // steps are waited for in their order
    f->first = t->next;
    if (t->kind == FAKE_COPY) {
      memcpy(f->kv + t->to * MLX_KV_PAGE, f->kv + t->from * MLX_KV_PAGE, MLX_KV_PAGE * sizeof *f->kv);
    } else if (t->kind == FAKE_COPY_WINDOW) {
      memcpy(f->window_kv + t->to * MLX_KV_PAGE, f->window_kv + t->from * MLX_KV_PAGE,
             MLX_KV_PAGE * sizeof *f->window_kv);
    } else if (t->kind == FAKE_TOKENS) {
      memcpy(f->history + t->parts->segment.slot * f->width + t->parts->segment.position, t->parts->ids,
             (size_t)t->parts->segment.count * sizeof *f->history);
    } else if (t->kind == FAKE_BURST) {
      fake_run_burst(f, t);
    } else {
      fake_run_step(f, t);
      fake_count_time(f, t);
    }
    fake_free_ticket(t);
  }
  --f->open;
  if (f->fail_at && ++f->steps >= f->fail_at) {
    f->fail_at = 0;
    return mlx_error(MLX_UNAVAILABLE, "the simulated device failed");
  }
  for (size_t i = 0; i < f->answer_count; ++i) {
    f->results[i] = f->answers[i].result;
    f->results[i].top_ids = f->answers[i].top_ids;
    f->results[i].top_logprobs = f->answers[i].top_logprobs;
  }
  *out_results = f->results;
  *out_count = f->answer_count;
  return NULL;
}

static inline void fake_enqueue(fake_t *f, mlx_ticket_t *ticket) {
  mlx_ticket_t **end = &f->first;
  while (*end) end = &(*end)->next;
  *end = ticket;
}

// Copies a segment: the caller's memory is borrowed only for the call.
static inline void fake_copy_part(fake_t *f, const mlx_segment_t *segment, fake_part_t *out) {
  out->segment = *segment;
  CHECK(segment->slot >= 0 && segment->slot < f->base.slots && segment->count > 0);
  CHECK(segment->ids || segment->count == 1);
  out->pages = fake_alloc((size_t)f->base.slot_pages, sizeof *out->pages);
  memcpy(out->pages, f->pages + segment->slot * f->base.slot_pages,
         (size_t)f->base.slot_pages * sizeof *out->pages);
  if (f->window_table) {
    out->windows = fake_alloc((size_t)f->base.slot_pages, sizeof *out->windows);
    memcpy(out->windows, f->window_table + segment->slot * f->base.slot_pages,
           (size_t)f->base.slot_pages * sizeof *out->windows);
  }
  if (segment->ids) {
    out->ids = fake_alloc((size_t)segment->count, sizeof *out->ids);
    memcpy(out->ids, segment->ids, (size_t)segment->count * sizeof *out->ids);
  }
  if (segment->each) {
    CHECK(!segment->wanted);
    const size_t count = (size_t)(segment->count - segment->unwanted);
    out->each = fake_alloc(count, sizeof *out->each);
    memcpy(out->each, segment->each, count * sizeof *out->each);
  }
  if (!segment->wanted) return;
  out->wanted = *segment->wanted;
  if (out->wanted.sampling) {
    out->sampling = *out->wanted.sampling;
    CHECK(out->sampling.bias_count <= 4);
    if (out->sampling.bias_count)
      memcpy(out->biases, out->sampling.biases, out->sampling.bias_count * sizeof *out->biases);
    out->sampling.biases = out->biases;
    out->wanted.sampling = &out->sampling;
  }
  if (out->wanted.mask) memcpy(out->mask, out->wanted.mask, sizeof out->mask);
  if (out->wanted.mask) out->wanted.mask = out->mask;
}

static inline mlx_ticket_t *fake_ticket(fake_t *f, fake_kind_t kind, const mlx_segment_t *segments,
                                        size_t count) {
  mlx_ticket_t *t;
  t = fake_alloc(1, sizeof *t);
  t->parts = fake_alloc(count, sizeof *t->parts);
  t->kind = kind;
  t->part_count = count;
  for (size_t i = 0; i < count; ++i) fake_copy_part(f, &segments[i], &t->parts[i]);
  fake_enqueue(f, t);
  return t;
}

// ----------------------------------------------------------------------------------------------------------
// The calls

static inline bool fake_fits(const mlx_stepper_t *base, int64_t tokens, int64_t wanted) {
  return fake_size(base, tokens, wanted) != 0;
}

static inline mlx_status_t fake_set_page(mlx_stepper_t *base, int32_t slot, int32_t nth, int32_t page) {
  CHECK(slot >= 0 && slot < base->slots && nth >= 0 && nth < base->slot_pages &&
        page >= (base->window && !base->window_pages ? 0 : 1));
  ((fake_t *)base)->pages[slot * base->slot_pages + nth] = page;
  return NULL;
}

static inline mlx_status_t fake_set_window_page(mlx_stepper_t *base, int32_t slot, int32_t nth,
                                                int32_t page) {
  CHECK(slot >= 0 && slot < base->slots && nth >= 0 && nth < base->slot_pages && page >= 0 &&
        page < base->window_pages);
  ((fake_t *)base)->window_table[slot * base->slot_pages + nth] = page;
  return NULL;
}

static inline mlx_status_t fake_set_tokens(mlx_stepper_t *base, int32_t slot, int32_t position,
                                           const int32_t *ids, size_t count) {
  const mlx_segment_t segment = {.slot = slot, .position = position, .count = (int32_t)count, .ids = ids};
  fake_ticket((fake_t *)base, FAKE_TOKENS, &segment, 1);
  return NULL;
}

static inline mlx_status_t fake_copy_page(mlx_stepper_t *base, int32_t from, int32_t to) {
  mlx_ticket_t *t = fake_ticket((fake_t *)base, FAKE_COPY, NULL, 0);
  CHECK(from > 0 && to > 0 && from != to);
  t->from = from;
  t->to = to;
  ++((fake_t *)base)->copies;
  return NULL;
}

static inline mlx_status_t fake_copy_window_page(mlx_stepper_t *base, int32_t from, int32_t to) {
  mlx_ticket_t *t = fake_ticket((fake_t *)base, FAKE_COPY_WINDOW, NULL, 0);
  CHECK(from > 0 && to > 0 && from != to);
  t->from = from;
  t->to = to;
  return NULL;
}

static inline void fake_open(fake_t *f) {
  CHECK(++f->open <= MLX_STEPPER_DEPTH);
  if (f->open > f->most_open) f->most_open = f->open;
}

static inline mlx_status_t fake_submit(mlx_stepper_t *base, const mlx_segment_t *segments, size_t count,
                                       mlx_ticket_t **out_ticket) {
  fake_t *f = (fake_t *)base;
  int64_t tokens = 0, wanted = 0, prompt = 0;
  bool seen[256] = {false}, one = false;
  CHECK(count && (base->ragged || count == 1));
  for (size_t i = 0; i < count; ++i) {
    CHECK(!seen[segments[i].slot]);
    seen[segments[i].slot] = true;
    tokens += segments[i].count;
    wanted += segments[i].each ? segments[i].count - segments[i].unwanted : segments[i].wanted != NULL;
    one |= segments[i].count == 1;
    if (segments[i].count > 1) prompt += segments[i].count;
  }
  CHECK(tokens <= base->max_tokens && wanted <= base->max_wanted);
  CHECK(!base->fits || base->fits(base, tokens, wanted));
  f->mixed += one && prompt;
  if (one && prompt > f->largest_chunk) f->largest_chunk = prompt;
  fake_open(f);
  *out_ticket = fake_ticket(f, FAKE_STEP, segments, count);
  return NULL;
}

static inline mlx_status_t fake_submit_burst(mlx_stepper_t *base, const mlx_segment_t *segment,
                                             int32_t tokens, const int32_t *eos, size_t eos_count,
                                             mlx_ticket_t **out_ticket) {
  fake_t *f = (fake_t *)base;
  CHECK(segment->count == 1 && tokens >= 1 && tokens <= base->burst && eos_count <= MLX_STEP_MAX_EOS);
  fake_open(f);
  ++f->bursts;
  mlx_ticket_t *t = fake_ticket(f, FAKE_BURST, segment, 1);
  t->burst = tokens;
  t->eos_count = eos_count;
  if (eos_count) memcpy(t->eos, eos, eos_count * sizeof *eos);
  *out_ticket = t;
  return NULL;
}

static inline mlx_status_t fake_read_logits(mlx_stepper_t *base, size_t row, float *out_logits) {
  fake_t *f = (fake_t *)base;
  CHECK(!f->open);  // a queued step would overwrite them
  CHECK(row < f->answer_count);
  memcpy(out_logits, f->logits[row], sizeof f->logits[row]);
  return NULL;
}

#define FAKE_HIDDEN 8  // a hidden state is the first logits

static inline mlx_status_t fake_read_hidden(mlx_stepper_t *base, size_t row, float *out_hidden) {
  fake_t *f = (fake_t *)base;
  CHECK(!f->open);
  CHECK(row < f->answer_count);
  for (int i = 0; i < FAKE_HIDDEN; ++i) out_hidden[i] = f->logits[row][10 + i];
  return NULL;
}

// Fills in the calls and the memory; the caller has set the limits. Release with fake_clear.
static inline void fake_start(fake_t *f) {
  mlx_stepper_t *base = &f->base;
  const size_t rows = (size_t)(base->max_tokens > MLX_BURST_TOKENS ? base->max_tokens : MLX_BURST_TOKENS);
  f->width = (base->slot_pages + 1) * MLX_KV_PAGE;
  base->vocab = FAKE_VOCAB;
  if (f->buckets[0][0]) base->fits = fake_fits;
  if (f->has_sizes) base->size = fake_size;
  base->set_page = fake_set_page;
  base->set_tokens = fake_set_tokens;
  base->submit = fake_submit;
  base->submit_burst = fake_submit_burst;
  base->wait = fake_wait;
  base->read_logits = fake_read_logits;
  base->read_hidden = fake_read_hidden;
  base->hidden = FAKE_HIDDEN;
  base->copy_page = fake_copy_page;
  base->set_window_page = fake_set_window_page;
  base->copy_window_page = fake_copy_window_page;
  if (base->window_pages) {
    f->window_kv = fake_alloc((size_t)base->window_pages * MLX_KV_PAGE, sizeof *f->window_kv);
    f->window_table = fake_alloc((size_t)(base->slots * base->slot_pages), sizeof *f->window_table);
  }
  f->kv = fake_alloc((size_t)base->pool_pages * MLX_KV_PAGE, sizeof *f->kv);
  f->history = fake_alloc((size_t)(base->slots * f->width), sizeof *f->history);
  memset(f->history, 0xff, (size_t)(base->slots * f->width) * sizeof *f->history);
  f->pages = fake_alloc((size_t)(base->slots * base->slot_pages), sizeof *f->pages);
  f->answers = fake_alloc(rows, sizeof *f->answers);
  f->results = fake_alloc(rows, sizeof *f->results);
  f->logits = fake_alloc(rows, sizeof *f->logits);
}

static inline void fake_clear(fake_t *f) {
  while (f->first) {  // copies that no step followed
    mlx_ticket_t *t = f->first;
    CHECK(t->kind != FAKE_STEP && t->kind != FAKE_BURST);
    f->first = t->next;
    fake_free_ticket(t);
  }
  CHECK_INT(f->open, 0);
  free(f->kv);
  free(f->history);
  free(f->pages);
  free(f->window_kv);
  free(f->window_table);
  free(f->answers);
  free(f->results);
  free(f->logits);
}

#endif  // MLXCEL_TESTS_FAKE_STEPPER_H_
