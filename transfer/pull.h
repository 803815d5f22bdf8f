// Pull: a model from elsewhere becomes a file or folder here, all of it and checked, or nothing.
//
// A model of a hub lies in the cache folder:
//   models/ORG/NAME/COMMIT/                    its files, as the hub names them; put there when all that was
//   asked for is checked models/ORG/NAME/COMMIT+SELECTOR.part/      files being pulled; a pull that was
//   killed goes on from here models/ORG/NAME/refs/REVISION+SELECTOR.json  what was asked for and which files
//   that was models/ORG/NAME/.lock                      held by the one who pulls
// `cache clear` leaves models alone: they cannot be made again.
#ifndef MLXCEL_TRANSFER_PULL_H_
#define MLXCEL_TRANSFER_PULL_H_

#include "artifact/manifest.h"
#include "base/report.h"
#include "transfer/http.h"

typedef struct mlx_pull_options {
  const char *endpoint;  // of the hub; NULL: $HF_ENDPOINT, else the setting
  const char *
      output;  // a folder that does not exist yet; NULL: the cache (a hub's model), NAME.mlxb here (a bundle)
  const char *target;  // of a bundle that has several: whose files to bring; NULL: the best, "all": all
  size_t (*rank)(
      const char *target,
      const char *cpu);  // how well a target suits this machine, 0 not at all; NULL: all are brought
  mlx_http_options_t http;
  const mlx_report_t *report;  // may be NULL
} mlx_pull_options_t;
void mlx_pull_options_initialize(mlx_pull_options_t *options);

// Pulls "hf:ORG/NAME[@REVISION][:FILE-OR-QUANT]": asks the hub which commit that is now and fetches what is
// missing. *|out_path| is what to open, a folder or a GGUF file; release with mlx_free.
mlx_status_t mlx_pull_hub(const char *ref, const mlx_pull_options_t *options, char **out_path) MLX_MUST_USE;

// What an earlier pull of the same reference left, or NULL. Asks nobody.
mlx_status_t mlx_pull_find(const char *ref, char **out_path) MLX_MUST_USE;

// Pulls a bundle (.mlxb) from a web server: of a folder its manifest, then the files that names; a file
// whole. *|out_path| is what it became here.
mlx_status_t mlx_pull_url(const char *url, const mlx_pull_options_t *options, char **out_path) MLX_MUST_USE;

// Where a bundle called |name| goes: |output|, else NAME.mlxb in this folder. Release with mlx_free.
mlx_status_t mlx_pull_place_bundle(const char *name, const char *output, char **out_path) MLX_MUST_USE;

// Refuses a bundle whose manifest lists no files: they could not be checked when they come.
mlx_status_t mlx_pull_need_files(const mlx_manifest_t *manifest) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_PULL_H_
