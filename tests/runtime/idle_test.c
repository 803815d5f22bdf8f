// A loaded model and the other processes of the machine: an idle model uses no CPU time, and decoding shares
// the cores with other processes. Other load on the machine does not change the results: CPU time is counted
// instead of time, and processes of the test measure which part of a core a process gets.
#include <signal.h>
#include <sys/prctl.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/file.h"
#include "tests/support/command.h"
#include "tests/support/compiled.h"

#define SMOLLM2 MLXCEL_MODELS "/SmolLM2-135M-Instruct.Q4_1.gguf"
#define TOKENS 32
// Of the time that decoding would take with its part of the cores. If threads waited for preempted threads,
// the slowdown would be 100 or more.
#define MAX_SLOWDOWN 10

static double seconds_of(const struct rusage *usage) {
  return (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) +
         (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) * 1e-6;
}

static double cpu_seconds(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return seconds_of(&usage);
}

static mlx_engine_t *open_with_threads(int threads) {
  const mlx_compile_options_t compile = {.weights = MLX_WEIGHTS_AUTO, .context = 256};
  return open_compiled(SMOLLM2, &compile, NULL, threads);
}

static mlx_engine_t *open_smollm2(void) { return open_with_threads(mlx_cpu_count()); }

static mlx_session_t *start_session(mlx_engine_t *engine) {
  mlx_session_t *session;
  const int32_t ids[] = {504, 3575, 282, 4649, 314};
  int32_t next;
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, ids, 5, &next));
  return session;
}

// Decodes TOKENS tokens |tries| times and returns the least time and CPU time of a try. Every try must give
// the same tokens, also if threads leave a call before its end.
typedef struct cost {
  double seconds, cpu;
} cost_t;
static cost_t decode(mlx_engine_t *engine, int tries) {
  static int32_t expected[TOKENS];
  cost_t best = {1e9, 1e9};
  for (int i = 0; i < tries; ++i) {
    int32_t ids[TOKENS];
    mlx_session_t *session = start_session(engine);
    const double start = mlx_seconds(), cpu_start = cpu_seconds();
    CHECK_OK(mlx_session_steps(session, ids, TOKENS));
    const cost_t cost = {mlx_seconds() - start, cpu_seconds() - cpu_start};
    best.seconds = cost.seconds < best.seconds ? cost.seconds : best.seconds;
    best.cpu = cost.cpu < best.cpu ? cost.cpu : best.cpu;
    mlx_session_free(session);
    if (!expected[0]) memcpy(expected, ids, sizeof ids);
    CHECK(expected[0] && !memcmp(expected, ids, sizeof ids));
  }
  return best;
}

TEST(an_idle_loaded_model_uses_no_cpu_time) {
  mlx_engine_t *engine = open_smollm2();
  mlx_session_t *session = start_session(engine);
  int32_t ids[4];
  const double begin = cpu_seconds();
  CHECK_OK(mlx_session_steps(session, ids, 4));
  CHECK(cpu_seconds() > begin);  // the clock counts the threads of the model
  double used = 1;
  for (int i = 0; i < 3 && used >= 0.02; ++i) {  // a busy machine may delay the end of the last step
    const double before = cpu_seconds();
    usleep(2000000);
    used = cpu_seconds() - before;
    fprintf(stderr, "  %.1f ms of CPU time in 2 s, %d threads\n", used * 1e3, mlx_cpu_count());
  }
  CHECK(used < 0.02);
  CHECK_OK(mlx_session_steps(session, ids, 4));  // the session still works
  mlx_session_free(session);
  mlx_engine_close(engine);
}

static pid_t start_spinning(void) {
  const pid_t pid = fork();
  if (pid) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (volatile unsigned long count = 0;;) ++count;
}

// Decodes beside |busy| processes. |alone| is the CPU time of one thread for the same tokens without them.
static void check_shared(mlx_engine_t *engine, int busy, double alone) {
  pid_t spinners[64];
  double used = 0;
  const double start = mlx_seconds();
  for (int i = 0; i < busy; ++i) CHECK((spinners[i] = start_spinning()) > 0);
  const cost_t cost = decode(engine, 3);
  for (int i = 0; i < busy; ++i) {
    struct rusage usage;
    kill(spinners[i], SIGKILL);
    CHECK(wait4(spinners[i], NULL, 0, &usage) == spinners[i]);
    used += seconds_of(&usage);
  }
  const double share = used / busy / (mlx_seconds() - start);  // of a core, for a process of this machine
  fprintf(stderr, "  with %d busy process%s: %.1f tok/s, %.2f of a core for each\n", busy,
          busy > 1 ? "es" : "", TOKENS / cost.seconds, share);
  CHECK(share > 0.01);  // they ran
  if (cost.seconds * share > MAX_SLOWDOWN * alone)
    CHECK_FAIL("decoding takes %.1f times as long with %d busy processes", cost.seconds / alone, busy);
}

TEST(decoding_stays_fast_while_other_processes_use_every_core) {
  mlx_engine_t *engine = open_smollm2();
  const int cores = mlx_cpu_count() < 64 ? mlx_cpu_count() : 64;
  const cost_t alone = decode(engine, 3);
  fprintf(stderr, "  alone: %.1f tok/s\n", TOKENS / alone.seconds);
  check_shared(engine, 1, alone.cpu / cores);
  if (cores > 1) check_shared(engine, cores, alone.cpu / cores);
  mlx_engine_close(engine);
}

static mlx_status_t count_entry(void *user, const char *name) {
  (void)name;
  ++*(int *)user;
  return NULL;
}

static int count_threads(void) {
  int threads = 0;
  CHECK_OK(mlx_list_dir("/proc/self/task", count_entry, &threads));
  return threads;
}

// More threads than CPUs would take time from each other.
TEST(a_model_has_at_most_one_thread_per_cpu) {
  const int cores = mlx_cpu_count(), asked[] = {cores, 8 * cores, 32 * cores};
  int started[3];
  for (int i = 0; i < 3; ++i) {
    const int before = count_threads();
    mlx_engine_t *engine = open_with_threads(asked[i]);
    decode(engine, 1);
    started[i] = count_threads() - before;
    mlx_engine_close(engine);
  }
  fprintf(stderr, "  %d CPUs: %d threads\n", cores, started[0]);
  CHECK(started[0] >= cores - 1);  // the calling thread may work too
  CHECK_INT(started[1], started[0]);
  CHECK_INT(started[2], started[0]);
}

TEST_MAIN(CASE(an_idle_loaded_model_uses_no_cpu_time),
          CASE(decoding_stays_fast_while_other_processes_use_every_core),
          CASE(a_model_has_at_most_one_thread_per_cpu))
