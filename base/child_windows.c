// Child processes on Windows: each child runs in its own job object. The system ends the job, with everything
// the child started, when mlxcel exits in any way.
#include <windows.h>

#include <errno.h>
#include <psapi.h>  // needs windows.h first

#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/leftover.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/windows/internal.h"

#define ENDED_BY_US 0xE0000001u  // exit code of a child that mlxcel terminated

// ----------------------------------------------------------------------------------------------------------
// The command line

// Quotes an argument for the parser of the Microsoft C runtime: escapes a quote and the backslashes before
// it.
static void add_argument(mlx_text_t *line, const char *argument) {
  const bool plain = *argument && !strpbrk(argument, " \t\n\v\"");
  size_t backslashes = 0;
  if (line->length) mlx_text_puts(line, " ");
  if (!plain) mlx_text_puts(line, "\"");
  for (; *argument; ++argument) {
    const size_t escapes = *argument == '"' ? backslashes + 1 : 0;
    for (size_t i = 0; i < escapes; ++i) mlx_text_puts(line, "\\");
    backslashes = *argument == '\\' ? backslashes + 1 : 0;
    mlx_text_append(line, argument, 1);
  }
  for (size_t i = 0; !plain && i < backslashes; ++i) mlx_text_puts(line, "\\");
  if (!plain) mlx_text_puts(line, "\"");
}

static mlx_status_t command_line(const char *const *argv, wchar_t **out_line) {
  mlx_text_t line = {0};
  for (; *argv; ++argv) add_argument(&line, *argv);
  mlx_status_t status = mlx_text_finish(&line);
  *out_line = status ? NULL : mlx_wide(line.data);
  if (!status && !*out_line)
    status = mlx_error(MLX_INVALID_INPUT, "a command line is not valid UTF-8: %s", line.data);
  mlx_text_clear(&line);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Starting

typedef struct streams {
  HANDLE input, output;  // the child's handles
} streams_t;

static bool make_job(HANDLE *out_job) {
  JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits = {.BasicLimitInformation.LimitFlags =
                                                     JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE};
  *out_job = CreateJobObjectW(NULL, NULL);
  return *out_job &&
         SetInformationJobObject(*out_job, JobObjectExtendedLimitInformation, &limits, sizeof limits);
}

// The child inherits only its two streams, and gets no Ctrl-C from our console.
static bool create(const char *program, wchar_t *line, streams_t *streams, PROCESS_INFORMATION *out) {
  const DWORD flags =
      CREATE_SUSPENDED | CREATE_NEW_PROCESS_GROUP | EXTENDED_STARTUPINFO_PRESENT | CREATE_NO_WINDOW;
  STARTUPINFOEXW info = {.StartupInfo = {.cb = sizeof info,
                                         .dwFlags = STARTF_USESTDHANDLES,
                                         .hStdInput = streams->input,
                                         .hStdOutput = streams->output,
                                         .hStdError = streams->output}};
  SIZE_T size = 0;
  InitializeProcThreadAttributeList(NULL, 1, 0, &size);
  info.lpAttributeList = malloc(size);
  wchar_t *path = mlx_wide_path(program);
  bool ok =
      info.lpAttributeList && path && InitializeProcThreadAttributeList(info.lpAttributeList, 1, 0, &size);
  if (ok) {
    ok = UpdateProcThreadAttribute(info.lpAttributeList, 0, PROC_THREAD_ATTRIBUTE_HANDLE_LIST, streams,
                                   sizeof *streams, NULL, NULL) &&
         CreateProcessW(path, line, NULL, NULL, TRUE, flags, NULL, NULL, &info.StartupInfo, out);
    const DWORD error = GetLastError();
    DeleteProcThreadAttributeList(info.lpAttributeList);
    SetLastError(error);
  }
  free(info.lpAttributeList);
  free(path);
  return ok;
}

static bool start_in_job(const char *program, wchar_t *line, streams_t *streams, mlx_child_t *child) {
  HANDLE job;
  PROCESS_INFORMATION process;
  bool ok = make_job(&job);
  if (ok) {
    ok = create(program, line, streams, &process);
    if (ok) {
      AssignProcessToJobObject(job, process.hProcess);
      ResumeThread(process.hThread);
      CloseHandle(process.hThread);
      child->id = (intptr_t)process.hProcess;
    }
  }
  child->group = (intptr_t)job;
  return ok;
}

static mlx_status_t start(const mlx_process_options_t *options, HANDLE output, mlx_child_t *child) {
  SECURITY_ATTRIBUTES inherited = {.nLength = sizeof inherited, .bInheritHandle = TRUE};
  const char *const *argv = options->argv, *from = options->input_path ? options->input_path : "NUL";
  wchar_t *line, *wide = mlx_wide(from);
  if (!wide) return mlx_error(MLX_OUT_OF_MEMORY, "out of memory");
  streams_t streams = {.output = output,
                       .input = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE,
                                            &inherited, OPEN_EXISTING, 0, NULL)};
  free(wide);
  MLX_TRY(command_line(argv, &line));
  const bool started = start_in_job(argv[0], line, &streams, child);
  if (!started) mlx_windows_set_errno();
  mlx_status_t status = started ? NULL : mlx_io_error("run", argv[0]);
  if (streams.input != INVALID_HANDLE_VALUE) CloseHandle(streams.input);
  free(line);
  return status;
}

static mlx_status_t make_pipe(mlx_child_t *child, HANDLE *out_theirs) {
  SECURITY_ATTRIBUTES inherited = {.nLength = sizeof inherited, .bInheritHandle = TRUE};
  HANDLE ours;
  if (!CreatePipe(&ours, out_theirs, &inherited, 0))
    return mlx_error(MLX_IO, "cannot create a pipe (error %lu)", GetLastError());
  SetHandleInformation(ours, HANDLE_FLAG_INHERIT, 0);
  child->output = (intptr_t)ours;
  return NULL;
}

// Replaces the log instead of truncating it: a process that still reads the old log keeps it.
static mlx_status_t open_log(const char *path, const char *head, HANDLE *out_log) {
  SECURITY_ATTRIBUTES inherited = {.nLength = sizeof inherited, .bInheritHandle = TRUE};
  DWORD written;
  if (unlink(path) && errno != ENOENT) return mlx_io_error("replace", path);
  wchar_t *wide = mlx_wide_path(path);
  if (!wide) return mlx_io_error("create", path);
  *out_log = CreateFileW(wide, FILE_APPEND_DATA | SYNCHRONIZE,
                         FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, &inherited, CREATE_NEW,
                         FILE_ATTRIBUTE_NORMAL, NULL);
  if (*out_log == INVALID_HANDLE_VALUE) mlx_windows_set_errno();
  free(wide);
  if (*out_log == INVALID_HANDLE_VALUE) return mlx_io_error("create", path);
  if (!head || WriteFile(*out_log, head, (DWORD)strlen(head), &written, NULL)) return NULL;
  mlx_windows_set_errno();
  CloseHandle(*out_log);
  return mlx_io_error("write", path);
}

mlx_status_t mlx_child_start(const mlx_process_options_t *options, const char *log_path,
                             mlx_child_t *out_child) {
  *out_child = (mlx_child_t){.output = -1, .began = mlx_seconds()};
  HANDLE theirs;
  MLX_TRY(log_path ? open_log(log_path, options->log_head, &theirs) : make_pipe(out_child, &theirs));
  mlx_status_t status = start(options, theirs, out_child);
  CloseHandle(theirs);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Watching

bool mlx_child_has_ended(const mlx_child_t *child) {
  return WaitForSingleObject((HANDLE)child->id, 0) != WAIT_TIMEOUT;
}

// Windows has no termination request that every program without a window understands.
void mlx_child_terminate(const mlx_child_t *child) { mlx_child_kill(child); }

void mlx_child_kill(const mlx_child_t *child) {
  TerminateJobObject((HANDLE)child->group, ENDED_BY_US);
  TerminateProcess((HANDLE)child->id, ENDED_BY_US);
}

size_t mlx_child_read(const mlx_child_t *child, char *bytes, size_t size) {
  DWORD there = 0, got = 0;
  if (!PeekNamedPipe((HANDLE)child->output, NULL, 0, NULL, &there, NULL) || !there) return 0;
  return ReadFile((HANDLE)child->output, bytes, there < size ? there : (DWORD)size, &got, NULL) ? got : 0;
}

// A FILETIME counts 100 ns.
static double seconds_of(FILETIME time) {
  return 1e-7 * (double)((uint64_t)time.dwHighDateTime << 32 | time.dwLowDateTime);
}

mlx_status_t mlx_child_reap(mlx_child_t *child, mlx_process_result_t *result) {
  PROCESS_MEMORY_COUNTERS memory;
  FILETIME created, ended, kernel, user;
  DWORD code;
  TerminateJobObject((HANDLE)child->group, ENDED_BY_US);
  if (!GetExitCodeProcess((HANDLE)child->id, &code))
    return mlx_error(MLX_INTERNAL, "cannot query a child process (error %lu)", GetLastError());
  result->elapsed_seconds = mlx_seconds() - child->began;
  result->exit_code = (int)code;
  if (GetProcessTimes((HANDLE)child->id, &created, &ended, &kernel, &user))
    result->cpu_seconds = seconds_of(kernel) + seconds_of(user);
  if (K32GetProcessMemoryInfo((HANDLE)child->id, &memory, sizeof memory))
    result->peak_bytes = memory.PeakWorkingSetSize;
  return NULL;
}

void mlx_child_close(mlx_child_t *child) {
  if (child->output >= 0) CloseHandle((HANDLE)child->output);
  if (child->id) CloseHandle((HANDLE)child->id);
  if (child->group) CloseHandle((HANDLE)child->group);
  *child = (mlx_child_t){.output = -1};
}

// The exit code of a crash is an NTSTATUS value, which has its highest bit set.
void mlx_process_describe(const mlx_process_result_t *result, char *out_text, size_t size) {
  const unsigned code = (unsigned)result->exit_code;
  snprintf(out_text, size, code >> 31 ? "exit status 0x%08X" : "exit status %u", code);
}

bool mlx_process_is_running(long pid) {
  HANDLE process = OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION, FALSE, (DWORD)pid);
  DWORD code = STILL_ACTIVE;
  if (!process) return GetLastError() != ERROR_INVALID_PARAMETER;  // this error: no such process
  if (!GetExitCodeProcess(process, &code)) code = STILL_ACTIVE;
  CloseHandle(process);
  return code == STILL_ACTIVE;
}
