// mlxcel pull: fetches and verifies a model from a hub, a registry or a web server.
#include "transfer/pull_hub.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cli/parse.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "runtime/rooms.h"
#include "transfer/hub.h"
#include "transfer/pull_gguf.h"
#include "transfer/pull_oci.h"
#include "transfer/pull_url.h"
#include "transfer/short_names.h"

typedef struct flags {
  mlx_pull_options_t pull;  // for hubs and web servers
  mlx_pull_oci_options_t registry;
  double stall_seconds;
  bool quiet;
} flags_t;

static mlx_status_t pull_from(const char *source, const flags_t *f, char **out_path) {
  if (mlx_is_hub_ref(source)) return mlx_pull_hub(source, &f->pull, out_path);
  if (mlx_is_oci_ref(source)) return mlx_pull_oci(source, &f->registry, out_path);
  if (mlx_is_gguf_url(source)) return mlx_pull_gguf(source, &f->pull, out_path);
  if (!strncmp(source, "http://", 7) || !strncmp(source, "https://", 8))
    return mlx_pull_url(source, &f->pull, out_path);
  const mlx_short_name_t *known = mlx_short_name_find(source);
  if (known)
    return mlx_status_annotate(mlx_pull_hub(known->ref, &f->pull, out_path), "%s (%s)", source, known->ref);
  mlx_status_t status =
      mlx_error(MLX_USAGE,
                "cannot pull '%s': expected a short name, hf:ORG/NAME, oci://HOST/NAME:TAG or a URL", source);
  const mlx_short_names_text_t nearest = mlx_short_name_nearest(source);
  if (nearest.text[0])
    return mlx_status_hint(status, "did you mean %s? `mlxcel list --available` shows all short names",
                           nearest.text);
  return mlx_status_hint(status, "mlxcel pull hf:ORG/NAME; `mlxcel pull --help` lists all kinds of sources");
}

static void initialize(void *options) {
  flags_t *f = options;
  mlx_pull_options_initialize(&f->pull);
  mlx_pull_oci_options_initialize(&f->registry);
  f->stall_seconds = f->pull.http.stall_seconds;
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  const char *source = NULL;
  size_t words;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, &source, 1, &words, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, false));
  if (!source) return mlx_status_hint(mlx_error(MLX_USAGE, "no source was given"), "mlxcel pull hf:ORG/NAME");
  f.pull.report = f.registry.report = mlx_terminal_report();
  f.pull.http.stall_seconds = f.stall_seconds;
  f.registry.store.http = f.pull.http;
  f.registry.output = f.pull.output;
  f.pull.plain_http = f.registry.store.plain_http;
  if (f.registry.target && !strcmp(f.registry.target, "cpu"))
    f.registry.target = "cpu:host";  // compile's meaning of cpu
  f.pull.target = f.registry.target;
  f.pull.rank = f.registry.rank = mlx_engine_rank_target;
  char *path;
  MLX_TRY(pull_from(source, &f, &path));
  puts(path);
  mlx_free(path);
  return NULL;
}

// clang-format off
static const mlx_flag_t flags[] = {
    MLX_TEXT_FLAG(flags_t, pull.output, "-o, --output", "FOLDER",
                  "output path, which must not exist (default: the cache; NAME.mlxb here for a bundle)"),
    MLX_TEXT_FLAG(flags_t, pull.endpoint, "--endpoint", "URL", "address of the hub (default: $HF_ENDPOINT, else the public hub)"),
    MLX_TEXT_FLAG(flags_t, registry.target, "--target", "TARGET",
                  "target to fetch from a bundle with several, or all (default: the best for this machine)"),
    MLX_PLAIN_HTTP_FLAG(flags_t, registry.store.plain_http),
    MLX_STALL_TIMEOUT_FLAG(flags_t, stall_seconds),
    MLX_INSECURE_FLAG(flags_t, pull.http.insecure),
    MLX_QUIET_FLAG(flags_t, quiet),
    {0},
};
// clang-format on

const mlx_verb_t mlx_verb_pull = {
    .name = "pull",
    .summary = "fetch a model from a hub, a registry or a web server",
    .usage =
        "usage: mlxcel pull SOURCE [options]\n\n"
        "SOURCE is\n"
        "  hf:ORG/NAME[@REVISION]         a Hugging Face model: config, tokenizer, safetensors\n"
        "  hf:ORG/NAME[@REVISION]:QUANT   its GGUF file with that quantization (Q4_K_M) or name\n"
        "  qwen3:0.6b                     a short name; `mlxcel list --available` shows them\n"
        "  https://HOST/PATH/NAME.gguf    a GGUF file on a web server\n"
        "  https://HOST/PATH/NAME.mlxb    a bundle on a web server, a folder or a file\n"
        "  oci://HOST[:PORT]/NAME[:TAG]   a bundle or a CNCF ModelPack model in a registry (TAG: latest)\n"
        "  oci-layout:FOLDER[:TAG]        the same in a folder with the OCI image layout\n\n"
        "Prints the path of the model. An interrupted pull continues where it stopped if it is run "
        "again.\n\n"
        "examples:\n"
        "  mlxcel pull smollm2:135m\n"
        "  mlxcel pull hf:ORG/NAME:Q4_K_M\n"
        "  mlxcel pull oci://localhost:5000/models/tiny:v1",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .initialize = initialize,
    .run = run,
};
