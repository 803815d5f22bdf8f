// mlxcel completion: prints a completion script for a shell, generated from the verb and flag tables. A
// script completes verbs, a verb's first argument, flags, values of flags with a fixed list, and file names.
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/help.h"
#include "cli/parse.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

typedef const mlx_verb_t *const *verbs_t;  // all verbs, ending with NULL
typedef void (*flag_fn_t)(mlx_text_t *out, const char *verb, const mlx_flag_t *flag);

static void each_flag(mlx_text_t *out, const mlx_verb_t *verb, flag_fn_t put) {
  for (const mlx_flag_t *flag = verb->flags; flag->names; ++flag) {
    if (flag->kind != MLX_FLAG_GROUP) put(out, verb->name, flag);
  }
  for (const mlx_flag_t *flag = mlx_common_flags; flag->names; ++flag) put(out, verb->name, flag);
}

// The possible values of a verb's first argument, from "usage: mlxcel cache list|clear|path": fixed words or
// a path.
typedef struct words {
  char choices[256];  // "list clear path"; "" if there are none
  bool path;
} words_t;

static words_t words_of(verbs_t verbs, const mlx_verb_t *verb) {
  words_t words = {0};
  const mlx_usage_parts_t parts = mlx_usage_split(verb->usage);
  char word[sizeof words.choices];
  const size_t skipped = strlen("mlxcel ") + strlen(verb->name) + 1;
  if ((size_t)parts.synopsis_length < skipped) return words;
  const char *from = parts.synopsis + skipped + (parts.synopsis[skipped] == '[');
  snprintf(word, sizeof word, "%.*s", (int)strcspn(from, " ]\n"), from);
  words.path = mlx_flag_is_path(word);
  if (!strcmp(word, "VERB")) {
    for (; *verbs; ++verbs) {
      const size_t length = strlen(words.choices);
      snprintf(words.choices + length, sizeof words.choices - length, "%s%s", length ? " " : "",
               (*verbs)->name);
    }
  } else if (strchr(word, '|')) {
    for (char *bar = word; (bar = strchr(bar, '|'));) *bar = ' ';
    memcpy(words.choices, word, sizeof word);
  }
  return words;
}

// The choices of a flag, separated by spaces, without placeholders such as cpu:LEVEL.
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

// Escapes |text| for single quotes of a POSIX shell or of fish, and puts a backslash before each of
// |special|.
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

static void bash_verb_words(mlx_text_t *out, verbs_t verbs, const mlx_verb_t *verb) {
  const words_t words = words_of(verbs, verb);
  mlx_text_printf(out, "    %s) flags='", verb->name);
  each_flag(out, verb, bash_names);
  mlx_text_printf(out, "' words='%s'%s ;;\n", words.choices, words.path ? " files=1" : "");
}

static void put_names(mlx_text_t *out, verbs_t verbs, const char *prefix) {
  for (; *verbs; ++verbs) mlx_text_printf(out, " %s%s", prefix, (*verbs)->name);
}

static void put_bash(mlx_text_t *out, verbs_t verbs) {
  mlx_text_puts(out,
                "# bash completion for mlxcel: add this line to ~/.bashrc\n"
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
  put_names(out, verbs, "");
  mlx_text_puts(out, "' -- \"$cur\"))\n    return\n  fi\n  case $verb:$prev in\n");
  for (size_t i = 0; verbs[i]; ++i) each_flag(out, verbs[i], bash_value);
  mlx_text_puts(out, "  esac\n  [ \"$wants_value\" ] || case $verb in\n");
  for (size_t i = 0; verbs[i]; ++i) bash_verb_words(out, verbs, verbs[i]);
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
  put_names(out, verbs, "mlxcel-");
  mlx_text_puts(out, "\n");
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

static void zsh_verb(mlx_text_t *out, verbs_t verbs, const mlx_verb_t *verb) {
  const words_t words = words_of(verbs, verb);
  mlx_text_printf(out, "    %s)\n      _arguments -S \\\n", verb->name);
  each_flag(out, verb, zsh_flag);
  if (words.choices[0]) {
    mlx_text_printf(out, "        '1:word:(%s)'\n", words.choices);
  } else {
    mlx_text_puts(out, words.path ? "        '*:file:_files'\n" : "        && return\n");
  }
  mlx_text_puts(out, "      ;;\n");
}

static void put_zsh(mlx_text_t *out, verbs_t verbs) {
  mlx_text_puts(out, "#compdef mlxcel");
  put_names(out, verbs, "mlxcel-");
  mlx_text_puts(out,
                "\n# zsh completion for mlxcel: write it to a file _mlxcel in a folder of $fpath, or add "
                "this line to ~/.zshrc after compinit\n"
                "#   source <(mlxcel completion zsh)\n"
                "_mlxcel() {\n"
                "  local verb=${${words[1]:t}#mlxcel-}\n"
                "  if [[ $verb == mlxcel ]]; then\n"
                "    if (( CURRENT == 2 )); then\n"
                "      local -a verbs=(\n");
  for (size_t i = 0; verbs[i]; ++i) {
    mlx_text_printf(out, "        '%s:", verbs[i]->name);
    put_quoted(out, verbs[i]->summary, ":\\", false);
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
  for (size_t i = 0; verbs[i]; ++i) zsh_verb(out, verbs, verbs[i]);
  mlx_text_puts(out,
                "  esac\n"
                "}\n"
                "if [[ $funcstack[1] == _mlxcel ]]; then _mlxcel \"$@\"; else compdef _mlxcel mlxcel");
  put_names(out, verbs, "mlxcel-");
  mlx_text_puts(out, "; fi\n");
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

static void fish_verb(mlx_text_t *out, verbs_t verbs, const mlx_verb_t *verb) {
  const words_t words = words_of(verbs, verb);
  mlx_text_printf(out, "complete -c mlxcel -n __fish_use_subcommand -a %s -d '", verb->name);
  put_quoted(out, verb->summary, "\\", true);
  mlx_text_puts(out, "'\n");
  if (words.choices[0])
    mlx_text_printf(out, "complete -c mlxcel -n '__fish_seen_subcommand_from %s' -a '%s'\n", verb->name,
                    words.choices);
  if (words.path)
    mlx_text_printf(out, "complete -c mlxcel -n '__fish_seen_subcommand_from %s' -F\n", verb->name);
  each_flag(out, verb, fish_flag);
}

static void put_fish(mlx_text_t *out, verbs_t verbs) {
  mlx_text_puts(out,
                "# fish completion for mlxcel: write it to ~/.config/fish/completions/mlxcel.fish\n"
                "complete -c mlxcel -f\n");
  for (size_t i = 0; verbs[i]; ++i) fish_verb(out, verbs, verbs[i]);
}

// ----------------------------------------------------------------------------------------------------------
// The verb

static mlx_status_t run(const mlx_command_line_t *line) {
  static const struct {
    const char *name;
    void (*put)(mlx_text_t *out, verbs_t verbs);
  } shells[] = {{"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};
  const char *shell = NULL;
  size_t words;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, NULL, &shell, 1, &words, &help));
  if (help) return NULL;
  for (size_t i = 0; shell && i < sizeof shells / sizeof *shells; ++i) {
    if (strcmp(shell, shells[i].name)) continue;
    mlx_text_t script = {0};
    shells[i].put(&script, line->verbs);
    mlx_status_t status = mlx_text_finish(&script);
    if (!status && fwrite(script.data, 1, script.length, stdout) != script.length)
      status = mlx_stdout_error();
    mlx_text_clear(&script);
    return status;
  }
  if (shell)
    return mlx_error(MLX_USAGE, "no completion for the shell '%s': expected bash, zsh or fish", shell);
  return mlx_status_hint(mlx_error(MLX_USAGE, "no shell was given"), "mlxcel completion bash, zsh or fish");
}

static const mlx_flag_t flags[] = {{0}};

const mlx_verb_t mlx_verb_completion = {
    .name = "completion",
    .summary = "print a script that completes this command line in a shell",
    .usage =
        "usage: mlxcel completion bash|zsh|fish\n\n"
        "Prints a script that completes verbs, options, their values and file names.\n\n"
        "examples:\n"
        "  source <(mlxcel completion bash)\n"
        "  mlxcel completion zsh > ~/.zfunc/_mlxcel\n"
        "  mlxcel completion fish > ~/.config/fish/completions/mlxcel.fish",
    .flags = flags,
    .run = run,
};
