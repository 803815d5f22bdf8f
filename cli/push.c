// mlxcel push: a compiled model to a registry, or to a folder laid out like one.
#include "transfer/push.h"

#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

mlx_status_t mlx_cli_push(int argc, char **argv) {
  mlx_push_options_t options;
  mlx_push_options_initialize(&options);
  options.report = mlx_terminal_report();
  const char *words[2] = {NULL, NULL};
  double stall = options.store.http.stall_seconds;
  const mlx_flag_t table[] = {
      {"--plain-http", MLX_FLAG_SWITCH, NULL,
       "speak http to the registry (one on this machine is spoken to so anyway)", &options.store.plain_http,
       0, 0},
      {"--stall-timeout", MLX_FLAG_NUMBER, "SECONDS",
       "without a byte, after which a connection is given up (default: 60)", &stall, 1, 86400},
      {"--insecure", MLX_FLAG_SWITCH, NULL, "accept any certificate", &options.store.http.insecure,
       MLX_FLAG_SPOKEN, 0},
      {0}};
  size_t count;
  bool help;
  MLX_TRY(
      mlx_flags_parse("usage: mlxcel push MODEL.mlxb PLACE [options]\n\nPLACE is\n"
                      "  oci://HOST[:PORT]/NAME[:TAG]   a place in a registry (TAG: latest)\n"
                      "  oci-layout:FOLDER[:TAG]        a folder laid out like one\n\n"
                      "Bundles of the same weights for several targets pushed to one place share those "
                      "weights. Prints the model's digest,\n"
                      "and notes that of the code for each target, by which a pull gets exactly that: "
                      "oci://HOST/NAME@sha256:...\n\n"
                      "examples:\n"
                      "  mlxcel push model.mlxb oci://localhost:5000/models/tiny:v1\n"
                      "  mlxcel push model.mlxb oci-layout:./layout:v1",
                      table, argc, argv, words, 2, &count, &help));
  if (help) return NULL;
  if (count < 2)
    return mlx_status_hint(mlx_error(MLX_USAGE, "push wants a compiled model and a place"),
                           "mlxcel push MODEL.mlxb oci://HOST/NAME:TAG");
  options.store.http.stall_seconds = stall;
  char digest[MLX_OCI_DIGEST];
  MLX_TRY(mlx_push_bundle(words[0], words[1], &options, digest));
  puts(digest);
  return NULL;
}
