// Pull from a hub. A pull gives a complete, checked model or nothing.
//
// A hub model is stored in the cache folder:
//   models/ORG/NAME/COMMIT/                      its files; moved here once all chosen files are checked
//   models/ORG/NAME/COMMIT+SELECTOR.part/        files being pulled; an interrupted pull resumes here
//   models/ORG/NAME/refs/REVISION+SELECTOR.json  commit and files that this reference chose
//   models/ORG/NAME/.lock                        held by the pulling process
// `cache clear` keeps models, because they cannot be recomputed.
#ifndef MLXCEL_TRANSFER_PULL_HUB_H_
#define MLXCEL_TRANSFER_PULL_HUB_H_

#include "base/report.h"
#include "transfer/http.h"

// Options of mlx_pull_hub, mlx_pull_url and mlx_pull_gguf.
typedef struct mlx_pull_options {
  const char *endpoint;  // hub only: its address; NULL for $HF_ENDPOINT, else the public hub
  const char *output;    // path that must not exist; NULL for the cache (hub, GGUF), or ./NAME.mlxb (URL)
  const char *target;    // URL only: target to pull; NULL for the best one, "all" for all
  // URL only: how well a target suits this machine, 0 if it cannot run; NULL to pull all targets.
  size_t (*rank)(const char *target, const char *cpu);
  bool plain_http;  // GGUF only: allow http to another machine
  mlx_http_options_t http;
  const mlx_report_t *report;  // may be NULL
} mlx_pull_options_t;
void mlx_pull_options_initialize(mlx_pull_options_t *options);

// Pulls "hf:ORG/NAME[@REVISION][:FILE-OR-QUANT]": queries the hub for the current commit and downloads the
// missing files. *|out_path| is the folder or GGUF file to open; release with mlx_free.
mlx_status_t mlx_pull_hub(const char *ref, const mlx_pull_options_t *options, char **out_path) MLX_MUST_USE;

// Returns the path that an earlier pull of the same reference stored, or NULL. Uses no network.
mlx_status_t mlx_pull_hub_find(const char *ref, char **out_path) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_PULL_HUB_H_
