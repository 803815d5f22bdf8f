// Baichuan 7B: Llama with q, k and v in one tensor. The models of 13B have ALiBi instead of a rope, and
// Hugging Face normalises the rows of Baichuan 2's LM head; both are refused.
#include "models/shared/blocks.h"

#define LAYERS_OF_13B 40
#define VOCAB_OF_BAICHUAN_2 125696
#define QKV(row) \
  .hf_stored = "model.layers.%d.self_attn.W_pack.weight", .hf_row = row, .fused_rows = MLX_DIM(qkv_width)

static int64_t q_row(const mlx_config_t *c, int64_t row) { return (void)c, row; }
static int64_t k_row(const mlx_config_t *c, int64_t row) { return c->heads * c->head_dim + row; }
static int64_t v_row(const mlx_config_t *c, int64_t row) { return 2 * c->heads * c->head_dim + row; }

static const mlx_tensor_rule_t baichuan_tensors[] = {
    MLX_RULE_EMBED,
    MLX_LAYER_NORM("input_layernorm", "attn_norm"),
    MLX_LAYER_MATRIX("self_attn.q_proj.weight", "attn_q.weight", MLX_HEADS(heads), MLX_DIM(hidden),
                     QKV(q_row), .gguf_order = MLX_ROWS_INTERLEAVED_HALVES),
    MLX_LAYER_MATRIX("self_attn.k_proj.weight", "attn_k.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden),
                     QKV(k_row), .gguf_order = MLX_ROWS_INTERLEAVED_HALVES),
    MLX_LAYER_MATRIX("self_attn.v_proj.weight", "attn_v.weight", MLX_HEADS(kv_heads), MLX_DIM(hidden),
                     QKV(v_row)),
    MLX_LAYER_MATRIX("self_attn.o_proj.weight", "attn_output.weight", MLX_DIM(hidden), MLX_HEADS(heads)),
    MLX_LAYER_NORM("post_attention_layernorm", "ffn_norm"),
    MLX_RULES_GATED_MLP,
    MLX_RULE_FINAL_NORM(),
    MLX_RULE_HEAD,
};

static mlx_status_t baichuan_read_config(const mlx_source_t *source, mlx_config_t *c) {
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_SILU, &c->act));
  MLX_TRY(mlx_read_sizes(source, NULL, false, c));
  MLX_TRY(mlx_read_rms_eps(source, c));
  if (c->layers == LAYERS_OF_13B)
    return mlx_source_field_error(source, "num_hidden_layers", ".block_count", MLX_UNSUPPORTED,
                                  "is %d, as in Baichuan 13B, whose ALiBi is not supported", LAYERS_OF_13B);
  if (!mlx_source_is_gguf(source) && c->vocab == VOCAB_OF_BAICHUAN_2)
    return mlx_source_field_error(
        source, "vocab_size", NULL, MLX_UNSUPPORTED,
        "is %d, as in Baichuan 2, whose normalised LM head is not supported in Hugging Face directories",
        VOCAB_OF_BAICHUAN_2);
  if (c->kv_heads != c->heads)
    return mlx_source_field_error(source, "num_key_value_heads", ".attention.head_count_kv", MLX_UNSUPPORTED,
                                  "differs from the number of query heads");
  return mlx_read_rope(source, &(mlx_rope_fields_t){0}, c, &c->rope);
}

static const char *const baichuan_types[] = {"baichuan", NULL};

const mlx_arch_t mlx_arch_baichuan = {
    .hf_types = baichuan_types,
    .gguf_types = baichuan_types,
    MLX_TENSORS(baichuan_tensors),
    .read_config = baichuan_read_config,
    .layer = mlx_llama_layer,
};
