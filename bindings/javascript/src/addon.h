// Conversions between JavaScript and the C interface, and calls of the library on the thread of JavaScript or a worker.
//
// Only index.js calls the addon: it checks types, and has the classes that programs see. All functions here belong to
// JavaScript's thread, unless they say that a worker calls them. What fails sets a JavaScript exception and throws
// Pending.
#pragma once

#define NAPI_VERSION 8
#include <node_api.h>
#include <onnx_train/onnx_train.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace onnx_train_node {

// Thrown when a JavaScript exception is pending.
struct Pending {};

void check(napi_env env, napi_status status);
[[noreturn]] void raise_type_error(napi_env env, const std::string& text);

// A handle of the library, freed with the last reference: of its object, a call that works with it, an array over its
// memory.
struct Handle {
  Handle(void* pointer_of, void (*free_of)(void*)) : pointer(pointer_of), free(free_of) {}
  Handle(const Handle&) = delete;
  ~Handle() { free(pointer); }

  void* pointer;
  void (*free)(void*);
};
using HandlePtr = std::shared_ptr<Handle>;

inline onnx_train_model* model_of(const HandlePtr& handle) {
  return handle ? static_cast<onnx_train_model*>(handle->pointer) : nullptr;
}
inline onnx_train_session* session_of(const HandlePtr& handle) {
  return handle ? static_cast<onnx_train_session*>(handle->pointer) : nullptr;
}
inline onnx_train_dataset* dataset_of(const HandlePtr& handle) {
  return handle ? static_cast<onnx_train_dataset*>(handle->pointer) : nullptr;
}

// An object that JavaScript holds, and close() empties.
napi_value wrap(napi_env env, onnx_train_model* model);
napi_value wrap(napi_env env, onnx_train_session* session);
napi_value wrap(napi_env env, onnx_train_dataset* dataset);
napi_value wrap(napi_env env, HandlePtr handle);

// Options from [[name, value], ...].
class OptionList {
 public:
  OptionList(napi_env env, napi_value pairs);
  OptionList(const OptionList&) = delete;
  const onnx_train_option* data() const { return views_.data(); }
  size_t size() const { return views_.size(); }

 private:
  std::vector<std::string> texts_;
  std::vector<onnx_train_option> views_;
};

// Tensors from [[name, type, shape, typed array], ...], whose memory the caller keeps reachable.
class TensorList {
 public:
  TensorList(napi_env env, napi_value tensors);
  TensorList(const TensorList&) = delete;
  const onnx_train_tensor* data() const { return views_.data(); }
  size_t size() const { return views_.size(); }

 private:
  std::vector<std::string> names_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<onnx_train_tensor> views_;
};

// The arguments of a call, of which there are at most eight; those that are left out are undefined.
class Arguments {
 public:
  Arguments(napi_env env, napi_callback_info info);
  napi_value operator[](size_t i) const { return values_[i]; }
  bool flag(size_t i) const;
  int64_t number(size_t i) const;
  bool is_given(size_t i) const;  // neither undefined nor null
  std::string text(size_t i) const;
  HandlePtr handle(size_t i) const;  // throws for one that is closed; null where none is given
  std::shared_ptr<OptionList> options(size_t i) const { return std::make_shared<OptionList>(env_, values_[i]); }
  std::shared_ptr<TensorList> tensors(size_t i) const { return std::make_shared<TensorList>(env_, values_[i]); }

 private:
  napi_env env_;
  napi_value values_[8];
};

// Runs run() here, or on a worker's thread if `async`; then result(env) gives what the call, or its promise, gives.
// `kept` is reachable until then; may be null.
napi_value call(napi_env env, bool async, napi_value kept, std::function<onnx_train_status()> run,
                std::function<napi_value(napi_env)> result);
// The same for a call that fails at once or succeeds at once.
void check(napi_env env, onnx_train_status status);
// An error of the library as JavaScript's class has it.
napi_value error_of(napi_env env, onnx_train_status status, const std::string& text, const std::string& code);

std::string to_text(napi_env env, napi_value value);  // TypeError for a zero byte, at which a C string would end
napi_value to_js(napi_env env, const char* text);     // null for null
napi_value to_js(napi_env env, double number);
napi_value to_js(napi_env env, const std::vector<const char*>& texts);
napi_value undefined(napi_env env);
napi_value new_array(napi_env env, size_t count);
void put_at(napi_env env, napi_value array, size_t i, napi_value value);
void put(napi_env env, napi_value object, const char* name, napi_value value);
napi_value numbers(napi_env env, const int64_t* values, size_t count);

size_t bytes_of(const onnx_train_tensor& tensor);
// [{name, type, shape, buffer}]: buffers over the library's memory, which keep `owner`, or copies where that is null.
napi_value to_js(napi_env env, const onnx_train_tensor* tensors, size_t count, const HandlePtr& owner);
napi_value buffer_over(napi_env env, void* data, size_t bytes, const HandlePtr& owner);
napi_value to_js(napi_env env, const onnx_train_port* ports, size_t count);
napi_value to_js(napi_env env, const onnx_train_metric* metrics, size_t count);

// What an addon exports, by file.
using Function = napi_value (*)(napi_env, const Arguments&);
struct Export {
  const char* name;
  napi_callback function;
};
std::vector<Export> model_exports();
std::vector<Export> session_exports();
std::vector<Export> training_exports();

void raise_out_of_memory(napi_env env);

template <Function f>
napi_value entry(napi_env env, napi_callback_info info) {
  try {
    return f(env, Arguments(env, info));
  } catch (const Pending&) {
  } catch (const std::bad_alloc&) {
    raise_out_of_memory(env);
  }
  return nullptr;
}

}  // namespace onnx_train_node
