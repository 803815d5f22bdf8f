// Requests join and leave: admission, preemption and the end of a request.
#include "runtime/scheduler_internal.h"

#include <string.h>

#include "base/clock.h"

// ----------------------------------------------------------------------------------------------------------
// Lists. submit reserves room in all lists for all requests, so adding to a list cannot fail

void mlx_request_list_insert(mlx_request_list_t *list, mlx_request_t *request) {
  size_t at = list->count++;
  for (; at > 0 && mlx_request_is_before(request, list->items[at - 1]); --at)
    list->items[at] = list->items[at - 1];
  list->items[at] = request;
}

void mlx_request_list_erase(mlx_request_list_t *list, const mlx_request_t *request) {
  size_t at = 0;
  while (at < list->count && list->items[at] != request) ++at;
  if (at == list->count) return;
  --list->count;
  memmove(list->items + at, list->items + at + 1, (list->count - at) * sizeof *list->items);
}

mlx_request_t *mlx_request_list_last(const mlx_request_list_t *list) {
  return list->count ? list->items[list->count - 1] : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Leaving

void mlx_scheduler_leave_steps(mlx_scheduler_t *s, const mlx_request_t *request) {
  for (size_t i = 0; i < s->flight_count; ++i) {
    for (size_t row = 0; row < s->flights[i].count; ++row) {
      if (s->flights[i].rows[row] == request) s->flights[i].rows[row] = NULL;
    }
    for (size_t k = 0; k < s->flights[i].routed_count; ++k) {
      if (s->flights[i].routed[k].request == request) s->flights[i].routed[k].request = NULL;
    }
  }
  size_t kept = 0;
  for (size_t i = 0; i < s->segment_count; ++i) {
    if (s->members[i] == request) {
      s->tokens -= s->segments[i].count;
      continue;
    }
    s->members[kept] = s->members[i];
    s->segments[kept] = s->segments[i];
    s->wanted[kept] = s->wanted[i];
    if (s->segments[kept].wanted) s->segments[kept].wanted = &s->wanted[kept];
    ++kept;
  }
  s->segment_count = kept;
}

// A step that was queued ahead may have read the last token.
static void drop_last_route(mlx_request_t *r) {
  mlx_generation_t *g = &r->output.generation;
  const size_t most = r->count > r->routes_from + 1 ? r->count - 1 - r->routes_from : 0;
  if (g->route_count > most) g->route_count = most;
}

void mlx_scheduler_finish(mlx_scheduler_t *s, mlx_request_t *r, mlx_finish_reason_t reason,
                          mlx_status_t status) {
  mlx_scheduler_leave_steps(s, r);
  mlx_request_list_erase(&s->running, r);
  mlx_request_list_erase(&s->waiting, r);
  mlx_request_detach(r, &s->pages, !status);
  r->state = MLX_REQUEST_DONE;
  const double now = mlx_seconds();
  r->output.generation.queue_seconds = (r->started > 0 ? r->started : now) - r->submitted;
  r->output.generation.prompt_seconds = (r->first > 0 ? r->first : now) - r->submitted;
  r->output.generation.decode_seconds = r->first > 0 ? now - r->first : 0;
  if (status) {
    r->output.ended = true;
    r->output.generation.finish_reason = MLX_FINISH_ERROR;
  }
  drop_last_route(r);
  r->status = mlx_status_join(status, mlx_output_finish(&r->output, reason));
  if (r->status) r->output.generation.finish_reason = MLX_FINISH_ERROR;
  s->done.items[s->done.count++] = r;
}

// Takes the pages of a running request. Its tokens are kept, and read again when it is admitted next time.
static void preempt(mlx_scheduler_t *s, mlx_request_t *r) {
  mlx_scheduler_leave_steps(s, r);
  mlx_request_list_erase(&s->running, r);
  mlx_request_detach(r, &s->pages, true);
  r->state = MLX_REQUEST_WAITING;
  mlx_request_list_insert(&s->waiting, r);
  ++s->stats.preemptions;
}

// The request that is preempted first; NULL if all that run are held.
static mlx_request_t *find_victim(const mlx_scheduler_t *s) {
  for (size_t i = s->running.count; i-- > 0;) {
    if (!s->running.items[i]->held) return s->running.items[i];
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Joining

void mlx_scheduler_resume(mlx_scheduler_t *s, mlx_request_t *r) {
  r->state = MLX_REQUEST_RUNNING;
  r->started = r->submitted;
  mlx_request_list_insert(&s->running, r);
}

static mlx_status_t no_room_error(const mlx_scheduler_t *s) {
  const mlx_pool_counts_t counts = mlx_pool_counts(s->pages.pool);
  return mlx_status_hint(
      mlx_error(MLX_OUT_OF_MEMORY,
                "the KV pool has no room for the request: sessions hold %lld of its %lld pages",
                (long long)counts.used, (long long)(counts.used + counts.cached + counts.free)),
      "free a session, or use a larger pool (--memory) or more sequences (--parallel)");
}

mlx_status_t mlx_scheduler_admit(mlx_scheduler_t *s) {
  while (s->waiting.count) {
    mlx_request_t *r = s->waiting.items[0], *victim = find_victim(s);
    bool attached = false;
    if ((int64_t)s->running.count < s->options.max_running)
      MLX_TRY(mlx_request_attach(r, &s->pages, s->positions, (int64_t)s->running.count, &attached));
    if (attached) {
      mlx_request_list_erase(&s->waiting, r);
      r->state = MLX_REQUEST_RUNNING;
      mlx_request_list_insert(&s->running, r);
      s->stats.prefix_queries += (int64_t)r->count;
      s->stats.prefix_hits += (int64_t)r->fed;
      if (r->started <= 0) {  // not after a preemption
        r->started = mlx_seconds();
        r->output.generation.cached_tokens = (int64_t)r->fed;
      }
    } else if (victim && victim->priority < r->priority) {
      preempt(s, victim);
    } else if (s->running.count) {
      return NULL;
    } else {
      mlx_scheduler_finish(s, r, MLX_FINISH_ERROR, no_room_error(s));  // no request will leave room for it
    }
  }
  return NULL;
}

mlx_status_t mlx_scheduler_make_room(mlx_scheduler_t *s, mlx_request_t *r, size_t length, bool *out_ok) {
  for (;;) {
    MLX_TRY(mlx_request_grow(r, &s->pages, length, out_ok));
    if (*out_ok) return NULL;
    mlx_request_t *victim = find_victim(s);
    if (s->running.count == 1 || !victim) {
      mlx_scheduler_finish(s, r, MLX_FINISH_ERROR, no_room_error(s));
      return NULL;
    }
    preempt(s, victim);
    if (victim == r) return NULL;
  }
}
