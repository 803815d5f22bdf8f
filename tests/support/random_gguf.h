// Writes small Llamas as GGUF files with random quantized weights. The bytes are the same every time.
#ifndef MLXCEL_TESTS_RANDOM_GGUF_H_
#define MLXCEL_TESTS_RANDOM_GGUF_H_

#include <math.h>

#include "tests/support/import_files.h"
#include "tests/support/random_llama.h"

// For each type: the offsets of a block's f16 numbers (-1: none), and values for them that give weights of a
// realistic size.
typedef struct random_packed {
  mlx_dtype_t dtype;
  int scale_at, second_at;
  float scale, second;
} random_packed_t;
static const random_packed_t random_packed_types[] = {
    {MLX_Q4_0, 0, -1, 0.02f, 0},        {MLX_Q4_1, 0, 2, 0.02f, -0.15f},   {MLX_Q5_0, 0, -1, 0.01f, 0},
    {MLX_Q5_1, 0, 2, 0.01f, -0.15f},    {MLX_Q8_0, 0, -1, 0.001f, 0},      {MLX_Q3_K, 108, -1, 0.001f, 0},
    {MLX_Q4_K, 0, 2, 0.0002f, 0.002f},  {MLX_Q5_K, 0, 2, 0.0001f, 0.002f}, {MLX_Q6_K, 208, -1, 5e-5f, 0},
    {MLX_Q2_K, 80, 82, 0.003f, 0.003f}, {MLX_IQ4_NL, 0, -1, 0.001f, 0},    {MLX_IQ4_XS, 0, -1, 5e-5f, 0},
    {MLX_MXFP4, -1, -1, 0, 0},
};
#define RANDOM_PACKED_TYPES (sizeof random_packed_types / sizeof *random_packed_types)
// Matrices of 16 bits, beside quantized ones. |scale| is the standard deviation.
static const random_packed_t random_bf16 = {MLX_BF16, -1, -1, 0.05f, 0};
static const random_packed_t random_f16 = {MLX_F16, -1, -1, 0.05f, 0};

static inline random_packed_t random_packed_type(mlx_dtype_t dtype) {
  size_t i = 0;
  while (random_packed_types[i].dtype != dtype) ++i;
  return random_packed_types[i];
}

// One block of random codes with scales near those of |type|.
static inline void random_block(const random_packed_t *type, uint64_t *state, uint8_t *out) {
  const mlx_dtype_info_t *half = mlx_dtype_info(MLX_F16);
  const float jitter = 0.75f + (float)(random_bits(state) % 1024) / 2048;
  const float scale = type->scale * jitter, second = type->second * jitter;
  if (!mlx_dtype_is_quantized(type->dtype)) {
    const float value = type->scale * random_normal(state);
    mlx_dtype_info(type->dtype)->from_f32(&value, 1, out);
    return;
  }
  for (size_t i = 0; i < mlx_dtype_info(type->dtype)->block_bytes; ++i)
    out[i] = (uint8_t)(random_bits(state) >> 8);
  if (type->dtype == MLX_MXFP4) out[0] = (uint8_t)(118 + random_bits(state) % 4);  // a power of two
  if (type->scale_at >= 0) half->from_f32(&scale, 1, out + type->scale_at);
  if (type->second_at >= 0) half->from_f32(&second, 1, out + type->second_at);
}

static inline void random_put_matrix(bytes_t *data, const random_packed_t *type, uint64_t *state, int rows,
                                     int columns) {
  const mlx_dtype_info_t *info = mlx_dtype_info(type->dtype);
  uint8_t block[256];
  for (size_t i = 0; i < (size_t)rows * (size_t)columns / info->block_elements; ++i) {
    random_block(type, state, block);
    mlx_text_append(data, (const char *)block, info->block_bytes);
  }
  put_padding(data, 32);
}

static inline void random_put_vector(bytes_t *data, uint64_t *state, int count) {
  for (int i = 0; i < count; ++i) {
    const float value = 1 + 0.1f * random_normal(state);
    mlx_text_append(data, (const char *)&value, sizeof value);
  }
  put_padding(data, 32);
}

// Types of the matrices of |layers| layers, in the order of the file.
#define RANDOM_MATRICES(layers) (1 + 7 * (layers))
static inline void random_types_by_role(int layers, random_packed_t embedding, random_packed_t attention,
                                        random_packed_t mlp, random_packed_t *out) {
  out[0] = embedding;
  for (int i = 0; i < 7 * layers; ++i) out[1 + i] = i % 7 < 4 ? attention : mlp;
}

// The matrices cycle through |count| types starting at |first|.
static inline void random_gguf_write(const random_llama_t *m, const random_packed_t *first, size_t count,
                                     const char *path) {
  static const struct {
    const char *name;
    char rows, columns;
  } parts[] = {{"attn_norm", 0, 'h'},  {"attn_q", 'q', 'h'},      {"attn_k", 'k', 'h'},
               {"attn_v", 'k', 'h'},   {"attn_output", 'h', 'q'}, {"ffn_norm", 0, 'h'},
               {"ffn_gate", 'f', 'h'}, {"ffn_up", 'f', 'h'},      {"ffn_down", 'h', 'f'}};
  const int per_layer = (int)(sizeof parts / sizeof *parts), tensors = 2 + m->layers * per_layer;
  bytes_t head = {0}, data = {0};
  uint64_t state = 11;
  put_header(&head, 3, (uint64_t)tensors, 16);
  put_field_string(&head, "general.architecture", "llama");
  const struct {
    const char *key;
    int value;
  } numbers[] = {{"llama.block_count", m->layers},
                 {"llama.embedding_length", m->hidden},
                 {"llama.feed_forward_length", m->ffn},
                 {"llama.attention.head_count", m->heads},
                 {"llama.attention.head_count_kv", m->kv_heads},
                 {"llama.attention.key_length", m->head_dim},
                 {"llama.context_length", 2048},
                 {"tokenizer.ggml.eos_token_id", 0}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) {
    put_field(&head, numbers[i].key, MLX_GGUF_U32, (uint64_t)numbers[i].value, 4);
  }
  put_field(&head, "llama.attention.layer_norm_rms_epsilon", MLX_GGUF_F32, 0x3727c5ac, 4);  // 1e-5
  put_field(&head, "llama.rope.freq_base", MLX_GGUF_F32, 0x461c4000, 4);                    // 10000
  put_tokenizer(&head, "smollm");
  size_t matrix = 0;
  for (int i = 0; i < tensors; ++i) {
    const int layer = (i - 1) / per_layer, part = (i - 1) % per_layer;
    const bool embed = i == 0, last = i == tensors - 1;
    const char kind_rows = embed  ? 'v'
                           : last ? 0
                                  : parts[part].rows,
               kind_columns = embed || last ? 'h' : parts[part].columns;
    int dims[2];
    const char kinds[2] = {kind_rows, kind_columns};
    for (int k = 0; k < 2; ++k) {
      dims[k] = kinds[k] == 'h'   ? m->hidden
                : kinds[k] == 'f' ? m->ffn
                : kinds[k] == 'q' ? m->heads * m->head_dim
                : kinds[k] == 'k' ? m->kv_heads * m->head_dim
                : kinds[k] == 'v' ? m->vocab
                                  : 0;
    }
    char name[64];
    if (embed || last) {
      snprintf(name, sizeof name, "%s.weight", embed ? "token_embd" : "output_norm");
    } else {
      snprintf(name, sizeof name, "blk.%d.%s.weight", layer, parts[part].name);
    }
    const random_packed_t *type = kind_rows ? &first[matrix++ % count] : NULL;
    put_tensor(&head, name, (uint64_t)dims[1], (uint64_t)dims[0],
               type ? (uint32_t)mlx_dtype_info(type->dtype)->gguf_type : 0, data.length);
    type ? random_put_matrix(&data, type, &state, dims[0], dims[1])
         : random_put_vector(&data, &state, dims[1]);
  }
  put_padding(&head, 32);
  CHECK_OK(mlx_text_finish(&data));
  mlx_text_append(&head, data.data, data.length);
  CHECK_OK(mlx_text_finish(&head));
  CHECK_OK(mlx_write_file(path, head.data, head.length));
  mlx_text_clear(&head);
  mlx_text_clear(&data);
}

#endif  // MLXCEL_TESTS_RANDOM_GGUF_H_
