// Every operator with a kernel, ours included, in files that no exporter writes: its inputs have other ranks, sizes,
// element types and contents than in the rows of the table, or are left out; attributes are out of range. Such a node
// is refused with an Error or computed. Whatever else a kernel reads or writes, guards in the arena and sanitizers see.
#include <gtest/gtest.h>

#include <climits>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes.h"
#include "runtime/plan/plan.h"
#include "runtime/session/session.h"
#include "tests/op_cases/make_case.h"

namespace onnx_train::hostile_inputs_test {
namespace {

constexpr size_t kRows = 2;                 // of an operator
constexpr size_t kLargest = 16u << 20;      // bytes: what takes more is planned and not run
constexpr int64_t kMostElements = 1 << 16;  // of an input

// A file with one node, and what is fed to it.
struct File {
  onnx::ModelProto proto;
  std::map<std::string, Tensor> given;

  onnx::NodeProto& node() { return *proto.mutable_graph()->mutable_node(proto.graph().node_size() - 1); }
};

File write(const OpCase& row) {
  File file;
  const std::vector<Tensor> inputs = draw_inputs(row);
  const Case made = make_case(row, inputs, DType::kFloat, false);
  to_proto(made.model, &file.proto);
  for (auto& output : *file.proto.mutable_graph()->mutable_output()) {
    output.mutable_type()->mutable_tensor_type()->clear_shape();
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (made.inputs[i]) file.given[made.inputs[i]->name()] = inputs[i].cast(made.inputs[i]->dtype());
  }
  return file;
}

// Writes what is fed: values of initializers, types of inputs.
void declare(File* file, bool dynamic) {
  onnx::GraphProto& graph = *file->proto.mutable_graph();
  for (auto& initializer : *graph.mutable_initializer()) {
    const auto found = file->given.find(initializer.name());
    if (found == file->given.end()) continue;
    initializer.Clear();
    to_proto(found->second, found->first, &initializer);
    file->given.erase(found);
  }
  for (auto& input : *graph.mutable_input()) {
    const Tensor& tensor = file->given.at(input.name());
    Dims dims(tensor.shape().begin(), tensor.shape().end());
    for (size_t k = 0; dynamic && k < dims.size(); ++k) dims[k] = Dim(concat(input.name(), "_", k));
    to_proto(TensorType{tensor.dtype(), dims}, input.mutable_type());
  }
}

// What was changed, and how.
struct Change {
  std::string what;
  std::function<void(File*)> apply;
};

// As many elements of the tensor, one after the other and again, as the shape has.
Tensor resized(const Tensor& tensor, const Shape& shape) {
  Tensor result(tensor.dtype(), shape);
  for (int64_t i = 0; i < result.size() && tensor.size() > 0; ++i) result.set(i, tensor.at(i % tensor.size()));
  return result;
}

std::vector<Shape> hostile_shapes(const Shape& shape) {
  std::vector<Shape> shapes = {{}, {0}, {1}, Shape(9, 1)};
  for (size_t k = 0; k < shape.size(); ++k) {
    for (int64_t size : {int64_t{0}, int64_t{1}, shape[k] + 1, int64_t{33}}) {
      shapes.push_back(shape);
      shapes.back()[k] = size;
    }
  }
  for (size_t at : {size_t{0}, shape.size()}) {
    shapes.push_back(shape);
    shapes.back().insert(shapes.back().begin() + static_cast<std::ptrdiff_t>(at), 1 + static_cast<int64_t>(at > 0));
  }
  if (!shape.empty()) shapes.emplace_back(shape.begin() + 1, shape.end());
  shapes.emplace_back(shape.rbegin(), shape.rend());
  return shapes;
}

class Changes {
 public:
  explicit Changes(const File& file) : good_(file) {
    const onnx::NodeProto& node = good_.node();
    for (int i = 0; i < node.input_size(); ++i) {
      if (!good_.given.count(node.input(i))) continue;
      change_shape(node.input(i));
      change_type(node.input(i));
      change_contents(node.input(i));
      all_.push_back({concat("without input ", i), [i](File* f) { f->node().set_input(i, ""); }});
    }
    for (int i = 0; i < node.attribute_size(); ++i) change_attribute(i);
    all_.push_back(
        {"an input more", [](File* f) { f->node().add_input(f->node().input_size() ? f->node().input(0) : ""); }});
    all_.push_back({"an output more", [](File* f) { f->node().add_output("more"); }});
    all_.push_back({"no input", [](File* f) { f->node().clear_input(); }});
  }

  const std::vector<Change>& all() const { return all_; }

 private:
  void give(const std::string& input, const Tensor& tensor, std::string what) {
    all_.push_back({std::move(what), [input, tensor](File* f) { f->given[input] = tensor; }});
  }

  void change_shape(const std::string& input) {
    const Tensor& tensor = good_.given.at(input);
    for (const Shape& shape : hostile_shapes(tensor.shape())) {
      if (shape == tensor.shape() || num_elements(shape) > kMostElements) continue;
      give(input, resized(tensor, shape), concat(input, to_string(shape)));
    }
  }

  void change_type(const std::string& input) {
    const Tensor& tensor = good_.given.at(input);
    for (DType dtype : {DType::kFloat, DType::kDouble, DType::kBFloat16, DType::kInt32, DType::kInt64, DType::kBool}) {
      if (dtype != tensor.dtype()) give(input, tensor.cast(dtype), concat(input, " of type ", name(dtype)));
    }
  }

  // Indices, axes, sizes and lengths, known to the plan or not before the run.
  void change_contents(const std::string& input) {
    const Tensor& tensor = good_.given.at(input);
    const bool is_wide = tensor.dtype() == DType::kInt64;
    if ((!is_wide && tensor.dtype() != DType::kInt32) || tensor.size() == 0) return;
    for (int64_t value : {INT64_MIN, int64_t{INT_MIN}, int64_t{-7}, int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{7},
                          int64_t{INT_MAX}, INT64_MAX}) {
      Tensor other = tensor.clone();
      const int64_t last = tensor.size() - 1;
      if (is_wide)
        other.data<int64_t>()[last] = value;
      else
        other.data<int32_t>()[last] = static_cast<int32_t>(std::clamp<int64_t>(value, INT_MIN, INT_MAX));
      give(input, other, concat(input, " ends with ", value));
      all_.push_back({concat(input, " is fed, ends with ", value), [input, other](File* f) {
                        onnx::GraphProto& graph = *f->proto.mutable_graph();
                        for (int i = 0; i < graph.initializer_size(); ++i) {
                          if (graph.initializer(i).name() != input) continue;
                          graph.mutable_initializer()->DeleteSubrange(i, 1);
                          graph.add_input()->set_name(input);
                          break;
                        }
                        f->given[input] = other;
                      }});
    }
  }

  void change_attribute(int i) {
    const onnx::AttributeProto& attribute = good_.node().attribute(i);
    const std::string name = "attribute " + attribute.name();
    const auto change = [&](const std::function<void(onnx::AttributeProto*)>& f) {
      all_.push_back({name, [i, f](File* file) { f(file->node().mutable_attribute(i)); }});
    };
    const std::vector<int64_t> values = {INT64_MIN, -1, 0, 3, INT_MAX, INT64_MAX};
    if (attribute.type() == onnx::AttributeProto::INT) {
      for (int64_t v : values) change([v](onnx::AttributeProto* a) { a->set_i(v); });
    } else if (attribute.type() == onnx::AttributeProto::INTS) {
      change([](onnx::AttributeProto* a) { a->clear_ints(); });
      change([](onnx::AttributeProto* a) { a->add_ints(1); });
      for (int64_t v : values) {
        if (attribute.ints_size() > 0) change([v](onnx::AttributeProto* a) { a->set_ints(a->ints_size() - 1, v); });
      }
    } else if (attribute.type() == onnx::AttributeProto::FLOAT) {
      for (float v : {0.0f, -1.0f, 1e30f, std::numeric_limits<float>::quiet_NaN()})
        change([v](onnx::AttributeProto* a) { a->set_f(v); });
    } else if (attribute.type() == onnx::AttributeProto::STRING) {
      for (const char* v : {"", "x", ",->"}) change([v](onnx::AttributeProto* a) { a->set_s(v); });
    }
    all_.push_back({"without " + name, [i](File* f) { f->node().mutable_attribute()->DeleteSubrange(i, 1); }});
  }

  File good_;
  std::vector<Change> all_;
};

// Plans the node, and runs it.
void run(const File& file) {
  std::map<std::string, Shape> shapes;
  TensorMap given;
  for (const auto& [name, tensor] : file.given) {
    shapes[name] = tensor.shape();
    given[name] = tensor;
  }
  SessionOptions options;
  options.plan.check_memory = default_device().uses_host_memory();
  Model model = from_proto(file.proto);
  const Plan plan(flatten(model, "predict"), {}, shapes, default_device(), options.plan);
  size_t bytes = plan.arena_bytes();
  for (const Port& output : plan.outputs()) bytes += output.bytes;
  if (bytes <= kLargest) Session(std::move(model), options).run("predict", given);
}

std::string name_of(const OpCase& row) { return row.domain.empty() ? row.op : concat(row.domain, "_", row.op); }

// Up to kRows rows of an operator, spread over its rows.
std::vector<OpCase> rows_of(const std::string& op) {
  static const std::vector<OpCase> all = all_cases();
  std::vector<const OpCase*> rows;
  for (const OpCase& row : all) {
    if (name_of(row) == op) rows.push_back(&row);
  }
  const size_t count = std::min(kRows, rows.size());
  std::vector<OpCase> chosen;
  for (size_t i = 0; i < count; ++i) chosen.push_back(*rows[i * rows.size() / count]);
  return chosen;
}

std::set<std::string> operators() {
  std::set<std::string> names;
  for (const OpCase& row : all_cases()) names.insert(name_of(row));
  return names;
}

class HostileInputs : public testing::TestWithParam<std::string> {};

TEST_P(HostileInputs, AreRefusedOrComputed) {
  for (const OpCase& row : rows_of(GetParam())) {
    const File good = write(row);
    const Changes changes(good);
    for (const Change& change : changes.all()) {
      for (bool dynamic : {false, true}) {
        SCOPED_TRACE(concat(change.what, dynamic ? ", dynamic" : ""));
        File file = good;
        change.apply(&file);
        declare(&file, dynamic);
        try {
          run(file);
        } catch (const Error& error) {
          EXPECT_STRNE(error.what(), "");
        } catch (const std::exception& error) {
          ADD_FAILURE() << "not an Error: " << error.what();
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, HostileInputs, testing::ValuesIn(operators()),
                         [](const auto& operator_name) { return operator_name.param; });

}  // namespace
}  // namespace onnx_train::hostile_inputs_test
