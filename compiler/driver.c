// Runs iree-compile as a child process and explains its failures.
#include "compiler/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/meter.h"
#include "base/text.h"
#include "compiler/tools.h"

#define MLXCEL_IREE_VERSION "3.13.0"  // the pinned version, whose flags and MLIR syntax we emit

#define LAST_PHASE_WITHOUT_OBJECTS "executable-targets"

#define VERSION_SECONDS 30
#define UNKNOWN_VERSION "of unknown version"
#define VERSION_BYTES 4096
#define DEFAULT_LIMIT_SECONDS 1800
#define LINE_BYTES 400                   // longest line of compiler output in an error message
#define STATIC_COMPILER_BYTES (8 << 20)  // a larger executable contains the compiler itself

// ----------------------------------------------------------------------------------------------------------
// Finding the executable

const char *const mlx_iree_needed_version = MLXCEL_IREE_VERSION;
const char *mlx_iree_built_in = MLXCEL_DEFAULT_IREE_COMPILE;

static bool is_executable(const char *path) { return mlx_is_file(path) && !access(path, X_OK); }

// Takes ownership of |candidate| and accepts it if it is an executable. Adds it to the list |searched| of a
// "not found" error.
static bool try_candidate(char *candidate, mlx_text_t *searched, char **out_path) {
  mlx_text_printf(searched, "%s%s", searched->length ? ", " : "", candidate);
  if (!is_executable(candidate)) {
    mlx_free(candidate);
    return false;
  }
  *out_path = candidate;
  return true;
}

static mlx_status_t search_path(const char *name, mlx_text_t *searched, char **out_path) {
  const char *cursor = getenv("PATH");
  while (cursor && *cursor && !*out_path) {
    size_t length = strcspn(cursor, MLX_PATH_SEPARATOR);
    char *candidate;
    // A shell treats an empty element as the current folder; mlxcel runs no executable from there.
    if (length) {
      MLX_TRY(mlx_format(&candidate, "%.*s/%s", (int)length, cursor, name));
      if (is_executable(candidate)) {
        *out_path = candidate;
      } else {
        mlx_free(candidate);
      }
    }
    cursor += length + !!cursor[length];
  }
  if (!*out_path) mlx_text_printf(searched, "%s%s on PATH", searched->length ? ", " : "", name);
  return NULL;
}

// Uses the compiler that the user named in |origin|, or fails. Never falls back to another one.
static mlx_status_t use_named(const char *name, const char *origin, char **out_path) {
  mlx_text_t searched = {0};
  mlx_status_t status = mlx_is_path(name) ? mlx_copy_text(name, strlen(name), out_path)
                                          : search_path(name, &searched, out_path);
  mlx_text_clear(&searched);
  if (status) return status;
  const char *problem = !*out_path                  ? "is not on PATH"
                        : access(*out_path, F_OK)   ? "does not exist"
                        : !is_executable(*out_path) ? "is not an executable file"
                                                    : NULL;
  if (!problem) return NULL;
  mlx_free(*out_path);
  *out_path = NULL;
  status = mlx_error(MLX_NOT_FOUND, "the compiler '%s' (from %s) %s", name, origin, problem);
  return mlx_status_hint(status, "set %s to the path of iree-compile %s, or leave it out to use the default",
                         origin, MLXCEL_IREE_VERSION);
}

static mlx_status_t search_own_folder(mlx_text_t *searched, char **out_path) {
  static const char *const places[] = {MLX_IREE_COMPILE, "../libexec/iree/" MLX_IREE_COMPILE};
  char *folder, *candidate;
  mlx_status_t status = mlx_own_folder(&folder);
  for (size_t i = 0; folder && i < 2 && !status && !*out_path; ++i) {
    status = mlx_join_path(folder, places[i], &candidate);
    if (!status) try_candidate(candidate, searched, out_path);
  }
  mlx_free(folder);
  return status;
}

static mlx_status_t find_executable(const char *explicit_path, char **out_path) {
  *out_path = NULL;
  if (explicit_path && *explicit_path) return use_named(explicit_path, "--iree-compile", out_path);
  const char *named = getenv("MLXCEL_IREE_COMPILE");
  if (named && *named) return use_named(named, "MLXCEL_IREE_COMPILE", out_path);
  mlx_text_t searched = {0};
  mlx_status_t status = NULL;
  if (mlx_iree_built_in[0]) {
    char *built_in;
    status = mlx_copy_text(mlx_iree_built_in, strlen(mlx_iree_built_in), &built_in);
    if (!status) try_candidate(built_in, &searched, out_path);
  }
  if (!status && !*out_path) status = search_own_folder(&searched, out_path);
  if (!status && !*out_path) status = search_path(MLX_IREE_COMPILE, &searched, out_path);
  if (!status && !*out_path) {
    status = mlx_error(MLX_NOT_FOUND, "iree-compile was not found; searched: %s",
                       searched.data ? searched.data : "");
    status = mlx_status_hint(
        status,
        "install it (pip install mlxcel[compiler], or iree-base-compiler==%s) or set MLXCEL_IREE_COMPILE to "
        "its path",
        MLXCEL_IREE_VERSION);
  }
  mlx_text_clear(&searched);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Identifying a compiler

typedef struct libraries {
  mlx_cache_t *cache;
  const mlx_report_t *report;
  mlx_digest_t digest;
  const char *folder;  // of the executable
  size_t count;
} libraries_t;

static mlx_status_t add_file(libraries_t *libraries, const char *label, const char *path) {
  char hex[MLX_DIGEST_HEX], title[96];
  mlx_meter_t meter;
  snprintf(title, sizeof title, "checking %.64s", mlx_file_name(path).text);
  mlx_meter_begin(&meter, libraries->report, title, 0);
  const mlx_digest_watch_t watch = mlx_meter_watch(&meter);
  mlx_status_t status = mlx_cache_tree_digest_file(libraries->cache, path, &watch, hex);
  mlx_meter_end(&meter);
  if (!status) mlx_digest_field(&libraries->digest, label, hex, MLX_DIGEST_HEX - 1);
  return status;
}

static mlx_status_t add_library(libraries_t *libraries, const char *relative_path) {
  char *path;
  MLX_TRY(mlx_join_path(libraries->folder, relative_path, &path));
  bool exists = mlx_is_file(path);
  mlx_status_t status = exists ? add_file(libraries, "library", path) : NULL;
  libraries->count += exists;
  mlx_free(path);
  return status;
}

static mlx_status_t add_python_library(void *user, const char *name) {
  char *relative_path;
  if (strncmp(name, "python3", strlen("python3"))) return NULL;
  MLX_TRY(
      mlx_format(&relative_path, "../lib/%s/site-packages/iree/compiler/_mlir_libs/" MLX_IREE_LIBRARY, name));
  mlx_status_t status = add_library(user, relative_path);
  mlx_free(relative_path);
  return status;
}

// iree-compile is a launcher; the compiler itself is a library. It is beside the executable in the wheel, in
// ../lib in an install tree, or inside site-packages if the executable is the script that pip puts on PATH.
static mlx_status_t add_libraries(libraries_t *libraries) {
  static const char *const relative_paths[] = {
      MLX_IREE_LIBRARY, "../lib/" MLX_IREE_LIBRARY,
      "../Lib/site-packages/iree/compiler/_mlir_libs/" MLX_IREE_LIBRARY};
  for (size_t i = 0; i < sizeof relative_paths / sizeof *relative_paths; ++i)
    MLX_TRY(add_library(libraries, relative_paths[i]));
  char *lib;
  MLX_TRY(mlx_join_path(libraries->folder, "../lib", &lib));
  mlx_status_t status = mlx_is_dir(lib) ? mlx_list_dir(lib, add_python_library, libraries) : NULL;
  mlx_free(lib);
  return status;
}

// *|out_complete|: whether the digest covers the compiler itself, and not only a launcher.
static mlx_status_t digest_compiler(mlx_cache_t *cache, const mlx_report_t *report,
                                    mlx_iree_compiler_t *compiler, bool *out_complete) {
  mlx_file_stamp_t stamp;
  char *folder;
  MLX_TRY(mlx_file_stamp(compiler->path, &stamp));
  MLX_TRY(mlx_folder_of(compiler->path, &folder));
  libraries_t libraries = {.cache = cache, .report = report, .folder = folder};
  mlx_digest_begin(&libraries.digest);
  mlx_status_t status = add_file(&libraries, "executable", compiler->path);
  if (!status) status = add_libraries(&libraries);
  mlx_free(folder);
  if (status) return status;
  mlx_digest_end(&libraries.digest, compiler->digest);
  *out_complete = libraries.count > 0 || stamp.size >= STATIC_COMPILER_BYTES;
  return NULL;
}

// The text after "IREE compiler version", which every iree-compile prints; "" if it is missing.
static mlx_status_t pick_version(const char *output, char **out_version) {
  static const char label[] = "IREE compiler version ";
  const char *start = strstr(output, label);
  start = start ? start + strlen(label) : "";
  return mlx_copy_text(start, strcspn(start, "\r\n"), out_version);
}

static bool report_query(void *user, double elapsed_seconds) {
  mlx_report_progress(user, "starting iree-compile: %.0f s", elapsed_seconds);
  return true;
}

static mlx_status_t query_version(const char *path, const mlx_report_t *report, char **out_version) {
  const char *argv[] = {path, "--version", NULL};
  mlx_process_options_t options = {.argv = argv,
                                   .time_limit_seconds = VERSION_SECONDS,
                                   .tick = report_query,
                                   .user = (void *)(uintptr_t)report};
  mlx_process_result_t result;
  char *output, ending[96];
  *out_version = NULL;
  MLX_TRY(mlx_process_capture(&options, VERSION_BYTES, &output, &result));
  mlx_report_done(report);
  mlx_process_describe(&result, ending, sizeof ending);
  bool failed = result.signal || result.exit_code || result.timed_out;
  mlx_status_t status = NULL;
  if (!failed) status = pick_version(output, out_version);
  mlx_free(output);
  if (!status && (failed || !**out_version)) {
    status = mlx_error(MLX_TOOL_FAILED, "'%s --version' printed no IREE version (%s)", path, ending);
    mlx_free(*out_version);
    *out_version = NULL;
  }
  return status;
}

typedef struct version_query {
  const char *path;
  const mlx_report_t *report;
} version_query_t;

static mlx_status_t store_version(void *user, const char *folder, const char *log_path) {
  const version_query_t *query = user;
  char *version, *path;
  (void)log_path;
  MLX_TRY(query_version(query->path, query->report, &version));
  mlx_status_t status = mlx_join_path(folder, "version", &path);
  if (!status) status = mlx_write_file(path, version, strlen(version));
  mlx_free(version);
  mlx_free(path);
  return status;
}

// The version depends only on the bytes of the compiler, so the cache stores it under their digest.
static mlx_status_t cached_version(mlx_cache_t *cache, mlx_iree_compiler_t *compiler,
                                   const mlx_report_t *report) {
  version_query_t query = {.path = compiler->path, .report = report};
  mlx_cache_request_t request = {
      .kind = "compiler",
      .key = compiler->digest,
      .title = "version of iree-compile",
      .fill = store_version,
      .user = &query,
  };
  mlx_cache_entry_t entry;
  char *path;
  MLX_TRY(mlx_cache_get(cache, &request, report, &entry));
  mlx_status_t status = mlx_join_path(entry.folder, "version", &path);
  if (!status) {
    status = mlx_read_file(path, VERSION_BYTES, &compiler->version, NULL);
    mlx_free(path);
  }
  mlx_cache_release(&entry);
  return status;
}

static mlx_status_t find_version(mlx_cache_t *cache, const mlx_report_t *report, bool complete,
                                 mlx_iree_compiler_t *compiler) {
  if (complete) {
    mlx_status_t status = cached_version(cache, compiler, report);
    if (!status || mlx_status_code(status) != MLX_IO) return status;
    mlx_status_free(status);  // the cache is not writable: query every time
  }
  return query_version(compiler->path, report, &compiler->version);
}

// If the tool prints no version, only its digest identifies it. If it is not a compiler, the compilation
// fails later with a log.
static mlx_status_t identify(mlx_cache_t *cache, const mlx_report_t *report, mlx_iree_compiler_t *compiler) {
  bool complete;
  mlx_status_t status = digest_compiler(cache, report, compiler, &complete);
  if (!status) status = find_version(cache, report, complete, compiler);
  if (mlx_status_code(status) != MLX_TOOL_FAILED) return status;
  mlx_status_free(status);
  return mlx_copy_text(UNKNOWN_VERSION, strlen(UNKNOWN_VERSION), &compiler->version);
}

mlx_status_t mlx_iree_compiler_find(mlx_cache_t *cache, const char *explicit_path, const mlx_report_t *report,
                                    mlx_iree_compiler_t *out_compiler) {
  *out_compiler = (mlx_iree_compiler_t){0};
  char *found;
  MLX_TRY(find_executable(explicit_path, &found));
  mlx_status_t status = mlx_real_path(found, &out_compiler->path);
  mlx_free(found);
  if (!status) status = identify(cache, report, out_compiler);
  if (status) mlx_iree_compiler_release(out_compiler);
  return status;
}

void mlx_iree_compiler_release(mlx_iree_compiler_t *compiler) {
  mlx_free(compiler->path);
  mlx_free(compiler->version);
  *compiler = (mlx_iree_compiler_t){0};
}

// ----------------------------------------------------------------------------------------------------------
// The command

typedef struct command {
  char **argv;  // owned, as are its elements; ends with NULL
  size_t count;
  char *line;  // owned; the shell command, with a newline
} command_t;

static mlx_status_t add_argument(command_t *command, const char *prefix, const char *text) {
  MLX_TRY(mlx_format(&command->argv[command->count], "%s%s", prefix, text));
  ++command->count;
  return NULL;
}

static void put_quoted(mlx_text_t *text, const char *word) {
  static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%";
  const bool plain = *word && !word[strspn(word, safe)];
  if (!plain) mlx_text_puts(text, "'");
  for (; *word; ++word) {
    if (*word == '\'') {
      mlx_text_puts(text, "'\\''");
    } else {
      mlx_text_append(text, word, 1);
    }
  }
  if (!plain) mlx_text_puts(text, "'");
}

// Quotes for a shell, so that a user can paste the first line of a log.
static mlx_status_t write_line(command_t *command, const char *input) {
  mlx_text_t text = {0};
  for (size_t i = 0; i < command->count; ++i) {
    mlx_text_puts(&text, i ? " " : "");
    put_quoted(&text, command->argv[i]);
  }
  mlx_text_puts(&text, " < ");
  put_quoted(&text, input);
  mlx_text_puts(&text, "\n");
  mlx_status_t status = mlx_text_take(&text, &command->line, NULL);
  mlx_text_clear(&text);
  return status;
}

static mlx_status_t build_command(const mlx_iree_compiler_t *compiler, const mlx_iree_job_t *job,
                                  command_t *command) {
  MLX_TRY(mlx_alloc(job->flag_count + 9, sizeof *command->argv, &command->argv));
  MLX_TRY(add_argument(command, "", compiler->path));
  for (size_t i = 0; i < job->flag_count; ++i) MLX_TRY(add_argument(command, "", job->flags[i]));
  if (job->object_folder)
    MLX_TRY(add_argument(command, "--iree-hal-executable-object-search-path=", job->object_folder));
  // Verifying after every pass takes a third of the time. The input is still verified, and the output does
  // not depend on it.
  MLX_TRY(add_argument(command, "", "--verify=false"));
  if (job->half == MLX_IREE_FIRST_HALF) {
    MLX_TRY(add_argument(command, "--compile-to=", LAST_PHASE_WITHOUT_OBJECTS));
    MLX_TRY(add_argument(command, "", "--emit-mlir-bytecode"));  // faster to read than text
  } else if (job->half == MLX_IREE_SECOND_HALF) {
    MLX_TRY(add_argument(command, "--compile-from=", LAST_PHASE_WITHOUT_OBJECTS));
  }
  // Standard input: a module records the name of its input file, and the cache must not depend on our paths.
  MLX_TRY(add_argument(command, "", "-"));
  MLX_TRY(add_argument(command, "", "-o"));
  MLX_TRY(add_argument(command, "", job->out_path));
  return write_line(command, job->mlir_path);
}

static void free_command(command_t *command) {
  for (size_t i = 0; i < command->count; ++i) mlx_free(command->argv[i]);
  mlx_free(command->argv);
  mlx_free(command->line);
}

// ----------------------------------------------------------------------------------------------------------
// Explaining a failure

typedef struct findings {
  char line[LINE_BYTES + 4];  // the first error line, else the first line; "" if the tool printed nothing
  bool unknown_option;
  bool disk_full;
} findings_t;

static bool contains(const char *bytes, size_t length, const char *part) {
  return memmem(bytes, length, part, strlen(part)) != NULL;
}

// Truncates long lines and replaces control characters (mostly colors), so that they do not reach the
// terminal.
static void keep_line(const char *bytes, size_t length, char out_line[LINE_BYTES + 4]) {
  size_t kept = length < LINE_BYTES ? length : LINE_BYTES;
  while (kept < length && kept > 0 && ((unsigned char)bytes[kept] & 0xc0) == 0x80)
    --kept;  // not inside a UTF-8 character
  for (size_t i = 0; i < kept; ++i)
    out_line[i] = (unsigned char)bytes[i] < 0x20 || bytes[i] == 0x7f ? ' ' : bytes[i];
  memcpy(out_line + kept, length > kept ? "..." : "", length > kept ? 4 : 1);
}

static void scan_line(const char *bytes, size_t length, bool *had_error, findings_t *findings) {
  size_t blank = 0;
  while (blank < length && strchr(" \t\r", bytes[blank]) && bytes[blank]) ++blank;
  if (blank == length) return;
  bool is_error = contains(bytes, length, "error:");
  if (!findings->line[0] || (is_error && !*had_error))
    keep_line(bytes + blank, length - blank, findings->line);
  *had_error |= is_error;
  findings->unknown_option |= contains(bytes, length, "Unknown command line argument");
  findings->disk_full |= contains(bytes, length, "No space left on device");
}

// Scans the log after our own first |skip| bytes. It can be long, so it is mapped and read once.
static mlx_status_t read_findings(const char *log_path, size_t skip, findings_t *out_findings) {
  *out_findings = (findings_t){0};
  mlx_map_t map;
  MLX_TRY(mlx_map_file(log_path, &map));
  const char *bytes = (const char *)map.data;
  bool had_error = false;
  for (size_t at = skip; at < map.size;) {
    const char *newline = memchr(bytes + at, '\n', map.size - at);
    size_t length = newline ? (size_t)(newline - (bytes + at)) : map.size - at;
    scan_line(bytes + at, length, &had_error, out_findings);
    at += length + 1;
  }
  mlx_unmap(&map);
  return NULL;
}

static mlx_status_t add_hint(mlx_status_t status, const mlx_iree_compiler_t *compiler,
                             const findings_t *findings, const mlx_process_result_t *result,
                             const char *log_path) {
  if (result->timed_out) {
    return mlx_status_hint(status, "allow more time: --timeout SECONDS, or MLXCEL_COMPILE_TIMEOUT=SECONDS");
  }
  if (result->signal == 9) {
    return mlx_status_hint(status,
                           "the system may have run out of memory (see `dmesg`): close other programs, or "
                           "compile on a larger machine and copy the result");
  }
  if (findings->disk_full)
    return mlx_status_hint(status, "free some space on that disk and run the command again");
  if (findings->unknown_option ||
      strncmp(compiler->version, MLXCEL_IREE_VERSION, strlen(MLXCEL_IREE_VERSION))) {
    return mlx_status_hint(status,
                           "this mlxcel needs iree-compile %s, but %s is %s: set MLXCEL_IREE_COMPILE to the "
                           "right one",
                           MLXCEL_IREE_VERSION, compiler->path, compiler->version);
  }
  return mlx_status_hint(status, "to reproduce the failure, run the command in the first line of %s",
                         log_path);
}

static mlx_status_t explain_failure(const mlx_iree_compiler_t *compiler, const mlx_iree_job_t *job,
                                    const command_t *command, const mlx_process_result_t *result) {
  findings_t findings;
  char ending[160];
  size_t line_length = strlen(command->line);
  MLX_TRY(read_findings(job->log_path, line_length, &findings));
  mlx_process_describe(result, ending, sizeof ending);
  if (result->timed_out) {
    snprintf(ending, sizeof ending, "the time limit: it was stopped after %.0f s", result->elapsed_seconds);
  }
  mlx_code_t code = result->timed_out ? MLX_TIMEOUT : MLX_TOOL_FAILED;
  mlx_status_t status;
  if (findings.line[0]) {
    status = mlx_error(code, "compiling %s: iree-compile ended with %s: %s (full output: '%s')", job->name,
                       ending, findings.line, job->log_path);
  } else {
    status = mlx_error(
        code,
        "compiling %s: iree-compile printed nothing and ended with %s; the command line (also in '%s') "
        "was: %.*s",
        job->name, ending, job->log_path, (int)line_length - 1, command->line);
  }
  return add_hint(status, compiler, &findings, result, job->log_path);
}

static mlx_status_t check_output(const mlx_iree_job_t *job, const command_t *command) {
  mlx_file_stamp_t stamp = {0};
  bool exists = mlx_is_file(job->out_path);
  if (exists) MLX_TRY(mlx_file_stamp(job->out_path, &stamp));
  if (stamp.size > 0) return NULL;
  mlx_status_t status = mlx_error(
      MLX_TOOL_FAILED, "compiling %s: iree-compile ended with exit status 0 but %s '%s' (full output: '%s')",
      job->name, exists ? "left an empty" : "did not write", job->out_path, job->log_path);
  return mlx_status_hint(status, "to reproduce it, run: %.*s", (int)strlen(command->line) - 1, command->line);
}

// ----------------------------------------------------------------------------------------------------------
// Compiling

typedef struct progress {
  const mlx_report_t *report;
  const char *name;
  uint64_t bytes;  // of MLIR
  const atomic_bool *cancelled;
} progress_t;

static bool report_progress(void *user, double elapsed_seconds) {
  const progress_t *progress = user;
  mlx_report_progress(progress->report, "compiling %s: %s of code, %.0f s", progress->name,
                      mlx_bytes_show(progress->bytes).text, elapsed_seconds);
  return !(progress->cancelled && atomic_load(progress->cancelled)) &&
         !mlx_report_is_cancelled(progress->report);
}

static mlx_status_t choose_limit(double given, double *out_seconds) {
  *out_seconds = given > 0 ? given : DEFAULT_LIMIT_SECONDS;
  const char *text = getenv("MLXCEL_COMPILE_TIMEOUT");
  if (given > 0 || !text || !*text) return NULL;
  char *end;
  *out_seconds = strtod(text, &end);
  if (!*end && *out_seconds > 0 && *out_seconds < 1e9) return NULL;
  return mlx_status_hint(mlx_error(MLX_USAGE, "MLXCEL_COMPILE_TIMEOUT=%s is not a number of seconds", text),
                         "for example MLXCEL_COMPILE_TIMEOUT=3600");
}

static mlx_status_t run_command(const mlx_iree_compiler_t *compiler, const mlx_iree_job_t *job,
                                const command_t *command, const mlx_report_t *report,
                                mlx_process_result_t *result) {
  mlx_file_stamp_t stamp;
  MLX_TRY(mlx_file_stamp(job->mlir_path, &stamp));
  progress_t progress = {
      .report = report, .name = job->name, .bytes = stamp.size, .cancelled = job->cancelled};
  mlx_process_options_t options = {
      .argv = (const char *const *)command->argv,
      .input_path = job->mlir_path,
      .log_path = job->log_path,
      .log_head = command->line,
      .tick = report_progress,
      .user = &progress,
  };
  char *folder;
  MLX_TRY(choose_limit(job->time_limit_seconds, &options.time_limit_seconds));
  MLX_TRY(mlx_folder_of(job->out_path, &folder));
  options.temporary_folder = folder;
  unlink(job->out_path);  // so that a file found afterwards was written by this run
  mlx_status_t status = mlx_process_run(&options, result);
  mlx_free(folder);
  mlx_report_done(report);
  if (status) return status;
  if (result->cancelled) MLX_TRY(mlx_report_check(report));
  bool failed = result->signal || result->exit_code || result->timed_out || result->cancelled;
  return failed ? explain_failure(compiler, job, command, result) : check_output(job, command);
}

mlx_status_t mlx_iree_compile(const mlx_iree_compiler_t *compiler, const mlx_iree_job_t *job,
                              const mlx_report_t *report, mlx_process_result_t *out_result) {
  mlx_process_result_t result = {0};
  command_t command = {0};
  mlx_status_t status = build_command(compiler, job, &command);
  if (!status) status = run_command(compiler, job, &command, report, &result);
  if (out_result) *out_result = result;
  free_command(&command);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// The cache key

static void add_text(mlx_digest_t *digest, const char *label, const char *text) {
  mlx_digest_field(digest, label, text, strlen(text));
}

void mlx_iree_key(const mlx_iree_compiler_t *compiler, const mlx_iree_input_t *input,
                  char out_hex[MLX_DIGEST_HEX]) {
  mlx_digest_t digest;
  mlx_digest_begin(&digest);
  add_text(&digest, "mlxcel iree key", "3");
  if (compiler) {
    add_text(&digest, "compiler path", compiler->path);
    add_text(&digest, "compiler version", compiler->version);
    add_text(&digest, "compiler digest", compiler->digest);
  }
  add_text(&digest, "target", input->target);
  for (size_t i = 0; i < input->flag_count; ++i) add_text(&digest, "flag", input->flags[i]);
  for (size_t i = 0; i < input->object_count; ++i) {
    add_text(&digest, "object name", input->objects[i].name);
    mlx_digest_field(&digest, "object bytes", input->objects[i].bytes, input->objects[i].length);
  }
  mlx_digest_field(&digest, "mlir", input->mlir, input->mlir_length);
  mlx_digest_end(&digest, out_hex);
}
