// Splits and decodes the target of a request.
#include "server/http/target.h"

#include <string.h>
#include <strings.h>

#include "base/encoding.h"
#include "base/memory.h"
#include "base/text.h"

// Checks that the text is UTF-8 without control characters.
static mlx_status_t check_text(const char *text, size_t length, const char *what) {
  for (size_t i = 0; i < length;) {
    const int step = mlx_utf8_length(text + i, length - i);
    if (step <= 0) return mlx_error(MLX_INVALID_INPUT, "the %s of the URL is not UTF-8", what);
    if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
      return mlx_error(MLX_INVALID_INPUT, "the %s of the URL contains a control character", what);
    i += (size_t)step;
  }
  return NULL;
}

// Decodes in place and returns the new length.
static mlx_status_t decode(char *path, size_t length, size_t *out_length) {
  size_t to = 0;
  for (size_t from = 0; from < length; ++from, ++to) {
    path[to] = path[from];
    if (path[from] != '%') continue;
    const int high = from + 2 < length ? mlx_hex_digit(path[from + 1]) : -1;
    const int low = high >= 0 ? mlx_hex_digit(path[from + 2]) : -1;
    if (low < 0)
      return mlx_error(MLX_INVALID_INPUT, "the URL has a '%%' that two hexadecimal digits do not follow");
    path[to] = (char)(high * 16 + low);
    from += 2;
  }
  path[to] = 0;
  *out_length = to;
  return NULL;
}

// The position of the path in an absolute URL, or NULL.
static const char *skip_authority(const char *target, size_t length) {
  for (int secure = 0; secure < 2; ++secure) {
    const char *scheme = secure ? "https://" : "http://";
    const size_t scheme_length = strlen(scheme);
    if (length < scheme_length || strncasecmp(target, scheme, scheme_length)) continue;
    const char *at = target + scheme_length;
    while (at < target + length && *at != '/' && *at != '?') ++at;
    return at;
  }
  return NULL;
}

mlx_status_t mlx_http_target_parse(const char *target, size_t length, char **out_path, char **out_query) {
  *out_path = *out_query = NULL;
  const char *end = target + length, *start = target;
  if (memchr(target, '#', length)) return mlx_error(MLX_INVALID_INPUT, "the URL of a request has a '#'");
  const bool is_star = length == 1 && *target == '*';
  if (!is_star && (!length || *target != '/')) {
    start = skip_authority(target, length);
    if (!start) return mlx_error(MLX_INVALID_INPUT, "the URL of a request must begin with '/'");
  }
  const char *question = memchr(start, '?', (size_t)(end - start));
  const char *path_end = question ? question : end;
  size_t path_length = (size_t)(path_end - start);
  mlx_status_t status = path_length ? mlx_copy_text(start, path_length, out_path)
                                    : mlx_copy_text("/", path_length = 1, out_path);
  if (!status) status = decode(*out_path, path_length, &path_length);
  if (!status) status = check_text(*out_path, path_length, "path");
  if (!status && question) {
    status = check_text(question + 1, (size_t)(end - question - 1), "query");
    if (!status) status = mlx_copy_text(question + 1, (size_t)(end - question - 1), out_query);
  } else if (!status) {
    status = mlx_copy_text("", 0, out_query);
  }
  if (status) {
    mlx_free(*out_path);
    *out_path = NULL;
  }
  return status;
}
