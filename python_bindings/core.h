// What the files of the module _core share: models, options, errors. The interpreter lock guards everything here; it is
// released while the library works.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "onnx_train/onnx_train.h"
#include "onnx_train/onnx_train.hpp"

namespace onnx_train::python {

namespace nb = nanobind;

// What the stub of the module (_core.pyi) says of Python's objects; at run time they are objects.
class AnyArray : public nb::object {
 public:
  using nb::object::object;
  using nb::object::operator=;
  static constexpr auto Name = nb::detail::const_name("numpy.typing.NDArray[typing.Any]");
};
using Any = nb::typed<nb::object, nb::any>;
using NumpyArray = nb::typed<nb::object, AnyArray>;
using NumpyArrays = nb::typed<nb::dict, nb::str, AnyArray>;
using Named = nb::typed<nb::dict, nb::str, nb::any>;  // arrays and numbers by name
using Sizes = nb::typed<nb::tuple, nb::int_, nb::ellipsis>;

// f() without the interpreter lock. Throws Error unless it returns ONNX_TRAIN_OK.
template <typename F>
void unlocked(const F& f) {
  nb::gil_scoped_release release;
  check(f());
}

// A model and its owner. Several Python objects may use one at the same time: models do not change.
struct ModelHandle {
  explicit ModelHandle(onnx_train_model* model) : handle(model, onnx_train_model_free) {}
  onnx_train_model* get() const { return handle.get(); }

  std::unique_ptr<onnx_train_model, void (*)(onnx_train_model*)> handle;
};

// f(&model), where f is a function of the C interface that gives a model.
template <typename F>
ModelHandle new_model(const F& f) {
  onnx_train_model* model = nullptr;
  unlocked([&] { return f(&model); });
  return ModelHandle(model);
}

// Defines the class Session.
void define_session(nb::module_& module);

}  // namespace onnx_train::python
