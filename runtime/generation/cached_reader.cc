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

// Positions from `from` on, or token types.
Tensor filled_from(const InputSpec& spec, int64_t from, const Shape& shape) {
  const int64_t length = shape[1], all = from + length;
  const Tensor whole = filled_input(spec, {shape[0], all});
  Tensor filled(spec.type.dtype, shape);
  for (int64_t i = 0; i < filled.size(); ++i) filled.set(i, whole.at(i / length * all + from + i % length));
  return filled;
}

}  // namespace

CachedModel::CachedModel(const Session& session) {
  if (session.topology().ranks() > 1) fail("[Cache] several ranks share the model");
  Model model = strip_training(session.snapshot());
  tensors_ = add_cache(&model, CacheForm::kPlaces);
  session_ = std::make_unique<Session>(std::move(model), session.options());
}

CachedReader::CachedReader(const CachedModel& model, int64_t context)
    : model_(model),
      context_(context),
      inputs_(entry_inputs(model.session().model(), Entry::kPredict)),
      tokens_(token_inputs(inputs_).tokens) {
  if (!tokens_) fail("[Cache] the model has no input int64[batch, tokens]");
}

Logits CachedReader::next(const Texts& texts) {
  const auto length = std::ssize(texts[0]);
  has_read_all_ = used_ == 0 || length != used_ + 1 || length > context_;
  if (!has_read_all_) {
    make_room(length, std::ssize(texts));
    const TensorMap& outputs = run(texts, used_, 1, true);
    last_ = logits_of(outputs, texts, 0);
    keep(outputs, 1);
    return last_;
  }
  const int64_t read = std::min(length, context_);
  const TensorMap& outputs = run_all(texts);
  last_ = logits_of(outputs, texts, read - 1);
  used_ = 0;
  if (length >= context_) return last_;  // with the next token all positions are other ones
  make_room(read + 1, std::ssize(texts));
  keep(outputs, read);
  return last_;
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

// Reads `length` tokens of each text from `from` on, which is the first position without a cache. A mask hides none:
// places that are not in use are hidden by their number, and what comes after a token as later tokens are.
const TensorMap& CachedReader::run(const Texts& texts, int64_t from, int64_t length, bool with_cache) {
  const auto rows = std::ssize(texts);
  const int64_t places = with_cache ? places_ : 1;
  for (const InputSpec& spec : inputs_) {
    if (is_mask(spec)) given_[spec.name] = filled_input(spec, {rows, places + length});
    if (&spec == tokens_) given_[spec.name] = tokens_of(texts, from, length);
    if (is_filled(spec) && !is_mask(spec)) given_[spec.name] = filled_from(spec, with_cache ? from : 0, {rows, length});
  }
  for (size_t i = 0; i < model_.tensors().size(); ++i) {
    const CachedTensor& tensor = model_.tensors()[i];
    given_[tensor.past] = with_cache ? past_[i] : empty_cache(tensor, rows, places);
  }
  given_[kPastLength] = Tensor::ints({with_cache ? from : 0});
  const auto start = std::chrono::steady_clock::now();
  model_.session().plan(Entry::kPredict, shapes_of(given_));
  planning_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return model_.session().run(Entry::kPredict, given_);
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

// Room for texts of `length` tokens. With a new one, places are a power of two, and no more than the positions of the
// model.
void CachedReader::make_room(int64_t length, int64_t texts) {
  const int64_t places = std::min(rounded_up(length + 1, kFewestPlaces), context_) - 1;
  if (places <= places_ && !past_.empty()) return;
  std::vector<Tensor> past;
  for (const CachedTensor& tensor : model_.tensors()) {
    past.push_back(empty_cache(tensor, texts, places));
    if (used_ > 0) copy_rows(past_[past.size() - 1], used_, tensor.axis, 0, &past.back());
  }
  past_ = std::move(past);
  places_ = places;
}

// Appends the keys and values of the first `count` tokens that were read.
void CachedReader::keep(const TensorMap& outputs, int64_t count) {
  if (used_ + count > places_) {  // the context is full
    used_ = 0;
    return;
  }
  given_.clear();  // which shares the cache
  for (size_t i = 0; i < past_.size(); ++i) {
    const CachedTensor& tensor = model_.tensors()[i];
    copy_rows(outputs.at(tensor.present), count, tensor.axis, used_, &past_[i]);
  }
  used_ += count;
}

}  // namespace onnx_train
