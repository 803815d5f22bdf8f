// What the files of the tokenizer share; nobody else includes this.
//
//   tokenizer.c              the public functions: added tokens, post-processing, decoding
//   tokenizer_read.c         tokenizer.json -> struct mlx_tokenizer
//   tokenizer_pretokenize.c  text -> pieces, by regular expressions
//   tokenizer_bpe.c          pieces -> ids, and the hash tables that need
#ifndef MLXCEL_RUNTIME_TOKENIZER_INTERNAL_H_
#define MLXCEL_RUNTIME_TOKENIZER_INTERNAL_H_

#include <oniguruma.h>
#include <stdint.h>

#include "base/json.h"
#include "base/memory.h"
#include "runtime/tokenizer.h"

// ---------------------------------------------------------------------------------------------------------------------
// Vocabulary and merges (tokenizer_bpe.c)

typedef struct mlx_token {
  const char *text;   // as the file spells it, UTF-8; NULL where an id is not used
  const char *bytes;  // what it decodes to; not always UTF-8 by itself
  uint32_t text_length;
  uint32_t byte_length;
  bool in_model;  // from model.vocab: what merging and ignore_merges may yield (an added token only matches whole)
  bool added;     // one of added_tokens, whether or not in the model too
  bool special;
} mlx_token_t;

// A map from 64-bit keys to 64-bit values of a capacity fixed at creation. The seed is random, so that no file can be
// written whose keys all fall on one slot.
typedef struct mlx_pair_map {
  struct mlx_pair_slot *slots;
  size_t mask;
  uint64_t seed;
} mlx_pair_map_t;

mlx_status_t mlx_pair_map_create(size_t capacity, uint64_t seed, mlx_pair_map_t *out_map) MLX_MUST_USE;
void mlx_pair_map_put(mlx_pair_map_t *map, uint64_t key, uint64_t value);  // replaces; never more keys than the capacity
bool mlx_pair_map_get(const mlx_pair_map_t *map, uint64_t key, uint64_t *out_value);
void mlx_pair_map_free(mlx_pair_map_t *map);

static inline uint64_t mlx_pair(uint32_t high, uint32_t low) { return (uint64_t)high << 32 | low; }

// ---------------------------------------------------------------------------------------------------------------------
// Pre-tokenizing (tokenizer_pretokenize.c)

typedef enum mlx_split_behavior {
  MLX_SPLIT_REMOVED,
  MLX_SPLIT_ISOLATED,
  MLX_SPLIT_MERGED_WITH_PREVIOUS,
  MLX_SPLIT_MERGED_WITH_NEXT,
  MLX_SPLIT_CONTIGUOUS,
} mlx_split_behavior_t;

typedef struct mlx_split_step {
  OnigRegex regex;  // NULL: not a split, but ByteLevel's add_prefix_space
  mlx_split_behavior_t behavior;
  bool invert;  // what the regex does not match is the delimiter
} mlx_split_step_t;

typedef struct mlx_piece {
  const char *text;
  size_t length;
} mlx_piece_t;

typedef struct mlx_pieces {
  mlx_piece_t *items;
  size_t count, capacity;
} mlx_pieces_t;

// The working memory of pre-tokenizing, reused from one stretch of text to the next.
typedef struct mlx_splitter {
  mlx_pieces_t pieces;  // the result; points into the text given and into |prefixed|
  mlx_pieces_t next;
  char *prefixed;
  size_t prefixed_capacity;
  OnigRegion *region;
  OnigMatchParam *limits;
  int64_t deadline_ns;
} mlx_splitter_t;

mlx_status_t mlx_regex_create(const char *pattern, size_t length, OnigRegex *out_regex) MLX_MUST_USE;
// True when |regex| matches the whole of the one character at |text|.
bool mlx_regex_is(OnigRegex regex, const char *text, size_t length);

mlx_status_t mlx_splitter_begin(size_t text_length, mlx_splitter_t *out_splitter) MLX_MUST_USE;
// Cuts |text| (valid UTF-8) into splitter->pieces.
mlx_status_t mlx_splitter_run(const mlx_tokenizer_t *tokenizer, mlx_splitter_t *splitter, const char *text,
                              size_t length) MLX_MUST_USE;
void mlx_splitter_end(mlx_splitter_t *splitter);

// ---------------------------------------------------------------------------------------------------------------------
// The tokenizer

typedef struct mlx_added_token {
  int32_t id;
  bool single_word, lstrip, rstrip;
} mlx_added_token_t;

// Finds added tokens: a trie over their bytes.
typedef struct mlx_added_set {
  mlx_pair_map_t edges;  // (node, byte) -> node; node 0 is the root
  int32_t *ends;         // per node: index into tokenizer->added, or -1
  size_t nodes;
  bool starts[256];  // bytes with an edge from the root: most of a text is skipped by this alone
} mlx_added_set_t;

#define MLX_TEMPLATE_TEXT -1  // in a template: the text's own ids

struct mlx_tokenizer {
  mlx_token_t *tokens;  // vocab_size, by id
  size_t vocab_size;
  size_t longest_text;  // of the tokens in the model, bytes
  char *arena;          // the bytes of all tokens
  int32_t *names;       // open addressing: slot -> id or -1
  size_t names_mask;
  uint64_t seed;

  int32_t byte_ids[256];  // the token of each single byte, or -1
  int32_t unk_id;         // for bytes without one; -1: such a byte is dropped
  bool fuse_unk;          // one unk_id for a run of them
  mlx_pair_map_t merges;  // (left id, right id) -> (rank, merged id)
  bool ignore_merges;

  mlx_added_token_t *added;
  size_t added_count;
  mlx_added_set_t raw_added;         // normalized = false: looked for first
  mlx_added_set_t normalized_added;  // then these, in what is left
  OnigRegex word_regex;              // NULL unless a token is single_word

  mlx_split_step_t *steps;
  size_t step_count;

  int32_t *template_ids;  // what add_special makes of a text's ids; NULL: nothing
  size_t template_count;
};

// Reads every field (tokenizer_read.c). On failure the caller frees what was filled in.
mlx_status_t mlx_tokenizer_read(const mlx_json_t *json, mlx_tokenizer_t *tokenizer) MLX_MUST_USE;

// The names table (tokenizer_bpe.c): a token's |text| must be set before its id is added.
mlx_status_t mlx_names_create(size_t capacity, mlx_tokenizer_t *tokenizer) MLX_MUST_USE;
int32_t mlx_names_find(const mlx_tokenizer_t *tokenizer, const char *text, size_t length);  // -1 when absent
void mlx_names_add(mlx_tokenizer_t *tokenizer, int32_t id);

typedef struct mlx_ids {
  int32_t *items;
  size_t count, capacity;
} mlx_ids_t;
mlx_status_t mlx_ids_append(mlx_ids_t *ids, int32_t id) MLX_MUST_USE;

// Merging (tokenizer_bpe.c). The working memory is reused from piece to piece.
typedef struct mlx_merger {
  struct mlx_symbol *symbols;
  size_t symbol_capacity;
  struct mlx_candidate *heap;
  size_t heap_count, heap_capacity;
  char *spelled;
  size_t spelled_capacity;
} mlx_merger_t;  // zero-initialise to start
mlx_status_t mlx_merger_run(const mlx_tokenizer_t *tokenizer, mlx_merger_t *merger, const char *bytes, size_t length,
                            mlx_ids_t *ids) MLX_MUST_USE;
void mlx_merger_end(mlx_merger_t *merger);

// GPT-2's reversible spelling: each byte as one printable character. The length written is 1 or 2.
size_t mlx_spell_byte(uint8_t byte, char out[2]);
// Undoes the spelling of a whole token into |out| (at least |length| bytes). False when a character spells no byte.
bool mlx_unspell(const char *text, size_t length, char *out, size_t *out_length);

#endif  // MLXCEL_RUNTIME_TOKENIZER_INTERNAL_H_
