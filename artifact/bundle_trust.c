// Decides whether the code of a bundle may run on this machine.
//
// A bundle is trusted if this machine compiled it (artifact/local.h) or if a trusted key signed its manifest.
// The manifest lists the SHA-256 of every other file, so trusting it is enough.
#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "artifact/local.h"
#include "artifact/trust.h"
#include "base/memory.h"

static mlx_status_t refuse_unsigned(const mlx_bundle_t *bundle, mlx_status_t why) {
  const char *repair = *mlx_status_hint_text(why) ? mlx_status_hint_text(why) : "compile it again";
  return mlx_status_hint(
      mlx_error(MLX_NOT_FOUND,
                "cannot run '%s': it is not signed, and this machine has no record of compiling it%s%s%s",
                mlx_bundle_path(bundle), why ? " (" : "", mlx_status_message(why), why ? ")" : ""),
      "if you compiled it here: %s; if you trust its source: run with --allow-unsigned; its publisher can "
      "sign it with `mlxcel sign`",
      repair);
}

static mlx_status_t check_signature(mlx_bundle_t *bundle) {
  char *signature;
  size_t signature_length, length;
  mlx_signer_t signer;
  MLX_TRY(
      mlx_bundle_read(bundle, MLX_BUNDLE_SIGNATURE, MLX_MAX_SIGNATURE_FILE, &signature, &signature_length));
  const mlx_bundle_display_path_t manifest_path = mlx_bundle_display_path(bundle, MLX_BUNDLE_MANIFEST),
                                  signature_path = mlx_bundle_display_path(bundle, MLX_BUNDLE_SIGNATURE);
  const char *text = mlx_bundle_manifest_text(bundle, &length);
  const mlx_signed_data_t data = {
      .name = manifest_path.text, .bytes = text, .length = length, .domain = MLX_DOMAIN_BUNDLE};
  mlx_status_t status = mlx_trust_check(&data, signature_path.text, signature, signature_length, &signer);
  mlx_free(signature);
  return status;
}

// Checks the text of the manifest, whatever its contract version is.
static mlx_status_t check_manifest(mlx_bundle_t *bundle, bool allow_unsigned, bool *out_trusted) {
  size_t length;
  const char *text = mlx_bundle_manifest_text(bundle, &length);
  bool is_local;
  *out_trusted = true;
  mlx_status_t why = mlx_local_find(text, length, &is_local);  // a bundle can be signed, whatever |why| is
  if (is_local) return NULL;
  const bool is_signed = mlx_bundle_has(bundle, MLX_BUNDLE_SIGNATURE);
  mlx_status_t status = is_signed ? check_signature(bundle) : refuse_unsigned(bundle, why);
  mlx_status_free(why);
  if (!allow_unsigned || mlx_status_code(status) != MLX_NOT_FOUND) return status;
  mlx_status_free(status);
  *out_trusted = false;
  return NULL;
}

mlx_status_t mlx_bundle_check_trust(mlx_bundle_t *bundle, bool allow_unsigned, bool *out_trusted) {
  MLX_TRY(mlx_bundle_require_digests(bundle));  // without digests, a signed manifest does not cover the code
  MLX_TRY(check_manifest(bundle, allow_unsigned, out_trusted));
  return mlx_bundle_check_names(bundle);
}

mlx_status_t mlx_bundle_trusted_origin(const char *path, bool allow_unsigned,
                                       mlx_manifest_origin_t *out_origin) {
  mlx_bundle_t *bundle;
  bool trusted;
  size_t length;
  *out_origin = (mlx_manifest_origin_t){.contract = -1};
  MLX_TRY(mlx_bundle_open_unparsed(path, &bundle));
  mlx_status_t status = check_manifest(bundle, allow_unsigned, &trusted);
  const char *text = mlx_bundle_manifest_text(bundle, &length);
  if (!status) *out_origin = mlx_manifest_origin(text, length);
  mlx_bundle_close(bundle);
  return status;
}
