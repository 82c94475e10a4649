// Tokens of language models: a sample is a block of N tokens, its labels are the tokens that follow, one further each.
// Blocks follow each other without overlap; each file has its own, so that no block goes from one into the next. Rows
// are read in the mapped files, whatever their size. Pure functions; any thread. They throw Error that names the file.
//
//   X.bin          llm.c's header (256 int32: a magic number, a version, the number of tokens), then uint16 or uint32;
//                  https://github.com/karpathy/llm.c/blob/master/dev/data/data_common.py
//                  nanoGPT's: uint16 or uint32 alone; https://github.com/karpathy/nanoGPT/tree/master/data
//   X.npy          one axis of integers
//   X.txt          bytes, or the tokens of --tokenizer
//   X.jsonl        the bytes of the "text" of each line, with a byte 0 between two, or the tokens of --tokenizer, with
//                  the one that ends a document after each
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/files/read_options.h"

namespace onnx_train {

class Tokenizer;

struct TokenShard {
  std::string path;
  Tensor tokens;              // one axis of integers; a view of the file where it can be
  std::string kind;           // "uint16 tokens (llm.c's header)"
  std::string guess;          // "" or what was guessed, and the option that says otherwise
  bool is_text = false;       // its bytes are the tokens
  bool is_tokenized = false;  // a tokenizer made them of a text
};

// Models whose tokens are bytes tell as many apart at most: ByT5's 256 bytes, marks and rows to fill.
constexpr int64_t kMostOfBytes = 384;

bool is_token_file(const std::string& path);  // by its name
// `tokenizer` makes the tokens of texts; null: their bytes are.
TokenShard read_token_shard(const std::string& path, const DataOptions& options, Tokenizer* tokenizer = nullptr);

// The inputs of a model that tokens go to, integers [batch, tokens]. `tokens` is null for a model that takes none,
// `labels` for an entry point that takes none.
struct TokenInputs {
  const InputSpec* tokens = nullptr;
  const InputSpec* labels = nullptr;
};
TokenInputs token_inputs(const std::vector<InputSpec>& inputs);

// Inputs of language models that no text has: by their names masks (ones), positions (0, 1, 2, ...) and token types
// (zeros).
bool is_filled(const InputSpec& spec);
bool is_mask(const InputSpec& spec);
bool is_positions(const InputSpec& spec);
Tensor filled_input(const InputSpec& spec, const Shape& shape);  // [rows, tokens], each row alike

// Adds the positions and token types that a model takes and `data` of tokens lack, and notes that say so. A mask is
// left out: only the data tell which tokens fill a sample.
void fill_positions(const std::vector<InputSpec>& inputs, DataArrays* data);

// The tokens of a sample: as many as the model takes, else --block-size.
int64_t block_of(const InputSpec& tokens, const DataOptions& options);
// Throws Error where the model's tokens are no bytes.
void check_is_of_bytes(const std::string& path, const std::string& input, const ReadOptions& options);
// The tokenizer that --tokenizer names; null if it names none.
std::unique_ptr<Tokenizer> tokenizer_of(const DataOptions& options);
// Adds to `data` which tokenizer made its tokens, and a note if it is another one than the model was trained with.
void remember_tokenizer(const Tokenizer& tokenizer, const ReadOptions& options, DataArrays* data);

// Files in the order of their blocks, at least one, and the part of an epoch that is drawn from them, relative to that
// of other sources.
struct TokenFiles {
  std::string name;
  std::vector<std::string> paths;
  std::optional<double> weight = {};  // all sources have one, or none has, and each block comes once an epoch
};
// At least one source.
DataArrays open_tokens(const std::vector<TokenFiles>& sources, const std::vector<InputSpec>& inputs,
                       const ReadOptions& options);

}  // namespace onnx_train
