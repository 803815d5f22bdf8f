// Reads and searches the vocabulary of a GGUF tokenizer; see gguf_vocabulary.h.
#include "models/import/gguf_vocabulary.h"

#include <string.h>

#include "base/memory.h"

#define KEY MLX_TOKENIZER_KEY

// FNV-1a. The hash starts from an address, so an attacker cannot prepare tokens that all collide.
static uint64_t hash_bytes(uint64_t hash, const char *bytes, size_t length) {
  for (size_t i = 0; i < length; ++i) hash = (hash ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001b3);
  return hash;
}

// The slot of the token whose bytes are |head| followed by |tail|, or the free slot for that token.
static uint32_t *find_slot(const mlx_gguf_vocabulary_t *vocabulary, mlx_gguf_token_t head,
                           mlx_gguf_token_t tail) {
  uint64_t hash = hash_bytes((uint64_t)(uintptr_t)vocabulary->slots, head.bytes, head.length);
  hash = hash_bytes(hash, tail.bytes, tail.length);
  for (size_t at = (size_t)(hash ^ hash >> 32);; ++at) {
    uint32_t *slot = &vocabulary->slots[at & vocabulary->mask];
    if (!*slot) return slot;
    const mlx_gguf_token_t *token = &vocabulary->tokens[*slot - 1];
    if (token->length != head.length + tail.length || memcmp(token->bytes, head.bytes, head.length)) continue;
    if (!memcmp(token->bytes + head.length, tail.bytes, tail.length)) return slot;
  }
}

int64_t mlx_gguf_vocabulary_find(const mlx_gguf_vocabulary_t *vocabulary, mlx_gguf_token_t head,
                                 mlx_gguf_token_t tail) {
  return (int64_t)*find_slot(vocabulary, head, tail) - 1;
}

static bool is_utf8(mlx_gguf_token_t token) {
  while (token.length) {
    int step = mlx_utf8_length(token.bytes, token.length);
    if (step <= 0) return false;
    token.bytes += step;
    token.length -= (size_t)step;
  }
  return true;
}

mlx_status_t mlx_gguf_string_array(const mlx_gguf_t *gguf, const char *key,
                                   const mlx_gguf_field_t **out_field) {
  *out_field = mlx_gguf_find(gguf, key);
  if (!*out_field) return mlx_gguf_error(gguf, key, MLX_INVALID_INPUT, "is missing");
  if (!(*out_field)->is_array || (*out_field)->type != MLX_GGUF_STRING) {
    return mlx_gguf_error(gguf, key, MLX_INVALID_INPUT, "must be an array of strings");
  }
  if ((*out_field)->count >= INT32_MAX) return mlx_gguf_error(gguf, key, MLX_INVALID_INPUT, "is too long");
  return NULL;
}

static mlx_status_t read_types(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary, size_t count) {
  const mlx_gguf_field_t *types = mlx_gguf_find(gguf, KEY("token_type"));
  MLX_TRY(mlx_alloc(count, sizeof *vocabulary->types, &vocabulary->types));
  memset(vocabulary->types, MLX_TOKEN_NORMAL, count);
  if (!types) return NULL;
  if (!types->is_array || types->count != count) {
    return mlx_gguf_error(gguf, KEY("token_type"), MLX_INVALID_INPUT,
                          "must be an array with one number for each of the %zu tokens", count);
  }
  for (size_t i = 0; i < count; ++i) {
    int64_t type;
    if (!mlx_gguf_int_at(types, i, &type) || type < 0 || type > MLX_TOKEN_BYTE) {
      return mlx_gguf_error(gguf, KEY("token_type"), MLX_INVALID_INPUT, "has no valid type for token %zu", i);
    }
    vocabulary->types[i] = (uint8_t)type;
  }
  return NULL;
}

static mlx_status_t rewrite_tokens(mlx_gguf_vocabulary_t *vocabulary, mlx_gguf_rewrite_t rewrite,
                                   size_t count) {
  mlx_text_t *rewritten = &vocabulary->rewritten;
  for (size_t i = 0; i < count; ++i) {
    size_t before = rewritten->length;
    rewrite(vocabulary->tokens[i], vocabulary->types[i], rewritten);
    vocabulary->tokens[i].length = rewritten->length - before;
  }
  MLX_TRY(mlx_text_finish(rewritten));
  const char *at = rewritten->data;
  for (size_t i = 0; i < count; at += vocabulary->tokens[i++].length) vocabulary->tokens[i].bytes = at;
  return NULL;
}

mlx_status_t mlx_gguf_vocabulary_read(const mlx_gguf_t *gguf, mlx_gguf_rewrite_t rewrite,
                                      mlx_gguf_vocabulary_t *out) {
  const mlx_gguf_field_t *field;
  size_t slots = 16;
  MLX_TRY(mlx_gguf_string_array(gguf, KEY("tokens"), &field));
  while (slots < 2 * (size_t)field->count) slots *= 2;
  // No overflow: every token takes 8 bytes of the file. A rewritten token is at most 3 times as long.
  MLX_TRY(mlx_budget_take(out->budget, slots * sizeof *out->slots +
                                           (size_t)field->count * (sizeof *out->tokens + 1) +
                                           (rewrite ? 3 * field->size : 0)));
  MLX_TRY(mlx_alloc(slots, sizeof *out->slots, &out->slots));
  MLX_TRY(mlx_alloc((size_t)field->count, sizeof *out->tokens, &out->tokens));
  MLX_TRY(read_types(gguf, out, (size_t)field->count));
  out->mask = slots - 1;
  const uint8_t *cursor = field->data;
  for (uint64_t i = 0; i < field->count; ++i) {
    out->tokens[i].bytes = mlx_gguf_next_string(&cursor, &out->tokens[i].length);
    if (!is_utf8(out->tokens[i])) {
      return mlx_gguf_error(gguf, KEY("tokens"), MLX_INVALID_INPUT, "has token %llu, which is not UTF-8",
                            (unsigned long long)i);
    }
  }
  if (rewrite) MLX_TRY(rewrite_tokens(out, rewrite, (size_t)field->count));
  for (; out->count < field->count; ++out->count) {
    MLX_TRY(mlx_budget_step(out->budget, 1 + out->tokens[out->count].length / 8));
    uint32_t *slot = find_slot(out, out->tokens[out->count], (mlx_gguf_token_t){"", 0});
    if (*slot) {
      return mlx_gguf_error(gguf, KEY("tokens"), MLX_INVALID_INPUT, "has the same token at %u and %zu",
                            *slot - 1, out->count);
    }
    *slot = (uint32_t)out->count + 1;
  }
  return NULL;
}

void mlx_gguf_vocabulary_clear(mlx_gguf_vocabulary_t *vocabulary) {
  mlx_free(vocabulary->tokens);
  mlx_free(vocabulary->types);
  mlx_free(vocabulary->slots);
  mlx_text_clear(&vocabulary->rewritten);
}

mlx_status_t mlx_gguf_vocabulary_unknown(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                         int64_t *out_id) {
  bool found;
  *out_id = -1;
  MLX_TRY(mlx_gguf_int(gguf, KEY("unknown_token_id"), 0, (int64_t)vocabulary->count - 1, out_id, &found));
  for (size_t i = 0; !found && i < vocabulary->count; ++i) {
    if (vocabulary->types[i] != MLX_TOKEN_UNKNOWN) continue;
    *out_id = (int64_t)i;
    break;
  }
  return NULL;
}

void mlx_gguf_write_token(const mlx_gguf_vocabulary_t *vocabulary, size_t id, const char *key,
                          mlx_json_writer_t *json) {
  mlx_json_put_bytes(json, key, vocabulary->tokens[id].bytes, vocabulary->tokens[id].length);
}

void mlx_gguf_write_vocabulary(const mlx_gguf_vocabulary_t *vocabulary, mlx_json_writer_t *json) {
  mlx_json_begin_object(json, "vocab", MLX_JSON_ROWS);
  for (size_t i = 0; i < vocabulary->count; ++i) {
    const mlx_gguf_token_t token = vocabulary->tokens[i];
    mlx_text_printf(mlx_json_put_member(json, token.bytes, token.length), "%zu", i);
  }
  mlx_json_end(json);
}
