// Weights and logits that are not finite are errors in every mode, and JSON output is always valid.
#include <math.h>

#include "base/file.h"
#include "base/text.h"
#include "compiler/finite.h"
#include "tests/support/check.h"
#include "tests/support/command.h"
#include "tests/support/folder.h"
#include "tests/support/random_llama.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama"
// A shape that the CPU kernel supports.
static const random_llama_t shape = {96, 160, 3, 1, 32, 2, 330, true, 10000};

static void check_numbers(mlx_dtype_t dtype, size_t size, uint32_t largest, uint32_t infinity) {
  static uint8_t numbers[4 * 10000];
  static const size_t places[] = {0, 1, 4095, 4096, 9999};
  for (size_t i = 0; i < 10000; ++i) memcpy(numbers + size * i, &largest, size);
  CHECK_OK(mlx_check_finite("w", dtype, numbers, 10000, 0));
  for (size_t i = 0; i < sizeof places / sizeof *places; ++i) {
    for (int kind = 0; kind < 3; ++kind) {  // infinity, NaN, negative infinity
      const uint32_t bits = kind == 0   ? infinity
                            : kind == 1 ? infinity + 1
                                        : infinity | (size == 4 ? 0x80000000u : 0x8000u);
      char expected[64];
      snprintf(expected, sizeof expected, "element %zu is", places[i] + 7);
      memcpy(numbers + size * places[i], &bits, size);
      CHECK_ERROR(mlx_check_finite("w", dtype, numbers, 10000, 7), MLX_INVALID_INPUT, expected);
      CHECK_OK(mlx_check_finite("w", dtype, numbers + size * (places[i] + 1), 9999 - places[i], 0));
      memcpy(numbers + size * places[i], &largest, size);
    }
  }
}

TEST(infinity_and_nan_are_found_in_every_float_type) {
  check_numbers(MLX_F32, 4, 0xff7fffffu, 0x7f800000u);
  check_numbers(MLX_BF16, 2, 0xff7f, 0x7f80);
  check_numbers(MLX_F16, 2, 0xfbff, 0x7c00);
}

#define SHELL(script) command_shell(folder, script)

// Writes a random model to |name| and sets every element of |tensor| to |value|, as Python writes it.
static void make_model(const char *name, const char *tensor, const char *value) {
  char script[2048];
  SHELL("rm -rf model");
  random_llama_write(&shape, folder, "model");
  snprintf(script, sizeof script,
           "rm -rf %s && mv model %s && cp -n " TINY
           "/tokenizer.json %s/ && python3 -c \"import glob, json, struct\n"
           "for path in glob.glob('%s/*.safetensors'):\n"
           "  data = bytearray(open(path, 'rb').read())\n"
           "  size = struct.unpack('<Q', data[:8])[0]\n"
           "  entry = json.loads(data[8:8 + size]).get('%s')\n"
           "  if not entry: continue\n"
           "  assert entry['dtype'] in ('F32', 'BF16'), entry\n"
           "  begin, end = (8 + size + at for at in entry['data_offsets'])\n"
           "  bits = struct.pack('<f', %s)\n"
           "  one = bits if entry['dtype'] == 'F32' else bits[2:]\n"
           "  data[begin:end] = one * ((end - begin) // len(one))\n"
           "  open(path, 'wb').write(data)\n"
           "  break\n"
           "else: raise SystemExit('no such tensor')\"",
           name, name, name, name, tensor, value);
  SHELL(script);
}

#define CHECK_REFUSED(part, ...)                                           \
  do {                                                                     \
    command_t run;                                                         \
    RUN(&run, __VA_ARGS__);                                                \
    if (run.exit_code != MLX_INVALID_INPUT)                                \
      CHECK_FAIL("exit status %d: %s%s", run.exit_code, run.out, run.err); \
    CHECK_CONTAINS(run.err, part);                                         \
    CHECK_TEXT(run.out, "");                                               \
    command_free(&run);                                                    \
  } while (0)

TEST(weights_that_are_not_finite_are_refused_when_they_are_written) {
  static const char *const values[] = {"float('nan')", "float('inf')", "float('-inf')"};
  for (int i = 0; i < 3; ++i) {
    make_model("bad", "model.layers.1.mlp.up_proj.weight", values[i]);
    CHECK_REFUSED("has a value that is not finite", "run", "-m", in_folder("bad"), "-p", "the", "-n", "3",
                  "--temp", "0", "--device", "cpu");
    CHECK_REFUSED("'model.layers.1.mlp.up_proj.weight'", "compile", in_folder("bad"), "--dtype", "bf16",
                  "--target", "cpu", "-o", in_folder("bad.mlxb"));
    CHECK_REFUSED("model.layers.1.mlp.up_proj.weight", "compile", in_folder("bad"), "--quantize", "q4_0",
                  "--target", "cpu", "-o", in_folder("bad.mlxb"));
  }
  make_model("bad", "model.norm.weight", "float('nan')");
  CHECK_REFUSED("tensor 'model.norm.weight'", "compile", in_folder("bad"), "-o", in_folder("bad.mlxb"));
  make_model("bad", "model.embed_tokens.weight", "1e9");
  CHECK_REFUSED("compile with --dtype f32", "compile", in_folder("bad"), "--dtype", "f16", "-o",
                in_folder("bad.mlxb"));
}

// All weights are finite, but the last norm makes the logits overflow.
TEST(logits_that_are_not_finite_are_an_error_in_every_mode) {
  static const char *const kernels[] = {"auto", "off"};
  make_model("large", "model.norm.weight", "3e38");
  CHECK_OK(mlx_write_file(in_folder("text"), "the the the the the the the the the the the the", 47));
  for (int i = 0; i < 2; ++i) {
#define LARGE "-m", in_folder("large"), "--device", "cpu", "--kernels", kernels[i]
    CHECK_REFUSED("the model computes values that are not finite: after ", "run", LARGE, "-p", "the", "-n",
                  "40", "--temp", "0");
    CHECK_REFUSED("values that are not finite", "run", LARGE, "-p", "the", "-n", "3", "--temp", "0",
                  "--json");
    CHECK_REFUSED("values that are not finite", "run", LARGE, "-p", "the", "-n", "3", "--temp", "1");
    CHECK_REFUSED("values that are not finite", "run", LARGE, "-p", "the", "-n", "1", "--logprobs", "2",
                  "--json");
    CHECK_REFUSED("values that are not finite", "eval", LARGE, "-f", in_folder("text"), "-c", "8", "--json");
  }
}

TEST(numbers_that_are_not_finite_are_null_in_json) {
  mlx_text_t text = {0};
  mlx_text_json_number(&text, "%.2f ", 1.5);
  mlx_text_json_number(&text, "%.2f", -INFINITY);
  mlx_text_json_number(&text, "%.2f", (double)NAN);
  mlx_text_json_number(&text, "%.0f", 1e308);
  CHECK_OK(mlx_text_finish(&text));
  CHECK(!strncmp(text.data, "1.50 nullnull", 13));
  CHECK_INT(text.length, 13 + 309);
  mlx_text_clear(&text);
}

int main(int argc, char **argv) {
  static const check_case_t cases[] = {
      CASE(infinity_and_nan_are_found_in_every_float_type),
      CASE(weights_that_are_not_finite_are_refused_when_they_are_written),
      CASE(logits_that_are_not_finite_are_an_error_in_every_mode),
      CASE(numbers_that_are_not_finite_are_null_in_json),
  };
  strcpy(folder, "/tmp/mlxcel-finite-XXXXXX");
  if (!mkdtemp(folder)) return 1;
  const int failed = check_run(cases, sizeof cases / sizeof *cases, argc, argv);
  mlx_status_free(mlx_remove_tree(folder));
  return failed;
}
