// Ranks write a checkpoint together, and what is read of it is what each of them had.
#include "runtime/training/checkpoint_shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <sstream>
#include <thread>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes.h"
#include "runtime/training/checkpoint_checksum.h"
#include "runtime/training/checkpoint_writer.h"
#include "tests/support/error_of.h"
#include "tests/support/local_ranks.h"
#include "tests/support/sessions.h"
#include "tests/support/transformer.h"

namespace onnx_train::checkpoint_shards_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

std::string new_folder(const std::string& name) {
  const std::string folder = testing::TempDir() + "/shards_" + name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

Model training_model() {
  Model model = make_transformer({.width = 32, .vocabulary = 64});
  BuildOptions options;
  options.loss = "cross_entropy";
  options.accumulate = true;
  options.freeze = {"head"};
  build_training_model(&model, options);
  return model;
}

// What a state has here: other bytes for each state and each `turn`.
Tensor value_of(const StateStore& store, size_t i, int turn) {
  Tensor value(store.dtype(i), store.shape(i));
  auto* bytes = static_cast<unsigned char*>(value.data());
  for (size_t b = 0; b < value.bytes(); ++b) bytes[b] = static_cast<unsigned char>((b * 7 + i * 31 + turn) % 61);
  return value;
}

struct Way {
  int ranks = 3;
  Sharding sharding = Sharding::kNone;
  int stages = 1;

  TopologyOptions topology(Collectives* collectives) const {
    TopologyOptions options;
    options.collectives = collectives;
    options.sharding = sharding;
    options.stages = stages;
    return options;
  }
};

const Way kWays[] = {{3, Sharding::kNone},    {3, Sharding::kOptimizer}, {2, Sharding::kGradients},
                     {3, Sharding::kWeights}, {2, Sharding::kNone, 2},   {4, Sharding::kNone, 2}};

struct RankSession : Session {
  RankSession(const Way& way, Collectives* collectives) : Session(training_model(), options(way, collectives)) {
    set(0);
  }
  void set(int turn) {
    for (size_t i = 0; i < state().names().size(); ++i) {
      if (state().keeps(i)) state().set(state().names()[i], value_of(state(), i, turn));
    }
  }
  static SessionOptions options(const Way& way, Collectives* collectives) {
    SessionOptions options;
    options.threads = 1;
    options.topology = way.topology(collectives);
    return options;
  }
};

// Runs f(session) on the ranks of a way.
void on_ranks(const Way& way, const std::function<void(RankSession&)>& f) {
  LocalRanks(way.ranks).run([&](Collectives* c) {
    RankSession session(way, c);
    f(session);
  });
}

TrainingPosition at_step(int64_t step) {
  TrainingPosition position;
  position.step = step;
  return position;
}

// Ranks of this way write last.onnx with the values of a turn.
void write_last(const Way& way, const std::string& folder, int64_t step = 3, int turn = 0) {
  on_ranks(way, [&](RankSession& session) {
    session.set(turn);
    CheckpointWriter writer(&session, "on");
    writer.save(at_step(step), {folder + "/last.onnx"});
    session.set(turn + 1);  // what steps do meanwhile
    writer.wait();
  });
}

void expect_turn(const std::string& path, int turn, int64_t step) {
  Model model = load_training_model(path);
  EXPECT_EQ(checkpoint_position(model)->step, step);
  Session read(std::move(model));
  for (size_t i = 0; i < read.state().names().size(); ++i) {
    const Tensor value = read.state().get(read.state().names()[i]), expected = value_of(read.state(), i, turn);
    EXPECT_EQ(std::memcmp(value.data(), expected.data(), value.bytes()), 0) << read.state().names()[i];
  }
}

TEST(ShardLayout, ATensorIsWrittenOnceByARankThatHasIt) {
  for (const Way& way : kWays) {
    on_ranks(way, [&](RankSession& session) {
      const Topology& topology = session.topology();
      const ShardLayout layout = lay_out_shards(session.model(), topology);
      const ModelMessage message = to_message(session.model());
      const auto tensors = stored_tensors(message.proto);
      std::map<int, size_t> end;
      size_t largest = 0;
      for (size_t i = 0; i < tensors.size(); ++i) {
        const auto& place = layout.places[i];
        if (!place) continue;
        const std::vector<int> keepers = topology.keepers(tensors[i]->name());
        EXPECT_NE(std::ranges::find(keepers, place->rank), keepers.end()) << tensors[i]->name();
        EXPECT_EQ(place->offset % 4096, 0u);
        EXPECT_GE(place->offset, end[place->rank]);
        end[place->rank] = place->offset + place->bytes;
        largest = std::max(largest, place->bytes);
      }
      const auto [least, most] = std::ranges::minmax(layout.file_bytes);
      if (way.stages == 1) {
        EXPECT_LE(most - least, largest + 4096 * tensors.size());
      }
      const size_t states = std::accumulate(layout.state_bytes.begin(), layout.state_bytes.end(), size_t{0});
      EXPECT_LT(layout.state_bytes[0], states);  // rank 0 has no copy of all
    });
  }
}

TEST(Topology, KeepersOfAState) {
  on_ranks({4, Sharding::kNone, 2}, [](RankSession& session) {
    const Topology& topology = session.topology();
    for (const std::string& name : session.state_names()) {
      const std::vector<int> keepers = topology.keepers(name);
      if (topology.is_sharded(name)) {
        EXPECT_EQ(keepers, (std::vector<int>{topology.keeper(name), topology.keeper(name) + 2}));
      } else {
        EXPECT_THAT(keepers, ElementsAre(0, 1, 2, 3));
      }
      EXPECT_EQ(topology.has_state(name), std::ranges::find(keepers, topology.rank()) != keepers.end()) << name;
    }
  });
}

TEST(ShardedCheckpoint, HasTheStatesOfTheMomentItWasAsked) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(concat(way.ranks, " ranks, zero ", static_cast<int>(way.sharding), ", stages ", way.stages));
    const std::string folder = new_folder("moment");
    write_last(way, folder);
    EXPECT_THAT(names_in(folder), ElementsAre("last.onnx", "step-3"));
    EXPECT_EQ(names_in(folder + "/step-3").size(), static_cast<size_t>(way.ranks));
    expect_turn(folder + "/last.onnx", 0, 3);
    // The frozen weights, too.
    const Model read = load_training_model(folder + "/last.onnx"), model = training_model();
    const Tensor found = contents_of(*read.graph->find("head")), head = contents_of(*model.graph->find("head"));
    EXPECT_EQ(std::memcmp(found.data(), head.data(), head.bytes()), 0);
  }
}

TEST(ShardedCheckpoint, AtTheEndNothingIsCopied) {
  const std::string folder = new_folder("end");
  on_ranks(kWays[3], [&](RankSession& session) {
    CheckpointWriter writer(&session, "on");
    writer.save_and_wait(at_step(7), {folder + "/best.onnx", folder + "/last.onnx"});
  });
  EXPECT_THAT(names_in(folder), ElementsAre("best.onnx", "last.onnx", "step-7"));
  expect_turn(folder + "/best.onnx", 0, 7);
  expect_turn(folder + "/last.onnx", 0, 7);
}

TEST(ShardedCheckpoint, ARankHasACopyOfWhatItWritesAlone) {
  on_ranks({3, Sharding::kWeights}, [](RankSession& session) {
    const CheckpointWriter shards(&session, "on"), whole(&session, "off");
    EXPECT_LT(shards.copy_bytes(), whole.copy_bytes() * 0.5);
  });
}

TEST(ShardedCheckpoint, IsTheDefaultWhereOneFileCannotHoldSharedOutStates) {
  for (const size_t limit : {size_t{1000}, size_t{1} << 30}) {
    for (const Sharding sharding : {Sharding::kNone, Sharding::kOptimizer}) {
      const std::string folder = new_folder("auto");
      on_ranks({2, sharding}, [&](RankSession& session) {
        CheckpointWriter writer(&session, "auto", limit);
        writer.save_and_wait(at_step(1), {folder + "/last.onnx"});
      });
      const bool shards = limit == 1000 && sharding != Sharding::kNone;
      EXPECT_EQ(names_in(folder),
                shards ? std::vector<std::string>({"last.onnx", "step-1"}) : std::vector<std::string>({"last.onnx"}));
      expect_turn(folder + "/last.onnx", 0, 1);
    }
  }
}

// ---- Reading

// A byte of a tensor that this rank alone keeps becomes another one. Returns the tensor's name.
std::string damage(const std::string& folder, const Way& way, int rank) {
  std::string damaged;
  on_ranks(way, [&](RankSession& session) {
    if (session.topology().rank() != rank) return;
    const ShardLayout layout = lay_out_shards(session.model(), session.topology());
    const ModelMessage message = to_message(session.model());
    const auto tensors = stored_tensors(message.proto);
    for (size_t i = 0; i < tensors.size() && damaged.empty(); ++i) {
      if (!layout.places[i] || session.topology().keepers(tensors[i]->name()) != std::vector<int>{rank}) continue;
      std::fstream file(folder + "/step-3/" + shard_file(rank), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(layout.places[i]->offset + 5)).put('~').flush();
      damaged = tensors[i]->name();
    }
  });
  return damaged;
}

TEST(ShardedCheckpoint, ARankReadsAndComparesWhatItKeeps) {
  const Way way{3, Sharding::kWeights};
  const std::string folder = new_folder("reads"), last = folder + "/last.onnx";
  write_last(way, folder);
  const std::string tensor = damage(folder, way, 1);
  ASSERT_FALSE(tensor.empty());
  EXPECT_EQ(error_of([&] { load_training_model(last); }),
            last + " is damaged: the checksum of '" + tensor + "' is not that of its bytes");
  std::string errors[3];
  LocalRanks(3).run(
      [&](Collectives* c) { errors[c->rank()] = error_of([&] { load_training_model(last, way.topology(c)); }); });
  EXPECT_EQ(errors[0], "");
  EXPECT_THAT(errors[1], HasSubstr(tensor));
  EXPECT_EQ(errors[2], "");
}

TEST(ShardedCheckpoint, AChangedPositionOrSmallTensorIsNoticed) {
  const std::string folder = new_folder("position"), last = folder + "/last.onnx";
  write_last({2, Sharding::kOptimizer}, folder);
  onnx::ModelProto proto = load_message(last).proto;
  const auto change = [&](const std::function<void(ModelMessage*)>& f) {
    ModelMessage message = load_message(last);
    f(&message);
    return error_of([&] { training_model(std::move(message), "it"); });
  };
  EXPECT_EQ(change([](ModelMessage*) {}), "");
  EXPECT_THAT(change([](ModelMessage* m) {
                for (auto& entry : *m->proto.mutable_metadata_props()) {
                  if (entry.key() == "onnx_train.checkpoint") entry.mutable_value()->replace(0, 1, " {");
                }
              }),
              HasSubstr("is damaged"));
  EXPECT_THAT(change([](ModelMessage* m) { m->proto.mutable_graph()->mutable_initializer()->RemoveLast(); }),
              HasSubstr("is damaged"));
  EXPECT_THAT(change([](ModelMessage* m) {
                for (auto* tensor : stored_tensors(&m->proto)) {
                  if (tensor->has_raw_data() && !tensor->raw_data().empty()) (*tensor->mutable_raw_data())[0] ^= 1;
                }
              }),
              HasSubstr("is damaged"));
}

TEST(ShardedCheckpoint, SavedInOneFileItIsStillCompared) {
  const std::string folder = new_folder("one_file");
  write_last({3, Sharding::kWeights}, folder);
  save_message(load_message(folder + "/last.onnx"), folder + "/one.onnx");
  fs::remove_all(folder + "/step-3");
  expect_turn(folder + "/one.onnx", 0, 3);
  // A byte of a tensor that was in the file of a rank.
  Session session(load_training_model(folder + "/one.onnx"));
  const StateStore& store = session.state();
  std::ostringstream whole;
  whole << std::ifstream(folder + "/one.onnx", std::ios::binary).rdbuf();
  size_t at = std::string::npos;
  for (size_t i = 0; i < store.names().size() && at == std::string::npos; ++i) {
    const Tensor value = value_of(store, i, 0);
    if (value.bytes() >= 4096)
      at = whole.str().find(std::string(static_cast<const char*>(value.data()), value.bytes()));
  }
  ASSERT_NE(at, std::string::npos);
  std::fstream file(folder + "/one.onnx", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(at + 9)).put('~').flush();
  EXPECT_THAT(error_of([&] { load_training_model(folder + "/one.onnx"); }), HasSubstr("is not that of its bytes"));
}

TEST(ShardedCheckpoint, AMissingOrShortFileIsNamed) {
  const std::string folder = new_folder("missing"), last = folder + "/last.onnx";
  write_last({2, Sharding::kOptimizer}, folder);
  fs::resize_file(folder + "/step-3/rank-1.data", 100);
  EXPECT_THAT(error_of([&] { load_training_model(last); }),
              testing::AllOf(HasSubstr("'step-3/rank-1.data', which has 100 bytes"), HasSubstr("Copy it again")));
  fs::remove(folder + "/step-3/rank-1.data");
  EXPECT_THAT(error_of([&] { load_training_model(last); }),
              testing::AllOf(HasSubstr("external data file 'step-3/rank-1.data': No such file"), HasSubstr("copy it")));
}

TEST(ShardedCheckpoint, IsReadWhileARunReplacesIt) {
  const std::string folder = new_folder("replaced"), last = folder + "/last.onnx";
  write_last({2, Sharding::kWeights}, folder);
  std::atomic<bool> ends = false;
  std::thread run([&] {
    on_ranks({2, Sharding::kWeights}, [&](RankSession& session) {
      CheckpointWriter writer(&session, "on");
      for (int step = 4; step < 40; ++step) writer.save_and_wait(at_step(step), {last});
    });
    ends = true;
  });
  std::string error;
  for (int reads = 0; !ends || reads < 10; ++reads) {
    if (error.empty()) error = error_of([&] { load_training_model(last); });
  }
  run.join();
  EXPECT_EQ(error, "");
}

// ---- Which files stay

TEST(ShardedCheckpoint, FilesStayAsLongAsAModelRefersToThem) {
  const std::string folder = new_folder("stay");
  const std::string best = folder + "/best.onnx", last = folder + "/last.onnx";
  on_ranks({2, Sharding::kGradients}, [&](RankSession& session) {
    const bool leads = session.topology().rank() == 0;
    CheckpointWriter writer(&session, "on");
    const auto save = [&](int step, const std::vector<std::string>& paths) {
      session.set(step);
      writer.save(at_step(step), paths);
      writer.wait();
    };
    save(1, {best, last});
    save(2, {last});
    if (leads) {
      EXPECT_THAT(names_in(folder), ElementsAre("best.onnx", "last.onnx", "step-1", "step-2"));
    }
    save(2, {last});  // the same step again, under another name
    if (leads) {
      EXPECT_THAT(names_in(folder), ElementsAre("best.onnx", "last.onnx", "step-1", "step-2.1"));
      fs::copy_file(last, folder + "/kept.onnx");
    }
    save(3, {best, last});
    if (leads) {
      EXPECT_THAT(names_in(folder), ElementsAre("best.onnx", "kept.onnx", "last.onnx", "step-2.1", "step-3"));
    }
  });
  expect_turn(folder + "/kept.onnx", 2, 2);
  expect_turn(best, 3, 3);
  // One process goes on, and writes one file.
  Session alone(load_training_model(last));
  CheckpointWriter writer(&alone);
  writer.save_and_wait(at_step(4), {best, last});
  EXPECT_THAT(names_in(folder), ElementsAre("best.onnx", "kept.onnx", "last.onnx", "step-2.1"));
  expect_turn(last, 3, 4);
}

TEST(RemoveUnusedShards, LeavesWhatItDoesNotKnow) {
  const std::string folder = new_folder("unknown");
  write_last({2, Sharding::kOptimizer}, folder);
  for (const char* name : {"step-1", "step-2", "step-x", "steps"}) fs::create_directories(folder + "/" + name);
  std::ofstream(folder + "/step-1/rank-0.data") << "old";
  std::ofstream(folder + "/step-1/.rank-1.data.a1B2c3") << "killed";
  std::ofstream(folder + "/step-2/notes.txt") << "mine";
  std::ofstream(folder + "/bad.onnx") << "no model";
  fs::create_symlink("nowhere", folder + "/link.onnx");
  remove_unused_shards(folder);
  EXPECT_THAT(names_in(folder),
              ElementsAre("bad.onnx", "last.onnx", "link.onnx", "step-2", "step-3", "step-x", "steps"));
  EXPECT_THAT(names_in(folder + "/step-2"), ElementsAre("notes.txt"));
  expect_turn(folder + "/last.onnx", 0, 3);
}

// ---- What goes wrong

TEST(ShardedCheckpoint, RanksThatSeeOtherFoldersCollectOnRank0) {
  const std::string folders[] = {new_folder("here"), new_folder("there")};
  on_ranks({2, Sharding::kWeights}, [&](RankSession& session) {
    CheckpointWriter writer(&session, "on");
    for (const int step : {1, 2}) {
      session.set(step);
      writer.save(at_step(step), {folders[session.topology().rank()] + "/last.onnx"});
      EXPECT_THAT(writer.note(), HasSubstr("not all ranks see"));
    }
    writer.wait();
  });
  EXPECT_THAT(names_in(folders[0]), ElementsAre("last.onnx"));
  EXPECT_THAT(names_in(folders[1]), ElementsAre());
  expect_turn(folders[0] + "/last.onnx", 2, 2);
}

TEST(ShardedCheckpoint, AFolderOfTheSameNameElsewhereIsNoneOfTheRun) {
  const std::string folders[] = {new_folder("one_machine"), new_folder("another")};
  fs::create_directories(folders[1] + "/step-1");
  on_ranks({2, Sharding::kWeights}, [&](RankSession& session) {
    CheckpointWriter writer(&session, "on");
    writer.save_and_wait(at_step(1), {folders[session.topology().rank()] + "/last.onnx"});
    EXPECT_THAT(writer.note(), HasSubstr("not all ranks see"));
  });
  EXPECT_THAT(names_in(folders[1] + "/step-1"), ElementsAre());
  expect_turn(folders[0] + "/last.onnx", 0, 1);
}

TEST(ShardedCheckpoint, ARankWithoutAFolderMakesRank0Collect) {
  const std::string folder = new_folder("without");
  on_ranks({2, Sharding::kWeights}, [&](RankSession& session) {
    CheckpointWriter writer(&session, "on");
    const bool leads = session.topology().rank() == 0;
    writer.save_and_wait(at_step(1), leads ? std::vector{folder + "/last.onnx"} : std::vector<std::string>());
    EXPECT_THAT(writer.note(), HasSubstr("rank 1 has no folder of the run"));
  });
  expect_turn(folder + "/last.onnx", 0, 1);
}

TEST(ShardedCheckpoint, NothingIsWrittenWhereRank0HasNoFolder) {
  const std::string folder = new_folder("nothing");
  on_ranks({2, Sharding::kWeights}, [&](RankSession& session) {
    CheckpointWriter writer(&session, "on");
    const bool leads = session.topology().rank() == 0;
    writer.save_and_wait(at_step(1), leads ? std::vector<std::string>() : std::vector{folder + "/last.onnx"});
  });
  EXPECT_THAT(names_in(folder), ElementsAre());
}

// From here on rank 1 runs as another user, who may not write into the folder. Without root no rank may write there.
void forbid(const std::string& folder, const Session& session) {
  constexpr uid_t kNobody = 65534;
  if (geteuid() != 0) {
    if (session.topology().rank() == 0) chmod(folder.c_str(), 0555);  // the other rank may be ahead of it
  } else if (session.topology().rank() == 1) {
    setfsuid(kNobody);  // of this thread, and of those that it starts
  }
}

TEST(ShardedCheckpoint, ARankThatMayNotWriteEndsAllAndTheLastOneStays) {
  const std::string folder = new_folder("permission");
  write_last({2, Sharding::kWeights}, folder);
  // At the first checkpoint, and at a later one, whose files are written in the background.
  for (const bool at_first : {true, false}) {
    const std::string error = error_of([&] {
      on_ranks({2, Sharding::kWeights}, [&](RankSession& session) {
        CheckpointWriter writer(&session, "on");
        if (!at_first) writer.save_and_wait(at_step(3), {folder + "/last.onnx"});
        forbid(folder, session);
        writer.save_and_wait(at_step(4), {folder + "/last.onnx"});
      });
    });
    chmod(folder.c_str(), 0755);
    EXPECT_THAT(error, testing::AllOf(HasSubstr("/step-4"), HasSubstr("Permission denied")));
    remove_unused_shards(folder);
    EXPECT_EQ(names_in(folder).size(), 2u);
    expect_turn(folder + "/last.onnx", 0, 3);
  }
}

TEST(CheckShards, NamesTheFileThatRank0DoesNotSee) {
  const std::string folder = new_folder("check");
  ShardLayout layout;
  layout.file_bytes = {3, 4};
  std::ofstream(folder + "/rank-0.data") << "abc";
  EXPECT_THAT(error_of([&] { check_shards(folder, layout); }), HasSubstr("rank-1.data: rank 1 has written it"));
  std::ofstream(folder + "/rank-1.data") << "abc";
  EXPECT_THAT(error_of([&] { check_shards(folder, layout); }), HasSubstr("4 bytes, and rank 0 sees 3"));
  std::ofstream(folder + "/rank-1.data") << "abcd";
  EXPECT_EQ(error_of([&] { check_shards(folder, layout); }), "");
}

}  // namespace
}  // namespace onnx_train::checkpoint_shards_test
