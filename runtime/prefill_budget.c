// Chooses the prompt tokens of steps that also decode. See prefill_budget.h.
#include "runtime/prefill_budget.h"

#define DEFAULT_SHARE (2.0 / 3)
#define MEASURE_EVERY 32    // steps with prompt tokens; then one with decodes only, to measure it
#define SMALLEST_SIZE 16    // tokens; sizes of a module that takes any number are powers of 2 from here
#define NEW_WEIGHT 0.5      // of a new time in the mean of the times of a size
#define SLOWER_WEIGHT 0.25  // the same of a decode that took longer. A faster one counts at once
#define FORGET 0.98         // factor per step of the time of sizes that are too large: they are tried again
#define WORTH 1.5           // a larger size is used if the chunk grows so much

void mlx_prefill_budget_initialize(const mlx_stepper_t *stepper, double share, mlx_prefill_budget_t *b) {
  *b = (mlx_prefill_budget_t){.stepper = stepper, .share = share > 0 ? share : DEFAULT_SHARE};
  for (int i = 0; i < MLX_PREFILL_CLASSES; ++i) b->decodes[i] = -1;
}

// ----------------------------------------------------------------------------------------------------------
// Times

static int class_of(int64_t decodes) {
  int class = 0;
  while (decodes > 1 && class + 1 < MLX_PREFILL_CLASSES) {
    decodes /= 2;
    ++class;
  }
  return class;
}

// Seconds of a step of |decodes| decodes; negative: unknown. Of an unknown class, a time that is rather too
// short: that of fewer decodes, or the part of more.
static double decode_seconds(const mlx_prefill_budget_t *b, int64_t decodes) {
  const int class = class_of(decodes);
  for (int i = class; i >= 0; --i) {
    if (b->decodes[i] >= 0) return b->decodes[i];
  }
  for (int i = class + 1; i < MLX_PREFILL_CLASSES; ++i) {
    if (b->decodes[i] >= 0) return b->decodes[i] / (double)(1 << (i - class));
  }
  return -1;
}

static void note_decode(mlx_prefill_budget_t *b, int64_t decodes, double seconds) {
  double *mean = &b->decodes[class_of(decodes)];
  *mean = *mean < 0 || seconds < *mean ? seconds : *mean + (seconds - *mean) * SLOWER_WEIGHT;
}

// The size of the step that computes |tokens| tokens; 0: there is none. Of a module with several functions,
// that of the function, whose time does not depend on the tokens.
static int64_t size_of(const mlx_prefill_budget_t *b, int64_t tokens, int64_t wanted) {
  if (b->stepper->size) return b->stepper->size(b->stepper, tokens, wanted);
  int64_t size = SMALLEST_SIZE;
  while (size < tokens) size *= 2;
  return size;
}

// The known time of a size; NULL: it is unknown.
static double *known_seconds(mlx_prefill_budget_t *b, int64_t size) {
  for (int i = 0; i < MLX_PREFILL_SIZES && b->steps[i].size; ++i) {
    if (b->steps[i].size == size) return &b->steps[i].seconds;
  }
  return NULL;
}

// Notes that a step of |tokens| tokens took |seconds|. The time of a full step of any size is at most
// proportional.
static void note_step(mlx_prefill_budget_t *b, int64_t tokens, int64_t size, double seconds) {
  double *known = known_seconds(b, size);
  const double full = b->stepper->size ? seconds : seconds * (double)size / (double)tokens;
  if (known) *known += (full - *known) * NEW_WEIGHT;
  for (int i = 0; i < MLX_PREFILL_SIZES && !known; ++i) {
    if (b->steps[i].size) continue;
    b->steps[i].size = size;
    b->steps[i].seconds = full;
    return;
  }
}

// ----------------------------------------------------------------------------------------------------------
// Chunks

typedef struct point {
  double tokens, seconds;  // of a step
} point_t;

// The time of a full step of |size|. Never less than |before|, that of a smaller one. An unknown size of a
// module with functions is tried as soon as the smaller one is short enough: its time often differs little.
static double expect(mlx_prefill_budget_t *b, int64_t size, point_t before) {
  const double *known = known_seconds(b, size);
  if (known) return *known > before.seconds ? *known : before.seconds;
  if (b->stepper->size || before.tokens <= 0) return before.seconds;
  return before.seconds * (double)size / before.tokens;
}

static void forget_larger(mlx_prefill_budget_t *b, int64_t size) {
  for (int i = 0; i < MLX_PREFILL_SIZES && b->steps[i].size; ++i) {
    if (b->steps[i].size >= size) b->steps[i].seconds *= FORGET;
  }
}

// The most prompt tokens, at most |most|, of a step that takes at most |limit| seconds. |base| is the step
// without them. *|out_fits| is false if a step with the fewest prompt tokens takes longer.
static int64_t pick(mlx_prefill_budget_t *b, point_t base, double limit, int64_t most, bool *out_fits) {
  const bool any = !b->stepper->size;
  const int64_t first = (int64_t)base.tokens, least = most < MLX_LEAST_PREFILL ? most : MLX_LEAST_PREFILL;
  int64_t best = 0, smallest = most;
  point_t at = base;
  for (int64_t end = first + least;;) {
    const int64_t size = size_of(b, end, first + 1);
    if (!size && !best) smallest = best = most;  // the decodes fill every step
    if (!size) break;
    const int64_t room = size - first < most ? size - first : most;
    const double seconds = expect(b, size, at);
    if (!best) smallest = any ? least : room;
    if (seconds > limit) {
      if (any && limit > at.seconds)
        best = (int64_t)(at.tokens +
                         (limit - at.seconds) / (seconds - at.seconds) * ((double)size - at.tokens)) -
               first;
      forget_larger(b, size);
      break;
    }
    if ((double)room >= WORTH * (double)best || any) best = room;
    at = (point_t){(double)size, seconds};
    if (room == most) break;
    end = size + 1;
  }
  *out_fits = best >= smallest;
  return best < smallest ? smallest : best > most ? most : best;
}

// The seconds that prompts may take for each token of all |running| sequences.
static double allowance(const mlx_prefill_budget_t *b, int64_t running, int64_t decodes) {
  return decode_seconds(b, decodes) * (double)running / (double)decodes * b->share / (1 - b->share);
}

int64_t mlx_prefill_budget_tokens(mlx_prefill_budget_t *b, int64_t running, int64_t most) {
  const int64_t together = b->stepper->ragged ? running : 1;
  const double decode = decode_seconds(b, together);
  bool fits = false;
  int64_t chosen = 0;
  if (b->share >= 1 || running < 1) return most;
  if (decode >= 0) {
    const double allowed = allowance(b, running, together);
    const point_t base = b->stepper->ragged ? (point_t){(double)together, decode} : (point_t){0, 0};
    const double limit = base.seconds + (b->stepper->ragged ? allowed : 0) - b->owed;
    chosen = pick(b, base, limit, most, &fits);
    // Even the smallest chunk exceeds the share: it runs when the sequences have all that they are owed.
    if (!fits && b->owed > (b->stepper->ragged ? 0 : -allowed)) chosen = 0;
  }
  if (b->unmeasured >= MEASURE_EVERY) chosen = 0;
  if (!chosen && ++b->withheld <= MLX_MOST_WITHHELD) return 0;
  b->withheld = 0;
  return chosen ? chosen : most < MLX_LEAST_PREFILL ? most : MLX_LEAST_PREFILL;
}

// ----------------------------------------------------------------------------------------------------------
// Counting

static void add_owed(mlx_prefill_budget_t *b, double seconds, double allowed) {
  b->owed += seconds;
  if (b->owed < -allowed) b->owed = -allowed;
  if (b->owed > allowed * MLX_MOST_WITHHELD) b->owed = allowed * MLX_MOST_WITHHELD;
}

void mlx_prefill_budget_queue(mlx_prefill_budget_t *b, int64_t running, int64_t decodes, int64_t prompt,
                              mlx_prefill_note_t *out_note) {
  const int64_t together = decodes ? decodes : 1;
  const double decode = decode_seconds(b, together);
  *out_note = (mlx_prefill_note_t){.decodes = decodes, .prompt = prompt};
  out_note->counts = running > 0 && (decodes || !b->stepper->ragged);
  if (!running) b->owed = 0;
  if (!out_note->counts) return;
  b->unmeasured = prompt ? b->unmeasured + 1 : 0;
  if (decode < 0) return;
  if (prompt) {
    const double base = decodes ? decode : 0;
    const int64_t size = size_of(b, decodes + prompt, decodes + 1);
    const double full = expect(b, size, (point_t){(double)decodes, base});
    const double seconds = b->stepper->size ? full : full * (double)(decodes + prompt) / (double)size;
    out_note->expected = seconds > base ? seconds - base : 0;
  }
  out_note->allowed = allowance(b, running, together);
  add_owed(b, out_note->expected - out_note->allowed * (double)decodes / (double)running, out_note->allowed);
}

void mlx_prefill_budget_measure(mlx_prefill_budget_t *b, const mlx_prefill_note_t *note, double seconds) {
  if (!note->counts) return;
  if (!note->prompt) {
    note_decode(b, note->decodes, seconds);
    return;
  }
  const double decode = decode_seconds(b, note->decodes ? note->decodes : 1),
               base = note->decodes && decode > 0 ? decode : 0;
  const int64_t tokens = note->decodes + note->prompt, size = size_of(b, tokens, note->decodes + 1);
  note_step(b, tokens, size ? size : tokens, seconds);
  if (decode < 0) return;
  add_owed(b, (seconds > base ? seconds - base : 0) - note->expected, note->allowed);
}

void mlx_prefill_budget_measure_burst(mlx_prefill_budget_t *b, double seconds) { note_decode(b, 1, seconds); }
