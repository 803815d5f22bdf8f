// The generated tables can be searched, and single characters are read from bytes that are no UTF-8.
#include "tests/support/check.h"
#include "unicode/character.h"
#include "unicode/grapheme.h"
#include "unicode/python.h"
#include "unicode/utf8.h"
#include "unicode/width.h"

static void check_sorted(const void *rows, size_t count, size_t size) {
  CHECK(count > 0);
  for (size_t i = 0; i < count; ++i) {
    const mlx_range_t *row = (const void *)((const char *)rows + i * size), *last = row;
    if (i) last = (const void *)((const char *)rows + (i - 1) * size);
    CHECK(row->first <= row->last && row->last < 0x110000);
    CHECK(!i || last->last < row->first);
  }
}

#define CHECK_SORTED(table) check_sorted((table).rows, (table).count, sizeof *(table).rows)

TEST(ranges_are_sorted_and_do_not_overlap) {
  const mlx_ranges_t *const ranges[] = {
      &mlx_python_spaces,   &mlx_python_alphas,      &mlx_python_decimals, &mlx_python_digits,
      &mlx_python_numerics, &mlx_python_unprintable, &mlx_python_cased,    &mlx_python_case_ignorable,
      &mlx_hf_marks,        &mlx_hf_nonspacing,      &mlx_hf_controls,     &mlx_hf_punctuation,
      &mlx_zero_columns,    &mlx_two_columns};
  const mlx_case_table_t *const cases[] = {&mlx_python_lower, &mlx_python_upper, &mlx_python_title,
                                           &mlx_hf_lower};
  for (size_t i = 0; i < sizeof ranges / sizeof *ranges; ++i) CHECK_SORTED(*ranges[i]);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) CHECK_SORTED(*cases[i]);
  CHECK_SORTED(mlx_combining_classes);
  CHECK_SORTED(mlx_grapheme_classes);
}

TEST(the_programs_that_mlxcel_follows_disagree_about_characters) {
  CHECK(mlx_codepoint_is_space(0x1c) && !mlx_character_is_space(0x1c));  // str.isspace, char::is_whitespace
  CHECK(mlx_codepoint_is_cased('a') && !mlx_codepoint_is_cased('1') && !mlx_codepoint_is_printable(0xad));
  CHECK(mlx_character_is_punctuation('$') && !mlx_codepoint_is_alpha('$'));
  CHECK_INT(mlx_char_width(0xad), 1);  // the soft hyphen
  CHECK_INT(mlx_char_width(0x301), 0);
  CHECK_INT(mlx_char_width(0x4e2d), 2);
}

TEST(lower_case_of_a_character_may_be_two) {
  mlx_text_t text = {0};
  const uint32_t characters[] = {'A', 'a', 0x130, 0x178, 0x101, 0x100};
  for (size_t i = 0; i < 6; ++i) mlx_character_append_lower(&text, characters[i]);
  CHECK_OK(mlx_text_finish(&text));
  CHECK_TEXT(text.data, "aai\xcc\x87\xc3\xbf\xc4\x81\xc4\x81");
  mlx_text_clear(&text);
}

TEST(a_byte_that_is_no_character_counts_as_one) {
  size_t length;
  CHECK_INT(mlx_character_or_byte_at("\xe4\xb8\xad", 3, &length), 0x4e2d);
  CHECK_INT(length, 3);
  CHECK_INT(mlx_character_or_byte_at("\xe4\xb8", 2, &length), 0xe4);
  CHECK_INT(length, 1);
  CHECK(mlx_utf8_is_valid("\xe4\xb8\xad", 3) && !mlx_utf8_is_valid("\xe4\xb8", 2));
}

TEST(indic_conjuncts_are_one_grapheme) {  // rule GB9c
  static const char conjunct[] = "\xe0\xa4\x95\xe0\xa5\x8d\xe0\xa4\xb7x";
  mlx_grapheme_state_t state = {0};
  CHECK_INT(mlx_grapheme_length(conjunct, sizeof conjunct - 1, &state), 9);
  CHECK_INT(mlx_grapheme_length(conjunct + 9, 1, &state), 1);
}

TEST_MAIN(CASE(ranges_are_sorted_and_do_not_overlap),
          CASE(the_programs_that_mlxcel_follows_disagree_about_characters),
          CASE(lower_case_of_a_character_may_be_two), CASE(a_byte_that_is_no_character_counts_as_one),
          CASE(indic_conjuncts_are_one_grapheme))
