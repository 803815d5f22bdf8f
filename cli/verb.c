// Finds verbs in a list and splits their usage texts.
#include "cli/verb.h"

#include <string.h>

#include "base/text.h"
#include "cli/foreign.h"

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

// True if the word looks like a model: a path, a file of a model or a reference.
static bool is_model(const char *word) {
  static const char *const endings[] = {".gguf", ".mlxb", ".safetensors"};
  const size_t length = strlen(word);
  for (size_t i = 0; i < sizeof endings / sizeof *endings; ++i) {
    const size_t ending = strlen(endings[i]);
    if (length > ending && !strcmp(word + length - ending, endings[i])) return true;
  }
  return strchr(word, '/') || strchr(word, ':');
}

mlx_status_t mlx_verb_unknown(const mlx_verb_t *const *verbs, const char *name) {
  const char *names[MAX_VERBS + 1] = {0};
  for (size_t i = 0; verbs[i] && i < MAX_VERBS; ++i) names[i] = verbs[i]->name;
  const char *nearest = mlx_nearest_name(name, names);
  const mlx_foreign_verb_t *foreign = mlx_foreign_find_verb(name);
  mlx_status_t status = mlx_error(MLX_USAGE, "unknown verb '%s'", name);
  if (foreign && foreign->answer) return mlx_status_hint(status, "%s", foreign->answer);
  if (is_model(name)) return mlx_status_hint(status, "mlxcel run %s", name);
  if (nearest) return mlx_status_hint(status, "did you mean '%s'?", nearest);
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
