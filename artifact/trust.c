#include "artifact/trust.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/user.h"

mlx_status_t mlx_trust_folder(char **out_folder) {
  *out_folder = NULL;
  const char *given = mlx_environment("MLXCEL_TRUSTED");
  if (given) return mlx_copy_text(given, strlen(given), out_folder);
  char *settings;
  MLX_TRY(mlx_user_folder(MLX_USER_CONFIG, &settings));
  if (!settings) {
    return mlx_status_hint(mlx_error(MLX_NOT_FOUND, "there is no place for trusted keys: HOME is not set"),
                           "set MLXCEL_TRUSTED to a folder");
  }
  mlx_status_t status = mlx_join_path(settings, "trusted", out_folder);
  mlx_free(settings);
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
  mlx_status_t status = mlx_public_key_load(path, &key);
  if (status) {
    status = mlx_status_rehint(status,
                               "every %s file in that folder is a trusted key: repair this one, or remove it "
                               "with `mlxcel trust remove %s`",
                               MLX_TRUST_ENDING, name);
  }
  if (!status) status = walk->visit(walk->user, name, &key);
  mlx_free(path);
  return status;
}

// Where others may put keys, nobody is trusted.
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

static mlx_status_t need_signature(const mlx_signed_t *what, const char *name, const char *text,
                                   size_t length, mlx_signature_t *out_signature) {
  if (!text) {
    return mlx_status_hint(
        mlx_error(MLX_NOT_FOUND, "'%s' is not signed: there is no %s", what->name, name),
        "get the signature from where this came; what is yours you sign with `mlxcel sign`");
  }
  return mlx_signature_read(name, text, length, out_signature);
}

static mlx_signer_t describe(const mlx_signature_t *signature, const char *file) {
  mlx_signer_t who = {.key = mlx_key_number_text(&signature->number)};
  snprintf(who.file, sizeof who.file, "%s", file);
  memcpy(who.comment, signature->comment,
         signature->comment_length);  // mlx_signature_read looked at its length
  return who;
}

mlx_status_t mlx_trust_check_key(const mlx_signed_t *what, const char *signature_name,
                                 const char *signature_text, size_t signature_length, const char *key_name,
                                 const mlx_public_key_t *key, mlx_signer_t *out_who) {
  mlx_signature_t signature;
  *out_who = (mlx_signer_t){.file = ""};
  MLX_TRY(need_signature(what, signature_name, signature_text, signature_length, &signature));
  MLX_TRY(mlx_signature_verify(&signature, key, what));
  *out_who = describe(&signature, key_name);
  return NULL;
}

typedef struct search {
  const mlx_signature_t *signature;
  const mlx_signed_t *what;
  mlx_status_t failure;  // of the first key with that number; owned
  mlx_signer_t *who;     // its file is "" until one was found
} search_t;

// Numbers are not secret: two keys may have one, and each gets its chance.
static mlx_status_t try_key(void *user, const char *file, const mlx_public_key_t *key) {
  search_t *search = user;
  if (search->who->file[0] ||
      memcmp(key->number.bytes, search->signature->number.bytes, sizeof key->number.bytes))
    return NULL;
  mlx_status_t status = mlx_signature_verify(search->signature, key, search->what);
  if (status) {
    search->failure = mlx_status_join(search->failure, status);
  } else {
    *search->who = describe(search->signature, file);
  }
  return NULL;
}

static mlx_status_t unknown_key(const mlx_signature_t *signature, const char *folder) {
  const mlx_key_number_text_t number = mlx_key_number_text(&signature->number);
  return mlx_status_hint(
      mlx_error(MLX_NOT_FOUND, "%s: signed with key %s, which is not among the trusted keys in %s",
                signature->name, number.text, folder),
      "if you have that key's file from somebody you trust: mlxcel trust add KEY.pub");
}

mlx_status_t mlx_trust_check(const mlx_signed_t *what, const char *signature_name, const char *signature_text,
                             size_t signature_length, mlx_signer_t *out_who) {
  mlx_signature_t signature;
  char *folder;
  *out_who = (mlx_signer_t){.file = ""};
  MLX_TRY(need_signature(what, signature_name, signature_text, signature_length, &signature));
  MLX_TRY(mlx_trust_folder(&folder));
  search_t search = {.signature = &signature, .what = what, .who = out_who};
  mlx_status_t status = walk_folder(folder, try_key, &search);
  if (!status && !out_who->file[0]) {
    status = search.failure ? search.failure : unknown_key(&signature, folder);
    search.failure = NULL;
  }
  if (status) *out_who = (mlx_signer_t){.file = ""};
  mlx_status_free(search.failure);
  mlx_free(folder);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Changing it

static mlx_status_t refuse_other_key(const char *path, const mlx_public_key_t *key) {
  mlx_public_key_t there;
  if (!mlx_is_file(path)) return NULL;
  MLX_TRY(mlx_status_hint(mlx_public_key_load(path, &there), "replace it with --force"));
  if (mlx_public_key_equal(&there, key)) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_USAGE, "%s holds another key, %s", path, mlx_key_number_text(&there.number).text),
      "rename the new one's file to trust both, or replace the old one with --force");
}

static mlx_status_t write_key(const char *folder, const char *file, bool force, const mlx_public_key_t *key) {
  char *path, *text = NULL;
  size_t length;
  MLX_TRY(mlx_join_path(folder, file, &path));
  mlx_status_t status = force ? NULL : refuse_other_key(path, key);
  if (!status) status = mlx_public_key_write(key, &text, &length);
  if (!status) status = mlx_make_dirs(folder, 0755);
  if (!status) status = mlx_write_file(path, text, length);
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
                           "call the file after whose key it is: alice%s", MLX_TRUST_ENDING);
  }
  MLX_TRY(mlx_trust_folder(&folder));
  mlx_status_t status = write_key(folder, name.text, force, out_key);
  mlx_free(folder);
  return status;
}

typedef struct removal {
  const char *folder, *word;
  size_t removed;
} removal_t;

static bool is_called(const char *word, const char *file) {
  const size_t length = strlen(file) - strlen(MLX_TRUST_ENDING);
  return !strcmp(word, file) || (strlen(word) == length && !strncmp(word, file, length));
}

static bool has_number(const char *word, const char *path) {
  mlx_public_key_t key;
  mlx_status_t status = mlx_public_key_load(path, &key);
  const bool has = !status && !strcasecmp(word, mlx_key_number_text(&key.number).text);
  mlx_status_free(status);  // one that is no key has none
  return has;
}

// By its name whatever is in it: so is one removed that is in everybody's way.
static mlx_status_t remove_key(void *user, const char *file) {
  removal_t *removal = user;
  char *path;
  mlx_status_t status = NULL;
  if (!is_key_file(file)) return NULL;
  MLX_TRY(mlx_join_path(removal->folder, file, &path));
  if (is_called(removal->word, file) || has_number(removal->word, path)) {
    status = unlink(path) && errno != ENOENT ? mlx_io_error("remove", path) : NULL;
    removal->removed += !status;
  }
  mlx_free(path);
  return status;
}

mlx_status_t mlx_trust_remove(const char *word, size_t *out_removed) {
  char *folder;
  MLX_TRY(mlx_trust_folder(&folder));
  removal_t removal = {.folder = folder, .word = word};
  mlx_status_t status = mlx_is_dir(folder) ? mlx_list_dir(folder, remove_key, &removal) : NULL;
  if (!status && !removal.removed) {
    status = mlx_status_hint(mlx_error(MLX_NOT_FOUND, "no trusted key in %s is called '%s'", folder, word),
                             "`mlxcel trust list` names them");
  }
  *out_removed = removal.removed;
  mlx_free(folder);
  return status;
}
