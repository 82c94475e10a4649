#include "runtime/generation/cached_reader.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/training/strip_training.h"
#include "runtime/data/files/tokens.h"
#include "runtime/generation/logits.h"

namespace onnx_train {
namespace {

constexpr int64_t kShortest = 16, kFewestPlaces = 64;

int64_t rounded_up(int64_t size, int64_t least) {
  return std::max(least, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(size))));
}

// Copies the first `count` rows along the axis `axis` of `from` to those of `to` that begin at `at`.
void copy_rows(const Tensor& from, int64_t count, int64_t axis, int64_t at, Tensor* to) {
  int64_t outer = 1;
  size_t row = size_of(from.dtype());
  for (int64_t i = 0; i < std::ssize(from.shape()); ++i) {
    const int64_t size = from.shape()[static_cast<size_t>(i)];
    if (i < axis) outer *= size;
    if (i > axis) row *= static_cast<size_t>(size);
  }
  const auto rows = [&](const Tensor& tensor) { return tensor.shape()[static_cast<size_t>(axis)]; };
  const char* source = static_cast<const char*>(from.data());
  char* target = static_cast<char*>(to->data());
  for (int64_t i = 0; i < outer; ++i) {
    std::memcpy(target + static_cast<size_t>(i * rows(*to) + at) * row,
                source + static_cast<size_t>(i * rows(from)) * row, static_cast<size_t>(count) * row);
  }
}

// The same where the first `from` tokens are left out.
std::vector<int64_t> without_first(std::vector<int64_t> filled, int64_t from) {
  for (int64_t& count : filled) count = std::max<int64_t>(count - from, 0);
  return filled;
}

}  // namespace

CachedModel::CachedModel(const Session& session) {
  if (session.topology().ranks() > 1) fail("[Cache] several ranks share the model");
  Model model = strip_training(session.snapshot());
  tensors_ = add_cache(&model, CacheForm::kPlaces);
  session_ = std::make_unique<Session>(std::move(model), session.options());
}

CachedReader::CachedReader(const CachedModel& model, int64_t context, std::vector<int64_t> filled)
    : model_(model),
      context_(context),
      inputs_(entry_inputs(model.session().model(), Entry::kPredict)),
      tokens_(token_inputs(inputs_).tokens),
      filled_(std::move(filled)) {
  if (!tokens_) fail("[Cache] the model has no input int64[batch, tokens]");
}

Logits CachedReader::next(const Texts& texts) {
  const int64_t known = in_common(texts);
  has_read_all_ = known == 0;
  last_ = has_read_all_ ? read_whole(texts) : read_rest(texts, known);
  if (std::ssize(texts[0]) <= context_) texts_ = texts;
  return last_;
}

// The tokens at the beginning of the texts that the cache holds, but for the last one, whose logits are asked for. Of a
// text that is longer than the context all positions are other ones.
int64_t CachedReader::in_common(const Texts& texts) const {
  const auto length = std::ssize(texts[0]);
  if (length > context_) return 0;
  int64_t known = std::min(used_, length - 1);
  for (size_t i = 0; i < texts.size() && known > 0; ++i) {
    const auto end = texts[i].begin() + known;
    known = std::mismatch(texts[i].begin(), end, texts_[i].begin()).first - texts[i].begin();
  }
  return known;
}

Logits CachedReader::read_whole(const Texts& texts) {
  const auto length = std::ssize(texts[0]);
  read_ = std::min(length, context_);
  const TensorMap& outputs = run_all(texts);
  Logits logits = logits_of(outputs, texts, read_ - 1);
  if (length > context_) return logits;
  used_ = 0;
  make_room(length + 1);
  keep(outputs, length);
  return logits;
}

// The tokens after the first `known`: one alone, or several in a row that is rounded up so that few plans are made.
// Places and new tokens are together no more than the positions of the model.
Logits CachedReader::read_rest(const Texts& texts, int64_t known) {
  const auto length = std::ssize(texts[0]);
  used_ = known;
  read_ = length - known;
  if (read_ == 1) make_room(length);
  const int64_t row = read_ == 1 ? 1 : std::min(rounded_up(read_, kShortest), context_ - known);
  set_places(std::min(places_, context_ - row));
  const TensorMap& outputs = run(texts, known, row, true);
  Logits logits = logits_of(outputs, texts, read_ - 1);
  if (read_ > 1) make_room(length + 1);
  keep(outputs, read_);
  return logits;
}

bool CachedReader::agrees(const Texts& texts) {
  constexpr double kRounding = 1e-3;
  const auto length = std::ssize(texts[0]);
  if (used_ != length) return true;  // there is no other way
  if (!has_read_all_) return relative_difference(last_, logits_of(run_all(texts), texts, length - 1)) <= kRounding;
  if (length < 2) return true;
  return relative_difference(last_, logits_of(run(texts, length - 1, 1, true), texts, 0)) <= kRounding;
}

// Reads the last tokens, as many as the context has. What comes after them is not read by them.
const TensorMap& CachedReader::run_all(const Texts& texts) {
  const int64_t length = std::ssize(texts[0]), read = std::min(length, context_);
  return run(texts, length - read, std::max(read, std::min(rounded_up(read, kShortest), context_ - 1)), false);
}

// Reads `length` tokens of each text from `from` on, which is the first position without a cache. A mask hides only
// what fills texts up: places that are not in use are hidden by their number, and what comes after a token as later
// tokens are.
const TensorMap& CachedReader::run(const Texts& texts, int64_t from, int64_t length, bool with_cache) {
  const auto rows = std::ssize(texts);
  const int64_t places = with_cache ? places_ : 1, first = with_cache ? from : 0;
  const std::vector<int64_t> filled = with_cache ? filled_ : without_first(filled_, from);
  for (const InputSpec& spec : inputs_) {
    if (&spec == tokens_) given_[spec.name] = tokens_of(texts, from, length);
    if (!is_filled(spec)) continue;
    given_[spec.name] = is_mask(spec) ? mask_of(spec, places + length, filled) : counted(spec, first, length, filled);
  }
  for (size_t i = 0; i < model_.tensors().size(); ++i) {
    const CachedTensor& tensor = model_.tensors()[i];
    given_[tensor.past] = with_cache ? past_[i] : empty_cache(tensor, rows, places);
  }
  given_[kPastLength] = Tensor::ints({first});
  const auto start = std::chrono::steady_clock::now();
  model_.session().plan(Entry::kPredict, shapes_of(given_));
  planning_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return model_.session().run(Entry::kPredict, given_);
}

// Ones, and zeros for what fills a text up.
Tensor CachedReader::mask_of(const InputSpec& spec, int64_t length, const std::vector<int64_t>& filled) const {
  Tensor mask = filled_input(spec, {std::ssize(filled), length});
  for (int64_t row = 0; row < std::ssize(filled); ++row) {
    for (int64_t t = 0; t < filled[static_cast<size_t>(row)]; ++t) mask.set(row * length + t, 0);
  }
  return mask;
}

// Positions from `from` on, or token types.
Tensor CachedReader::counted(const InputSpec& spec, int64_t from, int64_t length,
                             const std::vector<int64_t>& filled) const {
  const Tensor whole = filled_input(spec, {1, from + length});
  Tensor row(spec.type.dtype, {std::ssize(filled), length});
  for (int64_t i = 0; i < row.size(); ++i) {
    const int64_t begin = filled[static_cast<size_t>(i / length)];
    row.set(i, whole.at(std::max<int64_t>(from + i % length - begin, 0)));
  }
  return row;
}

// Tokens that there are none of are 0.
Tensor CachedReader::tokens_of(const Texts& texts, int64_t from, int64_t length) const {
  Tensor tokens(tokens_->type.dtype, {std::ssize(texts), length});
  for (int64_t row = 0; row < std::ssize(texts); ++row) {
    const std::vector<int64_t>& text = texts[static_cast<size_t>(row)];
    for (int64_t t = 0; t < length && from + t < std::ssize(text); ++t)
      tokens.set(row * length + t, static_cast<double>(text[static_cast<size_t>(from + t)]));
  }
  return tokens;
}

Logits CachedReader::logits_of(const TensorMap& outputs, const Texts& texts, int64_t place) const {
  return logits_at(outputs, std::vector<int64_t>(texts.size(), place));
}

Tensor CachedReader::empty_cache(const CachedTensor& tensor, int64_t texts, int64_t places) const {
  Shape shape;
  for (const CachedTensor::Size& size : tensor.sizes)
    shape.push_back(size.each_text ? size.number * texts : size.number);
  shape[static_cast<size_t>(tensor.axis)] = places;
  return {tensor.dtype, shape};
}

// Room for texts of `length` tokens. Places are one less than a power of two, which leaves a position for a new token,
// and no more than the model has positions.
void CachedReader::make_room(int64_t length) {
  set_places(std::max(places_, std::min(rounded_up(length + 1, kFewestPlaces), context_) - 1));
}

// A cache of other places with the same contents.
void CachedReader::set_places(int64_t places) {
  if (places == places_ && !past_.empty()) return;
  std::vector<Tensor> past;
  for (const CachedTensor& tensor : model_.tensors()) {
    past.push_back(empty_cache(tensor, std::ssize(filled_), places));
    if (used_ > 0) copy_rows(past_[past.size() - 1], used_, tensor.axis, 0, &past.back());
  }
  past_ = std::move(past);
  places_ = places;
}

// Appends the keys and values of the first `count` tokens that were read, as far as there are places.
void CachedReader::keep(const TensorMap& outputs, int64_t count) {
  count = std::min(count, places_ - used_);
  given_.clear();  // which shares the cache
  for (size_t i = 0; i < past_.size(); ++i) {
    const CachedTensor& tensor = model_.tensors()[i];
    copy_rows(outputs.at(tensor.present), count, tensor.axis, used_, &past_[i]);
  }
  used_ += count;
}

}  // namespace onnx_train
