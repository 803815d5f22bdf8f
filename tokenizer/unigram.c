// Unigram: finds the segmentation of a piece with the highest sum of scores, by a Viterbi search.
//
// Sums are f64, added in the same order as Hugging Face's, and the first of two equal sums wins. A long run
// of one character has many segmentations with nearly equal sums; both rules are needed to choose the same
// one as Hugging Face.
#include "tokenizer/unigram.h"

#include "base/memory.h"
#include "unicode/utf8.h"

// The best segmentation of the text before one byte offset.
struct mlx_lattice_node {
  double score;
  int32_t start;  // where its last token begins; -1 if no segmentation ends here
  int32_t id;     // its last token
};

static void relax(struct mlx_lattice_node *node, double score, size_t start, int32_t id) {
  if (node->start >= 0 && !(score > node->score)) return;
  *node = (struct mlx_lattice_node){.score = score, .start = (int32_t)start, .id = id};
}

static mlx_status_t find_path(const mlx_tokenizer_model_t *model, struct mlx_lattice_node *nodes,
                              const char *text, size_t length, mlx_budget_t *budget) {
  for (size_t i = 0; i <= length; ++i) nodes[i] = (struct mlx_lattice_node){.start = -1};
  for (size_t at = 0, character; at < length; at += character) {
    uint32_t node = 0;
    bool has_single = false;  // a token equals this one character
    double so_far = nodes[at].score;
    mlx_character_at(text + at, &character);
    size_t end = at;
    for (; end < length && mlx_trie_step(&model->trie, &node, text[end]); ++end) {
      int32_t id = model->trie.ends[node];
      if (id < 0) continue;
      relax(&nodes[end + 1], model->scores[id] + so_far, at, id);
      has_single |= end + 1 - at == character;
    }
    MLX_TRY(mlx_budget_step(budget, end - at + 1));
    if (has_single) continue;
    if (model->unk_id < 0) {
      return mlx_error(
          MLX_UNSUPPORTED,
          "the text has the character '%.*s', but the tokenizer has neither a token for it nor an unk_id",
          (int)character, text + at);
    }
    relax(&nodes[at + character], model->unk_score + so_far, at, model->unk_id);
  }
  return NULL;
}

// Appends a run of unknown characters: as one token if its text happens to be one, as bytes, or as unk_id.
static mlx_status_t append_unknown(const mlx_tokenizer_model_t *model, const char *text, size_t length,
                                   mlx_ids_t *ids) {
  int32_t id = mlx_vocab_find_in_model(&model->vocab, text, length);
  bool done = false;
  if (id < 0 && model->byte_fallback) MLX_TRY(mlx_ids_append_bytes(ids, &model->vocab, text, length, &done));
  return done ? NULL : mlx_ids_append(ids, id >= 0 ? id : model->unk_id);
}

mlx_status_t mlx_unigram_encode(const mlx_tokenizer_model_t *model, mlx_lattice_t *lattice, const char *text,
                                size_t length, mlx_budget_t *budget, mlx_ids_t *ids) {
  MLX_TRY(mlx_reserve(length + 1, sizeof *lattice->nodes, &lattice->capacity, &lattice->nodes));
  struct mlx_lattice_node *nodes = lattice->nodes;
  MLX_TRY(find_path(model, nodes, text, length, budget));
  // The path is linked from its end to its start. Reverse it: then each node's |start| is the next node.
  int32_t next = -1;
  for (int32_t at = (int32_t)length, before; at > 0; at = before) {
    before = nodes[at].start;
    nodes[at].start = next;
    next = at;
  }
  for (size_t begin = 0; next >= 0;) {
    int32_t at = next;
    bool unknown = nodes[at].id == model->unk_id;
    next = nodes[at].start;
    if (unknown && next >= 0 && nodes[next].id == model->unk_id) continue;
    MLX_TRY(unknown ? append_unknown(model, text + begin, (size_t)at - begin, ids)
                    : mlx_ids_append(ids, nodes[at].id));
    begin = (size_t)at;
  }
  return NULL;
}

void mlx_lattice_free(mlx_lattice_t *lattice) {
  mlx_free(lattice->nodes);
  *lattice = (mlx_lattice_t){0};
}
