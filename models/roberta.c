// RoBERTa and XLM-RoBERTa as encoders: BERT with positions from 2 on. The first two rows of the table belong
// to padding.
#include "models/shared/encoder.h"

#define PADDING_ROWS 2

static const mlx_tensor_rule_t roberta_tensors[] = {
    MLX_RULES_BERT("roberta.", .hf_row = mlx_row_after_padding, .fused_rows = MLX_DIM(position_rows)),
    MLX_RULES_CLASS_HEAD("classifier.dense", "classifier.out_proj")};

static mlx_status_t roberta_read_config(const mlx_source_t *source, mlx_config_t *c) {
  int64_t padding = 1;
  bool found;
  MLX_TRY(mlx_source_int(source, "pad_token_id", NULL, 0, INT32_MAX, &padding, &found));
  if (padding != PADDING_ROWS - 1)
    return mlx_source_field_error(source, "pad_token_id", NULL, MLX_UNSUPPORTED,
                                  "is %lld; only 1 is supported: positions start after it",
                                  (long long)padding);
  return mlx_read_bert(source, PADDING_ROWS, c);
}

static mlx_value_t roberta_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  static const mlx_bert_names_t names = MLX_BERT_NAMES("roberta.");
  return mlx_bert_forward(g, &model->config, &names, tokens);
}

static mlx_value_t roberta_head(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t pooled) {
  (void)model;
  return mlx_class_head(g, "classifier.dense", false, "classifier.out_proj", pooled);
}

static const char *const roberta_types[] = {"roberta", "xlm-roberta", "camembert", NULL};
static const char *const roberta_gguf_types[] = {NULL};  // GGUF calls them bert
static const char *const roberta_ignored[] = {"embeddings.position_ids", NULL};
static const char *const roberta_unused[] = {"pooler.", "roberta.pooler.", "lm_head.", NULL};

const mlx_arch_t mlx_arch_roberta = {
    .hf_types = roberta_types,
    .gguf_types = roberta_gguf_types,
    MLX_TENSORS(roberta_tensors),
    .ignored = roberta_ignored,
    .unused = roberta_unused,
    .read_config = roberta_read_config,
    .forward = roberta_forward,
    .head = roberta_head,
};
