// Bundles: folders and single files run alike, the same inputs make the same bytes, the best target for the
// machine is taken, and nothing runs that this machine did not make, nobody signed and nobody allowed.
#include "artifact/bundle.h"

#include "artifact/sign.h"
#include "base/cpu.h"
#include "compiler/compile.h"
#include "runtime/engine_internal.h"
#include "tests/golden.h"
#include "tests/random_llama.h"

static char root[] = "/tmp/mlxcel-bundle-XXXXXX";
static char model[128];  // a directory with a licence

static const random_llama_t shape = {96, 160, 3, 1, 32, 2, 330, true, 10000};
#define PROMPT "once upon a time"

static const char *in_root(const char *name) {
  static char paths[4][128];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", root, name);
  return path;
}

static void run_well(const char *const *argv) {
  command_t run;
  command_start(&run, argv);
  command_wait(&run);
  if (run.exit_code) CHECK_FAIL("%s %s: %s", argv[0], argv[1], run.err);
  command_free(&run);
}
#define WELL(...) run_well((const char *const[]){MLXCEL_BINARY, __VA_ARGS__, NULL})
#define SHELL(script) \
  run_well((const char *const[]){"/bin/sh", "-c", "cd \"$1\" && " script, "sh", root, NULL})

static const char *make_model(void) {
  if (model[0]) return model;
  snprintf(model, sizeof model, "%s", random_llama_write(&shape, root, "model"));
  CHECK_OK(mlx_write_file(in_root("model/LICENSE.txt"), "Do as you like.\n", 16));
  static const char readme[] = "---\nlanguage: en\nlicense: \"apache-2.0\"\n---\n# A model\nlicense: mit\n";
  CHECK_OK(mlx_write_file(in_root("model/README.md"), readme, strlen(readme)));
  return model;
}

// A bundle of each form, made once for all tests.
static void make_bundles(void) {
  if (mlx_is_bundle(in_root("one.mlxb"))) return;
  WELL("compile", make_model(), "--ctx", "64", "-o", in_root("m.mlxb"));
  WELL("compile", make_model(), "--ctx", "64", "--single-file", "-o", in_root("one.mlxb"));
}

// The ids that a bundle says, as JSON text, and what it printed beside them.
static char *say(const char *bundle, const char *flag, char **out_err) {
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

static void check_says_the_same(const char *bundle, const char *flag, const char *ids) {
  char *said = say(bundle, flag, NULL);
  CHECK_TEXT(said, ids);
  mlx_free(said);
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

TEST(a_folder_and_a_file_of_it_say_the_same) {
  make_bundles();
  char *ids = say(in_root("m.mlxb"), NULL, NULL);
  CHECK(mlx_is_dir(in_root("m.mlxb")) && mlx_is_file(in_root("one.mlxb")));
  check_says_the_same(in_root("one.mlxb"), NULL, ids);
  SHELL(
      "mkdir out && tar xf one.mlxb -C out && diff -r out m.mlxb && tar cf again.mlxb -C out .");  // and of
                                                                                                   // the
                                                                                                   // folder a
                                                                                                   // file, by
                                                                                                   // tar
                                                                                                   // alone
  check_says_the_same(in_root("again.mlxb"), NULL, ids);
  WELL("show", in_root("one.mlxb"));
  WELL("tokenize", "-m", in_root("one.mlxb"), "-p", "hello");
  WELL("compile", make_model(), "--ctx", "64", "-o", in_root("one.mlxb"));  // either takes the other's place
  CHECK(mlx_is_dir(in_root("one.mlxb")));
  WELL("compile", make_model(), "--ctx", "64", "--single-file", "-o", in_root("one.mlxb"));
  check_says_the_same(in_root("one.mlxb"), NULL, ids);
  mlx_free(ids);
}

TEST(a_files_weights_can_be_used_where_they_lie) {
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

TEST(the_manifest_says_what_it_was_made_from) {
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
  char *theirs;
  CHECK_OK(mlx_read_file(in_root("sum"), 100, &theirs, NULL));
  CHECK_TEXT(sum, theirs);
  mlx_free(theirs);
  CHECK_OK(mlx_bundle_read(bundle, "LICENSE.txt", 100, &text, &(size_t){0}));
  CHECK_TEXT(text, "Do as you like.\n");
  mlx_free(text);
  mlx_bundle_close(bundle);
}

// Nothing of when, where or by whom: not even another cache, another folder or another name for the output.
TEST(the_same_inputs_give_the_same_bytes) {
  make_bundles();
  const char *cache = getenv("MLXCEL_CACHE");
  char kept[512];
  snprintf(kept, sizeof kept, "%s", cache ? cache : "");
  setenv("MLXCEL_CACHE", in_root("another-cache"), 1);
  SHELL("cp -r model elsewhere-model && mkdir elsewhere && mv elsewhere-model elsewhere/model");
  WELL("compile", in_root("elsewhere/model"), "--ctx", "64", "--single-file", "-o", in_root("second.mlxb"));
  WELL("compile", in_root("elsewhere/model"), "--ctx", "64", "-o", in_root("second-folder.mlxb"));
  if (cache)
    setenv("MLXCEL_CACHE", kept, 1);
  else
    unsetenv("MLXCEL_CACHE");
  SHELL("cmp one.mlxb second.mlxb && diff -r m.mlxb second-folder.mlxb");
}

TEST(weights_left_out_are_found_by_their_digest) {
  make_bundles();
  WELL("compile", make_model(), "--ctx", "64", "--no-weights", "-o", in_root("thin.mlxb"));
  WELL("compile", make_model(), "--ctx", "64", "--no-weights", "--single-file", "-o",
       in_root("thin-one.mlxb"));
  CHECK(!mlx_is_file(in_root("thin.mlxb/weights.irpa")));
  char *ids = say(in_root("m.mlxb"), NULL, NULL);
  check_says_the_same(in_root("thin.mlxb"), NULL, ids);  // the cache has them
  check_says_the_same(in_root("thin-one.mlxb"), NULL, ids);
  char kept[512];
  snprintf(kept, sizeof kept, "%s", getenv("MLXCEL_CACHE") ? getenv("MLXCEL_CACHE") : "");
  setenv("MLXCEL_CACHE", in_root("empty-cache"), 1);
  check_refuses(in_root("thin.mlxb"), "--allow-unsigned", MLX_NOT_FOUND,
                "names its weights by their digest, and they are not here: sha256:");
  SHELL("cp m.mlxb/weights.irpa $(sha256sum m.mlxb/weights.irpa | cut -c1-64).irpa");
  check_says_the_same(in_root("thin.mlxb"), "--allow-unsigned", ids);  // beside it
  check_says_the_same(in_root("thin.mlxb/"), "--allow-unsigned", ids);
  SHELL("for f in *.irpa; do printf x >> $f; done");
  check_refuses(in_root("thin.mlxb"), "--allow-unsigned", MLX_INVALID_INPUT,
                "is not what the bundle's manifest says");
  SHELL("rm *.irpa");
  if (kept[0])
    setenv("MLXCEL_CACHE", kept, 1);
  else
    unsetenv("MLXCEL_CACHE");
  mlx_free(ids);
}

// ----------------------------------------------------------------------------------------------------------
// Targets

TEST(one_bundle_serves_several_targets) {
  make_bundles();
  command_t run;
  char *err, *ids = say(in_root("m.mlxb"), NULL, NULL), *said;
  WELL("compile", make_model(), "--ctx", "64", "--target", "cpu:x86-64,cpu:aarch64,cuda:sm_80", "-o",
       in_root("many.mlxb"));
  CHECK(mlx_is_file(in_root("many.mlxb/model.cpu-x86-64.vmfb")) &&
        mlx_is_file(in_root("many.mlxb/model.cuda-sm_80.vmfb")));
  said = say(in_root("many.mlxb"), "-v", &err);
  CHECK_TEXT(said, ids);
  CHECK_CONTAINS(err, mlx_cpu_has_level("aarch64")
                          ? "(auto: cpu:aarch64 of cpu:x86-64, cpu:aarch64, cuda:sm_80"
                          : "(auto: cpu:x86-64 of cpu:x86-64, cpu:aarch64, cuda:sm_80");
  mlx_free(said);
  mlx_free(err);
  RUN(&run, "show", in_root("many.mlxb"));
  CHECK_CONTAINS(run.out, "for cpu:x86-64, cpu:aarch64, cuda:sm_80");
  command_free(&run);
  SHELL("rm many.mlxb/model.cuda-sm_80.vmfb");  // as one that was pulled for another target
  WELL("keygen", "-W", "-f", "-o", in_root("partial"));
  RUN(&run, "sign", "-s", in_root("partial.key"), in_root("many.mlxb"));
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.err, "model.cuda-sm_80.vmfb: not here, and not checked: code of another target\n");
  command_free(&run);
  check_says_the_same(in_root("many.mlxb"), NULL, ids);
  RUN(&run, "push", in_root("many.mlxb"), "oci-layout:/nonexistent/x");
  CHECK_CONTAINS(run.err, "was pulled for one of its targets");
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
  CHECK_CONTAINS(run.err, "the target cpu:x86-64 was given twice");
  command_free(&run);
  RUN(&run, "compile", make_model(), "--target", "cpu:x86-64,cuda:sm_1", "-o", in_root("twice.mlxb"));
  CHECK_INT(run.exit_code, MLX_USAGE);  // before anything is compiled
  CHECK_CONTAINS(run.err, "sm_1");
  command_free(&run);
}

TEST(the_cpu_is_no_way_out_for_code_of_a_gpu) {
  make_bundles();
  char gpu[256];
  mlx_status_t status = mlx_engine_gpu_text(gpu, sizeof gpu);
  if (!status) {
    fprintf(stderr, "  there is a GPU here\n");
    return;
  }
  mlx_status_free(status);
  WELL("compile", make_model(), "--ctx", "64", "--target", "cuda:sm_80", "-o", in_root("gpu.mlxb"));
  static const char *const flags[] = {NULL, "--device=cuda"};
  for (int i = 0; i < 2; ++i)
    check_refuses(in_root("gpu.mlxb"), flags[i], MLX_UNAVAILABLE,
                  "for a CPU the model must be compiled: mlxcel compile model --target cpu\n");
}

TEST(what_is_compiled_is_not_compiled) {
  make_bundles();
  command_t run;
  RUN(&run, "compile", in_root("m.mlxb"), "-o", in_root("again-and-again.mlxb"));
  CHECK_INT(run.exit_code, MLX_USAGE);
  CHECK_CONTAINS(run.err,
                 "m.mlxb' is compiled already\nhint: run it, or compile its source model: "
                 "mlxcel compile model\n");
  command_free(&run);
  check_refuses(in_root("nosuch.mlxb"), NULL, MLX_NOT_FOUND, "a compiled model (.mlxb)");
}

static void add_variant(mlx_engine_t *engine, const char *target, const char *level) {
  mlx_variant_t *variant = &engine->manifest.variants[engine->manifest.variant_count++];
  snprintf(variant->target, sizeof variant->target, "%s", target);
  if (level) snprintf(variant->levels[variant->level_count++], sizeof variant->levels[0], "%s", level);
}

TEST(the_latest_code_that_a_gpu_runs_is_taken) {
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
    mlx_status_t status = mlx_choose_gpu(&engine, "m", &gpu);
    if (cases[i].chosen) {
      CHECK_OK(status);
      CHECK_TEXT(engine.variant->target, cases[i].chosen);
    } else {
      CHECK_ERROR(status, MLX_UNAVAILABLE, "m was compiled for cuda:sm_80; this GPU (a GPU) is sm_75");
    }
  }
}

TEST(the_highest_level_that_a_cpu_runs_is_taken) {
  static mlx_engine_t engine;
  memset(&engine, 0, sizeof engine);
  char here[64];
  snprintf(here, sizeof here, "cpu:%s", mlx_cpu_level_here()->name);
  add_variant(&engine, "cpu:portable", mlx_cpu_has_level("x86-64") ? "x86-64" : "aarch64");
  CHECK_OK(mlx_choose_cpu(&engine, "m", NULL));
  CHECK_TEXT(engine.variant->target, "cpu:portable");
  if (strcmp(mlx_cpu_level_here()->name, engine.manifest.variants[0].levels[0])) {
    add_variant(&engine, here, NULL);
    CHECK_OK(mlx_choose_cpu(&engine, "m", NULL));
    CHECK_TEXT(engine.variant->target, here);
    CHECK(!engine.level);
  }
  add_variant(&engine, "cpu:host", NULL);  // another machine's
  CHECK_OK(mlx_choose_cpu(&engine, "m", NULL));
  CHECK(strcmp(engine.variant->target, "cpu:host"));
  mlx_cpu_identity(engine.manifest.variants[engine.manifest.variant_count - 1].cpu);
  CHECK_OK(mlx_choose_cpu(&engine, "m", NULL));
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

TEST(another_iree_is_refused_by_name_or_compiled_again) {
  make_bundles();
  char *err, *ids = say(in_root("m.mlxb"), NULL, NULL), *said;
  SHELL("mkdir far && cp -r m.mlxb far/old.mlxb");
  replace_in(in_root("far/old.mlxb/manifest.json"), "\"iree\": \"3.13\"", "\"iree\": \"9.99\"");
  check_refuses(in_root("far/old.mlxb"), NULL, MLX_UNSUPPORTED,
                "compiled for IREE 9.99; this mlxcel runs IREE 3.13");  // which comes before whose it is
  check_refuses(in_root("far/old.mlxb"), "--allow-unsigned", MLX_UNSUPPORTED,
                "mlxcel compile model --target cpu:host -o OUT");
  SHELL("cp -r far/old.mlxb old.mlxb");  // the model is beside it
  said = say(in_root("old.mlxb"), NULL, &err);
  CHECK_CONTAINS(err, "compiled for IREE 9.99; this mlxcel runs IREE 3.13; compiling it again from ");
  CHECK_TEXT(said, ids);
  mlx_free(said);
  mlx_free(err);
  replace_in(in_root("old.mlxb/manifest.json"), "\"contract\": 1", "\"contract\": 8");
  said = say(in_root("old.mlxb"), "--allow-unsigned", &err);
  CHECK_CONTAINS(err, "compiled for contract 8; this mlxcel runs contract 1; compiling it again from ");
  mlx_free(said);
  mlx_free(err);
  WELL("run", "-m", in_root("old.mlxb"), "-p", PROMPT, "-n", "1", "--chat", "--chat-template",
       "chatml");  // whose template is looked for first
  SHELL("cp old.mlxb/manifest.json far/old.mlxb/");
  check_refuses(in_root("far/old.mlxb"), NULL, MLX_UNSUPPORTED,
                "mlxcel compile model --target cpu:host -o OUT");
  SHELL("cp -r model kept && printf ' ' >> model/config.json");  // no longer the model that it was made from
  check_refuses(in_root("old.mlxb"), "--allow-unsigned", MLX_UNSUPPORTED, "compiled for contract 8");
  SHELL("rm -r model && mv kept model");
  mlx_free(ids);
}

// Each file that a bundle is made of, down to a template's, is what "the same model" means; none but its own
// weights' make new weights.
TEST(a_model_is_the_same_when_every_file_of_it_is) {
  make_bundles();
  char before[MLX_DIGEST_HEX], sum[MLX_DIGEST_HEX], last[MLX_DIGEST_HEX], *theirs;
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
  CHECK_OK(mlx_read_file(in_root("sum"), 100, &theirs, NULL));
  CHECK_OK(mlx_compile_source_digest(in_root("talks"), NULL, before));
  CHECK_TEXT(before, theirs);
  mlx_free(theirs);
  static const char *const files[] = {"chat_template.jinja",   "additional_chat_templates/tool_use.jinja",
                                      "tokenizer_config.json", "special_tokens_map.json",
                                      "LICENSE.txt",           "README.md"};
  memcpy(last, before, sizeof last);
  for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
    char path[128];
    snprintf(path, sizeof path, "%s/talks/%s", root, files[i]);
    CHECK_OK(mlx_write_file(path, "{ }", 3));
    CHECK_OK(mlx_compile_source_digest(in_root("talks"), NULL, sum));
    if (!strcmp(sum, last)) CHECK_FAIL("%s does not count", files[i]);
    memcpy(last, sum, sizeof last);
  }
  SHELL("\"" MLXCEL_BINARY "\" cache list | grep -c ^weights > archives");
  WELL("compile", in_root("talks"), "--ctx", "64", "-o", in_root("talks.mlxb"));
  SHELL("\"" MLXCEL_BINARY "\" cache list | grep -c ^weights | cmp - archives");
  SHELL("cmp talks.mlxb/weights.irpa m.mlxb/weights.irpa");
}

// Its model is beside it, and would be refused for the same reason.
TEST(only_another_version_is_compiled_again) {
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

TEST(only_what_was_made_here_signed_or_allowed_is_run) {
  make_bundles();
  char kept[512], *ids = say(in_root("m.mlxb"), NULL, NULL);
  snprintf(kept, sizeof kept, "%s", getenv("MLXCEL_CACHE") ? getenv("MLXCEL_CACHE") : "");
  setenv("MLXCEL_CACHE", in_root("other-machine"), 1);
  setenv("MLXCEL_TRUSTED", in_root("trusted"), 1);
  SHELL("cp -r m.mlxb s.mlxb && cp one.mlxb s-one.mlxb");
  static const char *const forms[] = {"s.mlxb", "s-one.mlxb"};
  for (int i = 0; i < 2; ++i) {
    const char *bundle = in_root(forms[i]);
    check_refuses(bundle, NULL, MLX_NOT_FOUND,
                  "is code that is not known as made on this machine, and nobody signed it");
    check_says_the_same(bundle, "--allow-unsigned", ids);
  }
  WELL("keygen", "-W", "-o", in_root("us"));
  WELL("sign", "-s", in_root("us.key"), in_root("s.mlxb"), in_root("s-one.mlxb"));
  for (int i = 0; i < 2; ++i) check_refuses(in_root(forms[i]), NULL, MLX_NOT_FOUND, "trust");  // by whom?
  WELL("trust", "add", in_root("us.pub"));
  for (int i = 0; i < 2; ++i) check_says_the_same(in_root(forms[i]), NULL, ids);
  SHELL("cp -r s.mlxb forged.mlxb && printf ' ' >> forged.mlxb/manifest.json");
  check_refuses(in_root("forged.mlxb"), NULL, MLX_INVALID_INPUT, "is not what was signed");
  check_refuses(in_root("forged.mlxb"), "--allow-unsigned", MLX_INVALID_INPUT, "is not what was signed");
  SHELL(
      "cp m.mlxb/manifest.json forged.mlxb/ && printf x | dd of=forged.mlxb/model.vmfb bs=1 seek=100 "
      "conv=notrunc 2>/dev/null");
  check_refuses(in_root("forged.mlxb"), NULL, MLX_INVALID_INPUT,
                "forged.mlxb/model.vmfb' is not what the bundle's manifest says: its SHA-256 is");
  check_refuses(in_root("forged.mlxb"), "--allow-unsigned", MLX_INVALID_INPUT,
                "forged.mlxb/model.vmfb' is not what the bundle's manifest says");
  SHELL("cp m.mlxb/model.vmfb forged.mlxb/ && printf '{}' > forged.mlxb/tokenizer.json");
  check_refuses(in_root("forged.mlxb"), NULL, MLX_INVALID_INPUT,
                "tokenizer.json' is not what the bundle's manifest says");
  SHELL(
      "cp m.mlxb/tokenizer.json forged.mlxb/ && printf '{}' > forged.mlxb/chat.json");  // which nobody signed
  check_says_the_same(in_root("forged.mlxb"), NULL, ids);
  unsetenv("MLXCEL_TRUSTED");
  if (kept[0])
    setenv("MLXCEL_CACHE", kept, 1);
  else
    unsetenv("MLXCEL_CACHE");
  mlx_free(ids);
}

// A file's times need not tell that it changed: code is compared each time.
TEST(code_that_was_checked_once_is_checked_again) {
  make_bundles();
  char *ids = say(in_root("m.mlxb"), NULL, NULL);
  SHELL("cp -r m.mlxb moved.mlxb && touch -d '2020-01-01' moved.mlxb/*");
  check_says_the_same(in_root("moved.mlxb"), NULL, ids);
  SHELL(
      "printf x | dd of=moved.mlxb/model.vmfb bs=1 seek=100 conv=notrunc 2>/dev/null && touch -d "
      "'2020-01-01' moved.mlxb/*");
  check_refuses(in_root("moved.mlxb"), NULL, MLX_INVALID_INPUT,
                "model.vmfb' is not what the bundle's manifest says");
  SHELL("cp m.mlxb/model.vmfb moved.mlxb/ && rm moved.mlxb/tokenizer.json");
  check_refuses(in_root("moved.mlxb"), NULL, MLX_NOT_FOUND, "tokenizer.json' is not there");
  mlx_free(ids);
}

// As compilers before there were digests wrote it, or somebody who would have nobody look.
TEST(what_cannot_be_checked_is_not_run) {
  make_bundles();
  SHELL(
      "cp -r m.mlxb bare.mlxb && sed -i '/\"files\": \\[/,/^  \\]/d; s/^  \\],$/  ]/' "
      "bare.mlxb/manifest.json && tar cf bare-one.mlxb -C bare.mlxb .");
  static const char *const forms[] = {"bare.mlxb", "bare-one.mlxb"};
  for (int i = 0; i < 2; ++i)
    check_refuses(in_root(forms[i]), "--allow-unsigned", MLX_UNSUPPORTED,
                  "its manifest does not list its files, so nothing of it can be checked");
  WELL("show", in_root("bare.mlxb"));  // which reads the manifest alone
}

TEST(what_is_allowed_is_said) {
  make_bundles();
  char kept[512], *err;
  snprintf(kept, sizeof kept, "%s", getenv("MLXCEL_CACHE") ? getenv("MLXCEL_CACHE") : "");
  setenv("MLXCEL_CACHE", in_root("other-machine"), 1);
  mlx_free(say(in_root("m.mlxb"), "--allow-unsigned", &err));
  CHECK_CONTAINS(err, "unsigned: this bundle was neither compiled here nor signed by a trusted key\n");
  mlx_free(err);
  if (kept[0])
    setenv("MLXCEL_CACHE", kept, 1);
  else
    unsetenv("MLXCEL_CACHE");
}

// One's own bundle, when the memory of it is gone or cannot be looked at.
TEST(a_machine_that_forgot_says_why) {
  make_bundles();
  command_t run;
  char kept[512];
  snprintf(kept, sizeof kept, "%s", getenv("MLXCEL_CACHE") ? getenv("MLXCEL_CACHE") : "");
  setenv("MLXCEL_CACHE", in_root("open-cache"), 1);
  SHELL("mkdir -m 777 open-cache");
  check_refuses(in_root("m.mlxb"), NULL, MLX_NOT_FOUND,
                "open-cache' may be written to by others (mode 777)), and nobody signed it");
  check_refuses(in_root("m.mlxb"), NULL, MLX_NOT_FOUND, "hint: if you made it here: run `chmod go-w");
  SHELL("chmod 700 open-cache");
  mlx_cache_t *cache;
  mlx_bundle_t *bundle;
  size_t length;
  CHECK_OK(mlx_cache_open(NULL, &cache));
  CHECK_OK(mlx_bundle_open(in_root("m.mlxb"), &bundle));
  const char *manifest = mlx_bundle_manifest_text(bundle, &length);
  CHECK_OK(mlx_bundle_remember(cache, manifest, length));
  mlx_bundle_close(bundle);
  mlx_cache_close(cache);
  mlx_free(say(in_root("m.mlxb"), NULL, NULL));
  RUN(&run, "cache", "clear");
  CHECK_CONTAINS(run.err, "; 1 bundle is no longer recognized as compiled here");
  command_free(&run);
  check_refuses(
      in_root("m.mlxb"), NULL, MLX_NOT_FOUND,
      "hint: if you made it here: compile it again; if you trust where it comes from: --allow-unsigned");
  if (kept[0])
    setenv("MLXCEL_CACHE", kept, 1);
  else
    unsetenv("MLXCEL_CACHE");
}

// ----------------------------------------------------------------------------------------------------------
// Damage

// A full disk, and a bundle that is being signed.
TEST(a_signature_that_cannot_be_written_leaves_the_bundle_as_it_was) {
  make_bundles();
  WELL("keygen", "-W", "-o", in_root("them"));
  SHELL(
      "cp one.mlxb full.mlxb && (trap '' XFSZ; ulimit -f $(($(stat -c %s full.mlxb) / 512)); ! "
      "\"" MLXCEL_BINARY "\" sign -s them.key full.mlxb 2> said) && cmp full.mlxb one.mlxb");
  char *said;
  CHECK_OK(mlx_read_file(in_root("said"), 1 << 16, &said, NULL));
  CHECK_CONTAINS(said, "cannot write");
  mlx_free(said);
}

// A bundle that is the model it was made from, as far as it says.
TEST(a_bundle_is_not_compiled_from_itself) {
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
}

TEST(a_model_has_a_name_from_within) {
  make_bundles();
  SHELL("mkdir in && cp -r model in/named && cd in/named && \"" MLXCEL_BINARY
        "\" compile . --ctx 64 && grep -q '\"source\": \"named\"' named.mlxb/manifest.json");
  SHELL("mkdir in/named/sub && cd in/named/sub && \"" MLXCEL_BINARY
        "\" compile .. --ctx 64 && cmp named.mlxb/manifest.json ../named.mlxb/manifest.json");
}

TEST(a_folder_of_licences_is_no_licence) {
  make_bundles();
  SHELL("cp -r model reuse && mkdir reuse/LICENSES && echo x > reuse/LICENSES/MIT.txt");
  WELL("compile", in_root("reuse"), "--ctx", "64", "-o", in_root("reuse.mlxb"));
  CHECK(mlx_is_file(in_root("reuse.mlxb/LICENSE.txt")) && !mlx_is_dir(in_root("reuse.mlxb/LICENSES")));
}

// Whatever is wrong with a bundle is said of a bundle, by all that take one, and nobody signs it as a file
// like any other.
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

TEST(a_damaged_bundle_is_said_to_be_one) {
  make_bundles();
  WELL("keygen", "-W", "-o", in_root("signer"));
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
  check_is_damaged("twice.mlxb", MLX_INVALID_INPUT, "holds 'manifest.json' twice");
  check_is_damaged("cut.mlxb", MLX_INVALID_INPUT,
                   "it is cut off\nhint: the bundle is damaged: compile or pull it again");
  check_is_damaged("cut", MLX_INVALID_INPUT, "it is cut off");
  check_is_damaged("huge.mlxb", MLX_INVALID_INPUT, "huge.mlxb' is not a tar archive we take");
  check_is_damaged("text.mlxb", MLX_INVALID_INPUT, "text.mlxb' is not a tar archive we take");
  check_is_damaged("empty.mlxb", MLX_NOT_FOUND, "empty.mlxb/manifest.json' is not there");
  check_is_damaged("none.mlxb", MLX_NOT_FOUND, "none.mlxb/manifest.json' is not there");
}

// What it is called gives nobody the right to replace it.
TEST(only_a_bundle_is_replaced_by_one) {
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
  WELL("compile", make_model(), "--ctx", "64", "--single-file", "-o",
       in_root("again-cut.mlxb"));  // one that is damaged is
  SHELL("cmp again-cut.mlxb one.mlxb");
}

// A README beside the rest is never read, in a folder and in a file, and outlives a signature.
TEST(files_of_others_in_a_bundle_do_not_count) {
  make_bundles();
  char *ids = say(in_root("m.mlxb"), NULL, NULL);
  WELL("keygen", "-W", "-o", in_root("packer"));
  SHELL(
      "cp -r m.mlxb read && echo read me > read/README.md && tar cf read.mlxb -C read . && tar rf read.mlxb "
      "-C read/.. --transform 's/.*/after/' read/README.md");
  check_says_the_same(in_root("read"), NULL, ids);
  check_says_the_same(in_root("read.mlxb"), NULL, ids);
  for (int i = 0; i < 2; ++i)
    WELL("sign", "-s", in_root("packer.key"), in_root("read.mlxb"));  // the second in the first's place
  WELL("verify", "-p", in_root("packer.pub"), in_root("read.mlxb"));
  SHELL(
      "mkdir unread && tar xf read.mlxb -C unread && cmp unread/README.md read/README.md && cmp unread/after "
      "read/README.md && test $(tar tf read.mlxb | grep -c minisig) = 1");
  mlx_free(ids);
}

int main(int argc, char **argv) {
  static const check_case_t cases[] = {CASE(a_folder_and_a_file_of_it_say_the_same),
                                       CASE(a_files_weights_can_be_used_where_they_lie),
                                       CASE(the_manifest_says_what_it_was_made_from),
                                       CASE(the_same_inputs_give_the_same_bytes),
                                       CASE(weights_left_out_are_found_by_their_digest),
                                       CASE(one_bundle_serves_several_targets),
                                       CASE(the_cpu_is_no_way_out_for_code_of_a_gpu),
                                       CASE(what_is_compiled_is_not_compiled),
                                       CASE(the_latest_code_that_a_gpu_runs_is_taken),
                                       CASE(the_highest_level_that_a_cpu_runs_is_taken),
                                       CASE(another_iree_is_refused_by_name_or_compiled_again),
                                       CASE(only_another_version_is_compiled_again),
                                       CASE(a_model_is_the_same_when_every_file_of_it_is),
                                       CASE(only_what_was_made_here_signed_or_allowed_is_run),
                                       CASE(code_that_was_checked_once_is_checked_again),
                                       CASE(what_cannot_be_checked_is_not_run),
                                       CASE(what_is_allowed_is_said),
                                       CASE(a_machine_that_forgot_says_why),
                                       CASE(a_signature_that_cannot_be_written_leaves_the_bundle_as_it_was),
                                       CASE(a_bundle_is_not_compiled_from_itself),
                                       CASE(a_model_has_a_name_from_within),
                                       CASE(a_folder_of_licences_is_no_licence),
                                       CASE(a_damaged_bundle_is_said_to_be_one),
                                       CASE(only_a_bundle_is_replaced_by_one),
                                       CASE(files_of_others_in_a_bundle_do_not_count)};
  if (!mkdtemp(root)) return 1;
  const int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
