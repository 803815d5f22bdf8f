// Manifest: what a compiled model says about itself. Written by the compiler, read by the runtime before
// anything else.
#ifndef MLXCEL_ARTIFACT_MANIFEST_H_
#define MLXCEL_ARTIFACT_MANIFEST_H_

#include <stdint.h>

#include "base/digest.h"
#include "base/status.h"

// A bundle (.mlxb) is a folder with these files, or one file: an uncompressed tar archive of them
// (artifact/bundle.h).
#define MLX_BUNDLE_MANIFEST "manifest.json"
#define MLX_BUNDLE_SIGNATURE "manifest.json.minisig"  // where it is signed
#define MLX_BUNDLE_VMFB \
  "model.vmfb"  // of one target; of several model.TARGET.vmfb, of a portable one model.LEVEL.vmfb
#define MLX_BUNDLE_WEIGHTS \
  "weights.irpa"  // where targets store them differently, weights.2.irpa and so on too
#define MLX_BUNDLE_TOKENIZER "tokenizer.json"
#define MLX_BUNDLE_CHAT "chat.json"  // only where the model has a chat template or special tokens
// And the model's own LICENSE*, NOTICE*, COPYING* and USE_POLICY*, where it has them.

// The functions a module exports and what they mean. A change that an older runtime would misread gets a new
// number.
#define MLX_CONTRACT_VERSION 1
#define MLX_BUNDLE_FORMAT "mlxcel-bundle"
#define MLX_MAX_MANIFEST (1u << 20)  // bytes

#define MLX_MAX_SEQUENCES 4096
#define MLX_MAX_BUCKETS 8
#define MLX_MAX_EOS 16
#define MLX_MAX_GROUP 1024  // tokens that one call of decode_K may choose
#define MLX_MAX_KERNELS 8
#define MLX_MAX_LEVELS 8
#define MLX_MAX_TARGETS 8
#define MLX_MAX_LICENCES 8
#define MLX_TARGET_PORTABLE "cpu:portable"
#define MLX_MAX_BUNDLE_FILES \
  (2 + MLX_MAX_LICENCES + MLX_MAX_LEVELS + 2 * MLX_MAX_TARGETS)  // beside the manifest and its signature
#define MLX_BUNDLE_NAME 48                                       // bytes of a file's name

// A file of the bundle, for whoever brings it from elsewhere.
typedef struct mlx_bundle_file {
  char name[MLX_BUNDLE_NAME];  // one of the names above
  int64_t size;
  char sha256[MLX_DIGEST_HEX];
} mlx_bundle_file_t;

// Code for one target, and the shapes it was compiled for.
typedef struct mlx_variant {
  char target[64];               // "cpu:host", "cpu:x86-64-v3", "cpu:portable", "cuda:sm_90"
  char cpu[MLX_DIGEST_HEX];      // for cpu:host, that machine's mlx_cpu_identity; otherwise empty
  char dtype[16];                // of its weights and KV cache: "f32", "bf16", "f16"
  char module[MLX_BUNDLE_NAME];  // the file with the code; a portable one has a module for each level instead
  char weights[MLX_BUNDLE_NAME];      // the archive it was compiled for
  int64_t context;                    // positions a sequence may use
  int64_t sequences;                  // sequences decoded together
  int64_t page_size, sequence_pages;  // positions in a page; pages of a row, enough for the context
  int64_t pool_pages;                 // the KV pool's pages, page 0 belonging to nobody
  int64_t prefill[MLX_MAX_BUCKETS];   // T of each prefill_T, ascending
  size_t prefill_count;
  int64_t decode[MLX_MAX_BUCKETS];  // K of each decode_K, ascending; the first is 1
  size_t decode_count;
  char kernels[MLX_MAX_KERNELS][16];  // linked kernels: "decode", "linear"; what has none is lowered plainly
  size_t kernel_count;
  char kernels_digest[MLX_DIGEST_HEX];  // their version: over their sources and definitions, or objects;
                                        // empty: there are none
  char levels[MLX_MAX_LEVELS][16];  // of cpu:portable, and only of that: those that it has modules for; of
                                    // one architecture they ascend
  size_t level_count;
  int64_t driver;  // CUDA version that the linked kernels need of the driver: 13000 is 13.0; 0: no more than
                   // the target
  int64_t state_bytes;  // device memory for the KV pool and scratch; 0: it is not known
  int64_t kv_bytes;     // keys and values of one position, all layers; 0: it is not known
} mlx_variant_t;

typedef struct mlx_manifest {
  int64_t contract;
  char iree[16];       // "3.13": the IREE that the modules are for; empty: it is not known
  char compiler[128];  // iree-compile's version
  char compiler_digest[MLX_DIGEST_HEX];
  char architecture[64];
  char source[256];                    // file name of the model it was compiled from
  char source_digest[MLX_DIGEST_HEX];  // a file's SHA-256; of several files that of the lines `sha256sum`
                                       // prints of them; empty: not known
  char license[64];                    // what the model says of its licence ("apache-2.0"); empty: nothing
  int64_t vocab;
  int32_t eos[MLX_MAX_EOS];  // tokens that end a text
  size_t eos_count;
  mlx_variant_t variants[MLX_MAX_TARGETS];  // at least one; no target twice
  size_t variant_count;
  mlx_bundle_file_t files[MLX_MAX_BUNDLE_FILES];  // none in bundles of older compilers
  size_t file_count;
} mlx_manifest_t;

// As JSON text; release with mlx_free.
mlx_status_t mlx_manifest_write(const mlx_manifest_t *manifest, char **out_json,
                                size_t *out_length) MLX_MUST_USE;
// Reads and checks one; |name| is for errors. A manifest of another contract is refused, naming both.
mlx_status_t mlx_manifest_read(const char *name, const char *json, size_t length,
                               mlx_manifest_t *out_manifest) MLX_MUST_USE;
// What a manifest of whatever contract says of its versions and of where it was made from: enough to refuse
// it, and to make it again.
typedef struct mlx_manifest_origin {
  int64_t contract;  // -1: it does not say
  char iree[16], source[256], source_digest[MLX_DIGEST_HEX];
  char targets[MLX_MAX_TARGETS * 66];  // "cuda:sm_90,cpu:portable", as --target wants them
} mlx_manifest_origin_t;
mlx_manifest_origin_t mlx_manifest_origin(const char *json, size_t length);
// Gives an error about that manifest its hint: the command that makes it again.
mlx_status_t mlx_manifest_hint_again(mlx_status_t status, const mlx_manifest_origin_t *origin) MLX_MUST_USE;

// The file that lists |name|, or NULL.
const mlx_bundle_file_t *mlx_manifest_file(const mlx_manifest_t *manifest, const char *name);

// Whether a bundle for |target| needs a file: all but the code and the weights of other targets.
bool mlx_manifest_needs(const mlx_manifest_t *manifest, const char *target, const char *name);

// The file of a level's module: "model.x86-64-v3.vmfb"; of a target's "model.cuda-sm_90.vmfb"; of NULL
// "model.vmfb".
typedef struct mlx_module_name {
  char text[MLX_BUNDLE_NAME];
} mlx_module_name_t;
mlx_module_name_t mlx_bundle_module(const char *level_or_target);
// The modules of a target: one, or of a portable one that of each level.
size_t mlx_variant_module_count(const mlx_variant_t *variant);
mlx_module_name_t mlx_variant_module(const mlx_variant_t *variant, size_t index);
// The same for the Nth archive of weights, from 0.
mlx_module_name_t mlx_bundle_weights(size_t index);
// True for the names of files that a bundle may hold.
bool mlx_is_bundle_file(const char *name);
bool mlx_is_module_file(const char *name);
bool mlx_is_weights_file(const char *name);
bool mlx_is_licence_file(const char *name);

// "x86-64, x86-64-v3, aarch64": the levels of a portable model.
typedef struct mlx_levels_text {
  char text[MLX_MAX_LEVELS * 18];
} mlx_levels_text_t;
mlx_levels_text_t mlx_variant_levels_text(const mlx_variant_t *variant);

// "decode, linear", or "none (plain lowering)": which linked kernels a module has.
typedef struct mlx_kernels_text {
  char text[MLX_MAX_KERNELS * 18];
} mlx_kernels_text_t;
mlx_kernels_text_t mlx_variant_kernels_text(const mlx_variant_t *variant);

// "cuda:sm_90, cpu:portable": what a bundle has code for.
typedef struct mlx_targets_text {
  char text[MLX_MAX_TARGETS * 66];
} mlx_targets_text_t;
mlx_targets_text_t mlx_manifest_targets_text(const mlx_manifest_t *manifest);

#endif  // MLXCEL_ARTIFACT_MANIFEST_H_
