// What the files of the tokenizer share; nobody else includes this.
//
//   tokenizer.c              the public functions: added tokens, post-processing
//   tokenizer_read.c         tokenizer.json -> struct mlx_tokenizer, with tokenizer_read_model.c (model,
//   added_tokens) and
//                            tokenizer_read_steps.c (normalizer, pre_tokenizer, decoder)
//   tokenizer_normalize.c    text -> text, by the steps of the file; tokenizer_unicode.c has the characters,
//                            tokenizer_charsmap.c SentencePiece's own map of them
//   tokenizer_pretokenize.c  text -> pieces, by regular expressions and classes of characters
//   tokenizer_bpe.c          pieces -> ids, and the hash tables that need; tokenizer_unigram.c,
//   tokenizer_wordpiece.c: the
//                            two other models
//   tokenizer_decode.c       ids -> text
#ifndef MLXCEL_TOKENIZER_INTERNAL_H_
#define MLXCEL_TOKENIZER_INTERNAL_H_

#include <oniguruma.h>
#include <stdint.h>

#include "base/json.h"
#include "base/memory.h"
#include "tokenizer/tokenizer.h"

// ----------------------------------------------------------------------------------------------------------
// Vocabulary and merges (tokenizer_bpe.c)

typedef struct mlx_token {
  const char *text;   // as the file spells it, UTF-8; NULL where an id is not used
  const char *bytes;  // what it decodes to; not always UTF-8 by itself
  uint32_t text_length;
  uint32_t byte_length;
  bool in_model;  // from model.vocab: what merging and ignore_merges may yield (an added token only matches
                  // whole)
  bool added;     // one of added_tokens, whether or not in the model too
  bool special;
  bool skipped;  // where special tokens are not wanted
} mlx_token_t;

// A map from 64-bit keys to 64-bit values of a capacity fixed at creation. The seed is random, so that no
// file can be written whose keys all fall on one slot.
typedef struct mlx_pair_map {
  struct mlx_pair_slot *slots;
  size_t mask;
  uint64_t seed;
} mlx_pair_map_t;

mlx_status_t mlx_pair_map_create(size_t capacity, uint64_t seed, mlx_pair_map_t *out_map) MLX_MUST_USE;
void mlx_pair_map_put(mlx_pair_map_t *map, uint64_t key,
                      uint64_t value);  // replaces; never more keys than the capacity
bool mlx_pair_map_get(const mlx_pair_map_t *map, uint64_t key, uint64_t *out_value);
void mlx_pair_map_free(mlx_pair_map_t *map);

static inline uint64_t mlx_pair(uint32_t high, uint32_t low) { return (uint64_t)high << 32 | low; }

// A trie over bytes. Node 0 is the root.
typedef struct mlx_trie {
  mlx_pair_map_t edges;  // (node, byte) -> node
  int32_t *ends;         // per node: what ends there, or -1
  size_t nodes;
} mlx_trie_t;

mlx_status_t mlx_trie_create(size_t bytes, uint64_t seed,
                             mlx_trie_t *out_trie) MLX_MUST_USE;                    // room for so many bytes
void mlx_trie_add(mlx_trie_t *trie, const char *text, size_t length, int32_t end);  // replaces
mlx_status_t mlx_trie_shrink(mlx_trie_t *trie)
    MLX_MUST_USE;  // gives back the room that tokens with equal beginnings left
bool mlx_trie_step(const mlx_trie_t *trie, uint32_t *inout_node, char byte);
void mlx_trie_free(mlx_trie_t *trie);

// ----------------------------------------------------------------------------------------------------------
// Characters (tokenizer_unicode.c)

// The character at |text|, which is valid UTF-8.
uint32_t mlx_character_at(const char *text, size_t *out_length);
size_t mlx_character_write(uint32_t character, char out[4]);
void mlx_character_append(mlx_text_t *out, uint32_t character);
void mlx_append_lower(mlx_text_t *out, uint32_t character);
bool mlx_is_space(uint32_t character);
bool mlx_is_mark(uint32_t character);
bool mlx_is_nonspacing(uint32_t character);
bool mlx_is_control(uint32_t character);
bool mlx_is_punctuation(uint32_t character);

typedef enum mlx_normal_form { MLX_NFC, MLX_NFD, MLX_NFKC, MLX_NFKD } mlx_normal_form_t;

typedef struct mlx_marks {
  uint32_t *items;
  size_t count, capacity;
} mlx_marks_t;  // working memory

mlx_status_t mlx_normal_form(mlx_normal_form_t form, const char *text, size_t length, mlx_marks_t *marks,
                             mlx_text_t *out) MLX_MUST_USE;

// ----------------------------------------------------------------------------------------------------------
// Pre-tokenizing (tokenizer_pretokenize.c)

typedef enum mlx_split_behavior {
  MLX_SPLIT_REMOVED,
  MLX_SPLIT_ISOLATED,
  MLX_SPLIT_MERGED_WITH_PREVIOUS,
  MLX_SPLIT_MERGED_WITH_NEXT,
  MLX_SPLIT_CONTIGUOUS,
} mlx_split_behavior_t;

typedef enum mlx_split_kind {
  MLX_SPLIT_REGEX,
  MLX_SPLIT_CLASS,      // every character of a class
  MLX_SPLIT_CHARACTER,  // every one of a certain character
  MLX_SPLIT_PREFIX,     // not a split, but ByteLevel's add_prefix_space
  MLX_SPLIT_METASPACE,  // not a split, but its replacement for spaces
} mlx_split_kind_t;

typedef enum mlx_prepend { MLX_PREPEND_ALWAYS, MLX_PREPEND_FIRST, MLX_PREPEND_NEVER } mlx_prepend_t;

typedef struct mlx_split_step {
  mlx_split_kind_t kind;
  OnigRegex regex;                      // owned
  bool (*belongs)(uint32_t character);  // of CLASS
  uint32_t character;                   // of CHARACTER and METASPACE
  mlx_prepend_t prepend;                // of METASPACE
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
  mlx_pieces_t pieces;  // the result; points into the text given or into one of |written|
  mlx_pieces_t next;
  mlx_text_t written[2];  // what steps that change the text wrote: the last and the one before
  const char *origin;     // where the stretch of text begins now
  size_t start;           // bytes from there on that stand for the whole text's first character
  OnigRegion *region;
  OnigMatchParam *limits;
  int64_t deadline_ns;
} mlx_splitter_t;

mlx_status_t mlx_regex_create(const char *pattern, size_t length, OnigRegex *out_regex) MLX_MUST_USE;
// True when |regex| matches the whole of the one character at |text|.
bool mlx_regex_is(OnigRegex regex, const char *text, size_t length);

// Tells |fn| every match of |regex| in |text| and every stretch between them, in order.
typedef mlx_status_t (*mlx_match_fn_t)(void *user, const char *text, size_t length, bool is_match);
mlx_status_t mlx_splitter_matches(mlx_splitter_t *splitter, OnigRegex regex, const char *text, size_t length,
                                  mlx_match_fn_t fn, void *user) MLX_MUST_USE;

mlx_status_t mlx_splitter_begin(size_t text_length, mlx_splitter_t *out_splitter) MLX_MUST_USE;
// Cuts |text| (valid UTF-8) into splitter->pieces. |at_start|: it is the beginning of the whole text.
mlx_status_t mlx_splitter_run(const mlx_tokenizer_t *tokenizer, mlx_splitter_t *splitter, const char *text,
                              size_t length, size_t start) MLX_MUST_USE;
void mlx_splitter_end(mlx_splitter_t *splitter);

// ----------------------------------------------------------------------------------------------------------
// Normalizing (tokenizer_normalize.c)

typedef enum mlx_normal_kind {
  MLX_NORMAL_FORM,
  MLX_NORMAL_LOWERCASE,
  MLX_NORMAL_STRIP_ACCENTS,
  MLX_NORMAL_STRIP,
  MLX_NORMAL_NMT,
  MLX_NORMAL_PREPEND,
  MLX_NORMAL_REPLACE,
  MLX_NORMAL_BERT_CLEAN,
  MLX_NORMAL_BERT_CHINESE,
  MLX_NORMAL_BERT_ACCENTS,
  MLX_NORMAL_PRECOMPILED,
} mlx_normal_kind_t;

typedef struct mlx_normal_step {
  mlx_normal_kind_t kind;
  mlx_normal_form_t form;  // of FORM
  bool left, right;        // of STRIP
  OnigRegex regex;         // of REPLACE; owned. NULL: |pattern| is meant literally
  char *pattern;           // owned
  size_t pattern_length;
  char *content;  // of REPLACE and PREPEND; owned
  size_t content_length;
  struct mlx_charsmap *charsmap;  // of PRECOMPILED; owned
} mlx_normal_step_t;

// The working memory of normalizing.
typedef struct mlx_normalizer {
  mlx_text_t now, next;
  mlx_marks_t marks;
} mlx_normalizer_t;  // zero-initialise to start

// *out_text is |text| itself or lies in |normalizer| until the next run. *inout_start: bytes at its beginning
// that stand for the whole text's first character.
mlx_status_t mlx_normalizer_run(const mlx_tokenizer_t *tokenizer, mlx_normalizer_t *normalizer,
                                mlx_splitter_t *splitter, const char *text, size_t length,
                                const char **out_text, size_t *out_length, size_t *inout_start) MLX_MUST_USE;
void mlx_normalizer_end(mlx_normalizer_t *normalizer);
void mlx_normal_step_free(mlx_normal_step_t *step);

// SentencePiece's compiled map of characters (tokenizer_charsmap.c), from its base64 text.
mlx_status_t mlx_charsmap_create(const char *base64, size_t length,
                                 struct mlx_charsmap **out_charsmap) MLX_MUST_USE;
// Stops once more than |max| bytes came out.
void mlx_charsmap_run(const struct mlx_charsmap *charsmap, const char *text, size_t length, size_t max,
                      mlx_text_t *out);
void mlx_charsmap_free(struct mlx_charsmap *charsmap);

// ----------------------------------------------------------------------------------------------------------
// The tokenizer

typedef struct mlx_added_token {
  int32_t id;
  bool single_word, lstrip, rstrip;
  bool normalized;  // looked for in the normalized text
  char *normal;     // owned: its normal form where that is another text, or NULL
  size_t normal_length;
} mlx_added_token_t;

// Finds added tokens. The trie's ends are indices into tokenizer->added.
typedef struct mlx_added_set {
  mlx_trie_t trie;
  bool starts[256];  // bytes with an edge from the root: most of a text is skipped by this alone
} mlx_added_set_t;

typedef enum mlx_model_kind { MLX_MODEL_BPE, MLX_MODEL_UNIGRAM, MLX_MODEL_WORDPIECE } mlx_model_kind_t;

typedef struct mlx_replacement {
  char *pattern, *content;  // owned
  size_t pattern_length, content_length;
} mlx_replacement_t;

#define MLX_MAX_REPLACEMENTS 8

// How ids become text. Each token's text goes through the fields in this order.
typedef struct mlx_decoder {
  bool byte_level;
  mlx_replacement_t replacements[MLX_MAX_REPLACEMENTS];
  size_t replacement_count;
  bool byte_fallback;      // <0x41> is a byte
  uint32_t metaspace;      // this character is a space; 0: no
  bool drops_first_space;  // ... but not in the first token
  bool wordpiece, cleanup;
  char *prefix;  // of wordpiece; owned
  size_t prefix_length;
  uint32_t strip;  // of the whole text's beginning so many of this character go
  size_t strip_count;
} mlx_decoder_t;

#define MLX_TEMPLATE_TEXT -1  // in a template: the text's own ids

struct mlx_tokenizer {
  mlx_token_t *tokens;  // vocab_size, by id
  size_t vocab_size;
  size_t longest_text;  // of the tokens in the model, bytes
  char *arena;          // the bytes of all tokens
  int32_t *names;       // open addressing: slot -> id or -1
  size_t names_mask;
  uint64_t seed;

  mlx_model_kind_t kind;
  bool byte_level;        // BPE works on bytes, not on characters
  bool byte_fallback;     // a character without a token is its bytes' tokens, where each has one
  int32_t byte_ids[256];  // the token of each single byte, or -1
  int32_t unk_id;         // for what has none; -1: it is dropped (BPE), or an error (Unigram)
  bool fuse_unk;          // one unk_id for a run of them
  mlx_pair_map_t merges;  // BPE: (left id, right id) -> (rank, merged id)
  bool ignore_merges;
  mlx_trie_t trie;   // Unigram, WordPiece: the vocabulary; its ends are ids
  double *scores;    // Unigram: per id
  double unk_score;  // Unigram
  char *prefix;      // WordPiece: of a token inside a word; owned
  size_t prefix_length;
  size_t max_word;  // WordPiece: characters

  mlx_added_token_t *added;
  size_t added_count;
  mlx_added_set_t raw_added;         // normalized = false: looked for first
  mlx_added_set_t normalized_added;  // then these, in what is left
  OnigRegex word_regex;              // NULL unless a token is single_word

  mlx_normal_step_t *normal_steps;
  size_t normal_count;
  mlx_split_step_t *steps;
  size_t step_count;
  mlx_decoder_t decoder;

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
mlx_status_t mlx_merger_run(const mlx_tokenizer_t *tokenizer, mlx_merger_t *merger, const char *bytes,
                            size_t length, mlx_ids_t *ids) MLX_MUST_USE;
void mlx_merger_end(mlx_merger_t *merger);

// The best path through a piece (tokenizer_unigram.c).
typedef struct mlx_lattice {
  struct mlx_lattice_node *nodes;
  size_t capacity;
} mlx_lattice_t;  // zero-initialise to start
mlx_status_t mlx_lattice_run(const mlx_tokenizer_t *tokenizer, mlx_lattice_t *lattice, const char *text,
                             size_t length, mlx_ids_t *ids) MLX_MUST_USE;
void mlx_lattice_end(mlx_lattice_t *lattice);

// The longest tokens first (tokenizer_wordpiece.c).
mlx_status_t mlx_wordpiece_run(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                               mlx_ids_t *ids) MLX_MUST_USE;

// Appends the tokens of all bytes of |text|; false when one has none (tokenizer_bpe.c).
mlx_status_t mlx_append_bytes(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                              mlx_ids_t *ids, bool *out_done) MLX_MUST_USE;
// The id of the model's token |text|, -1 when there is none.
int32_t mlx_model_find(const mlx_tokenizer_t *tokenizer, const char *text, size_t length);

// Bytes to text (tokenizer_decode.c): gives out whole characters, with U+FFFD for what is none.
void mlx_detokenizer_bytes(mlx_detokenizer_t *detokenizer, const char *bytes, size_t length, mlx_text_t *out);

// GPT-2's reversible spelling: each byte as one printable character. The length written is 1 or 2.
size_t mlx_spell_byte(uint8_t byte, char out[2]);
// Undoes the spelling of a whole token into |out| (at least |length| bytes). False when a character spells no
// byte.
bool mlx_unspell(const char *text, size_t length, char *out, size_t *out_length);

#endif  // MLXCEL_TOKENIZER_INTERNAL_H_
