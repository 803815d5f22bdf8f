// The list of encoders. Their directories often have I64 tensors and no tokenizer.json, so other errors would
// be found first and hide the reason.
#include "models/import/encoder.h"

#include <string.h>

static const char *const encoders[] = {
    // model_type of Hugging Face
    "albert", "big_bird", "convbert", "data2vec-text", "deberta", "deberta-v2", "electra", "ernie", "esm",
    "flaubert", "fnet", "ibert", "jina_bert", "longformer", "luke", "megatron-bert", "mobilebert", "neobert",
    "nystromformer", "rembert", "roberta-prelayernorm", "roformer", "splinter", "squeezebert",
    "xlm-roberta-xl", "xmod",
    // general.architecture of GGUF
    "jina-bert-v2", "jina-bert-v3", "neo-bert", "nomic-bert-moe", "t5encoder", NULL};

mlx_status_t mlx_encoder_refuse(const char *path, const char *type) {
  const char *const *name = encoders;
  while (*name && strcmp(*name, type)) ++name;
  if (!*name) return NULL;
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED,
                                   "'%s' is a %s model: an encoder, which computes embeddings. mlxcel does "
                                   "not support this encoder yet",
                                   path, type),
                         "encoders that mlxcel supports: bert, distilbert, eurobert, gte, modernbert, mpnet, "
                         "nomic_bert, roberta, "
                         "xlm-roberta");
}
