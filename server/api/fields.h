// Fields: typed lookups in a request body whose errors name the JSON path, and the check that every field is
// known. For APIs only.
//
// An API lists its fields in a table: fields it reads, fields it accepts and ignores (docs/server.md lists
// them), and fields that are refused by name with a reason. mlx_fields_check refuses any other, or
// notes it (mlx_place_root).
#ifndef MLXCEL_SERVER_API_FIELDS_H_
#define MLXCEL_SERVER_API_FIELDS_H_

#include "base/json.h"
#include "base/text.h"
#include "server/api/call.h"

typedef enum mlx_field_use { MLX_FIELD_READ, MLX_FIELD_IGNORED, MLX_FIELD_REFUSED } mlx_field_use_t;

typedef struct mlx_field {
  const char *name;  // NULL ends a table
  mlx_field_use_t use;
  const char *why;    // IGNORED: why that is right; REFUSED: what to do instead
  bool null_is_fine;  // REFUSED: null, false, 0, "" and empty lists are accepted
} mlx_field_t;

#define MLX_MAX_BODY_DEPTH 64  // lists and objects inside one another

// Rows of a table: a field that is read, ignored, refused, or refused unless it is null, false, 0 or empty.
#define MLX_READ(name) {name, MLX_FIELD_READ, NULL, false}
#define MLX_IGNORE(name, why) {name, MLX_FIELD_IGNORED, why, false}
#define MLX_REFUSE(name, instead) {name, MLX_FIELD_REFUSED, instead, false}
#define MLX_REFUSE_VALUE(name, instead) {name, MLX_FIELD_REFUSED, instead, true}
#define MLX_FIELDS_END {NULL, MLX_FIELD_READ, NULL, false}

// Rows of what mlx_field_sampling reads.
#define MLX_SAMPLING_FIELDS                                                                                \
  MLX_READ("temperature"), MLX_READ("top_k"), MLX_READ("top_p"), MLX_READ("min_p"), MLX_READ("typical_p"), \
      MLX_READ("top_n_sigma"), MLX_READ("xtc_probability"), MLX_READ("xtc_threshold"),                     \
      MLX_READ("repeat_penalty"), MLX_READ("repetition_penalty"), MLX_READ("repeat_last_n"),               \
      MLX_READ("frequency_penalty"), MLX_READ("presence_penalty"), MLX_READ("dry_multiplier"),             \
      MLX_READ("dry_base"), MLX_READ("dry_allowed_length"), MLX_READ("dry_penalty_last_n"),                \
      MLX_READ("dry_sequence_breakers"), MLX_READ("mirostat"), MLX_READ("mirostat_tau"),                   \
      MLX_READ("mirostat_eta"), MLX_READ("seed")

// A place in a request body. |parent| and |key| or |index| make the path in errors.
typedef struct mlx_place {
  const struct mlx_place *parent;
  const char *key;  // NULL: |index|
  size_t index;
  yyjson_val *value;
  mlx_text_t *unknown;  // of a root: see mlx_place_root
} mlx_place_t;

// Parses a body: an object with unique keys, nested at most MLX_MAX_BODY_DEPTH deep, valid UTF-8.
// Release with yyjson_doc_free.
mlx_status_t mlx_fields_parse(const char *body, size_t length, yyjson_doc **out_doc) MLX_MUST_USE;
// The root of a parsed body. mlx_fields_check appends the paths of unknown keys to |unknown|, separated by
// ", ", and ignores the keys. NULL: it refuses them. |unknown| is borrowed.
mlx_place_t mlx_place_root(const yyjson_doc *doc, mlx_text_t *unknown);
// Parses a body and reads it with |read|. Before, call->details gets |details_size| bytes of zeros, for what
// only the api needs. The api's free_details releases them, also after a failure. call->unknown is that of
// the root, and NULL afterwards.
typedef mlx_status_t (*mlx_fields_read_fn_t)(const mlx_place_t *root, mlx_api_call_t *call);
mlx_status_t mlx_fields_read(const char *body, size_t length, size_t details_size, mlx_fields_read_fn_t read,
                             mlx_api_call_t *call) MLX_MUST_USE;
// An error about |place|: "messages[2].content: expected a string". An error about the root has no path.
mlx_status_t mlx_field_error(const mlx_place_t *place, mlx_code_t code, const char *fmt, ...)
    MLX_PRINTF(3, 4) MLX_MUST_USE;
// The error "PATH: expected WHAT, not a number". |place| has a value or is a missing key.
mlx_status_t mlx_field_expected(const mlx_place_t *place, const char *what) MLX_MUST_USE;
// The place of a key of an object, or of an item of a list. |value| is NULL for a missing key and for null.
// The place borrows |parent| and |key|.
mlx_place_t mlx_place_key(const mlx_place_t *parent, const char *key);
mlx_place_t mlx_place_item(const mlx_place_t *parent, size_t index, yyjson_val *value);
// Refuses keys of the object that |fields| does not list or refuses. With |lenient|, unknown keys are fine.
// Fails if the place is not an object. If the root has a text for unknown keys, they are ignored and noted.
mlx_status_t mlx_fields_check(const mlx_place_t *object, const mlx_field_t *fields,
                              bool lenient) MLX_MUST_USE;

// Values. A missing key or null leaves *inout unchanged. 3.0 is an integer.
mlx_status_t mlx_field_int(const mlx_place_t *parent, const char *key, int64_t min, int64_t max,
                           int64_t *inout) MLX_MUST_USE;
mlx_status_t mlx_field_number(const mlx_place_t *parent, const char *key, double min, double max,
                              double *inout) MLX_MUST_USE;
mlx_status_t mlx_field_bool(const mlx_place_t *parent, const char *key, bool *inout) MLX_MUST_USE;
// A text without NUL, borrowed from the document.
mlx_status_t mlx_field_text(const mlx_place_t *parent, const char *key, const char **inout) MLX_MUST_USE;
// The same as a copy. Releases the old text. Release with mlx_free.
mlx_status_t mlx_field_copy(const mlx_place_t *parent, const char *key, char **inout) MLX_MUST_USE;
// The JSON text of a value, as a copy. Release with mlx_free.
mlx_status_t mlx_field_json(yyjson_val *value, char **out_json, size_t *out_length) MLX_MUST_USE;

// Fields that several APIs have, with the same meaning.

// A text or a list of texts, appended to the call's stop strings.
mlx_status_t mlx_field_stops(const mlx_place_t *parent, const char *key, mlx_api_call_t *call) MLX_MUST_USE;
// OpenAI's object {"TOKEN ID": BIAS}, or llama.cpp's list of [TOKEN ID, BIAS or false]. A bias of -100 or
// false forbids the token.
mlx_status_t mlx_field_logit_bias(const mlx_place_t *parent, const char *key,
                                  mlx_api_call_t *call) MLX_MUST_USE;
// The sampling options, by the names of OpenAI, llama.cpp and vLLM: MLX_SAMPLING_FIELDS.
mlx_status_t mlx_field_sampling(const mlx_place_t *parent, mlx_api_call_t *call) MLX_MUST_USE;

// "parse_special": false means that special tokens in texts of the client are text. *|inout_plain| is 1 then,
// 0 for true, and stays as it is without the field.
mlx_status_t mlx_field_parse_special(const mlx_place_t *parent, int *inout_plain) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_API_FIELDS_H_
