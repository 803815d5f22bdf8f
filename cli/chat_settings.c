// One table has the settings; thinking is a variable of the chat template.
#include "cli/chat_settings.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/json_writer.h"
#include "base/memory.h"

typedef enum kind { NUMBER, INTEGER, SEED, LIMIT } kind_t;

typedef struct setting {
  const char *name, *word;  // |word| is "/set NAME", for completion
  const char *other;        // another name for it; may be NULL
  const char *help;
  kind_t kind;
  size_t offset;  // of NUMBER and INTEGER in mlx_sampling_t
} setting_t;

#define NAMES(name) #name, "/set " #name
#define FIELD(name) offsetof(mlx_sampling_t, name)

// The names are those of Ollama.
static const setting_t settings_table[] = {
    {NAMES(temperature), "temp", "0: greedy", NUMBER, FIELD(temperature)},
    {NAMES(top_p), NULL, "1: off", NUMBER, FIELD(top_p)},
    {NAMES(top_k), NULL, "0: off", INTEGER, FIELD(top_k)},
    {NAMES(min_p), NULL, "0: off", NUMBER, FIELD(min_p)},
    {NAMES(typical_p), "typical", "1: off", NUMBER, FIELD(typical_p)},
    {NAMES(repeat_penalty), NULL, "1: off", NUMBER, FIELD(repeat_penalty)},
    {NAMES(repeat_last_n), NULL, "tokens; -1: the context", INTEGER, FIELD(repeat_last_n)},
    {NAMES(presence_penalty), NULL, "0: off", NUMBER, FIELD(presence_penalty)},
    {NAMES(frequency_penalty), NULL, "0: off", NUMBER, FIELD(frequency_penalty)},
    {NAMES(seed), NULL, "of the next answer", SEED, 0},
    {NAMES(num_predict), "max_tokens", "tokens; -1: no limit", LIMIT, 0},
};
#define SETTINGS (sizeof settings_table / sizeof *settings_table)

void mlx_chat_settings_initialize(const mlx_chat_setup_t *setup, mlx_chat_settings_t *out) {
  *out = (mlx_chat_settings_t){.setup = *setup, .generate = *setup->generate};
  if (setup->generate->sampling) {
    out->sampling = *setup->generate->sampling;
  } else {
    mlx_sampling_initialize_greedy(&out->sampling);
  }
  out->generate.sampling = &out->sampling;
  out->setup.generate = &out->generate;
}

void mlx_chat_settings_clear(mlx_chat_settings_t *settings) {
  mlx_free(settings->variables);
  settings->variables = NULL;
}

const char *const *mlx_chat_settings_words(void) {
  static const char *words[SETTINGS + 2];
  for (size_t i = 0; i < SETTINGS; ++i) words[i] = settings_table[i].word;
  words[SETTINGS] = "/set think";
  return words;
}

// ----------------------------------------------------------------------------------------------------------
// Thinking

typedef struct think_switch {
  const char *variable;
  const char *sign;  // text that a template with this variable contains
  bool has_efforts;  // the values are "low", "medium" and "high", not true and false
} think_switch_t;

static const think_switch_t *find_switch(const mlx_chat_settings_t *settings) {
  static const think_switch_t switches[] = {{"enable_thinking", "enable_thinking", false},
                                            {"reasoning_effort", "reasoning_effort", true},
                                            {"thinking", "if thinking", false}};
  const mlx_chat_options_t *render = &settings->setup.render;
  const char *source = mlx_chat_source(settings->setup.chat, render->template_name, render->tools != NULL);
  for (size_t i = 0; source && i < sizeof switches / sizeof *switches; ++i) {
    if (strstr(source, switches[i].sign)) return &switches[i];
  }
  return NULL;
}

// Replaces the variable |name| by |value|, which is JSON.
static mlx_status_t put_variable(mlx_chat_settings_t *settings, const char *name, const char *value) {
  const char *old = settings->setup.render.variables;
  mlx_json_t json = {0};
  yyjson_val *key, *item;
  size_t index, count, length;
  mlx_text_t text = {0};
  mlx_json_writer_t writer = {.out = &text};
  mlx_status_t status = NULL;
  char *written = NULL;
  if (old) MLX_TRY(mlx_json_parse("--chat-template-kwargs", old, strlen(old), &json));
  mlx_json_begin_object(&writer, NULL, MLX_JSON_ONE_LINE);
  mlx_json_put_raw(&writer, name, value, strlen(value));
  if (old) {
    yyjson_obj_foreach(json.root, index, count, key, item) {
      if (yyjson_equals_str(key, name)) continue;
      mlx_text_t *out = mlx_json_put_member(&writer, yyjson_get_str(key), yyjson_get_len(key));
      status = mlx_status_join(status, mlx_json_put(item, out));
    }
    mlx_json_close(&json);
  }
  mlx_json_end(&writer);
  status = mlx_status_join(status, mlx_text_take(&text, &written, &length));
  mlx_text_clear(&text);
  if (status) {
    mlx_free(written);
    return status;
  }
  mlx_free(settings->variables);
  settings->variables = written;
  settings->setup.render.variables = written;
  return NULL;
}

static mlx_status_t wrong_think_value(const think_switch_t *found, const char *value) {
  if (found->has_efforts && !strcmp(value, "off"))
    return mlx_status_hint(mlx_error(MLX_USAGE, "this chat template cannot turn thinking off"),
                           "/set think low");
  return mlx_status_hint(mlx_error(MLX_USAGE, "think cannot be '%s'", value),
                         found->has_efforts ? "/set think low, medium or high" : "/set think on or off");
}

mlx_status_t mlx_chat_settings_think(mlx_chat_settings_t *settings, const char *value, mlx_text_t *out) {
  const think_switch_t *found = find_switch(settings);
  const bool on = !strcmp(value, "on") || !strcmp(value, "true"),
             off = !strcmp(value, "off") || !strcmp(value, "false");
  if (!found)
    return mlx_status_hint(mlx_error(MLX_USAGE, "the chat template has no switch for thinking"),
                           "the model decides by itself; the system message may change that: /system TEXT");
  if (found->has_efforts) {
    char effort[16];
    const char *wanted = on ? "medium" : off ? "off" : value;
    if (strcmp(wanted, "low") && strcmp(wanted, "medium") && strcmp(wanted, "high"))
      return wrong_think_value(found, wanted);
    snprintf(effort, sizeof effort, "\"%s\"", wanted);
    MLX_TRY(put_variable(settings, found->variable, effort));
    mlx_text_printf(out, "think: %s (%s of the chat template)\n", wanted, found->variable);
    return NULL;
  }
  if (!on && !off) return wrong_think_value(found, value);
  MLX_TRY(put_variable(settings, found->variable, on ? "true" : "false"));
  mlx_text_printf(out, "think: %s (%s of the chat template)\n", on ? "on" : "off", found->variable);
  return NULL;
}

// Appends the value of the template's variable, without its quotes.
static void print_think(const mlx_chat_settings_t *settings, mlx_text_t *out) {
  const think_switch_t *found = find_switch(settings);
  const char *variables = settings->setup.render.variables;
  mlx_json_t json = {0};
  mlx_text_printf(out, "  %-18s ", "think");
  if (!found) {
    mlx_text_puts(out, "(the chat template has no switch)\n");
    return;
  }
  mlx_status_t status = variables ? mlx_json_parse("variables", variables, strlen(variables), &json) : NULL;
  yyjson_val *value = status || !json.root ? NULL : mlx_json_find(json.root, found->variable);
  mlx_text_puts(out, yyjson_is_bool(value)  ? yyjson_get_bool(value) ? "on" : "off"
                     : yyjson_is_str(value) ? yyjson_get_str(value)
                                            : "(the chat template decides)");
  mlx_text_puts(out, "\n");
  if (!status && variables) mlx_json_close(&json);
  mlx_status_free(status);
}

// ----------------------------------------------------------------------------------------------------------
// Numbers

static void print_value(const mlx_chat_settings_t *settings, const setting_t *setting, uint64_t answers,
                        mlx_text_t *out) {
  const char *field = (const char *)&settings->sampling + setting->offset;
  double number;
  int64_t integer;
  switch (setting->kind) {
    case NUMBER:
      memcpy(&number, field, sizeof number);
      mlx_text_printf(out, "%g", number);
      break;
    case INTEGER:
      memcpy(&integer, field, sizeof integer);
      mlx_text_printf(out, "%lld", (long long)integer);
      break;
    case SEED: mlx_text_printf(out, "%llu", (unsigned long long)(settings->sampling.seed + answers)); break;
    case LIMIT: mlx_text_printf(out, "%lld", (long long)settings->generate.max_tokens); break;
  }
}

static void print_all(const mlx_chat_settings_t *settings, uint64_t answers, mlx_text_t *out) {
  for (size_t i = 0; i < SETTINGS; ++i) {
    const setting_t *setting = &settings_table[i];
    mlx_text_t value = {0};
    print_value(settings, setting, answers, &value);
    mlx_text_printf(out, "  %-18s %-12s (%s)\n", setting->name, value.data ? value.data : "", setting->help);
    mlx_text_clear(&value);
  }
  print_think(settings, out);
}

static mlx_status_t wrong_value(const setting_t *setting, const char *text) {
  return mlx_status_hint(mlx_error(MLX_USAGE, "%s cannot be '%s'", setting->name, text),
                         "/set alone lists the values");
}

static mlx_status_t apply(mlx_chat_settings_t *settings, const setting_t *setting, const char *text) {
  mlx_sampling_t sampling = settings->sampling;
  char *end;
  errno = 0;
  const double number = strtod(text, &end);
  if (errno || end == text || *end || !isfinite(number)) return wrong_value(setting, text);
  if (setting->kind != NUMBER && (number != floor(number) || fabs(number) > 4294967295.0))
    return wrong_value(setting, text);
  const int64_t integer = setting->kind == NUMBER ? 0 : (int64_t)number;
  if (setting->kind == LIMIT) {
    if (integer < -1 || integer > 1 << 24) return wrong_value(setting, text);
    settings->generate.max_tokens = integer;
    return NULL;
  }
  if (setting->kind == SEED) {
    if (integer < 0) return wrong_value(setting, text);
    sampling.seed = (uint64_t)integer;
  } else {
    memcpy((char *)&sampling + setting->offset,
           setting->kind == NUMBER ? (const void *)&number : (const void *)&integer, 8);
  }
  mlx_status_t status = mlx_sampling_check(&sampling);  // its message names a flag of the command line
  if (status) {
    mlx_status_free(status);
    return wrong_value(setting, text);
  }
  settings->sampling = sampling;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// /set

static const setting_t *find_setting(const char *name) {
  for (size_t i = 0; i < SETTINGS; ++i) {
    const setting_t *setting = &settings_table[i];
    if (!strcmp(setting->name, name) || (setting->other && !strcmp(setting->other, name))) return setting;
  }
  return NULL;
}

static mlx_status_t unknown_setting(const char *name) {
  const char *names[SETTINGS + 2] = {0};
  for (size_t i = 0; i < SETTINGS; ++i) names[i] = settings_table[i].name;
  names[SETTINGS] = "think";
  if (!strcmp(name, "num_ctx"))
    return mlx_status_hint(mlx_error(MLX_USAGE, "the context length is chosen when the model is loaded"),
                           "start the chat with -c N");
  const char *nearest = mlx_nearest_name(name, names);
  mlx_status_t status = mlx_error(MLX_USAGE, "there is no setting '%s'", name);
  return nearest ? mlx_status_hint(status, "did you mean /set %s?", nearest)
                 : mlx_status_hint(status, "/set alone lists the settings");
}

mlx_status_t mlx_chat_settings_set(mlx_chat_settings_t *settings, const char *text, uint64_t *inout_answers,
                                   mlx_text_t *out) {
  static const char *const skipped = "parameter ";
  char name[32];
  if (!strncmp(text, skipped, strlen(skipped))) text += strlen(skipped);
  const size_t length = strcspn(text, " \t=");
  snprintf(name, sizeof name, "%.*s", length > 31 ? 31 : (int)length, text);
  for (char *c = name; *c; ++c) {
    if (*c == '-') *c = '_';
  }
  const char *value = text + length + strspn(text + length, " \t=");
  if (!name[0]) {
    print_all(settings, *inout_answers, out);
    return NULL;
  }
  if (!strcmp(name, "think"))  // alone it turns thinking on, as in Ollama
    return mlx_chat_settings_think(settings, value[0] ? value : "on", out);
  if (!strcmp(name, "nothink") && !value[0]) return mlx_chat_settings_think(settings, "off", out);
  const setting_t *setting = find_setting(name);
  if (!setting) return unknown_setting(name);
  if (value[0]) MLX_TRY(apply(settings, setting, value));
  if (setting->kind == SEED && value[0]) *inout_answers = 0;
  mlx_text_printf(out, "%s: ", setting->name);
  print_value(settings, setting, *inout_answers, out);
  mlx_text_puts(out, "\n");
  return NULL;
}
