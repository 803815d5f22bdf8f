// Networks with recurrent layers on GPUs: their launches and states, the images that NVRTC compiles, and what
// is refused. tests/kernels/recurrent_emulated.py runs the kernels. Needs no GPU.
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "compiler/compile.h"
#include "compiler/plan.h"
#include "tests/support/architectures.h"
#include "tests/support/command.h"
#include "tests/support/compile_jobs.h"
#include "tests/support/quick_nvrtc.h"

static const struct {
  const char *name;
  int convolutions, deltas, scans;  // in one function
  bool scales;                      // the logits, or has experts without a gate: IREE computes and copies
} networks[] = {{"lfm2", 2, 0, 0, false},
                {"qwen3_5", 3, 3, 0, false},
                {"falcon_h1", 2, 0, 2, true},
                {"granitemoehybrid", 2, 0, 2, true},
                {"nemotron_h-experts", 2, 0, 2, true},
                {"mamba2", 2, 0, 2, false},
                {"mamba", 2, 0, 2, true},
                {"jamba", 3, 0, 3, true}};
#define NETWORKS (sizeof networks / sizeof *networks)

static const char *fixture(const char *name) {
  static char path[256];
  snprintf(path, sizeof path, FIXTURES "%s", name);
  return path;
}

static mlx_compile_options_t options_for(const char *target, mlx_kernel_choice_t kernels) {
  return (mlx_compile_options_t){.target = target,
                                 .weights = MLX_WEIGHTS_AUTO,
                                 .context = 64,
                                 .kv = MLX_F32,
                                 .kv_given = true,
                                 .kernels = kernels};
}

static int count_text(const char *text, const char *part) {
  int count = 0;
  for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) ++count;
  return count;
}

// A state is whole rows of |kv|, as the manifest requires, and starts at a multiple of 16 bytes.
static void check_facts(const mlx_compile_job_t *job, const mlx_module_facts_t *facts) {
  const mlx_dtype_t kv = job->module.kv;
  const int64_t row = kv == MLX_Q8_0 ? 4 : facts->kv_row * (int64_t)mlx_dtype_info(kv)->block_bytes,
                bytes = 4 * mlx_graph_state_numbers(job->graph);
  CHECK(facts->recurrent_bytes >= bytes && facts->recurrent_bytes < bytes + row);
  CHECK_INT(facts->recurrent_bytes % row, 0);
  CHECK_INT(facts->recurrent_bytes % 16, 0);
  CHECK_INT(facts->page_bytes % 16, 0);
  CHECK(facts->ragged && facts->samples);
}

// The decode kernel computes a step of one token and a burst of a network without scans; a step of 512 tokens
// has single launches.
TEST(one_launch_decodes_and_single_launches_of_a_prompt_update_the_states) {
  static const mlx_dtype_t kvs[] = {MLX_F32, MLX_BF16, MLX_Q8_0};
  static const mlx_step_size_t sizes[] = {{1, 1}, {512, 256}};
  for (size_t i = 0; i < NETWORKS * 3; ++i) {
    mlx_compile_options_t options = options_for("cuda:sm_90", MLX_KERNELS_AUTO);
    mlx_module_facts_t facts;
    mlx_decode_plan_t plan;
    mlx_compile_job_t job;
    bool fits;
    options.kv = kvs[i % 3];
    begin_job(fixture(networks[i / 3].name), &options, &job);
    CHECK_OK(mlx_decode_plan_make(job.model, job.graph, &job.module, &plan, &fits));
    if (!fits) CHECK_TEXT(plan.misfit.why, "is a selective scan");
    CHECK_INT(fits, !networks[i / 3].scans);
    mlx_module_options_set_steps(sizes, 2, &job.module);
    CHECK_OK(mlx_module_emit_sized(job.model, job.graph, &job.module, &job.mlir, &job.mlir_length, &facts));
    check_facts(&job, &facts);
    CHECK_INT(facts.burst > 0, fits);
    const int functions = fits ? 1 : 2;  // with single launches
    CHECK_INT(count_text(job.mlir, "::@mlx_convolve["), functions * networks[i / 3].convolutions);
    CHECK_INT(count_text(job.mlir, "::@mlx_delta["), functions * networks[i / 3].deltas);
    CHECK_INT(count_text(job.mlir, "::@mlx_scan["), functions * networks[i / 3].scans);
    CHECK_INT(count_text(job.mlir, "::@mlx_decode["), fits ? 2 : 0);
    CHECK_INT(strstr(job.mlir, "@burst(") != NULL, fits);
    end_job(&job);
  }
}

// OLMo Hybrid: three convolutions whose results are joined, and a factor of beta, which the decode kernel
// does not have.
TEST(a_factor_of_beta_has_single_launches) {
  const mlx_compile_options_t options = options_for("cuda:sm_90", MLX_KERNELS_AUTO);
  mlx_decode_plan_t plan;
  mlx_compile_job_t job;
  bool fits;
  begin_job(fixture("olmo_hybrid"), &options, &job);
  CHECK_OK(mlx_decode_plan_make(job.model, job.graph, &job.module, &plan, &fits));
  CHECK(!fits);
  emit_job(&job);
  CHECK_CONTAINS(job.mlir, "::@mlx_convolve[");
  CHECK_CONTAINS(job.mlir, "::@mlx_delta[");
  CHECK_CONTAINS(job.mlir, "stablehlo.concatenate");
  end_job(&job);
}

// The KV pool, of which a function sees one row, is bound to the kernels that write its states.
TEST(steps_copy_nothing) {
  for (size_t i = 0; i < NETWORKS; ++i) {
    if (networks[i].scales) continue;
    const mlx_compile_options_t options = options_for("cuda:sm_90", MLX_KERNELS_AUTO);
    char file[] = "/tmp/mlxcel-recurrent-XXXXXX";
    mlx_compile_job_t job;
    command_t compile;
    const int opened = mkstemp(file);
    CHECK(opened >= 0 && !close(opened));
    begin_job(fixture(networks[i].name), &options, &job);
    emit_job(&job);
    CHECK_OK(mlx_write_file(file, job.mlir, job.mlir_length));
    command_start(&compile, (const char *const[]){MLXCEL_TEST_IREE_COMPILE, "--compile-to=stream",
                                                  "--iree-execution-model=async-external",
                                                  "--iree-hal-target-device=cuda", "--iree-cuda-target=sm_90",
                                                  file, "-o", "-", NULL});
    command_wait(&compile);
    if (compile.exit_code) CHECK_FAIL("iree-compile fails on %s: %s", networks[i].name, compile.err);
    CHECK_CONTAINS(compile.out, "@mlx_convolve");
    if (strstr(compile.out, "stream.cmd.copy")) CHECK_FAIL("%s copies", networks[i].name);
    command_free(&compile);
    end_job(&job);
    CHECK(!unlink(file));
  }
}

// The pages of attention layers, and where the state of each layer is.
TEST(decode_kernel_knows_the_kind_and_the_places_of_each_layer) {
  static const struct {
    const char *name, *lines[8];
  } cases[] = {
      {"lfm2",
       {"attention_layers=1", "filter_taps=3", "recurrent_layers:u8=1,0,1", "page_layers:u16=0,0,0",
        "state_places:u32=0,0,0,0,64,0"}},
      {"qwen3_5",
       {"attention_layers=1", "gated_heads=1", "filter_taps=4", "value_heads=4", "delta_rows_format=1",
        "recurrent_layers:u8=1,0,1,1", "state_places:u32=0,480,0,0,2016,2496,4032,4512"}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    const mlx_compile_options_t options = options_for("cuda:sm_90", MLX_KERNELS_AUTO);
    mlx_compile_job_t job;
    begin_job(fixture(cases[i].name), &options, &job);
    emit_job(&job);
    const char *definitions = job_definitions(&job, MLX_KERNEL_DECODE);
    CHECK(definitions);
    for (size_t k = 0; k < 8 && cases[i].lines[k]; ++k) {
      char line[80];
      snprintf(line, sizeof line, "\n%s\n", cases[i].lines[k]);
      CHECK_CONTAINS(definitions, line);
    }
    end_job(&job);
  }
}

// A network that the decode kernel does not take: each launch updates the states in a step of one token too.
TEST(a_delta_rule_of_another_form_decodes_op_by_op) {
  const mlx_compile_options_t options = options_for("cuda:sm_90", MLX_KERNELS_AUTO);
  mlx_decode_plan_t plan;
  mlx_compile_job_t job;
  mlx_node_t *last = NULL;
  bool fits;
  begin_job(fixture("qwen3_5"), &options, &job);
  for (size_t i = 0; i < job.graph->count; ++i)
    if (job.graph->nodes[i].kind == MLX_NODE_DELTA) last = &job.graph->nodes[i];
  CHECK(last);
  const mlx_delta_t before = last->delta;
  last->delta.eps = 0.5;
  CHECK_OK(mlx_decode_plan_make(job.model, job.graph, &job.module, &plan, &fits));
  CHECK(!fits);
  CHECK_INT(plan.misfit.node, last - job.graph->nodes + 1);
  CHECK_TEXT(plan.misfit.why, "has another value than the first layer");
  emit_job(&job);
  CHECK_INT(count_text(job.mlir, "::@mlx_convolve["), 6);
  CHECK_INT(count_text(job.mlir, "::@mlx_delta["), 6);
  CHECK(!strstr(job.mlir, "@burst(") && !job_definitions(&job, MLX_KERNEL_DECODE));
  last->delta = before;
  end_job(&job);
}

// ----------------------------------------------------------------------------------------------------------
// Sizes of published models

// A tensor of a sparse file; dims end with 0. layer 2: layers 0 and 1 have it; NONE: it is in no layer.
#define NONE -1
typedef struct sparse_tensor {
  int layer;
  const char *name;
  int dims[4];
} sparse_tensor_t;

// Layers of Qwen3.5-9B: the delta rule, and attention.
static const sparse_tensor_t qwen3_5_9b[] = {
    {NONE, "model.embed_tokens.weight", {248320, 4096}},
    {NONE, "model.norm.weight", {4096}},
    {NONE, "lm_head.weight", {248320, 4096}},
    {2, "input_layernorm.weight", {4096}},
    {2, "post_attention_layernorm.weight", {4096}},
    {2, "mlp.gate_proj.weight", {12288, 4096}},
    {2, "mlp.up_proj.weight", {12288, 4096}},
    {2, "mlp.down_proj.weight", {4096, 12288}},
    {0, "linear_attn.in_proj_qkv.weight", {8192, 4096}},
    {0, "linear_attn.in_proj_z.weight", {4096, 4096}},
    {0, "linear_attn.in_proj_b.weight", {32, 4096}},
    {0, "linear_attn.in_proj_a.weight", {32, 4096}},
    {0, "linear_attn.conv1d.weight", {8192, 1, 4}},
    {0, "linear_attn.A_log", {32}},
    {0, "linear_attn.dt_bias", {32}},
    {0, "linear_attn.norm.weight", {128}},
    {0, "linear_attn.out_proj.weight", {4096, 4096}},
    {1, "self_attn.q_proj.weight", {8192, 4096}},
    {1, "self_attn.k_proj.weight", {1024, 4096}},
    {1, "self_attn.v_proj.weight", {1024, 4096}},
    {1, "self_attn.o_proj.weight", {4096, 4096}},
    {1, "self_attn.q_norm.weight", {256}},
    {1, "self_attn.k_norm.weight", {256}},
    {NONE, NULL, {0}},
};
static const char qwen3_5_9b_config[] =
    "{\"model_type\":\"qwen3_5_text\",\"vocab_size\":248320,\"hidden_size\":4096,\"intermediate_size\":12288,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":16,\"num_key_value_heads\":4,\"head_dim\":256,"
    "\"layer_types\":[\"linear_attention\",\"full_attention\"],\"linear_num_key_heads\":16,"
    "\"linear_num_value_heads\":32,\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,"
    "\"linear_conv_kernel_dim\":4,\"rms_norm_eps\":1e-6,\"rope_theta\":1e7,\"hidden_act\":\"silu\","
    "\"max_position_embeddings\":4096,\"tie_word_embeddings\":false,\"dtype\":\"bfloat16\"}";

// Layers of LFM2-1.2B: the short convolution, and attention.
static const sparse_tensor_t lfm2_1_2b[] = {
    {NONE, "model.embed_tokens.weight", {65536, 2048}},
    {NONE, "model.embedding_norm.weight", {2048}},
    {2, "operator_norm.weight", {2048}},
    {2, "ffn_norm.weight", {2048}},
    {2, "feed_forward.w1.weight", {8192, 2048}},
    {2, "feed_forward.w3.weight", {8192, 2048}},
    {2, "feed_forward.w2.weight", {2048, 8192}},
    {0, "conv.in_proj.weight", {6144, 2048}},
    {0, "conv.conv.weight", {2048, 1, 3}},
    {0, "conv.out_proj.weight", {2048, 2048}},
    {1, "self_attn.q_proj.weight", {2048, 2048}},
    {1, "self_attn.k_proj.weight", {512, 2048}},
    {1, "self_attn.v_proj.weight", {512, 2048}},
    {1, "self_attn.out_proj.weight", {2048, 2048}},
    {1, "self_attn.q_layernorm.weight", {64}},
    {1, "self_attn.k_layernorm.weight", {64}},
    {NONE, NULL, {0}},
};
static const char lfm2_1_2b_config[] =
    "{\"model_type\":\"lfm2\",\"vocab_size\":65536,\"hidden_size\":2048,\"intermediate_size\":8192,"
    "\"block_ff_dim\":12288,\"block_auto_adjust_ff_dim\":true,\"block_multiple_of\":256,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":32,\"num_key_value_heads\":8,"
    "\"layer_types\":[\"conv\",\"full_attention\"],\"conv_L_cache\":3,\"conv_bias\":false,\"norm_eps\":1e-5,"
    "\"rope_theta\":1e6,\"max_position_embeddings\":4096,\"tie_word_embeddings\":true,\"dtype\":"
    "\"bfloat16\"}";

static void add_sparse(mlx_text_t *header, const char *name, const int dims[4], uint64_t *at) {
  uint64_t bytes = 2;
  mlx_text_printf(header, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[", *at ? "," : "{", name);
  for (int i = 0; i < 4 && dims[i]; bytes *= (uint64_t)dims[i++])
    mlx_text_printf(header, "%s%d", i ? "," : "", dims[i]);
  mlx_text_printf(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)*at,
                  (unsigned long long)(*at + bytes));
  *at += bytes;
}

// Writes a model with these tensors to |folder|: nothing reads their data.
static void write_sparse(const sparse_tensor_t *tensors, const char *config, const char *folder) {
  char path[128], name[128];
  mlx_text_t header = {0};
  mlx_writer_t writer;
  uint64_t at = 0;
  struct stat file;
  for (; tensors->name; ++tensors) {
    for (int layer = 0; layer < (tensors->layer == 2 ? 2 : 1); ++layer) {
      snprintf(name, sizeof name, "model.layers.%d.%s", tensors->layer == 2 ? layer : tensors->layer,
               tensors->name);
      add_sparse(&header, tensors->layer == NONE ? tensors->name : name, tensors->dims, &at);
    }
  }
  mlx_text_puts(&header, "}");
  CHECK_OK(mlx_text_finish(&header));
  const uint64_t length = header.length;
  snprintf(path, sizeof path, "%s/config.json", folder);
  CHECK_OK(mlx_write_file(path, config, strlen(config)));
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  CHECK_OK(mlx_writer_open(path, &writer));
  CHECK_OK(mlx_writer_write(&writer, &length, sizeof length));
  CHECK_OK(mlx_writer_write(&writer, header.data, header.length));
  CHECK_OK(mlx_writer_close(&writer));
  CHECK(!stat(path, &file) && !truncate(path, file.st_size + (off_t)at));
  mlx_text_clear(&header);
}

// GPUs with 99 KB of shared memory too.
TEST(every_gpu_from_sm_80_on_decodes_networks_of_real_sizes_in_one_launch) {
  static const struct {
    const char *name;
    const sparse_tensor_t *tensors;
    const char *config;
  } models[] = {{"Qwen3.5-9B", qwen3_5_9b, qwen3_5_9b_config}, {"LFM2-1.2B", lfm2_1_2b, lfm2_1_2b_config}};
  static const mlx_quantize_t kinds[] = {MLX_QUANTIZE_NONE, MLX_QUANTIZE_Q4_1, MLX_QUANTIZE_Q8_0};
  for (size_t i = 0; i < 2; ++i) {
    char folder[] = "/tmp/mlxcel-sparse-XXXXXX", target[16];
    CHECK(mkdtemp(folder));
    write_sparse(models[i].tensors, models[i].config, folder);
    for (size_t k = 0; mlx_gpu_kind_at(k / 3); ++k) {
      const mlx_gpu_kind_t *gpu = mlx_gpu_kind_at(k / 3);
      mlx_compile_options_t options = options_for(target, MLX_KERNELS_AUTO);
      mlx_decode_plan_t plan;
      mlx_compile_job_t job;
      bool fits;
      if (!gpu->kernel_sm) continue;
      options.quantize = kinds[k % 3];
      snprintf(target, sizeof target, "cuda:sm_%d", gpu->sm);
      begin_job(folder, &options, &job);
      CHECK_OK(mlx_decode_plan_make(job.model, job.graph, &job.module, &plan, &fits));
      if (!fits) CHECK_FAIL("%s, %s, kind %d: %s", models[i].name, target, (int)(k % 3), plan.misfit.why);
      end_job(&job);
    }
    CHECK_OK(mlx_remove_tree(folder));
  }
}

// ----------------------------------------------------------------------------------------------------------
// Images

// Adds the images that other networks do not have.
static void add_images(const mlx_compile_job_t *job, mlx_kernels_t *out) {
  for (size_t i = 0; i < job->kernels.count; ++i) {
    const mlx_kernel_image_request_t *image = &job->kernels.images[i];
    const char *file;
    if (image->kind == MLX_KERNEL_RECURRENT || image->kind == MLX_KERNEL_DECODE ||
        strstr(image->definitions, "HEAD_COLUMNS=1\n") || strstr(image->definitions, "gains="))
      CHECK_OK(mlx_kernels_image(out, image->kind, image->definitions, image->build, &file));
  }
}

TEST(images_compile_for_each_family_of_gpus) {
  static const int kinds[] = {80, 86, 89, 90, 120};
  static const char *const larger =
      "NAME=mlx_delta\nDELTA=1\nkey_dim=256\nlog_rate=0\ntiled=1\nscale=0.0625f\neps=1e-06f\n";
  static const char *const twice =
      "NAME=mlx_delta\nDELTA=1\nkey_dim=96\nscale=0.1f\neps=1e-06f\nbeta_scale=2.0f\n";
  static const char *const largest_scan = "NAME=mlx_scan\nSCAN=1\nkey_dim=256\nlog_rate=0\n";
  mlx_nvrtc_t *nvrtc;
  compile_quickly(true);
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; ++k) {
    mlx_kernels_t kernels = {.gpu = mlx_gpu_kind_find(kinds[k])};
    char folder[] = "/tmp/mlxcel-images-XXXXXX", target[16];
    const char *file;
    CHECK(mkdtemp(folder));
    snprintf(target, sizeof target, "cuda:sm_%d", kinds[k]);
    for (size_t i = 0; i < NETWORKS; ++i) {
      const mlx_compile_options_t options = options_for(target, MLX_KERNELS_AUTO);
      mlx_compile_job_t job;
      begin_job(fixture(networks[i].name), &options, &job);
      emit_job(&job);
      add_images(&job, &kernels);
      end_job(&job);
    }
    // Three kinds of convolutions, that before a scan for one token too; one delta rule; four scans; columns
    // of heads; a norm of groups; the decode kernel of two networks.
    CHECK_INT(kernels.count, 13);
    CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_RECURRENT, larger, (mlx_kernel_build_t){0}, &file));
    CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_RECURRENT, twice, (mlx_kernel_build_t){0}, &file));
    CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_RECURRENT, largest_scan, (mlx_kernel_build_t){0}, &file));
    CHECK_OK(mlx_kernels_compile(&kernels, nvrtc, folder, NULL));
    mlx_kernels_clear(&kernels);
    CHECK_OK(mlx_remove_tree(folder));
  }
  mlx_nvrtc_close(nvrtc);
}

static void check_refusal(mlx_status_t status) {
  CHECK_CONTAINS(mlx_status_hint_text(status), "use --kernels=auto");
  CHECK_ERROR(status, MLX_UNSUPPORTED, "recurrent layers need kernels; they have no generic path");
}

TEST(without_kernels_a_recurrent_network_is_refused) {
  static const struct {
    const char *target;
    mlx_kernel_choice_t kernels;
  } cases[] = {{"cuda:sm_90", MLX_KERNELS_OFF}, {"cpu", MLX_KERNELS_OFF}, {"cuda:sm_75", MLX_KERNELS_AUTO}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    const mlx_compile_options_t options = options_for(cases[i].target, cases[i].kernels);
    mlx_compile_job_t job;
    begin_job(fixture("qwen3_5"), &options, &job);
    check_refusal(mlx_module_emit(job.model, job.graph, &job.module, &job.mlir, &job.mlir_length));
    end_job(&job);
  }
  const mlx_compile_options_t pure = options_for("cpu", MLX_KERNELS_AUTO);
  char *text;
  size_t length;
  check_refusal(mlx_compile_stablehlo(fixture("lfm2"), &pure, &text, &length));
}

TEST_MAIN(CASE(one_launch_decodes_and_single_launches_of_a_prompt_update_the_states),
          CASE(decode_kernel_knows_the_kind_and_the_places_of_each_layer),
          CASE(a_delta_rule_of_another_form_decodes_op_by_op), CASE(a_factor_of_beta_has_single_launches),
          CASE(steps_copy_nothing),
          CASE(every_gpu_from_sm_80_on_decodes_networks_of_real_sizes_in_one_launch),
          CASE(images_compile_for_each_family_of_gpus), CASE(without_kernels_a_recurrent_network_is_refused))
