#include "runtime/state_store.h"

#include <malloc.h>

#include <cstring>
#include <optional>
#include <utility>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"
#include "runtime/upload.h"

namespace onnx_train {

struct StateStore::Entry {
  DType dtype;
  Shape shape;
  size_t bytes;
  void* front;
  void* back;
  std::optional<ValueRole> role;
};

namespace {

// The initializer keeps its type and shape; its contents are in the store from now on.
void drop_contents(Value* state) {
  onnx::TensorProto message;
  message.set_name(state->name());
  message.set_data_type(static_cast<int>(state->dtype()));
  *message.mutable_dims() = state->initializer()->dims();
  message.set_data_location(onnx::TensorProto::EXTERNAL);
  state->graph().set_initializer(state, std::move(message));
}

// Small tensors of the file leave holes in the heap, which the C library would keep.
void give_back_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace

StateStore::StateStore(Model* model, Device& device) : device_(device) {
  const auto add = [&](Value* state) {
    if (!index_.try_emplace(state->name(), names_.size()).second) return;
    names_.push_back(state->name());
    const Tensor value = stored_contents(*state);
    entries_.push_back({value.dtype(), value.shape(), value.bytes(), nullptr, nullptr, std::nullopt});
    Entry& entry = entries_.back();
    if (state->role()) entry.role = *state->role();
    entry.front = device_.allocate(entry.bytes);
    upload(value, &device_, entry.front);
    drop_contents(state);
  };
  try {
    for (const EntryPoint& point : model->entry_points) {
      for (const Binding& binding : point.update_bindings) add(binding.state);
      for (const Binding& binding : point.initialization_bindings) add(binding.state);
    }
  } catch (...) {
    for (Entry& entry : entries_) {
      if (entry.front) device_.free(entry.front);
    }
    throw;
  }
  give_back_freed_memory();
}

StateStore::~StateStore() {
  for (Entry& entry : entries_) {
    device_.free(entry.front);
    if (entry.back) device_.free(entry.back);
  }
}

size_t StateStore::index(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) fail_as(ErrorCode::kUsage, "'", name, "' is no state of this model");
  return found->second;
}

DType StateStore::dtype(size_t i) const { return entries_[i].dtype; }
const Shape& StateStore::shape(size_t i) const { return entries_[i].shape; }
const ValueRole* StateStore::role(size_t i) const { return entries_[i].role ? &*entries_[i].role : nullptr; }

size_t StateStore::bytes() const {
  size_t total = 0;
  for (const Entry& entry : entries_) total += entry.bytes * (entry.back ? 2 : 1);
  return total;
}

const void* StateStore::front(size_t i) const { return entries_[i].front; }
void* StateStore::front(size_t i) { return entries_[i].front; }

void* StateStore::back(size_t i) {
  Entry& entry = entries_[i];
  if (!entry.back) entry.back = device_.allocate(entry.bytes);
  return entry.back;
}

bool StateStore::has_back(size_t i) const { return entries_[i].back != nullptr; }

void StateStore::swap(size_t i) { std::swap(entries_[i].front, entries_[i].back); }

Tensor StateStore::get(const std::string& name) const {
  const Entry& entry = entries_[index(name)];
  Tensor value(entry.dtype, entry.shape);
  device_.copy_to_host(value.data(), entry.front, entry.bytes);
  return value;
}

void StateStore::set(const std::string& name, const Tensor& value) {
  Entry& entry = entries_[index(name)];
  if (value.dtype() != entry.dtype || value.shape() != entry.shape) {
    fail_as(ErrorCode::kData, "state '", name, "' is ", onnx_train::name(entry.dtype), to_string(entry.shape),
            "; it cannot be set to ", onnx_train::name(value.dtype()), to_string(value.shape()));
  }
  device_.copy_from_host(entry.front, value.data(), entry.bytes);
}

void StateStore::exchange(const std::string& name, StateStore* other) {
  Entry &mine = entries_[index(name)], &theirs = other->entries_[other->index(name)];
  if (mine.dtype != theirs.dtype || mine.shape != theirs.shape || &device_ != &other->device_) {
    fail_as(ErrorCode::kData, "state '", name, "' is ", onnx_train::name(mine.dtype), to_string(mine.shape), " on ",
            device_.name(), " and ", onnx_train::name(theirs.dtype), to_string(theirs.shape), " on ",
            other->device_.name(), "; only equal ones can be exchanged");
  }
  std::swap(mine.front, theirs.front);
}

}  // namespace onnx_train
