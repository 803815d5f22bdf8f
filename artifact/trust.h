// Trust: the public keys whose signatures this machine accepts.
//
// The trusted keys are the NAME.pub files in one folder. There is no other list, no certificate chain and no
// expiry date: adding a file trusts its key, removing the file revokes it.
#ifndef MLXCEL_ARTIFACT_TRUST_H_
#define MLXCEL_ARTIFACT_TRUST_H_

#include "artifact/minisign.h"

#define MLX_TRUST_ENDING ".pub"

// Path of the folder: $MLXCEL_TRUSTED, else "trusted" in the user's configuration folder. The folder need not
// exist. Release with mlx_free.
mlx_status_t mlx_trust_folder(char **out_folder) MLX_MUST_USE;

// The key that signed a file.
typedef struct mlx_signer {
  char file[256];  // name of the key file: "alice.pub"
  mlx_key_id_text_t key;
  char comment[MLX_MAX_TRUSTED_COMMENT + 1];  // trusted comment of the signature
} mlx_signer_t;

// Fails unless a trusted key signed |data|. |signature_text| is the content of the file |signature_name|, or
// NULL if there is no signature. A missing signature and an untrusted key are MLX_NOT_FOUND; a signature that
// does not match is MLX_INVALID_INPUT.
mlx_status_t mlx_trust_check(const mlx_signed_data_t *data, const char *signature_name,
                             const char *signature_text, size_t signature_length,
                             mlx_signer_t *out_signer) MLX_MUST_USE;
// The same for one given key instead of the trusted keys. |key_name| becomes the signer's file name.
mlx_status_t mlx_trust_check_key(const mlx_signed_data_t *data, const char *signature_name,
                                 const char *signature_text, size_t signature_length, const char *key_name,
                                 const mlx_public_key_t *key, mlx_signer_t *out_signer) MLX_MUST_USE;

// Calls |visit| with every trusted key, sorted by file name. Stops at the first error. A .pub file that is
// not a key is an error, and so is one that another user owns or may write to, also through a link.
typedef mlx_status_t (*mlx_trust_visit_fn_t)(void *user, const char *file, const mlx_public_key_t *key);
mlx_status_t mlx_trust_list(mlx_trust_visit_fn_t visit, void *user) MLX_MUST_USE;

// Reads a public key file.
mlx_status_t mlx_public_key_load(const char *path, mlx_public_key_t *out_key) MLX_MUST_USE;
// Adds the key in file |path| to the trusted keys, under the same file name. Replaces a different key of that
// name only if |force| is set.
mlx_status_t mlx_trust_add(const char *path, bool force, mlx_public_key_t *out_key) MLX_MUST_USE;
// Removes a trusted key. |name| is its file name, with or without the ending, or its key ID.
mlx_status_t mlx_trust_remove(const char *name, size_t *out_removed) MLX_MUST_USE;

#endif  // MLXCEL_ARTIFACT_TRUST_H_
