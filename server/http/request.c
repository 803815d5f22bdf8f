// llhttp's callbacks, and the checks that llhttp leaves to the server.
#include "server/http/request.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"
#include "server/http/target.h"

// Headers that a request may have only once: with two values, a proxy and this server could use different
// ones. llhttp checks Content-Length.
static const char *const singletons[] = {"host",   "authorization",     "content-type",
                                         "expect", "transfer-encoding", "x-api-key"};

static int refuse(mlx_http_parser_t *parser, int status, const char *reason) {
  if (!parser->refusal) {
    parser->refusal = status;
    parser->reason = reason;
  }
  return -1;
}

static int out_of_memory(mlx_http_parser_t *parser) {
  return refuse(parser, 503, "the server is out of memory");
}

static int refuse_status(mlx_http_parser_t *parser, mlx_status_t status) {
  if (mlx_status_code(status) == MLX_OUT_OF_MEMORY) {
    out_of_memory(parser);
  } else {
    snprintf(parser->reason_text, sizeof parser->reason_text, "%s", mlx_status_message(status));
    refuse(parser, 400, parser->reason_text);
  }
  mlx_status_free(status);
  return -1;
}

const char *mlx_exchange_request_header(const mlx_exchange_request_t *request, const char *name) {
  const char *at = request->headers.data, *end = at ? at + request->headers.length : NULL;
  while (at && at < end) {
    const char *value = at + strlen(at) + 1;
    if (!strcasecmp(at, name)) return value;
    at = value + strlen(value) + 1;
  }
  return NULL;
}

void mlx_exchange_request_drop_body(mlx_exchange_request_t *request) {
  if (request->budget) atomic_fetch_sub(&request->budget->used, request->body.length);
  request->budget = NULL;
  mlx_text_clear(&request->body);
}

void mlx_exchange_request_clear(mlx_exchange_request_t *request) {
  mlx_exchange_request_drop_body(request);
  mlx_free(request->path);
  mlx_free(request->query);
  mlx_text_clear(&request->headers);
  memset(request, 0, sizeof *request);
}

// Counts bytes of the request line, of headers and of everything else that is neither body nor framing.
static bool count_header_bytes(mlx_http_parser_t *parser, size_t length) {
  if (!mlx_add(parser->header_bytes, length, &parser->header_bytes) ||
      parser->header_bytes > parser->max_header_bytes) {
    refuse(parser, 431, "the headers of the request are too long");
    return false;
  }
  return true;
}

static int on_message_begin(llhttp_t *llhttp) {
  mlx_http_parser_t *parser = llhttp->data;
  parser->stage = MLX_STAGE_HEADERS;
  return 0;
}

static int on_url(llhttp_t *llhttp, const char *at, size_t length) {
  mlx_http_parser_t *parser = llhttp->data;
  if (!count_header_bytes(parser, length)) return -1;
  mlx_text_append(&parser->target, at, length);
  return parser->target.failed ? out_of_memory(parser) : 0;
}

static bool is_trailer(const mlx_http_parser_t *parser) { return parser->stage == MLX_STAGE_BODY; }

static int on_header_field(llhttp_t *llhttp, const char *at, size_t length) {
  mlx_http_parser_t *parser = llhttp->data;
  mlx_text_t *headers = &parser->request.headers;
  if (!count_header_bytes(parser, length)) return -1;
  if (is_trailer(parser)) return 0;  // trailers are not used: they could replace headers
  if (!parser->in_value && headers->length == parser->name_start && !count_header_bytes(parser, 4)) return -1;
  for (size_t i = 0; i < length; ++i) {
    const char lower = at[i] >= 'A' && at[i] <= 'Z' ? (char)(at[i] + 32) : at[i];
    mlx_text_append(headers, &lower, 1);
  }
  return headers->failed ? out_of_memory(parser) : 0;
}

static int on_header_field_complete(llhttp_t *llhttp) {
  mlx_http_parser_t *parser = llhttp->data;
  mlx_text_t *headers = &parser->request.headers;
  if (is_trailer(parser)) return 0;
  mlx_text_append(headers, "", 1);
  if (headers->failed) return out_of_memory(parser);
  for (size_t i = 0; i < sizeof singletons / sizeof *singletons; ++i) {
    if (strcmp(headers->data + parser->name_start, singletons[i])) continue;
    if (parser->seen & 1u << i) {
      snprintf(parser->reason_text, sizeof parser->reason_text, "the request has more than one %s header",
               singletons[i]);
      return refuse(parser, 400, parser->reason_text);
    }
    parser->seen |= 1u << i;
  }
  parser->in_value = true;
  return 0;
}

static int on_header_value(llhttp_t *llhttp, const char *at, size_t length) {
  mlx_http_parser_t *parser = llhttp->data;
  if (!count_header_bytes(parser, length)) return -1;
  if (is_trailer(parser)) return 0;
  mlx_text_append(&parser->request.headers, at, length);
  return parser->request.headers.failed ? out_of_memory(parser) : 0;
}

static int on_header_value_complete(llhttp_t *llhttp) {
  mlx_http_parser_t *parser = llhttp->data;
  mlx_text_t *headers = &parser->request.headers;
  if (is_trailer(parser)) return 0;
  while (headers->data[headers->length - 1] == ' ' || headers->data[headers->length - 1] == '\t')
    --headers->length;  // stops at the NUL after the name
  mlx_text_append(headers, "", 1);
  parser->in_value = false;
  parser->name_start = headers->length;
  return headers->failed ? out_of_memory(parser) : 0;
}

// A client sends any number of chunk extensions. They are ignored, but they must not be endless.
static int on_chunk_extension(llhttp_t *llhttp, const char *at, size_t length) {
  (void)at;
  return count_header_bytes(llhttp->data, length) ? 0 : -1;
}

static int check_host(mlx_http_parser_t *parser) {
  const char *host = mlx_exchange_request_header(&parser->request, "host");
  if (!host)
    return parser->request.is_http_1_0 ? 0 : refuse(parser, 400, "an HTTP/1.1 request needs a Host header");
  for (const char *c = host; *c; ++c) {
    if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 0x7f || strchr("/\\?#@<>\"", *c))
      return refuse(parser, 400, "the Host header is not a host");
  }
  return 0;
}

static int check_body_headers(mlx_http_parser_t *parser, const llhttp_t *llhttp) {
  const char *encoding = mlx_exchange_request_header(&parser->request, "transfer-encoding");
  const char *expect = mlx_exchange_request_header(&parser->request, "expect");
  if (encoding && parser->request.is_http_1_0)
    return refuse(parser, 400, "HTTP/1.0 has no Transfer-Encoding");
  if (encoding && strcasecmp(encoding, "chunked"))
    return refuse(parser, 501, "the only supported Transfer-Encoding is chunked");
  if ((llhttp->flags & F_CONTENT_LENGTH) && llhttp->content_length > parser->max_body_bytes)
    return refuse(parser, 413, "the body of the request is too long");
  if (!expect || parser->request.is_http_1_0) return 0;
  if (strcasecmp(expect, "100-continue"))
    return refuse(parser, 417, "the only supported Expect is 100-continue");
  parser->expects_continue = (llhttp->flags & F_CHUNKED) || llhttp->content_length > 0;
  return 0;
}

static int on_headers_complete(llhttp_t *llhttp) {
  mlx_http_parser_t *parser = llhttp->data;
  mlx_exchange_request_t *request = &parser->request;
  parser->stage = MLX_STAGE_BODY;
  request->method = llhttp_method_name(llhttp->method);
  request->is_head = llhttp->method == HTTP_HEAD;
  request->is_http_1_0 = llhttp->http_major == 1 && llhttp->http_minor == 0;
  request->keep_alive = llhttp_should_keep_alive(llhttp);
  if (llhttp->http_major != 1 || llhttp->http_minor > 1)
    return refuse(parser, 505, "the server speaks HTTP/1.0 and HTTP/1.1");
  if (llhttp->method == HTTP_CONNECT) return refuse(parser, 501, "the server is not a proxy");
  llhttp->upgrade = 0;  // a server may ignore a wish for another protocol
  mlx_status_t status = mlx_http_target_parse(parser->target.data ? parser->target.data : "",
                                              parser->target.length, &request->path, &request->query);
  if (status) return refuse_status(parser, status);
  if (check_host(parser) || check_body_headers(parser, llhttp)) return -1;
  return parser->expects_continue ? HPE_PAUSED : 0;
}

static bool take_budget(mlx_http_parser_t *parser, size_t length) {
  mlx_http_body_budget_t *budget = parser->budget;
  if (!budget) return true;
  if (atomic_fetch_add(&budget->used, length) + length > budget->max) {
    atomic_fetch_sub(&budget->used, length);
    return false;
  }
  parser->request.budget = budget;
  return true;
}

static int on_body(llhttp_t *llhttp, const char *at, size_t length) {
  mlx_http_parser_t *parser = llhttp->data;
  mlx_text_t *body = &parser->request.body;
  if (length > parser->max_body_bytes - body->length)
    return refuse(parser, 413, "the body of the request is too long");
  if (!take_budget(parser, length))
    return refuse(parser, 503, "the server holds too many request bodies; try again later");
  mlx_text_append(body, at, length);
  if (!body->failed) return 0;
  if (parser->budget) atomic_fetch_sub(&parser->budget->used, length);
  return out_of_memory(parser);
}

// Refuses a chunk that is too long before its bytes arrive.
static int on_chunk_header(llhttp_t *llhttp) {
  mlx_http_parser_t *parser = llhttp->data;
  if (llhttp->content_length > parser->max_body_bytes - parser->request.body.length)
    return refuse(parser, 413, "the body of the request is too long");
  return 0;
}

static int on_message_complete(llhttp_t *llhttp) {
  mlx_http_parser_t *parser = llhttp->data;
  parser->complete = true;
  return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
    .on_message_begin = on_message_begin,
    .on_url = on_url,
    .on_header_field = on_header_field,
    .on_header_field_complete = on_header_field_complete,
    .on_header_value = on_header_value,
    .on_header_value_complete = on_header_value_complete,
    .on_chunk_extension_name = on_chunk_extension,
    .on_chunk_extension_value = on_chunk_extension,
    .on_chunk_header = on_chunk_header,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

void mlx_http_parser_initialize(mlx_http_parser_t *parser, size_t max_header_bytes, size_t max_body_bytes) {
  memset(parser, 0, sizeof *parser);
  parser->max_header_bytes = max_header_bytes;
  parser->max_body_bytes = max_body_bytes;
  llhttp_init(&parser->llhttp, HTTP_REQUEST, &settings);
  parser->llhttp.data = parser;
}

void mlx_http_parser_clear(mlx_http_parser_t *parser) {
  mlx_exchange_request_clear(&parser->request);
  mlx_text_clear(&parser->target);
}

static void refuse_malformed(mlx_http_parser_t *parser, llhttp_errno_t code) {
  if (parser->refusal) return;  // a callback refused the request; it has the reason
  const char *reason = llhttp_get_error_reason(&parser->llhttp);
  const bool is_version = code == HPE_INVALID_VERSION && reason && strstr(reason, "HTTP version");
  if (is_version || code == HPE_PAUSED_H2_UPGRADE) {
    refuse(parser, 505, "the server speaks HTTP/1.0 and HTTP/1.1");
    return;
  }
  snprintf(parser->reason_text, sizeof parser->reason_text, "the request is not valid HTTP/1.1: %s",
           reason && *reason ? reason : llhttp_errno_name(code));
  refuse(parser, 400, parser->reason_text);
}

mlx_http_result_t mlx_http_parser_feed(mlx_http_parser_t *parser, const char *bytes, size_t length,
                                       size_t *out_used) {
  *out_used = 0;
  if (parser->refusal) return MLX_REQUEST_REFUSED;
  if (parser->complete) return MLX_REQUEST_COMPLETE;
  const llhttp_errno_t code = llhttp_execute(&parser->llhttp, bytes, length);
  if (code == HPE_OK) {
    *out_used = length;
    return MLX_REQUEST_MORE;
  }
  const char *position = llhttp_get_error_pos(&parser->llhttp);
  *out_used = position ? (size_t)(position - bytes) : 0;
  if (code == HPE_PAUSED && parser->complete) return MLX_REQUEST_COMPLETE;
  if (code == HPE_PAUSED && parser->expects_continue && !parser->refusal) {
    parser->expects_continue = false;
    llhttp_resume(&parser->llhttp);
    return MLX_REQUEST_CONTINUE;
  }
  refuse_malformed(parser, code);
  return MLX_REQUEST_REFUSED;
}

mlx_status_t mlx_http_parser_take(mlx_http_parser_t *parser, mlx_exchange_request_t *out_request) {
  mlx_exchange_request_t *request = &parser->request;
  mlx_status_t status = NULL;
  if (!request->method) request->method = "";
  if (!request->path) status = mlx_copy_text("", 0, &request->path);
  if (!status && !request->query) status = mlx_copy_text("", 0, &request->query);
  if (!status && !request->body.data) {
    mlx_text_append(&request->body, "", 0);
    status = mlx_text_finish(&request->body);
  }
  if (status) return status;
  // The last header of a refused request may be incomplete.
  request->headers.length = parser->name_start;
  if (request->headers.data) request->headers.data[parser->name_start] = 0;
  *out_request = *request;
  memset(request, 0, sizeof *request);
  mlx_text_clear(&parser->target);
  mlx_http_body_budget_t *budget = parser->budget;
  mlx_http_parser_initialize(parser, parser->max_header_bytes, parser->max_body_bytes);
  parser->budget = budget;
  return NULL;
}
