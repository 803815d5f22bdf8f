// A registry that speaks the OCI distribution API. Where it lacks the referrers API, a tag named after the
// subject holds the list.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/memory.h"
#include "transfer/credentials.h"
#include "transfer/download.h"
#include "transfer/settings.h"
#include "transfer/store.h"

#define CHUNK (64u << 20)
#define MAX_URL 4096
#define MAX_PAGES 256  // of a list
#define MAX_LISTED 10000
#define MAX_RENEWALS 8  // of a token, for one blob
#define ACCEPT "Accept: " MLX_OCI_MANIFEST ", " MLX_OCI_INDEX

struct mlx_registry {
  char *base;  // "https://HOST"
  char *host, *name;
  mlx_store_options_t options;
  mlx_http_t *http;   // for everything but blobs
  char *credentials;  // "Basic ..."; NULL: none
  char *identity;     // a token for token servers alone; NULL: none
  pthread_mutex_t lock;
  char *authorization;  // what the registry wants now; under the lock
};

// ----------------------------------------------------------------------------------------------------------
// Opening

mlx_status_t mlx_registry_open(const mlx_oci_ref_t *ref, const mlx_store_options_t *options,
                               mlx_registry_t **out_registry) {
  *out_registry = NULL;
  mlx_registry_t *registry;
  MLX_TRY(mlx_alloc(1, sizeof *registry, &registry));
  pthread_mutex_init(&registry->lock, NULL);
  registry->options = *options;
  if (!registry->options.chunk_bytes) registry->options.chunk_bytes = CHUNK;
  const size_t bare = ref->host[0] == '[' ? strcspn(ref->host, "]") + 1 : strcspn(ref->host, ":");
  const bool plain = options->plain_http || mlx_is_local_host(ref->host, bare);
  mlx_status_t status = mlx_format(&registry->base, "%s://%s", plain ? "http" : "https", ref->host);
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
// Asking, with a token where one is wanted

static mlx_status_t copy_authorization(mlx_registry_t *registry, char **out) {
  *out = NULL;
  pthread_mutex_lock(&registry->lock);
  const char *now = registry->authorization;
  mlx_status_t status = now ? mlx_copy_text(now, strlen(now), out) : NULL;
  pthread_mutex_unlock(&registry->lock);
  return status;
}

static mlx_status_t refused(const mlx_registry_t *registry, mlx_status_t status) {
  return mlx_status_hint(
      status,
      registry->credentials || registry->identity
          ? "docker's credentials for %s do not suffice: `docker login %s` as somebody who may"
          : "there are no credentials for %s: `docker login %s` makes them",
      registry->host, registry->host);
}

static void put_question(mlx_text_t *out, const mlx_oci_challenge_t *challenge) {
  mlx_text_puts(out, "service=");
  mlx_http_escape(out, challenge->service, false);
  mlx_text_puts(out, "&scope=");
  mlx_http_escape(out, challenge->scope, false);
}

// Credentials travel to the registry's own choice of a token server, but never unprotected to another
// machine. An identity token goes in the body of a request (OAuth 2's "refresh token"), a name and a password
// in its head.
static mlx_status_t get_token(mlx_registry_t *registry, mlx_http_t *http,
                              const mlx_oci_challenge_t *challenge, char **out_authorization) {
  mlx_text_t url = {0}, form = {0};
  mlx_http_response_t response = {0};
  char *token = NULL;
  bool known;
  MLX_TRY(mlx_status_annotate(mlx_http_judge(challenge->realm, &known), "the token server of %s",
                              registry->host));
  const bool identity = known && registry->identity;
  mlx_text_puts(&url, challenge->realm);
  if (identity) {
    mlx_text_puts(&form, "grant_type=refresh_token&client_id=mlxcel&");
    put_question(&form, challenge);
    mlx_text_puts(&form, "&refresh_token=");
    mlx_http_escape(&form, registry->identity, false);
  } else {
    mlx_text_puts(&url, strchr(challenge->realm, '?') ? "&" : "?");
    put_question(&url, challenge);
  }
  mlx_status_t status = mlx_text_finish(&url);
  if (!status) status = mlx_text_finish(&form);
  const char *const headers[] = {identity ? "Content-Type: application/x-www-form-urlencoded" : NULL, NULL};
  const mlx_http_request_t request = {.method = identity ? "POST" : NULL,
                                      .url = url.data,
                                      .authorization = known ? registry->credentials : NULL,
                                      .headers = headers,
                                      .body = form.data,
                                      .body_length = form.length,
                                      .max_bytes = 1 << 20};
  if (!status) status = mlx_http_send(http, &request, &response);
  if (!status) status = refused(registry, mlx_http_check(&request, &response));
  if (!status)
    status = mlx_oci_token_read(mlx_http_show(url.data).text, response.body.data ? response.body.data : "",
                                response.body.length, &token);
  if (!status) status = mlx_format(out_authorization, "Bearer %s", token);
  mlx_free(token);
  mlx_http_response_clear(&response);
  mlx_text_clear(&form);
  mlx_text_clear(&url);
  return status;
}

// Gets what a 401 asked for. *|out_can|: the request may be tried again with it.
static mlx_status_t authenticate(mlx_registry_t *registry, mlx_http_t *http,
                                 const mlx_http_response_t *response, bool *out_can) {
  char header[2048], *authorization = NULL;
  mlx_oci_challenge_t challenge;
  mlx_status_t status = NULL;
  *out_can = false;
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
  *out_can = true;
  return NULL;
}

// Sends once more after a 401. The token is for the registry alone: an upload may be sent to another host.
static mlx_status_t ask(mlx_registry_t *registry, mlx_http_t *http, const mlx_http_request_t *given,
                        mlx_http_response_t *response) {
  const size_t length = strlen(registry->base);
  const bool ours = !strncmp(given->url, registry->base, length) && given->url[length] == '/';
  for (int tries = 0;; ++tries) {
    mlx_http_request_t request = *given;
    char *authorization;
    MLX_TRY(copy_authorization(registry, &authorization));
    request.authorization = ours ? authorization : NULL;
    mlx_status_t status = mlx_http_send(http, &request, response);
    mlx_free(authorization);
    if (mlx_status_code(status) == MLX_UNAVAILABLE)
      status = mlx_status_hint(
          status, "check the address, and the network: proxies are those of http_proxy and https_proxy");
    if (status || response->status != 401 || !ours || tries == 1) return status;
    bool can;
    MLX_TRY(authenticate(registry, http, response, &can));
    if (!can) return NULL;
    mlx_http_response_clear(response);
  }
}

static mlx_status_t check(const mlx_registry_t *registry, const mlx_http_request_t *request,
                          const mlx_http_response_t *response) {
  mlx_status_t status = mlx_http_check(request, response);
  return response->status == 401 || response->status == 403 ? refused(registry, status) : status;
}

static mlx_status_t make_url(const mlx_registry_t *registry, char **out_url, const char *kind,
                             const char *what) {
  return mlx_format(out_url, "%s/v2/%s/%s/%s", registry->base, registry->name, kind, what);
}

// ----------------------------------------------------------------------------------------------------------
// Where an answer leads to

// A link that came with an answer, as an address. It may lead elsewhere, where no token goes along, but not
// out of protection.
static mlx_status_t resolve_link(const mlx_http_response_t *response, const char *link, char **out_url) {
  const char *from = response->url;
  const bool secure = !strncasecmp(from, "https://", 8);
  const size_t host = strlen(secure ? "https://" : "http://");
  *out_url = NULL;
  if (link[0] == '/' && link[1] != '/')
    return mlx_format(out_url, "%.*s%s", (int)(host + strcspn(from + host, "/?#")), from, link);
  if (link[0] == '?') return mlx_format(out_url, "%.*s%s", (int)strcspn(from, "?#"), from, link);
  if (!strncasecmp(link, "https://", 8) || (!secure && !strncasecmp(link, "http://", 7)))
    return mlx_copy_text(link, strlen(link), out_url);
  return mlx_error(MLX_INVALID_INPUT, "%s leads on to '%s', which cannot be followed",
                   mlx_http_show(from).text, mlx_http_show(link).text);
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
  mlx_status_t status = ask(registry, registry->http, &request, &response);
  if (!status) status = check(registry, &request, &response);
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
  mlx_status_t status = ask(registry, registry->http, &request, &response);
  if (!status) status = check(registry, &request, &response);
  if (!status) *out_knows_subject = mlx_http_header(&response, "OCI-Subject", subject, sizeof subject);
  mlx_http_response_clear(&response);
  mlx_free(url);
  return status;
}

static void referrers_tag(const char *digest, char out_tag[MLX_OCI_DIGEST]) {
  snprintf(out_tag, MLX_OCI_DIGEST, "sha256-%s", digest + strlen("sha256:"));
}

// The list that a registry without the referrers API keeps under a tag, as text; "" where there is none.
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
                               const mlx_oci_descriptor_t *described) {
  char tag[MLX_OCI_DIGEST];
  bool unused;
  mlx_text_t old = {0}, json = {0};
  referrers_tag(subject, tag);
  mlx_status_t status = get_tagged(registry, tag, &old);
  if (!status && !old.length) mlx_oci_index_write(NULL, 0, &old);
  if (!status) status = mlx_text_finish(&old);
  if (!status) status = mlx_oci_index_add(tag, old.data, old.length, described, NULL, &json);
  if (!status) status = put_json(registry, tag, MLX_OCI_INDEX, json.data, json.length, &unused);
  mlx_text_clear(&old);
  mlx_text_clear(&json);
  return status;
}

mlx_status_t mlx_registry_put_document(mlx_registry_t *registry, const char *reference,
                                       const mlx_oci_descriptor_t *described, const char *json, size_t length,
                                       const char *subject) {
  bool knows_subject;
  MLX_TRY(put_json(registry, reference, described->media_type, json, length, &knows_subject));
  return subject && !knows_subject ? add_to_tag(registry, subject, described) : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Lists, a page at a time

typedef mlx_status_t (*page_fn_t)(void *user, const char *name, const char *json, size_t length);

typedef struct pages {
  mlx_registry_t *registry;
  char *urls[MAX_PAGES];  // asked so far and the next one; owned
  size_t count;
  bool lacks;  // the registry has no such list
} pages_t;

static mlx_status_t find_next(pages_t *pages, const mlx_http_response_t *response) {
  char header[MAX_URL], link[MAX_URL], *url;
  if (!mlx_http_header(response, "Link", header, sizeof header) ||
      !mlx_oci_next_link(header, link, sizeof link))
    return NULL;
  MLX_TRY(resolve_link(response, link, &url));
  mlx_status_t status = NULL;
  for (size_t i = 0; i < pages->count && !status; ++i) {
    if (!strcmp(pages->urls[i], url))
      status = mlx_error(MLX_INVALID_INPUT, "%s: the pages of a list go round in a circle",
                         mlx_http_show(url).text);
  }
  if (!status && pages->count == MAX_PAGES)
    status =
        mlx_error(MLX_INVALID_INPUT, "%s: a list has more than %d pages", mlx_http_show(url).text, MAX_PAGES);
  if (status) {
    mlx_free(url);
    return status;
  }
  pages->urls[pages->count++] = url;
  return NULL;
}

// 404 is what the specification has for it; the others are how registries from before it say so.
static bool is_lacking(long status) {
  return status == 404 || status == 405 || status == 400 || status == 501;
}

static mlx_status_t get_page(pages_t *pages, page_fn_t page, void *user) {
  mlx_http_response_t response = {0};
  const char *url = pages->urls[pages->count - 1];
  const mlx_http_request_t request = {.url = url, .max_bytes = MLX_OCI_MAX_DOCUMENT};
  mlx_status_t status = ask(pages->registry, pages->registry->http, &request, &response);
  pages->lacks = !status && pages->count == 1 && is_lacking(response.status);
  if (!status && !pages->lacks) status = check(pages->registry, &request, &response);
  if (!status && !pages->lacks)
    status = page(user, mlx_http_show(url).text, response.body.data ? response.body.data : "",
                  response.body.length);
  if (!status && !pages->lacks) status = find_next(pages, &response);
  mlx_http_response_clear(&response);
  return status;
}

// Gives |page| every page of the list at |url|, which it takes over. *|out_lacks|: there is no such list.
static mlx_status_t get_pages(mlx_registry_t *registry, char *url, page_fn_t page, void *user,
                              bool *out_lacks) {
  pages_t pages = {.registry = registry, .urls = {url}, .count = 1};
  mlx_status_t status = NULL;
  for (size_t got = 0; got < pages.count && !status; ++got) status = get_page(&pages, page, user);
  *out_lacks = pages.lacks;
  for (size_t i = 0; i < pages.count; ++i) mlx_free(pages.urls[i]);
  return status;
}

static mlx_status_t take_referrers(void *user, const char *name, const char *json, size_t length) {
  mlx_oci_document_t *all = user, page;
  MLX_TRY(mlx_oci_document_read(name, json, length, &page));
  mlx_status_t status =
      page.count > MAX_LISTED - all->count
          ? mlx_error(MLX_INVALID_INPUT, "%s: more than %d manifests are listed", name, MAX_LISTED)
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
  bool lacks;
  mlx_text_printf(&text, "%s/v2/%s/referrers/%s?artifactType=", registry->base, registry->name, digest);
  mlx_http_escape(&text, artifact_type, false);
  mlx_status_t status = mlx_text_take(&text, &url, NULL);
  mlx_text_clear(&text);
  MLX_TRY(status);
  status = get_pages(registry, url, take_referrers, out_index, &lacks);
  return status || !lacks ? status : tagged_referrers(registry, digest, out_index);
}

typedef struct tags {
  mlx_text_t *text;
  size_t *count;
} tags_t;

static mlx_status_t take_tags(void *user, const char *name, const char *json, size_t length) {
  tags_t *tags = user;
  MLX_TRY(mlx_oci_tags_read(name, json, length, tags->text, tags->count));
  return *tags->count <= MAX_LISTED
             ? NULL
             : mlx_error(MLX_INVALID_INPUT, "%s: there are more than %d tags", name, MAX_LISTED);
}

mlx_status_t mlx_registry_tags(mlx_registry_t *registry, mlx_text_t *out_tags, size_t *out_count) {
  char *url;
  bool lacks;
  tags_t tags = {.text = out_tags, .count = out_count};
  MLX_TRY(make_url(registry, &url, "tags", "list"));
  return get_pages(registry, url, take_tags, &tags, &lacks);
}

// ----------------------------------------------------------------------------------------------------------
// Blobs out

typedef struct upload {
  mlx_registry_t *registry;
  mlx_http_t *http;
  const mlx_blob_t *blob;
  mlx_tally_t *tally;
  char location[MAX_URL];  // where the next piece goes
  uint64_t offset;         // what the registry has
  uint64_t counted;        // what the tally has of this blob
} upload_t;

static void count(upload_t *u, uint64_t bytes) {
  atomic_fetch_add(u->tally, bytes - u->counted);  // goes back where a piece is sent again
  u->counted = bytes;
}

static void on_sent(void *user, uint64_t bytes) {
  upload_t *u = user;
  count(u, u->offset + bytes);
}

static mlx_status_t has_blob(upload_t *u, bool *out_has) {
  char *url;
  mlx_http_response_t response = {0};
  MLX_TRY(make_url(u->registry, &url, "blobs", u->blob->described.digest));
  const mlx_http_request_t request = {.method = "HEAD", .url = url};
  mlx_status_t status = ask(u->registry, u->http, &request, &response);
  *out_has = !status && response.status == 200;
  if (!status && response.status != 200 && response.status != 404)
    status = check(u->registry, &request, &response);
  mlx_http_response_clear(&response);
  mlx_free(url);
  return status;
}

static mlx_status_t take_location(upload_t *u, const mlx_http_response_t *response) {
  char given[MAX_URL], *url = NULL;
  int length = -1;
  if (mlx_http_header(response, "Location", given, sizeof given))
    MLX_TRY(resolve_link(response, given, &url));
  if (url) length = snprintf(u->location, sizeof u->location, "%s", url);
  mlx_free(url);
  if (length > 0 && (size_t)length < sizeof u->location) return NULL;
  return mlx_error(MLX_INVALID_INPUT, "%s does not say where to send %s", u->registry->host,
                   u->blob->described.digest);
}

static mlx_status_t begin_upload(upload_t *u) {
  char *url;
  mlx_http_response_t response = {0};
  u->offset = 0;
  MLX_TRY(make_url(u->registry, &url, "blobs", "uploads/"));
  const mlx_http_request_t request = {.method = "POST", .url = url, .max_bytes = 1 << 20};
  mlx_status_t status = ask(u->registry, u->http, &request, &response);
  if (!status) status = check(u->registry, &request, &response);
  if (!status) status = take_location(u, &response);
  mlx_http_response_clear(&response);
  mlx_free(url);
  return status;
}

// One request with |length| bytes of the blob from the offset on. *|out_passing|: it may go better later.
static mlx_status_t send_piece(upload_t *u, const char *method, const char *url, uint64_t length,
                               bool *out_passing) {
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
      .once = true,
      .max_bytes = 1 << 20,
      .body = blob->path || !blob->bytes ? NULL : (const char *)blob->bytes + u->offset,
      .body_path = length ? blob->path : NULL,
      .body_offset = u->offset,
      .body_length = length,
      .sent = on_sent,
      .user = u};
  mlx_http_response_t response = {0};
  mlx_status_t status = ask(u->registry, u->http, &request, &response);
  *out_passing = response.passing || response.status == 416;
  if (!status) status = check(u->registry, &request, &response);
  if (!status && !strcmp(method, "PATCH")) status = take_location(u, &response);
  mlx_http_response_clear(&response);
  return status;
}

// Asks how much arrived. A registry that does not know the upload any more gets it anew.
static mlx_status_t look_where_it_is(upload_t *u) {
  mlx_http_response_t response = {0};
  char range[64];
  unsigned long long last;
  const mlx_http_request_t request = {.url = u->location, .max_bytes = 1 << 20};
  mlx_status_t status = ask(u->registry, u->http, &request, &response);
  const bool known =
      !status && response.status == 204 && mlx_http_header(&response, "Range", range, sizeof range);
  if (known && sscanf(range, "%*[^-]-%llu", &last) == 1 && last < u->blob->described.size)
    u->offset = last ? last + 1 : 0;
  if (known) status = take_location(u, &response);
  mlx_http_response_clear(&response);
  if (!known) {
    mlx_status_free(status);
    return begin_upload(u);
  }
  return status;
}

// A short blob goes with the request that names it. A long one goes in pieces that say where they belong, so
// that one which broke can go on; the name follows by itself.
static mlx_status_t send_all(upload_t *u, bool *out_passing) {
  const uint64_t size = u->blob->described.size, chunk = u->registry->options.chunk_bytes;
  char url[MAX_URL + 128];
  *out_passing = false;
  while (size > chunk && u->offset < size) {
    const uint64_t before = u->offset, length = size - before < chunk ? size - before : chunk;
    snprintf(url, sizeof url, "%s", u->location);
    MLX_TRY(send_piece(u, "PATCH", url, length, out_passing));
    u->offset = before + length;
  }
  snprintf(url, sizeof url, "%s%cdigest=%s", u->location, strchr(u->location, '?') ? '&' : '?',
           u->blob->described.digest);
  return send_piece(u, "PUT", url, size - u->offset, out_passing);
}

// After a break: nothing to do where only the answer was lost, the rest of a long blob, all of a short one.
static mlx_status_t recover(upload_t *u, bool *out_has) {
  MLX_TRY(has_blob(u, out_has));
  if (*out_has) return NULL;
  return u->blob->described.size > u->registry->options.chunk_bytes ? look_where_it_is(u) : begin_upload(u);
}

mlx_status_t mlx_registry_put_blob(mlx_registry_t *registry, mlx_http_t *http, const mlx_blob_t *blob,
                                   mlx_tally_t *tally) {
  upload_t u = {.registry = registry, .http = http, .blob = blob, .tally = tally};
  bool has, passing;
  const mlx_http_options_t *options = mlx_http_settings(http);
  double pause = options->pause_seconds;
  uint64_t reached = 0;  // the most that the registry ever had
  MLX_TRY(has_blob(&u, &has));
  if (!has) MLX_TRY(begin_upload(&u));
  for (int failed = 0; !has;) {
    mlx_status_t status = send_all(&u, &passing);
    if (!status) break;
    if (u.offset > reached)
      failed = 0, pause = options->pause_seconds,
      reached = u.offset;  // a try that brought something does not count
    if (!passing || ++failed >= options->tries)
      return mlx_status_annotate(status, "%s",
                                 blob->described.path[0] ? blob->described.path : blob->described.digest);
    mlx_status_free(status);
    MLX_TRY(mlx_http_pause(options, pause));
    pause *= 2;
    MLX_TRY(recover(&u, &has));
  }
  count(&u, blob->described.size);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Blobs in

static mlx_status_t download_blob(mlx_http_t *http, const mlx_oci_descriptor_t *described, const char *url,
                                  const char *authorization, const char *path, mlx_tally_t *tally) {
  mlx_download_t download = {.name = described->path[0] ? described->path : described->digest,
                             .url = url,
                             .authorization = authorization,
                             .path = path,
                             .size = described->size};
  snprintf(download.sha256, sizeof download.sha256, "%s", described->digest + strlen("sha256:"));
  return mlx_download_file(http, &download, tally);
}

// A token may have run out on the way: asks for the blob's head, which gets a new one where that is so.
static mlx_status_t renew_token(mlx_registry_t *registry, mlx_http_t *http, const char *url, const char *used,
                                bool *out_renewed) {
  char *now = NULL;
  mlx_http_response_t response = {0};
  const mlx_http_request_t request = {.method = "HEAD", .url = url};
  mlx_status_t status = ask(registry, http, &request, &response);
  mlx_http_response_clear(&response);
  if (!status) status = copy_authorization(registry, &now);
  *out_renewed = !status && now && (!used || strcmp(now, used));
  mlx_free(now);
  return status;
}

mlx_status_t mlx_registry_get_blob(mlx_registry_t *registry, mlx_http_t *http,
                                   const mlx_oci_descriptor_t *described, const char *path,
                                   mlx_tally_t *tally) {
  char *url;
  bool again = true;
  mlx_status_t status = NULL;
  MLX_TRY(make_url(registry, &url, "blobs", described->digest));
  for (int renewals = 0; !status && again; ++renewals) {
    char *authorization;
    again = false;
    status = copy_authorization(registry, &authorization);
    if (!status) status = download_blob(http, described, url, authorization, path, tally);
    if (mlx_status_code(status) == MLX_UNAVAILABLE && renewals < MAX_RENEWALS) {
      mlx_status_t lost = renew_token(registry, http, url, authorization, &again);
      mlx_status_free(lost);  // the first failure is the one to tell
      if (again) {
        mlx_status_free(status);
        status = NULL;
      }
    }
    mlx_free(authorization);
  }
  mlx_free(url);
  return status;
}
