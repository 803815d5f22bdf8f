// Log-probability files: valid files are read, invalid files are refused with the reason.
#include "artifact/logprobs.h"

#include <math.h>

#include "tests/support/check.h"

enum { VOCAB = 3, CHUNK = 8, CHUNKS = 2, SCORED = 3, ROWS = CHUNKS * SCORED };

typedef struct file {
  mlx_logprobs_header_t header;
  int32_t ids[CHUNKS * CHUNK];
  float rows[ROWS][VOCAB];
} file_t;

static file_t make_file(void) {
  file_t file = {0};
  mlx_logprobs_header_initialize(VOCAB, CHUNK, CHUNKS, &file.header);
  for (int i = 0; i < CHUNKS * CHUNK; ++i) file.ids[i] = i % VOCAB;
  for (int i = 0; i < ROWS; ++i) {
    file.rows[i][0] = logf(0.75f);
    file.rows[i][1] = logf(0.25f);
    file.rows[i][2] = -INFINITY;
  }
  return file;
}

static mlx_status_t read_file(const file_t *file, size_t size, mlx_logprobs_t *out) {
  return mlx_logprobs_read("ref", (const uint8_t *)file, size, out);
}

TEST(valid_file_is_read_row_by_row) {
  const file_t file = make_file();
  mlx_logprobs_t out;
  float row[VOCAB];
  CHECK_OK(read_file(&file, sizeof file, &out));
  CHECK_INT(mlx_logprobs_scored_tokens(&out.header), SCORED);
  CHECK_INT(out.row_count, ROWS);
  CHECK_OK(mlx_logprobs_check(&out, &file.header, file.ids));
  CHECK_OK(mlx_logprobs_row(&out, ROWS - 1, row));
  CHECK(!memcmp(row, file.rows[ROWS - 1], sizeof row));
}

TEST(every_wrong_file_size_is_refused) {
  struct {
    file_t file;
    char more[16];
  } longer = {.file = make_file()};
  mlx_logprobs_t out;
  for (size_t size = 0; size <= sizeof longer; ++size) {
    if (size != sizeof longer.file)
      CHECK_ERROR(read_file(&longer.file, size, &out), MLX_INVALID_INPUT,
                  size < 40 ? "it is shorter than its header" : "its size does not match");
  }
}

TEST(header_values_out_of_range_are_refused) {
  static const int64_t wrong[][3] = {{0, 8, 2}, {-3, 8, 2},        {INT64_MAX, 8, 2},
                                     {3, 3, 2}, {3, -8, -2},       {3, INT64_MAX, 1},
                                     {3, 8, 0}, {3, 8, INT64_MIN}, {3, 8, INT64_C(1) << 40}};
  mlx_logprobs_t out;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    file_t file = make_file();
    mlx_logprobs_header_initialize(wrong[i][0], wrong[i][1], wrong[i][2], &file.header);
    CHECK_ERROR(read_file(&file, sizeof file, &out), MLX_INVALID_INPUT,
                "its header has a value out of range");
  }
  file_t file = make_file();
  mlx_logprobs_header_initialize(1 << 24, 1 << 20, INT32_MAX, &file.header);  // 2^69 bytes
  CHECK_ERROR(read_file(&file, sizeof file, &out), MLX_INVALID_INPUT, "its size does not match its header");
  file.header.magic[15] = '2';
  CHECK_ERROR(read_file(&file, sizeof file, &out), MLX_INVALID_INPUT,
              "it does not start with 'mlxcel-logprobs1'");
}

TEST(different_text_or_shape_is_refused) {
  const file_t file = make_file();
  file_t other = make_file();
  mlx_logprobs_t out;
  CHECK_OK(read_file(&file, sizeof file, &out));
  other.ids[CHUNKS * CHUNK - 1] ^= 1;
  CHECK_ERROR(mlx_logprobs_check(&out, &other.header, other.ids), MLX_INVALID_INPUT,
              "it was computed from a different text");
  ++other.header.vocab;
  CHECK_ERROR(mlx_logprobs_check(&out, &other.header, other.ids), MLX_INVALID_INPUT,
              "it has a different vocabulary size, chunk size or chunk count");
}

TEST(row_that_does_not_sum_to_1_is_refused) {
  static const float wrong[] = {NAN, INFINITY, 0.5f, -0.01f, 88.f};
  mlx_logprobs_t out;
  float row[VOCAB];
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    file_t file = make_file();
    file.rows[2][1] = wrong[i];
    CHECK_OK(read_file(&file, sizeof file, &out));
    CHECK_OK(mlx_logprobs_row(&out, 1, row));
    CHECK_ERROR(mlx_logprobs_row(&out, 2, row), MLX_INVALID_INPUT,
                "the probabilities of a row do not sum to 1");
  }
}

TEST_MAIN(CASE(valid_file_is_read_row_by_row), CASE(every_wrong_file_size_is_refused),
          CASE(header_values_out_of_range_are_refused), CASE(different_text_or_shape_is_refused),
          CASE(row_that_does_not_sum_to_1_is_refused))
