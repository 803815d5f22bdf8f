// Fuzz target: parses arbitrary bytes as settings.
#include "base/settings.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Every setting must have a non-empty key and a value, or start a section.
static mlx_status_t check_setting(void *user, const mlx_setting_t *setting) {
  size_t *total = user;
  if (!setting->section || setting->line < 1 || (setting->key && (!setting->key[0] || !setting->value)))
    abort();
  *total += strlen(setting->section) + (setting->key ? strlen(setting->key) + strlen(setting->value) : 0);
  return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  size_t total = 0;
  mlx_status_free(mlx_settings_read("fuzz", (const char *)data, size, check_setting, &total));
  if (total > size * size + size) abort();
  return 0;
}
