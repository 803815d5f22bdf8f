// Bundles: both forms run alike, builds are reproducible, the best target is chosen, and only local, signed
// or explicitly allowed code runs.
#include "artifact/bundle.h"

#include "artifact/sign.h"
#include "base/cpu.h"
#include "compiler/compile.h"
#include "runtime/variant.h"
#include "tests/golden.h"
#include "tests/random_llama.h"

static char root[] = "/tmp/mlxcel-bundle-XXXXXX";
static char model[128];  // a model directory with a license file

static const random_llama_t shape = {96, 160, 3, 1, 32, 2, 330, true, 10000};
#define PROMPT "once upon a time"

static const char *in_root(const char *name) {
  static char paths[4][128];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", root, name);
  return path;
}

static void run_ok(const char *const *argv) {
  command_t run;
  command_start(&run, argv);
  command_wait(&run);
  if (run.exit_code) CHECK_FAIL("%s %s: %s", argv[0], argv[1], run.err);
  command_free(&run);
}
#define RUN_OK(...) run_ok((const char *const[]){MLXCEL_BINARY, __VA_ARGS__, NULL})
#define SHELL(script) run_ok((const char *const[]){"/bin/sh", "-c", "cd \"$1\" && " script, "sh", root, NULL})

static const char *make_model(void) {
  if (model[0]) return model;
  snprintf(model, sizeof model, "%s", random_llama_write(&shape, root, "model"));
  CHECK_OK(mlx_write_file(in_root("model/LICENSE.txt"), "Do as you like.\n", 16));
  static const char readme[] = "---\nlanguage: en\nlicense: \"apache-2.0\"\n---\n# A model\nlicense: mit\n";
  CHECK_OK(mlx_write_file(in_root("model/README.md"), readme, strlen(readme)));
  return model;
}

// Compiles one bundle of each form, once for all tests.
static void make_bundles(void) {
  if (mlx_is_bundle(in_root("one.mlxb"))) return;
  RUN_OK("compile", make_model(), "--ctx", "64", "-o", in_root("m.mlxb"));
  RUN_OK("compile", make_model(), "--ctx", "64", "--single-file", "-o", in_root("one.mlxb"));
}

// Returns the generated token ids as JSON text, and stderr in *|out_err|. Release both with mlx_free.
static char *generate(const char *bundle, const char *flag, char **out_err) {
  command_t run;
  if (flag) {
    RUN(&run, "run", "-m", bundle, "-p", PROMPT, "--temp", "0", "-n", "12", "--ignore-eos", "--json", "-v",
        flag);
  } else {
    RUN(&run, "run", "-m", bundle, "-p", PROMPT, "--temp", "0", "-n", "12", "--ignore-eos", "--json", "-v");
  }
  if (run.exit_code) CHECK_FAIL("%s: %s", bundle, run.err);
  char *ids, *from = strstr(run.out, "\"output_ids\": ");
  CHECK(from);
  CHECK_OK(mlx_copy_text(from, (size_t)(strchr(from, ']') - from), &ids));
  if (out_err) CHECK_OK(mlx_copy_text(run.err, strlen(run.err), out_err));
  command_free(&run);
  return ids;
}

static void check_tokens(const char *bundle, const char *flag, const char *ids) {
  char *actual = generate(bundle, flag, NULL);
  CHECK_TEXT(actual, ids);
  mlx_free(actual);
}

static void check_refuses(const char *bundle, const char *flag, mlx_code_t code, const char *part) {
  command_t run;
  if (flag)
    RUN(&run, "run", "-m", bundle, "-p", PROMPT, "-n", "1", flag);
  else
    RUN(&run, "run", "-m", bundle, "-p", PROMPT, "-n", "1");
  CHECK_INT(run.exit_code, code);
  CHECK_CONTAINS(run.err, part);
  CHECK_TEXT(run.out, "");
  command_free(&run);
}

// ----------------------------------------------------------------------------------------------------------
// Forms

TEST(folder_and_single_file_generate_the_same_tokens) {
  make_bundles();
  char *ids = generate(in_root("m.mlxb"), NULL, NULL);
  CHECK(mlx_is_dir(in_root("m.mlxb")) && mlx_is_file(in_root("one.mlxb")));
  check_tokens(in_root("one.mlxb"), NULL, ids);
  // tar alone converts between the two forms.
  SHELL("mkdir out && tar xf one.mlxb -C out && diff -r out m.mlxb && tar cf again.mlxb -C out .");
  check_tokens(in_root("again.mlxb"), NULL, ids);
  command_t run;
  RUN(&run, "show", in_root("one.mlxb"));
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.out, "op                count  decode         prefill        reads\n");
  CHECK_CONTAINS(run.out, "\nlinear ");
  CHECK_CONTAINS(run.out, "of KV per position\n");
  command_free(&run);
  RUN_OK("tokenize", "-m", in_root("one.mlxb"), "-p", "hello");
  RUN_OK("compile", make_model(), "--ctx", "64", "-o", in_root("one.mlxb"));  // each form replaces the other
  CHECK(mlx_is_dir(in_root("one.mlxb")));
  RUN_OK("compile", make_model(), "--ctx", "64", "--single-file", "-o", in_root("one.mlxb"));
  check_tokens(in_root("one.mlxb"), NULL, ids);
  mlx_free(ids);
}

TEST(single_file_weights_are_aligned_for_use_in_place) {
  make_bundles();
  mlx_bundle_t *bundle;
  mlx_map_t weights;
  CHECK_OK(mlx_bundle_open(in_root("one.mlxb"), &bundle));
  CHECK_OK(mlx_bundle_map(bundle, MLX_BUNDLE_WEIGHTS, &weights));
  CHECK_INT((uintptr_t)weights.data % 4096, 0);
  mlx_archive_t archive;
  CHECK_OK(mlx_archive_parse("weights", weights.data, weights.size, &archive));
  for (size_t i = 0; i < archive.count; ++i) CHECK_INT((uintptr_t)archive.entries[i].data % 64, 0);
  mlx_archive_clear(&archive);
  mlx_bundle_close(bundle);
}

TEST(manifest_records_source_license_and_versions) {
  make_bundles();
  mlx_bundle_t *bundle;
  char *text, sum[MLX_DIGEST_HEX];
  CHECK_OK(mlx_bundle_open(in_root("m.mlxb"), &bundle));
  const mlx_manifest_t *m = mlx_bundle_manifest(bundle);
  CHECK_TEXT(m->license, "apache-2.0");
  CHECK_TEXT(m->source, "model");
  CHECK_TEXT(m->iree, "3.13");
  CHECK_INT(strlen(m->compiler_digest), 64);
  CHECK_INT(strlen(m->variants[0].kernels_digest), 64);
  CHECK(mlx_bundle_has(bundle, "LICENSE.txt") && mlx_manifest_file(m, "LICENSE.txt"));
  CHECK_OK(mlx_compile_source_digest(model, NULL, sum));
  CHECK_TEXT(m->source_digest, sum);
  SHELL(
      "cd model && sha256sum LICENSE.txt README.md config.json model.safetensors tokenizer.json | sha256sum "
      "| cut -c1-64 | tr -d '\\n' > ../sum");
  char *expected;
  CHECK_OK(mlx_read_file(in_root("sum"), 100, &expected, NULL));
  CHECK_TEXT(sum, expected);
  mlx_free(expected);
  CHECK_OK(mlx_bundle_read(bundle, "LICENSE.txt", 100, &text, &(size_t){0}));
  CHECK_TEXT(text, "Do as you like.\n");
  mlx_free(text);
  mlx_bundle_close(bundle);
}

// Time, user, cache folder, model folder and output name do not affect the bytes.
TEST(bundles_are_reproducible) {
  make_bundles();
  const char *cache = getenv("MLXCEL_CACHE");
  char kept[512];
  snprintf(kept, sizeof kept, "%s", cache ? cache : "");
  setenv("MLXCEL_CACHE", in_root("another-cache"), 1);
  SHELL("cp -r model elsewhere-model && mkdir elsewhere && mv elsewhere-model elsewhere/model");
  RUN_OK("compile", in_root("elsewhere/model"), "--ctx", "64", "--single-file", "-o", in_root("second.mlxb"));
  RUN_OK("compile", in_root("elsewhere/model"), "--ctx", "64", "-o", in_root("second-folder.mlxb"));
  if (cache)
    setenv("MLXCEL_CACHE", kept, 1);
  else
    unsetenv("MLXCEL_CACHE");
  SHELL("cmp one.mlxb second.mlxb && diff -r m.mlxb second-folder.mlxb");
}

TEST(missing_weights_are_found_by_digest) {
  make_bundles();
  RUN_OK("compile", make_model(), "--ctx", "64", "--no-weights", "-o", in_root("thin.mlxb"));
  RUN_OK("compile", make_model(), "--ctx", "64", "--no-weights", "--single-file", "-o",
         in_root("thin-one.mlxb"));
  CHECK(!mlx_is_file(in_root("thin.mlxb/weights.irpa")));
  char *ids = generate(in_root("m.mlxb"), NULL, NULL);
  check_tokens(in_root("thin.mlxb"), NULL, ids);  // found in the cache
  check_tokens(in_root("thin-one.mlxb"), NULL, ids);
  char kept[512];
  snprintf(kept, sizeof kept, "%s", getenv("MLXCEL_CACHE") ? getenv("MLXCEL_CACHE") : "");
  setenv("MLXCEL_CACHE", in_root("empty-cache"), 1);
  check_refuses(in_root("thin.mlxb"), "--allow-unsigned", MLX_NOT_FOUND,
                "the bundle contains only their digest, sha256:");
  SHELL("cp m.mlxb/weights.irpa $(sha256sum m.mlxb/weights.irpa | cut -c1-64).irpa");
  check_tokens(in_root("thin.mlxb"), "--allow-unsigned", ids);  // found beside the bundle
  check_tokens(in_root("thin.mlxb/"), "--allow-unsigned", ids);
  SHELL("for f in *.irpa; do printf x >> $f; done");
  check_refuses(in_root("thin.mlxb"), "--allow-unsigned", MLX_INVALID_INPUT,
                "does not match the bundle's manifest");
  SHELL("rm *.irpa");
  if (kept[0])
    setenv("MLXCEL_CACHE", kept, 1);
  else
    unsetenv("MLXCEL_CACHE");
  mlx_free(ids);
}

// The manifest binds the weights by a digest that several threads compute (docs/bundles.md).
TEST(weights_are_checked_by_their_tree_digest) {
  make_bundles();
  SHELL(
      "python3 -c \"import hashlib, json\n"
      "tree = hashlib.sha256()\n"
      "with open('m.mlxb/weights.irpa', 'rb') as file:\n"
      "  for chunk in iter(lambda: file.read(4 << 20), b''): tree.update(hashlib.sha256(chunk).digest())\n"
      "files = {file['name']: file for file in json.load(open('m.mlxb/manifest.json'))['files']}\n"
      "assert files['weights.irpa']['tree'] == tree.hexdigest(), files\n"
      "assert 'tree' not in files['model.vmfb'], files\"");
  char *ids = generate(in_root("m.mlxb"), NULL, NULL);
  SHELL(
      "cp -r m.mlxb bad-m.mlxb && cp one.mlxb bad-one.mlxb && "
      "printf x | dd of=bad-m.mlxb/weights.irpa bs=1 seek=5000 conv=notrunc 2>/dev/null && printf x | dd "
      "of=bad-one.mlxb bs=1 seek=$(($(stat -c %s one.mlxb) - 20000)) conv=notrunc 2>/dev/null");
  check_refuses(in_root("bad-m.mlxb"), NULL, MLX_INVALID_INPUT,
                "weights.irpa' does not match the bundle's manifest: its tree digest is");
  check_refuses(in_root("bad-one.mlxb"), NULL, MLX_INVALID_INPUT,
                "weights.irpa' does not match the bundle's manifest: its tree digest is");
  SHELL("cp -r m.mlxb treeless.mlxb && sed -i 's/, \"tree\": \"[0-9a-f]*\"//' treeless.mlxb/manifest.json");
  check_tokens(in_root("treeless.mlxb"), "--allow-unsigned", ids);  // an older compiler wrote no tree digest
  SHELL(
      "cp -r m.mlxb wrong.mlxb && sed -i 's/\"tree\": \"......../\"tree\": \"00000000/' "
      "wrong.mlxb/manifest.json");
  check_refuses(in_root("wrong.mlxb"), "--allow-unsigned", MLX_INVALID_INPUT, "its tree digest is");
  mlx_free(ids);
}

// The weights are damaged, so an error about them would show that they were read first.
TEST(state_includes_scratch_and_is_checked_before_weights_are_read) {
  make_bundles();
  SHELL(
      "python3 -c \"import json\n"
      "t = json.load(open('m.mlxb/manifest.json'))['targets'][0]\n"
      "pool = t['kv_bytes'] * t['pool_pages'] * t['page_size']\n"
      "assert t['kernels'] and t['state_bytes'] > pool + 4096, (t, pool)\"");
  SHELL(
      "cp -r m.mlxb too-large.mlxb && sed -i 's/\"state_bytes\": [0-9]*/\"state_bytes\": "
      "9000000000000000000/' "
      "too-large.mlxb/manifest.json && printf x >> too-large.mlxb/weights.irpa");
  check_refuses(in_root("too-large.mlxb"), "--allow-unsigned", MLX_OUT_OF_MEMORY,
                "GiB of memory for its KV cache and scratch; this machine has");
}

// ----------------------------------------------------------------------------------------------------------
// Targets

TEST(one_bundle_has_code_for_several_targets) {
  make_bundles();
  command_t run;
  char *err, *ids = generate(in_root("m.mlxb"), NULL, NULL), *actual;
  RUN_OK("compile", make_model(), "--ctx", "64", "--target", "cpu:x86-64,cpu:aarch64,cuda:sm_80", "-o",
         in_root("many.mlxb"));
  CHECK(mlx_is_file(in_root("many.mlxb/model.cpu-x86-64.vmfb")) &&
        mlx_is_file(in_root("many.mlxb/model.cuda-sm_80.vmfb")));
  actual = generate(in_root("many.mlxb"), "-v", &err);
  CHECK_TEXT(actual, ids);
  CHECK_CONTAINS(err, mlx_cpu_has_level("aarch64")
                          ? "(auto: cpu:aarch64 of cpu:x86-64, cpu:aarch64, cuda:sm_80"
                          : "(auto: cpu:x86-64 of cpu:x86-64, cpu:aarch64, cuda:sm_80");
  mlx_free(actual);
  mlx_free(err);
  RUN(&run, "show", in_root("many.mlxb"));
  CHECK_CONTAINS(run.out, "for cpu:x86-64, cpu:aarch64, cuda:sm_80");
  command_free(&run);
  SHELL("rm many.mlxb/model.cuda-sm_80.vmfb");  // like a bundle that was pulled for another target
  RUN_OK("keygen", "-W", "-f", "-o", in_root("partial"));
  RUN(&run, "sign", "-s", in_root("partial.key"), in_root("many.mlxb"));
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.err, "model.cuda-sm_80.vmfb: missing, not checked: code for another target\n");
  command_free(&run);
  check_tokens(in_root("many.mlxb"), NULL, ids);
  RUN(&run, "push", in_root("many.mlxb"), "oci-layout:/nonexistent/x");
  CHECK_CONTAINS(run.err, "it was pulled for one of its targets");
  CHECK_CONTAINS(run.err, "--target all");
  command_free(&run);
  SHELL(
      "cp -r many.mlxb other-iree.mlxb && sed -i 's/\"iree\": \"3.13\"/\"iree\": \"9.99\"/' "
      "other-iree.mlxb/manifest.json && mv model hidden");
  check_refuses(in_root("other-iree.mlxb"), "--allow-unsigned", MLX_UNSUPPORTED,
                "mlxcel compile model --target cpu:x86-64,cpu:aarch64,cuda:sm_80 -o OUT");
  SHELL("mv hidden model && rm many.mlxb/model.*");
  check_refuses(in_root("many.mlxb"), "--device=cpu", MLX_UNAVAILABLE,
                "this copy has no code that runs here");
  mlx_free(ids);
  RUN(&run, "compile", make_model(), "--target", "cpu:x86-64,cpu:x86-64", "-o", in_root("twice.mlxb"));
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err, "target cpu:x86-64 is given twice");
  command_free(&run);
  RUN(&run, "compile", make_model(), "--target", "cpu:x86-64,cuda:sm_1", "-o", in_root("twice.mlxb"));
  CHECK_INT(run.exit_code, MLX_USAGE);  // fails before any target is compiled
  CHECK_CONTAINS(run.err, "sm_1");
  command_free(&run);
}

TEST(gpu_bundle_is_refused_without_a_gpu) {
  make_bundles();
  char gpu[256];
  mlx_status_t status = mlx_engine_gpu_text(gpu, sizeof gpu);
  if (!status) SKIP("this machine has a GPU");
  mlx_status_free(status);
  RUN_OK("compile", make_model(), "--ctx", "64", "--target", "cuda:sm_80", "-o", in_root("gpu.mlxb"));
  static const char *const flags[] = {NULL, "--device=cuda"};
  for (int i = 0; i < 2; ++i)
    check_refuses(in_root("gpu.mlxb"), flags[i], MLX_UNAVAILABLE,
                  "or compile the model for the CPU: mlxcel compile model --target cpu\n");
}

TEST(compile_refuses_a_bundle) {
  make_bundles();
  command_t run;
  RUN(&run, "compile", in_root("m.mlxb"), "-o", in_root("again-and-again.mlxb"));
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err,
                 "m.mlxb' is compiled already\nhint: run it, or compile its source model: "
                 "mlxcel compile model\n");
  command_free(&run);
  check_refuses(in_root("nosuch.mlxb"), NULL, MLX_NOT_FOUND, "a compiled bundle (.mlxb)");
}

static void add_variant(mlx_engine_t *engine, const char *target, const char *level) {
  mlx_variant_t *variant = &engine->manifest.variants[engine->manifest.variant_count++];
  snprintf(variant->target, sizeof variant->target, "%s", target);
  if (level) snprintf(variant->levels[variant->level_count++], sizeof variant->levels[0], "%s", level);
}

TEST(engine_chooses_the_newest_code_that_the_gpu_runs) {
  static const struct {
    int sm;
    const char *chosen;
  } cases[] = {{120, "cuda:sm_90"}, {90, "cuda:sm_90"}, {89, "cuda:sm_86"},
               {86, "cuda:sm_86"},  {80, "cuda:sm_80"}, {75, NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    static mlx_engine_t engine;
    memset(&engine, 0, sizeof engine);
    add_variant(&engine, "cuda:sm_80", NULL);
    add_variant(&engine, "cpu:x86-64", NULL);
    add_variant(&engine, "cuda:sm_90", NULL);
    add_variant(&engine, "cuda:sm_86", NULL);
    for (size_t v = 0; v < 4; ++v) engine.manifest.variants[v].kernel_count = 1;
    const mlx_gpu_info_t gpu = {.name = "a GPU", .sm = cases[i].sm, .driver = 13000};
    mlx_status_t status = mlx_variant_choose_gpu(&engine, "m", &gpu);
    if (cases[i].chosen) {
      CHECK_OK(status);
      CHECK_TEXT(engine.variant->target, cases[i].chosen);
    } else {
      CHECK_ERROR(status, MLX_UNAVAILABLE, "m was compiled for cuda:sm_80; this GPU (a GPU) is sm_75");
    }
  }
}

TEST(engine_chooses_the_highest_level_that_the_cpu_runs) {
  static mlx_engine_t engine;
  memset(&engine, 0, sizeof engine);
  char here[64];
  snprintf(here, sizeof here, "cpu:%s", mlx_cpu_level_here()->name);
  add_variant(&engine, "cpu:portable", mlx_cpu_has_level("x86-64") ? "x86-64" : "aarch64");
  CHECK_OK(mlx_variant_choose_cpu(&engine, "m", NULL));
  CHECK_TEXT(engine.variant->target, "cpu:portable");
  if (strcmp(mlx_cpu_level_here()->name, engine.manifest.variants[0].levels[0])) {
    add_variant(&engine, here, NULL);
    CHECK_OK(mlx_variant_choose_cpu(&engine, "m", NULL));
    CHECK_TEXT(engine.variant->target, here);
    CHECK(!engine.level);
  }
  add_variant(&engine, "cpu:host", NULL);  // compiled on another machine
  CHECK_OK(mlx_variant_choose_cpu(&engine, "m", NULL));
  CHECK(strcmp(engine.variant->target, "cpu:host"));
  mlx_cpu_identity(engine.manifest.variants[engine.manifest.variant_count - 1].cpu);
  CHECK_OK(mlx_variant_choose_cpu(&engine, "m", NULL));
  CHECK_TEXT(engine.variant->target, "cpu:host");
}

// ----------------------------------------------------------------------------------------------------------
// Versions

static void replace_in(const char *path, const char *old, const char *new) {
  char *text, *at;
  CHECK_OK(mlx_read_file(path, 1 << 20, &text, NULL));
  at = strstr(text, old);
  CHECK(at && strlen(old) == strlen(new));
  memcpy(at, new, strlen(new));
  CHECK_OK(mlx_write_file(path, text, strlen(text)));
  mlx_free(text);
}

// Records a manifest of any version as made on this machine.
static void mark_local(const char *manifest) {
  mlx_cache_t *cache;
  char *text;
  size_t length;
  CHECK_OK(mlx_read_file(manifest, 1 << 20, &text, &length));
  CHECK_OK(mlx_cache_open(NULL, &cache));
  CHECK_OK(mlx_bundle_mark_local(cache, text, length));
  mlx_cache_close(cache);
  mlx_free(text);
}

TEST(bundle_of_another_version_is_refused_or_recompiled) {
  make_bundles();
  char *err, *ids = generate(in_root("m.mlxb"), NULL, NULL), *actual;
  SHELL("mkdir far && cp -r m.mlxb far/old.mlxb");
  replace_in(in_root("far/old.mlxb/manifest.json"), "\"iree\": \"3.13\"", "\"iree\": \"9.99\"");
  check_refuses(in_root("far/old.mlxb"), NULL, MLX_UNSUPPORTED,
                "compiled for IREE 9.99; this mlxcel runs IREE 3.13");  // checked before trust
  check_refuses(in_root("far/old.mlxb"), "--allow-unsigned", MLX_UNSUPPORTED,
                "mlxcel compile model --target cpu:host -o OUT");
  SHELL("cp -r far/old.mlxb old.mlxb");  // beside the model, so it is recompiled
  mark_local(in_root("old.mlxb/manifest.json"));
  actual = generate(in_root("old.mlxb"), NULL, &err);
  CHECK_CONTAINS(err, "compiled for IREE 9.99; this mlxcel runs IREE 3.13; compiling it again from ");
  CHECK_TEXT(actual, ids);
  mlx_free(actual);
  mlx_free(err);
  replace_in(in_root("old.mlxb/manifest.json"), "\"contract\": 1", "\"contract\": 8");
  check_refuses(in_root("old.mlxb"), NULL, MLX_UNSUPPORTED, "compiled for contract 8");  // not trusted
  actual = generate(in_root("old.mlxb"), "--allow-unsigned", &err);
  CHECK_CONTAINS(err, "compiled for contract 8; this mlxcel runs contract 1; compiling it again from ");
  mlx_free(actual);
  mlx_free(err);
  RUN_OK("run", "-m", in_root("old.mlxb"), "-p", PROMPT, "-n", "1", "--chat", "--chat-template", "chatml",
         "--allow-unsigned");  // the template is found before the model is recompiled
  SHELL("cp old.mlxb/manifest.json far/old.mlxb/");
  check_refuses(in_root("far/old.mlxb"), NULL, MLX_UNSUPPORTED,
                "mlxcel compile model --target cpu:host -o OUT");
  SHELL("cp -r model kept && printf ' ' >> model/config.json");  // no longer the source model
  check_refuses(in_root("old.mlxb"), "--allow-unsigned", MLX_UNSUPPORTED, "compiled for contract 8");
  SHELL("rm -r model && mv kept model");
  mlx_free(ids);
}

// A manifest names the source model. An attacker who changes the contract number and the source of a signed
// bundle must not get another model compiled and run.
TEST(source_of_a_forged_manifest_is_not_compiled) {
  make_bundles();
  char kept[512], script[512], digest[MLX_DIGEST_HEX];
  snprintf(kept, sizeof kept, "%s", getenv("MLXCEL_CACHE") ? getenv("MLXCEL_CACHE") : "");
  setenv("MLXCEL_CACHE", in_root("forger-cache"), 1);
  setenv("MLXCEL_TRUSTED", in_root("forger-trusted"), 1);
  SHELL("mkdir forger && cp -r m.mlxb forger/m.mlxb && cp -r model forger/other && touch forger/other/x");
  SHELL("printf ' ' >> forger/other/config.json");
  RUN_OK("keygen", "-W", "-o", in_root("forger-key"));
  RUN_OK("trust", "add", in_root("forger-key.pub"));
  RUN_OK("sign", "-s", in_root("forger-key.key"), in_root("forger/m.mlxb"));
  CHECK_OK(mlx_compile_source_digest(in_root("forger/other"), NULL, digest));
  snprintf(script, sizeof script,
           "cd %s/forger/m.mlxb && sed -i 's/\"contract\": 1/\"contract\": 8/; s/\"source\": "
           "\"model\"/\"source\": \"other\"/; s/\"source_digest\": \"[0-9a-f]*/\"source_digest\": "
           "\"%s/' manifest.json",
           root, digest);
  run_ok((const char *const[]){"/bin/sh", "-c", script, NULL});
  static const char *const flags[] = {NULL, "--allow-unsigned", "--chat"};
  for (int i = 0; i < 3; ++i)
    check_refuses(in_root("forger/m.mlxb"), flags[i], MLX_INVALID_INPUT,
                  "manifest.json' does not match its signature");
  SHELL("rm forger/m.mlxb/manifest.json.minisig");
  for (int i = 0; i < 3; i += 2)
    check_refuses(in_root("forger/m.mlxb"), flags[i], MLX_UNSUPPORTED, "compiled for contract 8");
  RUN_OK("run", "-m", in_root("forger/m.mlxb"), "-p", PROMPT, "-n", "1", "--allow-unsigned");
  unsetenv("MLXCEL_TRUSTED");
  if (kept[0])
    setenv("MLXCEL_CACHE", kept, 1);
  else
    unsetenv("MLXCEL_CACHE");
}

// The source digest changes with every file that goes into a bundle. Only the weight files change the
// weights.
TEST(source_digest_covers_every_file_of_the_model) {
  make_bundles();
  char before[MLX_DIGEST_HEX], sum[MLX_DIGEST_HEX], last[MLX_DIGEST_HEX], *expected;
  SHELL(
      "cp -r model talks && cd talks && mkdir -p additional_chat_templates/LICENSE && printf '{{ messages "
      "}}' > chat_template.jinja && printf '{{ tools }}' > additional_chat_templates/tool_use.jinja && "
      "printf '{\"bos_token\": \"<s>\"}' > tokenizer_config.json && printf '{}' > special_tokens_map.json && "
      "echo x > notes.txt && echo x > additional_chat_templates/notes.txt");
  SHELL(
      "cd talks && LC_ALL=C sha256sum LICENSE.txt README.md additional_chat_templates/tool_use.jinja "
      "chat_template.jinja config.json model.safetensors "
      "special_tokens_map.json tokenizer.json tokenizer_config.json | sha256sum | cut -c1-64 | tr -d '\\n' > "
      "../sum");
  CHECK_OK(mlx_read_file(in_root("sum"), 100, &expected, NULL));
  CHECK_OK(mlx_compile_source_digest(in_root("talks"), NULL, before));
  CHECK_TEXT(before, expected);
  mlx_free(expected);
  static const char *const files[] = {"chat_template.jinja",   "additional_chat_templates/tool_use.jinja",
                                      "tokenizer_config.json", "special_tokens_map.json",
                                      "LICENSE.txt",           "README.md"};
  memcpy(last, before, sizeof last);
  for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
    char path[128];
    snprintf(path, sizeof path, "%s/talks/%s", root, files[i]);
    CHECK_OK(mlx_write_file(path, "{ }", 3));
    CHECK_OK(mlx_compile_source_digest(in_root("talks"), NULL, sum));
    if (!strcmp(sum, last)) CHECK_FAIL("%s does not change the digest", files[i]);
    memcpy(last, sum, sizeof last);
  }
  SHELL("\"" MLXCEL_BINARY "\" cache list | grep -c ^weights > archives");
  RUN_OK("compile", in_root("talks"), "--ctx", "64", "-o", in_root("talks.mlxb"));
  SHELL("\"" MLXCEL_BINARY "\" cache list | grep -c ^weights | cmp - archives");
  SHELL("cmp talks.mlxb/weights.irpa m.mlxb/weights.irpa");
}

// The source model is beside the bundle, but recompiling it would not fix the tokenizer.
TEST(other_errors_do_not_cause_a_recompile) {
  make_bundles();
  command_t run;
  SHELL(
      "cp -r m.mlxb odd.mlxb && cd odd.mlxb && old=$(sha256sum < tokenizer.json | cut -c1-64) && size=$(stat "
      "-c %s tokenizer.json) && "
      "sed -i '0,/{/s//{\"truncation\": {\"max_length\": 4},/; s/\"truncation\": null,//' tokenizer.json && "
      "sed -i \"s/$old/$(sha256sum < tokenizer.json | cut -c1-64)/; s/\\\"tokenizer.json\\\", \\\"size\\\": "
      "$size/\\\"tokenizer.json\\\", \\\"size\\\": $(stat -c %s tokenizer.json)/\" manifest.json");
  RUN(&run, "run", "-m", in_root("odd.mlxb"), "-p", PROMPT, "--allow-unsigned");
  CHECK_INT(run.exit_code, MLX_UNSUPPORTED);
  CHECK_CONTAINS(run.err, "field 'truncation'");
  CHECK(!strstr(run.err, "compiling it again"));
  command_free(&run);
}

// ----------------------------------------------------------------------------------------------------------
// Trust

TEST(only_local_signed_or_allowed_bundles_run) {
  make_bundles();
  char kept[512], *ids = generate(in_root("m.mlxb"), NULL, NULL);
  snprintf(kept, sizeof kept, "%s", getenv("MLXCEL_CACHE") ? getenv("MLXCEL_CACHE") : "");
  setenv("MLXCEL_CACHE", in_root("other-machine"), 1);
  setenv("MLXCEL_TRUSTED", in_root("trusted"), 1);
  SHELL("cp -r m.mlxb s.mlxb && cp one.mlxb s-one.mlxb");
  static const char *const forms[] = {"s.mlxb", "s-one.mlxb"};
  for (int i = 0; i < 2; ++i) {
    const char *bundle = in_root(forms[i]);
    check_refuses(bundle, NULL, MLX_NOT_FOUND,
                  "it is not signed, and this machine has no record of compiling it");
    check_tokens(bundle, "--allow-unsigned", ids);
  }
  RUN_OK("keygen", "-W", "-o", in_root("us"));
  RUN_OK("sign", "-s", in_root("us.key"), in_root("s.mlxb"), in_root("s-one.mlxb"));
  for (int i = 0; i < 2; ++i) check_refuses(in_root(forms[i]), NULL, MLX_NOT_FOUND, "trust");  // unknown key
  RUN_OK("trust", "add", in_root("us.pub"));
  for (int i = 0; i < 2; ++i) check_tokens(in_root(forms[i]), NULL, ids);
  SHELL("cp -r s.mlxb forged.mlxb && printf ' ' >> forged.mlxb/manifest.json");
  check_refuses(in_root("forged.mlxb"), NULL, MLX_INVALID_INPUT, "does not match its signature");
  check_refuses(in_root("forged.mlxb"), "--allow-unsigned", MLX_INVALID_INPUT,
                "does not match its signature");
  SHELL(
      "cp m.mlxb/manifest.json forged.mlxb/ && printf x | dd of=forged.mlxb/model.vmfb bs=1 seek=100 "
      "conv=notrunc 2>/dev/null");
  check_refuses(in_root("forged.mlxb"), NULL, MLX_INVALID_INPUT,
                "forged.mlxb/model.vmfb' does not match the bundle's manifest: its SHA-256 is");
  check_refuses(in_root("forged.mlxb"), "--allow-unsigned", MLX_INVALID_INPUT,
                "forged.mlxb/model.vmfb' does not match the bundle's manifest");
  SHELL("cp m.mlxb/model.vmfb forged.mlxb/ && printf '{}' > forged.mlxb/tokenizer.json");
  check_refuses(in_root("forged.mlxb"), NULL, MLX_INVALID_INPUT,
                "tokenizer.json' does not match the bundle's manifest");
  SHELL("cp m.mlxb/tokenizer.json forged.mlxb/ && printf '{}' > forged.mlxb/chat.json");  // unlisted: ignored
  check_tokens(in_root("forged.mlxb"), NULL, ids);
  unsetenv("MLXCEL_TRUSTED");
  if (kept[0])
    setenv("MLXCEL_CACHE", kept, 1);
  else
    unsetenv("MLXCEL_CACHE");
  mlx_free(ids);
}

// File times do not prove that a file is unchanged, so code is hashed on every run.
TEST(code_is_checked_on_every_run) {
  make_bundles();
  char *ids = generate(in_root("m.mlxb"), NULL, NULL);
  SHELL("cp -r m.mlxb moved.mlxb && touch -d '2020-01-01' moved.mlxb/*");
  check_tokens(in_root("moved.mlxb"), NULL, ids);
  SHELL(
      "printf x | dd of=moved.mlxb/model.vmfb bs=1 seek=100 conv=notrunc 2>/dev/null && touch -d "
      "'2020-01-01' moved.mlxb/*");
  check_refuses(in_root("moved.mlxb"), NULL, MLX_INVALID_INPUT,
                "model.vmfb' does not match the bundle's manifest");
  SHELL("cp m.mlxb/model.vmfb moved.mlxb/ && rm moved.mlxb/tokenizer.json");
  check_refuses(in_root("moved.mlxb"), NULL, MLX_NOT_FOUND, "tokenizer.json' does not exist");
  mlx_free(ids);
}

// The module has 4 pages of 16 positions for its only sequence. The module itself compares the page table.
TEST(page_geometry_of_an_unsigned_manifest_must_fit_the_module) {
  make_bundles();
  static const char *const edits[][2] = {
      {"s/\"page_size\": 16/\"page_size\": 32/", "'page_size'"},
      {"s/\"pool_pages\": 5/\"pool_pages\": 9/", "'pool_pages'"},
      {"s/\"row_pages\": 4/\"row_pages\": 8/; s/\"pool_pages\": 5/\"pool_pages\": 9/", "expected shape"},
      {"s/\"rows\": 1/\"rows\": 2/; s/\"pool_pages\": 5/\"pool_pages\": 9/", "expected shape"}};
  for (size_t i = 0; i < sizeof edits / sizeof *edits; ++i) {
    SHELL("rm -rf geometry.mlxb && cp -r m.mlxb geometry.mlxb");
    run_ok(
        (const char *const[]){"/bin/sed", "-i", edits[i][0], in_root("geometry.mlxb/manifest.json"), NULL});
    check_refuses(in_root("geometry.mlxb"), "--allow-unsigned", MLX_INVALID_INPUT, edits[i][1]);
  }
}

// The file may be huge: nothing of it is read.
TEST(code_of_another_size_is_not_read) {
  make_bundles();
  command_t run;
  SHELL("cp -r m.mlxb huge.mlxb && truncate -s 900M huge.mlxb/model.vmfb");
  RUN(&run, "run", "-m", in_root("huge.mlxb"), "-p", PROMPT, "-n", "1");
  CHECK_INT(run.exit_code, MLX_INVALID_INPUT);
  CHECK_CONTAINS(run.err, "model.vmfb' does not match the bundle's manifest: its size is 943718400 bytes");
  if (!MLXCEL_SANITIZED) CHECK(run.peak_kib < 200 << 10);
  command_free(&run);
  SHELL("rm -r huge.mlxb");
}

// Older compilers wrote such manifests; an attacker could do the same to avoid the check.
TEST(bundle_without_digests_does_not_run) {
  make_bundles();
  SHELL(
      "cp -r m.mlxb bare.mlxb && sed -i '/\"files\": \\[/,/^  \\]/d; s/^  \\],$/  ]/' "
      "bare.mlxb/manifest.json && tar cf bare-one.mlxb -C bare.mlxb .");
  static const char *const forms[] = {"bare.mlxb", "bare-one.mlxb"};
  for (int i = 0; i < 2; ++i)
    check_refuses(in_root(forms[i]), "--allow-unsigned", MLX_UNSUPPORTED, "its manifest lists no files");
  RUN_OK("show", in_root("bare.mlxb"));  // reads only the manifest
}

TEST(run_reports_an_allowed_unsigned_bundle) {
  make_bundles();
  char kept[512], *err;
  snprintf(kept, sizeof kept, "%s", getenv("MLXCEL_CACHE") ? getenv("MLXCEL_CACHE") : "");
  setenv("MLXCEL_CACHE", in_root("other-machine"), 1);
  mlx_free(generate(in_root("m.mlxb"), "--allow-unsigned", &err));
  CHECK_CONTAINS(err, "unsigned: this bundle was neither compiled here nor signed by a trusted key\n");
  mlx_free(err);
  if (kept[0])
    setenv("MLXCEL_CACHE", kept, 1);
  else
    unsetenv("MLXCEL_CACHE");
}

// The cache entry of a local bundle is gone, or the cache cannot be read.
TEST(error_explains_a_cleared_or_unreadable_cache) {
  make_bundles();
  command_t run;
  char kept[512];
  snprintf(kept, sizeof kept, "%s", getenv("MLXCEL_CACHE") ? getenv("MLXCEL_CACHE") : "");
  setenv("MLXCEL_CACHE", in_root("open-cache"), 1);
  SHELL("mkdir -m 777 open-cache");
  check_refuses(in_root("m.mlxb"), NULL, MLX_NOT_FOUND,
                "open-cache' is writable by other users (mode 777))\nhint: if you compiled it here: run "
                "`chmod -R go-w");
  SHELL("chmod 700 open-cache");
  mlx_cache_t *cache;
  mlx_bundle_t *bundle;
  size_t length;
  CHECK_OK(mlx_cache_open(NULL, &cache));
  CHECK_OK(mlx_bundle_open(in_root("m.mlxb"), &bundle));
  const char *manifest = mlx_bundle_manifest_text(bundle, &length);
  CHECK_OK(mlx_bundle_mark_local(cache, manifest, length));
  mlx_bundle_close(bundle);
  mlx_cache_close(cache);
  mlx_free(generate(in_root("m.mlxb"), NULL, NULL));
  RUN(&run, "cache", "clear");
  CHECK_CONTAINS(run.err, "; 1 bundle is no longer recognized as compiled here");
  command_free(&run);
  check_refuses(
      in_root("m.mlxb"), NULL, MLX_NOT_FOUND,
      "hint: if you compiled it here: compile it again; if you trust its source: run with --allow-unsigned");
  if (kept[0])
    setenv("MLXCEL_CACHE", kept, 1);
  else
    unsetenv("MLXCEL_CACHE");
}

// ----------------------------------------------------------------------------------------------------------
// Damage

// ulimit -f stands in for a full disk.
TEST(failed_signing_leaves_the_bundle_unchanged) {
  make_bundles();
  RUN_OK("keygen", "-W", "-o", in_root("them"));
  SHELL(
      "cp one.mlxb full.mlxb && (trap '' XFSZ; ulimit -f $(($(stat -c %s full.mlxb) / 512)); ! "
      "\"" MLXCEL_BINARY "\" sign -s them.key full.mlxb 2> errors) && cmp full.mlxb one.mlxb");
  char *errors;
  CHECK_OK(mlx_read_file(in_root("errors"), 1 << 16, &errors, NULL));
  CHECK_CONTAINS(errors, "cannot write");
  mlx_free(errors);
}

// The manifest names its own folder as the source model.
TEST(bundle_is_not_recompiled_from_itself) {
  make_bundles();
  SHELL("cp -r model loop");
  char digest[MLX_DIGEST_HEX], manifest[256];
  CHECK_OK(mlx_compile_source_digest(in_root("loop"), NULL, digest));
  snprintf(
      manifest, sizeof manifest,
      "{\"format\": \"mlxcel-bundle\", \"contract\": 99, \"source\": \"loop\", \"source_digest\": \"%s\"}",
      digest);
  CHECK_OK(mlx_write_file(in_root("loop/manifest.json"), manifest, strlen(manifest)));
  check_refuses(in_root("loop"), NULL, MLX_UNSUPPORTED, "compiled for contract 99");
  check_refuses(in_root("loop"), "--allow-unsigned", MLX_UNSUPPORTED, "compiled for contract 99");
}

TEST(source_name_is_resolved_for_dot_paths) {
  make_bundles();
  SHELL("mkdir in && cp -r model in/named && cd in/named && \"" MLXCEL_BINARY
        "\" compile . --ctx 64 && grep -q '\"source\": \"named\"' named.mlxb/manifest.json");
  SHELL("mkdir in/named/sub && cd in/named/sub && \"" MLXCEL_BINARY
        "\" compile .. --ctx 64 && cmp named.mlxb/manifest.json ../named.mlxb/manifest.json");
}

TEST(license_folder_is_not_copied) {
  make_bundles();
  SHELL("cp -r model reuse && mkdir reuse/LICENSES && echo x > reuse/LICENSES/MIT.txt");
  RUN_OK("compile", in_root("reuse"), "--ctx", "64", "-o", in_root("reuse.mlxb"));
  CHECK(mlx_is_file(in_root("reuse.mlxb/LICENSE.txt")) && !mlx_is_dir(in_root("reuse.mlxb/LICENSES")));
}

// run, sign and verify report the damage of a bundle. sign does not treat it as a plain file.
static void check_is_damaged(const char *name, mlx_code_t code, const char *part) {
  command_t run;
  char path[128], signature[160];
  snprintf(path, sizeof path, "%s", in_root(name));
  snprintf(signature, sizeof signature, "%s.minisig", path);
  CHECK(mlx_is_bundle(path));
  check_refuses(path, NULL, code, part);
  RUN(&run, "sign", "-s", in_root("signer.key"), path);
  CHECK_INT(run.exit_code, code);
  CHECK_CONTAINS(run.err, part);
  command_free(&run);
  RUN(&run, "verify", path);
  CHECK_INT(run.exit_code, code);
  CHECK_CONTAINS(run.err, part);
  command_free(&run);
  CHECK(!mlx_is_file(signature));
}

TEST(damaged_bundle_is_reported_as_damaged) {
  make_bundles();
  RUN_OK("keygen", "-W", "-o", in_root("signer"));
  SHELL(
      "mkdir d && cp m.mlxb/manifest.json d/ && tar cf twice.mlxb -C d manifest.json && tar rf twice.mlxb -C "
      "d manifest.json && tar cf empty.mlxb -C d --files-from /dev/null");
  SHELL(
      "cp -r m.mlxb halfway && head -c 300 m.mlxb/manifest.json > halfway/manifest.json && cp -r m.mlxb "
      "doubled && sed -i 's/^  \"vocab\"/  \"contract\": 1,\\n&/' doubled/manifest.json");
  SHELL(
      "cp -r m.mlxb hollow && : > hollow/manifest.json && head -c 20000 one.mlxb > cut.mlxb && cp cut.mlxb "
      "cut && echo text > text.mlxb && mkdir none.mlxb");
  SHELL(
      "cp one.mlxb huge.mlxb && printf '\\200\\377\\377\\377' | dd of=huge.mlxb bs=1 seek=124 conv=notrunc "
      "2>/dev/null");
  check_is_damaged("halfway", MLX_INVALID_INPUT, "halfway/manifest.json");
  check_is_damaged("hollow", MLX_INVALID_INPUT, "hollow/manifest.json");
  check_is_damaged("doubled", MLX_INVALID_INPUT, "doubled/manifest.json");
  check_is_damaged("twice.mlxb", MLX_INVALID_INPUT, "contains 'manifest.json' twice");
  check_is_damaged("cut.mlxb", MLX_INVALID_INPUT,
                   "the archive is truncated\nhint: the bundle is damaged: compile or pull it again");
  check_is_damaged("cut", MLX_INVALID_INPUT, "the archive is truncated");
  check_is_damaged("huge.mlxb", MLX_INVALID_INPUT, "huge.mlxb': at byte 0: ");
  check_is_damaged("text.mlxb", MLX_INVALID_INPUT, "text.mlxb': at byte 0: ");
  check_is_damaged("empty.mlxb", MLX_NOT_FOUND, "empty.mlxb/manifest.json' does not exist");
  check_is_damaged("none.mlxb", MLX_NOT_FOUND, "none.mlxb/manifest.json' does not exist");
}

// A name that ends in .mlxb is not enough to replace a file.
TEST(compile_replaces_only_bundles) {
  make_bundles();
  command_t run;
  SHELL("echo notes > notes.mlxb && mkdir -p web && echo '{\"name\": \"a page\"}' > web/manifest.json");
  static const char *const names[] = {"notes.mlxb", "web"};
  for (int i = 0; i < 2; ++i) {
    RUN(&run, "compile", make_model(), "--ctx", "64", "-o", in_root(names[i]));
    CHECK_INT(run.exit_code, MLX_USAGE);
    CHECK_CONTAINS(run.err, "not a compiled model");
    command_free(&run);
  }
  SHELL("head -c 20000 one.mlxb > again-cut.mlxb");
  RUN_OK("compile", make_model(), "--ctx", "64", "--single-file", "-o",
         in_root("again-cut.mlxb"));  // a damaged bundle may be replaced
  SHELL("cmp again-cut.mlxb one.mlxb");
}

// A README in a bundle of either form is never read, and signing keeps it.
TEST(unknown_files_in_a_bundle_are_ignored) {
  make_bundles();
  char *ids = generate(in_root("m.mlxb"), NULL, NULL);
  RUN_OK("keygen", "-W", "-o", in_root("packer"));
  SHELL(
      "cp -r m.mlxb read && echo read me > read/README.md && tar cf read.mlxb -C read . && tar rf read.mlxb "
      "-C read/.. --transform 's/.*/after/' read/README.md");
  check_tokens(in_root("read"), NULL, ids);
  check_tokens(in_root("read.mlxb"), NULL, ids);
  for (int i = 0; i < 2; ++i)
    RUN_OK("sign", "-s", in_root("packer.key"),
           in_root("read.mlxb"));  // the second signature replaces the first
  RUN_OK("verify", "-p", in_root("packer.pub"), in_root("read.mlxb"));
  SHELL(
      "mkdir unread && tar xf read.mlxb -C unread && cmp unread/README.md read/README.md && cmp unread/after "
      "read/README.md && test $(tar tf read.mlxb | grep -c minisig) = 1");
  mlx_free(ids);
}

int main(int argc, char **argv) {
  static const check_case_t cases[] = {CASE(folder_and_single_file_generate_the_same_tokens),
                                       CASE(single_file_weights_are_aligned_for_use_in_place),
                                       CASE(manifest_records_source_license_and_versions),
                                       CASE(bundles_are_reproducible),
                                       CASE(missing_weights_are_found_by_digest),
                                       CASE(weights_are_checked_by_their_tree_digest),
                                       CASE(state_includes_scratch_and_is_checked_before_weights_are_read),
                                       CASE(one_bundle_has_code_for_several_targets),
                                       CASE(gpu_bundle_is_refused_without_a_gpu),
                                       CASE(compile_refuses_a_bundle),
                                       CASE(engine_chooses_the_newest_code_that_the_gpu_runs),
                                       CASE(engine_chooses_the_highest_level_that_the_cpu_runs),
                                       CASE(bundle_of_another_version_is_refused_or_recompiled),
                                       CASE(other_errors_do_not_cause_a_recompile),
                                       CASE(source_of_a_forged_manifest_is_not_compiled),
                                       CASE(source_digest_covers_every_file_of_the_model),
                                       CASE(only_local_signed_or_allowed_bundles_run),
                                       CASE(code_is_checked_on_every_run),
                                       CASE(page_geometry_of_an_unsigned_manifest_must_fit_the_module),
                                       CASE(code_of_another_size_is_not_read),
                                       CASE(bundle_without_digests_does_not_run),
                                       CASE(run_reports_an_allowed_unsigned_bundle),
                                       CASE(error_explains_a_cleared_or_unreadable_cache),
                                       CASE(failed_signing_leaves_the_bundle_unchanged),
                                       CASE(bundle_is_not_recompiled_from_itself),
                                       CASE(source_name_is_resolved_for_dot_paths),
                                       CASE(license_folder_is_not_copied),
                                       CASE(damaged_bundle_is_reported_as_damaged),
                                       CASE(compile_replaces_only_bundles),
                                       CASE(unknown_files_in_a_bundle_are_ignored)};
  if (!mkdtemp(root)) return 1;
  const int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
