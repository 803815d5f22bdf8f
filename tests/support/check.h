// The test harness. A test file is a list of TEST(promise) functions and ends in TEST_MAIN(...).
//
// A failed CHECK prints its file and line and both values, and ends that test only. SKIP ends a test that
// cannot run on this machine and prints the reason. The program prints "N passed, N failed, N skipped"; its
// exit status is 77 if it skipped every test. With an argument, only the test of that name runs.
#ifndef MLXCEL_TESTS_CHECK_H_
#define MLXCEL_TESTS_CHECK_H_

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#ifdef _WIN32
#include "tests/support/windows.h"
#endif

static jmp_buf check_exit;

#define CHECK_FAIL(...)                               \
  do {                                                \
    fprintf(stderr, "  %s:%d: ", __FILE__, __LINE__); \
    fprintf(stderr, __VA_ARGS__);                     \
    fputc('\n', stderr);                              \
    longjmp(check_exit, 1);                           \
  } while (0)

#define CHECK_SKIPPED 77  // exit status; also what SKIP passes to longjmp

// Ends the test as skipped, because this machine lacks something that the test needs. The arguments are a
// printf format and its values; they name what is missing.
#define SKIP(...)                       \
  do {                                  \
    fprintf(stderr, "  skipped: ");     \
    fprintf(stderr, __VA_ARGS__);       \
    fputc('\n', stderr);                \
    longjmp(check_exit, CHECK_SKIPPED); \
  } while (0)

#define CHECK(condition)                                     \
  do {                                                       \
    if (!(condition)) CHECK_FAIL("expected %s", #condition); \
  } while (0)

#define CHECK_INT(actual, expected)                                                                 \
  do {                                                                                              \
    long long actual_ = (long long)(actual), expected_ = (long long)(expected);                     \
    if (actual_ != expected_) CHECK_FAIL("%s is %lld, expected %lld", #actual, actual_, expected_); \
  } while (0)

// A function call, because |actual| may be text inside a returned struct, which lives until the call ends.
#define CHECK_TEXT(actual, expected) check_same_text(actual, expected, #actual, __FILE__, __LINE__)
static inline void check_same_text(const char *actual, const char *expected, const char *what,
                                   const char *file, int line) {
  if (actual && !strcmp(actual, expected)) return;
  fprintf(stderr, "  %s:%d: %s is\n%s\n  expected\n%s\n", file, line, what, actual ? actual : "NULL",
          expected);
  longjmp(check_exit, 1);
}

#define CHECK_CONTAINS(text, part)                                             \
  do {                                                                         \
    const char *text_ = (text), *part_ = (part);                               \
    if (!text_ || !strstr(text_, part_))                                       \
      CHECK_FAIL("'%s' does not contain '%s'", text_ ? text_ : "NULL", part_); \
  } while (0)

#define CHECK_OK(expr)                                                                \
  do {                                                                                \
    mlx_status_t status_ = (expr);                                                    \
    if (status_)                                                                      \
      CHECK_FAIL("%s failed: %s (made at %s:%d)", #expr, mlx_status_message(status_), \
                 mlx_status_file(status_), mlx_status_line(status_));                 \
  } while (0)

// The call must fail with this code and a message that contains |part|.
#define CHECK_ERROR(expr, expected_code, part)                                                            \
  do {                                                                                                    \
    mlx_status_t status_ = (expr);                                                                        \
    if (!status_) CHECK_FAIL("%s succeeded, expected an error with '%s'", #expr, part);                   \
    if (mlx_status_code(status_) != (expected_code) || !strstr(mlx_status_message(status_), part))        \
      CHECK_FAIL("%s: code %d, message '%s'; expected code %d and '%s'", #expr, mlx_status_code(status_), \
                 mlx_status_message(status_), expected_code, part);                                       \
    mlx_status_free(status_);                                                                             \
  } while (0)

typedef struct check_case {
  const char *name;
  void (*run)(void);
} check_case_t;

#define TEST(name) static void name(void)
#define CASE(name) {#name, name}
#ifdef _WIN32
#define POSIX_CASE(name) {NULL, name}  // left out on Windows, which lacks what the test needs
#else
#define POSIX_CASE(name) CASE(name)
#endif

// Defaults that keep tests away from the user's files and from the public hub.
static inline void check_isolate(void) {
#ifdef MLXCEL_TEST_CACHE
  setenv("MLXCEL_STATE", MLXCEL_TEST_CACHE "-state", 0);
#endif
  setenv("HF_ENDPOINT", "http://127.0.0.1:9", 0);
}

static inline int check_run(const check_case_t *cases, size_t count, int argc, char **argv) {
  static int failed, skipped, ran;  // static: longjmp may lose the values of locals in registers
  static size_t i;
  check_isolate();
  for (i = 0; i < count; ++i) {
    if (!cases[i].name || (argc > 1 && strcmp(argv[1], cases[i].name))) continue;
    fprintf(stderr, "%s\n", cases[i].name);
    ++ran;
    switch (setjmp(check_exit)) {
      case 0: cases[i].run(); break;
      case CHECK_SKIPPED: ++skipped; break;
      default:
        fprintf(stderr, "  FAILED\n");
        ++failed;
        break;
    }
  }
  fprintf(stderr, "%d passed, %d failed, %d skipped\n", ran - failed - skipped, failed, skipped);
  if (failed || !ran) return 1;
  return skipped == ran ? CHECK_SKIPPED : 0;
}

#define TEST_MAIN(...)                                                 \
  int main(int argc, char **argv) {                                    \
    static const check_case_t cases[] = {__VA_ARGS__};                 \
    return check_run(cases, sizeof cases / sizeof *cases, argc, argv); \
  }

#endif  // MLXCEL_TESTS_CHECK_H_
