#include "onnx_passes/adapt/test_time_augmentation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/initializer.h"
#include "runtime/session/session.h"
#include "tests/support/error_of.h"

namespace onnx_train::test_time_augmentation_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kBatch = 2, kRows = 4, kColumns = 5, kPixels = kRows * kColumns;

Model of_text(const std::string& signature, const std::string& body) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]> network )" + signature + " { " + body + " }");
  infer_types(model.graph.get());
  return model;
}

// Each pixel of a grey picture has weights of its own; the network is not linear.
Model network() {
  Model model = of_text("(float[N,1,4,5] image, float[20,3] w) => (float[N,3] logits)",
                        "flat = Flatten(image) product = MatMul(flat, w) logits = Tanh(product)");
  Tensor weights(DType::kFloat, {kPixels, 3});
  for (int64_t i = 0; i < weights.size(); ++i) weights.set(i, 0.1 * static_cast<double>(i * i % 17) - 0.7);
  model.graph->set_initializer(model.graph->find("w"), weights);
  return model;
}

Tensor pictures() {
  Tensor x(DType::kFloat, {kBatch, 1, kRows, kColumns});
  for (int64_t i = 0; i < x.size(); ++i) x.set(i, 0.1 * static_cast<double>(i * 7 % 11) - 0.4);
  return x;
}

int64_t reflected(int64_t i, int64_t size) { return i < 0 ? -i : i >= size ? 2 * (size - 1) - i : i; }

// Pixel (r, c) of each picture is pixel (row(r), column(c)) of the picture in `x`.
template <typename Row, typename Column>
Tensor moved(const Tensor& x, const Row& row, const Column& column) {
  Tensor y(DType::kFloat, x.shape());
  for (int64_t n = 0; n < kBatch; ++n) {
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < kColumns; ++c) {
        y.set(n * kPixels + r * kColumns + c, x.at(n * kPixels + row(r) * kColumns + column(c)));
      }
    }
  }
  return y;
}

Tensor flipped(const Tensor& x) {
  return moved(
      x, [](int64_t r) { return r; }, [](int64_t c) { return kColumns - 1 - c; });
}

Tensor turned(const Tensor& x) {
  return moved(
      x, [](int64_t r) { return kRows - 1 - r; }, [](int64_t c) { return c; });
}

Tensor shifted(const Tensor& x, int64_t by) {
  return moved(
      x, [&](int64_t r) { return reflected(r - by, kRows); }, [&](int64_t c) { return reflected(c - by, kColumns); });
}

void expect_mean(const std::string& views, const std::vector<Tensor>& inputs) {
  SCOPED_TRACE(views);
  SessionOptions options;
  options.views = parse_views(views);
  Session averaging(network(), options), plain(network());
  const Tensor found = averaging.run("predict", {{"image", pictures()}}).at("logits");
  std::vector<double> mean(static_cast<size_t>(found.size()));
  for (const Tensor& input : inputs) {
    const Tensor logits = plain.run("predict", {{"image", input}}).at("logits");
    for (size_t i = 0; i < mean.size(); ++i) {
      mean[i] += logits.at(static_cast<int64_t>(i)) / static_cast<double>(inputs.size());
    }
  }
  for (size_t i = 0; i < mean.size(); ++i) EXPECT_NEAR(found.at(static_cast<int64_t>(i)), mean[i], 1e-6);
}

TEST(TestTimeAugmentation, APredictionIsTheMeanOverAllViews) {
  const Tensor x = pictures();
  expect_mean("flip", {x, flipped(x)});
  expect_mean("vflip", {x, turned(x)});
  expect_mean("shift(2)", {x, shifted(x, 2), shifted(x, -2)});
  expect_mean("flip, vflip", {x, flipped(x), turned(x), flipped(turned(x))});
  expect_mean("flip,shift(1)",
              {x, shifted(x, 1), shifted(x, -1), flipped(x), flipped(shifted(x, 1)), flipped(shifted(x, -1))});
}

// evaluate: the sum of the squares of the logits; step: the same of the pictures as they are.
TEST(TestTimeAugmentation, EvaluateReadsTheMeanAndStepDoesNot) {
  Model model = network();
  for (const char* name : {"step", "evaluate"}) {
    Graph& algorithm = *model.add_entry_point(name).algorithm;
    Builder b(&algorithm);
    const Var logits = b.var(model.graph->find("logits"));
    const Var loss = sum_all(logits * logits);
    algorithm.rename(loss.value(), "loss");
    algorithm.add_output(loss.value());
  }
  const auto squares = [](const Tensor& logits) {
    double sum = 0;
    for (int64_t i = 0; i < logits.size(); ++i) sum += logits.at(i) * logits.at(i);
    return sum;
  };
  SessionOptions options;
  options.views.flip = true;
  Session session(std::move(model), options), plain(network());
  const TensorMap inputs = {{"image", pictures()}};
  const double mean = squares(session.run("predict", inputs).at("logits"));
  const double as_they_are = squares(plain.run("predict", inputs).at("logits"));
  EXPECT_NEAR(session.run("evaluate", inputs).at("loss").at(0), mean, 1e-5);
  EXPECT_NEAR(session.run("step", inputs).at("loss").at(0), as_they_are, 1e-5);
  EXPECT_GT(std::abs(mean - as_they_are), 1e-3);
}

TEST(TestTimeAugmentation, ChannelsMayComeLast) {
  const auto run = [](const std::string& signature, const std::string& body, const Tensor& x) {
    Model model = of_text(signature, body);
    average_over_views(&model, parse_views("flip"), "predict");
    EXPECT_EQ(model.graph->outputs()[0]->name(), "y");
    return Session(std::move(model)).run("predict", {{"x", x}}).at("y").clone();
  };
  Tensor rows(DType::kFloat, {1, 3, 2, 4}), columns(DType::kFloat, {1, 2, 4, 3});
  for (int64_t c = 0; c < 3; ++c) {
    for (int64_t i = 0; i < 8; ++i) {
      rows.set(c * 8 + i, static_cast<double>(c + i * i));
      columns.set(i * 3 + c, static_cast<double>(c + i * i));
    }
  }
  const Tensor first = run("(float[N,3,2,4] x) => (float[N,24] y)", "y = Flatten(x)", rows);
  const Tensor last =
      run("(float[N,2,4,3] x) => (float[N,24] y)", "t = Transpose<perm = [0,3,1,2]>(x) y = Flatten(t)", columns);
  for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(first.at(i), last.at(i));
}

std::string refusal(const std::string& signature, const std::string& body, const std::string& views = "flip") {
  return error_of([&] {
    Model model = of_text(signature, body);
    average_over_views(&model, parse_views(views), "predict");
  });
}

TEST(TestTimeAugmentation, WhatCannotBeAveragedIsNamed) {
  EXPECT_THAT(refusal("(float[N,3,4,5] x) => (float[N,3,4,5] map)", "map = Relu(x)"),
              HasSubstr("'map' is float[N,3,4,5], whose positions would have to move back with their pictures"));
  EXPECT_THAT(
      refusal("(float[N,3,4,5] x) => (int64[N] class)", "f = Flatten(x) class = ArgMax<axis = 1, keepdims = 0>(f)"),
      HasSubstr("'class' is int64[N]"));
  EXPECT_THAT(refusal("(float[N,3,4,5] x) => (float[N,60] y)", "y = Flatten(x)", "shift(4)"),
              HasSubstr("shift(4) leaves nothing of 'x', float[N,3,4,5]"));
  EXPECT_THAT(refusal("(float[N,2,4,5] x) => (float[N,40] y)", "y = Flatten(x)"),
              HasSubstr("with 1 or 3 channels; the model's inputs are 'x' float[N,2,4,5]"));
}

TEST(TestTimeAugmentation, AListOfViewsIsParsed) {
  const TestTimeViews views = parse_views("shift(2), vflip");
  EXPECT_TRUE(views.vflip && !views.flip && views.shift == 2);
  EXPECT_TRUE(parse_views("").empty());
  EXPECT_THAT(error_of([] { parse_views("flop"); }), HasSubstr("there is no view 'flop'"));
  EXPECT_THAT(error_of([] { parse_views("flip, flip"); }), HasSubstr("'flip' is given twice"));
  EXPECT_THAT(error_of([] { parse_views("shift(0.5)"); }), HasSubstr("a whole number of pixels"));
  EXPECT_THAT(error_of([] { parse_views("flip,"); }), HasSubstr("column 6"));
}

}  // namespace
}  // namespace onnx_train::test_time_augmentation_test
