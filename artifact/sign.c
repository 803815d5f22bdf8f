#include "artifact/sign.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium/utils.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "artifact/settings.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/user.h"

#define MAX_MANIFEST (1u << 20)

// ---------------------------------------------------------------------------------------------------------------------
// Keys

mlx_status_t mlx_key_pair_path(char **out_path) {
  char *folder;
  *out_path = NULL;
  MLX_TRY(mlx_user_folder(MLX_USER_CONFIG, &folder));
  if (!folder) return mlx_status_hint(mlx_error(MLX_NOT_FOUND, "there is no place for keys: HOME is not set"), "name a key's file");
  mlx_status_t status = mlx_join_path(folder, "mlxcel", out_path);
  mlx_free(folder);
  return status;
}

static mlx_status_t refuse_existing(const char *path) {
  struct stat info;
  if (lstat(path, &info)) return errno == ENOENT ? NULL : mlx_io_error("look at", path);
  return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' is there already", path),
                         "take another name with -o; --force replaces it, and nothing can be signed with the old key any more");
}

// Half a pair is of no use and does not stay; an old one goes only when a new key has taken its place.
static mlx_status_t write_pair(const char *key_path, const char *pub_path, const char *secret, size_t secret_length, const mlx_public_key_t *key, bool force) {
  char *text, *folder;
  size_t length;
  MLX_TRY(mlx_folder_of(key_path, &folder));
  mlx_status_t status = mlx_make_dirs(folder, 0755);
  mlx_free(folder);
  if (status) return status;
  MLX_TRY(mlx_public_key_write(key, &text, &length));
  status = mlx_write_secret_file(key_path, secret, secret_length);
  const bool has_key = !status || !force;
  if (!status) status = mlx_write_file(pub_path, text, length);
  if (status && has_key) unlink(key_path);
  if (status && !force) unlink(pub_path);
  mlx_free(text);
  return status;
}

static mlx_status_t make_pair(const char *key_path, const char *pub_path, const char *password, const mlx_key_cost_t *cost, bool force,
                              mlx_public_key_t *out_key) {
  mlx_secret_key_t key;
  char *text;
  size_t length;
  mlx_secret_key_generate(&key);
  *out_key = mlx_secret_key_public(&key);
  mlx_status_t status = mlx_secret_key_write(&key, password, cost, &text, &length);
  mlx_secret_key_clear(&key);
  if (!status) status = write_pair(key_path, pub_path, text, length, out_key, force);
  mlx_secret_text_free(text, length);
  return status;
}

mlx_status_t mlx_key_pair_make(const char *path, const char *password, const mlx_key_cost_t *cost, bool force, mlx_public_key_t *out_key) {
  char *key_path = NULL, *pub_path = NULL;
  mlx_status_t status = mlx_format(&key_path, "%s.key", path);
  if (!status) status = mlx_format(&pub_path, "%s.pub", path);
  if (!status && !force) status = refuse_existing(key_path);
  if (!status && !force) status = refuse_existing(pub_path);
  if (!status) status = make_pair(key_path, pub_path, password, cost, force, out_key);
  mlx_free(key_path);
  mlx_free(pub_path);
  return status;
}

// Into memory of our own, which can be zeroed: mlx_read_file leaves copies behind.
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
    if (length == MLX_MAX_KEY_FILE) status = mlx_error(MLX_INVALID_INPUT, "'%s' is too long for a secret key", path);
  }
  close(fd);
  *out_length = length;
  return status;
}

static mlx_status_t open_key(const char *path, const char *text, size_t length, mlx_password_fn_t ask, void *user, mlx_secret_key_t *out_key) {
  bool encrypted;
  char password[MLX_MAX_PASSWORD] = "";
  MLX_TRY(mlx_secret_key_needs_password(path, text, length, &encrypted));
  mlx_status_t status = encrypted ? ask(user, path, password) : NULL;
  if (!status) status = mlx_secret_key_read(path, text, length, encrypted ? password : NULL, out_key);
  sodium_memzero(password, sizeof password);
  return status;
}

mlx_status_t mlx_secret_key_load(const char *path, mlx_password_fn_t ask, void *user, mlx_secret_key_t *out_key) {
  char text[MLX_MAX_KEY_FILE];
  size_t length = 0;
  *out_key = (mlx_secret_key_t){0};
  mlx_status_t status = read_secret_file(path, text, &length);
  if (!status) status = open_key(path, text, length, ask, user, out_key);
  sodium_memzero(text, sizeof text);
  return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// Bundles

static bool is_listed(const mlx_manifest_t *manifest, const char *name) {
  for (size_t i = 0; i < manifest->file_count; ++i) {
    if (!strcmp(manifest->files[i].name, name)) return true;
  }
  return false;
}

typedef struct strays {
  const char *folder;
  const mlx_manifest_t *manifest;
} strays_t;

// A file that the runtime would read and nobody signed.
static mlx_status_t refuse_stray(void *user, const char *name) {
  const strays_t *strays = user;
  if (!mlx_is_bundle_file(name) || !strcmp(name, MLX_BUNDLE_MANIFEST) || is_listed(strays->manifest, name)) return NULL;
  return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "'%s' has a %s that its manifest does not list", strays->folder, name),
                         "it was put there after the model was compiled: remove it, or get the model again");
}

static mlx_status_t check_file(const char *path, const mlx_bundle_file_t *file) {
  mlx_file_stamp_t stamp;
  char sha256[MLX_DIGEST_HEX];
  MLX_TRY(mlx_file_stamp(path, &stamp));
  if (stamp.size != (uint64_t)file->size) {
    return mlx_error(MLX_INVALID_INPUT, "'%s' has %llu bytes and its manifest says %lld", path, (unsigned long long)stamp.size, (long long)file->size);
  }
  MLX_TRY(mlx_digest_file(path, sha256));
  if (!strcmp(sha256, file->sha256)) return NULL;
  return mlx_error(MLX_INVALID_INPUT, "'%s' has the SHA-256 %s and its manifest says %s", path, sha256, file->sha256);
}

mlx_status_t mlx_bundle_check_files(const char *folder, const mlx_manifest_t *manifest, const mlx_report_t *report) {
  strays_t strays = {folder, manifest};
  mlx_status_t status = NULL;
  if (!manifest->file_count) {
    return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "'%s': its manifest does not list its files; an older mlxcel wrote it", folder), "compile the model again");
  }
  MLX_TRY(mlx_list_dir(folder, refuse_stray, &strays));
  for (size_t i = 0; !status && i < manifest->file_count; ++i) {
    char *path;
    mlx_report_progress(report, "checking %s (%lld MiB)", manifest->files[i].name, (long long)(manifest->files[i].size >> 20));
    status = mlx_join_path(folder, manifest->files[i].name, &path);
    if (!status) status = check_file(path, &manifest->files[i]);
    mlx_free(path);
  }
  mlx_report_done(report);
  return mlx_status_hint(status, "the model was damaged or changed: get it again, or compile it again");
}

// The manifest's text, and that its files are those that it lists.
static mlx_status_t check_bundle(const char *folder, const char *manifest_path, const char *text, size_t length, const mlx_report_t *report) {
  mlx_manifest_t *manifest;
  MLX_TRY(mlx_alloc(1, sizeof *manifest, &manifest));
  mlx_status_t status = mlx_manifest_read(manifest_path, text, length, manifest);
  if (!status) status = mlx_bundle_check_files(folder, manifest, report);
  mlx_free(manifest);
  return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// What is signed, and where its signature lies

typedef struct subject {
  const char *folder;    // of a bundle; NULL: a file
  char *path;            // of what is signed; owned
  char *signature_path;  // owned
  char *manifest;        // a bundle's, which is read once: what is checked is what is used; owned
  mlx_signed_t what;
} subject_t;

static void clear_subject(subject_t *subject) {
  mlx_free(subject->path);
  mlx_free(subject->signature_path);
  mlx_free(subject->manifest);
  *subject = (subject_t){0};
}

static mlx_status_t open_bundle(const char *folder, subject_t *subject) {
  if (!mlx_is_bundle(folder)) {
    return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "'%s' is a folder and no compiled model", folder), "give a file, or what `mlxcel compile` made");
  }
  subject->folder = folder;
  MLX_TRY(mlx_join_path(folder, MLX_BUNDLE_MANIFEST, &subject->path));
  MLX_TRY(mlx_read_file(subject->path, MAX_MANIFEST, &subject->manifest, &subject->what.length));
  subject->what.bytes = subject->manifest;
  return NULL;
}

static mlx_status_t open_subject(const char *path, const char *signature_path, subject_t *out_subject) {
  *out_subject = (subject_t){0};
  if (mlx_is_dir(path)) {
    MLX_TRY(open_bundle(path, out_subject));
  } else {
    MLX_TRY(mlx_copy_text(path, strlen(path), &out_subject->path));
  }
  out_subject->what.name = out_subject->path;
  return signature_path ? mlx_copy_text(signature_path, strlen(signature_path), &out_subject->signature_path)
                        : mlx_format(&out_subject->signature_path, "%s" MLX_SIGNATURE_ENDING, out_subject->path);
}

// ---------------------------------------------------------------------------------------------------------------------
// Signing

static long long signing_time(void) {
  const char *given = mlx_environment("SOURCE_DATE_EPOCH");  // the same bytes from the same inputs
  char *end;
  const long long seconds = given ? strtoll(given, &end, 10) : 0;
  return given && !*end && seconds >= 0 ? seconds : (long long)time(NULL);
}

static mlx_status_t sign_subject(const subject_t *subject, const mlx_sign_options_t *options) {
  char *comment = NULL, *text = NULL;
  size_t length;
  mlx_status_t status = NULL;
  if (subject->folder) status = check_bundle(subject->folder, subject->path, subject->manifest, subject->what.length, options->report);
  if (!status && !options->trusted_comment) {
    status = mlx_format(&comment, "timestamp:%lld\tfile:%s\thashed", signing_time(), mlx_file_name(subject->path).text);
  }
  if (!status) {
    status = mlx_signature_make(options->key, &subject->what, options->comment, comment ? comment : options->trusted_comment, &text, &length);
  }
  if (!status) status = mlx_write_file(subject->signature_path, text, length);
  mlx_free(comment);
  mlx_free(text);
  return status;
}

mlx_status_t mlx_sign(const char *path, const mlx_sign_options_t *options, char **out_signature_path) {
  subject_t subject;
  *out_signature_path = NULL;
  mlx_status_t status = open_subject(path, options->signature_path, &subject);
  if (!status) status = sign_subject(&subject, options);
  if (!status) {
    *out_signature_path = subject.signature_path;
    subject.signature_path = NULL;
  }
  clear_subject(&subject);
  return status;
}

// ---------------------------------------------------------------------------------------------------------------------
// Verifying

static mlx_status_t verify_subject(const subject_t *subject, const mlx_verify_options_t *options, mlx_signer_t *out_who) {
  char *text = NULL;
  size_t length = 0;
  mlx_status_t status = mlx_read_file(subject->signature_path, MLX_MAX_SIGNATURE_FILE, &text, &length);
  if (mlx_status_code(status) == MLX_NOT_FOUND) {  // said better by what looks for it
    mlx_status_free(status);
    status = NULL;
  }
  if (!status) {
    status = options->key ? mlx_trust_check_key(&subject->what, subject->signature_path, text, length, options->key_name, options->key, out_who)
                          : mlx_trust_check(&subject->what, subject->signature_path, text, length, out_who);
  }
  if (!status && subject->folder) status = check_bundle(subject->folder, subject->path, subject->manifest, subject->what.length, options->report);
  mlx_free(text);
  return status;
}

mlx_status_t mlx_verify(const char *path, const mlx_verify_options_t *options, mlx_signer_t *out_who) {
  subject_t subject;
  *out_who = (mlx_signer_t){.file = ""};
  mlx_status_t status = open_subject(path, options->signature_path, &subject);
  if (!status && !subject.folder && !mlx_is_file(path)) status = mlx_error(MLX_NOT_FOUND, "there is no file '%s'", path);
  if (!status) status = verify_subject(&subject, options, out_who);
  clear_subject(&subject);
  return status;
}
