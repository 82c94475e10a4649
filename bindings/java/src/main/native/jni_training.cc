// Data files, the training loop with callbacks into Java, evaluation, prediction and texts.
#include "jni_support.h"
#include "onnxtrain_Native.h"

#include <memory>

using namespace onnx_train_jni;  // NOLINT(google-build-using-namespace)

namespace {

onnx_train_session* session_at(jlong address) { return at<onnx_train_session>(address); }

// A call of the library that calls Java. The first exception of a callback ends it; finish() throws it.
class Callbacks {
 public:
  Callbacks(JNIEnv* env, jobject observer) : env_(env), observer_(observer) {
    view_.size = sizeof view_;
    view_.user = this;
    if (!observer) return;
    const jboolean has_step = env->CallBooleanMethod(observer, classes().has_step);
    check_java(env);
    if (has_step) view_.on_step = on_step;
    view_.on_evaluation = on_evaluation;
    view_.on_checkpoint = [](void* user, const char* path) { return of(user).tell(classes().on_checkpoint, path); };
    view_.on_note = [](void* user, const char* text) { return of(user).tell(classes().on_note, text); };
  }
  Callbacks(const Callbacks&) = delete;
  ~Callbacks() {
    if (thrown_) env_->DeleteGlobalRef(thrown_);
  }

  const onnx_train_observer* view() const { return &view_; }

  void finish(onnx_train_status status) {
    if (thrown_) {
      env_->Throw(thrown_);
      throw Pending();
    }
    check(env_, status);
  }

  // Runs f(env), which calls Java, in a frame of local references of its own.
  template <typename F>
  onnx_train_next guarded(const F& f) {
    onnx_train_next next = ONNX_TRAIN_FAIL;
    if (env_->PushLocalFrame(16) == 0) {
      try {
        next = f(env_);
        check_java(env_);
      } catch (const Pending&) {
        next = ONNX_TRAIN_FAIL;
      } catch (const std::bad_alloc&) {
        env_->ThrowNew(env_->FindClass("java/lang/OutOfMemoryError"), "native memory");
        next = ONNX_TRAIN_FAIL;
      }
    }
    if (const jthrowable thrown = env_->ExceptionOccurred()) {
      env_->ExceptionClear();
      if (!thrown_) thrown_ = static_cast<jthrowable>(env_->NewGlobalRef(thrown));
      next = ONNX_TRAIN_FAIL;
    }
    env_->PopLocalFrame(nullptr);
    return next;
  }

 private:
  static Callbacks& of(void* user) { return *static_cast<Callbacks*>(user); }

  onnx_train_next tell(jmethodID method, const char* text) {
    return guarded([&](JNIEnv* env) {
      return static_cast<onnx_train_next>(env->CallIntMethod(observer_, method, to_java(env, text)));
    });
  }

  static onnx_train_next on_step(void* user, const onnx_train_step* step) {
    Callbacks& self = of(user);
    return self.guarded([&](JNIEnv* env) {
      const jobject told = env->NewObject(classes().step, classes().new_step, static_cast<jlong>(step->step),
                                          static_cast<jlong>(step->epoch), static_cast<jlong>(step->samples),
                                          step->loss, step->learning_rate, step->accuracy, step->grad_norm,
                                          step->seconds, step->loss_scale, static_cast<jboolean>(step->skipped != 0),
                                          static_cast<jlong>(step->tokens), step->utilization);
      check_java(env);
      return static_cast<onnx_train_next>(env->CallIntMethod(self.observer_, classes().on_step, told));
    });
  }

  static onnx_train_next on_evaluation(void* user, const onnx_train_evaluation* evaluation) {
    Callbacks& self = of(user);
    return self.guarded([&](JNIEnv* env) {
      const jobject told = env->NewObject(classes().evaluation, classes().new_evaluation,
                                          static_cast<jlong>(evaluation->step), static_cast<jlong>(evaluation->epoch),
                                          evaluation->train_loss, static_cast<jboolean>(evaluation->best != 0),
                                          names_of(env, evaluation->metrics, evaluation->num_metrics),
                                          values_of(env, evaluation->metrics, evaluation->num_metrics),
                                          to_java(env, evaluation->tables, evaluation->num_tables));
      check_java(env);
      return static_cast<onnx_train_next>(env->CallIntMethod(self.observer_, classes().on_evaluation, told));
    });
  }

  JNIEnv* env_;
  jobject observer_;
  jthrowable thrown_ = nullptr;
  onnx_train_observer view_{};
};

// A DataSource of Java: arrays, files, or batches, of which the present one is kept.
class Data {
 public:
  Data(JNIEnv* env, Callbacks* callbacks, jobject source, jlong files)
      : env_(env), callbacks_(callbacks), source_(source) {
    view_.size = sizeof view_;
    view_.user = this;
    if (files) {
      view_.dataset = at<const onnx_train_dataset>(files);
      return;
    }
    const auto arrays = static_cast<jobjectArray>(env->CallObjectMethod(source, classes().source_arrays));
    check_java(env);
    if (arrays) {
      show(arrays);
      view_.arrays = tensors_->data();
      view_.num_arrays = tensors_->size();
      return;
    }
    view_.batches = env->CallLongMethod(source, classes().source_batches);
    check_java(env);
    view_.begin = begin;
    view_.next = next;
  }
  Data(const Data&) = delete;
  ~Data() {
    if (kept_) env_->DeleteGlobalRef(kept_);
  }

  const onnx_train_data* view() const { return &view_; }

 private:
  void show(jobjectArray tensors) {
    tensors_ = std::make_unique<TensorList>(env_, tensors);
    if (kept_) env_->DeleteGlobalRef(kept_);
    kept_ = env_->NewGlobalRef(tensors);
  }

  static onnx_train_next begin(void* user, int64_t epoch) {
    const Data& self = *static_cast<Data*>(user);
    return self.callbacks_->guarded([&](JNIEnv* env) {
      env->CallVoidMethod(self.source_, classes().source_begin, static_cast<jlong>(epoch));
      return ONNX_TRAIN_CONTINUE;
    });
  }

  static onnx_train_next next(void* user, const onnx_train_tensor** inputs, size_t* count) {
    Data& self = *static_cast<Data*>(user);
    return self.callbacks_->guarded([&](JNIEnv* env) {
      const auto batch = static_cast<jobjectArray>(env->CallObjectMethod(self.source_, classes().source_next));
      check_java(env);
      if (!batch) raise(env, "java/lang/NullPointerException", "next() gave null: an empty array ends an epoch");
      self.show(batch);
      *inputs = self.tensors_->data();
      *count = self.tensors_->size();
      return ONNX_TRAIN_CONTINUE;
    });
  }

  JNIEnv* env_;
  Callbacks* callbacks_;
  jobject source_;
  jobject kept_ = nullptr;
  std::unique_ptr<TensorList> tensors_;
  onnx_train_data view_{};
};

}  // namespace

jlong Java_onnxtrain_Native_datasetOpen(JNIEnv* env, jclass, jstring path, jlong session, jstring entry,
                                        jobjectArray options) {
  return guarded(env, [&] {
    const OptionList list(env, options);
    const std::string name = entry ? to_utf8(env, entry) : "";
    onnx_train_dataset* dataset = nullptr;
    check(env, onnx_train_dataset_open_with(to_utf8(env, path).c_str(), session_at(session),
                                            entry ? name.c_str() : nullptr, list.data(), list.size(), &dataset));
    return address_of(dataset);
  });
}

void Java_onnxtrain_Native_datasetFree(JNIEnv*, jclass, jlong dataset) {
  onnx_train_dataset_free(at<onnx_train_dataset>(dataset));
}

jobjectArray Java_onnxtrain_Native_datasetArrays(JNIEnv* env, jclass, jlong dataset) {
  return guarded(env, [&] {
    const onnx_train_tensor* arrays = nullptr;
    size_t count = 0;
    check(env, onnx_train_dataset_arrays(at<const onnx_train_dataset>(dataset), &arrays, &count));
    return to_java(env, arrays, count);
  });
}

jlongArray Java_onnxtrain_Native_datasetSize(JNIEnv* env, jclass, jlong dataset, jlong batch_size) {
  return guarded(env, [&] {
    int64_t samples = 0, batches = 0;
    check(env, onnx_train_dataset_size(at<const onnx_train_dataset>(dataset), batch_size, &samples, &batches));
    const jlongArray result = env->NewLongArray(2);
    check_java(env);
    const jlong values[] = {samples, batches};
    env->SetLongArrayRegion(result, 0, 2, values);
    return result;
  });
}

jobjectArray Java_onnxtrain_Native_datasetMetadata(JNIEnv* env, jclass, jlong dataset) {
  return guarded(env, [&] {
    std::vector<const char*> texts;
    const char* key = nullptr;
    const auto* const files = at<const onnx_train_dataset>(dataset);
    for (size_t i = 0; const char* value = onnx_train_dataset_metadata(files, i, &key); ++i) {
      texts.insert(texts.end(), {key, value});
    }
    return to_java(env, texts);
  });
}

jlong Java_onnxtrain_Native_safetensorsOpen(JNIEnv* env, jclass, jstring path) {
  return guarded(env, [&] {
    onnx_train_dataset* dataset = nullptr;
    check(env, onnx_train_safetensors_open(to_utf8(env, path).c_str(), &dataset));
    return address_of(dataset);
  });
}

void Java_onnxtrain_Native_safetensorsSave(JNIEnv* env, jclass, jstring path, jobjectArray tensors,
                                           jobjectArray texts) {
  guarded(env, [&] {
    const TensorList list(env, tensors);
    const OptionList metadata(env, texts);
    check(env, onnx_train_safetensors_save(to_utf8(env, path).c_str(), list.data(), list.size(), metadata.data(),
                                           metadata.size()));
  });
}

jint Java_onnxtrain_Native_fit(JNIEnv* env, jclass, jlong session, jobject training, jlong training_files,
                               jobject evaluation, jlong evaluation_files, jobjectArray options, jobject observer) {
  return guarded(env, [&] {
    const OptionList list(env, options);
    Callbacks callbacks(env, observer);
    const Data data(env, &callbacks, training, training_files);
    const std::unique_ptr<Data> held_out =
        evaluation ? std::make_unique<Data>(env, &callbacks, evaluation, evaluation_files) : nullptr;
    onnx_train_stop_reason reason = ONNX_TRAIN_FINISHED;
    callbacks.finish(onnx_train_fit(session_at(session), data.view(), held_out ? held_out->view() : nullptr,
                                    list.data(), list.size(), callbacks.view(), &reason));
    return static_cast<jint>(reason);
  });
}

jobjectArray Java_onnxtrain_Native_evaluate(JNIEnv* env, jclass, jlong session, jobject source, jlong files,
                                            jobjectArray options, jobject observer) {
  return guarded(env, [&] {
    const OptionList list(env, options);
    Callbacks callbacks(env, observer);
    const Data data(env, &callbacks, source, files);
    const onnx_train_metric* metrics = nullptr;
    size_t count = 0;
    callbacks.finish(onnx_train_evaluate(session_at(session), data.view(), list.data(), list.size(), callbacks.view(),
                                         &metrics, &count));
    return to_java(env, metrics, count);
  });
}

jobjectArray Java_onnxtrain_Native_predict(JNIEnv* env, jclass, jlong session, jobject source, jlong files,
                                           jobjectArray options, jobject observer) {
  return guarded(env, [&] {
    const OptionList list(env, options);
    Callbacks callbacks(env, observer);
    const Data data(env, &callbacks, source, files);
    const onnx_train_tensor* outputs = nullptr;
    size_t count = 0;
    callbacks.finish(onnx_train_predict(session_at(session), data.view(), list.data(), list.size(), callbacks.view(),
                                        &outputs, &count));
    return to_java(env, outputs, count);
  });
}

jobjectArray Java_onnxtrain_Native_sessionMetrics(JNIEnv* env, jclass, jlong session, jobjectArray statistics) {
  return guarded(env, [&] {
    const TensorList tensors(env, statistics);
    const onnx_train_metric* metrics = nullptr;
    size_t count = 0;
    check(env, onnx_train_session_metrics(session_at(session), tensors.data(), tensors.size(), &metrics, &count));
    return to_java(env, metrics, count);
  });
}

jobjectArray Java_onnxtrain_Native_sessionMetricTables(JNIEnv* env, jclass, jlong session) {
  return guarded(env, [&] {
    const onnx_train_tensor* tables = nullptr;
    size_t count = 0;
    check(env, onnx_train_session_metric_tables(session_at(session), &tables, &count));
    return to_java(env, tables, count);
  });
}

void Java_onnxtrain_Native_generate(JNIEnv* env, jclass, jlong session, jobjectArray prompts, jobjectArray options,
                                    jobject receiver) {
  guarded(env, [&] {
    const OptionList list(env, options);
    std::vector<std::vector<int64_t>> texts;
    std::vector<const int64_t*> begins;
    std::vector<size_t> lengths;
    for (jsize i = 0; i < env->GetArrayLength(prompts); ++i) {
      const auto prompt = static_cast<jlongArray>(env->GetObjectArrayElement(prompts, i));
      if (!prompt) raise(env, "java/lang/NullPointerException", "a prompt is null");
      std::vector<jlong> tokens(static_cast<size_t>(env->GetArrayLength(prompt)));
      env->GetLongArrayRegion(prompt, 0, static_cast<jsize>(tokens.size()), tokens.data());
      texts.emplace_back(tokens.begin(), tokens.end());
      env->DeleteLocalRef(prompt);
    }
    for (const auto& text : texts) {
      begins.push_back(text.data());
      lengths.push_back(text.size());
    }
    struct Told {
      Callbacks callbacks;
      jobject receiver;
    } told{{env, nullptr}, receiver};
    const auto drawn = [](void* user, size_t text, int64_t token) {
      Told& to = *static_cast<Told*>(user);
      return to.callbacks.guarded([&](JNIEnv* java) {
        return static_cast<onnx_train_next>(
            java->CallIntMethod(to.receiver, classes().on_token, static_cast<jint>(text), static_cast<jlong>(token)));
      });
    };
    told.callbacks.finish(onnx_train_generate(session_at(session), begins.data(), lengths.data(), texts.size(),
                                              list.data(), list.size(), drawn, &told));
  });
}

jstring Java_onnxtrain_Native_generateNote(JNIEnv* env, jclass, jlong session) {
  return guarded(env, [&] { return to_java(env, onnx_train_generate_note(session_at(session))); });
}
