// Frozen weights in 16 and 4 bits: tensors that are stored in fewer bits than their type has, and what a training
// model's message has in their place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes.h"
#include "runtime/support/fingerprint.h"
#include "tests/support/error_of.h"

namespace onnx_train::stored_weights_test {
namespace {

using testing::HasSubstr;

Tensor narrow(DType dtype, Shape shape) {
  Tensor numbers(DType::kFloat, std::move(shape));
  for (int64_t i = 0; i < numbers.size(); ++i) numbers.set(i, std::sin(0.37 * static_cast<double>(i)));
  return numbers.cast(dtype);
}

Tensor bytes(int64_t count) {
  Tensor all(DType::kUint8, {count});
  for (int64_t i = 0; i < count; ++i) all.set(i, static_cast<double>((37 * i + 11) % 256));
  return all;
}

std::string data_of(const Tensor& tensor) { return {static_cast<const char*>(tensor.data()), tensor.bytes()}; }

TEST(StoredTensor, WidenedNumbersAreThoseOfACast) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const Tensor stored = narrow(dtype, {5, 3}), expected = stored.cast(DType::kFloat);
    const Tensor wide = Tensor::widened(stored);
    EXPECT_EQ(wide.dtype(), DType::kFloat);
    EXPECT_EQ(wide.shape(), (Shape{5, 3}));
    EXPECT_EQ(wide.at(7), expected.at(7));
    EXPECT_EQ(data_of(wide.clone()), data_of(expected));
    EXPECT_EQ(data_of(wide.part(4, 6)), data_of(expected.part(4, 6)));
    EXPECT_EQ(data_of(wide.reshaped({15})), data_of(expected));
    EXPECT_EQ(data_of(wide.cast(DType::kDouble)), data_of(expected.cast(DType::kDouble)));
    EXPECT_EQ(data_of(wide), data_of(expected));
    Tensor written = wide;
    written.set(0, 5);
    EXPECT_EQ(written.at(0), 5);
    EXPECT_EQ(wide.at(0), expected.at(0));
  }
}

TEST(StoredTensor, ACastBackIsWhatIsStored) {
  const Tensor stored = narrow(DType::kBFloat16, {4, 4});
  EXPECT_EQ(std::as_const(stored).data(), std::as_const(*Tensor::widened(stored).narrow()).data());
  const Tensor back = Tensor::widened(stored).cast(DType::kBFloat16);
  EXPECT_EQ(back.data<char>(), stored.data<char>());
}

TEST(StoredTensor, ACopyOfWhatNobodyHasReadHasItsOwnNumbers) {
  const Tensor kept = Tensor::widened(narrow(DType::kBFloat16, {64, 64}));
  const void* numbers = nullptr;
  {
    const Tensor reader = kept, after = reader;
    numbers = reader.data();
    EXPECT_NE(after.data(), numbers);
    const Tensor later = reader;
    EXPECT_EQ(later.data(), numbers);
  }
  const Tensor other = kept, reader = kept;
  EXPECT_NE(other.data(), reader.data());  // `kept` has none of them
}

TEST(StoredTensor, FourBitsAreTwoInAByte) {
  for (const int64_t count : {0, 1, 7, 8}) {
    const Tensor packed = bytes((count + 1) / 2);
    const Tensor is_signed = Tensor::unpacked(DType::kInt8, {count}, packed),
                 is_unsigned = Tensor::unpacked(DType::kUint8, {count}, packed);
    const Tensor cloned = is_signed.clone();
    for (int64_t i = 0; i < count; ++i) {
      const int byte = packed.data<uint8_t>()[i / 2], code = i % 2 == 0 ? byte & 15 : byte >> 4;
      EXPECT_EQ(is_unsigned.at(i), code);
      EXPECT_EQ(is_signed.at(i), code < 8 ? code : code - 16);
      EXPECT_EQ(cloned.at(i), is_signed.at(i));
      EXPECT_EQ(is_signed.data<int8_t>()[i], is_signed.at(i));
    }
  }
  EXPECT_THAT(error_of([] { Tensor::unpacked(DType::kInt8, {7}, bytes(3)); }), HasSubstr("3 bytes do not hold"));
  EXPECT_THROW(Tensor::unpacked(DType::kInt8, {8}, bytes(4)).part(1, 2), Error);
}

TEST(StoredTensor, BlocksAreThoseOfItsNumbers) {
  const Tensor wide = Tensor::widened(narrow(DType::kFloat16, {1100, 1001})),
               integers = Tensor::unpacked(DType::kInt8, {1100, 2001}, bytes(1100 * 2001 / 2));
  for (const Tensor& tensor : {wide, integers}) {
    std::string all;
    int blocks = 0;
    for_each_block(tensor, [&](const void* data, size_t size) {
      all.append(static_cast<const char*>(data), size);
      ++blocks;
    });
    EXPECT_GT(blocks, 1);
    EXPECT_EQ(all, data_of(tensor.clone()));
  }
}

TEST(StoredTensor, AFingerprintTellsNumbersNotHowTheyAreStored) {
  for (const size_t sampled : {size_t{1} << 16, size_t{1} << 30}) {
    const Tensor wide = Tensor::widened(narrow(DType::kBFloat16, {333, 1001}));
    const Tensor integers = Tensor::unpacked(DType::kUint8, {999, 1001}, bytes((999 * 1001 + 1) / 2));
    for (const Tensor& tensor : {wide, integers})
      EXPECT_EQ(fingerprint({{"w", tensor}}, sampled), fingerprint({{"w", tensor.clone()}}, sampled));
  }
}

// y = (x w + b) t, where t are integers of 4 bits. Only b trains, or w, too.
Model trained_model(bool trains_w) {
  Model model;
  model.context->opsets[""] = 21;
  model.shell().set_ir_version(10);
  model.graph->shell().set_name("g");
  Graph& graph = *model.graph;
  Value* x = graph.add_input("x", {DType::kFloat, Dims{Dim("N"), Dim(64)}});
  Value* w = graph.add_initializer("w", Tensor::widened(narrow(DType::kBFloat16, {64, 64})));
  Value* q = graph.add_initializer("q", Tensor::unpacked(DType::kInt8, {64, 64}, bytes(2048)));
  Value* s = graph.add_initializer("s", Tensor::scalar(0.01f));
  Value* b = graph.add_initializer("b", Tensor(DType::kFloat, {64}));
  const auto add = [&](const char* op, const std::vector<Value*>& inputs, const char* output) {
    return graph.add_node(op, inputs, {output})->output();
  };
  Value* t = add("DequantizeLinear", {q, s}, "t");
  Value* h = add("Add", {add("MatMul", {x, w}, "h"), b}, "a");
  graph.set_outputs({add("MatMul", {h, t}, "y")});
  infer_types(&graph);
  BuildOptions options;
  options.loss = "mse";
  options.optimizer = "sgd";
  options.train = {trains_w ? "*" : "b"};
  build_training_model(&model, options);
  return model;
}

const onnx::TensorProto* tensor_of(const onnx::ModelProto& proto, const std::string& name) {
  for (const auto& tensor : proto.graph().initializer()) {
    if (tensor.name() == name) return &tensor;
  }
  return nullptr;
}

TEST(StoredWeights, OfATrainingModelAreCastsOfWhatTheFileHad) {
  const Model model = trained_model(/*trains_w=*/false);
  const ModelMessage message = to_message(model);
  const auto *w = tensor_of(message.proto, "w/stored"), *q = tensor_of(message.proto, "q/stored");
  ASSERT_TRUE(w && q);
  EXPECT_EQ(w->data_type(), onnx::TensorProto::BFLOAT16);
  EXPECT_EQ(q->data_type(), onnx::TensorProto::INT4);
  EXPECT_EQ(message.contents.at(*reference_of(*w)).bytes(), 64U * 64 * 2);
  EXPECT_EQ(message.contents.at(*reference_of(*q)).bytes(), 64U * 64 / 2);
  EXPECT_FALSE(tensor_of(message.proto, "w") || tensor_of(message.proto, "q"));
  EXPECT_EQ(message.proto.graph().node(0).op_type(), "Cast");
  onnx::ModelProto inference = with_contents(message);
  inference.clear_training_info();
  check_proto(inference);

  const Model again = from_message(message);
  const Value* weight = again.graph->find("w");
  ASSERT_TRUE(weight && weight->is_initializer());
  EXPECT_EQ(weight->dtype(), DType::kFloat);
  EXPECT_TRUE(contents_beside(weight->shared_initializer())->narrow());
  EXPECT_EQ(data_of(contents_of(*weight)), data_of(contents_of(*model.graph->find("w"))));
  EXPECT_EQ(data_of(contents_of(*again.graph->find("q"))), data_of(contents_of(*model.graph->find("q"))));
  EXPECT_EQ(again.graph->num_nodes(), model.graph->num_nodes());
  EXPECT_EQ(with_contents(to_message(again)).SerializeAsString(), with_contents(message).SerializeAsString());
  EXPECT_EQ(fingerprint(again), fingerprint(model));
}

TEST(StoredWeights, ThatTrainAreFloat32) {
  const ModelMessage message = to_message(trained_model(/*trains_w=*/true));
  ASSERT_TRUE(tensor_of(message.proto, "w"));
  EXPECT_EQ(tensor_of(message.proto, "w")->data_type(), onnx::TensorProto::FLOAT);
  EXPECT_TRUE(tensor_of(message.proto, "q/stored"));
}

TEST(StoredWeights, OfAnInferenceModelAreInitializersOfTheirType) {
  Model model = trained_model(false);
  model.entry_points.clear();
  const ModelMessage message = to_message(model);
  ASSERT_TRUE(tensor_of(message.proto, "w"));
  EXPECT_EQ(tensor_of(message.proto, "w")->data_type(), onnx::TensorProto::FLOAT);
  EXPECT_EQ(with_contents(message).graph().initializer(0).raw_data(), data_of(contents_of(*model.graph->find("w"))));
}

TEST(StoredWeights, GiveWayToAnotherValueOfTheirName) {
  Model model = trained_model(false);
  model.graph->rename(model.graph->find("b"), "w/stored");
  const ModelMessage message = to_message(model);
  ASSERT_TRUE(tensor_of(message.proto, "w/stored_"));
  EXPECT_EQ(tensor_of(message.proto, "w/stored_")->data_type(), onnx::TensorProto::BFLOAT16);
  EXPECT_TRUE(from_message(message).graph->find("w"));
}

TEST(StoredWeights, WithoutTheirCastAreLeftAsTheyAre) {
  ModelMessage message = to_message(trained_model(false));
  message.proto.mutable_graph()->mutable_node(0)->mutable_attribute(0)->set_i(onnx::TensorProto::DOUBLE);
  const Model model = from_message(message);
  ASSERT_TRUE(model.graph->find("w/stored"));
  EXPECT_EQ(model.graph->find("w/stored")->dtype(), DType::kBFloat16);
}

TEST(StoredWeights, ThatAreNamedBecomeInitializersOfTheirType) {
  const Model model = trained_model(false);
  ModelMessage message = to_message(model);
  widen_stored_weights(&message, {"w", "none"});
  ASSERT_TRUE(tensor_of(message.proto, "w"));
  EXPECT_EQ(tensor_of(message.proto, "w")->data_type(), onnx::TensorProto::FLOAT);
  EXPECT_TRUE(tensor_of(message.proto, "q/stored"));
  EXPECT_EQ(data_of(contents_of(*from_message(message).graph->find("w"))),
            data_of(contents_of(*model.graph->find("w"))));
}

}  // namespace
}  // namespace onnx_train::stored_weights_test
