#include "runtime/session/state_store.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"
#include "platform/memory.h"
#include "runtime/plan/placement.h"
#include "runtime/plan/upload.h"

namespace onnx_train {

struct StateStore::Entry {
  DType dtype;
  Shape shape;   // of the whole state
  size_t bytes;  // that are kept
  StateMemory memory;
  size_t offset;  // in its block, of one that is kept
  std::optional<ValueRole> role;
  std::optional<StatePart> part;

  Shape kept_shape() const { return part ? shape_of_part(shape, part->cut, part->parts) : shape; }
  Tensor kept(const Tensor& whole) const { return part ? take_part(whole, part->cut, part->parts, part->part) : whole; }
};

namespace {

// Removes the contents of the initializer, which are now in the store; keeps its type and shape.
void drop_contents(Value* state) {
  onnx::TensorProto message;
  message.set_name(state->name());
  message.set_data_type(static_cast<int>(state->dtype()));
  *message.mutable_dims() = state->initializer()->dims();
  message.set_data_location(onnx::TensorProto::EXTERNAL);
  state->graph().set_initializer(state, std::move(message));
}

}  // namespace

StateStore::StateStore(Model* model, Device& device, Stream& stream,
                       const std::function<StateMemory(const std::string&)>& memory_of, const PartOfState& part_of)
    : device_(device), stream_(stream) {
  std::vector<Value*> states;
  const auto add = [&](Value* state) {
    if (!index_.try_emplace(state->name(), names_.size()).second) return;
    names_.push_back(state->name());
    entries_.push_back({state->dtype(), constant_shape(*state), 0, memory_of(state->name()), 0, {}, {}});
    Entry& entry = entries_.back();
    if (state->role()) entry.role = *state->role();
    if (part_of) entry.part = part_of(state->name());
    entry.bytes = static_cast<size_t>(num_elements(entry.kept_shape())) * size_of(entry.dtype);
    states.push_back(state);
  };
  for (const EntryPoint& point : model->entry_points) {
    for (const Binding& binding : point.update_bindings) add(binding.state);
    for (const Binding& binding : point.initialization_bindings) add(binding.state);
  }
  place();
  try {
    allocate();
    for (size_t i = 0; i < states.size(); ++i) {
      if (keeps(i)) {
        const Tensor kept = entries_[i].kept(stored_contents(*states[i]));
        upload(kept, &stream_, data(i));
        if (part(i)) stream_.synchronize();  // the part is a copy
      }
      drop_contents(states[i]);
    }
    stream_.synchronize();
  } catch (...) {
    try {
      stream_.synchronize();  // uploads that are under way
    } catch (const Error&) {
      // The first error is the caller's.
    }
    free();
    throw;
  }
  platform::give_back_freed_memory();
}

StateStore::~StateStore() { free(); }

void StateStore::allocate() {
  block_ = static_cast<char*>(device_.allocate(bytes_));
  const bool any = std::ranges::any_of(entries_, [](const Entry& e) { return e.memory == StateMemory::kHost; });
  if (any) host_block_ = static_cast<char*>(device_.allocate_host(host_bytes_));
}

void StateStore::free() noexcept {
  if (block_) device_.free(block_);
  if (host_block_) device_.free_host(host_block_);
}

// Groups in the order of their first members.
void StateStore::place() {
  using Group = std::pair<std::string, DType>;
  std::map<Group, size_t> number;
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    const auto [known, added] = number.try_emplace({entry.role ? entry.role->name : "", entry.dtype}, groups.size());
    if (added) groups.emplace_back();
    groups[known->second].push_back(i);
  }
  for (const std::vector<size_t>& group : groups) {
    for (const size_t i : group) {
      if (!keeps(i)) continue;
      size_t& end = memory(i) == StateMemory::kHost ? host_bytes_ : bytes_;
      entries_[i].offset = end;
      end += align_up(entries_[i].bytes, device_.alignment());
    }
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

size_t StateStore::kept_bytes(size_t i) const { return entries_[i].bytes; }
const StatePart* StateStore::part(size_t i) const { return entries_[i].part ? &*entries_[i].part : nullptr; }

StateMemory StateStore::memory(size_t i) const { return entries_[i].memory; }
void* StateStore::data(size_t i) {
  if (!keeps(i)) return nullptr;
  return (memory(i) == StateMemory::kHost ? host_block_ : block_) + entries_[i].offset;
}
const void* StateStore::data(size_t i) const { return const_cast<StateStore*>(this)->data(i); }

void StateStore::check_kept(size_t i) const {
  if (!keeps(i)) fail_as(ErrorCode::kUsage, "the state '", names_[i], "' is kept by another rank");
}

void StateStore::expect_whole(size_t i) const {
  check_kept(i);
  if (part(i))
    fail_as(ErrorCode::kUsage, "of the state '", names_[i],
            "' each rank keeps a part (--tensor-parallel); a checkpoint has all of it");
}

bool StateStore::overlaps(const void* data, size_t bytes) const {
  const auto* begin = static_cast<const char*>(data);
  const auto overlaps = [&](const char* block, size_t size) { return begin < block + size && block < begin + bytes; };
  return overlaps(block_, bytes_) || (host_block_ && overlaps(host_block_, host_bytes_));
}

void StateStore::read(size_t i, void* to) const {
  expect_whole(i);
  stream_.copy_to_host(to, data(i), entries_[i].bytes);
  stream_.synchronize();
}

void StateStore::write(size_t i, const void* from) {
  check_kept(i);
  const Entry& entry = entries_[i];
  const Tensor kept = entry.kept(Tensor(entry.dtype, entry.shape, from, nullptr));
  stream_.copy_from_host(data(i), kept.data(), entry.bytes);
  stream_.synchronize();
}

void StateStore::write_from_device(size_t i, const void* from) {
  expect_whole(i);
  if (entries_[i].bytes == 0 || from == data(i)) return;
  stream_.copy({data(i), from, entries_[i].bytes});
  stream_.synchronize();
}

Tensor StateStore::get_part(size_t i) const {
  check_kept(i);
  Tensor own(entries_[i].dtype, entries_[i].kept_shape());
  stream_.copy_to_host(own.data(), data(i), entries_[i].bytes);
  stream_.synchronize();
  return own;
}

Tensor StateStore::get(const std::string& name) const {
  const size_t i = index(name);
  Tensor value(entries_[i].dtype, entries_[i].shape);
  read(i, value.data());
  return value;
}

void StateStore::set(const std::string& name, const Tensor& value) {
  const size_t i = index(name);
  const Entry& entry = entries_[i];
  if (value.dtype() != entry.dtype || value.shape() != entry.shape) {
    fail_as(ErrorCode::kData, "state '", name, "' is ", onnx_train::name(entry.dtype), to_string(entry.shape),
            "; it cannot be set to ", onnx_train::name(value.dtype()), to_string(value.shape()));
  }
  value.is_on_device() ? write_from_device(i, value.data()) : write(i, value.data());
}

void StateStore::exchange(const std::string& name, StateStore* other) {
  const size_t i = index(name), j = other->index(name);
  const Entry &mine = entries_[i], &theirs = other->entries_[j];
  if (mine.dtype != theirs.dtype || mine.kept_shape() != theirs.kept_shape() || &device_ != &other->device_) {
    fail_as(ErrorCode::kData, "state '", name, "' is ", onnx_train::name(mine.dtype), to_string(mine.shape), " on ",
            device_.name(), " and ", onnx_train::name(theirs.dtype), to_string(theirs.shape), " on ",
            other->device_.name(), "; only equal ones can be exchanged");
  }
  check_kept(i);
  other->check_kept(j);
  const auto free = [this](void* data) { device_.free(data); };
  const std::unique_ptr<void, decltype(free)> between(device_.allocate(mine.bytes), free);
  other->stream_.synchronize();
  stream_.copy({between.get(), data(i), mine.bytes});
  stream_.copy({data(i), other->data(j), mine.bytes});
  stream_.copy({other->data(j), between.get(), mine.bytes});
  stream_.synchronize();
}

}  // namespace onnx_train
