// The selective scan of Mamba 2 (mlx_op_scan in graph/ops.h), token by token: any division of a sequence into
// steps gives the same bits. The state of a head is [state_size][head_dim]. Of Mamba 1, whose heads have one
// column, each row of a state has its own rate.
//
// Fields of the instruction: a: x of all heads, B and C of all groups; b: steps; |weight|: rates; |bias|:
// biases of the steps; |up|: skips; heads; kv_heads: groups; head_dim: state_size; width: head_dim;
// numbers: smallest and largest step; op: MLX_SCAN_*.
#include "recurrent.h"

#define BLOCK STATE_COLUMNS
#define MAX_SIZE MLX_CPU_MAX_HEAD_DIM

#define CHANNELS 32  // heads of one column, of an item

int mlx_scan_items(const call_t *c, const mlx_instruction_t *i) {
  const int segments = (int)c->control->segments;
  if (i->op & MLX_SCAN_STATE_RATES) return segments * divide_up(i->heads, CHANNELS);
  return segments * i->heads * divide_up(i->width, BLOCK);
}

// The numbers of a head and of its biases that all tokens share.
typedef struct head {
  float rate, bias, skip;
} head_t;

static head_t read_head(const call_t *c, const mlx_instruction_t *i, int head) {
  const float rate = vector_at(c, &i->weight)[head];
  return (head_t){i->op & MLX_SCAN_LOG_RATE ? -exponential(rate) : rate, vector_at(c, &i->bias)[head],
                  vector_at(c, &i->up)[head]};
}

typedef struct token {
  const float *b, *c;  // [state_size]
  float step, decay;
} token_t;

static float step_of(const mlx_instruction_t *i, float sum) {
  const float step = softplus(sum);
  return step < i->numbers[0] ? i->numbers[0] : step > i->numbers[1] ? i->numbers[1] : step;
}

static token_t read_token(const call_t *c, const mlx_instruction_t *i, const head_t *h, int row, int head) {
  const int group = head / (i->heads / i->kv_heads);
  const float *b = row_at(c, &i->a, row) + i->heads * i->width + group * i->head_dim;
  const float step = step_of(i, row_at(c, &i->b, row)[head] + h->bias);
  return (token_t){b, b + i->kv_heads * i->head_dim, step, exponential(step * h->rate)};
}

// Sixteen columns of one token. |state|: [size][16].
static v16 step_columns(const token_t *t, int size, v16 x, float skip, float *state) {
  const v16 decay = v_all(t->decay), change = v_mul(x, v_all(t->step));
  v16 sum = v_zero();
  for (int r = 0; r < size; ++r) {
    const v16 next = v_fma(v_all(t->b[r]), change, v_mul(v_load(state + 16 * r), decay));
    v_store(state + 16 * r, next);
    sum = v_fma(next, v_all(t->c[r]), sum);
  }
  return v_fma(x, v_all(skip), sum);
}

// One channel of all tokens of a segment. |rates|, |state|: [state_size]
static void run_channel(const call_t *c, const mlx_instruction_t *i, const segment_t *s, int channel,
                        const float *rates, float *state) {
  const int size = i->head_dim;
  const float bias = vector_at(c, &i->bias)[channel], skip = vector_at(c, &i->up)[channel];
  for (int row = s->first; row < s->first + s->count; ++row) {
    const float *a = row_at(c, &i->a, row), *b = a + i->heads;
    const float x = a[channel];
    const float step = step_of(i, row_at(c, &i->b, row)[channel] + bias);
    v16 sum = v_zero();
    for (int k = 0; k < size; k += 16) {
      const int count = min_int(16, size - k);
      const v16 decay = v_exp(v_mul(load_some(rates + k, count), v_all(step))),
                change = v_mul(load_some(b + k, count), v_all(step * x)),
                next = v_fma(load_some(state + k, count), decay, change);
      store_some(state + k, next, count);
      sum = v_fma(next, load_some(b + size + k, count), sum);
    }
    row_at(c, &i->out, row)[channel] = v_sum(sum) + skip * x;
  }
}

// Heads of one column, with rates [heads][state_size].
static void run_channels(const call_t *c, const mlx_instruction_t *i, int item, int step) {
  const int blocks = divide_up(i->heads, CHANNELS), first = item % blocks * CHANNELS, size = i->head_dim;
  const segment_t s = segment_of(c, i, item / blocks, step);
  for (int channel = first; channel < min_int(first + CHANNELS, i->heads); ++channel) {
    const int64_t at = (int64_t)channel * size;
    const float *stored = vector_at(c, &i->weight) + at;
    float rates[MAX_SIZE], state[MAX_SIZE];
    for (int k = 0; k < size; k += 16) {
      const int count = min_int(16, size - k);
      const v16 rate = load_some(stored + k, count);
      store_some(rates + k, i->op & MLX_SCAN_LOG_RATE ? v_sub(v_zero(), v_exp(rate)) : rate, count);
      store_some(state + k, s.from ? load_some(s.from + at + k, count) : v_zero(), count);
    }
    run_channel(c, i, &s, channel, rates, state);
    for (int k = 0; k < size; k += 16)
      store_some(s.to + at + k, load_some(state + k, size - k), min_int(16, size - k));
  }
}

void mlx_run_scan(const call_t *c, const mlx_instruction_t *i, int item, int step) {
  if (i->op & MLX_SCAN_STATE_RATES) {
    run_channels(c, i, item, step);
    return;
  }
  const int blocks = divide_up(i->width, BLOCK), column = item % blocks * BLOCK,
            head = item / blocks % i->heads, size = i->head_dim, count = min_int(BLOCK, i->width - column);
  const segment_t s = segment_of(c, i, item / blocks / i->heads, step);
  const head_t h = read_head(c, i, head);
  const int64_t at = (int64_t)head * size * i->width + column;
  float state[BLOCK * MAX_SIZE];
  load_state(s.from ? s.from + at : 0, size, i->width, count, state);
  for (int row = s.first; row < s.first + s.count; ++row) {
    const token_t token = read_token(c, i, &h, row, head);
    const float *x = row_at(c, &i->a, row) + head * i->width + column;
    float *out = row_at(c, &i->out, row) + head * i->width + column;
    for (int k = 0; k < count; k += 16)
      store_some(out + k, step_columns(&token, size, load_some(x + k, count - k), h.skip, state + k * size),
                 count - k);
  }
  store_state(state, size, i->width, count, s.to + at);
}
