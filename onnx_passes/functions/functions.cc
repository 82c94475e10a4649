#include "onnx_passes/functions/functions.h"

#include <onnx/defs/parser.h>

#include <algorithm>

#include "onnx_passes/functions/declaration.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {

#define ONNX_TRAIN_FAMILY(name) std::vector<FunctionRow> name##_functions();
#include "onnx_passes/functions/families.def"

const Attr* FunctionCall::find(const std::string& attribute) const {
  const auto found = std::find_if(attrs.begin(), attrs.end(), [&](const Attr& a) { return a.name == attribute; });
  return found == attrs.end() ? nullptr : &*found;
}

int64_t FunctionCall::integer(const std::string& attribute, int64_t otherwise) const {
  const Attr* attr = find(attribute);
  return attr ? std::get<int64_t>(attr->value) : otherwise;
}

std::string FunctionCall::text(const std::string& attribute, const std::string& otherwise) const {
  const Attr* attr = find(attribute);
  return attr ? std::get<std::string>(attr->value) : otherwise;
}

const std::vector<const FunctionRow*>& function_rows() {
  static const std::vector<const FunctionRow*> all = [] {
    static const std::vector<std::vector<FunctionRow>> families = {
#define ONNX_TRAIN_FAMILY(name) name##_functions(),
#include "onnx_passes/functions/families.def"
    };
    std::vector<const FunctionRow*> rows;
    for (const auto& family : families) {
      for (const FunctionRow& row : family) rows.push_back(&row);
    }
    return rows;
  }();
  return all;
}

const FunctionRow& find_function(const std::string& op) {
  for (const FunctionRow* row : function_rows()) {
    if (op == row->op) return *row;
  }
  fail("there is no function ", kDomain, ".", op);
}

namespace {

// "Name (x, y) => (z, w) { ... }" has two.
int num_outputs_of(const std::string& text) {
  const auto begin = text.begin() + static_cast<std::ptrdiff_t>(text.find("=>"));
  return 1 + static_cast<int>(std::count(begin, std::find(begin, text.end(), ')'), ','));
}

std::shared_ptr<onnx::FunctionProto> parse(const FunctionText& body, const std::string& op, int64_t opset) {
  const std::string ours = body.inner.empty() ? "" : concat(", \"", kDomain, "\" : 1");
  const std::string text = concat("<domain: \"", kDomain, "\", opset_import: [\"\" : ", opset, ours, "]>\n", body.text);
  auto function = std::make_shared<onnx::FunctionProto>();
  onnx::OnnxParser parser(text);
  const auto status = parser.Parse(*function);
  if (!status.IsOK()) fail("the body of ", kDomain, ".", op, " is no ONNX text: ", status.ErrorMessage());
  if (!body.overload.empty()) function->set_overload(body.overload);
  return function;
}

// Adds the function unless it is there; of its outputs the last `left_out` are cut off.
void add_function(Context& context, const std::string& op, const FunctionText& body, int left_out,
                  const FunctionCall& call) {
  if (context.find_function(kDomain, op, body.overload)) return;
  auto function = parse(body, op, context.opset());
  if (left_out > 0) function->mutable_output()->DeleteSubrange(function->output_size() - left_out, left_out);
  context.functions.push_back(function);
  if (!body.inner.empty()) add_function(context, body.inner, find_function(body.inner).text(call), 0, call);
}

}  // namespace

bool keeps_its_calls(std::string_view domain, std::string_view op) {
  return domain == kDomain && (op == "StopGradient" || op == "FakeQuantizeInteger" || op == "FakeQuantizeSign");
}

void declare_function(const Node& node) {
  const std::vector<Var> no_inputs;
  Attrs attributes;  // those on which a body may depend
  if (const auto* rounding = node.find_attr("rounding")) attributes.emplace_back("rounding", rounding->s());
  if (const auto* parts = node.find_attr("parts")) attributes.emplace_back("parts", parts->f());
  const FunctionCall call{no_inputs, attributes};
  const FunctionText body = find_function(node.op()).text(call);
  if (body.overload != node.overload()) fail(node.label(), " calls another function than its attributes say");
  Context& context = node.graph().context();
  context.opsets.emplace(kDomain, 1);
  add_function(context, node.op(), body, 0, call);
}

std::vector<Var> call(Builder& b, const std::string& op, int num_outputs, const std::vector<Var>& inputs,
                      const Attrs& attrs) {
  return call(b, find_function(op), num_outputs, inputs, attrs);
}

std::vector<Var> call(Builder& b, const FunctionRow& row, int num_outputs, const std::vector<Var>& inputs,
                      const Attrs& attrs) {
  const std::string op = row.op;
  const FunctionCall made{inputs, attrs};
  FunctionText body = row.text(made);
  // A call must take all outputs of its function: other runtimes' inference insists.
  const int left_out = num_outputs_of(body.text) - num_outputs;
  if (left_out > 0) body.overload += concat("first", num_outputs);
  Context& context = b.graph().context();
  context.opsets.emplace(kDomain, 1);
  add_function(context, op, body, left_out, made);
  return b.ops(op, num_outputs, inputs, attrs, kDomain, body.overload);
}

}  // namespace onnx_train
