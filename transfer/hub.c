// Parses hub references and listings, and chooses files. See hub.h.
#include "transfer/hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"

#define DEFAULT_QUANT "Q4_K_M"
#define MAX_FILES 100000
#define NAME_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

// ----------------------------------------------------------------------------------------------------------
// References

// If |text| begins with |prefix|, in any case, moves it behind the prefix.
static bool skip(const char **text, const char *prefix) {
  const size_t length = strlen(prefix);
  if (strncasecmp(*text, prefix, length)) return false;
  *text += length;
  return true;
}

// Returns the part of a reference after its prefix; NULL if it has none. *|out_is_address| is true for the
// address of a page on the public hub.
static const char *after_prefix(const char *text, bool *out_is_address) {
  *out_is_address = false;
  if (!strncmp(text, MLX_HUB_PREFIX, strlen(MLX_HUB_PREFIX))) {
    text += strlen(MLX_HUB_PREFIX);
    skip(&text, "//");
    return text;
  }
  *out_is_address = true;
  if (!skip(&text, "https://")) skip(&text, "http://");
  return skip(&text, MLX_HUB_HOST "/") || skip(&text, MLX_HUB_SHORT_HOST "/") ? text : NULL;
}

// Copies an address without its query, its fragment and slashes at its end. False if it does not fit.
static bool trim_address(const char *text, char *out, size_t size) {
  size_t length = strcspn(text, "?#");
  while (length && text[length - 1] == '/') --length;
  if (length >= size) return false;
  memcpy(out, text, length);
  out[length] = 0;
  return true;
}

// The address of a file that is not GGUF, such as a bundle, is not a reference: it is downloaded as it is.
static bool is_other_file(const char *address) {
  char path[2048];
  const bool is_file = strstr(address, "/resolve/") || strstr(address, "/blob/") || strstr(address, "/raw/");
  return is_file && trim_address(address, path, sizeof path) && !mlx_ends_with_nocase(path, ".gguf");
}

bool mlx_is_hub_ref(const char *text) {
  bool is_address;
  const char *rest = after_prefix(text, &is_address);
  return rest && !(is_address && is_other_file(rest));
}

static bool is_name(const char *text) {
  const size_t length = strspn(text, NAME_CHARACTERS);
  return length && !text[length] && text[0] != '.' && text[0] != '-';
}

// Copies [start, end) to |out|. Returns false if it does not fit.
static bool cut(const char *start, const char *end, char *out, size_t size) {
  if ((size_t)(end - start) >= size) return false;
  memcpy(out, start, (size_t)(end - start));
  out[end - start] = 0;
  return true;
}

// Parses what follows ORG/NAME in an address: "", "/tree/REVISION" or "/blob/REVISION/FILE".
static bool split_address(const char *rest, mlx_hub_ref_t *ref) {
  if (!*rest) return true;
  const bool is_folder = skip(&rest, "/tree/");
  if (!is_folder && !skip(&rest, "/blob/") && !skip(&rest, "/resolve/") && !skip(&rest, "/raw/"))
    return false;
  const char *end = rest + strcspn(rest, "/");
  if (!cut(rest, end, ref->revision, sizeof ref->revision) || is_folder) return is_folder && !*end;
  return *end && cut(end + 1, end + strlen(end), ref->selector, sizeof ref->selector) && ref->selector[0];
}

static bool split_ref(const char *text, bool is_address, mlx_hub_ref_t *ref) {
  const char *slash = strchr(text, '/');
  if (!slash || !cut(text, slash, ref->org, sizeof ref->org)) return false;
  const char *name_end = slash + 1 + strcspn(slash + 1, is_address ? "/@:" : "@:");
  if (!cut(slash + 1, name_end, ref->name, sizeof ref->name)) return false;
  snprintf(ref->revision, sizeof ref->revision, "main");
  const char *rest = name_end;
  if (*rest == '/' && !split_address(rest, ref)) return false;
  if (*rest == '/') rest += strlen(rest);
  if (*rest == '@') {
    const char *end = rest + strcspn(rest, ":");
    if (!cut(rest + 1, end, ref->revision, sizeof ref->revision) || !ref->revision[0]) return false;
    rest = end;
  }
  if (*rest == ':' && (!rest[1] || !cut(rest + 1, rest + strlen(rest), ref->selector, sizeof ref->selector)))
    return false;
  return is_name(ref->org) && is_name(ref->name) && mlx_is_safe_path(ref->revision) &&
         (!ref->selector[0] || mlx_is_safe_path(ref->selector));
}

mlx_status_t mlx_hub_ref_parse(const char *text, mlx_hub_ref_t *out_ref) {
  *out_ref = (mlx_hub_ref_t){0};
  char path[2048];
  bool is_address;
  const char *rest = after_prefix(text, &is_address);
  if (rest && is_address) rest = trim_address(rest, path, sizeof path) ? path : NULL;
  if (rest && split_ref(rest, is_address, out_ref)) return NULL;
  return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' is not a valid hub reference", text),
                         "use hf:ORG/NAME, hf:ORG/NAME@REVISION or hf:ORG/NAME:Q4_K_M");
}

// ----------------------------------------------------------------------------------------------------------
// Listings

static bool is_hex(const char *text, size_t length) {
  return text && strlen(text) == length && strspn(text, "0123456789abcdef") == length;
}

static mlx_status_t read_digests(const mlx_json_t *json, yyjson_val *item, mlx_hub_file_t *file) {
  yyjson_val *lfs = mlx_json_find(item, "lfs");
  if (lfs && !yyjson_is_obj(lfs)) return mlx_json_error(json, "lfs", "must be an object");
  const char *sha256 = lfs ? yyjson_get_str(mlx_json_find(lfs, "sha256")) : NULL;
  const char *git = yyjson_get_str(mlx_json_find(item, "blobId"));
  if (sha256 && !is_hex(sha256, MLX_DIGEST_HEX - 1))
    return mlx_json_error(json, "sha256", "is not a SHA-256");
  if (sha256) {
    snprintf(file->sha256, sizeof file->sha256, "%s", sha256);
  } else if (is_hex(git, MLX_SHA1_HEX - 1)) {
    snprintf(file->git_sha1, sizeof file->git_sha1, "%s", git);
  }
  return NULL;
}

static mlx_status_t read_file(const mlx_json_t *json, yyjson_val *item, mlx_hub_file_t *file) {
  const char *name;
  int64_t size;
  if (!yyjson_is_obj(item)) return mlx_json_error(json, "siblings", "contains a value that is not an object");
  MLX_TRY(mlx_json_string(json, item, "rfilename", &name));
  if (!mlx_is_safe_path(name))
    return mlx_json_error(json, "rfilename", "is invalid or points outside the model's folder");
  MLX_TRY(mlx_json_int(json, item, "size", 0, INT64_MAX / 2, &size));
  file->size = (uint64_t)size;
  MLX_TRY(read_digests(json, item, file));
  return mlx_copy_text(name, strlen(name), &file->name);
}

static mlx_status_t read_listing(const mlx_json_t *json, mlx_hub_listing_t *listing) {
  const char *commit;
  yyjson_val *list, *item;
  size_t index, count;
  MLX_TRY(mlx_json_string(json, json->root, "sha", &commit));
  if (!is_hex(commit, MLX_SHA1_HEX - 1)) return mlx_json_error(json, "sha", "is not a commit hash");
  snprintf(listing->commit, sizeof listing->commit, "%s", commit);
  MLX_TRY(mlx_json_need(json, json->root, "siblings", &list));
  if (!yyjson_is_arr(list) || yyjson_arr_size(list) > MAX_FILES)
    return mlx_json_error(json, "siblings", "must be a list of files");
  MLX_TRY(mlx_alloc(yyjson_arr_size(list), sizeof *listing->files, &listing->files));
  yyjson_arr_foreach(list, index, count, item) {
    ++listing->count;
    MLX_TRY(read_file(json, item, &listing->files[index]));
  }
  return NULL;
}

mlx_status_t mlx_hub_listing_read(const char *name, const char *text, size_t length,
                                  mlx_hub_listing_t *out_listing) {
  *out_listing = (mlx_hub_listing_t){0};
  mlx_json_t json;
  MLX_TRY(mlx_json_parse(name, text, length, &json));
  mlx_status_t status = read_listing(&json, out_listing);
  mlx_json_close(&json);
  if (status) mlx_hub_listing_free(out_listing);
  return status;
}

void mlx_hub_listing_free(mlx_hub_listing_t *listing) {
  for (size_t i = 0; i < listing->count; ++i) mlx_free(listing->files[i].name);
  mlx_free(listing->files);
  *listing = (mlx_hub_listing_t){0};
}

// ----------------------------------------------------------------------------------------------------------
// Choosing GGUF files

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

// A GGUF file with text model weights. "mmproj" files hold a vision projector.
static bool is_gguf(const char *name) {
  return mlx_ends_with_nocase(name, ".gguf") && strncasecmp(base_name(name), "mmproj", 6);
}

// Length of a GGUF file name without its ending ".gguf" or "-00001-of-00003.gguf". *|out_parts| is 1 for a
// file that is not split.
static size_t stem_length(const char *name, unsigned *out_part, unsigned *out_parts) {
  const size_t length = strlen(name) - strlen(".gguf"), suffix = strlen("-00001-of-00003");
  *out_part = *out_parts = 1;
  int used = 0;
  if (length > suffix && sscanf(name + length - suffix, "-%5u-of-%5u%n", out_part, out_parts, &used) == 2 &&
      (size_t)used == suffix && *out_part >= 1 && *out_part <= *out_parts) {
    return length - suffix;
  }
  *out_part = *out_parts = 1;
  return length;
}

// True if |quant| is a whole word of the name: Q4_K does not match Q4_K_M. Words are separated by '-', '.'
// and '/'; an underscore may only precede the quantization, because it is also part of one.
static bool has_quant(const char *name, const char *quant) {
  unsigned part, parts;
  const size_t end = stem_length(name, &part, &parts), length = strlen(quant);
  for (size_t i = 0; length <= end && i <= end - length; ++i) {
    if (strncasecmp(name + i, quant, length)) continue;
    const char before = i ? name[i - 1] : '-', after = i + length < end ? name[i + length] : '-';
    if (strchr("-./_", before) && strchr("-./", after)) return true;
  }
  return false;
}

// Appends ", NAME" to the list |out|. False if the list is full; it ends with "..." then.
static bool add_to_list(const char *name, size_t length, char *out, size_t size) {
  const size_t used = strlen(out);
  if (used + length + 8 > size) {
    snprintf(out + used, size - used, ", ...");
    return false;
  }
  snprintf(out + used, size - used, "%s%.*s", used ? ", " : "", (int)length, name);
  return true;
}

static void list_ggufs(const mlx_hub_listing_t *listing, const char *quant, char *out, size_t size) {
  *out = 0;
  for (size_t i = 0; i < listing->count; ++i) {
    const char *name = listing->files[i].name;
    if (!is_gguf(name) || (quant && !has_quant(name, quant))) continue;
    if (!add_to_list(name, strlen(name), out, size)) return;
  }
}

// Returns the quantization at the end of a GGUF file's name: "Q4_K_M", "IQ2_XS", "bf16". Returns the whole
// name if it does not end with one.
static const char *quant_of(const char *name, size_t *out_length) {
  static const char *const kinds[] = {"IQ", "TQ", "MXFP", "BF", "Q", "F"};
  unsigned part, parts;
  const size_t end = stem_length(name, &part, &parts);
  size_t start = end;
  while (start && !strchr("-./", name[start - 1])) --start;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
    const char *rest = name + start;
    if (!skip(&rest, kinds[i]) || *rest < '0' || *rest > '9') continue;
    *out_length = end - start;
    return name + start;
  }
  *out_length = strlen(name);
  return name;
}

static void list_quants(const mlx_hub_listing_t *listing, char *out, size_t size) {
  *out = 0;
  for (size_t i = 0; i < listing->count; ++i) {
    unsigned part, parts;
    size_t length;
    const char *name = listing->files[i].name;
    if (!is_gguf(name)) continue;
    stem_length(name, &part, &parts);
    const char *quant = quant_of(name, &length);
    if (part == 1 && !add_to_list(quant, length, out, size)) return;
  }
}

// Chooses the file at |index| and all other parts of its split. The first part is the file to open.
static mlx_status_t choose_gguf(mlx_hub_listing_t *listing, size_t index, const char **out_main) {
  unsigned part, parts, other_part, other_parts, found = 0;
  const char *name = listing->files[index].name;
  const size_t stem = stem_length(name, &part, &parts);
  for (size_t i = 0; i < listing->count; ++i) {
    mlx_hub_file_t *file = &listing->files[i];
    if (!mlx_ends_with_nocase(file->name, ".gguf") ||
        stem_length(file->name, &other_part, &other_parts) != stem || other_parts != parts ||
        strncmp(file->name, name, stem)) {
      continue;
    }
    if (!file->chosen) ++found;
    file->chosen = true;
    if (other_part == 1) *out_main = file->name;
  }
  if (found == parts && *out_main) return NULL;
  return mlx_error(MLX_INVALID_INPUT, "%s: only %u of its %u parts are in the repository", name, found,
                   parts);
}

static bool same_model(const char *a, const char *b) {
  unsigned part, a_parts, b_parts;
  const size_t length = stem_length(a, &part, &a_parts);
  return length == stem_length(b, &part, &b_parts) && a_parts == b_parts && !strncmp(a, b, length);
}

// Returns the index of the first GGUF model with this quantization (NULL for any). *|out_count| is the number
// of such models.
static size_t find_gguf(const mlx_hub_listing_t *listing, const char *quant, size_t *out_count) {
  size_t first = 0;
  *out_count = 0;
  for (size_t i = 0; i < listing->count; ++i) {
    const char *name = listing->files[i].name;
    if (!is_gguf(name) || (quant && !has_quant(name, quant))) continue;
    if (*out_count && same_model(listing->files[first].name, name)) continue;
    if (!(*out_count)++) first = i;
  }
  return first;
}

static mlx_status_t select_named(mlx_hub_listing_t *listing, const char *selector, const char **out_main) {
  char names[1024];
  for (size_t i = 0; i < listing->count; ++i) {
    if (strcmp(listing->files[i].name, selector)) continue;
    if (mlx_ends_with_nocase(selector, ".gguf")) return choose_gguf(listing, i, out_main);
    return mlx_status_hint(mlx_error(MLX_UNSUPPORTED, "'%s' is not a GGUF file", selector),
                           "leave out the file name to pull the whole model");
  }
  size_t count;
  const size_t found = find_gguf(listing, selector, &count);
  if (count == 1) return choose_gguf(listing, found, out_main);
  if (count) {
    list_ggufs(listing, selector, names, sizeof names);
    return mlx_status_hint(mlx_error(MLX_USAGE, "'%s' matches several GGUF files", selector),
                           "use one of these file names: %s", names);
  }
  list_quants(listing, names, sizeof names);
  return mlx_status_hint(
      mlx_error(MLX_NOT_FOUND, "the model has no GGUF file named or quantized as '%s'", selector),
      names[0] ? "it has these quantizations: %s"
               : "it has no GGUF files%s: leave out the part after the colon",
      names);
}

// ----------------------------------------------------------------------------------------------------------
// Choosing the files of a Hugging Face directory

static mlx_hub_file_t *find_file(const mlx_hub_listing_t *listing, const char *name) {
  for (size_t i = 0; i < listing->count; ++i) {
    if (!strcmp(listing->files[i].name, name)) return &listing->files[i];
  }
  return NULL;
}

static bool is_shard(const char *name) {
  unsigned part, parts;
  int used = 0;
  return sscanf(name, "model-%5u-of-%5u.safetensors%n", &part, &parts, &used) == 2 && used && !name[used];
}

// A file of a module of a sentence-transformers directory: "1_Pooling/config.json",
// "2_Dense/model.safetensors".
static bool is_module(const char *name) {
  int used = 0;
  if (sscanf(name, "%*2[0-9]_%*31[A-Za-z]/%n", &used) || !used) return false;
  return !strcmp(name + used, "config.json") || !strcmp(name + used, "model.safetensors");
}

static bool is_companion(const char *name) {
  static const char *const names[] = {
      "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
      "special_tokens_map.json", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json",
      "chat_template.jinja", "chat_template.json",
      // of a sentence-transformers directory
      "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json",
      "sentence_roberta_config.json", "sentence_distilbert_config.json", "sentence_xlm-roberta_config.json",
      "sentence_mpnet_config.json"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    if (!strcmp(name, names[i])) return true;
  }
  if (is_module(name)) return true;
  const char *folder = "additional_chat_templates/";
  return !strncmp(name, folder, strlen(folder)) && mlx_ends_with_nocase(name, ".jinja");
}

// Some repositories contain the same weights twice, under different names. Chooses only the names that the
// index uses. Returns the number of weight files.
static size_t choose_safetensors(mlx_hub_listing_t *listing) {
  const bool sharded = find_file(listing, "model.safetensors.index.json") != NULL;
  size_t weights = 0;
  for (size_t i = 0; i < listing->count; ++i) {
    mlx_hub_file_t *file = &listing->files[i];
    const bool weight = sharded ? is_shard(file->name) : !strcmp(file->name, "model.safetensors");
    weights += weight;
    file->chosen = weight || is_companion(file->name) ||
                   (sharded && !strcmp(file->name, "model.safetensors.index.json"));
  }
  return weights;
}

static mlx_status_t no_weights(const mlx_hub_listing_t *listing) {
  for (size_t i = 0; i < listing->count; ++i) {
    const char *name = listing->files[i].name;
    if (!mlx_ends_with_nocase(name, ".bin") && !mlx_ends_with_nocase(name, ".pth") &&
        !mlx_ends_with_nocase(name, ".pt") && !mlx_ends_with_nocase(name, ".ckpt"))
      continue;
    return mlx_status_hint(
        mlx_error(MLX_UNSUPPORTED, "its weights are in '%s', a pickle file, which can run code when loaded",
                  name),
        "mlxcel never downloads pickles: use a revision or a copy with safetensors or GGUF");
  }
  return mlx_error(
      MLX_UNSUPPORTED,
      "the model has neither model.safetensors (or its index) with config.json, nor a GGUF file");
}

mlx_status_t mlx_hub_select(mlx_hub_listing_t *listing, const char *selector, const char **out_main,
                            bool *out_by_default) {
  size_t count, matches;
  *out_main = NULL;
  *out_by_default = false;
  for (size_t i = 0; i < listing->count; ++i) listing->files[i].chosen = false;
  if (selector[0]) return select_named(listing, selector, out_main);
  if (find_file(listing, "config.json") && choose_safetensors(listing)) return NULL;
  for (size_t i = 0; i < listing->count; ++i) listing->files[i].chosen = false;
  const size_t first = find_gguf(listing, NULL, &count);
  if (!count) return no_weights(listing);
  const size_t usual = find_gguf(listing, DEFAULT_QUANT, &matches);
  *out_by_default = count > 1;
  return choose_gguf(listing, matches ? usual : first, out_main);
}
