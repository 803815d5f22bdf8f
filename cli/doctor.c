// mlxcel doctor: checks this machine and runs a small module on each device.
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/json_writer.h"
#include "base/library.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/environment.h"
#include "cli/parse.h"
#include "cli/terminal.h"
#include "cli/verbs.h"
#include "compiler/common_images.h"
#include "compiler/compile.h"
#include "compiler/driver.h"
#include "compiler/kernels.h"
#include "compiler/nvrtc.h"
#include "compiler/tools.h"
#include "runtime/rooms.h"
#include "transfer/http.h"

typedef enum verdict { OK, WARN, FAIL } verdict_t;

typedef struct flags {
  bool json, quiet;
} flags_t;

typedef struct doctor {
  bool json;
  int failed;
  mlx_json_writer_t list;  // of the JSON output
} doctor_t;

// Prints or collects one finding: the message and hint of |status|, or |what| if |status| is NULL. Frees
// |status|.
static void add_finding(doctor_t *doctor, verdict_t verdict, const char *subject, const char *what,
                        mlx_status_t status) {
  static const char *const names[] = {"OK", "WARN", "FAIL"};
  const char *text = status ? mlx_status_message(status) : what, *fix = mlx_status_hint_text(status);
  doctor->failed += verdict == FAIL;
  if (doctor->json) {
    mlx_json_begin_object(&doctor->list, NULL, MLX_JSON_ONE_LINE);
    mlx_json_put_text(&doctor->list, "subject", subject);
    mlx_json_put_text(&doctor->list, "verdict", names[verdict]);
    mlx_json_put_text(&doctor->list, "text", text);
    mlx_json_put_text(&doctor->list, "fix", fix);
    mlx_json_end(&doctor->list);
  } else {
    printf("%-4s  %-13s %s\n", names[verdict], subject, text);
    if (fix[0]) printf("      %-13s fix: %s\n", "", fix);
  }
  mlx_status_free(status);
}

static void check_cpu(doctor_t *doctor) {
  char text[128];
  const char *kernels = mlx_kernels_cpu_level("host");
  const int cpus = mlx_cpu_count();
  int length =
      snprintf(text, sizeof text, "level %s, %d %s, %.1f GiB of memory", mlx_cpu_level_here()->name, cpus,
               mlx_plural((uint64_t)cpus, "CPU", "CPUs"), (double)mlx_physical_memory() / (1 << 30));
  if (mlx_compiler_available()) {
    snprintf(text + length, sizeof text - (size_t)length, ", %s%s",
             kernels ? "kernels for " : "no kernels for this CPU", kernels ? kernels : "");
  }
  add_finding(doctor, OK, "cpu", text, NULL);
}

// A missing driver is a warning, because mlxcel runs without a GPU.
static bool check_gpu(doctor_t *doctor, char target[64]) {
  char text[192], name[16], other[64];
  uint64_t memory;
  int count;
  mlx_status_t status = mlx_engine_gpu_text(0, text, sizeof text, &count);
  if (!status) status = mlx_engine_gpu_target(0, target, 64, &memory);
  bool usable = !status;
  add_finding(doctor, usable ? OK : WARN, "gpu", text, status);
  for (int gpu = 1; gpu < count; ++gpu) {  // for --gpu
    int same;
    status = mlx_engine_gpu_text(gpu, text, sizeof text, &same);
    if (!status) status = mlx_engine_gpu_target(gpu, other, sizeof other, &memory);
    snprintf(name, sizeof name, "gpu %d", gpu);
    add_finding(doctor, status ? WARN : OK, name, text, status);
  }
  return usable;
}

static mlx_cache_t *check_cache(doctor_t *doctor) {
  mlx_cache_t *cache = NULL;
  mlx_status_t status = mlx_cache_open(NULL, &cache);
  add_finding(doctor, status ? FAIL : OK, "cache", cache ? mlx_cache_folder(cache) : "", status);
  return cache;
}

static bool check_compiler(doctor_t *doctor, mlx_cache_t *cache) {
  mlx_iree_compiler_t compiler = {0};
  mlx_status_t status = mlx_iree_compiler_find(cache, NULL, mlx_terminal_report(), &compiler);
  bool found = !status;
  char *text = NULL;
  if (found) status = mlx_format(&text, "%s, version %s", compiler.path, compiler.version);
  add_finding(doctor, status ? FAIL : OK, "iree-compile", text, status);
  mlx_free(text);
  mlx_iree_compiler_release(&compiler);
  return found;
}

// A missing library is a warning, because another iree-compile may include its own copy. If it is needed, the
// test compilation fails later.
static void check_cpp_library(doctor_t *doctor) {
  void *library;
  mlx_status_t status = mlx_library_open(MLX_CPP_LIBRARY, &library);
  if (status) {
    mlx_status_free(status);
    library = NULL;
    status = mlx_status_hint(
        mlx_error(MLX_NOT_FOUND, MLX_CPP_LIBRARY " was not found; iree-compile and NVRTC need it"),
        MLX_CPP_LIBRARY_FROM);
  }
  add_finding(doctor, status ? WARN : OK, "C++ library", MLX_CPP_LIBRARY, status);
  if (library) mlx_library_close(library);
}

// Lists the GPUs whose common kernels are installed. Without them a compilation takes longer, which is no
// fault.
static void check_images(doctor_t *doctor, const mlx_nvrtc_t *nvrtc) {
  mlx_text_t text = {0};
  mlx_status_t status = NULL;
  const mlx_gpu_kind_t *gpu;
  for (size_t i = 0; !status && (gpu = mlx_gpu_kind_at(i)); ++i) {
    size_t count = 0;
    bool usable;
    if (gpu->kernel_sm == gpu->sm) status = mlx_common_images_check(gpu, nvrtc, &count, &usable);
    if (count)
      mlx_text_printf(&text, "%s%s sm_%d%s", text.length ? ", " : "", text.length ? "" : "installed for",
                      gpu->sm, usable ? "" : " (not usable: made by another NVRTC or for another mlxcel)");
  }
  add_finding(doctor, status ? WARN : OK, "gpu kernels",
              text.length ? text.data : "not installed; NVRTC compiles all of them", status);
  mlx_text_clear(&text);
}

// Without NVRTC, models for a GPU are compiled without mlxcel's kernels. That is a warning.
static void check_nvrtc(doctor_t *doctor) {
  mlx_nvrtc_t *nvrtc;
  char *text = NULL;
  mlx_status_t status = mlx_nvrtc_open(NULL, &nvrtc);
  if (!status) {
    status =
        mlx_format(&text, "%s, version %s, makes %s", mlx_nvrtc_path(nvrtc), mlx_nvrtc_version(nvrtc),
                   mlx_nvrtc_makes_ptx(nvrtc) ? "cubin and PTX" : "cubin only (libnvfatbin was not found)");
  }
  add_finding(doctor, status ? WARN : OK, "nvrtc", text, status);
  if (nvrtc) check_images(doctor, nvrtc);
  mlx_free(text);
  mlx_nvrtc_close(nvrtc);
}

// Explains the CUDA variables that are set for other tools.
static void check_variables(doctor_t *doctor) {
  for (size_t i = 0; mlx_cuda_variable_at(i); ++i) {
    mlx_text_t text = {0};
    mlx_status_t status = mlx_cuda_variable_explain(mlx_cuda_variable_at(i), &text);
    if (text.data || status)
      add_finding(doctor, status ? WARN : OK, mlx_cuda_variable_at(i), text.data, status);
    mlx_text_clear(&text);
  }
}

// Missing certificates are a warning: only `pull` and `push` need them.
static void check_certificates(doctor_t *doctor) {
  char *file;
  mlx_status_t status = mlx_http_certificates(&file);
  if (!status && !file && !mlx_http_has_system_certificates()) {
    status = mlx_status_hint(
        mlx_error(MLX_NOT_FOUND, "no CA certificates were found: `pull` and `push` cannot verify servers"),
        "install them (Debian: apt-get install ca-certificates), or set SSL_CERT_FILE");
  }
  add_finding(doctor, status ? WARN : OK, "certificates", file ? file : "system store", status);
  mlx_free(file);
}

// Compiles a small module for |target|, runs it and checks the result.
static void try_device(doctor_t *doctor, mlx_cache_t *cache, const char *subject, mlx_device_choice_t device,
                       const char *target) {
  mlx_cache_entry_t entry = {0};
  char *path = NULL;
  mlx_status_t status = mlx_compile_smoke(cache, target, mlx_terminal_report(), &entry, &path);
  if (!status) status = mlx_engine_smoke(device, path);
  add_finding(doctor, status ? FAIL : OK, subject, "a small module compiles, loads and runs", status);
  mlx_free(path);
  mlx_cache_release(&entry);
}

static void examine(doctor_t *doctor) {
  char gpu_target[64] = "";
  add_finding(doctor, OK, "mlxcel", MLXCEL_VERSION, NULL);
  check_cpu(doctor);
  bool gpu = check_gpu(doctor, gpu_target);
  mlx_cache_t *cache = check_cache(doctor);
  if (!mlx_compiler_available()) {
    add_finding(doctor, OK, "compiler", "not in this package, which runs bundles only", NULL);
  } else {
    check_cpp_library(doctor);
    if (cache && check_compiler(doctor, cache)) {
      try_device(doctor, cache, "cpu runs", MLX_USE_CPU, "cpu");
      if (gpu) try_device(doctor, cache, "gpu runs", MLX_USE_CUDA, gpu_target);
    }
    check_nvrtc(doctor);
  }
  check_certificates(doctor);
  check_variables(doctor);
  mlx_cache_close(cache);
}

static mlx_status_t run(const mlx_command_line_t *line) {
  flags_t f;
  size_t words;
  bool help;
  MLX_TRY(mlx_command_line_parse(line, &f, NULL, 0, &words, &help));
  if (help) return NULL;
  MLX_TRY(mlx_terminal_set_quiet(f.quiet, false));
  mlx_text_t text = {0};
  doctor_t doctor = {.json = f.json, .list.out = &text};
  mlx_json_begin_list(&doctor.list, NULL, MLX_JSON_LINES);
  examine(&doctor);
  mlx_json_end(&doctor.list);
  mlx_status_t status = mlx_text_finish(&text);
  if (!status && doctor.json) printf("%s\n", text.data);
  mlx_text_clear(&text);
  if (!status && doctor.failed) {
    status = mlx_error(MLX_UNAVAILABLE, "%d %s failed", doctor.failed,
                       mlx_plural((uint64_t)doctor.failed, "check", "checks"));
  }
  return status;
}

static const mlx_flag_t flags[] = {
    MLX_JSON_FLAG(flags_t, json),
    MLX_QUIET_FLAG(flags_t, quiet),
    {0},
};

const mlx_verb_t mlx_verb_doctor = {
    .name = "doctor",
    .summary = "check this machine: CPU, GPU, compiler, cache",
    .usage =
        "usage: mlxcel doctor [options]\n\n"
        "Checks this machine and runs a small module on each device. Exit status 8 if a check failed.\n\n"
        "examples:\n"
        "  mlxcel doctor\n"
        "  mlxcel doctor --json",
    .flags = flags,
    .options_size = sizeof(flags_t),
    .run = run,
};
