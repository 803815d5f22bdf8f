// struct mlx_tokenizer: the components of a tokenizer.json. read*.c fill it in, encode.c and decode.c run it.
//
//   tokenizer.h      the public functions
//   open.c           finds the image of a tokenizer in the cache, or creates the tokenizer and stores its
//                    image
//   image.c          the tables of a tokenizer as one mapped file; image_writer.c stores it
//   read.c           creates a tokenizer: reads the post-processor, and the rest through read_model.c (model
//                    and added tokens) and read_steps.c (normalizer, pre-tokenizer, decoder)
//   encode.c         text -> ids: added tokens, normalize.c, pretokenize.c, then bpe.c, unigram.c or
//                    wordpiece.c, then the post-processor's template
//   decode.c         ids -> text
//   longest.c        how many bytes of a text one id can stand for
#ifndef MLXCEL_TOKENIZER_COMPONENTS_H_
#define MLXCEL_TOKENIZER_COMPONENTS_H_

#include "base/file.h"
#include "base/meter.h"
#include "tokenizer/added_set.h"
#include "tokenizer/decoder.h"
#include "tokenizer/image_writer.h"
#include "tokenizer/model.h"
#include "tokenizer/normalize.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/tokenizer.h"

enum {
  MLX_ADDED_SINGLE_WORD = 1,
  MLX_ADDED_LSTRIP = 2,
  MLX_ADDED_RSTRIP = 4,
  MLX_ADDED_NORMALIZED = 8,  // matched in the normalized text, not in the input
};

typedef struct mlx_added_token {
  int32_t id;
  uint32_t flags;         // MLX_ADDED_SINGLE_WORD and so on
  uint32_t text, length;  // the text that it matches, in the vocabulary's arena
} mlx_added_token_t;

#define MLX_TEMPLATE_TEXT -1    // in a template: the position of the text's ids
#define MLX_TEMPLATE_SECOND -2  // in that of pairs: the position of the second text's ids

typedef struct mlx_pair_item {
  int32_t id, type;  // type: of the token, or of all tokens of the text
} mlx_pair_item_t;

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

  size_t longest;  // bytes of the input that one id can stand for; 0: no limit is known

  int32_t *template_ids;  // the post-processor's template, which add_special applies; NULL if none
  size_t template_count;
  mlx_pair_item_t *pair;  // the template for pairs of texts; NULL if none
  size_t pair_count;

  char *steps;  // normalizer, pre_tokenizer and decoder as JSON: an image keeps them as text
  size_t steps_length;
  // If |is_image|, all tables and texts are in an image (image.h). Otherwise the tokenizer owns them.
  bool is_image;
  mlx_map_t image;             // the mapped file of the image; empty if its memory is borrowed
  mlx_image_writer_t *writer;  // stores the image of a new tokenizer; may be NULL
};

// The same as mlx_tokenizer_create. |meter|, whose unit and total this sets, shows how much is done.
mlx_status_t mlx_tokenizer_build(const char *name, const char *json, size_t length, mlx_meter_t *meter,
                                 mlx_tokenizer_t **out_tokenizer) MLX_MUST_USE;
// |longest| of a tokenizer whose other members are set.
size_t mlx_tokenizer_find_longest(const mlx_tokenizer_t *tokenizer);
// Creates word_regex if an added token needs it.
mlx_status_t mlx_tokenizer_create_word_regex(mlx_tokenizer_t *tokenizer) MLX_MUST_USE;

#endif  // MLXCEL_TOKENIZER_COMPONENTS_H_
