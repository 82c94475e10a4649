// The files that hold tokens.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/load_element.h"
#include "runtime/data/files/document_buffer.h"
#include "runtime/data/files/npy.h"
#include "runtime/data/files/tokens.h"
#include "runtime/data/tokenizer/tokenizer.h"

namespace onnx_train {
namespace {

struct BinHeader {
  int32_t magic, version;
  DType dtype;
};
constexpr std::array<BinHeader, 2> kBinHeaders = {{{20240520, 1, DType::kUint16}, {20240801, 7, DType::kUint32}}};
constexpr int32_t kMultipleChoice = 20240522;  // llm.c's evaluation files
constexpr size_t kBinHeaderBytes = 256 * sizeof(int32_t);

using Mapping = std::shared_ptr<const MappedFile>;

Tensor tokens_at(const Mapping& file, size_t offset, DType dtype) {
  const auto count = static_cast<int64_t>((file->size() - offset) / size_of(dtype));
  return Tensor(dtype, {count}, file->data() + offset, file);
}

TokenShard with_header(const std::string& path, const Mapping& file, const BinHeader& header) {
  const auto version = load_element<int32_t>(file->data(), 1), count = load_element<int32_t>(file->data(), 2);
  if (version != header.version) {
    fail_as(ErrorCode::kFile, path, " has llm.c's header ", header.magic, " of version ", version, "; version ",
            header.version, " is read");
  }
  const size_t held = (file->size() - kBinHeaderBytes) / size_of(header.dtype);
  if (count < 0 || static_cast<size_t>(count) != held ||
      (file->size() - kBinHeaderBytes) % size_of(header.dtype) != 0) {
    fail_as(ErrorCode::kDataDamaged, path, " is damaged or cut off: its header counts ", count, " tokens of ",
            name(header.dtype), ", and ", file->size() - kBinHeaderBytes, " bytes follow");
  }
  return {path, tokens_at(file, kBinHeaderBytes, header.dtype), concat(name(header.dtype), " tokens (llm.c's header)"),
          ""};
}

// Token ids are below 2^18: the upper halves of uint32 are 0 to 3, which halves of uint16 hardly are, one after the
// other.
bool looks_like_uint32(const MappedFile& file) {
  constexpr int64_t kLooked = 1 << 15;
  constexpr uint16_t kMostUpper = 3;
  const int64_t pairs = std::min<int64_t>(static_cast<int64_t>(file.size() / 4), kLooked);
  if (file.size() % 4 != 0 || pairs == 0) return false;
  bool upper_are_small = true, lower_are_small = true;
  for (int64_t i = 0; i < pairs && upper_are_small; ++i) {
    lower_are_small = lower_are_small && load_element<uint16_t>(file.data(), 2 * i) <= kMostUpper;
    upper_are_small = load_element<uint16_t>(file.data(), 2 * i + 1) <= kMostUpper;
  }
  return upper_are_small && !lower_are_small;
}

TokenShard read_bin(const std::string& path, const DataOptions& options, Tokenizer* /*tokenizer*/) {
  const Mapping file = MappedFile::open(path);
  if (file->size() >= kBinHeaderBytes) {
    const auto magic = load_element<int32_t>(file->data(), 0);
    for (const BinHeader& header : kBinHeaders) {
      if (header.magic == magic) return with_header(path, file, header);
    }
    if (magic == kMultipleChoice) {
      fail_as(ErrorCode::kFile, path, " holds llm.c's multiple-choice questions, which are not read; give its tokens");
    }
  }
  const bool is_given = !options.token_type.empty();
  const bool wide = is_given ? options.token_type == "uint32" : looks_like_uint32(*file);
  const DType dtype = wide ? DType::kUint32 : DType::kUint16;
  if (file->size() % size_of(dtype) != 0) {
    fail_as(ErrorCode::kDataDamaged, path, " has ", file->size(), " bytes, which are no whole number of ", name(dtype),
            " tokens");
  }
  const std::string guess = concat(path, " has no header and is read as ", name(dtype), " tokens; --token-type ",
                                   wide ? "uint16" : "uint32", " reads the other type");
  return {path, tokens_at(file, 0, dtype), concat(name(dtype), " tokens (no header)"), is_given ? "" : guess};
}

TokenShard read_npy(const std::string& path, const DataOptions& /*options*/, Tokenizer* /*tokenizer*/) {
  const Mapping file = MappedFile::open(path);
  const Tensor tokens = parse_npy(file->data(), file->size(), file, path);
  if (!is_integer(tokens.dtype()) || tokens.shape().size() != 1) {
    fail_as(ErrorCode::kFile, path, " holds ", name(tokens.dtype()), to_string(tokens.shape()),
            "; tokens are one axis of integers");
  }
  return {path, tokens, concat(name(tokens.dtype()), " tokens"), ""};
}

}  // namespace

std::optional<int64_t> end_of_documents(const Tokenizer& tokenizer, const DataOptions& options) {
  const std::optional<int64_t> end = options.document_end ? options.document_end : tokenizer.end();
  if (end && !std::in_range<uint32_t>(*end))
    throw UsageError(concat("--document-end is ", *end, ", which is no token"));
  return end;
}

namespace {

// The tokens of a text whose documents `each_of` hands over one by one, f(text, where).
template <typename EachOf>
TokenShard tokenized(const std::string& path, const DataOptions& options, Tokenizer* tokenizer, const EachOf& each_of) {
  const std::optional<int64_t> end = end_of_documents(*tokenizer, options);
  const std::string after = end ? concat("the token ", *end, " after each") : "nothing between them";
  std::string note;
  const DocumentTokens made = kept_tokens(
      path, concat(tokenizer->identity(), ", ", after), !options.no_token_cache,
      [&] {
        DocumentBuffer documents;
        each_of([&](std::string_view text, const std::string& where) {
          documents.add(tokenizer->encode(text, where), end);
        });
        return documents.result();
      },
      &note);
  const int64_t count = made.ends.size();
  return {path,
          made.tokens,
          concat(count, count == 1 ? " document" : " documents", ", ", after, ", by ", tokenizer->path()),
          "",
          /*is_text=*/false,
          /*is_tokenized=*/true,
          made.ends,
          note};
}

TokenShard read_text(const std::string& path, const DataOptions& options, Tokenizer* tokenizer) {
  const Mapping file = MappedFile::open(path);
  if (tokenizer) {
    return tokenized(path, options, tokenizer, [&](const auto& f) {
      f(std::string_view(reinterpret_cast<const char*>(file->data()), file->size()), path);
    });
  }
  return {path,
          tokens_at(file, 0, DType::kUint8),
          "bytes of text, a vocabulary of 256",
          "",
          /*is_text=*/true,
          /*is_tokenized=*/false,
          Tensor::ints({static_cast<int64_t>(file->size())})};
}

// Calls f(text, number) for the "text" of each line.
template <typename F>
void for_each_document(const std::string& path, const F& f) {
  const Mapping file = MappedFile::open(path);
  const char* at = reinterpret_cast<const char*>(file->data());
  const char* const end = at + file->size();
  for (int64_t line = 1; at < end; ++line) {
    const char* stop = std::find(at, end, '\n');
    const bool is_blank = std::all_of(at, stop, [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
    if (!is_blank) {
      const auto json = nlohmann::json::parse(at, stop, nullptr, /*allow_exceptions=*/false);
      if (!json.is_object() || !json.contains("text") || !json["text"].is_string()) {
        fail_as(ErrorCode::kFile, path, ", line ", line, R"( is no JSON object with a "text": {"text": "..."})");
      }
      f(json["text"].template get_ref<const std::string&>(), line);
    }
    at = stop == end ? end : stop + 1;
  }
}

TokenShard read_jsonl(const std::string& path, const DataOptions& options, Tokenizer* tokenizer) {
  if (tokenizer) {
    return tokenized(path, options, tokenizer, [&](const auto& f) {
      for_each_document(path, [&](const std::string& text, int64_t line) { f(text, concat(path, ", line ", line)); });
    });
  }
  auto bytes = std::make_shared<std::string>();
  std::vector<int64_t> ends;
  for_each_document(path, [&](const std::string& text, int64_t /*line*/) {
    if (!bytes->empty()) {
      *bytes += '\0';
      ++ends.back();  // the 0 ends the document before
    }
    *bytes += text;
    ends.push_back(std::ssize(*bytes));
  });
  return {path,
          Tensor(DType::kUint8, {std::ssize(*bytes)}, bytes->data(), bytes),
          "bytes of text, a vocabulary of 256, with a 0 between documents",
          "",
          /*is_text=*/true,
          /*is_tokenized=*/false,
          Tensor::ints(ends)};
}

struct TokenFormat {
  std::string_view suffix;
  TokenShard (*read)(const std::string&, const DataOptions&, Tokenizer*);
};
constexpr std::array<TokenFormat, 4> kTokenFormats = {
    {{".bin", read_bin}, {".npy", read_npy}, {".txt", read_text}, {".jsonl", read_jsonl}}};

const TokenFormat* format_of(const std::string& path) {
  const auto* found = std::find_if(kTokenFormats.begin(), kTokenFormats.end(),
                                   [&](const TokenFormat& format) { return path.ends_with(format.suffix); });
  return found == kTokenFormats.end() ? nullptr : found;
}

}  // namespace

bool is_token_file(const std::string& path) { return format_of(path) != nullptr; }

TokenShard read_token_shard(const std::string& path, const DataOptions& options, Tokenizer* tokenizer) {
  const TokenFormat* format = format_of(path);
  if (!format) fail_as(ErrorCode::kFile, path, " is no file of tokens: .bin, .npy, .txt or .jsonl");
  TokenShard shard = format->read(path, options, tokenizer);
  if (shard.tokens.size() == 0) fail_as(ErrorCode::kFile, path, " is empty: it holds no tokens");
  return shard;
}

}  // namespace onnx_train
