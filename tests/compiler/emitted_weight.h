// The type of a weight in an emitted module, where it is a part of the archive.
#ifndef MLXCEL_TESTS_EMITTED_WEIGHT_H_
#define MLXCEL_TESTS_EMITTED_WEIGHT_H_

#include <stdbool.h>
#include <string.h>

// Whether the first weight whose name ends with |name| has the type |type|, as "tensor<6x32xbf16>".
static inline bool weight_has_type(const char *text, const char *name, const char *type) {
  for (const char *at = text; (at = strstr(at, name)); ++at) {
    const char *op = at + strlen(name), *end = strchr(at, '\n');
    if (strncmp(op, " = flow.tensor.", 15) || !end || (size_t)(end - at) < strlen(type)) continue;
    return !strncmp(end - strlen(type), type, strlen(type));
  }
  return false;
}

#endif  // MLXCEL_TESTS_EMITTED_WEIGHT_H_
