// A sequence and its pages.
#include "runtime/request.h"

#include <string.h>

#include "base/memory.h"
#include "runtime/rooms.h"

bool mlx_request_is_before(const mlx_request_t *a, const mlx_request_t *b) {
  return a->priority != b->priority ? a->priority > b->priority : a->arrival < b->arrival;
}

size_t mlx_request_unfed(const mlx_request_t *r) { return r->count + r->pending - r->fed; }

bool mlx_request_scores(const mlx_request_t *r) {
  return r->score.done < r->score.texts * (r->score.end - r->score.from);
}

void mlx_request_next_text(mlx_request_t *r) {
  mlx_scoring_t *score = &r->score;
  const size_t length = score->end + 1 - score->start;
  if (score->text + 1 >= score->texts || r->fed < score->end) return;
  ++score->text;
  r->fed = score->start;
  memcpy(r->ids + r->fed, score->ids + score->text * length, length * sizeof *r->ids);
}

size_t mlx_request_unrouted(const mlx_request_t *r) {
  return r->routes ? r->routes_from + r->output.generation.route_count : SIZE_MAX;
}

mlx_status_t mlx_request_add_routes(mlx_request_t *r, const int32_t *routes, size_t at, size_t count) {
  mlx_generation_t *g = &r->output.generation;
  const size_t width = (size_t)(g->route_layers * g->route_used), next = mlx_request_unrouted(r);
  const size_t known = next > at ? next - at : 0;
  if (known >= count) return NULL;
  if (at > next) return mlx_error(MLX_INTERNAL, "the routes of tokens %zu to %zu are missing", next, at - 1);
  size_t total;
  if (!mlx_mul(g->route_count + count - known, width, &total))
    return mlx_error(MLX_OUT_OF_MEMORY, "too many routes");
  MLX_TRY(mlx_reserve(total, sizeof *g->routes, &r->route_capacity, &g->routes));
  for (size_t i = known * width; i < count * width; ++i)
    g->routes[(g->route_count - known) * width + i] = (int16_t)routes[i];
  g->route_count += count - known;
  return NULL;
}

mlx_status_t mlx_request_append(mlx_request_t *r, int32_t id) {
  MLX_TRY(mlx_reserve(r->count + 1, sizeof *r->ids, &r->id_capacity, &r->ids));
  r->ids[r->count++] = id;
  return NULL;
}

void mlx_request_clear(mlx_request_t *r) {
  mlx_sequence_sampler_free(r->sampler);
  mlx_output_clear(&r->output);
  mlx_status_free(r->status);
  r->sampler = NULL;
  r->status = NULL;
  r->score = (mlx_scoring_t){0};
  r->route_capacity = 0;  // the output had the routes
  r->cancelled = false;
  r->started = r->first = 0;
}

void mlx_request_release(mlx_request_t *r) {
  mlx_request_clear(r);
  mlx_free(r->ids);
  mlx_free(r->pages);
  mlx_free(r->windows);
  mlx_free(r->logits);
  mlx_free(r);
}

// ----------------------------------------------------------------------------------------------------------
// The public calls that concern one request only

void mlx_request_cancel(mlx_request_t *request) { request->cancelled = true; }

size_t mlx_request_read_tokens(const mlx_request_t *request) {
  return request->fed < request->prompt_count ? request->fed : request->prompt_count;
}

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

// The first page that a token after |length| positions sees.
static size_t first_seen(const mlx_stepper_t *stepper, size_t length) {
  const size_t window = (size_t)stepper->window;
  return window && length >= window ? (length + 1 - window) / MLX_KV_PAGE : 0;
}

// The first window page that is kept then. One more is kept than tokens see: a sequence that begins with
// nearly all of these positions finds the pages of its window.
static size_t first_kept(const mlx_stepper_t *stepper, size_t length) {
  return length < MLX_KV_PAGE ? 0 : first_seen(stepper, length - MLX_KV_PAGE);
}

size_t mlx_window_pages_held(const mlx_stepper_t *stepper, size_t positions) {
  const int64_t step = stepper->max_tokens > stepper->burst ? stepper->max_tokens : stepper->burst;
  const size_t all = pages_for(positions), most = (size_t)MLX_WINDOW_PAGES_HELD(stepper->window, step);
  return most < all ? most : all;
}

// The most pages that the sequence holds at a time when it has |positions| positions: those that tokens of
// the next step see or write.
static size_t pages_held(const mlx_stepper_t *stepper, size_t positions) {
  return stepper->window && !stepper->window_pages ? mlx_window_pages_held(stepper, positions)
                                                   : pages_for(positions);
}

// Whether the sequence takes window pages from the pool as it goes on. A session has its own.
static bool takes_windows(const mlx_request_t *r, const mlx_request_pages_t *p) {
  return p->stepper->window_pages && !r->held;
}

// The page before the next one; 0: none.
static int32_t last_page(const mlx_request_t *r) { return r->page_count ? r->pages[r->page_count - 1] : 0; }

static mlx_status_t reserve_pages(mlx_request_t *r, const mlx_request_pages_t *p, size_t count) {
  MLX_TRY(mlx_reserve(count, sizeof *r->pages, &r->page_capacity, &r->pages));
  if (!takes_windows(r, p)) return NULL;
  return mlx_reserve(count, sizeof *r->windows, &r->window_capacity, &r->windows);
}

// Appends |page| and |window|, whose user is the request. |window| is 0 if the sequence has no window page
// for these positions. On failure both are released.
static mlx_status_t push_page(mlx_request_t *r, const mlx_request_pages_t *p, int32_t page, int32_t window) {
  const int32_t nth = (int32_t)r->page_count;
  mlx_status_t status = reserve_pages(r, p, r->page_count + 1);
  if (!status) status = p->stepper->set_page(p->stepper, r->slot, nth, page);
  if (!status && takes_windows(r, p)) status = p->stepper->set_window_page(p->stepper, r->slot, nth, window);
  if (status) {
    mlx_pool_release(p->pool, page);
    if (window) mlx_pool_release_window(p->pool, window, false);
    return status;
  }
  if (takes_windows(r, p)) r->windows[r->page_count] = window;
  r->pages[r->page_count++] = page;
  return NULL;
}

// Finds the published full pages of the first |limit| tokens and stores them in |r->pages|, without a user.
static mlx_status_t find_full_pages(mlx_request_t *r, const mlx_request_pages_t *p, size_t limit,
                                    size_t *out_found) {
  size_t found = 0, common;
  MLX_TRY(reserve_pages(r, p, limit / MLX_KV_PAGE));
  for (int32_t page = 0; found < limit / MLX_KV_PAGE; r->pages[found++] = page) {
    page = mlx_pool_find(p->pool, page, r->ids + found * MLX_KV_PAGE, MLX_KV_PAGE, &common);
    if (common < MLX_KV_PAGE) break;
  }
  *out_found = found;
  return NULL;
}

// The most of |found| pages after which the sequence can go on: the window pages of its window are there.
// Older ones are not needed.
static size_t usable_pages(const mlx_request_t *r, const mlx_request_pages_t *p, size_t found) {
  size_t usable = 0, run = 0;  // consecutive pages with a window page
  if (!takes_windows(r, p)) return found;
  for (size_t i = 0; i < found; ++i) {
    run = mlx_pool_window_of(p->pool, r->pages[i]) ? run + 1 : 0;
    if (run >= i + 1 - first_seen(p->stepper, (i + 1) * MLX_KV_PAGE)) usable = i + 1;
  }
  return usable;
}

// Uses the published full pages of the first |limit| tokens.
static mlx_status_t share_full_pages(mlx_request_t *r, const mlx_request_pages_t *p, size_t limit) {
  size_t found;
  MLX_TRY(find_full_pages(r, p, limit, &found));
  const size_t usable = usable_pages(r, p, found);
  size_t first = usable;
  if (takes_windows(r, p)) {
    const size_t kept = first_kept(p->stepper, usable * MLX_KV_PAGE);
    while (first > kept && mlx_pool_window_of(p->pool, r->pages[first - 1])) --first;
  }
  while (r->page_count < usable) {
    const int32_t page = r->pages[r->page_count],
                  window = r->page_count < first ? 0 : mlx_pool_window_of(p->pool, page);
    mlx_pool_retain(p->pool, page);
    if (window) mlx_pool_retain_window(p->pool, window);
    MLX_TRY(push_page(r, p, page, window));
  }
  r->windows_dropped = takes_windows(r, p) ? first : 0;
  r->fed = usable * MLX_KV_PAGE;
  r->published = usable;
  return NULL;
}

// Takes a page and, if the sequence has them, a window page. *out_page is 0 if the pool has none.
static void take_pages(const mlx_request_t *r, const mlx_request_pages_t *p, int32_t *out_page,
                       int32_t *out_window) {
  *out_window = 0;
  *out_page = mlx_pool_take(p->pool);
  if (!*out_page || !takes_windows(r, p)) return;
  *out_window = mlx_pool_take_window(p->pool);
  if (*out_window) return;
  mlx_pool_release(p->pool, *out_page);
  *out_page = 0;
}

// Copies |found| and its window page, which are published, to new pages.
static mlx_status_t copy_pages(mlx_request_t *r, const mlx_request_pages_t *p, int32_t found, int32_t window,
                               bool *out_copied) {
  int32_t page, own_window;
  take_pages(r, p, &page, &own_window);
  *out_copied = page != 0;
  if (!page) return NULL;
  MLX_TRY(push_page(r, p, page, own_window));
  MLX_TRY(p->stepper->copy_page(p->stepper, found, page));
  return window ? p->stepper->copy_window_page(p->stepper, window, own_window) : NULL;
}

// Copies the published page that begins with the tokens after the full pages. The request writes the rest of
// its copy.
static mlx_status_t copy_partial_page(mlx_request_t *r, const mlx_request_pages_t *p, size_t limit) {
  const size_t wanted = limit - r->fed < MLX_KV_PAGE ? limit - r->fed : MLX_KV_PAGE;
  size_t common;
  bool copied;
  const int32_t found = mlx_pool_find(p->pool, last_page(r), r->ids + r->fed, wanted, &common);
  const int32_t window = found && takes_windows(r, p) ? mlx_pool_window_of(p->pool, found) : 0;
  if (!found || (takes_windows(r, p) && !window)) return NULL;
  mlx_pool_retain(p->pool, found);  // so that taking a page does not evict it
  if (window) mlx_pool_retain_window(p->pool, window);
  mlx_status_t status = copy_pages(r, p, found, window, &copied);
  if (window) mlx_pool_release_window(p->pool, window, false);
  mlx_pool_release(p->pool, found);
  if (!status && copied) r->fed += common;
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Recurrent state

#define SNAPSHOT_TOKENS 512  // of a prompt between two snapshots

// Whether the sequence takes a state from the pool. A session has its own.
static bool takes_state(const mlx_request_t *r, const mlx_request_pages_t *p) {
  return p->stepper->states && !r->held;
}

static mlx_status_t set_states(const mlx_request_t *r, const mlx_request_pages_t *p) {
  return p->stepper->set_states(p->stepper, r->slot, r->snapshot ? r->snapshot : r->recurrent, r->recurrent);
}

// The last full page of the prompt ends here. The rest of it is often another in the next turn of a chat: the
// start of an answer.
static size_t last_boundary(const mlx_request_t *r) {
  return (r->prompt_count - 1) / MLX_KV_PAGE * MLX_KV_PAGE;
}

size_t mlx_request_until_snapshot(const mlx_request_t *r, const mlx_request_pages_t *p, size_t count) {
  const size_t boundary = last_boundary(r);
  const bool keeps = r->held ? p->stepper->states > 0 : p->share && takes_state(r, p);
  if (!keeps || r->fed >= boundary || r->fed + count <= boundary) return count;
  return boundary - r->fed;
}

static bool wants_snapshot(const mlx_request_t *r) {
  const size_t boundary = last_boundary(r);
  if (!r->fed || r->fed % MLX_KV_PAGE || r->fed > boundary || r->published * MLX_KV_PAGE < r->fed)
    return false;
  return r->fed == boundary || r->fed - r->snapshot_at >= SNAPSHOT_TOKENS;
}

// Whether a session keeps a snapshot here. Nothing evicts it, so a state per sequence must be left.
static bool wants_kept(const mlx_request_t *r, const mlx_request_pages_t *p) {
  const mlx_pool_counts_t states = mlx_pool_state_counts(p->pool);
  return r->fed && r->fed == last_boundary(r) && !r->score.texts &&
         states.free + states.cached > p->stepper->slots;
}

static void keep_own(mlx_request_t *r, mlx_pool_t *pool) {
  mlx_pool_retain_state(pool, r->recurrent);
  if (r->kept) mlx_pool_release_state(pool, r->kept);
  r->kept = r->recurrent;
  r->kept_length = r->fed;
}

mlx_status_t mlx_request_return(mlx_request_t *r, const mlx_request_pages_t *p) {
  if (r->snapshot) mlx_pool_release_state(p->pool, r->snapshot);
  mlx_pool_retain_state(p->pool, r->kept);
  r->snapshot = r->kept;
  r->fed = r->kept_length;
  return set_states(r, p);
}

void mlx_request_drop_kept(mlx_request_t *r, mlx_pool_t *pool) {
  if (r->kept) mlx_pool_release_state(pool, r->kept);
  if (r->snapshot) mlx_pool_release_state(pool, r->snapshot);
  r->kept = r->snapshot = 0;
}

mlx_status_t mlx_request_note_state(mlx_request_t *r, const mlx_request_pages_t *p) {
  if (!p->stepper->states) return NULL;
  const int32_t read = r->snapshot;
  r->snapshot = 0;
  if (read) mlx_pool_release_state(p->pool, read);
  const bool wanted = r->held ? wants_kept(r, p) : p->share && wants_snapshot(r);
  const int32_t next = wanted ? mlx_pool_take_state(p->pool) : 0;
  if (next) {
    if (r->held)
      keep_own(r, p->pool);
    else
      mlx_pool_keep_state(p->pool, r->pages[r->fed / MLX_KV_PAGE - 1], r->recurrent, MLX_KV_PAGE);
    r->snapshot = r->recurrent;
    r->snapshot_at = r->fed;
    r->recurrent = next;
  }
  return read || next ? set_states(r, p) : NULL;
}

// A published page with a state from which the sequence can go on.
typedef struct start {
  int32_t page, state;
  size_t length;  // positions that the state has
} start_t;

// The last state of |found| full pages, and of the page after them that begins with the next tokens.
static start_t find_start(const mlx_request_t *r, const mlx_request_pages_t *p, size_t found, size_t limit) {
  start_t best = {0};
  size_t count, common;
  for (size_t i = 0; i < found; ++i) {
    const int32_t state = mlx_pool_state_of(p->pool, r->pages[i], &count);
    if (state) best = (start_t){r->pages[i], state, i * MLX_KV_PAGE + count};
  }
  const size_t full = found * MLX_KV_PAGE, rest = limit - full < MLX_KV_PAGE ? limit - full : MLX_KV_PAGE;
  if (!rest) return best;
  const int32_t last = found ? r->pages[found - 1] : 0,
                partial = mlx_pool_find(p->pool, last, r->ids + full, rest, &common),
                state = partial ? mlx_pool_state_of(p->pool, partial, &count) : 0;
  return state && count <= common ? (start_t){partial, state, full + count} : best;
}

// Uses published pages up to the last state that fits, and copies the page that it ends in.
static mlx_status_t share_until_state(mlx_request_t *r, const mlx_request_pages_t *p, size_t limit) {
  size_t found;
  bool copied = true;
  MLX_TRY(find_full_pages(r, p, limit, &found));
  const start_t start = find_start(r, p, found, limit);
  if (!start.state) return NULL;
  mlx_pool_retain(p->pool, start.page);  // so that taking a page does not evict it
  mlx_pool_retain_state(p->pool, start.state);
  mlx_status_t status = NULL;
  while (!status && r->page_count < start.length / MLX_KV_PAGE) {
    const int32_t page = r->pages[r->page_count];
    mlx_pool_retain(p->pool, page);
    status = push_page(r, p, page, 0);
  }
  r->published = r->page_count;
  if (!status && start.length % MLX_KV_PAGE) status = copy_pages(r, p, start.page, 0, &copied);
  mlx_pool_release(p->pool, start.page);
  if (status || !copied) {
    mlx_pool_release_state(p->pool, start.state);
    while (r->page_count) mlx_pool_release(p->pool, r->pages[--r->page_count]);
    r->published = 0;
    return status;
  }
  r->fed = r->snapshot_at = start.length;
  r->snapshot = start.state;
  return set_states(r, p);
}

// Gives the state back. With |keep|, the page of its last token keeps it.
static void release_state(mlx_request_t *r, const mlx_request_pages_t *p, bool keep) {
  if (!takes_state(r, p)) return;
  const size_t last = r->fed ? (r->fed - 1) / MLX_KV_PAGE : 0;
  if (keep && p->share && !r->snapshot && r->fed && r->fed <= r->count && last < r->page_count)
    mlx_pool_keep_state(p->pool, r->pages[last], r->recurrent, r->fed - last * MLX_KV_PAGE);
  if (r->snapshot) mlx_pool_release_state(p->pool, r->snapshot);
  if (r->recurrent) mlx_pool_release_state(p->pool, r->recurrent);
  r->snapshot = r->recurrent = 0;
  r->snapshot_at = 0;
}

// ----------------------------------------------------------------------------------------------------------
// Joining and leaving

// Whether the pool has pages for |next| positions and |spare| more.
static bool has_enough(const mlx_request_t *r, const mlx_request_pages_t *p, size_t next, int64_t spare) {
  const mlx_pool_counts_t counts = mlx_pool_counts(p->pool), windows = mlx_pool_window_counts(p->pool);
  const size_t rest = pages_for(next) - r->page_count, held = pages_held(p->stepper, next);
  if ((int64_t)(rest < held ? rest : held) + spare > counts.free + counts.cached) return false;
  if (!takes_windows(r, p)) return true;
  const size_t most = mlx_window_pages_held(p->stepper, next), own = r->page_count - r->windows_dropped;
  const size_t needed = most < own ? 0 : most - own;
  return (int64_t)(rest < needed ? rest : needed) + spare <= windows.free + windows.cached;
}

// Shares what can be shared, and checks that the pool has enough pages for the rest.
static mlx_status_t find_pages(mlx_request_t *r, const mlx_request_pages_t *p, int64_t positions,
                               int64_t spare, bool *out_enough) {
  const bool looks_back = mlx_sequence_sampler_looks_back(r->sampler);
  const bool share = p->share && (!looks_back || p->stepper->set_tokens);
  const size_t next = r->count + 1 < (size_t)positions ? r->count + 1 : (size_t)positions;
  // A token is scored by the step that computes the token before it.
  const size_t unscored = mlx_request_scores(r) ? r->score.done : r->count - 1;
  const size_t unrouted = mlx_request_unrouted(r), limit = unscored < unrouted ? unscored : unrouted;
  const bool recurrent = takes_state(r, p);
  if (share) MLX_TRY(recurrent ? share_until_state(r, p, limit) : share_full_pages(r, p, limit));
  *out_enough = has_enough(r, p, next, spare);
  if (!*out_enough || !share) return NULL;
  if (limit > r->fed && !recurrent) MLX_TRY(copy_partial_page(r, p, limit));
  MLX_TRY(mlx_request_drop_unseen(r, p));
  if (!looks_back || !r->fed) return NULL;
  return p->stepper->set_tokens(p->stepper, r->slot, 0, r->ids, r->fed);
}

mlx_status_t mlx_request_attach(mlx_request_t *r, const mlx_request_pages_t *p, int64_t positions,
                                int64_t spare, bool *out_attached) {
  *out_attached = false;
  r->slot = mlx_pool_take_slot(p->pool);
  if (r->slot < 0) return NULL;
  mlx_status_t status = NULL;
  if (takes_state(r, p)) {
    r->recurrent = mlx_pool_take_state(p->pool);
    if (!r->recurrent) {
      mlx_request_detach(r, p, false);
      return NULL;
    }
    status = set_states(r, p);
  }
  if (!status) status = find_pages(r, p, positions, spare, out_attached);
  if (mlx_request_scores(r)) r->score.done = r->fed;  // after a preemption, tokens may be scored again
  if (status || !*out_attached) mlx_request_detach(r, p, false);
  return status;
}

mlx_status_t mlx_request_grow(mlx_request_t *r, const mlx_request_pages_t *p, size_t length, bool *out_ok) {
  *out_ok = true;
  while (r->page_count < pages_for(length)) {
    int32_t page, window;
    take_pages(r, p, &page, &window);
    *out_ok = page != 0;
    if (!page) return NULL;
    MLX_TRY(push_page(r, p, page, window));
  }
  return NULL;
}

// Publishes page |nth|, which holds |count| known tokens, and its window page. An equal page replaces the
// sequence's own.
static mlx_status_t publish_page(mlx_request_t *r, const mlx_request_pages_t *p, size_t nth, size_t count) {
  const int32_t old = r->pages[nth],
                old_window = nth < r->windows_dropped || !takes_windows(r, p) ? 0 : r->windows[nth];
  r->pages[nth] =
      mlx_pool_publish(p->pool, nth ? r->pages[nth - 1] : 0, old, r->ids + nth * MLX_KV_PAGE, count);
  if (old_window) r->windows[nth] = mlx_pool_keep_window(p->pool, r->pages[nth], old_window);
  if (r->pages[nth] != old) MLX_TRY(p->stepper->set_page(p->stepper, r->slot, (int32_t)nth, r->pages[nth]));
  if (!old_window || r->windows[nth] == old_window) return NULL;
  return p->stepper->set_window_page(p->stepper, r->slot, (int32_t)nth, r->windows[nth]);
}

mlx_status_t mlx_request_publish(mlx_request_t *r, const mlx_request_pages_t *p) {
  const size_t known = r->fed < r->count ? r->fed : r->count;
  for (; p->share && !r->held && (r->published + 1) * MLX_KV_PAGE <= known; ++r->published)
    MLX_TRY(publish_page(r, p, r->published, MLX_KV_PAGE));
  return NULL;
}

// Releases the window pages that no later token sees.
static mlx_status_t drop_windows(mlx_request_t *r, const mlx_request_pages_t *p) {
  const size_t kept = first_kept(p->stepper, r->fed), end = kept < r->page_count ? kept : r->page_count;
  for (; r->windows_dropped < end; ++r->windows_dropped) {
    const int32_t nth = (int32_t)r->windows_dropped;
    MLX_TRY(p->stepper->set_window_page(p->stepper, r->slot, nth, 0));
    mlx_pool_release_window(p->pool, r->windows[nth], true);
    r->windows[nth] = 0;
  }
  return NULL;
}

mlx_status_t mlx_request_drop_unseen(mlx_request_t *r, const mlx_request_pages_t *p) {
  if (!p->stepper->window || r->held) return NULL;
  if (p->stepper->window_pages) return drop_windows(r, p);
  size_t end = first_seen(p->stepper, r->fed);
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
  // The full pages are published already. No step reads the page table any more: a failure has no effect.
  if (keep && p->share && known % MLX_KV_PAGE && r->published == nth && nth < r->page_count)
    mlx_status_free(publish_page(r, p, nth, known % MLX_KV_PAGE));
  release_state(r, p, keep);
  const bool windows = takes_windows(r, p);
  while (r->page_count > r->dropped) {
    const size_t last = --r->page_count;
    mlx_pool_release(p->pool, r->pages[last]);
    if (windows && last >= r->windows_dropped) mlx_pool_release_window(p->pool, r->windows[last], false);
  }
  if (r->slot >= 0) mlx_pool_release_slot(p->pool, r->slot);
  r->slot = -1;
  r->fed = r->published = r->page_count = r->dropped = r->windows_dropped = 0;
}
