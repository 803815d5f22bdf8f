// Pulls ModelPack models. See modelpack.h.
#include "transfer/modelpack.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "artifact/tar.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/meter.h"
#include "base/text.h"
#include "transfer/download.h"
#include "transfer/hub.h"
#include "transfer/oci_cache.h"
#include "transfer/output.h"

#define PARALLEL 4
#define MAX_LAYERS 4096
#define MAX_FILES 4096
#define PREFIX "application/vnd.cncf.model."
#define PIECE (1u << 20)  // bytes copied at a time

mlx_layer_kind_t mlx_modelpack_layer_kind(const char *media_type) {
  // clang-format off
  static const struct {
    const char *format;
    mlx_layer_kind_t kind;
  } formats[] = {
      {"raw", MLX_LAYER_FILE},
      {"gguf", MLX_LAYER_FILE},
      {"safetensors", MLX_LAYER_FILE},
      {"tar", MLX_LAYER_TAR},
      {"tar+gzip", MLX_LAYER_COMPRESSED},
      {"tar+zstd", MLX_LAYER_COMPRESSED}};
  static const struct {
    const char *content;
    bool pulled, required;
  } contents[] = {
      {"weight.v1.", true, true},
      {"weight.config.v1.", true, true},
      {"doc.v1.", true, false},
      {"code.v1.", false, false},
      {"dataset.v1.", false, false}};
  // clang-format on
  if (strncmp(media_type, PREFIX, strlen(PREFIX))) return MLX_LAYER_UNKNOWN;
  const char *rest = media_type + strlen(PREFIX);
  for (size_t i = 0; i < sizeof contents / sizeof *contents; ++i) {
    const size_t length = strlen(contents[i].content);
    if (strncmp(rest, contents[i].content, length)) continue;
    for (size_t j = 0; j < sizeof formats / sizeof *formats; ++j) {
      if (strcmp(rest + length, formats[j].format)) continue;
      if (!contents[i].pulled || (formats[j].kind == MLX_LAYER_COMPRESSED && !contents[i].required))
        return MLX_LAYER_SKIPPED;
      return formats[j].kind;
    }
  }
  return MLX_LAYER_UNKNOWN;
}

bool mlx_modelpack_is_compiled(const mlx_oci_document_t *model) {
  for (size_t i = 0; i < model->count; ++i) {
    if (mlx_ends_with_nocase(model->items[i].path, ".irpa")) return true;
  }
  return false;
}

static bool is_pickle(const char *name) {
  return mlx_ends_with_nocase(name, ".bin") || mlx_ends_with_nocase(name, ".pt") ||
         mlx_ends_with_nocase(name, ".pth") || mlx_ends_with_nocase(name, ".ckpt");
}

// ----------------------------------------------------------------------------------------------------------
// Choosing the file to open

static mlx_status_t add_file(mlx_hub_listing_t *files, const char *name) {
  for (size_t i = 0; i < files->count; ++i) {
    if (!strcmp(files->files[i].name, name))
      return mlx_error(MLX_INVALID_INPUT, "the model contains '%s' twice", name);
  }
  if (files->count == MAX_FILES)
    return mlx_error(MLX_INVALID_INPUT, "the model has more than %d files", MAX_FILES);
  MLX_TRY(mlx_resize(files->count + 1, sizeof *files->files, &files->files));
  files->files[files->count] = (mlx_hub_file_t){0};
  MLX_TRY(mlx_copy_text(name, strlen(name), &files->files[files->count].name));
  ++files->count;
  return NULL;
}

typedef struct walk {
  const char *root, *below;  // |below| is "" or a path relative to |root|
  mlx_hub_listing_t *files;
} walk_t;

static mlx_status_t visit(void *user, const char *name) {
  const walk_t *walk = user;
  char *path = NULL, *whole = NULL;
  mlx_status_t status = mlx_format(&path, "%s%s%s", walk->below, walk->below[0] ? "/" : "", name);
  if (!status) status = mlx_join_path(walk->root, path, &whole);
  walk_t deeper = {.root = walk->root, .below = path, .files = walk->files};
  if (!status) status = mlx_is_dir(whole) ? mlx_list_dir(whole, visit, &deeper) : add_file(walk->files, path);
  mlx_free(whole);
  mlx_free(path);
  return status;
}

mlx_status_t mlx_modelpack_find_main(const char *folder, const mlx_report_t *report, char **out_path) {
  mlx_hub_listing_t files = {0};
  walk_t walk = {.root = folder, .below = "", .files = &files};
  const char *main_file = NULL;
  bool by_default = false;
  mlx_status_t status = mlx_list_dir(folder, visit, &walk);
  if (!status) status = mlx_hub_select(&files, "", &main_file, &by_default);
  if (!status && by_default) mlx_report_note(report, "chose the default quantization: %s", main_file);
  if (!status)
    status = main_file ? mlx_join_path(folder, main_file, out_path)
                       : mlx_copy_text(folder, strlen(folder), out_path);
  mlx_hub_listing_free(&files);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Archives

static mlx_status_t make_folder_of(const char *path) {
  char *folder;
  MLX_TRY(mlx_folder_of(path, &folder));
  mlx_status_t status = mlx_make_dirs(folder, 0755);
  mlx_free(folder);
  return status;
}

static mlx_status_t copy_member(const mlx_tar_t *tar, const mlx_tar_member_t *member, const char *path,
                                mlx_meter_t *meter) {
  mlx_writer_t writer;
  char *piece;
  MLX_TRY(mlx_remove_tree(path));  // from a killed pull
  MLX_TRY(make_folder_of(path));
  MLX_TRY(mlx_alloc(PIECE, 1, &piece));
  mlx_status_t status = mlx_writer_open(path, &writer);
  if (!status) {
    for (uint64_t done = 0; !status && done < member->size;) {
      const size_t length = member->size - done < PIECE ? (size_t)(member->size - done) : PIECE;
      status = mlx_tar_read(tar, member->offset + done, piece, length);
      if (!status) status = mlx_writer_write(&writer, piece, length);
      done += length;
      mlx_meter_show(meter, member->offset + done);
    }
    if (!status) status = mlx_writer_close(&writer);
    if (status) mlx_writer_abandon(&writer);
  }
  mlx_free(piece);
  return status;
}

static mlx_status_t unpack_all(mlx_tar_t *tar, const char *folder, mlx_hub_listing_t *files,
                               mlx_meter_t *meter) {
  mlx_tar_member_t member;
  for (;;) {
    bool found;
    char *path;
    MLX_TRY(mlx_tar_next(tar, &member, &found));
    if (!found) return NULL;
    if (member.folder || is_pickle(member.name)) continue;
    MLX_TRY(add_file(files, member.name));
    MLX_TRY(mlx_join_path(folder, member.name, &path));
    mlx_status_t status = copy_member(tar, &member, path, meter);
    mlx_free(path);
    MLX_TRY(status);
  }
}

// Unpacks the tar archive |path|, which messages call |name|, to |folder|, except pickles. Adds each name to
// |files|; fails on a name that is already there.
static mlx_status_t unpack(const char *path, const char *name, const char *folder, const mlx_report_t *report,
                           mlx_hub_listing_t *files) {
  char title[96];
  struct stat info;
  mlx_meter_t meter;
  mlx_tar_t tar = {.name = path, .fd = open(path, O_RDONLY | O_CLOEXEC)};
  if (tar.fd < 0) return mlx_io_error("open", path);
  mlx_status_t status = fstat(tar.fd, &info) ? mlx_io_error("stat", path) : NULL;
  if (!status) tar.size = (uint64_t)info.st_size;
  snprintf(title, sizeof title, "unpacking %.64s", name);
  mlx_meter_begin(&meter, report, title, tar.size);
  if (!status) status = unpack_all(&tar, folder, files, &meter);
  mlx_meter_end(&meter);
  close(tar.fd);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Planning

typedef struct layer {
  const mlx_oci_descriptor_t *descriptor;
  bool tar;
  char *path;  // in the staging folder; owned
} layer_t;

// One pull in progress.
typedef struct pull {
  const mlx_modelpack_options_t *options;
  mlx_store_t *store;
  const mlx_oci_ref_t *ref;
  const char *digest;
  char *folder;   // final place of the model
  char *staging;  // its subfolder files/ is renamed to |folder| at the end; layers/ holds tar archives
  layer_t *layers;
  size_t count;
  size_t tars;
  uint64_t bytes;  // of disk space needed
  mlx_hub_listing_t files;
} pull_t;

static void free_pull(pull_t *pull) {
  for (size_t i = 0; i < pull->count; ++i) mlx_free(pull->layers[i].path);
  mlx_free(pull->layers);
  mlx_hub_listing_free(&pull->files);
  mlx_free(pull->folder);
  mlx_free(pull->staging);
}

static mlx_status_t compressed(const mlx_oci_descriptor_t *layer) {
  return mlx_status_hint(
      mlx_error(MLX_UNSUPPORTED, "layer '%s' is compressed (%s), which is not supported",
                layer->path[0] ? layer->path : layer->digest, layer->media_type),
      "unpack the model with `oras pull` and tar, and open the folder; or push it again with raw or tar "
      "layers");
}

// File name for an unnamed layer whose media type implies one, else "".
static const char *default_name(const mlx_oci_descriptor_t *layer) {
  if (mlx_ends_with_nocase(layer->media_type, ".gguf")) return "model.gguf";
  return mlx_ends_with_nocase(layer->media_type, ".safetensors") ? "model.safetensors" : "";
}

static mlx_status_t add_layer(pull_t *pull, const mlx_oci_descriptor_t *descriptor) {
  const mlx_layer_kind_t kind = mlx_modelpack_layer_kind(descriptor->media_type);
  const char *name = descriptor->path[0] ? descriptor->path : default_name(descriptor);
  if (kind == MLX_LAYER_SKIPPED) return NULL;
  if (kind == MLX_LAYER_FILE && is_pickle(name))
    return add_file(&pull->files, name);  // not downloaded, but listed for error messages
  if (kind == MLX_LAYER_COMPRESSED) return compressed(descriptor);
  if (kind == MLX_LAYER_UNKNOWN)
    return mlx_error(MLX_UNSUPPORTED, "layer %s has the media type '%s', which ModelPack does not define",
                     descriptor->digest, descriptor->media_type);
  layer_t *layer = &pull->layers[pull->count];
  *layer = (layer_t){.descriptor = descriptor, .tar = kind == MLX_LAYER_TAR};
  uint64_t space = descriptor->size;  // an archive needs it twice: archive and unpacked files
  if (layer->tar) {
    ++pull->tars;
    if (__builtin_mul_overflow(space, 2, &space))
      return mlx_error(MLX_INVALID_INPUT, "invalid layer sizes: their sum overflows");
    MLX_TRY(
        mlx_format(&layer->path, "%s/layers/%s.tar", pull->staging, descriptor->digest + strlen("sha256:")));
  } else {
    if (!mlx_is_safe_path(name)) {
      return mlx_error(MLX_INVALID_INPUT,
                       name[0] ? "layer %s has the file name '%s', which is invalid or points outside the "
                                 "model's folder"
                               : "layer %s%s has no file name: it lacks org.cncf.model.filepath and a title",
                       descriptor->digest, name);
    }
    MLX_TRY(add_file(&pull->files, name));
    MLX_TRY(mlx_format(&layer->path, "%s/files/%s", pull->staging, name));
  }
  ++pull->count;
  space -= mlx_download_present(layer->path, descriptor->size);
  if (__builtin_add_overflow(pull->bytes, space, &pull->bytes))
    return mlx_error(MLX_INVALID_INPUT, "invalid layer sizes: their sum overflows");
  return NULL;
}

// Chooses the layers to download. Without tar layers all file names are known, so an incomplete model is
// reported before the download.
static mlx_status_t plan(pull_t *pull, const mlx_oci_document_t *model) {
  if (model->count > MAX_LAYERS)
    return mlx_error(MLX_INVALID_INPUT, "the model has more than %d layers", MAX_LAYERS);
  MLX_TRY(mlx_alloc(model->count, sizeof *pull->layers, &pull->layers));
  for (size_t i = 0; i < model->count; ++i) MLX_TRY(add_layer(pull, &model->items[i]));
  const char *main_file;
  bool by_default;
  return pull->tars ? NULL : mlx_hub_select(&pull->files, "", &main_file, &by_default);
}

// ----------------------------------------------------------------------------------------------------------
// Fetching

static mlx_status_t get_job(void *user, size_t index, mlx_http_t *http, mlx_progress_t *progress) {
  const pull_t *pull = user;
  const layer_t *layer = &pull->layers[index];
  MLX_TRY(make_folder_of(layer->path));
  return mlx_store_get_blob(pull->store, http, layer->descriptor, layer->path, progress);
}

static mlx_status_t get_layers(pull_t *pull) {
  char title[300];
  uint64_t bytes = 0;
  for (size_t i = 0; i < pull->count; ++i) bytes += pull->layers[i].descriptor->size;
  MLX_TRY(mlx_output_make_staging(pull->staging));
  MLX_TRY(mlx_download_check_space(pull->staging, pull->bytes));
  snprintf(title, sizeof title, "pulling %.255s", mlx_file_name(pull->ref->name).text);
  const mlx_transfer_t transfer = {.title = title,
                                   .count = pull->count,
                                   .parallel = PARALLEL,
                                   .bytes = bytes,
                                   .job = get_job,
                                   .user = pull,
                                   .http = pull->options->http,
                                   .report = pull->options->report};
  return mlx_status_hint(mlx_transfer_run(&transfer),
                         "the files downloaded so far are kept: run the command again to resume");
}

static mlx_status_t unpack_layers(pull_t *pull, const char *files) {
  mlx_status_t status = NULL;
  for (size_t i = 0; i < pull->count && !status; ++i) {
    const layer_t *layer = &pull->layers[i];
    const char *name = layer->descriptor->path[0] ? layer->descriptor->path : layer->descriptor->digest;
    if (layer->tar) status = unpack(layer->path, name, files, pull->options->report, &pull->files);
  }
  return status;
}

// Pickles are listed for error messages only.
static bool is_kept(const void *user, const char *name) {
  const pull_t *pull = user;
  for (size_t i = 0; i < pull->files.count; ++i) {
    if (!strcmp(pull->files.files[i].name, name)) return !is_pickle(name);
  }
  return false;
}

static mlx_status_t fetch(pull_t *pull, const mlx_oci_document_t *model) {
  char *files, *main_path = NULL;
  MLX_TRY(mlx_status_annotate(plan(pull, model), "%s", pull->ref->name));
  MLX_TRY(get_layers(pull));
  MLX_TRY(mlx_join_path(pull->staging, "files", &files));
  mlx_status_t status = unpack_layers(pull, files);
  if (!status) status = mlx_output_sweep(files, is_kept, pull);
  if (!status) status = mlx_modelpack_find_main(files, NULL, &main_path);
  status = mlx_status_annotate(status, "%s", pull->ref->name);
  const mlx_code_t code = mlx_status_code(status);
  if (code == MLX_INVALID_INPUT || code == MLX_UNSUPPORTED)
    status = mlx_status_join(status, mlx_remove_tree(pull->staging));  // a retry would fail again
  if (!status) status = make_folder_of(pull->folder);
  if (!status) status = mlx_rename(files, pull->folder);
  if (!status) status = mlx_remove_tree(pull->staging);
  mlx_free(main_path);
  mlx_free(files);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Cache and output

static mlx_status_t pull_to_cache(pull_t *pull, const mlx_oci_document_t *model, char **out_path) {
  mlx_oci_cache_t cache;
  MLX_TRY(mlx_oci_cache_lock(pull->ref, pull->options->report, &cache));
  mlx_status_t status = mlx_oci_cache_folder(&cache, pull->digest, &pull->folder);
  if (!status) status = mlx_format(&pull->staging, "%s.part", pull->folder);
  if (!status && !mlx_is_dir(pull->folder)) status = fetch(pull, model);
  if (!status) status = mlx_oci_cache_set_ref(&cache, pull->ref, pull->digest);
  if (!status) status = mlx_modelpack_find_main(pull->folder, pull->options->report, out_path);
  mlx_oci_cache_unlock(&cache);
  return status;
}

static mlx_status_t pull_to_output(pull_t *pull, const mlx_oci_document_t *model, const char *output,
                                   char **out_path) {
  mlx_lock_t lock;
  MLX_TRY(mlx_output_bundle_path("", output, &pull->folder));
  MLX_TRY(mlx_format(&pull->staging, "%s.%.16s.part", pull->folder, pull->digest + strlen("sha256:")));
  MLX_TRY(mlx_output_lock(pull->folder, pull->options->report, &lock));
  mlx_status_t status = fetch(pull, model);
  mlx_output_unlock(&lock);
  return status ? status : mlx_modelpack_find_main(pull->folder, pull->options->report, out_path);
}

mlx_status_t mlx_modelpack_pull(mlx_store_t *store, const mlx_oci_ref_t *ref, const mlx_oci_document_t *model,
                                const char *digest, const mlx_modelpack_options_t *options, char **out_path) {
  pull_t pull = {.options = options, .store = store, .ref = ref, .digest = digest};
  *out_path = NULL;
  mlx_status_t status = options->output ? pull_to_output(&pull, model, options->output, out_path)
                                        : pull_to_cache(&pull, model, out_path);
  free_pull(&pull);
  return status;
}
