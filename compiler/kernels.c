// Collects the images that a module needs, and makes them: by NVRTC, from the cache or from the store for a
// GPU, by copying objects for a CPU.
#include "compiler/kernels.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/meter.h"
#include "base/parallel.h"
#include "cache/image_store.h"
#include "compiler/kernel_config.h"
#include "compiler/kernel_source.h"

#define MAX_DEFINITIONS 128
#define MAX_HEADERS 96
#define MAX_WORKERS 16
#define REPORT_SECONDS 0.2             // between two reports
#define MAX_IMAGE ((size_t)256 << 20)  // bytes
#define CACHED_IMAGE "image.fatbin"

const char *mlx_kernel_kind_name(mlx_kernel_kind_t kind) {
  static const char *const names[] = {[MLX_KERNEL_DECODE] = "decode",
                                      [MLX_KERNEL_LINEAR] = "linear",
                                      [MLX_KERNEL_ATTENTION] = "attention",
                                      [MLX_KERNEL_PACKED] = "packed",
                                      [MLX_KERNEL_ATTENTION_F32] = "attention_f32",
                                      [MLX_KERNEL_PLACE] = "place",
                                      [MLX_KERNEL_SAMPLE] = "sample",
                                      [MLX_KERNEL_ROWS] = "rows",
                                      [MLX_KERNEL_EXPERTS] = "experts",
                                      [MLX_KERNEL_FEW] = "few",
                                      [MLX_KERNEL_RECURRENT] = "recurrent",
                                      [MLX_KERNEL_NETWORK] = "network"};
  return names[kind];
}

void mlx_kernels_clear(mlx_kernels_t *kernels) {
  for (size_t i = 0; i < kernels->count; ++i) {
    mlx_free(kernels->images[i].definitions);
    mlx_free(kernels->images[i].file);
  }
  mlx_free(kernels->images);
  mlx_free(kernels->tiles);
  *kernels = (mlx_kernels_t){0};
}

mlx_status_t mlx_kernels_image(mlx_kernels_t *kernels, mlx_kernel_kind_t kind, const char *definitions,
                               mlx_kernel_build_t build, const char **out_file) {
  mlx_kernel_image_request_t image = {.kind = kind, .build = build};
  for (size_t i = 0; i < kernels->count; ++i) {
    if (kernels->images[i].kind != kind || strcmp(kernels->images[i].definitions, definitions)) continue;
    *out_file = kernels->images[i].file;
    return NULL;
  }
  MLX_TRY(mlx_reserve(kernels->count + 1, sizeof *kernels->images, &kernels->capacity, &kernels->images));
  MLX_TRY(mlx_format(&image.definitions, "%s", definitions));
  mlx_status_t status =
      kernels->gpu ? mlx_format(&image.file, "%s%zu.fatbin", mlx_kernel_kind_name(kind), kernels->count + 1)
                   : mlx_format(&image.file, "%s", definitions);
  if (status) {
    mlx_free(image.definitions);
    return status;
  }
  kernels->images[kernels->count++] = image;
  *out_file = image.file;
  return NULL;
}

bool mlx_kernels_use(const mlx_kernels_t *kernels, mlx_kernel_kind_t kind) {
  for (size_t i = 0; i < kernels->count; ++i) {
    if (kernels->images[i].kind == kind) return true;
  }
  return false;
}

// ----------------------------------------------------------------------------------------------------------
// Objects for CPUs

static mlx_status_t get_object(const mlx_kernel_image_request_t *image,
                               const mlx_kernel_source_t **out_object) {
  *out_object = mlx_kernel_source_find(image->definitions);
  return *out_object ? NULL : mlx_error(MLX_INTERNAL, "this build has no object '%s'", image->definitions);
}

bool mlx_kernels_have_level(const char *level) { return mlx_kernel_source_object(level, 0) != NULL; }

const char *mlx_kernels_cpu_level(const char *level) {
  const char *best = NULL;
  const mlx_cpu_level_t *highest = !strcmp(level, "host") ? mlx_cpu_level_here() : mlx_cpu_level_find(level),
                        *known;
  for (size_t i = 0; highest && (known = mlx_cpu_level(i)) && known <= highest; ++i) {  // ascending
    if (known->arch == highest->arch && mlx_kernels_have_level(known->name)) best = known->name;
  }
  return best;
}

// ----------------------------------------------------------------------------------------------------------
// Sources for GPUs

static mlx_status_t get_source(mlx_kernel_kind_t kind, const mlx_kernel_source_t **out_source) {
  char name[32];
  snprintf(name, sizeof name, "%s.cu", mlx_kernel_kind_name(kind));
  *out_source = mlx_kernel_source_find(name);
  return *out_source ? NULL : mlx_error(MLX_INTERNAL, "this build has no kernel source '%s'", name);
}

// ----------------------------------------------------------------------------------------------------------
// Keys

static mlx_status_t describe(const mlx_kernels_t *kernels, const mlx_nvrtc_t *nvrtc,
                             const mlx_kernel_image_request_t *image, char **out) {
  char identity[MLX_DIGEST_HEX];
  const mlx_kernel_source_t *source;
  MLX_TRY(get_source(image->kind, &source));
  mlx_nvrtc_identity(nvrtc, identity);
  mlx_text_t text = {0};
  mlx_text_printf(&text, "nvrtc %s sm_%d%s\n%s\n%s", identity, kernels->gpu->kernel_sm,
                  image->build.wgmma ? "a" : "", image->definitions, source->text);
  const mlx_kernel_source_t *header;
  for (size_t i = 0; (header = mlx_kernel_source_header(i)); ++i)
    mlx_text_printf(&text, "%s\n%s", header->name, header->text);
  mlx_status_t status = mlx_text_finish(&text);
  *out = text.data;
  if (status) mlx_text_clear(&text);
  return status;
}

void mlx_kernels_free_objects(const mlx_kernels_t *kernels, mlx_iree_object_t *objects) {
  for (size_t i = 0; objects && kernels->gpu && i < kernels->count; ++i)
    mlx_free((void *)(uintptr_t)objects[i].bytes);
  mlx_free(objects);
}

static mlx_status_t make_object(const mlx_kernels_t *kernels, const mlx_nvrtc_t *nvrtc,
                                const mlx_kernel_image_request_t *image, mlx_iree_object_t *out) {
  out->name = image->file;
  if (kernels->gpu) {
    char *text = NULL;
    MLX_TRY(describe(kernels, nvrtc, image, &text));
    out->bytes = text;
    out->length = strlen(text);
    return NULL;
  }
  const mlx_kernel_source_t *object;
  MLX_TRY(get_object(image, &object));
  out->bytes = object->text;
  out->length = object->length;
  return NULL;
}

mlx_status_t mlx_kernels_objects(const mlx_kernels_t *kernels, const mlx_nvrtc_t *nvrtc,
                                 mlx_iree_object_t **out_objects) {
  MLX_TRY(mlx_alloc(kernels->count, sizeof **out_objects, out_objects));
  for (size_t i = 0; i < kernels->count; ++i) {
    mlx_status_t status = make_object(kernels, nvrtc, &kernels->images[i], &(*out_objects)[i]);
    if (status) {
      mlx_kernels_free_objects(kernels, *out_objects);
      *out_objects = NULL;
      return status;
    }
  }
  return NULL;
}

// ----------------------------------------------------------------------------------------------------------
// Images

// The lines of |text| that are macros. Splits it in place.
static mlx_status_t split_macros(char *text, const char *lines[MAX_DEFINITIONS], size_t *out_count) {
  *out_count = 0;
  for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
    if (!mlx_kernel_line_is_macro(line)) continue;
    if (*out_count == MAX_DEFINITIONS)
      return mlx_error(MLX_INTERNAL, "a kernel has more than %d definitions", MAX_DEFINITIONS);
    *end = 0;
    lines[(*out_count)++] = line;
  }
  return NULL;
}

// Headers that a source may include: those of kernels/, and the configuration of the image.
typedef struct header_list {
  const char *names[MAX_HEADERS], *texts[MAX_HEADERS];
  size_t count;
  char *config;  // owned
} header_list_t;

static mlx_status_t list_headers(const mlx_kernel_image_request_t *image, header_list_t *out) {
  const char *kernel = mlx_kernel_kind_name(image->kind);
  *out = (header_list_t){0};
  MLX_TRY(mlx_kernel_config_header(kernel, image->definitions, &out->config));
  out->names[0] = MLX_KERNEL_CONFIG;
  out->texts[0] = out->config;
  out->count = 1;
  for (const mlx_kernel_source_t *header; (header = mlx_kernel_source_header(out->count - 1)); ++out->count) {
    if (out->count == MAX_HEADERS) {
      mlx_free(out->config);
      return mlx_error(MLX_INTERNAL, "there are more than %d kernel headers", MAX_HEADERS - 1);
    }
    out->texts[out->count] = header->text;
    out->names[out->count] = header->name;
  }
  return NULL;
}

static mlx_status_t compile_image(const mlx_kernels_t *kernels, const mlx_nvrtc_t *nvrtc,
                                  const mlx_kernel_image_request_t *image, char *definitions,
                                  const char *path, const char *log_path) {
  const mlx_kernel_source_t *source;
  const char *macros[MAX_DEFINITIONS];
  header_list_t headers;
  mlx_kernel_image_t made;
  mlx_nvrtc_job_t job = {.sm = kernels->gpu->kernel_sm, .definitions = macros, .log_path = log_path};
  MLX_TRY(get_source(image->kind, &source));
  MLX_TRY(split_macros(definitions, macros, &job.definition_count));
  MLX_TRY(list_headers(image, &headers));
  // One compilation for plain sm_90 gives kernels without wgmma their cubin and their PTX.
  job.arch_specific = job.sm == 90 && image->build.wgmma;
  job.name = source->name;
  job.source = source->text;
  job.header_names = headers.names;
  job.headers = headers.texts;
  job.header_count = headers.count;
  mlx_status_t status = mlx_nvrtc_compile(nvrtc, &job, &made);
  mlx_free(headers.config);
  if (status) return status;
  status = mlx_write_scratch_file(path, made.bytes, made.length);
  mlx_kernel_image_release(&made);
  return status;
}

static mlx_status_t copy_object(const mlx_kernel_image_request_t *image, const char *folder) {
  const mlx_kernel_source_t *object;
  char *path;
  MLX_TRY(get_object(image, &object));
  MLX_TRY(mlx_join_path(folder, image->file, &path));
  mlx_status_t status = mlx_write_scratch_file(path, object->text, object->length);
  mlx_free(path);
  return status;
}

typedef enum image_origin { FROM_STORE, FROM_CACHE, FROM_NVRTC } image_origin_t;

// One image: from the store, from the cache, or compiled.
typedef struct image_fill {
  const mlx_kernels_t *kernels;
  const mlx_nvrtc_t *nvrtc;
  const mlx_kernel_image_request_t *image;
  image_origin_t origin;
} image_fill_t;

static mlx_status_t compile_to(image_fill_t *fill, const char *path, const char *log_path) {
  char *definitions;
  fill->origin = FROM_NVRTC;
  MLX_TRY(mlx_copy_text(fill->image->definitions, strlen(fill->image->definitions), &definitions));
  mlx_status_t status = compile_image(fill->kernels, fill->nvrtc, fill->image, definitions, path, log_path);
  mlx_free(definitions);
  return status;
}

static mlx_status_t fill_image(void *user, const char *folder, const char *log_path) {
  char *path;
  MLX_TRY(mlx_join_path(folder, CACHED_IMAGE, &path));
  mlx_status_t status = compile_to(user, path, log_path);
  mlx_free(path);
  return status;
}

// What the module's key has, and what describe leaves out.
mlx_status_t mlx_kernels_key(const mlx_kernels_t *kernels, const mlx_nvrtc_t *nvrtc,
                             const mlx_kernel_image_request_t *image, char out_hex[MLX_DIGEST_HEX]) {
  static const char rule[] = "sm_90a for wgmma, PTX for the plain GPU";
  char *text;
  mlx_digest_t digest;
  MLX_TRY(describe(kernels, nvrtc, image, &text));
  mlx_digest_begin(&digest);
  mlx_digest_field(&digest, "mlxcel kernel 2", rule, strlen(rule));
  mlx_digest_field(&digest, mlx_kernel_kind_name(image->kind), text, strlen(text));
  mlx_digest_end(&digest, out_hex);
  mlx_free(text);
  return NULL;
}

static mlx_status_t take_cached(image_fill_t *fill, const char *key, const char *path) {
  char title[64], *cached = NULL;
  mlx_cache_entry_t entry;
  snprintf(title, sizeof title, "kernel %s for sm_%d", mlx_kernel_kind_name(fill->image->kind),
           fill->kernels->gpu->kernel_sm);
  const mlx_cache_request_t request = {
      .kind = "kernel", .key = key, .title = title, .fill = fill_image, .user = fill};
  fill->origin = FROM_CACHE;  // unless it calls fill_image
  MLX_TRY(mlx_cache_get(fill->kernels->cache, &request, NULL, &entry));
  mlx_status_t status = mlx_join_path(entry.folder, CACHED_IMAGE, &cached);
  char *bytes = NULL;
  size_t length = 0;
  if (!status) status = mlx_read_file(cached, MAX_IMAGE, &bytes, &length);
  if (!status) status = mlx_write_scratch_file(path, bytes, length);
  mlx_free(bytes);
  mlx_free(cached);
  mlx_cache_release(&entry);
  return status;
}

// The store comes before the cache: an image that it has needs no cache entry.
static mlx_status_t take_image(image_fill_t *fill, const mlx_image_store_t *store, const char *path,
                               const char *log_path, bool *out_damaged) {
  char key[MLX_DIGEST_HEX];
  const void *bytes;
  size_t length;
  MLX_TRY(mlx_kernels_key(fill->kernels, fill->nvrtc, fill->image, key));
  mlx_status_t status = mlx_image_store_find(store, key, &bytes, &length);
  *out_damaged = status != NULL;
  mlx_status_free(status);
  if (!*out_damaged && bytes) {
    fill->origin = FROM_STORE;
    return mlx_write_scratch_file(path, bytes, length);
  }
  return fill->kernels->cache ? take_cached(fill, key, path) : compile_to(fill, path, log_path);
}

// ----------------------------------------------------------------------------------------------------------
// The order of compilation

// From bench/image_time.
int mlx_kernel_image_cost(const mlx_kernel_image_request_t *image) {
  static const int costs[MLX_KERNEL_KINDS] = {
      [MLX_KERNEL_DECODE] = 300,       [MLX_KERNEL_SAMPLE] = 170,  [MLX_KERNEL_ATTENTION] = 80,
      [MLX_KERNEL_ATTENTION_F32] = 80, [MLX_KERNEL_EXPERTS] = 50,  [MLX_KERNEL_PLACE] = 20,
      [MLX_KERNEL_ROWS] = 10,          [MLX_KERNEL_FEW] = 250,     [MLX_KERNEL_LINEAR] = 40,
      [MLX_KERNEL_PACKED] = 40,        [MLX_KERNEL_RECURRENT] = 30};
  return image->build.cost ? image->build.cost : costs[image->kind];
}

void mlx_kernels_order(const mlx_kernels_t *kernels, size_t *out_order) {
  for (size_t i = 0; i < kernels->count; ++i) {
    const int cost = mlx_kernel_image_cost(&kernels->images[i]);
    size_t at = i;
    for (; at > 0 && mlx_kernel_image_cost(&kernels->images[out_order[at - 1]]) <= cost; --at)
      out_order[at] = out_order[at - 1];
    out_order[at] = i;
  }
}

// ----------------------------------------------------------------------------------------------------------
// The images of one module, compiled by several threads

typedef struct work {
  const mlx_kernels_t *kernels;
  const mlx_nvrtc_t *nvrtc;
  const char *folder;
  mlx_image_store_t store;  // may be empty
  mlx_status_t *results;    // one per image; written by the thread that claimed it
  double *cpu_seconds;      // one per image, likewise
  image_origin_t *origins;  // one per image, likewise
  size_t *order;            // the order in which they are claimed
  atomic_size_t claimed;
  atomic_bool failed;     // no thread claims another image
  atomic_bool damaged;    // an image of the store was not used
  pthread_mutex_t mutex;  // guards the rest
  pthread_cond_t changed;
  size_t threads, done;      // threads that are at work; images that are ready
  int64_t cost, total_cost;  // of those images, and of all
} work_t;

static mlx_status_t make_nth(work_t *work, size_t nth) {
  image_fill_t fill = {.kernels = work->kernels, .nvrtc = work->nvrtc, .image = &work->kernels->images[nth]};
  char *path = NULL, *log_path = NULL;
  bool damaged = false;
  mlx_status_t status = mlx_join_path(work->folder, fill.image->file, &path);
  if (!status) status = mlx_format(&log_path, "%s.log", path);
  if (!status) status = take_image(&fill, &work->store, path, log_path, &damaged);
  if (damaged) atomic_store(&work->damaged, true);
  work->origins[nth] = fill.origin;
  mlx_free(path);
  mlx_free(log_path);
  return status;
}

static void count_ready(work_t *work, size_t nth) {
  pthread_mutex_lock(&work->mutex);
  ++work->done;
  work->cost += mlx_kernel_image_cost(&work->kernels->images[nth]);
  pthread_mutex_unlock(&work->mutex);
}

// Claims the longest image first: a thread that started it at the end would keep the other CPUs idle.
static void compile_images(work_t *work) {
  const size_t count = work->kernels->count;
  size_t claimed;
  while (!atomic_load(&work->failed) && (claimed = atomic_fetch_add(&work->claimed, 1)) < count) {
    const size_t nth = work->order[claimed];
    const double start = mlx_thread_cpu_seconds();
    work->results[nth] = make_nth(work, nth);
    work->cpu_seconds[nth] = mlx_thread_cpu_seconds() - start;
    if (work->results[nth]) atomic_store(&work->failed, true);
    count_ready(work, nth);
  }
}

static void *work_thread(void *user) {
  work_t *work = user;
  compile_images(work);
  pthread_mutex_lock(&work->mutex);
  --work->threads;
  pthread_cond_signal(&work->changed);
  pthread_mutex_unlock(&work->mutex);
  return NULL;
}

// Reports until all threads have ended. The remaining time follows from the costs of the images.
static void wait_for_threads(work_t *work, const mlx_report_t *report) {
  const double start = mlx_seconds();
  pthread_mutex_lock(&work->mutex);
  while (work->threads) {
    mlx_wait_for(&work->changed, &work->mutex, REPORT_SECONDS);
    if (mlx_report_is_cancelled(report)) atomic_store(&work->failed, true);  // no thread claims another image
    const double taken = mlx_seconds() - start;
    const double left = work->cost ? taken * (double)(work->total_cost - work->cost) / (double)work->cost : 0;
    if (taken >= MLX_METER_SILENT)
      mlx_report_progress(report, "compiling kernels: %zu of %zu, %.0f s%s", work->done, work->kernels->count,
                          taken, mlx_left_show(left).text);
  }
  pthread_mutex_unlock(&work->mutex);
}

static void count_image(mlx_image_counts_t *counts, image_origin_t origin) {
  if (counts)
    ++*(origin == FROM_STORE ? &counts->stored : origin == FROM_CACHE ? &counts->cached : &counts->compiled);
}

// The calling thread reports progress. If a thread cannot be started, the other threads compile its images;
// without any thread, the calling thread does. Returns the first error in claiming order.
static mlx_status_t compile_in_threads(work_t *work, const mlx_report_t *report) {
  pthread_t threads[MAX_WORKERS];
  const size_t count = work->kernels->count, cpus = (size_t)mlx_cpu_count();
  const size_t limit = cpus < MAX_WORKERS ? cpus : MAX_WORKERS, wanted = count < limit ? count : limit;
  size_t started = 0;
  mlx_kernels_order(work->kernels, work->order);
  for (size_t i = 0; i < count; ++i) work->total_cost += mlx_kernel_image_cost(&work->kernels->images[i]);
  pthread_mutex_lock(&work->mutex);  // a thread ends after it is counted
  while (started < wanted && !pthread_create(&threads[started], NULL, work_thread, work)) ++started;
  work->threads = started;
  pthread_mutex_unlock(&work->mutex);
  if (started)
    wait_for_threads(work, report);
  else
    compile_images(work);
  for (size_t i = 0; i < started; ++i) pthread_join(threads[i], NULL);
  mlx_status_t status = NULL;
  for (size_t i = 0; i < count; ++i) {
    const size_t nth = work->order[i];
    if (!status)
      status = work->results[nth];
    else
      mlx_status_free(work->results[nth]);
    if (work->kernels->cpu_seconds) *work->kernels->cpu_seconds += work->cpu_seconds[nth];
    count_image(work->kernels->counts, work->origins[nth]);
  }
  mlx_report_done(report);
  return status ? status : mlx_report_check(report);
}

// A store that cannot be used is no error: NVRTC makes the same images.
static mlx_status_t open_store(const mlx_kernels_t *kernels, const mlx_report_t *report,
                               mlx_image_store_t *out_store) {
  char *path;
  *out_store = (mlx_image_store_t){0};
  MLX_TRY(mlx_image_store_path(kernels->gpu->kernel_sm, &path));
  mlx_status_t status = path ? mlx_image_store_open(path, out_store) : NULL;
  if (status)
    mlx_report_note(report, "%s; NVRTC compiles all kernels, which takes longer", mlx_status_message(status));
  mlx_status_free(status);
  mlx_free(path);
  return NULL;
}

static mlx_status_t compile_for_gpu(work_t *work, const mlx_report_t *report) {
  const size_t count = work->kernels->count;
  mlx_status_t status = open_store(work->kernels, report, &work->store);
  if (!status) status = mlx_alloc(count, sizeof *work->results, &work->results);
  if (!status) status = mlx_alloc(count, sizeof *work->cpu_seconds, &work->cpu_seconds);
  if (!status) status = mlx_alloc(count, sizeof *work->origins, &work->origins);
  if (!status) status = mlx_alloc(count, sizeof *work->order, &work->order);
  if (!status) status = compile_in_threads(work, report);
  if (atomic_load(&work->damaged))
    mlx_report_note(report, "some of the installed kernel images are damaged; NVRTC compiled them");
  mlx_image_store_close(&work->store);
  mlx_free(work->results);
  mlx_free(work->cpu_seconds);
  mlx_free(work->origins);
  mlx_free(work->order);
  return status;
}

mlx_status_t mlx_kernels_compile(const mlx_kernels_t *kernels, const mlx_nvrtc_t *nvrtc, const char *folder,
                                 const mlx_report_t *report) {
  MLX_TRY(mlx_make_dirs(folder, 0777));
  for (size_t i = 0; !kernels->gpu && i < kernels->count; ++i)
    MLX_TRY(copy_object(&kernels->images[i], folder));
  if (!kernels->gpu) return NULL;
  if (!mlx_nvrtc_makes_ptx(nvrtc)) {
    mlx_report_note(report, "libnvfatbin was not found: the kernels run on sm_%d only, not on later GPUs",
                    kernels->gpu->kernel_sm);
  }
  work_t work = {.kernels = kernels,
                 .nvrtc = nvrtc,
                 .folder = folder,
                 .mutex = PTHREAD_MUTEX_INITIALIZER,
                 .changed = PTHREAD_COND_INITIALIZER};
  return compile_for_gpu(&work, report);
}
