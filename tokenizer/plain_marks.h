// Marks: special tokens in a text that are to be read as text.
//
// A user's text may spell a special token, <|im_start|>, and so pretend to be part of a chat template. A mark
// before it makes it plain text for mlx_tokenizer_encode. Marks are part of the text, so that they survive a
// chat template: it adds special tokens of its own around the marked text, and those have no mark. A text
// without special tokens gets no mark, so its tokens do not change.
//
// A text that contains a mark by itself loses it, which can only make a special token plain.
#ifndef MLXCEL_TOKENIZER_PLAIN_MARKS_H_
#define MLXCEL_TOKENIZER_PLAIN_MARKS_H_

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

// The offsets of marks that were removed from a text. Zero-initialize; release with mlx_plain_marks_clear.
typedef struct mlx_plain_marks {
  size_t *offsets;  // owned, ascending: in the text without marks
  size_t count, capacity;
  mlx_text_t text;  // owned: the text without marks, if it had any
} mlx_plain_marks_t;

void mlx_plain_marks_put(mlx_text_t *out);  // appends a mark
// Removes the marks of a text. If it has any, *|inout_text| is then the text of |marks|.
mlx_status_t mlx_plain_marks_remove(const char **inout_text, size_t *inout_length,
                                    mlx_plain_marks_t *out_marks) MLX_MUST_USE;
// True if a mark lies in the |length| bytes from |offset| on.
bool mlx_plain_marks_has(const mlx_plain_marks_t *marks, size_t offset, size_t length);
void mlx_plain_marks_clear(mlx_plain_marks_t *marks);

#endif  // MLXCEL_TOKENIZER_PLAIN_MARKS_H_
