// The client of the OCI distribution API. See registry.h.
#include "transfer/registry.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/memory.h"
#include "transfer/credentials.h"
#include "transfer/download.h"
#include "transfer/url.h"

#define CHUNK (64u << 20)  // bytes; default size of an upload piece
#define MAX_URL 4096
#define MAX_PAGES 256     // of a list
#define MAX_LISTED 10000  // items of a list, over all pages
#define MAX_RENEWALS 8    // token renewals during the download of one blob
#define ACCEPT "Accept: " MLX_OCI_MANIFEST ", " MLX_OCI_INDEX

struct mlx_registry {
  char *base;        // "https://HOST"
  mlx_url_t server;  // |base|, parsed
  char *host, *name;
  mlx_registry_options_t options;
  mlx_http_t *http;   // for everything except blobs
  char *credentials;  // "Basic ..."; NULL if there are none
  char *identity;     // identity token, sent only to token servers; NULL if there is none
  pthread_mutex_t lock;
  char *authorization;  // current Authorization header; protected by |lock|
};

// ----------------------------------------------------------------------------------------------------------
// Opening

// A registry on this machine is accessed by http, any other by https unless the user allows http.
static mlx_status_t choose_base(mlx_registry_t *registry, const char *host) {
  MLX_TRY(mlx_format(&registry->base, "http://%s", host));
  MLX_TRY(mlx_url_parse(registry->base, &registry->server));
  if (registry->options.plain_http || mlx_url_is_local(&registry->server)) return NULL;
  mlx_free(registry->base);
  registry->base = NULL;
  MLX_TRY(mlx_format(&registry->base, "https://%s", host));
  return mlx_url_parse(registry->base, &registry->server);
}

mlx_status_t mlx_registry_open(const mlx_oci_ref_t *ref, const mlx_registry_options_t *options,
                               mlx_registry_t **out_registry) {
  *out_registry = NULL;
  mlx_registry_t *registry;
  MLX_TRY(mlx_alloc(1, sizeof *registry, &registry));
  pthread_mutex_init(&registry->lock, NULL);
  registry->options = *options;
  if (!registry->options.chunk_bytes) registry->options.chunk_bytes = CHUNK;
  mlx_status_t status = choose_base(registry, ref->host);
  if (!status) status = mlx_copy_text(ref->host, strlen(ref->host), &registry->host);
  if (!status) status = mlx_copy_text(ref->name, strlen(ref->name), &registry->name);
  if (!status) status = mlx_registry_credentials(ref->host, &registry->credentials, &registry->identity);
  if (!status) status = mlx_http_open(&options->http, &registry->http);
  if (status) {
    mlx_registry_close(registry);
    return status;
  }
  *out_registry = registry;
  return NULL;
}

void mlx_registry_close(mlx_registry_t *registry) {
  if (!registry) return;
  mlx_http_close(registry->http);
  pthread_mutex_destroy(&registry->lock);
  mlx_free(registry->base);
  mlx_free(registry->host);
  mlx_free(registry->name);
  mlx_free(registry->credentials);
  mlx_free(registry->identity);
  mlx_free(registry->authorization);
  mlx_free(registry);
}

// ----------------------------------------------------------------------------------------------------------
// Requests with authentication

static mlx_status_t copy_authorization(mlx_registry_t *registry, char **out) {
  *out = NULL;
  pthread_mutex_lock(&registry->lock);
  const char *now = registry->authorization;
  mlx_status_t status = now ? mlx_copy_text(now, strlen(now), out) : NULL;
  pthread_mutex_unlock(&registry->lock);
  return status;
}

static mlx_status_t hint_login(const mlx_registry_t *registry, mlx_status_t status) {
  return mlx_status_hint(
      status,
      registry->credentials || registry->identity
          ? "docker's credentials for %s are not sufficient: run `docker login %s` with another account"
          : "there are no credentials for %s: run `docker login %s`",
      registry->host, registry->host);
}

static void put_token_query(mlx_text_t *out, const mlx_oci_challenge_t *challenge) {
  mlx_text_puts(out, "service=");
  mlx_http_escape(out, challenge->service, false);
  mlx_text_puts(out, "&scope=");
  mlx_http_escape(out, challenge->scope, false);
}

// Requests a token from the token server that the registry named. Credentials are sent there only through
// https or on this machine. An identity token goes in the request body (as an OAuth 2 refresh token), a user
// name and password in the Authorization header.
static mlx_status_t get_token(mlx_registry_t *registry, mlx_http_t *http,
                              const mlx_oci_challenge_t *challenge, char **out_authorization) {
  mlx_text_t url = {0}, form = {0};
  mlx_http_response_t response = {0};
  char *token = NULL;
  bool is_protected;
  MLX_TRY(mlx_status_annotate(mlx_http_check_secret_url(challenge->realm, &is_protected),
                              "token server of %s", registry->host));
  const bool identity = is_protected && registry->identity;
  mlx_text_puts(&url, challenge->realm);
  if (identity) {
    mlx_text_puts(&form, "grant_type=refresh_token&client_id=mlxcel&");
    put_token_query(&form, challenge);
    mlx_text_puts(&form, "&refresh_token=");
    mlx_http_escape(&form, registry->identity, false);
  } else {
    mlx_text_puts(&url, strchr(challenge->realm, '?') ? "&" : "?");
    put_token_query(&url, challenge);
  }
  mlx_status_t status = mlx_text_finish(&url);
  if (!status) status = mlx_text_finish(&form);
  const char *const headers[] = {identity ? "Content-Type: application/x-www-form-urlencoded" : NULL, NULL};
  const mlx_http_request_t request = {.method = identity ? "POST" : NULL,
                                      .url = url.data,
                                      .authorization = is_protected ? registry->credentials : NULL,
                                      .headers = headers,
                                      .body = form.data,
                                      .body_length = form.length,
                                      .max_bytes = 1 << 20};
  if (!status) status = mlx_http_send(http, &request, &response);
  if (!status) status = hint_login(registry, mlx_http_check(&request, &response));
  if (!status)
    status = mlx_oci_token_read(mlx_display_url(url.data).text, response.body.data ? response.body.data : "",
                                response.body.length, &token);
  if (!status) status = mlx_format(out_authorization, "Bearer %s", token);
  mlx_free(token);
  mlx_http_response_clear(&response);
  mlx_text_clear(&form);
  mlx_text_clear(&url);
  return status;
}

// Gets the authorization that a 401 response requires. *|out_retry| is true if the request can be repeated.
static mlx_status_t authenticate(mlx_registry_t *registry, mlx_http_t *http,
                                 const mlx_http_response_t *response, bool *out_retry) {
  char header[2048], *authorization = NULL;
  mlx_oci_challenge_t challenge;
  mlx_status_t status = NULL;
  *out_retry = false;
  if (!mlx_http_header(response, "WWW-Authenticate", header, sizeof header)) return NULL;
  mlx_oci_challenge_read(header, &challenge);
  if (challenge.bearer) {
    if (!challenge.scope[0])
      snprintf(challenge.scope, sizeof challenge.scope, "repository:%.400s:pull,push", registry->name);
    status = get_token(registry, http, &challenge, &authorization);
  } else if (challenge.basic && registry->credentials) {
    status = mlx_copy_text(registry->credentials, strlen(registry->credentials), &authorization);
  }
  if (status || !authorization) return status;
  pthread_mutex_lock(&registry->lock);
  char *old = registry->authorization;
  registry->authorization = authorization;
  pthread_mutex_unlock(&registry->lock);
  mlx_free(old);
  *out_retry = true;
  return NULL;
}

// Sends a request, and repeats it with a new token after a 401. Sends the token only to the registry itself:
// an upload URL may be on another host.
static mlx_status_t send_request(mlx_registry_t *registry, mlx_http_t *http, const mlx_http_request_t *given,
                                 mlx_http_response_t *response) {
  mlx_url_t url;
  MLX_TRY(mlx_url_parse(given->url, &url));
  const bool to_registry = mlx_url_same_server(&url, &registry->server) && !url.has_user;
  for (int tries = 0;; ++tries) {
    mlx_http_request_t request = *given;
    char *authorization;
    MLX_TRY(copy_authorization(registry, &authorization));
    request.authorization = to_registry ? authorization : NULL;
    mlx_status_t status = mlx_http_send(http, &request, response);
    mlx_free(authorization);
    if (mlx_status_code(status) == MLX_UNAVAILABLE)
      status = mlx_status_hint(
          status, "check the registry's address, the network, and the proxies in http_proxy and https_proxy");
    if (status || response->status != 401 || !to_registry || tries == 1) return status;
    bool retry;
    MLX_TRY(authenticate(registry, http, response, &retry));
    if (!retry) return NULL;
    mlx_http_response_clear(response);
  }
}

static mlx_status_t check_response(const mlx_registry_t *registry, const mlx_http_request_t *request,
                                   const mlx_http_response_t *response) {
  mlx_status_t status = mlx_http_check(request, response);
  return response->status == 401 || response->status == 403 ? hint_login(registry, status) : status;
}

static mlx_status_t make_url(const mlx_registry_t *registry, char **out_url, const char *kind,
                             const char *what) {
  return mlx_format(out_url, "%s/v2/%s/%s/%s", registry->base, registry->name, kind, what);
}

// ----------------------------------------------------------------------------------------------------------
// Manifests

mlx_status_t mlx_registry_get_document(mlx_registry_t *registry, const char *reference,
                                       mlx_text_t *out_json) {
  char *url;
  mlx_http_response_t response = {0};
  MLX_TRY(make_url(registry, &url, "manifests", reference));
  const char *const headers[] = {ACCEPT, NULL};
  const mlx_http_request_t request = {.url = url, .headers = headers, .max_bytes = MLX_OCI_MAX_DOCUMENT};
  mlx_status_t status = send_request(registry, registry->http, &request, &response);
  if (!status) status = check_response(registry, &request, &response);
  if (!status) mlx_text_append(out_json, response.body.data ? response.body.data : "", response.body.length);
  if (!status) status = mlx_text_finish(out_json);
  mlx_http_response_clear(&response);
  mlx_free(url);
  return status;
}

static mlx_status_t put_json(mlx_registry_t *registry, const char *reference, const char *media_type,
                             const char *json, size_t length, bool *out_knows_subject) {
  char *url, type[160], subject[MLX_OCI_DIGEST];
  mlx_http_response_t response = {0};
  MLX_TRY(make_url(registry, &url, "manifests", reference));
  snprintf(type, sizeof type, "Content-Type: %s", media_type);
  const char *const headers[] = {type, NULL};
  const mlx_http_request_t request = {.method = "PUT",
                                      .url = url,
                                      .headers = headers,
                                      .body = json,
                                      .body_length = length,
                                      .max_bytes = 1 << 20};
  mlx_status_t status = send_request(registry, registry->http, &request, &response);
  if (!status) status = check_response(registry, &request, &response);
  if (!status) *out_knows_subject = mlx_http_header(&response, "OCI-Subject", subject, sizeof subject);
  mlx_http_response_clear(&response);
  mlx_free(url);
  return status;
}

static void referrers_tag(const char *digest, char out_tag[MLX_OCI_DIGEST]) {
  snprintf(out_tag, MLX_OCI_DIGEST, "sha256-%s", digest + strlen("sha256:"));
}

// Appends the list of referrers that is stored under |tag|; nothing if there is none.
static mlx_status_t get_tagged(mlx_registry_t *registry, const char *tag, mlx_text_t *out_json) {
  mlx_status_t status = mlx_registry_get_document(registry, tag, out_json);
  if (mlx_status_code(status) != MLX_NOT_FOUND) return status;
  mlx_status_free(status);
  return NULL;
}

static mlx_status_t tagged_referrers(mlx_registry_t *registry, const char *digest,
                                     mlx_oci_document_t *out_index) {
  char tag[MLX_OCI_DIGEST];
  mlx_text_t json = {0};
  referrers_tag(digest, tag);
  mlx_status_t status = get_tagged(registry, tag, &json);
  if (!status && json.length) status = mlx_oci_document_read(tag, json.data, json.length, out_index);
  mlx_text_clear(&json);
  return status;
}

static mlx_status_t add_to_tag(mlx_registry_t *registry, const char *subject,
                               const mlx_oci_descriptor_t *descriptor) {
  char tag[MLX_OCI_DIGEST];
  bool unused;
  mlx_text_t old = {0}, json = {0};
  referrers_tag(subject, tag);
  mlx_status_t status = get_tagged(registry, tag, &old);
  if (!status && !old.length) mlx_oci_index_write(NULL, 0, &old);
  if (!status) status = mlx_text_finish(&old);
  if (!status) status = mlx_oci_index_add(tag, old.data, old.length, descriptor, NULL, &json);
  if (!status) status = put_json(registry, tag, MLX_OCI_INDEX, json.data, json.length, &unused);
  mlx_text_clear(&old);
  mlx_text_clear(&json);
  return status;
}

mlx_status_t mlx_registry_put_document(mlx_registry_t *registry, const char *reference,
                                       const mlx_oci_descriptor_t *descriptor, const char *json,
                                       size_t length, const char *subject) {
  bool knows_subject;
  MLX_TRY(put_json(registry, reference, descriptor->media_type, json, length, &knows_subject));
  return subject && !knows_subject ? add_to_tag(registry, subject, descriptor) : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Paged lists

typedef mlx_status_t (*page_fn_t)(void *user, const char *name, const char *json, size_t length);

typedef struct pages {
  mlx_registry_t *registry;
  char *urls[MAX_PAGES];  // of all pages so far and the next one; owned
  size_t count;
  bool unsupported;  // the registry has no such list
} pages_t;

static mlx_status_t find_next(pages_t *pages, const mlx_http_response_t *response) {
  char header[MAX_URL], link[MAX_URL], *url;
  if (!mlx_http_header(response, "Link", header, sizeof header) ||
      !mlx_oci_next_link(header, link, sizeof link))
    return NULL;
  MLX_TRY(mlx_url_resolve(response->url, link, &url));
  mlx_status_t status = NULL;
  for (size_t i = 0; i < pages->count && !status; ++i) {
    if (!strcmp(pages->urls[i], url))
      status =
          mlx_error(MLX_INVALID_INPUT, "%s: the pages of a list link in a loop", mlx_display_url(url).text);
  }
  if (!status && pages->count == MAX_PAGES)
    status = mlx_error(MLX_INVALID_INPUT, "%s: the list has more than %d pages", mlx_display_url(url).text,
                       MAX_PAGES);
  if (status) {
    mlx_free(url);
    return status;
  }
  pages->urls[pages->count++] = url;
  return NULL;
}

// The specification requires 404. Older registries also answer 400, 405 or 501.
static bool is_unsupported(long status) {
  return status == 404 || status == 405 || status == 400 || status == 501;
}

static mlx_status_t get_page(pages_t *pages, page_fn_t page, void *user) {
  mlx_http_response_t response = {0};
  const char *url = pages->urls[pages->count - 1];
  const mlx_http_request_t request = {.url = url, .max_bytes = MLX_OCI_MAX_DOCUMENT};
  mlx_status_t status = send_request(pages->registry, pages->registry->http, &request, &response);
  pages->unsupported = !status && pages->count == 1 && is_unsupported(response.status);
  if (!status && !pages->unsupported) status = check_response(pages->registry, &request, &response);
  if (!status && !pages->unsupported)
    status = page(user, mlx_display_url(url).text, response.body.data ? response.body.data : "",
                  response.body.length);
  if (!status && !pages->unsupported) status = find_next(pages, &response);
  mlx_http_response_clear(&response);
  return status;
}

// Calls |page| with every page of the list at |url|, and frees |url|. *|out_unsupported| is true if the
// registry has no such list.
static mlx_status_t get_pages(mlx_registry_t *registry, char *url, page_fn_t page, void *user,
                              bool *out_unsupported) {
  pages_t pages = {.registry = registry, .urls = {url}, .count = 1};
  mlx_status_t status = NULL;
  for (size_t got = 0; got < pages.count && !status; ++got) status = get_page(&pages, page, user);
  *out_unsupported = pages.unsupported;
  for (size_t i = 0; i < pages.count; ++i) mlx_free(pages.urls[i]);
  return status;
}

static mlx_status_t add_referrers(void *user, const char *name, const char *json, size_t length) {
  mlx_oci_document_t *all = user, page;
  MLX_TRY(mlx_oci_document_read(name, json, length, &page));
  mlx_status_t status =
      page.count > MAX_LISTED - all->count
          ? mlx_error(MLX_INVALID_INPUT, "%s: the list has more than %d manifests", name, MAX_LISTED)
          : mlx_resize(all->count + page.count + 1, sizeof *all->items, &all->items);
  if (!status && page.count) memcpy(all->items + all->count, page.items, page.count * sizeof *page.items);
  if (!status) all->count += page.count;
  mlx_oci_document_free(&page);
  return status;
}

mlx_status_t mlx_registry_referrers(mlx_registry_t *registry, const char *digest, const char *artifact_type,
                                    mlx_oci_document_t *out_index) {
  mlx_text_t text = {0};
  char *url;
  bool unsupported;
  mlx_text_printf(&text, "%s/v2/%s/referrers/%s?artifactType=", registry->base, registry->name, digest);
  mlx_http_escape(&text, artifact_type, false);
  mlx_status_t status = mlx_text_take(&text, &url, NULL);
  mlx_text_clear(&text);
  MLX_TRY(status);
  status = get_pages(registry, url, add_referrers, out_index, &unsupported);
  return status || !unsupported ? status : tagged_referrers(registry, digest, out_index);
}

typedef struct tags {
  mlx_text_t *text;
  size_t *count;
} tags_t;

static mlx_status_t add_tags(void *user, const char *name, const char *json, size_t length) {
  tags_t *tags = user;
  MLX_TRY(mlx_oci_tags_read(name, json, length, tags->text, tags->count));
  return *tags->count <= MAX_LISTED
             ? NULL
             : mlx_error(MLX_INVALID_INPUT, "%s: the list has more than %d tags", name, MAX_LISTED);
}

mlx_status_t mlx_registry_tags(mlx_registry_t *registry, mlx_text_t *out_tags, size_t *out_count) {
  char *url;
  bool unsupported;
  tags_t tags = {.text = out_tags, .count = out_count};
  MLX_TRY(make_url(registry, &url, "tags", "list"));
  return get_pages(registry, url, add_tags, &tags, &unsupported);
}

// ----------------------------------------------------------------------------------------------------------
// Uploading blobs

typedef struct upload {
  mlx_registry_t *registry;
  mlx_http_t *http;
  const mlx_blob_t *blob;
  mlx_progress_t *progress;
  char location[MAX_URL];  // URL for the next piece
  uint64_t offset;         // bytes that the registry has
  uint64_t counted;        // bytes of this blob in |progress|
} upload_t;

static void count(upload_t *u, uint64_t bytes) {
  atomic_fetch_add(u->progress, bytes - u->counted);  // decreases if a piece is sent again
  u->counted = bytes;
}

static void on_sent(void *user, uint64_t bytes) {
  upload_t *u = user;
  count(u, u->offset + bytes);
}

static mlx_status_t has_blob(upload_t *u, bool *out_has) {
  char *url;
  mlx_http_response_t response = {0};
  MLX_TRY(make_url(u->registry, &url, "blobs", u->blob->descriptor.digest));
  const mlx_http_request_t request = {.method = "HEAD", .url = url};
  mlx_status_t status = send_request(u->registry, u->http, &request, &response);
  *out_has = !status && response.status == 200;
  if (!status && response.status != 200 && response.status != 404)
    status = check_response(u->registry, &request, &response);
  mlx_http_response_clear(&response);
  mlx_free(url);
  return status;
}

static mlx_status_t read_location(upload_t *u, const mlx_http_response_t *response) {
  char given[MAX_URL], *url = NULL;
  int length = -1;
  if (mlx_http_header(response, "Location", given, sizeof given))
    MLX_TRY(mlx_url_resolve(response->url, given, &url));
  if (url) length = snprintf(u->location, sizeof u->location, "%s", url);
  mlx_free(url);
  if (length > 0 && (size_t)length < sizeof u->location) return NULL;
  return mlx_error(MLX_INVALID_INPUT, "%s sent no valid upload URL for %s", u->registry->host,
                   u->blob->descriptor.digest);
}

static mlx_status_t begin_upload(upload_t *u) {
  char *url;
  mlx_http_response_t response = {0};
  u->offset = 0;
  MLX_TRY(make_url(u->registry, &url, "blobs", "uploads/"));
  const mlx_http_request_t request = {.method = "POST", .url = url, .max_bytes = 1 << 20};
  mlx_status_t status = send_request(u->registry, u->http, &request, &response);
  if (!status) status = check_response(u->registry, &request, &response);
  if (!status) status = read_location(u, &response);
  mlx_http_response_clear(&response);
  mlx_free(url);
  return status;
}

// Sends |length| bytes of the blob from the current offset on. *|out_transient| is true if a retry may
// succeed.
static mlx_status_t send_piece(upload_t *u, const char *method, const char *url, uint64_t length,
                               bool *out_transient) {
  char range[64];
  const mlx_blob_t *blob = u->blob;
  snprintf(range, sizeof range, "Content-Range: %llu-%llu", (unsigned long long)u->offset,
           (unsigned long long)(u->offset + length - 1));
  const char *const headers[] = {"Content-Type: application/octet-stream",
                                 strcmp(method, "PATCH") ? NULL : range, NULL};
  const mlx_http_request_t request = {
      .method = method,
      .url = url,
      .headers = headers,
      .no_retry = true,
      .max_bytes = 1 << 20,
      .body = blob->path || !blob->bytes ? NULL : (const char *)blob->bytes + u->offset,
      .body_path = length ? blob->path : NULL,
      .body_offset = u->offset,
      .body_length = length,
      .sent = on_sent,
      .user = u};
  mlx_http_response_t response = {0};
  mlx_status_t status = send_request(u->registry, u->http, &request, &response);
  *out_transient = response.transient || response.status == 416;
  if (!status) status = check_response(u->registry, &request, &response);
  if (!status && !strcmp(method, "PATCH")) status = read_location(u, &response);
  mlx_http_response_clear(&response);
  return status;
}

// Queries how many bytes the registry has. Starts a new upload if the registry no longer has this one.
static mlx_status_t resume_upload(upload_t *u) {
  mlx_http_response_t response = {0};
  char range[64];
  unsigned long long last;
  const mlx_http_request_t request = {.url = u->location, .max_bytes = 1 << 20};
  mlx_status_t status = send_request(u->registry, u->http, &request, &response);
  const bool known =
      !status && response.status == 204 && mlx_http_header(&response, "Range", range, sizeof range);
  if (known && sscanf(range, "%*[^-]-%llu", &last) == 1 && last < u->blob->descriptor.size)
    u->offset = last ? last + 1 : 0;
  if (known) status = read_location(u, &response);
  mlx_http_response_clear(&response);
  if (!known) {
    mlx_status_free(status);
    return begin_upload(u);
  }
  return status;
}

// A short blob is sent with the PUT request that names its digest. A long blob is sent as PATCH requests with
// offsets, so that a broken upload can resume; an empty PUT then names the digest.
static mlx_status_t send_all(upload_t *u, bool *out_transient) {
  const uint64_t size = u->blob->descriptor.size, chunk = u->registry->options.chunk_bytes;
  char url[MAX_URL + 128];
  *out_transient = false;
  while (size > chunk && u->offset < size) {
    const uint64_t before = u->offset, length = size - before < chunk ? size - before : chunk;
    snprintf(url, sizeof url, "%s", u->location);
    MLX_TRY(send_piece(u, "PATCH", url, length, out_transient));
    u->offset = before + length;
  }
  snprintf(url, sizeof url, "%s%cdigest=%s", u->location, strchr(u->location, '?') ? '&' : '?',
           u->blob->descriptor.digest);
  return send_piece(u, "PUT", url, size - u->offset, out_transient);
}

// After a failed request: does nothing if the registry has the blob (only the response was lost), resumes a
// long blob, or restarts a short one.
static mlx_status_t recover(upload_t *u, bool *out_has) {
  MLX_TRY(has_blob(u, out_has));
  if (*out_has) return NULL;
  return u->blob->descriptor.size > u->registry->options.chunk_bytes ? resume_upload(u) : begin_upload(u);
}

mlx_status_t mlx_registry_put_blob(mlx_registry_t *registry, mlx_http_t *http, const mlx_blob_t *blob,
                                   mlx_progress_t *progress) {
  upload_t u = {.registry = registry, .http = http, .blob = blob, .progress = progress};
  bool has, transient;
  const mlx_http_options_t *options = mlx_http_get_options(http);
  double pause = options->pause_seconds;
  uint64_t reached = 0;  // highest offset so far
  MLX_TRY(has_blob(&u, &has));
  if (!has) MLX_TRY(begin_upload(&u));
  for (int failed = 0; !has;) {
    mlx_status_t status = send_all(&u, &transient);
    if (!status) break;
    if (u.offset > reached)  // the try made progress: start counting failures again
      failed = 0, pause = options->pause_seconds, reached = u.offset;
    if (!transient || ++failed >= options->tries)
      return mlx_status_annotate(status, "%s",
                                 blob->descriptor.path[0] ? blob->descriptor.path : blob->descriptor.digest);
    mlx_status_free(status);
    MLX_TRY(mlx_http_pause(options, pause));
    pause *= 2;
    MLX_TRY(recover(&u, &has));
  }
  count(&u, blob->descriptor.size);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Downloading blobs

static mlx_status_t download_blob(mlx_http_t *http, const mlx_oci_descriptor_t *descriptor, const char *url,
                                  const char *authorization, const char *path, mlx_progress_t *progress) {
  mlx_download_t download = {.name = descriptor->path[0] ? descriptor->path : descriptor->digest,
                             .url = url,
                             .authorization = authorization,
                             .path = path,
                             .size = descriptor->size};
  snprintf(download.sha256, sizeof download.sha256, "%s", descriptor->digest + strlen("sha256:"));
  return mlx_download_file(http, &download, progress);
}

// A token may have expired during the download. A HEAD request gets a new one if so.
static mlx_status_t renew_token(mlx_registry_t *registry, mlx_http_t *http, const char *url, const char *used,
                                bool *out_renewed) {
  char *now = NULL;
  mlx_http_response_t response = {0};
  const mlx_http_request_t request = {.method = "HEAD", .url = url};
  mlx_status_t status = send_request(registry, http, &request, &response);
  mlx_http_response_clear(&response);
  if (!status) status = copy_authorization(registry, &now);
  *out_renewed = !status && now && (!used || strcmp(now, used));
  mlx_free(now);
  return status;
}

mlx_status_t mlx_registry_get_blob(mlx_registry_t *registry, mlx_http_t *http,
                                   const mlx_oci_descriptor_t *descriptor, const char *path,
                                   mlx_progress_t *progress) {
  char *url;
  bool retry = true;
  mlx_status_t status = NULL;
  MLX_TRY(make_url(registry, &url, "blobs", descriptor->digest));
  for (int renewals = 0; !status && retry; ++renewals) {
    char *authorization;
    retry = false;
    status = copy_authorization(registry, &authorization);
    if (!status) status = download_blob(http, descriptor, url, authorization, path, progress);
    if (mlx_status_code(status) == MLX_UNAVAILABLE && renewals < MAX_RENEWALS) {
      // Only the first failure is reported.
      mlx_status_free(renew_token(registry, http, url, authorization, &retry));
      if (retry) {
        mlx_status_free(status);
        status = NULL;
      }
    }
    mlx_free(authorization);
  }
  mlx_free(url);
  return status;
}
