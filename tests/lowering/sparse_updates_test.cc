// Updates of the rows that a batch looks up: the same bits as those of the whole table, at a cost that does not depend
// on its size.
#include <gtest/gtest.h>

#include <map>

#include "kernels/host.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"
#include "tests/support/allocations.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"
#include "tests/support/sessions.h"

namespace onnx_train::sparse_updates_test {
namespace {

constexpr int64_t kRows = 3000, kWidth = 24, kBatch = 40, kWords = 9;

struct Network {
  DType dtype = DType::kFloat;
  int lookups = 1;    // in the one table
  bool tied = false;  // the table is a factor of a product, too
  int64_t rows = kRows;
};

// y = tanh(table[words0]) + tanh(table[words1]) + .., summed over the words, times a matrix.
Model make_model(const Network& network, const BuildOptions& options) {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder b(&graph);
  const Var table = b.var(graph.add_initializer("table", random_tensor(network.dtype, {network.rows, kWidth}, 1)));
  const Var w = b.var(graph.add_initializer("w", random_tensor(network.dtype, {kWidth, 3}, 2)));
  Var sum;
  for (int i = 0; i < network.lookups; ++i) {
    // Their element types differ.
    const DType index = i % 2 == 0 ? DType::kInt64 : DType::kInt32;
    const Var words = b.var(graph.add_input(concat("words", i), {index, Dims{"N", kWords}}));
    const Var found = tanh(b.op("Gather", {table, words}));
    sum = sum ? sum + found : found;
  }
  Var y = matmul(b.op("ReduceSum", {sum, b.ints({1})}, {{"keepdims", 0}}), w);
  if (network.tied) y = y + b.op("ReduceMean", {matmul(table, w), b.ints({0})}, {{"keepdims", 0}});
  b.set_name("y");
  graph.add_output(b.op("Identity", {y}).value());
  build_training_model(&model, options);
  return model;
}

BuildOptions with_optimizer(const std::string& optimizer, double clip_norm = 0) {
  BuildOptions options;
  options.loss = "mse";
  options.optimizer = optimizer;
  options.clip_norm = clip_norm;
  return options;
}

// Words that repeat, and some counted from the end.
Tensor make_words(DType dtype, int64_t rows, int64_t seed) {
  Tensor words(dtype, {kBatch, kWords});
  for (int64_t i = 0; i < words.size(); ++i) {
    const int64_t row = (i * i + seed) % std::min<int64_t>(rows, 150);
    words.set(i, static_cast<double>(i % 5 == 0 ? row - rows : row));
  }
  return words;
}

TensorMap make_batch(const Network& network, int64_t seed = 0) {
  TensorMap batch = {{"labels", random_tensor(network.dtype, {kBatch, 3}, static_cast<unsigned>(9 + seed))}};
  for (int i = 0; i < network.lookups; ++i) {
    batch[concat("words", i)] = make_words(i % 2 == 0 ? DType::kInt64 : DType::kInt32, network.rows, seed + i);
  }
  return batch;
}

SessionOptions without(std::vector<std::string> passes) {
  SessionOptions options;
  options.plan.lowering.without = std::move(passes);
  return options;
}

class SparseUpdates : public testing::Test {
 protected:
  ~SparseUpdates() override { set_num_threads(threads_); }

 private:
  const int threads_ = num_threads();
};

// Three steps with and without the pass; what they leave is equal in bits, the norm but for its last digits.
void expect_dense_bits(const Network& network, const BuildOptions& options, const SessionOptions& sparse_options,
                       const char* update = "SparseSgd") {
  SessionOptions dense_options = sparse_options;
  dense_options.plan.lowering.without.push_back("sparse_updates");
  Session sparse(make_model(network, options), sparse_options), dense(make_model(network, options), dense_options);
  const auto shapes = shapes_of(make_batch(network));
  EXPECT_EQ(count(sparse.plan("step", shapes), update), 1);
  EXPECT_EQ(count(dense.plan("step", shapes), update), 0);
  for (int64_t i = 0; i < 3; ++i) {
    const TensorMap batch = make_batch(network, i);
    const double norm = sparse.run("step", batch).at("grad_norm").at(0);
    const double expected = dense.run("step", batch).at("grad_norm").at(0);
    EXPECT_NEAR(norm, expected, 1e-6 * expected);
  }
  expect_equal(states_of(sparse), states_of(dense));
}

TEST_F(SparseUpdates, SameBitsAsOfTheWholeTable) {
  for (DType dtype : {DType::kFloat, DType::kDouble}) {
    for (int lookups : {1, 3}) {
      for (int threads : {1, 2, 3}) {
        set_num_threads(threads);
        const Network network{.dtype = dtype, .lookups = lookups};
        expect_dense_bits(network, with_optimizer("sgd(lr=0.1)"), {});
        expect_dense_bits(network, with_optimizer("sgd(lr=0.1)"), without({"update_in_place", "write_in_place"}));
      }
    }
  }
}

TEST_F(SparseUpdates, SparseAdamHasTheSameBitsAsOfTheWholeTable) {
  for (DType dtype : {DType::kFloat, DType::kDouble}) {
    for (int lookups : {1, 3}) {
      const Network network{.dtype = dtype, .lookups = lookups};
      expect_dense_bits(network, with_optimizer("sparse_adam"), {}, "SparseAdamRows");
      expect_dense_bits(network, with_optimizer("sparse_adam"), without({"update_in_place", "write_in_place"}),
                        "SparseAdamRows");
    }
  }
  BuildOptions options = with_optimizer("sparse_adam");
  options.precision = Precision::kBfloat16;
  expect_dense_bits({}, options, {}, "SparseAdamRows");
}

TEST_F(SparseUpdates, SparseAdamLeavesTablesToAdamThatAreReadOtherwise) {
  Session tied(make_model({.tied = true}, with_optimizer("sparse_adam")));
  EXPECT_EQ(count(tied.plan("step", shapes_of(make_batch({}))), "SparseAdam"), 0);
  BuildOptions scaled = with_optimizer("sparse_adam");
  scaled.loss_scale = "dynamic";
  Session dense(make_model({}, scaled));
  EXPECT_EQ(count(dense.plan("step", shapes_of(make_batch({}))), "SparseAdam"), 1);
}

TEST_F(SparseUpdates, SameBitsAsOfTheWholeTableInMixedPrecision) {
  BuildOptions options = with_optimizer("sgd(lr=0.1)");
  options.precision = Precision::kBfloat16;
  for (int lookups : {1, 2}) {
    const Network network{.lookups = lookups};
    expect_dense_bits(network, options, {});
    expect_dense_bits(network, options, without({"narrow_storage"}));
  }
  Session session(make_model({}, options));
  EXPECT_EQ(count(session.plan("step", shapes_of(make_batch({}))), "CoalesceRows"), 1);
}

TEST_F(SparseUpdates, ThreadsDoNotChangeABit) {
  std::map<std::string, Tensor> expected;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    Session session(make_model({}, with_optimizer("sgd(lr=0.1)", 0.5)));
    for (int64_t i = 0; i < 3; ++i) session.run("step", make_batch({}, i));
    if (threads == 1) expected = states_of(session);
    expect_equal(states_of(session), expected);
  }
}

TEST_F(SparseUpdates, ClippingReadsTheNormOfTheSummedRows) {
  for (DType dtype : {DType::kFloat, DType::kDouble}) {
    const Network network{.dtype = dtype, .lookups = 2};
    const BuildOptions options = with_optimizer("sgd(lr=0.1)", 0.01);
    Session sparse(make_model(network, options)), dense(make_model(network, options), without({"sparse_updates"}));
    for (int64_t i = 0; i < 3; ++i) {
      const double norm = sparse.run("step", make_batch(network, i)).at("grad_norm").at(0);
      const double expected = dense.run("step", make_batch(network, i)).at("grad_norm").at(0);
      EXPECT_GT(expected, 0.01);
      EXPECT_NEAR(norm, expected, (dtype == DType::kFloat ? 1e-6 : 1e-14) * expected);
    }
    EXPECT_EQ(count(sparse.plan("step", shapes_of(make_batch(network))), "SparseSgd"), 1);
    const Tensor a = sparse.state().get("table"), b = dense.state().get("table");
    EXPECT_LE(relative_error(a, b), dtype == DType::kFloat ? 1e-6 : 1e-14);
  }
}

TEST_F(SparseUpdates, WhatMovesOrReadsEveryRowStaysDense) {
  const auto sparse_nodes = [](const Network& network, const BuildOptions& options, const char* entry = "step") {
    Session session(make_model(network, options));
    TensorMap batch = make_batch(network);
    if (std::string(entry) == "apply") batch.clear();
    const Plan& plan = session.plan(entry, shapes_of(batch));
    return count(plan, "SparseSgd") + count(plan, "CoalesceRows");
  };
  for (const char* optimizer : {"adam", "adamw", "sgd(momentum=0.9)", "sgd(weight_decay=0.1)"}) {
    EXPECT_EQ(sparse_nodes({}, with_optimizer(optimizer)), 0) << optimizer;
  }
  const BuildOptions plain = with_optimizer("sgd");
  EXPECT_EQ(sparse_nodes({}, plain), 2);
  EXPECT_EQ(sparse_nodes({.tied = true}, plain), 0);
  EXPECT_EQ(sparse_nodes({.rows = kBatch * kWords}, plain), 0);
  EXPECT_EQ(sparse_nodes({.rows = kBatch * kWords + 1}, plain), 2);
  EXPECT_EQ(sparse_nodes({.rows = 1}, plain), 0);
  BuildOptions scaled = plain, accumulating = plain;
  scaled.loss_scale = "dynamic";
  accumulating.accumulate = true;
  EXPECT_EQ(sparse_nodes({}, scaled), 0);
  EXPECT_EQ(sparse_nodes({}, accumulating, "accumulate"), 0);
  EXPECT_EQ(sparse_nodes({}, accumulating, "apply"), 0);
}

TEST_F(SparseUpdates, NoGradientAsLargeAsTheTable) {
  const Network large{.rows = 1'000'000};
  for (const char* optimizer : {"sgd", "sparse_adam"}) {
    Session session(make_model(large, with_optimizer(optimizer)));
    const Plan& plan = session.plan("step", shapes_of(make_batch(large)));
    EXPECT_LT(plan.arena_bytes(), size_t{1} << 20);
    for (const StatePort& port : plan.states()) EXPECT_TRUE(port.in_place) << port.name;
    const TensorMap batch = make_batch(large);
    session.run("step", batch);
    const size_t allocations = count_allocations();
    session.run("step", batch);
    EXPECT_EQ(count_allocations(), allocations);
  }
}

TEST_F(SparseUpdates, AStepThatFailsLeavesTheState) {
  const Network network{.lookups = 2};
  for (const SessionOptions& options : {SessionOptions(), without({"update_in_place"})}) {
    Session session(make_model(network, with_optimizer("sgd")), options);
    session.run("step", make_batch(network));
    const auto before = states_of(session);
    for (int64_t wrong : {kRows, -kRows - 1}) {
      TensorMap batch = make_batch(network);
      batch["words1"] = Tensor(DType::kInt32, {kBatch, kWords});
      batch["words1"].set(kBatch * kWords - 1, static_cast<double>(wrong));
      EXPECT_THROW(session.run("step", batch), Error);
      expect_equal(states_of(session), before);
    }
  }
}

TEST_F(SparseUpdates, IndicesOutOfRangeAreRefused) {
  const Tensor dy = random_tensor(DType::kFloat, {2, 3}), w = random_tensor(DType::kFloat, {5, 3});
  const Tensor one = Tensor::scalar(1.0f);
  for (int64_t wrong : {5, -6}) {
    EXPECT_THROW(run_node("CoalesceRows", {dy, Tensor::ints({0, wrong}), Tensor::ints({5, 3})}, {}, 2, kDomain), Error);
    EXPECT_THROW(run_node("SparseSgd", {w, dy, Tensor::ints({0, wrong}), one, one}, {}, 1, kDomain), Error);
  }
}

}  // namespace
}  // namespace onnx_train::sparse_updates_test
