// Builds small GGUF and safetensors files in memory, field by field, so that a test can make a file invalid
// in exactly one place.
#ifndef MLXCEL_TESTS_IMPORT_FILES_H_
#define MLXCEL_TESTS_IMPORT_FILES_H_

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "models/import/gguf.h"

typedef mlx_text_t bytes_t;  // a growing buffer; release with mlx_text_clear

static inline void put_uint(bytes_t *to, uint64_t value, int width) {
  for (int i = 0; i < width; ++i) mlx_text_append(to, &(char){(char)(value >> 8 * i)}, 1);
}
static inline void put_u32(bytes_t *to, uint32_t value) { put_uint(to, value, 4); }
static inline void put_u64(bytes_t *to, uint64_t value) { put_uint(to, value, 8); }
static inline void put_string(bytes_t *to, const char *text) {
  put_u64(to, strlen(text));
  mlx_text_puts(to, text);
}

static inline void put_header(bytes_t *to, uint32_t version, uint64_t tensors, uint64_t fields) {
  mlx_text_puts(to, "GGUF");
  put_u32(to, version);
  put_u64(to, tensors);
  put_u64(to, fields);
}

static inline void put_field(bytes_t *to, const char *key, mlx_gguf_type_t type, uint64_t bits, int width) {
  put_string(to, key);
  put_u32(to, type);
  put_uint(to, bits, width);
}
static inline void put_field_string(bytes_t *to, const char *key, const char *text) {
  put_string(to, key);
  put_u32(to, MLX_GGUF_STRING);
  put_string(to, text);
}
static inline void put_field_array(bytes_t *to, const char *key, mlx_gguf_type_t type, uint64_t count) {
  put_string(to, key);
  put_u32(to, MLX_GGUF_ARRAY);
  put_u32(to, type);
  put_u64(to, count);
}
static inline void put_field_strings(bytes_t *to, const char *key, const char *const *texts, uint64_t count) {
  put_field_array(to, key, MLX_GGUF_STRING, count);
  for (uint64_t i = 0; i < count; ++i) put_string(to, texts[i]);
}

// The three fields of every part of a split model.
static inline void put_split(bytes_t *to, uint64_t part, uint64_t parts, uint64_t tensors) {
  put_field(to, "split.no", MLX_GGUF_U16, part, 2);
  put_field(to, "split.count", MLX_GGUF_U16, parts, 2);
  put_field(to, "split.tensors.count", MLX_GGUF_I32, tensors, 4);
}

// |inner| and |outer| in the file's order: innermost first. An outer of 0 makes a vector.
static inline void put_tensor(bytes_t *to, const char *name, uint64_t inner, uint64_t outer, uint32_t type,
                              uint64_t offset) {
  put_string(to, name);
  put_u32(to, outer ? 2 : 1);
  put_u64(to, inner);
  if (outer) put_u64(to, outer);
  put_u32(to, type);
  put_u64(to, offset);
}
static inline void put_padding(bytes_t *to, size_t alignment) {
  while (to->length % alignment) put_uint(to, 0, 1);
}

// A tokenizer of seven tokens: bytes a, b and Ġ, the merges "ab" and "Ġab", a control token and a
// user-defined one.
static const char *const sample_tokens[] = {"<|end|>", "a", "b", "\304\240", "ab", "\304\240ab", "\"\\\n"};
static const char *const sample_merges[] = {"a b", "\304\240 ab"};
static const int sample_types[] = {3, 1, 1, 1, 1, 1, 4};

static inline void put_tokenizer(bytes_t *to, const char *pre) {  // 5 fields
  put_field_string(to, "tokenizer.ggml.model", "gpt2");
  put_field_string(to, "tokenizer.ggml.pre", pre);
  put_field_strings(to, "tokenizer.ggml.tokens", sample_tokens, 7);
  put_field_strings(to, "tokenizer.ggml.merges", sample_merges, 2);
  put_field_array(to, "tokenizer.ggml.token_type", MLX_GGUF_I32, 7);
  for (int i = 0; i < 7; ++i) put_u32(to, (uint32_t)sample_types[i]);
}

// A complete valid file with 14 fields and two tensors; the last tensor ends at the end of the file. Returns
// the offset of the tensor data.
static inline size_t put_sample_gguf(bytes_t *to) {
  put_header(to, 3, 2, 14);
  put_field_string(to, "general.architecture", "llama");
  put_field(to, "llama.block_count", MLX_GGUF_U32, 30, 4);
  put_field(to, "llama.rope.freq_base", MLX_GGUF_F32, 0x47c35000, 4);  // 100000
  put_field(to, "llama.signed", MLX_GGUF_I16, 0xfffe, 2);
  put_field(to, "llama.huge", MLX_GGUF_U64, UINT64_MAX, 8);
  put_field(to, "llama.double", MLX_GGUF_F64, 0x4004000000000000, 8);  // 2.5
  put_field(to, "tokenizer.ggml.add_bos_token", MLX_GGUF_BOOL, 0, 1);
  put_field(to, "tokenizer.ggml.eos_token_id", MLX_GGUF_U32, 0, 4);
  put_field_array(to, "llama.list", MLX_GGUF_U8, 3);
  put_uint(to, 0x030201, 3);
  put_tokenizer(to, "smollm");
  put_tensor(to, "a.weight", 32, 2, 0, 0);    // F32 [2, 32]: 256 bytes
  put_tensor(to, "b.weight", 32, 0, 8, 256);  // Q8_0 [32]: 34 bytes
  put_padding(to, 32);
  size_t start = to->length;
  for (int i = 0; i < 256 + 34; ++i) put_uint(to, (uint64_t)i, 1);
  return start;
}

// A safetensors file with |header| followed by |data_size| bytes.
static inline void put_safetensors(bytes_t *to, const char *header, size_t data_size) {
  put_u64(to, strlen(header));
  mlx_text_puts(to, header);
  for (size_t i = 0; i < data_size; ++i) put_uint(to, i, 1);
}

// Copies the first |size| bytes to a block of exactly that size, so that the sanitizer sees every overrun.
static inline uint8_t *exact_copy(const bytes_t *from, size_t size) {
  uint8_t *copy = malloc(size ? size : 1);
  if (size) memcpy(copy, from->data, size);
  return copy;
}

// An allocator that fails once, when |allocations_left| reaches 0, and counts the requested bytes.
static size_t allocations_left, allocated_bytes;
static inline void *counting_resize(void *ptr, size_t size) {
  allocated_bytes += size;
  if (allocations_left && !--allocations_left) return NULL;
  return realloc(ptr, size);
}
static const mlx_memory_calls_t counting_calls = {.resize = counting_resize, .release = free};

#endif  // MLXCEL_TESTS_IMPORT_FILES_H_
