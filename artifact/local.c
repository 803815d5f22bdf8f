// Reads and writes the record of bundles compiled here. See local.h.
#include "artifact/local.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "artifact/bundle.h"
#include "artifact/manifest.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/leftover.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/user.h"

#define MAX_RECORD (64u << 10)  // bytes
#define ENDING ".json"

static mlx_status_t check_owner(const char *folder) {
  return mlx_user_check_owner(folder, "the state folder", "MLXCEL_STATE");
}

// STATE/compiled. Fails if another user may write to it. *|out_folder| is NULL if it does not exist and
// |create| is false. Release with mlx_free.
static mlx_status_t open_folder(bool create, char **out_folder) {
  char *state;
  *out_folder = NULL;
  MLX_TRY(mlx_user_folder(MLX_USER_STATE, &state));
  if (!state) {
    return mlx_status_hint(mlx_error(MLX_NOT_FOUND, "no state folder: MLXCEL_STATE, %s not set",
                                     mlx_user_variables(MLX_USER_STATE)),
                           "set MLXCEL_STATE to a folder that you own");
  }
  mlx_status_t status = mlx_join_path(state, "compiled", out_folder);
  if (!status && create && !mlx_is_dir(*out_folder))
    status =
        mlx_status_hint(mlx_make_dirs(*out_folder, 0700), "set MLXCEL_STATE to a folder you can write to");
  const bool exists = !status && mlx_is_dir(*out_folder);
  if (exists) status = check_owner(state);
  if (exists && !status) status = check_owner(*out_folder);
  mlx_free(state);
  if (status || !exists) {
    mlx_free(*out_folder);
    *out_folder = NULL;
  }
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Writing

static mlx_status_t put_weights(mlx_json_writer_t *json, const char *manifest, size_t length) {
  mlx_manifest_t parsed;
  MLX_TRY(mlx_manifest_read(MLX_BUNDLE_MANIFEST, manifest, length, &parsed));
  mlx_json_begin_list(json, "weights", MLX_JSON_ONE_LINE);
  for (size_t i = 0; i < parsed.file_count; ++i) {
    if (mlx_is_weights_file(parsed.files[i].name)) mlx_json_put_text(json, NULL, parsed.files[i].tree);
  }
  mlx_json_end(json);
  return NULL;
}

// The absolute path of |path|, which need not exist; its folder is created.
static mlx_status_t absolute_path(const char *path, char **out_path) {
  char *folder = NULL, *real = NULL;
  MLX_TRY(mlx_folder_of(path, &folder));
  mlx_status_t status = mlx_make_dirs(folder, 0777);
  if (!status) status = mlx_real_path(folder, &real);
  if (!status) status = mlx_join_path(real, mlx_file_name(path).text, out_path);
  mlx_free(real);
  mlx_free(folder);
  return status;
}

static mlx_status_t write_record(const char *path, const mlx_text_t *json) {
  mlx_status_t status = mlx_replace_file(path, json->data, json->length);  // not through a link
  return mlx_status_hint(status, "set MLXCEL_STATE to a folder you can write to");
}

static mlx_status_t add_bundle(const char *folder, const char *key, const char *manifest, size_t length) {
  char *path;
  mlx_text_t json = {0};
  mlx_json_writer_t writer = {.out = &json};
  const mlx_manifest_origin_t origin = mlx_manifest_origin(manifest, length);
  MLX_TRY(mlx_format(&path, "%s/%s" ENDING, folder, key));
  mlx_json_begin_object(&writer, NULL, MLX_JSON_ONE_LINE);
  mlx_json_put_text(&writer, "source", origin.source);
  mlx_json_end(&writer);
  mlx_text_puts(&json, "\n");
  mlx_status_t status = mlx_text_finish(&json);
  if (!status && !mlx_is_file(path)) status = write_record(path, &json);
  mlx_text_clear(&json);
  mlx_free(path);
  return status;
}

static mlx_status_t add_thin_bundle(const char *folder, const char *key, const char *manifest, size_t length,
                                    const char *bundle) {
  char hex[MLX_DIGEST_HEX], *real, *path = NULL;
  mlx_text_t json = {0};
  mlx_json_writer_t writer = {.out = &json};
  MLX_TRY(absolute_path(bundle, &real));
  mlx_digest_bytes(real, strlen(real), hex);
  mlx_json_begin_object(&writer, NULL, MLX_JSON_ONE_LINE);
  mlx_json_put_text(&writer, "bundle", real);
  mlx_status_t status = put_weights(&writer, manifest, length);
  mlx_json_end(&writer);
  mlx_text_puts(&json, "\n");
  if (!status) status = mlx_text_finish(&json);
  if (!status) status = mlx_format(&path, "%s/%s+%.16s" ENDING, folder, key, hex);
  if (!status) status = write_record(path, &json);
  mlx_text_clear(&json);
  mlx_free(path);
  mlx_free(real);
  return status;
}

mlx_status_t mlx_local_add(const char *manifest, size_t length, const char *thin_bundle) {
  char key[MLX_DIGEST_HEX], *folder;
  mlx_digest_bytes(manifest, length, key);
  MLX_TRY(open_folder(true, &folder));
  mlx_leftover_remove_in(folder);
  mlx_status_t status = add_bundle(folder, key, manifest, length);
  if (!status && thin_bundle) status = add_thin_bundle(folder, key, manifest, length, thin_bundle);
  mlx_free(folder);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Reading

// Opens a record, whose content is not needed to trust a bundle. Checks the file that was opened.
static mlx_status_t open_record(const char *path, int *out_fd) {
  struct stat info;
  MLX_TRY(mlx_open_file(path, out_fd, NULL));
  mlx_status_t status = fstat(*out_fd, &info) ? mlx_io_error("stat", path) : NULL;
  if (!status)
    status = mlx_user_check_stat(&info, path, "the record", "remove it and compile the bundle again",
                                 "remove it and compile the bundle again");
  if (status) close(*out_fd);
  return status;
}

mlx_status_t mlx_local_find(const char *manifest, size_t length, bool *out_found) {
  char key[MLX_DIGEST_HEX], *folder, *path = NULL;
  int fd;
  *out_found = false;
  MLX_TRY(open_folder(false, &folder));
  if (!folder) return NULL;
  mlx_digest_bytes(manifest, length, key);
  mlx_status_t status = mlx_format(&path, "%s/%s" ENDING, folder, key);
  if (!status && mlx_is_file(path)) {
    status = open_record(path, &fd);
    *out_found = !status;
    if (!status) close(fd);
  }
  mlx_free(path);
  mlx_free(folder);
  return status;
}

typedef struct walk {
  const char *folder;
  mlx_local_visit_fn_t visit;
  void *user;
} walk_t;

// True if the bundle at |path| has the manifest with this digest.
static bool has_manifest(const char *path, const char *digest) {
  char *text = NULL, hex[MLX_DIGEST_HEX] = "";
  size_t length;
  if (!mlx_is_bundle(path)) return false;
  mlx_status_t status = mlx_bundle_read_manifest(path, &text, &length);
  if (!status) mlx_digest_bytes(text, length, hex);
  mlx_status_free(status);
  mlx_free(text);
  return !strcmp(hex, digest);
}

static mlx_status_t visit_weights(const walk_t *walk, const mlx_json_t *json, const char *digest) {
  const char *bundle = yyjson_get_str(mlx_json_find(json->root, "bundle"));
  yyjson_val *list = mlx_json_find(json->root, "weights"), *item;
  size_t index, count;
  struct stat info;
  if (!bundle || !yyjson_is_arr(list)) return NULL;
  const bool missing = lstat(bundle, &info) != 0;
  if (!missing && !has_manifest(bundle, digest)) return NULL;
  yyjson_arr_foreach(list, index, count, item) {
    if (yyjson_is_str(item)) MLX_TRY(walk->visit(walk->user, bundle, yyjson_get_str(item), missing));
  }
  return NULL;
}

static mlx_status_t read_text(const char *path, char **out_text, size_t *out_length) {
  int fd;
  MLX_TRY(open_record(path, &fd));
  mlx_status_t status = mlx_read_stream(fd, path, MAX_RECORD, out_text, out_length);
  close(fd);
  return status;
}

// Visits a record of a bundle without weights. A damaged one is skipped.
static mlx_status_t visit_record(void *user, const char *name) {
  const walk_t *walk = user;
  char *path, *text = NULL, digest[MLX_DIGEST_HEX];
  size_t length;
  mlx_json_t json;
  if (strlen(name) < MLX_DIGEST_HEX || name[MLX_DIGEST_HEX - 1] != '+') return NULL;
  memcpy(digest, name, MLX_DIGEST_HEX - 1);
  digest[MLX_DIGEST_HEX - 1] = 0;
  MLX_TRY(mlx_join_path(walk->folder, name, &path));
  mlx_status_t status = read_text(path, &text, &length);
  if (!status) status = mlx_json_parse(path, text, length, &json);
  if (status) {
    mlx_status_free(status);
    status = NULL;
  } else {
    status = visit_weights(walk, &json, digest);
    mlx_json_close(&json);
  }
  mlx_free(text);
  mlx_free(path);
  return status;
}

mlx_status_t mlx_local_needed_weights(mlx_local_visit_fn_t visit, void *user) {
  char *folder;
  MLX_TRY(open_folder(false, &folder));
  if (!folder) return NULL;
  walk_t walk = {.folder = folder, .visit = visit, .user = user};
  mlx_status_t status = mlx_list_dir(folder, visit_record, &walk);
  mlx_free(folder);
  return status;
}
