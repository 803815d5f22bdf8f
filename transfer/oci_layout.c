// Reads and writes OCI layout folders. See oci_layout.h.
#include "transfer/oci_layout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/memory.h"

#define MARKER "{\"imageLayoutVersion\": \"1.0.0\"}\n"

static mlx_status_t blob_path(const char *folder, const char *digest, char **out_path) {
  return mlx_format(out_path, "%s/blobs/sha256/%s", folder, digest + strlen("sha256:"));
}

// Rejects a pipe, for example: reading it would block.
static mlx_status_t need_file(const char *path) {
  return mlx_is_file(path) ? NULL
                           : mlx_error(MLX_NOT_FOUND, "'%s' does not exist or is not a regular file", path);
}

static mlx_status_t compare(const char *name, const char *hex, const char *digest) {
  if (!strcmp(hex, digest + strlen("sha256:"))) return NULL;
  return mlx_error(MLX_INVALID_INPUT, "'%s' has the digest sha256:%s, expected %s", name, hex, digest);
}

// Adds a hint to an error that is caused by the layout's content.
static mlx_status_t hint_damaged(mlx_status_t status, const char *folder) {
  const mlx_code_t code = mlx_status_code(status);
  if (code != MLX_INVALID_INPUT && code != MLX_NOT_FOUND) return status;
  return mlx_status_hint(
      status, "'%s' is damaged or incomplete: push the model to it again, or copy the folder again", folder);
}

static mlx_status_t write_text(const char *folder, const char *name, const char *text, size_t length) {
  char *path;
  MLX_TRY(mlx_join_path(folder, name, &path));
  mlx_status_t status = mlx_write_file(path, text, length);
  mlx_free(path);
  return status;
}

static mlx_status_t copy_name(void *user, const char *name) {
  snprintf(user, sizeof(mlx_file_name_t), "%s", name);
  return NULL;
}

// The marker file is the first file of a layout. A folder with other files but no marker is not a layout.
static mlx_status_t refuse_foreign_folder(const char *folder, const char *marker) {
  mlx_file_name_t last = {""};
  MLX_TRY(mlx_list_dir(folder, copy_name, &last));
  if (!last.text[0] || mlx_is_file(marker)) return NULL;
  return mlx_status_hint(
      mlx_error(MLX_USAGE, "'%s' is not an OCI layout: it contains '%s'", folder, last.text),
      "name an empty folder, or one that does not exist yet");
}

// Two processes may create the marker at the same time: both write the same bytes. The marker is written in
// place, because its inode is the lock.
static mlx_status_t open_marker(const char *path, int *out_fd) {
  struct stat info;
  *out_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (*out_fd < 0) return mlx_io_error("open", path);
  if (fstat(*out_fd, &info)) return mlx_io_error("stat", path);
  if (info.st_size) return NULL;
  const ssize_t length = (ssize_t)strlen(MARKER);
  return pwrite(*out_fd, MARKER, (size_t)length, 0) == length && !fsync(*out_fd)
             ? NULL
             : mlx_io_error("write", path);
}

static void unlock(int *lock) {
  if (*lock >= 0) close(*lock);
  *lock = -1;
}

static mlx_status_t sweep_name(void *user, const char *name) {
  const char *suffix = strstr(name, ".tmp.");
  char *path;
  if (!suffix || !mlx_is_temporary_suffix(suffix)) return NULL;
  MLX_TRY(mlx_join_path(user, name, &path));
  mlx_status_t status = mlx_remove_tree(path);
  mlx_free(path);
  return status;
}

// Removes temporary files of dead processes. The caller holds the exclusive lock, so no other process is
// writing. Failures are ignored.
static void sweep(const char *folder) {
  mlx_status_free(mlx_list_dir(folder, sweep_name, (void *)(uintptr_t)folder));
}

// Creates the layout if needed and locks it (LOCK_SH or LOCK_EX). *|out_lock| is -1 if the file system has no
// locks. Release with unlock.
static mlx_status_t lock_layout(const char *folder, int operation, int *out_lock) {
  char *marker = NULL, *blobs = NULL;
  *out_lock = -1;
  mlx_status_t status = mlx_join_path(folder, "oci-layout", &marker);
  if (!status) status = mlx_join_path(folder, "blobs/sha256", &blobs);
  if (!status) status = mlx_make_dirs(folder, 0755);
  if (!status) status = refuse_foreign_folder(folder, marker);
  if (!status) status = open_marker(marker, out_lock);
  while (!status && *out_lock >= 0 && flock(*out_lock, operation)) {
    if (errno != EINTR) unlock(out_lock);
  }
  if (!status) status = mlx_make_dirs(blobs, 0755);
  if (!status && *out_lock >= 0 && operation == LOCK_EX) {
    sweep(folder);
    sweep(blobs);
  }
  if (status) unlock(out_lock);
  mlx_free(blobs);
  mlx_free(marker);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Documents

static mlx_status_t read_index(const char *folder, mlx_oci_document_t *out_index) {
  char *path, *text = NULL;
  size_t length;
  *out_index = (mlx_oci_document_t){0};
  MLX_TRY(mlx_join_path(folder, "index.json", &path));
  mlx_status_t status = need_file(path);
  if (!status) status = mlx_read_file(path, MLX_OCI_MAX_DOCUMENT, &text, &length);
  if (!status) status = mlx_oci_document_read(path, text, length, out_index);
  mlx_free(text);
  mlx_free(path);
  return mlx_status_hint(status,
                         "name the folder of an OCI layout: it contains oci-layout, index.json and blobs");
}

// Appends the document with this digest, after checking it.
static mlx_status_t read_blob(const char *folder, const char *digest, mlx_text_t *out_text) {
  char *path, *text = NULL, hex[MLX_DIGEST_HEX];
  size_t length;
  MLX_TRY(blob_path(folder, digest, &path));
  mlx_status_t status = need_file(path);
  if (!status) status = mlx_read_file(path, MLX_OCI_MAX_DOCUMENT, &text, &length);
  if (!status) {
    mlx_digest_bytes(text, length, hex);
    status = hint_damaged(compare(path, hex, digest), folder);
  }
  if (!status) mlx_text_append(out_text, text, length);
  if (!status) status = mlx_text_finish(out_text);
  mlx_free(text);
  mlx_free(path);
  return status;
}

mlx_status_t mlx_oci_layout_get_document(const char *folder, const char *reference, mlx_text_t *out_json) {
  if (mlx_oci_is_digest(reference)) return read_blob(folder, reference, out_json);
  mlx_oci_document_t index;
  MLX_TRY(read_index(folder, &index));
  mlx_status_t status = NULL;
  bool found = false;
  for (size_t i = 0; i < index.count && !found && !status; ++i) {
    found = !strcmp(index.items[i].tag, reference);
    if (found) status = read_blob(folder, index.items[i].digest, out_json);
  }
  mlx_oci_document_free(&index);
  return found || status ? status : mlx_error(MLX_NOT_FOUND, "'%s' has no tag '%s'", folder, reference);
}

// Adds an item to the index, which is created if needed. The caller holds the exclusive lock.
static mlx_status_t add_to_index(const char *folder, const char *tag,
                                 const mlx_oci_descriptor_t *descriptor) {
  char *path, *old = NULL;
  size_t length;
  mlx_text_t json = {0}, none = {0};
  MLX_TRY(mlx_join_path(folder, "index.json", &path));
  mlx_oci_index_write(NULL, 0, &none);
  mlx_status_t status = mlx_is_file(path) ? mlx_read_file(path, MLX_OCI_MAX_DOCUMENT, &old, &length)
                                          : mlx_text_take(&none, &old, &length);
  if (!status) status = mlx_oci_index_add(path, old, length, descriptor, tag, &json);
  if (!status) status = write_text(folder, "index.json", json.data, json.length);
  mlx_text_clear(&json);
  mlx_text_clear(&none);
  mlx_free(old);
  mlx_free(path);
  return status;
}

mlx_status_t mlx_oci_layout_put_document(const char *folder, const char *tag,
                                         const mlx_oci_descriptor_t *descriptor, const char *json,
                                         size_t length) {
  mlx_blob_t blob = {.descriptor = *descriptor, .bytes = json};
  blob.descriptor.size = length;
  MLX_TRY(mlx_oci_layout_put_blob(folder, &blob));
  int lock;
  MLX_TRY(lock_layout(folder, LOCK_EX, &lock));
  mlx_status_t status = add_to_index(folder, tag, descriptor);
  unlock(&lock);
  return status;
}

static mlx_status_t refers_to(const char *folder, const mlx_oci_descriptor_t *item, const char *digest,
                              bool *out_refers) {
  mlx_text_t json = {0};
  mlx_oci_document_t document = {0};
  mlx_status_t status = read_blob(folder, item->digest, &json);
  if (!status)
    status = mlx_oci_document_read(item->digest, json.data ? json.data : "", json.length, &document);
  *out_refers = !status && !strcmp(document.subject.digest, digest);
  mlx_oci_document_free(&document);
  mlx_text_clear(&json);
  return status;
}

// Adds the items of |from| that refer to |digest| and are not in |index| yet.
static mlx_status_t add_referrers(const char *folder, const mlx_oci_document_t *from, const char *digest,
                                  const char *artifact_type, mlx_oci_document_t *index) {
  for (size_t i = 0; i < from->count; ++i) {
    const mlx_oci_descriptor_t *item = &from->items[i];
    bool refers, is_listed = false;
    if (strcmp(item->media_type, MLX_OCI_MANIFEST) ||
        (item->artifact_type[0] && strcmp(item->artifact_type, artifact_type)))
      continue;
    for (size_t j = 0; j < index->count; ++j)
      is_listed = is_listed || !strcmp(index->items[j].digest, item->digest);
    if (is_listed) continue;
    MLX_TRY(refers_to(folder, item, digest, &refers));
    if (!refers) continue;
    MLX_TRY(mlx_resize(index->count + 1, sizeof *index->items, &index->items));
    index->items[index->count++] = *item;
  }
  return NULL;
}

// Some tools store the list of referrers under a tag, as in a registry without the referrers API. Reads it.
static mlx_status_t read_tagged_list(const char *folder, const mlx_oci_document_t *index, const char *digest,
                                     mlx_oci_document_t *out_list) {
  *out_list = (mlx_oci_document_t){0};
  for (size_t i = 0; i < index->count; ++i) {
    const char *tag = index->items[i].tag;
    if (strncmp(tag, "sha256-", 7) || strcmp(tag + 7, digest + strlen("sha256:"))) continue;
    mlx_text_t json = {0};
    mlx_status_t status = read_blob(folder, index->items[i].digest, &json);
    if (!status) status = mlx_oci_document_read(tag, json.data ? json.data : "", json.length, out_list);
    mlx_text_clear(&json);
    return status;
  }
  return NULL;
}

mlx_status_t mlx_oci_layout_referrers(const char *folder, const char *digest, const char *artifact_type,
                                      mlx_oci_document_t *out_index) {
  mlx_oci_document_t index, list;
  MLX_TRY(read_index(folder, &index));
  mlx_status_t status = read_tagged_list(folder, &index, digest, &list);
  if (!status) status = add_referrers(folder, &list, digest, artifact_type, out_index);
  if (!status) status = add_referrers(folder, &index, digest, artifact_type, out_index);
  mlx_oci_document_free(&list);
  mlx_oci_document_free(&index);
  return status;
}

mlx_status_t mlx_oci_layout_tags(const char *folder, mlx_text_t *out_tags, size_t *out_count) {
  mlx_oci_document_t index;
  MLX_TRY(read_index(folder, &index));
  for (size_t i = 0; i < index.count; ++i) {
    if (!index.items[i].tag[0]) continue;
    mlx_text_append(out_tags, index.items[i].tag, strlen(index.items[i].tag) + 1);
    ++*out_count;
  }
  mlx_oci_document_free(&index);
  return mlx_text_finish(out_tags);
}

// ----------------------------------------------------------------------------------------------------------
// Blobs

static mlx_status_t has_blob(const char *path, const mlx_oci_descriptor_t *descriptor, bool *out_has) {
  struct stat info;
  char hex[MLX_DIGEST_HEX] = "";
  *out_has = false;
  if (stat(path, &info) || !S_ISREG(info.st_mode) || (uint64_t)info.st_size != descriptor->size) return NULL;
  MLX_TRY(mlx_digest_file(path, NULL, hex));
  *out_has = !strcmp(hex, descriptor->digest + strlen("sha256:"));
  return NULL;
}

// Writes the blob under a temporary name, checks the written file, then renames it.
static mlx_status_t write_checked(const mlx_blob_t *blob, const char *to) {
  char *temporary, hex[MLX_DIGEST_HEX] = "";
  if (blob->path) MLX_TRY(need_file(blob->path));
  MLX_TRY(mlx_temporary_path(to, &temporary));
  mlx_status_t status = blob->path ? mlx_copy_file(blob->path, temporary)
                                   : mlx_write_file(temporary, blob->bytes, (size_t)blob->descriptor.size);
  if (!status) status = mlx_digest_file(temporary, NULL, hex);
  if (!status) status = compare(blob->path ? blob->path : "the data to push", hex, blob->descriptor.digest);
  if (!status) status = mlx_rename(temporary, to);
  if (status) status = mlx_status_join(status, mlx_remove_tree(temporary));
  mlx_free(temporary);
  return status;
}

// Replaces an existing copy if it is damaged.
static mlx_status_t put_blob(const char *folder, const mlx_blob_t *blob) {
  char *path;
  bool has;
  MLX_TRY(blob_path(folder, blob->descriptor.digest, &path));
  mlx_status_t status = has_blob(path, &blob->descriptor, &has);
  if (!status && !has) status = write_checked(blob, path);
  mlx_free(path);
  return status;
}

mlx_status_t mlx_oci_layout_put_blob(const char *folder, const mlx_blob_t *blob) {
  int lock;
  MLX_TRY(lock_layout(folder, LOCK_SH, &lock));
  mlx_status_t status = put_blob(folder, blob);
  unlock(&lock);
  return status;
}

mlx_status_t mlx_oci_layout_get_blob(const char *folder, const mlx_oci_descriptor_t *descriptor,
                                     const char *path) {
  char *from;
  bool has;
  MLX_TRY(has_blob(path, descriptor, &has));
  if (has) return NULL;
  MLX_TRY(blob_path(folder, descriptor->digest, &from));
  mlx_status_t status = write_checked(&(mlx_blob_t){.descriptor = *descriptor, .path = from}, path);
  mlx_free(from);
  return hint_damaged(status, folder);
}
