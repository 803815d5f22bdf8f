// The text model of a multimodal directory (gemma3, qwen2_5_vl, mistral3, …): its fields are in text_config,
// its tensors have a longer name, and the class of text_config fills in fields that the file omits. The
// tensors of the vision encoder are skipped by name. Text needs none of them.
//
// The Qwen models rotate three sections of a head by three positions (time, height, width). The three are
// equal for a text token, so this is the plain rope.
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "models/import/hf.h"

// ----------------------------------------------------------------------------------------------------------
// Fields

typedef struct family {
  const char *type;       // model_type of the directory
  const char *text_type;  // model_type of its text_config, if the file has none
  bool may_be_flat;       // older files have the fields of the text model beside vision_config
} family_t;

static const family_t families[] = {
    {.type = "gemma3", .text_type = "gemma3_text"},
    {.type = "gemma3n", .text_type = "gemma3n_text"},
    {.type = "gemma4", .text_type = "gemma4_text"},
    {.type = "gemma4_unified", .text_type = "gemma4_unified_text"},
    {.type = "qwen2_vl", .text_type = "qwen2_vl_text", .may_be_flat = true},
    {.type = "qwen2_5_vl", .text_type = "qwen2_5_vl_text", .may_be_flat = true},
    {.type = "qwen3_vl", .text_type = "qwen3_vl_text"},
    {.type = "qwen3_5", .text_type = "qwen3_5_text"},
    {.type = "qwen3_5_moe", .text_type = "qwen3_5_moe_text"},
    {.type = "muse_glimmer", .text_type = "muse_glimmer_text"},
    {.type = "mistral3", .text_type = "mistral"},
    {.type = "llava", .text_type = "llama"},
    {.type = "llava_next", .text_type = "llama"},
    {.type = "llava_onevision", .text_type = "qwen2"},
    {.type = "idefics3", .text_type = "llama"},
    {.type = "smolvlm", .text_type = "llama"},
    {0},
};

// Defaults of Hugging Face's classes for fields that mlxcel requires or that differ from those of |arch|.
// tests/goldens/text_defaults.json has the values of transformers. A nested default applies only if the whole
// object is missing.
typedef struct text_type {
  const char *type;  // model_type of text_config
  const char *arch;  // the architecture that reads it
  const char *defaults;
} text_type_t;

#define QWEN2_VL_DEFAULTS                                                                    \
  "{\"vocab_size\": 152064, \"hidden_size\": 8192, \"intermediate_size\": 29568,"            \
  " \"num_hidden_layers\": 80, \"num_attention_heads\": 64, \"num_key_value_heads\": 8,"     \
  " \"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-05, \"max_window_layers\": 80," \
  " \"rope_parameters\": {\"rope_theta\": 1000000.0}}"

static const text_type_t text_types[] = {
    {"gemma3_text", "gemma3_text",
     "{\"vocab_size\": 262208, \"hidden_size\": 2304, \"intermediate_size\": 9216,"
     " \"num_hidden_layers\": 26, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 256,"
     " \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-06, \"query_pre_attn_scalar\": 256}"},
    {"gemma3n_text", "gemma3n_text",
     "{\"vocab_size\": 262400, \"hidden_size\": 2048, \"num_hidden_layers\": 35, \"num_attention_heads\": 8,"
     " \"num_key_value_heads\": 2, \"head_dim\": 256, \"max_position_embeddings\": 32768,"
     " \"rms_norm_eps\": 1e-06}"},
    {"gemma4_text", "gemma4_text",
     "{\"vocab_size\": 262144, \"hidden_size\": 2304, \"intermediate_size\": 9216,"
     " \"num_hidden_layers\": 30, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 256,"
     " \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-06}"},
    {"gemma4_unified_text", "gemma4_unified_text",
     "{\"vocab_size\": 262144, \"hidden_size\": 2304, \"intermediate_size\": 9216,"
     " \"num_hidden_layers\": 30, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 256,"
     " \"max_position_embeddings\": 262144, \"rms_norm_eps\": 1e-06}"},
    {"qwen2_vl_text", "qwen2", QWEN2_VL_DEFAULTS},
    {"qwen2_5_vl_text", "qwen2", QWEN2_VL_DEFAULTS},
    {"qwen3_vl_text", "qwen3",
     "{\"vocab_size\": 151936, \"hidden_size\": 4096, \"intermediate_size\": 22016,"
     " \"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 32,"
     " \"head_dim\": 128, \"max_position_embeddings\": 128000, \"rms_norm_eps\": 1e-06,"
     " \"rope_parameters\": {\"rope_theta\": 500000.0}}"},
    {"qwen3_5_text", "qwen3_5_text",
     "{\"vocab_size\": 248320, \"hidden_size\": 4096, \"intermediate_size\": 12288,"
     " \"num_hidden_layers\": 32, \"num_attention_heads\": 16, \"num_key_value_heads\": 4,"
     " \"head_dim\": 256, \"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-06}"},
    {"qwen3_5_moe_text", "qwen3_5_moe_text",
     "{\"vocab_size\": 248320, \"hidden_size\": 2048, \"num_hidden_layers\": 40,"
     " \"num_attention_heads\": 16, \"num_key_value_heads\": 2, \"head_dim\": 256,"
     " \"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-06, \"num_experts\": 256,"
     " \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 512,"
     " \"shared_expert_intermediate_size\": 512}"},
    {"muse_glimmer_text", "muse_glimmer_text",
     "{\"vocab_size\": 202048, \"hidden_size\": 6656, \"intermediate_size\": 19968,"
     " \"num_hidden_layers\": 52, \"num_attention_heads\": 32, \"num_key_value_heads\": 2, \"head_dim\": 128,"
     " \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-05}"},
    {"llama", "llama",
     "{\"vocab_size\": 32000, \"hidden_size\": 4096, \"intermediate_size\": 11008,"
     " \"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"max_position_embeddings\": 2048,"
     " \"rms_norm_eps\": 1e-06}"},
    {"mistral", "mistral",
     "{\"vocab_size\": 32000, \"hidden_size\": 4096, \"intermediate_size\": 14336,"
     " \"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8,"
     " \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-06}"},
    {"qwen2", "qwen2",
     "{\"vocab_size\": 151936, \"hidden_size\": 4096, \"intermediate_size\": 22016,"
     " \"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 32,"
     " \"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-06}"},
    {0},
};

const char *mlx_hf_text_defaults(const char *text_type) {
  for (const text_type_t *known = text_types; known->type; ++known) {
    if (!strcmp(known->type, text_type)) return known->defaults;
  }
  return NULL;
}

static const family_t *find_family(const char *type) {
  for (const family_t *family = families; family->type; ++family) {
    if (!strcmp(family->type, type)) return family;
  }
  return NULL;
}

// Its text model without an image skips every fifth layer, which no architecture of models/ does.
static mlx_status_t refuse_cross_attention(const mlx_hf_t *hf) {
  if (strcmp(hf->architecture, "mllama")) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED,
                "%s: field 'model_type' is 'mllama', whose cross-attention layers are unsupported",
                hf->config.name),
      "use the text model of the same family: Llama 3.1 8B or 70B");
}

mlx_status_t mlx_hf_select_text(mlx_hf_t *hf) {
  MLX_TRY(refuse_cross_attention(hf));
  const family_t *family = find_family(hf->architecture);
  hf->fields = hf->config.root;
  if (!family) return NULL;
  yyjson_val *text = mlx_json_find(hf->config.root, "text_config");
  if (!yyjson_is_obj(text) && (text || !family->may_be_flat))
    return mlx_json_error(&hf->config, "text_config", "must be an object with the fields of the text model");
  hf->multimodal = hf->architecture;
  const char *type = family->text_type;
  if (text) {
    hf->fields = text;
    MLX_TRY(mlx_json_string_or(&hf->config, text, "model_type", type, &type));
    if (!strcmp(type, family->type)) type = family->text_type;
  }
  hf->architecture = type;
  for (const text_type_t *known = text_types; known->type; ++known) {
    if (strcmp(known->type, type)) continue;
    hf->architecture = known->arch;
    return mlx_json_parse("the defaults of text_config", known->defaults, strlen(known->defaults),
                          &hf->defaults);
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Tensors

bool mlx_hf_text_name(const char *stored, mlx_text_t *out_name) {
  static const struct {
    const char *stored, *name;
  } renamed[] = {{"language_model.model.", "model."},
                 {"language_model.lm_head.", "lm_head."},
                 {"model.language_model.", "model."},
                 {"model.text_model.", "model."}};
  static const char *const vision[] = {"vision_tower.",   "vision_model.",          "visual.",
                                       "connector.",      "multi_modal_projector.", "image_newline",
                                       "embed_vision.",   "audio_tower.",           "embed_audio.",
                                       "vision_adapter.", "vision_projection."};
  const char *inner = !strncmp(stored, "model.", 6) ? stored + 6 : stored;
  out_name->length = 0;
  for (size_t i = 0; i < sizeof vision / sizeof *vision; ++i) {
    if (!strncmp(inner, vision[i], strlen(vision[i]))) return false;
  }
  for (size_t i = 0; i < sizeof renamed / sizeof *renamed; ++i) {
    const size_t length = strlen(renamed[i].stored);
    if (strncmp(stored, renamed[i].stored, length)) continue;
    mlx_text_puts(out_name, renamed[i].name);
    mlx_text_puts(out_name, stored + length);
    return true;
  }
  mlx_text_puts(out_name, stored);
  return true;
}

// Moves the tensor to the kept ones under its new name, or to the skipped ones.
static mlx_status_t sort_tensor(mlx_hf_t *hf, const mlx_tensor_t *tensor, mlx_text_t *name) {
  if (!mlx_hf_text_name(tensor->name, name)) {
    hf->skipped[hf->skipped_count++] = tensor->name;
    return NULL;
  }
  MLX_TRY(mlx_text_finish(name));
  mlx_tensor_t *renamed = &hf->renamed[hf->tensor_count];
  *renamed = *tensor;
  MLX_TRY(mlx_copy_text(name->data ? name->data : "", name->length, &hf->names[hf->tensor_count]));
  renamed->name = hf->names[hf->tensor_count];
  hf->tensors[hf->tensor_count++] = renamed;
  return NULL;
}

mlx_status_t mlx_hf_select_text_tensors(mlx_hf_t *hf) {
  const size_t count = hf->tensor_count;
  mlx_text_t name = {0};
  if (!hf->multimodal || !count) return NULL;
  MLX_TRY(mlx_alloc(count, sizeof *hf->renamed, &hf->renamed));
  MLX_TRY(mlx_alloc(count, sizeof *hf->names, &hf->names));
  MLX_TRY(mlx_alloc(count, sizeof *hf->skipped, &hf->skipped));
  hf->name_count = count;
  hf->tensor_count = 0;
  mlx_status_t status = NULL;
  for (size_t i = 0; i < count && !status; ++i) status = sort_tensor(hf, hf->tensors[i], &name);
  mlx_text_clear(&name);
  if (status) return status;
  qsort(hf->tensors, hf->tensor_count, sizeof *hf->tensors, mlx_tensor_compare);
  for (size_t i = 1; i < hf->tensor_count; ++i) {
    if (!strcmp(hf->tensors[i - 1]->name, hf->tensors[i]->name))
      return mlx_error(MLX_INVALID_INPUT, "%s: tensor '%s' of the text model is stored under two names",
                       hf->folder, hf->tensors[i]->name);
  }
  return NULL;
}
