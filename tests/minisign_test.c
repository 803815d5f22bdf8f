// Keys and signatures in minisign's format. tests/fixtures/minisign was made by minisign 0.11: keys of no
// worth (the password of the encrypted one is "tiger"), and signatures of message.txt, as it signs today and
// as it did before (-l).
#include "artifact/minisign.h"

#include <sys/stat.h>

#include "artifact/sign.h"
#include "base/file.h"
#include "base/memory.h"
#include "tests/breaking.h"
#include "tests/check.h"
#include "tests/faults.h"

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
                           const mlx_signed_t *what) {
  mlx_signature_t signature;
  MLX_TRY(mlx_signature_read("s.minisig", text, length, &signature));
  return mlx_signature_verify(&signature, key, what);
}

// ----------------------------------------------------------------------------------------------------------
// What minisign made

TEST(public_keys_of_minisign_are_read_and_written_the_same) {
  static const char *const files[][2] = {{"plain.pub", "9CA35E82975492BB"},
                                         {"encrypted.pub", "1DCFC10403521E46"}};
  for (size_t i = 0; i < 2; ++i) {
    text_t text = read_fixture(files[i][0]);
    mlx_public_key_t key = read_public(files[i][0]), bare;
    char *written;
    CHECK_TEXT(mlx_key_number_text(&key.number).text, files[i][1]);
    CHECK_OK(mlx_public_key_write(&key, &written, NULL));
    CHECK_TEXT(written, text.data);
    const char *line = strchr(text.data, '\n') + 1;  // as -P has it
    CHECK_OK(mlx_public_key_read("-P", line, strlen(line) - 1, &bare));
    CHECK(mlx_public_key_equal(&key, &bare));
    mlx_free(written);
    mlx_free(text.data);
  }
}

TEST(signatures_of_minisign_fit_what_they_sign_and_nothing_else) {
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
    CHECK_OK(
        mlx_signature_verify(&signature, &key, &(mlx_signed_t){"message.txt", message.data, message.length}));
    CHECK_OK(mlx_signature_verify(&signature, &key, &(mlx_signed_t){FIXTURES "message.txt", NULL, 0}));
    CHECK_ERROR(
        mlx_signature_verify(&signature, &key, &(mlx_signed_t){"m", message.data, message.length - 1}),
        MLX_INVALID_INPUT, "'m' is not what was signed: s.minisig does not fit it");
    CHECK_ERROR(mlx_signature_verify(&signature, &key, &(mlx_signed_t){"m", other.data, other.length}),
                MLX_INVALID_INPUT, "not what was signed");
    CHECK_ERROR(mlx_signature_verify(&signature, &key, &(mlx_signed_t){FIXTURES "plain.pub", NULL, 0}),
                MLX_INVALID_INPUT, "not what was signed");
    CHECK_ERROR(mlx_signature_verify(&signature, &key, &(mlx_signed_t){"/nowhere/x", NULL, 0}), MLX_NOT_FOUND,
                "/nowhere/x");
    CHECK_ERROR(mlx_signature_verify(&signature, &wrong, &(mlx_signed_t){"m", message.data, message.length}),
                MLX_INVALID_INPUT, "s.minisig: made with key ");
    wrong.number = key.number;  // the number alone proves nothing
    CHECK_ERROR(mlx_signature_verify(&signature, &wrong, &(mlx_signed_t){"m", message.data, message.length}),
                MLX_INVALID_INPUT, "not what was signed");
    mlx_free(text.data);
  }
  mlx_free(message.data);
  mlx_free(other.data);
}

// Ed25519 is deterministic: with minisign's key and its comments we write its signature.
TEST(we_sign_what_minisign_signs_to_the_byte) {
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
    CHECK_OK(mlx_signature_make(&key, &(mlx_signed_t){FIXTURES "message.txt", NULL, 0}, NULL, cases[i][3],
                                &text, NULL));
    CHECK_TEXT(text, expected.data);
    mlx_secret_key_clear(&key);
    for (size_t j = 0; j < sizeof key; ++j) CHECK(!((uint8_t *)&key)[j]);
    mlx_free(text);
    mlx_free(expected.data);
  }
}

TEST(an_encrypted_key_wants_its_password) {
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
              "e.key: this is not its password");
  for (size_t i = 0; i < sizeof key; ++i) CHECK(!((uint8_t *)&key)[i]);
  mlx_free(text.data);
  mlx_free(plain.data);
}

// ----------------------------------------------------------------------------------------------------------
// Our own

TEST(new_keys_differ_and_are_read_as_they_were_written) {
  static const char *const passwords[] = {NULL, "", "tiger", "pässword with blanks"};
  mlx_secret_key_t last = {0}, key, again;
  for (size_t i = 0; i < sizeof passwords / sizeof *passwords; ++i) {
    char *text;
    size_t length;
    mlx_secret_key_generate(&key);
    CHECK(memcmp(key.key, last.key, sizeof key.key) && memcmp(key.number.bytes, last.number.bytes, 8));
    CHECK_OK(mlx_secret_key_write(&key, passwords[i], &cheap, &text, &length));
    CHECK_INT(strlen(text), length);
    CHECK_OK(mlx_secret_key_read("k", text, length, passwords[i], &again));
    CHECK(!memcmp(&key, &again, sizeof key));
    mlx_secret_text_free(text, length);
    last = key;
  }
}

TEST(a_key_that_costs_more_than_minisigns_is_refused) {
  mlx_secret_key_t key, again;
  char *text;
  size_t length;
  mlx_secret_key_generate(&key);
  const mlx_key_cost_t costs[] = {{mlx_key_cost_default.operations + 1, 1 << 20},
                                  {32768, mlx_key_cost_default.memory + 1},
                                  {UINT64_MAX, UINT64_MAX}};
  for (size_t i = 0; i < 3; ++i) {
    CHECK_ERROR(mlx_secret_key_write(&key, "p", &costs[i], &text, &length), MLX_INVALID_INPUT, "costs");
  }
  // The same from a file: a cheap key whose cost was changed afterwards.
  CHECK_OK(mlx_secret_key_write(&key, "p", &cheap, &text, &length));
  char *base64 = strchr(text, '\n') + 1;
  memset(base64 + 4 * (45 / 3), '/',
         8);  // bytes 45 to 50: the highest of the operations, the lower ones of the memory
  CHECK_ERROR(mlx_secret_key_read("k.key", text, length, "p", &again), MLX_INVALID_INPUT,
              "k.key: its password costs");
  mlx_secret_text_free(text, length);
}

TEST(comments_are_one_line_of_plain_text) {
  mlx_secret_key_t key = read_secret("plain.key", NULL);
  const mlx_public_key_t public_key = mlx_secret_key_public(&key);
  const mlx_signed_t what = {"m", "hello", 5};
  char *text, longest[MLX_MAX_TRUSTED_COMMENT + 2];
  size_t length;
  memset(longest, 'x', sizeof longest);
  longest[sizeof longest - 1] = 0;
  static const char *const bad[] = {"two\nlines",     "a \033[31mcolour", "a\rreturn", "\x7f",
                                    "no UTF-8: \xff", "C1: \xc2\x9b",     "cut: \xc3"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    CHECK_ERROR(mlx_signature_make(&key, &what, NULL, bad[i], &text, &length), MLX_USAGE,
                "one line of UTF-8 text");
    CHECK_ERROR(mlx_signature_make(&key, &what, bad[i], "", &text, &length), MLX_USAGE,
                "one line of UTF-8 text");
  }
  CHECK_ERROR(mlx_signature_make(&key, &what, NULL, longest, &text, &length), MLX_USAGE, "too long");
  longest[MLX_MAX_TRUSTED_COMMENT] = 0;
  CHECK_ERROR(mlx_signature_make(&key, &what, longest, "", &text, &length), MLX_USAGE, "too long");
  const char *const good[] = {"", "tabs\tand ümläuts", longest};
  for (size_t i = 0; i < 3; ++i) {
    CHECK_OK(mlx_signature_make(&key, &what, "", good[i], &text, &length));
    CHECK_OK(verify(text, length, &public_key, &what));
    mlx_free(text);
  }
  CHECK_OK(mlx_signature_make(&key, &(mlx_signed_t){"empty", "", 0}, NULL, "of nothing", &text, &length));
  CHECK_OK(verify(text, length, &public_key, &(mlx_signed_t){"empty", "", 0}));
  CHECK_OK(verify(text, length, &public_key, &(mlx_signed_t){"/dev/null", NULL, 0}));
  mlx_free(text);
}

// ----------------------------------------------------------------------------------------------------------
// Damage

// Every bit of |file| from the end of its untrusted comment's prefix on, less the comment, is turned; |try|
// must refuse each.
typedef mlx_status_t (*try_fn_t)(const char *text, size_t length);

static void turn_every_bit(const char *file, const char *text, size_t length, try_fn_t try) {
  char *copy;
  CHECK_OK(mlx_copy_text(text, length, &copy));
  const size_t comment = strlen("untrusted comment: "), comment_end = (size_t)(strchr(text, '\n') - text);
  for (size_t i = 0; i < length; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      copy[i] = (char)(text[i] ^ 1 << bit);
      mlx_status_t status = try(copy, length);
      if (i >= comment && i < comment_end) {  // nobody signed it
        mlx_status_free(status);
      } else {
        if (!status) CHECK_FAIL("%s is accepted with bit %d of byte %zu turned", file, bit, i);
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

static void cut_everywhere(const char *file, const char *text, size_t length, try_fn_t try) {
  for (size_t i = 0; i + 1 < length; ++i) {  // the last byte is an end of line, which may be missing
    char *copy;
    CHECK_OK(mlx_alloc(i, 1, &copy));  // as long as it is: the sanitizer sees what reads on
    memcpy(copy, text, i);
    mlx_status_t status = try(copy, i);
    mlx_free(copy);
    if (!status) CHECK_FAIL("%s is accepted cut after %zu bytes", file, i);
    mlx_status_free(status);
  }
  CHECK_OK(try(text, length - 1));
}

static text_t message;
static mlx_public_key_t message_key;

static mlx_status_t try_signature(const char *text, size_t length) {
  return verify(text, length, &message_key, &(mlx_signed_t){"message.txt", message.data, message.length});
}

static mlx_status_t try_public(const char *text, size_t length) {
  mlx_public_key_t key;
  text_t signature = read_fixture("message.txt.minisig");
  mlx_status_t status = mlx_public_key_read("k.pub", text, length, &key);
  if (!status)
    status = verify(signature.data, signature.length, &key,
                    &(mlx_signed_t){"message.txt", message.data, message.length});
  mlx_free(signature.data);
  return status;
}

static mlx_status_t try_secret(const char *text, size_t length) {
  mlx_secret_key_t key;
  MLX_TRY(mlx_secret_key_read("k.key", text, length, "tiger", &key));
  const bool same = !memcmp(key.key + 32, message_key.key, sizeof message_key.key);
  return same ? NULL : mlx_error(MLX_INVALID_INPUT, "another key");
}

TEST(a_signature_with_a_bit_turned_or_a_byte_missing_is_refused) {
  message = read_fixture("message.txt");
  message_key = read_public("plain.pub");
  static const char *const files[] = {"message.txt.minisig", "legacy.minisig"};
  for (size_t i = 0; i < 2; ++i) {
    text_t text = read_fixture(files[i]);
    turn_every_bit(files[i], text.data, text.length, try_signature);
    cut_everywhere(files[i], text.data, text.length, try_signature);
    mlx_free(text.data);
  }
  mlx_free(message.data);
}

TEST(a_public_key_with_a_bit_turned_or_a_byte_missing_is_refused) {
  message = read_fixture("message.txt");
  message_key = read_public("plain.pub");
  text_t text = read_fixture("plain.pub");
  turn_every_bit("plain.pub", text.data, text.length, try_public);
  cut_everywhere("plain.pub", text.data, text.length, try_public);
  mlx_free(text.data);
  mlx_free(message.data);
}

// What an encrypted key is worth its checksum says. One that is not has none: its halves tell damage of the
// key, and the rest is not looked at.
TEST(a_secret_key_with_a_byte_turned_or_missing_is_refused) {
  mlx_secret_key_t key = read_secret("plain.key", NULL);
  message_key = mlx_secret_key_public(&key);
  char *text;
  size_t length;
  CHECK_OK(mlx_secret_key_write(&key, "tiger", &cheap, &text, &length));
  char *base64 = strchr(text, '\n') + 1;
  for (char *c = base64; *c != '\n'; ++c) {
    if (c - base64 >= 38 * 4 / 3 && c - base64 < 54 * 4 / 3)
      continue;  // the cost: another may come to the same
    const char old = *c;
    *c = old == 'x' ? 'y' : 'x';
    mlx_status_t status = try_secret(text, length);
    if (!status) CHECK_FAIL("accepted with byte %zu changed", (size_t)(c - text));
    mlx_status_free(status);
    *c = old;
  }
  cut_everywhere("a secret key", text, length, try_secret);
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
  cut_everywhere("plain.key", plain.data, plain.length, try_secret);
  mlx_free(plain.data);
}

TEST(what_is_wrong_with_a_file_is_said_with_its_name_and_line) {
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
  CHECK_ERROR(PUB(""), MLX_INVALID_INPUT, "k.pub ends before line 1, a comment");
  CHECK_ERROR(PUB("hello\n"), MLX_INVALID_INPUT, "k.pub:1: does not begin with 'untrusted comment: '");
  CHECK_ERROR(PUB("untrusted comment: x\n"), MLX_INVALID_INPUT, "k.pub ends before line 2, a public key");
  CHECK_ERROR(PUB("untrusted comment: x\n!!!\n"), MLX_INVALID_INPUT,
              "k.pub:2: this is not base64, in which a public key is written");
  CHECK_ERROR(PUB("untrusted comment: x\nRWS7\n"), MLX_INVALID_INPUT,
              "k.pub:2: a public key has 42 bytes, and this has 3");
  snprintf(text, sizeof text, "untrusted comment: x\n%s\n%s\n", good_key, good_key);
  CHECK_ERROR(PUB(text), MLX_INVALID_INPUT, "k.pub goes on after line 2");
  snprintf(text, sizeof text, "untrusted comment: x\r\n%s\r\n\r\n", good_key);  // through a Windows editor
  CHECK_OK(PUB(text));
  snprintf(text, sizeof text, "untrusted comment: x\n%s\n", line);
  CHECK_ERROR(PUB(text), MLX_INVALID_INPUT, "k.pub:2: this is a signature, not a public key");
  CHECK_ERROR(SIG(text), MLX_INVALID_INPUT, "s.minisig ends before line 3, a comment");
  snprintf(text, sizeof text, "untrusted comment: x\n%s\ncomment: y\n", line);
  CHECK_ERROR(SIG(text), MLX_INVALID_INPUT, "s.minisig:3: does not begin with 'trusted comment: '");
  snprintf(text, sizeof text, "untrusted comment: x\n%s\ntrusted comment: \033[2J\n", line);
  CHECK_ERROR(SIG(text), MLX_INVALID_INPUT, "s.minisig:3: the comment is not plain UTF-8 text");
  snprintf(text, sizeof text, "untrusted comment: x\n%s\ntrusted comment: y\n%s\n", line, line);
  CHECK_ERROR(SIG(text), MLX_INVALID_INPUT,
              "s.minisig:4: this is a signature, not the signature of the trusted comment");
  snprintf(text, sizeof text, "untrusted comment: x\nA%s\ntrusted comment: y\n", line + 1);
  CHECK_ERROR(SIG(text), MLX_INVALID_INPUT, "s.minisig:2: this is not a signature by Ed25519");
  snprintf(text, sizeof text, "untrusted comment: x\n%s%s%s\n", line, line, line);
  CHECK_ERROR(SEC(text), MLX_INVALID_INPUT, "s.key:2: this is too long for a secret key");
  text_t secret_text = read_fixture("plain.key");
  char *base64 = strchr(secret_text.data, '\n') + 1;
  memcpy(base64, "RWRBcjIy", 8);  // "Ed" "Ar" "22"
  CHECK_ERROR(SEC(secret_text.data), MLX_INVALID_INPUT,
              "s.key:2: this key is encrypted in a way that is not scrypt");
  memcpy(base64, "RWQAADIy", 8);
  CHECK_ERROR(SEC(secret_text.data), MLX_INVALID_INPUT, "s.key:2: this key's checksum is not by BLAKE2b");
  memcpy(base64, "RGQAAEIy", 8);
  CHECK_ERROR(SEC(secret_text.data), MLX_INVALID_INPUT, "s.key:2: this is not a secret key for Ed25519");
  mlx_free(secret_text.data);
}

TEST(nothing_leaks_when_memory_runs_out) {
  mlx_secret_key_t key = read_secret("plain.key", NULL);
  const mlx_public_key_t public_key = mlx_secret_key_public(&key);
  const mlx_signed_t what = {FIXTURES "message.txt", NULL, 0};
  bool done = false;
  for (long target = 1; !done; ++target) {
    char *text = NULL;
    size_t length;
    memory.count = memory.live = 0;
    memory.target = target;
    mlx_memory_set_calls(&counting_memory);
    mlx_status_t status = mlx_signature_make(&key, &what, NULL, "c", &text, &length);
    if (!status) status = verify(text, length, &public_key, &what);
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

TEST(a_disk_that_fails_leaves_a_whole_pair_or_nothing) {
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

TEST_MAIN(CASE(public_keys_of_minisign_are_read_and_written_the_same),
          CASE(signatures_of_minisign_fit_what_they_sign_and_nothing_else),
          CASE(we_sign_what_minisign_signs_to_the_byte), CASE(an_encrypted_key_wants_its_password),
          CASE(new_keys_differ_and_are_read_as_they_were_written),
          CASE(a_key_that_costs_more_than_minisigns_is_refused), CASE(comments_are_one_line_of_plain_text),
          CASE(a_signature_with_a_bit_turned_or_a_byte_missing_is_refused),
          CASE(a_public_key_with_a_bit_turned_or_a_byte_missing_is_refused),
          CASE(a_secret_key_with_a_byte_turned_or_missing_is_refused),
          CASE(what_is_wrong_with_a_file_is_said_with_its_name_and_line),
          CASE(nothing_leaks_when_memory_runs_out), CASE(a_disk_that_fails_leaves_a_whole_pair_or_nothing))
