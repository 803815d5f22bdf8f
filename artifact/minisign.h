// Minisign: Ed25519 keys and signatures in the files of the tool of that name, which reads ours and whose we
// read.
//
// A public key is 42 bytes: "Ed", the key's number, the key. A signature is 74: "ED", that number, 64 bytes
// that sign the BLAKE2b-512 of what is signed ("Ed", the legacy form, signs it itself); then a comment,
// signed together with those 64 bytes. A secret key is 158, encrypted with scrypt where it has a password. In
// files they are base64 below a comment that nobody signs.
//
// Nothing here knows whom to trust (artifact/trust.h) or what a bundle is (artifact/sign.h).
#ifndef MLXCEL_ARTIFACT_MINISIGN_H_
#define MLXCEL_ARTIFACT_MINISIGN_H_

#include <stdint.h>

#include "base/status.h"

#define MLX_MAX_KEY_FILE 4096         // bytes that a key's file may have
#define MLX_MAX_SIGNATURE_FILE 16384  // and a signature's
#define MLX_MAX_COMMENT 1024          // minisign reads no more of an untrusted comment
#define MLX_MAX_TRUSTED_COMMENT 8192  // nor of a trusted one

// A key's number, which minisign prints as "9CA35E82975492BB". It is chosen at random: it finds a key and
// proves nothing.
typedef struct mlx_key_number {
  uint8_t bytes[8];
} mlx_key_number_t;
typedef struct mlx_key_number_text {
  char text[17];
} mlx_key_number_text_t;
mlx_key_number_text_t mlx_key_number_text(const mlx_key_number_t *number);

typedef struct mlx_public_key {
  mlx_key_number_t number;
  uint8_t key[32];
} mlx_public_key_t;

// |text| is a public key's file, or its base64 alone. |name| is for errors, here and below.
mlx_status_t mlx_public_key_read(const char *name, const char *text, size_t length,
                                 mlx_public_key_t *out_key) MLX_MUST_USE;
// As the text of a file. Release with mlx_free.
mlx_status_t mlx_public_key_write(const mlx_public_key_t *key, char **out_text,
                                  size_t *out_length) MLX_MUST_USE;
bool mlx_public_key_equal(const mlx_public_key_t *a, const mlx_public_key_t *b);

// ----------------------------------------------------------------------------------------------------------
// Secret keys. Whoever holds one clears it: mlx_secret_key_clear, also after an error.

typedef struct mlx_secret_key {
  mlx_key_number_t number;
  uint8_t key[64];
} mlx_secret_key_t;

// What a password costs to try, in libsodium's units. minisign's own: 32 Mi operations, 1 GiB of memory.
typedef struct mlx_key_cost {
  uint64_t operations, memory;
} mlx_key_cost_t;
extern const mlx_key_cost_t mlx_key_cost_default;

void mlx_secret_key_generate(mlx_secret_key_t *out_key);
void mlx_secret_key_clear(mlx_secret_key_t *key);
mlx_public_key_t mlx_secret_key_public(const mlx_secret_key_t *key);
// Whether this file's key is encrypted.
mlx_status_t mlx_secret_key_needs_password(const char *name, const char *text, size_t length,
                                           bool *out_needs) MLX_MUST_USE;
// |password| may be NULL for a key that is not encrypted. A key that costs more than minisign's is refused.
mlx_status_t mlx_secret_key_read(const char *name, const char *text, size_t length, const char *password,
                                 mlx_secret_key_t *out_key) MLX_MUST_USE;
// As the text of a file, which is for its owner alone: release with mlx_secret_text_free. |password| NULL:
// not encrypted.
mlx_status_t mlx_secret_key_write(const mlx_secret_key_t *key, const char *password,
                                  const mlx_key_cost_t *cost, char **out_text,
                                  size_t *out_length) MLX_MUST_USE;
void mlx_secret_text_free(char *text, size_t length);  // zeroed first; NULL is fine

// ----------------------------------------------------------------------------------------------------------
// Signatures

// What is signed: bytes in memory or, where |bytes| is NULL, the file |name|, which is read a piece at a time
// (a legacy signature wants it in memory whole, and 1 GiB of it at most, as minisign does).
typedef struct mlx_signed {
  const char *name;
  const void *bytes;
  size_t length;
} mlx_signed_t;

typedef struct mlx_signature {
  const char *name;  // of its file; borrowed
  bool legacy;
  mlx_key_number_t number;
  uint8_t signature[64];
  const char *comment;  // the trusted one, plain UTF-8 text without control characters but tabs; borrowed
                        // from the text that was read
  size_t comment_length;
  uint8_t comment_signature[64];
} mlx_signature_t;

// Reads the text of a signature's file, which must outlive *|out_signature|.
mlx_status_t mlx_signature_read(const char *name, const char *text, size_t length,
                                mlx_signature_t *out_signature) MLX_MUST_USE;
// Fails unless |key| signed exactly this, and the trusted comment with it.
mlx_status_t mlx_signature_verify(const mlx_signature_t *signature, const mlx_public_key_t *key,
                                  const mlx_signed_t *what) MLX_MUST_USE;
// Signs. |comment| and |trusted_comment| are one line each; |comment| may be NULL. Gives the text of a
// signature's file; release with mlx_free.
mlx_status_t mlx_signature_make(const mlx_secret_key_t *key, const mlx_signed_t *what, const char *comment,
                                const char *trusted_comment, char **out_text,
                                size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_ARTIFACT_MINISIGN_H_
