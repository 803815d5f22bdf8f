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

static mlx_status_t too_little(const mlx_sizing_request_t *r, int64_t context, uint64_t limit,
                               int64_t pages) {
  const uint64_t needed = (uint64_t)(1 + pages_of(context)) * r->page_bytes;
  mlx_status_t status = mlx_error(
      MLX_OUT_OF_MEMORY, "%s: a context of %lld tokens needs %s of memory for its KV cache; %s are %s",
      r->name, (long long)context, mlx_size_text(needed).text, mlx_size_text(limit).text,
      limit < r->free_memory ? "allowed (--memory)" : "free");
  if (pages < 2)
    return mlx_status_hint(
        status, limit < r->free_memory ? "use a larger --memory" : "use a smaller model, or free memory");
  return mlx_status_hint(status, "use -c %lld or less%s", (long long)((pages - 1) * MLX_KV_PAGE),
                         limit < r->free_memory ? ", or a larger --memory" : "");
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
  const uint64_t limit = r->memory ? r->memory : r->free_memory, pages = limit / r->page_bytes;
  const int64_t most = pages > INT32_MAX ? INT32_MAX : (int64_t)pages;  // page numbers are i32
  if (1 + pages_of(out->context) > most) {
    if (r->context || most < 2) return too_little(r, out->context, limit, most);
    out->context = (most - 1) * MLX_KV_PAGE;
  }
  out->slot_pages = pages_of(out->context);
  out->pool_pages = 1 + out->sequences * out->slot_pages;
  if (out->pool_pages > most) out->pool_pages = most;
  return NULL;
}
