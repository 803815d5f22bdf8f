// WordPiece: a word is cut into the longest tokens from left to right; what follows the first is looked up
// with a prefix
// ("##"). A word with a part that is no token, or with too many characters, is the unknown token as a whole.
#include "tokenizer/internal.h"

static size_t count_characters(const char *text, size_t length) {
  size_t count = 0;
  for (size_t i = 0; i < length; ++i) count += ((uint8_t)text[i] & 0xc0) != 0x80;
  return count;
}

// The longest token at |text| that begins at |node| of the trie; 0 for none.
static size_t longest_token(const mlx_trie_t *trie, uint32_t node, const char *text, size_t length,
                            int32_t *out_id) {
  size_t longest = 0;
  for (size_t i = 0; i < length && mlx_trie_step(trie, &node, text[i]); ++i) {
    if (trie->ends[node] < 0) continue;
    *out_id = trie->ends[node];
    longest = i + 1;
  }
  return longest;
}

mlx_status_t mlx_wordpiece_run(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                               mlx_ids_t *ids) {
  size_t before = ids->count, found;
  uint32_t inside = 0;
  bool has_inside = true, good = count_characters(text, length) <= tokenizer->max_word;
  for (size_t i = 0; i < tokenizer->prefix_length && has_inside; ++i) {
    has_inside = mlx_trie_step(&tokenizer->trie, &inside, tokenizer->prefix[i]);
  }
  for (size_t at = 0; at < length && good; at += found) {
    int32_t id = -1;
    found =
        at && !has_inside ? 0 : longest_token(&tokenizer->trie, at ? inside : 0, text + at, length - at, &id);
    good = found > 0;
    if (good) MLX_TRY(mlx_ids_append(ids, id));
  }
  if (good) return NULL;
  ids->count = before;
  return mlx_ids_append(ids, tokenizer->unk_id);
}
