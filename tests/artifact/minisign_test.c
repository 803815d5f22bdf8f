// Keys and signatures in minisign's format. minisign 0.11 made the files in tests/fixtures/minisign: test
// keys (the encrypted one has the password "tiger"), and signatures of message.txt in the current and the
// legacy form (-l).
#include "artifact/minisign.h"

#include <sys/stat.h>

#include "artifact/sign.h"
#include "base/file.h"
#include "base/memory.h"
#include "tests/support/breaking.h"
#include "tests/support/check.h"
#include "tests/support/faults.h"

#define FIXTURES MLXCEL_SOURCE_DIR "/tests/fixtures/minisign/"

static const mlx_key_cost_t cheap = {32768, 16 << 20};

typedef struct text {
  char *data;
  size_t length;
} text_t;

static text_t read_fixture(const char *name) {
  char path[512];
  text_t text;
  snprintf(path, sizeof path, FIXTURES "%s", name);
  CHECK_OK(mlx_read_file(path, 1 << 20, &text.data, &text.length));
  return text;
}

static mlx_public_key_t read_public(const char *name) {
  text_t text = read_fixture(name);
  mlx_public_key_t key;
  CHECK_OK(mlx_public_key_read(name, text.data, text.length, &key));
  mlx_free(text.data);
  return key;
}

static mlx_secret_key_t read_secret(const char *name, const char *password) {
  text_t text = read_fixture(name);
  mlx_secret_key_t key;
  CHECK_OK(mlx_secret_key_read(name, text.data, text.length, password, &key));
  mlx_free(text.data);
  return key;
}

static mlx_status_t verify(const char *text, size_t length, const mlx_public_key_t *key,
                           const mlx_signed_data_t *data) {
  mlx_signature_t signature;
  MLX_TRY(mlx_signature_read("s.minisig", text, length, &signature));
  return mlx_signature_verify(&signature, key, data);
}

// ----------------------------------------------------------------------------------------------------------
// Files made by minisign

TEST(public_key_files_match_minisign) {
  static const char *const files[][2] = {{"plain.pub", "9CA35E82975492BB"},
                                         {"encrypted.pub", "1DCFC10403521E46"}};
  for (size_t i = 0; i < 2; ++i) {
    text_t text = read_fixture(files[i][0]);
    mlx_public_key_t key = read_public(files[i][0]), bare;
    char *written;
    CHECK_TEXT(mlx_key_id_text(&key.id).text, files[i][1]);
    CHECK_OK(mlx_public_key_write(&key, &written, NULL));
    CHECK_TEXT(written, text.data);
    const char *line = strchr(text.data, '\n') + 1;  // the argument of -P
    CHECK_OK(mlx_public_key_read("-P", line, strlen(line) - 1, &bare));
    CHECK(mlx_public_key_equal(&key, &bare));
    mlx_free(written);
    mlx_free(text.data);
  }
}

TEST(minisign_signatures_match_only_their_data) {
  static const struct {
    const char *file, *key, *comment;
    bool legacy;
  } cases[] = {{"message.txt.minisig", "plain.pub", "timestamp:1794754645\tfile:message.txt\thashed", false},
               {"legacy.minisig", "plain.pub", "a legacy signature", true},
               {"encrypted.minisig", "encrypted.pub", "with the encrypted key", false}};
  text_t message = read_fixture("message.txt"), other = read_fixture("plain.pub");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    text_t text = read_fixture(cases[i].file);
    const mlx_public_key_t key = read_public(cases[i].key);
    mlx_public_key_t wrong = read_public(strcmp(cases[i].key, "plain.pub") ? "plain.pub" : "encrypted.pub");
    mlx_signature_t signature;
    CHECK_OK(mlx_signature_read("s.minisig", text.data, text.length, &signature));
    CHECK_INT(signature.legacy, cases[i].legacy);
    CHECK_INT(signature.comment_length, strlen(cases[i].comment));
    CHECK(!memcmp(signature.comment, cases[i].comment, signature.comment_length));
    CHECK_OK(mlx_signature_verify(&signature, &key,
                                  &(mlx_signed_data_t){"message.txt", message.data, message.length, false}));
    CHECK_OK(
        mlx_signature_verify(&signature, &key, &(mlx_signed_data_t){FIXTURES "message.txt", NULL, 0, false}));
    CHECK_ERROR(mlx_signature_verify(&signature, &key,
                                     &(mlx_signed_data_t){"m", message.data, message.length - 1, false}),
                MLX_INVALID_INPUT, "'m' does not match its signature s.minisig");
    CHECK_ERROR(
        mlx_signature_verify(&signature, &key, &(mlx_signed_data_t){"m", other.data, other.length, false}),
        MLX_INVALID_INPUT, "does not match its signature");
    CHECK_ERROR(
        mlx_signature_verify(&signature, &key, &(mlx_signed_data_t){FIXTURES "plain.pub", NULL, 0, false}),
        MLX_INVALID_INPUT, "does not match its signature");
    CHECK_ERROR(mlx_signature_verify(&signature, &key, &(mlx_signed_data_t){"/nowhere/x", NULL, 0, false}),
                MLX_NOT_FOUND, "/nowhere/x");
    CHECK_ERROR(mlx_signature_verify(&signature, &wrong,
                                     &(mlx_signed_data_t){"m", message.data, message.length, false}),
                MLX_INVALID_INPUT, "s.minisig: signed with key ");
    wrong.id = key.id;  // the ID alone proves nothing
    CHECK_ERROR(mlx_signature_verify(&signature, &wrong,
                                     &(mlx_signed_data_t){"m", message.data, message.length, false}),
                MLX_INVALID_INPUT, "does not match its signature");
    mlx_free(text.data);
  }
  mlx_free(message.data);
  mlx_free(other.data);
}

// Ed25519 is deterministic, so equal key, data and comments give an equal signature file.
TEST(signature_files_match_minisign_byte_for_byte) {
  static const char *const cases[][5] = {
      {"plain.key", NULL, "message.txt.minisig", "timestamp:1794754645\tfile:message.txt\thashed",
       "plain.pub"},
      {"encrypted.key", "tiger", "encrypted.minisig", "with the encrypted key", "encrypted.pub"}};
  for (size_t i = 0; i < 2; ++i) {
    text_t expected = read_fixture(cases[i][2]);
    mlx_secret_key_t key = read_secret(cases[i][0], cases[i][1]);
    const mlx_public_key_t public_key = read_public(cases[i][4]), derived = mlx_secret_key_public(&key);
    char *text;
    CHECK(mlx_public_key_equal(&public_key, &derived));
    CHECK_OK(mlx_signature_make(&key, &(mlx_signed_data_t){FIXTURES "message.txt", NULL, 0, false}, NULL,
                                cases[i][3], &text, NULL));
    CHECK_TEXT(text, expected.data);
    mlx_secret_key_clear(&key);
    for (size_t j = 0; j < sizeof key; ++j) CHECK(!((uint8_t *)&key)[j]);
    mlx_free(text);
    mlx_free(expected.data);
  }
}

TEST(encrypted_key_needs_its_password) {
  text_t text = read_fixture("encrypted.key"), plain = read_fixture("plain.key");
  mlx_secret_key_t key;
  bool needs;
  CHECK_OK(mlx_secret_key_needs_password("e.key", text.data, text.length, &needs));
  CHECK(needs);
  CHECK_OK(mlx_secret_key_needs_password("p.key", plain.data, plain.length, &needs));
  CHECK(!needs);
  CHECK_ERROR(mlx_secret_key_read("e.key", text.data, text.length, NULL, &key), MLX_USAGE,
              "e.key is encrypted");
  CHECK_ERROR(mlx_secret_key_read("e.key", text.data, text.length, "tigers", &key), MLX_INVALID_INPUT,
              "e.key: wrong password");
  for (size_t i = 0; i < sizeof key; ++i) CHECK(!((uint8_t *)&key)[i]);
  mlx_free(text.data);
  mlx_free(plain.data);
}

// ----------------------------------------------------------------------------------------------------------
// Files made by mlxcel

TEST(new_keys_are_unique_and_survive_a_write_and_a_read) {
  static const char *const passwords[] = {NULL, "", "tiger", "pässword with blanks"};
  mlx_secret_key_t last = {0}, key, again;
  for (size_t i = 0; i < sizeof passwords / sizeof *passwords; ++i) {
    char *text;
    size_t length;
    mlx_secret_key_generate(&key);
    CHECK(memcmp(key.key, last.key, sizeof key.key) && memcmp(key.id.bytes, last.id.bytes, 8));
    CHECK_OK(mlx_secret_key_write(&key, passwords[i], &cheap, &text, &length));
    CHECK_INT(strlen(text), length);
    CHECK_OK(mlx_secret_key_read("k", text, length, passwords[i], &again));
    CHECK(!memcmp(&key, &again, sizeof key));
    mlx_secret_text_free(text, length);
    last = key;
  }
}

TEST(excessive_scrypt_cost_is_refused) {
  mlx_secret_key_t key, again;
  char *text;
  size_t length;
  mlx_secret_key_generate(&key);
  const mlx_key_cost_t costs[] = {{mlx_key_cost_default.operations + 1, 1 << 20},
                                  {32768, mlx_key_cost_default.memory + 1},
                                  {UINT64_MAX, UINT64_MAX}};
  for (size_t i = 0; i < 3; ++i) {
    CHECK_ERROR(mlx_secret_key_write(&key, "p", &costs[i], &text, &length), MLX_INVALID_INPUT,
                "its scrypt cost");
  }
  // A key file whose stored cost was changed.
  CHECK_OK(mlx_secret_key_write(&key, "p", &cheap, &text, &length));
  char *base64 = strchr(text, '\n') + 1;
  memset(base64 + 4 * (45 / 3), '/',
         8);  // bytes 45 to 50: the highest byte of |operations|, the lower ones of |memory|
  CHECK_ERROR(mlx_secret_key_read("k.key", text, length, "p", &again), MLX_INVALID_INPUT,
              "k.key: its scrypt cost");
  mlx_secret_text_free(text, length);
}

TEST(comments_must_be_one_line_of_plain_text) {
  mlx_secret_key_t key = read_secret("plain.key", NULL);
  const mlx_public_key_t public_key = mlx_secret_key_public(&key);
  const mlx_signed_data_t data = {"m", "hello", 5, false};
  char *text, longest[MLX_MAX_TRUSTED_COMMENT + 2];
  size_t length;
  memset(longest, 'x', sizeof longest);
  longest[sizeof longest - 1] = 0;
  static const char *const bad[] = {"two\nlines",     "a \033[31mcolour", "a\rreturn", "\x7f",
                                    "no UTF-8: \xff", "C1: \xc2\x9b",     "cut: \xc3"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    CHECK_ERROR(mlx_signature_make(&key, &data, NULL, bad[i], &text, &length), MLX_USAGE,
                "one line of UTF-8 text");
    CHECK_ERROR(mlx_signature_make(&key, &data, bad[i], "", &text, &length), MLX_USAGE,
                "one line of UTF-8 text");
  }
  CHECK_ERROR(mlx_signature_make(&key, &data, NULL, longest, &text, &length), MLX_USAGE, "too long");
  longest[MLX_MAX_TRUSTED_COMMENT] = 0;
  CHECK_ERROR(mlx_signature_make(&key, &data, longest, "", &text, &length), MLX_USAGE, "too long");
  const char *const good[] = {"", "tabs\tand ümläuts", longest};
  for (size_t i = 0; i < 3; ++i) {
    CHECK_OK(mlx_signature_make(&key, &data, "", good[i], &text, &length));
    CHECK_OK(verify(text, length, &public_key, &data));
    mlx_free(text);
  }
  CHECK_OK(mlx_signature_make(&key, &(mlx_signed_data_t){"empty", "", 0, false}, NULL, "of nothing", &text,
                              &length));
  CHECK_OK(verify(text, length, &public_key, &(mlx_signed_data_t){"empty", "", 0, false}));
  CHECK_OK(verify(text, length, &public_key, &(mlx_signed_data_t){"/dev/null", NULL, 0, false}));
  mlx_free(text);
}

// ----------------------------------------------------------------------------------------------------------
// Damage

typedef mlx_status_t (*try_fn_t)(const char *text, size_t length);

// Flips every bit of |text|. |try| must fail each time, except inside the untrusted comment.

static void flip_every_bit(const char *file, const char *text, size_t length, try_fn_t try) {
  char *copy;
  CHECK_OK(mlx_copy_text(text, length, &copy));
  const size_t comment = strlen("untrusted comment: "), comment_end = (size_t)(strchr(text, '\n') - text);
  for (size_t i = 0; i < length; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      copy[i] = (char)(text[i] ^ 1 << bit);
      mlx_status_t status = try(copy, length);
      if (i >= comment && i < comment_end) {  // no signature covers it
        mlx_status_free(status);
      } else {
        if (!status) CHECK_FAIL("%s is accepted with bit %d of byte %zu flipped", file, bit, i);
        CHECK(mlx_status_code(status) == MLX_INVALID_INPUT);
        CHECK(mlx_status_message(status)[0]);
        mlx_status_free(status);
      }
    }
    copy[i] = text[i];
  }
  CHECK_OK(try(copy, length));
  mlx_free(copy);
}

// |try| must fail for every proper prefix of |text|.
static void truncate_everywhere(const char *file, const char *text, size_t length, try_fn_t try) {
  for (size_t i = 0; i + 1 < length; ++i) {  // the final newline may be missing
    char *copy;
    CHECK_OK(mlx_alloc(i, 1, &copy));  // exact size, so that the sanitizer detects overreads
    memcpy(copy, text, i);
    mlx_status_t status = try(copy, i);
    mlx_free(copy);
    if (!status) CHECK_FAIL("%s is accepted truncated to %zu bytes", file, i);
    mlx_status_free(status);
  }
  CHECK_OK(try(text, length - 1));
}

static text_t message;
static mlx_public_key_t message_key;

static mlx_status_t try_signature(const char *text, size_t length) {
  return verify(text, length, &message_key,
                &(mlx_signed_data_t){"message.txt", message.data, message.length, false});
}

static mlx_status_t try_public(const char *text, size_t length) {
  mlx_public_key_t key;
  text_t signature = read_fixture("message.txt.minisig");
  mlx_status_t status = mlx_public_key_read("k.pub", text, length, &key);
  if (!status)
    status = verify(signature.data, signature.length, &key,
                    &(mlx_signed_data_t){"message.txt", message.data, message.length, false});
  mlx_free(signature.data);
  return status;
}

static mlx_status_t try_secret(const char *text, size_t length) {
  mlx_secret_key_t key;
  MLX_TRY(mlx_secret_key_read("k.key", text, length, "tiger", &key));
  const bool same = !memcmp(key.key + 32, message_key.key, sizeof message_key.key);
  return same ? NULL : mlx_error(MLX_INVALID_INPUT, "a different key");
}

TEST(damaged_signature_is_refused) {
  message = read_fixture("message.txt");
  message_key = read_public("plain.pub");
  static const char *const files[] = {"message.txt.minisig", "legacy.minisig"};
  for (size_t i = 0; i < 2; ++i) {
    text_t text = read_fixture(files[i]);
    flip_every_bit(files[i], text.data, text.length, try_signature);
    truncate_everywhere(files[i], text.data, text.length, try_signature);
    mlx_free(text.data);
  }
  mlx_free(message.data);
}

TEST(damaged_public_key_is_refused) {
  message = read_fixture("message.txt");
  message_key = read_public("plain.pub");
  text_t text = read_fixture("plain.pub");
  flip_every_bit("plain.pub", text.data, text.length, try_public);
  truncate_everywhere("plain.pub", text.data, text.length, try_public);
  mlx_free(text.data);
  mlx_free(message.data);
}

// A checksum protects an encrypted key. An unencrypted key has none: only the comparison of its two halves
// detects damage.
TEST(damaged_secret_key_is_refused) {
  mlx_secret_key_t key = read_secret("plain.key", NULL);
  message_key = mlx_secret_key_public(&key);
  char *text;
  size_t length;
  CHECK_OK(mlx_secret_key_write(&key, "tiger", &cheap, &text, &length));
  char *base64 = strchr(text, '\n') + 1;
  for (char *c = base64; *c != '\n'; ++c) {
    if (c - base64 >= 38 * 4 / 3 && c - base64 < 54 * 4 / 3)
      continue;  // the scrypt cost: different values may derive the same key
    const char old = *c;
    *c = old == 'x' ? 'y' : 'x';
    mlx_status_t status = try_secret(text, length);
    if (!status) CHECK_FAIL("accepted with byte %zu changed", (size_t)(c - text));
    mlx_status_free(status);
    *c = old;
  }
  truncate_everywhere("a secret key", text, length, try_secret);
  mlx_secret_text_free(text, length);
  text_t plain = read_fixture("plain.key");
  base64 = strchr(plain.data, '\n') + 1;
  for (char *c = base64 + 62 * 4 / 3 + 1; c < base64 + 126 * 4 / 3; ++c) {
    const char old = *c;
    *c = old == 'x' ? 'y' : 'x';
    mlx_status_t status = try_secret(plain.data, plain.length);
    if (!status) CHECK_FAIL("accepted with byte %zu of the key changed", (size_t)(c - plain.data));
    mlx_status_free(status);
    *c = old;
  }
  truncate_everywhere("plain.key", plain.data, plain.length, try_secret);
  mlx_free(plain.data);
}

TEST(parse_errors_name_file_and_line) {
  mlx_public_key_t key;
  mlx_secret_key_t secret;
  mlx_signature_t s;
#define PUB(text) mlx_public_key_read("k.pub", text, strlen(text), &key)
#define SIG(text) mlx_signature_read("s.minisig", text, strlen(text), &s)
#define SEC(text) mlx_secret_key_read("s.key", text, strlen(text), NULL, &secret)
  const char good_key[] = "RWS7klSXgl6jnBQUaQ9nL0S2riUXCgOW7KBsRqzeAL4krtkb/o5hhUrs";
  const char line[] =
      "RUS7klSXgl6jnNNu962cic+kk9bF48ASJQAp3lHpNJ0QDGdPybdcI6xJqX+f0Gy1ExrxiPxHUL6Qkoll7WCoQdnMgZCGVrUukQE=";
  char text[1024];
  CHECK_ERROR(PUB(""), MLX_INVALID_INPUT, "k.pub: line 1 is missing: expected a comment");
  CHECK_ERROR(PUB("hello\n"), MLX_INVALID_INPUT, "k.pub:1: does not begin with 'untrusted comment: '");
  CHECK_ERROR(PUB("untrusted comment: x\n"), MLX_INVALID_INPUT,
              "k.pub: line 2 is missing: expected a public key");
  CHECK_ERROR(PUB("untrusted comment: x\n!!!\n"), MLX_INVALID_INPUT,
              "k.pub:2: not valid base64; expected a public key");
  CHECK_ERROR(PUB("untrusted comment: x\nRWS7\n"), MLX_INVALID_INPUT,
              "k.pub:2: a public key has 42 bytes, found 3");
  snprintf(text, sizeof text, "untrusted comment: x\n%s\n%s\n", good_key, good_key);
  CHECK_ERROR(PUB(text), MLX_INVALID_INPUT, "k.pub: unexpected text after line 2");
  snprintf(text, sizeof text, "untrusted comment: x\r\n%s\r\n\r\n", good_key);  // Windows line ends
  CHECK_OK(PUB(text));
  snprintf(text, sizeof text, "untrusted comment: x\n%s\n", line);
  CHECK_ERROR(PUB(text), MLX_INVALID_INPUT, "k.pub:2: found a signature, expected a public key");
  CHECK_ERROR(SIG(text), MLX_INVALID_INPUT, "s.minisig: line 3 is missing: expected a comment");
  snprintf(text, sizeof text, "untrusted comment: x\n%s\ncomment: y\n", line);
  CHECK_ERROR(SIG(text), MLX_INVALID_INPUT, "s.minisig:3: does not begin with 'trusted comment: '");
  snprintf(text, sizeof text, "untrusted comment: x\n%s\ntrusted comment: \033[2J\n", line);
  CHECK_ERROR(SIG(text), MLX_INVALID_INPUT, "s.minisig:3: the comment is not plain UTF-8 text");
  snprintf(text, sizeof text, "untrusted comment: x\n%s\ntrusted comment: y\n%s\n", line, line);
  CHECK_ERROR(SIG(text), MLX_INVALID_INPUT,
              "s.minisig:4: found a signature, expected the signature of the trusted comment");
  snprintf(text, sizeof text, "untrusted comment: x\nA%s\ntrusted comment: y\n", line + 1);
  CHECK_ERROR(SIG(text), MLX_INVALID_INPUT, "s.minisig:2: not an Ed25519 signature");
  snprintf(text, sizeof text, "untrusted comment: x\n%s%s%s\n", line, line, line);
  CHECK_ERROR(SEC(text), MLX_INVALID_INPUT, "s.key:2: too long for a secret key");
  text_t secret_text = read_fixture("plain.key");
  char *base64 = strchr(secret_text.data, '\n') + 1;
  memcpy(base64, "RWRBcjIy", 8);  // "Ed" "Ar" "22"
  CHECK_ERROR(SEC(secret_text.data), MLX_INVALID_INPUT,
              "s.key:2: unsupported key encryption: expected scrypt");
  memcpy(base64, "RWQAADIy", 8);
  CHECK_ERROR(SEC(secret_text.data), MLX_INVALID_INPUT, "s.key:2: unsupported checksum: expected BLAKE2b");
  memcpy(base64, "RGQAAEIy", 8);
  CHECK_ERROR(SEC(secret_text.data), MLX_INVALID_INPUT, "s.key:2: not an Ed25519 secret key");
  mlx_free(secret_text.data);
}

TEST(out_of_memory_leaks_nothing) {
  mlx_secret_key_t key = read_secret("plain.key", NULL);
  const mlx_public_key_t public_key = mlx_secret_key_public(&key);
  const mlx_signed_data_t data = {FIXTURES "message.txt", NULL, 0, false};
  bool done = false;
  for (long target = 1; !done; ++target) {
    char *text = NULL;
    size_t length;
    memory.count = memory.live = 0;
    memory.target = target;
    mlx_memory_set_calls(&counting_memory);
    mlx_status_t status = mlx_signature_make(&key, &data, NULL, "c", &text, &length);
    if (!status) status = verify(text, length, &public_key, &data);
    mlx_free(text);
    mlx_memory_set_calls(NULL);
    done = memory.count < target;
    CHECK(done ? !status : mlx_status_code(status) == MLX_OUT_OF_MEMORY);
    CHECK_INT(memory.live, 0);
    mlx_status_free(status);
    CHECK(target < 100);
  }
}

static mlx_status_t count_file(void *user, const char *name) {
  (void)name;
  ++*(int *)user;
  return NULL;
}

TEST(failed_write_leaves_a_complete_key_pair_or_none) {
  char folder[] = "/tmp/mlxcel-minisign-XXXXXX", path[64];
  bool done = false;
  int failures = 0;
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/k", folder);
  for (long target = 1; !done; ++target) {
    mlx_public_key_t key;
    int files = 0;
    break_at(target, ENOSPC, false);
    mlx_status_t status = mlx_key_pair_make(path, NULL, &cheap, false, &key);
    mlx_file_set_calls(NULL);
    done = breaking.count < target;
    CHECK(!done || !status);
    CHECK_OK(mlx_list_dir(folder, count_file, &files));
    CHECK_INT(files, status ? 0 : 2);
    CHECK_OK(mlx_remove_tree(folder));
    CHECK(!mkdir(folder, 0755));
    failures += status != NULL;
    mlx_status_free(status);
    CHECK(target < 100);
  }
  CHECK(failures >= 10);
  CHECK_OK(mlx_remove_tree(folder));
}

TEST_MAIN(CASE(public_key_files_match_minisign), CASE(minisign_signatures_match_only_their_data),
          CASE(signature_files_match_minisign_byte_for_byte), CASE(encrypted_key_needs_its_password),
          CASE(new_keys_are_unique_and_survive_a_write_and_a_read), CASE(excessive_scrypt_cost_is_refused),
          CASE(comments_must_be_one_line_of_plain_text), CASE(damaged_signature_is_refused),
          CASE(damaged_public_key_is_refused), CASE(damaged_secret_key_is_refused),
          CASE(parse_errors_name_file_and_line), CASE(out_of_memory_leaks_nothing),
          CASE(failed_write_leaves_a_complete_key_pair_or_none))
