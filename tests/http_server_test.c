// The HTTP server, in this process, with clients on raw sockets.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "server/http.h"
#include "tests/check.h"
#include "tests/http_peer.h"

TEST(request_is_answered_with_its_parts) {
  start_server(NULL);
  const int fd = dial();
  send_text(fd,
            "POST /echo/a%20b%2Fc?x=%20y HTTP/1.1\r\nHost: localhost\r\nX-Name:  value \r\nContent-Length: "
            "5\r\n\r\nhello");
  const char *response = read_response(fd);
  CHECK_CONTAINS(response, "HTTP/1.1 200 OK\r\n");
  CHECK_CONTAINS(response, "\r\nDate: ");
  CHECK_CONTAINS(response, "\r\nServer: mlxcel\r\n");
  CHECK_CONTAINS(response, "\r\nContent-Type: text/plain\r\n");
  CHECK(!strstr(response, "Connection:"));
  CHECK_TEXT(body_of(response), "POST /echo/a b/c x=%20y value 127.0.0.1 hello");
  send_text(fd, "GET /echo/ HTTP/1.1\r\nHost: localhost\r\n\r\n");  // the connection is kept
  CHECK_TEXT(body_of(read_response(fd)), "GET /echo/   127.0.0.1 ");
  close(fd);
  stop_server();
  CHECK_INT(counts.ended, 2);
  CHECK_INT(counts.gone_ends, 0);
}

TEST(stream_is_sent_in_chunks_at_once) {
  start_server(NULL);
  const int fd = dial();
  send_text(fd, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
  char head[4096];
  read_until(fd, head, sizeof head, "3\r\none\r\n");
  CHECK_CONTAINS(head, "Transfer-Encoding: chunked\r\n");
  CHECK(!strstr(head, "Content-Length"));
  release_handler();
  read_until(fd, head, sizeof head, "0\r\n\r\n");
  CHECK_TEXT(head, "3\r\ntwo\r\n0\r\n\r\n");
  send_text(fd, "GET /echo/ HTTP/1.1\r\nHost: h\r\n\r\n");
  CHECK_CONTAINS(read_response(fd), "200 OK");
  close(fd);
  stop_server();
}

TEST(client_that_leaves_is_noticed_in_milliseconds) {
  start_server(NULL);
  for (int reset = 0; reset < 2; ++reset) {
    const int fd = dial();
    send_text(fd, "GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK(wait_for(&counts.waiting, reset + 1, 5));
    if (reset) setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    const double before = mlx_seconds();
    close(fd);
    CHECK(wait_for(&counts.gone, reset + 1, 5));
    CHECK(mlx_seconds() - before < 0.25);
  }
  CHECK(wait_for(&counts.ended, 2, 5));
  CHECK_INT(counts.gone_ends, 2);
  stop_server();
}

TEST_MAIN(CASE(request_is_answered_with_its_parts), CASE(stream_is_sent_in_chunks_at_once),
          CASE(client_that_leaves_is_noticed_in_milliseconds))
