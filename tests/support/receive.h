// recv for tests.
#ifndef MLXCEL_TESTS_RECEIVE_H_
#define MLXCEL_TESTS_RECEIVE_H_

#include <errno.h>
#include <sys/socket.h>

// recv that is repeated if it was interrupted. On a socket with a timeout, a process that is stopped and
// continued gets EINTR without a signal handler.
static inline ssize_t receive(int fd, void *out, size_t size, int flags) {
  ssize_t got;
  do got = recv(fd, out, size, flags);
  while (got < 0 && errno == EINTR);
  return got;
}

#endif  // MLXCEL_TESTS_RECEIVE_H_
