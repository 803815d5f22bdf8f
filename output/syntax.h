// Output syntax: how each model family writes reasoning and tool calls, as constant tables. The parser
// (parser.c) and the grammar writer (output_grammar.c) read them.
#ifndef MLXCEL_OUTPUT_SYNTAX_H_
#define MLXCEL_OUTPUT_SYNTAX_H_

#include <stdbool.h>
#include <stddef.h>

#include "output/output_format.h"

typedef enum mlx_syntax_kind {
  MLX_SYNTAX_OBJECT,   // {"name": NAME, "arguments": {...}}, or a list of such objects
  MLX_SYNTAX_NAMED,    // NAME, then the arguments as a JSON object
  MLX_SYNTAX_TAGGED,   // NAME, then each argument between tags
  MLX_SYNTAX_PYTHON,   // [NAME(key="text", other=1)]
  MLX_SYNTAX_GEMMA,    // call:NAME{key:<|"|>text<|"|>}, or with other quotes
  MLX_SYNTAX_HARMONY,  // gpt-oss: messages with channels and recipients
} mlx_syntax_kind_t;

#define MLX_SYNTAX_TOKENS 6

typedef struct mlx_tool_syntax {
  const char *name;
  mlx_syntax_kind_t kind;
  // The template has one of these texts if it writes this syntax. A text may list parts that must all occur,
  // separated by a space.
  const char *marks[4];
  // Text around all calls of an answer, and around each call; NULL: none. In the output, |section| and all
  // ends are optional.
  const char *section, *section_end;
  bool section_each;  // each call has a section of its own
  const char *begin, *end;
  // OBJECT: the keys that the template writes. A parser accepts the keys of all families.
  const char *name_key, *arguments_key;
  bool list;  // OBJECT: the calls are one JSON list
  // NAMED: the name begins after |name_begin|, if the header has it, and ends before |name_ends|.
  const char *name_begin, *name_ends[2];
  // NAMED, for the grammar: text before and after the name.
  const char *before_name, *after_name;
  // TAGGED: text around the name, the keys and the values. Without |name_end|, a name ends at a '<' or a line
  // end. Without |value_begin|, the value follows |key_end|.
  const char *name_end, *key_begin, *key_end, *value_begin, *value_end;
  const char *quote;     // GEMMA: around strings
  bool value_lines;      // TAGGED: values stand on lines of their own
  bool bare;             // an object without |begin| at the start of an answer is a call, if it names a tool
  bool short_ids;        // ids are 9 letters and digits
  const char *turn_end;  // text that ends a turn with calls in the template, if it is special; or NULL
  const char *tokens[MLX_SYNTAX_TOKENS];  // special tokens that are neither |section|, |begin| nor an end
} mlx_tool_syntax_t;

typedef struct mlx_reasoning_syntax {
  const char *mark;  // in templates of models that reason
  const char *begin, *end;
} mlx_reasoning_syntax_t;

struct mlx_output_format {
  const mlx_tool_syntax_t *tools;           // never NULL
  const mlx_reasoning_syntax_t *reasoning;  // NULL: none
  const char *dropped[3];                   // tags that are no part of the text
};

// True if |prompt| ends inside a reasoning block: its last |begin| tag is not closed. Unless |continues|,
// only white space may follow the tag.
bool mlx_output_prompt_reasons(const mlx_output_format_t *format, const char *prompt, size_t length,
                               bool continues);

#endif  // MLXCEL_OUTPUT_SYNTAX_H_
