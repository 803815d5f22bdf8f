// Writes Hugging Face directories tensor by tensor, and quantizes matrices as MLX, GPTQ and AWQ do, together
// with their dequantized values.
#ifndef MLXCEL_TESTS_PACKED_FILES_H_
#define MLXCEL_TESTS_PACKED_FILES_H_

#include <math.h>

#include "base/file.h"
#include "models/model.h"
#include "tests/support/check.h"
#include "tests/support/import_files.h"

// ----------------------------------------------------------------------------------------------------------
// Directories

typedef struct folder {
  char path[64];
  bytes_t header, data;  // of model.safetensors
  int stack;             // the next tensors hold this many matrices each; 0: a single matrix
} folder_t;

static inline void begin(folder_t *f) {
  *f = (folder_t){.path = "/tmp/mlxcel-packing-XXXXXX"};
  CHECK(mkdtemp(f->path));
}

static inline const char *path_in(const folder_t *f, const char *name) {
  static char path[128];
  snprintf(path, sizeof path, "%s/%s", f->path, name);
  return path;
}

static inline void write_text(const folder_t *f, const char *name, const char *text) {
  CHECK_OK(mlx_write_file(path_in(f, name), text, strlen(text)));
}

// Adds a tensor. |data| NULL: zeros. |columns| 0: a vector.
static inline void put(folder_t *f, const char *name, mlx_dtype_t dtype, int64_t rows, int64_t columns,
                       const void *data) {
  const int stack = f->stack;
  const mlx_dtype_info_t *info = mlx_dtype_info(dtype);
  const size_t start = f->data.length, size = (size_t)(rows * (columns ? columns : 1)) * info->block_bytes;
  mlx_text_printf(&f->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", start ? "," : "{", name,
                  info->safetensors);
  if (stack) mlx_text_printf(&f->header, "%d,", stack);
  mlx_text_printf(&f->header, "%lld", (long long)(stack ? rows / stack : rows));
  if (columns) mlx_text_printf(&f->header, ",%lld", (long long)columns);
  mlx_text_printf(&f->header, "],\"data_offsets\":[%zu,%zu]}", start, start + size);
  for (size_t i = 0; i < size; ++i) put_uint(&f->data, data ? ((const uint8_t *)data)[i] : 0, 1);
}

static inline void write_tensors(folder_t *f) {
  bytes_t file = {0};
  mlx_text_puts(&f->header, "}");
  put_u64(&file, f->header.length);
  mlx_text_append(&file, f->header.data, f->header.length);
  mlx_text_append(&file, f->data.data, f->data.length);
  CHECK_OK(mlx_write_file(path_in(f, "model.safetensors"), file.data, file.length));
  mlx_text_clear(&file);
  mlx_text_clear(&f->header);
  mlx_text_clear(&f->data);
}

static inline void end(folder_t *f) { CHECK_OK(mlx_remove_tree(f->path)); }

// ----------------------------------------------------------------------------------------------------------
// Quantized matrices

#define MAX_ELEMENTS (384 * 256)

// The result of quantize().
static int codes[MAX_ELEMENTS], group_of[MAX_ELEMENTS];    // [rows, columns], [columns]
static float scales[MAX_ELEMENTS], offsets[MAX_ELEMENTS];  // [rows, groups]
static float dequantized_values[MAX_ELEMENTS];             // [rows, columns]
// Buffer of the put functions.
static uint32_t words[MAX_ELEMENTS];

// Orders of the columns in GPTQ's groups.
enum {
  ACT_ORDER_NONE,    // the columns of a group are adjacent
  ACT_ORDER,         // they are not; matrices with as many columns have the same order
  ACT_ORDER_OF_V,    // the same, but v_proj has another order than q_proj and k_proj
  ACT_ORDER_UNEVEN,  // groups differ in size
};

typedef struct matrix {
  const char *module;
  const float *values;
  int rows, columns, bits, group;
  mlx_dtype_t scales;  // of scales, and of MLX's offsets
  int act_order;       // GPTQ: ACT_ORDER_*
  bool symmetric;      // GPTQ and AWQ: all zero points are 8
} matrix_t;

static inline float round_to(mlx_dtype_t dtype, float value) {
  uint8_t stored[4];
  mlx_dtype_info(dtype)->from_f32(&value, 1, stored);
  mlx_dtype_info(dtype)->to_f32(stored, 1, &value);
  return value;
}

static inline int clamp(float value, int low, int high) {
  const int nearest = (int)lrintf(value);
  return nearest < low ? low : nearest > high ? high : nearest;
}

// |affine|: the offset is the smallest value of the group, as in MLX. Otherwise it is the zero point, as in
// GPTQ and AWQ.
static inline void quantize_group(const matrix_t *m, bool affine, int row, int g) {
  const float *values = m->values + row * m->columns;
  const int at = row * (m->columns / m->group) + g, max_code = (1 << m->bits) - 1;
  float low = affine ? INFINITY : 0, high = affine ? -INFINITY : 0;
  for (int i = 0; i < m->columns; ++i) {
    if (group_of[i] != g) continue;
    low = fminf(low, values[i]);
    high = fmaxf(high, values[i]);
  }
  if (m->symmetric) low = -fmaxf(high, -low), high = -low;
  scales[at] = round_to(m->scales, (high - low) / (float)max_code);
  offsets[at] = affine         ? round_to(m->scales, low)
                : m->symmetric ? 8
                               : (float)clamp(-low / scales[at], 1, max_code);
  for (int i = 0; i < m->columns; ++i) {
    const int k = row * m->columns + i;
    if (group_of[i] != g) continue;
    codes[k] = clamp(affine ? (values[i] - offsets[at]) / scales[at] : values[i] / scales[at] + offsets[at],
                     0, max_code);
    dequantized_values[k] =
        affine ? scales[at] * (float)codes[k] + offsets[at] : scales[at] * ((float)codes[k] - offsets[at]);
  }
}

static inline void choose_groups(const matrix_t *m) {
  // 5, 7 and the number of columns are coprime.
  const int step = !m->act_order ? 1 : m->act_order == ACT_ORDER_OF_V && strstr(m->module, "v_proj") ? 7 : 5;
  for (int i = 0; i < m->columns; ++i) group_of[i] = i * step % m->columns / m->group;
  if (m->act_order == ACT_ORDER_UNEVEN) group_of[0] = m->columns / m->group - 1;
}

static inline void quantize(const matrix_t *m, mlx_packing_kind_t kind) {
  CHECK(m->rows * m->columns <= MAX_ELEMENTS);
  choose_groups(m);
  for (int row = 0; row < m->rows; ++row) {
    for (int g = 0; g < m->columns / m->group; ++g) quantize_group(m, kind == MLX_PACKED_MLX, row, g);
  }
}

static inline void put_part(folder_t *f, const matrix_t *m, const char *suffix, mlx_dtype_t dtype, int rows,
                            int columns, const void *data) {
  char name[128];
  snprintf(name, sizeof name, "%s.%s", m->module, suffix);
  put(f, name, dtype, rows, columns, data);
}

// Adds scales or offsets. |by_group|: [groups, rows] instead of [rows, groups].
static inline void put_numbers(folder_t *f, const matrix_t *m, const char *suffix, const float *values,
                               bool by_group) {
  const int groups = m->columns / m->group;
  const mlx_dtype_info_t *type = mlx_dtype_info(m->scales);
  uint8_t *stored = (uint8_t *)words;
  for (int i = 0; i < m->rows * groups; ++i) {
    const float *value = &values[by_group ? i % m->rows * groups + i / m->rows : i];
    type->from_f32(value, 1, stored + (size_t)i * type->block_bytes);
  }
  put_part(f, m, suffix, m->scales, by_group ? groups : m->rows, by_group ? m->rows : groups, stored);
}

static inline void put_mlx(folder_t *f, const matrix_t *m) {
  memset(words, 0, sizeof words);
  for (int k = 0; k < m->rows * m->columns; ++k) {
    for (int bit = 0; bit < m->bits; ++bit) {
      const int at = k * m->bits + bit;
      words[at / 32] |= (uint32_t)(codes[k] >> bit & 1) << at % 32;
    }
  }
  put_part(f, m, "weight", MLX_U32, m->rows, m->columns * m->bits / 32, words);
  put_numbers(f, m, "scales", scales, false);
  put_numbers(f, m, "biases", offsets, false);
}

// Code |i| of every word belongs to row |order|[i]. |minus| is subtracted from the zero points.
static inline void put_zeros(folder_t *f, const matrix_t *m, const int *order, int minus) {
  const int groups = m->columns / m->group;
  memset(words, 0, sizeof words);
  for (int k = 0; k < groups * m->rows; ++k) {
    const int g = k / m->rows, row = k % m->rows / 8 * 8 + order[k % 8];
    words[k / 8] |= (uint32_t)((int)offsets[row * groups + g] - minus) << k % 8 * 4;
  }
  put_part(f, m, "qzeros", MLX_I32, groups, m->rows / 8, words);
}

static inline void put_gptq(folder_t *f, const matrix_t *m) {
  memset(words, 0, sizeof words);
  for (int k = 0; k < m->rows * m->columns; ++k) {
    const int row = k / m->columns, column = k % m->columns;
    words[column / 8 * m->rows + row] |= (uint32_t)codes[k] << column % 8 * 4;
  }
  put_part(f, m, "qweight", MLX_I32, m->columns / 8, m->rows, words);
  put_numbers(f, m, "scales", scales, true);
  put_zeros(f, m, (const int[]){0, 1, 2, 3, 4, 5, 6, 7}, 1);
  put_part(f, m, "g_idx", MLX_I32, m->columns, 0, group_of);
}

static inline void put_awq(folder_t *f, const matrix_t *m) {
  static const int order[] = {0, 2, 4, 6, 1, 3, 5, 7};
  memset(words, 0, sizeof words);
  for (int k = 0; k < m->rows * m->columns; ++k) {
    const int column = k / m->rows, row = k % m->rows / 8 * 8 + order[k % 8];
    words[k / 8] |= (uint32_t)codes[row * m->columns + column] << k % 8 * 4;
  }
  put_part(f, m, "qweight", MLX_I32, m->columns, m->rows / 8, words);
  put_numbers(f, m, "scales", scales, true);
  put_zeros(f, m, order, 0);
}

#endif  // MLXCEL_TESTS_PACKED_FILES_H_
