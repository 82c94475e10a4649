// The module onnx_train._core: the C interface as two Python classes and a function. The package's Python files make
// the public interface of it.
#include "python_bindings/core.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/tuple.h>

#include <cstring>
#include <map>
#include <optional>
#include <tuple>

#include "python_bindings/session.h"

namespace onnx_train::python {
namespace {

using Finding = std::tuple<std::string, std::string, std::string>;  // subject, what, advice

// Errors of the library become exceptions of the package, which say what they are by type and code.
void translate_error(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    // It may quote bytes of a file that are no text.
    const nb::object text =
        nb::steal(PyUnicode_DecodeUTF8(error.what(), static_cast<Py_ssize_t>(std::strlen(error.what())), "replace"));
    const nb::object raised = nb::module_::import_("onnx_train._errors")
                                  .attr("error_of")(static_cast<int>(error.status()), text, error.code());
    PyErr_SetObject(raised.type().ptr(), raised.ptr());
  }
}

// Of the package ml_dtypes: a type that buffers do not have.
bool is_bfloat16(nb::handle array) {
  const nb::object type = nb::getattr(array, "dtype", nb::none());
  return nb::cast<std::string>(nb::str(type)) == "bfloat16";
}

// Views of dense arrays by name.
struct NamedArrays {
  NamedArrays(const nb::dict& arrays, const std::string& what) : buffers(arrays.size()) {
    names.reserve(arrays.size());
    for (const auto& [key, value] : arrays) {
      const std::string& name = names.emplace_back(nb::cast<std::string>(key));
      Buffer& buffer = buffers[tensors.size()];
      auto type = buffer.acquire(value.ptr());
      if (!type && is_bfloat16(value) && buffer.acquire(value.attr("view")("uint16").ptr())) type = ONNX_TRAIN_BFLOAT16;
      if (!type) throw Error(ONNX_TRAIN_DATA, what + " '" + name + "' is no dense array of numbers");
      const Py_buffer& view = buffer.view();
      tensors.push_back({name.c_str(), *type, view.ndim, view.shape, view.buf, ONNX_TRAIN_HOST_MEMORY});
    }
  }

  std::vector<std::string> names;
  std::vector<Buffer> buffers;
  std::vector<onnx_train_tensor> tensors;
};

ModelHandle load(const std::string& path) {
  return new_model([&](onnx_train_model** model) { return onnx_train_model_load(path.c_str(), model); });
}

ModelHandle from_bytes(const nb::bytes& bytes) {
  return new_model(
      [&](onnx_train_model** model) { return onnx_train_model_from_bytes(bytes.c_str(), bytes.size(), model); });
}

ModelHandle build(const ModelHandle& forward, const Options& options) {
  const auto views = detail::views(options);
  return new_model([&](onnx_train_model** model) {
    return onnx_train_model_build(forward.get(), views.data(), views.size(), model);
  });
}

ModelHandle build_with_loss(const ModelHandle& forward, const ModelHandle& loss, const Options& options) {
  const auto views = detail::views(options);
  return new_model([&](onnx_train_model** model) {
    return onnx_train_model_build_with_loss(forward.get(), loss.get(), views.data(), views.size(), model);
  });
}

// The training model, and what has been chosen for it. `data`: a path, or arrays by name.
std::pair<ModelHandle, std::string> build_for_data(const ModelHandle& forward, const nb::object& data,
                                                   const Options& options) {
  const auto views = detail::views(options);
  std::string path;
  std::optional<NamedArrays> arrays;
  if (nb::isinstance<nb::str>(data)) {
    path = nb::cast<std::string>(data);
  } else {
    arrays.emplace(nb::cast<nb::dict>(data), "array");
  }
  const char* note = "";
  ModelHandle model = new_model([&](onnx_train_model** training) {
    return onnx_train_model_build_for_data(
        forward.get(), arrays ? nullptr : path.c_str(), arrays ? arrays->tensors.data() : nullptr,
        arrays ? arrays->tensors.size() : 0, views.data(), views.size(), training, &note);
  });
  return {std::move(model), note};
}

std::string sizes(const ModelHandle& model, const Named& data) {
  const NamedArrays arrays(data, "array");
  const char* text = "";
  unlocked([&] { return onnx_train_model_sizes(model.get(), arrays.tensors.data(), arrays.tensors.size(), &text); });
  return text;
}

std::pair<ModelHandle, ModelHandle> differentiate(const ModelHandle& model, const Options& options) {
  const auto views = detail::views(options);
  onnx_train_model *forward = nullptr, *backward = nullptr;
  unlocked(
      [&] { return onnx_train_model_differentiate(model.get(), views.data(), views.size(), &forward, &backward); });
  return {ModelHandle(forward), ModelHandle(backward)};
}

ModelHandle derivative(const ModelHandle& forward, const std::string& kind, const ModelHandle* loss,
                       const Options& options) {
  const auto views = detail::views(options);
  return new_model([&](onnx_train_model** model) {
    return onnx_train_model_derivative(forward.get(), kind.c_str(), loss ? loss->get() : nullptr, views.data(),
                                       views.size(), model);
  });
}

std::map<std::string, std::string> metadata(const ModelHandle& model) {
  std::map<std::string, std::string> entries;
  const char* key = nullptr;
  for (size_t i = 0; const char* value = onnx_train_model_metadata(model.get(), i, &key); ++i) {
    entries.emplace(key, value);
  }
  return entries;
}

ModelHandle export_inference(const ModelHandle& training, const Options& options) {
  const auto views = detail::views(options);
  return new_model([&](onnx_train_model** model) {
    return onnx_train_model_export_with(training.get(), views.data(), views.size(), model);
  });
}

std::string export_into(const ModelHandle& training, const std::string& path, const Options& options) {
  const auto views = detail::views(options);
  const char* note = "";
  unlocked(
      [&] { return onnx_train_model_export_into(training.get(), views.data(), views.size(), path.c_str(), &note); });
  return note;
}

void save_adapter(const ModelHandle& training, const std::string& folder) {
  unlocked([&] { return onnx_train_model_save_adapter(training.get(), folder.c_str()); });
}

ModelHandle flatten(const ModelHandle& training, const std::string& entry) {
  return new_model(
      [&](onnx_train_model** model) { return onnx_train_model_flatten(training.get(), entry.c_str(), model); });
}

// A copy of the model with other weights: arrays by name.
ModelHandle with_weights(const ModelHandle& model, const Named& arrays, bool strict) {
  const NamedArrays weights(arrays, "weight");
  return new_model([&](onnx_train_model** changed) {
    return onnx_train_model_with_weights(model.get(), weights.tensors.data(), weights.tensors.size(), strict ? 1 : 0,
                                         changed);
  });
}

void save(const ModelHandle& model, const std::string& path) {
  unlocked([&] { return onnx_train_model_save(model.get(), path.c_str()); });
}

nb::bytes to_bytes(const ModelHandle& model) {
  void* data = nullptr;
  size_t size = 0;
  unlocked([&] { return onnx_train_model_to_bytes(model.get(), &data, &size); });
  const std::unique_ptr<void, void (*)(void*)> owner(data, onnx_train_free);
  return nb::bytes(static_cast<const char*>(data), size);
}

std::vector<Finding> findings_of(const onnx_train_finding* found, size_t count) {
  std::vector<Finding> findings;
  for (size_t i = 0; i < count; ++i) findings.emplace_back(found[i].subject, found[i].what, found[i].advice);
  return findings;
}

std::vector<Finding> notes(const ModelHandle& model) {
  const onnx_train_finding* found = nullptr;
  const size_t count = onnx_train_model_notes(model.get(), &found);
  return findings_of(found, count);
}

// text, loss, failure, obstacles, findings
std::tuple<std::string, std::string, std::string, std::vector<Finding>, std::vector<Finding>> check_model(
    const ModelHandle& model, const Options& options) {
  const auto views = detail::views(options);
  onnx_train_report* report = nullptr;
  unlocked([&] { return onnx_train_model_check(model.get(), views.data(), views.size(), &report); });
  const std::unique_ptr<onnx_train_report, void (*)(onnx_train_report*)> owner(report, onnx_train_report_free);
  const onnx_train_finding *obstacles = nullptr, *findings = nullptr;
  const size_t num_obstacles = onnx_train_report_obstacles(report, &obstacles);
  const size_t num_findings = onnx_train_report_findings(report, &findings);
  return {onnx_train_report_text(report), onnx_train_report_loss(report), onnx_train_report_failure(report),
          findings_of(obstacles, num_obstacles), findings_of(findings, num_findings)};
}

void save_safetensors(const std::string& path, const Named& tensors, const Options& metadata) {
  const NamedArrays arrays(tensors, "tensor");
  const auto texts = detail::views(metadata);
  unlocked([&] {
    return onnx_train_safetensors_save(path.c_str(), arrays.tensors.data(), arrays.tensors.size(), texts.data(),
                                       texts.size());
  });
}

double learning_rate(const Options& options, int64_t step) {
  const auto views = detail::views(options);
  double rate = 0;
  check(onnx_train_learning_rate(views.data(), views.size(), step, &rate));
  return rate;
}

std::pair<std::vector<int64_t>, std::vector<int64_t>> split_rows(int64_t samples, const Options& options) {
  return split(samples, options);
}

}  // namespace
}  // namespace onnx_train::python

NB_MODULE(_core, module) {
  using namespace onnx_train::python;
  // PyTorch keeps graphs, and with them sessions, until after the interpreter has ended: no leak of ours.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(translate_error);
  module.def("version", onnx_train_version);
  module.def("split", split_rows, nb::arg("samples"), nb::arg("options"));
  module.def("learning_rate", learning_rate, nb::arg("options"), nb::arg("step"));
  module.def("save_safetensors", save_safetensors, nb::arg("path"), nb::arg("tensors"), nb::arg("metadata"));
  nb::class_<ModelHandle>(module, "Model")
      .def_static("load", load, nb::arg("path"))
      .def_static("from_bytes", from_bytes, nb::arg("data"))
      .def("build", build, nb::arg("options"))
      .def("build_with_loss", build_with_loss, nb::arg("loss"), nb::arg("options"))
      .def("sizes", sizes, nb::arg("arrays"))
      .def("build_for_data", build_for_data, nb::arg("data"), nb::arg("options"))
      .def("differentiate", differentiate, nb::arg("options"))
      .def("derivative", derivative, nb::arg("kind"), nb::arg("loss").none(), nb::arg("options"))
      .def("export", export_inference, nb::arg("options"))
      .def("export_into", export_into, nb::arg("path"), nb::arg("options"))
      .def("save_adapter", save_adapter, nb::arg("folder"))
      .def("flatten", flatten, nb::arg("entry"))
      .def("with_weights", with_weights, nb::arg("arrays"), nb::arg("strict"))
      .def("check", check_model, nb::arg("options"))
      .def("metadata", metadata)
      .def("notes", notes)
      .def("save", save, nb::arg("path"))
      .def("to_bytes", to_bytes);
  define_session(module);
}
