// The elements that a node's indices select, for the kernels of every device: Gather, Scatter and their relatives. The
// functions compare shapes; a kernel checks the indices when it runs. Plain values and pure functions; any thread. They
// throw Error that names the node if shapes do not fit.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/geometry/indexing/axis_view.h"
#include "kernels/geometry/indexing/boxes.h"
#include "kernels/kernel.h"

namespace onnx_train {

inline bool is_index_type(DType dtype) { return dtype == DType::kInt64 || dtype == DType::kInt32; }

std::string out_of_range(int64_t index, int64_t size);
std::string not_a_class(int64_t label, int64_t position, int64_t classes);

// Returns Prepared::explain of kernels whose indices all refer to one axis.
std::function<std::string(const Fault&)> explain_index(int64_t size);

// Indices of rows along one axis. A row has x.inner elements; each of the tensor's x.outer parts has x.size rows.
struct RowIndices {
  AxisView x;
  int64_t count;  // number of indices
};

RowIndices gather_rows(const NodeSpec& spec);           // Gather: y[o, p, :] = x[o, indices[p], :]
RowIndices gather_grad_rows(const NodeSpec& spec);      // GatherGrad: dx[o, indices[p], :] += dy[o, p, :]
RowIndices add_gather_grad_rows(const NodeSpec& spec);  // AddGatherGrad: the same for axis 0

bool supports_gather(const NodeSpec& spec);
bool supports_add_gather_grad(const NodeSpec& spec);

// GatherND, ScatterND: the last axis of the indices holds positions in the data's axes after `batch_dims`.
struct TuplePlaces {
  std::vector<int64_t> sizes, strides;  // sizes and strides, in elements, of the axes that an index tuple covers
  int64_t count = 1;                    // number of tuples
  int64_t per_batch = 1;                // number of tuples in a batch item
  int64_t batch_stride = 1;             // distance between batch items of the data
  int64_t row = 1;                      // elements per tuple

  TuplePlaces(const Node& node, const Shape& data, const Shape& indices, int64_t batch_dims);
  // Number of indices of all tuples.
  int64_t num_indices() const { return count * static_cast<int64_t>(sizes.size()); }
  std::function<std::string(const Fault&)> explain() const;
};

TuplePlaces gather_nd_places(const NodeSpec& spec);
TuplePlaces scatter_nd_places(const NodeSpec& spec);
bool supports_gather_nd(const NodeSpec& spec);
bool supports_scatter_nd(const NodeSpec& spec);

// GatherElements, ScatterElements: the lines of the indices along the axis, and the corresponding lines of the data.
// Different lines access different elements of the data, so a thread can process whole lines in order.
struct ElementLines {
  static constexpr size_t kMostAxes = 32;

  std::vector<CopyAxis> lines;  // `from` traverses the indices, `to` the data
  int64_t num_lines = 1;
  int64_t length = 1;
  int64_t index_stride = 1, data_stride = 1;
  int64_t limit = 1;  // size of the data's axis
  int64_t count = 1;  // number of indices

  ElementLines(const Node& node, const Shape& data, const Shape& indices);
};

ElementLines gather_element_lines(const NodeSpec& spec);
ElementLines scatter_element_lines(const NodeSpec& spec);
bool supports_gather_elements(const NodeSpec& spec);
bool supports_scatter_elements(const NodeSpec& spec);

// Whether `name` is a reduction of ScatterElements and ScatterND other than "none".
bool is_scatter_reduction(const std::string& name);

}  // namespace onnx_train
