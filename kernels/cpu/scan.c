// The selective scan of Mamba 2 (mlx_op_scan in graph/ops.h), token by token: any division of a sequence into
// steps gives the same bits. The state of a head is [state_size][head_dim].
//
// Fields of the instruction: a: x of all heads, B and C of all groups; b: steps; |weight|: rates; |bias|:
// biases of the steps; |up|: skips; heads; kv_heads: groups; head_dim: state_size; width: head_dim;
// numbers: smallest and largest step; op: 1: the rates are logarithms.
#include "recurrent.h"

#define BLOCK STATE_COLUMNS
#define MAX_SIZE MLX_CPU_MAX_HEAD_DIM

int mlx_scan_items(const call_t *c, const mlx_instruction_t *i) {
  return (int)c->control->segments * i->heads * divide_up(i->width, BLOCK);
}

// The numbers of a head and of its biases that all tokens share.
typedef struct head {
  float rate, bias, skip;
} head_t;

static head_t read_head(const call_t *c, const mlx_instruction_t *i, int head) {
  const float rate = vector_at(c, &i->weight)[head];
  return (head_t){i->op ? -exponential(rate) : rate, vector_at(c, &i->bias)[head],
                  vector_at(c, &i->up)[head]};
}

typedef struct token {
  const float *b, *c;  // [state_size]
  float step, decay;
} token_t;

static token_t read_token(const call_t *c, const mlx_instruction_t *i, const head_t *h, int row, int head) {
  const int group = head / (i->heads / i->kv_heads);
  const float *b = row_at(c, &i->a, row) + i->heads * i->width + group * i->head_dim;
  float step = softplus(row_at(c, &i->b, row)[head] + h->bias);
  if (step < i->numbers[0]) step = i->numbers[0];
  if (step > i->numbers[1]) step = i->numbers[1];
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

void mlx_run_scan(const call_t *c, const mlx_instruction_t *i, int item, int step) {
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
