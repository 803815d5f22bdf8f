// Ignored fields: which unknown fields of requests were ignored. The client sees them in the response header
// X-Mlxcel-Ignored, the operator in one note for each set of fields.
//
// Threads: any.
#ifndef MLXCEL_SERVER_CORE_IGNORED_FIELDS_H_
#define MLXCEL_SERVER_CORE_IGNORED_FIELDS_H_

#include "base/report.h"
#include "base/text.h"
#include "server/http/http.h"

typedef struct mlx_ignored_fields mlx_ignored_fields_t;

// |report| may be NULL, and must be valid until mlx_ignored_fields_free.
mlx_status_t mlx_ignored_fields_create(const mlx_report_t *report,
                                       mlx_ignored_fields_t **out_fields) MLX_MUST_USE;
void mlx_ignored_fields_free(mlx_ignored_fields_t *fields);  // NULL is fine
// |paths| are those that mlx_fields_check noted, in a request to |endpoint|; it may be empty.
void mlx_ignored_fields_add(mlx_ignored_fields_t *fields, const char *endpoint, const mlx_text_t *paths,
                            mlx_exchange_t *exchange);
// The same for values that were too large and are limited, in the header X-Mlxcel-Clamped.
void mlx_ignored_fields_add_clamped(mlx_ignored_fields_t *fields, const char *endpoint,
                                    const mlx_text_t *names, mlx_exchange_t *exchange);
// The same for keywords of JSON schemas that are not enforced, in the header X-Mlxcel-Unenforced.
void mlx_ignored_fields_add_keywords(mlx_ignored_fields_t *fields, const char *endpoint,
                                     const mlx_text_t *keywords, mlx_exchange_t *exchange);

#endif  // MLXCEL_SERVER_CORE_IGNORED_FIELDS_H_
