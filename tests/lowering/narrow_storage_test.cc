// Kernels that read and write 16-bit floats give bit for bit what float32 kernels with casts around them give. On the
// CPU these are bfloat16; on CUDA, float16 as well.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <set>

#include "kernels/device.h"
#include "kernels/functions/functions.h"
#include "kernels/host.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "runtime/session/session.h"
#include "tests/support/narrow_storage_cases.h"
#include "tests/support/run_node.h"

namespace onnx_train::narrow_storage_test {
namespace {

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
                                                "LabelScores",
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
  static const std::set<std::string> of_cuda_alone = {"BlockAttention", "BlockAttentionGrad", "Gather"};
  if (of_cuda_alone.contains(c.op)) return default_device().name() == "cuda";
  // The CPU stores images of groups in 16 bits with the channels last alone, CUDA with the channels first.
  const bool has_groups = c.op.starts_with("Group") || c.op.starts_with("Instance");
  if (is_cpu()) return !has_groups || is_channels_last(c);
  return default_device().name() == "cuda" && of_cuda.contains(c.op) && !is_channels_last(c);
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
  const int before = num_threads();
  for (int threads : is_cpu() ? std::vector{1, 2} : std::vector{1}) {
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
  set_num_threads(before);
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

TEST(NarrowStorage, SoftmaxesKeepTheirBits) {
  for (const NarrowCase& c : narrow_softmaxes()) expect_same_bits(c);
}

TEST(NarrowStorage, LossesKeepTheirBits) {
  for (const NarrowCase& c : narrow_losses()) expect_same_bits(c);
}

TEST(NarrowStorage, NormalizationsKeepTheirBits) {
  for (const NarrowCase& c : narrow_normalizations()) expect_same_bits(c);
}

TEST(NarrowStorage, NormalizedImagesKeepTheirBits) {
  for (const NarrowCase& c : narrow_images()) expect_same_bits(c, c.narrow_inputs, c.narrow_outputs);
}

TEST(NarrowStorage, PoolsKeepTheirBits) {
  for (const NarrowCase& c : narrow_pools()) {
    expect_same_bits(c, c.narrow_inputs, c.narrow_outputs);
    expect_same_bits(c, c.narrow_inputs, {});
  }
}

TEST(NarrowStorage, OtherKernelsKeepTheirBits) {
  for (const NarrowCase& c : narrow_others()) expect_same_bits(c);
}

TEST(NarrowStorage, AttentionKeepsItsBits) {
  for (const NarrowCase& c : narrow_attentions()) {
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

}  // namespace onnx_train::narrow_storage_test
