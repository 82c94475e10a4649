// Checkpoints are written tensor by tensor; what is read back is the session's state.
#include "runtime/training/checkpoint.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/passes.h"
#include "runtime/training/checkpoint_writer.h"
#include "tests/support/transformer.h"

namespace onnx_train::checkpoint_test {
namespace {

std::string new_folder(const std::string& name) {
  const std::string folder = testing::TempDir() + "/checkpoint_" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
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
  SaveOptions options;
  options.max_bytes = 1000;
  const StateContents state = [&](const std::string& name) { return session.contents(name); };
  save_message(checkpoint_message(session.model(), state, {}), path, options);
  EXPECT_TRUE(std::filesystem::exists(folder + "/a.onnx.data"));
  expect_state_of(session, load_model(path));
}

TEST(CheckpointFile, ADifferentByteIsNoticed) {
  TrainedSession session;
  const std::string path = new_folder("damaged") + "/a.onnx";
  save_checkpoint(session, {}, path);
  EXPECT_NO_THROW(load_training_model(path));
  int damaged = 0;
  std::ostringstream whole;
  whole << std::ifstream(path, std::ios::binary).rdbuf();
  for (const std::string& name : session.state().names()) {
    const Tensor tensor = session.state().get(name);
    const size_t found = whole.str().find(std::string(static_cast<const char*>(tensor.data()), tensor.bytes()));
    if (tensor.bytes() < 32 || found == std::string::npos) continue;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(found + tensor.bytes() / 2);
    const int byte = file.seekg(at).get();
    file.seekp(at).put(static_cast<char>(byte ^ 1)).flush();
    EXPECT_THROW(load_training_model(path), Error) << name;
    ++damaged;
    file.seekp(at).put(static_cast<char>(byte)).flush();
    EXPECT_NO_THROW(load_training_model(path));
  }
  EXPECT_GT(damaged, 2);
}

TEST(CheckpointFile, ASessionOfItHasNoChecksumOfTheFile) {
  TrainedSession session;
  const std::string folder = new_folder("again");
  save_checkpoint(session, {}, folder + "/a.onnx");
  Session again(load_training_model(folder + "/a.onnx"));
  const Tensor tokens(DType::kInt64, {2, 4});
  again.run("step", {{"tokens", tokens}, {"labels", tokens}});
  save_model(again.snapshot(), folder + "/b.onnx");
  expect_state_of(again, load_training_model(folder + "/b.onnx"));
}

TEST(CheckpointWriter, WritesTheStateOfTheMomentItWasAsked) {
  TrainedSession session;
  const std::string folder = new_folder("moment");
  save_checkpoint(session, {}, folder + "/expected.onnx");
  CheckpointWriter writer(&session);
  EXPECT_GT(writer.copy_bytes(), 0u);
  writer.save({}, {folder + "/best.onnx", folder + "/last.onnx"});
  for (const std::string& name : session.state().names()) {  // what steps do meanwhile
    session.state().set(name, Tensor(session.state().get(name).dtype(), session.state().get(name).shape()));
  }
  writer.wait();
  EXPECT_EQ(read_all(folder + "/best.onnx"), read_all(folder + "/expected.onnx"));
  EXPECT_EQ(read_all(folder + "/last.onnx"), read_all(folder + "/expected.onnx"));
}

TEST(CheckpointWriter, TheLastCheckpointIsWrittenWithoutACopy) {
  TrainedSession session;
  const std::string folder = new_folder("end");
  CheckpointWriter writer(&session);
  writer.save({}, {folder + "/last.onnx"});  // under way when the next one comes
  const Tensor tokens(DType::kInt64, {2, 4});
  session.run("step", {{"tokens", tokens}, {"labels", tokens}});
  save_checkpoint(session, {}, folder + "/expected.onnx");
  writer.save_and_wait({}, {folder + "/best.onnx", folder + "/last.onnx"});
  EXPECT_EQ(read_all(folder + "/best.onnx"), read_all(folder + "/expected.onnx"));
  EXPECT_EQ(read_all(folder + "/last.onnx"), read_all(folder + "/expected.onnx"));
  std::filesystem::create_directories(folder + "/other.onnx");  // in the way
  EXPECT_THROW(writer.save_and_wait({}, {folder + "/other.onnx"}), Error);
}

TEST(CheckpointWriter, EqualFilesAreStoredOnceAndGoTheirOwnWays) {
  TrainedSession session;
  const std::string folder = new_folder("equal");
  CheckpointWriter writer(&session);
  for (int64_t turn = 0; turn < 3; ++turn) {
    TrainingPosition position;
    position.step = turn;
    writer.save(position, {folder + "/best.onnx", folder + "/last.onnx"});
    writer.wait();
    EXPECT_EQ(read_all(folder + "/best.onnx"), read_all(folder + "/last.onnx"));
    position.step = turn + 10;
    writer.save(position, {folder + "/last.onnx"});
    writer.wait();
    EXPECT_EQ(checkpoint_position(load_training_model(folder + "/best.onnx"))->step, turn);
    EXPECT_EQ(checkpoint_position(load_training_model(folder + "/last.onnx"))->step, turn + 10);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()), 2);
}

TEST(CheckpointWriter, WhatCouldNotBeWrittenIsThrownByTheNextCall) {
  TrainedSession session;
  const std::string folder = new_folder("failing");
  std::filesystem::create_directories(folder + "/last.onnx");  // in the way
  CheckpointWriter writer(&session);
  writer.save({}, {folder + "/last.onnx"});
  EXPECT_THROW(writer.wait(), Error);
  EXPECT_NO_THROW(writer.wait());  // said once
  writer.save({}, {folder + "/last.onnx"});
  EXPECT_THROW(
      {
        for (int i = 0; i < 10000; ++i) {
          writer.check();
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      },
      Error);
}

// A transformer whose head is frozen, which is loaded from a file.
Model with_frozen_head(const std::string& path) {
  Model model = make_transformer({.width = 32, .vocabulary = 64});
  BuildOptions options;
  options.freeze = {"head"};
  build_training_model(&model, options);
  save_model(model, path);
  return load_training_model(path);
}

void step(Session* session) {
  const Tensor tokens(DType::kInt64, {2, 4});
  session->run("step", {{"tokens", tokens}, {"labels", tokens}});
}

constexpr size_t kHeadBytes = size_t{32} * 64 * sizeof(float);

TEST(CheckpointBase, CheckpointsReferToTheFileOfTheFrozenWeights) {
  const std::string folder = new_folder("base"), run = folder + "/run";
  std::filesystem::create_directories(run);
  Session session(with_frozen_head(folder + "/train.onnx"));
  step(&session);
  save_checkpoint(session, {}, folder + "/whole.onnx");
  CheckpointWriter writer(&session, "auto", kMaxMessageBytes, {.when = "refer"});
  EXPECT_EQ(writer.base(), nullptr);  // it is found at the first checkpoint
  writer.save({}, {run + "/best.onnx", run + "/last.onnx"});
  writer.wait();
  ASSERT_NE(writer.base(), nullptr);
  EXPECT_EQ(writer.base()->bytes(), kHeadBytes);
  const auto bytes = [](const std::string& path) { return std::filesystem::file_size(path); };
  EXPECT_LT(bytes(run + "/last.onnx") + kHeadBytes - 1024, bytes(folder + "/whole.onnx"));
  EXPECT_EQ(read_all(run + "/last.onnx"), read_all(run + "/best.onnx"));
  for (const char* name : {"/last.onnx", "/best.onnx"}) {
    const Model read = load_training_model(run + name);
    EXPECT_EQ(without_notes(read), without_notes(load_training_model(folder + "/whole.onnx")));
    EXPECT_EQ(read.metadata(kBase), "");
  }
  // A session of the checkpoint refers to the same file, and not to the checkpoint.
  Session again(load_training_model(run + "/last.onnx"));
  CheckpointWriter next(&again, "auto", kMaxMessageBytes, {.when = "refer"});
  std::filesystem::create_directories(folder + "/next");
  next.save_and_wait({}, {folder + "/next/last.onnx"});
  ASSERT_NE(next.base(), nullptr);
  EXPECT_EQ(next.base()->path(), std::filesystem::canonical(folder + "/train.onnx"));
}

TEST(CheckpointBase, ABaseThatChangesIsWrittenWithTheNextCheckpoint) {
  const std::string folder = new_folder("changing"), run = folder + "/run";
  std::filesystem::create_directories(run);
  Session session(with_frozen_head(folder + "/train.onnx"));
  CheckpointWriter writer(&session, "auto", kMaxMessageBytes, {.when = "refer"});
  writer.save_and_wait({}, {run + "/last.onnx"});
  ASSERT_NE(writer.base(), nullptr);
  step(&session);
  save_model(make_transformer({.width = 32, .vocabulary = 64}), folder + "/train.onnx");  // by renaming
  EXPECT_THROW(load_training_model(run + "/last.onnx"), Error);
  writer.save_and_wait({}, {run + "/last.onnx"});
  EXPECT_EQ(writer.base(), nullptr);
  EXPECT_NE(writer.note().find("is not there any more, or another file"), std::string::npos) << writer.note();
  save_checkpoint(session, {}, folder + "/whole.onnx");
  EXPECT_EQ(read_all(run + "/last.onnx"), read_all(folder + "/whole.onnx"));
}

TEST(CheckpointBase, NoCheckpointIsTheBaseOfAnother) {
  const std::string folder = new_folder("own"), run = folder + "/run";
  std::filesystem::create_directories(run);
  Session session(with_frozen_head(folder + "/train.onnx"));
  save_checkpoint(session, {}, folder + "/whole.onnx");
  const auto refers = [&](Model model, const BaseOptions& options) {
    Session of(std::move(model));
    CheckpointWriter writer(&of, "auto", kMaxMessageBytes, options);
    writer.save_and_wait({}, {run + "/last.onnx"});
    expect_state_of(of, load_training_model(run + "/last.onnx"));
    return writer.base() != nullptr;
  };
  EXPECT_FALSE(refers(load_training_model(folder + "/whole.onnx"), {.when = "refer"}));
  EXPECT_FALSE(refers(load_training_model(folder + "/whole.onnx"), {.when = "refer", .file = folder + "/whole.onnx"}));
  EXPECT_TRUE(refers(load_training_model(folder + "/whole.onnx"), {.when = "refer", .file = folder + "/train.onnx"}));
  EXPECT_TRUE(refers(load_training_model(folder + "/train.onnx"), {.when = "refer", .file = folder + "/missing.onnx"}));
  EXPECT_FALSE(refers(load_training_model(folder + "/train.onnx"), {.when = "auto"}));  // it is small
  // A training model that the run itself replaces.
  std::filesystem::copy_file(folder + "/train.onnx", run + "/last.onnx",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_FALSE(refers(load_training_model(run + "/last.onnx"), {.when = "refer"}));
  // Other weights under the same names.
  Model other = make_transformer({.width = 32, .vocabulary = 64});
  Tensor head = contents_of(*other.graph->find("head")).clone();
  head.set(7, head.at(7) + 1);
  other.graph->set_initializer(other.graph->find("head"), head);
  save_model(other, folder + "/other.onnx");
  EXPECT_FALSE(refers(load_training_model(folder + "/whole.onnx"), {.when = "refer", .file = folder + "/other.onnx"}));
}

TEST(CheckpointFile, FrozenWeightsComeFromTheModel) {
  Model model = make_transformer({.width = 32, .vocabulary = 64});
  const Tensor head = contents_of(*model.graph->find("head"));
  BuildOptions options;
  options.freeze = {"head"};
  build_training_model(&model, options);
  Session session(std::move(model));
  ASSERT_FALSE(session.state().contains("head"));
  const std::string path = new_folder("frozen") + "/a.onnx";
  save_checkpoint(session, {}, path);
  const Model read = load_training_model(path);
  const Tensor found = contents_of(*read.graph->find("head"));
  EXPECT_EQ(std::memcmp(found.data(), head.data(), head.bytes()), 0);
}

}  // namespace
}  // namespace onnx_train::checkpoint_test
