// Reads flag tables: finds rows, checks values and stores them in the options struct.
#include "cli/flags.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"

#define MAX_NAMES 128  // names in one table

// ----------------------------------------------------------------------------------------------------------
// Tables

size_t mlx_flags_count(const mlx_flag_t *flags) {
  size_t count = 0;
  while (flags[count].names) ++count;
  return count;
}

static bool next_part(const char **cursor, const char *separators, char out[MLX_FLAG_NAME]) {
  *cursor += strspn(*cursor, separators);
  const size_t length = strcspn(*cursor, separators);
  if (!length || length >= MLX_FLAG_NAME) return false;
  memcpy(out, *cursor, length);
  out[length] = 0;
  *cursor += length;
  return true;
}

bool mlx_flag_next_name(const char **cursor, char out_name[MLX_FLAG_NAME]) {
  return next_part(cursor, ", ", out_name);
}

void mlx_flag_long_name(const mlx_flag_t *flag, char out_name[MLX_FLAG_NAME]) {
  for (const char *cursor = flag->names; mlx_flag_next_name(&cursor, out_name);) {
    if (!strncmp(out_name, "--", 2)) return;
  }
  out_name[0] = 0;
}

bool mlx_flag_next_choice(const char **cursor, char out_choice[MLX_FLAG_NAME]) {
  // After the first choice, the cursor points to the bar before the next one.
  if (!*cursor || (**cursor != '|' && !strchr(*cursor, '|'))) return false;
  return next_part(cursor, "|", out_choice);
}

bool mlx_flag_is_path(const char *value) {
  static const char *const paths[] = {"FILE", "FOLDER", "OUT", "MODEL"};
  for (size_t i = 0; value && i < sizeof paths / sizeof *paths; ++i) {
    if (!strcmp(value, paths[i])) return true;
  }
  return false;
}

static const mlx_flag_t *find_flag(const mlx_flag_t *flags, const char *word) {
  char name[MLX_FLAG_NAME];
  for (; flags->names; ++flags) {
    for (const char *cursor = flags->names; mlx_flag_next_name(&cursor, name);) {
      if (!strcmp(name, word)) return flags;
    }
  }
  return NULL;
}

void mlx_flag_split(const char *word, char out_name[MLX_FLAG_NAME], const char **out_value) {
  const bool is_long = !strncmp(word, "--", 2);
  const char *equals = is_long ? strchr(word, '=') : NULL;
  snprintf(out_name, MLX_FLAG_NAME, "%.*s", equals ? (int)(equals - word) : (int)strlen(word), word);
  for (char *c = is_long ? out_name : NULL; c && (c = strchr(c, '_'));) *c = '-';
  *out_value = equals ? equals + 1 : NULL;
}

const mlx_flag_t *mlx_flags_find(const mlx_flag_t *flags, const char *word) {
  char name[MLX_FLAG_NAME];
  const char *value;
  mlx_flag_split(word, name, &value);
  return find_flag(flags, name);
}

// True if the words are equal except for upper and lower case, or for one dash: -temp and --temp.
static bool is_same_name(const char *a, const char *b) {
  while (*a == '-') ++a;
  while (*b == '-') ++b;
  return !strcasecmp(a, b);
}

// A short name has too few letters for an edit distance: -ngl is not -n.
mlx_status_t mlx_flags_unknown(const mlx_flag_t *flags, const mlx_flag_t *common, const char *word) {
  char storage[MAX_NAMES][MLX_FLAG_NAME], given[MLX_FLAG_NAME];
  const char *long_names[MAX_NAMES + 1] = {0}, *nearest = NULL, *value;
  size_t count = 0, long_count = 0;
  mlx_flag_split(word, given, &value);
  const mlx_flag_t *const tables[] = {flags, common};
  for (size_t i = 0; i < 2; ++i) {
    for (const mlx_flag_t *flag = tables[i]; flag->names; ++flag) {
      const char *cursor = flag->names;
      for (; count < MAX_NAMES && mlx_flag_next_name(&cursor, storage[count]); ++count) {
        if (!nearest && is_same_name(given, storage[count])) nearest = storage[count];
        if (!strncmp(storage[count], "--", 2)) long_names[long_count++] = storage[count] + 2;
      }
    }
  }
  const char *similar = nearest || strncmp(given, "--", 2) ? NULL : mlx_nearest_name(given + 2, long_names);
  mlx_status_t status = mlx_error(MLX_USAGE, "unknown option '%s'", given);
  if (nearest) return mlx_status_hint(status, "did you mean '%s'?", nearest);
  if (similar) return mlx_status_hint(status, "did you mean '--%s'?", similar);
  return mlx_status_hint(status, "--help lists the options");
}

// ----------------------------------------------------------------------------------------------------------
// Values

static void *target_of(const mlx_flag_t *flag, void *options) { return (char *)options + flag->offset; }

static mlx_status_t add_to_list(mlx_flag_list_t *list, const char *name, const char *text) {
  if (list->count == MLX_MAX_LIST)
    return mlx_error(MLX_USAGE, "option %s was given more than %d times", name, MLX_MAX_LIST);
  list->items[list->count++] = text;
  return NULL;
}

static mlx_status_t set_int(const mlx_flag_t *flag, int64_t *out, const char *name, const char *text) {
  char *end;
  errno = 0;
  const long long number = strtoll(text, &end, 10);
  if (errno || end == text || *end || number < flag->min || number > flag->max) {
    return mlx_error(MLX_USAGE, "option %s expects a whole number from %lld to %lld, not '%s'", name,
                     (long long)flag->min, (long long)flag->max, text);
  }
  *out = number;
  return NULL;
}

static mlx_status_t set_number(const mlx_flag_t *flag, double *out, const char *name, const char *text) {
  char *end;
  const double number = strtod(text, &end);
  if (end == text || *end || !(number >= (double)flag->min && number <= (double)flag->max)) {
    return mlx_error(MLX_USAGE, "option %s expects a number from %lld to %lld, not '%s'", name,
                     (long long)flag->min, (long long)flag->max, text);
  }
  *out = number;
  return NULL;
}

// "md, csv, json or jsonl"
static void list_choices(const char *value, mlx_text_t *out) {
  char choice[MLX_FLAG_NAME];
  for (const char *cursor = value; mlx_flag_next_choice(&cursor, choice);) {
    mlx_text_printf(out, "%s%s", !out->length ? "" : *cursor ? ", " : " or ", choice);
  }
}

static bool accepts_text(const mlx_flag_t *flag, const char *text) {
  char choice[MLX_FLAG_NAME];
  if (!strchr(flag->value, '|') || strpbrk(flag->value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")) return true;
  for (const char *cursor = flag->value; mlx_flag_next_choice(&cursor, choice);) {
    if (!strcmp(choice, text)) return true;
  }
  return false;
}

static mlx_status_t set_text(const mlx_flag_t *flag, const char **out, const char *name, const char *text) {
  *out = text;
  if (accepts_text(flag, text)) return NULL;
  mlx_text_t choices = {0};
  list_choices(flag->value, &choices);
  mlx_status_t status = mlx_error(MLX_USAGE, "option %s expects %s, not '%s'", name,
                                  choices.data ? choices.data : flag->value, text);
  mlx_text_clear(&choices);
  return status;
}

static mlx_status_t set_ints(const mlx_flag_t *flag, mlx_flag_ints_t *out, const char *name,
                             const char *text) {
  const char *cursor = text;
  for (out->count = 0; cursor; ++out->count) {
    char *end;
    errno = 0;
    const long long number = strtoll(cursor, &end, 10);
    if (errno || end == cursor || (*end && *end != ',') || number < flag->min || number > flag->max ||
        out->count == MLX_MAX_INTS) {
      return mlx_error(
          MLX_USAGE,
          "option %s expects up to %d whole numbers from %lld to %lld, separated by commas, not '%s'", name,
          MLX_MAX_INTS, (long long)flag->min, (long long)flag->max, text);
    }
    out->items[out->count] = number;
    cursor = *end ? end + 1 : NULL;
  }
  return NULL;
}

static mlx_status_t set_switch(bool *out, const char *name, const char *text) {
  static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
  for (size_t i = 0; i < sizeof words / sizeof *words; ++i) {
    if (strcmp(text, words[i])) continue;
    *out = i % 2;
    return NULL;
  }
  return mlx_error(MLX_USAGE, "option %s expects true or false, not '%s'", name, text);
}

mlx_status_t mlx_flag_set(const mlx_flag_t *flag, void *options, const char *name, const char *text) {
  void *target = target_of(flag, options);
  switch (flag->kind) {
    case MLX_FLAG_SWITCH: return set_switch(target, name, text);
    case MLX_FLAG_TEXT: return set_text(flag, target, name, text);
    case MLX_FLAG_INT: return set_int(flag, target, name, text);
    case MLX_FLAG_NUMBER: return set_number(flag, target, name, text);
    case MLX_FLAG_LIST: return add_to_list(target, name, text);
    case MLX_FLAG_INTS: return set_ints(flag, target, name, text);
    case MLX_FLAG_GROUP: break;
  }
  return mlx_error(MLX_INTERNAL, "'%s' is a heading, not a flag", flag->help);
}

mlx_status_t mlx_flags_read(const mlx_flag_t *flags, int argc, char **argv, int *inout_index, void *options,
                            mlx_origin_t *origins) {
  char name[MLX_FLAG_NAME];
  const char *text;
  mlx_flag_split(argv[*inout_index], name, &text);
  const mlx_flag_t *flag = find_flag(flags, name);
  if (!flag) return mlx_error(MLX_INTERNAL, "option '%s' is not in the table", name);
  origins[flag - flags].kind = MLX_FROM_COMMAND_LINE;
  if (flag->kind == MLX_FLAG_SWITCH) {
    const char *next = !text && *inout_index + 1 < argc ? argv[*inout_index + 1] : "";
    const bool python = !strcmp(next, "True") || !strcmp(next, "False");  // mlx-lm: --verbose False
    if (python) text = next[0] == 'T' ? "true" : "false";
    *inout_index += python;
    return mlx_flag_set(flag, options, name, text ? text : "true");
  }
  if (!text && *inout_index + 1 < argc) text = argv[++*inout_index];
  if (!text) return mlx_error(MLX_USAGE, "option %s needs a value: %s %s", name, name, flag->value);
  return mlx_flag_set(flag, options, name, text);
}
