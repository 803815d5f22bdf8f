// Tokenizer: text to token ids and back, exactly as Hugging Face's `tokenizers` package does it for the same
// tokenizer.json.
//
// Supported models are byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM), SentencePiece BPE with byte fallback
// (Llama 2, Mistral, Gemma), Unigram (T5, XLM-R) and WordPiece (BERT). A file with an unsupported model,
// normalizer, pre-tokenizer or decoder is refused, never approximated; the error names the field. Only
// tokenizer.json is read: for a GGUF file, models/import/ builds that JSON from the metadata.
// docs/tokenizers.md lists every supported component.
//
// Ownership: the caller owns the tokenizer, which keeps no pointer to the JSON text. The caller frees results
// with mlx_free.
// Threads: a tokenizer is immutable after creation; any number of threads may use it at the same time.
#ifndef MLXCEL_TOKENIZER_TOKENIZER_H_
#define MLXCEL_TOKENIZER_TOKENIZER_H_

#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

typedef struct mlx_tokenizer mlx_tokenizer_t;

// Reads a tokenizer.json of |length| bytes. |name| identifies the file in error messages. Release with
// mlx_tokenizer_free.
mlx_status_t mlx_tokenizer_create(const char *name, const char *json, size_t length,
                                  mlx_tokenizer_t **out_tokenizer) MLX_MUST_USE;
void mlx_tokenizer_free(mlx_tokenizer_t *tokenizer);  // NULL is fine

// Encodes |length| bytes of |text|. Invalid UTF-8 is read as U+FFFD. Added tokens such as <|im_start|> are
// recognized anywhere in the text. |add_special| also adds the post-processor's tokens (bos, eos).
//
// Fails with MLX_TIMEOUT if it takes longer than 10 s plus 1 s for each 500 KB, and with MLX_UNSUPPORTED if a
// regular expression of the file backtracks too much on this text. Also fails if a character has no token and
// the file defines no unknown token (Unigram only).
mlx_status_t mlx_tokenizer_encode(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                                  bool add_special, int32_t **out_ids, size_t *out_count) MLX_MUST_USE;

// The same for a text that is useless if it has more than |limit| ids. Then *|out_ids| is NULL, *|out_count|
// is more than |limit| and at most the number of ids, and the work does not grow with the rest of the text:
// most tokenizers see from its length that it has too many, and others stop when they have them.
mlx_status_t mlx_tokenizer_encode_within(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                                         bool add_special, size_t limit, int32_t **out_ids,
                                         size_t *out_count) MLX_MUST_USE;

// The same with the post-processor's tokens, for a text that is cut to |limit| ids: of a longer one, its
// first ids between the post-processor's tokens. |limit| must have room for these.
mlx_status_t mlx_tokenizer_encode_cut(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                                      size_t limit, int32_t **out_ids, size_t *out_count) MLX_MUST_USE;

typedef struct mlx_text_view {
  const char *text;
  size_t length;
} mlx_text_view_t;
// The ids of a pair of texts with the post-processor's tokens for pairs. If they are more than |limit|, the
// longer text is cut first, as Hugging Face's strategy longest_first does it. |type_step| is added to the ids
// of tokens with type 1, and all ids must be below it; 0: types have no effect. Fails if the file has no
// template for pairs.
mlx_status_t mlx_tokenizer_encode_pair(const mlx_tokenizer_t *tokenizer, mlx_text_view_t first,
                                       mlx_text_view_t second, size_t limit, int32_t type_step,
                                       int32_t **out_ids, size_t *out_count) MLX_MUST_USE;

// Appends |text| to |out|, with a mark before each special token that it spells (tokenizer/plain_marks.h).
// Then mlx_tokenizer_encode reads them as text; it removes the marks. Added tokens that are not special, such
// as <think> of some models, stay tokens, as with Hugging Face's split_special_tokens and llama.cpp.
mlx_status_t mlx_tokenizer_mark(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                                mlx_text_t *out) MLX_MUST_USE;

// Decodes |count| ids to NUL-terminated UTF-8. *|out_length| (may be NULL) does not count the NUL. Ids
// without a token decode to nothing, and so do special tokens with |skip_special|. Bytes that are not UTF-8
// become U+FFFD.
mlx_status_t mlx_tokenizer_decode(const mlx_tokenizer_t *tokenizer, const int32_t *ids, size_t count,
                                  bool skip_special, char **out_text, size_t *out_length) MLX_MUST_USE;

size_t mlx_tokenizer_vocab_size(const mlx_tokenizer_t *tokenizer);  // the largest id plus one
// Finds the id of the token that the file spells |token| ("<|im_end|>"). Returns false if there is none.
bool mlx_tokenizer_find(const mlx_tokenizer_t *tokenizer, const char *token, int32_t *out_id);
bool mlx_tokenizer_is_special(const mlx_tokenizer_t *tokenizer, int32_t id);

// Appends the bytes that token |id| adds to a text; they may be part of a character. A special token adds
// nothing with |skip_special|. |first| means that the token starts the text: some decoders drop a space
// there.
void mlx_tokenizer_piece(const mlx_tokenizer_t *tokenizer, int32_t id, bool first, bool skip_special,
                         mlx_text_t *out);
// True if |first| can change the result of mlx_tokenizer_piece.
bool mlx_tokenizer_first_differs(const mlx_tokenizer_t *tokenizer);

// Decodes a stream of ids. Only complete characters are output; the bytes of an incomplete one are kept here.
// All pushes and the flush together give the same text as mlx_tokenizer_decode, with one exception. If byte
// tokens (<0xE4>) are not UTF-8, decode replaces their whole run. A stream replaces only the part that it has
// not output yet.
typedef struct mlx_detokenizer {
  char tail[4];         // an incomplete UTF-8 character
  uint8_t tail_length;  // 0 to 3
  bool started;         // at least one token was pushed
  size_t stripped;      // characters that the decoder's Strip has removed so far
} mlx_detokenizer_t;    // zero-initialize to start; one per stream

void mlx_detokenizer_push(const mlx_tokenizer_t *tokenizer, mlx_detokenizer_t *detokenizer, int32_t id,
                          bool skip_special, mlx_text_t *out);
// Ends the stream: an incomplete character becomes U+FFFD. Resets the detokenizer for the next stream.
void mlx_detokenizer_flush(const mlx_tokenizer_t *tokenizer, mlx_detokenizer_t *detokenizer, mlx_text_t *out);

#endif  // MLXCEL_TOKENIZER_TOKENIZER_H_
