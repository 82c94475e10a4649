// Resize beyond what its rows in op_cases say: threads, shapes that are inferred, what is refused, layouts.
#include "kernels/geometry/resampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "kernels/device.h"
#include "kernels/host.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/model.h"
#include "onnx_passes/operators/resampling.h"
#include "runtime/session/session.h"
#include "tests/support/run_node.h"

namespace onnx_train::resampling_test {
namespace {

using testing::HasSubstr;

Tensor floats(const std::vector<float>& values) {
  return Tensor::of<float>({static_cast<int64_t>(values.size())}, values);
}

Tensor with_threads(int threads, const char* op, const std::vector<Tensor>& inputs, const Attrs& attrs,
                    const char* domain) {
  const int before = num_threads();
  set_num_threads(threads);
  Tensor result = run_node(op, inputs, attrs, 1, domain)[0];
  set_num_threads(before);
  return result;
}

void expect_threads_change_nothing(const char* op, const std::vector<Tensor>& inputs, const Attrs& attrs,
                                   const char* domain) {
  const Tensor one = with_threads(1, op, inputs, attrs, domain), three = with_threads(3, op, inputs, attrs, domain);
  ASSERT_EQ(one.bytes(), three.bytes());
  EXPECT_EQ(std::memcmp(one.data(), three.data(), one.bytes()), 0) << op << " of " << to_string(inputs[0].shape());
}

// Many small images, one large one that is cut into rows, channels last, an axis in front of others.
TEST(Resize, ThreadsDoNotChangeABit) {
  struct Case {
    Shape x;
    std::vector<int64_t> axes;
    std::vector<float> scales;
  };
  for (const Case& c : {Case{{7, 5, 9, 70}, {2, 3}, {2, 2}}, Case{{1, 1, 301, 203}, {2, 3}, {2, 2}},
                        Case{{1, 1, 301, 203}, {2, 3}, {0.5f, 0.5f}}, Case{{1, 301, 203, 8}, {1, 2}, {1.3f, 0.7f}},
                        Case{{2, 90, 3, 80}, {1, 3}, {0.4f, 3}}, Case{{3, 40, 20, 20}, {1, 2, 3}, {2, 2, 2}}}) {
    const Tensor x = random_tensor(DType::kFloat, c.x);
    for (const char* mode : {"nearest", "linear", "cubic"}) {
      const Attrs attrs = {{"mode", mode}, {"axes", c.axes}};
      expect_threads_change_nothing("Resize", {x, Tensor(), floats(c.scales)}, attrs, "");
      const Tensor y = run_node("Resize", {x, Tensor(), floats(c.scales)}, attrs)[0];
      const Attrs gradient = {{"axes", c.axes},
                              {"mode", mode},
                              {"coordinate_transformation_mode", "half_pixel"},
                              {"nearest_mode", "round_prefer_floor"},
                              {"keep_aspect_ratio_policy", "stretch"},
                              {"antialias", 0},
                              {"exclude_outside", 0},
                              {"cubic_coeff_a", -0.75f}};
      expect_threads_change_nothing("ResizeGrad", {y, Tensor::ints(c.x), Tensor(), floats(c.scales)}, gradient,
                                    kDomain);
    }
  }
}

// The loops that look nothing up give what tables give: a row of 2 n elements enlarged by 2, and as two rows of n.
TEST(Resize, AnElementDoesNotDependOnItsPlaceInALoop) {
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    const Tensor x = random_tensor(DType::kFloat, {1, 300}), last = random_tensor(DType::kFloat, {300, 1});
    Tensor column = last.clone();
    std::memcpy(column.data(), x.data(), x.bytes());
    for (const float scale : {2.0f, 0.5f}) {
      const Tensor row = run_node("Resize", {x, Tensor(), floats({1, scale})}, {{"mode", mode}})[0];
      const Tensor other = run_node("Resize", {column, Tensor(), floats({scale, 1})}, {{"mode", mode}})[0];
      EXPECT_LT(relative_error(other.reshaped(row.shape()), row), 1e-6) << mode << " by " << scale;
    }
  }
}

// A NaN or an infinity reaches the elements whose sums it is a term of, and no others.
TEST(Resize, InfinitiesStayWhereTheyAre) {
  Tensor x(DType::kFloat, {1, 1, 8, 40});
  for (int64_t i = 0; i < x.size(); ++i) x.set(i, 1);
  x.set(4 * 40 + 20, std::numeric_limits<double>::infinity());
  for (const char* mode : {"nearest", "linear"}) {
    const Tensor y = run_node("Resize", {x, Tensor(), floats({1, 1, 2, 2})}, {{"mode", mode}})[0];
    for (int64_t i = 0; i < y.size(); ++i) {
      const int64_t row = i / 80, column = i % 80;
      const bool near = row >= 7 && row <= 10 && column >= 39 && column <= 42;
      if (near) continue;
      ASSERT_EQ(y.at(i), 1) << mode << " at " << row << ", " << column;
    }
    EXPECT_EQ(y.at(8 * 80 + 40), std::numeric_limits<double>::infinity());
  }
}

std::string inferred(const std::string& text) {
  Model model = from_text(text);
  infer_types(model.graph.get());
  return to_string(model.graph->find("y")->type());
}

TEST(Resize, SizesThatAreNotKnownKeepTheirNames) {
  EXPECT_EQ(inferred(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,3,H,W] x) => (float y) <float[4] scales = {1, 1, 2, 1.5}> {
      y = Resize (x, , scales)
    })"),
            "float[N,3,2*H,?]");
  EXPECT_EQ(inferred(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,3,H,W] x, float[M,3,P,Q] z) => (float y) <int64[1] two = {2}, int64[1] four = {4}> {
      all = Shape (z)
      sizes = Slice (all, two, four)
      y = Resize <axes = [2, 3]> (x, , , sizes)
    })"),
            "float[N,3,P,Q]");
}

TEST(Resize, AScaleIsAFloatOfWhatWasMeant) {
  EXPECT_EQ(scaled_size(10, static_cast<double>(0.7f)), 7);
  EXPECT_EQ(scaled_size(10, static_cast<double>(0.69f)), 6);
  EXPECT_EQ(scaled_size(5, static_cast<double>(0.6f)), 3);
  EXPECT_EQ(scaled_size(49, static_cast<double>(1.0f / 49)), 1);
  EXPECT_EQ(scaled_size(3, 1.5), 4);
  EXPECT_EQ(scaled_size(123456789, 1), 123456789);
  EXPECT_EQ(inferred(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[2,10] x) => (float y) <float[2] scales = {1, 0.7}> { y = Resize (x, , scales) })"),
            "float[2,7]");
}

std::string refusal(const std::vector<Tensor>& inputs, const Attrs& attrs) {
  try {
    run_node("Resize", inputs, attrs);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Resize, RefusesWhatDoesNotFitTogether) {
  const Tensor x = random_tensor(DType::kFloat, {1, 1, 4, 4}), twice = floats({1, 1, 2, 2});
  const auto sizes = Tensor::ints({1, 1, 3, 3});
  EXPECT_THAT(refusal({x, Tensor(), twice}, {{"mode", "quintic"}}), HasSubstr("nearest, linear, cubic"));
  EXPECT_THAT(refusal({x, Tensor(), twice}, {{"nearest_mode", "up"}}), HasSubstr("round_prefer_floor"));
  EXPECT_THAT(refusal({x, Tensor(), twice}, {{"coordinate_transformation_mode", "centre"}}), HasSubstr("half_pixel"));
  EXPECT_THAT(refusal({x, Tensor(), twice}, {{"mode", "nearest"}, {"antialias", 1}}), HasSubstr("antialias"));
  const Attrs crop = {{"coordinate_transformation_mode", "tf_crop_and_resize"}};
  EXPECT_THAT(refusal({x, Tensor(), Tensor(), sizes}, crop), HasSubstr("roi"));
  EXPECT_THAT(refusal({x, floats({0, 1}), Tensor(), sizes}, crop), HasSubstr("roi has 2 numbers; it needs 8"));
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_THAT(refusal({x, floats({0, 0, 0, 0, 1, 1, 1, inf}), Tensor(), sizes}, crop), HasSubstr("finite"));
  EXPECT_THAT(refusal({Tensor(DType::kFloat, {1, 1, 0, 4}), Tensor(), Tensor(), sizes}, {}), HasSubstr("no elements"));
}

// ---- Layout

constexpr const char* kNetwork = R"(<ir_version: 10, opset_import: ["" : 21]>
  g (float[2,3,8,9] x, float[8,3,3,3] w, float[8,8,3,3] v) => (float[2,8,A,B] y)
  <float[4] scales = {1, 1, 2, 2}, int64[2] sizes = {7, 20}> {
    h = Conv <pads = [1, 1, 1, 1]> (x, w)
    large = Resize <mode = "linear"> (h, , scales)
    c = Conv (large, v)
    other = Resize <mode = "nearest", axes = [-2, 3]> (c, , , sizes)
    y = Conv (other, v)
  })";

Model network_with_gradients() {
  Model model = from_text(kNetwork);
  Graph& graph = *model.graph;
  infer_types(&graph);
  Value* y = graph.outputs()[0];
  const std::vector<Value*> wrt = graph.inputs();
  Value* dy = graph.add_input("dy", y->type());
  for (Value* gradient : add_gradients(&graph, {y}, {dy}, wrt)) graph.add_output(gradient);
  return model;
}

TEST(Resize, StaysChannelsLastBetweenConvolutions) {
  Model model = network_with_gradients();
  const auto count = [&](const char* op) {
    int n = 0;
    for (const Node* node = model.graph->first(); node; node = node->next()) n += node->op() == op;
    return n;
  };
  fold_constants(model);  // as plans do: Shape nodes read images
  remove_dead_nodes(model);
  channels_last(model);
  remove_dead_nodes(model);
  EXPECT_EQ(count("Conv"), 3);
  EXPECT_EQ(count("Resize"), 2);
  EXPECT_EQ(count("ResizeGrad"), 2);
  EXPECT_EQ(count("Transpose"), 4) << to_text(model);  // of x, y, and their gradients
}

TEST(Resize, LayoutsChangeNoNumbers) {
  const Model model = network_with_gradients();
  TensorMap inputs;
  unsigned seed = 1;
  for (const Value* input : model.graph->inputs()) {
    inputs[input->name()] = random_tensor(input->dtype(), input->type().shape(), seed++);
  }
  SessionOptions without;
  without.plan.lowering.without = {"channels_last"};
  Session with(clone(model)), plain(clone(model), without);
  const TensorMap& results = with.run("predict", inputs);
  for (const auto& [name, expected] : plain.run("predict", inputs)) {
    EXPECT_LT(relative_error(results.at(name), expected), 2e-6) << name;
  }
}

}  // namespace
}  // namespace onnx_train::resampling_test
