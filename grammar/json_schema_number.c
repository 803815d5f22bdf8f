// Numbers inside bounds, digit by digit.
#include "grammar/json_schema_number.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_WHOLE 999999999999999  // 15 digits: a double represents them exactly

static void put_digits(mlx_text_t *out, size_t count) {
  if (count) mlx_text_printf(out, " [0-9]{%zu}", count);
}

static bool all_are(const char *digits, char digit) {
  return digits[strspn(digits, (char[]){digit, 0})] == 0;
}

// Numbers from |low| to |high|, which have the same number of digits.
static void put_same_length(mlx_text_t *out, const char *low, const char *high) {
  const size_t left = strlen(low);
  if (!left || (all_are(low, '0') && all_are(high, '9'))) {
    put_digits(out, left);
    return;
  }
  if (*low == *high) {
    mlx_text_printf(out, " \"%c\"", *low);
    put_same_length(out, low + 1, high + 1);
    return;
  }
  char zeros[20] = "", nines[20] = "";
  memset(zeros, '0', left - 1);
  memset(nines, '9', left - 1);
  zeros[left - 1] = nines[left - 1] = 0;
  const bool low_whole = all_are(low + 1, '0'), high_whole = all_are(high + 1, '9');
  const char first = (char)(*low + !low_whole), last = (char)(*high - !high_whole);
  const char *separator = "";
  mlx_text_puts(out, " (");
  if (!low_whole) {
    mlx_text_printf(out, "\"%c\"", *low);
    put_same_length(out, low + 1, nines);
    separator = " | ";
  }
  if (first <= last) {
    mlx_text_printf(out, "%s[%c-%c]", separator, first, last);
    put_digits(out, left - 1);
    separator = " | ";
  }
  if (!high_whole) {
    mlx_text_printf(out, "%s\"%c\"", separator, *high);
    put_same_length(out, zeros, high + 1);
  }
  mlx_text_puts(out, ")");
}

// Whole numbers from |low| to |high|, both at least 0.
static void put_whole(mlx_text_t *out, int64_t low, int64_t high) {
  const char *separator = "(";
  for (int64_t ten = 10; low <= high; ten *= 10) {
    if (low >= ten) continue;
    char first[24], last[24];
    snprintf(first, sizeof first, "%" PRId64, low);
    snprintf(last, sizeof last, "%" PRId64, high < ten ? high : ten - 1);
    mlx_text_puts(out, separator);
    put_same_length(out, first, last);
    separator = " |";
    low = ten;
  }
  mlx_text_puts(out, ")");
}

// At most 15 digits in all, so that parsing the number never rounds it up to |high|.
static void put_fraction(mlx_text_t *out, int64_t high) {
  int places = 15;
  for (; high; high /= 10) --places;
  if (places > 0) mlx_text_printf(out, " (\".\" [0-9]{1,%d})?", places);
}

// Numbers with a fraction from |low| to |high|, both at least 0; without |high| itself if |open|.
static bool put_magnitudes(mlx_text_t *out, const char *separator, const char *sign, int64_t low,
                           int64_t high, bool open) {
  if (low > high || (low == high && open)) return false;
  mlx_text_printf(out, "%s%s(", separator, sign);
  if (low < high) {
    put_whole(out, low, high - 1);
    put_fraction(out, high);
  }
  if (!open) mlx_text_printf(out, "%s\"%" PRId64 "\"", low < high ? " | " : "", high);
  mlx_text_puts(out, ")");
  return true;
}

static bool put_bounded(mlx_text_t *out, int64_t low, int64_t high, bool low_open, bool high_open) {
  // The smallest magnitude of the negative numbers.
  const int64_t smallest = high < 0 ? -high + high_open : high == 0 && high_open;
  bool any = low < 0 && put_magnitudes(out, "", "\"-\" ", smallest, -low, low_open);
  if (high >= 0) {
    any |= put_magnitudes(out, any ? " | " : "", "",
                          low > 0                ? low + low_open
                          : low == 0 && low_open ? 1
                                                 : 0,
                          high, high_open);
  }
  return any;
}

typedef struct bounds {
  double min, max;  // -INFINITY and INFINITY: none
  bool min_excluded, max_excluded;
} bounds_t;

// A number within |b|; false if there is none.
static bool put_number_within(mlx_text_t *out, const bounds_t *b, bool whole) {
  if (b->min == -INFINITY && b->max == INFINITY) {
    mlx_text_puts(out,
                  whole ? "\"0\" | \"-\"? [1-9] [0-9]{0,14}"
                        : "\"-\"? (\"0\" | [1-9] [0-9]{0,14}) (\".\" [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?");
    return true;
  }
  const double lowest = fmax(ceil(b->min), -(double)MAX_WHOLE),
               highest = fmin(floor(b->max), (double)MAX_WHOLE);
  if (!(lowest <= highest)) return false;
  const bool lowest_open = b->min_excluded && lowest == b->min,
             highest_open = b->max_excluded && highest == b->max;
  if (!whole) return put_bounded(out, (int64_t)lowest, (int64_t)highest, lowest_open, highest_open);
  const int64_t low = (int64_t)lowest + lowest_open, high = (int64_t)highest - highest_open;
  if (low > high) return false;
  if (low < 0) {
    mlx_text_puts(out, "\"-\" ");
    put_whole(out, high < 0 ? -high : 1, -low);
    if (high >= 0) mlx_text_puts(out, " | ");
  }
  if (high >= 0) put_whole(out, low < 0 ? 0 : low, high);
  return true;
}

static mlx_status_t read_bound(const mlx_schema_builder_t *b, yyjson_val *schema, const char *keyword,
                               double fallback, double *out) {
  yyjson_val *value = yyjson_obj_get(schema, keyword);
  *out = value ? yyjson_get_num(value) : fallback;
  return value && !yyjson_is_num(value) ? mlx_schema_invalid(b, keyword, "is not a number") : NULL;
}

mlx_status_t mlx_schema_put_number(mlx_schema_builder_t *b, yyjson_val *schema, bool whole, mlx_text_t *out) {
  bounds_t bounds;
  double above, below, step;
  MLX_TRY(read_bound(b, schema, "minimum", -INFINITY, &bounds.min));
  MLX_TRY(read_bound(b, schema, "maximum", INFINITY, &bounds.max));
  MLX_TRY(read_bound(b, schema, "exclusiveMinimum", -INFINITY, &above));
  MLX_TRY(read_bound(b, schema, "exclusiveMaximum", INFINITY, &below));
  MLX_TRY(read_bound(b, schema, "multipleOf", 1, &step));
  if (yyjson_obj_get(schema, "multipleOf") && (step != 1 || !whole))
    return mlx_schema_unsupported(b, "multipleOf", "is not supported");
  bounds.min_excluded = above >= bounds.min && above != -INFINITY;
  bounds.max_excluded = below <= bounds.max && below != INFINITY;
  if (bounds.min_excluded) bounds.min = above;
  if (bounds.max_excluded) bounds.max = below;
  mlx_text_puts(out, "(");
  const bool any = put_number_within(out, &bounds, whole);
  mlx_text_puts(out, ")");
  if (any) return NULL;
  const char *keyword = "minimum";
  if (yyjson_obj_get(schema, "exclusiveMaximum")) keyword = "exclusiveMaximum";
  if (yyjson_obj_get(schema, "maximum")) keyword = "maximum";
  return mlx_schema_unsupported(b, keyword, "leaves no number of at most 15 digits");
}
