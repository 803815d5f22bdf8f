// kernels/cuda/sample.cu against kernels/sample_row.h: the same results and the same history, bit for bit.
// The kernel is launched through the CUDA driver, without a module around it.
#include <dlfcn.h>

#include "tests/kernels/random_step.h"

#include "base/memory.h"
#include "compiler/kernel_source.h"
#include "compiler/nvrtc.h"
#include "tests/support/gpu.h"

#define MAX_ROWS 256

// Images of the kernel. Code for sm_80 runs on every later GPU.
typedef struct subject {
  const char *file;
  int32_t vocab;
  int sm;
} subject_t;
static const subject_t subjects[] = {{"sample-80.fatbin", 1, 80},
                                     {"sample-80.fatbin", 1003, 80},
                                     {"sample-90.fatbin", 5003, 90},
                                     {"sample-90.fatbin", 49152, 90},
                                     {"sample-90.fatbin", 151937, 90}};
static const subject_t timed = {"sample-90.fatbin", 131072, 90};

static void compile(mlx_nvrtc_t *nvrtc, const subject_t *subject) {
  enum { MOST_HEADERS = 128 };
  char log[PATH_MAX + 64];
  const char *headers[MOST_HEADERS], *names[MOST_HEADERS];
  snprintf(log, sizeof log, "%s", gpu_file("sample.log"));
  mlx_nvrtc_job_t job = {.name = "sample.cu",
                         .source = mlx_kernel_source_find("sample.cu")->text,
                         .headers = headers,
                         .header_names = names,
                         .sm = subject->sm,
                         .log_path = log};
  for (const mlx_kernel_source_t *header; (header = mlx_kernel_source_header(job.header_count));) {
    CHECK(job.header_count < MOST_HEADERS);
    headers[job.header_count] = header->text;
    names[job.header_count++] = header->name;
  }
  mlx_kernel_image_t image;
  CHECK_OK(mlx_nvrtc_compile(nvrtc, &job, &image));
  CHECK_OK(mlx_write_file(gpu_file(subject->file), image.bytes, image.length));
  mlx_kernel_image_release(&image);
}

static void prepare(void) {
  mlx_nvrtc_t *nvrtc;
  CHECK_OK(mlx_nvrtc_open(NULL, &nvrtc));
  compile(nvrtc, &subjects[0]);
  compile(nvrtc, &timed);
  mlx_nvrtc_close(nvrtc);
}

// ----------------------------------------------------------------------------------------------------------
// The CUDA driver

typedef unsigned long long pointer_t;  // on the device

static struct {
  int (*init)(unsigned);
  int (*retain)(void **context, int device);
  int (*set_current)(void *context);
  int (*load)(void **module, const void *image);
  int (*unload)(void *module);
  int (*function)(void **function, void *module, const char *name);
  int (*alloc)(pointer_t *out, size_t size);
  int (*release)(pointer_t at);
  int (*upload)(pointer_t to, const void *from, size_t size);
  int (*download)(void *to, pointer_t from, size_t size);
  int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments,
                void **extra);
  int (*synchronize)(void);
  int (*create_event)(void **event, unsigned flags);
  int (*record_event)(void *event, void *stream);
  int (*elapsed)(float *milliseconds, void *start, void *end);
} cuda;

#define CHECK_CUDA(call) CHECK_INT(call, 0)

static void open_driver(void) {
  if (cuda.init) return;
  static const struct {
    const char *name;
    size_t at;
  } symbols[] = {{"cuInit", 0},
                 {"cuDevicePrimaryCtxRetain", 1},
                 {"cuCtxSetCurrent", 2},
                 {"cuModuleLoadData", 3},
                 {"cuModuleUnload", 4},
                 {"cuModuleGetFunction", 5},
                 {"cuMemAlloc_v2", 6},
                 {"cuMemFree_v2", 7},
                 {"cuMemcpyHtoD_v2", 8},
                 {"cuMemcpyDtoH_v2", 9},
                 {"cuLaunchKernel", 10},
                 {"cuCtxSynchronize", 11},
                 {"cuEventCreate", 12},
                 {"cuEventRecord", 13},
                 {"cuEventElapsedTime", 14}};
  void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
  CHECK(library);
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; ++i) {
    void *found = dlsym(library, symbols[i].name);
    if (!found) CHECK_FAIL("the driver has no %s", symbols[i].name);
    memcpy((char *)&cuda + symbols[i].at * sizeof found, &found, sizeof found);
  }
  CHECK_CUDA(cuda.init(0));
  CHECK_CUDA(cuda.retain(&context, 0));
  CHECK_CUDA(cuda.set_current(context));
}

// A step on the device.
typedef struct device_step {
  void *module, *function;
  pointer_t batch, logits, history, results;
  int32_t vocab;
} device_step_t;

static pointer_t upload(const void *bytes, size_t size) {
  pointer_t at;
  CHECK_CUDA(cuda.alloc(&at, size));
  CHECK_CUDA(cuda.upload(at, bytes, size));
  return at;
}

static device_step_t device_step(const subject_t *subject, const random_step_t *step) {
  device_step_t out;
  char *image;
  open_driver();
  CHECK_OK(mlx_read_file(gpu_file(subject->file), 64 << 20, &image, NULL));
  CHECK_CUDA(cuda.load(&out.module, image));
  CHECK_CUDA(cuda.function(&out.function, out.module, "mlx_sample"));
  mlx_free(image);
  const size_t rows = (size_t)step->rows;
  out.batch = upload(step->batch, step->words * 4);
  out.logits = upload(step->logits, rows * (size_t)step->vocab * 4);
  out.history = upload(step->history, rows * STEP_WIDTH * 4);
  out.results = upload(step->results, rows * MLX_RESULT_WORDS * 4);
  out.vocab = step->vocab;
  return out;
}

static void device_step_free(device_step_t *device) {
  CHECK_CUDA(cuda.release(device->batch));
  CHECK_CUDA(cuda.release(device->logits));
  CHECK_CUDA(cuda.release(device->history));
  CHECK_CUDA(cuda.release(device->results));
  CHECK_CUDA(cuda.unload(device->module));
}

static void launch(device_step_t *device, int32_t rows) {
  void *arguments[] = {&device->batch, &device->logits, &device->history, &device->results, &device->vocab};
  CHECK_CUDA(cuda.launch(device->function, (unsigned)rows, 1, 1, 1024, 1, 1, 0, NULL, arguments, NULL));
}

// ----------------------------------------------------------------------------------------------------------

static void sample_on_host(const random_step_t *step, int32_t rows) {
  void *scratch = malloc(MLX_SAMPLE_SCRATCH_BYTES(step->vocab));
  CHECK(scratch);
  for (int32_t row = 0; row < rows; ++row) {
    mlx_sample_row(step->batch, step->words, step_sampling(step, row),
                   step->logits + (size_t)row * (size_t)step->vocab, step->vocab, step_history(step, row),
                   STEP_WIDTH, step_position(step, row), step->results + row * MLX_RESULT_WORDS, scratch);
  }
  free(scratch);
}

static void print_options(const int32_t *w) {
  fprintf(
      stderr, "  flags %d, mask %d, biases %d, window %d, top-k %d, typical %g, top-p %g, min-p %g, %s %g\n",
      w[MLX_SAMPLING_FLAGS], w[MLX_SAMPLING_MASK_AT] != 0, w[MLX_SAMPLING_BIAS_COUNT], w[MLX_SAMPLING_WINDOW],
      w[MLX_SAMPLING_TOP_K], (double)mlx_bits_float((uint32_t)w[MLX_SAMPLING_TYPICAL_P]),
      (double)mlx_bits_float((uint32_t)w[MLX_SAMPLING_TOP_P]),
      (double)mlx_bits_float((uint32_t)w[MLX_SAMPLING_MIN_P]), "temperature",
      (double)mlx_bits_float((uint32_t)w[MLX_SAMPLING_TEMPERATURE]));
}

// The last quarter of the rows is not wanted: the kernel must not write them.
static void compare(const subject_t *subject, int32_t rows, uint64_t *random) {
  random_step_t step = random_step(rows, subject->vocab, random);
  const int32_t wanted = rows - rows / 4;
  const size_t history_size = (size_t)rows * STEP_WIDTH * 4,
               results_size = (size_t)rows * MLX_RESULT_WORDS * 4;
  step.batch[MLX_STEP_WANTED_COUNT] = wanted;
  for (int32_t i = 0; i < rows * MLX_RESULT_WORDS; ++i) step.results[i] = -77;
  device_step_t device = device_step(subject, &step);
  launch(&device, rows);
  CHECK_CUDA(cuda.synchronize());
  int32_t *history = malloc(history_size), *results = malloc(results_size);
  CHECK(history && results);
  CHECK_CUDA(cuda.download(history, device.history, history_size));
  CHECK_CUDA(cuda.download(results, device.results, results_size));
  device_step_free(&device);
  sample_on_host(&step, wanted);
  int differing = 0;
  for (int32_t row = 0; row < rows; ++row) {
    const int32_t at = row * MLX_RESULT_WORDS;
    for (int32_t i = 0; i < MLX_RESULT_WORDS; ++i) {
      if (results[at + i] == step.results[at + i]) continue;
      fprintf(stderr, "  vocabulary %d, row %d: word %d is %d, expected %d\n", subject->vocab, row, i,
              results[at + i], step.results[at + i]);
      print_options(step_sampling(&step, row));
      ++differing;
      break;
    }
  }
  CHECK_INT(differing, 0);
  CHECK(!memcmp(history, step.history, history_size));
  free(history);
  free(results);
  random_step_free(&step);
}

TEST(gpu_and_cpu_sample_the_same_tokens) {
  uint64_t random = 21;
  int ran = 0;
  for (size_t i = 0; i < sizeof subjects / sizeof *subjects; ++i) {
    if (!gpu_runs(subjects[i].file, subjects[i].sm)) continue;
    const int rounds = subjects[i].vocab > 10000 ? 2 : 12;
    for (int round = 0; round < rounds; ++round) {
      compare(&subjects[i], subjects[i].vocab > 10000 ? 96 : MAX_ROWS, &random);
      ++ran;
    }
  }
  if (!ran) SKIP("this GPU runs none of the images");
}

// ----------------------------------------------------------------------------------------------------------
// Time

static double time_rows(device_step_t *device, int32_t rows) {
  void *events[2];
  float milliseconds;
  CHECK_CUDA(cuda.create_event(&events[0], 0));
  CHECK_CUDA(cuda.create_event(&events[1], 0));
  for (int i = 0; i < 3; ++i) launch(device, rows);
  CHECK_CUDA(cuda.record_event(events[0], NULL));
  for (int i = 0; i < 20; ++i) launch(device, rows);
  CHECK_CUDA(cuda.record_event(events[1], NULL));
  CHECK_CUDA(cuda.synchronize());
  CHECK_CUDA(cuda.elapsed(&milliseconds, events[0], events[1]));
  return (double)milliseconds / 20 * 1000;
}

TEST(common_options_stay_under_their_limits_for_256_rows) {
  static const struct {
    const char *name;
    int32_t flags, top_k, window;
    double typical_p, top_p, min_p, temperature;
    double limit;  // us for all rows; 0: only printed
  } cases[] = {{"greedy", 1, 0, 0, 1, 1, 0, 0, 150},
               {"top-k 40, top-p 0.95, min-p 0.05", 1, 40, 0, 1, 0.95, 0.05, 0.8, 250},
               {"the same with penalties over 64 tokens", 1, 40, 64, 1, 0.95, 0.05, 0.8, 500},
               {"the same with 5 log-probabilities", 3, 40, 0, 1, 0.95, 0.05, 0.8, 500},
               {"top-p 0.95", 1, 0, 0, 1, 0.95, 0, 1, 900},
               {"temperature 1", 1, 0, 0, 1, 1, 0, 1, 400},
               {"score of a target", 4, 0, 0, 1, 1, 0, 0, 250},
               {"top-k 1000", 1, 1000, 0, 1, 1, 0, 1, 0},
               {"typical 0.9", 1, 0, 0, 0.9, 1, 0, 1, 0}};
  if (!gpu_runs(timed.file, timed.sm)) SKIP("the image is for a later GPU");
  uint64_t random = 3;
  random_step_t step = random_step(MAX_ROWS, timed.vocab, &random);
  for (size_t i = 0; i < (size_t)MAX_ROWS * (size_t)timed.vocab; ++i) {  // as peaked as those of models
    const double x = random_unit(&random);
    step.logits[i] = (float)(2 * log(x / (1 - x + 1e-9) + 1e-9));
  }
  int slow = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    for (int32_t row = 0; row < MAX_ROWS; ++row) {
      int32_t *w = step_sampling(&step, row);
      memset(w, 0, MLX_SAMPLING_WORDS * sizeof *w);
      w[MLX_SAMPLING_FLAGS] = cases[i].flags;
      w[MLX_SAMPLING_TOP_K] = cases[i].top_k;
      w[MLX_SAMPLING_WINDOW] = cases[i].window;
      w[MLX_SAMPLING_REPEAT] = step_float(1.1);
      w[MLX_SAMPLING_TYPICAL_P] = step_float(cases[i].typical_p);
      w[MLX_SAMPLING_TOP_P] = step_float(cases[i].top_p);
      w[MLX_SAMPLING_MIN_P] = step_float(cases[i].min_p);
      w[MLX_SAMPLING_TEMPERATURE] = step_float(cases[i].temperature);
      w[MLX_SAMPLING_TOP_LOGPROBS] = cases[i].flags == 3 ? 5 : 0;
      w[MLX_SAMPLING_SEED_LOW] = row;
    }
    device_step_t device = device_step(&timed, &step);
    const double one = time_rows(&device, 1), all = time_rows(&device, MAX_ROWS);
    fprintf(stderr, "  %-40s %7.1f us for a row, %7.1f us for %d rows\n", cases[i].name, one, all, MAX_ROWS);
    slow += cases[i].limit > 0 && all >= cases[i].limit;
    device_step_free(&device);
  }
  random_step_free(&step);
  CHECK_INT(slow, 0);
}

GPU_TEST_MAIN(prepare, CASE(gpu_and_cpu_sample_the_same_tokens),
              CASE(common_options_stay_under_their_limits_for_256_rows))
