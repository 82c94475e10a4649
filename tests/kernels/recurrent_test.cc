// Recurrent operators in mixed precision: their kernels round where their bodies do, whether operands are stored in
// float32 or in bfloat16.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/support/cpu_features.h"
#include "kernels/device.h"
#include "kernels/host.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/error.h"
#include "runtime/session/session.h"
#include "tests/op_cases/covered.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"

namespace onnx_train::recurrent_test {
namespace {

struct Sizes {
  int64_t steps, batch, directions, input, hidden;
};

// A call of one of our functions. Which of its inputs and outputs hold bfloat16 values: the operands of products, and
// what `round_gates` rounds.
struct Call {
  const char* op;
  std::vector<Tensor> inputs;
  Attrs attrs;
  int num_outputs;
  std::vector<size_t> narrow_inputs, narrow_outputs;
};

Tensor rounded(const Tensor& tensor) { return tensor.cast(DType::kBFloat16).cast(DType::kFloat); }

Tensor uniform(const Shape& shape, unsigned seed) { return rounded(random_tensor(DType::kFloat, shape, seed)); }

// Between 0 and 1: the values of gates.
Tensor gate_values(const Shape& shape, unsigned seed) {
  Tensor values = random_tensor(DType::kFloat, shape, seed);
  for (int64_t i = 0; i < values.size(); ++i) values.set(i, 0.5 + 0.45 * values.at(i));
  return rounded(values);
}

// x w r b lens h0
std::vector<Tensor> forward_inputs(const Sizes& s, int64_t gates, const std::vector<int32_t>& lengths) {
  return {uniform({s.steps, s.batch, s.input}, 1),
          uniform({s.directions, gates * s.hidden, s.input}, 2),
          uniform({s.directions, gates * s.hidden, s.hidden}, 3),
          random_tensor(DType::kFloat, {s.directions, 2 * gates * s.hidden}, 4),
          lengths.empty() ? Tensor() : Tensor::of<int32_t>({s.batch}, lengths),
          uniform({s.directions, s.batch, s.hidden}, 5)};
}

void add_lstm(const Sizes& s, const Attrs& attrs, const std::vector<int32_t>& lengths, std::vector<Call>* calls) {
  std::vector<Tensor> in = forward_inputs(s, 4, lengths);
  const Tensor state = random_tensor(DType::kFloat, {s.directions, s.batch, s.hidden}, 6);
  in.push_back(state);
  const Tensor r = in[2], lens = in[4], h0 = in[5];
  calls->push_back({"LSTMTrain", std::move(in), attrs, 5, {0, 1, 2, 5}, {0, 3}});
  const Shape each = {s.steps, s.directions, s.batch, s.hidden};
  calls->push_back(
      {"LSTMGrad",
       {r, lens, h0, state, Tensor(), uniform(each, 7), gate_values({s.steps, s.batch, s.directions * 4 * s.hidden}, 8),
        random_tensor(DType::kFloat, each, 9), uniform(each, 10), state, state},
       attrs,
       4,
       {0, 2, 5, 6, 8},
       {0}});
}

void add_gru(const Sizes& s, Attrs attrs, bool linear, const std::vector<int32_t>& lengths, std::vector<Call>* calls) {
  if (linear) attrs.emplace_back("linear_before_reset", 1);
  const std::vector<Tensor> in = forward_inputs(s, 3, lengths);
  const std::vector<size_t> saved = linear ? std::vector<size_t>{0, 2, 3} : std::vector<size_t>{0, 2};
  calls->push_back({"GRUTrain", in, attrs, linear ? 4 : 3, {0, 1, 2, 5}, saved});
  const Shape each = {s.steps, s.directions, s.batch, s.hidden};
  calls->push_back(
      {"GRUGrad",
       {in[2], in[4], in[5], uniform(each, 7), gate_values({s.steps, s.batch, s.directions * 3 * s.hidden}, 8),
        linear ? uniform(each, 9) : Tensor(), uniform(each, 10),
        random_tensor(DType::kFloat, {s.directions, s.batch, s.hidden}, 6)},
       attrs,
       linear ? 4 : 3,
       linear ? std::vector<size_t>{0, 2, 3, 4, 5, 6} : std::vector<size_t>{0, 2, 3, 4, 6},
       linear ? std::vector<size_t>{0, 3} : std::vector<size_t>{0}});
}

void add_rnn(const Sizes& s, const Attrs& attrs, const std::vector<int32_t>& lengths, std::vector<Call>* calls) {
  const std::vector<Tensor> in = forward_inputs(s, 1, lengths);
  calls->push_back({"RNNTrain", in, attrs, 2, {0, 1, 2, 5}, {0}});
  const Shape each = {s.steps, s.directions, s.batch, s.hidden};
  calls->push_back({"RNNGrad",
                    {in[2], in[4], in[5], gate_values(each, 7), uniform(each, 10),
                     random_tensor(DType::kFloat, {s.directions, s.batch, s.hidden}, 6)},
                    attrs,
                    3,
                    {0, 2, 3, 4},
                    {0}});
}

std::vector<Call> calls() {
  std::vector<Call> calls;
  const auto add = [&](const Sizes& s, const char* direction, const std::vector<int32_t>& lengths = {}) {
    const Attrs attrs = {{"direction", direction}, {"round_operands", 1}, {"round_gates", 1}};
    add_lstm(s, attrs, lengths, &calls);
    add_gru(s, attrs, false, lengths, &calls);
    add_gru(s, attrs, true, lengths, &calls);
    add_rnn(s, attrs, lengths, &calls);
  };
  add({4, 3, 1, 5, 6}, "forward");
  add({4, 3, 1, 5, 6}, "reverse", {2, 4, 1});
  add({3, 4, 2, 2, 3}, "bidirectional", {3, 1, 2, 0});
  add({1, 1, 1, 1, 1}, "forward");
  add({1, 5, 1, 7, 33}, "reverse");
  add({3, 37, 2, 16, 64}, "bidirectional");
  add({2, 0, 1, 3, 4}, "forward");
  return calls;
}

std::string name_of(const Call& call) {
  std::string name = call.op;
  for (const Tensor& input : call.inputs) name += " " + (input.empty() ? "-" : to_string(input.shape()));
  return name;
}

// The call; with `narrow` its rounded inputs are widened from bfloat16 ones, and its rounded outputs narrowed
// and widened.
Model model_of(const Call& c, bool narrow) {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder b(&graph);
  const auto is_in = [&](const std::vector<size_t>& list, size_t i) {
    return narrow && std::find(list.begin(), list.end(), i) != list.end();
  };
  std::vector<Var> inputs;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const Tensor& tensor = c.inputs[i];
    if (tensor.dtype() == DType::kUndefined) {
      inputs.emplace_back();
      continue;
    }
    const Dims dims(tensor.shape().begin(), tensor.shape().end());
    const DType dtype = is_in(c.narrow_inputs, i) ? DType::kBFloat16 : tensor.dtype();
    const Var input = b.var(graph.add_input(concat("x", i), {dtype, dims}));
    inputs.push_back(dtype == DType::kBFloat16 ? cast(input, DType::kFloat) : input);
  }
  const auto outputs = call(b, c.op, c.num_outputs, inputs, c.attrs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool narrows = is_in(c.narrow_outputs, i);
    graph.add_output((narrows ? cast(cast(outputs[i], DType::kBFloat16), DType::kFloat) : outputs[i]).value());
  }
  return model;
}

std::vector<Tensor> run(const Call& c, Model model, bool narrow) {
  TensorMap feeds;
  std::vector<std::string> names;
  for (const Value* output : model.graph->outputs()) names.push_back(output->name());
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    if (c.inputs[i].dtype() == DType::kUndefined) continue;
    const auto& list = c.narrow_inputs;
    const bool is_narrow = narrow && std::find(list.begin(), list.end(), i) != list.end();
    feeds.emplace(concat("x", i), is_narrow ? c.inputs[i].cast(DType::kBFloat16) : c.inputs[i]);
  }
  Session session(std::move(model));
  const TensorMap results = session.run("predict", feeds);
  std::vector<Tensor> outputs;
  for (const std::string& name : names) outputs.push_back(results.at(name).cast(DType::kFloat));
  return outputs;
}

// Sums in another order round to another bfloat16 now and then, and what follows from that differs by as little: one of
// `one_in` elements at most.
void expect_nearly_equal(const Tensor& found, const Tensor& expected, const std::string& what, int64_t one_in) {
  ASSERT_EQ(found.shape(), expected.shape()) << what;
  double largest = 0;
  int64_t different = 0;
  for (int64_t i = 0; i < expected.size(); ++i) largest = std::max(largest, std::fabs(expected.at(i)));
  for (int64_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(found.at(i) - expected.at(i));
    ASSERT_LE(error, 0x1p-7 * largest) << what << " element " << i;
    different += error > 1e-5 * largest ? 1 : 0;
  }
  EXPECT_LE(different, expected.size() / one_in) << what;
}

void expect_nearly_equal(const std::vector<Tensor>& found, const std::vector<Tensor>& expected, const std::string& what,
                         int64_t one_in = 50) {
  for (size_t i = 0; i < expected.size(); ++i)
    expect_nearly_equal(found[i], expected[i], concat(what, " output ", i), one_in);
}

TEST(RoundedRecurrence, KernelsRoundWhereTheirBodiesDo) {
  for (const Call& c : calls()) {
    const std::vector<Tensor> found = run(c, model_of(c, false), false);
    Model body = model_of(c, false);
    ASSERT_TRUE(inline_function(body.graph->outputs()[0]->producer()));
    expect_nearly_equal(found, run(c, std::move(body), false), name_of(c));
    for (size_t i : c.narrow_outputs) EXPECT_EQ(relative_error(rounded(found[i]), found[i]), 0) << name_of(c) << i;
  }
}

TEST(RoundedRecurrence, NarrowOperandsGiveTheSame) {
  if (cpu::isa() < cpu::Isa::kAvx512Bf16) GTEST_SKIP() << "this CPU has no bfloat16 products: float32 is stored";
  // AMX adds up in an order of its own. One in some 20,000 gates is rounded to another number, which changes that
  // sample in every step that follows: of 256 gates in each of three steps, one sample in 25. Without the roundings,
  // 60 to 98% of the elements differ.
  const int64_t one_in = cpu::isa() == cpu::Isa::kAmx ? 10 : 50;
  for (const Call& c : calls()) {
    Model narrow = model_of(c, true);
    ASSERT_TRUE(assign_types(narrow, Device::cpu())) << name_of(c);
    const Node* node = narrow.graph->first();
    ASSERT_EQ(node->op(), c.op);
    for (size_t i : c.narrow_inputs) EXPECT_EQ(node->input(static_cast<int>(i))->dtype(), DType::kBFloat16) << i;
    for (size_t i : c.narrow_outputs) EXPECT_EQ(node->output(static_cast<int>(i))->dtype(), DType::kBFloat16) << i;
    expect_nearly_equal(run(c, std::move(narrow), true), run(c, model_of(c, false), false), name_of(c), one_in);
  }
}

TEST(RoundedRecurrence, DoesNotDependOnTheNumberOfThreads) {
  const int before = num_threads();
  for (const bool narrow : {false, true}) {
    for (const Call& c : calls()) {
      set_num_threads(1);
      const std::vector<Tensor> one = run(c, model_of(c, narrow), narrow);
      set_num_threads(2);
      const std::vector<Tensor> two = run(c, model_of(c, narrow), narrow);
      for (size_t i = 0; i < one.size(); ++i) {
        // dr is one product over all steps, of which oneDNN's AVX2 code cuts the sum into one for each thread.
        const bool is_dr = i == 1 && std::string(c.op).ends_with("Grad");
        EXPECT_LE(relative_error(two[i], one[i]), is_dr ? 1e-6 : 0) << name_of(c) << " " << i;
      }
    }
  }
  set_num_threads(before);
}

}  // namespace

}  // namespace onnx_train::recurrent_test

std::set<std::string> onnx_train::narrow_recurrences() {
  std::set<std::string> operators;
  for (const auto& c : recurrent_test::calls()) operators.insert(c.op);
  return operators;
}
