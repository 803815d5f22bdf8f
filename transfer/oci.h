// OCI: what registries store. References, descriptors, manifests and indexes as the OCI image specification
// has them, laid out as a model by CNCF ModelPack. Only text in and out: transfer/store.h talks to registries
// and folders.
//
// A compiled model becomes a manifest for the model, with a config and one layer for each of its weights,
// tokenizer and licence files, and one for each target: the compiled code, the bundle's manifest and what
// signs it. The latter's subject is the model; so any number of targets share one copy of the weights. Since
// a tag names the model alone, a module says which tag it was pushed under.
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
#define MLX_OCI_MAX_DOCUMENT (4u << 20)  // what registries accept
#define MLX_OCI_DIGEST 72                // "sha256:", 64 digits and a NUL

// "oci://HOST[:PORT]/NAME[:TAG|@DIGEST]" or "oci-layout:FOLDER[:TAG|@DIGEST]", in parts. The tag is "latest"
// when none is given.
typedef struct mlx_oci_ref {
  bool layout;
  char host[256];       // with its port; of a layout: ""
  char name[512];       // of a layout: the folder
  char reference[129];  // a tag, or a digest
} mlx_oci_ref_t;
bool mlx_is_oci_ref(const char *text);
mlx_status_t mlx_oci_ref_parse(const char *text, mlx_oci_ref_t *out_ref) MLX_MUST_USE;

// What a module says of itself: annotations of ours, on its manifest and in the lists that name it. Empty
// where it says nothing.
typedef struct mlx_oci_notes {
  char target[64];           // what it was compiled for
  char cpu[MLX_DIGEST_HEX];  // of cpu:host, that machine's mlx_cpu_identity
  char tag[129];             // which it was pushed under
  uint64_t serial;  // of that push among those under the tag, from 1; not every registry lists in the order
                    // of pushes
} mlx_oci_notes_t;

typedef struct mlx_oci_descriptor {
  char media_type[128], artifact_type[128];
  char digest[MLX_OCI_DIGEST];
  uint64_t size;
  char path[256];  // org.cncf.model.filepath, else the title; "" where there is none
  char tag[129];   // in a folder's index; ""
  mlx_oci_notes_t notes;
} mlx_oci_descriptor_t;

bool mlx_oci_is_digest(const char *text);
// "sha256:..." of some bytes.
void mlx_oci_digest(const void *bytes, size_t length, char out_digest[MLX_OCI_DIGEST]);

// A manifest (config, layers, subject) or an index (manifests), whichever it is.
typedef struct mlx_oci_document {
  char media_type[128], artifact_type[128];
  mlx_oci_notes_t notes;
  mlx_oci_descriptor_t config;   // of a manifest
  mlx_oci_descriptor_t subject;  // its digest is "" where there is none
  mlx_oci_descriptor_t *items;   // layers of a manifest, manifests of an index; owned
  size_t count;
} mlx_oci_document_t;

// |name| is for errors. Release with mlx_oci_document_free.
mlx_status_t mlx_oci_document_read(const char *name, const char *json, size_t length,
                                   mlx_oci_document_t *out_document) MLX_MUST_USE;
void mlx_oci_document_free(mlx_oci_document_t *document);

void mlx_oci_manifest_write(const mlx_oci_document_t *document, mlx_text_t *out);
void mlx_oci_index_write(const mlx_oci_descriptor_t *items, size_t count, mlx_text_t *out);

// Writes the index |json| with |described| in it. A |tag| moves to it; without one (NULL) it is there once.
// All else stays as others wrote it.
mlx_status_t mlx_oci_index_add(const char *name, const char *json, size_t length,
                               const mlx_oci_descriptor_t *described, const char *tag,
                               mlx_text_t *out) MLX_MUST_USE;

// The address that a Link header gives for the next page of a list ("<...>; rel="next""), or false.
bool mlx_oci_next_link(const char *header, char *out_link, size_t size);

// The tags of a registry's answer, appended to |out_tags|, each with a NUL behind it; *|out_count| grows by
// how many there are.
mlx_status_t mlx_oci_tags_read(const char *name, const char *json, size_t length, mlx_text_t *out_tags,
                               size_t *out_count) MLX_MUST_USE;

// The parts of "Bearer realm="...",service="...",scope="..."" of a WWW-Authenticate header.
typedef struct mlx_oci_challenge {
  bool bearer, basic;
  char realm[512], service[256], scope[512];
} mlx_oci_challenge_t;
void mlx_oci_challenge_read(const char *header, mlx_oci_challenge_t *out_challenge);

// The token in an authorization server's answer; release with mlx_free.
mlx_status_t mlx_oci_token_read(const char *name, const char *json, size_t length,
                                char **out_token) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_OCI_H_
