// Names are for people: a network trains to the same bits whatever its values are called.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/passes.h"
#include "runtime/data/dataset.h"
#include "runtime/session/session.h"
#include "tests/support/empty_model.h"
#include "tests/support/paths.h"

namespace onnx_train::naming_test {
namespace {

using Names = std::map<std::string, std::string>;  // a value of the network -> what a model calls it

// y = w2 dropout(relu(batch_norm(w1 s + b1))) + f, with s the running sums of x over the batch, made by a Scan, a
// frozen f and a second output.
onnx::ModelProto make_network(const Names& names) {
  const auto name = [&](const std::string& value) {
    const auto found = names.find(value);
    return found == names.end() ? value : found->second;
  };
  Model model = empty_model();
  Graph& graph = *model.graph;
  graph.shell().set_name("network");
  const auto weight = [&](const char* value, Shape shape, double first) {
    Tensor tensor(DType::kFloat, std::move(shape));
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, first + 0.1 * static_cast<double>(i * 5 % 7) - 0.3);
    return graph.add_initializer(name(value), tensor);
  };
  const auto node = [&](const char* op, const std::vector<Value*>& inputs, const char* output) {
    return graph.add_node(op, inputs, {name(output)})->output();
  };
  Value* x = graph.add_input(name("x"), {DType::kFloat, Dims{"N", 4}});
  Node* scan = graph.add_node("Scan", {weight("zero", {4}, 0), x}, {name("last"), name("s")});
  scan->set_attr("num_scan_inputs", 1);
  Graph& body = *graph.add_subgraph(scan, "body");
  onnx::AttributeProto attribute;
  attribute.set_name("body");
  attribute.set_type(onnx::AttributeProto::GRAPH);
  scan->set_attr(attribute);
  body.shell().set_name("body");
  Value* before = body.add_input(name("before"), {DType::kFloat, Dims{4}});
  Value* row = body.add_input(name("row"), {DType::kFloat, Dims{4}});
  Value* after = body.add_node("Add", {before, row}, {name("after")})->output();
  body.add_output(after);
  body.add_output(body.add_node("Identity", {after}, {name("sum")})->output());
  Value* h = node("MatMul", {scan->output(1), weight("w1", {4, 6}, 0)}, "h");
  Value* a = node("Add", {h, weight("b1", {6}, 0.1)}, "a");
  Value* n =
      node("BatchNormalization",
           {a, weight("scale", {6}, 1), weight("shift", {6}, 0), weight("mean", {6}, 0), weight("var", {6}, 1)}, "n");
  Value* r = node("Relu", {n}, "r");
  Value* d = node("Dropout", {r}, "d");
  Value* t = node("MatMul", {d, weight("w2", {6, 3}, 0)}, "t");
  Value* y = node("Add", {t, weight("f", {3}, 0.2)}, "y");
  graph.add_output(y);
  graph.add_output(node("Sigmoid", {y}, "z"));
  onnx::ModelProto proto;
  to_proto(model, &proto);
  return proto;
}

const char* const kValues[] = {"x",  "h",  "a",     "n",     "r",    "d",   "t",      "y",   "z",     "f",   "w1",
                               "w2", "b1", "scale", "shift", "mean", "var", "before", "row", "after", "sum", "s"};

std::vector<Names> hostile_namings() {
  // What passes, flatten and plans call values of their own, and what no parser of names likes.
  const char* const words[] = {"grad/w1",
                               "grad/w1_1",
                               "grad/f",
                               "grad/h",
                               "next/w1",
                               "next/state/step",
                               "state/step",
                               "state/w1/exp_avg",
                               "state/w1/grad",
                               "state/random_key",
                               "state/accumulated",
                               "train/h",
                               "train/n",
                               "train/n/mean",
                               "train/train/h",
                               "loss",
                               "loss_1",
                               "loss_count",
                               "loss_part",
                               "accuracy",
                               "accuracy_count",
                               "grad_norm",
                               "learning_rate",
                               "clip_norm",
                               "seed",
                               "initial/w1",
                               "draw/w1",
                               "grad/w1/part",
                               "loss/part",
                               "grad_scale",
                               "micro_batches",
                               "recompute/h",
                               "h_replaced",
                               "w1_1",
                               "onnx_train.role",
                               "with space",
                               "say \"hello\"",
                               "it's",
                               "two\nlines",
                               "a,b(c)=d",
                               "back\\slash",
                               "0",
                               "\xc3\xa9\xe2\x82\xac"};
  std::vector<Names> namings;
  for (const char* word : words) {
    for (const char* value : {"x", "h", "y", "z", "w1", "f", "mean", "after"}) namings.push_back({{value, word}});
  }
  // The case that was found: intermediate values and a frozen weight whose names continue each other.
  namings.push_back({{"h", "permute"}, {"a", "permute_1"}, {"f", "permute_2"}});
  namings.push_back({{"f", "grad/w1"}, {"w2", "grad/grad/w1"}, {"h", "grad/w2"}});
  namings.push_back({{"x", "learning_rate"}, {"y", "loss"}, {"z", "accuracy"}, {"w1", "grad_norm"}});
  namings.push_back({{"w1", "w"}, {"w2", "w_1"}, {"b1", "w_2"}, {"f", "w_3"}, {"h", "grad/w"}, {"t", "grad/w_1"}});
  namings.push_back({{"before", "y"}, {"row", "z"}, {"after", "loss"}, {"sum", "grad/w1"}});  // as in the outer graph
  Names digits;
  for (size_t i = 0; i < std::size(kValues); ++i) digits[kValues[i]] = std::to_string(i);
  namings.push_back(digits);
  Names series;  // x, x_1, x_2, ...
  for (size_t i = 0; i < std::size(kValues); ++i) series[kValues[i]] = i ? concat("x_", i) : "x";
  namings.push_back(series);
  return namings;
}

struct Variant {
  const char* name;
  size_t every;  // takes each naming, each second, ...
  std::function<void(BuildOptions*)> change;
};

Model build_network(const Names& names, const Variant& variant) {
  BuildOptions options;
  const auto f = names.find("f");
  const auto zero = names.find("zero");
  options.freeze = {f == names.end() ? "f" : f->second, zero == names.end() ? "zero" : zero->second};
  options.init = "kaiming";
  variant.change(&options);
  Model model = import_model(make_network(names));
  build_training_model(&model, options);
  onnx::ModelProto file;
  to_proto(model, &file);
  return from_proto(std::move(file));
}

struct Training {
  std::vector<double> losses;
  std::vector<Tensor> weights;  // after it
};

Training train(const Names& names, const Variant& variant) {
  const auto name = [&](const char* value) {
    const auto found = names.find(value);
    return found == names.end() ? std::string(value) : found->second;
  };
  Session session(build_network(names, variant));
  for (const EntryPoint& entry : session.model().entry_points) {
    onnx::ModelProto flat;
    to_proto(flatten(session.model(), entry.name()), &flat);
    check_proto(flat);
  }
  session.initialize(5);
  Training result;
  for (int i = 0; i < 4; ++i) {
    TensorMap batch;
    const std::string entry = session.has_entry("step") ? "step" : "accumulate";
    for (const InputSpec& spec : entry_inputs(session.model(), entry)) {
      if (spec.has_default) continue;
      Tensor tensor(spec.type.dtype, is_float(spec.type.dtype) ? Shape{8, 4} : Shape{8});
      for (int64_t k = 0; k < tensor.size(); ++k) {
        tensor.set(k, is_float(tensor.dtype()) ? 0.1 * static_cast<double>((k + i) % 11) - 0.5
                                               : static_cast<double>((k + i) % 3));
      }
      batch[spec.name] = tensor;
    }
    result.losses.push_back(session.run(entry, batch).at(*session.output_name(entry, roles::kLoss)).at(0));
    if (entry == "accumulate" && i % 2 == 1) session.run("apply", {});
    result.losses.push_back(session.run("evaluate", batch).at(*session.output_name("evaluate", roles::kLoss)).at(0));
  }
  for (const char* weight : {"w1", "b1", "scale", "shift", "mean", "var", "w2", "f"}) {
    result.weights.push_back(session.contents(name(weight)));
  }
  return result;
}

class Naming : public testing::TestWithParam<Variant> {};

TEST_P(Naming, EveryHostileNamingTrainsToTheSameBits) {
  const Training expected = train({}, GetParam());
  EXPECT_NE(expected.losses.front(), expected.losses.back());
  const std::vector<Names> namings = hostile_namings();
  for (size_t i = 0; i < namings.size(); i += GetParam().every) {
    const Names& names = namings[i];
    std::string what;
    for (const auto& [value, name] : names) what += concat(value, " = '", name, "' ");
    SCOPED_TRACE(what);
    try {
      const Training found = train(names, GetParam());
      EXPECT_EQ(found.losses, expected.losses);
      for (size_t w = 0; w < expected.weights.size(); ++w) {
        const Tensor &a = found.weights[w], &b = expected.weights[w];
        EXPECT_EQ(a.shape(), b.shape());
        EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0) << "weight " << w;
      }
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Builds, Naming,
                         testing::Values(Variant{"Step", 1, [](BuildOptions*) {}},
                                         Variant{"Accumulate", 3, [](BuildOptions* o) { o->accumulate = true; }},
                                         Variant{"LossScale", 3, [](BuildOptions* o) { o->loss_scale = "dynamic"; }},
                                         Variant{"Bfloat16", 3,
                                                 [](BuildOptions* o) { o->precision = Precision::kBfloat16; }}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Naming, AnOutputCalledLossIsTheLossThatTheUserNames) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,2] x, float[N,3] target) => (float loss, float[N,3] logits)
    <float[2,3] w = {0.5,-0.3,0.8,0.1,0.2,0.7}>
    {
      logits = MatMul(x, w)
      d = Sub(logits, target)
      s = Mul(d, d)
      loss = ReduceMean<keepdims = 0>(s)
    })");
  onnx::ModelProto proto;
  to_proto(model, &proto);
  Model built = import_model(std::move(proto));
  BuildOptions options;
  options.loss = "loss";
  build_training_model(&built, options);
  Session session(std::move(built));
  const std::string& name = *session.output_name("step", roles::kLoss);
  const TensorMap batch = {{"x", Tensor::full(DType::kFloat, {4, 2}, 1)},
                           {"target", Tensor::full(DType::kFloat, {4, 3}, 0.5)}};
  const double first = session.run("step", batch).at(name).at(0);
  EXPECT_LT(session.run("step", batch).at(name).at(0), first);
}

TEST(Naming, AFileWrittenByAnotherProgramNamesItsLossByTheInterface) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[2] x) => (float[2] y) { y = Identity(x) })");
  EntryPoint& entry = model.add_entry_point("step");
  Builder b(entry.algorithm.get());
  b.set_name("loss");
  entry.algorithm->add_output(sum_all(b.var(model.graph->find("y"))).value());
  Session session(std::move(model));
  EXPECT_EQ(*session.output_name("step", roles::kLoss), "loss");
  EXPECT_EQ(session.output_name("step", roles::kAccuracy), nullptr);
}

// A lookup by a spelled name, or a name taken apart: find("grad/" + ..), v->name() == "loss", name().starts_with("..").
bool looks_up_by_spelling(const std::string& line) {
  static const std::regex lookup(R"re(find\((concat\()?"[^"]*/)re");
  static const std::regex comparison(R"re((value|input|output|state|initializer|next|v)(->|\.)name\(\) [=!]= ")re");
  static const std::regex taking_apart(R"re(name\(\)\.(starts_with|ends_with|find|rfind|compare|substr)\()re");
  const auto matches = [&](const char* part, const std::regex& regex) {
    return line.find(part) != std::string::npos && std::regex_search(line, regex);
  };
  return matches("find(", lookup) || matches("name() ", comparison) || matches("name().", taking_apart);
}

TEST(Naming, NoCodeFindsAValueByItsSpelling) {
  ASSERT_TRUE(looks_up_by_spelling(R"(graph.find("grad/" + weight->name()))"));
  ASSERT_TRUE(looks_up_by_spelling(R"(if (output->name() == "loss"))"));
  ASSERT_TRUE(looks_up_by_spelling(R"(output->name().starts_with(prefix))"));
  const std::filesystem::path root = source_folder();
  int files = 0;
  for (const char* folder : {"onnx_passes/gradients", "onnx_passes/loss", "onnx_passes/precision",
                             "onnx_passes/recognize", "onnx_passes/training", "kernels", "runtime"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cc" && extension != ".h" && extension != ".cu") continue;
      ++files;
      std::ifstream file(entry.path());
      std::string line;
      for (int number = 1; std::getline(file, line); ++number) {
        const bool interface = entry.path().filename() == "entry_point.cc" && line.find("is_next =") != line.npos;
        if (interface || line.find("op().") != line.npos) continue;  // assign_roles: files of other programs
        EXPECT_FALSE(looks_up_by_spelling(line)) << entry.path() << ":" << number << ": " << line;
      }
    }
  }
  EXPECT_GT(files, 200);
}

}  // namespace
}  // namespace onnx_train::naming_test
