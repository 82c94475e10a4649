// What runs one node. A kernel is a row in a table: the operator, whether it can run a given node, and a function
// that prepares it once; what it prepares then runs step after step on memory it is given.
//
// The rules: `run` enqueues work on the stream it is given and returns; on the CPU, whose stream has no queue, it does
// the work. It never allocates, never creates a primitive, never chooses an algorithm: all that happens in `prepare`,
// where every shape is known. It never waits, never reads a result on the host and never throws for what its inputs
// hold: an index out of range goes into the run's Fault, and nothing is written past an output. After a fault no node
// of the run writes to a state (device.h), so a row says whether it may report one, and no state is updated before.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "onnx_passes/ir/graph.h"
#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// A node whose inputs and outputs have known types and shapes.
class NodeSpec {
 public:
  // `constants` holds the contents of the inputs that are known when the plan is built, empty tensors elsewhere.
  NodeSpec(const Node& node, std::vector<Tensor> constants, int threads)
      : node_(&node), constants_(std::move(constants)), threads_(threads) {}

  const Node& node() const { return *node_; }
  int threads() const { return threads_; }
  int num_inputs() const { return node_->num_inputs(); }
  int num_outputs() const { return node_->num_outputs(); }
  bool has_input(int i) const { return node_->input(i) != nullptr; }
  bool has_output(int i) const { return node_->output(i) != nullptr; }
  DType in_type(int i = 0) const { return node_->input(i)->dtype(); }
  DType out_type(int i = 0) const { return node_->output(i)->dtype(); }
  // The first `count` inputs, as far as they are there, and output 0 have one element type.
  bool one_type(int count) const {
    for (int i = 0; i < count; ++i) {
      if (has_input(i) && in_type(i) != out_type()) return false;
    }
    return true;
  }
  Shape in_shape(int i = 0) const { return node_->input(i)->type().shape(); }
  Shape out_shape(int i = 0) const { return node_->output(i)->type().shape(); }
  int64_t in_size(int i = 0) const { return num_elements(in_shape(i)); }
  int64_t out_size(int i = 0) const { return num_elements(out_shape(i)); }
  // The contents of input i when they are constant; an empty tensor when they are not, or the input is left out.
  const Tensor& constant(int i) const { return constants_[static_cast<size_t>(i)]; }
  bool is_constant(int i) const { return i < num_inputs() && !constant(i).empty(); }

 private:
  const Node* node_;
  std::vector<Tensor> constants_;
  int threads_;
};

class Stream;  // device.h

// What a kernel found in its inputs that it cannot take: the first of a run. In memory of the device; zeros in the
// beginning.
struct Fault {
  int32_t node = 0;      // 1 + the node's number in the plan; 0 where all is well
  int32_t input = 0;     // of the node
  int64_t position = 0;  // of the element in that input
  int64_t value = 0;     // what it is
};

// One run of a node: pointers to inputs and outputs in the node's order (null where left out), and scratch memory of
// the size that was asked for, all aligned to 64 bytes. Shapes are those of `prepare`.
struct Launch {
  const void* const* inputs;
  void* const* outputs;
  void* workspace;
  Stream* stream;
  Fault* fault;
  int32_t node;  // 1 + its number in the plan

  template <typename T>
  const T* in(int i) const {
    return static_cast<const T*>(inputs[i]);
  }
  template <typename T>
  T* out(int i = 0) const {
    return static_cast<T*>(outputs[i]);
  }
  template <typename T>
  T* scratch() const {
    return static_cast<T*>(workspace);
  }
  // For kernels that run on the host, from one thread.
  void report(int input, int64_t position, int64_t value) const {
    if (fault->node == 0) *fault = {node, input, position, value};
  }
};

// Output `output` may be written where input `input` lies, if nobody needs that input afterwards.
struct InPlace {
  int output;
  int input;
};

struct Prepared {
  std::function<void(const Launch&)> run;
  size_t workspace = 0;                // bytes
  std::vector<InPlace> in_place = {};  // the buffers' sizes in bytes must be equal
  // What is wrong with an element that `run` has reported, and what to do; without the node.
  std::function<std::string(const Fault&)> explain = nullptr;
};

// Whether `run` may report a fault.
enum class Refuses {
  kNothing,
  kData,       // indices, labels or lengths that are out of range
  kDataAgain,  // what a node before it has refused already, without which our passes do not write it: a
               // gradient reads the indices or labels of its operator
};

struct Kernel {
  const char* op;
  std::function<bool(const NodeSpec&)> supports;
  std::function<Prepared(const NodeSpec&)> prepare;
  const char* domain = "";
  const char* name = "";  // how plans call it, "" for the operator's own name
  Refuses refuses = Refuses::kNothing;
};

}  // namespace onnx_train
