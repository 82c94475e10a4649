// Stages on devices, where a message lasts until it is received, and those from one stage to another are received in
// the order in which they are sent.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "onnx_passes/distribution/order_collectives.h"
#include "onnx_passes/distribution/overlap_collectives.h"
#include "onnx_passes/distribution/pipeline_stages.h"
#include "onnx_passes/distribution/stage_owners.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"

namespace onnx_train::stage_order_test {
namespace {

constexpr int kLayers = 8;
constexpr int64_t kWidth = 8;

// Each layer of the second half also reads one of the first half, as in a U-Net, and the last one has the weight of the
// first one: stages exchange with others than their neighbours, in both directions.
Model make_layers_with_skips() {
  Model model = empty_model();
  Builder b(model.graph.get());
  std::vector<Var> x = {b.var(model.graph->add_input("x", {DType::kFloat, Dims{"N", kWidth}}))};
  std::vector<Var> w;
  for (int i = 0; i < kLayers; ++i) {
    const Tensor initial = random_tensor(DType::kFloat, {kWidth, kWidth}, static_cast<unsigned>(i));
    w.push_back(i == kLayers - 1 ? w[0] : b.var(model.graph->add_initializer(concat("w", i), initial)));
    const Var y = b.op("Tanh", {matmul(x.back(), w.back())});
    const int skip = kLayers - 1 - i;
    x.push_back(skip > 0 && skip < i ? y + x[static_cast<size_t>(skip)] : y);
  }
  b.set_name("y");
  model.graph->add_output(b.op("Identity", {x.back()}).value());
  BuildOptions build;
  build.loss = "mse(y, t)";
  build.optimizer = "sgd(lr=0.01, momentum=0.9)";
  build.accumulate = true;
  build_training_model(&model, build);
  return model;
}

std::vector<Model> make_stages(const Model& model, const char* entry, int stages, int micro_batches) {
  std::vector<std::string> states;
  for (const EntryPoint& point : model.entry_points) {
    for (const Binding& binding : point.update_bindings) states.push_back(binding.state->name());
  }
  const StateOwners owners = share_out_stages(model, stages, [](const Node& node) { return node.op() == "MatMul"; });
  std::map<std::string, Shape> inputs;
  for (int i = 0; i < micro_batches; ++i) {
    for (const char* name : {"x", "t"}) inputs[micro_batch_input(name, i)] = {4, kWidth};
  }
  std::vector<Model> made;
  for (int stage = 0; stage < stages; ++stage) {
    made.push_back(flatten(model, entry));
    make_stage(&made.back(), owners, states, stage, stages, inputs, {.awaits_sends = true});
    order_collectives(&made.back());
  }
  return made;
}

// Ranks that run the collectives of their stages, without the time that anything takes.
class Devices {
 public:
  explicit Devices(const std::vector<Model>& stages) {
    for (const Model& stage : stages) {
      queues_.emplace_back();
      for (const Node* node = stage.graph->first(); node; node = node->next()) {
        if (is_collective(*node)) queues_.back().push_back(node);
      }
    }
    next_.resize(queues_.size());
  }

  // Whether all come to their end.
  bool run() {
    for (bool any = true; any;) {
      any = false;
      for (size_t stage = 0; stage < queues_.size(); ++stage) {
        while (next_[stage] < queues_[stage].size() && run_next(static_cast<int>(stage))) {
          ++next_[stage];
          any = true;
        }
      }
    }
    for (size_t stage = 0; stage < queues_.size(); ++stage) {
      if (next_[stage] < queues_[stage].size()) return false;
    }
    return true;
  }

  // Messages that are sent and not awaited at one time, at most, of a stage.
  size_t most_under_way() const { return most_under_way_; }
  const std::set<std::pair<int, int>>& pairs() const { return pairs_; }

 private:
  struct Pair {
    std::vector<const Node*> sent, received;
  };

  // Does what a stage does next, unless it has to wait.
  bool run_next(int stage) {
    const Node* const node = queues_[static_cast<size_t>(stage)][next_[static_cast<size_t>(stage)]];
    if (node->is("Send", kDomain)) {
      const int to = static_cast<int>(node->attr("to", 0));
      Pair& pair = between_[{stage, to}];
      pairs_.emplace(stage, to);
      pair.sent.push_back(node);
      number_[node] = pair.sent.size();
      most_under_way_ = std::max(most_under_way_, ++under_way_[stage]);
      return true;
    }
    if (node->is("Receive", kDomain)) {
      Pair& pair = between_[{static_cast<int>(node->attr("from", 0)), stage}];
      if (pair.received.empty() || pair.received.back() != node) pair.received.push_back(node);
      const size_t number = pair.received.size();
      if (pair.sent.size() < number) return false;
      EXPECT_EQ(pair.sent[number - 1]->attr(kPlace, ""), node->attr(kPlace, ""));
      return true;
    }
    if (node->is("Await", kDomain)) {
      const Node* const sent = node->input(0)->producer();
      if (between_[{stage, static_cast<int>(sent->attr("to", 0))}].received.size() < number_.at(sent)) return false;
      --under_way_[stage];
    }
    return true;  // what all do at the end waits for nothing else
  }

  std::vector<std::vector<const Node*>> queues_;  // by stage
  std::vector<size_t> next_;
  std::map<std::pair<int, int>, Pair> between_;
  std::map<const Node*, size_t> number_;  // of a message, from 1
  std::map<int, size_t> under_way_;
  size_t most_under_way_ = 0;
  std::set<std::pair<int, int>> pairs_;
};

TEST(StageOrder, NobodyWaitsForEver) {
  const Model model = make_layers_with_skips();
  for (const char* entry : {"accumulate", "evaluate"}) {
    for (const int stages : {2, 3, 4, 5}) {
      for (const int micro_batches : {1, 2, 3, 7, 12}) {
        SCOPED_TRACE(concat(entry, ", ", stages, " stages, ", micro_batches, " micro-batches"));
        const std::vector<Model> made = make_stages(model, entry, stages, micro_batches);
        EXPECT_TRUE(Devices(made).run());
      }
    }
  }
}

TEST(StageOrder, WhatIsUnderWayDoesNotGrowWithTheBatchesOfAStep) {
  const Model model = make_layers_with_skips();
  std::vector<size_t> most;
  for (const int micro_batches : {8, 16}) {
    const std::vector<Model> made = make_stages(model, "accumulate", 4, micro_batches);
    Devices devices(made);
    EXPECT_TRUE(devices.run());
    most.push_back(devices.most_under_way());
  }
  EXPECT_EQ(most[0], most[1]);
}

TEST(StageOrder, StagesThatSendAreKnownBefore) {
  const Model model = make_layers_with_skips();
  const StateOwners owners = share_out_stages(model, 4, [](const Node& node) { return node.op() == "MatMul"; });
  std::vector<std::string> states;
  for (const auto& [state, stage] : owners) states.push_back(state);
  const std::vector<Model> made = make_stages(model, "accumulate", 4, 5);
  Devices devices(made);
  EXPECT_TRUE(devices.run());
  EXPECT_EQ(devices.pairs(), stages_that_send(flatten(model, "accumulate"), owners, states));
  EXPECT_TRUE(devices.pairs().contains({0, 3}) && devices.pairs().contains({3, 1}));
}

}  // namespace
}  // namespace onnx_train::stage_order_test
