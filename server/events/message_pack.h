// MessagePack: appends values to a text (msgpack.org).
#ifndef MLXCEL_SERVER_EVENTS_MESSAGE_PACK_H_
#define MLXCEL_SERVER_EVENTS_MESSAGE_PACK_H_

#include <stdint.h>

#include "base/text.h"

void mlx_message_pack_array(mlx_text_t *out, size_t count);  // its elements follow; at most 2^32 - 1
void mlx_message_pack_nil(mlx_text_t *out);
void mlx_message_pack_text(mlx_text_t *out, const char *text);  // at most 255 bytes
void mlx_message_pack_double(mlx_text_t *out, double value);
void mlx_message_pack_uint(mlx_text_t *out, uint64_t value);  // the shortest form
// Always with 8 bytes: some readers keep the type of the form, and expect one type of hashes.
void mlx_message_pack_uint64(mlx_text_t *out, uint64_t value);

#endif  // MLXCEL_SERVER_EVENTS_MESSAGE_PACK_H_
