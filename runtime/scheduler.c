// The scheduler's public calls. admission.c decides which requests run, filling.c what a step computes, and
// step_queue.c queues it. docs/internals/scheduler.md explains the rules.
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "runtime/prompt.h"
#include "runtime/scheduler_internal.h"

#define MASK_SHARE 0.25         // of the time of a step, for masks beside it
#define MOST_MASK_SECONDS 0.01  // the same, at most

// ----------------------------------------------------------------------------------------------------------
// Stepping

// Ends the requests that were cancelled, or that want no tokens.
static void finish_cancelled(mlx_scheduler_t *s, mlx_request_list_t *list) {
  for (size_t i = list->count; i-- > 0;) {
    mlx_request_t *r = list->items[i];
    if (r->cancelled) {
      mlx_scheduler_finish(s, r, MLX_FINISH_CANCELLED, NULL);
    } else if (!mlx_output_left(&r->output) && !mlx_request_scores(r)) {
      mlx_scheduler_finish(s, r, MLX_FINISH_LENGTH, NULL);
    }
  }
}

static mlx_status_t copy_status(mlx_status_t status) {
  mlx_status_t copy = mlx_error(mlx_status_code(status), "%s", mlx_status_message(status));
  return mlx_status_code(status) && mlx_status_hint_text(status)[0]
             ? mlx_status_hint(copy, "%s", mlx_status_hint_text(status))
             : copy;
}

// After a failed step nothing is known about the pages: all running requests end.
static void fail_running(mlx_scheduler_t *s, mlx_status_t status) {
  const mlx_step_result_t *results;
  size_t count;
  for (size_t i = 0; i < s->flight_count; ++i)
    mlx_status_free(s->stepper->wait(s->stepper, s->flights[i].ticket, &results, &count));
  s->flight_count = s->segment_count = 0;
  while (s->running.count)
    mlx_scheduler_finish(s, mlx_request_list_last(&s->running), MLX_FINISH_ERROR, copy_status(status));
  mlx_pool_forget(s->pages.pool);
}

// Goes on with the mask of a request that misses steps for it: of the one that had the least work. Beside a
// queued step it does so for a part of the time of a step, so that the other requests hardly wait.
static void work_on_masks(mlx_scheduler_t *s) {
  const double share = s->step_seconds * MASK_SHARE;
  const double end = mlx_seconds() + (share < MOST_MASK_SECONDS ? share : MOST_MASK_SECONDS);
  do {
    mlx_request_t *late = NULL;
    for (size_t i = 0; i < s->running.count; ++i) {
      mlx_request_t *r = s->running.items[i];
      const uint64_t work = mlx_sequence_sampler_late_work(r->sampler);
      if (work && (!late || work < mlx_sequence_sampler_late_work(late->sampler))) late = r;
    }
    if (!late) return;
    mlx_status_t status = mlx_sequence_sampler_work(late->sampler);
    if (status) mlx_scheduler_finish(s, late, MLX_FINISH_ERROR, status);
  } while (s->flight_count && mlx_seconds() < end);
}

static mlx_status_t advance(mlx_scheduler_t *s) {
  bool queued = true;
  finish_cancelled(s, &s->running);
  finish_cancelled(s, &s->waiting);
  while (queued && mlx_scheduler_may_queue(s)) MLX_TRY(mlx_scheduler_queue_step(s, &queued));
  work_on_masks(s);
  if (s->flight_count) MLX_TRY(mlx_scheduler_read_step(s));
  while (!s->running.count && s->flight_count) MLX_TRY(mlx_scheduler_read_step(s));  // steps without requests
  return NULL;
}

mlx_status_t mlx_scheduler_step(mlx_scheduler_t *s, bool *out_idle) {
  mlx_status_t status = advance(s);
  if (status) fail_running(s, status);
  mlx_pool_end_step(s->pages.pool);
  while (s->done.count) {
    mlx_request_t *r = s->done.items[0];
    mlx_request_list_erase(&s->done, r);
    if (r->on_done) r->on_done(r->output.user, r);
  }
  *out_idle = !s->running.count && !s->waiting.count;
  return status;
}

mlx_status_t mlx_scheduler_run(mlx_scheduler_t *scheduler) {
  for (bool idle = false; !idle;) MLX_TRY(mlx_scheduler_step(scheduler, &idle));
  return NULL;
}

bool mlx_scheduler_trim(mlx_scheduler_t *s) {
  mlx_pool_t *pool = s->pages.pool;
  const int64_t used = mlx_pool_counts(pool).used + mlx_pool_window_counts(pool).used;
  if (!s->stepper->discard || s->flight_count || s->running.count || s->waiting.count || used) return false;
  mlx_pool_forget(pool);
  mlx_pool_end_step(pool);
  if (mlx_pool_state_counts(pool).used) return false;  // of a session without pages
  s->stepper->discard(s->stepper);
  return true;
}

mlx_scheduler_stats_t mlx_scheduler_stats(const mlx_scheduler_t *s) {
  const mlx_pool_counts_t counts = mlx_pool_counts(s->pages.pool),
                          windows = mlx_pool_window_counts(s->pages.pool);
  mlx_scheduler_stats_t stats = s->stats;
  stats.running = (int64_t)s->running.count;
  stats.waiting = (int64_t)s->waiting.count;
  stats.pages_used = counts.used;
  stats.pages_cached = counts.cached;
  stats.pages_free = counts.free;
  stats.window_pages_used = windows.used;
  stats.window_pages_cached = windows.cached;
  stats.window_pages_free = windows.free;
  return stats;
}

size_t mlx_scheduler_running(const mlx_scheduler_t *s, void **out_users, size_t capacity) {
  for (size_t i = 0; i < s->running.count && i < capacity; ++i)
    out_users[i] = s->running.items[i]->output.user;
  return s->running.count;
}

// ----------------------------------------------------------------------------------------------------------
// Requests

mlx_status_t mlx_scheduler_check(const mlx_scheduler_t *s, size_t length, const int32_t *ids, size_t count,
                                 const mlx_generate_options_t *options) {
  const mlx_context_limit_t context = {s->language.context, s->language.model_context};
  if (!options->embed) MLX_TRY(mlx_scheduler_check_head(s));
  const int64_t types = options->embed && s->language.typed ? 2 : 1;
  MLX_TRY(mlx_prompt_check(ids, count, (int64_t)length, context, types * s->language.vocab));
  if (count > (size_t)s->positions - length)
    return mlx_status_hint(mlx_error(MLX_OUT_OF_MEMORY, "the prompt has %zu tokens; the KV pool holds %lld",
                                     count, (long long)s->positions - (long long)length),
                           "shorten the prompt, or use a larger pool (--memory)");
  if (options->embed && !s->stepper->hidden)
    return mlx_error(MLX_UNSUPPORTED, "the model's module does not return hidden states");
  if (options->routes && (!s->stepper->route_used || length || options->embed))
    return mlx_status_hint(
        mlx_error(MLX_UNSUPPORTED,
                  "the routes of tokens are not known for this request: "
                  "the model has no experts, or its module does not "
                  "report them"),
        "a model with experts reports them on a CPU, and on a GPU if its experts are quantized or 16-bit and "
        "in no groups; a bundle of an older version must be compiled again");
  if (options->prompt_logprobs <= s->language.vocab &&
      (options->prompt_logprobs < 0 || (!length && !options->embed)))
    return NULL;
  return mlx_error(MLX_USAGE, "%lld log-probabilities of prompt tokens are not supported for this request",
                   (long long)options->prompt_logprobs);
}

mlx_status_t mlx_scheduler_create_request(mlx_scheduler_t *s, mlx_request_t **out_request) {
  mlx_request_t *r;
  *out_request = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *r, &r));
  r->scheduler = s;
  r->slot = -1;
  r->state = MLX_REQUEST_DONE;
  r->arrival = s->arrivals++;
  ++s->live;
  *out_request = r;
  return NULL;
}

static mlx_status_t want_prompt_logprobs(mlx_request_t *r, size_t count, size_t top) {
  mlx_logprob_t **out = &r->output.generation.prompt_logprobs;
  r->score = (mlx_scoring_t){.texts = 1, .end = count - 1, .top = top};
  return mlx_alloc((count - 1) * (top + 1), sizeof **out, out);
}

mlx_status_t mlx_scheduler_prepare(mlx_scheduler_t *s, mlx_request_t *r, const int32_t *ids, size_t count,
                                   const mlx_generate_options_t *options) {
  const mlx_language_t *language = &s->language;
  mlx_request_list_t *const lists[] = {&s->waiting, &s->running, &s->done};
  const size_t total = r->count + count;
  mlx_request_clear(r);
  MLX_TRY(mlx_reserve(total, sizeof *r->ids, &r->id_capacity, &r->ids));
  if (count) memcpy(r->ids + r->count, ids, count * sizeof *ids);
  MLX_TRY(mlx_output_initialize(options, language->tokenizer, language->eos, language->eos_count,
                                language->vocab, &r->output));
  MLX_TRY(mlx_sequence_sampler_create(language, options, s->stepper->samples,
                                      s->options.count_near_ties && !r->held, r->ids,
                                      r->quiet || options->embed ? 0 : total, &r->sampler));
  if (options->prompt_logprobs >= 0)
    MLX_TRY(want_prompt_logprobs(r, total, (size_t)options->prompt_logprobs));
  for (int i = 0; i < 3; ++i)
    MLX_TRY(mlx_reserve(s->live, sizeof *lists[i]->items, &lists[i]->capacity, &lists[i]->items));
  r->count = total;
  if (count) r->prompt_count = total;
  r->priority = options->priority;
  r->on_done = options->on_done;
  r->on_prompt = options->on_prompt;
  r->routes = options->routes;
  r->routes_from = options->routes_from;
  r->output.generation.route_layers = options->routes ? s->stepper->route_layers : 0;
  r->output.generation.route_used = options->routes ? s->stepper->route_used : 0;
  r->embeds = options->embed;
  r->raw = options->embed_raw;
  r->submitted = mlx_seconds();
  return NULL;
}

mlx_status_t mlx_scheduler_submit(mlx_scheduler_t *s, const int32_t *ids, size_t count,
                                  const mlx_generate_options_t *options, mlx_request_t **out_request) {
  mlx_request_t *r;
  *out_request = NULL;
  MLX_TRY(mlx_scheduler_check(s, 0, ids, count, options));
  MLX_TRY(mlx_scheduler_create_request(s, &r));
  mlx_status_t status = mlx_scheduler_prepare(s, r, ids, count, options);
  if (status) {
    mlx_request_free(r);
    return status;
  }
  r->state = MLX_REQUEST_WAITING;
  mlx_request_list_insert(&s->waiting, r);
  *out_request = r;
  return NULL;
}

void mlx_request_free(mlx_request_t *r) {
  if (!r) return;
  mlx_scheduler_t *s = r->scheduler;
  mlx_scheduler_leave_steps(s, r);
  mlx_request_list_erase(&s->running, r);
  mlx_request_list_erase(&s->waiting, r);
  mlx_request_list_erase(&s->done, r);
  mlx_request_detach(r, &s->pages, true);
  mlx_request_release(r);
  --s->live;
}

// ----------------------------------------------------------------------------------------------------------
// Creating

void mlx_scheduler_options_initialize(mlx_scheduler_options_t *out_options) {
  *out_options = (mlx_scheduler_options_t){.share_prefixes = true};
}

static int64_t choose(int64_t wanted, int64_t most) { return wanted > 0 && wanted < most ? wanted : most; }

void mlx_scheduler_configure(mlx_scheduler_t *s, const mlx_scheduler_options_t *options) {
  const mlx_stepper_t *stepper = s->stepper;
  while (s->flight_count) mlx_status_free(mlx_scheduler_read_step(s));
  s->stats = (mlx_scheduler_stats_t){0};
  s->options = *options;
  s->options.max_batch_tokens = choose(options->max_batch_tokens, stepper->max_tokens);
  if (stepper->whole) s->options.max_batch_tokens = stepper->max_tokens;  // a text is not divided
  s->options.max_running = choose(options->max_running, stepper->slots);
  if (options->max_prompt_chunk <= 0) s->options.max_prompt_chunk = s->prompt_chunk;
  mlx_prefill_budget_initialize(stepper, options->prefill_share, &s->budget);
  // A recurrent layer needs the state after a shared prefix. Of a window, the pool would have to keep more.
  // In an encoder, keys and values depend on all tokens of the text.
  s->pages.share = options->share_prefixes && !(stepper->states && stepper->window) && !stepper->whole;
}

static mlx_status_t fill_scheduler(mlx_scheduler_t *s, const mlx_scheduler_parts_t *parts,
                                   const mlx_scheduler_options_t *options) {
  const mlx_stepper_t *stepper = parts->stepper;
  const size_t size = (size_t)stepper->max_tokens;
  s->language = parts->language;
  s->stepper = parts->stepper;
  s->prompt_chunk = parts->prompt_chunk;
  s->now = parts->now ? parts->now : mlx_seconds;
  s->pages = (mlx_request_pages_t){.stepper = parts->stepper, .pool = parts->pool};
  s->positions = choose(parts->language.context, (stepper->pool_pages - 1) * MLX_KV_PAGE);
  s->positions = choose(s->positions, stepper->slot_pages * MLX_KV_PAGE);
  mlx_scheduler_configure(s, options);
  MLX_TRY(mlx_alloc(size, sizeof *s->segments, &s->segments));
  MLX_TRY(mlx_alloc(size, sizeof *s->wanted, &s->wanted));
  MLX_TRY(mlx_alloc(size, sizeof *s->each, &s->each));
  MLX_TRY(mlx_alloc(size, sizeof *s->members, &s->members));
  for (int i = 0; i < MLX_STEPPER_DEPTH; ++i)
    MLX_TRY(mlx_alloc(size, sizeof *s->flights[i].rows, &s->flights[i].rows));
  for (int i = 0; i < MLX_STEPPER_DEPTH; ++i)
    MLX_TRY(mlx_alloc(size, sizeof *s->flights[i].routed, &s->flights[i].routed));
  return NULL;
}

mlx_status_t mlx_scheduler_create_on(const mlx_scheduler_parts_t *parts,
                                     const mlx_scheduler_options_t *options,
                                     mlx_scheduler_t **out_scheduler) {
  mlx_scheduler_t *s;
  *out_scheduler = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *s, &s));
  mlx_status_t status = fill_scheduler(s, parts, options);
  if (status) {
    mlx_scheduler_delete(s);
    return status;
  }
  *out_scheduler = s;
  return NULL;
}

void mlx_scheduler_delete(mlx_scheduler_t *s) {
  if (!s) return;
  while (s->flight_count) mlx_status_free(mlx_scheduler_read_step(s));
  for (int i = 0; i < MLX_STEPPER_DEPTH; ++i) {
    mlx_free(s->flights[i].rows);
    mlx_free(s->flights[i].routed);
  }
  mlx_free(s->waiting.items);
  mlx_free(s->running.items);
  mlx_free(s->done.items);
  mlx_free(s->segments);
  mlx_free(s->wanted);
  mlx_free(s->each);
  mlx_free(s->members);
  mlx_free(s->logits);
  mlx_free(s);
}
