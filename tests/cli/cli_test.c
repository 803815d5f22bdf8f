// The command line: output streams, error messages and files left behind.
#include "base/text.h"
#include "tests/support/contract.h"
#include "tests/support/folder.h"
#include "tests/support/golden.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define TINY_GGUF MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama.gguf"
#define TINY_GOLDENS MLXCEL_SOURCE_DIR "/tests/goldens/tiny-llama.json"
#define SMOLLM2 MLXCEL_MODELS "/SmolLM2-135M-Instruct.Q4_1.gguf"

static void make_folder(void) {
  strcpy(folder, "/tmp/mlxcel-cli-XXXXXX");
  CHECK(mkdtemp(folder));
}

static void remove_folder(void) { CHECK_OK(mlx_remove_tree(folder)); }

// Runs with an empty cache.
#define RUN_FRESH(command, ...)                    \
  do {                                             \
    setenv("MLXCEL_CACHE", in_folder("cache"), 1); \
    RUN(command, __VA_ARGS__);                     \
    setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);  \
  } while (0)

// Expects exit status |code|, an empty stdout and |part| on stderr.
static void check_refused(command_t *run, int code, const char *part) {
  if (run->exit_code != code) CHECK_FAIL("exit status %d, expected %d: %s", run->exit_code, code, run->err);
  CHECK_TEXT(run->out, "");
  CHECK_CONTAINS(run->err, part);
  command_free(run);
}

// ----------------------------------------------------------------------------------------------------------
// run

TEST(stdout_carries_only_generated_text) {
  command_t plain, json;
  RUN(&plain, "run", "--temp", "0", "-m", TINY, "-p", "the quick brown", "-n", "24");
  RUN(&json, "run", "--temp", "0", "-m", TINY, "-p", "the quick brown", "-n", "24", "--json");
  CHECK_INT(plain.exit_code, 0);
  mlx_json_t parsed;
  CHECK_OK(mlx_json_parse("stdout", json.out, json.out_length, &parsed));
  plain.out[plain.out_length - 1] = 0;  // a newline, which the text does not have
  CHECK_TEXT(plain.out, yyjson_get_str(yyjson_obj_get(parsed.root, "text")));
  mlx_json_close(&parsed);
  command_free(&plain);
  command_free(&json);
}

TEST(json_output_has_every_documented_field) {
  command_t run;
  RUN(&run, "run", "--temp", "0", "-m", TINY, "-p", "the", "-n", "3", "--json", "-t", "1", "--device", "cpu");
  CHECK_INT(run.exit_code, 0);
  mlx_json_t json;
  CHECK_OK(mlx_json_parse("stdout", run.out, run.out_length, &json));
  CHECK_INT(yyjson_arr_size(yyjson_obj_get(json.root, "output_ids")), 3);
  CHECK_INT(yyjson_arr_size(yyjson_obj_get(json.root, "prompt_ids")), 1);
  CHECK(yyjson_is_str(yyjson_obj_get(json.root, "text")));
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(json.root, "finish_reason")), "length");
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(json.root, "device")), "cpu");
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(json.root, "dtype")), "f32");
  CHECK_INT(yyjson_get_int(yyjson_obj_get(json.root, "threads")), 1);
  yyjson_val *timings = yyjson_obj_get(json.root, "timings");
  CHECK(yyjson_is_real(yyjson_obj_get(timings, "compile_seconds")));
  CHECK(yyjson_get_real(yyjson_obj_get(timings, "load_seconds")) > 0);
  CHECK(yyjson_get_real(yyjson_obj_get(timings, "prompt_seconds")) > 0);
  CHECK(yyjson_get_real(yyjson_obj_get(timings, "decode_seconds")) > 0);
  mlx_json_close(&json);
  command_free(&run);
}

// Makes the second greedy token of the golden prompt the end-of-text token: generation must stop there.
TEST(end_of_text_stops_generation_unless_ignored) {
  make_folder();
  command_t run;
  RUN(&run, "compile", TINY, "-o", in_folder("m.mlxb"));
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  char *manifest;
  CHECK_OK(mlx_read_file(in_folder("m.mlxb/manifest.json"), 1 << 20, &manifest, NULL));
  char *eos = strstr(manifest, "\"eos\": [2, 0]");
  CHECK(eos);
  memcpy(eos, "\"eos\": [218 ]", 13);
  CHECK_OK(mlx_write_file(in_folder("m.mlxb/manifest.json"), manifest, strlen(manifest)));
  mlx_free(manifest);
  RUN(&run, "run", "--temp", "0", "-m", in_folder("m.mlxb"), "-p", "the quick brown", "-n", "9", "--json");
  check_refused(&run, MLX_NOT_FOUND, "it is not signed, and this machine has no record of compiling it");
  RUN(&run, "run", "--temp", "0", "-m", in_folder("m.mlxb"), "-p", "the quick brown", "-n", "9", "--json",
      "--allow-unsigned");
  CHECK_CONTAINS(run.out, "\"output_ids\": [142, 218]");
  CHECK_CONTAINS(run.out, "\"finish_reason\": \"stop\"");
  command_free(&run);
  RUN(&run, "run", "--temp", "0", "-m", in_folder("m.mlxb"), "-p", "the quick brown", "-n", "9", "--json",
      "--ignore-eos", "--allow-unsigned");
  CHECK_CONTAINS(run.out, "\"output_ids\": [142, 218, 177, 4, 129, 92, 159, 114, 218]");
  command_free(&run);
  remove_folder();
}

TEST(prompt_from_file_or_pipe_equals_the_flag) {
  make_folder();
  command_t flag, file, pipe;
  CHECK_OK(mlx_write_file(in_folder("prompt"), "the quick brown\n", 16));
  RUN(&flag, "run", "--temp", "0", "-m", TINY, "-p", "the quick brown", "-n", "8");
  RUN(&file, "run", "--temp", "0", "-m", TINY, "-f", in_folder("prompt"), "-n", "8");
  command_start(&pipe, (const char *const[]){"/bin/sh", "-c",
                                             "echo the quick brown | '" MLXCEL_BINARY
                                             "' run --temp 0 -m '" TINY "' -f - -n 8",
                                             NULL});
  command_wait(&pipe);
  CHECK_TEXT(file.out, flag.out);
  CHECK_TEXT(pipe.out, flag.out);
  command_free(&flag);
  command_free(&file);
  command_free(&pipe);
  remove_folder();
}

TEST(a_prompt_longer_than_the_context_is_refused_before_compiling) {
  make_folder();
  char prompt[4001];
  memset(prompt, 'z', 4000);
  prompt[4000] = 0;
  command_t run;
  RUN_FRESH(&run, "run", "--temp", "0", "-m", TINY, "-p", prompt, "-c", "64");
  CHECK_CONTAINS(run.err, "hint: ");
  CHECK(!mlx_is_dir(in_folder("cache/vmfb")));
  check_refused(&run, MLX_USAGE, "tokens; the context holds 64");
  RUN_FRESH(&run, "run", "--temp", "0", "-m", TINY, "-p", "");
  CHECK(!mlx_is_dir(in_folder("cache/vmfb")));
  check_refused(&run, MLX_USAGE, "the prompt is empty");
  RUN(&run, "compile", TINY, "-o", in_folder("m.mlxb"));
  command_free(&run);
  CHECK(!truncate(in_folder("m.mlxb/weights.irpa"), 0));  // would be an error if it were read
  RUN(&run, "run", "--temp", "0", "-m", in_folder("m.mlxb"), "-p", prompt, "-c", "64");
  check_refused(&run, MLX_USAGE, "tokens; the context holds 64");
  remove_folder();
}

TEST(device_cuda_without_a_usable_gpu_is_an_error_with_the_reason) {
  command_t run;
  RUN(&run, "run", "--temp", "0", "-m", TINY, "-p", "the quick brown", "-n", "4", "--device", "cuda",
      "--json");
  if (!run.exit_code) {
    CHECK_CONTAINS(run.out, "\"output_ids\": [142, 218, 177, 4]");
    CHECK_CONTAINS(run.out, "\"device\": \"cuda\"");
    command_free(&run);
    SKIP("this machine has a usable GPU; its tokens equal Hugging Face's");
  }
  CHECK_CONTAINS(run.err, "hint: ");
  check_refused(&run, MLX_UNAVAILABLE, "no usable NVIDIA GPU: ");
}

TEST(the_binary_does_not_link_nvidia_libraries) {
  command_t ldd;
  command_start(&ldd, (const char *const[]){"/usr/bin/ldd", MLXCEL_BINARY, NULL});
  command_wait(&ldd);
  CHECK_INT(ldd.exit_code, 0);
  CHECK(!strstr(ldd.out, "libcuda") && !strstr(ldd.out, "libnv"));
  command_free(&ldd);
}

TEST(verbose_prints_the_kernels_on_stderr) {
  make_folder();
  command_t run;
  RUN(&run, "run", "--temp", "0", "-m", TINY, "-p", "the quick brown", "-n", "2", "-v", "--device", "cpu",
      "--json");
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.out, "\"output_ids\": [142, 218]");
  CHECK_CONTAINS(run.err, "kernels: network\n");
  command_free(&run);
  RUN(&run, "compile", TINY, "-v", "-o", in_folder("m.mlxb"));
  CHECK_INT(run.exit_code, 0);
  CHECK_TEXT(run.out, "");
  CHECK_CONTAINS(run.err, "target: cpu:host\nkernels: network\n");
  command_free(&run);
  remove_folder();
}

// ----------------------------------------------------------------------------------------------------------
// compile

TEST(a_bundle_generates_the_tokens_of_its_source) {
  make_folder();
  command_t run, again;
  RUN(&run, "compile", TINY_GGUF, "-o", in_folder("tiny.mlxb/"));
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  check_golden_runs(in_folder("tiny.mlxb"), "f32", TINY_GOLDENS, "prompt");
  RUN(&again, "compile", TINY_GGUF, "-o", in_folder("tiny.mlxb"));  // replaces the bundle
  CHECK_INT(again.exit_code, 0);
  command_free(&again);
  RUN(&again, "run", "-m", in_folder("tiny.mlxb"), "-p", "the", "-n", "1", "-c", "4096");
  check_refused(&again, MLX_USAGE, "supports a context of 1 to 2048 tokens, not 4096");
  remove_folder();
}

TEST(a_bundle_keeps_its_dtype_and_defaults_to_f32) {
  make_folder();
  command_t run;
  RUN(&run, "compile", TINY, "--dtype", "bf16", "-o", in_folder("m.mlxb"));
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  RUN(&run, "run", "-m", in_folder("m.mlxb"), "-p", "the quick brown", "-n", "2");
  CHECK_CONTAINS(run.err, ", bf16\n");
  command_free(&run);
  RUN(&run, "run", "-m", in_folder("m.mlxb"), "-p", "x", "--dtype", "f32");
  CHECK_CONTAINS(run.err, "--dtype f32");
  check_refused(&run, MLX_USAGE, "was compiled with bf16 weights and bf16 activations, not for --dtype f32");
  char *manifest;
  CHECK_OK(mlx_read_file(in_folder("m.mlxb/manifest.json"), 1 << 20, &manifest, NULL));
  char *field = strstr(manifest, "\"dtype\": \"bf16\"");
  CHECK(field);
  memcpy(field, "\"atype\"", 7);  // bundles of older versions have no dtype field
  CHECK_OK(mlx_write_file(in_folder("m.mlxb/manifest.json"), manifest, strlen(manifest)));
  mlx_free(manifest);
  RUN(&run, "run", "-m", in_folder("m.mlxb"), "-p", "x", "-n", "1", "--json", "--allow-unsigned");
  CHECK_CONTAINS(run.out, "\"dtype\": \"f32\"");
  command_free(&run);
  remove_folder();
}

TEST(compile_overwrites_only_bundles) {
  make_folder();
  command_t run;
  CHECK_OK(mlx_make_dirs(in_folder("precious"), 0700));
  CHECK_OK(mlx_write_file(in_folder("precious/manifest.json"), "{\"name\": \"somebody else's\"}", 26));
  RUN_FRESH(&run, "compile", TINY, "-o", in_folder("precious"));
  CHECK(!mlx_is_dir(in_folder("cache")));  // refused before any work
  check_refused(&run, MLX_USAGE, "it is a folder, but not a compiled model");
  CHECK(mlx_is_file(in_folder("precious/manifest.json")));
  RUN(&run, "compile", TINY, "-o", in_folder("m.mlxb"));
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  CHECK_OK(mlx_write_file(in_folder("m.mlxb/notes.txt"), "x", 1));
  RUN(&run, "compile", TINY, "-o", in_folder("m.mlxb"));
  check_refused(&run, MLX_USAGE, "it contains 'notes.txt', which is not part of a compiled model");
  CHECK(!mkfifo(in_folder("pipe"), 0600));
  RUN(&run, "compile", TINY, "-o", in_folder("pipe"));
  check_refused(&run, MLX_USAGE, "it exists and is not a compiled model");
  RUN(&run, "compile", TINY, "-o", "-");
  check_refused(&run, MLX_USAGE, "cannot write a bundle to stdout");
  remove_folder();
}

TEST(compile_writes_through_links_and_devices) {
  command_t run;
  struct stat link;
  RUN(&run, "compile", TINY, "--emit", "stablehlo", "--ctx", "64", "-o", "/dev/stdout");
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.out, "module @mlxcel {");
  command_free(&run);
  CHECK(!lstat("/dev/stdout", &link) && S_ISLNK(link.st_mode));
  make_folder();
  CHECK(!symlink(in_folder("target.mlir"), in_folder("link.mlir")));
  for (int i = 0; i < 2; ++i) {  // first a dangling link, then a link to a file
    RUN(&run, "compile", TINY, "--emit", "stablehlo", "--ctx", "64", "-o", in_folder("link.mlir"));
    CHECK_INT(run.exit_code, 0);
    command_free(&run);
    CHECK(!lstat(in_folder("link.mlir"), &link) && S_ISLNK(link.st_mode) &&
          mlx_is_file(in_folder("target.mlir")));
  }
  remove_folder();
}

TEST(compile_works_on_a_memory_file_system) {
  if (!mlx_is_dir("/dev/shm")) SKIP("there is no /dev/shm");
  strcpy(folder, "/dev/shm/mlxcel-cli-XXXXXX");
  CHECK(mkdtemp(folder));
  command_t run;
  RUN(&run, "compile", TINY, "--emit", "stablehlo", "-o", in_folder("long.mlir"));
  command_free(&run);
  RUN(&run, "compile", TINY, "--emit", "stablehlo", "--ctx", "64", "-o", in_folder("long.mlir"));
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  char *text, *golden;
  CHECK_OK(mlx_read_file(in_folder("long.mlir"), SIZE_MAX, &text, NULL));
  CHECK_OK(
      mlx_read_file(MLXCEL_SOURCE_DIR "/tests/goldens/tiny-llama.stablehlo.mlir", SIZE_MAX, &golden, NULL));
  CHECK_TEXT(text, golden);
  mlx_free(text);
  mlx_free(golden);
  remove_folder();
}

TEST(concurrent_writers_of_one_bundle_all_succeed) {
  make_folder();
  command_t runs[6], run;
  char out[128];
  snprintf(out, sizeof out, "%s", in_folder("m.mlxb"));
  CHECK_OK(mlx_make_dirs(in_folder("m.mlxb.tmp.999999.backup"),
                         0700));  // another program's folder, despite its name
  for (int i = 0; i < 6; ++i)
    command_start(&runs[i], (const char *const[]){MLXCEL_BINARY, "compile", TINY, "-o", out, NULL});
  for (int i = 0; i < 6; ++i) {
    command_wait(&runs[i]);
    if (runs[i].exit_code) CHECK_FAIL("writer %d: exit status %d: %s", i, runs[i].exit_code, runs[i].err);
    command_free(&runs[i]);
  }
  RUN(&run, "run", "--temp", "0", "-m", out, "-p", "the quick brown", "-n", "2", "--json", "--device", "cpu");
  CHECK_CONTAINS(run.out, "\"output_ids\": [142, 218]");
  command_free(&run);
  CHECK(mlx_is_dir(in_folder("m.mlxb.tmp.999999.backup")));
  remove_folder();
}

TEST(a_closed_pipe_prints_no_error) {
  command_t run;
  command_start(&run, (const char *const[]){"/bin/sh", "-c",
                                            "'" MLXCEL_BINARY "' run -m '" TINY
                                            "' -p 'the quick brown' --ignore-eos | head -c 3",
                                            NULL});
  command_wait(&run);
  CHECK_INT(run.exit_code, 0);
  CHECK(!strstr(run.err, "cannot write"));
  command_free(&run);
}

// Compiles |model| with a compiler that runs |body| and then writes a module.
static void start_with_compiler(command_t *run, const char *body, const char *model, const char *cache,
                                const char *bundle) {
  char script[512], compiler[128], paths[2][128];
  snprintf(script, sizeof script,
           "#!/bin/sh\n[ \"$1\" = --version ] && { echo 'IREE compiler version 3.13.0'; exit 0; }\n"
           "%s\nwhile [ $# -gt 0 ]; do [ \"$1\" = -o ] && echo fake > \"$2\"; shift; done\n",
           body);
  snprintf(compiler, sizeof compiler, "%s", in_folder("compiler"));
  snprintf(paths[0], sizeof paths[0], "%s", in_folder(model));
  snprintf(paths[1], sizeof paths[1], "%s", in_folder(bundle));
  CHECK_OK(mlx_write_file(compiler, script, strlen(script)));
  CHECK(!chmod(compiler, 0755));
  setenv("MLXCEL_CACHE", in_folder(cache), 1);
  command_start(run, (const char *const[]){MLXCEL_BINARY, "compile", paths[0], "--iree-compile", compiler,
                                           "-o", paths[1], NULL});
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
}

static void compile_with_fake(const char *cache, const char *bundle) {
  command_t run;
  start_with_compiler(&run, "", "m.gguf", cache, bundle);
  command_wait(&run);
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  command_free(&run);
}

// The file is replaced during compilation: later compilations must get the weights of the new file.
TEST(a_model_that_changes_during_compilation_is_refused) {
  make_folder();
  char *bytes, *weights[2];
  size_t length, lengths[2];
  CHECK_OK(mlx_copy_file(TINY_GGUF, in_folder("m.gguf")));
  CHECK_OK(mlx_read_file(TINY_GGUF, 1 << 26, &bytes, &length));
  bytes[length - 4] ^= 1;  // another weight
  CHECK_OK(mlx_write_file(in_folder("other.gguf"), bytes, length));
  mlx_free(bytes);
  command_t run;
  start_with_compiler(&run, "(cd $(dirname $0); touch started; until [ -e replaced ]; do sleep 0.05; done)",
                      "m.gguf", "cache", "x.mlxb");
  for (int i = 0; i < 6000 && !mlx_is_file(in_folder("started")); ++i) usleep(10000);
  CHECK(!rename(in_folder("other.gguf"), in_folder("m.gguf")));
  CHECK_OK(mlx_write_file(in_folder("replaced"), "", 0));
  command_wait(&run);
  check_refused(&run, MLX_IO, "changed while it was being read");
  CHECK(!mlx_is_dir(in_folder("x.mlxb")));
  compile_with_fake("cache", "x.mlxb");
  compile_with_fake("fresh", "y.mlxb");
  CHECK_OK(mlx_read_file(in_folder("x.mlxb/weights.irpa"), 1 << 26, &weights[0], &lengths[0]));
  CHECK_OK(mlx_read_file(in_folder("y.mlxb/weights.irpa"), 1 << 26, &weights[1], &lengths[1]));
  CHECK(lengths[0] == lengths[1] && !memcmp(weights[0], weights[1], lengths[0]));
  mlx_free(weights[0]);
  mlx_free(weights[1]);
  remove_folder();
}

// The compiler of this test ends only after the archive is in the cache.
TEST(weights_are_written_while_the_module_is_compiled) {
  make_folder();
  char body[256];
  CHECK_OK(mlx_copy_file(TINY_GGUF, in_folder("m.gguf")));
  snprintf(
      body, sizeof body,
      "n=0; until ls %s/*/entry.json > /dev/null 2>&1; do n=$((n+1)); [ $n -gt 300 ] && exit 3; sleep 0.1; "
      "done",
      in_folder("cache/weights"));
  command_t run;
  start_with_compiler(&run, body, "m.gguf", "cache", "x.mlxb");
  command_wait(&run);
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  CHECK(mlx_is_file(in_folder("x.mlxb/weights.irpa")));
  command_free(&run);
  remove_folder();
}

TEST(generation_stops_exactly_at_the_context_length) {
  command_t run;
  RUN(&run, "run", "-m", TINY, "-p", "the", "-c", "3", "--ignore-eos", "--json");
  CHECK_CONTAINS(run.out, "\"finish_reason\": \"context\"");
  mlx_json_t json;
  CHECK_OK(mlx_json_parse("stdout", run.out, run.out_length, &json));
  CHECK_INT(yyjson_arr_size(yyjson_obj_get(json.root, "output_ids")),
            3);  // two decode steps fill the context; the last position gives one more token
  mlx_json_close(&json);
  command_free(&run);
}

TEST(a_full_disk_behind_stdout_is_an_error) {
  command_t run;
  command_start(&run,
                (const char *const[]){"/bin/sh", "-c",
                                      "'" MLXCEL_BINARY "' run -m '" TINY "' -p b -n 1 > /dev/full", NULL});
  command_wait(&run);
  check_refused(&run, MLX_IO, "cannot write to stdout");
  command_start(&run,
                (const char *const[]){"/bin/sh", "-c", "'" MLXCEL_BINARY "' run --help > /dev/full", NULL});
  command_wait(&run);
  check_refused(&run, MLX_IO, "cannot write to stdout");
}

TEST(emit_writes_stablehlo_or_a_bare_vmfb) {
  make_folder();
  command_t run;
  RUN(&run, "compile", TINY, "--emit", "stablehlo", "--ctx", "64", "-o", "-");
  CHECK_INT(run.exit_code, 0);
  char *golden;
  CHECK_OK(
      mlx_read_file(MLXCEL_SOURCE_DIR "/tests/goldens/tiny-llama.stablehlo.mlir", SIZE_MAX, &golden, NULL));
  CHECK_TEXT(run.out, golden);
  mlx_free(golden);
  command_free(&run);
  RUN(&run, "compile", TINY, "--emit", "vmfb", "-o", in_folder("x.vmfb"));
  CHECK_INT(run.exit_code, 0);
  CHECK(mlx_is_file(in_folder("x.vmfb")));
  command_free(&run);
  RUN(&run, "compile", TINY, "--emit", "elf");
  check_refused(&run, MLX_USAGE, "--emit expects stablehlo or vmfb, not 'elf'");
  remove_folder();
}

TEST(a_supported_cpu_level_compiles_and_runs) {
  make_folder();
  command_t run;
  RUN(&run, "compile", TINY, "--target", "cpu:x86-64-v2", "--ctx", "64", "-o", in_folder("v2.mlxb"));
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  RUN(&run, "run", "--temp", "0", "-m", in_folder("v2.mlxb"), "-p", "the quick brown", "-n", "5", "--json");
  CHECK_CONTAINS(run.out, "\"output_ids\": [142, 218, 177, 4, 129]");
  command_free(&run);
  RUN(&run, "compile", TINY, "--target", "cpu:z80");
  CHECK_CONTAINS(run.err, "cpu:x86-64-v3");
  check_refused(&run, MLX_USAGE, "unknown target 'cpu:z80'");
  RUN(&run, "compile", TINY, "-o", "x.mlxb", "--target", "cuda:sm90");
  check_refused(&run, MLX_USAGE, "did you mean 'cuda:sm_90'?");
  remove_folder();
}

static void run_with_compiler(command_t *run, const char *script) {
  CHECK_OK(mlx_write_file(in_folder("tool"), script, strlen(script)));
  CHECK(!chmod(in_folder("tool"), 0755));
  setenv("MLXCEL_IREE_COMPILE", in_folder("tool"), 1);
  RUN_FRESH(run, "run", "-m", TINY, "-p", "the", "-n", "1");
  unsetenv("MLXCEL_IREE_COMPILE");
}

TEST(a_failing_compiler_is_reported_with_its_output_and_log) {
  make_folder();
  command_t run;
  run_with_compiler(&run, "#!/bin/sh\nexit 3\n");
  CHECK_CONTAINS(run.err, "printed nothing");
  CHECK_CONTAINS(run.err, "exit status 3");
  CHECK_CONTAINS(run.err, "--iree-llvmcpu-target-cpu=host");
  check_refused(&run, MLX_TOOL_FAILED, ".log");
  run_with_compiler(&run, "#!/bin/sh\nkill -KILL $$\n");
  CHECK_CONTAINS(run.err, "printed nothing");
  check_refused(&run, MLX_TOOL_FAILED, "signal 9 (Killed)");
  run_with_compiler(
      &run, "#!/bin/sh\necho working; echo 'x.mlir:3:1: error: no such op' >&2; echo more >&2; exit 1\n");
  CHECK_CONTAINS(run.err, "x.mlir:3:1: error: no such op");
  check_refused(&run, MLX_TOOL_FAILED, ".log");
  remove_folder();
}

TEST(compiling_smollm2_uses_less_than_1_gib) {
  make_folder();
  command_t run;
  RUN_FRESH(&run, "compile", SMOLLM2, "--ctx", "256", "-o", in_folder("x.mlxb"));
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  fprintf(stderr, "  peak memory of compile, iree-compile included: %ld MiB\n", run.peak_kib / 1024);
  if (!MLXCEL_SANITIZED) CHECK(run.peak_kib < 1024 * 1024);
  command_free(&run);
  remove_folder();
}

// ----------------------------------------------------------------------------------------------------------
// Bad input

TEST(invalid_arguments_are_refused_with_a_hint) {
  command_t run;
  RUN(&run, "run", "-m", TINY, "-p", "x", "--ignore-eso");
  CHECK_CONTAINS(run.err, "did you mean '--ignore-eos'?");
  check_refused(&run, MLX_USAGE, "unknown option '--ignore-eso'");
  RUN(&run, "run", "-m", TINY, "-p", "x", "-n", "many");
  check_refused(&run, MLX_USAGE, "option -n expects a whole number");
  RUN(&run, "run", "-m", TINY, "-p");
  check_refused(&run, MLX_USAGE, "option -p needs a value");
  RUN(&run, "run", "-m", TINY);
  check_refused(&run, MLX_USAGE, "no prompt was given");
  RUN(&run, "run", "-p", "x");
  check_refused(&run, MLX_USAGE, "no model was given");
  RUN(&run, "run", "-m", "/nowhere/model.gguf", "-p", "x");
  check_refused(&run, MLX_NOT_FOUND, "/nowhere/model.gguf");
  RUN(&run, "run", "-m", TINY, "-p", "x", "--device", "tpu");
  check_refused(&run, MLX_USAGE, "option --device expects cpu, cuda or auto");
  RUN(&run, "compile", TINY, "--dtype", "fp16");
  check_refused(&run, MLX_USAGE, "option --dtype expects auto, quantized, f32, bf16 or f16, not 'fp16'");
  RUN(&run, "run", "-m", TINY, "-p", "x", "--dtype", "int8");
  check_refused(&run, MLX_USAGE, "option --dtype expects auto, quantized, f32, bf16 or f16, not 'int8'");
  RUN(&run, "compile", TINY, "--ctx", "4096");
  check_refused(&run, MLX_USAGE, "the model supports 1 to 2048");
  RUN(&run, "rnu");
  CHECK_CONTAINS(run.err, "did you mean 'run'?");
  check_refused(&run, MLX_USAGE, "unknown verb 'rnu'");
}

// Runs the fixture with one config field changed; the error must name the field.
static void check_config_refused(const char *field, const char *value, int code, const char *part) {
  make_folder();
  char *config, changed[2048];
  CHECK_OK(mlx_make_dirs(in_folder("m"), 0700));
  static const char *const files[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                      "model.safetensors.index.json", "tokenizer.json"};
  for (int i = 0; i < 4; ++i) {
    char from[256], to[128];
    snprintf(from, sizeof from, "%s/%s", TINY, files[i]);
    snprintf(to, sizeof to, "%s/m/%s", folder, files[i]);
    CHECK_OK(mlx_copy_file(from, to));
  }
  CHECK_OK(mlx_read_file(TINY "/config.json", 1 << 20, &config, NULL));
  char key[64];
  snprintf(key, sizeof key, " \"%s\":", field);
  char *old = strstr(config, key);
  if (old) *strchr(old, '\n') = 0, memmove(old, old + strlen(old) + 1, strlen(old + strlen(old) + 1) + 1);
  snprintf(changed, sizeof changed, "{ \"%s\": %s,%s", field, value, config + 1);
  CHECK_OK(mlx_write_file(in_folder("m/config.json"), changed, strlen(changed)));
  mlx_free(config);
  command_t run;
  RUN(&run, "run", "-m", in_folder("m"), "-p", "x", "-n", "1", "-c", "0", "--device", "cpu");
  check_refused(&run, code, part);
  remove_folder();
}

TEST(an_unsupported_config_field_is_refused_by_name) {
  check_config_refused("model_type", "\"rwkv\"", MLX_UNSUPPORTED, "field 'model_type' is 'rwkv'");
  check_config_refused("model_type", "\"qwen_2\"", MLX_UNSUPPORTED, "did you mean 'qwen2'?");
  check_config_refused("hidden_act", "\"snake\"", MLX_UNSUPPORTED, "field 'hidden_act' is 'snake'");
  check_config_refused("attention_bias", "true", MLX_INVALID_INPUT,
                       "tensor 'model.layers.0.self_attn.q_proj.bias' is missing");
  check_config_refused("partial_rotary_factor", "0.5", MLX_UNSUPPORTED,
                       "field 'partial_rotary_factor' is 0.5");
  check_config_refused("rope_scaling", "{\"factor\": 8.0}", MLX_UNSUPPORTED, "field 'rope_scaling' is given");
  check_config_refused("rope_scaling", "{\"rope_type\": \"cubic\"}", MLX_UNSUPPORTED,
                       "field 'rope_scaling.rope_type' is 'cubic'");
  check_config_refused("num_key_value_heads", "3", MLX_INVALID_INPUT, "field 'num_key_value_heads' is 3");
  check_config_refused("hidden_size", "\"wide\"", MLX_INVALID_INPUT,
                       "field 'hidden_size' must be an integer");
  check_config_refused("hidden_size", "64", MLX_INVALID_INPUT, "has shape");
  check_config_refused("num_hidden_layers", "99999", MLX_INVALID_INPUT,
                       "config.json: field 'num_hidden_layers' must be between 1 and 1024");
  check_config_refused("max_position_embeddings", "1073741824", MLX_OUT_OF_MEMORY,
                       "a context of 1073741824 tokens needs 512.0 GiB of memory for its KV cache");
}

TEST(a_damaged_bundle_is_refused_by_name) {
  make_folder();
  command_t run;
  RUN(&run, "compile", TINY, "-o", in_folder("m.mlxb"));
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  CHECK(!truncate(in_folder("m.mlxb/weights.irpa"), 5000));
  RUN(&run, "run", "-m", in_folder("m.mlxb"), "-p", "x", "-n", "1");
  CHECK_CONTAINS(run.err, "weights.irpa");
  check_refused(&run, MLX_INVALID_INPUT, "its size is 5000 bytes, expected 163840");
  CHECK(!truncate(in_folder("m.mlxb/model.vmfb"), 1000));
  RUN(&run, "compile", TINY_GGUF, "-o", in_folder("n.mlxb"));
  command_free(&run);
  CHECK(!truncate(in_folder("n.mlxb/model.vmfb"), 1000));
  RUN(&run, "run", "-m", in_folder("n.mlxb"), "-p", "x", "-n", "1");
  CHECK(run.exit_code > 0);
  CHECK_CONTAINS(run.err, "model.vmfb");
  command_free(&run);
  remove_folder();
}

TEST(a_bundle_of_another_contract_is_refused_with_both_versions) {
  make_folder();
  command_t run;
  CHECK_OK(mlx_make_dirs(in_folder("m.mlxb"), 0700));
  static const char manifest[] = "{\"format\": \"mlxcel-bundle\", \"contract\": 7}";
  CHECK_OK(mlx_write_file(in_folder("m.mlxb/manifest.json"), manifest, strlen(manifest)));
  RUN(&run, "run", "-m", in_folder("m.mlxb"), "-p", "x", "-n", "1");
  check_refused(&run, MLX_UNSUPPORTED, "compiled for contract 7; this mlxcel runs contract " CONTRACT);
  remove_folder();
}

// ----------------------------------------------------------------------------------------------------------
// Other verbs

TEST(a_link_name_selects_the_verb) {
  char link[512];
  snprintf(link, sizeof link, "%s-run", MLXCEL_BINARY);
  command_t run;
  command_start(&run, (const char *const[]){link, "--temp", "0", "-m", TINY, "-p", "the quick brown", "-n",
                                            "2", "--json", NULL});
  command_wait(&run);
  CHECK_CONTAINS(run.out, "\"output_ids\": [142, 218]");
  command_free(&run);
  command_start(&run, (const char *const[]){MLXCEL_BINARY "-bench", "--help", NULL});
  command_wait(&run);
  CHECK_CONTAINS(run.out, "usage: mlxcel bench MODEL");
  CHECK_CONTAINS(run.out, "examples:\n  mlxcel bench ");
  command_free(&run);
}

TEST(help_and_version_go_to_stdout) {
  static const char *const verbs[] = {"run", "compile", "bench", "template", "cache", "doctor"};
  command_t run;
  for (int i = 0; i < 6; ++i) {
    RUN(&run, verbs[i], "--help");
    CHECK_INT(run.exit_code, 0);
    CHECK_CONTAINS(run.out, "usage: mlxcel ");
    CHECK_TEXT(run.err, "");
    command_free(&run);
  }
  RUN(&run, "--help");
  CHECK_CONTAINS(run.out, "compile a model ahead of time");
  command_free(&run);
  RUN(&run, "--version");
  CHECK_CONTAINS(run.out, "mlxcel 0.");
  command_free(&run);
  RUN(&run, "run", "--version");
  CHECK_CONTAINS(run.out, "mlxcel 0.");
  command_free(&run);
}

TEST(doctor_passes_here_and_reports_missing_tools) {
  make_folder();
  command_t run;
  RUN(&run, "doctor");
  if (run.exit_code) CHECK_FAIL("exit status %d: %s%s", run.exit_code, run.out, run.err);
  CHECK_CONTAINS(run.out, "OK    cpu runs      a small module compiles, loads and runs");
  CHECK(strstr(run.out, "OK    gpu ") || strstr(run.out, "WARN  gpu           no usable NVIDIA GPU: "));
  CHECK_CONTAINS(run.out, "OK    nvrtc         ");
  CHECK_CONTAINS(run.out, "libnvrtc.so.13, version 13.0, makes cubin and PTX\nOK    gpu kernels   ");
  command_free(&run);
  setenv("MLXCEL_NVRTC", in_folder("nothing"), 1);
  RUN(&run, "doctor");
  CHECK_INT(run.exit_code, 0);  // models also run without mlxcel's kernels
  CHECK_CONTAINS(run.out, "WARN  nvrtc         NVRTC '");
  CHECK_CONTAINS(run.out, "fix: set MLXCEL_NVRTC to libnvrtc.so.13");
  command_free(&run);
  setenv("MLXCEL_IREE_COMPILE", in_folder("nothing"), 1);
  RUN(&run, "doctor", "--json");
  unsetenv("MLXCEL_IREE_COMPILE");
  unsetenv("MLXCEL_NVRTC");
  CHECK_INT(run.exit_code, MLX_UNAVAILABLE);
  yyjson_doc *findings = yyjson_read(run.out, run.out_length, 0);
  CHECK(findings && yyjson_is_arr(yyjson_doc_get_root(findings)));
  CHECK_CONTAINS(run.out, "{\"subject\": \"iree-compile\", \"verdict\": \"FAIL\", \"text\": \"");
  CHECK_CONTAINS(run.out, "{\"subject\": \"nvrtc\", \"verdict\": \"WARN\", \"text\": \"");
  yyjson_doc_free(findings);
  command_free(&run);
  remove_folder();
}

// The divergence of a model from its own saved log-probabilities is 0.
TEST(eval_measures_perplexity_and_divergence) {
  make_folder();
  command_t run;
  mlx_text_t text = {0};
  for (int i = 0; i < 400; ++i) mlx_text_printf(&text, "%c%d ", 'a' + i * 7 % 26, i * i % 97);
  CHECK_OK(mlx_write_file(in_folder("text"), text.data, text.length));
  mlx_text_clear(&text);
  RUN(&run, "eval", "-m", TINY, "-f", in_folder("text"), "-c", "64", "--chunks", "2", "--device", "cpu",
      "--save-logprobs", in_folder("ref"));
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.out, " over 62 tokens, the second halves of 2 chunks of 64\n");
  command_free(&run);
  RUN(&run, "eval", "-m", TINY, "-f", in_folder("text"), "-c", "64", "--chunks", "2", "--device", "cpu",
      "--kl", in_folder("ref"), "--json");
  CHECK_INT(run.exit_code, 0);
  yyjson_doc *doc = yyjson_read(run.out, run.out_length, 0);
  CHECK(doc);
  yyjson_val *root = yyjson_doc_get_root(doc);
  CHECK_INT(yyjson_get_int(yyjson_obj_get(root, "tokens")), 62);
  CHECK(yyjson_get_num(yyjson_obj_get(root, "perplexity")) > 1.0);
  CHECK(yyjson_get_num(yyjson_obj_get(yyjson_obj_get(root, "kl"), "max")) < 1e-6);
  CHECK(yyjson_get_num(yyjson_obj_get(root, "same_best")) == 1.0);
  yyjson_doc_free(doc);
  command_free(&run);
  RUN(&run, "eval", "-m", TINY, "-f", in_folder("text"), "-c", "32", "--chunks", "2", "--device", "cpu",
      "--kl", in_folder("ref"));
  check_refused(&run, MLX_INVALID_INPUT, "it has a different vocabulary size, chunk size or chunk count");
  RUN(&run, "eval", "-m", TINY, "-f", in_folder("text"), "-c", "4", "--chunks", "1", "--device", "cpu", "-q");
  CHECK_CONTAINS(run.out, " over 1 token, the second half of 1 chunk of 4\n");
  CHECK_TEXT(run.err, "");
  command_free(&run);
  CHECK(!truncate(in_folder("ref"), 5000));
  RUN(&run, "eval", "-m", TINY, "-f", in_folder("text"), "-c", "64", "--chunks", "2", "--device", "cpu",
      "--kl", in_folder("ref"));
  check_refused(&run, MLX_INVALID_INPUT, "its size does not match its header");
  RUN(&run, "eval", "-m", TINY, "-f", in_folder("text"), "-c", "64", "--chunks", "2", "--device", "cpu",
      "--kl", in_folder("text"));
  check_refused(&run, MLX_INVALID_INPUT, "it does not start with 'mlxcel-logprobs1'");
  CHECK_OK(mlx_write_file(in_folder("short"), "a", 1));
  RUN(&run, "eval", "-m", TINY, "-f", in_folder("short"), "-c", "64", "--device", "cpu");
  check_refused(&run, MLX_USAGE, "less than one chunk of 64");
  RUN(&run, "eval", "-m", TINY);
  check_refused(&run, MLX_USAGE, "no text was given");
  remove_folder();
}

TEST(show_prints_a_model_without_compiling_it) {
  command_t c;
  RUN(&c, "show", MLXCEL_SOURCE_DIR "/tests/fixtures/gpt_oss-mxfp4", "-c", "100");
  CHECK_INT(c.exit_code, 0);
  CHECK_CONTAINS(c.out, "architecture  gpt_oss, from a Hugging Face directory\n");
  CHECK_CONTAINS(c.out, "6 per layer, 3 used per token");
  CHECK_CONTAINS(c.out, "BF16, MXFP4 4-bit\n");
  CHECK_CONTAINS(c.out, "memory with a context of 100: ");
  command_free(&c);
  RUN(&c, "show", "--json", MLXCEL_SOURCE_DIR "/tests/fixtures/gguf/llama-tied.gguf");
  yyjson_doc *doc = yyjson_read(c.out, strlen(c.out), 0);
  CHECK(doc);
  yyjson_val *root = yyjson_doc_get_root(doc);
  CHECK_TEXT(yyjson_get_str(yyjson_obj_get(root, "format")), "gguf");
  CHECK(yyjson_get_bool(yyjson_obj_get(root, "tied_head")));
  CHECK_INT(yyjson_get_int(yyjson_obj_get(yyjson_obj_get(root, "kv_bytes"), "f32")),
            2 * yyjson_get_int(yyjson_obj_get(yyjson_obj_get(root, "kv_bytes"), "bf16")));
  yyjson_doc_free(doc);
  command_free(&c);
  RUN(&c, "show", "/nowhere");
  check_refused(&c, MLX_NOT_FOUND, "cannot open '/nowhere'");
}

TEST(cache_is_listed_and_cleared) {
  make_folder();
  char *fresh = strdup(in_folder("cache"));
  command_t run;
  static const char script[] =
      "#!/bin/sh\n[ \"$1\" = --version ] && { echo 'IREE compiler version 3.13.0'; exit 0; }\n"
      "while [ $# -gt 0 ]; do [ \"$1\" = -o ] && echo fake > \"$2\"; shift; done\n";
  CHECK_OK(mlx_write_file(in_folder("fake"), script, strlen(script)));
  CHECK(!chmod(in_folder("fake"), 0755));
  RUN_FRESH(&run, "compile", TINY, "--iree-compile", in_folder("fake"), "-o", in_folder("x.mlxb"));
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  RUN_FRESH(&run, "cache", "path");
  CHECK_CONTAINS(run.out, fresh);
  command_free(&run);
  RUN_FRESH(&run, "cache", "list");
  CHECK_CONTAINS(run.out, "tiny-llama as f32 for cpu:host, context 2048");
  CHECK_CONTAINS(run.out, "weights of tiny-llama as f32");
  command_free(&run);
  RUN_FRESH(&run, "cache", "clear");
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.err, "removed ");
  CHECK_CONTAINS(run.err, " entries, ");
  command_free(&run);
  RUN_FRESH(&run, "cache", "list");
  CHECK_TEXT(run.out, "");
  command_free(&run);
  RUN_FRESH(&run, "cache", "burn");
  check_refused(&run, MLX_USAGE, "cache expects one of: list, clear, path");
  free(fresh);
  remove_folder();
}

TEST_MAIN(CASE(stdout_carries_only_generated_text), CASE(json_output_has_every_documented_field),
          CASE(end_of_text_stops_generation_unless_ignored), CASE(prompt_from_file_or_pipe_equals_the_flag),
          CASE(a_prompt_longer_than_the_context_is_refused_before_compiling),
          CASE(device_cuda_without_a_usable_gpu_is_an_error_with_the_reason),
          CASE(the_binary_does_not_link_nvidia_libraries), CASE(verbose_prints_the_kernels_on_stderr),

          CASE(a_bundle_generates_the_tokens_of_its_source), CASE(compile_overwrites_only_bundles),
          CASE(compile_writes_through_links_and_devices), CASE(compile_works_on_a_memory_file_system),
          CASE(concurrent_writers_of_one_bundle_all_succeed), CASE(a_closed_pipe_prints_no_error),
          CASE(a_model_that_changes_during_compilation_is_refused),
          CASE(weights_are_written_while_the_module_is_compiled),
          CASE(generation_stops_exactly_at_the_context_length), CASE(a_full_disk_behind_stdout_is_an_error),
          CASE(an_unsupported_config_field_is_refused_by_name),
          CASE(a_bundle_keeps_its_dtype_and_defaults_to_f32), CASE(emit_writes_stablehlo_or_a_bare_vmfb),
          CASE(a_supported_cpu_level_compiles_and_runs),
          CASE(a_failing_compiler_is_reported_with_its_output_and_log),
          CASE(compiling_smollm2_uses_less_than_1_gib), CASE(invalid_arguments_are_refused_with_a_hint),
          CASE(a_damaged_bundle_is_refused_by_name),
          CASE(a_bundle_of_another_contract_is_refused_with_both_versions),
          CASE(a_link_name_selects_the_verb), CASE(help_and_version_go_to_stdout),
          CASE(doctor_passes_here_and_reports_missing_tools), CASE(eval_measures_perplexity_and_divergence),
          CASE(show_prints_a_model_without_compiling_it), CASE(cache_is_listed_and_cleared))
