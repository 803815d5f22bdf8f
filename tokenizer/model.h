// The model of a tokenizer.json: the vocabulary and the parameters of BPE, Unigram or WordPiece.
#ifndef MLXCEL_TOKENIZER_MODEL_H_
#define MLXCEL_TOKENIZER_MODEL_H_

#include "tokenizer/pair_map.h"
#include "tokenizer/trie.h"
#include "tokenizer/vocab.h"

typedef enum mlx_model_kind { MLX_MODEL_BPE, MLX_MODEL_UNIGRAM, MLX_MODEL_WORDPIECE } mlx_model_kind_t;

typedef struct mlx_tokenizer_model {
  mlx_model_kind_t kind;
  mlx_vocab_t vocab;
  bool byte_level;     // BPE works on bytes, not on characters
  bool byte_fallback;  // a character without a token becomes the tokens of its bytes, if each byte has one
  int32_t unk_id;      // the unknown token; -1: BPE drops unknown characters, Unigram fails

  bool fuse_unk;          // BPE: a run of unknown characters is one unk_id
  bool ignore_merges;     // BPE: a piece that is a token is not merged
  mlx_pair_map_t merges;  // BPE: (left id, right id) -> (rank, merged id)

  mlx_trie_t trie;   // Unigram and WordPiece: the vocabulary; its ends are ids
  double *scores;    // Unigram: [vocab.size] log probabilities; owned
  double unk_score;  // Unigram: the score of an unknown character

  char *prefix;  // WordPiece: continuing_subword_prefix ("##"); owned
  size_t prefix_length;
  size_t max_word;  // WordPiece: max_input_chars_per_word
} mlx_tokenizer_model_t;

#endif  // MLXCEL_TOKENIZER_MODEL_H_
