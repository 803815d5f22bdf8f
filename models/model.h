// What a model is: the words shared by everything that reads, describes or lowers one.
//
//   source  the files as they are on disk (Hugging Face directory or GGUF): fields and tensors under the
//   names of that format arch    one architecture: which fields and tensors it has, under which names, and
//   how a layer is built model   a source read through its arch: one config, one list of tensors under
//   Hugging Face's names
//
// A model borrows tensor bytes from the mapped files of its source: nothing is widened or copied here.
#ifndef MLXCEL_MODELS_MODEL_H_
#define MLXCEL_MODELS_MODEL_H_

#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"
#include "graph/ops.h"
#include "models/import/packing.h"

#define MLX_MAX_RANK 4

// ----------------------------------------------------------------------------------------------------------
// Tensors

struct mlx_tensor {
  const char *name;  // borrowed from whoever holds the tensor
  mlx_dtype_t dtype;
  int rank;
  int64_t dims[MLX_MAX_RANK];  // outermost first: a matrix is [out, in], as Hugging Face stores it
  const uint8_t *data;         // borrowed from the mapped file; alignment is whatever the file has
  size_t size;  // bytes, already checked to be what dtype and dims say and to lie inside the file
};

// ----------------------------------------------------------------------------------------------------------
// Source: an opened model on disk (models/import/)

typedef struct mlx_source mlx_source_t;

// Opens a Hugging Face directory (config.json, model.safetensors or its shards with their index,
// tokenizer.json, generation_config.json) or a GGUF file, which may be any part of a split model whose other
// parts lie beside it. Maps the weights; nothing in them is read. Release with mlx_source_close.
mlx_status_t mlx_source_open(const char *path, mlx_source_t **out_source) MLX_MUST_USE;
void mlx_source_close(mlx_source_t *source);

bool mlx_source_is_gguf(const mlx_source_t *source);
const char *mlx_source_path(const mlx_source_t *source);          // as given to open; of . or .. the real one
const char *mlx_source_architecture(const mlx_source_t *source);  // model_type or general.architecture
// Every file that was read, for digests: config, tokenizer and weights. NULL past the last one.
const char *mlx_source_file(const mlx_source_t *source, size_t index);

// Fields, by the name each format has for one: |hf_key| in config.json, where a dot descends
// ("rope_parameters.rope_theta"), or |gguf_key| in the GGUF metadata, where a leading dot stands for the
// architecture (".block_count" is "llama.block_count"). Either may be NULL: the field does not exist in that
// format. |out_found| may be NULL, which makes the field required; otherwise it says whether the field was
// there, and *out is untouched when not.
mlx_status_t mlx_source_int(const mlx_source_t *source, const char *hf_key, const char *gguf_key, int64_t min,
                            int64_t max, int64_t *out, bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_source_number(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                               double *out, bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_source_bool(const mlx_source_t *source, const char *hf_key, const char *gguf_key, bool *out,
                             bool *out_found) MLX_MUST_USE;
mlx_status_t mlx_source_string(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                               const char **out, bool *out_found) MLX_MUST_USE;
// Elements of an array field: of config.json, and numbers or bools of GGUF metadata.
mlx_status_t mlx_source_number_at(const mlx_source_t *source, const char *hf_key, size_t index,
                                  double *out) MLX_MUST_USE;
mlx_status_t mlx_source_int_at(const mlx_source_t *source, const char *gguf_key, size_t index,
                               int64_t *out) MLX_MUST_USE;
mlx_status_t mlx_source_string_at(const mlx_source_t *source, const char *hf_key, size_t index,
                                  const char **out) MLX_MUST_USE;
// True when the field is there and not null, whatever its type.
bool mlx_source_has(const mlx_source_t *source, const char *hf_key, const char *gguf_key);
// True when config.json has the field, be it null: where Hugging Face's class means something by a field that
// is not there at all.
bool mlx_source_mentions(const mlx_source_t *source, const char *hf_key);
// Refuses a field of the architecture in GGUF metadata that nothing has asked for and that could change the
// maths: a call of any function above asks for its field. For whoever opens a model, after its config was
// read and before any other thread has the source.
mlx_status_t mlx_source_check_asked(const mlx_source_t *source) MLX_MUST_USE;
// Length of an array field, 0 when it is missing.
size_t mlx_source_array_length(const mlx_source_t *source, const char *hf_key, const char *gguf_key);
// An error about one field of this source, naming the file and the key of its format: "FILE: field 'KEY'
// WHAT".
mlx_status_t mlx_source_field_error(const mlx_source_t *source, const char *hf_key, const char *gguf_key,
                                    mlx_code_t code, const char *fmt, ...) MLX_PRINTF(5, 6) MLX_MUST_USE;

// The tensor of that name in this source's format, or NULL.
const mlx_tensor_t *mlx_source_tensor(const mlx_source_t *source, const char *hf_name, const char *gguf_name);
size_t mlx_source_tensor_count(const mlx_source_t *source);
const mlx_tensor_t *mlx_source_tensor_at(const mlx_source_t *source, size_t index);
// How the matrix |hf_name| of this shape is packed, or |stack| of them under one name (0: it is one); the
// kind is MLX_NOT_PACKED when it is one plain tensor, as always in GGUF. A config value that is not handled,
// and parts that are missing, misshapen or point outside one another, are errors.
mlx_status_t mlx_source_packing(const mlx_source_t *source, const char *hf_name, int64_t stack, int64_t rows,
                                int64_t columns, mlx_packing_t *out_packing) MLX_MUST_USE;

// The tokenizer as Hugging Face's tokenizer.json: the file's own, or written from GGUF metadata. Release with
// mlx_free.
mlx_status_t mlx_source_tokenizer_json(const mlx_source_t *source, char **out_json,
                                       size_t *out_length) MLX_MUST_USE;
// The model's chat templates and the special tokens they may name, as chat.json (runtime/chat.c); *|out_json|
// is NULL when it has neither. Release with mlx_free.
mlx_status_t mlx_source_chat_json(const mlx_source_t *source, char **out_json,
                                  size_t *out_length) MLX_MUST_USE;
// Calls |visit| with the files of a directory that those come from, by their names in it; in GGUF they are in
// the file itself.
mlx_status_t mlx_source_chat_files(const mlx_source_t *source, mlx_visit_fn_t visit, void *user) MLX_MUST_USE;
// Token ids that end a text: generation_config.json's or config.json's eos_token_id (an int or a list), or
// GGUF's tokenizer.ggml.eos_token_id (and eot). Writes at most |capacity| ids.
mlx_status_t mlx_source_eos_ids(const mlx_source_t *source, int32_t *out_ids, size_t capacity,
                                size_t *out_count) MLX_MUST_USE;
// What the model says of its licence ("apache-2.0"), as far as that is a word; else "".
mlx_status_t mlx_source_licence(const mlx_source_t *source, char *out, size_t size) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Model: a source seen through its architecture

#define MLX_MAX_LAYERS 1024
// What any architecture may have; one that has no use for a field leaves it 0.
typedef struct mlx_config {
  int64_t layers;
  int64_t hidden;    // width of the residual stream
  int64_t ffn;       // width inside the MLP
  int64_t heads;     // query heads
  int64_t kv_heads;  // key and value heads; divides heads
  int64_t head_dim;
  int64_t vocab;
  int64_t context;  // positions the model was made for
  double norm_eps;
  bool tied_head;  // the LM head is the embedding table

  int64_t qkv_width;      // heads * head_dim of queries, keys and values together, where they are one tensor
  int64_t gate_up_width;  // 2 * ffn
  int64_t experts, experts_used;   // of a layer, and by a token
  int64_t expert_ffn, shared_ffn;  // width inside one, and inside the one that all tokens use
  int64_t one;                     // 1: the extent of a matrix with one row
  bool experts_sum_to_one;         // the weights of the used ones do
  double gate_limit, gate_slope;   // of experts, as in mlx_experts_t
  mlx_act_t act;
  mlx_rope_t rope;
  mlx_rope_t
      local_rope;  // of layers with a window, where they have their own; of short contexts, for longrope
  int64_t local_context;          // positions up to which a longrope is the short one
  bool ropeless[MLX_MAX_LAYERS];  // layers that do not turn their heads
  int64_t window;                 // positions a query of a windowed layer sees
  bool windowed[MLX_MAX_LAYERS];
  double attention_scale;                   // of the scores
  double attention_softcap, logit_softcap;  // 0: none
  double growth;                            // of queries with their position, and every how many positions
  int64_t growth_period;
  double clip;  // q, k and v are held within [-clip, clip]; 0: they are not
  double embed_scale, residual_scale, logit_scale;  // factors
  bool q_bias, kv_bias, o_bias, mlp_bias;
  bool sinks;     // every head has a score that takes weight and gives nothing
  bool qk_norm;   // queries and keys are normalised
  bool parallel;  // attention and MLP read the same input
} mlx_config_t;

// Rows whose order a format changes. GGUF stores q and k of some architectures with each head's two rope
// halves interleaved; reading undoes it.
typedef enum mlx_row_order {
  MLX_ROWS_AS_STORED = 0,
  MLX_ROWS_INTERLEAVED_HALVES,  // stored row 2i+s of a head is row s*head_dim/2+i
  MLX_ROWS_QKV_BY_HEAD,  // fused q, k and v of as many heads: stored head by head, wanted all q, all k, all v
  MLX_ROWS_ARE_COLUMNS,  // a matrix stored [in, out], or one of each expert
} mlx_row_order_t;

// Which rows of a tensor a weight is, where the tensor is two weights: a half of those of each expert.
typedef enum mlx_half {
  MLX_WHOLE = 0,
  MLX_FIRST_HALF,
  MLX_SECOND_HALF,
  MLX_EVEN_HALF,
  MLX_ODD_HALF,
} mlx_half_t;

// One tensor of an architecture under its names in each format. "%d" stands for the layer; a name without it
// is there once.
typedef struct mlx_tensor_rule {
  const char *hf_name;
  const char *gguf_name;
  int rank;
  uint32_t dims[MLX_MAX_RANK];                  // extents in terms of the config: MLX_DIM or MLX_HEADS
  bool (*present)(const mlx_config_t *config);  // NULL: always
  mlx_row_order_t gguf_order, hf_order;         // how each format stores the rows
  const char *hf_stored;  // where Hugging Face has the weight in a tensor of another name than ours
  mlx_half_t hf_half;     // and which part of it: of the second dimension
  bool hf_stacked;        // Hugging Face has a tensor for each index of the first dimension: "%e"
  const char *mlx_name;   // where MLX's directories have all of those in one
  double hf_less;         // Hugging Face stores the values less this (1 + weight of some norms)
} mlx_tensor_rule_t;

// For the dims of a rule: a field of the config, or so many heads.
// As offsets of its int64_t fields: of the extent, and in the upper half of a factor (0: none).
#define MLX_DIM(name) ((uint32_t)offsetof(mlx_config_t, name))
#define MLX_HEADS(name) (MLX_DIM(name) | MLX_DIM(head_dim) << 16)
// Rules; what comes after the dims are fields by their names.
#define MLX_VECTOR(hf, gguf, extent, ...) \
  {.hf_name = hf, .gguf_name = gguf, .rank = 1, .dims = {extent}, __VA_ARGS__}
#define MLX_EXPERTS(hf, gguf, rows, columns, ...) \
  {.hf_name = hf, .gguf_name = gguf, .rank = 3, .dims = {MLX_DIM(experts), rows, columns}, __VA_ARGS__}
#define MLX_MATRIX(hf, gguf, rows, columns, ...) \
  {.hf_name = hf, .gguf_name = gguf, .rank = 2, .dims = {rows, columns}, __VA_ARGS__}

typedef struct mlx_weight {
  char *name;           // owned; Hugging Face's name, also the parameter's name in the compiled module
  mlx_tensor_t tensor;  // bytes as stored; of a packed matrix its codes, under the dims of the matrix itself
  mlx_packing_t packing;  // what else it is stored as; its kind is MLX_NOT_PACKED for most
  mlx_row_order_t order;
  int64_t order_head_dim;        // rows per head, when order asks for it
  mlx_half_t half;               // of the tensor, whose size is then that of the half
  double plus;                   // to be added to every value
  const mlx_tensor_t **parts;    // owned: the tensors it is stacked from, dims[0] of them; NULL: it is one
  mlx_packing_t *part_packings;  // owned: how each of them is packed; NULL: they are not
} mlx_weight_t;

typedef struct mlx_model mlx_model_t;

// One architecture: a const of this type named mlx_arch_NAME in models/NAME.c. The build finds the files;
// there is no list.
typedef struct mlx_arch {
  const char *const *hf_types;                // config.json model_type values, NULL-terminated
  const char *const *gguf_types;              // general.architecture values, NULL-terminated
  bool (*takes)(const mlx_source_t *source);  // GGUF files that share a name: true for one architecture only;
                                              // NULL: all of them
  const mlx_tensor_rule_t *tensors;
  size_t tensor_count;
  const char *const
      *ignored;  // ends of names of tensors that hold nothing learned, NULL-terminated; may be NULL
  const char *const
      *unused;  // starts of names of tensors that decoding one token after the other has no use for; likewise
  mlx_status_t (*read_config)(const mlx_source_t *source, mlx_config_t *out_config);
  // The network in the words of graph/ops.h: token ids [M] in, hidden states after the last norm [M, hidden]
  // out; and the LM head: hidden states of the rows' last tokens in, logits [rows, vocab] out.
  mlx_value_t (*forward)(mlx_graph_t *graph, const mlx_model_t *model, mlx_value_t tokens);
  mlx_value_t (*head)(mlx_graph_t *graph, const mlx_model_t *model, mlx_value_t hidden);
} mlx_arch_t;

struct mlx_model {
  const mlx_arch_t *arch;
  mlx_config_t config;
  mlx_source_t *source;   // owned
  mlx_weight_t *weights;  // owned, in the order of the arch's table, layer by layer
  size_t weight_count;
};

// Opens |path| and reads it through its architecture: every field and shape is checked here. Release with
// mlx_model_close.
mlx_status_t mlx_model_open(const char *path, mlx_model_t **out_model) MLX_MUST_USE;
void mlx_model_close(mlx_model_t *model);

#endif  // MLXCEL_MODELS_MODEL_H_
