// Meter: reports the progress of work on bytes or things: how many are done, how fast, and how long the rest
// takes.
#ifndef MLXCEL_BASE_METER_H_
#define MLXCEL_BASE_METER_H_

#include <stdint.h>

#include "base/digest.h"
#include "base/report.h"

// "1.2 GB", "312.0 kB": a byte count for messages, in decimal units.
typedef struct mlx_bytes_text {
  char text[32];
} mlx_bytes_text_t;
mlx_bytes_text_t mlx_bytes_show(uint64_t bytes);

// ", 12 s left", ", 3 min left": the end of a progress text; empty if |seconds| is not positive.
typedef struct mlx_left_text {
  char text[48];
} mlx_left_text_t;
mlx_left_text_t mlx_left_show(double seconds);

#define MLX_METER_SILENT 0.3  // seconds at the start of work without a report

// Belongs to one thread. Everything is borrowed until mlx_meter_end.
typedef struct mlx_meter {
  const mlx_report_t *report;  // may be NULL
  const char *title;           // "pulling org/name"
  uint64_t total;              // bytes or things; 0 if unknown
  const char *unit;            // what is counted: "tokens"; NULL, as after mlx_meter_begin: bytes
  // Private:
  double start, when;  // times in seconds: of the start and of the last report
  uint64_t last;       // bytes or things at the last report
  double speed;        // of them per second, smoothed
} mlx_meter_t;

void mlx_meter_begin(mlx_meter_t *meter, const mlx_report_t *report, const char *title, uint64_t total);
// Reports "TITLE: 1.2 GB of 4.6 GB, 310.0 MB/s, 11 s left" or "TITLE: 12 of 40 UNIT, 3 s left", at most ten
// times per second and not in the first 0.3 seconds, so that short work shows nothing. If something was
// reported, the end is too. |done| may decrease.
void mlx_meter_show(mlx_meter_t *meter, uint64_t done);
void mlx_meter_end(mlx_meter_t *meter);  // clears the progress line

// A watch that shows the hashing of a file on |meter| and sets its total.
mlx_digest_watch_t mlx_meter_watch(mlx_meter_t *meter);

#endif  // MLXCEL_BASE_METER_H_
