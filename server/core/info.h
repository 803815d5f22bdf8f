// Info: endpoints that report the state of the server. They answer at once, on the loop thread.
#ifndef MLXCEL_SERVER_CORE_INFO_H_
#define MLXCEL_SERVER_CORE_INFO_H_

#include "server/core/site.h"

void mlx_info_health(mlx_site_t *site, mlx_exchange_t *exchange);
void mlx_info_live(mlx_site_t *site, mlx_exchange_t *exchange);   // for a liveness probe
void mlx_info_ready(mlx_site_t *site, mlx_exchange_t *exchange);  // for a readiness probe
void mlx_info_v2_live(mlx_site_t *site, mlx_exchange_t *exchange);
void mlx_info_v2_ready(mlx_site_t *site, mlx_exchange_t *exchange);
void mlx_info_metrics(mlx_site_t *site, mlx_exchange_t *exchange);
void mlx_info_server(mlx_site_t *site, mlx_exchange_t *exchange);
void mlx_info_models(mlx_site_t *site, mlx_exchange_t *exchange);  // OpenAI's list
// OpenAI's object of one model. Fails with MLX_NOT_FOUND.
mlx_status_t mlx_info_model(mlx_site_t *site, const char *name, mlx_exchange_t *exchange) MLX_MUST_USE;
void mlx_info_tags(mlx_site_t *site, mlx_exchange_t *exchange);     // Ollama's list of models
void mlx_info_running(mlx_site_t *site, mlx_exchange_t *exchange);  // Ollama's list of loaded models
void mlx_info_version(mlx_site_t *site, mlx_exchange_t *exchange);  // Ollama's version
void mlx_info_slots(mlx_site_t *site, mlx_exchange_t *exchange);    // llama.cpp's slots
void mlx_info_build(mlx_site_t *site, mlx_exchange_t *exchange);    // the version of mlxcel, as vLLM's
void mlx_info_ping(mlx_site_t *site, mlx_exchange_t *exchange);     // an empty 200, as vLLM's

#endif  // MLXCEL_SERVER_CORE_INFO_H_
