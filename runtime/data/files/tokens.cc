#include "runtime/data/files/tokens.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "kernels/dispatch.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/load_element.h"
#include "onnx_passes/model/document_starts.h"
#include "onnx_passes/model/table_metadata.h"
#include "runtime/data/tokenizer/tokenizer.h"
#include "runtime/support/fingerprint.h"

namespace onnx_train {
namespace {

// What other inputs of a language model hold where the data say nothing: start + step * position.
struct Filler {
  std::string_view word;  // in the input's name
  int64_t start, step;
  const char* what;
};
constexpr std::array<Filler, 4> kFillers = {{{"mask", 1, 0, "ones"},
                                             {"position", 0, 1, "0, 1, 2, ..."},
                                             {"token_type", 0, 0, "zeros"},
                                             {kDocumentStarts, 0, 0, "zeros"}}};

const Filler* filler_of(const InputSpec& spec) {
  const auto* found = std::find_if(kFillers.begin(), kFillers.end(), [&](const Filler& filler) {
    return spec.name.find(filler.word) != std::string::npos;
  });
  return found == kFillers.end() ? nullptr : found;
}

bool is_sequence(const InputSpec& spec) { return !spec.has_default && spec.type.has_rank() && spec.type.rank() == 2; }

// One row: start + step * position.
Tensor filled_row(const Filler& filler, DType dtype, int64_t length) {
  Tensor row(dtype, {length});
  for (int64_t t = 0; t < length; ++t) row.set(t, static_cast<double>(filler.start + filler.step * t));
  return row;
}

// Blocks of several files, as rows of one array.
class TokenBlocks {
 public:
  TokenBlocks(std::vector<TokenShard> shards, int64_t block, bool has_labels)
      : shards_(std::move(shards)), block_(block), dtype_(shards_[0].tokens.dtype()) {
    for (const TokenShard& shard : shards_) {
      const int64_t tokens = shard.tokens.size(), usable = std::max<int64_t>(tokens - (has_labels ? 1 : 0), 0);
      first_row_.push_back(rows_);
      rows_ += usable / block;
      tokens_ += tokens;
      bytes_ += shard.tokens.bytes();
      if (shard.tokens.dtype() != dtype_) dtype_ = DType::kInt64;
    }
  }

  DType dtype() const { return dtype_; }
  int64_t rows() const { return rows_; }
  int64_t tokens() const { return tokens_; }
  int64_t block() const { return block_; }
  size_t bytes() const { return bytes_; }

  // f(tokens of the file, position of the block in it)
  template <typename F>
  void at(int64_t row, const F& f) const {
    const size_t shard = shard_of(row);
    f(shards_[shard].tokens, (row - first_row_[shard]) * block_);
  }
  const std::string& path(int64_t row) const { return shards_[shard_of(row)].path; }
  // The blocks of the files [first, last).
  int64_t rows_of(size_t first, size_t last) const {
    const auto begin_of = [&](size_t shard) { return shard < first_row_.size() ? first_row_[shard] : rows_; };
    return begin_of(last) - begin_of(first);
  }

  const std::string& identity() const {
    std::call_once(identified_, [&] {
      std::vector<NamedTensor> tensors;
      for (const TokenShard& shard : shards_) tensors.push_back({"tokens", shard.tokens});
      constexpr size_t kLeast = size_t{1} << 16;
      identity_ = fingerprint(tensors, std::max(kSampledDataBytes / shards_.size(), kLeast));
    });
    return identity_;
  }

 private:
  size_t shard_of(int64_t row) const {
    return static_cast<size_t>(std::upper_bound(first_row_.begin(), first_row_.end(), row) - first_row_.begin()) - 1;
  }

  std::vector<TokenShard> shards_;
  std::vector<int64_t> first_row_;
  int64_t block_, rows_ = 0, tokens_ = 0;
  size_t bytes_ = 0;
  DType dtype_;
  mutable std::once_flag identified_;
  mutable std::string identity_;
};

using SharedBlocks = std::shared_ptr<const TokenBlocks>;

class InputRows : public RowReader {
 public:
  InputRows(const SharedBlocks& blocks, int64_t shift)
      : RowReader({blocks->dtype(), {blocks->rows(), blocks->block()}}), blocks_(blocks), shift_(shift) {}

  void read(int64_t row, const AugmentKey* /*key*/, void* to) const override {
    blocks_->at(row, [&](const Tensor& tokens, int64_t position) {
      if (tokens.dtype() == blocks_->dtype()) {
        const size_t element = size_of(tokens.dtype());
        std::memcpy(to, static_cast<const char*>(tokens.data()) + static_cast<size_t>(position + shift_) * element,
                    static_cast<size_t>(blocks_->block()) * element);
        return;
      }
      dispatch_integer(tokens.dtype(), [&](auto tag) {
        for (int64_t t = 0; t < blocks_->block(); ++t) {
          static_cast<int64_t*>(to)[t] =
              static_cast<int64_t>(load_element<decltype(tag)>(tokens.data(), position + shift_ + t));
        }
      });
    });
  }
  std::string identity() const override {
    return concat(blocks_->identity(), " in blocks of ", blocks_->block(), " from ", shift_);
  }
  std::string describe(int64_t row) const override { return blocks_->path(row); }
  std::string place(int64_t row, int64_t element) const override {
    int64_t at = 0;
    blocks_->at(row, [&](const Tensor& /*tokens*/, int64_t position) { at = position + shift_ + element; });
    return concat("at position ", at, " of ", describe(row));
  }
  size_t memory() const override { return shift_ == 0 ? blocks_->bytes() : 0; }  // labels are in the same files
  bool is_quick() const override { return true; }

 private:
  SharedBlocks blocks_;
  int64_t shift_;
};

// The tokens that follow, but for those after the end of a document.
class LabelRowsWithinDocuments : public RowReader {
 public:
  LabelRowsWithinDocuments(const SharedBlocks& blocks, int64_t document_end, int64_t ignored)
      : RowReader({DType::kInt64, {blocks->rows(), blocks->block()}}),
        blocks_(blocks),
        document_end_(document_end),
        ignored_(ignored) {}

  void read(int64_t row, const AugmentKey* /*key*/, void* to) const override {
    auto* labels = static_cast<int64_t*>(to);
    blocks_->at(row, [&](const Tensor& tokens, int64_t position) {
      dispatch_integer(tokens.dtype(), [&](auto tag) {
        const auto token = [&](int64_t i) {
          return static_cast<int64_t>(load_element<decltype(tag)>(tokens.data(), position + i));
        };
        for (int64_t t = 0; t < blocks_->block(); ++t) labels[t] = token(t) == document_end_ ? ignored_ : token(t + 1);
      });
    });
  }
  std::string identity() const override {
    return concat(blocks_->identity(), " in blocks of ", blocks_->block(), " from 1 up to ", document_end_);
  }
  std::string describe(int64_t row) const override { return blocks_->path(row); }
  size_t memory() const override { return 0; }
  bool is_quick() const override { return true; }

 private:
  SharedBlocks blocks_;
  int64_t document_end_, ignored_;
};

class FilledRows : public RowReader {
 public:
  FilledRows(const Filler& filler, DType dtype, const Shape& shape)
      : RowReader({dtype, shape}), filler_(filler), row_(filled_row(filler, dtype, shape[1])) {}

  void read(int64_t /*row*/, const AugmentKey* /*key*/, void* to) const override {
    std::memcpy(to, row_.data(), row_.bytes());
  }
  std::string identity() const override { return concat(filler_.what, " ", to_string(spec().shape)); }
  std::string describe(int64_t /*row*/) const override { return ""; }
  size_t memory() const override { return row_.bytes(); }
  bool is_quick() const override { return true; }

 private:
  const Filler& filler_;
  Tensor row_;
};

// "3 files of uint16 tokens (llm.c's header): 1234 tokens, 19 blocks of 64".
std::string summary_of(const std::vector<TokenShard>& shards, const TokenBlocks& blocks) {
  std::vector<std::string> paths;
  for (const TokenShard& shard : shards) paths.push_back(shard.path);
  return concat(names_of(paths), ": ", shards[0].kind, ": ", blocks.tokens(), " tokens, ", blocks.rows(), " blocks of ",
                blocks.block());
}

// Files without a header are guessed one by one, and one set of data has one type.
void check_types(const std::vector<TokenShard>& shards) {
  for (const TokenShard& shard : shards) {
    const DType first = shards[0].tokens.dtype(), other = shard.tokens.dtype();
    if (shards[0].guess.empty() && shard.guess.empty()) continue;
    if (first == other) continue;
    fail_as(ErrorCode::kFile, shards[0].path, " holds ", shards[0].kind, ", and ", shard.path, " ", shard.kind,
            "; say which type all have with --token-type");
  }
}

// A text is read as bytes, which a tokenizer's model would take for other tokens.
void check_texts(const std::vector<TokenShard>& shards, const std::string& input, const ReadOptions& options) {
  const auto text = std::find_if(shards.begin(), shards.end(), [](const TokenShard& shard) { return shard.is_text; });
  if (text != shards.end()) check_is_of_bytes(text->path, input, options);
}

}  // namespace

int64_t block_of(const InputSpec& tokens, const DataOptions& options) {
  const Dim& length = (*tokens.type.dims)[1];
  if (!length.known() && options.block_size == 0) {
    throw UsageError(concat("'", tokens.name, "' takes blocks of any length, ", to_string(tokens.type),
                            ": say how many tokens a sample has with --block-size"));
  }
  if (length.known() && options.block_size != 0 && options.block_size != length.value()) {
    throw UsageError(
        concat("--block-size is ", options.block_size, ", but '", tokens.name, "' takes ", to_string(tokens.type)));
  }
  return length.known() ? length.value() : options.block_size;
}

void check_is_of_bytes(const std::string& path, const std::string& input, const ReadOptions& options) {
  if (const auto trained = options.metadata.find(kTokenizer); trained != options.metadata.end()) {
    fail_as(ErrorCode::kData, path,
            " is text, whose tokens would be its bytes, but the model was trained with those of ", trained->second,
            ": give it with --tokenizer");
  }
  if (!options.vocabulary) return;
  if (const int64_t vocabulary = options.vocabulary(input); vocabulary > kMostOfBytes) {
    fail_as(ErrorCode::kData, path, " is text, whose tokens would be its bytes, but the model tells ", vocabulary,
            " tokens of '", input,
            "' apart: --tokenizer names the tokenizer.json that belongs to it (docs/training.md)");
  }
}

std::unique_ptr<Tokenizer> tokenizer_of(const DataOptions& options) {
  return options.tokenizer.empty() ? nullptr : std::make_unique<Tokenizer>(options.tokenizer);
}

void remember_tokenizer(const Tokenizer& tokenizer, const ReadOptions& options, DataArrays* data) {
  data->metadata[kTokenizer] = tokenizer.identity();
  const auto trained = options.metadata.find(kTokenizer);
  if (trained == options.metadata.end() || trained->second == tokenizer.identity()) return;
  data->notes.push_back(concat(tokenizer.path(), " is ", tokenizer.identity(), ", and the model was trained with ",
                               trained->second, ": the same text may have other tokens"));
}

void check_shards(const std::vector<TokenShard>& shards, const std::string& input, const ReadOptions& options) {
  check_types(shards);
  check_texts(shards, input, options);
}

TokenInputs token_inputs(const std::vector<InputSpec>& inputs) {
  TokenInputs found;
  for (const InputSpec& spec : inputs) {
    if (!is_sequence(spec) || !is_integer(spec.type.dtype) || filler_of(spec)) continue;
    // A network that computes its loss itself has its labels among its inputs.
    const bool is_labels = spec.from_loss || spec.name == "labels" || spec.name == "targets";
    const InputSpec*& place = is_labels ? found.labels : found.tokens;
    if (!place) place = &spec;
  }
  return found;
}

bool is_filled(const InputSpec& spec) { return is_sequence(spec) && filler_of(spec); }
bool is_mask(const InputSpec& spec) { return is_filled(spec) && filler_of(spec) == kFillers.begin(); }
bool is_position(const InputSpec& spec) { return is_filled(spec) && filler_of(spec)->step != 0; }
bool is_mask_of_pairs(const InputSpec& spec) {
  if (spec.has_default || !spec.type.has_rank() || filler_of(spec) != kFillers.begin()) return false;
  return spec.type.rank() == 3 || spec.type.rank() == 4;
}

Tensor filled_input(const InputSpec& spec, const Shape& shape) {
  const Tensor row = filled_row(*filler_of(spec), spec.type.dtype, shape[1]);
  Tensor filled(spec.type.dtype, shape);
  for (int64_t i = 0; i < shape[0]; ++i)
    std::memcpy(static_cast<char*>(filled.data()) + static_cast<size_t>(i) * row.bytes(), row.data(), row.bytes());
  return filled;
}

void fill_positions(const std::vector<InputSpec>& inputs, DataArrays* data) {
  const InputSpec* tokens = token_inputs(inputs).tokens;
  const Rows* rows = tokens ? data->find(tokens->name) : nullptr;
  if (!rows) return;
  const Shape shape = rows->spec().shape;
  if (shape.size() != 2) return;
  for (const InputSpec& spec : inputs) {
    if (!is_filled(spec) || is_mask(spec) || data->find(spec.name)) continue;
    const Filler& filler = *filler_of(spec);
    const Dim &batch = spec.type.dims->front(), &length = spec.type.dims->back();
    if (length.known() && length.value() != shape[1]) continue;
    if (batch.known() && batch.value() == 1) {  // one row for all samples
      data->arrays[spec.name] = filled_input(spec, {1, shape[1]});
    } else {
      data->arrays[spec.name] = std::make_shared<FilledRows>(filler, spec.type.dtype, shape);
    }
    data->notes.push_back(concat("'", spec.name, "' is not in the data, and gets ", filler.what));
  }
}

DataArrays open_tokens(const std::vector<TokenFiles>& sources, const std::vector<InputSpec>& inputs,
                       const ReadOptions& options) {
  const TokenInputs to = token_inputs(inputs);
  const std::string& first = sources[0].paths[0];
  if (!to.tokens) {
    fail_as(ErrorCode::kData, first, " holds tokens, but the model has no input int64[batch, tokens]");
  }
  const bool has_labels = to.labels != nullptr;
  const int64_t block = block_of(*to.tokens, options);
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_of(options);
  std::vector<TokenShard> shards;
  for (const TokenFiles& source : sources) {
    for (const std::string& path : source.paths) shards.push_back(read_token_shard(path, options, tokenizer.get()));
  }
  check_shards(shards, to.tokens->name, options);
  const auto blocks = std::make_shared<const TokenBlocks>(shards, block, has_labels);
  if (blocks->rows() == 0) {
    fail_as(ErrorCode::kTokenBlocks, shards[0].path, shards.size() > 1 ? " and the others hold " : " holds ",
            blocks->tokens(), " tokens; a sample needs ", block + (has_labels ? 1 : 0), " of one file",
            has_labels ? ", the last one as a label" : "");
  }
  DataArrays file;
  file.summary = summary_of(shards, *blocks);
  const auto is_tokenized = [](const TokenShard& shard) { return shard.is_tokenized; };
  if (std::any_of(shards.begin(), shards.end(), is_tokenized)) remember_tokenizer(*tokenizer, options, &file);
  if (!shards[0].guess.empty()) file.notes.push_back(shards[0].guess);
  add_cache_notes(shards, &file);
  std::vector<int64_t> rows;
  size_t shard = 0;
  for (const TokenFiles& source : sources) {
    rows.push_back(blocks->rows_of(shard, shard + source.paths.size()));
    shard += source.paths.size();
  }
  add_parts(parts_of(sources, rows), "block", options, &file);
  file.arrays[to.tokens->name] = std::make_shared<InputRows>(blocks, 0);
  if (has_labels && options.document_end) {
    if (!options.ignored_label) {
      throw UsageError(concat("--document-end: the loss reads '", to.labels->name,
                              "' and ignores none of them; build it with ignore_index"));
    }
    file.arrays[to.labels->name] =
        std::make_shared<LabelRowsWithinDocuments>(blocks, *options.document_end, *options.ignored_label);
  } else if (has_labels) {
    file.arrays[to.labels->name] = std::make_shared<InputRows>(blocks, 1);
  }
  for (const InputSpec& spec : inputs) {
    if (!is_filled(spec) || file.find(spec.name)) continue;
    const Filler* filler = filler_of(spec);
    file.arrays[spec.name] = std::make_shared<FilledRows>(*filler, spec.type.dtype, Shape{blocks->rows(), block});
    file.notes.push_back(concat("'", spec.name, "' is no part of tokens, and gets ", filler->what));
  }
  return file;
}

}  // namespace onnx_train
