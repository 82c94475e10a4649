// Shapes that depend on data (segments.cc). The passes run on the thread that builds the plan.
#pragma once

#include <vector>

#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {

// Whether the contents are in the graph and no input replaces them.
bool is_constant(const Value& value);

// Whether the shape of a value of this graph is not known.
bool has_open_shapes(const Graph& graph);

// The inputs of the node that are computed and decide the shape of an output that is not known.
std::vector<Value*> computed_sizes(const Node& node);

// Adds to `known` the values of the subgraph that follow from sizes, constants and the values in it.
void add_what_follows(const Graph& subgraph, Marks<Value>* known);

// Whether contents of what the subgraph gets decide a shape in it: each run may have another one. Contents in `known`
// are the same in each run, or known when the run is planned.
bool has_shapes_of_data(const Graph& subgraph, Marks<Value> known = {});

// Makes one node, CallSegment, of the nodes between the first and the last shape that is not known; it is planned when
// it runs. An output of the graph that has such a shape is dealt with as `sizes` says; without it nothing is cut: there
// is no plan then.
bool cut_segments(Model& model, OutputSizes* sizes);

}  // namespace onnx_train
