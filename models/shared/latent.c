// Latent attention; see latent.h.
#include "models/shared/latent.h"

#include <math.h>
#include <stdio.h>

#define INNER_EPS 1e-6  // of the norms of compressed rows; no class has a field for it

bool mlx_has_query_rank(const mlx_config_t *c) { return c->query_rank > 0; }
bool mlx_has_plain_queries(const mlx_config_t *c) { return !c->query_rank; }

bool mlx_gguf_has_sigmoids(const mlx_source_t *source) {
  int64_t gating = 0, dense = 0;
  char name[64];
  bool found;
  mlx_status_t status = mlx_source_int(source, NULL, ".expert_gating_func", 0, 1 << 20, &gating, &found);
  if (!status)
    status = mlx_source_int(source, NULL, ".leading_dense_block_count", 0, MLX_MAX_LAYERS, &dense, &found);
  if (status) {
    mlx_status_free(status);  // read_config reports it
    return false;
  }
  snprintf(name, sizeof name, "blk.%lld.exp_probs_b.bias", (long long)dense);
  return gating ? gating == 2 : mlx_source_tensor(source, NULL, name) != NULL;
}

// A size of config.json with the default |fallback|; 0: required.
static mlx_status_t read_size(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                              int64_t fallback, int64_t *out) {
  const bool optional = fallback && !mlx_source_is_gguf(source);
  bool found;
  *out = fallback;
  return mlx_source_int(source, hf_key, gguf_key, 1, 1 << 16, out, optional ? &found : NULL);
}

// Newer GGUF files have the sizes of a head under names of their own, and those of a row of the cache, which
// follow from the others, under the usual names.
static mlx_status_t read_gguf_heads(const mlx_source_t *source, mlx_config_t *c) {
  const bool newer = mlx_source_has(source, NULL, ".attention.key_length_mla");
  int64_t key = 0, value = 0;
  bool found;
  MLX_TRY(mlx_source_int(source, NULL, ".attention.key_length", 1, 1 << 16, &key, NULL));
  value = c->hidden / c->heads;
  MLX_TRY(mlx_source_int(source, NULL, ".attention.value_length", 1, 1 << 16, &value, &found));
  MLX_TRY(
      mlx_source_int(source, NULL, ".rope.dimension_count", 2, 2 * MLX_MAX_FREQUENCIES, &c->rope_dim, NULL));
  c->query_dim = key;
  c->value_dim = value;
  if (newer) {
    if (key != c->kv_rank + c->rope_dim || value != c->kv_rank)
      return mlx_source_field_error(source, NULL, ".attention.key_length", MLX_INVALID_INPUT,
                                    "is %lld and value_length %lld; expected %lld and %lld", (long long)key,
                                    (long long)value, (long long)(c->kv_rank + c->rope_dim),
                                    (long long)c->kv_rank);
    MLX_TRY(mlx_source_int(source, NULL, ".attention.key_length_mla", 1, 1 << 16, &c->query_dim, NULL));
    MLX_TRY(mlx_source_int(source, NULL, ".attention.value_length_mla", 1, 1 << 16, &c->value_dim, NULL));
  }
  c->nope_dim = c->query_dim - c->rope_dim;
  if (c->nope_dim > 0) return NULL;
  return mlx_source_field_error(source, NULL, ".rope.dimension_count", MLX_INVALID_INPUT,
                                "is %lld, but a head of queries has %lld dimensions", (long long)c->rope_dim,
                                (long long)c->query_dim);
}

static mlx_status_t read_heads(const mlx_source_t *source, const mlx_latent_fields_t *f, mlx_config_t *c) {
  if (c->kv_heads != c->heads)
    return mlx_source_field_error(source, "num_key_value_heads", NULL, MLX_UNSUPPORTED,
                                  "is %lld; latent attention has as many as query heads, %lld",
                                  (long long)c->kv_heads, (long long)c->heads);
  const int64_t value_dim = f->hidden_values ? c->hidden / c->heads : f->value_dim;
  MLX_TRY(read_size(source, "qk_nope_head_dim", NULL, f->nope_dim, &c->nope_dim));
  MLX_TRY(read_size(source, "qk_rope_head_dim", NULL, f->rope_dim, &c->rope_dim));
  MLX_TRY(read_size(source, "v_head_dim", NULL, value_dim, &c->value_dim));
  c->query_dim = c->nope_dim + c->rope_dim;
  if (c->rope_dim % 2 == 0 && c->rope_dim <= 2 * MLX_MAX_FREQUENCIES) return NULL;
  return mlx_source_field_error(source, "qk_rope_head_dim", NULL, MLX_INVALID_INPUT,
                                "must be even and at most %d", 2 * MLX_MAX_FREQUENCIES);
}

static mlx_status_t read_rope(const mlx_source_t *source, const mlx_latent_fields_t *f, mlx_config_t *c) {
  mlx_rope_fields_t rope = {.adjacent = f->interleaved, .gguf_log_tenth = true};
  double mscale;
  bool found;
  if (!f->fixed_interleaved)
    MLX_TRY(mlx_source_bool(source, "rope_interleave", NULL, &rope.adjacent, &found));
  c->head_dim = c->rope_dim;
  if (f->partial && !mlx_source_is_gguf(source)) {
    c->head_dim = c->query_dim;
    rope.partial = f->partial;
    rope.default_partial = (double)c->rope_dim / (double)c->query_dim;
  }
  MLX_TRY(mlx_read_rope(source, &rope, c, &c->rope));
  if (c->rope.dims != c->rope_dim)
    return mlx_source_field_error(source, "rope_parameters.partial_rotary_factor", NULL, MLX_UNSUPPORTED,
                                  "means %lld dimensions; only qk_rope_head_dim, %lld, is supported",
                                  (long long)c->rope.dims, (long long)c->rope_dim);
  MLX_TRY(mlx_read_yarn_mscale(source, &rope, &mscale));
  c->attention_scale = mscale * mscale / sqrt((double)c->query_dim);
  return NULL;
}

mlx_status_t mlx_read_latent(const mlx_source_t *source, const mlx_latent_fields_t *f, mlx_config_t *c) {
  const bool gguf = mlx_source_is_gguf(source);
  bool found;
  c->query_rank = gguf || mlx_source_mentions(source, "q_lora_rank") ? 0 : f->query_rank;
  MLX_TRY(mlx_source_int(source, "q_lora_rank", ".attention.q_lora_rank", gguf ? 0 : 1, 1 << 16,
                         &c->query_rank, &found));
  MLX_TRY(read_size(source, "kv_lora_rank", ".attention.kv_lora_rank", f->kv_rank, &c->kv_rank));
  MLX_TRY(gguf ? read_gguf_heads(source, c) : read_heads(source, f, c));
  MLX_TRY(mlx_read_flag(source, "attention_bias", "blk.0.attn_q_a.bias", false, &c->q_bias));
  MLX_TRY(mlx_read_flag(source, "attention_bias", "blk.0.attn_kv_a_mqa.bias", false, &c->kv_bias));
  MLX_TRY(mlx_read_flag(source, "attention_bias", "blk.0.attn_output.bias", false, &c->o_bias));
  c->q_bias = c->q_bias && c->query_rank;
  MLX_TRY(read_rope(source, f, c));
  c->key_value_dim = c->nope_dim + c->value_dim;
  c->head_dim = c->kv_rank + c->rope_dim;
  c->kv_heads = 1;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The network

static mlx_value_t queries(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  if (!c->query_rank) return mlx_op_linear(g, "q", h, MLX_W("self_attn.q_proj"));
  h = mlx_op_linear_bias(g, "q_latent", h, MLX_W("self_attn.q_a_proj"),
                         MLX_B("self_attn.q_a_proj", c->q_bias));
  h = mlx_op_rmsnorm(g, "q_latent_norm", h, MLX_W("self_attn.q_a_layernorm"), INNER_EPS);
  return mlx_op_linear(g, "q", h, MLX_W("self_attn.q_b_proj"));
}

// Queries of the rows of the cache: W_k q of each head beside its rotated elements.
static mlx_value_t absorbed_queries(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  mlx_value_t q = queries(g, c, layer, h);  // [M, heads * query_dim]
  mlx_value_t plain = mlx_op_head_columns(g, "q_plain", q, c->query_dim, 0, c->nope_dim);
  mlx_value_t rotary = mlx_op_head_columns(g, "q_rotary", q, c->query_dim, c->nope_dim, c->rope_dim);
  plain = mlx_op_head_linear(g, "q_absorbed", plain, MLX_W("self_attn.k_b_proj"));  // [M, heads * kv_rank]
  rotary = mlx_op_rope(g, "q_rope", rotary, c->rope_dim, mlx_rope_of(g, c, layer));
  q = mlx_op_head_join(g, "query", c->heads, plain, rotary);  // [M, heads * head_dim]
  return c->query_scale_period ? mlx_op_grow(g, "q_grown", q, c->query_scale_beta, c->query_scale_period) : q;
}

// The row of the cache.
static mlx_value_t latent_row(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  mlx_value_t row = mlx_op_linear_bias(g, "kv", h, MLX_W("self_attn.kv_a_proj_with_mqa"),
                                       MLX_B("self_attn.kv_a_proj_with_mqa", c->kv_bias));
  mlx_value_t latent = mlx_op_columns(g, "kv_latent", row, 0, c->kv_rank);
  mlx_value_t rotary = mlx_op_columns(g, "k_rotary", row, c->kv_rank, c->rope_dim);
  latent = mlx_op_rmsnorm(g, "kv_latent_norm", latent, MLX_W("self_attn.kv_a_layernorm"), INNER_EPS);
  rotary = mlx_op_rope(g, "k_rope", rotary, c->rope_dim, mlx_rope_of(g, c, layer));
  return mlx_op_join(g, "key", latent, rotary);  // [M, head_dim]
}

mlx_value_t mlx_block_latent_attention(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t h) {
  mlx_attention_t attention = mlx_attention_of(c, layer);
  attention.value_dim = c->kv_rank;
  mlx_value_t q = absorbed_queries(g, c, layer, h), key = latent_row(g, c, layer, h);
  h = mlx_op_attention(g, &attention, q, key, MLX_NONE);                // [M, heads * kv_rank]
  h = mlx_op_head_linear(g, "values", h, MLX_W("self_attn.v_b_proj"));  // [M, heads * value_dim]
  return mlx_block_output(g, c, layer, h);
}

mlx_value_t mlx_latent_layer(mlx_graph_t *g, const mlx_config_t *c, int layer, mlx_value_t x) {
  mlx_op_scope(g, "layer%d", layer);
  mlx_value_t h = mlx_op_rmsnorm(g, "attn_in", x, MLX_W("input_layernorm"), c->norm_eps);
  x = mlx_op_add(g, "after_attn", x, mlx_block_latent_attention(g, c, layer, h));
  h = mlx_op_rmsnorm(g, "mlp_in", x, MLX_W("post_attention_layernorm"), c->norm_eps);
  return mlx_op_add(g, "out", x, mlx_block_routed_mlp(g, c, layer, h));
}
