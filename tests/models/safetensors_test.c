// The safetensors reader, on files that the tests build in memory.
#include "models/import/safetensors.h"

#include "tests/support/check.h"
#include "tests/support/import_files.h"

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define B "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}"

static mlx_status_t parse(const char *header, size_t data_size, bytes_t *out_bytes,
                          mlx_safetensors_t **out_file) {
  put_safetensors(out_bytes, header, data_size);
  return mlx_safetensors_parse("x.safetensors", (const uint8_t *)out_bytes->data, out_bytes->length,
                               out_file);
}

static void check_refused(const char *header, size_t data_size, mlx_code_t code, const char *part) {
  bytes_t bytes = {0};
  mlx_safetensors_t *file;
  mlx_status_t status = parse(header, data_size, &bytes, &file);
  mlx_text_clear(&bytes);
  if (!status) CHECK_FAIL("%s was accepted", header);
  CHECK_CONTAINS(mlx_status_message(status), "x.safetensors: ");
  CHECK_ERROR(status, code, part);
  CHECK(!file);
}

TEST(tensors_are_read) {
  bytes_t bytes = {0};
  mlx_safetensors_t *file;
  CHECK_OK(parse("{\"__metadata__\":{\"format\":\"pt\"}," B "," A "}  ", 32, &bytes, &file));
  CHECK_INT(file->tensor_count, 2);
  const mlx_tensor_t *a = mlx_safetensors_tensor(file, "a"), *b = mlx_safetensors_tensor(file, "b");
  CHECK(a && a->dtype == MLX_F32 && a->rank == 2 && a->dims[0] == 2 && a->dims[1] == 3 && a->size == 24);
  CHECK(b && b->dtype == MLX_BF16 && b->rank == 1 && b->dims[0] == 4 && b->data == a->data + 24);
  CHECK_INT(a->data[5], 5);
  CHECK(!mlx_safetensors_tensor(file, "c"));
  CHECK(!mlx_safetensors_tensor(file, "__metadata__"));
  mlx_safetensors_close(file);
  mlx_text_clear(&bytes);
}

TEST(scalars_and_empty_tensors_are_read) {
  bytes_t bytes = {0};
  mlx_safetensors_t *file;
  CHECK_OK(
      parse("{\"full\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[0,2]},\"none\":{\"dtype\":\"F32\","
            "\"shape\":[0,9],\"data_offsets\":[0,0]}}",
            2, &bytes, &file));
  CHECK_INT(mlx_safetensors_tensor(file, "full")->rank, 0);
  CHECK_INT(mlx_safetensors_tensor(file, "none")->size, 0);
  mlx_safetensors_close(file);
  mlx_text_clear(&bytes);
}

TEST(truncation_at_every_byte_is_an_error) {
  bytes_t bytes = {0};
  put_safetensors(&bytes, "{" A "," B "}", 32);
  for (size_t size = 0; size < bytes.length; ++size) {
    mlx_safetensors_t *file;
    uint8_t *copy = exact_copy(&bytes, size);
    CHECK_ERROR(mlx_safetensors_parse("x.safetensors", copy, size, &file), MLX_INVALID_INPUT,
                "x.safetensors: ");
    free(copy);
  }
  mlx_text_clear(&bytes);
}

TEST(every_flipped_bit_is_an_error_or_a_valid_read) {
  bytes_t bytes = {0};
  put_safetensors(&bytes, "{\"__metadata__\":{\"k\":\"v\"}," A "," B "}", 32);
  uint8_t *copy = exact_copy(&bytes, bytes.length);
  for (size_t bit = 0; bit < 8 * (bytes.length - 32); ++bit) {
    mlx_safetensors_t *file;
    unsigned sum = 0;
    copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
    mlx_status_t status = mlx_safetensors_parse("x.safetensors", copy, bytes.length, &file);
    if (status) CHECK_CONTAINS(mlx_status_message(status), "x.safetensors: ");
    for (size_t i = 0; !status && i < file->tensor_count; ++i) {
      for (size_t j = 0; j < file->tensors[i].size; ++j) sum += file->tensors[i].data[j];
    }
    CHECK(sum < 100000);
    mlx_status_free(status);
    mlx_safetensors_close(file);
    copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
  }
  free(copy);
  mlx_text_clear(&bytes);
}

TEST(oversized_headers_are_refused_before_allocating) {
  static const uint64_t lengths[] = {UINT64_MAX, UINT64_MAX - 7, UINT64_C(1) << 63, 100000001, 100000000, 17};
  mlx_memory_set_calls(&counting_calls);
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; ++i) {
    bytes_t bytes = {0};
    mlx_safetensors_t *file;
    put_u64(&bytes, lengths[i]);
    mlx_text_puts(&bytes, "{}              ");
    allocated_bytes = 0;
    CHECK_ERROR(mlx_safetensors_parse("x.safetensors", (const uint8_t *)bytes.data, bytes.length, &file),
                MLX_INVALID_INPUT, "x.safetensors: ");
    CHECK(allocated_bytes < 1024);
    mlx_text_clear(&bytes);
  }
  mlx_memory_set_calls(NULL);
}

TEST(headers_that_are_not_an_object_are_refused) {
  check_refused("", 0, MLX_INVALID_INPUT, "does not start with '{'");
  check_refused(" {}", 0, MLX_INVALID_INPUT, "does not start with '{'");
  check_refused("[]", 0, MLX_INVALID_INPUT, "does not start with '{'");
  check_refused("{", 0, MLX_INVALID_INPUT, "not valid JSON");
  check_refused("{" A "," A "}", 24, MLX_INVALID_INPUT, "field 'a' is given twice");
  check_refused("{\"__metadata__\":{\"k\":1}}", 0, MLX_INVALID_INPUT,
                "field '__metadata__' must hold strings only");
  check_refused("{\"__metadata__\":[]}", 0, MLX_INVALID_INPUT, "field '__metadata__' must be an object");
}

TEST(wrong_types_name_the_tensor) {
  check_refused("{\"a\":3}", 0, MLX_INVALID_INPUT, "tensor 'a': its entry must be an object");
  check_refused("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, MLX_INVALID_INPUT,
                "tensor 'a': 'dtype' must be a string");
  check_refused("{\"a\":{\"dtype\":\"U64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, MLX_UNSUPPORTED,
                "tensor 'a': its type U64 is not supported");
  check_refused("{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, MLX_UNSUPPORTED,
                "tensor 'a': its type F8_E4M3");
  check_refused("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, MLX_INVALID_INPUT,
                "tensor 'a': 'shape' must be an array");
  check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, MLX_INVALID_INPUT,
                "tensor 'a': extent 0");
  check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, MLX_INVALID_INPUT,
                "tensor 'a': extent 0");
  check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
                MLX_UNSUPPORTED, "tensor 'a': it has 6 dimensions");
  check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, MLX_INVALID_INPUT,
                "tensor 'a': 'data_offsets' must be two");
  check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,-4]}}", 4, MLX_INVALID_INPUT,
                "tensor 'a': 'data_offsets' must be two");
  check_refused("{\"\\u001b[2J\":{}}", 0, MLX_INVALID_INPUT, "control characters");
}

TEST(sizes_that_overflow_are_refused) {
  check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0,
                MLX_INVALID_INPUT, "overflows");
  check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[18446744073709551615],\"data_offsets\":[0,4]}}", 4,
                MLX_INVALID_INPUT, "extent 0");
  check_refused(
      "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[18446744073709551612,18446744073709551616]}"
      "}",
      4, MLX_INVALID_INPUT, "tensor 'a'");
  check_refused(
      "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[18446744073709551611,18446744073709551615]}"
      "}",
      4, MLX_INVALID_INPUT, "lies outside the file");
}

TEST(gaps_overlaps_and_trailing_bytes_are_refused) {
  check_refused("{" A "}", 32, MLX_INVALID_INPUT, "its tensors end 8 bytes before the end of the file");
  check_refused("{" B "}", 32, MLX_INVALID_INPUT,
                "tensor 'b': its data begins at 24, but the previous tensor ends at 0: there is a gap");
  check_refused("{" A ",\"c\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[20,28]}}", 28,
                MLX_INVALID_INPUT,
                "tensor 'c': its data begins at 20, but the previous tensor ends at 24: they overlap");
  check_refused("{" A ",\"c\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24]}}", 24,
                MLX_INVALID_INPUT, "they overlap");
  check_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, MLX_INVALID_INPUT,
                "do not hold the 8 bytes of its shape");
  check_refused("{" A "}", 23, MLX_INVALID_INPUT,
                "tensor 'a': data range [0, 24] lies outside the file (23 bytes of data)");
}

TEST(every_allocation_failure_is_reported) {
  bytes_t bytes = {0};
  put_safetensors(&bytes, "{" A "," B "}", 32);
  mlx_status_t status;
  size_t nth = 0;
  mlx_memory_set_calls(&counting_calls);
  do {
    mlx_safetensors_t *file;
    allocations_left = ++nth;
    status = mlx_safetensors_parse("x.safetensors", (const uint8_t *)bytes.data, bytes.length, &file);
    CHECK(!allocations_left == (mlx_status_code(status) == MLX_OUT_OF_MEMORY));
    allocations_left = 0;
    mlx_safetensors_close(file);
    mlx_status_free(status);
  } while (status);
  mlx_memory_set_calls(NULL);
  mlx_text_clear(&bytes);
}

TEST_MAIN(CASE(tensors_are_read), CASE(scalars_and_empty_tensors_are_read),
          CASE(truncation_at_every_byte_is_an_error), CASE(every_flipped_bit_is_an_error_or_a_valid_read),
          CASE(oversized_headers_are_refused_before_allocating),
          CASE(headers_that_are_not_an_object_are_refused), CASE(wrong_types_name_the_tensor),
          CASE(sizes_that_overflow_are_refused), CASE(gaps_overlaps_and_trailing_bytes_are_refused),
          CASE(every_allocation_failure_is_reported))
