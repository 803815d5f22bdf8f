// Bundle: a compiled model on disk (.mlxb), opened for reading.
//
// A bundle is a folder with the files named in artifact/manifest.h, or one uncompressed tar archive of them.
// The archive is mapped as a whole, so that weights are used in place. `tar xf` turns the single file into
// the folder form; `tar cf` of the folder's files turns it back.
//
// A module is code. Before the runtime uses any of it, mlx_bundle_check_trust must accept the bundle. Every
// file is checked against the manifest's digest before the caller gets it.
//
// Threads: a bundle belongs to one thread at a time.
#ifndef MLXCEL_ARTIFACT_BUNDLE_H_
#define MLXCEL_ARTIFACT_BUNDLE_H_

#include "artifact/manifest.h"
#include "base/file.h"
#include "base/report.h"
#include "cache/cache.h"

#define MLX_WEIGHTS_KIND "weights"  // kind of cache entries that hold a weights archive

typedef struct mlx_bundle mlx_bundle_t;

#define MLX_BUNDLE_ENDING ".mlxb"  // usual ending of a bundle's name

// True if |path| is meant to be a bundle, even a damaged one; mlx_bundle_open reports the damage. |path| is
// one of:
//   - an existing path that ends in .mlxb
//   - a folder or archive with a manifest that names our format
//   - a folder with a manifest.json but without a config.json, which would make it a model
bool mlx_is_bundle(const char *path);
// True if |path| has a manifest that names our format, whatever the path is called. Check this before
// replacing |path|.
bool mlx_has_bundle_manifest(const char *path);
// Reads the text of the manifest, of any contract version. Release with mlx_free.
mlx_status_t mlx_bundle_read_manifest(const char *path, char **out_text, size_t *out_length) MLX_MUST_USE;

// Opens a bundle and reads its manifest, nothing else. Release with mlx_bundle_close.
mlx_status_t mlx_bundle_open(const char *path, mlx_bundle_t **out_bundle) MLX_MUST_USE;
// Opens a bundle of any contract version without parsing its manifest. The caller may only use its text, its
// path and its signature.
mlx_status_t mlx_bundle_open_unparsed(const char *path, mlx_bundle_t **out_bundle) MLX_MUST_USE;
void mlx_bundle_close(mlx_bundle_t *bundle);  // NULL is fine

// All borrowed from the bundle.
const mlx_manifest_t *mlx_bundle_manifest(const mlx_bundle_t *bundle);
const char *mlx_bundle_manifest_text(const mlx_bundle_t *bundle, size_t *out_length);
const char *mlx_bundle_path(const mlx_bundle_t *bundle);  // as given to mlx_bundle_open
bool mlx_bundle_is_file(const mlx_bundle_t *bundle);      // single-file form

// True if the bundle contains a file called |name|.
bool mlx_bundle_has(const mlx_bundle_t *bundle, const char *name);
// True if the manifest lists |name|.
bool mlx_bundle_lists(const mlx_bundle_t *bundle, const char *name);
// "PATH/NAME", for messages. In the single-file form there is no such path on disk.
typedef struct mlx_bundle_display_path {
  char text[1024];
} mlx_bundle_display_path_t;
mlx_bundle_display_path_t mlx_bundle_display_path(const mlx_bundle_t *bundle, const char *name);

// Reads one file and checks its digest. Release with mlx_free.
mlx_status_t mlx_bundle_read(mlx_bundle_t *bundle, const char *name, size_t max_size, char **out_text,
                             size_t *out_length) MLX_MUST_USE;
// Returns a view of one file that is valid until the bundle is closed. Weights are mapped, other files are
// copied to memory. Weights are not hashed again if their file stamp has not changed since the last check.
// Weights that the manifest lists but the bundle lacks are looked up by digest: first as DIGEST.irpa beside
// the bundle, then in the cache. |watch| observes the hashing of weights; NULL for none.
mlx_status_t mlx_bundle_map(mlx_bundle_t *bundle, const char *name, const mlx_digest_watch_t *watch,
                            mlx_map_t *out_view) MLX_MUST_USE;

// Fails if the manifest lists no files. Older compilers wrote such manifests; their bundles cannot be
// verified.
mlx_status_t mlx_bundle_require_digests(const mlx_bundle_t *bundle) MLX_MUST_USE;
// Fails on a bundle file that the manifest does not list or that is not a regular file. Reads no file.
mlx_status_t mlx_bundle_check_names(mlx_bundle_t *bundle) MLX_MUST_USE;
// mlx_bundle_check_names, then reads and hashes every file of the bundle, ignoring cached digests. Fails on a
// listed file that is missing. Two kinds of files may be missing: weights with |may_lack_weights|, and the
// files of one target if another target is complete. Reports a note for each of those; weights found by
// digest are checked where they are. |report| may be NULL.
mlx_status_t mlx_bundle_check_all(mlx_bundle_t *bundle, bool may_lack_weights,
                                  const mlx_report_t *report) MLX_MUST_USE;

// Appends a signature to a single-file bundle, or replaces the one at its end. Afterwards the caller may only
// close the bundle.
mlx_status_t mlx_bundle_put_signature(mlx_bundle_t *bundle, const char *text, size_t length) MLX_MUST_USE;

// ---- trust (artifact/bundle_trust.c) ----

// Decides whether the code of this bundle may run: this machine compiled it, or a trusted key signed its
// manifest. Any other bundle is an error, unless |allow_unsigned| is set: then *|out_trusted| is false.
// |allow_unsigned| does not disable digest checks, and a signature that does not match stays an error. Fails
// as mlx_bundle_check_names does, so that `run` and `verify` agree.
mlx_status_t mlx_bundle_check_trust(mlx_bundle_t *bundle, bool allow_unsigned,
                                    bool *out_trusted) MLX_MUST_USE;

// Reads the origin fields of a bundle of any contract version, after the same trust check of the same text.
// Nothing may be opened or compiled because a manifest names it before this succeeds.
mlx_status_t mlx_bundle_trusted_origin(const char *path, bool allow_unsigned,
                                       mlx_manifest_origin_t *out_origin) MLX_MUST_USE;

#endif  // MLXCEL_ARTIFACT_BUNDLE_H_
