#include "kernels/geometry/sparse_updates.h"

#include <algorithm>

#include "kernels/dispatch.h"
#include "kernels/geometry/indexing/indexing.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {

PlacedRows coalesced_rows(const NodeSpec& spec) {
  const int64_t n = spec.in_size(1), columns = spec.out_size() / std::max<int64_t>(n, 1);
  if (spec.in_size(0) != n * columns) {
    fail(spec.node().label(), ": a gradient of shape ", to_string(spec.in_shape(0)), " does not belong to ", n,
         " indices, each with a row of ", columns, " elements");
  }
  return {n, columns, spec.is_constant(2) ? spec.constant(2).to_ints().at(0) : 0};
}

PlacedRows sparsely_updated_rows(const NodeSpec& spec) {
  const int64_t size = spec.in_shape(0)[0], n = spec.in_size(2);
  const int64_t columns = spec.in_size(0) / std::max<int64_t>(size, 1);
  if (spec.in_size(1) != n * columns) {
    fail(spec.node().label(), ": rows of shape ", to_string(spec.in_shape(1)), " do not belong to ", n, " places in ",
         to_string(spec.in_shape(0)));
  }
  return {n, columns, size};
}

bool has_places(const NodeSpec& spec) {
  return is_index_type(spec.in_type(1)) && spec.in_type(2) == DType::kInt64 && spec.in_size(2) > 0 &&
         spec.has_output(0) && spec.has_output(1);
}

bool supports_sparse_sgd(const NodeSpec& spec) {
  return is_float_or_double(spec.in_type(0)) && spec.in_type(1) == spec.in_type(0) &&
         spec.in_type(2) == DType::kInt64 && !spec.in_shape(0).empty() && is_float_or_double(spec.in_type(3)) &&
         is_float_or_double(spec.in_type(4));
}

SparseAdamInputs sparse_adam_inputs(const NodeSpec& spec) {
  const bool has_places = spec.num_inputs() > 7;
  return has_places ? SparseAdamInputs{true, 3, 5} : SparseAdamInputs{false, 2, 4};
}

PlacedRows sparse_adam_rows(const NodeSpec& spec) {
  if (sparse_adam_inputs(spec).has_places) return sparsely_updated_rows(spec);
  const int64_t rows = spec.in_shape(0)[0];
  return {rows, spec.in_size(0) / std::max<int64_t>(rows, 1), rows};
}

math::UpdateParameters sparse_adam_parameters(const NodeSpec& spec) {
  math::UpdateParameters parameters;
  parameters.formula = math::UpdateFormula::kAdam;
  parameters.beta1 = spec.node().attr_tensor("beta1").at(0);
  parameters.beta2 = spec.node().attr_tensor("beta2").at(0);
  parameters.epsilon = spec.node().attr_tensor("epsilon").at(0);
  return parameters;
}

bool supports_sparse_adam(const NodeSpec& spec) {
  const auto [has_places, slots, scalars] = sparse_adam_inputs(spec);
  const DType dtype = spec.in_type(0);
  return is_float_or_double(dtype) && spec.in_type(1) == dtype && spec.in_type(slots) == dtype &&
         spec.in_type(slots + 1) == dtype && spec.in_type(scalars) == DType::kInt64 &&
         is_float_or_double(spec.in_type(scalars + 1)) && is_float_or_double(spec.in_type(scalars + 2)) &&
         (!has_places || spec.in_type(2) == DType::kInt64) && spec.has_output(0) && spec.has_output(1) &&
         spec.has_output(2);
}

std::string explain_table_index(const Fault& fault) {
  return concat("index ", fault.value, " is outside of its table");
}

}  // namespace onnx_train
