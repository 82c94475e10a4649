// Selects the values of a plan that share the memory of other values, so that the nodes between them have nothing, or
// less, to do:
//
// - a reshape shares its input's memory;
// - a result of a Slice or Split is part of its input's memory if it is contiguous;
// - the inputs of a Concat are written directly to their place in its output.
//
// A piece keeps the whole alive, and the memory of a Concat is in use from its first piece on. Where this would
// increase the plan's peak, the node copies instead. Immutable after construction; any thread may read it.
#pragma once

#include "onnx_passes/ir/tables.h"

namespace onnx_train {

// The value that owns the memory, and the offset in it in bytes.
struct Place {
  const Value* memory;
  size_t offset;

  bool operator==(const Place&) const = default;
};

class Views {
 public:
  Views() = default;  // none: each value has its own memory
  // Offsets of values inside of others are multiples of `alignment`.
  Views(const Graph& graph, size_t alignment);

  Place place(const Value* value) const;
  // Whether all results of the node are already in place.
  bool is_done(const Node& node) const;
  // The most bytes alive while a node runs, in the arena.
  size_t peak() const { return peak_; }

 private:
  ValueTable<Place> places_;  // of values without their own memory
  size_t peak_ = 0;
};

}  // namespace onnx_train
