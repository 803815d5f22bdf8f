// Bundles: both forms run alike, builds are reproducible, and the best target is chosen.
#include "tests/artifact/bundles.h"

#include "artifact/sign.h"
#include "base/cpu.h"
#include "compiler/compile.h"
#include "runtime/rooms.h"
#include "runtime/variant.h"

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
  CHECK_OK(mlx_bundle_map(bundle, MLX_BUNDLE_WEIGHTS, NULL, &weights));
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
      "  for chunk in iter(lambda: file.read(64 << 10), b''): tree.update(hashlib.sha256(chunk).digest())\n"
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
TEST(memory_is_checked_before_weights_are_read) {
  make_bundles();
  SHELL(
      "python3 -c \"import json\n"
      "t = json.load(open('m.mlxb/manifest.json'))['targets'][0]\n"
      "assert t['kernels'] and t['state_bytes'] > 4096 and t['page_bytes'] >= 16 * t['kv_bytes'] > 0, t\"");
  SHELL(
      "cp -r m.mlxb too-large.mlxb && sed -i 's/\"state_bytes\": [0-9]*/\"state_bytes\": "
      "9000000000000000000/' "
      "too-large.mlxb/manifest.json && printf x >> too-large.mlxb/weights.irpa");
  check_refuses(in_root("too-large.mlxb"), "--allow-unsigned", MLX_OUT_OF_MEMORY,
                "GiB of memory for its scratch and results; this machine has");
  SHELL(
      "sed -i 's/\"state_bytes\": [0-9]*/\"state_bytes\": 0/; s/\"page_bytes\": [0-9]*/\"page_bytes\": "
      "1099511627776/' too-large.mlxb/manifest.json");
  check_refuses(in_root("too-large.mlxb"), "--allow-unsigned", MLX_OUT_OF_MEMORY,
                "GiB of memory for its KV cache");
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
  int count;
  mlx_status_t status = mlx_engine_gpu_text(0, gpu, sizeof gpu, &count);
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
      "doubled && sed -i 's/^  \"vocab\"/  \"contract\": " CONTRACT ",\\n&/' doubled/manifest.json");
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

// One copy of the weights on disk; the bundle stays complete without the cache.
TEST(bundle_folder_shares_the_weights_with_the_cache) {
  make_bundles();
  if (!mlx_link_file(in_root("m.mlxb/manifest.json"), in_root("link"))) SKIP("this system has no hard links");
  struct stat info;
  char kept[512];
  const char *cache = getenv("MLXCEL_CACHE");
  snprintf(kept, sizeof kept, "%s", cache ? cache : "");
  setenv("MLXCEL_CACHE", in_root("link-cache"), 1);
  RUN_OK("compile", make_model(), "--ctx", "64", "-o", in_root("linked.mlxb"));
  CHECK(!stat(in_root("linked.mlxb/weights.irpa"), &info) && info.st_nlink == 2);
  CHECK(!stat(in_root("linked.mlxb/model.vmfb"), &info) && info.st_nlink == 1);
  SHELL("diff -r linked.mlxb m.mlxb");
  RUN_OK("compile", make_model(), "--ctx", "64", "-o", in_root("linked.mlxb"));  // replaces its own link
  RUN_OK("cache", "clear");
  SHELL("diff -r linked.mlxb m.mlxb");
  SHELL("printf x >> linked.mlxb/weights.irpa");  // only the bundle is damaged: a new one is complete
  RUN_OK("compile", make_model(), "--ctx", "64", "-o", in_root("linked2.mlxb"));
  SHELL("printf x >> linked2.mlxb/weights.irpa");  // in place: the cache detects it and writes the file again
  RUN_OK("compile", make_model(), "--ctx", "64", "-o", in_root("linked3.mlxb"));
  SHELL("diff -r linked3.mlxb m.mlxb");
  if (kept[0])
    setenv("MLXCEL_CACHE", kept, 1);
  else
    unsetenv("MLXCEL_CACHE");
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
                                       CASE(memory_is_checked_before_weights_are_read),
                                       CASE(one_bundle_has_code_for_several_targets),
                                       CASE(gpu_bundle_is_refused_without_a_gpu),
                                       CASE(compile_refuses_a_bundle),
                                       CASE(engine_chooses_the_newest_code_that_the_gpu_runs),
                                       CASE(engine_chooses_the_highest_level_that_the_cpu_runs),
                                       CASE(failed_signing_leaves_the_bundle_unchanged),
                                       CASE(bundle_is_not_recompiled_from_itself),
                                       CASE(source_name_is_resolved_for_dot_paths),
                                       CASE(license_folder_is_not_copied),
                                       CASE(damaged_bundle_is_reported_as_damaged),
                                       CASE(bundle_folder_shares_the_weights_with_the_cache),
                                       CASE(compile_replaces_only_bundles),
                                       CASE(unknown_files_in_a_bundle_are_ignored)};
  return run_bundle_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
