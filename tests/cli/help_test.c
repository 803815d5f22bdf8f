// Output generated from the verb and flag tables: help that fits a screen, manual pages, shell completion and
// exit statuses.
#include "base/text.h"
#include "tests/support/check.h"
#include "tests/support/command.h"

static const char *const programs[] = {"/bin/sh",      "/bin/bash",      "/usr/bin/bash",
                                       "/usr/bin/zsh", "/bin/zsh",       "/usr/bin/fish",
                                       "/usr/bin/man", "/usr/bin/groff", "/usr/bin/mandoc"};

// NULL if the program is not installed.
static const char *find_program(const char *name) {
  for (size_t i = 0; i < sizeof programs / sizeof *programs; ++i) {
    if (!strcmp(strrchr(programs[i], '/') + 1, name) && !access(programs[i], X_OK)) return programs[i];
  }
  return NULL;
}

static void run_program(command_t *run, const char *const *argv) {
  command_start(run, argv);
  command_wait(run);
}

// The verbs, from `mlxcel --help`: two spaces, a name, spaces, a summary.
typedef struct verbs {
  char names[32][16];
  size_t count;
} verbs_t;

static verbs_t list_verbs(void) {
  verbs_t verbs = {0};
  command_t run;
  RUN(&run, "--help");
  CHECK_INT(run.exit_code, 0);
  const char *line = strstr(run.out, "\n\n  ");
  CHECK(line);
  for (line += 2; !strncmp(line, "  ", 2); line = strchr(line, '\n') + 1) {
    CHECK(verbs.count < 32);
    CHECK(sscanf(line, " %15s", verbs.names[verbs.count++]) == 1);
  }
  command_free(&run);
  return verbs;
}

typedef struct extent {
  int lines, columns;
} extent_t;

static extent_t measure(const char *text) {
  extent_t size = {0};
  int column = 0;
  for (; *text; ++text) {
    if (*text == '\n') {
      ++size.lines;
      column = 0;
    } else if (((unsigned char)*text & 0xc0) != 0x80 && ++column > size.columns) {
      size.columns = column;
    }
  }
  return size;
}

static void check_help(const char *verb, const char *columns, int max_columns, int max_lines) {
  command_t run;
  setenv("COLUMNS", columns, 1);
  RUN(&run, verb, "--help");
  unsetenv("COLUMNS");
  CHECK_INT(run.exit_code, 0);
  CHECK_TEXT(run.err, "");
  char usage[64];
  snprintf(usage, sizeof usage, "usage: mlxcel %s", verb);
  CHECK(!strncmp(run.out, usage, strlen(usage)));
  CHECK_CONTAINS(run.out, "\nexamples:\n  ");
  CHECK_CONTAINS(run.out, "Exit status: 0 success, 2 invalid command line");
  const extent_t size = measure(run.out);
  if (size.lines > max_lines || size.columns > max_columns) {
    CHECK_FAIL("%s --help takes %d lines of %d columns, more than %d of %d:\n%s", verb, size.lines,
               size.columns, max_lines, max_columns, run.out);
  }
  command_free(&run);
}

TEST(help_of_every_verb_fits_a_screen) {
  const verbs_t verbs = list_verbs();
  CHECK(verbs.count >= 10);
  for (size_t i = 0; i < verbs.count; ++i) {
    check_help(verbs.names[i], "100", 100, 40);
    check_help(verbs.names[i], "250", 100, 40);
    check_help(verbs.names[i], "80", 80, 56);  // a narrow screen needs more lines
  }
  command_t run;
  RUN(&run, "--help");
  const extent_t size = measure(run.out);
  CHECK(size.lines <= 44 && size.columns <= 100);
  command_free(&run);
}

// Each kind of source has a separate table row at any screen width.
TEST(sources_and_destinations_are_a_table) {
  command_t run;
  setenv("COLUMNS", "80", 1);
  RUN(&run, "pull", "--help");
  CHECK_CONTAINS(run.out,
                 "\nSOURCE is\n  hf:ORG/NAME[@REVISION]         a Hugging Face model: config, tokenizer,\n   "
                 "                              safetensors\n  hf:ORG/NAME[@REVISION]:QUANT   its ");
  CHECK_CONTAINS(
      run.out,
      "\n  oci-layout:FOLDER[:TAG]        the same in a folder with the OCI image layout\n\nPrints the "
      "path of the model. ");
  command_free(&run);
  RUN(&run, "push", "--help");
  CHECK_CONTAINS(run.out,
                 "\nDESTINATION is\n  oci://HOST[:PORT]/NAME[:TAG]   a name in a registry (TAG: latest)\n  "
                 "oci-layout:FOLDER[:TAG]        a folder with the OCI image layout\n\nBundles ");
  command_free(&run);
  unsetenv("COLUMNS");
}

TEST(help_all_explains_collapsed_options) {
  command_t brief, all, verb;
  RUN(&brief, "run", "--help");
  RUN(&all, "run", "--help-all");
  RUN(&verb, "help", "run");
  CHECK_TEXT(verb.out, brief.out);
  CHECK_CONTAINS(brief.out, "--xtc-probability P;");
  CHECK(!strstr(brief.out, "probability of removing the top tokens"));
  CHECK_CONTAINS(all.out, "probability of removing the top tokens");
  CHECK_CONTAINS(all.out, "sampling, penalties and grammars:\n");
  command_free(&brief);
  command_free(&all);
  command_free(&verb);
}

TEST(a_value_outside_the_choices_is_refused) {
  command_t run;
  RUN(&run, "bench", "-m", "x", "-o", "xml");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "option -o expects md, csv, json or jsonl, not 'xml'");
  command_free(&run);
  RUN(&run, "compile", "x",
      "--target=z80:16");  // "cpu:LEVEL" makes it an open list, which the compiler checks
  CHECK(!strstr(run.err, "option --target expects"));
  command_free(&run);
}

static void check_help_line(const char *verb, const char *line) {
  command_t run;
  RUN(&run, verb, "--help-all");
  CHECK_CONTAINS(run.out, line);
  command_free(&run);
}

TEST(shared_flags_have_one_help_text) {
  static const char *const verbs[] = {"run", "bench", "eval"};
  for (size_t i = 0; i < 3; ++i) {
    check_help_line(verbs[i], "weight format (default: auto: as stored, exact)\n");
    check_help_line(verbs[i], "quantize weights to 4 or 8 bits\n");
    check_help_line(verbs[i], "device to run on (default: auto: a usable GPU, else the CPU)\n");
  }
  check_help_line("compile", "weight format (default: auto: as stored, exact)\n");
  check_help_line("compile", "quantize weights to 4 or 8 bits\n");
  check_help_line("run", "keep the fewest tokens of total probability P (default: 0.95)\n");
}

TEST(verbs_that_print_on_stderr_have_quiet) {
  static const char *const verbs[] = {"run",  "compile",  "bench", "eval",  "show",
                                      "list", "template", "pull",  "push",  "keygen",
                                      "sign", "verify",   "trust", "cache", "doctor"};
  for (size_t i = 0; i < sizeof verbs / sizeof *verbs; ++i)
    check_help_line(verbs[i],
                    "  -q, --quiet                         print no progress, notes or timings on stderr\n");
}

// ----------------------------------------------------------------------------------------------------------
// Manual pages

TEST(every_exit_status_is_in_the_man_page_and_the_docs) {
  command_t man, help;
  char *docs;
  RUN(&man, "man");
  RUN(&help, "help", "exit");
  CHECK_OK(mlx_read_file(MLXCEL_SOURCE_DIR "/docs/errors.md", 1 << 20, &docs, NULL));
  int rows = 0;
  for (char *line = strstr(docs, "| 0 |"); line && !strncmp(line, "| ", 2);
       line = strchr(line, '\n') + 1, ++rows) {
    char meaning[256], row[300];
    int code;
    CHECK(sscanf(line, "| %d | %255[^|]", &code, meaning) == 2);
    meaning[strlen(meaning) - 1] = 0;  // the space before the bar
    CHECK_INT(code, rows > MLX_CANCELLED ? 130 : rows);
    snprintf(row, sizeof row, "%-3d %s\n", code, meaning);
    CHECK_CONTAINS(help.out, row);
    snprintf(row, sizeof row, "\n.B %d\n", code);
    CHECK_CONTAINS(man.out, row);
  }
  CHECK_INT(rows, MLX_CANCELLED + 2);  // 130 is Ctrl-C
  mlx_free(docs);
  command_free(&man);
  command_free(&help);
}

TEST(every_verb_and_variable_is_in_the_docs) {
  char *cli, *config;
  command_t man;
  CHECK_OK(mlx_read_file(MLXCEL_SOURCE_DIR "/docs/cli.md", 1 << 20, &cli, NULL));
  CHECK_OK(mlx_read_file(MLXCEL_SOURCE_DIR "/docs/config.md", 1 << 20, &config, NULL));
  const verbs_t verbs = list_verbs();
  for (size_t i = 0; i < verbs.count; ++i) {
    char heading[64];
    snprintf(heading, sizeof heading, "\n## mlxcel %s", verbs.names[i]);
    CHECK_CONTAINS(cli, heading);
  }
  RUN(&man, "man");
  int variables = 0;
  for (const char *line = man.out; (line = strstr(line, "\n.B MLXCEL_")); ++line, ++variables) {
    char name[64], cell[80];
    CHECK(sscanf(line, "\n.B %63s", name) == 1);
    snprintf(cell, sizeof cell, "| `%s` |", name);
    CHECK_CONTAINS(config, cell);
  }
  CHECK(variables >= 5);
  mlx_free(cli);
  mlx_free(config);
  command_free(&man);
}

static void check_page(const char *path) {
  char *page;
  CHECK_OK(mlx_read_file(path, 1 << 20, &page, NULL));
  CHECK(!strncmp(page, ".TH \"mlxcel", 11));
  static const char *const sections[] = {"\n.SH NAME\n", "\n.SH SYNOPSIS\n", "\n.SH EXIT STATUS\n"};
  for (size_t i = 0; i < 3; ++i) CHECK_CONTAINS(page, sections[i]);
  static const char *const requests[] = {".TH ",  ".SH ",  ".SS ",  ".TP\n", ".PP\n",
                                         ".br\n", ".nf\n", ".fi\n", ".B ",   ".BR "};
  for (const char *line = page; *line; line = strchr(line, '\n') + 1) {
    bool known = *line != '.' && *line != '\'';
    for (size_t i = 0; !known && i < sizeof requests / sizeof *requests; ++i)
      known = !strncmp(line, requests[i], strlen(requests[i]));
    if (!known) CHECK_FAIL("%s has a line with an unknown request: %.40s", path, line);
  }
  mlx_free(page);
}

// groff must print no warning, and the rendered page must contain |part|.
static void check_rendered(const char *groff, const char *path, const char *part) {
  command_t run;
  run_program(&run,
              (const char *const[]){groff, "-man", "-Tascii", "-ww", "-P-cbou", "-rLL=100n", path, NULL});
  CHECK_INT(run.exit_code, 0);
  CHECK_TEXT(run.err, "");
  CHECK_CONTAINS(run.out, part);
  command_free(&run);
}

TEST(manual_pages_render_without_warnings) {
  char folder[] = "/tmp/mlxcel-man-XXXXXX";
  CHECK(mkdtemp(folder));
  command_t run;
  RUN(&run, "man", "-o", folder);
  CHECK_INT(run.exit_code, 0);
  CHECK_TEXT(run.out, "");
  command_free(&run);
  const verbs_t verbs = list_verbs();
  const char *groff = find_program("groff"), *man = find_program("man");
  for (size_t i = 0; i <= verbs.count; ++i) {
    char path[128], title[64];
    snprintf(title, sizeof title, "mlxcel%s%s", i ? "-" : "", i ? verbs.names[i - 1] : "");
    snprintf(path, sizeof path, "%s/%s.1", folder, title);
    check_page(path);
    if (groff) check_rendered(groff, path, title);
    if (!man || i > 1) continue;  // man is slow: render two pages
    run_program(&run, (const char *const[]){man, "-l", path, NULL});
    CHECK_INT(run.exit_code, 0);
    CHECK_CONTAINS(run.out, "EXIT STATUS");
    command_free(&run);
  }
  RUN(&run, "man", "rnu");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "did you mean 'run'?");
  command_free(&run);
  CHECK_OK(mlx_remove_tree(folder));
  if (!groff) SKIP("groff is not installed");
}

// ----------------------------------------------------------------------------------------------------------
// Completion

// The completions that bash offers for the last word of a command line, one per line.
static void complete(const char *bash, const char *words, command_t *run) {
  static const char script[] =
      "source <(\"$0\" completion bash) || exit 9\n"
      "mkdir -p \"$1\" && cd \"$1\" && touch 'my model.gguf' other.txt\n"
      "eval \"COMP_WORDS=($2)\"\n"
      "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
      "_mlxcel 2>/dev/null; printf '%s\\n' \"${COMPREPLY[@]}\"; cd /; rm -r \"$1\"\n";
  char folder[] = "/tmp/mlxcel-completion-XXXXXX";
  CHECK(mkdtemp(folder));
  run_program(run, (const char *const[]){bash, "-c", script, MLXCEL_BINARY, folder, words, NULL});
  CHECK_INT(run->exit_code, 0);
}

TEST(bash_completes_verbs_flags_values_and_files) {
  const char *bash = find_program("bash");
  if (!bash) SKIP("bash is not installed");
  static const char *const cases[][2] = {
      {"mlxcel be", "bench\n"},
      {"mlxcel ''", "--help\n--version\nrun\nserve\nbatch\nlaunch\ncompile\n"},
      {"mlxcel run --ig", "--ignore-eos\n"},
      {"mlxcel-run --ig", "--ignore-eos\n"},
      {"mlxcel run -m x --dev", "--device\n"},
      {"mlxcel run --device ''", "cpu\ncuda\nauto\n"},
      {"mlxcel run --device cu", "cuda\n"},
      {"mlxcel run --device = c", "cpu\ncuda\n"},  // bash splits --device=c like this
      {"mlxcel run --device =", "cpu\ncuda\nauto\n"},
      {"mlxcel compile --target c", "cpu\ncpu:portable\ncuda\n"},  // not the placeholder cpu:LEVEL
      {"mlxcel cache c", "clear\n"},
      {"mlxcel completion z", "zsh\n"},
      {"mlxcel man dep", "\n"},
      {"mlxcel run -m my", "my model.gguf\n"},
      {"mlxcel compile oth", "other.txt\n"},
      {"mlxcel run -p oth", "\n"},  // a prompt is not a file
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    command_t run;
    complete(bash, cases[i][0], &run);
    if (strncmp(run.out, cases[i][1], strlen(cases[i][1])))
      CHECK_FAIL("%s gives\n%s%s", cases[i][0], run.out, run.err);
    if (i != 1 && strlen(run.out) != strlen(cases[i][1]))
      CHECK_FAIL("%s gives more:\n%s", cases[i][0], run.out);
    command_free(&run);
  }
}

TEST(zsh_loads_its_script) {
  const char *zsh = find_program("zsh");
  if (!zsh) SKIP("zsh is not installed");
  command_t run;
  run_program(&run,
              (const char *const[]){zsh, "-f", "-c",
                                    "autoload -U compinit && compinit -D -u && source <(\"$0\" completion "
                                    "zsh) && whence -w _mlxcel && echo ${_comps[mlxcel-run]}",
                                    MLXCEL_BINARY, NULL});
  CHECK_TEXT(run.err, "");
  CHECK_TEXT(run.out, "_mlxcel: function\n_mlxcel\n");
  command_free(&run);
}

TEST(fish_completes_verbs_flags_and_values) {
  const char *fish = find_program("fish");
  if (!fish) SKIP("fish is not installed");
  static const char *const cases[][2] = {{"mlxcel be", "bench\t"},
                                         {"mlxcel run --device c", "cpu\t"},
                                         {"mlxcel run --ign", "--ignore-eos\t"},
                                         {"mlxcel cache pa", "path\n"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    command_t run;
    run_program(&run,
                (const char *const[]){fish, "--no-config", "-c",
                                      "eval $argv[1] completion fish | source; and complete -C $argv[2]",
                                      MLXCEL_BINARY, cases[i][0], NULL});
    CHECK_TEXT(run.err, "");
    CHECK_CONTAINS(run.out, cases[i][1]);
    command_free(&run);
  }
}

TEST(completion_for_an_unknown_shell_is_refused) {
  command_t run;
  RUN(&run, "completion", "tcsh");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "no completion for the shell 'tcsh': expected bash, zsh or fish");
  command_free(&run);
}

TEST_MAIN(CASE(help_of_every_verb_fits_a_screen), CASE(sources_and_destinations_are_a_table),
          CASE(help_all_explains_collapsed_options), CASE(a_value_outside_the_choices_is_refused),
          CASE(shared_flags_have_one_help_text), CASE(verbs_that_print_on_stderr_have_quiet),
          CASE(every_exit_status_is_in_the_man_page_and_the_docs),
          CASE(every_verb_and_variable_is_in_the_docs), POSIX_CASE(manual_pages_render_without_warnings),
          POSIX_CASE(bash_completes_verbs_flags_values_and_files), POSIX_CASE(zsh_loads_its_script),
          POSIX_CASE(fish_completes_verbs_flags_and_values), CASE(completion_for_an_unknown_shell_is_refused))
