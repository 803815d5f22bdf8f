// Bundles: another version is compiled again, and only local, signed or explicitly allowed code runs.
#include "tests/artifact/bundles.h"

#include "artifact/sign.h"
#include "base/cpu.h"
#include "compiler/compile.h"
#include "runtime/variant.h"

// ----------------------------------------------------------------------------------------------------------
// Versions

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
  replace_in(in_root("old.mlxb/manifest.json"), "\"contract\": " CONTRACT, "\"contract\": 8");
  check_refuses(in_root("old.mlxb"), NULL, MLX_UNSUPPORTED, "compiled for contract 8");  // not trusted
  actual = generate(in_root("old.mlxb"), "--allow-unsigned", &err);
  CHECK_CONTAINS(err,
                 "compiled for contract 8; this mlxcel runs contract " CONTRACT "; compiling it again from ");
  mlx_free(actual);
  mlx_free(err);
  RUN_OK("run", "-m", in_root("old.mlxb"), "-p", PROMPT, "-n", "1", "--chat-template", "chatml",
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
           "cd %s/forger/m.mlxb && sed -i 's/\"contract\": " CONTRACT
           "/\"contract\": 8/; s/\"source\": "
           "\"model\"/\"source\": \"other\"/; s/\"source_digest\": \"[0-9a-f]*/\"source_digest\": "
           "\"%s/' manifest.json",
           root, digest);
  run_ok((const char *const[]){"/bin/sh", "-c", script, NULL});
  static const char *const flags[] = {NULL, "--allow-unsigned", "--raw"};
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
      "sed -i 's/\"dropout\": null/\"dropout\": 0.5/' tokenizer.json && "
      "sed -i \"s/$old/$(sha256sum < tokenizer.json | cut -c1-64)/; s/\\\"tokenizer.json\\\", \\\"size\\\": "
      "$size/\\\"tokenizer.json\\\", \\\"size\\\": $(stat -c %s tokenizer.json)/\" manifest.json");
  RUN(&run, "run", "-m", in_root("odd.mlxb"), "-p", PROMPT, "--allow-unsigned");
  CHECK_INT(run.exit_code, MLX_UNSUPPORTED);
  CHECK_CONTAINS(run.err, "field 'model.dropout'");
  CHECK(!strstr(run.err, "compiling it again"));
  command_free(&run);
}

// ----------------------------------------------------------------------------------------------------------
// Trust

static void check_verify(const char *bundle, int code, const char *part) {
  command_t run;
  RUN(&run, "verify", bundle);
  CHECK_INT(run.exit_code, code);
  CHECK_CONTAINS(run.err, part);
  command_free(&run);
}

TEST(only_local_signed_or_allowed_bundles_run) {
  make_bundles();
  char kept[512], *ids = generate(in_root("m.mlxb"), NULL, NULL);
  snprintf(kept, sizeof kept, "%s", getenv("MLXCEL_CACHE") ? getenv("MLXCEL_CACHE") : "");
  setenv("MLXCEL_CACHE", in_root("other-machine"), 1);
  setenv("MLXCEL_STATE", in_root("other-state"), 1);
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
  SHELL("cp m.mlxb/tokenizer.json forged.mlxb/ && printf '{}' > forged.mlxb/chat.json");
  check_refuses(in_root("forged.mlxb"), NULL, MLX_INVALID_INPUT,
                "forged.mlxb' contains chat.json, which its manifest does not list");  // as `verify` does
  check_verify(in_root("forged.mlxb"), MLX_INVALID_INPUT, "contains chat.json");
  SHELL("rm forged.mlxb/chat.json && printf x > forged.mlxb/README");  // no bundle reads it
  check_tokens(in_root("forged.mlxb"), NULL, ids);
  RUN_OK("verify", in_root("forged.mlxb"));
  SHELL("rm forged.mlxb/weights.irpa && mkfifo forged.mlxb/weights.irpa");
  check_refuses(in_root("forged.mlxb"), NULL, MLX_INVALID_INPUT,
                "forged.mlxb/weights.irpa' is not a regular file");
  check_verify(in_root("forged.mlxb"), MLX_INVALID_INPUT, "forged.mlxb/weights.irpa' is not a regular file");
  SHELL("rm forged.mlxb/weights.irpa");
  check_refuses(in_root("forged.mlxb"), NULL, MLX_NOT_FOUND, "cannot find the weights of");
  check_verify(in_root("forged.mlxb"), MLX_NOT_FOUND, "forged.mlxb/weights.irpa' does not exist");
  RUN_OK("verify", "--no-weights", in_root("forged.mlxb"));
  unsetenv("MLXCEL_TRUSTED");
  setenv("MLXCEL_STATE", MLXCEL_TEST_CACHE "-state", 1);
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

// The module computes the size of the pool from its own page size, and does nothing if it is too small.
TEST(page_geometry_of_an_unsigned_manifest_must_fit_the_module) {
  make_bundles();
  static const char *const edits[][2] = {
      {"s/\"page_bytes\": 8192/\"page_bytes\": 2048/", "'page_bytes' is too small for kv_bytes"},
      {"s/\"page_bytes\": 8192/\"page_bytes\": 8194/", "'page_bytes' is not a multiple"},
      {"s/\"page_bytes\": 8192/\"page_bytes\": 4096/; s/\"kv_bytes\": [0-9]*/\"kv_bytes\": 64/",
       "the module sampled no token: it does not match its manifest"},
      {"s/\"kv_row\": 0/\"kv_row\": 64/", "element type mismatch"}};
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
  setenv("MLXCEL_STATE", in_root("other-state"), 1);
  mlx_free(generate(in_root("m.mlxb"), "--allow-unsigned", &err));
  CHECK_CONTAINS(err, "unsigned: this bundle was neither compiled here nor signed by a trusted key\n");
  mlx_free(err);
  setenv("MLXCEL_STATE", MLXCEL_TEST_CACHE "-state", 1);
  if (kept[0])
    setenv("MLXCEL_CACHE", kept, 1);
  else
    unsetenv("MLXCEL_CACHE");
}

// The record of a local bundle is gone, or cannot be trusted.
TEST(error_explains_a_missing_or_unsafe_record) {
  make_bundles();
  setenv("MLXCEL_STATE", in_root("open-state"), 1);
  SHELL("mkdir -m 777 open-state && mkdir -m 700 open-state/compiled");
  check_refuses(in_root("m.mlxb"), NULL, MLX_NOT_FOUND,
                "open-state' is writable by other users (mode 777))\nhint: if you compiled it here: run "
                "`chmod -R go-w");
  SHELL("chmod 700 open-state && chmod 770 open-state/compiled");
  check_refuses(in_root("m.mlxb"), NULL, MLX_NOT_FOUND, "compiled' is writable by other users");
  SHELL("chmod 700 open-state/compiled");
  check_refuses(
      in_root("m.mlxb"), NULL, MLX_NOT_FOUND,
      "hint: if you compiled it here: compile it again; if you trust its source: run with --allow-unsigned");
  mark_local(in_root("m.mlxb/manifest.json"));
  mlx_free(generate(in_root("m.mlxb"), NULL, NULL));
  SHELL("test $(stat -c %a open-state/compiled) = 700 && chmod 666 open-state/compiled/*.json");
  check_refuses(in_root("m.mlxb"), NULL, MLX_NOT_FOUND, ".json' is writable by other users");
  setenv("MLXCEL_STATE", MLXCEL_TEST_CACHE "-state", 1);
}

// A bundle without weights needs the weights in the cache: they stay as long as the bundle exists.
TEST(clearing_the_cache_keeps_own_bundles_runnable) {
  make_bundles();
  command_t run;
  char kept[512], *ids = generate(in_root("m.mlxb"), NULL, NULL);
  snprintf(kept, sizeof kept, "%s", getenv("MLXCEL_CACHE") ? getenv("MLXCEL_CACHE") : "");
  setenv("MLXCEL_CACHE", in_root("own-cache"), 1);
  setenv("MLXCEL_STATE", in_root("own-state"), 1);
  RUN_OK("compile", make_model(), "--ctx", "64", "-o", in_root("own.mlxb"));
  RUN_OK("compile", make_model(), "--ctx", "64", "--no-weights", "-o", in_root("own-thin.mlxb"));
  RUN(&run, "cache", "clear");
  CHECK_INT(run.exit_code, 0);
  CHECK_CONTAINS(run.err, "; kept 1 with weights that bundles without weights need (");
  CHECK_CONTAINS(run.err, "own-thin.mlxb)");
  command_free(&run);
  check_tokens(in_root("own.mlxb"), NULL, ids);
  check_tokens(in_root("own-thin.mlxb"), NULL, ids);
  SHELL("mv own-thin.mlxb own-moved.mlxb");  // its record has the old path
  RUN(&run, "cache", "clear");
  CHECK_CONTAINS(run.err, "; kept 1 with weights that bundles without weights need (");
  CHECK_CONTAINS(run.err, "own-thin.mlxb is not there: it was moved or removed");
  command_free(&run);
  check_tokens(in_root("own-moved.mlxb"), NULL, ids);
  RUN(&run, "cache", "clear", "--yes");
  CHECK_CONTAINS(run.err, "removed 1 entry");
  CHECK_CONTAINS(run.err, "removed the weights of ");
  CHECK_CONTAINS(run.err, "own-thin.mlxb, which is not there");
  CHECK(!strstr(run.err, "kept"));
  command_free(&run);
  SHELL("rm -r own-cache");  // even without any cache
  check_tokens(in_root("own.mlxb"), NULL, ids);
  setenv("MLXCEL_STATE", MLXCEL_TEST_CACHE "-state", 1);
  if (kept[0])
    setenv("MLXCEL_CACHE", kept, 1);
  else
    unsetenv("MLXCEL_CACHE");
  mlx_free(ids);
}

int main(int argc, char **argv) {
  static const check_case_t cases[] = {CASE(bundle_of_another_version_is_refused_or_recompiled),
                                       CASE(other_errors_do_not_cause_a_recompile),
                                       CASE(source_of_a_forged_manifest_is_not_compiled),
                                       CASE(source_digest_covers_every_file_of_the_model),
                                       CASE(only_local_signed_or_allowed_bundles_run),
                                       CASE(code_is_checked_on_every_run),
                                       CASE(page_geometry_of_an_unsigned_manifest_must_fit_the_module),
                                       CASE(code_of_another_size_is_not_read),
                                       CASE(bundle_without_digests_does_not_run),
                                       CASE(run_reports_an_allowed_unsigned_bundle),
                                       CASE(error_explains_a_missing_or_unsafe_record),
                                       CASE(clearing_the_cache_keeps_own_bundles_runnable)};
  return run_bundle_cases(cases, sizeof cases / sizeof *cases, argc, argv);
}
