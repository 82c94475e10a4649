#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/roles.h"
#include "runtime/session/session.h"
#include "tests/support/error_of.h"

namespace onnx_train::anomaly_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A network x -> h, and an entry point "evaluate" whose loss is the sum of what `body` makes of h, called y.
std::string anomaly(const std::string& body, const std::vector<float>& x, bool detect = true) {
  Model model =
      from_text(R"(<ir_version: 10, opset_import: ["" : 21]> network (float[4] x) => (float[4] y) { )" + body + " }");
  infer_types(model.graph.get());
  Graph& algorithm = *model.add_entry_point("evaluate").algorithm;
  Builder b(&algorithm);
  Value* const loss = sum_all(b.var(model.graph->find("y"))).value();
  algorithm.rename(loss, "loss");
  loss->set_role({roles::kLoss, ""});
  algorithm.add_output(loss);
  SessionOptions options;
  options.plan.detect_anomaly = detect;
  options.plan.lowering.on = false;
  Session session(std::move(model), options);
  return error_of([&] { session.run("evaluate", {{"x", Tensor::of<float>({4}, x)}}); });
}

TEST(Anomaly, TheFirstNodeWhoseNumbersAreNotFiniteIsNamedWithTheRangesOfItsInputs) {
  const std::string error = anomaly("[root] r = Sqrt (x) [log] l = Log (r) [twice] y = Add (l, r)", {4, 0, 9, 1});
  EXPECT_THAT(error,
              HasSubstr("the loss is -infinite: node 'log' (Log) is the first node that it comes from: element 1 "
                        "of 'l' float[4] is -infinite; it reads 'r' float[4] from 0 to 3"));
}

TEST(Anomaly, NumbersThatEndOnTheWayAreNone) {
  // The logarithm of 0 is hidden; the root of -1 is not.
  const std::string body =
      "[log] l = Log (x) [hidden] bad = IsInf (l) zero = Constant <value = float {0}> () a = Where (bad, zero, l) "
      "one = Constant <value = float {1}> () s = Sub (x, one) [root] q = Sqrt (s) y = Add (a, q)";
  EXPECT_EQ(anomaly(body, {4, 2, 9, 1}), "");
  const std::string error = anomaly(body, {4, 0, 9, 1});
  EXPECT_THAT(error, AllOf(HasSubstr("the loss is NaN: node 'root' (Sqrt)"), Not(HasSubstr("'log'"))));
}

TEST(Anomaly, DataThatAreNotFiniteShowInTheRanges) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::string error = anomaly("[negative] n = Neg (x) [exp] y = Exp (n)", {1, -infinity, 2, 3});
  EXPECT_THAT(error, AllOf(HasSubstr("node 'negative' (Neg)"),
                           HasSubstr("it reads 'x' float[4] from 1 to 3, 1 of 4 not finite")));
}

TEST(Anomaly, WithoutTheOptionARunGoesOn) { EXPECT_EQ(anomaly("y = Log (x)", {0, 1, 1, 1}, false), ""); }

}  // namespace
}  // namespace onnx_train::anomaly_test
