// mlxcel completion: a script for a shell, made from the verb and flag tables. What it completes: verbs, the
// words a verb takes, flags, the values of flags that have a list of them, and files where a path is wanted.
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"

typedef void (*flag_fn_t)(mlx_text_t *out, const char *verb, const mlx_flag_t *flag);

static void each_flag(mlx_text_t *out, const mlx_verb_text_t *verb, flag_fn_t put) {
  for (const mlx_flag_t *flag = verb->flags; flag->names; ++flag) {
    if (flag->kind != MLX_FLAG_GROUP) put(out, verb->verb->name, flag);
  }
  for (const mlx_flag_t *flag = mlx_common_flags; flag->names; ++flag) put(out, verb->verb->name, flag);
}

// What a verb's first word may be, from "usage: mlxcel cache list|clear|path": the words between bars, or a
// path.
typedef struct words {
  char choices[256];  // "list clear path"; "": none
  bool path;
} words_t;

static words_t words_of(const mlx_verb_text_t *verb) {
  words_t words = {0};
  const mlx_usage_parts_t parts = mlx_usage_split(verb->usage);
  char word[sizeof words.choices];
  const size_t skipped = strlen("mlxcel ") + strlen(verb->verb->name) + 1;
  if ((size_t)parts.synopsis_length < skipped) return words;
  const char *from = parts.synopsis + skipped + (parts.synopsis[skipped] == '[');
  snprintf(word, sizeof word, "%.*s", (int)strcspn(from, " ]\n"), from);
  words.path = mlx_flag_is_path(word);
  if (!strcmp(word, "VERB")) {
    for (size_t i = 0; mlx_verb_at(i); ++i) {
      const size_t length = strlen(words.choices);
      snprintf(words.choices + length, sizeof words.choices - length, "%s%s", length ? " " : "",
               mlx_verb_at(i)->name);
    }
  } else if (strchr(word, '|')) {
    for (char *bar = word; (bar = strchr(bar, '|'));) *bar = ' ';
    memcpy(words.choices, word, sizeof word);
  }
  return words;
}

// The choices of a flag with blanks between; those that stand for others (cpu:LEVEL) are none to type.
static void put_choices(mlx_text_t *out, const char *value) {
  char choice[MLX_FLAG_NAME];
  const char *blank = "";
  for (const char *cursor = value; mlx_flag_next_choice(&cursor, choice);) {
    if (strpbrk(choice, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")) continue;
    mlx_text_printf(out, "%s%s", blank, choice);
    blank = " ";
  }
}

static bool has_choices(const mlx_flag_t *flag) { return flag->value && strchr(flag->value, '|'); }

// |text| inside single quotes of a POSIX shell (fish: a quote is escaped instead), with a backslash before
// each of |special|.
static void put_quoted(mlx_text_t *out, const char *text, const char *special, bool fish) {
  for (; *text; ++text) {
    if (*text == '\'') {
      mlx_text_puts(out, fish ? "\\'" : "'\\''");
    } else {
      if (strchr(special, *text)) mlx_text_puts(out, "\\");
      mlx_text_append(out, text, 1);
    }
  }
}

// ----------------------------------------------------------------------------------------------------------
// bash

static void bash_names(mlx_text_t *out, const char *verb, const mlx_flag_t *flag) {
  (void)verb;
  char name[MLX_FLAG_NAME];
  for (const char *cursor = flag->names; mlx_flag_next_name(&cursor, name);)
    mlx_text_printf(out, " %s", name);
}

// "run:-m|run:--model) files=1 ;;"
static void bash_value(mlx_text_t *out, const char *verb, const mlx_flag_t *flag) {
  char name[MLX_FLAG_NAME];
  const char *bar = "    ";
  if (!flag->value) return;
  for (const char *cursor = flag->names; mlx_flag_next_name(&cursor, name); bar = "|")
    mlx_text_printf(out, "%s%s:%s", bar, verb, name);
  mlx_text_puts(out, ") wants_value=1");
  if (mlx_flag_is_path(flag->value)) mlx_text_puts(out, " files=1");
  if (has_choices(flag)) {
    mlx_text_puts(out, " values='");
    put_choices(out, flag->value);
    mlx_text_puts(out, "'");
  }
  mlx_text_puts(out, " ;;\n");
}

static mlx_status_t bash_verb_values(void *user, const mlx_verb_text_t *verb) {
  each_flag(user, verb, bash_value);
  return NULL;
}

static mlx_status_t bash_verb_words(void *user, const mlx_verb_text_t *verb) {
  mlx_text_t *out = user;
  const words_t words = words_of(verb);
  mlx_text_printf(out, "    %s) flags='", verb->verb->name);
  each_flag(out, verb, bash_names);
  mlx_text_printf(out, "' words='%s'%s ;;\n", words.choices, words.path ? " files=1" : "");
  return NULL;
}

static mlx_status_t put_bash(mlx_text_t *out) {
  mlx_text_puts(out,
                "# bash completion for mlxcel: put this line into ~/.bashrc\n"
                "#   source <(mlxcel completion bash)\n"
                "_mlxcel() {\n"
                "  local cur=${COMP_WORDS[COMP_CWORD]} prev='' verb=${COMP_WORDS[0]##*/} first=1 values='' "
                "words='' flags='' files='' wants_value=''\n"
                "  COMPREPLY=()\n"
                "  case $verb in\n"
                "    mlxcel-*) verb=${verb#mlxcel-} ;;\n"
                "    *) first=2 verb=${COMP_WORDS[1]} ;;\n"
                "  esac\n"
                "  [ \"$COMP_CWORD\" -gt 0 ] && prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                "  if [ \"$cur\" = = ]; then  # --device=<here>\n"
                "    cur=''\n"
                "  elif [ \"$prev\" = = ] && [ \"$COMP_CWORD\" -gt 1 ]; then  # --device=c<here>\n"
                "    prev=${COMP_WORDS[COMP_CWORD-2]}\n"
                "  fi\n"
                "  if [ \"$COMP_CWORD\" -lt \"$first\" ]; then\n"
                "    COMPREPLY=($(compgen -W '--help --version");
  for (size_t i = 0; mlx_verb_at(i); ++i) mlx_text_printf(out, " %s", mlx_verb_at(i)->name);
  mlx_text_puts(out, "' -- \"$cur\"))\n    return\n  fi\n  case $verb:$prev in\n");
  MLX_TRY(mlx_verb_describe(NULL, bash_verb_values, out));
  mlx_text_puts(out, "  esac\n  [ \"$wants_value\" ] || case $verb in\n");
  MLX_TRY(mlx_verb_describe(NULL, bash_verb_words, out));
  mlx_text_puts(
      out,
      "  esac\n"
      "  case $cur in\n"
      "    -*) [ \"$wants_value\" ] || { COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\")); return; } ;;\n"
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$values $words\" -- \"$cur\"))\n"
      "  if [ \"$files\" ]; then\n"
      "    compopt -o filenames 2>/dev/null\n"
      "    local IFS=$'\\n'\n"
      "    COMPREPLY+=($(compgen -f -- \"$cur\"))\n"
      "  fi\n"
      "}\n"
      "complete -F _mlxcel mlxcel");
  for (size_t i = 0; mlx_verb_at(i); ++i) mlx_text_printf(out, " mlxcel-%s", mlx_verb_at(i)->name);
  mlx_text_puts(out, "\n");
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// zsh

// "'(-m --model)'{-m,--model}'[help]:MODEL:_files'"
static void zsh_flag(mlx_text_t *out, const char *verb, const mlx_flag_t *flag) {
  (void)verb;
  char name[MLX_FLAG_NAME];
  const char *comma = "";
  const bool several = strchr(flag->names, ',') != NULL, again = flag->kind == MLX_FLAG_LIST;
  mlx_text_puts(out, "        ");
  if (several && !again) {
    mlx_text_puts(out, "'(");
    for (const char *cursor = flag->names; mlx_flag_next_name(&cursor, name); comma = " ")
      mlx_text_printf(out, "%s%s", comma, name);
    mlx_text_puts(out, ")'");
  }
  if (again) mlx_text_puts(out, "\\*");
  mlx_text_puts(out, several ? "{" : "");
  comma = "";
  for (const char *cursor = flag->names; mlx_flag_next_name(&cursor, name); comma = ",")
    mlx_text_printf(out, "%s%s", comma, name);
  mlx_text_puts(out, several ? "}'[" : "'[");
  put_quoted(out, flag->help, "[]\\", false);
  mlx_text_puts(out, "]");
  if (flag->value) {
    mlx_text_puts(out, ":");
    put_quoted(out, has_choices(flag) ? "value" : flag->value, ":\\", false);
    mlx_text_puts(out, ":");
  }
  if (has_choices(flag)) {
    mlx_text_puts(out, "(");
    put_choices(out, flag->value);
    mlx_text_puts(out, ")");
  } else if (mlx_flag_is_path(flag->value)) {
    mlx_text_puts(out, "_files");
  }
  mlx_text_puts(out, "' \\\n");
}

static mlx_status_t zsh_verb(void *user, const mlx_verb_text_t *verb) {
  mlx_text_t *out = user;
  const words_t words = words_of(verb);
  mlx_text_printf(out, "    %s)\n      _arguments -S \\\n", verb->verb->name);
  each_flag(out, verb, zsh_flag);
  if (words.choices[0]) {
    mlx_text_printf(out, "        '1:word:(%s)'\n", words.choices);
  } else {
    mlx_text_puts(out, words.path ? "        '*:file:_files'\n" : "        && return\n");
  }
  mlx_text_puts(out, "      ;;\n");
  return NULL;
}

static mlx_status_t put_zsh(mlx_text_t *out) {
  mlx_text_puts(out, "#compdef mlxcel");
  for (size_t i = 0; mlx_verb_at(i); ++i) mlx_text_printf(out, " mlxcel-%s", mlx_verb_at(i)->name);
  mlx_text_puts(out,
                "\n# zsh completion for mlxcel: write it to a file _mlxcel in a folder of $fpath, or put "
                "this line into ~/.zshrc after compinit\n"
                "#   source <(mlxcel completion zsh)\n"
                "_mlxcel() {\n"
                "  local verb=${${words[1]:t}#mlxcel-}\n"
                "  if [[ $verb == mlxcel ]]; then\n"
                "    if (( CURRENT == 2 )); then\n"
                "      local -a verbs=(\n");
  for (size_t i = 0; mlx_verb_at(i); ++i) {
    mlx_text_printf(out, "        '%s:", mlx_verb_at(i)->name);
    put_quoted(out, mlx_verb_at(i)->summary, ":\\", false);
    mlx_text_puts(out, "'\n");
  }
  mlx_text_puts(out,
                "      )\n"
                "      _describe verb verbs\n"
                "      return\n"
                "    fi\n"
                "    shift words\n"
                "    (( CURRENT-- ))\n"
                "    verb=$words[1]\n"
                "  fi\n"
                "  case $verb in\n");
  MLX_TRY(mlx_verb_describe(NULL, zsh_verb, out));
  mlx_text_puts(out,
                "  esac\n"
                "}\n"
                "if [[ $funcstack[1] == _mlxcel ]]; then _mlxcel \"$@\"; else compdef _mlxcel mlxcel");
  for (size_t i = 0; mlx_verb_at(i); ++i) mlx_text_printf(out, " mlxcel-%s", mlx_verb_at(i)->name);
  mlx_text_puts(out, "; fi\n");
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// fish

static void fish_flag(mlx_text_t *out, const char *verb, const mlx_flag_t *flag) {
  char name[MLX_FLAG_NAME];
  mlx_text_printf(out, "complete -c mlxcel -n '__fish_seen_subcommand_from %s'", verb);
  for (const char *cursor = flag->names; mlx_flag_next_name(&cursor, name);) {
    const bool is_long = name[1] == '-';
    mlx_text_printf(out, " -%c %s", is_long ? 'l' : name[2] ? 'o' : 's', name + (is_long ? 2 : 1));
  }
  if (has_choices(flag)) {
    mlx_text_puts(out, " -x -a '");
    put_choices(out, flag->value);
    mlx_text_puts(out, "'");
  } else if (flag->value) {
    mlx_text_puts(out, mlx_flag_is_path(flag->value) ? " -r -F" : " -x");
  }
  mlx_text_puts(out, " -d '");
  put_quoted(out, flag->help, "\\", true);
  mlx_text_puts(out, "'\n");
}

static mlx_status_t fish_verb(void *user, const mlx_verb_text_t *verb) {
  mlx_text_t *out = user;
  const words_t words = words_of(verb);
  mlx_text_printf(out, "complete -c mlxcel -n __fish_use_subcommand -a %s -d '", verb->verb->name);
  put_quoted(out, verb->verb->summary, "\\", true);
  mlx_text_puts(out, "'\n");
  if (words.choices[0])
    mlx_text_printf(out, "complete -c mlxcel -n '__fish_seen_subcommand_from %s' -a '%s'\n", verb->verb->name,
                    words.choices);
  if (words.path)
    mlx_text_printf(out, "complete -c mlxcel -n '__fish_seen_subcommand_from %s' -F\n", verb->verb->name);
  each_flag(out, verb, fish_flag);
  return NULL;
}

static mlx_status_t put_fish(mlx_text_t *out) {
  mlx_text_puts(out,
                "# fish completion for mlxcel: write it to ~/.config/fish/completions/mlxcel.fish\n"
                "complete -c mlxcel -f\n");
  return mlx_verb_describe(NULL, fish_verb, out);
}

// ----------------------------------------------------------------------------------------------------------
// The verb

mlx_status_t mlx_cli_completion(int argc, char **argv) {
  static const struct {
    const char *name;
    mlx_status_t (*put)(mlx_text_t *out);
  } shells[] = {{"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};
  const mlx_flag_t table[] = {{0}};
  const char *shell = NULL;
  size_t words;
  bool help;
  MLX_TRY(
      mlx_flags_parse("usage: mlxcel completion bash|zsh|fish\n\n"
                      "Prints a script that completes verbs, options, their values and files.\n\n"
                      "examples:\n"
                      "  source <(mlxcel completion bash)\n"
                      "  mlxcel completion zsh > ~/.zfunc/_mlxcel\n"
                      "  mlxcel completion fish > ~/.config/fish/completions/mlxcel.fish",
                      table, argc, argv, &shell, 1, &words, &help));
  if (help) return NULL;
  for (size_t i = 0; shell && i < sizeof shells / sizeof *shells; ++i) {
    if (strcmp(shell, shells[i].name)) continue;
    mlx_text_t script = {0};
    mlx_status_t status = mlx_status_join(shells[i].put(&script), mlx_text_finish(&script));
    if (!status && fwrite(script.data, 1, script.length, stdout) != script.length)
      status = mlx_stdout_error();
    mlx_text_clear(&script);
    return status;
  }
  if (shell) return mlx_error(MLX_USAGE, "completion knows bash, zsh and fish, not '%s'", shell);
  return mlx_status_hint(mlx_error(MLX_USAGE, "completion wants a shell"),
                         "mlxcel completion bash, zsh or fish");
}
