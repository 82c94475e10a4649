#include "kernels/functions/functions.h"

#include <algorithm>

namespace onnx_train {

const std::vector<const FunctionRow*>& lowering_function_rows() {
  static const std::vector<const FunctionRow*> all = [] {
    static std::vector<std::vector<FunctionRow>> families = {
        lowered_product_functions(), channels_last_functions(), batch_normalization_functions(),
        block_attention_functions(), embedding_functions(),     selection_functions(),
        float8_functions()};
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
