// Errors that a new user meets, and their hints: options of other programs, wrong inputs, files that are not
// what they seem, no network, and a cache that cannot be written to.
#include <errno.h>
#include <sys/stat.h>

#include "artifact/bundle.h"
#include "base/text.h"
#include "cache/cache.h"
#include "tests/support/check.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define TINY_GGUF MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama.gguf"
#define FLAGS "--temp", "0", "-n", "3", "--device", "cpu"
#define POINTER                                      \
  "version https://git-lfs.github.com/spec/v1\noid " \
  "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b12\nsize 9\n"

static void make_folder(void) {
  strcpy(folder, "/tmp/mlxcel-hints-XXXXXX");
  CHECK(mkdtemp(folder));
}

static void remove_folder(void) { CHECK_OK(mlx_remove_tree(folder)); }

static void check_refused(command_t *run, int code, const char *message, const char *hint) {
  if (run->exit_code != code) CHECK_FAIL("exit status %d, expected %d: %s", run->exit_code, code, run->err);
  CHECK_TEXT(run->out, "");
  CHECK_CONTAINS(run->err, message);
  CHECK_CONTAINS(run->err, hint);
  command_free(run);
}

static void check_accepted(const command_t *run) {
  if (run->exit_code) CHECK_FAIL("exit status %d: %s", run->exit_code, run->err);
}

static void write_text(const char *name, const char *text) {
  CHECK_OK(mlx_write_file(in_folder(name), text, strlen(text)));
}

// ----------------------------------------------------------------------------------------------------------
// Options and verbs of other programs

TEST(options_of_servers_and_drafts_are_answered) {
  static const char *const rows[][3] = {
      {"--draft", "8", "hint: remove it: there are no draft models"},
      {"--override-kv", "a=int:1", "hint: change the metadata of a copy of the file: gguf-set-metadata"},
      {"--tensor-parallel-size", "2", "hint: remove it: a model runs on one GPU, which --gpu N selects"},
      {"--gpu-memory-utilization", "0.9",
       "hint: give the most memory for the KV cache in bytes: --memory 8G"},
      {"--response-format", "json_schema", "hint: give the schema too: -j SCHEMA"},
  };
  command_t run;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    RUN(&run, "run", TINY, "the", FLAGS, rows[i][0], rows[i][1]);
    check_refused(&run, MLX_USAGE, "there is no option '--", rows[i][2]);
  }
}

TEST(options_of_servers_are_translated_or_noted) {
  command_t run;
  RUN(&run, "run", TINY, "the", FLAGS, "--stream", "--tensor-parallel-size", "1", "--max-num-seqs", "8",
      "--response-format", "text");
  check_accepted(&run);
  CHECK_CONTAINS(run.err, "--stream is ignored: text is printed as it is generated");
  CHECK_CONTAINS(run.err, "--tensor-parallel-size is ignored: one GPU is used");
  CHECK_CONTAINS(run.err, "--max-num-seqs is ignored: one prompt is answered; mlxcel batch answers many");
  CHECK_CONTAINS(run.err, "--response-format is ignored: text is the default");
  command_free(&run);
  static const char *const objects[] = {"json_object", "{\"type\": \"json_object\"}",
                                        "{\"type\": \"object\"}"};
  for (size_t i = 0; i < 3; ++i) {
    RUN(&run, "run", TINY, "the", FLAGS, "--response-format", objects[i]);
    check_accepted(&run);
    CHECK(run.out[0] == '{');
    command_free(&run);
  }
  RUN(&run, "run", TINY, "the quick brown the quick brown the quick brown", FLAGS, "--max-model-len", "16");
  check_refused(&run, MLX_USAGE, "the context holds 16", "hint: shorten the prompt");
}

TEST(the_verbs_embedding_and_models_are_answered) {
  command_t run, list;
  RUN(&run, "embedding", TINY, "text", "--device", "cpu");
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.out, "\"embedding\": [");
  command_free(&run);
  RUN(&run, "models", "--available");
  RUN(&list, "list", "--available");
  CHECK_INT(run.exit_code, 0);
  CHECK_TEXT(run.out, list.out);
  command_free(&run);
  command_free(&list);
}

// ----------------------------------------------------------------------------------------------------------
// Inputs of run

TEST(a_logit_bias_outside_the_vocabulary_is_refused) {
  static const char *const temperatures[] = {"0", "0.8"};
  command_t run;
  for (int i = 0; i < 2; ++i) {
    RUN(&run, "run", TINY, "the", "-n", "3", "--device", "cpu", "--temp", temperatures[i], "--logit-bias",
        "320+1");
    check_refused(&run, MLX_USAGE,
                  "--logit-bias names token 320; the vocabulary has 320 tokens, from 0 to 319",
                  "hint: mlxcel tokenize MODEL TEXT");
    RUN(&run, "run", TINY, "the", "-n", "3", "--device", "cpu", "--temp", temperatures[i], "--logit-bias",
        "319+1");
    CHECK_INT(run.exit_code, 0);
    command_free(&run);
  }
}

TEST(tools_and_variables_that_are_not_json_are_explained) {
  static const char *const tools[][2] = {
      {"", "the file of --tools is empty"},
      {"[{]", "not valid JSON at byte"},
      {"{\"type\": \"function\"}", "the file of --tools must be a JSON list"}};
  command_t run;
  make_folder();
  RUN(&run, "run", TINY, "the", FLAGS, "--chat-template", "chatml", "--chat-template-kwargs", "{bad");
  check_refused(&run, MLX_INVALID_INPUT, "--chat-template-kwargs: not valid JSON at byte 1",
                "hint: give a JSON object in quotes: --chat-template-kwargs '{");
  RUN(&run, "run", TINY, "the", FLAGS, "--chat-template", "chatml", "--chat-template-kwargs", "7");
  check_refused(&run, MLX_INVALID_INPUT, "--chat-template-kwargs: the JSON value must be an object",
                "hint: give a JSON object in quotes");
  write_text("messages.json", "[{\"role\": \"user\", \"content\": \"x\"}]");
  for (size_t i = 0; i < 3; ++i) {
    write_text("tools.json", tools[i][0]);
    RUN(&run, "run", TINY, "the", FLAGS, "--chat-template", "chatml", "--tools", in_folder("tools.json"));
    check_refused(&run, MLX_INVALID_INPUT, tools[i][1], "hint: its content is a list of tools: [{\"type\"");
    RUN(&run, "template", TINY, "--chat-template", "chatml", "--messages", in_folder("messages.json"),
        "--tools", in_folder("tools.json"));
    check_refused(&run, MLX_INVALID_INPUT, tools[i][1], "hint: its content is a list of tools: [{\"type\"");
  }
  remove_folder();
}

// A larger -c helps only if the model supports that many tokens.
TEST(the_hint_for_a_long_prompt_knows_the_limit_of_the_model) {
  mlx_text_t text = {0};
  command_t run;
  make_folder();
  for (int i = 0; i < 3000; ++i) mlx_text_puts(&text, "the quick ");
  CHECK_OK(mlx_text_finish(&text));
  CHECK_OK(mlx_write_file(in_folder("long"), text.data, text.length));
  CHECK_OK(mlx_write_file(in_folder("short"), text.data, 500));
  mlx_text_clear(&text);
  RUN(&run, "run", TINY, "-f", in_folder("long"), FLAGS, "-c", "64");
  check_refused(&run, MLX_USAGE, "the context holds 64",
                "hint: shorten the prompt: the model supports at most 2048 tokens\n");
  RUN(&run, "run", TINY, "-f", in_folder("short"), FLAGS, "-c", "64");
  check_refused(&run, MLX_USAGE, "the context holds 64",
                "hint: shorten the prompt, or use a larger context: -c N, at most 2048\n");
  remove_folder();
}

// ----------------------------------------------------------------------------------------------------------
// Files that are not what they seem

TEST(a_git_lfs_pointer_is_named) {
  static const char *const names[] = {"tokenizer.json", "model-00001-of-00002.safetensors",
                                      "model.safetensors.index.json", "config.json"};
  command_t run;
  make_folder();
  write_text("model.gguf", POINTER);
  write_text("model.mlxb", POINTER);
  static const char *const files[] = {"model.gguf", "model.mlxb"};
  for (size_t i = 0; i < 2; ++i) {
    RUN(&run, "run", in_folder(files[i]), "hi");
    check_refused(&run, MLX_INVALID_INPUT, "is a git-LFS pointer, not the file itself", "`git lfs pull`");
  }
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    char path[64];
    snprintf(path, sizeof path, "%zu", i);
    CHECK_OK(mlx_make_dirs(in_folder(path), 0700));
    command_start(&run, (const char *const[]){"/bin/cp", "-r", TINY "/.", in_folder(path), NULL});
    command_wait(&run);
    command_free(&run);
    snprintf(path, sizeof path, "%zu/%s", i, names[i]);
    write_text(path, POINTER);
    snprintf(path, sizeof path, "%zu", i);
    RUN(&run, "run", in_folder(path), "hi");
    CHECK_CONTAINS(run.err, names[i]);
    check_refused(&run, MLX_INVALID_INPUT, "is a git-LFS pointer, not the file itself", "`git lfs pull`");
  }
  remove_folder();
}

TEST(an_encoder_is_named_before_its_tensors_are_read) {
  static const char *const types[] = {"albert", "deberta-v2", "fnet", "jina_bert", "xmod"};
  static const char gguf[] =
      "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\24\0\0\0\0\0\0\0general.architecture\10\0\0\0"
      "\14\0\0\0\0\0\0\0jina-bert-v3";
  command_t run;
  char config[64];
  make_folder();
  write_text("model.safetensors", "not read");
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
    snprintf(config, sizeof config, "{\"model_type\": \"%s\"}", types[i]);
    write_text("config.json", config);
    RUN(&run, "run", folder, "hi");
    snprintf(config, sizeof config, "is a %s model: an encoder, which", types[i]);
    check_refused(&run, MLX_UNSUPPORTED, config, "hint: encoders that mlxcel supports: bert,");
  }
  CHECK_OK(mlx_write_file(in_folder("e.gguf"), gguf, sizeof gguf - 1));
  RUN(&run, "show", in_folder("e.gguf"));
  check_refused(&run, MLX_UNSUPPORTED, "is a jina-bert-v3 model: an encoder", "hint: encoders");
  remove_folder();
}

// The library opens bundles only.
TEST(a_model_that_is_not_compiled_is_not_called_a_damaged_bundle) {
  mlx_bundle_t *bundle;
  mlx_status_t status = mlx_bundle_open(TINY_GGUF, &bundle);
  CHECK_INT(mlx_status_code(status), MLX_UNSUPPORTED);
  CHECK_CONTAINS(mlx_status_message(status),
                 "tiny-llama.gguf' is a GGUF file: only compiled bundles (.mlxb)");
  CHECK_CONTAINS(mlx_status_hint_text(status),
                 "compile it: mlxcel compile " TINY_GGUF " -o " TINY ".mlxb");  // .gguf is replaced
  mlx_status_free(status);
  status = mlx_bundle_open(TINY, &bundle);
  CHECK_INT(mlx_status_code(status), MLX_UNSUPPORTED);
  CHECK_CONTAINS(mlx_status_message(status),
                 "tiny-llama' is a Hugging Face directory: only compiled bundles");
  CHECK_CONTAINS(mlx_status_hint_text(status), "compile it: mlxcel compile " TINY " -o " TINY ".mlxb");
  mlx_status_free(status);
}

// ----------------------------------------------------------------------------------------------------------
// The network and the cache

TEST(without_a_network_the_hint_names_proxies_and_mirrors) {
  command_t run;
  make_folder();
  setenv("MLXCEL_CACHE", in_folder("cache"), 1);
  // A label of over 63 characters: the resolver refuses it at once and asks no server.
  setenv("HF_ENDPOINT",
         "http://a-host-name-that-is-longer-than-the-64-characters-that-a-label-may-have.invalid", 1);
  RUN(&run, "run", "hf:acme/tiny", "hi");
  CHECK_CONTAINS(run.err, "http_proxy and https_proxy");
  CHECK_CONTAINS(run.err, "the models of `mlxcel list` run without a network");
  check_refused(&run, MLX_UNAVAILABLE, "Could not resolve host: a-host-name",
                "HF_ENDPOINT selects a mirror of the hub");
  unsetenv("HF_ENDPOINT");
  setenv("MLXCEL_CACHE", MLXCEL_TEST_CACHE, 1);
  remove_folder();
}

typedef struct failure {
  int error;           // errno of a write into the cache; 0: a tool fails
  const char *source;  // the write fails there instead; NULL: in the cache
} failure_t;

static mlx_status_t fail_to_fill(void *user, const char *path, const char *log_path) {
  (void)log_path;
  const failure_t *failure = user;
  errno = failure->error;
  if (!errno) return mlx_error(MLX_TOOL_FAILED, "iree-compile: %s", strerror(ENOSPC));
  return mlx_io_error("write", failure->source ? failure->source : path);
}

static mlx_status_t get_entry(mlx_cache_t *cache, failure_t failure) {
  static const mlx_cache_request_t base = {
      .kind = "vmfb",
      .key = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",
      .title = "test",
      .fill = fail_to_fill};
  mlx_cache_request_t request = base;
  mlx_cache_entry_t entry;
  request.user = &failure;
  return mlx_cache_get(cache, &request, NULL, &entry);
}

TEST(a_full_or_read_only_cache_names_its_variable) {
  static const struct {
    failure_t failure;
    const char *hint;
  } rows[] = {
      {{.error = ENOSPC}, "free space on the disk of the cache folder '"},
      {{.error = 0}, "free space on the disk of the cache folder '"},
      {{.error = EROFS}, "make the cache folder '"},
      {{.error = EACCES}, "make the cache folder '"},
      {{.error = EACCES, .source = "/elsewhere/model.gguf"}, "check its owner and permissions"},
  };
  mlx_cache_t *cache;
  make_folder();
  CHECK_OK(mlx_cache_open(in_folder("cache"), &cache));
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    mlx_status_t status = get_entry(cache, rows[i].failure);
    CHECK_CONTAINS(mlx_status_hint_text(status), rows[i].hint);
    CHECK(!strstr(mlx_status_hint_text(status), "MLXCEL_CACHE") == !!rows[i].failure.source);
    mlx_status_free(status);
  }
  mlx_cache_close(cache);
  remove_folder();
}

TEST_MAIN(CASE(options_of_servers_and_drafts_are_answered), CASE(options_of_servers_are_translated_or_noted),
          CASE(the_verbs_embedding_and_models_are_answered),
          CASE(a_logit_bias_outside_the_vocabulary_is_refused),
          CASE(tools_and_variables_that_are_not_json_are_explained),
          CASE(the_hint_for_a_long_prompt_knows_the_limit_of_the_model),
          POSIX_CASE(a_git_lfs_pointer_is_named), CASE(an_encoder_is_named_before_its_tensors_are_read),
          CASE(a_model_that_is_not_compiled_is_not_called_a_damaged_bundle),
          CASE(without_a_network_the_hint_names_proxies_and_mirrors),
          CASE(a_full_or_read_only_cache_names_its_variable))
