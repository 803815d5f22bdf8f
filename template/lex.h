// Lexer: the source of a template as tokens, with Jinja's rules about whitespace around tags.
#ifndef MLXCEL_TEMPLATE_LEX_H_
#define MLXCEL_TEMPLATE_LEX_H_

#include "template/node.h"

typedef enum mlx_token_kind {
  MLX_TOKEN_END,        // of the source
  MLX_TOKEN_TEXT,       // outside of tags
  MLX_TOKEN_PRINT,      // {{
  MLX_TOKEN_PRINT_END,  // }}
  MLX_TOKEN_TAG,        // {%
  MLX_TOKEN_TAG_END,    // %}
  MLX_TOKEN_NAME,
  MLX_TOKEN_STRING,  // text: with its quotes and escapes
  MLX_TOKEN_INT,
  MLX_TOKEN_FLOAT,
  MLX_TOKEN_OPERATOR,  // text
} mlx_token_kind_t;

typedef struct mlx_lexeme {
  mlx_token_kind_t kind;
  mlx_span_t text;
  int line;
} mlx_lexeme_t;

// The tokens of the whole source in the template's arena. The last one is MLX_TOKEN_END.
mlx_status_t mlx_template_lex(mlx_template_t *template, mlx_lexeme_t **out_tokens) MLX_MUST_USE;

#endif  // MLXCEL_TEMPLATE_LEX_H_
