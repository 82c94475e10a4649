// Values of JavaScript to and from those of C.
#include <cstring>

#include "addon.h"

namespace onnx_train_node {
namespace {

uint32_t length_of(napi_env env, napi_value array) {
  uint32_t length = 0;
  check(env, napi_get_array_length(env, array, &length));
  return length;
}

napi_value element(napi_env env, napi_value array, uint32_t i) {
  napi_value value = nullptr;
  check(env, napi_get_element(env, array, i, &value));
  return value;
}

int64_t to_number(napi_env env, napi_value value) {
  int64_t number = 0;
  check(env, napi_get_value_int64(env, value, &number));
  return number;
}

size_t bytes_of(onnx_train_type type) {
  switch (type) {
    case ONNX_TRAIN_UINT8:
    case ONNX_TRAIN_INT8:
    case ONNX_TRAIN_BOOL: return 1;
    case ONNX_TRAIN_UINT16:
    case ONNX_TRAIN_INT16:
    case ONNX_TRAIN_FLOAT16:
    case ONNX_TRAIN_BFLOAT16: return 2;
    case ONNX_TRAIN_FLOAT:
    case ONNX_TRAIN_INT32:
    case ONNX_TRAIN_UINT32: return 4;
    default: return 8;
  }
}

// The memory of a typed array.
void* memory_of(napi_env env, napi_value array, size_t* bytes) {
  napi_typedarray_type type = napi_int8_array;
  size_t length = 0, offset = 0;
  void* data = nullptr;
  napi_value buffer = nullptr;
  check(env, napi_get_typedarray_info(env, array, &type, &length, &data, &buffer, &offset));
  static constexpr size_t kSizes[] = {1, 1, 1, 2, 2, 4, 4, 4, 8, 8, 8};  // in the order of napi_typedarray_type
  *bytes = length * kSizes[type];
  return data;
}

}  // namespace

Arguments::Arguments(napi_env env, napi_callback_info info) : env_(env) {
  size_t count = std::size(values_);  // those that are left out become undefined
  check(env, napi_get_cb_info(env, info, &count, values_, nullptr, nullptr));
}

bool Arguments::flag(size_t i) const {
  bool value = false;
  check(env_, napi_get_value_bool(env_, values_[i], &value));
  return value;
}

int64_t Arguments::number(size_t i) const { return to_number(env_, values_[i]); }

bool Arguments::is_given(size_t i) const {
  napi_valuetype type = napi_undefined;
  check(env_, napi_typeof(env_, values_[i], &type));
  return type != napi_undefined && type != napi_null;
}

std::string Arguments::text(size_t i) const { return to_text(env_, values_[i]); }

HandlePtr Arguments::handle(size_t i) const {
  if (!is_given(i)) return nullptr;
  void* box = nullptr;
  check(env_, napi_get_value_external(env_, values_[i], &box));
  HandlePtr handle = *static_cast<HandlePtr*>(box);
  if (!handle) raise_type_error(env_, "the model, session or dataset is closed");
  return handle;
}

OptionList::OptionList(napi_env env, napi_value pairs) {
  const uint32_t count = length_of(env, pairs);
  texts_.reserve(2 * static_cast<size_t>(count));  // views refer to them
  for (uint32_t i = 0; i < count; ++i) {
    const napi_value pair = element(env, pairs, i);
    for (const uint32_t part : {0u, 1u}) texts_.push_back(to_text(env, element(env, pair, part)));
    views_.push_back({texts_[2 * i].c_str(), texts_[2 * i + 1].c_str()});
  }
}

TensorList::TensorList(napi_env env, napi_value tensors) {
  const uint32_t count = length_of(env, tensors);
  names_.reserve(count);
  shapes_.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    const napi_value parts = element(env, tensors, i);
    names_.push_back(to_text(env, element(env, parts, 0)));
    const auto type = static_cast<onnx_train_type>(to_number(env, element(env, parts, 1)));
    const napi_value sizes = element(env, parts, 2);
    std::vector<int64_t>& shape = shapes_.emplace_back();
    double expected = static_cast<double>(bytes_of(type));
    for (uint32_t d = 0; d < length_of(env, sizes); ++d) {
      shape.push_back(to_number(env, element(env, sizes, d)));
      if (shape.back() < 0) raise_type_error(env, "the shape of '" + names_.back() + "' has a size below 0");
      expected *= static_cast<double>(shape.back());  // a product of int64_t may overflow
    }
    size_t bytes = 0;
    static char no_elements = 0;
    void* const data = memory_of(env, element(env, parts, 3), &bytes);
    if (static_cast<double>(bytes) != expected) {
      std::string text;
      for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
      raise_type_error(env, "'" + names_.back() + "' has the shape [" + text + "] and " +
                                std::to_string(bytes / bytes_of(type)) + " elements");
    }
    views_.push_back({names_.back().c_str(), type, static_cast<int32_t>(shape.size()), shape.data(),
                      bytes ? data : &no_elements, ONNX_TRAIN_HOST_MEMORY});
  }
}

std::string to_text(napi_env env, napi_value value) {
  size_t length = 0;
  if (napi_get_value_string_utf8(env, value, nullptr, 0, &length) != napi_ok)
    raise_type_error(env, "a text is expected");
  std::string text(length, '\0');
  check(env, napi_get_value_string_utf8(env, value, text.data(), length + 1, &length));
  if (text.find('\0') != text.npos) raise_type_error(env, "a text has the character 0");
  return text;
}

napi_value undefined(napi_env env) {
  napi_value value = nullptr;
  check(env, napi_get_undefined(env, &value));
  return value;
}

napi_value to_js(napi_env env, const char* text) {
  napi_value value = nullptr;
  check(env, text ? napi_create_string_utf8(env, text, NAPI_AUTO_LENGTH, &value) : napi_get_null(env, &value));
  return value;
}

napi_value to_js(napi_env env, double number) {
  napi_value value = nullptr;
  check(env, napi_create_double(env, number, &value));
  return value;
}

napi_value new_array(napi_env env, size_t count) {
  napi_value array = nullptr;
  check(env, napi_create_array_with_length(env, count, &array));
  return array;
}

void put_at(napi_env env, napi_value array, size_t i, napi_value value) {
  check(env, napi_set_element(env, array, static_cast<uint32_t>(i), value));
}

void put(napi_env env, napi_value object, const char* name, napi_value value) {
  check(env, napi_set_named_property(env, object, name, value));
}

napi_value to_js(napi_env env, const std::vector<const char*>& texts) {
  const napi_value array = new_array(env, texts.size());
  for (size_t i = 0; i < texts.size(); ++i) put_at(env, array, i, to_js(env, texts[i]));
  return array;
}

napi_value numbers(napi_env env, const int64_t* values, size_t count) {
  const napi_value array = new_array(env, count);
  for (size_t i = 0; i < count; ++i) put_at(env, array, i, to_js(env, static_cast<double>(values[i])));
  return array;
}

size_t bytes_of(const onnx_train_tensor& tensor) {
  size_t bytes = bytes_of(tensor.type);
  for (int32_t i = 0; i < tensor.rank; ++i) bytes *= static_cast<size_t>(tensor.shape[i]);
  return bytes;
}

napi_value buffer_over(napi_env env, void* data, size_t bytes, const HandlePtr& owner) {
  napi_value buffer = nullptr;
  if (!owner || bytes == 0) {
    void* copy = nullptr;
    check(env, napi_create_arraybuffer(env, bytes, &copy, &buffer));
    if (bytes) std::memcpy(copy, data, bytes);
    return buffer;
  }
  auto kept = std::make_unique<HandlePtr>(owner);
  const auto finalize = [](napi_env, void*, void* hint) { delete static_cast<HandlePtr*>(hint); };
  check(env, napi_create_external_arraybuffer(env, data, bytes, finalize, kept.get(), &buffer));
  kept.release();
  return buffer;
}

napi_value to_js(napi_env env, const onnx_train_tensor* tensors, size_t count, const HandlePtr& owner) {
  const napi_value array = new_array(env, count);
  for (size_t i = 0; i < count; ++i) {
    const onnx_train_tensor& tensor = tensors[i];
    napi_value object = nullptr;
    check(env, napi_create_object(env, &object));
    put(env, object, "name", to_js(env, tensor.name));
    put(env, object, "type", to_js(env, static_cast<double>(tensor.type)));
    put(env, object, "shape", numbers(env, tensor.shape, static_cast<size_t>(tensor.rank)));
    put(env, object, "buffer", buffer_over(env, tensor.data, bytes_of(tensor), owner));
    put_at(env, array, i, object);
  }
  return array;
}

napi_value to_js(napi_env env, const onnx_train_port* ports, size_t count) {
  const napi_value array = new_array(env, count);
  for (size_t i = 0; i < count; ++i) {
    const onnx_train_port& port = ports[i];
    napi_value object = nullptr, has_default = nullptr;
    check(env, napi_create_object(env, &object));
    check(env, napi_get_boolean(env, port.data != nullptr, &has_default));
    put(env, object, "name", to_js(env, port.name));
    put(env, object, "role", to_js(env, port.role));
    put(env, object, "of", to_js(env, port.of));
    put(env, object, "type", to_js(env, static_cast<double>(port.type)));
    put(env, object, "shape",
        port.rank < 0 ? to_js(env, nullptr) : numbers(env, port.shape, static_cast<size_t>(port.rank)));
    put(env, object, "hasDefault", has_default);
    put_at(env, array, i, object);
  }
  return array;
}

napi_value to_js(napi_env env, const onnx_train_metric* metrics, size_t count) {
  napi_value object = nullptr;
  check(env, napi_create_object(env, &object));
  for (size_t i = 0; i < count; ++i) put(env, object, metrics[i].name, to_js(env, metrics[i].value));
  return object;
}

}  // namespace onnx_train_node
