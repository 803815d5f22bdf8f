// Minisign: Ed25519 keys and signatures in the file formats of the minisign tool. mlxcel reads minisign's
// files, and minisign reads mlxcel's.
//
// File contents, each in base64 below an untrusted comment that no signature covers:
//   public key   42 bytes: "Ed", key ID (8), key (32)
//   secret key  158 bytes, encrypted with a scrypt-derived key if it has a password
//   signature    74 bytes: "ED", key ID (8), signature (64) of the data's BLAKE2b-512 hash; then a trusted
//                comment and a signature (64) of the first signature and that comment
// In the legacy form, a signature begins with "Ed" and signs the data itself.
//
// artifact/trust.h manages the trusted keys; artifact/sign.h signs bundles.
#ifndef MLXCEL_ARTIFACT_MINISIGN_H_
#define MLXCEL_ARTIFACT_MINISIGN_H_

#include <stdint.h>

#include "base/status.h"

#define MLX_MAX_KEY_FILE 4096         // bytes
#define MLX_MAX_SIGNATURE_FILE 16384  // bytes
#define MLX_MAX_COMMENT 1024          // bytes; minisign's limit for an untrusted comment
#define MLX_MAX_TRUSTED_COMMENT 8192  // bytes; minisign's limit for a trusted comment

// A key ID, which minisign prints as "9CA35E82975492BB". It is a random number: it identifies a key but
// proves nothing.
typedef struct mlx_key_id {
  uint8_t bytes[8];
} mlx_key_id_t;
typedef struct mlx_key_id_text {
  char text[17];
} mlx_key_id_text_t;
mlx_key_id_text_t mlx_key_id_text(const mlx_key_id_t *id);

typedef struct mlx_public_key {
  mlx_key_id_t id;
  uint8_t key[32];
} mlx_public_key_t;

// |text| is the content of a public key file, or only its base64 line. Here and below, |name| appears in
// error messages.
mlx_status_t mlx_public_key_read(const char *name, const char *text, size_t length,
                                 mlx_public_key_t *out_key) MLX_MUST_USE;
// Writes the content of a public key file. Release with mlx_free.
mlx_status_t mlx_public_key_write(const mlx_public_key_t *key, char **out_text,
                                  size_t *out_length) MLX_MUST_USE;
bool mlx_public_key_equal(const mlx_public_key_t *a, const mlx_public_key_t *b);

// ----------------------------------------------------------------------------------------------------------
// Secret keys. The caller zeroes every secret key with mlx_secret_key_clear, also after an error.

typedef struct mlx_secret_key {
  mlx_key_id_t id;
  uint8_t key[64];
} mlx_secret_key_t;

// scrypt cost of deriving a key from a password, in libsodium's units. minisign uses 32 Mi operations and
// 1 GiB of memory; so does mlx_key_cost_default.
typedef struct mlx_key_cost {
  uint64_t operations, memory;
} mlx_key_cost_t;
extern const mlx_key_cost_t mlx_key_cost_default;

void mlx_secret_key_generate(mlx_secret_key_t *out_key);
void mlx_secret_key_clear(mlx_secret_key_t *key);
mlx_public_key_t mlx_secret_key_public(const mlx_secret_key_t *key);
// Sets *|out_needs| if the key in this file is encrypted.
mlx_status_t mlx_secret_key_needs_password(const char *name, const char *text, size_t length,
                                           bool *out_needs) MLX_MUST_USE;
// |password| may be NULL if the key is not encrypted. Fails on a key with a higher scrypt cost than
// minisign's.
mlx_status_t mlx_secret_key_read(const char *name, const char *text, size_t length, const char *password,
                                 mlx_secret_key_t *out_key) MLX_MUST_USE;
// Writes the content of a secret key file, unencrypted if |password| is NULL. Release with
// mlx_secret_text_free.
mlx_status_t mlx_secret_key_write(const mlx_secret_key_t *key, const char *password,
                                  const mlx_key_cost_t *cost, char **out_text,
                                  size_t *out_length) MLX_MUST_USE;
void mlx_secret_text_free(char *text, size_t length);  // zeroes it first; NULL is fine

// ----------------------------------------------------------------------------------------------------------
// Signatures

// Domains: the first word of the trusted comment, which is signed. So the signature of a plain file is not
// valid for a bundle's manifest or for the record of a remote cache with the same bytes. minisign's own
// comments begin with "timestamp:", whatever the name of the signed file is.
#define MLX_DOMAIN_BUNDLE "mlxcel-bundle"
#define MLX_DOMAIN_CACHE "mlxcel-cache"

// Data to sign or verify: bytes in memory, or the file |name| if |bytes| is NULL. A file is read in pieces.
// A legacy signature needs the whole file in memory, at most 1 GiB, as in minisign.
typedef struct mlx_signed_data {
  const char *name;
  const void *bytes;
  size_t length;
  const char *domain;  // one of the domains above; NULL: a plain file
} mlx_signed_data_t;

typedef struct mlx_signature {
  const char *name;  // of the signature file; borrowed
  bool legacy;
  mlx_key_id_t id;
  uint8_t signature[64];
  const char *comment;  // trusted comment: UTF-8 without control characters except tabs; borrowed from the
                        // text that was read
  size_t comment_length;
  uint8_t comment_signature[64];
} mlx_signature_t;

// Parses the content of a signature file. |text| must outlive *|out_signature|.
mlx_status_t mlx_signature_read(const char *name, const char *text, size_t length,
                                mlx_signature_t *out_signature) MLX_MUST_USE;
// Fails unless |key| signed both |data| and the trusted comment, and the comment has the domain of |data|.
mlx_status_t mlx_signature_verify(const mlx_signature_t *signature, const mlx_public_key_t *key,
                                  const mlx_signed_data_t *data) MLX_MUST_USE;
// Signs |data| and returns the content of a signature file; release with mlx_free. |comment| and
// |trusted_comment| are one line each; |comment| may be NULL. The domain of |data| and a tab are put
// before |trusted_comment|; for a plain file, a comment that begins with a domain is MLX_USAGE.
mlx_status_t mlx_signature_make(const mlx_secret_key_t *key, const mlx_signed_data_t *data,
                                const char *comment, const char *trusted_comment, char **out_text,
                                size_t *out_length) MLX_MUST_USE;

#endif  // MLXCEL_ARTIFACT_MINISIGN_H_
