// Fields: typed lookups in a request body whose errors name the JSON path, and the check that every field is
// known. For shapes only.
//
// A shape lists its fields in a table: fields it reads, fields it accepts and ignores (docs/server.md lists
// them), and fields that are refused by name with a reason. mlx_fields_check refuses any other.
#ifndef MLXCEL_SERVER_FIELDS_H_
#define MLXCEL_SERVER_FIELDS_H_

#include "base/json.h"
#include "server/call.h"

typedef enum mlx_field_use { MLX_FIELD_READ, MLX_FIELD_IGNORED, MLX_FIELD_REFUSED } mlx_field_use_t;

typedef struct mlx_field {
  const char *name;  // NULL ends a table
  mlx_field_use_t use;
  const char *why;    // IGNORED: why that is right; REFUSED: what to do instead
  bool null_is_fine;  // REFUSED: null, false, 0, "" and empty lists are accepted
} mlx_field_t;

// A place in a request body. |parent| and |key| or |index| make the path in errors.
typedef struct mlx_place {
  const struct mlx_place *parent;
  const char *key;  // NULL: |index|
  size_t index;
  yyjson_val *value;
} mlx_place_t;

// Parses a body: an object with unique keys, nested at most 64 deep, valid UTF-8.
mlx_status_t mlx_fields_parse(const char *body, size_t length, yyjson_doc **out_doc) MLX_MUST_USE;
// An error about |place|: "messages[2].content: expected a string".
mlx_status_t mlx_field_error(const mlx_place_t *place, mlx_code_t code, const char *fmt, ...)
    MLX_PRINTF(3, 4) MLX_MUST_USE;
// The place of a key of an object, or of an item of a list. |value| is NULL for a missing key and for null.
mlx_place_t mlx_place_key(const mlx_place_t *parent, const char *key);
mlx_place_t mlx_place_item(const mlx_place_t *parent, size_t index, yyjson_val *value);
// Refuses keys of the object that |fields| does not list or refuses. With |lenient|, unknown keys are fine.
mlx_status_t mlx_fields_check(const mlx_place_t *object, const mlx_field_t *fields,
                              bool lenient) MLX_MUST_USE;

// Values. A missing key or null leaves *inout unchanged.
mlx_status_t mlx_field_int(const mlx_place_t *parent, const char *key, int64_t min, int64_t max,
                           int64_t *inout) MLX_MUST_USE;
mlx_status_t mlx_field_number(const mlx_place_t *parent, const char *key, double min, double max,
                              double *inout) MLX_MUST_USE;
mlx_status_t mlx_field_bool(const mlx_place_t *parent, const char *key, bool *inout) MLX_MUST_USE;
mlx_status_t mlx_field_text(const mlx_place_t *parent, const char *key,
                            const char **inout) MLX_MUST_USE;  // borrowed

// Fields that several APIs have, with the same meaning.
mlx_status_t mlx_field_stops(const mlx_place_t *parent, const char *key, mlx_call_t *call) MLX_MUST_USE;
mlx_status_t mlx_field_logit_bias(const mlx_place_t *parent, const char *key, mlx_call_t *call) MLX_MUST_USE;
// temperature, top_p, top_k, min_p, seed, penalties and llama.cpp's other samplers, by their usual names.
mlx_status_t mlx_field_sampling(const mlx_place_t *parent, mlx_call_t *call) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_FIELDS_H_
