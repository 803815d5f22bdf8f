// Reads and writes minisign files, and signs and verifies with libsodium. See minisign.h.
#include "artifact/minisign.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sodium/crypto_generichash_blake2b.h>
#include <sodium/crypto_pwhash_scryptsalsa208sha256.h>
#include <sodium/crypto_sign_ed25519.h>
#include <sodium/randombytes.h>
#include <sodium/utils.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"

#define BASE64 sodium_base64_VARIANT_ORIGINAL
#define UNTRUSTED "untrusted comment: "
#define TRUSTED "trusted comment: "
#define MAX_BINARY 158         // bytes of the longest base64 line, decoded: a secret key
#define SECRET_TEXT 512        // bytes; enough for the text of a secret key file
#define MAX_LEGACY (1u << 30)  // bytes; size limit of a file with a legacy signature

// ----------------------------------------------------------------------------------------------------------
// Lines of text

typedef struct lines {
  const char *name;          // of the file
  const char *cursor, *end;  // unread rest of the text
  int number;                // of the current line, from 1
} lines_t;

typedef struct span {
  const char *text;
  size_t length;
} span_t;

static lines_t begin_lines(const char *name, const char *text, size_t length) {
  return (lines_t){.name = name, .cursor = text, .end = text + length};
}

static mlx_status_t line_error(const lines_t *lines, const char *what) {
  return mlx_error(MLX_INVALID_INPUT, "%s:%d: %s", lines->name, lines->number, what);
}

// |what| names the expected line in the error at the end of the text.
static mlx_status_t next_line(lines_t *lines, const char *what, span_t *out_line) {
  ++lines->number;
  if (lines->cursor == lines->end)
    return mlx_error(MLX_INVALID_INPUT, "%s: line %d is missing: expected %s", lines->name, lines->number,
                     what);
  const char *newline = memchr(lines->cursor, '\n', (size_t)(lines->end - lines->cursor));
  const char *end = newline ? newline : lines->end;
  *out_line = (span_t){lines->cursor, (size_t)(end - lines->cursor)};
  if (out_line->length && end[-1] == '\r') --out_line->length;
  lines->cursor = newline ? newline + 1 : lines->end;
  return NULL;
}

static mlx_status_t end_lines(const lines_t *lines) {
  for (const char *c = lines->cursor; c < lines->end; ++c) {
    if (*c != '\n' && *c != '\r')
      return mlx_error(MLX_INVALID_INPUT, "%s: unexpected text after line %d", lines->name, lines->number);
  }
  return NULL;
}

// Comments are printed to a terminal, so control characters are not allowed.
static bool is_plain(const char *text, size_t length) {
  for (size_t i = 0; i < length;) {
    const int size = mlx_utf8_length(text + i, length - i);
    const unsigned char c = (unsigned char)text[i];
    if (size <= 0 || (c < 0x20 && c != '\t') || c == 0x7f || (c == 0xc2 && (unsigned char)text[i + 1] < 0xa0))
      return false;
    i += (size_t)size;
  }
  return true;
}

static mlx_status_t read_comment(lines_t *lines, const char *prefix, size_t max, span_t *out_comment) {
  span_t line;
  const size_t skip = strlen(prefix);
  MLX_TRY(next_line(lines, "a comment", &line));
  if (line.length < skip || memcmp(line.text, prefix, skip)) {
    return mlx_status_hint(
        mlx_error(MLX_INVALID_INPUT, "%s:%d: does not begin with '%s'", lines->name, lines->number, prefix),
        "use an unmodified file written by minisign or mlxcel");
  }
  *out_comment = (span_t){line.text + skip, line.length - skip};
  if (out_comment->length > max) return line_error(lines, "the comment is too long");
  return is_plain(out_comment->text, out_comment->length)
             ? NULL
             : line_error(lines, "the comment is not plain UTF-8 text");
}

static mlx_status_t read_untrusted(lines_t *lines) {
  span_t comment;
  return read_comment(lines, UNTRUSTED, MLX_MAX_COMMENT, &comment);
}

// The kinds of base64 lines, identified by their decoded size. |hint| names the file with this kind of line.
typedef struct kind {
  size_t size;
  const char *what, *hint;
} kind_t;
static const kind_t public_kind = {42, "a public key", "use the public key file, NAME.pub"},
                    secret_kind = {158, "a secret key", "use the secret key file, NAME.key"},
                    signature_kind = {74, "a signature", "use the signature file, FILE.minisig"},
                    comment_kind = {64, "the signature of the trusted comment",
                                    "get an unmodified copy of the signature"};

static mlx_status_t wrong_size(const lines_t *lines, const kind_t *kind, size_t length) {
  static const kind_t *const kinds[] = {&public_kind, &secret_kind, &signature_kind};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
    if (length != kinds[i]->size) continue;
    return mlx_error(MLX_INVALID_INPUT, "%s:%d: found %s, expected %s", lines->name, lines->number,
                     kinds[i]->what, kind->what);
  }
  return mlx_status_hint(mlx_error(MLX_INVALID_INPUT, "%s:%d: %s has %zu bytes, found %zu", lines->name,
                                   lines->number, kind->what, kind->size, length),
                         "use an unmodified file written by minisign or mlxcel");
}

// Decodes a base64 line, which must be of this |kind|.
static mlx_status_t read_base64(lines_t *lines, const kind_t *kind, uint8_t *out) {
  span_t line;
  uint8_t bytes[MAX_BINARY + 3];
  size_t length = 0;
  const char *end = NULL;
  MLX_TRY(next_line(lines, kind->what, &line));
  const int failed =
      sodium_base642bin(bytes, sizeof bytes, line.text, line.length, NULL, &length, &end, BASE64);
  mlx_status_t status = NULL;
  if (line.length > sodium_base64_ENCODED_LEN(MAX_BINARY, BASE64)) {
    status = mlx_error(MLX_INVALID_INPUT, "%s:%d: too long for %s", lines->name, lines->number, kind->what);
  } else if (failed || end != line.text + line.length) {
    status = mlx_error(MLX_INVALID_INPUT, "%s:%d: not valid base64; expected %s", lines->name, lines->number,
                       kind->what);
  } else if (length != kind->size) {
    status = wrong_size(lines, kind, length);
  } else {
    memcpy(out, bytes, length);
  }
  sodium_memzero(bytes, sizeof bytes);
  return mlx_status_hint(status, "%s", kind->hint);
}

static void put_base64(mlx_text_t *text, const uint8_t *bytes, size_t length) {
  char encoded[sodium_base64_ENCODED_LEN(MAX_BINARY, BASE64)];
  mlx_text_printf(text, "%s\n", sodium_bin2base64(encoded, sizeof encoded, bytes, length, BASE64));
}

static mlx_status_t check_comment(const char *comment, size_t max) {
  const size_t length = strlen(comment);
  if (length > max)
    return mlx_error(MLX_USAGE, "a comment of %zu bytes is too long: minisign's limit is %zu", length, max);
  return is_plain(comment, length) ? NULL : mlx_error(MLX_USAGE, "a comment must be one line of UTF-8 text");
}

static mlx_status_t take_text(mlx_text_t *text, char **out_text, size_t *out_length) {
  mlx_status_t status = mlx_text_take(text, out_text, out_length);
  mlx_text_clear(text);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Public keys

mlx_key_id_text_t mlx_key_id_text(const mlx_key_id_t *id) {
  mlx_key_id_text_t out;
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | id->bytes[i];
  snprintf(out.text, sizeof out.text, "%" PRIX64, value);
  return out;
}

bool mlx_public_key_equal(const mlx_public_key_t *a, const mlx_public_key_t *b) {
  return !memcmp(a->id.bytes, b->id.bytes, sizeof a->id.bytes) && !memcmp(a->key, b->key, sizeof a->key);
}

mlx_status_t mlx_public_key_read(const char *name, const char *text, size_t length,
                                 mlx_public_key_t *out_key) {
  uint8_t bytes[42];
  lines_t lines = begin_lines(name, text, length);
  const bool bare = length >= 2 && !memcmp(text, "RW", 2);  // "Ed" in base64
  if (!bare) MLX_TRY(read_untrusted(&lines));
  MLX_TRY(read_base64(&lines, &public_kind, bytes));
  if (memcmp(bytes, "Ed", 2)) return line_error(&lines, "not an Ed25519 public key");
  memcpy(out_key->id.bytes, bytes + 2, 8);
  memcpy(out_key->key, bytes + 10, 32);
  return end_lines(&lines);
}

mlx_status_t mlx_public_key_write(const mlx_public_key_t *key, char **out_text, size_t *out_length) {
  mlx_text_t text = {0};
  uint8_t bytes[42] = {'E', 'd'};
  memcpy(bytes + 2, key->id.bytes, 8);
  memcpy(bytes + 10, key->key, 32);
  mlx_text_printf(&text, UNTRUSTED "minisign public key %s\n", mlx_key_id_text(&key->id).text);
  put_base64(&text, bytes, sizeof bytes);
  return take_text(&text, out_text, out_length);
}

// ----------------------------------------------------------------------------------------------------------
// Secret keys

const mlx_key_cost_t mlx_key_cost_default = {crypto_pwhash_scryptsalsa208sha256_OPSLIMIT_SENSITIVE,
                                             crypto_pwhash_scryptsalsa208sha256_MEMLIMIT_SENSITIVE};

// Byte offsets in a secret key file. Everything from KEY_ID on is encrypted.
enum {
  SIGNING = 0,     // "Ed"
  DERIVATION = 2,  // "Sc" for scrypt, or zeros if not encrypted
  CHECKSUM = 4,    // "B2" for BLAKE2b
  SALT = 6,
  OPERATIONS = 38,  // scrypt cost, u64
  MEMORY = 46,      // scrypt cost, u64
  KEY_ID = 54,
  KEY = 62,
  SUM = 126,          // BLAKE2b of SIGNING, KEY_ID and KEY
  SECRET_BYTES = 158  // total
};

void mlx_secret_key_clear(mlx_secret_key_t *key) { sodium_memzero(key, sizeof *key); }

void mlx_secret_text_free(char *text, size_t length) {
  if (text) sodium_memzero(text, length);
  mlx_free(text);
}

void mlx_secret_key_generate(mlx_secret_key_t *out_key) {
  uint8_t public_key[32];
  randombytes_buf(out_key->id.bytes, sizeof out_key->id.bytes);
  crypto_sign_ed25519_keypair(public_key, out_key->key);
}

mlx_public_key_t mlx_secret_key_public(const mlx_secret_key_t *key) {
  mlx_public_key_t out = {.id = key->id};
  memcpy(out.key, key->key + 32, sizeof out.key);
  return out;
}

static uint64_t load64(const uint8_t *bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | bytes[i];
  return value;
}

static void store64(uint8_t *bytes, uint64_t value) {
  for (int i = 0; i < 8; ++i) bytes[i] = (uint8_t)(value >> (8 * i));
}

static void sum_secret(const uint8_t bytes[SECRET_BYTES], uint8_t out[32]) {
  crypto_generichash_blake2b_state state;
  crypto_generichash_blake2b_init(&state, NULL, 0, 32);
  crypto_generichash_blake2b_update(&state, bytes + SIGNING, 2);
  crypto_generichash_blake2b_update(&state, bytes + KEY_ID, SUM - KEY_ID);
  crypto_generichash_blake2b_final(&state, out, 32);
  sodium_memzero(&state, sizeof state);
}

// Encrypts or decrypts in place: both are the same XOR with a key stream derived from the password.
static mlx_status_t apply_password(const char *name, uint8_t bytes[SECRET_BYTES], const char *password) {
  uint8_t stream[SECRET_BYTES - KEY_ID];
  const uint64_t operations = load64(bytes + OPERATIONS), memory = load64(bytes + MEMORY);
  if (operations > mlx_key_cost_default.operations || memory > mlx_key_cost_default.memory) {
    return mlx_error(MLX_INVALID_INPUT,
                     "%s: its scrypt cost, %" PRIu64 " operations and %" PRIu64
                     " bytes, exceeds minisign's %" PRIu64 " and %" PRIu64,
                     name, operations, memory, mlx_key_cost_default.operations, mlx_key_cost_default.memory);
  }
  mlx_status_t status = NULL;
  if (crypto_pwhash_scryptsalsa208sha256(stream, sizeof stream, password, strlen(password), bytes + SALT,
                                         operations, (size_t)memory)) {
    status = mlx_error(MLX_OUT_OF_MEMORY, "%s: not enough memory to decrypt it: scrypt needs %" PRIu64 " MiB",
                       name, memory >> 20);
  }
  for (size_t i = 0; i < sizeof stream; ++i) bytes[KEY_ID + i] ^= stream[i];
  sodium_memzero(stream, sizeof stream);
  return status;
}

static mlx_status_t read_secret(const char *name, const char *text, size_t length,
                                uint8_t bytes[SECRET_BYTES], bool *out_encrypted) {
  lines_t lines = begin_lines(name, text, length);
  MLX_TRY(read_untrusted(&lines));
  MLX_TRY(read_base64(&lines, &secret_kind, bytes));
  *out_encrypted = !memcmp(bytes + DERIVATION, "Sc", 2);
  if (memcmp(bytes + SIGNING, "Ed", 2)) return line_error(&lines, "not an Ed25519 secret key");
  if (!*out_encrypted && memcmp(bytes + DERIVATION, "\0\0", 2))
    return line_error(&lines, "unsupported key encryption: expected scrypt");
  if (memcmp(bytes + CHECKSUM, "B2", 2)) return line_error(&lines, "unsupported checksum: expected BLAKE2b");
  return end_lines(&lines);
}

mlx_status_t mlx_secret_key_needs_password(const char *name, const char *text, size_t length,
                                           bool *out_needs) {
  uint8_t bytes[SECRET_BYTES];
  *out_needs = false;
  mlx_status_t status = read_secret(name, text, length, bytes, out_needs);
  sodium_memzero(bytes, sizeof bytes);
  return status;
}

static mlx_status_t open_secret(const char *name, uint8_t bytes[SECRET_BYTES], const char *password) {
  uint8_t sum[32];
  if (!password)
    return mlx_status_hint(mlx_error(MLX_USAGE, "%s is encrypted, and no password was given", name),
                           "enter its password, or set MLXCEL_PASSWORD");
  MLX_TRY(apply_password(name, bytes, password));
  sum_secret(bytes, sum);
  const bool matches = !sodium_memcmp(sum, bytes + SUM, sizeof sum);
  sodium_memzero(sum, sizeof sum);
  return matches ? NULL : mlx_error(MLX_INVALID_INPUT, "%s: wrong password, or the file is damaged", name);
}

// The second half of an Ed25519 key is derived from the first. Signing with a mismatched second half would
// leak the first half.
static mlx_status_t check_halves(const char *name, const uint8_t key[64]) {
  uint8_t public_key[32], whole[64];
  crypto_sign_ed25519_seed_keypair(public_key, whole, key);
  const bool matches = !sodium_memcmp(whole, key, sizeof whole);
  sodium_memzero(whole, sizeof whole);
  return matches ? NULL
                 : mlx_error(MLX_INVALID_INPUT,
                             "%s: the secret and public halves of the key do not match; the file is damaged",
                             name);
}

mlx_status_t mlx_secret_key_read(const char *name, const char *text, size_t length, const char *password,
                                 mlx_secret_key_t *out_key) {
  uint8_t bytes[SECRET_BYTES];
  bool encrypted;
  *out_key = (mlx_secret_key_t){0};
  mlx_status_t status = read_secret(name, text, length, bytes, &encrypted);
  if (!status && encrypted) status = open_secret(name, bytes, password);
  if (!status) status = check_halves(name, bytes + KEY);  // an unencrypted key has no checksum
  if (!status) {
    memcpy(out_key->id.bytes, bytes + KEY_ID, 8);
    memcpy(out_key->key, bytes + KEY, 64);
  }
  sodium_memzero(bytes, sizeof bytes);
  return status;
}

// Uses one allocation of full size: a growing mlx_text_t would leave copies of the secret in freed memory.
static mlx_status_t secret_text(const uint8_t bytes[SECRET_BYTES], bool encrypted, char **out_text,
                                size_t *out_length) {
  char *text;
  MLX_TRY(mlx_alloc(SECRET_TEXT, 1, &text));
  const int head =
      snprintf(text, SECRET_TEXT, UNTRUSTED "minisign %ssecret key\n", encrypted ? "encrypted " : "");
  sodium_bin2base64(text + head, SECRET_TEXT - (size_t)head, bytes, SECRET_BYTES, BASE64);
  *out_length = strlen(text) + 1;
  text[*out_length - 1] = '\n';
  *out_text = text;
  return NULL;
}

mlx_status_t mlx_secret_key_write(const mlx_secret_key_t *key, const char *password,
                                  const mlx_key_cost_t *cost, char **out_text, size_t *out_length) {
  uint8_t bytes[SECRET_BYTES] = {'E', 'd', 0, 0, 'B', '2'};
  mlx_status_t status = NULL;
  *out_text = NULL;
  *out_length = 0;
  memcpy(bytes + KEY_ID, key->id.bytes, 8);
  memcpy(bytes + KEY, key->key, 64);
  if (password) {
    memcpy(bytes + DERIVATION, "Sc", 2);
    randombytes_buf(bytes + SALT, OPERATIONS - SALT);
    store64(bytes + OPERATIONS, cost->operations);
    store64(bytes + MEMORY, cost->memory);
    sum_secret(bytes, bytes + SUM);
    status = apply_password("the new key", bytes, password);
  }
  if (!status) status = secret_text(bytes, password != NULL, out_text, out_length);
  sodium_memzero(bytes, sizeof bytes);
  return status;
}

// ----------------------------------------------------------------------------------------------------------
// Hashing the data

static mlx_status_t hash_piece(void *user, const char *bytes, size_t length) {
  crypto_generichash_blake2b_update(user, (const uint8_t *)bytes, length);
  return NULL;
}

static mlx_status_t hash_signed(const mlx_signed_data_t *data, uint8_t out[64]) {
  crypto_generichash_blake2b_state state;
  crypto_generichash_blake2b_init(&state, NULL, 0, 64);
  if (data->bytes) {
    crypto_generichash_blake2b_update(&state, data->bytes, data->length);
  } else {
    int fd = open(data->name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return mlx_io_error("open", data->name);
    mlx_status_t status = mlx_read_pieces(fd, data->name, hash_piece, &state);
    close(fd);
    if (status) return status;
  }
  crypto_generichash_blake2b_final(&state, out, 64);
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Signatures

mlx_status_t mlx_signature_read(const char *name, const char *text, size_t length,
                                mlx_signature_t *out_signature) {
  uint8_t bytes[74];
  span_t comment;
  lines_t lines = begin_lines(name, text, length);
  *out_signature = (mlx_signature_t){.name = name};
  MLX_TRY(read_untrusted(&lines));
  MLX_TRY(read_base64(&lines, &signature_kind, bytes));
  out_signature->legacy = !memcmp(bytes, "Ed", 2);
  if (!out_signature->legacy && memcmp(bytes, "ED", 2)) return line_error(&lines, "not an Ed25519 signature");
  memcpy(out_signature->id.bytes, bytes + 2, 8);
  memcpy(out_signature->signature, bytes + 10, 64);
  MLX_TRY(read_comment(&lines, TRUSTED, MLX_MAX_TRUSTED_COMMENT, &comment));
  out_signature->comment = comment.text;
  out_signature->comment_length = comment.length;
  MLX_TRY(read_base64(&lines, &comment_kind, out_signature->comment_signature));
  return end_lines(&lines);
}

// Returns the message of the second signature: the first signature, then the trusted comment. Release with
// mlx_free.
static mlx_status_t join_comment(const uint8_t signature[64], const char *comment, size_t length,
                                 uint8_t **out_bytes) {
  MLX_TRY(mlx_alloc(64 + length, 1, out_bytes));
  memcpy(*out_bytes, signature, 64);
  if (length) memcpy(*out_bytes + 64, comment, length);
  return NULL;
}

static bool matches(const uint8_t signature[64], const void *bytes, size_t length,
                    const mlx_public_key_t *key) {
  return !crypto_sign_ed25519_verify_detached(signature, bytes, length, key->key);
}

static mlx_status_t verify_legacy(const mlx_signature_t *signature, const mlx_public_key_t *key,
                                  const mlx_signed_data_t *data, bool *out_matches) {
  if (data->bytes) {
    *out_matches = matches(signature->signature, data->bytes, data->length, key);
    return NULL;
  }
  char *bytes;
  size_t length;
  MLX_TRY(mlx_status_annotate(mlx_read_file(data->name, MAX_LEGACY, &bytes, &length),
                              "%s is a legacy signature", signature->name));
  *out_matches = matches(signature->signature, bytes, length, key);
  mlx_free(bytes);
  return NULL;
}

static mlx_status_t verify_comment(const mlx_signature_t *signature, const mlx_public_key_t *key) {
  uint8_t *bytes;
  MLX_TRY(join_comment(signature->signature, signature->comment, signature->comment_length, &bytes));
  const bool good = matches(signature->comment_signature, bytes, 64 + signature->comment_length, key);
  mlx_free(bytes);
  return good ? NULL
              : mlx_error(MLX_INVALID_INPUT, "%s: the trusted comment does not match its signature",
                          signature->name);
}

static bool has_domain(const char *comment, size_t length, const char *domain) {
  const size_t end = strlen(domain);
  return length >= end && !memcmp(comment, domain, end) &&
         (length == end || comment[end] == '\t' || comment[end] == ' ');
}

// A plain file may have any domain: minisign does not check it either.
static mlx_status_t verify_domain(const mlx_signature_t *signature, const mlx_signed_data_t *data) {
  if (!data->domain || has_domain(signature->comment, signature->comment_length, data->domain)) return NULL;
  const bool is_bundle = !strcmp(data->domain, MLX_DOMAIN_BUNDLE);
  return mlx_status_hint(
      mlx_error(MLX_INVALID_INPUT,
                "%s: not the signature of a %s: its trusted comment does not begin with '%s'",
                signature->name, is_bundle ? "bundle" : "cache entry", data->domain),
      is_bundle ? "the publisher must sign the bundle itself: mlxcel sign BUNDLE"
                : "the publisher must write the entry with mlxcel cache push");
}

mlx_status_t mlx_signature_verify(const mlx_signature_t *signature, const mlx_public_key_t *key,
                                  const mlx_signed_data_t *data) {
  uint8_t hash[64];
  bool good = false;
  if (memcmp(signature->id.bytes, key->id.bytes, sizeof key->id.bytes)) {
    return mlx_error(MLX_INVALID_INPUT, "%s: signed with key %s, but verified with key %s", signature->name,
                     mlx_key_id_text(&signature->id).text, mlx_key_id_text(&key->id).text);
  }
  if (signature->legacy) {
    MLX_TRY(verify_legacy(signature, key, data, &good));
  } else {
    MLX_TRY(hash_signed(data, hash));
    good = matches(signature->signature, hash, sizeof hash, key);
  }
  if (good) {
    MLX_TRY(verify_comment(signature, key));
    return verify_domain(signature, data);
  }
  return mlx_status_hint(
      mlx_error(MLX_INVALID_INPUT, "'%s' does not match its signature %s", data->name, signature->name),
      "one of the two files was changed or damaged: download both again");
}

// |trusted_comment| is complete: with its domain.
static mlx_status_t make_signature(const mlx_secret_key_t *key, const mlx_signed_data_t *data,
                                   const char *comment, const char *trusted_comment, char **out_text,
                                   size_t *out_length) {
  uint8_t hash[64], bytes[74] = {'E', 'D'}, *joined, comment_signature[64];
  mlx_text_t text = {0};
  MLX_TRY(check_comment(comment, MLX_MAX_COMMENT));
  MLX_TRY(check_comment(trusted_comment, MLX_MAX_TRUSTED_COMMENT));
  MLX_TRY(hash_signed(data, hash));
  memcpy(bytes + 2, key->id.bytes, 8);
  crypto_sign_ed25519_detached(bytes + 10, NULL, hash, sizeof hash, key->key);
  MLX_TRY(join_comment(bytes + 10, trusted_comment, strlen(trusted_comment), &joined));
  crypto_sign_ed25519_detached(comment_signature, NULL, joined, 64 + strlen(trusted_comment), key->key);
  mlx_free(joined);
  mlx_text_printf(&text, UNTRUSTED "%s\n", comment);
  put_base64(&text, bytes, sizeof bytes);
  mlx_text_printf(&text, TRUSTED "%s\n", trusted_comment);
  put_base64(&text, comment_signature, sizeof comment_signature);
  return take_text(&text, out_text, out_length);
}

mlx_status_t mlx_signature_make(const mlx_secret_key_t *key, const mlx_signed_data_t *data,
                                const char *comment, const char *trusted_comment, char **out_text,
                                size_t *out_length) {
  static const char *const domains[] = {MLX_DOMAIN_BUNDLE, MLX_DOMAIN_CACHE};
  char *whole;
  *out_text = NULL;
  for (size_t i = 0; i < 2 && !data->domain; ++i) {
    if (has_domain(trusted_comment, strlen(trusted_comment), domains[i]))
      return mlx_error(MLX_USAGE, "the trusted comment of a plain file must not begin with '%s'", domains[i]);
  }
  MLX_TRY(mlx_format(&whole, "%s%s%s", data->domain ? data->domain : "", data->domain ? "\t" : "",
                     trusted_comment));
  mlx_status_t status = make_signature(key, data, comment ? comment : "signature from minisign secret key",
                                       whole, out_text, out_length);
  mlx_free(whole);
  return status;
}
