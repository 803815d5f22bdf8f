// WordPiece: cuts a word into the longest tokens, from left to right. Tokens after the first are looked up
// with a prefix ("##"). If some part has no token, or the word is too long, the whole word is the unknown
// token.
#include "tokenizer/wordpiece.h"

static size_t count_characters(const char *text, size_t length) {
  size_t count = 0;
  for (size_t i = 0; i < length; ++i) count += ((uint8_t)text[i] & 0xc0) != 0x80;
  return count;
}

// The length of the longest token at |text| below |node| of the trie; 0 if there is none.
static size_t longest_token(const mlx_trie_t *trie, uint32_t node, const char *text, size_t length,
                            int32_t *out_id, size_t *out_steps) {
  size_t longest = 0, i = 0;
  for (; i < length && mlx_trie_step(trie, &node, text[i]); ++i) {
    if (trie->ends[node] < 0) continue;
    *out_id = trie->ends[node];
    longest = i + 1;
  }
  *out_steps = i + 1;
  return longest;
}

mlx_status_t mlx_wordpiece_encode(const mlx_tokenizer_model_t *model, const char *text, size_t length,
                                  mlx_budget_t *budget, mlx_ids_t *ids) {
  size_t before = ids->count, found;
  uint32_t prefix_node = 0;
  bool has_prefix = true, found_all = count_characters(text, length) <= model->max_word;
  for (size_t i = 0; i < model->prefix_length && has_prefix; ++i) {
    has_prefix = mlx_trie_step(&model->trie, &prefix_node, model->prefix[i]);
  }
  for (size_t at = 0; at < length && found_all; at += found) {
    int32_t id = -1;
    size_t steps = 1;
    found = at && !has_prefix
                ? 0
                : longest_token(&model->trie, at ? prefix_node : 0, text + at, length - at, &id, &steps);
    MLX_TRY(mlx_budget_step(budget, steps));
    found_all = found > 0;
    if (found_all) MLX_TRY(mlx_ids_append(ids, id));
  }
  if (found_all) return NULL;
  ids->count = before;
  return mlx_ids_append(ids, model->unk_id);
}
