// Measures the speed of work on bytes and reports it. See meter.h.
#include "base/meter.h"

#include <stdio.h>

#include "base/clock.h"

#define INTERVAL 0.1   // seconds between two reports
#define SMOOTHING 0.1  // weight of the newest sample in the reported speed

mlx_bytes_text_t mlx_bytes_show(uint64_t bytes) {
  static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
  double value = (double)bytes;
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < sizeof units / sizeof *units) value /= 1000, ++unit;
  mlx_bytes_text_t out;
  snprintf(out.text, sizeof out.text, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
  return out;
}

mlx_left_text_t mlx_left_show(double seconds) {
  mlx_left_text_t out = {""};
  if (seconds >= 120)
    snprintf(out.text, sizeof out.text, ", %.0f min left", seconds / 60);
  else if (seconds > 0)
    snprintf(out.text, sizeof out.text, ", %.0f s left", seconds);
  return out;
}

void mlx_meter_begin(mlx_meter_t *meter, const mlx_report_t *report, const char *title, uint64_t total) {
  const double now = mlx_seconds();
  *meter = (mlx_meter_t){.report = report, .title = title, .total = total, .start = now, .when = now};
}

static void measure(mlx_meter_t *meter, uint64_t done, double elapsed) {
  if (done >= meter->last) {
    const double speed = (double)(done - meter->last) / elapsed;
    meter->speed = meter->speed > 0 ? meter->speed + SMOOTHING * (speed - meter->speed) : speed;
  }
  meter->last = done;
}

static void report_bytes(const mlx_meter_t *meter, uint64_t done, mlx_left_text_t left) {
  mlx_report_progress(meter->report, "%s: %s of %s, %s/s%s", meter->title, mlx_bytes_show(done).text,
                      mlx_bytes_show(meter->total).text, mlx_bytes_show((uint64_t)meter->speed).text,
                      left.text);
}

static void report_end(const mlx_meter_t *meter, uint64_t done) {
  if (meter->unit)
    mlx_report_progress(meter->report, "%s: %llu %s", meter->title, (unsigned long long)done, meter->unit);
  else
    mlx_report_progress(meter->report, "%s: %s", meter->title, mlx_bytes_show(done).text);
}

void mlx_meter_show(mlx_meter_t *meter, uint64_t done) {
  const double now = mlx_seconds(), elapsed = now - meter->when;
  // After a report, the end is reported too, however soon it comes.
  const bool is_end =
      meter->total && done >= meter->total && meter->last < meter->total && meter->when > meter->start;
  if (now - meter->start < MLX_METER_SILENT || (elapsed < INTERVAL && !is_end)) return;
  if (elapsed >= INTERVAL)
    measure(meter, done, elapsed);
  else
    meter->last = done;
  meter->when = now;
  if (!meter->total || done >= meter->total) {
    report_end(meter, done);
    return;
  }
  const double seconds = meter->speed > 0 ? (double)(meter->total - done) / meter->speed : 0;
  if (!meter->unit)
    report_bytes(meter, done, mlx_left_show(seconds));
  else
    mlx_report_progress(meter->report, "%s: %llu of %llu %s%s", meter->title, (unsigned long long)done,
                        (unsigned long long)meter->total, meter->unit, mlx_left_show(seconds).text);
}

void mlx_meter_end(mlx_meter_t *meter) { mlx_report_done(meter->report); }

static void show_hashed(void *user, uint64_t done, uint64_t total) {
  mlx_meter_t *meter = user;
  meter->total = total;
  mlx_meter_show(meter, done);
}

mlx_digest_watch_t mlx_meter_watch(mlx_meter_t *meter) {
  return (mlx_digest_watch_t){.on_bytes = show_hashed, .user = meter};
}
