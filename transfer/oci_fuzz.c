// Parses arbitrary bytes as OCI references, documents and headers.
#include "transfer/oci.h"

#include <string.h>

#include "base/memory.h"

// Input: the first line is read as a reference, an authentication header and a Link header, the rest as each
// kind of JSON document. An accepted index must survive a write and a read.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const uint8_t *end = size ? memchr(data, '\n', size) : NULL;
  char *line, *token;
  if (!end || mlx_copy_text((const char *)data, (size_t)(end - data), &line)) return 0;
  const char *json = (const char *)end + 1;
  const size_t length = size - (size_t)(end + 1 - data);
  mlx_oci_ref_t ref;
  mlx_oci_challenge_t challenge;
  mlx_oci_document_t document, again;
  mlx_text_t text = {0}, tags = {0};
  size_t count = 0;
  char link[256];
  mlx_status_free(mlx_oci_ref_parse(line, &ref));
  mlx_oci_challenge_read(line, &challenge);
  if (mlx_oci_next_link(line, link, sizeof link) && !strstr(line, link)) __builtin_trap();
  mlx_status_free(mlx_oci_tags_read("tags", json, length, &tags, &count));
  for (size_t i = 0, at = 0; i < count; ++i, at += strlen(tags.data + at) + 1) {
    if (at >= tags.length) __builtin_trap();
  }
  mlx_text_clear(&tags);
  mlx_status_free(mlx_oci_token_read("token", json, length, &token));
  mlx_status_t status = mlx_oci_document_read("document", json, length, &document);
  if (!status) {
    mlx_oci_index_write(document.items, document.count, &text);
    if (mlx_oci_document_read("written", text.data, text.length, &again) || again.count != document.count ||
        memcmp(again.items, document.items, document.count * sizeof *document.items)) {
      __builtin_trap();
    }
    mlx_oci_document_free(&again);
  }
  mlx_text_clear(&text);
  const mlx_oci_descriptor_t added = {
      .media_type = MLX_OCI_MANIFEST,
      .digest = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
      .size = 2};
  mlx_status_t no_index = mlx_oci_index_add("index", json, length, &added, "v1", &text);
  if (!no_index) {
    if (mlx_oci_document_read("added to", text.data, text.length, &again) || !again.count ||
        strcmp(again.items[again.count - 1].tag, "v1"))
      __builtin_trap();
    mlx_oci_document_free(&again);
  }
  mlx_status_free(no_index);
  mlx_oci_document_free(&document);
  mlx_text_clear(&text);
  mlx_status_free(status);
  mlx_free(token);
  mlx_free(line);
  return 0;
}
