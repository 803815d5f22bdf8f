// The test harness: a test file is a list of TEST(promise) functions ending in TEST_MAIN(...). A failed CHECK
// prints the place and both sides, and ends that test only. Run with a name to run just that test.
#ifndef MLXCEL_TESTS_CHECK_H_
#define MLXCEL_TESTS_CHECK_H_

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#ifdef _WIN32
#include "tests/windows.h"
#endif

static jmp_buf check_exit;

#define CHECK_FAIL(...)                               \
  do {                                                \
    fprintf(stderr, "  %s:%d: ", __FILE__, __LINE__); \
    fprintf(stderr, __VA_ARGS__);                     \
    fputc('\n', stderr);                              \
    longjmp(check_exit, 1);                           \
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

// A call, so that text inside a struct that a function returned lives long enough.
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
#define POSIX_CASE(name) {NULL, name}  // a promise about programs or habits that Windows does not have
#else
#define POSIX_CASE(name) CASE(name)
#endif

static inline int check_run(const check_case_t *cases, size_t count, int argc, char **argv) {
  static int failed, ran;  // static: longjmp may lose what a register holds
  static size_t i;
  for (i = 0; i < count; ++i) {
    if (!cases[i].name || (argc > 1 && strcmp(argv[1], cases[i].name))) continue;
    fprintf(stderr, "%s\n", cases[i].name);
    ++ran;
    if (setjmp(check_exit)) {
      fprintf(stderr, "  FAILED\n");
      ++failed;
    } else {
      cases[i].run();
    }
  }
  fprintf(stderr, "%d passed, %d failed\n", ran - failed, failed);
  return failed || !ran;
}

#define TEST_MAIN(...)                                                 \
  int main(int argc, char **argv) {                                    \
    static const check_case_t cases[] = {__VA_ARGS__};                 \
    return check_run(cases, sizeof cases / sizeof *cases, argc, argv); \
  }

#endif  // MLXCEL_TESTS_CHECK_H_
