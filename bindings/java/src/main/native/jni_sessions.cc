// Sessions, and what they say of themselves.
#include "jni_support.h"
#include "onnxtrain_Native.h"

using namespace onnx_train_jni;  // NOLINT(google-build-using-namespace)

namespace {

onnx_train_session* session_at(jlong address) { return at<onnx_train_session>(address); }

jobjectArray names(JNIEnv* env, const char* const* texts, size_t count) {
  return to_java(env, std::vector<const char*>(texts, texts + count));
}

using PortsOf = onnx_train_status (*)(onnx_train_session*, const char*, const onnx_train_port**, size_t*);

jobjectArray ports(JNIEnv* env, PortsOf of, jlong session, jstring entry) {
  return guarded(env, [&] {
    const onnx_train_port* found = nullptr;
    size_t count = 0;
    check(env, of(session_at(session), to_utf8(env, entry).c_str(), &found, &count));
    return to_java(env, found, count);
  });
}

// The memory of a direct buffer from its start; Java's side gives no other.
void* memory_of(JNIEnv* env, jobject buffer, size_t* bytes) {
  *bytes = static_cast<size_t>(env->GetDirectBufferCapacity(buffer));
  return env->GetDirectBufferAddress(buffer);
}

}  // namespace

jlong Java_onnxtrain_Native_sessionCreate(JNIEnv* env, jclass, jlong training, jobjectArray options) {
  return guarded(env, [&] {
    const OptionList list(env, options);
    onnx_train_session* session = nullptr;
    check(env, onnx_train_session_create(at<const onnx_train_model>(training), list.data(), list.size(), &session));
    return address_of(session);
  });
}

void Java_onnxtrain_Native_sessionFree(JNIEnv*, jclass, jlong session) { onnx_train_session_free(session_at(session)); }

jobjectArray Java_onnxtrain_Native_sessionRun(JNIEnv* env, jclass, jlong session, jstring entry, jobjectArray inputs) {
  return guarded(env, [&] {
    const TensorList tensors(env, inputs);
    const onnx_train_tensor* outputs = nullptr;
    size_t count = 0;
    check(env, onnx_train_session_run(session_at(session), to_utf8(env, entry).c_str(), tensors.data(), tensors.size(),
                                      &outputs, &count));
    return to_java(env, outputs, count);
  });
}

jdouble Java_onnxtrain_Native_sessionScale(JNIEnv* env, jclass, jlong session, jstring input) {
  return guarded(env, [&] {
    double scale = 1;
    check(env, onnx_train_session_scale(session_at(session), to_utf8(env, input).c_str(), &scale));
    return scale;
  });
}

jint Java_onnxtrain_Native_sessionSampleAxis(JNIEnv* env, jclass, jlong session, jstring entry, jstring input) {
  return guarded(env, [&] {
    int32_t axis = 0;
    check(env, onnx_train_session_sample_axis(session_at(session), to_utf8(env, entry).c_str(),
                                              to_utf8(env, input).c_str(), &axis));
    return static_cast<jint>(axis);
  });
}

jobjectArray Java_onnxtrain_Native_sessionEntries(JNIEnv* env, jclass, jlong session) {
  return guarded(env, [&] {
    const char* const* texts = nullptr;
    size_t count = 0;
    check(env, onnx_train_session_entries(session_at(session), &texts, &count));
    return names(env, texts, count);
  });
}

jobjectArray Java_onnxtrain_Native_sessionInputs(JNIEnv* env, jclass, jlong session, jstring entry) {
  return ports(env, onnx_train_session_inputs, session, entry);
}

jobjectArray Java_onnxtrain_Native_sessionOutputs(JNIEnv* env, jclass, jlong session, jstring entry) {
  return ports(env, onnx_train_session_outputs, session, entry);
}

jobjectArray Java_onnxtrain_Native_sessionStatePorts(JNIEnv* env, jclass, jlong session) {
  return guarded(env, [&] {
    const onnx_train_port* states = nullptr;
    size_t count = 0;
    check(env, onnx_train_session_state_ports(session_at(session), &states, &count));
    return to_java(env, states, count);
  });
}

jobjectArray Java_onnxtrain_Native_sessionStates(JNIEnv* env, jclass, jlong session) {
  return guarded(env, [&] {
    const char* const* texts = nullptr;
    size_t count = 0;
    check(env, onnx_train_session_states(session_at(session), &texts, &count));
    return names(env, texts, count);
  });
}

jobject Java_onnxtrain_Native_sessionPlan(JNIEnv* env, jclass, jlong session, jstring entry, jobjectArray options) {
  return guarded(env, [&] {
    const OptionList list(env, options);
    onnx_train_plan plan{};
    check(env,
          onnx_train_session_plan(session_at(session), to_utf8(env, entry).c_str(), list.data(), list.size(), &plan));
    const jobject made =
        env->NewObject(classes().plan, classes().new_plan, to_java(env, plan.text), to_java(env, plan.json),
                       static_cast<jlong>(plan.arena_bytes), static_cast<jlong>(plan.workspace_bytes),
                       static_cast<jlong>(plan.constant_bytes));
    check_java(env);
    return made;
  });
}

jobject Java_onnxtrain_Native_sessionState(JNIEnv* env, jclass, jlong session, jstring name) {
  return guarded(env, [&] {
    onnx_train_tensor state{};
    check(env, onnx_train_session_state(session_at(session), to_utf8(env, name).c_str(), &state));
    return to_java(env, state);
  });
}

void Java_onnxtrain_Native_sessionGet(JNIEnv* env, jclass, jlong session, jstring name, jobject data) {
  guarded(env, [&] {
    size_t bytes = 0;
    void* const memory = memory_of(env, data, &bytes);
    check(env, onnx_train_session_get(session_at(session), to_utf8(env, name).c_str(), memory, bytes));
  });
}

void Java_onnxtrain_Native_sessionSet(JNIEnv* env, jclass, jlong session, jstring name, jobject data) {
  guarded(env, [&] {
    size_t bytes = 0;
    const void* const memory = memory_of(env, data, &bytes);
    check(env, onnx_train_session_set(session_at(session), to_utf8(env, name).c_str(), memory, bytes));
  });
}

jobject Java_onnxtrain_Native_sessionAddress(JNIEnv* env, jclass, jlong session, jstring name) {
  return guarded(env, [&]() -> jobject {
    const std::string text = to_utf8(env, name);
    onnx_train_tensor state{};
    check(env, onnx_train_session_state(session_at(session), text.c_str(), &state));
    void* address = nullptr;
    int32_t on_host = 0;
    check(env, onnx_train_session_address(session_at(session), text.c_str(), &address, &on_host));
    state.data = on_host ? address : nullptr;
    const jobject buffer = buffer_of(env, state);
    if (!buffer) {
      raise(env, "java/lang/UnsupportedOperationException",
            "state '" + text + "' is not in the host's memory, or has more bytes than a buffer: 2147483647");
    }
    return buffer;
  });
}

jintArray Java_onnxtrain_Native_sessionRanks(JNIEnv* env, jclass, jlong session) {
  return guarded(env, [&] {
    int32_t rank = 0, ranks = 1;
    check(env, onnx_train_session_ranks(session_at(session), &rank, &ranks));
    const jintArray result = env->NewIntArray(2);
    check_java(env);
    const jint values[] = {rank, ranks};
    env->SetIntArrayRegion(result, 0, 2, values);
    return result;
  });
}

jobject Java_onnxtrain_Native_sessionDevice(JNIEnv* env, jclass, jlong session) {
  return guarded(env, [&] {
    onnx_train_device device{};
    check(env, onnx_train_session_device(session_at(session), &device));
    const jobject made = env->NewObject(classes().device, classes().new_device, static_cast<jint>(device.type),
                                        static_cast<jint>(device.id), address_of(device.stream));
    check_java(env);
    return made;
  });
}

void Java_onnxtrain_Native_sessionSwap(JNIEnv* env, jclass, jlong session, jlong other, jstring name) {
  guarded(env, [&] {
    check(env, onnx_train_session_swap(session_at(session), session_at(other), to_utf8(env, name).c_str()));
  });
}

void Java_onnxtrain_Native_sessionLoadAdapter(JNIEnv* env, jclass, jlong session, jstring name, jstring folder) {
  guarded(env, [&] {
    check(env, onnx_train_session_load_adapter(session_at(session), to_utf8(env, name).c_str(),
                                               to_utf8(env, folder).c_str()));
  });
}

void Java_onnxtrain_Native_sessionSetAdapter(JNIEnv* env, jclass, jlong session, jstring name) {
  guarded(env, [&] { check(env, onnx_train_session_set_adapter(session_at(session), to_utf8(env, name).c_str())); });
}

void Java_onnxtrain_Native_sessionInitialize(JNIEnv* env, jclass, jlong session, jlong seed) {
  guarded(env, [&] { check(env, onnx_train_session_initialize(session_at(session), static_cast<uint64_t>(seed))); });
}

jlong Java_onnxtrain_Native_sessionModel(JNIEnv* env, jclass, jlong session) {
  return guarded(env, [&] {
    onnx_train_model* model = nullptr;
    check(env, onnx_train_session_model(session_at(session), &model));
    return address_of(model);
  });
}
