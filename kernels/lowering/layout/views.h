// Selects the values of a plan that share the memory of other values, so that nodes copy less or nothing:
//
// - a reshape shares its input's memory;
// - a result of a Slice or Split is part of its input's memory if it is contiguous;
// - the inputs of a Concat are written directly into its output.
//
// A piece keeps the whole alive, and the memory of a Concat is in use from its first piece on. If this would increase
// the plan's peak, the node copies. Immutable after construction; any thread may read it.
#pragma once

#include "onnx_passes/ir/tables.h"

namespace onnx_train {

// The value that owns the memory, and an offset in it in bytes.
struct ViewPlace {
  const Value* memory;
  size_t offset;

  bool operator==(const ViewPlace&) const = default;
};

class Views {
 public:
  Views() = default;  // no views: each value has its own memory
  // Offsets of pieces are multiples of `alignment`.
  Views(const Graph& graph, size_t alignment);

  ViewPlace place(const Value* value) const;
  // Whether all results of the node are already in place.
  bool is_done(const Node& node) const;
  // Returns the most bytes of the arena that are alive while a node runs.
  size_t peak() const { return peak_; }

 private:
  ValueTable<ViewPlace> places_;  // for values without their own memory
  size_t peak_ = 0;
};

}  // namespace onnx_train
