// A packer returns the same bytes for any split of the weights into ranges, in every layout. weights_test.c,
// panels_test.c and quantize_test.c check the bytes themselves.
#include <stdlib.h>

#include "artifact/archive.h"
#include "base/parallel.h"
#include "compiler/weights.h"
#include "tests/support/check.h"
#include "tests/support/command.h"
#include "tests/support/listed.h"
#include "tests/support/packed_subjects.h"

#define WORKERS 4

static const struct {
  const char *name;
  mlx_storage_t storage;
} layouts[] = {
    {"f32 rows", {.dtype = MLX_F32, .layout = MLX_LAYOUT_ROWS}},
    {"bf16 panels", {.dtype = MLX_BF16, .layout = MLX_LAYOUT_PANELS}},
    {"quantized panels", {.dtype = MLX_F32, .as_stored = true, .layout = MLX_LAYOUT_QUANTIZED_PANELS}},
    {"tiles", {.dtype = MLX_F32, .as_stored = true, .layout = MLX_LAYOUT_TILES}},
    {"tiles of 4 bits",
     {.dtype = MLX_F32, .as_stored = true, .layout = MLX_LAYOUT_TILES, .quantize = MLX_QUANTIZE_Q4_1}}};

typedef struct ranges {
  const mlx_weight_reader_t *reader;
  uint64_t *ends;  // of the ranges
  uint8_t *out;
} ranges_t;

static mlx_status_t read_range(void *user, int worker, uint64_t index) {
  const ranges_t *ranges = user;
  const uint64_t start = index ? ranges->ends[index - 1] : 0;
  return ranges->reader->read(ranges->reader->user, worker, start, (size_t)(ranges->ends[index] - start),
                              ranges->out + start);
}

// Reads ranges of at most |most| bytes on several threads.
static void read_split(const mlx_weight_reader_t *reader, size_t most, uint8_t *out) {
  const uint64_t size = reader->size;
  ranges_t ranges = {.reader = reader, .out = out};
  size_t count = 0;
  CHECK_OK(mlx_alloc((size_t)(size / MLX_ARCHIVE_ALIGNMENT) + 1, sizeof *ranges.ends, &ranges.ends));
  for (uint64_t end = 0; end < size; ranges.ends[count++] = end) {
    const size_t blocks = most / MLX_ARCHIVE_ALIGNMENT;
    end += (uint64_t)(1 + (size_t)rand() % blocks) * MLX_ARCHIVE_ALIGNMENT;
    if (end > size) end = size;
  }
  CHECK_OK(mlx_parallel(count, WORKERS, read_range, &ranges));
  mlx_free(ranges.ends);
}

static void check_packer(const mlx_model_t *model, const char *path, size_t layout) {
  static const size_t sizes[] = {256, 40000};
  mlx_packer_t *packer;
  uint8_t *whole, *split;
  CHECK_OK(mlx_packer_create(model, layouts[layout].storage, WORKERS, &packer));
  const mlx_weight_reader_t *reader = mlx_packer_reader(packer);
  const uint64_t size = reader->size;
  CHECK_OK(mlx_alloc((size_t)size, 1, &whole));
  CHECK_OK(mlx_alloc((size_t)size, 1, &split));
  CHECK_OK(reader->read(reader->user, 0, 0, (size_t)size, whole));
  for (size_t i = 0; i < 2; ++i) {
    memset(split, 0xa5, (size_t)size);
    read_split(reader, sizes[i], split);
    if (memcmp(whole, split, (size_t)size))
      CHECK_FAIL("%s as %s: ranges of %zu bytes differ", path, layouts[layout].name, sizes[i]);
  }
  uint64_t sum = 0;
  for (size_t i = 0; i < model->weight_count; ++i)
    sum += reader->size_of(reader->user, model->weights[i].name);
  CHECK(sum <= size && sum + model->weight_count * MLX_ARCHIVE_ALIGNMENT > size);
  CHECK_INT(reader->size_of(reader->user, "no such weight"), 0);
  CHECK_ERROR(reader->read(reader->user, 0, 0, (size_t)size + 1, whole), MLX_INTERNAL, "cannot pack");
  CHECK_ERROR(reader->read(reader->user, 0, 32, 64, whole), MLX_INTERNAL, "cannot pack");
  CHECK_ERROR(reader->read(reader->user, WORKERS, 0, 64, whole), MLX_INTERNAL, "cannot pack");
  mlx_packer_free(packer);
  mlx_free(whole);
  mlx_free(split);
}

static void check_model(const char *path) {
  mlx_model_t *model;
  CHECK_OK(mlx_model_open(path, &model));
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; ++i) check_packer(model, path, i);
  mlx_model_close(model);
}

typedef struct visited {
  const char *folder;
  size_t models;
} visited_t;

static mlx_status_t visit(void *user, const char *name) {
  visited_t *visited = user;
  char path[256], config[300];
  snprintf(path, sizeof path, "%s/%s", visited->folder, name);
  snprintf(config, sizeof config, "%s/model.safetensors", path);
  if (!mlx_ends_with(name, ".gguf") && !mlx_is_file(config)) return NULL;
  check_model(path);
  ++visited->models;
  return NULL;
}

TEST(ranges_of_every_architecture_are_parts_of_the_whole) {
  static const char *const folders[] = {FIXTURES, FIXTURES "gguf"};
  static const char *const listed[] = {"fixtures/", "fixtures/gguf/"};
  for (size_t i = 0; i < 2; ++i) {
    visited_t visited = {.folder = folders[i]};
    CHECK_OK(mlx_list_dir(folders[i], visit, &visited));
    CHECK_INT(visited.models,
              listed_files(listed[i], "/model.safetensors") + listed_files(listed[i], ".gguf"));
  }
}

TEST(ranges_of_quantized_directories_are_parts_of_the_whole) {
  char root[] = "/tmp/mlxcel-packer-XXXXXX";
  CHECK(mkdtemp(root));
  for (size_t i = 0; i < PACKED_SUBJECTS; ++i) {
    folder_t folder;
    write_packed_subject(&packed_subjects[i], root, &folder, NULL);
    check_model(folder.path);
    end(&folder);
  }
  CHECK_OK(mlx_remove_tree(root));
}

// A GPU gets weights from the files of the model at every start only if that is fast.
TEST(packing_is_fast_unless_codes_are_converted) {
  static const char *const fast[] = {FIXTURES "gguf/qwen3.gguf", FIXTURES "gpt_oss-mxfp4.gguf",
                                     FIXTURES "gpt_oss-mxfp4"};
  mlx_storage_t tiles = {.dtype = MLX_F32, .as_stored = true, .layout = MLX_LAYOUT_TILES};
  char root[] = "/tmp/mlxcel-packer-XXXXXX";
  mlx_model_t *model;
  folder_t folder;
  for (size_t i = 0; i < sizeof fast / sizeof *fast; ++i) {
    CHECK_OK(mlx_model_open(fast[i], &model));
    if (!mlx_weights_pack_fast(model, tiles)) CHECK_FAIL("packing %s is slow", fast[i]);
    mlx_model_close(model);
  }
  CHECK(mkdtemp(root));
  for (size_t i = 0; i < PACKED_SUBJECTS; ++i) {
    write_packed_subject(&packed_subjects[i], root, &folder, NULL);
    CHECK_OK(mlx_model_open(folder.path, &model));
    if (mlx_weights_pack_fast(model, tiles)) CHECK_FAIL("packing %s is fast", packed_subjects[i].kind.name);
    mlx_model_close(model);
    end(&folder);
  }
  char path[128];
  write_unquantized(false, root, path);
  CHECK_OK(mlx_model_open(path, &model));
  CHECK(mlx_weights_pack_fast(model, tiles));
  tiles.quantize = MLX_QUANTIZE_Q4_1;
  CHECK(!mlx_weights_pack_fast(model, tiles));
  mlx_model_close(model);
  CHECK_OK(mlx_remove_tree(root));
}

TEST_MAIN(CASE(ranges_of_every_architecture_are_parts_of_the_whole),
          CASE(ranges_of_quantized_directories_are_parts_of_the_whole),
          CASE(packing_is_fast_unless_codes_are_converted))
