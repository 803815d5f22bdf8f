#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"
#include "compiler/compile.h"

#define MAX_NAMES 128

// ---------------------------------------------------------------------------------------------------------------------
// Parsing

// The names of a row, one after the other: "-c, --ctx" gives -c, then --ctx.
static const char *next_name(const char **cursor, char *out, size_t size) {
  while (**cursor == ',' || **cursor == ' ') ++*cursor;
  size_t length = strcspn(*cursor, ", ");
  if (!length || length >= size) return NULL;
  memcpy(out, *cursor, length);
  out[length] = 0;
  *cursor += length;
  return out;
}

static const mlx_flag_t *find_flag(const mlx_flag_t *flags, const char *word) {
  char name[32];
  for (; flags->names; ++flags) {
    for (const char *cursor = flags->names; next_name(&cursor, name, sizeof name);) {
      if (!strcmp(name, word)) return flags;
    }
  }
  return NULL;
}

static mlx_status_t unknown_flag(const mlx_flag_t *flags, const char *word) {
  static char storage[MAX_NAMES][32];
  const char *names[MAX_NAMES + 1] = {0};
  size_t count = 0;
  for (; flags->names; ++flags) {
    for (const char *cursor = flags->names; count < MAX_NAMES && next_name(&cursor, storage[count], 32); ++count) {
      names[count] = storage[count];
    }
  }
  const char *nearest = mlx_nearest_name(word, names);
  mlx_status_t status = mlx_error(MLX_USAGE, "unknown option '%s'", word);
  if (nearest) return mlx_status_hint(status, "did you mean '%s'?", nearest);
  return mlx_status_hint(status, "--help lists the options");
}

static mlx_status_t add_to_list(mlx_flag_list_t *list, const char *word, const char *value) {
  if (list->count == MLX_MAX_LIST) return mlx_error(MLX_USAGE, "option %s was given more than %d times", word, MLX_MAX_LIST);
  list->items[list->count++] = value;
  return NULL;
}

static mlx_status_t set_number(const mlx_flag_t *flag, const char *word, const char *value) {
  char *end;
  const double number = strtod(value, &end);
  if (end == value || *end || !(number >= (double)flag->min && number <= (double)flag->max)) {
    return mlx_error(MLX_USAGE, "option %s wants a number from %lld to %lld, not '%s'", word, (long long)flag->min,
                     (long long)flag->max, value);
  }
  *(double *)flag->target = number;
  return NULL;
}

static mlx_status_t set_flag(const mlx_flag_t *flag, const char *word, const char *value) {
  if (flag->kind == MLX_FLAG_TEXT) {
    *(const char **)flag->target = value;
    return NULL;
  }
  if (flag->kind == MLX_FLAG_LIST) return add_to_list(flag->target, word, value);
  if (flag->kind == MLX_FLAG_NUMBER) return set_number(flag, word, value);
  char *end;
  errno = 0;
  long long number = strtoll(value, &end, 10);
  if (errno || end == value || *end || number < flag->min || number > flag->max) {
    return mlx_error(MLX_USAGE, "option %s wants a whole number from %lld to %lld, not '%s'", word, (long long)flag->min,
                     (long long)flag->max, value);
  }
  *(int64_t *)flag->target = number;
  return NULL;
}

static void print_flags(const char *usage, const mlx_flag_t *flags) {
  printf("%s\n\n", usage);
  for (; flags->names; ++flags) {
    char left[64];
    snprintf(left, sizeof left, "%s%s%s", flags->names, flags->value ? " " : "", flags->value ? flags->value : "");
    printf("  %-30s %s\n", left, flags->help);
  }
  printf("  %-30s %s\n  %-30s %s\n", "-h, --help", "this text", "--version", "the version");
}

mlx_status_t mlx_flags_parse(const char *usage, const mlx_flag_t *flags, int argc, char **argv, const char **words,
                             size_t max_words, size_t *out_word_count, bool *out_help) {
  *out_word_count = 0;
  *out_help = false;
  bool only_words = false;
  for (int i = 0; i < argc; ++i) {
    const char *word = argv[i];
    if (only_words || word[0] != '-' || !word[1]) {
      if (*out_word_count == max_words) return mlx_error(MLX_USAGE, "unexpected word '%s'", word);
      words[(*out_word_count)++] = word;
      continue;
    }
    if (!strcmp(word, "--")) {
      only_words = true;
      continue;
    }
    if (!strcmp(word, "--version")) {
      puts("mlxcel " MLXCEL_VERSION);
      *out_help = true;
      return NULL;
    }
    if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
      print_flags(usage, flags);
      *out_help = true;
      return NULL;
    }
    char name[32];
    const char *equals = strncmp(word, "--", 2) ? NULL : strchr(word, '=');
    snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - word) : (int)strlen(word), word);
    const mlx_flag_t *flag = find_flag(flags, name);
    if (!flag) return unknown_flag(flags, name);
    if (flag->kind == MLX_FLAG_SWITCH) {
      if (equals) return mlx_error(MLX_USAGE, "option %s takes no value", name);
      *(bool *)flag->target = true;
      continue;
    }
    const char *value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
    if (!value) return mlx_error(MLX_USAGE, "option %s wants a value: %s %s", name, name, flag->value);
    MLX_TRY(set_flag(flag, name, value));
  }
  return NULL;
}

int64_t mlx_context_option(int64_t flag) { return flag < 0 ? 0 : flag == 0 ? MLX_CONTEXT_OF_MODEL : flag; }
