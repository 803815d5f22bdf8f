// Output parser, for the files that implement it: the state that they share, and how they emit events.
//
// The parser keeps the text that it has not decided on in |buffer|. parser.c finds reasoning and the
// beginnings of tool calls. The files object.c, tagged.c, python.c, gemma.c and harmony.c read the calls.
#ifndef MLXCEL_OUTPUT_PARSER_STATE_H_
#define MLXCEL_OUTPUT_PARSER_STATE_H_

#include "base/json.h"
#include "output/json_scan.h"
#include "output/parser.h"
#include "output/syntax.h"

#define MLX_MAX_TOOL_NAME 128    // bytes
#define MLX_MAX_CALL_HEADER 512  // bytes of a call before its arguments

typedef enum mlx_parser_state {
  MLX_PARSER_START,      // before the first character: reasoning may begin here
  MLX_PARSER_REASONING,  // inside a reasoning block
  MLX_PARSER_TEXT,
  MLX_PARSER_CALL,     // the buffer begins with a tool call
  MLX_PARSER_AFTER,    // after a tool call
  MLX_PARSER_HEADER,   // gpt-oss: the header of a message
  MLX_PARSER_DISCARD,  // after the only call that is allowed
} mlx_parser_state_t;

// What reading a call needs next.
typedef enum mlx_call_progress {
  MLX_CALL_MORE,  // more text
  MLX_CALL_DONE,  // nothing: the call was emitted and ends at |at|
  MLX_CALL_TEXT,  // nothing: it is no call
  MLX_CALL_CUT    // nothing: it is malformed from |at| on, but its beginning was emitted
} mlx_call_progress_t;

// The call that is being read. Positions are offsets into the unconsumed buffer.
typedef struct mlx_open_call {
  size_t opened;  // bytes of white space and the first tag: what is text if it is no call
  size_t at;      // the text before it is read
  int phase;      // of the reader of this syntax; 0 at first
  bool bare;      // without a tag
  bool begun;     // TOOL_BEGIN was emitted
  bool python;    // a Python call
  char name[MLX_MAX_TOOL_NAME + 1];
  mlx_text_t arguments;  // JSON
  size_t sent;           // bytes of |arguments| that were emitted
  mlx_json_scan_t scan;
  // OBJECT
  unsigned level;  // depth of the object with the name
  int role;        // of the value that is read
  char key[128];
  size_t key_length, name_length;
  bool has_arguments, arguments_done;
  size_t searched;  // no end tag begins before it
  // TAGGED
  size_t count;      // arguments
  bool is_string;    // the value is written as a JSON string
  bool value_begun;  // a part of the string was written
} mlx_open_call_t;

struct mlx_output_parser {
  const mlx_output_format_t *format;
  size_t choice;
  mlx_on_event_t on_event;
  void *user;
  bool parses_calls, streams, one_call;
  yyjson_doc *tools;  // the tools of the call; NULL: none
  mlx_parser_state_t state;
  mlx_text_t buffer;
  size_t begin;  // bytes of the buffer that are consumed
  char tail[4];  // an incomplete character
  size_t tail_length;
  bool final;     // no more text comes
  bool has_text;  // text was emitted
  bool has_reasoning;
  bool skip_space;  // drop white space before the next text
  bool separate;    // gpt-oss: a new message of the same kind begins
  size_t tool_count;
  bool in_list;    // the calls are items of a list, or bare objects
  bool in_python;  // they are Python calls
  mlx_open_call_t call;
  int channel;        // gpt-oss: what the body of the message is
  mlx_answer_t held;  // tokens whose text is held back
  int64_t reasoning_tokens;
};

// The unconsumed text.
static inline const char *mlx_parser_text(const mlx_output_parser_t *p) {
  return p->buffer.data ? p->buffer.data + p->begin : "";
}
static inline size_t mlx_parser_left(const mlx_output_parser_t *p) { return p->buffer.length - p->begin; }
static inline bool mlx_is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// How |tag| compares with the text at |at|: 1 if it is there, 0 if it is not, -1 if more text may make it.
// NULL is never there.
int mlx_parser_match(const mlx_output_parser_t *p, size_t at, const char *tag);
size_t mlx_parser_skip_space(const mlx_output_parser_t *p, size_t at);
// The first position from |from| on where one of |tags| begins, or may begin: *out_tag is then NULL. Without
// any, the end of the text.
size_t mlx_parser_find(const mlx_output_parser_t *p, size_t from, const char *const *tags, size_t count,
                       const char **out_tag);

// Events. Each consumes nothing from the buffer.
mlx_status_t mlx_parser_emit_text(mlx_output_parser_t *p, mlx_event_kind_t kind, const char *text,
                                  size_t length) MLX_MUST_USE;
// TOOL_BEGIN of call.name, with a new id; once for each call.
mlx_status_t mlx_parser_begin_call(mlx_output_parser_t *p) MLX_MUST_USE;
// The arguments that were not emitted yet, if the call has begun.
mlx_status_t mlx_parser_send_arguments(mlx_output_parser_t *p) MLX_MUST_USE;
// TOOL_BEGIN if there was none, the rest of the arguments, and TOOL_END.
mlx_status_t mlx_parser_end_call(mlx_output_parser_t *p) MLX_MUST_USE;

// Sets call.name. False if it is empty, too long or not a name.
bool mlx_parser_set_name(mlx_output_parser_t *p, const char *name, size_t length);
// The tool that the request declares under this name: its "function" object; NULL: none.
yyjson_val *mlx_parser_find_tool(const mlx_output_parser_t *p, const char *name);

// Readers: read the call as far as the text goes. parser.c acts on the progress.
mlx_status_t mlx_parser_read_object(mlx_output_parser_t *p, mlx_call_progress_t *out) MLX_MUST_USE;
mlx_status_t mlx_parser_read_tagged(mlx_output_parser_t *p, mlx_call_progress_t *out) MLX_MUST_USE;
// Python: 1 if the call is a list of Python calls, 0 if it is not, -1 if more text is needed.
int mlx_parser_is_python(const mlx_output_parser_t *p);
mlx_status_t mlx_parser_read_python(mlx_output_parser_t *p, mlx_call_progress_t *out) MLX_MUST_USE;
mlx_status_t mlx_parser_read_gemma(mlx_output_parser_t *p, mlx_call_progress_t *out) MLX_MUST_USE;
// The header and the body of a gpt-oss message. *out_moved is false if more text is needed.
mlx_status_t mlx_parser_read_header(mlx_output_parser_t *p, bool *out_moved) MLX_MUST_USE;
mlx_status_t mlx_parser_read_body(mlx_output_parser_t *p, bool *out_moved) MLX_MUST_USE;

// Arguments that follow the name as one JSON object: reads from call.at on. DONE leaves TOOL_END to the
// caller.
mlx_status_t mlx_parser_read_arguments(mlx_output_parser_t *p, mlx_call_progress_t *out) MLX_MUST_USE;

#endif  // MLXCEL_OUTPUT_PARSER_STATE_H_
