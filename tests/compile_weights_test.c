// The weight archive that is written while the source files are hashed.
#include "base/file.h"
#include "base/memory.h"
#include "compiler/compile_job.h"
#include "tests/check.h"

static char root[64];

static const char *in_root(const char *name) {
  static char paths[4][128];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", root, name);
  return path;
}

// The bytes of the archive for the CPU, with the cache |name|.
static char *archive_of(const char *name, bool *out_hit, size_t *out_length) {
  const mlx_compile_options_t options = {.target = "cpu", .weights = MLX_WEIGHTS_AUTO};
  mlx_cache_t *cache;
  mlx_compiled_t compiled;
  char *bytes;
  CHECK_OK(mlx_cache_open(in_root(name), &cache));
  CHECK_OK(mlx_compile(MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama", &options, cache, &compiled));
  CHECK_OK(mlx_read_file(compiled.weights_path, 64 << 20, &bytes, out_length));
  *out_hit = compiled.weights[0].entry.hit;
  mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
  return bytes;
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

TEST(archive_written_while_the_source_is_hashed_is_the_same) {
  size_t lengths[2];
  bool hit;
  char *plain = archive_of("plain", &hit, &lengths[0]);
  CHECK(!hit);
  mlx_early_archive_ns = -1;
  char *early = archive_of("early", &hit, &lengths[1]);
  CHECK(!hit);
  CHECK(lengths[0] == lengths[1] && !memcmp(plain, early, lengths[0]));
  CHECK_INT(count_files("early/tmp"), 0);
  mlx_free(plain);
  mlx_free(early);
}

// The cache has the archive, but forgot the digests of the source files.
TEST(early_archive_is_removed_if_the_cache_has_it_already) {
  size_t lengths[2];
  bool hit;
  mlx_early_archive_ns = -1;
  char *first = archive_of("early", &hit, &lengths[0]);
  CHECK_OK(mlx_remove_tree(in_root("early/digests")));
  char *second = archive_of("early", &hit, &lengths[1]);
  CHECK(hit);
  CHECK(lengths[0] == lengths[1] && !memcmp(first, second, lengths[0]));
  CHECK_INT(count_files("early/tmp"), 0);
  mlx_free(first);
  mlx_free(second);
}

int main(int argc, char **argv) {
  snprintf(root, sizeof root, "/tmp/mlxcel-weights-XXXXXX");
  if (!mkdtemp(root)) return 1;
  const check_case_t cases[] = {CASE(archive_written_while_the_source_is_hashed_is_the_same),
                                CASE(early_archive_is_removed_if_the_cache_has_it_already)};
  const int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
