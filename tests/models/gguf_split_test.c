// Split GGUF models: any part opens the whole model, and parts that do not belong together are refused.
#include <unistd.h>

#include "base/file.h"
#include "models/model.h"
#include "tests/support/check.h"
#include "tests/support/import_files.h"

static char folder[64];

static void begin(void) {
  strcpy(folder, "/tmp/mlx_gguf_split_test_XXXXXX");
  CHECK(mkdtemp(folder));
}
static void end(void) { CHECK_OK(mlx_remove_tree(folder)); }

static const char *path_of(const char *name) {
  static char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static const char *const file_names[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                         "m-00003-of-00003.gguf"};

// The contents of a part. A test changes one member to make an invalid part.
typedef struct part {
  uint64_t number, count, tensors;  // split.no, split.count, split.tensors.count
  const char *architecture;         // general.architecture; NULL: omitted, as are the next three
  const char *title;                // general.name
  const char *extra;                // key of a field that only this part has
  const char *tensor;               // name of a tensor F32 [8], filled with the part's number
  uint64_t alignment;               // general.alignment; 0: omitted
} part_t;

// Three valid parts, as llama-gguf-split writes them: the metadata is in the first.
static const part_t good[] = {
    {.number = 0, .count = 3, .tensors = 3, .architecture = "llama", .title = "M", .tensor = "b"},
    {.number = 1, .count = 3, .tensors = 3, .tensor = "c"},
    {.number = 2, .count = 3, .tensors = 3, .tensor = "a"}};

static void write_part(const char *name, const part_t *part) {
  bytes_t file = {0};
  uint64_t fields = 3u + !!part->architecture + !!part->title + !!part->extra + !!part->alignment;
  put_header(&file, 3, part->tensor ? 1 : 0, fields);
  if (part->architecture) put_field_string(&file, "general.architecture", part->architecture);
  if (part->title) put_field_string(&file, "general.name", part->title);
  if (part->extra) put_field_string(&file, part->extra, "x");
  if (part->alignment) put_field(&file, "general.alignment", MLX_GGUF_U32, part->alignment, 4);
  put_split(&file, part->number, part->count, part->tensors);
  if (part->tensor) put_tensor(&file, part->tensor, 8, 0, 0, 0);
  put_padding(&file, part->alignment ? part->alignment : 32);
  for (int i = 0; part->tensor && i < 32; ++i) put_uint(&file, part->number, 1);
  CHECK_OK(mlx_write_file(path_of(name), file.data, file.length));
  mlx_text_clear(&file);
}

static void write_good(void) {
  for (int i = 0; i < 3; ++i) write_part(file_names[i], &good[i]);
}

// Opens each existing part and expects the error.
static void check_all_refuse(mlx_code_t code, const char *message) {
  for (int i = 0; i < 3; ++i) {
    mlx_source_t *source;
    if (!mlx_is_file(path_of(file_names[i]))) continue;
    CHECK_ERROR(mlx_source_open(path_of(file_names[i]), &source), code, message);
    CHECK(!source);
  }
}

// Replaces part |index| of a valid model and expects the error.
static void check_part_refused(int index, const part_t *part, const char *message) {
  write_good();
  write_part(file_names[index], part);
  check_all_refuse(MLX_INVALID_INPUT, message);
}

static void check_model(const mlx_source_t *source, const char *architecture) {
  static const struct {
    const char *name;
    int part;
  } tensors[] = {{"a", 2}, {"b", 0}, {"c", 1}};
  CHECK_TEXT(mlx_source_architecture(source), architecture);
  CHECK_INT(mlx_source_tensor_count(source), 3);
  for (size_t i = 0; i < 3; ++i) {
    const mlx_tensor_t *tensor = mlx_source_tensor(source, NULL, tensors[i].name);
    CHECK(tensor && tensor == mlx_source_tensor_at(source, i));
    CHECK_INT(tensor->size, 32);
    CHECK(tensor->data[0] == tensors[i].part && tensor->data[31] == tensors[i].part);
    CHECK_TEXT(mlx_source_file(source, i), path_of(file_names[i]));
  }
  CHECK(!mlx_source_tensor(source, NULL, "d") && !mlx_source_tensor_at(source, 3) &&
        !mlx_source_file(source, 3));
}

TEST(any_part_opens_the_whole_model) {
  begin();
  write_good();
  for (int i = 0; i < 3; ++i) {
    mlx_source_t *source;
    const char *title;
    CHECK_OK(mlx_source_open(path_of(file_names[i]), &source));
    CHECK_TEXT(mlx_source_path(source), path_of(file_names[i]));
    CHECK_OK(mlx_source_string(source, NULL, "general.name", &title, NULL));
    CHECK_TEXT(title, "M");
    check_model(source, "llama");
    mlx_source_close(source);
  }
  end();
}

// Also a first part without tensors is valid.
TEST(parts_may_repeat_fields_and_differ_in_alignment) {
  begin();
  mlx_source_t *source;
  write_good();
  write_part(file_names[1], &(part_t){.number = 1,
                                      .count = 3,
                                      .tensors = 3,
                                      .architecture = "llama",
                                      .title = "M",
                                      .tensor = "c",
                                      .alignment = 64});
  CHECK_OK(mlx_source_open(path_of(file_names[0]), &source));
  check_model(source, "llama");
  mlx_source_close(source);
  for (int i = 0; i < 3; ++i) {
    part_t part = good[i];
    part.tensors = 2;
    if (!i) part.tensor = NULL;
    write_part(file_names[i], &part);
  }
  CHECK_OK(mlx_source_open(path_of(file_names[2]), &source));
  CHECK_INT(mlx_source_tensor_count(source), 2);
  mlx_source_close(source);
  end();
}

TEST(a_split_count_of_0_or_1_is_a_single_file) {
  begin();
  mlx_source_t *source;
  for (uint64_t count = 0; count < 2; ++count) {
    write_part("whole.gguf", &(part_t){.count = count, .tensors = 1, .architecture = "llama", .tensor = "a"});
    CHECK_OK(mlx_source_open(path_of("whole.gguf"), &source));
    CHECK_TEXT(mlx_source_file(source, 0), path_of("whole.gguf"));
    CHECK(!mlx_source_file(source, 1));
    mlx_source_close(source);
  }
  end();
}

TEST(a_missing_part_is_named) {
  for (int missing = 0; missing < 3; ++missing) {
    char message[300];
    mlx_source_t *source;
    begin();
    write_good();
    CHECK(!unlink(path_of(file_names[missing])));
    snprintf(message, sizeof message, "'%s' is missing: part %d of 3 of the model",
             path_of(file_names[missing]), missing + 1);
    check_all_refuse(MLX_NOT_FOUND, message);
    mlx_status_t status = mlx_source_open(path_of(file_names[(missing + 1) % 3]), &source);
    CHECK_CONTAINS(mlx_status_hint_text(status), "download it into the folder of");
    mlx_status_free(status);
    end();
  }
}

TEST(a_renamed_part_is_refused_with_the_expected_name) {
  static const char *const names[] = {"m.gguf", "m-00001-of-00003.gguf", "m-00002-of-00004.gguf",
                                      "m-2-of-3.gguf", "-00002-of-00003.gguf.gguf"};
  begin();
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    mlx_source_t *source;
    write_part(names[i], &good[1]);
    CHECK_ERROR(mlx_source_open(path_of(names[i]), &source), MLX_INVALID_INPUT,
                "its metadata has part 2 of 3, but its name does not end in '-00002-of-00003.gguf'");
  }
  end();
}

TEST(parts_with_wrong_numbers_are_refused) {
  begin();
  write_good();
  write_part(file_names[2], &good[1]);
  check_all_refuse(MLX_INVALID_INPUT,
                   "m-00003-of-00003.gguf: its metadata has part 2 of 3, but its name does not end in "
                   "'-00002-of-00003.gguf'");
  write_part(file_names[2], &(part_t){.number = 2, .count = 4, .tensors = 3, .tensor = "a"});
  mlx_source_t *source;
  CHECK_ERROR(mlx_source_open(path_of(file_names[0]), &source), MLX_INVALID_INPUT,
              "m-00003-of-00003.gguf: its metadata has part 3 of 4");
  write_part(file_names[2], &(part_t){.number = 0, .count = 0, .architecture = "llama", .tensor = "a"});
  CHECK_ERROR(mlx_source_open(path_of(file_names[0]), &source), MLX_INVALID_INPUT,
              "m-00003-of-00003.gguf: its metadata has part 1 of 1");
  write_part(file_names[2], &(part_t){.number = 3, .count = 3, .tensors = 3});
  check_all_refuse(MLX_INVALID_INPUT, "m-00003-of-00003.gguf: field 'split.no' must be between 0 and 2");
  end();
}

TEST(parts_of_different_models_are_refused) {
  begin();
  check_part_refused(1, &(part_t){.number = 1, .count = 3, .tensors = 4, .tensor = "c"},
                     "m-00002-of-00003.gguf: field 'split.tensors.count' differs from the one in '");
  check_part_refused(2,
                     &(part_t){.number = 2, .count = 3, .tensors = 3, .tensor = "a", .architecture = "qwen2"},
                     "m-00003-of-00003.gguf: field 'general.architecture' differs from the one in '");
  check_part_refused(1, &(part_t){.number = 1, .count = 3, .tensors = 3, .tensor = "c", .title = "N"},
                     "m-00002-of-00003.gguf: field 'general.name' differs from the one in '");
  check_part_refused(1, &(part_t){.number = 1, .count = 3, .tensors = 3, .tensor = "c", .title = "MM"},
                     "m-00002-of-00003.gguf: field 'general.name' differs from the one in '");
  check_part_refused(
      1, &(part_t){.number = 1, .count = 3, .tensors = 3, .tensor = "c", .extra = "llama.rope.scaling.type"},
      "m-00002-of-00003.gguf: field 'llama.rope.scaling.type' is missing in the first part, '");
  check_part_refused(2, &(part_t){.number = 2, .count = 3, .tensors = 3, .tensor = "b"},
                     "m-00003-of-00003.gguf: tensor 'b' is also in '");
  check_part_refused(
      2, &(part_t){.number = 2, .count = 3, .tensors = 3},
      "m-00001-of-00003.gguf: field 'split.tensors.count' is 3, but all parts together have 2 tensors");
  end();
}

TEST(a_malformed_part_is_named) {
  static const char *const contents[] = {"", "GGUF", "<html>", "GGUF\003\0\0\0"};
  static const size_t lengths[] = {0, 4, 6, 8};
  begin();
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; ++i) {
    mlx_source_t *source;
    write_good();
    CHECK_OK(mlx_write_file(path_of(file_names[1]), contents[i], lengths[i]));
    CHECK_ERROR(mlx_source_open(path_of(file_names[0]), &source), MLX_INVALID_INPUT,
                "m-00002-of-00003.gguf: ");
    CHECK_ERROR(mlx_source_open(path_of(file_names[2]), &source), MLX_INVALID_INPUT,
                "m-00002-of-00003.gguf: ");
  }
  end();
}

TEST(every_allocation_failure_is_reported) {
  begin();
  write_good();
  mlx_status_t status;
  size_t nth = 0;
  mlx_memory_set_calls(&counting_calls);
  do {
    mlx_source_t *source;
    allocations_left = ++nth;
    status = mlx_source_open(path_of(file_names[1]), &source);
    CHECK(!allocations_left == (mlx_status_code(status) == MLX_OUT_OF_MEMORY));
    allocations_left = 0;
    mlx_source_close(source);
    mlx_status_free(status);
  } while (status);
  mlx_memory_set_calls(NULL);
  CHECK(nth > 30);
  end();
}

TEST_MAIN(CASE(any_part_opens_the_whole_model), CASE(parts_may_repeat_fields_and_differ_in_alignment),
          CASE(a_split_count_of_0_or_1_is_a_single_file), CASE(a_missing_part_is_named),
          CASE(a_renamed_part_is_refused_with_the_expected_name), CASE(parts_with_wrong_numbers_are_refused),
          CASE(parts_of_different_models_are_refused), CASE(a_malformed_part_is_named),
          CASE(every_allocation_failure_is_reported))
