// Pulls GGUF files from plain web servers. See pull_gguf.h.
#include "transfer/pull_gguf.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/memory.h"
#include "cache/cache.h"
#include "cache/lock.h"
#include "transfer/download.h"
#include "transfer/output.h"
#include "transfer/probe.h"
#include "transfer/url.h"

#define ENDING ".gguf"
#define PART_SUFFIX "-00001-of-00003"
#define MAX_PARTS 1000
#define KEY_LENGTH 40  // hexadecimal digits of the URL's digest; `list` leaves such a folder out of a name

static const char magic[4] = {'G', 'G', 'U', 'F'};

// A URL in parts.
typedef struct gguf_url {
  const char *text;
  size_t stem_length;  // bytes before the part number or the ending
  unsigned parts;      // 1 for a file that is not split
  const char *tail;    // query and fragment, or ""
  mlx_url_t server;
} gguf_url_t;

// One part in progress.
typedef struct part {
  char *url, *name, *path;
  size_t seen;  // bytes compared with |magic|
} part_t;

typedef struct pull {
  const mlx_pull_options_t *options;
  const gguf_url_t *url;
  char *folder;   // of the finished files; NULL if the output is one file
  char *staging;  // folder for incomplete downloads
  part_t *parts;
  mlx_download_t *downloads;
} pull_t;

// ----------------------------------------------------------------------------------------------------------
// URLs and paths

static size_t path_length(const char *url) { return strcspn(url, "?#"); }

bool mlx_is_gguf_url(const char *text) {
  const size_t length = path_length(text), ending = strlen(ENDING);
  return (!strncasecmp(text, "https://", 8) || !strncasecmp(text, "http://", 7)) && length > ending &&
         !strncasecmp(text + length - ending, ENDING, ending);
}

static mlx_status_t parse_url(const char *text, gguf_url_t *out) {
  const size_t end = path_length(text) - strlen(ENDING), suffix = strlen(PART_SUFFIX);
  unsigned part, parts;
  int used = 0;
  *out = (gguf_url_t){.text = text, .stem_length = end, .parts = 1, .tail = text + path_length(text)};
  MLX_TRY(mlx_url_parse(text, &out->server));
  if (end > suffix && sscanf(text + end - suffix, "-%5u-of-%5u%n", &part, &parts, &used) == 2 &&
      (size_t)used == suffix && part >= 1 && part <= parts && parts <= MAX_PARTS) {
    out->stem_length = end - suffix;
    out->parts = parts;
  }
  return NULL;
}

// URL of part |index|. Release with mlx_free.
static mlx_status_t part_url(const gguf_url_t *url, unsigned index, char **out_url) {
  char number[32] = "";
  if (url->parts > 1) snprintf(number, sizeof number, "-%05u-of-%05u", index + 1, url->parts);
  return mlx_format(out_url, "%.*s%s%s%s", (int)url->stem_length, url->text, number, ENDING, url->tail);
}

// File name of part |index|. Release with mlx_free.
static mlx_status_t part_name(const gguf_url_t *url, unsigned index, char **out_name) {
  char *text;
  MLX_TRY(part_url(url, index, &text));
  const size_t end = path_length(text);
  size_t start = end;
  while (text[start - 1] != '/') --start;  // an http URL has slashes
  mlx_status_t status = mlx_copy_text(text + start, end - start, out_name);
  mlx_free(text);
  if (!status && mlx_is_safe_path(*out_name)) return NULL;
  mlx_free(*out_name);
  *out_name = NULL;
  return status ? status
                : mlx_error(MLX_USAGE, "cannot pull '%s': it has no valid file name",
                            mlx_display_url(url->text).text);
}

// Digest that identifies the URL: equal for all parts of a split file.
static mlx_status_t url_key(const gguf_url_t *url, char out_hex[MLX_DIGEST_HEX]) {
  char *first;
  MLX_TRY(part_url(url, 0, &first));
  mlx_digest_bytes(first, strlen(first), out_hex);
  mlx_free(first);
  return NULL;
}

// models/url/HOST/HEX in the cache. Release with mlx_free.
static mlx_status_t cache_path(const gguf_url_t *url, char **out_folder) {
  char hex[MLX_DIGEST_HEX];
  mlx_cache_t *cache;
  mlx_text_t host = {0};
  MLX_TRY(url_key(url, hex));
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_http_escape(&host, url->server.place, false);
  mlx_status_t status = mlx_text_finish(&host);
  if (!status)
    status =
        mlx_format(out_folder, "%s/models/url/%s/%.*s", mlx_cache_folder(cache), host.data, KEY_LENGTH, hex);
  mlx_text_clear(&host);
  mlx_cache_close(cache);
  return status;
}

// Path of the first part in |folder| if it exists there, else NULL. Fails if another user may have changed
// it.
static mlx_status_t find_in(const gguf_url_t *url, const char *folder, char **out_path) {
  char *name;
  mlx_cache_t *cache;
  *out_path = NULL;
  if (!mlx_is_dir(folder)) return NULL;
  MLX_TRY(mlx_cache_open(NULL, &cache));
  mlx_status_t status = mlx_cache_check_tree(cache, folder);
  mlx_cache_close(cache);
  MLX_TRY(status);
  MLX_TRY(part_name(url, 0, &name));
  status = mlx_join_path(folder, name, out_path);
  mlx_free(name);
  if (status || mlx_is_file(*out_path)) return status;
  mlx_free(*out_path);
  *out_path = NULL;
  return NULL;
}

mlx_status_t mlx_pull_gguf_find(const char *text, char **out_path) {
  gguf_url_t url;
  char *folder;
  *out_path = NULL;
  MLX_TRY(parse_url(text, &url));
  MLX_TRY(cache_path(&url, &folder));
  mlx_status_t status = find_in(&url, folder, out_path);
  mlx_free(folder);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Downloading

static void free_pull(pull_t *pull) {
  for (unsigned i = 0; pull->parts && i < pull->url->parts; ++i) {
    mlx_free(pull->parts[i].url);
    mlx_free(pull->parts[i].name);
    mlx_free(pull->parts[i].path);
  }
  mlx_free(pull->parts);
  mlx_free(pull->downloads);
  mlx_free(pull->folder);
  mlx_free(pull->staging);
}

static void begin_part(void *user) { ((part_t *)user)->seen = 0; }

// Many servers answer with a web page instead of an error: ends the download at its first bytes.
static mlx_status_t check_magic(void *user, const char *bytes, size_t length) {
  part_t *part = user;
  for (size_t i = 0; i < length && part->seen < sizeof magic; ++i) {
    if (bytes[i] != magic[part->seen++])
      return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "%s: the server did not send a GGUF file",
                                       mlx_display_url(part->url).text),
                             "open the URL in a browser to see what the server sends");
  }
  return NULL;
}

static mlx_status_t plan(pull_t *pull) {
  MLX_TRY(mlx_alloc(pull->url->parts, sizeof *pull->parts, &pull->parts));
  MLX_TRY(mlx_alloc(pull->url->parts, sizeof *pull->downloads, &pull->downloads));
  for (unsigned i = 0; i < pull->url->parts; ++i) {
    part_t *part = &pull->parts[i];
    mlx_probe_t probe;
    MLX_TRY(part_url(pull->url, i, &part->url));
    MLX_TRY(part_name(pull->url, i, &part->name));
    MLX_TRY(mlx_join_path(pull->staging, part->name, &part->path));
    MLX_TRY(mlx_probe_url(&pull->options->http, part->url, &probe));
    if (probe.status == 404 || probe.status == 410)
      return mlx_status_hint(
          mlx_error(MLX_NOT_FOUND, "%s: not found (%ld)", mlx_display_url(part->url).text, probe.status),
          "check the URL");
    pull->downloads[i] = (mlx_download_t){.name = part->name,
                                          .url = part->url,
                                          .path = part->path,
                                          .size = probe.size,
                                          .begin = begin_part,
                                          .piece = check_magic,
                                          .user = part};
  }
  return NULL;
}

static bool is_part(const void *user, const char *name) {
  const pull_t *pull = user;
  for (unsigned i = 0; i < pull->url->parts; ++i) {
    if (!strcmp(pull->parts[i].name, name)) return true;
  }
  return false;
}

// Downloads all parts to the staging folder. Data that is not GGUF is removed.
static mlx_status_t fetch(pull_t *pull) {
  char title[300];
  MLX_TRY(mlx_output_make_staging(pull->staging));
  MLX_TRY(plan(pull));
  snprintf(title, sizeof title, "pulling %.255s", pull->parts[0].name);
  mlx_status_t status = mlx_download_all(title, pull->staging, pull->downloads, pull->url->parts,
                                         &pull->options->http, pull->options->report);
  if (!status) return mlx_output_sweep(pull->staging, is_part, pull);
  if (mlx_status_code(status) == MLX_INVALID_INPUT) {
    mlx_status_free(mlx_remove_tree(pull->staging));
    return status;
  }
  return mlx_status_hint(status, "the files downloaded so far are kept: run the command again to resume");
}

// The caller holds the lock.
static mlx_status_t fetch_to_cache(pull_t *pull, char **out_path) {
  MLX_TRY(find_in(pull->url, pull->folder, out_path));
  if (*out_path) {
    mlx_report_note(pull->options->report, "%s was pulled before; `mlxcel rm` removes it",
                    mlx_display_url(pull->url->text).text);
    return NULL;
  }
  MLX_TRY(fetch(pull));
  MLX_TRY(mlx_remove_tree(pull->folder));
  MLX_TRY(mlx_rename(pull->staging, pull->folder));
  return find_in(pull->url, pull->folder, out_path);
}

static mlx_status_t pull_to_cache(pull_t *pull, char **out_path) {
  char *parent = NULL, *lock_path = NULL;
  mlx_lock_t lock = {.fd = -1};
  MLX_TRY(cache_path(pull->url, &pull->folder));
  mlx_status_t status = mlx_format(&pull->staging, "%s.part", pull->folder);
  if (!status) status = mlx_folder_of(pull->folder, &parent);
  if (!status) status = mlx_make_dirs(parent, 0755);
  if (!status) status = mlx_format(&lock_path, "%s.lock", pull->folder);
  if (!status) status = mlx_lock_take(lock_path, pull->url->server.place, pull->options->report, &lock);
  if (!status) status = fetch_to_cache(pull, out_path);
  mlx_lock_release_and_remove(&lock);
  mlx_free(lock_path);
  mlx_free(parent);
  return status;
}

// A file that is not split becomes the file |output|; parts become files in the folder |output|.
static mlx_status_t pull_to_output(pull_t *pull, const char *output, char **out_path) {
  mlx_lock_t lock = {.fd = -1};
  const bool is_split = pull->url->parts > 1;
  char hex[MLX_DIGEST_HEX];
  MLX_TRY(url_key(pull->url, hex));
  MLX_TRY(mlx_format(&pull->staging, "%s.%.16s.part", output, hex));
  MLX_TRY(mlx_output_lock(output, pull->options->report, &lock));
  mlx_status_t status = fetch(pull);
  if (!status) status = mlx_rename(is_split ? pull->staging : pull->parts[0].path, output);
  if (!status && !is_split) status = mlx_remove_tree(pull->staging);
  if (!status)
    status = is_split ? mlx_join_path(output, pull->parts[0].name, out_path)
                      : mlx_copy_text(output, strlen(output), out_path);
  mlx_output_unlock(&lock);
  return status;
}

mlx_status_t mlx_pull_gguf(const char *text, const mlx_pull_options_t *options, char **out_path) {
  gguf_url_t url;
  *out_path = NULL;
  MLX_TRY(parse_url(text, &url));
  if (!url.server.is_https && !mlx_url_is_local(&url.server) && !options->plain_http) {
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "'%s' is not encrypted: others on the network could change the model",
                  mlx_display_url(text).text),
        "use https, or accept that with `mlxcel pull URL --plain-http`");
  }
  pull_t pull = {.options = options, .url = &url};
  mlx_status_t status =
      options->output ? pull_to_output(&pull, options->output, out_path) : pull_to_cache(&pull, out_path);
  free_pull(&pull);
  return mlx_cache_hint(NULL, status);
}
