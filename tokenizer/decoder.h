// The decoder of a tokenizer.json: how token texts become output text. decode.c runs it.
#ifndef MLXCEL_TOKENIZER_DECODER_H_
#define MLXCEL_TOKENIZER_DECODER_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mlx_replacement {
  char *pattern, *content;  // owned
  size_t pattern_length, content_length;
} mlx_replacement_t;

#define MLX_MAX_REPLACEMENTS 8

// The fields apply to each token's text in this order.
typedef struct mlx_decoder {
  bool byte_level;
  mlx_replacement_t replacements[MLX_MAX_REPLACEMENTS];
  size_t replacement_count;
  bool byte_fallback;      // a token such as <0x41> is one byte
  uint32_t metaspace;      // this character becomes a space; 0: off
  bool drops_first_space;  // Metaspace: except in the first token, where it is removed
  bool wordpiece, cleanup;
  char *prefix;  // WordPiece: "##"; owned
  size_t prefix_length;
  uint32_t strip;      // Strip: this character is removed from the start of the whole text,
  size_t strip_count;  // at most this many times
} mlx_decoder_t;

#endif  // MLXCEL_TOKENIZER_DECODER_H_
