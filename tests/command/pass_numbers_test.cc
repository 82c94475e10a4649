// `verify --passes`: a pass that changes numbers names itself, and rounding is not taken for that.
#include "tools/opt/pass_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "kernels/device.h"
#include "kernels/lowering/pipeline.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/passes.h"
#include "runtime/models/build_settings.h"
#include "tests/support/transformer.h"

namespace onnx_train::pass_numbers_test {
namespace {

using Verdict = PassNumbers::Verdict;

// y is a value of many digits; of z only the last ones are left.
constexpr const char* kModel = R"(<ir_version: 10, opset_import: ["" : 21]>
  net (float[4] x) => (float[4] y, float[4] z)
  <float[4] w = {1.1, 2.2, 3.3, 4.4}, float[4] large = {10000, 10000, 10000, 10000}> {
    y = Mul (x, w)
    far = Add (x, large)
    z = Sub (far, large)
  })";

TensorMap run(Model model, bool in_double) {
  if (in_double) model = in_precision(std::move(model), "float64");
  Session session(std::move(model));
  Tensor x = Tensor::of<float>({4}, {0.1f, 0.2f, -0.3f, 0.7f});
  if (in_double) x = x.cast(DType::kDouble);
  TensorMap inputs, outputs;
  for (const Value* input : session.model().graph->inputs()) inputs[input->name()] = x;
  for (const auto& [name, tensor] : session.run("predict", inputs)) outputs[name] = tensor.clone();
  return outputs;
}

// Multiplies an initializer.
Pass scales(const char* name, const std::string& numbers, const std::string& value, float factor) {
  const auto scale = [=](Model& model) {
    Value* found = model.graph->find(value);
    Tensor tensor = constant_of(found).clone();
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, tensor.at(i) * factor);
    model.graph->set_initializer(found, tensor);
    return true;
  };
  return {name, scale, "", numbers};
}

std::vector<PassNumbers> check(const std::vector<Pass>& passes, const char* norm = nullptr) {
  Model model = from_text(kModel);
  if (norm) model.graph->find(norm)->set_role({roles::kGradNorm, ""});
  NumberCheck numbers(run, {});
  run_pipeline(passes, &model,
               {.dump_dir = "", .observe = [&](const PassTiming* pass, const Model& m) { numbers.observe(pass, m); }});
  return numbers.rows();
}

TEST(PassNumbers, EachPassIsComparedWithTheModelBeforeIt) {
  const Pass nothing{"nothing", [](Model&) { return false; }};
  const std::vector<PassNumbers> rows =
      check({nothing, scales("exact", kEqualInBits, "w", 1), scales("other sums", "", "w", 1 + 3e-7F),
             scales("wrong", "", "w", 1.25F), scales("right again", kEqualInBits, "w", 1),
             scales("not exact", kEqualInBits, "w", 1 + 3e-7F)});
  ASSERT_EQ(rows.size(), 6u);
  const Verdict expected[] = {Verdict::kUnchanged, Verdict::kAgrees, Verdict::kAgrees,
                              Verdict::kOff,       Verdict::kAgrees, Verdict::kOff};
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(rows[i].verdict, expected[i]) << rows[i].pass;
  EXPECT_EQ(rows[3].pass, "wrong");
  EXPECT_EQ(rows[3].output, "y");
  EXPECT_NEAR(rows[3].difference, 0.25, 1e-6);
  EXPECT_EQ(rows[3].bound, 1e-6);
  EXPECT_EQ(rows[5].bound, 0);
  EXPECT_LT(rows[5].difference, 1e-6);
}

// What is left of z is rounding, which another order of its sums changes.
TEST(PassNumbers, RoundingOfWhatCancelsIsNoFault) {
  const std::vector<PassNumbers> rows = check({scales("other sums", "", "large", 1.7F)});
  EXPECT_EQ(rows[0].verdict, Verdict::kRounds);
  EXPECT_EQ(rows[0].output, "z");
  EXPECT_GT(rows[0].difference, rows[0].bound);
  EXPECT_EQ(check({scales("exact", kEqualInBits, "large", 1.7F)})[0].verdict, Verdict::kOff);
}

TEST(PassNumbers, TheNormAloneMayBeSummedInAnotherOrder) {
  const Pass pass = scales("norm", kEqualButNorm, "w", 1 + 3e-7F);
  EXPECT_EQ(check({pass}, "y")[0].verdict, Verdict::kAgrees);
  EXPECT_EQ(check({pass}, "z")[0].verdict, Verdict::kOff);
}

// The next weight is held to its slot, which says what its gradient is.
TEST(PassNumbers, AWeightWhoseSlotAgreesIsRight) {
  const auto check_update = [](const Pass& pass) {
    Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
      net (float[4] w, float[4] m) => (float[4] next_w, float[4] next_m)
      <float[4] c = {1, 1, 1, 1}, float[4] d = {1, 1, 1, 1}> { next_w = Mul (w, c) next_m = Mul (m, d) })");
    Graph& graph = *model.graph;
    graph.find("m")->set_role({"exp_avg", "w"});
    graph.find("next_w")->set_role({roles::kNext, "w"});
    graph.find("next_m")->set_role({roles::kNext, "m"});
    NumberCheck numbers(run, {});
    run_pipeline({pass}, &model,
                 {.dump_dir = "", .observe = [&](const PassTiming* p, const Model& m) { numbers.observe(p, m); }});
    return numbers.rows().at(0);
  };
  EXPECT_EQ(check_update(scales("signs", "", "c", 1.5F)).verdict, Verdict::kRounds);
  EXPECT_EQ(check_update(scales("signs", kEqualInBits, "c", 1.5F)).verdict, Verdict::kOff);
  EXPECT_EQ(check_update(scales("gradient", "", "d", 1.5F)).verdict, Verdict::kOff);
  EXPECT_EQ(check_update(scales("gradient", "", "d", 1.5F)).output, "next_m");
}

TEST(PassNumbers, AModelThatDoesNotRunIsSaid) {
  const Pass unknown{"unknown", [](Model& model) {
                       model.graph->find("far")->producer()->set_op("Nothing", "nowhere");
                       return true;
                     }};
  const std::vector<PassNumbers> rows = check({unknown});
  EXPECT_EQ(rows[0].verdict, Verdict::kFails);
  EXPECT_THAT(rows[0].fault, testing::HasSubstr("Nothing"));
}

// ---- The passes of plans

std::string faults(const std::vector<PassNumbers>& rows) {
  std::string text;
  for (const PassNumbers& row : rows) {
    if (row.verdict == Verdict::kOff || row.verdict == Verdict::kFails)
      text += concat(row.pass, ": '", row.output, "' by ", row.difference, " ", row.fault, "\n");
  }
  return text;
}

TEST(VerifyLowering, ThePassesOfATransformerAreRight) {
  const TransformerSizes sizes = {.blocks = 1, .tokens = 8, .vocabulary = 64};
  Tensor tokens(DType::kInt64, {2, sizes.tokens}), labels(DType::kInt64, {2, sizes.tokens});
  for (int64_t i = 0; i < tokens.size(); ++i) {
    tokens.set(i, static_cast<double>(i * 7 % sizes.vocabulary));
    labels.set(i, static_cast<double>(i * 5 % sizes.vocabulary));
  }
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    Model model = make_transformer(sizes);
    BuildOptions options;
    options.precision = precision;
    options.optimizer = "sgd(momentum=0.9)";
    options.freeze = {"*mask"};
    build_training_model(&model, options);
    SessionOptions session;
    session.device = &Device::cpu();
    const TensorMap inputs = {{"tokens", tokens}, {"labels", labels}, {"learning_rate", Tensor::scalar<float>(1)}};
    const std::vector<PassNumbers> rows = verify_lowering(std::move(model), "step", inputs, session);
    EXPECT_EQ(faults(rows), "");
    const auto changes =
        std::ranges::count_if(rows, [](const auto& row) { return row.verdict != Verdict::kUnchanged; });
    EXPECT_GT(changes, 5);
    EXPECT_EQ(rows.back().pass, "views, write_in_place, update_in_place");
  }
}

}  // namespace
}  // namespace onnx_train::pass_numbers_test
