// Conversions between the types of Java and those of the C interface, and errors as exceptions.
//
// A function of native code runs within guarded(): what fails sets a Java exception and throws Pending. All of it
// belongs to the calling thread.
#pragma once

#include <jni.h>
#include <onnx_train/onnx_train.h>

#include <cstdint>
#include <new>
#include <string>
#include <vector>

namespace onnx_train_jni {

// Thrown when a Java exception is pending.
struct Pending {};

// Sets an exception of a Java class, "java/lang/IllegalArgumentException", and throws Pending.
[[noreturn]] void raise(JNIEnv* env, const char* name, const std::string& text);
// Throws an OnnxTrainException with the text of the library unless the call succeeded.
void check(JNIEnv* env, onnx_train_status status);
// Throws Pending if a call of Java has thrown.
void check_java(JNIEnv* env);

// Runs f(), whose result is that of a native method; a zero while an exception is pending.
template <typename F>
auto guarded(JNIEnv* env, const F& f) -> decltype(f()) {
  using Result = decltype(f());
  try {
    return f();
  } catch (const Pending&) {
  } catch (const std::bad_alloc&) {
    env->ThrowNew(env->FindClass("java/lang/OutOfMemoryError"), "native memory");
  }
  return Result();
}

// A handle from its address, and the reverse.
template <typename T>
T* at(jlong address) {
  return reinterpret_cast<T*>(static_cast<intptr_t>(address));
}
inline jlong address_of(const void* pointer) { return static_cast<jlong>(reinterpret_cast<intptr_t>(pointer)); }

// The classes of the package whose objects native code makes or reads; references hold as long as the process.
struct Classes {
  jclass string, strings, tensor, port, plan, device, exception, step, evaluation;
  jmethodID new_tensor, new_port, new_plan, new_device, new_exception, new_step, new_evaluation;
  jfieldID tensor_name, tensor_type, tensor_shape, type_number;
  jmethodID tensor_buffer;
  jmethodID source_arrays, source_begin, source_next, source_batches;
  jmethodID has_step, on_step, on_evaluation, on_checkpoint, on_note, on_token;
};
const Classes& classes();

// UTF-8 from a Java string and the reverse. NullPointerException for null, IllegalArgumentException for a zero byte,
// at which a C string would end.
std::string to_utf8(JNIEnv* env, jstring text);
jstring to_java(JNIEnv* env, const char* text);  // null for null

// An array of Java strings.
jobjectArray to_java(JNIEnv* env, const std::vector<const char*>& texts);

// Options from names and values in turn.
class OptionList {
 public:
  OptionList(JNIEnv* env, jobjectArray texts);
  const onnx_train_option* data() const { return views_.data(); }
  size_t size() const { return views_.size(); }

 private:
  std::vector<std::string> texts_;
  std::vector<onnx_train_option> views_;
};

// Views of the memory of Java's tensors, valid as long as these tensors are reachable. What is not at a multiple of its
// elements' size, as an array of a mapped file may be, is copied.
class TensorList {
 public:
  TensorList(JNIEnv* env, jobjectArray tensors);
  const onnx_train_tensor* data() const { return views_.data(); }
  size_t size() const { return views_.size(); }

 private:
  void add(JNIEnv* env, jobject tensor);

  std::vector<std::string> names_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<std::vector<char>> copies_;
  std::vector<onnx_train_tensor> views_;
};

// A direct buffer over a tensor's memory; null where it has none or more bytes than a buffer can have.
jobject buffer_of(JNIEnv* env, const onnx_train_tensor& tensor);
// Java's tensors over memory of the library.
jobject to_java(JNIEnv* env, const onnx_train_tensor& tensor);
jobjectArray to_java(JNIEnv* env, const onnx_train_tensor* tensors, size_t count);
jobjectArray to_java(JNIEnv* env, const onnx_train_port* ports, size_t count);
// {String[] names, double[] values}
jobjectArray to_java(JNIEnv* env, const onnx_train_metric* metrics, size_t count);
jobjectArray names_of(JNIEnv* env, const onnx_train_metric* metrics, size_t count);
jdoubleArray values_of(JNIEnv* env, const onnx_train_metric* metrics, size_t count);

}  // namespace onnx_train_jni
