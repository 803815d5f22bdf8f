// mlxcel doctor: is everything here that mlxcel needs, and why is my GPU not used?
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/library.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/environment.h"
#include "compiler/compile.h"
#include "compiler/driver.h"
#include "compiler/kernels.h"
#include "compiler/nvrtc.h"
#include "compiler/tools.h"
#include "runtime/mlxcel.h"
#include "transfer/http.h"

typedef enum verdict { OK, WARN, FAIL } verdict_t;

typedef struct doctor {
  bool json;
  int failed;
  mlx_text_t lines;  // of the JSON
} doctor_t;

// One finding. |status| (owned, may be NULL) says what is wrong and how to mend it, else |what| says what is
// there.
static void find(doctor_t *doctor, verdict_t verdict, const char *subject, const char *what,
                 mlx_status_t status) {
  static const char *const names[] = {"OK", "WARN", "FAIL"};
  const char *text = status ? mlx_status_message(status) : what, *fix = mlx_status_hint_text(status);
  doctor->failed += verdict == FAIL;
  if (doctor->json) {
    mlx_text_printf(&doctor->lines, "%s\n  {\"subject\": \"%s\", \"verdict\": \"%s\", \"text\": ",
                    doctor->lines.length ? "," : "", subject, names[verdict]);
    mlx_text_json_string(&doctor->lines, text, strlen(text));
    mlx_text_puts(&doctor->lines, ", \"fix\": ");
    mlx_text_json_string(&doctor->lines, fix, strlen(fix));
    mlx_text_puts(&doctor->lines, "}");
  } else {
    printf("%-4s  %-13s %s\n", names[verdict], subject, text);
    if (fix[0]) printf("      %-13s fix: %s\n", "", fix);
  }
  mlx_status_free(status);
}

static void look_at_cpu(doctor_t *doctor) {
  char text[128];
  const char *kernels = mlx_kernels_cpu_level("host");
  int length =
      snprintf(text, sizeof text, "level %s, %d CPUs, %.1f GiB of memory", mlx_cpu_level_here()->name,
               mlx_cpu_count(), (double)mlx_physical_memory() / (1 << 30));
  if (mlx_compiler_available()) {
    snprintf(text + length, sizeof text - (size_t)length, ", kernels for %s",
             kernels ? kernels : "no CPU of this kind");
  }
  find(doctor, OK, "cpu", text, NULL);
}

// A machine without a GPU is well, so the driver's absence is a warning.
static bool look_at_gpu(doctor_t *doctor, char target[64]) {
  char text[192];
  mlx_status_t status = mlx_engine_gpu_text(text, sizeof text);
  uint64_t memory;
  if (!status) status = mlx_engine_gpu_target(target, 64, &memory);
  bool usable = !status;
  find(doctor, usable ? OK : WARN, "gpu", text, status);
  return usable;
}

static mlx_cache_t *look_at_cache(doctor_t *doctor) {
  mlx_cache_t *cache = NULL;
  mlx_status_t status = mlx_cache_open(NULL, &cache);
  find(doctor, status ? FAIL : OK, "cache", cache ? mlx_cache_folder(cache) : "", status);
  return cache;
}

static bool look_at_compiler(doctor_t *doctor, mlx_cache_t *cache) {
  mlx_iree_compiler_t compiler = {0};
  mlx_status_t status = mlx_iree_compiler_find(cache, NULL, mlx_terminal_report(), &compiler);
  bool found = !status;
  char *text = NULL;
  if (found) status = mlx_format(&text, "%s, version %s", compiler.path, compiler.version);
  find(doctor, status ? FAIL : OK, "iree-compile", text, status);
  mlx_free(text);
  mlx_iree_compiler_release(&compiler);
  return found;
}

// An iree-compile from elsewhere may have its own, so its absence is a warning; a compilation that failed for
// it comes after.
static void look_at_cpp_library(doctor_t *doctor) {
  void *library;
  mlx_status_t status = mlx_library_open(MLX_CPP_LIBRARY, &library);
  if (status) {
    mlx_status_free(status);
    library = NULL;
    status = mlx_status_hint(
        mlx_error(MLX_NOT_FOUND, "there is no " MLX_CPP_LIBRARY ", which iree-compile and NVRTC need"),
        MLX_CPP_LIBRARY_FROM);
  }
  find(doctor, status ? WARN : OK, "C++ library", MLX_CPP_LIBRARY, status);
  if (library) mlx_library_close(library);
}

// Without it there are no kernels of ours in what is compiled for a GPU; all else works, so its absence is a
// warning.
static void look_at_nvrtc(doctor_t *doctor) {
  mlx_nvrtc_t *nvrtc;
  char *text = NULL;
  mlx_status_t status = mlx_nvrtc_open(NULL, &nvrtc);
  if (!status) {
    status =
        mlx_format(&text, "%s, version %s, makes %s", mlx_nvrtc_path(nvrtc), mlx_nvrtc_version(nvrtc),
                   mlx_nvrtc_makes_ptx(nvrtc) ? "cubin and PTX" : "cubin only (there is no libnvfatbin)");
  }
  find(doctor, status ? WARN : OK, "nvrtc", text, status);
  mlx_free(text);
  mlx_nvrtc_close(nvrtc);
}

// What people have set for other tools, and what it means here.
static void look_at_variables(doctor_t *doctor) {
  for (size_t i = 0; mlx_cuda_variable_at(i); ++i) {
    mlx_text_t text = {0};
    mlx_status_t status = mlx_cuda_variable_explain(mlx_cuda_variable_at(i), &text);
    if (text.data || status) find(doctor, status ? WARN : OK, mlx_cuda_variable_at(i), text.data, status);
    mlx_text_clear(&text);
  }
}

// `run` needs none, so their absence is a warning.
static void look_at_certificates(doctor_t *doctor) {
  char *file;
  mlx_status_t status = mlx_http_certificates(&file);
  if (!status && !file && !mlx_http_has_system_certificates()) {
    status = mlx_status_hint(
        mlx_error(MLX_NOT_FOUND, "none are installed: `pull` and `push` cannot check whom they talk to"),
        "install the system's (Debian: apt-get install ca-certificates), or set SSL_CERT_FILE");
  }
  find(doctor, status ? WARN : OK, "certificates", file ? file : "the system's own", status);
  mlx_free(file);
}

// Compiles four additions for |target| and looks at the sums.
static void try_device(doctor_t *doctor, mlx_cache_t *cache, const char *subject, mlx_device_choice_t device,
                       const char *target) {
  mlx_cache_entry_t entry = {0};
  char *path = NULL;
  mlx_status_t status = mlx_compile_smoke(cache, target, mlx_terminal_report(), &entry, &path);
  if (!status) status = mlx_engine_smoke(device, path);
  find(doctor, status ? FAIL : OK, subject, "a small module compiles, loads and adds", status);
  mlx_free(path);
  mlx_cache_release(&entry);
}

static void examine(doctor_t *doctor) {
  char gpu_target[64] = "";
  find(doctor, OK, "mlxcel", MLXCEL_VERSION, NULL);
  look_at_cpu(doctor);
  bool gpu = look_at_gpu(doctor, gpu_target);
  mlx_cache_t *cache = look_at_cache(doctor);
  if (!mlx_compiler_available()) {
    find(doctor, OK, "compiler", "none in this package, which runs compiled models only", NULL);
  } else {
    look_at_cpp_library(doctor);
    if (cache && look_at_compiler(doctor, cache)) {
      try_device(doctor, cache, "cpu runs", MLX_USE_CPU, "cpu");
      if (gpu) try_device(doctor, cache, "gpu runs", MLX_USE_CUDA, gpu_target);
    }
    look_at_nvrtc(doctor);
  }
  look_at_certificates(doctor);
  look_at_variables(doctor);
  mlx_cache_close(cache);
}

mlx_status_t mlx_cli_doctor(int argc, char **argv) {
  doctor_t doctor = {0};
  const mlx_flag_t table[] = {
      {"--json", MLX_FLAG_SWITCH, NULL, "print a JSON list of findings", &doctor.json, 0, 0}, {0}};
  size_t words;
  bool help;
  MLX_TRY(mlx_flags_parse(
      "usage: mlxcel doctor [options]\n\n"
      "Looks at this machine and runs a small module on each device. Exit status 8 when something failed.\n\n"
      "examples:\n  mlxcel doctor\n  mlxcel doctor --json",
      table, argc, argv, NULL, 0, &words, &help));
  if (help) return NULL;
  examine(&doctor);
  mlx_status_t status = mlx_text_finish(&doctor.lines);
  if (!status && doctor.json) printf("[%s\n]\n", doctor.lines.data);
  mlx_text_clear(&doctor.lines);
  if (!status && doctor.failed) {
    status = mlx_error(MLX_UNAVAILABLE, "%d of the above failed", doctor.failed);
  }
  return status;
}
