// DistilBERT as an encoder: BERT without token types, with names of its own.
#include "models/shared/encoder.h"

#define LAYER "distilbert.transformer.layer.%d."
#define NO_GGUF "none"  // GGUF files call it bert

static const mlx_tensor_rule_t distilbert_tensors[] = {
    MLX_MATRIX("distilbert.embeddings.word_embeddings.weight", NO_GGUF, MLX_DIM(vocab), MLX_DIM(hidden)),
    MLX_MATRIX("distilbert.embeddings.position_embeddings.weight", NO_GGUF, MLX_DIM(positions),
               MLX_DIM(hidden)),
    MLX_ENCODER_NORM("distilbert.embeddings.LayerNorm", NO_GGUF),
    MLX_ENCODER_PRODUCT(LAYER "attention.q_lin", NO_GGUF, hidden, hidden),
    MLX_ENCODER_PRODUCT(LAYER "attention.k_lin", NO_GGUF, hidden, hidden),
    MLX_ENCODER_PRODUCT(LAYER "attention.v_lin", NO_GGUF, hidden, hidden),
    MLX_ENCODER_PRODUCT(LAYER "attention.out_lin", NO_GGUF, hidden, hidden),
    MLX_ENCODER_NORM(LAYER "sa_layer_norm", NO_GGUF),
    MLX_ENCODER_PRODUCT(LAYER "ffn.lin1", NO_GGUF, ffn, hidden),
    MLX_ENCODER_PRODUCT(LAYER "ffn.lin2", NO_GGUF, hidden, ffn),
    MLX_ENCODER_NORM(LAYER "output_layer_norm", NO_GGUF),
    MLX_RULES_CLASS_HEAD("pre_classifier", "classifier"),
};

static mlx_status_t distilbert_read_config(const mlx_source_t *source, mlx_config_t *c) {
  static const mlx_size_names_t names = {.layers = "n_layers",
                                         .hidden = "dim",
                                         .ffn = "hidden_dim",
                                         .heads = "n_heads",
                                         .kv_heads = "n_heads",
                                         .encoder = true};
  MLX_TRY(mlx_read_act(source, "activation", MLX_ACT_GELU, &c->act));
  MLX_TRY(mlx_read_sizes(source, &names, true, c));
  MLX_TRY(mlx_read_positions(source, 0, c));
  c->norm_eps = 1e-12;
  return mlx_read_encoder(source, c);
}

static mlx_value_t distilbert_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  static const mlx_bert_names_t names = {.words = "distilbert.embeddings.word_embeddings",
                                         .positions = "distilbert.embeddings.position_embeddings",
                                         .norm = "distilbert.embeddings.LayerNorm",
                                         .q = LAYER "attention.q_lin",
                                         .k = LAYER "attention.k_lin",
                                         .v = LAYER "attention.v_lin",
                                         .o = LAYER "attention.out_lin",
                                         .attention_norm = LAYER "sa_layer_norm",
                                         .up = LAYER "ffn.lin1",
                                         .down = LAYER "ffn.lin2",
                                         .out_norm = LAYER "output_layer_norm"};
  return mlx_bert_forward(g, &model->config, &names, tokens);
}

static mlx_value_t distilbert_head(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t pooled) {
  (void)model;
  return mlx_class_head(g, "pre_classifier", true, "classifier", pooled);
}

static const char *const distilbert_types[] = {"distilbert", NULL};
static const char *const distilbert_gguf_types[] = {NULL};
static const char *const distilbert_ignored[] = {"embeddings.position_ids", NULL};
static const char *const distilbert_unused[] = {"vocab_", NULL};  // the head of the language model

const mlx_arch_t mlx_arch_distilbert = {
    .hf_types = distilbert_types,
    .gguf_types = distilbert_gguf_types,
    MLX_TENSORS(distilbert_tensors),
    .ignored = distilbert_ignored,
    .unused = distilbert_unused,
    .read_config = distilbert_read_config,
    .forward = distilbert_forward,
    .head = distilbert_head,
};
