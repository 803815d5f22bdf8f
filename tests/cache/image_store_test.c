// The store of kernel images that a package ships: its file, which images it has, and compilations with it.
#include "cache/image_store.h"

#include "base/memory.h"
#include "compiler/common_images.h"
#include "tests/support/check.h"
#include "tests/support/random_llama.h"

static char root[64];
static const random_llama_t one_layer = {256, 512, 4, 2, 64, 1, 320, false, 10000};
static char notes[8192];

static void collect(void *user, mlx_report_kind_t kind, const char *text) {
  (void)user;
  if (kind == MLX_REPORT_NOTE) snprintf(notes + strlen(notes), sizeof notes - strlen(notes), "%s\n", text);
}

static const char *in_root(const char *name) {
  static char paths[4][128];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", root, name);
  return path;
}

// ----------------------------------------------------------------------------------------------------------
// The file

static void key_of(int nth, char out_hex[MLX_DIGEST_HEX]) { mlx_digest_bytes(&nth, sizeof nth, out_hex); }

static void write_three(const char *path) {
  mlx_stored_image_t images[3] = {
      {.bytes = "first", .length = 5}, {.bytes = "", .length = 0}, {.bytes = "third!", .length = 6}};
  for (int i = 0; i < 3; ++i) key_of(i, images[i].key);
  CHECK_OK(mlx_image_store_write(path, images, 3));
}

TEST(store_returns_the_images_that_were_written) {
  mlx_image_store_t store;
  const void *bytes;
  size_t length;
  char key[MLX_DIGEST_HEX];
  write_three(in_root("three"));
  CHECK_OK(mlx_image_store_open(in_root("three"), &store));
  CHECK_INT(store.count, 3);
  key_of(0, key);
  CHECK_OK(mlx_image_store_find(&store, key, &bytes, &length));
  CHECK(length == 5 && !memcmp(bytes, "first", 5));
  key_of(1, key);
  CHECK_OK(mlx_image_store_find(&store, key, &bytes, &length));
  CHECK(bytes && !length);
  key_of(2, key);
  CHECK_OK(mlx_image_store_find(&store, key, &bytes, &length));
  CHECK(length == 6 && !memcmp(bytes, "third!", 6));
  key_of(3, key);
  CHECK_OK(mlx_image_store_find(&store, key, &bytes, &length));
  CHECK(!bytes);
  mlx_image_store_close(&store);
}

// Every changed byte, and every shorter file, is found: in the table when the store is opened, in an image
// when it is read.
TEST(damage_is_found_before_an_image_is_used) {
  char *bytes;
  size_t size;
  write_three(in_root("whole"));
  CHECK_OK(mlx_read_file(in_root("whole"), 1 << 20, &bytes, &size));
  for (size_t i = 0; i < 2 * size; ++i) {
    const bool cut = i >= size;
    if (!cut) bytes[i] ^= 1;
    mlx_image_store_t store;
    const mlx_map_t map = {.data = (const uint8_t *)bytes, .size = cut ? i - size : size};
    mlx_status_t status = mlx_image_store_parse("test", map, &store);
    for (int nth = 0; !status && nth < 3; ++nth) {
      char key[MLX_DIGEST_HEX];
      const void *found;
      size_t length;
      key_of(nth, key);
      status = mlx_image_store_find(&store, key, &found, &length);
    }
    CHECK_INT(mlx_status_code(status), MLX_INVALID_INPUT);
    mlx_status_free(status);
    if (!cut) bytes[i] ^= 1;
  }
  mlx_free(bytes);
}

TEST(missing_store_is_no_error) {
  char *path;
  CHECK_INT(setenv("MLXCEL_IMAGES", in_root("nowhere"), 1), 0);
  CHECK_OK(mlx_image_store_path(80, &path));
  CHECK(!path);
  unsetenv("MLXCEL_IMAGES");
}

// ----------------------------------------------------------------------------------------------------------
// Which images are common

TEST(image_with_a_size_of_a_model_is_not_common) {
  static const struct {
    const char *definitions;
    bool common;
  } images[] = {{"", true},
                {"NAME=mlx_cut\nSPLIT_INPUT=1\nMIXTURE=0\nGAIN=0\nbits=16\n", true},
                {"NAME=mlx_rmsnorm\nNORM=1\nnorm_eps=1e-5f\nwarps=8\n", true},
                {"NAME=mlx_layernorm\nNORM=1\nLAYERNORM=1\nnorm_eps=1e-5f\nwarps=8\n", true},
                {"NAME=mlx_append\nAPPEND=1\nBIAS=1\nTURN=1\nhead_dim=80\nrotary=32\nadjacent=1\n", true},
                {"NAME=mlx_token\nn=64\nk=256\n", false},
                {"VOCAB=320\n", false},
                {"head_dim=64\nlayers=2\n", false},
                {"NAME=mlx_new\nUNKNOWN=1\n", false}};
  for (size_t i = 0; i < sizeof images / sizeof *images; ++i) {
    const mlx_kernel_image_request_t request = {.definitions = (char *)(uintptr_t)images[i].definitions};
    CHECK_INT(mlx_kernel_image_is_common(&request), images[i].common);
  }
}

// ----------------------------------------------------------------------------------------------------------
// Compilations

static const char *model(void) {
  random_llama_dtype = "BF16";
  return random_llama_write(&one_layer, root, "model");
}

// The module for sm_80, with an empty cache named |cache_name|. |images| is the folder of the store.
static char *compile(const char *cache_name, const char *images, size_t *out_length) {
  const mlx_report_t report = {.emit = collect};
  const mlx_compile_options_t options = {.target = "cuda:sm_80",
                                         .weights = MLX_WEIGHTS_AUTO,
                                         .kernels = MLX_KERNELS_REQUIRED,
                                         .module_only = true,
                                         .verbose = true,
                                         .report = &report};
  mlx_cache_t *cache;
  mlx_compiled_t compiled;
  char *module;
  notes[0] = 0;
  CHECK_INT(setenv("MLXCEL_IMAGES", images, 1), 0);
  CHECK_OK(mlx_cache_open(in_root(cache_name), &cache));
  CHECK_OK(mlx_compile(model(), &options, cache, &compiled));
  CHECK_OK(mlx_read_file(compiled.vmfb_path, 64 << 20, &module, out_length));
  mlx_compiled_release(&compiled);
  mlx_cache_close(cache);
  unsetenv("MLXCEL_IMAGES");
  return module;
}

static size_t count_of(const char *before) {
  const char *found = strstr(notes, before);
  if (!found) CHECK_FAIL("no '%s' in: %s", before, notes);
  return (size_t)atoi(found + strlen(before));
}

// The common images of the model, from the cache of a compilation without a store.
static void request_common(mlx_kernels_t *common) {
  const mlx_compile_options_t options = {.target = "cuda:sm_80", .weights = MLX_WEIGHTS_AUTO};
  *common = (mlx_kernels_t){.gpu = mlx_gpu_kind_find(80)};
  CHECK_OK(mlx_common_images_add(model(), &options, common));
  CHECK_OK(mlx_common_images_add(model(), &options, common));  // adds nothing
}

static size_t write_store(const char *folder) {
  mlx_nvrtc_t *nvrtc;
  mlx_kernels_t common;
  mlx_image_counts_t counts = {0};
  char path[160];
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  request_common(&common);
  const size_t count = common.count;
  mlx_cache_t *cache;
  CHECK_OK(mlx_cache_open(in_root("first"), &cache));
  common.cache = cache;
  common.counts = &counts;
  CHECK_OK(mlx_make_dirs(folder, 0700));
  snprintf(path, sizeof path, "%s/sm_80.images", folder);
  CHECK_OK(mlx_common_images_write(&common, nvrtc, in_root("parts"), NULL, path));
  CHECK_INT(counts.cached, count);
  mlx_kernels_clear(&common);
  mlx_cache_close(cache);
  mlx_nvrtc_close(nvrtc);
  return count;
}

TEST(compilation_with_a_store_runs_nvrtc_for_the_other_images_only_and_gives_the_same_module) {
  size_t length, stored_length;
  char *plain = compile("first", in_root("nowhere"), &length);
  CHECK_CONTAINS(notes, "kernels: 0 of ");
  const size_t all = count_of(" images from the installed store, 0 from the cache, ");
  const size_t count = write_store(in_root("images"));
  CHECK(count > all / 3 && count < all);
  char *stored = compile("second", in_root("images"), &stored_length);
  char expected[160];
  snprintf(expected, sizeof expected,
           "kernels: %zu of %zu images from the installed store, 0 from the cache, %zu compiled by NVRTC",
           count, all, all - count);
  CHECK_CONTAINS(notes, expected);
  CHECK(length == stored_length && !memcmp(plain, stored, length));
  mlx_free(plain);
  mlx_free(stored);
}

// Compiles one common image without a cache, and returns where it came from.
static mlx_image_counts_t make_one(const char *images, const mlx_nvrtc_t *nvrtc, const char *definitions) {
  const mlx_report_t report = {.emit = collect};
  mlx_image_counts_t counts = {0};
  mlx_kernels_t kernels = {.gpu = mlx_gpu_kind_find(80), .counts = &counts};
  const char *file;
  notes[0] = 0;
  CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_PACKED, definitions, (mlx_kernel_build_t){0}, &file));
  CHECK_INT(setenv("MLXCEL_IMAGES", images, 1), 0);
  CHECK_OK(mlx_kernels_compile(&kernels, nvrtc, in_root("one"), &report));
  unsetenv("MLXCEL_IMAGES");
  mlx_kernels_clear(&kernels);
  return counts;
}

// Writes a store with one image: that of |definitions|, under its key or under the key of another source.
static void write_one(const char *folder, const mlx_nvrtc_t *nvrtc, const char *definitions, bool other_key) {
  mlx_kernels_t kernels = {.gpu = mlx_gpu_kind_find(80)};
  mlx_stored_image_t image = {0};
  const char *file;
  char path[160];
  CHECK_OK(mlx_make_dirs(folder, 0700));
  CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_PACKED, definitions, (mlx_kernel_build_t){0}, &file));
  CHECK_OK(mlx_kernels_compile(&kernels, nvrtc, in_root("one"), NULL));
  snprintf(path, sizeof path, "%s/%s", in_root("one"), file);
  CHECK_OK(mlx_read_file(path, 64 << 20, &image.bytes, &image.length));
  CHECK_OK(mlx_kernels_key(&kernels, nvrtc, &kernels.images[0], image.key));
  if (other_key) image.key[0] = image.key[0] == '0' ? '1' : '0';
  snprintf(path, sizeof path, "%s/sm_80.images", folder);
  CHECK_OK(mlx_image_store_write(path, &image, 1));
  mlx_free(image.bytes);
  mlx_kernels_clear(&kernels);
}

TEST(damaged_store_and_one_for_other_sources_are_not_used) {
  static const char cut[] = "NAME=mlx_cut\nSPLIT_INPUT=1\nMIXTURE=0\nGAIN=0\nLAYERNORM=0\nPARTIALS=0\n";
  mlx_nvrtc_t *nvrtc;
  char *bytes;
  size_t size;
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  write_one(in_root("good"), nvrtc, cut, false);
  CHECK_INT(make_one(in_root("good"), nvrtc, cut).stored, 1);
  CHECK_TEXT(notes, "");
  write_one(in_root("other"), nvrtc, cut, true);
  CHECK_INT(make_one(in_root("other"), nvrtc, cut).compiled, 1);
  CHECK_TEXT(notes, "");
  CHECK_OK(mlx_read_file(in_root("good/sm_80.images"), 64 << 20, &bytes, &size));
  bytes[size - 1] ^= 1;
  CHECK_OK(mlx_write_file(in_root("good/sm_80.images"), bytes, size));
  CHECK_INT(make_one(in_root("good"), nvrtc, cut).compiled, 1);
  CHECK_CONTAINS(notes, "some of the installed kernel images are damaged; NVRTC compiled them");
  bytes[20] ^= 1;
  CHECK_OK(mlx_write_file(in_root("good/sm_80.images"), bytes, size));
  CHECK_INT(make_one(in_root("good"), nvrtc, cut).compiled, 1);
  CHECK_CONTAINS(notes, "the table does not have its digest; NVRTC compiles all kernels");
  mlx_free(bytes);
  mlx_nvrtc_close(nvrtc);
}

int main(int argc, char **argv) {
  snprintf(root, sizeof root, "/tmp/mlxcel-store-XXXXXX");
  if (!mkdtemp(root)) return 1;
  const check_case_t cases[] = {
      CASE(store_returns_the_images_that_were_written),
      CASE(damage_is_found_before_an_image_is_used),
      CASE(missing_store_is_no_error),
      CASE(image_with_a_size_of_a_model_is_not_common),
      CASE(compilation_with_a_store_runs_nvrtc_for_the_other_images_only_and_gives_the_same_module),
      CASE(damaged_store_and_one_for_other_sources_are_not_used),
  };
  const int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
