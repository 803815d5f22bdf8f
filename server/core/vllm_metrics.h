// The metrics of vLLM, for dashboards and routers that know its names. Each sample has the labels of vLLM:
// model_name and engine.
//
// Threads: any thread.
#ifndef MLXCEL_SERVER_CORE_VLLM_METRICS_H_
#define MLXCEL_SERVER_CORE_VLLM_METRICS_H_

#include "base/text.h"
#include "server/core/models.h"

typedef struct mlx_vllm_metrics mlx_vllm_metrics_t;

mlx_status_t mlx_vllm_metrics_create(mlx_vllm_metrics_t **out_metrics) MLX_MUST_USE;
void mlx_vllm_metrics_free(mlx_vllm_metrics_t *metrics);  // NULL is fine

// |count| tokens after the first of a request came from the engine |engine| of |model|, |seconds| after each
// other.
void mlx_vllm_metrics_tokens(mlx_vllm_metrics_t *metrics, const mlx_served_model_t *model, size_t engine,
                             int64_t count, double seconds);

// A generating request of the engine |engine| is done.
typedef struct mlx_vllm_request {
  double seconds;         // from its arrival to its end
  double queue_seconds;   // from the scheduler's queue until it ran
  double decode_seconds;  // from its first token to its end
  int64_t prompt_tokens, output_tokens;
  mlx_finish_reason_t reason;
} mlx_vllm_request_t;
void mlx_vllm_metrics_request(mlx_vllm_metrics_t *metrics, const mlx_served_model_t *model, size_t engine,
                              const mlx_vllm_request_t *request);

// Counters and gauges of loaded models, and histograms of all models that had requests.
void mlx_vllm_metrics_write(mlx_vllm_metrics_t *metrics, mlx_models_t *models, mlx_text_t *out);

#endif  // MLXCEL_SERVER_CORE_VLLM_METRICS_H_
