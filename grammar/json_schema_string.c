// Strings: a length, a pattern or a format.
#include "grammar/json_schema_string.h"

#include "grammar/json_schema_pattern.h"

// clang-format off
#define HOUR "([01] [0-9] | \"2\" [0-3])"
#define MINUTE "[0-5] [0-9]"
#define OFFSET "(\"Z\" | [-+] " HOUR " \":\" " MINUTE ")"
#define TIME HOUR " \":\" " MINUTE " \":\" " MINUTE " (\".\" [0-9]{1,6})? " OFFSET
#define DATE                                                                                          \
  "[0-9]{4} \"-\" ("                                                                                  \
  "\"02-\" (\"0\" [1-9] | \"1\" [0-9] | \"2\" [0-8])"                                                 \
  " | (\"04\" | \"06\" | \"09\" | \"11\") \"-\" (\"0\" [1-9] | [12] [0-9] | \"30\")"                  \
  " | (\"01\" | \"03\" | \"05\" | \"07\" | \"08\" | \"10\" | \"12\") \"-\" "                            \
      "(\"0\" [1-9] | [12] [0-9] | \"3\" [01]))"
#define UUID "[0-9a-f]{8} \"-\" [0-9a-f]{4} \"-\" [0-9a-f]{4} \"-\" [0-9a-f]{4} \"-\" [0-9a-f]{12}"
// clang-format on

static mlx_status_t put_format(mlx_schema_builder_t *b, yyjson_val *format, mlx_text_t *out) {
  static const struct {
    const char *name, *gbnf;
  } rows[] = {{"date", DATE}, {"time", TIME}, {"date-time", DATE " \"T\" " TIME}, {"uuid", UUID}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    if (!yyjson_equals_str(format, rows[i].name)) continue;
    mlx_text_printf(out, "\"\\\"\" %s \"\\\"\"", rows[i].gbnf);
    return NULL;
  }
  return mlx_schema_unsupported(b, "format", "is supported for date, time, date-time and uuid only");
}

mlx_status_t mlx_schema_put_string(mlx_schema_builder_t *b, yyjson_val *schema, mlx_text_t *out) {
  yyjson_val *pattern = yyjson_obj_get(schema, "pattern"), *format = yyjson_obj_get(schema, "format");
  uint64_t min, max;
  MLX_TRY(mlx_schema_read_count(b, schema, "minLength", 0, &min));
  MLX_TRY(mlx_schema_read_count(b, schema, "maxLength", UINT64_MAX, &max));
  if (min > max) return mlx_schema_invalid(b, "minLength", "is more than 'maxLength'");
  const bool has_length = min || max != UINT64_MAX;
  if (!!pattern + !!format + has_length > 1) {
    return mlx_schema_unsupported(b, pattern ? "pattern" : "format",
                                  "together with another limit on the same string is not supported");
  }
  if (format) return put_format(b, format, out);
  if (!pattern) {
    mlx_text_puts(out, "\"\\\"\" char");
    mlx_gbnf_put_repetition(out, min, max);
    mlx_text_puts(out, " \"\\\"\"");
    return NULL;
  }
  if (!yyjson_is_str(pattern)) return mlx_schema_invalid(b, "pattern", "is not a string");
  const char *problem;
  mlx_text_puts(out, "\"\\\"\" ");
  mlx_gbnf_put_pattern(out, yyjson_get_str(pattern), yyjson_get_len(pattern), &problem);
  mlx_text_puts(out, " \"\\\"\"");
  return problem ? mlx_schema_unsupported(b, "pattern", problem) : NULL;
}
