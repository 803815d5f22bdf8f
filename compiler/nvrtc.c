// Opens libnvrtc and libnvfatbin, and compiles kernels with them.
#include "compiler/nvrtc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/library.h"
#include "base/memory.h"
#include "base/text.h"
#include "compiler/tools.h"

#define LINE_BYTES 400  // longest line of NVRTC output in an error message

// ----------------------------------------------------------------------------------------------------------
// Functions of the two libraries, as nvrtc.h and nvFatbin.h declare them. 0 means success.

typedef struct nvrtc_calls {
  const char *(*error_string)(int result);
  int (*version)(int *major, int *minor);
  int (*arch_count)(int *count);
  int (*archs)(int *archs);
  int (*create)(void **program, const char *source, const char *name, int header_count,
                const char *const *headers, const char *const *header_names);
  int (*destroy)(void **program);
  int (*compile)(void *program, int option_count, const char *const *options);
  int (*cubin_size)(void *program, size_t *size);
  int (*cubin)(void *program, char *bytes);
  int (*ptx_size)(void *program, size_t *size);
  int (*ptx)(void *program, char *text);
  int (*log_size)(void *program, size_t *size);
  int (*log)(void *program, char *text);
} nvrtc_calls_t;

typedef struct fatbin_calls {
  const char *(*error_string)(int result);
  int (*version)(unsigned *major, unsigned *minor);
  int (*create)(void **handle, const char **options, size_t option_count);
  int (*destroy)(void **handle);
  int (*add_cubin)(void *handle, const void *code, size_t size, const char *arch, const char *name);
  int (*add_ptx)(void *handle, const char *code, size_t size, const char *arch, const char *name,
                 const char *options);
  int (*size)(void *handle, size_t *size);
  int (*get)(void *handle, void *bytes);
} fatbin_calls_t;

typedef struct symbol {
  const char *name;
  size_t offset;  // of the function pointer in the struct
} symbol_t;

static const symbol_t nvrtc_symbols[] = {{"nvrtcGetErrorString", offsetof(nvrtc_calls_t, error_string)},
                                         {"nvrtcVersion", offsetof(nvrtc_calls_t, version)},
                                         {"nvrtcGetNumSupportedArchs", offsetof(nvrtc_calls_t, arch_count)},
                                         {"nvrtcGetSupportedArchs", offsetof(nvrtc_calls_t, archs)},
                                         {"nvrtcCreateProgram", offsetof(nvrtc_calls_t, create)},
                                         {"nvrtcDestroyProgram", offsetof(nvrtc_calls_t, destroy)},
                                         {"nvrtcCompileProgram", offsetof(nvrtc_calls_t, compile)},
                                         {"nvrtcGetCUBINSize", offsetof(nvrtc_calls_t, cubin_size)},
                                         {"nvrtcGetCUBIN", offsetof(nvrtc_calls_t, cubin)},
                                         {"nvrtcGetPTXSize", offsetof(nvrtc_calls_t, ptx_size)},
                                         {"nvrtcGetPTX", offsetof(nvrtc_calls_t, ptx)},
                                         {"nvrtcGetProgramLogSize", offsetof(nvrtc_calls_t, log_size)},
                                         {"nvrtcGetProgramLog", offsetof(nvrtc_calls_t, log)},
                                         {0}};

static const symbol_t fatbin_symbols[] = {{"nvFatbinGetErrorString", offsetof(fatbin_calls_t, error_string)},
                                          {"nvFatbinVersion", offsetof(fatbin_calls_t, version)},
                                          {"nvFatbinCreate", offsetof(fatbin_calls_t, create)},
                                          {"nvFatbinDestroy", offsetof(fatbin_calls_t, destroy)},
                                          {"nvFatbinAddCubin", offsetof(fatbin_calls_t, add_cubin)},
                                          {"nvFatbinAddPTX", offsetof(fatbin_calls_t, add_ptx)},
                                          {"nvFatbinSize", offsetof(fatbin_calls_t, size)},
                                          {"nvFatbinGet", offsetof(fatbin_calls_t, get)},
                                          {0}};

// The libraries stay loaded after mlx_nvrtc_close: unloading them leaks memory that their globals own.
struct mlx_nvrtc {
  nvrtc_calls_t calls;
  fatbin_calls_t fatbin;
  bool has_fatbin;
  int major, minor;
  unsigned fatbin_major, fatbin_minor;
  char version[32];
  char *path;     // owned
  uint64_t size;  // of the library file
};

// Fills |calls| from |library|. Returns the name of the first missing symbol, or NULL.
static const char *look_up(void *library, const symbol_t *symbols, void *calls) {
  for (; symbols->name; ++symbols) {
    void *function = mlx_library_symbol(library, symbols->name);
    if (!function) return symbols->name;
    memcpy((char *)calls + symbols->offset, &function,
           sizeof function);  // C has no cast from void * to a function pointer
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Opening

const char *mlx_nvrtc_built_in = MLXCEL_DEFAULT_NVRTC;
const char *mlx_nvrtc_added_option;

// Opens a companion library of NVRTC: beside it, as in a wheel or toolkit, else where the loader finds it.
static mlx_status_t open_beside(const char *folder, const char *name, void **out_library) {
  char *path;
  MLX_TRY(mlx_join_path(folder, name, &path));
  mlx_status_t status = mlx_library_open(mlx_is_file(path) ? path : name, out_library);
  mlx_free(path);
  return status;
}

// NVRTC loads its builtins by name. Opening them here first lets the loader find them in any folder.
static mlx_status_t open_builtins(mlx_nvrtc_t *nvrtc, const char *folder) {
  char name[64];
  void *library;
  snprintf(name, sizeof name, MLX_NVRTC_BUILTINS, nvrtc->major, nvrtc->minor);
  mlx_status_t status = open_beside(folder, name, &library);
  if (!status || mlx_status_code(status) == MLX_OUT_OF_MEMORY) return status;
  mlx_status_t needed = mlx_error(MLX_UNAVAILABLE, "'%s' needs %s beside it: %s", nvrtc->path, name,
                                  mlx_status_message(status));
  mlx_status_free(status);
  return needed;
}

// A missing or unusable libnvfatbin is no error: images then have no PTX.
static mlx_status_t open_fatbin(mlx_nvrtc_t *nvrtc, const char *folder) {
  char name[32];
  void *library;
  snprintf(name, sizeof name, MLX_NVFATBIN, nvrtc->major);
  mlx_status_t status = open_beside(folder, name, &library);
  if (mlx_status_code(status) == MLX_OUT_OF_MEMORY) return status;
  mlx_status_free(status);
  nvrtc->has_fatbin = library && !look_up(library, fatbin_symbols, &nvrtc->fatbin) &&
                      !nvrtc->fatbin.version(&nvrtc->fatbin_major, &nvrtc->fatbin_minor);
  return NULL;
}

// Does not resolve a link to the library: its companions are beside the link, not beside its target.
static mlx_status_t set_path(mlx_nvrtc_t *nvrtc, const char *file, char **out_folder) {
  char *folder;
  *out_folder = NULL;
  MLX_TRY(mlx_folder_of(file, &folder));
  mlx_status_t status = mlx_real_path(folder, out_folder);
  mlx_free(folder);
  if (!status) status = mlx_join_path(*out_folder, mlx_file_name(file).text, &nvrtc->path);
  return status;
}

static mlx_status_t open_parts(mlx_nvrtc_t *nvrtc, const char *file) {
  mlx_file_stamp_t stamp = {0};
  char *folder;
  mlx_status_t status = set_path(nvrtc, file, &folder);
  if (!status) status = mlx_file_stamp(nvrtc->path, &stamp);
  nvrtc->size = stamp.size;
  if (!status) status = open_builtins(nvrtc, folder);
  if (!status) status = open_fatbin(nvrtc, folder);
  mlx_free(folder);
  return status;
}

static mlx_status_t open_file(const char *file, mlx_nvrtc_t *nvrtc) {
  void *library;
  char *found = NULL;
  MLX_TRY(mlx_library_open(file, &library));
  const char *missing = look_up(library, nvrtc_symbols, &nvrtc->calls);
  if (missing)
    return mlx_error(MLX_UNAVAILABLE, "'%s' is not a usable NVRTC: it has no function %s", file, missing);
  if (nvrtc->calls.version(&nvrtc->major, &nvrtc->minor))
    return mlx_error(MLX_UNAVAILABLE, "'%s' is not a usable NVRTC: it reports no version", file);
  snprintf(nvrtc->version, sizeof nvrtc->version, "%d.%d", nvrtc->major, nvrtc->minor);
  if (!mlx_is_path(file)) MLX_TRY(mlx_library_path(library, &found));
  mlx_status_t status = open_parts(nvrtc, found ? found : file);
  mlx_free(found);
  return status;
}

static mlx_status_t try_file(const char *file, mlx_nvrtc_t **out_nvrtc) {
  mlx_nvrtc_t *nvrtc;
  MLX_TRY(mlx_alloc(1, sizeof *nvrtc, &nvrtc));
  mlx_status_t status = open_file(file, nvrtc);
  if (status) {
    mlx_nvrtc_close(nvrtc);
  } else {
    *out_nvrtc = nvrtc;
  }
  return status;
}

// The newest first; both have all functions that we call.
static const char *const library_names[] = {MLX_NVRTC_13, MLX_NVRTC_12};
#define NAME_COUNT (sizeof library_names / sizeof *library_names)

// |path| is a file or a folder.
static mlx_status_t try_path(const char *path, mlx_nvrtc_t **out_nvrtc) {
  if (!mlx_is_dir(path)) return try_file(path, out_nvrtc);
  for (size_t i = 0; i < NAME_COUNT; ++i) {
    char *file;
    MLX_TRY(mlx_join_path(path, library_names[i], &file));
    bool exists = mlx_is_file(file);
    mlx_status_t status = exists ? try_file(file, out_nvrtc) : NULL;
    mlx_free(file);
    if (exists) return status;
  }
  return mlx_error(MLX_UNAVAILABLE, "'%s' contains neither %s nor %s", path, library_names[0],
                   library_names[1]);
}

// ----------------------------------------------------------------------------------------------------------
// Finding

// Uses the library that the user named in |origin|, or fails. Never falls back to another one.
static mlx_status_t use_named(const char *name, const char *origin, mlx_nvrtc_t **out_nvrtc) {
  mlx_status_t status = try_path(name, out_nvrtc);
  if (!status || mlx_status_code(status) == MLX_OUT_OF_MEMORY) return status;
  mlx_status_t named = mlx_error(MLX_NOT_FOUND, "NVRTC '%s' (from %s) cannot be used: %s", name, origin,
                                 mlx_status_message(status));
  mlx_status_free(status);
  return mlx_status_hint(
      named, "set MLXCEL_NVRTC to " MLX_NVRTC_13 " or its folder, or leave it out to use the default");
}

// Tries |path| unless a library was already found. Adds the reason of a failure to the list |tried| of a "not
// found" error.
static mlx_status_t consider(const char *path, mlx_text_t *tried, mlx_nvrtc_t **out_nvrtc) {
  if (*out_nvrtc) return NULL;
  mlx_status_t status = try_path(path, out_nvrtc);
  if (!status || mlx_status_code(status) == MLX_OUT_OF_MEMORY) return status;
  mlx_text_printf(tried, "%s%s", tried->length ? "; " : "", mlx_status_message(status));
  mlx_status_free(status);
  return NULL;
}

static mlx_status_t consider_own_folder(mlx_text_t *tried, mlx_nvrtc_t **out_nvrtc) {
  static const char *const subfolders[] = {".", "../lib"};
  char *folder, *path;
  mlx_status_t status = mlx_own_folder(&folder);
  for (size_t i = 0; folder && i < 2 && !status; ++i) {
    status = mlx_join_path(folder, subfolders[i], &path);
    if (!status) status = consider(path, tried, out_nvrtc);
    mlx_free(path);
  }
  mlx_free(folder);
  return status;
}

// Tries the user's CUDA toolkit. It comes last, because it can have any version.
static mlx_status_t consider_toolkit(const char *variable, mlx_text_t *tried, mlx_nvrtc_t **out_nvrtc) {
  static const char *const subfolders[] = {"lib64", "lib", "bin/x64", "bin"};
  const char *folder = getenv(variable);
  char *path;
  mlx_status_t status = NULL;
  for (size_t i = 0;
       folder && *folder && i < sizeof subfolders / sizeof *subfolders && !status && !*out_nvrtc; ++i) {
    MLX_TRY(mlx_join_path(folder, subfolders[i], &path));
    if (mlx_is_dir(path)) status = consider(path, tried, out_nvrtc);
    mlx_free(path);
  }
  return status;
}

mlx_status_t mlx_nvrtc_open(const char *explicit_path, mlx_nvrtc_t **out_nvrtc) {
  *out_nvrtc = NULL;
  if (explicit_path && *explicit_path) return use_named(explicit_path, "the command line", out_nvrtc);
  const char *named = getenv("MLXCEL_NVRTC");
  if (named && *named) return use_named(named, "MLXCEL_NVRTC", out_nvrtc);
  mlx_text_t tried = {0};
  mlx_status_t status = NULL;
  if (mlx_nvrtc_built_in[0]) status = consider(mlx_nvrtc_built_in, &tried, out_nvrtc);
  if (!status) status = consider_own_folder(&tried, out_nvrtc);
  for (size_t i = 0; i < NAME_COUNT && !status; ++i) status = consider(library_names[i], &tried, out_nvrtc);
  if (!status) status = consider_toolkit("CUDA_PATH", &tried, out_nvrtc);
  if (!status) status = consider_toolkit("CUDA_HOME", &tried, out_nvrtc);
  if (!status && !*out_nvrtc) {
    status = mlx_error(MLX_UNAVAILABLE, "NVRTC, which compiles the GPU kernels, was not found: %s",
                       tried.data ? tried.data : "");
    status = mlx_status_hint(
        status,
        "install it (pip install --target DIR nvidia-cuda-nvrtc==13.0.88 nvidia-nvfatbin==13.0.85) and "
        "set MLXCEL_NVRTC=DIR/" MLX_NVRTC_FOLDER ", or use --kernels=off");
  }
  mlx_text_clear(&tried);
  return status;
}

void mlx_nvrtc_close(mlx_nvrtc_t *nvrtc) {
  if (!nvrtc) return;
  mlx_free(nvrtc->path);
  mlx_free(nvrtc);
}

const char *mlx_nvrtc_path(const mlx_nvrtc_t *nvrtc) { return nvrtc->path; }
const char *mlx_nvrtc_version(const mlx_nvrtc_t *nvrtc) { return nvrtc->version; }
int mlx_nvrtc_major(const mlx_nvrtc_t *nvrtc) { return nvrtc->major; }
int mlx_nvrtc_minor(const mlx_nvrtc_t *nvrtc) { return nvrtc->minor; }
bool mlx_nvrtc_makes_ptx(const mlx_nvrtc_t *nvrtc) { return nvrtc->has_fatbin; }

// The version is CUDA's; the file size distinguishes its patch releases.
void mlx_nvrtc_identity(const mlx_nvrtc_t *nvrtc, char out_hex[MLX_DIGEST_HEX]) {
  char text[128];
  mlx_digest_t digest;
  int length =
      snprintf(text, sizeof text, "%s %llu %u.%u%s%s", nvrtc->version, (unsigned long long)nvrtc->size,
               nvrtc->fatbin_major, nvrtc->fatbin_minor, mlx_nvrtc_added_option ? " " : "",
               mlx_nvrtc_added_option ? mlx_nvrtc_added_option : "");
  mlx_digest_begin(&digest);
  mlx_digest_field(&digest, "mlxcel nvrtc 1", text, (size_t)length);
  mlx_digest_end(&digest, out_hex);
}

// ----------------------------------------------------------------------------------------------------------
// Compiling

static mlx_status_t check_sm(const mlx_nvrtc_t *nvrtc, const mlx_nvrtc_job_t *job) {
  int count = 0, *archs;
  bool known = false;
  mlx_text_t list = {0};
  if (nvrtc->calls.arch_count(&count)) count = 0;
  MLX_TRY(mlx_alloc((size_t)count, sizeof *archs, &archs));
  if (nvrtc->calls.archs(archs)) count = 0;
  for (int i = 0; i < count; ++i) {
    known |= archs[i] == job->sm;
    mlx_text_printf(&list, "%ssm_%d", i ? ", " : "", archs[i]);
  }
  mlx_free(archs);
  mlx_status_t status = NULL;
  if (!known) {
    status = mlx_error(MLX_UNSUPPORTED, "compiling %s: NVRTC %s ('%s') does not support sm_%d, only %s",
                       job->name, nvrtc->version, nvrtc->path, job->sm, list.data ? list.data : "nothing");
    status = mlx_status_hint(status, "set MLXCEL_NVRTC to a version that supports it, or use --kernels=off");
  }
  mlx_text_clear(&list);
  return status;
}

typedef struct options {
  char **list;  // owned, as are its elements
  size_t count;
} options_t;

static mlx_status_t add_option(options_t *options, const char *prefix, const char *text) {
  MLX_TRY(mlx_format(&options->list[options->count], "%s%s", prefix, text));
  ++options->count;
  return NULL;
}

static mlx_status_t make_options(const mlx_nvrtc_job_t *job, const char *arch, options_t *options) {
  MLX_TRY(mlx_alloc(job->definition_count + 4, sizeof *options->list, &options->list));
  MLX_TRY(add_option(options, "--std=", "c++20"));
  MLX_TRY(add_option(options, "--gpu-architecture=", arch));
  for (size_t i = 0; i < job->definition_count; ++i) MLX_TRY(add_option(options, "-D", job->definitions[i]));
  if (mlx_nvrtc_added_option) MLX_TRY(add_option(options, "", mlx_nvrtc_added_option));
  // Prints registers, shared memory and spills. Must be the last option, see run_program.
  return add_option(options, "--ptxas-options=", "-v");
}

static void free_options(options_t *options) {
  for (size_t i = 0; i < options->count; ++i) mlx_free(options->list[i]);
  mlx_free(options->list);
}

// The first line with an error in it ("smoke.cu(3): error: …", "ptxas error   : …"), or NULL.
static const char *first_error(const char *output) {
  static const char word[] = "error";
  for (const char *found = strstr(output, word); found; found = strstr(found + 1, word)) {
    const char *after = found + strlen(word);
    if (after[strspn(after, " ")] != ':') continue;
    while (found > output && found[-1] != '\n') --found;
    return found;
  }
  return NULL;
}

static mlx_status_t write_log(const mlx_nvrtc_job_t *job, mlx_text_t *log) {
  MLX_TRY(mlx_text_finish(log));
  return mlx_write_scratch_file(job->log_path, log->data, log->length);
}

static mlx_status_t explain_failure(const mlx_nvrtc_t *nvrtc, const mlx_nvrtc_job_t *job, int result,
                                    const char *output, mlx_text_t *log) {
  const char *error = first_error(output), *line = error ? error : output;
  size_t length = strcspn(line, "\n");
  mlx_status_t unwritten = write_log(job, log);
  mlx_status_t status =
      mlx_error(MLX_TOOL_FAILED, "compiling %s for sm_%d: NVRTC %s ended with %s%s%.*s (%s '%s')", job->name,
                job->sm, nvrtc->version, nvrtc->calls.error_string(result),
                length ? ": " : " and printed nothing", (int)(length < LINE_BYTES ? length : LINE_BYTES),
                line, unwritten ? "its log could not be written to" : "full output:", job->log_path);
  mlx_status_free(unwritten);
  return mlx_status_hint(status,
                         "this is a bug in mlxcel or NVRTC: please report it with the log, and use "
                         "--kernels=off until it is fixed");
}

// Fetches one output of a program: queries its size, then copies its bytes and appends a NUL.
static mlx_status_t take(const mlx_nvrtc_t *nvrtc, void *program, int (*get_size)(void *, size_t *),
                         int (*get)(void *, char *), char **out_bytes, size_t *out_length) {
  int result = get_size(program, out_length);
  if (!result) {
    MLX_TRY(mlx_alloc(*out_length + 1, 1, out_bytes));
    result = get(program, *out_bytes);
  }
  if (!result) return NULL;
  return mlx_error(MLX_TOOL_FAILED, "NVRTC %s returned no output: %s", nvrtc->version,
                   nvrtc->calls.error_string(result));
}

typedef struct code {
  char *cubin, *ptx;  // owned
  size_t cubin_length, ptx_length;
} code_t;

static void free_code(code_t *code) {
  mlx_free(code->cubin);
  mlx_free(code->ptx);
}

// Compiles with the first |count| options. Appends the options and the output of NVRTC to the log.
static mlx_status_t attempt(const mlx_nvrtc_t *nvrtc, const mlx_nvrtc_job_t *job, void *program,
                            const options_t *options, size_t count, mlx_text_t *log, int *out_result,
                            char **out_output) {
  size_t length;
  const double start = mlx_seconds();
  *out_output = NULL;
  *out_result = nvrtc->calls.compile(program, (int)count, (const char *const *)options->list);
  const double seconds = mlx_seconds() - start;
  MLX_TRY(take(nvrtc, program, nvrtc->calls.log_size, nvrtc->calls.log, out_output, &length));
  mlx_text_printf(log, "NVRTC %s:", nvrtc->version);
  for (size_t i = 0; i < count; ++i) mlx_text_printf(log, " %s", options->list[i]);
  mlx_text_printf(log, " %s\n%s\nNVRTC took %.3f s\n", job->name, *out_output, seconds);
  return NULL;
}

static mlx_status_t run_program(const mlx_nvrtc_t *nvrtc, const mlx_nvrtc_job_t *job, void *program,
                                const options_t *options, mlx_text_t *log, code_t *code) {
  const nvrtc_calls_t *calls = &nvrtc->calls;
  char *output;
  int result;
  mlx_status_t status = attempt(nvrtc, job, program, options, options->count, log, &result, &output);
  if (!status && result &&
      !first_error(output)) {  // with -v, NVRTC 13.0 does not print errors of the assembler
    mlx_free(output);
    status = attempt(nvrtc, job, program, options, options->count - 1, log, &result, &output);
  }
  if (!status && result) status = explain_failure(nvrtc, job, result, output, log);
  mlx_free(output);
  if (!status)
    status = take(nvrtc, program, calls->cubin_size, calls->cubin, &code->cubin, &code->cubin_length);
  if (!status) status = take(nvrtc, program, calls->ptx_size, calls->ptx, &code->ptx, &code->ptx_length);
  return status;
}

// "sm_XX" gives a cubin and PTX, "compute_XX" gives PTX and an empty cubin.
static mlx_status_t compile_as(const mlx_nvrtc_t *nvrtc, const mlx_nvrtc_job_t *job, const char *arch,
                               mlx_text_t *log, code_t *code) {
  options_t options = {0};
  void *program = NULL;
  mlx_status_t status = make_options(job, arch, &options);
  if (!status) {
    int result = nvrtc->calls.create(&program, job->source, job->name, (int)job->header_count, job->headers,
                                     job->header_names);
    if (result) {
      status = mlx_error(MLX_TOOL_FAILED, "compiling %s: NVRTC %s rejects the source: %s", job->name,
                         nvrtc->version, nvrtc->calls.error_string(result));
    }
  }
  if (!status) status = run_program(nvrtc, job, program, &options, log, code);
  if (program) nvrtc->calls.destroy(&program);
  free_options(&options);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// The image

// |cubin_arch| is "90a" or "90". The PTX is always for the plain one, because sm_90a PTX runs on no later
// GPU.
static mlx_status_t make_fatbin(const mlx_nvrtc_t *nvrtc, const mlx_nvrtc_job_t *job, const char *cubin_arch,
                                const code_t *machine, const code_t *portable, mlx_kernel_image_t *image) {
  // The default is Zstandard compression, which older drivers cannot read.
  const char *options[] = {"-compress=false"};
  const fatbin_calls_t *calls = &nvrtc->fatbin;
  void *handle = NULL;
  char ptx_arch[16];
  snprintf(ptx_arch, sizeof ptx_arch, "%d", job->sm);
  int result = calls->create(&handle, options, 1);
  if (!result)
    result = calls->add_cubin(handle, machine->cubin, machine->cubin_length, cubin_arch, job->name);
  if (!result) result = calls->add_ptx(handle, portable->ptx, portable->ptx_length, ptx_arch, job->name, "");
  if (!result) result = calls->size(handle, &image->length);
  mlx_status_t status = result ? NULL : mlx_alloc(image->length, 1, &image->bytes);
  if (!result && !status) result = calls->get(handle, image->bytes);
  if (handle) calls->destroy(&handle);
  image->has_ptx = true;
  if (!result) return status;
  return mlx_error(MLX_TOOL_FAILED, "building the fatbin of %s for sm_%d: libnvfatbin %u.%u failed: %s",
                   job->name, job->sm, nvrtc->fatbin_major, nvrtc->fatbin_minor, calls->error_string(result));
}

static mlx_status_t make_image(const mlx_nvrtc_t *nvrtc, const mlx_nvrtc_job_t *job, mlx_text_t *log,
                               mlx_kernel_image_t *image) {
  bool specific = job->arch_specific && job->sm >= 90;  // older GPUs have no "a" variant
  char sm[16], compute[24];
  code_t machine = {0}, plain = {0};
  snprintf(sm, sizeof sm, "sm_%d%s", job->sm, specific ? "a" : "");
  snprintf(compute, sizeof compute, "compute_%d", job->sm);
  mlx_status_t status = compile_as(nvrtc, job, sm, log, &machine);
  if (!status && !mlx_nvrtc_makes_ptx(nvrtc)) {
    *image = (mlx_kernel_image_t){.bytes = machine.cubin, .length = machine.cubin_length};
    machine.cubin = NULL;
  } else if (!status) {
    if (specific) status = compile_as(nvrtc, job, compute, log, &plain);
    if (!status)
      status = make_fatbin(nvrtc, job, sm + strlen("sm_"), &machine, specific ? &plain : &machine, image);
  }
  free_code(&machine);
  free_code(&plain);
  return status;
}

mlx_status_t mlx_nvrtc_compile(const mlx_nvrtc_t *nvrtc, const mlx_nvrtc_job_t *job,
                               mlx_kernel_image_t *out_image) {
  mlx_text_t log = {0};
  *out_image = (mlx_kernel_image_t){0};
  MLX_TRY(check_sm(nvrtc, job));
  mlx_status_t status = make_image(nvrtc, job, &log, out_image);
  if (!status) status = write_log(job, &log);
  if (!status) status = mlx_text_take(&log, &out_image->log, NULL);
  mlx_text_clear(&log);
  if (status) mlx_kernel_image_release(out_image);
  return status;
}

void mlx_kernel_image_release(mlx_kernel_image_t *image) {
  mlx_free(image->bytes);
  mlx_free(image->log);
  *image = (mlx_kernel_image_t){0};
}
