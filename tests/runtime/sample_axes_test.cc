#include "runtime/data/sample_axes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_passes/inference/inference.h"
#include "runtime/data/loading/data_check.h"
#include "runtime/data/loading/prediction.h"
#include "tests/support/error_of.h"

namespace onnx_train::sample_axes_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Inputs as an entry point has them whose batch is called n.
std::vector<InputSpec> inputs_of(const Dims& x) {
  const TensorType type = {DType::kFloat, x};
  return {{"x", type, false, false, "", "", sample_axis(type, "n")},
          {"labels", {DType::kInt64, Dims{"n"}}, /*from_loss=*/true}};
}

Tensor counted(const Shape& shape) {
  Tensor tensor(DType::kFloat, shape);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>(i));
  return tensor;
}

std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> all;
  for (int64_t i = 0; i < tensor.size(); ++i) all.push_back(tensor.at(i));
  return all;
}

std::string batch_of(const std::string& graph) {
  const Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]> )" + graph);
  infer_types(model.graph.get());
  return batch_symbol(model, entry_inputs(model, "predict"));
}

TEST(SampleAxes, AreTheFirstUnlessTheBatchsSizeIsThatOfAnother) {
  const auto axis = [](const Dims& dims) { return sample_axis({DType::kFloat, dims}, "n"); };
  EXPECT_EQ(axis({"n", "t", 3}), 0u);
  EXPECT_EQ(axis({"t", "n", 3}), 1u);
  EXPECT_EQ(axis({10, 3, "n"}), 2u);
  EXPECT_EQ(axis({"n", "n"}), 0u);
  EXPECT_EQ(axis({"t", 3}), 0u);
  EXPECT_EQ(sample_axis({DType::kFloat, Dims{"", "n"}}, ""), 0u);
}

TEST(SampleAxes, TheBatchIsTheFirstAxisOfTheFirstInputOrThatOfARecurrence) {
  EXPECT_EQ(batch_of("g (float[n, t, 3] x) => (float[n, t, 3] y) { y = Relu(x) }"), "n");
  EXPECT_EQ(batch_of("g (float[10, n, 3] x) => (float[10, n, 3] y) { y = Relu(x) }"), "");
  const auto recurrent = [](const std::string& shape, const std::string& before) {
    return batch_of("g (float" + shape + " x, float[1, 4, 3] w, float[1, 4, 4] r) => (float[t, 1, n, 4] y) { " +
                    before + " y = RNN<hidden_size = 4>(z, w, r) }");
  };
  EXPECT_EQ(recurrent("[t, n, 3]", "z = Relu(x)"), "n");
  EXPECT_EQ(recurrent("[10, n, 3]", "z = Relu(x)"), "n");
  EXPECT_EQ(recurrent("[n, t, 3]", "z = Transpose<perm = [1, 0, 2]>(x)"), "n");
}

TEST(SampleAxes, ATensorMovesOneAxis) {
  const Tensor x = counted({2, 3, 2});
  const Tensor first = with_axis_at(x, 1, 0);
  EXPECT_EQ(first.shape(), (Shape{3, 2, 2}));
  EXPECT_THAT(values_of(first), ElementsAre(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11));
  EXPECT_EQ(values_of(with_axis_at(first, 0, 1)), values_of(x));
  EXPECT_EQ(with_axis_at(counted({2, 0, 3}), 1, 0).shape(), (Shape{0, 2, 3}));
}

TEST(SampleAxes, BatchesAreCutAlongThem) {
  const std::vector<InputSpec> inputs = inputs_of({"t", "n", 2});
  const Dataset data({{"x", counted({2, 3, 2})}, {"labels", Tensor::ints({7, 8, 9})}}, inputs);
  EXPECT_EQ(data.num_samples(), 3);
  EXPECT_EQ(data.fixed_batch(), 0);
  const int64_t rows[] = {2, 0};
  TensorMap batch;
  data.gather(rows, 2, &batch);
  EXPECT_EQ(batch.at("x").shape(), (Shape{2, 2, 2}));
  EXPECT_THAT(values_of(batch.at("x")), ElementsAre(4, 5, 0, 1, 10, 11, 6, 7));
  EXPECT_THAT(values_of(batch.at("labels")), ElementsAre(9, 7));
  data.select({1}).gather(rows + 1, 1, &batch);
  EXPECT_THAT(values_of(batch.at("x")), ElementsAre(2, 3, 8, 9));
  EXPECT_THAT(sample_axes_note(data), HasSubstr("samples of 'x' are along its axis 1"));
}

// A step's worth of samples is not taken for a sample where both have one size.
TEST(SampleAxes, AreNotChosenBySizes) {
  const Dataset data({{"x", counted({3, 3, 1})}, {"labels", Tensor::ints({0, 1, 2})}}, inputs_of({3, "n", 1}));
  const int64_t rows[] = {1};
  TensorMap batch;
  data.gather(rows, 1, &batch);
  EXPECT_EQ(batch.at("x").shape(), (Shape{3, 1, 1}));
  EXPECT_THAT(values_of(batch.at("x")), ElementsAre(1, 4, 7));
}

TEST(SampleAxes, AnotherNumberOfSamplesIsAnError) {
  EXPECT_THAT(error_of([&] {
                Dataset({{"x", counted({2, 4, 2})}, {"labels", Tensor::ints({7, 8, 9})}}, inputs_of({"t", "n", 2}));
              }),
              HasSubstr("'x' has 4 samples along its axis 1, 'labels' has 3"));
}

TEST(SampleAxes, AFaultNamesSampleAndElement) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]> g (float[t, n] x) => (float[t, n] y) {
    y = Relu(x) })");
  Tensor x = counted({2, 3});
  x.set(4, std::numeric_limits<double>::quiet_NaN());
  const Dataset data({{"x", x}}, {{"x", {DType::kFloat, Dims{"t", "n"}}, false, false, "", "", 1}});
  EXPECT_THAT(DataCheck(&data, model, "predict").first_fault(), HasSubstr("in sample 1 (element [1, 1])"));
}

TEST(SampleAxes, OutputsOfBatchesArePutTogetherAlongThem) {
  Session session(from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[t, n, 1] x, float[1, 1, 1] w, float[1, 1, 1] r) => (float[t, 1, n, 1] y, float[n] last) {
      y, h = RNN<hidden_size = 1>(x, w, r) shape = Constant<value_ints = [-1]>() last = Reshape(h, shape) })"));
  const TensorMap arrays = {{"x", counted({2, 5, 1})},
                            {"w", Tensor::full(DType::kFloat, {1, 1, 1}, 0.1)},
                            {"r", Tensor::full(DType::kFloat, {1, 1, 1}, 0.5)}};
  const Dataset data(arrays, entry_inputs(session.model(), "predict"));
  const TensorMap whole = session.run("predict", arrays);
  const std::vector<double> y = values_of(whole.at("y"));
  const TensorMap parts = predict(&session, data, 2);
  EXPECT_EQ(parts.at("y").shape(), (Shape{2, 1, 5, 1}));
  EXPECT_EQ(values_of(parts.at("y")), y);
  EXPECT_EQ(parts.at("last").shape(), Shape{5});
}

}  // namespace
}  // namespace onnx_train::sample_axes_test
