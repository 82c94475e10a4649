#include "tests/support/narrow_storage_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "onnx_passes/functions/functions.h"
#include "tests/op_cases/covered.h"
#include "tests/support/run_node.h"

namespace onnx_train {
namespace {

// Between -8 and 8; some shapes with a NaN and infinities in.
Tensor numbers(Shape shape, unsigned seed = 1, bool special = false) {
  Tensor tensor = random_tensor(DType::kFloat, std::move(shape), seed);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, tensor.at(i) * 8);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double odd[] = {std::nan(""), kInfinity, -kInfinity};
  for (int64_t k = 0; special && k < 3; ++k) tensor.set(tensor.size() * (k + 1) / 5, odd[k]);
  return tensor;
}

Tensor labels(Shape shape, int64_t classes, bool ignored = false) {
  Tensor tensor(DType::kInt64, std::move(shape));
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>(i * 7 % classes));
  for (int64_t i = 0; ignored && i < tensor.size(); i += 3) tensor.set(i, -100);
  return tensor;
}

}  // namespace

std::vector<NarrowCase> narrow_softmaxes() {
  std::vector<NarrowCase> cases;
  const auto add = [&](const Shape& shape, int64_t axis, bool special) {
    const Attrs attrs = {{"axis", axis}};
    for (const char* op : {"Softmax", "LogSoftmax"}) {
      cases.push_back({op, "", {numbers(shape, 1, special)}, {0}, {0}, 1, attrs});
      cases.push_back(
          {std::string(op) + "Grad", kDomain, {numbers(shape, 2, special), numbers(shape, 3)}, {0, 1}, {0}, 1, attrs});
    }
  };
  add({3, 5}, -1, false);
  add({7, 1}, -1, false);
  add({1, 1}, -1, false);
  add({301, 33}, -1, true);
  add({2, 70003}, -1, false);
  add({2, 3, 4}, 1, false);
  add({3, 70, 19}, 1, true);
  add({129, 40, 1}, 0, false);
  add({0, 5}, -1, false);
  add({5, 0}, -1, false);
  return cases;
}

std::vector<NarrowCase> narrow_losses() {
  std::vector<NarrowCase> cases;
  const auto add = [&](Shape shape, int64_t axis, bool special, double smoothing, const char* reduction,
                       bool weighted) {
    Shape positions = shape;
    positions.erase(positions.begin() + axis);
    const int64_t classes = shape[static_cast<size_t>(axis)];
    const Attrs attrs = {{"axis", axis},
                         {"ignore_index", -100},
                         {"label_smoothing", Tensor::scalar(smoothing)},
                         {"reduction", reduction}};
    const Tensor logits = numbers(shape, 1, special), label = labels(positions, classes, shape.size() > 2);
    std::vector<Tensor> inputs = {logits, label};
    std::vector<Tensor> grad_inputs = {Tensor::scalar(0.7f), logits, label, numbers(positions, 5)};
    if (weighted) inputs.push_back(numbers({classes}, 7));
    if (weighted) grad_inputs.push_back(numbers({classes}, 7));
    cases.push_back({"SoftmaxCrossEntropy", kDomain, inputs, {0}, {}, 2, attrs});
    cases.push_back({"LabelScores", kDomain, {logits, label}, {0}, {}, 2, {attrs[0], attrs[1]}});
    cases.push_back({"SoftmaxCrossEntropyGrad", kDomain, grad_inputs, {1}, {0}, 1, attrs});
  };
  add({6, 10}, 1, false, 0, "mean", false);
  add({1, 1}, 1, false, 0, "sum", false);
  add({3, 4, 9}, 2, true, 0, "mean", false);
  add({2, 5, 3}, 1, true, 0.1, "sum", true);
  add({2, 5, 65}, 1, false, 0.1, "mean", true);
  add({2, 7, 1}, 1, false, 0, "mean", false);
  add({2, 11, 9, 31}, 1, true, 0, "mean", false);
  add({3, 40001}, 1, false, 0.1, "mean", false);
  add({200, 513}, 1, false, 0, "mean", true);
  add({0, 3}, 1, false, 0, "sum", false);
  return cases;
}

std::vector<NarrowCase> narrow_normalizations() {
  std::vector<NarrowCase> cases;
  const auto add = [&](const Shape& shape, const Shape& parameters, bool special) {
    const Attrs attrs = {{"axis", -static_cast<int64_t>(parameters.size())}, {"epsilon", 1e-5f}};
    const Tensor x = numbers(shape, 1, special), dy = numbers(shape, 2), scale = numbers(parameters, 3);
    const Tensor bias = numbers(parameters, 4);
    cases.push_back({"LayerNormalization", "", {x, scale, bias}, {0}, {0}, 3, attrs});
    cases.push_back({"LayerNormalization", "", {x, scale}, {0}, {0}, 1, attrs});
    cases.push_back({"RMSNormalization", "", {x, scale}, {0}, {0}, 1, attrs});
    cases.push_back({"RMSNormalization", kDomain, {x, scale}, {0}, {0}, 1, attrs});
    cases.push_back({"LayerNormalizationGrad", kDomain, {x, scale, dy}, {0, 2}, {0}, 3, attrs});
    cases.push_back({"LayerNormalizationGrad", kDomain, {x, scale, dy}, {0, 2}, {0}, 1, attrs});
    cases.push_back({"RMSNormalizationGrad", kDomain, {x, scale, dy}, {0, 2}, {0}, 2, attrs});
  };
  add({5, 33}, {33}, false);
  add({4, 1}, {1}, false);
  add({1, 1}, {1}, false);
  add({300, 67}, {67}, true);
  add({7, 3, 9}, {3, 9}, false);
  add({3, 70001}, {70001}, false);
  return cases;
}

// Whole networks: bfloat16_images_test.cc.
std::vector<NarrowCase> narrow_images() {
  std::vector<NarrowCase> cases;
  for (const Shape& shape : {Shape{4, 6, 3, 5}, Shape{1, 1, 1, 2}, Shape{33, 7, 70, 9}}) {
    const Shape channels = {shape[1]};
    const Tensor x = numbers(shape, 1), dy = numbers(shape, 2), y = numbers(shape, 3);
    const Tensor scale = numbers(channels, 4), bias = numbers(channels, 5), mean = numbers(channels, 6);
    Tensor var = numbers(channels, 7);
    for (int64_t c = 0; c < var.size(); ++c) var.set(c, var.at(c) + 9);
    const auto add = [&](const char* op, std::vector<Tensor> inputs, std::vector<int> in, std::vector<int> out,
                         int outputs, const Attrs& attrs = {}, const char* domain = kDomain) {
      cases.push_back({op, domain, std::move(inputs), std::move(in), std::move(out), outputs, attrs});
    };
    const auto rounded = [](const char* epilogue) {
      return Attrs{{"epilogue", epilogue}, {"round_to", static_cast<int>(DType::kBFloat16)}};
    };
    add("BatchNormalization", {x, scale, bias, mean, var}, {0}, {0}, 1, {}, "");
    add("BatchNormalization", {x, scale, bias, mean, var}, {0}, {0}, 1, rounded("relu"));
    add("BatchNormalization", {x, scale, bias, mean, var, dy}, {0, 5}, {0}, 1, rounded("residual, relu"));
    add("BatchNormalizationTrain", {x, scale, bias}, {0}, {0}, 3);
    add("BatchNormalizationTrain", {x, scale, bias}, {0}, {0}, 3, rounded("relu"));
    add("BatchNormalizationTrain", {x, scale, bias, dy}, {0, 3}, {0}, 3, rounded("residual, relu"));
    add("BatchNormalizationGrad", {x, scale, mean, var, dy}, {0, 4}, {0}, 3);
    add("BatchNormalizationFrozenGrad", {x, scale, mean, var, dy}, {0, 4}, {0}, 3);
    add("BatchNormalizationGrad", {x, scale, mean, var, dy, y}, {0, 4, 5}, {0, 3}, 4, {{"epilogue", "relu"}});
  }
  for (const Shape& shape : {Shape{4, 6, 3, 5}, Shape{1, 1, 1, 1}, Shape{3, 8, 70}}) {
    const Tensor x = numbers(shape, 1), dy = numbers(shape, 2);
    const Tensor scale = numbers({shape[1]}, 4), bias = numbers({shape[1]}, 5);
    const Attrs attrs = {{"num_groups", std::max<int64_t>(shape[1] / 2, 1)}};
    cases.push_back({"GroupNormalization", "", {x, scale, bias}, {0}, {0}, 1, attrs});
    cases.push_back({"InstanceNormalization", "", {x, scale, bias}, {0}, {0}, 1});
    cases.push_back({"GroupNormalizationGrad", kDomain, {x, scale, dy}, {0, 2}, {0}, 3, attrs});
  }
  for (const Shape& shape : {Shape{4, 3, 5, 6}, Shape{1, 1, 1, 1}, Shape{3, 7, 70, 300}}) {
    const Tensor x = numbers(shape, 1), dy = numbers(shape, 2);
    const Tensor scale = numbers({shape.back()}, 4), bias = numbers({shape.back()}, 5);
    const Attrs attrs = {{"num_groups", std::max<int64_t>(shape.back() / 3, 1)}, {"channels_last", 1}};
    cases.push_back({"GroupNormalization", kDomain, {x, scale, bias}, {0}, {0}, 1, attrs});
    cases.push_back({"GroupNormalizationGrad", kDomain, {x, scale, dy}, {0, 2}, {0}, 3, attrs});
  }
  return cases;
}

// Windows side by side and overlapping, with padding and without. Whole networks: bfloat16_images_test.cc.
std::vector<NarrowCase> narrow_pools() {
  std::vector<NarrowCase> cases;
  using Ints = std::vector<int64_t>;
  const auto windows = [](Ints kernel, Ints strides, Ints pads) {
    return Attrs{{"kernel_shape", std::move(kernel)},
                 {"strides", std::move(strides)},
                 {"pads", std::move(pads)},
                 {"dilations", Ints{1, 1}}};
  };
  const Attrs apart = windows({2, 2}, {2, 2}, {0, 0, 0, 0}), overlapping = windows({3, 2}, {1, 1}, {1, 0, 1, 1});
  const auto add = [&](const Attrs& attrs, const Shape& x, const Shape& y) {
    const auto last = [](Shape shape) {
      std::rotate(shape.begin() + 1, shape.begin() + 2, shape.end());
      return shape;
    };
    const Shape x_last = last(x), y_last = last(y);
    Attrs attrs_last = attrs;
    attrs_last.emplace_back("channels_last", 1);
    cases.push_back({"MaxPool", "", {numbers(x)}, {0}, {0}, 1, attrs});
    cases.push_back({"MaxPoolGrad", kDomain, {numbers(y), numbers(x, 2)}, {0, 1}, {0}, 1, attrs});
    cases.push_back({"AveragePool", "", {numbers(x)}, {0}, {0}, 1, attrs});
    cases.push_back({"AveragePoolGrad", kDomain, {numbers(y), Tensor::ints(x)}, {0}, {0}, 1, attrs, {1}});
    cases.push_back({"MaxPool", kDomain, {numbers(x_last)}, {0}, {0}, 1, attrs_last});
    cases.push_back({"MaxPoolGrad", kDomain, {numbers(y_last), numbers(x_last, 2)}, {0, 1}, {0}, 1, attrs_last});
    cases.push_back({"AveragePool", kDomain, {numbers(x_last)}, {0}, {0}, 1, attrs_last});
    cases.push_back(
        {"AveragePoolGrad", kDomain, {numbers(y_last), Tensor::ints(x_last)}, {0}, {0}, 1, attrs_last, {1}});
    cases.push_back({"GlobalAveragePool", "", {numbers(x)}, {0}, {0}});
    cases.push_back({"GlobalMaxPool", "", {numbers(x)}, {0}, {0}});
  };
  add(apart, {2, 3, 8, 6}, {2, 3, 4, 3});
  add(overlapping, {3, 17, 7, 9}, {3, 17, 7, 9});
  add(apart, {1, 1, 2, 2}, {1, 1, 1, 1});
  return cases;
}

std::vector<NarrowCase> narrow_others() {
  std::vector<NarrowCase> cases;
  const auto add_arg = [&](const Shape& shape, int64_t axis, int64_t last, bool special) {
    for (const char* op : {"ArgMax", "ArgMin"}) {
      cases.push_back(
          {op, "", {numbers(shape, 1, special)}, {0}, {}, 1, {{"axis", axis}, {"select_last_index", last}}});
    }
  };
  add_arg({3, 5}, -1, 0, false);
  add_arg({1, 1}, 0, 0, false);
  add_arg({40, 5000}, 1, 1, true);  // many numbers are equal once they are rounded
  add_arg({40, 5000}, 1, 0, true);
  add_arg({40, 50, 3}, 1, 1, true);
  add_arg({2, 70001}, 1, 0, false);
  Tensor key(DType::kUint64, {2});
  key.set(0, 5), key.set(1, 99);
  for (const Shape& shape : {Shape{3, 7}, Shape{1}, Shape{5, 40001}, Shape{0, 4}}) {
    for (int outputs : {1, 2}) {
      cases.push_back({"Dropout",
                       kDomain,
                       {numbers(shape, 1, shape.size() == 2 && shape[0] > 0), key, Tensor::scalar(0.3f)},
                       {0},
                       {0},
                       outputs,
                       {{"stream", 3}}});
    }
  }
  for (const Shape& table : {Shape{9, 8}, Shape{5, 3}, Shape{1, 1}, Shape{4, 0}}) {
    cases.push_back({"Gather", "", {numbers(table), labels({2, 7}, table[0])}, {}, {0}, 1, {{"axis", 0}}});
  }
  cases.push_back({"Gather", "", {numbers({3, 6, 4}), labels({5}, 6)}, {}, {0}, 1, {{"axis", 1}}});
  const auto add_gather = [&](const Shape& dy, const Shape& indices, const Shape& x, int64_t axis) {
    cases.push_back({"GatherGrad",
                     kDomain,
                     {numbers(dy), labels(indices, x[static_cast<size_t>(axis)]), Tensor::ints(x)},
                     {0},
                     {},
                     1,
                     {{"axis", axis}},
                     {2}});
  };
  const auto add_rows = [&](const Shape& dy, const Shape& indices, const Shape& x) {
    cases.push_back(
        {"CoalesceRows", kDomain, {numbers(dy), labels(indices, x[0]), Tensor::ints(x)}, {0}, {}, 2, {}, {2}});
  };
  add_rows({2, 3, 70}, {2, 3}, {4, 70});
  add_rows({900, 16}, {900}, {1000, 16});
  add_rows({0, 3}, {0}, {4, 3});
  add_gather({2, 3, 70}, {3}, {2, 2, 70}, 1);
  add_gather({900, 1}, {900}, {5, 1}, 0);
  add_gather({300, 513}, {300}, {7, 513}, 0);
  add_gather({0, 3}, {0}, {4, 3}, 0);
  return cases;
}

// Causal, of 2 heads, as [batch, tokens, heads, width] in memory. cuDNN, which rounds what is never stored, has no
// attention of this width (cuda_on_host/cudnn_attention_test.cc).
std::vector<NarrowCase> narrow_attentions() {
  const Shape tokens = {2, 37, 2, 12}, rows = {2, 2, 37};
  Tensor mask(DType::kFloat, {37, 37});
  for (int64_t i = 0; i < mask.size(); ++i)
    mask.set(i, i % 37 <= i / 37 ? 0 : -std::numeric_limits<double>::infinity());
  const Tensor q = random_tensor(DType::kFloat, tokens, 1), k = random_tensor(DType::kFloat, tokens, 2),
               v = random_tensor(DType::kFloat, tokens, 3), dy = random_tensor(DType::kFloat, tokens, 4);
  Tensor highest(DType::kFloat, rows), sum(DType::kFloat, rows);
  for (int64_t i = 0; i < sum.size(); ++i) highest.set(i, 1), sum.set(i, 20);
  Attrs attrs = {{"scale", 0.35f}, {"fill", 0.0f}, {"keeps_true", 0}, {"guarded", 0}};
  for (const char* name : {"perm_q", "perm_k", "perm_v", "perm_y"}) attrs.push_back({name, Shape{0, 2, 1, 3}});
  Attrs backward = attrs;
  for (const char* name : {"perm_dy", "perm_dq", "perm_dk", "perm_dv"}) backward.push_back({name, Shape{0, 2, 1, 3}});
  return {{"BlockAttention", kDomain, {q, k, v, mask}, {0, 1, 2}, {0}, 3, attrs},
          {"BlockAttentionGrad",
           kDomain,
           {dy, q, k, v, random_tensor(DType::kFloat, tokens, 5), highest, sum, mask},
           {0, 1, 2, 3, 4},
           {0, 1, 2},
           3,
           backward}};
}

std::set<std::string> narrow_storage_operators() {
  std::set<std::string> operators;
  for (auto* family : {narrow_softmaxes, narrow_losses, narrow_normalizations, narrow_images, narrow_pools,
                       narrow_others, narrow_attentions}) {
    for (const NarrowCase& c : family()) operators.insert(c.op);
  }
  return operators;
}

}  // namespace onnx_train
