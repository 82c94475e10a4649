#include "onnx_passes/adapt/adapt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_passes/adapt/file_names.h"
#include "onnx_passes/adapt/linear_layers.h"
#include "onnx_passes/adapt/qat.h"
#include "onnx_passes/adapt/serve_adapters.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/adapter_records.h"
#include "onnx_passes/passes.h"
#include "tests/support/error_of.h"

namespace onnx_train::adapt_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

Model adaptable(const std::string& body) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]> network )" + body);
  infer_types(model.graph.get());
  return model;
}

// relu(x w1 + b1) w2, twice as outputs.
Model two_layers() {
  return adaptable(R"((float[N,2] x) => (float[N,10] logits, float[N,4] h)
    <float[2,4] "fc1.weight" = {1,2,3,4,5,6,7,8}, float[4] "fc1.bias" = {1,2,3,4},
     float[4,10] "fc2.weight" = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}>
    {
      a = MatMul(x, "fc1.weight")
      b = Add(a, "fc1.bias")
      h = Relu(b)
      logits = MatMul(h, "fc2.weight")
    })");
}

AdapterSpec lora_of(const std::vector<std::string>& pieces) { return parse_adapter("lora", pieces); }

TEST(Adapt, AHeadIsDrawnFromItsSeedAndName) {
  const auto drawn = [](uint64_t seed) {
    Model model = two_layers();
    replace_heads({"logits=3"}, seed).run(model);
    const Value* weight = model.graph->find("fc2.weight");
    EXPECT_EQ(to_string(weight->type()), "float[4,3]");
    EXPECT_EQ(to_string(model.graph->outputs()[0]->type()), "float[N,3]");
    std::vector<double> numbers;
    const Tensor contents = contents_of(*weight);
    for (int64_t i = 0; i < contents.size(); ++i) {
      numbers.push_back(contents.at(i));
      EXPECT_LE(std::abs(contents.at(i)), 0.5);  // 1 / sqrt(4)
    }
    return numbers;
  };
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
}

std::string head_error(Model model, const std::string& head) {
  return error_of([&] { replace_heads({head}, 0).run(model); });
}

TEST(Adapt, AHeadThatIsNotFoundIsAnErrorThatNamesTheNode) {
  EXPECT_THAT(head_error(two_layers(), "logit=3"), HasSubstr("no output 'logit'; it has 'logits', 'h'"));
  EXPECT_THAT(head_error(two_layers(), "logits"), HasSubstr("write OUTPUT=N"));
  EXPECT_THAT(head_error(two_layers(), "logits=0"), HasSubstr("write OUTPUT=N"));
  const char* const residual = R"((float[N,2] x) => (float[N,2] y)
    <float[2,2] w = {1,2,3,4}> { a = Relu(x) b = MatMul(a, w) y = Add(b, a) })";
  EXPECT_THAT(head_error(adaptable(residual), "y=3"), HasSubstr("is not the only one that it is computed from"));
  const char* const scaled = R"((float[N,2] x) => (float[N,2] y)
    <float[2,2] w = {1,2,3,4}, float[2] s = {1,2}> { b = MatMul(x, w) y = Mul(b, s) })";
  EXPECT_THAT(head_error(adaptable(scaled), "y=3"), HasSubstr("has weights of its own ('s')"));
}

TEST(Adapt, AConstantForTheOldNumberOfOutputsIsAnError) {
  const char* const reshaped = R"((float[5,2] x) => (float[5,5] y)
    <float[2,5] w = {1,2,3,4,5,6,7,8,9,10}, int64[2] shape = {5,5}> { b = MatMul(x, w) y = Reshape(b, shape) })";
  EXPECT_THAT(head_error(adaptable(reshaped), "y=3"), HasSubstr("a shape ('shape') that holds 5"));
}

TEST(Adapt, ATiedWeightStaysWhatItIsForItsOtherReaders) {
  Model model = adaptable(R"((int64[N] ids) => (float[N,3] logits)
    <float[3,2] "wte.weight" = {1,2,3,4,5,6}>
    {
      h = Gather("wte.weight", ids)
      t = Transpose<perm = [1,0]>("wte.weight")
      logits = MatMul(h, t)
    })");
  replace_heads({"logits=4"}, 0).run(model);
  EXPECT_EQ(to_string(model.graph->find("wte.weight")->type()), "float[3,2]");
  EXPECT_EQ(to_string(model.graph->find("wte.weight/head")->type()), "float[4,2]");
  EXPECT_EQ(to_string(model.graph->outputs()[0]->type()), "float[N,4]");
  EXPECT_THAT(model.metadata(kAdapted), HasSubstr("others read wte.weight, too"));
}

// As GenAI's builder writes it where it has no GroupQueryAttention: a mask asks for the size of the first cache.
TEST(Adapt, ACacheOfAnOperatorIsDroppedBeforeImport) {
  onnx::ModelProto proto;
  to_proto(from_text(R"(<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    network (float[N,T,4] q, int64[N,T] ids, float[N,2,past,size] "past.0.key", float[N,2,past,size] "past.0.value",
             float[N,2,past,size] "past.1.key", float[N,2,past,size] "past.1.value")
      => (float[N,T,4] y, "present.0.key", "present.0.value", "present.1.key", "present.1.value")
    <float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,8}, int64[1] two = {2}> {
      k = MatMul(q, w)
      sizes = Shape("past.0.key") count = Gather(sizes, two) number = Cast<to = 1>(count) more = Add(q, number)
      a, "present.0.key", "present.0.value" = com.microsoft.MultiHeadAttention<num_heads = 2>(
          more, k, k, , , , "past.0.key", "past.0.value")
      y, "present.1.key", "present.1.value" = com.microsoft.MultiHeadAttention<num_heads = 2>(
          a, k, k, , , , "past.1.key", "past.1.value")
    })"),
           &proto);
  const DroppedCache dropped = drop_operator_caches(proto.mutable_graph());
  EXPECT_EQ(dropped.inputs, 3u);
  EXPECT_EQ(dropped.outputs, 4u);
  EXPECT_EQ(dropped.first, "past.0.value");
  ASSERT_EQ(dropped.kept.size(), 1u);
  EXPECT_EQ(dropped.kept.begin()->first, "past.0.key");
  Model model = import_model(proto);
  EXPECT_TRUE(drop_cache(&model, dropped));
  EXPECT_EQ(model.graph->inputs().size(), 2u);
  EXPECT_EQ(model.graph->outputs().size(), 1u);
  EXPECT_THAT(model.metadata(kAdapted), HasSubstr("4 inputs of earlier keys and values ('past.0.key' ...)"));
  EXPECT_THAT(model.metadata(kAdapted), HasSubstr("4 outputs"));
}

// A layer of a language model that was exported with a cache.
TEST(Adapt, ACacheIsEmptyAndNotComputed) {
  Model model = adaptable(R"((int64[N,T] ids, float[N,2,past,1] "past.0.key") => (float[N,T,2] logits,
      float[N,2,total,1] "present.0.key")
    <float[3,2] "wte.weight" = {1,2,3,4,5,6}, int64[4] split = {0,0,2,1}>
    {
      logits = Gather("wte.weight", ids)
      heads = Reshape(logits, split)
      keys = Transpose<perm = [0,2,1,3]>(heads)
      "present.0.key" = Concat<axis = 2>("past.0.key", keys)
    })");
  EXPECT_TRUE(drop_cache(&model));
  ASSERT_EQ(model.graph->inputs().size(), 1u);
  ASSERT_EQ(model.graph->outputs().size(), 1u);
  EXPECT_EQ(model.graph->outputs()[0]->name(), "logits");
  EXPECT_THAT(model.metadata(kAdapted), HasSubstr("cache: 1 inputs"));
  EXPECT_FALSE(drop_cache(&model));
}

// GenAI's model builder gives the size of heads a name.
TEST(Adapt, ACacheHasTheSizeOfHeadsOfTheTokensAfterIt) {
  Model model = adaptable(R"((int64[N,T] ids, float[N,2,past,dim] "past.0.key") => (float[N,T,2] logits,
      float[N,2,total,dim] "present.0.key", float[N,2,T,total] scores)
    <float[3,2] "wte.weight" = {1,2,3,4,5,6}, int64[4] split = {0,0,2,1}>
    {
      logits = Gather("wte.weight", ids)
      heads = Reshape(logits, split)
      keys = Transpose<perm = [0,2,1,3]>(heads)
      "present.0.key" = Concat<axis = 2>("past.0.key", keys)
      turned = Transpose<perm = [0,1,3,2]>("present.0.key")
      scores = MatMul(keys, turned)
    })");
  EXPECT_TRUE(drop_cache(&model));
  EXPECT_THAT(to_text(model), HasSubstr("{0}"));  // earlier tokens
  EXPECT_THAT(to_text(model), HasSubstr("{1}"));  // elements of a head
}

// One layer, whose mask hides tokens, with `past` and other sizes in the file.
std::string cached_layer(const std::string& past, const std::string& mask, const std::string& name = "past.0.key") {
  return "(int64[N,T] ids, float[N," + mask + "] mask, float[N," + past + R"(,1] ")" + name +
         R"(") => (float[N,1,T,W] logits, float[N,1,W,1] "present.0.key")
    <float[3,1] "wte.weight" = {1,2,3}, int64[1] axis = {1}>
    {
      embedded = Gather("wte.weight", ids)
      keys = Unsqueeze(embedded, axis)
      "present.0.key" = Concat<axis = 2>(")" +
         name + R"(", keys)
      turned = Transpose<perm = [0,1,3,2]>("present.0.key")
      scores = MatMul(keys, turned)
      m = Unsqueeze(mask, axis)
      m4 = Unsqueeze(m, axis)
      logits = Add(scores, m4)
    })";
}

TEST(Adapt, ACacheOfFixedLengthIsEmptyOrRefused) {
  Model model = adaptable(cached_layer("1,7", "12"));
  EXPECT_TRUE(drop_cache(&model));
  ASSERT_EQ(model.graph->inputs().size(), 2u);
  EXPECT_EQ(to_string(model.graph->inputs()[1]->type()), "float[N,T]");
  EXPECT_THAT(model.metadata(kAdapted), HasSubstr("the file says that there are 7 earlier tokens"));
  const auto refused = [](std::string text, const std::string& tokens = "T") {
    text.replace(text.find("N,T"), 3, "N," + tokens);
    Model other = adaptable(text);
    return error_of([&] { drop_cache(&other); });
  };
  EXPECT_THAT(refused(cached_layer("1,7", "8"), "1"), HasSubstr("'ids' takes one token at a time"));
  EXPECT_THAT(refused(cached_layer("1,7", "12", "past.0.encoder.key")), HasSubstr("reads of its encoder"));
  // A table that the exporter has made for all tokens.
  std::string table = cached_layer("1,7", "12");
  table.replace(table.find("int64[1] axis = {1}"), 19,
                "int64[1] axis = {1}, float[1,1,1,12] table = {0,0,0,0,0,0,0,0,0,0,0,0}");
  table.replace(table.find("Add(scores, m4)"), 15, "Add(scores, table)");
  EXPECT_THAT(refused(table, "5"),
              HasSubstr("'past.0.key' holds 7 earlier tokens, always, and without them the model does not fit"));
}

TEST(Adapt, APatternUntiesWhatSeveralNodesRead) {
  Model model = adaptable(R"((float[N,2] x) => (float[N,2] y)
    <float[2] "a.scale" = {1,1}, float[2] "b.scale" = {2,2}, float[2] "c.other" = {2,2}>
    {
      u = Mul(x, "a.scale")
      v = Mul(u, "a.scale")
      w = Mul(v, "b.scale")
      z = Mul(w, "c.other")
      y = Add(z, "b.scale")
    })");
  untie({"*.scale"}).run(model);
  EXPECT_TRUE(model.graph->find("a.scale/2"));
  EXPECT_TRUE(model.graph->find("b.scale/2"));
  EXPECT_THAT(error_of([&] { untie({"*.other"}).run(model); }), HasSubstr("matches no weight that several nodes read"));
}

TEST(Adapt, NamesOfFilesGetThePrefixOfAWrappedModule) {
  const std::set<std::string> known = {"m.a.weight", "m.b.weight"};
  EXPECT_EQ(common_prefix(known, {"a.weight", "b.weight", "c.weight"}).apply("a.weight"), "m.a.weight");
  EXPECT_EQ(common_prefix({"a.weight"}, {"m.a.weight"}).apply("m.a.weight"), "a.weight");
  EXPECT_TRUE(common_prefix(known, {"m.a.weight", "b.weight"}).empty());
  EXPECT_EQ(renamed("m.a.weight", {"m.*=*"}), "a.weight");
  EXPECT_EQ(renamed("a.weight", {"m.*=*", "*.weight=x.*.w"}), "x.a.w");
  EXPECT_THAT(error_of([] { check_renaming("m.=*"); }), HasSubstr("--rename: 'm.=*'"));
}

// Integers of a file, which no adapter's layer reads as an initializer.
TEST(Adapt, AnInputThatIsAnOutputKeepsItsNameInTrainingForIntegers) {
  Model model = adaptable(R"((float[N,2] x) => (float[N,2] y, float[N,2] x)
    <float[2,2] w = {1,2,3,4}> { y = MatMul(x, w) })");
  quantization_aware({}).run(model);
  EXPECT_EQ(model.graph->inputs()[0]->name(), "x");
  EXPECT_EQ(model.graph->outputs()[1], model.graph->inputs()[0]);
}

TEST(Adapt, LoraStandsBesideIntegers) {
  Model model = adaptable(R"((float[N,2] x) => (float[N,3] y)
    <int8[2,4] q = {1,2,3,4,5,6,7,8}, float[4] s = {1,1,1,2}, float[4,3] head = {1,1,1,1,1,1,1,1,1,1,1,1}>
    {
      w = DequantizeLinear<axis = 1>(q, s)
      h = MatMul(x, w)
      y = MatMul(h, head)
    })");
  add_adapters(lora_of({"rank=1", "dora=true"}), 0).run(model);
  EXPECT_EQ(to_string(model.graph->find("w.lora_A.weight")->type()), "float[1,2]");
  EXPECT_EQ(to_string(model.graph->find("w.lora_B.weight")->type()), "float[4,1]");
  const Tensor magnitudes = contents_of(*model.graph->find("w.lora_magnitude_vector"));
  EXPECT_FLOAT_EQ(static_cast<float>(magnitudes.at(3)), std::sqrt(8.0f * 8 + 16 * 16));
}

TEST(Adapt, AJoinedModelReadsOutputsByName) {
  auto other = std::make_shared<Model>(adaptable(R"((float[M,10] logits, float[M,1] scale) => (float[M,1] z)
    <float[10,1] "fc1.weight" = {1,2,3,4,5,6,7,8,9,10}> { a = MatMul(logits, "fc1.weight") z = Mul(a, scale) })"));
  Model model = two_layers();
  join(other, "other.onnx").run(model);
  std::vector<std::string> inputs, outputs, weights;
  for (const Value* value : model.graph->inputs()) inputs.push_back(value->name());
  for (const Value* value : model.graph->outputs()) outputs.push_back(value->name());
  for (const Value* value : model.graph->initializers()) weights.push_back(value->name());
  EXPECT_THAT(inputs, ElementsAre("x", "scale"));
  EXPECT_THAT(outputs, ElementsAre("h", "z"));
  EXPECT_THAT(weights, ElementsAre("fc1.weight", "fc1.bias", "fc2.weight", "fc1.weight_1"));
  auto stranger = std::make_shared<Model>(adaptable(R"((float[M] q) => (float[M] r) { r = Relu(q) })"));
  EXPECT_THAT(error_of([&] { join(stranger, "q.onnx").run(model); }), HasSubstr("the inputs of 'q.onnx' are 'q'"));
  auto misfit = std::make_shared<Model>(adaptable(R"((float[M,7] h) => (float[M,7] r) { r = Relu(h) })"));
  EXPECT_THAT(error_of([&] { join(misfit, "h.onnx").run(model); }),
              HasSubstr("is float[M,7], and the model's output float[N,4]"));
}

TEST(Adapt, OnlyAdaptersHeadsAndWhatIsNamedAreTrained) {
  Model model = two_layers();
  replace_heads({"logits=3"}, 0).run(model);
  add_adapters(lora_of({"rank=2"}), 0).run(model);
  const auto trained = [&](const std::vector<std::string>& train) {
    std::vector<std::string> names;
    for (const Value* value : select_trainable(model, train, {})) names.push_back(value->name());
    return names;
  };
  EXPECT_THAT(trained({}), UnorderedElementsAre("fc2.weight", "fc1.lora_A.weight", "fc1.lora_B.weight"));
  EXPECT_THAT(trained({"fc1.bias"}),
              UnorderedElementsAre("fc1.bias", "fc2.weight", "fc1.lora_A.weight", "fc1.lora_B.weight"));
  Model biases = two_layers();
  add_adapters(parse_adapter("bitfit", {}), 0).run(biases);
  EXPECT_EQ(select_trainable(biases, {}, {}).at(0)->name(), "fc1.bias");
  EXPECT_EQ(select_trainable(biases, {}, {}).size(), 1u);
}

TEST(Adapt, MergingGivesBackTheGraph) {
  const auto nodes = [](const Model& model) {
    const std::string text = to_text(model);
    return text.substr(text.find("\n{"));
  };
  for (const AdapterSpec& spec : {lora_of({"rank=2"}), parse_adapter("ia3", {"targets=fc1", "feedforward=fc2"})}) {
    const Model before = two_layers();
    Model model = two_layers();
    add_adapters(spec, 0).run(model);
    EXPECT_NE(nodes(model), nodes(before));
    EXPECT_GE(merge_adapters(&model).layers, 1);
    EXPECT_EQ(nodes(model), nodes(before)) << spec.method;
    EXPECT_FALSE(has_adapters(model));
    ASSERT_EQ(model.graph->initializers().size(), before.graph->initializers().size());
    for (const Value* value : before.graph->initializers()) {
      const Tensor merged = contents_of(*model.graph->find(value->name())), original = contents_of(*value);
      for (int64_t i = 0; i < original.size(); ++i) EXPECT_EQ(merged.at(i), original.at(i)) << value->name();
    }
  }
}

// A head that is its embedding: the file names the weight after one of the two modules, or the modules of both nodes.
TEST(Adapt, MergingUntiesTheHead) {
  const auto untied = [](const std::string& lookup, const std::string& product, const std::string& weight) {
    Model model = adaptable(R"((int64[N] ids) => (float[N,4] logits) <float[4,2] ")" + weight +
                            R"(" = {0,1,2,3,4,5,6,7}> {
      x = Gather(")" + weight +
                            R"(", ids)  t = Transpose<perm = [1, 0]>(")" + weight + R"(")  logits = MatMul(x, t) })");
    for (Node* node : model.graph->nodes()) {
      if (node->is("Gather")) node->mutable_shell().set_name(lookup);
      if (node->is("MatMul")) node->mutable_shell().set_name(product);
    }
    const std::string module = product.empty() ? weight.substr(0, weight.rfind('.')) : "head";
    add_adapters(lora_of({"rank=1", "targets=" + module}), 0).run(model);
    model.graph->set_initializer(model.graph->find(module + ".lora_B.weight"), Tensor::full(DType::kFloat, {4, 1}, 1));
    const MergedAdapters merged = merge_adapters(&model);
    EXPECT_EQ(merged.untied.size(), 1u);
    const auto& [own, base] = merged.untied.at(0);
    EXPECT_EQ(contents_of(*model.graph->find(base)).at(7), 7);
    EXPECT_NE(contents_of(*model.graph->find(own)).at(7), 7);
    EXPECT_EQ(model.graph->first()->input(0)->name(), base);
    return own + " " + base;
  };
  EXPECT_EQ(untied("/wte/Gather", "/head/MatMul", "wte.weight"), "head.weight wte.weight");
  EXPECT_EQ(untied("/wte/Gather", "/head/MatMul", "head.weight"), "head.weight wte.weight");
  EXPECT_EQ(untied("", "", "head.weight"), "head.weight head.weight/base");
}

TEST(Adapt, AdaptersThatDoNotFitAreErrors) {
  Model model = two_layers();
  const auto error = [&](const AdapterSpec& spec) { return error_of([&] { add_adapters(spec, 0).run(model); }); };
  EXPECT_THAT(error(lora_of({"targets=fc"})), HasSubstr("'fc' matches none of the 2 linear layers"));
  add_adapters(lora_of({"targets=fc?"}), 0).run(model);
  EXPECT_THAT(error(lora_of({})), HasSubstr("has adapters already"));
  const auto parsed = [](const std::vector<std::string>& pieces) { return error_of([&] { lora_of(pieces); }); };
  EXPECT_THAT(parsed({"rang=8"}), HasSubstr("no option 'rang'"));
  EXPECT_THAT(parsed({"rank=0"}), HasSubstr("whole number from 1"));
  EXPECT_THAT(parsed({"rank=1.5"}), HasSubstr("whole number"));
  EXPECT_THAT(parsed({"alpha=nan"}), HasSubstr("alpha is 'nan'"));
  EXPECT_THAT(parsed({"dropout=1"}), HasSubstr("drops everything"));
  EXPECT_THAT(parsed({"8"}), HasSubstr("write key=value"));
  const AdapterSpec several = lora_of({"targets=a", " b", "rank=4"});
  EXPECT_THAT(several.targets, ElementsAre("a", "b"));
  EXPECT_EQ(parse_adapter_text(to_string(several)).rank, 4);
}

TEST(Adapt, LayersHaveRanksAndAlphasOfTheirOwn) {
  const AdapterSpec spec =
      lora_of({"rank=2", "alpha=4", "rank.fc1=3", "rank.^blocks.*=1", "alpha.*.q=8", "targets=fc?"});
  EXPECT_EQ(to_string(spec), "lora rank=2,alpha=4,dropout=0,rslora=false,rank.fc1=3,rank.^blocks.*=1,alpha.*.q=8");
  const AdapterSpec read = parse_adapter_text(to_string(spec));
  EXPECT_EQ(read.rank_of("m.fc1"), 3);
  EXPECT_EQ(read.rank_of("blocks.0"), 1);
  EXPECT_EQ(read.rank_of("m.blocks.0"), 2);
  EXPECT_EQ(read.scale("blocks.0.q", 1), 8);
  EXPECT_EQ(read.scale("blocks.0.k", 1), 4);
  const auto refused = [](const std::string& piece) {
    Model model = two_layers();
    return error_of([&] { add_adapters(lora_of({"targets=fc1", piece}), 0).run(model); });
  };
  EXPECT_THAT(refused("rank.fc2=3"),
              HasSubstr("--lora rank.fc2: 'fc2' names none of the 1 layers that have an adapter"));
  EXPECT_THAT(refused("rank.fc1=0"), HasSubstr("rank.fc1 is '0'; take a whole number from 1"));
  Model model = two_layers();
  add_adapters(lora_of({"rank=2", "rank.fc1=1", "alpha=1", "targets=fc1", "fc2"}), 0).run(model);
  EXPECT_EQ(to_string(model.graph->find("fc1.lora_A.weight")->type()), "float[1,2]");
}

TEST(Adapt, ServedAdaptersAreInputsWithoutAnyRank) {
  Model model = two_layers();
  add_adapters(lora_of({"rank=2", "alpha=6", "targets=fc1"}), 0).run(model);
  Value* up = model.graph->find("fc1.lora_B.weight");
  model.graph->set_initializer(up, Tensor::full(DType::kFloat, up->type().shape(), 1));
  const TensorMap values = served_values(model);
  EXPECT_EQ(values.at("fc1.lora_B.weight").at(0), 3);
  EXPECT_EQ(values.size(), 2u);
  EXPECT_THAT(serve_adapters(&model, {"fc2.weight"}),
              ElementsAre("fc1.lora_A.weight", "fc1.lora_B.weight", "fc2.weight"));
  ASSERT_EQ(model.graph->inputs().size(), 4u);
  EXPECT_EQ(to_string(model.graph->inputs()[1]->type()), "float[fc1.rank,2]");
  EXPECT_EQ(to_string(model.graph->inputs()[2]->type()), "float[4,fc1.rank]");
  EXPECT_EQ(contents_of(*model.graph->find("fc1.lora_A.weight")).shape(), (Shape{0, 2}));
  EXPECT_FALSE(has_adapters(model));
  EXPECT_THAT(to_text(model), testing::Not(HasSubstr(" Mul ")));
}

TEST(Adapt, WeightsAreAssignedByName) {
  const auto arrays = [](Shape shape) {
    return std::make_shared<std::map<std::string, Tensor>>(std::map<std::string, Tensor>{
        {"fc1.bias", Tensor::full(DType::kDouble, std::move(shape), 7)}, {"other", Tensor::scalar(1.0f)}});
  };
  Model model = two_layers();
  Model whole = two_layers();
  EXPECT_THAT(error_of([&] { assign_weights(arrays({4}), "w.npz").run(whole); }),
              HasSubstr("w.npz has 1 of the model's 3 weights, and not 'fc1.weight', 'fc2.weight'; not in the model: "
                        "'other': --weights-partial leaves those as they are"));
  assign_weights(arrays({4}), "w.npz", WeightsOfFile::kSome).run(model);
  EXPECT_EQ(contents_of(*model.graph->find("fc1.bias")).at(3), 7);
  EXPECT_EQ(model.graph->find("fc1.bias")->initializer()->data_type(), static_cast<int>(DType::kFloat));
  EXPECT_THAT(model.metadata(kAdapted), HasSubstr("1 tensors from w.npz; not in the model: 'other'"));
  EXPECT_THAT(error_of([&] { assign_weights(arrays({5}), "w.npz").run(model); }),
              HasSubstr("w.npz: 'fc1.bias' has the shape [5]; the model's has [4]"));
  auto none =
      std::make_shared<std::map<std::string, Tensor>>(std::map<std::string, Tensor>{{"q", Tensor::scalar(1.f)}});
  EXPECT_THAT(error_of([&] { assign_weights(none, "q.npz").run(model); }), HasSubstr("none of its names"));
}

}  // namespace
}  // namespace onnx_train::adapt_test
