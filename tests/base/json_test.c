// JSON: keys of objects are unique, in small objects and in the large ones of vocabularies; the writer.
#include "base/json.h"

#include <math.h>

#include "base/json_writer.h"
#include "base/text.h"
#include "tests/support/check.h"

// An object with the keys |names|, of which the one at |twice| comes once more after the one at |after|.
static mlx_status_t parse_keys(uint32_t *names, size_t count, size_t twice, size_t after) {
  mlx_text_t text = {0};
  mlx_json_t json;
  for (size_t i = 0; i < count; ++i) {
    mlx_text_printf(&text, "%s\"k%u\": %zu", i ? ", " : "{", names[i], i);
    if (i == after) mlx_text_printf(&text, ", \"k%u\": 0", names[twice]);
  }
  mlx_text_puts(&text, "}");
  CHECK_OK(mlx_text_finish(&text));
  mlx_status_t status = mlx_json_parse("x.json", text.data, text.length, &json);
  if (!status) mlx_json_close(&json);
  mlx_text_clear(&text);
  return status;
}

static void check_keys(uint32_t *names, size_t count) {
  static const size_t counts[] = {2, 63, 64, 65, 1000, 5000};
  for (size_t i = 0; i < 6 && counts[i] <= count; ++i) {
    const size_t last = counts[i] - 1, places[][2] = {{0, 0}, {0, last}, {last, last}, {last / 2, last}};
    char expected[64];
    CHECK_OK(parse_keys(names, counts[i], 0, SIZE_MAX));
    for (size_t k = 0; k < 4; ++k) {
      snprintf(expected, sizeof expected, "x.json: field 'k%u' is given twice", names[places[k][0]]);
      CHECK_ERROR(parse_keys(names, counts[i], places[k][0], places[k][1]), MLX_INVALID_INPUT, expected);
    }
  }
}

TEST(a_key_that_is_given_twice_is_refused_in_an_object_of_any_size) {
  static uint32_t names[5000];
  for (uint32_t i = 0; i < 5000; ++i) names[i] = i * 7;
  check_keys(names, 5000);
}

// The 1000 keys share one of the 2048 slots of the hash table that parsing uses.
TEST(keys_with_the_same_hash_are_told_apart) {
  static uint32_t names[1000];
  uint32_t name = 0;
  for (size_t i = 0; i < 1000; ++name) {
    char key[16];
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    const int length = snprintf(key, sizeof key, "k%u", name);
    for (int k = 0; k < length; ++k) hash = (hash ^ (unsigned char)key[k]) * UINT64_C(0x100000001b3);
    if (!((hash ^ hash >> 32) & 2047)) names[i++] = name;
  }
  check_keys(names, 1000);
}

TEST(the_writer_puts_commas_lines_and_quotes) {
  static const int32_t ids[] = {1, -2};
  mlx_text_t text = {0};
  mlx_json_writer_t json = {.out = &text};
  mlx_json_begin_object(&json, NULL, MLX_JSON_LINES);
  mlx_json_put_text(&json, "name", "a \"b\"\n");
  mlx_json_put_text(&json, "none", NULL);
  mlx_json_put_ints(&json, "ids", ids, 2);
  mlx_json_begin_list(&json, "empty", MLX_JSON_LINES);
  mlx_json_end(&json);
  mlx_json_begin_list(&json, "rows", MLX_JSON_LINES);
  for (int i = 0; i < 2; ++i) {
    mlx_json_begin_object(&json, NULL, MLX_JSON_ONE_LINE);
    mlx_json_put_uint(&json, "bytes", UINT64_MAX);
    mlx_json_put_bool(&json, "first", i == 0);
    mlx_json_end(&json);
  }
  mlx_json_end(&json);
  mlx_json_put_number(&json, "seconds", "%.2f", 0.125);
  mlx_json_put_number(&json, "infinite", "%.2f", HUGE_VAL);
  mlx_json_end(&json);
  CHECK_OK(mlx_text_finish(&text));
  CHECK_TEXT(text.data,
             "{\n  \"name\": \"a \\\"b\\\"\\n\",\n  \"none\": null,\n  \"ids\": [1, -2],\n  \"empty\": [],\n"
             "  \"rows\": [\n    {\"bytes\": 18446744073709551615, \"first\": true},\n"
             "    {\"bytes\": 18446744073709551615, \"first\": false}\n  ],\n"
             "  \"seconds\": 0.12,\n  \"infinite\": null\n}");
  mlx_json_end(&json);  // one more than was begun
  CHECK_ERROR(mlx_text_finish(&text), MLX_OUT_OF_MEMORY, "");
  mlx_text_clear(&text);
}

TEST(the_compact_layout_has_no_spaces) {
  mlx_text_t text = {0};
  mlx_json_writer_t json = {.out = &text};
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  mlx_json_put_int(&json, "least", INT64_MIN);
  mlx_json_put_uint(&json, "zero", 0);
  mlx_json_put_null(&json, "none");
  mlx_json_put_format(&json, "id", "%s-%d", "a\\", 7);
  mlx_json_begin_list(&json, "raw", MLX_JSON_COMPACT);
  mlx_json_put_raw(&json, NULL, "1,2", 3);
  mlx_json_put_raw(&json, NULL, "{}", 2);
  mlx_json_end(&json);
  mlx_text_puts(mlx_json_put_value(&json, "value"), "[3]");
  mlx_text_puts(mlx_json_put_member(&json, "member of more", 6), "4");
  mlx_json_end(&json);
  CHECK_OK(mlx_text_finish(&text));
  CHECK_TEXT(text.data,
             "{\"least\":-9223372036854775808,\"zero\":0,\"none\":null,\"id\":\"a\\\\-7\","
             "\"raw\":[1,2,{}],\"value\":[3],\"member\":4}");
  mlx_json_put_format(&json, NULL, "%256s", "");  // longer than the writer holds
  CHECK_ERROR(mlx_text_finish(&text), MLX_OUT_OF_MEMORY, "");
  mlx_text_clear(&text);
}

TEST(the_rows_layout_has_lines_and_no_spaces) {
  mlx_text_t text = {0};
  mlx_json_writer_t json = {.out = &text};
  mlx_json_begin_object(&json, NULL, MLX_JSON_ROWS);
  mlx_json_begin_list(&json, "none", MLX_JSON_ROWS);
  mlx_json_end(&json);
  mlx_json_begin_object(&json, "model", MLX_JSON_COMPACT);
  mlx_json_put_text(&json, "type", "BPE");
  mlx_json_put_bool(&json, "fuse", true);
  mlx_json_set_layout(&json, MLX_JSON_ROWS);
  mlx_json_begin_object(&json, "vocab", MLX_JSON_ROWS);
  mlx_json_put_int(&json, "a", 0);
  mlx_json_put_int(&json, "b", 1);
  mlx_json_end(&json);
  mlx_json_put_null(&json, "merges");
  mlx_json_end(&json);
  mlx_json_end(&json);
  CHECK_OK(mlx_text_finish(&text));
  CHECK_TEXT(text.data,
             "{\n  \"none\":[],\n  \"model\":{\"type\":\"BPE\",\"fuse\":true,\n    \"vocab\":{\n"
             "      \"a\":0,\n      \"b\":1},\n    \"merges\":null}}");
  mlx_text_clear(&text);
}

TEST_MAIN(CASE(the_writer_puts_commas_lines_and_quotes), CASE(the_compact_layout_has_no_spaces),
          CASE(the_rows_layout_has_lines_and_no_spaces),
          CASE(a_key_that_is_given_twice_is_refused_in_an_object_of_any_size),
          CASE(keys_with_the_same_hash_are_told_apart))
