// Puts a model into a store as another tool would: with the given layers and an empty config.
#ifndef MLXCEL_TESTS_STORE_MODEL_H_
#define MLXCEL_TESTS_STORE_MODEL_H_

#include "base/digest.h"
#include "base/file.h"
#include "tests/support/check.h"
#include "transfer/store.h"

#define MAX_TEST_LAYERS 12

// A layer of a test model: a file, its media type, and its name ("" for none).
typedef struct test_layer {
  const char *path, *media_type, *name;
} test_layer_t;

static inline mlx_oci_descriptor_t store_blob(mlx_store_t *store, mlx_http_t *http,
                                              const test_layer_t *layer) {
  mlx_progress_t progress = 0;
  mlx_file_stamp_t stamp;
  mlx_blob_t blob = {.path = layer->path};
  CHECK_OK(mlx_file_stamp(layer->path, &stamp));
  blob.descriptor.size = stamp.size;
  memcpy(blob.descriptor.digest, "sha256:", 7);
  CHECK_OK(mlx_digest_file(layer->path, NULL, blob.descriptor.digest + 7));
  snprintf(blob.descriptor.media_type, sizeof blob.descriptor.media_type, "%s", layer->media_type);
  snprintf(blob.descriptor.path, sizeof blob.descriptor.path, "%s", layer->name);
  CHECK_OK(mlx_store_put_blob(store, http, &blob, &progress));
  return blob.descriptor;
}

// Puts a model with these layers under the reference |text|. |config| is the path for a temporary config
// file.
static inline void store_model(const char *text, const mlx_registry_options_t *options,
                               const char *artifact_type, const char *config, const test_layer_t *layers,
                               size_t count) {
  mlx_oci_ref_t ref;
  mlx_store_t *store;
  mlx_http_t *http;
  mlx_text_t json = {0};
  mlx_oci_descriptor_t items[MAX_TEST_LAYERS], descriptor = {.media_type = MLX_OCI_MANIFEST};
  mlx_oci_document_t document = {.items = items, .count = count};
  CHECK_OK(mlx_oci_ref_parse(text, &ref));
  CHECK_OK(mlx_store_open(&ref, options, &store));
  CHECK_OK(mlx_http_open(&options->http, &http));
  for (size_t i = 0; i < count; ++i) items[i] = store_blob(store, http, &layers[i]);
  CHECK_OK(mlx_write_file(config, "{}", 2));
  document.config = store_blob(store, http, &(test_layer_t){config, MLX_OCI_MODEL_CONFIG, ""});
  snprintf(document.artifact_type, sizeof document.artifact_type, "%s", artifact_type);
  mlx_oci_manifest_write(&document, &json);
  CHECK_OK(mlx_text_finish(&json));
  mlx_oci_digest(json.data, json.length, descriptor.digest);
  descriptor.size = json.length;
  CHECK_OK(mlx_store_put_document(store, ref.reference, &descriptor, json.data, json.length, NULL));
  mlx_text_clear(&json);
  mlx_http_close(http);
  mlx_store_close(store);
}

#endif  // MLXCEL_TESTS_STORE_MODEL_H_
