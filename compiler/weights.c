// Reads weights row by row, converts or repacks them, and writes the archive.
#include "compiler/weights.h"

#include <string.h>

#include "artifact/archive.h"
#include "base/memory.h"
#include "base/meter.h"
#include "base/parallel.h"
#include "compiler/finite.h"

#define CHUNK_BYTES (4u << 20)  // size of the buffer of converted rows
#define STORED_PIECE ((size_t)16 << 20)
#define BATCH_BYTES ((size_t)16 << 20)  // panels or tiles that threads fill before they are written
// Rows dequantized at a time. GPTQ and AWQ store columns, so each column is read once for all these rows.
#define F32_ROWS 32

// Number of leading dimensions that count rows. The remaining dimensions are the elements of a row. A vector
// is one row, except if its elements are reordered: then each element is a row. Fused biases of experts
// [experts, rows] are reordered too, so each of their elements is a row.
static int rows_dims(const mlx_weight_t *weight) {
  const int rank = weight->tensor.rank;
  if (rank < 2) return weight->order == MLX_ROWS_AS_STORED && !weight->row_order ? 0 : rank;
  return weight->fused_part && rank == 2 ? 2 : rank - 1;
}

static int64_t product(const mlx_weight_t *weight, int first, int end) {
  int64_t count = 1;
  for (int i = first; i < end; ++i) count *= weight->tensor.dims[i];
  return count;
}

static int64_t row_count(const mlx_weight_t *weight) { return product(weight, 0, rows_dims(weight)); }
static size_t row_elements(const mlx_weight_t *weight) {
  return (size_t)product(weight, rows_dims(weight), weight->tensor.rank);
}

// Rows of a matrix, or of one expert's matrix.
static int64_t matrix_rows(const mlx_weight_t *weight) {
  return weight->tensor.rank == 3 ? weight->tensor.dims[1] : row_count(weight);
}

static int64_t stored_half_row(const mlx_weight_t *weight, int64_t row) {
  const int64_t rows = weight->tensor.dims[1], expert = row / rows, within = row % rows;
  const bool interleaved =
      weight->fused_part == MLX_FUSED_EVEN_ROWS || weight->fused_part == MLX_FUSED_ODD_ROWS;
  const bool second = weight->fused_part == MLX_FUSED_SECOND_HALF || weight->fused_part == MLX_FUSED_ODD_ROWS;
  return 2 * rows * expert + (interleaved ? 2 * within + second : within + rows * second);
}

// Index of the stored row that becomes row |row|.
static int64_t stored_row(const mlx_weight_t *weight, int64_t row) {
  if (weight->row_order) return row - row % weight->order_rows + weight->row_order[row % weight->order_rows];
  if (weight->fused_part) return stored_half_row(weight, row);
  if (weight->order == MLX_ROWS_AS_STORED || weight->order == MLX_ROWS_ARE_COLUMNS) return row;
  const int64_t size = weight->order_head_dim, head = row / size, within = row % size, half = size / 2;
  // Stored: q, k and v of each head together. Written: all heads of q, then of k, then of v.
  if (weight->order == MLX_ROWS_QKV_BY_HEAD) {
    const int64_t heads = weight->tensor.dims[0] / (3 * size);
    return (head % heads * 3 + head / heads) * size + within;
  }
  return head * size + (within % half) * 2 + within / half;
}

// Conversion of one weight.
typedef struct conversion {
  const mlx_weight_t *weight;
  mlx_stored_t stored;
  mlx_dtype_t dtype;            // of the floats that are stored or quantized
  size_t elements;              // in a row
  size_t from_bytes, to_bytes;  // of a row in the source and in the archive
  int64_t chunk_rows;
  uint8_t *chunk;   // converted rows
  uint8_t *panel;   // one panel of floats; NULL in a row-major layout
  float *f32_rows;  // one row, or F32_ROWS rows of a quantized matrix
} conversion_t;

// Reads row |row| of a matrix that is stored transposed ([in, out]). The tensor may hold one such matrix per
// expert.
static void read_transposed_row(const conversion_t *p, int64_t row, float *out) {
  const mlx_weight_t *weight = p->weight;
  const mlx_dtype_info_t *info = mlx_dtype_info(weight->tensor.dtype);
  const size_t columns = (size_t)weight->tensor.dims[weight->tensor.rank - 2] * (weight->fused_part ? 2 : 1);
  const size_t at = (size_t)stored_row(weight, row);
  const uint8_t *from =
      weight->tensor.data + (at / columns * p->elements * columns + at % columns) * info->block_bytes;
  for (size_t i = 0; i < p->elements; ++i) info->to_f32(from + i * columns * info->block_bytes, 1, &out[i]);
}

static const uint8_t *row_data(const conversion_t *p, int64_t row) {
  const mlx_weight_t *weight = p->weight;
  if (!weight->parts) return weight->tensor.data + (size_t)stored_row(weight, row) * p->from_bytes;
  const int64_t rows = row_count(weight) / weight->tensor.dims[0];  // in one part
  return weight->parts[row / rows]->data + (size_t)(row % rows) * p->from_bytes;
}

static void convert_row(const conversion_t *p, int64_t row, uint8_t *out) {
  const mlx_weight_t *weight = p->weight;
  const mlx_dtype_info_t *info = mlx_dtype_info(weight->tensor.dtype);
  if (weight->order == MLX_ROWS_ARE_COLUMNS) {
    read_transposed_row(p, row, p->f32_rows);
  } else {
    const uint8_t *from = row_data(p, row);
    if (weight->tensor.dtype == p->dtype && weight->value_offset == 0.0) {
      memcpy(out, from, p->to_bytes);
      return;
    }
    info->to_f32(from, p->elements / info->block_elements, p->f32_rows);
  }
  for (size_t i = 0; weight->value_offset != 0.0 && i < p->elements; ++i)
    p->f32_rows[i] += (float)weight->value_offset;
  mlx_dtype_info(p->dtype)->from_f32(p->f32_rows, p->elements, out);
}

static const mlx_packing_t *first_packing(const mlx_weight_t *weight) {
  return weight->part_packings ? weight->part_packings : &weight->packing;
}

static int64_t min_int(int64_t a, int64_t b) { return a < b ? a : b; }

static void convert_packed(const conversion_t *p, int64_t first, int64_t count, uint8_t *out) {
  const int64_t max_rows = p->weight->fused_part || p->weight->row_order ? 1 : F32_ROWS;  // contiguous rows
  const int64_t part_rows = row_count(p->weight) / (p->weight->part_packings ? p->weight->tensor.dims[0] : 1);
  for (int64_t done = 0, rows; done < count; done += rows) {
    const int64_t row = stored_row(p->weight, first + done),
                  nth = p->weight->part_packings ? row / part_rows : 0;
    rows = min_int(max_rows, count - done);
    if (p->weight->part_packings) rows = min_int(rows, part_rows - row % part_rows);
    mlx_packing_dequantize(first_packing(p->weight) + nth, row - nth * part_rows, rows, p->f32_rows);
    mlx_dtype_info(p->dtype)->from_f32(p->f32_rows, (size_t)rows * p->elements,
                                       out + (size_t)done * p->to_bytes);
  }
}

// Converts rows [first, first + count) to floats in the chunk.
static void convert_rows(const conversion_t *p, int64_t first, int64_t count) {
  if (first_packing(p->weight)->kind) {
    convert_packed(p, first, count, p->chunk);
    return;
  }
  for (int64_t i = 0; i < count; ++i) convert_row(p, first + i, p->chunk + (size_t)i * p->to_bytes);
}

// Codes of block |nth| of row |row|. If the compiler quantizes the weight, reads row |in_chunk| of the chunk.
static mlx_status_t read_codes(const conversion_t *p, int64_t row, int64_t in_chunk, int64_t nth,
                               mlx_codes_t *out) {
  if (p->stored.kind == MLX_STORED_QUANTIZED) {
    const float *numbers =
        (const float *)(const void *)(p->chunk + (size_t)in_chunk * p->to_bytes) + nth * MLX_CODES;
    if (mlx_quantize_block(p->stored.quantize, numbers, out)) return NULL;
    return mlx_error(MLX_INVALID_INPUT,
                     "cannot quantize tensor '%s': row %lld has a value that is not finite", p->weight->name,
                     (long long)row);
  }
  if (p->weight->part_packings) {
    const int64_t rows = matrix_rows(p->weight), stored = stored_row(p->weight, row);
    mlx_packing_codes(&p->weight->part_packings[stored / rows], stored % rows, nth, out);
  } else if (p->weight->packing.kind) {
    mlx_packing_codes(&p->weight->packing, stored_row(p->weight, row), nth, out);
  } else {
    mlx_codes_read(p->weight->tensor.dtype, row_data(p, row), (size_t)nth, out);
  }
  const float factors[4] = {out->scale[0], out->scale[1], out->offset[0], out->offset[1]};
  return mlx_check_finite(p->weight->name, MLX_F32, factors, 4, (uint64_t)row * p->elements);
}

static mlx_status_t alloc_f32_rows(conversion_t *p) {
  return mlx_alloc(p->elements * (first_packing(p->weight)->kind ? F32_ROWS : 1), sizeof *p->f32_rows,
                   &p->f32_rows);
}

// Bytes of one panel or one row of tiles, and the number of matrix rows in it.
static uint64_t unit_bytes(const conversion_t *p, int64_t *out_rows) {
  *out_rows = p->stored.tiles.bits ? MLX_TILE_ROWS : MLX_PANEL_ROWS;
  return p->stored.tiles.bits ? mlx_tiles_bytes(p->stored.tiles, 1, (int64_t)p->elements)
                              : mlx_panels_bytes(p->stored.format, 1, (int64_t)p->elements);
}

// Panels (or rows of tiles) that threads fill together.
typedef struct batch {
  const conversion_t *workers;    // [threads]: each has its own buffers
  uint8_t *units;                 // of this batch
  size_t bytes;                   // of a unit
  int64_t unit_rows, per_matrix;  // rows in a unit; units in a matrix: an expert starts with a new unit
  int64_t first;                  // number of the first unit
  mlx_archive_writer_t *archive;
  const uint8_t *filled;  // units of the batch before, which a thread writes meanwhile
  size_t filled_bytes;
} batch_t;

// A row in its file, if tiles hold its blocks; else |blocks| is NULL.
typedef struct stored_blocks {
  const uint8_t *blocks;
  const uint8_t *scales;  // of an MXFP4 packing
} stored_blocks_t;

static stored_blocks_t find_blocks(const conversion_t *p, int64_t row) {
  const mlx_weight_t *weight = p->weight;
  const mlx_packing_t *packing = first_packing(weight);
  if (p->stored.kind == MLX_STORED_QUANTIZED || !p->stored.tiles.bits) return (stored_blocks_t){0};
  if (!packing->kind && mlx_tiles_equal(p->stored.tiles, mlx_tiles_of(weight->tensor.dtype)))
    return (stored_blocks_t){.blocks = row_data(p, row)};
  if (packing->kind != MLX_PACKED_MXFP4 || !mlx_tiles_equal(p->stored.tiles, mlx_tiles_of(MLX_MXFP4)))
    return (stored_blocks_t){0};
  int64_t stored = stored_row(weight, row);
  if (weight->part_packings) {
    packing += stored / matrix_rows(weight);
    stored %= matrix_rows(weight);
  }
  const size_t first = (size_t)stored * (p->elements / MLX_CODES);
  return (stored_blocks_t){.blocks = packing->parts[MLX_PART_CODES]->data + first * (MLX_CODES / 2),
                           .scales = packing->parts[MLX_PART_SCALES]->data + first};
}

static bool copy_blocks(const conversion_t *p, stored_blocks_t from, int count, int64_t in_unit, int64_t nth,
                        uint8_t *out) {
  if (!from.blocks) return false;
  return from.scales ? mlx_tiles_copy_mxfp4(from.scales, from.blocks, count, in_unit, nth, out)
                     : mlx_tiles_copy(p->weight->tensor.dtype, from.blocks, count, in_unit, nth, out);
}

// Fills row |in_unit| of tile |nth|, or of block |nth| of a panel.
static mlx_status_t fill_row(const conversion_t *p, int64_t row, int64_t in_unit, int64_t nth,
                             stored_blocks_t from, uint8_t *out) {
  mlx_codes_t codes[MLX_TILE_BLOCKS];
  if (!p->stored.tiles.bits) {
    MLX_TRY(read_codes(p, row, in_unit, nth, codes));
    mlx_panel_put(p->stored.format, codes, in_unit, nth, out);
    return NULL;
  }
  const int64_t first = nth * MLX_TILE_BLOCKS,
                count = min_int(MLX_TILE_BLOCKS, (int64_t)p->elements / MLX_CODES - first);
  if (copy_blocks(p, from, (int)count, in_unit, nth, out)) return NULL;
  for (int64_t i = 0; i < count; ++i) MLX_TRY(read_codes(p, row, in_unit, first + i, &codes[i]));
  mlx_tiles_put(p->stored.tiles, codes, (int)count, in_unit, nth, out);
  return NULL;
}

// Fills unit |index| of a batch. The loop over columns is outside the loop over rows, because GPTQ and AWQ
// store the same block of neighbouring rows contiguously.
static mlx_status_t fill_unit(const batch_t *batch, int worker, uint64_t index) {
  const conversion_t *p = &batch->workers[worker];
  const int64_t unit = batch->first + (int64_t)index, rows = matrix_rows(p->weight);
  const int64_t in_matrix = unit % batch->per_matrix * batch->unit_rows;
  const int64_t first = unit / batch->per_matrix * rows + in_matrix;
  const int64_t count = min_int(batch->unit_rows, rows - in_matrix);
  const bool tiles = p->stored.tiles.bits != 0;
  const int64_t columns = tiles ? MLX_TILE_COLUMNS : MLX_CODES, elements = (int64_t)p->elements;
  uint8_t *out = batch->units + index * batch->bytes;
  stored_blocks_t from[MLX_PANEL_ROWS];
  if (p->stored.kind == MLX_STORED_QUANTIZED) convert_rows(p, first, count);
  for (int64_t i = 0; i < count; ++i) from[i] = find_blocks(p, first + i);
  if (!tiles || count < batch->unit_rows || elements % columns) memset(out, 0, batch->bytes);
  for (int64_t at = 0; at < elements; at += columns) {
    for (int64_t i = 0; i < count; ++i) MLX_TRY(fill_row(p, first + i, i, at / columns, from[i], out));
  }
  return NULL;
}

// Piece 0 of the work is to write the batch before.
static mlx_status_t write_or_fill(void *user, int worker, uint64_t index) {
  const batch_t *batch = user;
  return index ? fill_unit(batch, worker, index - 1)
               : mlx_archive_write(batch->archive, batch->filled, batch->filled_bytes);
}

// |units| has space for two batches.
static mlx_status_t write_batches(batch_t *batch, uint8_t *units, int64_t total, int64_t batch_units,
                                  int workers) {
  for (int64_t count, nth = 0; batch->first < total; batch->first += count, ++nth) {
    count = min_int(batch_units, total - batch->first);
    batch->units = units + (size_t)(nth % 2 * batch_units) * batch->bytes;
    MLX_TRY(mlx_parallel((uint64_t)count + 1, workers, write_or_fill, batch));
    batch->filled = batch->units;
    batch->filled_bytes = (size_t)count * batch->bytes;
  }
  return mlx_archive_write(batch->archive, batch->filled, batch->filled_bytes);
}

// Memory that all weights use in turn, because clearing it for each takes time.
typedef struct buffer {
  uint8_t *bytes;
  size_t capacity;
} buffer_t;

// Writes panel by panel (or tile row by tile row).
static mlx_status_t write_codes(mlx_archive_writer_t *archive, const conversion_t *p, buffer_t *buffer) {
  conversion_t *workers;
  batch_t batch = {.archive = archive};
  batch.bytes = (size_t)unit_bytes(p, &batch.unit_rows);
  batch.per_matrix = (matrix_rows(p->weight) + batch.unit_rows - 1) / batch.unit_rows;
  const int64_t units = row_count(p->weight) / matrix_rows(p->weight) * batch.per_matrix;
  const int64_t batch_units =
      min_int(units, batch.bytes < BATCH_BYTES ? (int64_t)(BATCH_BYTES / batch.bytes) : 1);
  const int count = mlx_parallel_workers((uint64_t)batch_units + 1, 0);
  MLX_TRY(mlx_alloc((size_t)count, sizeof *workers, &workers));
  batch.workers = workers;
  size_t needed;
  mlx_status_t status =
      mlx_mul(2 * (size_t)batch_units, batch.bytes, &needed)
          ? mlx_reserve(needed, 1, &buffer->capacity, &buffer->bytes)
          : mlx_error(MLX_OUT_OF_MEMORY, "out of memory: a row of tensor '%s' is too long", p->weight->name);
  for (int i = 0; i < count && !status; ++i) {
    workers[i] = *p;
    workers[i].chunk = NULL;
    workers[i].f32_rows = NULL;
    if (p->stored.kind != MLX_STORED_QUANTIZED) continue;
    status = mlx_alloc((size_t)batch.unit_rows, p->to_bytes, &workers[i].chunk);
    if (!status) status = alloc_f32_rows(&workers[i]);
  }
  if (!status) status = write_batches(&batch, buffer->bytes, units, batch_units, count);
  for (int i = 0; i < count; ++i) {
    mlx_free(workers[i].chunk);
    mlx_free(workers[i].f32_rows);
  }
  mlx_free(workers);
  return status;
}

// Writes |count| rows of the chunk as panels. Only the last panel of the matrix may have fewer than 16 rows.
static mlx_status_t write_panels(mlx_archive_writer_t *archive, const conversion_t *p, int64_t count) {
  const size_t bytes = (size_t)mlx_panels_bytes(p->stored.format, MLX_PANEL_ROWS, (int64_t)p->elements);
  for (int64_t row = 0; row < count; row += MLX_PANEL_ROWS) {
    const uint8_t *rows = p->chunk + (size_t)row * p->to_bytes;
    mlx_panel_pack(p->stored.format, rows, p->to_bytes, min_int(MLX_PANEL_ROWS, count - row),
                   (int64_t)p->elements, p->panel);
    MLX_TRY(mlx_archive_write(archive, p->panel, bytes));
  }
  return NULL;
}

static mlx_status_t write_rows(mlx_archive_writer_t *archive, const conversion_t *p) {
  const int64_t rows = row_count(p->weight);
  for (int64_t row = 0, count; row < rows; row += count) {
    count = min_int(p->chunk_rows, matrix_rows(p->weight) - row % matrix_rows(p->weight));
    convert_rows(p, row, count);
    MLX_TRY(mlx_check_finite(p->weight->name, p->dtype, p->chunk, (size_t)count * p->elements,
                             (uint64_t)row * p->elements));
    MLX_TRY(p->panel ? write_panels(archive, p, count)
                     : mlx_archive_write(archive, p->chunk, (size_t)count * p->to_bytes));
  }
  return NULL;
}

static bool in_panels(const mlx_weight_t *weight, mlx_storage_t storage, mlx_stored_t stored) {
  return storage.layout == MLX_LAYOUT_TILES ? stored.tiles.bits != 0
                                            : mlx_weight_in_panels(weight, storage.layout);
}

// Writes a tensor that is stored as it is in its file.
static mlx_status_t write_stored(mlx_archive_writer_t *archive, const mlx_weight_t *weight,
                                 size_t element_bytes) {
  const mlx_tensor_t *tensor = &weight->tensor;
  for (size_t at = 0, part; at < tensor->size; at += part) {
    part = tensor->size - at < STORED_PIECE ? tensor->size - at : STORED_PIECE;
    MLX_TRY(mlx_check_finite(weight->name, tensor->dtype, tensor->data + at, part / element_bytes,
                             at / element_bytes));
    MLX_TRY(mlx_archive_write(archive, tensor->data + at, part));
  }
  return NULL;
}

static mlx_status_t write_weight(mlx_archive_writer_t *archive, const mlx_weight_t *weight,
                                 mlx_storage_t storage, buffer_t *units) {
  const mlx_tensor_t *tensor = &weight->tensor;
  conversion_t p = {
      .weight = weight, .stored = mlx_weight_stored(weight, storage), .elements = row_elements(weight)};
  p.dtype = p.stored.kind == MLX_STORED_FLOATS ? p.stored.dtype : MLX_F32;
  const mlx_dtype_info_t *info = mlx_dtype_info(p.dtype);
  const bool panels = in_panels(weight, storage, p.stored);
  MLX_TRY(mlx_archive_next(archive));
  if (!panels && tensor->dtype == p.dtype && weight->order == MLX_ROWS_AS_STORED && !weight->fused_part &&
      weight->value_offset == 0.0 && !weight->parts && !weight->row_order) {
    return write_stored(archive, weight, info->block_bytes);
  }
  p.from_bytes = tensor->size / (size_t)row_count(weight);
  p.to_bytes = p.elements / info->block_elements * info->block_bytes;
  p.chunk_rows = p.to_bytes < CHUNK_BYTES ? (int64_t)(CHUNK_BYTES / p.to_bytes) : 1;
  if (panels) p.chunk_rows = (p.chunk_rows + MLX_PANEL_ROWS - 1) / MLX_PANEL_ROWS * MLX_PANEL_ROWS;
  if (p.stored.kind != MLX_STORED_FLOATS) return write_codes(archive, &p, units);
  mlx_status_t status = mlx_alloc((size_t)p.chunk_rows, p.to_bytes, &p.chunk);
  int64_t unit_rows;
  if (!status && panels) status = mlx_alloc((size_t)unit_bytes(&p, &unit_rows), 1, &p.panel);
  if (!status) status = alloc_f32_rows(&p);
  if (!status) status = write_rows(archive, &p);
  mlx_free(p.chunk);
  mlx_free(p.panel);
  mlx_free(p.f32_rows);
  return status;
}

static mlx_status_t write_all(const mlx_model_t *model, mlx_storage_t storage, mlx_archive_writer_t *archive,
                              const mlx_report_t *report) {
  uint64_t total = 0, done = 0;
  mlx_meter_t meter;
  for (size_t i = 0; i < model->weight_count; ++i) total += model->weights[i].tensor.size;
  mlx_meter_begin(&meter, report, "packing weights (once, then cached)", total);
  buffer_t units = {0};
  mlx_status_t status = NULL;
  for (size_t i = 0; i < model->weight_count && !status; ++i) {
    status = write_weight(archive, &model->weights[i], storage, &units);
    done += model->weights[i].tensor.size;
    mlx_meter_show(&meter, done);
  }
  mlx_free(units.bytes);
  return status;
}

uint64_t mlx_weight_stored_bytes(const mlx_weight_t *weight, mlx_storage_t storage) {
  const mlx_stored_t stored = mlx_weight_stored(weight, storage);
  if (stored.tiles.bits)
    return (uint64_t)(row_count(weight) / matrix_rows(weight)) *
           mlx_tiles_bytes(stored.tiles, matrix_rows(weight), (int64_t)row_elements(weight));
  if (in_panels(weight, storage, stored))
    return (uint64_t)(row_count(weight) / matrix_rows(weight)) *
           mlx_panels_bytes(stored.format, matrix_rows(weight), (int64_t)row_elements(weight));
  return (uint64_t)row_count(weight) * row_elements(weight) * mlx_dtype_info(stored.dtype)->block_bytes;
}

uint64_t mlx_weights_layout(const mlx_model_t *model, mlx_storage_t storage, uint64_t *out_offsets) {
  uint64_t end = 0;
  for (size_t i = 0; i < model->weight_count; ++i) {
    out_offsets[i] = (end + MLX_ARCHIVE_ALIGNMENT - 1) / MLX_ARCHIVE_ALIGNMENT * MLX_ARCHIVE_ALIGNMENT;
    end = out_offsets[i] + mlx_weight_stored_bytes(&model->weights[i], storage);
  }
  return end;
}

mlx_status_t mlx_weights_write(const mlx_model_t *model, mlx_storage_t storage, const char *path,
                               const mlx_report_t *report) {
  uint64_t size;
  mlx_file_digests_t digests;
  return mlx_weights_write_hashed(model, storage, path, report, &size, &digests);
}

mlx_status_t mlx_weights_write_hashed(const mlx_model_t *model, mlx_storage_t storage, const char *path,
                                      const mlx_report_t *report, uint64_t *out_size,
                                      mlx_file_digests_t *out_digests) {
  mlx_archive_item_t *items;
  MLX_TRY(mlx_alloc(model->weight_count, sizeof *items, &items));
  for (size_t i = 0; i < model->weight_count; ++i) {
    items[i].name = model->weights[i].name;
    items[i].size = mlx_weight_stored_bytes(&model->weights[i], storage);
  }
  mlx_archive_writer_t archive;
  mlx_status_t status = mlx_archive_create(path, items, model->weight_count, &archive);
  mlx_free(items);
  if (status) return status;
  status = write_all(model, storage, &archive, report);
  if (status) {
    mlx_archive_abandon(&archive);
  } else {
    status = mlx_archive_finish(&archive);
    *out_size = archive.file.offset;
    *out_digests = archive.digests;
  }
  mlx_report_done(report);
  return status;
}
