// The passes that make one node of the lookups in many tables, and of their gradients; only CUDA has them in its plans.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/device.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "runtime/session/session.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"
#include "tests/support/sessions.h"

namespace onnx_train::merge_lookups_test {
namespace {

struct Tables {
  int count = 3;
  int64_t width = 4;
  DType dtype = DType::kFloat, index = DType::kInt64;
  int64_t places = 0;    // of each table; 0: another number for each
  bool rounds = false;   // what is looked up, to bfloat16
  bool by_axis = false;  // the indices are one input, of which each table has a column
  bool is_deep = false;  // gradients have three axes, and views read them

  int64_t rows() const { return places > 0 ? 40 : 0; }  // of each table; 0: another number for each
};

int64_t rows_of(const Tables& t, int table) { return t.rows() > 0 ? t.rows() : table % 7 + 1; }
int64_t places_of(const Tables& t, int table) { return t.places > 0 ? t.places : table * 37 % 300; }
std::string numbered(const char* name, int i) { return name + std::to_string(i); }

// Any index that is allowed, negative ones among them.
Tensor indices(DType dtype, const Shape& shape, int64_t rows) {
  Tensor tensor(dtype, shape);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>((i * i + 3 * i) % (2 * rows) - rows));
  return tensor;
}

TensorMap inputs_of(const Tables& t) {
  TensorMap inputs;
  for (int i = 0; i < t.count; ++i) {
    const int64_t rows = rows_of(t, i), places = places_of(t, i);
    inputs[numbered("w", i)] = random_tensor(t.dtype, {rows, t.width}, static_cast<unsigned>(i));
    if (!t.by_axis) inputs[numbered("i", i)] = indices(t.index, {places}, rows);
  }
  if (t.by_axis) inputs["all"] = indices(t.index, {t.places, t.count}, t.rows());
  if (t.places > 0) inputs["dy"] = random_tensor(t.dtype, {t.places, t.count, t.width}, 99);
  return inputs;
}

// The rows of all tables; with dy, half the gradients of the tables.
Model model_of(const Tables& t) {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder b(&graph);
  std::map<std::string, Var> in;
  for (const auto& [name, tensor] : inputs_of(t)) {
    const Shape shape = tensor.shape();
    in.emplace(name, b.var(graph.add_input(name, {tensor.dtype(), Dims(shape.begin(), shape.end())})));
  }
  const auto column = [&](Var x, int i) { return reshape(slice(x, i, i + 1, 1), b.ints({t.places})); };
  std::vector<Var> pieces;
  if (t.places > 0)
    pieces = b.ops("Split", t.count, {in.at("dy"), b.ints(Shape(static_cast<size_t>(t.count), 1))}, {{"axis", 1}});
  std::vector<Var> results, gradients;
  for (int i = 0; i < t.count; ++i) {
    const Var index = t.by_axis ? column(in.at("all"), i) : in.at(numbered("i", i));
    const Var table = in.at(numbered("w", i));
    const Var y = gather(table, index, 0);
    results.push_back(t.rounds ? cast(cast(y, DType::kBFloat16), DType::kFloat) : y);
    if (t.places == 0) continue;
    Var dy = reshape(pieces[static_cast<size_t>(i)], b.ints({t.places, t.width}));
    if (t.rounds) dy = cast(cast(dy, DType::kBFloat16), DType::kFloat);
    if (t.is_deep) dy = reshape(dy, b.ints({t.places, 2, t.width / 2}));
    const Var shape = t.is_deep ? b.ints({rows_of(t, i), 2, t.width / 2}) : b.ints({rows_of(t, i), t.width});
    const Var gradient = call(b, "GatherGrad", {dy, index, shape}, {{"axis", 0}});
    gradients.push_back(t.is_deep ? reshape(gradient, b.ints({rows_of(t, i) * t.width})) : gradient);
  }
  for (const Var& gradient : gradients) results.push_back(gradient * 0.5);
  for (const Var& result : results) graph.add_output(result.value());
  return model;
}

const std::vector<Tables>& examples() {
  static const std::vector<Tables> all = {
      {.count = 45},  // more than one launch takes, some without indices
      {.count = 3, .width = 5, .index = DType::kInt32},
      {.count = 3, .width = 1, .dtype = DType::kUint8},
      {.count = 3, .width = 3, .dtype = DType::kFloat16},
      {.count = 3, .width = 1, .dtype = DType::kDouble, .index = DType::kInt32},
      {.count = 5, .width = 8, .rounds = true},
      {.count = 5, .width = 3, .index = DType::kInt32, .rounds = true},
      {.count = 26, .width = 16, .places = 200},
      {.count = 4, .width = 16, .index = DType::kInt32, .places = 1500},
      {.count = 3, .width = 16, .places = 90, .by_axis = true},
      {.count = 3, .width = 8, .places = 90, .rounds = true},
      {.count = 3, .width = 8, .places = 90, .is_deep = true},
  };
  return all;
}

TEST(MergeLookups, OneNodeForTheTablesAndOneForTheirGradients) {
  Model model = model_of({.count = 4, .width = 16, .places = 20, .by_axis = true});
  infer_types(model.graph.get());
  EXPECT_TRUE(merge_lookup_gradients(model, default_device()));
  EXPECT_TRUE(merge_lookups(model));
  EXPECT_EQ(count_nodes(model, "GatherGrad", kDomain), 1);
  EXPECT_EQ(count_nodes(model, "Gathers", kDomain), 1);
  EXPECT_EQ(count_nodes(model, "Gather"), 0);
  EXPECT_FALSE(merge_lookup_gradients(model, default_device()));
  EXPECT_FALSE(merge_lookups(model));
}

// The second lookup reads what the first one has found.
TEST(MergeLookups, LookupsInTurnStayApart) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[8,4] a, float[8,4] b, int64[3] i) => (float[3,4] y, float[2,4] z) <int64[2] two = {0, 1}> {
      y = Gather (a, i)
      t = Add (y, y)
      z = Gather (t, two)
    })");
  infer_types(model.graph.get());
  EXPECT_FALSE(merge_lookups(model));
}

TEST(MergeLookups, GiveTheNumbersOfSingleOnes) {
  for (const Tables& t : examples()) {
    const TensorMap given = inputs_of(t);
    SessionOptions single;
    single.plan.lowering.on = false;
    Session expected(model_of(t), single), merged(model_of(t));
    const TensorMap wanted = expected.run("predict", given);
    for (const auto& [name, tensor] : merged.run("predict", given)) {
      // A gradient sums the rows of a table's row in another order.
      EXPECT_LE(relative_error(tensor, wanted.at(name)), t.places > 0 ? 1e-6 : 0) << name << " of " << t.count;
    }
    const Plan& plan = merged.plan("predict", shapes_of(given));
    const bool on_cuda = default_device().name() == "cuda";
    EXPECT_EQ(count(plan, "Gathers"), on_cuda ? 1 : 0) << t.count;
    const int gradients = t.places > 0 ? t.count : 0;
    EXPECT_EQ(count(plan, "GatherGrad"), on_cuda ? std::min(gradients, 1) : gradients) << t.count;
  }
}

TEST(MergeLookups, AnIndexOutOfRangeIsRefusedWithItsTable) {
  const Tables t{.count = 45};
  Session session(model_of(t));
  TensorMap given = inputs_of(t);
  given.at("i43").set(2, 2);  // the table has two rows
  for (int i = 0; i < 2; ++i) {
    try {
      session.run("predict", given);
      ADD_FAILURE() << "index 2 is taken";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.kind(), ErrorCode::kData);
      EXPECT_NE(message.find("index 2 is outside of an axis of size 2"), std::string::npos) << message;
    }
  }
  EXPECT_NO_THROW(session.run("predict", inputs_of(t)));
}

}  // namespace
}  // namespace onnx_train::merge_lookups_test
