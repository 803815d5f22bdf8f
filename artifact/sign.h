// Sign: key files, and signing and verifying files and bundles.
//
// The signature of FILE is FILE.minisig. For a bundle the manifest is signed, and the signature is part of
// the bundle. The manifest lists the size and SHA-256 of every other file, so the signature covers all of
// them; mlx_sign and mlx_verify compare every file with the manifest.
#ifndef MLXCEL_ARTIFACT_SIGN_H_
#define MLXCEL_ARTIFACT_SIGN_H_

#include "artifact/manifest.h"
#include "artifact/trust.h"
#include "base/report.h"

#define MLX_SIGNATURE_ENDING ".minisig"

// ---- keys ----

// Default path of the key pair, without the endings ".key" and ".pub": "mlxcel" in the user's configuration
// folder. Release with mlx_free.
mlx_status_t mlx_key_pair_path(char **out_path) MLX_MUST_USE;
// Creates a key pair: |path|.key, readable only by its owner, and |path|.pub. Replaces existing files only if
// |force| is set. The secret key is not encrypted if |password| is NULL.
mlx_status_t mlx_key_pair_make(const char *path, const char *password, const mlx_key_cost_t *cost, bool force,
                               mlx_public_key_t *out_key) MLX_MUST_USE;
// Called to get the password of an encrypted key. |out_password| is zeroed after use.
#define MLX_MAX_PASSWORD 1024  // bytes with the NUL; minisign's limit
typedef mlx_status_t (*mlx_password_fn_t)(void *user, const char *path, char out_password[MLX_MAX_PASSWORD]);
// Reads a secret key file. Clear the key with mlx_secret_key_clear, also after an error.
mlx_status_t mlx_secret_key_load(const char *path, mlx_password_fn_t get_password, void *user,
                                 mlx_secret_key_t *out_key) MLX_MUST_USE;

// ---- signatures ----

typedef struct mlx_sign_options {
  const mlx_secret_key_t *key;
  const char *comment;          // NULL for minisign's default
  const char *trusted_comment;  // NULL for minisign's default: the time ($SOURCE_DATE_EPOCH, else now) and
                                // the file name
  const char *signature_path;   // NULL for the default place
  const mlx_report_t *report;   // may be NULL
} mlx_sign_options_t;

// Signs a file or a bundle. The files of a bundle are first compared with its manifest.
// *|out_signature_path| is the file that the signature was written to; release with mlx_free.
mlx_status_t mlx_sign(const char *path, const mlx_sign_options_t *options,
                      char **out_signature_path) MLX_MUST_USE;

typedef struct mlx_verify_options {
  const mlx_public_key_t *key;  // NULL for any trusted key
  const char *key_name;         // of |key|
  const char *signature_path;   // NULL for the default place
  bool may_lack_weights;        // of a bundle: they are elsewhere, and checked only if they are found
  const mlx_report_t *report;   // may be NULL
} mlx_verify_options_t;

// Verifies the signature of a file or a bundle, and checks every file of a bundle.
mlx_status_t mlx_verify(const char *path, const mlx_verify_options_t *options,
                        mlx_signer_t *out_signer) MLX_MUST_USE;

#endif  // MLXCEL_ARTIFACT_SIGN_H_
