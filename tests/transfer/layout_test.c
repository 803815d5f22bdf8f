// OCI layouts (oci-layout:FOLDER): parallel writers, damaged content and leftovers of killed processes.
#include <pthread.h>

#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "transfer/store.h"

#define WRITERS 8
#define TAGS 6  // per writer

static void clean_up(void) { mlx_status_free(mlx_remove_tree(folder)); }

static mlx_store_t *open_layout(const char *name) {
  char text[400];
  mlx_oci_ref_t ref;
  mlx_store_t *store;
  if (!folder[0]) {
    strcpy(folder, "/tmp/mlxcel-layout-XXXXXX");
    CHECK(mkdtemp(folder));
    atexit(clean_up);
  }
  snprintf(text, sizeof text, "oci-layout:%s", in_folder(name));
  CHECK_OK(mlx_oci_ref_parse(text, &ref));
  CHECK_OK(mlx_store_open(&ref, &(mlx_registry_options_t){0}, &store));
  return store;
}

// Puts a manifest without layers, unique for each |number|.
static mlx_status_t put_manifest(mlx_store_t *store, const char *tag, int number,
                                 char out_digest[MLX_OCI_DIGEST]) {
  mlx_oci_document_t document = {0};
  mlx_text_t json = {0};
  snprintf(document.artifact_type, sizeof document.artifact_type, "application/vnd.test.%d", number);
  snprintf(document.config.media_type, sizeof document.config.media_type, "%s", MLX_OCI_EMPTY);
  mlx_oci_digest("{}", 2, document.config.digest);
  document.config.size = 2;
  mlx_oci_manifest_write(&document, &json);
  mlx_oci_descriptor_t descriptor = {.size = json.length};
  snprintf(descriptor.media_type, sizeof descriptor.media_type, "%s", MLX_OCI_MANIFEST);
  mlx_oci_digest(json.data, json.length, descriptor.digest);
  mlx_status_t status = mlx_store_put_document(store, tag, &descriptor, json.data, json.length, NULL);
  if (out_digest) memcpy(out_digest, descriptor.digest, MLX_OCI_DIGEST);
  mlx_text_clear(&json);
  return status;
}

static size_t count_tags(mlx_store_t *store) {
  mlx_text_t tags = {0};
  size_t count;
  CHECK_OK(mlx_store_tags(store, &tags, &count));
  mlx_text_clear(&tags);
  return count;
}

// ----------------------------------------------------------------------------------------------------------

typedef struct writer {
  mlx_store_t *store;
  int number;
  mlx_status_t status;
} writer_t;

static void *put_tags(void *user) {
  writer_t *writer = user;
  for (int i = 0; i < TAGS && !writer->status; ++i) {
    char tag[32];
    snprintf(tag, sizeof tag, "w%d-%d", writer->number, i);
    writer->status = put_manifest(writer->store, tag, writer->number * TAGS + i, NULL);
  }
  return NULL;
}

// flock locks belong to the open file, so threads exclude each other like processes.
TEST(parallel_pushes_to_one_layout_keep_every_tag) {
  pthread_t threads[WRITERS];
  writer_t writers[WRITERS];
  for (int i = 0; i < WRITERS; ++i) {
    writers[i] = (writer_t){.store = open_layout("shared"), .number = i};
    CHECK(!pthread_create(&threads[i], NULL, put_tags, &writers[i]));
  }
  for (int i = 0; i < WRITERS; ++i) CHECK(!pthread_join(threads[i], NULL));
  for (int i = 0; i < WRITERS; ++i) CHECK_OK(writers[i].status);
  CHECK_INT(count_tags(writers[0].store), WRITERS * TAGS);
  for (int i = 0; i < WRITERS; ++i) mlx_store_close(writers[i].store);
  char *marker;
  CHECK_OK(mlx_read_file(in_folder("shared/oci-layout"), 1 << 10, &marker, NULL));
  CHECK_CONTAINS(marker, "\"imageLayoutVersion\": \"1.0.0\"");
  mlx_free(marker);
}

// ----------------------------------------------------------------------------------------------------------
// Blobs

static mlx_blob_t hello_blob(void) {
  mlx_blob_t blob = {.descriptor = {.size = 5}, .bytes = "hello"};
  mlx_oci_digest("hello", 5, blob.descriptor.digest);
  return blob;
}

// Path of a blob in a layout.
static const char *path_of(const char *layout, const char *digest) {
  char name[160];
  snprintf(name, sizeof name, "%.64s/blobs/sha256/%.64s", layout, digest + strlen("sha256:"));
  return in_folder(name);
}

static void check_text(const char *path, const char *expected) {
  char *text;
  CHECK_OK(mlx_read_file(path, 1 << 16, &text, NULL));
  CHECK_TEXT(text, expected);
  mlx_free(text);
}

TEST(damaged_blob_is_replaced_and_never_returned) {
  mlx_store_t *store = open_layout("blobs");
  mlx_blob_t blob = hello_blob();
  mlx_progress_t progress = 0;
  char path[320], source[320], got[320];
  snprintf(path, sizeof path, "%s", path_of("blobs", blob.descriptor.digest));
  snprintf(source, sizeof source, "%s", in_folder("source"));
  snprintf(got, sizeof got, "%s", in_folder("got"));
  static const char *const damaged[] = {"", "hell", "hallo", "hello!"};
  for (size_t i = 0; i < sizeof damaged / sizeof *damaged; ++i) {
    for (int from_file = 0; from_file < 2; ++from_file) {
      blob.path = from_file ? source : NULL;
      CHECK_OK(mlx_write_file(source, "hello", 5));
      CHECK_OK(mlx_store_put_blob(store, NULL, &blob, &progress));
      CHECK_OK(mlx_write_file(path, damaged[i], strlen(damaged[i])));
      mlx_status_t status = mlx_store_get_blob(store, NULL, &blob.descriptor, got, &progress);
      CHECK_INT(mlx_status_code(status), MLX_INVALID_INPUT);
      CHECK_CONTAINS(mlx_status_message(status),
                     blob.descriptor.digest + strlen("sha256:"));  // names the blob, not a temporary copy
      CHECK(!strstr(mlx_status_message(status), ".tmp."));
      CHECK_CONTAINS(mlx_status_hint_text(status), "push the model to it again");
      mlx_status_free(status);
      CHECK(!mlx_is_file(got));
      CHECK_OK(mlx_store_put_blob(store, NULL, &blob, &progress));
      check_text(path, "hello");
      CHECK_OK(mlx_store_get_blob(store, NULL, &blob.descriptor, got, &progress));
      CHECK_OK(mlx_write_file(got, "hallo", 5));  // a damaged file of an earlier pull
      CHECK_OK(mlx_store_get_blob(store, NULL, &blob.descriptor, got, &progress));
      check_text(got, "hello");
      CHECK(!unlink(got));
    }
  }
  CHECK_OK(mlx_remove_tree(path));
  CHECK_OK(mlx_write_file(source, "hallo", 5));
  CHECK_ERROR(mlx_store_put_blob(store, NULL, &blob, &progress), MLX_INVALID_INPUT,
              "/source' has the digest");
  CHECK(!mlx_is_file(path));
  mlx_store_close(store);
}

TEST(pipe_instead_of_a_file_is_refused_without_blocking) {
  mlx_store_t *store = open_layout("pipes");
  mlx_blob_t blob = hello_blob();
  mlx_progress_t progress = 0;
  mlx_text_t json = {0};
  char path[320], digest[MLX_OCI_DIGEST];
  CHECK_OK(mlx_store_put_blob(store, NULL, &blob, &progress));
  CHECK_OK(put_manifest(store, "v1", 1, digest));
  snprintf(path, sizeof path, "%s", path_of("pipes", blob.descriptor.digest));
  CHECK(!unlink(path) && !mkfifo(path, 0600));
  CHECK_ERROR(mlx_store_get_blob(store, NULL, &blob.descriptor, in_folder("piped"), &progress), MLX_NOT_FOUND,
              "does not exist or is not a regular file");
  CHECK_OK(mlx_store_put_blob(store, NULL, &blob, &progress));
  check_text(path, "hello");
  snprintf(path, sizeof path, "%s", path_of("pipes", digest));
  CHECK(!unlink(path) && !mkfifo(path, 0600));
  CHECK_ERROR(mlx_store_get_document(store, "v1", &json), MLX_NOT_FOUND,
              "does not exist or is not a regular file");
  snprintf(path, sizeof path, "%s", in_folder("pipes/index.json"));
  CHECK(!unlink(path) && !mkfifo(path, 0600));
  CHECK_ERROR(mlx_store_get_document(store, "v1", &json), MLX_NOT_FOUND,
              "index.json' does not exist or is not a regular file");
  mlx_text_clear(&json);
  mlx_store_close(store);
}

TEST(manifest_digest_is_checked_for_every_kind_of_request) {
  mlx_store_t *store = open_layout("manifests");
  mlx_text_t json = {0};
  mlx_oci_document_t index;
  char digest[MLX_OCI_DIGEST], path[320], *text, *at;
  CHECK_OK(put_manifest(store, "v1", 1, digest));
  CHECK_OK(mlx_store_get_document(store, "v1", &json));
  mlx_text_clear(&json);
  snprintf(path, sizeof path, "%s", path_of("manifests", digest));
  CHECK_OK(mlx_read_file(path, 1 << 16, &text, NULL));
  at = strstr(text, "vnd.test.1");
  CHECK(at);
  at[9] = '2';
  CHECK_OK(mlx_write_file(path, text, strlen(text)));
  mlx_free(text);
  CHECK_ERROR(mlx_store_get_document(store, "v1", &json), MLX_INVALID_INPUT, "has the digest sha256:");
  CHECK_ERROR(mlx_store_get_document(store, digest, &json), MLX_INVALID_INPUT, "has the digest sha256:");
  CHECK_ERROR(mlx_store_referrers(store, digest, MLX_OCI_MODULE, &index), MLX_INVALID_INPUT,
              "has the digest sha256:");
  mlx_text_clear(&json);
  mlx_store_close(store);
}

// ----------------------------------------------------------------------------------------------------------
// The layout folder

TEST(next_push_removes_leftovers_of_a_killed_push) {
  mlx_store_t *store = open_layout("swept");
  char blob[160], index[64];
  snprintf(blob, sizeof blob, "swept/blobs/sha256/%064d.tmp.999999.18e837ca-c", 7);
  snprintf(index, sizeof index, "swept/index.json.tmp.999999.18e837ca-d");
  CHECK_OK(put_manifest(store, "v1", 1, NULL));
  CHECK_OK(mlx_write_file(in_folder(blob), "half", 4));
  CHECK_OK(mlx_write_file(in_folder(index), "half", 4));
  CHECK_OK(mlx_write_file(in_folder("swept/notes.tmp.txt"), "mine", 4));
  CHECK_OK(put_manifest(store, "v2", 2, NULL));
  CHECK(!mlx_is_file(in_folder(blob)) && !mlx_is_file(in_folder(index)));
  CHECK(mlx_is_file(in_folder("swept/notes.tmp.txt")));
  CHECK_INT(count_tags(store), 2);
  mlx_store_close(store);
}

TEST(push_refuses_a_folder_with_other_files) {
  mlx_store_t *store = open_layout("photos");
  CHECK_OK(mlx_make_dirs(in_folder("photos"), 0755));
  CHECK_OK(mlx_write_file(in_folder("photos/cat.jpg"), "cat", 3));
  mlx_status_t status = put_manifest(store, "v1", 1, NULL);
  CHECK_INT(mlx_status_code(status), MLX_USAGE);
  CHECK_CONTAINS(mlx_status_message(status), "'cat.jpg'");
  CHECK_CONTAINS(mlx_status_hint_text(status), "empty");
  mlx_status_free(status);
  CHECK(!mlx_is_dir(in_folder("photos/blobs")) && !mlx_is_file(in_folder("photos/oci-layout")));
  CHECK(!unlink(in_folder("photos/cat.jpg")));
  CHECK_OK(put_manifest(store, "v1", 1, NULL));
  CHECK_OK(
      mlx_write_file(in_folder("photos/README"), "ours", 4));  // other files in an existing layout are fine
  CHECK_OK(put_manifest(store, "v2", 2, NULL));
  mlx_store_close(store);
}

TEST_MAIN(CASE(parallel_pushes_to_one_layout_keep_every_tag),
          CASE(damaged_blob_is_replaced_and_never_returned),
          CASE(pipe_instead_of_a_file_is_refused_without_blocking),
          CASE(manifest_digest_is_checked_for_every_kind_of_request),
          CASE(next_push_removes_leftovers_of_a_killed_push), CASE(push_refuses_a_folder_with_other_files))
