// TLS by Mbed TLS. Its input and output functions work on the buffers of the present call.
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "mbedtls/ctr_drbg.h"
#include "mbedtls/entropy.h"
#include "mbedtls/error.h"
#include "mbedtls/pk.h"
#include "mbedtls/ssl.h"
#include "mbedtls/x509_crt.h"
#include "psa/crypto.h"
#include "server/http/tls.h"

#define MAX_PEM_BYTES (1 << 20)
#define READ_PIECE 16384  // the longest record

struct mlx_tls_context {
  mbedtls_entropy_context entropy;
  mbedtls_ctr_drbg_context random;
  mbedtls_x509_crt chain;
  mbedtls_pk_context key;
  mbedtls_ssl_config config;
};

struct mlx_tls {
  mbedtls_ssl_context ssl;
  bool is_ready;
  const char *input;  // received bytes of the present call
  size_t input_length;
  mlx_text_t *output;  // of the present call
};

static const char *protocols[] = {"http/1.1", NULL};

// ----------------------------------------------------------------------------------------------------------
// Certificate and key

static mlx_status_t bad_file(const char *what, const char *path, int error) {
  switch (error) {
    case MBEDTLS_ERR_PK_PASSWORD_REQUIRED:
    case MBEDTLS_ERR_PK_PASSWORD_MISMATCH:
      return mlx_status_hint(
          mlx_error(MLX_INVALID_INPUT, "cannot read the %s %s: it has a password", what, path),
          "remove the password: openssl pkey -in %s -out key.pem", path);
    default:
      return mlx_status_hint(
          mlx_error(MLX_INVALID_INPUT,
                    "cannot read the %s %s: not a %s in PEM format that mlxcel supports (-0x%x)", what, path,
                    what, (unsigned)-error),
          "the file must begin with \"-----BEGIN\"; RSA, P-256, P-384 and P-521 are supported");
  }
}

static mlx_status_t read_chain(mlx_tls_context_t *context, const char *path) {
  char *text;
  size_t length;
  MLX_TRY(mlx_read_file(path, MAX_PEM_BYTES, &text, &length));
  // A positive result counts certificates that were skipped.
  const int error = mbedtls_x509_crt_parse(&context->chain, (const unsigned char *)text, length + 1);
  mlx_free(text);
  if (error) return bad_file("certificate", path, error);
  if (mbedtls_x509_time_is_past(&context->chain.valid_to))
    return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "the certificate %s has expired", path), "renew it");
  return NULL;
}

static mlx_status_t read_key(mlx_tls_context_t *context, const char *path) {
  char *text;
  size_t length;
  MLX_TRY(mlx_read_file(path, MAX_PEM_BYTES, &text, &length));
  const int error = mbedtls_pk_parse_key(&context->key, (const unsigned char *)text, length + 1, NULL, 0,
                                         mbedtls_ctr_drbg_random, &context->random);
  memset(text, 0, length);
  mlx_free(text);
  return error ? bad_file("private key", path, error) : NULL;
}

static mlx_status_t configure(mlx_tls_context_t *context, const char *certificate, const char *private_key) {
  mbedtls_ssl_config *config = &context->config;
  if (psa_crypto_init() != PSA_SUCCESS ||
      mbedtls_ctr_drbg_seed(&context->random, mbedtls_entropy_func, &context->entropy, NULL, 0))
    return mlx_error(MLX_UNAVAILABLE, "cannot get random numbers for TLS from the system");
  MLX_TRY(read_chain(context, certificate));
  MLX_TRY(read_key(context, private_key));
  if (mbedtls_pk_check_pair(&context->chain.pk, &context->key, mbedtls_ctr_drbg_random, &context->random))
    return mlx_status_hint(
        mlx_error(MLX_INVALID_INPUT, "the private key %s does not belong to the certificate %s", private_key,
                  certificate),
        "the first certificate of the file must be the server's own");
  int error = mbedtls_ssl_config_defaults(config, MBEDTLS_SSL_IS_SERVER, MBEDTLS_SSL_TRANSPORT_STREAM,
                                          MBEDTLS_SSL_PRESET_DEFAULT);
  mbedtls_ssl_conf_rng(config, mbedtls_ctr_drbg_random, &context->random);
  mbedtls_ssl_conf_min_tls_version(config, MBEDTLS_SSL_VERSION_TLS1_2);
  if (!error) error = mbedtls_ssl_conf_alpn_protocols(config, protocols);
  if (!error) error = mbedtls_ssl_conf_own_cert(config, &context->chain, &context->key);
  return error ? mlx_error(MLX_INTERNAL, "cannot configure TLS (-0x%x)", (unsigned)-error) : NULL;
}

mlx_status_t mlx_tls_context_create(const char *certificate, const char *private_key,
                                    mlx_tls_context_t **out_context) {
  *out_context = NULL;
  mlx_tls_context_t *context;
  MLX_TRY(mlx_alloc(1, sizeof *context, &context));
  mbedtls_entropy_init(&context->entropy);
  mbedtls_ctr_drbg_init(&context->random);
  mbedtls_x509_crt_init(&context->chain);
  mbedtls_pk_init(&context->key);
  mbedtls_ssl_config_init(&context->config);
  mlx_status_t status = configure(context, certificate, private_key);
  if (status)
    mlx_tls_context_free(context);
  else
    *out_context = context;
  return status;
}

void mlx_tls_context_free(mlx_tls_context_t *context) {
  if (!context) return;
  mbedtls_ssl_config_free(&context->config);
  mbedtls_pk_free(&context->key);
  mbedtls_x509_crt_free(&context->chain);
  mbedtls_ctr_drbg_free(&context->random);
  mbedtls_entropy_free(&context->entropy);
  mlx_free(context);
}

// ----------------------------------------------------------------------------------------------------------
// Connections

static int send_bytes(void *user, const unsigned char *bytes, size_t length) {
  mlx_tls_t *tls = user;
  mlx_text_append(tls->output, (const char *)bytes, length);
  return tls->output->failed ? MBEDTLS_ERR_SSL_INTERNAL_ERROR : (int)length;
}

static int receive_bytes(void *user, unsigned char *out_bytes, size_t length) {
  mlx_tls_t *tls = user;
  if (!tls->input_length) return MBEDTLS_ERR_SSL_WANT_READ;
  if (length > tls->input_length) length = tls->input_length;
  memcpy(out_bytes, tls->input, length);
  tls->input += length;
  tls->input_length -= length;
  return (int)length;
}

mlx_status_t mlx_tls_create(mlx_tls_context_t *context, mlx_tls_t **out_tls) {
  mlx_tls_t *tls;
  MLX_TRY(mlx_alloc(1, sizeof *tls, &tls));
  mbedtls_ssl_init(&tls->ssl);
  const int error = mbedtls_ssl_setup(&tls->ssl, &context->config);
  if (error) {
    mlx_tls_free(tls);
    return mlx_error(MLX_OUT_OF_MEMORY, "cannot begin TLS (-0x%x)", (unsigned)-error);
  }
  mbedtls_ssl_set_bio(&tls->ssl, tls, send_bytes, receive_bytes, NULL);
  *out_tls = tls;
  return NULL;
}

void mlx_tls_free(mlx_tls_t *tls) {
  if (!tls) return;
  mbedtls_ssl_free(&tls->ssl);
  mlx_free(tls);
}

bool mlx_tls_is_ready(const mlx_tls_t *tls) { return tls->is_ready; }

static mlx_tls_result_t result_of(int error) {
  switch (error) {
    case MBEDTLS_ERR_SSL_WANT_READ: return MLX_TLS_OPEN;
    case 0:
    case MBEDTLS_ERR_SSL_CONN_EOF:
    case MBEDTLS_ERR_SSL_PEER_CLOSE_NOTIFY: return MLX_TLS_CLOSED;
    default: return MLX_TLS_FAILED;
  }
}

mlx_tls_result_t mlx_tls_receive(mlx_tls_t *tls, const char *bytes, size_t length, mlx_text_t *inout_plain,
                                 mlx_text_t *inout_cipher) {
  unsigned char piece[READ_PIECE];
  tls->input = bytes;
  tls->input_length = length;
  tls->output = inout_cipher;
  while (!tls->is_ready) {
    const int error = mbedtls_ssl_handshake(&tls->ssl);
    if (error == MBEDTLS_ERR_SSL_RECEIVED_NEW_SESSION_TICKET) continue;
    if (error) return result_of(error);
    tls->is_ready = true;
  }
  for (;;) {
    const int got = mbedtls_ssl_read(&tls->ssl, piece, sizeof piece);
    if (got <= 0) return result_of(got);
    mlx_text_append(inout_plain, (const char *)piece, (size_t)got);
    if (inout_plain->failed) return MLX_TLS_FAILED;
  }
}

bool mlx_tls_send(mlx_tls_t *tls, const char *bytes, size_t length, mlx_text_t *inout_cipher) {
  tls->output = inout_cipher;
  while (length) {
    const int sent = mbedtls_ssl_write(&tls->ssl, (const unsigned char *)bytes, length);
    if (sent <= 0) return false;
    bytes += sent;
    length -= (size_t)sent;
  }
  return true;
}

void mlx_tls_close(mlx_tls_t *tls, mlx_text_t *inout_cipher) {
  tls->output = inout_cipher;
  mbedtls_ssl_close_notify(&tls->ssl);
}
