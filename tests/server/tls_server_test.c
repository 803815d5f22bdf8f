// TLS of the HTTP server, with Mbed TLS's client on raw sockets.
#include <errno.h>
#include <signal.h>

#include "base/file.h"
#include "mbedtls/ctr_drbg.h"
#include "mbedtls/entropy.h"
#include "mbedtls/ssl.h"
#include "psa/crypto.h"
#include "tests/server/http_peer.h"

#define CERT MLXCEL_SOURCE_DIR "/tests/fixtures/tls/cert.pem"
#define KEY MLXCEL_SOURCE_DIR "/tests/fixtures/tls/key.pem"

static struct {
  mbedtls_entropy_context entropy;
  mbedtls_ctr_drbg_context random;
  mbedtls_x509_crt roots;
  mbedtls_ssl_config config;
  mbedtls_ssl_context ssl;
  int fd;
  size_t piece;  // most bytes sent at a time
} client;

static int client_send(void *user, const unsigned char *bytes, size_t length) {
  (void)user;
  if (length > client.piece) length = client.piece;
  const ssize_t sent = send(client.fd, bytes, length, MSG_NOSIGNAL);
  if (sent < 0) return errno == EINTR ? MBEDTLS_ERR_SSL_WANT_WRITE : MBEDTLS_ERR_SSL_CONN_EOF;
  return (int)sent;
}

static int client_receive(void *user, unsigned char *out, size_t length) {
  (void)user;
  const ssize_t got = receive(client.fd, (char *)out, length, 0);
  return got < 0 ? MBEDTLS_ERR_SSL_CONN_EOF : (int)got;
}

// Connects and completes the handshake with one version of TLS.
static void connect_tls(mbedtls_ssl_protocol_version version, size_t piece) {
  static const char *protocols[] = {"h2", "http/1.1", NULL};
  memset(&client, 0, sizeof client);
  client.piece = piece;
  CHECK_INT(psa_crypto_init(), PSA_SUCCESS);
  mbedtls_entropy_init(&client.entropy);
  mbedtls_ctr_drbg_init(&client.random);
  mbedtls_x509_crt_init(&client.roots);
  mbedtls_ssl_config_init(&client.config);
  mbedtls_ssl_init(&client.ssl);
  CHECK_INT(mbedtls_ctr_drbg_seed(&client.random, mbedtls_entropy_func, &client.entropy, NULL, 0), 0);
  CHECK_INT(mbedtls_x509_crt_parse_file(&client.roots, CERT), 0);
  CHECK_INT(mbedtls_ssl_config_defaults(&client.config, MBEDTLS_SSL_IS_CLIENT, MBEDTLS_SSL_TRANSPORT_STREAM,
                                        MBEDTLS_SSL_PRESET_DEFAULT),
            0);
  mbedtls_ssl_conf_rng(&client.config, mbedtls_ctr_drbg_random, &client.random);
  mbedtls_ssl_conf_ca_chain(&client.config, &client.roots, NULL);
  mbedtls_ssl_conf_min_tls_version(&client.config, version);
  mbedtls_ssl_conf_max_tls_version(&client.config, version);
  CHECK_INT(mbedtls_ssl_conf_alpn_protocols(&client.config, protocols), 0);
  CHECK_INT(mbedtls_ssl_setup(&client.ssl, &client.config), 0);
  CHECK_INT(mbedtls_ssl_set_hostname(&client.ssl, "localhost"), 0);
  mbedtls_ssl_set_bio(&client.ssl, NULL, client_send, client_receive, NULL);
  client.fd = dial();
  int error;
  do error = mbedtls_ssl_handshake(&client.ssl);
  while (error == MBEDTLS_ERR_SSL_WANT_WRITE);
  CHECK_INT(error, 0);
}

static void disconnect_tls(void) {
  close(client.fd);
  mbedtls_ssl_free(&client.ssl);
  mbedtls_ssl_config_free(&client.config);
  mbedtls_x509_crt_free(&client.roots);
  mbedtls_ctr_drbg_free(&client.random);
  mbedtls_entropy_free(&client.entropy);
}

static void write_tls(const char *text) {
  for (size_t length = strlen(text); length;) {
    const int sent = mbedtls_ssl_write(&client.ssl, (const unsigned char *)text, length);
    CHECK(sent > 0);
    text += sent;
    length -= (size_t)sent;
  }
}

// Reads until the text ends with |end| or has |length| bytes. Returns the number of bytes.
static size_t read_tls(char *out, size_t size, const char *end, size_t length) {
  size_t done = 0;
  for (out[0] = 0; done < length && (!end || done < strlen(end) || strcmp(out + done - strlen(end), end));) {
    CHECK(done + 1 < size);
    const int got = mbedtls_ssl_read(&client.ssl, (unsigned char *)out + done, end ? 1 : length - done);
    if (got == MBEDTLS_ERR_SSL_RECEIVED_NEW_SESSION_TICKET) continue;
    if (got <= 0) CHECK_FAIL("TLS ended with -0x%x after '%s'", (unsigned)-got, out);
    done += (size_t)got;
    out[done] = 0;
  }
  return done;
}

static void use_tls(mlx_http_server_options_t *options) {
  options->certificate = CERT;
  options->private_key = KEY;
}
// Only the limit of handshakes ends a connection within an hour.
static void use_tls_shortly(mlx_http_server_options_t *options) {
  use_tls(options);
  options->header_seconds = 0.5;
  options->body_seconds = options->idle_seconds = options->write_seconds = 3600;
}

static const mbedtls_ssl_protocol_version versions[] = {MBEDTLS_SSL_VERSION_TLS1_2,
                                                        MBEDTLS_SSL_VERSION_TLS1_3};

TEST(requests_are_answered_over_both_versions) {
  static char text[300000];
  start_server(use_tls);
  for (int i = 0; i < 4; ++i) {
    connect_tls(versions[i % 2], i < 2 ? 1 << 20 : 7);  // also in small pieces
    CHECK_INT(mbedtls_ssl_get_version_number(&client.ssl), versions[i % 2]);
    CHECK_TEXT(mbedtls_ssl_get_alpn_protocol(&client.ssl), "http/1.1");
    write_tls("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello");
    read_tls(text, sizeof text, " hello", SIZE_MAX);
    CHECK_CONTAINS(text, "HTTP/1.1 200 OK");
    write_tls("GET /big?200000 HTTP/1.1\r\nHost: h\r\n\r\n");  // several records
    read_tls(text, sizeof text, "\r\n\r\n", SIZE_MAX);
    CHECK_INT(read_tls(text, sizeof text, NULL, 200000), 200000);
    for (size_t j = 0; j < 200000; ++j) CHECK(text[j] == (char)('a' + j % 26));
    write_tls("GET /stream HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    read_tls(text, sizeof text, "one\r\n", SIZE_MAX);
    release_handler();
    read_tls(text, sizeof text, "0\r\n\r\n", SIZE_MAX);
    unsigned char byte;
    CHECK_INT(mbedtls_ssl_read(&client.ssl, &byte, 1), MBEDTLS_ERR_SSL_PEER_CLOSE_NOTIFY);
    disconnect_tls();
  }
  stop_server();
}

TEST(client_that_leaves_is_noticed) {
  start_server(use_tls);
  for (int notify = 0; notify < 2; ++notify) {
    connect_tls(MBEDTLS_SSL_VERSION_TLS1_3, 1 << 20);
    write_tls("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK(wait_for(&counts.waiting, notify + 1, 60));
    if (notify) mbedtls_ssl_close_notify(&client.ssl);
    if (!notify) close(client.fd);
    CHECK(wait_for(&counts.gone, notify + 1, 60));
    if (!notify) client.fd = dial();  // for disconnect_tls
    disconnect_tls();
  }
  stop_server();
}

TEST(handshakes_have_a_time_limit) {
  start_server(use_tls_shortly);
  const double before = mlx_seconds();
  const int silent = dial(), slow = dial();
  send_bytes(slow, "\x16\x03\x01\x02\x00\x01", 6);
  CHECK(is_closed(silent, 60) && is_closed(slow, 60));
  CHECK(mlx_seconds() - before > 0.4);  // not at once; the server counts whole milliseconds
  close(silent);
  close(slow);
  stop_server();
}

TEST(clients_without_tls_are_disconnected) {
  char bytes[100];
  start_server(use_tls);
  const int fd = dial();
  send_text(fd, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  while (receive(fd, bytes, sizeof bytes, 0) > 0) CHECK(bytes[0] != 'H');  // a TLS alert may come
  close(fd);
  connect_tls(MBEDTLS_SSL_VERSION_TLS1_2, 1 << 20);  // and others are served
  write_tls("GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  read_tls(bytes, sizeof bytes, "200 OK\r\n", SIZE_MAX);
  disconnect_tls();
  stop_server();
  CHECK_INT(counts.requests, 1);
}

static mlx_status_t create(const char *certificate, const char *key) {
  mlx_http_server_t *unused;
  mlx_http_server_options_t options;
  mlx_http_server_options_initialize(&options);
  options.port = 0;
  options.certificate = certificate;
  options.private_key = key;
  return mlx_http_server_create(&options, &unused);
}

// A key of another pair: P-256.
static const char other_key[] =
    "-----BEGIN PRIVATE KEY-----\n"
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg+x7s2C4r6ALnY7cS\n"
    "4GH4OjvfV36Wg8XQP6ZQ8tMUd8yhRANCAASCpWwOOQWnpvuiBxXrn933M7p+fGFo\n"
    "cPe2iR8bu+BfSOwYs2tezdDJVziLGH2atgcbPmxJ/f2KWTY9DWsrunu8\n"
    "-----END PRIVATE KEY-----\n";

TEST(errors_name_the_file) {
  char folder[] = "/tmp/mlxcel-tls-XXXXXX", path[64];
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/x.pem", folder);
  CHECK_ERROR(create(CERT, NULL), MLX_USAGE, "both");
  CHECK_ERROR(create("/nonexistent.pem", KEY), MLX_NOT_FOUND, "/nonexistent.pem");
  CHECK_ERROR(create(CERT, "/nonexistent.pem"), MLX_NOT_FOUND, "/nonexistent.pem");
  CHECK_OK(mlx_write_file(path, "hello", 5));
  CHECK_ERROR(create(path, KEY), MLX_INVALID_INPUT, "cannot read the certificate");
  CHECK_ERROR(create(CERT, path), MLX_INVALID_INPUT, "cannot read the private key");
  CHECK_ERROR(create(KEY, KEY), MLX_INVALID_INPUT, "cannot read the certificate");
  CHECK_OK(mlx_write_file(path, other_key, strlen(other_key)));
  CHECK_ERROR(create(CERT, path), MLX_INVALID_INPUT, "does not belong to the certificate");
  CHECK_OK(mlx_remove_tree(folder));
}

TEST_MAIN(CASE(requests_are_answered_over_both_versions), CASE(client_that_leaves_is_noticed),
          CASE(handshakes_have_a_time_limit), CASE(clients_without_tls_are_disconnected),
          CASE(errors_name_the_file))
