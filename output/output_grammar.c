// The grammar that constrains an output: reasoning, then tool calls in the syntax of the format, or JSON.
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "grammar/grammar.h"
#include "grammar/json_schema.h"
#include "grammar/json_schema_builder.h"
#include "output/syntax.h"
#include "output/value.h"

// Rules are written in any order. A function that adds a rule returns its number; the rule is named r<n>.
typedef struct writer {
  const mlx_output_format_t *format;
  const mlx_output_options_t *options;
  yyjson_doc *tools;
  mlx_text_t out;
  size_t rules;
} writer_t;

static void put_literal(mlx_text_t *out, const char *text) {
  if (!text || !*text) return;
  mlx_gbnf_put_literal(out, text, strlen(text));
  mlx_text_puts(out, " ");
}

static bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

// ----------------------------------------------------------------------------------------------------------
// Parts

// Copies a grammar with |prefix| before the names of its rules.
static void put_renamed(mlx_text_t *out, const char *prefix, const char *gbnf, size_t length) {
  char quote = 0;  // what ends the literal or the class; '\n' ends a comment
  for (size_t i = 0; i < length;) {
    const size_t begin = i;
    const char c = gbnf[i++];
    if (quote) {
      if (c == '\\' && i < length && quote != '\n') ++i;
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '[' || c == '#') {
      quote = c == '[' ? ']' : c == '#' ? '\n' : '"';
    } else if (c == '{') {
      quote = '}';  // a repetition
    } else if (is_name_byte(c)) {
      while (i < length && is_name_byte(gbnf[i])) ++i;
      mlx_text_puts(out, prefix);
    }
    mlx_text_append(out, gbnf + begin, i - begin);
  }
  mlx_text_puts(out, "\n");
}

// Adds a whole grammar; *out_root is the name of its root.
static void add_grammar(writer_t *w, const char *gbnf, size_t length, char out_root[32]) {
  char prefix[16];
  snprintf(prefix, sizeof prefix, "g%zu-", w->rules++);
  put_renamed(&w->out, prefix, gbnf, length);
  snprintf(out_root, 32, "%sroot", prefix);
}

static mlx_status_t add_schema(writer_t *w, const char *path, const char *json, size_t length,
                               char out_root[32]) {
  char *gbnf;
  size_t gbnf_length;
  mlx_text_t *notes = w->options->annotations;
  MLX_TRY(notes ? mlx_json_schema_to_gbnf_relaxed(path, json, length, notes, &gbnf, &gbnf_length)
                : mlx_json_schema_to_gbnf(path, json, length, &gbnf, &gbnf_length));
  add_grammar(w, gbnf, gbnf_length, out_root);
  mlx_free(gbnf);
  return NULL;
}

// Adds the rules of a tool's schema. If keywords are annotations where they cannot be enforced, a schema that
// is wrong or that no JSON text satisfies is one as a whole: |any| takes its place.
static mlx_status_t add_tool_schema(writer_t *w, const char *path, const char *json, size_t length,
                                    const char *any, char out_root[32]) {
  mlx_text_t *notes = w->options->annotations;
  if (!notes) return add_schema(w, path, json, length, out_root);
  char *gbnf;
  size_t gbnf_length;
  mlx_grammar_t *grammar = NULL;
  const size_t before = notes->length;
  mlx_status_t status = mlx_json_schema_to_gbnf_relaxed(path, json, length, notes, &gbnf, &gbnf_length);
  if (!status) status = mlx_grammar_create(path, gbnf, gbnf_length, &grammar);
  mlx_grammar_free(grammar);
  const mlx_code_t code = mlx_status_code(status);
  if (!status) add_grammar(w, gbnf, gbnf_length, out_root);
  mlx_free(gbnf);
  if (code != MLX_UNSUPPORTED && code != MLX_INVALID_INPUT) return status;
  mlx_status_free(status);
  if (notes->data) notes->data[notes->length = before] = 0;
  mlx_text_printf(notes, "%s%s: the whole schema", before ? ", " : "", path);
  return add_schema(w, path, any, strlen(any), out_root);
}

// Appends the inside of a character class for one character.
static void put_class(mlx_text_t *out, const char *character, size_t length) {
  if (length == 1 && strchr("\\]^-[", *character)) mlx_text_puts(out, "\\");
  mlx_text_append(out, character, length);
}

// Adds rules for any text up to the first |tag|, and the tag. Rule i has matched i characters of the tag. The
// tag's first character occurs only once in it.
static size_t add_until(writer_t *w, const char *tag) {
  const size_t first = w->rules, tag_length = strlen(tag);
  const int head = mlx_utf8_length(tag, tag_length);
  size_t count = 0;
  for (size_t at = 0; at < tag_length; ++count) at += (size_t)mlx_utf8_length(tag + at, tag_length - at);
  w->rules += count;
  const char *next = tag;
  for (size_t i = 0; i < count; ++i) {
    const int size = mlx_utf8_length(next, tag_length);
    mlx_text_printf(&w->out, "r%zu ::= ", first + i);
    mlx_gbnf_put_literal(&w->out, next, (size_t)size);
    if (i + 1 < count) mlx_text_printf(&w->out, " r%zu", first + i + 1);
    if (i) {
      mlx_text_puts(&w->out, " | ");
      mlx_gbnf_put_literal(&w->out, tag, (size_t)head);
      mlx_text_printf(&w->out, " r%zu", first + 1);
    }
    mlx_text_puts(&w->out, " | [^");
    put_class(&w->out, next, (size_t)size);
    if (i) put_class(&w->out, tag, (size_t)head);
    mlx_text_printf(&w->out, "] r%zu\n", first);
    next += size;
  }
  return first;
}

// ----------------------------------------------------------------------------------------------------------
// Tools

typedef struct tool {
  const char *name;
  yyjson_val *parameters;
  char path[64];  // of the parameters
} tool_t;

// Item |index| of the tools; false if the call may not use it.
static bool find_tool(const writer_t *w, size_t index, tool_t *out) {
  yyjson_val *item = yyjson_arr_get(yyjson_doc_get_root(w->tools), index);
  yyjson_val *function = yyjson_obj_get(item, "function");
  out->name = yyjson_get_str(yyjson_obj_get(function, "name"));
  out->parameters = yyjson_obj_get(function, "parameters");
  snprintf(out->path, sizeof out->path, "tools[%zu].function.parameters", index);
  if (!out->name) return false;
  return w->options->tool_choice != MLX_TOOLS_NAMED || !strcmp(out->name, w->options->tool_name);
}

// Adds the rules of a schema inside a tool's parameters. The definitions of the parameters are added to it.
static mlx_status_t add_value_schema(writer_t *w, const tool_t *tool, yyjson_val *schema, char out_root[32]) {
  static const char *const shared[] = {"$defs", "definitions"};
  yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
  yyjson_mut_val *copy = doc ? yyjson_val_mut_copy(doc, schema) : NULL;
  for (int i = 0; i < 2 && copy && schema != tool->parameters; ++i) {
    yyjson_val *definitions = yyjson_obj_get(tool->parameters, shared[i]);
    if (definitions && !yyjson_mut_obj_get(copy, shared[i]))
      yyjson_mut_obj_add_val(doc, copy, shared[i], yyjson_val_mut_copy(doc, definitions));
  }
  size_t length = 0;
  char *json = copy ? yyjson_mut_val_write(copy, 0, &length) : NULL;
  yyjson_mut_doc_free(doc);
  if (!json) return mlx_error(MLX_OUT_OF_MEMORY, "%s: no memory for the schema", tool->path);
  const char *any = schema == tool->parameters ? "{\"type\": \"object\"}" : "{}";
  mlx_status_t status = add_tool_schema(w, tool->path, json, length, any, out_root);
  free(json);
  return status;
}

// Whether a tool takes no arguments: its parameters are left out, or its properties are an empty object and
// nothing else in the schema gives names.
static bool takes_nothing(const tool_t *tool) {
  static const char *const others[] = {
      "additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"};
  yyjson_val *properties = yyjson_obj_get(tool->parameters, "properties");
  if (!tool->parameters || yyjson_is_null(tool->parameters)) return true;
  if (!yyjson_is_obj(properties) || yyjson_obj_size(properties)) return false;
  if (yyjson_arr_size(yyjson_obj_get(tool->parameters, "required"))) return false;
  for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
    if (yyjson_obj_get(tool->parameters, others[i])) return false;
  }
  return true;
}

// Adds the rules of a tool's arguments as a JSON object.
static mlx_status_t add_arguments(writer_t *w, const tool_t *tool, char out_root[32]) {
  static const char any[] = "{\"type\": \"object\"}", none[] = "{\"const\": {}}";
  if (takes_nothing(tool)) return add_schema(w, tool->path, none, sizeof none - 1, out_root);
  if (!yyjson_is_obj(tool->parameters) || !yyjson_obj_size(tool->parameters))
    return add_schema(w, tool->path, any, sizeof any - 1, out_root);
  return add_value_schema(w, tool, tool->parameters, out_root);
}

static bool is_required(const tool_t *tool, yyjson_val *key) {
  yyjson_val *item;
  size_t index, count;
  yyjson_arr_foreach(yyjson_obj_get(tool->parameters, "required"), index, count, item) {
    if (yyjson_equals_strn(item, yyjson_get_str(key), yyjson_get_len(key))) return true;
  }
  return false;
}

// Writes the alternatives of a string's enum, as they are; false if it has none.
static bool put_enum(mlx_text_t *out, yyjson_val *schema, const char *before, const char *after) {
  yyjson_val *list = yyjson_obj_get(schema, "enum"), *item;
  size_t index, count;
  if (!yyjson_arr_size(list)) return false;
  mlx_text_puts(out, "(");
  yyjson_arr_foreach(list, index, count, item) {
    if (index) mlx_text_puts(out, "| ");
    put_literal(out, before);
    mlx_gbnf_put_literal(out, yyjson_is_str(item) ? yyjson_get_str(item) : "",
                         yyjson_is_str(item) ? yyjson_get_len(item) : 0);
    mlx_text_puts(out, " ");
    put_literal(out, after);
  }
  mlx_text_puts(out, ") ");
  return true;
}

// ----------------------------------------------------------------------------------------------------------
// Calls of one tool. Each writes the part of a rule that matches one call, without the section.

static mlx_status_t put_object_call(writer_t *w, const tool_t *tool, mlx_text_t *out) {
  const mlx_tool_syntax_t *syntax = w->format->tools;
  mlx_text_t head = {0};
  char root[32];
  MLX_TRY(add_arguments(w, tool, root));
  mlx_text_printf(&head, "{\"%s\": ", syntax->name_key);
  mlx_text_json_string(&head, tool->name, strlen(tool->name));
  mlx_text_printf(&head, ", \"%s\": ", syntax->arguments_key);
  mlx_status_t status = mlx_text_finish(&head);
  if (!status) put_literal(out, head.data);
  mlx_text_clear(&head);
  mlx_text_printf(out, "%s \"}\" ", root);
  return status;
}

static mlx_status_t put_named_call(writer_t *w, const tool_t *tool, mlx_text_t *out) {
  const mlx_tool_syntax_t *syntax = w->format->tools;
  const char *fence = syntax->after_name && strstr(syntax->after_name, "```") ? "\n```" : "";
  char root[32];
  MLX_TRY(add_arguments(w, tool, root));
  put_literal(out, syntax->before_name);
  put_literal(out, tool->name);
  put_literal(out, syntax->after_name);
  mlx_text_printf(out, "%s ", root);
  put_literal(out, fence);
  return NULL;
}

static mlx_status_t put_harmony_call(writer_t *w, const tool_t *tool, mlx_text_t *out) {
  char root[32];
  MLX_TRY(add_arguments(w, tool, root));
  put_literal(out, "<|channel|>commentary to=functions.");
  put_literal(out, tool->name);
  put_literal(out, " <|constrain|>json<|message|>");
  mlx_text_printf(out, "%s ", root);
  return NULL;
}

// One argument of a tagged call.
static mlx_status_t put_tagged_argument(writer_t *w, const tool_t *tool, const char *key, yyjson_val *schema,
                                        mlx_text_t *out) {
  const mlx_tool_syntax_t *syntax = w->format->tools;
  const bool is_string = mlx_argument_is_string(schema);
  const bool attribute = strstr(syntax->key_end, "string=") != NULL;
  const char *line = syntax->value_lines ? "\n" : "";
  char root[32];
  put_literal(out, syntax->key_begin);
  put_literal(out, key);
  put_literal(out, attribute && !is_string ? "\" string=\"false\">" : syntax->key_end);
  if (syntax->value_begin) put_literal(out, "\n");
  put_literal(out, syntax->value_begin);
  put_literal(out, line);
  if (is_string && put_enum(out, schema, "", "")) {
    put_literal(out, line);
    put_literal(out, syntax->value_end);
  } else if (is_string) {
    mlx_text_printf(out, "r%zu ", add_until(w, syntax->value_end));
  } else {
    MLX_TRY(add_value_schema(w, tool, schema, root));
    mlx_text_printf(out, "%s ", root);
    put_literal(out, line);
    put_literal(out, syntax->value_end);
  }
  put_literal(out, "\n");
  return NULL;
}

static mlx_status_t put_tagged_call(writer_t *w, const tool_t *tool, mlx_text_t *out) {
  const mlx_tool_syntax_t *syntax = w->format->tools;
  yyjson_val *key, *schema;
  size_t index, count;
  put_literal(out, tool->name);
  put_literal(out, syntax->name_end);
  put_literal(out, "\n");
  yyjson_obj_foreach(yyjson_obj_get(tool->parameters, "properties"), index, count, key, schema) {
    const bool required = is_required(tool, key);
    if (!required) mlx_text_puts(out, "(");
    MLX_TRY(put_tagged_argument(w, tool, yyjson_get_str(key), schema, out));
    if (!required) mlx_text_puts(out, ")? ");
  }
  return NULL;
}

static const char gemma_rules[] =
    "gemma-word ::= \"true\" | \"false\" | \"null\"\n"
    "gemma-number ::= \"-\"? [0-9]{1,15} (\".\" [0-9]{1,15})?\n"
    "gemma-key ::= [A-Za-z_] [A-Za-z0-9_]{0,63}\n"
    "gemma-value ::= gemma-string | gemma-number | gemma-word"
    " | \"[\" (gemma-value (\",\" gemma-value)*)? \"]\""
    " | \"{\" (gemma-key \":\" gemma-value (\",\" gemma-key \":\" gemma-value)*)? \"}\"\n";

static void put_gemma_value(yyjson_val *schema, const char *quote, mlx_text_t *out) {
  yyjson_val *type = yyjson_obj_get(schema, "type");
  if (mlx_argument_is_string(schema)) {
    if (!put_enum(out, schema, quote, quote)) mlx_text_puts(out, "gemma-string ");
  } else if (yyjson_equals_str(type, "boolean")) {
    mlx_text_puts(out, "(\"true\" | \"false\") ");
  } else if (yyjson_equals_str(type, "integer")) {
    mlx_text_puts(out, "\"-\"? [0-9]{1,15} ");
  } else if (yyjson_equals_str(type, "number")) {
    mlx_text_puts(out, "gemma-number ");
  } else {
    mlx_text_puts(out, "gemma-value ");
  }
}

static const char python_rules[] =
    "python-char ::= [^\"\\\\\\x00-\\x1F\\x7F] | \"\\\\\" [\"\\\\nrt]\n"
    "python-string ::= \"\\\"\" python-char* \"\\\"\"\n"
    "python-word ::= \"True\" | \"False\" | \"None\"\n"
    "python-number ::= \"-\"? (\"0\" | [1-9] [0-9]{0,14}) (\".\" [0-9]{1,15})?\n"
    "python-value ::= python-string | python-number | python-word"
    " | \"[\" (python-value (\", \" python-value)*)? \"]\""
    " | \"{\" (python-string \": \" python-value (\", \" python-string \": \" python-value)*)? \"}\"\n";

static void put_python_value(yyjson_val *schema, const char *quote, mlx_text_t *out) {
  yyjson_val *type = yyjson_obj_get(schema, "type"), *items = yyjson_obj_get(schema, "items");
  if (mlx_argument_is_string(schema)) {
    if (!put_enum(out, schema, quote, quote)) mlx_text_puts(out, "python-string ");
  } else if (yyjson_equals_str(type, "boolean")) {
    mlx_text_puts(out, "(\"True\" | \"False\") ");
  } else if (yyjson_equals_str(type, "integer")) {
    mlx_text_puts(out, "\"-\"? (\"0\" | [1-9] [0-9]{0,14}) ");
  } else if (yyjson_equals_str(type, "number")) {
    mlx_text_puts(out, "python-number ");
  } else if (yyjson_equals_str(type, "array") &&
             !yyjson_obj_get(items, "items")) {  // lists of lists: any value
    mlx_text_puts(out, "\"[\" (");
    put_python_value(items, quote, out);
    mlx_text_puts(out, "(\", \" ");
    put_python_value(items, quote, out);
    mlx_text_puts(out, ")*)? \"]\" ");
  } else {
    mlx_text_puts(out, "python-value ");
  }
}

// How a format writes the arguments between the name and the end of a call.
typedef struct list_style {
  const char *before_name, *open, *close, *comma, *equals, *quote;
  void (*put_value)(yyjson_val *schema, const char *quote, mlx_text_t *out);
} list_style_t;

// The arguments from |index| on. Rule a: no argument was written before it; rule b: one was.
static void put_listed_call(writer_t *w, const tool_t *tool, const list_style_t *style, mlx_text_t *out) {
  yyjson_val *properties = yyjson_obj_get(tool->parameters, "properties"), *key, *schema;
  const size_t rule = w->rules++, last = yyjson_obj_size(properties);
  size_t index, count;
  put_literal(out, style->before_name);
  put_literal(out, tool->name);
  put_literal(out, style->open);
  mlx_text_printf(out, "a%zu-0 ", rule);
  put_literal(out, style->close);
  yyjson_obj_foreach(properties, index, count, key, schema) {
    for (int comma = 0; comma < 2; ++comma) {
      mlx_text_printf(&w->out, "%c%zu-%zu ::= ", comma ? 'b' : 'a', rule, index);
      if (comma) put_literal(&w->out, style->comma);
      put_literal(&w->out, yyjson_get_str(key));
      put_literal(&w->out, style->equals);
      style->put_value(schema, style->quote, &w->out);
      mlx_text_printf(&w->out, "b%zu-%zu", rule, index + 1);
      if (!is_required(tool, key))
        mlx_text_printf(&w->out, " | %c%zu-%zu", comma ? 'b' : 'a', rule, index + 1);
      mlx_text_puts(&w->out, "\n");
    }
  }
  mlx_text_printf(&w->out, "a%zu-%zu ::= \"\"\nb%zu-%zu ::= \"\"\n", rule, last, rule, last);
}

static mlx_status_t put_gemma_call(writer_t *w, const tool_t *tool, mlx_text_t *out) {
  const list_style_t style = {"call:", "{", "}", ",", ":", w->format->tools->quote, put_gemma_value};
  put_listed_call(w, tool, &style, out);
  return NULL;
}

static mlx_status_t put_python_call(writer_t *w, const tool_t *tool, mlx_text_t *out) {
  static const list_style_t style = {NULL, "(", ")", ", ", "=", "\"", put_python_value};
  put_listed_call(w, tool, &style, out);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Calls

// Adds the rule that matches one call of any tool, between begin and end tags; it is named "call".
static mlx_status_t add_call(writer_t *w) {
  static mlx_status_t (*const put[])(writer_t *, const tool_t *, mlx_text_t *) = {
      [MLX_SYNTAX_OBJECT] = put_object_call, [MLX_SYNTAX_NAMED] = put_named_call,
      [MLX_SYNTAX_TAGGED] = put_tagged_call, [MLX_SYNTAX_PYTHON] = put_python_call,
      [MLX_SYNTAX_GEMMA] = put_gemma_call,   [MLX_SYNTAX_HARMONY] = put_harmony_call};
  const size_t count = yyjson_arr_size(yyjson_doc_get_root(w->tools));
  mlx_text_t body = {0};
  mlx_status_t status = NULL;
  size_t found = 0;
  for (size_t i = 0; i < count && !status; ++i) {
    tool_t tool;
    if (!find_tool(w, i, &tool)) continue;
    if (found++) mlx_text_puts(&body, "| ");
    status = put[w->format->tools->kind](w, &tool, &body);
  }
  if (!status) status = mlx_text_finish(&body);
  if (!status && !found && w->options->tool_choice == MLX_TOOLS_NAMED)
    status = mlx_error(MLX_INVALID_INPUT, "tool_choice: no tool has the name '%s'", w->options->tool_name);
  if (!status && !found) status = mlx_error(MLX_INVALID_INPUT, "tool_choice: the request has no tools");
  if (!status) mlx_text_printf(&w->out, "call ::= %s\n", body.data);
  mlx_text_clear(&body);
  if (!status && w->format->tools->kind == MLX_SYNTAX_PYTHON) mlx_text_puts(&w->out, python_rules);
  if (!status && w->format->tools->kind == MLX_SYNTAX_GEMMA) {
    mlx_text_puts(&w->out, gemma_rules);
    const size_t rest = add_until(w, w->format->tools->quote);
    mlx_text_puts(&w->out, "gemma-string ::= ");
    put_literal(&w->out, w->format->tools->quote);
    mlx_text_printf(&w->out, "r%zu\n", rest);
  }
  return status;
}

// Adds the rule "calls": one call, or several if the request allows that and the format has a way.
static mlx_status_t add_calls(writer_t *w) {
  const mlx_tool_syntax_t *syntax = w->format->tools;
  const bool tags = syntax->begin && syntax->end, lines = tags && syntax->kind == MLX_SYNTAX_OBJECT;
  const bool many = !w->options->one_tool_call && w->options->tool_choice != MLX_TOOLS_NAMED;
  const bool bare = syntax->kind == MLX_SYNTAX_OBJECT && !syntax->list && !tags;  // llama3, plain
  mlx_text_t *out = &w->out;
  MLX_TRY(add_call(w));
  const char *begin = bare ? NULL : syntax->begin, *line = syntax->kind == MLX_SYNTAX_TAGGED ? "\n" : "";
  if (syntax->list) {
    mlx_text_puts(out, "calls ::= ");
    put_literal(out, begin);
    mlx_text_printf(out, "\"[\" call %s\"]\" ", many ? "(\", \" call)* " : "");
    put_literal(out, syntax->end);
    mlx_text_puts(out, "\n");
    return NULL;
  }
  mlx_text_puts(out, "tagged-call ::= ");
  if (syntax->section_each) put_literal(out, syntax->section), put_literal(out, "\n");
  put_literal(out, begin);
  if (lines) put_literal(out, "\n");
  mlx_text_puts(out, "call ");
  if (lines) put_literal(out, "\n");
  put_literal(out, syntax->end);
  if (syntax->section_each) put_literal(out, "\n"), put_literal(out, syntax->section_end);
  mlx_text_puts(out, "\ncalls ::= ");
  const bool section = syntax->section && !syntax->section_each;
  if (section) put_literal(out, syntax->section), put_literal(out, line);
  mlx_text_puts(out, "tagged-call ");
  if (many && !bare && syntax->kind != MLX_SYNTAX_HARMONY) {
    const bool separate = lines || syntax->kind == MLX_SYNTAX_TAGGED;
    mlx_text_printf(out, "(%stagged-call)* ", separate ? "\"\\n\" " : "");
  }
  if (section) put_literal(out, line), put_literal(out, syntax->section_end);
  mlx_text_puts(out, "\n");
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The whole output

// Adds the rule "answer" of the call's format; false in *out_any if the format is any text.
static mlx_status_t add_format(writer_t *w, bool *out_any) {
  static const char object[] = "{\"type\": \"object\"}";
  const mlx_output_options_t *options = w->options;
  const char *path = options->format_path ? options->format_path : "response_format";
  char root[32];
  *out_any = options->format != MLX_FORMAT_TEXT;
  switch (options->format) {
    case MLX_FORMAT_TEXT: return NULL;
    case MLX_FORMAT_JSON: MLX_TRY(add_schema(w, path, object, sizeof object - 1, root)); break;
    case MLX_FORMAT_JSON_SCHEMA:
      MLX_TRY(add_schema(w, path, options->format_text, options->format_length, root));
      break;
    case MLX_FORMAT_GBNF: add_grammar(w, options->format_text, options->format_length, root); break;
  }
  mlx_text_puts(&w->out, "answer ::= ");
  if (w->format->tools->kind == MLX_SYNTAX_HARMONY) put_literal(&w->out, "<|channel|>final<|message|>");
  mlx_text_printf(&w->out, "%s\n", root);
  return NULL;
}

static bool ends_with(const char *text, size_t length, const char *end) {
  const size_t size = strlen(end);
  while (length && strchr(" \t\r\n", text[length - 1])) --length;
  return length >= size && !memcmp(text + length - size, end, size);
}

// Writes the part of the root rule that matches reasoning.
static void put_reasoning(writer_t *w, const char *prompt, size_t length, mlx_text_t *root) {
  const mlx_reasoning_syntax_t *reasoning = w->format->reasoning;
  if (w->format->tools->kind == MLX_SYNTAX_HARMONY) {
    mlx_text_puts(root, "(");
    put_literal(root, "<|channel|>analysis<|message|>");
    mlx_text_printf(root, "r%zu ", add_until(w, "<|end|>"));
    put_literal(root, "<|start|>assistant");
    mlx_text_puts(root, ")? ");
  } else if (mlx_output_prompt_reasons(w->format, prompt, length, w->options->continue_final)) {
    mlx_text_printf(root, "r%zu [\\n]{0,3} ", add_until(w, reasoning->end));
  } else if (reasoning && !ends_with(prompt, length, reasoning->end)) {
    mlx_text_puts(root, "(");
    put_literal(root, reasoning->begin);
    mlx_text_printf(root, "r%zu [\\n]{0,3})? ", add_until(w, reasoning->end));
  }
}

static mlx_status_t write_grammar(writer_t *w, const char *prompt, size_t length, bool *out_any) {
  const mlx_output_options_t *options = w->options;
  const bool must_call =
      options->tool_choice == MLX_TOOLS_REQUIRED || options->tool_choice == MLX_TOOLS_NAMED;
  const bool may_call = must_call || (options->tool_choice == MLX_TOOLS_AUTO && options->tools &&
                                      yyjson_arr_size(yyjson_doc_get_root(w->tools)));
  mlx_text_t root = {0};
  bool format = false;
  *out_any = must_call || options->format != MLX_FORMAT_TEXT;
  if (!*out_any) return NULL;
  if (!must_call) MLX_TRY(add_format(w, &format));
  if (may_call) MLX_TRY(add_calls(w));
  put_reasoning(w, prompt, length, &root);
  mlx_status_t status = root.failed ? mlx_text_finish(&root) : NULL;
  if (!status)
    mlx_text_printf(&w->out, "root ::= %s%s\n", root.data ? root.data : "",
                    !format    ? "calls"
                    : may_call ? "(answer | calls)"
                               : "answer");
  mlx_text_clear(&root);
  return status;
}

mlx_status_t mlx_output_format_grammar(const mlx_output_format_t *format, const mlx_output_options_t *options,
                                       const char *prompt, size_t prompt_length, char **out_gbnf,
                                       size_t *out_length) {
  writer_t w = {.format = format, .options = options};
  bool any = false;
  *out_gbnf = NULL;
  *out_length = 0;
  if (options->tools) {
    w.tools = yyjson_read(options->tools, options->tools_length, 0);
    if (!w.tools) return mlx_error(MLX_INVALID_INPUT, "tools: not JSON");
  }
  mlx_status_t status = write_grammar(&w, prompt, prompt_length, &any);
  if (!status && any) status = mlx_text_take(&w.out, out_gbnf, out_length);
  mlx_text_clear(&w.out);
  yyjson_doc_free(w.tools);
  return status;
}
