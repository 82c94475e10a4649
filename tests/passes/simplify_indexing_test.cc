#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"
#include "tests/support/paths.h"
#include "tests/support/run_node.h"

namespace onnx_train::simplify_indexing_test {
namespace {

// The text's model before and after, on the same inputs.
void expect_equal_outputs(const std::string& text, const TensorMap& inputs) {
  Model simplified = from_text(text);
  for (Node* node = simplified.graph->first(); node; node = node->next()) infer_types(node);
  ASSERT_TRUE(simplify_indexing(simplified));
  Session before(from_text(text)), after(std::move(simplified));
  TensorMap expected;
  for (const auto& [name, tensor] : before.run("predict", inputs)) expected[name] = tensor.clone();
  for (const auto& [name, tensor] : after.run("predict", inputs))
    EXPECT_EQ(relative_error(tensor, expected.at(name)), 0) << name;
}

TEST(SimplifyIndexing, ChangesNoNumbers) {
  std::ifstream file(source_folder() / "tests/golden/simplify_indexing.txt");
  std::stringstream text;
  text << file.rdbuf();
  expect_equal_outputs(
      text.str().substr(0, text.str().find("---")),
      {{"products", random_tensor(DType::kFloat, {5, 3, 3})}, {"rows", random_tensor(DType::kFloat, {4, 2, 5})}});
  // The indexed axes stay in front; an axis behind them is merged with nothing.
  expect_equal_outputs(R"(<ir_version: 10, opset_import: ["" : 21]>
      g (float[2,3,4,5] x) => (float[3,2,5] y) <int64[3,2] at = {0,0,2,3,-1,-1}> {
        t = Transpose <perm = [1, 2, 0, 3]> (x)
        y = GatherND (t, at)
      })",
                       {{"x", random_tensor(DType::kFloat, {2, 3, 4, 5})}});
}

TEST(SimplifyIndexing, LeavesWhatItCannotProve) {
  for (const char* nodes :
       {"y = GatherND <batch_dims = 1> (x, at)", "t = Transpose <perm = [1, 0, 2]> (x)\n y = GatherND (t, at)"}) {
    Model model = from_text(std::string(R"(<ir_version: 10, opset_import: ["" : 21]>
      g (float[2,3,4] x) => (y) <int64[2,2] at = {0,0,1,1}> {)") +
                            nodes + "}");
    for (Node* node = model.graph->first(); node; node = node->next()) infer_types(node);
    EXPECT_FALSE(simplify_indexing(model)) << nodes;
  }
}

}  // namespace
}  // namespace onnx_train::simplify_indexing_test
