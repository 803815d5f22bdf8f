// Unigram: the cut of a piece into tokens with the highest sum of scores, found by going over the piece once.
//
// Sums are of f64 in the same order as Hugging Face's, and of two equal sums the first found stays: a long
// run of one character has many cuts of nearly the same sum, and only so is ours the same one.
#include "tokenizer/internal.h"

// The best way to come to a place.
struct mlx_lattice_node {
  double score;
  int32_t start;  // where its last token begins; -1: not reached
  int32_t id;
};

static void offer(struct mlx_lattice_node *node, double score, size_t start, int32_t id) {
  if (node->start >= 0 && !(score > node->score)) return;
  *node = (struct mlx_lattice_node){.score = score, .start = (int32_t)start, .id = id};
}

static mlx_status_t find_path(const mlx_tokenizer_t *tokenizer, struct mlx_lattice_node *nodes,
                              const char *text, size_t length) {
  for (size_t i = 0; i <= length; ++i) nodes[i] = (struct mlx_lattice_node){.start = -1};
  for (size_t at = 0, character; at < length; at += character) {
    uint32_t place = 0;
    bool single = false;
    double so_far = nodes[at].score;
    mlx_character_at(text + at, &character);
    for (size_t end = at; end < length && mlx_trie_step(&tokenizer->trie, &place, text[end]); ++end) {
      int32_t id = tokenizer->trie.ends[place];
      if (id < 0) continue;
      offer(&nodes[end + 1], tokenizer->scores[id] + so_far, at, id);
      single |= end + 1 - at == character;
    }
    if (single) continue;
    if (tokenizer->unk_id < 0) {
      return mlx_error(MLX_UNSUPPORTED,
                       "the text has the character '%.*s', which the tokenizer lacks, and it has no unk_id",
                       (int)character, text + at);
    }
    offer(&nodes[at + character], tokenizer->unk_score + so_far, at, tokenizer->unk_id);
  }
  return NULL;
}

// A run of unknown characters is one piece: a token by chance, its bytes, or the unknown token.
static mlx_status_t append_unknown(const mlx_tokenizer_t *tokenizer, const char *text, size_t length,
                                   mlx_ids_t *ids) {
  int32_t id = mlx_model_find(tokenizer, text, length);
  bool done = false;
  if (id < 0 && tokenizer->byte_fallback) MLX_TRY(mlx_append_bytes(tokenizer, text, length, ids, &done));
  return done ? NULL : mlx_ids_append(ids, id >= 0 ? id : tokenizer->unk_id);
}

mlx_status_t mlx_lattice_run(const mlx_tokenizer_t *tokenizer, mlx_lattice_t *lattice, const char *text,
                             size_t length, mlx_ids_t *ids) {
  MLX_TRY(mlx_reserve(length + 1, sizeof *lattice->nodes, &lattice->capacity, &lattice->nodes));
  struct mlx_lattice_node *nodes = lattice->nodes;
  MLX_TRY(find_path(tokenizer, nodes, text, length));
  // The path is linked from its end to its start. Turned round, each node's |start| is the place of the next.
  int32_t next = -1;
  for (int32_t at = (int32_t)length, before; at > 0; at = before) {
    before = nodes[at].start;
    nodes[at].start = next;
    next = at;
  }
  for (size_t begin = 0; next >= 0;) {
    int32_t at = next;
    bool unknown = nodes[at].id == tokenizer->unk_id;
    next = nodes[at].start;
    if (unknown && next >= 0 && nodes[next].id == tokenizer->unk_id) continue;
    MLX_TRY(unknown ? append_unknown(tokenizer, text + begin, (size_t)at - begin, ids)
                    : mlx_ids_append(ids, nodes[at].id));
    begin = (size_t)at;
  }
  return NULL;
}

void mlx_lattice_end(mlx_lattice_t *lattice) {
  mlx_free(lattice->nodes);
  *lattice = (mlx_lattice_t){0};
}
