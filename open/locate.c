// Finds the local copy of a model by its name, and pulls what is not here. See locate.h.
#include "open/locate.h"

#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "open/stored_models.h"
#include "runtime/rooms.h"
#include "transfer/hub.h"
#include "transfer/pull_gguf.h"
#include "transfer/pull_hub.h"
#include "transfer/pull_oci.h"
#include "transfer/short_names.h"
#include "transfer/url.h"

// ----------------------------------------------------------------------------------------------------------
// References

static mlx_status_t locate_oci(const char *ref, const mlx_report_t *report, char **out_path) {
  MLX_TRY(mlx_pull_oci_find(ref, out_path));
  if (*out_path) return NULL;
  mlx_pull_oci_options_t options;
  mlx_pull_oci_options_initialize(&options);
  options.report = report;
  options.store.http.cancelled = mlx_report_cancelled(report);
  options.rank = mlx_engine_rank_target;
  options.to_cache = true;
  return mlx_pull_oci(ref, &options, out_path);
}

static mlx_pull_options_t pull_options(const mlx_report_t *report) {
  mlx_pull_options_t options;
  mlx_pull_options_initialize(&options);
  options.report = report;
  options.http.cancelled = mlx_report_cancelled(report);
  return options;
}

static mlx_status_t locate_hub(const char *ref, const mlx_report_t *report, char **out_path) {
  MLX_TRY(mlx_pull_hub_find(ref, out_path));
  if (*out_path) return NULL;
  const mlx_pull_options_t options = pull_options(report);
  return mlx_pull_hub(ref, &options, out_path);
}

static mlx_status_t locate_gguf(const char *url, const mlx_report_t *report, char **out_path) {
  MLX_TRY(mlx_pull_gguf_find(url, out_path));
  if (*out_path) return NULL;
  const mlx_pull_options_t options = pull_options(report);
  return mlx_pull_gguf(url, &options, out_path);
}

// ----------------------------------------------------------------------------------------------------------
// Names

static bool is_url(const char *text) { return !strncmp(text, "http://", 7) || !strncmp(text, "https://", 8); }

// "ORG/NAME" or "ORG/NAME:QUANT": users of other tools type a hub's names like this.
static bool is_hub_name(const char *text) {
  char *ref = NULL;
  mlx_hub_ref_t parsed;
  mlx_status_t status = mlx_format(&ref, MLX_HUB_PREFIX "%s", text);
  if (!status) status = mlx_hub_ref_parse(ref, &parsed);
  const bool is = !status;
  mlx_status_free(status);
  mlx_free(ref);
  return is;
}

// A missing file with one of these names gets its error from the code that opens it.
static bool is_path(const char *text) {
  static const char *const endings[] = {".gguf", ".mlxb", ".safetensors", ".json"};
  for (size_t i = 0; i < sizeof endings / sizeof *endings; ++i) {
    if (mlx_ends_with(text, endings[i])) return true;
  }
  return (strpbrk(text, "/\\") && !is_hub_name(text)) || text[0] == '.' || text[0] == '~' || !text[0];
}

// True if several stored models have the name too.
static bool is_stored(const char *name) {
  char *path;
  mlx_status_t status = mlx_stored_models_find(name, &path);
  const bool is = path || mlx_status_code(status) == MLX_USAGE;
  mlx_status_free(status);
  mlx_free(path);
  return is;
}

static bool is_model_folder(const char *path) {
  char *config = NULL;
  mlx_status_t status = mlx_join_path(path, "config.json", &config);
  const bool is = !status && mlx_is_file(config);
  mlx_status_free(status);
  mlx_free(config);
  return is;
}

bool mlx_is_model_name(const char *word) {
  if (!word[0]) return false;
  return is_path(word) || strpbrk(word, "/:") || mlx_short_name_find(word) || is_model_folder(word) ||
         is_stored(word);
}

static mlx_status_t unknown_model(const char *model) {
  if (is_url(model)) {
    const mlx_display_url_t url = mlx_display_url(model);  // without a password
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "cannot run '%s': only GGUF files are run from a URL", url.text),
        "for a bundle: mlxcel pull %s, then run the file", url.text);
  }
  mlx_status_t status =
      mlx_error(MLX_NOT_FOUND, "no model '%s': it is neither a file, a pulled model nor a short name", model);
  if (is_hub_name(model))
    return mlx_status_hint(status, "to get it from the hub, name it " MLX_HUB_PREFIX "%s", model);
  const mlx_short_names_text_t nearest = mlx_short_name_nearest(model);
  return mlx_status_hint(status, "%s%s%s`mlxcel list --available` shows all short names",
                         nearest.text[0] ? "did you mean " : "", nearest.text, nearest.text[0] ? "? " : "");
}

// References name their own source; every other name is looked up on this machine.
static bool is_reference(const char *name) {
  return mlx_is_oci_ref(name) || mlx_is_hub_ref(name) || mlx_is_gguf_url(name);
}

// The path of a name that is no reference. *|out_path| is NULL for a short name: mlx_locate may pull it.
static mlx_status_t find_name(const char *name, char **out_path) {
  struct stat info;
  *out_path = NULL;
  if (is_url(name)) return unknown_model(name);
  if (!stat(name, &info)) return mlx_copy_text(name, strlen(name), out_path);
  if (mlx_short_name_find(name)) return NULL;
  if (name[0] != '/' && name[0] != '.') MLX_TRY(mlx_stored_models_find(name, out_path));
  if (*out_path) return NULL;
  return is_path(name) ? mlx_copy_text(name, strlen(name), out_path) : unknown_model(name);
}

mlx_status_t mlx_locate(const char *name, const mlx_report_t *report, char **out_path) {
  *out_path = NULL;
  if (mlx_is_oci_ref(name)) return locate_oci(name, report, out_path);
  if (mlx_is_hub_ref(name)) return locate_hub(name, report, out_path);
  if (mlx_is_gguf_url(name)) return locate_gguf(name, report, out_path);
  MLX_TRY(find_name(name, out_path));
  if (*out_path) return NULL;
  const mlx_short_name_t *known = mlx_short_name_find(name);
  return mlx_status_annotate(locate_hub(known->ref, report, out_path), "%s (%s)", name, known->ref);
}

mlx_status_t mlx_locate_check(const char *name) {
  char *path;
  if (is_reference(name)) return NULL;
  MLX_TRY(find_name(name, &path));
  mlx_status_t status = path && !mlx_is_file(path) && !mlx_is_dir(path)
                            ? mlx_error(MLX_NOT_FOUND, "there is no model '%s'", path)
                            : NULL;
  mlx_free(path);
  return status;
}

// A reference that was pulled as it is written.
static mlx_status_t find_pulled(const char *model, char **out_path) {
  const mlx_short_name_t *known = mlx_short_name_find(model);
  if (mlx_is_oci_ref(model)) return mlx_pull_oci_find(model, out_path);
  if (known || mlx_is_hub_ref(model)) return mlx_pull_hub_find(known ? known->ref : model, out_path);
  if (mlx_is_gguf_url(model)) return mlx_pull_gguf_find(model, out_path);
  if (!is_hub_name(model)) return NULL;
  char *ref;
  MLX_TRY(mlx_format(&ref, MLX_HUB_PREFIX "%s", model));
  mlx_status_t status = mlx_pull_hub_find(ref, out_path);
  mlx_free(ref);
  return status;
}

mlx_status_t mlx_locate_stored(const char *model, char **out_path) {
  const char *latest = mlx_ends_with(model, ":latest") ? model + strlen(model) - strlen(":latest") : NULL;
  mlx_hub_ref_t ref;
  char *name = NULL;
  *out_path = NULL;
  MLX_TRY(mlx_copy_text(model, latest ? (size_t)(latest - model) : strlen(model), &name));
  mlx_status_t status = find_pulled(name, out_path);
  if (!status && !*out_path && mlx_is_hub_ref(name)) {  // pulled by another reference to the repository
    status = mlx_hub_ref_parse(name, &ref);
    mlx_free(name);
    name = NULL;
    if (!status && !ref.selector[0] && !strcmp(ref.revision, "main"))
      status = mlx_format(&name, "%s/%s", ref.org, ref.name);
  }
  if (!status && !*out_path && name) status = mlx_stored_models_find(name, out_path);
  mlx_free(name);
  return status;
}

const char *mlx_locate_short_name(const char *name) {
  const mlx_short_name_t *known = mlx_short_name_find(name);
  return known ? known->name : NULL;
}

mlx_status_t mlx_locate_reference(const char *name, char **out_ref) {
  const mlx_short_name_t *known = mlx_short_name_find(name);
  mlx_hub_ref_t ref;
  char *text = NULL;
  *out_ref = NULL;
  if (known) name = known->ref;
  if (mlx_is_oci_ref(name) || (!mlx_is_hub_ref(name) && (is_url(name) || !is_hub_name(name)))) return NULL;
  MLX_TRY(mlx_format(&text, "%s%s", mlx_is_hub_ref(name) ? "" : MLX_HUB_PREFIX, name));
  mlx_status_t status = mlx_hub_ref_parse(text, &ref);
  mlx_free(text);
  if (status) return status;
  const bool is_main = !strcmp(ref.revision, "main");
  return mlx_format(out_ref, MLX_HUB_PREFIX "%s/%s%s%s%s%s", ref.org, ref.name, is_main ? "" : "@",
                    is_main ? "" : ref.revision, ref.selector[0] ? ":" : "", ref.selector);
}
