// libFuzzer target for the licence in the front matter of a README.md.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "models/import/licence.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char licence[64];
  mlx_readme_licence((const char *)data, size, licence, sizeof licence);
  if (strlen(licence) >= sizeof licence) abort();
  return 0;
}
