// Decides whether the code of a bundle may run on this machine.
//
// A bundle is trusted if this machine compiled it or if a trusted key signed its manifest. A bundle that this
// machine compiled has an entry in the cache under its manifest's SHA-256. The manifest lists the SHA-256 of
// every other file, so trusting it is enough. Only the user can write to the cache folder.
#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "artifact/trust.h"
#include "base/memory.h"

typedef struct manifest_text {
  const char *text;
  size_t length;
} manifest_text_t;

static mlx_status_t write_manifest(void *user, const char *folder, const char *log_path) {
  const manifest_text_t *manifest = user;
  char *path;
  (void)log_path;
  MLX_TRY(mlx_join_path(folder, MLX_BUNDLE_MANIFEST, &path));
  mlx_status_t status = mlx_write_file(path, manifest->text, manifest->length);
  mlx_free(path);
  return status;
}

mlx_status_t mlx_bundle_mark_local(mlx_cache_t *cache, const char *manifest, size_t length) {
  char key[MLX_DIGEST_HEX], title[320];
  manifest_text_t text = {.text = manifest, .length = length};
  mlx_cache_entry_t entry;
  mlx_digest_bytes(manifest, length, key);
  snprintf(title, sizeof title, "compiled here from %s", mlx_manifest_origin(manifest, length).source);
  const mlx_cache_request_t request = {
      .kind = MLX_BUNDLE_KIND, .key = key, .title = title, .fill = write_manifest, .user = &text};
  MLX_TRY(mlx_cache_get(cache, &request, NULL, &entry));
  mlx_cache_release(&entry);
  return NULL;
}

// If the cache cannot be read, returns false and sets *|out_why|, which the caller owns.
static bool was_compiled_here(const char *manifest, size_t length, mlx_status_t *out_why) {
  char key[MLX_DIGEST_HEX];
  mlx_cache_t *cache = NULL;
  mlx_cache_entry_t entry = {0};
  mlx_digest_bytes(manifest, length, key);
  *out_why = mlx_cache_open(NULL, &cache);
  if (!*out_why) *out_why = mlx_cache_find(cache, MLX_BUNDLE_KIND, key, &entry);
  const bool found = !*out_why && entry.folder;
  mlx_cache_release(&entry);
  mlx_cache_close(cache);
  return found;
}

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
      .name = manifest_path.text, .bytes = text, .length = length, .is_manifest = true};
  mlx_status_t status = mlx_trust_check(&data, signature_path.text, signature, signature_length, &signer);
  mlx_free(signature);
  return status;
}

// Checks the text of the manifest, whatever its contract version is.
static mlx_status_t check_manifest(mlx_bundle_t *bundle, bool allow_unsigned, bool *out_trusted) {
  size_t length;
  const char *text = mlx_bundle_manifest_text(bundle, &length);
  mlx_status_t why;
  *out_trusted = true;
  if (was_compiled_here(text, length, &why)) return NULL;
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
  return check_manifest(bundle, allow_unsigned, out_trusted);
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
