// Flags: the tables, what a verb says about itself, and the command line.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"
#include "cli/config.h"
#include "compiler/compile.h"

#define MAX_NAMES 128  // of a verb's flags

// ----------------------------------------------------------------------------------------------------------
// Tables

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

bool mlx_flag_next_choice(const char **cursor, char out_choice[MLX_FLAG_NAME]) {
  if (!*cursor || (**cursor != '|' && !strchr(*cursor, '|')))
    return false;  // past the first, a choice begins with its bar
  return next_part(cursor, "|", out_choice);
}

bool mlx_flag_is_path(const char *value) {
  static const char *const paths[] = {"FILE", "FOLDER", "OUT", "MODEL"};
  for (size_t i = 0; value && i < sizeof paths / sizeof *paths; ++i) {
    if (!strcmp(value, paths[i])) return true;
  }
  return false;
}

static struct {  // who wants to hear what the verb says about itself, instead of having its flags read
  const mlx_verb_t *verb;
  mlx_verb_visit_fn_t visit;
  void *user;
} listener;

mlx_status_t mlx_verb_describe(const mlx_verb_t *verb, mlx_verb_visit_fn_t visit, void *user) {
  for (size_t i = 0; !verb && mlx_verb_at(i); ++i) MLX_TRY(mlx_verb_describe(mlx_verb_at(i), visit, user));
  if (!verb) return NULL;
  const __typeof__(listener) before = listener;
  listener.verb = verb;
  listener.visit = visit;
  listener.user = user;
  mlx_status_t status = verb->run(0, NULL);
  listener = before;
  return status;
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

static mlx_status_t unknown_flag(const mlx_flag_t *flags, const char *word) {
  static char storage[MAX_NAMES][MLX_FLAG_NAME];
  const char *names[MAX_NAMES + 1] = {0};
  size_t count = 0;
  for (; flags->names; ++flags) {
    for (const char *cursor = flags->names; count < MAX_NAMES && mlx_flag_next_name(&cursor, storage[count]);
         ++count) {
      names[count] = storage[count];
    }
  }
  const char *nearest = mlx_nearest_name(word, names);
  mlx_status_t status = mlx_error(MLX_USAGE, "unknown option '%s'", word);
  if (nearest) return mlx_status_hint(status, "did you mean '%s'?", nearest);
  return mlx_status_hint(status, "--help lists the options");
}

// ----------------------------------------------------------------------------------------------------------
// Values

static mlx_status_t add_to_list(mlx_flag_list_t *list, const char *word, const char *value) {
  if (list->count == MLX_MAX_LIST)
    return mlx_error(MLX_USAGE, "option %s was given more than %d times", word, MLX_MAX_LIST);
  list->items[list->count++] = value;
  return NULL;
}

static mlx_status_t set_number(const mlx_flag_t *flag, const char *word, const char *value) {
  char *end;
  const double number = strtod(value, &end);
  if (end == value || *end || !(number >= (double)flag->min && number <= (double)flag->max)) {
    return mlx_error(MLX_USAGE, "option %s wants a number from %lld to %lld, not '%s'", word,
                     (long long)flag->min, (long long)flag->max, value);
  }
  *(double *)flag->target = number;
  return NULL;
}

// "md, csv, json or jsonl"
static void list_choices(const char *value, mlx_text_t *out) {
  char choice[MLX_FLAG_NAME];
  for (const char *cursor = value; mlx_flag_next_choice(&cursor, choice);) {
    mlx_text_printf(out, "%s%s", !out->length ? "" : *cursor ? ", " : " or ", choice);
  }
}

static mlx_status_t set_text(const mlx_flag_t *flag, const char *word, const char *value) {
  char choice[MLX_FLAG_NAME];
  bool open = !strchr(flag->value, '|') || strpbrk(flag->value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
  for (const char *cursor = flag->value; !open && mlx_flag_next_choice(&cursor, choice);)
    open = !strcmp(choice, value);
  *(const char **)flag->target = value;
  if (open) return NULL;
  mlx_text_t choices = {0};
  list_choices(flag->value, &choices);
  mlx_status_t status = mlx_error(MLX_USAGE, "option %s wants %s, not '%s'", word,
                                  choices.data ? choices.data : flag->value, value);
  mlx_text_clear(&choices);
  return status;
}

static mlx_status_t set_ints(const mlx_flag_t *flag, const char *word, const char *value) {
  mlx_flag_ints_t *ints = flag->target;
  const char *cursor = value;
  for (ints->count = 0; cursor; ++ints->count) {
    char *end;
    errno = 0;
    const long long number = strtoll(cursor, &end, 10);
    if (errno || end == cursor || (*end && *end != ',') || number < flag->min || number > flag->max ||
        ints->count == MLX_MAX_INTS) {
      return mlx_error(
          MLX_USAGE,
          "option %s wants up to %d whole numbers from %lld to %lld with commas between them, not '%s'", word,
          MLX_MAX_INTS, (long long)flag->min, (long long)flag->max, value);
    }
    ints->items[ints->count] = number;
    cursor = *end ? end + 1 : NULL;
  }
  return NULL;
}

static mlx_status_t set_switch(const mlx_flag_t *flag, const char *word, const char *value) {
  static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
  for (size_t i = 0; i < sizeof words / sizeof *words; ++i) {
    if (strcmp(value, words[i])) continue;
    *(bool *)flag->target = i % 2;
    return NULL;
  }
  return mlx_error(MLX_USAGE, "option %s wants true or false, not '%s'", word, value);
}

mlx_status_t mlx_flag_set(const mlx_flag_t *flag, const char *word, const char *value) {
  if (flag->kind == MLX_FLAG_SWITCH) return set_switch(flag, word, value);
  if (flag->kind == MLX_FLAG_TEXT) return set_text(flag, word, value);
  if (flag->kind == MLX_FLAG_LIST) return add_to_list(flag->target, word, value);
  if (flag->kind == MLX_FLAG_INTS) return set_ints(flag, word, value);
  if (flag->kind == MLX_FLAG_NUMBER) return set_number(flag, word, value);
  char *end;
  errno = 0;
  long long number = strtoll(value, &end, 10);
  if (errno || end == value || *end || number < flag->min || number > flag->max) {
    return mlx_error(MLX_USAGE, "option %s wants a whole number from %lld to %lld, not '%s'", word,
                     (long long)flag->min, (long long)flag->max, value);
  }
  *(int64_t *)flag->target = number;
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// The command line

// The flag |argv|[*inout_index] is, and its value after it or behind its '='.
static mlx_status_t read_flag(const mlx_flag_t *flags, int argc, char **argv, int *inout_index,
                              mlx_origin_t *origins) {
  const char *word = argv[*inout_index], *equals = strncmp(word, "--", 2) ? NULL : strchr(word, '=');
  char name[MLX_FLAG_NAME];
  snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - word) : (int)strlen(word), word);
  const mlx_flag_t *flag = find_flag(flags, name);
  if (!flag) return unknown_flag(flags, name);
  origins[flag - flags].kind = MLX_FROM_COMMAND_LINE;
  if (flag->kind == MLX_FLAG_SWITCH) return set_switch(flag, name, equals ? equals + 1 : "true");
  const char *value = equals ? equals + 1 : *inout_index + 1 < argc ? argv[++*inout_index] : NULL;
  if (!value) return mlx_error(MLX_USAGE, "option %s wants a value: %s %s", name, name, flag->value);
  return mlx_flag_set(flag, name, value);
}

// True when |word| only asks what there is, and got its answer.
static bool answer(const char *usage, const mlx_flag_t *flags, const char *word) {
  const bool all = !strcmp(word, "--help-all");
  if (!strcmp(word, "--version")) {
    puts("mlxcel " MLXCEL_VERSION);
  } else if (all || !strcmp(word, "--help") || !strcmp(word, "-h")) {
    mlx_help_print(usage, flags, all);
  } else {
    return false;
  }
  return true;
}

// "usage: mlxcel run -m MODEL" is of the verb run.
static void verb_of_usage(const char *usage, char out[MLX_FLAG_NAME]) {
  const char *cursor = mlx_usage_split(usage).synopsis;
  out[0] = 0;
  for (int i = 0; i < 2; ++i) next_part(&cursor, " \n", out);
}

mlx_status_t mlx_flags_parse(const char *usage, const mlx_flag_t *flags, int argc, char **argv,
                             const char **words, size_t max_words, size_t *out_word_count, bool *out_help) {
  *out_word_count = 0;
  *out_help = listener.visit != NULL;
  if (listener.visit) return listener.visit(listener.user, &(mlx_verb_text_t){listener.verb, usage, flags});
  bool only_words = false, with_file = true;
  mlx_origin_t origins[MAX_NAMES] = {0};
  size_t rows = 0;
  while (flags[rows].names) ++rows;
  if (rows > MAX_NAMES) return mlx_error(MLX_INTERNAL, "a verb has %zu flags", rows);
  for (int i = 0; i < argc; ++i) {
    const char *word = argv[i];
    if (only_words || word[0] != '-' || !word[1]) {
      if (*out_word_count == max_words) return mlx_error(MLX_USAGE, "unexpected word '%s'", word);
      words[(*out_word_count)++] = word;
    } else if (!strcmp(word, "--")) {
      only_words = true;
    } else if (!strcmp(word, "--no-config")) {
      with_file = false;
    } else if (answer(usage, flags, word)) {
      *out_help = true;
      return NULL;
    } else {
      MLX_TRY(read_flag(flags, argc, argv, &i, origins));
    }
  }
  char verb[MLX_FLAG_NAME];
  verb_of_usage(usage, verb);
  return mlx_config_apply(verb, flags, with_file, origins);
}

int64_t mlx_context_option(int64_t flag) { return flag < 0 ? 0 : flag == 0 ? MLX_CONTEXT_OF_MODEL : flag; }
