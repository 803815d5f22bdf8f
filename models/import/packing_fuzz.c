// libFuzzer target for the quantized matrices of Hugging Face directories: config fields, types and shapes of
// the parts, dequantized values and codes of every row. safetensors_fuzz.c has the file format. The input is
//
//   u8 stack, u8 rows, u16 columns         of the matrix that is asked for
//   u8 count, and per tensor: u8 name, u8 dtype, u8 rank, u16 dims[rank]
//   config.json and a NUL byte
//   the bytes of the tensors               repeated as often as needed
//
// If $MLXCEL_FUZZ_VALID is set, the input must have a quantized matrix: tests/fuzz/replay.c sets it for cases
// whose names begin with "valid_".
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "models/import/hf.h"

#define MAX_TENSORS 6
#define MAX_BYTES 65536  // of a tensor

#define STORED "language_model.model.m"  // the name of model.m in a multimodal directory
static const char *const names[] = {"model.m.weight", "model.m.scales", "model.m.biases", "model.m.qweight",
                                    "model.m.qzeros", "model.m.g_idx",  "model.m_blocks", "model.m_scales",
                                    STORED ".weight", STORED ".scales", STORED ".biases"};
#define NAMES (sizeof names / sizeof *names)
static const mlx_dtype_t dtypes[] = {MLX_F32, MLX_F16, MLX_BF16, MLX_I32, MLX_U32, MLX_U8, MLX_I64};
#define DTYPES (sizeof dtypes / sizeof *dtypes)

typedef struct input {
  const uint8_t *at, *end;
} input_t;

static unsigned next_byte(input_t *in) { return in->at < in->end ? *in->at++ : 0; }
static unsigned next_u16(input_t *in) {
  const unsigned low = next_byte(in);
  return low | next_byte(in) << 8;
}

typedef struct tensors {
  mlx_tensor_t items[MAX_TENSORS];
  uint8_t *data[MAX_TENSORS];  // owned: exactly tensor->size bytes, so that AddressSanitizer finds any excess
  size_t count;
} tensors_t;

// False if a tensor is one that the safetensors reader would refuse, or large.
static bool read_tensors(input_t *in, tensors_t *out) {
  const unsigned count = next_byte(in) % (MAX_TENSORS + 1);
  for (unsigned i = 0; i < count; ++i) {
    mlx_tensor_t *t = &out->items[i];
    *t = (mlx_tensor_t){.name = names[next_byte(in) % NAMES]};
    t->dtype = dtypes[next_byte(in) % DTYPES];
    t->rank = (int)(next_byte(in) % (MLX_MAX_RANK + 1));
    for (int k = 0; k < t->rank; ++k) t->dims[k] = next_u16(in);
    for (unsigned k = 0; k < i; ++k)
      if (!strcmp(out->items[k].name, t->name)) return false;
    if (!mlx_dtype_tensor_bytes(t->dtype, t->rank, t->dims, &t->size) || t->size > MAX_BYTES) return false;
  }
  out->count = count;
  return true;
}

static bool fill_tensors(const input_t *in, tensors_t *tensors) {
  const size_t length = (size_t)(in->end - in->at);
  size_t at = 0;
  for (size_t i = 0; i < tensors->count; ++i) {
    mlx_tensor_t *t = &tensors->items[i];
    tensors->data[i] = malloc(t->size ? t->size : 1);
    if (!tensors->data[i]) return false;
    for (size_t k = 0; k < t->size; ++k) tensors->data[i][k] = length ? in->at[at++ % length] : 0;
    t->data = tensors->data[i];
  }
  return true;
}

// Elements of a block of 32 columns: the codes must give the dequantized values, except for the sign of
// zeros, and unless a part of the sum overflows.
static void check_codes(const mlx_packing_t *p, int64_t row, int64_t nth, const float *values) {
  mlx_codes_t codes;
  mlx_packing_codes(p, row, nth, &codes);
  for (int i = 0; i < MLX_CODES; ++i) {
    if (codes.code[i] < -128 || codes.code[i] > 255) abort();
    const float product = codes.scale[i / 16] * (float)codes.code[i];
    const float value = product + codes.offset[i / 16];
    if (!isfinite(product) || !isfinite(codes.offset[i / 16]) || !isfinite(values[i])) continue;
    if (value != values[i]) abort();
  }
}

static void read_matrix(const mlx_packing_t *p) {
  float *values;
  if (p->columns % p->group || p->group < 1) abort();
  if (p->symmetric != mlx_packing_is_symmetric(p)) abort();
  const bool has_codes = mlx_packing_has_codes(p);
  mlx_status_t status = mlx_alloc((size_t)(p->rows * p->columns), sizeof *values, &values);
  if (status) abort();
  mlx_packing_dequantize(p, 0, p->rows, values);
  for (int64_t row = 0; has_codes && row < p->rows; ++row) {
    for (int64_t i = 0; i < p->columns / MLX_CODES; ++i)
      check_codes(p, row, i, values + row * p->columns + i * MLX_CODES);
  }
  if (p->rows > 1) {  // any row alone gives the same values
    float *again = values + (p->rows - 2) * p->columns, *last = again + p->columns;
    mlx_packing_dequantize(p, p->rows - 1, 1, again);
    if (memcmp(again, last, (size_t)p->columns * sizeof *last)) abort();
  }
  mlx_free(values);
}

// True if |name| is a quantized matrix.
static bool read_packing(const mlx_hf_t *hf, const char *name, int64_t stack, int64_t rows, int64_t columns) {
  mlx_packing_t packing;
  mlx_status_t status = mlx_hf_packing(hf, name, stack, rows, columns, &packing);
  if (status && packing.kind) abort();
  const bool quantized = !status && packing.kind;
  if (quantized) read_matrix(&packing);
  mlx_status_free(status);
  return quantized;
}

static bool read_directory(mlx_hf_t *hf, tensors_t *tensors, const unsigned *sizes) {
  mlx_status_t status = mlx_alloc(tensors->count, sizeof *hf->tensors, &hf->tensors);
  if (status) abort();
  for (size_t i = 0; i < tensors->count; ++i) hf->tensors[i] = &tensors->items[i];
  hf->tensor_count = tensors->count;
  qsort(hf->tensors, hf->tensor_count, sizeof *hf->tensors, mlx_tensor_compare);
  status = mlx_hf_select_text_tensors(hf);
  bool quantized = false;
  if (!status) quantized = read_packing(hf, "model.m.weight", sizes[0], sizes[1], sizes[2]);
  if (!status) quantized = read_packing(hf, "model.m", sizes[0], sizes[1], sizes[2]) || quantized;
  mlx_status_free(status);
  return quantized;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  input_t in = {data, data + size};
  tensors_t tensors = {0};
  bool quantized = false;
  unsigned sizes[3] = {next_byte(&in) % 5, 1 + next_byte(&in)};
  sizes[2] = 1 + next_u16(&in) % 2048;
  if (read_tensors(&in, &tensors)) {
    const uint8_t *config = in.at, *stop = in.at < in.end ? memchr(in.at, 0, (size_t)(in.end - in.at)) : NULL;
    const size_t length = (size_t)((stop ? stop : in.end) - config);
    mlx_hf_t *hf;
    in.at = stop ? stop + 1 : in.end;
    mlx_status_t status = mlx_hf_parse("fuzz", (const char *)config, length, NULL, 0, &hf);
    if (!status && fill_tensors(&in, &tensors)) quantized = read_directory(hf, &tensors, sizes);
    if (!status) mlx_hf_close(hf);
    mlx_status_free(status);
  }
  for (size_t i = 0; i < MAX_TENSORS; ++i) free(tensors.data[i]);
  if (!quantized && getenv("MLXCEL_FUZZ_VALID")) abort();
  return 0;
}
