// Name table: a hash table from names to numbers. It borrows the names, so they must outlive the table.
#ifndef MLXCEL_GRAMMAR_NAME_TABLE_H_
#define MLXCEL_GRAMMAR_NAME_TABLE_H_

#include <stdint.h>

#include "base/status.h"

// Zero-initialize to start. Release with mlx_name_table_free.
typedef struct mlx_name_table {
  struct mlx_name_slot *slots;
  size_t mask, used;
} mlx_name_table_t;

// The number of |name|. False if it is not in the table.
bool mlx_name_table_find(const mlx_name_table_t *table, const char *name, size_t length,
                         uint32_t *out_number);
// Adds a name that is not in the table.
mlx_status_t mlx_name_table_add(mlx_name_table_t *table, const char *name, size_t length,
                                uint32_t number) MLX_MUST_USE;
void mlx_name_table_free(mlx_name_table_t *table);

#endif  // MLXCEL_GRAMMAR_NAME_TABLE_H_
