// Remote cache: compiled modules that machines share, in a folder, on a web server or in an OCI registry.
//
// An entry is a record (artifact/module_record.h), its signature and the module. It is used only if a trusted
// key signed the record, the record is that of the wanted key and of an accepted compiler, and the module has
// its size and SHA-256. So the place need not be trusted, and plain http is no risk.
//
// In a folder and on a web server an entry is KEY/record.json, KEY/record.json.minisig and KEY/model.vmfb. In
// a registry it is the manifest with the tag KEY, whose layers are these files.
//
// Threads: a remote cache belongs to one thread at a time.
#ifndef MLXCEL_TRANSFER_REMOTE_CACHE_H_
#define MLXCEL_TRANSFER_REMOTE_CACHE_H_

#include "artifact/minisign.h"
#include "artifact/module_record.h"
#include "base/report.h"

typedef struct mlx_remote_cache mlx_remote_cache_t;

// |place| is "oci://HOST/NAME", "https://...", "http://..." or a folder. Nothing is sent yet. Release with
// mlx_remote_cache_close.
mlx_status_t mlx_remote_cache_open(const char *place, const mlx_report_t *report,
                                   mlx_remote_cache_t **out_remote) MLX_MUST_USE;
void mlx_remote_cache_close(mlx_remote_cache_t *remote);  // NULL is fine

// Downloads an entry: the module to |path|, which does not exist, and its record. Fails with MLX_NOT_FOUND if
// the cache has no such entry, and with another code if the entry or the cache cannot be used.
mlx_status_t mlx_remote_cache_fetch(mlx_remote_cache_t *remote, const mlx_module_wanted_t *wanted,
                                    const char *path, mlx_module_record_t *out_record) MLX_MUST_USE;
// Uploads the module at |path|, which must match |record|. *|out_added| is false if an entry that |key|
// signed is there already.
mlx_status_t mlx_remote_cache_put(mlx_remote_cache_t *remote, const mlx_module_record_t *record,
                                  const char *path, const mlx_secret_key_t *key,
                                  bool *out_added) MLX_MUST_USE;

#endif  // MLXCEL_TRANSFER_REMOTE_CACHE_H_
