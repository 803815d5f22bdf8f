// One function per value of tokenizer.ggml.model. Each reads the vocabulary and writes the members of a
// tokenizer.json into an object that the caller has begun. The caller zero-initialises |vocabulary| and
// clears it afterwards, also after a failure.
#ifndef MLXCEL_MODELS_IMPORT_GGUF_TOKENIZER_KINDS_H_
#define MLXCEL_MODELS_IMPORT_GGUF_TOKENIZER_KINDS_H_

#include "models/import/gguf_vocabulary.h"

// gguf_byte_level.c: "gpt2", byte-level BPE.
mlx_status_t mlx_gguf_write_byte_level(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary,
                                       mlx_json_writer_t *json) MLX_MUST_USE;
// Writes the member "merges" from the field tokenizer.ggml.merges.
mlx_status_t mlx_gguf_write_merges(const mlx_gguf_t *gguf, const mlx_gguf_vocabulary_t *vocabulary,
                                   mlx_json_writer_t *json) MLX_MUST_USE;
// gguf_sentencepiece.c: "llama", SentencePiece BPE; "gemma4", the same with a merge list in place of scores;
// and "t5", SentencePiece Unigram.
mlx_status_t mlx_gguf_write_sentencepiece(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary,
                                          mlx_json_writer_t *json) MLX_MUST_USE;
mlx_status_t mlx_gguf_write_merged_pieces(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary,
                                          mlx_json_writer_t *json) MLX_MUST_USE;
mlx_status_t mlx_gguf_write_unigram(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary,
                                    mlx_json_writer_t *json) MLX_MUST_USE;
// gguf_wordpiece.c: "bert", WordPiece.
mlx_status_t mlx_gguf_write_wordpiece(const mlx_gguf_t *gguf, mlx_gguf_vocabulary_t *vocabulary,
                                      mlx_json_writer_t *json) MLX_MUST_USE;

#endif  // MLXCEL_MODELS_IMPORT_GGUF_TOKENIZER_KINDS_H_
