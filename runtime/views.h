// Which values of a plan lie in the memory of others, so that the nodes between them have nothing to do, or less:
//
// - reshapes are their input's memory;
// - what a Slice or Split takes is part of its input's memory, where it is one stretch of it;
// - what a Concat puts together is written to its place by the nodes that make it.
//
// A piece keeps the whole alive, and the memory of a Concat is in use from its first piece on. Where more bytes would
// be in use at the plan's fullest node for it, the node copies.
#pragma once

#include "onnx_passes/ir/tables.h"

namespace onnx_train {

// The value whose memory it is, and how many bytes behind its begin.
struct Place {
  const Value* memory;
  size_t offset;

  bool operator==(const Place&) const = default;
};

class Views {
 public:
  Views() = default;  // none: each value has memory of its own
  explicit Views(const Graph& graph);

  Place place(const Value* value) const;
  // Everything that the node would move lies where it belongs.
  bool is_done(const Node& node) const;

 private:
  ValueTable<Place> places_;  // of values without memory of their own
};

}  // namespace onnx_train
