// Lists of referrers and tags: paging with limits, no token for other hosts, registries without the referrers
// API, and lists with missing fields.
#include "tests/support/command.h"
#include "tests/support/server.h"
#include "transfer/store.h"

#define COUNT 7
#define ONE "sha256:1111111111111111111111111111111111111111111111111111111111111111"
#define TWO "sha256:2222222222222222222222222222222222222222222222222222222222222222"

static char folder[64];
static server_t server, other_host;
static mlx_registry_options_t options;
static char subject[MLX_OCI_DIGEST];

static void clean_up(void) {
  server_stop(&server);
  server_stop(&other_host);
  mlx_status_free(mlx_remove_tree(folder));
}

static void begin(void) {
  static const char *const argv[] = {"python3", MLXCEL_SOURCE_DIR "/tests/support/registry_server.py", NULL};
  if (!server.port) {
    plain_environment();
    strcpy(folder, "/tmp/mlxcel-oci-lists-XXXXXX");
    CHECK(mkdtemp(folder));
    setenv("DOCKER_CONFIG", folder, 1);
    quick_http(&options.http);
    server_start(&server, argv, "http");
    server_start(&other_host, argv, "http");
    atexit(clean_up);
  }
  server_control(&server, "{}");
  server_control(&other_host, "{}");
}

static mlx_store_t *open_store(const char *text) {
  mlx_oci_ref_t ref;
  mlx_store_t *store;
  CHECK_OK(mlx_oci_ref_parse(text, &ref));
  CHECK_OK(mlx_store_open(&ref, &options, &store));
  return store;
}

static mlx_store_t *open_name(const char *name) {
  char text[160];
  snprintf(text, sizeof text, "oci://127.0.0.1:%d/%s", server.port, name);
  return open_store(text);
}

static void put(mlx_store_t *store, const char *tag, const mlx_oci_document_t *document,
                char out_digest[MLX_OCI_DIGEST]) {
  mlx_text_t json = {0};
  mlx_oci_descriptor_t descriptor = {.media_type = MLX_OCI_MANIFEST};
  mlx_oci_manifest_write(document, &json);
  CHECK_OK(mlx_text_finish(&json));
  mlx_oci_digest(json.data, json.length, descriptor.digest);
  descriptor.size = json.length;
  memcpy(descriptor.artifact_type, document->artifact_type, sizeof descriptor.artifact_type);
  descriptor.annotations = document->annotations;
  CHECK_OK(mlx_store_put_document(store, tag, &descriptor, json.data, json.length,
                                  document->subject.digest[0] ? document->subject.digest : NULL));
  memcpy(out_digest, descriptor.digest, MLX_OCI_DIGEST);
  mlx_text_clear(&json);
}

// Puts a model under the tags t0 to t6, and seven modules that refer to it.
static void fill(mlx_store_t *store) {
  mlx_http_t *http;
  mlx_progress_t progress = 0;
  mlx_blob_t blob = {.descriptor = {.media_type = MLX_OCI_EMPTY, .size = 2}, .bytes = "{}"};
  char digest[MLX_OCI_DIGEST], tag[16];
  mlx_oci_digest("{}", 2, blob.descriptor.digest);
  CHECK_OK(mlx_http_open(&options.http, &http));
  CHECK_OK(mlx_store_put_blob(store, http, &blob, &progress));
  mlx_http_close(http);
  mlx_oci_document_t model = {.artifact_type = MLX_OCI_MODEL, .config = blob.descriptor};
  for (int i = 0; i < COUNT; ++i) {
    snprintf(tag, sizeof tag, "t%d", i);
    put(store, tag, &model, subject);
  }
  for (int i = 0; i < COUNT; ++i) {
    mlx_oci_document_t module = {.artifact_type = MLX_OCI_MODULE,
                                 .config = blob.descriptor,
                                 .subject = {.media_type = MLX_OCI_MANIFEST, .size = 1}};
    memcpy(module.subject.digest, subject, sizeof subject);
    snprintf(module.annotations.target, sizeof module.annotations.target, "target%d", i);
    put(store, NULL, &module, digest);
  }
}

static void check_referrers(mlx_store_t *store) {
  mlx_oci_document_t index;
  CHECK_OK(mlx_store_referrers(store, subject, MLX_OCI_MODULE, &index));
  CHECK_INT(index.count, COUNT);
  for (size_t i = 0; i < COUNT; ++i) {
    char target[16];
    snprintf(target, sizeof target, "target%zu", i);
    CHECK_TEXT(index.items[i].annotations.target, target);
    CHECK_TEXT(index.items[i].artifact_type, MLX_OCI_MODULE);
  }
  mlx_oci_document_free(&index);
}

static void check_tags(mlx_store_t *store, size_t expected) {
  mlx_text_t tags = {0};
  size_t count;
  CHECK_OK(mlx_store_tags(store, &tags, &count));
  CHECK_INT(count, expected);
  CHECK_TEXT(tags.data + tags.length - 3, "t6");
  mlx_text_clear(&tags);
}

TEST(next_page_links_are_parsed) {
  static const struct {
    const char *header, *link;
  } cases[] = {{"</v2/a?n=1&last=b>; rel=\"next\"", "/v2/a?n=1&last=b"},
               {"<x>;rel=next", "x"},
               {"<a>; rel=\"prev\", <b>; title=\"t\"; rel=\"next\"", "b"},
               {"<a>; REL=\"Next\" ", "a"},
               {"<a>; rel=\"nextone\"", NULL},
               {"<a>", NULL},
               {"<a; rel=\"next\"", NULL},
               {"", NULL},
               {"<>; rel=\"next\"", NULL},
               {"rel=\"next\"", NULL},
               {"<a>; norel=\"next\"", NULL}};
  char link[64];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    const bool is = mlx_oci_next_link(cases[i].header, link, sizeof link);
    if (is != (cases[i].link != NULL)) CHECK_FAIL("'%s' gives '%s'", cases[i].header, link);
    if (is) CHECK_TEXT(link, cases[i].link);
  }
  CHECK(!mlx_oci_next_link("<123456789>; rel=\"next\"", link, 4));
}

TEST(all_pages_of_a_list_are_read) {
  begin();
  mlx_store_t *store = open_name("acme/pages");
  fill(store);
  check_referrers(store);
  check_tags(store, COUNT);
  static const char *const links[] = {"path", "query", "absolute"};
  for (int i = 0; i < 3; ++i) {
    char control[64];
    snprintf(control, sizeof control, "{\"page\": 2, \"link\": \"%s\"}", links[i]);
    server_control(&server, control);
    check_referrers(store);
    CHECK_INT(count_of(server_log(&server), "/referrers/"), 4);
    check_tags(store, COUNT);
    CHECK_INT(count_of(server_log(&server), "/tags/"), 4);
  }
  mlx_store_close(store);
}

TEST(endless_lists_and_invalid_links_are_errors) {
  begin();
  mlx_oci_document_t index;
  mlx_store_t *store = open_name("acme/endless");
  fill(store);
  server_control(&server, "{\"page\": 2, \"link\": \"loop\"}");
  CHECK_ERROR(mlx_store_referrers(store, subject, MLX_OCI_MODULE, &index), MLX_INVALID_INPUT,
              "link in a loop");
  server_control(&server, "{\"page\": 2, \"link\": \"endless\"}");
  CHECK_ERROR(mlx_store_referrers(store, subject, MLX_OCI_MODULE, &index), MLX_INVALID_INPUT,
              "more than 256 pages");
  static const char *const bad[] = {"ftp://127.0.0.1/x", "x", "file:///etc/passwd", "//elsewhere/x"};
  for (int i = 0; i < 4; ++i) {
    char control[96];
    snprintf(control, sizeof control, "{\"page\": 2, \"link\": \"%s\"}", bad[i]);
    server_control(&server, control);
    CHECK_ERROR(mlx_store_referrers(store, subject, MLX_OCI_MODULE, &index), MLX_INVALID_INPUT,
                "cannot follow the link to");
  }
  mlx_store_close(store);
}

TEST(token_is_not_sent_to_another_host) {
  begin();
  char json[256], path[96], url[320];
  mlx_oci_document_t index;
  mlx_store_t *other;
  snprintf(path, sizeof path, "%s/config.json", folder);
  snprintf(json, sizeof json, "{\"auths\": {\"127.0.0.1:%d\": {\"auth\": \"bWU6cHc=\"}}}", server.port);
  CHECK_OK(mlx_write_file(path, json, strlen(json)));
  server_control(&server, "{\"users\": {\"me\": \"pw\"}}");
  mlx_store_t *store = open_name("acme/elsewhere");
  fill(store);
  snprintf(url, sizeof url, "oci://127.0.0.1:%d/acme/elsewhere", other_host.port);
  other = open_store(url);
  fill(other);
  mlx_store_close(other);
  snprintf(
      url, sizeof url,
      "{\"users\": {\"me\": \"pw\"}, \"page\": 2, \"link\": \"%s/v2/acme/elsewhere/referrers/%s?from=2\"}",
      other_host.url, subject);
  server_control(&server, url);
  server_control(&other_host, "{\"page\": 2}");  // its pages link by path
  CHECK_OK(mlx_store_referrers(store, subject, MLX_OCI_MODULE, &index));
  CHECK_INT(index.count, COUNT);
  mlx_oci_document_free(&index);
  CHECK_CONTAINS(server_log(&server), "\"authorized\": true");
  const char *log = server_log(&other_host);
  CHECK_INT(count_of(log, "/referrers/"), 3);
  CHECK_INT(count_of(log, "\"authorized\": true"), 0);
  mlx_store_close(store);
  unlink(path);
}

TEST(referrers_tag_is_used_without_the_referrers_api) {
  begin();
  server_control(&server, "{\"no_referrers\": true}");
  mlx_store_t *store = open_name("acme/old");
  fill(store);
  check_referrers(store);
  CHECK_CONTAINS(server_log(&server), "manifests/sha256-");
  server_control(&server, "{\"no_referrers\": 501}");
  check_referrers(store);
  CHECK_INT(count_of(server_log(&server), "/referrers/"),
            1);  // 501 is not retried
  mlx_store_close(store);
}

TEST(missing_list_fields_are_read_from_the_manifests) {
  begin();
  mlx_store_t *store = open_name("acme/bare");
  fill(store);
  server_control(&server, "{\"bare\": true}");
  check_referrers(store);
  mlx_store_close(store);
}

// skopeo and regctl store the list of referrers as a separate index under a tag.
TEST(layout_with_a_referrers_tag_is_read) {
  begin();
  char text[160], path[256], tag[MLX_OCI_DIGEST];
  snprintf(text, sizeof text, "oci-layout:%s/layout:v1", folder);
  mlx_store_t *store = open_store(text);
  fill(store);
  check_referrers(store);
  char *index;
  size_t length;
  snprintf(path, sizeof path, "%s/layout/index.json", folder);
  CHECK_OK(mlx_read_file(path, 1 << 20, &index, &length));
  mlx_oci_document_t document;
  mlx_text_t list = {0};
  CHECK_OK(mlx_oci_document_read("index", index, length, &document));
  size_t modules = 0;
  mlx_oci_descriptor_t listed[COUNT], tagged = {.media_type = MLX_OCI_INDEX};
  for (size_t i = 0; i < document.count; ++i) {
    if (!document.items[i].annotations.target[0]) continue;
    CHECK(modules < COUNT);
    listed[modules] = document.items[i];
    listed[modules++].artifact_type[0] = 0;  // skopeo drops it
  }
  CHECK_INT(modules, COUNT);
  mlx_oci_index_write(listed, modules, &list);
  CHECK_OK(mlx_text_finish(&list));
  mlx_oci_digest(list.data, list.length, tagged.digest);
  tagged.size = list.length;
  snprintf(tag, sizeof tag, "sha256-%s", subject + 7);
  CHECK_OK(mlx_write_file(path, "{\"schemaVersion\": 2, \"manifests\": []}", 37));
  CHECK_OK(mlx_store_put_document(store, tag, &tagged, list.data, list.length, NULL));
  check_referrers(store);
  mlx_store_close(store);
  mlx_text_clear(&list);
  mlx_oci_document_free(&document);
  mlx_free(index);
}

TEST(unknown_fields_of_an_index_are_kept) {
  const char *index =
      "{\"schemaVersion\": 2, \"annotations\": {\"a\": \"b\"}, \"manifests\": [{\"mediaType\": \"m\", "
      "\"digest\": \"" ONE
      "\", \"size\": 1, \"platform\": {\"os\": \"linux\"},"
      " \"annotations\": {\"org.opencontainers.image.ref.name\": \"v1\", \"x\": \"y\"}}], \"subject\": null}";
  mlx_oci_descriptor_t descriptor = {.media_type = "n", .digest = TWO, .size = 2};
  mlx_text_t once = {0}, twice = {0}, moved = {0};
  CHECK_OK(mlx_oci_index_add("i", index, strlen(index), &descriptor, NULL, &once));
  CHECK_CONTAINS(once.data, "\"annotations\": {\"a\":\"b\"}");
  CHECK_CONTAINS(once.data, "\"platform\":{\"os\":\"linux\"}");
  CHECK_CONTAINS(once.data, "\"x\":\"y\"");
  CHECK_INT(count_of(once.data, TWO), 1);
  CHECK_OK(mlx_oci_index_add("i", once.data, once.length, &descriptor, NULL, &twice));
  CHECK_INT(count_of(twice.data, TWO), 1);
  CHECK_OK(mlx_oci_index_add("i", twice.data, twice.length, &descriptor, "v1", &moved));
  CHECK_INT(count_of(moved.data, TWO), 1);
  CHECK_INT(count_of(moved.data, ONE), 0);
  CHECK_INT(count_of(moved.data, "v1"), 1);
  mlx_text_clear(&moved);
  const char *manifest =
      "{\"schemaVersion\": 2, \"config\": {\"digest\": \"" ONE "\", \"size\": 1}, \"layers\": []}";
  CHECK_ERROR(mlx_oci_index_add("i", manifest, strlen(manifest), &descriptor, NULL, &moved),
              MLX_INVALID_INPUT, "'manifests'");
  mlx_text_clear(&once);
  mlx_text_clear(&twice);
  mlx_text_clear(&moved);
}

TEST(missing_tag_error_names_the_existing_tags) {
  begin();
  command_t run;
  char text[160];
  mlx_store_t *store = open_name("acme/tagged");
  fill(store);
  mlx_store_close(store);
  server_control(&server, "{\"page\": 3}");
  snprintf(text, sizeof text, "oci://127.0.0.1:%d/acme/tagged:v9", server.port);
  RUN(&run, "pull", text);
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  CHECK_CONTAINS(run.err, "existing tags: t0, t1, t2, t3, t4, t5, t6");
  command_free(&run);
  snprintf(text, sizeof text, "oci://127.0.0.1:%d/acme/taged", server.port);
  RUN(&run, "pull", text);
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  CHECK_CONTAINS(run.err, "/manifests/latest");
  CHECK_CONTAINS(run.err, "no repository 'acme/taged' was found");
  command_free(&run);
}

TEST_MAIN(CASE(next_page_links_are_parsed), CASE(all_pages_of_a_list_are_read),
          CASE(endless_lists_and_invalid_links_are_errors), CASE(token_is_not_sent_to_another_host),
          CASE(referrers_tag_is_used_without_the_referrers_api),
          CASE(missing_list_fields_are_read_from_the_manifests), CASE(layout_with_a_referrers_tag_is_read),
          CASE(unknown_fields_of_an_index_are_kept), CASE(missing_tag_error_names_the_existing_tags))
