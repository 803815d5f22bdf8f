// The scheduler's public calls. admission.c decides which requests run, filling.c what a step computes, and
// step_queue.c queues it. docs/internals/scheduler.md explains the rules.
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "runtime/prompt.h"
#include "runtime/scheduler_internal.h"

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

static mlx_status_t advance(mlx_scheduler_t *s) {
  bool queued = true;
  finish_cancelled(s, &s->running);
  finish_cancelled(s, &s->waiting);
  while (queued && mlx_scheduler_may_queue(s)) MLX_TRY(mlx_scheduler_queue_step(s, &queued));
  if (s->flight_count) MLX_TRY(mlx_scheduler_read_step(s));
  while (!s->running.count && s->flight_count) MLX_TRY(mlx_scheduler_read_step(s));  // steps without requests
  return NULL;
}

mlx_status_t mlx_scheduler_step(mlx_scheduler_t *s, bool *out_idle) {
  mlx_status_t status = advance(s);
  if (status) fail_running(s, status);
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

// ----------------------------------------------------------------------------------------------------------
// Requests

static mlx_status_t fill_request(mlx_scheduler_t *s, mlx_request_t *r, const mlx_held_sequence_t *held,
                                 const int32_t *ids, size_t count, const mlx_generate_options_t *options) {
  const mlx_language_t *language = &s->language;
  mlx_request_list_t *const lists[] = {&s->waiting, &s->running, &s->done};
  const size_t total = held->length + count;
  MLX_TRY(mlx_reserve(total, sizeof *r->ids, &r->id_capacity, &r->ids));
  if (held->length) memcpy(r->ids, held->ids, held->length * sizeof *ids);
  memcpy(r->ids + held->length, ids, count * sizeof *ids);
  r->count = r->prompt_count = total;
  MLX_TRY(mlx_output_initialize(options, language->tokenizer, language->eos, language->eos_count,
                                language->vocab, &r->output));
  MLX_TRY(mlx_sequence_sampler_create(language, options, s->stepper->samples, s->options.count_near_ties,
                                      r->ids, total, &r->sampler));
  r->prompt_logprobs = options->prompt_logprobs;
  if (r->prompt_logprobs >= 0)
    MLX_TRY(mlx_alloc((total - 1) * ((size_t)r->prompt_logprobs + 1),
                      sizeof *r->output.generation.prompt_logprobs, &r->output.generation.prompt_logprobs));
  for (int i = 0; i < 3; ++i)
    MLX_TRY(mlx_reserve(s->live + 1, sizeof *lists[i]->items, &lists[i]->capacity, &lists[i]->items));
  return NULL;
}

// Creates a request that is in no list yet.
static mlx_status_t create_request(mlx_scheduler_t *s, const mlx_held_sequence_t *held, const int32_t *ids,
                                   size_t count, const mlx_generate_options_t *options,
                                   mlx_request_t **out_request) {
  const int64_t length = (int64_t)held->length;
  mlx_request_t *r;
  *out_request = NULL;
  MLX_TRY(mlx_prompt_check(ids, count, length, s->language.context, s->language.vocab));
  if (count > (size_t)(s->positions - length))
    return mlx_status_hint(mlx_error(MLX_OUT_OF_MEMORY, "the prompt has %zu tokens; the KV pool holds %lld",
                                     count, (long long)(s->positions - length)),
                           "shorten the prompt, or use a larger pool (--memory)");
  if (options->embed && !s->stepper->hidden)
    return mlx_error(MLX_UNSUPPORTED, "the model's module does not return hidden states");
  if (options->prompt_logprobs > s->language.vocab ||
      (options->prompt_logprobs >= 0 && (length || options->embed)))
    return mlx_error(MLX_USAGE, "%lld log-probabilities of prompt tokens are not supported for this request",
                     (long long)options->prompt_logprobs);
  MLX_TRY(mlx_alloc(1, sizeof *r, &r));
  mlx_status_t status = fill_request(s, r, held, ids, count, options);
  if (status) {
    mlx_request_release(r);
    return status;
  }
  r->scheduler = s;
  r->slot = -1;
  r->priority = options->priority;
  r->arrival = s->arrivals++;
  r->on_done = options->on_done;
  r->on_prompt = options->on_prompt;
  r->embeds = options->embed;
  r->submitted = mlx_seconds();
  ++s->live;
  *out_request = r;
  return NULL;
}

mlx_status_t mlx_scheduler_submit(mlx_scheduler_t *s, const int32_t *ids, size_t count,
                                  const mlx_generate_options_t *options, mlx_request_t **out_request) {
  MLX_TRY(create_request(s, &(mlx_held_sequence_t){0}, ids, count, options, out_request));
  mlx_request_list_insert(&s->waiting, *out_request);
  return NULL;
}

mlx_status_t mlx_scheduler_submit_held(mlx_scheduler_t *s, const mlx_held_sequence_t *held,
                                       const int32_t *ids, size_t count,
                                       const mlx_generate_options_t *options, mlx_request_t **out_request) {
  MLX_TRY(create_request(s, held, ids, count, options, out_request));
  mlx_request_t *r = *out_request;
  r->held = true;
  r->slot = held->slot;
  r->pages = held->pages;
  r->page_count = held->page_count;
  r->page_capacity = held->page_capacity;
  r->fed = held->length;
  r->state = MLX_REQUEST_RUNNING;
  r->started = r->submitted;
  mlx_request_list_insert(&s->running, r);
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

static mlx_status_t fill_scheduler(mlx_scheduler_t *s, const mlx_scheduler_parts_t *parts,
                                   const mlx_scheduler_options_t *options) {
  const mlx_stepper_t *stepper = parts->stepper;
  s->options = *options;
  s->options.max_batch_tokens = choose(options->max_batch_tokens, stepper->max_tokens);
  s->options.max_running = choose(options->max_running, stepper->slots);
  if (options->max_prompt_chunk <= 0) s->options.max_prompt_chunk = parts->prompt_chunk;
  s->language = parts->language;
  s->stepper = parts->stepper;
  s->pages = (mlx_request_pages_t){parts->stepper, parts->pool, options->share_prefixes};
  s->positions = choose(parts->language.context, (stepper->pool_pages - 1) * MLX_KV_PAGE);
  s->positions = choose(s->positions, stepper->slot_pages * MLX_KV_PAGE);
  const size_t size = (size_t)s->options.max_batch_tokens;
  MLX_TRY(mlx_alloc(size, sizeof *s->segments, &s->segments));
  MLX_TRY(mlx_alloc(size, sizeof *s->wanted, &s->wanted));
  MLX_TRY(mlx_alloc(size, sizeof *s->each, &s->each));
  MLX_TRY(mlx_alloc(size, sizeof *s->members, &s->members));
  for (int i = 0; i < MLX_STEPPER_DEPTH; ++i)
    MLX_TRY(mlx_alloc(size, sizeof *s->flights[i].rows, &s->flights[i].rows));
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
    mlx_scheduler_free(s);
    return status;
  }
  *out_scheduler = s;
  return NULL;
}

void mlx_scheduler_free(mlx_scheduler_t *s) {
  if (!s) return;
  while (s->flight_count) mlx_status_free(mlx_scheduler_read_step(s));
  for (int i = 0; i < MLX_STEPPER_DEPTH; ++i) mlx_free(s->flights[i].rows);
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
