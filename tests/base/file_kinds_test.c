// Files that are not regular: a FIFO, a device, a socket or a folder with the name of a model, of a part of a
// model or of a key. Each is refused by name, and no call waits for a writer.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/memory.h"
#include "models/import/source.h"
#include "tests/support/check.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define TINY_GGUF MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama.gguf"

// A call that waits for a writer must end the program, not the patience of the test run.
static void begin(void) {
  alarm(20);
  strcpy(folder, "/tmp/mlxcel-kinds-XXXXXX");
  CHECK(mkdtemp(folder));
}

static void end(void) { CHECK_OK(mlx_remove_tree(folder)); }

static void make_socket(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  CHECK(fd >= 0 && !bind(fd, (const struct sockaddr *)&address, sizeof address));
  close(fd);
}

static void check_failed(command_t *run, int code, const char *part) {
  if (run->exit_code != code) CHECK_FAIL("exit status %d, expected %d: %s", run->exit_code, code, run->err);
  CHECK_CONTAINS(run->err, part);
  command_free(run);
}

TEST(every_reader_refuses_what_is_not_a_regular_file) {
  begin();
  CHECK(!mkfifo(in_folder("pipe"), 0600));
  make_socket(in_folder("socket"));
  const struct {
    const char *path, *kind;
  } cases[] = {{in_folder("pipe"), "is a pipe, not a regular file"},
               {in_folder("socket"), "is a special file, not a regular file"},
               {folder, "is a folder, not a regular file"},
               {"/dev/zero", "is a device, not a regular file"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    char *bytes, hex[MLX_DIGEST_HEX];
    size_t length;
    mlx_map_t map;
    CHECK_ERROR(mlx_map_file(cases[i].path, &map), MLX_INVALID_INPUT, cases[i].kind);
    CHECK_ERROR(mlx_read_file(cases[i].path, 100, &bytes, &length), MLX_INVALID_INPUT, cases[i].kind);
    CHECK_ERROR(mlx_digest_file(cases[i].path, NULL, hex), MLX_INVALID_INPUT, cases[i].kind);
    CHECK_ERROR(mlx_copy_file(cases[i].path, in_folder("copy")), MLX_INVALID_INPUT, cases[i].kind);
  }
  end();
}

TEST(an_input_of_the_user_may_be_a_pipe) {
  begin();
  command_t run;
  const char *const argv[] = {"bash", "-c", MLXCEL_BINARY " tokenize -m " TINY " -f <(printf abc)", NULL};
  command_start(&run, argv);
  command_wait(&run);
  CHECK_INT(run.exit_code, 0);
  CHECK(run.out_length > 0);
  command_free(&run);
  end();
}

TEST(show_refuses_a_pipe_a_device_and_a_folder_with_the_name_of_a_model) {
  begin();
  command_t run;
  CHECK(!mkfifo(in_folder("m.gguf"), 0600));
  RUN(&run, "show", in_folder("m.gguf"));
  check_failed(&run, MLX_INVALID_INPUT, "is a pipe, not a regular file");
  RUN(&run, "show", "/dev/zero");
  check_failed(&run, MLX_INVALID_INPUT, "is a device, not a regular file");
  CHECK_OK(mlx_make_dirs(in_folder("d.gguf"), 0700));
  RUN(&run, "show", in_folder("d.gguf"));
  check_failed(&run, MLX_NOT_FOUND, "it is a folder: pass the path of the GGUF file in it");
  CHECK(!mkfifo(in_folder("d.gguf/config.json"), 0600));
  RUN(&run, "show", in_folder("d.gguf"));
  check_failed(&run, MLX_INVALID_INPUT, "config.json' is a pipe, not a regular file");
  end();
}

TEST(list_leaves_out_what_is_not_a_regular_file) {
  begin();
  command_t run;
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);
  CHECK_OK(mlx_make_dirs(in_folder("cache/models/d.gguf"), 0700));
  CHECK(!mkfifo(in_folder("cache/models/pipe.gguf"), 0600));
  CHECK(!mkfifo(in_folder("cache/models/bundle.mlxb"), 0600));
  make_socket(in_folder("cache/models/socket.gguf"));
  CHECK_OK(mlx_copy_file(TINY_GGUF, in_folder("cache/models/real.gguf")));
  RUN(&run, "list", "--json");
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.out, "real.gguf");
  CHECK(!strstr(run.out, "pipe.gguf") && !strstr(run.out, "socket.gguf") && !strstr(run.out, "d.gguf"));
  CHECK(!strstr(run.out, "bundle.mlxb"));
  command_free(&run);
  end();
}

// A part that exists but is not a regular file is named as such, not as missing.
TEST(a_part_of_a_split_model_must_be_a_regular_file) {
  static const uint8_t
      first[] =  // GGUF 3, no tensors, split.count = 2, split.no = 0, split.tensors.count = 0
      "GGUF\3\0\0\0"
      "\0\0\0\0\0\0\0\0"
      "\4\0\0\0\0\0\0\0"
      "\24\0\0\0\0\0\0\0general.architecture\10\0\0\0\5\0\0\0\0\0\0\0llama"
      "\13\0\0\0\0\0\0\0split.count\2\0\0\0\2\0"
      "\10\0\0\0\0\0\0\0split.no\2\0\0\0\0\0"
      "\23\0\0\0\0\0\0\0split.tensors.count\5\0\0\0\0\0\0";
  begin();
  mlx_source_t *source;
  CHECK_OK(mlx_write_file(in_folder("m-00001-of-00002.gguf"), first, sizeof first));
  CHECK_ERROR(mlx_source_open(in_folder("m-00001-of-00002.gguf"), &source), MLX_NOT_FOUND, "is missing");
  CHECK(!mkfifo(in_folder("m-00002-of-00002.gguf"), 0600));
  CHECK_ERROR(mlx_source_open(in_folder("m-00001-of-00002.gguf"), &source), MLX_INVALID_INPUT,
              "m-00002-of-00002.gguf' is a pipe, not a regular file");
  CHECK(!unlink(in_folder("m-00002-of-00002.gguf")));
  CHECK_OK(mlx_make_dirs(in_folder("m-00002-of-00002.gguf"), 0700));
  CHECK_ERROR(mlx_source_open(in_folder("m-00001-of-00002.gguf"), &source), MLX_INVALID_INPUT,
              "m-00002-of-00002.gguf' is a folder, not a regular file");
  end();
}

TEST(a_trusted_key_must_be_a_regular_file) {
  begin();
  command_t run;
  setenv("MLXCEL_TRUSTED", folder, 1);
  CHECK(!mkfifo(in_folder("k.pub"), 0600));
  RUN(&run, "trust", "list");
  check_failed(&run, MLX_INVALID_INPUT, "k.pub' is a pipe, not a regular file");
  RUN(&run, "trust", "add", in_folder("k.pub"));
  check_failed(&run, MLX_INVALID_INPUT, "k.pub' is a pipe, not a regular file");
  CHECK(!unlink(in_folder("k.pub")));
  CHECK_OK(mlx_make_dirs(in_folder("k.pub"), 0700));
  RUN(&run, "trust", "list");
  check_failed(&run, MLX_INVALID_INPUT, "k.pub' is a folder, not a regular file");
  unsetenv("MLXCEL_TRUSTED");
  end();
}

TEST_MAIN(POSIX_CASE(every_reader_refuses_what_is_not_a_regular_file),
          POSIX_CASE(an_input_of_the_user_may_be_a_pipe),
          POSIX_CASE(show_refuses_a_pipe_a_device_and_a_folder_with_the_name_of_a_model),
          POSIX_CASE(list_leaves_out_what_is_not_a_regular_file),
          POSIX_CASE(a_part_of_a_split_model_must_be_a_regular_file),
          POSIX_CASE(a_trusted_key_must_be_a_regular_file))
