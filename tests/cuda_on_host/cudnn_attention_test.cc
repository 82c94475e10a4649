// Attention by cuDNN: which plans the real library has, and whether results equal the CPU's within the rounding of
// tensor cores. Without the library, or with ONNX_TRAIN_CUDNN=off, our kernel runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "kernels/cuda/support/device.h"
#include "kernels/functions/functions.h"
#include "onnx_passes/functions/functions.h"
#include "runtime/session/session.h"
#include "tests/support/cudnn_limits.h"
#include "tests/support/device_network.h"
#include "tests/support/forms.h"
#include "tests/support/run_node.h"

namespace onnx_train::cudnn_attention_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kLowest = std::numeric_limits<float>::lowest();
const Shape kByHeads = {0, 2, 1, 3};  // [batch, tokens, heads, width] in memory

bool has_cudnn() { return cuda_device().description().find(", cuDNN 9.") != std::string::npos; }

constexpr const char* kNoLibrary = "cuDNN is not installed: scripts/bootstrap --cuda";

using At = std::array<int64_t, 4>;  // batch, head, query or key, column or key

// An attention of float32 operands that its model rounds to `type`.
struct Example {
  int64_t batch = 2, heads = 2, queries = 37, keys = 37, width = 8, value_width = 8;
  Shape order = kByHeads;  // axes in memory; the permutation is its own inverse
  DType type = DType::kBFloat16;
  Shape mask = {};                                                         // empty: no mask
  std::function<double(const At&)> added = [](const At&) { return 0.0; };  // mask added to a score; -inf hides it
  bool selects = false, guarded = false, is_constant = true;               // properties of the mask
  float fill = -kInfinity;
  float hidden = -kInfinity;
  bool stores_y = true, stores_gradients = true;  // in 16 bits
  bool packed = false;                            // q, k and v in one tensor

  Shape shape(int64_t rows, int64_t columns) const {
    const Shape all = {batch, heads, rows, columns};
    Shape memory;
    for (const int64_t axis : order) memory.push_back(all[static_cast<size_t>(axis)]);
    return memory;
  }
  Attrs attrs(const std::vector<const char*>& permutations) const {
    Attrs attrs = {{"scale", 0.35f}, {"fill", fill}, {"keeps_true", selects}, {"guarded", guarded}, {"hidden", hidden}};
    for (const char* name : permutations) attrs.push_back({name, order});
    return attrs;
  }
  Tensor mask_tensor() const {
    Tensor tensor(selects ? DType::kBool : DType::kFloat, mask);
    Shape full = mask;
    full.insert(full.begin(), 4 - full.size(), 1);
    for (int64_t i = 0; i < tensor.size(); ++i) {
      int64_t rest = i;
      At at = {};
      for (size_t axis = 4; axis-- > 0;) at[axis] = rest % full[axis], rest /= full[axis];
      const double value = added(at);
      tensor.set(i, selects ? (value == 0 ? 1.0 : 0.0) : value);
    }
    return tensor;
  }
};

const std::vector<const char*> kForward = {"perm_q", "perm_k", "perm_v", "perm_y"},
                               kBackward = {"perm_dy", "perm_q",  "perm_k",  "perm_v",
                                            "perm_y",  "perm_dq", "perm_dk", "perm_dv"};

double causal(const At& at) { return at[3] <= at[2] ? 0 : -kInfinity; }
double lowest_after(const At& at) { return at[3] <= at[2] ? 0 : kLowest; }
double padding(const At& at) { return at[3] < 20 + 7 * at[0] ? 0 : kLowest; }
double padding_of_all(const At& at) { return at[3] < 20 * at[0] && at[2] != 3 ? 0 : -1e30; }
double padding_by_infinity(const At& at) { return at[3] < 20 + 7 * at[0] ? 0 : -kInfinity; }
double all_hidden_by_infinity(const At& at) { return at[3] < 20 * at[0] && at[2] != 3 ? 0 : -kInfinity; }
double distance(const At& at) { return -0.1 * static_cast<double>((at[1] + 1) * std::abs(at[2] - at[3])); }

std::vector<Example> examples() {
  const Shape square = {37, 37};
  return {
      {.mask = square, .added = lowest_after, .guarded = true},
      {.type = DType::kFloat16, .mask = square, .added = causal, .selects = true, .guarded = true, .fill = kLowest},
      {.queries = 5, .keys = 70, .width = 16, .value_width = 24, .order = {0, 1, 2, 3}},
      {.keys = 128, .type = DType::kFloat16, .mask = {2, 1, 1, 128}, .added = padding, .is_constant = false},
      {.keys = 128, .order = {2, 1, 0, 3}, .mask = {1, 2, 37, 128}, .added = distance, .is_constant = false},
      // All rows of the first batch element and one row of the other are hidden entirely.
      {.keys = 128,
       .mask = {2, 1, 37, 128},
       .added = padding_of_all,
       .guarded = true,
       .is_constant = false,
       .hidden = -1e29f},
      {.keys = 128,
       .mask = {2, 1, 37, 128},
       .added = all_hidden_by_infinity,
       .selects = true,
       .guarded = true,
       .is_constant = false},
      {.keys = 128, .type = DType::kFloat16, .mask = {2, 1, 1, 128}, .added = padding_by_infinity, .selects = true},
      {.mask = square, .added = lowest_after, .guarded = true, .packed = true},
      {.order = {0, 1, 2, 3}, .type = DType::kFloat16, .packed = true},
      // Steps of gemm-bf16, and models whose element-wise nodes read the gradients, have such types.
      {.stores_y = false, .stores_gradients = false},
      {.type = DType::kFloat16, .stores_gradients = false, .packed = true},
  };
}

// Inputs of the forward and of the backward node.
struct Operands {
  Tensor dy = {}, q = {}, k = {}, v = {}, y = {}, highest = {}, sum = {}, mask = {};

  std::vector<Tensor> forward() const { return with_mask({q, k, v}); }
  std::vector<Tensor> backward() const { return with_mask({dy, q, k, v, y, highest, sum}); }

 private:
  std::vector<Tensor> with_mask(std::vector<Tensor> inputs) const {
    if (!mask.empty()) inputs.push_back(mask);
    return inputs;
  }
};

Tensor rounded(const Tensor& tensor, DType type) { return tensor.cast(type).cast(DType::kFloat); }

// Returns operands that `type` holds exactly, and y, highest, sum, dq, dk and dv by the CPU's float32 kernels, which
// the operator cases compare with the bodies.
std::pair<Operands, std::vector<Tensor>> expected_of(const Example& e) {
  const auto random = [&](int64_t rows, int64_t columns, unsigned seed) {
    return rounded(random_tensor(DType::kFloat, e.shape(rows, columns), seed), e.type);
  };
  Operands o{.dy = random(e.queries, e.value_width, 1),
             .q = random(e.queries, e.width, 2),
             .k = random(e.keys, e.width, 3),
             .v = random(e.keys, e.value_width, 4)};
  if (!e.mask.empty()) o.mask = e.mask_tensor();
  std::vector<Tensor> results = run_node("BlockAttention", o.forward(), e.attrs(kForward), 3, kDomain);
  o.y = rounded(results[0], e.type), o.highest = results[1], o.sum = results[2];
  for (const Tensor& gradient : run_node("BlockAttentionGrad", o.backward(), e.attrs(kBackward), 3, kDomain))
    results.push_back(gradient);
  return {o, results};
}

Model model_of(const Example& e, const Operands& o) {
  Model model;
  model.context->opsets[""] = 23;
  Graph& graph = *model.graph;
  Builder b(&graph);
  const auto round = [&](Var x) { return cast(cast(x, e.type), DType::kFloat); };
  const auto input = [&](const char* name, const Tensor& value) {
    const Shape& shape = value.shape();
    return b.var(graph.add_input(name, {value.dtype(), Dims(shape.begin(), shape.end())}));
  };
  const Var dy = round(input("dy", o.dy)), q = round(input("q", o.q)), k = round(input("k", o.k)),
            v = round(input("v", o.v));
  std::vector<Var> forward = {q, k, v};
  Attrs forward_attrs = e.attrs(kForward), backward_attrs = e.attrs(kBackward);
  const int64_t heads = e.order[1];
  if (e.packed) {
    forward = {b.op("Concat", {q, k, v}, {{"axis", heads}}), Var(), Var()};
    forward_attrs.emplace_back("packed", 1), backward_attrs.emplace_back("packed", 1);
  }
  std::vector<Var> backward = {dy,
                               forward[0],
                               forward[1],
                               forward[2],
                               round(input("y_in", o.y)),
                               input("highest_in", o.highest),
                               input("sum_in", o.sum)};
  if (!o.mask.empty()) {
    const Var mask = e.is_constant ? b.constant(o.mask) : input("mask", o.mask);
    forward.push_back(mask), backward.push_back(mask);
  }
  const auto outputs = [&](const std::vector<Var>& made, size_t first, size_t count) {
    for (size_t i = 0; i < made.size(); ++i)
      graph.add_output((i >= first && i < first + count ? round(made[i]) : made[i]).value());
  };
  std::vector<Var> results = call_lowered(b, "BlockAttention", 3, forward, forward_attrs);
  // Lowering may change a row's highest score but no output of the model.
  for (const size_t statistic : {1, 2}) results[statistic] = b.op("Identity", {results[statistic]});
  outputs(results, 0, e.stores_y ? 1 : 0);
  const std::vector<Var> gradients = call_lowered(b, "BlockAttentionGrad", e.packed ? 1 : 3, backward, backward_attrs);
  if (e.packed) {
    const Var whole = e.stores_gradients ? round(gradients[0]) : gradients[0];
    outputs(b.ops("Split", 3, {whole}, {{"axis", heads}, {"num_outputs", 3}}), 0, 0);
  } else {
    outputs(gradients, 0, e.stores_gradients ? 3 : 0);
  }
  return model;
}

TensorMap inputs_of(const Example& e, const Operands& o) {
  TensorMap inputs = {{"dy", o.dy},     {"q", o.q}, {"k", o.k}, {"v", o.v}, {"y_in", o.y}, {"highest_in", o.highest},
                      {"sum_in", o.sum}};
  if (!o.mask.empty() && !e.is_constant) inputs["mask"] = o.mask;
  return inputs;
}

SessionOptions on_cuda() {
  SessionOptions options = on(&cuda_device());
  options.plan.lowering.without = {"fuse_elementwise"};
  return options;
}

// Returns the plan's kernels for the two nodes, forward and backward.
std::vector<std::string> kernels_of(const Plan& plan) {
  std::vector<std::string> names;
  for (const PlanStep& step : plan.steps()) {
    if (step.node->op().starts_with("BlockAttention")) names.emplace_back(step.kernel->name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> kernels_of(const Example& e) {
  const Operands o = expected_of(e).first;
  Session session(model_of(e, o), on_cuda());
  return kernels_of(session.plan("predict", shapes_of(inputs_of(e, o))));
}

const std::vector<std::string> kLibrary = {"cuDNN attention", "cuDNN attention gradient"}, kOurs = {"", ""},
                               kForwardOnly = {"", "cuDNN attention"};

// Error bounds of y, highest, sum, dq, dk and dv, by element. The library rounds P and dS before it multiplies them,
// which changes a sum of products by a fraction of the sum of magnitudes, and rounds its result.
class Bounds {
 public:
  Bounds(const Example& e, const Operands& o, const std::vector<Tensor>& results) : e_(e), o_(o) {
    for (const Tensor& result : results) bounds_.emplace_back(static_cast<size_t>(result.size()), 0.0);
    At at = {};
    for (at[0] = 0; at[0] < e.batch; ++at[0])
      for (at[1] = 0; at[1] < e.heads; ++at[1])
        for (at[2] = 0; at[2] < e.queries; ++at[2]) add_query(at);
    const bool is_bfloat16 = e.type == DType::kBFloat16;
    const double unit = is_bfloat16 ? 0x1p-8 : 0x1p-11;
    for (size_t i = 0; i < bounds_.size(); ++i) {
      const bool is_statistic = i == 1 || i == 2;
      for (size_t k = 0; k < bounds_[i].size(); ++k) {
        const double size = std::abs(results[i].at(static_cast<int64_t>(k)));
        bounds_[i][k] = (is_statistic ? 0 : unit * (bounds_[i][k] + size)) + 1e-5 * (1 + size);
      }
    }
  }
  double of(size_t result, int64_t element) const { return bounds_[result][static_cast<size_t>(element)]; }

 private:
  size_t place(const Tensor& of, int64_t row, int64_t column, const At& at) const {
    const At axes = {at[0], at[1], row, column};
    int64_t position = 0;
    for (size_t axis = 0; axis < 4; ++axis)
      position = position * of.shape()[axis] + axes[static_cast<size_t>(e_.order[axis])];
    return static_cast<size_t>(position);
  }
  double value(const Tensor& of, int64_t row, int64_t column, const At& at) const {
    return of.at(static_cast<int64_t>(place(of, row, column, at)));
  }
  double dot(const Tensor& a, int64_t row_a, const Tensor& b, int64_t row_b, int64_t width, const At& at) const {
    double sum = 0;
    for (int64_t c = 0; c < width; ++c) sum += value(a, row_a, c, at) * value(b, row_b, c, at);
    return sum;
  }
  // Adds Σ P |v|, Σ |dS| |k|, Σ |dS| |q| and Σ P |dy| for one query.
  void add_query(At at) {
    const int64_t query = at[2], statistic = (at[0] * e_.heads + at[1]) * e_.queries + query;
    if (std::isnan(o_.sum.at(statistic))) return;  // a hidden row: everything is 0
    const double mean = dot(o_.dy, query, o_.y, query, e_.value_width, at);
    for (int64_t key = 0; key < e_.keys; ++key) {
      at[3] = key;
      const double score = 0.35f * dot(o_.q, query, o_.k, key, e_.width, at) + e_.added(at);
      const double p = std::exp(score - o_.highest.at(statistic)) / o_.sum.at(statistic);
      const double ds = std::abs(0.35f * p * (dot(o_.dy, query, o_.v, key, e_.value_width, at) - mean));
      for (int64_t c = 0; c < e_.value_width; ++c) {
        bounds_[0][place(o_.y, query, c, at)] += p * std::abs(value(o_.v, key, c, at));
        bounds_[5][place(o_.v, key, c, at)] += p * std::abs(value(o_.dy, query, c, at));
      }
      for (int64_t c = 0; c < e_.width; ++c) {
        bounds_[3][place(o_.q, query, c, at)] += ds * std::abs(value(o_.k, key, c, at));
        bounds_[4][place(o_.k, key, c, at)] += ds * std::abs(value(o_.q, query, c, at));
      }
    }
  }

  const Example& e_;
  const Operands& o_;
  std::vector<std::vector<double>> bounds_;
};

// Expects equal bits of two runs of a plan with these kernels and, within tensor cores' rounding, the CPU's results.
// Returns the plan's forms.
std::string expect_results(const Example& e, const std::vector<std::string>& kernels = kLibrary, bool tf32 = false) {
  const auto [operands, wanted] = expected_of(e);
  const Bounds bounds(e, operands, wanted);
  const TensorMap inputs = inputs_of(e, operands);
  SessionOptions options = on_cuda();
  options.plan.arithmetic.tf32 = tf32;
  Session session(model_of(e, operands), options);
  const Plan& plan = session.plan("predict", shapes_of(inputs));
  EXPECT_EQ(kernels_of(plan), kernels);
  std::vector<Tensor> first;
  for (const int run : {0, 1}) {
    const TensorMap& results = session.run("predict", inputs);
    for (size_t i = 0; i < wanted.size(); ++i) {
      const Tensor& got = results.at(plan.outputs()[i].name);
      if (run == 0) {
        first.push_back(got.clone());
        for (int64_t k = 0; k < got.size(); ++k)
          EXPECT_TRUE((std::isnan(got.at(k)) && std::isnan(wanted[i].at(k))) ||
                      std::abs(got.at(k) - wanted[i].at(k)) <= bounds.of(i, k))
              << "output " << i << ", element " << k << ": " << got.at(k) << " for " << wanted[i].at(k);
      } else {
        EXPECT_EQ(std::memcmp(got.data(), first[i].data(), got.bytes()), 0) << "output " << i;
      }
    }
  }
  return forms_of(plan);
}

TEST(CudaAttention, DiffersFromFloat32ByWhatTensorCoresRoundAndIsTheSameInEachRun) {
  if (!has_cudnn()) GTEST_SKIP() << kNoLibrary;
  int number = 0;
  for (const Example& e : examples()) {
    SCOPED_TRACE(number++);
    expect_results(e);
  }
}

TEST(CudaAttention, EveryPlanIsRight) {
  if (!has_cudnn()) GTEST_SKIP() << kNoLibrary;
  for_each_form([] { return expect_results({.mask = {37, 37}, .added = causal}); });
}

// All queries share the mask, as with padded tokens; numbers of keys have every remainder by 8. The library's gradients
// are wrong for 37 keys with such a mask, so our kernel runs if a tile is not full.
TEST(CudaAttention, AMaskThatAllQueriesShareIsRightForEveryNumberOfKeys) {
  if (!has_cudnn()) GTEST_SKIP() << kNoLibrary;
  for (int64_t keys = 33; keys <= 40; ++keys) {
    SCOPED_TRACE(keys);
    expect_results(
        {.keys = keys, .type = DType::kFloat16, .mask = {2, 1, 1, keys}, .added = padding, .is_constant = false},
        kForwardOnly);
  }
}

TEST(CudaAttention, GradientsRunOnTheLibraryWhereItIsKnownToBeRight) {
  if (!has_cudnn()) GTEST_SKIP() << kNoLibrary;
  const Example masked{.keys = 64, .mask = {2, 1, 37, 64}, .added = distance, .is_constant = false},
      of_one_query{.queries = 1, .keys = 128}, odd{.batch = 1, .heads = 1},
      is_causal{.queries = 64, .keys = 64, .mask = {64, 64}, .added = causal};
  for (const Example& e : {masked, of_one_query, odd}) EXPECT_EQ(kernels_of(e), kForwardOnly) << e.queries << e.keys;
  EXPECT_EQ(kernels_of(is_causal), kLibrary);
  expect_results({.queries = 64, .keys = 64, .packed = true}, kForwardOnly);
}

// One head of 152 queries and 130 keys needs 39 KB for the gradients of its scores, or 74 KB if they are padded. The
// statistics of each head start at a multiple of 16 bytes, as declared to the library.
TEST(CudaAttention, GradientsThatNeedALargeWorkspaceAreMadeInParts) {
  if (!has_cudnn()) GTEST_SKIP() << kNoLibrary;
  const Example all{.heads = 4, .queries = 152, .keys = 130};
  Example by_batch = all, by_head = all, packed = all;
  by_batch.keys = by_head.keys = 128;
  by_batch.mask = {2, 1, 152, 128}, by_batch.added = padding_of_all, by_batch.is_constant = false;
  by_batch.guarded = true, by_batch.hidden = -1e29f;
  by_head.mask = {4, 152, 128}, by_head.added = distance, by_head.is_constant = false;
  by_head.order = {0, 1, 2, 3};
  packed.keys = 152, packed.packed = true, packed.stores_gradients = false;
  // Parts of one batch element, and of one head.
  for (const auto& [bytes, examples] :
       {std::pair(400'000, std::vector{all, by_batch, packed}), std::pair(100'000, std::vector{all, by_head})}) {
    const OtherCudnnLimits most({.workspace = bytes});
    int number = 0;
    for (const Example& e : examples) {
      SCOPED_TRACE(testing::Message() << bytes << " " << number++);
      expect_results(e);
    }
  }
}

TEST(CudaAttention, PartsThatWouldNotBeAlignedRunOnOurKernel) {
  if (!has_cudnn()) GTEST_SKIP() << kNoLibrary;
  const OtherCudnnLimits most({.workspace = 100'000});  // one head
  EXPECT_EQ(kernels_of({.heads = 4, .queries = 150, .keys = 130}), kForwardOnly);
}

TEST(CudaAttention, OurKernelRunsWhatTheLibraryDoesNotHave) {
  if (!has_cudnn()) GTEST_SKIP() << kNoLibrary;
  const Shape square = {128, 128};
  const Example narrow{.width = 12, .value_width = 12},
      chosen{.queries = 128,
             .keys = 128,
             .mask = square,
             .added = causal,
             .selects = true,
             .is_constant = false,
             .fill = -1e9f},
      guarded{.queries = 128, .keys = 128, .mask = square, .added = causal, .guarded = true, .is_constant = false};
  for (const Example& e : {narrow, chosen}) EXPECT_EQ(kernels_of(e), kOurs);
  EXPECT_EQ(kernels_of(guarded), kLibrary);  // the mask is finite
}

// Numbers of 16 bits are TF32 numbers, so the kernel on tensor cores rounds what the library rounds.
TEST(CudaAttention, OurKernelReads16BitsOnTensorCores) {
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    for (const bool packed : {false, true}) {
      SCOPED_TRACE(testing::Message() << name(type) << " " << packed);
      const Example narrow{.width = 12, .value_width = 12, .type = type, .packed = packed};
      EXPECT_EQ(expect_results(narrow, kOurs, true), "TF32\nTF32\n");
    }
  }
}

TEST(CudaAttention, WhatRunsIsInThePlan) {
  const Example e{.mask = {37, 37}, .added = causal};
  EXPECT_EQ(kernels_of(e), has_cudnn() ? kLibrary : kOurs);
}

// The gradients of a large attention, planned for a device without allocating anything.
class Planned {
 public:
  explicit Planned(int64_t batch, int64_t length = 1024) {
    Builder b(model_.graph.get());
    model_.context->opsets[""] = 23;
    const auto input = [&](const char* name, DType dtype, const Shape& shape) {
      return b.var(model_.graph->add_input(name, {dtype, Dims(shape.begin(), shape.end())}));
    };
    std::vector<Var> inputs;
    const Shape tokens = {batch, length, 12, 64}, rows = {batch, 12, length};
    for (const char* name : {"dy", "q", "k", "v", "y"}) inputs.push_back(input(name, DType::kBFloat16, tokens));
    for (const char* name : {"highest", "sum"}) inputs.push_back(input(name, DType::kFloat, rows));
    const std::vector<Var> gradients = call_lowered(b, "BlockAttentionGrad", 3, inputs, Example().attrs(kBackward));
    for (const Var& gradient : gradients)
      gradient.value()->set_type({DType::kBFloat16, Dims(tokens.begin(), tokens.end())});
    node_ = gradients[0].value()->producer();
    kernel_ = find_kernel(cuda_device(), *node_);
  }
  std::string name() const { return kernel_->name; }
  size_t workspace(const Arithmetic& arithmetic = {}) const {
    return prepare(*kernel_, NodeSpec(*node_, std::vector<Tensor>(node_->inputs().size()), 1, arithmetic)).workspace;
  }

 private:
  Model model_;
  const Node* node_;
  const Kernel* kernel_;
};

// The library adds parts of dq atomically unless it may store dS, in 16 bits.
TEST(CudaAttention, GradientsAreAddedInAFixedOrder) {
  if (!has_cudnn()) GTEST_SKIP() << kNoLibrary;
  const Planned planned(16);
  ASSERT_EQ(planned.name(), kLibrary[1]);
  const size_t ds = size_t{16} * 12 * 1024 * 1024 * 2;
  EXPECT_GE(planned.workspace(), ds);
  EXPECT_LT(planned.workspace({.deterministic = false}), ds / 4);
  // These need more than 2 GiB, so they run for a part of the batch, or of the heads, at a time.
  for (const Planned& large : {Planned(128), Planned(1, 16 * 1024)}) {
    ASSERT_EQ(large.name(), kLibrary[1]);
    EXPECT_LE(large.workspace(), size_t{2200} << 20);
  }
}

}  // namespace
}  // namespace onnx_train::cudnn_attention_test
