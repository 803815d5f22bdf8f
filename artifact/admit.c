// Whose a bundle is. "Made here" is an entry of this machine's own cache, which only its user can write to:
// the digest of the manifest, whose digests are those of all other files.
#include <stdio.h>
#include <string.h>

#include "artifact/bundle.h"
#include "artifact/trust.h"
#include "base/memory.h"

typedef struct remembered {
  const char *text;
  size_t length;
} remembered_t;

static mlx_status_t keep_manifest(void *user, const char *folder, const char *log_path) {
  const remembered_t *manifest = user;
  char *path;
  (void)log_path;
  MLX_TRY(mlx_join_path(folder, MLX_BUNDLE_MANIFEST, &path));
  mlx_status_t status = mlx_write_file(path, manifest->text, manifest->length);
  mlx_free(path);
  return status;
}

mlx_status_t mlx_bundle_remember(mlx_cache_t *cache, const char *manifest, size_t length) {
  char key[MLX_DIGEST_HEX], title[320];
  remembered_t remembered = {.text = manifest, .length = length};
  mlx_cache_entry_t entry;
  mlx_digest_bytes(manifest, length, key);
  snprintf(title, sizeof title, "made here of %s", mlx_manifest_origin(manifest, length).source);
  const mlx_cache_request_t request = {
      .kind = MLX_BUNDLE_KIND, .key = key, .title = title, .fill = keep_manifest, .user = &remembered};
  MLX_TRY(mlx_cache_get(cache, &request, NULL, &entry));
  mlx_cache_release(&entry);
  return NULL;
}

// *|out_why| is why nobody can tell, where the cache cannot be looked at; owned by the caller.
static bool was_made_here(const char *manifest, size_t length, mlx_status_t *out_why) {
  char key[MLX_DIGEST_HEX];
  mlx_cache_t *cache = NULL;
  mlx_cache_entry_t entry = {0};
  mlx_digest_bytes(manifest, length, key);
  *out_why = mlx_cache_open(NULL, &cache);
  if (!*out_why) *out_why = mlx_cache_find(cache, MLX_BUNDLE_KIND, key, &entry);
  const bool made = !*out_why && entry.folder;
  mlx_cache_release(&entry);
  mlx_cache_close(cache);
  return made;
}

static mlx_status_t refuse_unsigned(const mlx_bundle_t *bundle, mlx_status_t why) {
  const char *again = *mlx_status_hint_text(why) ? mlx_status_hint_text(why) : "compile it again";
  return mlx_status_hint(
      mlx_error(MLX_NOT_FOUND,
                "'%s' is code that is not known as made on this machine%s%s%s, and nobody signed it",
                mlx_bundle_path(bundle), why ? " (" : "", mlx_status_message(why), why ? ")" : ""),
      "if you made it here: %s; if you trust where it comes from: --allow-unsigned; whoever made it signs it "
      "with `mlxcel sign`",
      again);
}

static mlx_status_t check_signature(mlx_bundle_t *bundle) {
  char *signature;
  size_t signature_length, length;
  mlx_signer_t who;
  MLX_TRY(
      mlx_bundle_read(bundle, MLX_BUNDLE_SIGNATURE, MLX_MAX_SIGNATURE_FILE, &signature, &signature_length));
  const mlx_bundle_place_t manifest = mlx_bundle_place(bundle, MLX_BUNDLE_MANIFEST),
                           place = mlx_bundle_place(bundle, MLX_BUNDLE_SIGNATURE);
  const char *text = mlx_bundle_manifest_text(bundle, &length);
  const mlx_signed_t what = {.name = manifest.text, .bytes = text, .length = length};
  mlx_status_t status = mlx_trust_check(&what, place.text, signature, signature_length, &who);
  mlx_free(signature);
  return status;
}

mlx_status_t mlx_bundle_admit(mlx_bundle_t *bundle, bool allow_unsigned, bool *out_vouched) {
  size_t length;
  const char *text = mlx_bundle_manifest_text(bundle, &length);
  *out_vouched = true;
  MLX_TRY(mlx_bundle_need_digests(bundle));  // whoever vouches for the manifest would say nothing of the code
  mlx_status_t why;
  if (was_made_here(text, length, &why)) return NULL;
  const bool is_signed = mlx_bundle_has(bundle, MLX_BUNDLE_SIGNATURE);
  mlx_status_t status = is_signed ? check_signature(bundle) : refuse_unsigned(bundle, why);
  mlx_status_free(why);
  if (!allow_unsigned || mlx_status_code(status) != MLX_NOT_FOUND) return status;
  mlx_status_free(status);
  *out_vouched = false;
  return NULL;
}
