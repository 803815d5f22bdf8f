// struct mlx_tokenizer: the components of a tokenizer.json. read*.c fill it in, encode.c and decode.c run it.
//
//   tokenizer.h      the public functions
//   read.c           creates a tokenizer: reads the post-processor, and the rest through read_model.c (model
//                    and added tokens) and read_steps.c (normalizer, pre-tokenizer, decoder)
//   encode.c         text -> ids: added tokens, normalize.c, pretokenize.c, then bpe.c, unigram.c or
//                    wordpiece.c, then the post-processor's template
//   decode.c         ids -> text
#ifndef MLXCEL_TOKENIZER_COMPONENTS_H_
#define MLXCEL_TOKENIZER_COMPONENTS_H_

#include "tokenizer/added_set.h"
#include "tokenizer/decoder.h"
#include "tokenizer/model.h"
#include "tokenizer/normalize.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/tokenizer.h"

typedef struct mlx_added_token {
  int32_t id;
  bool single_word, lstrip, rstrip;
  bool normalized;        // matched in the normalized text, not in the input
  char *normalized_text;  // owned; NULL if normalizing leaves the token's text unchanged
  size_t normalized_length;
} mlx_added_token_t;

#define MLX_TEMPLATE_TEXT -1  // in template_ids: the position of the text's ids

struct mlx_tokenizer {
  mlx_tokenizer_model_t model;

  mlx_added_token_t *added;  // owned
  size_t added_count;
  mlx_added_set_t raw_added;         // normalized = false: matched first, in the input
  mlx_added_set_t normalized_added;  // normalized = true: matched in the normalized rest
  mlx_regex_t word_regex;            // matches a word character; NULL if no added token is single_word

  mlx_normalizer_t normalizer;
  mlx_pretokenizer_t pretokenizer;
  mlx_decoder_t decoder;

  int32_t *template_ids;  // the post-processor's template, which add_special applies; owned, NULL if none
  size_t template_count;
};

#endif  // MLXCEL_TOKENIZER_COMPONENTS_H_
