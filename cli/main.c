// mlxcel: picks the verb. Called through a link such as mlxcel-run, the link's name is the verb.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/cli.h"
#include "cli/config.h"

static const mlx_verb_t verbs[] = {
    {"run", "write what a model says after a prompt", mlx_cli_run},
    {"compile", "compile a model ahead of time", mlx_cli_compile},
    {"bench", "measure how fast a model reads and writes", mlx_cli_bench},
    {"eval", "measure how well a model foretells a text", mlx_cli_eval},
    {"show", "say what a model is and what memory it takes", mlx_cli_show},
    {"list", "list the models and compiled modules on this machine", mlx_cli_list},
    {"tokenize", "print the token ids of a text", mlx_cli_tokenize},
    {"detokenize", "print the text of token ids", mlx_cli_detokenize},
    {"template", "show what a model's chat template makes of a conversation", mlx_cli_template},
    {"pull", "fetch a model from a hub, a registry or a web server", mlx_cli_pull},
    {"push", "put a compiled model into a registry", mlx_cli_push},
    {"keygen", "make a key pair to sign with", mlx_cli_keygen},
    {"sign", "sign compiled models or other files", mlx_cli_sign},
    {"verify", "check who signed a compiled model or a file, and that it is whole", mlx_cli_verify},
    {"trust", "list the keys whose signatures count, add one or remove one", mlx_cli_trust},
    {"cache", "list or clear compiled models", mlx_cli_cache},
    {"doctor", "check this machine: CPU, GPU, compiler, cache", mlx_cli_doctor},
    {"config", "show what the configuration file and the environment set", mlx_cli_config},
    {"completion", "print a script that completes this command line in a shell", mlx_cli_completion},
    {"man", "print the manual page of mlxcel or of a verb", mlx_cli_man},
};
#define VERB_COUNT (sizeof verbs / sizeof *verbs)

const mlx_verb_t *mlx_verb_at(size_t index) { return index < VERB_COUNT ? &verbs[index] : NULL; }

const mlx_verb_t *mlx_verb_find(const char *name) {
  for (size_t i = 0; i < VERB_COUNT; ++i) {
    if (!strcmp(verbs[i].name, name)) return &verbs[i];
  }
  return NULL;
}

mlx_status_t mlx_verb_unknown(const char *name) {
  const char *names[VERB_COUNT + 1] = {0};
  for (size_t i = 0; i < VERB_COUNT; ++i) names[i] = verbs[i].name;
  const char *nearest = mlx_nearest_name(name, names);
  mlx_status_t status = mlx_error(MLX_USAGE, "unknown verb '%s'", name);
  if (nearest) return mlx_status_hint(status, "did you mean '%s'?", nearest);
  return mlx_status_hint(status, "`mlxcel --help` lists the verbs");
}

static int run_verb(const mlx_verb_t *verb, int argc, char **argv) {
  mlx_status_t status = verb->run(argc, argv);
  if (!status && (fflush(stdout) || ferror(stdout))) status = mlx_stdout_error();
  int code = (int)mlx_status_code(status);
  char where[64];
  snprintf(where, sizeof where, "mlxcel %s", verb->name);
  if (status && code != MLX_CANCELLED) mlx_terminal_error(where, status);
  mlx_status_free(status);
  mlx_config_release();
  return code;
}

int main(int argc, char **argv) {
  signal(SIGPIPE, SIG_IGN);  // a closed stdout ends the writing, not the process in the middle of it
  int fd;
  while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO)
    continue;  // no file of ours may become a stream
  if (fd >= 0) close(fd);
  const char *name = strrchr(argv[0], '/');
  name = name ? name + 1 : argv[0];
  const mlx_verb_t *linked = strncmp(name, "mlxcel-", 7) ? NULL : mlx_verb_find(name + 7);
  const char *word = argc > 1 ? argv[1] : "--help";
  if (!strcmp(word, "--version")) {
    puts("mlxcel " MLXCEL_VERSION);
    return 0;
  }
  if (linked) return run_verb(linked, argc - 1, argv + 1);
  if (!strcmp(word, "help") && argc == 3) {  // `mlxcel help run` is `mlxcel run --help`
    word = argv[2];
    argv[2] = "--help";
  }
  if (!strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help")) {
    mlx_help_print_verbs(argc > 1 ? stdout : stderr);
    return argc > 1 ? 0 : MLX_USAGE;
  }
  const mlx_verb_t *verb = mlx_verb_find(word);
  if (verb) return run_verb(verb, argc - 2, argv + 2);
  mlx_status_t status = mlx_verb_unknown(word);
  mlx_terminal_error("mlxcel", status);
  mlx_status_free(status);
  return MLX_USAGE;
}
