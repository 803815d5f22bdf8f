// Chooses sizes from the user's wishes and the memory of the device. See sizing.h.
#include "runtime/sizing.h"

#include <stdio.h>

#include "artifact/manifest.h"

mlx_size_text_t mlx_size_text(uint64_t bytes) {
  mlx_size_text_t size;
  const bool large = bytes >= 1u << 30;
  snprintf(size.text, sizeof size.text, "%.1f %s", (double)bytes / (large ? 1 << 30 : 1 << 20),
           large ? "GiB" : "MiB");
  return size;
}

static int64_t pages_of(int64_t positions) { return (positions + MLX_KV_PAGE - 1) / MLX_KV_PAGE; }

mlx_status_t mlx_sizing_context(const mlx_sizing_request_t *r, int64_t *out_context) {
  const int64_t most = r->model_context;
  *out_context = r->context > 0                                 ? r->context
                 : r->context < 0 || most < MLX_DEFAULT_CONTEXT ? most
                                                                : MLX_DEFAULT_CONTEXT;
  if (*out_context >= 1 && *out_context <= most) return NULL;
  return mlx_status_hint(mlx_error(MLX_USAGE, "%s supports a context of 1 to %lld tokens, not %lld", r->name,
                                   (long long)most, (long long)r->context),
                         "use -c %lld or less", (long long)most);
}

// Window pages of one sequence of |pages| pages.
static int64_t windows_of(const mlx_sizing_request_t *r, int64_t pages) {
  if (!r->window_page_bytes) return 0;
  return pages < r->window_held ? pages : r->window_held;
}

// Bytes of a pool of |pages| and |windows| pages, at most UINT64_MAX. Both numbers are without page 0.
static uint64_t pool_bytes(const mlx_sizing_request_t *r, int64_t pages, int64_t windows) {
  uint64_t full, windowed, sum;
  if (__builtin_mul_overflow((uint64_t)(1 + pages), r->page_bytes, &full) ||
      __builtin_mul_overflow((uint64_t)(1 + windows), r->window_page_bytes, &windowed) ||
      __builtin_add_overflow(full, windowed, &sum))
    return UINT64_MAX;
  return sum;
}

// The most pages of one sequence that fit into |limit| bytes, with its window pages; 0: none do.
static int64_t most_pages(const mlx_sizing_request_t *r, uint64_t limit) {
  const uint64_t both = r->page_bytes + r->window_page_bytes;
  uint64_t pages = limit / both;
  if (r->window_page_bytes && pages > (uint64_t)r->window_held)
    pages = (limit - (uint64_t)(1 + r->window_held) * r->window_page_bytes) / r->page_bytes;
  if (pages > INT32_MAX) pages = INT32_MAX;  // page numbers are i32
  return pages ? (int64_t)pages - 1 : 0;
}

static mlx_status_t too_little(const mlx_sizing_request_t *r, int64_t context, uint64_t limit, int64_t most) {
  const uint64_t needed = pool_bytes(r, pages_of(context), windows_of(r, pages_of(context)));
  mlx_status_t status = mlx_error(
      MLX_OUT_OF_MEMORY, "%s: a context of %lld tokens needs %s of memory for its KV cache; %s are %s",
      r->name, (long long)context, mlx_size_text(needed).text, mlx_size_text(limit).text,
      limit < r->free_memory ? "allowed (--memory)" : "free");
  if (!most)
    return mlx_status_hint(
        status, limit < r->free_memory ? "use a larger --memory" : "use a smaller model, or free memory");
  return mlx_status_hint(status, "use -c %lld or less%s", (long long)(most * MLX_KV_PAGE),
                         limit < r->free_memory ? ", or a larger --memory" : "");
}

// Divides |limit| bytes over pages and window pages. One sequence at full length fits.
static void divide(const mlx_sizing_request_t *r, uint64_t limit, mlx_sizing_t *out) {
  const int64_t least = windows_of(r, out->slot_pages), all = out->sequences * out->slot_pages;
  int64_t pages = all, windows = MLX_WINDOW_POOL_FACTOR * out->sequences * least;
  if (windows > all) windows = all;
  if (windows >= INT32_MAX) windows = INT32_MAX - 1;
  const uint64_t wanted = pool_bytes(r, pages, windows);
  if (wanted > limit && windows) {
    const uint64_t rest = (limit - pool_bytes(r, out->slot_pages, 0)) / r->window_page_bytes;
    windows = (int64_t)((double)windows * ((double)limit / (double)wanted));
    if (windows < least) windows = least;
    if ((uint64_t)windows > rest) windows = (int64_t)rest;
  }
  if (wanted > limit) pages = (int64_t)((limit - pool_bytes(r, 0, windows)) / r->page_bytes);
  out->pool_pages = 1 + (pages < INT32_MAX ? pages : INT32_MAX - 1);
  out->window_pages = r->window_page_bytes ? 1 + windows : 0;
}

// Takes the states out of |limit|: state 0, one for each sequence and one more. With enough memory, each
// sequence has two snapshots more.
static mlx_status_t choose_states(const mlx_sizing_request_t *r, uint64_t *limit, mlx_sizing_t *out) {
  if (!r->state_bytes) return NULL;
  const uint64_t least = 2 + (uint64_t)out->sequences, most = least + 2 * (uint64_t)out->sequences,
                 share = *limit / 4 / r->state_bytes,
                 count = share < least  ? least
                         : share < most ? share
                                        : most;
  out->states = (int64_t)count;
  if (*limit / r->state_bytes > count) {
    *limit -= count * r->state_bytes;
    return NULL;
  }
  mlx_status_t status =
      mlx_error(MLX_OUT_OF_MEMORY, "%s: the recurrent state of %lld sequences needs %s of memory; %s are %s",
                r->name, (long long)out->sequences, mlx_size_text(least * r->state_bytes).text,
                mlx_size_text(*limit).text, *limit < r->free_memory ? "allowed (--memory)" : "free");
  return mlx_status_hint(status, out->sequences > 1
                                     ? "use fewer sequences (--parallel), or more memory (--memory)"
                                     : "use a smaller model, or more memory (--memory)");
}

mlx_status_t mlx_sizing_choose(const mlx_sizing_request_t *r, mlx_sizing_t *out) {
  *out = (mlx_sizing_t){.sequences = r->sequences ? r->sequences : 1};
  MLX_TRY(mlx_sizing_context(r, &out->context));
  if (out->sequences < 1 || out->sequences > MLX_MAX_SEQUENCES)
    return mlx_error(MLX_USAGE, "%lld sequences are not possible: use --parallel 1 to %d",
                     (long long)r->sequences, MLX_MAX_SEQUENCES);
  if (r->memory > r->free_memory)
    return mlx_status_hint(mlx_error(MLX_OUT_OF_MEMORY, "%s: --memory wants %s; %s are free", r->name,
                                     mlx_size_text(r->memory).text, mlx_size_text(r->free_memory).text),
                           "use a smaller --memory");
  uint64_t limit = r->memory ? r->memory : r->free_memory;
  MLX_TRY(choose_states(r, &limit, out));
  const int64_t most = most_pages(r, limit);
  if (pages_of(out->context) > most) {
    if (r->context || !most) return too_little(r, out->context, limit, most);
    out->context = most * MLX_KV_PAGE;
  }
  out->slot_pages = pages_of(out->context);
  divide(r, limit, out);
  return NULL;
}
