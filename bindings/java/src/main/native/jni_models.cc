// Models, reports, schedules and splits.
#include "jni_support.h"
#include "onnxtrain_Native.h"

using namespace onnx_train_jni;  // NOLINT(google-build-using-namespace)

namespace {

// The model that f(&model) makes.
template <typename F>
jlong made(JNIEnv* env, const F& f) {
  onnx_train_model* model = nullptr;
  check(env, f(&model));
  return address_of(model);
}

const onnx_train_model* model_at(jlong address) { return at<const onnx_train_model>(address); }

jobjectArray findings(JNIEnv* env, const onnx_train_finding* found, size_t count) {
  std::vector<const char*> texts;
  for (size_t i = 0; i < count; ++i) texts.insert(texts.end(), {found[i].subject, found[i].what, found[i].advice});
  return to_java(env, texts);
}

}  // namespace

jstring Java_onnxtrain_Native_version(JNIEnv* env, jclass) {
  return guarded(env, [&] { return to_java(env, onnx_train_version()); });
}

jstring Java_onnxtrain_Native_options(JNIEnv* env, jclass, jstring of) {
  return guarded(env, [&] { return to_java(env, onnx_train_options(to_utf8(env, of).c_str())); });
}

jdouble Java_onnxtrain_Native_learningRate(JNIEnv* env, jclass, jlong step, jobjectArray options) {
  return guarded(env, [&] {
    const OptionList list(env, options);
    double rate = 0;
    check(env, onnx_train_learning_rate(list.data(), list.size(), step, &rate));
    return rate;
  });
}

jobjectArray Java_onnxtrain_Native_split(JNIEnv* env, jclass, jint samples, jobjectArray options) {
  return guarded(env, [&] {
    const OptionList list(env, options);
    std::vector<int64_t> rows[2];
    size_t counts[2] = {0, 0};
    for (auto& part : rows) part.resize(samples < 0 ? 0 : static_cast<size_t>(samples));
    check(env,
          onnx_train_split(samples, list.data(), list.size(), rows[0].data(), &counts[0], rows[1].data(), &counts[1]));
    const jobjectArray result = env->NewObjectArray(2, env->FindClass("[J"), nullptr);
    check_java(env);
    for (int i = 0; i < 2; ++i) {
      const std::vector<jlong> copy(rows[i].begin(), rows[i].begin() + static_cast<std::ptrdiff_t>(counts[i]));
      const jlongArray part = env->NewLongArray(static_cast<jsize>(copy.size()));
      check_java(env);
      env->SetLongArrayRegion(part, 0, static_cast<jsize>(copy.size()), copy.data());
      env->SetObjectArrayElement(result, i, part);
    }
    return result;
  });
}

jlong Java_onnxtrain_Native_modelLoad(JNIEnv* env, jclass, jstring path) {
  return guarded(env, [&] {
    const std::string file = to_utf8(env, path);
    return made(env, [&](onnx_train_model** model) { return onnx_train_model_load(file.c_str(), model); });
  });
}

jlong Java_onnxtrain_Native_modelFromBytes(JNIEnv* env, jclass, jbyteArray bytes) {
  return guarded(env, [&] {
    if (!bytes) raise(env, "java/lang/NullPointerException", "the bytes are null");
    std::vector<jbyte> copy(static_cast<size_t>(env->GetArrayLength(bytes)));
    env->GetByteArrayRegion(bytes, 0, static_cast<jsize>(copy.size()), copy.data());
    return made(env, [&](onnx_train_model** model) {
      return onnx_train_model_from_bytes(copy.empty() ? "" : static_cast<const void*>(copy.data()), copy.size(), model);
    });
  });
}

void Java_onnxtrain_Native_modelFree(JNIEnv*, jclass, jlong model) {
  onnx_train_model_free(at<onnx_train_model>(model));
}

void Java_onnxtrain_Native_modelSave(JNIEnv* env, jclass, jlong model, jstring path) {
  guarded(env, [&] { check(env, onnx_train_model_save(model_at(model), to_utf8(env, path).c_str())); });
}

jbyteArray Java_onnxtrain_Native_modelToBytes(JNIEnv* env, jclass, jlong model) {
  return guarded(env, [&] {
    void* data = nullptr;
    size_t bytes = 0;
    check(env, onnx_train_model_to_bytes(model_at(model), &data, &bytes));
    const bool fits = bytes < 0x7FFFFFF8;  // what an array of a virtual machine holds
    const jbyteArray array = fits ? env->NewByteArray(static_cast<jsize>(bytes)) : nullptr;
    if (array) env->SetByteArrayRegion(array, 0, static_cast<jsize>(bytes), static_cast<const jbyte*>(data));
    onnx_train_free(data);
    check_java(env);
    if (!fits) raise(env, "java/lang/IllegalStateException", "the model is larger than an array: save() writes it");
    return array;
  });
}

jobjectArray Java_onnxtrain_Native_modelMetadata(JNIEnv* env, jclass, jlong model) {
  return guarded(env, [&] {
    std::vector<const char*> texts;
    const char* key = nullptr;
    for (size_t i = 0; const char* value = onnx_train_model_metadata(model_at(model), i, &key); ++i) {
      texts.insert(texts.end(), {key, value});
    }
    return to_java(env, texts);
  });
}

jobjectArray Java_onnxtrain_Native_modelNotes(JNIEnv* env, jclass, jlong model) {
  return guarded(env, [&] {
    const onnx_train_finding* notes = nullptr;
    const size_t count = onnx_train_model_notes(model_at(model), &notes);
    return findings(env, notes, count);
  });
}

jlong Java_onnxtrain_Native_modelBuild(JNIEnv* env, jclass, jlong forward, jobjectArray options) {
  return guarded(env, [&] {
    const OptionList list(env, options);
    return made(env, [&](onnx_train_model** model) {
      return onnx_train_model_build(model_at(forward), list.data(), list.size(), model);
    });
  });
}

jlong Java_onnxtrain_Native_modelBuildWithLoss(JNIEnv* env, jclass, jlong forward, jlong loss, jobjectArray options) {
  return guarded(env, [&] {
    const OptionList list(env, options);
    return made(env, [&](onnx_train_model** model) {
      return onnx_train_model_build_with_loss(model_at(forward), model_at(loss), list.data(), list.size(), model);
    });
  });
}

jlong Java_onnxtrain_Native_modelBuildForData(JNIEnv* env, jclass, jlong forward, jstring path, jobjectArray arrays,
                                              jobjectArray options, jobjectArray note) {
  return guarded(env, [&] {
    const OptionList list(env, options);
    const TensorList tensors(env, arrays);
    const std::string file = path ? to_utf8(env, path) : "";
    const char* chosen = "";
    const jlong result = made(env, [&](onnx_train_model** model) {
      return onnx_train_model_build_for_data(model_at(forward), path ? file.c_str() : nullptr, tensors.data(),
                                             tensors.size(), list.data(), list.size(), model, &chosen);
    });
    env->SetObjectArrayElement(note, 0, to_java(env, chosen));
    return result;
  });
}

jstring Java_onnxtrain_Native_modelSizes(JNIEnv* env, jclass, jlong forward, jobjectArray arrays) {
  return guarded(env, [&] {
    const TensorList tensors(env, arrays);
    const char* sizes = "";
    check(env, onnx_train_model_sizes(model_at(forward), tensors.data(), tensors.size(), &sizes));
    return to_java(env, sizes);
  });
}

jobjectArray Java_onnxtrain_Native_modelCheck(JNIEnv* env, jclass, jlong forward, jobjectArray options) {
  return guarded(env, [&] {
    const OptionList list(env, options);
    struct Report {
      onnx_train_report* handle = nullptr;
      ~Report() { onnx_train_report_free(handle); }
    } report;
    check(env, onnx_train_model_check(model_at(forward), list.data(), list.size(), &report.handle));
    const jobjectArray result = env->NewObjectArray(3, classes().strings, nullptr);
    check_java(env);
    const onnx_train_finding* found = nullptr;
    env->SetObjectArrayElement(
        result, 0,
        to_java(env, {onnx_train_report_text(report.handle), onnx_train_report_loss(report.handle),
                      onnx_train_report_failure(report.handle)}));
    size_t count = onnx_train_report_obstacles(report.handle, &found);
    env->SetObjectArrayElement(result, 1, findings(env, found, count));
    count = onnx_train_report_findings(report.handle, &found);
    env->SetObjectArrayElement(result, 2, findings(env, found, count));
    return result;
  });
}

jlong Java_onnxtrain_Native_modelExport(JNIEnv* env, jclass, jlong training, jobjectArray options) {
  return guarded(env, [&] {
    const OptionList list(env, options);
    return made(env, [&](onnx_train_model** model) {
      return onnx_train_model_export_with(model_at(training), list.data(), list.size(), model);
    });
  });
}

jstring Java_onnxtrain_Native_modelExportInto(JNIEnv* env, jclass, jlong training, jobjectArray options, jstring path) {
  return guarded(env, [&] {
    const OptionList list(env, options);
    const char* note = "";
    check(env, onnx_train_model_export_into(model_at(training), list.data(), list.size(), to_utf8(env, path).c_str(),
                                            &note));
    return to_java(env, note);
  });
}

void Java_onnxtrain_Native_modelSaveAdapter(JNIEnv* env, jclass, jlong training, jstring folder) {
  guarded(env, [&] { check(env, onnx_train_model_save_adapter(model_at(training), to_utf8(env, folder).c_str())); });
}

jlong Java_onnxtrain_Native_modelFlatten(JNIEnv* env, jclass, jlong training, jstring entry) {
  return guarded(env, [&] {
    const std::string name = to_utf8(env, entry);
    return made(env, [&](onnx_train_model** model) {
      return onnx_train_model_flatten(model_at(training), name.c_str(), model);
    });
  });
}

jlongArray Java_onnxtrain_Native_modelDifferentiate(JNIEnv* env, jclass, jlong forward, jobjectArray options) {
  return guarded(env, [&] {
    const OptionList list(env, options);
    const jlongArray result = env->NewLongArray(2);
    check_java(env);
    onnx_train_model *first = nullptr, *second = nullptr;
    check(env, onnx_train_model_differentiate(model_at(forward), list.data(), list.size(), &first, &second));
    const jlong passes[] = {address_of(first), address_of(second)};
    env->SetLongArrayRegion(result, 0, 2, passes);
    return result;
  });
}

jlong Java_onnxtrain_Native_modelDerivative(JNIEnv* env, jclass, jlong forward, jstring kind, jlong loss,
                                            jobjectArray options) {
  return guarded(env, [&] {
    const OptionList list(env, options);
    const std::string name = to_utf8(env, kind);
    return made(env, [&](onnx_train_model** model) {
      return onnx_train_model_derivative(model_at(forward), name.c_str(), model_at(loss), list.data(), list.size(),
                                         model);
    });
  });
}

jlong Java_onnxtrain_Native_modelWithWeights(JNIEnv* env, jclass, jlong model, jobjectArray weights, jboolean strict) {
  return guarded(env, [&] {
    const TensorList tensors(env, weights);
    return made(env, [&](onnx_train_model** changed) {
      return onnx_train_model_with_weights(model_at(model), tensors.data(), tensors.size(), strict, changed);
    });
  });
}
