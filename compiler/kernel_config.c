// Writes the configuration of a kernel image as a C++ header.
#include "compiler/kernel_config.h"

#include <string.h>

#include "base/text.h"

typedef struct line {
  const char *name, *type, *value;  // type NULL: a field
  int name_length, type_length, value_length;
} line_t;

// Reads the next line that is no macro. False after the last.
static bool next_line(const char **at, line_t *out) {
  while (mlx_kernel_line_is_macro(*at)) {
    *at += strcspn(*at, "\n");
    *at += **at == '\n';
  }
  if (!**at) return false;
  const int name = (int)strcspn(*at, ":=\n");
  const char *type = (*at)[name] == ':' ? *at + name + 1 : NULL;
  const char *value = *at + strcspn(*at, "=\n") + 1;
  *out = (line_t){.name = *at,
                  .type = type,
                  .value = value,
                  .name_length = name,
                  .type_length = type ? (int)strcspn(type, "=\n") : 0,
                  .value_length = (int)strcspn(value, "\n")};
  *at = value + out->value_length;
  *at += **at == '\n';
  return true;
}

static int count_values(const line_t *line) {
  int count = 1;
  for (int i = 0; i < line->value_length; ++i) count += line->value[i] == ',';
  return count;
}

// A function instead of an array: NVRTC keeps every array of an image in global memory.
static void write_table(mlx_text_t *text, const line_t *line) {
  const int count = count_values(line);
  mlx_text_printf(text,
                  "  struct %.*s {\n    static __host__ __device__ constexpr Array<%.*s, %d> values() {\n"
                  "      return {{%.*s}};\n    }\n  };\n",
                  line->name_length, line->name, line->type_length, line->type, count, line->value_length,
                  line->value);
}

mlx_status_t mlx_kernel_config_header(const char *kernel, const char *lines, char **out_text) {
  mlx_text_t text = {0};
  line_t line;
  const char *at = lines;
  *out_text = NULL;
  mlx_text_printf(&text, "// The configuration of an image of %s.cu, written by mlxcel.\n#pragma once\n\n",
                  kernel);
  mlx_text_printf(&text, "#include \"%s_config.cuh\"\n\nconstexpr Config config = {\n", kernel);
  while (next_line(&at, &line)) {
    if (!line.type)
      mlx_text_printf(&text, "    .%.*s = %.*s,\n", line.name_length, line.name, line.value_length,
                      line.value);
  }
  mlx_text_puts(&text, "};\n\nstruct Tables : NoTables {\n");
  for (at = lines; next_line(&at, &line);)
    if (line.type) write_table(&text, &line);
  mlx_text_puts(&text, "};\n");
  mlx_status_t status = mlx_text_take(&text, out_text, NULL);
  mlx_text_clear(&text);
  return status;
}
