// JSON answers of `mlxcel serve`, for tests.
#ifndef MLXCEL_TESTS_JSON_REPLY_H_
#define MLXCEL_TESTS_JSON_REPLY_H_

#include <yyjson.h>

#include "tests/support/http_client.h"

// The document of a reply with |status|. Releases the reply's body.
static inline yyjson_doc *parse_reply(const char *path, reply_t *reply, int status) {
  if (reply->status != status)
    CHECK_FAIL("%s: status %d, expected %d: %s", path, reply->status, status, reply_text(reply));
  yyjson_doc *doc = yyjson_read(reply_text(reply), reply->body.length, 0);
  if (!doc) CHECK_FAIL("not JSON: %s", reply_text(reply));
  mlx_text_clear(&reply->body);
  return doc;
}

// The value at a JSON pointer, which must exist.
static inline yyjson_val *at(yyjson_doc *doc, const char *pointer) {
  yyjson_val *value = yyjson_doc_ptr_get(doc, pointer);
  if (!value) CHECK_FAIL("the answer has no %s", pointer);
  return value;
}

#endif  // MLXCEL_TESTS_JSON_REPLY_H_
