// Settings from the configuration file and the environment: parsing, precedence and error messages.
#include "base/settings.h"

#include "base/json.h"
#include "base/text.h"
#include "tests/support/check.h"
#include "tests/support/command.h"

// ----------------------------------------------------------------------------------------------------------
// Parsing

static mlx_status_t note(void *user, const mlx_setting_t *setting) {
  mlx_text_printf(user, "%d [%s] %s=%s\n", setting->line, setting->section, setting->key ? setting->key : "",
                  setting->value ? setting->value : "");
  return NULL;
}

static void check_read(const char *text, const char *expected) {
  mlx_text_t seen = {0};
  CHECK_OK(mlx_settings_read("conf", text, strlen(text), note, &seen));
  CHECK_TEXT(seen.data ? seen.data : "", expected);
  mlx_text_clear(&seen);
}

TEST(settings_are_parsed) {
  check_read("", "");
  check_read("\n# only a comment\n   \t\r\n", "");
  check_read("a = 1", "1 [] a=1\n");
  check_read(
      "\xef\xbb\xbf"
      "a=1\r\nb  =  two words  # and why\r\n",
      "1 [] a=1\n2 [] b=two words\n");
  check_read("a = x#y\n[ run ] # here\nb-c_d = \"# \\\"q\\\" \\\\ \\n\\t \"  # there\n",
             "1 [] a=x#y\n2 [run] =\n3 [run] b-c_d=# \"q\" \\ \n\t \n");
  check_read("a = \"\"\n", "1 [] a=\n");
}

static void check_refused(const char *text, const char *part) {
  mlx_text_t seen = {0};
  CHECK_ERROR(mlx_settings_read("conf", text, strlen(text), note, &seen), MLX_INVALID_INPUT, part);
  mlx_text_clear(&seen);
}

TEST(parse_errors_name_the_line) {
  check_refused("a = 1\nb\n", "conf:2: expected 'key = value' or '[section]'");
  check_refused("= 1\n", "conf:1: expected 'key = value'");
  check_refused("a b = 1\n", "conf:1: expected 'key = value'");
  check_refused("\n\na =   # nothing\n", "conf:3: missing value");
  check_refused("a = \"x\n", "conf:1: unterminated quoted value");
  check_refused("a = \"x\\", "conf:1: unknown escape sequence");
  check_refused("a = \"\\x41\"", "conf:1: unknown escape sequence");
  check_refused("a = \"x\" y", "conf:1: unexpected text after a quoted value");
  check_refused("[run\n", "conf:1: invalid section header");
  check_refused("[] x\n", "conf:1: invalid section header");
  check_refused("[a b]\n", "conf:1: invalid section header");
  static const char nul[] = "a = 1\nb = \0x\n";
  mlx_text_t seen = {0};
  CHECK_ERROR(mlx_settings_read("conf", nul, sizeof nul - 1, note, &seen), MLX_INVALID_INPUT,
              "conf:2: contains a NUL byte");
  mlx_text_clear(&seen);
}

// ----------------------------------------------------------------------------------------------------------
// Precedence

static char folder[64];

static void write_config(const char *text) {
  char path[128];
  strcpy(folder, "/tmp/mlxcel-config-XXXXXX");
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/config", folder);
  CHECK_OK(mlx_write_file(path, text, strlen(text)));
  setenv("MLXCEL_CONFIG", path, 1);
}

static void remove_config(void) {
  setenv("MLXCEL_CONFIG", "/dev/null", 1);
  CHECK_OK(mlx_remove_tree(folder));
}

// Checks the value and the source of |key| in the output of `mlxcel config VERB --json`.
static void check_setting(const char *verb, const char *key, const char *value, const char *source,
                          const char *from) {
  command_t run;
  mlx_json_t json;
  RUN(&run, "config", verb, "--json");
  if (run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
  CHECK_OK(mlx_json_parse("stdout", run.out, run.out_length, &json));
  yyjson_val *row, *settings = yyjson_obj_get(json.root, "settings");
  size_t i, count;
  bool found = false;
  yyjson_arr_foreach(settings, i, count, row) {
    if (strcmp(yyjson_get_str(yyjson_obj_get(row, "key")), key)) continue;
    char *text = yyjson_val_write(yyjson_obj_get(row, "value"), 0, NULL);
    CHECK_TEXT(text, value);
    CHECK_TEXT(yyjson_get_str(yyjson_obj_get(row, "source")), source);
    CHECK_CONTAINS(yyjson_get_str(yyjson_obj_get(row, "from")), from);
    free(text);
    found = true;
  }
  if (!found) CHECK_FAIL("%s has no %s:\n%s", verb, key, run.out);
  mlx_json_close(&json);
  command_free(&run);
}

TEST(environment_overrides_file_and_file_overrides_default) {
  write_config(
      "ctx = 1000\ntemp = 0.25\nverbose = yes\n[bench]\nctx_size = 3000  # under another of its "
      "names\n[run]\nlogit-bias = 1+1\nlogit-bias = 2-inf\n");
  check_setting("run", "ctx", "1000", "file", "/config:1");
  check_setting("run", "temp", "0.25", "file", "/config:2");
  check_setting("run", "verbose", "true", "file", "/config:3");
  check_setting("run", "top-k", "40", "default", "");
  check_setting("run", "model", "null", "default", "");
  check_setting("bench", "ctx", "3000", "file", "/config:5");
  setenv("MLXCEL_CTX", "2000", 1);
  setenv("MLXCEL_VERBOSE", "0", 1);
  check_setting("run", "ctx", "2000", "environment", "MLXCEL_CTX");
  check_setting("bench", "ctx", "2000", "environment", "MLXCEL_CTX");
  check_setting("run", "verbose", "false", "environment", "MLXCEL_VERBOSE");
  setenv("MLXCEL_BENCH_CTX_SIZE", "2500", 1);
  check_setting("bench", "ctx", "2500", "environment", "MLXCEL_BENCH_CTX_SIZE");
  check_setting("run", "ctx", "2000", "environment", "MLXCEL_CTX");
  setenv("MLXCEL_CTX", "", 1);  // counts as unset
  check_setting("run", "ctx", "1000", "file", "/config:1");
  unsetenv("MLXCEL_CTX");
  unsetenv("MLXCEL_VERBOSE");
  unsetenv("MLXCEL_BENCH_CTX_SIZE");
  command_t run;
  RUN(&run, "config");
  CHECK_CONTAINS(run.out, "\nlogit-bias = 1+1 ");
  CHECK_CONTAINS(run.out, "\nlogit-bias = 2-inf ");
  CHECK(!strstr(run.out, "top-k"));  // defaults are not printed
  command_free(&run);
  remove_config();
}

// The command line has the highest precedence: an invalid value in the environment is not even parsed then.
TEST(command_line_overrides_environment) {
  command_t run;
  setenv("MLXCEL_N_GEN", "many", 1);
  RUN(&run, "bench", "-m", "/nowhere", "-n", "4");
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  command_free(&run);
  RUN(&run, "bench", "-m", "/nowhere");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(
      run.err,
      "MLXCEL_N_GEN: option --n-gen expects up to 16 whole numbers from 0 to 16777216, separated by "
      "commas, not 'many'");
  command_free(&run);
  unsetenv("MLXCEL_N_GEN");
  setenv("MLXCEL_MODEL", "/nowhere/else", 1);
  RUN(&run, "bench");
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  CHECK_CONTAINS(run.err, "/nowhere/else");
  command_free(&run);
  RUN(&run, "show", "/nowhere/word");
  CHECK_CONTAINS(run.err, "/nowhere/word");
  command_free(&run);
  unsetenv("MLXCEL_MODEL");
  setenv("MLXCEL_JSON", "true", 1);
  RUN(&run, "show", "--json=false", MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama");
  CHECK(!strncmp(run.out, "name ", 5));
  command_free(&run);
  unsetenv("MLXCEL_JSON");
}

static void check_config_refused(const char *text, int code, const char *part, const char *hint) {
  write_config(text);
  command_t run;
  RUN(&run, "show", MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama");
  CHECK_INT(run.exit_code, code);
  CHECK_TEXT(run.out, "");
  CHECK_CONTAINS(run.err, part);
  CHECK_CONTAINS(run.err, hint);
  command_free(&run);
  RUN(&run, "show", "--no-config", MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama");
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  RUN(&run, "show", "--help");
  CHECK_INT(run.exit_code, 0);
  command_free(&run);
  remove_config();
}

TEST(errors_name_the_line_and_suggest_the_nearest_name) {
  check_config_refused("temp = 1\ntmep = 1\n", MLX_INVALID_INPUT, "/config:2: there is no option 'tmep'",
                       "did you mean 'temp'?");
  check_config_refused("[show]\ntemp = 1\n", MLX_INVALID_INPUT,
                       "/config:2: there is no option 'temp' of show", "hint: ");
  check_config_refused("[shwo]\n", MLX_INVALID_INPUT, "/config:1: unknown verb 'shwo'",
                       "did you mean 'show'?");
  check_config_refused("\n\nctx = wide\n", MLX_INVALID_INPUT,
                       "/config:3: option --ctx expects a whole number from 0 to", "not 'wide'");
  check_config_refused("json = perhaps\n", MLX_INVALID_INPUT,
                       "/config:1: option --json expects true or false, not 'perhaps'", "");
  check_config_refused("ctx 12\n", MLX_INVALID_INPUT, "/config:1: expected 'key = value' or '[section]'",
                       "key = value");
  check_config_refused("MLXCEL_CASHE = /x\n", MLX_INVALID_INPUT,
                       "/config:1: 'MLXCEL_CASHE' is not a variable that this file can set",
                       "did you mean 'MLXCEL_CACHE'?");
  check_config_refused("MLXCEL_CONFIG = /x\n", MLX_INVALID_INPUT, "'MLXCEL_CONFIG' is not a variable", "");
  command_t run;
  setenv("MLXCEL_CONFIG", "/nowhere/config", 1);
  RUN(&run, "doctor", "--json");
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  CHECK_CONTAINS(run.err, "/nowhere/config");
  CHECK_CONTAINS(run.err, "--no-config");
  command_free(&run);
  setenv("MLXCEL_CONFIG", "/dev/null", 1);
}

// --insecure accepts any TLS certificate, so it must be given each time.
TEST(insecure_is_accepted_only_on_the_command_line) {
  check_config_refused("insecure = true\n", MLX_INVALID_INPUT, "/config:1: there is no option 'insecure'",
                       "");
  setenv("MLXCEL_INSECURE", "1", 1);
  setenv("MLXCEL_PULL_INSECURE", "1", 1);
  command_t run;
  RUN(&run, "config", "pull");  // lists what can be set
  CHECK_INT(run.exit_code, 0);
  CHECK(!strstr(run.out, "insecure"));
  command_free(&run);
  unsetenv("MLXCEL_INSECURE");
  unsetenv("MLXCEL_PULL_INSECURE");
}

TEST(file_is_found_in_the_configuration_folder) {
  write_config("");
  char path[128], *home = strdup(getenv("HOME") ? getenv("HOME") : "/");
  unsetenv("MLXCEL_CONFIG");
  snprintf(path, sizeof path, "%s/.config/mlxcel", folder);
  CHECK_OK(mlx_make_dirs(path, 0700));
  snprintf(path, sizeof path, "%s/.config/mlxcel/config", folder);
  CHECK_OK(mlx_write_file(path, "ctx = 11\n", 9));
  snprintf(path, sizeof path, "%s/mlxcel", folder);
  CHECK_OK(mlx_make_dirs(path, 0700));
  snprintf(path, sizeof path, "%s/mlxcel/config", folder);
  CHECK_OK(mlx_write_file(path, "ctx = 12\n", 9));
  unsetenv("XDG_CONFIG_HOME");
  setenv("HOME", folder, 1);
  check_setting("run", "ctx", "11", "file", "/.config/mlxcel/config:1");
  setenv("XDG_CONFIG_HOME", folder, 1);
  check_setting("run", "ctx", "12", "file", "/mlxcel/config:1");
  setenv("XDG_CONFIG_HOME", "/nowhere", 1);  // a missing file is not an error
  check_setting("run", "ctx", "null", "default", "");
  unsetenv("XDG_CONFIG_HOME");
  setenv("HOME", home, 1);
  free(home);
  remove_config();
}

// Variables that the driver reads itself are shown too, and override the file.
TEST(variables_read_by_other_code_still_override_the_file) {
  unsetenv("MLXCEL_IREE_COMPILE");  // set when the tests of another machine run
  write_config("iree-compile = /from/file\ntimeout = 5\n");
  check_setting("compile", "iree-compile", "\"/from/file\"", "file", "/config:1");
  setenv("MLXCEL_IREE_COMPILE", "/from/environment", 1);
  setenv("MLXCEL_COMPILE_TIMEOUT", "0.5", 1);
  check_setting("compile", "iree-compile", "\"/from/environment\"", "environment", "MLXCEL_IREE_COMPILE");
  check_setting("compile", "timeout", "0.5", "environment", "MLXCEL_COMPILE_TIMEOUT");
  command_t run;
  RUN(&run, "compile", MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama", "-o", "/nowhere/x.mlxb");
  CHECK_CONTAINS(run.err, "MLXCEL_IREE_COMPILE");
  command_free(&run);
  unsetenv("MLXCEL_IREE_COMPILE");
  unsetenv("MLXCEL_COMPILE_TIMEOUT");
  remove_config();
}

TEST(file_sets_variables_missing_from_the_environment) {
  char *cache = strdup(getenv("MLXCEL_CACHE") ? getenv("MLXCEL_CACHE") : "");
  char text[256], expected[128];
  write_config("");
  snprintf(text, sizeof text, "MLXCEL_CACHE = %s/from file\n", folder);
  snprintf(expected, sizeof expected, "%s/from file\n", folder);
  CHECK_OK(mlx_write_file(getenv("MLXCEL_CONFIG"), text, strlen(text)));
  command_t run;
  unsetenv("MLXCEL_CACHE");
  RUN(&run, "cache", "path");
  CHECK_CONTAINS(run.out, expected);
  command_free(&run);
  snprintf(expected, sizeof expected, "%s/from environment", folder);
  setenv("MLXCEL_CACHE", expected, 1);
  RUN(&run, "cache", "path");
  CHECK_CONTAINS(run.out, "/from environment\n");
  command_free(&run);
  setenv("MLXCEL_CACHE", cache, 1);
  free(cache);
  remove_config();
}

// The output of `mlxcel config VERB` is a configuration file with the same settings.
// Removes "# " before each setting.
static void uncomment(char *text) {
  char *to = text;
  for (char *line = text; *line;) {
    char *end = strchr(line, '\n');
    const char *equals = strstr(line, " =");
    const bool setting = !strncmp(line, "# ", 2) && equals && equals < end;
    if (setting) line += 2;
    memmove(to, line, (size_t)(end + 1 - line));
    to += end + 1 - line;
    line = end + 1;
  }
  *to = 0;
}

// Every default that `mlxcel config VERB` prints can be set in the configuration file.
TEST(config_prints_only_values_that_can_be_set) {
  static const char *const verbs[] = {"run", "bench", "eval", "pull", "tokenize", "compile"};
  for (size_t i = 0; i < sizeof verbs / sizeof *verbs; ++i) {
    command_t first, second;
    setenv("MLXCEL_CONFIG", "/dev/null", 1);
    RUN(&first, "config", verbs[i]);
    CHECK_INT(first.exit_code, 0);
    if (i == 0) CHECK_CONTAINS(first.out, "\n# ctx: not set (N)\n");
    uncomment(first.out);
    write_config(first.out);
    RUN(&second, "config", verbs[i]);
    if (second.exit_code) CHECK_FAIL("%s:\n%s", second.err, first.out);
    CHECK_CONTAINS(second.out, "/config:");
    command_free(&first);
    command_free(&second);
  }
  setenv("MLXCEL_CONFIG", "/dev/null", 1);
}

TEST(config_output_is_a_valid_config_file) {
  write_config("[run]\nsystem-prompt = \" say \\\"no\\\"\\n # \"\nctx = 77\n");
  command_t first, second;
  RUN(&first, "config", "run");
  CHECK_INT(first.exit_code, 0);
  char *text = strdup(first.out);
  remove_config();
  write_config(text);
  check_setting("run", "system-prompt", "\" say \\\"no\\\"\\n # \"", "file", "/config:");
  RUN(&second, "config", "run");
  CHECK_CONTAINS(second.out, "ctx = 77 ");
  free(text);
  command_free(&first);
  command_free(&second);
  remove_config();
}

TEST_MAIN(CASE(settings_are_parsed), CASE(parse_errors_name_the_line),
          CASE(environment_overrides_file_and_file_overrides_default),
          CASE(command_line_overrides_environment), CASE(errors_name_the_line_and_suggest_the_nearest_name),
          CASE(insecure_is_accepted_only_on_the_command_line),
          POSIX_CASE(file_is_found_in_the_configuration_folder),
          CASE(variables_read_by_other_code_still_override_the_file),
          CASE(file_sets_variables_missing_from_the_environment),
          CASE(config_prints_only_values_that_can_be_set), CASE(config_output_is_a_valid_config_file))
