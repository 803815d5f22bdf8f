// Reads arbitrary text as each kind of minisign file.
#include "artifact/minisign.h"

#include <string.h>

#include "base/memory.h"

// An accepted public key must survive a write and a read. An encrypted secret key is only parsed, because
// scrypt would take too long.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *text = (const char *)data;
  mlx_public_key_t key = {0}, again;
  mlx_secret_key_t secret;
  mlx_signature_t signature;
  bool encrypted = false;
  char *written = NULL;
  size_t length = 0;
  mlx_status_t status = mlx_public_key_read("fuzz.pub", text, size, &key);
  if (!status &&
      (mlx_public_key_write(&key, &written, &length) ||
       mlx_public_key_read("written", written, length, &again) || !mlx_public_key_equal(&key, &again))) {
    __builtin_trap();
  }
  mlx_free(written);
  mlx_status_free(status);
  status = mlx_signature_read("fuzz.minisig", text, size, &signature);
  if (!status) {
    memcpy(key.id.bytes, signature.id.bytes, sizeof key.id.bytes);
    status = mlx_signature_verify(&signature, &key, &(mlx_signed_data_t){"fuzz", data, size, false});
    if (!status) __builtin_trap();  // a text cannot contain its own valid signature
  }
  mlx_status_free(status);
  status = mlx_secret_key_needs_password("fuzz.key", text, size, &encrypted);
  if (!status && !encrypted) status = mlx_secret_key_read("fuzz.key", text, size, NULL, &secret);
  mlx_status_free(status);
  return 0;
}
