// Reads docker's config.json and runs its credential helpers. See credentials.h.
#include "transfer/credentials.h"

#include <stdio.h>
#include <string.h>

#include "base/encoding.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/process.h"
#include "base/text.h"
#include "base/user.h"
#include "transfer/url.h"

#define MAX_CONFIG (1u << 20)          // bytes
#define MAX_HELPER_ANSWER (64u << 10)  // bytes
#define HELPER_SECONDS 60              // the user may have to unlock a keychain
// The helper protocol's answer if it has no entry for a host.
#define UNKNOWN_HOST "credentials not found in native keychain"

static mlx_status_t encode_pair(const char *user, const char *password, char **out_auth) {
  mlx_text_t pair = {0}, auth = {0};
  mlx_text_printf(&pair, "%s:%s", user, password);
  if (pair.data) mlx_base64_append(&auth, pair.data, pair.length);
  mlx_status_t status = mlx_text_finish(&pair);
  if (!status) status = mlx_text_take(&auth, out_auth, NULL);
  mlx_text_clear(&pair);
  mlx_text_clear(&auth);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// config.json

static bool is_helper_name(const char *name) {
  const size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
  return length && !name[length] && length < 64;
}

static mlx_status_t read_helper(const mlx_json_t *json, const char *host, char **out_helper) {
  yyjson_val *helpers = mlx_json_find(json->root, "credHelpers");
  const char *helper = NULL;
  if (helpers && !yyjson_is_obj(helpers)) return mlx_json_error(json, "credHelpers", "must be an object");
  if (helpers) MLX_TRY(mlx_json_string_or(json, helpers, host, NULL, &helper));
  if (!helper) MLX_TRY(mlx_json_string_or(json, json->root, "credsStore", NULL, &helper));
  if (!helper || !*helper) return NULL;
  if (!is_helper_name(helper))
    return mlx_json_error(json, "credHelpers", "is not a valid credential helper name");
  return mlx_copy_text(helper, strlen(helper), out_helper);
}

// True if |key| is |host|, or a URL on it as older clients write ("https://HOST/v1/").
static bool is_key_of(const char *key, const char *host) {
  const size_t length = strlen(host);
  if (!strstr(key, "://")) return !strncmp(key, host, length) && (!key[length] || key[length] == '/');
  mlx_url_t url;
  mlx_status_t status = mlx_url_parse(key, &url);
  const bool is = !status && !url.has_user && !strcmp(url.place, host);
  mlx_status_free(status);  // some other tool wrote the key: not a URL that we know
  return is;
}

static yyjson_val *find_entry(yyjson_val *auths, const char *host) {
  yyjson_val *exact = mlx_json_find(auths, host), *key, *entry;
  size_t index, count;
  if (exact) return exact;
  yyjson_obj_foreach(auths, index, count, key, entry) {
    if (is_key_of(yyjson_get_str(key), host)) return entry;
  }
  return NULL;
}

static mlx_status_t read_auth(const mlx_json_t *json, const char *host, char **out_auth,
                              char **out_identity) {
  yyjson_val *auths = mlx_json_find(json->root, "auths");
  if (auths && !yyjson_is_obj(auths)) return mlx_json_error(json, "auths", "must be an object");
  yyjson_val *entry = auths ? find_entry(auths, host) : NULL;
  if (!entry) return NULL;
  if (!yyjson_is_obj(entry)) return mlx_json_error(json, host, "must be an object");
  const char *auth, *user, *password, *identity;
  MLX_TRY(mlx_json_string_or(json, entry, "identitytoken", "", &identity));
  if (*identity) return mlx_copy_text(identity, strlen(identity), out_identity);
  MLX_TRY(mlx_json_string_or(json, entry, "auth", "", &auth));
  MLX_TRY(mlx_json_string_or(json, entry, "username", NULL, &user));
  MLX_TRY(mlx_json_string_or(json, entry, "password", NULL, &password));
  if (*auth) {
    if (strspn(auth, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") != strlen(auth))
      return mlx_json_error(json, "auth", "is not base64");
    return mlx_copy_text(auth, strlen(auth), out_auth);
  }
  return user && password ? encode_pair(user, password, out_auth) : NULL;
}

mlx_status_t mlx_docker_config_read(const char *name, const char *text, size_t length, const char *host,
                                    char **out_auth, char **out_identity, char **out_helper) {
  mlx_json_t json;
  *out_auth = *out_identity = *out_helper = NULL;
  MLX_TRY(mlx_json_parse(name, text, length, &json));
  mlx_status_t status = read_auth(&json, host, out_auth, out_identity);
  if (!status) status = read_helper(&json, host, out_helper);
  mlx_json_close(&json);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Credential helpers

static mlx_status_t read_answer(const char *program, const char *answer, char **out_auth,
                                char **out_identity) {
  mlx_json_t json;
  const char *user, *secret;
  MLX_TRY(mlx_json_parse(program, answer, strlen(answer), &json));
  mlx_status_t status = mlx_json_string(&json, json.root, "Username", &user);
  if (!status) status = mlx_json_string(&json, json.root, "Secret", &secret);
  // In the helper protocol, this user name marks an identity token.
  const bool is_identity = !status && !strcmp(user, "<token>");
  if (!status)
    status = is_identity ? mlx_copy_text(secret, strlen(secret), out_identity)
                         : encode_pair(user, secret, out_auth);
  mlx_json_close(&json);
  return status;
}

// The helper protocol passes the host through stdin. The shell is used only for that pipe: host and program
// are arguments, never part of the script.
static mlx_status_t run_helper(const char *helper, const char *host, char **out_auth, char **out_identity) {
  char program[96], *answer = NULL, ended[64];
  snprintf(program, sizeof program, "docker-credential-%s", helper);
  const char *argv[] = {"/bin/sh", "-c", "printf %s \"$1\" | \"$2\" get 2>/dev/null", "sh", host,
                        program,   NULL};
  const mlx_process_options_t options = {.argv = argv, .time_limit_seconds = HELPER_SECONDS};
  mlx_process_result_t result;
  MLX_TRY(mlx_process_capture(&options, MAX_HELPER_ANSWER, &answer, &result));
  mlx_status_t status = NULL;
  const bool ended_itself = !result.signal && !result.timed_out;
  if (ended_itself && result.exit_code == 127) {
    status = mlx_status_hint(
        mlx_error(MLX_NOT_FOUND,
                  "docker's config.json names the credential helper %s for %s, which is not on the PATH",
                  program, host),
        "install it, or remove it from that file and run `docker login %s`", host);
  } else if (ended_itself && result.exit_code == 0) {
    status = read_answer(program, answer, out_auth, out_identity);
  } else if (!ended_itself || strncmp(answer, UNKNOWN_HOST, strlen(UNKNOWN_HOST))) {
    mlx_process_describe(&result, ended, sizeof ended);
    answer[strcspn(answer, "\r\n")] = 0;
    status = mlx_error(MLX_TOOL_FAILED, "%s failed for %s: %s%s%.200s", program, host, ended,
                       *answer ? ": " : "", answer);
  }
  mlx_free(answer);
  return status;
}

static mlx_status_t config_path(char **out_path) {
  *out_path = NULL;
  const char *folder = mlx_environment("DOCKER_CONFIG"), *home = mlx_environment("HOME");
  if (folder) return mlx_join_path(folder, "config.json", out_path);
  return home ? mlx_join_path(home, ".docker/config.json", out_path) : NULL;
}

// A helper's answer takes precedence over the file, whose entry may be stale. docker does the same.
static mlx_status_t find_credentials(const char *path, const char *host, char **out_auth,
                                     char **out_identity) {
  char *text, *helper = NULL, *auth = NULL, *identity = NULL;
  size_t length;
  MLX_TRY(mlx_read_file(path, MAX_CONFIG, &text, &length));
  mlx_status_t status = mlx_docker_config_read(path, text, length, host, &auth, &identity, &helper);
  if (!status && helper) status = run_helper(helper, host, out_auth, out_identity);
  if (!status && !*out_auth && !*out_identity) {
    *out_auth = auth;
    *out_identity = identity;
    auth = identity = NULL;
  }
  mlx_free(identity);
  mlx_free(auth);
  mlx_free(helper);
  mlx_free(text);
  return status;
}

mlx_status_t mlx_registry_credentials(const char *host, char **out_authorization, char **out_identity) {
  char *path, *auth = NULL;
  *out_authorization = *out_identity = NULL;
  MLX_TRY(config_path(&path));
  mlx_status_t status = path && mlx_is_file(path) ? find_credentials(path, host, &auth, out_identity) : NULL;
  if (!status && auth) status = mlx_format(out_authorization, "Basic %s", auth);
  mlx_free(auth);
  mlx_free(path);
  return status;
}
