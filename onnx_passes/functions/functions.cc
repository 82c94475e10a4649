#include "onnx_passes/functions/functions.h"

#include <onnx/defs/parser.h>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inference.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {

FunctionRow function(const char* op, const char* text) {
  return {op, [text](const FunctionCall&) { return FunctionText{text, ""}; }};
}

const std::vector<const FunctionRow*>& function_rows() {
  static const std::vector<const FunctionRow*> all = [] {
    static std::vector<std::vector<FunctionRow>> families = {
        activation_functions(), product_functions(), convolution_functions(), normalization_functions(),
        indexing_functions(),   loss_functions(),    optimizer_functions(),   random_functions(),
    };
    std::vector<const FunctionRow*> rows;
    for (const auto& family : families) {
      for (const FunctionRow& row : family) rows.push_back(&row);
    }
    return rows;
  }();
  return all;
}

namespace {

std::shared_ptr<onnx::FunctionProto> parse(const FunctionText& body, const std::string& op, int64_t opset) {
  const std::string text = concat("<domain: \"", kDomain, "\", opset_import: [\"\" : ", opset, "]>\n", body.text);
  auto function = std::make_shared<onnx::FunctionProto>();
  onnx::OnnxParser parser(text);
  const auto status = parser.Parse(*function);
  if (!status.IsOK()) fail("the body of ", kDomain, ".", op, " is no ONNX text: ", status.ErrorMessage());
  if (!body.overload.empty()) function->set_overload(body.overload);
  return function;
}

}  // namespace

std::vector<Var> call(Builder& b, const std::string& op, int num_outputs, const std::vector<Var>& inputs,
                      const Attrs& attrs) {
  for (const FunctionRow* row : function_rows()) {
    if (op != row->op) continue;
    const FunctionText body = row->text({inputs, attrs});
    Context& context = b.graph().context();
    context.opsets.emplace(kDomain, 1);
    if (!context.find_function(kDomain, op, body.overload)) {
      context.functions.push_back(parse(body, op, context.opset()));
    }
    return b.ops(op, num_outputs, inputs, attrs, kDomain, body.overload);
  }
  fail("there is no function ", kDomain, ".", op);
}

}  // namespace onnx_train
