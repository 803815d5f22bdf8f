// Follows the headers of a tar archive that arrives in pieces. See bundle_stream.h.
#include "artifact/bundle_stream.h"

#include <string.h>

#include "artifact/manifest.h"
#include "artifact/tar.h"
#include "base/memory.h"

#define MAX_MEMBERS 1024               // of the archive
#define MAX_OTHER_BYTES (64ull << 20)  // of members that are not part of a bundle
#define MAX_HEADERS (17u << 20)        // bytes of a header with its extension headers
#define MAX_ZEROS (1u << 20)           // bytes after the last member; tar writes up to 10 KiB

struct mlx_bundle_stream {
  const char *name;
  mlx_reserve_fn_t reserve;
  void *user;
  mlx_text_t header;       // the header being collected, after its extension headers
  size_t wanted;           // bytes of |header| until the next decision
  uint64_t left;           // bytes of the current member that are still to come, with its padding
  uint64_t data_left;      // the same without its padding
  bool in_manifest;        // the current member is the manifest
  mlx_text_t manifest;     // its text
  mlx_manifest_t *parsed;  // NULL until it has arrived
  uint64_t other_bytes, zeros;
  size_t members;
  bool ended;  // only zeros may follow
};

mlx_status_t mlx_bundle_stream_create(const char *name, mlx_reserve_fn_t reserve, void *user,
                                      mlx_bundle_stream_t **out_stream) {
  *out_stream = NULL;
  mlx_bundle_stream_t *stream;
  MLX_TRY(mlx_alloc(1, sizeof *stream, &stream));
  stream->name = name;
  stream->reserve = reserve;
  stream->user = user;
  mlx_bundle_stream_begin(stream);
  *out_stream = stream;
  return NULL;
}

void mlx_bundle_stream_begin(mlx_bundle_stream_t *stream) {
  mlx_text_clear(&stream->header);
  mlx_text_clear(&stream->manifest);
  mlx_free(stream->parsed);
  *stream = (mlx_bundle_stream_t){
      .name = stream->name, .reserve = stream->reserve, .user = stream->user, .wanted = MLX_TAR_BLOCK};
}

void mlx_bundle_stream_free(mlx_bundle_stream_t *stream) {
  if (!stream) return;
  mlx_bundle_stream_begin(stream);
  mlx_free(stream);
}

// ----------------------------------------------------------------------------------------------------------
// Members

static mlx_status_t check_listed(const mlx_bundle_stream_t *stream, const mlx_tar_member_t *member) {
  if (!stream->parsed || !strcmp(member->name, MLX_BUNDLE_SIGNATURE)) return NULL;
  const mlx_bundle_file_t *file = mlx_manifest_file(stream->parsed, member->name);
  if (!file)
    return mlx_error(MLX_INVALID_INPUT, "%s contains %s, which its manifest does not list", stream->name,
                     member->name);
  if (member->size == (uint64_t)file->size) return NULL;
  return mlx_error(MLX_INVALID_INPUT, "%s: %s has %llu bytes, but the manifest declares %lld", stream->name,
                   member->name, (unsigned long long)member->size, (long long)file->size);
}

static mlx_status_t check_other(mlx_bundle_stream_t *stream, const mlx_tar_member_t *member) {
  if (member->size <= MAX_OTHER_BYTES - stream->other_bytes) {
    stream->other_bytes += member->size;
    return NULL;
  }
  return mlx_error(MLX_INVALID_INPUT, "%s: files that are not part of a bundle have more than %llu bytes",
                   stream->name, (unsigned long long)MAX_OTHER_BYTES);
}

static mlx_status_t begin_member(mlx_bundle_stream_t *stream, const mlx_tar_member_t *member) {
  const bool is_manifest = !member->folder && !strcmp(member->name, MLX_BUNDLE_MANIFEST);
  if (++stream->members > MAX_MEMBERS)
    return mlx_error(MLX_INVALID_INPUT, "%s has more than %d members", stream->name, MAX_MEMBERS);
  if (is_manifest && (stream->parsed || member->size > MLX_MAX_MANIFEST))
    return mlx_error(MLX_INVALID_INPUT, "%s: its manifest is too long, or appears twice", stream->name);
  if (!is_manifest)
    MLX_TRY(member->folder || !mlx_is_bundle_file(member->name) ? check_other(stream, member)
                                                                : check_listed(stream, member));
  if (stream->reserve) MLX_TRY(stream->reserve(stream->user, member->size));
  stream->in_manifest = is_manifest;
  stream->data_left = member->size;
  stream->left = member->size + mlx_tar_padding(member->size);
  return NULL;
}

static mlx_status_t end_manifest(mlx_bundle_stream_t *stream) {
  stream->in_manifest = false;
  MLX_TRY(mlx_text_finish(&stream->manifest));
  MLX_TRY(mlx_alloc(1, sizeof *stream->parsed, &stream->parsed));
  return mlx_manifest_read(stream->name, stream->manifest.data ? stream->manifest.data : "",
                           stream->manifest.length, stream->parsed);
}

// ----------------------------------------------------------------------------------------------------------
// Bytes

static mlx_status_t add_data(mlx_bundle_stream_t *stream, const char *bytes, size_t length) {
  const size_t data = length < stream->data_left ? length : (size_t)stream->data_left;
  if (stream->in_manifest) mlx_text_append(&stream->manifest, bytes, data);
  stream->data_left -= data;
  stream->left -= length;
  return stream->in_manifest && !stream->data_left ? end_manifest(stream) : NULL;
}

static mlx_status_t add_zeros(mlx_bundle_stream_t *stream, const char *bytes, size_t length) {
  stream->zeros += length;
  bool all_zero = stream->zeros <= MAX_ZEROS;
  for (size_t i = 0; i < length && all_zero; ++i) all_zero = !bytes[i];
  return all_zero
             ? NULL
             : mlx_error(MLX_INVALID_INPUT, "%s: unexpected data after the end of the archive", stream->name);
}

// Decides about the last collected block: the end, an extension header (collect more), or a member.
static mlx_status_t end_block(mlx_bundle_stream_t *stream) {
  static const char zeros[MLX_TAR_BLOCK];
  const char *block = stream->header.data + stream->header.length - MLX_TAR_BLOCK;
  mlx_tar_member_t member;
  uint64_t more;
  bool found;
  if (!stream->members && stream->header.length == MLX_TAR_BLOCK && memcmp(block + 257, "ustar", 5))
    return mlx_error(MLX_INVALID_INPUT, "%s is not a bundle", stream->name);
  if (!memcmp(block, zeros, sizeof zeros)) {
    stream->ended = stream->header.length == MLX_TAR_BLOCK;
    return stream->ended ? NULL
                         : mlx_error(MLX_INVALID_INPUT, "%s: an extension header is not followed by a member",
                                     stream->name);
  }
  if (mlx_tar_is_extension((const uint8_t *)block, &more)) {
    if (more > MAX_HEADERS - stream->wanted)
      return mlx_error(MLX_INVALID_INPUT, "%s: a header is too long", stream->name);
    stream->wanted += (size_t)more + mlx_tar_padding(more) + MLX_TAR_BLOCK;
    return NULL;
  }
  mlx_tar_t tar = {.name = stream->name,
                   .bytes = (const uint8_t *)stream->header.data,
                   .fd = -1,
                   .size = INT64_MAX};  // the data is not here yet; only the collected headers are read
  MLX_TRY(mlx_tar_next_raw(&tar, &member, &found));
  stream->header.length = 0;
  stream->wanted = MLX_TAR_BLOCK;
  return found ? begin_member(stream, &member) : NULL;
}

static mlx_status_t add_header(mlx_bundle_stream_t *stream, const char *bytes, size_t length) {
  mlx_text_append(&stream->header, bytes, length);
  if (stream->header.failed) return mlx_text_finish(&stream->header);
  return stream->header.length < stream->wanted ? NULL : end_block(stream);
}

mlx_status_t mlx_bundle_stream_add(mlx_bundle_stream_t *stream, const char *bytes, size_t length) {
  while (length) {
    uint64_t step = stream->ended ? length : stream->left;
    if (!step) step = stream->wanted - stream->header.length;
    if (step > length) step = length;
    MLX_TRY(stream->ended  ? add_zeros(stream, bytes, (size_t)step)
            : stream->left ? add_data(stream, bytes, (size_t)step)
                           : add_header(stream, bytes, (size_t)step));
    bytes += step;
    length -= (size_t)step;
  }
  return NULL;
}
