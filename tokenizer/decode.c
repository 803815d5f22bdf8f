// Ids to text, for a whole list of ids or as a stream.
//
// A stream outputs each character as soon as it is complete. This gives the same text as decoding the whole
// list, with one exception. If a run of byte tokens (<0xE4><0xBD><0xA0>) is not UTF-8, Hugging Face replaces
// every byte of the run by U+FFFD, including characters before the bad byte. A stream has already output
// those; only mlx_tokenizer_decode sees the whole run.
#include "tokenizer/decode.h"

#include <string.h>

#include "base/encoding.h"
#include "base/memory.h"
#include "tokenizer/components.h"
#include "unicode/utf8.h"

static const char replacement[] = "\xef\xbf\xbd";  // U+FFFD

// Returns NULL for an id that decodes to no text.
static const mlx_token_t *find_token(const mlx_tokenizer_t *tokenizer, int32_t id, bool skip_special) {
  const mlx_vocab_t *vocab = &tokenizer->model.vocab;
  if (!mlx_vocab_has(vocab, id, MLX_TOKEN_IS_USED)) return NULL;
  return skip_special && mlx_vocab_has(vocab, id, MLX_TOKEN_IS_SKIPPED) ? NULL : &vocab->tokens[id];
}

static const char *bytes_of(const mlx_tokenizer_t *tokenizer, const mlx_token_t *token) {
  return tokenizer->model.vocab.arena + token->bytes;
}

// ----------------------------------------------------------------------------------------------------------
// Bytes to UTF-8

// Adds one byte and outputs the character that it completes. Each maximal prefix of an invalid character
// becomes one U+FFFD, as with Python's errors='replace' and Rust's from_utf8_lossy.
static void push_byte(mlx_detokenizer_t *detokenizer, char byte, mlx_text_t *out) {
  detokenizer->tail[detokenizer->tail_length++] = byte;
  int length = mlx_utf8_length(detokenizer->tail, detokenizer->tail_length);
  if (length < 0) return;
  if (length > 0) {
    mlx_text_append(out, detokenizer->tail, (size_t)length);
    detokenizer->tail_length = 0;
    return;
  }
  bool had_prefix = detokenizer->tail_length > 1;
  mlx_text_append(out, replacement, 3);
  detokenizer->tail_length = 0;
  // The byte does not continue the incomplete character. It may start a new one.
  if (had_prefix) push_byte(detokenizer, byte, out);
}

static void push_bytes(mlx_detokenizer_t *detokenizer, const char *bytes, size_t length, mlx_text_t *out) {
  for (size_t i = 0; i < length;) {
    size_t run = i;
    while (!detokenizer->tail_length && run < length && (uint8_t)bytes[run] < 0x80) ++run;
    if (run > i) {
      mlx_text_append(out, bytes + i, run - i);
      i = run;
    } else {
      push_byte(detokenizer, bytes[i++], out);
    }
  }
}

void mlx_utf8_repair(const char *bytes, size_t length, mlx_text_t *out) {
  mlx_detokenizer_t detokenizer = {0};
  push_bytes(&detokenizer, bytes, length, out);
  if (detokenizer.tail_length) mlx_text_append(out, replacement, 3);
}

// ----------------------------------------------------------------------------------------------------------
// Text tokens and byte-fallback tokens

// Outputs |text|. The decoder's Strip first removes characters from the start of the whole output.
static void emit(const mlx_decoder_t *decoder, mlx_detokenizer_t *detokenizer, const char *text,
                 size_t length, mlx_text_t *out) {
  while (length && detokenizer->stripped < decoder->strip_count) {
    size_t size;
    if (mlx_character_at(text, &size) != decoder->strip) {
      detokenizer->stripped = decoder->strip_count;
      break;
    }
    ++detokenizer->stripped;
    text += size;
    length -= size;
  }
  mlx_text_append(out, text, length);
}

// The byte of a token such as <0x0A>, or -1. "+A" counts as a number too, because Rust's parser accepts it.
static int parse_byte_token(const char *text, size_t length) {
  if (length != 6 || memcmp(text, "<0x", 3) || text[5] != '>') return -1;
  int high = text[3] == '+' ? 0 : mlx_hex_digit(text[3]), low = mlx_hex_digit(text[4]);
  return high < 0 || low < 0 ? -1 : high << 4 | low;
}

// Adds one byte of a run of byte tokens. In a stream, an invalid byte replaces only its own character.
static void push_fallback(const mlx_decoder_t *decoder, mlx_detokenizer_t *detokenizer, char byte,
                          mlx_text_t *out) {
  detokenizer->tail[detokenizer->tail_length++] = byte;
  int length = mlx_utf8_length(detokenizer->tail, detokenizer->tail_length);
  if (length > 0) {
    emit(decoder, detokenizer, detokenizer->tail, (size_t)length, out);
    detokenizer->tail_length = 0;
  } else if (!length) {
    for (; detokenizer->tail_length; --detokenizer->tail_length)
      emit(decoder, detokenizer, replacement, 3, out);
  }
}

static void flush_fallback(const mlx_decoder_t *decoder, mlx_detokenizer_t *detokenizer, mlx_text_t *out) {
  for (; detokenizer->tail_length; --detokenizer->tail_length)
    emit(decoder, detokenizer, replacement, 3, out);
}

// Appends |text| with every |pattern| replaced by |content|.
static void replace_all(const char *text, size_t length, const char *pattern, size_t pattern_length,
                        const char *content, size_t content_length, mlx_text_t *out) {
  size_t done = 0;
  for (const char *found; (found = memmem(text + done, length - done, pattern, pattern_length));) {
    mlx_text_append(out, text + done, (size_t)(found - text) - done);
    mlx_text_append(out, content, content_length);
    done = (size_t)(found - text) + pattern_length;
  }
  mlx_text_append(out, text + done, length - done);
}

// The same, in place.
static void replace_in(mlx_text_t *inout, const char *pattern, size_t pattern_length, const char *content,
                       size_t content_length) {
  mlx_text_t next = {0};
  if (inout->failed || !inout->data || !memmem(inout->data, inout->length, pattern, pattern_length)) return;
  replace_all(inout->data, inout->length, pattern, pattern_length, content, content_length, &next);
  mlx_text_clear(inout);
  *inout = next;
}

// WordPiece's cleanup, with its replacements in Hugging Face's order.
static void clean_up(mlx_text_t *inout) {
  static const char *const pairs[][2] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; ++i) {
    replace_in(inout, pairs[i][0], strlen(pairs[i][0]), pairs[i][1], strlen(pairs[i][1]));
  }
}

// Appends the text of one token, before the decoder steps that need neighbouring tokens.
static void spell_token(const mlx_tokenizer_t *tokenizer, const mlx_token_t *token, bool first,
                        mlx_text_t *out) {
  const mlx_decoder_t *decoder = &tokenizer->decoder;
  const char *text = bytes_of(tokenizer, token);
  size_t length = token->byte_length;
  if (decoder->wordpiece && !first) {
    if (length >= decoder->prefix_length && !memcmp(text, decoder->prefix, decoder->prefix_length)) {
      text += decoder->prefix_length;
      length -= decoder->prefix_length;
    } else {
      mlx_text_append(out, " ", 1);
    }
  }
  if (decoder->metaspace) {
    char space[4];
    size_t space_length = mlx_character_write(decoder->metaspace, space);
    replace_all(text, length, space, space_length, " ", first && decoder->drops_first_space ? 0 : 1, out);
  } else {
    mlx_text_append(out, text, length);
  }
  for (size_t i = 0; i < decoder->replacement_count; ++i) {
    const mlx_replacement_t *replace = &decoder->replacements[i];
    replace_in(out, replace->pattern, replace->pattern_length, replace->content, replace->content_length);
  }
  if (decoder->cleanup) clean_up(out);
}

// ----------------------------------------------------------------------------------------------------------
// The public functions

void mlx_detokenizer_push(const mlx_tokenizer_t *tokenizer, mlx_detokenizer_t *detokenizer, int32_t id,
                          bool skip_special, mlx_text_t *out) {
  const mlx_token_t *token = find_token(tokenizer, id, skip_special);
  const mlx_decoder_t *decoder = &tokenizer->decoder;
  if (!token) return;
  if (decoder->byte_level) {
    push_bytes(detokenizer, bytes_of(tokenizer, token), token->byte_length, out);
    return;
  }
  mlx_text_t spelled = {0};
  spell_token(tokenizer, token, !detokenizer->started, &spelled);
  detokenizer->started = true;
  int byte = decoder->byte_fallback && spelled.data ? parse_byte_token(spelled.data, spelled.length) : -1;
  if (byte >= 0) {
    push_fallback(decoder, detokenizer, (char)byte, out);
  } else {
    flush_fallback(decoder, detokenizer, out);
    emit(decoder, detokenizer, spelled.data, spelled.length, out);
  }
  out->failed |= spelled.failed;
  mlx_text_clear(&spelled);
}

void mlx_detokenizer_flush(const mlx_tokenizer_t *tokenizer, mlx_detokenizer_t *detokenizer,
                           mlx_text_t *out) {
  if (!tokenizer->decoder.byte_level) {
    flush_fallback(&tokenizer->decoder, detokenizer, out);
  } else if (detokenizer->tail_length) {
    mlx_text_append(out, replacement, 3);
  }
  *detokenizer = (mlx_detokenizer_t){0};
}

void mlx_tokenizer_piece(const mlx_tokenizer_t *tokenizer, int32_t id, bool first, bool skip_special,
                         mlx_text_t *out) {
  const mlx_token_t *token = find_token(tokenizer, id, skip_special);
  const mlx_decoder_t *decoder = &tokenizer->decoder;
  if (!token) return;
  if (decoder->byte_level) {
    mlx_text_append(out, bytes_of(tokenizer, token), token->byte_length);
    return;
  }
  mlx_text_t spelled = {0};
  mlx_detokenizer_t state = {.stripped = first ? 0 : decoder->strip_count};
  spell_token(tokenizer, token, first, &spelled);
  const int byte =
      decoder->byte_fallback && spelled.data ? parse_byte_token(spelled.data, spelled.length) : -1;
  if (byte >= 0) {
    mlx_text_append(out, &(const char){(char)byte}, 1);
  } else if (spelled.data) {
    emit(decoder, &state, spelled.data, spelled.length, out);
  }
  out->failed |= spelled.failed;
  mlx_text_clear(&spelled);
}

bool mlx_tokenizer_first_differs(const mlx_tokenizer_t *tokenizer) {
  const mlx_decoder_t *decoder = &tokenizer->decoder;
  return !decoder->byte_level && (decoder->strip_count || decoder->drops_first_space || decoder->wordpiece);
}

// The byte of the byte token |id|; -1 for another token, -2 for a token without text.
static int fallback_byte(const mlx_tokenizer_t *tokenizer, int32_t id, bool skip_special) {
  const mlx_token_t *token = find_token(tokenizer, id, skip_special);
  if (!token) return -2;
  // The decoder's replacements run first: in principle they can create or destroy the form <0xNN>.
  mlx_text_t spelled = {0};
  spell_token(tokenizer, token, false, &spelled);
  int byte = spelled.data ? parse_byte_token(spelled.data, spelled.length) : -1;
  mlx_text_clear(&spelled);
  return byte;
}

// Returns the end of the run of byte tokens at |at|, or |at| if there is none. *out_bytes is its length in
// bytes; *out_bad is true if those are not UTF-8.
static size_t scan_run(const mlx_tokenizer_t *tokenizer, const int32_t *ids, size_t count, size_t at,
                       bool skip_special, size_t *out_bytes, bool *out_bad) {
  mlx_detokenizer_t checker = {0};
  *out_bytes = 0;
  *out_bad = false;
  for (; at < count; ++at) {
    int byte = fallback_byte(tokenizer, ids[at], skip_special);
    if (byte == -1) break;
    if (byte < 0) continue;
    ++*out_bytes;
    checker.tail[checker.tail_length++] = (char)byte;
    int length = mlx_utf8_length(checker.tail, checker.tail_length);
    if (!length) *out_bad = true;
    if (length >= 0) checker.tail_length = 0;
  }
  if (checker.tail_length) *out_bad = true;
  return at;
}

mlx_status_t mlx_tokenizer_decode(const mlx_tokenizer_t *tokenizer, const int32_t *ids, size_t count,
                                  bool skip_special, char **out_text, size_t *out_length) {
  mlx_text_t text = {0};
  mlx_detokenizer_t detokenizer = {0};
  const mlx_decoder_t *decoder = &tokenizer->decoder;
  *out_text = NULL;
  for (size_t i = 0, end; i < count; i = end) {
    size_t bytes = 0;
    bool bad = false;
    end = decoder->byte_fallback ? scan_run(tokenizer, ids, count, i, skip_special, &bytes, &bad) : i;
    if (end == i) end = i + 1;
    for (size_t j = i; j < end && !bad; ++j)
      mlx_detokenizer_push(tokenizer, &detokenizer, ids[j], skip_special, &text);
    for (size_t j = 0; j < bytes && bad; ++j) emit(decoder, &detokenizer, replacement, 3, &text);
    detokenizer.started |= bad;
  }
  mlx_detokenizer_flush(tokenizer, &detokenizer, &text);
  mlx_status_t status = mlx_text_take(&text, out_text, out_length);
  if (status) mlx_text_clear(&text);
  return status;
}
