// MPNet as an encoder: RoBERTa without token types, and with a bias of the scores by distance, which all
// layers share.
#include "models/shared/encoder.h"

#define LAYER "mpnet.encoder.layer.%d."
#define NO_GGUF "none"
#define PADDING_ROWS 2

static const mlx_tensor_rule_t mpnet_tensors[] = {
    MLX_MATRIX("mpnet.embeddings.word_embeddings.weight", NO_GGUF, MLX_DIM(vocab), MLX_DIM(hidden)),
    MLX_MATRIX("mpnet.embeddings.position_embeddings.weight", NO_GGUF, MLX_DIM(positions), MLX_DIM(hidden),
               .hf_row = mlx_row_after_padding, .fused_rows = MLX_DIM(position_rows)),
    MLX_ENCODER_NORM("mpnet.embeddings.LayerNorm", NO_GGUF),
    MLX_MATRIX("mpnet.encoder.relative_attention_bias.weight", NO_GGUF, MLX_DIM(distances), MLX_DIM(heads)),
    MLX_ENCODER_PRODUCT(LAYER "attention.attn.q", NO_GGUF, hidden, hidden),
    MLX_ENCODER_PRODUCT(LAYER "attention.attn.k", NO_GGUF, hidden, hidden),
    MLX_ENCODER_PRODUCT(LAYER "attention.attn.v", NO_GGUF, hidden, hidden),
    MLX_ENCODER_PRODUCT(LAYER "attention.attn.o", NO_GGUF, hidden, hidden),
    MLX_ENCODER_NORM(LAYER "attention.LayerNorm", NO_GGUF),
    MLX_ENCODER_PRODUCT(LAYER "intermediate.dense", NO_GGUF, ffn, hidden),
    MLX_ENCODER_PRODUCT(LAYER "output.dense", NO_GGUF, hidden, ffn),
    MLX_ENCODER_NORM(LAYER "output.LayerNorm", NO_GGUF),
    MLX_RULES_CLASS_HEAD("classifier.dense", "classifier.out_proj"),
};

static mlx_status_t mpnet_read_config(const mlx_source_t *source, mlx_config_t *c) {
  static const mlx_size_names_t names = {.encoder = true};
  bool found;
  MLX_TRY(mlx_read_act(source, "hidden_act", MLX_ACT_GELU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &names, true, c));
  MLX_TRY(mlx_read_positions(source, PADDING_ROWS, c));
  c->distances = 32;
  MLX_TRY(mlx_source_int(source, "relative_attention_num_buckets", NULL, 32, 32, &c->distances, &found));
  MLX_TRY(mlx_read_eps(source, "layer_norm_eps", NULL, c));
  return mlx_read_encoder(source, c);
}

static mlx_value_t mpnet_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  static const mlx_bert_names_t names = {.words = "mpnet.embeddings.word_embeddings",
                                         .positions = "mpnet.embeddings.position_embeddings",
                                         .norm = "mpnet.embeddings.LayerNorm",
                                         .q = LAYER "attention.attn.q",
                                         .k = LAYER "attention.attn.k",
                                         .v = LAYER "attention.attn.v",
                                         .o = LAYER "attention.attn.o",
                                         .attention_norm = LAYER "attention.LayerNorm",
                                         .up = LAYER "intermediate.dense",
                                         .down = LAYER "output.dense",
                                         .out_norm = LAYER "output.LayerNorm",
                                         .relative = "mpnet.encoder.relative_attention_bias"};
  return mlx_bert_forward(g, &model->config, &names, tokens);
}

static mlx_value_t mpnet_head(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t pooled) {
  (void)model;
  return mlx_class_head(g, "classifier.dense", false, "classifier.out_proj", pooled);
}

static const char *const mpnet_types[] = {"mpnet", NULL};
static const char *const mpnet_gguf_types[] = {NULL};
static const char *const mpnet_ignored[] = {"embeddings.position_ids", NULL};
static const char *const mpnet_unused[] = {"pooler.", "mpnet.pooler.", "lm_head.", NULL};

const mlx_arch_t mlx_arch_mpnet = {
    .hf_types = mpnet_types,
    .gguf_types = mpnet_gguf_types,
    MLX_TENSORS(mpnet_tensors),
    .ignored = mpnet_ignored,
    .unused = mpnet_unused,
    .read_config = mpnet_read_config,
    .forward = mpnet_forward,
    .head = mpnet_head,
};
