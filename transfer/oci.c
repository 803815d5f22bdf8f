// Parses and writes OCI references and documents. See oci.h.
#include "transfer/oci.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "base/json_writer.h"
#include "base/memory.h"

#define MAX_ITEMS 10000
#define SCHEME "oci://"
#define LAYOUT "oci-layout:"
#define FILEPATH "org.cncf.model.filepath"
#define TITLE "org.opencontainers.image.title"
#define REF_NAME "org.opencontainers.image.ref.name"
#define TARGET "mlxcel.target"
#define CPU "mlxcel.cpu"
#define TAG "mlxcel.tag"
#define SERIAL "mlxcel.serial"

// ----------------------------------------------------------------------------------------------------------
// References

bool mlx_is_oci_ref(const char *text) {
  return !strncmp(text, SCHEME, strlen(SCHEME)) || !strncmp(text, LAYOUT, strlen(LAYOUT));
}

bool mlx_oci_is_digest(const char *text) {
  return !strncmp(text, "sha256:", 7) && strlen(text) == 71 && strspn(text + 7, "0123456789abcdef") == 64;
}

static bool is_tag(const char *text) {
  if (!*text || strlen(text) > 128 || *text == '.' || *text == '-') return false;
  for (; *text; ++text) {
    if (!isalnum((unsigned char)*text) && !strchr("._-", *text)) return false;
  }
  return true;
}

static bool is_repository(const char *text) {
  for (const char *part = text;; ++part) {
    const size_t length = strspn(part, "abcdefghijklmnopqrstuvwxyz0123456789._-");
    if (!length || !isalnum((unsigned char)part[0]) || !isalnum((unsigned char)part[length - 1]))
      return false;
    part += length;
    if (!*part) return true;
    if (*part != '/') return false;
  }
}

static bool is_host(const char *text) {
  return *text &&
         strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-:[]") == strlen(text);
}

static bool cut(const char *start, size_t length, char *out, size_t size) {
  if (length >= size) return false;
  memcpy(out, start, length);
  out[length] = 0;
  return true;
}

static bool split_remote(const char *text, mlx_oci_ref_t *ref) {
  const char *slash = strchr(text, '/');
  if (!slash || !cut(text, (size_t)(slash - text), ref->host, sizeof ref->host)) return false;
  const char *name = slash + 1, *at = strchr(name, '@'), *colon = at ? NULL : strchr(name, ':');
  const char *end = at ? at : colon ? colon : name + strlen(name);
  const char *reference = *end ? end + 1 : "latest";
  if (!cut(name, (size_t)(end - name), ref->name, sizeof ref->name)) return false;
  if (!cut(reference, strlen(reference), ref->reference, sizeof ref->reference)) return false;
  return is_host(ref->host) && is_repository(ref->name) &&
         (at ? mlx_oci_is_digest(ref->reference) : is_tag(ref->reference));
}

// A folder name may contain ':' and '@'. The last ':' begins the tag only if a valid tag follows, the last
// '@' begins the digest only if a valid digest follows.
static bool split_layout(const char *text, mlx_oci_ref_t *ref) {
  const char *at = strrchr(text, '@'), *colon = strrchr(text, ':'), *end = NULL;
  if (at && mlx_oci_is_digest(at + 1))
    end = at;
  else if (colon && is_tag(colon + 1))
    end = colon;
  ref->layout = true;
  snprintf(ref->reference, sizeof ref->reference, "%s", end ? end + 1 : "latest");
  const size_t length = end ? (size_t)(end - text) : strlen(text);
  return length && cut(text, length, ref->name, sizeof ref->name);
}

mlx_status_t mlx_oci_ref_parse(const char *text, mlx_oci_ref_t *out_ref) {
  *out_ref = (mlx_oci_ref_t){0};
  if (!strncmp(text, SCHEME, strlen(SCHEME)) && split_remote(text + strlen(SCHEME), out_ref)) return NULL;
  if (!strncmp(text, LAYOUT, strlen(LAYOUT)) && split_layout(text + strlen(LAYOUT), out_ref)) return NULL;
  return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' is not a valid OCI reference", text),
                         "use oci://HOST/NAME:TAG (the name in lower case) or oci-layout:FOLDER:TAG");
}

void mlx_oci_digest(const void *bytes, size_t length, char out_digest[MLX_OCI_DIGEST]) {
  memcpy(out_digest, "sha256:", 7);
  mlx_digest_bytes(bytes, length, out_digest + 7);
}

// ----------------------------------------------------------------------------------------------------------
// Reading

static mlx_status_t read_text(const mlx_json_t *json, yyjson_val *object, const char *key, char *out,
                              size_t size) {
  const char *value;
  MLX_TRY(mlx_json_string_or(json, object, key, "", &value));
  if (strlen(value) >= size) return mlx_json_error(json, key, "is too long");
  snprintf(out, size, "%s", value);
  return NULL;
}

static mlx_status_t read_annotations(const mlx_json_t *json, yyjson_val *object, mlx_oci_annotations_t *out) {
  char serial[20];
  MLX_TRY(read_text(json, object, TARGET, out->target, sizeof out->target));
  MLX_TRY(read_text(json, object, CPU, out->cpu, sizeof out->cpu));
  MLX_TRY(read_text(json, object, TAG, out->tag, sizeof out->tag));
  MLX_TRY(read_text(json, object, SERIAL, serial, sizeof serial));
  if (strspn(serial, "0123456789") != strlen(serial)) return mlx_json_error(json, SERIAL, "is not a number");
  out->serial = strtoull(serial, NULL, 10);
  return NULL;
}

static mlx_status_t read_descriptor(const mlx_json_t *json, yyjson_val *value, const char *key,
                                    mlx_oci_descriptor_t *out) {
  const char *digest;
  int64_t size;
  if (!yyjson_is_obj(value)) return mlx_json_error(json, key, "is not a descriptor");
  MLX_TRY(read_text(json, value, "mediaType", out->media_type, sizeof out->media_type));
  MLX_TRY(read_text(json, value, "artifactType", out->artifact_type, sizeof out->artifact_type));
  MLX_TRY(mlx_json_string(json, value, "digest", &digest));
  if (!mlx_oci_is_digest(digest)) return mlx_json_error(json, "digest", "is not a SHA-256 digest");
  snprintf(out->digest, sizeof out->digest, "%s", digest);
  MLX_TRY(mlx_json_int(json, value, "size", 0, INT64_MAX / 2, &size));
  out->size = (uint64_t)size;
  yyjson_val *annotations = mlx_json_find(value, "annotations");
  if (!annotations) return NULL;
  if (!yyjson_is_obj(annotations)) return mlx_json_error(json, "annotations", "must be an object");
  MLX_TRY(read_text(json, annotations, mlx_json_find(annotations, FILEPATH) ? FILEPATH : TITLE, out->path,
                    sizeof out->path));
  MLX_TRY(read_annotations(json, annotations, &out->annotations));
  return read_text(json, annotations, REF_NAME, out->tag, sizeof out->tag);
}

static mlx_status_t read_items(const mlx_json_t *json, const char *key, mlx_oci_document_t *out) {
  yyjson_val *list, *item;
  size_t index, count;
  MLX_TRY(mlx_json_need(json, json->root, key, &list));
  if (!yyjson_is_arr(list) || yyjson_arr_size(list) > MAX_ITEMS)
    return mlx_json_error(json, key, "must be a list of descriptors");
  MLX_TRY(mlx_alloc(yyjson_arr_size(list), sizeof *out->items, &out->items));
  yyjson_arr_foreach(list, index, count, item)
      MLX_TRY(read_descriptor(json, item, key, &out->items[out->count++]));
  return NULL;
}

static mlx_status_t read_document(const mlx_json_t *json, mlx_oci_document_t *out) {
  int64_t version;
  MLX_TRY(mlx_json_int(json, json->root, "schemaVersion", 2, 2, &version));
  MLX_TRY(read_text(json, json->root, "mediaType", out->media_type, sizeof out->media_type));
  MLX_TRY(read_text(json, json->root, "artifactType", out->artifact_type, sizeof out->artifact_type));
  yyjson_val *annotations = mlx_json_find(json->root, "annotations"),
             *subject = mlx_json_find(json->root, "subject");
  if (annotations) MLX_TRY(read_annotations(json, annotations, &out->annotations));
  if (subject) MLX_TRY(read_descriptor(json, subject, "subject", &out->subject));
  if (mlx_json_find(json->root, "manifests")) return read_items(json, "manifests", out);
  yyjson_val *config;
  MLX_TRY(mlx_json_need(json, json->root, "config", &config));
  MLX_TRY(read_descriptor(json, config, "config", &out->config));
  return read_items(json, "layers", out);
}

mlx_status_t mlx_oci_document_read(const char *name, const char *text, size_t length,
                                   mlx_oci_document_t *out_document) {
  *out_document = (mlx_oci_document_t){0};
  mlx_json_t json;
  MLX_TRY(mlx_json_parse(name, text, length, &json));
  mlx_status_t status = read_document(&json, out_document);
  mlx_json_close(&json);
  if (status) mlx_oci_document_free(out_document);
  return status;
}

static mlx_status_t read_tags(const mlx_json_t *json, mlx_text_t *out_tags, size_t *out_count) {
  yyjson_val *list = mlx_json_find(json->root, "tags"), *item;
  size_t index, count;
  if (!list || yyjson_is_null(list)) return NULL;  // a repository without tags
  if (!yyjson_is_arr(list) || yyjson_arr_size(list) > MAX_ITEMS)
    return mlx_json_error(json, "tags", "must be a list");
  yyjson_arr_foreach(list, index, count, item) {
    const char *tag = yyjson_get_str(item);
    if (!tag || strlen(tag) != yyjson_get_len(item) || !is_tag(tag))
      return mlx_json_error(json, "tags", "contains an invalid tag");
    mlx_text_append(out_tags, tag, strlen(tag) + 1);
    ++*out_count;
  }
  return mlx_text_finish(out_tags);
}

mlx_status_t mlx_oci_tags_read(const char *name, const char *text, size_t length, mlx_text_t *out_tags,
                               size_t *out_count) {
  mlx_json_t json;
  MLX_TRY(mlx_json_parse(name, text, length, &json));
  mlx_status_t status = read_tags(&json, out_tags, out_count);
  mlx_json_close(&json);
  return status;
}

void mlx_oci_document_free(mlx_oci_document_t *document) {
  mlx_free(document->items);
  *document = (mlx_oci_document_t){0};
}

// ----------------------------------------------------------------------------------------------------------
// Writing. Equal documents must give equal bytes, because a digest names them.

static void put_annotations(mlx_json_writer_t *json, const mlx_oci_annotations_t *annotations) {
  char serial[24];
  snprintf(serial, sizeof serial, "%llu", (unsigned long long)annotations->serial);
  if (annotations->target[0]) mlx_json_put_text(json, TARGET, annotations->target);
  if (annotations->cpu[0]) mlx_json_put_text(json, CPU, annotations->cpu);
  if (annotations->tag[0]) mlx_json_put_text(json, TAG, annotations->tag);
  if (annotations->serial) mlx_json_put_text(json, SERIAL, serial);
}

static bool has_annotations(const mlx_oci_annotations_t *annotations) {
  return annotations->target[0] || annotations->cpu[0] || annotations->tag[0] || annotations->serial;
}

static void put_descriptor(mlx_json_writer_t *json, const char *key, const mlx_oci_descriptor_t *d) {
  mlx_json_begin_object(json, key, MLX_JSON_ONE_LINE);
  mlx_json_put_text(json, "mediaType", d->media_type);
  if (d->artifact_type[0]) mlx_json_put_text(json, "artifactType", d->artifact_type);
  mlx_json_put_text(json, "digest", d->digest);
  mlx_json_put_uint(json, "size", d->size);
  if (d->path[0] || d->tag[0] || has_annotations(&d->annotations)) {
    mlx_json_begin_object(json, "annotations", MLX_JSON_ONE_LINE);
    if (d->path[0]) mlx_json_put_text(json, FILEPATH, d->path);
    if (d->path[0]) mlx_json_put_text(json, TITLE, d->path);
    put_annotations(json, &d->annotations);
    if (d->tag[0]) mlx_json_put_text(json, REF_NAME, d->tag);
    mlx_json_end(json);
  }
  mlx_json_end(json);
}

static void put_items(mlx_json_writer_t *json, const char *key, const mlx_oci_descriptor_t *items,
                      size_t count) {
  mlx_json_begin_list(json, key, MLX_JSON_LINES);
  for (size_t i = 0; i < count; ++i) put_descriptor(json, NULL, &items[i]);
  mlx_json_end(json);
}

static void begin_document(mlx_json_writer_t *json, const char *media_type) {
  mlx_json_begin_object(json, NULL, MLX_JSON_LINES);
  mlx_json_put_int(json, "schemaVersion", 2);
  mlx_json_put_text(json, "mediaType", media_type);
}

void mlx_oci_manifest_write(const mlx_oci_document_t *document, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  begin_document(&json, MLX_OCI_MANIFEST);
  mlx_json_put_text(&json, "artifactType", document->artifact_type);
  put_descriptor(&json, "config", &document->config);
  put_items(&json, "layers", document->items, document->count);
  if (document->subject.digest[0]) put_descriptor(&json, "subject", &document->subject);
  if (document->annotations.target[0]) {
    mlx_json_begin_object(&json, "annotations", MLX_JSON_ONE_LINE);
    put_annotations(&json, &document->annotations);
    mlx_json_end(&json);
  }
  mlx_json_end(&json);
  mlx_text_puts(out, "\n");
}

void mlx_oci_index_write(const mlx_oci_descriptor_t *items, size_t count, mlx_text_t *out) {
  mlx_json_writer_t json = {.out = out};
  begin_document(&json, MLX_OCI_INDEX);
  put_items(&json, "manifests", items, count);
  mlx_json_end(&json);
  mlx_text_puts(out, "\n");
}

// Writes a parsed value unchanged.
static void put_value(mlx_json_writer_t *json, const char *key, yyjson_val *value) {
  size_t length;
  char *text = yyjson_val_write(value, 0, &length);
  if (text)
    mlx_json_put_raw(json, key, text, length);
  else
    json->out->failed = true;
  free(text);
}

// Writes the list without the entries that |descriptor| replaces, then |descriptor| unless it is listed.
static void put_list_with(mlx_json_writer_t *json, yyjson_val *list, const mlx_oci_document_t *index,
                          const mlx_oci_descriptor_t *descriptor, const char *tag) {
  yyjson_val *item;
  size_t i, count;
  bool is_listed = false;
  mlx_json_begin_list(json, "manifests", MLX_JSON_LINES);
  yyjson_arr_foreach(list, i, count, item) {
    const mlx_oci_descriptor_t *old = &index->items[i];
    const bool same = !strcmp(old->digest, descriptor->digest);
    if (tag ? !strcmp(old->tag, tag) || (same && !old->tag[0]) : same && !old->tag[0]) continue;
    is_listed = is_listed || (!tag && same);
    put_value(json, NULL, item);
  }
  mlx_oci_descriptor_t added = *descriptor;
  snprintf(added.tag, sizeof added.tag, "%s", tag ? tag : "");
  if (!is_listed) put_descriptor(json, NULL, &added);
  mlx_json_end(json);
}

static mlx_status_t put_index_with(const mlx_json_t *json, const mlx_oci_document_t *index,
                                   const mlx_oci_descriptor_t *descriptor, const char *tag, mlx_text_t *out) {
  mlx_json_writer_t writer = {.out = out};
  yyjson_val *list, *key, *value;
  size_t i, count;
  MLX_TRY(mlx_json_need(json, json->root, "manifests", &list));
  mlx_json_begin_object(&writer, NULL, MLX_JSON_LINES);
  yyjson_obj_foreach(json->root, i, count, key, value) {
    if (value == list) {
      put_list_with(&writer, list, index, descriptor, tag);
    } else {
      put_value(&writer, yyjson_get_str(key), value);
    }
  }
  mlx_json_end(&writer);
  mlx_text_puts(out, "\n");
  return mlx_text_finish(out);
}

mlx_status_t mlx_oci_index_add(const char *name, const char *text, size_t length,
                               const mlx_oci_descriptor_t *descriptor, const char *tag, mlx_text_t *out) {
  mlx_oci_document_t index;
  mlx_json_t json;
  MLX_TRY(mlx_oci_document_read(name, text, length, &index));
  mlx_status_t status = mlx_json_parse(name, text, length, &json);
  if (!status) {
    status = put_index_with(&json, &index, descriptor, tag, out);
    mlx_json_close(&json);
  }
  mlx_oci_document_free(&index);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Paged lists

// True if the link parameters |text| (for example "; a=b; rel="next"") include rel=next.
static bool is_next(const char *text, size_t length) {
  for (const char *end = text + length; text < end;) {
    const char *stop = memchr(text + 1, ';', (size_t)(end - text - 1));
    if (!stop) stop = end;
    while (text < stop && strchr("; \t", *text)) ++text;
    size_t rest = (size_t)(stop - text);
    while (rest && strchr(" \t", text[rest - 1])) --rest;
    if ((rest == 10 && !strncasecmp(text, "rel=\"next\"", 10)) ||
        (rest == 8 && !strncasecmp(text, "rel=next", 8)))
      return true;
    text = stop;
  }
  return false;
}

bool mlx_oci_next_link(const char *header, char *out_link, size_t size) {
  *out_link = 0;
  for (const char *open = strchr(header, '<'); open; open = strchr(open, '<')) {
    const char *close = strchr(open, '>');
    if (!close) return false;
    const size_t parameters = strcspn(close + 1, ",<");
    if (is_next(close + 1, parameters))
      return close > open + 1 && cut(open + 1, (size_t)(close - open - 1), out_link, size);
    open = close + 1 + parameters;
  }
  return false;
}

// ----------------------------------------------------------------------------------------------------------
// Authentication

// Copies the value of |key| in a list of key="value". Returns false if it is missing or does not fit.
static bool find_parameter(const char *text, const char *key, char *out, size_t size) {
  const size_t length = strlen(key);
  bool quoted = false;
  *out = 0;
  for (const char *c = text; *c; ++c) {
    if (*c == '"') quoted = !quoted;
    if (quoted || (c != text && !strchr(" ,", c[-1])) || strncasecmp(c, key, length) || c[length] != '=')
      continue;
    const char *value = c + length + 1;
    const bool in_quotes = *value == '"';
    value += in_quotes;
    return cut(value, strcspn(value, in_quotes ? "\"" : ", "), out, size);
  }
  return false;
}

void mlx_oci_challenge_read(const char *header, mlx_oci_challenge_t *out) {
  *out = (mlx_oci_challenge_t){.bearer = !strncasecmp(header, "Bearer ", 7),
                               .basic = !strncasecmp(header, "Basic", 5)};
  if (!out->bearer) return;
  out->bearer = find_parameter(header + 7, "realm", out->realm, sizeof out->realm);
  find_parameter(header + 7, "service", out->service, sizeof out->service);
  find_parameter(header + 7, "scope", out->scope, sizeof out->scope);
}

mlx_status_t mlx_oci_token_read(const char *name, const char *text, size_t length, char **out_token) {
  mlx_json_t json;
  const char *token = NULL;
  *out_token = NULL;
  MLX_TRY(mlx_json_parse(name, text, length, &json));
  mlx_status_t status = mlx_json_string_or(&json, json.root, "token", NULL, &token);
  if (!status && !token) status = mlx_json_string(&json, json.root, "access_token", &token);
  if (!status) status = mlx_copy_text(token, strlen(token), out_token);
  mlx_json_close(&json);
  return status;
}
