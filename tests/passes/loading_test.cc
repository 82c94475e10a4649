// Files that cannot be trusted, and files that must not be lost.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "onnx_passes/io/absent_data.h"
#include "onnx_passes/io/format.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/model/pass.h"
#include "tests/support/error_of.h"
#include "tests/support/failing_fsync.h"

namespace onnx_train::loading_test {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;
using testing::HasSubstr;

class Loading : public testing::Test {
 protected:
  Loading() {
    std::string pattern = (fs::temp_directory_path() / "loading_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~Loading() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }
  void put(const std::string& name, const std::string& bytes) const { std::ofstream(path(name)) << bytes; }
  void save(const onnx::ModelProto& proto) const { put("m.onnx", proto.SerializeAsString()); }
  size_t num_files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  // The message of the Error that loading m.onnx throws; "" if it loads.
  std::string error_of(const std::string& name = "m.onnx") const {
    return onnx_train::error_of([&] { load_model(path(name)); });
  }

  fs::path folder_;
};

onnx::ModelProto small_model() {
  onnx::ModelProto proto;
  to_proto(from_text("<ir_version: 10, opset_import: [\"\" : 21]> g (float[2] x) => (float[2] y)"
                     "<float[2] w = {1, 2}> { y = Add(x, w) }"),
           &proto);
  return proto;
}

// small_model whose w lies in `location`, with further keys.
onnx::ModelProto external_model(const std::string& location,
                                const std::vector<std::pair<std::string, std::string>>& keys = {}) {
  onnx::ModelProto proto = small_model();
  auto* w = proto.mutable_graph()->mutable_initializer(0);
  w->clear_float_data();
  w->clear_raw_data();
  w->set_data_location(onnx::TensorProto::EXTERNAL);
  const auto add = [&](const std::string& key, const std::string& value) {
    auto* entry = w->add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  };
  add("location", location);
  for (const auto& [key, value] : keys) add(key, value);
  return proto;
}

TEST_F(Loading, SavedModelLoads) {
  const onnx::ModelProto proto = small_model();
  save_proto(proto, path("m.onnx"));
  EXPECT_EQ(load_proto(path("m.onnx")).SerializeAsString(), proto.SerializeAsString());
  EXPECT_EQ(num_files(), 1u);
}

TEST_F(Loading, WhatIsNoModelIsNamed) {
  EXPECT_THAT(error_of("missing.onnx"), HasSubstr("No such file"));
  EXPECT_THAT(error_of(""), HasSubstr("directory"));
  put("m.onnx", "");
  EXPECT_THAT(error_of(), HasSubstr("empty"));
  put("m.onnx", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n");
  EXPECT_THAT(error_of(), HasSubstr("git lfs pull"));
  put("m.onnx", "This is prose, not protobuf.");
  EXPECT_THAT(error_of(), HasSubstr("not an ONNX model"));
  put("m.onnx", std::string("PK\x03\x04", 4) + "data.pkl");
  EXPECT_THAT(error_of(), HasSubstr("zip"));
  ASSERT_EQ(mkfifo(path("pipe.onnx").c_str(), 0600), 0);
  EXPECT_THAT(error_of("pipe.onnx"), HasSubstr("no regular file"));
}

TEST_F(Loading, EveryTruncationIsAnError) {
  const std::string bytes = small_model().SerializeAsString();
  for (size_t n = 0; n + 8 < bytes.size(); ++n) {
    put("m.onnx", bytes.substr(0, n));
    EXPECT_NE(error_of(), "") << n;
  }
  put("m.onnx", bytes.substr(0, bytes.size() / 2));
  EXPECT_THAT(error_of(), HasSubstr("truncated"));
}

TEST_F(Loading, FlippedBytesNeverCrash) {
  const std::string bytes = small_model().SerializeAsString();
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int flip : {0x01, 0x10, 0x80, 0xff}) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      put("m.onnx", damaged);
      error_of();
    }
  }
}

TEST_F(Loading, ExternalDataIsRead) {
  fs::create_directory(path("weights"));
  std::ofstream(path("weights/w.bin")) << std::string("....\0\0\x80?\0\0\0@", 12);
  save(external_model("weights/w.bin", {{"offset", "4"}, {"length", "8"}}));
  const Model model = load_model(path("m.onnx"));
  EXPECT_EQ(contents_of(*model.graph->find("w")).at(1), 2);
}

TEST_F(Loading, ExternalDataStaysInTheFolder) {
  fs::create_directory(path("inner"));
  put("w.bin", "12345678");
  const auto refuse = [&](const std::string& location, const char* why) {
    std::ofstream(path("inner/m.onnx")) << external_model(location).SerializeAsString();
    EXPECT_THAT(error_of("inner/m.onnx"), HasSubstr(why));
  };
  refuse("../w.bin", "leaves the model's folder");
  refuse("a/../../w.bin", "leaves the model's folder");
  refuse(path("w.bin"), "refused");
  refuse("C:\\w.bin", "refused");
  refuse("", "names no file");
  refuse("./", "is no file");
  refuse("missing.bin", "No such file");
  fs::create_symlink(path("w.bin"), path("inner/link.bin"));
  refuse("link.bin", "link");
  fs::create_directory_symlink(folder_, path("inner/up"));
  refuse("up/w.bin", "link");
  fs::create_hard_link(path("w.bin"), path("inner/hard.bin"));
  refuse("hard.bin", "hard links");
  ASSERT_EQ(mkfifo(path("inner/pipe").c_str(), 0600), 0);
  refuse("pipe", "no regular file");
}

TEST_F(Loading, LinksAreFollowedIntoTheFolderThatAllowsThem) {
  fs::create_directories(path("cache/blobs"));
  fs::create_directories(path("cache/snapshots/main"));
  fs::create_directories(path("elsewhere"));
  put("cache/blobs/123", "\0\0\x80?\0\0\0@"s);
  put("elsewhere/456", "12345678");
  fs::create_symlink("../../blobs/123", path("cache/snapshots/main/w.bin"));
  fs::create_symlink("../../../elsewhere/456", path("cache/snapshots/main/out.bin"));
  fs::create_hard_link(path("cache/blobs/123"), path("cache/snapshots/main/hard.bin"));
  const auto load = [&](const std::string& location, const std::string& allowed) {
    put("cache/snapshots/main/m.onnx", external_model(location).SerializeAsString());
    allow_links_into(allowed.empty() ? "" : path(allowed));
    const std::string error = error_of("cache/snapshots/main/m.onnx");
    allow_links_into("");
    return error;
  };
  for (const char* location : {"w.bin", "hard.bin"}) {
    EXPECT_THAT(load(location, ""), HasSubstr("--allow-links DIR")) << location;
    EXPECT_EQ(load(location, "cache"), "") << location;
  }
  EXPECT_EQ(load("w.bin", "cache/blobs"), "");
  EXPECT_THAT(load("out.bin", "cache"), HasSubstr("which is not below"));
  EXPECT_EQ(load("out.bin", "elsewhere"), "");
  EXPECT_THAT(load("w.bin", "elsewhere"), HasSubstr("which is not below"));
  EXPECT_THAT(load("w.bin", "no/such"), HasSubstr("No such file"));
  EXPECT_THAT(load("../../blobs/123", "cache"), HasSubstr("leaves the model's folder"));
  EXPECT_THAT(load("missing.bin", "cache"), HasSubstr("No such file"));
}

TEST_F(Loading, AbsentDataAreNumbersThatDifferWhereTheyAreAllowed) {
  onnx::ModelProto proto = external_model("none.bin");
  auto* w = proto.mutable_graph()->mutable_initializer(0);
  w->clear_dims();
  w->add_dims(1 << 14);
  auto* v = proto.mutable_graph()->add_initializer();
  *v = *w;
  v->set_name("v");
  save(proto);
  EXPECT_THAT(error_of(), HasSubstr("No such file"));
  const AbsentData before = absent_data();
  allow_absent_data(true);
  const Model model = load_model(path("m.onnx"));
  const Tensor one = contents_of(*model.graph->find("w")), other = contents_of(*model.graph->find("v"));
  w->set_data_type(onnx::TensorProto::INT64);
  save(proto);
  const std::string integers = error_of();
  put("none.bin", "12345678");
  const std::string present = error_of();
  allow_absent_data(false);
  EXPECT_EQ(one.bytes(), size_t{4} << 14);
  EXPECT_NE(std::memcmp(one.data(), other.data(), one.bytes()), 0);
  for (int64_t i = 0; i < 1 << 14; ++i) EXPECT_LT(std::abs(one.at(i)), 2);
  EXPECT_EQ(absent_data().tensors - before.tensors, 2U);
  EXPECT_EQ(absent_data().bytes - before.bytes, size_t{8} << 14);
  EXPECT_THAT(integers, HasSubstr("only floats of 16 bits"));
  EXPECT_THAT(present, HasSubstr("outside"));
}

TEST_F(Loading, ExternalDataHasTheRightSize) {
  put("w.bin", "12345678");
  const auto refuse = [&](const std::vector<std::pair<std::string, std::string>>& keys, const char* why) {
    save(external_model("w.bin", keys));
    EXPECT_THAT(error_of(), HasSubstr(why));
  };
  refuse({{"offset", "1"}}, "outside");
  refuse({{"offset", "18446744073709551615"}}, "outside");
  refuse({{"offset", "-1"}}, "no size");
  refuse({{"length", "99999999999999999999"}}, "no size");
  refuse({{"length", "4"}}, "needs 8 bytes");
  refuse({{"offset", "0"}, {"offset", "0"}}, "twice");
  refuse({{"basepath", "/"}}, "unknown key");
  onnx::ModelProto huge = external_model("w.bin");
  huge.mutable_graph()->mutable_initializer(0)->set_dims(0, int64_t{1} << 40);
  save(huge);
  EXPECT_THAT(error_of(), HasSubstr("outside"));
}

TEST_F(Loading, DimensionsAreChecked) {
  const auto refuse = [&](const std::vector<int64_t>& dims, const char* why) {
    onnx::ModelProto proto = small_model();
    auto* w = proto.mutable_graph()->mutable_initializer(0);
    w->clear_dims();
    for (const int64_t d : dims) w->add_dims(d);
    save(proto);
    EXPECT_THAT(error_of(), HasSubstr(why));
  };
  refuse({-1}, "negative");
  refuse({int64_t{1} << 40, int64_t{1} << 40}, "any memory");
  refuse({INT64_MAX, 4}, "any memory");
  onnx::ModelProto proto = small_model();
  proto.mutable_graph()->mutable_initializer(0)->set_data_type(77);
  save(proto);
  EXPECT_THAT(error_of(), HasSubstr("element type 77"));
}

TEST_F(Loading, DeepNestingIsAnError) {
  onnx::ModelProto proto = small_model();
  onnx::GraphProto graph = proto.graph();
  for (int depth = 0; depth < 60; ++depth) {
    onnx::GraphProto outer;
    auto* node = outer.add_node();
    node->set_op_type("If");
    auto* attribute = node->add_attribute();
    attribute->set_name("then_branch");
    attribute->set_type(onnx::AttributeProto::GRAPH);
    attribute->mutable_g()->Swap(&graph);
    graph.Swap(&outer);
  }
  proto.mutable_graph()->Swap(&graph);
  save(proto);
  EXPECT_NE(error_of(), "");
}

TEST_F(Loading, FunctionsThatCallEachOtherAreAnError) {
  onnx::ModelProto proto = small_model();
  const auto add_function = [&](const std::string& name, const std::vector<std::string>& calls) {
    auto* f = proto.add_functions();
    f->set_name(name);
    f->set_domain("local");
    for (const std::string& call : calls) {
      auto* node = f->add_node();
      node->set_op_type(call);
      node->set_domain("local");
    }
  };
  add_function("A", {"B"});
  add_function("B", {"A"});
  save(proto);
  EXPECT_THAT(error_of(), HasSubstr("calls itself"));

  proto.clear_functions();
  for (int i = 0; i < 40; ++i) add_function(std::to_string(i), {std::to_string(i + 1), std::to_string(i + 1)});
  save(proto);
  EXPECT_THAT(error_of(), HasSubstr("more than"));
}

TEST_F(Loading, AnOpsetNamedTwiceSurvives) {
  onnx::ModelProto proto = small_model();
  *proto.add_opset_import() = proto.opset_import(0);
  save(proto);
  onnx::ModelProto back;
  to_proto(load_model(path("m.onnx")), &back);
  EXPECT_EQ(back.SerializeAsString(), proto.SerializeAsString());
}

TEST_F(Loading, LargeModelsKeepTheirDataOutside) {
  onnx::ModelProto proto;
  Model model = from_text(
      "<ir_version: 10, opset_import: [\"\" : 21]> g (float[N, 100] x) => (float[N, 100] y) {"
      " y = Identity(x) }");
  model.graph->add_initializer("a", Tensor::full(DType::kFloat, {100, 100}, 1.5));
  model.graph->add_initializer("b", Tensor::full(DType::kFloat, {300}, 2.5));
  to_proto(model, &proto);
  for (int turn = 0; turn < 3; ++turn) {
    save_proto(proto, path("m.onnx"), 4096);
    EXPECT_EQ(num_files(), 2u);
    EXPECT_LT(fs::file_size(path("m.onnx")), 1000u);
    EXPECT_EQ(load_proto(path("m.onnx")).SerializeAsString(), proto.SerializeAsString());
  }
}

// Whatever fails: the path names the old model or the new one, with its data.
TEST_F(Loading, ALargeModelKeepsItsDataWhereWritingFails) {
  const auto model_of = [](double value) {
    Model model = from_text(
        "<ir_version: 10, opset_import: [\"\" : 21]> g (float[N, 100] x) => (float[N, 100] y) { y = Identity(x) }");
    model.graph->add_initializer("a", Tensor::full(DType::kFloat, {100, 100}, value));
    onnx::ModelProto proto;
    to_proto(model, &proto);
    return proto;
  };
  const onnx::ModelProto before = model_of(1), after = model_of(2);
  // Of the data, their folder, the model, its folder: then the new model is in place.
  for (const int call : {0, 1, 2, 3}) {
    save_proto(before, path("m.onnx"), 4096);
    const FailingFsync failing(call);
    EXPECT_THROW(save_proto(after, path("m.onnx"), 4096), Error);
    EXPECT_TRUE(failing.reached());
    EXPECT_EQ(load_proto(path("m.onnx")).SerializeAsString(), (call < 3 ? before : after).SerializeAsString()) << call;
    EXPECT_EQ(num_files(), call < 3 ? 2u : 3u) << call;
  }
}

Tensor ramp(int64_t size) {
  Tensor tensor(DType::kFloat, {size});
  for (int64_t i = 0; i < size; ++i) tensor.set(i, static_cast<double>(i));
  return tensor;
}

// Large tensors w and v: in the graph, and in the branch of an If.
onnx::ModelProto large_model() {
  onnx::ModelProto proto = small_model();
  proto.mutable_graph()->clear_initializer();
  to_proto(ramp(1000), "w", proto.mutable_graph()->add_initializer());
  auto* branch = proto.mutable_graph()->add_node();
  branch->set_op_type("If");
  branch->set_name(std::string(2000, 'n'));  // large nodes are walked
  branch->add_input("x");
  branch->add_output("z");
  for (const char* name : {"then_branch", "else_branch"}) {
    auto* attribute = branch->add_attribute();
    attribute->set_name(name);
    attribute->set_type(onnx::AttributeProto::GRAPH);
    auto* graph = attribute->mutable_g();
    graph->set_name(name);
    to_proto(ramp(2000), "v", graph->add_initializer());
    auto* output = graph->add_output();
    output->set_name("v");
    output->mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
    output->mutable_type()->mutable_tensor_type()->mutable_shape()->add_dim()->set_dim_value(2000);
  }
  return proto;
}

TEST_F(Loading, LargeTensorsStayInTheFile) {
  const onnx::ModelProto proto = large_model();
  save(proto);
  const ModelMessage message = load_message(path("m.onnx"));
  ASSERT_EQ(message.contents.size(), 3u);
  EXPECT_LT(message.proto.ByteSizeLong(), 4000u);
  for (const Tensor& tensor : message.contents) EXPECT_TRUE(is_mapped(tensor.data(), tensor.bytes()));
  EXPECT_TRUE(load_proto(path("m.onnx")).SerializeAsString() == proto.SerializeAsString());
  onnx::ModelProto back;
  to_proto(load_model(path("m.onnx")), &back);
  EXPECT_TRUE(back.SerializeAsString() == proto.SerializeAsString());
}

TEST_F(Loading, WhatThisProgramWritesIsReadInPlace) {
  save(large_model());
  for (const size_t shift : {0, 1, 7, 60}) {  // where the contents would lie
    ModelMessage message = load_message(path("m.onnx"));
    message.proto.set_producer_name(std::string(1000 + shift, 'p'));
    save_message(message, path("aligned.onnx"));
    const ModelMessage back = load_message(path("aligned.onnx"));
    ASSERT_EQ(back.contents.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(back.contents[i].data()) % kAlignment, 0u) << shift;
      EXPECT_EQ(back.contents[i].at(999), message.contents[i].at(999));
    }
    onnx::ModelProto expected = large_model();
    expected.set_producer_name(message.proto.producer_name());
    EXPECT_TRUE(load_proto(path("aligned.onnx")).SerializeAsString() == expected.SerializeAsString());
  }
}

TEST_F(Loading, WritesToAMappedTensorGoToACopy) {
  save(large_model());
  ModelMessage message = load_message(path("m.onnx"));
  Tensor& weights = message.contents.at(0);
  const Tensor before = weights;
  const double first = before.at(0);
  weights.set(0, first + 1);
  EXPECT_EQ(weights.at(0), first + 1);
  EXPECT_EQ(weights.at(1), before.at(1));
  EXPECT_FALSE(is_mapped(weights.data(), weights.bytes()));
  EXPECT_TRUE(is_mapped(before.data(), before.bytes()));
  EXPECT_EQ(before.at(0), first);
  EXPECT_TRUE(load_proto(path("m.onnx")).SerializeAsString() == large_model().SerializeAsString());
}

TEST_F(Loading, LargeTensorsAreCopiedFromFileToFile) {
  const onnx::ModelProto proto = large_model();
  save(proto);
  save_model(load_model(path("m.onnx")), path("copy.onnx"));
  EXPECT_TRUE(load_proto(path("copy.onnx")).SerializeAsString() == proto.SerializeAsString());
  save_model(load_model(path("m.onnx")), path("m.onnx"));  // over the file that is mapped
  EXPECT_TRUE(load_proto(path("m.onnx")).SerializeAsString() == proto.SerializeAsString());
  EXPECT_EQ(num_files(), 2u);
}

TEST_F(Loading, DamagedLargeTensorsNeverCrash) {
  const std::string bytes = large_model().SerializeAsString();
  for (size_t n = 0; n < bytes.size(); n += n < 300 ? 1 : 97) {
    put("m.onnx", bytes.substr(0, n));
    EXPECT_NE(error_of(), "") << n;
  }
  for (size_t i = 0; i < bytes.size(); i += i < 300 ? 1 : 61) {
    for (const int flip : {0x01, 0x10, 0x80, 0xff}) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      put("m.onnx", damaged);
      error_of();
    }
  }
}

TEST_F(Loading, AFileThatChangesWhileItIsMappedIsNoticed) {
  save(large_model());
  const Model model = load_model(path("m.onnx"));
  usleep(20'000);  // times of files are kept to some milliseconds
  std::fstream(path("m.onnx"), std::ios::in | std::ios::out).seekp(3000).put('x');
  try {
    save_model(model, path("copy.onnx"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("m.onnx was changed while it was in use"));
  }
  fs::resize_file(path("m.onnx"), 100);
  EXPECT_THROW(save_model(model, path("copy.onnx")), Error);
  EXPECT_EQ(num_files(), 1u);
}

TEST_F(Loading, FailedWritesLeaveNothing) {
  EXPECT_THROW(write_file(path("no/such/folder"), "x"), Error);
  fs::create_directory(path("folder"));
  EXPECT_THROW(write_file(path("folder"), "x"), Error);
  EXPECT_EQ(num_files(), 1u);
  if (geteuid() != 0) {
    fs::permissions(path("folder"), fs::perms::owner_read | fs::perms::owner_exec);
    EXPECT_THROW(write_file(path("folder/file"), "x"), Error);
  }
}

TEST_F(Loading, WritingKeepsPermissions) {
  write_file(path("file"), "old");
  fs::permissions(path("file"), fs::perms::owner_read | fs::perms::owner_write);
  write_file(path("file"), "new");
  EXPECT_EQ(fs::status(path("file")).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(Loading, PipelineDumpsTimesAndVerifies) {
  onnx::ModelProto proto = small_model();
  Model model = from_proto(proto);
  const Pass nothing{"nothing", [](Model&) { return false; }};
  const Pass rename{"break_it", [](Model& m) {
                      m.graph->outputs()[0]->set_type({DType::kInt32, Dims{3}});
                      return true;
                    }};
  PipelineOptions options;
  options.dump_dir = path("dump/passes");
  options.verify = true;
  const auto timings = run_pipeline({nothing}, &model, options);
  ASSERT_EQ(timings.size(), 1u);
  EXPECT_FALSE(timings[0].changed);
  EXPECT_EQ(error_of("dump/passes/01_nothing.onnx"), "");
  EXPECT_TRUE(fs::exists(path("dump/passes/01_nothing.txt")));
  try {
    run_pipeline({nothing, rename}, &model, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(std::string(error.what()), HasSubstr("[break_it] entry point 'predict'"));
  }
}

// ---- The version of our format

onnx::ModelProto model_of_version(const std::string& version) {
  onnx::ModelProto model;
  auto* entry = model.add_metadata_props();
  entry->set_key(kFormatKey);
  entry->set_value(version);
  return model;
}

TEST(Format, StepsLeadToTheNewestVersion) {
  const auto add = [](onnx::ModelProto* model, const char* what) { model->set_doc_string(model->doc_string() + what); };
  static constexpr auto kAdd = add;
  const Upgrade steps[] = {{2, [](onnx::ModelProto* model) { kAdd(model, "b"); }},
                           {1, [](onnx::ModelProto* model) { kAdd(model, "a"); }}};
  onnx::ModelProto oldest = model_of_version("1"), older = model_of_version("2"), none;
  for (onnx::ModelProto* model : {&oldest, &older, &none}) upgrade(model, steps, 3);
  EXPECT_EQ(oldest.doc_string(), "ab");
  EXPECT_EQ(oldest.metadata_props(0).value(), "3");
  EXPECT_EQ(older.doc_string(), "b");
  EXPECT_EQ(none.metadata_props_size(), 0) << "a model that is not ours";
}

TEST(Format, WhatCannotBeReadIsRefused) {
  const auto refusal = [](const std::string& version, int newest) {
    onnx::ModelProto model = model_of_version(version);
    return error_of([&] { upgrade(&model, {}, newest); });
  };
  EXPECT_THAT(refusal("4", 3), HasSubstr("version 4, and this onnx-train reads up to 3"));
  EXPECT_THAT(refusal("1", 3), HasSubstr("version 1, from which nothing leads to 2"));
  for (const char* version : {"", "one", "1.5", "0", "-1", "99999999999"})
    EXPECT_THAT(refusal(version, 3), HasSubstr("which is no version of this format")) << version;
}

// Every version before the newest has a step.
TEST(Format, NoStepIsMissing) {
  for (int version = 1; version <= kFormatVersion; ++version) {
    onnx::ModelProto model = model_of_version(std::to_string(version));
    EXPECT_NO_THROW(upgrade(&model)) << version;
  }
}

}  // namespace
}  // namespace onnx_train::loading_test
