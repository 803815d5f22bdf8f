// JSON scan: checks a JSON value byte by byte as it arrives, and knows where it ends.
//
// The value must be an object or a list. A control character inside a string is accepted, because models
// write line ends there; the reader must escape it (mlx_json_scan_t.in_string).
#ifndef MLXCEL_OUTPUT_JSON_SCAN_H_
#define MLXCEL_OUTPUT_JSON_SCAN_H_

#include <stdbool.h>
#include <stdint.h>

#define MLX_JSON_SCAN_DEPTH 64

typedef enum mlx_scan_result {
  MLX_SCAN_MORE,  // the byte belongs to the value, which goes on
  MLX_SCAN_DONE,  // the byte ends the value
  MLX_SCAN_BAD    // no JSON value continues with the byte; the scan has not moved
} mlx_scan_result_t;

typedef enum mlx_scan_expect {
  MLX_EXPECT_START,  // the value itself
  MLX_EXPECT_VALUE,
  MLX_EXPECT_VALUE_OR_END,  // after '['
  MLX_EXPECT_KEY,
  MLX_EXPECT_KEY_OR_END,  // after '{'
  MLX_EXPECT_COLON,
  MLX_EXPECT_COMMA,  // after a value
  MLX_EXPECT_STRING,
  MLX_EXPECT_ESCAPE,
  MLX_EXPECT_HEX,
  MLX_EXPECT_NUMBER,
  MLX_EXPECT_WORD
} mlx_scan_expect_t;

typedef struct mlx_json_scan {
  mlx_scan_expect_t expect;
  unsigned depth;    // objects and lists that are open
  uint64_t objects;  // bit d - 1: the value at depth d is an object
  bool in_string;    // inside a string, also a key
  bool is_key;       // the string is a key
  unsigned left;     // HEX: digits left
  const char *word;  // WORD: the rest of true, false or null
  uint8_t number;    // NUMBER: the part of a number that was read last
} mlx_json_scan_t;   // zero-initialize to start

mlx_scan_result_t mlx_json_scan_byte(mlx_json_scan_t *scan, char byte);

#endif  // MLXCEL_OUTPUT_JSON_SCAN_H_
