// Kernels that read and write 16-bit floats give bit for bit what float32 kernels with casts around them give. On the
// CPU these are bfloat16; on CUDA, float16 as well.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

#include "kernels/device.h"
#include "kernels/functions/functions.h"
#include "kernels/host.h"
#include "kernels/lowering/lowering.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inference.h"
#include "runtime/session.h"
#include "tests/op_cases/covered.h"
#include "tests/run_node.h"

namespace onnx_train {
namespace {

// A node, and the inputs and outputs that may be narrow according to its row in onnx_passes/operators.
struct NarrowCase {
  std::string op, domain;
  std::vector<Tensor> inputs;
  std::vector<int> narrow_inputs, narrow_outputs;
  int num_outputs = 1;
  Attrs attrs = {};
  std::set<int> constants = {};
};

bool has(const std::vector<int>& list, int i) { return std::find(list.begin(), list.end(), i) != list.end(); }

Var rounded(Var x, DType dtype) { return cast(cast(x, dtype), DType::kFloat); }

bool is_cpu() { return default_device().name() == "cpu"; }

bool is_channels_last(const NarrowCase& c) { return is_set(c.attrs, "channels_last"); }

// Whether the device has a kernel of this operator that stores numbers in 16 bits. Elsewhere than on the CPU and on
// CUDA nothing is narrow.
bool has_form(const NarrowCase& c) {
  static const std::set<std::string> of_cuda = {"Softmax",
                                                "LogSoftmax",
                                                "SoftmaxGrad",
                                                "LogSoftmaxGrad",
                                                "SoftmaxCrossEntropy",
                                                "LayerNormalization",
                                                "RMSNormalization",
                                                "LayerNormalizationGrad",
                                                "RMSNormalizationGrad",
                                                "SoftmaxCrossEntropyGrad",
                                                "ArgMax",
                                                "ArgMin",
                                                "MaxPool",
                                                "MaxPoolGrad",
                                                "AveragePool",
                                                "AveragePoolGrad",
                                                "GlobalAveragePool",
                                                "GlobalMaxPool",
                                                "Dropout",
                                                "BatchNormalization",
                                                "BatchNormalizationTrain",
                                                "BatchNormalizationGrad",
                                                "BatchNormalizationFrozenGrad",
                                                "GroupNormalization",
                                                "InstanceNormalization",
                                                "GroupNormalizationGrad"};
  static const std::set<std::string> of_cuda_alone = {"BlockAttention", "BlockAttentionGrad"};
  if (of_cuda_alone.contains(c.op)) return default_device().name() == "cuda";
  // The CPU stores images of groups in 16 bits with the channels last alone, CUDA with the channels first.
  const bool has_groups = c.op.starts_with("Group") || c.op.starts_with("Instance");
  if (is_cpu()) return !has_groups || is_channels_last(c);
  return default_device().name() == "cuda" && of_cuda.contains(c.op) && !is_set(c.attrs, "relu") &&
         !is_channels_last(c);
}

// The inputs that the device's kernel reads in 16 bits where these inputs and outputs may be; nothing if it has no
// kernel. On CUDA all inputs that may be narrow have one type, so a kernel that writes 16 bits reads float32 if they
// do not.
std::optional<std::vector<int>> narrow_inputs_on_device(const NarrowCase& c, const std::vector<int>& inputs,
                                                        const std::vector<int>& outputs) {
  if (!has_form(c)) return std::nullopt;
  const bool takes_each = is_cpu() || c.op.starts_with("BlockAttention");
  if (takes_each || inputs.empty() || inputs == c.narrow_inputs) return inputs;
  return outputs.empty() ? std::nullopt : std::optional(std::vector<int>());
}

constexpr int64_t kMostOnDevices = 20000;  // elements of an input: kernels of other devices run on one core

bool is_small(const NarrowCase& c) {
  const auto fits = [](const Tensor& tensor) { return tensor.empty() || tensor.size() <= kMostOnDevices; };
  return std::all_of(c.inputs.begin(), c.inputs.end(), fits);
}

// The node with roundings around those of its inputs and outputs that are listed. What it reads is made in the model,
// so that results may lie where inputs lay.
Model make_model(const NarrowCase& c, const std::vector<int>& inputs, const std::vector<int>& outputs, DType dtype) {
  Model model;
  model.context->opsets[""] = 23;
  Graph& graph = *model.graph;
  Builder b(&graph);
  std::vector<Var> operands;
  for (int i = 0; i < std::ssize(c.inputs); ++i) {
    const Tensor& value = c.inputs[static_cast<size_t>(i)];
    if (value.empty() || c.constants.count(i) > 0) {
      operands.push_back(value.empty() ? Var() : b.constant(value));
      continue;
    }
    const Shape shape = value.shape();
    const Var given = b.var(graph.add_input(concat("x", i), {value.dtype(), Dims(shape.begin(), shape.end())}));
    operands.push_back(has(inputs, i) ? rounded(given, dtype) : given);
  }
  const std::vector<Var> made = c.domain == kDomain ? call_lowered(b, c.op, c.num_outputs, operands, c.attrs)
                                                    : b.ops(c.op, c.num_outputs, operands, c.attrs);
  for (int i = 0; i < c.num_outputs; ++i) {
    const Var y = made[static_cast<size_t>(i)];
    graph.add_output((has(outputs, i) ? rounded(y, dtype) : y).value());
  }
  return model;
}

std::vector<Tensor> run(Model model, const NarrowCase& c, bool narrow) {
  SessionOptions options;
  // Generated kernels, of which each takes a compiler a moment, are not what is tested.
  if (default_device().name() == "cuda") options.plan.lowering.without = {"fuse_elementwise"};
  if (!narrow) options.plan.lowering.without.emplace_back("narrow_storage");
  TensorMap inputs;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const std::string name = concat("x", i);
    if (model.graph->find(name)) inputs[name] = c.inputs[i];
  }
  std::vector<std::string> names;
  for (const Value* output : model.graph->outputs()) names.push_back(output->name());
  Session session(std::move(model), options);
  const TensorMap& results = session.run("predict", inputs);
  std::vector<Tensor> outputs;
  for (const std::string& name : names) outputs.push_back(results.at(name).clone());
  return outputs;
}

// Whether there is a call of the function `op` that stores these inputs and outputs in 16 bits.
bool holds_call(const Model& model, const std::string& op, const std::vector<int>& inputs,
                const std::vector<int>& outputs, DType dtype) {
  const auto is_narrow = [=](const Value* value) { return value->dtype() == dtype; };
  for (const Node* node = model.graph->first(); node; node = node->next()) {
    if (node->is(op, kDomain) &&
        std::all_of(inputs.begin(), inputs.end(), [&](int i) { return is_narrow(node->input(i)); }) &&
        std::all_of(outputs.begin(), outputs.end(), [&](int i) { return is_narrow(node->output(i)); }))
      return true;
  }
  return false;
}

void expect_same_bits(const NarrowCase& c, const std::vector<int>& inputs, const std::vector<int>& outputs,
                      DType dtype) {
  const auto text = concat(c.op, " ", name(dtype), " ", to_string(c.inputs[0].shape()), ", narrow inputs ",
                           to_string(Shape(inputs.begin(), inputs.end())), ", outputs ",
                           to_string(Shape(outputs.begin(), outputs.end())));
  Model narrowed = make_model(c, inputs, outputs, dtype);
  const auto read = narrow_inputs_on_device(c, inputs, outputs);
  EXPECT_EQ(narrow_storage(narrowed, default_device()), read.has_value()) << text;
  EXPECT_EQ(holds_call(narrowed, c.op, read.value_or(inputs), outputs, dtype), read.has_value()) << text;
  if (!read) return;
  const std::vector<Tensor> wanted = run(make_model(c, inputs, outputs, dtype), c, false);
  for (int threads : {1, 2}) {
    set_num_threads(threads);
    const std::vector<Tensor> got = run(make_model(c, inputs, outputs, dtype), c, true);
    for (size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_EQ(got[i].shape(), wanted[i].shape()) << text;
      const size_t bytes = static_cast<size_t>(wanted[i].size()) * size_of(wanted[i].dtype());
      if (bytes == 0 || std::memcmp(got[i].data(), wanted[i].data(), bytes) == 0) continue;
      for (int64_t k = 0; k < got[i].size(); ++k) {
        ASSERT_EQ(got[i].at(k), wanted[i].at(k)) << text << ", " << threads << " threads, output " << i << "[" << k;
      }
    }
  }
  set_num_threads(2);
}

void expect_same_bits(const NarrowCase& c, const std::vector<int>& inputs, const std::vector<int>& outputs) {
  if (is_cpu()) return expect_same_bits(c, inputs, outputs, DType::kBFloat16);
  if (!is_small(c) || is_channels_last(c)) return;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) expect_same_bits(c, inputs, outputs, dtype);
}

// Every way to make some of the inputs and outputs narrow.
void expect_same_bits(const NarrowCase& c) {
  const size_t in = c.narrow_inputs.size(), all = in + c.narrow_outputs.size();
  for (unsigned mask = 1; mask < 1u << all; ++mask) {
    std::vector<int> inputs, outputs;
    for (size_t i = 0; i < all; ++i) {
      if ((mask >> i & 1) == 0) continue;
      if (i < in) inputs.push_back(c.narrow_inputs[i]);
      if (i >= in) outputs.push_back(c.narrow_outputs[i - in]);
    }
    expect_same_bits(c, inputs, outputs);
  }
}

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

std::vector<NarrowCase> softmax_cases() {
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

std::vector<NarrowCase> loss_cases() {
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

std::vector<NarrowCase> normalization_cases() {
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
std::vector<NarrowCase> image_cases() {
  std::vector<NarrowCase> cases;
  for (const Shape& shape : {Shape{4, 6, 3, 5}, Shape{1, 1, 1, 1}, Shape{33, 7, 70, 9}}) {
    const Shape channels = {shape[1]};
    const Tensor x = numbers(shape, 1), dy = numbers(shape, 2), y = numbers(shape, 3);
    const Tensor scale = numbers(channels, 4), bias = numbers(channels, 5), mean = numbers(channels, 6);
    Tensor var = numbers(channels, 7);
    for (int64_t c = 0; c < var.size(); ++c) var.set(c, var.at(c) + 9);
    const auto add = [&](const char* op, std::vector<Tensor> inputs, std::vector<int> in, std::vector<int> out,
                         int outputs, const Attrs& attrs = {}, const char* domain = kDomain) {
      cases.push_back({op, domain, std::move(inputs), std::move(in), std::move(out), outputs, attrs});
    };
    const Attrs relu = {{"relu", 1}}, rounded = {{"relu", 1}, {"round_to", static_cast<int>(DType::kBFloat16)}};
    add("BatchNormalization", {x, scale, bias, mean, var}, {0}, {0}, 1, {}, "");
    add("BatchNormalization", {x, scale, bias, mean, var}, {0}, {0}, 1, rounded);
    add("BatchNormalization", {x, scale, bias, mean, var, dy}, {0, 5}, {0}, 1, rounded);
    add("BatchNormalizationTrain", {x, scale, bias}, {0}, {0}, 3);
    add("BatchNormalizationTrain", {x, scale, bias}, {0}, {0}, 3, rounded);
    add("BatchNormalizationTrain", {x, scale, bias, dy}, {0, 3}, {0}, 3, rounded);
    add("BatchNormalizationGrad", {x, scale, mean, var, dy}, {0, 4}, {0}, 3);
    add("BatchNormalizationFrozenGrad", {x, scale, mean, var, dy}, {0, 4}, {0}, 3);
    add("BatchNormalizationGrad", {x, scale, mean, var, dy, y}, {0, 4, 5}, {0, 3}, 4, relu);
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
std::vector<NarrowCase> pool_cases() {
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

std::vector<NarrowCase> other_cases() {
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
std::vector<NarrowCase> attention_cases() {
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

std::vector<NarrowCase> all_cases() {
  std::vector<NarrowCase> all;
  for (auto* family :
       {softmax_cases, loss_cases, normalization_cases, image_cases, pool_cases, other_cases, attention_cases}) {
    for (NarrowCase& c : family()) all.push_back(std::move(c));
  }
  return all;
}

TEST(NarrowStorage, SoftmaxesKeepTheirBits) {
  for (const NarrowCase& c : softmax_cases()) expect_same_bits(c);
}

TEST(NarrowStorage, LossesKeepTheirBits) {
  for (const NarrowCase& c : loss_cases()) expect_same_bits(c);
}

TEST(NarrowStorage, NormalizationsKeepTheirBits) {
  for (const NarrowCase& c : normalization_cases()) expect_same_bits(c);
}

TEST(NarrowStorage, NormalizedImagesKeepTheirBits) {
  for (const NarrowCase& c : image_cases()) expect_same_bits(c, c.narrow_inputs, c.narrow_outputs);
}

TEST(NarrowStorage, PoolsKeepTheirBits) {
  for (const NarrowCase& c : pool_cases()) {
    expect_same_bits(c, c.narrow_inputs, c.narrow_outputs);
    expect_same_bits(c, c.narrow_inputs, {});
  }
}

TEST(NarrowStorage, OtherKernelsKeepTheirBits) {
  for (const NarrowCase& c : other_cases()) expect_same_bits(c);
}

TEST(NarrowStorage, AttentionKeepsItsBits) {
  for (const NarrowCase& c : attention_cases()) {
    expect_same_bits(c, c.narrow_inputs, c.narrow_outputs);
    expect_same_bits(c, c.narrow_inputs, {});
  }
}

TEST(NarrowStorage, LeavesDoublesAlone) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (double[3,4] x) => (double[3,4] y) {
      narrow = Cast <to = 16> (x)
      wide = Cast <to = 11> (narrow)
      p = Softmax (wide)
      narrow_p = Cast <to = 16> (p)
      y = Cast <to = 11> (narrow_p)
    })");
  infer_types(model.graph.get());
  EXPECT_FALSE(narrow_storage(model, Device::cpu()));
}

// Who else reads the exact result gets it: the kernel writes float32.
TEST(NarrowStorage, KeepsWhatSomebodyReadsInFull) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (bfloat16[3,4] x) => (bfloat16[3,4] y, float[3,4] z) {
      wide = Cast <to = 1> (x)
      p = Softmax (wide)
      y = Cast <to = 16> (p)
      z = Neg (p)
    })");
  infer_types(model.graph.get());
  EXPECT_TRUE(narrow_storage(model, Device::cpu()));
  const Node* made = model.graph->find("z")->producer()->input(0)->producer();
  EXPECT_TRUE(made->is("Softmax", kDomain));
  EXPECT_EQ(made->output()->dtype(), DType::kFloat);
  EXPECT_EQ(made->input(0)->dtype(), DType::kBFloat16);
}

}  // namespace

std::set<std::string> narrow_storage_operators() {
  std::set<std::string> operators;
  for (const NarrowCase& c : all_cases()) operators.insert(c.op);
  return operators;
}

}  // namespace onnx_train
