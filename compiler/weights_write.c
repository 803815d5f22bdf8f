// Writes the weight archive. While one thread hashes and writes a batch of pieces, the others pack the next.
#include <string.h>

#include "artifact/archive.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "base/meter.h"
#include "base/parallel.h"
#include "compiler/weights.h"

#define PIECE ((size_t)2 << 20)  // bytes that a thread packs at a time
#define LEAST_PIECES 8           // in a batch
#define MOST_PIECES 64

typedef struct batch {
  const mlx_weight_reader_t *weights;
  mlx_archive_writer_t *archive;
  uint64_t first;  // offset of the batch in the data
  uint8_t *bytes;
  size_t size;
  const uint8_t *packed;  // the batch before
  size_t packed_size;
} batch_t;

// Index 0 of the work is to write the batch before.
static mlx_status_t write_or_pack(void *user, int worker, uint64_t index) {
  const batch_t *batch = user;
  if (!index) return mlx_archive_write(batch->archive, batch->packed, batch->packed_size);
  const size_t at = (size_t)(index - 1) * PIECE, left = batch->size - at;
  return batch->weights->read(batch->weights->user, worker, batch->first + at, left < PIECE ? left : PIECE,
                              batch->bytes + at);
}

// |buffer| has space for two batches of |most| bytes.
static mlx_status_t write_batches(batch_t *batch, uint8_t *buffer, size_t most, int workers,
                                  mlx_meter_t *meter) {
  const uint64_t total = batch->weights->size;
  for (size_t nth = 0; batch->first < total; batch->first += batch->size, ++nth) {
    batch->size = total - batch->first < most ? (size_t)(total - batch->first) : most;
    batch->bytes = buffer + nth % 2 * most;
    MLX_TRY(mlx_parallel((batch->size + PIECE - 1) / PIECE + 1, workers, write_or_pack, batch));
    batch->packed = batch->bytes;
    batch->packed_size = batch->size;
    MLX_TRY(mlx_report_check(meter->report));
    mlx_meter_show(meter, batch->first);
  }
  return mlx_archive_write(batch->archive, batch->packed, batch->packed_size);
}

static mlx_status_t write_all(const mlx_model_t *model, mlx_storage_t storage, mlx_archive_writer_t *archive,
                              const mlx_report_t *report) {
  size_t pieces = 2 * (size_t)mlx_cpu_count();
  if (pieces < LEAST_PIECES) pieces = LEAST_PIECES;
  if (pieces > MOST_PIECES) pieces = MOST_PIECES;
  const int workers = mlx_parallel_workers(pieces + 1, 0);
  mlx_packer_t *packer;
  uint8_t *buffer = NULL;
  MLX_TRY(mlx_packer_create(model, storage, workers, &packer));
  batch_t batch = {.weights = mlx_packer_reader(packer), .archive = archive};
  const uint64_t total = batch.weights->size;
  const size_t most = total < pieces * PIECE ? (size_t)total : pieces * PIECE;
  mlx_meter_t meter;
  mlx_meter_begin(&meter, report, "packing weights (once, then cached)", total);
  mlx_status_t status = mlx_alloc(2 * most, 1, &buffer);
  if (!status) status = write_batches(&batch, buffer, most, workers, &meter);
  mlx_free(buffer);
  mlx_packer_free(packer);
  return status;
}

mlx_status_t mlx_weights_write(const mlx_model_t *model, mlx_storage_t storage, const char *path,
                               const mlx_report_t *report) {
  mlx_cache_hashed_file_t file;
  return mlx_weights_write_hashed(model, storage, path, false, report, &file);
}

mlx_status_t mlx_weights_write_hashed(const mlx_model_t *model, mlx_storage_t storage, const char *path,
                                      bool wants_sha256, const mlx_report_t *report,
                                      mlx_cache_hashed_file_t *out_file) {
  mlx_archive_item_t *items;
  MLX_TRY(mlx_alloc(model->weight_count, sizeof *items, &items));
  for (size_t i = 0; i < model->weight_count; ++i) {
    items[i].name = model->weights[i].name;
    items[i].size = mlx_weight_stored_bytes(&model->weights[i], storage);
  }
  mlx_archive_writer_t archive;
  mlx_status_t status = mlx_archive_create(path, items, model->weight_count, wants_sha256, &archive);
  mlx_free(items);
  if (status) return status;
  status = write_all(model, storage, &archive, report);
  if (status) {
    mlx_archive_abandon(&archive);
  } else {
    status = mlx_archive_finish(&archive);
    out_file->size = archive.file.offset;
    memcpy(out_file->tree, archive.tree_hex, sizeof out_file->tree);
    memcpy(out_file->sha256, archive.sha256_hex, sizeof out_file->sha256);
  }
  mlx_report_done(report);
  return status;
}
