// What importing makes of the ways exporters write models. tests/python/test_import.py checks the numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_passes/foreign/map_outputs.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/passes.h"
#include "tests/support/error_of.h"

namespace onnx_train::import_test {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;

onnx::ModelProto parse(const std::string& text) {
  onnx::ModelProto proto;
  to_proto(from_text(text), &proto);
  return proto;
}

std::string type_of(const Model& model, const std::string& name) {
  const Value* value = model.graph->find(name);
  return value ? to_string(value->type()) : "nothing";
}

std::string error_of(const onnx::ModelProto& proto, const std::string& batch = "") {
  return onnx_train::error_of([&] { import_model(proto, {.batch = batch}); });
}

TEST(Import, WeightsAreNoInputs) {
  onnx::ModelProto proto = parse(R"(<ir_version: 3, opset_import: ["" : 9]>
    g (float[N, 2] x) => (float[N, 2] y) <float[2] w = {1, 2}> { y = Add(x, w) })");
  auto* input = proto.mutable_graph()->add_input();
  input->set_name("w");
  to_proto(TensorType{DType::kFloat, Dims{Dim(int64_t{2})}}, input->mutable_type());
  const Model model = import_model(proto);
  ASSERT_EQ(model.graph->inputs().size(), 1u);
  EXPECT_TRUE(model.graph->find("w")->is_initializer());
  EXPECT_EQ(model.shell().ir_version(), 10);
  EXPECT_EQ(model.context->opset(), 21);
}

TEST(Import, NodesGetNamesOfTheirOwn) {
  onnx::ModelProto proto = parse(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[N] x) => (float[N] y) { a = Relu(x) b = Relu(a) y = Relu(b) })");
  proto.mutable_graph()->mutable_node(0)->set_name("r");
  proto.mutable_graph()->mutable_node(1)->set_name("r");
  proto.mutable_graph()->mutable_node(2)->set_name("");
  const Model model = import_model(proto);
  std::vector<std::string> names;
  for (const Node* node : model.graph->nodes()) names.push_back(node->name());
  EXPECT_EQ(names, (std::vector<std::string>{"r", "r_0", "Relu_0"}));
}

TEST(Import, DimensionsWithoutANameGetOne) {
  onnx::ModelProto proto = parse(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 3, M, 5] x) => (float y) { y = Relu(x) })");
  auto* shape = proto.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape();
  shape->mutable_dim(1)->set_dim_value(-1);
  shape->mutable_dim(2)->set_dim_param("?");
  EXPECT_EQ(type_of(import_model(proto, {.fix_shapes = true}), "y"), "float[N,x_dim1,x_dim2,5]");
}

TEST(Import, StaleTypesAreInferredAnew) {
  onnx::ModelProto proto = parse(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 3] x) => (float[7, 7] y) <float[7] h> { h = Relu(x) y = Neg(h) })");
  EXPECT_THAT(error_of(proto), HasSubstr("output 'y' is declared as float[7,7], but it is float[N,3]"));
  const Model model = import_model(proto, {.fix_shapes = true});
  EXPECT_EQ(type_of(model, "h"), "float[N,3]");
  EXPECT_EQ(type_of(model, "y"), "float[N,3]");
}

TEST(Import, ShapeArithmeticKeepsSymbols) {
  const Model model = import_model(parse(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 4, 6] x) => (float[N, M] y, float[A, B, C] z) {
      s = Shape(x)
      zero = Constant<value_ints = [0]>()
      one = Constant<value_ints = [1]>()
      n = Gather(s, zero)
      three = Constant<value_ints = [3]>()
      c = Slice(s, one, three)
      p = ReduceProd<keepdims = 1>(c)
      t = Concat<axis = 0>(n, p)
      y = Reshape(x, t)
      eight = Constant<value_ints = [8]>()
      m = Mul(n, eight)
      u = Concat<axis = 0>(m, one, one)
      z = Reshape(x, u)
    })"));
  EXPECT_EQ(type_of(model, "y"), "float[N,24]");
  EXPECT_EQ(type_of(model, "z"), "float[8*N,1,1]");
}

TEST(Import, SizesThatInferenceLeavesOpenAreProducts) {
  const Model model = import_model(parse(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[batch, 8, 32] x, float[s, t] w, float["2*s + 1", 3] v) => (float[A, B] a, float[A, B, C, D] b, float[A, B] c, float[A, B] d, int64[A] r) {
      rows = Constant<value_ints = [-1, 32]>()
      a = Reshape(x, rows)
      heads = Constant<value_ints = [-1, 8, 2, 16]>()
      b = Reshape(a, heads)
      c = Flatten<axis = 2>(w)
      d = Flatten<axis = 2>(v)
      n = Shape<start = 0, end = 1>(x)
      s = Squeeze(n)
      zero = Constant<value_float = 0.0>()
      start = CastLike(zero, s)
      one = Constant<value_int = 1>()
      range = Range(start, s, one)
      first = Constant<value_ints = [0]>()
      last = Constant<value_ints = [9223372036854775807]>()
      r = Slice(range, first, last)
    })"));
  EXPECT_EQ(type_of(model, "a"), "float[8*batch,32]");
  EXPECT_EQ(type_of(model, "b"), "float[batch,8,2,16]");
  EXPECT_EQ(type_of(model, "c"), "float[s*t,1]");
  EXPECT_EQ(type_of(model, "r"), "int64[batch]");
}

TEST(Import, SequencesAreUnpacked) {
  const Model model = import_model(parse(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 6] x) => (float[N, 3] y) {
      three = Constant<value_int = 3>()
      parts = SplitToSequence<axis = 1>(x, three)
      zero = Constant<value_int = 0>()
      last = Constant<value_int = -1>()
      a = SequenceAt(parts, zero)
      b = SequenceAt(parts, last)
      y = Add(a, b)
    })"));
  EXPECT_EQ(type_of(model, "y"), "float[N,3]");
  EXPECT_EQ(model.graph->num_nodes(), 2u);
}

TEST(Import, ScalarConstantsStayIntegerOnesBecomeInitializers) {
  const Model model = import_model(parse(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[N] x) => (float[N] y) <float val_3 = {2.0}, float scale = {3.0}> {
      half = Constant<value = float {0.5}>()
      shape = Constant<value = int64[1] {-1}>()
      a = Mul(x, half)
      b = Mul(a, val_3)
      c = Mul(b, scale)
      y = Reshape(c, shape)
    })"));
  EXPECT_TRUE(model.graph->find("half")->producer()->is("Constant"));
  EXPECT_TRUE(model.graph->find("val_3")->is_initializer());  // torch lifts numbers to initializers
  EXPECT_TRUE(model.graph->find("scale")->is_initializer());
  EXPECT_TRUE(model.graph->find("shape")->is_initializer());
  EXPECT_TRUE(select_trainable(model, {}, {}).empty());
}

TEST(Import, FunctionsAreInlinedWithTheirDefaults) {
  const Model model = import_model(parse(R"(<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
    g (float[N] x) => (float[N] y) { h = local.Twice(x) y = local.Leak(h) }
    <domain: "local", opset_import: ["" : 21, "local" : 1]> Twice (a) => (b) { c = local.Leak<alpha = 0.5>(a) b = Add(c, c) }
    <domain: "local", opset_import: ["" : 21]> Leak <alpha: float = 0.25> (a) => (b) { b = LeakyRelu<alpha: float = @alpha>(a) }
    )"));
  EXPECT_TRUE(model.context->functions.empty());
  std::vector<float> alphas;
  for (const Node* node : model.graph->nodes()) {
    if (node->is("LeakyRelu")) alphas.push_back(node->attr("alpha", -1.0f));
  }
  EXPECT_EQ(alphas, (std::vector<float>{0.5f, 0.25f}));
}

TEST(Import, UpgradesInsideBranches) {
  const Model model = import_model(parse(R"(<ir_version: 8, opset_import: ["" : 11]>
    g (float[N, 4] x, bool c) => (float[N] y) {
      y = If (c) <then_branch = a () => (float[N] p) { q = ReduceSum<axes = [1]>(x) p = Squeeze<axes = [1]>(q) },
                  else_branch = b () => (float[N] r) { r = ReduceMax<axes = [1], keepdims = 0>(x) }>
    })"));
  EXPECT_EQ(type_of(model, "y"), "float[N]");
  EXPECT_EQ(model.context->opset(), 21);
}

// As Optimum merges a decoder with a cache and one without.
Model merged_decoders(const ImportOptions& options, std::vector<Finding>* findings, const std::string& first = "",
                      const std::string& condition = "use_cache_branch") {
  return import_model(parse(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (int64[N,T] ids, float[N,P,2] "past.0.key", bool[1] use_cache_branch) => (float[N,T,2] y)
    <float[3,2] w = {1,2,3,4,5,6}> { )" +
                            first + "y = If(" + condition + R"() <
        then_branch = with () => (float[N,T,2] y_1) { a = Gather(w, ids) s = ReduceSum("past.0.key") y_1 = Add(a, s) },
        else_branch = without () => (float[N,T,2] y_2) { y_2 = Gather(w, ids) }> })"),
                      options, findings);
}

TEST(Import, OfDecodersWithAndWithoutACacheTheLatterIsTrained) {
  std::vector<Finding> findings;
  const Model model = merged_decoders({}, &findings);
  EXPECT_EQ(model.graph->num_nodes(), 1u);
  EXPECT_TRUE(model.graph->find("past.0.key")->uses().empty());
  EXPECT_EQ(model.graph->inputs().size(), 2u);
  const auto told = std::find_if(findings.begin(), findings.end(),
                                 [](const Finding& f) { return f.subject == "use_cache_branch=false"; });
  ASSERT_NE(told, findings.end());
  EXPECT_THAT(told->advice, HasSubstr("--set use_cache_branch=true"));
  EXPECT_EQ(merged_decoders({.set = {"use_cache_branch=true"}}, nullptr).graph->num_nodes(), 3u);
  // What chooses is computed of the input: nothing is decided.
  const Model open = merged_decoders({}, nullptr, "chosen = Not(use_cache_branch) ", "chosen");
  EXPECT_EQ(open.graph->inputs().size(), 3u);
}

TEST(Import, TablesOfAnglesAreNoWeightsWhateverTheyHold) {
  const Model model = import_model(parse(R"(<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (float[N,T,8] x, int64[N,T] at) => (float[N,T,8] y)
    <float[3,2] cosines = {1,2,3,4,5,7}, float[3,2] sines = {7,2,3,4,5,6}, float[8] w = {1,2,3,4,5,6,7,9}> {
      a = Mul(x, w) y = com.microsoft.RotaryEmbedding<num_heads = 2>(a, at, cosines, sines)
    })"));
  const auto constants = constants_of(model);
  EXPECT_EQ(constants.count("cosines") + constants.count("sines"), 2u);
  EXPECT_EQ(constants.count("w"), 0u);
}

TEST(Import, RebatchRewritesReshapeTargets) {
  const char* text = R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[1, 2, 6] x, float[1, 3] z, float[7] table) => (float[1, 12] y, float[1, 3, 4] t)
    <int64[2] flat = {1, -1}, int64[3] heads = {1, 3, 4}> { y = Reshape(x, flat) t = Reshape(x, heads) })";
  const Model dynamic = import_model(parse(text), {.batch = "dynamic"});
  EXPECT_EQ(type_of(dynamic, "y"), "float[batch,12]");
  EXPECT_EQ(type_of(dynamic, "t"), "float[batch,3,4]");
  EXPECT_EQ(type_of(dynamic, "z"), "float[batch,3]");
  EXPECT_EQ(type_of(dynamic, "table"), "float[7]");
  EXPECT_EQ(type_of(import_model(parse(text), {.batch = "16"}), "y"), "float[16,12]");
  EXPECT_THAT(error_of(parse(text), "many"), HasSubstr("neither a positive number"));
  EXPECT_THAT(error_of(parse(text), "0"), HasSubstr("neither a positive number"));
}

TEST(Import, RebatchLeavesAScalarThatIsExpandedToNoAxes) {  // as PyTorch exports zeros(())
  const char* text = R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[8, 2] x) => (float[8, 2] y) <float zero = {0}, int64[0] none = {}> { s = Expand(zero, none) y = Add(x, s) })";
  EXPECT_EQ(type_of(import_model(parse(text), {.batch = "dynamic"}), "y"), "float[batch,2]");
}

TEST(Import, RebatchNamesTheNodeThatCannotFollow) {
  EXPECT_THAT(error_of(parse(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[2, 3] x) => (float[2, 3] y) <float[2, 3] mask = {1, 0, 1, 0, 1, 0}> { [n] y = Mul(x, mask) })"),
                       "dynamic"),
              HasSubstr("another batch than 2: node 'n' (Mul)"));
  EXPECT_THAT(error_of(parse(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[2, 3] x) => (float[2, 3] y) <float[2, 3] w = {1, 0, 1, 0, 1, 0}> { y = Relu(w) z = Neg(x) })"),
                       "dynamic"),
              HasSubstr("output 'y' does not follow"));
}

TEST(Import, ATrainingModelIsImportedByItsInferenceGraph) {
  Model model = from_text(
      "<ir_version: 10, opset_import: [\"\" : 21]> g (float[2] x) => (float[2] y)"
      "<float[2] w = {1, 2}> { y = Add(x, w) }");
  model.add_entry_point("step").algorithm->add_output(model.graph->find("y"));
  onnx::ModelProto proto;
  to_proto(model, &proto);
  EXPECT_TRUE(import_model(std::move(proto)).entry_points.empty());
}

// Maps from the labels, listed as an output as often as `times` says.
onnx::ModelProto with_maps(const std::vector<std::string>& labels, int times) {
  onnx::ModelProto proto;
  to_proto(from_text(R"(<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 1]>
             g (float[N, 2] x) => (maps) <float[2, 3] w = {1, 2, 3, 4, 5, 6}> {
               s = MatMul(x, w) maps = ai.onnx.ml.ZipMap(s) })"),
           &proto);
  onnx::AttributeProto* attribute = proto.mutable_graph()->mutable_node(1)->add_attribute();
  attribute->set_name("classlabels_strings");
  attribute->set_type(onnx::AttributeProto::STRINGS);
  for (const std::string& label : labels) attribute->add_strings(label);
  onnx::ValueInfoProto* info = proto.mutable_graph()->mutable_output(0);
  auto* map = info->mutable_type()->mutable_sequence_type()->mutable_elem_type()->mutable_map_type();
  map->set_key_type(onnx::TensorProto::STRING);
  map->mutable_value_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
  const onnx::ValueInfoProto copy = *info;
  for (int i = 1; i < times; ++i) *proto.mutable_graph()->add_output() = copy;
  return proto;
}

TEST(Import, LabelsOfMapsAreKeptWhateverTheyContain) {
  const std::vector<std::string> labels = {"two\nlines", "back\\slash\\n", ""};
  const Model training = import_model(with_maps(labels, 1));
  Model inference = import_model(with_maps(labels, 1));
  restore_maps(&inference, training);
  const Node* map = inference.graph->outputs()[0]->producer();
  ASSERT_TRUE(map && map->is("ZipMap", "ai.onnx.ml"));
  const onnx::AttributeProto* found = map->find_attr("classlabels_strings");
  ASSERT_TRUE(found);
  EXPECT_THAT(std::vector<std::string>(found->strings().begin(), found->strings().end()), ElementsAreArray(labels));
}

TEST(Import, AnOutputOfMapsThatIsListedTwiceIsNoCrash) {
  const std::string said = error_of(with_maps({"a", "b", "c"}, 2));
  EXPECT_TRUE(said.empty() || said.find("maps") != std::string::npos) << said;
}

TEST(Import, ScalesOfAResizeThatHasSizesNowAreNoWeights) {
  for (const char* width : {"5", "W"}) {
    onnx::ModelProto proto =
        parse(concat("<ir_version: 10, opset_import: [\"\" : 21]> g (float[1, 2, 4, ", width,
                     "] x) => (float[1, 2, H, V] y) <float[2, 2, 1, 1] w = {1, 2, 3, 4}, "
                     "float[4] scales = {1, 1, 1.7, 1.7}> { c = Conv(x, w) y = Resize<mode = \"linear\", "
                     "coordinate_transformation_mode = \"align_corners\">(c, , scales) }"));
    proto.set_producer_name("pytorch");
    const Model model = import_model(std::move(proto));
    const std::vector<Value*> trained = select_trainable(model, {}, {});
    ASSERT_EQ(trained.size(), 1u) << width;
    EXPECT_EQ(trained[0]->name(), "w");
    EXPECT_EQ(model.graph->find("scales"), nullptr);
  }
}

TEST(Import, HostileGraphsAreErrors) {
  const auto text = [](const char* body) {
    return parse(concat("<ir_version: 10, opset_import: [\"\" : 21]> g (float[3, 4] x) => (float y) {", body, "}"));
  };
  EXPECT_THAT(error_of(text("y = Add(x)")), HasSubstr("input size 1"));
  EXPECT_THAT(error_of(text("y = MatMul(x, x)")), HasSubstr("MatMul"));
  EXPECT_THAT(error_of(text("y = Transpose<perm = [0, 5]>(x)")), HasSubstr("Transpose"));
  EXPECT_THAT(error_of(text("y = Concat<axis = 9>(x, x)")), HasSubstr("Concat"));
  EXPECT_THAT(error_of(text("y = Softmax<axis = \"one\">(x)")), HasSubstr("axis"));
  EXPECT_THAT(error_of(text("y = custom.Thing(x)")),
              HasSubstr("operator Thing of domain custom"));  // reported by `check`, refused by those who need it
  EXPECT_THAT(error_of(onnx::ModelProto()), HasSubstr("opset"));
}

}  // namespace
}  // namespace onnx_train::import_test
