// Compiling kernels with NVRTC, and all failures of the library or the source. Needs no GPU.
#include "compiler/nvrtc.h"

#include <dlfcn.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "compiler/kernel_config.h"
#include "compiler/kernel_source.h"
#include "compiler/kernels.h"
#include "tests/support/check.h"
#include "tests/support/faults.h"

static char root[64];

static const char *in_root(const char *name) {
  static char paths[8][256];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", root, name);
  return path;
}

static mlx_nvrtc_job_t job(const char *name, const char *source, int sm) {
  static char log[128];
  snprintf(log, sizeof log, "%s/nvrtc.log", root);
  return (mlx_nvrtc_job_t){.name = name, .source = source, .sm = sm, .log_path = log};
}

static mlx_nvrtc_job_t smoke(int sm) { return job("smoke.cu", mlx_kernel_source_find("smoke.cu")->text, sm); }

static mlx_nvrtc_t *open_built_in(void) {
  mlx_nvrtc_t *nvrtc;
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  return nvrtc;
}

static void check_log_is(const char *expected) {
  char *text;
  CHECK_OK(mlx_read_file(in_root("nvrtc.log"), 1 << 20, &text, NULL));
  CHECK_TEXT(text, expected);
  mlx_free(text);
}

// ----------------------------------------------------------------------------------------------------------
// Finding

// A folder with links to these files of the built-in NVRTC.
static const char *folder_with(const char *name, const char *const *files) {
  static char folder[128];
  snprintf(folder, sizeof folder, "%s", in_root(name));
  CHECK_OK(mlx_make_dirs(folder, 0700));
  for (; *files; ++files) {
    char from[1024], to[256];
    snprintf(from, sizeof from, "%s/%s", mlx_nvrtc_built_in, *files);
    snprintf(to, sizeof to, "%s/%s", folder, *files);
    CHECK(mlx_is_file(from) && !symlink(from, to));
  }
  return folder;
}

// The loader of a machine with a CUDA toolkit finds libraries that some tests need to be missing.
static bool loader_finds(const char *name) {
  void *library = dlopen(name, RTLD_LAZY);
  if (library) dlclose(library);
  return library != NULL;
}

TEST(missing_library_error_lists_the_places_and_hints_how_to_install) {
  if (loader_finds("libnvrtc.so.13") || loader_finds("libnvrtc.so.12"))
    SKIP("this machine has a CUDA toolkit, so NVRTC is always found");
  const char *built_in = mlx_nvrtc_built_in;
  mlx_nvrtc_t *nvrtc;
  mlx_nvrtc_built_in = "/nowhere/nvrtc";
  mlx_status_t status = mlx_nvrtc_open(NULL, &nvrtc);
  mlx_nvrtc_built_in = built_in;
  CHECK(!nvrtc);
  CHECK_CONTAINS(mlx_status_message(status), "/nowhere/nvrtc: cannot open");
  CHECK_CONTAINS(mlx_status_message(status), "/../lib");
  CHECK_CONTAINS(mlx_status_message(status), "; libnvrtc.so.12: cannot open");
  CHECK_CONTAINS(mlx_status_hint_text(status), "pip install --target DIR nvidia-cuda-nvrtc==");
  CHECK_CONTAINS(mlx_status_hint_text(status), "MLXCEL_NVRTC=");
  CHECK_CONTAINS(mlx_status_hint_text(status), "--kernels=off");
  CHECK_ERROR(status, MLX_UNAVAILABLE, "NVRTC, which compiles the GPU kernels, was not found: ");
}

static void check_unusable(const char *path, const char *origin, const char *part) {
  mlx_nvrtc_t *nvrtc;
  mlx_status_t status = mlx_nvrtc_open(path, &nvrtc);
  CHECK_CONTAINS(mlx_status_message(status), origin);
  CHECK_CONTAINS(mlx_status_hint_text(status), "or leave it out to use the default");
  CHECK_ERROR(status, MLX_NOT_FOUND, part);
  CHECK(!nvrtc);
}

TEST(library_without_its_builtins_is_refused) {
  static const char *const alone[] = {"libnvrtc.so.13", NULL};
  if (loader_finds("libnvrtc-builtins.so.13.0"))
    SKIP("this machine has a CUDA toolkit with libnvrtc-builtins");
  check_unusable(folder_with("alone", alone), "alone", "needs libnvrtc-builtins.so.13.0 beside it");
}

TEST(image_without_libnvfatbin_is_a_bare_cubin) {
  static const char *const two[] = {"libnvrtc.so.13", "libnvrtc-builtins.so.13.0", NULL};
  mlx_nvrtc_t *nvrtc;
  mlx_nvrtc_job_t one = smoke(90);
  mlx_kernel_image_t image;
  char with[MLX_DIGEST_HEX], without[MLX_DIGEST_HEX];
  if (loader_finds("libnvfatbin.so.13")) SKIP("this machine has a CUDA toolkit with libnvfatbin");
  CHECK_OK(mlx_nvrtc_open(folder_with("two", two), &nvrtc));
  CHECK(!mlx_nvrtc_makes_ptx(nvrtc));
  CHECK_OK(mlx_nvrtc_compile(nvrtc, &one, &image));
  CHECK(!image.has_ptx && image.length > 64 &&
        !memcmp(image.bytes,
                "\x7f"
                "ELF",
                4));
  mlx_kernel_image_release(&image);
  mlx_nvrtc_identity(nvrtc, without);
  mlx_nvrtc_close(nvrtc);
  nvrtc = open_built_in();
  mlx_nvrtc_identity(nvrtc, with);
  mlx_nvrtc_close(nvrtc);
  CHECK(strcmp(with, without));
}

TEST(named_library_is_used_or_the_search_fails) {
  static const char *const all[] = {"libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libnvfatbin.so.13", NULL};
  mlx_nvrtc_t *nvrtc;
  char file[256];
  const char *folder = folder_with("named", all);
  snprintf(file, sizeof file, "%s/libnvrtc.so.13", folder);
  CHECK_OK(mlx_nvrtc_open(folder, &nvrtc));
  CHECK_TEXT(mlx_nvrtc_path(nvrtc), file);
  mlx_nvrtc_close(nvrtc);
  CHECK(!setenv("MLXCEL_NVRTC", in_root("nothing"), 1));
  check_unusable(NULL, "(from MLXCEL_NVRTC)", "nothing: cannot open shared object file");
  CHECK_OK(mlx_nvrtc_open(file, &nvrtc));  // an explicit path has priority
  CHECK_TEXT(mlx_nvrtc_path(nvrtc), file);
  mlx_nvrtc_close(nvrtc);
  CHECK(!setenv("MLXCEL_NVRTC", file, 1));
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  CHECK_TEXT(mlx_nvrtc_path(nvrtc), file);
  mlx_nvrtc_close(nvrtc);
  unsetenv("MLXCEL_NVRTC");
  check_unusable(root, "(from the command line)", "contains neither libnvrtc.so.13 nor libnvrtc.so.12");
  CHECK_OK(mlx_write_file(in_root("text.so"), "no library", 10));
  check_unusable(in_root("text.so"), "text.so", "file too short");
  check_unusable("libm.so.6", "'libm.so.6'", "it has no function nvrtcGetErrorString");
}

// ----------------------------------------------------------------------------------------------------------
// Images

// A fatbin has a header and a list of entries, each with its own header.
typedef struct fatbin_header {
  uint32_t magic;
  uint16_t version, header_size;
  uint64_t size;  // of all entries
} fatbin_header_t;

typedef struct fatbin_entry {
  uint16_t kind, version;
  uint32_t header_size;
  uint64_t size;
  uint32_t compressed_size, reserved;
  uint16_t minor, major;
  uint32_t sm;
} fatbin_entry_t;

enum { ENTRY_PTX = 1, ENTRY_CUBIN = 2 };

// The entry of this kind; there must be exactly one.
static const char *find_entry(const mlx_kernel_image_t *image, int kind, fatbin_entry_t *out_entry) {
  fatbin_header_t header;
  fatbin_entry_t entry;
  const char *found = NULL;
  CHECK(image->length > sizeof header);
  memcpy(&header, image->bytes, sizeof header);
  CHECK_INT(header.magic, 0xba55ed50);
  CHECK_INT(header.header_size + header.size, image->length);
  for (size_t at = header.header_size; at < image->length; at += entry.header_size + entry.size) {
    CHECK(mlx_range_ok(at, sizeof entry, image->length));
    memcpy(&entry, image->bytes + at, sizeof entry);
    CHECK(entry.header_size >= sizeof entry &&
          mlx_range_ok(at + entry.header_size, entry.size, image->length));
    if (entry.kind != kind) continue;
    CHECK(!found && !entry.compressed_size);
    found = image->bytes + at + entry.header_size;
    *out_entry = entry;
  }
  CHECK(found);
  return found;
}

static bool holds(const char *bytes, size_t length, const char *part) {
  return memmem(bytes, length, part, strlen(part)) != NULL;
}

static void check_image(const mlx_kernel_image_t *image, int sm) {
  char target[32];
  fatbin_entry_t entry;
  const char *cubin = find_entry(image, ENTRY_CUBIN, &entry);
  CHECK_INT(entry.sm, sm);
  CHECK(entry.size > 64 && !memcmp(cubin,
                                   "\x7f"
                                   "ELF",
                                   4));
  CHECK(holds(cubin, entry.size, ".text.mlx_smoke"));
  const char *ptx = find_entry(image, ENTRY_PTX, &entry);
  snprintf(target, sizeof target, "\n.target sm_%d\n", sm);  // and not sm_90a
  CHECK_INT(entry.sm, sm);
  CHECK(holds(ptx, entry.size, target));
  CHECK(holds(ptx, entry.size, ".visible .entry mlx_smoke("));
  CHECK(image->has_ptx);
}

TEST(kernel_compiles_for_any_gpu_and_includes_ptx_for_later_ones) {
  static const int sms[] = {75, 80, 90, 100, 120};
  mlx_nvrtc_t *nvrtc = open_built_in();
  CHECK_TEXT(mlx_nvrtc_version(nvrtc), "13.0");
  CHECK(mlx_nvrtc_major(nvrtc) == 13 && mlx_nvrtc_minor(nvrtc) == 0);
  CHECK(mlx_nvrtc_path(nvrtc)[0] == '/' && mlx_nvrtc_makes_ptx(nvrtc));
  for (int i = 0; i < 5; ++i) {
    mlx_nvrtc_job_t one = smoke(sms[i]);
    mlx_kernel_image_t image;
    CHECK_OK(mlx_nvrtc_compile(nvrtc, &one, &image));
    check_image(&image, sms[i]);
    CHECK_CONTAINS(image.log, "Compiling entry function 'mlx_smoke'");
    CHECK_CONTAINS(image.log, " registers");
    CHECK_CONTAINS(image.log, " bytes spill stores");
    check_log_is(image.log);
    mlx_kernel_image_release(&image);
  }
  mlx_nvrtc_close(nvrtc);
}

TEST(arch_specific_cubin_comes_with_portable_ptx) {
  static const int sms[] = {80, 90, 100, 103, 110, 120, 121};
  mlx_nvrtc_t *nvrtc = open_built_in();
  for (int i = 0; i < 7; ++i) {
    mlx_nvrtc_job_t one = smoke(sms[i]);
    mlx_kernel_image_t image;
    char arch[32];
    one.arch_specific = true;
    CHECK_OK(mlx_nvrtc_compile(nvrtc, &one, &image));
    check_image(&image, sms[i]);
    snprintf(arch, sizeof arch, "for 'sm_%d%s'\n", sms[i], sms[i] >= 90 ? "a" : "");
    CHECK_CONTAINS(image.log, arch);
    mlx_kernel_image_release(&image);
  }
  mlx_nvrtc_close(nvrtc);
}

TEST(definitions_reach_the_source) {
  static const char *const definitions[] = {"ROWS=7", "TYPE=unsigned char"};
  static const char source[] =
      "static_assert(ROWS == 7 && sizeof(TYPE) == 1, \"\");\n"
      "extern \"C\" __global__ void mlx_smoke(TYPE *y) { y[threadIdx.x] = ROWS; }\n";
  mlx_nvrtc_t *nvrtc = open_built_in();
  mlx_nvrtc_job_t one = job("defined.cu", source, 80);
  mlx_kernel_image_t image;
  CHECK_ERROR(mlx_nvrtc_compile(nvrtc, &one, &image), MLX_TOOL_FAILED, "identifier \"ROWS\" is undefined");
  one.definitions = definitions;
  one.definition_count = 2;
  CHECK_OK(mlx_nvrtc_compile(nvrtc, &one, &image));
  check_image(&image, 80);
  CHECK_CONTAINS(image.log, "-DROWS=7 -DTYPE=unsigned char --ptxas-options=-v defined.cu\n");
  CHECK_CONTAINS(image.log, "\nNVRTC took ");
  mlx_kernel_image_release(&image);
  mlx_nvrtc_close(nvrtc);
}

TEST(configuration_reaches_the_source) {
  static const char types[] =
      "#pragma once\n#include \"config_types.cuh\"\n"
      "struct Config { int rows = 1; int columns = 5; Dtype dtype = Dtype::F32; };\n"
      "struct NoTables { using layers = NoTable<u8>; using other = NoTable<u16>; };\n";
  static const char source[] =
      "#include \"config.cuh\"\n"
      "static_assert(config.rows == 7 && config.columns == 5 && config.dtype == Dtype::BF16, \"\");\n"
      "static_assert(sizeof(Tables::layers::values()) == 3, \"\");\n"
      "extern \"C\" __global__ void NAME(int *y) {\n"
      "  y[0] = constant_at<Tables::layers>(y[1]);\n"
      "  if constexpr (config.rows == 1) y[2] = constant_at<Tables::other>(y[1]);\n}\n";
  static const char *const definitions[] = {"NAME=mlx_smoke"};
  const char *names[] = {"config.cuh",    "test_config.cuh", "config_types.cuh",
                         "activations.h", "kernel_tables.h", "types.cuh"};
  enum { HEADERS = sizeof names / sizeof *names };
  const char *texts[HEADERS];
  char *config;
  CHECK_OK(mlx_kernel_config_header("test", "NAME=mlx_smoke\nrows=7\nlayers:u8=1,0,4\ndtype=Dtype::BF16\n",
                                    &config));
  texts[0] = config;
  texts[1] = types;
  for (int i = 2; i < HEADERS; ++i) texts[i] = mlx_kernel_source_find(names[i])->text;
  mlx_nvrtc_t *nvrtc = open_built_in();
  mlx_nvrtc_job_t one = job("configured.cu", source, 80);
  mlx_kernel_image_t image;
  one.definitions = definitions;
  one.definition_count = 1;
  one.headers = texts;
  one.header_names = names;
  one.header_count = HEADERS;
  CHECK_OK(mlx_nvrtc_compile(nvrtc, &one, &image));
  check_image(&image, 80);
  CHECK_CONTAINS(image.log, "3 bytes cmem[3]");  // a table that is not used takes no constant memory
  mlx_kernel_image_release(&image);
  mlx_nvrtc_close(nvrtc);
  mlx_free(config);
}

// ----------------------------------------------------------------------------------------------------------
// Headers

// A kernel and the prefix of its headers. kernels/cuda/examples/KERNEL/config.cuh is its configuration.
static const struct {
  const char *kernel, *prefix;
} configured[] = {
    {"attention", "attention_"}, {"few", "attention_pages"}, {"decode", "decode_"}, {"few", "few_"},
    {"rows", "rows_"},           {"place", "place_"},        {"rows", "ptx"},       {"rows", "types"},
    {"rows", "overlap"},         {"rows", "parts"},          {"linear", "cluster"}, {"decode", "tile_format"},
    {"recurrent", "recurrent_"}, {"packed", "packed_"},      {"packed", "gated"},   {"experts", "experts_"}};

// The macro of the kernel in |header|, if it is not the one of the example.
static const char *macro_of(const char *header) {
  static const struct {
    const char *header, *macro;
  } known[] = {{"packed_embed.cuh", "EMBED=1"},
               {"packed_split.cuh", "SPLIT_INPUT=1"},
               {"packed_linear_few.cuh", "FEW=1"}};
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (!strcmp(header, known[i].header)) return known[i].macro;
  return NULL;
}

// Compiles a file that includes only |header|, twice.
static void compile_alone(const mlx_nvrtc_t *nvrtc, const char *kernel, const char *header) {
  const char *names[128] = {MLX_KERNEL_CONFIG}, *texts[128];
  char *config, path[256], source[128];
  size_t count = 1;
  mlx_kernel_image_t image;
  snprintf(path, sizeof path, "%s/kernels/cuda/examples/%s/config.cuh", MLXCEL_SOURCE_DIR, kernel);
  CHECK_OK(mlx_read_file(path, 1 << 20, &config, NULL));
  texts[0] = config;
  for (const mlx_kernel_source_t *h; (h = mlx_kernel_source_header(count - 1)); ++count)
    names[count] = h->name, texts[count] = h->text;
  snprintf(source, sizeof source, "#include \"%s\"\n#include \"%s\"\n", header, header);
  mlx_nvrtc_job_t one = job("alone.cu", source, 80);
  one.header_names = names;
  one.headers = texts;
  one.header_count = count;
  const char *macro = macro_of(header);
  one.definitions = &macro;
  one.definition_count = macro != NULL;
  CHECK_OK(mlx_nvrtc_compile(nvrtc, &one, &image));
  mlx_kernel_image_release(&image);
  mlx_free(config);
}

// So that an editor can open it: it includes what it uses, and may be included twice.
TEST(each_kernel_header_compiles_alone_with_the_example_configuration) {
  mlx_nvrtc_t *nvrtc = open_built_in();
  int count = 0;
  for (size_t i = 0; i < sizeof configured / sizeof *configured; ++i) {
    const mlx_kernel_source_t *header;
    for (size_t h = 0; (header = mlx_kernel_source_header(h)); ++h) {
      if (strncmp(header->name, configured[i].prefix, strlen(configured[i].prefix))) continue;
      compile_alone(nvrtc, configured[i].kernel, header->name);
      ++count;
    }
  }
  CHECK(count > 20);
  mlx_nvrtc_close(nvrtc);
}

// The cache key of a module depends on its images.
TEST(equal_sources_give_equal_images) {
  mlx_kernel_image_t images[2];
  char identities[2][MLX_DIGEST_HEX];
  for (int i = 0; i < 2; ++i) {
    mlx_nvrtc_t *nvrtc = open_built_in();
    mlx_nvrtc_job_t one = smoke(90);
    CHECK_OK(mlx_nvrtc_compile(nvrtc, &one, &images[i]));
    mlx_nvrtc_identity(nvrtc, identities[i]);
    mlx_nvrtc_close(nvrtc);
  }
  CHECK_INT(images[0].length, images[1].length);
  CHECK(!memcmp(images[0].bytes, images[1].bytes, images[0].length));
  CHECK_INT(strlen(identities[0]), 64);
  CHECK_TEXT(identities[0], identities[1]);
  for (int i = 0; i < 2; ++i) mlx_kernel_image_release(&images[i]);
}

TEST(kernel_sources_are_embedded_in_the_binary) {
  char *text;
  size_t length;
  const mlx_kernel_source_t *source = mlx_kernel_source_find("smoke.cu");
  CHECK_OK(mlx_read_file(MLXCEL_SOURCE_DIR "/kernels/cuda/smoke.cu", 1 << 20, &text, &length));
  CHECK(source);
  CHECK_INT(source->length, length);
  CHECK_TEXT(source->text, text);
  CHECK(!mlx_kernel_source_find("smoke") && !mlx_kernel_source_find(""));
  mlx_free(text);
}

// ----------------------------------------------------------------------------------------------------------
// Failures

static mlx_status_t compile(const char *name, const char *source, int sm) {
  mlx_nvrtc_t *nvrtc = open_built_in();
  mlx_nvrtc_job_t one = job(name, source, sm);
  mlx_kernel_image_t image;
  mlx_status_t status = mlx_nvrtc_compile(nvrtc, &one, &image);
  CHECK(!image.bytes && !image.log);
  mlx_nvrtc_close(nvrtc);
  return status;
}

static void check_log_holds(const char *part) {
  char *text;
  CHECK_OK(mlx_read_file(in_root("nvrtc.log"), 1 << 20, &text, NULL));
  CHECK_CONTAINS(text, part);
  mlx_free(text);
}

TEST(sample_kernel_compiles_without_warnings) {
  const char *headers[128], *names[128];
  mlx_nvrtc_t *nvrtc = open_built_in();
  mlx_nvrtc_job_t one = job("sample.cu", mlx_kernel_source_find("sample.cu")->text, 80);
  one.headers = headers;
  one.header_names = names;
  for (const mlx_kernel_source_t *header; (header = mlx_kernel_source_header(one.header_count));) {
    CHECK(one.header_count < 128);
    headers[one.header_count] = header->text;
    names[one.header_count++] = header->name;
  }
  for (int i = 0; i < 2; ++i) {
    mlx_kernel_image_t image;
    one.sm = i ? 90 : 80;
    CHECK_OK(mlx_nvrtc_compile(nvrtc, &one, &image));
    CHECK_CONTAINS(image.log, "mlx_sample");
    CHECK(!strstr(image.log, "warning"));
    mlx_kernel_image_release(&image);
  }
  mlx_nvrtc_close(nvrtc);
}

TEST(syntax_error_names_the_line_and_the_log) {
  mlx_status_t status = compile(
      "broken.cu", "__device__ int error = 1;\n__global__ void f(int *y) {\n  y[0] = ;\n  g();\n}\n", 80);
  CHECK_CONTAINS(mlx_status_message(status),
                 "compiling broken.cu for sm_80: NVRTC 13.0 ended with NVRTC_ERROR_COMPILATION: ");
  CHECK_CONTAINS(mlx_status_message(status), in_root("nvrtc.log"));
  CHECK_CONTAINS(mlx_status_hint_text(status), "--kernels=off");
  CHECK_ERROR(status, MLX_TOOL_FAILED, ": broken.cu(3): error: expected an expression (full output: '");
  check_log_holds(
      "NVRTC 13.0: --std=c++20 --gpu-architecture=sm_80 --ptxas-options=-v broken.cu\nbroken.cu(3): error");
  check_log_holds("broken.cu(4): error: identifier \"g\" is undefined");
}

TEST(assembler_error_is_reported) {
  mlx_status_t status =
      compile("large.cu",
              "__global__ void f(int *y) {\n  __shared__ int s[100000];\n  s[threadIdx.x] = y[0];\n"
              "  __syncthreads();\n  y[threadIdx.x] = s[y[1]];\n}\n",
              90);
  CHECK_ERROR(status, MLX_TOOL_FAILED, ": ptxas error   : Entry function '");
  check_log_holds("uses too much shared data");
}

TEST(unwritable_log_does_not_hide_the_error) {
  mlx_nvrtc_t *nvrtc = open_built_in();
  mlx_nvrtc_job_t broken = job("broken.cu", "g();", 80), good = smoke(80);
  mlx_kernel_image_t image;
  broken.log_path = good.log_path = "/nowhere/nvrtc.log";
  mlx_status_t status = mlx_nvrtc_compile(nvrtc, &broken, &image);
  CHECK_CONTAINS(mlx_status_message(status), "broken.cu(1): error: ");
  CHECK_ERROR(status, MLX_TOOL_FAILED, "(its log could not be written to '/nowhere/nvrtc.log')");
  CHECK_ERROR(mlx_nvrtc_compile(nvrtc, &good, &image), MLX_NOT_FOUND, "/nowhere/nvrtc.log");
  CHECK(!image.bytes);
  mlx_nvrtc_close(nvrtc);
}

TEST(unknown_gpu_error_lists_the_supported_ones) {
  static const int sms[] = {0, 12, 70, 101, 900};
  for (int i = 0; i < 5; ++i) {
    char part[64];
    mlx_status_t status = compile("smoke.cu", "", sms[i]);
    snprintf(part, sizeof part, ") does not support sm_%d, only sm_75, sm_80, ", sms[i]);
    CHECK_CONTAINS(mlx_status_message(status), "NVRTC 13.0 ('/");
    CHECK_CONTAINS(mlx_status_hint_text(status), "MLXCEL_NVRTC");
    CHECK_ERROR(status, MLX_UNSUPPORTED, part);
  }
}

TEST(every_failing_allocation_is_reported_without_leaks) {
  static const char *const definitions[] = {"ROWS=7"};
  memory.count = 0;
  for (long step = 1; memory.count >= step - 1; ++step) {
    mlx_nvrtc_t *nvrtc = NULL;
    mlx_nvrtc_job_t one = smoke(90);
    mlx_kernel_image_t image = {0};
    one.definitions = definitions;
    one.definition_count = 1;
    one.arch_specific = true;
    memory.count = memory.live = 0;
    memory.target = step;
    mlx_memory_set_calls(&counting_memory);
    mlx_status_t status = mlx_nvrtc_open(NULL, &nvrtc);
    if (!status) status = mlx_nvrtc_compile(nvrtc, &one, &image);
    mlx_kernel_image_release(&image);
    mlx_nvrtc_close(nvrtc);
    mlx_memory_set_calls(NULL);
    if (mlx_status_code(status) != MLX_OUT_OF_MEMORY) CHECK_OK(status);
    CHECK_INT(memory.live, 0);
    mlx_status_free(status);
  }
}

// An f16 weight is the sum of two bf16 parts in every kernel that reads rows of 16 bits.
TEST(experts_with_f16_weights_compile_for_few_tokens) {
  mlx_nvrtc_t *nvrtc;
  mlx_kernels_t kernels = {.gpu = mlx_gpu_kind_find(80)};
  const char *file;
  char folder[128];
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  CHECK_OK(mlx_kernels_image(&kernels, MLX_KERNEL_PACKED,
                             "NAME=mlx_experts_gemv\nEXPERTS_GEMV=1\nexperts=8\nused=2\nPAIR=0\nGAIN=0\n"
                             "RESIDUAL=0\nSPLIT=1\nBATCH=0\nn=64\nk=96\nbits=16\ndtype=Dtype::F16\nBIAS=0\n",
                             (mlx_kernel_build_t){0}, &file));
  snprintf(folder, sizeof folder, "%s/f16-experts", root);
  CHECK_OK(mlx_kernels_compile(&kernels, nvrtc, folder, NULL));
  mlx_kernels_clear(&kernels);
  mlx_nvrtc_close(nvrtc);
}

int main(int argc, char **argv) {
  char made[] = "/tmp/mlxcel-nvrtc-XXXXXX", *real = NULL;
  if (!mkdtemp(made) || !(real = realpath(made, NULL)) || strlen(real) >= sizeof root) return 1;
  strcpy(root, real);
  free(real);
  unsetenv("MLXCEL_NVRTC");
  static const check_case_t cases[] = {
      // First the cases that need a library to be missing: once opened, it stays loaded and the loader finds
      // it.
      CASE(missing_library_error_lists_the_places_and_hints_how_to_install),
      CASE(library_without_its_builtins_is_refused),
      CASE(image_without_libnvfatbin_is_a_bare_cubin),
      CASE(named_library_is_used_or_the_search_fails),
      CASE(kernel_compiles_for_any_gpu_and_includes_ptx_for_later_ones),
      CASE(arch_specific_cubin_comes_with_portable_ptx),
      CASE(definitions_reach_the_source),
      CASE(configuration_reaches_the_source),
      CASE(each_kernel_header_compiles_alone_with_the_example_configuration),
      CASE(equal_sources_give_equal_images),
      CASE(kernel_sources_are_embedded_in_the_binary),
      CASE(sample_kernel_compiles_without_warnings),
      CASE(experts_with_f16_weights_compile_for_few_tokens),
      CASE(syntax_error_names_the_line_and_the_log),
      CASE(assembler_error_is_reported),
      CASE(unwritable_log_does_not_hide_the_error),
      CASE(unknown_gpu_error_lists_the_supported_ones),
      CASE(every_failing_allocation_is_reported_without_leaks),
  };
  int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(root));
  return failed;
}
