// Sessions of the C interface.
#include <algorithm>
#include <cstring>

#include "kernels/host.h"
#include "library/guard.h"
#include "library/handles.h"
#include "library/options.h"
#include "onnx_passes/derivatives/weights_as_inputs.h"
#include "onnx_passes/import/import.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/text/expression.h"
#include "onnx_passes/training/training_mode.h"
#include "runtime/data/dataset.h"
#include "runtime/distribution/ranks.h"
#include "runtime/models/adapt.h"
#include "runtime/models/example_inputs.h"
#include "runtime/plan/plan_report.h"
#include "runtime/session/session_settings.h"
#include "runtime/training/checkpoint.h"

namespace onnx_train {
namespace {

SessionOptions read_session_options(const onnx_train_option* given, size_t count) {
  SessionSettings settings;
  read_options(given, count, options_of_session(&settings));
  Collectives* const collectives = settings.ranks.empty() ? nullptr : ranks_of_environment();
  SessionOptions options = resolve(settings);
  TopologyOptions& topology = options.topology;
  check_ranks(collectives ? collectives->size() : 1, topology);
  topology.collectives = collectives;
  if (collectives && settings.threads == 0) options.threads = threads_of(*rank_place_of_environment());
  return options;
}

constexpr int32_t kMostAxes = 64;                 // no operator has as many
constexpr int64_t kMostBytes = int64_t{1} << 47;  // of a process's addresses

// A view of the caller's memory.
Tensor view_of(const onnx_train_tensor& tensor) {
  const char* const name = &required(tensor.name, "the name of an input");
  if (tensor.rank < 0 || (tensor.rank > 0 && !tensor.shape)) {
    fail_as(ErrorCode::kData, "input '", name, "' has rank ", tensor.rank, " and no shape");
  }
  if (tensor.rank > kMostAxes) {  // before the shape is read, which may be shorter
    fail_as(ErrorCode::kData, "input '", name, "' has rank ", tensor.rank, "; a tensor has at most ", kMostAxes,
            " axes");
  }
  const Shape shape(tensor.shape, tensor.shape + tensor.rank);
  const auto dtype = static_cast<DType>(tensor.type);
  int64_t elements = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(elements, size, &elements) || elements > kMostBytes) {
      fail_as(ErrorCode::kData, "input '", name, "' has the shape ", to_string(shape), ", which no memory holds");
    }
  }
  if (elements > 0 && !tensor.data) fail_as(ErrorCode::kData, "input '", name, "' has no data");
  switch (tensor.memory) {
    case ONNX_TRAIN_HOST_MEMORY: return Tensor(dtype, shape, tensor.data, nullptr);
    case ONNX_TRAIN_DEVICE_MEMORY: return Tensor::on_device(dtype, shape, tensor.data);
  }
  fail_as(ErrorCode::kUsage, "input '", name, "' has the memory ", static_cast<int>(tensor.memory),
          "; set it to ONNX_TRAIN_HOST_MEMORY or ONNX_TRAIN_DEVICE_MEMORY");
}

// Views of memory of host and device, by name.
TensorMap all_views_of(const onnx_train_tensor* tensors, size_t count) {
  if (count > 0) required(tensors, "inputs");
  TensorMap views;
  for (size_t i = 0; i < count; ++i) {
    Tensor view = view_of(tensors[i]);
    if (!views.emplace(tensors[i].name, std::move(view)).second) {
      fail_as(ErrorCode::kUsage, "input '", tensors[i].name, "' is given twice");
    }
  }
  return views;
}

// A model for a session: a training model, or one to run as it is.
Model model_of(ModelMessage message, const TopologyOptions& ranks) {
  if (!message.proto.training_info().empty()) return training_model(std::move(message), "the model", ranks);
  if (is_finished_pass(message.proto)) return from_message(std::move(message));
  Model model = import_model(std::move(message));
  to_inference(*model.graph);
  return model;
}

// `with_default`: the value whose contents are the port's default if it is an initializer; may be null.
void add_port(const std::string& name, const TensorType& type, const ValueRole* role, const Value* with_default,
              onnx_train_ports* to) {
  const auto& text = to->texts.emplace_back(onnx_train_ports::Text{name, role ? role->name : "", role ? role->of : ""});
  Shape& shape = to->shapes.emplace_back();
  if (type.dims) {
    for (const Dim& dim : *type.dims) shape.push_back(dim.known() ? dim.value() : -1);
  }
  const bool has_default = with_default && with_default->is_initializer();
  const void* data = has_default ? to->defaults.emplace_back(contents_of(*with_default)).data() : nullptr;
  to->ports.push_back({text.name.c_str(), text.role.c_str(), text.of.c_str(), static_cast<onnx_train_type>(type.dtype),
                       type.dims ? static_cast<int32_t>(shape.size()) : -1, shape.data(), data});
}

// The value of this name in an entry point's algorithm or the inference graph.
const Value* declaration(const Model& model, const EntryName& entry, const std::string& name) {
  const EntryPoint* point = model.find_entry_point(entry);
  return point ? point->algorithm->find(name) : model.graph->find(name);
}

onnx_train_ports inputs_of(const Session& session, const EntryName& entry) {
  onnx_train_ports ports;
  for (const InputSpec& spec : entry_inputs(session.model(), entry)) {
    const Value* declared = declaration(session.model(), entry, spec.name);
    add_port(spec.name, spec.type, declared ? declared->role() : nullptr, declared, &ports);
  }
  return ports;
}

onnx_train_ports outputs_of(const Session& session, const EntryName& entry) {
  onnx_train_ports ports;
  const EntryPoint* point = session.model().find_entry_point(entry);
  if (!point && entry != Entry::kPredict) flatten(session.model(), entry);  // says which there are
  for (const Value* output : (point ? *point->algorithm : *session.model().graph).outputs()) {
    if (!point || !output->has_role(roles::kNext))
      add_port(output->name(), output->type(), output->role(), output, &ports);
  }
  return ports;
}

onnx_train_ports states_of(const StateStore& states) {
  onnx_train_ports ports;
  for (size_t i = 0; i < states.names().size(); ++i) {
    const TensorType type{states.dtype(i), Dims(states.shape(i).begin(), states.shape(i).end())};
    add_port(states.names()[i], type, states.role(i), nullptr, &ports);
  }
  return ports;
}

// The ports of `entry`, made when they are first asked for.
template <typename F>
void give_ports(std::map<std::string, onnx_train_ports>* known, const char* entry, const F& make,
                const onnx_train_port** ports, size_t* count) {
  required(ports, "where the descriptions go");
  required(count, "where their number goes");
  const std::string name = &required(entry, "the entry point");
  auto found = known->find(name);
  if (found == known->end()) found = known->emplace(name, make(name)).first;
  *ports = found->second.ports.data();
  *count = found->second.ports.size();
}

// The state's place in the store; throws Error unless it has `bytes` bytes.
size_t state_of_size(const StateStore& states, const char* name, size_t bytes) {
  const size_t i = states.index(&required(name, "the name of the state"));
  const size_t size = static_cast<size_t>(num_elements(states.shape(i))) * size_of(states.dtype(i));
  if (size != bytes) fail_as(ErrorCode::kData, "state '", name, "' has ", size, " bytes, not ", bytes);
  return i;
}

// Sets a state by `write`, from `bytes` bytes of host or device.
onnx_train_status set_state(onnx_train_session* session, const char* name, const void* data, size_t bytes,
                            void (StateStore::*write)(size_t, const void*)) {
  return in_session(session, [&](onnx_train_session& s) {
    StateStore& states = s.session.state();
    const size_t i = state_of_size(states, name, bytes);
    if (bytes > 0 && !data) throw UsageError("the state's data are null");
    (states.*write)(i, data);
  });
}

}  // namespace

onnx_train_tensor described(const std::string& name, DType dtype, const Shape& shape, const void* data) {
  return {name.c_str(),
          static_cast<onnx_train_type>(dtype),
          static_cast<int32_t>(shape.size()),
          shape.data(),
          const_cast<void*>(data),
          ONNX_TRAIN_HOST_MEMORY};
}

std::vector<onnx_train_tensor> described(const TensorMap& tensors) {
  std::vector<onnx_train_tensor> views;
  for (const auto& [name, tensor] : tensors) {
    views.push_back(described(name, tensor.dtype(), tensor.shape(), tensor.data()));
  }
  return views;
}

TensorMap views_of(const onnx_train_tensor* tensors, size_t count) {
  TensorMap views = all_views_of(tensors, count);
  for (const auto& [name, view] : views) {
    if (view.is_on_device()) fail_as(ErrorCode::kData, "'", name, "' is in device memory; copy it to the host first");
  }
  return views;
}

TensorMap inputs_of_run(Session* session, const onnx_train_tensor* inputs, size_t count) {
  TensorMap views = all_views_of(inputs, count);
  if (!session->device().uses_host_memory()) return views;
  for (auto& [name, view] : views) {
    if (session->state().overlaps(view.data(), view.bytes())) view = view.clone();
  }
  return views;
}

}  // namespace onnx_train

using namespace onnx_train;

extern "C" {

onnx_train_status onnx_train_session_create(const onnx_train_model* training, const onnx_train_option* options,
                                            size_t count, onnx_train_session** session) {
  return guarded([&] {
    required(session, "where the session goes");
    const SessionOptions read = read_session_options(options, count);
    *session = new onnx_train_session(model_of(required(training, "the model").message, read.topology), read);
  });
}

void onnx_train_session_free(onnx_train_session* session) { delete session; }

onnx_train_status onnx_train_session_run(onnx_train_session* session, const char* entry,
                                         const onnx_train_tensor* inputs, size_t num_inputs,
                                         const onnx_train_tensor** outputs, size_t* num_outputs) {
  return in_session(session, [&](onnx_train_session& s) {
    const TensorMap given = inputs_of_run(&s.session, inputs, num_inputs);
    const TensorMap& results = s.session.run(&required(entry, "the entry point"), given);
    if (!outputs) return;
    s.outputs = described(results);
    *outputs = s.outputs.data();
    if (num_outputs) *num_outputs = s.outputs.size();
  });
}

onnx_train_status onnx_train_session_scale(onnx_train_session* session, const char* input, double* scale) {
  return in_session(session, [&](onnx_train_session& s) {
    required(scale, "where the scale goes") = Preprocess(s.session.model()).scale(&required(input, "the input"));
  });
}

onnx_train_status onnx_train_session_entries(onnx_train_session* session, const char* const** names, size_t* count) {
  return in_session(session, [&](onnx_train_session& s) {
    required(names, "where the names go") = s.entry_names.data();
    required(count, "where their number goes") = s.entry_names.size();
  });
}

onnx_train_status onnx_train_session_inputs(onnx_train_session* session, const char* entry,
                                            const onnx_train_port** inputs, size_t* count) {
  return in_session(session, [&](onnx_train_session& s) {
    const auto make = [&](const std::string& name) { return inputs_of(s.session, name); };
    give_ports(&s.inputs, entry, make, inputs, count);
  });
}

onnx_train_status onnx_train_session_outputs(onnx_train_session* session, const char* entry,
                                             const onnx_train_port** outputs, size_t* count) {
  return in_session(session, [&](onnx_train_session& s) {
    const auto make = [&](const std::string& name) { return outputs_of(s.session, name); };
    give_ports(&s.outputs_of, entry, make, outputs, count);
  });
}

onnx_train_status onnx_train_session_sample_axis(onnx_train_session* session, const char* entry, const char* input,
                                                 int32_t* axis) {
  return in_session(session, [&](onnx_train_session& s) {
    const std::string of = &required(entry, "the entry point"), name = &required(input, "the input");
    const std::vector<InputSpec> inputs = entry_inputs(s.session.model(), of);
    const auto spec = std::ranges::find(inputs, name, &InputSpec::name);
    if (spec == inputs.end()) fail_as(ErrorCode::kData, "entry point '", of, "' has no input '", name, "'");
    required(axis, "where the axis goes") = static_cast<int32_t>(spec->sample_axis);
  });
}

onnx_train_status onnx_train_session_plan(onnx_train_session* session, const char* entry,
                                          const onnx_train_option* options, size_t count, onnx_train_plan* plan) {
  return in_session(session, [&](onnx_train_session& s) {
    required(plan, "where the plan goes");
    const std::string name = &required(entry, "the entry point");
    int64_t batch = 1;
    std::vector<std::string> sizes;
    read_options(options, count,
                 {{"--batch", {&batch, kCount}, "", "N"}, {"--dim", {&sizes, check_size}, "", "NAME=N"}});
    const std::vector<InputSpec> inputs = entry_inputs(s.session.model(), name);
    const Plan& made = s.session.plan(name, example_shapes(inputs, batch, sizes));
    s.plan_text = plan_table(made) + recomputation_text(made, s.session.memory_budget());
    s.plan_json = plan_json(made, nullptr);
    *plan = {s.plan_text.c_str(), s.plan_json.c_str(), made.arena_bytes(), made.workspace_bytes(),
             made.constant_bytes()};
  });
}

onnx_train_status onnx_train_session_states(onnx_train_session* session, const char* const** names, size_t* count) {
  return in_session(session, [&](onnx_train_session& s) {
    required(names, "where the names go") = s.state_names.data();
    required(count, "where their number goes") = s.state_names.size();
  });
}

onnx_train_status onnx_train_session_state_ports(onnx_train_session* session, const onnx_train_port** states,
                                                 size_t* count) {
  return in_session(session, [&](onnx_train_session& s) {
    if (s.states.ports.empty()) s.states = states_of(s.session.state());
    required(states, "where the descriptions go") = s.states.ports.data();
    required(count, "where their number goes") = s.states.ports.size();
  });
}

onnx_train_status onnx_train_session_state(onnx_train_session* session, const char* name, onnx_train_tensor* state) {
  return in_session(session, [&](onnx_train_session& s) {
    const StateStore& states = s.session.state();
    const size_t i = states.index(&required(name, "the name of the state"));
    required(state, "where the state goes") = described(states.names()[i], states.dtype(i), states.shape(i), nullptr);
  });
}

onnx_train_status onnx_train_session_get(onnx_train_session* session, const char* name, void* data, size_t bytes) {
  return in_session(session, [&](onnx_train_session& s) {
    const size_t i = state_of_size(s.session.state(), name, bytes);
    if (bytes > 0 && !data) throw UsageError("where the state goes is null");
    s.session.state().read(i, data);
  });
}

onnx_train_status onnx_train_session_set(onnx_train_session* session, const char* name, const void* data,
                                         size_t bytes) {
  return set_state(session, name, data, bytes, &StateStore::write);
}

onnx_train_status onnx_train_session_set_from_device(onnx_train_session* session, const char* name, const void* data,
                                                     size_t bytes) {
  return set_state(session, name, data, bytes, &StateStore::write_from_device);
}

onnx_train_status onnx_train_session_ranks(onnx_train_session* session, int32_t* rank, int32_t* ranks) {
  return in_session(session, [&](onnx_train_session& s) {
    if (rank) *rank = s.session.topology().rank();
    if (ranks) *ranks = s.session.topology().ranks();
  });
}

onnx_train_status onnx_train_session_device(onnx_train_session* session, onnx_train_device* device) {
  return in_session(session, [&](onnx_train_session& s) {
    const DlpackDevice number = s.session.device().dlpack();
    required(device, "where the device goes") = {number.type, number.id, s.session.stream().native_handle()};
  });
}

onnx_train_status onnx_train_session_address(onnx_train_session* session, const char* name, void** address,
                                             int32_t* on_host) {
  return in_session(session, [&](onnx_train_session& s) {
    StateStore& states = s.session.state();
    const size_t i = states.index(&required(name, "the name of the state"));
    required(address, "where the address goes") = states.part(i) ? nullptr : states.data(i);
    required(on_host, "where on_host goes") = s.session.device().uses_host_memory() ? 1 : 0;
  });
}

onnx_train_status onnx_train_session_swap(onnx_train_session* session, onnx_train_session* other, const char* name) {
  if (session && session == other) return ONNX_TRAIN_OK;
  return in_session(session, [&](onnx_train_session& a) {
    const onnx_train_status status = in_session(other, [&](onnx_train_session& b) {
      a.session.state().exchange(&required(name, "the name of the state"), &b.session.state());
    });
    if (status != ONNX_TRAIN_OK) fail_as(ErrorCode::kUsage, onnx_train_last_error());
  });
}

onnx_train_status onnx_train_session_load_adapter(onnx_train_session* session, const char* name, const char* folder) {
  return in_session(session, [&](onnx_train_session& s) {
    TensorMap values = adapter_values(s.session.model(), &required(folder, "the folder"));
    for (const auto& [tensor, value] : values) s.session.state().index(tensor);  // throws for what is no state
    s.adapters[&required(name, "the name of the adapter")] = std::move(values);
  });
}

onnx_train_status onnx_train_session_set_adapter(onnx_train_session* session, const char* name) {
  return in_session(session, [&](onnx_train_session& s) {
    const auto found = s.adapters.find(&required(name, "the name of the adapter"));
    if (found == s.adapters.end()) {
      std::vector<std::string> names;
      for (const auto& [loaded, values] : s.adapters) names.push_back(loaded);
      throw UsageError(concat("no adapter '", name, "' has been loaded into the session", did_you_mean(name, names)));
    }
    for (const auto& [tensor, value] : found->second) s.session.state().set(tensor, value);
  });
}

onnx_train_status onnx_train_session_initialize(onnx_train_session* session, uint64_t seed) {
  return in_session(session, [&](onnx_train_session& s) { s.session.initialize(seed); });
}

onnx_train_status onnx_train_session_model(onnx_train_session* session, onnx_train_model** training) {
  return in_session(session, [&](onnx_train_session& s) {
    onnx_train_model*& to = required(training, "where the model goes");
    to = new onnx_train_model(to_message(s.session.snapshot()));
  });
}
}
