// Manifest: the metadata of a bundle (manifest.json). The compiler writes it; the runtime reads it before any
// other file.
#ifndef MLXCEL_ARTIFACT_MANIFEST_H_
#define MLXCEL_ARTIFACT_MANIFEST_H_

#include <stdint.h>

#include "base/digest.h"
#include "base/prompt.h"
#include "base/status.h"
#include "kernels/step.h"

// A bundle (.mlxb) is a folder with these files, or one uncompressed tar archive of them (artifact/bundle.h).
// It also contains the model's own LICENSE*, NOTICE*, COPYING* and USE_POLICY* files.
#define MLX_BUNDLE_MANIFEST "manifest.json"
#define MLX_BUNDLE_SIGNATURE "manifest.json.minisig"  // only in a signed bundle
// With several targets the modules are model.TARGET.vmfb; a portable target has one model.LEVEL.vmfb per
// level.
#define MLX_BUNDLE_VMFB "model.vmfb"
// If targets need different weight layouts, there are also weights.2.irpa and so on.
#define MLX_BUNDLE_WEIGHTS "weights.irpa"
#define MLX_BUNDLE_TOKENIZER "tokenizer.json"
#define MLX_BUNDLE_CHAT "chat.json"  // only if the model has a chat template or special tokens

#define MLX_BUNDLE_FORMAT "mlxcel-bundle"
#define MLX_MAX_MANIFEST (1u << 20)  // bytes

// Context length that the runtime chooses for a model that supports more.
#define MLX_DEFAULT_CONTEXT 8192
#define MLX_MAX_SEQUENCES 4096
#define MLX_MAX_STEP 65536  // largest N of a step_N function
#define MLX_MAX_BUCKETS 8
#define MLX_MAX_EOS 16
#define MLX_MAX_ROUTES 16384  // layers times experts of a token
#define MLX_MAX_KERNELS 16
#define MLX_MAX_FORMATS 16
#define MLX_MAX_OPS 48
#define MLX_MAX_LEVELS 8
#define MLX_MAX_TARGETS 8
#define MLX_MAX_LICENCES 8
#define MLX_TARGET_PORTABLE "cpu:portable"
// Maximum number of files that a manifest lists: all bundle files except the manifest and its signature.
#define MLX_MAX_BUNDLE_FILES (2 + MLX_MAX_LICENCES + MLX_MAX_LEVELS + 2 * MLX_MAX_TARGETS)
#define MLX_BUNDLE_NAME 48  // bytes of a file name, with its NUL

// A listed file of the bundle. Size and digest are checked after a download and before use.
typedef struct mlx_bundle_file {
  char name[MLX_BUNDLE_NAME];  // one of the names above
  int64_t size;                // bytes
  char sha256[MLX_DIGEST_HEX];
  char tree[MLX_DIGEST_HEX];  // tree digest (base/digest.h) of a weights archive; empty for other files and
                              // in bundles of older compilers
} mlx_bundle_file_t;

// Ops of one kind that take the same path.
typedef struct mlx_variant_op {
  char op[16];                   // "linear", "attention"
  char decode[16], prefill[16];  // the kernel that computes them: "decode", "linear"; or "generic"
  int64_t count;
  int64_t bytes;  // weights that they read per token; for attention, keys and values per position
} mlx_variant_op_t;

// A function step_N: N tokens, of which at most W are wanted (kernels/step.h).
typedef struct mlx_step_size {
  int64_t tokens, wanted;
} mlx_step_size_t;

// Code for one target.
typedef struct mlx_variant {
  char target[64];           // "cpu:host", "cpu:x86-64-v3", "cpu:portable", "cuda:sm_90"
  char cpu[MLX_DIGEST_HEX];  // for cpu:host, mlx_cpu_identity of the compiling machine; otherwise empty
  char dtype[16];            // of weights: "f32", "bf16", "f16", "quantized", "q4_1"
  char formats[MLX_MAX_FORMATS][16];  // of the weights in the archive, the one with the most bytes first:
  size_t format_count;                // "Q4_K", "F32"; none in bundles of older compilers
  char kv[8];                         // of the KV cache: "f32", "bf16", "f16", "q8"
  char activations[8];                // "f32", or the 16-bit dtype that prefill rounds them to
  char module[MLX_BUNDLE_NAME];   // file with the code; unused by a portable target, which has one per level
  char weights[MLX_BUNDLE_NAME];  // the weights archive that the code was compiled for
  mlx_step_size_t steps[MLX_MAX_BUCKETS];  // the step_N functions, N ascending
  size_t step_count;
  int64_t burst;    // most tokens of the function burst: MLX_BURST_TOKENS; 0: there is none
  bool ragged;      // a step takes several segments; false: one, and functions have the argument chunks
  bool samples;     // steps sample on the device; false: the host samples from the logits
  bool fixed_rows;  // arguments have fixed first dimensions (kernels/step.h); false: any
  int64_t chunk_positions;    // positions in a chunk of generic attention; 0 if there is none
  int64_t page_bytes;         // one page of the KV pool: the layers that window pages do not have
  int64_t window_page_bytes;  // one window page: the layers with a sliding window; 0: there are none
  int64_t recurrent_bytes;    // the recurrent state of one sequence; 0: the network has no recurrent layer
  int64_t kv_row;             // innermost dimension of the KV pool, whose dtype is |kv|; 0: a vector of i32
  int64_t hidden;             // hidden size
  // A step can report the experts of each token (kernels/step.h): |route_used| in each of |route_layers|
  // layers; 0: it cannot.
  int64_t route_layers, route_used;
  char kernels[MLX_MAX_KERNELS][16];  // linked kernels: "decode", "linear"; other ops use the generic path
  size_t kernel_count;
  char kernels_digest[MLX_DIGEST_HEX];  // over the kernels' sources and definitions, or their objects; empty
                                        // without kernels
  mlx_variant_op_t ops[MLX_MAX_OPS];    // empty in bundles of older compilers
  size_t op_count;
  char levels[MLX_MAX_LEVELS][16];  // CPU levels with a module; only for cpu:portable; ascending within one
                                    // architecture
  size_t level_count;
  int64_t driver;       // CUDA version that the kernels need from the driver: 13000 is 13.0; 0 if the
                        // target's own minimum is enough
  int64_t state_bytes;  // device memory of the module's own variables (scratch); 0 if unknown
  int64_t step_bytes;   // device memory of the values of the largest step, an estimate; 0 if unknown, or a
                        // part of |state_bytes|
  int64_t kv_bytes;     // bytes of keys and values per position, all layers; 0 if unknown
  int64_t window;       // sliding window: positions that a token sees in the layers of window pages, in the
                        // layer that sees the most. Without window pages, in all layers. 0: a layer sees all
} mlx_variant_t;

#define MLX_MAX_MANIFEST_ROW 16384

// How an embedding model makes vectors of texts.
typedef struct mlx_manifest_embedding {
  char pooling[8];  // "mean", "cls", "last" or "max"; empty: a decoder without such settings
  bool encoder;     // it computes whole texts and generates no tokens
  bool normalize;   // vectors have the Euclidean norm 1
  int64_t labels;   // scores of a text, instead of a vector; 0: none
  bool sigmoid;     // a score is the sigmoid of what the module computes
  bool typed;       // the second text of a pair has token type 1: IDs after the vocabulary (layout.h)
  bool headless;    // a decoder without an LM head: it generates no tokens either
  // Of a decoder with |labels| 1: what its last hidden state is multiplied by. Empty: it has no class head.
  float score_row[MLX_MAX_MANIFEST_ROW];
  size_t score_size;       // the hidden size
  bool generation_prompt;  // its chat template is rendered with add_generation_prompt
  mlx_named_prompt_t prompts[MLX_MODEL_PROMPTS];
  size_t prompt_count;
  char default_prompt[MLX_MAX_PROMPT_NAME];  // a name of |prompts|: used if none is chosen; empty: none
  char similarity[12];  // how vectors are compared: "cosine", "dot", "euclidean", "manhattan"; empty: cosine
} mlx_manifest_embedding_t;

// The prompt |name|; NULL if there is none. Without a prompt "document", the one named "passage" or "corpus"
// stands for it.
const char *mlx_manifest_prompt(const mlx_manifest_embedding_t *embedding, const char *name);

typedef struct mlx_manifest {
  int64_t contract;
  char iree[16];       // IREE version that the modules need: "3.13"; empty if unknown
  char compiler[128];  // iree-compile's version
  char compiler_digest[MLX_DIGEST_HEX];
  char architecture[64];
  char source[256];                    // file name of the model it was compiled from
  char source_digest[MLX_DIGEST_HEX];  // SHA-256 of the file; for several files, SHA-256 of the output of
                                       // `sha256sum` on them; empty if unknown
  char license[64];                    // licence that the model declares ("apache-2.0"); empty if none
  int64_t vocab;
  int64_t parameters;        // values of all weights; 0 if unknown
  int64_t context;           // longest text that the code supports, in positions
  int32_t eos[MLX_MAX_EOS];  // end-of-text tokens
  size_t eos_count;
  mlx_manifest_embedding_t embedding;
  mlx_variant_t variants[MLX_MAX_TARGETS];  // at least one; targets are unique
  size_t variant_count;
  mlx_bundle_file_t files[MLX_MAX_BUNDLE_FILES];  // empty in bundles of older compilers
  size_t file_count;
} mlx_manifest_t;

// Writes the manifest as JSON text; release with mlx_free.
mlx_status_t mlx_manifest_write(const mlx_manifest_t *manifest, char **out_json,
                                size_t *out_length) MLX_MUST_USE;
// Reads and checks a manifest. |name| appears in error messages. Fails on another contract version.
mlx_status_t mlx_manifest_read(const char *name, const char *json, size_t length,
                               mlx_manifest_t *out_manifest) MLX_MUST_USE;
// The fields that are read from a manifest of any contract version: enough to explain why it is refused and
// how to compile it again.
typedef struct mlx_manifest_origin {
  int64_t contract;  // -1 if missing
  char iree[16], source[256], source_digest[MLX_DIGEST_HEX];
  char targets[MLX_MAX_TARGETS * 66];  // "cuda:sm_90,cpu:portable", the syntax of --target
} mlx_manifest_origin_t;
mlx_manifest_origin_t mlx_manifest_origin(const char *json, size_t length);
// Sets the hint of |status|: the command that compiles the model again.
mlx_status_t mlx_manifest_hint_recompile(mlx_status_t status,
                                         const mlx_manifest_origin_t *origin) MLX_MUST_USE;

// Fails if the manifest lists no files: a download could not be checked.
mlx_status_t mlx_manifest_require_files(const mlx_manifest_t *manifest) MLX_MUST_USE;
// Returns the entry of file |name|, borrowed, or NULL.
const mlx_bundle_file_t *mlx_manifest_file(const mlx_manifest_t *manifest, const char *name);

// True unless file |name| is code or weights that only other targets need.
bool mlx_manifest_needs(const mlx_manifest_t *manifest, const char *target, const char *name);

// File name of a module: "model.x86-64-v3.vmfb" for a level, "model.cuda-sm_90.vmfb" for a target,
// "model.vmfb" for NULL.
typedef struct mlx_module_name {
  char text[MLX_BUNDLE_NAME];
} mlx_module_name_t;
mlx_module_name_t mlx_bundle_module(const char *level_or_target);
// A target has one module; a portable target has one per level.
size_t mlx_variant_module_count(const mlx_variant_t *variant);
mlx_module_name_t mlx_variant_module(const mlx_variant_t *variant, size_t index);
// File name of the weights archive |index|, from 0.
mlx_module_name_t mlx_bundle_weights(size_t index);
// True if |name| is a valid bundle file name. The next three functions test for one kind of file.
bool mlx_is_bundle_file(const char *name);
bool mlx_is_module_file(const char *name);
bool mlx_is_weights_file(const char *name);
bool mlx_is_licence_file(const char *name);

// Bytes of weights that one token reads: all ops except attention.
int64_t mlx_variant_weight_bytes(const mlx_variant_t *variant);
// What the ops read: "1.5 MiB of weights per token (93%)" or "2048 bytes of KV per position". Empty for ops
// that read neither. |total|: mlx_variant_weight_bytes.
void mlx_variant_op_cost(const mlx_variant_op_t *op, int64_t total, char *out, size_t size);

// "x86-64, x86-64-v3, aarch64": the levels of a portable target.
typedef struct mlx_levels_text {
  char text[MLX_MAX_LEVELS * 18];
} mlx_levels_text_t;
mlx_levels_text_t mlx_variant_levels_text(const mlx_variant_t *variant);

// "decode, linear", or "none (generic path)": the linked kernels of a target.
typedef struct mlx_kernels_text {
  char text[MLX_MAX_KERNELS * 18];
} mlx_kernels_text_t;
mlx_kernels_text_t mlx_variant_kernels_text(const mlx_variant_t *variant);

// "Q4_K, Q6_K, F32": the formats of a target's weights; its dtype if they are unknown.
typedef struct mlx_formats_text {
  char text[MLX_MAX_FORMATS * 18];
} mlx_formats_text_t;
mlx_formats_text_t mlx_variant_formats_text(const mlx_variant_t *variant);

// "cuda:sm_90, cpu:portable": the targets of a bundle.
typedef struct mlx_targets_text {
  char text[MLX_MAX_TARGETS * 66];
} mlx_targets_text_t;
mlx_targets_text_t mlx_manifest_targets_text(const mlx_manifest_t *manifest);

#endif  // MLXCEL_ARTIFACT_MANIFEST_H_
