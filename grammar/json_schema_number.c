// Numbers inside bounds, digit by digit.
#include "grammar/json_schema_number.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_WHOLE 999999999999999  // 15 digits: a double represents them exactly
#define MAX_MULTIPLES 30000        // rules for multiples in one schema

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

// ----------------------------------------------------------------------------------------------------------
// Narrow ranges

#define MAX_PLACES 6

// Numbers with exactly |places| digits after the point, from |low| to |high| in units of the last one. Both
// are at least 0.
static void put_decimals(mlx_text_t *out, int64_t low, int64_t high, int places) {
  const char *separator = "(";
  int64_t unit = 1;
  for (int i = 0; i < places; ++i) unit *= 10;
  for (int64_t ten = 10 * unit; low <= high; ten *= 10) {
    if (low >= ten) continue;
    const int64_t end = high < ten ? high : ten - 1;
    // One alternate for each whole part: a narrow range has few.
    for (int64_t whole = low / unit; whole <= end / unit; ++whole) {
      char first[24], last[24];
      snprintf(first, sizeof first, "%0*" PRId64, places, whole == low / unit ? low % unit : 0);
      snprintf(last, sizeof last, "%0*" PRId64, places, whole == end / unit ? end % unit : unit - 1);
      mlx_text_printf(out, "%s\"%" PRId64 ".\"", separator, whole);
      put_same_length(out, first, last);
      separator = " | ";
    }
    low = ten;
  }
  mlx_text_puts(out, ")");
}

typedef struct bounds {
  double min, max;  // -INFINITY and INFINITY: none
  bool min_excluded, max_excluded;
} bounds_t;

// A number of a range that contains no whole number; false if it needs more than MAX_PLACES digits.
static bool put_narrow(mlx_text_t *out, const bounds_t *b) {
  if (fabs(b->min) > 1e6 || fabs(b->max) > 1e6 || b->max - b->min > 2) return false;
  const bool negative = b->max <= 0;
  const double min = negative ? -b->max : b->min, max = negative ? -b->min : b->max;
  const bool min_excluded = negative ? b->max_excluded : b->min_excluded,
             max_excluded = negative ? b->min_excluded : b->max_excluded;
  double unit = 1;
  for (int places = 1; places <= MAX_PLACES && min >= 0; ++places) {
    unit *= 10;
    // One unit away from an excluded bound, and from a bound that has more digits.
    const int64_t low = (int64_t)ceil(min * unit) + min_excluded,
                  high = (int64_t)floor(max * unit) - max_excluded;
    if (high - low < 500 && places < MAX_PLACES) continue;
    if (low > high) continue;
    mlx_text_puts(out, negative ? "\"-\" " : "");
    put_decimals(out, low, high, places);
    return true;
  }
  return false;
}

// ----------------------------------------------------------------------------------------------------------
// Multiples

#define MAX_LISTED 64  // multiples that are listed instead of computed

// The rule m<step>-<count>-<rest>: |count| digits of a number that leaves |rest| when it is divided by
// |step|.
typedef struct digits {
  mlx_schema_builder_t *b;
  int64_t step;
  int64_t powers[20];  // 10^n modulo step
  bool failed;         // too many rules
} digits_t;

static mlx_status_t put_digits_rule(digits_t *d, size_t count, int64_t rest, mlx_text_t *out) {
  char name[64];
  uint32_t known;
  const char *kept;
  mlx_text_t body = {0};
  const int length = snprintf(name, sizeof name, "m%" PRId64 "-%zu-%" PRId64, d->step, count, rest);
  mlx_text_printf(out, " %s", name);
  if (mlx_name_table_find(&d->b->strings, name, (size_t)length, &known) || d->failed) return NULL;
  if (++d->b->multiples > MAX_MULTIPLES) {
    d->failed = true;
    return NULL;
  }
  MLX_TRY(mlx_schema_keep_text(d->b, name, (size_t)length, &kept));
  MLX_TRY(mlx_name_table_add(&d->b->strings, kept, (size_t)length, 0));
  mlx_status_t status = mlx_budget_step(d->b->budget, 64);
  const char *separator = "";
  for (int64_t digit = 0; digit < 10 && !status; ++digit) {
    const int64_t left = ((rest - digit * d->powers[count - 1]) % d->step + d->step) % d->step;
    if (count == 1 && left) continue;
    mlx_text_printf(&body, "%s\"%" PRId64 "\"", separator, digit);
    separator = " | ";
    if (count > 1) status = put_digits_rule(d, count - 1, left, &body);
  }
  if (!status) status = mlx_text_finish(&body);
  if (!status) mlx_text_printf(&d->b->out, "%s ::= %s\n", name, body.length ? body.data : "never");
  mlx_text_clear(&body);
  return status;
}

// Multiples from |low| to |high|, both at least 0: the numbers are split as put_same_length does it.
static mlx_status_t put_multiples_of_length(digits_t *d, mlx_text_t *out, const char *low, const char *high,
                                            int64_t value) {
  const size_t left = strlen(low);
  if (!left) {
    mlx_text_puts(out, value % d->step ? " never" : "");
    return NULL;
  }
  if (all_are(low, '0') && all_are(high, '9'))
    return put_digits_rule(d, left, (d->step - value % d->step * d->powers[left] % d->step) % d->step, out);
  char zeros[20] = "", nines[20] = "";
  memset(zeros, '0', left - 1);
  memset(nines, '9', left - 1);
  const char *separator = " (";
  for (char digit = *low; digit <= *high; ++digit) {
    mlx_text_printf(out, "%s\"%c\"", separator, digit);
    separator = " | ";
    MLX_TRY(put_multiples_of_length(d, out, digit == *low ? low + 1 : zeros,
                                    digit == *high ? high + 1 : nines,
                                    (value * 10 + (digit - '0')) % d->step));
  }
  mlx_text_puts(out, ")");
  return NULL;
}

// Multiples of |step| from |low| to |high|, both at least 0.
static mlx_status_t put_multiples(mlx_schema_builder_t *b, mlx_text_t *out, int64_t low, int64_t high,
                                  int64_t step, bool *out_failed) {
  digits_t d = {.b = b, .step = step};
  const char *separator = "(";
  d.powers[0] = 1 % step;
  for (int i = 1; i < 20; ++i) d.powers[i] = d.powers[i - 1] * 10 % step;
  low = (low + step - 1) / step * step;
  high = high / step * step;
  if ((high - low) / step < MAX_LISTED) {
    for (; low <= high; low += step, separator = " | ")
      mlx_text_printf(out, "%s\"%" PRId64 "\"", separator, low);
  }
  for (int64_t ten = 10; low <= high; ten *= 10) {
    if (low >= ten) continue;
    char first[24], last[24];
    snprintf(first, sizeof first, "%" PRId64, low);
    snprintf(last, sizeof last, "%" PRId64, high < ten ? high : ten - 1);
    mlx_text_puts(out, separator);
    separator = " | ";
    MLX_TRY(put_multiples_of_length(&d, out, first, last, 0));
    low = ten;
  }
  mlx_text_puts(out, *separator == '(' ? "never" : ")");
  *out_failed = d.failed;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Numbers

typedef struct number {
  bounds_t bounds;
  int64_t step;  // 0: none
  bool whole;
  yyjson_val *step_schema;
} number_t;

// A number within |b|; false if there is none.
static bool put_fraction_within(mlx_text_t *out, const bounds_t *b) {
  const double lowest = fmax(ceil(b->min), -(double)MAX_WHOLE),
               highest = fmin(floor(b->max), (double)MAX_WHOLE);
  if (b->min == -INFINITY && b->max == INFINITY) {
    mlx_text_puts(out, "number");
    return true;
  }
  const size_t before = out->length;
  if (lowest <= highest &&
      put_bounded(out, (int64_t)lowest, (int64_t)highest, b->min_excluded && lowest == b->min,
                  b->max_excluded && highest == b->max))
    return true;
  out->length = before;
  return put_narrow(out, b);
}

static mlx_status_t put_whole_within(mlx_schema_builder_t *b, const number_t *n, mlx_text_t *out,
                                     bool *out_any) {
  const double lowest = fmax(ceil(n->bounds.min), -(double)MAX_WHOLE),
               highest = fmin(floor(n->bounds.max), (double)MAX_WHOLE);
  bool failed = false;
  *out_any = true;
  if (n->bounds.min == -INFINITY && n->bounds.max == INFINITY && !n->step) {
    mlx_text_puts(out, "\"0\" | \"-\"? [1-9] [0-9]{0,14}");
    return NULL;
  }
  *out_any = false;
  if (!(lowest <= highest)) return NULL;
  const int64_t low = (int64_t)lowest + (n->bounds.min_excluded && lowest == n->bounds.min),
                high = (int64_t)highest - (n->bounds.max_excluded && highest == n->bounds.max);
  *out_any = low <= high;
  if (low <= high && low < 0) {
    mlx_text_puts(out, "\"-\" ");
    if (n->step) {
      MLX_TRY(put_multiples(b, out, high < 0 ? -high : 1, -low, n->step, &failed));
    } else {
      put_whole(out, high < 0 ? -high : 1, -low);
    }
    if (high >= 0) mlx_text_puts(out, " | ");
  }
  if (low <= high && high >= 0) {
    if (n->step) {
      MLX_TRY(put_multiples(b, out, low < 0 ? 0 : low, high, n->step, &failed));
    } else {
      put_whole(out, low < 0 ? 0 : low, high);
    }
  }
  return failed ? mlx_schema_unsupported(b, n->step_schema, "multipleOf", "needs too many rules") : NULL;
}

static mlx_status_t read_bound(const mlx_schema_builder_t *b, yyjson_val *schema, const char *keyword,
                               double fallback, double *out) {
  yyjson_val *value = yyjson_obj_get(schema, keyword);
  *out = yyjson_is_num(value) ? yyjson_get_num(value) : fallback;
  if (!value || yyjson_is_num(value)) return NULL;
  // In draft 4, exclusiveMinimum is a boolean beside minimum.
  if (*keyword == 'e' && yyjson_is_bool(value)) return NULL;
  return mlx_schema_invalid(b, schema, keyword, "is not a number");
}

static mlx_status_t read_step(const mlx_schema_builder_t *b, yyjson_val *schema, number_t *n) {
  double step;
  MLX_TRY(read_bound(b, schema, "multipleOf", 0, &step));
  if (!yyjson_obj_get(schema, "multipleOf")) return NULL;
  if (!(step > 0)) return mlx_schema_invalid(b, schema, "multipleOf", "is not a number above 0");
  // A whole number is a multiple of 0.5, but 0.01 has no exact value: peers disagree about its multiples.
  double whole = step;
  for (int i = 0; i < 20 && whole < 1; ++i) whole *= 2;
  if (step < 1 && whole == 1) step = 1;
  if (step != floor(step) || step > 1e9)
    return mlx_schema_unsupported(b, schema, "multipleOf", "is supported for whole numbers up to 1e9");
  n->step_schema = schema;
  int64_t a = n->step ? n->step : 1, rest = (int64_t)step;
  while (rest) {  // the greatest common divisor
    const int64_t next = a % rest;
    a = rest;
    rest = next;
  }
  if (n->step && (double)n->step / (double)a * step > 1e9)
    return mlx_schema_unsupported(b, schema, "multipleOf", "is supported for whole numbers up to 1e9");
  n->step = n->step ? n->step / a * (int64_t)step : (int64_t)step;
  return NULL;
}

static mlx_status_t read_term(const mlx_schema_builder_t *b, yyjson_val *schema, number_t *n) {
  double min, max, above, below;
  MLX_TRY(read_bound(b, schema, "minimum", -INFINITY, &min));
  MLX_TRY(read_bound(b, schema, "maximum", INFINITY, &max));
  MLX_TRY(read_bound(b, schema, "exclusiveMinimum", -INFINITY, &above));
  MLX_TRY(read_bound(b, schema, "exclusiveMaximum", INFINITY, &below));
  if (yyjson_is_true(yyjson_obj_get(schema, "exclusiveMinimum"))) above = min;
  if (yyjson_is_true(yyjson_obj_get(schema, "exclusiveMaximum"))) below = max;
  if (n->whole && yyjson_equals_str(yyjson_obj_get(schema, "format"), "int32")) {
    min = fmax(min, -2147483648.0);
    max = fmin(max, 2147483647.0);
  }
  bounds_t *bounds = &n->bounds;
  if (min > bounds->min) *bounds = (bounds_t){min, bounds->max, false, bounds->max_excluded};
  if (max < bounds->max) *bounds = (bounds_t){bounds->min, max, bounds->min_excluded, false};
  if (above != -INFINITY && above >= bounds->min) bounds->min = above, bounds->min_excluded = true;
  if (below != INFINITY && below <= bounds->max) bounds->max = below, bounds->max_excluded = true;
  return read_step(b, schema, n);
}

mlx_status_t mlx_schema_put_number(mlx_schema_builder_t *b, const mlx_conjunction_t *c, bool whole,
                                   mlx_text_t *out) {
  number_t n = {.bounds = {-INFINITY, INFINITY, false, false}, .whole = whole};
  MLX_TRY(mlx_schema_check_counts(b, c, "minimum", "maximum"));
  for (size_t i = 0; i < c->count; ++i) MLX_TRY(read_term(b, c->terms[i].schema, &n));
  bool any;
  mlx_text_t body = {0};
  mlx_status_t status = NULL;
  if (whole || n.step) {  // the multiples of a whole number are whole
    status = put_whole_within(b, &n, &body, &any);
  } else {
    any = put_fraction_within(&body, &n.bounds);
  }
  if (!status) status = mlx_text_finish(&body);
  if (!status) mlx_text_printf(out, "(%s)", any ? body.data : "never");
  mlx_text_clear(&body);
  return status;
}
