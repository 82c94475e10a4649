// Session.fit of the module _core: the library's trainer over files, and arrays and iterators of Python.
#include <algorithm>

#include "python_bindings/session.h"

namespace onnx_train::python {
namespace {

Input as_input(const onnx_train_tensor& tensor) {
  const std::vector<int64_t> shape(tensor.shape, tensor.shape + tensor.rank);
  return Input(tensor.name, tensor.type, shape, tensor.data, tensor.memory);
}

// Batches of a Python iterator. Functions take the interpreter lock, which a training has released.
class PythonBatches : public DataSource {
 public:
  PythonBatches(SessionHandle* session, std::string entry, const nb::tuple& data)
      : session_(*session),
        entry_(std::move(entry)),
        begin_(data[0]),
        next_(data[1]),
        batches_(nb::cast<int64_t>(data[2])) {}

  int64_t batches() const override { return batches_; }
  void begin(int64_t epoch) override {
    const nb::gil_scoped_acquire lock;
    begin_(epoch);
  }
  std::vector<Input> next() override {
    const nb::gil_scoped_acquire lock;
    batch_.reset();
    const nb::object arrays = next_();
    if (arrays.is_none()) return {};
    batch_ = session_.batch(entry_, nb::cast<nb::dict>(arrays));
    std::vector<Input> inputs;
    for (const onnx_train_tensor& tensor : batch_->tensors) inputs.push_back(as_input(tensor));
    return inputs;
  }

 private:
  SessionHandle& session_;
  const std::string entry_;
  const nb::object begin_, next_;
  const int64_t batches_;
  std::unique_ptr<Batch> batch_;
};

// Whole arrays, in their own element types.
class PythonArrays : public Arrays {
 public:
  PythonArrays(const std::vector<Port>& ports, const std::string& entry, const nb::dict& arrays)
      : PythonArrays(ports, entry, arrays, std::vector<Buffer>(arrays.size())) {}

 private:
  PythonArrays(const std::vector<Port>& ports, const std::string& entry, const nb::dict& arrays,
               std::vector<Buffer> buffers)
      : Arrays(views(ports, entry, arrays, &buffers)), buffers_(std::move(buffers)) {}

  static std::vector<Input> views(const std::vector<Port>& ports, const std::string& entry, const nb::dict& arrays,
                                  std::vector<Buffer>* buffers) {
    std::vector<Input> inputs;
    for (const auto& [key, value] : arrays) {
      const Port& port = find_port(entry, nb::cast<std::string_view>(key), ports);
      Buffer& buffer = (*buffers)[inputs.size()];
      const auto type = buffer.acquire(value.ptr());
      if (!type) throw Error(ONNX_TRAIN_DATA, "'" + port.name + "' is no dense array of numbers");
      const Py_buffer& view = buffer.view();
      inputs.emplace_back(port.name, *type, std::vector<int64_t>(view.shape, view.shape + view.ndim), view.buf);
    }
    return inputs;
  }

  std::vector<Buffer> buffers_;
};

// Passes reports to Python functions, which return an onnx_train_next.
class PythonObserver : public Observer {
 public:
  PythonObserver(nb::object on_step, nb::object on_evaluation, nb::object on_note)
      : on_step_(std::move(on_step)), on_evaluation_(std::move(on_evaluation)), on_note_(std::move(on_note)) {}

  onnx_train_next on_step(const onnx_train_step& s) override {
    const nb::gil_scoped_acquire lock;
    return next(on_step_(s.step, s.epoch, s.samples, s.loss, s.learning_rate, s.accuracy, s.grad_norm, s.seconds,
                         s.loss_scale, s.skipped != 0, s.tokens, s.utilization));
  }
  onnx_train_next on_evaluation(const onnx_train_evaluation& e) override {
    const nb::gil_scoped_acquire lock;
    nb::dict metrics;
    for (size_t i = 0; i < e.num_metrics; ++i) metrics[e.metrics[i].name] = e.metrics[i].value;
    nb::dict tables;
    for (size_t i = 0; i < e.num_tables; ++i) tables[e.tables[i].name] = to_python(e.tables[i]);
    return next(on_evaluation_(e.step, e.epoch, e.train_loss, metrics, tables, e.best != 0));
  }

  onnx_train_next on_note(const std::string& text) override {
    const nb::gil_scoped_acquire lock;
    on_note_(text);
    return ONNX_TRAIN_CONTINUE;
  }

 private:
  static onnx_train_next next(const nb::object& value) { return static_cast<onnx_train_next>(nb::cast<int>(value)); }

  const nb::object on_step_, on_evaluation_, on_note_;
};

}  // namespace

int SessionHandle::fit(const Options& options, const nb::object& data, const nb::object& evaluation,
                       const OnStep& on_step, const OnEvaluation& on_evaluation, const OnNote& on_note) {
  const std::vector<std::string> names = entries();
  const bool accumulates = std::find(names.begin(), names.end(), "accumulate") != names.end();
  const auto source = [&](const nb::object& given, const std::string& entry) -> std::shared_ptr<DataSource> {
    if (nb::isinstance<Dataset>(given)) return {nb::cast<Dataset*>(given), [](DataSource*) {}};  // Python's
    if (nb::isinstance<nb::dict>(given)) {
      return std::make_shared<PythonArrays>(inputs(entry), entry, nb::cast<nb::dict>(given));
    }
    return std::make_shared<PythonBatches>(this, entry, nb::cast<nb::tuple>(given));
  };
  const auto training = source(data, accumulates ? "accumulate" : "step");
  const auto evaluated = evaluation.is_none() ? nullptr : source(evaluation, "evaluate");
  PythonObserver observer(on_step, on_evaluation, on_note);
  Trainer trainer(handle_.get(), training.get(), evaluated.get(), &observer);
  const nb::gil_scoped_release release;
  return trainer.run(options);
}

}  // namespace onnx_train::python
