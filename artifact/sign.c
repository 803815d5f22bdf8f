// Creates key pairs, and signs and verifies files and bundles. See sign.h.
#include "artifact/sign.h"

#include "artifact/bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium/utils.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/leftover.h"
#include "base/memory.h"
#include "base/user.h"

// ----------------------------------------------------------------------------------------------------------
// Keys

mlx_status_t mlx_key_pair_path(char **out_path) {
  char *folder;
  *out_path = NULL;
  MLX_TRY(mlx_user_folder(MLX_USER_CONFIG, &folder));
  if (!folder)
    return mlx_status_hint(
        mlx_error(MLX_NOT_FOUND, "no default key file: %s not set", mlx_user_variables(MLX_USER_CONFIG)),
        "name the key file with keygen -o or sign -s");
  mlx_status_t status = mlx_join_path(folder, "mlxcel", out_path);
  mlx_free(folder);
  return status;
}

static mlx_status_t refuse_existing(const char *path) {
  struct stat info;
  if (lstat(path, &info)) return errno == ENOENT ? NULL : mlx_io_error("stat", path);
  return mlx_status_hint(
      mlx_error(MLX_USAGE, "'%s' already exists", path),
      "choose another name with -o, or replace the key with --force (the old key is lost)");
}

// One file of a key pair being replaced. The new file is first written under a temporary name in the same
// folder, so that most failures happen before the old file is touched.
typedef struct half {
  const char *path;
  char *temporary;  // owned; before the swap the new file, after it the old one
  bool had_old;     // |path| existed before
  bool has_new;     // |path| is now the new file
} half_t;

// mlx_rename can fail after the rename itself, while syncing. The inode shows whether |path| is the new file.
static mlx_status_t put_in_place(half_t *half) {
  mlx_file_stamp_t written, now = {0};
  MLX_TRY(mlx_file_stamp(half->temporary, &written));
  half->had_old = mlx_is_file(half->path);
  mlx_status_t status =
      half->had_old ? mlx_exchange(half->temporary, half->path) : mlx_rename(half->temporary, half->path);
  mlx_status_free(mlx_file_stamp(half->path, &now));
  half->has_new = now.inode == written.inode && now.device == written.device;
  return status;
}

static void roll_back(half_t *half) {
  if (!half->has_new) return;
  mlx_status_t status =
      half->had_old ? mlx_exchange(half->temporary, half->path) : mlx_remove_tree(half->path);
  if (status) {  // the temporary file may be the old key: keep it
    mlx_free(half->temporary);
    half->temporary = NULL;
  }
  mlx_status_free(status);
}

static void clear_half(half_t *half) {
  if (half->temporary) unlink(half->temporary);
  mlx_free(half->temporary);
}

// Writes both files or neither, so that an old pair is only replaced by a complete new pair.
static mlx_status_t write_halves(half_t *pub, half_t *key, const char *text, size_t length,
                                 const char *secret, size_t secret_length) {
  MLX_TRY(mlx_temporary_path(pub->path, &pub->temporary));
  MLX_TRY(mlx_temporary_path(key->path, &key->temporary));
  MLX_TRY(mlx_write_file(pub->temporary, text, length));
  MLX_TRY(mlx_write_secret_file(key->temporary, secret, secret_length));
  mlx_status_t status = put_in_place(pub);
  if (!status) status = put_in_place(key);
  if (status) {
    roll_back(key);
    roll_back(pub);
  }
  return status;
}

static mlx_status_t write_pair(const char *key_path, const char *pub_path, const char *secret,
                               size_t secret_length, const mlx_public_key_t *key) {
  char *text, *folder;
  size_t length;
  half_t pub_half = {.path = pub_path}, key_half = {.path = key_path};
  MLX_TRY(mlx_folder_of(key_path, &folder));
  mlx_status_t status = mlx_make_dirs(folder, 0755);
  mlx_free(folder);
  if (status) return status;
  MLX_TRY(mlx_public_key_write(key, &text, &length));
  mlx_leftover_remove(key_path);
  mlx_leftover_remove(pub_path);
  status = write_halves(&pub_half, &key_half, text, length, secret, secret_length);
  clear_half(&pub_half);
  clear_half(&key_half);
  mlx_free(text);
  return status;
}

static mlx_status_t make_pair(const char *key_path, const char *pub_path, const char *password,
                              const mlx_key_cost_t *cost, mlx_public_key_t *out_key) {
  mlx_secret_key_t key;
  char *text;
  size_t length;
  mlx_secret_key_generate(&key);
  *out_key = mlx_secret_key_public(&key);
  mlx_status_t status = mlx_secret_key_write(&key, password, cost, &text, &length);
  mlx_secret_key_clear(&key);
  if (!status) status = write_pair(key_path, pub_path, text, length, out_key);
  mlx_secret_text_free(text, length);
  return status;
}

mlx_status_t mlx_key_pair_make(const char *path, const char *password, const mlx_key_cost_t *cost, bool force,
                               mlx_public_key_t *out_key) {
  char *key_path = NULL, *pub_path = NULL;
  mlx_status_t status = mlx_format(&key_path, "%s.key", path);
  if (!status) status = mlx_format(&pub_path, "%s.pub", path);
  if (!status && !force) status = refuse_existing(key_path);
  if (!status && !force) status = refuse_existing(pub_path);
  if (!status) status = make_pair(key_path, pub_path, password, cost, out_key);
  mlx_free(key_path);
  mlx_free(pub_path);
  return status;
}

// Reads into the caller's buffer, which can be zeroed. mlx_read_file would leave copies in freed memory.
static mlx_status_t read_secret_file(const char *path, char text[MLX_MAX_KEY_FILE], size_t *out_length) {
  size_t length = 0;
  mlx_status_t status = NULL;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return mlx_io_error("open", path);
  for (ssize_t got = 1; got && !status;) {
    got = read(fd, text + length, MLX_MAX_KEY_FILE - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) status = mlx_io_error("read", path);
    if (got > 0) length += (size_t)got;
    if (length == MLX_MAX_KEY_FILE)
      status = mlx_error(MLX_INVALID_INPUT, "'%s' is not a secret key: it is longer than %d bytes", path,
                         MLX_MAX_KEY_FILE);
  }
  close(fd);
  *out_length = length;
  return status;
}

static mlx_status_t open_key(const char *path, const char *text, size_t length,
                             mlx_password_fn_t get_password, void *user, mlx_secret_key_t *out_key) {
  bool encrypted;
  char password[MLX_MAX_PASSWORD] = "";
  MLX_TRY(mlx_secret_key_needs_password(path, text, length, &encrypted));
  mlx_status_t status = encrypted ? get_password(user, path, password) : NULL;
  if (!status) status = mlx_secret_key_read(path, text, length, encrypted ? password : NULL, out_key);
  sodium_memzero(password, sizeof password);
  return status;
}

mlx_status_t mlx_secret_key_load(const char *path, mlx_password_fn_t get_password, void *user,
                                 mlx_secret_key_t *out_key) {
  char text[MLX_MAX_KEY_FILE];
  size_t length = 0;
  *out_key = (mlx_secret_key_t){0};
  mlx_status_t status = read_secret_file(path, text, &length);
  if (!status) status = open_key(path, text, length, get_password, user, out_key);
  sodium_memzero(text, sizeof text);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// The file or bundle being signed or verified

typedef struct subject {
  mlx_bundle_t *bundle;    // NULL for a plain file
  char *path;              // of the signed data; owned
  char *signature_path;    // owned
  bool embedded;           // the signature is inside a single-file bundle; the path is only for messages
  mlx_signed_data_t data;  // for a bundle, the manifest text that was parsed, not a second read of the file
} subject_t;

static void clear_subject(subject_t *subject) {
  mlx_free(subject->path);
  mlx_free(subject->signature_path);
  mlx_bundle_close(subject->bundle);
  *subject = (subject_t){0};
}

static mlx_status_t open_bundle(const char *path, subject_t *subject) {
  MLX_TRY(mlx_bundle_open(path, &subject->bundle));
  MLX_TRY(mlx_format(&subject->path, "%s/%s", path, MLX_BUNDLE_MANIFEST));
  subject->data.bytes = mlx_bundle_manifest_text(subject->bundle, &subject->data.length);
  subject->data.domain = MLX_DOMAIN_BUNDLE;
  return NULL;
}

static mlx_status_t open_subject(const char *path, const char *signature_path, subject_t *out_subject) {
  *out_subject = (subject_t){0};
  if (mlx_is_bundle(path)) {
    MLX_TRY(open_bundle(path, out_subject));
  } else if (mlx_is_dir(path)) {
    return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "'%s' is a folder but not a bundle", path),
                           "give a file, or a bundle made by `mlxcel compile`");
  } else {
    MLX_TRY(mlx_copy_text(path, strlen(path), &out_subject->path));
  }
  out_subject->data.name = out_subject->path;
  if (signature_path)
    return mlx_copy_text(signature_path, strlen(signature_path), &out_subject->signature_path);
  out_subject->embedded = out_subject->bundle && mlx_bundle_is_file(out_subject->bundle);
  return mlx_format(&out_subject->signature_path, "%s" MLX_SIGNATURE_ENDING, out_subject->path);
}

// ----------------------------------------------------------------------------------------------------------
// Signing

static long long signing_time(void) {
  const char *given = mlx_environment("SOURCE_DATE_EPOCH");  // for reproducible signatures
  char *end;
  const long long seconds = given ? strtoll(given, &end, 10) : 0;
  return given && !*end && seconds >= 0 ? seconds : (long long)time(NULL);
}

// The default path may be a symbolic link that came with the bundle. mlx_replace_file does not write through
// it. A path that the user named is written as given.
static mlx_status_t put_signature(const subject_t *subject, const mlx_sign_options_t *options,
                                  const char *text, size_t length) {
  if (subject->embedded) return mlx_bundle_put_signature(subject->bundle, text, length);
  if (options->signature_path) return mlx_write_file(subject->signature_path, text, length);
  return mlx_replace_file(subject->signature_path, text, length);
}

// A single-file bundle that is a link has its temporary files beside its target.
static void remove_leftovers(const subject_t *subject) {
  char *target = NULL;
  if (subject->embedded) mlx_status_free(mlx_real_path(mlx_bundle_path(subject->bundle), &target));
  mlx_leftover_remove(target ? target : subject->signature_path);
  mlx_free(target);
}

static mlx_status_t sign_subject(const subject_t *subject, const mlx_sign_options_t *options) {
  char *comment = NULL, *text = NULL;
  size_t length;
  mlx_status_t status = NULL;
  if (subject->bundle) status = mlx_bundle_check_all(subject->bundle, true, options->report);
  if (!status && !options->trusted_comment) {
    status = mlx_format(&comment, "timestamp:%lld\tfile:%s\thashed", signing_time(),
                        mlx_file_name(subject->path).text);
  }
  if (!status) {
    status = mlx_signature_make(options->key, &subject->data, options->comment,
                                comment ? comment : options->trusted_comment, &text, &length);
  }
  if (!status) {
    remove_leftovers(subject);
    status = put_signature(subject, options, text, length);
  }
  mlx_free(comment);
  mlx_free(text);
  return status;
}

mlx_status_t mlx_sign(const char *path, const mlx_sign_options_t *options, char **out_signature_path) {
  subject_t subject;
  *out_signature_path = NULL;
  mlx_status_t status = open_subject(path, options->signature_path, &subject);
  if (!status) status = sign_subject(&subject, options);
  if (!status)
    status = mlx_copy_text(subject.embedded ? path : subject.signature_path,
                           strlen(subject.embedded ? path : subject.signature_path), out_signature_path);
  clear_subject(&subject);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Verifying

static mlx_status_t verify_subject(const subject_t *subject, const mlx_verify_options_t *options,
                                   mlx_signer_t *out_signer) {
  char *text = NULL;
  size_t length = 0;
  const char *signature_path = subject->signature_path;
  mlx_status_t status =
      subject->embedded
          ? mlx_bundle_read(subject->bundle, MLX_BUNDLE_SIGNATURE, MLX_MAX_SIGNATURE_FILE, &text, &length)
          : mlx_read_file(signature_path, MLX_MAX_SIGNATURE_FILE, &text, &length);
  if (mlx_status_code(status) == MLX_NOT_FOUND) {  // mlx_trust_check reports it with a better message
    mlx_status_free(status);
    status = NULL;
  }
  if (!status) {
    status = options->key ? mlx_trust_check_key(&subject->data, signature_path, text, length,
                                                options->key_name, options->key, out_signer)
                          : mlx_trust_check(&subject->data, signature_path, text, length, out_signer);
  }
  if (!status && subject->bundle)
    status = mlx_bundle_check_all(subject->bundle, options->may_lack_weights, options->report);
  mlx_free(text);
  return status;
}

mlx_status_t mlx_verify(const char *path, const mlx_verify_options_t *options, mlx_signer_t *out_signer) {
  subject_t subject;
  *out_signer = (mlx_signer_t){.file = ""};
  mlx_status_t status = open_subject(path, options->signature_path, &subject);
  if (!status && !subject.bundle && !mlx_is_file(path))
    status = mlx_error(MLX_NOT_FOUND, "file '%s' does not exist", path);
  if (!status) status = verify_subject(&subject, options, out_signer);
  clear_subject(&subject);
  return status;
}
