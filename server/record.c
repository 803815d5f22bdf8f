// Lifetime of records.
#include "server/record.h"

#include "base/clock.h"
#include "base/memory.h"

mlx_status_t mlx_record_create(const char *endpoint, mlx_record_t **out_record) {
  MLX_TRY(mlx_alloc(1, sizeof **out_record, out_record));
  (*out_record)->endpoint = endpoint;
  (*out_record)->start = mlx_seconds();
  atomic_init(&(*out_record)->users, 1);
  return NULL;
}

void mlx_record_retain(mlx_record_t *record) { atomic_fetch_add(&record->users, 1); }

void mlx_record_release(mlx_record_t *record) {
  if (record && atomic_fetch_sub(&record->users, 1) == 1) mlx_free(record);
}
