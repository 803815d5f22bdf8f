// Repair of invalid UTF-8, for encode.c. The other functions of decode.c are public, in tokenizer.h.
#ifndef MLXCEL_TOKENIZER_DECODE_H_
#define MLXCEL_TOKENIZER_DECODE_H_

#include "base/text.h"

// Appends |bytes| as valid UTF-8. Every invalid part becomes U+FFFD, as with Python's errors='replace'.
void mlx_utf8_repair(const char *bytes, size_t length, mlx_text_t *out);

#endif  // MLXCEL_TOKENIZER_DECODE_H_
