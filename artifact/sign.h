// Sign: keys in files, signatures beside what they sign, and what a signature of a bundle promises.
//
// The signature of FILE lies in FILE.minisig. Of a bundle the manifest is signed, within it; it lists every
// other file with its size and SHA-256, so the signature holds for all of them, as long as somebody compares.
#ifndef MLXCEL_ARTIFACT_SIGN_H_
#define MLXCEL_ARTIFACT_SIGN_H_

#include "artifact/manifest.h"
#include "artifact/trust.h"
#include "base/report.h"

#define MLX_SIGNATURE_ENDING ".minisig"

// ---- keys ----

// Where a key pair lies when nobody says otherwise: "mlxcel" in the settings' folder, to which ".key" and
// ".pub" are added. Release with mlx_free.
mlx_status_t mlx_key_pair_path(char **out_path) MLX_MUST_USE;
// Makes a key pair: |path|.key, for its owner alone, and |path|.pub. Files that are there are replaced with
// |force| only. |password| NULL: the secret key is not encrypted.
mlx_status_t mlx_key_pair_make(const char *path, const char *password, const mlx_key_cost_t *cost, bool force,
                               mlx_public_key_t *out_key) MLX_MUST_USE;
// Asked for a password where a key has one: gives it in |out_password|, which is zeroed after use.
#define MLX_MAX_PASSWORD 1024  // with its NUL; minisign takes no longer one
typedef mlx_status_t (*mlx_password_fn_t)(void *user, const char *path, char out_password[MLX_MAX_PASSWORD]);
// Reads a secret key's file. Clear the key with mlx_secret_key_clear, also after an error.
mlx_status_t mlx_secret_key_load(const char *path, mlx_password_fn_t ask, void *user,
                                 mlx_secret_key_t *out_key) MLX_MUST_USE;

// ---- signatures ----

typedef struct mlx_sign_options {
  const mlx_secret_key_t *key;
  const char *comment;          // NULL: minisign's
  const char *trusted_comment;  // NULL: the time ($SOURCE_DATE_EPOCH, else now) and the file's name, as
                                // minisign writes them
  const char *signature_path;   // NULL: beside what is signed
  const mlx_report_t *report;   // may be NULL
} mlx_sign_options_t;

// Signs a file or a bundle. A bundle's files are compared with its manifest first. *|out_signature_path| is
// where the signature was written; release with mlx_free.
mlx_status_t mlx_sign(const char *path, const mlx_sign_options_t *options,
                      char **out_signature_path) MLX_MUST_USE;

typedef struct mlx_verify_options {
  const mlx_public_key_t *key;  // NULL: any trusted one
  const char *key_name;         // of |key|
  const char *signature_path;   // NULL: beside what is signed
  const mlx_report_t *report;   // may be NULL
} mlx_verify_options_t;

// Checks the signature of a file or a bundle, and every file of a bundle.
mlx_status_t mlx_verify(const char *path, const mlx_verify_options_t *options,
                        mlx_signer_t *out_who) MLX_MUST_USE;

#endif  // MLXCEL_ARTIFACT_SIGN_H_
