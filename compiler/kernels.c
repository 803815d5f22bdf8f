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
#include "cache/image_store.h"
#include "compiler/kernel_source.h"

#define MAX_DEFINITIONS 128
#define MAX_HEADERS 64
#define MAX_WORKERS 16
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
                                      [MLX_KERNEL_NETWORK] = "network"};
  return names[kind];
}

void mlx_kernels_clear(mlx_kernels_t *kernels) {
  for (size_t i = 0; i < kernels->count; ++i) mlx_free(kernels->images[i].definitions);
  mlx_free(kernels->images);
  mlx_free(kernels->tiles);
  *kernels = (mlx_kernels_t){0};
}

mlx_status_t mlx_kernels_image(mlx_kernels_t *kernels, mlx_kernel_kind_t kind, const char *definitions,
                               const char **out_file) {
  char *text;
  MLX_TRY(mlx_format(&text, "%s", definitions));
  for (size_t i = 0; i < kernels->count; ++i) {
    if (kernels->images[i].kind != kind || strcmp(kernels->images[i].definitions, text)) continue;
    mlx_free(text);
    *out_file = kernels->images[i].file;
    return NULL;
  }
  mlx_status_t status =
      mlx_reserve(kernels->count + 1, sizeof *kernels->images, &kernels->capacity, &kernels->images);
  if (status) {
    mlx_free(text);
    return status;
  }
  mlx_kernel_image_request_t *image = &kernels->images[kernels->count++];
  *image = (mlx_kernel_image_request_t){.kind = kind, .definitions = text};
  snprintf(image->file, sizeof image->file, "%s%zu.%s", mlx_kernel_kind_name(kind), kernels->count,
           kernels->gpu ? "fatbin" : "o");
  *out_file = image->file;
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

static const mlx_kernel_source_t *find_object(mlx_kernel_kind_t kind, const char *level) {
  char name[64];
  snprintf(name, sizeof name, "%s.%s.o", mlx_kernel_kind_name(kind), level);
  return mlx_kernel_source_find(name);
}

static mlx_status_t get_object(const mlx_kernels_t *kernels, mlx_kernel_kind_t kind,
                               const mlx_kernel_source_t **out_object) {
  *out_object = find_object(kind, kernels->cpu_level);
  return *out_object ? NULL
                     : mlx_error(MLX_INTERNAL, "this build has no CPU kernel '%s' for %s",
                                 mlx_kernel_kind_name(kind), kernels->cpu_level);
}

bool mlx_kernels_have_level(const char *level) { return find_object(MLX_KERNEL_NETWORK, level) != NULL; }

const char *mlx_kernels_cpu_level(const char *level) {
  const char *best = NULL;
  const mlx_cpu_level_t *highest = !strcmp(level, "host") ? mlx_cpu_level_here() : mlx_cpu_level_find(level),
                        *known;
  for (size_t i = 0; highest && (known = mlx_cpu_level(i)) && known <= highest; ++i) {  // ascending
    if (known->arch == highest->arch && find_object(MLX_KERNEL_NETWORK, known->name)) best = known->name;
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
  mlx_text_printf(&text, "nvrtc %s sm_%d\n%s\n%s", identity, kernels->gpu->kernel_sm, image->definitions,
                  source->text);
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
  MLX_TRY(get_object(kernels, image->kind, &object));
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

// Splits |text| into lines, in place.
static mlx_status_t split_lines(char *text, const char *lines[MAX_DEFINITIONS], size_t *out_count) {
  *out_count = 0;
  for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
    if (*out_count == MAX_DEFINITIONS)
      return mlx_error(MLX_INTERNAL, "a kernel has more than %d definitions", MAX_DEFINITIONS);
    *end = 0;
    lines[(*out_count)++] = line;
  }
  return NULL;
}

// Only the tiled products (with a tile height BM) have a variant for wgmma, which needs sm_90a. One
// compilation for plain sm_90 gives all other kernels their cubin and their PTX.
static bool uses_wgmma(mlx_kernel_kind_t kind, const char *const *definitions, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (!strncmp(definitions[i], "BM=", 3)) return kind == MLX_KERNEL_LINEAR || kind == MLX_KERNEL_PACKED;
  }
  return false;
}

static mlx_status_t compile_image(const mlx_kernels_t *kernels, const mlx_nvrtc_t *nvrtc,
                                  const mlx_kernel_image_request_t *image, char *definitions,
                                  const char *path, const char *log_path) {
  const mlx_kernel_source_t *source;
  const char *lines[MAX_DEFINITIONS], *headers[MAX_HEADERS], *header_names[MAX_HEADERS];
  mlx_nvrtc_job_t job = {.sm = kernels->gpu->kernel_sm,
                         .definitions = lines,
                         .headers = headers,
                         .header_names = header_names,
                         .log_path = log_path};
  MLX_TRY(get_source(image->kind, &source));
  MLX_TRY(split_lines(definitions, lines, &job.definition_count));
  job.arch_specific = job.sm == 90 && uses_wgmma(image->kind, lines, job.definition_count);
  for (const mlx_kernel_source_t *header; (header = mlx_kernel_source_header(job.header_count));
       ++job.header_count) {
    if (job.header_count == MAX_HEADERS)
      return mlx_error(MLX_INTERNAL, "there are more than %d kernel headers", MAX_HEADERS);
    headers[job.header_count] = header->text;
    header_names[job.header_count] = header->name;
  }
  job.name = source->name;
  job.source = source->text;
  mlx_kernel_image_t made;
  MLX_TRY(mlx_nvrtc_compile(nvrtc, &job, &made));
  mlx_status_t status = mlx_write_scratch_file(path, made.bytes, made.length);
  mlx_kernel_image_release(&made);
  return status;
}

static mlx_status_t copy_object(const mlx_kernels_t *kernels, const mlx_kernel_image_request_t *image,
                                const char *folder) {
  const mlx_kernel_source_t *object;
  char *path;
  MLX_TRY(get_object(kernels, image->kind, &object));
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
  mlx_digest_field(&digest, "mlxcel kernel 1", rule, strlen(rule));
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

// The number after |name| ("BM=") at the start of a line of |definitions|; 0 if there is none.
static int definition_value(const char *definitions, const char *name) {
  const size_t length = strlen(name);
  for (const char *line = definitions; line && *line; line = strchr(line, '\n'), line += line != NULL) {
    if (!strncmp(line, name, length)) return atoi(line + length);
  }
  return 0;
}

// From bench/image_time. A tiled product grows with its tile; gate and up (EPILOGUE=2) are two products. For
// sm_90 it is compiled twice, see uses_wgmma.
static int product_cost(const char *definitions) {
  const int tile_rows = definition_value(definitions, "BM=");
  const int one = tile_rows ? 30 + tile_rows / 4 : definition_value(definitions, "CUT=") ? 10 : 40;
  return definition_value(definitions, "EPILOGUE=") == 2 ? 2 * one : one;
}

int mlx_kernel_image_cost(const mlx_kernel_image_request_t *image) {
  static const int costs[MLX_KERNEL_KINDS] = {
      [MLX_KERNEL_DECODE] = 300,       [MLX_KERNEL_SAMPLE] = 170, [MLX_KERNEL_ATTENTION] = 80,
      [MLX_KERNEL_ATTENTION_F32] = 80, [MLX_KERNEL_EXPERTS] = 50, [MLX_KERNEL_PLACE] = 20,
      [MLX_KERNEL_ROWS] = 10,          [MLX_KERNEL_FEW] = 250};
  if (image->kind == MLX_KERNEL_LINEAR || image->kind == MLX_KERNEL_PACKED)
    return product_cost(image->definitions);
  return costs[image->kind];
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
  atomic_bool failed;   // no thread claims another image
  atomic_bool damaged;  // an image of the store was not used
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

// Claims the longest image first: a thread that started it at the end would keep the other CPUs idle.
// |report| is NULL in a worker thread.
static void compile_images(work_t *work, const mlx_report_t *report) {
  const size_t count = work->kernels->count;
  size_t claimed;
  while (!atomic_load(&work->failed) && (claimed = atomic_fetch_add(&work->claimed, 1)) < count) {
    mlx_report_progress(report, "compiling kernels: %zu of %zu", claimed + 1, count);
    const size_t nth = work->order[claimed];
    const double start = mlx_thread_cpu_seconds();
    work->results[nth] = make_nth(work, nth);
    work->cpu_seconds[nth] = mlx_thread_cpu_seconds() - start;
    if (work->results[nth]) atomic_store(&work->failed, true);
  }
}

static void *work_thread(void *work) {
  compile_images(work, NULL);
  return NULL;
}

static void count_image(mlx_image_counts_t *counts, image_origin_t origin) {
  if (counts)
    ++*(origin == FROM_STORE ? &counts->stored : origin == FROM_CACHE ? &counts->cached : &counts->compiled);
}

// The calling thread compiles too, and reports progress between its images. If a thread cannot be started,
// the remaining threads compile its images. Returns the first error in claiming order.
static mlx_status_t compile_in_threads(work_t *work, const mlx_report_t *report) {
  pthread_t threads[MAX_WORKERS];
  const size_t count = work->kernels->count, cpus = (size_t)mlx_cpu_count();
  const size_t limit = cpus < MAX_WORKERS ? cpus : MAX_WORKERS, wanted = count < limit ? count : limit;
  size_t started = 0;
  mlx_kernels_order(work->kernels, work->order);
  while (started + 1 < wanted && !pthread_create(&threads[started], NULL, work_thread, work)) ++started;
  compile_images(work, report);
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
  return status;
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
    MLX_TRY(copy_object(kernels, &kernels->images[i], folder));
  if (!kernels->gpu) return NULL;
  if (!mlx_nvrtc_makes_ptx(nvrtc)) {
    mlx_report_note(report, "libnvfatbin was not found: the kernels run on sm_%d only, not on later GPUs",
                    kernels->gpu->kernel_sm);
  }
  work_t work = {.kernels = kernels, .nvrtc = nvrtc, .folder = folder};
  return compile_for_gpu(&work, report);
}
