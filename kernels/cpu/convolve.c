// Causal convolution of each channel over the tokens of a sequence. The state has the last rows of the input,
// the oldest first.
#include "activation_functions.h"
#include "recurrent.h"

#define BLOCK 256  // channels of an item
#define MAX_TAPS MLX_CPU_MAX_TAPS

int mlx_convolve_items(const call_t *c, const mlx_instruction_t *i) {
  return (int)c->control->segments * divide_up(i->width, BLOCK);
}

typedef struct filter {
  int taps, count;                // of this block
  float weight[MAX_TAPS][BLOCK];  // weight[0]: of the oldest row
  float bias[BLOCK];
  float rows[MAX_TAPS - 1][BLOCK];  // the rows before the current one, the oldest first
} filter_t;

static void read_filter(const call_t *c, const mlx_instruction_t *i, int channel, int count, filter_t *out) {
  const float *weight = vector_at(c, &i->weight) + (int64_t)channel * i->dims,
              *bias = has_weight(&i->bias) ? vector_at(c, &i->bias) + channel : 0;
  out->taps = i->dims;
  out->count = count;
  for (int k = 0; k < BLOCK; ++k) {
    for (int tap = 0; tap < i->dims; ++tap) out->weight[tap][k] = k < count ? weight[k * i->dims + tap] : 0;
    out->bias[k] = bias && k < count ? bias[k] : 0;
  }
}

static void read_rows(const segment_t *s, const mlx_instruction_t *i, int channel, filter_t *f) {
  for (int row = 0; row + 1 < f->taps; ++row) {
    const float *from = s->from ? s->from + (int64_t)row * i->width + channel : 0;
    for (int k = 0; k < BLOCK; ++k) f->rows[row][k] = from && k < f->count ? from[k] : 0;
  }
}

// One row: |out| may be |x|.
static void convolve_row(filter_t *f, bool silu, const float *x, float *out) {
  const int taps = f->taps;
  for (int k = 0; k < f->count; k += 16) {
    const int count = min_int(16, f->count - k);
    const v16 newest = load_some(x + k, count);
    v16 sum = v_load(f->bias + k);
    for (int tap = 0; tap + 1 < taps; ++tap)
      sum = v_fma(v_load(f->weight[tap] + k), v_load(f->rows[tap] + k), sum);
    sum = v_fma(v_load(f->weight[taps - 1] + k), newest, sum);
    for (int row = 0; row + 2 < taps; ++row) v_store(f->rows[row] + k, v_load(f->rows[row + 1] + k));
    v_store(f->rows[taps - 2] + k, newest);
    store_some(out + k, silu ? v_silu(sum) : sum, count);
  }
}

void mlx_run_convolve(const call_t *c, const mlx_instruction_t *i, int item, int step) {
  const int blocks = divide_up(i->width, BLOCK), channel = item % blocks * BLOCK;
  const segment_t s = segment_of(c, i, item / blocks, step);
  filter_t filter;
  read_filter(c, i, channel, min_int(BLOCK, i->width - channel), &filter);
  read_rows(&s, i, channel, &filter);
  for (int row = s.first; row < s.first + s.count; ++row)
    convolve_row(&filter, i->op, row_at(c, &i->a, row) + channel, row_at(c, &i->out, row) + channel);
  for (int row = 0; row + 1 < filter.taps; ++row) {
    float *to = s.to + (int64_t)row * i->width + channel;
    for (int k = 0; k < filter.count; ++k) to[k] = filter.rows[row][k];
  }
}
