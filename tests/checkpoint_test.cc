// Checkpoints are written tensor by tensor; what is read back is the session's state.
#include "runtime/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "onnx_passes/ir/loading.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes/passes.h"
#include "tests/transformer.h"

namespace onnx_train {
namespace {

std::string new_folder(const std::string& name) {
  const std::string folder = testing::TempDir() + "/checkpoint_" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

// After one step.
class TrainedSession : public Session {
 public:
  TrainedSession() : Session(make_training_transformer({.width = 32, .vocabulary = 64})) {
    const Tensor tokens(DType::kInt64, {2, 4});
    run("step", {{"tokens", tokens}, {"labels", tokens}});
  }
};

void expect_state_of(Session& session, Model model) {
  Session read(std::move(model));
  ASSERT_EQ(read.state().names(), session.state().names());
  for (const std::string& name : session.state().names()) {
    const Tensor a = session.state().get(name), b = read.state().get(name);
    ASSERT_EQ(a.shape(), b.shape()) << name;
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0) << name;
  }
}

std::string without_notes(onnx::ModelProto proto) {
  proto.clear_metadata_props();
  proto.mutable_graph()->clear_value_info();
  for (auto& info : *proto.mutable_training_info()) {
    info.mutable_algorithm()->clear_value_info();
    info.mutable_initialization()->clear_value_info();
  }
  return proto.SerializeAsString();
}

std::string without_notes(const Model& model) {
  onnx::ModelProto proto;
  to_proto(model, &proto);
  return without_notes(std::move(proto));
}

TEST(CheckpointFile, HoldsTheStateAndTheWholeModel) {
  TrainedSession session;
  const std::string path = new_folder("whole") + "/a.onnx";
  save_checkpoint(session, {}, path);
  expect_state_of(session, load_training_model(path));
  // But for metadata and the types of values it is the message that a snapshot gives.
  EXPECT_EQ(without_notes(load_proto(path)), without_notes(session.snapshot()));
}

TEST(CheckpointFile, LargeOnesKeepTheirDataOutside) {
  TrainedSession session;
  const std::string folder = new_folder("outside"), path = folder + "/a.onnx";
  onnx::ModelProto proto;
  to_proto(session.model(), &proto, {.contents = false});
  const TensorContents contents = [&](const std::string& name) { return session.contents(name); };
  save_proto(proto, path, contents, /*max_bytes=*/1000);
  EXPECT_TRUE(std::filesystem::exists(folder + "/a.onnx.data"));
  expect_state_of(session, load_model(path));
}

TEST(CheckpointFile, FrozenWeightsComeFromTheModel) {
  Model model = make_transformer({.width = 32, .vocabulary = 64});
  const Tensor head = from_proto(*model.graph->find("head")->initializer());
  BuildOptions options;
  options.freeze = {"head"};
  build_training_model(&model, options);
  Session session(std::move(model));
  ASSERT_FALSE(session.state().contains("head"));
  const std::string path = new_folder("frozen") + "/a.onnx";
  save_checkpoint(session, {}, path);
  const Model read = load_training_model(path);
  const Tensor found = from_proto(*read.graph->find("head")->initializer());
  EXPECT_EQ(std::memcmp(found.data(), head.data(), head.bytes()), 0);
}

}  // namespace
}  // namespace onnx_train
