// Reads the hub's address and token. See hub_settings.h.
#include "transfer/hub_settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/user.h"
#include "transfer/hub.h"
#include "transfer/url.h"

#define MAX_TOKEN 4096  // bytes of a token file

// Returns |path| below the folder in |variable|, else |home_path| below $HOME, else NULL.
static mlx_status_t path_below(const char *variable, const char *path, const char *home_path,
                               char **out_path) {
  *out_path = NULL;
  const char *folder = mlx_environment(variable), *home = mlx_environment("HOME");
  if (folder && mlx_is_absolute(folder)) return mlx_join_path(folder, path, out_path);
  return home ? mlx_join_path(home, home_path, out_path) : NULL;
}

mlx_status_t mlx_hub_endpoint(const char *given, char **out_url) {
  *out_url = NULL;
  if (!given || !*given) given = mlx_environment("HF_ENDPOINT");
  if (!given) given = "https://" MLX_HUB_HOST;
  MLX_TRY(mlx_copy_text(given, strlen(given), out_url));
  size_t length = strlen(*out_url);
  while (length && (*out_url)[length - 1] == '/') (*out_url)[--length] = 0;
  mlx_url_t url;
  const bool begins_well = !strncasecmp(*out_url, "https://", 8) || !strncasecmp(*out_url, "http://", 7);
  mlx_status_t status = begins_well ? mlx_url_parse(*out_url, &url) : NULL;
  if (begins_well && !status) return NULL;
  if (mlx_status_code(status) != MLX_OUT_OF_MEMORY) {
    mlx_status_free(status);
    status = mlx_error(MLX_USAGE, "the hub address '%s' %s", mlx_display_url(*out_url).text,
                       begins_well ? "is not a valid URL" : "does not begin with https:// or http://");
  }
  mlx_free(*out_url);
  *out_url = NULL;
  return status;
}

static mlx_status_t token_path(char **out_path) {
  const char *given = mlx_environment("HF_TOKEN_PATH"), *home = mlx_environment("HF_HOME");
  if (given) return mlx_copy_text(given, strlen(given), out_path);
  if (home) return mlx_join_path(home, "token", out_path);
  return path_below("XDG_CACHE_HOME", "huggingface/token", ".cache/huggingface/token", out_path);
}

// Reads the token file. Fails if another user owns it or may change it: a pull would send that user's token.
static mlx_status_t read_token_file(const char *path, char **out_token) {
  struct stat info;
  char *mode_hint = NULL;
  uint64_t size;
  int fd;
  MLX_TRY(mlx_open_file(path, &fd, &size));
  mlx_status_t status = fstat(fd, &info) ? mlx_io_error("stat", path) : NULL;
  if (!status) status = mlx_format(&mode_hint, "run `chmod 600 '%s'`, or set HF_TOKEN", path);
  if (!status)
    status =
        mlx_user_check_stat(&info, path, "the hub's token file", "remove it, or set HF_TOKEN", mode_hint);
  if (!status) status = mlx_read_stream(fd, path, MAX_TOKEN, out_token, NULL);
  mlx_free(mode_hint);
  close(fd);
  return status;
}

static mlx_status_t read_token(char **out_token) {
  char *path;
  *out_token = NULL;
  const char *given = mlx_environment("HF_TOKEN");
  if (!given) given = mlx_environment("HUGGING_FACE_HUB_TOKEN");
  if (given) return mlx_copy_text(given, strlen(given), out_token);
  MLX_TRY(token_path(&path));
  mlx_status_t status = path && mlx_is_file(path) ? read_token_file(path, out_token) : NULL;
  mlx_free(path);
  return status;
}

mlx_status_t mlx_hub_authorization(const char *endpoint, char **out_authorization) {
  char *token;
  mlx_url_t url;
  *out_authorization = NULL;
  MLX_TRY(mlx_url_parse(endpoint, &url));
  if (!url.is_https && !mlx_url_is_local(&url)) return NULL;
  MLX_TRY(read_token(&token));
  if (!token) return NULL;
  size_t length = strcspn(token, " \t\r\n");
  mlx_status_t status = length ? mlx_format(out_authorization, "Bearer %.*s", (int)length, token) : NULL;
  mlx_free(token);
  return status;
}

bool mlx_hub_is_offline(void) {
  const char *value = mlx_environment("HF_HUB_OFFLINE");
  return value && (!strcmp(value, "1") || !strcasecmp(value, "true") || !strcasecmp(value, "yes") ||
                   !strcasecmp(value, "on"));
}
