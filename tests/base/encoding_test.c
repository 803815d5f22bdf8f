#include "base/encoding.h"

#include "base/memory.h"
#include "tests/support/check.h"

TEST(base64_of_every_length_is_decoded_again) {
  static const char *const texts[] = {"", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"};
  for (size_t i = 0; i < 7; ++i) {  // RFC 4648
    mlx_text_t text = {0};
    uint8_t *bytes;
    size_t length;
    mlx_base64_append(&text, "foobar", i);
    CHECK_OK(mlx_text_finish(&text));
    CHECK_TEXT(text.data, texts[i]);
    CHECK_OK(mlx_base64_decode(text.data, text.length, &bytes, &length));
    CHECK_INT(length, i);
    CHECK(!memcmp(bytes, "foobar", i));
    mlx_free(bytes);
    mlx_text_clear(&text);
  }
}

TEST(what_is_no_base64_is_refused) {
  static const char *const texts[] = {"Z", "Zm9", "Zm9*", "=Zm9", "====", "Zm9v Zm9"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i) {
    uint8_t *bytes;
    size_t length;
    CHECK_ERROR(mlx_base64_decode(texts[i], strlen(texts[i]), &bytes, &length), MLX_INVALID_INPUT,
                "not valid base64");
  }
}

TEST(hexadecimal_digits_are_of_either_case) {
  static const char digits[] = "0123456789abcdef", upper[] = "0123456789ABCDEF", others[] = "/:@G`g \x80";
  for (int i = 0; i < 16; ++i) CHECK(mlx_hex_digit(digits[i]) == i && mlx_hex_digit(upper[i]) == i);
  for (size_t i = 0; i < sizeof others; ++i) CHECK_INT(mlx_hex_digit(others[i]), -1);
}

TEST_MAIN(CASE(base64_of_every_length_is_decoded_again), CASE(what_is_no_base64_is_refused),
          CASE(hexadecimal_digits_are_of_either_case))
