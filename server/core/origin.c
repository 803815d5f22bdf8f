// Checks the headers Host, Origin, Sec-Fetch-Site and Content-Type.
#include "server/core/origin.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <uv.h>

#include "base/text.h"

#define MAX_NAME 256  // bytes of a host

// ----------------------------------------------------------------------------------------------------------
// Hosts

typedef struct host {
  char name[MAX_NAME];  // without brackets and without a final dot
  char port[8];         // "": none
  bool is_v6;           // it has brackets
} host_t;

// Reads "name:port", "name" or "[::1]:port". False if it is none of them.
static bool parse_host(const char *text, host_t *out) {
  *out = (host_t){.is_v6 = text[0] == '['};
  if (out->is_v6) ++text;
  size_t length = strcspn(text, out->is_v6 ? "]" : ":");
  const char *end = text + length + (out->is_v6 && text[length]);
  if (out->is_v6 && !text[length]) return false;
  if (length && text[length - 1] == '.') --length;
  if (!length || length >= sizeof out->name) return false;
  memcpy(out->name, text, length);
  if (!*end) return true;
  const size_t digits = strspn(end + 1, "0123456789");
  if (*end != ':' || end[1 + digits] || digits >= sizeof out->port) return false;
  memcpy(out->port, end + 1, digits);
  return true;
}

static bool is_address(const host_t *host) {
  unsigned char bytes[16];
  return !uv_inet_pton(host->is_v6 ? AF_INET6 : AF_INET, host->name, bytes);
}

// True if an item of |list|, separated by commas, is |name|. An item ".example.com" has all names below it.
static bool has_name(const char *list, const char *name) {
  char item[MAX_NAME];
  for (const char *at = list; *at;) {
    at += strspn(at, ", ");
    const size_t size = strcspn(at, ", ");
    snprintf(item, sizeof item, "%.*s", (int)(size < sizeof item ? size : 0), at);
    if (!strcmp(item, "*") || (*item && !strcasecmp(item, name))) return true;
    if (*item == '.' && mlx_ends_with_nocase(name, item)) return true;
    at += size;
  }
  return false;
}

static bool is_this_server(const mlx_site_t *site, const char *text) {
  host_t host, own;
  if (!parse_host(text, &host)) return false;
  if (is_address(&host) || !strcasecmp(host.name, "localhost") ||
      (*host.name != '.' && mlx_ends_with_nocase(host.name, ".localhost")))
    return true;
  if (site->host && parse_host(site->host, &own) && !strcasecmp(own.name, host.name)) return true;
  return site->allowed_hosts && has_name(site->allowed_hosts, host.name);
}

// ----------------------------------------------------------------------------------------------------------
// Origins

// True if |origin| is one of the origins in |list|.
static bool has_origin(const char *list, const char *origin) {
  const size_t length = strlen(origin);
  for (const char *at = list; *at;) {
    const size_t size = strcspn(at, ",");
    if (size == length && !strncmp(at, origin, length)) return true;
    at += size;
    at += strspn(at, ", ");
  }
  return false;
}

static bool allows_all(const mlx_site_t *site) { return site->cors && !strcmp(site->cors, "*"); }

static const char *default_port(bool is_https) { return is_https ? "443" : "80"; }

// True if a page of |origin| came from |host|. A proxy may speak TLS in front of the server, so both schemes
// count.
static bool is_same_origin(const char *origin, const char *host_text) {
  const bool is_https = !strncmp(origin, "https://", 8);
  host_t page, host;
  if (!is_https && strncmp(origin, "http://", 7)) return false;
  if (!parse_host(origin + (is_https ? 8 : 7), &page) || !host_text || !parse_host(host_text, &host))
    return false;
  const char *page_port = *page.port ? page.port : default_port(is_https);
  const char *host_port = *host.port ? host.port : default_port(is_https);
  return page.is_v6 == host.is_v6 && !strcasecmp(page.name, host.name) && !strcmp(page_port, host_port);
}

// A request without Origin that a browser sent for a page of another site: an image, a script or a form. A
// link to the chat page is fine.
static bool is_foreign_fetch(const mlx_exchange_t *exchange) {
  const char *site = mlx_exchange_header(exchange, "sec-fetch-site");
  const char *mode = mlx_exchange_header(exchange, "sec-fetch-mode");
  const char *method = mlx_exchange_method(exchange);
  if (!site || (strcmp(site, "cross-site") && strcmp(site, "same-site"))) return false;
  return !mode || strcmp(mode, "navigate") || (strcmp(method, "GET") && strcmp(method, "HEAD"));
}

// ----------------------------------------------------------------------------------------------------------
// Bodies

// True if |given| is |type|, with or without parameters.
static bool is_type(const char *given, const char *type) {
  const size_t length = strlen(type);
  return !strncasecmp(given, type, length) && (!given[length] || strchr("; \t", given[length]));
}

// `curl -d` sends the type of a form, and some clients send none. Both are fine if no browser sent them.
static bool is_json(const mlx_exchange_t *exchange) {
  const char *type = mlx_exchange_header(exchange, "content-type");
  const bool is_browser =
      mlx_exchange_header(exchange, "origin") || mlx_exchange_header(exchange, "sec-fetch-site");
  if (type && is_type(type, "application/json")) return true;
  return !is_browser && (!type || is_type(type, "application/x-www-form-urlencoded"));
}

// ----------------------------------------------------------------------------------------------------------

static mlx_status_t check_origin(const mlx_site_t *site, const mlx_exchange_t *exchange) {
  const char *origin = mlx_exchange_header(exchange, "origin");
  if (allows_all(site)) return NULL;
  if (!origin) {
    if (!is_foreign_fetch(exchange)) return NULL;
    return mlx_status_hint(mlx_error(MLX_USAGE, "a page of another site may not use this server"),
                           "start the server with --cors ORIGIN to allow pages of an origin");
  }
  if (site->cors && has_origin(site->cors, origin)) return NULL;
  if (is_same_origin(origin, mlx_exchange_header(exchange, "host"))) return NULL;
  return mlx_status_hint(mlx_error(MLX_USAGE, "pages of the origin '%.200s' may not use this server", origin),
                         "start the server with --cors '%.200s' to allow them", origin);
}

mlx_status_t mlx_origin_check(const mlx_site_t *site, const mlx_exchange_t *exchange,
                              mlx_failure_kind_t *out_kind) {
  const char *host = mlx_exchange_header(exchange, "host");
  size_t length;
  *out_kind = MLX_FAILURE_FORBIDDEN;
  if (site->key_count) return NULL;
  // Browsers cannot reach a Unix socket; its clients send any name.
  if (host && site->host && !is_this_server(site, host))
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "'%.200s' is not a name of this server", host),
        "use an IP address or localhost, or start the server with --allowed-hosts '%.200s'", host);
  MLX_TRY(check_origin(site, exchange));
  mlx_exchange_body(exchange, &length);
  if (!length || is_json(exchange)) return NULL;
  *out_kind = MLX_FAILURE_TYPE;
  return mlx_status_hint(mlx_error(MLX_USAGE, "the body of a request must be JSON"),
                         "send the header 'Content-Type: application/json'");
}

void mlx_origin_allow(const mlx_site_t *site, mlx_exchange_t *exchange) {
  const char *origin = mlx_exchange_header(exchange, "origin");
  if (!site->cors || !origin) return;
  const bool any = allows_all(site);
  if (!any && !has_origin(site->cors, origin)) return;
  mlx_exchange_set_header(exchange, "Access-Control-Allow-Origin", any ? "*" : origin);
  if (!any) mlx_exchange_set_header(exchange, "Vary", "Origin");
}

void mlx_origin_respond_options(const mlx_site_t *site, mlx_exchange_t *exchange) {
  const char *headers = mlx_exchange_header(exchange, "access-control-request-headers");
  mlx_exchange_set_header(exchange, "Allow", "GET, HEAD, POST, DELETE, OPTIONS");
  if (site->cors) {
    mlx_exchange_set_header(exchange, "Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE, OPTIONS");
    mlx_exchange_set_header(exchange, "Access-Control-Allow-Headers",
                            headers ? headers : "Authorization, Content-Type, X-Api-Key");
    mlx_exchange_set_header(exchange, "Access-Control-Max-Age", "86400");
  }
  mlx_exchange_respond(exchange, 204, "text/plain", "", 0);
}
