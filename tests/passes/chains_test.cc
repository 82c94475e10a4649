// Networks of many nodes: what is done to them takes time in proportion to their nodes, and stack in proportion to
// none.
#include <gtest/gtest.h>

#include <ctime>
#include <functional>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/analysis.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/precision/mixed_precision.h"
#include "runtime/session/session.h"
#include "tests/support/small_stack.h"

namespace onnx_train::chains_test {
namespace {

// A graph under construction: x and y are float[N,4].
class Network {
 public:
  Network() {
    proto_.set_ir_version(10);
    proto_.add_opset_import()->set_version(21);
    graph().set_name("network");
    input("x");
    weight("w", {4, 4});
    node("MatMul", {"x", "w"}, "v0");
  }

  onnx::GraphProto& graph() { return *proto_.mutable_graph(); }
  onnx::ModelProto& proto() { return proto_; }

  std::string node(const std::string& op, const std::vector<std::string>& inputs, const std::string& output) {
    onnx::NodeProto* node = graph().add_node();
    node->set_op_type(op);
    for (const std::string& input : inputs) node->add_input(input);
    node->add_output(output);
    return output;
  }
  std::string weight(const std::string& name, const Shape& shape) {
    to_proto(Tensor::full(DType::kFloat, shape, 0.01), name, graph().add_initializer());
    return name;
  }
  void input(const std::string& name) { declare(name, graph().add_input()); }
  void output(const std::string& name) { declare(name, graph().add_output()); }
  onnx::ModelProto finish(const std::string& last) {
    output(last);
    return proto_;
  }

 private:
  static void declare(const std::string& name, onnx::ValueInfoProto* info) {
    info->set_name(name);
    to_proto(TensorType{DType::kFloat, Dims{"N", 4}}, info->mutable_type());
  }

  onnx::ModelProto proto_;
};

std::string name(const char* base, int i) { return base + std::to_string(i); }

struct Kind {
  const char* name;
  onnx::ModelProto (*make)(int nodes);
};

onnx::ModelProto element_wise(int nodes) {
  Network n;
  constexpr const char* kOps[] = {"Tanh", "Sigmoid", "Neg", "Softplus"};
  for (int i = 0; i < nodes; ++i) n.node(kOps[i % 4], {name("v", i)}, name("v", i + 1));
  return n.finish(name("v", nodes));
}

onnx::ModelProto layers(int nodes) {
  Network n;
  std::string v = "v0";
  for (int i = 0; i < nodes / 3; ++i) {
    n.node("MatMul", {v, n.weight(name("w", i), {4, 4})}, name("product", i));
    n.node("Add", {name("product", i), n.weight(name("bias", i), {4})}, name("sum", i));
    v = n.node("Relu", {name("sum", i)}, name("layer", i));
  }
  return n.finish(v);
}

onnx::ModelProto residual(int nodes) {
  Network n;
  for (int i = 0; i < nodes / 2; ++i) {
    n.node("Tanh", {name("v", i)}, name("part", i));
    n.node("Add", {name("v", i), name("part", i)}, name("v", i + 1));
  }
  return n.finish(name("v", nodes / 2));
}

onnx::ModelProto many_readers(int nodes) {
  Network n;
  std::string sum = n.node("Tanh", {"v0"}, "sum0");
  for (int i = 1; i < nodes / 2; ++i) {
    n.node("Tanh", {"v0"}, name("part", i));
    sum = n.node("Add", {sum, name("part", i)}, name("sum", i));
  }
  return n.finish(sum);
}

onnx::ModelProto many_operands(int nodes) {
  Network n;
  for (int i = 0; i < nodes; ++i) n.node("Tanh", {"v0"}, name("part", i));
  onnx::NodeProto* sum = n.graph().add_node();
  sum->set_op_type("Sum");
  for (int i = 0; i < nodes; ++i) sum->add_input(name("part", i));
  sum->add_output("y");
  return n.finish("y");
}

onnx::ModelProto parts_of_one(int nodes) {
  Network n;
  for (int i = 0; i < nodes; ++i) n.node("Tanh", {"v0"}, name("part", i));
  onnx::NodeProto* joined = n.graph().add_node();
  joined->set_op_type("Concat");
  for (int i = 0; i < nodes; ++i) joined->add_input(name("part", i));
  joined->add_output("joined");
  auto* axis = joined->add_attribute();
  axis->set_name("axis");
  axis->set_type(onnx::AttributeProto::INT);
  axis->set_i(0);
  return n.finish(n.node("Tanh", {"joined"}, "y"));
}

onnx::ModelProto identities(int nodes) {
  Network n;
  for (int i = 0; i < nodes; ++i) n.node("Identity", {name("v", i)}, name("v", i + 1));
  return n.finish(name("v", nodes));
}

onnx::ModelProto identities_of_a_weight(int nodes) {
  Network n;
  std::string v = n.weight("far", {4, 4});
  for (int i = 0; i < nodes; ++i) v = n.node("Identity", {v}, name("seen", i));
  return n.finish(n.node("MatMul", {"v0", v}, "y"));
}

onnx::ModelProto biases(int nodes) {
  Network n;
  for (int i = 0; i < nodes; ++i) n.node("Add", {name("v", i), n.weight(name("b", i), {4})}, name("v", i + 1));
  return n.finish(name("v", nodes));
}

onnx::ModelProto reshapes(int nodes) {
  Network n;
  for (int i = 0; i < nodes / 2; ++i) {
    n.node("Shape", {name("v", i)}, name("shape", i));
    n.node("Reshape", {name("v", i), name("shape", i)}, name("v", i + 1));
  }
  return n.finish(name("v", nodes / 2));
}

onnx::ModelProto transposes(int nodes) {
  Network n;
  for (int i = 0; i < nodes / 2 * 2; ++i) n.node("Transpose", {name("v", i)}, name("v", i + 1));
  return n.finish(name("v", nodes / 2 * 2));
}

onnx::ModelProto one_weight(int nodes) {
  Network n;
  for (int i = 0; i < nodes; ++i) n.node("MatMul", {name("v", i), "w"}, name("v", i + 1));
  return n.finish(name("v", nodes));
}

// Every second weight is read, and all are listed among the inputs, as old files have it.
onnx::ModelProto unused_weights(int nodes) {
  Network n;
  std::string v = "v0";
  for (int i = 0; i < nodes; ++i) {
    const std::string b = n.weight(name("b", i), {4});
    onnx::ValueInfoProto* input = n.graph().add_input();
    input->set_name(b);
    to_proto(TensorType{DType::kFloat, Dims{4}}, input->mutable_type());
    if (i % 2 == 0) v = n.node("Add", {v, b}, name("sum", i));
  }
  return n.finish(v);
}

onnx::ModelProto many_outputs(int nodes) {
  Network n;
  for (int i = 0; i < nodes; ++i) {
    n.node("Tanh", {name("v", i)}, name("v", i + 1));
    if (i + 1 < nodes) n.output(name("v", i + 1));
  }
  return n.finish(name("v", nodes));
}

onnx::ModelProto calls(int nodes) {
  Network n;
  onnx::ModelProto& model = n.proto();
  auto* opset = model.add_opset_import();
  opset->set_domain("test");
  opset->set_version(1);
  for (int i = 0; i < nodes / 2; ++i) {
    onnx::FunctionProto* f = model.add_functions();
    f->set_domain("test");
    f->set_name(name("F", i));
    f->add_input("a");
    f->add_output("c");
    f->add_opset_import()->set_version(21);
    for (const auto& [from, to] : {std::pair{"a", "b"}, {"b", "c"}}) {
      onnx::NodeProto* node = f->add_node();
      node->set_op_type("Tanh");
      node->add_input(from);
      node->add_output(to);
    }
    n.node(f->name(), {name("v", i)}, name("v", i + 1));
    n.graph().mutable_node()->rbegin()->set_domain("test");
  }
  return n.finish(name("v", nodes / 2));
}

constexpr Kind kKinds[] = {
    {"ElementWise", element_wise},
    {"Layers", layers},
    {"Residual", residual},
    {"ManyReaders", many_readers},
    {"ManyOperands", many_operands},
    {"PartsOfOne", parts_of_one},
    {"Identities", identities},
    {"IdentitiesOfAWeight", identities_of_a_weight},
    {"Biases", biases},
    {"Reshapes", reshapes},
    {"Transposes", transposes},
    {"OneWeight", one_weight},
    {"UnusedWeights", unused_weights},
    {"ManyOutputs", many_outputs},
    {"Calls", calls},
};

// All that `check` and `build` do between reading and writing.
Model trained(onnx::ModelProto proto, const std::string& precision = "float32") {
  const std::string output = proto.graph().output().rbegin()->name();
  Model model = import_model(std::move(proto));
  inspect(model);
  BuildOptions options;
  options.loss = "mse(" + output + ", target)";
  options.precision = parse_precision(precision);
  build_training_model(&model, options);
  return model;
}

// Of this thread: other processes do not count.
double cpu_seconds(const std::function<void()>& f) {
  const auto now = [] {
    timespec t = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double start = now();
  f();
  return now() - start;
}

class Chains : public testing::TestWithParam<Kind> {};

// Four times the nodes take four times as long, sixteen times if the time grew with their square.
TEST_P(Chains, TimeToBuildGrowsWithTheNodes) {
  constexpr int kNodes = 1500;
  const auto seconds = [](int nodes) {
    const onnx::ModelProto proto = GetParam().make(nodes);
    return std::min(cpu_seconds([&] { trained(proto); }), cpu_seconds([&] { trained(proto); }));
  };
  const double few = seconds(kNodes), many = seconds(4 * kNodes);
  EXPECT_LT(many / few, 8) << "of " << kNodes << " nodes: " << few << " s, of " << 4 * kNodes << ": " << many << " s";
}

TEST_P(Chains, DepthTakesNoStack) {
  const onnx::ModelProto proto = GetParam().make(10000);
  with_small_stack(size_t{256} << 10, [&] {
    for (const char* precision : {"float32", "bf16"}) {
      const Model model = trained(proto, precision);
      flatten(model, "step");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, Chains, testing::ValuesIn(kKinds),
                         [](const auto& kind) { return std::string(kind.param.name); });

class PlansOfChains : public testing::TestWithParam<Kind> {};

TEST_P(PlansOfChains, TimeToPlanGrowsWithTheNodesAndDepthTakesNoStack) {
  constexpr int kNodes = 1500;
  const auto seconds = [](int nodes) {
    Model model = trained(GetParam().make(nodes));
    const std::string target = "target";
    return cpu_seconds([&] {
      Session session(std::move(model));
      session.plan("step", {{"x", {2, 4}}, {target, {2, 4}}});
    });
  };
  double few = 0, many = 0;
  with_small_stack(size_t{2} << 20, [&] {
    few = std::min(seconds(kNodes), seconds(kNodes));
    many = seconds(4 * kNodes);
  });
  EXPECT_LT(many / few, 8) << "of " << kNodes << " nodes: " << few << " s, of " << 4 * kNodes << ": " << many << " s";
}

constexpr Kind kPlanned[] = {
    {"ElementWise", element_wise}, {"Layers", layers}, {"Residual", residual}, {"ManyReaders", many_readers}};

INSTANTIATE_TEST_SUITE_P(Kinds, PlansOfChains, testing::ValuesIn(kPlanned),
                         [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace onnx_train::chains_test
