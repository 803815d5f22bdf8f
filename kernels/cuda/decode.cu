// Decode kernel: tokens of one sequence through the whole model, one after the other, in one launch. It is
// the function burst of the contract (step.h), and with a burst count of 0 the network of step_1.
//
// Each block streams its share of every weight matrix, in the order of use, through a ring of shared-memory
// stages. The producer waits only for a free stage. So the memory system keeps reading while the other warps
// wait for activations that other blocks still compute. docs/internals/decode-kernel.md has the measurements
// and the alternatives that were tried.
//
//   producer   one warp: copies rows of weights into the ring
//   consumers  WARPS warps: multiply them (on tensor cores), compute attention and norms
//
// Blocks exchange activations through words in global memory that are their own ready flag. A word is EMPTY
// (a NaN that no arithmetic produces) until its value is stored, and readers poll the value itself. There is
// no barrier and no counter: a sum reaches its reader by one store and one load. The owner of a word marks
// it EMPTY again when every reader is known to be done (see reset_consumed).
//
// The grid may be larger than the number of blocks that fit on the GPU at once. Blocks that have not started
// JOIN_TIMEOUT_NS after the first one do not take part. The number of blocks changes which block computes a
// sum, but never how. So the kernel runs on small or busy GPUs, and the same input gives the same bits.
//
// Loops are unrolled only where arrays must be in registers: the code of a layer runs once per layer, and
// code that does not fit into the instruction caches is fetched again each time.
//
// decode_config.cuh describes the configuration.

#include "decode_attention.cuh"
#include "decode_recurrent.cuh"
#include "decode_reset.cuh"
#include "decode_sample.cuh"
#include "decode_shared.cuh"

// ----------------------------------------------------------------------------------------------------------
// Consumers: one token

// The registers of |x|, if the input of gate and up has the same form.
static __device__ __forceinline__ GateInput &same_or_own(GateInput &x, GateInput &) { return x; }
template <typename A>
static __device__ __forceinline__ GateInput &same_or_own(A &, GateInput &own) {
  return own;
}

// The words of the residual stream at the input of a layer, and at that of the MLP. The output of a layer is
// the input of one of the other parity.
static __device__ __forceinline__ float *input_words(Scratch *w, int parity) {
  return w->x0[PARALLEL ? parity : 0];
}
static __device__ __forceinline__ float *middle_words(Scratch *w, int parity) {
  return w->x1[PARALLEL ? 0 : parity];
}

// The hidden values of the MLP. |first|: see Consumer::pairs.
template <typename First>
static __device__ __forceinline__ void compute_hidden(const Model &m, Consumer &c, int l, int parity,
                                                      const GateInput &h, First first) {
  Shared *s = c.s;
  c.pairs<GateFormat, GateFormat2>(
      h, s->ffn, uses_second(l, SECOND_GATE), first, [&](int row) { return mlp_biases(m, s, l, row); },
      [&](int row, float gate, float up, float2 bias, bool last) {
        // Orders the EMPTY words and the new keys and values before some results: other blocks need all of
        // them.
        if (last && !PARALLEL) __threadfence();
        const float scale = layer_scale(s), value = gated(l, gate * scale + bias.x, up * scale + bias.y);
        publish(&m.scratch->hidden[parity][hidden_word(row)], value * expert_weight(s, row));
      });
}

// Receives the input of gate and up; in a mixture, chooses the experts too.
static __device__ __forceinline__ void receive_mlp_input(const Model &m, Consumer &c, int l, int parity,
                                                         GateInput &h) {
  Shared *s = c.s;
  Scratch *w = m.scratch;
  if constexpr (MIXTURE) {
    if constexpr (SHARED_EXPERT)
      score_and_compute_shared(m, c, l, parity, h);
    else
      receive_and_score(m, s, l, parity, h);
    choose_experts(s, w->router[parity]);
  } else {
    receive_and_normalize(s, w->x1[parity], optional_weight<config.post_attn_norm>(m, l),
                          Norm{optional_weight<BEFORE_MLP>(m, l), optional_weight<BEFORE_MLP_BIAS>(m, l)},
                          order_at<config.gate_order>(m, l), h);
  }
}

// Publishes the output of attention.
static __device__ __forceinline__ void compute_attention(const Model &m, Consumer &c, int l, int parity,
                                                         Plan plan, int position, QkvInput &x) {
  Shared *s = c.s;
  Scratch *w = m.scratch;
  prefetch_kv(m, s, l, plan, position);
  c.rows<QkvFormat, QkvFormat2>(
      x, s->qkv, [&](int row) { return uses_second(l, qkv_role(row)); },
      [&](int row) { return qkv_bias(m, l, row); },
      [&](int row, float sum, float bias) { publish(&w->qkv[row], clip_qkv(sum * layer_scale(s) + bias)); });
  if constexpr (PARALLEL) {
    if (threadIdx.x == 0) s->parity[0] = parity;
    GateInput own;
    GateInput &h = same_or_own(x, own);
    if constexpr (KEEPS_ROW)
      normalize_kept(s, Norm{optional_weight<BEFORE_MLP>(m, l), optional_weight<BEFORE_MLP_BIAS>(m, l)},
                     order_at<config.gate_order>(m, l), h);
    compute_hidden(m, c, l, parity, h, [] {});
  }
  attend(m, s, l, plan, position);
  merge_heads(m, s, l, plan.splits);
}

static __device__ __forceinline__ float output_bias(const Model &m, int l, int row) {
  if constexpr (RECURRENT) {
    if (is_recurrent(l)) return bias_at<config.recurrent_out_bias>(m, l, row);
  }
  return bias_at<config.o_bias>(m, l, row);
}

// Multiplies the output of attention, or of a recurrent layer, and adds it to the residual stream.
// receive_input(x): receives the output.
template <typename A, typename Receive>
static __device__ __forceinline__ void multiply_output(const Model &m, Consumer &c, int l, int parity,
                                                       int token, int position, Receive receive_input) {
  Shared *s = c.s;
  Scratch *w = m.scratch;
  A attended;
  receive_input(attended);
  const auto residual = [&](int row) {
    if (POST_NORMS) return 0.0f;
    return l ? receive(&input_words(w, parity)[row]) : embedded1(m, token, position, row);
  };
  c.rows<OFormat, OFormat2>(
      attended, s->width, [&](int) { return uses_second(l, SECOND_O); }, residual,
      [&](int row, float sum, float old) {
        publish(&middle_words(w, parity)[row], old + (sum + output_bias(m, l, row)) * config.residual_scale);
      });
}

// The output of attention as input of a product.
static __device__ __forceinline__ void receive_attended(const Model &m, Shared *s, int l, OInput &x) {
  receive_activations(s, attended_words(m, s), order_at<config.o_order>(m, l), x);
}

// The output of a recurrent layer; if it has the form of attention's outputs, of either, so that the code of
// the product is not repeated.
template <int = 0>
static __device__ __forceinline__ void receive_either(const Model &m, Shared *s, int l, OutInput &x) {
  constexpr int K = OutInput::columns;
  float4 value[Tiling<K>::runs];
  if (!Same<OInput, OutInput>::value || is_recurrent(l))
    receive_output<K>(m.scratch, value);
  else
    receive_all<K>(attended_words(m, s), value);
  stage_all(s, x, value);
}

// Attention or a recurrent layer, up to the residual stream after it.
template <int = 0>
static __device__ __forceinline__ void mix(const Model &m, Consumer &c, int l, int parity, Plan plan,
                                           int token, int position, QkvInput &x) {
  if (is_recurrent(l))
    recur(m, c, l, position, x);
  else
    compute_attention(m, c, l, parity, plan, position, x);
  if constexpr (!Same<OInput, OutInput>::value) {
    if (!is_recurrent(l))
      return multiply_output<OInput>(m, c, l, parity, token, position,
                                     [&](OInput &a) { receive_attended(m, c.s, l, a); });
  }
  multiply_output<OutInput>(m, c, l, parity, token, position,
                            [&](OutInput &a) { receive_either(m, c.s, l, a); });
}

// |x| is the layer's normalized input; replaced by that of the next layer. With PARALLEL the hidden values of
// the MLP are computed before attention, so that blocks do not wait for each other's queries meanwhile.
static __device__ __forceinline__ void layer(const Model &m, Consumer &c, int l, int parity, Plan plan,
                                             int token, int position, int epoch, QkvInput &x) {
  Shared *s = c.s;
  Scratch *w = m.scratch;
  if constexpr (RECURRENT) {
    mix(m, c, l, parity, plan, token, position, x);
  } else {
    compute_attention(m, c, l, parity, plan, position, x);
    multiply_output<OInput>(m, c, l, parity, token, position,
                            [&](OInput &a) { receive_attended(m, s, l, a); });
  }
  const auto reset = [&] {
    reset_consumed(m, s, l, parity, plan);
    if (l == 0) reset_choice(m, s, epoch);
  };
  if constexpr (PARALLEL) {
    reset();
  } else {
    GateInput own;
    GateInput &h = same_or_own(x, own);
    receive_mlp_input(m, c, l, parity, h);
    compute_hidden(m, c, l, parity, h, reset);
  }
  [[maybe_unused]] const bool second_down = uses_second(l, SECOND_DOWN);
  const auto residual = [&](int row) {
    const float bias = down_bias(m, s, l, row) * config.residual_scale;
    return POST_NORMS ? bias : receive(&middle_words(w, parity)[row]) + bias;
  };
  const auto store_x0 = [&](int row, float sum, float old) {
    if (PARALLEL) __threadfence();  // as in compute_hidden
    publish(&input_words(w, parity ^ 1)[row], old + sum * config.residual_scale);
  };
  if constexpr (SHARED_EXPERT) {
    rows_of_all_experts(m, c, l, parity, residual, store_x0);
  } else if constexpr (FFN_PARTS > 1) {
    c.rows_in_parts<DownFormat, DownFormat2>(w->hidden[parity], s->width, second_down, residual, store_x0);
  } else {
    DownInput hidden;
    receive_activations(s, w->hidden[parity], nullptr, hidden);
    c.rows<DownFormat, DownFormat2>(hidden, s->width, [&](int) { return second_down; }, residual, store_x0);
  }
  if (HEAD_LIKE_QKV || l + 1 < LAYERS) {
    LayerInputUse use(m, s, l + 1);
    receive_and_normalize(
        s, input_words(w, parity ^ 1), optional_weight<config.post_mlp_norm>(m, l),
        l + 1 < LAYERS ? Norm{optional_weight<config.attn_norm>(m, l + 1),
                              optional_weight<config.attn_norm_bias>(m, l + 1)}
                       : Norm{model_weight<config.final_norm>(m), model_weight<config.final_norm_bias>(m)},
        l + 1 < LAYERS ? order_at<config.qkv_order>(m, l + 1) : nullptr, x, use);
  }
}

// Chooses the next token. All threads of all blocks get it. *not_finite: a logit is NaN or infinite.
static __device__ __forceinline__ int choose_token(const Model &m, Consumer &c, int epoch, int position,
                                                   const HeadInput &x, bool *not_finite) {
  Shared *s = c.s;
  Best best = {MINUS_INFINITY, VOCAB - 1};
  c.rows<HeadFormat, HeadFormat>(
      x, s->vocab, [](int) { return false; }, [&](int row) { return head_bias(m, row); },
      [&](int row, float sum, float bias) {
        sum *= norm_scale(s);
        if constexpr (config.head_bias.present()) sum += bias;
        const float logit = cap_logit(sum * config.logit_scale);
        m.logits[row] = logit;
        if (!mlx_bits_are_finite(__float_as_uint(logit))) s->not_finite = 1;
        best.update(m.sampling ? store_score(m, row, logit) : logit, row);
      });
  best = best_of_block(s, best);  // also makes the logits and |not_finite| visible to the block
  if (m.sampling && adjusts_scores(m.sampling)) best = adjust_scores(m, s, position);
  float(*words)[2] = m.scratch->best[epoch & 3];
  if (threadIdx.x == 0) {
    publish(&words[s->block][0], best.value);
    publish(&words[s->block][1], __int_as_float(best.token | s->not_finite << 30));
  }
  if (m.sampling) return draw_token(m, s, epoch, position, not_finite);
  best = {MINUS_INFINITY, VOCAB - 1};
  int flags = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < s->blocks; i += THREADS) {
    const float2 word = receive2(words[i]);
    flags |= __float_as_int(word.y) >> 30;
    best.update(word.x, __float_as_int(word.y) & 0x3fffffff);
  }
  if (flags) s->not_finite = 1;
  best = best_of_block(s, best);
  *not_finite = s->not_finite;
  return best.token;
}

// The words of the last layer's output.
static __device__ __forceinline__ float *output_words(const Model &m, const Shared *s) {
  if constexpr (PARALLEL) return m.scratch->x0[s->parity[0] ^ 1];
  return m.scratch->x0[0];
}

static __device__ __forceinline__ float vector_element(const u8 *vector, int i, float missing) {
  return vector ? ((const float *)vector)[i] : missing;
}

// The input of the output head, for step_1. The words of x0 are valid until all blocks have chosen a token.
static __device__ __forceinline__ void store_hidden(const Model &m, const Shared *s, float *hidden) {
  sync_consumers();  // the sums of squares of all warps are complete
#pragma unroll 1
  for (int i = threadIdx.x; i < HIDDEN; i += THREADS) {
    const float x = POST_NORMS ? ((const float *)&s->residual)[i] : receive(&output_words(m, s)[i]);
    if constexpr (LAYER_NORMS) {
      const float2 moments = row_moments(s);
      hidden[i] = (x - moments.x) * moments.y * vector_element(model_weight<config.final_norm>(m), i, 1.0f) +
                  vector_element(model_weight<config.final_norm_bias>(m), i, 0.0f);
    } else {
      hidden[i] = x * vector_element(model_weight<config.final_norm>(m), i, 1.0f) * norm_scale(s);
    }
  }
}

// |x| is the input of the head, if it has the form of a layer's input.
template <typename A>
static __device__ __forceinline__ int finish_token(const Model &m, Consumer &c, int step, int position,
                                                   const A &x, float *hidden, bool *not_finite) {
  if constexpr (Same<A, HeadInput>::value) {
    if (hidden && c.s->block == 0) store_hidden(m, c.s, hidden);
    return choose_token(m, c, c.s->epoch + step, position, x, not_finite);
  } else {
    HeadInput own;
    receive_and_normalize(c.s, output_words(m, c.s), optional_weight<config.post_mlp_norm>(m, LAYERS - 1),
                          Norm{model_weight<config.final_norm>(m), model_weight<config.final_norm_bias>(m)},
                          nullptr, own);
    return finish_token(m, c, step, position, own, hidden, not_finite);
  }
}

static __device__ __forceinline__ bool is_end(const int *batch, int token) {
  const int count = min(batch[MLX_STEP_EOS_COUNT], MLX_STEP_MAX_EOS);
  bool end = false;
#pragma unroll 1
  for (int i = 0; i < count; ++i) end |= batch[MLX_STEP_EOS + i] == token;
  return end;
}

// Decodes up to |steps| tokens and returns their number. |results| is NULL in step_1, |hidden| in burst.
static __device__ __forceinline__ int consume(const Model &m, Shared *s, int steps, int token, int position,
                                              float *hidden, int *results) {
  Consumer c = {s, {0, 0}, 0};
  const bool writes = s->block == 0 && threadIdx.x == 0;
  int parity = 0, step = 0;
  if (writes) m.history[position] = token;
#pragma unroll 1
  for (bool end = false; step < steps && !end; ++step, ++position) {
    fill_rope_table(s, position);
    const Plans plans = plans_of(position);
    QkvInput x;
    embed(m, s, token, position, x, LayerInputUse(m, s, 0));
#pragma unroll 1
    for (int l = 0; l < LAYERS; ++l, parity ^= 1)
      layer(m, c, l, parity, plans.of(l), token, position, s->epoch + step, x);
    bool not_finite;
    token = finish_token(m, c, step, position, x, hidden, &not_finite);
    end = token < 0 || is_end(m.batch, token);
    if (threadIdx.x == 0) s->sampled[step] = token;
    if (writes && results) {
      results[step * MLX_RESULT_WORDS + MLX_RESULT_TOKEN] = token;
      results[step * MLX_RESULT_WORDS + MLX_RESULT_FLAGS] = not_finite;
      m.history[position + 1] = token;
    }
  }
  sync_consumers();
  if (threadIdx.x == 0) *(volatile int *)&s->stopped = 1;
  // All blocks have read everything except the last choice; the next launch resets that.
  reset_last_layer(m, s, parity);
  return step;
}

// ----------------------------------------------------------------------------------------------------------
// The launch

constexpr u32 CLOSED = 0x40000000u;
constexpr int JOIN_TIMEOUT_NS = 20000;

// The first block waits JOIN_TIMEOUT_NS for other blocks and publishes the number of blocks that joined.
// Blocks that start later do nothing.
static __device__ void join(Scratch *w, Shared *s) {
  s->epoch = (int)load_acquire(&w->epoch) + 1;
  s->block = (int)(atomicAdd(&w->arrived, 1) + 1);
  if (s->block == 0) {
    const u64 start = nanoseconds();
    while (load_acquire(&w->arrived) + 1 < BLOCKS && nanoseconds() - start < JOIN_TIMEOUT_NS) {}
    atomicExch(&w->blocks, atomicAdd(&w->arrived, CLOSED) + 1);
  }
  if ((u32)s->block >= CLOSED) {
    s->blocks = 0;
    return;
  }
  u32 blocks;
  do blocks = load_acquire(&w->blocks);
  while (blocks == EMPTY);
  s->blocks = (int)blocks;
  s->qkv = rows_of_block(QKV_WIDTH, s->block, s->blocks);
  s->width = rows_of_block(HIDDEN, s->block, s->blocks);
  s->ffn = rows_of_block(USED * FFN, s->block, s->blocks);
  s->vocab = rows_of_block(VOCAB, s->block, s->blocks);
  if constexpr (SHARED_EXPERT) s->shared[0] = rows_of_block(SHARED_FFN, s->block, s->blocks);
  if constexpr (RECURRENT) s->in[0] = rows_of_block(DELTA ? IN_ROWS : HIDDEN, s->block, s->blocks);
}

// The last block of the grid resets the counters for the next launch.
static __device__ void leave(Scratch *w, const Shared *s, int steps) {
  __threadfence();
  if (s->block == 0) w->epoch = (u32)(s->epoch + steps - 1);
  if (atomicAdd(&w->left, 1) + 2 != gridDim.x) return;
  w->arrived = w->blocks = w->left = EMPTY;
}

// The sequence of the batch, with every index inside its array. M is Model.
template <typename M = Model>
static __device__ __forceinline__ M open_batch(const u8 *weights, const int *batch, int *history, kv_t *kv,
                                               Scratch *scratch, float *logits) {
  const int slots = batch[MLX_STEP_SLOT_COUNT],
            slot = min(max(batch[batch[MLX_STEP_AT_SLOTS]], 0), slots - 1);
  const int position = max(batch[batch[MLX_STEP_AT_POSITIONS]], 0);
  const int *sampling = batch + batch[MLX_STEP_AT_SAMPLING];
  const bool samples = batch[MLX_STEP_BURST_COUNT] && needs_sampling(sampling);
  const int *pages = batch + batch[MLX_STEP_AT_PAGES] + slot * batch[MLX_STEP_SLOT_PAGES];
  const int *used_sampling = samples ? sampling : nullptr;
  int *tokens = history + (u64)slot * batch[MLX_STEP_HISTORY_WIDTH];
  if constexpr (config.window_layers > 0)
    return {{weights, kv, scratch, logits, batch, pages, used_sampling, tokens, position},
            batch + batch[MLX_STEP_AT_WINDOW_PAGES] + slot * batch[MLX_STEP_SLOT_PAGES],
            (u64)batch[MLX_STEP_WINDOW_POOL_PAGES] * config.window_layers};
  else if constexpr (RECURRENT) {
    // A wrong number is that of state 0, which belongs to no sequence.
    const int *states = batch + batch[MLX_STEP_AT_STATES] + 2 * slot, count = batch[MLX_STEP_STATES];
    const u64 before = (u64)batch[MLX_STEP_POOL_PAGES] * config.page_words;
    const auto at = [&](int state) {
      return (float *)kv + before + (u64)((u32)state < (u32)count ? state : 0) * config.state_words;
    };
    return {{weights, kv, scratch, logits, batch, pages, used_sampling, tokens, position},
            position ? at(states[0]) : nullptr,
            at(states[1])};
  } else
    return {weights, kv, scratch, logits, batch, pages, used_sampling, tokens, position};
}

extern "C" __global__ void __launch_bounds__(MLX_DECODE_THREADS, 1)
    mlx_decode(const u8 *weights, const int *batch, int *history, kv_t *kv, float *logits, float *hidden,
               int *results, Scratch *scratch) {
  extern __shared__ __align__(128) u8 memory[];
  Shared *s = (Shared *)memory;
  if (batch[MLX_STEP_TOKEN_COUNT] < 1 || (RECURRENT && batch[MLX_STEP_STATES] < 1)) return;
  const Model m = open_batch(weights, batch, history, kv, scratch, logits);
  const int burst = batch[MLX_STEP_BURST_COUNT], given = batch[batch[MLX_STEP_AT_TOKENS]];
  const int room = min(batch[MLX_STEP_SLOT_PAGES] * PAGE, batch[MLX_STEP_HISTORY_WIDTH] - 1) - m.start;
  const int steps = min(burst ? min(burst, MLX_BURST_TOKENS) : 1, room);
  if (steps < 1) return;
  const int first = min(max(given == MLX_TOKEN_SAMPLED ? m.history[m.start] : given, 0), VOCAB - 1);
  if (threadIdx.x == 0) {
    s->stopped = s->not_finite = 0;
    if constexpr (MIXTURE) s->choices[0] = 0;
#pragma unroll 1
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(&s->full[i], FULL_ARRIVALS);
      barrier_init(&s->free[i], THREADS);
    }
#if __CUDA_ARCH__ >= 900
    fence_async_proxy();
#endif
    join(scratch, s);
  }
  __syncthreads();
  int done = 0;
  if (s->blocks) {
    if (threadIdx.x >= THREADS) {
      produce(m, s, steps);
    } else {
      done = consume(m, s, steps, first, m.start, burst ? nullptr : hidden, burst ? results : nullptr);
#pragma unroll 1
      for (int i = done + threadIdx.x; burst && s->block == 0 && i < burst; i += THREADS)
        results[i * MLX_RESULT_WORDS + MLX_RESULT_TOKEN] = -1;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) leave(scratch, s, done);
}
