// Parses a hub reference and a listing, and chooses files.
#include <string.h>

#include "base/memory.h"
#include "transfer/hub.h"

// Input: the first line is the reference, the rest is the listing.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const uint8_t *end = size ? memchr(data, '\n', size) : NULL;
  char *ref_text;
  if (!end || mlx_copy_text((const char *)data, (size_t)(end - data), &ref_text)) return 0;
  mlx_hub_ref_t ref;
  mlx_hub_listing_t listing = {0};
  const char *main_file;
  bool by_default;
  mlx_status_t status = mlx_hub_ref_parse(ref_text, &ref);
  if (!status)
    status = mlx_hub_listing_read("answer", (const char *)end + 1, size - (size_t)(end + 1 - data), &listing);
  if (!status) status = mlx_hub_select(&listing, ref.selector, &main_file, &by_default);
  mlx_hub_listing_free(&listing);
  mlx_status_free(status);
  mlx_free(ref_text);
  return 0;
}
