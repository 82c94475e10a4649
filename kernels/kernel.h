// The interface of kernels. A kernel is a row of a table: an operator, whether the kernel supports a given node, and a
// function that prepares it once; the prepared object then runs step after step on memory it is given.
//
// `prepare` runs on the thread that builds the plan and may throw Error. It allocates, creates primitives and chooses
// algorithms, with all shapes known. `run` enqueues work on the given stream and returns; on the CPU, whose stream has
// no queue, it does the work. It never allocates, never waits, never reads a result on the host and never throws
// because of its inputs' contents: it reports an index out of range to the run's Fault and writes nothing outside an
// output. After a fault no node of the run writes to a state (device.h); a row therefore declares whether it may report
// one, and states are updated only after all such nodes.
//
// A plan owns its Prepared objects. One thread at a time runs each.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "onnx_passes/ir/graph.h"
#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

class Choices;      // choices/choices.h
class Collectives;  // collectives.h

// How kernels may compute what the graph says.
struct Arithmetic {
  // Whether products and convolutions of float32 may round their operands to TF32, with 10 bits after the point, if the
  // device multiplies such numbers faster.
  bool tf32 = false;
  // Whether the same inputs give the same bits again. Otherwise a library may add in the order in which its threads
  // arrive, where that is faster.
  bool deterministic = true;
};

// A node whose inputs and outputs have known types and shapes. A view: the node must outlive it.
class NodeSpec {
 public:
  // `constants` holds the contents of the inputs that are known when the plan is built, and empty tensors for the
  // others.
  NodeSpec(const Node& node, std::vector<Tensor> constants, int threads, const Arithmetic& arithmetic = {},
           Collectives* collectives = nullptr, Choices* choices = nullptr)
      : node_(&node),
        constants_(std::move(constants)),
        threads_(threads),
        arithmetic_(arithmetic),
        collectives_(collectives),
        choices_(choices) {}

  const Node& node() const { return *node_; }
  int threads() const { return threads_; }
  bool tf32() const { return arithmetic_.tf32; }
  bool deterministic() const { return arithmetic_.deterministic; }
  // Where there are several ranks; else null. It outlives the plan.
  Collectives* collectives() const { return collectives_; }
  // The forms of nodes in this training; null for a node outside of a session's plan. They outlive the plan.
  Choices* choices() const { return choices_; }
  int num_inputs() const { return node_->num_inputs(); }
  int num_outputs() const { return node_->num_outputs(); }
  bool has_input(int i) const { return node_->input(i) != nullptr; }
  bool has_output(int i) const { return node_->output(i) != nullptr; }
  DType in_type(int i = 0) const { return node_->input(i)->dtype(); }
  DType out_type(int i = 0) const { return node_->output(i)->dtype(); }
  // Whether output 0 and all present inputs among the first `count` have one element type.
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
  // The contents of input i if constant, else an empty tensor.
  const Tensor& constant(int i) const { return constants_[static_cast<size_t>(i)]; }
  bool is_constant(int i) const { return i < num_inputs() && !constant(i).empty(); }

 private:
  const Node* node_;
  std::vector<Tensor> constants_;
  int threads_;
  Arithmetic arithmetic_;
  Collectives* collectives_;
  Choices* choices_;
};

class Stream;  // device.h

// The first invalid element that kernels of a run found in their inputs. It is stored in device memory and starts as
// zeros.
struct Fault {
  int32_t node = 0;      // 1 + the node's number in the plan; 0 without a fault
  int32_t input = 0;     // input number
  int64_t position = 0;  // position of the element in that input
  int64_t value = 0;     // the element
};

// One run of a node: pointers to inputs and outputs in the node's order (null if absent), and scratch memory of the
// requested size, aligned as the device says (device.h). Shapes are those of `prepare`.
struct Launch {
  const void* const* inputs;
  void* const* outputs;
  void* workspace;
  Stream* stream;
  Fault* fault;
  int32_t node;  // 1 + the node's number in the plan

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
  // Called only by kernels that run on the host, from one thread.
  void report(int input, int64_t position, int64_t value) const {
    if (fault->node == 0) *fault = {node, input, position, value};
  }
};

// Output `output` may overwrite input `input` if no later node reads that input.
struct InPlace {
  int output;
  int input;
};

struct Prepared {
  std::function<void(const Launch&)> run;
  size_t workspace = 0;                // bytes of scratch memory
  std::vector<InPlace> in_place = {};  // both buffers must have the same size in bytes
  // Explains a fault that `run` reported, and how to avoid it, without the node's name.
  std::function<std::string(const Fault&)> explain = nullptr;
  std::string form = {};  // which form of the computation `run` is, for `show --plan`; empty if there is one
};

// Whether `run` checks the contents of its inputs (indices, labels, lengths) and may report a fault.
enum class InputCheck {
  kNone,
  kChecks,           // checks contents that no node before it has checked
  kCheckedUpstream,  // a gradient: the forward operator, which our passes always place before it, has checked them
};

// How the images of a node that a kernel runs may be stored.
enum class ImageLayout { kAny, kChannelsFirst, kChannelsLast };

struct Kernel {
  const char* op;
  std::function<bool(const NodeSpec&)> supports;
  std::function<Prepared(const NodeSpec&)> prepare;
  const char* domain = "";
  const char* name = "";  // name in plans; "" for the operator's own name
  InputCheck input_check = InputCheck::kNone;
  // The variants of the operator that the kernel may be asked for: find_kernel calls `supports` for these only.
  std::vector<const char*> epilogues = {""};  // onnx_passes/operators/epilogue.h; "": nodes without one
  ImageLayout images = ImageLayout::kAny;

  // The row with one more fact.
  Kernel with_epilogues(std::vector<const char*> these) const {
    Kernel row = *this;
    row.epilogues = std::move(these);
    return row;
  }
  Kernel on_images(ImageLayout layout) const {
    Kernel row = *this;
    row.images = layout;
    return row;
  }
};

}  // namespace onnx_train
