#include "onnx_passes/operators/operators.h"

#include <string>
#include <unordered_map>

#include "onnx_passes/operators/shape_contract.h"

namespace onnx_train {
namespace {

struct Row {
  Operator row;
  ShapeContract contract;
};

using Table = std::unordered_map<std::string, Row>;

std::string key_of(std::string_view domain, std::string_view op) {
  std::string key(domain);
  key += '.';
  key += op;
  return key;
}

const Table& table() {
  static const Table all = [] {
    Table rows;
    for (auto family :
         {elementwise_operators, product_operators, window_operators, normalization_operators, reduction_operators,
          movement_operators, indexing_operators, recurrent_operators, training_operators, attention_operators}) {
      for (const Operator& row : family())
        rows.emplace(key_of(row.domain, row.op), Row{row, ShapeContract(row.shapes)});
    }
    return rows;
  }();
  return all;
}

const Row* find_row(std::string_view domain, std::string_view op) {
  const auto found = table().find(key_of(domain, op));
  return found == table().end() ? nullptr : &found->second;
}

}  // namespace

const Operator* find_operator(std::string_view domain, std::string_view op) {
  const Row* row = find_row(domain, op);
  return row ? &row->row : nullptr;
}

void check_shapes(const Node& node) {
  const Row* row = find_row(node.domain(), node.op());
  if (!row) return;
  row->contract.check(node, row->row.types);
  if (row->row.check) row->row.check(node);
}

}  // namespace onnx_train
