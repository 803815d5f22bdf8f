// Images of tokenizers: a mapped image gives the ids and texts of the tokenizer that it was made from,
// damaged images are refused or harmless, and the cache replaces them.
#include "tokenizer/image.h"

#include <utime.h>

#include "base/memory.h"
#include "tests/goldens/tokenizer_kinds.h"
#include "tests/support/command.h"
#include "tests/support/fixture_copy.h"
#include "tokenizer/components.h"
#include "tokenizer/open.h"

#define TINY MLXCEL_SOURCE_DIR "/tests/fixtures/tiny-llama/tokenizer.json"
#define CASES MLXCEL_SOURCE_DIR "/tests/fuzz/image_fuzz/"

// ----------------------------------------------------------------------------------------------------------
// The same ids and texts

static const char *const lines[] = {
    "",
    "Hello, world! It's 2026-11-18.",
    "  two  spaces\tand\n\nlines\r\n",
    "<s>[CLS] a</s> <|im_start|>user\n[SEP]<unk> <w>a <w> abc<r>   <l>  x",
    "na\xc3\xafve caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80 e\xcc\x81 \xef\xac\x81",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa \xe2\x96\x81\xe2\x96\x81 The THE the",
    "broken \xff\xfe \xc3 bytes",
};

typedef struct pair {
  mlx_tokenizer_t *built, *mapped;
  uint8_t *bytes;
} pair_t;

static pair_t make_pair(const char *name, const char *json, size_t length) {
  pair_t pair;
  size_t size;
  CHECK_OK(mlx_tokenizer_create(name, json, length, &pair.built));
  CHECK_OK(mlx_tokenizer_image_make(pair.built, &pair.bytes, &size));
  CHECK_OK(mlx_tokenizer_image_parse(name, (mlx_map_t){pair.bytes, size}, &pair.mapped));
  CHECK(pair.mapped->is_image && !pair.built->is_image);
  return pair;
}

static void free_pair(pair_t *pair) {
  mlx_tokenizer_free(pair->built);
  mlx_tokenizer_free(pair->mapped);
  mlx_free(pair->bytes);
}

static void check_same_line(const pair_t *pair, const char *text, size_t length) {
  for (int special = 0; special < 2; ++special) {
    int32_t *ids[2];
    size_t counts[2], lengths[2];
    char *texts[2];
    for (int i = 0; i < 2; ++i) {
      const mlx_tokenizer_t *tokenizer = i ? pair->mapped : pair->built;
      mlx_status_t status = mlx_tokenizer_encode(tokenizer, text, length, special, &ids[i], &counts[i]);
      if (status) counts[i] = SIZE_MAX;  // Unigram without an unknown token
      mlx_status_free(status);
    }
    CHECK_INT(counts[0], counts[1]);
    if (counts[0] == SIZE_MAX) continue;
    CHECK(!memcmp(ids[0], ids[1], counts[0] * sizeof **ids));
    for (int i = 0; i < 2; ++i)
      CHECK_OK(mlx_tokenizer_decode(i ? pair->mapped : pair->built, ids[i], counts[i], special, &texts[i],
                                    &lengths[i]));
    CHECK_INT(lengths[0], lengths[1]);
    CHECK(!memcmp(texts[0], texts[1], lengths[0]));
    for (int i = 0; i < 2; ++i) mlx_free(ids[i]), mlx_free(texts[i]);
  }
}

static void check_same_tokens(const pair_t *pair) {
  const size_t size = mlx_tokenizer_vocab_size(pair->built);
  CHECK_INT(mlx_tokenizer_vocab_size(pair->mapped), size);
  CHECK_INT(mlx_tokenizer_first_differs(pair->mapped), mlx_tokenizer_first_differs(pair->built));
  for (int32_t id = -1; id <= (int32_t)size; ++id) {
    CHECK_INT(mlx_tokenizer_is_special(pair->mapped, id), mlx_tokenizer_is_special(pair->built, id));
    for (int first = 0; first < 2; ++first) {
      mlx_text_t texts[2] = {{0}, {0}};
      mlx_tokenizer_piece(pair->built, id, first, !first, &texts[0]);
      mlx_tokenizer_piece(pair->mapped, id, first, !first, &texts[1]);
      CHECK_INT(texts[0].length, texts[1].length);
      CHECK(!texts[0].length || !memcmp(texts[0].data, texts[1].data, texts[0].length));
      for (int i = 0; i < 2; ++i) mlx_text_clear(&texts[i]);
    }
  }
}

static void check_same(const pair_t *pair) {
  for (size_t i = 0; i < sizeof lines / sizeof *lines; ++i) check_same_line(pair, lines[i], strlen(lines[i]));
  for (size_t i = 0; i < sizeof golden_texts / sizeof *golden_texts; ++i) {
    if (golden_texts[i].text) check_same_line(pair, golden_texts[i].text, golden_texts[i].length);
  }
  check_same_tokens(pair);
}

TEST(an_image_gives_the_same_ids_and_texts_for_every_kind) {
  char *json;
  size_t length;
  for (size_t i = 0; i < sizeof golden_tokenizers / sizeof *golden_tokenizers; ++i) {
    const char *text = golden_tokenizers[i].json;
    pair_t pair = make_pair(golden_tokenizers[i].name, text, strlen(text));
    check_same(&pair);
    free_pair(&pair);
  }
  CHECK_OK(mlx_read_file(TINY, SIZE_MAX, &json, &length));
  pair_t pair = make_pair(TINY, json, length);
  check_same(&pair);
  free_pair(&pair);
  mlx_free(json);
}

// ----------------------------------------------------------------------------------------------------------
// Small tokenizers, whose images are the cases of image_fuzz

// clang-format off
static const struct {
  const char *name, *json;
} small[] = {
    {"valid_byte_level.bin",
     "{\"added_tokens\":[{\"id\":8,\"content\":\"<s>\",\"special\":true},{\"id\":4,\"content\":\"aa\","
     "\"single_word\":true,\"lstrip\":true,\"rstrip\":true},{\"id\":9,\"content\":\"<s><s>\","
     "\"special\":true}],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
     "\"use_regex\":true},\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
     "{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[8]}}},"
     "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,\"vocab\":"
     "{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"aa\":4,\"Ġ\":5,\"Ġa\":6,\"©\":7},\"merges\":[\"a b\",\"Ġ a\","
     "\"a a\"]}}"},
    {"valid_sentencepiece.bin",
     "{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true,\"normalized\":true}],"
     "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"_\"},"
     "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}]},\"decoder\":{\"type\":"
     "\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"_\"},\"content\":\" \"},"
     "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,"
     "\"fuse_unk\":true,\"unk_token\":\"<s>\",\"vocab\":{\"<s>\":0,\"<0xC3>\":1,\"<0xA9>\":2,\"_\":3,"
     "\"a\":4,\"b\":5,\"_a\":6,\"ab\":7},\"merges\":[\"a b\",\"_ a\"]}}"},
    {"valid_unigram.bin",
     "{\"added_tokens\":[{\"id\":7,\"content\":\"<s>\",\"special\":true}],\"pre_tokenizer\":{\"type\":"
     "\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\",\"split\":true},\"decoder\":{\"type\":"
     "\"Metaspace\",\"replacement\":\"_\"},\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":"
     "[[\"<unk>\",0],[\"_\",-1.5],[\"a\",-2.25],[\"b\",-2.5],[\"_a\",-3.0000001],[\"ab\",-3],[\"é\",-5]]}}"},
    {"valid_wordpiece.bin",
     "{\"normalizer\":{\"type\":\"Lowercase\"},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"decoder\":"
     "{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true},\"post_processor\":{\"type\":"
     "\"BertProcessing\",\"cls\":[\"[C]\",1],\"sep\":[\"[S]\",2]},\"model\":{\"type\":\"WordPiece\","
     "\"unk_token\":\"[U]\",\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":20,\"vocab\":"
     "{\"[U]\":0,\"[C]\":1,\"[S]\":2,\"a\":3,\"##a\":4,\"ab\":5,\"##bc\":6,\".\":7}}}"},
};
// clang-format on
#define SMALL (sizeof small / sizeof *small)

TEST(the_committed_images_have_the_format_of_this_version) {
  for (size_t i = 0; i < SMALL; ++i) {
    char path[512], *bytes;
    size_t size;
    snprintf(path, sizeof path, "%s%s", CASES, small[i].name);
    pair_t pair = make_pair(small[i].name, small[i].json, strlen(small[i].json));
    check_same(&pair);
    if (getenv("MLXCEL_UPDATE_GOLDENS")) {
      CHECK_OK(mlx_tokenizer_image_make(pair.built, (uint8_t **)&bytes, &size));
      CHECK_OK(mlx_write_file(path, bytes, size));
      mlx_free(bytes);
    }
    mlx_tokenizer_free(pair.mapped);
    CHECK_OK(mlx_tokenizer_image_open(path, &pair.mapped));
    check_same(&pair);
    free_pair(&pair);
  }
}

// Encodes and decodes, and ignores the result: a sanitizer finds a read outside the image.
static void use(const mlx_tokenizer_t *tokenizer) {
  for (size_t i = 0; i < sizeof lines / sizeof *lines; ++i) {
    int32_t *ids;
    size_t count;
    char *text = NULL;
    mlx_status_t status = mlx_tokenizer_encode(tokenizer, lines[i], strlen(lines[i]), true, &ids, &count);
    if (!status) status = mlx_tokenizer_decode(tokenizer, ids, count, false, &text, NULL);
    mlx_status_free(status);
    mlx_free(text);
    mlx_free(ids);
  }
}

TEST(a_damaged_image_is_refused_or_harmless) {
  for (size_t i = 0; i < SMALL; ++i) {
    pair_t pair = make_pair(small[i].name, small[i].json, strlen(small[i].json));
    uint8_t *image, *copy;
    size_t size, refused = 0;
    CHECK_OK(mlx_tokenizer_image_make(pair.built, &image, &size));
    for (size_t at = 0; at < 2 * size; ++at) {
      const size_t length = at < size ? at : size;  // first every length, then every byte
      mlx_tokenizer_t *tokenizer;
      CHECK_OK(mlx_alloc(length, 1, &copy));
      memcpy(copy, image, length);
      if (at >= size) copy[at - size] ^= (uint8_t)(1 << at % 8 | 0x80);
      mlx_status_t status = mlx_tokenizer_image_parse("i.bin", (mlx_map_t){copy, length}, &tokenizer);
      CHECK(status || at >= size);
      if (!status && at % 8 == 0) use(tokenizer);
      refused += status != NULL;
      mlx_status_free(status);
      mlx_tokenizer_free(tokenizer);
      mlx_free(copy);
    }
    CHECK(refused > size + size / 10);
    mlx_free(image);
    free_pair(&pair);
  }
}

// ----------------------------------------------------------------------------------------------------------
// The cache

#define VOCAB 40000

static int reads;  // how often the text of the tokenizer was made
static bool read_slowly;

static mlx_status_t write_json(void *user, char **out_json, size_t *out_length) {
  mlx_text_t text = {0};
  const size_t count = user ? 100 : VOCAB;
  ++reads;
  if (read_slowly) usleep(400000);  // then the rest is reported at once
  mlx_text_puts(&text, "{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\",\"vocab\":{");
  for (int c = 'a'; c <= 'z'; ++c) mlx_text_printf(&text, "\"%c\":%d,", c, c - 'a');
  for (size_t i = 0; i < count; ++i)
    mlx_text_printf(&text, "%s\"token of some length %zu\":%zu", i ? "," : "", i, i + 27);
  mlx_text_puts(&text, ",\"ab\":26},\"merges\":[\"a b\"]}}");
  mlx_status_t status = mlx_text_take(&text, out_json, out_length);
  mlx_text_clear(&text);
  return status;
}

// Opens the tokenizer and waits until its image is stored. Returns how often its text was made.
static int open_once(mlx_cache_t *cache, const char *key, void *user, bool *out_mapped) {
  const mlx_tokenizer_text_t text = {
      .name = "t.json", .model = "t", .key = key, .read = write_json, .user = user};
  mlx_tokenizer_t *tokenizer;
  int32_t *ids;
  size_t count;
  reads = 0;
  CHECK_OK(mlx_tokenizer_open(cache, &text, &tokenizer));
  CHECK_OK(mlx_tokenizer_encode(tokenizer, "abc", 3, false, &ids, &count));
  CHECK(count == 2 && ids[0] == 26 && ids[1] == 2);
  *out_mapped = tokenizer->is_image;
  mlx_free(ids);
  mlx_tokenizer_free(tokenizer);
  return reads;
}

static mlx_cache_t *open_cache(void) {
  mlx_cache_t *cache;
  snprintf(folder, sizeof folder, "/tmp/mlxcel-image-XXXXXX");
  CHECK(mkdtemp(folder));
  CHECK_OK(mlx_cache_open(folder, &cache));
  return cache;
}

static void close_cache(mlx_cache_t *cache) {
  mlx_cache_close(cache);
  CHECK_OK(mlx_remove_tree(folder));
}

static char first_progress[128];

static void keep_progress(void *user, mlx_report_kind_t kind, const char *text) {
  (void)user;
  CHECK_INT(kind, MLX_REPORT_PROGRESS);
  if (!first_progress[0]) snprintf(first_progress, sizeof first_progress, "%s", text);
}

TEST(building_shows_how_much_is_done_and_the_time_left) {
  const mlx_report_t report = {.emit = keep_progress};
  const mlx_tokenizer_text_t text = {
      .name = "t.json", .model = "t", .key = "slow", .read = write_json, .report = &report};
  mlx_cache_t *cache = open_cache();
  mlx_tokenizer_t *tokenizer;
  read_slowly = true;
  for (int warm = 0; warm < 2; ++warm) {
    first_progress[0] = 0;
    CHECK_OK(mlx_tokenizer_open(cache, &text, &tokenizer));
    CHECK_INT(tokenizer->is_image, warm);
    mlx_tokenizer_free(tokenizer);
    if (warm) {
      CHECK_TEXT(first_progress, "");
    } else {
      CHECK_CONTAINS(first_progress, "building the tokenizer (once): 4096 of 40028 tokens and merges, ");
      CHECK_CONTAINS(first_progress, " s left");
    }
  }
  read_slowly = false;
  close_cache(cache);
}

static char stored_key[MLX_DIGEST_HEX];

static mlx_status_t keep_key(void *user, const char *name) {
  snprintf(stored_key, sizeof stored_key, "%s", name);
  ++*(int *)user;
  return NULL;
}

static const char *stored_image(void) {
  int count = 0;
  char name[160];
  CHECK_OK(mlx_list_dir(in_folder(MLX_TOKENIZER_KIND), keep_key, &count));
  CHECK_INT(count, 1);
  snprintf(name, sizeof name, "%s/%s/%s", MLX_TOKENIZER_KIND, stored_key, MLX_TOKENIZER_IMAGE);
  return in_folder(name);
}

TEST(the_second_open_maps_the_image_and_makes_no_text) {
  mlx_cache_t *cache = open_cache();
  bool mapped;
  CHECK_INT(open_once(cache, "k", NULL, &mapped), 1);
  CHECK(!mapped);
  for (int i = 0; i < 3; ++i) {
    CHECK_INT(open_once(cache, "k", NULL, &mapped), 0);
    CHECK(mapped);
  }
  CHECK_INT(open_once(cache, "another key", NULL, &mapped), 1);
  CHECK_INT(open_once(cache, "", NULL, &mapped), 1);
  CHECK_INT(open_once(NULL, "k", NULL, &mapped), 1);
  CHECK(!mapped);
  close_cache(cache);
}

TEST(a_small_tokenizer_is_not_stored) {
  mlx_cache_t *cache = open_cache();
  bool mapped;
  for (int i = 0; i < 2; ++i) CHECK_INT(open_once(cache, "k", &mapped, &mapped), 1);
  CHECK(!mapped && !mlx_is_dir(in_folder(MLX_TOKENIZER_KIND)));
  close_cache(cache);
}

TEST(a_damaged_image_in_the_cache_is_made_again) {
  mlx_cache_t *cache = open_cache();
  bool mapped;
  CHECK_INT(open_once(cache, "k", NULL, &mapped), 1);
  for (int i = 0; i < 3; ++i) {
    const char *path = stored_image();
    mlx_file_stamp_t stamp;
    CHECK_OK(mlx_file_stamp(path, &stamp));
    FILE *file = fopen(path, "r+b");
    CHECK(file);
    if (i == 0) CHECK(!fseek(file, 5000, SEEK_SET) && fputc(0x5a, file) != EOF && fputc(0xa5, file) != EOF);
    if (i == 1) CHECK(!ftruncate(fileno(file), (off_t)stamp.size / 2));
    fclose(file);
    if (i == 2) CHECK(!unlink(path));
    CHECK_INT(open_once(cache, "k", NULL, &mapped), 1);
    CHECK(!mapped);
    CHECK_INT(open_once(cache, "k", NULL, &mapped), 0);
    CHECK(mapped);
  }
  close_cache(cache);
}

static mlx_status_t write_nonsense(void *user, const char *path, const char *log_path) {
  char file[512];
  (void)user, (void)log_path;
  snprintf(file, sizeof file, "%s/%s", path, MLX_TOKENIZER_IMAGE);
  return mlx_write_file(file, "not an image", 12);
}

// Its record is right, so only the reader of images can refuse it.
TEST(an_image_that_the_reader_refuses_is_made_again) {
  mlx_cache_t *cache = open_cache();
  mlx_cache_entry_t entry;
  mlx_cache_cleared_t cleared = {0};
  bool mapped;
  CHECK_INT(open_once(cache, "k", NULL, &mapped), 1);
  stored_image();
  CHECK_OK(mlx_cache_remove(cache, MLX_TOKENIZER_KIND, stored_key, NULL, &cleared));
  CHECK_INT(cleared.removed, 1);
  const mlx_cache_request_t request = {
      .kind = MLX_TOKENIZER_KIND, .key = stored_key, .title = "t", .fill = write_nonsense};
  CHECK_OK(mlx_cache_get(cache, &request, NULL, &entry));
  mlx_cache_release(&entry);
  CHECK_INT(open_once(cache, "k", NULL, &mapped), 1);
  CHECK_INT(open_once(cache, "k", NULL, &mapped), 0);
  CHECK(mapped);
  close_cache(cache);
}

TEST(a_cache_that_cannot_be_written_is_not_needed) {
  mlx_cache_t *cache = open_cache();
  bool mapped;
  CHECK_OK(mlx_write_file(in_folder(MLX_TOKENIZER_KIND), "a file where a folder should be", 5));
  for (int i = 0; i < 2; ++i) CHECK_INT(open_once(cache, "k", NULL, &mapped), 1);
  CHECK(!mapped);
  close_cache(cache);
}

// ----------------------------------------------------------------------------------------------------------
// Commands

typedef struct stored {
  char key[MLX_DIGEST_HEX];
  int count;
  int64_t used;
} stored_t;

static mlx_status_t find_mine(void *user, const mlx_cache_item_t *item) {
  stored_t *stored = user;
  if (strcmp(item->kind, MLX_TOKENIZER_KIND) || !item->title ||
      !strstr(item->title, mlx_file_name(folder).text))
    return NULL;
  snprintf(stored->key, sizeof stored->key, "%s", item->key);
  stored->used = item->used;
  ++stored->count;
  return NULL;
}

// The image of the model in the folder.
static stored_t find_stored(mlx_cache_t *cache) {
  stored_t stored = {.count = 0};
  CHECK_OK(mlx_cache_list(cache, find_mine, &stored));
  CHECK_INT(stored.count, 1);
  return stored;
}

// Runs a command and checks that it found the image in the cache: that sets the time of the image's last use.
static void check_maps(mlx_cache_t *cache, const char *const *argv) {
  const stored_t before = find_stored(cache);
  const struct utimbuf long_ago = {.actime = 1000000000, .modtime = 1000000000};
  char record[1024];
  command_t run;
  snprintf(record, sizeof record, "%s/%s/%s/entry.json", mlx_cache_folder(cache), MLX_TOKENIZER_KIND,
           before.key);
  CHECK(!utime(record, &long_ago));
  CHECK_INT(find_stored(cache).used, 1000000000);
  command_start(&run, argv);
  command_wait(&run);
  command_done(&run);
  CHECK(find_stored(cache).used > 1000000000);
}

// The tokenizer of tiny-llama, made large with spaces, and different in each run of this test.
static void write_large_tokenizer(void) {
  mlx_text_t text = {0};
  char *json;
  size_t length;
  CHECK_OK(mlx_read_file(TINY, SIZE_MAX, &json, &length));
  CHECK(json[0] == '{');
  mlx_text_printf(&text, "{\"test\":\"%s\",%*s", folder, 1 << 20, "");
  mlx_text_append(&text, json + 1, length - 1);
  CHECK_OK(mlx_text_finish(&text));
  CHECK_OK(mlx_write_file(in_folder("tokenizer.json"), text.data, text.length));
  mlx_text_clear(&text);
  mlx_free(json);
}

// The directory and the bundle have the same tokenizer.json, so they share its image.
TEST(commands_on_models_and_bundles_map_the_stored_image) {
  mlx_cache_t *cache;
  mlx_cache_cleared_t cleared = {0};
  command_t run;
  snprintf(folder, sizeof folder, "/tmp/mlxcel-image-XXXXXX");
  CHECK(mkdtemp(folder));
  copy_fixture("qwen3");
  write_large_tokenizer();
  CHECK_OK(mlx_cache_open(NULL, &cache));
  RUN(&run, "run", folder, "hello", "-n", "1", "--device", "cpu");
  command_done(&run);
  const char *const bundle = in_folder("m.mlxb");
  RUN(&run, "compile", folder, "-o", bundle);
  command_done(&run);
  for (int i = 0; i < 2; ++i) {
    const char *model = i ? bundle : folder;
    check_maps(cache, (const char *const[]){MLXCEL_BINARY, "run", model, "hello", "-n", "1", "--device",
                                            "cpu", NULL});
    check_maps(cache, (const char *const[]){MLXCEL_BINARY, "tokenize", model, "hello", NULL});
    check_maps(cache, (const char *const[]){MLXCEL_BINARY, "detokenize", model, "5", NULL});
  }
  CHECK_OK(mlx_cache_remove(cache, MLX_TOKENIZER_KIND, find_stored(cache).key, NULL, &cleared));
  close_cache(cache);
}

TEST_MAIN(CASE(an_image_gives_the_same_ids_and_texts_for_every_kind),
          CASE(the_committed_images_have_the_format_of_this_version),
          CASE(a_damaged_image_is_refused_or_harmless),
          CASE(the_second_open_maps_the_image_and_makes_no_text), CASE(a_small_tokenizer_is_not_stored),
          CASE(a_damaged_image_in_the_cache_is_made_again),
          CASE(an_image_that_the_reader_refuses_is_made_again),
          CASE(a_cache_that_cannot_be_written_is_not_needed),
          CASE(building_shows_how_much_is_done_and_the_time_left),
          POSIX_CASE(commands_on_models_and_bundles_map_the_stored_image))
