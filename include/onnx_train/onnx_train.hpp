// onnx-train for C++17: owning types and exceptions over the C interface (onnx_train.h), which has the contracts.
//
//     using namespace onnx_train;
//     Session session(Model::load("model.onnx").build({{"loss", "cross_entropy"}, {"optimizer", "sgd"}}));
//     Outputs out = session.run("step", {{"x", {64, 784}, images}, {"labels", {64}, labels}});
//     float loss = out.scalar("loss");
//     session.model().export_inference().save("trained.onnx");
//
// Or the whole loop: train(session, data, {{"epochs", "5"}}), where `data` is a DataSource of the program, Arrays, or
// a Dataset: Dataset("train.npz", session).
#pragma once

#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "onnx_train/onnx_train.h"

namespace onnx_train {
inline namespace v0 {

class Error : public std::runtime_error {
 public:
  Error(onnx_train_status status, const std::string& message, std::string code = "")
      : std::runtime_error(message), status_(status), code_(std::move(code)) {}
  onnx_train_status status() const { return status_; }
  const std::string& code() const { return code_; }  // "OT1001", as onnx_train_last_error_code gives it

 private:
  onnx_train_status status_;
  std::string code_;
};

// Throws Error unless the call succeeded.
inline void check(onnx_train_status status) {
  if (status != ONNX_TRAIN_OK) throw Error(status, onnx_train_last_error(), onnx_train_last_error_code());
}

// The element type of a C++ type.
template <typename T>
constexpr onnx_train_type type_of() {
  if constexpr (std::is_same_v<T, float>) return ONNX_TRAIN_FLOAT;
  if constexpr (std::is_same_v<T, double>) return ONNX_TRAIN_DOUBLE;
  if constexpr (std::is_same_v<T, bool>) return ONNX_TRAIN_BOOL;
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    constexpr onnx_train_type kSigned[] = {ONNX_TRAIN_INT8, ONNX_TRAIN_INT16, ONNX_TRAIN_INT32, ONNX_TRAIN_INT64};
    constexpr onnx_train_type kUnsigned[] = {ONNX_TRAIN_UINT8, ONNX_TRAIN_UINT16, ONNX_TRAIN_UINT32, ONNX_TRAIN_UINT64};
    constexpr int size = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return std::is_signed_v<T> ? kSigned[size] : kUnsigned[size];
  }
}

// A tensor in memory of the caller, on the host or the session's device, which outlives the call that it is given to.
// `data` has as many elements as the shape says; null is an error of the call unless these are none.
class Input {
 public:
  template <typename T>
  Input(std::string name, std::vector<int64_t> shape, const T* data, onnx_train_memory memory = ONNX_TRAIN_HOST_MEMORY)
      : Input(std::move(name), type_of<T>(), std::move(shape), data, memory) {}
  template <typename T>
  // Throws Error unless there are as many elements as the shape says.
  Input(std::string name, std::vector<int64_t> shape, const std::vector<T>& data)
      : Input(std::move(name), std::move(shape), data.data()) {
    double elements = 1;  // a product of int64_t may overflow
    for (const int64_t size : shape_) elements *= static_cast<double>(size);
    if (elements == static_cast<double>(data.size())) return;
    std::string sizes;
    for (const int64_t size : shape_) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
    throw Error(ONNX_TRAIN_DATA,
                "input '" + name_ + "' has the shape [" + sizes + "] and " + std::to_string(data.size()) + " elements");
  }
  // A scalar, which is copied: {"learning_rate", 1e-3f}.
  template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
  Input(std::string name, T value) : Input(std::move(name), type_of<T>(), {}, nullptr) {
    std::memcpy(&scalar_, &value, sizeof value);
    holds_scalar_ = true;
  }
  Input(std::string name, onnx_train_type type, std::vector<int64_t> shape, const void* data,
        onnx_train_memory memory = ONNX_TRAIN_HOST_MEMORY)
      : name_(std::move(name)), type_(type), shape_(std::move(shape)), data_(data), memory_(memory) {}

  onnx_train_tensor view() const {
    const void* data = holds_scalar_ ? &scalar_ : data_;
    const auto rank = static_cast<int32_t>(shape_.size());
    return {name_.c_str(), type_, rank, shape_.data(), const_cast<void*>(data), memory_};
  }

 private:
  std::string name_;
  onnx_train_type type_;
  std::vector<int64_t> shape_;
  const void* data_;
  onnx_train_memory memory_;
  uint64_t scalar_ = 0;
  bool holds_scalar_ = false;
};

// The outputs of a run, in the session's memory: valid until the next call with the session.
class Outputs {
 public:
  // `ports` (num_ports of them) describe the outputs.
  Outputs(const onnx_train_tensor* tensors, size_t count, const onnx_train_port* ports, size_t num_ports)
      : tensors_(tensors), count_(count), ports_(ports), num_ports_(num_ports) {}

  size_t size() const { return count_; }
  const onnx_train_tensor* begin() const { return tensors_; }
  const onnx_train_tensor* end() const { return tensors_ + count_; }
  // The output of this name or, if there is none, of this role: "loss" is the loss also where the model has a value of
  // its own of that name, for which the file's loss is called otherwise. Throws Error when there is neither.
  const onnx_train_tensor& at(const std::string& name) const {
    if (const onnx_train_tensor* tensor = find(name)) return *tensor;
    for (const onnx_train_port* port = ports_; port != ports_ + num_ports_; ++port) {
      if (port->role != name) continue;
      if (const onnx_train_tensor* tensor = find(port->name)) return *tensor;
    }
    throw Error(ONNX_TRAIN_USAGE, "the run has no output '" + name + "'");
  }
  // The first element of an output of type T. Throws Error when it has another type.
  template <typename T = float>
  T scalar(const std::string& name) const {
    return data<T>(name)[0];
  }
  template <typename T>
  const T* data(const std::string& name) const {
    const onnx_train_tensor& tensor = at(name);
    if (tensor.type != type_of<T>()) throw Error(ONNX_TRAIN_USAGE, "output '" + name + "' has another element type");
    return static_cast<const T*>(tensor.data);
  }

 private:
  const onnx_train_tensor* find(const std::string& name) const {
    for (const onnx_train_tensor& tensor : *this) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }

  const onnx_train_tensor* tensors_;
  size_t count_;
  const onnx_train_port* ports_;
  size_t num_ports_;
};

using Options = std::vector<std::pair<std::string, std::string>>;

namespace detail {

inline std::vector<onnx_train_option> views(const Options& options) {
  std::vector<onnx_train_option> views;
  for (const auto& [name, value] : options) views.push_back({name.c_str(), value.c_str()});
  return views;
}

inline std::vector<onnx_train_tensor> views(const std::vector<Input>& inputs) {
  std::vector<onnx_train_tensor> views;
  views.reserve(inputs.size());
  for (const Input& input : inputs) views.push_back(input.view());
  return views;
}

}  // namespace detail

// The options of "build", "forward", "session", "fit", "samples", "data", "check", "export" or "generate", a line each:
// onnx_train_options. Throws Error for another word.
inline std::string options_of(const std::string& function) {
  const char* const lines = onnx_train_options(function.c_str());
  if (!lines) throw Error(ONNX_TRAIN_USAGE, "no options are known of '" + function + "'");
  return lines;
}

// The learning rate of a step, counted from 0: onnx_train_learning_rate.
inline double learning_rate(int64_t step, const Options& options) {
  const auto views = detail::views(options);
  double rate = 0;
  check(onnx_train_learning_rate(views.data(), views.size(), step, &rate));
  return rate;
}

// The rows on which a training with these options trains, and those on which it evaluates: onnx_train_split.
inline std::pair<std::vector<int64_t>, std::vector<int64_t>> split(int64_t samples, const Options& options) {
  const auto views = detail::views(options);
  const auto room = static_cast<size_t>(samples < 0 ? 0 : samples);
  std::vector<int64_t> training(room), evaluation(room);
  size_t num_training = 0, num_evaluation = 0;
  check(onnx_train_split(samples, views.data(), views.size(), training.data(), &num_training, evaluation.data(),
                         &num_evaluation));
  training.resize(num_training);
  evaluation.resize(num_evaluation);
  return {training, evaluation};
}

// What was found in a model: an obstacle to its training, or something worth knowing.
struct Finding {
  std::string subject, what, advice;
};

// Whether a forward model can be trained, and everything that is in the way.
struct Report {
  std::string text;     // what the command `onnx-train check` prints
  std::string loss;     // the expression of the loss that the model was tried with
  std::string failure;  // why it cannot be trained, in one line; "" when it can
  std::vector<Finding> obstacles, findings;
};

// A forward and a backward pass: Model::differentiate.
struct Passes;

// A forward model, a training model or a checkpoint.
class Model {
 public:
  static Model load(const std::string& path) {
    return made([&](onnx_train_model** model) { return onnx_train_model_load(path.c_str(), model); });
  }
  static Model from_bytes(const void* data, size_t bytes) {
    return made([&](onnx_train_model** model) { return onnx_train_model_from_bytes(data, bytes, model); });
  }

  Model build(const Options& options = {}) const {
    const auto views = detail::views(options);
    return made(
        [&](onnx_train_model** model) { return onnx_train_model_build(get(), views.data(), views.size(), model); });
  }
  // With a loss that is a model: onnx_train_model_build_with_loss.
  Model build(const Model& loss, const Options& options) const {
    const auto views = detail::views(options);
    return made([&](onnx_train_model** model) {
      return onnx_train_model_build_with_loss(get(), loss.get(), views.data(), views.size(), model);
    });
  }
  // For given data, which choose the loss if `options` have none: onnx_train_model_build_for_data. `note` receives what
  // has been chosen.
  Model build_for_data(const std::string& path, const Options& options = {}, std::string* note = nullptr) const {
    return built_for(path.c_str(), {}, options, note);
  }
  Model build_for_data(const std::vector<Input>& arrays, const Options& options = {},
                       std::string* note = nullptr) const {
    return built_for(nullptr, detail::views(arrays), options, note);
  }
  // The open sizes that the arrays have, for the option "dim": onnx_train_model_sizes.
  std::string sizes(const std::vector<Input>& arrays) const {
    const auto views = detail::views(arrays);
    const char* text = "";
    v0::check(onnx_train_model_sizes(get(), views.data(), views.size(), &text));
    return text;
  }
  Report check(const Options& options = {}) const;
  // For programs with a loss and an optimizer of their own: onnx_train_model_differentiate.
  Passes differentiate(const Options& options = {}) const;
  // "outputs", "gradient", "vjp", "jvp" or "hvp" as a model: onnx_train_model_derivative.
  Model derivative(const std::string& kind, const Options& options = {}) const {
    const auto views = detail::views(options);
    return made([&](onnx_train_model** model) {
      return onnx_train_model_derivative(get(), kind.c_str(), nullptr, views.data(), views.size(), model);
    });
  }
  // The same of a loss that is a model.
  Model derivative(const std::string& kind, const Model& loss, const Options& options = {}) const {
    const auto views = detail::views(options);
    return made([&](onnx_train_model** model) {
      return onnx_train_model_derivative(get(), kind.c_str(), loss.get(), views.data(), views.size(), model);
    });
  }
  // A copy with other weights, by the names of initializers. `strict`: a name that the model does not have is an error.
  Model with_weights(const std::vector<Input>& weights, bool strict = true) const {
    const auto views = detail::views(weights);
    return made([&](onnx_train_model** model) {
      return onnx_train_model_with_weights(get(), views.data(), views.size(), strict, model);
    });
  }
  Model export_inference() const {
    return made([&](onnx_train_model** model) { return onnx_train_model_export(get(), model); });
  }
  // With options as of the command `onnx-train export`: {{"merge", "true"}}, {{"dtype", "int8"}}.
  Model export_inference(const Options& options) const {
    const auto views = detail::views(options);
    return made([&](onnx_train_model** model) {
      return onnx_train_model_export_with(get(), views.data(), views.size(), model);
    });
  }
  // Writes the model or the folder of the option "into" with trained weights: onnx_train_model_export_into. Returns
  // what was written, guessed or left out, a line each.
  std::string export_into(const std::string& path, const Options& options) const {
    const auto views = detail::views(options);
    const char* note = "";
    onnx_train::check(onnx_train_model_export_into(get(), views.data(), views.size(), path.c_str(), &note));
    return note;
  }
  // Writes the adapters in PEFT's format: onnx_train_model_save_adapter.
  void save_adapter(const std::string& folder) const {
    onnx_train::check(onnx_train_model_save_adapter(get(), folder.c_str()));
  }
  Model flatten(const std::string& entry) const {
    return made([&](onnx_train_model** model) { return onnx_train_model_flatten(get(), entry.c_str(), model); });
  }
  void save(const std::string& path) const { v0::check(onnx_train_model_save(get(), path.c_str())); }
  // Keys and values; onnx_train_model_metadata lists those of a training model.
  std::map<std::string, std::string> metadata() const {
    std::map<std::string, std::string> entries;
    const char* key = nullptr;
    for (size_t i = 0; const char* value = onnx_train_model_metadata(get(), i, &key); ++i) entries.emplace(key, value);
    return entries;
  }
  // What was guessed, left out or changed when this training model was built (onnx_train_model_notes).
  std::vector<Finding> notes() const {
    const onnx_train_finding* found = nullptr;
    const size_t count = onnx_train_model_notes(get(), &found);
    std::vector<Finding> notes;
    for (size_t i = 0; i < count; ++i) notes.push_back({found[i].subject, found[i].what, found[i].advice});
    return notes;
  }
  std::string to_bytes() const {
    void* data = nullptr;
    size_t bytes = 0;
    v0::check(onnx_train_model_to_bytes(get(), &data, &bytes));
    const std::unique_ptr<void, void (*)(void*)> owner(data, onnx_train_free);
    return std::string(static_cast<const char*>(data), bytes);
  }

  const onnx_train_model* get() const { return handle_.get(); }

 private:
  Model built_for(const char* path, const std::vector<onnx_train_tensor>& arrays, const Options& options,
                  std::string* note) const {
    const auto views = detail::views(options);
    const char* text = "";
    Model training = made([&](onnx_train_model** model) {
      return onnx_train_model_build_for_data(get(), path, arrays.data(), arrays.size(), views.data(), views.size(),
                                             model, &text);
    });
    if (note) *note = text;
    return training;
  }
  friend class Session;
  explicit Model(onnx_train_model* handle) : handle_(handle, onnx_train_model_free) {}
  template <typename F>
  static Model made(const F& f) {
    onnx_train_model* handle = nullptr;
    v0::check(f(&handle));
    return Model(handle);
  }

  std::unique_ptr<onnx_train_model, void (*)(onnx_train_model*)> handle_;
};

// Sessions of both run with the entry point "predict"; Session::inputs() and outputs() say what is what.
struct Passes {
  Model forward, backward;
};

inline Passes Model::differentiate(const Options& options) const {
  const auto views = detail::views(options);
  onnx_train_model *forward = nullptr, *backward = nullptr;
  v0::check(onnx_train_model_differentiate(get(), views.data(), views.size(), &forward, &backward));
  return {Model(forward), Model(backward)};
}

inline Report Model::check(const Options& options) const {
  const auto views = detail::views(options);
  onnx_train_report* handle = nullptr;
  v0::check(onnx_train_model_check(get(), views.data(), views.size(), &handle));
  const std::unique_ptr<onnx_train_report, void (*)(onnx_train_report*)> owner(handle, onnx_train_report_free);
  const auto list = [&](size_t (*read)(const onnx_train_report*, const onnx_train_finding**)) {
    const onnx_train_finding* found = nullptr;
    const size_t count = read(handle, &found);
    std::vector<Finding> findings;
    for (size_t i = 0; i < count; ++i) findings.push_back({found[i].subject, found[i].what, found[i].advice});
    return findings;
  };
  return {onnx_train_report_text(handle), onnx_train_report_loss(handle), onnx_train_report_failure(handle),
          list(onnx_train_report_obstacles), list(onnx_train_report_findings)};
}

// Entries of a list in the library's memory: of entry points, inputs and outputs as long as their session.
template <typename T>
class List {
 public:
  List(const T* items, size_t size) : items_(items), size_(size) {}
  size_t size() const { return size_; }
  const T* begin() const { return items_; }
  const T* end() const { return items_ + size_; }
  const T& operator[](size_t i) const { return items_[i]; }

 private:
  const T* items_;
  size_t size_;
};

// What a run of an entry point executes: onnx_train_plan.
struct Plan {
  std::string text, json;
  size_t arena_bytes, workspace_bytes, constant_bytes;
};

// A training model's state on a device, and the plans that run it. One thread at a time.
class Session {
 public:
  explicit Session(const Model& training, const Options& options = {}) : handle_(nullptr, onnx_train_session_free) {
    const auto views = detail::views(options);
    onnx_train_session* handle = nullptr;
    check(onnx_train_session_create(training.get(), views.data(), views.size(), &handle));
    handle_.reset(handle);
  }

  Outputs run(const std::string& entry, const std::vector<Input>& inputs = {}) {
    const auto views = detail::views(inputs);
    const onnx_train_tensor* outputs = nullptr;
    const onnx_train_port* described = nullptr;
    size_t count = 0, num_described = 0;
    check(onnx_train_session_outputs(handle_.get(), entry.c_str(), &described, &num_described));
    check(onnx_train_session_run(handle_.get(), entry.c_str(), views.data(), views.size(), &outputs, &count));
    return Outputs(outputs, count, described, num_described);
  }

  // Along which axis an input holds its samples: onnx_train_session_sample_axis.
  int32_t sample_axis(const std::string& entry, const std::string& input) const {
    int32_t axis = 0;
    check(onnx_train_session_sample_axis(handle_.get(), entry.c_str(), input.c_str(), &axis));
    return axis;
  }

  // What data of an input are multiplied by before `run`: onnx_train_session_scale.
  double scale(const std::string& input) const {
    double scale = 1;
    check(onnx_train_session_scale(handle_.get(), input.c_str(), &scale));
    return scale;
  }

  // The entry points with outputs (all but "initialize"), "predict" first, and their inputs and outputs; of each its
  // name, role, type and shape.
  List<const char*> entries() const {
    const char* const* names = nullptr;
    size_t count = 0;
    check(onnx_train_session_entries(handle_.get(), &names, &count));
    return {names, count};
  }
  List<onnx_train_port> inputs(const std::string& entry) const { return ports(onnx_train_session_inputs, entry); }
  List<onnx_train_port> outputs(const std::string& entry) const { return ports(onnx_train_session_outputs, entry); }
  // Makes the plan for these sizes if there is none; runs nothing.
  Plan plan(const std::string& entry, const Options& options = {}) {
    const auto views = detail::views(options);
    onnx_train_plan plan{};
    check(onnx_train_session_plan(handle_.get(), entry.c_str(), views.data(), views.size(), &plan));
    return {plan.text, plan.json, plan.arena_bytes, plan.workspace_bytes, plan.constant_bytes};
  }

  std::vector<std::string> states() const {
    const char* const* names = nullptr;
    size_t count = 0;
    check(onnx_train_session_states(handle_.get(), &names, &count));
    return std::vector<std::string>(names, names + count);
  }
  // The same with role, type and shape.
  List<onnx_train_port> state_ports() const {
    const onnx_train_port* ports = nullptr;
    size_t count = 0;
    check(onnx_train_session_state_ports(handle_.get(), &ports, &count));
    return {ports, count};
  }
  // A copy of a state. Throws Error unless its elements are of type T.
  template <typename T = float>
  std::vector<T> get(const std::string& name) const {
    std::vector<T> values(size_of<T>(name));
    check(onnx_train_session_get(handle_.get(), name.c_str(), values.data(), values.size() * sizeof(T)));
    return values;
  }
  template <typename T>
  void set(const std::string& name, const std::vector<T>& values) {
    size_of<T>(name);
    check(onnx_train_session_set(handle_.get(), name.c_str(), values.data(), values.size() * sizeof(T)));
  }
  // The values of a state where the session keeps them, without a copy: to be read and written while it is idle. Throws
  // Error unless its elements are of type T and the device's memory is the host's.
  template <typename T = float>
  T* data(const std::string& name) {
    size_of<T>(name);
    void* address = nullptr;
    int32_t on_host = 0;
    check(onnx_train_session_address(handle_.get(), name.c_str(), &address, &on_host));
    if (!on_host) throw Error(ONNX_TRAIN_DEVICE, "state '" + name + "' is not in the host's memory: get() copies it");
    return static_cast<T*>(address);
  }
  // The address of a state in the memory of the session's device: fixed as long as the session lives.
  void* address(const std::string& name) const {
    void* address = nullptr;
    int32_t on_host = 0;
    check(onnx_train_session_address(handle_.get(), name.c_str(), &address, &on_host));
    return address;
  }
  // Sets a state from memory of the session's device: onnx_train_session_set_from_device.
  void set_from_device(const std::string& name, const void* data, size_t bytes) {
    check(onnx_train_session_set_from_device(handle_.get(), name.c_str(), data, bytes));
  }
  // Where the tensors are, and the stream on which the session's work runs: onnx_train_device.
  onnx_train_device device() const {
    onnx_train_device device{};
    check(onnx_train_session_device(handle_.get(), &device));
    return device;
  }
  // Of the processes that train together: onnx_train_session_ranks.
  int rank() const {
    int32_t rank = 0;
    check(onnx_train_session_ranks(handle_.get(), &rank, nullptr));
    return rank;
  }
  int ranks() const {
    int32_t ranks = 1;
    check(onnx_train_session_ranks(handle_.get(), nullptr, &ranks));
    return ranks;
  }
  void swap(const std::string& name, Session& other) {  // NOLINT(bugprone-exception-escape): no std::swap
    check(onnx_train_session_swap(handle_.get(), other.handle_.get(), name.c_str()));
  }
  // An adapter in PEFT's format under a name, and its values as those of the states.
  void load_adapter(const std::string& name, const std::string& folder) {
    check(onnx_train_session_load_adapter(handle_.get(), name.c_str(), folder.c_str()));
  }
  void set_adapter(const std::string& name) { check(onnx_train_session_set_adapter(handle_.get(), name.c_str())); }
  void initialize(uint64_t seed) { check(onnx_train_session_initialize(handle_.get(), seed)); }
  // The training model with the present state.
  Model model() const {
    return Model::made([&](onnx_train_model** model) { return onnx_train_session_model(handle_.get(), model); });
  }

  onnx_train_session* get() const { return handle_.get(); }

 private:
  using PortsOf = onnx_train_status (*)(onnx_train_session*, const char*, const onnx_train_port**, size_t*);
  List<onnx_train_port> ports(PortsOf of, const std::string& entry) const {
    const onnx_train_port* ports = nullptr;
    size_t count = 0;
    check(of(handle_.get(), entry.c_str(), &ports, &count));
    return {ports, count};
  }
  template <typename T>
  size_t size_of(const std::string& name) const {
    onnx_train_tensor state;
    check(onnx_train_session_state(handle_.get(), name.c_str(), &state));
    if (state.type != type_of<T>()) throw Error(ONNX_TRAIN_USAGE, "state '" + name + "' has another element type");
    size_t elements = 1;
    for (int32_t i = 0; i < state.rank; ++i) elements *= static_cast<size_t>(state.shape[i]);
    return elements;
  }

  std::unique_ptr<onnx_train_session, void (*)(onnx_train_session*)> handle_;
};

// The data of a training: Arrays, a Dataset, or a class of the program. Used by one training at a time, on its thread.
// An exception of a function ends the training, and train() throws it.
class DataSource {
 public:
  virtual ~DataSource() = default;
  // Starts epoch `epoch`, counted from 0.
  virtual void begin(int64_t /*epoch*/) {}
  // The inputs of the next batch; none: the epoch is over. The memory they refer to is read until the next call. Their
  // first dimension is the number of samples, which may change from batch to batch.
  virtual std::vector<Input> next() = 0;
  // Of an epoch; 0: not known. Schedules that have an end need it, unless the option "steps" is given.
  virtual int64_t batches() const { return 0; }

 protected:
  friend class Trainer;
  virtual const std::vector<Input>* arrays() const { return nullptr; }
  virtual const onnx_train_dataset* files() const { return nullptr; }
};

// Arrays with one sample per row, which the library shuffles and cuts into batches: options "batch-size", "seed",
// "no-shuffle". Their memory outlives the training.
class Arrays : public DataSource {
 public:
  explicit Arrays(std::vector<Input> arrays) : arrays_(std::move(arrays)) {}
  std::vector<Input> next() override { return {}; }

 protected:
  const std::vector<Input>* arrays() const override { return &arrays_; }

 private:
  std::vector<Input> arrays_;
};

// Data files, as the command's --data takes them: onnx_train_dataset_open. They are cut into batches as Arrays are.
class Dataset : public DataSource {
 public:
  // What an entry point of the session takes, checked; "": that which trains, or "predict" where there is none.
  // Options are those of onnx_train_dataset_open_with.
  Dataset(const std::string& path, const Session& session, const std::string& entry = "", const Options& options = {})
      : Dataset(path, session.get(), entry.empty() ? nullptr : entry.c_str(), options) {}
  // All arrays of a file that names them.
  explicit Dataset(const std::string& path) : Dataset(path, nullptr, nullptr) {}
  Dataset(const std::string& path, onnx_train_session* session, const char* entry, const Options& options = {}) {
    onnx_train_dataset* handle = nullptr;
    const auto views = detail::views(options);
    check(onnx_train_dataset_open_with(path.c_str(), session, entry, views.data(), views.size(), &handle));
    handle_.reset(handle);
  }
  // The tensors of a safetensors file and, by metadata(), its texts; there are no samples.
  static Dataset safetensors(const std::string& path) {
    onnx_train_dataset* handle = nullptr;
    check(onnx_train_safetensors_open(path.c_str(), &handle));
    return Dataset(handle);
  }

  // In the element types of the file, not to be written to. Valid as long as the dataset.
  List<onnx_train_tensor> tensors() const {
    const onnx_train_tensor* tensors = nullptr;
    size_t count = 0;
    check(onnx_train_dataset_arrays(get(), &tensors, &count));
    return {tensors, count};
  }
  // What a file says of its arrays: onnx_train_dataset_metadata.
  std::map<std::string, std::string> metadata() const {
    std::map<std::string, std::string> entries;
    const char* key = nullptr;
    for (size_t i = 0; const char* text = onnx_train_dataset_metadata(get(), i, &key); ++i) entries.emplace(key, text);
    return entries;
  }
  int64_t samples() const { return size(0).first; }
  // Of an epoch; 0: the batch size of a training without the option "batch-size".
  int64_t batches_of(int64_t batch_size) const { return size(batch_size).second; }
  std::vector<Input> next() override { return {}; }

  const onnx_train_dataset* get() const { return handle_.get(); }

 protected:
  const onnx_train_dataset* files() const override { return get(); }

 private:
  explicit Dataset(onnx_train_dataset* handle) : handle_(handle, onnx_train_dataset_free) {}
  std::pair<int64_t, int64_t> size(int64_t batch_size) const {
    std::pair<int64_t, int64_t> size;
    check(onnx_train_dataset_size(get(), batch_size, &size.first, &size.second));
    return size;
  }

  std::unique_ptr<onnx_train_dataset, void (*)(onnx_train_dataset*)> handle_{nullptr, onnx_train_dataset_free};
};

// Writes tensors by name, and texts by name, to a safetensors file, atomically.
inline void save_safetensors(const std::string& path, const std::vector<Input>& tensors, const Options& metadata = {}) {
  const auto views = detail::views(tensors);
  const auto texts = detail::views(metadata);
  check(onnx_train_safetensors_save(path.c_str(), views.data(), views.size(), texts.data(), texts.size()));
}

// What is told of a training. Functions return ONNX_TRAIN_CONTINUE, ONNX_TRAIN_STOP or ONNX_TRAIN_INTERRUPT; an
// exception ends the training, and train() throws it. onnx_train.h says when they may use the session.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual onnx_train_next on_step(const onnx_train_step&) { return ONNX_TRAIN_CONTINUE; }
  virtual onnx_train_next on_evaluation(const onnx_train_evaluation&) { return ONNX_TRAIN_CONTINUE; }
  virtual onnx_train_next on_checkpoint(const std::string& /*path*/) { return ONNX_TRAIN_CONTINUE; }
  virtual onnx_train_next on_note(const std::string& /*text*/) { return ONNX_TRAIN_CONTINUE; }
};

// Trains a session: the loop of the command `onnx-train fit`. Options are those of onnx_train_fit.
class Trainer {
 public:
  // All outlive the trainer; `evaluation` and `observer` may be null.
  Trainer(Session* session, DataSource* training, DataSource* evaluation = nullptr, Observer* observer = nullptr)
      : Trainer(session->get(), training, evaluation, observer) {}
  Trainer(onnx_train_session* session, DataSource* training, DataSource* evaluation, Observer* observer)
      : session_(session), training_{training, this}, evaluation_{evaluation, this}, observer_(observer) {}
  Trainer(const Trainer&) = delete;

  // Returns when a limit is reached or the observer ends it. Throws Error, and what data and observer throw.
  onnx_train_stop_reason run(const Options& options) {
    const onnx_train_data evaluation = evaluation_.source ? evaluation_.data() : onnx_train_data{};
    onnx_train_stop_reason reason = ONNX_TRAIN_FINISHED;
    call(options, [&](const auto& training, const auto& views, const onnx_train_observer& observer) {
      return onnx_train_fit(session_, &training, evaluation_.source ? &evaluation : nullptr, views.data(), views.size(),
                            &observer, &reason);
    });
    return reason;
  }

 private:
  friend std::map<std::string, double> evaluate(Session&, DataSource&, const Options&, Observer*);
  friend Outputs predict(Session&, DataSource&, const Options&, Observer*);

  // f(data, options, observer). Throws Error unless it succeeds, and what data and observer throw.
  template <typename F>
  void call(const Options& options, const F& f) {
    onnx_train_observer observer{};
    observer.size = sizeof observer;
    observer.user = this;
    if (observer_) {
      observer.on_step = [](void* t, const onnx_train_step* step) {
        return of(t).guarded([&] { return of(t).observer_->on_step(*step); });
      };
      observer.on_evaluation = [](void* t, const onnx_train_evaluation* evaluated) {
        return of(t).guarded([&] { return of(t).observer_->on_evaluation(*evaluated); });
      };
      observer.on_checkpoint = [](void* t, const char* path) {
        return of(t).guarded([&] { return of(t).observer_->on_checkpoint(path); });
      };
      observer.on_note = [](void* t, const char* text) {
        return of(t).guarded([&] { return of(t).observer_->on_note(text); });
      };
    }
    const onnx_train_status status = f(training_.data(), detail::views(options), observer);
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
    check(status);
  }

  // A source with the memory of its current batch.
  struct Data {
    DataSource* source;
    Trainer* trainer;
    std::vector<Input> batch = {};
    std::vector<onnx_train_tensor> views = {};

    void show(const std::vector<Input>& inputs) {
      views.clear();
      for (const Input& input : inputs) views.push_back(input.view());
    }
    onnx_train_data data() {
      onnx_train_data data{};
      data.size = sizeof data;
      data.user = this;
      if (const std::vector<Input>* arrays = source->arrays()) {
        show(*arrays);
        data.arrays = views.data();
        data.num_arrays = views.size();
        return data;
      }
      if (const onnx_train_dataset* files = source->files()) {
        data.dataset = files;
        return data;
      }
      data.batches = source->batches();
      data.begin = [](void* user, int64_t epoch) {
        Data& self = *static_cast<Data*>(user);
        return self.trainer->guarded([&] { return self.source->begin(epoch), ONNX_TRAIN_CONTINUE; });
      };
      data.next = [](void* user, const onnx_train_tensor** inputs, size_t* count) {
        Data& self = *static_cast<Data*>(user);
        return self.trainer->guarded([&] {
          self.batch = self.source->next();
          self.show(self.batch);
          *inputs = self.views.data();
          *count = self.views.size();
          return ONNX_TRAIN_CONTINUE;
        });
      };
      return data;
    }
  };

  static Trainer& of(void* trainer) { return *static_cast<Trainer*>(trainer); }
  template <typename F>
  onnx_train_next guarded(const F& f) noexcept {
    try {
      return f();
    } catch (...) {
      thrown_ = std::current_exception();
      return ONNX_TRAIN_FAIL;
    }
  }

  onnx_train_session* session_;
  Data training_, evaluation_;
  Observer* observer_;
  std::exception_ptr thrown_;
};

// Trainer in one call.
inline onnx_train_stop_reason train(Session& session, DataSource& data, const Options& options,
                                    DataSource* evaluation = nullptr, Observer* observer = nullptr) {
  return Trainer(&session, &data, evaluation, observer).run(options);
}

// Loss and metrics over all data: onnx_train_evaluate, which has the options.
inline std::map<std::string, double> evaluate(Session& session, DataSource& data, const Options& options = {},
                                              Observer* observer = nullptr) {
  const onnx_train_metric* metrics = nullptr;
  size_t count = 0;
  Trainer(&session, &data, nullptr, observer)
      .call(options, [&](const auto& given, const auto& views, const auto& told) {
        return onnx_train_evaluate(session.get(), &given, views.data(), views.size(), &told, &metrics, &count);
      });
  std::map<std::string, double> values;
  for (size_t i = 0; i < count; ++i) values.emplace(metrics[i].name, metrics[i].value);
  return values;
}

// The metrics that are made of statistics, the outputs of "evaluate" with that role, of one run or summed over several:
// onnx_train_session_metrics.
inline std::map<std::string, double> metrics(Session& session, const std::vector<onnx_train_tensor>& statistics) {
  const onnx_train_metric* metrics = nullptr;
  size_t count = 0;
  check(onnx_train_session_metrics(session.get(), statistics.data(), statistics.size(), &metrics, &count));
  std::map<std::string, double> values;
  for (size_t i = 0; i < count; ++i) values.emplace(metrics[i].name, metrics[i].value);
  return values;
}

// What the metrics of the last evaluate() or metrics() say by class, doubles: valid until the next call with the
// session.
inline Outputs metric_tables(Session& session) {
  const onnx_train_tensor* tables = nullptr;
  size_t count = 0;
  check(onnx_train_session_metric_tables(session.get(), &tables, &count));
  return Outputs(tables, count, nullptr, 0);
}

// The outputs for all samples of Arrays or a Dataset: onnx_train_predict, which has the options.
inline Outputs predict(Session& session, DataSource& data, const Options& options = {}, Observer* observer = nullptr) {
  const List<onnx_train_port> ports = session.outputs("predict");
  const onnx_train_tensor* outputs = nullptr;
  size_t count = 0;
  Trainer(&session, &data, nullptr, observer)
      .call(options, [&](const auto& given, const auto& views, const auto& told) {
        return onnx_train_predict(session.get(), &given, views.data(), views.size(), &told, &outputs, &count);
      });
  return Outputs(outputs, count, ports.begin(), ports.size());
}

// Called with each token that is drawn and the number of its text; false ends all.
using OnToken = std::function<bool(size_t text, int64_t token)>;

// The tokens that a causal language model writes after each prompt: onnx_train_generate, which has the options.
inline std::vector<std::vector<int64_t>> generate(Session& session, const std::vector<std::vector<int64_t>>& prompts,
                                                  const Options& options = {}, const OnToken& on_token = {}) {
  struct Written {
    std::vector<std::vector<int64_t>> texts;
    const OnToken& told;
    std::exception_ptr thrown;
  } written{std::vector<std::vector<int64_t>>(prompts.size()), on_token, nullptr};
  std::vector<const int64_t*> begins;
  std::vector<size_t> lengths;
  for (const auto& prompt : prompts) {
    begins.push_back(prompt.data());
    lengths.push_back(prompt.size());
  }
  const auto views = detail::views(options);
  const onnx_train_status status = onnx_train_generate(
      session.get(), begins.data(), lengths.data(), prompts.size(), views.data(), views.size(),
      [](void* user, size_t text, int64_t token) {
        Written& to = *static_cast<Written*>(user);
        try {
          to.texts[text].push_back(token);
          return !to.told || to.told(text, token) ? ONNX_TRAIN_CONTINUE : ONNX_TRAIN_STOP;
        } catch (...) {
          to.thrown = std::current_exception();
          return ONNX_TRAIN_FAIL;
        }
      },
      &written);
  if (written.thrown) std::rethrow_exception(written.thrown);
  check(status);
  return std::move(written.texts);
}

// Why the last generate() was not as fast as with a cache; "" if it was: onnx_train_generate_note.
inline std::string generate_note(const Session& session) { return onnx_train_generate_note(session.get()); }

}  // namespace v0
}  // namespace onnx_train
