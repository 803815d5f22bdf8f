// Window pages: the pool keeps them with published pages, and the scheduler frees those that leave the window
// while other layers keep all their pages.
#include "kernels/cpu/layout.h"
#include "tests/runtime/scheduler_rig.h"

#define WINDOW 20
#define STEP 16

// A network with a layer that sees WINDOW positions and one that sees all.
static rig_t mixed_rig(int64_t slots, int64_t pages, int64_t window_pages) {
  rig_t rig = plain_rig(slots, pages);
  rig.fake.base.max_tokens = STEP;
  rig.fake.base.window = WINDOW;
  rig.fake.base.window_pages = window_pages;
  return rig;
}

static void start_plain(rig_t *rig) {
  mlx_scheduler_options_t options;
  mlx_scheduler_options_initialize(&options);
  start(rig, 256, &options);
}

// Runs a job of |count| tokens of prompt, the first |shared| of which depend on |family| only. Returns the
// most window pages that were in use.
static int64_t run_job(rig_t *rig, uint64_t family, size_t shared, size_t count, uint64_t seed,
                       int64_t output) {
  static job_t job;
  int64_t most = 0;
  make_job(&job, family, shared, count, seed);
  job.options.max_tokens = output;
  job.options.ignore_eos = true;
  submit(rig, &job);
  for (bool idle = false; !idle;) {
    idle = step(rig);
    const int64_t used = mlx_scheduler_stats(rig->scheduler).window_pages_used;
    if (used > most) most = used;
  }
  check_job(&job, rig, 0);
  release(&job);
  return most;
}

static int64_t hits(const rig_t *rig) { return mlx_scheduler_stats(rig->scheduler).prefix_hits; }

// ----------------------------------------------------------------------------------------------------------
// The pool

static int32_t publish(mlx_pool_t *pool, int32_t parent, int32_t first) {
  int32_t ids[MLX_KV_PAGE];
  for (int i = 0; i < MLX_KV_PAGE; ++i) ids[i] = first + i;
  const int32_t page = mlx_pool_take(pool);
  CHECK_INT(mlx_pool_publish(pool, parent, page, ids, MLX_KV_PAGE), page);
  return page;
}

TEST(a_published_page_keeps_its_window_page) {
  mlx_pool_t *pool;
  CHECK_OK(mlx_pool_create(6, 4, 1, &pool));
  const int32_t page = publish(pool, 0, 0), window = mlx_pool_take_window(pool),
                other = mlx_pool_take_window(pool);
  CHECK_INT(mlx_pool_window_of(pool, page), 0);
  CHECK_INT(mlx_pool_keep_window(pool, page, window), window);
  CHECK_INT(mlx_pool_window_of(pool, page), window);
  CHECK_INT(mlx_pool_keep_window(pool, page, other), window);  // a second sequence computed the same
  CHECK_OK(mlx_pool_check(pool));
  CHECK_INT(mlx_pool_window_counts(pool).used, 1);
  mlx_pool_release_window(pool, window, false);
  mlx_pool_release_window(pool, window, false);
  CHECK_INT(mlx_pool_window_counts(pool).cached, 1);
  mlx_pool_release(pool, page);
  mlx_pool_forget(pool);  // the window page goes with its page
  CHECK_OK(mlx_pool_check(pool));
  CHECK_INT(mlx_pool_window_counts(pool).free, 3);
  CHECK_INT(mlx_pool_counts(pool).free, 5);
  mlx_pool_free(pool);
}

TEST(a_window_page_that_one_sequence_passed_is_evicted_first) {
  mlx_pool_t *pool;
  CHECK_OK(mlx_pool_create(8, 5, 1, &pool));
  int32_t pages[4], windows[4];
  for (int i = 0; i < 4; ++i) {
    pages[i] = publish(pool, i ? pages[i - 1] : 0, 100 * i);
    windows[i] = mlx_pool_take_window(pool);
    CHECK_INT(mlx_pool_keep_window(pool, pages[i], windows[i]), windows[i]);
  }
  mlx_pool_retain(pool, pages[0]);                   // page 0 is shared
  mlx_pool_release_window(pool, windows[0], true);   // passed, but shared
  mlx_pool_release_window(pool, windows[3], false);  // the end of a sequence
  mlx_pool_release_window(pool, windows[1], true);   // passed
  CHECK_INT(mlx_pool_take_window(pool), windows[1]);
  CHECK_INT(mlx_pool_window_of(pool, pages[1]), 0);
  CHECK_INT(mlx_pool_take_window(pool), windows[0]);
  CHECK_INT(mlx_pool_take_window(pool), windows[3]);
  CHECK_INT(mlx_pool_take_window(pool), 0);
  CHECK_OK(mlx_pool_check(pool));
  mlx_pool_free(pool);
}

// ----------------------------------------------------------------------------------------------------------
// The scheduler

// 200 positions are 13 pages. A window of 20 positions is on 3 pages at most, a step on 2.
TEST(a_long_sequence_holds_a_bounded_number_of_window_pages) {
  for (int64_t output = 50; output <= 106; output += 56) {
    rig_t rig = mixed_rig(1, 40, 40);
    start_plain(&rig);
    const int64_t most = run_job(&rig, 5, 0, 150, 1, output);
    if (most > MLX_WINDOW_PAGES_HELD(WINDOW, STEP)) CHECK_FAIL("%lld window pages", (long long)most);
    CHECK_INT(mlx_scheduler_stats(rig.scheduler).pages_cached, (150 + output - 1 + 15) / 16);
    stop(&rig);
  }
}

// The pool has window pages for one sequence only.
TEST(sequences_take_turns_if_window_pages_are_few) {
  static job_t jobs[3];
  rig_t rig = mixed_rig(3, 60, 1 + MLX_WINDOW_PAGES_HELD(WINDOW, STEP));
  start_plain(&rig);
  for (int i = 0; i < 3; ++i) {
    make_job(&jobs[i], (uint64_t)i, 0, 60, 0);
    jobs[i].options.max_tokens = 100;
    jobs[i].options.ignore_eos = true;
    submit(&rig, &jobs[i]);
  }
  for (bool idle = false; !idle;) idle = step(&rig);
  for (int i = 0; i < 3; ++i) {
    check_job(&jobs[i], &rig, i);
    release(&jobs[i]);
  }
  stop(&rig);
}

// The same prompt again, and the conversation that goes on.
TEST(a_prefix_is_found_by_the_window_pages_of_its_end) {
  rig_t rig = mixed_rig(1, 40, 2 + MLX_WINDOW_PAGES_HELD(WINDOW, STEP));
  start_plain(&rig);
  run_job(&rig, 5, 150, 150, 1, 1);
  CHECK_INT(hits(&rig), 0);
  run_job(&rig, 5, 150, 180, 2, 1);  // longer than the window pages of the whole prefix
  CHECK_INT(hits(&rig), 150);
  stop(&rig);
}

// Another sequence needs all window pages. The pages of the prefix are cached, but of no use.
TEST(a_prefix_without_its_window_pages_is_computed_again) {
  rig_t rig = mixed_rig(1, 60, 1 + MLX_WINDOW_PAGES_HELD(WINDOW, STEP));
  start_plain(&rig);
  run_job(&rig, 5, 150, 150, 1, 1);
  run_job(&rig, 6, 0, 150, 1, 50);
  run_job(&rig, 5, 150, 150, 1, 1);
  CHECK_INT(hits(&rig), 0);
  run_job(&rig, 5, 150, 150, 1, 1);  // the second time its window pages are there again
  CHECK_INT(hits(&rig), 149);
  stop(&rig);
}

// There is room for the window pages of three sequences. The long one passes 15 pages.
TEST(a_long_sequence_does_not_evict_the_window_pages_of_other_prefixes) {
  rig_t rig = mixed_rig(1, 60, 1 + 3 * MLX_WINDOW_PAGES_HELD(WINDOW, STEP));
  start_plain(&rig);
  run_job(&rig, 5, 90, 90, 1, 1);
  run_job(&rig, 6, 0, 40, 1, 200);
  run_job(&rig, 5, 90, 120, 2, 1);
  CHECK_INT(hits(&rig), 90);
  stop(&rig);
}

// Sequences that share 64 tokens of a system prompt and then differ: the pages at its end were passed by all.
TEST(the_end_of_a_shared_prefix_keeps_its_window_pages) {
  rig_t rig = mixed_rig(1, 200, 1 + 3 * MLX_WINDOW_PAGES_HELD(WINDOW, STEP));
  start_plain(&rig);
  run_job(&rig, 5, 64, 100, 1, 1);
  run_job(&rig, 5, 64, 100, 2, 1);
  int64_t before = hits(&rig);
  CHECK_INT(before, 64);
  for (uint64_t i = 0; i < 6; ++i) {
    run_job(&rig, 5, 64, 100, 3 + i, 100);  // a long answer
    CHECK_INT(hits(&rig) - before, 64);
    before = hits(&rig);
  }
  stop(&rig);
}

// The CPU kernel gets the size of the KV pool in 32 bits: 32 sequences of SmolLM2 at 8192 tokens are 3e9
// words.
TEST(a_large_kv_pool_is_a_small_number_of_units) {
  CHECK_INT(mlx_kv_unit(737280, 0, 0), 737280);
  CHECK_INT(mlx_kv_unit(5 * 4096, 21 * 4096, 0), 4096);
  CHECK_INT(mlx_kv_unit(12 * 4096, 12 * 4096, 0), 12 * 4096);
  CHECK_INT(mlx_kv_unit(12 * 4096, 0, 6144), 6144);
}

TEST_MAIN(CASE(a_large_kv_pool_is_a_small_number_of_units), CASE(a_published_page_keeps_its_window_page),
          CASE(a_window_page_that_one_sequence_passed_is_evicted_first),
          CASE(a_long_sequence_holds_a_bounded_number_of_window_pages),
          CASE(sequences_take_turns_if_window_pages_are_few),
          CASE(a_prefix_is_found_by_the_window_pages_of_its_end),
          CASE(a_prefix_without_its_window_pages_is_computed_again),
          CASE(a_long_sequence_does_not_evict_the_window_pages_of_other_prefixes),
          CASE(the_end_of_a_shared_prefix_keeps_its_window_pages))
