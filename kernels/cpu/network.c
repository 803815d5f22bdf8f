// The CPU network kernel: a whole forward pass in one call. Prefill processes the tokens of prompts, decode
// generates STEPS tokens one after the other. Both run the same list of phases over all tokens of the batch.
//
// Scheduling: IREE may run the workgroups of a call one after another on one thread, or all at once. So a
// workgroup must never wait for a workgroup that has not started. A phase is a number of items. Each running
// workgroup claims some items, computes them, and claims more. One 64-bit word, the ticket, holds the phase
// and its next item. The workgroup that completes the last item of a phase opens the next phase; it runs
// phases with a single item at once by itself. So one thread alone can run the whole call, and a thread that
// starts late joins at the current phase. Results do not depend on the number of threads: an item is computed
// the same way by every thread, and no sum is divided between items.
//
// Preemption: on a busy machine, or with more threads than CPUs, a thread can lose its CPU while it holds
// items. The other threads then spin, and may occupy the CPU that the preempted thread needs. So a thread
// that waited for MAX_SPINS leaves the call and sleeps; the remaining threads finish it. If that happens in
// most calls, the number of threads is limited for the following calls, and raised again after a while.
//
// Freestanding C: no libc, no globals. layout.h describes the memory layouts.
#include "layout.h"

#include <stdbool.h>

#include "attention.h"
#include "call.h"
#include "panels.h"
#include "product.h"
#include "vector.h"

// Spins of a waiting thread before it leaves; 10000 spins take about half a millisecond. Prefill has longer
// items.
#define MAX_SPINS_DECODE 20000
#define MAX_SPINS_PREFILL 200000
// A single delay is no reason for a limit: other processes and virtual machines cause some. STRAIN is added
// for a call that a thread left and one is subtracted for a call without; MAX_STRAIN lowers the limit.
#define STRAIN 8
#define MAX_STRAIN 24
// Calls without a delay before the limit is doubled. Each lowering doubles this number: raising the limit in
// vain costs a few milliseconds.
#define MIN_PATIENCE 32
#define MAX_PATIENCE 1024

// ----------------------------------------------------------------------------------------------------------
// Start of a step: list the tokens, look up their embeddings

static void add_token(const call_t *c, int sequence, int64_t position, int id) {
  const uint32_t slot = c->control->tokens++;
  // Clamp: invalid input may give wrong results, but never an out-of-bounds access.
  const int64_t end = (int64_t)c->n->sequence_pages * MLX_CPU_PAGE;
  c->sequence_of[slot] = sequence;
  c->position_of[slot] = (int32_t)(position < 0 ? 0 : position < end ? position : end - 1);
  c->id_of[slot] = id < 0 ? 0 : id < c->n->vocab ? id : c->n->vocab - 1;
}

static void list_tokens(const call_t *c) {
  c->control->tokens = c->control->active = 0;
  for (int sequence = 0; sequence < c->n->sequences; ++sequence) {
    const int count = c->width ? min_int(c->count[sequence], c->width) : c->count[sequence] != 0;
    for (int t = 0; t < count; ++t) {
      if (c->width) {
        add_token(c, sequence, (int64_t)c->start[sequence] + t, c->tokens[sequence * c->width + t]);
      } else {
        add_token(c, sequence, c->position[sequence], c->token[sequence]);
      }
    }
    if (count <= 0) continue;
    c->last_of[c->control->active] = (int32_t)c->control->tokens - 1;
    c->active_sequences[c->control->active++] = sequence;
  }
}

static void embed(const call_t *c, int slot) {
  const mlx_network_t *n = c->n;
  const int half = n->head_dim / 2;
  dequantize_row(n->embed.format, c->weights + n->embed.at, c->id_of[slot], n->hidden,
                 c->x + (int64_t)slot * n->hidden);
  float *cosine = c->rope_table + (int64_t)slot * n->head_dim, *sine = cosine + half;
  for (int i = 0; i < half; ++i)
    sine_and_cosine((float)c->position_of[slot] * c->frequencies[i], &sine[i], &cosine[i]);
}

static void rms_norm(const call_t *c, const float *x, const mlx_network_weight_t *weight, int token) {
  float *out = c->h + (int64_t)token * c->n->hidden;
  const int width = c->n->hidden, whole = width / 16 * 16;
  const float *gain = (const float *)(const void *)(c->weights + weight->at);
  v16 squares = v_zero();
  for (int i = 0; i < whole; i += 16) squares = v_fma(v_load(x + i), v_load(x + i), squares);
  float sum = v_sum(squares);
  for (int i = whole; i < width; ++i) sum += x[i] * x[i];
  const float scale = 1 / square_root(sum / (float)width + c->n->norm_eps);
  for (int i = 0; i < whole; i += 16)
    v_store(out + i, v_mul(v_mul(v_load(x + i), v_all(scale)), v_load(gain + i)));
  for (int i = whole; i < width; ++i) out[i] = x[i] * scale * gain[i];
  for (int i = 0; is_tiled(c, width) && i < width; i += 16)
    store_parts(c->h_parts, v_load(out + i), token, width, i);
}

// ----------------------------------------------------------------------------------------------------------
// KV cache and attention

INLINE int64_t kv_head_bytes(const mlx_network_t *n) {
  return (int64_t)MLX_CPU_PAGE * n->head_dim * (n->kv_format == MLX_PANEL_F32 ? 4 : 2);
}
INLINE int64_t kv_page_bytes(const mlx_network_t *n) { return 2 * n->kv_heads * kv_head_bytes(n); }

static void store_kv(int32_t format, uint8_t *at, int64_t index, float value) {
  if (format == MLX_PANEL_F32) {
    ((float *)(void *)at)[index] = value;
    return;
  }
  uint16_t *half = (uint16_t *)(void *)at + index;
  if (format == MLX_PANEL_F16) {
    *half = f16_bits(value);
    return;
  }
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  *half = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void apply_rope(float *head, const float *rope_table, int half) {
  for (int i = 0; i < half; ++i) {
    const float low = head[i], high = head[half + i], cosine = rope_table[i], sine = rope_table[half + i];
    head[i] = low * cosine - high * sine;
    head[half + i] = high * cosine + low * sine;
  }
}

// Applies RoPE to a token's queries and keys, and stores its keys and values in the KV pool.
static void append_kv(const call_t *c, int layer, int slot) {
  const mlx_network_t *n = c->n;
  const int hd = n->head_dim, position = c->position_of[slot], place = position % MLX_CPU_PAGE;
  float *q = c->qkv + (int64_t)slot * qkv_width(n), *k = q + q_width(n), *v = k + kv_width(n);
  const float *rope_table = c->rope_table + (int64_t)slot * hd;
  for (int head = 0; head < n->heads + n->kv_heads; ++head) apply_rope(q + head * hd, rope_table, hd / 2);
  const int listed = c->pages[(int64_t)c->sequence_of[slot] * n->sequence_pages + position / MLX_CPU_PAGE];
  const int64_t page = (int64_t)layer * n->pool_pages + (listed < 0 || listed >= n->pool_pages ? 0 : listed);
  for (int head = 0; head < n->kv_heads; ++head) {
    uint8_t *keys = c->kv + page * kv_page_bytes(n) + 2 * head * kv_head_bytes(n),
            *values = keys + kv_head_bytes(n);
    for (int d = 0; d < hd; ++d) store_kv(n->kv_format, keys, d * MLX_CPU_PAGE + place, k[head * hd + d]);
    for (int d = 0; d < hd; ++d) store_kv(n->kv_format, values, place * hd + d, v[head * hd + d]);
  }
}

// One head of up to ATTEND_TOKENS tokens. Tokens of the same sequence are computed together.
static void attend(const call_t *c, int layer, int item) {
  const mlx_network_t *n = c->n;
  const int tokens = (int)c->control->tokens, tiles = divide_up(tokens, ATTEND_TOKENS), hd = n->head_dim,
            head = item / tiles;
  const int end = min_int(tokens, (item % tiles + 1) * ATTEND_TOKENS);
  attention_t a = {.pool = c->kv + (int64_t)layer * n->pool_pages * kv_page_bytes(n),
                   .page_bytes = kv_page_bytes(n),
                   .head_bytes = kv_head_bytes(n),
                   .head_dim = hd,
                   .head = head / (n->heads / n->kv_heads),
                   .pool_pages = n->pool_pages,
                   .scale = n->scale};
  for (int slot = item % tiles * ATTEND_TOKENS, count; slot < end; slot += count) {
    for (count = 1; slot + count < end && c->sequence_of[slot + count] == c->sequence_of[slot];) ++count;
    a.pages = c->pages + (int64_t)c->sequence_of[slot] * n->sequence_pages;
    a.position = c->position_of[slot];
    for (int i = 0; i < ATTEND_TOKENS; ++i) {
      const int64_t nth = slot + min_int(i, count - 1);
      a.q[i] = c->qkv + nth * qkv_width(n) + head * hd;
      a.out[i] = c->attended + nth * q_width(n) + head * hd;
    }
    attention_run(&a, n->kv_format, count);
    for (int i = 0; i < count && is_tiled(c, q_width(n)); ++i) {
      for (int d = 0; d < hd; d += 16)
        store_parts(c->h_parts, v_load(a.out[i] + d), slot + i, q_width(n), head * hd + d);
    }
  }
}

// ----------------------------------------------------------------------------------------------------------
// End of a step: greedy sampling

static void sample_greedy(const call_t *c, uint32_t step) {
  const int panels = divide_up(c->n->vocab, MLX_PANEL_ROWS);
  for (uint32_t i = 0; i < c->control->active; ++i) {
    const int sequence = c->active_sequences[i];
    const float *best = c->best + 2 * (int64_t)sequence * panels;
    int highest = 0;
    for (int panel = 1; panel < panels; ++panel)
      highest = best[2 * panel] > best[2 * highest] ? panel : highest;
    c->token[sequence] = highest * MLX_PANEL_ROWS + (int)best[2 * highest + 1];
    c->position[sequence] = c->position_of[c->last_of[i]] + 1;
  }
  for (int sequence = 0; sequence < c->n->sequences; ++sequence)
    c->result[(int64_t)sequence * c->steps + step] = c->token[sequence];
}

// ----------------------------------------------------------------------------------------------------------
// Phases

enum { LIST, EMBED, BEFORE_LAYERS };
enum { ATTN_NORM, QKV, APPEND, ATTEND, O, MLP_NORM, GATE_UP, DOWN, IN_LAYER };
enum { FINAL_NORM, HEAD, SAMPLE, AFTER_LAYERS };

typedef struct phase {
  bool in_layer;
  int layer, kind;  // layer: -1 before the layers, n->layers after them; kind: from the matching enum above
} phase_t;

INLINE uint64_t phases_of_step(const call_t *c) {
  return BEFORE_LAYERS + IN_LAYER * (uint64_t)c->n->layers + AFTER_LAYERS;
}

static phase_t phase_at(const call_t *c, uint64_t number) {
  const int at = (int)(number % phases_of_step(c)), in = IN_LAYER * c->n->layers;
  if (at < BEFORE_LAYERS) return (phase_t){false, -1, at};
  if (at < BEFORE_LAYERS + in)
    return (phase_t){true, (at - BEFORE_LAYERS) / IN_LAYER, (at - BEFORE_LAYERS) % IN_LAYER};
  return (phase_t){false, c->n->layers, at - BEFORE_LAYERS - in};
}

static product_t product_of(const call_t *c, phase_t phase, int nth) {
  const mlx_network_t *n = c->n;
  const mlx_network_layer_t *l = &c->layers[phase.in_layer ? phase.layer : 0];
  const int tokens = (int)c->control->tokens, q = q_width(n), kv = kv_width(n), hidden = n->hidden,
            ffn = n->ffn;
  if (!phase.in_layer)
    return (product_t){&n->head, 0, n->vocab,  hidden,   (int)c->control->active,
                       c->h,     0, c->logits, n->vocab, EPILOGUE_LOGITS};
  if (phase.kind == O)
    return (product_t){&l->o, 0, hidden, q, tokens, c->attended, c->h_parts, c->x, hidden, EPILOGUE_ADD};
  if (phase.kind == GATE_UP)
    return (product_t){&l->gate, &l->up, ffn, hidden, tokens, c->h, c->h_parts, c->act, ffn, EPILOGUE_SWIGLU};
  if (phase.kind == DOWN)
    return (product_t){&l->down, 0, hidden, ffn, tokens, c->act, c->act_parts, c->x, hidden, EPILOGUE_ADD};
  if (nth == 0)
    return (product_t){&l->q, 0, q, hidden, tokens, c->h, c->h_parts, c->qkv, qkv_width(n), EPILOGUE_STORE};
  const mlx_network_weight_t *weight = nth == 1 ? &l->k : &l->v;
  return (product_t){
      weight,        0, kv, hidden, tokens, c->h, c->h_parts, c->qkv + q + (nth - 1) * kv, qkv_width(n),
      EPILOGUE_STORE};
}

INLINE int products_of(phase_t phase) { return phase.in_layer && phase.kind == QKV ? 3 : 1; }

static bool is_product(phase_t phase) {
  if (phase.in_layer)
    return phase.kind == QKV || phase.kind == O || phase.kind == GATE_UP || phase.kind == DOWN;
  return phase.layer >= 0 && phase.kind == HEAD;
}

static uint32_t item_count(const call_t *c, uint64_t number) {
  const phase_t phase = phase_at(c, number);
  const uint32_t tokens = c->control->tokens;
  if (is_product(phase)) {
    uint32_t items = 0;
    for (int i = 0; i < products_of(phase); ++i) {
      const product_t p = product_of(c, phase, i);
      items += (uint32_t)product_items(c, &p);
    }
    return items;
  }
  if (phase.in_layer && phase.kind == ATTEND)
    return (uint32_t)c->n->heads * ((tokens + ATTEND_TOKENS - 1) / ATTEND_TOKENS);
  if (phase.in_layer) return tokens;
  if (phase.layer < 0) return phase.kind == LIST ? 1 : tokens;
  return phase.kind == SAMPLE ? 1 : c->control->active;
}

static void run_products(const call_t *c, phase_t phase, worker_t *worker, uint64_t number, int from,
                         int to) {
  for (int i = 0, base = 0, items; i < products_of(phase); ++i, base += items) {
    const product_t p = product_of(c, phase, i);
    items = product_items(c, &p);
    const int first = from > base ? from - base : 0, end = min_int(to - base, items);
    if (first < end) multiply_items(c, &p, worker, number, first, end);
  }
}

static void run_item(const call_t *c, phase_t phase, uint32_t step, int item) {
  const mlx_network_t *n = c->n;
  const int64_t at = (int64_t)item * n->hidden;
  if (phase.in_layer) {
    const mlx_network_layer_t *l = &c->layers[phase.layer];
    switch (phase.kind) {
      case ATTN_NORM: rms_norm(c, c->x + at, &l->attn_norm, item); break;
      case APPEND: append_kv(c, phase.layer, item); break;
      case ATTEND: attend(c, phase.layer, item); break;
      default: rms_norm(c, c->x + at, &l->mlp_norm, item); break;
    }
  } else if (phase.layer < 0) {
    phase.kind == LIST ? list_tokens(c) : embed(c, item);
  } else if (phase.kind == FINAL_NORM) {
    rms_norm(c, c->x + (int64_t)c->last_of[item] * n->hidden, &n->final_norm, item);
  } else {
    sample_greedy(c, step);
  }
}

static void run_items(const call_t *c, worker_t *worker, uint64_t number, int from, int to) {
  const phase_t phase = phase_at(c, number);
  if (is_product(phase)) {
    run_products(c, phase, worker, number, from, to);
    return;
  }
  const uint32_t step = (uint32_t)(number / phases_of_step(c));
  for (int item = from; item < to; ++item) run_item(c, phase, step, item);
}

// ----------------------------------------------------------------------------------------------------------
// Scheduling

// Runs phases of a single item, starting at |number|, then opens the first phase with more items.
static void open_phase(const call_t *c, worker_t *worker, uint64_t number) {
  const uint64_t end = phases_of_step(c) * c->steps;
  uint32_t items = 0;
  for (; number < end && (items = item_count(c, number)) < 2; ++number) {
    if (items) run_items(c, worker, number, 0, 1);
  }
  __atomic_store_n(&c->control->unfinished, items, __ATOMIC_RELAXED);
  __atomic_store_n(&c->control->ticket, number << 32, __ATOMIC_RELEASE);
}

// Claims items of the open phase; false if no item is left. Decode has short items: a thread claims
// remaining items / running threads. The divisor is at least two, so that a thread that joins later finds
// items. Prefill has long items: a thread claims an eighth of that.
static bool claim_items(const call_t *c, worker_t *worker, uint64_t ticket, uint32_t *from, uint32_t *to) {
  if (worker->items_phase != ticket >> 32) {
    worker->items_phase = ticket >> 32;
    worker->items = item_count(c, ticket >> 32);
  }
  const uint32_t items = worker->items, next = (uint32_t)ticket;
  if (next >= items) return false;
  const uint32_t present = __atomic_load_n(&c->control->present, __ATOMIC_RELAXED) + 1,
                 threads = present < 2 ? 2 : present;
  const uint32_t share = (items - next) / (c->width ? 8 * threads : threads);
  *from = next;
  *to = next + (share ? share : 1);
  return __atomic_compare_exchange_n(&c->control->ticket, &ticket, ticket + (*to - next), false,
                                     __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

// Reports completed items of phase |number|. The thread that completes the last item opens the next phase.
static void complete_items(const call_t *c, worker_t *worker, uint64_t number, uint32_t items) {
  if (__atomic_sub_fetch(&c->control->unfinished, items, __ATOMIC_ACQ_REL) == 0)
    open_phase(c, worker, number + 1);
}

// Joins the call unless it is closed or the limit is reached.
static bool try_join(control_t *control) {
  uint32_t present = __atomic_load_n(&control->present, __ATOMIC_RELAXED);
  do {
    if (__atomic_load_n(&control->closed, __ATOMIC_RELAXED) == 1 || present + 1 >= control->limit)
      return false;
  } while (!__atomic_compare_exchange_n(&control->present, &present, present + 1, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
  return true;
}

// Leaves a call before its end. A thread that is alone must stay: it alone can finish the call.
static bool try_leave(control_t *control) {
  uint32_t present = __atomic_load_n(&control->present, __ATOMIC_RELAXED);
  do {
    if (present + 1 < 2) return false;
  } while (!__atomic_compare_exchange_n(&control->present, &present, present - 1, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED));
  __atomic_store_n(&control->remaining, present - 1, __ATOMIC_RELAXED);
  __atomic_store_n(&control->closed, 1, __ATOMIC_RELAXED);
  return true;
}

// Runs items until the call ends. False if this thread left before the end.
static bool run_items_until_end(const call_t *c) {
  control_t *control = c->control;
  const uint64_t end = phases_of_step(c) * c->steps;
  const int max_spins = c->width ? MAX_SPINS_PREFILL : MAX_SPINS_DECODE;
  worker_t worker;
  worker.vector_phase = worker.items_phase = IDLE;
  uint64_t idle = IDLE;
  if (__atomic_compare_exchange_n(&control->ticket, &idle, UINT32_MAX, false, __ATOMIC_ACQUIRE,
                                  __ATOMIC_RELAXED))
    open_phase(c, &worker, 0);
  for (int waited = 0;;) {
    const uint64_t ticket = __atomic_load_n(&control->ticket, __ATOMIC_ACQUIRE);
    uint32_t from, to;
    if (ticket >> 32 >= end) return true;
    if (claim_items(c, &worker, ticket, &from, &to)) {
      run_items(c, &worker, ticket >> 32, (int)from, (int)to);
      complete_items(c, &worker, ticket >> 32, to - from);
      waited = 0;
    } else {
      spin_pause();
      if (++waited < max_spins) continue;
      if (try_leave(control)) return false;
      waited = 0;
    }
  }
}

// Lowers the limit after repeated delays, and raises it after enough calls without one.
static void adapt_limit(control_t *control) {
  const bool delayed = control->closed == 1;
  const uint32_t strain = control->strain + 1;
  control->calm = delayed ? UINT32_MAX : control->calm + 1;
  control->strain = (delayed ? strain + STRAIN : strain ? strain - 1 : 0) - 1;
  if (strain >= MAX_STRAIN && delayed) {
    const uint32_t patience = control->patience == UINT32_MAX ? MIN_PATIENCE : 2 * control->patience;
    control->limit = control->remaining + 1;
    control->patience = patience < MAX_PATIENCE ? patience : MAX_PATIENCE;
    control->strain = UINT32_MAX;
  } else if (control->limit < MLX_CPU_WORKGROUPS && control->calm + 1 >= control->patience) {
    control->limit *= 2;
    control->calm = UINT32_MAX;
  }
}

// The last workgroup to return resets the control state for the next call.
static void run_workgroup(const call_t *c) {
  control_t *control = c->control;
  if (try_join(control) && run_items_until_end(c)) __atomic_sub_fetch(&control->present, 1, __ATOMIC_RELAXED);
  if (__atomic_add_fetch(&control->returned, 1, __ATOMIC_ACQ_REL) != c->workgroups - 1) return;
  adapt_limit(control);
  __atomic_store_n(&control->returned, UINT32_MAX, __ATOMIC_RELAXED);
  __atomic_store_n(&control->closed, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&control->ticket, IDLE, __ATOMIC_RELEASE);
}

// Operands in the order of compiler/emit_cpu.c. |width| is T of prefill_T, or 0 for decode. Decode has no
// |tokens| and no |start|; its |count| is nonzero for active sequences.
void mlx_network_run(const uint8_t *weights, const int32_t *plan, const int32_t *tokens, const int32_t *start,
                     const int32_t *count, const int32_t *pages, uint8_t *kv, int32_t *scratch,
                     int32_t *token, int32_t *position, float *logits, int32_t *result, int64_t width,
                     int64_t steps) __attribute__((visibility("hidden")));
void mlx_network_run(const uint8_t *weights, const int32_t *plan, const int32_t *tokens, const int32_t *start,
                     const int32_t *count, const int32_t *pages, uint8_t *kv, int32_t *scratch,
                     int32_t *token, int32_t *position, float *logits, int32_t *result, int64_t width,
                     int64_t steps) {
  const mlx_network_t *n = (const void *)plan;
  const mlx_network_scratch_t s = mlx_network_scratch(n);
  const float *frequencies = (const float *)(const void *)(n + 1);
  int32_t *slots = scratch + s.slots;
  float *floats = (float *)(void *)scratch;
  const call_t call = {.n = n,
                       .frequencies = frequencies,
                       .layers = (const void *)(frequencies + mlx_network_frequency_words(n)),
                       .weights = weights,
                       .tokens = tokens,
                       .start = start,
                       .count = count,
                       .pages = pages,
                       .kv = kv,
                       .token = token,
                       .position = position,
                       .result = result,
                       .logits = logits,
                       .control = (void *)scratch,
                       .sequence_of = slots,
                       .position_of = slots + n->max_tokens,
                       .id_of = slots + 2 * n->max_tokens,
                       .last_of = slots + 3 * n->max_tokens,
                       .active_sequences = slots + 4 * n->max_tokens,
                       .rope_table = floats + s.rope_table,
                       .x = floats + s.x,
                       .h = floats + s.h,
                       .qkv = floats + s.qkv,
                       .attended = floats + s.attended,
                       .act = floats + s.act,
                       .best = floats + s.best,
                       .h_parts = (uint16_t *)(void *)(floats + s.h_parts),
                       .act_parts = (uint16_t *)(void *)(floats + s.act_parts),
                       .width = (int)width,
                       .steps = (uint32_t)steps,
                       .workgroups = MLX_CPU_WORKGROUPS};
  run_workgroup(&call);
}
