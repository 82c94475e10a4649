// Sessions and data files. The first argument of a long call says whether it gives a promise.
#include "addon.h"

namespace onnx_train_node {
namespace {

napi_value nothing(napi_env env) { return undefined(env); }

napi_value texts(napi_env env, const char* const* names, size_t count) {
  return to_js(env, std::vector<const char*>(names, names + count));
}

napi_value session_create(napi_env env, const Arguments& given) {
  const HandlePtr training = given.handle(1);
  const auto list = given.options(2);
  const auto session = std::make_shared<onnx_train_session*>(nullptr);
  return call(
      env, given.flag(0), nullptr,
      [=] { return onnx_train_session_create(model_of(training), list->data(), list->size(), session.get()); },
      [=](napi_env e) { return wrap(e, *session); });
}

// Outputs of a call in the session's memory.
struct Outputs {
  const onnx_train_tensor* tensors = nullptr;
  size_t count = 0;
};

napi_value session_run(napi_env env, const Arguments& given) {
  const HandlePtr session = given.handle(1);
  const std::string name = given.text(2);
  const auto inputs = given.tensors(3);
  const auto outputs = std::make_shared<Outputs>();
  return call(
      env, given.flag(0), given[3],
      [=] {
        return onnx_train_session_run(session_of(session), name.c_str(), inputs->data(), inputs->size(),
                                      &outputs->tensors, &outputs->count);
      },
      [=](napi_env e) { return to_js(e, outputs->tensors, outputs->count, session); });
}

napi_value session_scale(napi_env env, const Arguments& given) {
  double scale = 1;
  check(env, onnx_train_session_scale(session_of(given.handle(0)), given.text(1).c_str(), &scale));
  return to_js(env, scale);
}

napi_value session_sample_axis(napi_env env, const Arguments& given) {
  int32_t axis = 0;
  check(env, onnx_train_session_sample_axis(session_of(given.handle(0)), given.text(1).c_str(), given.text(2).c_str(),
                                            &axis));
  return to_js(env, static_cast<double>(axis));
}

napi_value session_entries(napi_env env, const Arguments& given) {
  const char* const* names = nullptr;
  size_t count = 0;
  check(env, onnx_train_session_entries(session_of(given.handle(0)), &names, &count));
  return texts(env, names, count);
}

napi_value session_inputs(napi_env env, const Arguments& given) {
  const onnx_train_port* ports = nullptr;
  size_t count = 0;
  check(env, onnx_train_session_inputs(session_of(given.handle(0)), given.text(1).c_str(), &ports, &count));
  return to_js(env, ports, count);
}

napi_value session_outputs(napi_env env, const Arguments& given) {
  const onnx_train_port* ports = nullptr;
  size_t count = 0;
  check(env, onnx_train_session_outputs(session_of(given.handle(0)), given.text(1).c_str(), &ports, &count));
  return to_js(env, ports, count);
}

napi_value session_state_ports(napi_env env, const Arguments& given) {
  const onnx_train_port* ports = nullptr;
  size_t count = 0;
  check(env, onnx_train_session_state_ports(session_of(given.handle(0)), &ports, &count));
  return to_js(env, ports, count);
}

napi_value session_states(napi_env env, const Arguments& given) {
  const char* const* names = nullptr;
  size_t count = 0;
  check(env, onnx_train_session_states(session_of(given.handle(0)), &names, &count));
  return texts(env, names, count);
}

napi_value session_plan(napi_env env, const Arguments& given) {
  const auto list = given.options(2);
  onnx_train_plan plan{};
  check(env,
        onnx_train_session_plan(session_of(given.handle(0)), given.text(1).c_str(), list->data(), list->size(), &plan));
  napi_value object = nullptr;
  check(env, napi_create_object(env, &object));
  put(env, object, "text", to_js(env, plan.text));
  put(env, object, "json", to_js(env, plan.json));
  put(env, object, "arenaBytes", to_js(env, static_cast<double>(plan.arena_bytes)));
  put(env, object, "workspaceBytes", to_js(env, static_cast<double>(plan.workspace_bytes)));
  put(env, object, "constantBytes", to_js(env, static_cast<double>(plan.constant_bytes)));
  return object;
}

// A state as tensors have it; with a copy of its values, or over them.
napi_value session_get(napi_env env, const Arguments& given) {
  const HandlePtr session = given.handle(0);
  const std::string name = given.text(1);
  onnx_train_tensor state{};
  check(env, onnx_train_session_state(session_of(session), name.c_str(), &state));
  std::vector<char> copy(bytes_of(state));
  const std::vector<int64_t> shape(state.shape, state.shape + state.rank);
  state.shape = shape.data();  // which the next call may overwrite
  state.name = name.c_str();
  check(env, onnx_train_session_get(session_of(session), name.c_str(), copy.data(), copy.size()));
  state.data = copy.data();
  return to_js(env, &state, 1, nullptr);
}

napi_value session_data(napi_env env, const Arguments& given) {
  const HandlePtr session = given.handle(0);
  const std::string name = given.text(1);
  onnx_train_tensor state{};
  check(env, onnx_train_session_state(session_of(session), name.c_str(), &state));
  int32_t on_host = 0;
  void* address = nullptr;
  check(env, onnx_train_session_address(session_of(session), name.c_str(), &address, &on_host));
  if (!on_host || !address) raise_type_error(env, "state '" + name + "' is not in the host's memory: get() copies it");
  state.data = address;
  return to_js(env, &state, 1, session);
}

napi_value session_set(napi_env env, const Arguments& given) {
  const HandlePtr session = given.handle(0);
  const auto tensors = given.tensors(1);
  const onnx_train_tensor& value = tensors->data()[0];
  onnx_train_tensor state{};
  check(env, onnx_train_session_state(session_of(session), value.name, &state));
  if (state.type != value.type)
    raise_type_error(env, "state '" + std::string(value.name) + "' has another element type");
  check(env, onnx_train_session_set(session_of(session), value.name, value.data, bytes_of(value)));
  return nullptr;
}

napi_value session_ranks(napi_env env, const Arguments& given) {
  int32_t rank = 0, ranks = 1;
  check(env, onnx_train_session_ranks(session_of(given.handle(0)), &rank, &ranks));
  const int64_t values[] = {rank, ranks};
  return numbers(env, values, 2);
}

napi_value session_device(napi_env env, const Arguments& given) {
  onnx_train_device device{};
  check(env, onnx_train_session_device(session_of(given.handle(0)), &device));
  napi_value object = nullptr, stream = nullptr;
  check(env, napi_create_object(env, &object));
  check(env, napi_create_bigint_uint64(env, reinterpret_cast<uintptr_t>(device.stream), &stream));
  put(env, object, "type", to_js(env, static_cast<double>(device.type)));
  put(env, object, "id", to_js(env, static_cast<double>(device.id)));
  put(env, object, "stream", stream);
  return object;
}

napi_value session_swap(napi_env env, const Arguments& given) {
  check(env, onnx_train_session_swap(session_of(given.handle(0)), session_of(given.handle(1)), given.text(2).c_str()));
  return nullptr;
}

napi_value session_load_adapter(napi_env env, const Arguments& given) {
  const HandlePtr session = given.handle(1);
  const std::string name = given.text(2), folder = given.text(3);
  return call(
      env, given.flag(0), nullptr,
      [=] { return onnx_train_session_load_adapter(session_of(session), name.c_str(), folder.c_str()); }, nothing);
}

napi_value session_set_adapter(napi_env env, const Arguments& given) {
  check(env, onnx_train_session_set_adapter(session_of(given.handle(0)), given.text(1).c_str()));
  return nullptr;
}

napi_value session_initialize(napi_env env, const Arguments& given) {
  const HandlePtr session = given.handle(1);
  const auto seed = static_cast<uint64_t>(given.number(2));
  return call(
      env, given.flag(0), nullptr, [=] { return onnx_train_session_initialize(session_of(session), seed); }, nothing);
}

napi_value session_model(napi_env env, const Arguments& given) {
  const HandlePtr session = given.handle(1);
  const auto model = std::make_shared<onnx_train_model*>(nullptr);
  return call(
      env, given.flag(0), nullptr, [=] { return onnx_train_session_model(session_of(session), model.get()); },
      [=](napi_env e) { return wrap(e, *model); });
}

napi_value session_metrics(napi_env env, const Arguments& given) {
  const HandlePtr session = given.handle(0);
  const auto statistics = given.tensors(1);
  const onnx_train_metric* metrics = nullptr;
  size_t count = 0;
  check(env, onnx_train_session_metrics(session_of(session), statistics->data(), statistics->size(), &metrics, &count));
  return to_js(env, metrics, count);
}

napi_value session_metric_tables(napi_env env, const Arguments& given) {
  const HandlePtr session = given.handle(0);
  Outputs tables;
  check(env, onnx_train_session_metric_tables(session_of(session), &tables.tensors, &tables.count));
  return to_js(env, tables.tensors, tables.count, session);
}

napi_value generate_note(napi_env env, const Arguments& given) {
  return to_js(env, onnx_train_generate_note(session_of(given.handle(0))));
}

napi_value dataset_open(napi_env env, const Arguments& given) {
  const std::string path = given.text(1), name = given.is_given(3) ? given.text(3) : "";
  const HandlePtr session = given.handle(2);
  const bool has_name = given.is_given(3);
  const auto list = given.options(4);
  const auto dataset = std::make_shared<onnx_train_dataset*>(nullptr);
  return call(
      env, given.flag(0), nullptr,
      [=] {
        return onnx_train_dataset_open_with(path.c_str(), session_of(session), has_name ? name.c_str() : nullptr,
                                            list->data(), list->size(), dataset.get());
      },
      [=](napi_env e) { return wrap(e, *dataset); });
}

// Copies: files are mapped for reading only, and an array of JavaScript can be written to.
napi_value dataset_arrays(napi_env env, const Arguments& given) {
  const HandlePtr dataset = given.handle(0);
  Outputs arrays;
  check(env, onnx_train_dataset_arrays(dataset_of(dataset), &arrays.tensors, &arrays.count));
  return to_js(env, arrays.tensors, arrays.count, nullptr);
}

napi_value dataset_size(napi_env env, const Arguments& given) {
  int64_t sizes[2] = {0, 0};
  check(env, onnx_train_dataset_size(dataset_of(given.handle(0)), given.number(1), &sizes[0], &sizes[1]));
  return numbers(env, sizes, 2);
}

napi_value dataset_metadata(napi_env env, const Arguments& given) {
  const HandlePtr dataset = given.handle(0);
  napi_value object = nullptr;
  check(env, napi_create_object(env, &object));
  const char* key = nullptr;
  for (size_t i = 0; const char* value = onnx_train_dataset_metadata(dataset_of(dataset), i, &key); ++i) {
    put(env, object, key, to_js(env, value));
  }
  return object;
}

napi_value safetensors_open(napi_env env, const Arguments& given) {
  const std::string path = given.text(1);
  const auto dataset = std::make_shared<onnx_train_dataset*>(nullptr);
  return call(
      env, given.flag(0), nullptr, [=] { return onnx_train_safetensors_open(path.c_str(), dataset.get()); },
      [=](napi_env e) { return wrap(e, *dataset); });
}

napi_value safetensors_save(napi_env env, const Arguments& given) {
  const std::string path = given.text(1);
  const auto tensors = given.tensors(2);
  const auto metadata = given.options(3);
  return call(
      env, given.flag(0), given[2],
      [=] {
        return onnx_train_safetensors_save(path.c_str(), tensors->data(), tensors->size(), metadata->data(),
                                           metadata->size());
      },
      nothing);
}

}  // namespace

std::vector<Export> session_exports() {
  return {{"sessionCreate", entry<session_create>},
          {"sessionRun", entry<session_run>},
          {"sessionScale", entry<session_scale>},
          {"sessionSampleAxis", entry<session_sample_axis>},
          {"sessionEntries", entry<session_entries>},
          {"sessionInputs", entry<session_inputs>},
          {"sessionOutputs", entry<session_outputs>},
          {"sessionStatePorts", entry<session_state_ports>},
          {"sessionStates", entry<session_states>},
          {"sessionPlan", entry<session_plan>},
          {"sessionGet", entry<session_get>},
          {"sessionData", entry<session_data>},
          {"sessionSet", entry<session_set>},
          {"sessionRanks", entry<session_ranks>},
          {"sessionDevice", entry<session_device>},
          {"sessionSwap", entry<session_swap>},
          {"sessionLoadAdapter", entry<session_load_adapter>},
          {"sessionSetAdapter", entry<session_set_adapter>},
          {"sessionInitialize", entry<session_initialize>},
          {"sessionModel", entry<session_model>},
          {"sessionMetrics", entry<session_metrics>},
          {"sessionMetricTables", entry<session_metric_tables>},
          {"generateNote", entry<generate_note>},
          {"datasetOpen", entry<dataset_open>},
          {"datasetArrays", entry<dataset_arrays>},
          {"datasetSize", entry<dataset_size>},
          {"datasetMetadata", entry<dataset_metadata>},
          {"safetensorsOpen", entry<safetensors_open>},
          {"safetensorsSave", entry<safetensors_save>}};
}

}  // namespace onnx_train_node
