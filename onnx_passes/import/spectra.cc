#include "onnx_passes/import/spectra.h"

#include <cmath>
#include <numbers>
#include <optional>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/constants.h"

namespace onnx_train {
namespace {

// Longer transforms stay: their matrices would have more than 2^26 elements.
constexpr int64_t kLongest = 8192;

std::optional<int64_t> whole_number(const Value* value) {
  const Tensor known = value ? constant_of(value) : Tensor();
  return known.size() == 1 ? std::optional(static_cast<int64_t>(known.at(0))) : std::nullopt;
}

// cos and sin of 2π j k / length, for rows j and columns k.
struct Waves {
  Var cosines, sines;
};
Waves waves(Builder* b, const std::string& name, DType dtype, int64_t length, int64_t rows, int64_t bins) {
  Tensor cosines(dtype, {rows, bins}), sines(dtype, {rows, bins});
  for (int64_t j = 0; j < rows; ++j) {
    for (int64_t k = 0; k < bins; ++k) {
      const double angle = 2 * std::numbers::pi * static_cast<double>(j * k % length) / static_cast<double>(length);
      cosines.set(j * bins + k, std::cos(angle));
      sines.set(j * bins + k, std::sin(angle));
    }
  }
  Graph& graph = b->graph();
  const auto add = [&](const char* what, const Tensor& tensor) {
    return b->var(graph.add_initializer(graph.unique_name(name + what), tensor));
  };
  return {add("/cosines", cosines), add("/sines", sines)};
}

// Σ_j x_j exp(∓2πi jk / length) along the last axis of the real and imaginary parts, as [..., bins, 2]. The imaginary
// part is none for real numbers. The inverse has the other sign, and is divided by the length.
Var transform(Builder* b, const Node& node, Var real, Var imaginary, int64_t length, int64_t bins, bool inverse) {
  const auto [cosines, sines] = waves(b, node.output()->name(), real.dtype(), length, length, bins);
  Var re = matmul(real, cosines), im = matmul(real, inverse ? sines : -sines);
  if (imaginary) {
    const Var cross = matmul(imaginary, sines);
    re = inverse ? re - cross : re + cross;
    im = im + matmul(imaginary, cosines);
  }
  const Var both = concat({unsqueeze(re, {-1}), unsqueeze(im, {-1})}, int64_t{-1});
  return inverse ? both * (1.0 / static_cast<double>(length)) : both;
}

// The real signal of `length` of which real and imaginary have the lower half of the spectrum, as [..., length, 1]: the
// bins of the upper half are the conjugates of those between the first and the middle one.
Var real_signal(Builder* b, const Node& node, Var real, Var imaginary, int64_t length) {
  const int64_t bins = length / 2 + 1;
  const auto [cosines, sines] = waves(b, node.output()->name(), real.dtype(), length, bins, length);
  Tensor shares = Tensor::full(real.dtype(), {bins}, 2 / static_cast<double>(length));
  for (int64_t k = 0; k < bins; ++k) {
    if (k == 0 || 2 * k == length) shares.set(k, 1 / static_cast<double>(length));
  }
  const Var share = b->constant(shares);
  const Var of_real = matmul(real * share, cosines);
  return unsqueeze(of_real - matmul(imaginary * share, sines), {-1});
}

// Part 0 or 1 of complex numbers, whose last axis is dropped.
Var part(Var x, int64_t i) { return squeeze(slice(x, i, i + 1, -1), {-1}); }

bool is_complex(const Value& x) { return (*x.type().dims)[static_cast<size_t>(x.rank() - 1)].value() == 2; }

bool has_parts(const Value* x) {
  if (!x || !x->has_rank() || x->rank() < 2 || !is_float(x->dtype())) return false;
  const Dim& last = (*x->type().dims)[static_cast<size_t>(x->rank() - 1)];
  return last.known() && (last.value() == 1 || last.value() == 2);
}

// The axes of a tensor with `axis` last.
Shape with_last(int64_t axis, int64_t rank) {
  Shape order;
  for (int64_t i = 0; i < rank; ++i) {
    if (i != axis) order.push_back(i);
  }
  order.push_back(axis);
  return order;
}

// Cuts x, which has `have` elements along the last axis, or pads it with zeros, to `length` elements.
Var with_length(Var x, int64_t have, int64_t length) {
  if (have > length) return slice(x, 0, length, -1);
  if (have == length) return x;
  Shape pads(static_cast<size_t>(2 * x.rank()), 0);
  pads.back() = length - have;
  return x.builder().op("Pad", {x, x.builder().ints(pads)});
}

Value* dft(Builder* b, const Node& node) {
  Value* x = node.input(0);
  if (!has_parts(x)) return nullptr;
  const int64_t rank = x->rank();
  const std::optional<int64_t> given =
      node.input(2) ? whole_number(node.input(2)) : std::optional<int64_t>(node.attr("axis", -2));
  if (!given || *given < -rank || *given >= rank) return nullptr;
  const int64_t axis = normalize_axis(*given, rank);
  if (axis == rank - 1) return nullptr;
  const Dim& along = (*x->type().dims)[static_cast<size_t>(axis)];
  const bool inverse = node.attr("inverse", 0) != 0, onesided = node.attr("onesided", 0) != 0;
  const bool from_half = inverse && onesided;
  const int64_t length = node.input(1)    ? whole_number(node.input(1)).value_or(0)
                         : !along.known() ? 0
                         : from_half      ? 2 * (along.value() - 1)
                                          : along.value();
  if (!along.known() || length < 1 || length > kLongest || (from_half && !is_complex(*x))) return nullptr;
  const int64_t bins = onesided ? length / 2 + 1 : length;
  const auto last = [&](int64_t i) {
    const Var one = transpose(part(b->var(x), i), with_last(axis, rank - 1));
    return with_length(one, along.value(), from_half ? bins : length);
  };
  const Var real = last(0), imaginary = is_complex(*x) ? last(1) : Var();
  const Var y = from_half ? real_signal(b, node, real, imaginary, length)
                          : transform(b, node, real, imaginary, length, bins, inverse);
  Shape order = inverse_permutation(with_last(axis, rank - 1));
  order.push_back(rank - 1);
  return transpose(y, order).value();
}

// Frames of the signal, one each `step`, times the window. PyTorch's older exporter writes a signal of real numbers
// without the axis of their parts, which ONNX Runtime accepts.
Value* stft(Builder* b, const Node& node) {
  Value* x = node.input(0);
  if (x && x->has_rank() && x->rank() == 2) x = unsqueeze(b->var(x), {2}).value();
  const std::optional<int64_t> step = whole_number(node.input(1));
  const Value* window = node.input(2);
  const bool has_window = window && window->type().is_static() && window->rank() == 1;
  const int64_t length = node.input(3) ? whole_number(node.input(3)).value_or(0)
                         : has_window  ? window->type().shape()[0]
                                       : 0;
  if (!has_parts(x) || x->rank() != 3 || !step || *step < 1 || length < 1 || length > kLongest) return nullptr;
  const int64_t bins = node.attr("onesided", 1) != 0 ? length / 2 + 1 : length;
  Tensor places(DType::kInt64, {length});
  for (int64_t i = 0; i < length; ++i) places.set(i, static_cast<double>(i));
  const Var samples = squeeze(dim(b->var(x), 1), {0});
  const Var frames = b->op("Div", {samples - b->scalar(DType::kInt64, static_cast<double>(length)),
                                   b->scalar(DType::kInt64, static_cast<double>(*step))}) +
                     b->scalar(DType::kInt64, 1);
  const Var starts = b->op("Range", {b->scalar(DType::kInt64, 0), frames, b->scalar(DType::kInt64, 1)}) *
                     b->scalar(DType::kInt64, static_cast<double>(*step));
  const Var indices = unsqueeze(starts, {1}) + b->constant(places);
  const auto framed = [&](int64_t i) {
    const Var one = gather(part(b->var(x), i), indices, 1);
    return window ? one * b->var(const_cast<Value*>(window)) : one;
  };
  const Var real = framed(0), imaginary = is_complex(*x) ? framed(1) : Var();
  return transform(b, node, real, imaginary, length, bins, /*inverse=*/false).value();
}

// Triangles over the bins of a spectrum, one for each mel; https://onnx.ai/onnx/operators/onnx__MelWeightMatrix.html
Value* mel_weights(Builder* b, const Node& node) {
  const std::optional<int64_t> mels = whole_number(node.input(0)), length = whole_number(node.input(1)),
                               rate = whole_number(node.input(2));
  const Tensor low = constant_of(node.input(3)), high = constant_of(node.input(4));
  if (!mels || !length || !rate || low.size() != 1 || high.size() != 1) return nullptr;
  if (*mels < 1 || *length < 1 || *rate < 1 || *length > kLongest || *mels > kLongest) return nullptr;
  const auto mel = [](double hertz) { return 2595 * std::log10(1 + hertz / 700); };
  const double first = mel(low.at(0)), step = (mel(high.at(0)) - first) / static_cast<double>(*mels + 2);
  const int64_t bins = *length / 2 + 1;
  const auto bin = [&](int64_t i) {
    const double hertz = 700 * (std::pow(10, (first + static_cast<double>(i) * step) / 2595) - 1);
    return static_cast<int64_t>(std::floor(static_cast<double>(*length + 1) * hertz / static_cast<double>(*rate)));
  };
  Tensor weights(static_cast<DType>(node.attr("output_datatype", 1)), {bins, *mels});
  const auto set = [&](int64_t row, int64_t column, double value) {
    if (row >= 0 && row < bins) weights.set(row * *mels + column, value);
  };
  for (int64_t i = 0; i < *mels; ++i) {
    const int64_t from = bin(i), centre = bin(i + 1), to = bin(i + 2);
    for (int64_t j = from; j <= centre; ++j)
      set(j, i, centre == from ? 1 : static_cast<double>(j - from) / static_cast<double>(centre - from));
    for (int64_t j = centre; j < to; ++j) set(j, i, static_cast<double>(to - j) / static_cast<double>(to - centre));
  }
  return b->op("Identity", {b->constant(weights)}).value();
}

struct Spectrum {
  const char* op;
  Value* (*replacement)(Builder*, const Node&);  // null where a length is not known
};
constexpr Spectrum kSpectra[] = {{"DFT", dft}, {"STFT", stft}, {"MelWeightMatrix", mel_weights}};

}  // namespace

void replace_spectra(Model* model, const std::function<void(const std::string&)>& replaced) {
  Graph* graph = model->graph.get();
  const size_t constants = graph->initializers().size();
  for (Node* node : graph->nodes()) {
    for (const Spectrum& spectrum : kSpectra) {
      if (!node->is(spectrum.op) || !node->output()) continue;
      Builder b(graph, node);
      b.set_name(node->output()->name() + "/" + node->op());
      Value* made = spectrum.replacement(&b, *node);
      if (!made) break;
      replaced(node->label());
      const std::string name = node->output()->name();
      graph->replace(node->output(), made);
      graph->remove(node);
      if (made->name() != name) graph->rename(made, name);
      break;
    }
  }
  for (size_t i = constants; i < graph->initializers().size(); ++i) {
    const Value* constant = graph->initializers()[i];
    if (is_float(constant->dtype()))
      model->set_metadata(std::string(kConstantRecord) + constant->name(), "cosines and sines of a spectrum");
  }
}

}  // namespace onnx_train
