// Reads the configuration file and the environment and applies them to the options of a verb.
#include "cli/config_file.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/settings.h"
#include "base/text.h"
#include "base/user.h"

// The first row names the file that may set the other variables.
// clang-format off
const mlx_variable_t mlx_variables[] = {
    {"MLXCEL_CONFIG",
     "configuration file (default: $XDG_CONFIG_HOME/mlxcel/config, else ~/.config/mlxcel/config)"},
    {"MLXCEL_CACHE", "cache folder (default: $XDG_CACHE_HOME/mlxcel, else ~/.cache/mlxcel)"},
    {"MLXCEL_STATE", "state folder: bundles compiled here, chat history (default: $XDG_STATE_HOME/mlxcel, else "
                     "~/.local/state/mlxcel)"},
    {"MLXCEL_IREE_COMPILE", "path of iree-compile (default: the built-in one)"},
    {"MLXCEL_REMOTE_CACHE", "cache of compiled modules that machines share: oci://HOST/NAME, https://HOST/PATH or a folder"},
    {"MLXCEL_REMOTE_CACHE_TOKEN", "token that is sent to a remote cache on a web server"},
    {"MLXCEL_COMPILE_TIMEOUT", "time limit of iree-compile in seconds (default: 1800)"},
    {"MLXCEL_NVRTC", "path of the NVRTC library, which compiles CUDA kernels, or of its folder"},
    {"MLXCEL_IMAGES", "folder of compiled CUDA kernels that come with mlxcel (default: ../share/mlxcel/images)"},
    {"MLXCEL_TRUSTED",
     "folder of the trusted public keys (default: trusted, beside the default configuration file)"},
    {"MLXCEL_PASSWORD", "password of the secret key, for keygen, sign, --publish and cache push without a terminal"},
    {"HF_ENDPOINT", "address of the hub that models are pulled from (default: the public hub)"},
    {NULL, NULL},
};
// clang-format on

bool mlx_variable_exists(const char *name) {
  for (const mlx_variable_t *row = mlx_variables; row->name; ++row) {
    if (!strcmp(row->name, name)) return true;
  }
  return false;
}

#define MAX_ROW_NAMES 4  // names of one flag

typedef struct setting {
  int line;
  char *section, *key, *value;  // owned
} setting_t;

// The file is read once and kept until mlx_config_release, because options point into it.
static struct {
  char *path;  // NULL if the user has no configuration folder
  bool read;
  setting_t *settings;  // owned
  size_t count, capacity;
  char **texts;  // owned, and so is each text
  size_t text_count, text_capacity;
} config;

void mlx_config_release(void) {
  for (size_t i = 0; i < config.count; ++i) {
    mlx_free(config.settings[i].section);
    mlx_free(config.settings[i].key);
    mlx_free(config.settings[i].value);
  }
  for (size_t i = 0; i < config.text_count; ++i) mlx_free(config.texts[i]);
  mlx_free(config.texts);
  mlx_free(config.settings);
  mlx_free(config.path);
  memset(&config, 0, sizeof config);
}

mlx_status_t mlx_config_keep(char *text) {
  mlx_status_t status =
      mlx_reserve(config.text_count + 1, sizeof *config.texts, &config.text_capacity, &config.texts);
  if (status) {
    mlx_free(text);
  } else {
    config.texts[config.text_count++] = text;
  }
  return status;
}

static const char *environment(const char *name) {
  const char *value = getenv(name);
  return value && *value ? value : NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Keys

bool mlx_config_can_set(const mlx_flag_t *flag) {
  return flag->kind != MLX_FLAG_GROUP && !flag->command_line_only;
}

// True if |key| is a long name of the flag, without its dashes.
static bool has_key(const mlx_flag_t *flag, const char *key) {
  char name[MLX_FLAG_NAME];
  for (const char *cursor = flag->names; mlx_flag_next_name(&cursor, name);) {
    if (!strncmp(name, "--", 2) && !strcmp(name + 2, key)) return true;
  }
  return false;
}

static bool verb_has_key(const mlx_verb_t *verb, const char *key) {
  for (const mlx_flag_t *flag = verb->flags; flag->names; ++flag) {
    if (mlx_config_can_set(flag) && has_key(flag, key)) return true;
  }
  return false;
}

// Finds the key of |verbs| that is most similar to |key|; "" if none is similar. If |section| is not "", only
// the keys of that verb count.
static mlx_status_t nearest_key(const mlx_verb_t *const *verbs, const char *section, const char *key,
                                char out_name[MLX_FLAG_NAME]) {
  char(*storage)[MLX_FLAG_NAME] = NULL;
  const char **names = NULL;
  size_t count = 0, rows = 0;
  out_name[0] = 0;
  for (size_t i = 0; verbs[i]; ++i) rows += mlx_flags_count(verbs[i]->flags);
  MLX_TRY(mlx_alloc(rows * MAX_ROW_NAMES, sizeof *storage, &storage));
  mlx_status_t status = mlx_alloc(rows * MAX_ROW_NAMES + 1, sizeof *names, &names);
  for (; *verbs && !status; ++verbs) {
    if (section[0] && strcmp((*verbs)->name, section)) continue;
    for (const mlx_flag_t *flag = (*verbs)->flags; flag->names; ++flag) {
      if (!mlx_config_can_set(flag)) continue;
      const char *cursor = flag->names;
      while (count < rows * MAX_ROW_NAMES && mlx_flag_next_name(&cursor, storage[count])) {
        if (strncmp(storage[count], "--", 2)) continue;
        names[count] = storage[count] + 2;
        ++count;
      }
    }
  }
  const char *nearest = status ? NULL : mlx_nearest_name(key, names);
  if (nearest) snprintf(out_name, MLX_FLAG_NAME, "%s", nearest);
  mlx_free(names);
  mlx_free(storage);
  return status;
}

static mlx_status_t unknown_key(const mlx_verb_t *const *verbs, const mlx_setting_t *setting) {
  char nearest[MLX_FLAG_NAME];
  MLX_TRY(nearest_key(verbs, setting->section, setting->key, nearest));
  mlx_status_t status =
      mlx_error(MLX_INVALID_INPUT, "%s:%d: there is no option '%s'%s%s", config.path, setting->line,
                setting->key, setting->section[0] ? " of " : "", setting->section);
  return nearest[0]
             ? mlx_status_hint(status, "did you mean '%s'?", nearest)
             : mlx_status_hint(status, "keys are the long names of options; `mlxcel config VERB` lists them");
}

static mlx_status_t unknown_section(const mlx_verb_t *const *verbs, const mlx_setting_t *setting) {
  mlx_status_t unknown = mlx_verb_unknown(verbs, setting->section);
  mlx_status_t status =
      mlx_error(MLX_INVALID_INPUT, "%s:%d: %s", config.path, setting->line, mlx_status_message(unknown));
  status = mlx_status_hint(status, "%s", mlx_status_hint_text(unknown));
  mlx_status_free(unknown);
  return status;
}

// A setting without a key is the heading of a section.
static mlx_status_t check_setting(const mlx_verb_t *const *verbs, const mlx_setting_t *setting) {
  if (!setting->key) return mlx_verb_find(verbs, setting->section) ? NULL : unknown_section(verbs, setting);
  for (size_t i = 0; verbs[i]; ++i) {
    if (setting->section[0] && strcmp(verbs[i]->name, setting->section)) continue;
    if (verb_has_key(verbs[i], setting->key)) return NULL;
  }
  return unknown_key(verbs, setting);
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

// A key in capitals is an environment variable. Sets it for this process and its children if it is not set.
static mlx_status_t keep_variable(const mlx_setting_t *setting) {
  const char *names[32] = {0};
  size_t count = 0;
  for (const mlx_variable_t *row = mlx_variables + 1; row->name && count < 31; ++row) {
    if (!strcmp(row->name, setting->key)) {
      if (!environment(setting->key) && setenv(setting->key, setting->value, 1))
        return mlx_error(MLX_OUT_OF_MEMORY, "out of memory for the variable %s", setting->key);
      return NULL;
    }
    names[count++] = row->name;
  }
  const char *nearest = mlx_nearest_name(setting->key, names);
  mlx_status_t status = mlx_error(MLX_INVALID_INPUT, "%s:%d: '%s' is not a variable that this file can set",
                                  config.path, setting->line, setting->key);
  return nearest ? mlx_status_hint(status, "did you mean '%s'?", nearest)
                 : mlx_status_hint(status, "write options in lower case: ctx = 4096");
}

static mlx_status_t keep_setting(void *user, const mlx_setting_t *setting) {
  char key[MLX_FLAG_NAME];
  if (setting->key && isupper((unsigned char)setting->key[0])) return keep_variable(setting);
  if (setting->key) {  // an option's name; underscores stand for dashes
    snprintf(key, sizeof key, "%s", setting->key);
    for (char *c = key; (c = strchr(c, '_'));) *c = '-';
  }
  const mlx_setting_t plain = {.line = setting->line,
                               .section = setting->section,
                               .key = setting->key ? key : NULL,
                               .value = setting->value};
  MLX_TRY(check_setting(*(const mlx_verb_t *const **)user, &plain));
  if (!plain.key) return NULL;
  MLX_TRY(mlx_reserve(config.count + 1, sizeof *config.settings, &config.capacity, &config.settings));
  setting_t *kept = &config.settings[config.count++];
  *kept = (setting_t){.line = plain.line};
  MLX_TRY(mlx_copy_text(plain.section, strlen(plain.section), &kept->section));
  MLX_TRY(mlx_copy_text(plain.key, strlen(plain.key), &kept->key));
  return mlx_copy_text(plain.value, strlen(plain.value), &kept->value);
}

static mlx_status_t read_config(const mlx_verb_t *const *verbs) {
  if (config.read) return NULL;
  char *bytes;
  size_t length;
  mlx_free(config.path);
  MLX_TRY(choose_path(&config.path));
  config.read = true;
  if (!config.path || (!environment("MLXCEL_CONFIG") && !mlx_is_file(config.path))) return NULL;
  mlx_status_t status = mlx_read_input(config.path, MLX_SETTINGS_MAX, &bytes, &length);
  if (status)
    return mlx_status_hint(mlx_status_annotate(status, "the configuration file"),
                           "set MLXCEL_CONFIG to a readable file, or give --no-config");
  status = mlx_settings_read(config.path, bytes, length, keep_setting, &verbs);
  mlx_free(bytes);
  return status;
}

mlx_status_t mlx_config_path(const mlx_verb_t *const *verbs, const char **out_path) {
  *out_path = NULL;
  MLX_TRY(read_config(verbs));
  *out_path = config.path;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Values for flags

// "MLXCEL_", the verb unless it is "", and the option's name, in capitals: MLXCEL_RUN_CTX.
static void name_variable(const char *verb, const char *name, char *out, size_t size) {
  snprintf(out, size, "MLXCEL_%s%s%s", verb, verb[0] ? "_" : "", name + 2);
  for (; *out; ++out) *out = *out == '-' ? '_' : (char)toupper((unsigned char)*out);
}

// A variable for this verb overrides one for all verbs. The first long name overrides the other names.
static const char *find_variable(const char *verb, const mlx_flag_t *flag, char *out_variable, size_t size) {
  char name[MLX_FLAG_NAME];
  for (int with_verb = 1; with_verb >= 0; --with_verb) {
    for (const char *cursor = flag->names; mlx_flag_next_name(&cursor, name);) {
      if (strncmp(name, "--", 2)) continue;
      name_variable(with_verb ? verb : "", name, out_variable, size);
      if (environment(out_variable)) return environment(out_variable);
    }
  }
  return NULL;
}

static mlx_status_t apply_variable(const char *verb, const mlx_flag_t *flag, void *options,
                                   mlx_origin_t *origin) {
  char name[MLX_FLAG_NAME], variable[sizeof origin->variable];
  const char *value = find_variable(verb, flag, variable, sizeof variable);
  if (!value) return NULL;
  origin->kind = MLX_FROM_ENVIRONMENT;
  memcpy(origin->variable, variable, sizeof variable);
  if (mlx_variable_exists(variable)) return NULL;
  mlx_flag_long_name(flag, name);
  return mlx_status_annotate(mlx_flag_set(flag, options, name, value), "%s", variable);
}

// If several lines set one flag, the last one counts. A list flag collects all of them.
static mlx_status_t apply_section(const char *section, const mlx_flag_t *flag, void *options,
                                  mlx_origin_t *origin) {
  char name[MLX_FLAG_NAME];
  mlx_flag_long_name(flag, name);
  for (size_t i = 0; i < config.count; ++i) {
    const setting_t *setting = &config.settings[i];
    if (strcmp(setting->section, section) || !has_key(flag, setting->key)) continue;
    *origin = (mlx_origin_t){.kind = MLX_FROM_FILE, .line = setting->line};
    mlx_status_t wrong = mlx_flag_set(flag, options, name, setting->value);
    if (!wrong) continue;
    mlx_status_t status =
        mlx_error(MLX_INVALID_INPUT, "%s:%d: %s", config.path, setting->line, mlx_status_message(wrong));
    mlx_status_free(wrong);
    return status;
  }
  return NULL;
}

mlx_status_t mlx_config_apply(const mlx_verb_t *const *verbs, const mlx_verb_t *verb, void *options,
                              bool with_file, mlx_origin_t *inout_origins) {
  const mlx_flag_t *flags = verb->flags;
  if (with_file) MLX_TRY(read_config(verbs));
  for (size_t i = 0; flags[i].names; ++i) {
    mlx_origin_t *origin = &inout_origins[i];
    if (!mlx_config_can_set(&flags[i]) || origin->kind != MLX_FROM_DEFAULT) continue;
    MLX_TRY(apply_variable(verb->name, &flags[i], options, origin));
    if (with_file && origin->kind == MLX_FROM_DEFAULT)
      MLX_TRY(apply_section(verb->name, &flags[i], options, origin));
    if (with_file && origin->kind == MLX_FROM_DEFAULT) MLX_TRY(apply_section("", &flags[i], options, origin));
  }
  return NULL;
}
