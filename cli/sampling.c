// Checks the values of the sampling flags and reads grammars and schemas.
#include "cli/sampling.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"

#define MAX_GRAMMAR (16u << 20)

void mlx_sampling_flags_initialize(mlx_sampling_flags_t *out) {
  *out = (mlx_sampling_flags_t){.seed = -1, .logprobs = -1};
  mlx_sampling_initialize(&out->options);
}

// ----------------------------------------------------------------------------------------------------------
// Values

// "15043+1.5", "15043-1" or "15043-inf".
static mlx_status_t read_bias(const char *text, mlx_logit_bias_t *out) {
  char *sign, *end;
  errno = 0;
  const long id = strtol(text, &sign, 10);
  const bool has_id = !errno && sign != text && *text >= '0' && *text <= '9' && id <= INT32_MAX;
  const bool has_sign = has_id && (*sign == '+' || *sign == '-') &&
                        ((sign[1] >= '0' && sign[1] <= '9') || sign[1] == '.' || sign[1] == 'i');
  const double bias = has_sign ? strtod(sign, &end) : NAN;
  if (!has_sign || *end || !(bias < INFINITY)) {
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "option --logit-bias expects TOKEN+BIAS or TOKEN-BIAS, not '%s'", text),
        "for example --logit-bias 15043+1, or 15043-inf to forbid token 15043");
  }
  *out = (mlx_logit_bias_t){(int32_t)id, bias};
  return NULL;
}

static mlx_status_t random_seed(uint64_t *out) {
  uint32_t seed;
  if (getrandom(&seed, sizeof seed, 0) != sizeof seed) {
    return mlx_status_hint(
        mlx_error(MLX_IO, "cannot get a random seed: getrandom failed: %s", strerror(errno)),
        "give a seed: --seed 1");
  }
  *out = seed;
  return NULL;
}

static mlx_status_t read_grammar_file(const char *path, bool is_schema, mlx_grammar_t **out) {
  char *text;
  size_t length;
  MLX_TRY(mlx_read_input(path, MAX_GRAMMAR, &text, &length));
  mlx_status_t status = is_schema ? mlx_grammar_create_from_schema(path, text, length, out)
                                  : mlx_grammar_create(path, text, length, out);
  mlx_free(text);
  return status;
}

// A schema is JSON text; a path needs '@'.
static mlx_status_t read_schema(const char *text, mlx_grammar_t **out) {
  if (text[0] == '@') return read_grammar_file(text + 1, true, out);
  if (mlx_ends_with(text, ".json") || mlx_is_file(text))
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "option --json-schema expects JSON, not the name of a file: '%s'", text),
        "-j @%s reads the file", text);
  return mlx_grammar_create_from_schema("--json-schema", text, strlen(text), out);
}

static mlx_status_t read_grammar(mlx_sampling_flags_t *f) {
  if (!!f->grammar_text + !!f->grammar_file + !!f->json_schema > 1) {
    return mlx_status_hint(
        mlx_error(MLX_USAGE, "more than one of --grammar, --grammar-file and --json-schema was given"),
        "give one of them");
  }
  if (f->grammar_text)
    return mlx_grammar_create("--grammar", f->grammar_text, strlen(f->grammar_text), &f->grammar);
  if (f->grammar_file) return read_grammar_file(f->grammar_file, false, &f->grammar);
  return f->json_schema ? read_schema(f->json_schema, &f->grammar) : NULL;
}

mlx_status_t mlx_sampling_flags_read(mlx_sampling_flags_t *f) {
  for (size_t i = 0; i < f->bias_texts.count; ++i) MLX_TRY(read_bias(f->bias_texts.items[i], &f->biases[i]));
  f->options.biases = f->biases;
  f->options.bias_count = f->bias_texts.count;
  if (f->breakers.count) {  // given breakers replace the default ones
    const bool none = f->breakers.count == 1 && !strcmp(f->breakers.items[0], "none");
    f->options.dry_breakers = f->breakers.items;
    f->options.dry_breaker_count = none ? 0 : f->breakers.count;
  }
  if (f->seed >= 0) {
    f->options.seed = (uint64_t)f->seed;
  } else {
    MLX_TRY(random_seed(&f->options.seed));
  }
  MLX_TRY(mlx_sampling_check(&f->options));
  return read_grammar(f);
}

void mlx_sampling_flags_clear(mlx_sampling_flags_t *f) {
  mlx_grammar_free(f->grammar);
  f->grammar = NULL;
}

void mlx_sampling_flags_apply(const mlx_sampling_flags_t *f, mlx_generate_options_t *options) {
  options->sampling = &f->options;
  options->logprobs = f->logprobs;
  options->grammar = f->grammar;
}

// ----------------------------------------------------------------------------------------------------------
// Log-probabilities

static mlx_status_t put_logprob(const mlx_engine_t *engine, const mlx_logprob_t *logprob,
                                mlx_json_writer_t *json) {
  char *bytes;
  size_t length;
  MLX_TRY(mlx_engine_token_bytes(engine, logprob->id, &bytes, &length));
  mlx_json_put_bytes(json, "token", bytes ? bytes : "", length);
  mlx_json_put_int(json, "id", logprob->id);
  mlx_json_put_number(json, "logprob", "%.17g", logprob->logprob);
  mlx_json_begin_list(json, "bytes", MLX_JSON_ONE_LINE);
  for (size_t i = 0; i < length; ++i) mlx_json_put_int(json, NULL, (unsigned char)bytes[i]);
  mlx_json_end(json);
  mlx_free(bytes);
  return NULL;
}

mlx_status_t mlx_cli_put_logprobs(const mlx_engine_t *engine, const mlx_generation_t *g, size_t best,
                                  mlx_json_layout_t layout, mlx_json_writer_t *json) {
  mlx_json_begin_object(json, "logprobs", MLX_JSON_ONE_LINE);
  mlx_json_begin_list(json, "content", layout);
  for (size_t i = 0; i < g->count; ++i) {
    const mlx_logprob_t *row = g->logprobs + i * (best + 1);
    mlx_json_begin_object(json, NULL, MLX_JSON_ONE_LINE);
    MLX_TRY(put_logprob(engine, &row[best], json));
    mlx_json_begin_list(json, "top_logprobs", MLX_JSON_ONE_LINE);
    for (size_t j = 0; j < best; ++j) {
      mlx_json_begin_object(json, NULL, MLX_JSON_ONE_LINE);
      MLX_TRY(put_logprob(engine, &row[j], json));
      mlx_json_end(json);
    }
    mlx_json_end(json);
    mlx_json_end(json);
  }
  mlx_json_end(json);
  mlx_json_end(json);
  return NULL;
}
