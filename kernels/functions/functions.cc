#include "kernels/functions/functions.h"

#include <algorithm>

namespace onnx_train {

#define ONNX_TRAIN_FAMILY(name) std::vector<FunctionRow> name##_functions();
#include "kernels/functions/families.def"

const std::vector<const FunctionRow*>& lowering_function_rows() {
  static const std::vector<const FunctionRow*> all = [] {
    static const std::vector<std::vector<FunctionRow>> families = {
#define ONNX_TRAIN_FAMILY(name) name##_functions(),
#include "kernels/functions/families.def"
    };
    std::vector<const FunctionRow*> rows;
    for (const auto& family : families) {
      for (const FunctionRow& row : family) rows.push_back(&row);
    }
    return rows;
  }();
  return all;
}

std::vector<Var> call_lowered(Builder& b, const std::string& op, int num_outputs, const std::vector<Var>& inputs,
                              const Attrs& attrs) {
  for (const FunctionRow* row : lowering_function_rows()) {
    if (op == row->op) return call(b, *row, num_outputs, inputs, attrs);
  }
  return call(b, op, num_outputs, inputs, attrs);
}

bool is_set(const Attrs& attrs, const std::string& name) {
  return std::any_of(attrs.begin(), attrs.end(),
                     [&](const Attr& attr) { return attr.name == name && std::get<int64_t>(attr.value) != 0; });
}

}  // namespace onnx_train
