// Writes the head of a response, chunks and error bodies.
#include "server/http/response.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/json_writer.h"
#include "server/http/http.h"

static const struct {
  int status;
  const char *reason, *code;  // |code| is for the error object of clients
} statuses[] = {
    {100, "Continue", NULL},
    {200, "OK", NULL},
    {201, "Created", NULL},
    {202, "Accepted", NULL},
    {204, "No Content", NULL},
    {301, "Moved Permanently", NULL},
    {302, "Found", NULL},
    {303, "See Other", NULL},
    {304, "Not Modified", NULL},
    {307, "Temporary Redirect", NULL},
    {308, "Permanent Redirect", NULL},
    {400, "Bad Request", "bad_request"},
    {401, "Unauthorized", "unauthorized"},
    {403, "Forbidden", "forbidden"},
    {404, "Not Found", "not_found"},
    {405, "Method Not Allowed", "method_not_allowed"},
    {406, "Not Acceptable", "not_acceptable"},
    {408, "Request Timeout", "request_timeout"},
    {409, "Conflict", "conflict"},
    {411, "Length Required", "length_required"},
    {412, "Precondition Failed", "precondition_failed"},
    {413, "Content Too Large", "content_too_large"},
    {414, "URI Too Long", "uri_too_long"},
    {415, "Unsupported Media Type", "unsupported_media_type"},
    {417, "Expectation Failed", "expectation_failed"},
    {422, "Unprocessable Content", "unprocessable_content"},
    {429, "Too Many Requests", "too_many_requests"},
    {431, "Request Header Fields Too Large", "headers_too_large"},
    {500, "Internal Server Error", "internal_error"},
    {501, "Not Implemented", "not_implemented"},
    {502, "Bad Gateway", "bad_gateway"},
    {503, "Service Unavailable", "unavailable"},
    {504, "Gateway Timeout", "gateway_timeout"},
    {505, "HTTP Version Not Supported", "http_version_not_supported"},
    {507, "Insufficient Storage", "insufficient_storage"},
};

static size_t find_status(int status) {
  size_t i = 0;
  while (i < sizeof statuses / sizeof *statuses && statuses[i].status != status) ++i;
  return i;
}

static const char *reason_of(int status) {
  const size_t i = find_status(status);
  return i < sizeof statuses / sizeof *statuses ? statuses[i].reason : "Unknown";
}

static void write_date(mlx_text_t *out) {
  static const char *const days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                       "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const time_t now = time(NULL);
  struct tm parts;
  if (!gmtime_r(&now, &parts)) return;
  mlx_text_printf(out, "Date: %s, %02d %s %d %02d:%02d:%02d GMT\r\n", days[parts.tm_wday], parts.tm_mday,
                  months[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

void mlx_http_response_write_head(const mlx_http_response_head_t *head, mlx_text_t *out) {
  mlx_text_printf(out, "HTTP/1.%d %d %s\r\nServer: mlxcel\r\n", head->is_http_1_0 ? 0 : 1, head->status,
                  reason_of(head->status));
  write_date(out);
  if (head->content_type) mlx_text_printf(out, "Content-Type: %s\r\n", head->content_type);
  if (head->has_length) mlx_text_printf(out, "Content-Length: %zu\r\n", head->length);
  if (head->is_chunked) mlx_text_puts(out, "Transfer-Encoding: chunked\r\n");
  if (!head->keep_alive)
    mlx_text_puts(out, "Connection: close\r\n");
  else if (head->is_http_1_0)
    mlx_text_puts(out, "Connection: keep-alive\r\n");
  mlx_text_append(out, head->fields->data, head->fields->length);
  mlx_text_puts(out, "\r\n");
}

void mlx_http_response_write_chunk(const char *bytes, size_t length, mlx_text_t *out) {
  if (!length) return;  // a chunk of length 0 would end the response
  mlx_text_printf(out, "%zx\r\n", length);
  mlx_text_append(out, bytes, length);
  mlx_text_puts(out, "\r\n");
}

bool mlx_http_response_has_no_body(int status) { return status < 200 || status == 204 || status == 304; }

const char *mlx_http_status_name(int status) {
  const size_t i = find_status(status);
  return i < sizeof statuses / sizeof *statuses ? statuses[i].code : NULL;
}

void mlx_http_response_write_error(int status, const char *message, mlx_text_t *out) {
  const char *code = mlx_http_status_name(status);
  mlx_json_writer_t json = {.out = out};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_begin_object(&json, "error", MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "message", message);
  mlx_json_put_text(&json, "type", status < 500 ? "invalid_request_error" : "server_error");
  mlx_json_put_text(&json, "code", code ? code : "error");
  mlx_json_end(&json);
  mlx_json_end(&json);
}

// RFC 9110's token.
static bool is_token(const char *name) {
  if (!*name) return false;
  for (const char *c = name; *c; ++c) {
    const bool is_letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
    if (!is_letter && !strchr("!#$%&'*+-.^_`|~", *c)) return false;
  }
  return true;
}

static void remove_field(mlx_text_t *fields, const char *name) {
  const size_t name_length = strlen(name);
  char *at = fields->data;
  while (at && at < fields->data + fields->length) {
    char *end = strstr(at, "\r\n");
    if (!end) return;
    end += 2;
    if (!strncasecmp(at, name, name_length) && at[name_length] == ':') {
      memmove(at, end, (size_t)(fields->data + fields->length - end) + 1);
      fields->length -= (size_t)(end - at);
    } else {
      at = end;
    }
  }
}

bool mlx_http_response_set_field(mlx_text_t *fields, const char *name, const char *value) {
  static const char *const reserved[] = {
      "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Date", "Server"};
  if (!is_token(name)) return false;
  for (size_t i = 0; i < sizeof reserved / sizeof *reserved; ++i) {
    if (!strcasecmp(name, reserved[i])) return false;
  }
  remove_field(fields, name);
  mlx_text_printf(fields, "%s: ", name);
  for (const char *c = value; *c; ++c)
    mlx_text_append(fields, (unsigned char)*c < ' ' || *c == 0x7f ? " " : c, 1);
  mlx_text_puts(fields, "\r\n");
  return true;
}
