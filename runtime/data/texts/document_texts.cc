#include "runtime/data/texts/document_texts.h"

#include <algorithm>
#include <cmath>

#include "kernels/dispatch.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/load_element.h"
#include "runtime/data/texts/packed_rows.h"
#include "runtime/data/tokenizer/tokenizer.h"

namespace onnx_train {
namespace {

// Where the documents of a file of tokens end.
Tensor ends_of(const TokenShard& shard, const DataOptions& options) {
  if (!shard.ends.empty()) return shard.ends;
  if (!options.document_end) {
    throw UsageError(concat("--packing: ", shard.path,
                            " does not say where its documents end: --document-end ID names the token that ends one"));
  }
  std::vector<int64_t> ends;
  dispatch_integer(shard.tokens.dtype(), [&](auto tag) {
    for (int64_t i = 0; i < shard.tokens.size(); ++i) {
      if (static_cast<int64_t>(load_element<decltype(tag)>(shard.tokens.data(), i)) == *options.document_end)
        ends.push_back(i + 1);
    }
  });
  if (ends.empty() || ends.back() < shard.tokens.size()) ends.push_back(shard.tokens.size());
  return Tensor::ints(ends);
}

// ": 12 documents, the token 2 after each, by tokenizer.json: 345 tokens in 7 samples of 64 (bfd), 23% filled up".
std::string summary_of(const std::vector<std::string>& paths, const TokenShard& first, const PackedDocuments& found,
                       int64_t block, const std::string& packing) {
  constexpr double kPercent = 100;
  const auto places = static_cast<double>(found.all_rows() * block);
  const double rest = kPercent * (1 - static_cast<double>(found.tokens) / places);
  std::string text = concat(names_of(paths), ": ", first.kind, ": ", found.documents,
                            found.documents == 1 ? " document" : " documents", " in ", found.all_rows(),
                            found.all_rows() == 1 ? " sample of " : " samples of ", block, " tokens (", packing, "), ",
                            static_cast<int64_t>(std::lround(rest)), "% filled up");
  if (found.cut > 0) text += concat("; ", found.cut, found.cut == 1 ? " is longer, and cut" : " are longer, and cut");
  return text;
}

}  // namespace

DataArrays open_documents(const std::vector<TokenFiles>& sources, const std::vector<InputSpec>& inputs,
                          const ReadOptions& options) {
  const TokenInputs to = token_inputs(inputs);
  if (!to.tokens)
    fail_as(ErrorCode::kData, sources[0].paths[0], " holds tokens, but the model has no input int64[batch, tokens]");
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_of(options);
  std::vector<TokenShard> shards;
  std::vector<std::string> paths;
  std::vector<DocumentGroup> groups;
  const bool is_weighted = sources[0].weight.has_value();
  for (const TokenFiles& source : sources) {
    if (groups.empty() || is_weighted) groups.push_back({source.name, {}});
    for (const std::string& path : source.paths) {
      shards.push_back(read_token_shard(path, options, tokenizer.get()));
      groups.back().shards.push_back({path, shards.back().tokens, ends_of(shards.back(), options)});
      paths.push_back(path);
    }
  }
  check_shards(shards, to.tokens->name, options);
  DataArrays data;
  const auto is_tokenized = [](const TokenShard& shard) { return shard.is_tokenized; };
  if (std::ranges::any_of(shards, is_tokenized)) remember_tokenizer(*tokenizer, options, &data);
  if (!shards[0].guess.empty()) data.notes.push_back(shards[0].guess);
  add_cache_notes(shards, &data);
  const int64_t padding = tokenizer ? tokenizer->padding() : 0;
  const PackedDocuments found =
      add_documents(std::move(groups), parse_packing(options.packing), padding, inputs, options, &data);
  if (found.all_rows() == 0)
    fail_as(ErrorCode::kTokenBlocks, names_of(paths),
            " has no document of two tokens, one of which predicts the other");
  data.summary = summary_of(paths, shards[0], found, block_of(*to.tokens, options), options.packing);
  add_parts(parts_of(sources, found.rows), "sample", options, &data);
  return data;
}

}  // namespace onnx_train
