// Models, reports, schedules and splits. The first argument says whether a call gives a promise.
#include "addon.h"

namespace onnx_train_node {
namespace {

using Options = std::shared_ptr<OptionList>;

// A model that run(&model) makes.
napi_value made(napi_env env, const Arguments& given, napi_value kept,
                std::function<onnx_train_status(onnx_train_model**)> run) {
  const auto model = std::make_shared<onnx_train_model*>(nullptr);
  return call(
      env, given.flag(0), kept, [=] { return run(model.get()); }, [=](napi_env e) { return wrap(e, *model); });
}

napi_value nothing(napi_env env) { return undefined(env); }

napi_value findings(napi_env env, const onnx_train_finding* found, size_t count) {
  const napi_value array = new_array(env, count);
  for (size_t i = 0; i < count; ++i) {
    napi_value object = nullptr;
    check(env, napi_create_object(env, &object));
    put(env, object, "subject", to_js(env, found[i].subject));
    put(env, object, "what", to_js(env, found[i].what));
    put(env, object, "advice", to_js(env, found[i].advice));
    put_at(env, array, i, object);
  }
  return array;
}

napi_value version(napi_env env, const Arguments&) { return to_js(env, onnx_train_version()); }

napi_value options(napi_env env, const Arguments& given) {
  return to_js(env, onnx_train_options(given.text(0).c_str()));
}

napi_value learning_rate(napi_env env, const Arguments& given) {
  const Options list = given.options(1);
  double rate = 0;
  check(env, onnx_train_learning_rate(list->data(), list->size(), given.number(0), &rate));
  return to_js(env, rate);
}

napi_value split(napi_env env, const Arguments& given) {
  const Options list = given.options(1);
  const int64_t samples = given.number(0);
  const auto room = static_cast<size_t>(samples < 0 ? 0 : samples);
  std::vector<int64_t> training(room), evaluation(room);
  size_t num_training = 0, num_evaluation = 0;
  check(env, onnx_train_split(samples, list->data(), list->size(), training.data(), &num_training, evaluation.data(),
                              &num_evaluation));
  const napi_value pair = new_array(env, 2);
  put_at(env, pair, 0, numbers(env, training.data(), num_training));
  put_at(env, pair, 1, numbers(env, evaluation.data(), num_evaluation));
  return pair;
}

napi_value model_load(napi_env env, const Arguments& given) {
  const std::string path = given.text(1);
  return made(env, given, nullptr, [=](auto** model) { return onnx_train_model_load(path.c_str(), model); });
}

napi_value model_from_bytes(napi_env env, const Arguments& given) {
  void* data = nullptr;
  size_t bytes = 0;
  check(env, napi_get_typedarray_info(env, given[1], nullptr, &bytes, &data, nullptr, nullptr));
  return made(env, given, given[1], [=](auto** model) {
    return onnx_train_model_from_bytes(bytes ? data : static_cast<const void*>(""), bytes, model);
  });
}

napi_value model_save(napi_env env, const Arguments& given) {
  const HandlePtr model = given.handle(1);
  const std::string path = given.text(2);
  return call(
      env, given.flag(0), nullptr, [=] { return onnx_train_model_save(model_of(model), path.c_str()); }, nothing);
}

napi_value model_to_bytes(napi_env env, const Arguments& given) {
  const HandlePtr model = given.handle(1);
  struct Bytes {
    void* data = nullptr;
    size_t size = 0;
    ~Bytes() { onnx_train_free(data); }
  };
  const auto bytes = std::make_shared<Bytes>();
  return call(
      env, given.flag(0), nullptr,
      [=] { return onnx_train_model_to_bytes(model_of(model), &bytes->data, &bytes->size); },
      [=](napi_env e) {
        napi_value buffer = nullptr;
        check(e, napi_create_buffer_copy(e, bytes->size, bytes->data, nullptr, &buffer));
        return buffer;
      });
}

napi_value model_metadata(napi_env env, const Arguments& given) {
  const HandlePtr model = given.handle(0);
  napi_value object = nullptr;
  check(env, napi_create_object(env, &object));
  const char* key = nullptr;
  for (size_t i = 0; const char* value = onnx_train_model_metadata(model_of(model), i, &key); ++i) {
    put(env, object, key, to_js(env, value));
  }
  return object;
}

napi_value model_notes(napi_env env, const Arguments& given) {
  const HandlePtr model = given.handle(0);
  const onnx_train_finding* notes = nullptr;
  const size_t count = onnx_train_model_notes(model_of(model), &notes);
  return findings(env, notes, count);
}

napi_value model_build(napi_env env, const Arguments& given) {
  const HandlePtr forward = given.handle(1);
  const Options list = given.options(2);
  return made(env, given, nullptr, [=](auto** model) {
    return onnx_train_model_build(model_of(forward), list->data(), list->size(), model);
  });
}

napi_value model_build_with_loss(napi_env env, const Arguments& given) {
  const HandlePtr forward = given.handle(1), loss = given.handle(2);
  const Options list = given.options(3);
  return made(env, given, nullptr, [=](auto** model) {
    return onnx_train_model_build_with_loss(model_of(forward), model_of(loss), list->data(), list->size(), model);
  });
}

napi_value model_build_for_data(napi_env env, const Arguments& given) {
  const HandlePtr forward = given.handle(1);
  const auto path = given.is_given(2) ? std::make_shared<std::string>(given.text(2)) : nullptr;
  const auto arrays = given.tensors(3);
  const Options list = given.options(4);
  struct Built {
    onnx_train_model* model = nullptr;
    std::string note;
  };
  const auto built = std::make_shared<Built>();
  const auto run = [=] {
    const char* note = "";
    const onnx_train_status status =
        onnx_train_model_build_for_data(model_of(forward), path ? path->c_str() : nullptr, arrays->data(),
                                        arrays->size(), list->data(), list->size(), &built->model, &note);
    if (status == ONNX_TRAIN_OK) built->note = note;  // valid until the thread's next call
    return status;
  };
  return call(env, given.flag(0), given[3], run, [=](napi_env e) {
    const napi_value pair = new_array(e, 2);
    put_at(e, pair, 0, wrap(e, built->model));
    put_at(e, pair, 1, to_js(e, built->note.c_str()));
    return pair;
  });
}

napi_value model_sizes(napi_env env, const Arguments& given) {
  const HandlePtr forward = given.handle(0);
  const auto arrays = given.tensors(1);
  const char* sizes = "";
  check(env, onnx_train_model_sizes(model_of(forward), arrays->data(), arrays->size(), &sizes));
  return to_js(env, sizes);
}

napi_value model_check(napi_env env, const Arguments& given) {
  const HandlePtr forward = given.handle(1);
  const Options list = given.options(2);
  struct Report {
    onnx_train_report* handle = nullptr;
    ~Report() { onnx_train_report_free(handle); }
  };
  const auto report = std::make_shared<Report>();
  return call(
      env, given.flag(0), nullptr,
      [=] { return onnx_train_model_check(model_of(forward), list->data(), list->size(), &report->handle); },
      [=](napi_env e) {
        napi_value object = nullptr;
        check(e, napi_create_object(e, &object));
        put(e, object, "text", to_js(e, onnx_train_report_text(report->handle)));
        put(e, object, "loss", to_js(e, onnx_train_report_loss(report->handle)));
        put(e, object, "failure", to_js(e, onnx_train_report_failure(report->handle)));
        const onnx_train_finding* found = nullptr;
        size_t count = onnx_train_report_obstacles(report->handle, &found);
        put(e, object, "obstacles", findings(e, found, count));
        count = onnx_train_report_findings(report->handle, &found);
        put(e, object, "findings", findings(e, found, count));
        return object;
      });
}

napi_value model_export(napi_env env, const Arguments& given) {
  const HandlePtr training = given.handle(1);
  const Options list = given.options(2);
  return made(env, given, nullptr, [=](auto** model) {
    return onnx_train_model_export_with(model_of(training), list->data(), list->size(), model);
  });
}

napi_value model_export_into(napi_env env, const Arguments& given) {
  const HandlePtr training = given.handle(1);
  const Options list = given.options(2);
  const std::string path = given.text(3);
  const auto text = std::make_shared<std::string>();
  return call(
      env, given.flag(0), nullptr,
      [=] {
        const char* note = "";
        const onnx_train_status status =
            onnx_train_model_export_into(model_of(training), list->data(), list->size(), path.c_str(), &note);
        if (status == ONNX_TRAIN_OK) *text = note;  // valid until the thread's next call
        return status;
      },
      [=](napi_env e) { return to_js(e, text->c_str()); });
}

napi_value model_save_adapter(napi_env env, const Arguments& given) {
  const HandlePtr training = given.handle(1);
  const std::string folder = given.text(2);
  return call(
      env, given.flag(0), nullptr, [=] { return onnx_train_model_save_adapter(model_of(training), folder.c_str()); },
      nothing);
}

napi_value model_flatten(napi_env env, const Arguments& given) {
  const HandlePtr training = given.handle(1);
  const std::string name = given.text(2);
  return made(env, given, nullptr,
              [=](auto** model) { return onnx_train_model_flatten(model_of(training), name.c_str(), model); });
}

napi_value model_differentiate(napi_env env, const Arguments& given) {
  const HandlePtr forward = given.handle(1);
  const Options list = given.options(2);
  struct Passes {
    onnx_train_model *forward = nullptr, *backward = nullptr;
  };
  const auto passes = std::make_shared<Passes>();
  return call(
      env, given.flag(0), nullptr,
      [=] {
        return onnx_train_model_differentiate(model_of(forward), list->data(), list->size(), &passes->forward,
                                              &passes->backward);
      },
      [=](napi_env e) {
        const napi_value pair = new_array(e, 2);
        put_at(e, pair, 0, wrap(e, passes->forward));
        put_at(e, pair, 1, wrap(e, passes->backward));
        return pair;
      });
}

napi_value model_derivative(napi_env env, const Arguments& given) {
  const HandlePtr forward = given.handle(1), loss = given.handle(3);
  const std::string kind = given.text(2);
  const Options list = given.options(4);
  return made(env, given, nullptr, [=](auto** model) {
    return onnx_train_model_derivative(model_of(forward), kind.c_str(), model_of(loss), list->data(), list->size(),
                                       model);
  });
}

napi_value model_with_weights(napi_env env, const Arguments& given) {
  const HandlePtr model = given.handle(1);
  const auto weights = given.tensors(2);
  const bool strict = given.flag(3);
  return made(env, given, given[2], [=](auto** changed) {
    return onnx_train_model_with_weights(model_of(model), weights->data(), weights->size(), strict, changed);
  });
}

}  // namespace

std::vector<Export> model_exports() {
  return {{"version", entry<version>},
          {"options", entry<options>},
          {"learningRate", entry<learning_rate>},
          {"split", entry<split>},
          {"modelLoad", entry<model_load>},
          {"modelFromBytes", entry<model_from_bytes>},
          {"modelSave", entry<model_save>},
          {"modelToBytes", entry<model_to_bytes>},
          {"modelMetadata", entry<model_metadata>},
          {"modelNotes", entry<model_notes>},
          {"modelBuild", entry<model_build>},
          {"modelBuildWithLoss", entry<model_build_with_loss>},
          {"modelBuildForData", entry<model_build_for_data>},
          {"modelSizes", entry<model_sizes>},
          {"modelCheck", entry<model_check>},
          {"modelExport", entry<model_export>},
          {"modelExportInto", entry<model_export_into>},
          {"modelSaveAdapter", entry<model_save_adapter>},
          {"modelFlatten", entry<model_flatten>},
          {"modelDifferentiate", entry<model_differentiate>},
          {"modelDerivative", entry<model_derivative>},
          {"modelWithWeights", entry<model_with_weights>}};
}

}  // namespace onnx_train_node
