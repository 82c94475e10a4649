#include "addon.h"

namespace onnx_train_node {
namespace {

// What belongs to one environment of JavaScript.
struct Instance {
  napi_ref make_error = nullptr;
};

Instance& instance(napi_env env) {
  void* data = nullptr;
  check(env, napi_get_instance_data(env, &data));
  return *static_cast<Instance*>(data);
}

// The function (status, text, code) => Error.
napi_value set_error(napi_env env, const Arguments& given) {
  check(env, napi_create_reference(env, given[0], 1, &instance(env).make_error));
  return nullptr;
}

// Empties what wrap() made: the library's handle is freed with the last call and array that use it.
napi_value close(napi_env env, const Arguments& given) {
  void* box = nullptr;
  check(env, napi_get_value_external(env, given[0], &box));
  static_cast<HandlePtr*>(box)->reset();
  return nullptr;
}

napi_value detach(napi_env env, const Arguments& given) {
  bool detached = false;
  check(env, napi_is_detached_arraybuffer(env, given[0], &detached));
  if (!detached) check(env, napi_detach_arraybuffer(env, given[0]));
  return nullptr;
}

// A call of the library on a worker's thread, and the promise of its result.
struct Task {
  std::function<onnx_train_status()> run;
  std::function<napi_value(napi_env)> result;
  napi_async_work work = nullptr;
  napi_deferred deferred = nullptr;
  napi_ref kept = nullptr;
  onnx_train_status status = ONNX_TRAIN_OK;
  std::string text, code;
};

void execute(napi_env, void* data) {
  Task& task = *static_cast<Task*>(data);
  task.status = task.run();
  if (task.status == ONNX_TRAIN_OK) return;
  task.text = onnx_train_last_error();  // of this thread
  task.code = onnx_train_last_error_code();
}

void complete(napi_env env, napi_status, void* data) {
  const std::unique_ptr<Task> task(static_cast<Task*>(data));
  try {
    if (task->status == ONNX_TRAIN_OK) {
      check(env, napi_resolve_deferred(env, task->deferred, task->result(env)));
    } else {
      check(env, napi_reject_deferred(env, task->deferred, error_of(env, task->status, task->text, task->code)));
    }
  } catch (const Pending&) {
    napi_value error = nullptr;
    napi_get_and_clear_last_exception(env, &error);
    napi_reject_deferred(env, task->deferred, error);
  }
  if (task->kept) napi_delete_reference(env, task->kept);
  napi_delete_async_work(env, task->work);
}

napi_value export_all(napi_env env, napi_value exports) {
  auto* const made = new Instance;
  napi_set_instance_data(
      env, made, [](napi_env, void* data, void*) { delete static_cast<Instance*>(data); }, nullptr);
  std::vector<Export> all = {{"setError", entry<set_error>}, {"close", entry<close>}, {"detach", entry<detach>}};
  for (const auto& part : {model_exports(), session_exports(), training_exports()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  for (const Export& item : all) {
    napi_value function = nullptr;
    napi_create_function(env, item.name, NAPI_AUTO_LENGTH, item.function, nullptr, &function);
    napi_set_named_property(env, exports, item.name, function);
  }
  return exports;
}

}  // namespace

void check(napi_env env, napi_status status) {
  if (status == napi_ok) return;
  const napi_extended_error_info* info = nullptr;
  napi_get_last_error_info(env, &info);  // of the last call, whichever it is
  const std::string text = info && info->error_message ? info->error_message : "Node-API failed";
  bool pending = false;
  napi_is_exception_pending(env, &pending);
  if (!pending) napi_throw_type_error(env, nullptr, text.c_str());
  throw Pending();
}

void raise_type_error(napi_env env, const std::string& text) {
  napi_throw_type_error(env, nullptr, text.c_str());
  throw Pending();
}

void raise_out_of_memory(napi_env env) { napi_throw_range_error(env, nullptr, "not enough memory"); }

napi_value error_of(napi_env env, onnx_train_status status, const std::string& text, const std::string& code) {
  napi_value make = nullptr, error = nullptr;
  check(env, napi_get_reference_value(env, instance(env).make_error, &make));
  napi_value arguments[] = {to_js(env, static_cast<double>(status)), to_js(env, text.c_str()),
                            to_js(env, code.c_str())};
  check(env, napi_call_function(env, undefined(env), make, 3, arguments, &error));
  return error;
}

void check(napi_env env, onnx_train_status status) {
  if (status == ONNX_TRAIN_OK) return;
  const std::string text = onnx_train_last_error(), code = onnx_train_last_error_code();
  napi_throw(env, error_of(env, status, text, code));
  throw Pending();
}

napi_value call(napi_env env, bool async, napi_value kept, std::function<onnx_train_status()> run,
                std::function<napi_value(napi_env)> result) {
  if (!async) {
    check(env, run());
    return result(env);
  }
  auto task = std::make_unique<Task>();
  task->run = std::move(run);
  task->result = std::move(result);
  napi_value promise = nullptr;
  check(env, napi_create_promise(env, &task->deferred, &promise));
  if (kept) check(env, napi_create_reference(env, kept, 1, &task->kept));
  napi_value name = to_js(env, "onnx-train");
  check(env, napi_create_async_work(env, nullptr, name, execute, complete, task.get(), &task->work));
  check(env, napi_queue_async_work(env, task->work));
  task.release();  // complete() frees it
  return promise;
}

napi_value wrap(napi_env env, HandlePtr handle) {
  auto box = std::make_unique<HandlePtr>(std::move(handle));
  napi_value external = nullptr;
  const auto finalize = [](napi_env, void* data, void*) { delete static_cast<HandlePtr*>(data); };
  check(env, napi_create_external(env, box.get(), finalize, nullptr, &external));
  box.release();
  return external;
}

napi_value wrap(napi_env env, onnx_train_model* model) {
  const auto free = [](void* pointer) { onnx_train_model_free(static_cast<onnx_train_model*>(pointer)); };
  return wrap(env, std::make_shared<Handle>(model, free));
}

napi_value wrap(napi_env env, onnx_train_session* session) {
  const auto free = [](void* pointer) { onnx_train_session_free(static_cast<onnx_train_session*>(pointer)); };
  return wrap(env, std::make_shared<Handle>(session, free));
}

napi_value wrap(napi_env env, onnx_train_dataset* dataset) {
  const auto free = [](void* pointer) { onnx_train_dataset_free(static_cast<onnx_train_dataset*>(pointer)); };
  return wrap(env, std::make_shared<Handle>(dataset, free));
}

NAPI_MODULE_INIT() { return export_all(env, exports); }

}  // namespace onnx_train_node
