// Weights of a GPU model that are made from its files while loading: the bytes that the archive of a bundle
// has, and no archive in the cache. upload_test.c copies such weights to a simulated GPU, gpu_test.c runs the
// command line.
#include "artifact/archive.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "compiler/compile.h"
#include "tests/support/check.h"
#include "tests/support/command.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama.gguf"
#define TARGET "cuda:sm_90"

static void compile(mlx_cache_t *cache, const char *model, const char *target, bool at_load,
                    mlx_compiled_t *out) {
  const mlx_compile_options_t options = {
      .target = target, .weights = MLX_WEIGHTS_AUTO, .context = 64, .for_engine = at_load};
  CHECK_OK(mlx_compile(model, &options, cache, out));
}

TEST(weights_made_while_loading_are_those_of_the_archive) {
  mlx_cache_t *cache;
  mlx_compiled_t written, made;
  mlx_map_t map;
  mlx_archive_t archive;
  CHECK_OK(mlx_cache_open(NULL, &cache));
  compile(cache, TINY, TARGET, false, &written);
  compile(cache, TINY, TARGET, true, &made);
  CHECK(!written.source && made.source && !made.weights_count && !made.weights_path);
  CHECK_TEXT(made.vmfb_path, written.vmfb_path);
  CHECK_OK(mlx_map_file(written.weights_path, &map));
  CHECK_OK(mlx_archive_parse(written.weights_path, map.data, map.size, &archive));
  const mlx_archive_entry_t *last = &archive.entries[archive.count - 1];
  const size_t size = (size_t)(last->data + last->size - archive.entries[0].data);
  CHECK_INT(made.reader->size, size);
  uint8_t *bytes;
  CHECK_OK(mlx_alloc(size, 1, &bytes));
  CHECK_OK(made.reader->read(made.reader->user, made.reader->workers - 1, 0, size, bytes));
  CHECK(!memcmp(bytes, archive.entries[0].data, size));
  for (size_t i = 0; i < archive.count; ++i)
    CHECK_INT(made.reader->size_of(made.reader->user, archive.entries[i].name), archive.entries[i].size);
  CHECK_OK(mlx_source_weights_check(made.source));
  mlx_free(bytes);
  mlx_archive_clear(&archive);
  mlx_unmap(&map);
  mlx_compiled_release(&written);
  mlx_compiled_release(&made);
  mlx_cache_close(cache);
}

TEST(a_cpu_and_several_targets_get_an_archive) {
  static const char *const targets[] = {"cpu", "cpu," TARGET};
  mlx_cache_t *cache;
  CHECK_OK(mlx_cache_open(NULL, &cache));
  for (int i = 0; i < 2; ++i) {
    mlx_compiled_t compiled;
    compile(cache, TINY, targets[i], true, &compiled);
    CHECK(!compiled.source && compiled.weights_path && mlx_is_file(compiled.weights_path));
    mlx_compiled_release(&compiled);
  }
  mlx_cache_close(cache);
}

TEST(a_model_that_changes_while_it_is_loaded_is_refused) {
  char folder[] = "/tmp/mlxcel-compile-load-XXXXXX", path[64], *bytes;
  size_t length;
  mlx_cache_t *cache;
  mlx_compiled_t compiled;
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/m.gguf", folder);
  CHECK_OK(mlx_copy_file(TINY, path));
  CHECK_OK(mlx_cache_open(NULL, &cache));
  compile(cache, path, TARGET, true, &compiled);
  CHECK_OK(mlx_source_weights_check(compiled.source));
  CHECK_OK(mlx_read_file(path, 1 << 26, &bytes, &length));
  CHECK(!unlink(path));
  CHECK_OK(mlx_write_file(path, bytes, length));
  CHECK_ERROR(mlx_source_weights_check(compiled.source), MLX_IO, "m.gguf' changed while it was being read");
  mlx_free(bytes);
  mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
  CHECK_OK(mlx_remove_tree(folder));
}

// Otherwise the tables of the new text would be stored under the digest of the old one.
TEST(a_tokenizer_that_changes_while_it_is_opened_is_refused) {
  char folder[] = "/tmp/mlxcel-compile-load-XXXXXX", path[64], *bytes, *json;
  size_t length, json_length;
  mlx_cache_t *cache;
  mlx_model_tokenizer_t tokenizer;
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/m.gguf", folder);
  CHECK_OK(mlx_copy_file(TINY, path));
  CHECK_OK(mlx_cache_open(NULL, &cache));
  CHECK_OK(mlx_model_tokenizer_open(path, cache, &tokenizer));
  CHECK(!strncmp(tokenizer.key, "gguf ", 5) && strlen(tokenizer.key) > 64);
  CHECK_TEXT(tokenizer.model.text, "m.gguf");
  CHECK_OK(mlx_model_tokenizer_read(&tokenizer, &json, &json_length));
  CHECK(json_length && json[0] == '{');
  mlx_free(json);
  CHECK_OK(mlx_read_file(path, 1 << 26, &bytes, &length));
  CHECK(!unlink(path));
  CHECK_OK(mlx_write_file(path, bytes, length));
  CHECK_ERROR(mlx_model_tokenizer_read(&tokenizer, &json, &json_length), MLX_IO,
              "m.gguf' changed while it was being read");
  CHECK(!json);
  mlx_free(bytes);
  mlx_model_tokenizer_close(&tokenizer);
  mlx_cache_close(cache);
  CHECK_OK(mlx_remove_tree(folder));
}

// ----------------------------------------------------------------------------------------------------------
// Writing a bundle

static ssize_t slow_write(int fd, const void *bytes, size_t length) {
  mlx_sleep_ms(120);
  return mlx_file_system_calls.write(fd, bytes, length);
}

static int no_link(const char *from, const char *to) {
  (void)from, (void)to;
  return -1;
}

static void keep_progress(void *user, mlx_report_kind_t kind, const char *text) {
  if (kind == MLX_REPORT_PROGRESS) mlx_text_printf(user, "%s\n", text);
}

TEST(writing_a_bundle_to_a_slow_disk_shows_bytes_and_time) {
  char folder[] = "/tmp/mlxcel-compile-load-XXXXXX", path[64];
  mlx_cache_t *cache;
  mlx_compiled_t compiled;
  CHECK(mkdtemp(folder));
  CHECK_OK(mlx_cache_open(NULL, &cache));
  compile(cache, TINY, "cpu", false, &compiled);
  mlx_file_calls_t calls = mlx_file_system_calls;
  calls.write = slow_write;
  calls.link = no_link;  // as if the cache were on another disk
  for (int single = 0; single < 2; ++single) {
    mlx_text_t shown = {0};
    const mlx_report_t report = {.emit = keep_progress, .user = &shown};
    snprintf(path, sizeof path, "%s/%d.mlxb", folder, single);
    mlx_file_set_calls(&calls);
    mlx_status_t status =
        mlx_compiled_write(&compiled, path, &(mlx_write_options_t){.single_file = single, .report = &report});
    mlx_file_set_calls(NULL);
    CHECK_OK(status);
    CHECK_OK(mlx_text_finish(&shown));
    const char *row = strstr(shown.data, single ? "writing 1.mlxb: " : "writing 0.mlxb: ");
    if (!row || !strstr(row, "B of ") || !strstr(row, "B/s, ") || !strstr(row, " s left"))
      CHECK_FAIL("%s", shown.data);
    mlx_text_clear(&shown);
  }
  mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST_MAIN(CASE(weights_made_while_loading_are_those_of_the_archive),
          CASE(a_cpu_and_several_targets_get_an_archive),
          CASE(a_model_that_changes_while_it_is_loaded_is_refused),
          CASE(a_tokenizer_that_changes_while_it_is_opened_is_refused),
          CASE(writing_a_bundle_to_a_slow_disk_shows_bytes_and_time))
