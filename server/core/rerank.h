// Rerank: POST /v1/rerank (Cohere, Jina, TEI) and POST /v1/score (vLLM). A cross-encoder scores pairs of
// texts.
#ifndef MLXCEL_SERVER_CORE_RERANK_H_
#define MLXCEL_SERVER_CORE_RERANK_H_

#include "server/api/rerank.h"
#include "server/core/job.h"

// Loop thread: begins the stages of |job|, in the form of |api|.
mlx_status_t mlx_rerank_start(mlx_job_t *job, const mlx_rerank_api_t *api) MLX_MUST_USE;

#endif  // MLXCEL_SERVER_CORE_RERANK_H_
