#include "artifact/minisign.h"

#include <string.h>

#include "base/memory.h"

// One text, read as each kind of file. What is read as a key must be written so that it reads the same. An
// encrypted key is only looked at: trying a password takes its time.
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
    memcpy(key.number.bytes, signature.number.bytes, sizeof key.number.bytes);
    status = mlx_signature_verify(&signature, &key, &(mlx_signed_t){"fuzz", data, size});
    if (!status) __builtin_trap();  // nobody signs a text that holds the signature
  }
  mlx_status_free(status);
  status = mlx_secret_key_needs_password("fuzz.key", text, size, &encrypted);
  if (!status && !encrypted) status = mlx_secret_key_read("fuzz.key", text, size, NULL, &secret);
  mlx_status_free(status);
  return 0;
}
