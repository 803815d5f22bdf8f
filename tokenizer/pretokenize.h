// The pre-tokenizer of a tokenizer.json: a list of steps that cut a text into pieces. The model encodes each
// piece by itself.
#ifndef MLXCEL_TOKENIZER_PRETOKENIZE_H_
#define MLXCEL_TOKENIZER_PRETOKENIZE_H_

#include <stdint.h>

#include "base/text.h"
#include "tokenizer/regex.h"

// How a delimiter is handled, with Hugging Face's names.
typedef enum mlx_split_behavior {
  MLX_SPLIT_REMOVED,
  MLX_SPLIT_ISOLATED,
  MLX_SPLIT_MERGED_WITH_PREVIOUS,
  MLX_SPLIT_MERGED_WITH_NEXT,
  MLX_SPLIT_CONTIGUOUS,
} mlx_split_behavior_t;

typedef enum mlx_pretokenizer_kind {
  MLX_PRETOKENIZER_REGEX,         // delimiters are the matches of |regex|
  MLX_PRETOKENIZER_CLASS,         // every character for which |is_delimiter| is true
  MLX_PRETOKENIZER_CHARACTER,     // every occurrence of |character|
  MLX_PRETOKENIZER_PREFIX_SPACE,  // cuts nothing: ByteLevel's add_prefix_space
  MLX_PRETOKENIZER_METASPACE,     // cuts nothing: replaces spaces by |character|
} mlx_pretokenizer_kind_t;

// Metaspace's prepend_scheme.
typedef enum mlx_prepend { MLX_PREPEND_ALWAYS, MLX_PREPEND_FIRST, MLX_PREPEND_NEVER } mlx_prepend_t;

typedef struct mlx_pretokenizer_step {
  mlx_pretokenizer_kind_t kind;
  mlx_regex_t regex;                         // REGEX; owned
  bool (*is_delimiter)(uint32_t character);  // CLASS
  uint32_t character;                        // CHARACTER and METASPACE
  mlx_prepend_t prepend;                     // METASPACE
  mlx_split_behavior_t behavior;
  bool invert;  // REGEX: the text between matches is the delimiter
} mlx_pretokenizer_step_t;

typedef struct mlx_pretokenizer {
  mlx_pretokenizer_step_t *steps;  // owned
  size_t count;
} mlx_pretokenizer_t;
void mlx_pretokenizer_free(mlx_pretokenizer_t *pretokenizer);

typedef struct mlx_piece {
  const char *text;
  size_t length;
} mlx_piece_t;

typedef struct mlx_pieces {
  mlx_piece_t *items;
  size_t count, capacity;
} mlx_pieces_t;

// Working memory and result, reused between runs. Zero-initialize to start.
typedef struct mlx_pretokenizer_scratch {
  mlx_pieces_t pieces;  // the result; the pieces point into the input text or into |written|
  mlx_pieces_t next;
  mlx_text_t written[2];  // output of the last two steps that rewrote the text
  const char *origin;     // start of the text that |pieces| points into
  size_t start;           // bytes at |origin| that come from the first character of the whole input
  bool cut_short;         // |pieces| are only the first ones: there are more than |most|
} mlx_pretokenizer_scratch_t;
void mlx_pretokenizer_scratch_free(mlx_pretokenizer_scratch_t *scratch);

// Cuts |text|, which must be valid UTF-8, into scratch->pieces, at most |most| of them.
// |start| counts the leading bytes of |text| that come from the first character of the whole input; 0 if
// |text| does not begin the input.
mlx_status_t mlx_pretokenizer_run(const mlx_pretokenizer_t *pretokenizer, mlx_pretokenizer_scratch_t *scratch,
                                  mlx_regex_scanner_t *scanner, const char *text, size_t length, size_t start,
                                  size_t most) MLX_MUST_USE;

#endif  // MLXCEL_TOKENIZER_PRETOKENIZE_H_
