// Writes small Llamas with random weights as Hugging Face directories, for shapes that no fixture has. The
// bytes are the same every time.
#ifndef MLXCEL_TESTS_RANDOM_LLAMA_H_
#define MLXCEL_TESTS_RANDOM_LLAMA_H_

#include <stdint.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "graph/dtype.h"
#include "tests/support/check.h"

// Type of the tensors in the files: "F32", "BF16" or "F16".
static const char *random_llama_dtype = "F32";

typedef struct random_llama {
  int hidden, ffn, heads, kv_heads, head_dim, layers, vocab;
  bool tied;
  double theta;
} random_llama_t;

static inline uint32_t random_bits(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 33);
}

// Approximately N(0, 1): the sum of twelve uniform numbers has variance 1. Independent of libm.
static inline float random_normal(uint64_t *state) {
  float sum = -6;
  for (int i = 0; i < 12; ++i) sum += (float)random_bits(state) * 0x1p-31f;
  return sum;
}

// The values of a tensor are mean + scale * N(0, 1), in f32.
typedef struct random_tensor {
  char name[80];
  int rows, columns;  // rows 0: a vector
  float mean, scale;
} random_tensor_t;

#define RANDOM_LLAMA_TENSORS 64

// Newton's method, because sqrt of another libm could round differently.
static inline float random_root(int number) {
  float root = (float)number;
  for (int i = 0; i < 40; ++i) root = (root + (float)number / root) / 2;
  return root;
}

// |layer| -1: not in a layer. |rows| 0: a vector.
static inline void random_add(random_tensor_t *tensors, int *count, const char *name, int layer, int rows,
                              int columns) {
  char prefix[32] = "";
  CHECK(*count < RANDOM_LLAMA_TENSORS);
  random_tensor_t *t = &tensors[(*count)++];
  *t = (random_tensor_t){.rows = rows, .columns = columns, .mean = rows ? 0 : 1, .scale = 0.1f};
  if (layer >= 0) snprintf(prefix, sizeof prefix, "model.layers.%d.", layer);
  snprintf(t->name, sizeof t->name, "%s%.40s.weight", prefix, name);
  if (rows) t->scale = strstr(name, "embed") ? 0.5f : 1 / random_root(columns);
}

static inline int random_llama_tensors(const random_llama_t *m, random_tensor_t *out) {
  const int queries = m->heads * m->head_dim, keys = m->kv_heads * m->head_dim;
  int count = 0;
  random_add(out, &count, "model.embed_tokens", -1, m->vocab, m->hidden);
  for (int i = 0; i < m->layers; ++i) {
    random_add(out, &count, "input_layernorm", i, 0, m->hidden);
    random_add(out, &count, "self_attn.q_proj", i, queries, m->hidden);
    random_add(out, &count, "self_attn.k_proj", i, keys, m->hidden);
    random_add(out, &count, "self_attn.v_proj", i, keys, m->hidden);
    random_add(out, &count, "self_attn.o_proj", i, m->hidden, queries);
    random_add(out, &count, "post_attention_layernorm", i, 0, m->hidden);
    random_add(out, &count, "mlp.gate_proj", i, m->ffn, m->hidden);
    random_add(out, &count, "mlp.up_proj", i, m->ffn, m->hidden);
    random_add(out, &count, "mlp.down_proj", i, m->hidden, m->ffn);
  }
  random_add(out, &count, "model.norm", -1, 0, m->hidden);
  if (!m->tied) random_add(out, &count, "lm_head", -1, m->vocab, m->hidden);
  return count;
}

static inline size_t random_elements(const random_tensor_t *t) {
  return (size_t)(t->rows ? t->rows : 1) * (size_t)t->columns;
}

static inline void random_write_header(mlx_writer_t *writer, const random_tensor_t *tensors, int count) {
  mlx_text_t text = {0};
  size_t at = 0;
  for (int i = 0; i < count; ++i) {
    const size_t end = at + (strcmp(random_llama_dtype, "F32") ? 2 : 4) * random_elements(&tensors[i]);
    mlx_text_printf(&text, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "{", tensors[i].name,
                    random_llama_dtype);
    if (tensors[i].rows) mlx_text_printf(&text, "%d,", tensors[i].rows);
    mlx_text_printf(&text, "%d],\"data_offsets\":[%zu,%zu]}", tensors[i].columns, at, end);
    at = end;
  }
  mlx_text_puts(&text, "}");
  CHECK_OK(mlx_text_finish(&text));
  const uint64_t length = text.length;  // safetensors is little-endian; so are all test machines
  CHECK_OK(mlx_writer_write(writer, &length, sizeof length));
  CHECK_OK(mlx_writer_write(writer, text.data, text.length));
  mlx_text_clear(&text);
}

static inline void random_write_values(mlx_writer_t *writer, float *values, size_t count) {
  if (!strcmp(random_llama_dtype, "F32")) {
    CHECK_OK(mlx_writer_write(writer, values, count * sizeof *values));
    return;
  }
  const mlx_dtype_t dtype = strcmp(random_llama_dtype, "F16") ? MLX_BF16 : MLX_F16;
  uint8_t *narrow;
  CHECK_OK(mlx_alloc(count, 2, &narrow));
  mlx_dtype_info(dtype)->from_f32(values, count, narrow);
  CHECK_OK(mlx_writer_write(writer, narrow, count * 2));
  mlx_free(narrow);
}

// Changes the values of a tensor before they are written. May be NULL.
typedef void (*random_alter_t)(const random_tensor_t *tensor, float *values);

static inline void random_write_weights(const random_llama_t *model, random_alter_t alter, const char *path) {
  static random_tensor_t tensors[RANDOM_LLAMA_TENSORS];
  const int count = random_llama_tensors(model, tensors);
  uint64_t state = 20240607;
  mlx_writer_t writer;
  CHECK_OK(mlx_writer_open(path, &writer));
  random_write_header(&writer, tensors, count);
  for (int i = 0; i < count; ++i) {
    const size_t elements = random_elements(&tensors[i]);
    float *values;
    CHECK_OK(mlx_alloc(elements, sizeof *values, &values));
    for (size_t k = 0; k < elements; ++k)
      values[k] = tensors[i].mean + tensors[i].scale * random_normal(&state);
    if (alter) alter(&tensors[i], values);
    random_write_values(&writer, values, elements);
    mlx_free(values);
  }
  CHECK_OK(mlx_writer_close(&writer));
}

static inline void random_write_config(const random_llama_t *m, const char *path) {
  mlx_text_t text = {0};
  mlx_text_puts(&text, "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",");
  mlx_text_printf(&text, "\"hidden_size\":%d,\"intermediate_size\":%d,", m->hidden, m->ffn);
  mlx_text_printf(&text, "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,", m->heads,
                  m->kv_heads, m->head_dim);
  mlx_text_printf(&text, "\"num_hidden_layers\":%d,\"vocab_size\":%d,\"tie_word_embeddings\":%s,", m->layers,
                  m->vocab, m->tied ? "true" : "false");
  mlx_text_printf(
      &text,
      "\"rope_theta\":%.1f,\"rms_norm_eps\":1e-05,\"max_position_embeddings\":2048,\"eos_token_id\":2}\n",
      m->theta);
  CHECK_OK(mlx_text_finish(&text));
  CHECK_OK(mlx_write_file(path, text.data, text.length));
  mlx_text_clear(&text);
}

// Writes the folder |name| in |parent| unless it exists. The returned path is valid until the next call.
static inline const char *random_llama_write_altered(const random_llama_t *model, random_alter_t alter,
                                                     const char *parent, const char *name) {
  static char made[256];
  char path[300];
  snprintf(made, sizeof made, "%s/%s", parent, name);
  if (mlx_is_dir(made)) return made;
  CHECK_OK(mlx_make_dirs(made, 0700));
  snprintf(path, sizeof path, "%s/config.json", made);
  random_write_config(model, path);
  snprintf(path, sizeof path, "%s/model.safetensors", made);
  random_write_weights(model, alter, path);
  snprintf(path, sizeof path, "%s/tokenizer.json", made);
  CHECK_OK(mlx_copy_file(MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama/tokenizer.json", path));
  return made;
}

static inline const char *random_llama_write(const random_llama_t *model, const char *parent,
                                             const char *name) {
  return random_llama_write_altered(model, NULL, parent, name);
}

#endif  // MLXCEL_TESTS_RANDOM_LLAMA_H_
