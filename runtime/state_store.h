// The state tensors of one training model on one device: a front buffer that steps read and a back buffer that they
// write. `commit` swaps the two for the states that a step has written, after the whole step has succeeded.
// A state that all its plans update in place has one buffer.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

class StateStore {
 public:
  // Takes the values of every state (what some update or initialization binding writes) out of the model, one after
  // the other, so that no two copies of all are held; the model's initializers keep types and shapes.
  StateStore(Model* model, Device& device);
  ~StateStore();
  StateStore(const StateStore&) = delete;

  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return index_.count(name) > 0; }
  size_t index(const std::string& name) const;  // throws Error for a name that is no state
  DType dtype(size_t i) const;
  const Shape& shape(size_t i) const;
  const ValueRole* role(size_t i) const;  // null for weights and running statistics
  size_t bytes() const;                   // allocated, both buffers

  const void* front(size_t i) const;
  void* front(size_t i);
  void* back(size_t i);  // allocated at the first call
  bool has_back(size_t i) const;
  void swap(size_t i);

  Tensor get(const std::string& name) const;               // a copy on the host
  void set(const std::string& name, const Tensor& value);  // same type and shape, or Error
  // Exchanges the values of a state with those of the same state of another store: same device, type and shape, or
  // Error.
  void exchange(const std::string& name, StateStore* other);

 private:
  struct Entry;
  Device& device_;
  std::vector<std::string> names_;
  std::map<std::string, size_t> index_;
  std::vector<Entry> entries_;
};

}  // namespace onnx_train
