// Fields of OpenAI's requests: limits, output formats and template variables.
#include "server/api/openai_fields.h"

#include <string.h>

#include "base/json_writer.h"
#include "base/memory.h"
#include "grammar/regex.h"

// ----------------------------------------------------------------------------------------------------------
// Output formats

static mlx_status_t check_only_format(const mlx_place_t *place, const mlx_api_call_t *call) {
  if (call->format == MLX_FORMAT_TEXT) return NULL;
  return mlx_field_error(place, MLX_INVALID_INPUT, "the output format is given twice%s%s",
                         call->format_path ? ", also by " : "", call->format_path ? call->format_path : "");
}

// A schema: an object or a boolean, or a string that contains it.
static mlx_status_t set_schema(const mlx_place_t *place, const char *path, mlx_api_call_t *call) {
  MLX_TRY(check_only_format(place, call));
  if (yyjson_is_obj(place->value) || yyjson_is_bool(place->value)) {
    MLX_TRY(mlx_field_json(place->value, &call->format_text, &call->format_length));
  } else {
    if (!yyjson_is_str(place->value)) return mlx_field_expected(place, "a JSON schema");
    const size_t length = yyjson_get_len(place->value);
    MLX_TRY(mlx_copy_text(yyjson_get_str(place->value), length, &call->format_text));
    call->format_length = length;
  }
  call->format = MLX_FORMAT_JSON_SCHEMA;
  call->format_path = path;
  return NULL;
}

static mlx_status_t set_grammar(const mlx_place_t *place, const char *path, mlx_api_call_t *call) {
  if (yyjson_is_str(place->value) && !yyjson_get_len(place->value)) return NULL;  // llama.cpp's default
  MLX_TRY(check_only_format(place, call));
  if (!yyjson_is_str(place->value)) return mlx_field_expected(place, "a GBNF grammar as a string");
  const size_t length = yyjson_get_len(place->value);
  MLX_TRY(mlx_copy_text(yyjson_get_str(place->value), length, &call->format_text));
  call->format_length = length;
  call->format = MLX_FORMAT_GBNF;
  call->format_path = path;
  return NULL;
}

// A regular expression, as a grammar.
static mlx_status_t set_regex(const mlx_place_t *place, const char *path, mlx_api_call_t *call) {
  MLX_TRY(check_only_format(place, call));
  if (!yyjson_is_str(place->value)) return mlx_field_expected(place, "a regular expression as a string");
  MLX_TRY(mlx_regex_to_gbnf(path, yyjson_get_str(place->value), yyjson_get_len(place->value),
                            &call->format_text, &call->format_length));
  call->format = MLX_FORMAT_GBNF;
  call->format_path = path;
  return NULL;
}

static mlx_status_t put_literal(const mlx_place_t *place, mlx_text_t *out) {
  if (!yyjson_is_str(place->value)) return mlx_field_expected(place, "a string");
  const char *text = yyjson_get_str(place->value);
  const size_t length = yyjson_get_len(place->value);
  mlx_text_puts(out, "\"");
  for (size_t i = 0; i < length; ++i) {
    const unsigned char c = (unsigned char)text[i];
    if (c == '"' || c == '\\')
      mlx_text_printf(out, "\\%c", c);
    else if (c < 0x20 || c == 0x7f)
      mlx_text_printf(out, "\\x%02x", c);
    else
      mlx_text_append(out, &text[i], 1);
  }
  mlx_text_puts(out, "\"");
  return NULL;
}

// vLLM's list of possible answers, as a grammar.
static mlx_status_t set_choice(const mlx_place_t *place, const char *path, mlx_api_call_t *call) {
  mlx_text_t gbnf = {0};
  size_t index, max;
  yyjson_val *value;
  mlx_status_t status = check_only_format(place, call);
  if (!status && (!yyjson_is_arr(place->value) || !yyjson_arr_size(place->value)))
    status = mlx_field_expected(place, "a list of at least one string");
  mlx_text_puts(&gbnf, "root ::= ");
  yyjson_arr_foreach(place->value, index, max, value) {
    const mlx_place_t item = mlx_place_item(place, index, value);
    if (index) mlx_text_puts(&gbnf, " | ");
    if (!status) status = put_literal(&item, &gbnf);
  }
  if (!status) status = mlx_text_take(&gbnf, &call->format_text, &call->format_length);
  mlx_text_clear(&gbnf);
  if (status) return status;
  call->format = MLX_FORMAT_GBNF;
  call->format_path = path;
  return NULL;
}

static mlx_status_t set_any_json(const mlx_place_t *place, const char *path, mlx_api_call_t *call) {
  MLX_TRY(check_only_format(place, call));
  call->format = MLX_FORMAT_JSON;
  call->format_path = path;
  return NULL;
}

static mlx_status_t read_structured_outputs(const mlx_place_t *root, mlx_api_call_t *call) {
  static const mlx_field_t fields[] = {MLX_READ("json"),
                                       MLX_READ("choice"),
                                       MLX_READ("grammar"),
                                       MLX_READ("json_object"),
                                       MLX_READ("regex"),
                                       MLX_REFUSE_VALUE("structural_tag", "use tools"),
                                       MLX_REFUSE_VALUE("whitespace_pattern", "use a grammar"),
                                       MLX_IGNORE("disable_fallback", "there is one grammar engine"),
                                       MLX_IGNORE("disable_any_whitespace", "white space is short"),
                                       MLX_FIELDS_END};
  const mlx_place_t place = mlx_place_key(root, "structured_outputs");
  bool any_json = false;
  if (!place.value) return NULL;
  MLX_TRY(mlx_fields_check(&place, fields, false));
  const mlx_place_t json = mlx_place_key(&place, "json"), choice = mlx_place_key(&place, "choice");
  const mlx_place_t grammar = mlx_place_key(&place, "grammar"), regex = mlx_place_key(&place, "regex");
  MLX_TRY(mlx_field_bool(&place, "json_object", &any_json));
  if (regex.value) MLX_TRY(set_regex(&regex, "structured_outputs.regex", call));
  if (json.value) MLX_TRY(set_schema(&json, "structured_outputs.json", call));
  if (choice.value) MLX_TRY(set_choice(&choice, "structured_outputs.choice", call));
  if (grammar.value) MLX_TRY(set_grammar(&grammar, "structured_outputs.grammar", call));
  return any_json ? set_any_json(&place, "structured_outputs", call) : NULL;
}

static mlx_status_t read_constraints(const mlx_place_t *root, mlx_api_call_t *call) {
  static const struct {
    const char *key;
    mlx_status_t (*set)(const mlx_place_t *place, const char *path, mlx_api_call_t *call);
  } rows[] = {{"grammar", set_grammar},    {"guided_grammar", set_grammar}, {"json_schema", set_schema},
              {"guided_json", set_schema}, {"guided_choice", set_choice},   {"guided_regex", set_regex}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    const mlx_place_t place = mlx_place_key(root, rows[i].key);
    if (place.value) MLX_TRY(rows[i].set(&place, rows[i].key, call));
  }
  return read_structured_outputs(root, call);
}

// OpenAI: {"json_schema": {"schema": ...}}. llama.cpp also has {"schema": ...}, and so have responses.
static mlx_status_t read_schema_format(const mlx_place_t *format, bool flat, bool required,
                                       mlx_api_call_t *call) {
  static const mlx_field_t fields[] = {MLX_READ("schema"), MLX_IGNORE("name", "a label"),
                                       MLX_IGNORE("description", "a label"),
                                       MLX_IGNORE("strict", "schemas are always enforced"), MLX_FIELDS_END};
  const mlx_place_t own = mlx_place_key(format, "schema"), nested = mlx_place_key(format, "json_schema");
  if (own.value) return set_schema(&own, flat ? "text.format.schema" : "response_format.schema", call);
  if (!nested.value) {
    if (!required) return set_any_json(format, flat ? "text.format" : "response_format", call);
    return mlx_field_expected(flat ? &own : &nested, "an object");
  }
  MLX_TRY(mlx_fields_check(&nested, fields, false));
  const mlx_place_t schema = mlx_place_key(&nested, "schema");
  return set_schema(&schema, flat ? "text.format.json_schema.schema" : "response_format.json_schema.schema",
                    call);
}

// {"type": "regex", "pattern": ...} or {"type": "grammar", "grammar": ...}, as other servers have it. Some
// name the text "value".
static mlx_status_t read_text_format(const mlx_place_t *format, const char *path, const char *name,
                                     mlx_status_t (*set)(const mlx_place_t *, const char *, mlx_api_call_t *),
                                     mlx_api_call_t *call) {
  const mlx_place_t own = mlx_place_key(format, name), value = mlx_place_key(format, "value");
  return set(own.value || !value.value ? &own : &value, path, call);
}

mlx_status_t mlx_openai_read_format(const mlx_place_t *format, bool flat, mlx_api_call_t *call) {
  static const mlx_field_t fields[] = {MLX_READ("type"),
                                       MLX_READ("json_schema"),
                                       MLX_READ("schema"),
                                       MLX_READ("pattern"),
                                       MLX_READ("grammar"),
                                       MLX_READ("value"),
                                       MLX_IGNORE("name", "a label"),
                                       MLX_IGNORE("description", "a label"),
                                       MLX_IGNORE("strict", "schemas are always enforced"),
                                       MLX_FIELDS_END};
  const char *type = NULL, *path = flat ? "text.format" : "response_format";
  if (!format->value) return NULL;
  MLX_TRY(mlx_fields_check(format, fields, false));
  MLX_TRY(mlx_field_text(format, "type", &type));
  const mlx_place_t place = mlx_place_key(format, "type");
  if (!type) return mlx_field_expected(&place, "a string");
  if (!strcmp(type, "text")) return NULL;
  if (!strcmp(type, "json_object")) return read_schema_format(format, flat, false, call);
  if (!strcmp(type, "json_schema")) return read_schema_format(format, flat, true, call);
  if (!strcmp(type, "regex")) return read_text_format(format, path, "pattern", set_regex, call);
  if (!strcmp(type, "grammar")) return read_text_format(format, path, "grammar", set_grammar, call);
  return mlx_status_hint(mlx_field_error(&place, MLX_UNSUPPORTED, "unknown format '%.64s'", type),
                         "use text, json_object, json_schema, regex or grammar");
}

// ----------------------------------------------------------------------------------------------------------
// Generation

static mlx_status_t read_stream_options(const mlx_place_t *root, bool *out_include_usage) {
  static const mlx_field_t fields[] = {
      MLX_READ("include_usage"), MLX_IGNORE("include_obfuscation", "chunks are never padded"),
      MLX_REFUSE_VALUE("continuous_usage_stats", "usage comes with the last chunk"), MLX_FIELDS_END};
  const mlx_place_t options = mlx_place_key(root, "stream_options");
  *out_include_usage = false;
  if (!options.value) return NULL;
  MLX_TRY(mlx_fields_check(&options, fields, false));
  return mlx_field_bool(&options, "include_usage", out_include_usage);
}

mlx_status_t mlx_openai_read_generation(const mlx_place_t *root, mlx_api_call_t *call,
                                        bool *out_include_usage) {
  int64_t priority = 0;
  bool skip_special_tokens = true;
  MLX_TRY(mlx_field_copy(root, "model", &call->model));
  if (call->model && !*call->model) {
    mlx_free(call->model);
    call->model = NULL;
  }
  MLX_TRY(mlx_field_sampling(root, call));
  MLX_TRY(mlx_field_stops(root, "stop", call));
  MLX_TRY(mlx_field_logit_bias(root, "logit_bias", call));
  MLX_TRY(mlx_field_bool(root, "stream", &call->stream));
  MLX_TRY(read_stream_options(root, out_include_usage));
  MLX_TRY(mlx_field_bool(root, "ignore_eos", &call->ignore_eos));
  MLX_TRY(mlx_field_bool(root, "verbose", &call->verbose));
  MLX_TRY(mlx_field_bool(root, "return_progress", &call->return_progress));
  MLX_TRY(mlx_field_int(root, "priority", -INT32_MAX, INT32_MAX, &priority));
  call->priority = -priority;  // vLLM serves the lowest number first
  MLX_TRY(mlx_field_parse_special(root, &call->plain));
  MLX_TRY(mlx_field_bool(root, "skip_special_tokens", &skip_special_tokens));
  if (!skip_special_tokens) {
    const mlx_place_t place = mlx_place_key(root, "skip_special_tokens");
    return mlx_status_hint(mlx_field_error(&place, MLX_UNSUPPORTED, "false is not supported"),
                           "special tokens are not part of the text: leave it out");
  }
  MLX_TRY(mlx_token_fields_read(root, call));
  return read_constraints(root, call);
}

mlx_status_t mlx_openai_read_max_tokens(const mlx_place_t *root, const char *const *keys, int64_t min,
                                        mlx_api_call_t *call) {
  const char *given = NULL;
  for (; *keys; ++keys) {
    const mlx_place_t place = mlx_place_key(root, *keys);
    int64_t limit = -1;
    if (!place.value) continue;
    MLX_TRY(mlx_field_int(root, *keys, -1, INT32_MAX, &limit));
    if (limit != -1 && limit < min)
      return mlx_field_error(&place, MLX_INVALID_INPUT, "expected at least %lld token, or -1 for no limit",
                             (long long)min);
    if (given && limit != call->max_tokens)
      return mlx_field_error(&place, MLX_INVALID_INPUT, "differs from %s", given);
    call->max_tokens = limit;
    given = *keys;
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Template variables

mlx_status_t mlx_openai_read_effort(const mlx_place_t *parent, const char *key,
                                    mlx_openai_variables_t *variables) {
  static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  const char *effort = NULL;
  MLX_TRY(mlx_field_text(parent, key, &effort));
  if (!effort) return NULL;
  for (size_t i = 0; i < sizeof efforts / sizeof *efforts; ++i) {
    if (strcmp(effort, efforts[i])) continue;
    variables->reasoning_effort = effort;
    return NULL;
  }
  const mlx_place_t place = mlx_place_key(parent, key);
  return mlx_field_error(&place, MLX_INVALID_INPUT,
                         "expected none, minimal, low, medium, high, xhigh or max, not '%.64s'", effort);
}

// A variable, unless chat_template_kwargs has it. NULL: it is not given.
static void put_variable(mlx_json_writer_t *json, const mlx_place_t *kwargs, const char *name,
                         const char *value) {
  if (value && !yyjson_obj_get(kwargs->value, name)) mlx_json_put_text(json, name, value);
}

static mlx_status_t put_kwargs(mlx_json_writer_t *json, const mlx_place_t *kwargs) {
  size_t index, max;
  yyjson_val *key, *value;
  if (!kwargs->value) return NULL;
  yyjson_obj_foreach(kwargs->value, index, max, key, value) {
    MLX_TRY(mlx_json_put(value, mlx_json_put_member(json, yyjson_get_str(key), yyjson_get_len(key))));
  }
  return NULL;
}

mlx_status_t mlx_openai_put_variables(const mlx_place_t *root, const mlx_openai_variables_t *variables,
                                      mlx_api_call_t *call) {
  const mlx_place_t kwargs = mlx_place_key(root, "chat_template_kwargs");
  const char *effort = variables->reasoning_effort;
  const bool off = effort && (!strcmp(effort, "none") || !strcmp(effort, "minimal"));
  // A template whose thinking is off by default (Qwen 3.5, Granite, SmolLM3) would ignore the effort.
  const int enable = off ? 0 : variables->enable_thinking >= 0 ? variables->enable_thinking : effort ? 1 : -1;
  mlx_text_t text = {0};
  mlx_json_writer_t json = {.out = &text};
  if (kwargs.value && !yyjson_is_obj(kwargs.value)) return mlx_field_expected(&kwargs, "an object");
  mlx_json_begin_object(&json, NULL, MLX_JSON_COMPACT);
  put_variable(&json, &kwargs, "reasoning_effort", effort);
  put_variable(&json, &kwargs, "verbosity", variables->verbosity);
  if (enable >= 0 && !yyjson_obj_get(kwargs.value, "enable_thinking"))
    mlx_json_put_bool(&json, "enable_thinking", enable);
  mlx_status_t status = put_kwargs(&json, &kwargs);
  const bool any = text.length > 1;
  mlx_json_end(&json);
  if (!status) status = mlx_text_finish(&text);
  if (!status && any) status = mlx_text_take(&text, &call->variables, NULL);
  mlx_text_clear(&text);
  return status;
}
