// Grammars whose masks take long: their sequences miss steps, and other sequences do not wait.
#include "tests/runtime/scheduler_rig.h"

// The grammar of |times| optional letters in a row, each of which is a way to parse the next one.
static mlx_grammar_t *optional_letters(int times) {
  mlx_text_t text = {0};
  mlx_grammar_t *made;
  mlx_text_puts(&text, "root ::=");
  for (int i = 0; i < times; ++i) mlx_text_puts(&text, " [a-z ]?");
  CHECK_OK(mlx_grammar_create("optional", text.data, text.length, &made));
  mlx_text_clear(&text);
  return made;
}

TEST(a_sequence_with_a_slow_grammar_misses_steps_and_the_others_do_not) {
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  mlx_grammar_t *slow = optional_letters(300);
  static job_t jobs[3];
  for (int64_t burst = 0; burst <= 8; burst += 8) {
    rig_t rig = plain_rig(4, 60);
    rig.fake.base.burst = burst;
    rig.mask_work = 1000;
    start(&rig, 256, &options);
    for (int i = 0; i < 3; ++i) {
      make_job(&jobs[i], 1, 0, 10, (uint64_t)i);
      jobs[i].options.max_tokens = i ? 30 : 8;
      jobs[i].options.ignore_eos = true;
      if (i != 2) jobs[i].options.grammar = i ? grammar : slow;
      if (i == 1) jobs[i].options.max_tokens = 5;
      submit(&rig, &jobs[i]);
    }
    int steps = 0;
    while (!mlx_request_is_done(jobs[1].request) || !mlx_request_is_done(jobs[2].request)) {
      step(&rig);
      ++steps;
    }
    CHECK(steps < 45);
    CHECK(mlx_request_generation(jobs[0].request)->count < 8);
    CHECK_OK(mlx_scheduler_run(rig.scheduler));
    CHECK_INT(mlx_request_generation(jobs[0].request)->count, 8);
    for (int i = 0; i < 3; ++i) check_job(&jobs[i], &rig, i);
    for (int i = 0; i < 3; ++i) release(&jobs[i]);
    stop(&rig);
  }
  mlx_grammar_free(slow);
}

TEST(a_grammar_that_is_too_slow_ends_its_request_only) {
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  mlx_grammar_t *slow = optional_letters(3000);
  static job_t jobs[2];
  for (int count = 1; count <= 2; ++count) {  // alone, and beside another request
    rig_t rig = plain_rig(4, 60);
    rig.fake.base.burst = 8;
    rig.mask_work = 1000;
    start(&rig, 256, &options);
    for (int i = 0; i < count; ++i) {
      make_job(&jobs[i], 1, 0, 10, (uint64_t)i);
      jobs[i].options.max_tokens = 20;
      if (!i) jobs[i].options.grammar = slow;
      submit(&rig, &jobs[i]);
    }
    CHECK_OK(mlx_scheduler_run(rig.scheduler));
    CHECK_ERROR(mlx_request_take_status(jobs[0].request), MLX_TIMEOUT, "the grammar is too slow");
    CHECK_INT(mlx_request_generation(jobs[0].request)->finish_reason, MLX_FINISH_ERROR);
    if (count > 1) check_job(&jobs[1], &rig, 1);
    for (int i = 0; i < count; ++i) release(&jobs[i]);
    stop(&rig);
  }
  mlx_grammar_free(slow);
}

TEST_MAIN(CASE(a_sequence_with_a_slow_grammar_misses_steps_and_the_others_do_not),
          CASE(a_grammar_that_is_too_slow_ends_its_request_only))
