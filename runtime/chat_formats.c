// Well-known chat formats, for models that bring no template of their own. Each is Jinja, as a model's own would be, and goes the same way.
#include <string.h>

#include "runtime/mlxcel.h"

typedef struct format {
  const char *name, *source;
} format_t;

static const format_t formats[] = {
    {"chatml",
     "{%- for message in messages -%}\n"
     "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}\n"
     "{%- endfor -%}\n"
     "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}\n"},
};
#define FORMATS (sizeof formats / sizeof *formats)

const char *mlx_chat_format(const char *name) {
  for (size_t i = 0; i < FORMATS; ++i) {
    if (!strcmp(formats[i].name, name)) return formats[i].source;
  }
  return NULL;
}

const char *const *mlx_chat_format_names(void) {
  static const char *names[FORMATS + 1];
  for (size_t i = 0; i < FORMATS; ++i) names[i] = formats[i].name;
  return names;
}
