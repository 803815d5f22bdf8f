// Writes a compiled model as a bundle: a folder or a single file. Publishes it atomically, complete or not at
// all.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "artifact/bundle.h"
#include "artifact/local.h"
#include "artifact/tar.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/meter.h"
#include "base/text.h"
#include "compiler/compile.h"

// Alignment of each file in a single-file bundle: a memory page, so that each can be mapped alone.
#define MEMBER_ALIGNMENT 4096
#define PIECE ((size_t)4 << 20)  // bytes between two looks at the clock

// ----------------------------------------------------------------------------------------------------------
// The files of a bundle

// A file to write: |bytes|, or the content of |path| if bytes is NULL. A folder gets a hard link of a file
// that |may_link|: weights in the cache are written once and never changed.
typedef struct item {
  const char *name;
  const void *bytes;
  size_t length;
  const char *path;
  bool may_link;
} item_t;
typedef mlx_status_t (*put_fn_t)(void *user, const item_t *item);

static mlx_status_t put_files(const mlx_compiled_file_t *files, size_t count, bool may_link, put_fn_t put,
                              void *user) {
  for (size_t i = 0; i < count; ++i)
    MLX_TRY(put(user, &(item_t){.name = files[i].name, .path = files[i].path, .may_link = may_link}));
  return NULL;
}

static mlx_status_t put_all(const mlx_compiled_t *c, const mlx_write_options_t *options, put_fn_t put,
                            void *user) {
  MLX_TRY(
      put(user, &(item_t){.name = MLX_BUNDLE_MANIFEST, .bytes = c->manifest, .length = c->manifest_length}));
  MLX_TRY(put(user,
              &(item_t){.name = MLX_BUNDLE_TOKENIZER, .bytes = c->tokenizer, .length = c->tokenizer_length}));
  if (c->chat)
    MLX_TRY(put(user, &(item_t){.name = MLX_BUNDLE_CHAT, .bytes = c->chat, .length = c->chat_length}));
  MLX_TRY(put_files(c->licences, c->licence_count, false, put, user));
  MLX_TRY(put_files(c->modules, c->module_count, false, put, user));
  return options->no_weights ? NULL : put_files(c->weights, c->weights_count, true, put, user);
}

// ----------------------------------------------------------------------------------------------------------
// Writing a folder or a single file

// Where the files go, and the progress of writing them.
typedef struct output {
  const char *folder;   // NULL: a single file
  mlx_writer_t writer;  // of the single file, or of the current file of the folder
  mlx_meter_t meter;
  uint64_t done;  // bytes
} output_t;

static mlx_status_t count_bytes(void *user, const item_t *item) {
  mlx_file_stamp_t stamp = {.size = item->length};
  if (!item->bytes) MLX_TRY(mlx_file_stamp(item->path, &stamp));
  ((output_t *)user)->meter.total += stamp.size;
  return NULL;
}

static mlx_status_t write_bytes(output_t *output, const char *bytes, size_t length) {
  for (size_t at = 0, piece; at < length; at += piece) {
    piece = length - at < PIECE ? length - at : PIECE;
    MLX_TRY(mlx_writer_write(&output->writer, bytes + at, piece));
    mlx_meter_show(&output->meter, output->done += piece);
  }
  return NULL;
}

// Closes the file after |status|, which it returns unless closing fails.
static mlx_status_t end_file(output_t *output, mlx_status_t status) {
  if (!status) return mlx_writer_close(&output->writer);
  mlx_writer_abandon(&output->writer);
  return status;
}

static mlx_status_t append_member(output_t *output, const char *name, const char *bytes, size_t length) {
  static const char zeros[MLX_TAR_BLOCK];
  mlx_text_t header = {0};
  mlx_status_t status =
      mlx_tar_aligned_header(name, length, output->writer.offset, MEMBER_ALIGNMENT, &header);
  if (!status) status = mlx_text_finish(&header);
  if (!status) status = mlx_writer_write(&output->writer, header.data, header.length);
  if (!status) status = write_bytes(output, bytes, length);
  if (!status) status = mlx_writer_write(&output->writer, zeros, mlx_tar_padding(length));
  mlx_text_clear(&header);
  return status;
}

static mlx_status_t put_bytes(output_t *output, const char *name, const char *bytes, size_t length) {
  char *path;
  if (!output->folder) return append_member(output, name, bytes, length);
  MLX_TRY(mlx_join_path(output->folder, name, &path));
  mlx_status_t status = mlx_writer_open(path, &output->writer);
  if (!status) status = end_file(output, write_bytes(output, bytes, length));
  mlx_free(path);
  return status;
}

// Sets *|out_linked| if the folder has a link of the file now.
static mlx_status_t link_item(const output_t *output, const item_t *item, bool *out_linked) {
  char *path;
  *out_linked = false;
  if (!output->folder || !item->may_link) return NULL;
  MLX_TRY(mlx_join_path(output->folder, item->name, &path));
  *out_linked = mlx_link_file(item->path, path);
  mlx_free(path);
  return NULL;
}

static mlx_status_t put_item(void *user, const item_t *item) {
  output_t *output = user;
  bool linked;
  mlx_map_t map;
  if (item->bytes) return put_bytes(output, item->name, item->bytes, item->length);
  MLX_TRY(link_item(output, item, &linked));
  MLX_TRY(mlx_map_file(item->path, &map));
  mlx_status_t status = linked ? NULL : put_bytes(output, item->name, (const char *)map.data, map.size);
  if (linked) output->done += map.size;
  mlx_unmap(&map);
  return status;
}

static mlx_status_t fill(const mlx_compiled_t *compiled, const mlx_write_options_t *options, const char *path,
                         output_t *output) {
  static const char zeros[MLX_TAR_END];
  MLX_TRY(put_all(compiled, options, count_bytes, output));
  if (!options->single_file) {
    output->folder = path;
    MLX_TRY(mlx_make_dirs(path, 0777));
    return put_all(compiled, options, put_item, output);
  }
  MLX_TRY(mlx_writer_open(path, &output->writer));
  mlx_status_t status = put_all(compiled, options, put_item, output);
  if (!status) status = mlx_writer_write(&output->writer, zeros, sizeof zeros);
  return end_file(output, status);
}

// ----------------------------------------------------------------------------------------------------------
// Checking and publishing the path

static mlx_status_t refuse_foreign_name(void *user, const char *name) {
  if (mlx_is_bundle_file(name)) return NULL;
  return mlx_error(MLX_USAGE,
                   "will not replace '%s': it contains '%s', which is not part of a compiled model",
                   (const char *)user, name);
}

mlx_status_t mlx_compiled_check_path(const char *path) {
  mlx_status_t status = NULL;
  if (mlx_is_dir(path)) {
    status =
        mlx_has_bundle_manifest(path)
            ? mlx_list_dir(path, refuse_foreign_name, (void *)(uintptr_t)path)
            : mlx_error(MLX_USAGE, "will not replace '%s': it is a folder, but not a compiled model", path);
  } else if (!access(path, F_OK) && !mlx_has_bundle_manifest(path)) {
    status = mlx_error(MLX_USAGE, "will not replace '%s': it exists and is not a compiled model", path);
  }
  return mlx_status_hint(status, "choose another path for -o");
}

// Locks the folder, so that only one process writes bundles into it. Every temporary bundle found there was
// then left by a process that died. Returns -1 if the file system has no locks.
static int lock_folder(const char *folder) {
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  while (flock(fd, LOCK_EX)) {
    if (errno == EINTR) continue;
    close(fd);
    return -1;
  }
  return fd;
}

typedef struct sweep {
  const char *folder, *name;
} sweep_t;

// refuse_foreign_name for an incomplete bundle, whose files may still have a temporary suffix.
static mlx_status_t refuse_foreign_part(void *user, const char *name) {
  const char *temporary = strstr(name, ".tmp.");
  char file[256];
  snprintf(file, sizeof file, "%.*s", (int)(temporary ? (size_t)(temporary - name) : strlen(name)), name);
  return refuse_foreign_name(user, file);
}

// Removes "NAME.tmp.PID.TIME-N" beside the bundle NAME if it contains only files of a bundle. Only mlxcel
// creates such names.
static mlx_status_t sweep_name(void *user, const char *name) {
  const sweep_t *sweep = user;
  size_t length = strlen(sweep->name);
  char *path;
  if (strncmp(name, sweep->name, length) || !mlx_is_temporary_suffix(name + length)) return NULL;
  MLX_TRY(mlx_join_path(sweep->folder, name, &path));
  mlx_status_t status = mlx_is_dir(path) ? mlx_list_dir(path, refuse_foreign_part, path) : NULL;
  if (!status) status = mlx_remove_tree(path);
  mlx_free(path);
  return status;
}

static void sweep_leftovers(const char *folder, const char *path) {
  mlx_file_name_t name = mlx_file_name(path);
  sweep_t sweep = {.folder = folder, .name = name.text};
  mlx_status_free(mlx_list_dir(folder, sweep_name, &sweep));  // a leftover that cannot be removed is no error
}

static mlx_status_t fill_and_publish(const mlx_compiled_t *compiled, const mlx_write_options_t *options,
                                     const char *path, const char *title) {
  char *temporary;
  output_t output = {0};
  MLX_TRY(mlx_temporary_path(path, &temporary));
  mlx_meter_begin(&output.meter, options->report, title, 0);
  mlx_status_t status = fill(compiled, options, temporary, &output);
  mlx_meter_end(&output.meter);
  if (!status)
    status =
        mlx_is_dir(path) || mlx_is_file(path) ? mlx_exchange(temporary, path) : mlx_rename(temporary, path);
  mlx_status_free(mlx_remove_tree(temporary));  // an incomplete bundle, or the old one after the exchange
  mlx_free(temporary);
  return status;
}

static mlx_status_t write_bundle(const mlx_compiled_t *compiled, const mlx_write_options_t *options,
                                 const char *path) {
  char *folder, *title = NULL;
  MLX_TRY(mlx_folder_of(path, &folder));
  mlx_status_t status = mlx_make_dirs(folder, 0777);
  if (!status) status = mlx_format(&title, "writing %s", mlx_file_name(path).text);
  if (!status) {
    int lock = lock_folder(folder);
    if (lock >= 0) sweep_leftovers(folder, path);
    status = fill_and_publish(compiled, options, path, title);
    if (lock >= 0) close(lock);
  }
  mlx_free(title);
  mlx_free(folder);
  return status;
}

mlx_status_t mlx_compiled_write(const mlx_compiled_t *compiled, const char *path,
                                const mlx_write_options_t *options) {
  char *target;
  MLX_TRY(mlx_compiled_check_path(path));
  const bool exists = mlx_is_dir(path) || mlx_is_file(path);
  MLX_TRY(exists ? mlx_real_path(path, &target)
                 : mlx_copy_text(path, strlen(path), &target));  // a link stays a link
  mlx_file_stamp_t stamps[MLX_MAX_TARGETS];
  mlx_status_t status = NULL;
  for (size_t i = 0; i < compiled->weights_count && !status; ++i)
    status = mlx_file_stamp(compiled->weights[i].path, &stamps[i]);
  if (!status)
    // Before it is visible: a process may run it at once.
    status =
        mlx_local_add(compiled->manifest, compiled->manifest_length, options->no_weights ? target : NULL);
  if (!status) status = write_bundle(compiled, options, target);
  for (size_t i = 0; i < compiled->weights_count && !status; ++i)
    mlx_cache_keep_digests(compiled->cache, compiled->weights[i].path, &stamps[i]);
  mlx_free(target);
  return status;
}
