// Fuzz target: the two parsers of the cache, for entry records and cached digests. Accepted input must be
// unchanged after it is written and parsed again.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "cache/entry.h"

static void require(bool condition) {
  if (!condition) abort();
}

static void fuzz_record(const char *bytes, size_t length) {
  mlx_entry_record_t first, second;
  mlx_status_t status = mlx_record_parse("entry.json", bytes, length, &first);
  if (status) {
    mlx_status_free(status);
    return;
  }
  mlx_text_t text = {0};
  mlx_record_write(&first, &text);
  require(!mlx_text_finish(&text));
  require(!mlx_record_parse("entry.json", text.data, text.length, &second));
  require(!strcmp(first.id, second.id) && !strcmp(first.title, second.title) &&
          first.created == second.created);
  require(first.file_count == second.file_count);
  for (size_t i = 0; i < first.file_count; ++i) {
    require(mlx_is_entry_file(first.files[i].name) && mlx_is_digest(first.files[i].digest));
    require(!strcmp(first.files[i].name, second.files[i].name) &&
            first.files[i].size == second.files[i].size);
    require(!strcmp(first.files[i].digest, second.files[i].digest));
  }
  mlx_text_clear(&text);
  mlx_record_free(&first);
  mlx_record_free(&second);
}

static void fuzz_cached_digest(const char *bytes, size_t length) {
  mlx_cached_digest_t cached;
  mlx_status_t status = mlx_cached_digest_parse("cached.json", bytes, length, &cached);
  if (!status) require(mlx_is_digest(cached.digest) && memchr(cached.stamp, 0, sizeof cached.stamp));
  mlx_status_free(status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_record((const char *)data, size);
  fuzz_cached_digest((const char *)data, size);
  return 0;
}
