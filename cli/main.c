// mlxcel: lists the verbs and runs one. Through a link such as mlxcel-run, the link's name selects the verb.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "cli/config_file.h"
#include "cli/help.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "line/tty.h"

static const mlx_verb_t *const verbs[] = {
    &mlx_verb_run,        &mlx_verb_serve,      &mlx_verb_batch,
    &mlx_verb_launch,     &mlx_verb_compile,    &mlx_verb_embed,
    &mlx_verb_rerank,     &mlx_verb_bench,      &mlx_verb_eval,
    &mlx_verb_show,       &mlx_verb_list,       &mlx_verb_rm,
    &mlx_verb_tokenize,   &mlx_verb_detokenize, &mlx_verb_template,
    &mlx_verb_pull,       &mlx_verb_push,       &mlx_verb_keygen,
    &mlx_verb_sign,       &mlx_verb_verify,     &mlx_verb_trust,
    &mlx_verb_cache,      &mlx_verb_doctor,     &mlx_verb_config,
    &mlx_verb_completion, &mlx_verb_man,        NULL,
};

// Output that its reader closed and Ctrl-C have one code.
static int exit_status(int code) {
  return code == MLX_CANCELLED && !ferror(stdout) ? mlx_interrupt_end() : code;
}

static int run_verb(const mlx_verb_t *verb, int argc, char **argv) {
  const mlx_command_line_t line = {.verb = verb, .verbs = verbs, .argc = argc, .argv = argv};
  mlx_status_t status = verb->run(&line);
  if (!status && (fflush(stdout) || ferror(stdout))) status = mlx_stdout_error();
  int code = (int)mlx_status_code(status);
  char where[64];
  snprintf(where, sizeof where, "mlxcel %s", verb->name);
  if (status && code != MLX_CANCELLED) mlx_terminal_error(where, status);
  mlx_status_free(status);
  mlx_config_release();
  return exit_status(code);
}

// Opens /dev/null for closed standard streams, so that files opened later do not get descriptors 0 to 2. A
// closed stdout is opened for reading only: writing to it fails, and the output is not lost without an error.
static void open_standard_streams(void) {
  int fd;
  while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO) {
    if (fd != STDOUT_FILENO) continue;
    close(fd);
    if (open("/dev/null", O_RDONLY) != STDOUT_FILENO) return;
  }
  if (fd >= 0) close(fd);
}

static void write_stderr(const char *text) { (void)!write(STDERR_FILENO, text, strlen(text)); }

// Runs in a signal handler.
static void end_by_fault(const char *path) {
  mlx_tty_restore();
  write_stderr("mlxcel: cannot read '");
  write_stderr(path);
  write_stderr(
      "': the file was truncated while it was in use, or its disk has an error\n"
      "hint: compile or fetch the file again, and replace files by renaming, not by overwriting\n");
  _exit(MLX_IO);
}

static void handle_signals(void) {
  signal(SIGPIPE, SIG_IGN);  // a closed stdout makes the next write fail instead of killing the process
#ifdef SIGXFSZ
  signal(SIGXFSZ, SIG_IGN);  // a write over the limit on file sizes fails instead
#endif
  mlx_fault_watch(end_by_fault);
  mlx_interrupt_clean_up();
}

// Reports output that could not be written. Returns the exit status.
static int flush_output(int code) {
  if (!fflush(stdout) && !ferror(stdout)) return code;
  mlx_status_t status = mlx_stdout_error();
  const int failed = (int)mlx_status_code(status);
  if (failed != MLX_CANCELLED) mlx_terminal_error("mlxcel", status);
  mlx_status_free(status);
  return failed;
}

static bool is_one_of(const char *word, const char *const *words) {
  while (*words && strcmp(*words, word)) ++words;
  return *words != NULL;
}

int main(int argc, char **argv) {
  static const char *const version[] = {"--version", "version", "-v", "-V", NULL}, *const help[] = {
                                                                                       "--help", "-h", "help",
                                                                                       "-help", NULL};
  open_standard_streams();
  handle_signals();
  const char *name = strrchr(argv[0], '/');
  name = name ? name + 1 : argv[0];
  const mlx_verb_t *linked = strncmp(name, "mlxcel-", 7) ? NULL : mlx_verb_find(verbs, name + 7);
  const char *word = argc > 1 ? argv[1] : "--help";
  if (linked) return run_verb(linked, argc - 1, argv + 1);
  if (is_one_of(word, version) && argc <= 2) {
    puts("mlxcel " MLXCEL_VERSION);
    return flush_output(0);
  }
  if (!strcmp(word, "help") && argc == 3) {  // `mlxcel help run` is `mlxcel run --help`
    if (!strcmp(argv[2], "exit")) {
      mlx_help_print_exits();
      return flush_output(0);
    }
    word = argv[2];
    argv[2] = "--help";
  }
  if (is_one_of(word, help)) {
    mlx_help_print_verbs(verbs, argc > 1 ? stdout : stderr);
    return flush_output(argc > 1 ? 0 : MLX_USAGE);
  }
  // A command line that begins with an option is one of llama-cli.
  if (word[0] == '-') return run_verb(&mlx_verb_run, argc - 1, argv + 1);
  const mlx_verb_t *verb = mlx_verb_find_any(verbs, word);
  if (verb) return run_verb(verb, argc - 2, argv + 2);
  mlx_status_t status = mlx_verb_unknown(verbs, word);
  mlx_terminal_error("mlxcel", status);
  mlx_status_free(status);
  return MLX_USAGE;
}
