// Trust: whose signatures count on this machine. Every NAME.pub in one folder is the public key of somebody
// who is trusted, NAME being what we call them. There is no other list, no chain and no date: a file there is
// trusted, one that was removed is not.
#ifndef MLXCEL_ARTIFACT_TRUST_H_
#define MLXCEL_ARTIFACT_TRUST_H_

#include "artifact/minisign.h"

#define MLX_TRUST_ENDING ".pub"

// The folder: $MLXCEL_TRUSTED, else "trusted" in the settings' folder. It need not be there. Release with
// mlx_free.
mlx_status_t mlx_trust_folder(char **out_folder) MLX_MUST_USE;

// Who signed something.
typedef struct mlx_signer {
  char file[256];  // the name of the key's file: "alice.pub"
  mlx_key_number_text_t key;
  char comment[MLX_MAX_TRUSTED_COMMENT + 1];  // the trusted one
} mlx_signer_t;

// Fails unless a trusted key signed this; |out_who| says whose. |signature_text| (a signature's file
// |signature_name|) may be NULL: there is none, which is MLX_NOT_FOUND. So is a key that is not trusted; a
// signature that does not fit is MLX_INVALID_INPUT.
mlx_status_t mlx_trust_check(const mlx_signed_t *what, const char *signature_name, const char *signature_text,
                             size_t signature_length, mlx_signer_t *out_who) MLX_MUST_USE;
// The same for one key that the caller was given instead; |key_name| is what the signer is called.
mlx_status_t mlx_trust_check_key(const mlx_signed_t *what, const char *signature_name,
                                 const char *signature_text, size_t signature_length, const char *key_name,
                                 const mlx_public_key_t *key, mlx_signer_t *out_who) MLX_MUST_USE;

// Calls |visit| with every trusted key, in the order of their names. A status from it ends the walk; a file
// that is no key is an error.
typedef mlx_status_t (*mlx_trust_visit_fn_t)(void *user, const char *file, const mlx_public_key_t *key);
mlx_status_t mlx_trust_list(mlx_trust_visit_fn_t visit, void *user) MLX_MUST_USE;

// Reads a public key's file.
mlx_status_t mlx_public_key_load(const char *path, mlx_public_key_t *out_key) MLX_MUST_USE;
// Trusts the key in a file, under the file's name. A different key of that name is replaced with |force|
// only.
mlx_status_t mlx_trust_add(const char *path, bool force, mlx_public_key_t *out_key) MLX_MUST_USE;
// Trusts a key no more: |word| is the name of its file, with or without the ending, or its number.
mlx_status_t mlx_trust_remove(const char *word, size_t *out_removed) MLX_MUST_USE;

#endif  // MLXCEL_ARTIFACT_TRUST_H_
