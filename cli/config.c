// The configuration file and the environment: values for flags that the command line does not give.
// docs/config.md.
#include "cli/config.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/settings.h"
#include "base/text.h"
#include "base/user.h"

// The first names the file that may set the others.
const mlx_variable_t mlx_variables[] = {
    {"MLXCEL_CONFIG",
     "the configuration file (default: $XDG_CONFIG_HOME/mlxcel/config, else ~/.config/mlxcel/config)"},
    {"MLXCEL_CACHE", "the cache folder (default: $XDG_CACHE_HOME/mlxcel, else ~/.cache/mlxcel)"},
    {"MLXCEL_IREE_COMPILE", "the compiler"},
    {"MLXCEL_COMPILE_TIMEOUT", "its time limit in seconds"},
    {"MLXCEL_NVRTC", "the library that compiles our CUDA kernels, or its folder"},
    {"MLXCEL_TRUSTED",
     "the folder of the trusted public keys (default: trusted, beside the default configuration file)"},
    {"MLXCEL_PASSWORD",
     "the password of the secret key that keygen makes and sign uses, where nobody can be asked"},
    {"HF_ENDPOINT", "the address of the hub that models are pulled from"},
    {NULL, NULL},
};

typedef struct setting {
  int line;
  char *section, *key, *value;  // owned
} setting_t;

typedef struct known {  // a flag that there is
  const char *verb;
  char name[MLX_FLAG_NAME];
} known_t;

static struct {  // read once, kept until the process ends: flags point into it
  char *path;    // NULL: there is no place for one
  bool read;
  setting_t *settings;
  size_t count, capacity;
  known_t *known;
  size_t known_count, known_capacity;
} config;

void mlx_config_release(void) {
  for (size_t i = 0; i < config.count; ++i) {
    mlx_free(config.settings[i].section);
    mlx_free(config.settings[i].key);
    mlx_free(config.settings[i].value);
  }
  mlx_free(config.settings);
  mlx_free(config.known);
  mlx_free(config.path);
  memset(&config, 0, sizeof config);
}

static const char *environment(const char *name) {
  const char *value = getenv(name);
  return value && *value ? value : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Names

static bool is_spoken(const mlx_flag_t *flag) {
  return flag->kind == MLX_FLAG_SWITCH && flag->min == MLX_FLAG_SPOKEN;
}

static mlx_status_t add_known(void *user, const mlx_verb_text_t *verb) {
  (void)user;
  char name[MLX_FLAG_NAME];
  for (const mlx_flag_t *flag = verb->flags; flag->names; ++flag) {
    if (is_spoken(flag)) continue;
    for (const char *cursor = flag->names; mlx_flag_next_name(&cursor, name);) {
      if (strncmp(name, "--", 2)) continue;
      MLX_TRY(
          mlx_reserve(config.known_count + 1, sizeof *config.known, &config.known_capacity, &config.known));
      known_t *known = &config.known[config.known_count++];
      known->verb = verb->verb->name;
      memcpy(known->name, name + 2, sizeof name - 2);
    }
  }
  return NULL;
}

// A key that no verb, or not the section's, has.
static mlx_status_t unknown_key(const mlx_setting_t *setting) {
  const char **names;
  size_t count = 0;
  MLX_TRY(mlx_alloc(config.known_count + 1, sizeof *names, &names));
  for (size_t i = 0; i < config.known_count; ++i) {
    if (!setting->section[0] || !strcmp(config.known[i].verb, setting->section))
      names[count++] = config.known[i].name;
  }
  const char *nearest = mlx_nearest_name(setting->key, names);
  mlx_status_t status =
      mlx_error(MLX_INVALID_INPUT, "%s:%d: there is no option '%s'%s%s", config.path, setting->line,
                setting->key, setting->section[0] ? " of " : "", setting->section);
  status = nearest ? mlx_status_hint(status, "did you mean '%s'?", nearest)
                   : mlx_status_hint(status,
                                     "keys are the long names of options; `mlxcel config VERB` lists them");
  mlx_free(names);
  return status;
}

static mlx_status_t check_setting(const mlx_setting_t *setting) {
  if (!setting->key) {
    if (mlx_verb_find(setting->section)) return NULL;
    mlx_status_t unknown = mlx_verb_unknown(setting->section);
    mlx_status_t status =
        mlx_error(MLX_INVALID_INPUT, "%s:%d: %s", config.path, setting->line, mlx_status_message(unknown));
    status = mlx_status_hint(status, "%s", mlx_status_hint_text(unknown));
    mlx_status_free(unknown);
    return status;
  }
  for (size_t i = 0; i < config.known_count; ++i) {
    if (!strcmp(config.known[i].name, setting->key) &&
        (!setting->section[0] || !strcmp(config.known[i].verb, setting->section)))
      return NULL;
  }
  return unknown_key(setting);
}

// ----------------------------------------------------------------------------------------------------------
// The file

static mlx_status_t choose_path(char **out_path) {
  *out_path = NULL;
  const char *given = environment("MLXCEL_CONFIG");
  if (given) return mlx_copy_text(given, strlen(given), out_path);
  char *folder;
  MLX_TRY(mlx_user_folder(MLX_USER_CONFIG, &folder));
  mlx_status_t status = folder ? mlx_join_path(folder, "config", out_path) : NULL;
  mlx_free(folder);
  return status;
}

// A key in capitals is a variable of the environment, for this process and what it starts, where that has
// none yet.
static mlx_status_t keep_variable(const mlx_setting_t *setting) {
  const char *names[32] = {0};
  size_t count = 0;
  for (const mlx_variable_t *row = mlx_variables + 1; row->name && count < 31;
       ++row) {  // the first names this file
    if (!strcmp(row->name, setting->key)) {
      if (!environment(setting->key) && setenv(setting->key, setting->value, 1))
        return mlx_error(MLX_OUT_OF_MEMORY, "there is no memory for %s", setting->key);
      return NULL;
    }
    names[count++] = row->name;
  }
  const char *nearest = mlx_nearest_name(setting->key, names);
  mlx_status_t status = mlx_error(MLX_INVALID_INPUT, "%s:%d: '%s' is no variable that can be set here",
                                  config.path, setting->line, setting->key);
  return nearest ? mlx_status_hint(status, "did you mean '%s'?", nearest)
                 : mlx_status_hint(status, "options are written in small letters: ctx = 4096");
}

static mlx_status_t keep_setting(void *user, const mlx_setting_t *setting) {
  (void)user;
  char key[MLX_FLAG_NAME];
  if (setting->key && isupper((unsigned char)setting->key[0])) return keep_variable(setting);
  if (setting->key) {  // an option's name, which may be written with underscores
    snprintf(key, sizeof key, "%s", setting->key);
    for (char *c = key; (c = strchr(c, '_'));) *c = '-';
  }
  const mlx_setting_t plain = {.line = setting->line,
                               .section = setting->section,
                               .key = setting->key ? key : NULL,
                               .value = setting->value};
  MLX_TRY(check_setting(&plain));
  if (!plain.key) return NULL;
  MLX_TRY(mlx_reserve(config.count + 1, sizeof *config.settings, &config.capacity, &config.settings));
  setting_t *kept = &config.settings[config.count++];
  *kept = (setting_t){.line = plain.line};
  MLX_TRY(mlx_copy_text(plain.section, strlen(plain.section), &kept->section));
  MLX_TRY(mlx_copy_text(plain.key, strlen(plain.key), &kept->key));
  return mlx_copy_text(plain.value, strlen(plain.value), &kept->value);
}

static mlx_status_t read_config(void) {
  if (config.read) return NULL;
  char *bytes;
  size_t length;
  mlx_free(config.path);
  MLX_TRY(choose_path(&config.path));
  config.read = true;
  if (!config.path || (!environment("MLXCEL_CONFIG") && !mlx_is_file(config.path))) return NULL;
  mlx_status_t status = mlx_read_file(config.path, MLX_SETTINGS_MAX, &bytes, &length);
  if (status)
    return mlx_status_hint(mlx_status_annotate(status, "the configuration"),
                           "set MLXCEL_CONFIG to a file that can be read, or give --no-config");
  status = mlx_verb_describe(NULL, add_known, NULL);
  if (!status) status = mlx_settings_read(config.path, bytes, length, keep_setting, NULL);
  mlx_free(bytes);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Values for flags

// "MLXCEL_" and the option's name in capitals, with the verb's before it when there is one given.
static void name_variable(const char *verb, const char *name, char *out, size_t size) {
  snprintf(out, size, "MLXCEL_%s%s%s", verb, verb[0] ? "_" : "", name + 2);
  for (; *out; ++out) *out = *out == '-' ? '_' : (char)toupper((unsigned char)*out);
}

// A variable of the verb's own goes before one for all verbs, the first long name before the others.
static const char *find_variable(const char *verb, const mlx_flag_t *flag, char *out_variable, size_t size) {
  char name[MLX_FLAG_NAME];
  for (int own = 1; own >= 0; --own) {
    for (const char *cursor = flag->names; mlx_flag_next_name(&cursor, name);) {
      if (strncmp(name, "--", 2)) continue;
      name_variable(own ? verb : "", name, out_variable, size);
      if (environment(out_variable)) return environment(out_variable);
    }
  }
  return NULL;
}

// Some are read where they are needed, by every verb that compiles, and complained about there.
static bool is_read_elsewhere(const char *variable) {
  for (const mlx_variable_t *row = mlx_variables; row->name; ++row) {
    if (!strcmp(row->name, variable)) return true;
  }
  return false;
}

// The first long name of a flag, with its dashes; "" when it has none.
static void long_name(const mlx_flag_t *flag, char out[MLX_FLAG_NAME]) {
  for (const char *cursor = flag->names; mlx_flag_next_name(&cursor, out);) {
    if (!strncmp(out, "--", 2)) return;
  }
  out[0] = 0;
}

static mlx_status_t apply_variable(const char *verb, const mlx_flag_t *flag, mlx_origin_t *origin) {
  char name[MLX_FLAG_NAME], variable[sizeof origin->variable];
  const char *value = find_variable(verb, flag, variable, sizeof variable);
  if (!value) return NULL;
  origin->kind = MLX_FROM_ENVIRONMENT;
  memcpy(origin->variable, variable, sizeof variable);
  if (is_read_elsewhere(variable)) return NULL;
  long_name(flag, name);
  return mlx_status_annotate(mlx_flag_set(flag, name, value), "%s", variable);
}

static bool is_for(const setting_t *setting, const char *section, const mlx_flag_t *flag) {
  char name[MLX_FLAG_NAME];
  if (strcmp(setting->section, section)) return false;
  for (const char *cursor = flag->names; mlx_flag_next_name(&cursor, name);) {
    if (!strncmp(name, "--", 2) && !strcmp(name + 2, setting->key)) return true;
  }
  return false;
}

// Of several lines the last counts; of a flag that may be given again and again, all.
static mlx_status_t apply_section(const char *section, const mlx_flag_t *flag, mlx_origin_t *origin) {
  char name[MLX_FLAG_NAME];
  long_name(flag, name);
  for (size_t i = 0; i < config.count; ++i) {
    const setting_t *setting = &config.settings[i];
    if (!is_for(setting, section, flag)) continue;
    *origin = (mlx_origin_t){.kind = MLX_FROM_FILE, .line = setting->line};
    mlx_status_t wrong = mlx_flag_set(flag, name, setting->value);
    if (!wrong) continue;
    mlx_status_t status =
        mlx_error(MLX_INVALID_INPUT, "%s:%d: %s", config.path, setting->line, mlx_status_message(wrong));
    mlx_status_free(wrong);
    return status;
  }
  return NULL;
}

mlx_status_t mlx_config_apply(const char *verb, const mlx_flag_t *flags, bool with_file,
                              mlx_origin_t *inout_origins) {
  if (with_file) MLX_TRY(read_config());
  for (size_t i = 0; flags[i].names; ++i) {
    mlx_origin_t *origin = &inout_origins[i];
    if (flags[i].kind == MLX_FLAG_GROUP || is_spoken(&flags[i]) || origin->kind != MLX_FROM_DEFAULT) continue;
    MLX_TRY(apply_variable(verb, &flags[i], origin));
    if (with_file && origin->kind == MLX_FROM_DEFAULT) MLX_TRY(apply_section(verb, &flags[i], origin));
    if (with_file && origin->kind == MLX_FROM_DEFAULT) MLX_TRY(apply_section("", &flags[i], origin));
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// mlxcel config: what every flag is, and why

typedef struct listing {
  mlx_text_t out;
  bool json, defaults;
  size_t count;  // of what was written
} listing_t;

// As the file would have it.
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

// The value as text; NULL when there is none. |buffer| may hold it.
static const char *value_text(const mlx_flag_t *flag, const mlx_origin_t *origin, size_t index, char *buffer,
                              size_t size) {
  if (origin->kind == MLX_FROM_ENVIRONMENT && is_read_elsewhere(origin->variable))
    return getenv(origin->variable);
  const mlx_flag_list_t *list = flag->target;
  switch (flag->kind) {
    case MLX_FLAG_SWITCH: return *(bool *)flag->target ? "true" : "false";
    case MLX_FLAG_TEXT: return *(const char **)flag->target;
    case MLX_FLAG_LIST: return index < list->count ? list->items[index] : NULL;
    case MLX_FLAG_INTS: return ints_text(flag->target, buffer, size);
    case MLX_FLAG_INT: snprintf(buffer, size, "%lld", (long long)*(int64_t *)flag->target); return buffer;
    default: snprintf(buffer, size, "%g", *(double *)flag->target); return buffer;
  }
}

static void put_origin(mlx_text_t *out, const mlx_origin_t *origin) {
  if (origin->kind == MLX_FROM_ENVIRONMENT) mlx_text_puts(out, origin->variable);
  if (origin->kind == MLX_FROM_FILE) mlx_text_printf(out, "%s:%d", config.path, origin->line);
}

static void put_json(listing_t *listing, const char *verb, const mlx_flag_t *flag, const char *name,
                     const char *value, const mlx_origin_t *origin) {
  static const char *const kinds[] = {"default", "command line", "environment", "file"};
  mlx_text_t *out = &listing->out, from = {0};
  const bool bare =
      value && (flag->kind == MLX_FLAG_SWITCH || flag->kind == MLX_FLAG_INT || flag->kind == MLX_FLAG_NUMBER);
  mlx_text_printf(out, "%s\n    {\"verb\": \"%s\", \"key\": \"%s\", \"value\": ", listing->count ? "," : "",
                  verb, name);
  if (bare || !value) {
    mlx_text_puts(out, value ? value : "null");
  } else {
    mlx_text_json_string(out, value, strlen(value));
  }
  put_origin(&from, origin);
  mlx_text_printf(out, ", \"source\": \"%s\", \"from\": ", kinds[origin->kind]);
  mlx_text_json_string(out, from.data ? from.data : "", from.length);
  mlx_text_puts(out, "}");
  mlx_text_clear(&from);
}

static void put_line(mlx_text_t *out, const char *name, const char *value, const mlx_origin_t *origin) {
  const size_t start = out->length;
  mlx_text_printf(out, "%s%s =%s", origin->kind == MLX_FROM_DEFAULT ? "# " : "", name, value ? " " : "");
  if (value) put_setting(out, value);
  const int pad = 40 - (int)(out->length - start);
  if (origin->kind != MLX_FROM_DEFAULT) mlx_text_printf(out, "%*s # ", pad > 0 ? pad : 0, "");
  put_origin(out, origin);
  mlx_text_puts(out, "\n");
}

static mlx_status_t list_flags(listing_t *listing, const mlx_verb_text_t *verb, const mlx_origin_t *origins) {
  char name[MLX_FLAG_NAME], buffer[MLX_MAX_INTS * 24];
  bool headed = false;
  for (size_t i = 0; verb->flags[i].names; ++i) {
    const mlx_flag_t *flag = &verb->flags[i];
    if (flag->kind == MLX_FLAG_GROUP || (origins[i].kind == MLX_FROM_DEFAULT && !listing->defaults)) continue;
    long_name(flag, name);
    const char *value = value_text(flag, &origins[i], 0, buffer, sizeof buffer);
    for (size_t n = 0; n == 0 || (flag->kind == MLX_FLAG_LIST && value);
         ++n, value = value_text(flag, &origins[i], n, buffer, sizeof buffer)) {
      if (!listing->json && !headed)
        mlx_text_printf(&listing->out, "%s[%s]\n", listing->count ? "\n" : "", verb->verb->name);
      headed = true;
      if (listing->json) {
        put_json(listing, verb->verb->name, flag, name + 2, value, &origins[i]);
      } else {
        put_line(&listing->out, name + 2, value, &origins[i]);
      }
      ++listing->count;
    }
  }
  return NULL;
}

static mlx_status_t list_verb(void *user, const mlx_verb_text_t *verb) {
  size_t rows = 0;
  mlx_origin_t *origins;
  while (verb->flags[rows].names) ++rows;
  MLX_TRY(mlx_alloc(rows, sizeof *origins, &origins));
  mlx_status_t status = mlx_config_apply(verb->verb->name, verb->flags, true, origins);
  if (!status) status = list_flags(user, verb, origins);
  mlx_free(origins);
  return status;
}

static mlx_status_t list_all(listing_t *listing, const mlx_verb_t *verb) {
  MLX_TRY(read_config());
  const bool there = config.path && mlx_is_file(config.path);
  if (listing->json) {
    mlx_text_puts(&listing->out, "{\n  \"file\": ");
    mlx_text_json_string(&listing->out, config.path ? config.path : "",
                         config.path ? strlen(config.path) : 0);
    mlx_text_printf(&listing->out, ",\n  \"found\": %s,\n  \"settings\": [", there ? "true" : "false");
  } else {
    mlx_text_printf(&listing->out, "# %s%s\n",
                    config.path ? config.path : "no place for a file: HOME is not set",
                    there ? "" : " (not there)");
  }
  MLX_TRY(mlx_verb_describe(verb, list_verb, listing));
  if (listing->json) mlx_text_printf(&listing->out, "%s]\n}\n", listing->count ? "\n  " : "");
  MLX_TRY(mlx_text_finish(&listing->out));
  return fwrite(listing->out.data, 1, listing->out.length, stdout) == listing->out.length
             ? NULL
             : mlx_stdout_error();
}

mlx_status_t mlx_cli_config(int argc, char **argv) {
  listing_t listing = {0};
  const mlx_flag_t table[] = {
      {"--json", MLX_FLAG_SWITCH, NULL, "print one JSON object", &listing.json, 0, 0},
      {0},
  };
  const char *word = NULL;
  size_t words;
  bool help;
  MLX_TRY(
      mlx_flags_parse("usage: mlxcel config [VERB] [options]\n\n"
                      "What the configuration file and the environment set, and where: of every verb, or all "
                      "options of one.\n"
                      "What is printed can be a configuration file. The command line goes before the "
                      "environment (MLXCEL_CTX=4096),\n"
                      "the environment before the file, the file before the default.\n\n"
                      "examples:\n  mlxcel config\n  mlxcel config run > ~/.config/mlxcel/config",
                      table, argc, argv, &word, 1, &words, &help));
  if (help) return NULL;
  const mlx_verb_t *verb = word ? mlx_verb_find(word) : NULL;
  if (word && !verb) return mlx_verb_unknown(word);
  listing.defaults = verb != NULL;
  mlx_status_t status = list_all(&listing, verb);
  mlx_text_clear(&listing.out);
  return status;
}
