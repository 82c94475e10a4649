#include "kernels/geometry/indexing/lookups.h"
#include "onnx_passes/inference/inlining.h"

#include "kernels/geometry/indexing/indexing.h"
#include "kernels/geometry/indexing/places.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

bool gathers_rows(const onnx::NodeProto& node) {
  for (const onnx::AttributeProto& attribute : node.attribute()) {
    if (attribute.name() == "axis" && attribute.i() != 0) return false;
  }
  return node.op_type() == "Gather";
}

bool is_operand(int place, int count) { return place >= 0 && place < count; }

}  // namespace

TableLookups table_lookups(const NodeSpec& spec) {
  const onnx::FunctionProto* body = function_of(spec.node());
  if (!body) return {};
  const Places inputs = places_of(body->input()), outputs = places_of(body->output());
  TableLookups lookups;
  for (const onnx::NodeProto& node : body->node()) {
    if (!gathers_rows(node)) return {};
    const int table = place_of(inputs, node.input(0)), indices = place_of(inputs, node.input(1));
    const int output = place_of(outputs, node.output(0));
    const bool fits = is_operand(table, spec.num_inputs()) && is_operand(indices, spec.num_inputs()) &&
                      is_operand(output, spec.num_outputs()) && spec.has_input(table) && spec.has_input(indices) &&
                      spec.has_output(output) && !spec.in_shape(table).empty();
    if (!fits) return {};
    const int64_t rows = spec.in_shape(table)[0];
    lookups.all.push_back({table, indices, output, rows, spec.in_size(indices)});
    const TableLookup& first = lookups.all.front();
    Shape row = spec.in_shape(table);
    row.erase(row.begin());
    if (lookups.all.size() == 1) lookups.row = num_elements(row);
    if (num_elements(row) != lookups.row || spec.in_type(table) != spec.in_type(first.table) ||
        spec.in_type(indices) != spec.in_type(first.indices) || spec.out_type(output) != spec.out_type(first.output))
      return {};
  }
  return lookups;
}

std::function<std::string(const Fault&)> TableLookups::explain() const {
  return [all = all](const Fault& fault) {
    for (const TableLookup& lookup : all) {
      const bool is_outside = fault.value < -lookup.rows || fault.value >= lookup.rows;
      if (lookup.indices == fault.input && is_outside) return explain_index(lookup.rows)(fault);
    }
    return concat(fault.value, " is out of range");
  };
}

}  // namespace onnx_train
