// Finds the source model that a bundle was compiled from. See replacement.h.
#include "open/replacement.h"

#include <string.h>

#include "artifact/bundle.h"
#include "base/file.h"
#include "base/memory.h"
#include "compiler/compile.h"
#include "runtime/rooms.h"

// Finds the source model that |origin| names beside the bundle. *|out_path| is NULL if there is none or its
// digest differs. Release with mlx_free.
static mlx_status_t find_source(const char *bundle, const mlx_manifest_origin_t *origin,
                                const mlx_report_t *report, char **out_path) {
  char *folder = NULL, digest[MLX_DIGEST_HEX] = "";
  *out_path = NULL;
  if (!mlx_is_safe_path(origin->source) || strchr(origin->source, '/') || !origin->source_digest[0])
    return NULL;
  mlx_status_t status = mlx_folder_of(bundle, &folder);
  if (!status) status = mlx_join_path(folder, origin->source, out_path);
  if (!status && (mlx_is_file(*out_path) || mlx_is_dir(*out_path)) && !mlx_is_bundle(*out_path))
    status = mlx_compile_source_digest(*out_path, report, digest);
  if (status || strcmp(digest, origin->source_digest)) {
    mlx_free(*out_path);
    *out_path = NULL;
  }
  mlx_free(folder);
  return status;
}

mlx_status_t mlx_find_replacement(const char *bundle, const mlx_engine_options_t *options,
                                  mlx_status_t status, char **out_source) {
  mlx_manifest_origin_t origin;
  *out_source = NULL;
  if (mlx_status_code(status) != MLX_UNSUPPORTED || !mlx_engine_needs_recompile(bundle)) return status;
  mlx_status_t untrusted = mlx_bundle_trusted_origin(bundle, options->allow_unsigned, &origin);
  if (untrusted && mlx_status_code(untrusted) != MLX_NOT_FOUND) {
    mlx_status_free(status);
    return untrusted;
  }
  if (mlx_compiler_hint()) {
    mlx_status_free(untrusted);
    return mlx_status_rehint(status, "%s", mlx_compiler_hint());
  }
  // If find_source fails, |status| is the error to report.
  if (!untrusted) mlx_status_free(find_source(bundle, &origin, options->report, out_source));
  mlx_status_free(untrusted);
  return status;
}
