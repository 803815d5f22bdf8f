// Pull from a web server: a bundle (.mlxb) that is served as plain files.
#ifndef MLXCEL_TRANSFER_PULL_URL_H_
#define MLXCEL_TRANSFER_PULL_URL_H_

#include "transfer/pull_hub.h"

// Pulls a bundle. If |url| is a folder, downloads its manifest and then the files that it lists; otherwise
// downloads a single-file bundle. *|out_path| is the local bundle; release with mlx_free.
mlx_status_t mlx_pull_url(const char *url, const mlx_pull_options_t *options, char **out_path) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_PULL_URL_H_
