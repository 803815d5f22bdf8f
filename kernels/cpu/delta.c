// The gated delta rule (mlx_op_delta in graph/ops.h), token by token: any division of a sequence into steps
// gives the same bits. The state of a value head is [key_dim][value_dim].
//
// Fields of the instruction: a: q, k and v of all heads; b: steps; c: betas; |weight|: rates; |bias|: biases
// of the steps; heads: value heads; kv_heads: key heads; head_dim: key_dim; width: value_dim;
// numbers: scale, eps, factor of beta; op: bit 0: the rates are logarithms, bit 1: the value heads are tiled.
#include "activation_functions.h"
#include "recurrent.h"

#define BLOCK STATE_COLUMNS
#define MAX_DIM MLX_CPU_MAX_HEAD_DIM

int mlx_delta_items(const call_t *c, const mlx_instruction_t *i) {
  return (int)c->control->segments * i->heads * divide_up(i->width, BLOCK);
}

// |x|, divided by its length and times |scale|.
static void normalize(const float *x, int count, float eps, float scale, float *out) {
  v16 squares = v_zero();
  for (int k = 0; k < count; k += 16) {
    const v16 some = load_some(x + k, min_int(16, count - k));
    squares = v_fma(some, some, squares);
  }
  const v16 factor = v_all(scale / square_root(v_sum(squares) + eps));
  for (int k = 0; k < count; k += 16)
    store_some(out + k, v_mul(load_some(x + k, min_int(16, count - k)), factor), count - k);
}

typedef struct token {
  float q[MAX_DIM], k[MAX_DIM];
  float decay, beta;
} token_t;

static void read_token(const call_t *c, const mlx_instruction_t *i, int row, int head, token_t *out) {
  const int share = i->heads / i->kv_heads, dim = i->head_dim,
            key_head = i->op & 2 ? head % i->kv_heads : head / share;
  const float *q = row_at(c, &i->a, row) + key_head * dim, *k = q + i->kv_heads * dim;
  normalize(q, dim, i->numbers[1], i->numbers[0], out->q);
  normalize(k, dim, i->numbers[1], 1, out->k);
  const float rate = vector_at(c, &i->weight)[head],
              step = softplus(row_at(c, &i->b, row)[head] + vector_at(c, &i->bias)[head]);
  out->decay = exponential(step * (i->op & 1 ? -exponential(rate) : rate));
  out->beta = i->numbers[2] * first_lane(v_sigmoid(v_all(row_at(c, &i->c, row)[head])));
}

// Sixteen columns of one token. |state|: [dim][16].
static void step_columns(const token_t *t, int dim, v16 value, float *state, v16 *out) {
  const v16 decay = v_all(t->decay);
  v16 seen = v_zero(), sum = v_zero();
  for (int r = 0; r < dim; ++r) {
    const v16 decayed = v_mul(v_load(state + 16 * r), decay);
    v_store(state + 16 * r, decayed);
    seen = v_fma(decayed, v_all(t->k[r]), seen);
  }
  const v16 change = v_mul(v_sub(value, seen), v_all(t->beta));
  for (int r = 0; r < dim; ++r) {
    const v16 next = v_fma(v_all(t->k[r]), change, v_load(state + 16 * r));
    v_store(state + 16 * r, next);
    sum = v_fma(next, v_all(t->q[r]), sum);
  }
  *out = sum;
}

void mlx_run_delta(const call_t *c, const mlx_instruction_t *i, int item, int step) {
  const int blocks = divide_up(i->width, BLOCK), column = item % blocks * BLOCK,
            head = item / blocks % i->heads, dim = i->head_dim, count = min_int(BLOCK, i->width - column);
  const segment_t s = segment_of(c, i, item / blocks / i->heads, step);
  const int64_t at = (int64_t)head * dim * i->width + column;
  const int value_at = 2 * i->kv_heads * dim + head * i->width + column;
  float state[BLOCK * MAX_DIM];
  token_t token;
  load_state(s.from ? s.from + at : 0, dim, i->width, count, state);
  for (int row = s.first; row < s.first + s.count; ++row) {
    const float *value = row_at(c, &i->a, row) + value_at;
    float *out = row_at(c, &i->out, row) + head * i->width + column;
    read_token(c, i, row, head, &token);
    for (int k = 0; k < count; k += 16) {
      v16 sum;
      step_columns(&token, dim, load_some(value + k, count - k), state + k * dim, &sum);
      store_some(out + k, sum, count - k);
    }
  }
  store_state(state, dim, i->width, count, s.to + at);
}
