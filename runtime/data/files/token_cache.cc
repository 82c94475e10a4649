#include "runtime/data/files/token_cache.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <vector>

#include "kernels/choices/cache.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/files/safetensors.h"
#include "runtime/support/fingerprint.h"

namespace onnx_train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVersion = "1";  // of what the file holds
constexpr size_t kSampledText = size_t{1} << 20;

using Texts = std::map<std::string, std::string>;

// What a file of tokens must say to be of this text as it is now.
Texts identity_of(const std::string& path, const std::string& made_by) {
  const auto file = MappedFile::open(path);
  std::error_code error;
  const auto changed = fs::last_write_time(path, error).time_since_epoch().count();
  const Tensor bytes(DType::kUint8, {static_cast<int64_t>(file->size())}, file->data(), file);
  return {{"version", kVersion},
          {"made_by", hash_of(made_by)},
          {"text", concat(file->size(), " bytes of ", changed, ", ", fingerprint({{"", bytes}}, kSampledText))}};
}

// Where the tokens of a text may be: beside it, and in the cache of this user. The text's path tells those of several
// folders apart.
std::vector<std::string> places_of(const std::string& path, const std::string& made_by) {
  constexpr size_t kDigits = 8;
  const std::string name = fs::path(path).filename().string();
  std::vector<std::string> places = {concat(path, ".", hash_of(made_by).substr(0, kDigits), ".tokens")};
  std::error_code error;
  const std::string whole = fs::weakly_canonical(path, error).string() + "\n" + made_by;
  if (const auto cache = cache_folder())
    places.push_back((fs::path(*cache) / "tokens" / concat(name, ".", hash_of(whole), ".tokens")).string());
  return places;
}

bool is_vector_of(const Tensor& tensor, DType dtype) { return tensor.dtype() == dtype && tensor.shape().size() == 1; }

// Whether the arrays are what kept_tokens writes: files are not trusted.
bool is_whole(const DocumentTokens& made) {
  if (!is_vector_of(made.tokens, DType::kUint32) || !is_vector_of(made.ends, DType::kInt64)) return false;
  if (!made.answers.empty() &&
      (!is_vector_of(made.answers, DType::kUint8) || made.answers.size() != made.tokens.size()))
    return false;
  const std::vector<int64_t> ends = made.ends.to_ints();
  return !ends.empty() && ends.front() >= 0 && std::ranges::is_sorted(ends) && ends.back() == made.tokens.size();
}

// Nothing where there is no such file, or it is damaged or of another state of the text.
std::optional<DocumentTokens> read_tokens(const std::string& place, const Texts& identity) {
  std::error_code error;
  if (!fs::is_regular_file(place, error)) return {};
  try {
    Texts said;
    TensorMap arrays = read_safetensors(place, &said);
    for (const auto& [key, text] : identity) {
      if (said[key] != text) return {};
    }
    DocumentTokens made{arrays["tokens"], arrays["ends"], arrays["answers"], said["remark"]};
    if (is_whole(made)) return made;
  } catch (const Error&) {  // damaged: it is made anew
  }
  return {};
}

// Where it was written; "" and the reason if nowhere.
std::string write_tokens(const std::vector<std::string>& places, const DocumentTokens& made, Texts said,
                         std::string* reason) {
  said["remark"] = made.remark;
  TensorMap arrays = {{"tokens", made.tokens}, {"ends", made.ends}};
  if (!made.answers.empty()) arrays["answers"] = made.answers;
  for (const std::string& place : places) {
    try {
      std::error_code error;
      if (&place != &places.front()) fs::create_directories(fs::path(place).parent_path(), error);
      write_safetensors(place, arrays, said);
      return place;
    } catch (const Error& error) {
      *reason = error.what();
    }
  }
  return "";
}

}  // namespace

DocumentTokens kept_tokens(const std::string& path, const std::string& made_by, bool keeps,
                           const std::function<DocumentTokens()>& make, std::string* note) {
  std::error_code error;
  if (!keeps || !fs::is_regular_file(path, error)) return make();
  const Texts identity = identity_of(path, made_by);
  const std::vector<std::string> places = places_of(path, made_by);
  for (const std::string& place : places) {
    if (auto kept = read_tokens(place, identity)) {
      *note = concat("the tokens of ", path, " are those that ", place, " keeps");
      return std::move(*kept);
    }
  }
  const DocumentTokens made = make();
  if (!is_whole(made) || made.tokens.size() == 0) return made;
  std::string reason;
  const std::string place = write_tokens(places, made, identity, &reason);
  *note = place.empty() ? concat("the tokens of ", path, " are not kept for the next run: ", reason)
                        : concat("the tokens of ", path, " are kept for the next run in ", place,
                                 "; --no-token-cache leaves that out");
  if (place.empty()) return made;
  return read_tokens(place, identity).value_or(made);  // mapped: the memory is free
}

}  // namespace onnx_train
