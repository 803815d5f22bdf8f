// The CPUs that this process may use: control group quotas, and the affinity mask, which worker threads keep.
#include "base/cpu.h"

#include <dirent.h>
#include <sched.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/file.h"
#include "base/memory.h"
#include "tests/support/compiled.h"
#include "tests/support/folder.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

static void write_text(const char *name, const char *text) {
  char path[256], *parent;
  snprintf(path, sizeof path, "%s", in_folder(name));
  CHECK_OK(mlx_folder_of(path, &parent));
  CHECK_OK(mlx_make_dirs(parent, 0700));
  mlx_free(parent);
  CHECK_OK(mlx_write_file(path, text, strlen(text)));
}

static double quota(const char *list) {
  char path[256];
  write_text("list", list);
  snprintf(path, sizeof path, "%s", in_folder("list"));
  return mlx_cgroup_cpus(path, in_folder("mount"));
}

TEST(quota_of_a_version_2_group_is_the_smallest_on_its_path) {
  write_text("mount/cpu.max", "max 100000\n");
  write_text("mount/a/cpu.max", "150000 100000\n");
  write_text("mount/a/b/cpu.max", "400000 100000\n");
  CHECK(quota("0::/\n") == 0);
  CHECK(quota("0::/a\n") == 1.5);
  CHECK(quota("0::/a/b\n") == 1.5);
  CHECK(quota("0::/a/missing/folder\n") == 1.5);
  write_text("mount/cpu.max", "50000 100000\n");  // a container sees its own group at the mount point
  CHECK(quota("0::/\n") == 0.5);
  CHECK(quota("0::/../../elsewhere\n") == 0.5);
}

TEST(quota_of_a_version_1_group_is_read_from_the_cpu_controller) {
  write_text("mount/cpu,cpuacct/x/cpu.cfs_quota_us", "200000\n");
  write_text("mount/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
  write_text("mount/cpu,cpuacct/y/cpu.cfs_quota_us", "-1\n");
  write_text("mount/cpu,cpuacct/y/cpu.cfs_period_us", "100000\n");
  CHECK(quota("12:cpuset:/x\n4:cpu,cpuacct:/x\n1:name=systemd:/x\n") == 2);
  CHECK(quota("4:cpu,cpuacct:/y\n") == 0);
  write_text("mount/cpu/z/cpu.cfs_quota_us", "25000\n");
  write_text("mount/cpu/z/cpu.cfs_period_us", "100000\n");
  CHECK(quota("4:cpu:/z\n") == 0.25);
}

TEST(damaged_control_group_files_are_no_quota) {
  static const char *const lists[] = {"", "\n", "0", "0:", "::", "0::", "x:cpu", "0::/a\n0::", "4:cpu,:/q\n"};
  static const char *const values[] = {"", "max", "0 0\n", "-5 100\n", "1 0\n", "nan nan\n", "x y\n"};
  CHECK_OK(mlx_remove_tree(in_folder("mount")));
  for (size_t i = 0; i < sizeof lists / sizeof *lists; ++i) CHECK(quota(lists[i]) == 0);
  for (size_t i = 0; i < sizeof values / sizeof *values; ++i) {
    write_text("mount/bad/cpu.max", values[i]);
    CHECK(quota("0::/bad\n") == 0);
  }
  CHECK(mlx_cgroup_cpus("/nowhere", "/nowhere") == 0);
}

// Restricts the process to its first CPU.
static cpu_set_t use_one_cpu(cpu_set_t *out_before) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CHECK(!sched_getaffinity(0, sizeof *out_before, out_before));
  for (int i = 0; !CPU_COUNT(&one); ++i) {
    if (CPU_ISSET(i, out_before)) CPU_SET(i, &one);
  }
  CHECK(!sched_setaffinity(0, sizeof one, &one));
  return one;
}

TEST(cpu_count_is_at_most_the_affinity_mask) {
  cpu_set_t before;
  use_one_cpu(&before);
  const int count = mlx_cpu_count();
  CHECK(!sched_setaffinity(0, sizeof before, &before));
  CHECK_INT(count, 1);
  CHECK(mlx_cpu_count() >= 1 && mlx_cpu_count() <= CPU_COUNT(&before));
}

// Number of threads of this process whose mask is not |expected|.
static int threads_outside(const cpu_set_t *expected) {
  DIR *tasks = opendir("/proc/self/task");
  int outside = 0;
  CHECK(tasks);
  for (struct dirent *task; (task = readdir(tasks));) {
    cpu_set_t mask;
    if (task->d_name[0] == '.' || sched_getaffinity(atoi(task->d_name), sizeof mask, &mask)) continue;
    outside += !CPU_EQUAL(&mask, expected);
  }
  closedir(tasks);
  return outside;
}

TEST(worker_threads_keep_the_inherited_affinity_mask) {
  const mlx_compile_options_t compile = {.weights = MLX_WEIGHTS_AUTO, .context = 64};
  const int32_t prompt[] = {1, 2, 3};
  int32_t next;
  cpu_set_t before;
  mlx_session_t *session;
  if (mlx_cpu_count() < 2) SKIP("this process has one CPU, so that no mask is smaller");
  mlx_engine_close(open_compiled(TINY, &compile, NULL, 1));  // compiles with all CPUs
  const cpu_set_t one = use_one_cpu(&before);
  const int others = threads_outside(&one);  // threads of an emulator, which are older
  mlx_engine_t *engine = open_compiled(TINY, &compile, NULL, 3);
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, prompt, 3, &next));
  usleep(50000);  // every worker has started
  const int outside = threads_outside(&one);
  CHECK(!sched_setaffinity(0, sizeof before, &before));
  mlx_session_free(session);
  mlx_engine_close(engine);
  CHECK_INT(outside, others);
}

int main(int argc, char **argv) {
  static const check_case_t cases[] = {CASE(quota_of_a_version_2_group_is_the_smallest_on_its_path),
                                       CASE(quota_of_a_version_1_group_is_read_from_the_cpu_controller),
                                       CASE(damaged_control_group_files_are_no_quota),
                                       CASE(cpu_count_is_at_most_the_affinity_mask),
                                       CASE(worker_threads_keep_the_inherited_affinity_mask)};
  strcpy(folder, "/tmp/mlxcel-cpu-XXXXXX");
  if (!mkdtemp(folder)) return 1;
  const int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(folder));
  return failed;
}
