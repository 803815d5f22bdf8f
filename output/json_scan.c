// JSON as a state machine over bytes.
#include "output/json_scan.h"

#include <string.h>

enum {
  NUMBER_MINUS,
  NUMBER_ZERO,
  NUMBER_INTEGER,
  NUMBER_DOT,
  NUMBER_FRACTION,
  NUMBER_E,
  NUMBER_SIGN,
  NUMBER_EXPONENT
};

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

static mlx_scan_result_t expect(mlx_json_scan_t *s, mlx_scan_expect_t next) {
  s->expect = next;
  return MLX_SCAN_MORE;
}

static mlx_scan_result_t begin_string(mlx_json_scan_t *s, bool is_key) {
  s->in_string = true;
  s->is_key = is_key;
  return expect(s, MLX_EXPECT_STRING);
}

static mlx_scan_result_t open_container(mlx_json_scan_t *s, bool object) {
  if (s->depth == MLX_JSON_SCAN_DEPTH) return MLX_SCAN_BAD;
  const uint64_t bit = (uint64_t)1 << s->depth++;
  s->objects = object ? s->objects | bit : s->objects & ~bit;
  return expect(s, object ? MLX_EXPECT_KEY_OR_END : MLX_EXPECT_VALUE_OR_END);
}

static bool in_object(const mlx_json_scan_t *s) { return s->objects >> (s->depth - 1) & 1; }

static mlx_scan_result_t close_container(mlx_json_scan_t *s, char c) {
  if (c != (in_object(s) ? '}' : ']')) return MLX_SCAN_BAD;
  s->expect = MLX_EXPECT_COMMA;
  return --s->depth ? MLX_SCAN_MORE : MLX_SCAN_DONE;
}

static mlx_scan_result_t begin_value(mlx_json_scan_t *s, char c) {
  static const char *const words[] = {"true", "false", "null"};
  if (c == '"') return begin_string(s, false);
  if (c == '{' || c == '[') return open_container(s, c == '{');
  for (int i = 0; i < 3; ++i) {
    if (words[i][0] != c) continue;
    s->word = words[i] + 1;
    return expect(s, MLX_EXPECT_WORD);
  }
  if (c != '-' && !is_digit(c)) return MLX_SCAN_BAD;
  s->number = c == '-' ? NUMBER_MINUS : c == '0' ? NUMBER_ZERO : NUMBER_INTEGER;
  return expect(s, MLX_EXPECT_NUMBER);
}

static mlx_scan_result_t after_value(mlx_json_scan_t *s, char c) {
  if (c == ',') return expect(s, in_object(s) ? MLX_EXPECT_KEY : MLX_EXPECT_VALUE);
  return close_container(s, c);
}

// The part of a number that |c| makes of the part |from|, or -1.
static int next_number(int from, char c) {
  const bool digit = is_digit(c), e = c == 'e' || c == 'E';
  switch (from) {
    case NUMBER_MINUS: return digit ? (c == '0' ? NUMBER_ZERO : NUMBER_INTEGER) : -1;
    case NUMBER_ZERO: return c == '.' ? NUMBER_DOT : e ? NUMBER_E : -1;
    case NUMBER_INTEGER: return digit ? NUMBER_INTEGER : c == '.' ? NUMBER_DOT : e ? NUMBER_E : -1;
    case NUMBER_DOT: return digit ? NUMBER_FRACTION : -1;
    case NUMBER_FRACTION: return digit ? NUMBER_FRACTION : e ? NUMBER_E : -1;
    case NUMBER_E: return digit ? NUMBER_EXPONENT : c == '+' || c == '-' ? NUMBER_SIGN : -1;
    default: return digit ? NUMBER_EXPONENT : -1;
  }
}

static mlx_scan_result_t scan_number(mlx_json_scan_t *s, char c) {
  const int next = next_number(s->number, c);
  if (next >= 0) {
    s->number = (uint8_t)next;
    return MLX_SCAN_MORE;
  }
  const bool complete = s->number == NUMBER_ZERO || s->number == NUMBER_INTEGER ||
                        s->number == NUMBER_FRACTION || s->number == NUMBER_EXPONENT;
  if (!complete) return MLX_SCAN_BAD;
  return is_space(c) ? expect(s, MLX_EXPECT_COMMA) : after_value(s, c);
}

static mlx_scan_result_t scan_string(mlx_json_scan_t *s, char c) {
  if (c == '\\') return expect(s, MLX_EXPECT_ESCAPE);
  if (c != '"') return MLX_SCAN_MORE;
  s->in_string = false;
  return expect(s, s->is_key ? MLX_EXPECT_COLON : MLX_EXPECT_COMMA);
}

static mlx_scan_result_t scan_escape(mlx_json_scan_t *s, char c) {
  if (s->expect == MLX_EXPECT_ESCAPE) {
    s->left = 4;
    if (c == 'u') return expect(s, MLX_EXPECT_HEX);
    return c && strchr("\"\\/bfnrt", c) ? expect(s, MLX_EXPECT_STRING) : MLX_SCAN_BAD;
  }
  if (!is_hex(c)) return MLX_SCAN_BAD;
  return --s->left ? MLX_SCAN_MORE : expect(s, MLX_EXPECT_STRING);
}

static mlx_scan_result_t scan_word(mlx_json_scan_t *s, char c) {
  if (c != *s->word) return MLX_SCAN_BAD;
  return *++s->word ? MLX_SCAN_MORE : expect(s, MLX_EXPECT_COMMA);
}

mlx_scan_result_t mlx_json_scan_byte(mlx_json_scan_t *s, char c) {
  switch (s->expect) {
    case MLX_EXPECT_STRING: return scan_string(s, c);
    case MLX_EXPECT_ESCAPE:
    case MLX_EXPECT_HEX: return scan_escape(s, c);
    case MLX_EXPECT_NUMBER: return scan_number(s, c);
    case MLX_EXPECT_WORD: return scan_word(s, c);
    default: break;
  }
  if (is_space(c)) return s->expect == MLX_EXPECT_START ? MLX_SCAN_BAD : MLX_SCAN_MORE;
  switch (s->expect) {
    case MLX_EXPECT_START: return c == '{' || c == '[' ? open_container(s, c == '{') : MLX_SCAN_BAD;
    case MLX_EXPECT_VALUE: return begin_value(s, c);
    case MLX_EXPECT_VALUE_OR_END: return c == ']' ? close_container(s, c) : begin_value(s, c);
    case MLX_EXPECT_KEY: return c == '"' ? begin_string(s, true) : MLX_SCAN_BAD;
    case MLX_EXPECT_KEY_OR_END:
      return c == '}' ? close_container(s, c) : c == '"' ? begin_string(s, true) : MLX_SCAN_BAD;
    case MLX_EXPECT_COLON: return c == ':' ? expect(s, MLX_EXPECT_VALUE) : MLX_SCAN_BAD;
    default: return after_value(s, c);
  }
}
