// Finds verbs in a list and splits their usage texts.
#include "cli/verb.h"

#include <string.h>

#include "base/text.h"
#include "cli/foreign.h"
#include "open/locate.h"
#include "transfer/short_names.h"

#define MAX_VERBS 64

const mlx_verb_t *mlx_verb_find(const mlx_verb_t *const *verbs, const char *name) {
  for (; *verbs; ++verbs) {
    if (!strcmp((*verbs)->name, name)) return *verbs;
  }
  return NULL;
}

const mlx_verb_t *mlx_verb_find_any(const mlx_verb_t *const *verbs, const char *name) {
  const mlx_verb_t *verb = mlx_verb_find(verbs, name);
  const mlx_foreign_verb_t *foreign = verb ? NULL : mlx_foreign_find_verb(name);
  return foreign && foreign->means ? mlx_verb_find(verbs, foreign->means) : verb;
}

// `mlxcel llama3`: the first of the short names in |names|, separated by ", ", and the rest.
static mlx_status_t hint_short_names(mlx_status_t status, const char *names) {
  const int first = (int)strcspn(names, ",");
  const char *rest = names + first + strspn(names + first, ", ");
  return mlx_status_hint(status, "did you mean a model? mlxcel run %.*s%s%s%s", first, names,
                         *rest ? " (or " : "", rest, *rest ? ")" : "");
}

mlx_status_t mlx_verb_unknown(const mlx_verb_t *const *verbs, const char *name) {
  const char *names[MAX_VERBS + 1] = {0};
  for (size_t i = 0; verbs[i] && i < MAX_VERBS; ++i) names[i] = verbs[i]->name;
  const char *nearest = mlx_nearest_name(name, names);
  const mlx_foreign_verb_t *foreign = mlx_foreign_find_verb(name);
  mlx_status_t status = mlx_error(MLX_USAGE, "unknown verb '%s'", name);
  if (foreign && foreign->answer) return mlx_status_hint(status, "%s", foreign->answer);
  if (mlx_is_model_name(name)) return mlx_status_hint(status, "mlxcel run %s", name);
  if (nearest) return mlx_status_hint(status, "did you mean '%s'?", nearest);
  const mlx_short_names_text_t similar = mlx_short_name_nearest(name);
  if (similar.text[0]) return hint_short_names(status, similar.text);
  return mlx_status_hint(status, "`mlxcel --help` lists the verbs");
}

void mlx_verb_initialize(const mlx_verb_t *verb, void *options) {
  if (verb->options_size) memset(options, 0, verb->options_size);
  if (verb->initialize) verb->initialize(options);
}

mlx_usage_parts_t mlx_usage_split(const char *usage) {
  static const char opening[] = "usage: ", marker[] = "\n\nexamples:\n";
  mlx_usage_parts_t parts = {.synopsis =
                                 strncmp(usage, opening, strlen(opening)) ? usage : usage + strlen(opening)};
  parts.synopsis_length = (int)strcspn(parts.synopsis, "\n");
  parts.description = parts.synopsis + parts.synopsis_length;
  const char *examples = strstr(usage, marker);
  const char *end = examples ? examples : usage + strlen(usage);
  while (parts.description < end && *parts.description == '\n') ++parts.description;
  parts.description_length = (int)(end - parts.description);
  parts.examples = examples ? examples + strlen(marker) : "";
  parts.examples_length = (int)strlen(parts.examples);
  return parts;
}
