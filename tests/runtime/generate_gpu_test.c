// generate_test.c on a GPU: the tokens of Hugging Face, with every kernel that is linked into the module.
#include "tests/support/golden.h"
#include "tests/support/gpu.h"

#define OUTPUTS 48
#define LONGEST 2048

// PTX for sm_80 runs on every later GPU.
static void prepare(void) {
  gpu_compile(MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama",
              &(mlx_compile_options_t){.target = "cuda:sm_80"}, "tiny-llama.mlxb");
  gpu_copy(MLXCEL_SOURCE_DIR "/tests/goldens/tiny-llama.json", "tiny-llama.json");
}

TEST(tiny_model_on_the_gpu_matches_hf_token_for_token) {
  golden_t golden = golden_open(gpu_file("tiny-llama.json"));
  mlx_engine_t *engine = gpu_open("tiny-llama.mlxb");
  fprintf(stderr, "  %s, kernels: %s\n", mlx_engine_info(engine).gpu, mlx_engine_info(engine).kernels);
  mlx_generate_options_t options;
  mlx_generate_options_initialize(&options);
  options.max_tokens = OUTPUTS;
  options.ignore_eos = true;
  size_t number, count;
  yyjson_val *result;
  yyjson_arr_foreach(golden.results, number, count, result) {
    int32_t ids[LONGEST], expected[OUTPUTS];
    size_t length = golden_read_ids(yyjson_obj_get(result, "prompt_ids"), ids, LONGEST);
    CHECK_INT(golden_read_ids(yyjson_obj_get(result, "output_ids"), expected, OUTPUTS), OUTPUTS);
    mlx_session_t *session;
    mlx_generation_t generation;
    CHECK_OK(mlx_session_create(engine, &session));
    CHECK_OK(mlx_session_generate(session, ids, length, &options, &generation));
    CHECK_INT(generation.count, OUTPUTS);
    for (int i = 0; i < OUTPUTS; ++i) {
      if (generation.ids[i] == expected[i]) continue;
      CHECK_FAIL("prompt %zu: token %d is %d, expected %d", number, i, generation.ids[i], expected[i]);
    }
    mlx_generation_clear(&generation);
    mlx_session_free(session);
  }
  mlx_engine_close(engine);
  golden_close(&golden);
}

// Reads the third prompt of the golden; |expected| gets its output tokens.
static mlx_session_t *read_third_prompt(mlx_engine_t *engine, int32_t *expected, int32_t *out_next) {
  golden_t golden = golden_open(gpu_file("tiny-llama.json"));
  yyjson_val *result = yyjson_arr_get(golden.results, 2);
  int32_t ids[LONGEST];
  size_t length = golden_read_ids(yyjson_obj_get(result, "prompt_ids"), ids, LONGEST);
  golden_read_ids(yyjson_obj_get(result, "output_ids"), expected, OUTPUTS);
  golden_close(&golden);
  mlx_session_t *session;
  CHECK_OK(mlx_session_create(engine, &session));
  CHECK_OK(mlx_session_read(session, ids, length, out_next));
  return session;
}

TEST(decode_groups_on_the_gpu_match_single_steps) {
  mlx_engine_t *engine = gpu_open("tiny-llama.mlxb");
  int32_t expected[OUTPUTS], grouped[OUTPUTS], single[OUTPUTS];
  mlx_session_t *session = read_third_prompt(engine, expected, grouped);
  CHECK_OK(mlx_session_steps(session, grouped + 1, OUTPUTS - 1));
  mlx_session_free(session);
  session = read_third_prompt(engine, expected, single);
  for (int i = 1; i < OUTPUTS; ++i) CHECK_OK(mlx_session_step(session, &single[i]));
  mlx_session_free(session);
  CHECK(!memcmp(grouped, expected, sizeof grouped));
  CHECK(!memcmp(single, expected, sizeof single));
  mlx_engine_close(engine);
}

TEST(session_on_the_gpu_continues_after_a_rewind) {
  mlx_engine_t *engine = gpu_open("tiny-llama.mlxb");
  int32_t expected[OUTPUTS], chosen[OUTPUTS];
  for (int cut = 1; cut < OUTPUTS - 1; cut += 5) {
    mlx_session_t *session = read_third_prompt(engine, expected, chosen);
    int64_t length = mlx_session_length(session);
    CHECK_OK(mlx_session_steps(session, chosen + 1, OUTPUTS - 1));
    CHECK_OK(mlx_session_rewind(session, length + cut));
    CHECK_OK(mlx_session_read(session, expected + cut, 1, &chosen[cut + 1]));
    CHECK_OK(mlx_session_steps(session, chosen + cut + 2, (size_t)(OUTPUTS - cut - 2)));
    CHECK(!memcmp(chosen, expected, sizeof chosen));
    mlx_session_free(session);
  }
  mlx_engine_close(engine);
}

GPU_TEST_MAIN(prepare, CASE(tiny_model_on_the_gpu_matches_hf_token_for_token),
              CASE(decode_groups_on_the_gpu_match_single_steps),
              CASE(session_on_the_gpu_continues_after_a_rewind))
