// Training, evaluation, prediction and texts: calls on a worker's thread that ask JavaScript in between.
//
// While the worker waits for an answer, JavaScript's thread calls ask(kind, told) of index.js, which calls the program
// and then answer(bridge, next, tensors), at once or when a promise of the program is fulfilled.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "addon.h"

namespace onnx_train_node {
namespace {

class Bridge {
 public:
  explicit Bridge(napi_env env) : env_(env) {
    observer_.size = sizeof observer_;
    observer_.user = this;
    observer_.on_step = on_step;
    observer_.on_evaluation = on_evaluation;
    observer_.on_checkpoint = [](void* user, const char* path) { return of(user).text("checkpoint", path); };
    observer_.on_note = [](void* user, const char* text) { return of(user).text("note", text); };
  }
  Bridge(const Bridge&) = delete;

  // Begins to call ask(kind, told), which keeps `self` until the last question is heard.
  void open(napi_value ask, const std::shared_ptr<Bridge>& self) {
    auto kept = std::make_unique<std::shared_ptr<Bridge>>(self);
    const auto finalize = [](napi_env, void* data, void*) { delete static_cast<std::shared_ptr<Bridge>*>(data); };
    check(env_, napi_create_threadsafe_function(env_, ask, nullptr, to_js(env_, "onnx-train callbacks"), 0, 1,
                                                kept.get(), finalize, this, on_call, &function_));
    kept.release();
    check(env_, napi_add_env_cleanup_hook(env_, on_exit, this));
  }

  // Ends what belongs to JavaScript, after the call of the library.
  void finish() {
    napi_remove_env_cleanup_hook(env_, on_exit, this);
    for (napi_ref& kept : kept_) {
      if (kept) napi_delete_reference(env_, kept);
      kept = nullptr;
    }
    napi_release_threadsafe_function(function_, napi_tsfn_release);
  }

  // What the program wants to be told; steps are not asked for where it does not.
  void listen(bool steps) { steps_ = steps; }
  const onnx_train_observer* observer() const { return &observer_; }

  // Batches of the program for data number `i`, 0 of the training and 1 of the evaluation.
  onnx_train_data batches(int i, int64_t count) {
    sources_[i] = {this, i};
    onnx_train_data data{};
    data.size = sizeof data;
    data.user = &sources_[i];
    data.batches = count;
    data.begin = [](void* user, int64_t epoch) {
      const Source& source = *static_cast<Source*>(user);
      return source.bridge->ask("begin", [&](napi_env env) {
        const int64_t values[] = {source.number, epoch};
        return numbers(env, values, 2);
      });
    };
    data.next = [](void* user, const onnx_train_tensor** inputs, size_t* count_of) {
      const Source& source = *static_cast<Source*>(user);
      Bridge& self = *source.bridge;
      self.asked_by_ = source.number;
      const onnx_train_next next =
          self.ask("next", [&](napi_env env) { return to_js(env, static_cast<double>(source.number)); });
      if (next != ONNX_TRAIN_CONTINUE) return next;
      *inputs = self.batch_[source.number]->data();
      *count_of = self.batch_[source.number]->size();
      return next;
    };
    return data;
  }

  static onnx_train_next on_token(void* user, size_t text, int64_t token) {
    return of(user).ask("token", [&](napi_env env) {
      const int64_t values[] = {static_cast<int64_t>(text), token};
      return numbers(env, values, 2);
    });
  }

  // JavaScript's thread ends: the worker asks no more, and its call fails at the next step.
  static void on_exit(void* data) {
    Bridge& self = of(data);
    const std::lock_guard<std::mutex> lock(self.mutex_);
    self.closed_ = true;
    self.changed_.notify_all();
  }

  // JavaScript's answer to what the worker asks.
  void answer(onnx_train_next next, napi_value tensors) {
    if (tensors) {
      batch_[asked_by_] = std::make_unique<TensorList>(env_, tensors);
      if (kept_[asked_by_]) check(env_, napi_delete_reference(env_, kept_[asked_by_]));
      kept_[asked_by_] = nullptr;
      check(env_, napi_create_reference(env_, tensors, 1, &kept_[asked_by_]));
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    next_ = next;
    answered_ = true;
    changed_.notify_all();
  }

 private:
  static constexpr std::chrono::milliseconds kLookAgain{50};

  struct Source {
    Bridge* bridge = nullptr;
    int number = 0;
  };

  static Bridge& of(void* user) { return *static_cast<Bridge*>(user); }

  // By the worker: whether JavaScript's thread ends, and will not answer. A thread of `worker_threads` that is
  // terminated waits for its workers before it calls on_exit; it cannot call JavaScript then, which a question without
  // meaning finds out.
  bool is_ending() {
    const auto now = std::chrono::steady_clock::now();
    if (now - probed_at_ > kLookAgain && !probing_.exchange(true)) {
      probed_at_ = now;
      if (napi_call_threadsafe_function(function_, this, napi_tsfn_blocking) != napi_ok) closed_ = true;
    }
    return closed_;
  }

  // By the worker: JavaScript's answer to (kind, told(env)). FAIL when the process ends.
  onnx_train_next ask(const char* kind, const std::function<napi_value(napi_env)>& told) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (closed_) return ONNX_TRAIN_FAIL;
    kind_ = kind;
    told_ = &told;
    answered_ = false;
    if (napi_call_threadsafe_function(function_, nullptr, napi_tsfn_blocking) != napi_ok) return ONNX_TRAIN_FAIL;
    while (!changed_.wait_for(lock, kLookAgain, [&] { return answered_ || closed_; })) {
      if (is_ending()) break;
    }
    told_ = nullptr;
    return answered_ ? next_ : ONNX_TRAIN_FAIL;
  }

  onnx_train_next text(const char* kind, const char* text_of) {
    return ask(kind, [&](napi_env env) { return to_js(env, text_of); });
  }

  // On JavaScript's thread, for ask().
  static void on_call(napi_env env, napi_value function, void* context, void* probe) {
    Bridge& self = of(context);
    if (!env) return;  // the process ends
    {
      const std::lock_guard<std::mutex> lock(self.mutex_);
      if (self.closed_ || (!probe && !self.told_)) return;
    }
    try {
      napi_value arguments[] = {to_js(env, probe ? "probe" : self.kind_), probe ? undefined(env) : (*self.told_)(env)};
      check(env, napi_call_function(env, undefined(env), function, 2, arguments, nullptr));
      if (probe) self.probing_ = false;
    } catch (const Pending&) {  // index.js does not throw: it cannot be called
      napi_value error = nullptr;
      napi_get_and_clear_last_exception(env, &error);
      on_exit(&self);
    }
  }

  static onnx_train_next on_step(void* user, const onnx_train_step* step) {
    Bridge& self = of(user);
    if (!self.steps_) return self.is_ending() ? ONNX_TRAIN_FAIL : ONNX_TRAIN_CONTINUE;
    return self.ask("step", [&](napi_env env) {
      napi_value object = nullptr, skipped = nullptr;
      check(env, napi_create_object(env, &object));
      check(env, napi_get_boolean(env, step->skipped != 0, &skipped));
      const std::pair<const char*, double> values[] = {{"step", static_cast<double>(step->step)},
                                                       {"epoch", static_cast<double>(step->epoch)},
                                                       {"samples", static_cast<double>(step->samples)},
                                                       {"loss", step->loss},
                                                       {"learningRate", step->learning_rate},
                                                       {"accuracy", step->accuracy},
                                                       {"gradNorm", step->grad_norm},
                                                       {"seconds", step->seconds},
                                                       {"lossScale", step->loss_scale},
                                                       {"tokens", static_cast<double>(step->tokens)},
                                                       {"utilization", step->utilization}};
      for (const auto& [name, value] : values) put(env, object, name, to_js(env, value));
      put(env, object, "skipped", skipped);
      return object;
    });
  }

  static onnx_train_next on_evaluation(void* user, const onnx_train_evaluation* evaluation) {
    return of(user).ask("evaluation", [&](napi_env env) {
      napi_value object = nullptr, best = nullptr;
      check(env, napi_create_object(env, &object));
      check(env, napi_get_boolean(env, evaluation->best != 0, &best));
      put(env, object, "step", to_js(env, static_cast<double>(evaluation->step)));
      put(env, object, "epoch", to_js(env, static_cast<double>(evaluation->epoch)));
      put(env, object, "trainLoss", to_js(env, evaluation->train_loss));
      put(env, object, "best", best);
      put(env, object, "metrics", to_js(env, evaluation->metrics, evaluation->num_metrics));
      put(env, object, "tables", to_js(env, evaluation->tables, evaluation->num_tables, nullptr));
      return object;
    });
  }

  napi_env env_;
  napi_threadsafe_function function_ = nullptr;
  onnx_train_observer observer_{};
  bool steps_ = false;
  Source sources_[2];
  int asked_by_ = 0;
  std::unique_ptr<TensorList> batch_[2];
  napi_ref kept_[2] = {nullptr, nullptr};  // the tensors of the batches

  std::mutex mutex_;
  std::condition_variable changed_;
  const char* kind_ = "";
  const std::function<napi_value(napi_env)>* told_ = nullptr;
  bool answered_ = false;
  std::atomic<bool> closed_ = false;   // JavaScript does not answer any more
  std::atomic<bool> probing_ = false;  // is_ending() waits to be heard
  std::chrono::steady_clock::time_point probed_at_ = std::chrono::steady_clock::now();
  onnx_train_next next_ = ONNX_TRAIN_FAIL;
};

using BridgePtr = std::shared_ptr<Bridge>;

// An object by which JavaScript answers: bridge(ask).
napi_value bridge(napi_env env, const Arguments& given) {
  auto box = std::make_unique<BridgePtr>(std::make_shared<Bridge>(env));
  (*box)->open(given[0], *box);
  napi_value external = nullptr;
  const auto finalize = [](napi_env, void* data, void*) { delete static_cast<BridgePtr*>(data); };
  check(env, napi_create_external(env, box.get(), finalize, nullptr, &external));
  box.release();
  return external;
}

BridgePtr bridge_of(napi_env env, napi_value external) {
  void* box = nullptr;
  check(env, napi_get_value_external(env, external, &box));
  return *static_cast<BridgePtr*>(box);
}

// answer(bridge, next, tensors or null). Throws for tensors that are none, and then there is no answer.
napi_value answer(napi_env env, const Arguments& given) {
  bridge_of(env, given[0])
      ->answer(static_cast<onnx_train_next>(given.number(1)), given.is_given(2) ? given[2] : nullptr);
  return nullptr;
}

// The process ends, which waits for its workers.
napi_value abandon(napi_env env, const Arguments& given) {
  Bridge::on_exit(bridge_of(env, given[0]).get());
  return nullptr;
}

napi_value finish(napi_env env, const Arguments& given) {
  bridge_of(env, given[0])->finish();
  return nullptr;
}

// Data from {arrays: tensors}, {files: dataset} or {batches: number}.
struct Data {
  onnx_train_data view{};
  HandlePtr files;
  std::shared_ptr<TensorList> arrays;
};

std::shared_ptr<Data> data_of(napi_env env, const Arguments& given, size_t kind, size_t value, const BridgePtr& bridge,
                              int i) {
  auto data = std::make_shared<Data>();
  data->view.size = sizeof data->view;
  const std::string name = given.text(kind);
  if (name == "files") {
    data->files = given.handle(value);
    data->view.dataset = dataset_of(data->files);
  } else if (name == "arrays") {
    data->arrays = given.tensors(value);
    data->view.arrays = data->arrays->data();
    data->view.num_arrays = data->arrays->size();
  } else if (bridge) {
    data->view = bridge->batches(i, given.number(value));
  } else {
    raise_type_error(env, "arrays or files are expected");
  }
  return data;
}

// fit(session, bridge, options, steps, kind, data[, kind, data]): a promise of the reason.
napi_value fit(napi_env env, const Arguments& given) {
  const HandlePtr session = given.handle(0);
  const BridgePtr told = bridge_of(env, given[1]);
  const auto list = given.options(2);
  told->listen(given.flag(3));
  const auto training = data_of(env, given, 4, 5, told, 0);
  const auto evaluation = given.is_given(6) ? data_of(env, given, 6, 7, told, 1) : nullptr;
  const auto reason = std::make_shared<onnx_train_stop_reason>(ONNX_TRAIN_FINISHED);
  const napi_value kept = new_array(env, 2);  // arrays and the bridge
  put_at(env, kept, 0, given[5]);
  put_at(env, kept, 1, given[7]);
  return call(
      env, true, kept,
      [=] {
        return onnx_train_fit(session_of(session), &training->view, evaluation ? &evaluation->view : nullptr,
                              list->data(), list->size(), told->observer(), reason.get());
      },
      [=](napi_env e) { return to_js(e, static_cast<double>(*reason)); });
}

// evaluate(session, bridge, options, kind, data): a promise of the metrics.
napi_value evaluate(napi_env env, const Arguments& given) {
  const HandlePtr session = given.handle(0);
  const BridgePtr told = bridge_of(env, given[1]);
  const auto list = given.options(2);
  const auto data = data_of(env, given, 3, 4, told, 0);
  struct Metrics {
    const onnx_train_metric* values = nullptr;
    size_t count = 0;
  };
  const auto metrics = std::make_shared<Metrics>();
  return call(
      env, true, given[4],
      [=] {
        return onnx_train_evaluate(session_of(session), &data->view, list->data(), list->size(), told->observer(),
                                   &metrics->values, &metrics->count);
      },
      [=](napi_env e) { return to_js(e, metrics->values, metrics->count); });
}

// predict(session, bridge, options, kind, data): a promise of the outputs.
napi_value predict(napi_env env, const Arguments& given) {
  const HandlePtr session = given.handle(0);
  const BridgePtr told = bridge_of(env, given[1]);
  const auto list = given.options(2);
  const auto data = data_of(env, given, 3, 4, nullptr, 0);
  struct Outputs {
    const onnx_train_tensor* tensors = nullptr;
    size_t count = 0;
  };
  const auto outputs = std::make_shared<Outputs>();
  return call(
      env, true, given[4],
      [=] {
        return onnx_train_predict(session_of(session), &data->view, list->data(), list->size(), told->observer(),
                                  &outputs->tensors, &outputs->count);
      },
      [=](napi_env e) { return to_js(e, outputs->tensors, outputs->count, session); });
}

// generate(session, bridge, options, prompts): a promise of nothing; tokens are told.
napi_value generate(napi_env env, const Arguments& given) {
  const HandlePtr session = given.handle(0);
  const BridgePtr told = bridge_of(env, given[1]);
  const auto list = given.options(2);
  struct Prompts {
    std::vector<std::vector<int64_t>> texts;
    std::vector<const int64_t*> begins;
    std::vector<size_t> lengths;
  };
  const auto prompts = std::make_shared<Prompts>();
  uint32_t count = 0;
  check(env, napi_get_array_length(env, given[3], &count));
  for (uint32_t i = 0; i < count; ++i) {
    napi_value text = nullptr;
    uint32_t length = 0;
    check(env, napi_get_element(env, given[3], i, &text));
    check(env, napi_get_array_length(env, text, &length));
    std::vector<int64_t>& tokens = prompts->texts.emplace_back(length);
    for (uint32_t t = 0; t < length; ++t) {
      napi_value token = nullptr;
      check(env, napi_get_element(env, text, t, &token));
      check(env, napi_get_value_int64(env, token, &tokens[t]));
    }
  }
  for (const auto& text : prompts->texts) {
    prompts->begins.push_back(text.data());
    prompts->lengths.push_back(text.size());
  }
  return call(
      env, true, nullptr,
      [=] {
        return onnx_train_generate(session_of(session), prompts->begins.data(), prompts->lengths.data(),
                                   prompts->begins.size(), list->data(), list->size(), Bridge::on_token, told.get());
      },
      undefined);
}

}  // namespace

std::vector<Export> training_exports() {
  return {{"bridge", entry<bridge>},   {"answer", entry<answer>},    {"finish", entry<finish>},
          {"abandon", entry<abandon>}, {"fit", entry<fit>},          {"evaluate", entry<evaluate>},
          {"predict", entry<predict>}, {"generate", entry<generate>}};
}

}  // namespace onnx_train_node
