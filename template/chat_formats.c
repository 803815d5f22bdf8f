// Well-known chat formats as Jinja templates, for models that have no chat template.
#include <string.h>

#include "template/chat_formats.h"

typedef struct format {
  const char *name, *source;
} format_t;

// For formats without a system role: moves the system message to a variable, so that the first user message
// can begin with it.
#define SPLIT_SYSTEM                                          \
  "{%- set system = '' -%}\n"                                 \
  "{%- if messages and messages[0]['role'] == 'system' -%}\n" \
  "  {%- set system = messages[0]['content'] -%}\n"           \
  "  {%- set messages = messages[1:] -%}\n"                   \
  "{%- endif -%}\n"

// clang-format off
static const format_t formats[] = {
    // Qwen, SmolLM and many others.
    {"chatml",
     "{%- for message in messages -%}\n"
     "  {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}\n"
     "{%- endfor -%}\n"
     "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}\n"},
    {"deepseek2",
     "{{- bos_token -}}\n"
     "{%- for message in messages -%}\n"
     "  {%- if message['role'] == 'user' -%}{{- 'User: ' + message['content'] + '\\n\\n' -}}\n"
     "  {%- elif message['role'] == 'assistant' -%}{{- 'Assistant: ' + message['content'] + eos_token -}}\n"
     "  {%- else -%}{{- message['content'] + '\\n\\n' -}}\n"
     "  {%- endif -%}\n"
     "{%- endfor -%}\n"
     "{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}\n"},
    {"gemma",
     SPLIT_SYSTEM
     "{{- bos_token -}}\n"
     "{%- for message in messages -%}\n"
     "  {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}\n"
     "  {{- '<start_of_turn>' + role + '\\n' -}}\n"
     "  {%- if loop.first and system -%}{{- system | trim + '\\n\\n' -}}{%- endif -%}\n"
     "  {{- message['content'] | trim + '<end_of_turn>\\n' -}}\n"
     "{%- endfor -%}\n"
     "{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}\n"},
    {"llama2",
     SPLIT_SYSTEM
     "{%- for message in messages -%}\n"
     "  {%- if message['role'] == 'user' -%}\n"
     "    {{- bos_token + '[INST] ' -}}\n"
     "    {%- if loop.first and system -%}{{- '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' -}}{%- endif -%}\n"
     "    {{- message['content'] | trim + ' [/INST]' -}}\n"
     "  {%- else -%}{{- ' ' + message['content'] | trim + ' ' + eos_token -}}\n"
     "  {%- endif -%}\n"
     "{%- endfor -%}\n"},
    {"llama3",
     "{{- bos_token -}}\n"
     "{%- for message in messages -%}\n"
     "  {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim "
       "+ '<|eot_id|>' -}}\n"
     "{%- endfor -%}\n"
     "{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif "
       "-%}\n"},
    // Mistral's v3 format, except that the system message begins the first user message. Mistral's own
    // template puts it in the last one, which would change the start of the prompt with every turn.
    {"mistral",
     SPLIT_SYSTEM
     "{{- bos_token -}}\n"
     "{%- for message in messages -%}\n"
     "  {%- if message['role'] == 'user' -%}\n"
     "    {{- '[INST] ' -}}\n"
     "    {%- if loop.first and system -%}{{- system + '\\n\\n' -}}{%- endif -%}\n"
     "    {{- message['content'] + '[/INST]' -}}\n"
     "  {%- else -%}{{- ' ' + message['content'] | trim + eos_token -}}\n"
     "  {%- endif -%}\n"
     "{%- endfor -%}\n"},
    {"phi3",
     "{%- for message in messages -%}\n"
     "  {{- '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' -}}\n"
     "{%- endfor -%}\n"
     "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}\n"},
    {"vicuna",
     "{{- bos_token -}}\n"
     "{%- for message in messages -%}\n"
     "  {%- if message['role'] == 'user' -%}{{- 'USER: ' + message['content'] + '\\n' -}}\n"
     "  {%- elif message['role'] == 'assistant' -%}{{- 'ASSISTANT: ' + message['content'] + eos_token + "
       "'\\n' -}}\n"
     "  {%- else -%}{{- message['content'] + '\\n\\n' -}}\n"
     "  {%- endif -%}\n"
     "{%- endfor -%}\n"
     "{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}\n"},
    {"zephyr",
     "{%- for message in messages -%}\n"
     "  {{- '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' -}}\n"
     "{%- endfor -%}\n"
     "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}\n"},
};
// clang-format on
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
