// Pulls models from a hub to the cache or to an output folder. See pull_hub.h.
#include "transfer/pull_hub.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/leftover.h"
#include "base/memory.h"
#include "cache/cache.h"
#include "cache/lock.h"
#include "transfer/download.h"
#include "transfer/hub.h"
#include "transfer/hub_settings.h"
#include "transfer/output.h"
#include "transfer/url.h"

#define MAX_RECORD (16u << 20)  // bytes of a refs/*.json file

void mlx_pull_options_initialize(mlx_pull_options_t *options) {
  *options = (mlx_pull_options_t){0};
  mlx_http_options_initialize(&options->http);
}

// The cache paths of a reference.
typedef struct hub_entry {
  mlx_hub_ref_t ref;
  char *folder;  // models/ORG/NAME
  char *record;  // models/ORG/NAME/refs/REVISION+SELECTOR.json
} hub_entry_t;

static void free_entry(hub_entry_t *entry) {
  mlx_free(entry->folder);
  mlx_free(entry->record);
}

static mlx_status_t open_entry(const char *text, hub_entry_t *out) {
  *out = (hub_entry_t){0};
  MLX_TRY(mlx_hub_ref_parse(text, &out->ref));
  mlx_cache_t *cache;
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_text_t name = {0};
  mlx_http_escape(&name, out->ref.revision, false);
  mlx_text_puts(&name, "+");
  mlx_http_escape(&name, out->ref.selector, false);
  mlx_status_t status = mlx_text_finish(&name);
  if (!status)
    status =
        mlx_format(&out->folder, "%s/models/%s/%s", mlx_cache_folder(cache), out->ref.org, out->ref.name);
  if (!status) status = mlx_format(&out->record, "%s/refs/%s.json", out->folder, name.data);
  mlx_text_clear(&name);
  mlx_cache_close(cache);
  if (status) free_entry(out);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Records

static mlx_status_t write_record(const hub_entry_t *entry, const mlx_hub_listing_t *listing,
                                 const char *main_file) {
  mlx_text_t text = {0};
  mlx_json_writer_t json = {.out = &text};
  mlx_json_begin_object(&json, NULL, MLX_JSON_LINES);
  mlx_json_put_text(&json, "commit", listing->commit);
  mlx_json_put_text(&json, "main", main_file ? main_file : "");
  mlx_json_begin_list(&json, "files", MLX_JSON_LINES);
  for (size_t i = 0; i < listing->count; ++i) {
    const mlx_hub_file_t *file = &listing->files[i];
    if (!file->chosen) continue;
    mlx_json_begin_object(&json, NULL, MLX_JSON_ONE_LINE);
    mlx_json_put_text(&json, "name", file->name);
    mlx_json_put_uint(&json, "size", file->size);
    mlx_json_end(&json);
  }
  mlx_json_end(&json);
  mlx_json_end(&json);
  mlx_text_puts(&text, "\n");
  char *folder = NULL;
  mlx_status_t status = mlx_text_finish(&text);
  if (!status) status = mlx_folder_of(entry->record, &folder);
  if (!status) status = mlx_make_dirs(folder, 0755);
  if (!status) {
    mlx_leftover_remove_in(folder);
    status = mlx_write_file(entry->record, text.data, text.length);
  }
  mlx_free(folder);
  mlx_text_clear(&text);
  return status;
}

static mlx_status_t read_record(const mlx_json_t *json, char out_commit[41], char **out_main) {
  const char *commit, *main_file;
  MLX_TRY(mlx_json_string(json, json->root, "commit", &commit));
  if (strlen(commit) != 40 || strspn(commit, "0123456789abcdef") != 40)
    return mlx_json_error(json, "commit", "is not a commit hash");
  MLX_TRY(mlx_json_string(json, json->root, "main", &main_file));
  if (*main_file && !mlx_is_safe_path(main_file))
    return mlx_json_error(json, "main", "is not a valid file path");
  memcpy(out_commit, commit, 41);
  return mlx_copy_text(main_file, strlen(main_file), out_main);
}

static bool has_size(const char *path, uint64_t size) {
  struct stat info;
  return !stat(path, &info) && S_ISREG(info.st_mode) && (uint64_t)info.st_size == size;
}

// Sets *|out_complete| if every file of a record exists with its size.
static mlx_status_t check_files(const mlx_json_t *json, const char *folder, bool *out_complete) {
  yyjson_val *list, *item;
  size_t index, count;
  *out_complete = false;
  MLX_TRY(mlx_json_need(json, json->root, "files", &list));
  if (!yyjson_is_arr(list)) return mlx_json_error(json, "files", "must be a list");
  yyjson_arr_foreach(list, index, count, item) {
    const char *name;
    int64_t size;
    char *path;
    MLX_TRY(mlx_json_string(json, item, "name", &name));
    MLX_TRY(mlx_json_int(json, item, "size", 0, INT64_MAX, &size));
    if (!mlx_is_safe_path(name)) return mlx_json_error(json, "name", "is not a valid file path");
    MLX_TRY(mlx_join_path(folder, name, &path));
    const bool exists = has_size(path, (uint64_t)size);
    mlx_free(path);
    if (!exists) return NULL;
  }
  *out_complete = true;
  return NULL;
}

// Fails if another user may have changed a pulled model: its digests were checked only when it was pulled.
static mlx_status_t check_private(const char *path) {
  mlx_cache_t *cache;
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_status_t status = mlx_cache_check_tree(cache, path);
  mlx_cache_close(cache);
  return status;
}

static mlx_status_t use_record(const hub_entry_t *entry, const char *text, size_t length, char **out_path) {
  char commit[41], *main_file = NULL, *folder = NULL;
  bool complete = false;
  mlx_json_t json;
  MLX_TRY(mlx_json_parse(entry->record, text, length, &json));
  mlx_status_t status = read_record(&json, commit, &main_file);
  if (!status) status = mlx_join_path(entry->folder, commit, &folder);
  if (!status) status = check_private(folder);
  if (!status) status = check_files(&json, folder, &complete);
  if (!status && complete) {
    status = *main_file ? mlx_join_path(folder, main_file, out_path)
                        : mlx_copy_text(folder, strlen(folder), out_path);
  }
  mlx_free(folder);
  mlx_free(main_file);
  mlx_json_close(&json);
  return status;
}

static mlx_status_t find_pulled(const hub_entry_t *entry, char **out_path) {
  char *text;
  size_t length;
  *out_path = NULL;
  if (!mlx_is_file(entry->record)) return NULL;
  MLX_TRY(check_private(entry->record));
  MLX_TRY(mlx_read_file(entry->record, MAX_RECORD, &text, &length));
  mlx_status_t status = use_record(entry, text, length, out_path);
  mlx_free(text);
  if (mlx_status_code(status) != MLX_INVALID_INPUT) return status;
  mlx_status_free(status);  // ignore a damaged record: the next pull writes it again
  return NULL;
}

mlx_status_t mlx_pull_hub_find(const char *ref, char **out_path) {
  hub_entry_t entry;
  *out_path = NULL;
  MLX_TRY(open_entry(ref, &entry));
  mlx_status_t status = find_pulled(&entry, out_path);
  free_entry(&entry);
  return mlx_cache_hint(NULL, status);
}

// ----------------------------------------------------------------------------------------------------------
// Pulling

// One pull in progress.
typedef struct pull {
  const mlx_pull_options_t *options;
  const hub_entry_t *entry;
  char *endpoint, *authorization;
  mlx_hub_listing_t listing;
  const char *main_file;
  char *folder;   // final place of the files
  char *staging;  // folder for incomplete downloads
  mlx_download_t *downloads;
  size_t count;
} pull_t;

static void free_pull(pull_t *pull) {
  for (size_t i = 0; i < pull->count; ++i) {
    mlx_free((void *)(uintptr_t)pull->downloads[i].url);
    mlx_free((void *)(uintptr_t)pull->downloads[i].path);
  }
  mlx_free(pull->downloads);
  mlx_hub_listing_free(&pull->listing);
  mlx_free(pull->endpoint);
  mlx_free(pull->authorization);
  mlx_free(pull->folder);
  mlx_free(pull->staging);
}

#define NO_NETWORK                                                                                        \
  "check the network and the proxies in http_proxy and https_proxy; HF_ENDPOINT selects a mirror of the " \
  "hub; the models of `mlxcel list` run without a network"

// Adds a hint to an HTTP error.
static mlx_status_t hint_access(const pull_t *pull, mlx_status_t status, long http_status) {
  const mlx_hub_ref_t *ref = &pull->entry->ref;
  if (http_status == 401 || http_status == 403) {
    return mlx_status_hint(
        status,
        pull->authorization ? "the token has no access to %s/%s: accept the model's terms on its hub page, "
                              "or set HF_TOKEN to another token"
                            : "%s/%s is private, gated or does not exist: set HF_TOKEN to your access "
                              "token, and accept the model's terms on its hub page",
        ref->org, ref->name);
  }
  if (http_status == 404)
    return mlx_status_hint(status, "check the name and revision: %s/%s at '%s'", ref->org, ref->name,
                           ref->revision);
  return status;
}

static mlx_status_t get_listing(pull_t *pull) {
  const mlx_hub_ref_t *ref = &pull->entry->ref;
  mlx_text_t url = {0};
  mlx_text_printf(&url, "%s/api/models/%s/%s/revision/", pull->endpoint, ref->org, ref->name);
  mlx_http_escape(&url, ref->revision, false);
  mlx_text_puts(&url, "?blobs=true");
  mlx_http_t *http = NULL;
  mlx_http_response_t response = {0};
  mlx_status_t status = mlx_text_finish(&url);
  const mlx_http_request_t request = {
      .url = url.data, .authorization = pull->authorization, .max_bytes = MLX_HUB_MAX_ANSWER};
  if (!status) status = mlx_http_open(&pull->options->http, &http);
  if (!status) status = mlx_http_send(http, &request, &response);
  if (mlx_status_code(status) == MLX_UNAVAILABLE) status = mlx_status_hint(status, NO_NETWORK);
  if (!status) status = hint_access(pull, mlx_http_check(&request, &response), response.status);
  if (!status)
    status =
        mlx_hub_listing_read(mlx_display_url(url.data).text, response.body.data ? response.body.data : "",
                             response.body.length, &pull->listing);
  mlx_http_response_clear(&response);
  mlx_http_close(http);
  mlx_text_clear(&url);
  return status;
}

static mlx_status_t choose_folders(pull_t *pull) {
  const char *output = pull->options->output;
  if (output && (mlx_is_dir(output) || mlx_is_file(output))) {
    mlx_output_remove_leftovers(output);
    return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' already exists", output),
                           "choose another name with -o, or remove it");
  }
  mlx_text_t name = {0};  // the staging folder belongs to one commit and one selector
  mlx_text_printf(&name, "%s+", pull->listing.commit);
  mlx_http_escape(&name, pull->entry->ref.selector, false);
  mlx_status_t status = mlx_text_finish(&name);
  if (!status)
    status = output ? mlx_copy_text(output, strlen(output), &pull->folder)
                    : mlx_join_path(pull->entry->folder, pull->listing.commit, &pull->folder);
  if (!status)
    status = output ? mlx_format(&pull->staging, "%s.%s.part", output, name.data)
                    : mlx_format(&pull->staging, "%s/%s.part", pull->entry->folder, name.data);
  mlx_text_clear(&name);
  return status;
}

static mlx_status_t add_download(pull_t *pull, const mlx_hub_file_t *file) {
  const mlx_hub_ref_t *ref = &pull->entry->ref;
  if (!file->sha256[0] && !file->git_sha1[0]) {
    return mlx_error(MLX_INVALID_INPUT, "cannot verify '%s': the hub lists no digest for it", file->name);
  }
  char *path = NULL, *url = NULL, *final;
  MLX_TRY(mlx_join_path(pull->folder, file->name, &final));
  const bool exists = has_size(final, file->size);
  mlx_free(final);
  if (exists) return NULL;
  mlx_text_t text = {0};
  mlx_text_printf(&text, "%s/%s/%s/resolve/%s/", pull->endpoint, ref->org, ref->name, pull->listing.commit);
  mlx_http_escape(&text, file->name, true);
  mlx_status_t status = mlx_text_take(&text, &url, NULL);
  if (!status) status = mlx_join_path(pull->staging, file->name, &path);
  mlx_text_clear(&text);
  if (status) {
    mlx_free(url);
    return status;
  }
  mlx_download_t *download = &pull->downloads[pull->count++];
  *download = (mlx_download_t){
      .name = file->name, .url = url, .authorization = pull->authorization, .path = path, .size = file->size};
  memcpy(download->sha256, file->sha256, sizeof download->sha256);
  memcpy(download->git_sha1, file->git_sha1, sizeof download->git_sha1);
  return NULL;
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// Sorts the names first, so that a long list takes O(n log n) time.
static mlx_status_t refuse_duplicates(const mlx_hub_listing_t *listing) {
  const char **names;
  size_t count = 0;
  mlx_status_t status = NULL;
  MLX_TRY(mlx_alloc(listing->count, sizeof *names, &names));
  for (size_t i = 0; i < listing->count; ++i) {
    if (listing->files[i].chosen) names[count++] = listing->files[i].name;
  }
  qsort(names, count, sizeof *names, compare_names);
  for (size_t i = 1; i < count && !status; ++i) {
    if (!strcmp(names[i - 1], names[i]))
      status = mlx_error(MLX_INVALID_INPUT, "the hub lists '%s' twice", names[i]);
  }
  mlx_free(names);
  return status;
}

static mlx_status_t plan(pull_t *pull) {
  bool by_default;
  MLX_TRY(mlx_hub_select(&pull->listing, pull->entry->ref.selector, &pull->main_file, &by_default));
  if (by_default)
    mlx_report_note(pull->options->report, "chose the default quantization: %s", pull->main_file);
  MLX_TRY(refuse_duplicates(&pull->listing));
  MLX_TRY(choose_folders(pull));
  MLX_TRY(mlx_alloc(pull->listing.count, sizeof *pull->downloads, &pull->downloads));
  for (size_t i = 0; i < pull->listing.count; ++i) {
    if (pull->listing.files[i].chosen) MLX_TRY(add_download(pull, &pull->listing.files[i]));
  }
  return NULL;
}

static bool is_kept(const void *user, const char *name) {
  const pull_t *pull = user;
  for (size_t i = 0; i < pull->count; ++i) {
    if (!strcmp(pull->downloads[i].name, name)) return true;
  }
  return false;
}

// Moves the checked files to their final place. config.json goes last: without it the folder is not a model.
static mlx_status_t publish(pull_t *pull) {
  if (pull->options->output) {
    MLX_TRY(mlx_output_sweep(pull->staging, is_kept, pull));
    return mlx_rename(pull->staging, pull->folder);
  }
  for (int last = 0; last < 2; ++last) {
    for (size_t i = 0; i < pull->count; ++i) {
      const mlx_download_t *download = &pull->downloads[i];
      const bool is_config = !strcmp(download->name, "config.json");
      if (is_config != (last == 1)) continue;
      char *final = NULL, *folder = NULL;
      mlx_status_t status = mlx_join_path(pull->folder, download->name, &final);
      if (!status) status = mlx_folder_of(final, &folder);
      if (!status) status = mlx_make_dirs(folder, 0755);
      if (!status) status = mlx_rename(download->path, final);
      mlx_free(folder);
      mlx_free(final);
      MLX_TRY(status);
    }
  }
  MLX_TRY(write_record(pull->entry, &pull->listing, pull->main_file));
  return mlx_remove_tree(pull->staging);
}

// Public models need no token, so a token file that cannot be used is only a note.
static mlx_status_t find_authorization(pull_t *pull) {
  mlx_status_t status = mlx_hub_authorization(pull->endpoint, &pull->authorization);
  if (mlx_status_code(status) != MLX_IO) return status;
  mlx_report_note(pull->options->report, "pulling without a token: %s (%s)", mlx_status_message(status),
                  mlx_status_hint_text(status));
  mlx_status_free(status);
  return NULL;
}

static mlx_status_t fetch(pull_t *pull) {
  const mlx_hub_ref_t *ref = &pull->entry->ref;
  char title[256];
  snprintf(title, sizeof title, "pulling %.96s/%.96s", ref->org, ref->name);
  MLX_TRY(mlx_hub_endpoint(pull->options->endpoint, &pull->endpoint));
  MLX_TRY(find_authorization(pull));
  MLX_TRY(get_listing(pull));
  MLX_TRY(mlx_status_annotate(plan(pull), "%s/%s", ref->org, ref->name));
  if (pull->count) {
    MLX_TRY(mlx_make_dirs(pull->staging, 0755));  // fails here, before the hint about kept files applies
    mlx_status_t status = mlx_download_all(title, pull->staging, pull->downloads, pull->count,
                                           &pull->options->http, pull->options->report);
    MLX_TRY(mlx_status_hint(status, "the files downloaded so far are kept: run the command again to resume"));
  }
  return publish(pull);
}

static mlx_status_t fetch_locked(const hub_entry_t *entry, const mlx_pull_options_t *options,
                                 char **out_path) {
  char *lock_path;
  mlx_lock_t lock;
  MLX_TRY(mlx_make_dirs(entry->folder, 0755));
  MLX_TRY(mlx_join_path(entry->folder, ".lock", &lock_path));
  mlx_status_t status = mlx_lock_take(lock_path, entry->ref.name, options->report, &lock);
  mlx_free(lock_path);
  MLX_TRY(status);
  pull_t pull = {.options = options, .entry = entry};
  status = fetch(&pull);
  if (!status) {
    status = pull.main_file ? mlx_join_path(pull.folder, pull.main_file, out_path)
                            : mlx_copy_text(pull.folder, strlen(pull.folder), out_path);
  }
  free_pull(&pull);
  mlx_lock_release(&lock);
  return status;
}

mlx_status_t mlx_pull_hub(const char *text, const mlx_pull_options_t *options, char **out_path) {
  hub_entry_t entry;
  *out_path = NULL;
  MLX_TRY(open_entry(text, &entry));
  mlx_status_t status = NULL;
  if (mlx_hub_is_offline()) {
    status = options->output
                 ? mlx_status_hint(mlx_error(MLX_USAGE, "cannot pull '%s' to '%s': HF_HUB_OFFLINE is set",
                                             text, options->output),
                                   "unset HF_HUB_OFFLINE")
                 : find_pulled(&entry, out_path);
    if (!status && !*out_path) {
      status = mlx_status_hint(
          mlx_error(MLX_NOT_FOUND, "'%s' is not in the cache, and HF_HUB_OFFLINE is set", text),
          "unset HF_HUB_OFFLINE to pull it");
    }
  } else {
    status = fetch_locked(&entry, options, out_path);
  }
  free_entry(&entry);
  return mlx_cache_hint(NULL, status);
}
