// Module record: what a compiled module of the cache was made from, and its digest, as JSON (record.json). It
// is beside the module in the local cache. In a remote cache it is signed, in MLX_DOMAIN_CACHE.
//
// This file converts between text and structs. The parser accepts only what the writer writes, in any layout.
#ifndef MLXCEL_ARTIFACT_MODULE_RECORD_H_
#define MLXCEL_ARTIFACT_MODULE_RECORD_H_

#include <stdint.h>

#include "base/digest.h"
#include "base/text.h"

#define MLX_MODULE_RECORD "record.json"
#define MLX_MAX_MODULE_RECORD 65536                // bytes
#define MLX_MAX_REMOTE_MODULE (UINT64_C(1) << 30)  // bytes

typedef struct mlx_module_record {
  char key[MLX_DIGEST_HEX];  // of everything but the compiler that the module was made from
  char compiler[128];        // version of iree-compile; never ""
  char compiler_digest[MLX_DIGEST_HEX];
  char title[192];  // for people
  uint64_t size;    // of the module, at most MLX_MAX_REMOTE_MODULE
  char sha256[MLX_DIGEST_HEX];
} mlx_module_record_t;

// A module that a remote cache may have.
typedef struct mlx_module_wanted {
  char key[MLX_DIGEST_HEX];
  // Its compiler: exactly |compiler| with |compiler_digest|; or if the digest is "", any whose version begins
  // with |compiler|.
  const char *compiler, *compiler_digest;
} mlx_module_wanted_t;

// |name| is the file of the text, for errors.
mlx_status_t mlx_module_record_read(const char *name, const char *text, size_t length,
                                    mlx_module_record_t *out_record) MLX_MUST_USE;
mlx_status_t mlx_module_record_write(const mlx_module_record_t *record, mlx_text_t *out) MLX_MUST_USE;

#endif  // MLXCEL_ARTIFACT_MODULE_RECORD_H_
