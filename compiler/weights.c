#include "compiler/weights.h"

#include "artifact/archive.h"
#include "base/memory.h"

#define CHUNK_BYTES (4u << 20)  // of widened rows held at a time

static int64_t row_count(const mlx_tensor_t *tensor) { return tensor->rank > 1 ? tensor->dims[0] : 1; }

static size_t row_elements(const mlx_tensor_t *tensor) {
  size_t count = 1;
  for (int i = tensor->rank > 1 ? 1 : 0; i < tensor->rank; ++i) count *= (size_t)tensor->dims[i];
  return count;
}

// Which stored row is row |row| of the tensor.
static int64_t stored_row(const mlx_weight_t *weight, int64_t row) {
  if (weight->order == MLX_ROWS_AS_STORED) return row;
  int64_t head = row / weight->order_head_dim, within = row % weight->order_head_dim, half = weight->order_head_dim / 2;
  return head * weight->order_head_dim + (within % half) * 2 + within / half;
}

static mlx_status_t write_weight(mlx_archive_writer_t *archive, const mlx_weight_t *weight, float *chunk, size_t chunk_rows) {
  const mlx_tensor_t *tensor = &weight->tensor;
  const mlx_dtype_info_t *info = mlx_dtype_info(tensor->dtype);
  const size_t elements = row_elements(tensor), row_bytes = tensor->size / (size_t)row_count(tensor);
  const int64_t rows = row_count(tensor);
  MLX_TRY(mlx_archive_next(archive));
  for (int64_t row = 0; row < rows;) {
    size_t filled = 0;
    for (; filled < chunk_rows && row < rows; ++filled, ++row) {
      info->to_f32(tensor->data + (size_t)stored_row(weight, row) * row_bytes, elements / info->block_elements,
                   chunk + filled * elements);
    }
    MLX_TRY(mlx_archive_write(archive, chunk, filled * elements * sizeof *chunk));
  }
  return NULL;
}

static mlx_status_t write_all(const mlx_model_t *model, mlx_archive_writer_t *archive, const mlx_report_t *report) {
  uint64_t total = 0, done = 0;
  for (size_t i = 0; i < model->weight_count; ++i) total += model->weights[i].tensor.size;
  for (size_t i = 0; i < model->weight_count; ++i) {
    const mlx_weight_t *weight = &model->weights[i];
    const size_t elements = row_elements(&weight->tensor);
    size_t chunk_rows = CHUNK_BYTES / sizeof(float) / elements;
    if (!chunk_rows) chunk_rows = 1;
    float *chunk;
    MLX_TRY(mlx_alloc(chunk_rows * elements, sizeof *chunk, &chunk));
    mlx_status_t status = write_weight(archive, weight, chunk, chunk_rows);
    mlx_free(chunk);
    if (status) return status;
    done += weight->tensor.size;
    mlx_report_progress(report, "writing weights: %d%%", (int)(100 * done / total));
  }
  return NULL;
}

mlx_status_t mlx_weights_write(const mlx_model_t *model, const char *path, const mlx_report_t *report) {
  mlx_archive_item_t *items;
  MLX_TRY(mlx_alloc(model->weight_count, sizeof *items, &items));
  for (size_t i = 0; i < model->weight_count; ++i) {
    const mlx_tensor_t *tensor = &model->weights[i].tensor;
    items[i].name = model->weights[i].name;
    items[i].size = (uint64_t)row_count(tensor) * row_elements(tensor) * sizeof(float);
  }
  mlx_archive_writer_t archive;
  mlx_status_t status = mlx_archive_create(path, items, model->weight_count, &archive);
  mlx_free(items);
  if (status) return status;
  status = write_all(model, &archive, report);
  if (status) {
    mlx_archive_abandon(&archive);
  } else {
    status = mlx_archive_finish(&archive);
  }
  mlx_report_done(report);
  return status;
}
