// mlxcel config: prints the value of every flag and its origin, in the syntax of the configuration file.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_writer.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/config_file.h"
#include "cli/parse.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

typedef struct flags {
  bool json;
} flags_t;

typedef struct listing {
  mlx_text_t out;
  bool json;
  bool defaults;             // list the flags that have their default too
  size_t count;              // settings written so far
  mlx_json_writer_t writer;  // of the JSON output
  const char *path;          // of the configuration file; NULL if the user has no configuration folder
} listing_t;

// Quotes and escapes |text| if the configuration file needs it.
static void put_setting(mlx_text_t *out, const char *text) {
  const bool plain = *text && !strpbrk(text, "\"#\\\n\t") && *text != ' ' && text[strlen(text) - 1] != ' ';
  if (plain) {
    mlx_text_puts(out, text);
    return;
  }
  mlx_text_puts(out, "\"");
  for (; *text; ++text) {
    const char escaped = *text == '\n'                   ? 'n'
                         : *text == '\t'                 ? 't'
                         : *text == '"' || *text == '\\' ? *text
                                                         : 0;
    if (escaped) mlx_text_puts(out, "\\");
    mlx_text_append(out, escaped ? &escaped : text, 1);
  }
  mlx_text_puts(out, "\"");
}

static const char *ints_text(const mlx_flag_ints_t *ints, char *buffer, size_t size) {
  size_t length = 0;
  buffer[0] = 0;
  for (size_t i = 0; i < ints->count && length < size; ++i) {
    length +=
        (size_t)snprintf(buffer + length, size - length, "%s%lld", i ? "," : "", (long long)ints->items[i]);
  }
  return ints->count ? buffer : NULL;
}

// A default outside the range of the flag means "not given"; the configuration file cannot set it.
static const char *int_text(const mlx_flag_t *flag, int64_t value, char *buffer, size_t size) {
  if (value < flag->min || value > flag->max) return NULL;
  snprintf(buffer, size, "%lld", (long long)value);
  return buffer;
}

static const char *number_text(const mlx_flag_t *flag, double value, char *buffer, size_t size) {
  if (!(value >= (double)flag->min && value <= (double)flag->max)) return NULL;
  snprintf(buffer, size, "%g", value);
  return buffer;
}

// The value as text, NULL if there is none. |index| selects an item of a list; |buffer| may hold the result.
static const char *value_text(const mlx_flag_t *flag, const void *options, const mlx_origin_t *origin,
                              size_t index, char *buffer, size_t size) {
  if (origin->kind == MLX_FROM_ENVIRONMENT && mlx_variable_exists(origin->variable))
    return getenv(origin->variable);
  const void *value = (const char *)options + flag->offset;
  const mlx_flag_list_t *list = value;
  switch (flag->kind) {
    case MLX_FLAG_SWITCH: return *(const bool *)value ? "true" : "false";
    case MLX_FLAG_TEXT: return *(const char *const *)value;
    case MLX_FLAG_LIST: return index < list->count ? list->items[index] : NULL;
    case MLX_FLAG_INTS: return ints_text(value, buffer, size);
    case MLX_FLAG_INT: return int_text(flag, *(const int64_t *)value, buffer, size);
    default: return number_text(flag, *(const double *)value, buffer, size);
  }
}

static void put_origin(mlx_text_t *out, const char *path, const mlx_origin_t *origin) {
  if (origin->kind == MLX_FROM_ENVIRONMENT) mlx_text_puts(out, origin->variable);
  if (origin->kind == MLX_FROM_FILE) mlx_text_printf(out, "%s:%d", path, origin->line);
}

static void put_json(listing_t *listing, const char *verb, const mlx_flag_t *flag, const char *name,
                     const char *value, const mlx_origin_t *origin) {
  static const char *const kinds[] = {"default", "command line", "environment", "file"};
  mlx_json_writer_t *json = &listing->writer;
  mlx_text_t from = {0};
  const bool bare =
      value && (flag->kind == MLX_FLAG_SWITCH || flag->kind == MLX_FLAG_INT || flag->kind == MLX_FLAG_NUMBER);
  mlx_json_begin_object(json, NULL, MLX_JSON_ONE_LINE);
  mlx_json_put_text(json, "verb", verb);
  mlx_json_put_text(json, "key", name);
  if (bare)
    mlx_json_put_raw(json, "value", value, strlen(value));
  else
    mlx_json_put_text(json, "value", value);
  put_origin(&from, listing->path, origin);
  mlx_json_put_text(json, "source", kinds[origin->kind]);
  mlx_json_put_text(json, "from", from.data ? from.data : "");
  mlx_json_end(json);
  mlx_text_clear(&from);
}

// A flag without a value is a remark: "# ctx: not set (N)". Every other line is a setting.
static void put_line(listing_t *listing, const mlx_flag_t *flag, const char *name, const char *value,
                     const mlx_origin_t *origin) {
  mlx_text_t *out = &listing->out;
  const size_t start = out->length;
  if (!value) {
    mlx_text_printf(out, "# %s: not set (%s)\n", name, flag->value);
    return;
  }
  mlx_text_printf(out, "%s%s = ", origin->kind == MLX_FROM_DEFAULT ? "# " : "", name);
  put_setting(out, value);
  const int pad = 40 - (int)(out->length - start);
  if (origin->kind != MLX_FROM_DEFAULT) mlx_text_printf(out, "%*s # ", pad > 0 ? pad : 0, "");
  put_origin(out, listing->path, origin);
  mlx_text_puts(out, "\n");
}

static void list_flags(listing_t *listing, const mlx_verb_t *verb, const void *options,
                       const mlx_origin_t *origins) {
  char name[MLX_FLAG_NAME], buffer[MLX_MAX_INTS * 24];
  bool has_heading = false;
  for (size_t i = 0; verb->flags[i].names; ++i) {
    const mlx_flag_t *flag = &verb->flags[i];
    if (!mlx_config_can_set(flag) || (origins[i].kind == MLX_FROM_DEFAULT && !listing->defaults)) continue;
    mlx_flag_long_name(flag, name);
    const char *value = value_text(flag, options, &origins[i], 0, buffer, sizeof buffer);
    for (size_t n = 0; n == 0 || (flag->kind == MLX_FLAG_LIST && value);
         ++n, value = value_text(flag, options, &origins[i], n, buffer, sizeof buffer)) {
      if (!listing->json && !has_heading)
        mlx_text_printf(&listing->out, "%s[%s]\n", listing->count ? "\n" : "", verb->name);
      has_heading = true;
      if (listing->json) {
        put_json(listing, verb->name, flag, name + 2, value, &origins[i]);
      } else {
        put_line(listing, flag, name + 2, value, &origins[i]);
      }
      ++listing->count;
    }
  }
}

static mlx_status_t list_verb(listing_t *listing, const mlx_verb_t *const *verbs, const mlx_verb_t *verb) {
  mlx_origin_t *origins = NULL;
  void *options = NULL;
  mlx_status_t status = mlx_alloc(mlx_flags_count(verb->flags), sizeof *origins, &origins);
  if (!status) status = mlx_alloc(verb->options_size, 1, &options);
  if (!status) mlx_verb_initialize(verb, options);
  if (!status) status = mlx_config_apply(verbs, verb, options, true, origins);
  if (!status) list_flags(listing, verb, options, origins);
  mlx_free(options);
  mlx_free(origins);
  return status;
}

// Lists the flags of |verb|, or of all verbs if it is NULL.
static mlx_status_t list_all(listing_t *listing, const mlx_verb_t *const *verbs, const mlx_verb_t *verb) {
  MLX_TRY(mlx_config_path(verbs, &listing->path));
  const char *path = listing->path;
  const bool found = path && mlx_is_file(path);
  if (listing->json) {
    listing->writer.out = &listing->out;
    mlx_json_begin_object(&listing->writer, NULL, MLX_JSON_LINES);
    mlx_json_put_text(&listing->writer, "file", path ? path : "");
    mlx_json_put_bool(&listing->writer, "found", found);
    mlx_json_begin_list(&listing->writer, "settings", MLX_JSON_LINES);
  } else {
    mlx_text_printf(&listing->out, "# %s%s\n", path ? path : "no configuration folder: HOME is not set",
                    found ? "" : " (not found)");
  }
  for (size_t i = 0; verbs[i]; ++i) {
    if (!verb || verbs[i] == verb) MLX_TRY(list_verb(listing, verbs, verbs[i]));
  }
  if (listing->json) {
    mlx_json_end(&listing->writer);
    mlx_json_end(&listing->writer);
    mlx_text_puts(&listing->out, "\n");
  }
  MLX_TRY(mlx_text_finish(&listing->out));
  return fwrite(listing->out.data, 1, listing->out.length, stdout) == listing->out.length
             ? NULL
             : mlx_stdout_error();
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  const char *word = NULL;
  size_t words;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, &word, 1, &words, &help));
  if (help) return NULL;
  const mlx_verb_t *verb = word ? mlx_verb_find(line->verbs, word) : NULL;
  if (word && !verb) return mlx_verb_unknown(line->verbs, word);
  listing_t listing = {.json = f.json, .defaults = verb != NULL};
  mlx_status_t status = list_all(&listing, line->verbs, verb);
  mlx_text_clear(&listing.out);
  return status;
}

static const mlx_flag_t flags[] = {
    MLX_JSON_FLAG(flags_t, json),
    {0},
};

const mlx_verb_t mlx_verb_config = {
    .name = "config",
    .summary = "show what the configuration file and the environment set",
    .usage =
        "usage: mlxcel config [VERB] [options]\n\n"
        "Prints the settings of the configuration file and the environment and their origin: for every "
        "verb, or all options of one. The output is a valid configuration file.\n"
        "Precedence: command line, environment (MLXCEL_CTX=4096), configuration file, default.\n\n"
        "examples:\n"
        "  mlxcel config\n"
        "  mlxcel config run > config.new",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .run = run,
};
