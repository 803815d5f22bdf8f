// Measures how fast a file is verified: SHA-256 on one thread, and the tree digest on 1, 2, 4 ... threads.
// bench/verify builds and runs it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "base/digest.h"
#include "base/file.h"

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void check(mlx_status_t status) {
  if (!status) return;
  fprintf(stderr, "bench/verify: %s\n", mlx_status_message(status));
  exit(1);
}

typedef struct start {
  double seconds, cpu_seconds;
} start_t;

static start_t start(void) { return (start_t){seconds(), (double)clock() / CLOCKS_PER_SEC}; }

// The last column does not depend on the load of the machine.
static void print_rate(const char *what, uint64_t bytes, start_t from) {
  const start_t now = start();
  const double elapsed = now.seconds - from.seconds, cpu = now.cpu_seconds - from.cpu_seconds;
  printf("%-24s %7.2f GB/s  %7.2f s  %7.2f GB per CPU second\n", what, (double)bytes / 1e9 / elapsed, elapsed,
         (double)bytes / 1e9 / cpu);
  fflush(stdout);
}

int main(int argc, char **argv) {
  char hex[MLX_DIGEST_HEX], what[64];
  const char *name;
  mlx_file_stamp_t stamp;
  if (argc != 2) return 2;
  check(mlx_file_stamp(argv[1], &stamp));
  mlx_sha256_fastest(&name);
  printf("%.2f GB, SHA-256 with %s, %d CPUs\n", (double)stamp.size / 1e9, name, mlx_cpu_count());
  check(mlx_tree_digest_part(argv[1], 0, stamp.size, 0, NULL, hex));  // fills the page cache
  start_t started = start();
  check(mlx_digest_file(argv[1], NULL, hex));
  print_rate("SHA-256, 1 thread", stamp.size, started);
  for (int threads = 1; threads < 2 * mlx_cpu_count(); threads *= 2) {
    if (threads > mlx_cpu_count()) threads = mlx_cpu_count();
    snprintf(what, sizeof what, "tree digest, %d thread%s", threads, threads == 1 ? "" : "s");
    started = start();
    check(mlx_tree_digest_part(argv[1], 0, stamp.size, threads, NULL, hex));
    print_rate(what, stamp.size, started);
  }
  return 0;
}
