// Opens bundles, reads their files and checks them against the manifest. See bundle.h.
#include "artifact/bundle.h"

#include <stdio.h>
#include <string.h>

#include "artifact/tar.h"
#include "base/memory.h"
#include "base/meter.h"
#include "base/text.h"

#define MAX_PARTS (MLX_MAX_BUNDLE_FILES + 2)  // listed files, the manifest and its signature
#define MAX_CODE ((size_t)1 << 30)            // bytes; size limit of a file that is copied to memory
#define CODE_ALIGNMENT 4096                   // bytes; the same alignment as a mapping
#define DAMAGED "the bundle is damaged: compile or pull it again"

// One file of the single-file form.
typedef struct part {
  char name[MLX_BUNDLE_NAME];
  uint64_t offset, size;
} part_t;

struct mlx_bundle {
  char *path;
  mlx_map_t whole;         // single-file form only: the mapped archive
  mlx_file_stamp_t stamp;  // of the mapped archive
  part_t parts[MAX_PARTS];
  size_t part_count;
  uint64_t end;  // end of the last archive member, which may be a file that is not part of the bundle
  char *text;    // of the manifest
  size_t length;
  mlx_manifest_t manifest;
  mlx_map_t maps[MAX_PARTS];  // weights that were returned as views
  size_t map_count;
  char *copies[MAX_PARTS];  // other files that were returned as views
  size_t copy_count;
  mlx_cache_t *cache;               // opened on first use; NULL before that, or if it cannot be opened
  mlx_cache_entry_t weights_entry;  // keeps weights found in the cache from being cleared
};

// ----------------------------------------------------------------------------------------------------------
// Single-file form

static mlx_status_t add_part(mlx_bundle_t *bundle, const mlx_tar_member_t *member) {
  const char *name = member->name;
  if (member->folder || !mlx_is_bundle_file(name))
    return NULL;  // other members are ignored, as in the folder form
  for (size_t i = 0; i < bundle->part_count; ++i) {
    if (!strcmp(bundle->parts[i].name, name))
      return mlx_error(MLX_INVALID_INPUT, "'%s' contains '%s' twice", bundle->path, name);
  }
  if (bundle->part_count == MAX_PARTS)
    return mlx_error(MLX_INVALID_INPUT, "'%s' contains more than %d bundle files", bundle->path,
                     (int)MAX_PARTS);
  part_t *part = &bundle->parts[bundle->part_count++];
  memcpy(part->name, name, strlen(name) + 1);  // fits: mlx_is_bundle_file limits the length
  part->offset = member->offset;
  part->size = member->size;
  return NULL;
}

static mlx_status_t read_archive(mlx_bundle_t *bundle) {
  mlx_tar_t tar = {.name = bundle->path, .bytes = bundle->whole.data, .fd = -1, .size = bundle->whole.size};
  mlx_tar_member_t member;
  bool found;
  for (;;) {
    MLX_TRY(mlx_tar_next(&tar, &member, &found));
    bundle->end = tar.offset;
    if (!found) return NULL;
    MLX_TRY(add_part(bundle, &member));
  }
}

static const part_t *find_part(const mlx_bundle_t *bundle, const char *name) {
  for (size_t i = 0; i < bundle->part_count; ++i) {
    if (!strcmp(bundle->parts[i].name, name)) return &bundle->parts[i];
  }
  return NULL;
}

static mlx_status_t check_unchanged(const mlx_bundle_t *bundle) {
  mlx_file_stamp_t now;
  MLX_TRY(mlx_file_stamp(bundle->path, &now));
  if (mlx_file_stamp_same_content(&now, &bundle->stamp)) return NULL;
  return mlx_status_hint(mlx_error(MLX_IO, "'%s' changed while it was being read", bundle->path),
                         "run the command again");
}

// The path names a model that must be compiled first.
static mlx_status_t not_compiled(const mlx_bundle_t *bundle, const char *what) {
  const size_t length = strlen(bundle->path) - (mlx_ends_with(bundle->path, ".gguf") ? 5 : 0);
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "'%s' is %s: only compiled bundles (.mlxb) are opened here", bundle->path,
                what),
      "compile it: mlxcel compile %s -o %.*s.mlxb", bundle->path, (int)length, bundle->path);
}

static mlx_status_t open_archive(mlx_bundle_t *bundle) {
  MLX_TRY(mlx_file_stamp(bundle->path, &bundle->stamp));
  MLX_TRY(mlx_map_file(bundle->path, &bundle->whole));
  MLX_TRY(check_unchanged(bundle));
  if (bundle->whole.size >= 4 && !memcmp(bundle->whole.data, "GGUF", 4))
    return not_compiled(bundle, "a GGUF file");
  MLX_TRY(mlx_lfs_check(bundle->path, bundle->whole.data, bundle->whole.size));
  return mlx_status_hint(read_archive(bundle), DAMAGED);
}

// ----------------------------------------------------------------------------------------------------------
// Opening

bool mlx_bundle_is_file(const mlx_bundle_t *bundle) { return bundle->part_count > 0; }

static mlx_status_t missing(const mlx_bundle_t *bundle, const char *name) {
  return mlx_status_hint(
      mlx_error(MLX_NOT_FOUND, "'%s/%s' does not exist", bundle->path, name),
      mlx_is_weights_file(name)
          ? "compile or pull the bundle again; if it was compiled with --no-weights: mlxcel "
            "verify --no-weights"
          : "the bundle is incomplete: compile or pull it again");
}

bool mlx_bundle_has(const mlx_bundle_t *bundle, const char *name) {
  char *path;
  if (mlx_bundle_is_file(bundle)) return find_part(bundle, name);
  mlx_status_t status = mlx_join_path(bundle->path, name, &path);
  const bool has = !status && mlx_is_file(path);
  mlx_status_free(status);
  mlx_free(path);
  return has;
}

// Reads a file without checking its digest.
static mlx_status_t read_raw(const mlx_bundle_t *bundle, const char *name, size_t max_size, char **out_text,
                             size_t *out_length) {
  *out_text = NULL;
  *out_length = 0;
  if (!mlx_bundle_has(bundle, name)) return missing(bundle, name);
  if (!mlx_bundle_is_file(bundle)) {
    char *path;
    MLX_TRY(mlx_join_path(bundle->path, name, &path));
    mlx_status_t status = mlx_read_file(path, max_size, out_text, out_length);
    mlx_free(path);
    return status;
  }
  const part_t *part = find_part(bundle, name);
  if (part->size > max_size) {
    return mlx_error(MLX_INVALID_INPUT, "'%s' in '%s' is longer than the limit of %zu bytes", name,
                     bundle->path, max_size);
  }
  MLX_TRY(mlx_copy_text((const char *)bundle->whole.data + part->offset, (size_t)part->size, out_text));
  *out_length = (size_t)part->size;
  return NULL;
}

mlx_status_t mlx_bundle_open_unparsed(const char *path, mlx_bundle_t **out_bundle) {
  mlx_bundle_t *bundle;
  *out_bundle = NULL;
  MLX_TRY(mlx_alloc(1, sizeof *bundle, &bundle));
  size_t length = strlen(path);
  while (length > 1 && path[length - 1] == '/') --length;
  mlx_status_t status = mlx_copy_text(path, length, &bundle->path);
  if (!status && !mlx_is_dir(path)) status = open_archive(bundle);
  if (!status && !mlx_bundle_has(bundle, MLX_BUNDLE_MANIFEST) && mlx_bundle_has(bundle, "config.json"))
    status = not_compiled(bundle, "a Hugging Face directory");
  if (!status)
    status = read_raw(bundle, MLX_BUNDLE_MANIFEST, MLX_MAX_MANIFEST, &bundle->text, &bundle->length);
  if (status) {
    mlx_bundle_close(bundle);
    return status;
  }
  *out_bundle = bundle;
  return NULL;
}

mlx_status_t mlx_bundle_open(const char *path, mlx_bundle_t **out_bundle) {
  MLX_TRY(mlx_bundle_open_unparsed(path, out_bundle));
  mlx_bundle_t *bundle = *out_bundle;
  const mlx_bundle_display_path_t manifest_path = mlx_bundle_display_path(bundle, MLX_BUNDLE_MANIFEST);
  mlx_status_t status =
      mlx_manifest_read(manifest_path.text, bundle->text, bundle->length, &bundle->manifest);
  if (!status) return NULL;
  mlx_bundle_close(bundle);
  *out_bundle = NULL;
  return status;
}

void mlx_bundle_close(mlx_bundle_t *bundle) {
  if (!bundle) return;
  for (size_t i = 0; i < bundle->map_count; ++i) mlx_unmap(&bundle->maps[i]);
  for (size_t i = 0; i < bundle->copy_count; ++i) mlx_free(bundle->copies[i]);
  mlx_unmap(&bundle->whole);
  mlx_cache_release(&bundle->weights_entry);
  mlx_cache_close(bundle->cache);
  mlx_free(bundle->text);
  mlx_free(bundle->path);
  mlx_free(bundle);
}

mlx_status_t mlx_bundle_read_manifest(const char *path, char **out_text, size_t *out_length) {
  mlx_bundle_t *bundle;
  *out_text = NULL;
  MLX_TRY(mlx_bundle_open_unparsed(path, &bundle));
  *out_text = bundle->text;
  *out_length = bundle->length;
  bundle->text = NULL;
  mlx_bundle_close(bundle);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Recognizing a bundle

static mlx_status_t read_archive_manifest(const char *path, const mlx_map_t *map, char **out_text) {
  mlx_tar_t tar = {.name = path, .bytes = map->data, .fd = -1, .size = map->size};
  mlx_tar_member_t member;
  // Skips files that are not tar archives, for example GGUF.
  bool found = map->size >= MLX_TAR_BLOCK && !memcmp(map->data + 257, "ustar", 5);
  while (found) {
    MLX_TRY(mlx_tar_next(&tar, &member, &found));
    if (!found || strcmp(member.name, MLX_BUNDLE_MANIFEST)) continue;
    return mlx_copy_text((const char *)map->data + member.offset,
                         member.size < MLX_MAX_MANIFEST ? (size_t)member.size : MLX_MAX_MANIFEST, out_text);
  }
  return NULL;
}

static mlx_status_t read_folder_manifest(const char *path, char **out_text) {
  char *manifest;
  MLX_TRY(mlx_join_path(path, MLX_BUNDLE_MANIFEST, &manifest));
  mlx_status_t status =
      mlx_is_file(manifest) ? mlx_read_file(manifest, MLX_MAX_MANIFEST, out_text, NULL) : NULL;
  mlx_free(manifest);
  return status;
}

// Returns the text of manifest.json in |path|, even if the rest of the bundle is damaged; NULL if it has
// none. Release with mlx_free.
static char *peek_manifest(const char *path) {
  mlx_map_t map = {0};
  char *text = NULL;
  mlx_status_t status = NULL;
  if (mlx_is_dir(path)) {
    status = read_folder_manifest(path, &text);
  } else if (mlx_is_file(path)) {
    status = mlx_map_file(path, &map);
    if (!status) status = read_archive_manifest(path, &map, &text);
    mlx_unmap(&map);
  }
  mlx_status_free(status);
  return text;
}

// A text search, because the manifest may be truncated.
static bool names_our_format(const char *manifest) {
  return manifest && strstr(manifest, "\"" MLX_BUNDLE_FORMAT "\"");
}

static bool is_model_folder(const char *path) {
  char *config;
  mlx_status_t status = mlx_join_path(path, "config.json", &config);
  const bool is = !status && mlx_is_file(config);
  mlx_status_free(status);
  mlx_free(config);
  return is;
}

bool mlx_has_bundle_manifest(const char *path) {
  char *manifest = peek_manifest(path);
  const bool is_ours = names_our_format(manifest);
  mlx_free(manifest);
  return is_ours;
}

bool mlx_is_bundle(const char *path) {
  const bool folder = mlx_is_dir(path);
  const mlx_file_name_t name = mlx_file_name(path);
  const size_t length = strlen(name.text), ending = strlen(MLX_BUNDLE_ENDING);
  if (length > ending && !strcmp(name.text + length - ending, MLX_BUNDLE_ENDING))
    return folder || mlx_is_file(path);
  char *manifest = peek_manifest(path);
  const bool is = names_our_format(manifest) || (manifest && folder && !is_model_folder(path));
  mlx_free(manifest);
  return is;
}

bool mlx_bundle_lists(const mlx_bundle_t *bundle, const char *name) {
  return mlx_manifest_file(&bundle->manifest, name) != NULL;
}

const mlx_manifest_t *mlx_bundle_manifest(const mlx_bundle_t *bundle) { return &bundle->manifest; }

const char *mlx_bundle_manifest_text(const mlx_bundle_t *bundle, size_t *out_length) {
  *out_length = bundle->length;
  return bundle->text;
}

const char *mlx_bundle_path(const mlx_bundle_t *bundle) { return bundle->path; }

mlx_bundle_display_path_t mlx_bundle_display_path(const mlx_bundle_t *bundle, const char *name) {
  mlx_bundle_display_path_t path;
  snprintf(path.text, sizeof path.text, "%s/%s", bundle->path, name);
  return path;
}

// ----------------------------------------------------------------------------------------------------------
// Checking

// Returns NULL if the cache cannot be opened. Every file is then hashed again, and missing weights are not
// looked up in the cache.
static mlx_cache_t *cache_of(mlx_bundle_t *bundle) {
  if (!bundle->cache) mlx_status_free(mlx_cache_open(NULL, &bundle->cache));
  return bundle->cache;
}

static mlx_status_t compare_size(const mlx_bundle_file_t *file, const char *path, uint64_t size) {
  if (size == (uint64_t)file->size) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_INVALID_INPUT,
                "'%s' does not match the bundle's manifest: its size is %llu bytes, expected %lld", path,
                (unsigned long long)size, (long long)file->size),
      DAMAGED);
}

static mlx_status_t compare_digest(const char *path, const char *kind, const char *digest,
                                   const char *expected) {
  if (!strcmp(digest, expected)) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_INVALID_INPUT, "'%s' does not match the bundle's manifest: its %s is %s, expected %s",
                path, kind, digest, expected),
      DAMAGED);
}

// The bytes of a listed file: |size| bytes at |offset| of |path|. |shown| is the path for messages.
typedef struct listed_bytes {
  const mlx_bundle_file_t *file;
  const char *path, *shown;
  bool is_part;  // of the single-file form; else the whole of |path|
  uint64_t offset, size;
  const mlx_digest_watch_t *watch;
} listed_bytes_t;

static mlx_status_t check_sha256(mlx_cache_t *cache, const listed_bytes_t *b) {
  char hex[MLX_DIGEST_HEX];
  if (!cache)
    MLX_TRY(mlx_digest_part(b->path, b->offset, b->size, b->watch, hex));
  else if (!b->is_part)
    MLX_TRY(mlx_cache_digest_file(cache, b->path, b->watch, hex));
  else
    MLX_TRY(mlx_cache_digest_part(cache, b->path, b->offset, b->size, b->watch, hex));
  return compare_digest(b->shown, "SHA-256", hex, b->file->sha256);
}

static mlx_status_t check_tree(mlx_cache_t *cache, const listed_bytes_t *b) {
  char hex[MLX_DIGEST_HEX];
  MLX_TRY(cache ? mlx_cache_tree_digest_part(cache, b->path, b->offset, b->size, b->watch, hex)
                : mlx_tree_digest_part(b->path, b->offset, b->size, 0, b->watch, hex));
  return compare_digest(b->shown, "tree digest", hex, b->file->tree);
}

// FOR_USE checks the tree digest if the manifest has one: several threads compute it. With a cache, a file
// that has not changed since its last check is not read again. COMPLETE reads the file and checks both
// digests: registries identify a file by its SHA-256.
typedef enum check_kind { FOR_USE, COMPLETE } check_kind_t;

static mlx_status_t check_bytes(mlx_cache_t *cache, check_kind_t kind, const listed_bytes_t *b) {
  const bool has_tree = b->file->tree[0];
  if (kind == COMPLETE) cache = NULL;
  MLX_TRY(compare_size(b->file, b->shown, b->size));
  if (has_tree) MLX_TRY(check_tree(cache, b));
  return has_tree && kind == FOR_USE ? NULL : check_sha256(cache, b);
}

static mlx_status_t check_path(mlx_cache_t *cache, check_kind_t kind, const mlx_bundle_file_t *file,
                               const char *path, const mlx_digest_watch_t *watch) {
  mlx_file_stamp_t stamp;
  MLX_TRY(mlx_file_stamp(path, &stamp));
  const listed_bytes_t bytes = {
      .file = file, .path = path, .shown = path, .size = stamp.size, .watch = watch};
  return check_bytes(cache, kind, &bytes);
}

static mlx_status_t check_part(mlx_cache_t *cache, check_kind_t kind, const mlx_bundle_t *bundle,
                               const mlx_bundle_file_t *file, const part_t *part,
                               const mlx_digest_watch_t *watch) {
  const mlx_bundle_display_path_t shown = mlx_bundle_display_path(bundle, file->name);
  const listed_bytes_t bytes = {.file = file,
                                .path = bundle->path,
                                .shown = shown.text,
                                .is_part = true,
                                .offset = part->offset,
                                .size = part->size,
                                .watch = watch};
  MLX_TRY(check_bytes(cache, kind, &bytes));
  return check_unchanged(bundle);  // so the file just hashed by its path is the one mapped
}

mlx_status_t mlx_bundle_require_digests(const mlx_bundle_t *bundle) {
  if (bundle->manifest.file_count) return NULL;
  return mlx_status_hint(mlx_error(MLX_UNSUPPORTED,
                                   "cannot verify '%s': its manifest lists no files (an older mlxcel wrote "
                                   "it)",
                                   bundle->path),
                         "compile the model again");
}

static mlx_status_t not_listed(const mlx_bundle_t *bundle, const char *name) {
  MLX_TRY(mlx_bundle_require_digests(bundle));
  return mlx_status_hint(
      mlx_error(MLX_INVALID_INPUT, "'%s' contains %s, which its manifest does not list", bundle->path, name),
      "remove that file, or compile or pull the model again");
}

// Hashes the file, ignoring cached digests.
static mlx_status_t check_uncached(const mlx_bundle_t *bundle, const mlx_bundle_file_t *file,
                                   const mlx_digest_watch_t *watch) {
  char *path;
  if (!mlx_bundle_has(bundle, file->name)) return missing(bundle, file->name);
  if (mlx_bundle_is_file(bundle))
    return check_part(NULL, COMPLETE, bundle, file, find_part(bundle, file->name), watch);
  MLX_TRY(mlx_join_path(bundle->path, file->name, &path));
  mlx_status_t status = check_path(NULL, COMPLETE, file, path, watch);
  mlx_free(path);
  return status;
}

// Fails on a bundle file that the manifest does not list, because no digest covers it, and on one that is not
// a regular file: reading a FIFO would wait for a writer.
static mlx_status_t check_name(void *user, const char *name) {
  const mlx_bundle_t *bundle = user;
  if (!mlx_is_bundle_file(name)) return NULL;
  const bool is_own = !strcmp(name, MLX_BUNDLE_MANIFEST) || !strcmp(name, MLX_BUNDLE_SIGNATURE);
  if (!is_own && !mlx_manifest_file(&bundle->manifest, name)) return not_listed(bundle, name);
  if (mlx_bundle_has(bundle, name)) return NULL;
  return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "'%s/%s' is not a regular file", bundle->path, name),
                         DAMAGED);
}

mlx_status_t mlx_bundle_check_names(mlx_bundle_t *bundle) {
  for (size_t i = 0; i < bundle->part_count; ++i) MLX_TRY(check_name(bundle, bundle->parts[i].name));
  return mlx_bundle_is_file(bundle) ? NULL : mlx_list_dir(bundle->path, check_name, bundle);
}

// A file may be missing if not every target needs it and at least one target is complete. With
// |may_lack_weights|, weights may always be missing.
static bool may_be_missing(const mlx_bundle_t *bundle, const char *name, bool may_lack_weights) {
  const mlx_manifest_t *m = &bundle->manifest;
  bool all_need_it = true, one_is_complete = false;
  if (may_lack_weights && mlx_is_weights_file(name)) return true;
  for (size_t i = 0; i < m->variant_count; ++i) {
    bool complete = true;
    all_need_it = all_need_it && mlx_manifest_needs(m, m->variants[i].target, name);
    for (size_t j = 0; j < m->file_count && complete; ++j) {
      const char *other = m->files[j].name;
      complete = (may_lack_weights && mlx_is_weights_file(other)) ||
                 !mlx_manifest_needs(m, m->variants[i].target, other) || mlx_bundle_has(bundle, other);
    }
    one_is_complete = one_is_complete || complete;
  }
  return !all_need_it && one_is_complete;
}

// Looks for missing weights by digest, beside the bundle and in the cache. *|out_path| is NULL if they are
// nowhere; release with mlx_free.
static mlx_status_t find_by_digest(mlx_bundle_t *bundle, const mlx_bundle_file_t *file, char **out_path) {
  char *folder;
  *out_path = NULL;
  MLX_TRY(mlx_folder_of(bundle->path, &folder));
  mlx_status_t status = mlx_format(out_path, "%s/%s.irpa", folder, file->sha256);
  mlx_free(folder);
  if (status || mlx_is_file(*out_path)) return status;
  mlx_free(*out_path);
  *out_path = NULL;
  mlx_cache_release(&bundle->weights_entry);
  return file->tree[0] && cache_of(bundle) ? mlx_cache_find_file(bundle->cache, MLX_WEIGHTS_KIND, file->tree,
                                                                 &bundle->weights_entry, out_path)
                                           : NULL;
}

// Reports a note about a file that may be missing. Weights found by digest are checked.
static mlx_status_t check_missing(mlx_bundle_t *bundle, const mlx_bundle_file_t *file,
                                  const mlx_digest_watch_t *watch, const mlx_report_t *report) {
  char *path;
  if (!mlx_is_weights_file(file->name)) {
    mlx_report_note(report, "%s: missing, not checked: code for another target", file->name);
    return NULL;
  }
  MLX_TRY(find_by_digest(bundle, file, &path));
  mlx_status_t status = path ? check_path(NULL, COMPLETE, file, path, watch) : NULL;
  if (!status && path)
    mlx_report_note(report, "%s: not in the bundle, found by digest: %s", file->name, path);
  if (!status && !path)
    mlx_report_note(report,
                    "%s: not in the bundle, not checked: it is looked up by digest when the model runs",
                    file->name);
  mlx_free(path);
  return status;
}

mlx_status_t mlx_bundle_check_all(mlx_bundle_t *bundle, bool may_lack_weights, const mlx_report_t *report) {
  const mlx_manifest_t *m = &bundle->manifest;
  mlx_status_t status = NULL;
  MLX_TRY(mlx_bundle_require_digests(bundle));
  MLX_TRY(mlx_bundle_check_names(bundle));
  for (size_t i = 0; i < m->file_count && !status; ++i) {
    const mlx_bundle_file_t *file = &m->files[i];
    const bool is_missing =
        !mlx_bundle_has(bundle, file->name) && may_be_missing(bundle, file->name, may_lack_weights);
    mlx_meter_t meter;
    char title[128];
    snprintf(title, sizeof title, "checking %.100s", file->name);
    mlx_meter_begin(&meter, report, title, 0);
    const mlx_digest_watch_t watch = mlx_meter_watch(&meter);
    status = is_missing ? check_missing(bundle, file, &watch, report) : check_uncached(bundle, file, &watch);
  }
  mlx_report_done(report);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Signing

// Returns where a new signature goes: after the last member, or over an old signature that is the last
// member.
static mlx_status_t signature_offset(const mlx_bundle_t *bundle, uint64_t *out_offset) {
  const part_t *old = find_part(bundle, MLX_BUNDLE_SIGNATURE);
  *out_offset = old ? old->offset - MLX_TAR_BLOCK : bundle->end;
  if (!old || old->offset + old->size + mlx_tar_padding(old->size) == bundle->end) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED,
                "cannot sign '%s': it has a signature that is not its last member, which cannot be replaced",
                bundle->path),
      "unpack it with tar, sign the folder, and pack the folder again");
}

mlx_status_t mlx_bundle_put_signature(mlx_bundle_t *bundle, const char *text, size_t length) {
  static const char zeros[MLX_TAR_BLOCK + MLX_TAR_END];
  uint8_t header[MLX_TAR_BLOCK];
  uint64_t offset = 0;
  mlx_text_t tail = {0};
  MLX_TRY(signature_offset(bundle, &offset));
  MLX_TRY(check_unchanged(bundle));
  MLX_TRY(mlx_tar_header(MLX_BUNDLE_SIGNATURE, length, header));
  mlx_text_append(&tail, (const char *)header, sizeof header);
  mlx_text_append(&tail, text, length);
  mlx_text_append(&tail, zeros, mlx_tar_padding(length) + MLX_TAR_END);
  mlx_status_t status = mlx_text_finish(&tail);
  mlx_unmap(&bundle->whole);  // Windows cannot replace a mapped file
  if (!status) status = mlx_replace_tail(bundle->path, offset, tail.data, tail.length);
  mlx_text_clear(&tail);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Reading

// Compares the size on disk with the manifest's before anything is read: the file may be huge.
static mlx_status_t check_size(const mlx_bundle_t *bundle, const mlx_bundle_file_t *file) {
  const mlx_bundle_display_path_t shown = mlx_bundle_display_path(bundle, file->name);
  mlx_file_stamp_t stamp = {0};
  char *path;
  if (!mlx_bundle_has(bundle, file->name)) return missing(bundle, file->name);
  if (mlx_bundle_is_file(bundle)) {
    stamp.size = find_part(bundle, file->name)->size;
  } else {
    MLX_TRY(mlx_join_path(bundle->path, file->name, &path));
    mlx_status_t status = mlx_file_stamp(path, &stamp);
    mlx_free(path);
    MLX_TRY(status);
  }
  return stamp.size == (uint64_t)file->size ? NULL : compare_size(file, shown.text, stamp.size);
}

// Hashes the bytes in memory, so a change on disk between check and use has no effect.
mlx_status_t mlx_bundle_read(mlx_bundle_t *bundle, const char *name, size_t max_size, char **out_text,
                             size_t *out_length) {
  const mlx_bundle_file_t *file = mlx_manifest_file(&bundle->manifest, name);
  *out_text = NULL;
  if (!file && strcmp(name, MLX_BUNDLE_SIGNATURE)) return not_listed(bundle, name);
  if (file) MLX_TRY(check_size(bundle, file));
  MLX_TRY(read_raw(bundle, name, max_size, out_text, out_length));
  if (!file) return NULL;
  char hex[MLX_DIGEST_HEX];
  mlx_digest_bytes(*out_text, *out_length, hex);
  const mlx_bundle_display_path_t shown = mlx_bundle_display_path(bundle, name);
  mlx_status_t status = compare_size(file, shown.text, *out_length);
  if (!status) status = compare_digest(shown.text, "SHA-256", hex, file->sha256);
  if (!status) return NULL;
  mlx_free(*out_text);
  *out_text = NULL;
  return status;
}

static mlx_status_t map_path(mlx_bundle_t *bundle, const mlx_bundle_file_t *file, const char *path,
                             const mlx_digest_watch_t *watch, mlx_map_t *out_view) {
  mlx_file_stamp_t before, after;
  mlx_map_t *map = &bundle->maps[bundle->map_count];
  if (bundle->map_count == MAX_PARTS)
    return mlx_error(MLX_INTERNAL, "too many files of '%s' are in use", bundle->path);
  MLX_TRY(mlx_file_stamp(path, &before));
  MLX_TRY(mlx_map_file(path, map));
  ++bundle->map_count;
  MLX_TRY(check_path(cache_of(bundle), FOR_USE, file, path, watch));
  MLX_TRY(mlx_file_stamp(path, &after));
  if (!mlx_file_stamp_same_content(&before, &after))
    return mlx_error(MLX_IO, "'%s' changed while it was being read", path);
  *out_view = *map;
  return NULL;
}

static mlx_status_t no_weights(const mlx_bundle_t *bundle, const mlx_bundle_file_t *file) {
  return mlx_status_hint(
      mlx_error(
          MLX_NOT_FOUND,
          "cannot find the weights of '%s': the bundle contains only their digest, sha256:%s (%lld bytes)",
          bundle->path, file->sha256, (long long)file->size),
      "put the weights beside the bundle as %s.irpa, or run `mlxcel compile %s` on this machine",
      file->sha256, bundle->manifest.source);
}

static mlx_status_t map_by_digest(mlx_bundle_t *bundle, const mlx_bundle_file_t *file,
                                  const mlx_digest_watch_t *watch, mlx_map_t *out_view) {
  char *path;
  MLX_TRY(find_by_digest(bundle, file, &path));
  mlx_status_t status = path ? map_path(bundle, file, path, watch, out_view) : no_weights(bundle, file);
  mlx_free(path);
  return status;
}

// Code is copied and the copy is checked, so it cannot change after the check. It is a few megabytes.
static mlx_status_t copy_code(mlx_bundle_t *bundle, const char *name, mlx_map_t *out_view) {
  char *text, *copy;
  size_t length;
  if (bundle->copy_count == MAX_PARTS)
    return mlx_error(MLX_INTERNAL, "too many files of '%s' are in use", bundle->path);
  MLX_TRY(mlx_bundle_read(bundle, name, MAX_CODE, &text, &length));
  mlx_status_t status = mlx_alloc(length + CODE_ALIGNMENT, 1, &copy);
  if (!status) {
    bundle->copies[bundle->copy_count++] = copy;
    copy += -(uintptr_t)copy % CODE_ALIGNMENT;
    memcpy(copy, text, length);
    *out_view = (mlx_map_t){.data = (const uint8_t *)copy, .size = length};
  }
  mlx_free(text);
  return status;
}

static mlx_status_t map_weights(mlx_bundle_t *bundle, const char *name, const mlx_digest_watch_t *watch,
                                mlx_map_t *out_view) {
  const mlx_bundle_file_t *file = mlx_manifest_file(&bundle->manifest, name);
  if (!file) return not_listed(bundle, name);
  if (!mlx_bundle_has(bundle, name)) return map_by_digest(bundle, file, watch, out_view);
  if (mlx_bundle_is_file(bundle)) {
    const part_t *part = find_part(bundle, name);
    MLX_TRY(check_part(cache_of(bundle), FOR_USE, bundle, file, part, watch));
    *out_view = (mlx_map_t){.data = bundle->whole.data + part->offset, .size = (size_t)part->size};
    return NULL;
  }
  char *path;
  MLX_TRY(mlx_join_path(bundle->path, name, &path));
  mlx_status_t status = map_path(bundle, file, path, watch, out_view);
  mlx_free(path);
  return status;
}

mlx_status_t mlx_bundle_map(mlx_bundle_t *bundle, const char *name, const mlx_digest_watch_t *watch,
                            mlx_map_t *out_view) {
  *out_view = (mlx_map_t){0};
  return mlx_is_weights_file(name) ? map_weights(bundle, name, watch, out_view)
                                   : copy_code(bundle, name, out_view);
}
