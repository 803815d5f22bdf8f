// keygen, sign, verify and trust on the command line. If minisign is installed, each tool also checks the
// files of the other.
#include "artifact/sign.h"

#include "tests/support/check.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/pty.h"
#include "tests/support/small_manifest.h"

#define FIXTURES MLXCEL_SOURCE_DIR "/tests/fixtures/minisign/"

// Creates the test folder, without trusted keys.
static void begin(void) {
  strcpy(folder, "/tmp/mlxcel-sign-XXXXXX");
  CHECK(mkdtemp(folder));
  setenv("HOME", folder, 1);
  setenv("MLXCEL_TRUSTED", in_folder("trusted"), 1);
  setenv("SOURCE_DATE_EPOCH", "1700000000", 1);
  unsetenv("XDG_CONFIG_HOME");
  unsetenv("MLXCEL_PASSWORD");
}

static void end(void) { CHECK_OK(mlx_remove_tree(folder)); }

static void write_text(const char *name, const char *text) {
  CHECK_OK(mlx_write_file(in_folder(name), text, strlen(text)));
}

static char *read_text(const char *name) {
  char *text;
  CHECK_OK(mlx_read_file(in_folder(name), 1 << 20, &text, NULL));
  return text;
}

// Runs mlxcel, which must exit with |code| and print |part|: on stdout if |code| is 0, else on stderr.
#define EXPECT(code, part, ...)                                                               \
  do {                                                                                        \
    command_t run_;                                                                           \
    RUN(&run_, __VA_ARGS__);                                                                  \
    if (run_.exit_code != (code)) CHECK_FAIL("exit status %d: %s", run_.exit_code, run_.err); \
    CHECK_CONTAINS((code) ? run_.err : run_.out, part);                                       \
    command_free(&run_);                                                                      \
  } while (0)

static int shell(const char *script, char **out) {  // $0 is mlxcel, $1 the folder
  command_t run;
  command_start(&run, (const char *const[]){"/bin/sh", "-c", script, MLXCEL_BINARY, folder, NULL});
  command_wait(&run);
  if (out) CHECK_OK(mlx_format(out, "%s%s", run.out, run.err));
  const int code = run.exit_code;
  command_free(&run);
  return code;
}

static bool has_minisign(void) { return shell("command -v minisign", NULL) == 0; }

static int mode_of(const char *path) {
  struct stat info;
  CHECK(!stat(path, &info));
  return info.st_mode & 07777;
}

// ----------------------------------------------------------------------------------------------------------
// Keys

TEST(keygen_replaces_a_pair_only_with_force) {
  begin();
  EXPECT(0, "RW", "keygen", "-W", "-o", in_folder("new/a"));
  CHECK_INT(mode_of(in_folder("new/a.key")), 0600);
  CHECK_INT(mode_of(in_folder("new/a.pub")), 0644 & mode_of(in_folder("new/a.pub")));
  char *first = read_text("new/a.key"), *second;
  EXPECT(MLX_USAGE, "new/a.key' already exists", "keygen", "-W", "-o", in_folder("new/a"));
  CHECK(!unlink(in_folder("new/a.key")));
  EXPECT(MLX_USAGE, "new/a.pub' already exists", "keygen", "-W", "-o", in_folder("new/a"));
  CHECK(access(in_folder("new/a.key"), F_OK));
  write_text("new/a.key", first);
  CHECK(!chmod(in_folder("new/a.key"), 0644));
  EXPECT(0, "RW", "keygen", "-W", "--force", "-o", in_folder("new/a"));
  second = read_text("new/a.key");
  CHECK(strcmp(first, second));
  CHECK_INT(mode_of(in_folder("new/a.key")), 0600);  // not the mode of the old file
  mlx_free(first);
  mlx_free(second);
  EXPECT(0, "RW", "keygen", "-W");
  CHECK_INT(mode_of(in_folder(".config/mlxcel/mlxcel.key")), 0600);
  write_text("f", "x");
  EXPECT(0, "f.minisig", "sign", in_folder("f"));  // uses the key at the default path
  end();
}

// A folder blocks the path of one file of the pair, so the new pair cannot be completed.
TEST(failed_keygen_keeps_the_old_pair) {
  begin();
  char *out;
  CHECK(!mkdir(in_folder("b.pub"), 0755));
  EXPECT(MLX_IO, "b.pub", "keygen", "-W", "--force", "-o", in_folder("b"));
  CHECK(access(in_folder("b.key"), F_OK));
  CHECK_INT(shell("cd \"$1\" && \"$0\" keygen -W -o a && cp a.key old.key && cp a.pub old.pub && rm a.pub && "
                  "mkdir a.pub",
                  NULL),
            0);
  EXPECT(MLX_IO, "a.pub", "keygen", "-W", "--force", "-o", in_folder("a"));
  CHECK_INT(
      shell(
          "cd \"$1\" && cmp a.key old.key && rmdir a.pub && mv a.key kept && mkdir a.key && cp old.pub a.pub",
          NULL),
      0);
  EXPECT(MLX_IO, "a.key", "keygen", "-W", "--force", "-o", in_folder("a"));
  CHECK_INT(shell("cd \"$1\" && cmp a.pub old.pub && ls", &out), 0);
  CHECK_TEXT(out, "a.key\na.pub\nb.pub\nkept\nold.key\nold.pub\n");  // no temporary files
  mlx_free(out);
  end();
}

TEST(password_comes_from_environment_or_stdin) {
  begin();
  char *out, script[1024];
  write_text("f", "x");
  EXPECT(MLX_USAGE, "stdin is not a terminal", "keygen", "-o", in_folder("k"));
  CHECK_INT(shell("echo | \"$0\" keygen -o \"$1/k\"", &out), MLX_USAGE);
  CHECK_CONTAINS(out, "the password is empty");
  CHECK_CONTAINS(out, "-W makes a key without a password");
  mlx_free(out);
  CHECK(access(in_folder("k.key"), F_OK) && access(in_folder("k.pub"), F_OK));
  EXPECT(MLX_USAGE, "stdin is not a terminal", "sign", "-s", FIXTURES "encrypted.key", in_folder("f"));
  snprintf(script, sizeof script, "printf 'tiger\\r\\nmore\\n' | \"$0\" sign -s '%s' \"$1/f\"",
           FIXTURES "encrypted.key");
  CHECK_INT(shell(script, NULL), 0);
  EXPECT(0, "1DCFC10403521E46", "verify", "-p", FIXTURES "encrypted.pub", in_folder("f"));
  snprintf(script, sizeof script, "echo lion | \"$0\" sign -s '%s' \"$1/f\"", FIXTURES "encrypted.key");
  CHECK_INT(shell(script, &out), MLX_INVALID_INPUT);
  CHECK_CONTAINS(out, "encrypted.key: wrong password");
  mlx_free(out);
  setenv("MLXCEL_PASSWORD", "tiger", 1);
  EXPECT(0, "f.minisig", "sign", "-s", FIXTURES "encrypted.key", in_folder("f"), in_folder("f.minisig"));
  unsetenv("MLXCEL_PASSWORD");
  end();
}

TEST(typed_password_is_not_echoed) {
  begin();
  pty_t pty;
  write_text("f", "x");
  pty_start(
      &pty,
      (const char *const[]){MLXCEL_BINARY, "sign", "-s", FIXTURES "encrypted.key", in_folder("f"), NULL},
      NULL, "xterm");
  pty_wait_for(&pty, "encrypted.key: ");
  kill(pty.pid, SIGWINCH);
  pty_send(&pty, "lion\025tigg\177er\r");  // with Ctrl-U and a backspace
  pty_wait_for(&pty, "f.minisig");
  CHECK(!strstr(pty.shown.data, "lion") && !strstr(pty.shown.data, "tig"));
  CHECK_INT(pty_end(&pty), 0);
  mlx_text_clear(&pty.shown);
  pty_start(&pty, (const char *const[]){MLXCEL_BINARY, "keygen", "-o", in_folder("k"), NULL}, NULL, "dumb");
  pty_wait_for(&pty, "password for the new key: ");
  pty_send(&pty, "one\r");
  pty_wait_for(&pty, "repeat the password: ");
  pty_send(&pty, "two\r");
  pty_wait_for(&pty, "the two passwords differ");
  CHECK_INT(pty_end(&pty), MLX_USAGE);
  mlx_text_clear(&pty.shown);
  pty_start(&pty, (const char *const[]){MLXCEL_BINARY, "keygen", "-o", in_folder("k"), NULL}, NULL, "xterm");
  pty_wait_for(&pty, "password for the new key: ");
  pty_send(&pty, "on\003");
  CHECK_INT(pty_end(&pty), -SIGINT);
  mlx_text_clear(&pty.shown);
  CHECK(access(in_folder("k.key"), F_OK) && access(in_folder("k.pub"), F_OK));
  end();
}

// ----------------------------------------------------------------------------------------------------------
// Files

TEST(verify_accepts_only_trusted_keys) {
  begin();
  write_text("f", "hello");
  EXPECT(MLX_NOT_FOUND, "nothing' does not exist", "verify", in_folder("nothing"));
  EXPECT(MLX_NOT_FOUND, "f' is not signed: ", "verify", in_folder("f"));
  EXPECT(MLX_NOT_FOUND,
         "f.minisig does not exist\nhint: get the signature from the publisher, or sign your own file with "
         "`mlxcel sign`",
         "verify", in_folder("f"));
  EXPECT(0, "f.minisig", "sign", "-s", FIXTURES "plain.key", in_folder("f"));
  EXPECT(MLX_NOT_FOUND, "f.minisig: signed with key 9CA35E82975492BB, which is not among the trusted keys",
         "verify", in_folder("f"));
  EXPECT(MLX_NOT_FOUND, "mlxcel trust add KEY.pub", "verify", in_folder("f"));
  EXPECT(0, "", "trust", "add", FIXTURES "encrypted.pub");
  EXPECT(MLX_NOT_FOUND, "not among the trusted keys", "verify", in_folder("f"));
  EXPECT(0, "signed by " FIXTURES "plain.pub, key 9CA35E82975492BB: timestamp:1700000000\tfile:f\thashed",
         "verify", "-p", FIXTURES "plain.pub", in_folder("f"));
  EXPECT(0, "key 9CA35E82975492BB", "verify", "-P",
         "RWS7klSXgl6jnBQUaQ9nL0S2riUXCgOW7KBsRqzeAL4krtkb/o5hhUrs", in_folder("f"));
  EXPECT(MLX_INVALID_INPUT, "-P:1: not valid base64; expected a public key", "verify", "-P", "RWS7klSX?",
         in_folder("f"));
  EXPECT(MLX_INVALID_INPUT, "signed with key 9CA35E82975492BB, but verified with key 1DCFC10403521E46",
         "verify", "-p", FIXTURES "encrypted.pub", in_folder("f"));
  EXPECT(0, "", "trust", "add", FIXTURES "plain.pub");
  EXPECT(0, "f: signed by plain.pub, key 9CA35E82975492BB: timestamp:1700000000\tfile:f\thashed\n", "verify",
         in_folder("f"));
  write_text("f", "hallo");
  EXPECT(MLX_INVALID_INPUT, "f' does not match its signature", "verify", in_folder("f"));
  write_text("f", "hello");
  EXPECT(0, "f: signed by", "verify", in_folder("f"));
  EXPECT(0, "", "trust", "remove", "plain");
  EXPECT(MLX_NOT_FOUND, "not among the trusted keys", "verify", in_folder("f"));
  end();
}

TEST(verify_checks_every_file_and_reports_every_failure) {
  begin();
  command_t run;
  write_text("a", "a");
  write_text("b", "b");
  write_text("c", "c");
  EXPECT(0, "b.minisig\n", "sign", "-s", FIXTURES "plain.key", "-c", "said", "-t", "meant", in_folder("a"),
         in_folder("b"));
  char *signature = read_text("a.minisig");
  CHECK_CONTAINS(signature, "untrusted comment: said\n");
  CHECK_CONTAINS(signature, "\ntrusted comment: meant\n");
  mlx_free(signature);
  write_text("a", "A");
  RUN(&run, "verify", "-p", FIXTURES "plain.pub", in_folder("c"), in_folder("a"), in_folder("b"));
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);  // exit status of the first failure
  CHECK_CONTAINS(run.out, "b: signed by");
  CHECK(!strstr(run.out, "a: signed"));
  CHECK_CONTAINS(run.err, "a' does not match its signature");
  CHECK_CONTAINS(run.err, "c' is not signed");
  command_free(&run);
  EXPECT(0, "elsewhere", "sign", "-s", FIXTURES "plain.key", "-x", in_folder("elsewhere"), in_folder("c"));
  EXPECT(0, "c: signed by", "verify", "-p", FIXTURES "plain.pub", "-x", in_folder("elsewhere"),
         in_folder("c"));
  EXPECT(MLX_USAGE, "-x can be used with one file only", "verify", "-x", "s", "a", "b");
  EXPECT(MLX_USAGE, "-x can be used with one file only", "sign", "-x", "s", "a", "b");
  EXPECT(MLX_USAGE, "-p and -P were both given", "verify", "-p", "x", "-P", "y", "a");
  EXPECT(MLX_USAGE, "no file was given", "verify");
  EXPECT(MLX_USAGE, "no file was given", "sign");
  EXPECT(MLX_NOT_FOUND, "create it with `mlxcel keygen`", "sign", "a");
  EXPECT(MLX_NOT_FOUND, "/nowhere.key", "sign", "-s", "/nowhere.key", in_folder("a"));
  EXPECT(MLX_NOT_FOUND, "/nowhere", "sign", "-s", FIXTURES "plain.key", "/nowhere");
  EXPECT(MLX_USAGE, "one line of UTF-8 text", "sign", "-s", FIXTURES "plain.key", "-t", "two\nlines",
         in_folder("a"));
  EXPECT(MLX_INVALID_INPUT,
         "plain.pub:2: found a public key, expected a secret key\nhint: use the secret key file, NAME.key",
         "sign", "-s", FIXTURES "plain.pub", in_folder("a"));
  EXPECT(MLX_INVALID_INPUT, "is a folder but not a bundle", "sign", "-s", FIXTURES "plain.key", folder);
  end();
}

TEST(large_file_is_signed_with_constant_memory) {
  begin();
  command_t run;
  const int fd = open(in_folder("large"), O_CREAT | O_WRONLY, 0644);
  CHECK(fd >= 0 && !ftruncate(fd, 256 << 20));  // sparse
  close(fd);
  RUN(&run, "sign", "-s", FIXTURES "plain.key", in_folder("large"));
  CHECK_INT(run.exit_code, 0);
  if (!MLXCEL_SANITIZED) CHECK(run.peak_kib < 64 << 10);
  command_free(&run);
  RUN(&run, "verify", "-p", FIXTURES "plain.pub", in_folder("large"));
  CHECK_INT(run.exit_code, 0);
  if (!MLXCEL_SANITIZED) CHECK(run.peak_kib < 64 << 10);
  command_free(&run);
  end();
}

// ----------------------------------------------------------------------------------------------------------
// Trust

TEST(trust_manages_a_folder_of_keys) {
  begin();
  command_t run;
  RUN(&run, "trust", "list");
  CHECK_INT(run.exit_code, 0);
  CHECK_TEXT(run.out, "");
  CHECK_CONTAINS(run.err, "0 trusted keys in ");
  command_free(&run);
  EXPECT(0, "", "trust", "add", FIXTURES "plain.pub");
  EXPECT(0, "", "trust", "add", FIXTURES "plain.pub");  // adding the same key twice is fine
  EXPECT(0, "", "trust", "add", FIXTURES "encrypted.pub");
  EXPECT(0, "1DCFC10403521E46  encrypted.pub\n9CA35E82975492BB  plain.pub\n", "trust", "list");
  EXPECT(0, "RW", "keygen", "-W", "-o", in_folder("plain"));
  EXPECT(MLX_USAGE, "plain.pub already contains a different key, 9CA35E82975492BB", "trust", "add",
         in_folder("plain.pub"));
  EXPECT(0, "9CA35E82975492BB  plain.pub\n", "trust", "list");
  EXPECT(0, "", "trust", "add", "--force", in_folder("plain.pub"));
  EXPECT(MLX_NOT_FOUND, "has the name or ID '9CA35E82975492BB'", "trust", "remove", "9CA35E82975492BB");
  EXPECT(0, "", "trust", "remove", "1dcfc10403521e46");
  EXPECT(MLX_NOT_FOUND, "has the name or ID 'encrypted.pub'", "trust", "remove", "encrypted.pub");
  EXPECT(MLX_INVALID_INPUT, "message.txt:1: does not begin with", "trust", "add", FIXTURES "message.txt");
  EXPECT(MLX_INVALID_INPUT,
         "plain.key:2: found a secret key, expected a public key\nhint: use the public key file, NAME.pub",
         "trust", "add", FIXTURES "plain.key");
  CHECK(!rename(in_folder("plain.pub"), in_folder("plain.txt")));
  EXPECT(MLX_USAGE, "does not end in .pub", "trust", "add", in_folder("plain.txt"));
  EXPECT(MLX_USAGE, "trust expects", "trust");
  EXPECT(MLX_USAGE, "trust expects", "trust", "add");
  EXPECT(MLX_USAGE, "trust expects", "trust", "lost");
  write_text("trusted/.hidden.pub", "ignored");
  write_text("trusted/notes", "ignored");
  EXPECT(0, "plain.pub", "trust", "list");
  write_text("trusted/bad.pub", "not a key");  // a damaged key file blocks every check
  write_text("f", "x");
  EXPECT(0, "f.minisig", "sign", "-s", in_folder("plain.key"), in_folder("f"));
  EXPECT(MLX_INVALID_INPUT, "bad.pub:1: does not begin with", "verify", in_folder("f"));
  EXPECT(MLX_INVALID_INPUT, "bad.pub:1: does not begin with", "trust", "list");
  EXPECT(MLX_INVALID_INPUT, "repair it, or run `mlxcel trust remove bad.pub`", "trust", "list");
  EXPECT(MLX_NOT_FOUND, "has the name or ID '9CA35E82975492BB'", "trust", "remove", "9CA35E82975492BB");
  EXPECT(0, "", "trust", "remove", "bad");  // by name, although it is not a key
  EXPECT(0, "f: signed by plain.pub", "verify", in_folder("f"));
  end();
}

TEST(trusted_folder_must_not_be_writable_by_others) {
  begin();
  write_text("f", "x");
  EXPECT(0, "f.minisig", "sign", "-s", FIXTURES "plain.key", in_folder("f"));
  EXPECT(0, "", "trust", "add", FIXTURES "plain.pub");
  static const mode_t modes[] = {0777, 0775, 0757};
  for (int i = 0; i < 3; ++i) {
    CHECK(!chmod(in_folder("trusted"), modes[i]));
    EXPECT(MLX_IO, "trusted' is writable by other users (mode 7", "verify", in_folder("f"));
    EXPECT(MLX_IO, "run `chmod -R go-w", "trust", "list");
  }
  CHECK(!chmod(in_folder("trusted"), 0755));
  EXPECT(0, "f: signed by plain.pub", "verify", in_folder("f"));
  end();
}

// Another user who can write to a key file, or to the target of a link, can replace the key.
TEST(trusted_key_must_not_be_writable_by_others) {
  begin();
  write_text("f", "x");
  EXPECT(0, "f.minisig", "sign", "-s", FIXTURES "plain.key", in_folder("f"));
  EXPECT(0, "", "trust", "add", FIXTURES "plain.pub");
  static const mode_t modes[] = {0666, 0664, 0646};
  for (int i = 0; i < 3; ++i) {
    CHECK(!chmod(in_folder("trusted/plain.pub"), modes[i]));
    EXPECT(MLX_IO, "plain.pub' is writable by other users (mode 6", "verify", in_folder("f"));
    EXPECT(MLX_IO, "run `chmod go-w", "trust", "list");
  }
  EXPECT(0, "", "trust", "add", FIXTURES "plain.pub");  // writes a new file with a safe mode
  EXPECT(0, "f: signed by plain.pub", "verify", in_folder("f"));
  CHECK(!rename(in_folder("trusted/plain.pub"), in_folder("target")));
  CHECK(!symlink("../target", in_folder("trusted/plain.pub")));
  EXPECT(0, "f: signed by plain.pub", "verify", in_folder("f"));  // a link to a safe file
  CHECK(!chmod(in_folder("target"), 0666));
  EXPECT(MLX_IO, "plain.pub' is writable by other users (mode 666)", "verify", in_folder("f"));
  CHECK(!chmod(in_folder("target"), 0644));
  if (geteuid() == 0) {  // only root can change the owner
    CHECK(!chown(in_folder("target"), 12345, 12345));
    EXPECT(MLX_IO, "plain.pub' belongs to another user (uid 12345)", "verify", in_folder("f"));
    CHECK(!chown(in_folder("target"), 0, 0));
  }
  EXPECT(0, "f: signed by plain.pub", "verify", in_folder("f"));
  CHECK(!unlink(in_folder("trusted/plain.pub")) && !mkfifo(in_folder("trusted/plain.pub"), 0644));
  EXPECT(MLX_INVALID_INPUT, "plain.pub' is a pipe, not a regular file", "verify", in_folder("f"));
  EXPECT(0, "", "trust", "remove", "plain.pub");
  end();
}

// An attacker can choose a key ID. A second key with the same ID must neither replace nor block the first.
TEST(keys_with_equal_ids_are_distinguished) {
  begin();
  mlx_public_key_t key, other;
  char *text;
  size_t length;
  CHECK_OK(mlx_public_key_load(FIXTURES "plain.pub", &key));
  CHECK_OK(mlx_public_key_load(FIXTURES "encrypted.pub", &other));
  other.id = key.id;
  CHECK_OK(mlx_public_key_write(&other, &text, &length));
  CHECK(!mkdir(in_folder("trusted"), 0755));
  write_text("trusted/a.pub", text);
  mlx_free(text);
  write_text("f", "x");
  EXPECT(0, "f.minisig", "sign", "-s", FIXTURES "plain.key", in_folder("f"));
  EXPECT(MLX_INVALID_INPUT, "does not match its signature", "verify", in_folder("f"));
  EXPECT(0, "", "trust", "add", FIXTURES "plain.pub");
  EXPECT(0, "signed by plain.pub", "verify", in_folder("f"));
  end();
}

// A reader that stops at a NUL would accept the beginning of a file.
TEST(key_files_with_a_nul_or_too_many_bytes_are_refused) {
  begin();
  char *text;
  size_t length;
  static const char *const files[] = {"plain.key", "plain.pub"};
  write_text("f", "x");
  EXPECT(0, "f.minisig", "sign", "-s", FIXTURES "plain.key", in_folder("f"));
  for (int i = 0; i < 2; ++i) {
    char path[512], *padded;
    snprintf(path, sizeof path, FIXTURES "%s", files[i]);
    CHECK_OK(mlx_read_file(path, SIZE_MAX, &text, &length));
    CHECK_OK(mlx_alloc(length + 8000, 1, &padded));
    memcpy(padded, text, length);
    for (int k = 0; k < 2; ++k) {  // zeros after the key: a few, and too many
      CHECK_OK(mlx_write_file(in_folder(files[i]), padded, length + (k ? 8000 : 10)));
      if (i)
        EXPECT(MLX_INVALID_INPUT, files[i], "verify", "-p", in_folder(files[i]), in_folder("f"));
      else
        EXPECT(MLX_INVALID_INPUT, files[i], "sign", "-s", in_folder(files[i]), in_folder("f"));
    }
    mlx_free(padded);
    mlx_free(text);
  }
  end();
}

// ----------------------------------------------------------------------------------------------------------
// Bundles

static void write_bundle(bool with_files) {
  mlx_manifest_t manifest = small_manifest();
  manifest.eos[0] = 2;
  manifest.eos_count = 1;
  static const char *const files[][2] = {
      {MLX_BUNDLE_VMFB, "code"}, {MLX_BUNDLE_WEIGHTS, "weights"}, {MLX_BUNDLE_TOKENIZER, "{}"}};
  CHECK_OK(mlx_make_dirs(in_folder("m.mlxb"), 0755));
  for (size_t i = 0; i < 3; ++i) {
    char path[64];
    snprintf(path, sizeof path, "m.mlxb/%s", files[i][0]);
    write_text(path, files[i][1]);
    mlx_bundle_file_t *file = &manifest.files[i];
    snprintf(file->name, sizeof file->name, "%s", files[i][0]);
    file->size = (int64_t)strlen(files[i][1]);
    CHECK_OK(mlx_digest_file(in_folder(path), NULL, file->sha256));
  }
  manifest.file_count = with_files ? 3 : 0;
  char *json;
  CHECK_OK(mlx_manifest_write(&manifest, &json, NULL));
  write_text("m.mlxb/manifest.json", json);
  mlx_free(json);
}

TEST(bundle_signature_covers_every_file) {
  begin();
  write_bundle(true);
  char bundle[256];
  snprintf(bundle, sizeof bundle, "%s/m.mlxb", folder);
  EXPECT(MLX_NOT_FOUND, "manifest.json' is not signed", "verify", bundle);
  EXPECT(0, "m.mlxb/manifest.json.minisig", "sign", "-s", FIXTURES "plain.key", bundle);
  EXPECT(0, "", "trust", "add", FIXTURES "plain.pub");
  EXPECT(0,
         "m.mlxb: signed by plain.pub, key 9CA35E82975492BB: mlxcel-bundle\ttimestamp:1700000000\tfile:"
         "manifest.json\thashed",
         "verify", bundle);
  write_text("m.mlxb/model.vmfb", "kode");
  EXPECT(MLX_INVALID_INPUT, "model.vmfb' does not match the bundle's manifest: its SHA-256 is ", "verify",
         bundle);
  EXPECT(MLX_INVALID_INPUT, "model.vmfb' does not match the bundle's manifest: its SHA-256 is ", "sign", "-s",
         FIXTURES "plain.key", bundle);  // a damaged bundle is not signed
  write_text("m.mlxb/model.vmfb", "code!");
  EXPECT(MLX_INVALID_INPUT,
         "model.vmfb' does not match the bundle's manifest: its size is 5 bytes, expected 4", "verify",
         bundle);
  CHECK(!unlink(in_folder("m.mlxb/model.vmfb")));
  EXPECT(MLX_NOT_FOUND, "model.vmfb", "verify", bundle);
  write_text("m.mlxb/model.vmfb", "code");
  CHECK(!unlink(in_folder("m.mlxb/weights.irpa")));
  EXPECT(MLX_NOT_FOUND, "weights.irpa' does not exist", "verify", bundle);
  EXPECT(0, "m.mlxb: signed by", "verify", "--no-weights", bundle);
  CHECK(!mkfifo(in_folder("m.mlxb/weights.irpa"), 0600));
  EXPECT(MLX_INVALID_INPUT, "weights.irpa' is not a regular file", "verify", bundle);
  EXPECT(MLX_INVALID_INPUT, "weights.irpa' is not a regular file", "verify", "--no-weights", bundle);
  CHECK(!unlink(in_folder("m.mlxb/weights.irpa")));
  write_text("m.mlxb/weights.irpa", "weights");
  write_text("m.mlxb/README", "ignored");
  EXPECT(0, "m.mlxb: signed by", "verify", bundle);
  write_text("m.mlxb/chat.json", "{}");  // the runtime would read it
  EXPECT(MLX_INVALID_INPUT, "m.mlxb' contains chat.json, which its manifest does not list", "verify", bundle);
  CHECK(!unlink(in_folder("m.mlxb/chat.json")));
  char *manifest = read_text("m.mlxb/manifest.json");
  *strstr(manifest, "tiny") = 'T';
  write_text("m.mlxb/manifest.json", manifest);
  mlx_free(manifest);
  EXPECT(MLX_INVALID_INPUT, "manifest.json' does not match its signature", "verify", bundle);
  write_bundle(false);
  EXPECT(MLX_UNSUPPORTED, "its manifest lists no files", "sign", "-s", FIXTURES "plain.key", bundle);
  end();
}

// The same bytes signed as a plain file: a key's owner who signs any file named manifest.json does not vouch
// for a bundle.
TEST(signature_of_a_plain_file_is_not_accepted_for_a_bundle) {
  begin();
  write_bundle(true);
  char bundle[256], *out;
  snprintf(bundle, sizeof bundle, "%s/m.mlxb", folder);
  EXPECT(0, "", "trust", "add", FIXTURES "plain.pub");
  EXPECT(0, "manifest.json.minisig", "sign", "-s", FIXTURES "plain.key", in_folder("m.mlxb/manifest.json"));
  EXPECT(0, "manifest.json: signed by", "verify", in_folder("m.mlxb/manifest.json"));
  EXPECT(MLX_INVALID_INPUT,
         "not the signature of a bundle: its trusted comment does not begin with 'mlxcel-bundle'", "verify",
         bundle);
  EXPECT(MLX_INVALID_INPUT, "not the signature of a bundle", "run", "-m", bundle, "-p", "x");
  EXPECT(MLX_INVALID_INPUT, "not the signature of a bundle", "run", "-m", bundle, "-p", "x",
         "--allow-unsigned");
  EXPECT(MLX_INVALID_INPUT, "not the signature of a bundle", "verify", "-p", FIXTURES "plain.pub", bundle);
  EXPECT(MLX_USAGE, "must not begin with 'mlxcel-bundle'", "sign", "-s", FIXTURES "plain.key", "-t",
         "mlxcel-bundle x", in_folder("m.mlxb/manifest.json"));
  EXPECT(0, "", "sign", "-s", FIXTURES "plain.key", "-t", "mlxcel-bundles",
         in_folder("m.mlxb/manifest.json"));  // another word
  EXPECT(MLX_INVALID_INPUT, "not the signature of a bundle", "verify", bundle);
  EXPECT(0, "", "sign", "-s", FIXTURES "plain.key", "-t", "version 2", bundle);
  EXPECT(0, ": mlxcel-bundle\tversion 2", "verify", bundle);
  if (has_minisign()) {
    static const char *const steps[] = {
        "minisign -V -p " FIXTURES "plain.pub -m m.mlxb/manifest.json",
        "minisign -S -s " FIXTURES "plain.key -m m.mlxb/manifest.json && ! \"$0\" verify m.mlxb",
        "minisign -S -s " FIXTURES
        "plain.key -t 'mlxcel-bundle 3' -m m.mlxb/manifest.json && \"$0\" verify "
        "m.mlxb"};
    for (size_t i = 0; i < 3; ++i) {
      char script[1024];
      snprintf(script, sizeof script, "cd \"$1\" && %s", steps[i]);
      if (shell(script, &out)) CHECK_FAIL("%s\n%s", steps[i], out);
      mlx_free(out);
    }
  }
  end();
}

// With --no-weights, weights may be missing from a bundle. verify reports what it could not check.
TEST(verify_reports_missing_weights_as_unchecked) {
  begin();
  write_bundle(true);
  command_t run;
  char bundle[256], *out;
  snprintf(bundle, sizeof bundle, "%s/m.mlxb", folder);
  EXPECT(0, "m.mlxb/manifest.json.minisig", "sign", "-s", FIXTURES "plain.key", bundle);
  RUN(&run, "verify", "-p", FIXTURES "plain.pub", bundle);
  CHECK_TEXT(run.err, "");  // complete
  command_free(&run);
  CHECK_INT(shell("cd \"$1/m.mlxb\" && mv weights.irpa ../$(sha256sum weights.irpa | cut -c1-64).irpa", NULL),
            0);
  RUN(&run, "verify", "--no-weights", "-p", FIXTURES "plain.pub", bundle);
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.err, "weights.irpa: not in the bundle, found by digest: ");
  command_free(&run);
  CHECK_INT(shell("cd \"$1\" && for f in *.irpa; do printf heights > $f; done", NULL), 0);
  EXPECT(MLX_INVALID_INPUT, ".irpa' does not match the bundle's manifest", "verify", "--no-weights", "-p",
         FIXTURES "plain.pub", bundle);
  CHECK_INT(shell("cd \"$1\" && rm *.irpa", NULL), 0);
  RUN(&run, "verify", "--no-weights", "-p", FIXTURES "plain.pub", bundle);
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(
      run.err,
      "weights.irpa: not in the bundle, not checked: it is looked up by digest when the model runs\n");
  command_free(&run);
  CHECK_INT(shell("\"$0\" show \"$1/m.mlxb\"", &out), 0);
  CHECK_CONTAINS(out, "missing       weights.irpa, found by its digest: sha256:");
  mlx_free(out);
  end();
}

// A malicious bundle may contain a symbolic link at the path of its signature.
TEST(sign_does_not_follow_a_symbolic_link) {
  begin();
  write_bundle(true);
  char bundle[256], *precious;
  snprintf(bundle, sizeof bundle, "%s/m.mlxb", folder);
  write_text("precious", "mine");
  CHECK(!symlink("../precious", in_folder("m.mlxb/manifest.json.minisig")));
  EXPECT(0, "m.mlxb/manifest.json.minisig", "sign", "-s", FIXTURES "plain.key", bundle);
  precious = read_text("precious");
  CHECK_TEXT(precious, "mine");
  mlx_free(precious);
  EXPECT(0, "m.mlxb: signed by", "verify", "-p", FIXTURES "plain.pub", bundle);
  EXPECT(0, "precious", "sign", "-s", FIXTURES "plain.key", "-x", in_folder("precious"),
         bundle);  // a path that the user names is written
  EXPECT(0, "m.mlxb: signed by", "verify", "-p", FIXTURES "plain.pub", "-x", in_folder("precious"), bundle);
  end();
}

// The signature is the last member of the archive; a second signature replaces it. tar and minisign accept
// the result.
TEST(single_file_bundle_contains_its_signature) {
  begin();
  write_bundle(true);
  char bundle[256], *out;
  snprintf(bundle, sizeof bundle, "%s/one.mlxb", folder);
  CHECK_INT(
      shell("cd \"$1\" && tar cf one.mlxb -C m.mlxb manifest.json model.vmfb tokenizer.json weights.irpa",
            NULL),
      0);
  EXPECT(MLX_NOT_FOUND, "one.mlxb/manifest.json.minisig does not exist", "verify", bundle);
  EXPECT(0, "one.mlxb", "sign", "-s", FIXTURES "plain.key", "-t",
         "a first one, which is longer than the second that takes its place", bundle);
  EXPECT(0, "one.mlxb", "sign", "-s", FIXTURES "plain.key", "-t", "second", bundle);
  EXPECT(0, "", "trust", "add", FIXTURES "plain.pub");
  EXPECT(0, "one.mlxb: signed by plain.pub, key 9CA35E82975492BB: mlxcel-bundle\tsecond", "verify", bundle);
  CHECK_INT(shell("cd \"$1\" && tar tf one.mlxb", &out), 0);
  CHECK_TEXT(out, "manifest.json\nmodel.vmfb\ntokenizer.json\nweights.irpa\nmanifest.json.minisig\n");
  mlx_free(out);
  CHECK_INT(shell("cd \"$1\" && mkdir out && tar xf one.mlxb -C out && \"$0\" verify out && tar cf "
                  "again.mlxb -C out . && \"$0\" verify again.mlxb",
                  NULL),
            0);
  if (has_minisign())
    CHECK_INT(shell("cd \"$1\" && minisign -V -p " FIXTURES "plain.pub -m out/manifest.json", NULL), 0);
  CHECK_INT(shell("cd \"$1\" && printf kode > m.mlxb/model.vmfb && tar cf bad.mlxb -C m.mlxb . -C ../out "
                  "manifest.json.minisig",
                  NULL),
            0);
  snprintf(bundle, sizeof bundle, "%s/bad.mlxb", folder);
  EXPECT(MLX_INVALID_INPUT, "bad.mlxb/model.vmfb' does not match the bundle's manifest", "verify", bundle);
  end();
}

// ----------------------------------------------------------------------------------------------------------
// minisign

// Makes one key with minisign's full scrypt cost, which takes 1 GiB of memory and some seconds.
TEST(minisign_and_mlxcel_accept_each_others_files) {
  begin();
  const bool installed = has_minisign();
  char *out;
  write_text("f", "hello");
  CHECK_INT(shell("cd \"$1\" && \"$0\" keygen -W -o ours && MLXCEL_PASSWORD=tiger \"$0\" keygen -o locked && "
                  "\"$0\" sign -s ours.key -t 'by us' f",
                  NULL),
            0);
  char *locked = read_text("locked.key");
  CHECK_CONTAINS(locked, "\nRWRTY0Iy");            // "Ed" "Sc" "B2"
  CHECK_CONTAINS(locked, "AAACAAAAAAAAAEAAAAAA");  // 2^25 operations and 2^30 bytes, as in minisign
  mlx_free(locked);
  if (!installed) {
    end();
    SKIP("minisign is not installed");
  }
  // clang-format off
  static const char *const steps[] = {
      // Our signature and keys, checked by minisign.
      "minisign -V -p ours.pub -m f | grep -q 'Trusted comment: by us'",
      "minisign -V -P \"$(tail -n 1 ours.pub)\" -m f",
      "minisign -S -s ours.key -m f -t 'by our key' && \"$0\" verify -p ours.pub f | grep -q 'by our key'",
      "echo tiger | minisign -S -s locked.key -m f -t 'locked' && \"$0\" verify -p locked.pub f",
      // minisign's keys and signatures, checked by us.
      "minisign -G -W -p m.pub -s m.key && \"$0\" sign -s m.key f && minisign -V -p m.pub -m f",
      "\"$0\" trust add m.pub && \"$0\" verify f | grep -q 'signed by m.pub'",
      "minisign -S -s m.key -m f && \"$0\" verify f && minisign -S -l -s m.key -m f && \"$0\" verify f",
      // With little memory, minisign encrypts a key quickly.
      ("(ulimit -v 60000; printf 'a b\\na b\\n' | minisign -G -p e.pub -s e.key) && "
       "echo 'a b' | \"$0\" sign -s e.key f && minisign -V -p e.pub -m f"),
  };
  // clang-format on
  for (size_t i = 0; i < sizeof steps / sizeof *steps; ++i) {
    char script[1024];
    snprintf(script, sizeof script, "cd \"$1\" && %s", steps[i]);
    if (shell(script, &out)) CHECK_FAIL("%s\n%s", steps[i], out);
    mlx_free(out);
  }
  end();
}

TEST_MAIN(CASE(keygen_replaces_a_pair_only_with_force), CASE(failed_keygen_keeps_the_old_pair),
          CASE(password_comes_from_environment_or_stdin), CASE(typed_password_is_not_echoed),
          CASE(verify_accepts_only_trusted_keys), CASE(verify_checks_every_file_and_reports_every_failure),
          CASE(large_file_is_signed_with_constant_memory), CASE(trust_manages_a_folder_of_keys),
          CASE(trusted_folder_must_not_be_writable_by_others),
          CASE(trusted_key_must_not_be_writable_by_others), CASE(keys_with_equal_ids_are_distinguished),
          CASE(bundle_signature_covers_every_file), CASE(key_files_with_a_nul_or_too_many_bytes_are_refused),
          CASE(signature_of_a_plain_file_is_not_accepted_for_a_bundle),
          CASE(verify_reports_missing_weights_as_unchecked), CASE(sign_does_not_follow_a_symbolic_link),
          CASE(single_file_bundle_contains_its_signature), CASE(minisign_and_mlxcel_accept_each_others_files))
