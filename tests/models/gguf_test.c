// The GGUF reader and the tokenizer.json it writes, on files that the tests build in memory.
#include <math.h>

#include "base/budget.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/json.h"
#include "models/import/gguf.h"
#include "models/import/gguf_tokenizer.h"
#include "models/import/gguf_vocabulary.h"
#include "tests/support/check.h"
#include "tests/support/import_files.h"

// Parses |file|, expects this error, and clears |file|.
#define CHECK_REFUSED(file, code, part)                                              \
  do {                                                                               \
    mlx_gguf_t *gguf_;                                                               \
    uint8_t *copy_ = exact_copy(&(file), (file).length);                             \
    CHECK_ERROR(mlx_gguf_parse("x.gguf", copy_, (file).length, &gguf_), code, part); \
    free(copy_);                                                                     \
    mlx_text_clear(&(file));                                                         \
  } while (0)

static mlx_gguf_t *parse(const bytes_t *file) {
  mlx_gguf_t *gguf;
  CHECK_OK(mlx_gguf_parse("x.gguf", (const uint8_t *)file->data, file->length, &gguf));
  return gguf;
}

// Reads everything a caller could. Under the sanitizers this proves that parsing checked all bounds.
static void read_all(const mlx_gguf_t *gguf) {
  int64_t integer;
  double number;
  bool truth, found;
  const char *string;
  char *json;
  size_t length, sum = 0;
  int32_t ids[4];
  for (size_t i = 0; i < gguf->field_count; ++i) {
    const char *key = gguf->fields[i].key;
    CHECK(mlx_gguf_find(gguf, key) == &gguf->fields[i]);
    mlx_status_free(mlx_gguf_int(gguf, key, INT64_MIN, INT64_MAX, &integer, &found));
    mlx_status_free(mlx_gguf_number(gguf, key, &number, &found));
    mlx_status_free(mlx_gguf_bool(gguf, key, &truth, &found));
    mlx_status_free(mlx_gguf_string(gguf, key, &string, &found));
  }
  for (size_t i = 0; i < gguf->tensor_count; ++i) {
    CHECK(mlx_gguf_tensor(gguf, gguf->tensors[i].name) == &gguf->tensors[i]);
    for (size_t j = 0; j < gguf->tensors[i].size; ++j) sum += gguf->tensors[i].data[j];
  }
  CHECK(sum < SIZE_MAX);
  mlx_status_free(mlx_gguf_eos_ids(gguf, ids, 4, &length));
  mlx_status_t status = mlx_gguf_tokenizer_json(gguf, &json, &length);
  if (!status) mlx_free(json);
  mlx_status_free(status);
}

TEST(fields_and_tensors_are_read) {
  bytes_t file = {0};
  size_t start = put_sample_gguf(&file);
  mlx_gguf_t *gguf = parse(&file);
  int64_t integer;
  double number;
  const char *text;
  bool truth = true;
  CHECK_TEXT(gguf->architecture, "llama");
  CHECK_OK(mlx_gguf_int(gguf, ".block_count", 1, 100, &integer, NULL));
  CHECK_INT(integer, 30);
  CHECK_OK(mlx_gguf_int(gguf, "llama.signed", -5, 5, &integer, NULL));
  CHECK_INT(integer, -2);
  CHECK_OK(mlx_gguf_number(gguf, ".rope.freq_base", &number, NULL));
  CHECK(number == 100000.0);
  CHECK_OK(mlx_gguf_number(gguf, ".double", &number, NULL));
  CHECK(number == 2.5);
  CHECK_OK(mlx_gguf_number(gguf, ".block_count", &number, NULL));
  CHECK(number == 30.0);
  CHECK_OK(mlx_gguf_bool(gguf, "tokenizer.ggml.add_bos_token", &truth, NULL));
  CHECK(!truth);
  CHECK_OK(mlx_gguf_string(gguf, "tokenizer.ggml.pre", &text, NULL));
  CHECK_TEXT(text, "smollm");
  const mlx_tensor_t *tensor = mlx_gguf_tensor(gguf, "a.weight");
  CHECK(tensor && tensor->dtype == MLX_F32 && tensor->rank == 2);
  CHECK_INT(tensor->dims[0], 2);  // outermost first
  CHECK_INT(tensor->dims[1], 32);
  CHECK_INT(tensor->size, 256);
  CHECK(tensor->data == (const uint8_t *)file.data + start);
  CHECK(mlx_gguf_tensor(gguf, "b.weight")->dtype == MLX_Q8_0);
  CHECK(!mlx_gguf_tensor(gguf, "c.weight"));
  mlx_gguf_close(gguf);
  mlx_text_clear(&file);
}

// The two versions have the same layout.
TEST(version_2_reads_the_same_as_version_3) {
  bytes_t file = {0};
  put_sample_gguf(&file);
  mlx_gguf_t *three = parse(&file);
  file.data[4] = 2;
  mlx_gguf_t *two = parse(&file);
  CHECK_TEXT(two->architecture, "llama");
  CHECK_INT(two->field_count, three->field_count);
  CHECK_INT(two->tensor_count, three->tensor_count);
  for (size_t i = 0; i < two->field_count; ++i) CHECK(two->fields[i].data == three->fields[i].data);
  for (size_t i = 0; i < two->tensor_count; ++i) CHECK(two->tensors[i].data == three->tensors[i].data);
  read_all(two);
  mlx_gguf_close(two);
  mlx_gguf_close(three);
  mlx_text_clear(&file);
}

TEST(truncation_at_every_byte_is_an_error) {
  bytes_t file = {0};
  put_sample_gguf(&file);
  for (size_t size = 0; size < file.length; ++size) {
    mlx_gguf_t *gguf;
    uint8_t *copy = exact_copy(&file, size);
    CHECK_ERROR(mlx_gguf_parse("x.gguf", copy, size, &gguf), MLX_INVALID_INPUT, "x.gguf: ");
    CHECK(!gguf);
    free(copy);
  }
  mlx_text_clear(&file);
}

TEST(truncation_hints_to_download_again) {
  bytes_t file = {0};
  mlx_gguf_t *gguf;
  put_sample_gguf(&file);
  mlx_status_t status = mlx_gguf_parse("x.gguf", (const uint8_t *)file.data, file.length - 1, &gguf);
  CHECK_CONTAINS(mlx_status_message(status), "tensor 'b.weight': its data, 34 bytes at");
  CHECK_CONTAINS(mlx_status_hint_text(status), "download the file again");
  mlx_status_free(status);
  mlx_text_clear(&file);
}

TEST(every_flipped_bit_is_an_error_or_a_valid_read) {
  bytes_t file = {0};
  size_t start = put_sample_gguf(&file);
  uint8_t *copy = exact_copy(&file, file.length);
  for (size_t bit = 0; bit < 8 * start; ++bit) {
    mlx_gguf_t *gguf;
    copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
    mlx_status_t status = mlx_gguf_parse("x.gguf", copy, file.length, &gguf);
    if (status) {
      CHECK_CONTAINS(mlx_status_message(status), "x.gguf: ");
      CHECK(mlx_status_code(status) == MLX_INVALID_INPUT || mlx_status_code(status) == MLX_UNSUPPORTED);
    } else {
      read_all(gguf);
    }
    mlx_status_free(status);
    mlx_gguf_close(gguf);
    copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
  }
  free(copy);
  mlx_text_clear(&file);
}

TEST(oversized_counts_are_refused_before_allocating) {
  static const uint64_t counts[] = {UINT64_MAX, UINT64_C(1) << 63, UINT64_C(1) << 61, UINT64_C(1) << 32,
                                    1000};
  mlx_memory_set_calls(&counting_calls);
  for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i) {
    bytes_t fields = {0}, tensors = {0}, array = {0}, strings = {0}, text = {0};
    put_header(&fields, 3, 0, counts[i]);
    put_header(&tensors, 3, counts[i], 0);
    put_header(&array, 3, 0, 1);
    put_field_array(&array, "k", MLX_GGUF_U64, counts[i]);
    put_header(&strings, 3, 0, 1);
    put_field_array(&strings, "k", MLX_GGUF_STRING, counts[i]);
    put_header(&text, 3, 0, 1);
    put_field(&text, "k", MLX_GGUF_STRING, counts[i], 8);
    allocated_bytes = 0;
    CHECK_REFUSED(fields, MLX_INVALID_INPUT, "x.gguf: the header declares");
    CHECK_REFUSED(tensors, MLX_INVALID_INPUT, "x.gguf: the header declares");
    CHECK_REFUSED(array, MLX_INVALID_INPUT, "x.gguf: field 'k': the file ends inside it");
    CHECK_REFUSED(strings, MLX_INVALID_INPUT, "x.gguf: field 'k': the file ends inside it");
    CHECK_REFUSED(text, MLX_INVALID_INPUT, "x.gguf: field 'k': the file ends inside it");
    CHECK(allocated_bytes < 16384);
  }
  mlx_memory_set_calls(NULL);
}

TEST(every_allocation_failure_is_reported) {
  bytes_t file = {0};
  put_sample_gguf(&file);
  mlx_status_t status;
  size_t nth = 0;
  mlx_memory_set_calls(&counting_calls);
  do {
    mlx_gguf_t *gguf;
    char *json = NULL;
    size_t length;
    allocations_left = ++nth;
    status = mlx_gguf_parse("x.gguf", (const uint8_t *)file.data, file.length, &gguf);
    if (!status) status = mlx_gguf_tokenizer_json(gguf, &json, &length);
    bool failed = !allocations_left;
    CHECK(failed == (mlx_status_code(status) == MLX_OUT_OF_MEMORY));
    allocations_left = 0;
    mlx_free(json);
    mlx_gguf_close(gguf);
    mlx_status_free(status);
  } while (status);
  mlx_memory_set_calls(NULL);
  CHECK(nth > 30);
  mlx_text_clear(&file);
}

TEST(unsupported_versions_are_refused_by_number) {
  bytes_t one = {0}, four = {0}, big = {0}, other = {0};
  put_header(&one, 1, 0, 0);
  CHECK_REFUSED(one, MLX_UNSUPPORTED, "x.gguf: GGUF version 1");
  put_header(&four, 4, 0, 0);
  CHECK_REFUSED(four, MLX_UNSUPPORTED, "x.gguf: GGUF version 4");
  put_header(&big, 0x03000000, 0, 0);
  CHECK_REFUSED(big, MLX_UNSUPPORTED, "x.gguf: big-endian GGUF file");
  mlx_text_puts(&other, "<html>");
  CHECK_REFUSED(other, MLX_INVALID_INPUT, "x.gguf: not a GGUF file");
}

TEST(wrong_types_name_the_field) {
  bytes_t file = {0};
  put_sample_gguf(&file);
  mlx_gguf_t *gguf = parse(&file);
  int64_t integer = 7;
  double number;
  bool truth, found;
  const char *text;
  CHECK_ERROR(mlx_gguf_int(gguf, ".rope.freq_base", 0, 9, &integer, NULL), MLX_INVALID_INPUT,
              "x.gguf: field 'llama.rope.freq_base' must be an integer");
  CHECK_ERROR(mlx_gguf_int(gguf, ".block_count", 0, 9, &integer, NULL), MLX_INVALID_INPUT,
              "field 'llama.block_count' must be between 0 and 9");
  CHECK_ERROR(mlx_gguf_int(gguf, ".huge", 0, INT64_MAX, &integer, NULL), MLX_INVALID_INPUT,
              "field 'llama.huge' must be between");
  CHECK_ERROR(mlx_gguf_int(gguf, ".list", 0, 9, &integer, NULL), MLX_INVALID_INPUT,
              "field 'llama.list' must be an integer, but is an array");
  CHECK_ERROR(mlx_gguf_number(gguf, "tokenizer.ggml.pre", &number, NULL), MLX_INVALID_INPUT,
              "field 'tokenizer.ggml.pre' must be a number");
  CHECK_ERROR(mlx_gguf_bool(gguf, ".block_count", &truth, NULL), MLX_INVALID_INPUT,
              "field 'llama.block_count' must be true or false");
  CHECK_ERROR(mlx_gguf_string(gguf, ".block_count", &text, NULL), MLX_INVALID_INPUT,
              "field 'llama.block_count' must be a string");
  CHECK_ERROR(mlx_gguf_int(gguf, ".nothing", 0, 9, &integer, NULL), MLX_INVALID_INPUT,
              "x.gguf: field 'llama.nothing' is missing");
  CHECK_OK(mlx_gguf_int(gguf, ".nothing", 0, 9, &integer, &found));
  CHECK(!found && integer == 7);
  mlx_gguf_close(gguf);
  mlx_text_clear(&file);
}

TEST(malformed_fields_are_refused) {
  bytes_t twice = {0}, nested = {0}, unknown = {0}, truth = {0}, control = {0}, missing = {0}, infinite = {0},
          dotted = {0};
  put_header(&twice, 3, 0, 2);
  put_field(&twice, "k", MLX_GGUF_U8, 1, 1);
  put_field(&twice, "k", MLX_GGUF_U8, 1, 1);
  CHECK_REFUSED(twice, MLX_INVALID_INPUT, "x.gguf: field 'k' is given twice");
  put_header(&nested, 3, 0, 1);
  put_field_array(&nested, "k", MLX_GGUF_ARRAY, 1);
  put_u64(&nested, 0);
  CHECK_REFUSED(nested, MLX_UNSUPPORTED, "field 'k': an array of arrays");
  put_header(&unknown, 3, 0, 1);
  put_field(&unknown, "k", (mlx_gguf_type_t)13, 1, 1);
  CHECK_REFUSED(unknown, MLX_INVALID_INPUT, "field 'k': unknown value type 13");
  put_header(&truth, 3, 0, 1);
  put_field(&truth, "k", MLX_GGUF_BOOL, 2, 1);
  CHECK_REFUSED(truth, MLX_INVALID_INPUT, "field 'k': a bool is 2");
  put_header(&control, 3, 0, 1);
  put_field(&control, "k\x1b[2J", MLX_GGUF_BOOL, 1, 1);
  CHECK_REFUSED(control, MLX_INVALID_INPUT, "x.gguf: field 0: its name has control characters");
  put_header(&dotted, 3, 0, 1);
  put_field(&dotted, ".k", MLX_GGUF_BOOL, 1, 1);
  CHECK_REFUSED(dotted, MLX_INVALID_INPUT, "x.gguf: field '.k': its name starts with a dot");
  put_header(&missing, 3, 0, 1);
  put_field(&missing, "k", MLX_GGUF_BOOL, 1, 1);
  CHECK_REFUSED(missing, MLX_INVALID_INPUT, "field 'general.architecture' is missing");
  put_header(&infinite, 3, 0, 2);
  put_field_string(&infinite, "general.architecture", "llama");
  put_field(&infinite, "k", MLX_GGUF_F32, 0x7f800000, 4);
  mlx_gguf_t *gguf = parse(&infinite);
  double number;
  CHECK_ERROR(mlx_gguf_number(gguf, "k", &number, NULL), MLX_INVALID_INPUT, "field 'k' must be finite");
  mlx_gguf_close(gguf);
  mlx_text_clear(&infinite);
}

TEST(split_fields_are_read_and_checked) {
  bytes_t later = {0}, alone = {0}, beyond = {0}, first = {0}, unnumbered = {0}, uncounted = {0}, wide = {0};
  put_header(&later, 3, 0, 3);
  put_split(&later, 2, 3, 7);
  mlx_gguf_t *gguf = parse(&later);
  CHECK(gguf->part == 2 && gguf->part_count == 3 && gguf->model_tensors == 7 && !gguf->architecture);
  read_all(gguf);
  mlx_gguf_close(gguf);
  mlx_text_clear(&later);
  put_header(&alone, 3, 0, 4);
  put_split(&alone, 0, 1, 0);
  put_field_string(&alone, "general.architecture", "llama");
  gguf = parse(&alone);
  CHECK(gguf->part == 0 && gguf->part_count == 1);
  mlx_gguf_close(gguf);
  mlx_text_clear(&alone);
  put_header(&beyond, 3, 0, 3);
  put_split(&beyond, 3, 3, 7);
  CHECK_REFUSED(beyond, MLX_INVALID_INPUT, "x.gguf: field 'split.no' must be between 0 and 2");
  put_header(&first, 3, 0, 3);
  put_split(&first, 0, 3, 7);
  CHECK_REFUSED(first, MLX_INVALID_INPUT, "x.gguf: field 'general.architecture' is missing");
  put_header(&unnumbered, 3, 0, 1);
  put_field(&unnumbered, "split.count", MLX_GGUF_U16, 3, 2);
  CHECK_REFUSED(unnumbered, MLX_INVALID_INPUT, "x.gguf: field 'split.no' is missing");
  put_header(&uncounted, 3, 0, 2);
  put_field(&uncounted, "split.count", MLX_GGUF_U16, 3, 2);
  put_field(&uncounted, "split.no", MLX_GGUF_U16, 1, 2);
  CHECK_REFUSED(uncounted, MLX_INVALID_INPUT, "x.gguf: field 'split.tensors.count' is missing");
  put_header(&wide, 3, 0, 1);
  put_field(&wide, "split.count", MLX_GGUF_U64, 65536, 8);
  CHECK_REFUSED(wide, MLX_INVALID_INPUT, "x.gguf: field 'split.count' must be between 0 and 65535");
}

TEST(bad_alignments_are_refused) {
  static const uint32_t alignments[] = {1, 4, 24, 33};
  for (size_t i = 0; i < 4; ++i) {
    bytes_t file = {0};
    put_header(&file, 3, 0, 2);
    put_field_string(&file, "general.architecture", "llama");
    put_field(&file, "general.alignment", MLX_GGUF_U32, alignments[i], 4);
    CHECK_REFUSED(file, MLX_INVALID_INPUT, "field 'general.alignment' is");
  }
}

// A file with the tensor "first", F32 [32], the tensor |second|, and |data| bytes of data.
static bytes_t two_tensors(const char *second, uint64_t inner, uint64_t outer, uint32_t type, uint64_t offset,
                           size_t data) {
  bytes_t file = {0};
  put_header(&file, 3, 2, 1);
  put_field_string(&file, "general.architecture", "llama");
  put_tensor(&file, "first", 32, 0, 0, 0);  // F32 [32]: 128 bytes
  put_tensor(&file, second, inner, outer, type, offset);
  put_padding(&file, 32);
  for (size_t i = 0; i < data; ++i) put_uint(&file, 0, 1);
  return file;
}

TEST(overlapping_tensors_are_refused) {
  bytes_t same = two_tensors("second", 32, 0, 0, 0, 256), partly = two_tensors("second", 32, 0, 0, 96, 256);
  CHECK_REFUSED(same, MLX_INVALID_INPUT, "overlaps the data of");
  CHECK_REFUSED(partly, MLX_INVALID_INPUT, "tensor 'second': its data overlaps the data of 'first'");
}

TEST(impossible_tensors_are_refused) {
  uint64_t half = UINT64_C(1) << 62;
  bytes_t twice = two_tensors("first", 32, 0, 0, 128, 256),
          outside = two_tensors("second", 33, 0, 0, 128, 256);
  bytes_t beyond_the_end = two_tensors("second", 32, 0, 0, ~UINT64_C(31), 256),
          misaligned = two_tensors("second", 32, 0, 0, 129, 512);
  bytes_t zero = two_tensors("second", 0, 0, 0, 128, 256),
          negative = two_tensors("second", UINT64_MAX, 0, 0, 128, 256);
  bytes_t wraps = two_tensors("second", half, 4, 0, 128, 256),
          wraps_bytes = two_tensors("second", half, 1, 0, 128, 256);
  bytes_t blocks = two_tensors("second", 16, 2, 2, 128, 256), nameless = two_tensors("", 32, 0, 0, 128, 256);
  CHECK_REFUSED(twice, MLX_INVALID_INPUT, "tensor 'first' is given twice");
  CHECK_REFUSED(outside, MLX_INVALID_INPUT, "tensor 'second': its data, 132 bytes at");
  CHECK_REFUSED(beyond_the_end, MLX_INVALID_INPUT, "tensor 'second': its data, 128 bytes at");
  CHECK_REFUSED(misaligned, MLX_INVALID_INPUT, "tensor 'second': its offset 129 is not a multiple of 32");
  CHECK_REFUSED(zero, MLX_INVALID_INPUT, "tensor 'second': an extent is 0");
  CHECK_REFUSED(negative, MLX_INVALID_INPUT, "tensor 'second': an extent is 18446744073709551615");
  CHECK_REFUSED(wraps, MLX_INVALID_INPUT, "tensor 'second': its rows");
  CHECK_REFUSED(wraps_bytes, MLX_INVALID_INPUT, "tensor 'second': its rows");
  CHECK_REFUSED(blocks, MLX_INVALID_INPUT,
                "tensor 'second': its rows of 16 elements are not whole blocks of 32 (Q4_0)");
  CHECK_REFUSED(nameless, MLX_INVALID_INPUT, "tensor 1: its name has 0 bytes");
}

TEST(every_supported_tensor_type_is_read) {
  for (int i = 0; i < MLX_DTYPE_COUNT; ++i) {
    const mlx_dtype_info_t *info = mlx_dtype_info((mlx_dtype_t)i);
    if (info->gguf_type < 0 || !info->to_f32) continue;
    size_t bytes = 512 / info->block_elements * info->block_bytes;
    bytes_t file = two_tensors("second", 256, 2, (uint32_t)info->gguf_type, 128, 128 + bytes);
    bytes_t blocks = two_tensors("second", info->block_elements / 2, 2, (uint32_t)info->gguf_type, 128, 4096);
    mlx_gguf_t *gguf = parse(&file);
    CHECK_INT(mlx_gguf_tensor(gguf, "second")->dtype, i);
    CHECK_INT(mlx_gguf_tensor(gguf, "second")->size, bytes);
    mlx_gguf_close(gguf);
    mlx_text_clear(&file);
    if (info->block_elements > 1) CHECK_REFUSED(blocks, MLX_INVALID_INPUT, "are not whole blocks of");
    mlx_text_clear(&blocks);
  }
}

TEST(unsupported_tensor_types_are_named) {
  bytes_t known = two_tensors("second", 256, 0, 16, 128, 512),
          unknown = two_tensors("second", 32, 0, 99, 128, 256);
  mlx_gguf_t *gguf;
  mlx_status_t status = mlx_gguf_parse("x.gguf", (const uint8_t *)known.data, known.length, &gguf);
  CHECK_CONTAINS(
      mlx_status_hint_text(status),
      "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4");
  mlx_status_free(status);
  CHECK_REFUSED(known, MLX_UNSUPPORTED, "x.gguf: tensor 'second': its type IQ2_XXS is not supported");
  CHECK_REFUSED(unknown, MLX_UNSUPPORTED, "x.gguf: tensor 'second': its type number 99 is unknown");
}

// ----------------------------------------------------------------------------------------------------------
// tokenizer.json

// A GGUF file with the sample tokenizer, this pre-tokenizer and this add_bos_token (-1: omitted).
static bytes_t tokenizer_file(const char *pre, int add_bos) {
  bytes_t file = {0};
  put_header(&file, 3, 0, add_bos < 0 ? 7 : 8);
  put_field_string(&file, "general.architecture", "llama");
  put_field(&file, "tokenizer.ggml.bos_token_id", MLX_GGUF_U32, 0, 4);
  if (add_bos >= 0) put_field(&file, "tokenizer.ggml.add_bos_token", MLX_GGUF_BOOL, (uint64_t)add_bos, 1);
  put_tokenizer(&file, pre);
  return file;
}

static char *write_json(bytes_t *file) {
  mlx_gguf_t *gguf = parse(file);
  char *json;
  size_t length;
  mlx_json_t parsed;
  CHECK_OK(mlx_gguf_tokenizer_json(gguf, &json, &length));
  CHECK_OK(mlx_json_parse("tokenizer.json", json, length, &parsed));
  mlx_json_close(&parsed);
  mlx_gguf_close(gguf);
  mlx_text_clear(file);
  return json;
}

// The bytes are part of bundles, whose digests they change.
TEST(the_bytes_of_tokenizer_json_stay_the_same) {
  static const char *const rows[][2] = {
      {"embedders/bert/model.gguf", "9f47885fe9460f1651ab421a8d1d0e75eddfe9a6137bc5a02d7c7e985e6b65d3"},
      {"embedders/embeddinggemma/model.gguf",
       "4741c73c6d22b0de3e3ab36ab3b8caa8b7269110e03d1374b44817ae235a06d8"},
      {"embedders/xlm-roberta/model.gguf",
       "21e231f8d60f2f8fc14c02f96008dbc6fdc7a4a15a70429beb57582824f13d4a"},
      {"tiny-llama.gguf", "79aec16e084fd506a1141e7eee19a16299b79e87dab19407e77896ac02c004d2"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    char path[256], hex[MLX_DIGEST_HEX];
    bytes_t file = {0};
    snprintf(path, sizeof path, MLXCEL_SOURCE_DIR "/tests/fixtures/%s", rows[i][0]);
    CHECK_OK(mlx_read_file(path, 1 << 26, &file.data, &file.length));
    char *json = write_json(&file);
    mlx_digest_bytes(json, strlen(json), hex);
    CHECK_TEXT(hex, rows[i][1]);
    mlx_free(json);
  }
}

TEST(tokenizer_json_is_written_from_metadata) {
  bytes_t file = tokenizer_file("smollm", 0);
  char *json = write_json(&file);
  CHECK_CONTAINS(json,
                 "{\"id\":0,\"content\":\"<|end|>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                 "\"normalized\":false,\"special\":true}");
  CHECK_CONTAINS(json,
                 "{\"id\":6,\"content\":\"\\\"\\\\\\n\",\"single_word\":false,\"lstrip\":false,\"rstrip\":"
                 "false,\"normalized\":false,\"special\":false}");
  CHECK(!strstr(json, "{\"id\":1,"));
  CHECK_CONTAINS(json,
                 "\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":"
                 "\"ByteLevel\",\"add_prefix_space\":false,");
  CHECK_CONTAINS(json, "\"post_processor\":null");
  CHECK_CONTAINS(json, "\"ignore_merges\":false");
  CHECK_CONTAINS(json,
                 "\"\xc4\xa0"
                 "ab\":5");
  CHECK_CONTAINS(json, "\"merges\":[\n      \"a b\",\n      \"\xc4\xa0 ab\"]");
  mlx_free(json);
}

TEST(llama_3_adds_bos_unless_the_flag_is_false) {
  bytes_t without_flag = tokenizer_file("llama-bpe", -1), flag_false = tokenizer_file("llama-bpe", 0);
  char *json = write_json(&without_flag);
  CHECK_CONTAINS(json,
                 "\"single\":[{\"SpecialToken\":{\"id\":\"<|end|>\",\"type_id\":0}},{\"Sequence\":{\"id\":"
                 "\"A\",\"type_id\":0}}]");
  CHECK_CONTAINS(
      json, "\"special_tokens\":{\"<|end|>\":{\"id\":\"<|end|>\",\"ids\":[0],\"tokens\":[\"<|end|>\"]}}");
  CHECK_CONTAINS(json, "\"ignore_merges\":true");
  CHECK_CONTAINS(json,
                 "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| ?[^");
  mlx_free(json);
  json = write_json(&flag_false);
  CHECK_CONTAINS(json, "\"post_processor\":null");
  mlx_free(json);
}

TEST(qwen_2_has_an_nfc_normalizer) {
  bytes_t file = tokenizer_file("qwen2", -1);
  char *json = write_json(&file);
  CHECK_CONTAINS(json, "\"normalizer\":{\"type\":\"NFC\"}");
  CHECK_CONTAINS(json, "\\\\p{L}+|\\\\p{N}| ?[^");
  mlx_free(json);
}

static void check_tokenizer_refused(bytes_t file, mlx_code_t code, const char *part) {
  mlx_gguf_t *gguf = parse(&file);
  char *json;
  size_t length;
  CHECK_ERROR(mlx_gguf_tokenizer_json(gguf, &json, &length), code, part);
  CHECK(!json);
  mlx_gguf_close(gguf);
  mlx_text_clear(&file);
}

TEST(unknown_tokenizers_are_refused_by_name) {
  bytes_t no_pre = {0}, no_model = {0}, other_model = {0};
  check_tokenizer_refused(tokenizer_file("odd", 0), MLX_UNSUPPORTED,
                          "is 'odd', an unknown pre-tokenizer; known are default, gpt-2, ");
  put_header(&other_model, 3, 0, 2);
  put_field_string(&other_model, "general.architecture", "llama");
  put_field_string(&other_model, "tokenizer.ggml.model", "rwkv");
  check_tokenizer_refused(other_model, MLX_UNSUPPORTED,
                          "field 'tokenizer.ggml.model' is 'rwkv'; only 'gpt2'");
  put_header(&no_model, 3, 0, 1);
  put_field_string(&no_model, "general.architecture", "llama");
  check_tokenizer_refused(no_model, MLX_INVALID_INPUT, "field 'tokenizer.ggml.model' is missing");
  put_header(&no_pre, 3, 0, 2);
  put_field_string(&no_pre, "general.architecture", "llama");
  put_field_string(&no_pre, "tokenizer.ggml.model", "gpt2");
  check_tokenizer_refused(no_pre, MLX_UNSUPPORTED, "field 'tokenizer.ggml.pre' is missing");
}

// A GGUF file with these tokens, one merge, and |types| invalid token types (0: omitted).
static bytes_t small_tokenizer(const char *const *tokens, uint64_t count, const char *merge, uint64_t types) {
  bytes_t file = {0};
  put_header(&file, 3, 0, types ? 6 : 5);
  put_field_string(&file, "general.architecture", "llama");
  put_field_string(&file, "tokenizer.ggml.model", "gpt2");
  put_field_string(&file, "tokenizer.ggml.pre", "gpt-2");
  put_field_strings(&file, "tokenizer.ggml.tokens", tokens, count);
  put_field_strings(&file, "tokenizer.ggml.merges", &merge, 1);
  if (types) put_field_array(&file, "tokenizer.ggml.token_type", MLX_GGUF_U32, types);
  for (uint64_t i = 0; i < types; ++i) put_u32(&file, 9);
  return file;
}

TEST(inconsistent_vocabularies_are_refused) {
  static const char *const good[] = {"a", "b", "ab"}, *const twice[] = {"a", "b", "a"},
                           *const broken[] = {"a", "b", "\xff"};
  check_tokenizer_refused(small_tokenizer(twice, 3, "a b", 0), MLX_INVALID_INPUT,
                          "has the same token at 0 and 2");
  check_tokenizer_refused(small_tokenizer(broken, 3, "a b", 0), MLX_INVALID_INPUT,
                          "has token 2, which is not UTF-8");
  check_tokenizer_refused(small_tokenizer(good, 3, "ab", 0), MLX_INVALID_INPUT,
                          "has entry 0, which is not two tokens");
  check_tokenizer_refused(small_tokenizer(good, 3, "a b c", 0), MLX_INVALID_INPUT,
                          "has entry 0, which is not two tokens");
  check_tokenizer_refused(small_tokenizer(good, 3, " b", 0), MLX_INVALID_INPUT,
                          "has entry 0, which is not two tokens");
  check_tokenizer_refused(small_tokenizer(good, 3, "b a", 0), MLX_INVALID_INPUT,
                          "whose parts or result are not tokens");
  check_tokenizer_refused(small_tokenizer(good, 3, "a b", 2), MLX_INVALID_INPUT,
                          "'tokenizer.ggml.token_type' must be an array with one number for each of the 3");
  check_tokenizer_refused(small_tokenizer(good, 3, "a b", 3), MLX_INVALID_INPUT,
                          "has no valid type for token 0");
}

// A GGUF file whose tokenizer is of kind |model|, with these tokens, types and, unless NULL, scores.
static bytes_t typed_tokenizer(const char *model, const char *const *tokens, const uint32_t *types,
                               const float *scores, uint64_t count) {
  bytes_t file = {0};
  put_header(&file, 3, 0, scores ? 9 : 8);
  put_field_string(&file, "general.architecture", "llama");
  put_field_string(&file, "tokenizer.ggml.model", model);
  put_field(&file, "tokenizer.ggml.bos_token_id", MLX_GGUF_U32, 1, 4);
  put_field(&file, "tokenizer.ggml.eos_token_id", MLX_GGUF_U32, 2, 4);
  put_field(&file, "tokenizer.ggml.seperator_token_id", MLX_GGUF_U32, 2, 4);
  put_field(&file, "tokenizer.ggml.unknown_token_id", MLX_GGUF_U32, 0, 4);
  put_field_strings(&file, "tokenizer.ggml.tokens", tokens, count);
  put_field_array(&file, "tokenizer.ggml.token_type", MLX_GGUF_U32, count);
  for (uint64_t i = 0; i < count; ++i) put_u32(&file, types[i]);
  if (scores) put_field_array(&file, "tokenizer.ggml.scores", MLX_GGUF_F32, count);
  for (uint64_t i = 0; scores && i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, &scores[i], sizeof bits);
    put_u32(&file, bits);
  }
  return file;
}

// The highest score comes first; splits of one token are ordered by the ids of their parts.
TEST(sentencepiece_scores_become_merges) {
  static const char *const tokens[] = {"<unk>", "<s>", "</s>", "<0x41>", "a", "b",
                                       "c",     "ab",  "bc",   "abc",    "  "};
  static const uint32_t types[] = {2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 4};
  static const float scores[] = {0, 0, 0, 0, -10, -11, -12, -3, -2, -4, -20};
  bytes_t file = typed_tokenizer("llama", tokens, types, scores, 11);
  char *json = write_json(&file);
  CHECK_CONTAINS(json,
                 "\"merges\":[\n      [\"b\",\"c\"],\n      [\"a\",\"b\"],\n      [\"a\",\"bc\"],\n      "
                 "[\"ab\",\"c\"]]");
  CHECK_CONTAINS(json, "\"unk_token\":\"<unk>\"");
  CHECK_CONTAINS(json, "\"byte_fallback\":true");
  CHECK_CONTAINS(json, "{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"}");
  CHECK_CONTAINS(json, "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
  CHECK_CONTAINS(json,
                 "{\"id\":10,\"content\":\"\xe2\x96\x81\xe2\x96\x81\",");  // spaces become U+2581
  CHECK_CONTAINS(json, "\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":");
  mlx_free(json);
  check_tokenizer_refused(
      typed_tokenizer("llama", tokens, types, NULL, 11), MLX_INVALID_INPUT,
      "field 'tokenizer.ggml.scores' must be an array with one f32 for each of the 11 tokens");
}

// Spaces become U+2581, and the file has the merge list.
TEST(gemma4_tokenizers_have_merges_and_byte_fallback) {
  static const char *const tokens[] = {"<unk>", "<s>", "</s>",         "<0x41>",        "a",
                                       "b",     "ab",  "\xe2\x96\x81", "\342\226\201ab"};
  static const char *const merges[] = {"a b",
                                       "\xe2\x96\x81"
                                       " ab"};
  static const uint32_t types[] = {2, 3, 3, 6, 1, 1, 1, 1, 1};
  bytes_t file = typed_tokenizer("gemma4", tokens, types, NULL, 9);
  put_field_strings(&file, "tokenizer.ggml.merges", merges, 2);
  file.data[16] += 1;  // one more field
  char *json = write_json(&file);
  CHECK_CONTAINS(json, "\"merges\":[\n      \"a b\",\n      \"\xe2\x96\x81 ab\"]");
  CHECK_CONTAINS(json, "\"unk_token\":\"<unk>\"");
  CHECK_CONTAINS(json, "\"fuse_unk\":true,\"byte_fallback\":true");
  CHECK_CONTAINS(json, "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"}");
  CHECK_CONTAINS(json, "{\"type\":\"Fuse\"}]}");  // no space is stripped
  CHECK_CONTAINS(json, "\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":");
  mlx_free(json);
  check_tokenizer_refused(typed_tokenizer("gemma4", tokens, types, NULL, 9), MLX_INVALID_INPUT,
                          "field 'tokenizer.ggml.merges'");
}

// A vocabulary of runs: for each of |letters| letters, the runs of 1 to 512 of it. |tail| follows the longer
// ones.
static bytes_t run_tokenizer(size_t letters, const char *tail) {
  const size_t count = letters * 512;
  const char **tokens;
  uint32_t *types;
  float *scores;
  CHECK_OK(mlx_alloc(count, sizeof *tokens, &tokens));
  CHECK_OK(mlx_alloc(count, sizeof *types, &types));
  CHECK_OK(mlx_alloc(count, sizeof *scores, &scores));
  for (size_t i = 0; i < count; ++i) {
    char run[520], *copy;
    const size_t length = i % 512 + 1;
    memset(run, (int)('0' + i / 512), length);
    strcpy(run + length, length > 256 && length < 500 ? tail : "");
    CHECK_OK(mlx_copy_text(run, strlen(run), &copy));
    tokens[i] = copy;
    types[i] = MLX_TOKEN_NORMAL;
    scores[i] = -(float)i;
  }
  bytes_t file = typed_tokenizer("llama", tokens, types, scores, count);
  for (size_t i = 0; i < count; ++i) mlx_free((void *)(uintptr_t)tokens[i]);
  mlx_free(tokens);
  mlx_free(types);
  mlx_free(scores);
  return file;
}

// The merge list of these runs is quadratic in their length: 6 million merges and 5 GB from a file of 6.9 MB.
TEST(a_merge_list_beyond_the_memory_budget_is_refused) {
  bytes_t file = run_tokenizer(48, "");
  mlx_gguf_t *gguf = parse(&file);
  char *json;
  size_t length;
  mlx_memory_set_calls(&counting_calls);
  allocated_bytes = 0;
  mlx_status_t status = mlx_gguf_tokenizer_json(gguf, &json, &length);
  mlx_memory_set_calls(NULL);
  CHECK_ERROR(status, MLX_UNSUPPORTED, "reading the file needs more than the limit of");
  CHECK(allocated_bytes < MLX_FILE_MEMORY + MLX_FILE_MEMORY_FACTOR * file.length);
  mlx_gguf_close(gguf);
  mlx_text_clear(&file);
  file = run_tokenizer(1, "");  // 130,000 merges are fine
  json = write_json(&file);
  mlx_free(json);
}

static int64_t fast_clock_ns(void) {
  return (int64_t)(mlx_thread_cpu_seconds() * 1e12);
}  // 1000 times CPU time

// These tokens have many splits to try and few that fit, so they take time and little memory.
TEST(a_merge_list_beyond_the_time_budget_is_refused) {
  bytes_t file = run_tokenizer(8, "x");
  mlx_gguf_t *gguf = parse(&file);
  char *json;
  size_t length;
  mlx_budget_set_clock(fast_clock_ns);
  const double start = mlx_thread_cpu_seconds();
  mlx_status_t status = mlx_gguf_tokenizer_json(gguf, &json, &length);
  const double taken = mlx_thread_cpu_seconds() - start;
  mlx_budget_set_clock(NULL);
  CHECK_ERROR(status, MLX_TIMEOUT, "reading the file takes longer than the limit of 10 s");
  CHECK(taken < 5);
  mlx_gguf_close(gguf);
  mlx_text_clear(&file);
}

TEST(unigram_keeps_scores_and_byte_fallback) {
  static const char *const tokens[] = {"<unk>", "<s>", "</s>", "\xe2\x96\x81", "a", "<0x41>"};
  static const uint32_t types[] = {2, 3, 3, 1, 1, 6};
  static const float scores[] = {0, 0, 0, -2.0122929f, -0.5f, 0};
  bytes_t file = typed_tokenizer("t5", tokens, types, scores, 5);
  char *json = write_json(&file);
  CHECK_CONTAINS(json,
                 "\"vocab\":[\n      [\"<unk>\",0],\n      [\"<s>\",0],\n      [\"</s>\",0],\n      "
                 "[\"\xe2\x96\x81\",-2.0122928619384766],\n      [\"a\",-0.5]]");
  CHECK_CONTAINS(json, "\"unk_id\":0,\"byte_fallback\":false");
  CHECK_CONTAINS(json, "\"normalizer\":null");
  CHECK_CONTAINS(json, "\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},{\"type\":\"Metaspace\"");
  CHECK_CONTAINS(json, "\"decoder\":{\"type\":\"Metaspace\"");
  mlx_free(json);
  file = typed_tokenizer("t5", tokens, types, scores, 6);
  json = write_json(&file);
  CHECK_CONTAINS(json, "\"byte_fallback\":true");
  CHECK_CONTAINS(json, "\"decoder\":{\"type\":\"Sequence\"");
  mlx_free(json);
  static const float infinite_scores[] = {0, 0, 0, -INFINITY, 0};
  check_tokenizer_refused(typed_tokenizer("t5", tokens, types, infinite_scores, 5), MLX_INVALID_INPUT,
                          "field 'tokenizer.ggml.scores' has an infinite score for token 3");
}

TEST(wordpiece_marks_continuations_with_hashes) {
  static const char *const tokens[] = {"[UNK]",
                                       "[CLS]",
                                       "[SEP]",
                                       "\xe2\x96\x81"
                                       "ab",
                                       "c",
                                       "\xe2\x96\x81"
                                       "C",
                                       "\xe2\x96\x81",
                                       "\xe2\x96\x81\xe2\x96\x81"};
  static const uint32_t types[] = {3, 3, 3, 1, 1, 1, 1, 1};
  bytes_t cased = typed_tokenizer("bert", tokens, types, NULL, 8),
          uncased = typed_tokenizer("bert", tokens, types, NULL, 5);
  char *json = write_json(&cased);
  CHECK_CONTAINS(
      json,
      "\"ab\":3,\n      \"##c\":4,\n      \"C\":5,\n      \"##\xe2\x96\x81\":6,\n      \"\xe2\x96\x81\":7}");
  CHECK_CONTAINS(json, "\"unk_token\":\"[UNK]\"");
  CHECK_CONTAINS(json, "\"lowercase\":false");
  CHECK_CONTAINS(json,
                 "\"single\":[{\"SpecialToken\":{\"id\":\"[CLS]\",\"type_id\":0}},{\"Sequence\":{\"id\":"
                 "\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"[SEP]\"");
  mlx_free(json);
  json = write_json(&uncased);
  CHECK_CONTAINS(json, "\"lowercase\":true");
  mlx_free(json);
}

TEST(eos_ids_are_eos_eot_and_eom_without_repeats) {
  bytes_t file = {0};
  put_header(&file, 3, 0, 5);
  put_field_string(&file, "general.architecture", "llama");
  put_field(&file, "tokenizer.ggml.eos_token_id", MLX_GGUF_U32, 2, 4);
  put_field(&file, "tokenizer.ggml.eot_token_id", MLX_GGUF_U32, 2, 4);
  put_field(&file, "tokenizer.ggml.eom_token_id", MLX_GGUF_U32, 1, 4);
  put_field_strings(&file, "tokenizer.ggml.tokens", sample_tokens, 3);
  mlx_gguf_t *gguf = parse(&file);
  int32_t ids[2];
  size_t count;
  CHECK_OK(mlx_gguf_eos_ids(gguf, ids, 2, &count));
  CHECK(count == 2 && ids[0] == 2 && ids[1] == 1);
  CHECK_ERROR(mlx_gguf_eos_ids(gguf, ids, 1, &count), MLX_INVALID_INPUT,
              "field 'tokenizer.ggml.eom_token_id'");
  mlx_gguf_close(gguf);
  mlx_text_clear(&file);
}

TEST_MAIN(CASE(fields_and_tensors_are_read), CASE(version_2_reads_the_same_as_version_3),
          CASE(truncation_at_every_byte_is_an_error), CASE(truncation_hints_to_download_again),
          CASE(every_flipped_bit_is_an_error_or_a_valid_read),
          CASE(oversized_counts_are_refused_before_allocating), CASE(every_allocation_failure_is_reported),
          CASE(unsupported_versions_are_refused_by_number), CASE(wrong_types_name_the_field),
          CASE(malformed_fields_are_refused), CASE(split_fields_are_read_and_checked),
          CASE(bad_alignments_are_refused), CASE(overlapping_tensors_are_refused),
          CASE(impossible_tensors_are_refused), CASE(every_supported_tensor_type_is_read),
          CASE(unsupported_tensor_types_are_named), CASE(tokenizer_json_is_written_from_metadata),
          CASE(the_bytes_of_tokenizer_json_stay_the_same), CASE(llama_3_adds_bos_unless_the_flag_is_false),
          CASE(qwen_2_has_an_nfc_normalizer), CASE(unknown_tokenizers_are_refused_by_name),
          CASE(inconsistent_vocabularies_are_refused), CASE(sentencepiece_scores_become_merges),
          CASE(gemma4_tokenizers_have_merges_and_byte_fallback),
          CASE(a_merge_list_beyond_the_memory_budget_is_refused),
          CASE(a_merge_list_beyond_the_time_budget_is_refused), CASE(unigram_keeps_scores_and_byte_fallback),
          CASE(wordpiece_marks_continuations_with_hashes), CASE(eos_ids_are_eos_eot_and_eom_without_repeats))
