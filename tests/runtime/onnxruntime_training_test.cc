// Runs of ONNX Runtime's training (tests/fixtures/onnxruntime), and checkpoints that it does not write.
#include <flatbuffers/flatbuffers.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "onnx_passes/io/file.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/model/entry_point.h"
#include "runtime/onnxruntime/forward_model.h"
#include "runtime/onnxruntime/optimizer_model.h"
#include "runtime/onnxruntime/training_checkpoint.h"
#include "runtime/onnxruntime/training_import.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"

namespace onnx_train::onnxruntime_training_test {
namespace {

using testing::HasSubstr;

std::string run_of(const std::string& name) { return source_folder() / "tests/fixtures/onnxruntime" / name; }

std::vector<float> floats_of(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.size()};
}

std::string written(const std::string& name, const std::string& bytes) {
  const std::string path = testing::TempDir() + name;
  write_file(path, bytes);
  return path;
}

TEST(OrtCheckpoint, HasParametersMomentsAndProperties) {
  const OrtCheckpoint checkpoint = read_ort_checkpoint(run_of("mlp/checkpoint"));
  EXPECT_FALSE(checkpoint.is_nominal);
  ASSERT_EQ(checkpoint.trained.size(), 3u);
  EXPECT_EQ(checkpoint.trained.at("fc1.weight").shape(), (Shape{8, 4}));
  ASSERT_EQ(checkpoint.frozen.size(), 1u);
  EXPECT_EQ(checkpoint.frozen.at("fc1.bias").shape(), (Shape{8}));
  ASSERT_EQ(checkpoint.groups.size(), 1u);
  EXPECT_EQ(checkpoint.groups[0].step, 5);
  EXPECT_EQ(checkpoint.groups[0].learning_rate, 0.02f);
  EXPECT_EQ(checkpoint.groups[0].states.at("fc2.bias").at("momentum1").shape(), (Shape{3}));
  const std::map<std::string, std::string> properties = {{"best score", "0.5"}, {"epoch", "3"}, {"note", "a run"}};
  EXPECT_EQ(checkpoint.properties, properties);
}

// Versions 1.15.1 and 1.19.2 ran the same steps.
TEST(OrtCheckpoint, OfAnEarlierVersionIsAFolder) {
  const OrtCheckpoint file = read_ort_checkpoint(run_of("mlp/checkpoint"));
  const OrtCheckpoint folder = read_ort_checkpoint(run_of("mlp_1_15/checkpoint"));
  for (const auto& [name, value] : file.trained) {
    EXPECT_THAT(floats_of(folder.trained.at(name)), testing::Pointwise(testing::FloatNear(1e-6f), floats_of(value)));
  }
  EXPECT_EQ(floats_of(folder.frozen.at("fc1.bias")), floats_of(file.frozen.at("fc1.bias")));
  ASSERT_EQ(folder.groups.size(), 1u);
  EXPECT_EQ(folder.groups[0].name, "group0");
  EXPECT_EQ(folder.groups[0].step, 5);
  EXPECT_EQ(folder.groups[0].learning_rate, 0.02f);
  EXPECT_EQ(folder.groups[0].states.at("fc1.weight").size(), 2u);
}

TEST(OrtCheckpoint, WithoutValuesSaysSo) {
  const OrtCheckpoint checkpoint = read_ort_checkpoint(run_of("mlp/nominal_checkpoint"));
  EXPECT_TRUE(checkpoint.is_nominal);
  EXPECT_EQ(checkpoint.trained.size(), 3u);
}

TEST(OrtCheckpoint, CutOffAnywhereIsAnError) {
  const std::string bytes = read_file(run_of("mlp/checkpoint"));
  for (size_t size = 0; size < bytes.size(); size += 7) {
    const std::string path = written("cut_checkpoint", bytes.substr(0, size));
    EXPECT_THAT(error_of([&] { read_ort_checkpoint(path); }), HasSubstr("cut_checkpoint")) << size;
  }
  for (const char* name : {"paramtrain_tensors.pbseq", "optim_group0_properties.pbseq"}) {
    const std::string folder = testing::TempDir() + "cut_folder";
    std::filesystem::remove_all(folder);
    std::filesystem::copy(run_of("mlp_1_15/checkpoint"), folder);
    const std::string whole = read_file(folder + "/" + name);
    for (size_t size = 0; size < whole.size(); ++size) {
      write_file(folder + "/" + name, whole.substr(0, size));
      EXPECT_THAT(error_of([&] { read_ort_checkpoint(folder); }), HasSubstr(name)) << size;
    }
  }
}

// One tensor of a checkpoint as the schema has it (runtime/onnxruntime/training_checkpoint.fbs): fields are numbered.
struct StoredTensor {
  std::string name;
  std::vector<int64_t> dims;
  int32_t type = 1;
  std::vector<float> raw = {};
  int64_t offset = -1;  // in the file beside the checkpoint
};

flatbuffers::voffset_t field(int number) { return static_cast<flatbuffers::voffset_t>(4 + 2 * number); }

std::string checkpoint_of(const std::vector<StoredTensor>& tensors, bool has_external_data = false,
                          int32_t version = 2) {
  flatbuffers::FlatBufferBuilder b;
  std::vector<flatbuffers::Offset<void>> offsets;
  for (const StoredTensor& tensor : tensors) {
    const auto name = b.CreateString(tensor.name);
    const auto dims = b.CreateVector(tensor.dims);
    const auto raw = b.CreateVector(reinterpret_cast<const uint8_t*>(tensor.raw.data()), tensor.raw.size() * 4);
    const auto start = b.StartTable();
    b.AddOffset(field(0), name);
    b.AddOffset(field(2), dims);
    b.AddElement<int32_t>(field(3), tensor.type, 0);
    if (tensor.offset < 0) b.AddOffset(field(4), raw);
    b.AddElement<int64_t>(field(6), tensor.offset, -1);
    offsets.emplace_back(b.EndTable(start));
  }
  const auto all = b.CreateVector(offsets);
  const auto start = b.StartTable();
  b.AddOffset(field(0), all);
  b.AddElement<uint8_t>(field(3), has_external_data ? 1 : 0, 0);
  const flatbuffers::Offset<void> state(b.EndTable(start));
  const auto root = b.StartTable();
  b.AddElement<int32_t>(field(0), version, 0);
  b.AddOffset(field(1), state);
  b.Finish(flatbuffers::Offset<void>(b.EndTable(root)), "ODTC");
  return {reinterpret_cast<const char*>(b.GetBufferPointer()), b.GetSize()};
}

std::string error_of_checkpoint(const std::string& bytes) {
  const std::string path = written("made_checkpoint", bytes);
  return error_of([&] { read_ort_checkpoint(path); });
}

TEST(OrtCheckpoint, HasLargeTensorsInAFileBesideIt) {
  const std::string path = written("large", checkpoint_of({{"w", {2, 2}, 1, {}, 8}, {"b", {1}, 1, {5}}}, true));
  std::filesystem::remove(path + ".data");
  EXPECT_THAT(error_of([&] { read_ort_checkpoint(path); }), HasSubstr("large.data"));
  const std::vector<float> data = {0, 0, 1, 2, 3, 4};
  written("large.data", {reinterpret_cast<const char*>(data.data()), data.size() * 4});
  const OrtCheckpoint checkpoint = read_ort_checkpoint(path);
  EXPECT_EQ(floats_of(checkpoint.trained.at("w")), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(floats_of(checkpoint.trained.at("b")), (std::vector<float>{5}));
  written("large.data", std::string(20, '\0'));
  EXPECT_THAT(error_of([&] { read_ort_checkpoint(path); }), HasSubstr("the tensor 'w' has the shape [2,2]"));
  const std::string without = checkpoint_of({{"w", {2, 2}, 1, {}, 8}});
  EXPECT_THAT(error_of_checkpoint(without), HasSubstr("is in another file"));
}

TEST(OrtCheckpoint, OfASizeThatDoesNotFitIsAnError) {
  EXPECT_THAT(error_of_checkpoint(checkpoint_of({{"w", {3}, 1, {1, 2}}})),
              HasSubstr("shape [3], and 8 bytes are there"));
  EXPECT_THAT(error_of_checkpoint(checkpoint_of({{"w", {-1}, 1, {1}}})), HasSubstr("'w'"));
  EXPECT_THAT(error_of_checkpoint(checkpoint_of({{"w", {INT64_MAX, INT64_MAX}, 1, {1}}})), HasSubstr("'w'"));
  EXPECT_THAT(error_of_checkpoint(checkpoint_of({{"w", {INT64_MAX}, 11, {1}}})), HasSubstr("'w'"));
  EXPECT_THAT(error_of_checkpoint(checkpoint_of({{"w", {1}, 8, {1}}})), HasSubstr("'w'"));
  EXPECT_THAT(error_of_checkpoint(checkpoint_of({{"w", {1}, 12345, {1}}})), HasSubstr("'w'"));
  EXPECT_THAT(error_of_checkpoint(checkpoint_of({{"", {1}, 1, {1}}})), HasSubstr("without a name"));
  EXPECT_THAT(error_of_checkpoint(checkpoint_of({{"w", {1}, 1, {1}}, {"w", {1}, 1, {1}}})), HasSubstr("'w' twice"));
  EXPECT_THAT(error_of_checkpoint(checkpoint_of({{"w", {1}, 1, {1}}}, false, 3)), HasSubstr("format version 3"));
}

// A file of a few bytes would ask for any amount of memory.
TEST(OrtCheckpoint, WhoseTensorsOverlapIsAnError) {
  std::vector<StoredTensor> tensors;
  for (int i = 0; i < 100; ++i) tensors.push_back({concat("w", i), {1000}, 1, {}, 0});
  written("made_checkpoint.data", std::string(4000, '\0'));
  EXPECT_THAT(error_of_checkpoint(checkpoint_of(tensors, true)), HasSubstr("overlap"));
}

TEST(OrtModel, GivesTheLossItsExpression) {
  const std::map<std::string, std::string> losses = {
      {"mlp", "cross_entropy(logits, labels)"},
      {"mse", "mse(logits, target)"},
      {"bce", "bce_with_logits(logits, target)"},
      {"l1", "l1(logits, target)"},
      {"ignored", "cross_entropy(logits, labels, ignore_index=1, reduction=sum)"},
      {"own_loss", "'onnx::add_output::65'"}};
  for (const auto& [name, loss] : losses) {
    const OrtCheckpoint checkpoint = read_ort_checkpoint(run_of(name + "/checkpoint"));
    const auto forward = recover_forward(load_message(run_of(name + "/eval_model.onnx")), nullptr, checkpoint);
    std::string found = forward.loss;  // the rank of scores that are no output is not declared
    if (const size_t axis = found.find(", axis=1"); axis != std::string::npos) found.erase(axis, 8);
    EXPECT_EQ(found, loss) << name;
    EXPECT_EQ(forward.is_recovered, name != "own_loss") << name;
    const auto& inputs = forward.message.proto.graph().input();
    EXPECT_EQ(inputs.size(), forward.is_recovered ? 1 : 2) << name;  // the target is the loss's
  }
}

TEST(OrtModel, OfABackwardPassIsTheSameForwardModel) {
  for (const char* name : {"mlp", "mse", "cnn", "transformer"}) {
    OrtImportSettings settings{run_of(name)};
    const Model from_eval = import_ort_training(settings).model;
    const std::string folder = testing::TempDir() + "no_eval";
    std::filesystem::remove_all(folder);
    std::filesystem::copy(run_of(name), folder);
    std::filesystem::remove(folder + "/eval_model.onnx");
    settings.path = folder;
    const Model from_training = import_ort_training(settings).model;
    EXPECT_EQ(from_training.metadata("onnx_train.loss"), from_eval.metadata("onnx_train.loss")) << name;
    EXPECT_EQ(from_training.graph->inputs().size(), from_eval.graph->inputs().size()) << name;
    EXPECT_EQ(from_training.graph->outputs()[0]->name(), from_eval.graph->outputs()[0]->name()) << name;
  }
}

TEST(OrtOptimizer, HasItsHyperParameters) {
  const auto of_run = [](const std::string& name) {
    return recover_optimizer(load_message(run_of(name + "/optimizer_model.onnx")).proto.graph(), "0.5");
  };
  EXPECT_EQ(of_run("mlp").expression, "hf_adamw(lr=0.5, betas=(0.9, 0.999), eps=1e-06, weight_decay=0)");
  EXPECT_EQ(of_run("bce").expression, "hf_adamw(lr=0.5, betas=(0.8, 0.95), eps=1e-04, weight_decay=0.1)");
  EXPECT_FLOAT_EQ(static_cast<float>(of_run("bce").clip_norm), 0.05f);
  EXPECT_THAT(of_run("l1").expression, HasSubstr("correct_bias=false"));
  EXPECT_EQ(of_run("mse").expression, "sgd(lr=0.5)");
  onnx::GraphProto graph = load_message(run_of("mlp/optimizer_model.onnx")).proto.graph();
  graph.mutable_node(0)->set_op_type("LambOptimizer");
  EXPECT_THAT(error_of([&] { recover_optimizer(graph, "0.5"); }),
              HasSubstr("(LambOptimizer), which is no AdamW or SGD"));
}

TEST(OrtImport, GoesOnWithStepsAndMoments) {
  const OrtCheckpoint checkpoint = read_ort_checkpoint(run_of("mlp/checkpoint"));
  const Model model = import_ort_training({run_of("mlp")}).model;
  const EntryPoint& step = *model.training_entry_point();
  EXPECT_EQ(contents_of(*find_state(step, "step")).to_ints(), std::vector<int64_t>{5});
  int moments = 0;
  for (const Value* state : step.algorithm->initializers()) {
    if (!state->has_role("exp_avg")) continue;
    ++moments;
    EXPECT_EQ(floats_of(contents_of(*state)),
              floats_of(checkpoint.groups[0].states.at(state->role()->of).at("momentum0")));
  }
  EXPECT_EQ(moments, 3);
}

}  // namespace
}  // namespace onnx_train::onnxruntime_training_test
