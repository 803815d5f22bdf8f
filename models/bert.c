// BERT as an encoder: learned positions, token types, layer norms after each sublayer, attention of whole
// texts.
#include "models/shared/encoder.h"

static const mlx_tensor_rule_t bert_tensors[] = {MLX_RULES_BERT("bert.", ),
                                                 MLX_RULES_CLASS_HEAD("bert.pooler.dense", "classifier")};

static mlx_status_t bert_read_config(const mlx_source_t *source, mlx_config_t *c) {
  return mlx_read_bert(source, 0, c);
}

static mlx_value_t bert_forward(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t tokens) {
  static const mlx_bert_names_t names = MLX_BERT_NAMES("bert.");
  return mlx_bert_forward(g, &model->config, &names, tokens);
}

static mlx_value_t bert_head(mlx_graph_t *g, const mlx_model_t *model, mlx_value_t pooled) {
  (void)model;
  return mlx_class_head(g, "bert.pooler.dense", false, "classifier", pooled);
}

static const char *const bert_types[] = {"bert", NULL};
static const char *const bert_ignored[] = {"embeddings.position_ids", NULL};
static const char *const bert_unused[] = {"pooler.", "bert.pooler.", "cls.", NULL};

const mlx_arch_t mlx_arch_bert = {
    .hf_types = bert_types,
    .gguf_types = bert_types,
    MLX_TENSORS(bert_tensors),
    .ignored = bert_ignored,
    .unused = bert_unused,
    .read_config = bert_read_config,
    .forward = bert_forward,
    .head = bert_head,
};
