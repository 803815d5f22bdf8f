// The licence that a model declares.
#ifndef MLXCEL_MODELS_IMPORT_LICENCE_H_
#define MLXCEL_MODELS_IMPORT_LICENCE_H_

#include <stddef.h>

// Writes the value of "license:" in the YAML front matter of a README.md ("apache-2.0") to |out|, or "" if
// there is none or it does not fit |size| bytes.
void mlx_readme_licence(const char *text, size_t length, char *out, size_t size);

#endif  // MLXCEL_MODELS_IMPORT_LICENCE_H_
