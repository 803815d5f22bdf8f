#include "transfer/pull.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "cache/cache.h"
#include "cache/lock.h"
#include "transfer/download.h"
#include "transfer/hub.h"
#include "transfer/settings.h"

#define MAX_RECORD (16u << 20)

void mlx_pull_options_initialize(mlx_pull_options_t *options) {
  *options = (mlx_pull_options_t){0};
  mlx_http_options_initialize(&options->http);
}

// Where a reference's things are.
typedef struct place {
  mlx_hub_ref_t ref;
  char *folder;  // models/ORG/NAME
  char *record;  // of this revision and selector
} place_t;

static void free_place(place_t *place) {
  mlx_free(place->folder);
  mlx_free(place->record);
}

static mlx_status_t open_place(const char *text, place_t *out) {
  *out = (place_t){0};
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
  if (status) free_place(out);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Records

static mlx_status_t write_record(const place_t *place, const mlx_hub_listing_t *listing,
                                 const char *main_file) {
  mlx_text_t json = {0};
  mlx_text_printf(&json, "{\n  \"commit\": \"%s\",\n  \"main\": ", listing->commit);
  mlx_text_json_string(&json, main_file ? main_file : "", main_file ? strlen(main_file) : 0);
  mlx_text_puts(&json, ",\n  \"files\": [");
  const char *comma = "";
  for (size_t i = 0; i < listing->count; ++i) {
    const mlx_hub_file_t *file = &listing->files[i];
    if (!file->chosen) continue;
    mlx_text_printf(&json, "%s\n    {\"name\": ", comma);
    mlx_text_json_string(&json, file->name, strlen(file->name));
    mlx_text_printf(&json, ", \"size\": %llu}", (unsigned long long)file->size);
    comma = ",";
  }
  mlx_text_puts(&json, "\n  ]\n}\n");
  char *folder = NULL;
  mlx_status_t status = mlx_text_finish(&json);
  if (!status) status = mlx_folder_of(place->record, &folder);
  if (!status) status = mlx_make_dirs(folder, 0755);
  if (!status) status = mlx_write_file(place->record, json.data, json.length);
  mlx_free(folder);
  mlx_text_clear(&json);
  return status;
}

static mlx_status_t read_record(const mlx_json_t *json, char out_commit[41], char **out_main) {
  const char *commit, *main_file;
  MLX_TRY(mlx_json_string(json, json->root, "commit", &commit));
  if (strlen(commit) != 40 || strspn(commit, "0123456789abcdef") != 40)
    return mlx_json_error(json, "commit", "is not a commit");
  MLX_TRY(mlx_json_string(json, json->root, "main", &main_file));
  if (*main_file && !mlx_is_safe_path(main_file))
    return mlx_json_error(json, "main", "is not the path of a file");
  memcpy(out_commit, commit, 41);
  return mlx_copy_text(main_file, strlen(main_file), out_main);
}

static bool has_size(const char *path, uint64_t size) {
  struct stat info;
  return !stat(path, &info) && S_ISREG(info.st_mode) && (uint64_t)info.st_size == size;
}

// True when every file of a record is there with its size.
static mlx_status_t files_are_there(const mlx_json_t *json, const char *folder, bool *out_are) {
  yyjson_val *list, *item;
  size_t index, count;
  *out_are = false;
  MLX_TRY(mlx_json_need(json, json->root, "files", &list));
  if (!yyjson_is_arr(list)) return mlx_json_error(json, "files", "must be a list");
  yyjson_arr_foreach(list, index, count, item) {
    const char *name;
    int64_t size;
    char *path;
    MLX_TRY(mlx_json_string(json, item, "name", &name));
    MLX_TRY(mlx_json_int(json, item, "size", 0, INT64_MAX, &size));
    if (!mlx_is_safe_path(name)) return mlx_json_error(json, "name", "is not the path of a file");
    MLX_TRY(mlx_join_path(folder, name, &path));
    const bool there = has_size(path, (uint64_t)size);
    mlx_free(path);
    if (!there) return NULL;
  }
  *out_are = true;
  return NULL;
}

static mlx_status_t use_record(const place_t *place, const char *text, size_t length, char **out_path) {
  char commit[41], *main_file = NULL, *folder = NULL;
  bool there = false;
  mlx_json_t json;
  MLX_TRY(mlx_json_parse(place->record, text, length, &json));
  mlx_status_t status = read_record(&json, commit, &main_file);
  if (!status) status = mlx_join_path(place->folder, commit, &folder);
  if (!status) status = files_are_there(&json, folder, &there);
  if (!status && there) {
    status = *main_file ? mlx_join_path(folder, main_file, out_path)
                        : mlx_copy_text(folder, strlen(folder), out_path);
  }
  mlx_free(folder);
  mlx_free(main_file);
  mlx_json_close(&json);
  return status;
}

static mlx_status_t find_pulled(const place_t *place, char **out_path) {
  char *text;
  size_t length;
  *out_path = NULL;
  if (!mlx_is_file(place->record)) return NULL;
  MLX_TRY(mlx_read_file(place->record, MAX_RECORD, &text, &length));
  mlx_status_t status = use_record(place, text, length, out_path);
  mlx_free(text);
  if (mlx_status_code(status) != MLX_INVALID_INPUT) return status;
  mlx_status_free(status);  // a damaged record is none: the next pull writes it again
  return NULL;
}

mlx_status_t mlx_pull_find(const char *ref, char **out_path) {
  place_t place;
  *out_path = NULL;
  MLX_TRY(open_place(ref, &place));
  mlx_status_t status = find_pulled(&place, out_path);
  free_place(&place);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Pulling

// One pull under way.
typedef struct pull {
  const mlx_pull_options_t *options;
  const place_t *place;
  char *endpoint, *authorization;
  mlx_hub_listing_t listing;
  const char *main_file;
  char *folder;   // where the files will be
  char *staging;  // where they come to
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

// A refusal, with what a person can do about it.
static mlx_status_t explain(const pull_t *pull, mlx_status_t status, long http_status) {
  const mlx_hub_ref_t *ref = &pull->place->ref;
  if (http_status == 401 || http_status == 403) {
    return mlx_status_hint(status,
                           pull->authorization
                               ? "the token has no access to %s/%s: accept the model's terms on its page of "
                                 "the hub, or use another token"
                               : "%s/%s is private, gated or does not exist: set HF_TOKEN to a token of "
                                 "yours (and accept the model's terms on its page)",
                           ref->org, ref->name);
  }
  if (http_status == 404)
    return mlx_status_hint(status, "check the name and the revision: %s/%s at '%s'", ref->org, ref->name,
                           ref->revision);
  return status;
}

static mlx_status_t ask_hub(pull_t *pull) {
  const mlx_hub_ref_t *ref = &pull->place->ref;
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
  if (!status) status = explain(pull, mlx_http_check(&request, &response), response.status);
  if (!status)
    status = mlx_hub_listing_read(mlx_http_show(url.data).text, response.body.data ? response.body.data : "",
                                  response.body.length, &pull->listing);
  mlx_http_response_clear(&response);
  mlx_http_close(http);
  mlx_text_clear(&url);
  return status;
}

static mlx_status_t choose_folders(pull_t *pull) {
  const char *output = pull->options->output;
  if (output && (mlx_is_dir(output) || mlx_is_file(output))) {
    return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' is there already", output),
                           "give -o a name that is free, or remove it");
  }
  mlx_text_t name = {0};  // what is on its way belongs to one commit and one choice of files
  mlx_text_printf(&name, "%s+", pull->listing.commit);
  mlx_http_escape(&name, pull->place->ref.selector, false);
  mlx_status_t status = mlx_text_finish(&name);
  if (!status)
    status = output ? mlx_copy_text(output, strlen(output), &pull->folder)
                    : mlx_join_path(pull->place->folder, pull->listing.commit, &pull->folder);
  if (!status)
    status = output ? mlx_format(&pull->staging, "%s.%s.part", output, name.data)
                    : mlx_format(&pull->staging, "%s/%s.part", pull->place->folder, name.data);
  mlx_text_clear(&name);
  return status;
}

static mlx_status_t add_download(pull_t *pull, const mlx_hub_file_t *file) {
  const mlx_hub_ref_t *ref = &pull->place->ref;
  if (!file->sha256[0] && !file->git_sha1[0]) {
    return mlx_error(MLX_INVALID_INPUT, "the hub gives no digest of '%s': what comes could not be checked",
                     file->name);
  }
  char *path = NULL, *url = NULL, *final;
  MLX_TRY(mlx_join_path(pull->folder, file->name, &final));
  const bool there = has_size(final, file->size);
  mlx_free(final);
  if (there) return NULL;
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

// Sorted, equal names are neighbours.
static mlx_status_t refuse_twice(const mlx_hub_listing_t *listing) {
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
  mlx_status_t status =
      mlx_hub_select(&pull->listing, pull->place->ref.selector, &pull->main_file, &by_default);
  MLX_TRY(mlx_status_annotate(status, "%s/%s", pull->place->ref.org, pull->place->ref.name));
  if (by_default) mlx_report_note(pull->options->report, "of several quantisations: %s", pull->main_file);
  MLX_TRY(refuse_twice(&pull->listing));
  MLX_TRY(choose_folders(pull));
  MLX_TRY(mlx_alloc(pull->listing.count, sizeof *pull->downloads, &pull->downloads));
  for (size_t i = 0; i < pull->listing.count; ++i) {
    if (pull->listing.files[i].chosen) MLX_TRY(add_download(pull, &pull->listing.files[i]));
  }
  return NULL;
}

// Every file is checked and on the disk. config.json comes last: without it the folder is no model.
static mlx_status_t publish(pull_t *pull) {
  if (pull->options->output) return mlx_rename(pull->staging, pull->folder);
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
  MLX_TRY(write_record(pull->place, &pull->listing, pull->main_file));
  return mlx_remove_tree(pull->staging);
}

static mlx_status_t fetch(pull_t *pull) {
  const mlx_hub_ref_t *ref = &pull->place->ref;
  char title[256];
  snprintf(title, sizeof title, "pulling %.96s/%.96s", ref->org, ref->name);
  MLX_TRY(mlx_hub_endpoint(pull->options->endpoint, &pull->endpoint));
  MLX_TRY(mlx_hub_authorization(pull->endpoint, &pull->authorization));
  MLX_TRY(ask_hub(pull));
  MLX_TRY(plan(pull));
  if (pull->count) {
    MLX_TRY(mlx_make_dirs(pull->staging, 0755));  // where that cannot be, nothing came that could be kept
    mlx_status_t status = mlx_download_all(title, pull->staging, pull->downloads, pull->count,
                                           &pull->options->http, pull->options->report);
    MLX_TRY(mlx_status_hint(status, "what came so far is kept: run the command again to go on"));
  }
  return publish(pull);
}

static mlx_status_t fetch_locked(const place_t *place, const mlx_pull_options_t *options, char **out_path) {
  char *lock_path;
  mlx_lock_t lock;
  MLX_TRY(mlx_make_dirs(place->folder, 0755));
  MLX_TRY(mlx_join_path(place->folder, ".lock", &lock_path));
  mlx_status_t status = mlx_lock_take(lock_path, place->ref.name, options->report, &lock);
  mlx_free(lock_path);
  MLX_TRY(status);
  pull_t pull = {.options = options, .place = place};
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
  place_t place;
  *out_path = NULL;
  MLX_TRY(open_place(text, &place));
  mlx_status_t status = NULL;
  if (mlx_hub_offline()) {
    status = options->output
                 ? mlx_error(MLX_USAGE, "HF_HUB_OFFLINE forbids asking the hub, and -o is for what it sends")
                 : find_pulled(&place, out_path);
    if (!status && !*out_path) {
      status = mlx_status_hint(
          mlx_error(MLX_NOT_FOUND, "'%s' was never pulled, and HF_HUB_OFFLINE forbids asking the hub", text),
          "unset HF_HUB_OFFLINE");
    }
  } else {
    status = fetch_locked(&place, options, out_path);
  }
  free_place(&place);
  return status;
}
