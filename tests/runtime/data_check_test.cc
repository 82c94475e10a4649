#include "runtime/data/loading/data_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/loss.h"
#include "onnx_passes/training/training_mode.h"
#include "runtime/data/texts/label_shift.h"
#include "tests/support/golden.h"

namespace onnx_train::data_check_test {
namespace {

using testing::HasSubstr;

std::string zeros(int count) {
  std::string text = "{0";
  for (int i = 1; i < count; ++i) text += ", 0";
  return text + "}";
}

std::string range_text(const IndexRange& range) {
  return concat(range.least, "..", range.most, range.has_other ? concat(" or ", range.other) : "");
}

// The ranges of input `ids` of a network that computes y.
std::vector<std::string> ranges_of(const std::string& body, const std::string& ids = "int64[N,4] ids") {
  Model model = from_text("<ir_version: 10, opset_import: [\"\" : 21]> net (float[N,4] x, " + ids +
                          ") => (float y) <float[10,3] table = " + zeros(30) + "> { " + body + " }");
  infer_types(model.graph.get());
  std::vector<std::string> texts;
  const auto ranges = index_ranges(model, "predict");
  for (const IndexRange& range : ranges.at("ids")) texts.push_back(range_text(range));
  return texts;
}

TEST(IndexRanges, AreThoseOfTheRowsThatAreGathered) {
  using testing::ElementsAre;
  EXPECT_THAT(ranges_of("g = Gather(table, ids) y = ReduceSum<keepdims = 0>(g)"), ElementsAre("0..9"));
  EXPECT_THAT(ranges_of("g = Gather<axis = 1>(table, ids) y = ReduceSum<keepdims = 0>(g)"), ElementsAre("-3..2"));
  EXPECT_THAT(ranges_of("g = GatherElements<axis = -1>(x, ids) y = ReduceSum<keepdims = 0>(g)"), ElementsAre("-4..3"));
  EXPECT_THAT(ranges_of("c = Cast<to = 6>(ids) t = Transpose(c) f = Flatten(t) g = Gather(table, f) "
                        "y = ReduceSum<keepdims = 0>(g)"),
              ElementsAre("0..9"));
  EXPECT_THAT(ranges_of("g = Gather(table, ids) h = Gather<axis = 1>(table, ids) a = ReduceSum<keepdims = 0>(g) "
                        "b = ReduceSum<keepdims = 0>(h) y = Add(a, b)"),
              testing::UnorderedElementsAre("0..9", "-3..2"));
}

TEST(IndexRanges, ThereIsNoneWhereValuesChangeOrOnlySomeAreRead) {
  for (const char* body :
       {"s = Add(ids, ids) g = Gather(table, s) y = ReduceSum<keepdims = 0>(g)",
        "i, rest = Split<num_outputs = 2, axis = 1>(ids) g = Gather(table, i) y = ReduceSum<keepdims = 0>(g)",
        "f = Cast<to = 1>(ids) s = Add(f, x) y = ReduceSum<keepdims = 0>(s)",
        "g = Gather(x, ids) y = ReduceSum<keepdims = 0>(g)"}) {
    EXPECT_THAT(ranges_of(body), testing::IsEmpty()) << body;
  }
}

std::vector<std::string> label_ranges(const std::string& expression) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    net (float[N,5] x) => (float[N,5] logits) { logits = Exp(x) })");
  infer_types(model.graph.get());
  BuildOptions options;
  options.loss = expression;
  training_mode(options).run(model);
  loss(options).run(model);
  std::vector<std::string> texts;
  const auto ranges = index_ranges(model, "evaluate");
  if (!ranges.count("labels")) return {};
  for (const IndexRange& range : ranges.at("labels")) texts.push_back(range_text(range));
  return texts;
}

TEST(IndexRanges, OfLabelsAreTheClassesAndWhatTheLossIgnores) {
  using testing::ElementsAre;
  EXPECT_THAT(label_ranges("cross_entropy"), ElementsAre("0..4 or -100"));
  EXPECT_THAT(label_ranges("cross_entropy(logits, labels, ignore_index=255)"), ElementsAre("0..4 or 255"));
  EXPECT_THAT(label_ranges("nll(logits, labels, ignore_index=-1)"), ElementsAre("0..4 or -1"));
  EXPECT_THAT(label_ranges("mse"), testing::IsEmpty());
}

// The classes follow from the sizes of the data where the model leaves them open.
TEST(IndexRanges, OfAnOpenSizeAreThoseOfTheData) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    net (float[N,C] x) => (float[N,C] logits) { logits = Exp(x) })");
  infer_types(model.graph.get());
  BuildOptions options;
  options.loss = "cross_entropy";
  training_mode(options).run(model);
  loss(options).run(model);
  EXPECT_THAT(index_ranges(model, "evaluate").at("labels"), testing::IsEmpty());
  Tensor labels(DType::kInt64, {3});
  const TensorMap arrays = {{"x", Tensor(DType::kFloat, {3, 5})}, {"labels", labels}};
  const Dataset data(arrays, entry_inputs(model, "evaluate"));
  EXPECT_EQ(DataCheck(&data, model, "evaluate").first_fault(), "");
  labels.set(2, 5);
  EXPECT_THAT(DataCheck(&data, model, "evaluate").first_fault(),
              testing::AllOf(HasSubstr("'labels' holds 5 in sample 2"), HasSubstr("takes 0 to 4, and ignores -100")));
}

// What is said of targets of a loss of the logits [N, 5], before a training.
std::string refusal(const std::string& expression, const Tensor& labels) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    net (float[N,5] x) => (float[N,5] logits) { logits = Exp(x) })");
  infer_types(model.graph.get());
  BuildOptions options;
  options.loss = expression;
  training_mode(options).run(model);
  loss(options).run(model);
  const Dataset data({{"x", Tensor(DType::kFloat, {labels.shape()[0], 5})}, {"labels", labels}},
                     entry_inputs(model, "evaluate"));
  return DataCheck(&data, model, "evaluate").refusal("--nevertheless");
}

TEST(DataCheck, TargetsOfLossesOverProbabilitiesAreFromZeroToOne) {
  Tensor labels(DType::kUint8, {3, 5});
  labels.set(4, 1);
  for (const char* loss : {"bce_with_logits", "sigmoid_focal", "cross_entropy(probabilities=true)"}) {
    EXPECT_EQ(refusal(loss, labels), "") << loss;
    Tensor black_and_white(DType::kUint8, {3, 5});
    black_and_white.set(7, 255);
    EXPECT_THAT(refusal(loss, black_and_white),
                testing::AllOf(HasSubstr("'labels' holds 255 in sample 1"), HasSubstr("takes 0 to 1"),
                               HasSubstr("it holds 0 and 255 alone: make them 0 and 1"), HasSubstr("--nevertheless")));
  }
  Tensor soft(DType::kFloat, {1, 5});
  soft.set(2, 1.0005);  // as a softmax in 16 bits may give
  EXPECT_EQ(refusal("bce_with_logits", soft), "");
  soft.set(2, -0.5);
  EXPECT_THAT(refusal("bce_with_logits", soft), HasSubstr("mse takes any numbers"));
  EXPECT_EQ(refusal("mse", soft), "");
}

TEST(DataCheck, LabelsThatBeginAtOneAreTold) {
  Tensor labels(DType::kInt64, {5});
  for (int i = 0; i < 5; ++i) labels.set(i, i + 1);
  EXPECT_THAT(refusal("cross_entropy", labels),
              testing::AllOf(HasSubstr("'labels' holds 5 in sample 4"), HasSubstr("begin at 1, classes at 0"),
                             testing::Not(HasSubstr("--nevertheless"))));
  labels.set(0, 0);
  labels.set(4, 255);
  EXPECT_THAT(refusal("cross_entropy", labels), HasSubstr("build with ignore_index=255"));
}

TEST(DataCheck, MoreClassesThanTheModelHasWantANewHead) {
  Tensor labels(DType::kInt64, {6});
  for (int i = 0; i < 6; ++i) labels.set(i, i);
  EXPECT_THAT(
      refusal("cross_entropy", labels),
      testing::AllOf(HasSubstr("the model tells 5 classes apart, and the data have 6"), HasSubstr("--head logits=6"),
                     HasSubstr("if such positions do not count, ignore_index=5")));
  Tensor more(DType::kInt64, {8});
  for (int i = 0; i < 8; ++i) more.set(i, i);
  EXPECT_THAT(refusal("cross_entropy", more),
              testing::AllOf(HasSubstr("--head logits=8"), testing::Not(HasSubstr("ignore_index"))));
}

Model two_inputs(const std::string& x, const std::string& ids) {
  Model model = from_text("<ir_version: 10, opset_import: [\"\" : 21]> net (" + x + " x, " + ids +
                          " ids) => (float y) <float[10,3] table = " + zeros(30) +
                          "> { g = Gather(table, ids) f = Cast<to = 1>(x) "
                          "a = ReduceSum<keepdims = 0>(g) b = ReduceSum<keepdims = 0>(f) y = Add(a, b) }");
  infer_types(model.graph.get());
  return model;
}

std::string first_fault(const Tensor& x, const Tensor& ids, const std::string& x_type = "float[N,2]",
                        const std::string& ids_type = "int64[N,3]") {
  const Model model = two_inputs(x_type, ids_type);
  const Dataset data({{"x", x}, {"ids", ids}}, entry_inputs(model, "predict"));
  return DataCheck(&data, model, "predict").first_fault();
}

TEST(DataCheck, NamesArraySampleElementAndReader) {
  const Tensor x(DType::kFloat, {4, 2}), ids(DType::kInt64, {4, 3});
  EXPECT_EQ(first_fault(x, ids), "");
  Tensor wrong = ids.clone();
  wrong.set(7, 10);
  EXPECT_THAT(first_fault(x, wrong), testing::AllOf(HasSubstr("'ids' holds 10 in sample 2 (element [2, 1]); node "),
                                                    HasSubstr("takes 0 to 9")));
  wrong.set(7, -1);  // a row of weights is no place from the end
  EXPECT_THAT(first_fault(x, wrong), HasSubstr("'ids' holds -1 in sample 2"));
  wrong.set(7, 3080360);
  EXPECT_THAT(first_fault(x, wrong), HasSubstr("'ids' holds 3080360 in sample 2"));
}

// A language model of 5 tokens whose logits are rows of a table.
Model next_tokens() {
  Model model = from_text(
      "<ir_version: 10, opset_import: [\"\" : 21]> net (int64[N,T] ids) => (float[N,T,5] logits) "
      "<float[5,5] table = " +
      zeros(25) + "> { logits = Gather(table, ids) }");
  infer_types(model.graph.get());
  BuildOptions options;
  options.loss = "cross_entropy";
  training_mode(options).run(model);
  loss(options).run(model);
  return model;
}

std::string fault_of_labels(const std::vector<int64_t>& ids, const std::vector<int64_t>& labels) {
  const Model model = next_tokens();
  const auto rows = [](const std::vector<int64_t>& all) { return Tensor::ints(all).reshaped({2, 3}); };
  const Dataset data({{"ids", rows(ids)}, {"labels", rows(labels)}}, entry_inputs(model, "evaluate"));
  return DataCheck(&data, model, "evaluate").first_fault();
}

// Models of transformers shift labels inside; this one would learn to repeat its input.
TEST(DataCheck, LabelsThatAreACopyOfTheTokensAreAFault) {
  const std::vector<int64_t> ids = {1, 2, 3, 0, 4, 2};
  EXPECT_THAT(fault_of_labels(ids, ids),
              testing::AllOf(HasSubstr("'labels' equals 'ids'"), HasSubstr("--shift-labels")));
  EXPECT_THAT(fault_of_labels(ids, {-100, 2, 3, 0, 4, -100}), HasSubstr("'labels' equals 'ids'"));
  EXPECT_EQ(fault_of_labels(ids, {2, 3, -100, 4, 2, -100}), "");
  EXPECT_EQ(fault_of_labels(ids, {-100, -100, -100, -100, -100, -100}), "");
  EXPECT_EQ(fault_of_labels({1, 1, 1, 2, 2, 2}, {1, 1, 1, 2, 2, 2}), "");  // the next token is the same
}

TEST(DataCheck, LabelsAreShiftedWithinTheirSample) {
  DataArrays arrays;
  arrays.arrays["labels"] = Tensor::of<int32_t>({2, 3}, {1, 2, 3, 0, 4, 2});
  shift_labels(&arrays, entry_inputs(next_tokens(), "evaluate"), -100);
  EXPECT_EQ(arrays.find("labels")->stored().to_ints(), (std::vector<int64_t>{2, 3, -100, 4, 2, -100}));
}

TEST(DataCheck, FindsFaultsInEveryType) {
  const Tensor x(DType::kFloat, {4, 2}), ids(DType::kInt64, {4, 3});
  for (const DType type : {DType::kInt8, DType::kUint8, DType::kInt16, DType::kUint16, DType::kInt32, DType::kUint32,
                           DType::kInt64, DType::kUint64}) {
    Tensor wrong(type, {4, 3});
    EXPECT_EQ(first_fault(x, wrong), "") << name(type);
    wrong.set(11, 10);
    EXPECT_THAT(first_fault(x, wrong), HasSubstr("holds 10 in sample 3")) << name(type);
  }
  for (const DType type : {DType::kFloat, DType::kDouble, DType::kFloat16, DType::kBFloat16}) {
    for (const double bad : {double{NAN}, double{INFINITY}, -double{INFINITY}}) {
      Tensor wrong(type, {4, 2});
      EXPECT_EQ(first_fault(wrong, ids), "") << name(type);
      wrong.set(5, bad);
      EXPECT_THAT(first_fault(wrong, ids), HasSubstr("in sample 2 (element [2, 1]); every number must be finite"))
          << name(type) << bad;
    }
  }
}

TEST(DataCheck, ADoubleMustBeFiniteInTheModelsType) {
  Tensor x(DType::kDouble, {4, 2});
  const Tensor ids(DType::kInt64, {4, 3});
  x.set(1, 1e300);
  EXPECT_THAT(first_fault(x, ids), HasSubstr("'x' holds 1e+300 in sample 0 (element [0, 1])"));
  EXPECT_EQ(first_fault(x, ids, "double[N,2]"), "");
}

TEST(DataCheck, ReadsViewsThatAreNotAligned) {
  std::vector<char> bytes(4 * 2 * sizeof(float) + 1, 0);
  const float bad = NAN;
  std::memcpy(bytes.data() + 1 + 6 * sizeof(float), &bad, sizeof bad);
  const Tensor x(DType::kFloat, {4, 2}, bytes.data() + 1, nullptr);
  EXPECT_THAT(first_fault(x, Tensor(DType::kInt64, {4, 3})), HasSubstr("'x' holds nan in sample 3 (element [3, 0])"));
}

TEST(DataCheck, OfManyThreadsTheFirstFaultIsNamed) {
  constexpr int64_t kSamples = 3 << 20;  // more than one part for each thread
  Tensor x(DType::kFloat, {kSamples, 2});
  const Tensor ids(DType::kInt8, {kSamples, 1});
  EXPECT_EQ(first_fault(x, ids, "float[N,2]", "int64[N,1]"), "");
  for (const int64_t at : {2 * kSamples - 1, 4000003l, 1234567l, 4097l, 0l}) {
    x.set(at, NAN);
    EXPECT_THAT(first_fault(x, ids, "float[N,2]", "int64[N,1]"), HasSubstr(concat("in sample ", at / 2, " "))) << at;
  }
}

TEST(DataCheck, OfSomeSamplesLooksAtNoOthers) {
  Tensor x(DType::kFloat, {6, 2}), ids(DType::kInt64, {6, 3});
  x.set(2 * 2, NAN);
  ids.set(4 * 3 + 1, 99);
  const Model model = two_inputs("float[N,2]", "int64[N,3]");
  const Dataset data({{"x", x}, {"ids", ids}}, entry_inputs(model, "predict"));
  const DataCheck check(&data, model, "predict");
  const int64_t good[] = {5, 0, 3}, bad[] = {5, 4, 0};
  EXPECT_EQ(check.first_fault(good, 3), "");
  EXPECT_THAT(check.first_fault(bad, 3), HasSubstr("'ids' holds 99 in sample 4 (element [4, 1])"));
  EXPECT_EQ(describe_samples(bad, 3), "in the batch of samples 5, 4, 0");
  const int64_t many[] = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
  EXPECT_EQ(describe_samples(many, 10), "in the batch of samples 9, 8, 7, 6, 5, 4, 3, 2 and 2 more");
}

}  // namespace
}  // namespace onnx_train::data_check_test
