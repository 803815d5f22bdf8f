// mlxcel pull: a model from a hub, a registry or a web server, checked, to this machine.
#include "transfer/pull_hub.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cli/cli.h"
#include "transfer/hub.h"
#include "transfer/pull_oci.h"
#include "transfer/pull_url.h"

static mlx_status_t local_oci_model(const char *model, char **out_path) {
  MLX_TRY(mlx_pull_oci_find(model, out_path));
  if (*out_path) return NULL;
  mlx_pull_oci_options_t options;
  mlx_pull_oci_options_initialize(&options);
  options.report = mlx_terminal_report();
  options.rank = mlx_engine_rank_target;
  options.to_cache = true;
  return mlx_pull_oci(model, &options, out_path);
}

mlx_status_t mlx_cli_local_model(const char *model, char **out_path) {
  *out_path = NULL;
  if (mlx_is_oci_ref(model)) return local_oci_model(model, out_path);
  if (!mlx_is_hub_ref(model)) return mlx_copy_text(model, strlen(model), out_path);
  MLX_TRY(mlx_pull_hub_find(model, out_path));
  if (*out_path) return NULL;
  mlx_pull_options_t options;
  mlx_pull_options_initialize(&options);
  options.report = mlx_terminal_report();
  return mlx_pull_hub(model, &options, out_path);
}

static mlx_status_t pull_from(const char *source, const mlx_pull_options_t *options,
                              const mlx_pull_oci_options_t *registry, char **out_path) {
  if (mlx_is_hub_ref(source)) return mlx_pull_hub(source, options, out_path);
  if (mlx_is_oci_ref(source)) return mlx_pull_oci(source, registry, out_path);
  if (!strncmp(source, "http://", 7) || !strncmp(source, "https://", 8))
    return mlx_pull_url(source, options, out_path);
  return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' is nothing that can be pulled", source),
                         "mlxcel pull --help lists what can");
}

mlx_status_t mlx_cli_pull(int argc, char **argv) {
  mlx_pull_options_t options;
  mlx_pull_options_initialize(&options);
  options.report = mlx_terminal_report();
  mlx_pull_oci_options_t registry;
  mlx_pull_oci_options_initialize(&registry);
  registry.report = options.report;
  const char *source = NULL;
  double stall = options.http.stall_seconds;
  const mlx_flag_t table[] = {
      {"-o, --output", MLX_FLAG_TEXT, "FOLDER",
       "where to put it; must not exist (default: the cache; NAME.mlxb here for a compiled model)",
       &options.output, 0, 0},
      {"--endpoint", MLX_FLAG_TEXT, "URL", "the hub's address (default: $HF_ENDPOINT)", &options.endpoint, 0,
       0},
      {"--target", MLX_FLAG_TEXT, "TARGET",
       "of a compiled model that has several; all: all of them (default: the best for this machine)",
       &registry.target, 0, 0},
      {"--plain-http", MLX_FLAG_SWITCH, NULL, "speak http to a registry", &registry.store.plain_http, 0, 0},
      {"--stall-timeout", MLX_FLAG_NUMBER, "SECONDS",
       "without a byte, after which a connection is given up (default: 60)", &stall, 1, 86400},
      {"--insecure", MLX_FLAG_SWITCH, NULL, "accept any certificate", &options.http.insecure, MLX_FLAG_SPOKEN,
       0},
      {0}};
  size_t words;
  bool help;
  MLX_TRY(mlx_flags_parse(
      "usage: mlxcel pull SOURCE [options]\n\nSOURCE is\n"
      "  hf:ORG/NAME[@REVISION]         a Hugging Face model: config, tokenizer, safetensors\n"
      "  hf:ORG/NAME[@REVISION]:QUANT   its GGUF file with that quantisation (Q4_K_M) or name\n"
      "  https://HOST/PATH/NAME.mlxb    a compiled model on a web server, a folder or a file\n"
      "  oci://HOST[:PORT]/NAME[:TAG]   a model in a registry (TAG: latest): compiled, or as CNCF ModelPack "
      "has it\n"
      "  oci-layout:FOLDER[:TAG]        or in a folder laid out like one\n\n"
      "Prints where the model is. A pull that was stopped goes on where it was when it is run again.\n\n"
      "examples:\n"
      "  mlxcel pull hf:ORG/NAME:Q4_K_M\n"
      "  mlxcel pull oci://localhost:5000/models/tiny:v1",
      table, argc, argv, &source, 1, &words, &help));
  if (help) return NULL;
  if (!source)
    return mlx_status_hint(mlx_error(MLX_USAGE, "nothing was named to pull"), "mlxcel pull hf:ORG/NAME");
  options.http.stall_seconds = stall;
  char *path;
  registry.store.http = options.http;
  registry.output = options.output;
  if (registry.target && !strcmp(registry.target, "cpu"))
    registry.target = "cpu:host";  // as compile reads it
  options.target = registry.target;
  options.rank = registry.rank = mlx_engine_rank_target;
  MLX_TRY(pull_from(source, &options, &registry, &path));
  puts(path);
  mlx_free(path);
  return NULL;
}
