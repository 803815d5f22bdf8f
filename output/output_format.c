// The table of formats, and how one is found for a chat template.
#include "output/output_format.h"

#include <string.h>

#include "output/syntax.h"

// ----------------------------------------------------------------------------------------------------------
// Tool calls. The first syntax whose marks are in the template is its syntax.

static const mlx_tool_syntax_t syntaxes[] = {
    {.name = "gpt-oss",
     .kind = MLX_SYNTAX_HARMONY,
     .marks = {"<|channel|> <|message|> <|call|>"},
     .turn_end = "<|call|>",
     .tokens = {"<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>", "<|call|>"}},
    {.name = "deepseek-dsml",
     .kind = MLX_SYNTAX_TAGGED,
     .marks = {"｜DSML｜ invoke function_calls"},
     .section = "<｜DSML｜function_calls>",
     .section_end = "</｜DSML｜function_calls>",
     .begin = "<｜DSML｜invoke name=\"",
     .end = "</｜DSML｜invoke>",
     .name_end = "\">",
     .key_begin = "<｜DSML｜parameter name=\"",
     .key_end = "\" string=\"true\">",
     .value_end = "</｜DSML｜parameter>",
     .tokens = {"｜DSML｜"}},
    {.name = "deepseek-v4",
     .kind = MLX_SYNTAX_TAGGED,
     .marks = {"｜DSML｜ invoke tool_calls"},
     .section = "<｜DSML｜tool_calls>",
     .section_end = "</｜DSML｜tool_calls>",
     .begin = "<｜DSML｜invoke name=\"",
     .end = "</｜DSML｜invoke>",
     .name_end = "\">",
     .key_begin = "<｜DSML｜parameter name=\"",
     .key_end = "\" string=\"true\">",
     .value_end = "</｜DSML｜parameter>",
     .tokens = {"｜DSML｜"}},
    {.name = "deepseek",
     .kind = MLX_SYNTAX_NAMED,
     .marks = {"<｜tool▁call▁begin｜> ```json"},
     .section = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>",
     .begin = "<｜tool▁call▁begin｜>",
     .end = "<｜tool▁call▁end｜>",
     .name_begin = "<｜tool▁sep｜>",
     .name_ends = {"\n"},
     .before_name = "function<｜tool▁sep｜>",
     .after_name = "\n```json\n",
     .tokens = {"<｜tool▁sep｜>"}},
    {.name = "deepseek-v3.1",
     .kind = MLX_SYNTAX_NAMED,
     .marks = {"<｜tool▁call▁begin｜>"},
     .section = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>",
     .begin = "<｜tool▁call▁begin｜>",
     .end = "<｜tool▁call▁end｜>",
     .name_ends = {"<｜tool▁sep｜>"},
     .after_name = "<｜tool▁sep｜>",
     .tokens = {"<｜tool▁sep｜>"}},
    {.name = "kimi",
     .kind = MLX_SYNTAX_NAMED,
     .marks = {"<|tool_call_begin|>"},
     .section = "<|tool_calls_section_begin|>",
     .section_end = "<|tool_calls_section_end|>",
     .begin = "<|tool_call_begin|>",
     .end = "<|tool_call_end|>",
     .name_begin = "functions.",
     .name_ends = {":", "<|tool_call_argument_begin|>"},
     .before_name = "functions.",
     .after_name = ":0<|tool_call_argument_begin|>",
     .tokens = {"<|tool_call_argument_begin|>"}},
    {.name = "gemma4",
     .kind = MLX_SYNTAX_GEMMA,
     .marks = {"<|tool_call>call:"},
     .begin = "<|tool_call>",
     .end = "<tool_call|>",
     .quote = "<|\"|>",
     .tokens = {"<|channel>", "<channel|>", "<|\"|>"}},
    {.name = "functiongemma",
     .kind = MLX_SYNTAX_GEMMA,
     .marks = {"<start_function_call>call:", "<start_function_call> call:"},
     .begin = "<start_function_call>",
     .end = "<end_function_call>",
     .quote = "<escape>",
     .tokens = {"<escape>"}},
    {.name = "minimax",
     .kind = MLX_SYNTAX_TAGGED,
     .marks = {"<minimax:tool_call>"},
     .section = "<minimax:tool_call>",
     .section_end = "</minimax:tool_call>",
     .begin = "<invoke name=\"",
     .end = "</invoke>",
     .name_end = "\">",
     .key_begin = "<parameter name=\"",
     .key_end = "\">",
     .value_end = "</parameter>",
     .turn_end = "[e~["},
    {.name = "glm",
     .kind = MLX_SYNTAX_TAGGED,
     .marks = {"<tool_call> <arg_key>"},
     .begin = "<tool_call>",
     .end = "</tool_call>",
     .key_begin = "<arg_key>",
     .key_end = "</arg_key>",
     .value_begin = "<arg_value>",
     .value_end = "</arg_value>"},
    {.name = "seed-oss",
     .kind = MLX_SYNTAX_TAGGED,
     .marks = {"<seed:tool_call> <function="},
     .section_each = true,
     .section = "<seed:tool_call>",
     .section_end = "</seed:tool_call>",
     .begin = "<function=",
     .end = "</function>",
     .name_end = ">",
     .key_begin = "<parameter=",
     .key_end = ">",
     .value_end = "</parameter>"},
    {.name = "qwen3-coder",
     .kind = MLX_SYNTAX_TAGGED,
     .marks = {"<function= <parameter= <tool_call>"},
     .section = "<tool_call>",
     .section_end = "</tool_call>",
     .begin = "<function=",
     .end = "</function>",
     .name_end = ">",
     .key_begin = "<parameter=",
     .key_end = ">",
     .value_end = "</parameter>",
     .section_each = true,
     .value_lines = true},
    {.name = "functionary",
     .kind = MLX_SYNTAX_NAMED,
     .marks = {"<function="},
     .begin = "<function=",
     .end = "</function>",
     .name_ends = {">"},
     .after_name = ">"},
    {.name = "mistral-args",
     .kind = MLX_SYNTAX_NAMED,
     .marks = {"[TOOL_CALLS] [ARGS]"},
     .begin = "[TOOL_CALLS]",
     .name_ends = {"[CALL_ID]", "[ARGS]"},
     .after_name = "[ARGS]",
     .short_ids = true,
     .turn_end = "</s>",
     .tokens = {"[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"}},
    {.name = "mistral",
     .kind = MLX_SYNTAX_OBJECT,
     .marks = {"[TOOL_CALLS]"},
     .begin = "[TOOL_CALLS]",
     .name_key = "name",
     .arguments_key = "arguments",
     .list = true,
     .bare = true,
     .short_ids = true,
     .turn_end = "</s>",
     .tokens = {"[THINK]", "[/THINK]"}},
    {.name = "command-r",
     .kind = MLX_SYNTAX_OBJECT,
     .marks = {"<|START_ACTION|>"},
     .begin = "<|START_ACTION|>",
     .end = "<|END_ACTION|>",
     .name_key = "tool_name",
     .arguments_key = "parameters",
     .list = true,
     .tokens = {"<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"}},
    {.name = "granite",
     .kind = MLX_SYNTAX_OBJECT,
     .marks = {"<|tool_call|>"},
     .begin = "<|tool_call|>",
     .name_key = "name",
     .arguments_key = "arguments",
     .list = true,
     .bare = true},
    {.name = "tool_calls",
     .kind = MLX_SYNTAX_OBJECT,
     .marks = {"<tool_calls>"},
     .begin = "<tool_calls>",
     .end = "</tool_calls>",
     .name_key = "name",
     .arguments_key = "arguments",
     .list = true,
     .bare = true},
    {.name = "nemotron",
     .kind = MLX_SYNTAX_OBJECT,
     .marks = {"<TOOLCALL>"},
     .begin = "<TOOLCALL>",
     .end = "</TOOLCALL>",
     .name_key = "name",
     .arguments_key = "arguments",
     .list = true,
     .bare = true},
    {.name = "hermes",
     .kind = MLX_SYNTAX_OBJECT,
     .marks = {"<tool_call>"},
     .begin = "<tool_call>",
     .end = "</tool_call>",
     .name_key = "name",
     .arguments_key = "arguments",
     .bare = true},
    {.name = "functools",
     .kind = MLX_SYNTAX_OBJECT,
     .marks = {"functools["},
     .begin = "functools",
     .name_key = "name",
     .arguments_key = "arguments",
     .list = true,
     .bare = true},
    {.name = "lfm2",
     .kind = MLX_SYNTAX_PYTHON,
     .marks = {"<|tool_call_start|>", "<|tool_list_start|>",
               "keep_past_thinking List of tools: <|im_start|>"},  // the last one: LFM2.5
     .begin = "<|tool_call_start|>",
     .end = "<|tool_call_end|>",
     .list = true,
     .bare = true},
    {.name = "pythonic",
     .kind = MLX_SYNTAX_PYTHON,
     .marks = {"[func_name1(params_name1=params_value1", "[func_name1(params"},
     .list = true,
     .bare = true},
    {.name = "llama3",
     .kind = MLX_SYNTAX_OBJECT,
     .marks = {"<|python_tag|>", "\"parameters\": dictionary", "<|start_header_id|> \"parameters\":"},
     .begin = "<|python_tag|>",
     .name_key = "name",
     .arguments_key = "parameters",
     .bare = true},
    // Any other template: an answer that is one JSON object or list that names a tool.
    {.name = "plain",
     .kind = MLX_SYNTAX_OBJECT,
     .marks = {""},
     .name_key = "name",
     .arguments_key = "arguments",
     .bare = true},
};

#define SYNTAX_COUNT (sizeof syntaxes / sizeof *syntaxes)

// ----------------------------------------------------------------------------------------------------------
// Reasoning

static const mlx_reasoning_syntax_t reasonings[] = {
    {"<|channel>thought", "<|channel>thought\n", "<channel|>"},
    {"[THINK]", "[THINK]", "[/THINK]"},
    {"<|START_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>"},
    {"<seed:think>", "<seed:think>", "</seed:think>"},
    {"</think>", "<think>", "</think>"},
    {"<think>", "<think>", "</think>"},
};

#define REASONING_COUNT (sizeof reasonings / sizeof *reasonings)

// Every pair, so that a format is constant data. The last column has no reasoning.
#define PAIR(s, r) {&syntaxes[s], (r) < REASONING_COUNT ? &reasonings[(r) % REASONING_COUNT] : NULL, DROPPED}
#define DROPPED {"<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>"}
#define ROW(s) {PAIR(s, 0), PAIR(s, 1), PAIR(s, 2), PAIR(s, 3), PAIR(s, 4), PAIR(s, 5), PAIR(s, 6)}

static const mlx_output_format_t formats[][REASONING_COUNT + 1] = {
    ROW(0),  ROW(1),  ROW(2),  ROW(3),  ROW(4),  ROW(5),  ROW(6),  ROW(7),  ROW(8),
    ROW(9),  ROW(10), ROW(11), ROW(12), ROW(13), ROW(14), ROW(15), ROW(16), ROW(17),
    ROW(18), ROW(19), ROW(20), ROW(21), ROW(22), ROW(23), ROW(24)};
_Static_assert(sizeof formats / sizeof *formats == SYNTAX_COUNT, "one row for each syntax");

// ----------------------------------------------------------------------------------------------------------
// Finding

// True if |source| has all parts of |mark|, which are separated by spaces.
static bool has_mark(const char *source, const char *mark) {
  for (;;) {
    char part[64];
    const size_t length = strcspn(mark, " ");
    if (length >= sizeof part) return false;
    memcpy(part, mark, length);
    part[length] = 0;
    if (!strstr(source, part)) return false;
    if (!mark[length]) return true;
    mark += length + 1;
  }
}

static size_t find_syntax(const char *source) {
  for (size_t i = 0; i + 1 < SYNTAX_COUNT; ++i) {
    for (size_t m = 0; m < 4 && syntaxes[i].marks[m]; ++m) {
      if (has_mark(source, syntaxes[i].marks[m])) return i;
    }
  }
  return SYNTAX_COUNT - 1;
}

const mlx_output_format_t *mlx_output_format_find(const char *source) {
  const size_t syntax = find_syntax(source);
  size_t reasoning = 0;
  while (reasoning < REASONING_COUNT && !strstr(source, reasonings[reasoning].mark)) ++reasoning;
  if (syntaxes[syntax].kind == MLX_SYNTAX_HARMONY) reasoning = REASONING_COUNT;  // channels instead
  return &formats[syntax][reasoning];
}

const char *mlx_output_format_name(const mlx_output_format_t *format) { return format->tools->name; }

size_t mlx_output_format_tokens(const mlx_output_format_t *format, const char **out_tokens) {
  const mlx_tool_syntax_t *tools = format->tools;
  const char *const tags[] = {tools->section, tools->section_end, tools->begin, tools->end};
  size_t count = 0;
  for (size_t i = 0; i < sizeof tags / sizeof *tags; ++i) {
    if (tags[i]) out_tokens[count++] = tags[i];
  }
  for (size_t i = 0; i < MLX_SYNTAX_TOKENS && tools->tokens[i]; ++i) out_tokens[count++] = tools->tokens[i];
  if (!format->reasoning) return count;
  out_tokens[count++] = format->reasoning->begin;
  out_tokens[count++] = format->reasoning->end;
  return count;
}

bool mlx_output_format_reasons(const mlx_output_format_t *format) {
  return format->reasoning || format->tools->kind == MLX_SYNTAX_HARMONY;
}

// ----------------------------------------------------------------------------------------------------------
// Prompts

// The position after the last |tag| in |text|, or 0.
static size_t after_last(const char *text, size_t length, const char *tag) {
  const size_t size = strlen(tag);
  for (size_t at = length; at >= size; --at) {
    if (!memcmp(text + at - size, tag, size)) return at;
  }
  return 0;
}

bool mlx_output_prompt_reasons(const mlx_output_format_t *format, const char *prompt, size_t length,
                               bool continues) {
  const mlx_reasoning_syntax_t *reasoning = format->reasoning;
  if (!reasoning) return false;
  size_t begin = after_last(prompt, length, reasoning->begin);
  if (!begin || after_last(prompt, length, reasoning->end) > begin) return false;
  while (!continues && begin < length && strchr(" \t\r\n", prompt[begin])) ++begin;
  return continues || begin == length;
}
