// Tokenizer: text to token ids and back, exactly as Hugging Face's `tokenizers` package does it for the same
// tokenizer.json.
//
// It knows byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM), SentencePiece's BPE with byte fallback (Llama 2,
// Mistral, Gemma), Unigram (T5, XLM-R) and WordPiece (BERT). A file that asks for anything it does not do
// (another model type, normalizer, decoder ...) is refused by the name of the field, never approximated. It
// reads only tokenizer.json; whoever has a GGUF file makes that text from its metadata. docs/tokenizers.md
// lists it all.
//
// Ownership: the tokenizer belongs to whoever created it and keeps nothing of the JSON text. Results are the
// caller's, to be released with mlx_free. Threads: a tokenizer never changes after create; any number of
// threads may use it at the same time.
#ifndef MLXCEL_TOKENIZER_TOKENIZER_H_
#define MLXCEL_TOKENIZER_TOKENIZER_H_

#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

typedef struct mlx_tokenizer mlx_tokenizer_t;

// Reads a tokenizer.json of |length| bytes; |name| is what errors call it (borrowed for the call only).
mlx_status_t mlx_tokenizer_create(const char *name, const char *json, size_t length,
                                  mlx_tokenizer_t **out_tokenizer) MLX_MUST_USE;
void mlx_tokenizer_free(mlx_tokenizer_t *tokenizer);  // NULL is fine

// Turns |length| bytes of |text| into ids. Bytes that are not UTF-8 are read as U+FFFD. Added tokens such as
// <|im_start|> are recognised wherever they stand in the text; |add_special| also adds what the
// post-processor adds (bos, eos). Fails with MLX_TIMEOUT or MLX_UNSUPPORTED when the file's regular
// expression explodes on this text, or when the text has a character that the vocabulary lacks and the file
// says nothing about such.
mlx_status_t mlx_tokenizer_encode(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                                  bool add_special, int32_t **out_ids, size_t *out_count) MLX_MUST_USE;

// Turns ids into text, which ends with a NUL not counted in *|out_length| (may be NULL). Ids that name no
// token give nothing, as do special ones with |skip_special|. Bytes that do not make UTF-8 become U+FFFD.
mlx_status_t mlx_tokenizer_decode(const mlx_tokenizer_t *tokenizer, const int32_t *ids, size_t count,
                                  bool skip_special, char **out_text, size_t *out_length) MLX_MUST_USE;

size_t mlx_tokenizer_vocab_size(const mlx_tokenizer_t *tokenizer);  // the largest id plus one
// The id of the token spelled |token| in the file ("<|im_end|>"); false when there is none.
bool mlx_tokenizer_find(const mlx_tokenizer_t *tokenizer, const char *token, int32_t *out_id);
bool mlx_tokenizer_is_special(const mlx_tokenizer_t *tokenizer, int32_t id);

// Appends the bytes that the token |id| adds to a text, which need not be whole characters; nothing for a
// special one with |skip_special|. |first|: it begins the text, where some decoders drop a space.
void mlx_tokenizer_piece(const mlx_tokenizer_t *tokenizer, int32_t id, bool first, bool skip_special,
                         mlx_text_t *out);
// Whether |first| makes any difference.
bool mlx_tokenizer_first_differs(const mlx_tokenizer_t *tokenizer);

// Decodes a stream of ids as they come. Only whole characters are given out; the bytes of an unfinished one
// wait here. All pushes and the flush together give exactly what mlx_tokenizer_decode gives for the same ids.
// One exception: where byte tokens (<0xE4>) do not make UTF-8, decode replaces their whole run, a stream only
// what it has not given out yet.
typedef struct mlx_detokenizer {
  char tail[4];         // a good beginning of a UTF-8 character
  uint8_t tail_length;  // 0 to 3
  bool started;         // a token was there
  size_t stripped;      // characters the decoder took from the beginning so far
} mlx_detokenizer_t;    // zero-initialise to start; one per stream

void mlx_detokenizer_push(const mlx_tokenizer_t *tokenizer, mlx_detokenizer_t *detokenizer, int32_t id,
                          bool skip_special, mlx_text_t *out);
// Ends the stream: an unfinished character becomes U+FFFD. The detokenizer is then ready for another stream.
void mlx_detokenizer_flush(const mlx_tokenizer_t *tokenizer, mlx_detokenizer_t *detokenizer, mlx_text_t *out);

#endif  // MLXCEL_TOKENIZER_TOKENIZER_H_
