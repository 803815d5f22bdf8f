// GPT-2's byte-level alphabet: each of the 256 byte values is spelled as one printable character.
#ifndef MLXCEL_TOKENIZER_BYTE_LEVEL_H_
#define MLXCEL_TOKENIZER_BYTE_LEVEL_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Writes the UTF-8 spelling of |byte| and returns its length, 1 or 2.
size_t mlx_byte_level_spell(uint8_t byte, char out[2]);
// Turns the spelling of a whole token back into bytes. |out| has room for |length| bytes. Returns false if a
// character spells no byte.
bool mlx_byte_level_unspell(const char *text, size_t length, char *out, size_t *out_length);

#endif  // MLXCEL_TOKENIZER_BYTE_LEVEL_H_
