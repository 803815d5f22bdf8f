#ifndef MLXCEL_MODELS_IMPORT_LICENCE_H_
#define MLXCEL_MODELS_IMPORT_LICENCE_H_

#include <stddef.h>

// The value of "license:" in the head of a README.md ("apache-2.0"); "" when it says nothing that fits |size|
// bytes.
void mlx_readme_licence(const char *text, size_t length, char *out, size_t size);

#endif  // MLXCEL_MODELS_IMPORT_LICENCE_H_
