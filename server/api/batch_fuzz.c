// Fuzzing of batch lines: a line of an input file, of an output file, and of a text file.
#include <string.h>

#include "server/api/api_fuzz.h"
#include "server/api/batch.h"

static void fuzz_request(const char *line, size_t length, bool is_text, bool completes) {
  const mlx_batch_defaults_t defaults = {
      .system = "s", .completes = completes, .max_tokens = 4, .seed = UINT32_MAX};
  const mlx_batch_id_t id =
      mlx_batch_id(7, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
  mlx_batch_request_t request;
  mlx_text_t out = {0};
  mlx_batch_id_t found;
  uint64_t index;
  int code;
  mlx_status_t status = mlx_batch_request_parse(line, length, is_text, 7, &defaults, &request);
  if (status) {
    fuzz_check_refusal(status);
    mlx_status_free(status);
    return;
  }
  fuzz_check_json(request.body.data, request.body.length);
  // A body is some JSON, as a response is.
  FUZZ_CHECK(!mlx_batch_result_put(&id, &request, 200, request.body.data, request.body.length, &out));
  FUZZ_CHECK(memchr(out.data, '\n', out.length) == out.data + out.length - 1);
  FUZZ_CHECK(mlx_batch_result_read(out.data, out.length, &index, &found, &code));
  FUZZ_CHECK(index == 7 && code == 200 && !memcmp(&found, &id, sizeof id));
  mlx_text_clear(&out);
  mlx_batch_request_clear(&request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *line = (const char *)data;
  mlx_batch_id_t id;
  uint64_t index;
  int status;
  if (!size || memchr(line, '\n', size)) return 0;
  fuzz_request(line, size, false, false);
  fuzz_request(line, size, false, true);
  fuzz_request(line, size, true, false);
  (void)mlx_batch_result_read(line, size, &index, &id, &status);
  return 0;
}
