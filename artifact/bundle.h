// Bundle: a compiled model on disk (.mlxb), opened for reading. It is a folder with the files that
// artifact/manifest.h names, or one file: an uncompressed tar archive of them, which is mapped whole, so that
// weights are used where they lie. `tar xf` makes a folder of the file, and `tar cf` of the files in the
// folder a file again.
//
// A module is code. What this machine did not make itself is therefore admitted (mlx_bundle_admit) before
// anything of it is used, and every file is checked against the manifest's digest before it is handed out.
//
// Threads: a bundle belongs to one thread at a time.
#ifndef MLXCEL_ARTIFACT_BUNDLE_H_
#define MLXCEL_ARTIFACT_BUNDLE_H_

#include "artifact/manifest.h"
#include "base/file.h"
#include "base/report.h"
#include "cache/cache.h"

#define MLX_WEIGHTS_KIND "weights"  // what the cache calls entries with an archive of weights
#define MLX_BUNDLE_KIND "bundle"    // and those that remember a bundle made here

typedef struct mlx_bundle mlx_bundle_t;

#define MLX_BUNDLE_ENDING ".mlxb"  // what a bundle is called by habit

// Whether |path| is meant to be a bundle, be it damaged: opening says what is wrong with it. It is there and
// called .mlxb, or is a folder or an archive with a manifest of ours, or a folder with a manifest.json that
// is no model's directory.
bool mlx_is_bundle(const char *path);
// The same, and never by its name alone: it has a manifest that names our format. For whoever would replace
// it.
bool mlx_holds_bundle(const char *path);
// The text of its manifest, which may be of another contract. Release with mlx_free.
mlx_status_t mlx_bundle_read_manifest(const char *path, char **out_text, size_t *out_length) MLX_MUST_USE;

// Reads the manifest and nothing else. Release with mlx_bundle_close.
mlx_status_t mlx_bundle_open(const char *path, mlx_bundle_t **out_bundle) MLX_MUST_USE;
void mlx_bundle_close(mlx_bundle_t *bundle);  // NULL is fine

// All borrowed from the bundle.
const mlx_manifest_t *mlx_bundle_manifest(const mlx_bundle_t *bundle);
const char *mlx_bundle_manifest_text(const mlx_bundle_t *bundle, size_t *out_length);
const char *mlx_bundle_path(const mlx_bundle_t *bundle);  // as given
bool mlx_bundle_is_file(const mlx_bundle_t *bundle);      // one file, not a folder

bool mlx_bundle_has(const mlx_bundle_t *bundle, const char *name);
// What messages call a file of it: "PATH/NAME".
typedef struct mlx_bundle_place {
  char text[1024];
} mlx_bundle_place_t;
mlx_bundle_place_t mlx_bundle_place(const mlx_bundle_t *bundle, const char *name);

// A file of it, read. Release with mlx_free.
mlx_status_t mlx_bundle_read(mlx_bundle_t *bundle, const char *name, size_t max_size, char **out_text,
                             size_t *out_length) MLX_MUST_USE;
// A file of it, as a view that lives as long as the bundle: weights are mapped, anything else is a copy.
// Weights that did not change since they were checked, as their stamp tells, are not read again; those that
// the bundle names without having them are looked for by their digest: beside the bundle as DIGEST.irpa, then
// in this machine's cache.
mlx_status_t mlx_bundle_map(mlx_bundle_t *bundle, const char *name, mlx_map_t *out_view) MLX_MUST_USE;
// Whether there is such a file to be read: the manifest lists it.
bool mlx_bundle_promises(const mlx_bundle_t *bundle, const char *name);

// Refuses a manifest that lists no files, as older compilers wrote it: nothing of that bundle can be checked.
mlx_status_t mlx_bundle_need_digests(const mlx_bundle_t *bundle) MLX_MUST_USE;
// Reads and checks every file that the bundle has, whatever is remembered of it; refuses one that its
// manifest does not list, and one that is missing, unless it is weights or, where another target's is whole,
// code. Of those it notes that they are not here; weights that are found by their digest are checked where
// they are. |report| may be NULL.
mlx_status_t mlx_bundle_check_all(mlx_bundle_t *bundle, const mlx_report_t *report) MLX_MUST_USE;

// Puts a signature into a bundle that is one file, at its end, in the place of one that is there. The bundle
// is of no use afterwards but to be closed.
mlx_status_t mlx_bundle_put_signature(mlx_bundle_t *bundle, const char *text, size_t length) MLX_MUST_USE;

// ---- whose it is ----

// Decides whether code of this bundle may run: this machine made it, or a trusted key signed its manifest.
// Otherwise it fails, or where |allow_unsigned| says so, does not: digests are checked all the same. A
// manifest without them and a signature that does not fit are errors in either case. *|out_vouched| is false
// when nobody vouches for it, and it is only allowed.
mlx_status_t mlx_bundle_admit(mlx_bundle_t *bundle, bool allow_unsigned, bool *out_vouched) MLX_MUST_USE;

// Remembers in |cache| that this machine made the bundle with this manifest.
mlx_status_t mlx_bundle_remember(mlx_cache_t *cache, const char *manifest, size_t length) MLX_MUST_USE;

#endif  // MLXCEL_ARTIFACT_BUNDLE_H_
