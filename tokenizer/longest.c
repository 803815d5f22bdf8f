// How many bytes of a text one id can stand for. A text with more bytes than that for each id of a limit has
// too many ids, whatever it says.
#include "tokenizer/components.h"

// An NFC or NFD text is at most this much shorter than its input: ι with two marks, of 7 bytes, becomes a
// character of 2 bytes.
#define FORM_FACTOR 4

// Bytes of the input for each byte of the normalized text, at most; 0: a step may remove text.
static size_t shrinking(const mlx_normalizer_t *normalizer) {
  size_t factor = 1;
  for (size_t i = 0; i < normalizer->count; ++i) {
    const mlx_normalizer_step_t *step = &normalizer->steps[i];
    if (step->kind == MLX_NORMALIZER_FORM && (step->form == MLX_NFC || step->form == MLX_NFD))
      factor *= FORM_FACTOR;
    else if (step->kind != MLX_NORMALIZER_PREPEND && (step->kind != MLX_NORMALIZER_REPLACE || step->regex ||
                                                      step->content_length < step->pattern_length))
      return 0;
  }
  return factor;
}

static bool removes_delimiters(const mlx_pretokenizer_t *pretokenizer) {
  for (size_t i = 0; i < pretokenizer->count; ++i) {
    const mlx_pretokenizer_step_t *step = &pretokenizer->steps[i];
    if (step->kind != MLX_PRETOKENIZER_PREFIX_SPACE && step->kind != MLX_PRETOKENIZER_METASPACE &&
        step->behavior == MLX_SPLIT_REMOVED)
      return true;
  }
  return false;
}

// True if every text has tokens: no character is dropped, or is one of many in an unknown token.
static bool covers_all_bytes(const mlx_tokenizer_model_t *model) {
  bool all = model->kind != MLX_MODEL_WORDPIECE && (model->byte_level || model->byte_fallback);
  for (int byte = 0; byte < 256; ++byte) all &= model->vocab.byte_ids[byte] >= 0;
  return all;
}

size_t mlx_tokenizer_find_longest(const mlx_tokenizer_t *tokenizer) {
  const mlx_vocab_t *vocab = &tokenizer->model.vocab;
  const size_t factor = shrinking(&tokenizer->normalizer);
  size_t longest = 1;
  if (!factor || removes_delimiters(&tokenizer->pretokenizer) || !covers_all_bytes(&tokenizer->model))
    return 0;
  for (size_t i = 0; i < vocab->size; ++i) {
    const mlx_token_t *token = &vocab->tokens[i];
    if (!(token->flags & MLX_TOKEN_IS_USED)) continue;
    // An added token is matched as it is spelled; a byte-level one is spelled with more bytes than it has.
    const size_t length = tokenizer->model.byte_level && !(token->flags & MLX_TOKEN_IS_ADDED)
                              ? token->byte_length
                              : token->text_length;
    if (length > longest) longest = length;
  }
  for (size_t i = 0; i < tokenizer->added_count; ++i) {
    const mlx_added_token_t *added = &tokenizer->added[i];
    if (added->flags & (MLX_ADDED_LSTRIP | MLX_ADDED_RSTRIP)) return 0;
    if (added->length > longest) longest = added->length;
  }
  return longest * factor;
}
