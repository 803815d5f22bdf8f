// Bundles from plain web servers: any that serves files can hand them out.
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "artifact/bundle.h"
#include "artifact/minisign.h"
#include "base/file.h"
#include "base/memory.h"
#include "transfer/download.h"
#include "transfer/output.h"
#include "transfer/pull.h"

typedef struct site {
  const mlx_pull_options_t *options;
  char *base;       // the folder's address, without a slash at its end
  char *folder;     // where the bundle will be
  mlx_lock_t lock;  // of that place
  char *staging;    // where its files come to
  mlx_http_response_t manifest;
  char *urls[MLX_MAX_BUNDLE_FILES], *paths[MLX_MAX_BUNDLE_FILES];
  mlx_download_t downloads[MLX_MAX_BUNDLE_FILES];
  size_t count;
} site_t;

static void free_site(site_t *site) {
  for (size_t i = 0; i < MLX_MAX_BUNDLE_FILES; ++i) {
    mlx_free(site->urls[i]);
    mlx_free(site->paths[i]);
  }
  mlx_http_response_clear(&site->manifest);
  mlx_output_release(&site->lock);
  mlx_free(site->base);
  mlx_free(site->folder);
  mlx_free(site->staging);
}

mlx_status_t mlx_pull_need_files(const mlx_manifest_t *manifest) {
  return manifest->file_count
             ? NULL
             : mlx_error(
                   MLX_INVALID_INPUT,
                   "the manifest is an older compiler's and lists no files: what comes could not be checked");
}

mlx_status_t mlx_pull_place_bundle(const char *name, const char *output, char **out_path) {
  *out_path = NULL;
  const size_t length = strlen(name);
  const bool suffixed = length > 5 && !strcmp(name + length - 5, ".mlxb");
  if (!output && !mlx_is_safe_path(name))
    return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' cannot be the name of a folder", name),
                           "give one with -o");
  MLX_TRY(output ? mlx_copy_text(output, strlen(output), out_path)
                 : mlx_format(out_path, suffixed ? "%s" : "%s.mlxb", name));
  for (size_t end = strlen(*out_path); end > 1 && (*out_path)[end - 1] == '/'; --end)
    (*out_path)[end - 1] = 0;
  return NULL;
}

static mlx_status_t read_address(site_t *site, const char *url) {
  size_t length = strlen(url);
  const char *tail = "/" MLX_BUNDLE_MANIFEST;
  if (strpbrk(url, "?#"))
    return mlx_error(MLX_USAGE, "'%s' is not the address of a folder: it has a query",
                     mlx_http_show(url).text);
  if (length > strlen(tail) && !strcmp(url + length - strlen(tail), tail)) length -= strlen(tail);
  while (length && url[length - 1] == '/') --length;
  return mlx_copy_text(url, length, &site->base);
}

// A server that lists no folders may forbid what it does not have.
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

// What a server says of a file that is not fetched yet.
typedef struct looked {
  long status;    // 0: nothing
  uint64_t size;  // or MLX_SIZE_UNKNOWN
} looked_t;

static looked_t read_look(const mlx_http_response_t *response) {
  looked_t looked = {.status = response->status, .size = MLX_SIZE_UNKNOWN};
  char text[96];
  unsigned long long size = 0;
  if (response->status == 206 && mlx_http_header(response, "Content-Range", text, sizeof text))
    sscanf(text, "bytes 0-0/%llu", &size);
  if (response->status == 200 && mlx_http_header(response, "Content-Length", text, sizeof text))
    sscanf(text, "%llu", &size);
  if (size) looked.size = size;  // of an answer to HEAD, 0 is often no length
  return looked;
}

// Whoever does not answer HEAD is asked for the first byte. A server that cannot be asked is no error here:
// fetching the file will tell.
static mlx_status_t look(const site_t *site, const char *url, looked_t *out_looked) {
  static const char *const first_byte[] = {"Range: bytes=0-0", NULL};
  mlx_http_t *http;
  MLX_TRY(mlx_http_open(&site->options->http, &http));
  for (int i = 0; i < 2; ++i) {
    mlx_http_response_t response;
    const mlx_http_request_t request = {.method = i ? NULL : "HEAD",
                                        .url = url,
                                        .headers = i ? first_byte : NULL,
                                        .once = true,
                                        .max_bytes = 1};
    mlx_status_free(mlx_http_send(http, &request, &response));
    *out_looked = read_look(&response);
    mlx_http_response_clear(&response);
    if (out_looked->status == 200 || out_looked->status == 404 || out_looked->status == 410) break;
  }
  mlx_http_close(http);
  return NULL;
}

static mlx_status_t has_file(const site_t *site, const char *name, bool *out_has) {
  char *url;
  looked_t looked = {0};
  MLX_TRY(mlx_format(&url, "%s/%s", site->base, name));
  mlx_status_t status = look(site, url, &looked);
  *out_has = !is_missing(looked.status);
  mlx_free(url);
  return status;
}

// What is on its way belongs to one state of the bundle: its manifest's.
static mlx_status_t choose_folders(site_t *site) {
  const char *slash = strrchr(site->base, '/');
  char hex[MLX_DIGEST_HEX];
  mlx_digest_bytes(site->manifest.body.data, site->manifest.body.length, hex);
  MLX_TRY(mlx_pull_place_bundle(slash ? slash + 1 : site->base, site->options->output, &site->folder));
  MLX_TRY(mlx_output_hold(site->folder, site->options->report, &site->lock));
  MLX_TRY(mlx_format(&site->staging, "%s.%.16s.part", site->folder, hex));
  return mlx_output_stage(site->staging);
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

// The target whose files are to come; NULL: all.
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
    return mlx_status_hint(mlx_error(MLX_NOT_FOUND, "the model was not compiled for %s", options->target),
                           "it was for: %s", targets.text);
  if (!best)
    return mlx_status_hint(
        mlx_error(MLX_UNAVAILABLE, "the model was compiled for %s, of which this machine runs nothing",
                  targets.text),
        "bring all of it for another with --target all");
  return NULL;
}

// A bundle may name its weights without having them.
static mlx_status_t has_weights(const site_t *site, const char *name, bool *out_has) {
  MLX_TRY(has_file(site, name, out_has));
  if (!*out_has)
    mlx_report_note(site->options->report, "%s is not there: it will be looked for by its digest", name);
  return NULL;
}

static mlx_status_t plan(site_t *site, const mlx_manifest_t *manifest) {
  const char *target;
  MLX_TRY(mlx_pull_need_files(manifest));
  MLX_TRY(choose_target(site->options, manifest, &target));
  if (target && manifest->variant_count > 1)
    mlx_report_note(site->options->report, "taking the code for %s, of %s", target,
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

// A server that answers whatever it is asked for with a page has no signature.
static mlx_status_t keep_signature(const site_t *site, const mlx_http_response_t *response) {
  mlx_signature_t signature;
  mlx_status_t status =
      mlx_signature_read(MLX_BUNDLE_SIGNATURE, response->body.data ? response->body.data : "",
                         response->body.length, &signature);
  if (!status) return write_body(site, MLX_BUNDLE_SIGNATURE, response);
  mlx_report_note(site->options->report, "what the server has as %s is no signature: it is left out",
                  MLX_BUNDLE_SIGNATURE);
  mlx_status_free(status);
  return NULL;
}

// A bundle may be signed. Whether whoever signed it is trusted is asked when it is run.
static mlx_status_t get_signature(const site_t *site) {
  mlx_http_response_t response;
  bool missing;
  mlx_status_t status = get_text(site, MLX_BUNDLE_SIGNATURE, &response, &missing);
  if (!status) {
    status = keep_signature(site, &response);
  } else if (missing) {
    mlx_status_free(status);
    status = NULL;
  }
  mlx_http_response_clear(&response);
  return status;
}

static mlx_status_t get_files(const site_t *site) {
  char title[300];
  snprintf(title, sizeof title, "pulling %.255s", mlx_file_name(site->folder).text);
  mlx_status_t status = mlx_download_all(title, site->staging, site->downloads, site->count,
                                         &site->options->http, site->options->report);
  return mlx_status_hint(status, "what came so far is kept: run the command again to go on");
}

static mlx_status_t hint_address(mlx_status_t status) {
  return mlx_status_hint(status, "give the address of a folder or a file that mlxcel compile wrote (.mlxb)");
}

static mlx_status_t check_file(const site_t *site) {
  const mlx_http_shown_t shown = mlx_http_show(site->base);
  mlx_bundle_t *bundle;
  if (!mlx_is_bundle(site->paths[0]))
    return hint_address(mlx_error(MLX_INVALID_INPUT, "what %s gave is no compiled model", shown.text));
  const char *target;
  mlx_status_t status = mlx_bundle_open(site->paths[0], &bundle);
  if (!status) {
    status = mlx_bundle_check_all(bundle, site->options->report);
    if (!status && site->options->target)
      status = choose_target(site->options, mlx_bundle_manifest(bundle), &target);  // it comes with all
    mlx_bundle_close(bundle);
  }
  return mlx_status_annotate(status, "what %s gave", shown.text);
}

// Asks what the server says of it, and holds the place where it goes.
static mlx_status_t plan_file(site_t *site) {
  const char *slash = strrchr(site->base, '/');
  char hex[MLX_DIGEST_HEX];
  looked_t looked;
  mlx_digest_bytes(site->base, strlen(site->base), hex);
  MLX_TRY(mlx_pull_place_bundle(slash ? slash + 1 : site->base, site->options->output, &site->folder));
  MLX_TRY(look(site, site->base, &looked));
  if (is_missing(looked.status)) {
    return hint_address(mlx_error(MLX_NOT_FOUND, "%s: the server has no such thing%s (%ld)",
                                  mlx_http_show(site->base).text,
                                  looked.status == 403 ? ", or forbids it" : "", looked.status));
  }
  MLX_TRY(mlx_output_hold(site->folder, site->options->report, &site->lock));
  MLX_TRY(mlx_format(&site->staging, "%s.%.16s.part", site->folder, hex));
  MLX_TRY(mlx_output_stage(site->staging));
  MLX_TRY(mlx_copy_text(site->base, strlen(site->base), &site->urls[0]));
  MLX_TRY(mlx_join_path(site->staging, "bundle", &site->paths[0]));
  site->downloads[0] = (mlx_download_t){.name = slash ? slash + 1 : site->base,
                                        .url = site->urls[0],
                                        .path = site->paths[0],
                                        .size = looked.size};
  site->count = 1;
  return NULL;
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

// A bundle in one file, which says itself what it must be. It comes to a folder of its own, where one that
// was cut off goes on.
static mlx_status_t pull_file(site_t *site) {
  MLX_TRY(plan_file(site));
  MLX_TRY(mlx_remove_tree(site->paths[0]));  // one that was complete may be of an earlier day
  mlx_status_t status = get_files(site);
  if (status && has_part(site->paths[0])) return status;
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
  MLX_TRY(read_address(site, url));
  mlx_status_t status = get_text(site, MLX_BUNDLE_MANIFEST, &site->manifest, &missing);
  if (missing || (!status && !is_object(&site->manifest.body))) {  // then it is no folder
    mlx_status_free(status);
    return pull_file(site);
  }
  if (!site->manifest.status)
    status = mlx_status_hint(
        status, "check the address, and the network: proxies are those of http_proxy and https_proxy");
  MLX_TRY(status);
  const mlx_http_shown_t shown = mlx_http_show(site->base);
  MLX_TRY(mlx_manifest_read(shown.text, site->manifest.body.data ? site->manifest.body.data : "",
                            site->manifest.body.length, &manifest));
  MLX_TRY(choose_folders(site));
  MLX_TRY(plan(site, &manifest));
  MLX_TRY(get_files(site));
  MLX_TRY(get_signature(site));
  MLX_TRY(write_body(site, MLX_BUNDLE_MANIFEST, &site->manifest));
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
