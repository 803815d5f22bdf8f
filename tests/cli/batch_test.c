// mlxcel batch: results of every kind of request, shards, and going on after a kill at any moment.
#include <signal.h>

#include "base/clock.h"
#include "base/line_log.h"
#include "base/text.h"
#include "server/api/batch.h"
#include "tests/support/folder.h"
#include "tests/support/golden.h"
#include "tests/support/random_llama.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
#define FOR_TINY "-m", TINY, "--device", "cpu", "-c", "256"
#define REQUESTS 60

static void make_folder(void) {
  strcpy(folder, "/tmp/mlxcel-batch-XXXXXX");
  CHECK(mkdtemp(folder));
}

static void remove_folder(void) { CHECK_OK(mlx_remove_tree(folder)); }

// The path stays valid.
static const char *write_input(const char *text) {
  static char path[320];
  snprintf(path, sizeof path, "%s", in_folder("in.jsonl"));
  CHECK_OK(mlx_write_file(path, text, strlen(text)));
  return path;
}

static void check_refused(command_t *run, int code, const char *part) {
  if (run->exit_code != code) CHECK_FAIL("exit status %d, expected %d: %s", run->exit_code, code, run->err);
  CHECK_TEXT(run->out, "");
  CHECK_CONTAINS(run->err, part);
  command_free(run);
}

// Requests of all kinds, with answers of different lengths.
static const char *write_requests(void) {
  mlx_text_t text = {0};
  for (int i = 0; i < REQUESTS; ++i) {
    switch (i % 4) {
      case 0:
        mlx_text_printf(
            &text,
            "{\"custom_id\": \"c%d\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": "
            "{\"model\": \"m\", \"prompt\": \"the quick %d\", \"max_tokens\": %d, \"logprobs\": 1}}\n",
            i, i, 1 + i);
        break;
      case 1:
        mlx_text_printf(&text, "{\"prompt\": \"a lazy dog\", \"max_tokens\": %d, \"n\": 2}\n", 60 - i);
        break;
      case 2: mlx_text_printf(&text, "\"prompt %d\"\n\n", i); break;
      default:
        mlx_text_printf(&text, "{\"custom_id\": \"\\u00e4%d\", \"input\": [\"text %d\", \"the\"]}\n", i, i);
    }
  }
  CHECK_OK(mlx_text_finish(&text));
  const char *path = write_input(text.data);
  mlx_text_clear(&text);
  return path;
}

typedef struct lines {
  yyjson_doc *docs[REQUESTS + 4];
  size_t count;
} lines_t;

static lines_t read_lines(const char *path) {
  lines_t lines = {0};
  char *text;
  size_t length;
  CHECK_OK(mlx_read_file(path, SIZE_MAX, &text, &length));
  for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
    CHECK(lines.count < REQUESTS + 4);
    lines.docs[lines.count] = yyjson_read(line, (size_t)(end - line), 0);
    if (!lines.docs[lines.count++]) CHECK_FAIL("not JSON: %.*s", (int)(end - line), line);
  }
  mlx_free(text);
  return lines;
}

static yyjson_val *at(const lines_t *lines, size_t index, const char *pointer) {
  CHECK(index < lines->count);
  return yyjson_doc_ptr_get(lines->docs[index], pointer);
}

static void free_lines(lines_t *lines) {
  for (size_t i = 0; i < lines->count; ++i) yyjson_doc_free(lines->docs[i]);
}

static void check_same_file(const char *a, const char *b) {
  char *left, *right;
  size_t left_length, right_length;
  CHECK_OK(mlx_read_file(a, SIZE_MAX, &left, &left_length));
  CHECK_OK(mlx_read_file(b, SIZE_MAX, &right, &right_length));
  if (left_length != right_length || memcmp(left, right, left_length)) CHECK_FAIL("%s differs from %s", a, b);
  mlx_free(left);
  mlx_free(right);
}

static void check_no_file(const char *name) {
  if (mlx_is_file(in_folder(name))) CHECK_FAIL("%s is still there", name);
}

static void done(command_t *run) {
  if (run->exit_code) CHECK_FAIL("exit status %d: %s", run->exit_code, run->err);
  CHECK_TEXT(run->out, "");
  command_free(run);
}

// ----------------------------------------------------------------------------------------------------------
// Results

TEST(every_request_gets_the_result_that_openai_describes) {
  make_folder();
  command_t run;
  RUN(&run, "batch",
      write_input(
          "{\"custom_id\": \"first\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": "
          "{\"model\": \"any\", \"prompt\": \"the quick brown\", \"temperature\": 0, \"max_tokens\": 6, "
          "\"return_token_ids\": true}}\n"
          "\n  {\"prompt\": \"the\", \"temperature\": 1.5, \"seed\": 77, \"return_token_ids\": true}  \r\n"
          "\"a lazy dog\"\n"
          "{\"prompt\": \"x\", \"temperature\": -1}\n"
          "{\"custom_id\": \"e\", \"method\": \"POST\", \"url\": \"/v1/embeddings\", \"body\": "
          "{\"input\": [\"the\", \"quick\"]}}\n"
          "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}"),
      "-o", in_folder("out.jsonl"), FOR_TINY, "-n", "9");
  CHECK_CONTAINS(run.err, "6 of 6 requests, 6 of them now: prompt ");
  CHECK_CONTAINS(run.err, "note: 2 requests have an error as the result");
  done(&run);
  lines_t lines = read_lines(in_folder("out.jsonl"));
  static const char *const ids[] = {"first", "request-2", "request-3", "request-4", "e", "request-6"};
  static const int codes[] = {200, 200, 200, 400, 200, 400};
  CHECK_INT(lines.count, 6);
  for (size_t i = 0; i < 6; ++i) {
    CHECK_TEXT(yyjson_get_str(at(&lines, i, "/custom_id")), ids[i]);
    CHECK_INT(yyjson_get_int(at(&lines, i, "/response/status_code")), codes[i]);
    CHECK(yyjson_is_null(at(&lines, i, "/error")));
    CHECK(!strncmp(yyjson_get_str(at(&lines, i, "/id")), "batch_req_", 10));
    CHECK(!strncmp(yyjson_get_str(at(&lines, i, "/response/request_id")), "req_", 4));
    CHECK(!at(&lines, i, "/response/body/timings"));
  }
  CHECK_TEXT(yyjson_get_str(at(&lines, 0, "/response/body/object")), "text_completion");
  CHECK_INT(yyjson_get_int(at(&lines, 0, "/response/body/usage/completion_tokens")), 6);
  CHECK_INT(yyjson_get_int(at(&lines, 2, "/response/body/usage/completion_tokens")), 9);  // -n
  CHECK_TEXT(yyjson_get_str(at(&lines, 3, "/response/body/error/param")), "temperature");
  CHECK_INT(yyjson_arr_size(at(&lines, 4, "/response/body/data")), 2);
  CHECK_INT(yyjson_arr_size(at(&lines, 4, "/response/body/data/1/embedding")), 32);
  CHECK_CONTAINS(yyjson_get_str(at(&lines, 5, "/response/body/error/message")), "no chat template");
  // The tokens are those of the prompt alone.
  static const char *const alone[][4] = {{"the quick brown", "6", "0", "0"}, {"the", "9", "1.5", "77"}};
  for (size_t i = 0; i < 2; ++i) {
    RUN(&run, "run", FOR_TINY, "-p", alone[i][0], "-n", alone[i][1], "--temp", alone[i][2], "-s", alone[i][3],
        "--json");
    yyjson_doc *doc = yyjson_read(run.out, run.out_length, 0);
    CHECK(doc);
    check_ids("tokens", i, at(&lines, i, "/response/body/choices/0/token_ids"),
              yyjson_obj_get(yyjson_doc_get_root(doc), "output_ids"));
    yyjson_doc_free(doc);
    command_free(&run);
  }
  free_lines(&lines);
  remove_folder();
}

TEST(prompts_are_user_messages_of_a_chat_model) {
  make_folder();
  command_t run;
  lines_t lines;
  static const char *const chatml[] = {"--chat-template", "chatml"};
  CHECK_OK(mlx_write_file(in_folder("in.txt"), "hello\n{\"x\n", 10));
  RUN(&run, "batch", in_folder("in.txt"), "-o", in_folder("out"), FOR_TINY, "-n", "3", "-sys", "be brief",
      chatml[0], chatml[1]);
  done(&run);
  RUN(&run, "batch",
      write_input("{\"messages\": [{\"role\": \"system\", \"content\": \"be brief\"}, {\"role\": \"user\", "
                  "\"content\": \"hello\"}]}\n{\"prompt\": \"hello\"}\n"),
      "-o", in_folder("other"), FOR_TINY, "-n", "3", chatml[0], chatml[1]);
  done(&run);
  lines = read_lines(in_folder("out"));
  lines_t others = read_lines(in_folder("other"));
  CHECK_INT(lines.count, 2);
  CHECK_TEXT(yyjson_get_str(at(&lines, 0, "/response/body/object")), "chat.completion");
  CHECK_TEXT(yyjson_get_str(at(&lines, 0, "/response/body/choices/0/message/content")),
             yyjson_get_str(at(&others, 0, "/response/body/choices/0/message/content")));
  const int64_t with_system = yyjson_get_int(at(&lines, 0, "/response/body/usage/prompt_tokens"));
  CHECK_INT(yyjson_get_int(at(&others, 0, "/response/body/usage/prompt_tokens")), with_system);
  CHECK(yyjson_get_int(at(&others, 1, "/response/body/usage/prompt_tokens")) < with_system);
  free_lines(&lines);
  free_lines(&others);
  remove_folder();
}

// ----------------------------------------------------------------------------------------------------------
// Shards

TEST(any_number_of_shards_and_sequences_gives_the_same_bytes) {
  static const int counts[] = {2, 7};
  make_folder();
  const char *in = write_requests();
  command_t run;
  RUN(&run, "batch", in, "-o", in_folder("whole"), FOR_TINY, "-n", "20");
  done(&run);
  RUN(&run, "batch", in, "-o", in_folder("narrow"), FOR_TINY, "-n", "20", "-np", "1");
  done(&run);
  check_same_file(in_folder("whole"), in_folder("narrow"));
  for (size_t i = 0; i < 2; ++i) {
    char name[32], part[64], shard[32];
    snprintf(name, sizeof name, "out-%d", counts[i]);
    for (int k = counts[i] - 1; k >= 0; --k) {
      snprintf(shard, sizeof shard, "%d/%d", k, counts[i]);
      snprintf(part, sizeof part, "%s.%d-of-%d", name, k, counts[i]);
      RUN(&run, "batch", in, "-o", in_folder(name), FOR_TINY, "-n", "20", "--shard", shard);
      done(&run);
      CHECK(mlx_is_file(in_folder(k ? part : name)));
    }
  }
  check_same_file(in_folder("whole"), in_folder("out-2"));
  check_same_file(in_folder("whole"), in_folder("out-7"));
  check_no_file("out-7.0-of-7");
  // A task that is started again finds that everything is done.
  RUN(&run, "batch", in, "-o", in_folder("out-7"), FOR_TINY, "-n", "20", "--shard", "1/7");
  CHECK_CONTAINS(run.err, "all 9 results are there already");
  done(&run);
  remove_folder();
}

TEST(a_shard_without_requests_is_done_at_once) {
  static const char *const shards[] = {"2/3", "0/3", "1/3"};
  make_folder();
  const char *in = write_input("\"a\"\n\"b\"\n");
  command_t run;
  for (size_t i = 0; i < 3; ++i) {
    RUN(&run, "batch", in, "-o", in_folder("out"), FOR_TINY, "-n", "2", "--shard", shards[i]);
    done(&run);
  }
  lines_t lines = read_lines(in_folder("out"));
  CHECK_INT(lines.count, 2);
  free_lines(&lines);
  remove_folder();
}

typedef struct variables {
  const char *text;  // NAME=VALUE, with spaces between
  int code;
  const char *part;  // of stderr
} variables_t;

TEST(a_shard_comes_from_slurm_and_open_mpi) {
  static const variables_t cases[] = {
      {"SLURM_ARRAY_TASK_ID=5 SLURM_ARRAY_TASK_MIN=3 SLURM_ARRAY_TASK_MAX=7 SLURM_ARRAY_TASK_COUNT=3 "
       "SLURM_ARRAY_TASK_STEP=2",
       0, "shard 1 of 3 is in"},
      {"SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_MAX=1 SLURM_ARRAY_TASK_COUNT=2 "
       "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2",
       0, "shard 3 of 4 is in"},
      {"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=9", 0,
       "shard 2 of 4 is in"},
      {"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4", 0, "shard 1 of 4 is in"},
      // The script of sbatch has these too: it is one process.
      {"SLURM_PROCID=0 SLURM_NTASKS=4", 0, "4 of 4 requests"},
      {"SLURM_ARRAY_TASK_ID=1 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=9 SLURM_ARRAY_TASK_COUNT=3",
       MLX_USAGE, "the indices of the Slurm array are not a range"},
      {"OMPI_COMM_WORLD_RANK=2", MLX_USAGE, "the environment variable OMPI_COMM_WORLD_SIZE is not set"},
      {"SLURM_PROCID=x SLURM_STEP_NUM_TASKS=4", MLX_USAGE, "SLURM_PROCID is 'x', not a whole number"}};
  make_folder();
  const char *in = write_input("\"a\"\n\"b\"\n\"c\"\n\"d\"\n");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    char script[1024];
    command_t run;
    snprintf(script, sizeof script, "cd %s; env %s %s batch %s -o out-%zu -m %s --device cpu -c 256 -n 2",
             folder, cases[i].text, MLXCEL_BINARY, in, i, TINY);
    command_start(&run, (const char *const[]){"/bin/sh", "-c", script, NULL});
    command_wait(&run);
    if (run.exit_code != cases[i].code)
      CHECK_FAIL("%s: exit status %d: %s", cases[i].text, run.exit_code, run.err);
    CHECK_CONTAINS(run.err, cases[i].part);
    command_free(&run);
  }
  command_t run;
  RUN(&run, "batch", in, "-o", in_folder("o"), "-m", TINY, "--shard", "4/4");
  check_refused(&run, MLX_USAGE, "--shard: there is no shard 4 of 4");
  RUN(&run, "batch", in, "-o", in_folder("o"), "-m", TINY, "--shard", "1:4");
  check_refused(&run, MLX_USAGE, "option --shard expects INDEX/COUNT");
  remove_folder();
}

// ----------------------------------------------------------------------------------------------------------
// Ends of any kind

// Waits until the file has more than |size| bytes, or the process has ended. Returns true if it has ended.
static bool wait_for_bytes(const command_t *run, const char *path, long size) {
  struct stat info;
  for (;;) {
    siginfo_t ended = {0};
    if (!waitid(P_PID, (id_t)run->pid, &ended, WEXITED | WNOHANG | WNOWAIT) && ended.si_pid) return true;
    if (!stat(path, &info) && info.st_size > size) return false;
    mlx_sleep_ms(1);
  }
}

// What a killed process left begins with what the one before it left, and no request is there twice.
static long check_left(const char *path, mlx_text_t *before, bool *seen) {
  char *text;
  size_t length;
  mlx_batch_id_t id;
  uint64_t index;
  int code;
  mlx_status_t status = mlx_read_file(path, SIZE_MAX, &text, &length);
  if (status) {  // killed before it was made, or after the end
    mlx_status_free(status);
    return 0;
  }
  while (length && text[length - 1] != '\n') --length;  // torn
  if (length < before->length || memcmp(text, before->data ? before->data : "", before->length))
    CHECK_FAIL("results were lost");
  memset(seen, 0, REQUESTS * sizeof *seen);
  for (char *line = text, *end; line < text + length; line = end + 1) {
    end = memchr(line, '\n', length - (size_t)(line - text));
    CHECK(mlx_batch_result_read(line, (size_t)(end - line), &index, &id, &code));
    CHECK(index < REQUESTS && !seen[index]);
    seen[index] = true;
  }
  before->length = 0;
  mlx_text_append(before, text, length);
  mlx_free(text);
  return (long)length;
}

TEST(killed_at_random_moments_nothing_is_lost_and_nothing_done_twice) {
  make_folder();
  const char *in = write_requests();
  char out[320], partial[320];
  snprintf(out, sizeof out, "%s", in_folder("out"));
  snprintf(partial, sizeof partial, "%s", in_folder("out.partial"));
  mlx_text_t before = {0};
  bool seen[REQUESTS], ended = false;
  uint64_t random = 2026;
  int kills = 0;
  long left = 0;
  command_t run;
  RUN(&run, "batch", in, "-o", in_folder("whole"), FOR_TINY, "-n", "20");
  done(&run);
  while (!ended) {
    command_start(&run, (const char *const[]){MLXCEL_BINARY, "batch", in, "-o", out, FOR_TINY, "-n", "20",
                                              "-np", "2", NULL});
    // Some are killed before their first result.
    if (kills % 4 == 3)
      mlx_sleep_ms((int)(random_bits(&random) % 100));
    else
      ended = wait_for_bytes(&run, partial, left + (long)(random_bits(&random) % 6000));
    kill((pid_t)run.pid, SIGKILL);
    command_wait(&run);
    if (run.exit_code != -SIGKILL && run.exit_code) CHECK_FAIL("exit status %d: %s", run.exit_code, run.err);
    ended = run.exit_code == 0;
    command_free(&run);
    kills += !ended;
    if (!ended && !mlx_is_file(out)) left = check_left(partial, &before, seen);
    CHECK(kills < 200);
  }
  fprintf(stderr, "  %d kills\n", kills);
  CHECK(kills > 3);
  check_same_file(in_folder("whole"), out);
  check_no_file("out.partial");
  mlx_text_clear(&before);
  remove_folder();
}

TEST(a_torn_last_line_is_done_again) {
  make_folder();
  const char *in = write_input("\"a\"\n\"b\"\n\"c\"\n");
  char *whole;
  size_t length;
  command_t run;
  RUN(&run, "batch", in, "-o", in_folder("whole"), FOR_TINY, "-n", "3");
  done(&run);
  CHECK_OK(mlx_read_file(in_folder("whole"), SIZE_MAX, &whole, &length));
  const size_t first = (size_t)(strchr(whole, '\n') - whole) + 1;
  // Cut in the second line, with and without a line feed, and a line of zeros as after a loss of power.
  for (int i = 0; i < 3; ++i) {
    mlx_text_t text = {0};
    mlx_text_append(&text, whole, i == 2 ? first : first + 40);
    mlx_text_append(&text, "\0\0\0\0\n", i == 0 ? 0 : i == 1 ? 0 : 5);
    if (i == 1) mlx_text_puts(&text, "\n");
    CHECK_OK(mlx_write_file(in_folder("out.partial"), text.data, text.length));
    mlx_text_clear(&text);
    RUN(&run, "batch", in, "-o", in_folder("out"), FOR_TINY, "-n", "3");
    CHECK_CONTAINS(run.err, "going on after 1 result\n");
    CHECK_CONTAINS(run.err, "3 of 3 requests, 2 of them now");
    done(&run);
    check_same_file(in_folder("whole"), in_folder("out"));
    CHECK(!unlink(in_folder("out")));
  }
  // All results are there, but their order is not: killed before OUT was written.
  mlx_text_t text = {0};
  mlx_text_append(&text, whole + first, length - first);
  mlx_text_append(&text, whole, first);
  CHECK_OK(mlx_write_file(in_folder("out.partial"), text.data, text.length));
  RUN(&run, "batch", in, "-o", in_folder("out"), FOR_TINY, "-n", "3");
  done(&run);
  check_same_file(in_folder("whole"), in_folder("out"));
  check_no_file("out.partial");
  // A line in the middle that is damaged is not one of a killed process.
  CHECK(!unlink(in_folder("out")));
  text.data[3] = '\1';
  CHECK_OK(mlx_write_file(in_folder("out.partial"), text.data, text.length));
  RUN(&run, "batch", in, "-o", in_folder("out"), FOR_TINY, "-n", "3");
  check_refused(&run, MLX_INVALID_INPUT, "out.partial:1: this is not a line that was written here");
  mlx_text_clear(&text);
  mlx_free(whole);
  remove_folder();
}

TEST(results_of_another_batch_are_not_mixed_in) {
  make_folder();
  const char *in = write_input("\"a\"\n\"b\"\n");
  command_t run;
  RUN(&run, "batch", in, "-o", in_folder("out"), FOR_TINY, "-n", "3");
  done(&run);
  RUN(&run, "batch", in, "-o", in_folder("out"), FOR_TINY, "-n", "3");
  CHECK_CONTAINS(run.err, "all 2 results are there already");
  done(&run);
  RUN(&run, "batch", in, "-o", in_folder("out"), FOR_TINY, "-n", "4");
  check_refused(&run, MLX_INVALID_INPUT, "has results of another input, model or options");
  RUN(&run, "batch", write_input("\"a\"\n\"c\"\n"), "-o", in_folder("out"), FOR_TINY, "-n", "3");
  check_refused(&run, MLX_INVALID_INPUT, "has results of another input, model or options");
  CHECK(!rename(in_folder("out"), in_folder("out.partial")));
  RUN(&run, "batch", in, "-o", in_folder("out"), FOR_TINY, "-n", "3");
  check_refused(&run, MLX_INVALID_INPUT, "has results of another input, model or options");
  remove_folder();
}

static bool accepts_all(void *user, const char *line, size_t length) {
  (void)user;
  (void)line;
  (void)length;
  return true;
}

TEST(one_process_at_a_time_writes_an_output) {
  make_folder();
  const char *in = write_input("\"a\"\n");
  mlx_line_log_t log;
  command_t run;
  CHECK_OK(mlx_line_log_open(in_folder("out.partial"), accepts_all, NULL, &log));
  RUN(&run, "batch", in, "-o", in_folder("out"), FOR_TINY);
  check_refused(&run, MLX_UNAVAILABLE, "another process is writing");
  mlx_line_log_close(&log);
  RUN(&run, "batch", in, "-o", in_folder("out"), FOR_TINY, "-n", "1");
  done(&run);
  remove_folder();
}

TEST(ctrl_c_keeps_what_is_done) {
  make_folder();
  const char *in = write_input(
      "{\"prompt\": \"a\", \"max_tokens\": 1}\n"
      "{\"prompt\": \"b\", \"max_tokens\": 240, \"n\": 128, \"ignore_eos\": true}\n");
  command_t run;
  command_start(&run, (const char *const[]){MLXCEL_BINARY, "batch", in, "-o", in_folder("out"), FOR_TINY,
                                            "-np", "1", NULL});
  CHECK(!wait_for_bytes(&run, in_folder("out.partial"), 0));
  kill((pid_t)run.pid, SIGINT);
  command_wait(&run);
  CHECK_INT(run.exit_code, -SIGINT);
  CHECK_CONTAINS(run.err, "1 of 2 requests, 1 of them now");
  command_free(&run);
  CHECK(mlx_is_file(in_folder("out.partial")));
  remove_folder();
}

// ----------------------------------------------------------------------------------------------------------
// Input

TEST(a_bad_request_is_refused_before_any_work) {
  static const struct {
    const char *text, *part;
  } cases[] = {
      {"\n\n", "in.jsonl: the file has no request"},
      {"\"a\"\n\n{\"prompt\": 5}\n", "in.jsonl:3: prompt: expected a string"},
      {"\"a\"\n{\"prompt\": \"a\"\n", "in.jsonl:2: request: "},
      {"[1]\n", "in.jsonl:1: request: "},
      {"{\"prompt\": \"a\", \"prompt\": \"b\"}\n", "in.jsonl:1: request: field 'prompt' is given twice"},
      {"{\"seed\": 1}\n", "in.jsonl:1: expected \"body\", or one of \"messages\", \"prompt\" and \"input\""},
      {"{\"custom_id\": 7, \"prompt\": \"a\"}\n", "in.jsonl:1: custom_id: expected a string"},
      {"{\"custom_id\": \"x\", \"prompt\": \"a\"}\n\"b\"\n{\"custom_id\": \"x\", \"prompt\": \"a\"}\n",
       "in.jsonl:3: custom_id: 'x' is that of request 1 too"},
      {"{\"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"a\"}}\n",
       "in.jsonl:1: custom_id: is missing"},
      {"{\"custom_id\": \"x\", \"method\": \"GET\", \"url\": \"/v1/completions\", \"body\": {}}\n",
       "in.jsonl:1: method: expected \"POST\""},
      {"{\"custom_id\": \"x\", \"method\": \"POST\", \"url\": \"/v1/models\", \"body\": {}}\n",
       "in.jsonl:1: url: expected /v1/chat/completions, "},
      {"{\"custom_id\": \"x\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": 1}\n",
       "in.jsonl:1: body: expected an object"},
      {"{\"prompt\": \"a\", \"stream\": true}\n", "in.jsonl:1: body.stream: a batch has whole answers"}};
  make_folder();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    command_t run;
    RUN(&run, "batch", write_input(cases[i].text), "-o", in_folder("out"), FOR_TINY);
    CHECK(!mlx_is_file(in_folder("out.partial")));
    check_refused(&run, MLX_INVALID_INPUT, cases[i].part);
  }
  command_t run;
  RUN(&run, "batch", write_input("{\"prompt\": \"a\", \"model\": \"x\"}\n{\"prompt\": \"a\"}\n"), "-o",
      in_folder("out"));
  check_refused(&run, MLX_USAGE, "the requests do not name one model");
  RUN(&run, "batch", in_folder("in.jsonl"), "-m", TINY);
  check_refused(&run, MLX_USAGE, "no file for the results was given");
  RUN(&run, "batch", in_folder("none.jsonl"), "-o", in_folder("out"), FOR_TINY);
  check_refused(&run, MLX_NOT_FOUND, "none.jsonl");
  RUN(&run, "run", FOR_TINY, "-f", in_folder("in.jsonl"));
  check_refused(&run, MLX_USAGE, "is a file of requests, not a prompt");
  char line[640];
  snprintf(line, sizeof line, "{\"prompt\": \"a\", \"model\": \"%s\"}\n", TINY);  // the model of the requests
  RUN(&run, "batch", write_input(line), "-o", in_folder("out"), "--device", "cpu", "-c", "256", "-n", "1");
  done(&run);
  remove_folder();
}

TEST_MAIN(CASE(every_request_gets_the_result_that_openai_describes),
          CASE(prompts_are_user_messages_of_a_chat_model),
          CASE(any_number_of_shards_and_sequences_gives_the_same_bytes),
          CASE(a_shard_without_requests_is_done_at_once), CASE(a_shard_comes_from_slurm_and_open_mpi),
          CASE(killed_at_random_moments_nothing_is_lost_and_nothing_done_twice),
          CASE(a_torn_last_line_is_done_again), CASE(results_of_another_batch_are_not_mixed_in),
          CASE(one_process_at_a_time_writes_an_output), CASE(ctrl_c_keeps_what_is_done),
          CASE(a_bad_request_is_refused_before_any_work))
