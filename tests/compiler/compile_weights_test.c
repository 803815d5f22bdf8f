// The weight archive of a model that is run, and of one that becomes a bundle.
#include "artifact/bundle.h"
#include "base/file.h"
#include "base/memory.h"
#include "compiler/compile_job.h"
#include "tests/support/check.h"

static char root[64];

static const char *in_root(const char *name) {
  static char paths[4][128];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", root, name);
  return path;
}

static mlx_status_t count_name(void *user, const char *name) {
  (void)name;
  ++*(size_t *)user;
  return NULL;
}

static size_t count_files(const char *folder) {
  size_t count = 0;
  CHECK_OK(mlx_list_dir(in_root(folder), count_name, &count));
  return count;
}

static mlx_cache_t *cache;

static void compile(bool for_engine, mlx_compiled_t *out) {
  const mlx_compile_options_t options = {
      .target = "cpu", .weights = MLX_WEIGHTS_AUTO, .for_engine = for_engine};
  CHECK_OK(mlx_compile(MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama", &options, cache, out));
  CHECK_INT(count_files("cache/tmp"), 0);
}

// SHA-256 of a whole file is slow on a CPU without SHA instructions; only a bundle needs it.
TEST(only_a_bundle_has_the_sha256_of_its_weights_and_source) {
  mlx_compiled_t compiled;
  mlx_manifest_t manifest;
  char hex[MLX_DIGEST_HEX];
  CHECK_OK(mlx_cache_open(in_root("cache"), &cache));
  compile(true, &compiled);
  CHECK(!compiled.weights[0].entry.hit && compiled.seconds > 0);
  CHECK_OK(mlx_manifest_read("m", compiled.manifest, compiled.manifest_length, &manifest));
  CHECK_INT(manifest.file_count, 0);
  CHECK_TEXT(manifest.source_digest, "");
  mlx_compiled_release(&compiled);
  compile(false, &compiled);
  CHECK(compiled.weights[0].entry.hit);  // the same archive
  CHECK_OK(mlx_manifest_read("m", compiled.manifest, compiled.manifest_length, &manifest));
  const mlx_bundle_file_t *weights = mlx_manifest_file(&manifest, MLX_BUNDLE_WEIGHTS);
  CHECK(weights);
  CHECK_OK(mlx_digest_file(compiled.weights_path, NULL, hex));
  CHECK_TEXT(weights->sha256, hex);
  CHECK_OK(mlx_tree_digest_part(compiled.weights_path, 0, (uint64_t)weights->size, 1, NULL, hex));
  CHECK_TEXT(weights->tree, hex);
  CHECK(manifest.source_digest[0]);
  mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
}

// The cache has the archive, but forgot the digests of the source files.
TEST(forgotten_digests_do_not_change_the_key) {
  mlx_compiled_t compiled;
  CHECK_OK(mlx_cache_open(in_root("cache"), &cache));
  compile(true, &compiled);
  mlx_compiled_release(&compiled);
  CHECK_OK(mlx_remove_tree(in_root("cache/digests")));
  compile(true, &compiled);
  CHECK(compiled.weights[0].entry.hit);
  mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
}

int main(int argc, char **argv) {
  snprintf(root, sizeof root, "/tmp/mlxcel-weights-XXXXXX");
  if (!mkdtemp(root)) return 1;
  const check_case_t cases[] = {CASE(only_a_bundle_has_the_sha256_of_its_weights_and_source),
                                CASE(forgotten_digests_do_not_change_the_key)};
  const int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
