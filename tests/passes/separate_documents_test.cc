#include "onnx_passes/tokens/separate_documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/model.h"
#include "onnx_passes/model/document_starts.h"
#include "onnx_passes/model/flatten.h"
#include "tests/support/error_of.h"
#include "tests/support/small_decoder.h"

namespace onnx_train::separate_documents_test {
namespace {

using testing::HasSubstr;

Model decoder(const std::string& attention) {
  Model model = from_text(small_decoder(attention));
  infer_types(model.graph.get());
  return model;
}

TEST(SeparateDocuments, MasksAttentionAndRestartsPositions) {
  Model model = decoder(kCausal);
  separate_documents().run(model);
  const Value* starts = model.graph->find(kDocumentStarts);
  ASSERT_TRUE(starts);
  EXPECT_EQ(to_string(starts->type()), "int64[batch,length]");
  EXPECT_THAT(
      model.metadata("onnx_train.adapted"),
      HasSubstr("keeps those of a row apart in 1 attention; positions begin anew in each document ('positions')"));
  const Node* masked = model.graph->find("masked")->producer();
  EXPECT_TRUE(masked->is("Add"));
  EXPECT_TRUE(masked->input(1)->producer()->is("Where"));
  EXPECT_TRUE(model.graph->find("x")->producer()->input(1)->producer()->is("Gather"));
}

TEST(SeparateDocuments, AModelOfSingleDocumentsIsTheOneBefore) {
  Model before = decoder(kCausal), model = decoder(kCausal);
  separate_documents().run(model);
  model.set_metadata("onnx_train.adapted", "");
  join_documents(&model);
  const auto text = [](Model m) {
    m = without_unused(std::move(m));
    std::string nodes;
    for (const Node* node = m.graph->first(); node; node = node->next()) nodes += node->op() + " ";
    return nodes;
  };
  EXPECT_EQ(text(std::move(model)), text(std::move(before)));
}

TEST(SeparateDocuments, NamesTheNodeThatMixesTokens) {
  const auto error_for = [](const std::string& attention) {
    Model model = decoder(attention);
    return error_of([&] { separate_documents().run(model); });
  };
  EXPECT_THAT(error_for("one = Constant <value_int = 1> () [sum] y = CumSum(x, one)"),
              HasSubstr("[Documents] node 'sum' (CumSum) mixes tokens"));
  EXPECT_THAT(error_for("y = Relu(x)"), HasSubstr("[Documents] the model has no attention"));
}

}  // namespace
}  // namespace onnx_train::separate_documents_test
