// Reads and changes the folder of trusted keys, and checks signatures against it. See trust.h.
#include "artifact/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/leftover.h"
#include "base/memory.h"
#include "base/user.h"

mlx_status_t mlx_trust_folder(char **out_folder) {
  *out_folder = NULL;
  const char *given = mlx_environment("MLXCEL_TRUSTED");
  if (given) return mlx_copy_text(given, strlen(given), out_folder);
  char *config;
  MLX_TRY(mlx_user_folder(MLX_USER_CONFIG, &config));
  if (!config) {
    return mlx_status_hint(mlx_error(MLX_NOT_FOUND, "no folder of trusted keys: MLXCEL_TRUSTED, %s not set",
                                     mlx_user_variables(MLX_USER_CONFIG)),
                           "set MLXCEL_TRUSTED to a folder");
  }
  mlx_status_t status = mlx_join_path(config, "trusted", out_folder);
  mlx_free(config);
  return status;
}

mlx_status_t mlx_public_key_load(const char *path, mlx_public_key_t *out_key) {
  char *text;
  size_t length;
  MLX_TRY(mlx_read_file(path, MLX_MAX_KEY_FILE, &text, &length));
  mlx_status_t status = mlx_public_key_read(path, text, length, out_key);
  mlx_free(text);
  return status;
}

// Reads a key of the trusted folder. Fails if another user owns the file, or the target of a link, or may
// write to it: that user could replace the key. Checks the file that was opened, so that it cannot be
// replaced between check and use.
static mlx_status_t load_trusted(const char *path, mlx_public_key_t *out_key) {
  struct stat info;
  char *text = NULL, *mode_hint = NULL;
  size_t length;
  uint64_t size;
  int fd;
  MLX_TRY(mlx_open_file(path, &fd, &size));
  mlx_status_t status = fstat(fd, &info) ? mlx_io_error("stat", path) : NULL;
  if (!status) status = mlx_format(&mode_hint, "run `chmod go-w '%s'` if you trust this key", path);
  if (!status)
    status = mlx_user_check_stat(&info, path, "the trusted key",
                                 "if you trust this key, copy it to a file that you own", mode_hint);
  if (!status) status = mlx_read_stream(fd, path, MLX_MAX_KEY_FILE, &text, &length);
  if (!status) status = mlx_public_key_read(path, text, length, out_key);
  mlx_free(mode_hint);
  mlx_free(text);
  close(fd);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// The folder

static bool is_key_file(const char *name) {
  const size_t length = strlen(name), ending = strlen(MLX_TRUST_ENDING);
  return name[0] != '.' && length > ending && !strcmp(name + length - ending, MLX_TRUST_ENDING);
}

typedef struct walk {
  const char *folder;
  mlx_trust_visit_fn_t visit;
  void *user;
} walk_t;

static mlx_status_t walk_file(void *user, const char *name) {
  const walk_t *walk = user;
  char *path;
  mlx_public_key_t key;
  if (!is_key_file(name)) return NULL;
  MLX_TRY(mlx_join_path(walk->folder, name, &path));
  mlx_status_t status = load_trusted(path, &key);
  if (mlx_status_code(status) == MLX_INVALID_INPUT || mlx_status_code(status) == MLX_NOT_FOUND) {
    status = mlx_status_rehint(status,
                               "every %s file in that folder must be a valid key: repair it, or run "
                               "`mlxcel trust remove %s`",
                               MLX_TRUST_ENDING, name);
  }
  if (!status) status = walk->visit(walk->user, name, &key);
  mlx_free(path);
  return status;
}

// Fails if other users can write to the folder, because they could add keys.
static mlx_status_t walk_folder(const char *folder, mlx_trust_visit_fn_t visit, void *user) {
  walk_t walk = {.folder = folder, .visit = visit, .user = user};
  if (!mlx_is_dir(folder)) return NULL;
  MLX_TRY(mlx_user_check_owner(folder, "the folder of trusted keys", "MLXCEL_TRUSTED"));
  return mlx_list_dir(folder, walk_file, &walk);
}

mlx_status_t mlx_trust_list(mlx_trust_visit_fn_t visit, void *user) {
  char *folder;
  MLX_TRY(mlx_trust_folder(&folder));
  mlx_status_t status = walk_folder(folder, visit, user);
  mlx_free(folder);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Checking

static mlx_status_t need_signature(const mlx_signed_data_t *data, const char *name, const char *text,
                                   size_t length, mlx_signature_t *out_signature) {
  if (!text) {
    return mlx_status_hint(
        mlx_error(MLX_NOT_FOUND, "'%s' is not signed: %s does not exist", data->name, name),
        "get the signature from the publisher, or sign your own file with `mlxcel sign`");
  }
  return mlx_signature_read(name, text, length, out_signature);
}

static mlx_signer_t describe(const mlx_signature_t *signature, const char *file) {
  mlx_signer_t signer = {.key = mlx_key_id_text(&signature->id)};
  snprintf(signer.file, sizeof signer.file, "%s", file);
  // Fits: mlx_signature_read limits the length.
  memcpy(signer.comment, signature->comment, signature->comment_length);
  return signer;
}

mlx_status_t mlx_trust_check_key(const mlx_signed_data_t *data, const char *signature_name,
                                 const char *signature_text, size_t signature_length, const char *key_name,
                                 const mlx_public_key_t *key, mlx_signer_t *out_signer) {
  mlx_signature_t signature;
  *out_signer = (mlx_signer_t){.file = ""};
  MLX_TRY(need_signature(data, signature_name, signature_text, signature_length, &signature));
  MLX_TRY(mlx_signature_verify(&signature, key, data));
  *out_signer = describe(&signature, key_name);
  return NULL;
}

typedef struct search {
  const mlx_signature_t *signature;
  const mlx_signed_data_t *data;
  mlx_status_t failure;  // of the first key with the right ID; owned
  mlx_signer_t *signer;  // its file is "" until a key matches
} search_t;

// An attacker can copy a key ID, so several trusted keys may have the same ID. Tries each of them.
static mlx_status_t try_key(void *user, const char *file, const mlx_public_key_t *key) {
  search_t *search = user;
  if (search->signer->file[0] || memcmp(key->id.bytes, search->signature->id.bytes, sizeof key->id.bytes))
    return NULL;
  mlx_status_t status = mlx_signature_verify(search->signature, key, search->data);
  if (status) {
    search->failure = mlx_status_join(search->failure, status);
  } else {
    *search->signer = describe(search->signature, file);
  }
  return NULL;
}

static mlx_status_t unknown_key(const mlx_signature_t *signature, const char *folder) {
  const mlx_key_id_text_t id = mlx_key_id_text(&signature->id);
  return mlx_status_hint(
      mlx_error(MLX_NOT_FOUND, "%s: signed with key %s, which is not among the trusted keys in %s",
                signature->name, id.text, folder),
      "if you trust the owner of this key, run `mlxcel trust add KEY.pub`");
}

mlx_status_t mlx_trust_check(const mlx_signed_data_t *data, const char *signature_name,
                             const char *signature_text, size_t signature_length, mlx_signer_t *out_signer) {
  mlx_signature_t signature;
  char *folder;
  *out_signer = (mlx_signer_t){.file = ""};
  MLX_TRY(need_signature(data, signature_name, signature_text, signature_length, &signature));
  MLX_TRY(mlx_trust_folder(&folder));
  search_t search = {.signature = &signature, .data = data, .signer = out_signer};
  mlx_status_t status = walk_folder(folder, try_key, &search);
  if (!status && !out_signer->file[0]) {
    status = search.failure ? search.failure : unknown_key(&signature, folder);
    search.failure = NULL;
  }
  if (status) *out_signer = (mlx_signer_t){.file = ""};
  mlx_status_free(search.failure);
  mlx_free(folder);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Adding and removing keys

static mlx_status_t refuse_other_key(const char *path, const mlx_public_key_t *key) {
  mlx_public_key_t existing;
  if (!mlx_is_file(path)) return NULL;
  MLX_TRY(mlx_status_hint(mlx_public_key_load(path, &existing), "replace it with --force"));
  if (mlx_public_key_equal(&existing, key)) return NULL;
  return mlx_status_hint(mlx_error(MLX_USAGE, "%s already contains a different key, %s", path,
                                   mlx_key_id_text(&existing.id).text),
                         "rename the new key file to trust both, or replace the old key with --force");
}

static mlx_status_t write_key(const char *folder, const char *file, bool force, const mlx_public_key_t *key) {
  char *path, *text = NULL;
  size_t length;
  MLX_TRY(mlx_join_path(folder, file, &path));
  mlx_status_t status = force ? NULL : refuse_other_key(path, key);
  if (!status) status = mlx_public_key_write(key, &text, &length);
  if (!status) status = mlx_make_dirs(folder, 0755);
  if (!status) mlx_leftover_remove_in(folder);
  if (!status) status = mlx_replace_file(path, text, length);  // not through a link, and with a safe mode
  mlx_free(text);
  mlx_free(path);
  return status;
}

mlx_status_t mlx_trust_add(const char *path, bool force, mlx_public_key_t *out_key) {
  const mlx_file_name_t name = mlx_file_name(path);
  char *folder;
  MLX_TRY(mlx_public_key_load(path, out_key));
  if (!is_key_file(name.text)) {
    return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' does not end in %s", name.text, MLX_TRUST_ENDING),
                           "name the file after the key's owner, for example alice%s", MLX_TRUST_ENDING);
  }
  MLX_TRY(mlx_trust_folder(&folder));
  mlx_status_t status = write_key(folder, name.text, force, out_key);
  mlx_free(folder);
  return status;
}

typedef struct removal {
  const char *folder, *name;
  size_t removed;
} removal_t;

static bool has_name(const char *name, const char *file) {
  const size_t length = strlen(file) - strlen(MLX_TRUST_ENDING);
  return !strcmp(name, file) || (strlen(name) == length && !strncmp(name, file, length));
}

static bool has_id(const char *id, const char *path) {
  mlx_public_key_t key;
  mlx_status_t status = mlx_public_key_load(path, &key);
  const bool has = !status && !strcasecmp(id, mlx_key_id_text(&key.id).text);
  mlx_status_free(status);  // a damaged key file has no ID
  return has;
}

// A match by name also removes a damaged key file, which would otherwise block every check.
static mlx_status_t remove_key(void *user, const char *file) {
  removal_t *removal = user;
  char *path;
  mlx_status_t status = NULL;
  if (!is_key_file(file)) return NULL;
  MLX_TRY(mlx_join_path(removal->folder, file, &path));
  if (has_name(removal->name, file) || has_id(removal->name, path)) {
    status = unlink(path) && errno != ENOENT ? mlx_io_error("remove", path) : NULL;
    removal->removed += !status;
  }
  mlx_free(path);
  return status;
}

mlx_status_t mlx_trust_remove(const char *name, size_t *out_removed) {
  char *folder;
  MLX_TRY(mlx_trust_folder(&folder));
  removal_t removal = {.folder = folder, .name = name};
  mlx_status_t status = mlx_is_dir(folder) ? mlx_list_dir(folder, remove_key, &removal) : NULL;
  if (!status && !removal.removed) {
    status = mlx_status_hint(
        mlx_error(MLX_NOT_FOUND, "no trusted key in %s has the name or ID '%s'", folder, name),
        "list the trusted keys with `mlxcel trust list`");
  }
  *out_removed = removal.removed;
  mlx_free(folder);
  return status;
}
