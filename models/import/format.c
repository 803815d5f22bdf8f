// Names the formats of weights and adds up their sizes; see format.h.
#include "models/import/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mlx_weight_format(const mlx_weight_t *weight, char out[MLX_FORMAT_NAME]) {
  const mlx_packing_t *packing = weight->part_packings ? weight->part_packings : &weight->packing;
  if (packing->kind)
    snprintf(out, MLX_FORMAT_NAME, "%s %d-bit", mlx_packing_name(packing->kind), packing->bits);
  else
    snprintf(out, MLX_FORMAT_NAME, "%s", mlx_dtype_info(weight->tensor.dtype)->name);
}

void mlx_format_list_add(mlx_format_list_t *list, const char *name, uint64_t bytes) {
  size_t at = 0;
  while (at < list->count && strcmp(list->items[at].name, name)) ++at;
  if (at == sizeof list->items / sizeof *list->items) return;
  if (at == list->count) snprintf(list->items[list->count++].name, MLX_FORMAT_NAME, "%s", name);
  list->items[at].bytes += bytes;
}

// Names decide between formats of the same size, so that the order is the same everywhere.
static int compare_formats(const void *a, const void *b) {
  const mlx_format_t *left = a, *right = b;
  if (left->bytes != right->bytes) return left->bytes > right->bytes ? -1 : 1;
  return strcmp(left->name, right->name);
}

void mlx_format_list_sort(mlx_format_list_t *list) {
  qsort(list->items, list->count, sizeof *list->items, compare_formats);
}
