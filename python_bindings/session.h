// The class Session of the module _core: a session of the library with views of its states. The interpreter lock guards
// it; it is released while the library works.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

#include <atomic>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>

#include "python_bindings/core.h"

namespace onnx_train::python {

// The number of an element type of the buffer protocol's native formats; nothing for others.
std::optional<onnx_train_type> type_of_format(const char* format, Py_ssize_t size);

// An object's memory in row-major order, held as long as this lives.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept : view_(std::exchange(other.view_, Py_buffer{})) {}
  ~Buffer() { release(); }

  // False when the object has no memory in row-major order, or not of this type.
  bool acquire(PyObject* object, onnx_train_type type) {
    if (!PyObject_CheckBuffer(object)) return false;
    if (PyObject_GetBuffer(object, &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      view_ = {};
      return false;
    }
    if (type_of_format(view_.format, view_.itemsize) == type) return true;
    release();
    return false;
  }
  // The same for any element type; nothing when it is not possible.
  std::optional<onnx_train_type> acquire(PyObject* object) {
    if (PyObject_GetBuffer(object, &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0) {
      const auto type = type_of_format(view_.format, view_.itemsize);
      if (!type) release();
      return type;
    }
    PyErr_Clear();
    view_ = {};
    return std::nullopt;
  }
  const Py_buffer& view() const { return view_; }

 private:
  void release() {
    if (view_.obj) PyBuffer_Release(&view_);
    view_ = {};
  }

  Py_buffer view_{};
};

struct Port {
  std::string name, role, of;
  onnx_train_type type;
  std::optional<std::vector<int64_t>> shape;  // -1: open
  const void* data;                           // the default; null if there is none
};

// A Python number for the usual scalars, and a new array for everything else.
nb::object to_python(const onnx_train_tensor& tensor);

std::vector<Port> copy_ports(const onnx_train_port* ports, size_t count);
// Throws Error, which names those that there are, if there is no input `name`.
const Port& find_port(const std::string& entry, std::string_view name, const std::vector<Port>& ports);

// What holds the memory of an array while a call reads it.
struct Held {
  Buffer buffer;               // on the host
  nb::object converted;        // whose memory `buffer` is, unless it is the user's object
  nb::ndarray<nb::ro> device;  // on the session's device; empty for arrays on the host
};

// The inputs of a run, and what holds their memory.
struct Batch {
  explicit Batch(size_t count) : held(count) {}

  std::vector<Held> held;
  std::vector<onnx_train_tensor> tensors;
};

// What a training tells Python, for the stub; each returns an onnx_train_next.
using OnStep = nb::typed<nb::callable, int(int64_t, int64_t, int64_t, double, double, double, double, double, double,
                                           bool, int64_t, double)>;
using OnEvaluation = nb::typed<nb::callable, int(int64_t, int64_t, double, Named, Named, bool)>;
using OnNote = nb::typed<nb::callable, void(nb::str)>;

class SessionHandle {
 public:
  SessionHandle(const ModelHandle& model, const Options& options) {
    const auto views = detail::views(options);
    onnx_train_session* session = nullptr;
    unlocked([&] { return onnx_train_session_create(model.get(), views.data(), views.size(), &session); });
    handle_.reset(session);
    check(onnx_train_session_device(session, &device_));
    if (is_on_host()) {
      for (const std::string& name : states()) state_addresses_.emplace(name, find_address(name));
    }
  }

  bool is_on_host() const { return device_.type == nb::device::cpu::value; }
  // DLPack's type and number of the session's device
  std::pair<int32_t, int32_t> device() const { return {device_.type, device_.id}; }

  std::vector<std::string> states() const {
    const char* const* names = nullptr;
    size_t count = 0;
    check(onnx_train_session_states(handle_.get(), &names, &count));
    return {names, names + count};
  }
  int32_t sample_axis(const std::string& entry, const std::string& input) const {
    int32_t axis = 0;
    check(onnx_train_session_sample_axis(handle_.get(), entry.c_str(), input.c_str(), &axis));
    return axis;
  }
  double scale(const std::string& input) const {
    double scale = 1;
    check(onnx_train_session_scale(handle_.get(), input.c_str(), &scale));
    return scale;
  }
  // This process's number among those that train together, and how many they are.
  std::pair<int, int> ranks() const {
    int32_t rank = 0, ranks = 1;
    check(onnx_train_session_ranks(handle_.get(), &rank, &ranks));
    return {rank, ranks};
  }
  std::vector<std::string> entries() const {
    const char* const* names = nullptr;
    size_t count = 0;
    check(onnx_train_session_entries(handle_.get(), &names, &count));
    return {names, names + count};
  }

  const std::vector<Port>& inputs(const std::string& entry) {
    const auto known = inputs_.find(entry);
    if (known != inputs_.end()) return known->second;
    const Use use(this);
    const onnx_train_port* ports = nullptr;
    size_t count = 0;
    unlocked([&] { return onnx_train_session_inputs(handle_.get(), entry.c_str(), &ports, &count); });
    return inputs_.emplace(entry, copy_ports(ports, count)).first->second;
  }
  std::vector<Port> outputs(const std::string& entry) {
    const Use use(this);
    const onnx_train_port* ports = nullptr;
    size_t count = 0;
    unlocked([&] { return onnx_train_session_outputs(handle_.get(), entry.c_str(), &ports, &count); });
    return copy_ports(ports, count);
  }

  std::vector<Port> state_ports() {
    const Use use(this);
    const onnx_train_port* ports = nullptr;
    size_t count = 0;
    check(onnx_train_session_state_ports(handle_.get(), &ports, &count));
    return copy_ports(ports, count);
  }

  Named run(const std::string& entry, const Named& arrays);
  std::unique_ptr<Batch> batch(const std::string& entry, const nb::dict& arrays);
  std::unique_ptr<Dataset> open_data(const std::string& path, const std::optional<std::string>& entry,
                                     const Options& options) {
    const Use use(this);
    const nb::gil_scoped_release release;
    return std::make_unique<Dataset>(path, handle_.get(), entry ? entry->c_str() : nullptr, options);
  }
  // Results by name, and notes, of a run over all data.
  std::pair<Named, std::vector<std::string>> evaluate(const Dataset& data, const Options& options);
  std::pair<Named, std::vector<std::string>> predict(const Dataset& data, const Options& options);
  // The tokens after each prompt. on_token(text, token), unless None, ends all by returning False.
  std::vector<std::vector<int64_t>> generate(const std::vector<std::vector<int64_t>>& prompts, const Options& options,
                                             const nb::object& on_token);
  // Why the last generate() was not as fast as with a cache; "" if it was.
  std::string generate_note() const { return onnx_train_generate_note(handle_.get()); }
  // The metrics that are made of statistics, arrays by name: numbers, and arrays by class.
  Named metrics(const Named& statistics);
  // Trains; returns the reason of the end. Data are arrays by name, a Dataset, or (begin, next, number of batches).
  int fit(const Options& options, const nb::object& data, const nb::object& evaluation, const OnStep& on_step,
          const OnEvaluation& on_evaluation, const OnNote& on_note);

  // type, shape
  std::pair<std::string, Sizes> describe(const std::string& name) const;
  // A numpy view of the state where it is, which keeps the session alive; only on a device that uses the host's memory.
  static NumpyArray state(nb::handle self, const std::string& name);
  // A numpy array with a copy of the state.
  NumpyArray read_state(const std::string& name);
  // The same memory as `state` on every device, as a capsule of DLPack, which keeps the session alive.
  static Any export_state(nb::handle self, const std::string& name);
  uintptr_t state_address(const std::string& name) const { return reinterpret_cast<uintptr_t>(find_address(name)); }
  void set_state(const std::string& name, nb::handle value);
  void swap(SessionHandle* other, const std::string& name) {
    if (other == this) return;
    const Use use(this), their_use(other);
    unlocked([&] { return onnx_train_session_swap(handle_.get(), other->handle_.get(), name.c_str()); });
  }
  void load_adapter(const std::string& name, const std::string& folder) {
    const Use use(this);
    unlocked([&] { return onnx_train_session_load_adapter(handle_.get(), name.c_str(), folder.c_str()); });
  }
  void set_adapter(const std::string& name) {
    const Use use(this);
    unlocked([&] { return onnx_train_session_set_adapter(handle_.get(), name.c_str()); });
  }
  void initialize(uint64_t seed) {
    const Use use(this);
    unlocked([&] { return onnx_train_session_initialize(handle_.get(), seed); });
  }
  // text, json, bytes of the arena, of it workspace, of constants
  std::tuple<std::string, std::string, size_t, size_t, size_t> plan(const std::string& entry, const Options& options) {
    const Use use(this);
    const auto views = detail::views(options);
    onnx_train_plan plan;
    unlocked([&] { return onnx_train_session_plan(handle_.get(), entry.c_str(), views.data(), views.size(), &plan); });
    return {plan.text, plan.json, plan.arena_bytes, plan.workspace_bytes, plan.constant_bytes};
  }
  ModelHandle model() {
    const Use use(this);
    return new_model([&](onnx_train_model** model) { return onnx_train_session_model(handle_.get(), model); });
  }

 private:
  Named metrics_of(const onnx_train_metric* metrics, size_t count);
  // The library's results are in the session's memory until the next call: one thread at a time may be between a call
  // and the copies of its results.
  class Use {
   public:
    explicit Use(SessionHandle* session) : session_(*session) {
      if (session_.busy_.exchange(true))
        throw Error(ONNX_TRAIN_USAGE, "the session is at work in another thread; wait, or make another");
    }
    Use(const Use&) = delete;
    ~Use() { session_.busy_ = false; }

   private:
    SessionHandle& session_;
  };

  // The memory of `value`, or of what it converts to. The tensor is valid as long as `name` and `held`.
  onnx_train_tensor acquire(nb::handle value, onnx_train_type type, const std::string& name, Held* held) const;
  bool acquire_on_device(nb::handle value, onnx_train_type type, const std::string& name, Held* held) const;
  char* find_address(const std::string& name) const;

  std::unique_ptr<onnx_train_session, void (*)(onnx_train_session*)> handle_{nullptr, onnx_train_session_free};
  std::map<std::string, std::vector<Port>, std::less<>> inputs_;
  std::atomic<bool> busy_{false};
  onnx_train_device device_{};
  std::map<std::string, char*> state_addresses_;  // empty on a device with memory of its own
};

}  // namespace onnx_train::python
