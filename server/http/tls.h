// TLS: the server side of TLS 1.2 and 1.3 over buffers, by Mbed TLS. It does no input or output: the caller
// passes received bytes in and sends the bytes that come out.
//
// Threads: a context is constant once created, and any thread may use it. A tls belongs to one thread.
#ifndef MLXCEL_SERVER_HTTP_TLS_H_
#define MLXCEL_SERVER_HTTP_TLS_H_

#include "base/text.h"

typedef struct mlx_tls_context mlx_tls_context_t;  // certificate and key
typedef struct mlx_tls mlx_tls_t;                  // one connection

// Reads PEM files: a chain of certificates, the server's first, and its private key without a password. An
// error names the file.
mlx_status_t mlx_tls_context_create(const char *certificate, const char *private_key,
                                    mlx_tls_context_t **out_context) MLX_MUST_USE;
void mlx_tls_context_free(mlx_tls_context_t *context);  // after its connections; NULL is fine

mlx_status_t mlx_tls_create(mlx_tls_context_t *context, mlx_tls_t **out_tls) MLX_MUST_USE;
void mlx_tls_free(mlx_tls_t *tls);  // NULL is fine

typedef enum mlx_tls_result {
  MLX_TLS_OPEN,
  MLX_TLS_CLOSED,  // the client sent its end
  MLX_TLS_FAILED   // a violation of the protocol, or out of memory; |inout_cipher| may have an alert to send
} mlx_tls_result_t;

// Processes received bytes. Appends decrypted bytes to |inout_plain| and bytes for the client to
// |inout_cipher|.
mlx_tls_result_t mlx_tls_receive(mlx_tls_t *tls, const char *bytes, size_t length, mlx_text_t *inout_plain,
                                 mlx_text_t *inout_cipher);
bool mlx_tls_is_ready(const mlx_tls_t *tls);  // the handshake is complete
// Encrypts bytes. Needs a complete handshake. Returns false on failure.
bool mlx_tls_send(mlx_tls_t *tls, const char *bytes, size_t length, mlx_text_t *inout_cipher);
// Appends the end of the connection.
void mlx_tls_close(mlx_tls_t *tls, mlx_text_t *inout_cipher);

#endif  // MLXCEL_SERVER_HTTP_TLS_H_
