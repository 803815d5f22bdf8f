// The engine's stepper. See engine_stepper.h.
#include "runtime/engine_stepper.h"

#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/memory.h"
#include "kernels/cpu/layout.h"
#include "runtime/batch.h"

enum { HISTORY, KV, LOGITS, HIDDEN, ARGUMENTS };  // arguments between |batch| and |results|

struct mlx_ticket {
  mlx_call_t *call;  // NULL: the ticket is not open
  uint64_t number;   // of the call
  size_t rows;       // results; of a burst, the most
  bool is_burst;
  int32_t eos[MLX_STEP_MAX_EOS];
  size_t eos_count;
  mlx_buffer_t *results;  // i32 [rows][MLX_RESULT_WORDS]
  bool has_routes;        // |results| has room for the routes of a step behind max_rows rows
  size_t routed;          // tokens whose routes the step reports; 0: it reports none
  // Of ranks: word offset of the exchange in |results|, and its words; 0: the model is not divided.
  size_t exchange_at, exchange_words;
};

typedef struct engine_stepper {
  mlx_stepper_t base;  // must be first
  mlx_device_t *device;
  mlx_device_program_t *program;
  const mlx_variant_t *variant;
  const void *weights;  // NULL: not mapped
  int64_t history_width;
  size_t window_bytes;    // of the window pages in the KV pool
  int32_t *pages;         // [slots][slot_pages]
  int32_t *window_table;  // the same of window pages; NULL: there are none
  int32_t *state_table;   // [slots][2] read and written; NULL: there are none
  mlx_buffer_t *arguments[ARGUMENTS];
  mlx_ticket_t tickets[MLX_STEPPER_DEPTH];
  mlx_batch_t batch;
  uint64_t submitted, waited;  // calls; the number of the last
  size_t max_rows;             // of results
  int32_t *rows;               // [max_rows][MLX_RESULT_WORDS] of the call that was waited for last
  float *tops;                 // [max_rows][MLX_TOP_LOGPROBS]
  mlx_step_result_t *results;  // [max_rows]
  int32_t *routes;             // [max_tokens][route_layers][route_used] of it; NULL before the first use
} engine_stepper_t;

static engine_stepper_t *cast(mlx_stepper_t *stepper) { return (engine_stepper_t *)stepper; }

// ----------------------------------------------------------------------------------------------------------
// Creating

static int64_t max_wanted(const mlx_variant_t *variant) {
  int64_t most = 0;
  for (size_t i = 0; i < variant->step_count; ++i)
    if (variant->steps[i].wanted > most) most = variant->steps[i].wanted;
  return most;
}

// A sampled token is stored at the position after its own, also after the last position.
static int64_t history_width(const mlx_stepper_options_t *o) { return (o->slot_pages + 1) * MLX_KV_PAGE; }

// Bytes of the window pages, which are before the pages.
static size_t window_bytes(const mlx_stepper_options_t *o) {
  return (size_t)(o->window_pages * o->variant->window_page_bytes);
}

static mlx_shape_t kv_shape(const mlx_stepper_options_t *o) {
  const mlx_variant_t *v = o->variant;
  const bool wide = !v->kv_row || !strcmp(v->kv, "f32");
  const int64_t numbers = (o->pool_pages * v->page_bytes + o->window_pages * v->window_page_bytes +
                           o->states * v->recurrent_bytes) /
                          (wide ? 4 : 2);
  mlx_shape_t shape = {.element = MLX_ELEMENT_I32, .rank = 1, .dims = {numbers}};
  if (!v->kv_row) return shape;
  shape.element = !strcmp(v->kv, "bf16") ? MLX_ELEMENT_BF16 : wide ? MLX_ELEMENT_F32 : MLX_ELEMENT_F16;
  shape.rank = 2;
  shape.dims[0] = numbers / v->kv_row;
  shape.dims[1] = v->kv_row;
  return shape;
}

static mlx_shape_t argument_shape(const mlx_stepper_options_t *o, int argument) {
  const int64_t wanted = max_wanted(o->variant);
  switch (argument) {
    case HISTORY:
      return (mlx_shape_t){.element = MLX_ELEMENT_I32, .rank = 1, .dims = {o->slots * history_width(o)}};
    case LOGITS:
      return (mlx_shape_t){.element = MLX_ELEMENT_F32, .rank = 2, .dims = {wanted, o->whole ? 1 : o->vocab}};
    case HIDDEN:
      return (mlx_shape_t){.element = MLX_ELEMENT_F32, .rank = 2, .dims = {wanted, o->variant->hidden}};
    default: return kv_shape(o);
  }
}

size_t mlx_engine_stepper_bytes(const mlx_stepper_options_t *options) {
  size_t total = 0, bytes;
  for (int i = 0; i < ARGUMENTS; ++i) {
    if (i == KV) continue;
    const mlx_shape_t shape = argument_shape(options, i);
    bytes = 4;
    for (int k = 0; k < shape.rank; ++k) {
      if (!mlx_mul(bytes, (size_t)shape.dims[k], &bytes)) return SIZE_MAX;
    }
    if (!mlx_add(total, bytes, &total)) return SIZE_MAX;
  }
  return total;
}

static mlx_status_t create_arguments(engine_stepper_t *s, const mlx_stepper_options_t *o) {
  for (int i = 0; i < ARGUMENTS; ++i) {
    MLX_TRY(mlx_buffer_reserve(o->device, argument_shape(o, i), &s->arguments[i]));
    if (i == KV && o->states)
      MLX_TRY(mlx_buffer_commit_end(s->arguments[i], (size_t)(o->states * o->variant->recurrent_bytes)));
    MLX_TRY(mlx_buffer_commit(s->arguments[i], i == KV ? window_bytes(o) + (size_t)o->variant->page_bytes
                                                       : mlx_buffer_size(s->arguments[i])));
  }
  s->max_rows = (size_t)(s->base.max_wanted > s->base.burst ? s->base.max_wanted : s->base.burst);
  const mlx_shape_t results = {
      .element = MLX_ELEMENT_I32, .rank = 2, .dims = {(int64_t)s->max_rows, MLX_RESULT_WORDS}};
  for (int i = 0; i < MLX_STEPPER_DEPTH; ++i) {
    MLX_TRY(mlx_buffer_share(o->device, results, &s->tickets[i].results));
  }
  MLX_TRY(mlx_alloc(s->max_rows * MLX_RESULT_WORDS, sizeof *s->rows, &s->rows));
  MLX_TRY(mlx_alloc(s->max_rows * MLX_TOP_LOGPROBS, sizeof *s->tops, &s->tops));
  MLX_TRY(mlx_alloc(s->max_rows, sizeof *s->results, &s->results));
  if (o->window_pages)
    MLX_TRY(mlx_alloc((size_t)(o->slots * o->slot_pages), sizeof *s->window_table, &s->window_table));
  if (o->states) MLX_TRY(mlx_alloc((size_t)(2 * o->slots), sizeof *s->state_table, &s->state_table));
  return mlx_alloc((size_t)(o->slots * o->slot_pages), sizeof *s->pages, &s->pages);
}

void mlx_engine_stepper_free(mlx_stepper_t *stepper) {
  if (!stepper) return;
  engine_stepper_t *s = cast(stepper);
  for (int i = 0; i < MLX_STEPPER_DEPTH; ++i) {
    mlx_status_free(mlx_call_wait(s->tickets[i].call));
    mlx_buffer_free(s->tickets[i].results);
  }
  for (int i = 0; i < ARGUMENTS; ++i) mlx_buffer_free(s->arguments[i]);
  mlx_batch_clear(&s->batch);
  mlx_free(s->pages);
  mlx_free(s->window_table);
  mlx_free(s->state_table);
  mlx_free(s->rows);
  mlx_free(s->tops);
  mlx_free(s->results);
  mlx_free(s->routes);
  mlx_free(s);
}

// ----------------------------------------------------------------------------------------------------------
// Ranks

// The results of all ranks, one after the other, then the exchange.
static mlx_status_t connect_tickets(mlx_stepper_t *const *steppers, size_t count, int nth) {
  const engine_stepper_t *first = cast(steppers[0]);
  const size_t rows = first->max_rows,
               words = (size_t)mlx_exchange_words((int64_t)count, first->variant->hidden),
               behind = (words + MLX_RESULT_WORDS - 1) / MLX_RESULT_WORDS;
  if (rows * count + behind > INT32_MAX / MLX_RESULT_WORDS)
    return mlx_error(MLX_UNSUPPORTED, "the exchange of %zu ranks has %zu words", count, words);
  for (size_t rank = 0; rank < count; ++rank) {
    engine_stepper_t *s = cast(steppers[rank]);
    mlx_ticket_t *ticket = &s->tickets[nth];
    const size_t left = (count - rank) * rows;
    const mlx_shape_t shape = {
        .element = MLX_ELEMENT_I32, .rank = 2, .dims = {(int64_t)(left + behind), MLX_RESULT_WORDS}};
    mlx_buffer_free(ticket->results);
    ticket->results = NULL;
    if (rank)
      MLX_TRY(mlx_buffer_share_part(s->device, first->tickets[nth].results,
                                    rank * rows * MLX_RESULT_WORDS * sizeof(int32_t), shape,
                                    &ticket->results));
    else
      MLX_TRY(mlx_buffer_share(s->device, shape, &ticket->results));
    ticket->exchange_at = left * MLX_RESULT_WORDS;
    ticket->exchange_words = words;
  }
  return NULL;
}

mlx_status_t mlx_engine_steppers_connect(mlx_stepper_t *const *steppers, size_t count) {
  for (size_t rank = 0; rank < count; ++rank) {
    const engine_stepper_t *s = cast(steppers[rank]), *first = cast(steppers[0]);
    if (s->max_rows != first->max_rows || s->base.pool_pages != first->base.pool_pages ||
        s->base.slots != first->base.slots || s->base.slot_pages != first->base.slot_pages ||
        s->base.max_tokens != MLX_STEP_TOKENS || s->variant->hidden != first->variant->hidden)
      return mlx_error(MLX_INTERNAL, "rank %zu has other sizes than rank 0", rank);
  }
  for (int i = 0; i < MLX_STEPPER_DEPTH; ++i) MLX_TRY(connect_tickets(steppers, count, i));
  return NULL;
}

static int32_t *exchange_of(const mlx_ticket_t *ticket) {
  return (int32_t *)mlx_buffer_host(ticket->results) + ticket->exchange_at;
}

void mlx_engine_stepper_stop_ranks(mlx_stepper_t *stepper, const mlx_ticket_t *ticket) {
  (void)stepper;
  __atomic_store_n(exchange_of(ticket), 1, __ATOMIC_RELAXED);
}

bool mlx_engine_stepper_restart_ranks(mlx_stepper_t *stepper, const mlx_ticket_t *ticket) {
  const engine_stepper_t *s = cast(stepper);
  int32_t *exchange = exchange_of(ticket);
  if (!__atomic_load_n(exchange, __ATOMIC_RELAXED)) return false;
  memset(exchange, 0,
         (size_t)mlx_exchange_parts((int64_t)(ticket->exchange_at / MLX_RESULT_WORDS / s->max_rows)) *
             sizeof *exchange);
  return true;
}

// ----------------------------------------------------------------------------------------------------------
// Submitting

// The smallest function that takes |tokens|, of which |wanted| are wanted; NULL: none does. A function takes
// at most as many segments as wanted tokens.
static const mlx_step_size_t *choose_step(const mlx_variant_t *variant, int64_t tokens, int64_t wanted) {
  for (size_t i = 0; i < variant->step_count; ++i) {
    if (variant->steps[i].tokens >= tokens && variant->steps[i].wanted >= wanted) return &variant->steps[i];
  }
  return NULL;
}

static bool fits(const mlx_stepper_t *stepper, int64_t tokens, int64_t wanted) {
  return choose_step(((const engine_stepper_t *)stepper)->variant, tokens, wanted) != NULL;
}

static int64_t size_of(const mlx_stepper_t *stepper, int64_t tokens, int64_t wanted) {
  const mlx_step_size_t *size = choose_step(((const engine_stepper_t *)stepper)->variant, tokens, wanted);
  return size ? size->tokens : 0;
}

static mlx_status_t check_segment(const engine_stepper_t *s, const mlx_segment_t *segment, int32_t burst) {
  const int64_t end = (int64_t)segment->position + (burst ? burst : segment->count);
  if (segment->slot < 0 || segment->slot >= s->base.slots || segment->position < 0 || segment->count < 1 ||
      end > s->base.slot_pages * MLX_KV_PAGE)
    return mlx_error(MLX_INTERNAL, "a segment of %d tokens at position %d of slot %d does not fit",
                     segment->count, segment->position, segment->slot);
  if (!segment->ids && (segment->count != 1 || !s->base.samples))
    return mlx_error(MLX_INTERNAL, "the tokens of a segment are missing");
  if (s->state_table && !s->state_table[2 * segment->slot + 1])
    return mlx_error(MLX_INTERNAL, "slot %d has no state", segment->slot);
  for (int64_t page = segment->position / MLX_KV_PAGE; page * MLX_KV_PAGE < end; ++page) {
    const int64_t at = segment->slot * s->base.slot_pages + page;
    if (!s->pages[at] || (s->window_table && !s->window_table[at]))
      return mlx_error(MLX_INTERNAL, "slot %d has no page for position %lld", segment->slot,
                       (long long)(page * MLX_KV_PAGE));
  }
  return NULL;
}

static mlx_status_t check_segments(const engine_stepper_t *s, const mlx_segment_t *segments, size_t count,
                                   int32_t burst) {
  if (!count || (count > 1 && !s->base.ragged))
    return mlx_error(MLX_INTERNAL, "a step of this module cannot have %zu segments", count);
  for (size_t i = 0; i < count; ++i) MLX_TRY(check_segment(s, &segments[i], burst));
  return NULL;
}

static mlx_status_t free_ticket(engine_stepper_t *s, mlx_ticket_t **out_ticket) {
  for (int i = 0; i < MLX_STEPPER_DEPTH; ++i) {
    *out_ticket = &s->tickets[i];
    if (!(*out_ticket)->call) return NULL;
  }
  return mlx_error(MLX_INTERNAL, "more than %d steps are queued", MLX_STEPPER_DEPTH);
}

// Chunks of generic attention that the segments need.
static int32_t count_chunks(const engine_stepper_t *s, const mlx_segment_t *segment) {
  const int64_t chunk = s->variant->chunk_positions;
  return (int32_t)((segment->position + segment->count + chunk - 1) / chunk);
}

static size_t route_words(const engine_stepper_t *s) {
  return (size_t)(s->base.route_layers * s->base.route_used);
}

// Makes room for the routes of a step. Steps that report none never take this memory.
static mlx_status_t add_routes(engine_stepper_t *s, mlx_ticket_t *ticket) {
  const size_t words = (size_t)s->base.max_tokens * route_words(s);
  const size_t rows = s->max_rows + (words + MLX_RESULT_WORDS - 1) / MLX_RESULT_WORDS;
  const mlx_shape_t shape = {
      .element = MLX_ELEMENT_I32, .rank = 2, .dims = {(int64_t)rows, MLX_RESULT_WORDS}};
  if (rows > INT32_MAX / MLX_RESULT_WORDS)
    return mlx_error(MLX_UNSUPPORTED, "the routes of a step are too many: %zu numbers", words);
  if (!s->routes) MLX_TRY(mlx_alloc(words, sizeof *s->routes, &s->routes));
  if (ticket->has_routes) return NULL;
  mlx_buffer_t *results;
  MLX_TRY(mlx_buffer_share(s->device, shape, &results));
  mlx_buffer_free(ticket->results);
  ticket->results = results;
  ticket->has_routes = true;
  return NULL;
}

static bool wants_routes(const mlx_segment_t *segments, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (segments[i].routes) return true;
  }
  return false;
}

// Prepares the routes of a step whose segments have |tokens| tokens, if one of them wants them.
static mlx_status_t prepare_routes(engine_stepper_t *s, mlx_ticket_t *ticket, const mlx_segment_t *segments,
                                   size_t count, int64_t tokens) {
  const bool wanted = wants_routes(segments, count);
  ticket->routed = wanted ? (size_t)tokens : 0;
  if (!wanted) return NULL;
  if (!route_words(s)) return mlx_error(MLX_INTERNAL, "the module reports no routes");
  MLX_TRY(add_routes(s, ticket));
  int32_t *routes = (int32_t *)mlx_buffer_host(ticket->results) + s->max_rows * MLX_RESULT_WORDS;
  for (size_t i = 0; i < ticket->routed * route_words(s); ++i) routes[i] = -1;
  return NULL;
}

static mlx_status_t call(engine_stepper_t *s, const char *function, mlx_step_size_t size,
                         const mlx_segment_t *segments, size_t count, int32_t burst, mlx_ticket_t *ticket) {
  const mlx_batch_shape_t shape = {
      .size = size,
      .pool_pages = s->base.pool_pages,
      .slot_pages = s->base.slot_pages,
      .history_width = s->history_width,
      .vocab = s->base.vocab,
      .chunk_pages = s->variant->chunk_positions ? s->variant->chunk_positions / MLX_KV_PAGE : 1,
      .pages = s->pages,
      .window_pages = s->base.window_pages,
      .window_table = s->window_table,
      .states = s->base.states,
      .state_table = s->state_table,
      .routes_at = ticket->routed ? (int64_t)s->max_rows * MLX_RESULT_WORDS : 0,
      .exchange_at = (int64_t)ticket->exchange_at};
  int32_t *rows = mlx_buffer_host(ticket->results);
  for (size_t i = 0; i < ticket->rows; ++i) {  // in case the module refuses its arguments
    rows[i * MLX_RESULT_WORDS + MLX_RESULT_TOKEN] = -1;
    rows[i * MLX_RESULT_WORDS + MLX_RESULT_FLAGS] = 0;
  }
  MLX_TRY(mlx_batch_build(&s->batch, &shape, segments, count, burst, ticket->eos, ticket->eos_count));
  mlx_buffer_t *inputs[ARGUMENTS + 2];
  MLX_TRY(mlx_buffer_from_i32(s->device, s->batch.words, s->batch.count, &inputs[0]));
  memcpy(inputs + 1, s->arguments, sizeof s->arguments);
  inputs[ARGUMENTS + 1] = ticket->results;
  const int32_t chunks = s->base.ragged ? 0 : count_chunks(s, &segments[0]);
  const int64_t declared[ARGUMENTS + 2] = {
      MLX_STEP_PAGES_AT(size.tokens, size.wanted), 1, 1, size.wanted, size.wanted, size.wanted};
  mlx_status_t status =
      mlx_program_submit(s->program, function, inputs, s->variant->fixed_rows ? declared : NULL,
                         ARGUMENTS + 2, &chunks, s->base.ragged ? 0 : 1, &ticket->call);
  mlx_buffer_free(inputs[0]);
  if (!status) ticket->number = ++s->submitted;
  return status;
}

static mlx_status_t submit(mlx_stepper_t *stepper, const mlx_segment_t *segments, size_t count,
                           mlx_ticket_t **out_ticket) {
  engine_stepper_t *s = cast(stepper);
  int64_t tokens, wanted;
  mlx_ticket_t *ticket;
  char function[32];
  *out_ticket = NULL;
  MLX_TRY(check_segments(s, segments, count, 0));
  mlx_batch_count(segments, count, &tokens, &wanted);
  const int64_t least = wants_routes(segments, count) ? 2 : 1;  // step_1 reports none
  const mlx_step_size_t *size = choose_step(s->variant, tokens > least ? tokens : least,
                                            wanted > (int64_t)count ? wanted : (int64_t)count);
  if (!size)
    return mlx_error(MLX_INTERNAL, "no step takes %lld tokens of which %lld are wanted", (long long)tokens,
                     (long long)wanted);
  MLX_TRY(free_ticket(s, &ticket));
  ticket->rows = (size_t)wanted;
  ticket->is_burst = false;
  ticket->eos_count = 0;
  MLX_TRY(prepare_routes(s, ticket, segments, count, tokens));
  snprintf(function, sizeof function, "step_%lld", (long long)size->tokens);
  MLX_TRY(call(s, function, *size, segments, count, 0, ticket));
  *out_ticket = ticket;
  return NULL;
}

static mlx_status_t submit_burst(mlx_stepper_t *stepper, const mlx_segment_t *segment, int32_t tokens,
                                 const int32_t *eos, size_t eos_count, mlx_ticket_t **out_ticket) {
  engine_stepper_t *s = cast(stepper);
  mlx_ticket_t *ticket;
  *out_ticket = NULL;
  if (tokens < 1 || tokens > stepper->burst || segment->count != 1 || !segment->wanted ||
      eos_count > MLX_STEP_MAX_EOS)
    return mlx_error(MLX_INTERNAL, "a burst of %d tokens is not possible", tokens);
  MLX_TRY(check_segments(s, segment, 1, tokens));
  MLX_TRY(free_ticket(s, &ticket));
  ticket->rows = (size_t)tokens;
  ticket->is_burst = true;
  ticket->routed = 0;
  ticket->eos_count = eos_count;
  if (eos_count) memcpy(ticket->eos, eos, eos_count * sizeof *eos);
  MLX_TRY(call(s, "burst", (mlx_step_size_t){.tokens = 1, .wanted = 1}, segment, 1, tokens, ticket));
  *out_ticket = ticket;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Results

static mlx_status_t read_row(mlx_stepper_t *stepper, int argument, size_t row, int64_t width, float *out) {
  engine_stepper_t *s = cast(stepper);
  if (s->submitted != s->waited) return mlx_error(MLX_INTERNAL, "a later step has overwritten the logits");
  const size_t bytes = (size_t)width * sizeof *out;
  return mlx_buffer_read(s->arguments[argument], row * bytes, out, bytes);
}

static mlx_status_t read_logits(mlx_stepper_t *stepper, size_t row, float *out_logits) {
  return read_row(stepper, LOGITS, row, stepper->vocab, out_logits);
}

static mlx_status_t read_hidden(mlx_stepper_t *stepper, size_t row, float *out_hidden) {
  return read_row(stepper, HIDDEN, row, cast(stepper)->variant->hidden, out_hidden);
}

static void fill_result(engine_stepper_t *s, size_t row) {
  const int32_t *words = s->rows + row * MLX_RESULT_WORDS;
  float *tops = s->tops + row * MLX_TOP_LOGPROBS;
  mlx_step_result_t *result = &s->results[row];
  *result = (mlx_step_result_t){.token = words[MLX_RESULT_TOKEN],
                                .not_finite = words[MLX_RESULT_FLAGS] & 1,
                                .top_ids = words + MLX_RESULT_TOP_IDS,
                                .top_logprobs = tops};
  memcpy(&result->logprob, words + MLX_RESULT_LOGPROB, sizeof result->logprob);
  memcpy(tops, words + MLX_RESULT_TOP_LOGPROBS, MLX_TOP_LOGPROBS * sizeof *tops);
}

static const int32_t *routes_of(const mlx_stepper_t *stepper) {
  return ((const engine_stepper_t *)stepper)->routes;
}

// A burst ends after the first end-of-text token; rows after it stay -1.
static size_t count_burst(const engine_stepper_t *s, const mlx_ticket_t *ticket) {
  for (size_t row = 0; row < ticket->rows; ++row) {
    if (s->results[row].token < 0) return s->results[row].not_finite ? row + 1 : row;
    for (size_t i = 0; i < ticket->eos_count; ++i) {
      if (ticket->eos[i] == s->results[row].token) return row + 1;
    }
  }
  return ticket->rows;
}

static mlx_status_t wait_for_ticket(mlx_stepper_t *stepper, mlx_ticket_t *ticket,
                                    const mlx_step_result_t **out_results, size_t *out_count) {
  engine_stepper_t *s = cast(stepper);
  mlx_call_t *pending = ticket->call;
  ticket->call = NULL;
  *out_results = s->results;
  *out_count = 0;
  s->waited = ticket->number;
  MLX_TRY(mlx_call_wait(pending));
  if (s->weights && mlx_fault_hit(s->weights))
    return mlx_status_hint(mlx_error(MLX_IO,
                                     "the weights cannot be read: their file was truncated while the model "
                                     "was in use, or its disk has an error"),
                           "load the model again; replace files by renaming, not by overwriting");
  memcpy(s->rows, mlx_buffer_host(ticket->results), ticket->rows * MLX_RESULT_WORDS * sizeof *s->rows);
  for (size_t row = 0; row < ticket->rows; ++row) fill_result(s, row);
  if (ticket->routed)
    memcpy(s->routes, (const int32_t *)mlx_buffer_host(ticket->results) + s->max_rows * MLX_RESULT_WORDS,
           ticket->routed * route_words(s) * sizeof *s->routes);
  *out_count = ticket->is_burst ? count_burst(s, ticket) : ticket->rows;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Pages and tokens

static mlx_status_t set_page(mlx_stepper_t *stepper, int32_t slot, int32_t nth, int32_t page) {
  engine_stepper_t *s = cast(stepper);
  if (slot < 0 || slot >= stepper->slots || nth < 0 || nth >= stepper->slot_pages || page < 0 ||
      page >= stepper->pool_pages)
    return mlx_error(MLX_INTERNAL, "page %d cannot be entry %d of slot %d", page, nth, slot);
  MLX_TRY(mlx_buffer_commit(s->arguments[KV],
                            s->window_bytes + ((size_t)page + 1) * (size_t)s->variant->page_bytes));
  s->pages[slot * stepper->slot_pages + nth] = page;
  return NULL;
}

static mlx_status_t set_window_page(mlx_stepper_t *stepper, int32_t slot, int32_t nth, int32_t page) {
  if (slot < 0 || slot >= stepper->slots || nth < 0 || nth >= stepper->slot_pages || page < 0 ||
      page >= stepper->window_pages)
    return mlx_error(MLX_INTERNAL, "window page %d cannot be entry %d of slot %d", page, nth, slot);
  cast(stepper)->window_table[slot * stepper->slot_pages + nth] = page;
  return NULL;
}

static mlx_status_t set_states(mlx_stepper_t *stepper, int32_t slot, int32_t from, int32_t to) {
  int32_t *states = cast(stepper)->state_table;
  if (!states || slot < 0 || slot >= stepper->slots || from < 0 || from >= stepper->states || to < 1 ||
      to >= stepper->states)
    return mlx_error(MLX_INTERNAL, "slot %d cannot have the states %d and %d", slot, from, to);
  states[2 * slot] = from;
  states[2 * slot + 1] = to;
  return NULL;
}

static mlx_status_t set_tokens(mlx_stepper_t *stepper, int32_t slot, int32_t position, const int32_t *ids,
                               size_t count) {
  engine_stepper_t *s = cast(stepper);
  const size_t at = (size_t)(slot * s->history_width + position);
  return mlx_program_write(s->program, s->arguments[HISTORY], at * sizeof *ids, ids, count * sizeof *ids);
}

static mlx_status_t copy_page(mlx_stepper_t *stepper, int32_t from, int32_t to) {
  engine_stepper_t *s = cast(stepper);
  const size_t bytes = (size_t)s->variant->page_bytes, first = s->window_bytes;
  MLX_TRY(mlx_buffer_commit(s->arguments[KV], first + ((size_t)to + 1) * bytes));
  return mlx_program_copy(s->program, s->arguments[KV], first + (size_t)from * bytes,
                          first + (size_t)to * bytes, bytes);
}

static mlx_status_t copy_window_page(mlx_stepper_t *stepper, int32_t from, int32_t to) {
  engine_stepper_t *s = cast(stepper);
  const size_t bytes = (size_t)s->variant->window_page_bytes;
  return mlx_program_copy(s->program, s->arguments[KV], (size_t)from * bytes, (size_t)to * bytes, bytes);
}

static void discard(mlx_stepper_t *stepper) { mlx_buffer_discard(cast(stepper)->arguments[KV]); }

mlx_status_t mlx_engine_stepper_create(const mlx_stepper_options_t *o, mlx_stepper_t **out_stepper) {
  const mlx_variant_t *v = o->variant;
  engine_stepper_t *s;
  *out_stepper = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *s, &s));
  s->base = (mlx_stepper_t){.max_tokens = v->steps[v->step_count - 1].tokens,
                            .max_wanted = max_wanted(v),
                            .slots = o->slots,
                            .slot_pages = o->slot_pages,
                            .pool_pages = o->pool_pages,
                            .vocab = o->vocab,
                            .hidden = v->hidden,
                            .ragged = v->ragged,
                            .samples = v->samples,
                            .whole = o->whole,
                            .burst = v->burst,
                            .route_layers = v->route_layers,
                            .route_used = v->route_used,
                            .fits = fits,
                            .size = v->step_count > 1 ? size_of : NULL,
                            .window = v->window,
                            .window_pages = o->window_pages,
                            .states = o->states,
                            .set_page = set_page,
                            .set_window_page = set_window_page,
                            .set_states = o->states ? set_states : NULL,
                            .set_tokens = set_tokens,
                            .submit = submit,
                            .submit_burst = submit_burst,
                            .wait = wait_for_ticket,
                            .read_logits = read_logits,
                            .read_hidden = read_hidden,
                            .routes = routes_of,
                            .copy_page = copy_page,
                            .copy_window_page = copy_window_page,
                            .discard = mlx_device_kind(o->device) == MLX_DEVICE_CPU ? discard : NULL};
  s->device = o->device;
  s->program = o->program;
  s->variant = v;
  s->weights = o->weights;
  s->history_width = history_width(o);
  s->window_bytes = window_bytes(o);
  mlx_status_t status = create_arguments(s, o);
  if (status) {
    mlx_engine_stepper_free(&s->base);
    return status;
  }
  *out_stepper = &s->base;
  return NULL;
}
