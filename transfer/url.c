// Parses URLs with libcurl's parser. See url.h.
#include "transfer/url.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"

// Works on text that is not a valid URL, so it does not use the parser. The last '@' before the path ends the
// password.
mlx_display_url_t mlx_display_url(const char *url) {
  mlx_display_url_t out;
  const char *host = strstr(url, "://");
  host = host ? host + 3 : url;
  const char *rest = host;
  for (const char *c = host; c < host + strcspn(host, "/?#"); ++c) {
    if (*c == '@') rest = c + 1;
  }
  snprintf(out.text, sizeof out.text, "%.*s%.*s", (int)(host - url), url, (int)strcspn(rest, "?#"), rest);
  return out;
}

static mlx_status_t not_a_url(const char *url, const char *why) {
  return mlx_error(MLX_INVALID_INPUT, "'%s' is not a valid http or https URL (%s)", mlx_display_url(url).text,
                   why);
}

// Copies one part; "" if the URL does not have it. False if it does not fit.
static bool get_part(CURLU *parts, CURLUPart part, unsigned flags, char *out, size_t size) {
  char *text = NULL;
  *out = 0;
  if (curl_url_get(parts, part, &text, flags)) return true;
  const bool fits = strlen(text) < size;
  if (fits) memcpy(out, text, strlen(text) + 1);
  curl_free(text);
  return fits;
}

static bool has_part(CURLU *parts, CURLUPart part) {
  char *text = NULL;
  const bool has = !curl_url_get(parts, part, &text, 0);
  curl_free(text);
  return has;
}

static mlx_status_t read_parts(CURLU *parts, const char *url, mlx_url_t *out) {
  char scheme[16], port[8], explicit_port[8];
  const CURLUcode code = curl_url_set(parts, CURLUPART_URL, url, 0);
  if (code == CURLUE_OUT_OF_MEMORY) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory");
  if (code) return not_a_url(url, curl_url_strerror(code));
  if (!get_part(parts, CURLUPART_SCHEME, 0, scheme, sizeof scheme) ||
      (strcmp(scheme, "http") && strcmp(scheme, "https")))
    return not_a_url(url, "another scheme");
  if (!get_part(parts, CURLUPART_HOST, 0, out->host, sizeof out->host) || !out->host[0] ||
      !get_part(parts, CURLUPART_PORT, CURLU_DEFAULT_PORT, port, sizeof port) ||
      !get_part(parts, CURLUPART_PORT, 0, explicit_port, sizeof explicit_port))
    return not_a_url(url, "no valid host");
  out->is_https = !strcmp(scheme, "https");
  out->has_user = has_part(parts, CURLUPART_USER) || has_part(parts, CURLUPART_PASSWORD);
  out->port = (uint16_t)strtoul(port, NULL, 10);
  snprintf(out->place, sizeof out->place, "%s%s%.5s", out->host, explicit_port[0] ? ":" : "", explicit_port);
  return NULL;
}

mlx_status_t mlx_url_parse(const char *url, mlx_url_t *out_url) {
  *out_url = (mlx_url_t){0};
  CURLU *parts = curl_url();
  if (!parts) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory");
  mlx_status_t status = read_parts(parts, url, out_url);
  curl_url_cleanup(parts);
  return status;
}

bool mlx_url_is_local(const mlx_url_t *url) {
  static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    if (!strcasecmp(url->host, names[i])) return true;
  }
  return false;
}

bool mlx_url_same_server(const mlx_url_t *a, const mlx_url_t *b) {
  return a->is_https == b->is_https && a->port == b->port && !strcasecmp(a->host, b->host);
}

static mlx_status_t resolve(CURLU *parts, const char *from, const char *link, char **out_url) {
  mlx_url_t start, end;
  char *text = NULL;
  MLX_TRY(mlx_url_parse(from, &start));
  const bool is_known = strstr(link, "://") || (link[0] == '/' && link[1] != '/') || link[0] == '?';
  const bool resolved = is_known && !curl_url_set(parts, CURLUPART_URL, from, 0) &&
                        !curl_url_set(parts, CURLUPART_URL, link, 0) &&
                        !curl_url_get(parts, CURLUPART_URL, &text, 0);
  mlx_status_t status = resolved ? mlx_url_parse(text, &end) : not_a_url(link, "cannot be resolved");
  if (!status && start.is_https && !end.is_https) status = not_a_url(link, "changes from https to http");
  if (!status) status = mlx_copy_text(text, strlen(text), out_url);
  curl_free(text);
  return status;
}

mlx_status_t mlx_url_resolve(const char *from, const char *link, char **out_url) {
  *out_url = NULL;
  CURLU *parts = curl_url();
  if (!parts) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory");
  mlx_status_t status = resolve(parts, from, link, out_url);
  curl_url_cleanup(parts);
  return mlx_status_annotate(status, "%s: cannot follow the link to '%s'", mlx_display_url(from).text,
                             mlx_display_url(link).text);
}
