// mlxcel push: uploads a bundle to a registry, or writes it to a folder with the OCI image layout.
#include "transfer/push.h"

#include <stdio.h>
#include <string.h>

#include "cli/parse.h"
#include "cli/terminal.h"
#include "cli/verbs.h"

typedef struct flags {
  mlx_push_options_t push;
  double stall_seconds;
  bool quiet;
} flags_t;

static void initialize(void *options) {
  flags_t *f = options;
  mlx_push_options_initialize(&f->push);
  f->stall_seconds = f->push.store.http.stall_seconds;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  const char *words[2] = {NULL, NULL};
  size_t count;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, words, 2, &count, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, false));
  if (count < 2)
    return mlx_status_hint(mlx_error(MLX_USAGE, "push needs a bundle and a destination"),
                           "mlxcel push MODEL.mlxb oci://HOST/NAME:TAG");
  f.push.report = mlx_terminal_report();
  f.push.store.http.stall_seconds = f.stall_seconds;
  char digest[MLX_OCI_DIGEST];
  MLX_TRY(mlx_push_bundle(words[0], words[1], &f.push, digest));
  puts(digest);
  return NULL;
}

static const mlx_flag_t flags[] = {
    MLX_PLAIN_HTTP_FLAG(flags_t, push.store.plain_http),
    MLX_STALL_TIMEOUT_FLAG(flags_t, stall_seconds),
    MLX_INSECURE_FLAG(flags_t, push.store.http.insecure),
    MLX_QUIET_FLAG(flags_t, quiet),
    {0},
};

const mlx_verb_t mlx_verb_push = {
    .name = "push",
    .summary = "upload a bundle to a registry",
    .usage =
        "usage: mlxcel push MODEL.mlxb DESTINATION [options]\n\n"
        "DESTINATION is\n"
        "  oci://HOST[:PORT]/NAME[:TAG]   a name in a registry (TAG: latest)\n"
        "  oci-layout:FOLDER[:TAG]        a folder with the OCI image layout\n\n"
        "Bundles with the same weights for different targets share them if they are pushed to the same "
        "destination. Prints the digest of the model on stdout and the digest of each target's code on "
        "stderr; pull oci://HOST/NAME@sha256:... fetches exactly that.\n\n"
        "examples:\n"
        "  mlxcel push model.mlxb oci://localhost:5000/models/tiny:v1\n"
        "  mlxcel push model.mlxb oci-layout:./layout:v1",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .initialize = initialize,
    .run = run,
};
