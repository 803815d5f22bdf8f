// A sequence and its pages.
#include "runtime/request.h"

#include "base/memory.h"

bool mlx_request_is_before(const mlx_request_t *a, const mlx_request_t *b) {
  return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
}

size_t mlx_request_unfed(const mlx_request_t *r) { return r->count + r->pending - r->fed; }

bool mlx_request_scores(const mlx_request_t *r) {
  return r->prompt_logprobs >= 0 && r->scored + 1 < r->prompt_count;
}

mlx_status_t mlx_request_append(mlx_request_t *r, int32_t id) {
  MLX_TRY(mlx_reserve(r->count + 1, sizeof *r->ids, &r->id_capacity, &r->ids));
  r->ids[r->count++] = id;
  return NULL;
}

void mlx_request_release(mlx_request_t *r) {
  mlx_sequence_sampler_free(r->sampler);
  mlx_output_clear(&r->output);
  mlx_status_free(r->status);
  mlx_free(r->ids);
  if (!r->held) mlx_free(r->pages);
  mlx_free(r);
}

// ----------------------------------------------------------------------------------------------------------
// The public calls that concern one request only

void mlx_request_cancel(mlx_request_t *request) { request->cancelled = true; }

bool mlx_request_is_done(const mlx_request_t *request) { return request->state == MLX_REQUEST_DONE; }

const mlx_generation_t *mlx_request_generation(const mlx_request_t *request) {
  return &request->output.generation;
}

mlx_status_t mlx_request_take_status(mlx_request_t *request) {
  mlx_status_t status = request->status;
  request->status = NULL;
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Pages

static size_t pages_for(size_t positions) { return (positions + MLX_KV_PAGE - 1) / MLX_KV_PAGE; }

// The most pages that the sequence holds at a time when it has |positions| positions: those that tokens of
// the next step see or write.
static size_t pages_held(const mlx_stepper_t *stepper, size_t positions) {
  const size_t all = pages_for(positions),
               seen = pages_for((size_t)(stepper->window + stepper->max_tokens)) + 1;
  return stepper->window && seen < all ? seen : all;
}

// The page before the next one; 0: none.
static int32_t last_page(const mlx_request_t *r) { return r->page_count ? r->pages[r->page_count - 1] : 0; }

// Appends |page|, whose user is the request. On failure the page is released.
static mlx_status_t push_page(mlx_request_t *r, const mlx_request_pages_t *p, int32_t page) {
  mlx_status_t status = mlx_reserve(r->page_count + 1, sizeof *r->pages, &r->page_capacity, &r->pages);
  if (!status) status = p->stepper->set_page(p->stepper, r->slot, (int32_t)r->page_count, page);
  if (status) {
    mlx_pool_release(p->pool, page);
    return status;
  }
  r->pages[r->page_count++] = page;
  return NULL;
}

// Uses the published full pages of the first |limit| tokens.
static mlx_status_t share_full_pages(mlx_request_t *r, const mlx_request_pages_t *p, size_t limit) {
  size_t common;
  while (limit - r->fed >= MLX_KV_PAGE) {
    const int32_t page = mlx_pool_find(p->pool, last_page(r), r->ids + r->fed, MLX_KV_PAGE, &common);
    if (common < MLX_KV_PAGE) return NULL;
    mlx_pool_retain(p->pool, page);
    MLX_TRY(push_page(r, p, page));
    r->fed += MLX_KV_PAGE;
    r->published = r->page_count;
  }
  return NULL;
}

// Copies the published page that begins with the tokens after the full pages. The request writes the rest of
// its copy.
static mlx_status_t copy_partial_page(mlx_request_t *r, const mlx_request_pages_t *p, size_t limit) {
  const size_t wanted = limit - r->fed < MLX_KV_PAGE ? limit - r->fed : MLX_KV_PAGE;
  size_t common;
  const int32_t found = mlx_pool_find(p->pool, last_page(r), r->ids + r->fed, wanted, &common);
  if (!found) return NULL;
  mlx_pool_retain(p->pool, found);  // so that taking a page does not evict it
  const int32_t page = mlx_pool_take(p->pool);
  mlx_status_t status = page ? push_page(r, p, page) : NULL;
  if (!status && page) status = p->stepper->copy_page(p->stepper, found, page);
  mlx_pool_release(p->pool, found);
  if (status || !page) return status;
  r->fed += common;
  return NULL;
}

// Shares what can be shared, and checks that the pool has enough pages for the rest.
static mlx_status_t find_pages(mlx_request_t *r, const mlx_request_pages_t *p, int64_t positions,
                               int64_t spare, bool *out_enough) {
  const bool looks_back = mlx_sequence_sampler_looks_back(r->sampler);
  const bool share = p->share && (!looks_back || p->stepper->set_tokens);
  const size_t next = r->count + 1 < (size_t)positions ? r->count + 1 : (size_t)positions;
  // A token is scored by the step that computes the token before it.
  const size_t limit = mlx_request_scores(r) ? r->scored : r->count - 1;
  if (share) MLX_TRY(share_full_pages(r, p, limit));
  const mlx_pool_counts_t counts = mlx_pool_counts(p->pool);
  const size_t rest = pages_for(next) - r->page_count, held = pages_held(p->stepper, next);
  *out_enough = (int64_t)(rest < held ? rest : held) + spare <= counts.free + counts.cached;
  if (!*out_enough || !share) return NULL;
  if (limit > r->fed) MLX_TRY(copy_partial_page(r, p, limit));
  MLX_TRY(mlx_request_drop_unseen(r, p));
  if (!looks_back || !r->fed) return NULL;
  return p->stepper->set_tokens(p->stepper, r->slot, 0, r->ids, r->fed);
}

mlx_status_t mlx_request_attach(mlx_request_t *r, const mlx_request_pages_t *p, int64_t positions,
                                int64_t spare, bool *out_attached) {
  *out_attached = false;
  r->slot = mlx_pool_take_slot(p->pool);
  if (r->slot < 0) return NULL;
  mlx_status_t status = find_pages(r, p, positions, spare, out_attached);
  if (mlx_request_scores(r)) r->scored = r->fed;  // after a preemption, tokens may be scored again
  if (status || !*out_attached) mlx_request_detach(r, p, false);
  return status;
}

mlx_status_t mlx_request_grow(mlx_request_t *r, const mlx_request_pages_t *p, size_t length, bool *out_ok) {
  *out_ok = true;
  while (r->page_count < pages_for(length)) {
    const int32_t page = mlx_pool_take(p->pool);
    *out_ok = page != 0;
    if (!page) return NULL;
    MLX_TRY(push_page(r, p, page));
  }
  return NULL;
}

// Publishes page |nth|, which holds |count| known tokens.
static int32_t publish_page(mlx_request_t *r, const mlx_request_pages_t *p, size_t nth, size_t count) {
  return mlx_pool_publish(p->pool, nth ? r->pages[nth - 1] : 0, r->pages[nth], r->ids + nth * MLX_KV_PAGE,
                          count);
}

mlx_status_t mlx_request_publish(mlx_request_t *r, const mlx_request_pages_t *p) {
  const size_t known = r->fed < r->count ? r->fed : r->count;
  for (; p->share && (r->published + 1) * MLX_KV_PAGE <= known; ++r->published) {
    const size_t nth = r->published;
    const int32_t page = publish_page(r, p, nth, MLX_KV_PAGE), old = r->pages[nth];
    r->pages[nth] = page;
    if (page != old) MLX_TRY(p->stepper->set_page(p->stepper, r->slot, (int32_t)nth, page));
  }
  return NULL;
}

mlx_status_t mlx_request_drop_unseen(mlx_request_t *r, const mlx_request_pages_t *p) {
  const size_t window = (size_t)p->stepper->window;
  if (!window || r->held || r->fed < window) return NULL;
  size_t end = (r->fed + 1 - window) / MLX_KV_PAGE;
  // The next page is published as a child of the last published one.
  if (p->share && end >= r->published) end = r->published ? r->published - 1 : 0;
  for (; r->dropped < end; ++r->dropped) {
    MLX_TRY(p->stepper->set_page(p->stepper, r->slot, (int32_t)r->dropped, 0));
    mlx_pool_release_first(p->pool, r->pages[r->dropped]);
    r->pages[r->dropped] = 0;
  }
  return NULL;
}

void mlx_request_detach(mlx_request_t *r, const mlx_request_pages_t *p, bool keep) {
  r->pending = 0;
  if (r->held) return;
  const size_t known = r->fed < r->count ? r->fed : r->count, nth = known / MLX_KV_PAGE;
  // The full pages are published already.
  if (keep && p->share && known % MLX_KV_PAGE && r->published == nth && nth < r->page_count)
    r->pages[nth] = publish_page(r, p, nth, known % MLX_KV_PAGE);
  while (r->page_count > r->dropped) mlx_pool_release(p->pool, r->pages[--r->page_count]);
  if (r->slot >= 0) mlx_pool_release_slot(p->pool, r->slot);
  r->slot = -1;
  r->fed = r->published = r->page_count = r->dropped = 0;
}
