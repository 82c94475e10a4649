#include "jni_support.h"

#include <limits>

namespace onnx_train_jni {
namespace {

Classes g_classes;

jclass load(JNIEnv* env, const char* name) {
  const jclass local = env->FindClass(name);
  check_java(env);
  const auto global = static_cast<jclass>(env->NewGlobalRef(local));
  env->DeleteLocalRef(local);
  return global;
}

jmethodID method(JNIEnv* env, jclass of, const char* name, const char* signature) {
  const jmethodID id = env->GetMethodID(of, name, signature);
  check_java(env);
  return id;
}

jfieldID field(JNIEnv* env, jclass of, const char* name, const char* signature) {
  const jfieldID id = env->GetFieldID(of, name, signature);
  check_java(env);
  return id;
}

void load_classes(JNIEnv* env) {
  Classes& c = g_classes;
  c.string = load(env, "java/lang/String");
  c.strings = load(env, "[Ljava/lang/String;");
  c.tensor = load(env, "onnxtrain/Tensor");
  c.port = load(env, "onnxtrain/Port");
  c.plan = load(env, "onnxtrain/Plan");
  c.device = load(env, "onnxtrain/Device");
  c.exception = load(env, "onnxtrain/OnnxTrainException");
  c.step = load(env, "onnxtrain/Step");
  c.evaluation = load(env, "onnxtrain/Evaluation");
  c.new_tensor = method(env, c.tensor, "<init>", "(Ljava/lang/String;I[JLjava/nio/ByteBuffer;)V");
  c.new_port = method(env, c.port, "<init>", "(Ljava/lang/String;Ljava/lang/String;Ljava/lang/String;I[JZ)V");
  c.new_plan = method(env, c.plan, "<init>", "(Ljava/lang/String;Ljava/lang/String;JJJ)V");
  c.new_device = method(env, c.device, "<init>", "(IIJ)V");
  c.new_exception = method(env, c.exception, "<init>", "(ILjava/lang/String;Ljava/lang/String;)V");
  c.new_step = method(env, c.step, "<init>", "(JJJDDDDDDZJD)V");
  c.new_evaluation = method(env, c.evaluation, "<init>", "(JJDZ[Ljava/lang/String;[D[Lonnxtrain/Tensor;)V");
  c.tensor_name = field(env, c.tensor, "name", "Ljava/lang/String;");
  c.tensor_type = field(env, c.tensor, "type", "Lonnxtrain/ElementType;");
  c.tensor_shape = field(env, c.tensor, "shape", "[J");
  c.tensor_buffer = method(env, c.tensor, "buffer", "()Ljava/nio/ByteBuffer;");
  c.type_number = field(env, load(env, "onnxtrain/ElementType"), "number", "I");
  const jclass source = load(env, "onnxtrain/DataSource");
  c.source_arrays = method(env, source, "arrays", "()[Lonnxtrain/Tensor;");
  c.source_begin = method(env, source, "begin", "(J)V");
  c.source_next = method(env, source, "next", "()[Lonnxtrain/Tensor;");
  c.source_batches = method(env, source, "batches", "()J");
  const jclass observer = load(env, "onnxtrain/Observer");
  c.has_step = method(env, observer, "hasStep", "()Z");
  c.on_step = method(env, observer, "step", "(Lonnxtrain/Step;)I");
  c.on_evaluation = method(env, observer, "evaluation", "(Lonnxtrain/Evaluation;)I");
  c.on_checkpoint = method(env, observer, "checkpoint", "(Ljava/lang/String;)I");
  c.on_note = method(env, observer, "note", "(Ljava/lang/String;)I");
  c.on_token = method(env, load(env, "onnxtrain/Native$TokenReceiver"), "drawn", "(IJ)I");
}

void append_utf8(std::string* text, uint32_t point) {
  const auto put = [&](uint32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (point < 0x80) return put(point);
  if (point < 0x800) {
    put(0xC0 | point >> 6);
  } else {
    if (point < 0x10000) {
      put(0xE0 | point >> 12);
    } else {
      put(0xF0 | point >> 18);
      put(0x80 | (point >> 12 & 0x3F));
    }
    put(0x80 | (point >> 6 & 0x3F));
  }
  put(0x80 | (point & 0x3F));
}

// Decodes one code point and moves `at` behind it; U+FFFD for bytes that are no UTF-8.
uint32_t next_point(const unsigned char** at) {
  const unsigned char first = *(*at)++;
  if (first < 0x80) return first;
  const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
  uint32_t point = first & (0x3Fu >> more);
  for (int i = 0; i < more; ++i) {
    if ((**at & 0xC0) != 0x80) return 0xFFFD;
    point = point << 6 | (*(*at)++ & 0x3Fu);
  }
  return first < 0xC0 || first > 0xF4 || point > 0x10FFFF ? 0xFFFD : point;
}

int64_t bytes_of(onnx_train_type type) {
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

jlongArray shape_of(JNIEnv* env, const int64_t* shape, int32_t rank) {
  if (rank < 0) return nullptr;
  const jlongArray sizes = env->NewLongArray(rank);
  check_java(env);
  const std::vector<jlong> copy(shape, shape + rank);
  env->SetLongArrayRegion(sizes, 0, rank, copy.data());
  return sizes;
}

}  // namespace

const Classes& classes() { return g_classes; }

void raise(JNIEnv* env, const char* name, const std::string& text) {
  const jclass type = env->FindClass(name);
  check_java(env);
  const jmethodID make = env->GetMethodID(type, "<init>", "(Ljava/lang/String;)V");
  check_java(env);
  const jobject error = env->NewObject(type, make, to_java(env, text.c_str()));  // ThrowNew takes UTF-8 of its own kind
  check_java(env);
  env->Throw(static_cast<jthrowable>(error));
  throw Pending();
}

void check_java(JNIEnv* env) {
  if (env->ExceptionCheck()) throw Pending();
}

void check(JNIEnv* env, onnx_train_status status) {
  if (status == ONNX_TRAIN_OK) return;
  const jstring text = to_java(env, onnx_train_last_error());
  const jstring code = to_java(env, onnx_train_last_error_code());
  const jobject error =
      env->NewObject(classes().exception, classes().new_exception, static_cast<jint>(status), text, code);
  check_java(env);
  env->Throw(static_cast<jthrowable>(error));
  throw Pending();
}

std::string to_utf8(JNIEnv* env, jstring text) {
  if (!text) raise(env, "java/lang/NullPointerException", "a text is null");
  const jsize length = env->GetStringLength(text);
  std::vector<jchar> units(static_cast<size_t>(length) + 1);
  env->GetStringRegion(text, 0, length, units.data());
  std::string result;
  for (size_t i = 0; i < static_cast<size_t>(length); ++i) {
    uint32_t point = units[i];
    const bool high = point >= 0xD800 && point < 0xDC00;
    const uint32_t next = units[i + 1];
    if (high && next >= 0xDC00 && next < 0xE000) {
      point = 0x10000 + ((point - 0xD800) << 10) + (next - 0xDC00);
      ++i;
    } else if (point >= 0xD800 && point < 0xE000) {
      point = 0xFFFD;
    }
    if (point == 0) raise(env, "java/lang/IllegalArgumentException", "a text has the character 0");
    append_utf8(&result, point);
  }
  return result;
}

jstring to_java(JNIEnv* env, const char* text) {
  if (!text) return nullptr;
  std::vector<jchar> units;
  for (auto at = reinterpret_cast<const unsigned char*>(text); *at;) {
    uint32_t point = next_point(&at);
    if (point >= 0x10000) {
      point -= 0x10000;
      units.push_back(static_cast<jchar>(0xD800 + (point >> 10)));
      point = 0xDC00 + (point & 0x3FF);
    }
    units.push_back(static_cast<jchar>(point));
  }
  const jstring result = env->NewString(units.data(), static_cast<jsize>(units.size()));
  check_java(env);
  return result;
}

jobjectArray to_java(JNIEnv* env, const std::vector<const char*>& texts) {
  const jobjectArray array = env->NewObjectArray(static_cast<jsize>(texts.size()), classes().string, nullptr);
  check_java(env);
  for (size_t i = 0; i < texts.size(); ++i) {
    const jstring text = to_java(env, texts[i]);
    env->SetObjectArrayElement(array, static_cast<jsize>(i), text);
    env->DeleteLocalRef(text);
  }
  return array;
}

OptionList::OptionList(JNIEnv* env, jobjectArray texts) {
  const jsize count = env->GetArrayLength(texts);
  for (jsize i = 0; i < count; ++i) {
    const auto text = static_cast<jstring>(env->GetObjectArrayElement(texts, i));
    texts_.push_back(to_utf8(env, text));
    env->DeleteLocalRef(text);
  }
  for (size_t i = 0; i + 1 < texts_.size(); i += 2) views_.push_back({texts_[i].c_str(), texts_[i + 1].c_str()});
}

TensorList::TensorList(JNIEnv* env, jobjectArray tensors) {
  const jsize count = tensors ? env->GetArrayLength(tensors) : 0;
  names_.reserve(static_cast<size_t>(count));  // views refer to them
  shapes_.reserve(static_cast<size_t>(count));
  for (jsize i = 0; i < count; ++i) {
    const jobject tensor = env->GetObjectArrayElement(tensors, i);
    add(env, tensor);
    env->DeleteLocalRef(tensor);
  }
}

void TensorList::add(JNIEnv* env, jobject tensor) {
  if (!tensor) raise(env, "java/lang/NullPointerException", "a tensor is null");
  const auto name = static_cast<jstring>(env->GetObjectField(tensor, classes().tensor_name));
  const jobject type = env->GetObjectField(tensor, classes().tensor_type);
  const auto shape = static_cast<jlongArray>(env->GetObjectField(tensor, classes().tensor_shape));
  const jobject buffer = env->CallObjectMethod(tensor, classes().tensor_buffer);  // throws for memory that is gone
  check_java(env);
  names_.push_back(to_utf8(env, name));
  std::vector<jlong> sizes(static_cast<size_t>(env->GetArrayLength(shape)));
  env->GetLongArrayRegion(shape, 0, static_cast<jsize>(sizes.size()), sizes.data());
  shapes_.emplace_back(sizes.begin(), sizes.end());
  const auto element = static_cast<onnx_train_type>(env->GetIntField(type, classes().type_number));
  void* data = env->GetDirectBufferAddress(buffer);
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes_of(element)) != 0) {
    const auto* const begin = static_cast<const char*>(data);
    data = copies_.emplace_back(begin, begin + env->GetDirectBufferCapacity(buffer)).data();
  }
  views_.push_back({names_.back().c_str(), element, static_cast<int32_t>(sizes.size()), shapes_.back().data(), data,
                    ONNX_TRAIN_HOST_MEMORY});
  for (const jobject local : {static_cast<jobject>(name), type, static_cast<jobject>(shape), buffer}) {
    env->DeleteLocalRef(local);
  }
}

jobject buffer_of(JNIEnv* env, const onnx_train_tensor& tensor) {
  static char no_elements = 0;
  int64_t bytes = bytes_of(tensor.type);
  for (int32_t i = 0; i < tensor.rank; ++i) bytes *= tensor.shape[i];
  void* const data = bytes == 0 ? &no_elements : tensor.data;
  if (!data || bytes > std::numeric_limits<jint>::max()) return nullptr;
  const jobject buffer = env->NewDirectByteBuffer(data, bytes);
  check_java(env);
  return buffer;
}

jobject to_java(JNIEnv* env, const onnx_train_tensor& tensor) {
  const jobject buffer = buffer_of(env, tensor);
  const jstring name = to_java(env, tensor.name);
  const jlongArray shape = shape_of(env, tensor.shape, tensor.rank);
  const jobject made =
      env->NewObject(classes().tensor, classes().new_tensor, name, static_cast<jint>(tensor.type), shape, buffer);
  check_java(env);
  for (const jobject local : {static_cast<jobject>(name), static_cast<jobject>(shape), buffer}) {
    env->DeleteLocalRef(local);
  }
  return made;
}

jobjectArray to_java(JNIEnv* env, const onnx_train_tensor* tensors, size_t count) {
  const jobjectArray array = env->NewObjectArray(static_cast<jsize>(count), classes().tensor, nullptr);
  check_java(env);
  for (size_t i = 0; i < count; ++i) {
    const jobject tensor = to_java(env, tensors[i]);
    env->SetObjectArrayElement(array, static_cast<jsize>(i), tensor);
    env->DeleteLocalRef(tensor);
  }
  return array;
}

jobjectArray to_java(JNIEnv* env, const onnx_train_port* ports, size_t count) {
  const jobjectArray array = env->NewObjectArray(static_cast<jsize>(count), classes().port, nullptr);
  check_java(env);
  for (size_t i = 0; i < count; ++i) {
    if (env->PushLocalFrame(8)) throw Pending();
    const onnx_train_port& port = ports[i];
    const jobject made =
        env->NewObject(classes().port, classes().new_port, to_java(env, port.name), to_java(env, port.role),
                       to_java(env, port.of), static_cast<jint>(port.type), shape_of(env, port.shape, port.rank),
                       static_cast<jboolean>(port.data != nullptr));
    check_java(env);
    env->SetObjectArrayElement(array, static_cast<jsize>(i), made);
    env->PopLocalFrame(nullptr);
  }
  return array;
}

jobjectArray names_of(JNIEnv* env, const onnx_train_metric* metrics, size_t count) {
  std::vector<const char*> names;
  for (size_t i = 0; i < count; ++i) names.push_back(metrics[i].name);
  return to_java(env, names);
}

jdoubleArray values_of(JNIEnv* env, const onnx_train_metric* metrics, size_t count) {
  const jdoubleArray values = env->NewDoubleArray(static_cast<jsize>(count));
  check_java(env);
  for (size_t i = 0; i < count; ++i) env->SetDoubleArrayRegion(values, static_cast<jsize>(i), 1, &metrics[i].value);
  return values;
}

jobjectArray to_java(JNIEnv* env, const onnx_train_metric* metrics, size_t count) {
  const jobjectArray pair = env->NewObjectArray(2, env->FindClass("java/lang/Object"), nullptr);
  check_java(env);
  env->SetObjectArrayElement(pair, 0, names_of(env, metrics, count));
  env->SetObjectArrayElement(pair, 1, values_of(env, metrics, count));
  return pair;
}

}  // namespace onnx_train_jni

extern "C" JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM* machine, void*) {
  JNIEnv* env = nullptr;
  if (machine->GetEnv(reinterpret_cast<void**>(&env), JNI_VERSION_1_6) != JNI_OK) return JNI_ERR;
  try {
    onnx_train_jni::load_classes(env);
  } catch (const onnx_train_jni::Pending&) {
    return JNI_ERR;
  }
  return JNI_VERSION_1_6;
}
