// Short names: a built-in list of well-known models, so that "qwen3:0.6b" works without knowing a hub's
// names.
#ifndef MLXCEL_TRANSFER_SHORT_NAMES_H_
#define MLXCEL_TRANSFER_SHORT_NAMES_H_

#include "base/status.h"

typedef struct mlx_short_name {
  const char *name;     // "FAMILY:SIZE"
  bool is_default;      // "FAMILY" and "FAMILY:latest" name this size
  const char *ref;      // the hub reference: "hf:ORG/NAME:QUANT"
  const char *size;     // of the download, rounded
  const char *license;  // of the model
} mlx_short_name_t;

const mlx_short_name_t *mlx_short_name(size_t index);  // NULL after the last one
// Finds "FAMILY:SIZE", "FAMILY" or "FAMILY:latest", in any case. NULL if the list does not contain it.
const mlx_short_name_t *mlx_short_name_find(const char *name);
// The names most similar to |name|, separated by ", "; "" if none is similar: all sizes of its family, else
// the defaults of the families that begin with it, else the names with the smallest edit distance.
typedef struct mlx_short_names_text {
  char text[128];
} mlx_short_names_text_t;
mlx_short_names_text_t mlx_short_name_nearest(const char *name);

#endif  // MLXCEL_TRANSFER_SHORT_NAMES_H_
