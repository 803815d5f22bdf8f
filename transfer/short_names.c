// The list of short names and its lookup. See short_names.h.
#include "transfer/short_names.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"

#define MAX_NAMES 64

// Families in alphabetical order, sizes in ascending order. The architecture of every model is in models/.
// clang-format off
static const mlx_short_name_t names[] = {
    {"deepseek-r1:1.5b", false, "hf:bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF:Q4_K_M", "1.1 GB", "MIT"},
    {"deepseek-r1:7b", false, "hf:bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF:Q4_K_M", "4.7 GB", "MIT"},
    {"deepseek-r1:8b", true, "hf:bartowski/DeepSeek-R1-Distill-Llama-8B-GGUF:Q4_K_M", "4.9 GB", "MIT, Llama 3.1"},
    {"falcon-h1:1.5b", true, "hf:tiiuae/Falcon-H1-1.5B-Instruct-GGUF:Q4_K_M", "0.9 GB", "Falcon LLM"},
    {"falcon-h1:7b", false, "hf:tiiuae/Falcon-H1-7B-Instruct-GGUF:Q4_K_M", "4.6 GB", "Falcon LLM"},
    {"gemma2:2b", false, "hf:bartowski/gemma-2-2b-it-GGUF:Q4_K_M", "1.7 GB", "Gemma"},
    {"gemma2:9b", true, "hf:bartowski/gemma-2-9b-it-GGUF:Q4_K_M", "5.8 GB", "Gemma"},
    {"gemma3:270m", false, "hf:unsloth/gemma-3-270m-it-GGUF:Q4_K_M", "0.3 GB", "Gemma"},
    {"gemma3:1b", false, "hf:ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", "0.8 GB", "Gemma"},
    {"gemma3:4b", true, "hf:ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", "2.5 GB", "Gemma; text only"},
    {"gemma3:12b", false, "hf:ggml-org/gemma-3-12b-it-GGUF:Q4_K_M", "7.3 GB", "Gemma; text only"},
    {"gemma3n:e2b", false, "hf:unsloth/gemma-3n-E2B-it-GGUF:Q4_K_M", "3.0 GB", "Gemma; text only"},
    {"gemma3n:e4b", true, "hf:unsloth/gemma-3n-E4B-it-GGUF:Q4_K_M", "4.5 GB", "Gemma; text only"},
    {"gpt-oss:20b", true, "hf:ggml-org/gpt-oss-20b-GGUF", "12.1 GB", "Apache 2.0"},
    {"granite3.3:2b", false, "hf:ibm-granite/granite-3.3-2b-instruct-GGUF:Q4_K_M", "1.5 GB", "Apache 2.0"},
    {"granite3.3:8b", true, "hf:ibm-granite/granite-3.3-8b-instruct-GGUF:Q4_K_M", "4.9 GB", "Apache 2.0"},
    {"granite4:350m", false, "hf:ibm-granite/granite-4.0-h-350m-GGUF:Q4_K_M", "0.2 GB", "Apache 2.0"},
    {"granite4:1b", false, "hf:ibm-granite/granite-4.0-h-1b-GGUF:Q4_K_M", "0.9 GB", "Apache 2.0"},
    {"granite4:micro", false, "hf:ibm-granite/granite-4.0-h-micro-GGUF:Q4_K_M", "1.9 GB", "Apache 2.0"},
    {"granite4:tiny", true, "hf:ibm-granite/granite-4.0-h-tiny-GGUF:Q4_K_M", "4.2 GB", "Apache 2.0"},
    {"granite4:small", false, "hf:ibm-granite/granite-4.0-h-small-GGUF:Q4_K_M", "19.5 GB", "Apache 2.0"},
    {"lfm2:350m", false, "hf:LiquidAI/LFM2-350M-GGUF:Q4_K_M", "0.2 GB", "LFM Open 1.0"},
    {"lfm2:700m", false, "hf:LiquidAI/LFM2-700M-GGUF:Q4_K_M", "0.5 GB", "LFM Open 1.0"},
    {"lfm2:1.2b", true, "hf:LiquidAI/LFM2-1.2B-GGUF:Q4_K_M", "0.7 GB", "LFM Open 1.0"},
    {"lfm2:8b", false, "hf:LiquidAI/LFM2-8B-A1B-GGUF:Q4_K_M", "5.0 GB", "LFM Open 1.0"},
    {"llama3.1:8b", true, "hf:bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M", "4.9 GB", "Llama 3.1"},
    {"llama3.2:1b", false, "hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M", "0.8 GB", "Llama 3.2"},
    {"llama3.2:3b", true, "hf:bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M", "2.0 GB", "Llama 3.2"},
    {"mistral:7b", true, "hf:bartowski/Mistral-7B-Instruct-v0.3-GGUF:Q4_K_M", "4.4 GB", "Apache 2.0"},
    {"nemotron3:30b", true, "hf:bartowski/nvidia_Nemotron-3-Nano-30B-A3B-GGUF:Q4_K_M", "24.6 GB", "NVIDIA Open Model"},
    {"olmo2:1b", false, "hf:allenai/OLMo-2-0425-1B-Instruct-GGUF:Q4_K_M", "0.9 GB", "Apache 2.0"},
    {"olmo2:7b", true, "hf:allenai/OLMo-2-1124-7B-Instruct-GGUF:Q4_K_M", "4.5 GB", "Apache 2.0"},
    {"phi3.5:3.8b", true, "hf:bartowski/Phi-3.5-mini-instruct-GGUF:Q4_K_M", "2.4 GB", "MIT"},
    {"phi4:14b", true, "hf:bartowski/phi-4-GGUF:Q4_K_M", "9.1 GB", "MIT"},
    {"qwen2.5:0.5b", false, "hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M", "0.5 GB", "Apache 2.0"},
    {"qwen2.5:1.5b", false, "hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M", "1.1 GB", "Apache 2.0"},
    {"qwen2.5:7b", true, "hf:Qwen/Qwen2.5-7B-Instruct-GGUF:Q4_K_M", "4.7 GB", "Apache 2.0"},
    {"qwen2.5-coder:0.5b", false, "hf:Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q4_K_M", "0.5 GB", "Apache 2.0"},
    {"qwen2.5-coder:1.5b", false, "hf:Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M", "1.1 GB", "Apache 2.0"},
    {"qwen2.5-coder:7b", true, "hf:Qwen/Qwen2.5-Coder-7B-Instruct-GGUF:Q4_K_M", "4.7 GB", "Apache 2.0"},
    {"qwen3:0.6b", false, "hf:unsloth/Qwen3-0.6B-GGUF:Q4_K_M", "0.4 GB", "Apache 2.0"},
    {"qwen3:1.7b", false, "hf:unsloth/Qwen3-1.7B-GGUF:Q4_K_M", "1.1 GB", "Apache 2.0"},
    {"qwen3:4b", false, "hf:Qwen/Qwen3-4B-GGUF:Q4_K_M", "2.5 GB", "Apache 2.0"},
    {"qwen3:8b", true, "hf:Qwen/Qwen3-8B-GGUF:Q4_K_M", "5.0 GB", "Apache 2.0"},
    {"qwen3:14b", false, "hf:Qwen/Qwen3-14B-GGUF:Q4_K_M", "9.0 GB", "Apache 2.0"},
    {"qwen3:30b", false, "hf:Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M", "18.6 GB", "Apache 2.0"},
    {"qwen3.5:0.8b", false, "hf:unsloth/Qwen3.5-0.8B-GGUF:Q4_K_M", "0.5 GB", "Apache 2.0; text only"},
    {"qwen3.5:2b", false, "hf:unsloth/Qwen3.5-2B-GGUF:Q4_K_M", "1.3 GB", "Apache 2.0; text only"},
    {"qwen3.5:4b", false, "hf:unsloth/Qwen3.5-4B-GGUF:Q4_K_M", "2.7 GB", "Apache 2.0; text only"},
    {"qwen3.5:9b", true, "hf:unsloth/Qwen3.5-9B-GGUF:Q4_K_M", "5.7 GB", "Apache 2.0; text only"},
    {"qwen3.5:27b", false, "hf:unsloth/Qwen3.5-27B-GGUF:Q4_K_M", "16.7 GB", "Apache 2.0; text only"},
    {"qwen3.5:35b", false, "hf:unsloth/Qwen3.5-35B-A3B-GGUF:Q4_K_M", "22.0 GB", "Apache 2.0; text only"},
    {"smollm2:135m", false, "hf:bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M", "0.1 GB", "Apache 2.0"},
    {"smollm2:360m", false, "hf:bartowski/SmolLM2-360M-Instruct-GGUF:Q4_K_M", "0.3 GB", "Apache 2.0"},
    {"smollm2:1.7b", true, "hf:bartowski/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M", "1.1 GB", "Apache 2.0"},
    {"smollm3:3b", true, "hf:ggml-org/SmolLM3-3B-GGUF:Q4_K_M", "1.9 GB", "Apache 2.0"},
    {"tinyllama:1.1b", true, "hf:TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF:Q4_K_M", "0.7 GB", "Apache 2.0"},
};
// clang-format on
#define NAME_COUNT (sizeof names / sizeof *names)
_Static_assert(NAME_COUNT <= MAX_NAMES, "mlx_short_name_nearest has room for MAX_NAMES");

const mlx_short_name_t *mlx_short_name(size_t index) { return index < NAME_COUNT ? &names[index] : NULL; }

const mlx_short_name_t *mlx_short_name_find(const char *name) {
  for (size_t i = 0; i < NAME_COUNT; ++i) {
    const size_t family = strcspn(names[i].name, ":");
    if (!strcasecmp(name, names[i].name)) return &names[i];
    if (names[i].is_default && !strncasecmp(name, names[i].name, family) &&
        (!name[family] || !strcasecmp(name + family, ":latest")))
      return &names[i];
  }
  return NULL;
}

// Appends ", NAME" if it fits.
static void append(mlx_short_names_text_t *out, const char *name) {
  const size_t used = strlen(out->text);
  if (used + strlen(name) + 3 <= sizeof out->text)
    snprintf(out->text + used, sizeof out->text - used, "%s%s", used ? ", " : "", name);
}

// All sizes of the family in |name|.
static mlx_short_names_text_t family_of(const char *name) {
  mlx_short_names_text_t out = {.text = ""};
  const size_t length = strcspn(name, ":");
  for (size_t i = 0; i < NAME_COUNT; ++i) {
    if (strcspn(names[i].name, ":") == length && !strncasecmp(name, names[i].name, length))
      append(&out, names[i].name);
  }
  return out;
}

// The default sizes of the families that begin with the family in |name|: "llama" begins llama3.1 and
// llama3.2.
static mlx_short_names_text_t families_with_prefix(const char *name) {
  mlx_short_names_text_t out = {.text = ""};
  const size_t length = strcspn(name, ":");
  for (size_t i = 0; length >= 2 && i < NAME_COUNT; ++i) {
    if (names[i].is_default && !strncasecmp(name, names[i].name, length)) append(&out, names[i].name);
  }
  return out;
}

mlx_short_names_text_t mlx_short_name_nearest(const char *name) {
  const char *list[MAX_NAMES + 1] = {0};
  char families[MAX_NAMES][32], family[32];
  mlx_short_names_text_t out = family_of(name);
  if (!out.text[0]) out = families_with_prefix(name);
  if (out.text[0]) return out;
  for (size_t i = 0; i < NAME_COUNT; ++i) list[i] = names[i].name;
  const char *nearest = mlx_nearest_name(name, list);
  if (nearest) append(&out, nearest);
  if (nearest) return out;
  for (size_t i = 0; i < NAME_COUNT; ++i) {
    snprintf(families[i], sizeof families[i], "%.*s", (int)strcspn(names[i].name, ":"), names[i].name);
    list[i] = families[i];
  }
  if (strcspn(name, ":") >= sizeof family) return out;
  snprintf(family, sizeof family, "%.*s", (int)strcspn(name, ":"), name);
  nearest = mlx_nearest_name(family, list);
  return nearest ? family_of(nearest) : out;
}
