// The class Session of the module _core. Arrays go in by the buffer protocol, which copies nothing, and come out as
// numpy arrays; what is no suitable array goes through onnx_train._arrays first. Arrays on the session's device go in
// and out by DLPack, which copies nothing either.
#include <algorithm>
#include <cstring>

#include "python_bindings/session.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

namespace onnx_train::python {
namespace {

struct ElementType {
  onnx_train_type type;
  const char* numpy;
  nb::dlpack::dtype_code code;
  uint8_t bits;
};

constexpr ElementType kTypes[] = {{ONNX_TRAIN_FLOAT, "float32", nb::dlpack::dtype_code::Float, 32},
                                  {ONNX_TRAIN_DOUBLE, "float64", nb::dlpack::dtype_code::Float, 64},
                                  {ONNX_TRAIN_FLOAT16, "float16", nb::dlpack::dtype_code::Float, 16},
                                  {ONNX_TRAIN_INT8, "int8", nb::dlpack::dtype_code::Int, 8},
                                  {ONNX_TRAIN_INT16, "int16", nb::dlpack::dtype_code::Int, 16},
                                  {ONNX_TRAIN_INT32, "int32", nb::dlpack::dtype_code::Int, 32},
                                  {ONNX_TRAIN_INT64, "int64", nb::dlpack::dtype_code::Int, 64},
                                  {ONNX_TRAIN_UINT8, "uint8", nb::dlpack::dtype_code::UInt, 8},
                                  {ONNX_TRAIN_UINT16, "uint16", nb::dlpack::dtype_code::UInt, 16},
                                  {ONNX_TRAIN_UINT32, "uint32", nb::dlpack::dtype_code::UInt, 32},
                                  {ONNX_TRAIN_UINT64, "uint64", nb::dlpack::dtype_code::UInt, 64},
                                  {ONNX_TRAIN_BOOL, "bool", nb::dlpack::dtype_code::Bool, 8}};

const ElementType& element_type(onnx_train_type type, const std::string& name) {
  for (const ElementType& known : kTypes) {
    if (known.type == type) return known;
  }
  constexpr auto kString = static_cast<onnx_train_type>(8);  // ONNX's number; onnx_train_type has none for it
  const std::string what = type == ONNX_TRAIN_BFLOAT16 ? "bfloat16 elements, which numpy has no type for"
                           : type == kString
                               ? "strings, which a model that runs here cannot read"
                               : "elements of ONNX's type " + std::to_string(type) + ", which is not supported";
  throw Error(ONNX_TRAIN_UNSUPPORTED, "'" + name + "' has " + what);
}

size_t bytes_of(const ElementType& type, const int64_t* shape, int32_t rank) {
  size_t bytes = type.bits / 8;
  for (int32_t i = 0; i < rank; ++i) bytes *= static_cast<size_t>(shape[i]);
  return bytes;
}

// A numpy array of the memory, which `owner` keeps alive; with nb::ro a read-only one.
template <typename... Access>
nb::object as_array(const ElementType& type, const int64_t* shape, int32_t rank, void* data, nb::handle owner) {
  const std::vector<size_t> sizes(shape, shape + rank);
  nb::object array = nb::cast(nb::ndarray<nb::numpy, Access...>(data, sizes.size(), sizes.data(), owner, nullptr,
                                                                {static_cast<uint8_t>(type.code), type.bits, 1}),
                              nb::rv_policy::reference);
  // Of C's two types of 64 bits numpy takes the one that is not its int64.
  return type.bits == 64 && type.code != nb::dlpack::dtype_code::Float ? array.attr("view")(type.numpy) : array;
}

// A new numpy array with a copy of `data`.
nb::object copied_array(const ElementType& type, const int64_t* shape, int32_t rank, const void* data) {
  const size_t bytes = bytes_of(type, shape, rank);
  std::unique_ptr<char[]> memory(new char[std::max<size_t>(bytes, 1)]);
  if (bytes > 0) std::memcpy(memory.get(), data, bytes);
  char* const address = memory.get();
  const nb::capsule owner(memory.release(), [](void* p) noexcept { delete[] static_cast<char*>(p); });
  return as_array(type, shape, rank, address, owner);
}

template <typename T>
T load(const void* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// As numpy says it: "float32".
std::string name_of(const nb::dlpack::dtype& type) {
  for (const ElementType& known : kTypes) {
    if (static_cast<uint8_t>(known.code) == type.code && known.bits == type.bits && type.lanes == 1) return known.numpy;
  }
  return "of another type";
}

bool is_dense(const nb::ndarray<nb::ro>& array) {
  int64_t expected = 1;
  bool dense = true;
  for (size_t i = array.ndim(); i-- > 0;) {
    dense = dense && (array.shape_ptr()[i] <= 1 || array.stride_ptr()[i] == expected);
    expected *= array.shape_ptr()[i];
  }
  return dense || expected == 0;
}

Error unknown_input(const std::string& entry, std::string_view name, const std::vector<Port>& ports) {
  std::string names;
  for (const Port& port : ports) names += (names.empty() ? "" : ", ") + port.name;
  return Error(ONNX_TRAIN_DATA, "entry point '" + entry + "' has no input '" + std::string(name) + "'; it has " + names,
               "OT5002");
}

}  // namespace

nb::object to_python(const onnx_train_tensor& tensor) {
  if (tensor.rank == 0) {
    switch (tensor.type) {
      case ONNX_TRAIN_FLOAT: return nb::float_(load<float>(tensor.data));
      case ONNX_TRAIN_DOUBLE: return nb::float_(load<double>(tensor.data));
      case ONNX_TRAIN_INT64: return nb::int_(load<int64_t>(tensor.data));
      case ONNX_TRAIN_INT32: return nb::int_(load<int32_t>(tensor.data));
      case ONNX_TRAIN_BOOL: return nb::bool_(load<bool>(tensor.data));
      default: break;
    }
  }
  return copied_array(element_type(tensor.type, tensor.name), tensor.shape, tensor.rank, tensor.data);
}

std::optional<onnx_train_type> type_of_format(const char* format, Py_ssize_t size) {
  if (!format) return ONNX_TRAIN_UINT8;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == '\0' || format[1] != '\0') return std::nullopt;
  const auto of_size = [&](std::initializer_list<onnx_train_type> types) {  // 1, 2, 4, 8 bytes
    const size_t i = size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3;
    return types.begin()[i];
  };
  switch (*format) {
    case 'f': return ONNX_TRAIN_FLOAT;
    case 'd': return ONNX_TRAIN_DOUBLE;
    case 'e': return ONNX_TRAIN_FLOAT16;
    case '?': return ONNX_TRAIN_BOOL;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n': return of_size({ONNX_TRAIN_INT8, ONNX_TRAIN_INT16, ONNX_TRAIN_INT32, ONNX_TRAIN_INT64});
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N': return of_size({ONNX_TRAIN_UINT8, ONNX_TRAIN_UINT16, ONNX_TRAIN_UINT32, ONNX_TRAIN_UINT64});
    default: return std::nullopt;
  }
}

std::vector<Port> copy_ports(const onnx_train_port* ports, size_t count) {
  std::vector<Port> copies;
  for (const onnx_train_port* p = ports; p != ports + count; ++p) {
    std::optional<std::vector<int64_t>> shape;
    if (p->rank >= 0) shape.emplace(p->shape, p->shape + p->rank);
    copies.push_back({p->name, p->role, p->of, p->type, std::move(shape), p->data});
  }
  return copies;
}

const Port& find_port(const std::string& entry, std::string_view name, const std::vector<Port>& ports) {
  const auto port = std::find_if(ports.begin(), ports.end(), [&](const Port& p) { return p.name == name; });
  if (port == ports.end()) throw unknown_input(entry, name, ports);
  return *port;
}

std::pair<std::string, Sizes> SessionHandle::describe(const std::string& name) const {
  onnx_train_tensor state;
  check(onnx_train_session_state(handle_.get(), name.c_str(), &state));
  nb::list shape;
  for (int32_t i = 0; i < state.rank; ++i) shape.append(state.shape[i]);
  return {element_type(state.type, name).numpy, nb::tuple(shape)};
}

onnx_train_tensor SessionHandle::acquire(nb::handle value, onnx_train_type type, const std::string& name,
                                         Held* held) const {
  Buffer& buffer = held->buffer;
  if (!buffer.acquire(value.ptr(), type)) {
    if (!is_on_host() && acquire_on_device(value, type, name, held)) {
      const nb::ndarray<nb::ro>& array = held->device;
      const auto rank = static_cast<int32_t>(array.ndim());
      return {name.c_str(), type, rank, array.shape_ptr(), const_cast<void*>(array.data()), ONNX_TRAIN_DEVICE_MEMORY};
    }
    const char* const numpy_type = element_type(type, name).numpy;
    held->converted = nb::module_::import_("onnx_train._arrays").attr("as_input")(value, numpy_type, name);
    if (!buffer.acquire(held->converted.ptr(), type)) throw Error(ONNX_TRAIN_DATA, "'" + name + "' is no dense array");
  }
  const Py_buffer& view = buffer.view();
  return {name.c_str(), type, view.ndim, view.shape, view.buf, ONNX_TRAIN_HOST_MEMORY};
}

// False for what is no array on the session's device. Its elements are read as they are: there is no conversion.
bool SessionHandle::acquire_on_device(nb::handle value, onnx_train_type type, const std::string& name,
                                      Held* held) const {
  nb::object stream = nb::none();
  if (device_.stream) stream = nb::int_(reinterpret_cast<uintptr_t>(device_.stream));
  const nb::object capsule =
      nb::module_::import_("onnx_train._arrays").attr("on_device")(value, device(), stream, name);
  if (capsule.is_none()) return false;
  nb::ndarray<nb::ro>& array = held->device;
  if (!nb::try_cast(capsule, array) || array.device_type() != device_.type || array.device_id() != device_.id) {
    throw Error(ONNX_TRAIN_DATA, "'" + name + "' exports no tensor of its device by DLPack");
  }
  const ElementType& expected = element_type(type, name);
  const nb::dlpack::dtype found = array.dtype();
  if (found != nb::dlpack::dtype{static_cast<uint8_t>(expected.code), expected.bits, 1}) {
    throw Error(ONNX_TRAIN_DATA,
                "'" + name + "' is " + name_of(found) + "; on the device it must be " + expected.numpy);
  }
  if (!is_dense(array)) {
    throw Error(ONNX_TRAIN_DATA, "'" + name + "' is not dense in row-major order; on the device it must be");
  }
  return true;
}

char* SessionHandle::find_address(const std::string& name) const {
  void* address = nullptr;
  int32_t on_host = 0;
  check(onnx_train_session_address(handle_.get(), name.c_str(), &address, &on_host));
  return static_cast<char*>(address);
}

std::unique_ptr<Batch> SessionHandle::batch(const std::string& entry, const nb::dict& arrays) {
  const std::vector<Port>& ports = inputs(entry);
  auto batch = std::make_unique<Batch>(arrays.size());
  for (const auto& [key, value] : arrays) {
    const Port& port = find_port(entry, nb::cast<std::string_view>(key), ports);
    batch->tensors.push_back(acquire(value, port.type, port.name, &batch->held[batch->tensors.size()]));
  }
  return batch;
}

Named SessionHandle::run(const std::string& entry, const Named& arrays) {
  inputs(entry);
  const Use use(this);
  const auto given = batch(entry, arrays);
  const onnx_train_tensor* outputs = nullptr;
  size_t count = 0;
  unlocked([&] {
    return onnx_train_session_run(handle_.get(), entry.c_str(), given->tensors.data(), given->tensors.size(), &outputs,
                                  &count);
  });
  nb::dict results;
  for (size_t i = 0; i < count; ++i) results[outputs[i].name] = to_python(outputs[i]);
  return results;
}

namespace {

// Calls f(data, options, observer) of the C interface without Python's lock, and returns the notes of the call.
template <typename F>
std::vector<std::string> run_over(const Dataset& dataset, const Options& options, const F& f) {
  onnx_train_data data{};
  data.size = sizeof data;
  data.dataset = dataset.get();
  std::vector<std::string> notes;
  onnx_train_observer observer{};
  observer.size = sizeof observer;
  observer.user = &notes;
  observer.on_note = [](void* user, const char* text) {
    static_cast<std::vector<std::string>*>(user)->emplace_back(text);
    return ONNX_TRAIN_CONTINUE;
  };
  const auto views = detail::views(options);
  unlocked([&] { return f(&data, views, &observer); });
  return notes;
}

}  // namespace

std::pair<Named, std::vector<std::string>> SessionHandle::evaluate(const Dataset& data, const Options& options) {
  const Use use(this);
  const onnx_train_metric* metrics = nullptr;
  size_t count = 0;
  const auto notes = run_over(data, options, [&](const auto* given, const auto& views, const auto* observer) {
    return onnx_train_evaluate(handle_.get(), given, views.data(), views.size(), observer, &metrics, &count);
  });
  return {metrics_of(metrics, count), notes};
}

Named SessionHandle::metrics(const Named& statistics) {
  const Use use(this);
  std::vector<Buffer> buffers(statistics.size());
  std::vector<Input> inputs;
  for (const auto& [key, value] : statistics) {
    Buffer& buffer = buffers[inputs.size()];
    const auto name = nb::cast<std::string>(key);
    const auto type = buffer.acquire(value.ptr());
    if (!type) throw Error(ONNX_TRAIN_DATA, "'" + name + "' is no dense array of numbers");
    const Py_buffer& view = buffer.view();
    inputs.emplace_back(name, *type, std::vector<int64_t>(view.shape, view.shape + view.ndim), view.buf);
  }
  const auto views = detail::views(inputs);
  const onnx_train_metric* metrics = nullptr;
  size_t count = 0;
  check(onnx_train_session_metrics(handle_.get(), views.data(), views.size(), &metrics, &count));
  return metrics_of(metrics, count);
}

// The numbers, and with them what they say by class.
Named SessionHandle::metrics_of(const onnx_train_metric* metrics, size_t count) {
  nb::dict results;
  for (size_t i = 0; i < count; ++i) results[metrics[i].name] = metrics[i].value;
  const onnx_train_tensor* tables = nullptr;
  size_t num_tables = 0;
  check(onnx_train_session_metric_tables(handle_.get(), &tables, &num_tables));
  for (size_t i = 0; i < num_tables; ++i) results[tables[i].name] = to_python(tables[i]);
  return results;
}

std::pair<Named, std::vector<std::string>> SessionHandle::predict(const Dataset& data, const Options& options) {
  const Use use(this);
  const onnx_train_tensor* outputs = nullptr;
  size_t count = 0;
  const auto notes = run_over(data, options, [&](const auto* given, const auto& views, const auto* observer) {
    return onnx_train_predict(handle_.get(), given, views.data(), views.size(), observer, &outputs, &count);
  });
  nb::dict results;
  for (size_t i = 0; i < count; ++i) results[outputs[i].name] = to_python(outputs[i]);
  return {results, notes};
}

std::vector<std::vector<int64_t>> SessionHandle::generate(const std::vector<std::vector<int64_t>>& prompts,
                                                          const Options& options, const nb::object& on_token) {
  const Use use(this);
  std::vector<const int64_t*> begins;
  std::vector<size_t> lengths;
  for (const auto& prompt : prompts) {
    begins.push_back(prompt.data());
    lengths.push_back(prompt.size());
  }
  struct Written {
    std::vector<std::vector<int64_t>> texts;
    const nb::object& told;
    std::exception_ptr thrown;
  } written{std::vector<std::vector<int64_t>>(prompts.size()), on_token, nullptr};
  const auto drawn = [](void* user, size_t text, int64_t token) {
    Written& to = *static_cast<Written*>(user);
    const nb::gil_scoped_acquire lock;
    try {
      to.texts[text].push_back(token);
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      return static_cast<onnx_train_next>(nb::cast<int>(to.told(text, token)));
    } catch (...) {
      to.thrown = std::current_exception();
      return ONNX_TRAIN_STOP;
    }
  };
  const auto views = detail::views(options);
  unlocked([&] {
    return onnx_train_generate(handle_.get(), begins.data(), lengths.data(), prompts.size(), views.data(), views.size(),
                               drawn, &written);
  });
  if (written.thrown) std::rethrow_exception(written.thrown);
  return std::move(written.texts);
}

NumpyArray SessionHandle::state(nb::handle self, const std::string& name) {
  auto& session = nb::cast<SessionHandle&>(self);
  onnx_train_tensor state;
  check(onnx_train_session_state(session.handle_.get(), name.c_str(), &state));
  char* const address = session.state_addresses_.at(name);
  if (!address) return session.read_state(name);  // throws: it is not here, or not all of it
  return as_array(element_type(state.type, name), state.shape, state.rank, address, self);
}

NumpyArray SessionHandle::read_state(const std::string& name) {
  const Use use(this);
  onnx_train_tensor state;
  check(onnx_train_session_state(handle_.get(), name.c_str(), &state));
  const ElementType& type = element_type(state.type, name);
  const std::vector<int64_t> shape(state.shape, state.shape + state.rank);
  std::vector<char> copy(bytes_of(type, state.shape, state.rank));
  unlocked([&] { return onnx_train_session_get(handle_.get(), name.c_str(), copy.data(), copy.size()); });
  return copied_array(type, shape.data(), static_cast<int32_t>(shape.size()), copy.data());
}

Any SessionHandle::export_state(nb::handle self, const std::string& name) {
  const auto& session = nb::cast<const SessionHandle&>(self);
  onnx_train_tensor state;
  check(onnx_train_session_state(session.handle_.get(), name.c_str(), &state));
  const ElementType& type = element_type(state.type, name);
  const std::vector<size_t> shape(state.shape, state.shape + state.rank);
  char* const address = session.find_address(name);
  if (!address) nb::cast<SessionHandle&>(self).read_state(name);  // throws, likewise
  return nb::cast(
      nb::ndarray<>(address, shape.size(), shape.data(), self, nullptr, {static_cast<uint8_t>(type.code), type.bits, 1},
                    session.device_.type, session.device_.id),
      nb::rv_policy::reference);
}

void SessionHandle::set_state(const std::string& name, nb::handle value) {
  onnx_train_tensor state;
  check(onnx_train_session_state(handle_.get(), name.c_str(), &state));
  Held held;
  const onnx_train_tensor given = acquire(value, state.type, name, &held);
  if (given.rank != state.rank || !std::equal(state.shape, state.shape + state.rank, given.shape))
    throw Error(ONNX_TRAIN_DATA, "state '" + name + "' has another shape than the array");
  const auto address = state_addresses_.find(name);
  if (address != state_addresses_.end() && address->second == given.data) return;  // the view itself
  const size_t bytes = bytes_of(element_type(state.type, name), given.shape, given.rank);
  const Use use(this);
  unlocked([&] {
    return given.memory == ONNX_TRAIN_DEVICE_MEMORY
               ? onnx_train_session_set_from_device(handle_.get(), name.c_str(), given.data, bytes)
               : onnx_train_session_set(handle_.get(), name.c_str(), given.data, bytes);
  });
}

namespace {

// name, role, of, type, shape, default
using PythonPort = std::tuple<nb::str, nb::str, nb::str, nb::str, std::optional<Sizes>, std::optional<AnyArray>>;

nb::typed<nb::list, PythonPort> to_python(const std::vector<Port>& ports) {
  nb::list list;
  for (const Port& port : ports) {
    nb::object shape = nb::none(), value = nb::none();
    if (port.shape) {
      nb::list sizes;
      for (const int64_t size : *port.shape) sizes.append(size);
      shape = nb::tuple(sizes);
    }
    const ElementType& type = element_type(port.type, port.name);
    if (port.data && port.shape)
      value = copied_array(type, port.shape->data(), static_cast<int32_t>(port.shape->size()), port.data);
    list.append(nb::make_tuple(port.name, port.role, port.of, type.numpy, shape, value));
  }
  return list;
}

// bfloat16, which numpy does not have, as float32 with the same values: it is the upper half of one.
nb::object widened(const onnx_train_tensor& tensor) {
  const ElementType& type = element_type(ONNX_TRAIN_FLOAT, tensor.name);
  std::vector<uint32_t> bits(bytes_of(type, tensor.shape, tensor.rank) / sizeof(uint32_t));
  for (size_t i = 0; i < bits.size(); ++i) {
    bits[i] = uint32_t{load<uint16_t>(static_cast<const char*>(tensor.data) + i * sizeof(uint16_t))} << 16;
  }
  return copied_array(type, tensor.shape, tensor.rank, bits.data());
}

// Views of the files' memory, or of what was read of them, which keep the dataset alive.
NumpyArrays arrays_of(nb::handle self) {
  nb::dict arrays;
  for (const onnx_train_tensor& t : nb::cast<const Dataset&>(self).tensors()) {
    arrays[t.name] = t.type == ONNX_TRAIN_BFLOAT16
                         ? widened(t)
                         : as_array<nb::ro>(element_type(t.type, t.name), t.shape, t.rank, t.data, self);
  }
  return arrays;
}

std::unique_ptr<Dataset> open_data(const std::string& path) {
  const nb::gil_scoped_release release;
  return std::make_unique<Dataset>(path);
}

std::unique_ptr<Dataset> open_safetensors(const std::string& path) {
  const nb::gil_scoped_release release;
  return std::make_unique<Dataset>(Dataset::safetensors(path));
}

}  // namespace

void define_session(nb::module_& module) {
  nb::class_<Dataset>(module, "Dataset")
      .def("arrays", [](nb::handle self) { return arrays_of(self); })
      .def("metadata", &Dataset::metadata)
      .def(
          "size",
          [](const Dataset& data, int64_t batch_size) {
            return std::pair(data.samples(), data.batches_of(batch_size));
          },
          nb::arg("batch_size"));
  module.def("open_data", open_data, nb::arg("path"));
  module.def("open_safetensors", open_safetensors, nb::arg("path"));
  nb::class_<SessionHandle>(module, "Session")
      .def(nb::init<const ModelHandle&, const Options&>(), nb::arg("model"), nb::arg("options"))
      .def("entries", &SessionHandle::entries)
      .def("ranks", &SessionHandle::ranks)
      .def("scale", &SessionHandle::scale, nb::arg("input"))
      .def("sample_axis", &SessionHandle::sample_axis, nb::arg("entry"), nb::arg("input"))
      .def("states", &SessionHandle::states)
      .def("state_ports", [](SessionHandle& s) { return to_python(s.state_ports()); })
      .def(
          "inputs", [](SessionHandle& s, const std::string& entry) { return to_python(s.inputs(entry)); },
          nb::arg("entry"))
      .def(
          "outputs", [](SessionHandle& s, const std::string& entry) { return to_python(s.outputs(entry)); },
          nb::arg("entry"))
      .def("run", &SessionHandle::run, nb::arg("entry"), nb::arg("arrays"))
      .def("open_data", &SessionHandle::open_data, nb::arg("path"), nb::arg("entry").none(), nb::arg("options"))
      .def("evaluate", &SessionHandle::evaluate, nb::arg("data"), nb::arg("options"))
      .def("metrics", &SessionHandle::metrics, nb::arg("statistics"))
      .def("predict", &SessionHandle::predict, nb::arg("data"), nb::arg("options"))
      .def("generate_note", &SessionHandle::generate_note)
      .def("generate", &SessionHandle::generate, nb::arg("prompts"), nb::arg("options"), nb::arg("on_token").none())
      .def("fit", &SessionHandle::fit, nb::arg("options"), nb::arg("data"), nb::arg("evaluation").none(),
           nb::arg("on_step"), nb::arg("on_evaluation"), nb::arg("on_note"))
      .def("describe", &SessionHandle::describe, nb::arg("name"))
      .def(
          "state", [](nb::handle self, const std::string& name) { return SessionHandle::state(self, name); },
          nb::arg("name"))
      .def("read_state", &SessionHandle::read_state, nb::arg("name"))
      .def(
          "export_state",
          [](nb::handle self, const std::string& name) { return SessionHandle::export_state(self, name); },
          nb::arg("name"))
      .def("state_address", &SessionHandle::state_address, nb::arg("name"))
      .def("device", &SessionHandle::device)
      .def("set_state", &SessionHandle::set_state, nb::arg("name"), nb::arg("value"))
      .def("swap", &SessionHandle::swap, nb::arg("other"), nb::arg("name"))
      .def("load_adapter", &SessionHandle::load_adapter, nb::arg("name"), nb::arg("folder"))
      .def("set_adapter", &SessionHandle::set_adapter, nb::arg("name"))
      .def("initialize", &SessionHandle::initialize, nb::arg("seed"))
      .def("plan", &SessionHandle::plan, nb::arg("entry"), nb::arg("options"))
      .def("model", &SessionHandle::model);
}

}  // namespace onnx_train::python
