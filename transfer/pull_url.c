// Pulls bundles from plain web servers. See pull_url.h.
#include "transfer/pull_url.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "artifact/bundle.h"
#include "artifact/bundle_stream.h"
#include "artifact/minisign.h"
#include "base/file.h"
#include "base/memory.h"
#include "transfer/download.h"
#include "transfer/output.h"
#include "transfer/probe.h"
#include "transfer/url.h"

// One pull in progress.
typedef struct site {
  const mlx_pull_options_t *options;
  char *base;       // URL of the folder or file, without a trailing slash
  char *folder;     // final place of the bundle
  mlx_lock_t lock;  // of |folder|
  char *staging;    // folder for incomplete downloads
  mlx_http_response_t manifest;
  char *urls[MLX_MAX_BUNDLE_FILES], *paths[MLX_MAX_BUNDLE_FILES];
  mlx_download_t downloads[MLX_MAX_BUNDLE_FILES];
  size_t count;
  mlx_display_url_t shown;      // |base| for messages
  mlx_bundle_stream_t *stream;  // single file only: checks it while it arrives
} site_t;

static void free_site(site_t *site) {
  for (size_t i = 0; i < MLX_MAX_BUNDLE_FILES; ++i) {
    mlx_free(site->urls[i]);
    mlx_free(site->paths[i]);
  }
  mlx_http_response_clear(&site->manifest);
  mlx_output_unlock(&site->lock);
  mlx_bundle_stream_free(site->stream);
  mlx_free(site->base);
  mlx_free(site->folder);
  mlx_free(site->staging);
}

static mlx_status_t read_url(site_t *site, const char *url) {
  size_t length = strlen(url);
  const char *tail = "/" MLX_BUNDLE_MANIFEST;
  if (strpbrk(url, "?#"))
    return mlx_error(MLX_USAGE, "cannot pull '%s': the URL must not have a query or fragment",
                     mlx_display_url(url).text);
  if (length > strlen(tail) && !strcmp(url + length - strlen(tail), tail)) length -= strlen(tail);
  while (length && url[length - 1] == '/') --length;
  return mlx_copy_text(url, length, &site->base);
}

// Some servers, such as object stores, answer 403 for a missing file.
static bool is_missing(long status) { return status == 404 || status == 410 || status == 403; }

static mlx_status_t get_text(const site_t *site, const char *name, mlx_http_response_t *response,
                             bool *out_missing) {
  char *url;
  mlx_http_t *http = NULL;
  *response = (mlx_http_response_t){0};
  *out_missing = false;
  MLX_TRY(mlx_format(&url, "%s/%s", site->base, name));
  const mlx_http_request_t request = {.url = url, .max_bytes = MLX_MAX_MANIFEST};
  mlx_status_t status = mlx_http_open(&site->options->http, &http);
  if (!status) status = mlx_http_send(http, &request, response);
  *out_missing = !status && is_missing(response->status);
  if (!status) status = mlx_http_check(&request, response);
  mlx_http_close(http);
  mlx_free(url);
  return status;
}

static mlx_status_t has_file(const site_t *site, const char *name, bool *out_has) {
  char *url;
  mlx_probe_t probe = {0};
  MLX_TRY(mlx_format(&url, "%s/%s", site->base, name));
  mlx_status_t status = mlx_probe_url(&site->options->http, url, &probe);
  *out_has = !is_missing(probe.status);
  mlx_free(url);
  return status;
}

// The staging folder belongs to one version of the bundle, identified by its manifest.
static mlx_status_t choose_folders(site_t *site) {
  const char *slash = strrchr(site->base, '/');
  char hex[MLX_DIGEST_HEX];
  mlx_digest_bytes(site->manifest.body.data, site->manifest.body.length, hex);
  MLX_TRY(mlx_output_bundle_path(slash ? slash + 1 : site->base, site->options->output, &site->folder));
  MLX_TRY(mlx_output_lock(site->folder, site->options->report, &site->lock));
  MLX_TRY(mlx_format(&site->staging, "%s.%.16s.part", site->folder, hex));
  return mlx_output_make_staging(site->staging);
}

static mlx_status_t add_file(site_t *site, const char *name, uint64_t size, const char *sha256) {
  const size_t i = site->count;
  MLX_TRY(mlx_format(&site->urls[i], "%s/%s", site->base, name));
  MLX_TRY(mlx_join_path(site->staging, name, &site->paths[i]));
  site->downloads[i] =
      (mlx_download_t){.name = name, .url = site->urls[i], .path = site->paths[i], .size = size};
  snprintf(site->downloads[i].sha256, sizeof site->downloads[i].sha256, "%s", sha256);
  ++site->count;
  return NULL;
}

// Chooses the target to pull; NULL for all.
static mlx_status_t choose_target(const mlx_pull_options_t *options, const mlx_manifest_t *manifest,
                                  const char **out_target) {
  const mlx_targets_text_t targets = mlx_manifest_targets_text(manifest);
  size_t best = 0;
  *out_target = NULL;
  if (options->target ? !strcmp(options->target, "all") : manifest->variant_count == 1 || !options->rank)
    return NULL;
  for (size_t i = 0; i < manifest->variant_count; ++i) {
    const char *target = manifest->variants[i].target;
    const size_t rank =
        options->target ? !strcmp(target, options->target) : options->rank(target, manifest->variants[i].cpu);
    if (rank <= best) continue;
    best = rank;
    *out_target = target;
  }
  if (!best && options->target)
    return mlx_status_hint(mlx_error(MLX_NOT_FOUND, "the bundle has no code for %s", options->target),
                           "use --target with one of: %s", targets.text);
  if (!best)
    return mlx_status_hint(
        mlx_error(MLX_UNAVAILABLE, "this machine can run none of the bundle's targets: %s", targets.text),
        "to pull it for another machine, use --target all");
  return NULL;
}

// A bundle may be published without its weights.
static mlx_status_t has_weights(const site_t *site, const char *name, bool *out_has) {
  MLX_TRY(has_file(site, name, out_has));
  if (!*out_has)
    mlx_report_note(site->options->report,
                    "the server has no %s: it will be looked up by digest when the model runs", name);
  return NULL;
}

static mlx_status_t plan(site_t *site, const mlx_manifest_t *manifest) {
  const char *target;
  mlx_status_t status = mlx_manifest_require_files(manifest);
  if (!status) status = choose_target(site->options, manifest, &target);
  MLX_TRY(mlx_status_annotate(status, "%s", mlx_display_url(site->base).text));
  if (target && manifest->variant_count > 1)
    mlx_report_note(site->options->report, "pulling the code for %s (available: %s)", target,
                    mlx_manifest_targets_text(manifest).text);
  for (size_t i = 0; i < manifest->file_count; ++i) {
    bool has = true;
    if (target && !mlx_manifest_needs(manifest, target, manifest->files[i].name)) continue;
    if (mlx_is_weights_file(manifest->files[i].name))
      MLX_TRY(has_weights(site, manifest->files[i].name, &has));
    if (!has) continue;
    MLX_TRY(add_file(site, manifest->files[i].name, (uint64_t)manifest->files[i].size,
                     manifest->files[i].sha256));
  }
  return NULL;
}

static mlx_status_t write_body(const site_t *site, const char *name, const mlx_http_response_t *response) {
  char *path;
  MLX_TRY(mlx_join_path(site->staging, name, &path));
  mlx_status_t status =
      mlx_write_file(path, response->body.data ? response->body.data : "", response->body.length);
  mlx_free(path);
  return status;
}

// Ignores a file that is not a signature: some servers answer every request with a web page.
static mlx_status_t save_signature(const site_t *site, const mlx_http_response_t *response) {
  mlx_signature_t signature;
  mlx_status_t status =
      mlx_signature_read(MLX_BUNDLE_SIGNATURE, response->body.data ? response->body.data : "",
                         response->body.length, &signature);
  if (!status) return write_body(site, MLX_BUNDLE_SIGNATURE, response);
  mlx_report_note(site->options->report, "ignored %s: the server's file is not a signature",
                  MLX_BUNDLE_SIGNATURE);
  mlx_status_free(status);
  return NULL;
}

// Downloads the signature if there is one. The runtime checks it when the bundle runs.
static mlx_status_t get_signature(const site_t *site) {
  mlx_http_response_t response;
  bool missing;
  mlx_status_t status = get_text(site, MLX_BUNDLE_SIGNATURE, &response, &missing);
  if (!status) {
    status = save_signature(site, &response);
  } else if (missing) {
    mlx_status_free(status);
    status = NULL;
  }
  mlx_http_response_clear(&response);
  return status;
}

static bool is_kept(const void *user, const char *name) {
  const site_t *site = user;
  if (!strcmp(name, MLX_BUNDLE_MANIFEST) || !strcmp(name, MLX_BUNDLE_SIGNATURE)) return true;
  for (size_t i = 0; i < site->count; ++i) {
    if (!strcmp(site->downloads[i].name, name)) return true;
  }
  return false;
}

static mlx_status_t get_files(const site_t *site) {
  char title[300];
  snprintf(title, sizeof title, "pulling %.255s", mlx_file_name(site->folder).text);
  mlx_status_t status = mlx_download_all(title, site->staging, site->downloads, site->count,
                                         &site->options->http, site->options->report);
  if (mlx_status_code(status) == MLX_INVALID_INPUT) return status;  // a retry would fail again
  return mlx_status_hint(status, "the files downloaded so far are kept: run the command again to resume");
}

static mlx_status_t hint_url(mlx_status_t status) {
  return mlx_status_hint(status, "use the URL of a bundle (.mlxb, folder or file) made by `mlxcel compile`");
}

static mlx_status_t check_file(const site_t *site) {
  const mlx_display_url_t url = mlx_display_url(site->base);
  mlx_bundle_t *bundle;
  if (!mlx_is_bundle(site->paths[0]))
    return hint_url(mlx_error(MLX_INVALID_INPUT, "%s is not a bundle", url.text));
  const char *target;
  mlx_status_t status = mlx_bundle_open(site->paths[0], &bundle);
  if (!status) {
    status = mlx_bundle_check_all(bundle, true, site->options->report);
    if (!status && site->options->target)
      // The file contains all targets, so this only checks that the requested one exists.
      status = choose_target(site->options, mlx_bundle_manifest(bundle), &target);
    mlx_bundle_close(bundle);
  }
  return mlx_status_annotate(status, "%s", url.text);
}

static void begin_stream(void *user) { mlx_bundle_stream_begin(((site_t *)user)->stream); }

static mlx_status_t add_to_stream(void *user, const char *bytes, size_t length) {
  return mlx_bundle_stream_add(((site_t *)user)->stream, bytes, length);
}

static mlx_status_t reserve(void *user, uint64_t bytes) {
  return mlx_download_check_space(((const site_t *)user)->staging, bytes);
}

// Gets the size of the file, and locks the output.
static mlx_status_t plan_file(site_t *site) {
  const char *slash = strrchr(site->base, '/');
  char hex[MLX_DIGEST_HEX];
  mlx_probe_t probe;
  mlx_digest_bytes(site->base, strlen(site->base), hex);
  MLX_TRY(mlx_output_bundle_path(slash ? slash + 1 : site->base, site->options->output, &site->folder));
  MLX_TRY(mlx_probe_url(&site->options->http, site->base, &probe));
  if (is_missing(probe.status)) {
    return hint_url(mlx_error(MLX_NOT_FOUND, "%s: not found%s (%ld)", mlx_display_url(site->base).text,
                              probe.status == 403 ? " or access denied" : "", probe.status));
  }
  MLX_TRY(mlx_output_lock(site->folder, site->options->report, &site->lock));
  MLX_TRY(mlx_format(&site->staging, "%s.%.16s.part", site->folder, hex));
  MLX_TRY(mlx_output_make_staging(site->staging));
  MLX_TRY(mlx_copy_text(site->base, strlen(site->base), &site->urls[0]));
  MLX_TRY(mlx_join_path(site->staging, "bundle", &site->paths[0]));
  site->downloads[0] = (mlx_download_t){.name = slash ? slash + 1 : site->base,
                                        .url = site->urls[0],
                                        .path = site->paths[0],
                                        .size = probe.size,
                                        .begin = begin_stream,
                                        .piece = add_to_stream,
                                        .user = site};
  site->count = 1;
  site->shown = mlx_display_url(site->base);
  return mlx_bundle_stream_create(site->shown.text, reserve, site, &site->stream);
}

static bool has_part(const char *path) {
  struct stat info;
  char *part;
  mlx_status_t status = mlx_format(&part, "%s.part", path);
  const bool has = !status && !stat(part, &info) && info.st_size > 0;
  mlx_status_free(status);
  mlx_free(part);
  return has;
}

// Pulls a single-file bundle, which contains its own digests. An interrupted download resumes from the
// staging folder.
static mlx_status_t pull_file(site_t *site) {
  MLX_TRY(plan_file(site));
  MLX_TRY(mlx_remove_tree(site->paths[0]));  // a complete old file may be outdated
  mlx_status_t status = get_files(site);
  const bool is_invalid = mlx_status_code(status) == MLX_INVALID_INPUT;
  if (is_invalid) status = hint_url(status);
  if (status && !is_invalid && has_part(site->paths[0])) return status;
  if (!status) status = check_file(site);
  if (!status) status = mlx_rename(site->paths[0], site->folder);
  mlx_status_free(mlx_remove_tree(site->staging));
  return status;
}

static bool is_object(const mlx_text_t *text) {
  const size_t blank = text->data ? strspn(text->data, " \t\r\n") : 0;
  return blank < text->length && text->data[blank] == '{';
}

static mlx_status_t pull_site(site_t *site, const char *url) {
  bool missing;
  mlx_manifest_t manifest;
  MLX_TRY(read_url(site, url));
  mlx_status_t status = get_text(site, MLX_BUNDLE_MANIFEST, &site->manifest, &missing);
  if (missing || (!status && !is_object(&site->manifest.body))) {  // not a folder
    mlx_status_free(status);
    return pull_file(site);
  }
  if (!site->manifest.status)
    status =
        mlx_status_hint(status, "check the URL, the network, and the proxies in http_proxy and https_proxy");
  MLX_TRY(status);
  const mlx_display_url_t shown = mlx_display_url(site->base);
  MLX_TRY(mlx_manifest_read(shown.text, site->manifest.body.data ? site->manifest.body.data : "",
                            site->manifest.body.length, &manifest));
  MLX_TRY(choose_folders(site));
  MLX_TRY(plan(site, &manifest));
  MLX_TRY(get_files(site));
  MLX_TRY(get_signature(site));
  MLX_TRY(write_body(site, MLX_BUNDLE_MANIFEST, &site->manifest));
  MLX_TRY(mlx_output_sweep(site->staging, is_kept, site));
  return mlx_rename(site->staging, site->folder);
}

mlx_status_t mlx_pull_url(const char *url, const mlx_pull_options_t *options, char **out_path) {
  site_t site = {.options = options, .lock = {.fd = -1}};
  *out_path = NULL;
  mlx_status_t status = pull_site(&site, url);
  if (!status) {
    *out_path = site.folder;
    site.folder = NULL;
  }
  free_site(&site);
  return status;
}
