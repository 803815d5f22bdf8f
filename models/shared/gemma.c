// Parts of Gemma 3n and Gemma 4; see gemma.h.
#include "models/shared/gemma.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ----------------------------------------------------------------------------------------------------------
// Layers that share keys and values

bool mlx_shares_kv(const mlx_config_t *c, int layer) { return layer >= c->layers - c->shared_kv_layers; }

// The layer whose keys and values |layer| shares; -1: there is none.
static int64_t kv_layer_of(const mlx_config_t *c, int layer) {
  for (int64_t i = c->layers - c->shared_kv_layers - 1; i >= 0; --i)
    if (c->windowed[i] == c->windowed[layer]) return i;
  return -1;
}

bool mlx_skips_shared_kv(const mlx_config_t *c, const char *name) {
  static const char *const parts[] = {".self_attn.k_proj.", ".self_attn.v_proj.", ".self_attn.k_norm.",
                                      ".self_attn.v_norm.", ".attn_k.",           ".attn_v.",
                                      ".attn_k_norm."};
  const bool gguf = !strncmp(name, "blk.", 4);
  if (!c->shared_kv_layers || (!gguf && strncmp(name, "model.layers.", 13))) return false;
  char *end;
  const long layer = strtol(name + (gguf ? 4 : 13), &end, 10);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i)
    if (!strncmp(end, parts[i], strlen(parts[i]))) return layer < c->layers && mlx_shares_kv(c, (int)layer);
  return false;
}

mlx_status_t mlx_read_shared_kv(const mlx_source_t *source, int64_t fallback, mlx_config_t *c) {
  const char *key = "num_kv_shared_layers", *gguf_key = ".attention.shared_kv_layers";
  bool found;
  c->shared_kv_layers = fallback;
  MLX_TRY(mlx_source_int(source, key, gguf_key, 0, MLX_MAX_LAYERS, &c->shared_kv_layers, &found));
  if (c->shared_kv_layers >= c->layers) c->shared_kv_layers = 0;  // as the class does
  for (int64_t i = c->layers - c->shared_kv_layers; i < c->layers; ++i) {
    if (kv_layer_of(c, (int)i) >= 0) continue;
    return mlx_source_field_error(source, key, gguf_key, MLX_INVALID_INPUT,
                                  "leaves layer %lld without keys to share", (long long)i);
  }
  return NULL;
}

mlx_value_t mlx_block_gemma_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  const int64_t head_dim = mlx_head_dim_of(c, layer);
  const mlx_rope_t *rope = mlx_rope_of(g, c, layer);
  mlx_attention_t a = mlx_attention_of(c, layer);
  mlx_value_t k = MLX_NONE, v = MLX_NONE;
  mlx_value_t q =
      mlx_op_linear_bias(g, "q", h, MLX_W("self_attn.q_proj"), MLX_B("self_attn.q_proj", c->q_bias));
  q = mlx_op_head_rmsnorm(g, "q_normed", q, head_dim, MLX_W("self_attn.q_norm"), c->norm_eps);
  q = mlx_op_rope(g, "q_rope", q, head_dim, rope);  // [M, heads * head_dim]
  if (mlx_shares_kv(c, layer)) {
    a.shared = true;
    a.kv_layer = kv_layer_of(c, layer);
  } else {
    k = v = mlx_op_linear_bias(g, "k", h, MLX_W("self_attn.k_proj"), MLX_B("self_attn.k_proj", c->kv_bias));
    if (c->windowed[layer] || !c->values_are_keys)
      v = mlx_op_linear_bias(g, "v", h, MLX_W("self_attn.v_proj"), MLX_B("self_attn.v_proj", c->kv_bias));
    k = mlx_op_head_rmsnorm(g, "k_normed", k, head_dim, MLX_W("self_attn.k_norm"), c->norm_eps);
    k = mlx_op_rope(g, "k_rope", k, head_dim, rope);  // [M, kv_heads * head_dim]
    v = mlx_op_head_rmsnorm(g, "v_normed", v, head_dim, MLX_NONE, c->norm_eps);
  }
  return mlx_block_output(g, c, layer, mlx_op_attention(g, &a, q, k, v));
}

// ----------------------------------------------------------------------------------------------------------
// Per-layer embeddings

mlx_status_t mlx_read_layer_embedding(const mlx_source_t *source, mlx_config_t *c) {
  const bool gguf = mlx_source_is_gguf(source);
  bool found;
  c->layer_embedding = gguf || mlx_source_mentions(source, "hidden_size_per_layer_input") ? 0 : 256;
  c->layer_vocab = gguf ? c->vocab : 262144;
  MLX_TRY(mlx_source_int(source, "hidden_size_per_layer_input", ".embedding_length_per_layer_input", 0,
                         1 << 16, &c->layer_embedding, &found));
  MLX_TRY(mlx_source_int(source, "vocab_size_per_layer_input", NULL, 1, 1 << 26, &c->layer_vocab, &found));
  c->layer_embeddings = c->layers * c->layer_embedding;
  return NULL;
}

mlx_value_t mlx_block_layer_embeddings(mlx_graph_t *g, const mlx_config_t *c, mlx_value_t tokens,
                                       mlx_value_t x) {
  if (!c->layer_embedding) return MLX_NONE;
  const mlx_value_t table = mlx_op_weight(g, "model.embed_tokens_per_layer.weight");
  mlx_value_t own =
      c->layer_vocab < c->vocab ? mlx_op_embed_some(g, table, tokens) : mlx_op_embed(g, table, tokens);
  own = mlx_op_scale(g, "layer_embeddings", own, sqrt((double)c->layer_embedding));
  mlx_value_t h =
      mlx_op_linear(g, "layer_inputs", x, mlx_op_weight(g, "model.per_layer_model_projection.weight"));
  h = mlx_op_scale(g, "layer_inputs_scaled", h, 1.0 / sqrt((double)c->hidden));
  h = mlx_op_head_rmsnorm(g, "layer_inputs_normed", h, c->layer_embedding,
                          mlx_op_weight(g, "model.per_layer_projection_norm.weight"), c->norm_eps);
  return mlx_op_scale(g, "of_layers", mlx_op_add(g, "with_embeddings", h, own), sqrt(0.5));
}

mlx_value_t mlx_block_layer_embedding(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x,
                                      mlx_value_t embeddings) {
  mlx_value_t h =
      mlx_op_linear(g, "embedding_gate", x, MLX_W("per_layer_input_gate"));  // [M, layer_embedding]
  mlx_value_t own =
      mlx_op_columns(g, "embedding", embeddings, layer * c->layer_embedding, c->layer_embedding);
  h = mlx_op_gated(g, "embedding_gated", c->act, h, own);
  h = mlx_op_linear(g, "embedding_out", h, MLX_W("per_layer_projection"));
  return mlx_op_rmsnorm(g, "embedding_normed", h, MLX_W("post_per_layer_input_norm"), c->norm_eps);
}
