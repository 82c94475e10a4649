// The state tensors of one training model on one device, in one block of the device's memory and one of the host's that
// the device's kernels use in place; their addresses are fixed as long as the store lives. States of one role and
// element type (weights; first moments of the optimizer; ...) are adjacent. Of states that other ranks keep the store
// knows type and shape alone. A session owns the store; one thread at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "onnx_passes/distribution/tensor_layout.h"
#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Which part of a state is here, where the ranks of a group have parts.
struct StatePart {
  Cut cut;
  int parts = 1, part = 0;
};

// Where a state is stored.
enum class StateMemory {
  kNone,    // another rank keeps it
  kDevice,  // Device::allocate
  kHost,    // Device::allocate_host
};

class StateStore {
 public:
  // Moves the value of every state (every target of an update or initialization binding) out of the model, one after
  // the other, so that there are never two copies of all; the model's initializers keep types and shapes. `memory_of`
  // says where the state of a name goes; values that go nowhere are dropped. `part_of` says which part of it, if not
  // all. Device and stream outlive the store. Throws Error when there is not enough memory.
  using PartOfState = std::function<std::optional<StatePart>(const std::string&)>;
  StateStore(Model* model, Device& device, Stream& stream,
             const std::function<StateMemory(const std::string&)>& memory_of, const PartOfState& part_of = {});
  ~StateStore();
  StateStore(const StateStore&) = delete;

  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return index_.count(name) > 0; }
  size_t index(const std::string& name) const;  // throws Error if `name` is not a state
  DType dtype(size_t i) const;
  const Shape& shape(size_t i) const;     // of the whole state
  size_t kept_bytes(size_t i) const;      // of the state, or of the part that is here
  const StatePart* part(size_t i) const;  // null where all of it is here
  const ValueRole* role(size_t i) const;  // null for weights and running statistics
  StateMemory memory(size_t i) const;
  bool keeps(size_t i) const { return memory(i) != StateMemory::kNone; }  // whether its value is here
  size_t bytes() const { return bytes_; }                                 // of the block in the device's memory
  size_t host_bytes() const { return host_bytes_; }                       // of the block in the host's
  // Whether memory of the device overlaps a block: a run may change it.
  bool overlaps(const void* data, size_t bytes) const;

  // Its address on the device, or that of its part, aligned; null where another rank keeps it.
  const void* data(size_t i) const;
  void* data(size_t i);

  // Throws Error for a state that is not here, or of which a part is.
  void expect_whole(size_t i) const;
  // All of these wait for the work of the stream, and throw Error for a state that another rank keeps. Those that read,
  // and write from the device, throw Error for one of which a part is here; the others keep the part of what is given.
  void read(size_t i, void* to) const;  // as many bytes as the state has
  void write(size_t i, const void* from);
  void write_from_device(size_t i, const void* from);      // a copy within the device's memory
  Tensor get_part(size_t i) const;                         // a copy on the host of what is here
  Tensor get(const std::string& name) const;               // a copy on the host
  void set(const std::string& name, const Tensor& value);  // on host or device; same type and shape, or Error
  // Exchanges the values of a state with those of the same state of another store. Throws Error unless device, type and
  // shape are equal.
  void exchange(const std::string& name, StateStore* other);

 private:
  struct Entry;
  void place();  // assigns offsets to the entries
  void allocate();
  void free() noexcept;
  void check_kept(size_t i) const;
  Device& device_;
  Stream& stream_;
  std::vector<std::string> names_;
  std::map<std::string, size_t> index_;
  std::vector<Entry> entries_;
  char *block_ = nullptr, *host_block_ = nullptr;
  size_t bytes_ = 0, host_bytes_ = 0;
};

}  // namespace onnx_train
