// `mlxcel launch` with programs that take the place of the agents: each sends a request as its agent does.
#include <sys/stat.h>

#include "tests/support/command.h"
#include "tests/support/folder.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"

// Prints its arguments, asks the server that its environment or arguments name, and ends with status 7.
static const char agent[] =
    "#!/bin/sh\n"
    "''''exec python3 \"$0\" \"$@\"  # for sh, a string for Python'''\n"
    "import json, os, re, sys, urllib.request\n"
    "name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]\n"
    "hello = [{'role': 'user', 'content': 'hello'}]\n"
    "if name == 'claude':\n"
    "    assert os.environ['ANTHROPIC_API_KEY'] == ''\n"
    "    assert os.environ['ANTHROPIC_DEFAULT_HAIKU_MODEL'] == os.environ['ANTHROPIC_MODEL']\n"
    "    model, url, path = os.environ['ANTHROPIC_MODEL'], os.environ['ANTHROPIC_BASE_URL'], '/v1/messages'\n"
    "    headers = {'Authorization': 'Bearer ' + os.environ['ANTHROPIC_AUTH_TOKEN']}\n"
    "    body = {'max_tokens': 4, 'messages': hello}\n"
    "elif name == 'codex':\n"
    "    options = dict(re.match('([^=]*)=\"(.*)\"$', b).groups() for a, b in zip(arguments, arguments[1:]) "
    "if a == '-c')\n"
    "    provider = 'model_providers.' + options['model_provider']\n"
    "    assert options[provider + '.wire_api'] == 'responses'\n"
    "    model, url, path = arguments[arguments.index('-m') + 1], options[provider + '.base_url'], "
    "'/responses'\n"
    "    headers = {'Authorization': 'Bearer ' + os.environ[options[provider + '.env_key']]}\n"
    "    body = {'input': hello, 'max_output_tokens': 4}\n"
    "else:\n"
    "    kind, model = arguments[arguments.index('--model') + 1].split('/', 1)\n"
    "    assert kind == 'openai'\n"
    "    url, path = os.environ['OPENAI_API_BASE'], '/chat/completions'\n"
    "    headers, body = {'Authorization': 'Bearer ' + os.environ['OPENAI_API_KEY']}, {'max_tokens': 4, "
    "'messages': hello}\n"
    "context = os.environ.get('CLAUDE_CODE_MAX_CONTEXT_TOKENS')\n"
    "output = os.environ.get('CLAUDE_CODE_MAX_OUTPUT_TOKENS')\n"
    "assert output == (context and str(int(context) // 8)), output\n"
    "for a in arguments:\n"
    "    if a.startswith('--config=model_context_window='): context = a.split('=')[2]\n"
    "headers['Content-Type'] = 'application/json'\n"
    "request = urllib.request.Request(url + path, json.dumps({**body, 'model': model}).encode(), headers)\n"
    "answer = json.load(urllib.request.urlopen(request))\n"
    "print('answered', answer.get('object') or answer['type'], 'of', answer['model'], 'context', context, "
    "'arguments', arguments[-2:])\n"
    "open(os.environ['MLXCEL_LAUNCH_TEST'], 'w').write(url)\n"
    "sys.exit(7)\n";

static void make_agents(void) {
  static const char *const names[] = {"claude", "codex", "aider"};
  char path[4096];
  strcpy(folder, "/tmp/mlxcel-launch-XXXXXX");
  CHECK(mkdtemp(folder));
  for (int i = 0; i < 3; ++i) {
    CHECK_OK(mlx_write_file(in_folder(names[i]), agent, sizeof agent - 1));
    CHECK(!chmod(in_folder(names[i]), 0755));
  }
  snprintf(path, sizeof path, "%s:%s", folder, getenv("PATH"));
  CHECK(!setenv("PATH", path, 1));
  CHECK(!setenv("MLXCEL_API_KEY", "of another server", 1));
  CHECK(!setenv("MLXCEL_DEVICE", "cpu", 1));
  CHECK(!setenv("MLXCEL_CHAT_TEMPLATE", "chatml", 1));
  CHECK(!setenv("MLXCEL_LAUNCH_TEST", in_folder("url"), 1));
}

static void remove_agents(void) { command_shell(folder, "rm -r \"$PWD\""); }

// The port is free again: the server has ended.
static void check_server_ended(void) {
  char script[256], *url;
  CHECK_OK(mlx_read_file(in_folder("url"), 256, &url, NULL));
  snprintf(script, sizeof script,
           "! python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1])' %s 2>err; "
           "grep -q refused err",
           url);
  command_shell(folder, script);
  mlx_free(url);
}

TEST(each_agent_reaches_the_server_and_its_exit_status_is_returned) {
  static const struct {
    const char *name, *object, *context, *told;  // the context length of -c, and what the agent knows of it
  } cases[] = {{"claude", "message", "0", "None"},
               {"claude", "message", "512", "512"},
               {"codex", "response", "512", "512"},
               {"aider", "chat.completion", "512", "None"}};
  make_agents();
  for (int i = 0; i < 4; ++i) {
    command_t run;
    char expected[128];
    RUN(&run, "launch", cases[i].name, "-m", TINY, "-c", cases[i].context, "--", "--resume", "last");
    if (run.exit_code != 7) CHECK_FAIL("%s: status %d: %s", cases[i].name, run.exit_code, run.err);
    snprintf(expected, sizeof expected, "answered %s of tiny-llama context %s arguments ['--resume', 'last']",
             cases[i].object, cases[i].told);
    CHECK_CONTAINS(run.out, expected);
    check_server_ended();
    command_free(&run);
  }
  remove_agents();
}

TEST(what_cannot_be_started_is_an_error) {
  static const struct {
    const char *agent, *model, *error;
    int code;
  } cases[] = {{"vim", TINY, "launch expects claude, codex or aider, not 'vim'", MLX_USAGE},
               {"claude", "/nowhere/model.gguf", "the server ended with exit status", MLX_UNAVAILABLE}};
  command_t run;
  make_agents();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    RUN(&run, "launch", cases[i].agent, "-m", cases[i].model);
    CHECK_INT(run.exit_code, cases[i].code);
    CHECK_CONTAINS(run.err, cases[i].error);
    command_free(&run);
  }
  RUN(&run, "launch", "codex");
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "mlxcel launch codex -m MODEL");
  command_free(&run);
  CHECK(!setenv("PATH", "/nowhere", 1));
  RUN(&run, "launch", "aider", "-m", TINY);
  CHECK_INT(run.exit_code, MLX_NOT_FOUND);
  CHECK_CONTAINS(run.err, "there is no program 'aider' on PATH");
  command_free(&run);
  CHECK(!setenv("PATH", "/usr/bin:/bin", 1));
  remove_agents();
}

TEST_MAIN(CASE(each_agent_reaches_the_server_and_its_exit_status_is_returned),
          CASE(what_cannot_be_started_is_an_error))
