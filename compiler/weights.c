// Packs weights: converts rows to floats, panels or tiles, for any range of the archive's data.
#include "compiler/weights.h"

#include <string.h>

#include "artifact/archive.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "compiler/finite.h"

// Rows dequantized at a time. GPTQ and AWQ store columns, so each column is read once for all these rows.
#define F32_ROWS 32
#define WORD 4  // bytes; a module reads the archive as words

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
  row += weight->first_row;
  if (weight->row_order) return row - row % weight->order_rows + weight->row_order[row % weight->order_rows];
  if (weight->picked_row) return weight->picked_row(weight->config, row);
  if (weight->fused_part) return stored_half_row(weight, row);
  if (weight->order == MLX_ROWS_OF_HEADS) {
    const int64_t rows = weight->tensor.dims[1];
    return row / rows * weight->head_rows + weight->head_first + row % rows;
  }
  if (weight->order == MLX_ROWS_AS_STORED || weight->order == MLX_ROWS_ARE_COLUMNS) return row;
  const int64_t size = weight->order_head_dim, head = row / size, within = row % size, half = size / 2;
  // Stored: q, k and v of each head together. Written: all heads of q, then of k, then of v.
  if (weight->order == MLX_ROWS_QKV_BY_HEAD) {
    const int64_t heads = weight->tensor.dims[0] / (3 * size);
    return (head % heads * 3 + head / heads) * size + within;
  }
  return head * size + (within % half) * 2 + within / half;
}

// ----------------------------------------------------------------------------------------------------------
// Units

// A weight in the archive. It consists of units, which are packed as a whole: a CPU panel, a row of GPU tiles
// or, in a row-major layout, a row.
typedef struct packed {
  const mlx_weight_t *weight;
  mlx_stored_t stored;
  mlx_dtype_t dtype;              // of the floats that are stored or quantized
  bool is_copied;                 // stored as it is in its file: it has no units
  bool in_panels;                 // or in tiles
  size_t elements;                // in a row
  size_t from_bytes, to_bytes;    // of a row in the file, and as |dtype|
  int64_t unit_rows, per_matrix;  // rows in a unit; units in a matrix: an expert starts with a new unit
  size_t unit_bytes;
  uint64_t used;          // bytes
  uint64_t offset, size;  // bytes, in the data of the archive; |size| is |used| in whole words
} packed_t;

// Buffers of one worker, which grow as needed.
typedef struct scratch {
  uint8_t *rows;    // converted rows of a unit
  float *f32_rows;  // one row, or F32_ROWS rows of a quantized matrix
  uint8_t *unit;    // a unit of which only a part is wanted
  size_t rows_capacity, f32_capacity, unit_capacity;
} scratch_t;

static const mlx_packing_t *first_packing(const mlx_weight_t *weight) {
  return weight->part_packings ? weight->part_packings : &weight->packing;
}

static bool is_in_panels(const mlx_weight_t *weight, mlx_storage_t storage, mlx_stored_t stored) {
  return storage.layout == MLX_LAYOUT_TILES ? stored.tiles.bits != 0
                                            : mlx_weight_in_panels(weight, storage.layout);
}

static size_t bytes_of(mlx_dtype_t dtype, int64_t numbers) {
  const mlx_dtype_info_t *info = mlx_dtype_info(dtype);
  return (size_t)numbers / info->block_elements * info->block_bytes;
}

static packed_t describe(const mlx_weight_t *weight, mlx_storage_t storage) {
  const mlx_tensor_t *tensor = &weight->tensor;
  packed_t p = {.weight = weight,
                .stored = mlx_weight_stored(weight, storage),
                .elements = row_elements(weight),
                .unit_rows = 1};
  p.dtype = p.stored.kind == MLX_STORED_FLOATS ? p.stored.dtype : MLX_F32;
  const mlx_dtype_info_t *info = mlx_dtype_info(p.dtype);
  const int64_t columns = (int64_t)p.elements;
  p.in_panels = is_in_panels(weight, storage, p.stored);
  p.is_copied = !p.in_panels && tensor->dtype == p.dtype && weight->order == MLX_ROWS_AS_STORED &&
                !weight->fused_part && !weight->picked_row && !mlx_weight_is_changed(weight) &&
                !weight->parts && !weight->row_order && !weight->first_row && !weight->stored_columns;
  p.from_bytes = tensor->size / (size_t)row_count(weight);
  if (weight->stored_columns) p.from_bytes = bytes_of(tensor->dtype, weight->stored_columns);
  p.to_bytes = p.elements / info->block_elements * info->block_bytes;
  p.unit_bytes = p.to_bytes;
  if (p.stored.tiles.bits) {
    p.unit_rows = MLX_TILE_ROWS;
    p.unit_bytes = (size_t)mlx_tiles_bytes(p.stored.tiles, 1, columns);
  } else if (p.in_panels) {
    p.unit_rows = MLX_PANEL_ROWS;
    p.unit_bytes = (size_t)mlx_panels_bytes(p.stored.format, 1, columns);
  }
  p.per_matrix = (matrix_rows(weight) + p.unit_rows - 1) / p.unit_rows;
  p.used = (uint64_t)(row_count(weight) / matrix_rows(weight) * p.per_matrix) * p.unit_bytes;
  p.size = (p.used + WORD - 1) / WORD * WORD;
  return p;
}

uint64_t mlx_weight_stored_bytes(const mlx_weight_t *weight, mlx_storage_t storage) {
  return describe(weight, storage).size;
}

// Places a weight after those that end at |inout_end|. Returns its offset.
static uint64_t place(uint64_t size, uint64_t *inout_end) {
  const uint64_t offset =
      (*inout_end + MLX_ARCHIVE_ALIGNMENT - 1) / MLX_ARCHIVE_ALIGNMENT * MLX_ARCHIVE_ALIGNMENT;
  *inout_end = offset + size;
  return offset;
}

uint64_t mlx_weights_layout(const mlx_model_t *model, mlx_storage_t storage, uint64_t *out_offsets) {
  uint64_t end = 0;
  for (size_t i = 0; i < model->weight_count; ++i)
    out_offsets[i] = place(mlx_weight_stored_bytes(&model->weights[i], storage), &end);
  return end;
}

// ----------------------------------------------------------------------------------------------------------
// Rows of floats

// Reads row |row| of a matrix that is stored transposed ([in, out]). The tensor may hold one such matrix per
// expert.
static void read_transposed_row(const packed_t *p, int64_t row, float *out) {
  const mlx_weight_t *weight = p->weight;
  const mlx_dtype_info_t *info = mlx_dtype_info(weight->tensor.dtype);
  const size_t columns = (size_t)weight->tensor.dims[weight->tensor.rank - 2] * (weight->fused_part ? 2 : 1);
  const size_t at = (size_t)stored_row(weight, row);
  const uint8_t *from =
      weight->tensor.data + (at / columns * p->elements * columns + at % columns) * info->block_bytes;
  for (size_t i = 0; i < p->elements; ++i) info->to_f32(from + i * columns * info->block_bytes, 1, &out[i]);
}

static const uint8_t *row_data(const packed_t *p, int64_t row) {
  const mlx_weight_t *weight = p->weight;
  if (!weight->parts)
    return weight->tensor.data + (size_t)stored_row(weight, row) * p->from_bytes +
           bytes_of(weight->tensor.dtype, weight->first_column);
  const int64_t rows = row_count(weight) / weight->tensor.dims[0];  // in one part
  return weight->parts[row / rows]->data + (size_t)(row % rows) * p->from_bytes;
}

static void convert_row(const packed_t *p, int64_t row, float *f32_row, uint8_t *out) {
  const mlx_weight_t *weight = p->weight;
  const mlx_dtype_info_t *info = mlx_dtype_info(weight->tensor.dtype);
  if (weight->order == MLX_ROWS_ARE_COLUMNS) {
    read_transposed_row(p, row, f32_row);
  } else {
    const uint8_t *from = row_data(p, row);
    if (weight->tensor.dtype == p->dtype && !mlx_weight_is_changed(weight)) {
      memcpy(out, from, p->to_bytes);
      return;
    }
    info->to_f32(from, p->elements / info->block_elements, f32_row);
  }
  for (size_t i = 0; weight->value_offset != 0.0 && i < p->elements; ++i)
    f32_row[i] += (float)weight->value_offset;
  for (size_t i = 0; weight->row_factors && i < p->elements; ++i) f32_row[i] *= weight->row_factors[row];
  mlx_dtype_info(p->dtype)->from_f32(f32_row, p->elements, out);
}

static void convert_packed(const packed_t *p, int64_t first, int64_t count, float *f32_rows, uint8_t *out) {
  const bool contiguous =
      !p->weight->fused_part && !p->weight->picked_row && !p->weight->row_order && !p->weight->head_rows;
  const int64_t max_rows = contiguous ? F32_ROWS : 1;
  const int64_t part_rows = row_count(p->weight) / (p->weight->part_packings ? p->weight->tensor.dims[0] : 1);
  for (int64_t done = 0, rows; done < count; done += rows) {
    const int64_t row = stored_row(p->weight, first + done),
                  nth = p->weight->part_packings ? row / part_rows : 0;
    rows = mlx_min(max_rows, count - done);
    if (p->weight->part_packings) rows = mlx_min(rows, part_rows - row % part_rows);
    mlx_packing_dequantize(first_packing(p->weight) + nth, row - nth * part_rows, rows, f32_rows);
    mlx_dtype_info(p->dtype)->from_f32(f32_rows, (size_t)rows * p->elements,
                                       out + (size_t)done * p->to_bytes);
  }
}

// Rows [first, first + count) of one head's matrix, whose columns are stored as rows. A stored row is
// dequantized once for all of them: only the blocks that hold their numbers, or the whole row of a packing.
static mlx_status_t convert_columns(const packed_t *p, scratch_t *s, int64_t first, int64_t count,
                                    uint8_t *out) {
  const mlx_weight_t *weight = p->weight;
  const mlx_dtype_info_t *info = mlx_dtype_info(weight->tensor.dtype);
  const bool packing = weight->packing.kind != 0;
  const size_t columns = (size_t)weight->tensor.dims[1], block = packing ? columns : info->block_elements,
               head = (size_t)first / columns, at = (size_t)first % columns / block * block,
               skipped = (size_t)first % columns - at, blocks = (skipped + (size_t)count + block - 1) / block;
  MLX_TRY(mlx_reserve((size_t)count * p->elements + blocks * block, sizeof *s->f32_rows, &s->f32_capacity,
                      &s->f32_rows));
  float *stored = s->f32_rows + (size_t)count * p->elements;
  for (size_t k = 0; k < p->elements; ++k) {
    const size_t row = head * (size_t)weight->head_rows + (size_t)weight->head_first + k;
    if (packing)
      mlx_packing_dequantize(&weight->packing, (int64_t)row, 1, stored);
    else
      info->to_f32(weight->tensor.data + (row * columns + at) / block * info->block_bytes, blocks, stored);
    for (size_t i = 0; i < (size_t)count; ++i) s->f32_rows[i * p->elements + k] = stored[skipped + i];
  }
  mlx_dtype_info(p->dtype)->from_f32(s->f32_rows, (size_t)count * p->elements, out);
  return NULL;
}

// Converts rows [first, first + count) of one matrix to |dtype|.
static mlx_status_t convert_rows(const packed_t *p, scratch_t *s, int64_t first, int64_t count,
                                 uint8_t *out) {
  const bool packing = first_packing(p->weight)->kind != 0;
  if (p->weight->order == MLX_COLUMNS_OF_HEADS) return convert_columns(p, s, first, count, out);
  MLX_TRY(mlx_reserve(p->elements * (packing ? F32_ROWS : 1), sizeof *s->f32_rows, &s->f32_capacity,
                      &s->f32_rows));
  if (packing) convert_packed(p, first, count, s->f32_rows, out);
  for (int64_t i = 0; !packing && i < count; ++i)
    convert_row(p, first + i, s->f32_rows, out + (size_t)i * p->to_bytes);
  return NULL;
}

static mlx_status_t check_rows(const packed_t *p, int64_t first, int64_t count, const uint8_t *rows) {
  return mlx_check_finite(p->weight->name, p->dtype, rows, (size_t)count * p->elements,
                          (uint64_t)first * p->elements);
}

static mlx_status_t fill_rows(const packed_t *p, scratch_t *s, int64_t first, int64_t count, uint8_t *out) {
  const int64_t rows = matrix_rows(p->weight);
  for (int64_t done = 0, part; done < count; done += part) {
    const int64_t row = first + done;
    uint8_t *to = out + (size_t)done * p->to_bytes;
    part = mlx_min(count - done, rows - row % rows);
    MLX_TRY(convert_rows(p, s, row, part, to));
    MLX_TRY(check_rows(p, row, part, to));
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Panels and tiles

// Codes of block |nth| of row |row|. If the compiler quantizes the weight, reads row |in_unit| of |rows|.
static mlx_status_t read_codes(const packed_t *p, const uint8_t *rows, int64_t row, int64_t in_unit,
                               int64_t nth, mlx_codes_t *out) {
  if (p->stored.kind == MLX_STORED_QUANTIZED) {
    const float *numbers =
        (const float *)(const void *)(rows + (size_t)in_unit * p->to_bytes) + nth * MLX_CODES;
    if (mlx_quantize_block(p->stored.quantize, numbers, out)) return NULL;
    return mlx_error(MLX_INVALID_INPUT,
                     "cannot quantize tensor '%s': row %lld has a value that is not finite", p->weight->name,
                     (long long)row);
  }
  if (p->weight->part_packings) {
    const int64_t count = matrix_rows(p->weight), stored = stored_row(p->weight, row);
    mlx_packing_codes(&p->weight->part_packings[stored / count], stored % count, nth, out);
  } else if (p->weight->packing.kind) {
    mlx_packing_codes(&p->weight->packing, stored_row(p->weight, row), nth, out);
  } else {
    mlx_codes_read(p->weight->tensor.dtype, row_data(p, row), (size_t)nth, out);
  }
  const float factors[4] = {out->scale[0], out->scale[1], out->offset[0], out->offset[1]};
  return mlx_check_finite(p->weight->name, MLX_F32, factors, 4, (uint64_t)row * p->elements);
}

// A row in its file, if tiles hold its blocks; else |blocks| is NULL.
typedef struct stored_blocks {
  const uint8_t *blocks;
  const uint8_t *scales;  // of an MXFP4 packing
} stored_blocks_t;

static stored_blocks_t find_blocks(const packed_t *p, int64_t row) {
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

// Whether units are filled by copying blocks of the file, or by converting floats.
static bool is_fast(const packed_t *p) {
  if (p->is_copied) return true;
  if (p->stored.kind == MLX_STORED_FLOATS)
    return !first_packing(p->weight)->kind && mlx_dtype_info(p->weight->tensor.dtype)->block_elements == 1;
  return find_blocks(p, 0).blocks != NULL;
}

bool mlx_weights_pack_fast(const mlx_model_t *model, mlx_storage_t storage) {
  uint64_t fast = 0, slow = 0;  // bytes
  for (size_t i = 0; i < model->weight_count; ++i) {
    const packed_t p = describe(&model->weights[i], storage);
    *(is_fast(&p) ? &fast : &slow) += p.size;
  }
  return slow <= fast / 8;
}

static bool copy_blocks(const packed_t *p, stored_blocks_t from, int count, int64_t in_unit, int64_t nth,
                        uint8_t *out) {
  if (!from.blocks) return false;
  return from.scales ? mlx_tiles_copy_mxfp4(from.scales, from.blocks, count, in_unit, nth, out)
                     : mlx_tiles_copy(p->weight->tensor.dtype, from.blocks, count, in_unit, nth, out);
}

// Fills row |in_unit| of tile |nth|, or of block |nth| of a panel.
static mlx_status_t fill_row(const packed_t *p, const uint8_t *rows, int64_t row, int64_t in_unit,
                             int64_t nth, stored_blocks_t from, uint8_t *out) {
  mlx_codes_t codes[MLX_TILE_BLOCKS];
  if (!p->stored.tiles.bits) {
    MLX_TRY(read_codes(p, rows, row, in_unit, nth, codes));
    mlx_panel_put(p->stored.format, codes, in_unit, nth, out);
    return NULL;
  }
  const int64_t first = nth * MLX_TILE_BLOCKS,
                count = mlx_min(MLX_TILE_BLOCKS, (int64_t)p->elements / MLX_CODES - first);
  if (copy_blocks(p, from, (int)count, in_unit, nth, out)) return NULL;
  for (int64_t i = 0; i < count; ++i) MLX_TRY(read_codes(p, rows, row, in_unit, first + i, &codes[i]));
  mlx_tiles_put(p->stored.tiles, codes, (int)count, in_unit, nth, out);
  return NULL;
}

// Copies the rows of a full panel from the file, if it has them in the type of the panel.
static bool copy_panel(const packed_t *p, int64_t first, int64_t count, uint8_t *out) {
  const mlx_weight_t *weight = p->weight;
  const uint8_t *rows[MLX_PANEL_ROWS];
  if (p->stored.kind != MLX_STORED_CODES || p->stored.tiles.bits || count < MLX_PANEL_ROWS ||
      first_packing(weight)->kind || mlx_dtype_info(weight->tensor.dtype)->panel != p->stored.format)
    return false;
  for (int64_t i = 0; i < count; ++i) rows[i] = row_data(p, first + i);
  return mlx_panel_copy(weight->tensor.dtype, rows, (int64_t)p->elements, out);
}

// The loop over columns is outside the loop over rows, because GPTQ and AWQ store the same block of
// neighbouring rows contiguously.
static mlx_status_t fill_codes(const packed_t *p, const uint8_t *rows, int64_t first, int64_t count,
                               uint8_t *out) {
  const bool tiles = p->stored.tiles.bits != 0;
  const int64_t columns = tiles ? MLX_TILE_COLUMNS : MLX_CODES, elements = (int64_t)p->elements;
  stored_blocks_t from[MLX_PANEL_ROWS];
  for (int64_t i = 0; i < count; ++i) from[i] = find_blocks(p, first + i);
  if (!tiles || count < p->unit_rows || elements % columns) memset(out, 0, p->unit_bytes);
  for (int64_t at = 0; at < elements; at += columns) {
    for (int64_t i = 0; i < count; ++i) MLX_TRY(fill_row(p, rows, first + i, i, at / columns, from[i], out));
  }
  return NULL;
}

// Fills a panel or a row of tiles.
static mlx_status_t fill_panel(const packed_t *p, scratch_t *s, int64_t unit, uint8_t *out) {
  const int64_t in_matrix = unit % p->per_matrix * p->unit_rows, rows = matrix_rows(p->weight);
  const int64_t first = unit / p->per_matrix * rows + in_matrix,
                count = mlx_min(p->unit_rows, rows - in_matrix);
  if (p->stored.kind != MLX_STORED_CODES) {
    MLX_TRY(mlx_reserve((size_t)p->unit_rows * p->to_bytes, 1, &s->rows_capacity, &s->rows));
    MLX_TRY(convert_rows(p, s, first, count, s->rows));
  }
  if (copy_panel(p, first, count, out)) return NULL;
  if (p->stored.kind != MLX_STORED_FLOATS) return fill_codes(p, s->rows, first, count, out);
  MLX_TRY(check_rows(p, first, count, s->rows));
  mlx_panel_pack(p->stored.format, s->rows, p->to_bytes, count, (int64_t)p->elements, out);
  return NULL;
}

static mlx_status_t fill_units(const packed_t *p, scratch_t *s, int64_t first, int64_t count, uint8_t *out) {
  if (!p->in_panels) return fill_rows(p, s, first, count, out);
  for (int64_t i = 0; i < count; ++i) MLX_TRY(fill_panel(p, s, first + i, out + (size_t)i * p->unit_bytes));
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Packers

struct mlx_packer {
  packed_t *weights;  // [count], in the order of the archive
  size_t count;
  scratch_t *scratch;  // [reader.workers]
  mlx_weight_reader_t reader;
};

void mlx_packer_free(mlx_packer_t *packer) {
  if (!packer) return;
  for (int i = 0; packer->scratch && i < packer->reader.workers; ++i) {
    mlx_free(packer->scratch[i].rows);
    mlx_free(packer->scratch[i].f32_rows);
    mlx_free(packer->scratch[i].unit);
  }
  mlx_free(packer->scratch);
  mlx_free(packer->weights);
  mlx_free(packer);
}

static mlx_status_t copy_stored(const packed_t *p, size_t at, size_t length, uint8_t *out) {
  const mlx_tensor_t *tensor = &p->weight->tensor;
  const size_t element = mlx_dtype_info(p->dtype)->block_bytes;
  MLX_TRY(
      mlx_check_finite(p->weight->name, tensor->dtype, tensor->data + at, length / element, at / element));
  memcpy(out, tensor->data + at, length);
  return NULL;
}

// Bytes [at, at + length) of one weight.
static mlx_status_t read_weight(const packed_t *p, scratch_t *s, size_t at, size_t length, uint8_t *out) {
  for (; length && at + length > p->used; --length)
    out[length - 1] = 0;  // after 16-bit weights of an odd number
  if (p->is_copied) return copy_stored(p, at, length, out);
  for (size_t part; length; at += part, out += part, length -= part) {
    const size_t unit = at / p->unit_bytes, skipped = at % p->unit_bytes;
    if (!skipped && length >= p->unit_bytes) {
      part = length / p->unit_bytes * p->unit_bytes;
      MLX_TRY(fill_units(p, s, (int64_t)unit, (int64_t)(part / p->unit_bytes), out));
      continue;
    }
    part = p->unit_bytes - skipped < length ? p->unit_bytes - skipped : length;
    MLX_TRY(mlx_reserve(p->unit_bytes, 1, &s->unit_capacity, &s->unit));
    MLX_TRY(fill_units(p, s, (int64_t)unit, 1, s->unit));
    memcpy(out, s->unit + skipped, part);
  }
  return NULL;
}

// Index of the last weight that begins at or before |offset|.
static size_t find_weight(const mlx_packer_t *packer, uint64_t offset) {
  size_t low = 0, high = packer->count;
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    if (packer->weights[middle].offset <= offset)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// Writes a range of the data (mlx_weight_reader_t).
static mlx_status_t read_range(void *user, int worker, uint64_t offset, size_t length, void *out) {
  const mlx_packer_t *packer = user;
  if (offset % MLX_ARCHIVE_ALIGNMENT || worker < 0 || worker >= packer->reader.workers ||
      !mlx_range_ok(offset, length, packer->reader.size))
    return mlx_error(MLX_INTERNAL, "cannot pack %zu bytes of weights at byte %llu", length,
                     (unsigned long long)offset);
  uint8_t *to = out;
  for (size_t i = length ? find_weight(packer, offset) : 0, part; length; ++i) {
    const packed_t *p = &packer->weights[i];
    const uint64_t at = offset - p->offset;  // below the offset of the next weight
    part = at < p->size ? (size_t)(p->size - at) : 0;
    if (part > length) part = length;
    MLX_TRY(read_weight(p, &packer->scratch[worker], (size_t)at, part, to));
    size_t padding = i + 1 < packer->count ? (size_t)(packer->weights[i + 1].offset - offset - part) : 0;
    if (padding > length - part) padding = length - part;
    memset(to + part, 0, padding);
    to += part + padding;
    offset += part + padding;
    length -= part + padding;
  }
  return NULL;
}

static uint64_t size_of(void *user, const char *name) {
  const mlx_packer_t *packer = user;
  for (size_t i = 0; i < packer->count; ++i) {
    if (!strcmp(packer->weights[i].weight->name, name)) return packer->weights[i].size;
  }
  return 0;
}

mlx_status_t mlx_packer_create(const mlx_model_t *model, mlx_storage_t storage, int workers,
                               mlx_packer_t **out_packer) {
  mlx_packer_t *packer;
  *out_packer = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *packer, &packer));
  packer->reader =
      (mlx_weight_reader_t){.workers = workers, .read = read_range, .size_of = size_of, .user = packer};
  packer->count = model->weight_count;
  mlx_status_t status = mlx_alloc((size_t)workers, sizeof *packer->scratch, &packer->scratch);
  if (!status) status = mlx_alloc(packer->count + 1, sizeof *packer->weights, &packer->weights);
  if (status) {
    mlx_packer_free(packer);
    return status;
  }
  for (size_t i = 0; i < packer->count; ++i) {
    packed_t *p = &packer->weights[i];
    *p = describe(&model->weights[i], storage);
    p->offset = place(p->size, &packer->reader.size);
  }
  *out_packer = packer;
  return NULL;
}

const mlx_weight_reader_t *mlx_packer_reader(const mlx_packer_t *packer) { return &packer->reader; }
