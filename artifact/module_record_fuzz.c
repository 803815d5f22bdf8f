// Reads arbitrary bytes as a module record. One that is accepted is written, and read again to the same
// record.
#include <stdlib.h>
#include <string.h>

#include "artifact/module_record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  mlx_module_record_t record, again;
  mlx_text_t text = {0};
  mlx_status_t status = mlx_module_record_read("fuzz", (const char *)data, size, &record);
  if (!status) {
    if (mlx_module_record_write(&record, &text) ||
        mlx_module_record_read("again", text.data, text.length, &again) ||
        memcmp(&record, &again, sizeof record))
      abort();
  }
  mlx_text_clear(&text);
  mlx_status_free(status);
  return 0;
}
