// OCI: references, descriptors, manifests and indexes of the OCI image specification, with the media types of
// CNCF ModelPack. This file only parses and writes text; transfer/store.h accesses registries and folders.
//
// A bundle is stored as several manifests. The model manifest has a config and one layer per weights,
// tokenizer and licence file. Each target has a module manifest, whose layers are the compiled code, the
// bundle's manifest and its signature. The subject of a module manifest is the model manifest, so all targets
// share one copy of the weights. A tag names only the model, so a module records the tag of its push in an
// annotation.
#ifndef MLXCEL_TRANSFER_OCI_H_
#define MLXCEL_TRANSFER_OCI_H_

#include <stdint.h>

#include "base/digest.h"
#include "base/status.h"
#include "base/text.h"

#define MLX_OCI_MANIFEST "application/vnd.oci.image.manifest.v1+json"
#define MLX_OCI_INDEX "application/vnd.oci.image.index.v1+json"
#define MLX_OCI_EMPTY "application/vnd.oci.empty.v1+json"
#define MLX_OCI_MODEL "application/vnd.cncf.model.manifest.v1+json"
#define MLX_OCI_MODEL_CONFIG "application/vnd.cncf.model.config.v1+json"
#define MLX_OCI_WEIGHT "application/vnd.cncf.model.weight.v1.raw"
#define MLX_OCI_WEIGHT_CONFIG "application/vnd.cncf.model.weight.config.v1.raw"
#define MLX_OCI_DOC "application/vnd.cncf.model.doc.v1.raw"
#define MLX_OCI_MODULE "application/vnd.mlxcel.module.v1+json"
#define MLX_OCI_MODULE_CODE "application/vnd.mlxcel.module.v1.vmfb"
#define MLX_OCI_MODULE_MANIFEST "application/vnd.mlxcel.module.manifest.v1+json"
#define MLX_OCI_MODULE_SIGNATURE "application/vnd.mlxcel.module.signature.v1.minisig"
#define MLX_OCI_MAX_DOCUMENT (4u << 20)  // bytes; the limit of registries
#define MLX_OCI_DIGEST 72                // bytes: "sha256:", 64 digits and a NUL

// A parsed "oci://HOST[:PORT]/NAME[:TAG|@DIGEST]" or "oci-layout:FOLDER[:TAG|@DIGEST]".
typedef struct mlx_oci_ref {
  bool layout;          // an OCI layout: a folder, not a registry
  char host[256];       // with the port; "" for a layout
  char name[512];       // repository name; for a layout, the folder
  char reference[129];  // a tag or a digest; "latest" by default
} mlx_oci_ref_t;
bool mlx_is_oci_ref(const char *text);
mlx_status_t mlx_oci_ref_parse(const char *text, mlx_oci_ref_t *out_ref) MLX_MUST_USE;

// Our annotations of a module, on its manifest and in lists of manifests. Missing ones are "" or 0.
typedef struct mlx_oci_annotations {
  char target[64];           // compile target
  char cpu[MLX_DIGEST_HEX];  // for cpu:host, mlx_cpu_identity of the compiling machine
  char tag[129];             // tag that the module was pushed under
  uint64_t serial;           // number of the push to that tag, from 1; registries do not list in push order
} mlx_oci_annotations_t;

typedef struct mlx_oci_descriptor {
  char media_type[128], artifact_type[128];
  char digest[MLX_OCI_DIGEST];
  uint64_t size;
  char path[256];  // annotation org.cncf.model.filepath, else the title; "" if neither is set
  char tag[129];   // in the index of a layout; "" elsewhere
  mlx_oci_annotations_t annotations;
} mlx_oci_descriptor_t;

// Content to store: the file |path|, or |bytes| in memory if |path| is NULL. Both borrowed.
typedef struct mlx_blob {
  mlx_oci_descriptor_t descriptor;
  const char *path;
  const void *bytes;
} mlx_blob_t;

bool mlx_oci_is_digest(const char *text);
// Computes "sha256:...".
void mlx_oci_digest(const void *bytes, size_t length, char out_digest[MLX_OCI_DIGEST]);

// A manifest (config, layers, subject) or an index (manifests).
typedef struct mlx_oci_document {
  char media_type[128], artifact_type[128];
  mlx_oci_annotations_t annotations;
  mlx_oci_descriptor_t config;   // of a manifest
  mlx_oci_descriptor_t subject;  // its digest is "" if there is none
  mlx_oci_descriptor_t *items;   // layers of a manifest, or manifests of an index; owned
  size_t count;
} mlx_oci_document_t;

// |name| appears in error messages. Release with mlx_oci_document_free.
mlx_status_t mlx_oci_document_read(const char *name, const char *json, size_t length,
                                   mlx_oci_document_t *out_document) MLX_MUST_USE;
void mlx_oci_document_free(mlx_oci_document_t *document);

void mlx_oci_manifest_write(const mlx_oci_document_t *document, mlx_text_t *out);
void mlx_oci_index_write(const mlx_oci_descriptor_t *items, size_t count, mlx_text_t *out);

// Writes the index |json| with |descriptor| added. With a |tag|, moves the tag to it. Without one (NULL),
// adds it at most once. Copies everything else unchanged, including fields that only other tools know.
mlx_status_t mlx_oci_index_add(const char *name, const char *json, size_t length,
                               const mlx_oci_descriptor_t *descriptor, const char *tag,
                               mlx_text_t *out) MLX_MUST_USE;

// Copies the URL of the next page from a Link header ("<...>; rel="next""). Returns false if there is none.
bool mlx_oci_next_link(const char *header, char *out_link, size_t size);

// Appends the tags of a registry's tag list to |out_tags|, each with a NUL, and adds their number to
// *|out_count|.
mlx_status_t mlx_oci_tags_read(const char *name, const char *json, size_t length, mlx_text_t *out_tags,
                               size_t *out_count) MLX_MUST_USE;

// A parsed WWW-Authenticate header: Bearer realm="...",service="...",scope="...".
typedef struct mlx_oci_challenge {
  bool bearer, basic;
  char realm[512], service[256], scope[512];
} mlx_oci_challenge_t;
void mlx_oci_challenge_read(const char *header, mlx_oci_challenge_t *out_challenge);

// Reads the token from a token server's response; release with mlx_free.
mlx_status_t mlx_oci_token_read(const char *name, const char *json, size_t length,
                                char **out_token) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_OCI_H_
