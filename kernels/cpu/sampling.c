// Sampling of wanted tokens: greedy from the largest logits of the panels, everything else by sample_row.h.
// Fills rows of |results|, and stores tokens in the history.
#include "sampling.h"

#include "../sample_row.h"
#include "batch.h"

_Static_assert(4 * MLX_CPU_SAMPLING_WORDS >= sizeof(mlx_sample_scratch_t), "layout.h knows the size");

// Whether nothing but the largest logit is requested.
INLINE bool is_plain_greedy(const int32_t *sampling, const mlx_sample_options_t *o) {
  return o->flags == MLX_SAMPLE_TOKEN && mlx_sample_is_greedy(o) && !sampling[MLX_SAMPLING_MASK_AT] &&
         sampling[MLX_SAMPLING_BIAS_COUNT] <= 0 && sampling[MLX_SAMPLING_WINDOW] <= 0;
}

// The token with the largest logit; the lowest ID on a tie. -1 if a logit is not finite.
static int largest_logit(const call_t *c, int row) {
  const int panels = divide_up(c->n->vocab, MLX_PANEL_ROWS);
  const float *best = c->best + (int64_t)row * panels;
  int highest = 0;
  for (int panel = 1; panel < panels; ++panel) highest = best[panel] > best[highest] ? panel : highest;
  if (!(best[highest] < __builtin_inff())) return -1;
  const float *logits = c->logits + (int64_t)row * c->n->vocab;
  int id = highest * MLX_PANEL_ROWS;
  while (logits[id] != best[highest]) ++id;
  return id;
}

static int sample_greedy(const call_t *c, int row, int32_t *history, int position, int32_t *result) {
  const int token = largest_logit(c, row);
  if (token < 0) return token;
  for (int i = 0; i < MLX_RESULT_WORDS; ++i) result[i] = 0;
  result[MLX_RESULT_TOKEN] = token;
  if (position < c->history_width) history[position] = token;
  return token;
}

// Whether a burst ends with |token|.
static bool ends_burst(const call_t *c, int token, int position) {
  const int count = clamp_index(c->batch[MLX_STEP_EOS_COUNT], MLX_STEP_MAX_EOS + 1);
  bool ends = token < 0 || position >= position_count(c);
  for (int i = 0; i < count; ++i) ends = ends || c->batch[MLX_STEP_EOS + i] == token;
  return ends;
}

// Samples wanted token |nth|, with the scratch memory of |item|.
static void sample_token(const call_t *c, int nth, int step, int item) {
  const int32_t *sampling =
      batch_array(c, MLX_STEP_AT_SAMPLING, MLX_SAMPLING_WORDS) + nth * MLX_SAMPLING_WORDS;
  const mlx_sample_options_t o = mlx_sample_read(sampling);
  const int row = c->wanted_of[nth], position = c->position_of[row] + 1;
  int32_t *history = history_at(c, c->slot_of[row], 0),
          *result = c->results + (int64_t)(c->is_burst ? step : nth) * MLX_RESULT_WORDS;
  int token = is_plain_greedy(sampling, &o) ? sample_greedy(c, nth, history, position, result) : -1;
  if (token < 0) {
    float *scratch = c->scratch + c->n->sampling + item * mlx_sampling_words(c->n->vocab);
    token =
        mlx_sample_row(c->batch, (size_t)c->limits.batch, sampling, c->logits + (int64_t)nth * c->n->vocab,
                       c->n->vocab, history, c->history_width, position, result, scratch);
  }
  if (c->is_burst && ends_burst(c, token, position)) c->control->stopped = 1;
}

void mlx_run_sample(const call_t *c, int item, int step) {
  for (int nth = item; nth < (int)c->control->wanted; nth += MLX_CPU_SAMPLERS)
    sample_token(c, nth, step, item);
}
