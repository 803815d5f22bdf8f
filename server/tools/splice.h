// Splice: tokenizes a prompt that contains answers whose tokens are remembered.
#ifndef MLXCEL_SERVER_TOOLS_SPLICE_H_
#define MLXCEL_SERVER_TOOLS_SPLICE_H_

#include "server/tools/tool_memory.h"

// The tokens of a text that a chat template rendered, with the remembered tokens of each span in place of
// those that the tokenizer gives. If tokens of a span do not have the text of the span, all tokens are the
// tokenizer's. |limit| is that of mlx_engine_tokenize_within. Release with mlx_engine_free_ids.
mlx_status_t mlx_splice_tokenize(const mlx_engine_t *engine, const char *text, size_t length,
                                 const mlx_answer_spans_t *spans, size_t limit, int32_t **out_ids,
                                 size_t *out_count) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_TOOLS_SPLICE_H_
